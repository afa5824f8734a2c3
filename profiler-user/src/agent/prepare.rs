//! From a [`RunConfig`] to an agent and its run.

use super::attach::{Attachments, Opener, counting};
use super::call_code::CallCode;
use super::callers::CallerWatch;
use super::catalog::Catalog;
use super::children_io::ChildProcesses;
use super::clock::{QUIET_TURN, now_ns};
use super::consumers::Consumers;
use super::data_points::DataPoints;
use super::host::{Host, agent_cpu_ns, give_memory_back, helpers_cpu_ns, unix_ns};
use super::input_names::InputNames;
use super::journal::{Journal, Progress};
use super::launch::{Held, Launched};
use super::meters::Meters;
use super::metric::Wanted;
use super::operations::{link_kinds, operation_classes};
use super::sampling::{Sampling, SamplingEvents};
use super::select::Selection;
use super::stamps::MOST_FOR_RATES;
use super::words::{WordLists, Words};
use super::{Agent, Rings, Session, steps};
use crate::calibrate::{self, CalibrateOptions};
use crate::config::{OperationConfig, OutputConfig, OverheadConfig, ProgressSpec, RunConfig, TargetConfig};
use crate::failure::{Failure, FailureKind};
use crate::governor::{Governor, LinkTable, Priority};
use crate::inspect::Inspection;
use crate::prober::{Kernel, KernelOptions, LinkKind, SampleKind, Tier};
use crate::recording::{Overwrite, Writer, WriterHandle, WriterOptions};
use crate::target::Target;
use crate::unwind::Unwinder;
use crate::watchdog::Watchdog;
use anyhow::Context;
use profiler_core::burst::BurstPrices;
use profiler_core::clients::activity::stamps::StampPairs;
use profiler_core::clients::survey;
use profiler_core::clients::trace::problem;
use profiler_core::cost::CostModel;
use profiler_core::engine::{Driver, Run, Settings, Times};
use profiler_core::recording::{AgentUse, FORMAT_VERSION, Losses, Meta};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Warm-up where the user named functions, ns: two intervals of the ledger.
const NAMED_NS: u64 = 200_000_000;
/// Sampling period before there is a plan, ns of target CPU time: 99 Hz.
const FIRST_PERIOD_NS: u64 = 10_101_010;
/// Ring of words that are taken.
const TAKINGS_RING_BYTES: u32 = 4 << 20;

/// A run that ends with its first plan: nothing is measured on the target's work, and the recording lies in `scratch`.
pub(super) fn survey_only(config: &RunConfig, scratch: &Path) -> RunConfig {
    RunConfig {
        output: OutputConfig { path: Some(scratch.join("survey")), ..config.output.clone() },
        overhead: OverheadConfig { is_measured: false, progress: Some(ProgressSpec::Off) },
        operations: OperationConfig::default(),
        words: Vec::new(),
        ..config.clone()
    }
}

/// A directory that goes when it is dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn create() -> Result<Self, Failure> {
        let base = std::env::temp_dir().join(format!("tithe-plan-{}", std::process::id()));
        // Fails if it exists, whoever made it.
        std::fs::create_dir(&base)
            .map_err(|e| Failure::from(anyhow::anyhow!("cannot create '{}': {e}", base.display())))?;
        Ok(Self(base))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
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

