//! The dead man's switch: a tiny process that kills the agent when it stops answering while it has traps armed.
//!
//! A breakpoint costs the target its price at every hit for as long as the agent lives, whether the agent runs or
//! not. An agent that was stopped (`SIGSTOP`, Ctrl-Z), is deadlocked or waits for swapped-out memory cannot take
//! its breakpoints away. A process that outlives such states can: it kills the agent, and the kernel closes the
//! agent's links with it.
//!
//! The two share one page: the agent counts up a heartbeat there and says whether anything is attached (*armed*).
//! The watchdog looks every 100 ms, and when the count has stood still for 1 s while armed it sends `SIGKILL`
//! through a pidfd, which cannot hit another process. It is forked before the agent has threads or BPF
//! descriptors, closes every descriptor except that pidfd and standard error, locks its memory, takes real-time
//! priority where allowed, ignores signals, and ends with the agent.
//!
//! The kill comes first. What may wait for memory, for a disk or for a reader follows when the agent is dead: the switch
//! below, what a shell does not say (`words.rs`), mending.
//!
//! An agent that is killed in the middle of attaching or detaching leaves breakpoints that nobody owns (see
//! [`crate::mend`]); so when an armed agent dies, by our hand or another's, the watchdog becomes the program that takes
//! them out.
//!
//! An agent that dies while it has shortened the machine's grace periods (`governor/expedite.rs`) leaves the switch as it is:
//! the watchdog sets it back.
//!
//! It does not decide anything else, and does not look at what the agent does: a beat is sent by the governor
//! thread, which withholds it when the event loop hangs.

mod slots;
mod words;

pub use slots::{MOST_TARGETS, WatchSlot};

use crate::mend::heirs::Known;
use crate::target::pidfd_open;
use slots::Slots;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Silence while armed after which the agent is killed.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(1);
/// How often the watchdog looks. With the limit: a dead agent is killed 1.0 to 1.2 s after its last beat, if the watchdog gets a CPU.
const LOOK: Duration = Duration::from_millis(100);
/// A look that comes late (the watchdog itself did not run, the machine was paused) counts as at most this much
/// silence, so that a pause of the whole machine kills nobody.
const LONGEST_LOOK: Duration = Duration::from_millis(200);

/// The machine's switch for short grace periods. `governor/expedite.rs` turns it, and the watchdog of an agent that dies meanwhile turns it
/// back. See `Documentation/admin-guide/kernel-parameters.txt` of the kernel: `rcu_expedited`.
pub const EXPEDITE_SWITCH: &std::ffi::CStr = c"/sys/kernel/rcu_expedited";

/// Time to become ready. An overloaded machine, or one that just takes thousands of breakpoints off a target, lets a new process wait for seconds.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Why there is no watchdog.
#[derive(Debug, thiserror::Error)]
pub enum WatchdogError {
    /// A system call failed.
    #[error(
        "cannot start the watchdog process: {what}: {source}; without it a stopped agent would leave its traps armed"
    )]
    Start {
        /// Which step.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The page that agent and watchdog share.
#[derive(Debug)]
struct Page {
    beats: AtomicU64,
    armed: AtomicU32,
    /// Processes that things are attached to.
    targets: Slots,
    /// The agent has shortened the machine's grace periods.
    expedited: AtomicU32,
    /// Set by the watchdog when it is ready: `READY`, with `LOCKED` and `REALTIME` as far as they were granted.
    state: AtomicU32,
}

const READY: u32 = 1;
const LOCKED: u32 = 2;
const REALTIME: u32 = 4;

/// The mapping of the shared page.
#[derive(Debug)]
struct Shared(std::ptr::NonNull<Page>);

// SAFETY: the page holds atomics only.
unsafe impl Send for Shared {}
// SAFETY: the page holds atomics only.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping; nothing existing is replaced.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Best effort: the page is written ten times a second and so stays in memory anyway.
        // SAFETY: the range is our mapping.
        unsafe { libc::mlock(page, size_of::<Page>()) };
        std::ptr::NonNull::new(page.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped, aligned to a page and zeroed (a valid Page) until drop; shared access is atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; no reference outlives self.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Page>()) };
    }
}

/// The agent's end: beat, arm, disarm. Each is one or two atomic writes: no system call, no lock, no
/// allocation, usable from any thread.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    shared: Arc<Shared>,
    watchdog: Arc<OwnedFd>,
}

