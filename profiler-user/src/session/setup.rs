//! From a [`RunConfig`] to a running session, and the loop.

use super::attach::{Attachments, Gone, Opener, now_ns};
use super::children_io::ChildProcesses;
use super::finish::Finished;
use super::host::{Host, unix_ns};
use super::launching::{Held, Launched, hold_target};
use super::metric::Wanted;
use super::operations::{link_kinds, operation_classes};
use super::planning::plan_settings;
use super::progress::Progress;
use super::reading::Reader;
use super::sampling::Sampling;
use super::select::Selection;
use super::surveying::survey_settings;
use super::{EndReason, Phase, Session};
use crate::calibrate::{self, CalibrateOptions};
use crate::config::{OperationConfig, OutputConfig, OverheadConfig, ProgressSpec, RunConfig};
use crate::failure::{Failure, FailureKind};
use crate::governor::{Governor, LinkTable, Priority};
use crate::inspect::Inspection;
use crate::prober::{Kernel, KernelOptions, LinkKind, SampleKind};
use crate::recording::{Overwrite, Writer, WriterHandle, WriterOptions};
use crate::target::{SwitchMeter, Target};
use crate::unwind::Unwinder;
use crate::watchdog::Watchdog;
use anyhow::Context;
use profiler_core::class::Tier;
use profiler_core::clients::children::Children;
use profiler_core::clients::survey::SurveyClient;
use profiler_core::clients::trace::client::Trace;
use profiler_core::ledger::{Ledger, Merger};
use profiler_core::plan::Problem;
use profiler_core::recording::{AgentUse, FORMAT_VERSION, Losses, Meta};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Warm-up where the user named functions, ns: two intervals of the ledger.
const NAMED_NS: u64 = 200_000_000;
/// Sampling period before there is a plan, ns of target CPU time: 99 Hz.
const FIRST_PERIOD_NS: u64 = 10_101_010;
/// Turn of the loop.
const TURN: Duration = Duration::from_millis(10);
/// Time between two turns where nothing has to end on time: each turn wakes a CPU that the target could use.
const QUIET_TURN: Duration = Duration::from_millis(25);

/// Least time between two looks at what waits to be attached.
const LEAST_WAIT: Duration = Duration::from_micros(500);

/// Runs to the end and returns what is to be shown.
///
/// # Errors
/// With the exit code that fits: nothing has been attached, or everything is detached again.
pub fn record(config: &RunConfig, watchdog: &Watchdog) -> Result<Finished, Failure> {
    preflight()?;
    run_session(config, watchdog, |_| (), |_| ())
}

fn run_session(
    config: &RunConfig,
    watchdog: &Watchdog,
    before: impl FnOnce(&mut Session),
    after: impl FnOnce(&mut Session),
) -> Result<Finished, Failure> {
    config.check().map_err(Failure::usage)?;
    let progress = Progress::start();
    crate::governor::prefer_event_loop();
    let held = hold_target(&config.target)?;
    let pid = u32::try_from(held.target().pid()).map_err(|e| Failure::attach(anyhow::anyhow!(e)))?;
    let heartbeat = watchdog.heartbeat();
    let (mut session, launched) = prepare(config, held, pid, progress, watchdog)?;
    heartbeat.watch(pid);
    heartbeat.arm();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    session.note_priority();
    before(&mut session);
    let run = launched.go(&mut session, config).and_then(|()| runtime.block_on(session.run()));
    after(&mut session);
    let finished = session.finish(&heartbeat, run.as_ref().ok().copied(), run.as_ref().err());
    heartbeat.disarm();
    run?;
    finished
}

/// Surveys a process and returns the planning problem; leaves nothing attached and nothing on disk.
///
/// # Errors
/// As [`record`].
pub fn plan(config: &RunConfig, watchdog: &Watchdog) -> Result<Problem, Failure> {
    preflight()?;
    let scratch = Scratch::create()?;
    let survey = survey_only(config, &scratch.0);
    let mut problem = None;
    run_session(
        &survey,
        watchdog,
        |session| session.plan_only = true,
        |session| problem = session.problem.take(),
    )?;
    problem.ok_or_else(|| Failure::attach(anyhow::anyhow!("the target ended before there was a plan")))
}

