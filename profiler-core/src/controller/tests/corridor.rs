//! What is done where more goes out than comes in, at values worked out by hand.

use super::*;

const S: u64 = 1_000_000_000;

/// Traced classes of 1 µs a hit at these rates: a thousand calls a second cost a millisecond. The sampler runs at 10 ms.
fn traced(rates: &[f64]) -> Controller {
    let orders: Vec<ClassOrder> = (0u32..).zip(rates).map(|(id, rate)| order(id, *rate, 1_000.0)).collect();
    let mut controller = Controller::new(ControllerConfig::default());
    controller.take_plan(0, &orders, 10_000_000, 5e6);
    controller
}

fn keep(controller: &mut Controller, tick: &Tick<'_>) -> Vec<Action> {
    let mut actions = Vec::new();
    controller.keep_corridor(tick, &mut actions);
    actions
}

fn off(class: u32) -> Action {
    Action::Detach { class: ClassId(class), reason: DetachReason::OverBudget }
}

#[test]
fn nothing_goes_while_there_are_tokens_or_the_income_pays() {
    // 21 of 20 ms/s, and a tenth of the bucket.
    let tick = Tick { tokens_ns: 0.5e6, ..dry(&[]) };
    assert_eq!(keep(&mut traced(&[21_000.0]), &tick), []);
    assert_eq!(keep(&mut traced(&[20_000.0]), &Tick { tokens_ns: -1e6, ..tick }), []);
    assert_eq!(keep(&mut traced(&[15_000.0]), &Tick { tokens_ns: -1e6, other_cost: 0.005, ..tick }), []);
    let actions = keep(&mut traced(&[21_000.0]), &Tick { tokens_ns: 0.4999e6, ..tick });
    assert!(actions.contains(&off(0)), "{actions:?}");
}

#[test]
fn the_sampler_goes_first_and_comes_back_slowly() {
    // (sample cost, others beside it, period) -> period: what is too much, over what samples cost, is left out.
    let table = [
        // 1 of 4 ms/s too much: three quarters of the rate.
        (0.004, 0.017, 10_000_000, 13_333_334),
        // Nine tenths of the rate at most, a quarter at least.
        (0.010, 0.01001, 10_000_000, 11_111_112),
        (0.001, 0.030, 10_000_000, 40_000_000),
        // No further than 10 Hz.
        (0.004, 0.017, 90_000_000, 100_000_000),
    ];
    for (sample_cost, others, period_ns, slower) in table {
        let mut controller = traced(&[]);
        controller.period_ns = period_ns;
        let tick = Tick { sample_cost, other_cost: sample_cost + others, ..dry(&[]) };
        assert_eq!(keep(&mut controller, &tick)[..1], [Action::Period { period_ns: slower }]);
        assert!(controller.slowed().is_some());
    }
    // Nothing to be had from it.
    for (period_ns, sample_cost) in [(100_000_000, 0.004), (0, 0.004), (10_000_000, 0.0)] {
        let mut controller = traced(&[]);
        controller.period_ns = period_ns;
        let actions = keep(&mut controller, &Tick { sample_cost, other_cost: 0.03, ..dry(&[]) });
        assert!(!actions.iter().any(|a| matches!(a, Action::Period { .. })), "{actions:?}");
    }
    let mut controller = traced(&[]);
    controller.period_ns = 14_000_000;
    assert_eq!(keep(&mut controller, &Tick { tokens_ns: 4e6, ..dry(&[]) }), [], "four fifths of the bucket");
    let full = Tick { tokens_ns: 4.01e6, ..dry(&[]) };
    assert_eq!(keep(&mut controller, &full), [Action::Period { period_ns: 11_200_000 }]);
    assert_eq!(keep(&mut controller, &full), [Action::Period { period_ns: 10_000_000 }]);
    assert_eq!(keep(&mut controller, &full), []);
}

#[test]
fn what_the_slower_sampler_saves_keeps_classes() {
    // 22 of 20 ms/s, 4 of them samples: at half of the rate the rest stays.
    let tick = Tick { sample_cost: 0.004, other_cost: 0.004, ..dry(&[]) };
    assert_eq!(keep(&mut traced(&[9_000.0, 9_000.0]), &tick), [Action::Period { period_ns: 20_000_001 }]);
    // 21, and three quarters of the rate would do, but it is slowed to 10 Hz and no further: 0.6 ms/s are too much.
    let mut controller = traced(&[8_500.0, 8_500.0]);
    controller.period_ns = 90_000_000;
    assert_eq!(keep(&mut controller, &tick), [Action::Period { period_ns: 100_000_000 }, off(0)]);
    // 24: at a quarter of it 1 ms/s is too much, and the first of two equals goes.
    let actions = keep(&mut traced(&[10_000.0, 10_000.0]), &tick);
    assert_eq!(actions, [Action::Period { period_ns: 40_000_000 }, off(0)]);
}

