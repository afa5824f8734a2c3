//! Real agents: this test binary runs itself again, and the copy starts a watchdog and misbehaves.

use super::*;
use crate::target::{Target, TargetError};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

const ROLE: &str = "TITHE_WATCHDOG_TEST_ROLE";

/// The agent's part. As an ordinary test, without the variable, it is empty.
#[test]
fn agent_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let watchdog = Watchdog::start().unwrap();
    let beat = watchdog.heartbeat();
    let pid = pid_of(&watchdog);
    if role != "stopped-disarmed" {
        beat.arm();
    }
    println!("\nwatchdog {pid} {} {}", watchdog.is_locked(), watchdog.is_realtime());
    match role.as_str() {
        "stopped-armed" | "stopped-disarmed" => {
            // SAFETY: stops our own process.
            unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
            // Another thread may take the signal: this one runs on for a moment.
            std::thread::sleep(Duration::from_secs(60));
        }
        "hanging" => loop {
            std::hint::spin_loop();
        },
        "beating" => {
            let end = Instant::now() + Duration::from_millis(2500);
            while Instant::now() < end {
                beat.beat();
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        "disarmed-again" => {
            beat.disarm();
            std::thread::sleep(Duration::from_millis(2500));
        }
        other => panic!("unknown role {other}"),
    }
    // End as an agent that forgets to drop: the watchdog must go by itself.
    std::process::exit(3);
}

fn pid_of(watchdog: &Watchdog) -> i32 {
    let path = format!("/proc/self/fdinfo/{}", watchdog.heartbeat.watchdog.as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().find_map(|l| l.strip_prefix("Pid:")).unwrap().trim().parse().unwrap()
}

struct Agent {
    child: Child,
    watchdog: i32,
}

impl Agent {
    fn run(role: &str) -> Self {
        Self::run_with(role, Stdio::piped())
    }

    fn run_with(role: &str, stderr: Stdio) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "watchdog::tests::agent_role", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut line = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .find(|l| l.starts_with("watchdog "))
            .expect("the agent reports its watchdog");
        let watchdog = line.split_off("watchdog ".len()).split(' ').next().unwrap().parse().unwrap();
        Self { child, watchdog }
    }

    /// What its standard error has got until nobody has it any more.
    fn said(&mut self) -> String {
        read_to_end(self.child.stderr.take().unwrap())
    }

    /// Its status if it ends within `limit`, with the time that took.
    fn end_within(&mut self, limit: Duration) -> Option<(ExitStatus, Duration)> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some((status, start.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// It is killed within the promised time. It fell silent when it had told its watchdog's number.
    fn assert_killed_in_time(&mut self) {
        let (status, took) = self.end_within(Duration::from_secs(4)).expect("it is killed");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        assert!(took >= Duration::from_millis(800), "killed too early: {took:?}");
        assert!(took <= Duration::from_millis(1500), "killed too late: {took:?}");
    }

    fn watchdog_gone(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            match Target::attach(self.watchdog) {
                Err(TargetError::Missing { .. } | TargetError::Zombie { .. }) => return true,
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        false
    }
}

fn read_to_end(mut from: impl Read) -> String {
    let mut said = String::new();
    from.read_to_string(&mut said).unwrap();
    said
}

const WORDS: &str = "tithe: killed by its own watchdog: ";

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_stopped_agent_is_killed_within_a_second_and_a_half() {
    let mut agent = Agent::run("stopped-armed");
    agent.assert_killed_in_time();
    assert!(agent.watchdog_gone());
    let said = agent.said();
    assert!(said.contains(WORDS) && said.ends_with('\n'), "{said}");
}

/// As under systemd. A socket cannot be opened once more by its path in /proc.
#[test]
fn the_reason_arrives_at_a_socket() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut agent = Agent::run_with("stopped-armed", OwnedFd::from(theirs).into());
    agent.assert_killed_in_time();
    let said = read_to_end(ours);
    assert!(said.contains(WORDS) && said.ends_with('\n'), "{said}");
}

/// Nobody reads what it would say: the pipe is full. That holds up neither the kill nor what the watchdog does then, and
/// who waits to say it gives up.
#[test]
fn a_hanging_agent_is_killed_in_time_whose_standard_error_is_full() {
    let (ours, mut theirs) = std::io::pipe().unwrap();
    // SAFETY: takes and gives integers.
    let size = unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    theirs.write_all(&vec![b'x'; usize::try_from(size).unwrap()]).unwrap();
    let mut agent = Agent::run_with("hanging", theirs.into());
    agent.assert_killed_in_time();
    assert!(agent.watchdog_gone());
    std::thread::sleep(Duration::from_secs(u64::from(words::PATIENCE_S) + 1));
    assert_eq!(read_to_end(ours).trim_end_matches('x'), "");
}

#[test]
fn a_stopped_agent_with_nothing_attached_is_left_alone() {
    let mut agent = Agent::run("stopped-disarmed");
    assert!(agent.end_within(Duration::from_millis(2500)).is_none(), "it must not be killed");
    assert!(!agent.watchdog_gone(), "the watchdog stays with its agent");
    drop(agent.child.kill());
    agent.child.wait().unwrap();
    assert!(agent.watchdog_gone());
}

#[test]
fn agents_that_beat_or_disarm_live_and_leave_no_watchdog() {
    let mut agents = [Agent::run("beating"), Agent::run("disarmed-again")];
    for agent in &mut agents {
        let (status, _) = agent.end_within(Duration::from_secs(6)).expect("it ends by itself");
        assert_eq!(status.code(), Some(3));
        // Who reads its standard error (`2>&1 | less`) need not wait for the watchdog.
        let end = Instant::now();
        assert!(!agent.said().contains("watchdog"));
        assert!(end.elapsed() < Duration::from_millis(500), "{:?}", end.elapsed());
        assert!(agent.watchdog_gone());
    }
}

#[test]
fn a_dropped_watchdog_is_gone_and_collected() {
    let watchdog = Watchdog::start().unwrap();
    let pid = pid_of(&watchdog);
    assert!(watchdog.is_alive());
    // It holds nothing but the pidfd and standard error, and the program that mends does not get the latter.
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: BTreeSet<_> = open.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(open, ["0", "2"].map(Into::into).into());
    let flags = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/2")).unwrap();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
    assert_ne!(i32::from_str_radix(flags.trim(), 8).unwrap() & libc::O_CLOEXEC, 0);
    drop(watchdog);
    assert!(matches!(Target::attach(pid), Err(TargetError::Missing { .. })));
}
