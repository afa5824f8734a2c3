//! Runs that are described without a command line. That it gives the same is tested in `cli`.

use super::*;

#[test]
fn a_run_has_the_defaults_that_the_documentation_names() {
    let config = RunConfig::new(TargetConfig::Process(12));
    assert_eq!(config.target, TargetConfig::Process(12));
    assert_eq!(config.cost.budget, OverheadBudget::Share(0.01));
    assert_eq!((config.cost.thread_share, config.sampling_hz, config.duration), (None, None, None));
    assert_eq!(config.cost.kernel_memory_bytes, 64 << 20);
    assert_eq!(config.functions.discover, 40);
    assert_eq!((config.overhead.is_measured, config.overhead.progress.as_ref()), (true, None));
    assert_eq!(config.operations.policy, PolicyKind::Tithe);
    assert_eq!(config.operations.settings, values::parse_settings(&[]).unwrap());
    assert!(config.cost.expedite && !config.output.replace && !config.experiments.only_named);
}

#[test]
fn what_the_kernel_side_takes_by_default_is_what_a_run_takes_by_default() {
    let options = crate::prober::KernelOptions::default();
    assert_eq!(options.kernel_memory_bytes, DEFAULT_KERNEL_MEMORY_BYTES);
}

#[test]
fn operations_are_described_by_texts_or_by_values() {
    let by_value = OperationSpec {
        text: "req=handle".to_owned(),
        name: "req".to_owned(),
        bounds: Bounds::One(Bound::Function("handle".to_owned())),
        class: None,
    };
    assert_eq!("req=handle".parse(), Ok(by_value));
    let measure = MeasureSpec { function: "malloc".to_owned(), argument: Some(0) };
    assert_eq!("malloc:arg0".parse(), Ok(measure));
    assert_eq!("var:REQUESTS".parse(), Ok(ProgressSpec::Variable("REQUESTS".to_owned())));
}

#[test]
fn values_that_no_text_has_are_refused() {
    type Change = fn(&mut RunConfig);
    let cases: &[(Change, &str)] = &[
        (|c| c.cost.budget = OverheadBudget::Share(0.0), "the budget is 0"),
        (|c| c.cost.budget = OverheadBudget::CpuPerSecond(f64::NAN), "the budget is NaN"),
        (|c| c.cost.thread_share = Some(1.5), "a thread may lose"),
        (|c| c.cost.agent_cpu = 0.0, "the agent may use"),
        (|c| c.cost.kernel_memory_bytes = 1, "kernel memory lies"),
        (|c| c.sampling_hz = Some(20_000.0), "a sampling rate"),
        (|c| c.duration = Some(Duration::ZERO), "a duration lies"),
        (|c| c.functions.weight.push(("f*".to_owned(), f64::NAN)), "a weight lies"),
        (|c| c.models.inputs.extend("f:n=arg1".parse()), "name those with --model"),
        (|c| c.operations.settings.rate = 7.0, "the setting 'rate' is 7"),
    ];
    for (change, part) in cases {
        let mut config = RunConfig::new(TargetConfig::Process(12));
        assert_eq!(config.check(), Ok(()));
        change(&mut config);
        let why = config.check().unwrap_err();
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn an_operation_made_by_hand_is_held_to_what_its_text_says() {
    let mut config = RunConfig::new(TargetConfig::Process(12));
    config.operations.operations = vec!["s=tp:task:task_newtask..tp:task:task_rename".parse().unwrap()];
    assert_eq!(config.check(), Ok(()));
    // The scheduler passes it with a run queue locked; its text is refused.
    let inside = |name: &str| Bound::Tracepoint { category: "sched".to_owned(), name: name.to_owned() };
    config.operations.operations[0].bounds = Bounds::Pair(inside("sched_switch"), inside("sched_wakeup"));
    assert!(config.check().unwrap_err().contains("is not what its text says"));
    config.operations.operations[0].text = "s=tp:sched:sched_switch..tp:sched:sched_wakeup".to_owned();
    assert!(config.check().unwrap_err().contains("is not what its text says"));
}
