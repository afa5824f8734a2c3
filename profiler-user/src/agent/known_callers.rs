//! What is known of the callers of a function: who they are, where their sites lie, why some have none.

use super::clock::now_ns;
use crate::inspect::mappers::FileKey;
use crate::inspect::{AttachPath, CallerError, CallerSite, Inspection, ReturnSite};
use crate::prober::Site;
use profiler_core::class::{ClassId, SiteClass};
use profiler_core::run::callers::{Caller, CallerState, Ends, usual_class};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// So often the code of one caller is looked at; then it is given up, ...
const MOST_LOOKS: u32 = 5;
/// ... because of this.
const GIVEN_UP: &str = "its caller could not be looked at in time, or is not mapped for long";
/// Longer each time waits the next look, ns: by then a library that came is known.
const AGAIN_NS: u64 = 700_000_000;
/// Hits at return addresses that were no returns, at least and for each return: with more, sites that others come by are given up.
const MOST_STRAYS: u64 = 1_000;
const STRAYS_A_RETURN: u64 = 4;
/// Why a site that others come by is given up.
const JOINED: &str = "nearly all that came by behind the call were no returns (a loop?)";
/// Said of callers that have no site and nothing against it.
const UNSEEN: &str = "it makes too few calls, or came too late, for a site of its own";
/// Reasons that are named where calls were not timed.
const MOST_REASONS: usize = 3;

/// Sites in callers that lie in one file.
#[derive(Debug, Clone)]
pub struct ReturnGroup {
    /// Index of the module.
    pub module: usize,
    /// The file, as the agent can open it.
    pub path: PathBuf,
    /// Where calls return to, and the site there.
    pub sites: Vec<(u64, Site)>,
}

/// What is known of one caller.
#[derive(Debug)]
pub enum Place {
    /// Nobody has looked at it, or not to the end: its code is (again) to be looked at.
    New,
    /// Its code is being looked at.
    Asked,
    /// It has a site.
    Found(Box<Placed>),
    /// It cannot have one: why.
    Refused(String),
}

/// A return-address site with all that attaching needs.
#[derive(Debug)]
pub struct Placed {
    /// The caller.
    pub caller: CallerSite,
    /// The one of its two sites that is used.
    site: ReturnSite,
    path: AttachPath,
    file: Option<FileKey>,
}

#[derive(Debug)]
struct Known {
    /// Calls that were seen in windows that are over, and in this one.
    before: u64,
    now: u64,
    place: Place,
    /// How often its code was to be looked at, and from when on it may be again, ktime ns.
    looks: u32,
    again_ns: u64,
}

/// The callers of one function, by the address that its calls return to.
#[derive(Debug, Default)]
pub struct Callers {
    known: BTreeMap<u64, Known>,
    /// Hits at the return addresses in the last window that had any.
    ends: Ends,
    /// Of all windows: hits of others, and calls that returned.
    others: u64,
    returns: u64,
}

impl Callers {
    /// What the entry's probe has learned since it was attached: calls that return there.
    pub fn note(&mut self, address: u64, calls: u64) {
        let new = Known { before: 0, now: 0, place: Place::New, looks: 0, again_ns: 0 };
        self.known.entry(address).or_insert(new).now = calls;
    }

    /// The window is over: the kernel forgets, and begins anew with the next.
    pub fn end_window(&mut self) {
        for known in self.known.values_mut() {
            known.before += std::mem::take(&mut known.now);
        }
    }

    /// A window is over in which so many hits came by at the return addresses. One that saw none leaves what was found before.
    pub fn note_ends(&mut self, ends: Ends) {
        if ends.all == 0 {
            return;
        }
        self.ends = ends;
        self.others += ends.others();
        self.returns += ends.all.saturating_sub(ends.strays);
        if self.others > MOST_STRAYS + STRAYS_A_RETURN * self.returns {
            self.refuse_joined();
        }
    }

    /// Hits at the return addresses for each call, by the last window that was timed there.
    pub fn ends_a_call(&self) -> f64 {
        self.ends.a_call()
    }

