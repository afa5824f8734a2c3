//! Classes that are traced all the time are counted beside bursts (table `beside`): which ones, and what they were called.

use super::Attachments;
use crate::agent::class::{LinkState, OpenWindow};
use crate::governor::LinkTable;
use crate::prober::Kernel;
use profiler_core::class::{ClassId, Tier};
use profiler_core::recording::{BesideRow, WindowKind};
use std::cmp::Reverse;

/// A burst whose gate was open for longer when both were counted first has seen calls that are not in its row, ns.
const LATE_NS: u64 = 1_000_000;

/// With more copies of each counter the governor would read for longer than a few microseconds.
const MOST_STRIPES: u32 = 16;

/// The table, which counts classes beside bursts where that takes no time, and where what is counted are calls of the target: on tier C hits of others are among them.
pub fn counting(table: LinkTable, kernel: &Kernel) -> LinkTable {
    let classes = kernel.classes().clone();
    if kernel.tier() == Tier::C || classes.stripes() > MOST_STRIPES {
        return table;
    }
    table.counting(move |id| classes.attempted(ClassId(id)))
}

impl Attachments {
    /// The classes that are traced all the time in the process of this one, those that were called most first: those tell most.
    pub(super) fn traced_with(&self, leader: ClassId) -> Vec<u32> {
        let target = self.targets.of(leader);
        let traced = self.classes.iter().filter(|class| {
            let is_traced = matches!(&class.state, LinkState::Open(w) if w.kind == WindowKind::Trace);
            // What is inside of operations is attached for them alone.
            is_traced && class.role.is_none() && self.targets.of(class.id) == target
        });
        // As last read: which are called most is no matter of a moment.
        let mut traced: Vec<(u64, u32)> =
            traced.map(|class| (class.counters.attempted, class.id.0)).collect();
        traced.sort_by_key(|(calls, id)| (Reverse(*calls), *id));
        traced.into_iter().filter(|(calls, _)| *calls > 0).map(|(_, id)| id).collect()
    }

    /// What a burst that has ended was called, and what classes were that were traced all the time meanwhile.
    pub(super) fn counted_beside(&self, id: ClassId, window: &OpenWindow) -> Vec<BesideRow> {
        let Some(begin) = window.beside else { return Vec::new() };
        let end = self.governor.table().counted_at_end(id.0).filter(|end| end.time_ns >= begin.until_ns);
        let Some(end) = end.filter(|_| begin.time_ns.saturating_sub(window.start_ns) < LATE_NS) else {
            return Vec::new();
        };
        let was_traced = |class: u32| {
            let state = self.classes.get(class as usize).map(|class| &class.state);
            matches!(state, Some(LinkState::Open(w)) if w.kind == WindowKind::Trace && w.opened_ns < window.start_ns)
        };
        let row = |(class, calls): (u32, u64)| {
            let (_, until) = end.beside.iter().flatten().find(|(other, _)| *other == class)?;
            was_traced(class).then_some(BesideRow {
                class_id: id.0,
                start_ns: window.start_ns,
                begin_ns: begin.time_ns,
                end_ns: end.time_ns,
                calls: end.own.checked_sub(begin.own)?,
                beside_id: class,
                beside_calls: until.checked_sub(calls)?,
            })
        };
        begin.beside.iter().flatten().filter_map(|of| row(*of)).collect()
    }
}
