//! What a trap costs more where the target rested before it.

use super::{CostModel, Price};

/// The rest for which [`CostModel::rested`] is the price, s.
pub const RESTED_S: f64 = 1e-3;
/// From here on all that a trap needs has left the caches, and longer rests add nothing, s.
const LONGEST_S: f64 = 30e-3;

/// How a target rests, and what that adds to hits.
///
/// Whatever runs while a thread sleeps takes the caches and predictors that the kernel's path of a trap needs, and the longer the rest, the more of them
/// (docs/design.md, "What a rest adds to a trap"; measured: 0.25, 0.85, 1.4, 2.4 and 11 us more than the next hit after rests of 0.02, 0.1, 0.3, 1
/// and 10 ms). The first hit after a rest pays that, hits of other functions after it a part.
///
/// ```text
/// added to a hit = k A r min(1, gap / between)         A: CostModel::rested,   between = U / S      U: CPU s per s,   S: rests per s
/// r = sum over threads of s sqrt(min(rest, 30 ms) / 1 ms) / S          u, s: CPU s per s and rests per s of a thread
/// rest = min((1 - u) / s, (CPUs - U) / S)              while a thread rests others may keep the caches of its CPU warm
/// k = min(1, sqrt(S / F)),   F = sum over classes of min(n, S) (n + e) / n     n, e: entries and ends of a class per s
/// ```
/// If only the first of them paid, k would be S / F. A hit right behind the first paid a sixth of what that did, one behind work of some 0.1 ms as
/// much: the root lies between the two.
///
/// ```text
/// F / S: places that are hit after each rest
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rests {
    /// What the first hit after a rest costs more, as the classes that are hit share it, ns.
    ns: f64,
    /// Rests per CPU second of the target.
    per_cpu_s: f64,
}

impl Rests {
    /// Of a target that uses `cpu` CPU s per s of so many CPUs and is switched `switches` times a second, by its threads: CPU s per s and switches per s of each that is known.
    /// `hits_per_s`: entries and ends of each class that is attached.
    ///
    /// Switches of threads that are not known (they live for less than two looks) are rests as long as rests can be.
    #[must_use]
    pub fn of(
        model: &CostModel,
        (cpu, cpus, switches): (f64, u32, f64),
        threads: impl Iterator<Item = (f64, f64)> + Clone,
        hits_per_s: impl Iterator<Item = (f64, f64)>,
    ) -> Self {
        let resting = threads.filter(|(_, switches)| *switches > 0.0);
        let known: f64 = resting.clone().map(|(_, switches)| switches).sum();
        let per_s = known.max(switches);
        if !(cpu > 0.0 && per_s > 0.0 && cpu.is_finite() && per_s.is_finite()) {
            return Self::default();
        }
        let longest_s = ((f64::from(cpus) - cpu) / per_s).clamp(0.0, LONGEST_S);
        let root = |(cpu, switches): (f64, f64)| {
            let rest_s = ((1.0 - cpu).max(0.0) / switches).min(longest_s);
            switches * (rest_s / RESTED_S).sqrt()
        };
        let unknown = (per_s - known) * (longest_s / RESTED_S).sqrt();
        let root = (resting.map(root).sum::<f64>() + unknown) / per_s;
        let entered = hits_per_s.filter(|(entries, _)| *entries > 0.0);
        let firsts: f64 = entered.map(|(entries, ends)| entries.min(per_s) * (1.0 + ends / entries)).sum();
        let share = if firsts > per_s { (per_s / firsts).sqrt() } else { 1.0 };
        let Price { ns, .. } = model.rested;
        Self { ns: share * ns.max(0.0) * root, per_cpu_s: per_s / cpu }
    }

    /// What is added to a hit where the target runs for `gap_s` s of CPU time between two of them, ns. No gap is known without hits: all of it.
    #[must_use]
    pub fn added_ns(&self, gap_s: f64) -> f64 {
        let part = self.per_cpu_s * gap_s;
        self.ns * if part.is_nan() { 1.0 } else { part.clamp(0.0, 1.0) }
    }

