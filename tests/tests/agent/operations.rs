//! Operations end to end: what the agent says of requests against what the target served.

use super::{recording, sleep_ms, start};
use profiler_core::recording::{OperationCycleEnd, OperationRow, OperationWindowRow, Recording};
use profiler_tests::support::{Agent, Finished, Target};
use std::collections::BTreeMap;

/// The agent on the target `requests` with operations, following them.
pub fn follow(target: &Target, folder: &tempfile::TempDir, arguments: &[&str]) -> Agent {
    let mut agent = Agent::start(target.pid(), folder.path(), arguments);
    agent.wait_message("tithe: following operations");
    agent
}

pub fn stop(agent: Agent) -> (Finished, Recording) {
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    let recorded = recording(&path);
    (finished, recorded)
}

/// A fifth of all operations, revised twice a second.
pub const A_FIFTH: [&str; 8] =
    ["--policy", "uni", "--adapt", "max_rate=0.2", "--adapt", "rate=0.2", "--adapt", "revise_s=0.5"];

/// Sums of the windows by class name.
pub fn sums(recorded: &Recording, of: fn(&OperationWindowRow) -> u64) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for window in &recorded.operation_windows {
        let class = recorded.operation_classes.iter().find(|c| c.class_id == window.class_id);
        let name = class.map_or_else(|| format!("class {}", window.class_id), |c| c.class_name.clone());
        *sums.entry(name).or_insert(0) += of(window);
    }
    sums.retain(|_, n| *n > 0);
    sums
}

/// Operations in the histograms by class name.
pub fn in_histograms(recorded: &Recording) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in &recorded.operation_histograms {
        let class = recorded.operation_classes.iter().find(|c| c.class_id == row.class_id);
        *sums.entry(class.expect("classes have names").class_name.clone()).or_insert(0) += row.count;
    }
    sums
}

/// Rows of a class, by its name.
pub fn rows<'a>(recorded: &'a Recording, name: &str) -> Vec<&'a OperationRow> {
    let class = recorded.operation_classes.iter().find(|c| c.class_name == name);
    let id = class.unwrap_or_else(|| panic!("no class {name}: {:?}", recorded.operation_classes)).class_id;
    recorded.operations.iter().filter(|r| r.class_id == id).collect()
}

pub const WITH_ALL: [&str; 10] = [
    "--operation",
    "req=handle,class=arg0:str",
    "--operation",
    "query=query",
    "--detail",
    "requests:step",
    "--measure",
    "requests:allocate:arg0",
    "--policy",
    "full",
];

#[test]
fn every_request_is_counted_and_recorded_with_its_calls_and_measure() {
    let Some(folder) = start("every_request_is_counted_and_recorded_with_its_calls_and_measure") else {
        return;
    };
    let mut target = Target::start("requests");
    let agent = follow(&target, &folder, &WITH_ALL);
    // Few enough that a host on which hits cost several times as much as elsewhere can pay for all of them.
    target.command("serve 600 3 10");
    sleep_ms(1_300);
    target.command("serve 200 3 10");
    sleep_ms(200);
    let (finished, recorded) = stop(agent);
    let mut expected = BTreeMap::from([("query".to_owned(), 2_400)]);
    for type_ in 0..10 {
        let served = target.command(&format!("served {type_}"));
        let name = format!("GET /{type_}");
        let rows = rows(&recorded, &name);
        assert_eq!(rows.len() as u64, served.number("requests"), "{name}; {}", finished.messages);
        assert_eq!(rows.iter().map(|r| r.calls).sum::<u64>(), served.number("calls"), "{name}");
        assert_eq!(rows.iter().map(|r| r.measure).sum::<u64>(), served.number("bytes"), "{name}");
        assert!(rows.iter().all(|r| r.calls == type_ % 5 + 2 && r.measure == 100 * (type_ + 1)));
        // What the target timed includes the probes of begin and end.
        let inside: u64 = rows.iter().map(|r| r.duration_ns).sum();
        assert!(inside <= served.number("wall_ns"), "{inside}");
        assert!(rows.iter().all(|r| r.inner_ns < r.duration_ns && r.cost_ns > 0 && !r.censored));
        expected.insert(name, served.number("requests"));
    }
    assert_eq!(sums(&recorded, |w| w.population), expected);
    assert_eq!(sums(&recorded, |w| w.begun), expected);
    assert_eq!(in_histograms(&recorded), expected);
    assert_eq!(sums(&recorded, |w| w.recorded), expected);
    assert_eq!(sums(&recorded, |w| w.unmatched), BTreeMap::new());
    for w in &recorded.operation_windows {
        assert_eq!(w.begun, w.recorded + w.off + w.not_drawn + w.balanced + w.no_quota);
    }
    // Everything was recorded: each window's sample is the population.
    let cycles = &recorded.operation_cycles;
    assert!(cycles.iter().any(|c| c.end == OperationCycleEnd::Representative), "{cycles:?}");
    assert!(cycles.iter().all(|c| c.population == c.sample));
    assert_eq!(cycles.iter().map(|c| c.population).sum::<u64>(), 4_800);
    assert!(target.is_alive());
    target.assert_text_original();
}

