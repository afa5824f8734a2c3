//! Who reads recorded rows while the run goes on.
//!
//! ```text
//! rings ── drain ──► rows ──► consumers (slices, within their time) ──► writer
//!                               │  told lines ──► standard error
//!                               └─ return addresses ──► call_code.rs (a thread) ──► what the code says of them
//! ```
//! What: a [`Consumer`] is shown operations, steps and calls just before the writer gets them, and once a turn it may do what takes longer. Each has a
//! file of its own here. Why a bound: consumers run in the loop that ends windows on time. Each has an income of CPU time ([`Allowance`]) out of `--agent-cpu`, and
//! what it cannot look at for want of it is skipped and counted, which is told when the run is over. The rows themselves go to the writer whatever a
//! consumer does: it sees slices, and one that panics is dropped.
//!
//! How to add one: a file here that implements [`Consumer`], and a line where it is registered (`agent/operation_steps.rs`, or `agent/expected.rs`).
//!
//! A consumer attaches nothing, writes no rows, prints nothing itself and changes nothing of the run.

mod allowance;
mod expect;
mod slow;

#[cfg(test)]
mod tests;

pub(super) use allowance::Allowance;
pub(crate) use expect::other_build;
pub use expect::{Expectations, Making};
pub use slow::SlowOperations;

