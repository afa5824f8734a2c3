//! Why nothing may be attached now, and what waits for it.
//!
//! | | the overhead is compared | a storm of forks | links are made anew |
//! |---|---|---|---|
//! | a group that waits to be attached | waits | is refused for now | waits |
//! | traced classes that were detached | wait | wait | wait: all come back together |
//! | operations are recorded | no | no | no |
//! | the controller adapts quotas | no | yes | yes |
//! | new modules and functions, a new plan | wait | yes | functions wait |
//! | prices are compared with what was measured | no | no | yes |
//! | a window off begins | - | no | no |

/// A reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Everything is detached, to compare the target with itself.
    Comparison,
    /// Children alone could use up the budget: what is attached they would inherit.
    ForkStorm,
    /// All links have to be closed before one is made again, so that forked children lose theirs.
    Rearm,
}

/// The reasons that hold now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suspension {
    reasons: u8,
}

impl Suspension {
    /// Nothing is in the way.
    pub const NONE: Self = Self { reasons: 0 };

    /// The same, with a reason that holds `if` so.
    #[must_use]
    pub fn with(self, reason: Reason, holds: bool) -> Self {
        Self { reasons: self.reasons | if holds { 1 << reason as u8 } else { 0 } }
    }

    /// This reason holds.
    #[must_use]
    pub fn is(self, reason: Reason) -> bool {
        self.reasons & 1 << reason as u8 != 0
    }

    /// What waits to be attached may be attached now; else it goes on waiting.
    #[must_use]
    pub fn may_attach(self) -> bool {
        !self.is(Reason::Comparison) && !self.is(Reason::Rearm)
    }

    /// Something may be asked to be attached; else it is refused for now.
    #[must_use]
    pub fn may_ask(self) -> bool {
        !self.is(Reason::ForkStorm)
    }

    /// A class that should be traced and is not may be asked for again.
    #[must_use]
    pub fn may_restore(self) -> bool {
        !self.is(Reason::Rearm)
    }

    /// Operations may be recorded, and their functions kept attached.
    #[must_use]
    pub fn may_follow_operations(self) -> bool {
        self == Self::NONE
    }

    /// Quotas, sampling and the plan follow what is seen.
    #[must_use]
    pub fn may_adapt(self) -> bool {
        !self.is(Reason::Comparison)
    }

    /// New functions may be looked for and surveyed.
    #[must_use]
    pub fn may_discover(self) -> bool {
        !self.is(Reason::Comparison) && !self.is(Reason::Rearm)
    }

    /// What is charged can be compared with what was measured.
    #[must_use]
    pub fn is_comparable(self) -> bool {
        !self.is(Reason::Comparison) && !self.is(Reason::ForkStorm)
    }

    /// A window may begin in which everything is detached.
    #[must_use]
    pub fn may_compare(self) -> bool {
        self == Self::NONE
    }

    /// All links may be closed, to be made anew for the sake of forked children.
    #[must_use]
    pub fn may_rearm(self) -> bool {
        !self.is(Reason::Comparison)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of the table above: what is asked, and the answers while the overhead is compared, in a storm, while links are made anew.
    type Row = (&'static str, fn(Suspension) -> bool, [bool; 3]);

    #[test]
    fn what_waits_for_what() {
        let alone = |reason| Suspension::NONE.with(reason, true);
        let columns = [Reason::Comparison, Reason::ForkStorm, Reason::Rearm].map(alone);
        let rows: [Row; 9] = [
            ("attach", Suspension::may_attach, [false, true, false]),
            ("ask", Suspension::may_ask, [true, false, true]),
            ("restore", Suspension::may_restore, [true, true, false]),
            ("operations", Suspension::may_follow_operations, [false, false, false]),
            ("adapt", Suspension::may_adapt, [false, true, true]),
            ("discover", Suspension::may_discover, [false, true, false]),
            ("comparable", Suspension::is_comparable, [false, false, true]),
            ("compare", Suspension::may_compare, [false, false, false]),
            ("rearm", Suspension::may_rearm, [false, true, true]),
        ];
        for (what, may, expected) in rows {
            assert!(may(Suspension::NONE), "{what}");
            assert_eq!(columns.map(may), expected, "{what}");
        }
    }

    #[test]
    fn reasons_add_up() {
        let both = Suspension::NONE.with(Reason::ForkStorm, true).with(Reason::Rearm, true);
        assert!(both.is(Reason::ForkStorm) && both.is(Reason::Rearm) && !both.is(Reason::Comparison));
        assert_eq!(both.with(Reason::Comparison, false), both);
        assert_eq!(both.with(Reason::Rearm, true), both);
        assert!(!both.may_ask() && !both.may_restore() && !both.may_attach());
    }
}