#[test]
fn a_constant_rate_records_its_share_and_off_counts_all_the_same() {
    let Some(folder) = start("a_constant_rate_records_its_share_and_off_counts_all_the_same") else { return };
    for (policy, expected) in [("uni", 0.2), ("none", 0.0)] {
        let mut target = Target::start("requests");
        let arguments = [
            "--operation",
            "req=handle,class=arg1:int",
            "--policy",
            policy,
            "--measure",
            "requests:allocate:arg0",
            "--adapt",
            "rate=0.2",
            "--adapt",
            "max_rate=0.2",
            // The draw alone: two short bursts of requests fall into a slice or do not.
            "--adapt",
            "attach_share=false",
        ];
        let agent = follow(&target, &folder, &arguments);
        target.command("serve 4000 2 4");
        sleep_ms(1_200);
        target.command("serve 1000 2 4");
        sleep_ms(100);
        let (finished, recorded) = stop(agent);
        let populations = sums(&recorded, |w| w.population);
        let truth: BTreeMap<String, u64> = (0..4)
            .map(|t| (t.to_string(), target.command(&format!("served {t}")).number("requests")))
            .collect();
        assert_eq!(populations, truth, "{}", finished.messages);
        assert_eq!(in_histograms(&recorded), truth, "recorded or not");
        let recorded_n: u64 = sums(&recorded, |w| w.recorded).values().sum();
        assert_eq!(recorded_n, recorded.operations.len() as u64);
        let n = 10_000.0f64;
        let sd = (n * expected * (1.0 - expected)).sqrt();
        assert!((recorded_n as f64 - n * expected).abs() <= 6.0 * sd, "{policy}: {recorded_n}");
        assert!(recorded.operation_windows.iter().all(|w| w.monitoring == (policy == "uni")));
    }
}

#[test]
fn pairs_that_do_not_match_are_counted_and_the_open_one_is_censored() {
    let Some(folder) = start("pairs_that_do_not_match_are_counted_and_the_open_one_is_censored") else {
        return;
    };
    let mut target = Target::start("requests");
    let arguments =
        ["--operation", "pair=pair_begin..pair_end", "--operation", "slow=handle_slow", "--policy", "full"];
    let agent = follow(&target, &folder, &arguments);
    target.command("pairs 300 3");
    target.command("stray");
    target.command("unended");
    target.command("inside 5000");
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    assert_eq!(sums(&recorded, |w| w.population), BTreeMap::from([("pair".to_owned(), 900)]));
    assert_eq!(
        sums(&recorded, |w| w.begun),
        BTreeMap::from([("pair".to_owned(), 901), ("slow".to_owned(), 1)])
    );
    assert_eq!(sums(&recorded, |w| w.unmatched), BTreeMap::from([("pair".to_owned(), 1)]));
    let slow = rows(&recorded, "slow");
    assert_eq!(slow.len(), 1, "{}", finished.messages);
    assert!(slow[0].censored && slow[0].duration_ns > 250_000_000, "{slow:?}");
    assert!(target.is_alive());
}

#[test]
fn names_by_the_hundred_thousand_are_bounded_and_reported() {
    let Some(folder) = start("names_by_the_hundred_thousand_are_bounded_and_reported") else { return };
    let mut target = Target::start("requests");
    let arguments =
        ["--operation", "req=handle,class=arg0:str", "--policy", "none", "--adapt", "max_classes=50"];
    let agent = follow(&target, &folder, &arguments);
    target.command("names 100000");
    sleep_ms(1_100);
    let (finished, recorded) = stop(agent);
    let populations = sums(&recorded, |w| w.population);
    assert_eq!(populations.values().sum::<u64>(), 100_000);
    assert_eq!((populations.len(), populations["(other)"]), (51, 99_950), "{}", finished.messages);
    let warnings = &finished.report().warnings;
    assert!(
        warnings.iter().any(|w| w.contains("99950 requests with names beyond the bound")),
        "{warnings:?}"
    );
}

