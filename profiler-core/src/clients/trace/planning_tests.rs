use super::planning::{Planned, make};
use super::problem::{Known, Settings};
use super::rate::{Rate, Rates};
use super::spread::Spreads;
use super::timed::TimedClasses;
use crate::burst::BurstPrices;
use crate::class::{ClassId, ExitMode, RecordKind};
use crate::controller::{ClassOrder, PlanShares};
use crate::ledger::{Ledger, Spread, ThreadBounds};
use crate::plan::{Objective, widths};
use crate::run::arbiter::{Arbiter, Claims};
use crate::run::view::{ClassView, PointsView, SamplesView, TargetView, View, plain_class};
use crate::units::OverheadBudget;
use std::sync::LazyLock;

/// Class `id`, which nobody named: a hit costs 1 us; samples show it for a tenth of the time.
pub(super) fn class(id: u32) -> ClassView {
    ClassView { samples: 10, sampled_ns: 100_000_000, ..plain_class(id, 1_000.0) }
}

/// A target that uses one CPU, with these classes; a sample costs 10 us.
pub(super) fn view(classes: Vec<ClassView>) -> View {
    View {
        now_ns: 7,
        classes,
        target: TargetView {
            cpu_ns: 1_000_000_000,
            own_cpu: 1.0,
            cpus: 4,
            working_threads: 1,
            is_held: false,
        },
        samples: SamplesView {
            n: 100,
            cpu_ns: 1_000_000_000,
            rate_hz: 99.0,
            price_s: 10e-6,
            ..SamplesView::default()
        },
        ..View::default()
    }
}

pub(super) fn settings() -> Settings {
    let prices =
        BurstPrices { attach_s: 60e-6, delay_s: 8e-3, fresh_delay_s: 100e-6, fresh_s: 5e-3, cpus: 4 };
    Settings {
        only_named: false,
        fixed_rate_hz: None,
        slow_links: false,
        links_wait: true,
        prices,
        objective: Objective::Information,
        horizon_s: 60.0,
    }
}

/// 2 % of one CPU.
pub(super) fn ledger() -> Ledger {
    ledger_of(0.02)
}

/// This part of one CPU.
pub(super) fn ledger_of(share: f64) -> Ledger {
    let mut ledger = Ledger::new(OverheadBudget::Share(share), 0);
    for i in 1..=20 {
        ledger.close_interval(i * 100_000_000, 100_000_000);
    }
    ledger
}

/// These calls/s, seen from a thousand calls each, by id.
pub(super) fn rates(hz: &[f64]) -> Rates {
    (0..).map(ClassId).zip(hz.iter().map(|hz| Rate::seen(*hz, 1_000))).collect()
}

pub(super) fn plan_with(
    view: &View,
    rates: &Rates,
    settings: &Settings,
    bounds: Option<&ThreadBounds<'_>>,
) -> Planned {
    plan_of(view, rates, settings, bounds, &Spreads::default())
}

fn plan_of(
    view: &View,
    rates: &Rates,
    settings: &Settings,
    bounds: Option<&ThreadBounds<'_>>,
    spreads: &Spreads,
) -> Planned {
    let ledger = ledger();
    let names: Vec<String> = (0..view.classes.len()).map(|i| format!("f{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let claims = Claims::default();
    let known = Known { bounds, spreads, ..known(view, &names, &ledger, &claims, settings) };
    make(&known, rates, 3).unwrap()
}

/// What a run knows whose threads are of no interest.
pub(super) fn known<'a>(
    view: &'a View,
    names: &'a [&'a str],
    ledger: &'a Ledger,
    claims: &'a Claims,
    settings: &'a Settings,
) -> Known<'a> {
    static TIMED: LazyLock<TimedClasses> = LazyLock::new(TimedClasses::default);
    static SPREADS: LazyLock<Spreads> = LazyLock::new(Spreads::default);
    Known {
        view,
        names,
        arbiter: Arbiter::new(ledger, view.target.own_cpu),
        claims,
        operations: false,
        bounds: None,
        settings,
        shares: PlanShares::FIRST,
        timed: &TIMED,
        spreads: &SPREADS,
        hung: &[],
    }
}

