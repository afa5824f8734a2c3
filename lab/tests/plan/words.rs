//! What people read: reasons, tables, what-if, sensitivity.

use expect_test::expect;
use profiler_core::plan::{
    BurstRules, Decision, Estimand, Objective, Options, Outlook, Output, PlanClass, Problem, Range, Strategy,
    outlook, render_text, sensitivity, solve, solve_top, table, what_if,
};
use profiler_lab::problems;

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
        commit      trace         300    1.2%     40 us       1   0.021%  short against the sampling period: samples would see 3.42 of 300 events/s; tracing costs 0.021% of the target's CPU time
        login       trace          10   0.01%     10 us       1  0.0093%  must be traced; costs 0.0093% of the target's CPU time
        parse       trace         20k     10%      5 us       1     1.4%  short against the sampling period: samples would see 28.5 of 20k events/s; tracing costs 1.4% of the target's CPU time
        fsync       derived       300    0.2%   6.67 us       1        -  its count follows from 'commit', which is traced; its time is sampled
        compare     sample         5M     35%     70 ns       1        -  too dear: tracing would cost 350% of the target's CPU time, 175 times the budget
        checkpoint  sample          2     25%    125 ms       1        -  long against the sampling period: a call takes 125 ms, a sample comes every 3.51 ms of CPU time
        unwind      sample         10    0.1%    100 us       1        -  cannot or may not be traced

        other plans, best first:
        2. value 20711.96, sampling 285 Hz: adds checkpoint; drops nothing
        3. value 20191.64, sampling 295 Hz: adds nothing; drops commit
    "#]].assert_eq(&render_text(&problem, &plans, &Outlook::default()));
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
    problem.objective = Objective::Variance;
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
    let json =
        serde_json::to_value(Output::new(&problem, &plans, outlook(&problem, &plans[0], Strategy::Auto)))
            .unwrap();
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
    assert!(
        json["what_if"]["shadow_price"].is_number() && json["what_if"]["double_budget_value"].is_number()
    );
    assert!(json["what_if"]["tenfold_weight"].is_array());
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
    let mut file = problems::from_max_frequency(
        925.0,
        54e-6,
        &[("file", 0.3, 359.0, 1.0), ("window", 0.23, 189.0, 1.0), ("others", 0.47, 630.0, 1.0)],
    );
    file.budget = 925.0 * 54e-6;
    let plan = solve(&file, Strategy::Auto, &options).unwrap();
    let answer = what_if(&file, &plan, Strategy::Auto, &options).unwrap();
    let names: Vec<&str> = answer.tenfold_weight.iter().map(|c| c.name.as_str()).collect();
    assert!(names.contains(&"file"), "{answer:?}");
    assert!(!answer.sentences(&file, &plan).is_empty());
}

