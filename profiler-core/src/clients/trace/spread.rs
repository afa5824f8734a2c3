//! How unlike windows of a class are, beyond what chance does: learned in the run, for the widths that plans are made for.
//!
//! A window of t s with h calls of all threads is the unit: what threads have in common is a part of what windows differ by. All windows count, those
//! without a call as well: of a function that is called in clusters they are most. They are weighted with their length (DerSimonian and Laird 1986):
//!
//! ```text
//! rate   = sum h / sum t = r                        T = sum t
//! own    = (sum h^2 / t - r^2 T - (m - 1) (r + r^2 brief)) / (r^2 (T - sum t^2 / T))         of m windows: what chance and brevity leave
//! chance = what those two take away from it
//! df     = (T^2 / sum t^2 - 1) (v / (v + chance))^2                                          v: of own what chance does not explain, at least common
//! spread = ((d0 common + df own) / (d0 + df))^1/2                                            moderated (Smyth 2004)
//! ```
//! `common` is the median of `own` over classes with several windows, where enough have them, else the square of [`USUAL_SPREAD`]; `d0` is what
//! it counts for. A class without windows has the common one. The report's intervals are moderated alike ([`crate::stats::bursts::Drift`]), from all
//! windows at the end of the run.
//!
//! A spread asks for a plan where it is another one by half, by more than chance makes it (two standard errors of both), and the class's windows
//! have doubled since a plan was last made with it; and all classes together at most each time the number of windows has doubled. So a run of n windows
//! has at most log2(n) plans for that reason.

use crate::class::ClassId;
use crate::plan::{USUAL_SPREAD, WindowRules};
use std::collections::BTreeMap;

/// Degrees of freedom that what classes have in common counts for.
const COMMON_DF: f64 = 4.0;
/// Classes with [`SEVERAL`] windows from which the common spread is taken.
const ENOUGH_CLASSES: usize = 5;
/// See [`ENOUGH_CLASSES`].
const SEVERAL: f64 = 3.0;
/// Hits of a window, in the mean, below which chance hides what a class would say of others.
const FEWEST_HITS: f64 = 8.0;
/// So many standard errors are no chance.
const SURE: f64 = 2.0;
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
    /// Sums of hits, of hits^2 / t (Hz), of t and of t^2 (s, s^2).
    hits: f64,
    squares: f64,
    time_s: f64,
    time2: f64,
    /// What the plan that runs takes for the spread.
    planned: Option<Planned>,
}

/// A spread that a plan was made with.
#[derive(Debug, Clone, Copy)]
struct Planned {
    spread: f64,
    /// Degrees of freedom, and windows that it was known from.
    df: f64,
    n: f64,
}

/// What windows of one class show of its spread.
#[derive(Debug, Clone, Copy)]
struct Own {
    /// Relative variance beyond chance.
    variance: f64,
    /// What chance and brevity are.
    chance: f64,
    /// Windows of one length that would tell as much, less one.
    df: f64,
}

impl Windows {
    /// `None`: no call was seen, or there is one window.
    fn own(&self, brief_s: f64) -> Option<Own> {
        let (rate, even) = (self.hits / self.time_s, self.time_s - self.time2 / self.time_s);
        let is_enough = self.n > 1.0 && self.hits > 0.0 && even > 1e-9 * self.time_s;
        if !is_enough {
            return None;
        }
        let chance = (self.n - 1.0) * (1.0 / rate + brief_s) / even;
        let all = (self.squares / rate.powi(2) - self.time_s) / even;
        let df = (self.time_s.powi(2) / self.time2 - 1.0).max(0.0);
        Some(Own { variance: (all - chance).max(0.0), chance, df })
    }

