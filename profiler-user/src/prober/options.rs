//! How the kernel side is loaded: sizes of its maps, and the tier.

use super::Tier;

/// How to load.
#[derive(Debug, Clone)]
pub struct KernelOptions {
    /// Use this tier instead of the best one that works (tests). Loading fails if it does not work here.
    pub forced_tier: Option<Tier>,
    /// Classes that must fit. 4,096: half a MiB of counters per CPU.
    pub max_classes: u32,
    /// Classes that may have a histogram at one time, 8 KiB per CPU each.
    pub histogram_classes: u32,
    /// Callers of functions timed at return sites that must fit, rounded up to a power of two, 32 bytes each. 16,384: half as many are found
    /// room for almost surely, and the functions of a plan have some thousands.
    pub callers: u32,
    /// Upper bound on the memory of all maps, bytes.
    pub kernel_memory_bytes: u64,
    /// Ring of call records, bytes, rounded up to a power of two. 4 MiB: 45 ms at a million calls per second.
    pub events_ring_bytes: u32,
    /// Ring of samples, bytes, rounded up. 8 MiB: a thousand samples with 8 KiB of stack each.
    pub samples_ring_bytes: u32,
    /// Ring of births and deaths, bytes, rounded up. 256 KiB: 6,500 of them.
    pub lifecycle_ring_bytes: u32,
    /// Bytes of user stack copied with a sample, one of [`profiler_common::event::STACK_SIZES`].
    pub stack_bytes: u32,
    /// Classes of operations that must fit, all operations together, 256 bytes per CPU each; 0 without operations.
    pub operation_classes: u32,
    /// Classes of operations whose response times all go into a histogram, 8 KiB per CPU each (of eight CPUs at most): the first that end one.
    pub operation_histograms: u32,
    /// Ring of recorded operations, bytes, rounded up. 1 MiB: 25 ms at 400,000 a second.
    pub operations_ring_bytes: u32,
    /// Ring of steps, bytes, rounded up. 8 MiB: 45 ms at 3 million a second.
    pub steps_ring_bytes: u32,
    /// Words of the longest list that programs take words of the target by; 0: they take none.
    pub word_limit: u32,
    /// Ring of takings, bytes, rounded up. 4 MiB: 90 ms at 100,000 takings of 26 words a second.
    pub takings_ring_bytes: u32,
    /// See [`Settings::stack_span_bytes`](super::Settings::stack_span_bytes). 256 KiB: call chains between two traced functions are shorter, and a
    /// signal stack (or another thread's) rarely lies that close above.
    pub stack_span_bytes: u64,
    /// Let the programs log what should not happen; see [`Kernel::log`](super::Kernel::log).
    pub verbose: bool,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            forced_tier: None,
            max_classes: 4096,
            histogram_classes: 256,
            callers: 16_384,
            kernel_memory_bytes: 64 << 20,
            events_ring_bytes: 4 << 20,
            samples_ring_bytes: 8 << 20,
            lifecycle_ring_bytes: 256 << 10,
            stack_bytes: 8192,
            operation_classes: 0,
            operation_histograms: 256,
            operations_ring_bytes: 4096,
            steps_ring_bytes: 4096,
            word_limit: 0,
            takings_ring_bytes: 4096,
            stack_span_bytes: 256 << 10,
            verbose: false,
        }
    }
}
