//! What a step sees, what it has ordered, and what it has changed by that: orders are executed after the step.

use super::kept::Slot;
use super::{Grant, Operation};
use crate::recording::{ChangeKind, WindowKind};
use crate::run::order::operations::OperationOrder;
use crate::run::order::{Ending, Order, Purpose};
use crate::run::view::operations::{OperationClassView, OperationsView};
use crate::run::view::{LinkView, View};

/// A step that is under way.
pub(super) struct Moment<'a> {
    pub view: &'a View,
    pub grant: &'a Grant,
    pub orders: &'a mut Vec<Order>,
    inner: Vec<ClassNow>,
    bounds: Vec<ClassNow>,
    /// The kernel records nothing, because an inner function has used up its quota.
    pub lacks_details: bool,
}

/// Where a class stands when the orders so far are executed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClassNow {
    link: LinkView,
    is_refused: bool,
}

impl ClassNow {
    fn new(seen: &OperationClassView) -> Self {
        Self { link: seen.link, is_refused: seen.obstacle.refused }
    }

    pub fn is_open(self) -> bool {
        matches!(self.link, LinkView::Open(_))
    }

    pub fn is_off(self) -> bool {
        self.link == LinkView::Off
    }

    /// It waits to be attached, or its link is being made.
    pub fn is_pending(self) -> bool {
        matches!(self.link, LinkView::Waiting | LinkView::Opening)
    }

    /// It can be asked for.
    pub fn may_open(self) -> bool {
        self.is_off() && !self.is_refused
    }

    pub fn is_refused(self) -> bool {
        self.is_refused
    }
}

impl<'a> Moment<'a> {
    pub fn new(grant: &'a Grant, view: &'a View, orders: &'a mut Vec<Order>) -> Self {
        let seen = &view.operations;
        Self {
            view,
            grant,
            orders,
            inner: seen.inner.iter().map(ClassNow::new).collect(),
            bounds: seen.bounds.iter().map(ClassNow::new).collect(),
            lacks_details: seen.lacks_details,
        }
    }

    /// Ktime ns.
    pub fn now(&self) -> u64 {
        self.view.now_ns
    }

    pub fn seen(&self) -> &'a OperationsView {
        &self.view.operations
    }

    /// The class as it was seen.
    pub fn class(&self, slot: Slot) -> &'a OperationClassView {
        match slot {
            Slot::Inner(i) => &self.seen().inner[i],
            Slot::Bound(i) => &self.seen().bounds[i],
        }
    }

    /// Where it stands now.
    pub fn stands(&self, slot: Slot) -> ClassNow {
        match slot {
            Slot::Inner(i) => self.inner[i],
            Slot::Bound(i) => self.bounds[i],
        }
    }

    fn stands_mut(&mut self, slot: Slot) -> &mut ClassNow {
        match slot {
            Slot::Inner(i) => &mut self.inner[i],
            Slot::Bound(i) => &mut self.bounds[i],
        }
    }

    /// Where inner functions stand.
    pub fn inner(&self) -> &[ClassNow] {
        &self.inner
    }

    pub fn order(&mut self, order: OperationOrder) {
        self.orders.push(Order::Operation(order));
    }

    pub fn note(&mut self, text: String) {
        self.orders.push(Order::Note(text));
    }

    /// Tells the user and the log of the recording.
    pub fn note_change(&mut self, kind: ChangeKind, slot: Option<Slot>, text: String) {
        self.note(text.clone());
        self.change(kind, slot, text);
    }

    pub fn change(&mut self, kind: ChangeKind, slot: Option<Slot>, text: String) {
        let class = slot.map(|slot| self.class(slot).id);
        self.orders.push(Order::Change(kind, class, text));
    }

    /// Nothing is recorded of these.
    pub fn stop_recording(&mut self, list: &[Operation]) {
        for o in list {
            self.order(OperationOrder::Monitor { operation: o.number, on: false });
        }
    }

    pub fn open(&mut self, slot: Slot, quota: u64) {
        let class = self.class(slot).id;
        self.stands_mut(slot).link = LinkView::Waiting;
        self.orders.push(Order::Open { class, kind: WindowKind::Trace, quota, purpose: Purpose::Operation });
    }

    pub fn close(&mut self, slot: Slot, ending: Ending) {
        let class = self.class(slot).id;
        let now = self.stands_mut(slot);
        now.link = match now.link {
            LinkView::Open(kind) => LinkView::Closing(kind),
            LinkView::Waiting => LinkView::Off,
            // One whose link is being made is closed as soon as it is there.
            other => other,
        };
        self.orders.push(Order::Close(class, ending));
    }

    /// It is not asked for again.
    pub fn refuse(&mut self, slot: Slot, why: &str) {
        let class = self.class(slot).id;
        self.stands_mut(slot).is_refused = true;
        self.order(OperationOrder::Refuse(class, why.to_owned()));
    }

    /// Inner functions go: what is open and recorded is lost.
    pub fn details_end(&mut self) {
        self.order(OperationOrder::DetailsEnd);
    }

    /// Calls are not missing any more: what is recorded from now on has all of them.
    pub fn details_back(&mut self) {
        self.order(OperationOrder::DetailsBack { losses: self.seen().losses });
        self.lacks_details = false;
    }
}
