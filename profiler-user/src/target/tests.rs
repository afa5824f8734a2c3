//! Against real processes; none of these needs root.

use super::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A child that is killed and collected when the test ends, however it ends.
struct Guard(Child);

impl Guard {
    fn spawn(program: &str, args: &[&str]) -> Self {
        Self(Command::new(program).args(args).stdout(Stdio::null()).spawn().expect("a standard program"))
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what}: not within 5 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn attach_tells_who_the_process_is() {
    let child = Guard::spawn("sleep", &["100"]);
    let target = Target::attach(child.pid()).unwrap();
    wait_until("exec of sleep", || target.cmdline().unwrap().first().is_some_and(|a| a == "sleep"));
    assert_eq!(target.cmdline().unwrap(), ["sleep", "100"]);
    assert_eq!(target.exe().unwrap().file_name().unwrap(), "sleep");
    assert_eq!(target.threads().unwrap(), [child.pid()]);
    assert_eq!(target.uid().unwrap(), rustix::process::geteuid().as_raw());
    assert!(target.start_ticks() > 0 && target.is_alive());
}

#[test]
fn the_end_is_seen_and_questions_then_say_so() {
    let mut child = Guard::spawn("sleep", &["100"]);
    let target = Target::attach(child.pid()).unwrap();
    child.0.kill().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(5), target.exited()).await })
        .expect("the pidfd wakes up")
        .unwrap();
    assert!(!target.is_alive());
    assert!(matches!(target.cpu_time_ns(), Err(TargetError::Exited { .. })));
    child.0.wait().unwrap();
    assert!(matches!(target.threads(), Err(TargetError::Exited { .. })));
    assert!(matches!(target.cmdline(), Err(TargetError::Exited { .. })));
}

#[test]
fn each_reason_not_to_attach_has_its_own_words() {
    let ours = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(Target::attach(ours), Err(TargetError::Ourselves { .. })));
    assert!(matches!(Target::attach(0), Err(TargetError::Missing { pid: 0 })));
    assert!(matches!(Target::attach(i32::MAX), Err(TargetError::Missing { .. })));

    // A zombie: ended, not yet waited for.
    let child = Guard::spawn("true", &[]);
    let name = format!("/proc/{}/stat", child.pid());
    wait_until("the end of true", || std::fs::read_to_string(&name).unwrap().contains(") Z "));
    let error = Target::attach(child.pid()).unwrap_err();
    assert!(matches!(error, TargetError::Zombie { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("zombie") && text.contains("(true)") && text.contains(&ours.to_string()), "{text}");

    // A thread's number.
    let (send, receive) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        send.send(rustix::thread::gettid().as_raw_pid()).unwrap();
        let _ = stopped.recv();
    });
    let tid = receive.recv().unwrap();
    let error = Target::attach(tid).unwrap_err();
    assert!(matches!(error, TargetError::Thread { pid, tgid } if pid == tid && tgid == ours), "{error}");
    drop(stop);
    thread.join().unwrap();

    // kthreadd is always PID 2, where the kernel's threads are visible at all.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|n| n.trim() == "kthreadd") {
        let error = Target::attach(2).unwrap_err();
        assert!(matches!(error, TargetError::KernelThread { .. }), "{error}");
    }
}

#[test]
fn cpu_clocks_run_with_the_target_and_agree() {
    let busy = Guard::spawn("sh", &["-c", "while :; do :; done"]);
    let idle = Guard::spawn("sleep", &["100"]);
    let (busy, idle) =
        (Target::attach(busy.pid()).map(|t| (busy, t)).unwrap(), Target::attach(idle.pid()).unwrap());
    let before = (busy.1.cpu_time_ns().unwrap(), idle.cpu_time_ns().unwrap());
    wait_until("50 ms of CPU", || busy.1.cpu_time_ns().unwrap() - before.0 > 50_000_000);
    assert!(idle.cpu_time_ns().unwrap() - before.1 < 20_000_000, "sleep uses no CPU");
    let process = busy.1.cpu_time_ns().unwrap();
    let thread = busy.1.thread_cpu_ns(busy.1.pid()).unwrap().unwrap();
    assert!(thread.abs_diff(process) < 40_000_000, "one thread: {thread} against {process}");
    assert_eq!(busy.1.thread_cpu_ns(i32::MAX).unwrap(), None);
}

#[test]
fn the_switch_meter_counts_a_sleepy_target() {
    let child = Guard::spawn("sh", &["-c", "while :; do sleep 0.002; done"]);
    let target = Target::attach(child.pid()).unwrap();
    let mut meter = SwitchMeter::new(&target).unwrap();
    let mut total = 0;
    wait_until("20 switches", || {
        total += meter.advance(&target).unwrap();
        total >= 20
    });
    assert!(total < 1_000_000, "{total} is no count of a few milliseconds");
}

#[test]
fn a_launched_program_waits_for_its_first_instruction() {
    let file = std::env::temp_dir().join(format!("tithe-launch-{}", std::process::id()));
    let script = format!("echo ran > {}; exit 7", file.display());
    let mut held = launch("sh".as_ref(), &["-c".into(), script.into()], None).unwrap();
    // The new image is there, the loader has not run: no C library is mapped.
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", held.target().pid())).unwrap();
    assert!(!maps().contains("libc.so"), "{}", maps());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!file.exists(), "it ran while it was held");
    assert_eq!(held.target().exe().unwrap(), std::fs::canonicalize("/bin/sh").unwrap());

    held.run_to_entry(|| ()).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", held.target().pid())).unwrap();
    assert!(maps.contains("libc.so"), "the loader has mapped the libraries: {maps}");
    assert!(!file.exists(), "it ran beyond its entry point");

    let (target, mut child) = held.resume().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(!target.is_alive());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "ran\n");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_dropped_launch_leaves_no_process() {
    let held = launch("sleep".as_ref(), &["100".into()], None).unwrap();
    let pid = held.target().pid();
    drop(held);
    assert!(matches!(Target::attach(pid), Err(TargetError::Missing { .. })));
}

#[test]
fn a_released_program_is_untraced_and_takes_signals() {
    let (target, mut child) = launch("sleep".as_ref(), &["100".into()], None).unwrap().resume().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", target.pid())).unwrap();
    assert!(status.contains("TracerPid:\t0"), "{status}");
    rustix::process::kill_process(Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_program_that_cannot_run_is_an_error_with_its_name() {
    let error = launch("/nonexistent/tithe".as_ref(), &[], None).unwrap_err();
    assert!(matches!(&error, LaunchError::Exec { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("'/nonexistent/tithe'") && text.contains("No such file"), "{text}");
}
