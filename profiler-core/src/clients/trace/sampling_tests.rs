//! Samples at a rate that was asked for, and budgets that are too small for what must be traced.

use super::planning::make;
use super::planning_tests::{
    BOTH, known, ledger, ledger_of, named, plan_with, rates, settings, traced, view,
};
use super::problem::{Known, Settings};
use super::rate::{Rate, Rates};
use crate::class::ClassId;
use crate::controller::PlanShares;
use crate::ledger::Ledger;
use crate::plan::{Objective, PlanError, Range};
use crate::run::arbiter::Claims;
use crate::run::view::View;

/// A run that begins while the target's threads switch all the time is not refused for the rate of its samples, nor do these leave nothing for what was named.
#[test]
fn a_rate_that_the_budget_does_not_pay_for_is_what_named_functions_leave_and_half_at_the_least() {
    let mut view = view(vec![named(0)]);
    view.samples.price_s = 1e-3;
    let hz = |view: &View, rate_hz: f64, shares: PlanShares, objective: Objective| {
        let settings = Settings { fixed_rate_hz: Some(rate_hz), objective, ..settings() };
        let (ledger, claims, rates) =
            (ledger(), Claims::default(), [(ClassId(0), Rate::seen(3_000.0, 1_000_000))]);
        let known = Known { shares, ..known(view, &["f0"], &ledger, &claims, &settings) };
        let planned = make(&known, &rates.into_iter().collect(), 3).unwrap();
        (planned.plan.sampling_hz, traced(&planned).len())
    };
    for objective in BOTH {
        // 16.2 and 18 ms/s, a tenth of which is for bursts with the first of them; the function takes 3, and 3.9 at its most.
        let room = if objective == Objective::Information { 16.2 } else { 18.0 };
        for asked in [room - 4.0, room - 1.0, room + 1.0, 250.0] {
            let (rate, traced) = hz(&view, asked, PlanShares::FIRST, objective);
            assert!((rate - asked.min(room - 3.9)).abs() < 0.2 && traced == 1, "{asked}: {rate} {traced}");
        }
        // With more of the budget there are more samples, and the function stays.
        let (first, then) =
            (hz(&view, 17.0, PlanShares::FIRST, objective), hz(&view, 17.0, PlanShares::MOST, objective));
        assert!(then.0 > first.0 && then.1 == 1, "{first:?} {then:?}");
    }
    let fixed = Settings { fixed_rate_hz: Some(250.0), ..settings() };
    // A function that is too dear has bursts: half is for them.
    let planned = plan_with(&view, &rates(&[1e6]), &fixed, None);
    assert!((planned.plan.sampling_hz - 8.1).abs() < 1e-6, "{}", planned.plan.sampling_hz);
    // What must be traced comes first.
    view.classes[0].traits.must = true;
    let planned = plan_with(&view, &rates(&[10_000.0]), &fixed, None);
    assert!((planned.plan.sampling_hz - 6.2).abs() < 1e-6, "{}", planned.plan.sampling_hz);
    let (ledger, claims) = (ledger(), Claims { switches: 1.0, ..Claims::default() });
    view.classes[0].traits.must = false;
    let known = known(&view, &["f0"], &ledger, &claims, &fixed);
    assert_eq!(make(&known, &rates(&[1e6]), 3).unwrap().plan.sampling_hz.max(1e-3), 1e-3);
}

/// With the budget that the error names a plan is made, and with less there is none.
#[test]
fn the_least_budget_of_a_run_has_what_is_taken_off_before_the_plan() {
    let mut view = view(vec![named(0)]);
    view.classes[0].traits.must = true;
    let claims = Claims { switches: 4e-3, ..Claims::default() };
    let (tight, rates) = (ledger(), rates(&[20_000.0]));
    let all = [Some(250.0), None].into_iter().flat_map(|hz| BOTH.map(|objective| (hz, objective)));
    for ((fixed_rate_hz, objective), operations) in all.flat_map(|of| [(of, false), (of, true)]) {
        let settings = Settings { fixed_rate_hz, objective, ..settings() };
        let made = |ledger: &Ledger| {
            make(&Known { operations, ..known(&view, &["f0"], ledger, &claims, &settings) }, &rates, 3)
        };
        let error = made(&tight).unwrap_err();
        let PlanError::Infeasible { needed, budget, .. } = error else { panic!("{error}") };
        assert!((budget - 0.02).abs() < 1e-12, "{budget}");
        let with = |factor: f64| made(&ledger_of(needed * factor)).map(|planned| traced(&planned));
        assert_eq!(with(1.0001).unwrap(), [0], "{needed} {objective:?} {operations}");
        assert!(with(0.999).is_err(), "{needed} {objective:?} {operations}");
        let text = error.to_string();
        assert!(text.contains("the must-trace classes") && text.contains("and the reserve take"), "{text}");
    }
}

/// Events per CPU stay for good, and others pay for them at whatever rate comes later.
#[test]
fn no_rate_has_others_pay_more_than_they_may() {
    let mut view = view(vec![named(0)]);
    (view.samples.price_s, view.samples.per_cpu) = (1e-5, true);
    (view.target.cpus, view.target.own_cpu) = (4, 1.0);
    let ledger = ledger_of(0.5);
    let hz = |view: &View, fixed_rate_hz: Option<f64>| {
        let (settings, claims) = (Settings { fixed_rate_hz, ..settings() }, Claims::default());
        let known = known(view, &["f0"], &ledger, &claims, &settings);
        make(&known, &rates(&[100.0]), 3).unwrap().plan.sampling_hz
    };
    // 4 % of a CPU for samples of 10 us on three others.
    let most = 0.04 / (3.0 * 1e-5);
    assert!((hz(&view, Some(5_000.0)) - most).abs() < 1e-3, "{}", hz(&view, Some(5_000.0)));
    assert!(hz(&view, Some(900.0)) > 899.9 && hz(&view, None) < 200.0);
    view.target.cpus = 1;
    assert!(hz(&view, Some(5_000.0)) > 4_999.0, "there is no other CPU");
}

/// While nobody knows how often a named function is called half is for it, or the plan after its first window would have no room.
#[test]
fn a_named_function_of_unknown_rate_is_left_half() {
    let mut view = view(vec![named(0)]);
    view.samples.price_s = 1e-3;
    let fixed = Settings { fixed_rate_hz: Some(250.0), ..settings() };
    let planned = plan_with(&view, &Rates::new(), &fixed, None);
    assert!((planned.plan.sampling_hz - 8.1).abs() < 1e-6, "{}", planned.plan.sampling_hz);
}

/// Errors of chance add by squares: a hundred functions that were never called leave room for samples, and have theirs.
#[test]
fn functions_that_were_never_called_do_not_halve_the_rate() {
    let mut view = view((0..100).map(named).collect());
    view.samples.price_s = 1e-3;
    let names: Vec<String> = (0..100).map(|i| format!("f{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let never = Rate { hz: Range { value: 10.0, low: 0.0, high: 150.0 }, ..Rate::seen(10.0, 0) };
    let rates = (0..100).map(|id| (ClassId(id), never)).collect();
    let settings = Settings { fixed_rate_hz: Some(12.0), ..settings() };
    let (ledger, claims) = (ledger(), Claims::default());
    let known = known(&view, &names, &ledger, &claims, &settings);
    let planned = make(&known, &rates, 3).unwrap();
    assert!(planned.plan.sampling_hz > 11.9, "{}", planned.plan.sampling_hz);
    assert_eq!(traced(&planned).len(), 100);
}
