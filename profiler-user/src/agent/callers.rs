//! The callers of functions whose calls are timed at return addresses: which are known, and where their sites are.
//!
//! ```text
//! probe at the entry learns addresses ─► core run/callers.rs: which ─► inspect/callers (a thread) ─► a site, or why not
//!                                                                        │
//!                            attach/extend.rs: a link on the new sites ◄─┘   (the next windows have them from their begin)
//! ```

use super::Agent;
use super::attach::Ended;
use super::class::{LinkState, LiveClass};
use super::clock::now_ns;
use super::known_callers::{Place, place_of};
use crate::inspect::{CallerBudget, CallerError, CallerSite, Site, TraceRefusal};
use crate::prober::{CallerCounters, Tier};
use profiler_core::class::{ClassId, ExitMode, SiteClass};
use profiler_core::recording::WindowKind;
use profiler_core::run::callers::{Ends, prefers_returns, to_look_at};
use profiler_core::run::view::ClassPrices;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Between two looks at what the entries' probes have learned, ns.
const LOOK_NS: u64 = 20_000_000;
/// With more classes looks are rarer: one reads the kernel's whole table (some 30 us).
const CLASSES_A_LOOK: u64 = 8;

/// Why callers outside the program get no site on kernels that cannot keep a probe to one process.
const SHARED: &str =
    "it lies in a library, and on this kernel (Linux 6.6 to 6.9) all processes would pay for a probe there";

/// A search that goes on, on a thread of its own.
struct Search {
    asked: Vec<(ClassId, u64)>,
    found: Receiver<Vec<Result<CallerSite, CallerError>>>,
}

/// Looks at what is learned, and has new callers looked at.
#[derive(Default)]
pub(super) struct CallerWatch {
    search: Option<Search>,
    /// When to look again, ktime ns.
    next_ns: u64,
}

impl Agent {
    /// Reads what the entries' probes have learned, has the code of new callers looked at, and takes what was found.
    pub(super) fn watch_callers(&mut self) {
        self.take_found_callers();
        let now = now_ns();
        if now < self.callers.next_ns {
            return;
        }
        let learns = |class: &&LiveClass| class.learns_callers();
        let learning: Vec<ClassId> =
            self.attach.classes().iter().filter(learns).map(|class| class.id).collect();
        let open: Vec<ClassId> = learning.iter().copied().filter(|id| self.reads_callers(*id)).collect();
        self.callers.next_ns = now + LOOK_NS * (open.len() as u64).div_ceil(CLASSES_A_LOOK).max(1);
        self.note_callers(&open);
        let mut wanted = Vec::new();
        for id in learning {
            self.choose_way_out(id);
            wanted.extend(
                to_look_at(&self.attach.class(id).code.callers.list(now)).into_iter().map(|a| (id, a)),
            );
        }
        if self.callers.search.is_none() && !wanted.is_empty() {
            self.search_callers(wanted);
        }
    }

    /// Windows are over in which callers may have been learned: they are noted, and the kernel's cells are free for others.
    pub(super) fn end_learning(&mut self, ended: &[Ended]) {
        let learned = |ended: &&Ended| {
            let class = self.attach.class(ClassId(ended.row.class_id));
            class.learns_callers()
                && (ended.row.kind == WindowKind::Survey || class.exit == ExitMode::ReturnSites)
        };
        let ended: Vec<&Ended> = ended.iter().filter(learned).collect();
        let ids: Vec<ClassId> = ended.iter().map(|ended| ClassId(ended.row.class_id)).collect();
        self.note_callers(&ids);
        self.attach.kernel().forget_callers(&ids);
        for (id, ended) in ids.into_iter().zip(ended) {
            let callers = &mut self.attach.class_mut(id).code.callers;
            callers.end_window();
            // Others' processes are not the class's own calls.
            let turned_away = ended.seen.gated.saturating_sub(ended.seen.bystanders);
            let CallerCounters { ends, strays, .. } = ended.seen.callers;
            callers.note_ends(Ends { all: ends, strays, turned_away });
        }
    }