/// Whatever a plan is to bring.
pub(super) const BOTH: [Objective; 2] = [Objective::Information, Objective::Precision];

fn plan(view: &View, hz: &[f64]) -> Planned {
    plan_with(view, &rates(hz), &settings(), None)
}

pub(super) fn named(id: u32) -> ClassView {
    let mut class = class(id);
    class.traits.named = true;
    class
}

pub(super) fn traced(planned: &Planned) -> Vec<u32> {
    planned.orders.iter().filter(|o| o.trace).map(|o| o.class.0).collect()
}

fn order(planned: &Planned, id: u32) -> ClassOrder {
    *planned.orders.iter().find(|o| o.class.0 == id).unwrap()
}

#[test]
fn what_was_named_is_traced_first_and_the_cheapest_of_it() {
    // Of 18 ms/s, a tenth is kept for bursts: either of the two named fits, not both; what nobody named is worth more.
    let view = view(vec![class(0), named(1), named(2)]);
    let planned = plan(&view, &[9_000.0, 11_000.0, 10_000.0]);
    assert_eq!(traced(&planned), [2]);
    assert!(order(&planned, 2).must && !order(&planned, 1).must);
    let traced_cost: f64 = planned.plan.classes.iter().filter(|c| c.burst.is_none()).map(|c| c.cost).sum();
    assert!(traced_cost <= 0.02 * 0.9 * 0.9 + 1e-12, "{:?}", planned.plan);
    assert!(planned.plan.cost <= 0.02 * 0.9 + 1e-12, "{:?}", planned.plan);
    // What does not fit is looked at in bursts.
    assert!(order(&planned, 0).burst.is_some() && order(&planned, 1).burst.is_some());
    let row = &planned.rows[1];
    assert_eq!((row.time_ns, row.plan, row.class_id, &*row.decision), (7, 3, 1, "burst"));
    assert!(row.reason.contains("bursts of at most"), "{}", row.reason);
    assert_eq!(planned.problem.classes[1].name, "f1");
}

/// 1,000 functions that were named and never called, each of which may be called 50 times a second, beside one that is called: all are counted.
#[test]
fn what_was_named_and_is_called_comes_before_what_is_not() {
    let view = view((0..1_001).map(named).collect());
    let mut known: Rates = (1..1_001).map(|id| (ClassId(id), Rate::seen(0.0, 0))).collect();
    for rate in known.values_mut() {
        rate.hz = crate::plan::Range { value: 1.0, low: 0.0, high: 50.0 };
    }
    known.insert(ClassId(0), Rate::seen(5_000.0, 1_000));
    for objective in BOTH {
        let planned = plan_with(&view, &known, &Settings { objective, ..settings() }, None);
        assert!(traced(&planned).contains(&0) && traced(&planned).len() > 900, "{}", traced(&planned).len());
    }
}

/// Requests rise by a third, and with them every function: what is demanded must bear that.
#[test]
fn rates_that_were_seen_rise_together() {
    let view = view((0..40).map(named).collect());
    let mut known: Rates = (0..40).map(|id| (ClassId(id), Rate::seen(500.0, 1_000))).collect();
    for rate in known.values_mut() {
        rate.hz = crate::plan::Range { value: 500.0, low: 350.0, high: 650.0 };
    }
    let planned = plan_with(&view, &known, &settings(), None);
    let demanded = planned.orders.iter().filter(|o| o.must).count() as f64;
    // 40 of them cost 20 ms/s at 1 us; of 18 some are kept.
    assert!(demanded > 15.0 && demanded * 650.0 * 1e-6 <= 0.018, "{demanded}");
}

