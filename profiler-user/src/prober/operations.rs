//! Operations in the kernel: what is decided about them, what was counted, which were recorded.
//!
//! [`OperationTable`] is shared memory like [`ClassTable`](super::ClassTable): no system call, no allocation.
//! [`OperationReader`] drains the ring of recorded operations and learns the names that the programs gave classes.

use super::memory::{Layout, MappedArray};
use super::rings::Ring;
use super::{Kernel, KernelError};
use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::RawTracePoint;
use aya::programs::raw_trace_point::RawTracePointLink;
use profiler_common::histogram::{BUCKETS, HistogramSlot, SLOT_BUCKETS, SLOTS};
use profiler_common::operation::{
    ARGUMENT_INT, ARGUMENT_LONG, MAX_OPERATIONS, OperationClass, OperationControl, OperationCounters,
    OperationName, OperationRecord, OperationState,
};
use profiler_common::settings::Settings;
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

// Words of `OperationClass` and `OperationState`, as the programs lay them out.
const THRESHOLD: usize = std::mem::offset_of!(OperationClass, threshold) / 8;
const PRICE: usize = std::mem::offset_of!(OperationClass, price_ns) / 8;
const STRETCH: usize = std::mem::offset_of!(OperationClass, stretch) / 8;
const CLASS_POPULATION: usize = std::mem::offset_of!(OperationClass, population) / 8;
const HISTOGRAM: usize = std::mem::offset_of!(OperationClass, histogram) / 8;
const CLASS_SAMPLE: usize = std::mem::offset_of!(OperationClass, sample) / 8;
const POPULATION: usize = std::mem::offset_of!(OperationState, population) / 8;
const SAMPLE: usize = std::mem::offset_of!(OperationState, sample) / 8;
const LOSSES: usize = std::mem::offset_of!(OperationState, losses) / 8;
const LOSSES_MENDED: usize = std::mem::offset_of!(OperationState, losses_mended) / 8;
/// As many losses never come: something is missing.
const NEVER_MENDED: u64 = u64::MAX;
const DETAILS: usize = std::mem::offset_of!(OperationState, details) / 8;
const NEXT_CLASS: usize = std::mem::offset_of!(OperationState, next_class) / 8;
const _: () = assert!(std::mem::offset_of!(OperationState, quota_ns) == 0);

/// Handle on the operations in the kernel. Cheap to clone.
#[derive(Clone)]
pub struct OperationTable {
    shared: Arc<Shared>,
}

struct Shared {
    classes: u32,
    stripes: u32,
    control: MappedArray<OperationControl>,
    state: MappedArray<OperationState>,
    numbers: MappedArray<OperationClass>,
    counters: MappedArray<OperationCounters>,
    histograms: MappedArray<HistogramSlot>,
    of_stripe: u32,
}

