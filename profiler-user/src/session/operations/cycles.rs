//! Cycles of an operation: what the policy released, as rows.

use super::Operation;
use crate::prober::OperationTable;
use profiler_core::adapt::cycle::CycleEnd;
use profiler_core::adapt::evaluate::Evaluation;
use profiler_core::adapt::{OperationClassId, Step};
use profiler_core::recording::{OperationCycleEnd, OperationCycleRow};

impl Operation {
    /// Writes what the policy decided; the row of the cycle that ended.
    pub(super) fn follow(
        &mut self,
        step: &Step,
        table: &OperationTable,
        now: u64,
    ) -> Option<OperationCycleRow> {
        let row = step.release.as_ref().map(|report| {
            let end = match report.end {
                CycleEnd::Representative => OperationCycleEnd::Representative,
                CycleEnd::Timeout => OperationCycleEnd::Timeout,
            };
            let counts = (report.population, report.sample);
            self.cycle_row(
                now,
                end,
                &report.evaluation,
                counts,
                report.largest_share_difference,
                &report.unobserved,
            )
        });
        if step.new_cycle {
            self.cycle += u64::from(row.is_some());
            self.cycle_since_ns = now;
            let cycle = self.cycle;
            table.adjust(self.number, |c| c.cycle = cycle);
            table.begin_cycle(self.number, self.classes.clone());
        }
        row
    }

    /// The row of a cycle.
    pub(super) fn cycle_row(
        &self,
        now: u64,
        end: OperationCycleEnd,
        evaluation: &Evaluation,
        counts: (u64, u64),
        share: f64,
        unobserved: &[(OperationClassId, u64)],
    ) -> OperationCycleRow {
        OperationCycleRow {
            operation: self.number,
            number: self.cycle,
            start_ns: self.cycle_since_ns,
            end_ns: now,
            end,
            population: counts.0,
            sample: counts.1,
            z: evaluation.z,
            needed: evaluation.needed,
            large_enough: evaluation.large_enough,
            same_times: evaluation.same_times,
            difference_ns: evaluation.difference_ns,
            same_shares: evaluation.same_shares,
            largest_share_difference: share,
            unobserved: unobserved.iter().map(|(class, _)| self.class_name(class.0)).collect(),
        }
    }
}
