//! Measuring what watching costs: windows with everything detached, each between two windows with everything on, at
//! random times, on a progress metric that costs nothing: a counter in the target's own memory.

use super::Session;
use super::attach::now_ns;
use crate::inspect::Inspection;
use profiler_core::class::ClassId;
use profiler_core::recording::MeasuredOverhead;
use profiler_core::stats::overhead::{self, ProgressWindow};
use rand::{RngExt, SeedableRng};

/// Length of each of the three windows, ns.
const WINDOW_NS: u64 = 400_000_000;
/// Time for caches to warm up again after attaching, ns.
const SETTLE_NS: u64 = 50_000_000;
/// One window off per this time, ns: with attaching and detaching below 10 % of the run.
const CYCLE_NS: u64 = 5_000_000_000;

/// A counter in the target's memory that grows with its work.
#[derive(Debug, Clone)]
pub struct Counter {
    name: String,
    pid: i32,
    address: u64,
    size: u64,
}

impl Counter {
    /// Finds the global variable `name` (4 or 8 bytes) in the target.
    ///
    /// # Errors
    /// There is none, or it has another size; says which.
    pub fn find(inspection: &Inspection, name: &str) -> Result<Self, String> {
        let Some((address, size)) = inspection.variable(name) else {
            return Err(format!(
                "no global variable '{name}' in the target: name a counter of its work that 'nm' lists as B, D, b or d"
            ));
        };
        if size != 4 && size != 8 {
            return Err(format!("the variable '{name}' has {size} bytes; a counter has 4 or 8"));
        }
        let counter = Self { name: name.to_owned(), pid: inspection.pid(), address, size };
        counter.read().map(|_| counter.clone()).ok_or_else(|| format!("the variable '{name}' cannot be read"))
    }

    fn read(&self) -> Option<u64> {
        let mut bytes = [0u8; 8];
        let len = usize::try_from(self.size).ok()?.min(8);
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: self.address as *mut libc::c_void, iov_len: len };
        // SAFETY: `local` points at `bytes`, which has room for `len`; the kernel checks the remote address.
        let n = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        (usize::try_from(n).ok()? == len).then(|| u64::from_le_bytes(bytes))
    }
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    progress: u64,
    cpu_ns: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Waiting { until_ns: u64 },
    Before { mark: Mark, until_ns: u64 },
    Detaching { before: ProgressWindow },
    Off { before: ProgressWindow, mark: Mark, until_ns: u64 },
    Settling { before: ProgressWindow, off: ProgressWindow, until_ns: u64 },
    After { before: ProgressWindow, off: ProgressWindow, mark: Mark, until_ns: u64 },
}

/// The state of the comparison.
#[derive(Debug)]
pub struct Comparison {
    counter: Counter,
    state: State,
    triples: Vec<(ProgressWindow, ProgressWindow, ProgressWindow)>,
    /// Classes to be attached again, with their quotas.
    again: Vec<(ClassId, u64)>,
    random: rand::rngs::StdRng,
}

impl Comparison {
    /// A comparison that begins within a cycle from `now`.
    #[must_use]
    pub fn new(counter: Counter, now: u64) -> Self {
        // The seed makes runs differ; nothing has to be secret.
        let random = rand::rngs::StdRng::seed_from_u64(now);
        let state = State::Waiting { until_ns: now + CYCLE_NS / 5 };
        Self { counter, state, triples: Vec::new(), again: Vec::new(), random }
    }

    /// Everything is detached, or on its way: the controller must keep its hands off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        matches!(self.state, State::Detaching { .. } | State::Off { .. })
    }

    /// The result so far.
    #[must_use]
    pub fn result(&self) -> Option<MeasuredOverhead> {
        overhead::measured(&format!("CPU time per unit of {}", self.counter.name), &self.triples)
    }
}

impl Session {
    /// One turn of the comparison.
    pub(super) fn compare(&mut self) {
        let Some(mut comparison) = self.comparison.take() else { return };
        let now = now_ns();
        let mark = comparison
            .counter
            .read()
            .zip(self.target.cpu_time_ns().ok())
            .map(|(progress, cpu_ns)| Mark { progress, cpu_ns });
        // A target that cannot be read is ending.
        if let Some(mark) = mark {
            comparison.state = self.compare_step(&mut comparison, now, mark);
        }
        self.comparison = Some(comparison);
    }

    fn compare_step(&mut self, c: &mut Comparison, now: u64, here: Mark) -> State {
        match c.state {
            State::Waiting { until_ns } if now >= until_ns => {
                State::Before { mark: here, until_ns: now + WINDOW_NS }
            }
            State::Before { mark, until_ns } if now >= until_ns => {
                let open = self.attach.classes().iter().filter(|x| x.is_open());
                c.again = open.map(|x| (x.id, self.attach.quota(x.id))).collect();
                self.attach.close_all(&self.target);
                self.sampling.pause();
                State::Detaching { before: window(mark, here) }
            }
            State::Detaching { before } if !self.attach.busy() => {
                State::Off { before, mark: here, until_ns: now + WINDOW_NS }
            }
            State::Off { before, mark, until_ns } if now >= until_ns => {
                let off = window(mark, here);
                self.sampling.resume();
                let again = std::mem::take(&mut c.again);
                self.open_wanted(&again);
                State::Settling { before, off, until_ns: now_ns() + SETTLE_NS }
            }
            State::Settling { before, off, until_ns } if now >= until_ns => {
                State::After { before, off, mark: here, until_ns: now + WINDOW_NS }
            }
            State::After { before, off, mark, until_ns } if now >= until_ns => {
                c.triples.push((before, off, window(mark, here)));
                // Uniform over a cycle, so that no period of the target falls in step.
                let pause = c.random.random_range(0..2 * (CYCLE_NS - 4 * WINDOW_NS));
                State::Waiting { until_ns: now + pause }
            }
            state => state,
        }
    }
}

fn window(from: Mark, to: Mark) -> ProgressWindow {
    ProgressWindow {
        progress: to.progress.wrapping_sub(from.progress),
        cpu_ns: to.cpu_ns.saturating_sub(from.cpu_ns),
    }
}
