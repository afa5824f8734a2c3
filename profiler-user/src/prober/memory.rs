//! Array maps seen through mmap(2), and how large they may be.

use super::{KernelError, KernelOptions};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// An array map of `T` in our address space. The kernel's programs write it at any time, so every access is an atomic
/// access to an 8-byte word.
pub(super) struct MappedArray<T> {
    base: NonNull<AtomicU64>,
    elements: u32,
    bytes: usize,
    of: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel and accessed by atomic operations only.
unsafe impl<T> Send for MappedArray<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for MappedArray<T> {}

impl<T: aya::Pod> MappedArray<T> {
    const WORDS: usize = {
        assert!(
            size_of::<T>().is_multiple_of(8),
            "element sizes are multiples of 8, as the kernel rounds them"
        );
        size_of::<T>() / 8
    };

    /// Maps an array that was created with `BPF_F_MMAPABLE` and has that many elements of `T`.
    ///
    /// # Errors
    /// mmap(2) fails.
    pub fn new(map: BorrowedFd<'_>, elements: u32) -> io::Result<Self> {
        let page = page_bytes();
        let bytes = (elements as usize * size_of::<T>()).next_multiple_of(page);
        // SAFETY: a new shared mapping; nothing else lies there.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        Ok(Self { base, elements, bytes, of: PhantomData })
    }

    fn words(&self, index: u32) -> &[AtomicU64] {
        assert!(index < self.elements, "element {index} of an array of {}", self.elements);
        // SAFETY: inside the mapping, which lives as long as `self`; aligned, since the mapping starts at a page.
        unsafe {
            std::slice::from_raw_parts(self.base.add(index as usize * Self::WORDS).as_ptr(), Self::WORDS)
        }
    }

    /// One element. Words may come from different moments.
    pub fn read(&self, index: u32) -> T {
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        for (i, word) in self.words(index).iter().enumerate() {
            // SAFETY: `i` is below the number of words of `T`; `T` has no padding and any bits are valid (Pod).
            unsafe { value.as_mut_ptr().cast::<u64>().add(i).write_unaligned(word.load(Ordering::Relaxed)) }
        }
        // SAFETY: all words were written.
        unsafe { value.assume_init() }
    }

    /// Replaces one element, its first word last.
    pub fn write(&self, index: u32, value: &T) {
        for (i, word) in self.words(index).iter().enumerate().rev() {
            // SAFETY: `i` is below the number of words of `T`.
            let bits = unsafe { std::ptr::from_ref(value).cast::<u64>().add(i).read_unaligned() };
            word.store(bits, Ordering::Release);
        }
    }

    /// Replaces one word of an element.
    pub fn set_word(&self, index: u32, word: usize, value: u64) {
        self.words(index)[word].store(value, Ordering::Release);
    }

