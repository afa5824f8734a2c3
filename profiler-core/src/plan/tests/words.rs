//! What people read: reasons, tables, what-if, sensitivity.

use crate::plan::{
    BurstRules, Decision, Estimand, Objective, Options, Output, PlanClass, Problem, Range, Strategy,
    render_text, sensitivity, solve, solve_top, what_if,
};
use expect_test::expect;

fn server() -> Problem {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    problem.sampling.min_hz = 50.0;
    problem.classes = vec![
        PlanClass::new("commit", 300.0, 0.012, 0.7e-6),
        PlanClass::new("compare", 5e6, 0.35, 0.7e-6),
        PlanClass::new("checkpoint", 2.0, 0.25, 0.7e-6),
        PlanClass { must_trace: true, ..PlanClass::new("login", 10.0, 0.0001, 9.3e-6) },
        PlanClass { never_trace: true, ..PlanClass::new("unwind", 10.0, 0.001, 9.3e-6) },
        PlanClass { derived_from: Some(0), ..PlanClass::new("fsync", 300.0, 0.002, 9.3e-6) },
        PlanClass::new("parse", 20_000.0, 0.1, 0.7e-6),
    ];
    problem
}

#[test]
fn the_table_says_why() {
    let problem = server();
    let plans = solve_top(&problem, Strategy::Auto, &Options { top: 3, ..Options::default() }).unwrap();
    expect![[r#"
        plan (certified): value 20781.19, proven best; sampling 285 Hz of target CPU time; predicted cost 2% of the target's CPU time (budget 2%)

        class       decision  calls/s  on CPU  per call  weight     cost  reason
        commit      trace         300    1.2%     40 us       1   0.021%  300 events/s cost 0.021% of the target's CPU time; samples would see 3.42 of them
        login       trace          10   0.01%     10 us       1  0.0093%  must be traced; costs 0.0093% of the target's CPU time
        parse       trace         20k     10%      5 us       1     1.4%  20k events/s cost 1.4% of the target's CPU time; samples would see 28.5 of them
        fsync       derived       300    0.2%   6.67 us       1        -  its count follows from 'commit', which is traced; its time is sampled
        compare     sample         5M     35%     70 ns       1        -  too dear: tracing would cost 350% of the target's CPU time, 175 times the budget
        checkpoint  sample          2     25%    125 ms       1        -  long against the sampling period: a call takes 125 ms, a sample comes every 3.51 ms of CPU time
        unwind      sample         10    0.1%    100 us       1        -  cannot or may not be traced

        other plans, best first:
        2. value 20711.96, sampling 285 Hz: adds checkpoint; drops nothing
        3. value 20191.64, sampling 295 Hz: adds nothing; drops commit
    "#]].assert_eq(&render_text(&problem, &plans));
    let mut bursts = problem.clone();
    bursts.burst = Some(BurstRules { min_s: 0.001, cycle_s: 1.0, attach_cost_s: 20e-6 });
    let plan = solve(&bursts, Strategy::Auto, &Options::default()).unwrap();
    assert!(matches!(plan.classes[1].decision, Decision::Burst { .. }));
    expect!["too hot to trace all the time (350% of the target's CPU time): bursts in 0.5336% of the time use up the budget"]
        .assert_eq(&plan.explain(&bursts)[1].reason);
}

#[test]
fn a_precise_plan_says_which_errors_are_left() {
    let mut problem = server();
    problem.objective = Objective::Precision;
    problem.burst = Some(BurstRules { min_s: 0.001, cycle_s: 1.0, attach_cost_s: 20e-6 });
    problem.classes[2].estimand = Estimand::Total;
    let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
    let reasons: Vec<String> =
        plan.explain(&problem).into_iter().map(|e| format!("{}: {}\n", e.name, e.reason)).collect();
    expect![[r#"
        commit: every event for 0.021% of the target's CPU time; no error is left
        compare: tracing all would cost 350% of the target's CPU time; with bursts in 0.2267% of the time its mean time per call will be known to 0.1713% (standard error)
        checkpoint: every event for 1.40e-4% of the target's CPU time; no error is left
        login: must be traced; costs 0.0093% of the target's CPU time
        unwind: cannot or may not be traced; its mean time per call stays unknown
        fsync: every event for 0.279% of the target's CPU time; no error is left
        parse: tracing all would cost 1.4% of the target's CPU time; with bursts in 56.7% of the time its mean time per call will be known to 0.1129% (standard error)
    "#]].assert_eq(&reasons.concat());
}

#[test]
fn json_has_the_documented_fields() {
    let problem = server();
    let plans = solve_top(&problem, Strategy::Auto, &Options { top: 2, ..Options::default() }).unwrap();
    let json = serde_json::to_value(Output::new(&problem, &plans)).unwrap();
    let plan = &json["plans"][0];
    for field in ["value", "upper_bound", "gap", "sampling_hz", "overhead"] {
        assert!(plan[field].is_number(), "{field}");
    }
    let class = &plan["classes"][0];
    assert_eq!(class["decision"], "trace");
    for field in ["duty", "cost"] {
        assert!(class[field].is_number(), "{field}");
    }
    assert!(class["reason"].as_str().is_some_and(|r| !r.is_empty()));
    assert_eq!(json["plans"].as_array().unwrap().len(), 2);
}

#[test]
fn what_more_budget_and_more_weight_would_change() {
    let problem = server();
    let options = Options::default();
    let plan = solve(&problem, Strategy::Auto, &options).unwrap();
    let answer = what_if(&problem, &plan, Strategy::Auto, &options).unwrap();
    assert!(answer.shadow_price > 0.0);
    let double = Problem { budget: 2.0 * problem.budget, ..problem.clone() };
    let doubled = solve(&double, Strategy::Auto, &options).unwrap();
    assert_eq!(answer.double_budget_value, doubled.value);
    let mut file = Problem::from_max_frequency(
        925.0,
        54e-6,
        &[("file", 0.3, 359.0, 1.0), ("window", 0.23, 189.0, 1.0), ("others", 0.47, 630.0, 1.0)],
    );
    file.budget = 925.0 * 54e-6;
    let plan = solve(&file, Strategy::Auto, &options).unwrap();
    let answer = what_if(&file, &plan, Strategy::Auto, &options).unwrap();
    let names: Vec<&str> = answer.tenfold_weight.iter().map(|c| c.name.as_str()).collect();
    assert!(names.contains(&"file"), "{answer:?}");
    assert!(!answer.sentences(&plan).is_empty());
}

#[test]
fn sensitivity_finds_the_class_whose_rate_decides() {
    let options = Options::default();
    let mut problem = Problem::new(0.01, 1.0, 20e-6);
    // Fits the budget at its estimate, not at its upper end.
    problem.classes.push(PlanClass::new(
        "near",
        Range { value: 9_000.0, low: 5_000.0, high: 20_000.0 },
        0.1,
        1e-6,
    ));
    problem.classes.push(PlanClass::new("clear", Range { value: 10.0, low: 9.0, high: 11.0 }, 0.001, 1e-6));
    let plan = solve(&problem, Strategy::Auto, &options).unwrap();
    let answer = sensitivity(&problem, &plan, Strategy::Auto, &options, 0.01).unwrap();
    assert!(!answer.stable);
    let names: Vec<&str> = answer.decisive.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["near"]);
    assert_eq!(answer.decisive[0].at_high, Decision::Sample);
    problem.classes[0].rate_hz = Range { value: 9_000.0, low: 8_900.0, high: 9_100.0 };
    let plan = solve(&problem, Strategy::Auto, &options).unwrap();
    assert!(sensitivity(&problem, &plan, Strategy::Auto, &options, 0.01).unwrap().stable);
}