#[test]
fn what_is_apart_dormant_or_refused_is_not_planned_with() {
    let mut classes: Vec<ClassView> = (0..4).map(class).collect();
    classes[0].traits.apart = true;
    classes[1].traits.dormant = true;
    classes[2].traits.refused = true;
    let view = view(classes);
    for objective in BOTH {
        let planned = plan_with(&view, &rates(&[10.0; 4]), &Settings { objective, ..settings() }, None);
        assert_eq!(planned.orders.iter().map(|o| o.class.0).collect::<Vec<_>>(), [3]);
    }
}

#[test]
fn samples_come_as_often_as_was_asked_for_or_not_at_all() {
    let mut view = view(vec![class(0)]);
    let fixed = Settings { fixed_rate_hz: Some(250.0), ..settings() };
    let planned = plan_with(&view, &rates(&[100.0]), &fixed, None);
    assert_eq!((planned.plan.sampling_hz, planned.period_ns), (250.0, 4_000_000));
    let free = plan(&view, &[100.0]);
    assert!((19.0..=199.0).contains(&free.plan.sampling_hz), "{}", free.plan.sampling_hz);
    view.samples.off = true;
    let precise = Settings { objective: Objective::Precision, ..fixed };
    assert_eq!(plan_with(&view, &rates(&[100.0]), &precise, None).period_ns, 0);
    for settings in [settings(), fixed] {
        let planned = plan_with(&view, &rates(&[100.0]), &settings, None);
        assert_eq!((planned.plan.sampling_hz, planned.period_ns), (0.0, 0));
    }
}

#[test]
fn dear_samples_leave_half_of_the_budget() {
    let mut view = view(vec![class(0)]);
    // At 19 Hz they would take 19 ms/s.
    view.samples.price_s = 1e-3;
    let planned = plan(&view, &[1e6]);
    assert!((planned.problem.sampling.min_hz - 0.5 * 16.2).abs() < 1e-9, "{:?}", planned.problem.sampling);
}

#[test]
fn unknown_rates_are_tried_first() {
    let mut view = view(vec![named(0), class(1)]);
    let planned = plan(&view, &[]);
    assert!(planned.orders.iter().all(|o| o.trial && !o.trace && o.burst.is_none()), "{:?}", planned.orders);
    assert!(planned.rows[0].reason.contains("tried in bursts first"), "{}", planned.rows[0].reason);
    // Of what must be traced nobody knows more.
    view.classes[0].traits.must = true;
    assert!(traced(&plan(&view, &[])).is_empty());
    // A rate that is none is not known.
    let none = Rates::from([(ClassId(1), Rate::seen(f64::NAN, 5))]);
    assert!(order(&plan_with(&view, &none, &settings(), None), 1).trial);
}

#[test]
fn before_a_program_runs_what_is_named_is_traced_without_a_rate() {
    let mut view = view(vec![named(0), named(1)]);
    view.target.is_held = true;
    assert_eq!(traced(&plan(&view, &[])), [0, 1]);
    view.target.is_held = false;
    for objective in BOTH {
        let only_named = Settings { only_named: true, objective, ..settings() };
        assert_eq!(traced(&plan_with(&view, &Rates::new(), &only_named, None)), [0, 1]);
        // Too hot to be traced: nothing else is to be attached.
        let hot = plan_with(&view, &rates(&[1e6, 1e6]), &only_named, None);
        assert!(hot.orders.iter().all(|o| !o.trace && o.burst.is_none()), "{:?}", hot.orders);
    }
}

#[test]
fn slow_links_are_neither_tried_nor_opened_for_bursts() {
    let view = view(vec![named(0), named(1), class(2)]);
    let known = Rates::from([(ClassId(1), Rate::seen(1e6, 1_000))]);
    for objective in BOTH {
        let slow = Settings { slow_links: true, objective, ..settings() };
        let planned = plan_with(&view, &known, &slow, None);
        // What was named is traced under its quota, what is too dear is left to the samples.
        assert_eq!(traced(&planned), [0]);
        assert!(planned.orders.iter().all(|o| !o.trial && o.burst.is_none()), "{:?}", planned.orders);
        assert_eq!(planned.bursts, 0.0);
        // Nothing is kept for bursts either.
        assert!((planned.problem.budget - 0.018).abs() < 1e-12, "{}", planned.problem.budget);
    }
}

