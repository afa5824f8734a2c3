//! How unlike windows of a class are, beyond what chance does: learned in the run, for the widths that plans are made for.
//!
//! ```text
//! own     = (variance of the windows' rates / mean^2 - mean(1 / hits) - mean(brief / t))+          of m windows
//! spread2 = (d0 common + (m - 1) own) / (d0 + m - 1)                                              moderated (Smyth 2004)
//! ```
//! `common` is the median of `own` over classes with several windows, where enough have them, else the square of [`USUAL_SPREAD`]; `d0` is what
//! it counts for. The report's intervals are moderated alike ([`crate::stats::bursts::Drift`]), from all windows at the end of the run.

use crate::class::ClassId;
use crate::plan::{USUAL_SPREAD, WindowRules};
use std::collections::BTreeMap;

/// Degrees of freedom that what classes have in common counts for.
const COMMON_DF: f64 = 4.0;
/// Classes with [`SEVERAL`] windows from which the common spread is taken.
const ENOUGH_CLASSES: usize = 5;
/// See [`ENOUGH_CLASSES`].
const SEVERAL: f64 = 3.0;
/// Windows with fewer hits say nothing but chance.
const FEWEST_HITS: u64 = 8;
/// No spread is taken for larger.
const MOST: f64 = 3.0;
/// A spread that is so many times as large as a plan took it, or as small, is another one.
const OTHER: f64 = 1.5;
/// Windows of a class in a run until its spread may ask for a plan.
const FIRST_WINDOWS: f64 = 8.0;

/// Windows of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Windows {
    n: f64,
    /// Mean of their rates, 1/s, and the sum of squared differences from it (Welford 1962).
    mean: f64,
    squares: f64,
    /// Sums of 1 / hits and 1 / t.
    chance: f64,
    brief: f64,
    /// What the plan that runs takes for the spread.
    planned: Option<f64>,
}

impl Windows {
    /// Relative variance beyond chance.
    fn own(&self, brief_s: f64) -> f64 {
        let variance = self.squares / (self.n - 1.0).max(1.0) / self.mean.powi(2).max(f64::MIN_POSITIVE);
        (variance - self.chance / self.n.max(1.0) - brief_s * self.brief / self.n.max(1.0)).max(0.0)
    }
}

/// What is known of all classes.
#[derive(Debug, Clone, Default)]
pub struct Spreads {
    classes: BTreeMap<ClassId, Windows>,
    /// Windows so far, and when a plan was last asked for.
    windows: f64,
    asked_at: f64,
}

impl Spreads {
    /// A window of complete counting has ended: `hits` at `tau_s` s each in `elapsed_s` s; `by_quota`: the last hit ended it.
    pub fn note(&mut self, class: ClassId, hits: u64, elapsed_s: f64, tau_s: f64, by_quota: bool) {
        if hits < FEWEST_HITS || elapsed_s <= 0.0 {
            return;
        }
        let time_s = (elapsed_s - hits as f64 * tau_s).max(0.1 * elapsed_s);
        let rate = (hits - u64::from(by_quota)) as f64 / time_s;
        let w = self.classes.entry(class).or_default();
        w.n += 1.0;
        let off = rate - w.mean;
        w.mean += off / w.n;
        w.squares += off * (rate - w.mean);
        w.chance += 1.0 / hits as f64;
        w.brief += 1.0 / time_s;
        self.windows += 1.0;
    }

    /// What classes have in common.
    fn common(&self, brief_s: f64) -> f64 {
        let several = self.classes.values().filter(|w| w.n >= SEVERAL);
        let mut own: Vec<f64> = several.map(|w| w.own(brief_s)).collect();
        own.sort_by(f64::total_cmp);
        if own.len() < ENOUGH_CLASSES { USUAL_SPREAD.powi(2) } else { own[own.len() / 2] }
    }

    /// The spread of each class of which a window was seen: standard deviation over mean.
    #[must_use]
    pub fn all(&self, brief_s: f64) -> BTreeMap<ClassId, f64> {
        let common = self.common(brief_s);
        let of = |w: &Windows| {
            let df = w.n - 1.0;
            ((COMMON_DF * common + df * w.own(brief_s)) / (COMMON_DF + df)).sqrt().min(MOST)
        };
        self.classes.iter().map(|(class, w)| (*class, of(w))).collect()
    }

