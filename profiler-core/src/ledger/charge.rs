//! What kinds of charges there are to the account.

use crate::recording::Charge;

impl Charge {
    /// Counts against the budget. Cost to bystanders is bounded and shown, but it is not the target's.
    #[must_use]
    pub fn counts(self) -> bool {
        self != Self::Bystanders
    }

    /// Priced by what was calibrated on a child of ours, and corrected by what the target shows ([`super::Correction`]).
    #[must_use]
    pub fn is_corrected(self) -> bool {
        matches!(self, Self::Traced | Self::Burst | Self::Survey | Self::Samples | Self::Switches)
    }

    /// Hits of classes of the target's own.
    #[must_use]
    pub fn is_hit(self) -> bool {
        matches!(self, Self::Traced | Self::Burst | Self::Survey)
    }

    /// There while everything is attached and gone while everything is detached.
    #[must_use]
    pub fn is_compared(self) -> bool {
        self.is_corrected() && self != Self::Survey
    }
}
