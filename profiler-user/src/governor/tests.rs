//! Alarms through a real pipe, links that are real descriptors: the write end of a pipe whose reader sees the end.

use super::*;
use crate::watchdog::{EXPEDITE_SWITCH, Watchdog};
use profiler_core::burst::FRESH_NS;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Alarms as 16-byte messages through a pipe.
struct PipeAlarms(OwnedFd);

impl AlarmSource for PipeAlarms {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn next(&mut self) -> Option<Trip> {
        let mut message = [0u64; 2];
        // SAFETY: reads sixteen bytes into an array of ours.
        let n = unsafe { libc::read(self.0.as_raw_fd(), message.as_mut_ptr().cast(), 16) };
        (n == 16).then(|| Trip { class: u32::try_from(message[0]).unwrap(), time_ns: message[1] })
    }
}

struct Bench {
    governor: Governor,
    raise: OwnedFd,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: the array has room for two descriptors, which nobody else owns.
    unsafe {
        assert_eq!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK), 0);
        (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
    }
}

impl Bench {
    fn new(heartbeat: Option<Heartbeat>) -> Self {
        Self::with(LinkTable::new(16).unwrap(), heartbeat)
    }

    fn with(table: LinkTable, heartbeat: Option<Heartbeat>) -> Self {
        let (alarms, raise) = pipe();
        let governor = Governor::start(PipeAlarms(alarms), Arc::new(table), heartbeat).unwrap();
        Self { governor, raise }
    }

    fn table(&self) -> &LinkTable {
        self.governor.table()
    }

    fn raise(&self, class: u64, time_ns: u64) {
        let message = [class, time_ns];
        // SAFETY: writes sixteen bytes of ours; a pipe takes them whole or not at all.
        let n = unsafe { libc::write(self.raise.as_raw_fd(), message.as_ptr().cast(), 16) };
        assert_eq!(n, 16);
    }

    fn closed(&self, count: usize) -> Vec<ClosedLink> {
        let mut closed = Vec::new();
        wait("links to close", || {
            closed.extend(self.table().drain_closed());
            closed.len() >= count
        });
        assert_eq!(closed.len(), count, "{closed:?}");
        closed
    }
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what}: not within 5 s");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Whether the other end of this pipe is closed.
fn is_closed(reader: &OwnedFd) -> bool {
    let mut byte = [0u8];
    let mut file = std::fs::File::from(reader.try_clone().unwrap());
    matches!(file.read(&mut byte), Ok(0))
}

#[test]
fn a_trip_closes_the_links_of_its_class_and_no_other() {
    let bench = Bench::new(None);
    let (seen, link) = pipe();
    let (seen_exit, link_exit) = pipe();
    let (other_seen, other) = pipe();
    bench.table().begin(3);
    assert_eq!(bench.table().register(3, link, 1), Registered::Held);
    assert_eq!(bench.table().register(3, link_exit, 2), Registered::Held);
    assert_eq!(bench.table().register(4, other, 1), Registered::Held);
    let trip_ns = now_ns();
    bench.raise(3, trip_ns);
    let closed = bench.closed(2);
    assert!(is_closed(&seen) && is_closed(&seen_exit) && !is_closed(&other_seen));
    assert!(bench.table().is_tripped(3) && !bench.table().is_tripped(4));
    for link in &closed {
        assert_eq!((link.class, link.reason, link.tripped_by), (3, CloseReason::Tripped, 3));
        assert_eq!(link.trip_ns, trip_ns);
        assert!(trip_ns <= link.taken_ns && link.taken_ns <= link.close_began_ns, "{link:?}");
        assert!(link.close_began_ns <= link.closed_ns);
    }
    let status = bench.governor.status();
    assert_eq!((status.trips, status.repeated, status.stale), (1, 0, 0));
    assert!(status.reaction_max_ns > 0 && status.close_start_max_ns >= status.reaction_max_ns);
}

#[test]
fn a_link_that_comes_after_the_trip_is_closed_at_once() {
    let bench = Bench::new(None);
    bench.table().begin(5);
    bench.raise(5, now_ns());
    wait("the trip", || bench.table().is_tripped(5));
    let (seen, link) = pipe();
    assert_eq!(bench.table().register(5, link, 1), Registered::Tripped);
    assert_eq!(bench.closed(1)[0].reason, CloseReason::TrippedWhileAttaching);
    assert!(is_closed(&seen));
    // A new attachment forgets the trip.
    bench.table().begin(5);
    let (seen, link) = pipe();
    assert_eq!(bench.table().register(5, link, 1), Registered::Held);
    assert!(!is_closed(&seen));
}

