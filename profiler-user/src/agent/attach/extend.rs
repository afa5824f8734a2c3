//! More sites for windows that are open: callers are learned while their calls are counted.
//!
//! ```text
//! a caller's site is found ─► link on it (the opener) ─► register under the window's group ─► arm: its calls are timed from now on
//! ```
//! The quotas stay as they are. What closes the window's links closes these, too.

use super::super::clock::now_ns;
use super::Attachments;
use super::opener::{Failure, Made, Report, Request, Returns};
use crate::agent::class::{LinkState, LiveClass};
use crate::agent::known_callers::ReturnGroup;
use crate::prober::{AttachGroup, LinkKind, Site};
use profiler_core::class::{ClassId, ExitMode};
use profiler_core::recording::WindowKind;
use profiler_core::surroundings::fork_hold::HoldVerdict;
use std::collections::BTreeMap;

/// Between two tries while forks of others have been held up enough, ns.
const EXTEND_RETRY_NS: u64 = 20_000_000;

impl Attachments {
    /// A class whose window is open and that has callers with a site which is not attached: the next one after the last that was tried. None
    /// while the opener is busy, or forks of others have been held up enough. Callers whose sites could never be registered get none.
    #[must_use]
    pub fn next_to_extend(&mut self) -> Option<ClassId> {
        let now = now_ns();
        if self.is_making() || now < self.asked.extend_ns {
            return None;
        }
        let lacks = |class: &&LiveClass| !missing(class).is_empty();
        let after = |class: &&LiveClass| Some(class.id) > self.asked.extended;
        let all = || self.classes.iter().filter(lacks);
        let id = all().find(after).or_else(|| all().next())?.id;
        self.asked.extended = Some(id);
        let missing = missing(self.class(id));
        let sites = missing.iter().map(|group| group.sites.len()).sum();
        match self.may_extend(id, sites) {
            HoldVerdict::Now => return Some(id),
            HoldVerdict::Later => self.asked.extend_ns = now + EXTEND_RETRY_NS,
            HoldVerdict::Never(_) => {
                let why = "so many other processes map its file that its site would hold up every fork of the machine";
                self.refuse_callers(id, &missing, why);
            }
        }
        None
    }

    /// Has the missing sites of a class attached, whose code was compared just now. False: not now.
    pub fn extend(&mut self, id: ClassId) -> bool {
        let LinkState::Open(window) = &self.class(id).state else { return false };
        let (kind, leader) = (window.kind, window.group);
        let missing = missing(self.class(id));
        if missing.is_empty() {
            return false;
        }
        if !self.has_room(id, &missing) {
            let why = "the target has too little memory left for the page of its site";
            self.refuse_callers(id, &missing, why);
            return false;
        }
        let target = self.targets.owner(id);
        let (pid, last_cpu_ns) = (target.pid(), target.last_cpu_ns());
        let Some(target) = target.process().cloned() else { return false };
        let returns = returns_of(missing, pid);
        let request = Request {
            kind,
            leader,
            members: Vec::new(),
            attach: None,
            returns,
            traced: Vec::new(),
            target,
            last_cpu_ns,
        };
        self.asked.extending = Some((leader, id));
        self.send(request);
        true
    }

    /// More sites are there, or were refused.
    pub(super) fn note_extended(&mut self, report: Report) {
        let Some((leader, id)) = self.asked.extending.take() else { return };
        let made = match report.made {
            Ok(made) => made,
            // Refused is only what has a site of its own module.
            Err(Failure::Refused(_)) => return,
            Err(Failure::Cancelled { sites, registration_ns, links }) => {
                self.note_registered(id, sites, registration_ns);
                // Made and closed.
                self.targets.owner_mut(id).link_changes += 2 * links as u64;
                return;
            }
        };
        let Made { sites, registration_ns, links, tripped, armed, unarmed, .. } = made;
        self.note_unarmed(unarmed);
        self.note_registered(id, sites, registration_ns);
        // What the breaker takes off again is counted with the window's other links.
        self.targets.owner_mut(id).link_changes += links as u64;
        let ended = |state: &LinkState| matches!(state, LinkState::Closing(_, closing) if closing.draining_until_ns.is_none());
        let members = self.members(leader);
        // The window ended while they were being made. Those that its release had not found there are released now.
        let late = if tripped {
            links
        } else if members.iter().any(|member| ended(&self.class(*member).state)) {
            self.governor.table().release(leader.0)
        } else {
            0
        };
        for member in members {
            match &mut self.class_mut(member).state {
                LinkState::Open(window) => {
                    window.links += links;
                    window.callers.extend(armed.iter().filter(|(id, _)| *id == member).map(|(_, at)| *at));
                }
                LinkState::Closing(window, closing) => {
                    window.links += links;
                    // Of one that drains all links come back, released or tripped.
                    closing.links_left += if closing.draining_until_ns.is_some() { links } else { late };
                }
                LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => {}
            }
        }
    }

    /// Callers that the kernel refuses get no site.
    pub(super) fn note_unarmed(&mut self, unarmed: Vec<(ClassId, u64, String)>) {
        for (id, address, why) in unarmed {
            let why = format!("there is no probe behind the call: {why}");
            self.class_mut(id).code.callers.refuse(address, why);
        }
    }

    /// These callers have lost their sites. While a window is open their calls are counted only from now on: what stands at the return address is
    /// no return any more, and the ends of calls that would be put on record would never come.
    pub fn disarm(&mut self, id: ClassId, lost: &[u64]) {
        let LinkState::Open(window) = &self.class(id).state else { return };
        for address in lost.iter().filter(|address| window.callers.contains(address)) {
            self.kernel().disarm_caller(id, *address);
        }
    }

    fn refuse_callers(&mut self, id: ClassId, groups: &[ReturnGroup], why: &str) {
        let callers = &mut self.class_mut(id).code.callers;
        for (address, _) in groups.iter().flat_map(|group| &group.sites) {
            callers.refuse(*address, why.to_owned());
        }
    }
}

impl Attachments {
    /// Whole windows of a class need too much with its callers' sites: it is to be had without them, and its calls from there are not timed.
    /// False: it has none.
    pub(super) fn without_callers(&mut self, id: ClassId, kind: WindowKind, why: &str) -> bool {
        let groups = self.class(id).return_groups(kind);
        self.refuse_callers(id, &groups, why);
        !groups.is_empty()
    }
}

/// The requests for sites in callers, in a process: one for each file.
pub(super) fn returns_of(groups: Vec<ReturnGroup>, pid: u32) -> Vec<Returns> {
    let mut files: BTreeMap<usize, Returns> = BTreeMap::new();
    for group in groups {
        let ReturnGroup { module, path, sites, .. } = group;
        let (addresses, sites): (Vec<u64>, Vec<Site>) = sites.into_iter().unzip();
        let returns = files.entry(module).or_insert_with(|| Returns {
            attach: AttachGroup { module: path, pid, kind: LinkKind::ReturnSites, sites: Vec::new() },
            addresses: Vec::new(),
        });
        returns.attach.sites.extend(sites);
        returns.addresses.extend(addresses);
    }
    files.into_values().collect()
}

/// The sites that an open window of a class lacks.
fn missing(class: &LiveClass) -> Vec<ReturnGroup> {
    match &class.state {
        LinkState::Open(window)
            if class.exit == ExitMode::ReturnSites && window.kind != WindowKind::Survey =>
        {
            class.code.callers.groups(class.id, &window.callers)
        }
        _ => Vec::new(),
    }
}
