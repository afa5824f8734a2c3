//! The table through which links change hands: agent → table → closer → agent, without locks.
//!
//! Each class belongs to a *group* (its own, unless it joined another), and a group holds the link descriptors that
//! must go when one of its classes trips. A link is a heap node that the agent makes and frees; in between it is
//! passed on by swapping pointers, so the governor neither allocates nor frees nor waits.
//!
//! ```text
//! group head:  null ──register──► link ► link ► null ──trip (swap)──► TRIPPED ──begin──► null
//! ```
//! A link that is registered while the head says TRIPPED (the class exploded while it was being attached) goes to the
//! closers at once.

use super::beside::BesideCounts;
use super::closed::{CloseReason, ClosedLink};
use super::closers::{PATIENT_CLOSERS, URGENT_CLOSERS};
use super::expedite::Expedite;
use super::keep::KeptFds;
use super::mailbox::{Chain, Link, Mailbox, Place, Stack, tripped};
use super::sys::{drain, eventfd, now_ns, signal};
use profiler_core::burst::FRESH_NS;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Links of more sites than this are closed by patient closers: about 4 ms of CPU time.
const URGENT_SITES: u32 = 4000;
/// Links of more sites than this are closed at ordinary priority when they are released. A site costs about 1 us of CPU time, and more for
/// each process that maps its file, which a link does not know.
const WAITING_SITES: u32 = 32;

/// What became of a link that was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The table holds it.
    Held,
    /// The class tripped while the link was being made: it is being closed.
    Tripped,
}

/// What became of an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tripped {
    Taken { taken_ns: u64 },
    Repeated,
    Stale,
    Unknown,
}

#[derive(Debug, Default)]
struct Group {
    /// null, a chain of links, or TRIPPED.
    head: AtomicPtr<Link>,
    /// Alarms from before this time belong to an earlier attachment.
    begun_ns: AtomicU64,
    /// The trip that put TRIPPED there.
    trip_ns: AtomicU64,
    tripped_by: AtomicU32,
}

/// The links of all classes.
#[derive(Debug)]
pub struct LinkTable {
    groups: Box<[Group]>,
    group_of: Box<[AtomicU32]>,
    mailboxes: Box<[Mailbox]>,
    closed: Stack,
    drilled: Stack,
    events: OwnedFd,
    close_start_max_ns: AtomicU64,
    /// Numbers of links that closers keep.
    numbers: AtomicU64,
    /// Releases go to all closers, urgent ones too.
    ending: AtomicBool,
    expedite: Expedite,
    pub(super) beside: Option<BesideCounts>,
}

// SAFETY: links are reached through atomics only, and a link belongs to one thread at a time.
unsafe impl Send for LinkTable {}
// SAFETY: as above.
unsafe impl Sync for LinkTable {}

impl LinkTable {
    /// A table for classes `0..classes`, each its own group.
    ///
    /// # Errors
    /// No descriptors are to be had.
    pub fn new(classes: u32) -> io::Result<Self> {
        // One more for the self-test.
        let all = 0..=classes;
        Ok(Self {
            groups: all.clone().map(|_| Group::default()).collect(),
            group_of: all.map(AtomicU32::new).collect(),
            mailboxes: (0..URGENT_CLOSERS + PATIENT_CLOSERS)
                .map(|_| Mailbox::new())
                .collect::<io::Result<_>>()?,
            closed: Stack::default(),
            drilled: Stack::default(),
            events: eventfd(libc::EFD_NONBLOCK)?,
            close_start_max_ns: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            expedite: Expedite::default(),
            beside: None,
        })
    }

    /// Grace periods of the whole machine are shortened while links of a class are closed that exploded (see
    /// `governor/expedite.rs`), if the kernel lets us.
    #[must_use]
    pub fn expedited(mut self) -> Self {
        self.expedite = Expedite::new();
        self
    }

    /// The same with a file in place of the kernel's switch.
    #[cfg(test)]
    pub(super) fn expedited_by(mut self, switch: std::fs::File) -> Self {
        self.expedite = Expedite::of(switch);
        self
    }

    pub(super) fn expedite(&self) -> &Expedite {
        &self.expedite
    }

    /// From now on a trip of `class` closes the links of `group`: for a link that several classes share. Any class
    /// number serves as the group's. Call it while nothing of either is attached.
    ///
    /// # Panics
    /// If one of the two is beyond the table.
    pub fn join(&self, class: u32, group: u32) {
        assert!((group as usize) < self.groups.len(), "group {group} is beyond the table");
        self.group_of[class as usize].store(group, Ordering::Release);
    }

