//! Class tables: what is read, what is refused and how, and that a written table gives the same plan.

use expect_test::{Expect, expect};
use profiler_core::plan::table::{parse, to_toml};
use profiler_core::plan::{BurstRules, Estimand, Objective, Options, Problem, Range, Strategy, solve};
use profiler_lab::problems;
use proptest::prelude::*;

const PAPER: &str = r#"
max_frequency = 925
[[class]]
name = "file"
rate_hz = 359
share = 0.30
weight = 2
[[class]]
name = "window"
rate_hz = 189
share = 0.23
[[class]]
name = "kernel"
rate_hz = 153
share = 0.09
[[class]]
name = "font"
rate_hz = 334
share = 0.11
[[class]]
name = "others"
rate_hz = 630
share = 0.27
"#;

#[test]
fn metz2005_table1_as_a_file() {
    let table = parse(PAPER).unwrap();
    assert!(!table.problem.priced);
    let plan = solve(&table.problem, Strategy::Auto, &Options::default()).unwrap();
    assert!((plan.value - 1256.48).abs() < 0.006 && (plan.sampling_hz - 43.0).abs() < 1e-6);
}

#[test]
fn every_key_arrives_in_its_unit() {
    let text = r#"
        budget = "5%"
        cpus = 4
        report_time_us = 1.5
        sample_time_us = 20
        min_sampling_hz = 10
        max_sampling_hz = 1_000
        min_burst_ms = 50
        attach_cost_us = 30
        burst_cycle_ms = 2e3
        objective = "variance"
        horizon_s = 60
        [[class]]
        name = "a"
        id = 7
        rate_hz = 1e3
        rate_low_hz = 900
        rate_high_hz = 1200
        duration_us = 40
        rho_high = 0.05
        weight = 2
        cost_us = 0.7
        detect_us = 0.1
        min_rate_hz = 5
        interruptions_hz = 3
        sigma_us = 12
        dispersion = 2
        estimand = "total"
        [[class]]
        name = "b"
        share = 0.5
        derived_from = "a"
        ratio = 2
        never_trace = true
    "#;
    let problem = parse(text).unwrap().problem;
    assert_eq!((problem.budget, problem.target_cpu, problem.sampling.price_s), (0.2, 4.0, 20e-6));
    assert_eq!((problem.sampling.min_hz, problem.sampling.max_hz), (10.0, 1000.0));
    assert_eq!(problem.burst, Some(BurstRules { min_s: 0.05, cycle_s: 2.0, attach_cost_s: 30e-6 }));
    assert_eq!((problem.objective, problem.horizon_s), (Objective::Variance, 60.0));
    let a = &problem.classes[0];
    assert_eq!((a.id, a.weight, a.tau_s, a.detect_s), (Some(7), 2.0, 0.7e-6, 0.1e-6));
    assert_eq!(a.rate_hz, Range { value: 1000.0, low: 900.0, high: 1200.0 });
    assert_eq!(a.rho, Range { value: 0.04, low: 0.04, high: 0.05 });
    assert_eq!((a.min_rate_hz, a.interruptions_hz, a.sigma_s, a.dispersion), (5.0, 3.0, Some(12e-6), 2.0));
    assert_eq!(a.estimand, Estimand::Total);
    let b = &problem.classes[1];
    assert_eq!((b.rate_hz.value, b.rho.value, b.tau_s), (2000.0, 2.0, 1.5e-6));
    assert_eq!((b.derived_from, b.never_trace), (Some(0), true));
}

fn refused(text: &str, expected: &Expect) {
    let errors = parse(text).unwrap_err();
    let lines: Vec<String> = errors.iter().map(|e| format!("{e}\n")).collect();
    expected.assert_eq(&lines.concat());
}

