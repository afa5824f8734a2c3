//! The edge to the kernel: loads the eBPF programs, attaches them, reads what they counted and sent.
//!
//! This is the only folder that names aya, aya-obj or bpf(2). In: numbers that others computed (controls, quotas,
//! periods) and sites that others chose. Out: counters, histograms, records, samples, alarms. It takes no decision about
//! what to watch and checks no safety rule of a target; `inspect`, `agent` and `governor` do.
//!
//! [`Kernel::load`] finds the capability tier; [`Kernel::classes`] controls and reads classes; [`Kernel::attach`] gives
//! [`Link`]s.

mod callers;
mod child;
mod classes;
mod context;
mod group;
mod links;
mod log;
mod memory;
mod object;
mod open_records;
mod operations;
mod options;
mod presence;
mod progress;
mod rings;
mod sampler;
mod sys;
mod target_set;
mod threads;
mod tier;
mod tracepoints;
mod trials;
mod vmlinux;
mod words;

pub use callers::KnownCaller;
pub use classes::{ClassTable, HistogramLease};
pub use group::{AttachGroup, LinkKind, Site, SiteRole};
pub use links::{AttachError, Attached, Link, RefusedSite};
pub use log::KernelLog;
pub use object::programs_id;
pub use open_records::OpenRecord;
pub use operations::{NewName, OperationReader, OperationTable, SyscallBounds, SyscallWatch};
pub use options::KernelOptions;
pub use profiler_common::class::{
    ALARM_REPEAT, CallerCounters, ClassControl, ClassCounters, ClassKind, FLAG_ARGUMENTS, FLAG_BY_THREAD,
    FLAG_CONTEXT, FLAG_FILTER_TARGETS, FLAG_INNER_CALL, FLAG_INSIDE, FLAG_LEARN_CALLERS, FLAG_NO_QUOTA,
    FLAG_WORDS, NO_HISTOGRAM, NO_OPERATION, register_word,
};
pub use profiler_common::context::{CallContext, UNKNOWN, UNKNOWN_COUNT};
pub use profiler_common::cookie::SLOT_UNKNOWN;
pub use profiler_common::event::{AlarmKind, STACK_SIZES};
pub use profiler_common::histogram;
pub use profiler_common::operation::{
    self as operation, MAX_OPERATIONS, OperationControl, OperationCounters, OperationRecord, Sums,
};
pub use profiler_common::presence::OFF_CPU_UNKNOWN;
pub use profiler_common::settings::{GlobalCounters, Settings};
pub use profiler_common::step::StepRecord;
pub use profiler_common::thread::{OPERATION_RECORDED, OpenOperation};
pub use profiler_common::words::{self as word, WordSpec, word_list};
pub use profiler_core::class::Tier;
pub use progress::{PROGRESS_OTHERS, ProgressProbe, ProgressSource};
pub use rings::{
    Alarm, AlarmReader, Call, CallReader, LifecycleEvent, LifecycleReader, Sample, SampleReader, StepReader,
    UserRegisters,
};
pub use sampler::{MIN_PERIOD_NS, SampleError, SampleEvent, SampleKind, Sampler, ThreadSampling};
pub use sys::ProgramInfo;
pub use threads::OpenCall;
pub use tier::TierFinding;
pub use tracepoints::{TRACEPOINT_ARGUMENTS, TracepointBound, TracepointWatch};
pub use trials::ProgramTrial;
pub use vmlinux::BtfError;
pub use words::{Taking, TakingReader, Word};

use aya::maps::{HashMap as BpfHashMap, MapData};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use callers::CallerTable;
use context::ContextOffsets;
use links::Attacher;
use memory::{Layout, MappedArray};
use object::{OBJECT, Programs, map_data};
use presence::PresenceOffsets;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmlinux::Vmlinux;
use words::WordTable;

