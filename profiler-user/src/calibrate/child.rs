//! The process on which calibration measures: a copy of ourselves that calls the probed functions when told to.
//!
//! It speaks lines of text over its standard input, which is a socket:
//!
//! | order | answer |
//! |---|---|
//! | (start) | `ready TID HELPER_TID` |
//! | `calls ROW COLUMN CALLS THREADS` | CPU ns per call, unprobed and probed |
//! | `cold ROW COLUMN CALLS` | the same, where the child runs through code and data between calls |
//! | `rested ROW COLUMN CALLS` | ns per call, unprobed and probed, where the child sleeps before each |
//! | `syscalls CALLS` | CPU ns per system call |
//! | `gaps MS` | `ELAPSED SUM MAX`: interruptions seen by a loop that reads the clock |
//! | `pingpong ROUNDS` | CPU ns per context switch between the two threads on one CPU |
//! | `forms PID CODE RESULTS CELLS STATES WATCH`, `forms-probed …` | `done`: see [`crate::conformance`] |
//! | `fade ROW COLUMN MS LIMIT_NS` | when calls last took longer than the limit; ends 1 ms after they got fast |
//!
//! It ends with its parent, or when the socket is closed.

use super::code::{self, Probed, ROW_OFF};
use crate::conformance::{Forms, Order};
use profiler_core::class::SiteClass;
use profiler_core::cost::RESTED_S;
use rustix::event::EventfdFlags;
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::ClockId;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An interruption shorter than this is the clock's own jitter.
const GAP_MIN_NS: u64 = 1_500;
/// A longer one is a thread that took our CPU.
const GAP_MAX_NS: u64 = 300_000;

/// Words of the working set: a MiB, most of a second-level cache.
const FAR_WORDS: usize = 128 << 10;
/// Words that are touched again and again: 24 KiB, most of a first-level cache.
const NEAR_WORDS: usize = 3 << 10;

