//! How links are passed on: nodes, stacks of them, and the inboxes of the closers.

use super::closed::ClosedLink;
use super::keep;
use super::sys::{eventfd, signal};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// A link on its way. Owned by whoever holds the pointer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) at: Place,
    pub(super) sites: u32,
    pub(super) record: ClosedLink,
    pub(super) next: *mut Link,
}

/// Where a link's descriptor is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// In the main table.
    Here(RawFd),
    /// Closer `home` keeps it under this number.
    Kept { home: usize, number: u64 },
}

/// Head of a group whose class has tripped.
pub(super) fn tripped() -> *mut Link {
    // Never dereferenced; no allocation has this address.
    ptr::without_provenance_mut(1)
}

/// A chain of links that we own.
#[derive(Debug)]
pub(super) struct Chain(pub(super) *mut Link);

impl Iterator for Chain {
    type Item = *mut Link;

    fn next(&mut self) -> Option<*mut Link> {
        if self.0.is_null() {
            return None;
        }
        let link = self.0;
        // SAFETY: the chain is ours alone since it was swapped out of its head; its nodes are live boxes.
        unsafe {
            self.0 = (*link).next;
            (*link).next = ptr::null_mut();
        }
        Some(link)
    }
}

/// A stack: many push, one takes everything. Taking all at once has no ABA problem.
#[derive(Debug, Default)]
pub(super) struct Stack(AtomicPtr<Link>);

impl Stack {
    pub(super) fn push(&self, link: *mut Link) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the link is ours until the exchange succeeds.
            unsafe { (*link).next = head };
            match self.0.compare_exchange_weak(head, link, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    pub(super) fn take_all(&self) -> Chain {
        Chain(self.0.swap(ptr::null_mut(), Ordering::Acquire))
    }
}

/// A closer's inbox.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) queue: Stack,
    pub(super) wake: OwnedFd,
    /// Links handed over and not yet closed.
    pub(super) load: AtomicU32,
    /// Links kept for it, handed over or not.
    pub(super) held: AtomicU32,
    /// This closer has a descriptor table of its own, and cannot close what is in the main one.
    pub(super) apart: AtomicBool,
    /// Where links are sent that this closer keeps; `None`: it works in the main table. Only whoever registers a link sends: the opener.
    post: Mutex<Option<OwnedFd>>,
    pub(super) stop: AtomicBool,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Stack::default(),
            wake: eventfd(0)?,
            load: AtomicU32::new(0),
            held: AtomicU32::new(0),
            apart: AtomicBool::new(false),
            post: Mutex::new(None),
            stop: AtomicBool::new(false),
        })
    }

    /// A closer begins; links may be sent to it if it has a table of its own.
    pub(super) fn open_post(&self, post: Option<OwnedFd>) {
        self.held.store(0, Ordering::Relaxed);
        self.apart.store(post.is_some(), Ordering::Release);
        *self.post.lock().unwrap_or_else(PoisonError::into_inner) = post;
    }

    /// The closer is about to end: nothing more is sent to it.
    pub(super) fn close_post(&self) {
        *self.post.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn send(&self, number: u64, fd: BorrowedFd<'_>) -> bool {
        let post = self.post.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = post.as_ref().is_some_and(|post| keep::send(post.as_fd(), number, fd).is_ok());
        if sent {
            self.held.fetch_add(1, Ordering::Relaxed);
            // It takes it out of the socket.
            signal(self.wake.as_fd());
        }
        sent
    }

    /// What was handed over, oldest first.
    pub(super) fn take_all_in_order(&self) -> impl Iterator<Item = *mut Link> + use<> {
        let mut reversed = ptr::null_mut();
        for link in self.queue.take_all() {
            // SAFETY: the chain gave us this link.
            unsafe { (*link).next = reversed };
            reversed = link;
        }
        Chain(reversed)
    }
}
