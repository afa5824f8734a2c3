//! Functions beside their references ([`crate::clients::reference`]): when they are chosen, and who gets one on its link.

use super::Run;
use super::command::SurveyLinks;
use super::input::Ended;
use crate::class::ClassId;
use crate::plan::WindowRules;
use crate::recording::WindowKind;
use crate::run::order::{Ending, Order, Purpose};
use crate::run::view::View;

impl Run {
    /// Chooses them anew, by what is known now.
    pub(super) fn choose_references(&mut self, view: &View) {
        if !self.is_running() || self.settings.trace.slow_links {
            return;
        }
        let rates = self.trace.present_rates(view);
        let called = rates.into_iter().filter(|(_, rate)| rate.calls > 0);
        let rates_hz = called.map(|(class, rate)| (class, rate.hz.value)).collect();
        let spreads = self.trace.spreads().all(WindowRules::default().brief_s);
        self.activities.references.choose(&rates_hz, &spreads, self.accounts.ledger.hit_factor(), view);
    }

    /// A burst that is asked for, beside those of `together`: with its reference on the same link, if it has one that is free. False: it has none.
    pub(super) fn ask_with_reference(
        &mut self,
        (class, quota, purpose): (ClassId, u64, Purpose),
        together: &[ClassId],
        view: &View,
    ) -> bool {
        let may_ask = matches!(purpose, Purpose::Burst(_)) && self.suspension().may_ask();
        if !may_ask || !view.class(class).may_open() {
            return false;
        }
        if self.activities.references.is_lent(class)
            || self.is_beside_pair((class, quota, purpose), together, view)
        {
            return false;
        }
        let is_free = |id: ClassId| !together.contains(&id) && !self.is_asked_for(id);
        let Some((reference, hits)) = self.activities.references.find(class, quota, is_free, view) else {
            return false;
        };
        self.activities.references.lend(reference, class);
        let wanted = vec![(class, quota, purpose), (reference, hits, Purpose::Reference)];
        let links = SurveyLinks { together: true, alone_ns: None, until_ns: 0 };
        self.ask(WindowKind::Burst, wanted, false, Some(links), view);
        true
    }

    /// Closes those whose function is not attached: they end with it, and nobody else ends them.
    pub(super) fn close_references(&mut self, view: &View) {
        let alone: Vec<Order> =
            self.activities.references.alone(view).map(|class| Order::Close(class, Ending::AtOnce)).collect();
        self.follow(alone, view);
    }

    /// A window has ended. True: it was one of a reference on another's link.
    pub(super) fn end_reference(&mut self, ended: &Ended) -> bool {
        let class = ClassId(ended.row.class_id);
        let is_lent = ended.row.kind == WindowKind::Burst && self.activities.references.is_lent(class);
        if is_lent {
            self.activities.references.back(class);
        }
        is_lent
    }
}

#[cfg(test)]
#[path = "tests/references.rs"]
mod tests;
