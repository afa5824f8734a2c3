//! Periodic samples: one cpu-clock perf event per thread (or per CPU), in period mode, with the `sample` program.
//!
//! Period mode, because its rate can be changed while it runs; in frequency mode the same ioctl takes a *period*, and a
//! frequency written there stops the target. One event per thread, because an inherited event cannot have its rate
//! changed. An event is one descriptor: the program is set by ioctl instead of a link.

use super::object::{Flavour, Programs};
use super::sys::{self, PerfEventAttr, PerfIoctl};
use super::{ClassTable, Kernel, KernelError, Settings};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// `PERF_TYPE_SOFTWARE`.
const SOFTWARE: u32 = 1;
/// `PERF_COUNT_SW_CPU_CLOCK`.
const CPU_CLOCK: u64 = 0;
/// Shortest period: 10,000 samples per second of CPU time. One costs over 10 us on virtual machines, so shorter
/// periods take over the CPU.
pub const MIN_PERIOD_NS: u64 = 100_000;

/// What a sample of the events of a [`Sampler`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleKind {
    /// Observes the thread.
    Observe,
    /// Does nothing (calibration, benchmarks).
    Empty,
}

/// Why a thread or CPU cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// Too fast.
    #[error(
        "a sampling period of {0} ns is below the shortest that is safe, {MIN_PERIOD_NS} ns (10,000 Hz): lower --sample-rate"
    )]
    Period(u64),
    /// The event cannot be opened.
    #[error(
        "cannot sample thread {tid} on CPU {cpu} (-1: any): {source}; the thread may have ended, or descriptors ran out (ulimit -n)"
    )]
    Open {
        /// Thread, -1 for all.
        tid: i32,
        /// CPU, -1 for all.
        cpu: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The program cannot be loaded.
    #[error(transparent)]
    Program(#[from] KernelError),
    /// The event refuses a request.
    #[error("the perf event refuses to {what}: {source}")]
    Control {
        /// What was asked.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl SampleError {
    /// The thread has ended.
    #[must_use]
    pub fn thread_gone(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.raw_os_error() == Some(libc::ESRCH))
    }
}

/// Opens sampling events.
#[derive(Clone)]
pub struct Sampler {
    program: Arc<OwnedFd>,
}

/// One running event; dropping it ends it.
#[derive(Debug)]
pub struct SampleEvent {
    event: OwnedFd,
    period_ns: u64,
}

impl Sampler {
    pub(super) fn new(programs: &Programs, kind: SampleKind) -> Result<Self, KernelError> {
        let name = match kind {
            SampleKind::Observe => "sample",
            SampleKind::Empty => "sample_empty",
        };
        Ok(Self { program: programs.get(name, Flavour::PerfEvent)? })
    }

    /// Samples one thread every `period_ns` of its CPU time. Its process must be a target ([`Kernel::add_target`]).
    ///
    /// # Errors
    /// Period too short, thread gone, out of descriptors.
    pub fn open_thread(&self, tid: u32, period_ns: u64) -> Result<SampleEvent, SampleError> {
        // OK because thread ids are below 2^22.
        self.open(tid as i32, -1, period_ns)
    }

    /// Samples one CPU every `period_ns` of its non-idle time, whatever runs there; samples of processes that are no
    /// targets cost them the interrupt and are counted as `samples_other`.
    ///
    /// # Errors
    /// Period too short, CPU offline, out of descriptors.
    pub fn open_cpu(&self, cpu: u32, period_ns: u64) -> Result<SampleEvent, SampleError> {
        // OK because there are fewer than 2^31 CPUs.
        self.open(-1, cpu as i32, period_ns)
    }

    fn open(&self, tid: i32, cpu: i32, period_ns: u64) -> Result<SampleEvent, SampleError> {
        check(period_ns)?;
        let attr = PerfEventAttr {
            kind: SOFTWARE,
            config: CPU_CLOCK,
            sample_period: period_ns,
            flags: sys::PERF_FLAG_DISABLED,
            ..Default::default()
        };
        let event =
            sys::perf_event_open(&attr, tid, cpu).map_err(|source| SampleError::Open { tid, cpu, source })?;
        let control = |what| move |source| SampleError::Control { what, source };
        sys::perf_ioctl(event.as_fd(), PerfIoctl::SetProgram(self.program.as_fd()))
            .map_err(control("run the program"))?;
        sys::perf_ioctl(event.as_fd(), PerfIoctl::Enable).map_err(control("start"))?;
        Ok(SampleEvent { event, period_ns })
    }
}

impl SampleEvent {
    /// The present period, ns.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Changes the period; takes effect within 40 us. Samples go on stating the period of the opening, unless
    /// [`Settings::sample_period_ns`](super::Settings::sample_period_ns) says otherwise; [`ThreadSampling`] sees to
    /// that.
    ///
    /// # Errors
    /// Too short; the thread has ended.
    pub fn set_period(&mut self, period_ns: u64) -> Result<(), SampleError> {
        check(period_ns)?;
        self.control("change its period", PerfIoctl::Period(period_ns))?;
        self.period_ns = period_ns;
        Ok(())
    }

    /// Goes on after [`disable`](Self::disable).
    ///
    /// # Errors
    /// The kernel's.
    pub fn enable(&self) -> Result<(), SampleError> {
        self.control("start", PerfIoctl::Enable)
    }

    /// Pauses.
    ///
    /// # Errors
    /// The kernel's.
    pub fn disable(&self) -> Result<(), SampleError> {
        self.control("stop", PerfIoctl::Disable)
    }

    fn control(&self, what: &'static str, request: PerfIoctl<'_>) -> Result<(), SampleError> {
        sys::perf_ioctl(self.event.as_fd(), request).map_err(|source| SampleError::Control { what, source })
    }
}

/// Events on many threads with one common period, which the samples state.
pub struct ThreadSampling {
    sampler: Sampler,
    classes: ClassTable,
    events: HashMap<u32, SampleEvent>,
    period_ns: u64,
}

impl ThreadSampling {
    /// Samples a thread, too. One that is sampled already is left as it is.
    ///
    /// # Errors
    /// See [`Sampler::open_thread`]; `thread_gone` is the harmless one.
    pub fn add(&mut self, tid: u32) -> Result<(), SampleError> {
        if !self.events.contains_key(&tid) {
            self.events.insert(tid, self.sampler.open_thread(tid, self.period_ns)?);
        }
        Ok(())
    }

    /// Ends the sampling of a thread.
    pub fn remove(&mut self, tid: u32) {
        self.events.remove(&tid);
    }

    /// Threads sampled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// No thread is sampled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The common period, ns.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Changes the period of all threads, and what samples state. Threads that have ended are dropped.
    ///
    /// # Errors
    /// Period too short; nothing is changed then.
    pub fn set_period(&mut self, period_ns: u64) -> Result<(), SampleError> {
        check(period_ns)?;
        self.period_ns = period_ns;
        self.events.retain(|_, event| event.set_period(period_ns).is_ok());
        self.state_period();
        Ok(())
    }

    /// Pauses or goes on, all threads.
    pub fn set_enabled(&mut self, on: bool) {
        self.events.retain(|_, event| if on { event.enable() } else { event.disable() }.is_ok());
    }

    /// Ends the sampling of all threads and tells the programs so: timed calls do without what only samples need
    /// (the return addresses that return links replace). [`set_period`](Self::set_period) takes it back.
    pub fn stop(&mut self) {
        self.events.clear();
        self.classes.set_settings(Settings { sample_period_ns: 0, ..self.classes.settings() });
    }

    fn state_period(&self) {
        self.classes.set_settings(Settings { sample_period_ns: self.period_ns, ..self.classes.settings() });
    }
}

impl Kernel {
    /// Sampling of many threads with a common period; none yet.
    ///
    /// # Errors
    /// The kernel refuses the program, or the period is too short.
    pub fn thread_sampling(&self, period_ns: u64) -> Result<ThreadSampling, SampleError> {
        check(period_ns)?;
        let sampling = ThreadSampling {
            sampler: self.sampler(SampleKind::Observe)?,
            classes: self.classes().clone(),
            events: HashMap::new(),
            period_ns,
        };
        sampling.state_period();
        Ok(sampling)
    }

    /// A source of sampling events.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn sampler(&self, kind: SampleKind) -> Result<Sampler, KernelError> {
        Sampler::new(&self.programs, kind)
    }
}

fn check(period_ns: u64) -> Result<(), SampleError> {
    if period_ns < MIN_PERIOD_NS { Err(SampleError::Period(period_ns)) } else { Ok(()) }
}
