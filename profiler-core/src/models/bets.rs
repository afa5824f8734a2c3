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

/// Time of the calls' begins that a bucket of [`Births`] has at least, hours: calls that end in the step after the one in which they began lose little.
pub(super) const LEAST_WIDTH_H: f64 = 0.05 / 3_600.0;
/// Buckets are put together while they are no wider than this part of the time since.
pub(super) const PART_OF_AGE: f64 = 0.125;
/// Most that calls may have won in one bucket: what is born later must be able to count beside it.
const MOST_WON: f32 = 1e30;

/// Bets on one function's calls. Each detector R grows with time, and by what its bet wins:
///
/// ```text
/// R = sum over s of ds prod over calls that began at s or later of b(p)^(1/d),   b(p) = a / q if p <= q, (1 - a) / (1 - q) else
/// alarm if the mean of all R >= c, then R <- 0
/// ```
/// Each piece ds of time that passes is a bet of its own, on the calls that begin after it. While no call takes longer than the bounds say, `P(p <= q) <= q` whatever was
/// known when the call began, so that none of these bets wins on average: `R - t` lies below a supermartingale, also over restarts. Each alarm takes c of it, therefore
///
/// ```text
/// expected false alarms within T hours <= T / c
/// ```
/// A call that began before s must not count for ds: when s came it was known how long the call had taken already, and of a call that is known to be long b(p) wins on average
/// (with some 50 calls open at once there were three times as many false alarms as allowed). Calls come when they end, so R is kept by times of birth ([`Births`]).
///
/// Calls that follow each other are often slow together. If those that are d or more apart are independent, the calls are d interleaved
/// sequences, each with bets of its own; their geometric mean does not win on average either, however they depend on each other
/// (Hölder's inequality). That is the exponent 1/d. A bet sees of a call only whether it lies in its tail part: each has the d of that.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bets {
    detectors: [Detector; BETS.len()],
    births: Births,
    /// The latest begin of a call so far, hours.
    last_h: Option<f64>,
}

/// One bet's detector, and how it would look from its best beginning (CUSUM).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Detector {
    /// R, all of it.
    value: f64,
    /// What was born since the last bucket ended.
    open: f64,
    /// What calls have won since then for what was born before.
    open_won: f64,
    log_gain: f64,
    since_h: f64,
    calls: u64,
}

/// What was born in a stretch of time, for each bet.
#[derive(Debug, Clone, PartialEq)]
struct Bucket {
    ends_h: f64,
    /// What it is worth by the calls up to the end of the stretch, and by those that came late and began behind the stretch's end and before that of the next one.
    value: [f32; BETS.len()],
    /// What the same calls have won for everything that was born before.
    won: [f32; BETS.len()],
}

/// R by times of birth, oldest first: `R_k = R_(k-1) won_k + value_k`. A call that began behind bucket k and is known only later counts for that and those before it: it
/// multiplies `won_k` and `value_k`, and that is all. Buckets are the wider the longer they are ago, so that there are some 150 of a day, 120 bytes each.
#[derive(Debug, Clone, Default, PartialEq)]
struct Births {
    buckets: Vec<Bucket>,
    /// When the open one began, hours.
    open_h: f64,
    /// Calls have come late since the sums were made.
    is_stale: bool,
}

/// When the alarm is raised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Raised {
    /// Beginning of the change, as the bet that wins most sees it, hours.
    pub since_h: f64,
    /// Calls since then.
    pub calls: u64,
}

impl Births {
    /// Ends the open bucket.
    fn close(&mut self, now_h: f64, detectors: &mut [Detector; BETS.len()]) {
        // OK because what is large is cut off, and what is small may be nothing.
        let single = |x: f64| x.min(f64::from(MOST_WON)) as f32;
        let value = std::array::from_fn(|i| detectors.get(i).map_or(0.0, |d| single(d.open)));
        let won = std::array::from_fn(|i| detectors.get(i).map_or(0.0, |d| single(d.open_won)));
        self.buckets.push(Bucket { ends_h: now_h, value, won });
        self.open_h = now_h;
        detectors.iter_mut().for_each(|d| (d.open, d.open_won) = (0.0, 1.0));
        self.put_together(now_h);
    }

    /// Puts old buckets together.
    fn put_together(&mut self, now_h: f64) {
        let mut begins_h = f64::NEG_INFINITY;
        let mut kept: usize = 0;
        for i in 0..self.buckets.len() {
            let Some(next) = self.buckets.get(i).cloned() else { break };
            let is_one = next.ends_h - begins_h <= PART_OF_AGE * (now_h - next.ends_h);
            let last = kept.checked_sub(1).and_then(|at| self.buckets.get_mut(at));
            match last.filter(|_| is_one) {
                Some(last) => last.add(&next),
                None => {
                    begins_h = kept
                        .checked_sub(1)
                        .and_then(|at| self.buckets.get(at))
                        .map_or(begins_h, |b| b.ends_h);
                    if let Some(place) = self.buckets.get_mut(kept) {
                        *place = next;
                    }
                    kept += 1;
                }
            }
        }
        self.buckets.truncate(kept);
    }

