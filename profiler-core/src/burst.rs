//! Bursts as a mode of the plan: how long a window of complete counting is, and how often one is opened.
//!
//! What: a class that is too dear to be traced all the time is traced in short windows at random times, so that its
//! rate is known with an interval that shrinks while the run goes on. Two questions are answered here, both from
//! prices: the *shape* of one burst, and the *schedule* of all classes under what the plan has left.
//! What it does not do: it opens nothing and keeps no time (the controller does).

use crate::class::ClassId;
use crate::cost::CostModel;

/// Hits that a burst is good for at least: its rate then has an error of a tenth, were the events independent.
const LEAST_HITS: f64 = 100.0;
/// A burst with fewer hits is not worth its attaching.
const FEWEST_HITS: f64 = 30.0;
/// The same of a class that comes [first](BurstClass::first): a dear one would else have trials only, which are as short and ever rarer.
const FEWEST_OF_FIRST: f64 = 8.0;
/// Attaching, detaching and the hits after the end may take this part of what a burst costs, where the bucket allows.
const CHURN: f64 = 0.1;
/// A clock ends windows of at least this length; shorter ones end with their quota, s.
const CLOCKED_S: f64 = 0.02;
/// No window is longer, s: bursts are the sampling unit, and a few long ones say little about how much they differ.
const LONGEST_S: f64 = 1.0;
/// Bursts of a class begin at least so far apart on average, s.
const CLOSEST_S: f64 = 0.5;
/// The same of a class that comes [first](BurstClass::first), s. The bucket bounds one burst of a hot class to some milliseconds; only with more of them
/// is its part of the budget used. Of several classes each has its part of those ten a second: links are made one after the other, in 10 to 50 ms.
const CLOSEST_OF_FIRST_S: f64 = 0.1;
/// A class that would be attached for more than this part of the time gets no more bursts.
const LARGEST_DUTY: f64 = 0.5;
/// Part of the bursts' budget that goes to what was asked for by name, where others want some, too.
pub const FIRST_PART: f64 = 0.75;
/// Rounds in which bursts are lengthened: in each, those at their bound leave.
const LENGTHENINGS: usize = 8;

/// Part of its largest quota that the `number`-th window of a class gets, if it is to end with it: spread evenly over 0.5 to 1, like no period of a
/// target (multiples of the golden ratio, modulo 1). The first gets all of it.
///
/// Calls come in batches. A window that begins at any time and ends with hit Q counts, of batches of b calls every T s, `Q / (Q / b - 1/2)` calls
/// in T where Q is a multiple of b: too many by the part `b / 2Q`, however many windows there are. Where all remainders of Q by b are alike
/// seldom, `(Q - 1) / t` is unbiased: what the begin adds, half a T, is what the end takes away.
#[must_use]
pub fn quota_part(number: u64) -> f64 {
    /// (sqrt(5) - 1) / 2.
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    // OK because a run has far fewer than 2^53 windows.
    1.0 - 0.5 * (number as f64 * GOLDEN).fract()
}

/// What [`quota_part`] is on average.
pub const MEAN_QUOTA_PART: f64 = 0.75;

/// What attaching for a short time costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstPrices {
    /// CPU s that the target loses when a link is made or taken away.
    pub attach_s: f64,
    /// Time for which the breakpoint outlives the window, s.
    pub delay_s: f64,
    /// The same when the window was opened less than `fresh_s` ago, s.
    pub fresh_delay_s: f64,
    /// See `fresh_delay_s`, s.
    pub fresh_s: f64,
    /// CPUs that can run the target.
    pub cpus: u32,
}

impl BurstPrices {
    /// Prices on the host that the model was calibrated on.
    ///
    /// `fresh_*`: a breakpoint goes with a grace period that need not be waited for again within 5 ms of another
    /// attach or detach (`kernel/rcu/sync.c`); measured 0.07 to 0.09 ms then.
    #[must_use]
    pub fn new(model: &CostModel, cpus: u32) -> Self {
        Self {
            attach_s: model.attach.seconds(),
            delay_s: model.detach_delay.seconds(),
            fresh_delay_s: FRESH_DELAY_NS * 1e-9,
            fresh_s: FRESH_NS as f64 * 1e-9,
            cpus: cpus.max(1),
        }
    }

