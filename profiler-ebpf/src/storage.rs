//! What each thread carries in the kernel: its state, the arguments of its open calls, and what monitoring it has cost.

use crate::atomic::add;
use crate::maps::now_ns;
use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE, pt_regs};
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_storage_get};
use core::ffi::c_void;
use core::ptr::null;
use profiler_common::class::ClassControl;
use profiler_common::context::ThreadAccount;
use profiler_common::thread::{CallFrame, DEPTH, EndProgram, OPERATION_DEPTH, OpenOperation, ThreadState};
use profiler_common::words::{MAX_OBJECTS, MAX_STRING};

/// What is kept of open calls that will have records, by their position. With the kernel's header it fits into 8 KiB.
#[repr(C)]
pub struct ThreadArguments {
    /// Arguments.
    pub frames: [[u64; 6]; DEPTH as usize],
    /// The thread's account when they began.
    pub accounts: [ThreadAccount; DEPTH as usize],
}

/// Room for a string of [`MAX_STRING`] bytes, its NUL, and one byte more, so that a string that is cut is told from one that just fits.
pub const TEXT_BYTES: usize = MAX_STRING as usize + 2;

/// What a thread needs to take words.
#[repr(C)]
pub struct ThreadWords {
    /// The objects that it saw last.
    pub objects: [u64; MAX_OBJECTS as usize],
    /// Which of them it has seen, a bit each.
    pub seen: u64,
    /// For the verifier's sake (`words::forget`).
    pub scratch: [u64; 2],
    /// The string whose length is wanted.
    pub text: [u8; TEXT_BYTES],
}

/// A task storage map (aya-ebpf has no type for it): the layout is the BTF map definition that loaders read.
#[repr(C)]
struct TaskStorage<V> {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE as usize],
    key: *const i32,
    value: *const V,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; BPF_F_NO_PREALLOC as usize],
}

// SAFETY: never read; the static only describes a map.
unsafe impl<V> Sync for TaskStorage<V> {}

