//! Reading the five rings. Kernel bytes become typed values here.
//!
//! Call records and samples are sent without waking anybody: drain them on a timer (every 10 ms keeps 4 MiB from
//! filling below 9 million records a second). Alarms wake their reader at once; lifecycle records wake it if it has
//! caught up.

use super::KernelError;
use aya::maps::{Map, MapData, RingBuf};
use profiler_common::UnknownValue;
use profiler_common::context::CallContext;
use profiler_common::event::{
    Alarm as RawAlarm, AlarmKind, CALL_HAS_PLACE, CALL_HAS_RESULT, CALL_NO_ARGUMENTS, CallRecord,
    LifecycleKind, LifecycleRecord, NO_DURATION, SAMPLE_IN_KERNEL, SAMPLE_NO_REGISTERS, SampleHeader,
};
use profiler_common::step::StepRecord;
use profiler_common::thread::FREE;
use profiler_core::class::ClassId;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// One recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Begin, ktime ns.
    pub time_ns: u64,
    /// Duration, ns, uncorrected; `None` if the end is not watched.
    pub duration_ns: Option<u64>,
    /// Monitoring cost inside the duration, ns.
    pub nested_cost_ns: u64,
    /// Class.
    pub class: ClassId,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Argument registers at the entry site (rdi, rsi, rdx, rcx, r8, r9); `None`: not asked for, or not kept.
    pub args: Option<[u64; 6]>,
    /// Where it returns to; `None`: not known.
    pub return_address: Option<u64>,
    /// rax as it returned; `None`: its end was not seen by a return link.
    pub result: Option<u64>,
    /// Timed calls of its thread that were open around it, and the class of the innermost; `None`: its end was not watched.
    pub around: Option<(u32, Option<ClassId>)>,
    /// What the kernel counted for its thread inside it, as far as it was asked for and is known.
    pub context: CallContext,
}

/// One sample; the stack is a view into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'a> {
    /// When, ktime ns.
    pub time_ns: u64,
    /// User registers; `None` if they could not be read.
    pub registers: Option<UserRegisters>,
    /// Kernel instruction pointer, if the thread was in the kernel.
    pub kernel_ip: Option<u64>,
    /// CPU time that the sample stands for, ns.
    pub period_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// Bytes of the user stack from the stack pointer upwards; empty if none could be copied.
    pub stack: &'a [u8],
    /// Bytes of stack that were asked for. The copy works page by page, so more than this less a page is complete.
    pub stack_asked: u32,
}

/// The registers that unwinding starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRegisters {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer register.
    pub bp: u64,
}

/// A class has used up its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// When, ktime ns.
    pub time_ns: u64,
    /// First alarm or repetition.
    pub kind: AlarmKind,
    /// Class.
    pub class: ClassId,
    /// Hits left: 0, or negative by the hits that came after the last.
    pub remaining: i64,
    /// Process that was hit.
    pub pid: u32,
    /// Thread that was hit.
    pub tid: u32,
}

/// What happened in the target's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifecycleEvent {
    /// A thread was born.
    ThreadBorn {
        /// When, ktime ns.
        time_ns: u64,
        /// Process.
        pid: u32,
        /// The new thread.
        tid: u32,
    },
    /// A process was forked; it inherits the breakpoints.
    Forked {
        /// When, ktime ns.
        time_ns: u64,
        /// Parent process.
        parent: u32,
        /// New process.
        child: u32,
    },
    /// The process loaded a new program.
    Execed {
        /// When, ktime ns.
        time_ns: u64,
        /// Process.
        pid: u32,
    },
    /// A thread ended.
    ThreadExited {
        /// When, ktime ns.
        time_ns: u64,
        /// Process.
        pid: u32,
        /// The thread.
        tid: u32,
    },
}

/// A ring and the name it has.
pub(super) struct Ring {
    ring: RingBuf<MapData>,
    name: &'static str,
}

impl Ring {
    pub fn new(name: &'static str, map: Map) -> Result<Self, KernelError> {
        let ring = RingBuf::try_from(map).map_err(|source| KernelError::AyaMap { name, source })?;
        Ok(Self { ring, name })
    }

    /// The next record of type `T`, with what follows it. Shorter records are skipped: they cannot come from
    /// our programs.
    pub(super) fn next<T: aya::Pod>(&mut self) -> Option<(T, Item<'_>)> {
        let item = self.ring.next()?;
        if item.len() < size_of::<T>() {
            panic!("a record of {} bytes in ring {}: the object and the agent differ", item.len(), self.name);
        }
        // SAFETY: at least `size_of::<T>()` bytes, and any bits are a valid `T` (Pod).
        let value = unsafe { item.as_ptr().cast::<T>().read_unaligned() };
        Some((value, Item(item)))
    }
}

/// Holds the record in the ring until it is dropped.
pub(super) struct Item<'a>(aya::maps::ring_buf::RingBufItem<'a>);

impl Item<'_> {
    /// The whole record.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Reader of call records.
pub struct CallReader(pub(super) Ring);

