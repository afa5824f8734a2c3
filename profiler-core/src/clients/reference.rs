//! References: slower functions that are watched together with functions whose hits are dear against the time between two calls.
//!
//! Hits slow both alike where one thread calls both, so that no price is in how many calls of the function come on one of its reference; times the reference's rate that is the function's
//! (`report/build/windows/reference.rs`).
//!
//! What it decides: which functions have a reference, which one, and whether a burst of the plan gets it on its link. What it does not do: ask for windows of its own, for each link
//! takes the agent more than a millisecond; say which rate follows, which is the report's business.

use crate::class::{ClassId, ExitMode, RecordKind};
use crate::run::view::{ClassView, LinkView, View};
use std::collections::BTreeMap;

/// What hits take over the target's own time, from which on a function has a reference: the part of a window that hides a rate
/// ([`crate::clients::activity::stamps`]) is a fifth of the whole.
const HIDING: f64 = 0.25;
/// So many times less is that of a reference, which must not hide its own rate either.
const SLOWER: f64 = 4.0;
/// What a hit costs is known to this part: a reference's rate hangs on a price, too.
const PRICE_ERROR: f64 = 0.5;
/// Own time of a window, s: what a reference is chosen for.
const OWN_S: f64 = 1e-3;
/// An `e^2` ([`References::choose`]) that is less than so many times another one is as good.
const ALIKE: f64 = 3.0;
/// References of a function, the best first: one that is attached is in no second link.
const MOST: usize = 3;
/// CPU s/s up to which one thread is taken to do nearly all; the report looks closer.
const ONE_THREAD: f64 = 1.25;
/// A reference with a larger `e^2` ([`References::choose`]) tells nothing in all windows of a run.
const LARGEST_ERROR: f64 = 5.0;
/// See [`References::look`].
const FORGOTTEN: u8 = 5;
/// Hits that a reference may take are as many as expected so many times over, and some more: its quota must not end the window.
const SPARE: (f64, u64) = (3.0, 60);

/// Who has which references, and which of them are on a link.
#[derive(Debug, Default)]
pub struct References {
    of: BTreeMap<ClassId, Vec<Reference>>,
    /// On the link of a function, or asked for.
    lent: BTreeMap<ClassId, Loan>,
}

/// A reference.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reference {
    class: ClassId,
    /// Its calls for each of the function.
    calls: f64,
}

/// To whom a reference is lent.
#[derive(Debug, Clone, Copy)]
struct Loan {
    function: ClassId,
    /// Looks at which neither was attached.
    looks: u8,
}

/// A class as it is chosen by.
struct Known<'v> {
    class: &'v ClassView,
    hz: f64,
    /// What its hits take over the target's own time, while it is watched.
    dilation: f64,
    /// Relative variance of the own time that its calls in a window tell.
    error: f64,
}

