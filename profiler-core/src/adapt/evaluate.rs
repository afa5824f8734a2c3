//! Algorithm 3 (Mertz and Nunes §3.4): does the sample stand for the population?
//!
//! The paper uses z as a percentage, as a confidence level and as a quantile. Our reading: z = e^(-t/maxLength) is a
//! level in (0, 1]; Z(z) = PhiInv((1+z)/2) is its quantile (1.96 at 0.95). Three criteria must hold: size, time,
//! shares. As printed, the time criterion is a t-test that must *not* reject at significance 1 - z: it gets harder
//! as z falls, and a small or noisy sample passes it most easily. `adp` keeps that; `tithe` asks the question the other
//! way round (equivalence), so that more evidence helps and time makes it easier.

use super::AdaptConfig;
use super::cycle::Cycle;
use crate::stats::moments::Moments;
use crate::stats::tests_of::one_sample;
use crate::stats::{Interval, t_quantile, z_quantile};

/// Outcome of an evaluation: each criterion with the number it was decided by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Level required now, in (0, 1].
    pub z: f64,
    /// Operations that the sample must exceed.
    pub needed: f64,
    /// Criterion 1: the sample is larger.
    pub large_enough: bool,
    /// Criterion 2: response times of sample and population agree.
    pub same_times: bool,
    /// Mean response time of the sample less the population's, ns.
    pub difference_ns: f64,
    /// Criterion 3: every class has its share.
    pub same_shares: bool,
    /// Largest difference of a class's shares in sample and population (`adp`), or share of the population in classes
    /// without sample (`tithe`).
    pub worst_share: f64,
}

impl Evaluation {
    /// All three criteria hold.
    #[must_use]
    pub fn representative(&self) -> bool {
        self.large_enough && self.same_times && self.same_shares
    }
}

/// The decaying level `e^(-t/maxLength)` after `elapsed_s` of the cycle.
#[must_use]
pub fn level(elapsed_s: f64, max_cycle_s: f64) -> f64 {
    (-elapsed_s.max(0.0) / max_cycle_s).exp()
}

/// Cochran's sample size with finite population correction (1977, §4.4):
/// ```text
/// n0 = Z(z)^2 p (1 - p) / e^2,   n = n0 / (1 + (n0 - 1) / |P|),   n = |P| as z tends to 1
/// ```
#[must_use]
pub fn sample_size(z: f64, population: u64, config: &AdaptConfig) -> f64 {
    let population = population as f64;
    if z >= 1.0 - 1e-9 || population <= 0.0 {
        return population;
    }
    let quantile = z_quantile(z);
    let n0 = quantile * quantile * config.variability * (1.0 - config.variability)
        / (config.sample_margin * config.sample_margin);
    // Below one operation Cochran's formula has its pole; one operation is the least that can be asked for.
    (n0.max(1.0) / (1.0 + (n0.max(1.0) - 1.0) / population)).min(population)
}

/// The criteria as printed, for `adp`, `inv`, `uni` and `full`. A sample that is the whole population (`full`) is
/// representative at once.
#[must_use]
pub fn as_printed(cycle: &Cycle, config: &AdaptConfig) -> Evaluation {
    let (population, sample) = cycle.totals();
    let z = level(cycle.elapsed_s(), config.max_cycle_s);
    let needed = sample_size(z, population.n(), config);
    let whole = sample.n() > 0 && sample.n() == population.n();
    // Below two operations, or with nothing that varies in either, there is no test: only equality passes.
    let slowed_ns = if config.correct_for_price { cycle.slowed_ns() } else { 0.0 };
    let same_times = match one_sample(&sample, population.mean() + slowed_ns, z.min(1.0 - 1e-9)) {
        Some(test) if test.t.is_finite() => test.p >= 1.0 - z,
        _ => whole,
    };
    let worst_share = cycle.largest_share_difference();
    Evaluation {
        z,
        needed,
        large_enough: whole || sample.n() as f64 > needed,
        same_times: whole || same_times,
        difference_ns: sample.mean() - population.mean() - slowed_ns,
        same_shares: worst_share <= 1.0 - z + 1e-12,
        worst_share,
    }
}

/// The criteria of `tithe`: Cochran's size; equivalence of the mean response time by two one-sided tests
/// (Schuirmann 1987), each at significance 1 - z, on the post-stratified mean; classes without sample hold no more than
/// a share 1 - z of the population. Shares need no test of their own: the weights restore them.
#[must_use]
pub fn equivalence(cycle: &Cycle, config: &AdaptConfig) -> Evaluation {
    let (population, sample) = cycle.totals();
    let z = level(cycle.elapsed_s(), config.max_cycle_s);
    let needed = sample_size(z, population.n(), config);
    let whole = sample.n() > 0 && sample.n() == population.n();
    let margin = config.equivalence_margin * population.mean();
    let (difference, interval) = stratified_difference(cycle, (2.0 * z - 1.0).max(0.0), config);
    let equivalent = interval.is_some_and(|i| -margin <= i.low && i.high <= margin);
    let worst_share = cycle.unobserved_share();
    Evaluation {
        z,
        needed,
        large_enough: whole || sample.n() as f64 > needed,
        same_times: whole || equivalent,
        difference_ns: difference,
        same_shares: sample.n() > 0 && worst_share <= 1.0 - z + 1e-12,
        worst_share,
    }
}

