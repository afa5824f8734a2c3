//! Functions beside their references ([`crate::clients::reference`]): when they are chosen, and who gets one on its link.

use super::Run;
use super::command::SurveyLinks;
use super::input::Ended;
use crate::class::ClassId;
use crate::clients::trace::rate::Rates;
use crate::plan::WindowRules;
use crate::recording::WindowKind;
use crate::run::order::{Ending, Order, Purpose};
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::view::{LinkView, View};

impl Run {
    /// Chooses them anew, by what is known now.
    pub(super) fn choose_references(&mut self, rates: &Rates, view: &View) {
        if !self.is_running() || self.settings.trace.slow_links {
            return;
        }
        let called = rates.iter().filter(|(_, rate)| rate.calls > 0);
        let rates_hz = called.map(|(class, rate)| (*class, rate.hz.value)).collect();
        let spreads = self.trace.spreads().all(WindowRules::default().brief_s);
        self.activities.references.choose(&rates_hz, &spreads, self.accounts.ledger.hit_factor(), view);
    }

    /// A burst that is asked for, beside those of `together`: with its reference on the same link, if it has one that is free. It is not opened while that has a burst of its own, in which the
    /// function's hits would hide the rate that all hangs on, or may be about to: the view does not say what it waits for. False: it has none.
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
        let has_own_burst = |id: ClassId| {
            let link = view.class(id).link;
            let is_open =
                matches!(link, LinkView::Open(WindowKind::Burst) | LinkView::Waiting | LinkView::Opening);
            !self.activities.references.is_lent(id)
                && (is_open || together.contains(&id) || self.is_asked_for(id))
        };
        if self.activities.references.best(class).is_some_and(has_own_burst) {
            let outcome = Outcome { number: 0, class, purpose, opened: Err(NotOpened::NotNow) };
            self.heed(&outcome, view);
            return true;
        }
        let measures = |id: ClassId| {
            let mut pairs = view.classes.iter().filter(|pair| pair.traits.stamps_of == Some(id));
            pairs.any(|pair| pair.link != LinkView::Off || self.is_asked_for(pair.id))
        };
        let is_free = |id: ClassId| !together.contains(&id) && !self.is_asked_for(id) && !measures(id);
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
        let alone = self.activities.references.look(view);
        self.follow(alone.into_iter().map(|class| Order::Close(class, Ending::AtOnce)).collect(), view);
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
