//! Executes what clients order. Nothing is decided here.

use super::Session;
use super::attach::now_ns;
use profiler_core::recording::NotObserved;
use profiler_core::run::order::Order;

impl Session {
    /// Executes them, one after the other.
    pub(super) fn execute(&mut self, orders: Vec<Order>) {
        for order in orders {
            self.execute_one(order);
        }
    }

    fn execute_one(&mut self, order: Order) {
        match order {
            Order::Open { class, kind, quota, purpose } => {
                self.open_windows(kind, &[(class, quota, purpose)], false);
            }
            Order::Restore(quotas) => self.open_wanted(&quotas),
            Order::Close(class, ending) => self.attach.close(&self.target, class, ending),
            Order::CloseAll(ending) => self.attach.close_all(&self.target, ending),
            Order::Quota(class, hits) => self.attach.set_quota(class, hits),
            Order::PauseSampling => self.sampling.pause(),
            Order::ResumeSampling => self.sampling.resume(),
            Order::HoldOperations => self.hold_operations(),
            Order::VoidComparison => {
                if let Some(comparison) = &mut self.comparison {
                    comparison.void(now_ns());
                }
            }
            Order::LetGo(pids) => {
                for pid in &pids {
                    self.attach.kernel().remove_target(*pid);
                }
                self.processes.let_go(&pids);
            }
            Order::Replan(Some(why)) => self.want_plan(why),
            Order::Replan(None) => self.replan_wanted = true,
            Order::Note(text) => self.progress.note(&text),
            Order::Detail(text) => self.warn_verbose(&text),
            Order::Warn(text) => self.meta.warnings.push(text),
            Order::NotObserved(what, why) => self.meta.not_observed.push(NotObserved { what, why }),
            Order::Change(kind, class, text) => self.note_change(kind, class, text),
        }
    }
}
