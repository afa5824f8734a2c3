//! A single call that takes so long that it is told alone: one that hangs.
//!
//! The bets of [`super::bets`] need several slow calls, since the recorded ones cannot say how rarely a still longer one comes. Here one thing more is assumed: that the
//! squares of the times have a mean, `E[(t / f)^2] <= m`, and that m follows from the recorded calls and from one call more, which is taken to have been five times as
//! long as the longest (`mean_square` of [`super::Calibration`]). Then (Markov)
//!
//! ```text
//! P(t / f >= x) <= m / x^2,        alarm if s (t / f)^2 / m >= c
//! ```
//! has on average at most s / c alarms a call, whatever calls have to do with each other. s (hours) is fixed when the call begins, out of the time that has passed:
//! each call spends an eighth of what is saved. So `sum s <= T`, and
//!
//! ```text
//! expected false alarms within T hours <= T / c
//! ```

/// Part of the saved time that a call spends. Calls that come in heaps share what was saved before.
const SPENDS: f64 = 0.125;

/// What may be spent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Alone {
    saved_h: f64,
    /// The latest begin of a call so far, hours.
    last_h: Option<f64>,
}

impl Alone {
    /// What a call that began at `now_h` (hours; may lie before the last one's) may spend, hours.
    pub fn spend(&mut self, now_h: f64) -> f64 {
        self.saved_h += self.last_h.map_or(0.0, |last| (now_h - last).max(0.0));
        self.last_h = Some(self.last_h.map_or(now_h, |last| last.max(now_h)));
        let spent_h = SPENDS * self.saved_h;
        self.saved_h -= spent_h;
        spent_h
    }
}

/// A call whose time over the predicted one is e^residual is told alone. `mean_square`: m, `threshold_h`: c, hours.
pub(super) fn is_told(residual: f64, spent_h: f64, mean_square: f64, threshold_h: f64) -> bool {
    spent_h * (2.0 * residual).exp() >= threshold_h * mean_square
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::sim::rng;
    use rand::RngExt as _;

    #[test]
    fn no_more_is_spent_than_has_passed() {
        let (mut alone, mut random) = (Alone::default(), rng(1));
        let (mut now_h, mut spent_h) = (0.0, 0.0);
        for i in 0..10_000 {
            // Heaps of a hundred, and some that come late.
            now_h += if i % 100 == 0 { random.random::<f64>() } else { 0.0 };
            spent_h += alone.spend(now_h - if i % 7 == 0 { 0.5 } else { 0.0 });
        }
        assert!(spent_h <= now_h && spent_h > 0.9 * now_h, "{spent_h} of {now_h}");
    }

    /// P(t / f > x) = x^-2.5: the mean of the squares is 5, and their squares have none.
    #[test]
    fn false_alarms_keep_to_the_rate_where_single_calls_are_very_long() {
        let (mut alone, mut random) = (Alone::default(), rng(2));
        let (hours, threshold_h) = (400, 0.1);
        let calls = (0..hours * 3_600).map(|i| f64::from(i) / 3_600.0);
        let told = calls.filter(|now_h| {
            let residual = -random.random::<f64>().max(1e-300).ln() / 2.5;
            is_told(residual, alone.spend(*now_h), 5.0, threshold_h)
        });
        // Ten an hour are allowed, of 3,600 calls each.
        let told = told.count();
        assert!((5..=4_000).contains(&told), "{told} in 400 hours");
        assert!(
            is_told(5_000.0_f64.ln(), 1.0 / 3_600.0, 5.0, 1.0)
                && !is_told(20.0_f64.ln(), 1.0 / 3_600.0, 5.0, 1.0)
        );
    }
}
