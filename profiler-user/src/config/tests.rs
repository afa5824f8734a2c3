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
