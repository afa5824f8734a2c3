//! Pairs of sites that measure what lies between the two time stamps of a call, in this target.
//!
//! A pair is a class of its own: it begins at the function's entry site and ends at a site close behind it that inspection has proven. When it
//! is attached is decided by `profiler_core::clients::activity::stamps`.
//!
//! Who has one: functions whose calls are timed, from the beginning; others as soon as a window shows that they are called so often that what a hit
//! costs matters for their rate.

use super::Agent;
use super::class::{Candidate, EntrySite, InspectedCode, LinkState, LiveClass};
use super::known_callers::Callers;
use super::lost_arguments::LostArguments;
use super::shares::FunctionKey;
use crate::inspect::{Site, WantedArguments};
use crate::prober::ClassCounters;
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::clients::activity::stamps::hides_rate;
use profiler_core::recording::WindowRow;

/// The site behind the entry lies no further from it than this, bytes: what runs between the two takes nanoseconds.
const NEAR_BYTES: u64 = 16;
/// Pairs for the sake of rates: each takes a place in the kernel's tables.
pub(super) const MOST_FOR_RATES: usize = 32;

/// The nearest proven site behind an entry, where the stack is known; one that is not single-stepped before one that is. Stepping takes ten times
/// as long, and what it leaves in the caches makes the next price a tenth to a fifth larger than that of the function's own calls.
fn behind(entry: &EntrySite, sites: &[Site]) -> Option<Site> {
    let near = |s: &&Site| s.vaddr > entry.address && s.vaddr - entry.address <= NEAR_BYTES;
    let known = sites.iter().filter(near).filter(|s| s.return_slot.is_some());
    known.min_by_key(|s| (s.class == SiteClass::Stepped, s.vaddr)).copied()
}

impl Agent {
    /// A pair for a class whose calls are timed, where there is a second site and room in the tables. Without one the host's price is used.
    pub(super) fn add_timed_pair(&mut self, of: ClassId) {
        if self.attach.class(of).exit != ExitMode::None {
            self.add_stamp_pair(of);
        }
    }

    /// A pair for a class that a window showed to be called so often that its rate is known no better than the price of its hits.
    pub(super) fn add_pair_for_rate(&mut self, ended: &WindowRow) {
        let id = ClassId(ended.class_id);
        let class = self.attach.class(id);
        if class.exit != ExitMode::None || class.candidate.stamps_of.is_some() || !hides_rate(ended) {
            return;
        }
        let pairs = || self.attach.classes().iter().filter_map(|c| c.candidate.stamps_of);
        let for_rates = pairs().filter(|of| self.attach.class(*of).exit == ExitMode::None).count();
        if for_rates < MOST_FOR_RATES && pairs().all(|of| of != id) {
            self.add_stamp_pair(id);
        }
    }

    fn add_stamp_pair(&mut self, of: ClassId) {
        let class = self.attach.class(of);
        if class.role.is_some() || class.candidate.semaphore_offset != 0 {
            return;
        }
        let Some(site) = behind(&class.candidate.entry, &class.code.sites.entries) else { return };
        let (Some(id), Some(slot)) = (self.attach.next_id(), site.return_slot) else { return };
        let key = FunctionKey { module: class.candidate.key.module, address: site.vaddr };
        let candidate = Candidate {
            key,
            name: format!("[time stamps of] {}", class.candidate.name),
            aliases: Vec::new(),
            size: 0,
            exits: Ok(vec![(site.file_offset, slot, site.class)]),
            notes: Vec::new(),
            stamps_of: Some(of),
            ..class.candidate.clone()
        };
        let (code, wish) = (&class.code, class.wish);
        let code = InspectedCode {
            function: code.function.clone(),
            sites: code.sites.clone(),
            callers: Callers::default(),
            entry_for_returns: None,
            lost_arguments: LostArguments::default(),
            parameters: None,
            prototype: None,
        };
        let (kind, exit) = (RecordKind::Latency, ExitMode::ExitSites);
        let prices = self.prices(&candidate, kind, exit);
        let Some(lease) = self.attach.kernel().classes().lease_histogram() else { return };
        self.attach.add(LiveClass {
            last_span: (0, 0),
            id,
            candidate,
            wish: super::class::Wish {
                kind,
                must: false,
                named: false,
                by_kind: false,
                force_return_link: false,
                arguments: WantedArguments::NONE,
                ..wish
            },
            kind,
            words: Default::default(),
            exit,
            prices,
            lease: Some(lease),
            role: None,
            code,
            state: LinkState::Off,
            counters: ClassCounters::default(),
            counts_metric: false,
            dormant: false,
            refused: None,
        });
        let row = self.attach.class(id).row();
        self.journal.writer.send(vec![row]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(vaddr: u64, class: SiteClass, return_slot: Option<i16>) -> Site {
        let at_entry_stack = false;
        Site {
            vaddr,
            file_offset: vaddr,
            offset: vaddr,
            class,
            arguments: 0,
            unread: 0,
            at_entry_stack,
            return_slot,
            keeps_frame: true,
        }
    }

    /// `push rbp; mov rbp, rsp; push rbx`: the second push, not the `mov`.
    #[test]
    fn the_second_site_of_a_pair_is_stepped_only_where_nothing_else_is_near() {
        let entry = EntrySite::at(&site(0x100, SiteClass::Push, Some(0)));
        let (mov, push) = (site(0x101, SiteClass::Stepped, Some(1)), site(0x104, SiteClass::Push, Some(1)));
        let first = site(0x100, SiteClass::Push, Some(0));
        assert_eq!(behind(&entry, &[first, push, mov]), Some(push));
        assert_eq!(behind(&entry, &[first, mov]), Some(mov));
        let far = site(0x111, SiteClass::Push, Some(1));
        assert_eq!(behind(&entry, &[far, mov]), Some(mov), "too much runs in between");
        let unknown = Site { return_slot: None, ..push };
        assert_eq!(behind(&entry, &[unknown, mov]), Some(mov));
        assert_eq!(behind(&entry, &[first]), None);
    }
}