impl Heartbeat {
    /// Say "I am alive". Due several times a second while armed.
    pub fn beat(&self) {
        self.shared.page().beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Something is attached: from now on silence is fatal. Call it before the first attachment.
    pub fn arm(&self) {
        // The beat first, so that the silence begins now and not with the last beat of an earlier time.
        self.beat();
        self.shared.page().armed.store(1, Ordering::Release);
    }

    /// Says in which process things will be attached, too. Should the agent be killed while armed, the text of that process
    /// and of those that it forked is looked at and mended (see [`crate::mend`]). `None`: there are [`MOST_TARGETS`] already.
    #[must_use]
    pub fn watch(&self, pid: u32) -> Option<WatchSlot> {
        self.shared.page().targets.take(pid, Known::of(pid))
    }

    /// Nothing is attached any more in a process that was watched.
    pub fn forget(&self, slot: WatchSlot) {
        self.shared.page().targets.free(slot);
    }

    /// Grace periods of the whole machine are short, or no longer: should the agent be killed meanwhile, they are set back.
    pub fn note_expedited(&self, on: bool) {
        self.shared.page().expedited.store(u32::from(on), Ordering::Release);
    }

    /// Nothing is attached any more. Call it after the last detachment has ended.
    pub fn disarm(&self) {
        self.shared.page().armed.store(0, Ordering::Release);
    }

    /// Whether silence is fatal now.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.shared.page().armed.load(Ordering::Acquire) != 0
    }

    /// The watchdog's pidfd: readable when it has ended, which it never should before us.
    #[must_use]
    pub fn watchdog_fd(&self) -> BorrowedFd<'_> {
        self.watchdog.as_fd()
    }
}

/// The watchdog process. Dropping it ends it.
#[derive(Debug)]
pub struct Watchdog {
    heartbeat: Heartbeat,
}

