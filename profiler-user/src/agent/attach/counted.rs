//! Classes that are traced all the time are counted beside bursts (table `beside`): which ones, and what they were called.

use super::Attachments;
use crate::agent::class::{LinkState, LiveClass, OpenWindow};
use crate::governor::{Counted, LinkTable};
use crate::prober::Kernel;
use profiler_core::class::{ClassId, Tier};
use profiler_core::recording::{BesideRow, WindowKind};
use std::cmp::Reverse;

/// A burst whose gate was open for longer when both were counted first has seen calls that are not in its row, ns.
const LATE_NS: u64 = 1_000_000;

/// Functions whose calls differ by less than this part are one that calls the other.
const ALIKE: u64 = 64;

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

/// The governor hands links over before it counts, and a closer on another CPU may be as fast: then the target is slowed no more. So much of a burst is no matter, even where a tenth of it is
/// the target's own.
const AFTER: f64 = 1.0 / 400.0;

impl Attachments {
    /// The classes that are traced all the time in the process of this one, those that were called most first: those tell most.
    pub(super) fn traced_with(&self, leader: ClassId) -> Vec<u32> {
        let target = self.targets.of(leader);
        // What is inside of operations is attached for them alone.
        let traced = self.classes.iter().filter(|class| {
            class.role.is_none() && self.targets.of(class.id) == target && self.is_traced(class, u64::MAX)
        });
        // As last read: which are called most is no matter of a moment.
        let mut traced: Vec<(u64, u32)> =
            traced.map(|class| (class.counters.attempted, class.id.0)).collect();
        traced.sort_by_key(|(calls, id)| (Reverse(*calls), *id));
        // One that calls the other, and nothing else does: each call says the same twice.
        traced.dedup_by(|next, last| {
            let are_one = next.0.saturating_mul(ALIKE) >= last.0.saturating_mul(ALIKE - 1);
            if are_one {
                // The same of them each time: a call in flight is one of the caller's only.
                last.1 = last.1.min(next.1);
            }
            are_one
        });
        traced.into_iter().filter(|(calls, _)| *calls > 0).map(|(_, id)| id).collect()
    }

    /// It has been traced since before that time. One that the breaker takes off just now is no more.
    fn is_traced(&self, class: &LiveClass, before_ns: u64) -> bool {
        let is_open = matches!(&class.state, LinkState::Open(w) if w.kind == WindowKind::Trace && w.opened_ns < before_ns);
        is_open && !self.governor.table().is_tripped(class.id.0)
    }

    /// What a burst that has ended was called, and what classes were that were traced all the time meanwhile. `gone_ns`: when its link began to be closed; whoever counted later counted what
    /// was not hit any more.
    pub(super) fn counted_beside(&self, id: ClassId, window: &OpenWindow, gone_ns: u64) -> Vec<BesideRow> {
        let Some(begin) = window.beside else { return Vec::new() };
        let is_late = begin.time_ns.saturating_sub(window.start_ns) >= LATE_NS;
        let end = self.governor.table().counted_at_end(id.0);
        let is_whole = |end: &Counted| {
            let after_ns = (AFTER * end.until_ns.saturating_sub(begin.time_ns) as f64) as u64;
            end.time_ns >= begin.until_ns && end.until_ns <= gone_ns.saturating_add(after_ns)
        };
        let Some(end) = end.filter(is_whole).filter(|_| !is_late) else { return Vec::new() };
        let was_traced = |class: u32| {
            let class = self.classes.get(class as usize);
            class.is_some_and(|class| self.is_traced(class, window.start_ns))
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
