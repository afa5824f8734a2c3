use super::*;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const TARGET: u32 = 100;
/// When the agent began.
const BEGUN: u64 = 1_000;

fn target(ancestors: Option<Vec<u32>>) -> Target {
    Target { pid: TARGET, programs: Vec::new(), images: Vec::new(), ancestors }
}

#[test]
fn who_descends_from_the_target_or_may() {
    // Number, parent, start, first of its namespace.
    let all = [
        (1, 0, 0, true),
        (50, 1, 10, false),
        (60, 50, 20, false),
        (TARGET, 60, 30, false),
        (70, 1, 40, false),
        (80, 70, 50, true),
        // Child, grandchild, and those whose parents have ended.
        (200, TARGET, 1_000, false),
        (201, 200, 1_100, false),
        (202, 1, 1_100, false),
        (203, 202, 1_200, false),
        (204, 60, 1_100, false),
        (205, 80, 1_100, false),
        (206, 999, 1_100, false),
        // Forked before the agent began; strangers and their children.
        (300, TARGET, 999, false),
        (301, 70, 1_100, false),
        (302, 301, 1_200, false),
        (303, 50, 20, false),
    ];
    let relatives: HashMap<u32, Relative> = all
        .into_iter()
        .map(|(pid, parent, start_ticks, is_reaper)| (pid, Relative { parent, start_ticks, is_reaper }))
        .collect();
    let found = |target: &Target| -> Vec<u32> {
        let may = |pid: &u32| target.may_descend(*pid, BEGUN, &|pid| relatives.get(&pid).copied());
        let mut found: Vec<u32> = relatives.keys().copied().filter(may).collect();
        found.sort_unstable();
        found
    };
    assert_eq!(found(&target(Some(vec![60, 50, 1]))), [200, 201, 202, 203, 204, 205, 206]);
    // Where its ancestors are not known any process may be one.
    assert_eq!(found(&target(None)), [200, 201, 202, 203, 204, 205, 206, 301, 302]);
}

/// A shell, ended with all that it started when it goes.
struct Shell(Child);

impl Shell {
    /// With the number that it says.
    fn start(script: &str) -> (Self, u32) {
        let mut command = Command::new("/bin/sh");
        let mut child = command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Self(child), line.trim().parse().unwrap())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Somebody of the group is there until here: the shell is collected afterwards.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        self.0.wait().unwrap();
    }
}

#[test]
fn what_the_target_forked_is_its_heir_and_who_runs_the_same_program_is_not() {
    const FORKS: &str = "(while :; do sleep 5; done) & echo $!; wait";
    let (mut shell, child) = Shell::start(FORKS);
    let (stranger, strangers_child) = Shell::start(FORKS);
    let known = Known::of(shell.0.id());
    let target = Target::new(shell.0.id(), Known::default());
    let heirs = target.heirs();
    assert!(heirs.contains(&child), "{child} of {}: {heirs:?}", shell.0.id());
    let strangers = [stranger.0.id(), strangers_child, std::process::id(), shell.0.id()];
    let by_chance = std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap();
    if by_chance.trim() == "0" {
        println!("strangers are not told from heirs: this system places programs at fixed addresses");
    } else {
        assert!(!heirs.iter().any(|heir| strangers.contains(heir)), "{strangers:?}: {heirs:?}");
    }
    // Another program has no heirs among these.
    let programs =
        target.programs.iter().map(|program| FileId { inode: program.inode + 1, ..*program }).collect();
    assert!(Target { programs, ..target }.heirs().is_empty());
    // The target ends, its child lives on.
    shell.0.kill().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while Known::of(child).parent == Some(shell.0.id()) && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let heirs = Target::new(shell.0.id(), known).heirs();
    assert!(heirs.contains(&child), "{child}: {heirs:?}");
    assert!(!heirs.contains(&strangers_child) || by_chance.trim() == "0", "{strangers_child}: {heirs:?}");
}

#[test]
fn a_number_that_was_given_again_makes_nobody_a_target() {
    let (shell, _child) = Shell::start("(while :; do sleep 5; done) & echo $!; wait");
    let now = Known::of(shell.0.id());
    let target = Target::new(shell.0.id(), now);
    assert_eq!((target.pid, target.programs.len()), (shell.0.id(), 2));
    let then = Known { start_ticks: now.start_ticks.map(|ticks| ticks - 1), ..now };
    let target = Target::new(shell.0.id(), then);
    assert_eq!((target.pid, target.programs.len()), (0, 1), "of the stranger nothing is taken");
    // Where it cannot be told it is taken for the target.
    assert!(!Known::default().is_another_than(&now) && !then.is_another_than(&Known::default()));
}
