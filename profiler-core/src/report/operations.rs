//! Operations in the report: per class the population, which is exact, and the measure, which is estimated from the
//! sample; the mix of both; the cycles; what screening and recording cost.

use super::build::stamps::MOST_COLD;
use super::slices::Slices;
use crate::adapt::strata::{ClassEstimator, MeanEstimate};
use crate::cost::{self, PRICE_DRIFT, Price};
use crate::estimate::Estimate;
use crate::recording::{
    OperationCycleEnd, OperationHistogramRow, OperationMeta, OperationWindowRow, Recording,
};
use crate::stats::LEVEL;
use crate::stats::moments::Moments;
use crate::stats::quantile::{Bucket, quantile};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Orders of the quantiles of response times.
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

/// One operation that was followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationReport {
    /// Its name.
    pub name: String,
    /// How it was asked for.
    pub bounds: String,
    /// Policy.
    pub policy: String,
    /// What the measure is; empty: there is none.
    pub measure: String,
    /// Classes, most frequent first.
    pub classes: Vec<OperationClassReport>,
    /// Operations that ended.
    pub population: u64,
    /// Of those, recorded.
    pub recorded: u64,
    /// Quantiles of the response times of all classes together, as those of each class.
    #[serde(default)]
    pub quantiles_ns: Vec<(f64, Estimate)>,
    /// Operations whose response time is in no histogram: their end was not seen, or all histograms had been given. The quantiles' intervals
    /// allow for any time of theirs.
    #[serde(default)]
    pub untimed: u64,
    /// Operations per second of watched time.
    pub rate_hz: f64,
    /// Watched time, s: its bounds were attached.
    pub watched_s: f64,
    /// Its part of the time from the start of the first window to the end of the last, or of the run.
    pub watched_share: f64,
    /// Recorded / all operations that began, while recording was on.
    pub average_rate: f64,
    /// Largest difference of a class's shares in sample and population; `None` without a sample.
    pub mix_difference: Option<f64>,
    /// Cycles that ended in the run.
    pub cycles: u64,
    /// Of those, by the time limit.
    pub timeouts: u64,
    /// Shortest, mean and longest of them, s.
    pub cycle_s: Option<(f64, f64, f64)>,
    /// Ends without a begin, begins that found no room, and operations that were given up because their end will not be seen.
    pub unmatched: u64,
    /// Operations that began and whose end was not seen: they were left by an exception or `longjmp`, functions were detached meanwhile, or their thread ended
    /// inside. Those that were open when the run ended are not among them. `None`: it is not known how many these were.
    #[serde(default)]
    pub without_end: Option<u64>,
    /// Ends without a begin, and begins that found no room, at least: `unmatched` less [`without_end`](Self::without_end), of which it holds all but those whose
    /// thread ended inside.
    #[serde(default)]
    pub without_begin: Option<u64>,
    /// Recorded operations that had not ended.
    pub censored: u64,
    /// Records lost.
    pub dropped: u64,
    /// CPU time of screening all of them, s: their number times the price.
    pub screening_s: f64,
    /// CPU time inside recorded operations that monitoring took, s.
    pub recording_s: f64,
}

/// One class of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationClassReport {
    /// Its name.
    pub name: String,
    /// Operations that ended.
    pub population: u64,
    /// Their mean response time, ns, uncorrected. Exact for the operations that were watched.
    pub mean_ns: Estimate,
    /// Quantiles of the response times of all of them, with their orders (0.5, 0.99, 0.999), ns, uncorrected; the interval is that of the
    /// histogram's bucket, or wider where operations that were lost may move it. Empty: the class has no histogram.
    #[serde(default)]
    pub quantiles_ns: Vec<(f64, Estimate)>,
    /// Standard deviation of the response times, ns.
    pub deviation_ns: Option<f64>,
    /// Recorded operations that ended.
    pub recorded: u64,
    /// Mean measure of an operation, post-stratified by stretches of constant rate; slices are its sampling units. `None`: none was recorded.
    pub measure: Option<Estimate>,
    /// Mean time off CPU of an operation (waiting, and ready without a CPU), ns, post-stratified likewise; `None`: not known of any.
    pub off_cpu_ns: Option<Estimate>,
    /// Operations in stretches in which none was recorded, or that began while none could be, but for those between slices: `measure` does not
    /// speak of them.
    pub unobserved: u64,
    /// Mean calls of inner functions in a recorded operation.
    pub calls: Option<f64>,
    /// Mean time in inner functions of a recorded operation, ns, uncorrected.
    pub inner_ns: Option<f64>,
}

