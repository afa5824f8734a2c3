//! Further activities: clients that the run knows only by their number. A new one is a type of its own, and the line that adds it.
//!
//! Each has its own classes, which neither plan nor survey touch, and may spend [`ACTIVITIES_SHARE`] of the budget, divided evenly. Its
//! hits are charged as any other; what it takes beyond its part it takes from nobody, because it gives quotas to its classes.
//!
//! [`ACTIVITIES_SHARE`]: crate::run::arbiter::ACTIVITIES_SHARE

pub mod stamps;

use super::Client;
use crate::class::ClassId;
use crate::recording::WindowRow;
use crate::run::outcome::Outcome;
use crate::run::suspension::Suspension;
use std::fmt::Debug;

/// What an activity is told.
#[derive(Debug, Clone)]
pub enum Notice {
    /// An interval of the ledger is over, a tenth of a second: the view shows the classes with their counters.
    Interval,
    /// What became of a class that it had asked for.
    Outcome(Outcome),
    /// A window of one of its classes has ended. Said before the next [`Notice::Interval`].
    Ended(WindowRow),
}

/// What an activity may spend, and what holds it up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The activity's number: its classes ask to be attached with [`crate::run::order::Purpose::Activity`] and this.
    pub number: u8,
    /// CPU s/s.
    pub allowed: f64,
    /// Prices are so many times what was calibrated.
    pub factor: f64,
    /// Why nothing may be attached now.
    pub suspension: Suspension,
}

/// An activity.
pub trait Activity: Client<Input = Notice, Grant = Share> + Debug {
    /// A class that is its own.
    fn owns(&self, class: ClassId) -> bool;
}
