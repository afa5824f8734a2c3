//! The overhead is measured on what the kernel counts: a system call, a function, or what the agent finds by itself.

use super::{recording, sleep_ms, start};
use profiler_core::recording::OperationWindowRow;
use profiler_tests::support::{Agent, Finished, Target};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Copies zeros for ever: nothing but `read` and `write`, a MiB each.
struct Copying(Child);

impl Copying {
    fn start() -> Self {
        let child = Command::new("dd")
            .args(["if=/dev/zero", "of=/dev/null", "bs=1M"])
            .stderr(Stdio::null())
            .spawn()
            .expect("dd is everywhere");
        Self(child)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn record(target: &Copying, folder: &TempDir, arguments: &[&str]) -> Finished {
    let mut all = vec!["--duration", "15s", "--budget", "50%"];
    all.extend(arguments);
    Agent::start_plain(target.0.id(), folder.path(), &all).finish()
}

#[test]
fn the_overhead_is_measured_on_a_system_call_that_was_named_or_found() {
    let Some(folder) = start("the_overhead_is_measured_on_a_system_call_that_was_named_or_found") else {
        return;
    };
    let target = Copying::start();
    for (arguments, metric) in
        [(&["--progress", "syscall:write"][..], "the system call write"), (&[][..], "the system call ")]
    {
        let finished = record(&target, &folder, arguments);
        let receipt = &finished.report().receipt;
        // A machine on which others make a million system calls a second is spared.
        if receipt.measured.is_none() && finished.messages.contains("from other processes") {
            eprintln!("SKIP {metric}: {}", finished.messages);
            continue;
        }
        let measured = receipt.measured.as_ref().unwrap_or_else(|| panic!("{}", finished.messages));
        assert!(measured.metric.contains(metric), "{measured:?}");
        assert!(measured.metric.ends_with("read") || measured.metric.ends_with("write"), "{measured:?}");
        assert!(
            measured.pairs >= 3 && measured.low <= measured.value && measured.value <= measured.high,
            "{measured:?}"
        );
        assert!(measured.note.contains("counting"), "{measured:?}");
        assert!(finished.messages.contains("reachable by the end: +-"), "{}", finished.messages);
    }
}

#[test]
fn without_windows_off_nothing_is_measured_and_nothing_is_counted() {
    let Some(folder) = start("without_windows_off_nothing_is_measured_and_nothing_is_counted") else {
        return;
    };
    let target = Copying::start();
    for arguments in [&["--no-ab"][..], &["--progress", "none"]] {
        let finished = record(&target, &folder, arguments);
        let receipt = &finished.report().receipt;
        assert_eq!(receipt.measured, None, "{}", finished.messages);
        assert!(!receipt.spent_s.contains_key(&profiler_core::recording::Charge::Progress), "{receipt:?}");
    }
}

/// Operations that are in flight when functions are detached for a window off are timed all the same: short ones are waited for
/// where it matters, the functions of long ones stay.
#[test]
fn windows_off_cut_no_operation() {
    let Some(folder) = start("windows_off_cut_no_operation") else { return };
    for (most_us, threads) in [(2_000, 8), (120_000, 32)] {
        let mut target = Target::start("calls");
        target.start_background("sleep_uneven_us", threads, 0, most_us / 2);
        let arguments = [
            "--budget",
            "500ms/s",
            "--operation",
            "op=sleep_uneven_us",
            "--progress",
            "syscall:clock_nanosleep",
        ];
        let mut agent = Agent::start_plain(target.pid(), folder.path(), &arguments);
        agent.wait_message("tithe: following operations");
        sleep_ms(13_000);
        let path = agent.recording().to_owned();
        let finished = agent.stop();
        let recorded = recording(&path);
        let sum = |of: fn(&OperationWindowRow) -> u64| recorded.operation_windows.iter().map(of).sum::<u64>();
        let (begun, ended, unmatched) = (sum(|w| w.begun), sum(|w| w.population), sum(|w| w.unmatched));
        let context = format!("{most_us} us: {begun} {ended} {unmatched}; {}", finished.messages);
        println!("{most_us} us: {begun} begun, {ended} ended, {unmatched} unmatched");
        let pairs = finished.report().receipt.measured.as_ref().map_or(0, |m| m.pairs);
        assert!(pairs >= 3, "{pairs} windows off; {context}");
        // One in hundreds may be lost where so many are short; at the end those in flight are.
        // Those that were in flight when recording began have ended, and their begin was not counted.
        assert!(ended <= begun + u64::from(threads), "{context}");
        let lost = begun.saturating_sub(ended + u64::from(threads));
        assert!(lost as f64 <= 0.005 * begun as f64, "{context}");
        assert!(ended > 100, "{context}");
        target.assert_text_original();
    }
}
