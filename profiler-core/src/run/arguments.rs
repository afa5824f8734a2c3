//! What the arguments in records are worth: the cheapest site of a function may be behind instructions that overwrite some.

/// A call may cost so many times as much at a site that has kept the arguments, if nobody has named them. Where the exit is
/// single-stepped, a second single-stepped site at most doubles the price; where it is emulated, it makes it five to ten times.
const MOST: f64 = 2.0;

/// Whether a call may cost `kept_ns` with its arguments rather than `cheapest_ns` without some of them.
#[must_use]
pub fn are_worth_it(cheapest_ns: f64, kept_ns: f64) -> bool {
    kept_ns <= MOST * cheapest_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{ExitMode, RecordKind, SiteClass};
    use crate::cost::CostModel;

    /// By the prices that are assumed before calibration.
    #[test]
    fn a_stepped_entry_is_taken_where_the_exit_is_stepped_and_not_beside_a_return_link() {
        let model = CostModel::assumed();
        let of = |entry, exit, at| model.call_price(entry, RecordKind::Record, exit, at, 1).ns;
        let worth = |exit, at| are_worth_it(of(SiteClass::Push, exit, at), of(SiteClass::Stepped, exit, at));
        assert!(worth(ExitMode::ExitSites, SiteClass::Stepped));
        assert!(!worth(ExitMode::ExitSites, SiteClass::Branch));
        assert!(!worth(ExitMode::ReturnSites, SiteClass::Branch));
        assert!(!worth(ExitMode::ReturnLink, SiteClass::Stepped));
        assert!(!worth(ExitMode::None, SiteClass::Stepped));
        assert!(are_worth_it(700.0, 700.0));
    }
}