/// A run that ends with its first plan: nothing is measured on the target's work, and the recording lies in `scratch`.
fn survey_only(config: &RunConfig, scratch: &Path) -> RunConfig {
    RunConfig {
        output: OutputConfig { path: Some(scratch.join("survey")), ..config.output.clone() },
        overhead: OverheadConfig { is_measured: false, progress: Some(ProgressSpec::Off) },
        operations: OperationConfig::default(),
        ..config.clone()
    }
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create() -> Result<Self, Failure> {
        let base = std::env::temp_dir().join(format!("tithe-plan-{}", std::process::id()));
        // Fails if it exists, whoever made it.
        std::fs::create_dir(&base)
            .map_err(|e| Failure::from(anyhow::anyhow!("cannot create '{}': {e}", base.display())))?;
        Ok(Self(base))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // OK to ignore: what is left in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The cheap checks, before anything is touched.
pub(crate) fn preflight() -> Result<(), Failure> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Failure::attach(anyhow::anyhow!(
            "watching a process needs root, and this runs as user {}; run it again with sudo",
            // SAFETY: as above.
            unsafe { libc::geteuid() }
        )));
    }
    // The kernel side sees the PIDs of the initial namespace; in another one no filter would match.
    let namespace = std::fs::metadata("/proc/self/ns/pid").map(|m| std::os::unix::fs::MetadataExt::ino(&m));
    if namespace.is_ok_and(|inode| inode != INITIAL_PID_NAMESPACE) {
        return Err(Failure::attach(anyhow::anyhow!(
            "this runs in a PID namespace of its own (a container), where the kernel's process numbers are others; run it \
             on the host, or start the container with the host's PIDs ('--pid=host')"
        )));
    }
    Ok(())
}

