//! Runs that are described without a command line, as far as they go without root.

use super::*;
use crate::agent::launch::hold_target;
use crate::agent::words::WordLists;
use crate::config::RecordSpec;
use crate::inspect::WantedArguments;
use profiler_core::class::RecordKind;

/// A run that watches this process.
fn of_this_process() -> RunConfig {
    RunConfig::new(TargetConfig::Process(std::process::id()))
}

#[test]
fn a_run_made_by_hand_is_prepared_up_to_the_kernel() {
    let mut config = of_this_process();
    config.functions.count.push("*a_run_made_by_hand*".to_owned());
    config.functions.weight.push(("*by_hand*".to_owned(), 3.0));
    config.operations.operations = vec!["req=handle".parse().unwrap(), "io=syscall:fsync".parse().unwrap()];
    config.operations.settings.max_classes = 50;
    config.cost.kernel_memory_bytes = 32 << 20;
    config.experiments.forced_tier = Some(Tier::B);

    let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    let mut selection = Selection::new(&config.functions, WordLists::default()).unwrap();
    assert!(selection.names_any() && selection.discover() == 40);
    let named = selection.named(&inspection);
    assert!(!named.is_empty(), "{:?}", selection.unmatched());
    let wish = selection.wish(&named[0]).unwrap();
    assert_eq!((wish.weight, wish.must, wish.named), (3.0, false, true));
    assert!(matches!(Wanted::named(&config, &inspection), Ok(Wanted::Auto)));

    let options = kernel_options(&config, &WordLists::default()).unwrap();
    assert_eq!((options.forced_tier, options.kernel_memory_bytes), (Some(Tier::B), 32 << 20));
    // Two operations, each with its own class and `(other)`.
    assert_eq!((options.operation_classes, options.operations_ring_bytes), (2 * (50 + 2), 1 << 20));
    assert_eq!(
        link_kinds(&config.operations.operations),
        [LinkKind::OperationExits, LinkKind::OperationReturn]
    );
}