/// The child's main: obey until the socket is closed.
///
/// # Errors
/// Standard input is not the parent's socket.
pub fn child_main() -> io::Result<()> {
    // It cannot fail for a signal that there is.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // SAFETY: standard input is open, and only this function uses it.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let mut out = socket.try_clone()?;
    let partner = Partner::start()?;
    let mut forms = Forms::default();
    writeln!(out, "ready {} {}", gettid(), partner.tid)?;
    for line in BufReader::new(socket).lines() {
        let line = line?;
        let mut words = line.split(' ');
        let order = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.filter_map(|w| w.parse().ok()).collect();
        let answer = match (order, numbers.as_slice()) {
            ("calls", [row, column, calls, threads]) => {
                let (off, on) = calls_pair(probed(*row, *column), *calls, *threads);
                format!("{off} {on}")
            }
            ("cold", [row, column, calls]) => {
                let [off, on] = cold_pair(probed(*row, *column), *calls);
                format!("{} {} {} {}", off.in_call, on.in_call, off.after, on.after)
            }
            ("rested", [row, column, calls]) => {
                let [off, on] = rested_pair(probed(*row, *column), *calls);
                format!("{off} {on}")
            }
            ("syscalls", [calls]) => syscalls(*calls).to_string(),
            ("gaps", [ms]) => deep_gaps(ms * 1_000_000),
            ("pingpong", [rounds]) => partner.ping_pong(*rounds)?.to_string(),
            ("fade", [row, column, ms, limit]) => fade(probed(*row, *column), ms * 1_000_000, *limit),
            ("forms" | "forms-probed", &[parent, code, results, cells, states, watch]) => {
                let order = Order {
                    probed: order == "forms-probed",
                    parent,
                    code,
                    results,
                    cells: usize::try_from(cells).unwrap_or(0),
                    states: usize::try_from(states).unwrap_or(0),
                    watch_steps: watch != 0,
                };
                forms.obey(order).map_or_else(|error| format!("failed: {error}"), |()| "done".to_owned())
            }
            _ => format!("unknown order '{line}'"),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn probed(row: u64, column: u64) -> Probed {
    let site = SiteClass::ALL[usize::try_from(column).unwrap_or(0) % SiteClass::ALL.len()];
    Probed { row: usize::try_from(row).unwrap_or(0), site }
}

/// CPU ns per call of the unprobed twin and of the probed function, mean over the threads; all threads begin
/// together.
fn calls_pair(probed: Probed, calls: u64, threads: u64) -> (f64, f64) {
    let off = Probed { row: ROW_OFF, ..probed };
    if threads <= 1 {
        return (run(off, calls), run(probed, calls));
    }
    let waiting = Arc::new(AtomicU32::new(u32::try_from(threads).unwrap_or(1)));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let waiting = waiting.clone();
            std::thread::spawn(move || {
                waiting.fetch_sub(1, Ordering::AcqRel);
                while waiting.load(Ordering::Acquire) != 0 {
                    std::thread::yield_now();
                }
                (run(off, calls), run(probed, calls))
            })
        })
        .collect();
    let pairs: Vec<(f64, f64)> = workers.into_iter().filter_map(|w| w.join().ok()).collect();
    let mean = |f: fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>() / pairs.len() as f64;
    (mean(|p| p.0), mean(|p| p.1))
}

/// CPU ns per call on this thread, after a short warm-up.
fn run(probed: Probed, calls: u64) -> f64 {
    let function = black_box(probed.function());
    for _ in 0..calls / 16 + 1 {
        function();
    }
    let begin = clock_ns(ClockId::ThreadCPUTime);
    for _ in 0..calls {
        function();
    }
    let end = clock_ns(ClockId::ThreadCPUTime);
    (end - begin) as f64 / calls as f64
}

/// Work as programs do it: it keeps first-level caches full, walks through a MiB of data, and its branches follow from its past.
struct Load {
    memory: Vec<u64>,
    far: usize,
    near: usize,
    round: usize,
    sum: u64,
}

/// Operations that the interpreter runs in a step of the load.
const OPERATIONS_A_STEP: usize = 8;
/// Steps of the load between two calls: some us.
const STEPS_BETWEEN: usize = 32;
/// Steps before a rest, some ten us.
const STEPS_BEFORE_REST: usize = 64;

/// Operations of the interpreter.
static OPERATIONS: [fn(u64) -> u64; 8] = [
    |x| x.wrapping_add(3),
    |x| x ^ 0x55,
    |x| x.rotate_left(5),
    |x| x.wrapping_mul(5),
    |x| if x & 64 == 0 { x + 7 } else { x ^ 9 },
    |x| nest(x, 6),
    |x| nest(x, 12),
    |x| x.wrapping_sub(11),
];

/// Its program: a sequence without pattern, the same each time.
static PROGRAM: [u8; 509] = program();

const fn program() -> [u8; 509] {
    let mut operations = [0; 509];
    let (mut i, mut x) = (0, 88_172_645_463_325_252u64);
    while i < operations.len() {
        // Xorshift (Marsaglia 2003).
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        operations[i] = (x >> 32) as u8 & 7;
        i += 1;
    }
    operations
}

#[inline(never)]
fn nest(x: u64, depth: u32) -> u64 {
    if depth == 0 { x } else { black_box(nest(x ^ u64::from(depth), depth - 1)).wrapping_add(1) }
}

impl Load {
    fn new() -> Self {
        Self { memory: vec![1; FAR_WORDS], far: 0, near: 0, round: 0, sum: 1 }
    }

    /// One step, about 0.2 us.
    #[inline(always)]
    fn step(&mut self) {
        for _ in 0..4 {
            // Strides that visit every line once before they come round.
            self.far = (self.far + 8 * 1009) % FAR_WORDS;
            self.near = (self.near + 8 * 101) % NEAR_WORDS;
            self.memory[self.far] = self.memory[self.far].wrapping_mul(3);
            self.memory[self.near] = self.memory[self.near].wrapping_mul(3);
        }
        code::walk(self.round / OPERATIONS_A_STEP);
        // A program that branches by what it has learnt of its past, as an interpreter does.
        for _ in 0..OPERATIONS_A_STEP {
            let operation = PROGRAM[self.round % PROGRAM.len()];
            self.sum = OPERATIONS[usize::from(operation) % OPERATIONS.len()](self.sum);
            self.round += 1;
        }
    }
}

/// Medians of one function, ns.
struct ColdCalls {
    /// A call.
    in_call: f64,
    /// The work that follows it.
    after: f64,
}

/// Calls and the work that follows them, unprobed and probed, on this thread. Each is timed by itself, because in the sum of
/// both the difference that a probe makes would drown. The two take turns, so that a slow phase of the machine touches both: the work
/// takes ten times what a probe adds to it.
fn cold_pair(probed: Probed, calls: u64) -> [ColdCalls; 2] {
    let functions = [Probed { row: ROW_OFF, ..probed }, probed].map(|p| black_box(p.function()));
    let mut load = Load::new();
    let mut in_call = [Vec::new(), Vec::new()];
    let mut after = [Vec::new(), Vec::new()];
    for _ in 0..calls {
        for (function, (in_call, after)) in functions.iter().zip(in_call.iter_mut().zip(&mut after)) {
            let begin = clock_ns(ClockId::Monotonic);
            function();
            let called = clock_ns(ClockId::Monotonic);
            for _ in 0..STEPS_BETWEEN {
                load.step();
            }
            in_call.push(called - begin);
            after.push(clock_ns(ClockId::Monotonic) - called);
        }
    }
    black_box(&mut load.memory);
    [0, 1].map(|i| ColdCalls { in_call: median(&mut in_call[i]), after: median(&mut after[i]) })
}

/// Calls right after a rest, unprobed and probed in turns: medians, ns. Work comes before the rest, as in programs that wait for the next request.
fn rested_pair(probed: Probed, calls: u64) -> [f64; 2] {
    let functions = [Probed { row: ROW_OFF, ..probed }, probed].map(|p| black_box(p.function()));
    let mut load = Load::new();
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..calls {
        for (function, took) in functions.iter().zip(&mut took) {
            for _ in 0..STEPS_BEFORE_REST {
                load.step();
            }
            std::thread::sleep(std::time::Duration::from_secs_f64(RESTED_S));
            // The clock's own code is cold as well.
            black_box(clock_ns(ClockId::Monotonic));
            let begin = clock_ns(ClockId::Monotonic);
            function();
            took.push(clock_ns(ClockId::Monotonic) - begin);
        }
    }
    black_box(&mut load.memory);
    [0, 1].map(|i| median(&mut took[i]))
}

fn median(values: &mut [u64]) -> f64 {
    values.sort_unstable();
    values.get(values.len() / 2).map_or(0.0, |v| *v as f64)
}

/// CPU ns per system call of this thread, after a short warm-up; one that does next to nothing and is not answered
/// without entering the kernel.
fn syscalls(calls: u64) -> f64 {
    // SAFETY: getppid has no arguments and cannot fail.
    let call = || unsafe { libc::syscall(libc::SYS_getppid) };
    for _ in 0..calls / 16 + 1 {
        call();
    }
    let begin = clock_ns(ClockId::ThreadCPUTime);
    for _ in 0..calls {
        call();
    }
    let end = clock_ns(ClockId::ThreadCPUTime);
    (end - begin) as f64 / calls as f64
}

/// `gaps` with 32 KiB of stack in use, so that a sample finds something to copy.
#[inline(never)]
fn deep_gaps(duration_ns: u64) -> String {
    let mut stack = [0u8; 32 << 10];
    black_box(&mut stack);
    let answer = gaps(duration_ns);
    black_box(&mut stack);
    answer
}

/// Read the clock over and over: where it jumps, something took this CPU. Between readings it walks through a MiB of data
/// and through code, as programs do, so that interruptions find caches in use.
#[inline(never)]
fn gaps(duration_ns: u64) -> String {
    let mut load = Load::new();
    let (mut sum, mut other, mut longest) = (0, 0, 0);
    let begin = clock_ns(ClockId::Monotonic);
    let mut last = begin;
    while last - begin < duration_ns {
        load.step();
        let now = clock_ns(ClockId::Monotonic);
        let gap = now - last;
        if gap >= GAP_MAX_NS {
            other += gap;
        } else if gap >= GAP_MIN_NS {
            sum += gap;
            longest = longest.max(gap);
        }
        last = now;
    }
    black_box(&mut load.memory);
    format!("{} {sum} {longest}", last - begin - other)
}

/// Call a function over and over until its hits have stopped: the last moment at which three calls in a row were
/// slow (single slow calls are interrupts), `CLOCK_MONOTONIC` ns.
fn fade(probed: Probed, duration_ns: u64, limit_ns: u64) -> String {
    const QUIET_NS: u64 = 1_000_000;
    let function = black_box(probed.function());
    let begin = clock_ns(ClockId::Monotonic);
    let (mut last, mut slow, mut last_slow) = (begin, 0, None);
    while last - begin < duration_ns && last_slow.is_none_or(|at| last - at < QUIET_NS) {
        function();
        let now = clock_ns(ClockId::Monotonic);
        slow = if now - last > limit_ns { slow + 1 } else { 0 };
        if slow >= 3 {
            last_slow = Some(now);
        }
        last = now;
    }
    last_slow.unwrap_or(begin).to_string()
}

/// The second thread, for context switches.
struct Partner {
    tid: Pid,
    to: OwnedFd,
    from: OwnedFd,
}

impl Partner {
    fn start() -> io::Result<Self> {
        let (to, inbox) = (eventfd()?, eventfd()?);
        let (their_inbox, their_outbox) = (to.try_clone()?, inbox.try_clone()?);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("tithe-partner".into()).spawn(move || {
            let _ = tell.send(gettid());
            loop {
                take(&their_inbox);
                give(&their_outbox);
            }
        })?;
        let tid = told.recv().map_err(io::Error::other)?;
        Ok(Self { tid, to, from: inbox })
    }

    /// CPU time of the process per context switch: both threads on one CPU, so that each hand-over is a switch.
    fn ping_pong(&self, rounds: u64) -> io::Result<f64> {
        let all = sched_getaffinity(Some(self.tid))?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one)?;
        sched_setaffinity(Some(self.tid), &one)?;
        let begin = clock_ns(ClockId::ProcessCPUTime);
        for _ in 0..rounds {
            give(&self.to);
            take(&self.from);
        }
        let end = clock_ns(ClockId::ProcessCPUTime);
        sched_setaffinity(None, &all)?;
        sched_setaffinity(Some(self.tid), &all)?;
        Ok((end - begin) as f64 / (2 * rounds) as f64)
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?)
}

fn give(fd: &OwnedFd) {
    // OK because a failure only makes the other thread wait on.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

fn take(fd: &OwnedFd) {
    let mut count = [0; 8];
    // OK because what it reads does not matter.
    let _ = rustix::io::read(fd, &mut count);
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    // OK because these clocks are not negative and nanoseconds are below 10^9.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
