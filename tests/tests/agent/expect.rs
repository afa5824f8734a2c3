//! Execution-time models: made of a run (`--model`), and another run held against them (`--expect`).

use super::{recording, sleep_ms, start};
use profiler_core::models::Class;
use profiler_core::recording::{ChangeKind, EventRow, ModelsMeta};
use profiler_tests::program;
use profiler_tests::support::{Agent, Finished, Target, linux_or_skip, monotonic_ns, patience};
use profiler_user::models::Models;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Functions that are to be modelled, and their inputs.
const MODEL: [&str; 4] = ["--model", "growing:grow", "--input", "grow:n=arg1:size"];
/// Calls a second.
const HZ: u64 = 500;

/// The agent on a target, writing into a recording of this name.
fn agent(target: &Target, folder: &tempfile::TempDir, name: &str, arguments: &[&str]) -> Agent {
    let all = [&["--budget", "1000ms/s", "--only-named", "--agent-cpu", "50%"], arguments].concat();
    let path = folder.path().join(name);
    let mut agent = Agent::start_command(Command::new(program("tithe")), target.pid(), &path, &all);
    agent.wait_tracing();
    agent
}

/// A recording of calls with models, and the target that goes on.
fn earlier(folder: &tempfile::TempDir) -> (Target, PathBuf) {
    earlier_of(folder, &MODEL)
}

fn earlier_of(folder: &tempfile::TempDir, model: &[&str]) -> (Target, PathBuf) {
    let mut target = Target::start("growing");
    target.command(&format!("start {HZ}"));
    let agent = agent(&target, folder, "a.tithe", model);
    sleep_ms(9_000);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    (target, path)
}

/// What a run says that is held against the models, after `act`.
fn held_against(
    target: &mut Target,
    folder: &tempfile::TempDir,
    models: &Path,
    act: impl FnOnce(&mut Agent, &mut Target),
) -> (Finished, ModelsMeta) {
    held_against_these(target, folder, (models, "1 of 1 functions have a model"), act)
}

/// The same, where it is said of the models what they are.
fn held_against_these(
    target: &mut Target,
    folder: &tempfile::TempDir,
    (models, said): (&Path, &str),
    act: impl FnOnce(&mut Agent, &mut Target),
) -> (Finished, ModelsMeta) {
    let expect = models.to_str().expect("the path is UTF-8");
    let mut agent = agent(target, folder, "b.tithe", &["--expect", expect]);
    agent.wait_message(said);
    act(&mut agent, target);
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    let meta = recording(&path).meta.models.expect("--expect was given");
    (finished, meta)
}

#[test]
fn a_delay_is_told_within_seconds_with_the_resource_and_a_clean_run_has_no_alarm() {
    let Some(folder) = start("a_delay_is_told_within_seconds_with_the_resource_and_a_clean_run_has_no_alarm")
    else {
        return;
    };
    let (mut target, path) = earlier(&folder);
    let models = Models::read(&path, &[]).expect("calls were recorded");
    let model = models.functions[0].found.as_ref().expect("16 sizes over three decades");
    // Beside other programs the times of large inputs scatter: linear is told, or not ruled out.
    let may_be_linear = model.form == Class::Linear || model.alternatives.contains(&Class::Linear);
    assert!(may_be_linear && model.critical[0].name == "n", "{:?}: {:?}", model.class, model.formula());

    let (finished, meta) = held_against(&mut target, &folder, &path, |_, _| sleep_ms(6_000));
    let said = &finished.messages;
    assert!(!said.contains("longer than expected"), "an alarm in a clean run: {said}");
    let clean = &meta.expected.expect("calls were judged").functions[0];
    assert!(clean.calls > 1_000 && clean.alarms == 0, "{clean:?}; {said}");

    let (finished, meta) = held_against(&mut target, &folder, &path, |agent, target| {
        target.command("delay 20000 10");
        agent.wait_message("longer than expected: grow");
    });
    let said = &finished.messages;
    let line = said.lines().find(|line| line.contains("longer than expected: grow")).expect("waited for");
    assert!(line.contains("n = ") && line.contains("should have taken "), "{line}");
    assert!(line.contains("off CPU, blocked ("), "{line}; {said}");
    let slow = &meta.expected.expect("calls were judged").functions[0];
    assert!(slow.alarms > 0 && slow.told > 0 && slow.beyond > 0, "{slow:?}");
}