#[test]
fn late_repeated_and_nonsensical_alarms_close_nothing() {
    let bench = Bench::new(None);
    let early = now_ns();
    bench.table().begin(1);
    let (seen, link) = pipe();
    bench.table().register(1, link, 1);
    bench.raise(1, early);
    bench.raise(999, now_ns());
    wait("two alarms", || bench.governor.status().stale + bench.governor.status().unknown == 2);
    assert!(!is_closed(&seen));
    bench.raise(1, now_ns());
    bench.closed(1);
    bench.raise(1, now_ns());
    wait("the repeated alarm", || bench.governor.status().repeated == 1);
    assert_eq!(bench.governor.status().trips, 1);
}

#[test]
fn a_shared_link_goes_with_any_class_of_its_group() {
    let bench = Bench::new(None);
    for class in [7, 8] {
        bench.table().join(class, 7);
    }
    let (seen, link) = pipe();
    bench.table().begin(7);
    bench.table().register(7, link, 2);
    bench.raise(8, now_ns());
    let closed = bench.closed(1);
    assert_eq!((closed[0].class, closed[0].tripped_by), (7, 8));
    assert!(is_closed(&seen) && bench.table().is_tripped(7) && bench.table().is_tripped(8));
}

#[test]
fn releasing_is_not_tripping_and_big_links_are_closed_too() {
    let bench = Bench::new(None);
    let (seen, link) = pipe();
    let (seen_big, big) = pipe();
    bench.table().register(2, link, 1);
    assert_eq!(bench.table().release(2), 1);
    assert_eq!(bench.table().release(2), 0);
    assert_eq!(bench.closed(1)[0].reason, CloseReason::Released);
    bench.table().begin(6);
    bench.table().register(6, big, 100_000);
    bench.raise(6, now_ns());
    assert_eq!(bench.closed(1)[0].reason, CloseReason::Tripped);
    assert!(is_closed(&seen) && is_closed(&seen_big) && !bench.table().is_tripped(2));
}

#[test]
fn nothing_is_left_attached_when_the_governor_goes() {
    let bench = Bench::new(None);
    let readers: Vec<OwnedFd> = (0..10)
        .map(|class| {
            let (seen, link) = pipe();
            bench.table().register(class, link, 1);
            seen
        })
        .collect();
    drop(bench);
    assert!(readers.iter().all(is_closed));
}

#[test]
fn registering_and_tripping_at_the_same_time_never_loses_a_link() {
    let bench = Bench::new(None);
    let stop = AtomicBool::new(false);
    let rounds = 2000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Alarms for every class, as fast as the pipe takes them.
            while !stop.load(Ordering::Relaxed) {
                for class in 0..4u64 {
                    let message = [class, now_ns()];
                    // SAFETY: writes sixteen bytes of ours; a full pipe refuses them, which is fine here.
                    unsafe { libc::write(bench.raise.as_raw_fd(), message.as_ptr().cast(), 16) };
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let mut closed = 0;
        for round in 0..rounds {
            let class = round % 4;
            bench.table().begin(class);
            bench.table().register(class, eventfd(0).unwrap(), 1);
            closed += bench.table().drain_closed().len();
        }
        stop.store(true, Ordering::Relaxed);
        bench.table().release_all();
        wait("all links to come back", || {
            closed += bench.table().drain_closed().len();
            closed == rounds as usize
        });
    });
    assert_eq!(bench.table().closing(), 0);
}

#[test]
fn the_drill_measures_a_reaction_and_the_leash_is_on() {
    let bench = Bench::new(None);
    let drill = bench.governor.drill();
    assert_eq!(drill.rounds, 14);
    assert!(drill.median_ns > 500 && drill.median_ns <= drill.max_ns, "{drill:?}");
    assert_eq!(bench.governor.status().trips, 0, "the drill is not counted");
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|l| l.starts_with("Max realtime timeout")).unwrap();
    assert!(line.contains("50000"), "{line}");
    println!("drill: {drill:?}, {:?}", bench.governor.status());
}

const ROLE: &str = "TITHE_GOVERNOR_TEST_ROLE";

