//! Which callers of a function get a site at their return address.
//!
//! Calls that are timed by return-address sites need a breakpoint for each caller. Most functions have few callers, and of those that have
//! many a few make nearly all calls: each site takes time to attach, memory of the target, and hits of others that come by.

use crate::class::SiteClass;

/// Sites of one function at most.
pub const MOST_SITES: usize = 64;
/// The same with those that were given one when nobody knew that they hardly call.
const MOST_EVER: usize = 256;
/// A caller that makes a smaller part of all calls gets no site ...
const LEAST_PART: f64 = 0.001;
/// ... once so many calls have been seen that its part is known.
const KNOWN_CALLS: u64 = 4_000;
/// Hits at return-address sites beyond one for each call, as a part of the calls and at least: others come by there, too.
const STRAY_PART: u64 = 4;
const STRAY_LEAST: u64 = 64;

/// Calls are timed at return addresses rather than at exit sites from this part of calls on that come from callers with a site, and no longer
/// below the second.
const COVERED_PARTS: (f64, f64) = (0.99, 0.9);
/// Calls that must have been seen for that: what a survey sees of a dear function. Callers are learned further from then on.
const LEAST_SEEN: u64 = 30;
/// At return addresses a call may cost this part of what it costs at exit sites.
const CHEAPER: f64 = 0.7;

/// A caller, as the entry's probe has learned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Where its calls return to.
    pub address: u64,
    /// Calls seen so far.
    pub calls: u64,
    /// What is known of it.
    pub state: CallerState,
}

/// What is known of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerState {
    /// Nobody has looked at it.
    New,
    /// Its code is being looked at, or it has a site.
    Taken,
    /// It cannot have a site.
    Refused,
}

/// The callers whose code is to be looked at now, those with most calls first: as many as may still get a site.
#[must_use]
pub fn to_look_at(callers: &[Caller]) -> Vec<u64> {
    let all: u64 = callers.iter().map(|caller| caller.calls).sum();
    let matters = |caller: &&Caller| all < KNOWN_CALLS || caller.calls as f64 >= LEAST_PART * all as f64;
    let has = |caller: &&Caller| caller.state == CallerState::Taken;
    // Those that called first, and hardly since, leave room to others.
    let taken = callers
        .iter()
        .filter(has)
        .filter(matters)
        .count()
        .max((callers.iter().filter(has).count() + MOST_SITES).saturating_sub(MOST_EVER));
    let new = callers.iter().filter(|caller| caller.state == CallerState::New);
    let mut wanted: Vec<&Caller> = new.filter(matters).collect();
    wanted.sort_by_key(|caller| (std::cmp::Reverse(caller.calls), caller.address));
    wanted.truncate(MOST_SITES.saturating_sub(taken));
    wanted.into_iter().map(|caller| caller.address).collect()
}

/// Hits that the return-address sites of a class may take where its entry may take so many.
#[must_use]
pub fn ends_quota(calls: u64) -> u64 {
    calls.saturating_add((calls / STRAY_PART).max(STRAY_LEAST))
}

/// Hits at the return-address sites of a class, in one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    /// All of them.
    pub all: u64,
    /// Those that ended no call on record.
    pub strays: u64,
    /// Calls of the class that were turned away at the entry, because the quota was used up: they return there all the same, as strays.
    pub turned_away: u64,
}

impl Ends {
    /// Returns of others.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.strays.saturating_sub(self.turned_away)
    }

    /// Hits for each call of the class: where one caller calls many functions through a pointer (an event loop), most returns are
    /// others', and each is paid for. Fewer of those than a window of a single call may take are no reason yet.
    #[must_use]
    pub fn a_call(&self) -> f64 {
        let others = self.others();
        if others < STRAY_LEAST {
            return 1.0;
        }
        self.all.max(others) as f64 / self.all.saturating_sub(others).max(1) as f64
    }
}

/// Whether calls that exit sites could time, too, are to be timed at return addresses: nearly all of them come from callers with a site,
/// and a call costs clearly less there. `so_far`: they are.
///
/// `seen`, `sited`: calls seen, and those of them whose callers have a site. `price`: of a call at exit sites and at return addresses, ns.
#[must_use]
pub fn prefers_returns(seen: u64, sited: u64, (exits_ns, returns_ns): (f64, f64), so_far: bool) -> bool {
    let part = if so_far { COVERED_PARTS.1 } else { COVERED_PARTS.0 };
    let known = so_far || seen >= LEAST_SEEN;
    known && sited as f64 >= part * seen as f64 && returns_ns <= CHEAPER * exits_ns
}

