//! What became of what was ordered.

use super::order::Purpose;
use crate::class::ClassId;

/// What became of a class that was to be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Which asking it answers; 0: it was never passed on.
    pub number: u64,
    /// Which.
    pub class: ClassId,
    /// What it was asked for.
    pub purpose: Purpose,
    /// When its gate opened, ktime ns; or why it did not.
    pub opened: Result<u64, NotOpened>,
}

/// Why a window was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotOpened {
    /// The breaker had taken its link off before its gate could open: it is being closed.
    Tripped,
    /// Its code, the target's memory, the kernel or what others would pay is in the way: the class says what.
    Refused,
    /// The same, and that is known for long.
    KnownRefused,
    /// Its code is not mapped now.
    Unmapped,
    /// Forks of others have been held up enough, or return links are not known to be safe: it can be asked for again.
    NotNow,
    /// It was closed before it was open.
    Closed,
}

impl NotOpened {
    /// Nothing is wrong with the class: it can be asked for again as if it had not been asked for.
    #[must_use]
    pub fn is_for_now(self) -> bool {
        matches!(self, Self::NotNow | Self::Closed)
    }
}
