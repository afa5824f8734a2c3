//! Prices of a hit, by site class and by what is kept of it; the factor for threads that hit together; the stall of
//! attaching and the delay of detaching.
//!
//! Each run is a pair: an unprobed twin and the probed function, called one after the other by the same thread, timed by
//! that thread's CPU clock, which does not see other threads of a busy machine. price = (on - off) per call. Rounds go
//! through all combinations in turn, so that a slow phase of the machine touches all of them and not one.

use super::CalibrateError;
use super::code::Probed;
use super::worker::Worker;
use crate::prober::{
    AttachGroup, ClassControl, ClassKind, FLAG_ARGUMENTS, FLAG_CONTEXT, HistogramLease, Kernel, LinkKind,
    Settings, Site, SiteRole, Tier,
};
use profiler_core::class::{ClassId, RecordKind, SiteClass};
use profiler_core::cost::{CostModel, Price};
use profiler_core::stats::LEVEL;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Rounds: enough for a median that three disturbed runs cannot move.
pub(super) const ROUNDS: usize = 7;
/// CPU time of one run, ns: long against the clock (0.3 us), short against a scheduler's time slice.
pub(super) const RUN_NS: f64 = 450_000.0;
/// Records of one run: the ring must hold all of them, because nobody reads it meanwhile.
const MAX_RECORDS: f64 = 300.0;
/// Window in which the child looks for the stall of an attachment, ms.
const ATTACH_WINDOW_MS: u64 = 12;
/// Window in which the hits of a closed link must have ended, ms: they take one RCU grace period, about 10.
const FADE_WINDOW_MS: u64 = 80;

/// What a row of probed functions measures.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    row: usize,
    link: LinkKind,
    class: ClassKind,
    kind: RecordKind,
    /// Into the table of pairs instead of the table of hits.
    pair: bool,
    /// Hits per call: the price is that of one.
    hits: f64,
}

const fn row(row: usize, link: LinkKind, class: ClassKind, kind: RecordKind, pair: bool, hits: f64) -> Row {
    Row { row, link, class, kind, pair, hits }
}

/// All rows. A latency class with exit sites hits twice per call, at sites of the same class: half of that is the
/// price of one hit, so that a call with different sites is the sum of two of them.
const ALL_ROWS: [Row; 5] = [
    row(1, LinkKind::Count, ClassKind::Count, RecordKind::Count, false, 1.0),
    row(2, LinkKind::Record, ClassKind::Record, RecordKind::Record, false, 1.0),
    row(3, LinkKind::ExitPair, ClassKind::Latency, RecordKind::Latency, false, 2.0),
    row(4, LinkKind::ReturnPair, ClassKind::Latency, RecordKind::Latency, true, 1.0),
    row(5, LinkKind::ReturnPair, ClassKind::Record, RecordKind::Record, true, 1.0),
];

/// What is known of hits while their links are still attached.
pub(super) struct HitPrices {
    pub hit: Table,
    pub pair: Table,
    pub concurrency: Vec<f64>,
    pub cold: Option<Price>,
    pub behind: Option<Price>,
    pub rested: Option<Price>,
    pub attach: Option<Price>,
    attached: Vec<Attached>,
}

/// Prices by key, as in [`CostModel`].
type Table = BTreeMap<String, Price>;

/// A row that is attached.
struct Attached {
    row: Row,
    sites: Vec<SiteClass>,
    /// In the order in which they are to be closed.
    link: Vec<OwnedFd>,
    leases: Vec<HistogramLease>,
    calls: u64,
}

/// Classes that calibration uses: one per function.
pub(super) const CLASSES: u32 = (ALL_ROWS.len() * SiteClass::ALL.len()) as u32;

fn class_of(row: usize, site: SiteClass) -> ClassId {
    let index = (row - 1) * SiteClass::ALL.len() + site as usize;
    // OK because there are 25.
    ClassId(u32::try_from(index).unwrap_or(u32::MAX))
}

