//! A sequential test of calls against a stated rate of false alarms: bets on p-values.
//!
//! Sources: Shin, Ramdas and Rinaldo 2022, "E-detectors" (sums of e-processes that begin at each time); Vovk, Nouretdinov and Gammerman
//! 2003 (betting on conformal p-values); Ville 1939.

/// Tail parts q on which is bet, with the part a > q that is betted to lie in it.
const BETS: [(f64, f64); 14] = [
    (0.5, 0.65),
    (0.5, 0.9),
    (0.2, 0.3),
    (0.2, 0.5),
    (0.2, 0.9),
    (0.05, 0.1),
    (0.05, 0.25),
    (0.05, 0.8),
    (0.02, 0.06),
    (0.02, 0.2),
    (0.02, 0.8),
    (0.005, 0.02),
    (0.005, 0.1),
    (0.005, 0.8),
];

/// Bets on one function's calls. Each detector R grows with time, and by what its bet wins:
///
/// ```text
/// R <- (R + dt) b(p)^(1/d),   b(p) = a / q if p <= q, (1 - a) / (1 - q) else,   alarm if the mean of all R >= c, then R <- 0
/// ```
/// While no call takes longer than the bounds say, `P(p <= q) <= q` whatever came before, so that a bet does not win on average: `R - t` is a
/// supermartingale, also over restarts. Each alarm takes c of it, therefore
///
/// ```text
/// expected false alarms within T hours <= T / c
/// ```
/// Calls that follow each other are often slow together. If those that are d or more apart are independent, the calls are d interleaved
/// sequences, each with bets of its own; their geometric mean does not win on average either, however they depend on each other
/// (Hölder's inequality). That is the exponent 1/d. A bet sees of a call only whether it lies in its tail part: each has the d of that.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bets {
    detectors: [Detector; BETS.len()],
    /// The latest begin of a call so far, hours.
    last_h: Option<f64>,
}

/// One bet's detector, and how it would look from its best beginning (CUSUM).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Detector {
    value: f64,
    log_gain: f64,
    since_h: f64,
    calls: u64,
}

/// When the alarm is raised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Raised {
    /// Beginning of the change, as the bet that wins most sees it, hours.
    pub since_h: f64,
    /// Calls since then.
    pub calls: u64,
}

impl Bets {
    pub fn new() -> Self {
        Self { detectors: [Detector::default(); BETS.len()], last_h: None }
    }

    /// Takes a call that began at `now_h` (hours; may lie before the last one's) and whose p-value is at most `p`.
    /// `dependence`: d of a bet on the tail part q, which sees of a call only whether it lies in that; `threshold_h`: c, the mean time between false alarms, hours.
    pub fn take(
        &mut self,
        now_h: f64,
        p: f64,
        dependence: impl Fn(f64) -> f64,
        threshold_h: f64,
    ) -> Option<Raised> {
        // Time that passes before the first call is worth nothing yet.
        let passed = self.last_h.map_or(0.0, |last| (now_h - last).max(0.0));
        // Calls come when they end: one that took long began before others that are here already.
        self.last_h = Some(self.last_h.map_or(now_h, |last| last.max(now_h)));
        for (detector, (q, a)) in self.detectors.iter_mut().zip(BETS) {
            let won = if p <= q { a / q } else { (1.0 - a) / (1.0 - q) };
            let gain = won.powf(1.0 / dependence(q).max(1.0));
            detector.value = (detector.value + passed) * gain;
            if detector.log_gain <= 0.0 {
                (detector.log_gain, detector.since_h, detector.calls) = (0.0, now_h, 0);
            }
            detector.log_gain += gain.ln();
            detector.calls += 1;
        }
        let mean = self.detectors.iter().map(|d| d.value).sum::<f64>() / self.detectors.len() as f64;
        if mean < threshold_h {
            return None;
        }
        let best = self.detectors.iter().max_by(|a, b| a.value.total_cmp(&b.value));
        let raised = best.map(|d| Raised { since_h: d.since_h, calls: d.calls });
        self.detectors = [Detector::default(); BETS.len()];
        raised
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim::rng;
    use rand::RngExt as _;

    #[test]
    fn no_bet_wins_on_average() {
        for (q, a) in BETS {
            assert!(a > q && a < 1.0);
            let mean = q * (a / q) + (1.0 - q) * ((1.0 - a) / (1.0 - q));
            assert!((mean - 1.0).abs() < 1e-12);
        }
    }

    /// Alarms in `hours` hours of 3,600 calls each, whose p-values `draw` gives.
    fn alarms(hours: u32, seed: u64, mut draw: impl FnMut(&mut rand::rngs::StdRng) -> f64) -> u32 {
        let (mut random, mut bets) = (rng(seed), Bets::new());
        let calls = (0..hours * 3_600).map(|i| f64::from(i) / 3_600.0);
        calls.map(|now| u32::from(bets.take(now, draw(&mut random), |_| 1.0, 1.0).is_some())).sum()
    }

    #[test]
    fn false_alarms_are_at_most_one_an_hour_and_a_tail_that_doubles_is_found() {
        let false_ones: u32 = (0..20).map(|seed| alarms(20, seed, |r| r.random())).sum();
        // 400 hours; the standard error of a Poisson count is 20.
        assert!((20..=440).contains(&false_ones), "{false_ones} in 400 hours");
        // One call in five is among the slowest 2 %.
        let slow = |r: &mut rand::rngs::StdRng| {
            if r.random::<f64>() < 0.2 { 0.02 * r.random::<f64>() } else { r.random() }
        };
        let found = alarms(1, 5, slow);
        assert!(found > 10, "{found}");
    }

    #[test]
    fn time_passes_once_where_long_calls_come_late() {
        // A call every second that is neither fast nor slow to the bets, and after each one that began 10 s before it.
        let value = |late_h: Option<f64>| {
            let mut bets = Bets::new();
            for i in 0..600 {
                let now = f64::from(i) / 3_600.0;
                assert_eq!(bets.take(now, 1.0, |_| f64::INFINITY, 1e9), None);
                if let Some(late) = late_h {
                    bets.take(now - late, 1.0, |_| f64::INFINITY, 1e9);
                }
            }
            bets.detectors[0].value
        };
        let (plain, late) = (value(None), value(Some(10.0 / 3_600.0)));
        assert!((plain - 599.0 / 3_600.0).abs() < 1e-9, "{plain}");
        assert!((late - plain).abs() < 1e-9, "{late} against {plain}");
    }

    #[test]
    fn an_alarm_says_since_when() {
        let (mut bets, mut random) = (Bets::new(), rng(9));
        for i in 0..3_600 {
            bets.take(f64::from(i) / 3_600.0, random.random(), |_| 1.0, 100.0);
        }
        let raised =
            (3_600..4_000).find_map(|i| bets.take(f64::from(i) / 3_600.0, 0.004, |_| 1.0, 100.0)).unwrap();
        assert!((raised.since_h - 1.0).abs() < 0.01 && raised.calls < 30, "{raised:?}");
    }
}
