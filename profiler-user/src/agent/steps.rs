//! Calls in order: what is drained of them, and what the code says of their return addresses when the run is over (docs/calls.md).

use super::Agent;
use super::class::{LiveClass, OperationRole};
use crate::inspect::{Backing, CallContext, CallerBudget, FrameRule, FunctionAt};
use crate::prober::{StepReader, StepRecord};
use profiler_core::class::RecordKind;
use profiler_core::recording::{CallSiteRow, CallerRule, StepRow, TailRow};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

/// Steps taken from the ring in one turn.
const DRAIN_LIMIT: usize = 200_000;
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

impl Agent {
    /// Writes what the code says of return addresses of steps, and of jumps between the functions that were watched.
    pub(super) fn describe_calls(&mut self, seen: &SeenSteps) {
        let Some(meta) = &mut self.journal.meta.calls else { return };
        let deadline = Instant::now() + BUDGET.time;
        // A library may be able to switch stacks (OpenSSL is) where nobody asks it to.
        let stack =
            self.inspection.maps().iter().find(|map| map.backing == Backing::Special("[stack]".into()));
        let keeps_to_its_own = seen.stacks.are_the_first_threads(stack.map(|map| map.end));
        if !keeps_to_its_own && !self.inspection.keeps_stacks(deadline) {
            meta.stack_span_bytes = 0;
        }
        let addresses = &seen.addresses;
        // Of a function that was refused there are no steps, or not all.
        let classes: BTreeMap<FunctionAt, u32> = self
            .attach
            .classes()
            .iter()
            .filter(|class| is_stepped(class) && class.refused.is_none())
            .map(|c| (place(c), c.id.0))
            .collect();
        // There are none of a function that bounds an operation either, but what it calls lies in no other one.
        let mut callers = classes.clone();
        callers
            .extend(self.attach.classes().iter().filter(|c| begins_operation(c)).map(|c| (place(c), c.id.0)));
        let distinct: BTreeSet<u64> = addresses.iter().map(|(_, address)| *address).collect();
        let distinct: Vec<u64> = distinct.into_iter().collect();
        let contexts = self.inspection.call_contexts(&distinct, BUDGET);
        let by_address: BTreeMap<u64, &CallContext> = distinct.into_iter().zip(&contexts).collect();
        let modules = self.inspection.modules();
        let sites = addresses.iter().filter_map(|(pid, address)| {
            let context = by_address.get(address)?;
            // Code made at run time, or a return address that a probe of somebody else's has replaced.
            context.module?;
            let target = context.direct.and_then(|to| self.inspection.function_at(to));
            let (caller, caller_value) = match context.rule {
                FrameRule::Sp(value) => (CallerRule::Sp, value),
                FrameRule::Frame(value) => (CallerRule::Frame, value),
                FrameRule::Signal => (CallerRule::Signal, 0),
                FrameRule::Unknown => (CallerRule::Unknown, 0),
            };
            Some(CallSiteRow {
                return_address: *address,
                pid: *pid,
                module: context
                    .module
                    .and_then(|index| modules.get(index))
                    .map_or_else(String::new, |module| module.path.display().to_string()),
                offset: context.vaddr,
                function: context.function.as_ref().map_or_else(String::new, |(_, name)| name.clone()),
                function_class: context.function.as_ref().and_then(|(at, _)| callers.get(at).copied()),
                caller,
                caller_value,
                target_class: target.and_then(|to| classes.get(&(to.module, to.vaddr)).copied()),
                is_direct: context.is_direct,
                jumps_from: None,
                reached_from: None,
            })
        });
        self.journal.writer.send_patiently(sites.collect::<Vec<_>>());
        let functions: Vec<FunctionAt> = classes.keys().copied().collect();
        let jumps = self.inspection.jumps(&functions, deadline + BUDGET.time);
        let class_of = |at: &FunctionAt| classes.get(at).copied();
        meta.classes = classes.values().copied().collect();
        meta.tails_known = jumps.known.iter().filter_map(class_of).collect();
        let pairs = jumps.pairs.iter();
        let pairs = pairs
            .filter_map(|(from, to)| Some(TailRow { from_class: class_of(from)?, to_class: class_of(to)? }));
        self.journal.writer.send_patiently(pairs.collect::<Vec<_>>());
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
