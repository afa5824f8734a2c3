//! Calls in order: what is drained of them, and what the code says of their return addresses when the run is over (docs/calls.md).

use super::Agent;
use super::class::{LiveClass, OperationRole};
use crate::inspect::{Backing, CallContext, CallerBudget, FrameRule, FunctionAt, Jumps, LedFrom, Module};
use crate::prober::{StepReader, StepRecord};
use profiler_core::class::RecordKind;
use profiler_core::recording::{CallSiteRow, CallerRule, StepRow, TailRow};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The ring of steps, bytes.
pub(super) const RING_BYTES: u32 = 8 << 20;
/// `BPF_RINGBUF_HDR_SZ` (include/uapi/linux/bpf.h): before each record.
const HEADER_BYTES: usize = 8;
/// Steps taken from the ring in one turn: all that a full one holds. What threads put in meanwhile is left for the next turn, or the queue of the writer would need room for that, too.
const DRAIN_LIMIT: usize = RING_BYTES as usize / (HEADER_BYTES + size_of::<StepRecord>());
/// What one turn takes from the ring at most, as the writer's queue counts it.
pub(super) const DRAIN_BYTES: usize = DRAIN_LIMIT * size_of::<StepRow>();
/// Return addresses that are looked at: one for each call site that was passed.
const MOST_ADDRESSES: usize = 100_000;
/// What looking at them may take, after everything is detached.
const BUDGET: CallerBudget = CallerBudget { bytes: 256 << 20, time: Duration::from_secs(5) };

/// Slots that are less than this apart lie on one stack: the main thread's may grow to 8 MiB, and pthreads have that by default.
pub(super) const STACK_SPAN_BYTES: u64 = 8 << 20;

/// Steps that come from the kernel.
pub(super) struct Steps {
    reader: StepReader,
    seen: HashSet<(u32, u64)>,
    stacks: SeenStacks,
}

/// On which stacks steps were taken.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SeenStacks {
    /// Lowest and highest slot of first threads.
    first: Option<(u64, u64)>,
    /// Other threads took some, too.
    others: bool,
}

impl SeenStacks {
    fn note(&mut self, step: &StepRecord) {
        if step.pid != step.tid {
            self.others = true;
            return;
        }
        let (low, high) = self.first.unwrap_or((step.slot, step.slot));
        self.first = Some((low.min(step.slot), high.max(step.slot)));
    }

    /// All of them lie where the kernel lets nothing but the first thread's stack grow: it kept to that.
    fn are_the_first_threads(&self, stack_end: Option<u64>) -> bool {
        let Some(end) = stack_end else { return false };
        let may_grow_to = end.saturating_sub(STACK_SPAN_BYTES);
        !self.others && self.first.is_none_or(|(low, high)| low >= may_grow_to && high < end)
    }
}

/// What was seen of steps, for a look at the code when the run is over.
#[derive(Debug, Clone, Default)]
pub(super) struct SeenSteps {
    /// Return addresses, by process.
    addresses: Vec<(u32, u64)>,
    stacks: SeenStacks,
}

impl Steps {
    pub fn new(reader: StepReader) -> Self {
        Self { reader, seen: HashSet::new(), stacks: SeenStacks::default() }
    }

    /// Rows of those that are in the ring.
    pub fn drain(&mut self) -> Vec<StepRow> {
        let mut rows = Vec::new();
        let Self { reader, seen, stacks } = self;
        reader.drain(DRAIN_LIMIT, |step| {
            if seen.len() < MOST_ADDRESSES {
                seen.insert((step.pid, step.return_address));
            }
            stacks.note(step);
            rows.push(row(step));
        });
        rows
    }

    /// Return addresses that lie there, by process.
    pub fn addresses_in<'a>(&'a self, range: &'a Range<u64>) -> impl Iterator<Item = (u32, u64)> + 'a {
        self.seen.iter().copied().filter(|(_, address)| range.contains(address))
    }

    /// On which stacks they were taken.
    pub fn stacks(&self) -> SeenStacks {
        self.stacks
    }

    /// What was seen.
    pub fn seen(&self) -> SeenSteps {
        let mut addresses: Vec<_> = self.seen.iter().copied().filter(|(_, address)| *address != 0).collect();
        addresses.sort_unstable();
        SeenSteps { addresses, stacks: self.stacks }
    }
}

fn row(step: &StepRecord) -> StepRow {
    StepRow {
        time_ns: step.time_ns,
        number: step.number,
        class_id: step.class,
        pid: step.pid,
        tid: step.tid,
        slot: step.slot,
        return_address: step.return_address,
        frame: step.frame,
    }
}

/// What the code that calls and is called is to the run: classes by function.
#[derive(Debug, Clone, Default)]
pub(super) struct CodeClasses {
    /// Functions whose entries are steps.
    stepped: BTreeMap<FunctionAt, u32>,
    /// These, and those that bound an operation. There are no steps of the latter, but what they call lies in no other function.
    callers: BTreeMap<FunctionAt, u32>,
}