/// Measure everything that has to do with hits.
///
/// # Errors
/// Something cannot be attached, does not fire, or the child is gone.
pub(super) fn measure(kernel: &Kernel, worker: &mut Worker) -> Result<HitPrices, CalibrateError> {
    let mut stalls = Vec::new();
    let mut attached = Vec::new();
    for row in rows(kernel.tier()) {
        worker.begin_gaps(ATTACH_WINDOW_MS)?;
        attached.push(attach(kernel, worker.pid(), row, sites(kernel.tier()))?);
        stalls.push(worker.gaps_answer()?.longest_ns);
    }
    // The path of a real session: return addresses are kept for samples.
    let settings = kernel.classes().settings();
    kernel.classes().set_settings(Settings { sample_period_ns: 10_000_000, ..settings });
    let measured = prices(worker, &mut attached);
    kernel.classes().set_settings(settings);
    let (hit, pair) = measured?;
    verify(kernel, &attached)?;
    let concurrency = concurrency(worker)?;
    let [cold, behind] = undisturbed_cold(worker, &hit)?;
    let rested = rested(worker, cold, behind)?;
    Ok(HitPrices {
        hit,
        pair,
        concurrency,
        cold,
        behind,
        rested,
        attach: Price::from_runs(&stalls),
        attached,
    })
}

impl HitPrices {
    /// Close the links one after the other while the child calls the first function of each. Returns the delays from the
    /// decision to the last hit, ns. `between` runs after each: some tens of ms, or the next link profits from the
    /// grace period of the last one and the delay reads a hundred times too short. Links of several parts are left out:
    /// the second part follows when the first is closed.
    pub fn detach(
        &mut self,
        worker: &mut Worker,
        mut between: impl FnMut(&mut Worker) -> Result<(), CalibrateError>,
    ) -> Result<Vec<f64>, CalibrateError> {
        let price = self.hit.get(&CostModel::key(SiteClass::Push, RecordKind::Count)).map_or(600.0, |p| p.ns);
        let mut delays = Vec::new();
        std::thread::scope(|scope| {
            for Attached { row, link, leases, .. } in self.attached.drain(..) {
                let single = link.len() == 1;
                if single {
                    worker.begin_fade(
                        Probed { row: row.row, site: SiteClass::Push },
                        FADE_WINDOW_MS,
                        price / 2.0,
                    )?;
                    // Until the child is surely in its loop.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                let decided = monotonic_ns();
                // Closing blocks; the hits end before. Histograms live as long as the link.
                scope.spawn(move || {
                    drop(link);
                    drop(leases);
                });
                if single {
                    delays.push(worker.fade_answer()?.saturating_sub(decided) as f64);
                }
                between(worker)?;
            }
            Ok(delays)
        })
    }
}

/// In tier D each function is a perf event whose closing takes 0.1 s, and there is no session program that could
/// record: fewer combinations, and the look-up answers the others with the next dearer one.
fn rows(tier: Tier) -> Vec<Row> {
    ALL_ROWS.into_iter().filter(|r| tier != Tier::D || r.kind != RecordKind::Record).collect()
}

pub(super) fn sites(tier: Tier) -> &'static [SiteClass] {
    // The first of a link is the first whose hits stop, and `detach` watches it.
    const ALL: [SiteClass; 5] =
        [SiteClass::Push, SiteClass::Nop5, SiteClass::Nop, SiteClass::Branch, SiteClass::Stepped];
    const FEW: [SiteClass; 2] = [SiteClass::Push, SiteClass::Stepped];
    if tier == Tier::D { &FEW } else { &ALL }
}

