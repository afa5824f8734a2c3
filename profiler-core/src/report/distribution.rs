//! The distribution of durations of one function, or of the classes of an operation: what `tithe report --histogram` draws.
//!
//! Inputs: a recording and a name. Of a function the durations come from the kernel's histogram or from its recorded calls, and what
//! probes cost is taken out of each as it is of the quantiles. Of an operation they are the response times of all that ended, as they were
//! seen; of a class without a histogram those of the recorded operations, which are a sample. What it does not do: draw.

use super::build::durations::Shape;
use super::operations::bucket;
use crate::recording::{ClassRow, Recording, WindowRow};
use crate::stats::quantile::Bucket;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bins that a person can look at.
const MOST_BINS: usize = 24;
/// Bins per octave, finest first.
const PER_OCTAVE: [i32; 4] = [8, 4, 2, 1];
/// What is shorter than this is in the first bin, ns: probes cannot tell it apart.
const LEAST_NS: f64 = 16.0;

/// Durations of one function or of one class of operations, in bins that grow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Of what.
    pub name: String,
    /// Calls or operations in it.
    pub n: u64,
    /// What is counted.
    pub unit: Counted,
    /// They are recorded operations, a sample of all.
    pub sampled: bool,
    /// What was taken out of a typical one, ns.
    pub taken_ns: f64,
    /// Bins, shortest first, without gaps; those at the ends are not empty. None is narrower than what was taken out is known to.
    pub bins: Vec<Bin>,
}

/// What a distribution is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// Calls of a function that were timed.
    Calls,
    /// Operations that ended.
    Operations,
}

/// Durations from `low_ns` to below `high_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// Lowest, ns; 0 where nothing below the upper end can be told apart.
    pub low_ns: f64,
    /// Lowest above, ns.
    pub high_ns: f64,
    /// Calls or operations. A fraction where a finer bucket of the recording lies across two bins.
    pub count: f64,
}

impl Distribution {
    /// Of every class whose name or symbol is `name`, and of every class of the operation of that name, most frequent first. Empty if the
    /// recording has no such durations.
    #[must_use]
    pub fn of(recording: &Recording, name: &str) -> Vec<Self> {
        let functions = recording
            .classes
            .iter()
            .filter(|c| c.stamps_of.is_none() && (c.name == name || c.symbol == name));
        let mut found: Vec<Self> = functions.filter_map(|class| of_function(recording, class)).collect();
        for meta in recording.meta.operations.iter().filter(|o| o.name == name) {
            found.extend(of_operation(recording, meta.operation, name));
        }
        found.sort_by_key(|d| std::cmp::Reverse(d.n));
        found
    }

