//! The threads that close links.
//!
//! `close` of a link takes our program off the site within microseconds, then blocks in RCU for 20 to 90 ms, so neither
//! the governor nor the event loop may do it. Before the breakpoint itself goes, the kernel may have to wait for a grace
//! period, too (it takes a lock of its own for writing, `dup_mmap_sem` in kernel/events/uprobes.c, which is slow unless
//! somebody else has just done so): links that are closed one after the other keep their traps in the text all that
//! time. Measured with 64 links of one function: the last trap was gone after 900 ms with 4 closers, 200 ms with 16, 10 ms
//! with 64, because threads that wait together share a grace period. So there are many; they cost some KiB each.
//!
//! - *urgent*: real-time where a class has tripped, and for links of few sites always: the end of a burst of a hot function is no
//!   trip, and nobody could hurry a closer at ordinary priority while the target pays for hits that count for nothing. Each keeps the
//!   links that it will close (see [`super::keep`]).
//! - *patient*: ordinary priority, for links that no urgent one keeps, above all big ones, which a
//!   real-time thread must not close: unregistering a site costs about 1 us of CPU time.

use super::keep::{self, KeptFds};
use super::links::LinkTable;
use super::priority;
use super::sys::{drain, signal};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

/// Number of urgent closers. A link is closed by the one that keeps it, and if that is busy with another it waits for a grace
/// period: so there are more of them than a session has links (24 of classes of their own, twice as many with exit sites, and those
/// that are shared).
pub const URGENT_CLOSERS: usize = 64;
/// Number of patient closers.
pub const PATIENT_CLOSERS: usize = 16;
/// Stack of the governor and the closers, bytes: their deepest path uses a tenth of it.
pub(super) const STACK_BYTES: usize = 128 * 1024;

/// The running closers. Dropping them waits until everything handed over is closed.
#[derive(Debug)]
pub(super) struct Closers {
    table: Arc<LinkTable>,
    threads: Vec<JoinHandle<()>>,
}

impl Closers {
    pub fn start(table: &Arc<LinkTable>) -> io::Result<Self> {
        let mut closers = Self { table: table.clone(), threads: Vec::new() };
        for index in 0..URGENT_CLOSERS + PATIENT_CLOSERS {
            // A table may outlive one governor and be guarded by the next.
            table.mailboxes()[index].stop.store(false, Ordering::Release);
            let table = table.clone();
            let urgent = index < URGENT_CLOSERS;
            let (ours, theirs) = keep::socket_pair()?;
            let socket = theirs.as_raw_fd();
            let (tell, told) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("tithe-close-{index}"))
                .stack_size(STACK_BYTES)
                .spawn(move || run(&table, index, urgent.then_some(theirs), &tell))?;
            closers.threads.push(thread);
            // OK to fail: then the thread is gone, and keeps nothing.
            let keeps = told.recv().unwrap_or(false);
            if keeps {
                // SAFETY: the thread owns its copy in its own table; this one is nobody's.
                drop(unsafe { OwnedFd::from_raw_fd(socket) });
            }
            closers.table.mailboxes()[index].open_post(keeps.then_some(ours));
        }
        Ok(closers)
    }
}

impl Drop for Closers {
    fn drop(&mut self) {
        for mailbox in self.table.mailboxes() {
            mailbox.close_post();
            mailbox.stop.store(true, Ordering::Release);
            signal(mailbox.wake.as_fd());
        }
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// `socket`: an urgent closer, which gets a table of its own if it can; it `tell`s whether it has.
fn run(table: &LinkTable, index: usize, socket: Option<OwnedFd>, tell: &Sender<bool>) {
    let mailbox = &table.mailboxes()[index];
    let urgent = socket.is_some();
    let mut kept = socket.and_then(|socket| {
        let mut needed = vec![mailbox.wake.as_fd(), table.events_fd(), socket.as_fd()];
        needed.extend(table.expedite().fd());
        let alone = keep::own_table(&needed);
        alone.then(|| KeptFds::new(socket))
    });
    // Whoever waits for it is there.
    let _ = tell.send(kept.is_some());
    if urgent {
        priority::prefault_stack();
        priority::raise();
    }
    loop {
        // Read before the queue is emptied: what is handed over after that wakes us once more.
        let stop = mailbox.stop.load(Ordering::Acquire);
        if let Some(kept) = &mut kept {
            kept.receive();
        }
        for link in mailbox.take_all_in_order() {
            let waits = urgent && LinkTable::may_wait(link);
            if waits {
                priority::lower();
            }
            table.close(link, mailbox, kept.as_mut());
            if waits {
                priority::raise();
            }
        }
        if stop {
            return;
        }
        drain(mailbox.wake.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::governor::tests::lingering;
    use std::os::unix::thread::JoinHandleExt;
    use std::time::{Duration, Instant};

    /// Whether a thread of this process may be real-time at all.
    fn is_granted() -> bool {
        let ask = || {
            let param = libc::sched_param { sched_priority: 1 };
            // SAFETY: 0 means the calling thread, which ends at once; the parameter is read only.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) == 0 }
        };
        std::thread::spawn(ask).join().unwrap()
    }

    /// The kernel's number of a thread: its CPU clock's is the complement of it, above three bits (linux/posix-timers.h).
    fn tid(thread: &JoinHandle<()>) -> i32 {
        let mut clock = 0;
        // SAFETY: the thread has not been joined; the kernel's number of its clock is written to an integer of ours.
        assert_eq!(unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) }, 0);
        !(clock >> 3)
    }

    /// Urgent ones that are not real-time.
    fn lowered(closers: &Closers) -> usize {
        // SAFETY: asks for the policy of a thread that lives.
        let policy = |thread| unsafe { libc::sched_getscheduler(tid(thread)) } & !libc::SCHED_RESET_ON_FORK;
        closers.threads[..URGENT_CLOSERS].iter().map(policy).filter(|p| *p != libc::SCHED_FIFO).count()
    }

    fn becomes(closers: &Closers, wanted: usize) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            // They are not real-time from the first instant.
            if lowered(closers) == wanted {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    #[test]
    fn a_released_link_of_few_sites_is_closed_in_real_time_and_one_of_many_is_not() {
        if !is_granted() {
            eprintln!("SKIP real-time priority is refused");
            return;
        }
        let table = Arc::new(LinkTable::new(8).unwrap());
        let closers = Closers::start(&table).unwrap();
        assert!(becomes(&closers, 0), "{} closers are not real-time", lowered(&closers));
        for (class, sites, expected) in [(1, 1, 0), (2, 32, 0), (3, 33, 1)] {
            let (peer, link) = lingering();
            table.begin(class);
            table.register(class, link, sites);
            table.release(class);
            // Long enough for the closer to be in `close`, which takes a minute.
            std::thread::sleep(Duration::from_millis(50));
            assert!(becomes(&closers, expected), "{sites} sites: {} lowered", lowered(&closers));
            assert_eq!(table.closing(), 1, "{sites} sites");
            // Ends it.
            drop(peer);
            let begun = Instant::now();
            while table.closing() > 0 && begun.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        assert!(becomes(&closers, 0));
        drop(closers);
    }
}
