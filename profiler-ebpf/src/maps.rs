//! All maps and load-time constants.
//!
//! Counters and histograms are plain arrays in *stripes* instead of per-CPU arrays: element
//! `(cpu & STRIPE_MASK) * elements_per_stripe + index`. They can be mapped into the agent, which then reads
//! thousands of classes without a system call, and on machines with many CPUs several share a stripe, so that
//! memory stays bounded; atomic adds make that correct.

use aya_ebpf::{
    Global,
    bindings::BPF_F_MMAPABLE,
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    },
    macros::map,
    maps::{Array, HashMap, RingBuf},
};
use profiler_common::{
    caller::CallerCell,
    class::{ClassControl, ClassCounters, Quota},
    histogram::{HistogramSlot, SLOTS},
    operation::{
        MAX_OPERATIONS, OperationClass, OperationControl, OperationCounters, OperationName, OperationState,
    },
    settings::{GlobalCounters, ProgressCounters, Settings},
    thread::{THREAD_CELLS, thread_cell},
    words::{MAX_WORDS, WordSpec},
};

// Set by the loader before the object is loaded; the verifier sees constants.
/// `profiler_common::WIRE_VERSION` of this object.
#[unsafe(no_mangle)]
static WIRE_VERSION: Global<u32> = Global::new(profiler_common::WIRE_VERSION);
/// Classes: elements of one stripe of `COUNTERS`.
#[unsafe(no_mangle)]
static MAX_CLASSES: Global<u32> = Global::new(1);
/// Histogram slots: elements of one stripe of `HISTOGRAMS`.
#[unsafe(no_mangle)]
static HISTOGRAM_SLOTS: Global<u32> = Global::new(4);
/// Number of stripes - 1; stripes are a power of two.
#[unsafe(no_mangle)]
static STRIPE_MASK: Global<u32> = Global::new(0);
/// Classes of operations: elements of one stripe of `OPERATION_COUNTERS`.
#[unsafe(no_mangle)]
static MAX_OPERATION_CLASSES: Global<u32> = Global::new(1);
/// Number of cells for callers - 1; they are a power of two.
#[unsafe(no_mangle)]
static CALLER_MASK: Global<u32> = Global::new(0);
/// Histograms of classes of operations: elements of one stripe of `OPERATION_HISTOGRAMS`, over their slots.
#[unsafe(no_mangle)]
static MAX_OPERATION_HISTOGRAMS: Global<u32> = Global::new(1);
/// Number of stripes of `OPERATION_HISTOGRAMS` - 1: fewer than of the others, since each takes more memory.
#[unsafe(no_mangle)]
static OPERATION_STRIPE_MASK: Global<u32> = Global::new(0);
/// Words of the longest list; 0: no words are taken, and the verifier cuts out all that takes them.
#[unsafe(no_mangle)]
pub static WORD_LIMIT: Global<u32> = Global::new(0);
/// Offset of `pid` in the running kernel's `task_struct`, from its BTF.
#[unsafe(no_mangle)]
pub static TASK_PID_OFFSET: Global<u32> = Global::new(0);
/// Offset of `tgid` in the running kernel's `task_struct`, from its BTF.
#[unsafe(no_mangle)]
pub static TASK_TGID_OFFSET: Global<u32> = Global::new(0);
/// Offset of `se.exec_start` in `task_struct`; 0: not known, and so is time off CPU.
#[unsafe(no_mangle)]
pub static TASK_STARTED_OFFSET: Global<u32> = Global::new(0);
/// Offset of `se.sum_exec_runtime` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_USED_OFFSET: Global<u32> = Global::new(0);
/// Offset of `sched_info.last_arrival` in `task_struct`; 0: the kernel has none, or a scheduler that does not keep the next one.
#[unsafe(no_mangle)]
pub static TASK_ARRIVAL_OFFSET: Global<u32> = Global::new(0);
/// Offset of `se.prev_sum_exec_runtime` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_BEFORE_OFFSET: Global<u32> = Global::new(0);
/// Offset of `prio` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_PRIO_OFFSET: Global<u32> = Global::new(0);
/// Offset of `sched_info.run_delay` in `task_struct`; 0, here and below: the kernel has none.
#[unsafe(no_mangle)]
pub static TASK_RUNNABLE_OFFSET: Global<u32> = Global::new(0);
/// Offset of `delays` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_DELAYS_OFFSET: Global<u32> = Global::new(0);
/// Offset of `blkio_delay` in what that points to.
#[unsafe(no_mangle)]
pub static DELAYS_IO_OFFSET: Global<u32> = Global::new(0);
/// Offset of `ioac.rchar` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_READ_OFFSET: Global<u32> = Global::new(0);
/// Offset of `ioac.wchar` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_WRITTEN_OFFSET: Global<u32> = Global::new(0);
/// Offset of `min_flt` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_MINOR_FAULTS_OFFSET: Global<u32> = Global::new(0);
/// Offset of `maj_flt` in `task_struct`.
#[unsafe(no_mangle)]
pub static TASK_MAJOR_FAULTS_OFFSET: Global<u32> = Global::new(0);