    /// A window is open in which the entry's probe learns.
    fn reads_callers(&self, id: ClassId) -> bool {
        let class = self.attach.class(id);
        match &class.state {
            LinkState::Open(window) => {
                window.kind == WindowKind::Survey || class.exit == ExitMode::ReturnSites
            }
            _ => false,
        }
    }

    /// What the probes at the entries of these classes have learned: one look at the kernel's table for all.
    fn note_callers(&mut self, ids: &[ClassId]) {
        for (id, learned) in self.attach.kernel().callers_of(ids) {
            let callers = &mut self.attach.class_mut(id).code.callers;
            for caller in learned {
                callers.note(caller.address, caller.calls);
            }
        }
    }

    /// Calls of a class that have exit sites are timed at return addresses where that is cheaper and nearly all callers are known; core
    /// `run/callers.rs` says when. Only between its windows.
    fn choose_way_out(&mut self, id: ClassId) {
        let class = self.attach.class(id);
        let Some(entry) = class.code.entry_for_returns.filter(|_| class.is_off()) else { return };
        let so_far = class.exit == ExitMode::ReturnSites;
        if class.candidate.exits.is_err() {
            return;
        }
        let timed_from = (class.counters.returns > 0).then_some(class.candidate.entry.offset);
        let Some(exits_entry) = entry_at_exits(class.code.sites.entry, entry, timed_from) else { return };
        let (kind, callers) = (class.kind, &class.code.callers);
        let returns = self.prices_at(entry.class, kind, ExitMode::ReturnSites, callers.usual_class());
        let exits = self.prices_at(exits_entry.class, kind, ExitMode::ExitSites, SiteClass::Stepped);
        let (seen, sited) = callers.covered();
        let ends = callers.ends_a_call();
        let call_ns = |prices: &ClassPrices, ends: f64| prices.hit.ns + ends * prices.exit.ns;
        let wanted = prefers_returns(seen, sited, (call_ns(&exits, 1.0), call_ns(&returns, ends)), so_far);
        if wanted == so_far {
            return;
        }
        let class = self.attach.class_mut(id);
        (class.exit, class.prices) =
            if wanted { (ExitMode::ReturnSites, returns) } else { (ExitMode::ExitSites, exits) };
        class.move_entry(if wanted { &entry } else { &exits_entry });
        let way = if wanted { "return addresses" } else { "exit sites" };
        let text = format!("{} is timed at {way} from now on", self.attach.class(id).candidate.name);
        self.journal.detail(&text);
    }

    fn search_callers(&mut self, asked: Vec<(ClassId, u64)>) {
        let addresses: Vec<u64> = asked.iter().map(|(_, address)| *address).collect();
        let search = self.inspection.caller_search(&addresses);
        let (sender, found) = channel();
        let thread = std::thread::Builder::new().name("tithe-callers".into()).spawn(move || {
            // Who asked may be gone.
            let _ = sender.send(search.run(CallerBudget::default()));
        });
        if thread.is_err() {
            return;
        }
        for (id, address) in &asked {
            self.attach.class_mut(*id).code.callers.set(*address, Place::Asked);
        }
        self.callers.search = Some(Search { asked, found });
    }