fn attach(kernel: &Kernel, pid: u32, row: Row, sites: &[SiteClass]) -> Result<Attached, CalibrateError> {
    let mut leases = Vec::new();
    let mut group = AttachGroup { module: "/proc/self/exe".into(), pid, kind: row.link, sites: Vec::new() };
    for site in sites {
        let class = class_of(row.row, *site);
        let mut control = ClassControl::new(row.class);
        if row.link != LinkKind::Count && row.link != LinkKind::Record {
            let lease = kernel.classes().lease_histogram().ok_or(CalibrateError::NoHistogram)?;
            control.histogram = lease.first_slot();
            leases.push(lease);
        }
        // The path of a real session: prices are added up inside open calls, a quota is taken, and records say all.
        control.flags = FLAG_ARGUMENTS | FLAG_CONTEXT;
        control.hit_cost_ns = 1;
        control.return_cost_ns = 1;
        kernel.classes().configure(class, control);
        kernel.classes().set_quota(class, i64::MAX / 2);
        kernel.classes().reset(class);
        let probed = Probed { row: row.row, site: *site };
        let offset = probed.file_offset()?;
        group.sites.push(Site::entry(class, offset));
        if row.link == LinkKind::ExitPair {
            group.sites.push(Site {
                role: SiteRole::Exit,
                slot_delta: probed.exit_slot(),
                ..Site::entry(class, offset + probed.exit_distance())
            });
        }
    }
    let attached = kernel.attach(&group)?;
    if let Some(refusal) = attached.refused.into_iter().next() {
        return Err(CalibrateError::Refused { class: refusal.site.class, source: refusal.error });
    }
    Ok(Attached { row, sites: sites.to_vec(), link: attached.link.into_fds(), leases, calls: 0 })
}

/// Rounds over all attached functions.
fn prices(worker: &mut Worker, attached: &mut [Attached]) -> Result<(Table, Table), CalibrateError> {
    let prior = CostModel::assumed();
    let mut runs: BTreeMap<(bool, String), Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for link in attached.iter_mut() {
            for site in &link.sites {
                let expected = prior.hit_price(*site, link.row.kind).ns * link.row.hits;
                let mut calls = (RUN_NS / expected).max(30.0);
                if link.row.kind == RecordKind::Record {
                    calls = calls.min(MAX_RECORDS);
                }
                // OK because it is between 30 and 2,000.
                let calls = calls as u64;
                let probed = Probed { row: link.row.row, site: *site };
                let [off, on] = worker.calls(probed, calls, 1)?;
                let key = (link.row.pair, CostModel::key(*site, link.row.kind));
                runs.entry(key).or_default().push((on - off) / link.row.hits);
                // The child warms up with a sixteenth.
                if *site == SiteClass::Push {
                    link.calls += calls + calls / 16 + 1;
                }
            }
        }
    }
    let (mut hit, mut pair) = (Table::new(), Table::new());
    for ((is_pair, key), runs) in runs {
        if let Some(price) = Price::from_runs(&runs) {
            if is_pair { &mut pair } else { &mut hit }.insert(key, price);
        }
    }
    Ok((hit, pair))
}

/// Every call must have been a hit: a price of something that did not fire would be a lie.
fn verify(kernel: &Kernel, attached: &[Attached]) -> Result<(), CalibrateError> {
    for link in attached {
        let class = class_of(link.row.row, SiteClass::Push);
        let counters = kernel.classes().counters(class);
        // Where the kernel filters no PID, another child that calibrates shows up as a bystander.
        if counters.attempted - counters.bystanders != link.calls || counters.kept != link.calls {
            return Err(CalibrateError::Hits {
                what: link.row.kind.name(),
                called: link.calls,
                attempted: counters.attempted,
                kept: counters.kept,
            });
        }
    }
    Ok(())
}

/// Factor on a counted hit when `index + 1` threads hit at once, up to the number of CPUs; at most eight numbers of
/// threads are measured, the others lie on the line between their neighbours.
fn concurrency(worker: &mut Worker) -> Result<Vec<f64>, CalibrateError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let probed = Probed { row: 1, site: SiteClass::Push };
    let mut known = vec![(1usize, 1.0f64)];
    for threads in thread_counts(cpus) {
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let [off, on] = worker.calls(probed, 400, 1)?;
            let [off_many, on_many] = worker.calls(probed, 400, threads)?;
            ratios.push((on_many - off_many) / (on - off));
        }
        // A factor below 1 is noise.
        known.push((threads, Price::from_runs(&ratios).map_or(1.0, |p| p.ns.max(1.0))));
    }
    Ok(interpolate(&known))
}

