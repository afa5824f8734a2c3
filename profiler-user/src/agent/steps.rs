//! Calls in order: what is drained of them, and what the code says of their return addresses when the run is over (docs/calls.md).

use super::Agent;
use super::class::LiveClass;
use crate::inspect::{CallContext, CallerBudget, FrameRule, FunctionAt};
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
}

impl Steps {
    pub fn new(reader: StepReader) -> Self {
        Self { reader, seen: HashSet::new() }
    }

    /// Rows of those that are in the ring.
    pub fn drain(&mut self) -> Vec<StepRow> {
        let mut rows = Vec::new();
        let Self { reader, seen } = self;
        reader.drain(DRAIN_LIMIT, |step| {
            if seen.len() < MOST_ADDRESSES {
                seen.insert((step.pid, step.return_address));
            }
            rows.push(row(step));
        });
        rows
    }

    /// Return addresses that were seen, by process.
    pub fn return_addresses(&self) -> Vec<(u32, u64)> {
        let mut all: Vec<_> = self.seen.iter().copied().filter(|(_, address)| *address != 0).collect();
        all.sort_unstable();
        all
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
    pub(super) fn describe_calls(&mut self, addresses: Vec<(u32, u64)>) {
        let Some(meta) = &mut self.journal.meta.calls else { return };
        let deadline = Instant::now() + BUDGET.time;
        if !self.inspection.keeps_stacks(deadline) {
            meta.stack_span_bytes = 0;
        }
        // Of a function that bounds an operation there are no steps, and of one that was refused none or not all.
        let classes: BTreeMap<FunctionAt, u32> = self
            .attach
            .classes()
            .iter()
            .filter(|class| is_stepped(class) && class.refused.is_none())
            .map(|c| (place(c), c.id.0))
            .collect();
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
                function_class: context.function.as_ref().and_then(|(at, _)| classes.get(at).copied()),
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

fn place(class: &LiveClass) -> FunctionAt {
    (class.candidate.key.module, class.candidate.key.address)
}
