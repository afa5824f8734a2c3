//! The threads that close links.
//!
//! `close` of a link takes our program off the site within microseconds, then blocks in RCU for 20 to 90 ms, so neither
//! the governor nor the event loop may do it. Before the breakpoint itself goes, the kernel may have to wait for a grace
//! period, too (it takes a lock of its own for writing, `dup_mmap_sem` in kernel/events/uprobes.c, which is slow unless
//! somebody else has just done so): links that are closed one after the other keep their traps in the text all that
//! time. Measured with 64 links of one function: the last trap was gone after 900 ms with 4 closers, 200 ms with 16, 10 ms
//! with 64, because threads that wait together share a grace period. So there are many; they cost some KiB each.
//!
//! - *urgent*: real-time, for the links of classes that tripped.
//! - *patient*: ordinary priority, for everything that may wait (the agent's own detaching), and for big links, which a
//!   real-time thread must not close: unregistering a function costs about 1 us of CPU time.

use super::links::{LinkTable, Mailbox};
use super::priority;
use super::sys::{drain, signal};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// Number of urgent closers: as many links of exploding classes go together.
pub const URGENT_CLOSERS: usize = 32;
/// Number of patient closers.
pub const PATIENT_CLOSERS: usize = 32;
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
            let thread = std::thread::Builder::new()
                .name(format!("tithe-close-{index}"))
                .stack_size(STACK_BYTES)
                .spawn(move || run(&table, &table.mailboxes()[index], urgent))?;
            closers.threads.push(thread);
        }
        Ok(closers)
    }
}

impl Drop for Closers {
    fn drop(&mut self) {
        for mailbox in self.table.mailboxes() {
            mailbox.stop.store(true, Ordering::Release);
            signal(mailbox.wake.as_fd());
        }
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn run(table: &LinkTable, mailbox: &Mailbox, urgent: bool) {
    if urgent {
        priority::prefault_stack();
        priority::raise();
    }
    loop {
        // Read before the queue is emptied: what is handed over after that wakes us once more.
        let stop = mailbox.stop.load(Ordering::Acquire);
        for link in mailbox.take_all_in_order() {
            table.close(link);
            mailbox.load.fetch_sub(1, Ordering::Relaxed);
        }
        if stop {
            return;
        }
        drain(mailbox.wake.as_fd());
    }
}