    /// A plan with the other would be another one: by a tenth of the larger, and 50 ns.
    #[must_use]
    pub fn differs(&self, other: &Self) -> bool {
        let far = |a: f64, b: f64, least: f64| (a - b).abs() > least.max(0.1 * a.max(b));
        far(self.ns, other.ns, 50.0)
            || self.ns.max(other.ns) > 50.0 && far(self.per_cpu_s, other.per_cpu_s, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> CostModel {
        CostModel { rested: Price::fixed(2_400.0), ..CostModel::assumed() }
    }

    /// Of one thread on two CPUs.
    fn of(cpu: f64, per_s: f64, hits_per_s: &[f64]) -> Rests {
        let hits = hits_per_s.iter().map(|hits| (*hits, 0.0));
        Rests::of(&model(), (cpu, 2, per_s), std::iter::once((cpu, per_s)), hits)
    }

    fn added(cpu: f64, per_s: f64, hits_per_s: &[f64]) -> Vec<f64> {
        let rests = of(cpu, per_s, hits_per_s);
        hits_per_s.iter().map(|hits| rests.added_ns(cpu / hits)).collect()
    }

    #[test]
    fn one_call_after_each_rest_pays_by_the_length_of_the_rest() {
        // 950 ms of rest in 950 rests: 1 ms each.
        assert!((added(0.05, 950.0, &[950.0])[0] - 2_400.0).abs() < 1e-6);
        assert!((added(0.05, 95.0, &[95.0])[0] - 2_400.0 * 10_f64.sqrt()).abs() < 1e-6);
        let most = added(0.05, 1.0, &[1.0])[0];
        assert!((most - 2_400.0 * 30_f64.sqrt()).abs() < 1e-6, "a second is as long as 30 ms: {most}");
        assert_eq!(added(1.0, 100.0, &[1e4]), [0.0], "a CPU that is used all the time");
    }

    #[test]
    fn each_of_many_threads_rests_for_itself_where_there_are_as_many_cpus() {
        let sixteen = [(0.05, 950.0); 16];
        let on = |cpus: u32| {
            let rests =
                Rests::of(&model(), (0.8, cpus, 0.0), sixteen.into_iter(), std::iter::once((950.0, 0.0)));
            rests.added_ns(0.8 / 950.0)
        };
        assert!((on(16) - 2_400.0).abs() < 1e-6, "{}", on(16));
        // 1.2 s of two CPUs between 15,200 rests: 79 us.
        assert!((on(2) - 2_400.0 * (1.2 / 15.2_f64).sqrt()).abs() < 1e-6, "{}", on(2));
    }

    #[test]
    fn threads_that_live_shortly_rest_as_well() {
        let of = |known: f64| {
            let threads = std::iter::once((0.01, known));
            Rests::of(&model(), (0.5, 2, 5_010.0), threads, std::iter::once((5_000.0, 0.0)))
        };
        let rests = of(10.0);
        // 1.5 s of two CPUs between 5,010 rests.
        let expected = 2_400.0 * (1.5 / 5.01_f64).sqrt();
        let added = rests.added_ns(0.5 / 5_000.0);
        assert!((added / expected - 1.0).abs() < 0.01, "{added} {expected}");
    }

    /// What is charged moves what a target seems to use by itself, which must not move prices much.
    #[test]
    fn prices_do_not_jump_where_a_target_uses_a_whole_cpu() {
        let ping_pong = [(0.5, 5e4); 2];
        let at = |cpu: f64| {
            Rests::of(&model(), (cpu, 4, 1e5), ping_pong.into_iter(), std::iter::empty()).added_ns(1.0)
        };
        assert!((at(0.98) / at(1.02) - 1.0).abs() < 0.02, "{} {}", at(0.98), at(1.02));
        assert!((at(0.98) - 2_400.0 * 0.01_f64.sqrt()).abs() < 1.0, "10 us: {}", at(0.98));
    }

    #[test]
    fn hits_that_follow_each_other_share_one_rest() {
        // A thousand calls for each rest.
        assert!((added(0.05, 950.0, &[950e3])[0] - 2.4).abs() < 1e-6);
        // Rarer than rests: each is the first.
        assert!((added(0.05, 950.0, &[10.0])[0] - 2_400.0).abs() < 1e-6);
    }

    #[test]
    fn classes_that_are_hit_after_one_rest_share_what_it_adds() {
        let rates = [950.0, 950.0, 1e5, 950.0];
        let all: f64 = added(0.05, 950.0, &rates).iter().zip(rates).map(|(ns, hits)| ns * hits).sum();
        assert!((all - 2.0 * 2_400.0 * 950.0).abs() < 1e-3, "of four twice as much: {all}");
        let timed = Rests::of(
            &model(),
            (0.05, 2, 950.0),
            std::iter::once((0.05, 950.0)),
            std::iter::once((950.0, 950.0)),
        );
        let half = 2_400.0 / 2.0_f64.sqrt();
        assert!((timed.added_ns(0.05 / 950.0) - half).abs() < 1e-6, "a call and its end");
    }

    #[test]
    fn what_is_not_known_adds_nothing() {
        assert_eq!(added(0.0, 100.0, &[100.0]), [0.0]);
        assert_eq!(added(0.5, 0.0, &[100.0]), [0.0]);
        assert_eq!(added(f64::NAN, 100.0, &[100.0]), [0.0]);
        assert_eq!(
            Rests::of(&model(), (0.5, 2, 0.0), std::iter::empty(), std::iter::empty()),
            Rests::default()
        );
        let rests = of(0.05, 950.0, &[]);
        assert!((rests.added_ns(f64::NAN) - 2_400.0).abs() < 1e-6);
        assert!((rests.added_ns(f64::INFINITY) - 2_400.0).abs() < 1e-6);
    }

    #[test]
    fn small_changes_are_no_news() {
        let rests = |per_s: f64| of(0.05, per_s, &[]);
        assert!(!rests(950.0).differs(&rests(960.0)));
        assert!(rests(950.0).differs(&rests(2_000.0)));
        assert!(Rests::default().differs(&rests(950.0)));
        let busy = |per_s: f64| of(1.0, per_s, &[]);
        assert!(!busy(10.0).differs(&busy(1_000.0)), "rests that add nothing");
    }
}