/// All operations of a recording, in the order in which they were asked for.
#[must_use]
pub(super) fn of(recording: &Recording) -> Vec<OperationReport> {
    recording.meta.operations.iter().map(|meta| operation(recording, meta)).collect()
}

fn operation(recording: &Recording, meta: &OperationMeta) -> OperationReport {
    let windows: Vec<&OperationWindowRow> =
        recording.operation_windows.iter().filter(|w| w.operation == meta.operation).collect();
    let mut classes = classes(recording, meta, &windows);
    classes.sort_by(|a, b| b.population.cmp(&a.population).then_with(|| a.name.cmp(&b.name)));
    let sum = |of: fn(&OperationWindowRow) -> u64| windows.iter().map(|w| of(w)).sum::<u64>();
    let population: u64 = classes.iter().map(|c| c.population).sum();
    let recorded: u64 = classes.iter().map(|c| c.recorded).sum();
    let times: Vec<Bucket> =
        recording.operation_histograms.iter().filter(|r| r.operation == meta.operation).map(bucket).collect();
    let begun = sum(|w| w.begun);
    let all = population.max(begun);
    let unmatched = sum(|w| w.unmatched);
    // Every operation begins once, and ends once, is open, or has no end.
    let without_end = meta.open_at_end.map(|open| begun.saturating_sub(population + open));
    let ours = Ours::of(meta, recording.meta.cost.cold);
    let on = |of: fn(&OperationWindowRow) -> u64| {
        windows.iter().filter(|w| w.monitoring).map(|w| of(w)).sum::<u64>()
    };
    // Each row of a window says for how long that window was watched.
    let watched: BTreeMap<u64, u64> = windows.iter().map(|w| (w.start_ns, w.watched_ns)).collect();
    let watched_s = watched.values().sum::<u64>() as f64 * 1e-9;
    let first_ns = watched.keys().next().copied().unwrap_or(0);
    let last_ns = recording.meta.end_ns.or(windows.iter().map(|w| w.end_ns).max()).unwrap_or(0);
    let span_s = last_ns.saturating_sub(first_ns) as f64 * 1e-9;
    let share = |of: u64, all: u64| of as f64 / all.max(1) as f64;
    let mix_difference = (recorded > 0).then(|| {
        let difference =
            |c: &OperationClassReport| (share(c.recorded, recorded) - share(c.population, population)).abs();
        classes.iter().map(difference).fold(0.0, f64::max)
    });
    let cycles: Vec<_> = recording
        .operation_cycles
        .iter()
        .filter(|c| c.operation == meta.operation && c.end != OperationCycleEnd::RunEnd)
        .collect();
    let lengths: Moments = cycles.iter().map(|c| c.end_ns.saturating_sub(c.start_ns) as f64 / 1e9).collect();
    OperationReport {
        name: meta.name.clone(),
        bounds: meta.bounds.clone(),
        policy: meta.policy.clone(),
        measure: meta.measure.clone(),
        population,
        recorded,
        quantiles_ns: quantiles(&times, all, ours),
        untimed: untimed(&times, all),
        rate_hz: if watched_s > 0.0 { begun as f64 / watched_s } else { 0.0 },
        watched_s,
        watched_share: if span_s > 0.0 { (watched_s / span_s).min(1.0) } else { 0.0 },
        average_rate: share(on(|w| w.recorded), on(|w| w.begun)),
        mix_difference,
        cycles: cycles.len() as u64,
        timeouts: cycles.iter().filter(|c| c.end == OperationCycleEnd::Timeout).count() as u64,
        cycle_s: (!cycles.is_empty()).then(|| (lengths.min(), lengths.mean(), lengths.max())),
        unmatched,
        without_end,
        without_begin: without_end.map(|n| unmatched.saturating_sub(n)),
        censored: recording.operations.iter().filter(|r| r.operation == meta.operation && r.censored).count()
            as u64,
        dropped: sum(|w| w.dropped),
        screening_s: begun as f64 * meta.screen_ns * 1e-9,
        recording_s: sum(|w| w.cost_ns) as f64 * 1e-9,
        classes,
    }
}

/// What recorded operations show, by stretch and slice.
type Shown = BTreeMap<u64, BTreeMap<usize, Vec<f64>>>;

/// Operations of a class that began in a stretch.
#[derive(Default)]
struct Begun {
    /// While they could be recorded.
    inside: u64,
    /// Between slices, which stand for them.
    between: u64,
    /// While they could not, for other reasons.
    unobserved: u64,
}

