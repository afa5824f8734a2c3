//! The governor: takes an event class off the target within microseconds of its quota running out.
//!
//! Only detaching stops a trap; a gate in a map stops the report and leaves the price. So each class has a quota
//! of hits, the kernel program raises an alarm when it is used up, and a thread that does nothing else hands the
//! class's links to *closers*, because `close` of a link stops the hits at once but then blocks in RCU for tens of
//! milliseconds. (The trap itself may outlive the last hit that is seen by a grace period, 5 to 15 ms and more on a
//! machine that is overloaded: [`ClosedLink`] says when it is surely gone.)
//!
//! ```text
//! BPF program ─ alarm ring ─► governor ─ take (one swap) ─► closers ─ close(fd) ─► LinkTable::closed
//! agent ─ begin, register, release ─► LinkTable ◄──────┘                              │
//! agent ◄──────────────────────────── events_fd, drain_closed ◄───────────────────────┘
//! ```
//!
//! The thread runs at `SCHED_FIFO` 1 where that is allowed (a fresh cpu cgroup of a kernel with group scheduling
//! refuses it, even to root), else at nice -20. It allocates nothing, takes no lock, and makes no I/O except
//! `epoll_wait` on the alarms. It also sends the watchdog's heartbeat, and withholds it when the agent's event
//! loop has hung.
//!
//! It decides nothing: quotas and what becomes of a tripped class are the core's business.

mod beside;
mod closed;
mod closers;
mod expedite;
mod keep;
mod links;
mod mailbox;
mod priority;
mod sys;
#[cfg(test)]
mod tests;

pub use beside::Counted;
pub use closed::{CloseReason, ClosedLink};
pub use closers::{PATIENT_CLOSERS, URGENT_CLOSERS};
pub use links::{LinkTable, Registered};
pub use priority::{Priority, lock_memory, prefer_event_loop, unlock_memory};

use crate::prober::AlarmReader;
use crate::watchdog::Heartbeat;
use closers::Closers;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::{drain, eventfd, now_ns, signal};

/// The governor wakes up at least this often, for the heartbeat. A tenth of the watchdog's patience.
const BEAT_INTERVAL: Duration = Duration::from_millis(100);

/// An event loop that has not called [`Governor::pulse`] for so long is taken for hung, and the heartbeat stops.
/// Long against anything that a loop may do between two turns, writing a segment to a slow disk included.
pub const PULSE_LIMIT: Duration = Duration::from_secs(5);

/// "The quota of this class is used up."
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trip {
    /// The class.
    pub class: u32,
    /// When the hit came that used it up, `CLOCK_MONOTONIC` ns (the BPF ktime).
    pub time_ns: u64,
}

/// Where alarms come from.
///
/// `next` is called on the governor thread: it must not allocate, lock or block.
pub trait AlarmSource: Send {
    /// Becomes readable when there is an alarm; every alarm wakes a waiter (edge-triggered).
    fn fd(&self) -> BorrowedFd<'_>;
    /// The next alarm, if there is one.
    fn next(&mut self) -> Option<Trip>;
}

impl AlarmSource for AlarmReader {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn next(&mut self) -> Option<Trip> {
        loop {
            // An alarm of a kind that we do not know comes from no program of ours: skip it.
            if let Ok(alarm) = self.try_next()? {
                return Some(Trip { class: alarm.class.0, time_ns: alarm.time_ns });
            }
        }
    }
}

/// Why there is no governor.
#[derive(Debug, thiserror::Error)]
pub enum GovernorError {
    /// A system call failed.
    #[error("cannot start the governor: {what}: {source}; without it nothing may be attached")]
    Start {
        /// Which step.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The self-test at the start did not end.
    #[error(
        "the governor did not react within {limit_ms} ms in its self-test: the machine is too busy to guard the target"
    )]
    NoReaction {
        /// How long we waited, ms.
        limit_ms: u64,
    },
}