#[test]
fn the_outlook_is_said_in_words() {
    let mut problem = server();
    problem.classes[6].rate_hz = Range { value: 20_000.0, low: 15_000.0, high: 40_000.0 };
    let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
    let said = outlook(&problem, &plan, Strategy::Auto).sentences(&problem, &plan);
    expect![[r#"
        the budget's shadow price: 300 of value for each 1% of the target's CPU time more
        twice the budget would bring 2.89% more information and change no decision
        within the intervals of rates and shares another plan may be better; it hangs on 'parse' (trace or sample; over budget)"#]].assert_eq(&said.join("\n"));
}

/// `MaxF` says how many reports fit, not what one costs: nothing is said about overheads.
#[test]
fn without_prices_costs_are_reports() {
    let text = "max_frequency = 925\n[[class]]\nname = 'file'\nrate_hz = 359\nshare = 0.3\nweight = 2\n\
                [[class]]\nname = 'kernel'\nrate_hz = 1153\nshare = 0.09\n";
    let problem = profiler_core::plan::table::parse(text).unwrap().problem;
    let plans = solve_top(&problem, Strategy::Auto, &Options { top: 2, ..Options::default() }).unwrap();
    let outlook = outlook(&problem, &plans[0], Strategy::Auto);
    expect![[r#"
        plan (certified): value 768.94, proven best; sampling 566 Hz of target CPU time; predicted cost 925 reports/s (budget 925)

        class   decision  calls/s  on CPU  per call  weight   cost  reason
        file    trace         359     30%    836 us       2  359/s  short against the sampling period: samples would see 170 of 359 events/s; tracing costs 359 reports/s
        kernel  sample       1153      9%   78.1 us       1      -  too dear: tracing would cost 1153 reports/s, 1.25 times the budget

        other plans, best first:
        2. value 638.25, sampling 925 Hz: adds nothing; drops file

        what would change it:
        - the budget's shadow price: 0.09 of value for each report per second more
        - twice the budget would bring 143% more information and change 'kernel' (sample to trace)
    "#]].assert_eq(&render_text(&problem, &plans, &outlook));
    let output = Output::new(&problem, &plans, outlook);
    assert_eq!((output.budget.round(), output.plans[0].overhead, output.priced), (925.0, None, false));
    assert_eq!(output.plans[0].classes[0].price_us, None);
    let mut dear = problem;
    dear.classes[1].must_trace = true;
    let error = solve(&dear, Strategy::Auto, &Options::default()).unwrap_err();
    expect!["the rules cost more than the budget: the must-trace classes take 1153 reports/s, the budget is 925 reports/s, 228 reports/s short; the least budget that would do is max_frequency = 1153"].assert_eq(&error.to_string());
}

#[test]
fn sensitivity_knows_the_objective_and_the_rules() {
    let options = Options::default();
    // The mean of a class that is traced whole has no error at any of its rates: the plan is the best everywhere.
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    problem.objective = Objective::Variance;
    problem.classes.push(PlanClass::new("f", Range { value: 100.0, low: 90.0, high: 110.0 }, 0.1, 1e-6));
    let plan = solve(&problem, Strategy::Auto, &options).unwrap();
    let answer = sensitivity(&problem, &plan, Strategy::Auto, &options, 0.01).unwrap();
    assert!(answer.stable && answer.regret < 1e-9, "{answer:?}");
    // Samples see the 100 events/s wanted at the estimated share, not at its lower end.
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    let class = PlanClass::new("g", 1e6, Range { value: 0.11, low: 0.05, high: 0.2 }, 1e-6);
    problem.classes.push(PlanClass { min_rate_hz: 100.0, ..class });
    problem.burst = Some(BurstRules { min_s: 0.019, cycle_s: 1.0, attach_cost_s: 10e-3 });
    let plan = solve(&problem, Strategy::Auto, &options).unwrap();
    assert_eq!(plan.classes[0].decision, Decision::Sample);
    let answer = sensitivity(&problem, &plan, Strategy::Auto, &options, 0.01).unwrap();
    assert!(!answer.stable && answer.decisive[0].name == "g", "{answer:?}");
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

#[test]
fn only_a_class_without_a_call_is_said_not_to_be_called() {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    // Bursts of a hot class that differ: its interval begins at 0 as well.
    let wide = Range { value: 900.0, low: 0.0, high: 40_000.0 };
    let class = |name: &str, hz: Range, calls: u64| PlanClass {
        calls_seen: Some(calls),
        ..PlanClass::new(name, hz, 0.001, 1e-6)
    };
    problem.classes = vec![
        class("hot", wide, 12_000),
        class("hot, too dear", Range { value: 9e5, low: 0.0, high: 4e6 }, 12_000),
        class("quiet", Range { value: 0.5, low: 0.0, high: 3.0 }, 0),
        class("quiet, too dear", Range { value: 5e4, low: 0.0, high: 3e5 }, 0),
        // Of a rate that somebody wrote down nothing is known of calls.
        PlanClass::new("given", wide, 0.001, 1e-6),
    ];
    let plan = solve(&problem, Strategy::Auto, &Options::default()).unwrap();
    let said = |problem: &Problem| -> String {
        plan.explain(problem).into_iter().map(|e| format!("{}: {}\n", e.name, e.reason)).collect()
    };
    expect![[r#"
        hot: short against the sampling period: samples would see 0.91 of 900 events/s; tracing costs 0.09% of the target's CPU time
        hot, too dear: too dear: tracing would cost 90% of the target's CPU time, 45 times the budget
        quiet: not called while it was watched, at most 3 events/s
        quiet, too dear: not called while it was watched, at most 300k events/s
        given: short against the sampling period: samples would see 0.91 of 900 events/s; tracing costs 0.09% of the target's CPU time
    "#]]
    .assert_eq(&said(&problem));
    // What is saved with a recording gives the same reasons.
    let read = table::parse(&table::to_toml(&problem)).unwrap().problem;
    assert_eq!(said(&read), said(&problem));
}