/// Post-stratified mean response time of the sample less the population's over the same classes, ns, and its interval:
/// `sum_c W_c (s_c - p_c)`, variance `sum_c W_c^2 (1 - n_c/N_c) s_c^2 / n_c`, W_c the class's share of the population.
/// Classes with one sampled operation take the variance of their population, which is known for response times.
fn stratified_difference(cycle: &Cycle, level: f64, config: &AdaptConfig) -> (f64, Option<Interval>) {
    let seen = || cycle.classes().filter(|(_, c)| c.sample.n() > 0);
    let observed: f64 = seen().map(|(_, c)| c.population.n() as f64).sum();
    let (mut difference, mut variance, mut squares) = (0.0, 0.0, 0.0);
    for (_, c) in seen() {
        let (big_n, n) = (c.population.n() as f64, c.sample.n() as f64);
        let weight = big_n / observed;
        let slowed_ns = if config.correct_for_price { c.slowed_ns() } else { 0.0 };
        difference += weight * (c.sample.mean() - c.population.mean() - slowed_ns);
        let spread = c.sample.variance().or_else(|| c.population.variance()).unwrap_or(0.0);
        let part = weight * weight * (1.0 - n / big_n).max(0.0) * spread / n;
        variance += part;
        squares += part * part / (n - 1.0).max(1.0);
    }
    if observed <= 0.0 {
        return (0.0, None);
    }
    let df = if squares > 0.0 { variance * variance / squares } else { f64::INFINITY };
    let half = if level > 0.0 { t_quantile(level, df) * variance.sqrt() } else { 0.0 };
    (difference, Some(Interval { low: difference - half, high: difference + half }))
}

/// Mean and variance over classes: the merged moments.
pub(super) fn merged<'a>(parts: impl Iterator<Item = &'a Moments>) -> Moments {
    let mut all = Moments::default();
    parts.for_each(|m| all.merge(m));
    all
}

#[cfg(test)]
mod tests {
    use super::super::{ClassWindow, OperationClassId, WindowSummary};
    use super::*;

    fn window(length_s: f64, classes: &[(u64, u64, f64, f64)]) -> WindowSummary {
        // (population, sample, mean, spread): the sample is the population's first operations.
        let classes = classes
            .iter()
            .enumerate()
            .map(|(i, &(population, sample, mean, spread))| {
                let value = |k: u64| mean + spread * ((k % 5) as f64 - 2.0);
                ClassWindow {
                    class: OperationClassId(i as u32),
                    population: (0..population).map(value).collect(),
                    sample: (0..sample).map(value).collect(),
                    measure: Moments::default(),
                    cost_s: 0.0,
                }
            })
            .collect();
        WindowSummary { length_s, monitoring: true, classes }
    }

    fn after(length_s: f64, classes: &[(u64, u64, f64, f64)]) -> Cycle {
        let mut cycle = Cycle::default();
        cycle.add(&window(length_s, classes));
        cycle
    }

    #[test]
    fn cochran_agrees_with_the_tables() {
        let config = AdaptConfig::default();
        // The textbook figure: 384.16 at 95 % and 5 %, 278 of a population of 1,000.
        assert!((sample_size(0.95, u64::MAX, &config) - 384.146).abs() < 0.01);
        assert!((sample_size(0.95, 1_000, &config) - 277.74).abs() < 0.1);
        assert_eq!(sample_size(1.0, 1_000, &config), 1_000.0);
        assert_eq!(sample_size(0.95, 0, &config), 0.0);
        assert!((level(180.0, 180.0) - (-1.0f64).exp()).abs() < 1e-15 && level(0.0, 180.0) == 1.0);
    }

    #[test]
    fn each_criterion_as_printed_can_fail_alone() {
        let config = AdaptConfig::default();
        let good = as_printed(&after(20.0, &[(500, 250, 100.0, 5.0), (500, 250, 200.0, 5.0)]), &config);
        assert!(good.representative(), "{good:?}");
        let small = as_printed(&after(20.0, &[(500, 50, 100.0, 5.0), (500, 50, 200.0, 5.0)]), &config);
        assert!(!small.large_enough && small.same_times && small.same_shares, "{small:?}");
        let tilted = as_printed(&after(20.0, &[(500, 350, 100.0, 5.0), (500, 150, 100.0, 5.0)]), &config);
        assert!(tilted.large_enough && tilted.same_times && !tilted.same_shares, "{tilted:?}");
        let mut slow = window(20.0, &[(1_000, 500, 100.0, 5.0)]);
        slow.classes[0].sample = (0..500).map(|k| 110.0 + f64::from(k % 5)).collect();
        let mut cycle = Cycle::default();
        cycle.add(&slow);
        let slow = as_printed(&cycle, &config);
        assert!(slow.large_enough && !slow.same_times && slow.same_shares, "{slow:?}");
    }