#[test]
fn adp_takes_baselines_and_the_hook_sees_each_cycle() {
    let Some(folder) = start("adp_takes_baselines_and_the_hook_sees_each_cycle") else { return };
    let mut target = Target::start("requests");
    let log = folder.path().join("cycles");
    let hook = format!("echo $TITHE_OPERATION $TITHE_CYCLE $TITHE_END $TITHE_SAMPLE >> {}", log.display());
    let arguments = [
        "--operation",
        "req=handle,class=arg0:str",
        "--detail",
        "requests:step",
        "--policy",
        "adp",
        "--adapt",
        "max_cycle_s=2",
        "--adapt",
        "revise_s=0.2",
        "--adapt",
        "baseline_s=0.4",
        "--on-cycle",
        &hook,
    ];
    target.command("start 200 2 6");
    let agent = follow(&target, &folder, &arguments);
    sleep_ms(3_000);
    // Much worse than what it has seen so far: it asks what of that is its own doing.
    target.command("slower 200");
    sleep_ms(3_000);
    let (finished, recorded) = stop(agent);
    target.command("stop");
    let text = std::fs::read_to_string(&log).expect("the hook ran");
    let ended: Vec<_> =
        recorded.operation_cycles.iter().filter(|c| c.end != OperationCycleEnd::RunEnd).collect();
    assert!(ended.len() >= 2, "{:?}; {}", recorded.operation_cycles, finished.messages);
    let first: Vec<&str> = text.lines().next().expect("a line").split(' ').collect();
    assert_eq!(first[..2], ["req", "0"], "{text}");
    assert_eq!(first[3], ended[0].sample.to_string());
    assert!(text.lines().count() <= ended.len());
    let (on, off): (Vec<_>, Vec<_>) = recorded.operation_windows.iter().partition(|w| w.monitoring);
    assert!(!on.is_empty() && !off.is_empty(), "{} windows on, {} off", on.len(), off.len());
    // One that begins between the cut of the last window and the switch is still recorded.
    assert!(off.iter().all(|w| w.rate == 0.0 && w.recorded <= 1), "{off:?}");
    assert!(on.iter().any(|w| w.recorded > 0 && w.balanced > 0), "the balance test refuses some");
    // Detailed calls only in recorded ones, and none is cut off at a switch.
    for type_ in 0..6 {
        let rows = rows(&recorded, &format!("GET /{type_}"));
        let complete = rows.iter().filter(|r| r.calls == type_ % 5 + 2).count();
        assert!(complete * 100 >= rows.len() * 99, "{complete} of {} of type {type_}", rows.len());
    }
}

#[test]
fn a_small_budget_bounds_recording_and_says_so() {
    let Some(folder) = start("a_small_budget_bounds_recording_and_says_so") else { return };
    let mut target = Target::start("requests");
    target.command("start 0 1 8");
    let path = folder.path().to_owned();
    let mut agent = Agent::start_plain(
        target.pid(),
        &path,
        &[
            "--budget",
            "1%",
            "--no-ab",
            "--operation",
            "req=handle,class=arg0:str",
            "--detail",
            "requests:step",
        ],
    );
    agent.wait_message("tithe: following operations");
    sleep_ms(5_000);
    let (finished, recorded) = stop(agent);
    target.command("stop");
    let predicted = finished.report().receipt.predicted;
    // The first window is screened whole before anybody knows what that costs.
    assert!(predicted < 0.03, "{predicted}; {}", finished.messages);
    assert!(
        finished.messages.contains("screening 'req' costs")
            || recorded.changes.iter().any(|c| c.text.contains("more hits than operations may cost")),
        "{}",
        finished.messages
    );
}

