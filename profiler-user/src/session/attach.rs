//! Opening and closing windows: the join of class table, prober and governor.
//!
//! A window is opened and closed with the *gate* (the quota), at instants known to the microsecond; the links are made
//! before and closed after it. Hits outside the window are gated: not counted as calls, but charged.
//!
//! ```text
//! open:  begin ─ control ─ quota 0 ─ attach (ms) ─ register ─ [start] ─ quota q
//! close: [end] ─ quota 0 ─ drain ─ release ─ … closer closes the link … ─ counters, open calls ─ row
//! trip:  the kernel takes the last hit [end] ─ governor closes the link ─ counters ─ row
//! ```
//!
//! *Draining*: a call belongs to the window in which it began. At the end of a window of timed classes the links stay until
//! the calls in flight have ended, at most for `DRAIN_NS`, and only while what is turned away costs little; it is charged like
//! any hit. Calls that are still open when the links are gone
//! are recorded with the time that they had taken so far.

use super::class::{Closing, Ending, LinkState, LiveClass, OpenWindow};
use super::window::{closing, counters_at, row};
use crate::governor::{ClosedLink, Governor, Reason, Registered};
use crate::prober::{AttachGroup, ClassControl, FLAG_BY_THREAD, Kernel, LinkKind, Site};
use crate::target::Target;
use profiler_core::class::ClassId;
use profiler_core::recording::{OpenCallRow, WindowKind, WindowRow};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Classes that get a link of their own when many are attached at once; the others share.
pub(super) const OWN_LINKS: usize = 24;
/// Functions on a shared link: all of its hits stop within 13 ms of its closing.
const SHARED_LINK: usize = 200;

/// So long the links of a window that has ended wait for the calls in flight, ns.
pub(super) const DRAIN_NS: u64 = 50_000_000;
/// Part of a window's calls above which those in flight at its end are worth waiting for.
const IN_FLIGHT_SHARE: f64 = 0.01;
/// Waiting ends when so many entries have been turned away, ...
const DRAIN_HITS: u64 = 64;
/// ... or one for so many calls that the window saw, whichever is more.
const DRAIN_PART: u64 = 10;
/// Threads that are asked for their open calls at most: two system calls each.
const ASKED_THREADS: usize = 2_000;

/// `CLOCK_MONOTONIC` in ns, the clock of every kernel record.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // OK because monotonic time since boot is positive and far below 2^64 ns.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A window that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its row.
    pub row: WindowRow,
    /// The breaker ended it, through the quota of this very class.
    pub tripped_itself: bool,
    /// When the last of its links began to go: calls that are open were watched until then, ktime ns.
    pub watched_ns: u64,
    /// When the last of its links was gone, ktime ns.
    pub closed_ns: u64,
    /// Its calls that had not ended.
    pub open_calls: Vec<OpenCallRow>,
}

/// All classes and their links.
pub struct Attachments {
    kernel: Arc<Kernel>,
    governor: Governor,
    pid: u32,
    classes: Vec<LiveClass>,
    /// Links made and closed so far.
    operations: u64,
    /// CPU time of the target as last read, ns: what it had used when it ended.
    last_cpu_ns: u64,
    /// Hits are counted by thread, too.
    by_thread: bool,
}

impl Attachments {
    /// Nothing attached.
    #[must_use]
    pub fn new(kernel: Arc<Kernel>, governor: Governor, pid: u32) -> Self {
        Self { kernel, governor, pid, classes: Vec::new(), operations: 0, last_cpu_ns: 0, by_thread: false }
    }

    /// The classes, by id.
    #[must_use]
    pub fn classes(&self) -> &[LiveClass] {
        &self.classes
    }

    /// One class.
    ///
    /// # Panics
    /// The id is not of this session.
    #[must_use]
    pub fn class(&self, id: ClassId) -> &LiveClass {
        &self.classes[id.0 as usize]
    }

    /// One class.
    ///
    /// # Panics
    /// The id is not of this session.
    pub fn class_mut(&mut self, id: ClassId) -> &mut LiveClass {
        &mut self.classes[id.0 as usize]
    }

    /// Id of the next class to be added; `None` if the kernel tables are full.
    #[must_use]
    pub fn next_id(&self) -> Option<ClassId> {
        let id = u32::try_from(self.classes.len()).ok()?;
        (id < self.kernel.classes().max_classes()).then_some(ClassId(id))
    }

