//! Control, quotas, counters and histograms of all classes, through shared memory: no system call, no allocation.

use super::KernelError;
use super::memory::{Layout, MappedArray};
use profiler_common::class::{
    ClassControl, ClassCounters, FLAG_FILTER_TARGETS, NO_HISTOGRAM, Quota, RAN_KNOWN,
};
use profiler_common::histogram::{BUCKETS, HistogramSlot, SLOT_BUCKETS, SLOTS};
use profiler_common::presence::Presence;
use profiler_common::settings::{GlobalCounters, ProgressCounters, Settings};
use profiler_common::thread::{GENERATION, THREAD_CELLS, thread_cell};
use profiler_core::class::ClassId;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Handle on the classes in the kernel. Cheap to clone; all methods may be called from any thread, and all but
/// [`histogram`](Self::histogram) and the leases neither allocate nor block nor enter the kernel.
#[derive(Clone)]
pub struct ClassTable {
    shared: Arc<Shared>,
}

struct Shared {
    layout: Layout,
    control: MappedArray<ClassControl>,
    quota: MappedArray<Quota>,
    counters: MappedArray<ClassCounters>,
    histograms: MappedArray<HistogramSlot>,
    global: MappedArray<GlobalCounters>,
    progress: MappedArray<ProgressCounters>,
    thread_hits: MappedArray<u64>,
    settings: MappedArray<Settings>,
    /// Flags that every class gets (tier C: filter in BPF).
    forced_flags: std::sync::atomic::AtomicU32,
    /// First slots of the histograms that no class has.
    free_histograms: Mutex<Vec<u32>>,
}

/// Words of a [`Quota`].
const ENTRIES: usize = 0;
const ENDS: usize = 1;
const FIRST: usize = 2;
const RAN: usize = 4;
const RAN_THREAD: usize = 7;
const _: () = assert!(
    std::mem::offset_of!(Quota, remaining) == ENTRIES * 8
        && std::mem::offset_of!(Quota, ends) == ENDS * 8
        && std::mem::offset_of!(Quota, first_ns) == FIRST * 8
        && std::mem::offset_of!(Quota, first) + std::mem::offset_of!(Presence, used_ns) == RAN * 8
        && std::mem::offset_of!(Quota, first) + std::mem::offset_of!(Presence, cpu) == RAN_THREAD * 8
);

/// A histogram's memory in the kernel, given back on drop.
pub struct HistogramLease {
    table: ClassTable,
    first_slot: u32,
}

impl HistogramLease {
    /// What goes into [`ClassControl::histogram`].
    #[must_use]
    pub fn first_slot(&self) -> u32 {
        self.first_slot
    }
}

impl Drop for HistogramLease {
    fn drop(&mut self) {
        self.table.free().push(self.first_slot);
    }
}