/// What the governor has seen and done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// How its threads are scheduled.
    pub priority: Priority,
    /// Whether the agent's memory is locked.
    pub locked: bool,
    /// Classes taken because their quota was used up.
    pub trips: u64,
    /// Alarms of a class that was already taken (they repeat while hits go on).
    pub repeated: u64,
    /// Alarms older than the class's present attachment.
    pub stale: u64,
    /// Alarms that name no class.
    pub unknown: u64,
    /// Longest time from a trip to its taking, ns.
    pub reaction_max_ns: u64,
    /// Sum over `trips` of the time from the trip to its taking, ns.
    pub reaction_sum_ns: u64,
    /// Longest time from a trip to the moment at which its first link began to close, ns: about then hits stop.
    pub close_start_max_ns: u64,
    /// The watchdog has ended before us: nobody guards against our own death.
    pub watchdog_lost: bool,
    /// The event loop has been silent for longer than [`PULSE_LIMIT`], and the heartbeat was withheld.
    pub loop_hung: bool,
}

/// The reaction measured by the self-test at the start: from "raise" to "the link begins to close", ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drill {
    /// Median of the rounds, ns.
    pub median_ns: u64,
    /// Slowest round, ns.
    pub max_ns: u64,
    /// Number of rounds.
    pub rounds: u32,
}

/// State shared with the governor thread; atomics only.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// A self-test round: the time of its "trip", 0 for none.
    drill_ns: AtomicU64,
    /// Last sign of life of the event loop, `CLOCK_MONOTONIC` ns; 0: not supervised.
    pulse_ns: AtomicU64,
    repeated: AtomicU64,
    stale: AtomicU64,
    unknown: AtomicU64,
    trips: AtomicU64,
    reaction_max_ns: AtomicU64,
    reaction_sum_ns: AtomicU64,
    watchdog_lost: AtomicBool,
    loop_hung: AtomicBool,
    fifo: AtomicU64,
    /// Classes whose alarm was lost, one bit each, and when that was seen; 0: none.
    unheard: Box<[AtomicU64]>,
    unheard_ns: AtomicU64,
}

/// The running governor. Dropping it closes every link that is left in the table, and ends its threads.
#[derive(Debug)]
pub struct Governor {
    table: Arc<LinkTable>,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    closers: Option<Closers>,
    heartbeat: Option<Heartbeat>,
    locked: bool,
    drill: Drill,
}

impl Governor {
    /// Start the governor and its closers, lock the agent's memory, and measure the reaction time.
    ///
    /// Side effects on the whole process: `RLIMIT_RTTIME` becomes 50 ms (a real-time thread of ours that runs away
    /// is killed, and the agent with it; programs launched by [`crate::target::launch`](fn@crate::target::launch)
    /// get the original limit), and memory is locked as it is touched.
    ///
    /// # Errors
    /// Threads or descriptors are not to be had, or the self-test fails.
    pub fn start(
        alarms: impl AlarmSource + 'static,
        table: Arc<LinkTable>,
        heartbeat: Option<Heartbeat>,
    ) -> Result<Self, GovernorError> {
        let failed = |what| move |source| GovernorError::Start { what, source };
        let locked = lock_memory();
        priority::limit_realtime();
        let closers = Closers::start(&table).map_err(failed("starting the closer threads"))?;
        if let Some(heartbeat) = &heartbeat {
            table.expedite().guard(heartbeat.clone());
        }
        let wake = Arc::new(eventfd(libc::EFD_NONBLOCK).map_err(failed("creating an eventfd"))?);
        let epoll = epoll_of(alarms.fd(), wake.as_fd(), heartbeat.as_ref().map(Heartbeat::watchdog_fd))
            .map_err(failed("creating an epoll descriptor"))?;
        let words = table.drill_class().div_ceil(u64::BITS);
        let unheard = (0..words).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { unheard, ..Shared::default() });
        let mut run = Loop {
            alarms,
            table: table.clone(),
            shared: shared.clone(),
            heartbeat: heartbeat.clone(),
            epoll,
            wake: wake.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("tithe-governor".into())
            .stack_size(closers::STACK_BYTES)
            .spawn(move || run.run())
            .map_err(failed("starting the governor thread"))?;
        let drill = Drill { median_ns: 0, max_ns: 0, rounds: 0 };
        let (thread, closers) = (Some(thread), Some(closers));
        let mut governor = Self { table, shared, wake, thread, closers, heartbeat, locked, drill };
        governor.drill = governor.rehearse()?;
        Ok(governor)
    }

