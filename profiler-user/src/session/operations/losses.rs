//! What operations lost, in words.

use super::super::Session;
use super::Operations;
use crate::prober::OperationTable;

/// So many begins without a single end are no operations that were still open.
const NEVER_ENDED: u64 = 100;

impl Session {
    /// What was lost, in words.
    pub(super) fn note_operation_losses(&mut self, operations: &Operations, table: &OperationTable) {
        for o in &operations.list {
            let own = table.counters(o.classes.start);
            let other = table.counters(o.classes.start + 1);
            let of_classes = || o.classes.clone().map(|class| table.counters(class));
            let dropped: u64 = of_classes().map(|c| c.dropped).sum();
            let begun: u64 = of_classes().map(|c| c.begun()).sum();
            let ended: u64 = of_classes().map(|c| c.population.n).sum();
            let mut warn = |n: u64, text: &str| {
                if n > 0 {
                    self.meta.warnings.push(format!("operation '{}': {n} {text}", o.name));
                }
            };
            warn(
                o.starved.worth_a_warning(o.sample),
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
                "recorded operations were lost: the ring was full, or functions were detached meanwhile (a quota was used up, a slice ended, a comparison of the overhead, forks)",
            );
        }
        if let Some(skipped) = operations.hook.as_ref().map(|hook| hook.skipped).filter(|n| *n > 0) {
            self.meta.warnings.push(format!(
                "--on-cycle: {skipped} cycles ended while the command still ran, and it was not run for them"
            ));
        }
    }
}