    /// Adds a class, whose id must be [`Attachments::next_id`].
    pub fn add(&mut self, class: LiveClass) {
        debug_assert_eq!(Some(class.id), self.next_id());
        self.classes.push(class);
    }

    /// The governor.
    #[must_use]
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The kernel side.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// CPU time that the target has used, ns; once it has ended, as it was last read.
    pub fn cpu_ns(&mut self, target: &Target) -> u64 {
        self.last_cpu_ns = target.cpu_time_ns().unwrap_or(self.last_cpu_ns);
        self.last_cpu_ns
    }

    /// The target has ended, and its CPU time is still to be had.
    pub fn note_last_cpu(&mut self, cpu_ns: u64) {
        self.last_cpu_ns = self.last_cpu_ns.max(cpu_ns);
    }

    /// Hits are counted by thread as well from now on, or no longer. A target with one thread need not pay for it.
    pub fn count_by_thread(&mut self, on: bool) {
        if std::mem::replace(&mut self.by_thread, on) == on {
            return;
        }
        for class in self.classes.iter().filter(|c| c.is_open()) {
            self.kernel.classes().adjust(class.id, |control| {
                control.flags = control.flags & !FLAG_BY_THREAD | if on { FLAG_BY_THREAD } else { 0 };
            });
        }
    }

    /// Links made and closed since the last call (each stalls the target for some tens of microseconds).
    pub fn take_operations(&mut self) -> u64 {
        std::mem::take(&mut self.operations)
    }

    /// How classes that are off are put together on links, hottest class first: the first ones get links of their own.
    #[must_use]
    pub fn groups(&self, kind: WindowKind, wanted: &[(ClassId, u64)]) -> Vec<Vec<(ClassId, u64)>> {
        let own = wanted.len().min(OWN_LINKS);
        let mut groups: Vec<Vec<(ClassId, u64)>> = wanted[..own].iter().map(|w| vec![*w]).collect();
        let mut shared: BTreeMap<(PathBuf, u8), Vec<(ClassId, u64)>> = BTreeMap::new();
        for item in &wanted[own..] {
            let class = self.class(item.0);
            let key = (class.candidate.module_path.clone(), link_rank(class.link_kind(kind)));
            shared.entry(key).or_default().push(*item);
        }
        for list in shared.into_values() {
            groups.extend(list.chunks(SHARED_LINK).map(<[_]>::to_vec));
        }
        groups
    }

    /// Opens the windows of one group of [`Attachments::groups`]; classes that are not off any more are left alone.
    /// `quotas` are hits. What could not be attached is remembered in the class; `opened` gets what was.
    pub fn open_group(
        &mut self,
        target: &Target,
        kind: WindowKind,
        group: &[(ClassId, u64)],
        opened: &mut BTreeSet<ClassId>,
    ) {
        let group: Vec<_> = group.iter().copied().filter(|(id, _)| self.class(*id).may_open()).collect();
        let group = &group[..];
        let Some(&(leader, _)) = group.first() else { return };
        let table = Arc::clone(self.governor.table());
        let classes = self.kernel.classes().clone();
        let mut sites: Vec<Site> = Vec::new();
        for (id, _) in group {
            table.join(id.0, leader.0);
            let control = self.class(*id).control(kind);
            let by_thread = if self.by_thread { FLAG_BY_THREAD } else { 0 };
            classes.configure(*id, ClassControl { flags: control.flags | by_thread, ..control });
            classes.set_quota(*id, 0);
            sites.extend(self.class(*id).sites_of(kind));
        }
        table.begin(leader.0);
        let request = AttachGroup {
            module: self.class(leader).candidate.module_path.clone(),
            pid: self.pid,
            kind: self.class(leader).link_kind(kind),
            sites,
        };
        let attached = match self.kernel.attach(&request) {
            Ok(attached) => attached,
            Err(error) => {
                for (id, _) in group {
                    self.class_mut(*id).refused = Some(error.to_string());
                }
                return;
            }
        };
        for refusal in &attached.refused {
            let text = format!("the kernel refuses the site: {}", refusal.error);
            self.class_mut(refusal.site.class).refused = Some(text);
        }
        let functions = u32::try_from(group.len()).unwrap_or(u32::MAX);
        let fds = attached.link.into_fds();
        let links = fds.len();
        let tripped = table.register_all(leader.0, fds, functions) == Registered::Tripped;
        self.operations += links as u64;
        let base_cpu_ns = self.cpu_ns(target);
        let start_ns = now_ns();
        let mut open = false;
        for (id, quota) in group {
            if self.class(*id).refused.is_some() {
                continue;
            }
            let base = classes.counters(*id);
            let window = OpenWindow {
                kind,
                start_ns,
                base,
                attached: base,
                base_cpu_ns,
                quota: *quota,
                links: if *id == leader { links } else { 0 },
                group: leader,
            };
            let class = self.class_mut(*id);
            class.state = if tripped {
                LinkState::Closing(window, closing(start_ns, base_cpu_ns, links, true))
            } else {
                LinkState::Open(window)
            };
            if !tripped {
                classes.set_quota(*id, i64::try_from(*quota).unwrap_or(i64::MAX));
                open = true;
                opened.insert(*id);
            }
        }
        // The leader was refused and others were not: its group's links still have to be waited for.
        if self.class(leader).refused.is_some() && open {
            for (id, _) in group {
                if let LinkState::Open(window) = &mut self.class_mut(*id).state {
                    window.links = links;
                    break;
                }
            }
        }
    }