#[test]
fn what_one_thread_cannot_bear_is_not_traced() {
    let mut spread = Spread::default();
    spread.note(ClassId(0), 1.0, &[(7, 1_000)]);
    spread.note(ClassId(1), 1.0, &[(8, 1_000)]);
    // Thread 7 may lose 1 ms/s, thread 8 40.
    let bounds = ThreadBounds::new(&spread, &[(7, 0.025, 0.0), (8, 1.0, 0.0)], 0.04);
    let mut view = view(vec![named(0), named(1)]);
    let planned = plan_with(&view, &rates(&[5_000.0, 5_000.0]), &settings(), Some(&bounds));
    assert_eq!(traced(&planned), [1]);
    let reason = &planned.rows[0].reason;
    assert!(reason.contains("more from thread 7 than that may lose"), "{reason}");
    // Its rate is known, and bursts are small and rare enough for that thread.
    let burst = order(&planned, 0).burst.unwrap();
    assert!(burst.cost_per_s() <= 0.001 * 1.001, "{burst:?}");
    // What the user demands is traced all the same.
    view.classes[0].traits.must = true;
    let planned = plan_with(&view, &rates(&[5_000.0, 5_000.0]), &settings(), Some(&bounds));
    assert_eq!(traced(&planned), [0, 1]);
}

/// A class whose durations were asked for by name.
fn timed(id: u32, hit_ns: f64) -> ClassView {
    let mut class = ClassView { samples: 10, sampled_ns: 100_000_000, ..plain_class(id, hit_ns) };
    class.traits.named = true;
    (class.traits.kind, class.traits.exit) = (RecordKind::Latency, ExitMode::ExitSites);
    class
}

#[test]
fn room_is_kept_for_bursts_of_durations_that_were_asked_for_and_said_beside_the_budget() {
    let both = view(vec![timed(0, 1_000.0), class(1)]);
    // Class 0 would take 100 ms/s, class 1 takes 12 of the 16.2 that there are.
    let planned = plan(&both, &[100_000.0, 12_000.0]);
    let problem = &planned.problem;
    assert!((problem.budget - 0.018).abs() < 1e-12, "{}", problem.budget);
    // A tenth for bursts of any class, half of what samples leave for those of the first.
    assert!(problem.kept > 0.0018 + 0.4 * 0.0162 && problem.kept < 0.0018 + 0.5 * 0.0162, "{}", problem.kept);
    let split: f64 = planned.plan.classes.iter().filter(|c| c.burst.is_none()).map(|c| c.cost).sum();
    assert!(split <= problem.room() + 1e-12, "{:?}", planned.plan);
    assert!(order(&planned, 0).burst.is_some());
    let reason = &planned.rows[1].reason;
    assert!(reason.contains("is kept for bursts"), "{reason}");
    let table = crate::plan::table::to_toml(problem);
    assert!(table.contains("kept_for_bursts_cpu = 9"), "{table}");
    assert_eq!(crate::plan::table::parse(&table).unwrap().problem.kept, problem.kept);
    // A hit of 10 ms: no burst would fit, and nothing is kept.
    let dear = view(vec![timed(0, 1e7), class(1)]);
    let planned = plan(&dear, &[100_000.0, 12_000.0]);
    assert_eq!((order(&planned, 0).burst, traced(&planned)), (None, vec![1]));
    assert!((planned.problem.kept - 0.0018).abs() < 1e-12, "{}", planned.problem.kept);
}

#[test]
fn room_is_kept_for_bursts_of_what_one_thread_cannot_bear() {
    let mut spread = Spread::default();
    spread.note(ClassId(0), 1.0, &[(7, 1_000)]);
    // All of its calls would take 5 ms/s of thread 7, which may lose 1.
    let bounds = ThreadBounds::new(&spread, &[(7, 0.025, 0.0)], 0.04);
    let view = view(vec![timed(0, 1_000.0), class(1)]);
    let planned = plan_with(&view, &rates(&[5_000.0, 9_000.0]), &settings(), Some(&bounds));
    assert!(!traced(&planned).contains(&0) && order(&planned, 0).burst.is_some(), "{:?}", planned.orders);
    assert!(planned.problem.kept > 0.0018, "{:?}", planned.problem);
}