    /// Sets all words of an element to zero.
    pub fn clear(&self, index: u32) {
        for word in self.words(index) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// One word of an element.
    pub fn word(&self, index: u32, word: usize) -> u64 {
        self.words(index)[word].load(Ordering::Relaxed)
    }

    /// The same, to be exchanged.
    pub fn word_at(&self, index: u32, word: usize) -> &AtomicU64 {
        &self.words(index)[word]
    }

    /// One word of an element, signed.
    pub fn signed(&self, index: u32, word: usize) -> &AtomicI64 {
        // SAFETY: the two atomics have the same layout.
        unsafe { &*std::ptr::from_ref(self.word_at(index, word)).cast::<AtomicI64>() }
    }

    /// Number of elements.
    pub fn elements(&self) -> u32 {
        self.elements
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of that size; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

pub(super) fn page_bytes() -> usize {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // OK because page sizes are small and positive.
    usize::try_from(bytes).unwrap_or(4096)
}

/// CPUs share a stripe of the histograms of operations beyond that many: 8 KiB for each class and stripe. An operation takes microseconds, of
/// which waiting for another CPU's add takes little.
const OPERATION_STRIPES: u32 = 8;

/// Sizes of all maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub stripes: u32,
    pub max_classes: u32,
    pub histogram_slots: u32,
    pub events_bytes: u32,
    pub samples_bytes: u32,
    pub alarms_bytes: u32,
    pub lifecycle_bytes: u32,
    pub operation_classes: u32,
    pub operations_bytes: u32,
    pub steps_bytes: u32,
    pub takings_bytes: u32,
    /// Histograms of classes of operations, and their stripes.
    pub operation_histograms: u32,
    pub operation_stripes: u32,
    /// Cells for callers, a power of two.
    pub callers: u32,
    pub bytes: u64,
}

impl Layout {
    /// Fits the maps under the limit: one stripe of counters per CPU if there is room for it, fewer if not.
    ///
    /// # Errors
    /// Even one stripe is too much.
    pub fn fit(options: &KernelOptions, possible_cpus: u32) -> Result<Self, KernelError> {
        use profiler_common::{caller, class, histogram, operation, settings, thread, words};
        let page = page_bytes() as u32;
        let ring = |bytes: u32| bytes.max(page).checked_next_power_of_two().unwrap_or(1 << 31);
        let mut layout = Self {
            stripes: possible_cpus.max(1).next_power_of_two(),
            max_classes: options.max_classes.max(1),
            histogram_slots: options.histogram_classes.saturating_mul(histogram::SLOTS).max(histogram::SLOTS),
            events_bytes: ring(options.events_ring_bytes),
            samples_bytes: ring(options.samples_ring_bytes),
            alarms_bytes: ring(16 * 1024),
            lifecycle_bytes: ring(options.lifecycle_ring_bytes),
            operation_classes: options.operation_classes.max(1),
            operations_bytes: ring(options.operations_ring_bytes),
            steps_bytes: ring(options.steps_ring_bytes),
            takings_bytes: ring(options.takings_ring_bytes),
            operation_histograms: options.operation_histograms.min(options.operation_classes).max(1),
            operation_stripes: 1,
            callers: options.callers.max(1).checked_next_power_of_two().unwrap_or(1 << 31),
            bytes: 0,
        };
        loop {
            layout.operation_stripes = layout.stripes.min(OPERATION_STRIPES);
            let per_stripe = u64::from(layout.max_classes) * size_of::<class::ClassCounters>() as u64
                + u64::from(layout.histogram_slots) * size_of::<histogram::HistogramSlot>() as u64
                + size_of::<settings::ProgressCounters>() as u64
                + u64::from(layout.operation_classes) * size_of::<operation::OperationCounters>() as u64;
            let shared = u64::from(layout.max_classes)
                * (size_of::<class::ClassControl>() + size_of::<class::Quota>()) as u64
                + u64::from(layout.events_bytes)
                + u64::from(layout.samples_bytes)
                + u64::from(layout.alarms_bytes)
                + u64::from(layout.lifecycle_bytes)
                + u64::from(layout.operations_bytes)
                + u64::from(layout.steps_bytes)
                + u64::from(layout.takings_bytes)
                + u64::from(words::MAX_WORDS) * size_of::<words::WordSpec>() as u64
                + u64::from(thread::THREAD_CELLS) * size_of::<u64>() as u64
                + u64::from(layout.operation_stripes * layout.operation_histograms * histogram::SLOTS)
                    * size_of::<histogram::HistogramSlot>() as u64
                + u64::from(layout.callers) * size_of::<caller::CallerCell>() as u64
                // A class with its entry in the table of names, which is two lines with the kernel's own part.
                + u64::from(layout.operation_classes) * (size_of::<operation::OperationClass>() as u64 + 128);
            layout.bytes = shared + u64::from(layout.stripes) * per_stripe;
            if layout.bytes <= options.kernel_memory_bytes {
                return Ok(layout);
            }
            if layout.stripes == 1 {
                return Err(KernelError::Memory { needed: layout.bytes, limit: options.kernel_memory_bytes });
            }
            layout.stripes /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_give_way_to_the_limit() {
        let options = KernelOptions::default();
        let small = Layout::fit(&options, 2).unwrap();
        assert_eq!(small.stripes, 2);
        let large = Layout::fit(&options, 512).unwrap();
        assert!(large.stripes < 512 && large.stripes.is_power_of_two());
        assert!(large.bytes <= options.kernel_memory_bytes);
        let odd = Layout::fit(&options, 3).unwrap();
        assert_eq!(odd.stripes, 4);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_figures() {
        let options = KernelOptions { kernel_memory_bytes: 1 << 20, ..KernelOptions::default() };
        let error = Layout::fit(&options, 2).unwrap_err().to_string();
        assert!(error.contains("1.0 MiB"), "{error}");
    }
}