// Sizes are set by the loader.
#[map]
static CONTROL: Array<ClassControl> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static QUOTA: Array<Quota> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static CALLERS: Array<CallerCell> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static COUNTERS: Array<ClassCounters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static HISTOGRAMS: Array<HistogramSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static GLOBAL_COUNTERS: Array<GlobalCounters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static SETTINGS: Array<Settings> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static PROGRESS: Array<ProgressCounters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static OPERATIONS: Array<OperationControl> = Array::with_max_entries(MAX_OPERATIONS as u32, BPF_F_MMAPABLE);
#[map]
static OPERATION_STATE: Array<OperationState> =
    Array::with_max_entries(MAX_OPERATIONS as u32, BPF_F_MMAPABLE);
#[map]
static OPERATION_CLASSES: Array<OperationClass> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static OPERATION_COUNTERS: Array<OperationCounters> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Response times of all operations, by the histograms that their classes were given.
#[map]
static OPERATION_HISTOGRAMS: Array<HistogramSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// Name to class of operations.
#[map]
pub static OPERATION_NAMES: HashMap<OperationName, u32> = HashMap::with_max_entries(1, 0);
/// System call number to the operations that it bounds: see `syscall_bounds` in the agent.
#[map]
static OPERATION_SYSCALLS: Array<u32> = Array::with_max_entries(512, 0);
#[map]
pub static OPERATION_RECORDS: RingBuf = RingBuf::with_byte_size(4096, 0);
/// Hits by thread and class.
#[map]
static THREAD_HITS: Array<u64> = Array::with_max_entries(THREAD_CELLS, BPF_F_MMAPABLE);
/// Process id to `TARGET_*` flags. 1,024: processes of one service with its forked workers.
#[map]
pub static TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(1024, 0);
/// Begin of the call that a thread is in, for `plain_enter`; 64 threads are enough for a yardstick.
#[map]
pub static PLAIN_STARTS: HashMap<u32, u64> = HashMap::with_max_entries(64, 0);
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
pub static STEPS: RingBuf = RingBuf::with_byte_size(4096, 0);
/// Words of all lists.
#[map]
static WORDS: Array<WordSpec> = Array::with_max_entries(MAX_WORDS, BPF_F_MMAPABLE);
#[map]
pub static TAKINGS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
pub static SAMPLES: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
pub static ALARMS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
pub static LIFECYCLE: RingBuf = RingBuf::with_byte_size(4096, 0);

/// `BPF_RB_NO_WAKEUP`: the reader drains on a timer.
pub const NO_WAKEUP: u64 = 1;
/// `BPF_RB_FORCE_WAKEUP`: the reader is woken whatever it is doing.
pub const FORCE_WAKEUP: u64 = 2;

#[inline(always)]
fn stripe() -> u32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_smp_processor_id() as u32 & STRIPE_MASK.load() }
}

/// Control of a class; `None` if the class is out of range.
#[inline(always)]
pub fn control(class: u32) -> Option<*const ClassControl> {
    CONTROL.get_ptr(class)
}

/// Counters of a class in this CPU's stripe.
#[inline(always)]
pub fn counters(class: u32) -> Option<*mut ClassCounters> {
    let classes = MAX_CLASSES.load();
    if class >= classes {
        return None;
    }
    COUNTERS.get_ptr_mut(stripe() * classes + class)
}

/// Quota of a class.
#[inline(always)]
pub fn quota(class: u32) -> Option<*mut Quota> {
    QUOTA.get_ptr_mut(class)
}