/// Forty functions of one thread, which can bear none: they are not left out one plan at a time.
#[test]
fn what_a_thread_cannot_bear_is_left_out_together() {
    let mut spread = Spread::default();
    (0..40).for_each(|i| spread.note(ClassId(i), 1.0, &[(7, 1_000)]));
    let bounds = ThreadBounds::new(&spread, &[(7, 0.025, 0.0)], 0.04);
    let view = view((0..40).map(class).collect());
    let planned = plan_with(&view, &rates(&[2_000.0; 40]), &settings(), Some(&bounds));
    let left_out =
        planned.rows.iter().filter(|row| row.reason.contains("would take more from thread 7")).count();
    assert!((9..=32).contains(&left_out), "{left_out}");
}

/// A model is made of it: with as many data points as are wanted it is recorded no more often than keeps it so, and the rest of the budget goes to others.
#[test]
fn a_function_that_has_its_data_points_is_bounded_and_others_get_what_it_leaves() {
    for objective in BOTH {
        let settings = Settings { objective, ..settings() };
        let planned = |least| {
            let mut hot = timed(0, 1_000.0);
            hot.points = PointsView { wanted: 200, decades: 3, least, shared_hz: 0.0 };
            plan_with(&view(vec![hot, class(1)]), &rates(&[20_000.0, 20_000.0]), &settings, None)
        };
        let (before, after) = (planned(199), planned(200));
        let duty =
            |planned: &Planned, id: u32| planned.plan.classes[id as usize].burst.map_or(0.0, |b| b.duty);
        // 600 of 200,000 calls in 10 s.
        assert!(duty(&before, 0) > 0.01, "{objective:?}: {:?}", before.plan);
        let bounded = duty(&after, 0);
        assert!(bounded > 0.0 && bounded <= 0.003 * 1.0001, "{objective:?}: {bounded}");
        assert!(!order(&after, 0).trace && after.plan.classes[1].cost >= before.plan.classes[1].cost);
        assert!(after.rows[0].reason.contains("data points"), "{}", after.rows[0].reason);
    }
}

/// Two functions of a group are recorded as often, one that is called twenty times as often as the other, and one outside of it is not. The budget stands
/// above that.
#[test]
fn functions_of_a_group_have_one_frequency_and_the_budget_stands_above_it() {
    for objective in BOTH {
        let settings = Settings { objective, ..settings() };
        let rates = [20_000.0, 1_000.0, 20_000.0];
        let planned = |hz: [f64; 3]| {
            let classes = (0..3).map(|i| {
                let mut class = timed(i, 1_000.0);
                class.points = PointsView { shared_hz: hz[i as usize], ..PointsView::default() };
                class
            });
            plan_with(&view(classes.collect()), &self::rates(&rates), &settings, None)
        };
        let hz = |planned: &Planned, i: usize| {
            let class = &planned.plan.classes[i];
            assert!(!planned.orders.iter().any(|o| o.class.0 == i as u32 && o.trace), "{objective:?}: {i}");
            class.burst.map_or(0.0, |b| b.duty) * rates[i]
        };
        let small = planned([20.0, 20.0, 5.0]);
        for (i, most) in [20.0, 20.0, 5.0].into_iter().enumerate() {
            let own = hz(&small, i);
            assert!(own > 0.9 * most && own <= 1.0001 * most, "{objective:?}: {own} of {most}");
            assert!(small.rows[i].reason.contains("shares"), "{}", small.rows[i].reason);
        }
        // More than the budget pays for.
        let large = planned([9_000.0, 400.0, 9_000.0]);
        let cost: f64 = large.plan.classes.iter().map(|c| c.cost).sum();
        assert!(cost <= large.problem.budget && hz(&large, 0) < 8_000.0, "{objective:?}: {:?}", large.plan);
    }
}