/// A class with its stretches: population begun in each, and the recorded ones.
#[derive(Default)]
struct Gathered {
    population: Moments,
    /// Stretch to operations begun in it.
    begun: BTreeMap<u64, Begun>,
    /// Stretch and slice to the measures of their recorded operations.
    measures: Shown,
    /// The same of their times off CPU, ns, where known.
    off_cpu: Shown,
    recorded: u64,
    calls: u64,
    inner_ns: u64,
    /// Response times of all of its operations.
    times: Vec<Bucket>,
}

fn classes(
    recording: &Recording,
    meta: &OperationMeta,
    windows: &[&OperationWindowRow],
) -> Vec<OperationClassReport> {
    let mut gathered: BTreeMap<u32, Gathered> = BTreeMap::new();
    let mixed = mixed(windows);
    let ours = Ours::of(meta, recording.meta.cost.cold);
    for w in windows {
        let class = gathered.entry(w.class_id).or_default();
        class.population.merge(&Moments::from_sums(
            w.population,
            w.population_sum_ns,
            w.population_squares_ns2,
        ));
        let begun = class.begun.entry(w.stretch).or_default();
        // What began without recording is in no stratum, unless slices stand for it; those of another operation's slices do not, where this one's stretch went on.
        let is_mixed = mixed.contains(&(w.class_id, w.stretch));
        let (between, unobserved) = match (w.monitoring, is_mixed, without(w)) {
            (false, _, _) => (0, w.begun),
            (true, true, (between, unobserved)) => (0, between + unobserved),
            (true, false, without) => without,
        };
        begun.between += between;
        begun.unobserved += unobserved;
        begun.inside += w.begun - between - unobserved;
    }
    let slices = Slices::of(recording, meta);
    for row in recording.operations.iter().filter(|r| r.operation == meta.operation && r.is_sampled()) {
        let class = gathered.entry(row.class_id).or_default();
        let slice = slices.number(row.begin_ns);
        let show = |shown: &mut Shown, x: u64| {
            shown.entry(row.stretch).or_default().entry(slice).or_default().push(x as f64)
        };
        show(&mut class.measures, row.measure);
        if let Some(off_cpu_ns) = row.off_cpu_ns {
            show(&mut class.off_cpu, off_cpu_ns);
        }
        class.recorded += 1;
        class.calls += row.calls;
        class.inner_ns += row.inner_ns;
    }
    for row in recording.operation_histograms.iter().filter(|r| r.operation == meta.operation) {
        gathered.entry(row.class_id).or_default().times.push(bucket(row));
    }
    let names: HashMap<u32, &str> =
        recording.operation_classes.iter().map(|c| (c.class_id, c.class_name.as_str())).collect();
    gathered
        .into_iter()
        .filter(|(_, g)| g.population.n() > 0)
        .map(|(id, g)| {
            let name = names.get(&id).map_or_else(|| format!("class {id}"), |n| (*n).to_owned());
            class_report(name, meta, ours, g)
        })
        .collect()
}

/// A row of the histograms as the statistics take it.
pub(super) fn bucket(row: &OperationHistogramRow) -> Bucket {
    Bucket { low: row.low_ns as f64, high: row.high_ns as f64, count: row.count }
}

/// Quantiles of `n` operations that began. All whose end was seen are in the histogram, so nothing is left to chance: the ends of a quantile are
/// those of the bucket that it lies in, less what is ours in it. Those that are not (their end was not seen, or their class came when all histograms had been given) can
/// have taken any time.
fn quantiles(times: &[Bucket], n: u64, ours: Ours) -> Vec<(f64, Estimate)> {
    let lost = untimed(times, n) as f64 / n.max(1) as f64;
    let estimate = |p| Some((p, Estimate { level: 1.0, ..quantile(times, p, 0.0, lost)? }));
    // Where it may lie anywhere there is nothing to tell.
    let known = |(_, e): &(f64, Estimate)| e.low > 0.0 || e.high.is_finite();
    let told = |(p, e)| (p, ours.taken_from(e));
    QUANTILES.into_iter().filter_map(estimate).map(told).filter(known).collect()
}

/// What lies between the two time stamps of an operation and is ours, ns.
///
/// ```text
/// value   half of what screening takes, and cold (1 - e^(-d / 1 us)), d: as seen, less half of screening
/// most    twice what screening takes, and [`MOST_COLD`] times what cold caches added in calibration at most
/// ```
/// About the way out of the first trap and the way into the second. Their price is that of a tight loop, and between two operations most programs sleep or do
/// other work: in SQLite's requests the two traps took 2.2 times their price, and 3.5 to 5 times beside compilers, and what lay between the stamps was up to twice
/// the price of both (docs/benchmarks-operations.md). Without traps it is half of what screening takes, and at most all of it, a quarter dearer.
#[derive(Clone, Copy)]
struct Ours {
    half_ns: f64,
    cold: Price,
    most_ns: f64,
}