impl CodeClasses {
    /// The row of a return address; `None`: code made at run time, or a return address that a probe of somebody else's has replaced.
    pub fn site(
        &self,
        pid: u32,
        context: &CallContext,
        led: &LedFrom,
        modules: &[Module],
    ) -> Option<CallSiteRow> {
        let module = modules.get(context.module?)?;
        let classes = |functions: &Vec<FunctionAt>| {
            functions.iter().filter_map(|at| self.stepped.get(at).copied()).collect()
        };
        let (caller, caller_value) = match context.rule {
            FrameRule::Sp(value) => (CallerRule::Sp, value),
            FrameRule::Frame(value) => (CallerRule::Frame, value),
            FrameRule::Signal => (CallerRule::Signal, 0),
            FrameRule::Unknown => (CallerRule::Unknown, 0),
        };
        Some(CallSiteRow {
            return_address: context.return_address,
            pid,
            module: module.path.display().to_string(),
            offset: context.vaddr,
            function: context.function.as_ref().map_or_else(String::new, |(_, name)| name.clone()),
            function_class: context.function.as_ref().and_then(|(at, _)| self.callers.get(at).copied()),
            caller,
            caller_value,
            target_class: context.target.and_then(|to| self.stepped.get(&to).copied()),
            is_direct: context.is_direct,
            jumps_from: led.by_jumps.as_ref().map(classes),
            reached_from: led.by_calls.as_ref().map(classes),
            since_ns: None,
            until_ns: None,
        })
    }

    /// Functions whose entries are steps.
    pub fn functions(&self) -> Vec<FunctionAt> {
        self.stepped.keys().copied().collect()
    }

    /// Their classes.
    pub fn classes(&self) -> Vec<u32> {
        self.stepped.values().copied().collect()
    }

    /// The rows of jumps, and the classes of which all are known.
    pub fn tails(&self, jumps: &Jumps) -> (Vec<TailRow>, Vec<u32>) {
        let class_of = |at: &FunctionAt| self.stepped.get(at).copied();
        let pairs = jumps.pairs.iter();
        let pairs = pairs
            .filter_map(|(from, to)| Some(TailRow { from_class: class_of(from)?, to_class: class_of(to)? }));
        (pairs.collect(), jumps.known.iter().filter_map(class_of).collect())
    }
}

impl Agent {
    /// Writes what the code says of return addresses of steps, and of jumps between the functions that were watched.
    pub(super) fn describe_calls(&mut self, seen: &SeenSteps) {
        if self.journal.meta.calls.is_none() {
            return;
        }
        let deadline = Instant::now() + BUDGET.time;
        // A library may be able to switch stacks (OpenSSL is) where nobody asks it to.
        let keeps = self.keeps_to_first_stacks(seen.stacks) || self.inspection.keeps_stacks(deadline);
        let code = self.code_classes();
        let distinct: BTreeSet<u64> = seen.addresses.iter().map(|(_, address)| *address).collect();
        let distinct: Vec<u64> = distinct.into_iter().collect();
        let snapshot = self.inspection.code_snapshot();
        let contexts = snapshot.contexts(&distinct, BUDGET);
        let named: HashSet<FunctionAt> = code.functions().into_iter().collect();
        let led = snapshot.led_from(&contexts, &named, deadline + BUDGET.time);
        let by_address: BTreeMap<u64, (&CallContext, &LedFrom)> =
            distinct.into_iter().zip(contexts.iter().zip(&led)).collect();
        let sites = seen.addresses.iter().filter_map(|(pid, address)| {
            let (context, led) = by_address.get(address)?;
            let site = code.site(*pid, context, led, snapshot.modules())?;
            Some(CallSiteRow { since_ns: self.mapped_since(*address), ..site })
        });
        let sites: Vec<CallSiteRow> = sites.collect();
        self.write_code_that_went(BUDGET.time);
        self.journal.writer.send_patiently(sites);
        let jumps = snapshot.jumps(&code.functions(), deadline + 2 * BUDGET.time);
        let (tails, known) = code.tails(&jumps);
        self.journal.writer.send_patiently(tails);
        let Some(meta) = &mut self.journal.meta.calls else { return };
        meta.classes = code.classes();
        meta.tails_known = known;
        if !keeps {
            meta.stack_span_bytes = 0;
        }
    }

    /// Classes of functions as the code names them. Of a function that was refused there are no steps, or not all.
    pub(super) fn code_classes(&self) -> CodeClasses {
        let all = self.attach.classes();
        let stepped = all.iter().filter(|class| is_stepped(class) && class.refused.is_none());
        let stepped: BTreeMap<FunctionAt, u32> = stepped.map(|c| (place(c), c.id.0)).collect();
        let mut callers = stepped.clone();
        callers.extend(all.iter().filter(|c| begins_operation(c)).map(|c| (place(c), c.id.0)));
        CodeClasses { stepped, callers }
    }

    /// All of these lie on the stacks that the kernel gave first threads.
    pub(super) fn keeps_to_first_stacks(&self, stacks: SeenStacks) -> bool {
        let stack =
            self.inspection.maps().iter().find(|map| map.backing == Backing::Special("[stack]".into()));
        stacks.are_the_first_threads(stack.map(|map| map.end))
    }
}

/// Its entries are recorded as steps.
pub(super) fn is_stepped(class: &LiveClass) -> bool {
    class.kind == RecordKind::Step
}

/// It runs around the operation, or begins it.
fn begins_operation(class: &LiveClass) -> bool {
    matches!(class.role, Some(OperationRole::Whole(_) | OperationRole::Begin(_)))
}

fn place(class: &LiveClass) -> FunctionAt {
    (class.candidate.key.module, class.candidate.key.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Rows, WriterOptions};

    /// Steps for which the queue has no room are lost, and nothing marks their operations.
    #[test]
    fn what_one_turn_takes_finds_the_room_that_was_asked_for() {
        let record = StepRecord {
            time_ns: 1,
            number: 1,
            slot: 0,
            return_address: 0,
            frame: 0,
            class: 0,
            pid: 1,
            tid: 1,
            flags: 0,
        };
        let most = Rows::from(vec![row(&record); DRAIN_LIMIT]);
        assert!(most.bytes() <= DRAIN_BYTES, "{} bytes", most.bytes());
        let options = WriterOptions::default();
        assert!(options.room_bytes + most.bytes() <= options.queue_bytes);
    }
}