/// An agent that looks at this target, and a run that begins.
///
/// # Errors
/// What was named makes no sense, or the kernel refuses.
pub(super) fn prepare(
    config: &RunConfig,
    held: Held,
    progress: Progress,
    plan_only: bool,
    watchdog: &Watchdog,
) -> Result<(Session, Launched), Failure> {
    progress.set("inspecting the target".to_owned());
    let pid = u32::try_from(held.target().pid()).map_err(|e| Failure::attach(anyhow::anyhow!(e)))?;
    let words = WordLists::new(&config.words, &config.operations.operations).map_err(Failure::usage)?;
    let selection =
        Selection::new(&config.functions, words.clone()).map_err(|e| Failure::new(FailureKind::Usage, e))?;
    let mut inspection = Inspection::of(held.target().pid()).map_err(Failure::attach)?;
    // Of a launched program the libraries are not mapped yet.
    let metric = match &held {
        Held::Running(_) => Wanted::named(config, &inspection)?,
        Held::Suspended(_) => Wanted::Off,
    };
    let options = kernel_options(config, &words)?;
    let kernel = load(config, &options, pid)?;
    progress.set("calibrating: what a hit costs here".to_owned());
    let cost =
        calibrate::load_or_run(kernel.tier(), &CalibrateOptions::default()).map_err(Failure::attach)?;
    for note in &cost.notes {
        progress.note(note);
    }
    inspection.use_rules(cost.rules);
    let cost = cost.model;
    // The kernel's type information was read, and memory will be locked.
    give_memory_back();
    let governor = govern(config, &options, &kernel, watchdog)?;
    let sampling = sampling(config, &kernel, pid)?;
    let rings = Rings {
        calls: kernel.call_reader().map_err(Failure::attach)?,
        log: config.output.verbose.then(|| kernel.log()).transpose().map_err(Failure::attach)?,
        lifecycle: kernel.watch_lifecycle().map_err(Failure::attach)?,
    };
    let reader = (!words.is_empty()).then(|| kernel.taking_reader()).transpose().map_err(Failure::attach)?;
    let start_ns = now_ns();
    let journal = journal(config, held.target(), &kernel, &cost, start_ns, progress)?;
    let exe = held.target().exe().ok();
    let (target, launched) = match held {
        Held::Running(target) => (target, Launched::Nothing),
        Held::Suspended(held) => {
            // The target is bound a second time: `held` keeps its own until it is let go.
            let target = Target::attach(held.target().pid()).map_err(Failure::attach)?;
            (target, Launched::Held(Box::new(held)))
        }
    };
    let cpu_ns = target.cpu_time_ns().unwrap_or(0);
    // Who attaches reads the CPU clock by a binding of its own.
    let bound = Arc::new(Target::attach(target.pid()).map_err(Failure::attach)?);
    let opener = Opener::start(Arc::clone(&kernel), Arc::clone(governor.table()))
        .context("cannot start the thread that makes links")?;
    let times = times(config, &selection, start_ns);
    let settings = run_settings(config, &kernel, &cost, &options, plan_only, start_ns);
    let mut run = Run::new(settings, times, cost.clone(), cpu_ns);
    run.add_activity(Box::new(StampPairs::new()));
    let agent = Agent {
        processes: ChildProcesses::new(exe),
        callers: CallerWatch::default(),
        call_code: CallCode::default(),
        child: None,
        operation_io: None,
        words: Words { reader, lists: words, ..Words::default() },
        meters: Meters::new(&target, start_ns),
        target,
        inspection,
        catalog: Catalog::new(selection, InputNames::of(config)),
        attach: Attachments::new(kernel, governor, opener, bound),
        sampling,
        rings,
        prices: cost,
        journal,
        data_points: DataPoints::new(config, start_ns),
    };
    let mut session = Session { agent, driver: Driver::new(run, start_ns) };
    session.measure(metric)?;
    if matches!(launched, Launched::Nothing) {
        session.agent.look_up_names().map_err(Failure::usage)?;
        session.follow_operations(&config.operations)?;
    }
    Ok((session, launched))
}

/// The kernel programs that the run needs, for this process.
fn load(config: &RunConfig, options: &KernelOptions, pid: u32) -> Result<Arc<Kernel>, Failure> {
    let kernel = Arc::new(calibrate::load_kernel(options).map_err(Failure::attach)?);
    // What the run surely attaches: nothing of it waits later. The kernel looks at the programs of timed calls for 0.2 s of CPU time,
    // and most runs time none; who does is served by the opener, which waits for them, and the loop does not.
    let mut kinds = vec![LinkKind::Count];
    if times_calls(config) {
        kinds.extend([LinkKind::ExitPair, LinkKind::ReturnPair, LinkKind::ReturnSites]);
    }
    kinds.extend((!config.functions.record.is_empty()).then_some(LinkKind::Record));
    kinds.extend((!config.operations.calls.is_empty()).then_some(LinkKind::Step));
    kinds.extend(link_kinds(&config.operations.operations));
    kernel.load_programs(&kinds);
    // Forked children are followed, so that their ends and execs are known; where the kernel's PID filter does not work,
    // their hits would count as the target's.
    kernel.add_target(pid, kernel.tier() != Tier::C).map_err(Failure::attach)?;
    Ok(kernel)
}