    /// The table of links that it guards.
    #[must_use]
    pub fn table(&self) -> &Arc<LinkTable> {
        &self.table
    }

    /// What it beats the watchdog by, if there is one.
    #[must_use]
    pub fn heartbeat(&self) -> Option<&Heartbeat> {
        self.heartbeat.as_ref()
    }

    /// The reaction time on this host as measured at the start, without a kernel program.
    #[must_use]
    pub fn drill(&self) -> Drill {
        self.drill
    }

    /// The event loop is alive. After the first call it is due more often than [`PULSE_LIMIT`]; a loop that stops
    /// calling loses the heartbeat, and the watchdog then kills the agent if anything is attached.
    pub fn pulse(&self) {
        self.shared.pulse_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// The event loop was alive at that time, ktime ns, and something that belongs to it has not been since.
    pub fn pulse_at(&self, time_ns: u64) {
        self.shared.pulse_ns.store(time_ns, Ordering::Relaxed);
    }

    /// The event loop is about to do work that takes as long as it takes (reading the symbols of a large program): it
    /// is not taken for hung before it has called [`Governor::pulse`] again. What is attached meanwhile stays guarded:
    /// the breaker needs no event loop, and no class may take more than its quota.
    pub fn excuse(&self) {
        self.shared.pulse_ns.store(0, Ordering::Relaxed);
    }

    /// The alarms of these classes were lost: their quotas are used up, and nothing was heard of it. Their links are closed
    /// as after an alarm. A class that has been taken meanwhile is left alone.
    pub fn trip_unheard(&self, classes: impl IntoIterator<Item = u32>) {
        for class in classes {
            if let Some(word) = self.shared.unheard.get((class / u64::BITS) as usize) {
                word.fetch_or(1 << (class % u64::BITS), Ordering::Relaxed);
            }
        }
        self.shared.unheard_ns.store(now_ns(), Ordering::Release);
        signal(self.wake.as_fd());
    }

    /// What it has seen and done.
    #[must_use]
    pub fn status(&self) -> Status {
        let s = &self.shared;
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Status {
            priority: Priority::from_code(get(&s.fifo)),
            locked: self.locked,
            trips: get(&s.trips),
            repeated: get(&s.repeated),
            stale: get(&s.stale),
            unknown: get(&s.unknown),
            reaction_max_ns: get(&s.reaction_max_ns),
            reaction_sum_ns: get(&s.reaction_sum_ns),
            close_start_max_ns: self.table.close_start_max_ns(),
            watchdog_lost: s.watchdog_lost.load(Ordering::Relaxed),
            loop_hung: s.loop_hung.load(Ordering::Relaxed),
        }
    }

    /// Rounds of: register a descriptor, raise the alarm, wait until a closer has it. It measures the reaction and
    /// brings every page of the path into memory before it matters.
    fn rehearse(&self) -> Result<Drill, GovernorError> {
        const ROUNDS: usize = 15;
        const LIMIT: Duration = Duration::from_millis(1000);
        let failed = |what| move |source| GovernorError::Start { what, source };
        let mut times = [0u64; ROUNDS];
        for time in &mut times {
            let link = eventfd(0).map_err(failed("creating an eventfd"))?;
            self.table.begin(self.table.drill_class());
            self.table.register(self.table.drill_class(), link, 1);
            let start = now_ns();
            self.shared.drill_ns.store(start, Ordering::Release);
            signal(self.wake.as_fd());
            loop {
                if let Some(closed) = self.table.take_drill() {
                    *time = closed.close_began_ns.saturating_sub(start);
                    break;
                }
                if now_ns() - start > u64::try_from(LIMIT.as_nanos()).unwrap_or(u64::MAX) {
                    return Err(GovernorError::NoReaction { limit_ms: 1000 });
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        // The first round pays for page faults, which is what it is for.
        let measured = &mut times[1..];
        measured.sort_unstable();
        for counter in [&self.shared.trips, &self.shared.reaction_max_ns, &self.shared.reaction_sum_ns] {
            counter.store(0, Ordering::Relaxed);
        }
        self.table.reset_statistics();
        Ok(Drill {
            median_ns: measured[measured.len() / 2],
            max_ns: measured[measured.len() - 1],
            rounds: u32::try_from(measured.len()).unwrap_or(0),
        })
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        signal(self.wake.as_fd());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        self.table.release_all();
        // Ends when everything handed over is closed.
        self.closers = None;
    }
}

/// What the governor thread owns.
struct Loop<A> {
    alarms: A,
    table: Arc<LinkTable>,
    shared: Arc<Shared>,
    heartbeat: Option<Heartbeat>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
}

const TOKEN_WATCHDOG: u64 = 2;

impl<A: AlarmSource> Loop<A> {
    fn run(&mut self) {
        priority::prefault_stack();
        self.shared.fifo.store(priority::raise().code(), Ordering::Relaxed);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 3];
        let timeout = i32::try_from(BEAT_INTERVAL.as_millis()).unwrap_or(100);
        while !self.shared.stop.load(Ordering::Acquire) {
            // SAFETY: the descriptor is an epoll descriptor of ours, the array has room for three events.
            let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 3, timeout) };
            // Whatever woke us, also the timeout: look. A trip whose wake-up was lost is found here.
            while let Some(trip) = self.alarms.next() {
                self.trip(trip);
            }
            let drill_ns = self.shared.drill_ns.swap(0, Ordering::AcqRel);
            if drill_ns != 0 {
                drain(self.wake.as_fd());
                self.trip(Trip { class: self.table.drill_class(), time_ns: drill_ns });
            }
            self.trip_unheard();
            let woken = usize::try_from(n).unwrap_or(0);
            if events[..woken].iter().any(|e| e.u64 == TOKEN_WATCHDOG) {
                self.shared.watchdog_lost.store(true, Ordering::Relaxed);
            }
            self.beat();
        }
    }

    /// Takes the classes whose alarms were lost.
    fn trip_unheard(&self) {
        let time_ns = self.shared.unheard_ns.swap(0, Ordering::AcqRel);
        if time_ns == 0 {
            return;
        }
        drain(self.wake.as_fd());
        for (first, word) in (0..).step_by(u64::BITS as usize).zip(&self.shared.unheard) {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                self.trip(Trip { class: first + bits.trailing_zeros(), time_ns });
                bits &= bits - 1;
            }
        }
    }

