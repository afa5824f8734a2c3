//! Cycles of an operation: what the policy released, as rows and in words.

use super::moment::Moment;
use super::operation::Operation;
use crate::adapt::cycle::CycleEnd;
use crate::adapt::evaluate::Evaluation;
use crate::adapt::{OperationClassId, Step};
use crate::recording::{ChangeKind, OperationCycleEnd, OperationCycleRow};
use crate::run::order::Order;
use crate::run::order::operations::{EndedCycle, OperationOrder};

/// A cycle that has ended.
pub(super) type Cycle = EndedCycle;

/// What a cycle comes to.
struct Outcome<'a> {
    end: OperationCycleEnd,
    evaluation: &'a Evaluation,
    /// Operations, and recorded ones.
    counts: (u64, u64),
    largest_share_difference: f64,
    unobserved: &'a [(OperationClassId, u64)],
}

impl Operation {
    /// Orders what the policy decided; the cycle that ended.
    pub fn follow(&mut self, step: &Step, now: u64, at: &mut Moment<'_>) -> Option<Cycle> {
        let cycle = step.release.as_ref().map(|report| {
            let end = match report.end {
                CycleEnd::Representative => OperationCycleEnd::Representative,
                CycleEnd::Timeout => OperationCycleEnd::Timeout,
            };
            let outcome = Outcome {
                end,
                evaluation: &report.evaluation,
                counts: (report.population, report.sample),
                largest_share_difference: report.largest_share_difference,
                unobserved: &report.unobserved,
            };
            self.ended_cycle(now, &outcome)
        });
        if step.new_cycle {
            self.cycle.number += u64::from(cycle.is_some());
            self.cycle.since_ns = now;
            let (operation, cycle, classes) = (self.number, self.cycle.number, self.classes.clone());
            at.order(OperationOrder::BeginCycle { operation, cycle, classes });
        }
        cycle
    }

    /// The cycle that the end of the run ends, if an operation ended in it.
    pub fn last_cycle(&self, end_ns: u64, evaluation: &Evaluation) -> Option<Cycle> {
        let cycle = self.adapter.cycle();
        let (population, sample) = cycle.totals();
        let outcome = Outcome {
            end: OperationCycleEnd::RunEnd,
            evaluation,
            counts: (population.n(), sample.n()),
            largest_share_difference: cycle.largest_share_difference(),
            unobserved: &cycle.unobserved(),
        };
        (population.n() > 0).then(|| self.ended_cycle(end_ns, &outcome))
    }

    fn ended_cycle(&self, now: u64, outcome: &Outcome<'_>) -> Cycle {
        let Outcome { end, evaluation, counts, largest_share_difference, unobserved } = *outcome;
        EndedCycle {
            operation: self.name.clone(),
            row: OperationCycleRow {
                operation: self.number,
                number: self.cycle.number,
                start_ns: self.cycle.since_ns,
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
                largest_share_difference,
                unobserved: Vec::new(),
            },
            unobserved: unobserved.iter().map(|(class, _)| class.0).collect(),
            runs_command: end != OperationCycleEnd::RunEnd,
        }
    }
}

impl Moment<'_> {
    /// Tells of a cycle that has ended.
    pub fn end_cycle(&mut self, cycle: Cycle) {
        let text = in_words(&cycle);
        self.order(OperationOrder::Cycle(cycle));
        self.orders.push(Order::Detail(text.clone()));
        self.change(ChangeKind::Cycle, None, text);
    }
}

fn in_words(cycle: &Cycle) -> String {
    let EndedCycle { operation, row, unobserved, .. } = cycle;
    let end = match row.end {
        OperationCycleEnd::Representative => "representative",
        OperationCycleEnd::Timeout => "timeout",
        OperationCycleEnd::RunEnd => "run end",
    };
    let unobserved = match unobserved.as_slice() {
        [] => String::new(),
        list => format!("; {} classes without a recorded one", list.len()),
    };
    format!(
        "cycle {} of {operation} after {:.1} s: {end} (z {:.2}), {} of {} recorded{unobserved}",
        row.number,
        row.end_ns.saturating_sub(row.start_ns) as f64 * 1e-9,
        row.z,
        row.sample,
        row.population
    )
}
