//! Progress metrics that the kernel counts: system calls by number, or one tracepoint, of one process.

use super::{ClassTable, Kernel, KernelError};
use aya::programs::RawTracePoint;
use aya::programs::raw_trace_point::RawTracePointLink;
use profiler_common::settings::Settings;

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgressSource {
    /// Every system call, by number (raw tracepoint `sys_enter`).
    Syscalls,
    /// A raw tracepoint, by name without category.
    Tracepoint(String),
}

/// Counting, as long as it lives. One at a time: the counters are shared.
pub struct ProgressProbe {
    _link: RawTracePointLink,
    classes: ClassTable,
}

/// Slots of [`ProgressProbe::counts`]: numbers of system calls are below.
pub use profiler_common::settings::PROGRESS_OTHERS;

impl ProgressProbe {
    /// Counts by number of system call (tracepoints: slot 0), never reset.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        (0..PROGRESS_OTHERS).map(|slot| self.classes.progress(slot)).collect()
    }

    /// One of these counts.
    #[must_use]
    pub fn count(&self, slot: usize) -> u64 {
        self.classes.progress(slot)
    }

    /// Hits by other processes, which pay and are not counted.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.classes.progress(PROGRESS_OTHERS)
    }
}

impl Kernel {
    /// Starts counting what the process `pid` does. Every process pays for the tracepoint: look at
    /// [`ProgressProbe::others`].
    ///
    /// # Errors
    /// There is no such tracepoint, or the kernel refuses the program.
    pub fn watch_progress(&self, source: &ProgressSource, pid: u32) -> Result<ProgressProbe, KernelError> {
        let (program, tracepoint) = match source {
            ProgressSource::Syscalls => ("progress_syscall", "sys_enter"),
            ProgressSource::Tracepoint(name) => ("progress_tracepoint", name.as_str()),
        };
        let settings = self.classes().settings();
        self.classes().set_settings(Settings { progress_pid: pid, ..settings });
        let mut ebpf = self.ebpf();
        let program =
            ebpf.program_mut(program).ok_or_else(|| KernelError::Object(format!("no program {program}")))?;
        let failed = |source| KernelError::Tracepoint { name: tracepoint.to_owned(), source };
        let program: &mut RawTracePoint = program.try_into().map_err(failed)?;
        if program.fd().is_err() {
            program.load().map_err(failed)?;
        }
        let link = program.attach(tracepoint).map_err(failed)?;
        let link = program.take_link(link).map_err(failed)?;
        Ok(ProgressProbe { _link: link, classes: self.classes().clone() })
    }
}