impl Ours {
    /// Of the price of screening, between the stamps.
    const MOST_SCREENING: f64 = 2.0;

    fn of(meta: &OperationMeta, cold: Price) -> Self {
        let half_ns = 0.5 * meta.screen_ns;
        if !meta.by_functions {
            let most_ns = (1.0 + PRICE_DRIFT) * meta.screen_ns;
            return Self { half_ns, cold: Price::fixed(0.0), most_ns };
        }
        Self { half_ns, cold, most_ns: Self::MOST_SCREENING * meta.screen_ns + MOST_COLD * cold.max_ns }
    }

    /// A response time as it was seen, without what is ours in it.
    fn taken_from(self, e: Estimate) -> Estimate {
        let without_half_ns = e.value - self.half_ns;
        let cold_ns = cost::cold_ns(self.cold, without_half_ns.max(0.0) * 1e-9);
        let low = (e.low - self.most_ns).max(0.0);
        Estimate { value: (without_half_ns - cold_ns).max(low), low, ..e }
    }
}

/// Of `n` operations those that are in no histogram.
fn untimed(times: &[Bucket], n: u64) -> u64 {
    n.saturating_sub(times.iter().map(|b| b.count).sum())
}

/// Operations that began while none could be recorded: those between slices, and others. Recording was off, or the quota used up, which only
/// those show that were drawn.
fn without(w: &OperationWindowRow) -> (u64, u64) {
    let sliced = w.sliced == Some(true);
    let without_quota = if w.rate > 0.0 { w.no_quota as f64 / w.rate } else { 0.0 };
    let most = w.begun.saturating_sub(w.recorded);
    let off = w.off.min(most);
    // OK because the cast saturates.
    let without_quota = (without_quota.round() as u64).min(most - off);
    if sliced { (off, without_quota) } else { (0, off + without_quota) }
}

/// Classes and stretches of which a part was in slices and another was not.
fn mixed(windows: &[&OperationWindowRow]) -> BTreeSet<(u32, u64)> {
    let of = |sliced: bool| {
        let is_such = move |w: &&&OperationWindowRow| w.monitoring && (w.sliced == Some(true)) == sliced;
        windows.iter().filter(is_such).map(|w| (w.class_id, w.stretch)).collect::<BTreeSet<_>>()
    };
    of(true).intersection(&of(false)).copied().collect()
}

fn class_report(name: String, meta: &OperationMeta, ours: Ours, g: Gathered) -> OperationClassReport {
    let n = g.population.n();
    let begun = g.begun.values().map(|b| b.inside + b.between + b.unobserved).sum::<u64>();
    let per_recorded = |sum: u64| (g.recorded > 0).then(|| sum as f64 / g.recorded as f64);
    let mean = strata(&g, &g.measures).filter(|_| !meta.measure.is_empty());
    OperationClassReport {
        name,
        population: n,
        mean_ns: ours.taken_from(Estimate::exact(g.population.mean(), n)),
        quantiles_ns: quantiles(&g.times, n.max(begun), ours),
        deviation_ns: g.population.variance().map(f64::sqrt),
        recorded: g.recorded,
        measure: mean.map(|m| m.estimate),
        off_cpu_ns: strata(&g, &g.off_cpu).map(|m| m.estimate),
        unobserved: mean.map_or(n, |m| m.unobserved),
        calls: per_recorded(g.calls),
        inner_ns: per_recorded(g.inner_ns),
    }
}

/// Mean of what the recorded operations of a class show, by their stretches and slices.
fn strata(g: &Gathered, shown: &Shown) -> Option<MeanEstimate> {
    let mut estimator = ClassEstimator::default();
    for (stretch, begun) in &g.begun {
        let mut recorded = 0;
        for values in shown.get(stretch).into_iter().flat_map(BTreeMap::values) {
            values.iter().for_each(|x| estimator.push(Some(*x)));
            estimator.end_slice();
            recorded += values.len() as u64;
        }
        // Operations that had not ended when the run did are in `begun` and were not recorded to their end.
        (recorded..begun.inside).for_each(|_| estimator.push(None));
        estimator.pass(begun.between);
        estimator.end_stretch();
        (0..begun.unobserved).for_each(|_| estimator.push(None));
        estimator.end_stretch();
    }
    let mut mean = estimator.mean(LEVEL)?;
    // A single recorded operation, or slice, bounds nothing from above, but nothing that is measured is negative.
    mean.estimate.low = mean.estimate.low.max(0.0);
    Some(mean)
}
