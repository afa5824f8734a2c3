//! How a run ends: by itself, by Ctrl-C, with a full disk, with more threads than a table can show.

use super::{counting, exact_calls, paced_calls, recording, sleep_ms, start, working_target};
use profiler_tests::program;
use profiler_tests::support::{Agent, Target};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Aim on an idle machine: 1 s. Here other tests run at the same time.
const SOON: Duration = Duration::from_secs(3);

#[test]
fn ctrl_c_brings_the_report_at_once() {
    let Some(folder) = start("ctrl_c_brings_the_report_at_once") else { return };
    let mut target = working_target();
    let agent = counting(&target, &folder);
    let calls = paced_calls(&mut target, "entry_push", 2, 5_000, 500);
    let path = agent.recording().to_owned();
    let begun = Instant::now();
    let finished = agent.stop();
    let took = begun.elapsed();
    println!("report {took:?} after Ctrl-C");
    assert!(took < SOON, "{took:?}");
    assert_eq!(exact_calls(&finished, "entry_push"), calls);
    assert_eq!(recording(&path).meta.end_reason.as_deref(), Some("interrupted"));
    target.assert_text_original();
}

#[test]
fn a_duration_ends_the_run() {
    let Some(folder) = start("a_duration_ends_the_run") else { return };
    let mut target = Target::start("calls");
    target.start_background("mix", 1, 0, 1);
    let agent = Agent::start_plain(target.pid(), folder.path(), &["--budget", "5%", "--duration", "2s"]);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let seconds = finished.report().duration_s;
    assert!((2.0..3.0).contains(&seconds), "{seconds} s; {}", finished.messages);
    assert_eq!(recording(&path).meta.end_reason.as_deref(), Some("duration"));
    target.assert_text_original();
    assert!(target.stop_background().calls > 0);
}

/// A disk of 512 KiB: the run goes on to its end, and says what it could not write.
#[test]
fn a_full_disk_does_not_end_the_run() {
    let Some(folder) = start("a_full_disk_does_not_end_the_run") else { return };
    let mut target = working_target();
    // The file system is seen by this agent alone, and goes with it.
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=512k none \"$0\" && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(folder.path()).arg(program("tithe"));
    let path = folder.path().join("run.tithe");
    let arguments = ["--only-named", "--budget", "1000ms/s", "--record", "inner"];
    let mut agent = Agent::start_command(command, target.pid(), &path, &arguments);
    agent.wait_tracing();
    sleep_ms(300);
    let calls = paced_calls(&mut target, "inner", 4, 3_000, 7_000);
    assert!(agent.is_alive(), "it ended with the disk: {}", agent.messages());
    let finished = agent.stop();
    let report = finished.report();
    assert!(report.receipt.losses.rows_not_written > 10_000, "{:?}", report.receipt.losses);
    assert!(calls > 50_000, "{calls} calls only: the disk was never full");
    assert!(finished.messages.contains("cannot write"), "nobody was told: {}", finished.messages);
    // Room was kept for what the report is made of.
    assert_eq!(exact_calls(&finished, "inner"), calls, "{}", finished.messages);
    target.assert_text_original();
}

/// Not a test by itself: a process with `TITHE_TEST_THREADS` threads, each of which works a little.
#[test]
fn many_threads() {
    let Ok(text) = std::env::var("TITHE_TEST_THREADS") else { return };
    let n: u64 = text.parse().expect("a number");
    for _ in 0..n {
        let body = || {
            // All together a third of a CPU: a machine that is overloaded starves the agent.
            loop {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(300) {}
                sleep_ms(1_000);
            }
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(body).expect("a thread can be started");
    }
    println!("\nready {n}");
    // The test that started it ends it.
    sleep_ms(120_000);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_thousand_threads_are_sampled() {
    let Some(folder) = start("a_thousand_threads_are_sampled") else { return };
    let child = Command::new("/proc/self/exe")
        .args(["--exact", "ends::many_threads", "--nocapture", "--test-threads=1"])
        .env("TITHE_TEST_THREADS", "1000")
        .stdout(Stdio::null())
        .spawn()
        .expect("this program can be started");
    let child = Killed(child);
    let pid = child.0.id();
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let begun = Instant::now();
    while threads() < 1_000 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} threads", threads());
        sleep_ms(20);
    }
    let agent = Agent::start_plain(pid, folder.path(), &["--budget", "5%", "--duration", "5s"]);
    let path = agent.recording().to_owned();
    let finished = agent.finish();
    let report = finished.report();
    assert!(threads() >= 1_000, "the target died");
    assert_eq!(profiler_tests::support::changed_text(pid).expect("it runs").len(), 0);
    assert!(report.samples > 0, "{}", finished.messages);
    // In each second the watching stays within its budget, after the first, in which the threads are found.
    assert!(report.receipt.predicted <= 0.06, "{:?}", report.receipt);
    let tids: std::collections::BTreeSet<u32> = recording(&path).samples.iter().map(|s| s.tid).collect();
    assert!(tids.len() > 3, "samples of {} threads only", tids.len());
}

/// Without CAP_SYS_NICE the governor has no better priority than the target: people who rely on the budget must know.
#[test]
fn without_real_time_priority_the_run_says_so() {
    let Some(folder) = start("without_real_time_priority_the_run_says_so") else { return };
    let mut target = working_target();
    for drop in [false, true] {
        let path = folder.path().join("run.tithe");
        let mut command = Command::new(program("tithe"));
        if drop {
            command = Command::new("setpriv");
            command.args(["--bounding-set", "-sys_nice"]).arg(program("tithe"));
        }
        let arguments = ["--only-named", "--count", "entry_push", "--budget", "1000ms/s"];
        let mut agent = Agent::start_command(command, target.pid(), &path, &arguments);
        agent.wait_tracing();
        let calls = paced_calls(&mut target, "entry_push", 1, 2_000, 300);
        let finished = agent.stop();
        assert_eq!(exact_calls(&finished, "entry_push"), calls);
        let says =
            |text: &str| text.contains("real-time priority was refused (the governor runs at ordinary");
        assert_eq!(says(&finished.messages.to_string()), drop, "{}", finished.messages);
        assert_eq!(recording(&path).meta.warnings.iter().any(|w| says(w)), drop);
    }
    target.assert_text_original();
}