    /// Sites that others come by get none any more: nearly all hits there were no returns.
    fn refuse_joined(&mut self) {
        for known in self.known.values_mut() {
            if matches!(&known.place, Place::Found(placed) if placed.site.joined) {
                known.place = Place::Refused(JOINED.to_owned());
            }
        }
    }

    /// All of them, as core `run/callers.rs` sees them.
    pub fn list(&self, now: u64) -> Vec<Caller> {
        let state = |known: &Known| match known.place {
            Place::New if now >= known.again_ns => CallerState::New,
            // Waiting for its next look counts as being looked at.
            Place::New | Place::Asked | Place::Found(_) => CallerState::Taken,
            Place::Refused(_) => CallerState::Refused,
        };
        let caller = |(address, known): (&u64, &Known)| Caller {
            address: *address,
            calls: known.before + known.now,
            state: state(known),
        };
        self.known.iter().map(caller).collect()
    }

    /// What has become known of one.
    pub fn set(&mut self, address: u64, place: Place) {
        if let Some(known) = self.known.get_mut(&address) {
            if matches!(place, Place::Asked) {
                known.looks += 1;
                known.again_ns = now_ns() + u64::from(known.looks) * AGAIN_NS;
            }
            known.place = match place {
                Place::New if known.looks >= MOST_LOOKS => Place::Refused(GIVEN_UP.to_owned()),
                place => place,
            };
        }
    }

    /// Those that have a site.
    pub fn found(&self) -> impl Iterator<Item = (u64, &Placed)> {
        self.known.iter().filter_map(|(address, known)| match &known.place {
            Place::Found(placed) => Some((*address, &**placed)),
            _ => None,
        })
    }

    /// A caller gets no site: why.
    pub fn refuse(&mut self, address: u64, why: String) {
        self.set(address, Place::Refused(why));
    }

    /// The files in which sites lie.
    pub fn files(&self) -> impl Iterator<Item = FileKey> {
        self.found().filter_map(|(_, placed)| placed.file)
    }

    /// Their sites, by file: of all, or of those that `but` leaves.
    pub fn groups(&self, class: ClassId, but: &[u64]) -> Vec<ReturnGroup> {
        let mut groups: BTreeMap<usize, ReturnGroup> = BTreeMap::new();
        for (address, placed) in self.found().filter(|(address, _)| !but.contains(address)) {
            let group = groups.entry(placed.caller.module).or_insert_with(|| ReturnGroup {
                module: placed.caller.module,
                path: placed.path.to_path_buf(),
                sites: Vec::new(),
            });
            // Right behind a return the stack pointer is one word above the word that held the address.
            let popped = -1 - placed.site.return_slot;
            let site = Site::returned(class, placed.site.file_offset, popped).behind(placed.site.distance);
            group.sites.push((address, site));
        }
        groups.into_values().collect()
    }

    /// Calls seen, and those of them whose callers have a site.
    pub fn covered(&self) -> (u64, u64) {
        let calls = |known: &Known| known.before + known.now;
        let sited = self.known.values().filter(|known| matches!(known.place, Place::Found(_)));
        (self.known.values().map(calls).sum(), sited.map(calls).sum())
    }

    /// The price class of the sites at which most calls return.
    pub fn usual_class(&self) -> SiteClass {
        let sites: Vec<(SiteClass, u64)> = self
            .found()
            .map(|(address, placed)| {
                (placed.site.class, self.known[&address].before + self.known[&address].now)
            })
            .collect();
        usual_class(&sites)
    }

    /// What is to be said of callers: how many have a site, and why others have none. Nothing where nothing was learned.
    pub fn notes(&self) -> Vec<String> {
        let (mut sites, mut refused) = (0_usize, BTreeMap::<&str, (usize, u64)>::new());
        let mut all = 0;
        for known in self.known.values() {
            let calls = known.before + known.now;
            all += calls;
            match &known.place {
                Place::Found(_) => sites += 1,
                Place::Refused(why) => {
                    let of = refused.entry(why).or_default();
                    *of = (of.0 + 1, of.1 + calls);
                }
                Place::New | Place::Asked => {
                    let of = refused.entry(UNSEEN).or_default();
                    *of = (of.0 + 1, of.1 + calls);
                }
            }
        }
        if all == 0 {
            return Vec::new();
        }
        let mut notes = vec![format!(
            "its returns are seen at {sites} return address{}",
            if sites == 1 { "" } else { "es" }
        )];
        let mut refused: Vec<_> = refused.into_iter().collect();
        refused.sort_by_key(|(_, (_, calls))| std::cmp::Reverse(*calls));
        for (why, (callers, calls)) in refused.into_iter().take(MOST_REASONS) {
            let part = calls as f64 / all as f64 * 100.0;
            let who = if callers == 1 { "a caller".to_owned() } else { format!("{callers} callers") };
            notes.push(format!(
                "calls from {who} ({part:.1} % of those seen) are counted and not timed: {why}"
            ));
        }
        notes
    }
}

