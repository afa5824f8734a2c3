use super::*;
use crate::controller::ControllerConfig;
use crate::controller::tests::{dry, order};
use std::collections::BTreeMap;

/// A hit on a stepped site and on an optimised one, ns.
const STEPPED_NS: f64 = 26_000.0;
const OPTIMISED_NS: f64 = 700.0;

/// Hits that each class may take after these ticks, and whether anything was taken off.
fn after(orders: &[crate::controller::ClassOrder], ticks: &[Tick<'_>]) -> BTreeMap<u32, u64> {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, orders, 0, 0.0);
    let mut actions = Vec::new();
    for tick in ticks {
        actions = controller.tick(tick);
    }
    let of = |a: Action| match a {
        Action::Quota { class, hits } => Some((class.0, hits)),
        Action::Detach { class, .. } => panic!("{class:?} was taken off"),
        _ => None,
    };
    actions.into_iter().filter_map(of).collect()
}

fn cost_ns(orders: &[crate::controller::ClassOrder], quotas: &BTreeMap<u32, u64>) -> f64 {
    orders.iter().map(|o| quotas[&o.class.0] as f64 * o.tau_ns).sum()
}

#[test]
fn what_the_income_does_not_pay_for_shares_tokens_and_income() {
    // 2,000 hits of 26 us and 200 beside them in a horizon whose income is 0.5 ms, and one of a cheap class.
    let classes = [(50.0, STEPPED_NS), (50.0, STEPPED_NS), (1_000.0, STEPPED_NS), (0.5, OPTIMISED_NS)];
    let one_each = 3.0 * STEPPED_NS + OPTIMISED_NS;
    for (tokens_ns, cheap) in [(2e6, 11), (2e5, 11), (0.0, 11), (-3e5, 11), (-1e6, 1)] {
        let funds = QuotaFunds { tokens_ns, income_ns: 5e5, slack_ns: 1.25e5, paid: false };
        let hits = grant(&classes, &funds);
        let cost: f64 = hits.iter().zip(classes).map(|(n, (_, tau))| *n as f64 * tau).sum();
        let there = (tokens_ns + 5e5).max(0.0);
        assert!(cost <= there + one_each, "{cost} of {there} at {tokens_ns}: {hits:?}");
        assert!(cost >= there - one_each, "{cost} of {there} at {tokens_ns}: {hits:?}");
        // The cheap one keeps what it needs as long as there is anything; every class may show that it is alive.
        assert_eq!(hits[3], cheap, "{hits:?} at {tokens_ns}");
        assert!(hits.iter().all(|n| *n >= 1), "{hits:?}");
    }
}

#[test]
fn hundred_quiet_dear_classes_of_an_idle_service_are_bounded_in_sum() {
    let orders: Vec<_> = (0..100).map(|i| order(i, 0.0, STEPPED_NS)).collect();
    for tokens_ns in [2.5e5, 0.0, -1e6] {
        // 1 ms/s comes in, which is 0.5 ms in a horizon: slack of 8 hits each would be 21 ms.
        let tick = Tick { tokens_ns, capacity_ns: 2.5e5, income: 0.001, ..dry(&[]) };
        let quotas = after(&orders, &[tick]);
        let pool = (tokens_ns + 5e5).max(0.5 * 2.5e5);
        let cost = cost_ns(&orders, &quotas);
        assert!(cost <= pool + 100.0 * STEPPED_NS, "{cost} of {pool} at {tokens_ns}");
        assert!(quotas.values().all(|n| *n >= 1), "{quotas:?}");
    }
}

#[test]
fn what_the_income_pays_for_keeps_its_quota_while_something_else_is_paid_back() {
    // 8 of 20 ms/s; attaching 3,000 others has left a debt of 50 ms.
    let mut orders = vec![order(0, 10_000.0, 800.0)];
    orders.extend((1..3_001).map(|i| order(i, 0.0, 800.0)));
    let hits = [(ClassId(0), 1_000)];
    let tick = Tick { tokens_ns: -50e6, ..dry(&hits) };
    let quotas = after(&orders, &[tick; 30]);
    // 5,000 in the horizon, and what chance may add.
    assert!((5_270..5_400).contains(&quotas[&0]), "{}", quotas[&0]);
    // Half of the bucket for slack, one hit for each that would have none.
    let most = 5_000.0 * 800.0 + 2.5e6 + 3_001.0 * 800.0;
    assert!(cost_ns(&orders, &quotas) <= most, "{} of {most}", cost_ns(&orders, &quotas));
    // The rest of the income counts, not all of it: 13 of 20 ms/s are taken by others.
    let taken = Tick { other_cost: 0.013, ..tick };
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders[..1], 0, 0.0);
    let mut actions = Vec::new();
    controller.set_quotas(&taken, &mut actions);
    assert_eq!(actions, [Action::Quota { class: ClassId(0), hits: 1 }]);
}

