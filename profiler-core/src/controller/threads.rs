//! What is done where one thread loses more than it may.

use super::types::{Action, Cause, DetachReason};
use super::{Controller, Mode, pause};
use crate::class::ClassId;
use crate::ledger::ThreadOver;

/// So long the next burst of a class waits that took too much from a thread, ns.
const LATER_NS: u64 = 1_000_000_000;

impl Controller {
    /// Takes off what is worth least for its cost on each of these threads, until the rest fits, and asks for a plan that is made
    /// for what threads can bear. Where nothing is traced it was bursts: they wait. Nothing is taken off for what it did not
    /// take: where the rest (samples, switches, operations, bursts) is too much by itself, what is planned is held to the limit
    /// by itself.
    pub fn relieve(&mut self, now_ns: u64, sampling_hz: f64, over: &[ThreadOver]) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut worst = None;
        for thread in over {
            let mut here: Vec<(ClassId, f64, f64)> = thread
                .classes
                .iter()
                .filter_map(|(id, cost)| {
                    let entry = self.classes.get(id).filter(|e| e.attached())?;
                    Some((*id, *cost, entry.density(sampling_hz)))
                })
                .collect();
            let planned: f64 = here.iter().map(|(_, cost, _)| cost).sum();
            let mut excess = if thread.excess > planned { planned - thread.allowed } else { thread.excess };
            let mut relieved = excess > 0.0;
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
                    actions.push(Action::Detach { class: id, reason: DetachReason::Thread });
                }
            }
            for (id, _) in &thread.classes {
                if let Some(entry) = self.classes.get_mut(id).filter(|e| e.order.burst.is_some()) {
                    entry.next_burst_ns = entry.next_burst_ns.max(now_ns.saturating_add(LATER_NS));
                    relieved = true;
                }
            }
            // A plan cannot change what no class of its took.
            if relieved {
                worst = worst.or(Some(Cause::Thread { overhead: thread.overhead }));
            }
        }
        self.ask_for_plan(now_ns, worst, &mut actions);
        actions
    }
}