/// The agent does not watch itself.
#[test]
fn a_running_process_is_held() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let held = hold_target(&TargetConfig::Process(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(u32::try_from(held.unwrap().target().pid()).unwrap(), child.id());
    assert_eq!(hold_target(&of_this_process().target).err().map(|failure| failure.exit_code()), Some(3));
}

#[test]
fn a_run_without_operations_takes_no_room_for_them() {
    let options = kernel_options(&of_this_process(), &WordLists::default()).unwrap();
    let defaults = KernelOptions::default();
    assert_eq!(
        (options.operation_classes, options.operations_ring_bytes),
        (defaults.operation_classes, defaults.operations_ring_bytes)
    );
    assert_eq!(options.kernel_memory_bytes, defaults.kernel_memory_bytes);
}

/// A turn that finds room hands over all that full rings hold: nothing of it may be refused, or rows would be lost that nothing marks.
#[test]
fn the_queue_has_room_for_full_rings() {
    use profiler_common::event::CallRecord;
    use profiler_common::operation::OperationRecord;
    use profiler_common::words::{TakenWord, TakingHeader};
    use profiler_core::recording::{EventRow, OperationRow, WordRow};

    let mut config = of_this_process();
    config.functions.record.push(RecordSpec { pattern: "*".to_owned(), arguments: 0, for_models: false });
    config.operations.operations = vec!["req=handle".parse().unwrap()];
    config.operations.calls.push("*".to_owned());
    let mut options = kernel_options(&config, &WordLists::default()).unwrap();
    // A word of this one takes one; the ring is as large for any.
    options.takings_ring_bytes = TAKINGS_RING_BYTES;
    assert!(options.events_ring_bytes > 4096 && options.steps_ring_bytes > 4096);

    /// `BPF_RINGBUF_HDR_SZ` (include/uapi/linux/bpf.h): before each record.
    const HEADER: usize = 8;
    let rows = |ring: u32, record: usize, row: usize| ring as usize / (HEADER + record) * row;
    let words = |n: usize| {
        rows(
            options.takings_ring_bytes,
            size_of::<TakingHeader>() + n * size_of::<TakenWord>(),
            n * size_of::<WordRow>(),
        )
    };
    let turn = rows(options.events_ring_bytes, size_of::<CallRecord>(), size_of::<EventRow>())
        + rows(options.operations_ring_bytes, size_of::<OperationRecord>(), size_of::<OperationRow>())
        + steps::DRAIN_BYTES
        + (1..=64).map(words).max().unwrap();
    let writer = WriterOptions::default();
    assert!(writer.room_bytes + turn <= writer.queue_bytes, "a turn takes {turn} bytes");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_attached() {
    let code = |result: Result<(), Failure>| result.map_or_else(|failure| failure.exit_code(), |()| 0);
    let nothing = TargetConfig::Command { words: Vec::new(), as_root: true };
    assert_eq!(code(hold_target(&nothing).map(drop)), 2);
    // Process IDs end at 2^22.
    assert_eq!(code(hold_target(&TargetConfig::Process(u32::MAX)).map(drop)), 3);

    let mut config = of_this_process();
    config.operations.operations = vec!["req=handle".parse().unwrap(); 3];
    config.operations.settings.max_classes = 40_000;
    let refused = kernel_options(&config, &WordLists::default()).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().contains("--adapt max_classes=40000 for 3 operations"), "{refused}");

    config.functions.latency.push("/(/".to_owned());
    let wrong = Selection::new(&config.functions, WordLists::default()).unwrap_err().to_string();
    assert!(wrong.starts_with("--latency '/(/'"), "{wrong}");
}

#[test]
fn the_metric_is_looked_for_unless_nothing_is_measured() {
    let mut config = of_this_process();
    let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    config.overhead.progress = Some(ProgressSpec::Variable("no_such_variable".to_owned()));
    let refused = Wanted::named(&config, &inspection).err().map(|failure| failure.to_string());
    assert!(refused.is_some_and(|why| why.starts_with("--progress: no global variable 'no_such_variable'")));
    config.overhead.is_measured = false;
    assert!(matches!(Wanted::named(&config, &inspection), Ok(Wanted::Off)));
    config.overhead = OverheadConfig::default();
    config.experiments.only_named = true;
    assert!(matches!(Wanted::named(&config, &inspection), Ok(Wanted::Off)));
    config.experiments.only_named = false;
    config.overhead.progress = Some(ProgressSpec::Off);
    assert!(matches!(Wanted::named(&config, &inspection), Ok(Wanted::Off)));
}

#[test]
fn phases_shrink_with_the_run() {
    let mut config = of_this_process();
    let phases_s = |config: &RunConfig| {
        [warmup_ns(config), first_plan_ns(config), survey_ns(config)].map(|ns| ns as f64 / 1e9)
    };
    assert_eq!(phases_s(&config), [1.5, 4.5, 3.0]);
    config.duration = Some(Duration::from_secs(2));
    assert_eq!(phases_s(&config), [0.3, 0.9, 0.6]);
    config.experiments.only_named = true;
    assert!(phases_s(&config)[0] > profiler_core::ledger::HOLD_S);
}

#[test]
fn links_wait_for_the_price_of_timing_in_long_runs_of_processes_alone() {
    let mut config = of_this_process();
    assert!(links_wait(&config), "it ends when its user says so");
    config.duration = Some(Duration::from_secs(10));
    assert!(links_wait(&config));
    config.duration = Some(Duration::from_secs(9));
    assert!(!links_wait(&config), "a second is much of it");
    let words = vec!["true".to_owned()];
    assert!(
        !links_wait(&RunConfig::new(TargetConfig::Command { words, as_root: false })),
        "it may end at once"
    );
}

#[test]
fn a_survey_for_a_plan_keeps_what_was_asked_and_measures_nothing() {
    let mut asked = of_this_process();
    asked.cost.expedite = false;
    asked.functions.trace.push("work*".to_owned());
    asked.operations.operations.push("req=handle".parse().unwrap());
    let survey = survey_only(&asked, Path::new("scratch"));
    assert_eq!(survey.output.path.as_deref(), Some(Path::new("scratch/survey")));
    assert!(!survey.overhead.is_measured && survey.operations.operations.is_empty());
    assert_eq!(
        (&survey.functions, &survey.cost, &survey.target),
        (&asked.functions, &asked.cost, &asked.target)
    );
}

#[test]
fn inputs_keep_registers_of_functions_of_models_and_record_nothing_by_themselves() {
    let mut config = of_this_process();
    config.models.patterns.push("*inputs_keep_registers*".to_owned());
    config.models.inputs.push("*inputs_keep_registers*:n=arg3,m=arg0:int".parse().unwrap());
    let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    let mut selection = Selection::new(&config.with_models().functions, WordLists::default()).unwrap();
    let named = selection.named(&inspection);
    let wish = selection.wish(&named[0]).unwrap();
    assert_eq!((wish.kind, wish.arguments), (RecordKind::Record, WantedArguments::These(0b1001)));
    assert!(wish.named && wish.by_kind);
    config.models.patterns.clear();
    let selection = Selection::new(&config.with_models().functions, WordLists::default()).unwrap();
    let wish = selection.wish(&named[0]).unwrap();
    assert_eq!((wish.kind, wish.arguments), (RecordKind::Count, WantedArguments::NONE));
    // Beside a plain --record the rest is kept as well; with one that says which, these.
    for (record, arguments) in [
        ("*inputs_keep_registers*", WantedArguments::UsedAnd(0b1001)),
        ("*inputs_keep_registers*:arg2", WantedArguments::These(0b1101)),
    ] {
        config.functions.record = vec![record.parse().unwrap()];
        let selection = Selection::new(&config.with_models().functions, WordLists::default()).unwrap();
        assert_eq!(selection.wish(&named[0]).unwrap().arguments, arguments, "{record}");
    }
    config.functions.record.clear();
    let words = WordLists::new(&["*inputs_keep_registers*:n=arg1->8".parse().unwrap()], &[]).unwrap();
    for (record, arguments) in [
        ("*inputs_keep_registers*", WantedArguments::UsedAnd(0b1011)),
        ("*inputs_keep_registers*:arg2", WantedArguments::These(0b1111)),
    ] {
        config.functions.record = vec![record.parse().unwrap()];
        let selection = Selection::new(&config.with_models().functions, words.clone()).unwrap();
        assert_eq!(selection.wish(&named[0]).unwrap().arguments, arguments, "{record}");
    }
    config.functions.record.clear();
    // A pattern that makes no sense is told with its option.
    config.models.patterns.push("lib:".to_owned());
    let error =
        Selection::new(&config.with_models().functions, WordLists::default()).unwrap_err().to_string();
    assert!(error.starts_with("--record or --model 'lib:'"), "{error}");
}

#[test]
fn what_is_named_and_not_there_is_said_once() {
    let mut config = of_this_process();
    config.functions.count.extend(["no_such_function_1".to_owned(), "*said_once*".to_owned()]);
    config.functions.latency.push("libnosuch:*".to_owned());
    let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    let mut selection = Selection::new(&config.functions, WordLists::default()).unwrap();
    assert_eq!(selection.new_unmatched(), [], "nobody has looked");
    assert!(!selection.named(&inspection).is_empty());
    let new: Vec<String> = selection.new_unmatched().into_iter().map(|(pattern, _)| pattern).collect();
    assert_eq!(new, ["libnosuch:*", "no_such_function_1"]);
    selection.named(&inspection);
    assert_eq!(selection.new_unmatched(), []);
    assert_eq!(selection.unmatched().len(), 2, "the receipt has them all the same");
}