impl ClassTable {
    pub(super) fn new<'a>(
        layout: Layout,
        fd: impl Fn(&str) -> Option<BorrowedFd<'a>>,
    ) -> Result<Self, KernelError> {
        fn map<'a, T: aya::Pod>(
            fd: &impl Fn(&str) -> Option<BorrowedFd<'a>>,
            name: &'static str,
            elements: u32,
        ) -> Result<MappedArray<T>, KernelError> {
            let fd = fd(name).ok_or_else(|| KernelError::Object(format!("no map {name}")))?;
            MappedArray::new(fd, elements).map_err(|source| KernelError::Map { name, source })
        }
        let stripes = layout.stripes;
        let shared = Shared {
            layout,
            control: map(&fd, "CONTROL", layout.max_classes)?,
            quota: map(&fd, "QUOTA", layout.max_classes)?,
            counters: map(&fd, "COUNTERS", layout.max_classes * stripes)?,
            histograms: map(&fd, "HISTOGRAMS", layout.histogram_slots * stripes)?,
            global: map(&fd, "GLOBAL_COUNTERS", stripes)?,
            progress: map(&fd, "PROGRESS", stripes)?,
            settings: map(&fd, "SETTINGS", 1)?,
            thread_hits: map(&fd, "THREAD_HITS", THREAD_CELLS)?,
            forced_flags: std::sync::atomic::AtomicU32::new(0),
            // Reversed, so that the first lease is slot 0.
            free_histograms: Mutex::new(
                (0..layout.histogram_slots / SLOTS).rev().map(|i| i * SLOTS).collect(),
            ),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        // OK to go on after a panic elsewhere: a push or a pop leaves the list whole.
        self.shared.free_histograms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn filter_in_programs(&self, on: bool) {
        self.shared.forced_flags.store(if on { FLAG_FILTER_TARGETS } else { 0 }, Ordering::Relaxed);
    }

    /// Classes that fit: ids are below this.
    #[must_use]
    pub fn max_classes(&self) -> u32 {
        self.shared.layout.max_classes
    }

    /// Sets what the programs do on a hit. A new generation begins: calls that are open from an earlier attachment
    /// are forgotten. Counters go on; see [`reset`](Self::reset).
    ///
    /// # Panics
    /// The class is not below [`max_classes`](Self::max_classes); likewise in all other methods.
    pub fn configure(&self, class: ClassId, control: ClassControl) {
        let before = self.shared.control.read(class.0);
        let generation = before.generation.wrapping_add(1) & GENERATION;
        let flags = control.flags | self.shared.forced_flags.load(Ordering::Relaxed);
        self.shared.control.write(class.0, &ClassControl { generation, flags, ..control });
    }

    /// The present control of a class.
    #[must_use]
    pub fn control(&self, class: ClassId) -> ClassControl {
        self.shared.control.read(class.0)
    }

    /// Changes the present control of a class within its generation (prices, skipping).
    pub fn adjust(&self, class: ClassId, change: impl FnOnce(&mut ClassControl)) {
        let mut control = self.shared.control.read(class.0);
        let generation = control.generation;
        change(&mut control);
        control.generation = generation;
        control.flags |= self.shared.forced_flags.load(Ordering::Relaxed);
        self.shared.control.write(class.0, &control);
    }

    /// Forgets the calls that are open: nothing will see their ends, since the links are gone. They are around no later call.
    pub fn forget_open(&self, class: ClassId) {
        let mut control = self.shared.control.read(class.0);
        control.generation = control.generation.wrapping_add(1) & GENERATION;
        self.shared.control.write(class.0, &control);
    }

    /// Sets the hits that the class may still take; the one that takes the last raises an alarm.
    pub fn set_quota(&self, class: ClassId, hits: i64) {
        self.shared.quota.signed(class.0, ENTRIES).store(hits, Ordering::Release);
    }

    /// Lets nothing in, and forgets what an earlier window left: its first hit and how long that was ago
    /// ([`ran_ns`](Self::ran_ns)), and what return sites may still be hit, which would be used up and raise the alarm while links are made.
    pub fn shut(&self, class: ClassId) {
        self.set_quota(class, 0);
        self.set_ends_quota(class, 0);
        self.forget_first(class);
    }

    /// Adds hits to the quota, so that hits taken meanwhile are not given twice.
    pub fn add_quota(&self, class: ClassId, hits: i64) {
        self.shared.quota.signed(class.0, ENTRIES).fetch_add(hits, Ordering::AcqRel);
    }

    /// Hits left; negative by the hits that came after the last.
    #[must_use]
    pub fn remaining_quota(&self, class: ClassId) -> i64 {
        self.shared.quota.signed(class.0, ENTRIES).load(Ordering::Acquire)
    }

    /// From now on the next hit that is let in counts as the first ([`ran_ns`](Self::ran_ns)).
    pub fn forget_first(&self, class: ClassId) {
        self.shared.quota.signed(class.0, FIRST).store(0, Ordering::Release);
    }

    /// How long the thread that took the first hit and the last of the quota was on a CPU from one to the other, ns; `None`: different
    /// threads took them, or on different CPUs, the quota is not used up, or the kernel does not say.
    #[must_use]
    pub fn ran_ns(&self, class: ClassId) -> Option<u64> {
        // OK because both words are u64 in the kernel.
        let known = self.shared.quota.signed(class.0, FIRST).load(Ordering::Acquire) as u64 == RAN_KNOWN;
        known.then(|| self.shared.quota.signed(class.0, RAN).load(Ordering::Acquire) as u64)
    }

    /// The thread that [`ran_ns`](Self::ran_ns) is about, by its id in the first PID namespace.
    #[must_use]
    pub fn ran_tid(&self, class: ClassId) -> Option<u32> {
        // OK because the id is the upper half of the word.
        self.ran_ns(class).map(|_| {
            (self.shared.quota.signed(class.0, RAN_THREAD).load(Ordering::Acquire) as u64 >> 32) as u32
        })
    }

    /// Sets the hits that the class may have at return sites; the one that takes the last raises an alarm. None is turned away.
    pub fn set_ends_quota(&self, class: ClassId, hits: i64) {
        self.shared.quota.signed(class.0, ENDS).store(hits, Ordering::Release);
    }

    /// Adds to it, so that hits taken meanwhile are not given twice.
    pub fn add_ends_quota(&self, class: ClassId, hits: i64) {
        self.shared.quota.signed(class.0, ENDS).fetch_add(hits, Ordering::AcqRel);
    }

    /// Hits at return sites left; negative by those that came after the last.
    #[must_use]
    pub fn remaining_ends_quota(&self, class: ClassId) -> i64 {
        self.shared.quota.signed(class.0, ENDS).load(Ordering::Acquire)
    }

    /// Counters of a class since [`reset`](Self::reset), summed over the stripes. Taken while hits go on, the sums of
    /// different fields may be some hits apart.
    #[must_use]
    pub fn counters(&self, class: ClassId) -> ClassCounters {
        assert!(
            class.0 < self.shared.layout.max_classes,
            "class {class} of {}",
            self.shared.layout.max_classes
        );
        let mut sum = ClassCounters::default();
        for stripe in 0..self.shared.layout.stripes {
            sum.add(&self.shared.counters.read(stripe * self.shared.layout.max_classes + class.0));
        }
        sum
    }

    /// Copies of each counter, one for some CPUs each: so many reads a counter takes.
    #[must_use]
    pub fn stripes(&self) -> u32 {
        self.shared.layout.stripes
    }

    /// Only the `attempted` counter: what a governor asks often.
    #[must_use]
    pub fn attempted(&self, class: ClassId) -> u64 {
        assert!(
            class.0 < self.shared.layout.max_classes,
            "class {class} of {}",
            self.shared.layout.max_classes
        );
        // Words 1, 2, 3 are `kept`, `gated`, `dropped`.
        const {
            assert!(
                std::mem::offset_of!(ClassCounters, kept) == 8
                    && std::mem::offset_of!(ClassCounters, dropped) == 24
            )
        };
        (0..self.shared.layout.stripes)
            .flat_map(|stripe| {
                (1..4).map(move |word| (stripe * self.shared.layout.max_classes + class.0, word))
            })
            .map(|(index, word)| self.shared.counters.word(index, word))
            .fold(0, u64::wrapping_add)
    }

    /// The counter of a thread's hits of a class (classes with `FLAG_BY_THREAD`): its number and its value. Other pairs of
    /// thread and class may share it.
    #[must_use]
    pub fn thread_hits(&self, tid: u32, class: ClassId) -> (u32, u64) {
        let cell = thread_cell(tid, class.0);
        (cell, self.shared.thread_hits.word(cell, 0))
    }

    /// Sets a class's counters to zero, and its histogram if it leases one. To be called while nothing is attached:
    /// hits that fall between are lost or half counted.
    pub fn reset(&self, class: ClassId) {
        assert!(
            class.0 < self.shared.layout.max_classes,
            "class {class} of {}",
            self.shared.layout.max_classes
        );
        for stripe in 0..self.shared.layout.stripes {
            self.shared.counters.clear(stripe * self.shared.layout.max_classes + class.0);
        }
        let histogram = self.shared.control.read(class.0).histogram;
        if histogram != NO_HISTOGRAM {
            self.clear_histogram(histogram);
        }
    }

    fn clear_histogram(&self, first_slot: u32) {
        for stripe in 0..self.shared.layout.stripes {
            for slot in first_slot..first_slot + SLOTS {
                self.shared.histograms.clear(stripe * self.shared.layout.histogram_slots + slot);
            }
        }
    }

    /// Histograms that can still be leased.
    #[must_use]
    pub fn free_histograms(&self) -> usize {
        self.free().len()
    }

    /// Leases the memory of one histogram, empty; `None` if all are taken. Drop the lease after the class's link is
    /// closed and the class is configured without it.
    #[must_use]
    pub fn lease_histogram(&self) -> Option<HistogramLease> {
        let first_slot = self.free().pop()?;
        self.clear_histogram(first_slot);
        Some(HistogramLease { table: self.clone(), first_slot })
    }

    /// Counts per bucket ([`profiler_common::histogram::bounds`]) of a leased histogram, summed over the stripes.
    #[must_use]
    pub fn histogram(&self, lease: &HistogramLease) -> Box<[u64; BUCKETS]> {
        let mut sum = Box::new([0u64; BUCKETS]);
        for stripe in 0..self.shared.layout.stripes {
            for slot in 0..SLOTS {
                let index = stripe * self.shared.layout.histogram_slots + lease.first_slot + slot;
                for within in 0..SLOT_BUCKETS {
                    let bucket = &mut sum[slot as usize * SLOT_BUCKETS + within];
                    *bucket = bucket.wrapping_add(self.shared.histograms.word(index, within));
                }
            }
        }
        sum
    }

    /// Counters that belong to no class.
    #[must_use]
    pub fn global_counters(&self) -> GlobalCounters {
        let mut sum = GlobalCounters::default();
        for stripe in 0..self.shared.global.elements() {
            sum.add(&self.shared.global.read(stripe));
        }
        sum
    }

    /// One counter of the progress metric, summed over the stripes.
    pub(super) fn progress(&self, slot: usize) -> u64 {
        (0..self.shared.progress.elements())
            .map(|stripe| self.shared.progress.word(stripe, slot))
            .fold(0, u64::wrapping_add)
    }

    /// Settings that concern all classes.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.shared.settings.read(0)
    }

    /// Changes the settings; programs see them from the next hit or sample on.
    pub fn set_settings(&self, settings: Settings) {
        self.shared.settings.write(0, &settings);
    }
}