    fn trip(&self, trip: Trip) {
        let add = |a: &AtomicU64, n: u64| a.fetch_add(n, Ordering::Relaxed);
        match self.table.trip(trip.class, trip.time_ns) {
            links::Tripped::Taken { taken_ns } => {
                let reaction = taken_ns.saturating_sub(trip.time_ns);
                add(&self.shared.trips, 1);
                add(&self.shared.reaction_sum_ns, reaction);
                self.shared.reaction_max_ns.fetch_max(reaction, Ordering::Relaxed);
            }
            links::Tripped::Repeated => drop(add(&self.shared.repeated, 1)),
            links::Tripped::Stale => drop(add(&self.shared.stale, 1)),
            links::Tripped::Unknown => drop(add(&self.shared.unknown, 1)),
        }
    }

    fn beat(&self) {
        let Some(heartbeat) = &self.heartbeat else { return };
        let pulse = self.shared.pulse_ns.load(Ordering::Relaxed);
        let limit = u64::try_from(PULSE_LIMIT.as_nanos()).unwrap_or(u64::MAX);
        if pulse != 0 && now_ns().saturating_sub(pulse) > limit {
            self.shared.loop_hung.store(true, Ordering::Relaxed);
        } else {
            heartbeat.beat();
        }
    }
}

/// Edge-triggered on the alarms, on purpose: a record that is reserved but not yet committed makes a ring
/// "readable". If its producer was preempted by us on its own CPU, a level-triggered loop at real-time priority would
/// spin and never let it commit. The commit wakes us again.
fn epoll_of(
    alarms: BorrowedFd<'_>,
    wake: BorrowedFd<'_>,
    watchdog: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    // SAFETY: creates a descriptor that nobody else owns.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, ours alone.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let edge = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
    for (fd, token) in [(Some(alarms), 0), (Some(wake), 1), (watchdog, TOKEN_WATCHDOG)] {
        let Some(fd) = fd else { continue };
        let mut event = libc::epoll_event { events: edge, u64: token };
        // SAFETY: both descriptors are open, the event is read only.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) }
            != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(epoll)
}
