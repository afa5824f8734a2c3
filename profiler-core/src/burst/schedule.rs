//! The schedule of bursts for the objective *information*: what its plan leaves, shared out among what it does not trace.

use super::{
    BurstOrder, BurstPrices, CHURN, CLOSEST_S, FEWEST_HITS, FEWEST_OF_FIRST, FIRST_PART, LARGEST_DUTY,
    LEAST_HITS, LONGEST_S, Shape, least_apart_of_first,
};
use crate::class::ClassId;

/// Rounds in which bursts are lengthened: in each, those at their bound leave.
const LENGTHENINGS: usize = 8;

/// A class that may be traced in bursts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstClass {
    /// Class.
    pub class: ClassId,
    /// Rate, events/s.
    pub rate_hz: f64,
    /// Price of a hit, s.
    pub tau_s: f64,
    /// Information weight.
    pub weight: f64,
    /// Standard deviation of the rates of single bursts over their mean; 1 if nothing is known of it.
    pub spread: f64,
    /// One burst may cost so much at most, CPU s; infinite where only the bucket limits it.
    pub limit_s: f64,
    /// Its durations were asked for by name: it comes first, and its bursts are lengthened as long as the budget reaches.
    pub first: bool,
}

/// The shortest burst with [`LEAST_HITS`] whose churn is a tenth of its cost, `churn <= CHURN (q tau + churn)`, so
/// `q tau >= churn (1 - CHURN) / CHURN`; at most [`LONGEST_S`] long, and no dearer than `limit_s`, which comes before the
/// churn: a burst that the bucket never holds would never begin. `None`: nothing useful is to be had for that.
fn shape(class: &BurstClass, prices: &BurstPrices, limit_s: f64) -> Option<Shape> {
    let (rate, tau) = (class.rate_hz, class.tau_s);
    let usable = rate > 0.0 && rate.is_finite() && tau > 0.0 && tau.is_finite();
    if !usable {
        return None;
    }
    let limit_s = limit_s.min(class.limit_s);
    let busy = rate * tau;
    let hits_for = |churn: f64| (churn * (1.0 - CHURN) / CHURN / tau).max(LEAST_HITS);
    // Within the fresh time the delay is short: take that if it fits.
    let fresh = hits_for(prices.churn_s(busy, 0.0));
    let hits =
        if fresh / rate < prices.fresh_s { fresh } else { hits_for(prices.churn_s(busy, f64::INFINITY)) };
    let hits = hits.min(rate * LONGEST_S);
    let affordable_at = |length_s: f64| ((limit_s - prices.churn_s(busy, length_s)) / tau).max(0.0);
    let within_fresh = affordable_at(0.0).min(rate * prices.fresh_s * 0.999);
    let affordable = affordable_at(f64::INFINITY).max(within_fresh);
    // A quiet class has few hits in its longest window, and they cost next to nothing.
    let fewest = if class.first { FEWEST_OF_FIRST } else { FEWEST_HITS };
    if affordable < hits.min(fewest) {
        return None;
    }
    Some(Shape::new(rate, tau, prices, hits.min(affordable) / rate))
}

/// How often each class is traced for a burst, so that all bursts together cost `budget` CPU s per s at most and one
/// `limit_s` CPU s. `None` for a class of which no burst is possible (no rate, free hits, too dear).
///
/// ```text
/// min sum W_i^2 v_i^2 / n_i   with   sum n_i c_i <= budget:    n_i proportional to W_i v_i / sqrt(c_i)
/// ```
/// with `v_i` the spread between bursts, `n_i` bursts per second and `c_i` the cost of one (Neyman's allocation of a
/// sample to strata with unequal costs); `n_i` is bounded by two bursts a second (ten of all that come first together, two of each at least) and half of the time, and what
/// bounded classes leave goes to the others.
///
/// Classes that come [first](BurstClass::first) share [`FIRST_PART`] of the budget, or all where there are no others; what they leave at
/// ten bursts a second lengthens theirs.
#[must_use]
pub fn schedule(
    classes: &[BurstClass],
    prices: &BurstPrices,
    budget: f64,
    limit_s: f64,
) -> Vec<Option<BurstOrder>> {
    let mut bursts: Vec<Option<Bursts>> = classes
        .iter()
        .map(|class| shape(class, prices, limit_s).map(|shape| Bursts { shape, per_s: 0.0 }))
        .collect();
    let budget = budget.max(0.0);
    let possible = |first: bool| (0..classes.len()).filter(move |&i| classes[i].first == first);
    let others = possible(false).any(|i| bursts[i].is_some());
    let of_first = if others { FIRST_PART * budget } else { budget };
    let first: Vec<usize> = possible(true).filter(|&i| bursts[i].is_some()).collect();
    let closest_s = least_apart_of_first(first.len());
    fill(classes, &mut bursts, first, of_first, closest_s);
    lengthen(classes, prices, &mut bursts, of_first, limit_s);
    let spent: f64 = bursts.iter().flatten().map(Bursts::cost_per_s).sum();
    fill(classes, &mut bursts, possible(false).collect(), budget - spent, CLOSEST_S);
    bursts.into_iter().map(|bursts| bursts.filter(|b| b.per_s > 0.0).map(|b| b.order())).collect()
}