    /// The last bucket of which all was born before `now_h`.
    fn before(&mut self, now_h: f64) -> Option<&mut Bucket> {
        let count = self.buckets.partition_point(|bucket| bucket.ends_h <= now_h);
        self.buckets.get_mut(count.checked_sub(1)?)
    }

    /// Makes the sums anew.
    fn sum(&mut self, detectors: &mut [Detector; BETS.len()]) {
        let mut sums = [0.0_f64; BETS.len()];
        for bucket in &self.buckets {
            for (sum, (value, won)) in sums.iter_mut().zip(bucket.value.iter().zip(&bucket.won)) {
                *sum = *sum * f64::from(*won) + f64::from(*value);
            }
        }
        for (detector, sum) in detectors.iter_mut().zip(sums) {
            detector.value = sum * detector.open_won + detector.open;
        }
        self.is_stale = false;
    }
}

impl Bucket {
    /// The next one belongs to it.
    fn add(&mut self, next: &Self) {
        self.ends_h = next.ends_h;
        let next = next.value.iter().zip(&next.won);
        for ((value, won), (its, more)) in self.value.iter_mut().zip(&mut self.won).zip(next) {
            *value = (*value * more + its).min(MOST_WON);
            *won = (*won * more).min(MOST_WON);
        }
    }
}

impl Bets {
    pub fn new() -> Self {
        let detectors = [Detector { open_won: 1.0, ..Detector::default() }; BETS.len()];
        Self { detectors, births: Births::default(), last_h: None }
    }

    /// Takes a call that began at `now_h` (hours; may lie before the last one's) and whose p-value is at most `p`. What calls that began before others say is in the
    /// sums with the next call, or with [`Bets::raised`].
    /// `dependence`: d of a bet on the tail part q, which sees of a call only whether it lies in that; `threshold_h`: c, the mean time between false alarms, hours.
    ///
    /// # Cost
    /// Some tens of operations for each bet; those of 150 buckets once a step in which calls came late, and for a call in 50 ms.
    pub fn take(
        &mut self,
        now_h: f64,
        p: f64,
        dependence: impl Fn(f64) -> f64,
        threshold_h: f64,
    ) -> Option<Raised> {
        let gains = BETS.map(|(q, a)| {
            let won = if p <= q { a / q } else { (1.0 - a) / (1.0 - q) };
            won.powf(1.0 / dependence(q).max(1.0))
        });
        // Calls come when they end: one that took long began before others that are here already.
        if let Some(last_h) = self.last_h.filter(|last_h| now_h < *last_h) {
            self.take_late(now_h, last_h, &gains);
            return None;
        }
        let raised = self.raised(threshold_h);
        // Time that passes before the first call is worth nothing yet.
        let passed = self.last_h.map_or(0.0, |last| now_h - last);
        if self.last_h.replace(now_h).is_none() {
            self.births.open_h = now_h;
        }
        for (detector, gain) in self.detectors.iter_mut().zip(gains) {
            detector.value = (detector.value + passed) * gain;
            detector.open = (detector.open + passed) * gain;
            detector.open_won = (detector.open_won * gain).min(f64::from(MOST_WON));
            detector.count(now_h, gain);
        }
        if now_h - self.births.open_h >= LEAST_WIDTH_H {
            self.births.close(now_h, &mut self.detectors);
        }
        self.check(threshold_h).or(raised)
    }

    /// A call that began before others that are here already.
    fn take_late(&mut self, now_h: f64, last_h: f64, gains: &[f64; BETS.len()]) {
        debug_assert!(now_h < last_h);
        let Some(bucket) = self.births.before(now_h) else { return };
        let both = bucket.value.iter_mut().zip(&mut bucket.won);
        for ((value, won), gain) in both.zip(gains) {
            // OK because it is between 0.001 and 1,000.
            let gain = *gain as f32;
            *value = (*value * gain).min(MOST_WON);
            *won = (*won * gain).min(MOST_WON);
        }
        self.detectors.iter_mut().zip(gains).for_each(|(detector, gain)| detector.count(now_h, *gain));
        self.births.is_stale = true;
    }