#[test]
fn classes_that_take_more_than_their_rates_say_are_given_what_is_there() {
    // Planned at 4 ms/s, it takes 30 of 20: its rate, smoothed, says so only after a while.
    let orders = [order(0, 5_000.0, 800.0)];
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 0.0);
    let hits = [(ClassId(0), 3_750)];
    let mut given = Vec::new();
    for _ in 0..20 {
        let mut actions = Vec::new();
        let tick = Tick { tokens_ns: -50e6, ..dry(&hits) };
        controller.note_taken(&tick);
        controller.set_quotas(&tick, &mut actions);
        let Action::Quota { hits, .. } = actions[0] else { panic!("{actions:?}") };
        given.push(hits);
    }
    // 1 - e^-1.1 of 30 ms/s are 20: after a second or so.
    let stopped = given.iter().position(|n| *n == 1).expect("it is stopped");
    assert!((9..=12).contains(&stopped), "{given:?}");
    assert!(given[..stopped].iter().all(|n| *n >= 2_500), "{given:?}");
}

#[test]
fn what_a_burst_or_a_class_that_is_off_took_stops_nobody_else() {
    // Class 1 is in no plan's trace: its burst was answered 70 ms late.
    let orders =
        [order(0, 5_000.0, 800.0), crate::controller::ClassOrder { trace: false, ..order(1, 0.0, 800.0) }];
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 0.0);
    for (second, of_burst) in [87_500, 0, 0, 0, 0].into_iter().enumerate() {
        let hits = [(ClassId(0), 500), (ClassId(1), of_burst)];
        let tick = Tick { tokens_ns: -50e6, ..dry(&hits) };
        let quotas: Vec<_> = controller.tick(&tick).into_iter().collect();
        let given = quotas.iter().find_map(|a| match a {
            Action::Quota { class: ClassId(0), hits } => Some(*hits),
            _ => None,
        });
        assert!(given.is_some_and(|n| n >= 2_500), "{second}: {quotas:?}");
    }
}

#[test]
fn the_first_quotas_of_a_plan_are_bounded_in_sum() {
    // 100 functions of an idle service: 8 hits each would be 21 ms, where the bucket holds 0.25.
    let orders: Vec<_> = (0..100).map(|i| order(i, 0.0, STEPPED_NS)).collect();
    let mut controller = Controller::new(ControllerConfig::default());
    controller.tick(&Tick { tokens_ns: 2.5e5, capacity_ns: 2.5e5, income: 0.001, ..dry(&[]) });
    let actions = controller.take_plan(0, &orders, 0, 2.5e5);
    let hits: Vec<u64> = actions
        .iter()
        .filter_map(|a| if let Action::Trace { quota, .. } = a { Some(*quota) } else { None })
        .collect();
    let cost = hits.iter().sum::<u64>() as f64 * STEPPED_NS;
    assert!(hits.len() == 100 && hits.iter().all(|n| *n >= 1), "{hits:?}");
    assert!(cost <= 2.5e5 + 100.0 * STEPPED_NS, "{cost}");
    // Who is expected to be called gets what it is expected to need, tokens or not.
    let busy = [order(0, 1_000.0, 800.0)];
    let actions = Controller::new(ControllerConfig::default()).take_plan(0, &busy, 0, 0.0);
    assert!(matches!(actions[0], Action::Trace { quota, .. } if quota >= 300), "{actions:?}");
}