#[test]
fn a_hot_pair_is_watched_together_and_keeps_to_the_budget() {
    let Some(folder) = start("a_hot_pair_is_watched_together_and_keeps_to_the_budget") else { return };
    let mut target = Target::start("requests");
    // Millions of them a second, of which a hit or two a millisecond can be paid for.
    target.command("start 0 1 8");
    let path = folder.path().to_owned();
    let arguments = ["--budget", "2%", "--no-ab", "--operation", "pair=handle..query"];
    let mut agent = Agent::start_plain(target.pid(), &path, &arguments);
    agent.wait_message("tithe: following operations");
    sleep_ms(5_000);
    let (finished, recorded) = stop(agent);
    target.command("stop");
    let predicted = finished.report().receipt.predicted;
    assert!(predicted < 0.035, "{predicted}; {}", finished.messages);
    let all = |of: fn(&OperationWindowRow) -> u64| recorded.operation_windows.iter().map(of).sum::<u64>();
    let (population, unmatched, begun) = (all(|w| w.population), all(|w| w.unmatched), all(|w| w.begun));
    assert!(population > 500, "{population}; {}", finished.messages);
    // Begins without ends and ends without begins: few, or they would not have been attached together (usually less than a half; the bound
    // that did not trip is taken off by the agent's next turn, and that comes late on a busy machine: up to 2.2 times as many).
    assert!(unmatched + begun - population < 4 * population, "{unmatched} unmatched, {begun}, {population}");
    let operation = &finished.report().operations[0];
    // Beside three builds 9e4 were seen.
    assert!(operation.watched_share < 0.5 && operation.rate_hz > 2e4, "{operation:?}");
}

/// What `tithe record` says and returns with these arguments.
pub fn refused(target: &Target, folder: &tempfile::TempDir, arguments: &[&str]) -> String {
    let output = std::process::Command::new(profiler_tests::program("tithe"))
        .args(["record", "--pid", &target.pid().to_string(), "--only-named"])
        .args(arguments)
        .current_dir(folder.path())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("tithe was built");
    let said = String::from_utf8_lossy(&output.stderr);
    // What clap adds.
    let said = said.split("\n\nFor more information").next().unwrap_or_default();
    // Whether prices are stored on this machine is another matter.
    let said: Vec<&str> = said.lines().filter(|line| !line.contains("stored prices")).collect();
    format!("exit {}: {}", output.status.code().unwrap_or(-1), said.join("\n").trim())
}