/// Its only input is an address, which is the same in all calls.
#[test]
fn a_function_whose_inputs_say_nothing_is_held_against_all_its_calls() {
    let test = "a_function_whose_inputs_say_nothing_is_held_against_all_its_calls";
    let Some(folder) = start(test) else { return };
    if !linux_or_skip(test, (6, 9), "a descriptor of a thread that is not its process's first") {
        return;
    }
    let (mut target, path) = earlier_of(&folder, &["--model", "growing:grow", "--input", "grow:data=arg0"]);
    let of_any = (
        path.as_path(),
        "single calls are held against all recorded ones, whatever their inputs, of: grow (",
    );
    let (finished, meta) = held_against_these(&mut target, &folder, of_any, |agent, target| {
        // That half of the calls take longer may be their inputs.
        target.command("delay 1000 2");
        sleep_ms(6_000);
        target.command("delay 600000000 1");
        agent.wait_message("longer than expected: grow, thread ");
    });
    let said = &finished.messages;
    assert!(said.contains("0 of 1 functions have a model"), "{said}");
    let line = said.lines().find(|line| line.contains("longer than expected: grow, ")).expect("waited for");
    assert!(line.contains(", whatever its inputs) and has run for ") && line.contains(" UTC)"), "{line}");
    assert!(line.contains("off CPU, blocked ("), "{line}; {said}");
    assert!(said.contains("this call is the evidence, "), "{said}");
    let expected = meta.expected.expect("calls were judged");
    let function = &expected.functions[0];
    assert!(function.alarms > 0 && function.outside == 0 && function.no_inputs.is_some(), "{function:?}");
    // The report of the run has what was told, and no alarm came in the six seconds before.
    let incident = expected.told.first().expect("there was an alarm");
    assert!(
        incident.from_ns > 5_000_000_000 && incident.lines[0].contains("longer than expected: grow"),
        "{incident:?}; {said}"
    );
    let output = Command::new(program("tithe")).arg("report").arg(folder.path().join("b.tithe")).output();
    let report = String::from_utf8(output.expect("the agent is there").stdout).expect("it is text");
    // Lines are broken where the terminal ends.
    let report = report.split_whitespace().collect::<Vec<&str>>().join(" ");
    assert!(report.contains("LONGER THAN EXPECTED") && report.contains("incidents: 1; alarms: "), "{report}");
}

/// The only thread sleeps in a call for longer than the run goes on.
#[test]
fn a_call_that_hangs_is_told_while_it_runs() {
    let test = "a_call_that_hangs_is_told_while_it_runs";
    let Some(folder) = start(test) else { return };
    if !linux_or_skip(test, (6, 9), "a descriptor of a thread that is not its process's first") {
        return;
    }
    let (mut target, path) = earlier(&folder);
    // It may be told as the slowest so far before it is an alarm. Beside other work calls of some microseconds do take longer, which is told, too.
    let is_alarm = |line: &&str| {
        line.contains("longer than expected: grow, thread ") && line.contains(" and has run for ")
    };
    let (finished, meta) = held_against(&mut target, &folder, &path, |agent, target| {
        // Calls are judged by then.
        sleep_ms(2_000);
        target.command("delay 600000000 1");
        let end = Instant::now() + patience(Duration::from_secs(20));
        while !agent.messages().lines().any(|line| is_alarm(&line)) {
            assert!(Instant::now() < end, "no alarm in time: {}", agent.messages());
            sleep_ms(5);
        }
    });
    let said = &finished.messages;
    let line = said.lines().find(is_alarm).expect("waited for");
    assert!(line.contains(" so far: off CPU, blocked (") && line.contains("n = "), "{line}; {said}");
    assert_eq!(said.lines().filter(is_alarm).count(), 1, "{said}");
    assert!(said.contains("seen to wait in, of such calls: clock_nanosleep (1)"), "{said}");
    let hung = &meta.expected.expect("calls were judged").functions[0];
    assert!(hung.alarms > 0 && hung.told > 0 && hung.beyond > 0, "{hung:?}; {said}");
}