    #[test]
    fn printed_time_criterion_gets_harder_and_equivalence_easier_with_time() {
        let config = AdaptConfig::default();
        let noisy = |seconds: f64| {
            let mut w = window(seconds, &[(4_000, 1_000, 100.0, 30.0)]);
            // One per cent off, of a spread of 42 %: within the margin of equivalence, not significant at 95 %.
            w.classes[0].sample = (0..1_000u32).map(|k| 101.0 + 30.0 * (f64::from(k % 5) - 2.0)).collect();
            let mut cycle = Cycle::default();
            cycle.add(&w);
            cycle
        };
        assert!(as_printed(&noisy(5.0), &config).same_times);
        assert!(!as_printed(&noisy(150.0), &config).same_times);
        assert!(!equivalence(&noisy(0.01), &config).same_times);
        assert!(
            equivalence(&noisy(20.0), &config).same_times && equivalence(&noisy(170.0), &config).same_times
        );
    }

    #[test]
    fn zero_variance_empty_and_whole_samples_give_no_nan() {
        let config = AdaptConfig::default();
        let constant = after(30.0, &[(1_000, 500, 100.0, 0.0)]);
        assert!(
            as_printed(&constant, &config).representative()
                && equivalence(&constant, &config).representative()
        );
        let whole = after(0.001, &[(10, 10, 100.0, 3.0), (1, 1, 5.0, 0.0)]);
        assert!(
            as_printed(&whole, &config).representative() && equivalence(&whole, &config).representative()
        );
        for cycle in [Cycle::default(), after(100.0, &[(1_000, 0, 100.0, 5.0)])] {
            for e in [as_printed(&cycle, &config), equivalence(&cycle, &config)] {
                assert!(!e.representative(), "{e:?}");
                assert!(
                    [e.z, e.needed, e.difference_ns, e.worst_share].iter().all(|x| x.is_finite()),
                    "{e:?}"
                );
            }
        }
        // All recorded operations alike and apart from the population: no variance, still different.
        let mut w = window(30.0, &[(1_000, 0, 100.0, 5.0)]);
        w.classes[0].sample = (0..500).map(|_| 300.0).collect();
        let mut cycle = Cycle::default();
        cycle.add(&w);
        assert!(!as_printed(&cycle, &config).same_times && !equivalence(&cycle, &config).same_times);
    }

    #[test]
    fn operations_that_recording_slows_are_compared_less_its_price() {
        // Half of the operations recorded, each 20 ns slower for it: a perfect sample, which as printed is none.
        let mut w = window(20.0, &[(2_000, 1_000, 100.0, 5.0)]);
        let value = |k: u32| 100.0 + 5.0 * (f64::from(k % 5) - 2.0);
        w.classes[0].sample = (0..1_000).map(|k| value(k) + 20.0).collect();
        w.classes[0].population = (0..1_000).map(|k| value(k) + 20.0).chain((0..1_000).map(value)).collect();
        w.classes[0].cost_s = 1_000.0 * 20e-9;
        let mut cycle = Cycle::default();
        cycle.add(&w);
        let ours = AdaptConfig::default();
        let printed = AdaptConfig { correct_for_price: false, ..AdaptConfig::default() };
        for criteria in [as_printed, equivalence] {
            let (corrected, plain) = (criteria(&cycle, &ours), criteria(&cycle, &printed));
            assert!(corrected.representative() && corrected.difference_ns.abs() < 1e-6, "{corrected:?}");
            assert!(!plain.representative() && (plain.difference_ns - 10.0).abs() < 1e-6, "{plain:?}");
        }
    }

    #[test]
    fn unequal_rates_are_no_bias_for_equivalence() {
        // All of the rare slow class, a tenth of the frequent fast one: the plain mean is far off, the weighted is not.
        let cycle = after(20.0, &[(5_000, 500, 100.0, 5.0), (200, 200, 1_000.0, 50.0)]);
        let config = AdaptConfig::default();
        let (printed, ours) = (as_printed(&cycle, &config), equivalence(&cycle, &config));
        assert!(!printed.representative() && ours.representative(), "{printed:?} {ours:?}");
        assert!(printed.difference_ns > 100.0 && ours.difference_ns.abs() < 1.0);
    }
}