/// The widths that plans are made for hold in simulated runs, also where windows are unlike in another way than they usually are.
#[test]
fn learned_spreads_make_true_widths() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    let precise = Settings { objective: Objective::Precision, ..settings() };
    let hot = view(vec![class(0)]);
    let mut random = StdRng::seed_from_u64(1);
    for truth in [0.05, 0.25, 1.0f64] {
        let sigma = (1.0 + truth * truth).ln().sqrt();
        let factor = |random: &mut StdRng| {
            let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
            (sigma * normal - 0.5 * sigma * sigma).exp()
        };
        let mut spreads = Spreads::default();
        for _ in 0..300 {
            // A window of 20 ms, which differs as brief ones do as well.
            let brief = 1.0 + 0.05f64.sqrt() * 12f64.sqrt() * (random.random::<f64>() - 0.5);
            let hits = (20_000.0 * factor(&mut random) * brief) as u64;
            spreads.note(ClassId(0), hits, (0.02, 0.0), 1.0, false);
        }
        let planned = plan_of(&hot, &rates(&[1e6]), &precise, None, &spreads);
        let width = widths(&planned.problem, &planned.plan)[0];
        let burst = planned.plan.classes[0].burst.unwrap();
        let n = (60e9 / burst.every_ns as f64) as usize;
        let brief = (1e-3 * n as f64 / (60.0 * burst.duty)).sqrt();
        // Means of as many windows as planned, many times: half of the interval that holds 95 %.
        let mut means: Vec<f64> = (0..400)
            .map(|_| {
                let one = |random: &mut StdRng| {
                    factor(random) * (1.0 + brief * 12f64.sqrt() * (random.random::<f64>() - 0.5))
                };
                (0..n).map(|_| one(&mut random)).sum::<f64>() / n as f64
            })
            .collect();
        means.sort_by(f64::total_cmp);
        let real = (means[389] - means[10]) / 2.0;
        assert!((0.75..1.4).contains(&(width / real)), "{truth}: {width} planned, {real} real, of {n}");
    }
}

/// Two functions whose hits hide their rates hang on the third, which a fifth of their weight is added to; the fourth has its own alone.
#[test]
fn a_reference_is_watched_for_the_functions_that_hang_on_it() {
    let mut seen = view((0..4).map(class).collect());
    seen.classes[1].sampled_ns *= 3;
    let hz = [2e6, 2e6, 2e4, 2e4];
    let hung = [(ClassId(0), ClassId(2)), (ClassId(1), ClassId(2))];
    let (ledger, claims) = (ledger_of(0.003), Claims::default());
    let weights = |settings: &Settings, hung: &[(ClassId, ClassId)]| {
        let known = Known { hung, ..known(&seen, &["f0", "f1", "f2", "f3"], &ledger, &claims, settings) };
        known.problem(&rates(&hz)).0.classes.iter().map(|class| class.weight).collect::<Vec<f64>>()
    };
    let precise = Settings { objective: Objective::Precision, ..settings() };
    let [a, b, reference, other] = weights(&precise, &hung)[..] else { panic!("four") };
    assert!((a, b, other) == (1.0, 1.0, 1.0) && (reference - 1.8).abs() < 1e-9, "{reference}");
    assert_eq!(weights(&precise, &[]), [1.0; 4]);
    assert_eq!(weights(&settings(), &hung), [1.0; 4], "information is of calls");
    // It has more of the budget's time.
    let duty = |hung: &[(ClassId, ClassId)]| {
        let known = Known { hung, ..known(&seen, &["f0", "f1", "f2", "f3"], &ledger, &claims, &precise) };
        let planned = make(&known, &rates(&hz), 1).unwrap();
        planned.plan.classes[2].burst.map_or(0.0, |burst| burst.duty)
    };
    let (with, without) = (duty(&hung), duty(&[]));
    assert!(with > 1.3 * without && without > 0.0, "{with} instead of {without}");
}