/// [`cold`], again where other work disturbed it, and of what is disturbed the largest: what is taken for the whole bounds its part, and is taken out of what a rest adds.
fn undisturbed_cold(worker: &mut Worker, hit: &Table) -> Result<[Option<Price>; 2], CalibrateError> {
    const AGAIN: usize = 2;
    let mut measured = cold(worker)?;
    for _ in 0..AGAIN {
        let Some(cold_price) = measured[0] else { break };
        let model = CostModel { hit: hit.clone(), cold: cold_price, ..CostModel::assumed() };
        if !model.is_disturbed() {
            break;
        }
        let again = cold(worker)?;
        if again[0].is_some_and(|price| price.ns >= cold_price.ns) {
            measured = again;
        }
    }
    Ok(measured)
}

/// What a counted hit costs more where work lies between the hits, and the part of it that the work behind the hit pays. Taken in turns: a slow phase of the
/// machine touches both.
fn cold(worker: &mut Worker) -> Result<[Option<Price>; 2], CalibrateError> {
    /// Calls of a run: about a millisecond with the work between them.
    const CALLS: u64 = 200;
    let probed = Probed { row: 1, site: SiteClass::Push };
    let (mut more, mut behind) = (Vec::new(), Vec::new());
    for _ in 0..2 * ROUNDS {
        let [off, on] = worker.calls(probed, CALLS, 1)?;
        let [off_cold, on_cold, off_after, on_after] = worker.cold_calls(probed, CALLS)?;
        more.push(on_cold + on_after - off_cold - off_after - (on - off));
        behind.push(on_after - off_after);
    }
    // OK because a calibration has tens of runs.
    let n = (2 * ROUNDS) as u32;
    let price = |runs: &[f64]| cold_price(&inner(runs)).map(|price| Price { n, ..price });
    let (cold, behind) = (price(&more), price(&behind));
    Ok([cold, behind.map(|part| cold.map_or(part, |whole| at_most(part, whole)))])
}

/// The runs between which the median lies (95 % at least, by the binomial law: of 14 all but the two lowest and the two highest). The others show how
/// much other work there was just then: of a small difference of large times the largest said 219 to 324 ns on one idle machine, and the median 164 to 208.
fn inner(runs: &[f64]) -> Vec<f64> {
    let mut runs = runs.to_vec();
    runs.sort_by(f64::total_cmp);
    // Twice the chance that at most k of n are below the median.
    let (n, mut ways, mut chance, mut outer) = (runs.len(), 1.0, 0.0, 0);
    for k in 0..n / 2 {
        chance += 2.0 * ways / 2.0_f64.powf(n as f64);
        if chance > 1.0 - LEVEL {
            break;
        }
        outer = k;
        ways *= (n - k) as f64 / (k + 1) as f64;
    }
    runs[outer..n - outer].to_vec()
}

/// What a counted hit costs more right after a rest than where the program has used the caches since the last one.
fn rested(
    worker: &mut Worker,
    cold: Option<Price>,
    behind: Option<Price>,
) -> Result<Option<Price>, CalibrateError> {
    /// Calls of a run, which sleeps before each.
    const CALLS: u64 = 24;
    let probed = Probed { row: 1, site: SiteClass::Push };
    // What cold caches add in the call itself.
    let [cold_ns, behind_ns] = [cold, behind].map(|price| price.map_or(0.0, |price| price.ns));
    let cold_ns = cold_ns - behind_ns;
    let mut more = Vec::new();
    for _ in 0..ROUNDS {
        let [off, on] = worker.calls(probed, 200, 1)?;
        let [off_rested, on_rested] = worker.rested_calls(probed, CALLS)?;
        more.push(on_rested - off_rested - (on - off) - cold_ns);
    }
    Ok(cold_price(&more))
}