/// A word of the lists.
#[inline(always)]
pub fn word_spec(number: u32) -> Option<*const WordSpec> {
    WORDS.get_ptr(number)
}

/// A cell for callers, counted round.
#[inline(always)]
pub fn caller(cell: u32) -> Option<*mut CallerCell> {
    CALLERS.get_ptr_mut(cell & CALLER_MASK.load())
}

/// Hits of a class on this thread.
#[inline(always)]
pub fn thread_hits(class: u32) -> Option<*mut u64> {
    THREAD_HITS.get_ptr_mut(thread_cell(current_ids().1, class))
}

/// Control of an operation.
#[inline(always)]
pub fn operation_control(operation: u32) -> Option<*const OperationControl> {
    OPERATIONS.get_ptr(operation)
}

/// What all threads share of an operation.
#[inline(always)]
pub fn operation_state(operation: u32) -> Option<*mut OperationState> {
    OPERATION_STATE.get_ptr_mut(operation)
}

/// Numbers of a class of operations.
#[inline(always)]
pub fn operation_class(class: u32) -> Option<*mut OperationClass> {
    OPERATION_CLASSES.get_ptr_mut(class)
}

/// Counters of a class of operations in this CPU's stripe.
#[inline(always)]
pub fn operation_counters(class: u32) -> Option<*mut OperationCounters> {
    let classes = MAX_OPERATION_CLASSES.load();
    if class >= classes {
        return None;
    }
    OPERATION_COUNTERS.get_ptr_mut(stripe() * classes + class)
}

/// Histograms that classes of operations can have.
#[inline(always)]
pub fn max_operation_histograms() -> u32 {
    MAX_OPERATION_HISTOGRAMS.load()
}

/// A slot of a histogram of operations, in this CPU's stripe.
#[inline(always)]
pub fn operation_histogram(number: u32, slot: u32) -> Option<*mut HistogramSlot> {
    let histograms = MAX_OPERATION_HISTOGRAMS.load();
    if number >= histograms || slot >= SLOTS {
        return None;
    }
    let stripe = stripe() & OPERATION_STRIPE_MASK.load();
    OPERATION_HISTOGRAMS.get_ptr_mut((stripe * histograms + number) * SLOTS + slot)
}

/// The operations that a system call bounds; 0: none.
#[inline(always)]
pub fn operation_syscall(number: u32) -> u32 {
    // SAFETY: one aligned word, which the agent may change at any time.
    OPERATION_SYSCALLS.get_ptr(number).map_or(0, |p| unsafe { p.read_volatile() })
}

/// A histogram slot in this CPU's stripe.
#[inline(always)]
pub fn histogram_slot(slot: u32) -> Option<*mut HistogramSlot> {
    let slots = HISTOGRAM_SLOTS.load();
    if slot >= slots {
        return None;
    }
    HISTOGRAMS.get_ptr_mut(stripe() * slots + slot)
}

/// Counters that belong to no class, in this CPU's stripe.
#[inline(always)]
pub fn global_counters() -> Option<*mut GlobalCounters> {
    GLOBAL_COUNTERS.get_ptr_mut(stripe())
}

/// Counters of the progress metric, in this CPU's stripe.
#[inline(always)]
pub fn progress_counters() -> Option<*mut ProgressCounters> {
    PROGRESS.get_ptr_mut(stripe())
}

/// Settings that may change at any time.
#[inline(always)]
pub fn settings() -> Option<*const Settings> {
    SETTINGS.get_ptr(0)
}

/// Monotonic time, ns.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

/// Process and thread of the current task, as the initial PID namespace numbers them.
#[inline(always)]
pub fn current_ids() -> (u32, u32) {
    let both = bpf_get_current_pid_tgid();
    // OK because each cast keeps its half.
    ((both >> 32) as u32, both as u32)
}

/// Flags of a process in `TARGETS`.
#[inline(always)]
pub fn target_flags(pid: u32) -> Option<u32> {
    // SAFETY: a reader may see a value that is being replaced; it is one aligned word.
    unsafe { TARGETS.get(&pid).copied() }
}

/// Bumps a counter in `GlobalCounters`.
macro_rules! count_global {
    ($field:ident) => {
        if let Some(global) = $crate::maps::global_counters() {
            // SAFETY: a live map value.
            $crate::atomic::add(unsafe { &raw mut (*global).$field }, 1);
        }
    };
}
pub(crate) use count_global;