#[test]
fn what_is_granted_by_hand() {
    // 100 hits of 1 µs expected: 100 µs, four standard deviations are 40, the first hits 8.
    let one = [(100.0, 1_000.0)];
    let funds = |tokens_us: f64, income_us: f64, slack_us: f64, paid| QuotaFunds {
        tokens_ns: tokens_us * 1e3,
        income_ns: income_us * 1e3,
        slack_ns: slack_us * 1e3,
        paid,
    };
    // What it needs, and all tokens beyond that: a few may explode.
    assert_eq!(grant(&one, &funds(1_000.0, 500.0, 0.0, true)), [1_000]);
    assert_eq!(grant(&one, &funds(148.0, 500.0, 0.0, true)), [148]);
    // The income pays for what is expected, slack for chance before the first hits.
    assert_eq!(grant(&one, &funds(-1_000.0, 500.0, 0.0, true)), [100]);
    assert_eq!(grant(&one, &funds(-1_000.0, 500.0, 30.0, true)), [130]);
    assert_eq!(grant(&one, &funds(-1_000.0, 500.0, 44.0, true)), [144]);
    assert_eq!(grant(&one, &funds(-1_000.0, 500.0, 900.0, true)), [148]);
    // What tokens and income leave counts as slack.
    assert_eq!(grant(&one, &funds(20.0, 110.0, 0.0, true)), [130]);
    // Where nobody pays: tokens and income, a hit at least.
    assert_eq!(grant(&one, &funds(20.0, 50.0, 900.0, false)), [70]);
    assert_eq!(grant(&one, &funds(-40.0, 50.0, 900.0, false)), [10]);
    assert_eq!(grant(&one, &funds(-90.0, 50.0, 900.0, false)), [1]);
    assert_eq!(grant(&one, &funds(1_000.0, 0.0, 0.0, false)), [1_000]);
    // Eight classes: two of them may take what is left, or each an eighth of it where nobody pays.
    let eight = [(100.0, 1_000.0); 8];
    assert_eq!(grant(&eight, &funds(8.0 * 148.0 + 400.0, 0.0, 0.0, true)), [348; 8]);
    assert_eq!(grant(&eight, &funds(8.0 * 148.0 + 400.0, 0.0, 0.0, false)), [198; 8]);
    assert_eq!(grant(&[], &funds(1.0, 1.0, 1.0, true)), [] as [u64; 0]);
}

#[test]
fn a_pool_is_divided_evenly_where_it_is_short() {
    assert_eq!(share(&[1.0, 10.0, 4.0], 20.0), [1.0, 10.0, 4.0]);
    assert_eq!(share(&[1.0, 10.0, 4.0], 9.0), [1.0, 4.0, 4.0]);
    assert_eq!(share(&[1.0, 10.0, 6.0], 9.0), [1.0, 4.0, 4.0]);
    assert_eq!(share(&[5.0, 5.0], -1.0), [0.0, 0.0]);
}

