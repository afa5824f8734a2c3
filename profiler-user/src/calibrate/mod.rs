//! What watching costs on this host: prices of hits, samples and switches, measured on a child of our own.
//!
//! The price of a trap depends on the machine (a single-stepped instruction costs ten times as much in a virtual
//! machine), on the kernel (optimised uprobes, sessions) and on our programs, so it is measured and never assumed. The
//! kernel's own BPF run-time statistics see a tenth of it: the trap itself lies outside. The target is never touched:
//! a copy of this program calls functions that we wrote, with the very programs that a session uses, probed and
//! unprobed in turns.
//!
//! In: a capability tier. Out: a [`CostModel`] with median and range of each price, kept per boot ([`load_or_run`]).
//! Where something could not be measured the prior stays (`n` = 0) and a note says so.
//! It does not charge anything: see `profiler_core::ledger`.

mod cache;
mod child;
mod code;
mod forms;
mod found;
mod hits;
mod samples;
mod stamps;
mod tracepoint;
mod worker;

pub use child::child_main;
pub use forms::{FormsHere, known_rules};
pub use found::{keep_tier, load_kernel};
pub use worker::ChildCommand;
pub(crate) use worker::Worker;

use crate::inspect::KernelRules;
use crate::prober::{AttachError, Kernel, KernelError, KernelOptions, SampleError};
use profiler_core::class::{ClassId, Tier};
use profiler_core::cost::{CostModel, Price};
use profiler_core::recording::PricesAtEnd;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Why there are no measured prices.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The kernel side does not load.
    #[error("cannot calibrate: {0}")]
    Kernel(#[from] KernelError),
    /// Nothing could be attached to the child.
    #[error("cannot calibrate: {0}")]
    Attach(#[from] AttachError),
    /// The child cannot be sampled.
    #[error("cannot calibrate: {0}")]
    Sample(#[from] SampleError),
    /// One function of the child was refused.
    #[error("cannot calibrate: the kernel refuses function {class} of our own child: {source}")]
    Refused {
        /// Its class.
        class: ClassId,
        /// What the kernel said.
        source: io::Error,
    },
    /// No histogram is free.
    #[error("cannot calibrate: all histograms are leased; raise --kernel-memory")]
    NoHistogram,
    /// The child does not start or talk.
    #[error("cannot calibrate: the child process: {0}")]
    Child(io::Error),
    /// The child gets no CPU, or somebody stopped it.
    #[error(
        "cannot calibrate: the child process did not answer within {} s: it was stopped, or this machine is overloaded; try again when it is less busy",
        .0.as_secs()
    )]
    Slow(Duration),
    /// The child said something else.
    #[error("cannot calibrate: the child process answered '{0}'")]
    Answer(String),
    /// Our own memory map.
    #[error("cannot calibrate: finding our functions in /proc/self/maps: {0}")]
    Maps(io::Error),
    /// Not every call was a hit.
    #[error(
        "cannot calibrate: of {called} calls of the child {attempted} were hits and {kept} were kept ({what}); is another tracer attached to {}?",
        std::env::current_exe().unwrap_or_default().display()
    )]
    Hits {
        /// What was kept of a hit.
        what: &'static str,
        /// Calls made.
        called: u64,
        /// Hits that reached the program.
        attempted: u64,
        /// Hits kept.
        kept: u64,
    },
    /// The identity of this boot.
    #[error("cannot read the identity of this boot from /proc/sys/kernel: {0}")]
    Boot(io::Error),
}

/// Where and how to calibrate.
#[derive(Debug, Clone, Default)]
pub struct CalibrateOptions {
    /// Measure even if this boot's prices are stored.
    pub refresh: bool,
    /// Run the accepted instruction forms again, even on the kernel that they were proven on.
    pub prove_forms: bool,
    /// How the child is started.
    pub child: ChildCommand,
    /// Directory of the stored prices instead of `/var/cache/tithe` or the user's cache directory.
    pub cache_dir: Option<PathBuf>,
}

/// The prices, and how we came by them.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// The prices.
    pub model: CostModel,
    /// How long measuring took; `None` if they were stored.
    pub took: Option<Duration>,
    /// Which instructions may be probed on this kernel, and what it does with them.
    pub rules: KernelRules,
    /// How long running the accepted forms again took; `None` if that was not needed.
    pub forms_took: Option<Duration>,
    /// What the user should know: a stored file that was ignored, a price that was not measured.
    pub notes: Vec<String>,
}

/// The prices of this host for `tier`: stored ones of this boot, else measured now and stored.
///
/// # Errors
/// Measuring failed. A cache that cannot be read or written is a note, not an error.
///
/// # Cost
/// Some ms if stored; else about half a second, most of it CPU time of the child.
pub fn load_or_run(tier: Tier, options: &CalibrateOptions) -> Result<Calibration, CalibrateError> {
    let key = cache::Key::here(tier).map_err(CalibrateError::Boot)?;
    let dir = options.cache_dir.clone().or_else(cache::default_dir);
    let mut notes = Vec::new();
    let (rules, forms_took) =
        forms::rules(tier, options.prove_forms, &options.child, dir.as_deref(), &mut notes)?;
    if let Some(dir) = dir.as_ref().filter(|_| !options.refresh) {
        match cache::load(dir, &key) {
            Ok(Some(model)) => return Ok(Calibration { model, took: None, rules, forms_took, notes }),
            Ok(None) => {}
            Err(note) => notes.push(note),
        }
    }
    let start = Instant::now();
    let model = measure(tier, &options.child, &mut notes)?;
    let took = Some(start.elapsed());
    if let Some(dir) = dir
        && let Err(error) = cache::store(&dir, &key, &model)
    {
        notes.push(format!("cannot store the prices in {}: {error}", dir.display()));
    }
    Ok(Calibration { model, took, rules, forms_took, notes })
}

