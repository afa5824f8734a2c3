//! Doing what clients order. Nothing is decided here.

use super::Session;
use super::attach::now_ns;
use super::opening::Wanted;
use profiler_core::clients::trace::client::{Seen, Trace};
use profiler_core::recording::{NotObserved, WindowKind};
use profiler_core::run::order::{Order, Purpose};
use profiler_core::run::view::View;

impl Session {
    /// What the plan's client orders, as far as `view` shows what it must know.
    pub(super) fn orders_of_trace(
        &mut self,
        view: &View,
        step: impl FnOnce(&mut Trace, &Seen<'_>, &mut Vec<Order>),
    ) -> Vec<Order> {
        let suspension = self.suspension();
        let Self { attach, trace, .. } = self;
        let names: Vec<&str> = attach.classes().iter().map(|c| c.candidate.name.as_str()).collect();
        let mut orders = Vec::new();
        step(trace, &Seen { view, names: &names, suspension }, &mut orders);
        orders
    }

    /// Executes orders. `once`: links that are asked for to be traced are not to be expected again.
    pub(super) fn execute(&mut self, orders: Vec<Order>, once: bool) {
        let mut orders = orders.into_iter().peekable();
        while let Some(order) = orders.next() {
            match order {
                Order::Open { class, kind, quota, purpose } => {
                    let mut wanted: Vec<Wanted> = vec![(class, quota, purpose)];
                    while let Some(Order::Open { class, quota, purpose, .. }) =
                        orders.next_if(|next| is_asked_with(next, kind, purpose))
                    {
                        wanted.push((class, quota, purpose));
                    }
                    self.open_windows(kind, &wanted, once && kind == WindowKind::Trace);
                }
                Order::OpenSurvey { windows, together, alone_ns, until_ns } => {
                    let wanted: Vec<Wanted> = windows
                        .into_iter()
                        .map(|(class, quota, window_ns)| (class, quota, Purpose::Survey(window_ns)))
                        .collect();
                    self.open_survey(&wanted, together, alone_ns, until_ns);
                }
                Order::GiveUpSurvey => self.attach.give_up_survey(&self.target),
                Order::Dormant(class) => self.attach.class_mut(class).dormant = true,
                Order::Restore(quotas) => self.open_wanted(&quotas),
                Order::Close(class, ending) => self.attach.close(&self.target, class, ending),
                Order::CloseAll(ending) => self.attach.close_all(&self.target, ending),
                Order::Quota(class, hits) => self.attach.set_quota(class, hits),
                Order::Period(period_ns) => self.sampling.set_period(period_ns),
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
                Order::Prices(factor) => self.ledger.set_factor(factor),
                Order::CutBudget(factor) => self.ledger.cut_budget(factor),
                Order::Replan(why) => self.want_plan(why),
                Order::Note(text) => self.progress.note(&text),
                Order::Detail(text) => self.warn_verbose(&text),
                Order::Warn(text) => self.meta.warnings.push(text),
                Order::NotObserved(what, why) => self.meta.not_observed.push(NotObserved { what, why }),
                Order::Change(kind, class, text) => self.note_change(kind, class, text),
            }
        }
    }
}

/// The next order asks for such a window, too, and for a like purpose: both can share a link. A trial is asked for by itself.
fn is_asked_with(next: &Order, kind: WindowKind, purpose: Purpose) -> bool {
    let is_trial = |purpose| purpose == Purpose::Trial;
    match next {
        Order::Open { kind: other, purpose: why, .. } => {
            *other == kind && is_trial(*why) == is_trial(purpose)
        }
        _ => false,
    }
}