impl References {
    /// Chooses the references of all functions of a target of which one thread works at a time. `rates_hz`: calls/s of those that were seen to be called; `spreads`: standard deviation over mean of the rate from window to window; `factor`: hits
    /// cost so many times what was calibrated.
    ///
    /// A reference with `r` calls/s, spread `s` and hits that take the part `x` of the target's own time tells that of a window of `T` to
    /// ```text
    /// e^2 = 1 / (r T) + s^2 + (x / 2)^2
    /// ```
    pub fn choose(
        &mut self,
        rates_hz: &BTreeMap<ClassId, f64>,
        spreads: &BTreeMap<ClassId, f64>,
        factor: f64,
        view: &View,
    ) {
        self.of.clear();
        let own_cpu = view.target.own_cpu.max(1e-9);
        // Of several threads one may pay for the function's hits and another for the reference's. Helpers that do little are no matter.
        if own_cpu > ONE_THREAD {
            return;
        }
        let known = |class: &'_ ClassView| {
            let hz = *rates_hz.get(&class.id)?;
            let hit_ns = class.prices.hit.ns + class.prices.cold_ns(own_cpu / hz);
            let spread = spreads.get(&class.id)?;
            let dilation = hz * hit_ns * factor * 1e-9 / own_cpu;
            let error = 1.0 / (hz * OWN_S) + spread * spread + (PRICE_ERROR * dilation).powi(2);
            (hz > 0.0).then_some((hz, dilation, error))
        };
        // Only what is counted: a link is of one kind.
        let is_counted = |class: &&ClassView| {
            let traits = &class.traits;
            traits.exit == ExitMode::None
                && traits.kind == RecordKind::Count
                && !(traits.apart || traits.dormant || traits.refused)
        };
        let all: Vec<Known<'_>> = view
            .classes
            .iter()
            .filter(is_counted)
            .filter_map(|class| {
                known(class).map(|(hz, dilation, error)| Known { class, hz, dilation, error })
            })
            .collect();
        let mut slow: Vec<&Known<'_>> =
            all.iter().filter(|own| own.dilation < HIDING && own.error <= LARGEST_ERROR).collect();
        slow.sort_by(|a, b| a.error.total_cmp(&b.error));
        let hiding = all.iter().filter(|own| own.dilation >= HIDING);
        self.of = hiding
            .map(|function| {
                let is_like = |own: &&&Known<'_>| {
                    own.class.traits.module == function.class.traits.module
                        && SLOWER * own.dilation <= function.dilation
                };
                let mut like: Vec<&Known<'_>> = slow.iter().copied().filter(|own| is_like(&own)).collect();
                // Of those that tell as much, what is on the stack most is watched most: its own rate is known best.
                let good = ALIKE * like.first().map_or(0.0, |best| best.error);
                let alike = like.partition_point(|own| own.error <= good);
                like[..alike].sort_by_key(|own| std::cmp::Reverse(own.class.sampled_ns));
                let reference =
                    |own: &Known<'_>| Reference { class: own.class.id, calls: own.hz / function.hz };
                (function.class.id, like.into_iter().take(MOST).map(reference).collect())
            })
            .collect();
    }

    /// Functions, each with the reference that is best for it.
    pub fn all(&self) -> impl Iterator<Item = (ClassId, ClassId)> {
        self.of.iter().filter_map(|(function, of)| Some((*function, of.first()?.class)))
    }

    /// The reference of a function that is best.
    #[must_use]
    pub fn best(&self, function: ClassId) -> Option<ClassId> {
        self.of.get(&function)?.first().map(|reference| reference.class)
    }

    /// The reference that a burst of a function with this quota can have on its link, with the hits that it may take. `is_free`: nobody has asked for it just now.
    #[must_use]
    pub fn find(
        &self,
        function: ClassId,
        quota: u64,
        is_free: impl Fn(ClassId) -> bool,
        view: &View,
    ) -> Option<(ClassId, u64)> {
        let may_have =
            |of: &&Reference| view.class(of.class).may_open() && !self.is_lent(of.class) && is_free(of.class);
        let reference = self.of.get(&function)?.iter().find(may_have)?;
        // OK because the cast saturates.
        let expected = (SPARE.0 * quota as f64 * reference.calls) as u64;
        Some((reference.class, expected.saturating_add(SPARE.1)))
    }

    /// It is on the link of this function from now on.
    pub fn lend(&mut self, reference: ClassId, function: ClassId) {
        self.lent.insert(reference, Loan { function, looks: 0 });
    }

    /// It is on the link of a function, or asked for.
    #[must_use]
    pub fn is_lent(&self, class: ClassId) -> bool {
        self.lent.contains_key(&class)
    }

    /// A look at them, a tenth of a second after the last: those that are attached without their function, because its window has ended or its site was refused. A loan whose reference was off
    /// at five looks is over: what became of it nobody told.
    pub fn look(&mut self, view: &View) -> Vec<ClassId> {
        let off = |id: ClassId| view.class(id).link == LinkView::Off;
        for (own, loan) in &mut self.lent {
            loan.looks = if off(*own) { loan.looks.saturating_add(1) } else { 0 };
        }
        self.lent.retain(|_, loan| loan.looks < FORGOTTEN);
        let alone = self.lent.iter().filter(|(own, loan)| view.class(**own).is_open() && off(loan.function));
        alone.map(|(own, _)| *own).collect()
    }

    /// Its window has ended, or was not opened.
    pub fn back(&mut self, class: ClassId) {
        self.lent.remove(&class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::view::{TargetView, plain_class};

    /// Functions of one busy thread, each hit at 1 us: every 0.2 us, every 1 us, every 25 us in clusters, every 50 us, every 1 ms; the last one every 20 us in another module.
    fn view() -> View {
        let mut classes: Vec<ClassView> = (0..6).map(|id| plain_class(id, 1_000.0)).collect();
        classes[5].traits.module = 1;
        let target = TargetView { own_cpu: 1.0, ..TargetView::default() };
        View { classes, target, ..View::default() }
    }

    fn chosen(view: &View) -> References {
        let rates = (0..).map(ClassId).zip([5e6, 1e6, 4e4, 2e4, 1e3, 5e4]).collect();
        let spreads = (0..).map(ClassId).zip([0.3, 0.3, 2.0, 0.3, 0.1, 0.1]).collect();
        let mut references = References::default();
        references.choose(&rates, &spreads, 1.0, view);
        references
    }

    fn references(of: &References, function: u32) -> Vec<u32> {
        of.of.get(&ClassId(function)).into_iter().flatten().map(|reference| reference.class.0).collect()
    }

    #[test]
    fn the_reference_is_slow_often_called_and_even() {
        let of = chosen(&view());
        // Every 50 us: 1/20 + 0.09; every 1 ms: 1 + 0.01; in clusters: 1/40 + 4.
        assert_eq!(references(&of, 0), [3, 4, 2]);
        assert_eq!(references(&of, 1), [3, 4, 2]);
        assert_eq!(of.of.len(), 2, "the others have no need of one");
    }

    #[test]
    fn of_references_that_tell_as_much_the_one_that_is_watched_most_is_first() {
        let mut view = view();
        // Every 50 us, and every 40 us without clusters: 0.14 and 0.12.
        view.classes[3].sampled_ns = 9;
        view.classes[2].sampled_ns = 5;
        let rates = (0..).map(ClassId).zip([5e6, 1e6, 2.5e4, 2e4, 1e3, 5e4]).collect();
        let spreads = (0..).map(ClassId).zip([0.3, 0.3, 0.28, 0.3, 0.1, 0.1]).collect();
        let mut of = References::default();
        of.choose(&rates, &spreads, 1.0, &view);
        assert_eq!(references(&of, 0), [3, 2, 4]);
        view.classes[2].sampled_ns = 10;
        of.choose(&rates, &spreads, 1.0, &view);
        assert_eq!(references(&of, 0), [2, 3, 4]);
    }

    #[test]
    fn a_reference_is_on_one_link_at_a_time() {
        let (mut view, mut of) = (view(), chosen(&view()));
        let find = |of: &References, function: u32, view: &View| {
            of.find(ClassId(function), 1_000, |_| true, view).map(|(class, hits)| (class.0, hits))
        };
        // 1,000 hits every microsecond: 20 of its calls.
        assert_eq!(find(&of, 1, &view), Some((3, 3 * 20 + 60)));
        assert_eq!(
            of.find(ClassId(1), 1_000, |class| class.0 == 2, &view).map(|(class, _)| class.0),
            Some(2)
        );
        of.lend(ClassId(3), ClassId(1));
        assert!(of.is_lent(ClassId(3)) && !of.is_lent(ClassId(1)));
        assert_eq!(find(&of, 0, &view).map(|found| found.0), Some(4));
        of.lend(ClassId(4), ClassId(0));
        view.classes[2].link = LinkView::Open(crate::recording::WindowKind::Trace);
        assert_eq!(find(&of, 0, &view), None);
        // Where its function is gone it does not stay.
        view.classes[3].link = LinkView::Open(crate::recording::WindowKind::Burst);
        view.classes[1].link = view.classes[3].link;
        assert_eq!(of.look(&view), []);
        view.classes[1].link = LinkView::Off;
        assert_eq!(of.look(&view), [ClassId(3)]);
        view.classes[3].link = LinkView::Off;
        of.back(ClassId(3));
        // Of the other one nobody tells what became of it.
        (0..2).for_each(|_| assert_eq!(of.look(&view), []));
        assert!(of.is_lent(ClassId(4)));
        of.look(&view);
        assert!(!of.is_lent(ClassId(4)));
        assert_eq!(find(&of, 0, &view).map(|found| found.0), Some(3));
        assert_eq!(find(&of, 3, &view), None);
    }

    #[test]
    fn what_is_timed_or_of_another_kind_has_none_and_is_none() {
        let mut view = view();
        view.classes[1].traits.exit = ExitMode::ExitSites;
        view.classes[3].traits.kind = RecordKind::Latency;
        view.classes[4].traits.apart = true;
        let of = chosen(&view);
        assert_eq!((references(&of, 0), references(&of, 1)), (vec![2], vec![]));
    }
}