/// The words are taken anew, without being named, and each call waits for its own.
#[test]
fn calls_are_held_against_models_whose_inputs_are_words() {
    let Some(folder) = start("calls_are_held_against_models_whose_inputs_are_words") else { return };
    let model = ["--model", "growing:grow", "--word", "grow:length=arg1", "--input", "grow:n=length:size"];
    let (mut target, path) = earlier_of(&folder, &model);
    // There are models by then.
    let mut judged_from_ns = 0;
    let (finished, meta) = held_against(&mut target, &folder, &path, |agent, target| {
        judged_from_ns = monotonic_ns();
        sleep_ms(3_000);
        target.command("delay 20000 10");
        agent.wait_message("longer than expected: grow");
    });
    let line = finished.messages.lines().find(|line| line.contains("longer than expected: grow"));
    assert!(line.expect("waited for").contains("n = "), "{}", finished.messages);
    assert_eq!(meta.inputs, ["grow:n=length:size"]);
    let expected = meta.expected.expect("calls were judged");
    let function = &expected.functions[0];
    // Also those of the smallest sizes, which may take less than what the price of timing them is known to.
    assert!(function.calls > 500 && function.outside == 0, "{expected:?}");
    // Those that were over before there were models are not judged. The others all are, but for those whose words came too late or were lost.
    let recorded = recording(&folder.path().join("b.tithe"));
    let class =
        recorded.classes.iter().find(|class| class.symbol == "grow").expect("it is recorded").class_id;
    let is_early = |row: &&EventRow| {
        row.class_id == class && row.time_ns + row.duration_ns.unwrap_or_default() < judged_from_ns
    };
    let early = recorded.events.iter().filter(is_early).count() as u64;
    let lost = expected.not_looked_at.saturating_sub(early);
    assert!(lost <= function.calls.div_ceil(100), "{lost} lost, {early} early: {expected:?}");
}

fn is_alarm_of_cpu(line: &&str) -> bool {
    line.contains("longer than expected: grow") && line.contains(": CPU (")
}

#[test]
fn what_takes_longer_on_the_cpu_is_told_to_do_so() {
    let Some(folder) = start("what_takes_longer_on_the_cpu_is_told_to_do_so") else { return };
    let (mut target, path) = earlier(&folder);
    let (finished, _) = held_against(&mut target, &folder, &path, |agent, target| {
        target.command("spin 20000 10");
        // Beside other programs the call of an alarm that took longest may have waited for a CPU, too.
        for _ in 0..2_000 {
            if agent.messages().lines().any(|line| is_alarm_of_cpu(&line)) {
                break;
            }
            sleep_ms(10);
        }
    });
    let said = &finished.messages;
    assert!(said.lines().any(|line| is_alarm_of_cpu(&line)) && !said.contains("blocked ("), "{said}");
}

/// Its model is known from the start, and with it how often it need be recorded: 20 data points of each decade in 10 s are some 8 of 500 calls a second.
#[test]
fn a_function_that_is_held_against_models_is_recorded_at_the_frequency_of_its_group() {
    let Some(folder) =
        start("a_function_that_is_held_against_models_is_recorded_at_the_frequency_of_its_group")
    else {
        return;
    };
    let (target, path) = earlier(&folder);
    let expect = path.to_str().expect("the path is UTF-8");
    let all =
        ["--budget", "1000ms/s", "--no-ab", "--agent-cpu", "50%", "--expect", expect, "--datapoints", "20"];
    let output = folder.path().join("b.tithe");
    let mut agent = Agent::start_command(Command::new(program("tithe")), target.pid(), &output, &all);
    agent.wait_message("functions of a group are recorded at one frequency");
    // The next plan has it.
    sleep_ms(9_000);
    let output = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    assert_eq!(finished.messages.matches("at one frequency").count(), 1, "{}", finished.messages);
    let recorded = recording(&output);
    let grow =
        recorded.classes.iter().find(|class| class.symbol == "grow").expect("it was recorded").class_id;
    let last = recorded.plans.iter().rfind(|plan| plan.class_id == grow).expect("it was planned");
    assert!(last.reason.contains("with its group") && last.decision != "trace", "{last:?}");
    assert!(last.duty * last.rate_hz <= 10.0, "at most 4 decades: {last:?}");
    let late = recorded.meta.end_ns.unwrap_or(u64::MAX).saturating_sub(5_000_000_000);
    let calls = recorded.events.iter().filter(|row| row.class_id == grow && row.time_ns >= late).count();
    assert!(calls < 500, "{calls} of 2,500 calls were recorded");
}

