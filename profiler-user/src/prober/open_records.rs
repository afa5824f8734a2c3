//! What is kept of recorded calls while they are open: their arguments, and the account of the thread at their begin (map `ARGUMENTS`).

use super::Kernel;
use super::object::map_data;
use super::sys;
use super::threads::{OpenCall, empty};
use aya::maps::MapData;
use profiler_common::context::ThreadAccount;
use profiler_common::presence::Standing;
use profiler_common::thread::{CallFrame, DEPTH, FREE, GENERATION, HAS_ARGUMENTS, HAS_CONTEXT, ThreadState};
use profiler_core::class::ClassId;
use std::os::fd::{AsFd, BorrowedFd};

/// `ThreadArguments` of the kernel side (`profiler-ebpf/src/storage.rs`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Kept {
    args: [[u64; 6]; DEPTH as usize],
    accounts: [ThreadAccount; DEPTH as usize],
}

// SAFETY: `repr(C)`, integers only, no padding: 48 and 64 bytes for each position.
unsafe impl aya::Pod for Kept {}

/// A recorded call that had not ended when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRecord {
    /// The call.
    pub call: OpenCall,
    /// Its return slot; 0: not known.
    pub slot: u64,
    /// Its argument registers, where they are kept.
    pub args: Option<[u64; 6]>,
    /// The thread's account when it began, where it is kept.
    pub account: Option<ThreadAccount>,
    /// Class of the innermost timed call around it, and how many there are.
    pub around: (Option<ClassId>, u32),
    /// What monitoring has cost inside it so far, ns.
    pub nested_cost_ns: u64,
}

impl Kernel {
    /// What is kept of an open call. `None`: it has ended.
    ///
    /// # Cost
    /// Six system calls, and copies of 15 KB.
    #[must_use]
    pub fn open_record(&self, call: &OpenCall) -> Option<OpenRecord> {
        let ebpf = self.ebpf();
        let threads = ebpf.map("THREADS").and_then(map_data)?;
        let task = sys::thread_fd(call.tid).ok()?;
        let mut state = Box::new(empty());
        sys::lookup_task_storage(threads.fd().as_fd(), task.as_fd(), &mut *state).ok()?;
        let position = position_of(&state, call)?;
        let frame = *state.frames.get(position)?;
        let wants = frame.generation & (HAS_ARGUMENTS | HAS_CONTEXT) != 0;
        let kept = ebpf.map("ARGUMENTS").and_then(map_data).filter(|_| wants);
        let kept = kept.and_then(|map| kept_of(map, task.as_fd()));
        // The position may be another call's by now.
        let mut after = Box::new(empty());
        sys::lookup_task_storage(threads.fd().as_fd(), task.as_fd(), &mut *after).ok()?;
        if after.frames.get(position) != Some(&frame) || after.depth as usize <= position {
            return None;
        }
        let has = |bit: u32| frame.generation & bit != 0;
        let cost_ns = after.cost_ns.wrapping_add(after.sample_cost_ns).wrapping_sub(frame.cost_ns);
        // Below nothing where what is read changed meanwhile.
        let cost_ns = if (cost_ns as i64) < 0 { 0 } else { cost_ns };
        Some(OpenRecord {
            call: *call,
            slot: frame.slot,
            args: kept.as_ref().filter(|_| has(HAS_ARGUMENTS)).and_then(|k| k.args.get(position).copied()),
            account: kept
                .as_ref()
                .filter(|_| has(HAS_CONTEXT))
                .and_then(|k| k.accounts.get(position).copied()),
            around: self.around(&after, position, &frame),
            nested_cost_ns: cost_ns + u64::from(self.classes.control(call.class).own_cost_ns),
        })
    }

    /// As the kernel side tells it for calls that end: what another class of the function keeps of the same call is none around it, nor is a call of an earlier
    /// attachment.
    fn around(&self, state: &ThreadState, position: usize, own: &CallFrame) -> (Option<ClassId>, u32) {
        let control =
            |class: u32| (class < self.classes.max_classes()).then(|| self.classes.control(ClassId(class)));
        let function = control(own.class).map_or(0, |own| own.function);
        let is_around = |frame: &&CallFrame| {
            let Some(other) = control(frame.class) else { return false };
            let is_same =
                function != 0 && own.slot != 0 && frame.slot == own.slot && other.function == function;
            !is_same && other.generation == frame.generation & GENERATION
        };
        let below = state.frames.get(..position).unwrap_or_default();
        let calls: Vec<&CallFrame> = below.iter().filter(|f| f.class != FREE).filter(is_around).collect();
        // OK because there are at most 64.
        (calls.last().map(|frame| ClassId(frame.class)), calls.len() as u32)
    }
}

/// Where an open call stands.
fn position_of(state: &ThreadState, call: &OpenCall) -> Option<usize> {
    let open = state.frames.iter().take(state.depth.min(DEPTH) as usize);
    let mut numbered = open.enumerate();
    numbered.find(|(_, f)| f.class == call.class.0 && f.begin_ns == call.begin_ns).map(|(at, _)| at)
}

/// `None`: nothing is kept of the thread, or the map is of another layout.
fn kept_of(map: &MapData, task: BorrowedFd<'_>) -> Option<Box<Kept>> {
    let account = ThreadAccount {
        standing: Standing::UNKNOWN,
        runnable_ns: 0,
        io_wait_ns: 0,
        read_bytes: 0,
        written_bytes: 0,
        minor_faults: 0,
        major_faults: 0,
    };
    let mut kept = Box::new(Kept { args: [[0; 6]; DEPTH as usize], accounts: [account; DEPTH as usize] });
    // The kernel writes as many bytes as the map's values have.
    let bytes = map.info().ok()?.value_size();
    if bytes as usize != size_of::<Kept>() {
        return None;
    }
    sys::lookup_task_storage(map.fd().as_fd(), task, &mut *kept).ok()?;
    Some(kept)
}