    /// An attachment of `class` begins: call it *before* its quota is set and its link is made. Alarms from
    /// before this moment no longer count, an earlier trip is forgotten.
    ///
    /// Wait until the links of the earlier attachment are closed ([`LinkTable::drain_closed`]): their late hits would
    /// use up the new quota. An alarm that the governor is handling in this very moment may still count: then the new
    /// link is closed as tripped, and can be attached again. One of another class of the same group may be taken
    /// for stale: it repeats while hits go on.
    ///
    /// # Panics
    /// If the class is beyond the table.
    pub fn begin(&self, class: u32) {
        let group = self.group(class).expect("the class is in the table");
        group.begun_ns.store(now_ns(), Ordering::Release);
        self.beside.iter().for_each(|counts| counts.forget(class));
        // Links of other classes of the group, or of this one, stay.
        let _ = group.head.compare_exchange(tripped(), ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Hand a link over to the table. It must be the only descriptor of that link: the kernel detaches when the last
    /// one is closed. `sites`: from how many its closing takes a program.
    ///
    /// # Panics
    /// If the class is beyond the table.
    pub fn register(&self, class: u32, fd: OwnedFd, sites: u32) -> Registered {
        self.register_all(class, [(fd, sites)])
    }

    /// [`LinkTable::register`] for several descriptors that belong together (an entry link and an exit link), in the
    /// order in which they are to be closed, each with its sites. Closing begins in that order; they are closed side by side.
    ///
    /// # Panics
    /// If the class is beyond the table.
    pub fn register_all(
        &self,
        class: u32,
        parts: impl IntoIterator<Item = (OwnedFd, u32), IntoIter: DoubleEndedIterator>,
    ) -> Registered {
        let group = self.group(class).expect("the class is in the table");
        let record = ClosedLink {
            class,
            reason: CloseReason::Released,
            tripped_by: class,
            trip_ns: 0,
            attached_ns: now_ns(),
            taken_ns: 0,
            close_began_ns: 0,
            closed_ns: 0,
            expedited: false,
        };
        // The first of the chain is the first to be closed: so it is built from the end.
        let mut first: *mut Link = ptr::null_mut();
        let mut last: *mut Link = ptr::null_mut();
        for (fd, sites) in parts.into_iter().rev() {
            let at = self.place(fd, sites);
            let link = Box::into_raw(Box::new(Link { at, sites, record, next: first }));
            if last.is_null() {
                last = link;
            }
            first = link;
        }
        if last.is_null() {
            return if self.is_tripped(class) { Registered::Tripped } else { Registered::Held };
        }
        let mut head = group.head.load(Ordering::Acquire);
        loop {
            if head == tripped() {
                let (trip_ns, by) =
                    (group.trip_ns.load(Ordering::Relaxed), group.tripped_by.load(Ordering::Relaxed));
                // SAFETY: the chain is ours; an earlier round may have tied it to a chain that is gone.
                unsafe { (*last).next = ptr::null_mut() };
                self.hand_over_chain(Chain(first), CloseReason::TrippedWhileAttaching, by, trip_ns, now_ns());
                return Registered::Tripped;
            }
            // SAFETY: the chain is ours until the exchange succeeds.
            unsafe { (*last).next = head };
            match group.head.compare_exchange_weak(head, first, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Registered::Held,
                Err(now) => head = now,
            }
        }
    }

    /// Sends a link to the closer that will close it, the one that keeps fewest.
    fn place(&self, fd: OwnedFd, sites: u32) -> Place {
        let homes = self.mailboxes[..URGENT_CLOSERS].iter().enumerate();
        let home =
            homes.min_by_key(|(_, m)| m.held.load(Ordering::Relaxed)).filter(|_| sites <= URGENT_SITES);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        match home {
            // Ours is then not the last descriptor, and closing it takes no time.
            Some((home, mailbox)) if mailbox.send(number, fd.as_fd()) => Place::Kept { home, number },
            _ => Place::Here(fd.into_raw_fd()),
        }
    }

    /// The gates of an attached class's group are about to open: alarms from before this moment, which hits raised that were
    /// turned away while the links were being made, no longer count. `false`: one has been heeded already, and the links are
    /// being closed. One that the governor is handling in this very moment may still count.
    ///
    /// # Panics
    /// If the class is beyond the table.
    #[must_use]
    pub fn open_gates(&self, class: u32) -> bool {
        let group = self.group(class).expect("the class is in the table");
        group.begun_ns.store(now_ns(), Ordering::Release);
        group.head.load(Ordering::Acquire) != tripped()
    }

    /// Close the links of the class's group, without hurry. How many there were; each comes back through
    /// [`LinkTable::drain_closed`].
    ///
    /// # Panics
    /// If the class is beyond the table.
    pub fn release(&self, class: u32) -> usize {
        let group = self.group(class).expect("the class is in the table");
        let mut head = group.head.load(Ordering::Acquire);
        while head != tripped() {
            match group.head.compare_exchange_weak(head, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return self.hand_over_chain(Chain(head), CloseReason::Released, class, 0, now_ns()),
                Err(now) => head = now,
            }
        }
        0
    }

    /// [`LinkTable::release`] for every class, with all closers: for the end of a session. How many links there were.
    pub fn release_all(&self) -> usize {
        self.ending.store(true, Ordering::Relaxed);
        let links =
            (0..self.group_of.len()).map(|class| self.release(u32::try_from(class).unwrap_or(0))).sum();
        self.ending.store(false, Ordering::Relaxed);
        links
    }

    /// Whether the class has tripped since its last [`LinkTable::begin`].
    ///
    /// # Panics
    /// If the class is beyond the table.
    #[must_use]
    pub fn is_tripped(&self, class: u32) -> bool {
        self.group(class).expect("the class is in the table").head.load(Ordering::Acquire) == tripped()
    }

    /// Becomes readable when a link has been closed; for the agent's event loop. [`LinkTable::drain_closed`] sets it
    /// back.
    #[must_use]
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// The links closed since the last call, in the order in which their closing ended.
    pub fn drain_closed(&self) -> Vec<ClosedLink> {
        drain(self.events.as_fd());
        let mut closed: Vec<ClosedLink> = self.closed.take_all().map(free).collect();
        closed.reverse();
        closed
    }

    /// Links handed to closers that are not closed yet.
    #[must_use]
    pub fn closing(&self) -> u32 {
        self.mailboxes.iter().map(|m| m.load.load(Ordering::Relaxed)).sum()
    }

    /// On the governor thread: the class's quota is used up.
    pub(super) fn trip(&self, class: u32, trip_ns: u64) -> Tripped {
        let Some(group) = self.group(class) else { return Tripped::Unknown };
        if trip_ns < group.begun_ns.load(Ordering::Acquire) {
            return Tripped::Stale;
        }
        if group.head.load(Ordering::Acquire) == tripped() {
            return Tripped::Repeated;
        }
        group.trip_ns.store(trip_ns, Ordering::Relaxed);
        group.tripped_by.store(class, Ordering::Relaxed);
        let head = group.head.swap(tripped(), Ordering::AcqRel);
        let taken_ns = now_ns();
        // Of a link made just before, the breakpoint goes at once. What counts is the attach, however late the gates opened, and the
        // closing, however late the trip was heard of.
        let old = |record: &ClosedLink| taken_ns.saturating_sub(record.attached_ns) > FRESH_NS;
        // OK because only this thread writes TRIPPED, and it was not there.
        for link in Chain(head) {
            // SAFETY: the link is ours until it is handed over.
            unsafe { (*link).record.expedited = old(&(*link).record) };
            self.hand_over(link, CloseReason::Tripped, class, trip_ns, taken_ns);
        }
        if let Some(leader) = self.group_of.get(class as usize) {
            self.note_end(leader.load(Ordering::Acquire));
        }
        Tripped::Taken { taken_ns }
    }

    fn hand_over_chain(
        &self,
        chain: Chain,
        reason: CloseReason,
        by: u32,
        trip_ns: u64,
        taken_ns: u64,
    ) -> usize {
        chain.map(|link| self.hand_over(link, reason, by, trip_ns, taken_ns)).count()
    }

    /// Put a link that we own into the mailbox of the closer with the least to do.
    fn hand_over(&self, link: *mut Link, reason: CloseReason, by: u32, trip_ns: u64, taken_ns: u64) {
        // SAFETY: the link is ours until it is pushed.
        let (sites, at) = unsafe {
            let record = &mut (*link).record;
            record.reason = reason;
            // Its hits are turned away by the hundred thousand, and the kernel may have a grace period to wait for.
            record.expedited |= reason == CloseReason::TrippedWhileAttaching;
            record.tripped_by = by;
            record.trip_ns = trip_ns;
            record.taken_ns = taken_ns;
            ((*link).sites, (*link).at)
        };
        let (urgent, patient) = self.mailboxes.split_at(URGENT_CLOSERS);
        let hurry = reason != CloseReason::Released && sites <= URGENT_SITES;
        // At the end everything is free to help.
        let boxes = match (hurry, self.ending.load(Ordering::Relaxed)) {
            (_, true) => &self.mailboxes[..],
            (true, _) => urgent,
            (false, _) => patient,
        };
        let least = |boxes: &'_ [Mailbox]| {
            let here = boxes.iter().enumerate().filter(|(_, m)| !m.apart.load(Ordering::Acquire));
            here.min_by_key(|(_, m)| m.load.load(Ordering::Relaxed)).map(|(index, _)| index)
        };
        // What a closer keeps nobody else has; what is in the main table only those can close that share it, the patient ones always.
        let mailbox = match at {
            Place::Kept { home, .. } => &self.mailboxes[home],
            Place::Here(_) => match least(boxes) {
                Some(index) => &boxes[index],
                None => &patient[least(patient).unwrap_or(0)],
            },
        };
        mailbox.load.fetch_add(1, Ordering::Relaxed);
        mailbox.queue.push(link);
        signal(mailbox.wake.as_fd());
    }

    /// Whether a link that a closer has been given may be closed at ordinary priority: released, and of many sites. One of few costs a
    /// real-time thread little CPU time, and the target may be hitting it.
    pub(super) fn may_wait(link: *mut Link) -> bool {
        // SAFETY: the mailbox gave the caller the link.
        unsafe { (*link).record.reason == CloseReason::Released && (*link).sites > WAITING_SITES }
    }

    /// On a closer: close it, note when, and send it back to the agent. `mailbox`: where it came from. `kept`: what this closer keeps.
    pub(super) fn close(&self, link: *mut Link, mailbox: &Mailbox, kept: Option<&mut KeptFds>) {
        // SAFETY: the mailbox gave us the link; its descriptor is owned by it and closed here, once.
        unsafe {
            // As it was wished, and as it is.
            (*link).record.expedited = (*link).record.expedited && self.expedite.begin();
            (*link).record.close_began_ns = now_ns();
            match (*link).at {
                Place::Here(fd) => drop(OwnedFd::from_raw_fd(fd)),
                Place::Kept { home, number } => {
                    drop(kept.and_then(|kept| kept.take(number)));
                    self.mailboxes[home].held.fetch_sub(1, Ordering::Relaxed);
                }
            }
            if (*link).record.expedited {
                self.expedite.end();
            }
            let record = &mut (*link).record;
            record.closed_ns = now_ns();
            // Before the agent can see it: who has drained all that it handed over finds nothing closing.
            mailbox.load.fetch_sub(1, Ordering::Relaxed);
            if record.class == self.drill_class() {
                self.drilled.push(link);
                return;
            }
            if record.reason == CloseReason::Tripped {
                let took = record.close_began_ns.saturating_sub(record.trip_ns);
                self.close_start_max_ns.fetch_max(took, Ordering::Relaxed);
            }
        }
        self.closed.push(link);
        signal(self.events.as_fd());
    }

    pub(super) fn mailboxes(&self) -> &[Mailbox] {
        &self.mailboxes
    }

    /// The hidden class of the self-test.
    pub(super) fn drill_class(&self) -> u32 {
        // OK because the table was made for a u32 of classes.
        u32::try_from(self.groups.len() - 1).unwrap_or(u32::MAX)
    }

    /// The self-test's link, once it is closed.
    pub(super) fn take_drill(&self) -> Option<ClosedLink> {
        self.drilled.take_all().map(free).last()
    }

    pub(super) fn close_start_max_ns(&self) -> u64 {
        self.close_start_max_ns.load(Ordering::Relaxed)
    }

    pub(super) fn reset_statistics(&self) {
        self.close_start_max_ns.store(0, Ordering::Relaxed);
    }

    fn group(&self, class: u32) -> Option<&Group> {
        let group = self.group_of.get(class as usize)?.load(Ordering::Acquire);
        self.groups.get(group as usize)
    }
}

/// Give a link's memory back; what remains is what happened to it.
fn free(link: *mut Link) -> ClosedLink {
    // SAFETY: made by Box::into_raw in `register`, taken out of its stack, so ours alone.
    unsafe { Box::from_raw(link) }.record
}

impl Drop for LinkTable {
    fn drop(&mut self) {
        // The closers are gone, or hold a reference. What nobody closed is closed here, blocking.
        let heads = self.groups.iter().map(|g| g.head.swap(ptr::null_mut(), Ordering::Acquire));
        let held = heads.filter(|h| *h != tripped()).flat_map(Chain);
        let waiting = self.mailboxes.iter().flat_map(|m| m.queue.take_all());
        for link in held.chain(waiting) {
            // SAFETY: taken out of its head or mailbox, so ours alone; the descriptor is closed once. One that a closer kept went
            // with the closer.
            if let Place::Here(fd) = unsafe { (*link).at } {
                // SAFETY: as above.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            free(link);
        }
        for link in self.closed.take_all().chain(self.drilled.take_all()) {
            free(link);
        }
    }
}