    fn take_found_callers(&mut self) {
        let Some(search) = &self.callers.search else { return };
        let found = match search.found.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) => return,
            // Its thread has panicked, which the panic hook has shown.
            Err(TryRecvError::Disconnected) => Vec::new(),
        };
        let Some(Search { asked, .. }) = self.callers.search.take() else { return };
        // As for functions: this kernel cannot keep a probe to one process.
        let alone = self.attach.kernel().tier() == Tier::C;
        let gone = || Err(CallerError::NotLookedAt("the search failed".to_owned()));
        let mut found = found.into_iter();
        let mut changed = Vec::new();
        for (id, address) in asked {
            let place = match place_of(&self.inspection, found.next().unwrap_or_else(gone)) {
                Place::Found(placed) if alone && !self.inspection.modules()[placed.caller.module].main => {
                    Place::Refused(SHARED.to_owned())
                }
                place => place,
            };
            self.attach.class_mut(id).code.callers.set(address, place);
            changed.push(id);
        }
        changed.dedup();
        for id in changed {
            self.reprice_returns(id);
        }
    }

    /// A class is priced by the sites at which most of its calls return.
    fn reprice_returns(&mut self, id: ClassId) {
        let class = self.attach.class(id);
        if class.exit != ExitMode::ReturnSites {
            return;
        }
        let (entry, kind, exit) = (class.candidate.entry.class, class.kind, class.exit);
        let prices = self.prices_at(entry, kind, exit, class.code.callers.usual_class());
        let class = self.attach.class_mut(id);
        class.prices = class.words.priced(prices);
    }

    /// Compares the code of a class's callers with their files, right before attaching: those that have changed lose their sites.
    pub(super) fn verify_callers_of(&mut self, id: ClassId) {
        let callers = &self.attach.class(id).code.callers;
        // A library may be mapped elsewhere by now: two of its addresses would be one site.
        let modules = self.inspection.modules();
        let moved = |caller: &CallerSite| {
            let module = modules.get(caller.module);
            module.and_then(|module| module.vaddr_of_address(caller.return_address)).is_none()
        };
        let mut lost: Vec<u64> =
            callers.found().filter(|(_, placed)| moved(&placed.caller)).map(|(address, _)| address).collect();
        let callers = &mut self.attach.class_mut(id).code.callers;
        for address in &lost {
            callers.set(*address, Place::New);
        }
        let placed: Vec<(u64, CallerSite)> =
            callers.found().map(|(address, placed)| (address, placed.caller.clone())).collect();
        let sites: Vec<CallerSite> = placed.iter().map(|(_, caller)| caller.clone()).collect();
        let verdicts = self.inspection.verify_callers(&sites);
        let callers = &mut self.attach.class_mut(id).code.callers;
        for ((address, _), verdict) in placed.into_iter().zip(verdicts) {
            let place = match verdict {
                Ok(_) => continue,
                // Not mapped now; what is mapped there later is looked at anew.
                Err(TraceRefusal::Unverified(_)) => Place::New,
                Err(refusal) => Place::Refused(refusal.to_string()),
            };
            callers.set(address, place);
            lost.push(address);
        }
        self.attach.disarm(id, &lost);
    }

    /// Has sites attached that were found while their class is open. True: a link is being made.
    pub(super) fn extend_next(&mut self) -> bool {
        let Some(id) = self.attach.next_to_extend() else { return false };
        self.verify_callers_of(id);
        self.attach.extend(id)
    }
}

/// The entry from which calls are timed at exit sites, where they could be timed at return addresses from `returns`. `own`: that of a function
/// with exit sites alone. `timed_from`: offset of the entry from which calls were timed already. They go on from that, or from one of the
/// same price class: from another, what lies between the time stamps of the class would not be known. `None`: so the class stays where it is.
fn entry_at_exits(own: Site, returns: Site, timed_from: Option<u64>) -> Option<Site> {
    match timed_from {
        Some(offset) if offset == returns.file_offset => Some(returns),
        Some(_) if own.class != returns.class => None,
        _ => Some(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(file_offset: u64, class: SiteClass) -> Site {
        Site {
            vaddr: file_offset,
            file_offset,
            offset: 0,
            class,
            arguments: 0,
            unread: 0,
            at_entry_stack: true,
            return_slot: Some(0),
            keeps_frame: true,
        }
    }

    #[test]
    fn a_class_goes_on_from_the_entry_that_it_was_timed_from() {
        let (own, same) = (site(0x10, SiteClass::Nop), site(0x14, SiteClass::Nop));
        let other = site(0x14, SiteClass::Push);
        assert_eq!(entry_at_exits(own, other, None), Some(own), "nothing was timed yet");
        assert_eq!(entry_at_exits(own, same, Some(0x10)), Some(own));
        assert_eq!(entry_at_exits(own, other, Some(0x14)), Some(other), "there and back");
        assert_eq!(entry_at_exits(own, other, Some(0x10)), None);
    }
}
