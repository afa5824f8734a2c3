//! The agent is killed while it detaches, and the target has forked: the child has inherited breakpoints, and loses them
//! like the target, also where that is gone.

use super::{sleep_ms, start, wait_child, working_target};
use profiler_tests::program;
use profiler_tests::support::{Agent, Target, changed_text, output_of};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The watchdog's successor loads the kernel side anew.
const MENDED: Duration = Duration::from_secs(20);
/// In so many rounds the kill falls at least once where breakpoints are left.
const ROUNDS: u32 = 8;

/// A process that is not a child of ours, ended when it goes.
struct Orphan(u32);

impl Orphan {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.cast_signed()).expect("not 0")
    }

    fn signal(&self, signal: Signal) {
        // It ends only by us, so that the number is its own.
        assert_eq!(kill_process(self.pid(), signal), Ok(()), "process {} is gone", self.0);
    }

    fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('-')
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // As above; if it has ended nothing happens.
        let _ = kill_process(self.pid(), Signal::KILL);
    }
}

fn wait_original(pid: u32, what: &str) {
    let begun = Instant::now();
    loop {
        let changes = changed_text(pid).unwrap_or_else(|error| panic!("{what}: {error}"));
        if changes.is_empty() {
            println!("{what}: text original after {:?}", begun.elapsed());
            return;
        }
        assert!(begun.elapsed() < MENDED, "{what} has breakpoints that nobody owns: {changes:?}");
        sleep_ms(20);
    }
}

/// The first byte of each hundredth function, in memory.
struct Text {
    memory: File,
    addresses: Vec<u64>,
    original: Vec<u8>,
}

impl Text {
    fn of(target: &mut Target) -> Self {
        let addresses = (0..2_000).step_by(100).map(|i| target.address(&format!("big{i}"))).collect();
        let memory = File::open(format!("/proc/{}/mem", target.pid())).expect("the target runs");
        let mut text = Self { memory, addresses, original: Vec::new() };
        text.original = text.now();
        text
    }

    fn now(&self) -> Vec<u8> {
        let read = |address: &u64| {
            let mut byte = [0];
            self.memory.read_exact_at(&mut byte, *address).expect("the target runs");
            byte[0]
        };
        self.addresses.iter().map(read).collect()
    }

    fn any_original(&self) -> bool {
        self.now().iter().zip(&self.original).any(|(now, original)| now == original)
    }
}

/// An agent has attached to 2,000 functions, the target forks, and for the child's sake the agent takes all links off: it is killed
/// in the middle of that. With the child, which makes `calls` calls.
fn killed_while_it_detaches(
    target: &mut Target,
    folder: &Path,
    calls: u64,
    stopped: bool,
) -> (Agent, Orphan) {
    let text = Text::of(target);
    let mut agent = Agent::start(target.pid(), folder, &["--count", "big*"]);
    agent.wait_tracing();
    let end = Instant::now() + Duration::from_secs(60);
    while text.any_original() {
        assert!(Instant::now() < end, "not everything is attached: {}", agent.messages());
    }
    target.send(&format!("fork big0 {calls}"));
    let child = Orphan(wait_child(target));
    if stopped {
        // It lives until the end of the round, and makes none of its calls before.
        child.signal(Signal::STOP);
    }
    while !text.any_original() {
        assert!(Instant::now() < end, "the child keeps its breakpoints: {}", agent.messages());
    }
    agent.signal(libc::SIGKILL);
    (agent, child)
}

#[test]
fn a_forked_child_is_mended_beside_the_target() {
    const CALLS: u64 = 20_000_000;
    let Some(folder) = start("a_forked_child_is_mended_beside_the_target") else { return };
    let mut target = working_target();
    for _ in 0..ROUNDS {
        let (agent, child) = killed_while_it_detaches(&mut target, folder.path(), CALLS, true);
        assert_eq!(agent.finish().status.signal(), Some(libc::SIGKILL));
        let left = changed_text(child.0).expect("the child is there").len();
        println!("{left} breakpoints (20 are counted at most) are left in the child");
        wait_original(target.pid(), "target");
        wait_original(child.0, "child");
        child.signal(Signal::CONT);
        let answer = target.receive("fork");
        std::mem::forget(child);
        assert_eq!(answer.number("calls"), CALLS, "the child's result");
        // A breakpoint would take 600 ns or more.
        assert!(answer.number("cpu_ns") < 200 * CALLS, "{answer:?}");
        target.call("entry_push", 1_000, 1);
        if left > 0 {
            return;
        }
    }
    panic!("no kill left a breakpoint in a child, in {ROUNDS} rounds");
}