    /// CPU s lost to attaching, detaching and the hits after the end, for a class that keeps `busy` CPUs trapping.
    fn churn_s(&self, busy: f64, window_s: f64) -> f64 {
        let delay = if window_s < self.fresh_s { self.fresh_delay_s } else { self.delay_s };
        2.0 * self.attach_s + busy.min(f64::from(self.cpus)) * delay
    }
}

/// So long after an attach the next detach need not wait for a grace period, ns.
pub const FRESH_NS: u64 = 5_000_000;
/// Detach delay then, ns: measured 0.07 to 0.09 ms.
pub const FRESH_DELAY_NS: f64 = 100_000.0;

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

/// Bursts of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BurstOrder {
    /// Hits after which a burst ends.
    pub quota: u64,
    /// Time after which it ends, ns.
    pub window_ns: u64,
    /// Mean time between the begins of two bursts, ns.
    pub every_ns: u64,
    /// What one burst is expected to cost the target, CPU ns.
    pub cost_ns: f64,
    /// Part of the time for which the class is attached.
    pub duty: f64,
}

impl BurstOrder {
    /// The same bursts, `factor` times as far apart.
    #[must_use]
    pub fn rarer(self, factor: f64) -> Self {
        let every_ns = (self.every_ns as f64 * factor) as u64;
        Self { every_ns, duty: self.duty / factor, ..self }
    }

    /// A window ends with its quota, not with the clock.
    #[must_use]
    pub fn ends_by_quota(&self) -> bool {
        self.window_ns as f64 <= CLOCKED_S * 1e9
    }

    /// CPU s per s.
    #[must_use]
    pub fn cost_per_s(&self) -> f64 {
        self.cost_ns / self.every_ns.max(1) as f64
    }
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    quota: u64,
    window_s: f64,
    /// Expected length: the quota may end it before the clock.
    length_s: f64,
    cost_s: f64,
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
    Some(sized(class, prices, hits.min(affordable) / rate))
}

/// The burst of this length.
fn sized(class: &BurstClass, prices: &BurstPrices, length_s: f64) -> Shape {
    let clocked = length_s >= CLOCKED_S;
    let expected = class.rate_hz * length_s;
    let quota = if clocked { expected + 4.0 * expected.sqrt() + 8.0 } else { expected };
    let churn_s = prices.churn_s(class.rate_hz * class.tau_s, length_s);
    let cost_s = expected * class.tau_s + churn_s;
    Shape { quota: quota.ceil() as u64, window_s: length_s.max(CLOCKED_S), length_s, cost_s }
}