    /// Sets the hits that an open class may take from now on.
    pub fn set_quota(&mut self, id: ClassId, hits: u64) {
        if let LinkState::Open(window) = &mut self.class_mut(id).state {
            window.quota = hits;
            self.kernel.classes().set_quota(id, i64::try_from(hits).unwrap_or(i64::MAX));
        }
    }

    /// Ends the windows of a class and of all that share its links. With [`Ending::AtOnce`] draining ends, too.
    pub fn close(&mut self, target: &Target, id: ClassId, ending: Ending) {
        let group = match &self.class(id).state {
            LinkState::Open(window) => window.group,
            // Whatever it waits for is not worth what the links may do.
            LinkState::Closing(window, _) if ending == Ending::AtOnce => {
                let group = window.group;
                self.end_drain(group);
                return;
            }
            LinkState::Closing(..) | LinkState::Off => return,
        };
        let members: Vec<ClassId> = self.members(group);
        for member in &members {
            self.kernel.classes().set_quota(*member, 0);
        }
        let end_ns = now_ns();
        let end_cpu_ns = self.cpu_ns(target);
        let drain = ending == Ending::Drain && self.in_flight(&members);
        let links = if drain { self.group_links(group) } else { self.release(group) };
        for member in members {
            let ended = closing(end_ns, end_cpu_ns, links, false);
            let draining_until_ns = drain.then_some(end_ns + DRAIN_NS);
            self.end(member, Closing { draining_until_ns, ..ended });
        }
    }

    /// Has the links of a group closed. How many will come back.
    fn release(&mut self, group: ClassId) -> usize {
        let links = match self.governor.table().release(group.0) {
            // The governor was faster: they are tripped and come back all the same, each of them.
            0 => self.group_links(group),
            links => links,
        };
        self.operations += links as u64;
        links
    }

    /// It is worth to wait for timed calls of these classes that the present windows saw begin: they are a part of all that
    /// counts, and what came after the end of the window cost little beside it. Of a hot function with short calls one in
    /// thousands is in flight, while waiting would cost much.
    fn in_flight(&self, members: &[ClassId]) -> bool {
        let (mut wait, mut dear) = (false, false);
        for id in members {
            let class = self.class(*id);
            let (LinkState::Open(window) | LinkState::Closing(window, _)) = &class.state else { continue };
            let counters = self.kernel.classes().counters(*id);
            let seen = counters.since(&window.attached);
            wait |= class.is_timed(window.kind) && seen.open() as f64 > IN_FLIGHT_SHARE * seen.kept as f64;
            dear |= seen.gated > DRAIN_HITS.max(seen.kept / DRAIN_PART);
        }
        wait && !dear
    }