/// A part is no more than the whole, whatever noise made of the two.
fn at_most(part: Price, whole: Price) -> Price {
    let [ns, min_ns, max_ns] =
        [(part.ns, whole.ns), (part.min_ns, whole.min_ns), (part.max_ns, whole.max_ns)]
            .map(|(a, b)| a.min(b));
    Price { ns, min_ns, max_ns, ..part }
}

/// Runs below nothing are noise, and so are as many above it: they are cut off after the median, or it would lie in the upper half.
fn cold_price(runs: &[f64]) -> Option<Price> {
    let least = |ns: f64| ns.max(0.0);
    let price = Price::from_runs(runs)?;
    Some(Price { ns: least(price.ns), min_ns: least(price.min_ns), max_ns: least(price.max_ns), ..price })
}

fn thread_counts(cpus: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        std::iter::successors(Some(2), |n| Some(n * 2)).take_while(|n| *n < cpus).take(6).collect();
    if cpus > 1 {
        counts.push(cpus);
    }
    counts
}

fn interpolate(known: &[(usize, f64)]) -> Vec<f64> {
    let mut factors = vec![1.0];
    for pair in known.windows(2) {
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        for n in from + 1..=to {
            let share = (n - from) as f64 / (to - from) as f64;
            factors.push(low + share * (high - low));
        }
    }
    factors
}

fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // OK because the clock is not negative and nanoseconds are below 10^9.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_reach_the_number_of_cpus() {
        assert!(thread_counts(1).is_empty());
        assert_eq!(thread_counts(2), [2]);
        assert_eq!(thread_counts(6), [2, 4, 6]);
        assert_eq!(thread_counts(256), [2, 4, 8, 16, 32, 64, 256]);
    }

    #[test]
    fn noise_about_nothing_is_no_price() {
        let price = |runs: &[f64]| cold_price(runs).map(|p| (p.ns, p.min_ns, p.max_ns, p.n));
        assert_eq!(price(&[-120.0, 80.0, 40.0, -60.0]), Some((0.0, 0.0, 80.0, 4)));
        assert_eq!(price(&[-300.0, 20.0, 100.0]), Some((20.0, 0.0, 100.0, 3)));
        assert_eq!(price(&[]), None);
    }

    #[test]
    fn the_median_lies_between_the_inner_runs() {
        let of = |n: u32| inner(&(0..n).rev().map(f64::from).collect::<Vec<f64>>());
        // 1 - 2 (1 + 14 + 91) / 2^14 = 0.987, and 0.943 with 364 more.
        assert_eq!((of(14).len(), of(14)[0], of(14)[9]), (10, 2.0, 11.0));
        // 1 - 2 / 2^6 = 0.969, and of five not even all suffice.
        assert_eq!((of(7).len(), of(5).len(), of(1).len(), of(0).len()), (7, 5, 1, 0));
        assert_eq!(of(20).len(), 10);
    }

    #[test]
    fn what_is_left_behind_is_a_part_of_what_cold_caches_cost() {
        let price = |ns, min_ns, max_ns| Price { ns, min_ns, max_ns, n: 14 };
        let whole = price(100.0, 0.0, 400.0);
        assert_eq!(at_most(price(40.0, 30.0, 60.0), whole), price(40.0, 0.0, 60.0));
        assert_eq!(at_most(price(240.0, 30.0, 600.0), whole), whole);
    }

    #[test]
    fn factors_between_measured_ones_lie_on_a_line() {
        assert_eq!(interpolate(&[(1, 1.0)]), [1.0]);
        assert_eq!(interpolate(&[(1, 1.0), (2, 1.2), (4, 2.0)]), [1.0, 1.2, 1.6, 2.0]);
    }
}
