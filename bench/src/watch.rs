//! The arms: ways of watching one function of a target, attached for the time of one measurement.

use anyhow::{Context, Result, ensure};
use profiler_core::class::ClassId;
use profiler_tests::support::Target;
use profiler_user::prober::{
    AttachGroup, ClassControl, ClassKind, FLAG_ARGUMENTS, FLAG_CONTEXT, FLAG_NO_QUOTA, HistogramLease,
    Kernel, KernelOptions, Link, LinkKind, Site, Tier,
};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CLASS: ClassId = ClassId(1);

/// Loads the programs for a tier.
pub fn kernel(tier: Tier) -> Result<Kernel> {
    // The ring of steps is as large as the agent's.
    let options =
        KernelOptions { forced_tier: Some(tier), steps_ring_bytes: 8 << 20, ..KernelOptions::default() };
    Kernel::load(&options).with_context(|| format!("cannot load the programs for tier {tier:?}"))
}

/// A site of a target's file.
#[derive(Clone, Debug)]
pub struct Place {
    pub path: PathBuf,
    pub offset: u64,
    /// Words that the function has pushed before the site.
    pub pushed: i16,
}

/// A place in a function of the program `calls`, `skip` bytes from its start.
pub fn place(target: &mut Target, function: &str, skip: u64) -> Place {
    let (path, offset) = target.file_offset(function);
    Place { path, offset: offset + skip, pushed: 0 }
}

/// What our programs do at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// Nothing, on an entry link.
    Empty,
    /// Count.
    Count,
    /// Record the entry as a step.
    Step,
    /// Nothing, on entry and return.
    EmptyPair,
    /// Duration into the histogram, through a return link.
    Latency,
    /// A record with arguments, through a return link.
    Record,
    /// A record with arguments and what the kernel counted inside the call, through a return link.
    RecordContext,
}

/// Ours, attached; detached on drop, and the histogram given back after that.
pub struct Watched {
    _link: Link,
    _lease: Option<HistogramLease>,
}

/// Attaches ours to places (class 1 for all).
pub fn attach(kernel: &Kernel, target: &Target, what: Ours, places: &[Place]) -> Result<Watched> {
    attach_to(kernel, target.pid(), what, places)
}

/// As [`attach`], to a process that this one did not start.
pub fn attach_to(kernel: &Kernel, pid: u32, what: Ours, places: &[Place]) -> Result<Watched> {
    let (kind, class_kind) = match what {
        Ours::Empty => (LinkKind::Empty, ClassKind::Count),
        Ours::Count => (LinkKind::Count, ClassKind::Count),
        Ours::Step => (LinkKind::Step, ClassKind::Step),
        Ours::EmptyPair => (LinkKind::EmptyReturnPair, ClassKind::Count),
        Ours::Latency => (LinkKind::ReturnPair, ClassKind::Latency),
        Ours::Record | Ours::RecordContext => (LinkKind::ReturnPair, ClassKind::Record),
    };
    let flags = match what {
        Ours::Record => FLAG_NO_QUOTA | FLAG_ARGUMENTS,
        Ours::RecordContext => FLAG_NO_QUOTA | FLAG_ARGUMENTS | FLAG_CONTEXT,
        _ => FLAG_NO_QUOTA,
    };
    let mut control = ClassControl { flags, ..ClassControl::new(class_kind) };
    let lease = if what == Ours::Latency { kernel.classes().lease_histogram() } else { None };
    if let Some(lease) = &lease {
        control.histogram = lease.first_slot();
    }
    kernel.classes().configure(CLASS, control);
    let module = places.first().context("nothing to attach to")?.path.clone();
    let sites = places
        .iter()
        .map(|place| Site { slot_delta: place.pushed, ..Site::entry(CLASS, place.offset) })
        .collect();
    let attached = kernel.attach(&AttachGroup { module, pid, kind, sites })?;
    ensure!(attached.refused.is_empty(), "the kernel refused {} sites", attached.refused.len());
    Ok(Watched { _link: attached.link, _lease: lease })
}

/// Hits counted since the last call.
pub fn take_hits(kernel: &Kernel) -> u64 {
    let hits = kernel.classes().counters(CLASS).attempted;
    kernel.classes().reset(CLASS);
    hits
}

/// A running bpftrace; interrupted on drop, so that it detaches.
pub struct Bpftrace(Child);

impl Bpftrace {
    /// Its version, or nothing if it is not installed.
    pub fn version() -> Option<String> {
        let output = Command::new("bpftrace").arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a program on a function of the target, and waits until its breakpoint stands.
    pub fn start(target: &mut Target, path: &Path, function: &str, body: &str) -> Result<Bpftrace> {
        let original = target.function_bytes(function, 1);
        let program = body.replace("F", &format!("{}:{function}", path.display()));
        let child = Command::new("bpftrace")
            .args(["-f", "json", "-p", &target.pid().to_string(), "-e", &program])
            .stdin(Stdio::null())
            // A few maps fit into a pipe that nobody reads.
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start bpftrace")?;
        let started = Bpftrace(child);
        let end = Instant::now() + Duration::from_secs(20);
        while target.function_bytes(function, 1) == original {
            ensure!(Instant::now() < end, "bpftrace did not attach within 20 s: {program}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The return probe may come after the entry's breakpoint.
        std::thread::sleep(Duration::from_millis(300));
        Ok(started)
    }

    /// Ends it: its maps, in JSON.
    pub fn finish(mut self) -> Result<String> {
        interrupt(&self.0);
        let mut text = String::new();
        self.0.stdout.take().context("no standard output of bpftrace")?.read_to_string(&mut text)?;
        self.0.wait()?;
        Ok(text)
    }
}

/// Interrupts a child that has not been waited for.
pub fn interrupt(child: &Child) {
    // SAFETY: kill takes plain numbers; the child has not been reaped, so that the pid is its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            interrupt(&self.0);
        }
        // Fails only if it has been reaped.
        let _ = self.0.wait();
    }
}