impl OperationTable {
    pub(super) fn new<'a>(
        layout: &Layout,
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
        let operations = MAX_OPERATIONS as u32;
        Ok(Self {
            shared: Arc::new(Shared {
                classes: layout.operation_classes,
                stripes: layout.stripes,
                control: map(&fd, "OPERATIONS", operations)?,
                state: map(&fd, "OPERATION_STATE", operations)?,
                numbers: map(&fd, "OPERATION_CLASSES", layout.operation_classes)?,
                counters: map(&fd, "OPERATION_COUNTERS", layout.operation_classes * layout.stripes)?,
                histograms: map(
                    &fd,
                    "OPERATION_HISTOGRAMS",
                    layout.operation_histograms * layout.operation_stripes * SLOTS,
                )?,
                of_stripe: layout.operation_histograms * SLOTS,
            }),
        })
    }

    /// Classes that fit, all operations together: numbers are below this.
    #[must_use]
    pub fn max_classes(&self) -> u32 {
        self.shared.classes
    }

    /// Sets up an operation before it is attached; `next_class` is the first class that is given to a name.
    ///
    /// # Panics
    /// The operation is not below [`MAX_OPERATIONS`]; likewise in all other methods.
    pub fn configure(&self, operation: u32, control: &OperationControl, next_class: u32) {
        self.shared.control.write(operation, control);
        self.shared.state.set_word(operation, NEXT_CLASS, u64::from(next_class));
    }

    /// Changes the control of an operation that runs: flags, slack, cycle.
    pub fn adjust(&self, operation: u32, change: impl FnOnce(&mut OperationControl)) {
        let mut control = self.shared.control.read(operation);
        change(&mut control);
        self.shared.control.write(operation, &control);
    }

    /// Sets what recording may cost from now on, ns.
    pub fn set_quota(&self, operation: u32, quota_ns: u64) {
        let quota_ns = i64::try_from(quota_ns).unwrap_or(i64::MAX);
        self.shared.state.signed(operation, 0).store(quota_ns, Ordering::Release);
    }

    /// Sets rate (as [`profiler_core::adapt::decision::threshold`]), price and stretch of a class.
    pub fn order(&self, class: u32, threshold: u64, price_ns: u64, stretch: u64) {
        self.shared.numbers.set_word(class, PRICE, price_ns);
        self.shared.numbers.set_word(class, STRETCH, stretch);
        self.shared.numbers.set_word(class, THRESHOLD, threshold);
    }

    /// A new cycle begins: population and sample of Algorithm 1 start at 0. Operations that begin in this moment may be
    /// missing in one of the counts.
    pub fn begin_cycle(&self, operation: u32, classes: std::ops::Range<u32>) {
        for class in classes {
            self.shared.numbers.set_word(class, CLASS_POPULATION, 0);
            self.shared.numbers.set_word(class, CLASS_SAMPLE, 0);
        }
        self.shared.state.set_word(operation, POPULATION, 0);
        self.shared.state.set_word(operation, SAMPLE, 0);
    }

    /// Operations are recorded with all their calls, unless a quota was used up since [`losses`](Self::losses) was as many.
    pub fn details_are_back(&self, losses: u64) {
        self.shared.state.set_word(0, LOSSES_MENDED, losses);
    }

    /// Inner functions are about to go: until [`details_are_back`](Self::details_are_back) nothing is recorded, also nothing
    /// that is open.
    pub fn details_are_lost(&self) {
        self.shared.state.set_word(0, LOSSES_MENDED, NEVER_MENDED);
        self.details_end();
    }

    /// Inner functions go: what is open and recorded is lost, because it may lack calls. What begins later is not concerned.
    pub fn details_end(&self) {
        // Only the agent writes it.
        let number = self.shared.state.word(0, DETAILS).wrapping_add(1);
        self.shared.state.set_word(0, DETAILS, number);
    }

    /// An inner function has used up its quota since [`details_are_back`](Self::details_are_back), or they are held: nothing is recorded.
    #[must_use]
    pub fn lacks_details(&self) -> bool {
        self.losses() != self.shared.state.word(0, LOSSES_MENDED)
    }

    /// How often inner functions have used up a quota, so that calls are missing from then on.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.shared.state.word(0, LOSSES)
    }

    /// First number that has not been given to a class; may lie beyond the operation's last class.
    #[must_use]
    pub fn next_class(&self, operation: u32) -> u64 {
        self.shared.state.word(operation, NEXT_CLASS)
    }

    /// Counters of a class, never reset, summed over the stripes.
    #[must_use]
    pub fn counters(&self, class: u32) -> OperationCounters {
        let mut sum = OperationCounters::default();
        for stripe in 0..self.shared.stripes {
            sum.add(&self.shared.counters.read(stripe * self.shared.classes + class));
        }
        sum
    }

    /// Response times of all operations of a class that ended, per bucket ([`profiler_common::histogram::bounds`]): as many as
    /// the counters' `population`. `None`: none has ended, or others had taken all histograms by then.
    #[must_use]
    pub fn histogram(&self, class: u32) -> Option<Box<[u64; BUCKETS]>> {
        let shared = &self.shared;
        let number = shared.numbers.word(class, HISTOGRAM).checked_sub(1)?;
        let first =
            u32::try_from(number).ok()?.checked_mul(SLOTS).filter(|first| *first < shared.of_stripe)?;
        let mut sum = Box::new([0u64; BUCKETS]);
        for stripe in (0..shared.histograms.elements()).step_by(shared.of_stripe as usize) {
            for (slot, buckets) in (0..SLOTS).zip(sum.chunks_mut(SLOT_BUCKETS)) {
                for (within, bucket) in buckets.iter_mut().enumerate() {
                    *bucket = bucket.wrapping_add(shared.histograms.word(stripe + first + slot, within));
                }
            }
        }
        Some(sum)
    }
}

/// A name that a class was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewName {
    /// Operation.
    pub operation: u32,
    /// Class.
    pub class: u32,
    /// Name.
    pub name: String,
}

/// Reader of recorded operations and of the names of classes.
pub struct OperationReader {
    ring: Ring,
    names: HashMap<MapData, OperationName, u32>,
    known: HashSet<u32>,
}

impl OperationReader {
    pub(super) fn new(ring: Ring, names: Map) -> Result<Self, KernelError> {
        let names = HashMap::try_from(names)
            .map_err(|source| KernelError::AyaMap { name: "OPERATION_NAMES", source })?;
        Ok(Self { ring, names, known: HashSet::new() })
    }

    /// Hands all records that are there to `each`, at most `limit`; returns how many.
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(&OperationRecord)) -> usize {
        let mut n = 0;
        while n < limit {
            let Some((record, _item)) = self.ring.next::<OperationRecord>() else { break };
            each(&record);
            n += 1;
        }
        n
    }

    /// Names given since the last call. Walks all names: ask when [`OperationTable::next_class`] has grown.
    ///
    /// # Cost
    /// Two system calls a name.
    #[must_use]
    pub fn new_names(&mut self) -> Vec<NewName> {
        let mut new = Vec::new();
        // Errors of single entries: one that came while we walked is there the next time.
        for (key, class) in self.names.iter().filter_map(Result::ok) {
            if self.known.insert(class) {
                new.push(NewName { operation: key.operation, class, name: text(&key) });
            }
        }
        new.sort_by_key(|n| n.class);
        new
    }
}

