//! Says where the functions inside operations wait for ever ([`profiler_core::clients::operations::starvation`]).

use super::super::Session;
use super::Operations;
use profiler_core::adapt::PolicyKind;
use profiler_core::clients::operations::starvation::{LEAST_DUE, Waiting};
use profiler_core::recording::{ChangeKind, NotObserved};

impl Session {
    fn waiting(&self, operations: &Operations) -> Option<Waiting> {
        if operations.policy == PolicyKind::None || operations.inner.is_empty() {
            return None;
        }
        let (due, begun) = operations.slices.due_and_begun();
        let allowed = self.operations_budget();
        let inner = operations.inner_priced(self.ledger.factor(), self.cost.attach.seconds())?;
        let live = || operations.list.iter().filter(|o| !o.lost);
        let waiting = Waiting {
            due,
            begun,
            held_back: operations.slices.held_back(),
            population: live().map(|o| o.population).sum(),
            recorded: live().map(|o| o.sample).sum(),
            bounds: live().map(|o| o.demand.screening).sum(),
            allowed,
            attached: inner.attached,
            shortest_s: inner.shortest_s(),
            budget: self.meta.budget,
        };
        waiting.is_starving().then_some(waiting)
    }

    /// Says once that slices wait; what is to be told.
    pub(super) fn say_starving(&self, operations: &mut Operations) -> Option<String> {
        // One that none was recorded of yet may be a matter of seconds.
        if operations.said_starving || operations.slices.due_and_begun().0 < LEAST_DUE {
            return None;
        }
        let text = self.waiting(operations)?.in_words();
        operations.said_starving = true;
        self.note_change(ChangeKind::Stop, None, text.clone());
        Some(text)
    }

    /// The report says it, too, with the figures at the end.
    pub(super) fn note_starving(&mut self, operations: &Operations) {
        let Some(waiting) = self.waiting(operations) else { return };
        let names: Vec<&str> = operations.list.iter().map(|o| o.name.as_str()).collect();
        self.meta.not_observed.push(NotObserved {
            what: format!("the inside of operations ({})", names.join(", ")),
            why: waiting.in_words(),
        });
    }
}