    /// A plan was made with these spreads.
    pub fn planned(&mut self, spreads: impl Iterator<Item = (ClassId, f64)>) {
        for (class, spread) in spreads {
            self.classes.entry(class).or_default().planned = Some(spread);
        }
    }

    /// Windows turned out more unlike than the plan takes them, or less: another plan is wanted. Asked for at most each time the number of windows
    /// has doubled.
    pub fn ask(&mut self) -> bool {
        if self.windows < 2.0 * self.asked_at {
            return false;
        }
        let now = self.all(WindowRules::default().brief_s);
        let is_other = |(class, w): (&ClassId, &Windows)| {
            let (Some(planned), Some(now)) = (w.planned, now.get(class)) else { return false };
            w.n >= FIRST_WINDOWS && (*now > OTHER * planned || *now < planned / OTHER)
        };
        let is_wanted = self.classes.iter().any(is_other);
        if is_wanted {
            self.asked_at = self.windows;
        }
        is_wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// A lognormal factor of mean 1 with this spread.
    fn factor(random: &mut StdRng, spread: f64) -> f64 {
        let sigma = (1.0 + spread * spread).ln().sqrt();
        let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        (sigma * normal - 0.5 * sigma * sigma).exp()
    }

    /// So many windows of 50 ms of a class with 1e5 calls/s.
    fn note(spreads: &mut Spreads, class: u32, windows: usize, spread: f64) {
        let mut random = StdRng::seed_from_u64(u64::from(class) + 1);
        for _ in 0..windows {
            let hits = (5_000.0 * factor(&mut random, spread)) as u64;
            spreads.note(ClassId(class), hits, 0.05 + hits as f64 * 1e-6, 1e-6, false);
        }
    }

    #[test]
    fn many_windows_tell_the_spread_and_few_little() {
        let mut spreads = Spreads::default();
        note(&mut spreads, 0, 200, 1.0);
        note(&mut spreads, 1, 200, 0.05);
        note(&mut spreads, 2, 1, 1.0);
        let all = spreads.all(0.0);
        assert!((0.8..1.25).contains(&all[&ClassId(0)]), "{all:?}");
        assert!((0.03..0.08).contains(&all[&ClassId(1)]), "{all:?}");
        assert_eq!(all[&ClassId(2)], USUAL_SPREAD);
        // What others show is a better guess than the usual one.
        (3..9).for_each(|class| note(&mut spreads, class, 20, 0.8));
        assert!(spreads.all(0.0)[&ClassId(2)] > 0.5, "{:?}", spreads.all(0.0));
    }

    #[test]
    fn chance_is_no_spread() {
        let mut spreads = Spreads::default();
        // 25 hits in the mean, 20 or 30: as far apart as chance makes them.
        (0..100).for_each(|i| spreads.note(ClassId(0), if i % 2 == 0 { 20 } else { 30 }, 1.0, 0.0, false));
        assert!(spreads.all(0.0)[&ClassId(0)] < 0.06, "{:?}", spreads.all(0.0));
        // Nothing is learned from windows that saw next to nothing.
        spreads.note(ClassId(1), 3, 1.0, 0.0, false);
        assert!(!spreads.all(0.0).contains_key(&ClassId(1)));
    }

    #[test]
    fn a_plan_is_asked_for_where_windows_are_unlike_it_and_seldom() {
        let mut spreads = Spreads::default();
        spreads.planned([(ClassId(0), USUAL_SPREAD), (ClassId(1), 1.0)].into_iter());
        note(&mut spreads, 1, 20, 1.0);
        assert!(!spreads.ask());
        note(&mut spreads, 0, 7, 1.0);
        assert!(!spreads.ask(), "seven windows");
        note(&mut spreads, 0, 20, 1.0);
        assert!(spreads.ask() && !spreads.ask());
        note(&mut spreads, 0, 60, 1.0);
        assert!(spreads.ask());
        spreads.planned([(ClassId(0), spreads.all(1e-3)[&ClassId(0)])].into_iter());
        note(&mut spreads, 1, 200, 1.0);
        assert!(!spreads.ask());
    }
}
