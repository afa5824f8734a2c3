//! What is done where one thread loses more than it may.

use super::types::{Action, Cause, Reason};
use super::{Controller, Mode, pause};
use crate::class::ClassId;
use crate::ledger::ThreadOver;

/// So long the next burst of a class waits that took too much from a thread, ns.
const LATER_NS: u64 = 1_000_000_000;

impl Controller {
    /// Takes off what is worth least for its cost on each of these threads, until the rest fits, and asks for a plan that is made
    /// for what threads can bear. Where nothing is traced it was bursts: they wait.
    pub fn relieve(&mut self, now_ns: u64, sampling_hz: f64, over: &[ThreadOver]) -> Vec<Action> {
        let mut actions = Vec::new();
        for thread in over {
            let mut excess = thread.excess;
            let mut here: Vec<(ClassId, f64, f64)> = thread
                .classes
                .iter()
                .filter_map(|(id, cost)| {
                    let entry = self.classes.get(id).filter(|e| e.attached())?;
                    Some((*id, *cost, entry.density(sampling_hz)))
                })
                .collect();
            here.sort_by(|a, b| a.2.total_cmp(&b.2));
            for (id, cost, _) in here {
                if excess <= 0.0 {
                    break;
                }
                excess -= cost;
                let config = self.config;
                if let Some(entry) = self.classes.get_mut(&id) {
                    entry.stops = entry.stops.saturating_add(1);
                    entry.mode =
                        Mode::Stopped { retry_ns: now_ns.saturating_add(pause(&config, entry.stops)) };
                    actions.push(Action::Detach { class: id, reason: Reason::Thread });
                }
            }
            for (id, _) in &thread.classes {
                if let Some(entry) = self.classes.get_mut(id).filter(|e| e.order.burst.is_some()) {
                    entry.next_burst_ns = entry.next_burst_ns.max(now_ns.saturating_add(LATER_NS));
                }
            }
        }
        let worst = over.first().map(|thread| Cause::Thread { overhead: thread.overhead });
        self.ask_for_plan(now_ns, worst, &mut actions);
        actions
    }
}