/// Parts that need a process of their own. As an ordinary test, without the variable, it is empty.
#[test]
fn agent_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "guarded" | "hung-loop" => {
            let watchdog = Watchdog::start().unwrap();
            let bench = Bench::new(Some(watchdog.heartbeat()));
            watchdog.heartbeat().arm();
            if role == "hung-loop" {
                bench.governor.pulse();
            }
            std::thread::sleep(Duration::from_secs(if role == "guarded" { 3 } else { 60 }));
        }
        "unprivileged" => {
            // SAFETY: changes the rights of this process only, before it has started anything.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
            }
            let bench = Bench::new(None);
            let status = bench.governor.status();
            assert_eq!((status.priority, status.locked), (Priority::Ordinary, false));
            bench.table().begin(1);
            let (seen, link) = pipe();
            bench.table().register(1, link, 1);
            bench.raise(1, now_ns());
            bench.closed(1);
            assert!(is_closed(&seen));
        }
        "killed-in-a-close" | "stopped-in-a-close" => {
            let watchdog = Watchdog::start().unwrap();
            let bench = Bench::with(LinkTable::new(16).unwrap().expedited(), Some(watchdog.heartbeat()));
            watchdog.heartbeat().arm();
            bench.table().begin(2);
            let (_peer, link) = lingering();
            bench.table().register(2, link, 1);
            std::thread::sleep(Duration::from_millis(20));
            // It has exploded long after its attach.
            bench.raise(2, now_ns());
            wait("short grace periods", || switch() == "1");
            let signal = if role == "killed-in-a-close" { libc::SIGKILL } else { libc::SIGSTOP };
            // SAFETY: signals our own process.
            unsafe { libc::kill(libc::getpid(), signal) };
            std::thread::sleep(Duration::from_secs(60));
        }
        other => panic!("unknown role {other}"),
    }
    std::process::exit(3);
}

fn run_role(role: &str) -> std::process::ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "governor::tests::agent_role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn the_governor_keeps_its_agent_alive() {
    assert_eq!(run_role("guarded").code(), Some(3));
}

#[test]
fn a_hung_event_loop_loses_the_heartbeat() {
    let start = Instant::now();
    assert_eq!(run_role("hung-loop").signal(), Some(libc::SIGKILL));
    assert!(start.elapsed() >= PULSE_LIMIT);
}

#[test]
fn without_rights_it_works_at_ordinary_priority() {
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIP not root: there are no rights to give up");
        return;
    }
    assert_eq!(run_role("unprivileged").code(), Some(3));
}

/// A killed process closes its descriptors one after the other, threads with tables of their own do it side by side.
#[test]
fn links_are_kept_by_the_closers_and_not_by_the_main_table() {
    let bench = Bench::new(None);
    let (seen, link) = pipe();
    let inode = |fd: BorrowedFd<'_>| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    let pipe_name = inode(link.as_fd());
    let open = || {
        let ours = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        // The reader's end has the same name.
        ours.filter_map(|e| std::fs::read_link(e.path()).ok()).filter(|name| *name == pipe_name).count()
    };
    assert_eq!(open(), 2);
    bench.table().begin(3);
    assert_eq!(bench.table().register(3, link, 1), Registered::Held);
    assert_eq!((open(), is_closed(&seen)), (1, false), "still open, but not here");
    // A big one stays: a real-time thread must not close it.
    let (other, big) = pipe();
    let big_name = inode(big.as_fd());
    bench.table().register(4, big, 100_000);
    let ours = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let here =
        ours.filter_map(|e| std::fs::read_link(e.path()).ok()).filter(|name| *name == big_name).count();
    assert_eq!((here, is_closed(&other)), (2, false));
    bench.table().release(3);
    bench.closed(1);
    assert!(is_closed(&seen));
    // At the end all closers help, but only those close it that can.
    bench.table().release_all();
    bench.closed(1);
    assert!(is_closed(&other));
}

#[test]
fn an_alarm_from_before_the_gates_opened_does_not_close_what_is_open() {
    let bench = Bench::new(None);
    let (seen, link) = pipe();
    bench.table().begin(6);
    assert_eq!(bench.table().register(6, link, 1), Registered::Held);
    // Hits that were turned away while the link was being made; the alarm comes late.
    let flood_ns = now_ns();
    std::thread::sleep(Duration::from_millis(1));
    assert!(bench.table().open_gates(6));
    bench.raise(6, flood_ns);
    wait("the stale alarm", || bench.governor.status().stale == 1);
    assert!(!bench.table().is_tripped(6) && !is_closed(&seen));
    // What the quota says afterwards counts.
    bench.raise(6, now_ns());
    assert_eq!(bench.closed(1)[0].reason, CloseReason::Tripped);
    assert!(is_closed(&seen));
}

