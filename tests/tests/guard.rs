//! What a target must survive of its agent: the agent is stopped, and its traps go within a second and a half; a
//! program is launched as another user. Needs root.

use profiler_core::class::ClassId;
use profiler_tests::support::{Target, kernel_or_skip};
use profiler_user::governor::{Governor, LinkTable};
use profiler_user::prober::{AttachGroup, ClassControl, ClassKind, Kernel, KernelOptions, LinkKind, Site};
use profiler_user::target::{self, LaunchUser, TargetError};
use profiler_user::watchdog::Watchdog;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const AGENT: &str = "TITHE_TEST_AGENT";

/// Not a test by itself: the agent that is stopped. `TITHE_TEST_AGENT` holds "PID OFFSET".
#[test]
fn agent() {
    let Ok(text) = std::env::var(AGENT) else { return };
    let (pid, offset) = text.split_once(' ').unwrap();
    let watchdog = Watchdog::start().unwrap();
    let kernel = Kernel::load(&KernelOptions { max_classes: 16, ..KernelOptions::default() }).unwrap();
    let table = Arc::new(LinkTable::new(16).unwrap());
    let governor =
        Governor::start(kernel.alarm_reader().unwrap(), table, Some(watchdog.heartbeat())).unwrap();
    let class = ClassId(5);
    let group = AttachGroup {
        module: profiler_tests::program("calls"),
        pid: pid.parse().unwrap(),
        kind: LinkKind::Count,
        sites: vec![Site::entry(class, offset.parse().unwrap())],
    };
    watchdog.heartbeat().arm();
    governor.table().begin(class.0);
    kernel.classes().set_quota(class, i64::MAX / 2);
    kernel.classes().configure(class, ClassControl::new(ClassKind::Count));
    governor.table().register_all(class.0, kernel.attach(&group).unwrap().link.into_parts());
    // Longer than the watchdog's patience: the governor's heartbeat keeps us alive.
    std::thread::sleep(Duration::from_millis(1500));
    // In the middle of taking a class off that exploded.
    watchdog.heartbeat().note_expedited(true);
    std::fs::write(SWITCH, "1").unwrap();
    println!("\nattached");
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

fn file_offset(pid: u32, address: u64) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    maps.lines()
        .find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let offset = hex(fields.nth(1)?);
            (hex(start)..hex(end)).contains(&address).then(|| address - hex(start) + offset)
        })
        .expect("the function is mapped")
}

/// The machine's grace periods.
const SWITCH: &str = "/sys/kernel/rcu_expedited";

/// Puts the switch back, however the test ends.
struct Normal;

impl Drop for Normal {
    fn drop(&mut self) {
        let _ = std::fs::write(SWITCH, "0");
    }
}

#[test]
fn a_stopped_agent_leaves_no_trap() {
    if !kernel_or_skip("a_stopped_agent_leaves_no_trap") {
        return;
    }
    let switch = || std::fs::read_to_string(SWITCH).unwrap().trim().to_owned();
    assert_eq!(switch(), "0", "somebody has set {SWITCH}; the test would change that");
    let _normal = Normal;
    let mut target = Target::start("calls");
    let address = target.address("entry_push");
    let original = target.function_bytes("entry_push", 8);
    let offset = file_offset(target.pid(), address);
    let mut agent = Command::new("/proc/self/exe")
        .args(["--exact", "agent", "--nocapture", "--test-threads=1"])
        .env(AGENT, format!("{} {offset}", target.pid()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let attached = BufReader::new(agent.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "attached");
    if !attached {
        let _ = agent.kill();
        panic!("the agent did not attach: {:?}", agent.wait());
    }
    let start = Instant::now();
    assert_ne!(target.function_bytes("entry_push", 8), original, "the trap is there");
    while target.function_bytes("entry_push", 8) != original {
        if start.elapsed() > Duration::from_secs(4) {
            let _ = agent.kill();
            let _ = agent.wait();
            panic!("the trap is still there after 4 s");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = start.elapsed();
    println!("stopped agent: trap gone after {took:?}");
    assert_eq!(agent.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(took < Duration::from_millis(1500), "{took:?}");
    // The watchdog set it back before it became the program that mends the text.
    let start = Instant::now();
    while switch() != "0" {
        assert!(start.elapsed() < Duration::from_secs(4), "grace periods are still short");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(target.call("entry_push", 1000, 1).calls, 1000);
    target.assert_text_original();
}

#[test]
fn a_program_is_launched_as_the_user_asked_for() {
    if !kernel_or_skip("a_program_is_launched_as_the_user_asked_for") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The user must be able to write there.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let file = dir.path().join("who");
    let user = LaunchUser {
        uid: 65534,
        gid: 65534,
        groups: vec![65534, 12345],
        home: "/nonexistent".into(),
        name: "nobody".into(),
    };
    target::remember_limits();
    let script =
        format!("{{ id -u; id -G; echo $HOME $USER ${{SUDO_UID-unset}}; ulimit -n; }} > {}", file.display());
    // A lower limit of this process; the launched program must get the remembered one.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(500), ..limit }).unwrap();
    let held = target::launch("sh".as_ref(), &["-c".into(), script.into()], Some(&user)).unwrap();
    assert_eq!(held.target().uid().unwrap(), 65534);
    let (_, mut child) = held.resume().unwrap();
    assert!(child.wait().unwrap().success());
    setrlimit(Resource::Nofile, limit).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "65534");
    assert_eq!(lines[1], "65534 12345");
    assert_eq!(lines[2], "/nonexistent nobody unset");
    assert_eq!(lines[3], limit.current.map_or("unlimited".to_owned(), |soft| soft.to_string()));
}

/// Not a test by itself: tries to attach to the process given, as whoever we are.
#[test]
fn attacher() {
    let Ok(pid) = std::env::var("TITHE_TEST_ATTACHER") else { return };
    match target::Target::attach(pid.parse().unwrap()) {
        Err(error @ TargetError::OtherUser { .. }) => println!("\nrefused: {error}"),
        other => println!("\nunexpected: {other:?}"),
    }
}

#[test]
fn a_process_of_another_user_is_refused_by_name() {
    if !kernel_or_skip("a_process_of_another_user_is_refused_by_name") {
        return;
    }
    let target = Target::start("calls");
    // A copy that the other user may execute.
    let dir = tempfile::Builder::new().prefix("tithe").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = dir.path().join("attacher");
    std::fs::copy("/proc/self/exe", &copy).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", "attacher", "--nocapture", "--test-threads=1"])
        .env("TITHE_TEST_ATTACHER", target.pid().to_string())
        .uid(65534)
        .gid(65534)
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = format!(
        "refused: process {} belongs to user 0 and we run as user 65534: not permitted to look into it; run with sudo",
        target.pid()
    );
    assert!(text.lines().any(|l| l == expected), "{text}");
}