/// Why the kernel side could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel's type information is needed.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The object and the agent do not fit together.
    #[error("the embedded eBPF object is unusable: {0}; rebuild it with 'cargo xtask build-ebpf'")]
    Object(String),
    /// Maps cannot be created.
    #[error(
        "cannot create the eBPF maps: {0}; Tithe needs root, or CAP_BPF and CAP_PERFMON: run it with sudo"
    )]
    Load(#[from] aya::EbpfError),
    /// A map cannot be used.
    #[error("cannot use the map {name}: {source}")]
    Map {
        /// The map.
        name: &'static str,
        /// The error.
        source: io::Error,
    },
    /// A map operation of aya failed.
    #[error("cannot use the map {name}: {source}")]
    AyaMap {
        /// The map.
        name: &'static str,
        /// The error.
        source: aya::maps::MapError,
    },
    /// The kernel refuses a program.
    #[error("the kernel refuses the program '{name}': {source}; the verifier says:\n{log}")]
    Program {
        /// The program.
        name: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// End of the verifier's log.
        log: String,
    },
    /// The kernel lacks a function that a program calls.
    #[error(
        "this kernel has no function {function}, which the program '{program}' calls (Linux 6.13 brought it)"
    )]
    NoKernelFunction {
        /// The program.
        program: &'static str,
        /// The function.
        function: &'static str,
    },
    /// The behaviour probe could not run.
    #[error("cannot probe what this kernel can do: {0}")]
    Probe(io::Error),
    /// No tier works, or the forced one does not.
    #[error("uprobes do not work here: {0}; 'tithe doctor' says what is missing")]
    NoTier(String),
    /// A tracepoint cannot be attached.
    #[error("cannot attach to the tracepoint {name}: {source}")]
    Tracepoint {
        /// The tracepoint.
        name: String,
        /// The error.
        source: aya::programs::ProgramError,
    },
    /// A tracepoint that should bound an operation cannot be attached.
    #[error("cannot attach to the tracepoint {name}: {source}")]
    TracepointLink {
        /// The tracepoint.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Each ring has one reader.
    #[error("the reader of ring {0} was taken before")]
    ReaderTaken(&'static str),
    /// The maps do not fit.
    #[error(
        "the maps need {:.1} MiB and the limit is {:.1} MiB: raise --kernel-memory or ask for fewer classes",
        *needed as f64 / 1048576.0, *limit as f64 / 1048576.0
    )]
    Memory {
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

/// The loaded kernel side. All methods take `&self`; share it in an `Arc`.
pub struct Kernel {
    tier: Tier,
    session_program: &'static str,
    findings: Vec<TierFinding>,
    lasting_tier: Option<Tier>,
    memory_bytes: u64,
    programs: Programs,
    classes: ClassTable,
    callers: CallerTable,
    operations: OperationTable,
    words: WordTable,
    targets: Mutex<BpfHashMap<MapData, u32, u32>>,
    ebpf: Mutex<Ebpf>,
}

impl Kernel {
    /// Creates the maps and finds the tier.
    ///
    /// # Errors
    /// No permission, no BTF, too little memory allowed, or a forced tier that does not work here.
    pub fn load(options: &KernelOptions) -> Result<Self, KernelError> {
        Self::load_in(options, None)
    }

    /// The same, where the tier is known ([`Kernel::lasting_tier`]): it is not tried, which takes 0.09 s of CPU time, unless one is forced. Whether
    /// it works shows when something is attached.
    ///
    /// # Errors
    /// As [`Kernel::load`].
    pub fn load_in(options: &KernelOptions, known: Option<Tier>) -> Result<Self, KernelError> {
        raise_descriptor_limit();
        let vmlinux = Vmlinux::read()?;
        let cpus = possible_cpus();
        let layout = Layout::fit(options, cpus)?;
        let mut ebpf = load_maps(options, &layout, &vmlinux)?;
        let memory_bytes = ebpf.maps().filter_map(|(_, map)| map_data(map)).map(map_memory_bytes).sum();
        let programs = Programs::new(&ebpf, &vmlinux)?;
        let classes =
            ClassTable::new(layout, |name| ebpf.map(name).and_then(map_data).map(|d| d.fd().as_fd()))?;
        let callers =
            CallerTable::new(ebpf.map("CALLERS").and_then(map_data).map(|d| d.fd().as_fd()), layout.callers)?;
        let operations =
            OperationTable::new(&layout, |name| ebpf.map(name).and_then(map_data).map(|d| d.fd().as_fd()))?;
        let specs = ebpf.map("WORDS").and_then(map_data).map(|d| d.fd().as_fd());
        let specs = specs.ok_or_else(|| KernelError::Object("no map WORDS".into()))?;
        let specs = MappedArray::new(specs, word::MAX_WORDS)
            .map_err(|source| KernelError::Map { name: "WORDS", source })?;
        let words = WordTable::new(specs);
        classes.set_settings(Settings {
            stack_bytes: options.stack_bytes,
            sample_cost_ns: 0,
            stack_span_bytes: options.stack_span_bytes,
            sample_period_ns: 0,
            progress_pid: 0,
            operation_pid: 0,
        });
        let targets = ebpf.take_map("TARGETS").ok_or_else(|| KernelError::Object("no map TARGETS".into()))?;
        let targets = BpfHashMap::try_from(targets)
            .map_err(|source| KernelError::AyaMap { name: "TARGETS", source })?;
        let targets = Mutex::new(targets);
        let findings = tier::find(options.forced_tier, known, &vmlinux, &programs, &classes, &targets)?;
        // OK because `find` returns a last finding that works.
        let last = findings.last().cloned().ok_or_else(|| KernelError::NoTier("none tried".into()))?;
        classes.filter_in_programs(last.tier == Tier::C);
        Ok(Self {
            tier: last.tier,
            session_program: last.program,
            lasting_tier: TierFinding::lasting(&findings, &vmlinux).filter(|_| options.forced_tier.is_none()),
            findings,
            memory_bytes,
            programs,
            classes,
            callers,
            operations,
            words,
            targets,
            ebpf: Mutex::new(ebpf),
        })
    }

    /// The capability tier in use.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// The tier in use, if these programs may believe it later on this boot ([`Kernel::load_in`]). `None`: try again.
    #[must_use]
    pub fn lasting_tier(&self) -> Option<Tier> {
        self.lasting_tier
    }

    /// What the probe of the tiers found, best tier first; the last is the one in use. Of a known tier nothing else.
    #[must_use]
    pub fn tier_findings(&self) -> &[TierFinding] {
        &self.findings
    }

    /// Memory of all maps, bytes, by the kernel's own account when they were created. Each thread that has made a timed
    /// call takes another 8 KiB until it ends (its state of 4 KiB and the kernel's header, which do not fit into a slab of 4 KiB; seen
    /// in `kmalloc-cg-8k` of `/proc/slabinfo`), where calls are recorded as much again (their arguments and accounts).
    #[must_use]
    pub fn kernel_memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Control, quotas, counters, histograms.
    #[must_use]
    pub fn classes(&self) -> &ClassTable {
        &self.classes
    }

    /// Classes, decisions and counters of operations.
    #[must_use]
    pub fn operations(&self) -> &OperationTable {
        &self.operations
    }

    /// The reader of recorded operations. There is one.
    ///
    /// # Errors
    /// It was taken before.
    pub fn operation_reader(&self) -> Result<OperationReader, KernelError> {
        let names =
            self.ebpf().take_map("OPERATION_NAMES").ok_or(KernelError::ReaderTaken("OPERATION_NAMES"))?;
        OperationReader::new(self.take_ring("OPERATION_RECORDS")?, names)
    }

    /// Attaches a group. Sites that the kernel refuses are left out and reported.
    ///
    /// # Errors
    /// Nothing could be attached.
    pub fn attach(&self, group: &AttachGroup) -> Result<Attached, AttachError> {
        self.attacher().attach(group)
    }

    fn attacher(&self) -> Attacher<'_> {
        Attacher { programs: &self.programs, tier: self.tier, session_program: self.session_program }
    }

    /// Loads the programs of these kinds of links now; false if the kernel refuses one, which is kept, and told to whoever attaches it. The kernel looks
    /// at each for 1 ms to 0.4 s, once; who loads one only when he attaches waits for that, and with him all that he serves.
    pub fn load_programs(&self, kinds: &[LinkKind]) -> bool {
        // Counted, so that all of them are loaded.
        kinds.iter().filter(|kind| self.attacher().load(**kind).is_err()).count() == 0
    }

    /// The reader of call records. There is one.
    ///
    /// # Errors
    /// It was taken before.
    pub fn call_reader(&self) -> Result<CallReader, KernelError> {
        self.take_ring("EVENTS").map(CallReader)
    }

    /// The reader of steps. There is one.
    ///
    /// # Errors
    /// It was taken before.
    pub fn step_reader(&self) -> Result<StepReader, KernelError> {
        self.take_ring("STEPS").map(StepReader)
    }

    /// The reader of samples. There is one.
    ///
    /// # Errors
    /// It was taken before.
    pub fn sample_reader(&self) -> Result<SampleReader, KernelError> {
        self.take_ring("SAMPLES").map(SampleReader)
    }

    /// The reader of alarms. There is one.
    ///
    /// # Errors
    /// It was taken before.
    pub fn alarm_reader(&self) -> Result<AlarmReader, KernelError> {
        self.take_ring("ALARMS").map(AlarmReader)
    }

    /// Attaches to fork, exec and exit, and gives the reader of what happens to targets. There is one.
    ///
    /// # Errors
    /// It was taken before, or the kernel refuses a program.
    pub fn watch_lifecycle(&self) -> Result<LifecycleReader, KernelError> {
        const TRACEPOINTS: [(&str, &str); 3] = [
            ("fork", "sched_process_fork"),
            ("exec", "sched_process_exec"),
            ("exit_task", "sched_process_exit"),
        ];
        let ring = self.take_ring("LIFECYCLE")?;
        let mut ebpf = self.ebpf();
        let mut links = Vec::new();
        for (program, name) in TRACEPOINTS {
            let program = ebpf
                .program_mut(program)
                .ok_or_else(|| KernelError::Object(format!("no program {program}")))?;
            let failed = |source| KernelError::Tracepoint { name: name.to_owned(), source };
            let program: &mut RawTracePoint = program.try_into().map_err(failed)?;
            program.load().map_err(failed)?;
            let link = program.attach(name).map_err(failed)?;
            links.push(program.take_link(link).map_err(failed)?);
        }
        Ok(LifecycleReader { ring, _links: links })
    }

    /// The programs' diagnostics; there are some only if [`KernelOptions::verbose`] was set.
    ///
    /// # Errors
    /// It was taken before.
    pub fn log(&self) -> Result<KernelLog, KernelError> {
        KernelLog::new(&mut self.ebpf())
    }

    fn ebpf(&self) -> MutexGuard<'_, Ebpf> {
        // OK to go on after a panic elsewhere: maps are taken out one by one.
        self.ebpf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_ring(&self, name: &'static str) -> Result<rings::Ring, KernelError> {
        let map = self.ebpf().take_map(name).ok_or(KernelError::ReaderTaken(name))?;
        rings::Ring::new(name, map)
    }

    /// Hits that the kernel counted as missed before our programs ran, all programs together.
    #[must_use]
    pub fn kernel_misses(&self) -> u64 {
        self.programs.info().iter().map(|(_, info)| info.missed).sum()
    }

    /// What the kernel tells of each program loaded so far, by name; one name may be there for several kinds of link.
    #[must_use]
    pub fn program_info(&self) -> Vec<(&'static str, ProgramInfo)> {
        self.programs.info()
    }
}

