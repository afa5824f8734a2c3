//! Progress metrics: what says how much work the target has done.
//!
//! | `--progress` | counted by | cost |
//! |---|---|---|
//! | `var:NAME` | the target, in its own memory | none |
//! | `syscall:NAME` | raw tracepoint `sys_enter` | some 70 ns per system call of *any* process |
//! | `tp:[CATEGORY/]NAME` | a raw tracepoint | the same per hit |
//! | `fn:PATTERN` | a class of its own | a counted hit |
//!
//! Whatever the kernel counts it counts in windows off as well, so that its cost lies in both arms and not in the figure.

use super::Agent;
use super::class::Wish;
use super::clock::now_ns;
use super::shares::FunctionKey;
use crate::config::{ProgressSpec, RunConfig};
use crate::failure::Failure;
use crate::inspect::{Function, Inspection, Pattern, VariableError, WantedArguments};
use crate::prober::{Kernel, PROGRESS_OTHERS, ProgressProbe, ProgressSource, Tier};
use crate::target::syscalls;
use profiler_core::class::{ClassId, RecordKind};
use profiler_core::clients::metric::ProbeHits;
use profiler_core::clients::overhead::Subject;
use profiler_core::engine::Measuring;
use profiler_core::recording::NotObserved;

/// More functions than that are no unit of work.
const MOST_FUNCTIONS: usize = 16;

/// What `--progress` comes to in this target; nothing is attached for it yet.
pub enum Wanted {
    /// Nothing.
    Off,
    /// To be found.
    Auto,
    /// A variable.
    Variable(Counter),
    /// Functions and their pattern.
    Functions(Vec<Function>, String),
    /// Counted by a raw tracepoint; of system calls, which.
    Probe(ProgressSource, Option<usize>),
}

impl Wanted {
    /// Looks up what was named.
    ///
    /// # Errors
    /// There is no such thing in the target.
    pub fn named(config: &RunConfig, inspection: &Inspection) -> Result<Self, Failure> {
        Self::find(config, inspection).map_err(refused)
    }

    fn find(config: &RunConfig, inspection: &Inspection) -> Result<Self, String> {
        if !config.overhead.is_measured || config.experiments.only_named {
            return Ok(Self::Off);
        }
        let Some(spec) = &config.overhead.progress else { return Ok(Self::Auto) };
        match spec {
            ProgressSpec::Off => Ok(Self::Off),
            ProgressSpec::Variable(name) => Counter::find(inspection, name).map(Self::Variable),
            ProgressSpec::Function(pattern) => functions(inspection, pattern),
            ProgressSpec::Syscall(number) => Ok(Self::Probe(ProgressSource::Syscalls, Some(*number))),
            ProgressSpec::Tracepoint(name) => Ok(Self::Probe(ProgressSource::Tracepoint(name.clone()), None)),
            // One of several is told as that, not as none.
            ProgressSpec::Named(name) if !matches!(inspection.variable(name), Err(VariableError::Missing(_))) => {
                Counter::find(inspection, name).map(Self::Variable)
            }
            ProgressSpec::Named(name) => functions(inspection, name).map_err(|why| {
                format!(
                    "nothing named '{name}' in the target: no global variable ('nm' lists them as B, D, b or d), and of \
                     functions: {why}; events of the kernel are written syscall:NAME and tp:CATEGORY:NAME"
                )
            }),
        }
    }
}

fn refused(why: String) -> Failure {
    Failure::usage(format!("--progress: {why}"))
}

/// The functions of a pattern.
fn functions(inspection: &Inspection, pattern: &str) -> Result<Wanted, String> {
    let parsed = Pattern::parse(pattern).map_err(|error| error.to_string())?;
    let found = inspection.resolve(&[parsed]);
    if let Some(unmatched) = found.unmatched.first() {
        return Err(unmatched.reason.to_string());
    }
    if found.functions.len() > MOST_FUNCTIONS {
        return Err(format!(
            "'{pattern}' names {} functions; at most {MOST_FUNCTIONS} make a metric",
            found.functions.len()
        ));
    }
    Ok(Wanted::Functions(found.functions, pattern.to_owned()))
}

impl Agent {
    /// Begins to count.
    ///
    /// # Errors
    /// What was named cannot be counted. Where nothing was named, that is a note.
    pub(super) fn start_metric(&mut self, wanted: Wanted) -> Result<Option<Measuring>, Failure> {
        self.try_metric(wanted).map_err(refused)
    }

    fn try_metric(&mut self, wanted: Wanted) -> Result<Option<Measuring>, String> {
        if matches!(wanted, Wanted::Off) {
            return Ok(None);
        }
        if self.attach.kernel().tier() == Tier::D {
            let why = "perf-event uprobes take 0.1 to 0.3 s each to detach and stall the target; Linux 6.6 brought better ones";
            self.journal
                .meta
                .not_observed
                .push(NotObserved { what: "check of the overhead".into(), why: why.into() });
            return Ok(None);
        }
        let pid = self.journal.meta.pid;
        let probe = |agent: &Self, source: &ProgressSource| {
            agent.attach.kernel().watch_progress(source, pid).map_err(|error| error.to_string())
        };
        let metric = match wanted {
            Wanted::Off => return Ok(None),
            Wanted::Variable(counter) => Metric::Variable(counter),
            Wanted::Auto => match probe(self, &ProgressSource::Syscalls) {
                Ok(probe) => Metric::Syscall(probe, None),
                Err(why) => {
                    self.journal
                        .meta
                        .not_observed
                        .push(NotObserved { what: "check of the overhead".into(), why });
                    return Ok(None);
                }
            },
            Wanted::Probe(source, number) => {
                let probe = probe(self, &source)
                    .map_err(|why| format!("{why}; 'ls /sys/kernel/tracing/events/*' lists what there is"))?;
                match source {
                    ProgressSource::Syscalls => Metric::Syscall(probe, number),
                    ProgressSource::Tracepoint(name) => Metric::Tracepoint(probe, name),
                }
            }
            Wanted::Functions(functions, pattern) => {
                Metric::Functions(self.metric_classes(&functions)?, pattern)
            }
        };
        let now = now_ns();
        let probe = metric.kernel_probe().map(hits);
        // The seed makes runs differ; nothing has to be secret.
        let measuring = Measuring::new(metric.subject(), probe, now, now);
        self.meters.metric = Some(metric);
        Ok(Some(measuring))
    }

