//! Links of what is to be traced that wait for a moment, so that what lies between the time stamps can be measured first.
//!
//! A function that fits the budget is traced from the plan on and is never idle again: its pair of sites would have no
//! window. So its first link is held back until the pair has some intervals, where its calls come often enough that this takes a moment. What must be
//! traced does not wait.

use crate::class::{ClassId, ExitMode};
use crate::run::pairs::{AWAITED, FEWEST_CALLS, FEWEST_DURATIONS};
use crate::run::view::{LinkView, View};
use std::collections::BTreeMap;

/// A link waits so long for a pair, ns: three windows, an interval of the ledger from one to the next, and those of two or three others before.
const WAIT_NS: u64 = 1_000_000_000;
/// And so long for one that had no window yet, ns.
const WAIT_FIRST_NS: u64 = 600_000_000;

/// Since when links are held back, ktime ns.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<ClassId, u64>);

impl Held {
    /// The link of a class with `rate_hz` calls a second is to wait.
    pub(super) fn waits(&mut self, class: ClassId, rate_hz: f64, view: &View) -> bool {
        let function = view.class(class);
        let traits = &function.traits;
        let is_timed = traits.named && !traits.must && traits.exit != ExitMode::None;
        // Others are traced again after a pause: there was a time for their pair.
        let is_first = function.ends < FEWEST_DURATIONS;
        // In half of the time: others have their turn.
        let is_frequent = rate_hz * WAIT_NS as f64 * 1e-9 >= 2.0 * AWAITED as f64;
        let is_seen = function.attempted >= FEWEST_CALLS && is_frequent;
        if !is_timed || !is_first || !is_seen || view.target.is_held {
            return false;
        }
        let of_class = view.classes.iter().find(|c| c.traits.stamps_of == Some(class));
        let Some(pair) = of_class.filter(|pair| !pair.traits.refused) else { return false };
        let waited_ns = view.now_ns.saturating_sub(*self.0.entry(class).or_insert(view.now_ns));
        // The function's own programs would run between the stamps of an open pair.
        let is_open = pair.link != LinkView::Off;
        let wait_ns = if pair.ends > 0 || is_open { WAIT_NS } else { WAIT_FIRST_NS };
        (is_open || pair.ends < AWAITED) && waited_ns < wait_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::RecordKind;
    use crate::recording::WindowKind;
    use crate::run::view::plain_class;

    const MS: u64 = 1_000_000;
    const F: ClassId = ClassId(0);

    /// A function that was named, seen in the survey and never timed, and its pair.
    fn view() -> View {
        let mut function = plain_class(0, 600.0);
        function.attempted = 1_000;
        (function.traits.named, function.traits.kind) = (true, RecordKind::Latency);
        function.traits.exit = ExitMode::ExitSites;
        let mut pair = plain_class(1, 600.0);
        (pair.traits.stamps_of, pair.traits.exit) = (Some(F), ExitMode::ExitSites);
        View { now_ns: 2_000 * MS, classes: vec![function, pair], ..View::default() }
    }

    #[test]
    fn a_first_link_waits_until_its_pair_was_measured() {
        let (mut held, mut view) = (Held::default(), view());
        assert!(held.waits(F, 1e3, &view));
        (view.now_ns, view.classes[1].link) = (view.now_ns + 100 * MS, LinkView::Open(WindowKind::Burst));
        view.classes[1].ends = AWAITED;
        assert!(held.waits(F, 1e3, &view), "the pair is open");
        view.classes[1].link = LinkView::Off;
        assert!(!held.waits(F, 1e3, &view), "measured");
        view.classes[1].ends = AWAITED - 1;
        assert!(held.waits(F, 1e3, &view), "another window");
    }

    #[test]
    fn a_link_does_not_wait_for_ever() {
        let (mut held, mut view) = (Held::default(), view());
        assert!(held.waits(F, 1e3, &view));
        view.now_ns += WAIT_FIRST_NS;
        assert!(!held.waits(F, 1e3, &view), "its turn did not come");
        view.classes[1].link = LinkView::Open(WindowKind::Burst);
        assert!(held.waits(F, 1e3, &view), "it comes now");
        view.now_ns += WAIT_NS - WAIT_FIRST_NS;
        assert!(!held.waits(F, 1e3, &view), "its calls come too seldom");
    }

    #[test]
    fn what_has_no_use_for_a_pair_does_not_wait() {
        let waits = |change: fn(&mut View)| {
            let mut view = view();
            change(&mut view);
            Held::default().waits(F, 1e3, &view)
        };
        assert!(waits(|_| {}));
        assert!(!waits(|v| v.classes[0].traits.must = true), "every call is wanted");
        assert!(!waits(|v| v.classes[0].traits.named = false), "its durations were not asked for");
        assert!(!waits(|v| v.classes[0].traits.exit = ExitMode::None), "it is counted");
        assert!(!waits(|v| v.classes[0].ends = FEWEST_DURATIONS), "it was timed before");
        assert!(!waits(|v| v.classes[0].attempted = FEWEST_CALLS - 1), "it is called too seldom");
        assert!(!waits(|v| v.classes[1].traits.refused = true), "there is no pair");
        assert!(!waits(|v| v.classes[1].traits.stamps_of = None), "there is no pair");
        assert!(!Held::default().waits(F, 190.0, &view()), "it would take too long");
        assert!(!waits(|v| v.target.is_held = true), "a program that has not begun");
    }
}