    /// What [`Distribution::of`] accepts in this recording, in order.
    #[must_use]
    pub fn names(recording: &Recording) -> Vec<String> {
        let timed = |c: &&ClassRow| {
            if c.stamps_of.is_some() {
                return false;
            }
            recording.histograms.iter().any(|h| h.class_id == c.class_id)
                || recording.event_durations.has(c.class_id)
                || recording.events.iter().any(|e| e.class_id == c.class_id && e.duration_ns.is_some())
        };
        let functions = recording.classes.iter().filter(timed).map(|c| c.name.clone());
        let ended = |number| {
            recording.operation_histograms.iter().any(|h| h.operation == number)
                || recording.operations.iter().any(|o| o.operation == number && o.is_sampled())
        };
        let operations = recording.meta.operations.iter().filter(|o| ended(o.operation));
        let mut names: Vec<String> = functions.chain(operations.map(|o| o.name.clone())).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn of_function(recording: &Recording, class: &ClassRow) -> Option<Distribution> {
    let windows: Vec<&WindowRow> =
        recording.windows.iter().filter(|w| w.class_id == class.class_id).collect();
    let shape = Shape::of(class, &windows, recording);
    let corrected = |b: &Bucket| Bucket {
        low: shape.corrected_ns(b.low),
        high: shape.corrected_ns(b.high),
        count: b.count,
    };
    let buckets: Vec<Bucket> = shape.buckets.iter().map(corrected).collect();
    let (bins, n) = binned(&buckets, shape.known_to_ns())?;
    let name = class.name.clone();
    Some(Distribution { name, n, unit: Counted::Calls, sampled: false, taken_ns: shape.taken_ns(), bins })
}

/// Response times of one class of operations.
#[derive(Default)]
struct Times {
    /// Of all, uncorrected.
    all: Vec<Bucket>,
    /// Of the recorded ones, without what recording them cost.
    recorded: Vec<Bucket>,
    /// That cost, of all recorded ones, ns.
    taken_ns: f64,
}

fn of_operation(recording: &Recording, number: u32, name: &str) -> Vec<Distribution> {
    let mut classes: BTreeMap<u32, Times> = BTreeMap::new();
    for row in recording.operation_histograms.iter().filter(|h| h.operation == number) {
        classes.entry(row.class_id).or_default().all.push(bucket(row));
    }
    for row in recording.operations.iter().filter(|o| o.operation == number && o.is_sampled()) {
        let times = classes.entry(row.class_id).or_default();
        let low = row.duration_ns.saturating_sub(row.cost_ns) as f64;
        times.recorded.push(Bucket { low, high: low + 1.0, count: 1 });
        times.taken_ns += row.cost_ns as f64;
    }
    let class_name = |id: u32| {
        let row = recording.operation_classes.iter().rev().find(|c| c.class_id == id);
        row.map_or_else(|| format!("class {id}"), |c| c.class_name.clone())
    };
    let distribution = |(id, times): (u32, Times)| {
        let class = class_name(id);
        let name = if class == name { class } else { format!("{name}: {class}") };
        let sampled = times.all.is_empty();
        let (bins, n) = binned(if sampled { &times.recorded } else { &times.all }, 0.0)?;
        let taken_ns = if sampled { times.taken_ns / n as f64 } else { 0.0 };
        Some(Distribution { name, n, unit: Counted::Operations, sampled, taken_ns, bins })
    };
    classes.into_iter().filter_map(distribution).collect()
}

/// Buckets in bins, the finest of which there are not too many and that are at least `known_to_ns` wide; and how many values they hold.
fn binned(buckets: &[Bucket], known_to_ns: f64) -> Option<(Vec<Bin>, u64)> {
    let n: u64 = buckets.iter().map(|b| b.count).sum();
    if n == 0 {
        return None;
    }
    let all = PER_OCTAVE.into_iter().map(|per_octave| at_least(bins(buckets, per_octave), known_to_ns));
    // The first that are few enough, else the last and coarsest.
    let mut last = Vec::new();
    for bins in all {
        let enough = bins.len() <= MOST_BINS;
        last = bins;
        if enough {
            break;
        }
    }
    Some((last, n))
}

/// Bins are put together until each is `width_ns` wide; the first has all that is shorter than that.
fn at_least(bins: Vec<Bin>, width_ns: f64) -> Vec<Bin> {
    let is_narrow = |bin: &Bin| bin.high_ns - bin.low_ns < width_ns;
    let mut wide: Vec<Bin> = Vec::new();
    for bin in bins {
        match wide.last_mut() {
            Some(last) if is_narrow(last) => {
                last.high_ns = bin.high_ns;
                last.count += bin.count;
            }
            _ => wide.push(Bin { low_ns: if bin.low_ns < width_ns { 0.0 } else { bin.low_ns }, ..bin }),
        }
    }
    // Nothing follows that could widen the last.
    if let [.., before, last] = &mut wide[..]
        && is_narrow(last)
    {
        (before.high_ns, before.count) = (last.high_ns, before.count + last.count);
        wide.pop();
    }
    wide
}

/// The bin of a duration: 0 up to [`LEAST_NS`], then `per_octave` for each factor of 2.
fn index(ns: f64, per_octave: i32) -> i32 {
    // OK because the cast saturates and durations are below 2^63 ns.
    if ns < LEAST_NS { 0 } else { 1 + ((ns / LEAST_NS).log2() * f64::from(per_octave) + 1e-9).floor() as i32 }
}

/// Where a bin begins, ns.
fn edge(index: i32, per_octave: i32) -> f64 {
    if index <= 0 { 0.0 } else { LEAST_NS * (f64::from(index - 1) / f64::from(per_octave)).exp2() }
}

fn bins(buckets: &[Bucket], per_octave: i32) -> Vec<Bin> {
    let mut counts: BTreeMap<i32, f64> = BTreeMap::new();
    for b in buckets.iter().filter(|b| b.count > 0) {
        let (first, last) = (index(b.low, per_octave), index(b.high.max(b.low), per_octave));
        for i in first..=last {
            // Calls lie evenly in their bucket.
            let within = (b.high.min(edge(i + 1, per_octave)) - b.low.max(edge(i, per_octave))).max(0.0);
            let part =
                if b.high > b.low { within / (b.high - b.low) } else { f64::from(u8::from(i == first)) };
            if part > 0.0 {
                *counts.entry(i).or_default() += part * b.count as f64;
            }
        }
    }
    let (Some(first), Some(last)) = (counts.keys().next(), counts.keys().next_back()) else {
        return Vec::new();
    };
    (*first..=*last)
        .map(|i| Bin {
            low_ns: edge(i, per_octave),
            high_ns: edge(i + 1, per_octave),
            count: counts.get(&i).copied().unwrap_or(0.0),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_keep_every_call_and_are_few() {
        for spread in [1.0, 1.5, 20.0, 1e4, 1e7] {
            let buckets: Vec<Bucket> = (0..400)
                .map(|i| {
                    let low = 300.0 * f64::powf(spread, f64::from(i) / 400.0);
                    Bucket { low, high: low * 1.03, count: 3 }
                })
                .collect();
            for known_to_ns in [0.0, 30.0, 700.0, 1e9] {
                let (bins, n) = binned(&buckets, known_to_ns).unwrap();
                let sum: f64 = bins.iter().map(|b| b.count).sum();
                assert!((sum - 1_200.0).abs() < 1e-6 && n == 1_200, "{spread}: {sum}");
                assert!(bins.len() <= MOST_BINS, "{spread}: {} bins", bins.len());
                assert!(bins.windows(2).all(|w| w[0].high_ns == w[1].low_ns), "no gaps");
                assert!(bins[0].count > 0.0 && bins[bins.len() - 1].count > 0.0);
                let is_wide = |b: &Bin| b.high_ns - b.low_ns >= known_to_ns;
                assert!(bins.len() == 1 || bins.iter().all(is_wide), "{known_to_ns}: {bins:?}");
            }
        }
        assert!(binned(&[], 0.0).is_none());
        let (nothing, n) = binned(&[Bucket { low: 0.0, high: 0.0, count: 7 }], 0.0).unwrap();
        assert_eq!((nothing.len(), nothing[0].low_ns, nothing[0].count, n), (1, 0.0, 7.0, 7));
    }

    #[test]
    fn what_is_shorter_than_the_price_is_known_to_is_one_bin_from_nothing_on() {
        let at = |ns: f64, count| Bucket { low: ns, high: ns + 1.0, count };
        // Known to 300 ns: the first two are both "at most", the third is another bin.
        let (bins, _) = binned(&[at(120.0, 5), at(250.0, 7), at(5_000.0, 9)], 300.0).unwrap();
        let first = bins[0];
        assert_eq!((first.low_ns, first.count), (0.0, 12.0), "{bins:?}");
        assert!((300.0..400.0).contains(&first.high_ns), "{bins:?}");
        assert_eq!(bins[bins.len() - 1].count, 9.0, "{bins:?}");
        // Nothing is as short as that: no bin begins with 0.
        let (bins, _) = binned(&[at(5_000.0, 9)], 300.0).unwrap();
        assert!(bins.len() == 1 && bins[0].low_ns > 4_000.0, "{bins:?}");
    }

    #[test]
    fn an_edge_belongs_to_the_bin_that_it_begins() {
        for per_octave in PER_OCTAVE {
            for i in 1..200 {
                assert_eq!(index(edge(i, per_octave), per_octave), i, "{per_octave} per octave");
            }
        }
    }
}
