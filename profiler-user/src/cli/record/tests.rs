//! What the command line makes of a run.

use super::*;
use crate::cli::{Cli, Command, PlanArgs};
use clap::Parser;
use profiler_core::adapt::PolicyKind;

fn command(line: &[&str]) -> Command {
    Cli::try_parse_from(["tithe"].iter().chain(line)).unwrap().command
}

fn record(options: &[&str]) -> Result<RunConfig, Failure> {
    match command(&[&["record"], options].concat()) {
        Command::Record(args) => RunConfig::try_from(&*args),
        other => panic!("{other:?}"),
    }
}

fn plan(options: &[&str]) -> PlanArgs {
    match command(&[&["plan"], options].concat()) {
        Command::Plan(args) => *args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_options_the_command_line_gives_the_defaults() {
    let default = RunConfig::new(TargetConfig::Process(12));
    assert_eq!(record(&["--pid", "12"]).unwrap(), default);
    assert_eq!(RunConfig::try_from(&plan(&["--pid", "12"])).unwrap(), default);
    let words = vec!["ls".to_owned(), "-l".to_owned()];
    let default = RunConfig::new(TargetConfig::Command { words, as_root: false });
    assert_eq!(record(&["--", "ls", "-l"]).unwrap(), default);
}

#[test]
fn every_option_changes_its_own_field() {
    type Change = fn(&mut RunConfig);
    let cases: &[(&[&str], Change)] = &[
        (&["--budget", "5ms/s"], |c| c.cost.budget = OverheadBudget::CpuPerSecond(0.005)),
        (&["--duration", "30s"], |c| c.duration = Some(Duration::from_secs(30))),
        (&["--thread-budget", "4%"], |c| c.cost.thread_share = Some(0.04)),
        (&["--output", "x.tithe"], |c| c.output.path = Some("x.tithe".into())),
        (&["--force"], |c| c.output.replace = true),
        (&["--verbose"], |c| c.output.verbose = true),
        (&["--trace", "f*"], |c| c.functions.trace.push("f*".to_owned())),
        (&["--never", "f*"], |c| c.functions.never.push("f*".to_owned())),
        (&["--count", "f*"], |c| c.functions.count.push("f*".to_owned())),
        (&["--latency", "f*"], |c| c.functions.latency.push("f*".to_owned())),
        (&["--record", "f*"], |c| c.functions.record.extend("f*".parse())),
        (&["--record", "f*:arg1"], |c| c.functions.record.extend("f*:arg1".parse())),
        (&["--word", "f:n=arg0->8:int"], |c| c.words.extend("f:n=arg0->8:int".parse())),
        (&["--weight", "f*=2"], |c| c.functions.weight.push(("f*".to_owned(), 2.0))),
        (&["--return-links", "f*"], |c| c.functions.return_links.push("f*".to_owned())),
        (&["--discover", "7"], |c| c.functions.discover = 7),
        (&["--agent-cpu", "5%"], |c| c.cost.agent_cpu = 0.05),
        (&["--objective", "information"], |c| c.objective = Objective::Information),
        (&["--sample-rate", "99"], |c| c.sampling_hz = Some(99.0)),
        (&["--progress", "none"], |c| c.overhead.progress = Some(ProgressSpec::Off)),
        (&["--model", "f*"], |c| c.models.patterns.push("f*".to_owned())),
        (&["--input", "f:n=arg1:size"], |c| c.models.inputs.extend("f:n=arg1:size".parse())),
        (&["--datapoints", "7"], |c| c.models.datapoints = Some(7)),
        (&["--expect", "a.tithe"], |c| c.models.expect = Some("a.tithe".into())),
        (&["--no-ab"], |c| c.overhead.is_measured = false),
        (&["--no-expedite"], |c| c.cost.expedite = false),
        (&["--kernel-memory", "8MiB"], |c| c.cost.kernel_memory_bytes = 8 << 20),
        (&["--force-tier", "C"], |c| c.experiments.forced_tier = Some(Tier::C)),
        (&["--only-named"], |c| c.experiments.only_named = true),
        // How the report is shown is no part of the run.
        (&["--format", "json"], |_| ()),
        (&["--rows", "3"], |_| ()),
    ];
    for (options, change) in cases {
        let mut expected = RunConfig::new(TargetConfig::Process(12));
        change(&mut expected);
        let line = [&["--pid", "12"], *options].concat();
        assert_eq!(record(&line).unwrap(), expected, "{options:?}");
    }
    let as_root = record(&["--as-root", "--", "ls"]).unwrap().target;
    assert_eq!(as_root, TargetConfig::Command { words: vec!["ls".to_owned()], as_root: true });
}

#[test]
fn options_of_operations_change_their_own_fields() {
    type Change = fn(&mut RunConfig);
    let cases: &[(&[&str], Change)] = &[
        (&[], |_| ()),
        (&["--measure", "malloc:arg0"], |c| c.operations.measure = "malloc:arg0".parse().ok()),
        (&["--detail", "f*"], |c| c.operations.detail.push("f*".to_owned())),
        (&["--policy", "uni"], |c| c.operations.policy = PolicyKind::Uni),
        (&["--adapt", "max_classes=7"], |c| c.operations.settings.max_classes = 7),
        (&["--slower", "2.5ms"], |c| c.operations.slower_ns = Some(2_500_000)),
        (&["--on-cycle", "true"], |c| c.operations.on_cycle = Some("true".to_owned())),
    ];
    for (options, change) in cases {
        let mut expected = RunConfig::new(TargetConfig::Process(12));
        expected.operations.operations.push("req=handle".parse().unwrap());
        change(&mut expected);
        let line = [&["--pid", "12", "--operation", "req=handle"], *options].concat();
        assert_eq!(record(&line).unwrap(), expected, "{options:?}");
    }
    let refused = record(&["--pid", "12", "--operation", "req=handle", "--adapt", "rate=2"]).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
    assert!(refused.to_string().starts_with("--adapt: the setting 'rate' is 2"), "{refused}");
}

#[test]
fn a_plan_of_a_process_surveys_what_was_asked() {
    let mut expected = RunConfig::new(TargetConfig::Process(12));
    expected.cost.budget = OverheadBudget::Share(0.05);
    expected.cost.expedite = false;
    expected.functions.trace.push("f*".to_owned());
    let args = plan(&["--pid", "12", "--budget", "5%", "--no-expedite", "--trace", "f*", "--top", "2"]);
    assert_eq!(RunConfig::try_from(&args).unwrap(), expected);
    // A table has no process.
    let refused = RunConfig::try_from(&plan(&["--classes", "table.toml"])).unwrap_err();
    assert_eq!(refused.exit_code(), 2);
}