fn govern(
    config: &RunConfig,
    options: &KernelOptions,
    kernel: &Kernel,
    watchdog: &Watchdog,
) -> Result<Governor, Failure> {
    let table = LinkTable::new(options.max_classes).context("cannot create the link table")?;
    let table = counting(table, kernel);
    let table = Arc::new(if config.cost.expedite { table.expedited() } else { table });
    let alarms = kernel.alarm_reader().map_err(Failure::attach)?;
    Governor::start(alarms, table, Some(watchdog.heartbeat())).map_err(Failure::attach)
}

fn sampling(config: &RunConfig, kernel: &Kernel, pid: u32) -> Result<Sampling, Failure> {
    let events = kernel.thread_sampling(FIRST_PERIOD_NS).map_err(Failure::attach)?;
    let sampler = kernel.sampler(SampleKind::Observe).map_err(Failure::attach)?;
    let reader = kernel.sample_reader().map_err(Failure::attach)?;
    let mut unwinder = Unwinder::default();
    unwinder.prepare(pid);
    let mut events = SamplingEvents::new(events, sampler, Host::read().cpus);
    if config.experiments.only_named || config.sampling_hz == Some(0.0) {
        events.switch_off_for_good();
    }
    Ok(Sampling::new(events, reader, unwinder, pid))
}

/// The recording, created, with its writer.
fn journal(
    config: &RunConfig,
    target: &Target,
    kernel: &Kernel,
    cost: &CostModel,
    start_ns: u64,
    progress: Progress,
) -> Result<Journal, Failure> {
    let output = config.output.path.clone().unwrap_or_else(|| default_output(target));
    let meta = meta(config, target, kernel, cost, start_ns);
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
    let consumers = Consumers::default();
    Ok(Journal { writer, meta, progress, verbose: config.output.verbose, output, consumers })
}

/// A run whose end nobody knows is planned as if it took so long, s.
const USUAL_RUN_S: f64 = 60.0;

/// What does not change during the run.
fn run_settings(
    config: &RunConfig,
    kernel: &Kernel,
    cost: &CostModel,
    options: &KernelOptions,
    plan_only: bool,
    seed: u64,
) -> Settings {
    let cpus = Host::read().cpus;
    Settings {
        budget: config.cost.budget,
        cpus,
        thread_share: config.cost.thread_share,
        agent_cpu: config.cost.agent_cpu,
        sample: cost.sample_price(f64::from(options.stack_bytes) / 1024.0),
        plan_only,
        trace: problem::Settings {
            only_named: config.experiments.only_named,
            fixed_rate_hz: config.sampling_hz,
            slow_links: kernel.tier() == Tier::D,
            links_wait: links_wait(config),
            prices: BurstPrices::new(cost, cpus),
            objective: config.objective,
            horizon_s: config.duration.map_or(USUAL_RUN_S, |d| d.as_secs_f64().max(1.0)),
        },
        survey: survey::Settings {
            longest_ns: survey_ns(config),
            first_plan_ns: first_plan_ns(config),
            attach_s: cost.attach.seconds(),
            detach_delay_s: cost.detach_delay.seconds(),
            own_links: super::attach::OWN_LINKS,
        },
        seed,
    }
}

fn times(config: &RunConfig, selection: &Selection, start_ns: u64) -> Times {
    // Who named functions waits for nothing but the first tokens.
    let first_look_ns =
        if selection.names_any() { NAMED_NS.min(warmup_ns(config)) } else { warmup_ns(config) };
    Times {
        start_ns,
        end_ns: config.duration.map(|d| start_ns + u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 2)),
        warmup_until_ns: start_ns + first_look_ns,
        discover_ns: start_ns + warmup_ns(config),
    }
}

impl Session {
    /// Measures the overhead on this metric.
    ///
    /// # Errors
    /// What was named cannot be counted.
    pub(super) fn measure(&mut self, wanted: Wanted) -> Result<(), Failure> {
        if let Some(measuring) = self.agent.start_metric(wanted)? {
            self.driver.run.measure(measuring);
        }
        Ok(())
    }
}