/// Creates all maps in their sizes.
fn load_maps(options: &KernelOptions, layout: &Layout, vmlinux: &Vmlinux) -> Result<Ebpf, KernelError> {
    let (stripe_mask, caller_mask) = (layout.stripes - 1, layout.callers - 1);
    let operation_stripe_mask = layout.operation_stripes - 1;
    let task_pid = vmlinux.field_offset("task_struct", "pid")?;
    let task_tgid = vmlinux.field_offset("task_struct", "tgid")?;
    let presence = PresenceOffsets::find(vmlinux);
    let context = ContextOffsets::find(vmlinux);
    // aya-log's levels: 2 is a warning. The programs warn or are silent.
    let log_level: u8 = if options.verbose { 2 } else { 0 };
    let mut loader = EbpfLoader::new();
    presence.set(&mut loader);
    context.set(&mut loader);
    let ebpf = loader
        // The task storage maps: aya has no type for them.
        .allow_unsupported_maps()
        .override_global("AYA_LOG_LEVEL", &log_level, true)
        .override_global("MAX_CLASSES", &layout.max_classes, true)
        .override_global("HISTOGRAM_SLOTS", &layout.histogram_slots, true)
        .override_global("MAX_OPERATION_CLASSES", &layout.operation_classes, true)
        .override_global("STRIPE_MASK", &stripe_mask, true)
        .override_global("TASK_PID_OFFSET", &task_pid, true)
        .override_global("TASK_TGID_OFFSET", &task_tgid, true)
        .map_max_entries("AYA_LOGS", 16 * 1024)
        .override_global("CALLER_MASK", &caller_mask, true)
        .map_max_entries("CALLERS", layout.callers)
        .map_max_entries("CONTROL", layout.max_classes)
        .map_max_entries("QUOTA", layout.max_classes)
        .map_max_entries("COUNTERS", layout.max_classes * layout.stripes)
        .map_max_entries("HISTOGRAMS", layout.histogram_slots * layout.stripes)
        .map_max_entries("GLOBAL_COUNTERS", layout.stripes)
        .map_max_entries("PROGRESS", layout.stripes)
        .map_max_entries("OPERATION_CLASSES", layout.operation_classes)
        .map_max_entries("OPERATION_COUNTERS", layout.operation_classes * layout.stripes)
        .override_global("MAX_OPERATION_HISTOGRAMS", &layout.operation_histograms, true)
        .override_global("OPERATION_STRIPE_MASK", &operation_stripe_mask, true)
        .map_max_entries(
            "OPERATION_HISTOGRAMS",
            layout.operation_histograms * layout.operation_stripes * histogram::SLOTS,
        )
        .map_max_entries("OPERATION_NAMES", layout.operation_classes)
        .map_max_entries("OPERATION_RECORDS", layout.operations_bytes)
        .map_max_entries("STEPS", layout.steps_bytes)
        .override_global("WORD_LIMIT", &options.word_limit, true)
        .map_max_entries("TAKINGS", layout.takings_bytes)
        .map_max_entries("EVENTS", layout.events_bytes)
        .map_max_entries("SAMPLES", layout.samples_bytes)
        .map_max_entries("ALARMS", layout.alarms_bytes)
        .map_max_entries("LIFECYCLE", layout.lifecycle_bytes)
        .load(OBJECT)?;
    Ok(ebpf)
}

/// Memory of a map by the kernel's account (`memlock` in fdinfo); 0 if it does not tell.
fn map_memory_bytes(map: &MapData) -> u64 {
    let fd = map.fd().as_fd().as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("memlock:"));
    line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
}

/// One descriptor per sampled thread and per link: raises the soft limit to the hard one. OK if that fails, because
/// opening then says what to do.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 && limit.rlim_cur < limit.rlim_max
    {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: a limit as read, within its bounds.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// CPUs that the kernel may ever bring up; 1 if that cannot be read.
fn possible_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    // "0-63" or "0,2-3": the last number is the highest.
    let highest = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    highest + 1
}