/// Bursts of one class.
#[derive(Debug, Clone, Copy)]
struct Bursts {
    shape: Shape,
    per_s: f64,
}

impl Bursts {
    fn cost_per_s(&self) -> f64 {
        self.per_s * self.shape.cost_s
    }

    fn most_per_s(&self, closest_s: f64) -> f64 {
        (1.0 / closest_s).min(LARGEST_DUTY / self.shape.length_s)
    }

    fn order(self) -> BurstOrder {
        let Self { shape, per_s } = self;
        BurstOrder { duty: (per_s * shape.length_s).min(1.0), ..shape.order(per_s) }
    }
}

/// Water-filling among the classes `open`: those at their bound leave, at least one each round.
/// Bursts of a class begin `closest_s` apart at least.
fn fill(
    classes: &[BurstClass],
    bursts: &mut [Option<Bursts>],
    mut open: Vec<usize>,
    budget: f64,
    closest_s: f64,
) {
    let want = |i: usize, shape: &Shape| {
        classes[i].weight.max(0.0) * classes[i].spread.max(0.05) / shape.cost_s.sqrt()
    };
    open.retain(|&i| bursts[i].is_some_and(|b| want(i, &b.shape) > 0.0));
    let mut left = budget;
    while !open.is_empty() && left > 0.0 {
        let demand: f64 =
            open.iter().filter_map(|&i| bursts[i].map(|b| want(i, &b.shape) * b.shape.cost_s)).sum();
        let level = left / demand;
        let is_full =
            |i: usize| bursts[i].is_some_and(|b| level * want(i, &b.shape) >= b.most_per_s(closest_s));
        let (full, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|&&i| is_full(i));
        let at_bound = !full.is_empty();
        for i in if at_bound { &full } else { &rest } {
            if let Some(b) = &mut bursts[*i] {
                b.per_s = b.most_per_s(closest_s).min(level * want(*i, &b.shape));
                left -= b.cost_per_s();
            }
        }
        open = if at_bound { rest } else { Vec::new() };
    }
}

/// Makes the bursts of classes that come first longer, all by the same factor as far as they may be, until they cost `budget`.
///
/// A burst's cost is `hits tau + churn`, so `factor = (budget - sum n_i churn_i) / sum n_i hits_i tau_i`.
fn lengthen(
    classes: &[BurstClass],
    prices: &BurstPrices,
    bursts: &mut [Option<Bursts>],
    budget: f64,
    limit_s: f64,
) {
    for _ in 0..LENGTHENINGS {
        let of_first = || (0..classes.len()).filter(|&i| classes[i].first);
        let hits_cost = |i: usize, b: &Bursts| b.shape.length_s * classes[i].rate_hz * classes[i].tau_s;
        let spent: f64 = of_first().filter_map(|i| bursts[i]).map(|b| b.cost_per_s()).sum();
        let can = |i: usize, b: &Bursts| longest_s(&classes[i], prices, b, limit_s) > b.shape.length_s * 1.01;
        let grows: f64 = of_first()
            .filter_map(|i| bursts[i].filter(|b| can(i, b)).map(|b| b.per_s * hits_cost(i, &b)))
            .sum();
        let mut left = budget - spent;
        if grows <= 0.0 || left <= 0.01 * budget {
            return;
        }
        let factor = 1.0 + left / grows;
        for i in (0..classes.len()).filter(|&i| classes[i].first) {
            let Some(b) = bursts[i].filter(|b| b.per_s > 0.0 && can(i, b)) else { continue };
            let length_s = (b.shape.length_s * factor).min(longest_s(&classes[i], prices, &b, limit_s));
            let longer = Shape::new(classes[i].rate_hz, classes[i].tau_s, prices, length_s);
            // What outlives a long window may cost more than what is left.
            let more = b.per_s * (longer.cost_s - b.shape.cost_s);
            if more <= left * 1.001 {
                left -= more;
                bursts[i] = Some(Bursts { shape: longer, ..b });
            }
        }
    }
}

/// How long a burst of a class may be at its present rhythm, s: within half of the time, a second, and `limit_s`.
fn longest_s(class: &BurstClass, prices: &BurstPrices, bursts: &Bursts, limit_s: f64) -> f64 {
    let (rate, tau) = (class.rate_hz, class.tau_s);
    let busy = rate * tau;
    let longest_s = LONGEST_S.min(LARGEST_DUTY / bursts.per_s.max(1e-9));
    let limit_s = limit_s.min(class.limit_s);
    let affordable = |churn_s: f64| ((limit_s - churn_s) / busy).max(0.0);
    let fresh_s = affordable(prices.churn_s(busy, 0.0)).min(0.999 * prices.fresh_s);
    affordable(prices.churn_s(busy, f64::INFINITY)).max(fresh_s).min(longest_s)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