impl Agent {
    /// Says it where the governor is slower than promised.
    pub(super) fn note_priority(&mut self) {
        let priority = self.attach.governor().status().priority;
        if priority == Priority::RealTime {
            return;
        }
        let text = format!(
            "real-time priority was refused (the governor runs at {} priority): on a busy machine a function that explodes is stopped some \
             milliseconds late, and costs more than its quota; 'tithe doctor' says why",
            priority.name()
        );
        self.journal.progress.note(&text);
        self.journal.meta.warnings.push(text);
    }
}

/// What the kernel side must hold.
///
/// # Errors
/// Too many operations, or too many classes of them.
fn kernel_options(config: &RunConfig, words: &WordLists) -> Result<KernelOptions, Failure> {
    Ok(KernelOptions {
        forced_tier: config.experiments.forced_tier,
        kernel_memory_bytes: config.cost.kernel_memory_bytes,
        verbose: config.output.verbose,
        // Only call records go there.
        events_ring_bytes: if config.functions.record.is_empty() { 4096 } else { 4 << 20 },
        samples_ring_bytes: samples_ring_bytes(config.sampling_hz),
        // Otherwise only pairs of time stamps have one.
        histogram_classes: if times_calls(config) { 256 } else { MOST_FOR_RATES as u32 },
        operation_classes: operation_classes(&config.operations)?,
        operations_ring_bytes: operations_ring_bytes(&config.operations),
        word_limit: words.longest(),
        takings_ring_bytes: if words.is_empty() { 4096 } else { TAKINGS_RING_BYTES },
        steps_ring_bytes: if config.operations.calls.is_empty() { 4096 } else { steps::RING_BYTES },
        ..KernelOptions::default()
    })
}

/// Operations need little. With calls in order the other ring is full sooner, and those that lost calls must find room to say so.
fn operations_ring_bytes(config: &OperationConfig) -> u32 {
    match (config.operations.is_empty(), config.calls.is_empty()) {
        (true, _) => 4096,
        (false, true) => 1 << 20,
        (false, false) => 4 << 20,
    }
}

/// Whether calls are timed because somebody asked for it.
fn times_calls(config: &RunConfig) -> bool {
    let functions = &config.functions;
    !(functions.latency.is_empty() && functions.record.is_empty() && config.operations.operations.is_empty())
}

/// Room for the samples of two turns, with their stacks: at the rates that a plan chooses 2 MiB are enough for 24 CPUs. A reader maps a
/// ring twice, one copy behind the other, so it takes twice as much of the agent's resident set.
fn samples_ring_bytes(rate_hz: Option<f64>) -> u32 {
    /// Highest rate that a plan chooses, Hz, and bytes of a sample.
    const PLANNED: (f64, f64) = (200.0, 8_500.0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let per_turn = rate_hz.unwrap_or(PLANNED.0).max(PLANNED.0) * cpus * QUIET_TURN.as_secs_f64();
    // OK because it lies between 2 and 64 MiB; the kernel side rounds up.
    ((2.0 * per_turn * PLANNED.1) as u32).clamp(2 << 20, 64 << 20)
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

/// Whether links may wait for up to a second until the price of timing was measured: not in a run that is short, or whose program ends nobody knows when.
fn links_wait(config: &RunConfig) -> bool {
    /// A tenth of it is lost at most.
    const LONG: Duration = Duration::from_secs(10);
    matches!(config.target, TargetConfig::Process(_)) && config.duration.is_none_or(|d| d >= LONG)
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
        agent: AgentUse {
            until_begin_ns: Some(agent_cpu_ns(helpers_cpu_ns())),
            limit: Some(config.cost.agent_cpu),
            ..AgentUse::default()
        },
        measured: None,
        losses: Losses::default(),
        not_observed: Vec::new(),
        warnings: Vec::new(),
        operations: Vec::new(),
        slowest_answer: None,
        private_memory: None,
        forks_held: None,
        calls: None,
        models: config.models.meta(),
        words: Vec::new(),
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

#[cfg(test)]
mod tests;
