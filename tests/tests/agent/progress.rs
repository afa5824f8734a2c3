//! The overhead is measured on what the kernel counts: a system call, a function, or what the agent finds by itself.

use super::start;
use profiler_tests::support::{Agent, Finished};
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
