//! Stratified allocation: how much of what may be recorded each class gets (policy `tithe`).
//!
//! One rate for all gives frequent classes thousands of recorded operations and rare ones a handful. The error of a
//! class's mean is `sigma_c / sqrt(n_c)`, so the sum of squared errors over classes at a given cost is least where
//! ```text
//! n_c  proportional to  sigma_c N_c^q / sqrt(price_c),        n_c <= N_c
//! ```
//! with q = 0 when every class's mean counts alike, and q = 1 for the mean over all operations (Neyman 1934; with
//! prices Cochran 1977, §5.5); between them it is Bankier's power allocation (1988). Classes that would get more than
//! they have are recorded completely, and the rest is shared again: found by bisection of the common factor.

use super::OperationClassId;

/// One class as the allocation sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stratum {
    /// The class.
    pub class: OperationClassId,
    /// Operations expected, per second.
    pub rate_hz: f64,
    /// Standard deviation of the measure within the class, in its unit or as a share of its mean (then relative errors
    /// count); `None` while unknown: the class is then treated as
    /// the most variable of those known, so that it gets known.
    pub deviation: Option<f64>,
    /// Price of recording one operation, CPU seconds, or any unit common to all.
    pub price: f64,
}

/// Share of the operations of each class to record, within `[min, max]`, so that
/// `sum rate_c share_c price_c <= budget` (price units per second). Where the budget does not even pay `min`, all
/// shares are scaled down together.
#[must_use]
pub fn shares(strata: &[Stratum], budget: f64, min: f64, max: f64, power: f64) -> Vec<f64> {
    let usable =
        |s: &Stratum| s.rate_hz.is_finite() && s.rate_hz > 0.0 && s.price.is_finite() && s.price > 0.0;
    let cost = |s: &Stratum| if usable(s) { s.rate_hz * s.price } else { 0.0 };
    let budget = if budget.is_finite() { budget.max(0.0) } else { f64::MAX };
    let all: f64 = strata.iter().map(cost).sum();
    if all <= 0.0 || all * max <= budget {
        return vec![max; strata.len()];
    }
    if all * min >= budget {
        return vec![(budget / all).clamp(0.0, max); strata.len()];
    }
    let wanted = wanted(strata, power);
    let at = |factor: f64| -> Vec<f64> { wanted.iter().map(|w| (factor * w).clamp(min, max)).collect() };
    let spent = |shares: &[f64]| strata.iter().zip(shares).map(|(s, share)| cost(s) * share).sum::<f64>();
    // The cost rises with the factor, from that of `min` to that of `max`; 200 halvings reach the last bit.
    let (mut low, mut high) = (0.0f64, 1.0f64);
    while spent(&at(high)) < budget && high < 1e300 {
        high *= 16.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if spent(&at(middle)) <= budget { low = middle } else { high = middle }
    }
    at(low)
}

/// Wanted share before bounds: `sigma N^(q-1) / sqrt(price)`. Without any known deviation, or where none varies, all
/// classes want the same.
fn wanted(strata: &[Stratum], power: f64) -> Vec<f64> {
    let known = strata.iter().filter_map(|s| s.deviation).filter(|d| d.is_finite());
    let most = known.fold(0.0f64, f64::max);
    if most <= 0.0 {
        return vec![1.0; strata.len()];
    }
    strata
        .iter()
        .map(|s| {
            // A deviation of 0 from a few equal values is no proof: a thousandth of the largest keeps the class in play.
            let deviation = s.deviation.filter(|d| d.is_finite()).unwrap_or(most).max(1e-3 * most);
            let wanted = deviation / most * s.rate_hz.max(1e-9).powf(power - 1.0) / s.price.max(1e-12).sqrt();
            if wanted.is_finite() { wanted } else { 0.0 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stratum(rate_hz: f64, deviation: f64, price: f64) -> Stratum {
        Stratum { class: OperationClassId(0), rate_hz, deviation: Some(deviation), price }
    }

    #[test]
    fn rare_classes_are_recorded_completely_and_the_rest_shared_by_deviation() {
        let strata = [stratum(1.0, 5.0, 1.0), stratum(1_000.0, 1.0, 1.0), stratum(1_000.0, 3.0, 1.0)];
        let s = shares(&strata, 401.0, 0.01, 1.0, 0.0);
        assert_eq!(s[0], 1.0);
        assert!((s[1] - 0.1).abs() < 1e-9 && (s[2] - 0.3).abs() < 1e-9, "{s:?}");
    }

    #[test]
    fn dear_classes_get_less_by_the_root_of_their_price() {
        let s = shares(&[stratum(100.0, 1.0, 1.0), stratum(100.0, 1.0, 4.0)], 50.0, 0.0, 1.0, 0.0);
        assert!((s[0] / s[1] - 2.0).abs() < 1e-9, "{s:?}");
    }

    #[test]
    fn power_one_is_neymans_allocation_for_the_mean_of_all() {
        // n_c proportional to N_c sigma_c: shares proportional to sigma alone.
        let s = shares(&[stratum(10.0, 1.0, 1.0), stratum(1_000.0, 2.0, 1.0)], 100.0, 0.0, 1.0, 1.0);
        assert!((s[1] / s[0] - 2.0).abs() < 1e-9, "{s:?}");
    }

    #[test]
    fn the_sum_of_squared_errors_is_the_least_found() {
        // Moving cost from one class to another in either direction makes the sum larger.
        let strata = [stratum(300.0, 1.0, 1.0), stratum(80.0, 4.0, 2.0), stratum(500.0, 0.5, 0.5)];
        let best = shares(&strata, 60.0, 0.0, 1.0, 0.0);
        let error = |shares: &[f64]| -> f64 {
            strata.iter().zip(shares).map(|(s, f)| s.deviation.unwrap().powi(2) / (f * s.rate_hz)).sum()
        };
        for from in 0..3 {
            for to in 0..3 {
                let mut moved = best.clone();
                moved[from] -= 0.5 / (strata[from].rate_hz * strata[from].price);
                moved[to] += 0.5 / (strata[to].rate_hz * strata[to].price);
                assert!(error(&moved) >= error(&best) - 1e-12, "{from} to {to}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_budget_and_the_bounds_hold(
            strata in prop::collection::vec((0.0f64..1e5, prop::option::of(0.0f64..1e6), 1e-9f64..1.0), 1..40),
            budget in 0.0f64..1e3, min in 0.0f64..0.2, power in 0.0f64..=1.0,
        ) {
            let strata: Vec<_> = strata
                .into_iter()
                .map(|(rate_hz, deviation, price)| Stratum { class: OperationClassId(0), rate_hz, deviation, price })
                .collect();
            let got = shares(&strata, budget, min, 1.0, power);
            let cost: f64 = strata.iter().zip(&got).map(|(s, f)| s.rate_hz * s.price * f).sum();
            prop_assert!(cost <= budget * (1.0 + 1e-9), "{cost} {budget}");
            prop_assert!(got.iter().all(|f| (0.0..=1.0).contains(f)), "{got:?}");
            let all: f64 = strata.iter().map(|s| s.rate_hz * s.price).sum();
            // What may be spent is spent, unless everything is recorded.
            prop_assert!(all <= budget || cost >= budget * (1.0 - 1e-6), "{cost} {budget} {all}");
        }
    }
}
