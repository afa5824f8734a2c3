use super::*;
use crate::class::ClassId;
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