    /// Its spread and the degrees of freedom, moderated by what classes have in common.
    fn moderated(&self, common: f64, brief_s: f64) -> (f64, f64) {
        let Some(own) = self.own(brief_s) else { return (common.sqrt().min(MOST), COMMON_DF) };
        // Chance alone is off by so much (of Poisson's law, with few hits more than of the normal one).
        let error = own.chance * (2.0 / own.df.max(1e-9) + 1.0 / self.hits).sqrt();
        let sure = (own.variance - SURE * error).max(common).max(f64::MIN_POSITIVE);
        let df = own.df * (sure / (sure + own.chance)).powi(2);
        let variance = (COMMON_DF * common + df * own.variance) / (COMMON_DF + df);
        (variance.sqrt().min(MOST), COMMON_DF + df)
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
    /// A window of complete counting has ended: `hits` of all threads at `tau_s` s each in `elapsed_s` s, of which `cpus` CPUs' worth of threads lost their
    /// part each; `by_quota`: the last hit ended it.
    pub fn note(
        &mut self,
        class: ClassId,
        hits: u64,
        (elapsed_s, tau_s): (f64, f64),
        cpus: f64,
        by_quota: bool,
    ) {
        if elapsed_s <= 0.0 {
            return;
        }
        let time_s = (elapsed_s - hits as f64 * tau_s / cpus.max(1.0)).max(0.1 * elapsed_s);
        // The first hit after the begin to the last: one interval less.
        let hits = hits.saturating_sub(u64::from(by_quota)) as f64;
        let w = self.classes.entry(class).or_default();
        w.n += 1.0;
        w.hits += hits;
        w.squares += hits * hits / time_s;
        w.time_s += time_s;
        w.time2 += time_s * time_s;
        self.windows += 1.0;
    }

    /// What classes have in common.
    fn common(&self, brief_s: f64) -> f64 {
        let several = self.classes.values().filter(|w| w.n >= SEVERAL && w.hits >= FEWEST_HITS * w.n);
        let mut own: Vec<f64> = several.filter_map(|w| Some(w.own(brief_s)?.variance)).collect();
        own.sort_by(f64::total_cmp);
        if own.len() < ENOUGH_CLASSES { USUAL_SPREAD.powi(2) } else { own[own.len() / 2] }
    }

    /// The spread of each class of which a window was seen: standard deviation over mean.
    #[must_use]
    pub fn all(&self, brief_s: f64) -> BTreeMap<ClassId, f64> {
        let common = self.common(brief_s);
        self.classes.iter().map(|(class, w)| (*class, w.moderated(common, brief_s).0)).collect()
    }

    /// A plan was made with these spreads.
    pub fn planned(&mut self, spreads: impl Iterator<Item = (ClassId, f64)>) {
        let brief_s = WindowRules::default().brief_s;
        let common = self.common(brief_s);
        for (class, spread) in spreads {
            let w = self.classes.entry(class).or_default();
            let (_, df) = w.moderated(common, brief_s);
            w.planned = Some(Planned { spread, df, n: w.n });
        }
    }

    /// Windows turned out more unlike than the plan takes them, or less: another plan is wanted, if it is not chance and not asked for too often.
    pub fn ask(&mut self) -> bool {
        if self.windows < 2.0 * self.asked_at {
            return false;
        }
        let brief_s = WindowRules::default().brief_s;
        let common = self.common(brief_s);
        let is_other = |w: &Windows| {
            let Some(planned) = w.planned.filter(|p| w.n >= FIRST_WINDOWS.max(2.0 * p.n)) else {
                return false;
            };
            let (now, df) = w.moderated(common, brief_s);
            let off = (now.max(1e-9) / planned.spread.max(1e-9)).ln().abs();
            // Of the log of a standard deviation: 1 / (2 df).
            off > OTHER.ln().max(SURE * (0.5 / df + 0.5 / planned.df).sqrt())
        };
        let is_wanted = self.classes.values().any(is_other);
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
            spreads.note(ClassId(class), hits, (0.05 + hits as f64 * 1e-6, 1e-6), 1.0, false);
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
        (0..100)
            .for_each(|i| spreads.note(ClassId(0), if i % 2 == 0 { 20 } else { 30 }, (1.0, 0.0), 1.0, false));
        assert!(spreads.all(0.0)[&ClassId(0)] < 0.12, "{:?}", spreads.all(0.0));
        // Next to nothing is learned from windows of which chance alone makes what they show: one call in ten windows.
        (0..200).for_each(|i| spreads.note(ClassId(1), u64::from(i % 10 == 3), (1.0, 0.0), 1.0, false));
        let rare = spreads.all(0.0)[&ClassId(1)];
        assert!((0.2..0.4).contains(&rare), "{rare}");
    }

    /// 30 calls in each tenth window, none in others: those differ by three times their mean.
    #[test]
    fn windows_without_calls_count() {
        let mut spreads = Spreads::default();
        (0..100).for_each(|i| {
            spreads.note(ClassId(0), if i % 10 == 3 { 30 } else { 0 }, (0.05, 0.0), 1.0, false);
        });
        let all = spreads.all(1e-3);
        assert!((2.4..3.0001).contains(&all[&ClassId(0)]), "{all:?}");
    }

    #[test]
    fn where_nothing_was_seen_the_common_spread_is_taken() {
        let mut spreads = Spreads::default();
        spreads.planned([(ClassId(0), USUAL_SPREAD)].into_iter());
        assert_eq!(spreads.all(1e-3)[&ClassId(0)], USUAL_SPREAD);
        // Windows without a single call say that it is rare, and not how they differ.
        (0..9).for_each(|_| spreads.note(ClassId(0), 0, (0.05, 0.0), 1.0, false));
        assert_eq!(spreads.all(1e-3)[&ClassId(0)], USUAL_SPREAD);
    }

    /// Four threads lose half of their time to hits together: their calls fall and rise with the time that is left to each.
    #[test]
    fn threads_lose_their_time_side_by_side() {
        let mut spreads = Spreads::default();
        for i in 0..200u32 {
            // +-20 %.
            let rate = 1e6 * if i % 2 == 0 { 0.8 } else { 1.2 };
            let time_s = 0.05;
            let hits = (rate * time_s) as u64;
            // Four threads, 1.6 to 2.4 us a hit.
            spreads.note(ClassId(0), hits, (time_s + hits as f64 * 2e-6 / 4.0, 2e-6), 4.0, false);
        }
        let all = spreads.all(0.0);
        assert!((0.19..0.21).contains(&all[&ClassId(0)]), "{all:?}");
    }

    /// Twenty classes of the spreads that plans take at first, and of others: plans for their sake in a run of a thousand windows.
    #[test]
    fn plans_do_not_flap() {
        let plans = |truth: f64| {
            let mut spreads = Spreads::default();
            spreads.planned((0..20).map(|c| (ClassId(c), USUAL_SPREAD)));
            let mut random = StdRng::seed_from_u64(5);
            let mut plans = Vec::new();
            for i in 0..1_000u32 {
                let hits = (5_000.0 * factor(&mut random, truth)) as u64;
                spreads.note(ClassId(i % 20), hits, (0.05, 0.0), 1.0, false);
                if spreads.ask() {
                    let all = spreads.all(1e-3);
                    spreads.planned(all.into_iter());
                    plans.push(i);
                }
            }
            plans
        };
        assert!(plans(USUAL_SPREAD).is_empty(), "{:?}", plans(USUAL_SPREAD));
        let found = plans(1.0);
        assert!((1..=3).contains(&found.len()), "{found:?}");
        assert!(found.windows(2).all(|pair| pair[1] >= 2 * pair[0]), "{found:?}");
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
