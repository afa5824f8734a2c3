//! What lies between the two time stamps of a timed call that does nothing, by price class of the entry and kind of end.
//!
//! A site at the entry and one on the instruction behind it, or a return link around it: the durations that the kernel programs then see are
//! this price and, in the second case, some nanoseconds of three instructions. The exit site is a nop whatever the entry is: what comes after
//! the exit program's time stamp lies outside. Durations come from the class's own counters and histogram, as those of a session do.

use super::code::{Probed, ROWS_STAMPS};
use super::hits::{ROUNDS, RUN_NS, sites};
use super::worker::Worker;
use super::{CalibrateError, hits, rounded};
use crate::prober::{AttachGroup, ClassControl, ClassKind, HistogramLease, Kernel, LinkKind, Site, SiteRole};
use profiler_common::histogram::bounds;
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::cost::{CostModel, Stamps};
use profiler_core::stats::quantile::{Bucket, quantile};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Classes that this needs beyond those of [`hits`].
pub(super) const CLASSES: u32 = (ENDS.len() * SiteClass::ALL.len()) as u32;

/// Kinds of end: the link, and how the price model calls it.
const ENDS: [(LinkKind, ExitMode); 2] =
    [(LinkKind::ExitPair, ExitMode::ExitSites), (LinkKind::ReturnPair, ExitMode::ReturnLink)];

/// One function under watch.
struct Watched {
    class: ClassId,
    lease: HistogramLease,
    probed: Probed,
    key: String,
    /// Mean of each run, ns.
    means: Vec<f64>,
}

/// Measures all of them; nothing stays attached.
///
/// # Errors
/// Something cannot be attached, or the child is gone.
pub(super) fn measure(
    kernel: &Kernel,
    worker: &mut Worker,
) -> Result<BTreeMap<String, Stamps>, CalibrateError> {
    let mut links: Vec<OwnedFd> = Vec::new();
    let mut watched = Vec::new();
    for number in 0..ENDS.len() {
        let (link, of_link) = attach(kernel, worker.pid(), number)?;
        links.extend(link);
        watched.extend(of_link);
    }
    // The first round warms up: a nop of 5 bytes is optimised at its first hits.
    for w in &watched {
        run(worker, w)?;
        kernel.classes().reset(w.class);
    }
    for _ in 0..ROUNDS {
        for w in &mut watched {
            let before = kernel.classes().counters(w.class);
            run(worker, w)?;
            let after = kernel.classes().counters(w.class);
            let calls = after.returns.wrapping_sub(before.returns);
            w.means.push(after.sum_ns.wrapping_sub(before.sum_ns) as f64 / calls.max(1) as f64);
        }
    }
    let found = watched.iter().filter_map(|w| Some((w.key.clone(), stamps(kernel, w)?))).collect();
    // Histograms live as long as the links.
    drop(links);
    Ok(found)
}

fn attach(kernel: &Kernel, pid: u32, number: usize) -> Result<(Vec<OwnedFd>, Vec<Watched>), CalibrateError> {
    let (kind, exit) = ENDS[number];
    let mut group = AttachGroup { module: "/proc/self/exe".into(), pid, kind, sites: Vec::new() };
    let mut watched = Vec::new();
    for site in sites(kernel.tier()) {
        let index = number * SiteClass::ALL.len() + *site as usize;
        // OK because there are ten.
        let class = ClassId(hits::CLASSES + u32::try_from(index).unwrap_or(0));
        let lease = kernel.classes().lease_histogram().ok_or(CalibrateError::NoHistogram)?;
        let control = ClassControl {
            histogram: lease.first_slot(),
            // The path of a real session: prices are added up inside open calls.
            hit_cost_ns: 1,
            return_cost_ns: 1,
            ..ClassControl::new(ClassKind::Latency)
        };
        kernel.classes().configure(class, control);
        kernel.classes().set_quota(class, i64::MAX / 2);
        kernel.classes().reset(class);
        let probed = Probed { row: ROWS_STAMPS[number], site: *site };
        let offset = probed.file_offset()?;
        group.sites.push(Site::entry(class, offset));
        if kind == LinkKind::ExitPair {
            group.sites.push(Site {
                role: SiteRole::Exit,
                slot_delta: probed.exit_slot(),
                ..Site::entry(class, offset + probed.exit_distance())
            });
        }
        let key = CostModel::stamps_key(*site, exit);
        watched.push(Watched { class, lease, probed, key, means: Vec::new() });
    }
    let attached = kernel.attach(&group)?;
    if let Some(refusal) = attached.refused.into_iter().next() {
        return Err(CalibrateError::Refused { class: refusal.site.class, source: refusal.error });
    }
    Ok((attached.link.into_fds(), watched))
}

/// One run of calls.
fn run(worker: &mut Worker, w: &Watched) -> Result<(), CalibrateError> {
    let expected = CostModel::assumed().hit_price(w.probed.site, RecordKind::Latency).ns;
    // OK because it is between 30 and 2,000.
    let calls = (RUN_NS / expected).max(30.0) as u64;
    worker.calls(w.probed, calls, 1).map(|_| ())
}

fn stamps(kernel: &Kernel, w: &Watched) -> Option<Stamps> {
    let counts = kernel.classes().histogram(&w.lease);
    let buckets: Vec<Bucket> = (0..)
        .zip(counts.iter())
        .filter(|(_, count)| **count > 0)
        .map(|(index, count)| {
            let (low, high) = bounds(index);
            Bucket { low: low as f64, high: high as f64, count: *count }
        })
        .collect();
    let found = Stamps::measured(|p| quantile(&buckets, p, 0.0, 0.0).map(|e| e.value), &w.means)?;
    let tenth = |ns: f64| (ns * 10.0).round() / 10.0;
    Some(Stamps {
        mean: rounded(found.mean),
        p05_ns: tenth(found.p05_ns),
        p50_ns: tenth(found.p50_ns),
        p90_ns: tenth(found.p90_ns),
        p99_ns: tenth(found.p99_ns),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_end_has_rows_of_its_own() {
        assert_eq!(ENDS.len(), ROWS_STAMPS.len());
        let keys: std::collections::BTreeSet<String> = SiteClass::ALL
            .iter()
            .flat_map(|site| ENDS.map(|(_, exit)| CostModel::stamps_key(*site, exit)))
            .collect();
        assert_eq!(keys.len() as u32, CLASSES);
    }
}
