//! Calls in order against what the target itself logged: which functions were entered, in which order, and in which call.

use super::{recording, sleep_ms, start};
use profiler_core::recording::{CallSiteRow, Recording};
use profiler_tests::steps::{self, Account, Compared, Log, Made};
use profiler_tests::support::{Agent, Finished, Target, monotonic_ns};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn follow(target: &Target, folder: &tempfile::TempDir, more: &[&str]) -> Agent {
    let arguments = steps::arguments();
    let arguments: Vec<&str> =
        arguments.iter().map(String::as_str).chain(steps::RICH).chain(more.iter().copied()).collect();
    let mut agent = Agent::start(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    agent
}

/// What a run recorded, with tables that are read a row group at a time.
struct Recorded {
    path: PathBuf,
    all: Recording,
    call_sites: Vec<CallSiteRow>,
}

fn stop(agent: Agent) -> (Finished, Recorded) {
    let path = agent.recording().to_owned();
    let finished = agent.stop();
    assert!(finished.status.success(), "{}", finished.messages);
    let mut stream = profiler_user::recording::Stream::open(&path).expect("the agent wrote it");
    let recorded =
        Recorded { all: recording(&path), call_sites: stream.table().expect("it is of this format"), path };
    assert_eq!(stream.damage(), &[] as &[String]);
    (finished, recorded)
}

/// Has the target do what the command says; what it made.
fn command(target: &mut Target, words: &str) -> Made {
    let from_ns = monotonic_ns();
    let operations = target.command(words).number("operations");
    Made { operations, from_ns, until_ns: monotonic_ns() }
}

/// Compares every recorded operation with the log; wrong orders, wrong calls, incomplete operations that are not marked, and operations that have no row and are counted nowhere fail.
fn compare(recorded: &Recorded, log: &Path, made: &Made) -> (Compared, Account) {
    let log = Log::read(log).expect("the target wrote its log");
    let compared = steps::compare(&recorded.path, log, made).expect("the agent wrote it");
    assert_eq!(compared.wrong(), 0, "{compared:#?}");
    let account = compared.account.expect("it was asked for");
    assert_eq!(account.made, made.operations);
    (compared, account)
}

/// Runs one command of the target under the agent, and compares. Nothing is detached meanwhile: of no operation it is unknown whether it is missing.
fn run(test: &str, words: &str, more: &[&str]) -> Option<(Compared, Finished)> {
    let folder = start(test)?;
    let mut target = Target::start("tree");
    let agent = follow(&target, &folder, more);
    let path = folder.path().join("log");
    let made = command(&mut target, &format!("{words} {}", path.display()));
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let (compared, account) = compare(&recorded, &path, &made);
    println!("{test}: {compared:?}");
    assert_eq!(account.gap_ns, Some(0), "{account:?}; {}", finished.messages);
    assert!(target.is_alive());
    target.assert_text_original();
    Some((compared, finished))
}

#[test]
fn calls_of_one_thread_are_in_order_and_nested_as_the_target_logged_them() {
    let name = "calls_of_one_thread_are_in_order_and_nested_as_the_target_logged_them";
    let Some((compared, finished)) = run(name, "tree 200 1 7", &[]) else { return };
    assert!(compared.complete >= 150 && compared.steps > 1_000, "{compared:?}; {}", finished.messages);
    assert!(compared.tails > 0, "{compared:?}");
    assert!(compared.ambiguous * 100 < 85 * compared.steps, "{compared:?}");
}

#[test]
fn calls_of_two_and_of_sixteen_threads_are_in_order() {
    let name = "calls_of_two_and_of_sixteen_threads_are_in_order";
    for threads in [2, 16] {
        let Some((compared, finished)) = run(name, &format!("tree 20 {threads} 11"), &[]) else { return };
        let all = 20 * threads;
        assert!(compared.complete * 2 >= all, "{threads}: {compared:?}; {}", finished.messages);
    }
}

#[test]
fn a_recursion_of_a_thousand_calls_is_nested_a_thousand_deep() {
    let name = "a_recursion_of_a_thousand_calls_is_nested_a_thousand_deep";
    let Some((compared, _)) = run(name, "recurse 1000", &[]) else { return };
    assert_eq!((compared.complete, compared.steps, compared.ambiguous), (1, 1_000, 0));
}

#[test]
fn throws_jumps_signals_and_stacks_that_are_switched_are_in_order() {
    let name = "throws_jumps_signals_and_stacks_that_are_switched_are_in_order";
    for way in ["loops", "tails", "jumps", "throws", "signals", "altstack", "coroutines", "made"] {
        let Some((compared, finished)) = run(name, &format!("only {way} 10"), &[]) else { return };
        assert!(compared.complete >= 5, "{way}: {compared:?}; {}", finished.messages);
        // Functions that are not named call most of the others here: three of four links are open, and not all.
        assert!(compared.ambiguous * 100 < 88 * compared.steps, "{way}: {compared:?}");
        let interrupts = matches!(way, "signals" | "altstack");
        assert_eq!(compared.signals > 0, interrupts, "{way}: {compared:?}");
        // Call sites that call one function directly leave nothing open.
        if way == "loops" {
            assert_eq!(compared.ambiguous, 0, "{way}: {compared:?}");
        }
    }
}

/// Two libraries take turns at one place, with frames of different sizes: each return address is that of the library of its time.
#[test]
fn return_addresses_are_of_the_library_that_was_there_then() {
    let name = "return_addresses_are_of_the_library_that_was_there_then";
    let Some(folder) = start(name) else { return };
    let mut target = Target::start("tree");
    let agent = follow(&target, &folder, &[]);
    let path = folder.path().join("log");
    let libraries = ["libthrough4.so", "libthrough12.so"].map(profiler_tests::program);
    let [a, b] = libraries.each_ref().map(|library| library.display());
    let from_ns = monotonic_ns();
    let reply = target.command(&format!("swap {a} {b} 20 {}", path.display()));
    let made = Made { operations: reply.number("operations"), from_ns, until_ns: monotonic_ns() };
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let (compared, _) = compare(&recorded, &path, &made);
    println!("{name}: {compared:?}, same place: {}", reply.number("same"));
    assert!(compared.complete >= 20, "{compared:?}; {}", finished.messages);
    let of = |library: &str| {
        let rows = recorded.call_sites.iter().filter(|site| site.module.ends_with(library));
        rows.map(|site| (site.return_address, site.since_ns, site.until_ns)).collect::<Vec<_>>()
    };
    let (first, second) = (of("libthrough4.so"), of("libthrough12.so"));
    assert!(!first.is_empty() && first.iter().all(|(_, _, until)| until.is_some()), "{first:?}");
    assert!(!second.is_empty(), "{:?}", recorded.call_sites);
    if reply.number("same") == 1 {
        assert_eq!(first[0].0, second[0].0);
        assert!(second.iter().all(|(_, since, _)| since.is_some_and(|since| Some(since) > first[0].2)));
    }
}

#[test]
fn a_forked_child_adds_nothing_to_its_parents_calls() {
    let name = "a_forked_child_adds_nothing_to_its_parents_calls";
    let Some((compared, finished)) = run(name, "forked 20 5", &[]) else { return };
    assert!(compared.complete > 0, "{compared:?}; {}", finished.messages);
}

/// How many calls fall into the half second is the machine's affair: some of four times they are more than the ring or the quotas of inner functions hold.
#[test]
fn operations_that_lost_calls_while_the_agent_was_stopped_are_marked() {
    let name = "operations_that_lost_calls_while_the_agent_was_stopped_are_marked";
    let Some(folder) = start(name) else { return };
    let marked: usize = (1..=4).map(|seed| marked_while_stopped(&folder, seed)).find(|n| *n > 0).unwrap_or(0);
    assert!(marked > 0, "the kernel side knows what was not recorded");
}

/// As on a disk that stalls: records stay in the ring, and what finds it full is marked by the kernel side. No row is lost.
#[test]
fn operations_that_lost_calls_while_the_writer_was_stopped_are_marked() {
    let name = "operations_that_lost_calls_while_the_writer_was_stopped_are_marked";
    let Some(folder) = start(name) else { return };
    let stop = |pid| steps::stop_writer(pid, Duration::from_millis(500)).expect("it is there");
    let marked = (1..=4).map(|seed| marked_while(&folder, seed, stop)).find(|n| *n > 0).unwrap_or(0);
    assert!(marked > 0, "the agent leaves records in the ring while the writer has no room");
}

/// Operations that are marked after the agent was stopped for half a second.
fn marked_while_stopped(folder: &tempfile::TempDir, seed: u32) -> usize {
    marked_while(folder, seed, |pid| {
        // SAFETY: a signal to a process that is our child.
        let send = |signal| assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
        send(libc::SIGSTOP);
        // The watchdog waits for a second; the ring holds 116,000 steps.
        sleep_ms(500);
        send(libc::SIGCONT);
    })
}

/// Operations that are marked after something was stopped while the target made them.
fn marked_while(
    folder: &tempfile::TempDir,
    seed: u32,
    stop_something: impl Fn(u32) + Send + Copy + 'static,
) -> usize {
    let mut target = Target::start("tree");
    let agent = follow(&target, folder, &[]);
    let path = folder.path().join("log");
    let pid = agent.id();
    let stopping = std::thread::spawn(move || {
        // The later, the nearer is the end of what the target may cost in that second, and what quotas turn away leaves no mark; the earlier, the smaller are the first quotas.
        sleep_ms(250 - 50 * u64::from(seed));
        stop_something(pid);
    });
    let made = command(&mut target, &format!("tree 60000 1 {seed} {}", path.display()));
    stopping.join().expect("it does not panic");
    sleep_ms(300);
    let (finished, recorded) = stop(agent);
    let (compared, account) = compare(&recorded, &path, &made);
    println!("{compared:?}");
    assert!(compared.complete > 100, "{compared:?}; {}", finished.messages);
    // An agent that is stopped for long has its links taken off: what the target makes until they are back nobody counts, and no more than that.
    println!("{account:?}");
    recorded.all.operations.iter().filter(|row| row.incomplete == Some(true)).count()
}

#[test]
fn operations_under_a_budget_too_small_for_their_calls_are_marked_or_not_recorded() {
    let test = "operations_under_a_budget_too_small_for_their_calls_are_marked_or_not_recorded";
    let Some(folder) = start(test) else { return };
    let mut target = Target::start("tree");
    let named = steps::arguments();
    let mut arguments = vec!["--budget", "10%", "--only-named"];
    arguments.extend(named.iter().map(String::as_str));
    let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
    agent.wait_message("tithe: following operations");
    let path = folder.path().join("log");
    let made = command(&mut target, &format!("tree 400000 1 5 {}", path.display()));
    let (finished, recorded) = stop(agent);
    let (compared, account) = compare(&recorded, &path, &made);
    println!("{compared:?} {}", finished.messages);
    assert!(compared.complete > 0, "{compared:?}; {}", finished.messages);
    // Most of those that were seen to begin were not recorded. That the rest was made while nothing was attached, by the target's own times, is compared above.
    assert!(account.not_drawn + account.lost > compared.complete, "{compared:?}");
}
