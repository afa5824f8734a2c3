//! Pages of text that probes make private, against the memory that is left to the target.
//!
//! The kernel writes a breakpoint into a copy of the page (`uprobe_write` in kernel/events/uprobes.c). The copy is
//! anonymous memory, charged to the memory cgroup of the process whose page it is. Where that cgroup is at its limit
//! the kernel ends one of its processes. When the last breakpoint of a page is taken out the kernel may give the copy back
//! or keep it (6.18 kept 585 of 600), so all pages that ever held a probe are counted, once.

use std::collections::BTreeSet;

/// Size of a page of x86-64, bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Address space below one page of the page table, bytes.
const TABLE_SPAN_BYTES: u64 = 2 << 20;
/// Pages that the kernel adds to a process with probes: one for instructions that are stepped, one for the trampoline of
/// five-byte nops.
const EXTRA_PAGES: u64 = 2;
/// Probes may take one part in so many of the headroom that there would be without them.
pub const HEADROOM_PART: u64 = 2;

/// A page of a module: the module's number, the page's number in its file.
pub type Page = (u32, u64);

/// The page of a module in which a site at `offset` (bytes in the file) lies.
#[must_use]
pub fn page_of(module: u32, offset: u64) -> Page {
    (module, offset / PAGE_BYTES)
}

/// What a memory cgroup, or the machine, has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headroom {
    /// Where it was read: the folder of the cgroup, or `/proc/meminfo`.
    pub path: String,
    /// The file that holds the limit.
    pub limit_file: String,
    /// The limit, bytes.
    pub limit_bytes: u64,
    /// What is charged against it, bytes.
    pub usage_bytes: u64,
    /// File cache in that which the kernel can give back, bytes.
    pub reclaimable_bytes: u64,
}

impl Headroom {
    /// `limit - usage + reclaimable`, bytes; 0 where the usage is above.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let used = self.usage_bytes.saturating_sub(self.reclaimable_bytes);
        self.limit_bytes.saturating_sub(used)
    }
}

/// Distinct pages that hold or held probes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrivatePages {
    pages: BTreeSet<Page>,
    tables: BTreeSet<Page>,
}

impl PrivatePages {
    /// Adds pages.
    pub fn extend(&mut self, pages: impl IntoIterator<Item = Page>) {
        for (module, page) in pages {
            self.pages.insert((module, page));
            self.tables.insert((module, page * PAGE_BYTES / TABLE_SPAN_BYTES));
        }
    }

    /// This page is among them.
    #[must_use]
    pub fn contains(&self, page: Page) -> bool {
        self.pages.contains(&page)
    }

    /// Number of distinct pages.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// No page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// What they take, bytes: the pages, their page tables, and the pages that the kernel adds for stepping.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        (self.len() + self.tables.len() as u64 + EXTRA_PAGES) * PAGE_BYTES
    }

    /// What these pages would add, bytes.
    fn added_bytes(&self, pages: &[Page]) -> u64 {
        let new = |set: &BTreeSet<Page>, of: &dyn Fn(&Page) -> Page| {
            let fresh: BTreeSet<Page> = pages.iter().map(of).filter(|p| !set.contains(p)).collect();
            fresh.len() as u64
        };
        let pages_new = new(&self.pages, &|p| *p);
        let tables_new = new(&self.tables, &|p| (p.0, p.1 * PAGE_BYTES / TABLE_SPAN_BYTES));
        let extra = if self.is_empty() && pages_new > 0 { EXTRA_PAGES } else { 0 };
        (pages_new + tables_new + extra) * PAGE_BYTES
    }
}

/// What probes may take together, bytes, where `headroom_bytes` are left and `taken_bytes` of what is used are theirs:
/// `(headroom + taken) / 2`.
#[must_use]
pub fn allowed_bytes(headroom_bytes: u64, taken_bytes: u64) -> u64 {
    headroom_bytes.saturating_add(taken_bytes) / HEADROOM_PART
}