/// The site that a caller gets.
pub fn place_of(inspection: &Inspection, found: Result<CallerSite, CallerError>) -> Place {
    let caller = match found {
        Ok(caller) => caller,
        // It may be asked for again: there was no time, or its module is not known yet.
        Err(CallerError::NotLookedAt(_) | CallerError::NotMapped(_)) => return Place::New,
        Err(why) => return Place::Refused(why.to_string()),
    };
    let Some(module) = inspection.modules().get(caller.module) else { return Place::New };
    // Others may come by at a site that jumps lead to, and each costs a hit.
    let joins = caller.best().joined && !caller.site.joined;
    let site = if joins { caller.site } else { caller.best() };
    let path = module.attach_path();
    let file = module.mappings.first().map(|map| (map.device, map.inode));
    Place::Found(Box::new(Placed { caller, site, path, file }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_in_earlier_windows_is_kept() {
        let mut callers = Callers::default();
        callers.note(0x10, 5);
        callers.note(0x10, 8);
        // A new window: the kernel has forgotten, and more calls came than before.
        callers.end_window();
        callers.note(0x10, 3);
        callers.note(0x10, 9);
        let list = callers.list(now_ns());
        assert_eq!((list[0].address, list[0].calls, list[0].state), (0x10, 17, CallerState::New));
    }

    #[test]
    fn the_last_window_with_returns_says_who_comes_by() {
        let ends = |all, strays, turned_away| Ends { all, strays, turned_away };
        let mut callers = Callers::default();
        callers.note_ends(ends(68, 64, 0));
        assert_eq!(callers.ends_a_call(), 17.0);
        callers.note_ends(ends(0, 0, 500));
        assert_eq!(callers.ends_a_call(), 17.0, "calls that were timed at exit sites say nothing");
        callers.note_ends(ends(2_100, 2_000, 2_000));
        assert_eq!((callers.ends_a_call(), callers.others, callers.returns), (1.0, 64, 104));
    }

    #[test]
    fn one_that_cannot_be_looked_at_is_given_up() {
        let mut callers = Callers::default();
        callers.note(0x10, 1);
        for look in 0..MOST_LOOKS {
            callers.set(0x10, Place::Asked);
            assert_eq!(callers.list(u64::MAX)[0].state, CallerState::Taken, "look {look}");
            callers.set(0x10, Place::New);
            let waits = callers.list(now_ns())[0].state;
            let later = callers.list(u64::MAX)[0].state;
            match look + 1 == MOST_LOOKS {
                false => assert_eq!((waits, later), (CallerState::Taken, CallerState::New), "look {look}"),
                true => assert_eq!((waits, later), (CallerState::Refused, CallerState::Refused)),
            }
        }
    }

    #[test]
    fn what_is_not_timed_is_said_with_its_part() {
        let mut callers = Callers::default();
        assert!(callers.notes().is_empty(), "nothing was learned");
        callers.note(0x10, 60);
        callers.note(0x20, 30);
        callers.note(0x30, 10);
        callers.refuse(0x10, "made at run time".to_owned());
        callers.refuse(0x20, "made at run time".to_owned());
        expect_test::expect![[r#"
            its returns are seen at 0 return addresses
            calls from 2 callers (90.0 % of those seen) are counted and not timed: made at run time
            calls from a caller (10.0 % of those seen) are counted and not timed: it makes too few calls, or came too late, for a site of its own"#]]
        .assert_eq(&callers.notes().join("\n"));
    }
}