/// The price class of the sites at which most calls return, by calls: what a return is planned with. Single-stepped where nothing is known.
#[must_use]
pub fn usual_class(sites: &[(SiteClass, u64)]) -> SiteClass {
    let calls_of = |class: SiteClass| -> u64 {
        sites.iter().filter(|(of, _)| *of == class).map(|(_, calls)| calls.max(&1)).sum()
    };
    let all: u64 = SiteClass::ALL.into_iter().map(calls_of).sum();
    // The dearest class that takes a tenth of the calls: what is dear must not be planned as cheap.
    let dear = SiteClass::ALL.into_iter().rev().find(|class| calls_of(*class) * 10 >= all.max(1));
    dear.unwrap_or(SiteClass::Stepped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(address: u64, calls: u64, state: CallerState) -> Caller {
        Caller { address, calls, state }
    }

    #[test]
    fn hot_callers_come_first_and_rare_ones_not_at_all() {
        use CallerState::{New, Refused, Taken};
        let few = [caller(1, 3, New), caller(2, 900, New), caller(3, 5, Taken), caller(4, 800, Refused)];
        assert_eq!(to_look_at(&few), [2, 1], "of few calls nobody is rare");
        let many = [caller(1, 9, New), caller(2, 9_000, New), caller(3, 10, New), caller(4, 500, Refused)];
        assert_eq!(to_look_at(&many), [2, 3], "9 of 9,519 calls are less than one in a thousand");
    }

    #[test]
    fn a_function_gets_no_more_sites_than_it_may() {
        let mut callers: Vec<Caller> = (0..100).map(|n| caller(n, 1_000 + n, CallerState::New)).collect();
        assert_eq!(to_look_at(&callers).len(), MOST_SITES);
        assert_eq!(to_look_at(&callers)[0], 99);
        for known in &mut callers[..60] {
            known.state = CallerState::Taken;
        }
        assert_eq!(to_look_at(&callers).len(), 4);
        // Those that have one hardly call: others get some.
        for known in &mut callers[..60] {
            known.calls = 1;
        }
        assert_eq!(to_look_at(&callers).len(), 40);
        let many: Vec<Caller> = (0..300)
            .map(|n| {
                caller(
                    n,
                    if n < 250 { 1 } else { 1_000 },
                    if n < 250 { CallerState::Taken } else { CallerState::New },
                )
            })
            .collect();
        assert_eq!(to_look_at(&many).len(), MOST_EVER - 250, "not for ever");
    }

    #[test]
    fn ends_have_room_for_those_who_come_by() {
        assert_eq!(ends_quota(0), 64);
        assert_eq!(ends_quota(1_000), 1_250);
        assert_eq!(ends_quota(u64::MAX), u64::MAX);
    }

    #[test]
    fn return_addresses_are_preferred_where_they_are_cheaper_and_nearly_all_are_known() {
        let prices = (11_000.0, 1_900.0);
        assert!(prefers_returns(1_000, 995, prices, false));
        assert!(!prefers_returns(1_000, 980, prices, false), "one in fifty would not be timed");
        assert!(prefers_returns(1_000, 980, prices, true), "not back and forth");
        assert!(!prefers_returns(1_000, 890, prices, true));
        assert!(!prefers_returns(29, 29, prices, false), "too few to know who calls");
        assert!(
            !prefers_returns(1_000, 1_000, (1_400.0, 1_100.0), false),
            "hardly cheaper: exit sites see every call"
        );
    }

    #[test]
    fn returns_of_others_are_paid_for_and_those_of_calls_that_were_turned_away_are_no_others() {
        let ends = |all, strays, turned_away| Ends { all, strays, turned_away }.a_call();
        // A window of four calls that was over after 64 returns of others: 0.5 + 17 x 0.5 us are no cheaper than stepping.
        assert_eq!((ends(68, 64, 0), ends(67, 63, 0), ends(64, 64, 0)), (17.0, 1.0, 64.0));
        assert!(!prefers_returns(1_000, 1_000, (10_000.0, 500.0 * (1.0 + ends(68, 64, 0))), true));
        assert!(prefers_returns(1_000, 1_000, (10_000.0, 500.0 * (1.0 + ends(180, 120, 0))), true));
        // A quota of 100, used up by 100,000 calls a second, whose link is gone 20 ms later.
        assert_eq!(ends(2_100, 2_000, 2_000), 1.0);
        assert_eq!(ends(2_100, 2_000, 2_300), 1.0, "some have not returned yet");
        assert_eq!(ends(2_100, 2_000, 1_000), 2_100.0 / 1_100.0, "half of what came by");
    }

    #[test]
    fn a_return_is_priced_as_most_of_them() {
        use SiteClass::{Nop, Push, Stepped};
        assert_eq!(usual_class(&[]), Stepped);
        assert_eq!(usual_class(&[(Push, 950), (Stepped, 50)]), Push);
        assert_eq!(usual_class(&[(Push, 850), (Stepped, 150)]), Stepped);
        assert_eq!(usual_class(&[(Nop, 0)]), Nop, "a site that has seen no call yet counts");
    }
}