    /// Closes the links of which no call is in flight any more, or that have waited long enough.
    fn end_drains(&mut self) {
        let now = now_ns();
        let waiting: BTreeMap<ClassId, u64> = self
            .classes
            .iter()
            .filter_map(|c| match &c.state {
                LinkState::Closing(window, Closing { draining_until_ns: Some(until), .. }) => {
                    Some((window.group, *until))
                }
                _ => None,
            })
            .collect();
        for (group, until) in waiting {
            let members = self.members(group);
            if now >= until || !self.in_flight(&members) {
                self.end_drain(group);
            }
        }
    }

    /// Has the links of a group that is draining closed. Of one that is not, they are being closed already.
    fn end_drain(&mut self, group: ClassId) {
        let draining = |class: &LiveClass| {
            matches!(&class.state, LinkState::Closing(_, Closing { draining_until_ns: Some(_), .. }))
        };
        let members = self.members(group);
        if !members.iter().any(|id| draining(self.class(*id))) {
            return;
        }
        let links = self.release(group);
        for member in members {
            if let LinkState::Closing(_, closing) = &mut self.class_mut(member).state
                && closing.draining_until_ns.take().is_some()
            {
                closing.links_left = links;
            }
        }
    }

    /// Rows of what the long windows have seen so far; they go on from there as if they had just been opened. What an
    /// agent has counted for hours must not go with it.
    pub fn cut(&mut self, target: &Target, longest_ns: u64) -> Vec<WindowRow> {
        let end_cpu_ns = self.cpu_ns(target);
        let table = self.kernel.classes().clone();
        let mut rows = Vec::new();
        for class in &mut self.classes {
            let LinkState::Open(window) = &class.state else { continue };
            let end_ns = now_ns();
            if window.kind != WindowKind::Trace || end_ns.saturating_sub(window.start_ns) < longest_ns {
                continue;
            }
            let window = window.clone();
            let (end_ns, counters) = counters_at(|| table.counters(class.id));
            let piece = row(class, &window, &closing(end_ns, end_cpu_ns, 0, false), &counters, false);
            // Calls that are open now end in a later piece.
            rows.push(WindowRow { open: 0, ..piece });
            class.state = LinkState::Open(OpenWindow {
                start_ns: end_ns,
                base: counters,
                base_cpu_ns: end_cpu_ns,
                ..window
            });
        }
        rows
    }

    /// Ends every window.
    pub fn close_all(&mut self, target: &Target, ending: Ending) {
        let all: Vec<ClassId> = self.classes.iter().filter(|c| !c.is_off()).map(|c| c.id).collect();
        for id in all {
            self.close(target, id, ending);
        }
    }

    /// Survey windows are open or being closed.
    #[must_use]
    pub fn surveying(&self) -> bool {
        self.classes.iter().any(|c| match &c.state {
            LinkState::Open(w) | LinkState::Closing(w, _) => w.kind == WindowKind::Survey,
            LinkState::Off => false,
        })
    }

    /// The quota last set for an open class; 0 for others.
    #[must_use]
    pub fn quota(&self, id: ClassId) -> u64 {
        match &self.class(id).state {
            LinkState::Open(window) => window.quota,
            LinkState::Closing(..) | LinkState::Off => 0,
        }
    }