#[test]
fn gates_that_would_open_on_a_tripped_group_say_so() {
    let bench = Bench::new(None);
    let (seen, link) = pipe();
    bench.table().begin(7);
    assert_eq!(bench.table().register(7, link, 1), Registered::Held);
    bench.raise(7, now_ns());
    assert_eq!(bench.closed(1)[0].reason, CloseReason::Tripped);
    assert!(is_closed(&seen) && !bench.table().open_gates(7));
}

/// A descriptor whose closing takes a minute, as that of a link takes a grace period: a socket that lingers over what its peer does
/// not read.
pub(super) fn lingering() -> (std::net::TcpStream, OwnedFd) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 60 };
    let size = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap();
    let pointer = (&raw const linger).cast();
    // SAFETY: the kernel reads one `linger`, which is ours.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, pointer, size) };
    assert_eq!(result, 0);
    (peer, socket.into())
}

/// Whether the machine's grace periods are short.
fn switch() -> String {
    std::fs::read_to_string(switch_path()).unwrap().trim().to_owned()
}

fn switch_path() -> &'static str {
    EXPEDITE_SWITCH.to_str().unwrap()
}

/// Puts the switch back, however the test ends.
struct Normal;

impl Drop for Normal {
    fn drop(&mut self) {
        let _ = std::fs::write(switch_path(), "0");
    }
}

/// From the closer that turns the switch to the watchdog that turns it back, with the kernel's own. The only test of this program that
/// touches it.
#[test]
fn grace_periods_do_not_stay_short_when_the_agent_dies_in_a_close() {
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 || !std::path::Path::new(switch_path()).exists() {
        eprintln!("SKIP not root, or no {}", switch_path());
        return;
    }
    for role in ["killed-in-a-close", "stopped-in-a-close"] {
        // An agent elsewhere on this machine has it for milliseconds only.
        wait("the switch to be off", || switch() == "0");
        let _normal = Normal;
        // Else it ends by itself: it never saw the switch on.
        assert_eq!(run_role(role).signal(), Some(libc::SIGKILL), "{role}");
        wait("the watchdog to turn the switch back", || switch() == "0");
    }
}

#[test]
fn a_closed_link_says_whether_grace_periods_were_short() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
    std::fs::write(file.path(), "0\n").unwrap();
    let bench = Bench::with(LinkTable::new(16).unwrap().expedited_by(open()), None);
    let closed = |class: u32, old: bool| {
        // On a busy machine it may be old by the time that it is taken.
        for _ in 0..100 {
            let (seen, link) = pipe();
            bench.table().begin(class);
            let begun_ns = now_ns();
            assert_eq!(bench.table().register(class, link, 1), Registered::Held);
            if old {
                std::thread::sleep(Duration::from_millis(10));
            }
            // The event loop opens the gates when it comes to it; that makes the link no younger.
            assert!(bench.table().open_gates(class));
            bench.raise(u64::from(class), now_ns());
            let closed = bench.closed(1)[0];
            assert!(closed.reason == CloseReason::Tripped && is_closed(&seen));
            let age_ns = closed.close_began_ns - closed.attached_ns;
            assert!(closed.attached_ns >= begun_ns && age_ns >= if old { 10_000_000 } else { 0 });
            if old || closed.taken_ns < begun_ns + FRESH_NS {
                return closed.expedited;
            }
        }
        panic!("no answer within 5 ms in 100 rounds");
    };
    assert!(closed(1, true), "long after its attach");
    assert!(!closed(2, false), "at once after its attach");
    assert!(std::fs::read_to_string(file.path()).unwrap().starts_with('0'));
    // Somebody else has set it: it is not ours to say how long it stays.
    std::fs::write(file.path(), "1\n").unwrap();
    assert!(!closed(3, true));
    // Released, nobody hurries.
    std::fs::write(file.path(), "0\n").unwrap();
    let (_seen, link) = pipe();
    bench.table().begin(4);
    bench.table().register(4, link, 1);
    std::thread::sleep(Duration::from_millis(10));
    bench.table().release(4);
    assert!(!bench.closed(1)[0].expedited);
}