#[test]
fn bad_tables_are_refused_with_line_value_and_range() {
    let class = "[[class]]\nname = 'a'\nrate_hz = 1\nshare = 0.1\n";
    let with = |head: &str, tail: &str| format!("{head}\n{class}{tail}\n");
    refused(
        "",
        &expect![[r"
            line 1: budget or budget_cpu or max_frequency is missing; accepted: one of them
            line 1: sample_time_us is missing; accepted: it or report_time_us, in microseconds
            line 1: class is missing; accepted: at least one [[class]] table
        "]],
    );
    refused(
        &with("budget = '0%'\nreport_time_us = 1", ""),
        &expect![[r#"
            line 1: budget is '0%'; accepted: a share like "5%" (above 0%, at most 100%) or CPU time like "5ms/s"
        "#]],
    );
    refused(
        &with("budget = '101%'\nreport_time_us = -1", ""),
        &expect![[r#"
            line 1: budget is '101%'; accepted: a share like "5%" (above 0%, at most 100%) or CPU time like "5ms/s"
            line 2: report_time_us is -1; accepted: a number from 0 to 1e30
        "#]],
    );
    refused(
        &with("budget = '5%'\nreport_time_us = 1\ncpu = 3", "weight = nan\ncost_us = inf"),
        &expect![[r#"
            line 3: 'cpu' is no known key; accepted: budget, budget_cpu, max_frequency, cpus, report_time_us, sample_time_us, kept_for_bursts_cpu, min_sampling_hz, max_sampling_hz, min_burst_ms, attach_cost_us, burst_cycle_ms, objective, horizon_s, link_cost_us, detach_delay_us, fresh_detach_delay_us, fresh_ms, host_cpus, burst_limit_us, closest_windows_ms, most_windows_hz, shortest_window_ms, brief_windows_us, class
            line 8: class 'a': weight is nan; accepted: a number from 0 to 1e30
            line 9: class 'a': cost_us is inf; accepted: a number from 0 to 1e30
        "#]],
    );
    refused(
        &with("max_frequency = 925", "cost_us = 1\nduration_us = 3"),
        &expect![[r#"
            line 6: class 'a': cost_us is given together with max_frequency; accepted: budget instead of max_frequency
            line 7: class 'a': share and duration_us is given together; accepted: one of them
        "#]],
    );
    refused(
        &with("budget = '5%'\nmax_frequency = 925\nreport_time_us = 1", "must_trace = 1\nderived_from = 'z'"),
        &expect![[r#"
            line 2: budget and max_frequency is given together; accepted: one of them
            line 8: class 'a': must_trace is 1; accepted: true or false
            line 9: class 'a': derived_from is 'z'; accepted: the name of exactly one other class
        "#]],
    );
    refused(
        "budget = '5%'\nreport_time_us = 1\n[[class]]\nname = ''\nrate_hz = 'many'\n",
        &expect![[r#"
            line 3: class '': share or duration_us or rho is missing; accepted: one of them
            line 4: class '': name is ''; accepted: a name of at least one character
            line 5: class '': rate_hz is 'many'; accepted: a number from 0 to 1e30
        "#]],
    );
    refused(
        &with(
            "budget = '5%'\nsample_time_us = 1\nmin_sampling_hz = 9\nmax_sampling_hz = 3",
            "rate_low_hz = 2",
        ),
        &expect![[r#"
            line 4: max_sampling_hz is 3; accepted: min_sampling_hz or more
            line 5: class 'a': cost_us is missing; accepted: it or the table's report_time_us, in microseconds
            line 9: class 'a': rate_low_hz is 2; accepted: an interval that holds 1
        "#]],
    );
    refused(
        &with("budget_cpu = 1.5\nreport_time_us = 1", ""),
        &expect![[r#"
        line 1: budget_cpu is 1.5; accepted: a number above 0 and at most 1 CPU s/s: 100%
    "#]],
    );
    refused(
        &with("max_frequency = 2e6\nreport_time_us = 1", "interruptions_hz = -inf"),
        &expect![[r#"
        line 1: max_frequency is 2e6, 2 CPU s/s at report_time_us each; accepted: at most 1 CPU s/s together: 100%
        line 7: class 'a': interruptions_hz is -inf; accepted: a number from 0 to 1e30
    "#]],
    );
    refused(
        &with("max_frequency = 925\nsample_time_us = 20\nattach_cost_us = 3", "detect_us = 1"),
        &expect![[r#"
            line 2: sample_time_us is given together with max_frequency; accepted: report_time_us as well, or neither
            line 3: attach_cost_us is given together with max_frequency; accepted: report_time_us as well, or neither
            line 8: class 'a': detect_us is given together with max_frequency; accepted: report_time_us as well, or neither
        "#]],
    );
    refused(
        &with(
            "budget = 0.05\nreport_time_us = 1",
            "must_trace = true\nnever_trace = true\nestimand = 'median'\nid = 1.5",
        ),
        &expect![[r#"
            line 1: budget is 0.05; accepted: a share like "5%" (above 0%, at most 100%) or CPU time like "5ms/s"
            line 8: class 'a': must_trace and never_trace is given together; accepted: one of them
            line 9: class 'a': estimand is "median"; accepted: "mean", "total", "rate"
            line 10: class 'a': id is 1.5; accepted: a whole number below 2^32
        "#]],
    );
    refused(
        &with(
            "max_frequency = 0\ncpus = -1\nhorizon_s = 0\nmin_burst_ms = 2000",
            "ratio = 0\nname = 'twice'",
        ),
        &expect![[r#"
            line 10: the file is not TOML; accepted: duplicate key
        "#]],
    );
    refused(
        &with(
            "max_frequency = 0\ncpus = -1\nhorizon_s = 0\nmin_burst_ms = 2000",
            "ratio = 0\nsigma_us = true",
        ),
        &expect![[r#"
            line 1: max_frequency is 0; accepted: a number above 0 and at most 1e30
            line 2: cpus is -1; accepted: a number from 0 to 1e30
            line 3: horizon_s is 0; accepted: a number above 0 and at most 1e30
            line 4: min_burst_ms is 2000 ms; accepted: at most burst_cycle_ms (1000 by default)
            line 9: class 'a': ratio is 0; accepted: a number above 0 and at most 1e30
            line 10: class 'a': sigma_us is true; accepted: a number from 0 to 1e30
        "#]],
    );
    refused(
        "budget = \n",
        &expect![[r#"
            line 1: the file is not TOML; accepted: string values must be quoted, expected literal string
        "#]],
    );
}

/// What 'precision' meant once is 'variance' now.
#[test]
fn keys_that_mean_nothing_with_precision_are_refused() {
    refused(
        "budget_cpu = 0.05\nreport_time_us = 1\nobjective = 'precision'\n[[class]]\nname = 'a'\nrate_hz = 1\nshare = 0.1\n\
         estimand = 'total'\nsigma_us = 3\ndispersion = 2\n",
        &expect![[r#"
            line 8: class 'a': estimand is given with 'precision'; accepted: with objective = "variance", which is what 'precision' was once; or not at all
            line 9: class 'a': sigma_us is given with 'precision'; accepted: with objective = "variance", which is what 'precision' was once; or not at all
            line 10: class 'a': dispersion is given with 'precision'; accepted: with objective = "variance", which is what 'precision' was once; or not at all
        "#]],
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Written and read again, a problem is the same to the last bit, and so is its plan.
    #[test]
    fn a_written_table_is_the_same_problem(seed: u64, n in 1usize..12, bursts: bool) {
        let mut problem = problems::with_rules(n, seed);
        if bursts {
            problem.burst = Some(BurstRules { min_s: 0.05, cycle_s: 1.7, attach_cost_s: 13e-6 });
        }
        for (index, class) in problem.classes.iter_mut().enumerate() {
            class.name = format!("std::vec::Vec<T>::\"push\"\\{index}\n");
            class.rate_hz.high = class.rate_hz.value * 1.1;
            class.sigma_s = Some(class.rho.value / 7.0);
            class.id = u32::try_from(index).ok();
        }
        let text = to_toml(&problem);
        let again = parse(&text).map_err(|e| TestCaseError::fail(format!("{e:?}\n{text}")))?.problem;
        prop_assert_eq!(&again, &problem);
        let options = Options::default();
        prop_assert_eq!(solve(&again, Strategy::Auto, &options), solve(&problem, Strategy::Auto, &options));
    }

    /// No text makes the reader panic.
    #[test]
    fn any_text(text in "[a-z_=\\[\\]\"'0-9.e\\-\n% ]{0,80}") {
        let _ = parse(&text);
        let _ = parse(&format!("{PAPER}\n{text}"));
    }
}

#[test]
fn equal_names_are_told_apart_where_it_matters() {
    let mut problem = Problem::new(0.02, 1.0, 20e-6);
    problem.classes = problems::heavy_tailed(3, 1).classes;
    for class in &mut problem.classes {
        class.name = "f".to_owned();
    }
    problem.classes[2].derived_from = Some(1);
    let again = parse(&to_toml(&problem)).unwrap().problem;
    assert_eq!(again.classes[2].derived_from, Some(1));
}