fn prepare(
    config: &RunConfig,
    held: Held,
    pid: u32,
    progress: Progress,
    watchdog: &Watchdog,
) -> Result<(Session, Launched), Failure> {
    progress.set("inspecting the target".to_owned());
    let selection = Selection::new(&config.functions).map_err(|e| Failure::new(FailureKind::Usage, e))?;
    let mut inspection = Inspection::of(held.target().pid()).map_err(Failure::attach)?;
    // Of a launched program the libraries are not mapped yet.
    let metric = match &held {
        Held::Running(_) => Wanted::named(config, &inspection)?,
        Held::Suspended(_) => Wanted::Off,
    };
    let options = kernel_options(config)?;
    let kernel = Arc::new(Kernel::load(&options).map_err(Failure::attach)?);
    // Nothing of the run waits later.
    let mut kinds = vec![LinkKind::Count, LinkKind::ExitPair, LinkKind::ReturnPair];
    kinds.extend((!config.functions.record.is_empty()).then_some(LinkKind::Record));
    kinds.extend(link_kinds(&config.operations.operations));
    kernel.load_programs(&kinds);
    // Forked children are followed, so that their ends and execs are known; where the kernel's PID filter does not work,
    // their hits would count as the target's.
    kernel.add_target(pid, kernel.tier() != Tier::C).map_err(Failure::attach)?;
    progress.set("calibrating: what a hit costs here".to_owned());
    let cost =
        calibrate::load_or_run(kernel.tier(), &CalibrateOptions::default()).map_err(Failure::attach)?;
    for note in &cost.notes {
        progress.note(note);
    }
    inspection.use_rules(cost.rules);
    let cost = cost.model;
    let table = LinkTable::new(options.max_classes).context("cannot create the link table")?;
    let table = Arc::new(if config.cost.expedite { table.expedited() } else { table });
    let alarms = kernel.alarm_reader().map_err(Failure::attach)?;
    let governor = Governor::start(alarms, table, Some(watchdog.heartbeat())).map_err(Failure::attach)?;
    let events = kernel.thread_sampling(FIRST_PERIOD_NS).map_err(Failure::attach)?;
    let sampler = kernel.sampler(SampleKind::Observe).map_err(Failure::attach)?;
    let cpus = Host::read().cpus;
    let reader = kernel.sample_reader().map_err(Failure::attach)?;
    let calls = kernel.call_reader().map_err(Failure::attach)?;
    let log = config.output.verbose.then(|| kernel.log()).transpose().map_err(Failure::attach)?;
    let lifecycle = kernel.watch_lifecycle().map_err(Failure::attach)?;
    let mut unwinder = Unwinder::default();
    unwinder.prepare(pid);
    let mut sampling = Sampling::new(events, sampler, cpus, reader, unwinder, pid, options.stack_bytes);

    if config.experiments.only_named || config.sampling_hz == Some(0.0) {
        sampling.switch_off_for_good();
    }

    let target = held.target();
    let output = config.output.path.clone().unwrap_or_else(|| default_output(target));
    let start_ns = now_ns();
    let meta = meta(config, target, &kernel, &cost, start_ns);
    if output.join("meta.json").exists() && !config.output.replace {
        return Err(Failure::usage(format!(
            "there is a recording at '{}' already: choose another name with -o, or replace it with --force",
            output.display()
        )));
    }
    let overwrite = if config.output.replace { Overwrite::Anything } else { Overwrite::Recording };
    let writer = Writer::create(&output, caller(), overwrite, &meta)
        .map_err(|e| Failure::from(anyhow::Error::new(e)))?;
    let writer =
        WriterHandle::spawn(writer, WriterOptions::default()).context("cannot start the writer thread")?;
    let exe = target.exe().ok();
    let (target, launched) = match held {
        Held::Running(target) => (target, Launched::Nothing),
        Held::Suspended(held) => {
            // The target is bound a second time: `held` keeps its own until it is let go.
            let target = Target::attach(held.target().pid()).map_err(Failure::attach)?;
            (target, Launched::Held(Box::new(held)))
        }
    };
    // Who named functions waits for nothing but the first tokens.
    let first_look_ns =
        if selection.names_any() { NAMED_NS.min(warmup_ns(config)) } else { warmup_ns(config) };
    let cpu = target.cpu_time_ns().unwrap_or(0);
    // The opener reads the CPU clock by a binding of its own.
    let bound = Target::attach(target.pid()).map_err(Failure::attach)?;
    let opener = Opener::start(Arc::clone(&kernel), Arc::clone(governor.table()), bound)
        .context("cannot start the thread that makes links")?;
    let switches = SwitchMeter::new(&target).ok();
    let mut session = Session {
        children: Children::default(),
        processes: ChildProcesses::new(exe),
        child: None,
        target,
        inspection,
        selection,
        attach: Attachments::new(Arc::clone(&kernel), governor, opener, pid),
        sampling,
        calls,
        lifecycle,
        ledger: Ledger::new(config.cost.budget, start_ns),
        merger: Merger::default(),
        trace: Trace::new(plan_settings(config, &kernel, &cost, cpus), start_ns),
        survey: SurveyClient::new(survey_settings(&cost, survey_ns(config), first_plan_ns(config))),
        cost,
        writer,
        meta,
        progress,
        phase: Phase::Warmup { until_ns: start_ns + first_look_ns },
        verbose: config.output.verbose,
        log,
        only_named: config.experiments.only_named,
        loading: None,
        for_operations: BTreeSet::new(),
        plan_only: false,
        problem: None,
        fixed_rate_hz: config.sampling_hz,
        budget: config.cost.budget,
        output,
        end_ns: config.duration.map(|d| start_ns + u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 2)),
        last_ledger_ns: start_ns,
        last_slow_ns: start_ns,
        last_cpu_ns: cpu,
        last_charged_ns: 0.0,
        new_switches: 0,
        switches,
        own_cpu: 0.0,
        switches_per_s: 0.0,
        last_switches_ns: start_ns,
        sampling_started: false,
        loss_watch: profiler_core::losses::LossWatch::default(),
        foreign_samples: 0,
        threads: super::threads::Threads::default(),
        thread_budget: config.cost.thread_share,
        discover_ns: start_ns + warmup_ns(config),
        discovered: false,
        reader: Reader::start(),
        tracing_all: None,
        modules_dirty: false,
        misc_ns: 0.0,
        misc_cost: 0.0,
        comparison: None,
        operations: None,
    };
    session.start_metric(metric)?;
    if matches!(launched, Launched::Nothing) {
        session.start_operations(&config.operations)?;
    }
    Ok((session, launched))
}