/// A name as people read it: invalid UTF-8 (also a character that the bound has cut) is replaced.
fn text(name: &OperationName) -> String {
    if name.kind == ARGUMENT_INT || name.kind == ARGUMENT_LONG {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&name.bytes[..8]);
        return i64::from_le_bytes(bytes).to_string();
    }
    let end = name.bytes.iter().position(|b| *b == 0).unwrap_or(name.bytes.len());
    let bytes = &name.bytes[..end];
    // A last character cut in the middle goes whole.
    let whole = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    };
    String::from_utf8_lossy(whole).into_owned()
}

/// The operations that one system call bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyscallBounds {
    /// Begins when the call returns without an error.
    pub begins_at_exit: Option<u32>,
    /// Ends when the call returns.
    pub ends_at_exit: Option<u32>,
    /// Begins when the call is made.
    pub begins_at_entry: Option<u32>,
}

impl SyscallBounds {
    /// As the programs read it: a byte each, 0 for none.
    fn word(self) -> u32 {
        let byte = |operation: Option<u32>| operation.map_or(0, |n| (n + 1) & 0xff);
        byte(self.begins_at_exit) | byte(self.ends_at_exit) << 8 | byte(self.begins_at_entry) << 16
    }
}

/// System calls bound operations, as long as it lives.
pub struct SyscallWatch {
    _links: Vec<RawTracePointLink>,
}

impl Kernel {
    /// Lets system calls of the process `pid` (numbers below 512) bound operations. Every process pays for the tracepoints:
    /// look at `operation_syscalls_other` of the global counters.
    ///
    /// # Errors
    /// The kernel refuses a program.
    pub fn watch_syscalls(
        &self,
        bounds: &[(u32, SyscallBounds)],
        pid: u32,
    ) -> Result<SyscallWatch, KernelError> {
        let settings = self.classes().settings();
        self.classes().set_settings(Settings { operation_pid: pid, ..settings });
        let mut ebpf = self.ebpf();
        let map_error = |source| KernelError::AyaMap { name: "OPERATION_SYSCALLS", source };
        let map = ebpf
            .map_mut("OPERATION_SYSCALLS")
            .ok_or_else(|| KernelError::Object("no map OPERATION_SYSCALLS".into()))?;
        let mut table: Array<&mut MapData, u32> = Array::try_from(map).map_err(map_error)?;
        for (number, bounds) in bounds {
            table.set(*number, bounds.word(), 0).map_err(map_error)?;
        }
        let mut wanted = vec![("operation_sys_exit", "sys_exit")];
        if bounds.iter().any(|(_, b)| b.begins_at_entry.is_some()) {
            wanted.push(("operation_sys_enter", "sys_enter"));
        }
        let mut links = Vec::new();
        for (program, tracepoint) in wanted {
            let program = ebpf
                .program_mut(program)
                .ok_or_else(|| KernelError::Object(format!("no program {program}")))?;
            let failed = |source| KernelError::Tracepoint { name: tracepoint.to_owned(), source };
            let program: &mut RawTracePoint = program.try_into().map_err(failed)?;
            if program.fd().is_err() {
                program.load().map_err(failed)?;
            }
            let link = program.attach(tracepoint).map_err(failed)?;
            links.push(program.take_link(link).map_err(failed)?);
        }
        Ok(SyscallWatch { _links: links })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::operation::{ARGUMENT_STRING, NAME_BYTES};

    fn name(kind: u32, bytes: &[u8]) -> OperationName {
        let mut name = OperationName { operation: 0, kind, bytes: [0; NAME_BYTES] };
        name.bytes[..bytes.len()].copy_from_slice(bytes);
        name
    }

    #[test]
    fn names_are_read_as_people_wrote_them() {
        assert_eq!(text(&name(ARGUMENT_STRING, b"GET /a")), "GET /a");
        assert_eq!(text(&name(ARGUMENT_INT, &(-7i64).to_le_bytes())), "-7");
        let long = "é".repeat(40);
        // 63 bytes: the 32nd character is cut in the middle.
        assert_eq!(text(&name(ARGUMENT_STRING, &long.as_bytes()[..63])), "é".repeat(31));
        assert_eq!(text(&name(ARGUMENT_STRING, b"a\xffb")), "a\u{fffd}b");
    }

    #[test]
    fn bounds_of_a_system_call_are_bytes_of_a_word() {
        let bounds = SyscallBounds { begins_at_exit: Some(0), ends_at_exit: Some(2), begins_at_entry: None };
        assert_eq!(bounds.word(), 0x0301);
        assert_eq!(SyscallBounds::default().word(), 0);
    }
}