impl<V> TaskStorage<V> {
    const fn new() -> Self {
        Self { r#type: null(), key: null(), value: null(), max_entries: null(), map_flags: null() }
    }
}

#[unsafe(link_section = ".maps")]
#[unsafe(no_mangle)]
static THREADS: TaskStorage<ThreadState> = TaskStorage::new();
#[unsafe(link_section = ".maps")]
#[unsafe(no_mangle)]
static ARGUMENTS: TaskStorage<ThreadArguments> = TaskStorage::new();
#[unsafe(link_section = ".maps")]
#[unsafe(no_mangle)]
static THREAD_WORDS: TaskStorage<ThreadWords> = TaskStorage::new();

/// The current thread's value; null if there is none and `create` is 0, or if it cannot be had.
#[inline(always)]
fn storage<V>(map: &'static TaskStorage<V>, create: u64) -> *mut V {
    // SAFETY: the helpers take the map and the current task, which is alive.
    unsafe {
        bpf_task_storage_get(
            core::ptr::from_ref(map).cast_mut().cast::<c_void>(),
            bpf_get_current_task_btf(),
            core::ptr::null_mut(),
            create,
        )
        .cast::<V>()
    }
}

/// The current thread's state; null if there is none and none was asked for, or none can be had.
#[inline(always)]
pub fn state(create: bool) -> *mut ThreadState {
    storage(&THREADS, u64::from(create))
}

/// Arguments of the current thread's open calls; null as for its state.
#[inline(always)]
pub fn arguments(create: bool) -> *mut ThreadArguments {
    storage(&ARGUMENTS, u64::from(create))
}

/// What the current thread needs to take words; null if none can be had.
#[inline(always)]
pub fn words() -> *mut ThreadWords {
    storage(&THREAD_WORDS, 1)
}

/// The arguments of the call at a position.
#[inline(always)]
pub fn kept_arguments(store: *mut ThreadArguments, position: u32) -> *mut [u64; 6] {
    // SAFETY: the mask keeps the position inside the array.
    unsafe { (&raw mut (*store).frames).cast::<[u64; 6]>().add((position & (DEPTH - 1)) as usize) }
}

/// The thread's account when the call at a position began.
#[inline(always)]
pub fn kept_account(store: *mut ThreadArguments, position: u32) -> *mut ThreadAccount {
    // SAFETY: as above.
    unsafe { (&raw mut (*store).accounts).cast::<ThreadAccount>().add((position & (DEPTH - 1)) as usize) }
}

/// The frame at a position.
#[inline(always)]
pub fn frame(state: *mut ThreadState, position: u32) -> *mut CallFrame {
    // SAFETY: the mask keeps the position inside the array.
    unsafe { (&raw mut (*state).frames).cast::<CallFrame>().add((position & (DEPTH - 1)) as usize) }
}

/// The operation at a position.
#[inline(always)]
pub fn open_at(state: *mut ThreadState, position: u32) -> *mut OpenOperation {
    // SAFETY: the mask keeps the position inside the array.
    unsafe {
        (&raw mut (*state).operations)
            .cast::<OpenOperation>()
            .add((position & (OPERATION_DEPTH - 1)) as usize)
    }
}

/// The same number, of which the verifier knows nothing: without this it would explore all that follows once for each
/// round in which the search may have ended.
#[inline(always)]
pub fn forget_range(state: *mut ThreadState, value: u32) -> u32 {
    // SAFETY: a live map value, of this thread only.
    unsafe {
        (&raw mut (*state).scratch).write_volatile(value);
        (&raw const (*state).scratch).read_volatile()
    }
}

/// Adds the price of a sample to the cost inside the calls that are open on this thread.
#[inline(always)]
pub fn charge_sample(price_ns: u32) {
    if price_ns != 0 {
        let state = state(false);
        if !state.is_null() {
            // SAFETY: a live map value.
            add(unsafe { &raw mut (*state).sample_cost_ns }, u64::from(price_ns));
        }
    }
}

/// Adds the price of an entry hit that opens no call.
#[inline(always)]
pub fn charge_hit(control: *const ClassControl, shared: Option<SharedSite>) {
    // SAFETY: a live map value.
    let price_ns = unsafe { (*control).hit_cost_ns };
    if price_ns != 0 {
        let state = state(false);
        if !state.is_null() {
            cost_after_begin(state, price_ns, shared);
        }
    }
}

/// Adds the price of a hit at a return site that ends no call.
#[inline(always)]
pub fn charge_end(control: *const ClassControl, class: u32, end: &End) {
    // SAFETY: a live map value.
    let price_ns = unsafe { (*control).return_cost_ns };
    if price_ns != 0 {
        let state = state(false);
        if !state.is_null() {
            cost_before_end(state, end, class, price_ns, u64::MAX);
        }
    }
}

/// A hit where a call may end.
#[derive(Clone, Copy)]
pub struct End {
    pub rip: u64,
    pub rsp: u64,
    /// The program's first act, ktime ns.
    pub time_ns: u64,
    /// The register that holds the result where the call has just returned.
    pub rax: u64,
}

impl End {
    /// Of a uprobe program's context, which ran since `time_ns`.
    #[inline(always)]
    pub fn of(ctx: *mut c_void, time_ns: u64) -> Self {
        // SAFETY: the context of a uprobe program is a `pt_regs`.
        let (rip, rsp, rax) = unsafe {
            let registers = ctx.cast::<pt_regs>();
            ((*registers).rip, (*registers).rsp, (*registers).rax)
        };
        Self { rip, rsp, time_ns, rax }
    }
}

/// The thread's cost before this end, samples included; charges the hit. Where the trap ran programs of other classes first, only what they
/// took lies before this one's end, and only that is charged in addition ([`Trap::note`](profiler_common::thread::Trap::note)).
/// `open_ns`: how long the call that ends was open; `u64::MAX`: none ends.
#[inline(always)]
pub fn cost_before_end(state: *mut ThreadState, end: &End, class: u32, price_ns: u32, open_ns: u64) -> u64 {
    if price_ns == 0 {
        return cost_before(state, 0);
    }
    let program = EndProgram { ip: end.rip, time_ns: end.time_ns, class, price_ns, open_ns };
    // SAFETY: a live map value, of this thread only; samples may add to theirs at any moment.
    unsafe {
        let (trap, cost_ns) = (&mut *(&raw mut (*state).trap), (*state).cost_ns);
        (*state).cost_ns = cost_ns + u64::from(trap.note(&program, cost_ns));
        trap.cost_ns + (&raw const (*state).sample_cost_ns).read_volatile()
    }
}

/// A site at which several classes of a function have programs.
#[derive(Clone, Copy)]
pub struct SharedSite {
    pub rip: u64,
    pub class: u32,
}

/// Charges a hit at which a call begins: the thread's cost after it, samples included. A trap that runs programs of several classes is paid
/// once, as at the end of calls.
#[inline(always)]
pub fn cost_after_begin(state: *mut ThreadState, price_ns: u32, shared: Option<SharedSite>) -> u64 {
    match shared {
        Some(SharedSite { rip, class }) => {
            let hit = End { rip, rsp: 0, time_ns: now_ns(), rax: 0 };
            cost_before_end(state, &hit, class, price_ns, u64::MAX);
        }
        None => {
            cost_before(state, price_ns);
        }
    }
    // SAFETY: a live map value, of this thread only; samples may add to theirs at any moment.
    unsafe { (*state).cost_ns + (&raw const (*state).sample_cost_ns).read_volatile() }
}

/// The thread's cost before this hit, samples included; charges the hit.
#[inline(always)]
pub fn cost_before(state: *mut ThreadState, price_ns: u32) -> u64 {
    // SAFETY: a live map value; samples may add to theirs at any moment.
    unsafe {
        let cost_ns = (*state).cost_ns;
        if price_ns != 0 {
            (*state).cost_ns = cost_ns + u64::from(price_ns);
        }
        cost_ns + (&raw const (*state).sample_cost_ns).read_volatile()
    }
}