    /// The alarm that calls have raised that came late.
    pub fn raised(&mut self, threshold_h: f64) -> Option<Raised> {
        if !self.births.is_stale {
            return None;
        }
        self.births.sum(&mut self.detectors);
        self.check(threshold_h)
    }

    fn check(&mut self, threshold_h: f64) -> Option<Raised> {
        let mean = self.detectors.iter().map(|d| d.value).sum::<f64>() / self.detectors.len() as f64;
        if mean < threshold_h {
            return None;
        }
        let best = self.detectors.iter().max_by(|a, b| a.value.total_cmp(&b.value));
        let raised = best.map(|d| Raised { since_h: d.since_h, calls: d.calls });
        // What is born from now on counts for calls that begin from now on.
        let births = Births { open_h: self.last_h.unwrap_or(0.0), ..Births::default() };
        *self = Self { births, last_h: self.last_h, ..Self::new() };
        raised
    }
}

impl Detector {
    /// For when it began, if it did.
    fn count(&mut self, now_h: f64, gain: f64) {
        if self.log_gain <= 0.0 {
            (self.log_gain, self.since_h, self.calls) = (0.0, now_h, 0);
        }
        self.log_gain += gain.ln();
        self.calls += 1;
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
        assert!((late - plain).abs() < 1e-6, "{late} against {plain}");
    }

    /// Alarms in so many hours of `per_s` calls a second that take 0.5 s and more, P(D > t) = (0.5 / t)^2, times `factor`: some 50 are open at once. They are known in steps of
    /// 0.25 s: when they have ended, or, if they are looked at before, when they have taken longer than all but one in 1,000 do.
    fn alarms_of_long_calls(hours: f64, per_s: f64, factor: f64, looks: bool) -> u32 {
        let (mut random, mut bets) = (rng(3), Bets::new());
        let mut open: Vec<(f64, f64, f64)> = Vec::new();
        let (mut at_s, mut alarms) = (0.0, 0);
        for step in 1..(hours * 4.0 * 3_600.0) as u64 {
            let now_s = step as f64 / 4.0;
            while at_s < now_s {
                let p: f64 = 1.0 - random.random::<f64>();
                let seconds = factor * 0.5 / p.sqrt();
                let p = (p / (factor * factor)).min(1.0);
                let at_sight = (0.5 / seconds).powi(2).max(1e-3);
                let known_s = if looks { seconds.min(0.5 / at_sight.sqrt()) } else { seconds };
                open.push((at_s, at_s + known_s, if looks { p.max(1e-3) } else { p }));
                at_s += -(1.0 - random.random::<f64>()).ln() / per_s;
            }
            let mut known: Vec<_> = open.extract_if(.., |(_, known_s, _)| *known_s <= now_s).collect();
            known.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (begin_s, _, p) in known {
                alarms += u32::from(bets.take(begin_s / 3_600.0, p, |_| 1.0, 0.25).is_some());
            }
            alarms += u32::from(bets.raised(0.25).is_some());
        }
        assert!(bets.births.buckets.len() < 150, "{}", bets.births.buckets.len());
        alarms
    }

    #[test]
    fn false_alarms_keep_to_the_rate_where_many_long_calls_overlap() {
        for looks in [false, true] {
            // Four an hour are allowed: 16, and three standard errors.
            let told = alarms_of_long_calls(4.0, 50.0, 1.0, looks);
            assert!(told <= 28, "{told} in 4 hours");
            // Twice as long in all calls.
            let found = alarms_of_long_calls(1.0 / 30.0, 50.0, 2.0, looks);
            assert!(found >= 3, "{found} in 2 minutes");
        }
    }

    #[test]
    fn a_call_counts_for_what_was_born_before_it_began_and_not_for_the_rest() {
        // Gains of nothing but the one call; 1 s of calls in order, then one that began in the middle.
        let value = |late_s: Option<f64>| {
            let mut bets = Bets::new();
            for i in 0..=100 {
                bets.take(f64::from(i) / 360_000.0, 1.0, |_| f64::INFINITY, 1e9);
            }
            if let Some(late_s) = late_s {
                bets.take(late_s / 3_600.0, 0.5, |_| 1.0, 1e9);
            }
            assert_eq!(bets.raised(1e9), None);
            // 1.8 times as much, of the bet on the slower half.
            bets.detectors[1].value * 3_600.0
        };
        assert!((value(None) - 1.0).abs() < 1e-6);
        assert!((value(Some(1.0 + 1e-9)) - 1.8).abs() < 1e-6);
        let late = value(Some(0.5));
        assert!((1.3..1.401).contains(&late), "{late}");
        assert!((value(Some(0.001)) - 1.0).abs() < 1e-6 && (value(Some(-9.0)) - 1.0).abs() < 1e-6);
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