#[test]
fn a_forked_child_is_mended_when_the_target_is_gone() {
    let Some(folder) = start("a_forked_child_is_mended_when_the_target_is_gone") else { return };
    for _ in 0..ROUNDS {
        let mut target = working_target();
        let (agent, child) = killed_while_it_detaches(&mut target, folder.path(), u64::MAX / 2, false);
        target.kill();
        assert_eq!(agent.finish().status.signal(), Some(libc::SIGKILL));
        let left = changed_text(child.0).expect("the child outlives its parent").len();
        println!("{left} breakpoints (20 are counted at most) are left in the child");
        wait_original(child.0, "child");
        assert_eq!(child.state(), 'R', "the child goes on");
        if left > 0 {
            return;
        }
    }
    panic!("no kill left a breakpoint in a child, in {ROUNDS} rounds");
}

/// As an agent leaves them that is killed while it attaches to several targets, of which the first has ended since.
#[test]
fn every_target_of_a_killed_agent_is_mended() {
    if start("every_target_of_a_killed_agent_is_mended").is_none() {
        return;
    }
    let gone = Target::start("calls");
    let mut left = [Target::start("calls"), Target::start("calls")];
    for target in &mut left {
        let address = target.address("entry_push");
        let memory = File::options().write(true).open(format!("/proc/{}/mem", target.pid()));
        memory.expect("we are root").write_all_at(&[0xcc], address).expect("it is mapped");
        let changes = changed_text(target.pid()).expect("it lives");
        assert_eq!(changes.len(), 1, "{changes:?}");
    }
    let first = gone.pid().to_string();
    gone.kill();
    let [second, third] = left.each_ref().map(|target| target.pid().to_string());
    let mut words = vec!["internal-mend"];
    for pid in [&first, &second, &third] {
        // Nothing is known but the number.
        words.extend([pid, "0", "0", "0", "0", "0", "0"]);
    }
    let output = output_of(program("tithe"), &words);
    assert!(!output.status.success(), "of the first it says that it is gone");
    for target in &mut left {
        target.assert_text_original();
        assert_eq!(target.call("entry_push", 10, 1).calls, 10);
    }
}

/// A target may have ended, and its number be another process's by the time that its agent is killed.
#[test]
fn a_process_that_was_given_the_number_of_a_target_is_left_alone() {
    if start("a_process_that_was_given_the_number_of_a_target_is_left_alone").is_none() {
        return;
    }
    let mut stranger = Target::start("calls");
    let address = stranger.address("entry_push");
    let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", stranger.pid()));
    let memory = memory.expect("we are root");
    let mut original = [0];
    memory.read_exact_at(&mut original, address).expect("it is mapped");
    memory.write_all_at(&[0xcc], address).expect("it is mapped");
    let pid = stranger.pid().to_string();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let (_, fields) = stat.rsplit_once(") ").expect("the name stands in brackets");
    // Field 22 of all (proc_pid_stat(5)), the 20th behind the name.
    let begun: u64 = fields.split(' ').nth(19).and_then(|ticks| ticks.parse().ok()).expect("its begin");
    let mend = |begun: u64| {
        let begun = begun.to_string();
        let output = output_of(program("tithe"), &["internal-mend", &pid, "0", "0", "0", "0", "0", &begun]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut byte = [0];
        memory.read_exact_at(&mut byte, address).expect("it is mapped");
        byte
    };
    assert_eq!(mend(begun - 1), [0xcc], "it is another process than the target was");
    assert_eq!(mend(begun), original);
    stranger.assert_text_original();
}
