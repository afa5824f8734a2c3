//! The end of the run: the last window, and what operations lost, in words.

use super::Operations;
use super::moment::Moment;
use super::operation::Operation;
use crate::run::order::Order;
use crate::run::order::operations::OperationOrder;
use profiler_common::operation::OperationCounters;

/// So many begins without a single end are no operations that were still open.
const NEVER_ENDED: u64 = 100;

impl Operations {
    /// Everything is detached.
    pub(super) fn end(&mut self, end_ns: u64, at: &mut Moment<'_>) {
        let now = at.now();
        let (mut rows, mut cycles) = (Vec::new(), Vec::new());
        let (begun, mut recorded) = (self.begun, Vec::new());
        let sliced = !self.inner.slices.plan().are_always();
        for (o, counts) in self.list.iter_mut().zip(&at.seen().counts) {
            at.order(OperationOrder::Monitor { operation: o.number, on: false });
            if !begun {
                continue;
            }
            let cut = o.cut(counts, now.min(end_ns).max(o.watch.since_ns), sliced);
            recorded.push(cut.recorded);
            rows.extend(cut.rows);
            let step = o.adapter.step(&cut.summary, None);
            if let Some(mut cycle) = o.follow(&step, end_ns, at) {
                cycle.runs_command = false;
                cycles.push(cycle);
            }
            cycles.extend(o.last_cycle(end_ns, &step.evaluation));
        }
        self.charge_writing(at.seen(), &recorded);
        at.order(OperationOrder::Windows(rows));
        for cycle in cycles {
            at.end_cycle(cycle);
        }
        for (o, counts) in self.list.iter().zip(&at.seen().counts) {
            o.warn_of_losses(counts, at.orders);
        }
        self.warn_of_agent(at);
        self.note_starving(at);
    }

    /// The report says that slices waited for ever, too, with the figures at the end.
    fn note_starving(&self, at: &mut Moment<'_>) {
        let Some(waiting) = self.starving(at) else { return };
        let names: Vec<&str> = self.list.iter().map(|o| o.name.as_str()).collect();
        let what = format!("the inside of operations ({})", names.join(", "));
        at.orders.push(Order::NotObserved(what, waiting.in_words()));
    }
}

impl Operation {
    /// What was lost, in words.
    fn warn_of_losses(&self, counts: &[OperationCounters], orders: &mut Vec<Order>) {
        let of = |i: usize| counts.get(i).copied().unwrap_or_default();
        let (own, other) = (of(0), of(1));
        let dropped: u64 = counts.iter().map(|c| c.dropped).sum();
        let begun: u64 = counts.iter().map(OperationCounters::begun).sum();
        let ended: u64 = counts.iter().map(|c| c.population.n).sum();
        let mut warn = |n: u64, text: &str| {
            if n > 0 {
                orders.push(Order::Warn(format!("operation '{}': {n} {text}", self.name)));
            }
        };
        warn(
            self.portion.starved.worth_a_warning(self.tally.sample),
            "windows in which requests were counted and timed, but nothing was left of what operations may cost to record one; fewer operations, or a larger --budget, would leave more",
        );
        warn(
            own.unmatched,
            "ends without a begin, begins whose end was not seen (a function that was left by an exception or longjmp; or functions were \
             detached meanwhile: a comparison of the overhead, which --no-ab prevents, forks, a quota), or begins beyond the nesting limit",
        );
        warn(
            if ended == 0 && begun >= NEVER_ENDED { begun } else { 0 },
            "begins and not one end: how long it takes is not known; a function that is always left by an exception or longjmp does not \
             end by itself: name one that returns, or a pair (--operation NAME=BEGIN..END)",
        );
        warn(own.unread, "requests whose class argument could not be read: they are '(unnamed)'");
        warn(
            other.begun(),
            "requests with names beyond the bound: they are '(other)'; --adapt max_classes=N raises it",
        );
        warn(
            dropped,
            "recorded operations were lost: the ring was full, or functions were detached meanwhile (a quota was used up, a slice ended, a comparison of the overhead, forks, the end of the run)",
        );
    }
}