impl Session {
    /// Says it where the governor is slower than promised.
    fn note_priority(&mut self) {
        let priority = self.attach.governor().status().priority;
        if priority == Priority::RealTime {
            return;
        }
        let text = format!(
            "real-time priority was refused (the governor runs at {} priority): on a busy machine a function that explodes is stopped some \
             milliseconds late, and costs more than its quota; 'tithe doctor' says why",
            priority.name()
        );
        self.progress.note(&text);
        self.meta.warnings.push(text);
    }
}

/// What the kernel side must hold.
///
/// # Errors
/// Too many operations, or too many classes of them.
fn kernel_options(config: &RunConfig) -> Result<KernelOptions, Failure> {
    Ok(KernelOptions {
        forced_tier: config.experiments.forced_tier,
        kernel_memory_bytes: config.cost.kernel_memory_bytes,
        verbose: config.output.verbose,
        samples_ring_bytes: samples_ring_bytes(config.sampling_hz),
        operation_classes: operation_classes(&config.operations)?,
        operations_ring_bytes: if config.operations.operations.is_empty() { 4096 } else { 1 << 20 },
        ..KernelOptions::default()
    })
}

/// Room for the samples of two turns, with their stacks: at the rates that a plan chooses 4 MiB are enough for 48 CPUs.
fn samples_ring_bytes(rate_hz: Option<f64>) -> u32 {
    /// Highest rate that a plan chooses, Hz, and bytes of a sample.
    const PLANNED: (f64, f64) = (200.0, 8_500.0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let per_turn = rate_hz.unwrap_or(PLANNED.0).max(PLANNED.0) * cpus * QUIET_TURN.as_secs_f64();
    // OK because it lies between 4 and 64 MiB; the kernel side rounds up.
    ((2.0 * per_turn * PLANNED.1) as u32).clamp(4 << 20, 64 << 20)
}

/// Sampling alone before the survey: 1.5 s, less in short runs. Without a survey as long as the budget needs to fill
/// its bucket, or the first quota would be next to nothing.
fn warmup_ns(config: &RunConfig) -> u64 {
    if config.experiments.only_named {
        return (profiler_core::ledger::HOLD_S * 1.2e9) as u64;
    }
    let share = config.duration.map_or(1.5, |d| (d.as_secs_f64() * 0.15).min(1.5));
    (share * 1e9) as u64
}

/// Latest first plan after the start: a hundred functions are known within 5 s; of a short run most must be left for the plan.
fn first_plan_ns(config: &RunConfig) -> u64 {
    let seconds = config.duration.map_or(4.5, |d| (d.as_secs_f64() * 0.45).min(4.5));
    (seconds * 1e9) as u64
}

/// Longest later survey, of functions that appear while a plan runs.
fn survey_ns(config: &RunConfig) -> u64 {
    let seconds = config.duration.map_or(3.0, |d| (d.as_secs_f64() * 0.3).min(3.0));
    (seconds * 1e9) as u64
}

fn meta(
    config: &RunConfig,
    target: &Target,
    kernel: &Kernel,
    cost: &profiler_core::cost::CostModel,
    start_ns: u64,
) -> Meta {
    let host = Host::read();
    let cmdline = target.cmdline().unwrap_or_default();
    Meta {
        format_version: FORMAT_VERSION,
        tithe_version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host.name,
        kernel: host.kernel,
        cpus: host.cpus,
        pid: u32::try_from(target.pid()).unwrap_or(0),
        exe: target.exe().map(|p| p.display().to_string()).unwrap_or_default(),
        cmdline: cmdline.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
        start_unix_ns: unix_ns(),
        start_ns,
        end_ns: None,
        end_reason: None,
        budget: config.cost.budget,
        tier: kernel.tier(),
        cost: cost.clone(),
        sample_period_ns: 0,
        kernel_memory_bytes: kernel.kernel_memory_bytes(),
        agent: AgentUse::default(),
        measured: None,
        losses: Losses::default(),
        not_observed: Vec::new(),
        warnings: Vec::new(),
        operations: Vec::new(),
        slowest_answer: None,
        private_memory: None,
        forks_held: None,
    }
}

/// `NAME-PID.tithe` in the working directory, with a number where that exists.
fn default_output(target: &Target) -> PathBuf {
    let exe = target.exe().unwrap_or_default();
    let name = exe.file_name().map_or_else(|| "process".to_owned(), |n| n.to_string_lossy().into_owned());
    let name = name.trim_end_matches(" (deleted)").replace('/', "_");
    let plain = PathBuf::from(format!("{name}-{}.tithe", target.pid()));
    // Recorded data is never overwritten by a default: -2, -3, …
    std::iter::once(plain.clone())
        .chain((2..1000).map(|n| PathBuf::from(format!("{name}-{}-{n}.tithe", target.pid()))))
        .find(|path| !path.exists())
        .unwrap_or(plain)
}

/// Who called sudo: the owner of the files that we write.
pub(crate) fn caller() -> Option<(u32, u32)> {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

impl Session {
    /// When something has to be done that nobody tells of: at the next turn, or before that where a group waits to be attached.
    fn wake_at(&self, next: tokio::time::Instant) -> tokio::time::Instant {
        let retry_ns = self.attach.retry_at().filter(|_| self.suspension().may_attach());
        let Some(retry_ns) = retry_ns else { return next };
        next.min(
            tokio::time::Instant::now()
                + Duration::from_nanos(retry_ns.saturating_sub(now_ns())).max(LEAST_WAIT),
        )
    }

    /// The loop.
    async fn run(&mut self) -> Result<EndReason, Failure> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
        // A stopped agent would be killed by its watchdog: traps must not stay armed while nobody looks.
        let mut stop = signal(SignalKind::from_raw(libc::SIGTSTP)).context("cannot catch SIGTSTP")?;
        let pidfd = self.target.pidfd().try_clone_to_owned().context("cannot watch the target's end")?;
        // SAFETY: the descriptor is owned by the `AsyncFd`, which keeps it open until it is deregistered.
        let exit = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) }
            .context("cannot watch the target's end")?;
        self.begin();
        let mut next = tokio::time::Instant::now();
        loop {
            let wake = self.wake_at(next);
            tokio::select! {
                () = tokio::time::sleep_until(wake) => {
                    if tokio::time::Instant::now() < next {
                        self.attach_next().map_err(anyhow::Error::new)?;
                        continue;
                    }
                    if !self.turn()? {
                        return Ok(EndReason::Duration);
                    }
                    let quiet = self.is_quiet(now_ns() + QUIET_TURN.as_nanos() as u64);
                    next = tokio::time::Instant::now() + if quiet { QUIET_TURN } else { TURN };
                }
                report = self.attach.report() => {
                    let report = report.ok_or_else(|| anyhow::Error::new(Gone))?;
                    self.attach.note_report(&self.target, report);
                    self.attach_next().map_err(anyhow::Error::new)?;
                    // Whoever asked for it goes on at once.
                    if self.attach.is_settled() {
                        next = tokio::time::Instant::now();
                    }
                }
                _ = interrupt.recv() => return Ok(EndReason::Interrupted),
                _ = terminate.recv() => return Ok(EndReason::Terminated),
                _ = stop.recv() => self.progress.note("Ctrl-Z does not work while functions are traced; Ctrl-C ends the run"),
                _ = hangup.recv() => return Ok(EndReason::Interrupted),
                _ = exit.readable() => return Ok(EndReason::TargetExited),
            }
        }
    }
}

#[cfg(test)]
mod tests;