use super::clock::thread_cpu_ns;
use crate::output::RunStart;
use crate::prober::OpenCall;
use crate::recording::{self, WriterHandle};
use crate::target::ThreadLook;
use profiler_core::class::ClassId;
use profiler_core::recording::{
    CallSiteRow, ClassRow, EventRow, Meta, OperationClassRow, OperationHistogramRow, OperationRow, StepRow,
    TailRow, WordRow,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Rows between two looks at the clock. A row takes some 50 ns, a look 0.3 us.
const AT_ONCE: usize = 256;
/// What all consumers together may use, as a part of what the agent may (`--agent-cpu`).
const PART_OF_AGENT: f64 = 0.25;

/// Rows of one table, in the order in which the writer gets them.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// Recorded operations that have ended (and, when the run is over, those that have not).
    Operations(&'a [OperationRow]),
    /// Names of operations and of their classes.
    OperationClasses(&'a [OperationClassRow]),
    /// Entries of the functions of `--calls`. Those of an operation come before its row was made, but may be drained a turn later.
    Steps(&'a [StepRow]),
    /// Calls of the functions of `--record`.
    Calls(&'a [EventRow]),
    /// Words that were taken with calls and operations. Those at the begin of a call come before its row or in the same turn, behind it; those at its end in
    /// that turn or the next.
    Words(&'a [WordRow]),
    /// Response times of all operations; when the run is over.
    OperationHistograms(&'a [OperationHistogramRow]),
}

macro_rules! shown {
    ($($row:ident => $variant:ident),*) => {
        $(impl<'a> From<&'a [$row]> for Rows<'a> {
            fn from(rows: &'a [$row]) -> Self {
                Self::$variant(rows)
            }
        })*
        impl Rows<'_> {
            /// How many there are.
            #[must_use]
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$variant(rows) => rows.len(),)*
                }
            }

            /// None.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// At most so many from the first one on, and the rest.
            fn split(self, at: usize) -> (Self, Self) {
                let at = at.min(self.len());
                match self {
                    $(Self::$variant(rows) => {
                        let (head, tail) = rows.split_at(at);
                        (Self::$variant(head), Self::$variant(tail))
                    })*
                }
            }
        }
    };
}
shown!(OperationRow => Operations, OperationClassRow => OperationClasses, StepRow => Steps, EventRow => Calls,
    WordRow => Words, OperationHistogramRow => OperationHistograms);

/// What the code says of return addresses that a consumer asked for.
#[derive(Debug, Clone, Default)]
pub struct CodeFound {
    /// One row for each address of which anything is known.
    pub sites: Vec<CallSiteRow>,
    /// Every address that was asked for and looked at.
    pub looked_at: Vec<(u32, u64)>,
    /// Where the functions of `--calls` can go by jumps, and of which that is known; `None`: it was said before.
    pub jumps: Option<(Vec<TailRow>, Vec<u32>)>,
    /// Slots that are less than this apart lie on one stack, bytes; 0: nothing follows from distances.
    pub stack_span_bytes: u64,
}

/// A consumer's turn.
#[derive(Debug)]
pub struct Turn {
    /// Now, ktime ns.
    pub now_ns: u64,
    /// When the recording began.
    pub start: RunStart,
    /// CPU time of this thread at which the consumer's time is over, ns.
    until_cpu_ns: u64,
    told: Vec<String>,
    asked: Vec<(u32, u64)>,
    asks: bool,
}

impl Turn {
    fn new((now_ns, start): (u64, RunStart), left_ns: u64) -> Self {
        Self {
            now_ns,
            start,
            until_cpu_ns: thread_cpu_ns().saturating_add(left_ns),
            told: Vec::new(),
            asked: Vec::new(),
            asks: false,
        }
    }

    /// Its time is over: what is left to do waits for the next turn, or is skipped. A look costs 0.3 us.
    #[must_use]
    pub fn is_over(&self) -> bool {
        thread_cpu_ns() >= self.until_cpu_ns
    }

    /// Tells the user: a line, or several, that stay on standard error.
    pub fn tell(&mut self, text: String) {
        self.told.push(text);
    }

    /// Asks what the code says of return addresses, by process, and of jumps. The answer comes some turns later ([`Consumer::learn`]).
    pub fn ask(&mut self, addresses: impl IntoIterator<Item = (u32, u64)>) {
        self.asks = true;
        self.asked.extend(addresses);
    }
}

/// Time between two looks at calls in flight, ns: two in a step of `--expect`.
const LOOK_NS: u64 = 125_000_000;
/// What looks at calls in flight may use, as a part of what their consumer may.
const PART_OF_LOOKS: f64 = 0.25;

/// The target's threads, and the recorded calls that are open on them.
pub trait Threads {
    /// All of them.
    fn tids(&self) -> Vec<i32>;

    /// The recorded calls that are open on these threads, and whose ends are watched.
    fn open_calls(&self, tids: &[i32]) -> Vec<OpenCall>;

    /// Calls of this class are recorded in bursts: those that are open at the end of one are not seen to end.
    fn is_in_bursts(&self, class: ClassId) -> bool;

    /// The links that see the ends of calls of this class are there now, and were when its open calls were read before.
    fn are_ends_seen(&self, class: ClassId) -> bool;

    /// What a thread has used; `None`: it is gone.
    fn look(&self, tid: i32) -> Option<ThreadLook>;

    /// The number of the system call that a thread waits in (below 0: it waits in none), and when it was asked, ktime ns. `None`: it runs, or nobody knows.
    fn waits_in(&self, tid: i32) -> Option<(i64, u64)>;

    /// The row of an open call, had it ended at that look. `None`: it has ended, or nobody knows.
    fn row(&self, call: &OpenCall, look: &ThreadLook) -> Option<EventRow>;
}

/// Reads recorded rows while the run goes on. See the [module](self).
pub trait Consumer {
    /// What it is for, as its skipped rows are told: `--slower`.
    fn name(&self) -> &'static str;

    /// Rows that are about to be written, [`AT_ONCE`] at most. Some microseconds are its share; what takes longer belongs into [`Consumer::work`].
    fn take(&mut self, rows: Rows<'_>);

    /// Rows that it was not shown, because its time was over: to be counted, and no more.
    fn skipped(&mut self, rows: Rows<'_>) {
        let _ = rows;
    }

    /// Classes that have come. Those whose calls it is shown were there before.
    fn classes(&mut self, classes: &[ClassRow]) {
        let _ = classes;
    }

    /// What the code says of addresses that it, or another consumer, asked for.
    fn learn(&mut self, found: &CodeFound) {
        let _ = found;
    }

    /// Eight times a second, after the turn's rows: calls in flight may be looked at. `most_ns`: the CPU time for it; a consumer that looks at none returns at once.
    fn look(&mut self, threads: &dyn Threads, most_ns: u64) {
        let _ = (threads, most_ns);
    }

    /// Once a turn, after the turn's rows, where it has time left: it looks at [`Turn::is_over`] between pieces of work.
    fn work(&mut self, turn: &mut Turn) {
        let _ = turn;
    }

    /// The run is over, and all rows were shown. It says what is left to be said; what it returns are lines for the recording's warnings.
    fn end(&mut self, turn: &mut Turn) -> Vec<String> {
        let _ = turn;
        Vec::new()
    }

    /// After that: what it has found goes into the recording's description.
    fn note(&mut self, meta: &mut Meta) {
        let _ = meta;
    }
}

/// A consumer, with what it may use and what it missed.
struct Registered {
    consumer: Box<dyn Consumer>,
    allowance: Allowance,
    skipped_rows: u64,
}

/// What consumers want done.
#[derive(Debug, Default)]
pub struct Wants {
    /// Lines for standard error.
    pub told: Vec<String>,
    /// Return addresses by process.
    pub addresses: Vec<(u32, u64)>,
    /// Somebody asks what the code says, of these addresses or of jumps alone.
    pub asks: bool,
}

/// All consumers of a run.
#[derive(Default)]
pub struct Consumers {
    list: Vec<Registered>,
    /// Said when the run is over: who panicked.
    failed: Vec<String>,
    /// Classes that were shown.
    classes_shown: usize,
    /// The last look at calls in flight, ktime ns.
    looked_ns: u64,
}

impl Consumers {
    /// One more. `agent_cpu`: what the agent may use, CPU s/s.
    pub fn register(&mut self, consumer: Box<dyn Consumer>, agent_cpu: f64, now_ns: u64) {
        self.list.push(Registered {
            consumer,
            allowance: Allowance::new(agent_cpu * PART_OF_AGENT, now_ns),
            skipped_rows: 0,
        });
        // They share it.
        let each = agent_cpu * PART_OF_AGENT / self.list.len() as f64;
        self.list.iter_mut().for_each(|registered| registered.allowance.set_income(each));
    }

    /// None is registered: nothing need be copied, asked or computed for them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Shows rows to all of them, then hands them to the writer. False: the writer had no room ([`WriterHandle::send`]).
    pub fn record<R>(&mut self, writer: &WriterHandle, rows: Vec<R>, now_ns: u64) -> bool
    where
        for<'a> Rows<'a>: From<&'a [R]>,
        recording::Rows: From<Vec<R>>,
    {
        self.show(Rows::from(rows.as_slice()), now_ns);
        writer.send(rows)
    }

    /// Shows rows to all of them.
    pub fn show(&mut self, rows: Rows<'_>, now_ns: u64) {
        if !rows.is_empty() {
            self.each(now_ns, |registered, left_ns| registered.show(rows, left_ns));
        }
    }

    /// How many classes they know, of those that are given by number from 0.
    #[must_use]
    pub fn classes_shown(&self) -> usize {
        self.classes_shown
    }

    /// Shows the next classes to all of them.
    pub fn show_classes(&mut self, classes: &[ClassRow], now_ns: u64) {
        self.classes_shown += classes.len();
        self.each(now_ns, |registered, _| registered.consumer.classes(classes));
    }

    /// What they have found goes into the recording's description.
    pub fn note(&mut self, meta: &mut Meta, now_ns: u64) {
        self.each(now_ns, |registered, _| registered.consumer.note(meta));
    }

    /// Tells them what the code says.
    pub fn learn(&mut self, found: &CodeFound, now_ns: u64) {
        self.each(now_ns, |registered, _| registered.consumer.learn(found));
    }

    /// Has all that have time left look at calls in flight, where a look is due.
    pub fn look(&mut self, threads: &dyn Threads, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        self.each(now_ns, |registered, left_ns| {
            let most = (PART_OF_LOOKS * registered.allowance.in_ns(LOOK_NS)).min(left_ns as f64);
            if most > 0.0 {
                // OK because it is neither negative nor large.
                registered.consumer.look(threads, most as u64);
            }
        });
    }

    /// A turn of each that has time left. `start`: when the recording began.
    pub fn work(&mut self, now_ns: u64, start: RunStart) -> Wants {
        let mut wants = Wants::default();
        self.each(now_ns, |registered, left_ns| {
            if left_ns == 0 {
                return;
            }
            let mut turn = Turn::new((now_ns, start), left_ns);
            registered.consumer.work(&mut turn);
            wants.take(turn);
        });
        wants
    }

    /// The run is over: what is left to be said, and the warnings of the recording. There is time now: `left_ns` of CPU time for each.
    pub fn end(&mut self, now_ns: u64, start: RunStart, left_ns: u64) -> (Wants, Vec<String>) {
        let (mut wants, mut warnings) = (Wants::default(), Vec::new());
        self.each(now_ns, |registered, _| {
            let mut turn = Turn::new((now_ns, start), left_ns);
            warnings.extend(registered.consumer.end(&mut turn));
            wants.take(turn);
            if registered.skipped_rows > 0 {
                warnings.push(format!(
                    "{} did not look at {} recorded rows, to keep to its part of --agent-cpu: the recording has them",
                    registered.consumer.name(),
                    registered.skipped_rows
                ));
            }
        });
        warnings.append(&mut self.failed);
        (wants, warnings)
    }

    /// Calls each of them with the CPU time that it has left, ns, and charges it what it took. One that panics is dropped: it must not end the run.
    fn each(&mut self, now_ns: u64, mut act: impl FnMut(&mut Registered, u64)) {
        let failed = &mut self.failed;
        self.list.retain_mut(|registered| {
            let left_ns = registered.allowance.left_ns(now_ns);
            let before_ns = thread_cpu_ns();
            let result = catch_unwind(AssertUnwindSafe(|| act(registered, left_ns)));
            registered.allowance.charge(thread_cpu_ns().saturating_sub(before_ns));
            if result.is_err() {
                let name = catch_unwind(AssertUnwindSafe(|| registered.consumer.name())).unwrap_or("a consumer");
                failed.push(format!(
                    "{name} failed during the run, and looked at nothing from then on: a defect of tithe; the recording is whole"
                ));
            }
            result.is_ok()
        });
    }
}

impl Registered {
    fn show(&mut self, mut rows: Rows<'_>, left_ns: u64) {
        let until_ns = thread_cpu_ns().saturating_add(left_ns);
        // One clock for all: without time left not even the first rows are shown.
        while !rows.is_empty() && thread_cpu_ns() < until_ns {
            let (head, tail) = rows.split(AT_ONCE);
            self.consumer.take(head);
            rows = tail;
        }
        if !rows.is_empty() {
            self.skipped_rows += rows.len() as u64;
            self.consumer.skipped(rows);
        }
    }
}

impl Wants {
    fn take(&mut self, mut turn: Turn) {
        self.told.append(&mut turn.told);
        self.addresses.append(&mut turn.asked);
        self.asks |= turn.asks;
    }
}