impl Watchdog {
    /// Fork the watchdog. Call it first thing in `main`, from the main thread: before other threads (it dies with
    /// the thread that started it), the async runtime and BPF descriptors exist.
    ///
    /// # Errors
    /// No memory, no process, or no pidfd (Linux before 5.3).
    pub fn start() -> Result<Self, WatchdogError> {
        let failed = |what| move |source| WatchdogError::Start { what, source };
        let shared = Shared::new().map_err(failed("mapping the shared page"))?;
        // SAFETY: getpid has no arguments and cannot fail.
        let agent = unsafe { libc::getpid() };
        let agent_fd = pidfd_open(agent).map_err(failed("opening our own pidfd"))?;
        // SAFETY: the child runs `watch`, which makes system calls only and never returns.
        let child = unsafe { libc::fork() };
        if child == 0 {
            watch(agent, agent_fd.as_raw_fd(), shared.page());
        }
        if child < 0 {
            return Err(failed("fork")(io::Error::last_os_error()));
        }
        let watchdog = match pidfd_open(child) {
            Ok(fd) => fd,
            Err(source) => {
                // Without a pidfd it could not be ended later. It is our child and not collected: the number is its.
                // SAFETY: signals and collects our own child.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
                return Err(failed("opening its pidfd")(source));
            }
        };
        let watchdog =
            Self { heartbeat: Heartbeat { shared: Arc::new(shared), watchdog: Arc::new(watchdog) } };
        let start = Instant::now();
        while watchdog.state() & READY == 0 {
            if start.elapsed() > READY_LIMIT || !watchdog.is_alive() {
                return Err(failed("waiting until it is ready")(io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(watchdog)
    }

    /// The agent's end, for the governor thread.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
    }

    /// Whether the watchdog process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let mut poll =
            libc::pollfd { fd: self.heartbeat.watchdog.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, count 1, no waiting.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
    }

    /// Whether its memory is locked, so that it works also when the machine swaps.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.state() & LOCKED != 0
    }

    /// Whether it runs at real-time priority, so that it works also when all CPUs are busy.
    #[must_use]
    pub fn is_realtime(&self) -> bool {
        self.state() & REALTIME != 0
    }

    fn state(&self) -> u32 {
        self.heartbeat.shared.page().state.load(Ordering::Acquire)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let fd = self.heartbeat.watchdog.as_raw_fd();
        // SAFETY: the pidfd is open and our child's; the kernel writes no siginfo where the pointer is null.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                fd,
                libc::SIGKILL,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            );
            let id = libc::id_t::try_from(fd).unwrap_or(0);
            let mut info = std::mem::zeroed();
            while libc::waitid(libc::P_PIDFD, id, &raw mut info, libc::WEXITED) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

/// The watchdog process. After a fork of a program that may have threads: system calls only, no allocation, no
/// locks, no panics.
fn watch(agent: i32, agent_fd: RawFd, page: &Page) -> ! {
    // SAFETY: each call takes integers or pointers to locals of ours that outlive it.
    unsafe {
        // The pidfd becomes descriptor 0 and standard error stays; everything else is closed, also what the agent opened
        // for its own use: the watchdog keeps no other terminal, pipe, file or link alive. Who reads standard error to its
        // end waits for us, too: we end with the agent, and the program that mends does not get it.
        if libc::dup2(agent_fd, 0) < 0 {
            libc::_exit(1);
        }
        libc::close(1);
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        libc::fcntl(libc::STDERR_FILENO, libc::F_SETFD, libc::FD_CLOEXEC);
        // Ctrl-C and Ctrl-Z go to the agent's process group, a closing terminal to its session: neither is for us.
        libc::setsid();
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut signals);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const signals, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"tithe-watchdog".as_ptr());
        libc::chdir(c"/".as_ptr());
        // No PR_SET_PDEATHSIG: what a killed agent leaves behind is ours to mend.
        if libc::getppid() != agent {
            libc::_exit(0);
        }
        let mut state = READY;
        // First, so that the rest does not wait for others.
        let priority = libc::sched_param { sched_priority: 1 };
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 {
            state |= REALTIME;
        } else {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
        // ON_FAULT: pages that are never used (most of the agent's image) are not brought in.
        if libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) == 0 {
            state |= LOCKED;
        }
        let mut last_beats = page.beats.load(Ordering::Relaxed);
        let mut last_look = monotonic();
        let mut silence = Duration::ZERO;
        page.state.store(state, Ordering::Release);
        loop {
            let mut poll = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
            // OK because 100 fits.
            if libc::poll(&raw mut poll, 1, LOOK.as_millis() as i32) > 0 {
                set_back(page);
                mend(page);
            }
            let now = monotonic();
            let beats = page.beats.load(Ordering::Relaxed);
            if page.armed.load(Ordering::Acquire) == 0 || beats != last_beats {
                silence = Duration::ZERO;
            } else {
                silence += now.saturating_sub(last_look).min(LONGEST_LOOK);
            }
            last_beats = beats;
            last_look = now;
            let is_due = silence >= SILENCE_LIMIT;
            // Nothing that may wait comes before the kill: no first touch of a page, no memory from the kernel. So every look
            // makes the call that kills, with signal 0, which does nothing: its pages are in memory, and locked.
            let signal = if is_due { libc::SIGKILL } else { 0 };
            libc::syscall(libc::SYS_pidfd_send_signal, 0, signal, std::ptr::null::<libc::siginfo_t>(), 0);
            if is_due {
                // Its links go with it; only then it shows what is left.
                libc::poll(&raw mut poll, 1, -1);
                set_back(page);
                words::say();
                mend(page);
            }
        }
    }
}

/// The agent is gone. If it had shortened the machine's grace periods, sets them back. System calls only.
fn set_back(page: &Page) {
    if page.expedited.load(Ordering::Acquire) != 0 {
        // SAFETY: each call takes integers or pointers to constants; the path ends in a NUL.
        unsafe {
            let switch = libc::open(EXPEDITE_SWITCH.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            libc::write(switch, c"0".as_ptr().cast(), 1);
        }
    }
}

/// What the kernel's log gets when there is no program that mends, as it gets that program's own failures.
const UNMENDED: &str =
    "tithe: the watchdog cannot start what takes breakpoints out that a killed agent may have left\n";

/// The agent is gone. If it was armed, becomes the program that mends the targets' text: a new one, because this one
/// may not allocate. System calls only. Its words take some pages of stack, which the loop shall not have.
#[inline(never)]
fn mend(page: &Page) -> ! {
    let words = slots::Words::of(&page.targets);
    // SAFETY: each call takes integers or pointers to locals and constants that outlive it; `execve` gets
    // NUL-terminated strings and arrays that end in a null pointer.
    unsafe {
        if page.armed.load(Ordering::Acquire) == 0 || words.is_empty() {
            libc::_exit(0);
        }
        let normal = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const signals, std::ptr::null_mut());
        let arguments = words.after([c"tithe", c"internal-mend"]);
        let environment = [std::ptr::null()];
        libc::execve(c"/proc/self/exe".as_ptr(), arguments.as_ptr(), environment.as_ptr());
        let log = libc::open(c"/dev/kmsg".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        libc::write(log, UNMENDED.as_ptr().cast(), UNMENDED.len());
        libc::_exit(1);
    }
}

/// `CLOCK_MONOTONIC`, without the standard library's panics.
fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // OK because the monotonic clock is not negative and its nanoseconds are below 10^9.
    Duration::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests;
