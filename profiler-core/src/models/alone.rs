//! A single call that takes so long that it is told alone: one that hangs.
//!
//! The bets of [`super::bets`] need several slow calls, since the recorded ones cannot say how rarely a still longer one comes. Here one thing more is assumed: that the
//! squares of the times have a mean, `E[(t / f)^2] <= m`, and that m follows from the recorded calls and from one call more, which is taken to have been five times as
//! long as the longest (`mean_square` of [`super::Calibration`]). Then (Markov)
//!
//! ```text
//! P(t / f >= x) <= m / x^2,        alarm if s (t / f)^2 / m >= c
//! ```
//! has on average at most s / c alarms a call, whatever calls have to do with each other. s (hours) comes out of the time that has passed: each call spends an eighth of what
//! is saved when it is known, and no more than an eighth of what was saved when it began (to an eighth of the time since): the longer a call takes the more could be saved
//! meanwhile, and s must not grow with what it is held against. So `sum s <= T`, and
//!
//! ```text
//! expected false alarms within T hours <= T / c
//! ```

use super::bets::{LEAST_WIDTH_H, PART_OF_AGE};

/// Part of the saved time that a call spends. Calls that come in heaps share what was saved before.
const SPENDS: f64 = 0.125;

/// What may be spent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Alone {
    /// Begin of the first call, and the latest begin of a call so far, hours.
    first_h: f64,
    last_h: Option<f64>,
    spent_h: f64,
    /// What was spent at begins of calls; the longer ago, the fewer are kept.
    marks: Vec<(f64, f64)>,
}

impl Alone {
    /// What a call that began at `now_h` (hours; may lie before the last one's) may spend, hours.
    pub fn spend(&mut self, now_h: f64) -> f64 {
        let Some(last_h) = self.last_h else {
            (self.first_h, self.last_h) = (now_h, Some(now_h));
            return 0.0;
        };
        self.last_h = Some(last_h.max(now_h));
        let at_begin_h = if now_h < last_h { self.saved_at(now_h) } else { f64::INFINITY };
        let spent_h = SPENDS * self.saved_h().min(at_begin_h).max(0.0);
        self.spent_h += spent_h;
        if now_h >= last_h {
            self.mark(now_h);
        }
        spent_h
    }

    /// So many calls are not known: they have spent as others did.
    pub fn miss(&mut self, calls: u64) {
        // OK because more than that leave nothing.
        let left = (1.0 - SPENDS).powi(calls.min(1_000_000) as i32);
        self.spent_h += self.saved_h() * (1.0 - left);
    }

    fn saved_h(&self) -> f64 {
        self.last_h.map_or(0.0, |last_h| (last_h - self.first_h - self.spent_h).max(0.0))
    }

    /// What was saved at that time, at most.
    fn saved_at(&self, now_h: f64) -> f64 {
        let before = self.marks.partition_point(|(at_h, _)| *at_h <= now_h).checked_sub(1);
        let spent_h = before.and_then(|i| self.marks.get(i)).map_or(0.0, |(_, spent_h)| *spent_h);
        now_h - self.first_h - spent_h
    }

    fn mark(&mut self, now_h: f64) {
        if self.marks.last().is_some_and(|(at_h, _)| now_h - at_h < LEAST_WIDTH_H) {
            return;
        }
        self.marks.push((now_h, self.spent_h));
        let at = |marks: &Vec<(f64, f64)>, i: usize| marks.get(i).map_or(now_h, |(at_h, _)| *at_h);
        let mut kept: Vec<(f64, f64)> = Vec::with_capacity(self.marks.len());
        for (i, mark) in self.marks.iter().enumerate() {
            let next_h = at(&self.marks, i + 1);
            let is_near = |last: &(f64, f64)| next_h - last.0 <= PART_OF_AGE * (now_h - next_h);
            if !kept.last().is_some_and(is_near) {
                kept.push(*mark);
            }
        }
        self.marks = kept;
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

    #[test]
    fn a_call_spends_no_more_the_longer_it_takes() {
        // One a second for an hour; one that began then is known after the first of an hour later, or of ten.
        let spent_h = |known_h: f64| {
            let mut alone = Alone::default();
            (0..3_600).for_each(|i| {
                alone.spend(f64::from(i) / 3_600.0);
            });
            alone.spend(known_h);
            alone.spend(1.0 - 1e-9)
        };
        let saved_h = 8.0 / 3_600.0;
        for known_h in [2.0, 11.0] {
            let spent_h = spent_h(known_h);
            assert!(spent_h > 0.0 && spent_h <= 1.2 * SPENDS * saved_h, "{spent_h} after {known_h}");
        }
        // What is kept is little.
        let mut alone = Alone::default();
        (0..1_000_000).for_each(|i| {
            alone.spend(f64::from(i) / 36_000.0);
        });
        assert!(alone.marks.len() < 200, "{}", alone.marks.len());
        // Calls that nobody saw have spent as well.
        let before_h = alone.saved_h();
        alone.miss(10);
        assert!((alone.saved_h() - before_h * 0.875_f64.powi(10)).abs() < 1e-9);
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