/// How long measuring at the end of a run may take: the user waits for the report.
const AT_END: Duration = Duration::from_secs(1);
/// The range of six rounds holds the median in 97 of 100 times (1 - 2 / 2^6), that of fewer too seldom.
const LEAST_ROUNDS: u32 = 6;

/// What samples and switches cost now, by the programs of a run that has ended: nobody is sampled any more, and its rings are read no more. Takes
/// some 0.15 s, 1 s at most, and ends early where `go_on` says no. `None`: the child got too little of the CPU, or there was no time.
///
/// # Errors
/// The child does not start, or cannot be sampled.
pub fn at_end(
    kernel: &Kernel,
    child: &ChildCommand,
    go_on: impl Fn() -> bool,
) -> Result<Option<PricesAtEnd>, CalibrateError> {
    if !go_on() {
        return Ok(None);
    }
    let mut worker = worker::Worker::start_until(child, Instant::now() + AT_END)?;
    kernel.add_target(worker.pid(), false)?;
    let mut runs = samples::SampleRuns::new(kernel)?;
    let mut rounds = (0..hits::ROUNDS).take_while(|_| go_on());
    let done = rounds.try_for_each(|_| runs.round_as_set(&mut worker));
    kernel.remove_target(worker.pid());
    // Where time is up, what there is counts.
    if let Err(error) = done
        && !matches!(error, CalibrateError::Slow(_))
    {
        return Err(error);
    }
    let [sample, _, switch] = runs.prices().map(|p| p.filter(|p| p.n >= LEAST_ROUNDS).map(rounded));
    Ok(sample.zip(switch).map(|(sample, switch)| PricesAtEnd { sample, switch }))
}

/// Measure everything, with maps of our own that are as small as they can be.
fn measure(tier: Tier, child: &ChildCommand, notes: &mut Vec<String>) -> Result<CostModel, CalibrateError> {
    let mut worker = worker::Worker::start(child)?;
    let kernel = Kernel::load(&KernelOptions {
        forced_tier: Some(tier),
        max_classes: hits::CLASSES + stamps::CLASSES,
        histogram_classes: 32,
        events_ring_bytes: 4 << 20,
        samples_ring_bytes: 4 << 20,
        ..KernelOptions::default()
    })?;
    kernel.add_target(worker.pid(), false)?;
    let tracepoint = tracepoint::measure(&kernel, &mut worker)?;
    let stamps = stamps::measure(&kernel, &mut worker)?;
    let mut hits = hits::measure(&kernel, &mut worker)?;
    let mut samples = samples::SampleRuns::new(&kernel)?;
    let mut rounds = (0..hits::ROUNDS).peekable();
    let delays = hits.detach(&mut worker, |worker| {
        for _ in rounds.by_ref().take(2) {
            samples.round(worker)?;
        }
        Ok(())
    })?;
    for _ in rounds {
        samples.round(&mut worker)?;
    }
    let mut model = assemble(hits, Price::from_runs(&delays), tracepoint, samples.prices(), notes);
    model.stamps = stamps;
    Ok(model)
}

/// Priors where nothing was measured, rounded to 0.1 ns (the file then gives back exactly what was measured).
fn assemble(
    hits: hits::HitPrices,
    detach_delay: Option<Price>,
    tracepoint: Option<Price>,
    [base, per_kib, switch]: [Option<Price>; 3],
    notes: &mut Vec<String>,
) -> CostModel {
    let mut model = CostModel::assumed();
    // The priors of combinations that were not measured must not mix with measured ones: the look-up answers those
    // with the next dearer measured price.
    model.hit = hits.hit.into_iter().map(|(key, price)| (key, rounded(price))).collect();
    model.pair = hits.pair.into_iter().map(|(key, price)| (key, rounded(price))).collect();
    let assumed_behind = model.left_behind();
    model.concurrency = hits.concurrency.into_iter().map(|f| (f * 1e3).round() / 1e3).collect();
    let mut set = |price: &mut Price, measured: Option<Price>, what: &str| match measured {
        Some(measured) => *price = rounded(measured),
        None => notes.push(format!("the price of {what} was not measured: assumed {:.0} ns", price.ns)),
    };
    set(&mut model.cold, hits.cold, "cold caches");
    set(model.behind.insert(assumed_behind), hits.behind, "what a trap leaves behind");
    set(&mut model.rested, hits.rested, "a hit after a rest");
    set(&mut model.attach, hits.attach, "the stall of attaching");
    set(&mut model.detach_delay, detach_delay, "the delay of detaching");
    set(&mut model.tracepoint, tracepoint, "a raw tracepoint");
    set(&mut model.sample_base, base, "a sample");
    set(&mut model.sample_per_kib, per_kib, "a KiB of copied stack");
    set(&mut model.switch, switch, "a context switch");
    let measured_ns = model.cold.ns;
    if model.hold_cold() {
        notes.push(format!(
            "cold caches seemed to add {measured_ns:.0} ns to a hit, less than on any machine where nothing else ran: taken for {:.0}; \
             'tithe calibrate' measures again, best when nothing else runs",
            model.cold.ns
        ));
    }
    model.origin = "calibrated".to_owned();
    model
}

fn rounded(price: Price) -> Price {
    let round = |ns: f64| (ns * 10.0).round() / 10.0;
    Price { ns: round(price.ns), min_ns: round(price.min_ns), max_ns: round(price.max_ns), n: price.n }
}