    /// Links are open or being closed.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.classes.iter().any(|c| !c.is_off())
    }

    /// The same of all but these.
    #[must_use]
    pub fn busy_but(&self, but: &[ClassId]) -> bool {
        self.classes.iter().any(|c| !c.is_off() && !but.contains(&c.id))
    }

    /// Links are being closed.
    #[must_use]
    pub fn closing(&self) -> bool {
        self.classes.iter().any(|c| matches!(c.state, LinkState::Closing(..)))
    }

    /// Takes note of the links that have been closed since the last call; returns the windows that ended with them.
    pub fn collect(&mut self, target: &Target) -> Vec<Ended> {
        self.end_drains();
        let mut ended = Vec::new();
        for closed in self.governor.table().drain_closed() {
            self.note_closed(target, &closed, &mut ended);
        }
        self.note_open_calls(target, &mut ended);
        ended
    }

    /// What the calls that had not ended had taken so far. Their links are closed, so nothing ends them any more.
    fn note_open_calls(&self, target: &Target, ended: &mut [Ended]) {
        let timed = |e: &Ended| e.row.open > 0 && self.class(ClassId(e.row.class_id)).is_timed(e.row.kind);
        if !ended.iter().any(timed) {
            return;
        }
        // A target that has ended has no threads to ask.
        let Ok(threads) = target.threads() else { return };
        let calls = self.kernel.open_calls(&threads[..threads.len().min(ASKED_THREADS)]);
        for e in ended.iter_mut().filter(|e| timed(e)) {
            let of_class = calls.iter().filter(|c| c.class.0 == e.row.class_id && c.begin_ns < e.watched_ns);
            e.open_calls = of_class
                .map(|c| OpenCallRow {
                    time_ns: e.watched_ns,
                    class_id: e.row.class_id,
                    // OK because thread ids are positive.
                    tid: c.tid as u32,
                    elapsed_ns: e.watched_ns - c.begin_ns,
                })
                .collect();
        }
    }

    fn note_closed(&mut self, target: &Target, closed: &ClosedLink, ended: &mut Vec<Ended>) {
        let group = ClassId(closed.class);
        let tripped = closed.reason != Reason::Released;
        let members = self.members(group);
        for member in members {
            if tripped && self.class(member).is_open() {
                let end_ns = if closed.trip_ns > 0 { closed.trip_ns } else { closed.taken_ns };
                let links = self.group_links(group);
                let end_cpu_ns = self.cpu_ns(target);
                // The others of the group counted on until the link was gone.
                let end_ns = if member.0 == closed.tripped_by { end_ns } else { closed.close_began_ns };
                self.end(member, closing(end_ns, end_cpu_ns, links, true));
            }
            let class = &mut self.classes[member.0 as usize];
            let LinkState::Closing(window, state) = &mut class.state else { continue };
            // Closing takes a grace period, so the trip of a window may be heard of after its time was up: it
            // ended with the trip all the same, or a hot class would look as slow as its quota is small.
            let trip_ns = if closed.reason == Reason::Tripped { closed.trip_ns } else { 0 };
            if (window.start_ns..state.end_ns).contains(&trip_ns) {
                let own = member.0 == closed.tripped_by;
                state.tripped = true;
                state.end_ns = if own { trip_ns } else { closed.close_began_ns.clamp(trip_ns, state.end_ns) };
            }
            // The governor took them while the window drained: nobody releases them again.
            state.draining_until_ns = None;
            state.links_left = state.links_left.saturating_sub(1);
            if state.links_left > 0 {
                continue;
            }
            let (window, state) = (window.clone(), state.clone());
            class.state = LinkState::Off;
            let counters = self.kernel.classes().counters(member);
            let tripped_itself = state.tripped && closed.tripped_by == member.0;
            ended.push(Ended {
                row: row(class, &window, &state, &counters, tripped_itself),
                tripped_itself,
                watched_ns: closed.close_began_ns,
                closed_ns: closed.closed_ns,
                open_calls: Vec::new(),
            });
        }
    }

    fn members(&self, group: ClassId) -> Vec<ClassId> {
        let of = |c: &LiveClass| match &c.state {
            LinkState::Open(w) | LinkState::Closing(w, _) => Some(w.group),
            LinkState::Off => None,
        };
        self.classes.iter().filter(|c| of(c) == Some(group)).map(|c| c.id).collect()
    }

    fn group_links(&self, group: ClassId) -> usize {
        self.members(group)
            .iter()
            .map(|id| match &self.class(*id).state {
                LinkState::Open(w) | LinkState::Closing(w, _) => w.links,
                LinkState::Off => 0,
            })
            .max()
            .unwrap_or(1)
            .max(1)
    }

    fn end(&mut self, id: ClassId, closing: Closing) {
        let class = self.class_mut(id);
        if let LinkState::Open(window) = std::mem::replace(&mut class.state, LinkState::Off) {
            class.state = LinkState::Closing(window, closing);
        }
    }
}

fn link_rank(kind: LinkKind) -> u8 {
    match kind {
        LinkKind::Count => 0,
        LinkKind::Record => 1,
        LinkKind::ExitPair => 2,
        LinkKind::ReturnPair => 3,
        LinkKind::OperationExits => 5,
        LinkKind::OperationReturn => 6,
        LinkKind::OperationBegin => 7,
        LinkKind::OperationEnd => 8,
        LinkKind::Empty | LinkKind::EmptyReturnPair | LinkKind::PlainReturnPair => 4,
    }
}