#[test]
fn the_class_that_gives_least_for_its_cost_goes_if_it_matters() {
    // 25 of 20 ms/s: whoever costs a tenth of 5 ms/s at least may go. Class 2 gives least, and matters not.
    let mut controller = traced(&[12_000.0, 12_501.0, 499.0]);
    for (class, weight) in [(0, 2.0), (1, 1.0), (2, 0.1)] {
        controller.classes.get_mut(&ClassId(class)).expect("a class").order.weight = weight;
    }
    assert_eq!(keep(&mut controller, &dry(&[])), [off(1)]);
    let mut controller = traced(&[12_000.0, 12_490.0, 510.0]);
    for (class, weight) in [(0, 2.0), (1, 1.0), (2, 0.1)] {
        controller.classes.get_mut(&ClassId(class)).expect("a class").order.weight = weight;
    }
    assert_eq!(keep(&mut controller, &dry(&[])), [off(2), off(1)]);
    // It pauses for two seconds, at the second time for four.
    assert_eq!(controller.classes[&ClassId(1)].mode, Mode::Stopped { retry_ns: 12 * S });
    controller.classes.get_mut(&ClassId(0)).expect("a class").stops = 1;
    keep(&mut controller, &Tick { other_cost: 0.02, ..dry(&[]) });
    assert_eq!(controller.classes[&ClassId(0)].mode, Mode::Stopped { retry_ns: 14 * S });
}

#[test]
fn small_classes_go_together_the_dearest_first_as_long_as_they_matter() {
    // 30 ms/s are too much, others take 45 of them: each of these is below a tenth of that, all together above it.
    let rates = [1_500.0, 900.0, 1_200.0, 190.0, 1_000.0];
    let tick = Tick { other_cost: 0.0452, ..dry(&[]) };
    let actions = keep(&mut traced(&rates), &tick);
    // Those above a hundredth of the income go; the last one alone does not matter.
    let why = Cause::Spend { spend: 0.0452 + 4_790.0 * 1e-6, income: 0.02 };
    let [rest @ .., Action::Replan { why: said }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(rest, [off(0), off(2), off(4), off(1)]);
    let (Cause::Spend { spend: a, .. }, Cause::Spend { spend: b, .. }) = (said, &why) else {
        panic!("{said:?}")
    };
    assert!((a - b).abs() < 1e-9, "{a} {b}");
    // What was demanded stays where all of it together is less than a tenth of what is too much.
    let mut demanded = traced(&rates[..2]);
    demanded.classes.values_mut().for_each(|entry| entry.order.must = true);
    assert_eq!(keep(&mut demanded, &tick), []);
    let mut demanded = traced(&rates);
    demanded.classes.values_mut().for_each(|entry| entry.order.must = true);
    // 4.8 of 30: what is left has to be 2.8 at least.
    assert_eq!(keep(&mut demanded, &tick)[..2], [off(0), off(2)]);
    assert_eq!(demanded.classes.values().filter(|e| e.mode == Mode::Traced).count(), 3);
}

#[test]
fn what_goes_on_for_a_second_asks_for_a_plan() {
    // After so many ms of spending so much, half of it by a class, while there are tokens.
    let asked = |class: f64, other_cost: f64, ms: u64| {
        let mut controller = traced(&[class]);
        let mut actions = Vec::new();
        for now_ns in [10 * S, 10 * S + ms * 1_000_000] {
            let tick = Tick { now_ns, tokens_ns: 3e6, other_cost, ..dry(&[]) };
            actions.extend(keep(&mut controller, &tick));
        }
        !actions.is_empty()
    };
    assert!(!asked(11_000.0, 0.010, 1_000) && asked(11_000.0, 0.010, 1_001));
    // A hundredth of the income is not worth a plan.
    assert!(!asked(10_199.0, 0.010, 2_000) && asked(10_201.0, 0.010, 2_000));
    // Classes that take a tenth of what is too much, and a hundredth of the income, are a part of it.
    assert!(!asked(999.0, 0.0290, 2_000) && asked(1_112.0, 0.0300, 2_000));
    assert!(!asked(199.0, 0.0211, 2_000) && asked(201.0, 0.0211, 2_000));
}

#[test]
fn an_overspending_that_stops_is_forgotten() {
    let mut controller = traced(&[11_000.0]);
    let mut asked = Vec::new();
    for (ms, other_cost) in [(0, 0.010), (900, 0.008), (1_000, 0.010), (1_900, 0.010), (2_001, 0.010)] {
        let now_ns = 10 * S + ms * 1_000_000;
        asked.push(keep(&mut controller, &Tick { now_ns, tokens_ns: 3e6, other_cost, ..dry(&[]) }).len());
    }
    assert_eq!(asked, [0, 0, 0, 0, 1]);
}

#[test]
fn overspending_lasts_as_long_as_the_policy_says() {
    let mut controller = traced(&[11_000.0]);
    controller.config.drift_s = 2.0;
    let mut asked = Vec::new();
    for ns in [0, 2 * S, 2 * S + 1] {
        let tick = Tick { now_ns: 10 * S + ns, tokens_ns: 3e6, other_cost: 0.010, ..dry(&[]) };
        asked.push(keep(&mut controller, &tick).len());
    }
    assert_eq!(asked, [0, 0, 1]);
}