/// A burst of the class is worth its attaching where one may cost `limit_s` CPU s.
#[must_use]
pub fn is_possible(class: &BurstClass, prices: &BurstPrices, limit_s: f64) -> bool {
    shape(class, prices, limit_s).is_some()
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
    let closest_s = (CLOSEST_OF_FIRST_S * first.len() as f64).clamp(CLOSEST_OF_FIRST_S, CLOSEST_S);
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
        BurstOrder {
            quota: shape.quota,
            window_ns: (shape.window_s * 1e9) as u64,
            every_ns: (1e9 / per_s) as u64,
            cost_ns: shape.cost_s * 1e9,
            duty: (per_s * shape.length_s).min(1.0),
        }
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
            let longer = sized(&classes[i], prices, length_s);
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRICES: BurstPrices =
        BurstPrices { attach_s: 60e-6, delay_s: 8e-3, fresh_delay_s: 100e-6, fresh_s: 5e-3, cpus: 2 };

    fn class(rate_hz: f64) -> BurstClass {
        BurstClass {
            class: ClassId(0),
            rate_hz,
            tau_s: 0.7e-6,
            weight: 1.0,
            spread: 1.0,
            limit_s: f64::INFINITY,
            first: false,
        }
    }

    #[test]
    fn a_hot_class_ends_with_its_quota_and_a_quiet_one_with_the_clock() {
        let hot = shape(&class(1e6), &PRICES, 1.0).unwrap();
        assert!(hot.length_s < PRICES.fresh_s, "{hot:?}");
        assert!((hot.quota as f64 - 1e6 * hot.length_s).abs() < 1.0, "{hot:?}");
        let quiet = shape(&class(1e3), &PRICES, 1.0).unwrap();
        assert!(quiet.length_s > 0.1 && quiet.window_s == quiet.length_s, "{quiet:?}");
        assert!(quiet.quota as f64 > 1e3 * quiet.window_s, "the clock is to end it: {quiet:?}");
    }

    #[test]
    fn dear_bursts_are_had_less_often_by_the_root_of_their_price() {
        let orders = schedule(&[class(1e3), class(1e5), class(1e6)], &PRICES, 1e-3, 1.0);
        let orders: Vec<BurstOrder> = orders.into_iter().flatten().collect();
        for pair in orders.windows(2) {
            let every = pair[0].every_ns as f64 / pair[1].every_ns as f64;
            let cost = (pair[0].cost_ns / pair[1].cost_ns).sqrt();
            assert!((every / cost - 1.0).abs() < 1e-6, "{every} {cost}");
        }
        let cost: f64 = orders.iter().map(BurstOrder::cost_per_s).sum();
        assert!((cost - 1e-3).abs() < 1e-9, "all of the budget is used: {cost}");
    }

    #[test]
    fn nothing_left_means_no_bursts() {
        assert_eq!(schedule(&[class(1e3)], &PRICES, 0.0, 1.0), [None]);
        assert_eq!(schedule(&[class(0.0), class(f64::NAN)], &PRICES, 1.0, 1.0), [None, None]);
    }

    #[test]
    fn a_small_bucket_makes_small_bursts_and_too_small_a_one_none() {
        let small = shape(&class(1e5), &PRICES, 1e-3).unwrap();
        assert!(small.cost_s <= 1e-3 && small.quota >= 30, "{small:?}");
        assert_eq!(schedule(&[class(1e5)], &PRICES, 1e-3, 1e-4), [None]);
        // The same where a thread is the narrow place, and not the bucket.
        let narrow = BurstClass { limit_s: 1e-3, ..class(1e5) };
        assert!(shape(&narrow, &PRICES, 1.0).unwrap().cost_s <= 1e-3);
    }

    #[test]
    fn what_was_named_for_its_durations_comes_first_and_is_watched_for_longer() {
        let named = BurstClass { first: true, ..class(1e5) };
        let others = [class(1e4), class(1e5), class(1e6), class(3e4)];
        let budget = 60e-3;
        let mut all = vec![named];
        all.extend(others);
        let orders = schedule(&all, &PRICES, budget, 20e-3);
        let own = orders[0].unwrap();
        let plain = schedule(&[class(1e5)], &PRICES, budget, 20e-3)[0].unwrap();
        assert!(own.duty > 2.0 * plain.duty, "{own:?} {plain:?}");
        // At most 0.75 of it: as long a burst as half of the time allows costs less.
        assert!(own.cost_per_s() <= FIRST_PART * budget * 1.001, "{own:?}");
        assert!(own.duty > 0.45 || own.cost_per_s() > 0.7 * budget, "{own:?}");
        let cost: f64 = orders.iter().flatten().map(BurstOrder::cost_per_s).sum();
        assert!(orders.iter().all(Option::is_some) && cost <= budget * 1.001, "{cost}");
    }

    #[test]
    fn a_dear_class_that_was_named_gets_short_bursts_where_others_get_none() {
        // 30 us a call, where one burst may take 0.6 ms: 17 calls.
        let dear = BurstClass { tau_s: 30e-6, ..class(2e4) };
        let named = BurstClass { first: true, ..dear };
        assert_eq!(schedule(&[dear], &PRICES, 5e-3, 0.6e-3), [None]);
        let order = schedule(&[named], &PRICES, 5e-3, 0.6e-3)[0].unwrap();
        assert!((8..=20).contains(&order.quota) && order.cost_ns <= 0.6e6 * 1.001, "{order:?}");
        assert_eq!(schedule(&[named], &PRICES, 5e-3, 0.2e-3), [None], "too few to be worth anything");
    }

    #[test]
    fn alone_it_gets_all_and_a_small_bucket_bounds_each_burst() {
        let named = BurstClass { first: true, ..class(1e5) };
        let orders = schedule(&[named], &PRICES, 30e-3, 4e-3);
        let own = orders[0].unwrap();
        assert!(own.cost_ns <= 4e6 * 1.001, "{own:?}");
        let wide = schedule(&[named], &PRICES, 30e-3, 1.0)[0].unwrap();
        assert!(wide.cost_per_s() > 0.9 * 30e-3 && wide.cost_per_s() <= 30e-3 * 1.001, "{wide:?}");
    }

    proptest! {
        #[test]
        fn bursts_that_are_lengthened_keep_budget_and_bucket(
            list in prop::collection::vec((0.0..7.5f64, 0.3..20.0f64, prop::bool::ANY), 1..12),
            budget in 1e-6..0.2f64,
            limit in 1e-4..1e-1f64,
        ) {
            let classes: Vec<BurstClass> = list
                .iter()
                .map(|&(log_rate, us, first)| BurstClass {
                    rate_hz: 10f64.powf(log_rate), tau_s: us * 1e-6, first, ..class(1.0)
                })
                .collect();
            let orders = schedule(&classes, &PRICES, budget, limit);
            let cost: f64 = orders.iter().flatten().map(BurstOrder::cost_per_s).sum();
            prop_assert!(cost <= budget * 1.01, "{cost} of {budget}");
            for (class, order) in classes.iter().zip(&orders) {
                let Some(order) = order else { continue };
                prop_assert!(order.duty <= LARGEST_DUTY * 1.01, "{order:?}");
                prop_assert!(order.cost_ns <= limit * 1e9 * 1.01, "{class:?} {order:?}");
            }
        }

        #[test]
        fn the_schedule_keeps_its_budget_and_churn_is_a_tenth(
            list in prop::collection::vec((0.0..7.5f64, 0.3..10.0f64, 0.0..10.0f64), 1..30),
            budget in 1e-6..0.2f64,
            limit in 1e-4..1e-1f64,
        ) {
            let classes: Vec<BurstClass> = list
                .iter()
                .map(|&(log_rate, us, weight)| BurstClass {
                    class: ClassId(0), rate_hz: 10f64.powf(log_rate), tau_s: us * 1e-6, weight, spread: 1.0,
                    limit_s: f64::INFINITY, first: false,
                })
                .collect();
            let orders = schedule(&classes, &PRICES, budget, limit);
            let cost: f64 = orders.iter().flatten().map(BurstOrder::cost_per_s).sum();
            prop_assert!(cost <= budget * 1.001, "{cost} of {budget}");
            for (class, order) in classes.iter().zip(&orders) {
                let Some(order) = order else { continue };
                prop_assert!(order.duty <= LARGEST_DUTY + 1e-9);
                prop_assert!(order.quota >= 1 && order.window_ns >= 20_000_000);
                let shape = shape(class, &PRICES, limit).unwrap();
                prop_assert!(shape.cost_s <= limit * 1.001, "{shape:?}");
                let churn = PRICES.churn_s(class.rate_hz * class.tau_s, shape.length_s);
                // A burst that is as long or as dear as it may be is what it is.
                let bounded = shape.length_s >= LONGEST_S * 0.999
                    || shape.cost_s >= limit * 0.999
                    || (shape.length_s / PRICES.fresh_s - 0.999).abs() < 1e-6;
                prop_assert!(churn <= CHURN * shape.cost_s * 1.001 || bounded, "{shape:?}");
            }
        }
    }
}