/// Which of `wanted` (the pages of one function each, most important first) fit beside what is `taken`, within
/// `allowed` bytes: by index. What does not fit is skipped, and the next is tried.
#[must_use]
pub fn admit(taken: &PrivatePages, wanted: &[Vec<Page>], allowed: u64) -> Vec<bool> {
    let mut taken = taken.clone();
    let mut bytes = taken.bytes();
    wanted
        .iter()
        .map(|pages| {
            let more = taken.added_bytes(pages);
            let fits = more == 0 || bytes.saturating_add(more) <= allowed;
            if fits {
                bytes += more;
                taken.extend(pages.iter().copied());
            }
            fits
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn headroom(limit: u64, usage: u64, reclaimable: u64) -> u64 {
        Headroom {
            path: "/sys/fs/cgroup/x".into(),
            limit_file: "memory.max".into(),
            limit_bytes: limit,
            usage_bytes: usage,
            reclaimable_bytes: reclaimable,
        }
        .bytes()
    }

    #[test]
    fn headroom_is_limit_less_usage_plus_what_can_be_given_back() {
        assert_eq!(headroom(64 * MIB, 60 * MIB, 2 * MIB), 6 * MIB);
        // Over its limit, and a cache that is read a little later than the usage.
        assert_eq!(headroom(64 * MIB, 70 * MIB, MIB), 0);
        assert_eq!(headroom(64 * MIB, MIB, 2 * MIB), 64 * MIB);
        assert_eq!(headroom(u64::MAX, 0, u64::MAX), u64::MAX);
        assert_eq!(allowed_bytes(u64::MAX, 8), u64::MAX / 2);
    }

    #[test]
    fn pages_are_counted_once_with_their_tables() {
        let mut pages = PrivatePages::default();
        assert_eq!(pages.bytes(), 0);
        pages.extend([page_of(0, 0x1000), page_of(0, 0x1fff), page_of(1, 0x1000)]);
        assert_eq!(pages.len(), 2);
        assert_eq!(pages.bytes(), (2 + 2 + EXTRA_PAGES) * PAGE_BYTES);
        // Another page below the same table.
        pages.extend([page_of(0, 0x2000)]);
        assert_eq!(pages.bytes(), (3 + 2 + EXTRA_PAGES) * PAGE_BYTES);
        pages.extend([page_of(0, 2 * MIB)]);
        assert_eq!(pages.bytes(), (4 + 3 + EXTRA_PAGES) * PAGE_BYTES);
    }

    #[test]
    fn functions_are_attached_up_to_half_of_the_headroom() {
        // 600 functions on 600 pages, 1 MiB left: 128 pages may be taken, 2 of them for stepping and 1 for a table.
        let wanted: Vec<Vec<Page>> = (0..600).map(|i| vec![page_of(0, i * PAGE_BYTES)]).collect();
        let none = PrivatePages::default();
        let fits = admit(&none, &wanted, allowed_bytes(MIB, 0));
        assert_eq!(fits.iter().filter(|f| **f).count(), 125);
        assert!(fits[..125].iter().all(|f| *f));
        assert_eq!(admit(&none, &wanted, 0).iter().filter(|f| **f).count(), 0);
        assert!(admit(&none, &wanted, u64::MAX).iter().all(|f| *f));
        // Attached in two steps it is the same: what the first took has left the headroom, and is known to be ours.
        let mut first = PrivatePages::default();
        first.extend(wanted[..100].iter().flatten().copied());
        let left = MIB - first.bytes();
        let fits = admit(&first, &wanted[100..], allowed_bytes(left, first.bytes()));
        assert_eq!(fits.iter().filter(|f| **f).count(), 25);
    }

    #[test]
    fn what_lies_on_a_page_that_is_private_already_costs_nothing() {
        let mut attached = PrivatePages::default();
        attached.extend([page_of(0, 0x1000)]);
        let wanted = [vec![page_of(0, 0x2000)], vec![page_of(0, 0x1800)]];
        assert_eq!(admit(&attached, &wanted, 0), [false, true]);
    }
}