impl CallReader {
    /// Hands all records that are there to `each`, at most `limit`; returns how many.
    ///
    /// # Cost
    /// 20 ns a record, without system calls or allocation.
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(Call)) -> usize {
        let mut n = 0;
        while n < limit {
            let Some((r, _item)) = self.0.next::<CallRecord>() else { break };
            each(Call {
                time_ns: r.time_ns,
                duration_ns: (r.duration_ns != NO_DURATION).then_some(r.duration_ns),
                nested_cost_ns: r.nested_cost_ns,
                class: ClassId(r.class),
                pid: r.pid,
                tid: r.tid,
                args: (r.flags & CALL_NO_ARGUMENTS == 0).then_some(r.args),
                return_address: (r.return_address != 0).then_some(r.return_address),
                result: (r.flags & CALL_HAS_RESULT != 0).then_some(r.result),
                around: (r.flags & CALL_HAS_PLACE != 0)
                    .then(|| (r.depth, (r.outer != FREE).then_some(ClassId(r.outer)))),
                context: r.context,
            });
            n += 1;
        }
        n
    }
}

/// Reader of steps.
pub struct StepReader(pub(super) Ring);

impl StepReader {
    /// Hands all steps that are there to `each`, at most `limit`; returns how many. They come in the order of their thread.
    ///
    /// # Cost
    /// 20 ns a step, without system calls or allocation.
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(&StepRecord)) -> usize {
        let mut n = 0;
        while n < limit {
            let Some((step, _item)) = self.0.next::<StepRecord>() else { break };
            each(&step);
            n += 1;
        }
        n
    }
}

/// Reader of samples.
pub struct SampleReader(pub(super) Ring);

impl SampleReader {
    /// Hands all samples that are there to `each`, at most `limit`; returns how many. The stack lives only during the
    /// call: unwind or copy it there.
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(Sample<'_>)) -> usize {
        let mut n = 0;
        while n < limit {
            let Some((h, item)) = self.0.next::<SampleHeader>() else { break };
            let stack = item.0.get(size_of::<SampleHeader>()..).unwrap_or_default();
            let stack = stack.get(..h.stack_bytes as usize).unwrap_or_default();
            each(Sample {
                time_ns: h.time_ns,
                registers: (h.flags & SAMPLE_NO_REGISTERS == 0).then_some(UserRegisters {
                    ip: h.ip,
                    sp: h.sp,
                    bp: h.bp,
                }),
                kernel_ip: (h.flags & SAMPLE_IN_KERNEL != 0).then_some(h.kernel_ip),
                period_ns: h.period_ns,
                pid: h.pid,
                tid: h.tid,
                cpu: h.cpu,
                stack,
                stack_asked: h.stack_asked,
            });
            n += 1;
        }
        n
    }
}

/// Reader of alarms, for the governor: nothing here allocates or blocks. Wait for its descriptor to be readable.
pub struct AlarmReader(pub(super) Ring);

impl AlarmReader {
    /// The next alarm; `None` if there is none now.
    pub fn try_next(&mut self) -> Option<Result<Alarm, UnknownValue>> {
        let (r, _item) = self.0.next::<RawAlarm>()?;
        Some(AlarmKind::try_from(r.kind).map(|kind| Alarm {
            time_ns: r.time_ns,
            kind,
            class: ClassId(r.class),
            remaining: r.remaining,
            pid: r.pid,
            tid: r.tid,
        }))
    }
}

impl AsFd for AlarmReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.ring.as_fd()
    }
}

impl AsRawFd for AlarmReader {
    fn as_raw_fd(&self) -> i32 {
        self.0.ring.as_raw_fd()
    }
}

/// Reader of births and deaths. The tracepoints are attached as long as it lives.
pub struct LifecycleReader {
    pub(super) ring: Ring,
    pub(super) _links: Vec<aya::programs::raw_trace_point::RawTracePointLink>,
}

impl LifecycleReader {
    /// The next event; `None` if there is none now.
    pub fn try_next(&mut self) -> Option<Result<LifecycleEvent, UnknownValue>> {
        let (r, _item) = self.ring.next::<LifecycleRecord>()?;
        let LifecycleRecord { time_ns, pid, tid, child_pid, child_tid, .. } = r;
        Some(LifecycleKind::try_from(r.kind).map(|kind| match kind {
            LifecycleKind::ThreadBorn => LifecycleEvent::ThreadBorn { time_ns, pid, tid: child_tid },
            LifecycleKind::Forked => LifecycleEvent::Forked { time_ns, parent: pid, child: child_pid },
            LifecycleKind::Execed => LifecycleEvent::Execed { time_ns, pid },
            LifecycleKind::ThreadExited => LifecycleEvent::ThreadExited { time_ns, pid, tid },
        }))
    }
}

impl AsFd for LifecycleReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.ring.as_fd()
    }
}

impl AsRawFd for LifecycleReader {
    fn as_raw_fd(&self) -> i32 {
        self.ring.ring.as_raw_fd()
    }
}
