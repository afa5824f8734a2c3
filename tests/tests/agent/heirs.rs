//! The agent is killed while it attaches, and the target has forked: the child has inherited breakpoints, and loses them
//! like the target, also where that is gone.

use super::{sleep_ms, start, wait_child, working_target};
use profiler_tests::support::{Agent, Target, changed_text};
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
    fn signal(&self, signal: i32) {
        // SAFETY: plain numbers. It ends only by us, so that the number is its own.
        assert_eq!(unsafe { libc::kill(self.0 as libc::pid_t, signal) }, 0, "process {} is gone", self.0);
    }

    fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('-')
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // SAFETY: as above; if it has ended nothing happens.
        unsafe { libc::kill(self.0 as libc::pid_t, libc::SIGKILL) };
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

/// Starts an agent that attaches to 2,000 functions, and returns it when the first of them has its breakpoint.
fn attaching(target: &mut Target, folder: &Path) -> Agent {
    let original = target.function_bytes("big0", 8);
    let mut agent = Agent::start(target.pid(), folder, &["--count", "big*"]);
    let end = Instant::now() + Duration::from_secs(60);
    while target.function_bytes("big0", 8) == original && agent.is_alive() {
        assert!(Instant::now() < end, "nothing attached: {}", agent.messages());
    }
    agent
}

#[test]
fn a_forked_child_is_mended_beside_the_target() {
    const CALLS: u64 = 20_000_000;
    let Some(folder) = start("a_forked_child_is_mended_beside_the_target") else { return };
    let mut target = working_target();
    let mut left = 0;
    for _ in 0..ROUNDS {
        let agent = attaching(&mut target, folder.path());
        target.send(&format!("fork big0 {CALLS}"));
        let child = Orphan(wait_child(&target));
        // It lives until the end of the round, and none of its calls is made before.
        child.signal(libc::SIGSTOP);
        let inherited = changed_text(child.0).expect("the child is there").len();
        agent.signal(libc::SIGKILL);
        assert_eq!(agent.finish().status.signal(), Some(libc::SIGKILL));
        left += usize::from(changed_text(child.0).is_ok_and(|changes| !changes.is_empty()));
        assert!(inherited > 0, "the child was forked before the first breakpoint");
        wait_original(target.pid(), "target");
        wait_original(child.0, "child");
        child.signal(libc::SIGCONT);
        let answer = target.receive("fork");
        std::mem::forget(child);
        assert_eq!(answer.number("calls"), CALLS, "the child's result");
        // A breakpoint would take 600 ns or more.
        assert!(answer.number("cpu_ns") < 200 * CALLS, "{answer:?}");
        if left > 0 {
            target.call("entry_push", 1_000, 1);
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
        let agent = attaching(&mut target, folder.path());
        target.send("fork big0 1000000000000");
        let child = Orphan(wait_child(&target));
        agent.signal(libc::SIGKILL);
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