#[test]
fn operations_that_make_no_sense_are_refused_in_words() {
    let Some(folder) = start("operations_that_make_no_sense_are_refused_in_words") else { return };
    let target = Target::start("requests");
    let check = |arguments: &[&str], expected: expect_test::Expect| {
        expected.assert_eq(&refused(&target, &folder, arguments));
    };
    check(
        &["--operation", "req=hanlde"],
        expect_test::expect![
            "exit 2: tithe: --operation 'req=hanlde': its begin 'hanlde': no function symbol matches `hanlde`; similar: handle"
        ],
    );
    check(
        &["--operation", "req=pair_begin..pair_edn"],
        expect_test::expect![
            "exit 2: tithe: --operation 'req=pair_begin..pair_edn': its end 'pair_edn': no function symbol matches `pair_edn`; similar: pair_end"
        ],
    );
    check(
        &["--operation", "req=pair_begin.."],
        expect_test::expect![
            "exit 2: error: invalid value 'req=pair_begin..' for '--operation <SPEC>': the end is empty: write NAME=BEGIN..END, or NAME=FUNCTION for a call from its begin to its end"
        ],
    );
    check(
        &["--operation", "handle"],
        expect_test::expect![
            "exit 2: error: invalid value 'handle' for '--operation <SPEC>': write NAME=FUNCTION, NAME=BEGIN..END or NAME=syscall:CALL, like 'req=handle_request'"
        ],
    );
    check(
        &["--operation", "req=syscall:raed"],
        expect_test::expect![
            "exit 2: error: invalid value 'req=syscall:raed' for '--operation <SPEC>': there is no system call 'raed' on x86-64; 'man syscalls' lists them"
        ],
    );
    check(
        &["--operation", "req=handle,class=arg7:str"],
        expect_test::expect![
            "exit 2: error: invalid value 'req=handle,class=arg7:str' for '--operation <SPEC>': 'class=arg7:str': write class=argK:str (a C string), :slice (pointer, and length in the next argument), :int or :long, with K from 0 to 5"
        ],
    );
    check(
        &["--operation", "a=handle", "--operation", "a=query"],
        expect_test::expect!["exit 2: tithe: --operation 'a=handle': there are two operations named 'a'"],
    );
    check(
        &["--operation", "a=handle..requests:handle"],
        expect_test::expect![
            "exit 2: tithe: --operation 'a=handle..requests:handle': its end 'handle': it would both begin and end the operation, and the kernel may run either program first"
        ],
    );
    check(
        &["--operation", "a=handle", "--policy", "best"],
        expect_test::expect![
            "exit 2: error: invalid value 'best' for '--policy <POLICY>': unknown policy 'best': choose from adp, inv, uni, full, none, tithe"
        ],
    );
    check(
        &["--operation", "a=handle", "--adapt", "rate=2"],
        expect_test::expect![
            "exit 2: tithe: --adapt: the setting 'rate' is 2: it must be between min_rate and max_rate"
        ],
    );
    check(
        &["--operation", "a=handle", "--adapt", "speed=2"],
        expect_test::expect![
            "exit 2: tithe: --adapt: unknown field `speed`, expected one of `rate`, `max_rate`, `min_rate`, `revise_s`, `baseline_s`, `max_cycle_s`, `alpha`, `balance_slack`, `sample_margin`, `variability`, `table_records`, `paired_least_classes`, `correct_for_price`, `inv_reference_s`, `equivalence_margin`, `class_max_rate`, `allocation_power`, `allocation_relative`, `tithe_share`, `tithe_attach`, `attach_share`, `rate_step`, `max_classes`"
        ],
    );
    check(
        &["--operation", "a=handle", "--measure", "pair_beginn:arg0"],
        expect_test::expect![
            "exit 2: tithe: --measure 'pair_beginn': no function symbol matches `pair_beginn`; similar: pair_begin"
        ],
    );
    check(
        &["--operation", "a=handle", "--detail", "nothing_like_it*"],
        expect_test::expect![
            "exit 2: tithe: --detail 'nothing_like_it*': no function symbol matches `nothing_like_it*`; it may be inlined everywhere, or live in a library that is not loaded yet"
        ],
    );
    check(
        &["--policy", "adp"],
        expect_test::expect![[r#"
        exit 2: error: the following required arguments were not provided:
          --operation <SPEC>

        Usage: tithe record --operation <SPEC> --policy <POLICY> <--pid <PID>|COMMAND>"#]],
    );
}

#[test]
fn arguments_of_go_are_refused_and_its_functions_are_not() {
    let Some(folder) = start("arguments_of_go_are_refused_and_its_functions_are_not") else { return };
    let mut target = Target::start("requests");
    let load = format!("load {}", profiler_tests::program("libplugin.so").display());
    assert_eq!(target.command(&load).number("loaded"), 1);
    let why =
        "it is a function of Go, which does not pass arguments in the registers of C: they cannot be read";
    let said =
        refused(&target, &folder, &["--duration", "1s", "--operation", "req=main.handle,class=arg0:slice"]);
    let text = "--operation 'req=main.handle,class=arg0:slice': its begin 'main.handle'";
    assert_eq!(said, format!("exit 2: tithe: {text}: {why}"));
    let said = refused(
        &target,
        &folder,
        &["--duration", "1s", "--operation", "req=handle", "--measure", "main.handle:arg0"],
    );
    assert_eq!(said, format!("exit 2: tithe: --measure 'main.handle': {why}"));
    // Without arguments, and C beside Go.
    for operation in ["req=main.handle", "req=plugin_function,class=arg0:long"] {
        stop(follow(&target, &folder, &["--operation", operation]));
    }
}

#[test]
fn a_launched_program_is_followed_from_its_first_operation() {
    let Some(folder) = start("a_launched_program_is_followed_from_its_first_operation") else { return };
    let output = folder.path().join("run.tithe");
    let mut child = std::process::Command::new(profiler_tests::program("tithe"))
        .args(["record", "--only-named", "--budget", "1000ms/s", "--policy", "full", "--format", "json"])
        .args(["--operation", "req=handle,class=arg0:str", "--detail", "requests:step", "-o"])
        .arg(&output)
        .arg("--")
        .arg(profiler_tests::program("requests"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("tithe was built");
    {
        use std::io::Write;
        let mut input = child.stdin.take().expect("stdin was piped");
        input.write_all(b"serve 300 2 3\nquit\n").expect("it reads");
    }
    let finished = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&finished.stderr);
    let recorded = recording(&output);
    let expected: BTreeMap<String, u64> = (0..3).map(|t| (format!("GET /{t}"), 200)).collect();
    assert_eq!(sums(&recorded, |w| w.population), expected, "{said}");
    assert_eq!(rows(&recorded, "GET /1").iter().map(|r| r.calls).sum::<u64>(), 600, "{said}");
}