/// Hits that a class of 1,000 a second at 1 µs may take after such a tick.
fn one_quota(tick: &Tick<'_>, change: impl Fn(&mut Controller)) -> u64 {
    let orders =
        [order(0, 1_000.0, 1_000.0), crate::controller::ClassOrder { trace: false, ..order(1, 0.0, 1.0) }];
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 0, 0.0);
    change(&mut controller);
    let mut actions = Vec::new();
    controller.set_quotas(tick, &mut actions);
    match actions[..] {
        [Action::Quota { class: ClassId(0), hits }] => hits,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_quota_lasts_for_five_ticks_and_a_late_tick_counts_as_two() {
    // In debt: what is expected, the first hits, and what chance adds, paid for by half of the bucket.
    let quota = |elapsed_ns| one_quota(&Tick { elapsed_ns, tokens_ns: -1e6, ..dry(&[]) }, |_| {});
    assert_eq!(quota(100_000_000), (500.0 + 4.0 * 500f64.sqrt() + 8.0) as u64);
    assert_eq!(quota(200_000_000), (1_000.0 + 4.0 * 1_000f64.sqrt() + 8.0) as u64);
    assert_eq!(quota(900_000_000), quota(200_000_000));
}

#[test]
fn a_quota_leaves_what_others_were_granted() {
    let tick = Tick { tokens_ns: 4e6, other_cost: 0.001, ..dry(&[]) };
    assert_eq!(one_quota(&tick, |_| {}), 4_000);
    assert_eq!(one_quota(&Tick { reserved_ns: 1e6, ..tick }, |_| {}), 3_000);
    // A window of 2 ms that ends in a second takes half of it within the horizon, more of it is held if nothing comes in for it.
    let window = |income_left: f64| {
        move |controller: &mut Controller| {
            controller.income_left = income_left;
            let entry = controller.classes.get_mut(&ClassId(1)).expect("a class");
            entry.mode = Mode::Burst { until_ns: 11_000_000_000 };
            entry.reserved_ns = 2e6;
        }
    };
    assert_eq!(one_quota(&tick, window(0.002)), 3_000);
    assert_eq!(one_quota(&tick, window(0.0005)), 2_500);
    // Half of the income is taken by others: it no longer pays for what is expected.
    let dear = Tick { tokens_ns: -1e6, other_cost: 0.0195, ..dry(&[]) };
    assert_eq!(one_quota(&dear, |_| {}), 1);
}

#[test]
fn what_a_class_takes_is_smoothed_over_a_second() {
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &[order(0, 1_000.0, 1_000.0), order(1, 1.0, 1.0)], 0, 0.0);
    controller.classes.get_mut(&ClassId(1)).expect("a class").mode = Mode::Burst { until_ns: 1 };
    controller.classes.get_mut(&ClassId(1)).expect("a class").reserved_ns = 50.0;
    // 10,000 hits of 1 µs in 100 ms are 0.1 CPU s/s.
    controller.note_taken(&dry(&[(ClassId(0), 10_000), (ClassId(1), 30)]));
    let part = 1.0 - (-0.1f64).exp();
    assert!((controller.classes[&ClassId(0)].taken - 0.1 * part).abs() < 1e-12);
    // Once more without hits.
    controller.note_taken(&dry(&[]));
    assert!((controller.classes[&ClassId(0)].taken - 0.1 * part * (1.0 - part)).abs() < 1e-12);
    let burst = &controller.classes[&ClassId(1)];
    assert_eq!((burst.taken, burst.reserved_ns), (0.0, 20.0));
    controller.note_taken(&dry(&[(ClassId(1), 30)]));
    assert_eq!(controller.classes[&ClassId(1)].reserved_ns, 0.0);
    assert_eq!(controller.capacity_ns, 5e6);
}

#[test]
fn slack_is_half_of_the_bucket() {
    // A bucket of 40 µs.
    let tick = Tick { tokens_ns: -50e6, capacity_ns: 4e4, ..dry(&[]) };
    assert_eq!(one_quota(&tick, |_| {}), 520);
    let mut controller = Controller::new(ControllerConfig::default());
    controller.note_taken(&tick);
    let actions = controller.take_plan(0, &[order(0, 1_000.0, 1_000.0)], 0, 0.0);
    assert_eq!(actions, [Action::Trace { class: ClassId(0), quota: 320 }]);
}

#[test]
fn classes_that_are_not_why_too_much_is_spent_keep_their_quotas() {
    // 10.5 ms/s are too much, and the class takes 1 of them, less than a tenth.
    let quota = |other_cost| one_quota(&Tick { tokens_ns: -1e6, other_cost, ..dry(&[]) }, |_| {});
    assert_eq!(quota(0.0295), (500.0 + 4.0 * 500f64.sqrt() + 8.0) as u64);
    assert_eq!(quota(0.0285), 1);
}
