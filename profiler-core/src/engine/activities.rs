//! Further activities ([`crate::clients::activity`]): what they are told, and what they may spend.

use super::Run;
use super::input::Ended;
use crate::class::ClassId;
use crate::clients::activity::{Activity, Notice, Share};
use crate::clients::reference::References;
use crate::run::arbiter::ACTIVITIES_SHARE;
use crate::run::view::View;

/// The activities of a run.
#[derive(Debug, Default)]
pub(super) struct Activities {
    list: Vec<Box<dyn Activity>>,
    /// What became of classes that were asked for, and windows that ended. Told at the next interval: the view then shows the classes as they
    /// are, and who asks again at once is not answered at once, for ever.
    late: Vec<(u8, Notice)>,
    /// Functions beside their references.
    pub references: References,
}

impl Activities {
    /// This one was not even asked for.
    pub fn tell_late(&mut self, number: u8, notice: Notice) {
        self.late.push((number, notice));
    }
}

impl Run {
    /// Adds an activity.
    pub fn add_activity(&mut self, activity: Box<dyn Activity>) {
        self.activities.list.push(activity);
    }

    /// What they spend at present, CPU s/s.
    pub(super) fn activities_claim(&self) -> f64 {
        self.activities.list.iter().map(|activity| activity.claim()).sum()
    }

    /// The activity that a class belongs to.
    pub(super) fn owner(&self, class: ClassId) -> Option<u8> {
        let number = self.activities.list.iter().position(|activity| activity.owns(class))?;
        u8::try_from(number).ok()
    }

    /// Tells one of them something, and follows what it orders.
    fn tell_activity(&mut self, number: u8, notice: Notice, view: &View) {
        let share = self.activities_share(number);
        let Some(activity) = self.activities.list.get_mut(usize::from(number)) else { return };
        let mut orders = Vec::new();
        activity.step(notice, &share, view, &mut orders);
        self.follow(orders, view);
    }

    /// An interval of the ledger is over.
    pub(super) fn tell_activities(&mut self, view: &View) {
        for (number, notice) in std::mem::take(&mut self.activities.late) {
            self.tell_activity(number, notice, view);
        }
        for number in 0..self.activities.list.len() {
            // OK because there are at most 255.
            self.tell_activity(number as u8, Notice::Interval, view);
        }
    }

    /// A window has ended. True: it was an activity's.
    pub(super) fn tell_owner(&mut self, ended: &Ended) -> bool {
        let Some(number) = self.owner(ended.class.id) else { return false };
        self.activities.tell_late(number, Notice::Ended(ended.row.clone()));
        true
    }

    fn activities_share(&self, number: u8) -> Share {
        let part = ACTIVITIES_SHARE / self.activities.list.len().max(1) as f64;
        Share {
            number,
            allowed: part * self.arbiter().allowed(),
            factor: self.accounts.ledger.hit_factor(),
            suspension: self.suspension(),
        }
    }
}
