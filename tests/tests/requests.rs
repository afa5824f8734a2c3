//! The request-serving targets tell the truth about their requests: a test of the tests. No root, no kernel features.

use profiler_tests::requests::Truth;
use profiler_tests::support::Target;
use std::collections::BTreeSet;
use std::process::Command;

fn start(program: &str, options: &[&str]) -> Target {
    Target::start_command(Command::new(profiler_tests::program(program)).args(options))
}

fn truth(target: &mut Target) -> Truth {
    let reply = target.command("truth");
    let truth = Truth::parse(reply.text("truth").expect("the answer has the truth")).expect("it can be read");
    assert_eq!(reply.number("types"), truth.0.len() as u64);
    truth
}

/// Runs until every type has occurred; whatever was asked in between, the sums add up.
fn all_types_occur_and_add_up(program: &str, types: usize, seconds: &str) {
    let options =
        ["--users", "4", "--think-us", "500", "--pattern", "bursty", "--burst-every", "1", "--burst", "0.4"];
    let mut target = start(program, &options);
    target.command(&format!("run {seconds}"));
    let early = truth(&mut target).total().operations;
    let end = target.command("wait");
    let truth = truth(&mut target);
    let total = truth.total();
    assert_eq!(truth.0.len(), types);
    let missing: Vec<&String> =
        truth.0.iter().filter(|(_, s)| s.operations == 0).map(|(name, _)| name).collect();
    assert!(
        missing.is_empty(),
        "{program}: nobody asked for {missing:?} among {} requests",
        total.operations
    );
    assert!(
        early <= total.operations && total.operations == end.number("operations"),
        "{early} {total:?} {end:?}"
    );
    let by_second: u64 =
        end.text("seconds").expect("by second").split(',').map(|n| n.parse::<u64>().unwrap()).sum();
    assert_eq!(by_second, total.operations);
    // Four users and bursts of ten cannot wait longer together than there is time.
    assert!(total.response_ns > 0 && total.response_ns < 10 * end.number("wall_ns"), "{total:?} {end:?}");
    let moved = truth.0.values().filter(|s| s.measure > 0).count();
    assert!(moved > types * 9 / 10, "only {moved} types allocate");
    // Sums of squares are at least those of equal values (Cauchy and Schwarz), and above where values differ.
    let differ = truth
        .0
        .values()
        .filter(|s| s.squares * u128::from(s.operations) > u128::from(s.measure) * u128::from(s.measure))
        .count();
    assert!(differ > types / 2, "the measure of {differ} of {types} types varies");
    assert!(target.quit().success());
}

#[test]
fn sqlite_requests_are_of_ten_types() {
    all_types_occur_and_add_up("sqlite-requests", 10, "3");
}

#[test]
fn pages_are_of_120_types() {
    all_types_occur_and_add_up("page-server", 120, "6");
}

#[test]
fn a_run_can_be_stopped_and_begun_again_and_wrong_commands_are_refused() {
    let mut target = start("sqlite-requests", &["--users", "2", "--think-us", "1000"]);
    target.command("run 600");
    std::thread::sleep(std::time::Duration::from_millis(300));
    let stopped = target.command("stop");
    assert!(stopped.number("wall_ns") < 5_000_000_000, "{stopped:?}");
    let first = truth(&mut target).total().operations;
    assert!(first > 0 && first == stopped.number("operations"));
    target.command("run 0.2");
    let second = target.command("wait").number("operations");
    assert_eq!(truth(&mut target).total().operations, second, "the sums of the first run are forgotten");
    for (line, says) in [("run", "number of seconds"), ("run -1", "above 0"), ("fly", "no command fly")] {
        let error = target.refused(line);
        assert!(error.contains(says), "{line}: {error}");
    }
}

#[test]
fn unique_names_are_of_the_same_types() {
    for program in ["sqlite-requests", "page-server"] {
        let mut target = start(program, &["--users", "2", "--think-us", "500", "--unique-names"]);
        target.command("run 0.5");
        let served = target.command("wait").number("operations");
        assert!(served > 0 && truth(&mut target).total().operations == served, "{served} {program}");
    }
}

#[test]
fn bounds_and_allocations_are_symbols_of_their_own() {
    for (program, allocates) in
        [("sqlite-requests", "sqlite_allocates"), ("page-server", "page_server_allocates")]
    {
        let binary = std::fs::read(profiler_tests::program(program)).expect("the program was built");
        for name in ["serve_request", "request_served", allocates] {
            let entry: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
            assert!(
                binary.windows(entry.len()).any(|bytes| bytes == entry),
                "{program} has no symbol {name}"
            );
        }
    }
}

#[test]
fn alone_a_program_prints_its_sums_and_ends() {
    let output = Command::new(profiler_tests::program("page-server"))
        .args(["--seconds", "1", "--users", "2", "--pattern", "stationary"])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("pid ") && text.contains("\nready\noperations_per_second "), "{text}");
    let routes: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split_once(": ").map(|(name, _)| name)).collect();
    assert_eq!(routes.len(), 120, "{text}");
    let wrong =
        Command::new(profiler_tests::program("page-server")).args(["--pattern", "wild"]).output().unwrap();
    assert!(
        !wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("choose from stationary")
    );
}