    fn metric_classes(&mut self, functions: &[Function]) -> Result<Vec<ClassId>, String> {
        let wish = Wish {
            kind: RecordKind::Count,
            weight: 1.0,
            must: false,
            named: true,
            by_kind: false,
            force_return_link: false,
            arguments: WantedArguments::NONE,
        };
        functions
            .iter()
            .map(|function| {
                let key = FunctionKey { module: function.module, address: function.vaddr };
                let id =
                    self.add_class(function, key, wish).map_err(|why| format!("{}: {why}", function.name))?;
                self.attach.class_mut(id).counts_metric = true;
                Ok(id)
            })
            .collect()
    }
}

/// A counter in the target's memory that grows with its work.
#[derive(Debug, Clone)]
pub struct Counter {
    name: String,
    pid: i32,
    address: u64,
    size: u64,
}

impl Counter {
    /// Finds the global variable `name` (4 or 8 bytes) in the target.
    ///
    /// # Errors
    /// There is none, or it has another size; says which.
    pub fn find(inspection: &Inspection, name: &str) -> Result<Self, String> {
        let (address, size) = inspection.variable(name).map_err(|why| why.to_string())?;
        if size != 4 && size != 8 {
            return Err(format!("the variable '{name}' has {size} bytes; a counter has 4 or 8"));
        }
        let counter = Self { name: name.to_owned(), pid: inspection.pid(), address, size };
        counter.read().map(|_| counter.clone()).ok_or_else(|| format!("the variable '{name}' cannot be read"))
    }

    fn read(&self) -> Option<u64> {
        let mut bytes = [0u8; 8];
        let len = usize::try_from(self.size).ok()?.min(8);
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: self.address as *mut libc::c_void, iov_len: len };
        // SAFETY: `local` points at `bytes`, which has room for `len`; the kernel checks the remote address.
        let n = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        (usize::try_from(n).ok()? == len).then(|| u64::from_le_bytes(bytes))
    }
}

/// What the kernel's probe has counted.
pub(super) fn hits(probe: &ProgressProbe) -> ProbeHits {
    ProbeHits { own: probe.counts().iter().sum(), others: probe.others() }
}

/// A metric that is being counted.
pub enum Metric {
    /// In the target's memory.
    Variable(Counter),
    /// One number of those that the probe counts, once it is chosen.
    Syscall(ProgressProbe, Option<usize>),
    /// A tracepoint and its name.
    Tracepoint(ProgressProbe, String),
    /// Classes that only count.
    Functions(Vec<ClassId>, String),
}

impl Metric {
    /// Units so far. `None`: the target cannot be read (it is ending), or nothing is chosen yet.
    pub fn read(&self, kernel: &Kernel) -> Option<u64> {
        match self {
            Self::Variable(counter) => counter.read(),
            Self::Syscall(probe, number) => number.map(|n| probe.count(n)),
            Self::Tracepoint(probe, _) => Some(probe.count(0)),
            Self::Functions(ids, _) => {
                Some(ids.iter().map(|id| kernel.classes().attempted(*id)).fold(0, u64::wrapping_add))
            }
        }
    }

    /// What the comparison is told of it.
    pub fn subject(&self) -> Subject {
        let choice = |n: usize| (!syscalls::waits(n)).then(|| syscalls::name(n));
        let choices = match self {
            Self::Syscall(_, None) => Some((0..PROGRESS_OTHERS).map(choice).collect()),
            _ => None,
        };
        Subject {
            name: self.name(),
            is_counted: !matches!(self, Self::Variable(_)),
            classes: self.classes().to_vec(),
            choices,
        }
    }

    /// This system call is counted, where one was to be found; says whether one was.
    pub fn choose(&mut self, number: usize) -> bool {
        let Self::Syscall(_, chosen @ None) = self else { return false };
        *chosen = Some(number);
        true
    }

    /// The kernel's counter of tracepoint hits.
    pub fn kernel_probe(&self) -> Option<&ProgressProbe> {
        match self {
            Self::Syscall(probe, _) | Self::Tracepoint(probe, _) => Some(probe),
            Self::Variable(_) | Self::Functions(..) => None,
        }
    }

    /// The classes that it counts.
    pub fn classes(&self) -> &[ClassId] {
        match self {
            Self::Functions(ids, _) => ids,
            _ => &[],
        }
    }

    /// In words.
    pub fn name(&self) -> String {
        match self {
            Self::Variable(counter) => format!("the variable {}", counter.name),
            Self::Syscall(_, Some(number)) => format!("the system call {}", syscalls::name(*number)),
            Self::Syscall(_, None) => "system calls".to_owned(),
            Self::Tracepoint(_, name) => format!("the tracepoint {name}"),
            Self::Functions(_, pattern) => format!("calls of {pattern}"),
        }
    }
}