/// The groups of a run that models are made from: two functions of like times share a frequency once each has its data points.
#[test]
fn functions_of_like_times_are_grouped_while_their_models_are_made() {
    let Some(folder) = start("functions_of_like_times_are_grouped_while_their_models_are_made") else {
        return;
    };
    let mut target = Target::start("growing");
    target.command("both");
    target.command(&format!("start {HZ}"));
    let cost = ["--budget", "1000ms/s", "--no-ab", "--agent-cpu", "50%"];
    let model = ["--model", "growing:grow*", "--input", "grow*:n=arg1:size", "--datapoints", "20"];
    let output = folder.path().join("a.tithe");
    let arguments = [&cost[..], &model].concat();
    let begin = || Agent::start_command(Command::new(program("tithe")), target.pid(), &output, &arguments);
    let mut agent = begin();
    // Groups are made once there are models, some 5 s after the start. On a host whose speed wanders within seconds two functions of one curve may not be alike then.
    for _ in 0..2 {
        sleep_ms(10_000);
        if agent.messages().contains("share one frequency from now on") {
            break;
        }
        agent.stop();
        agent = begin();
    }
    agent.wait_message("share one frequency from now on");
    // The next plan has it.
    sleep_ms(9_000);
    let output = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    let line =
        finished.messages.lines().find(|line| line.contains("share one frequency")).expect("waited for");
    assert!(line.contains("grow") && line.contains("grow_too"), "{line}");
    let recorded = recording(&output);
    let change = recorded.changes.iter().find(|change| change.kind == ChangeKind::Group);
    assert!(change.is_some_and(|change| line.ends_with(&change.text)), "{change:?}; {line}");
    for symbol in ["grow", "grow_too"] {
        let class =
            recorded.classes.iter().find(|class| class.symbol == symbol).expect("it was recorded").class_id;
        let last = recorded.plans.iter().rfind(|plan| plan.class_id == class).expect("it was planned");
        assert!(last.reason.contains("with its group") && last.decision != "trace", "{last:?}");
        assert!(last.duty * last.rate_hz <= 10.0, "at most 4 decades: {last:?}");
    }
}

/// A byte of the build ID in the program's file is another.
#[test]
fn models_of_another_build_are_refused_with_both_ids() {
    let Some(folder) = start("models_of_another_build_are_refused_with_both_ids") else { return };
    let (target, path) = earlier(&folder);
    target.kill();
    let id = recording(&path).classes.iter().find(|c| c.symbol == "grow").expect("it").build_id.clone();
    let bytes: Vec<u8> = (0..id.len() / 2)
        .map(|i| u8::from_str_radix(&id[2 * i..2 * i + 2], 16).expect("it is hexadecimal"))
        .collect();
    let mut file = std::fs::read(program("growing")).expect("it was built");
    let at = file.windows(bytes.len()).position(|window| window == bytes).expect("the note is in the file");
    file[at] ^= 0x55;
    let other = folder.path().join("growing");
    std::fs::write(&other, file).expect("the folder can be written to");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&other, mode).expect("it is ours");
    let target = Target::start_command(&mut Command::new(&other));
    let output = Command::new(program("tithe"))
        .args(["record", "--duration", "2s", "--pid", &target.pid().to_string(), "-o"])
        .arg(folder.path().join("c.tithe"))
        .arg("--expect")
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .expect("tithe was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let other_id = format!("{:02x}{}", bytes[0] ^ 0x55, &id[2..]);
    assert!(said.contains(&format!("build ID {other_id} here, {id} there")), "{said}");
    target.assert_text_original();
}
