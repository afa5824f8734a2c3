//! The distribution of durations of one function, or of the classes of an operation: what `tithe report --histogram` draws.
//!
//! Inputs: a recording and a name. Of a function the durations come from the kernel's histogram or from its recorded calls, and what
//! probes cost is taken out of each as it is of the quantiles. Of an operation they are those of the recorded operations, which are a sample.
//! What it does not do: draw.

use super::build::durations::Shape;
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
    /// What was taken out of a typical one, ns.
    pub taken_ns: f64,
    /// It is of recorded operations, a sample of all.
    pub sampled: bool,
    /// Bins, shortest first, without gaps; those at the ends are not empty.
    pub bins: Vec<Bin>,
}

/// Durations from `low_ns` to below `high_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// Lowest, ns; 0 where nothing shorter can be told apart.
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
                || recording.events.iter().any(|e| e.class_id == c.class_id && e.duration_ns.is_some())
        };
        let functions = recording.classes.iter().filter(timed).map(|c| c.name.clone());
        let recorded = |number| recording.operations.iter().any(|o| o.operation == number && !o.censored);
        let operations = recording.meta.operations.iter().filter(|o| recorded(o.operation));
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
    let name = class.name.clone();
    Some(Distribution { name, taken_ns: shape.taken_ns(), sampled: false, ..binned(&buckets)? })
}

fn of_operation(recording: &Recording, number: u32, name: &str) -> Vec<Distribution> {
    let mut classes: BTreeMap<u32, (Vec<Bucket>, f64)> = BTreeMap::new();
    for row in recording.operations.iter().filter(|o| o.operation == number && !o.censored) {
        let (buckets, taken) = classes.entry(row.class_id).or_default();
        let low = row.duration_ns.saturating_sub(row.cost_ns) as f64;
        buckets.push(Bucket { low, high: low + 1.0, count: 1 });
        *taken += row.cost_ns as f64;
    }
    let class_name = |id: u32| {
        let row = recording.operation_classes.iter().rev().find(|c| c.class_id == id);
        row.map_or_else(|| format!("class {id}"), |c| c.class_name.clone())
    };
    classes
        .into_iter()
        .filter_map(|(id, (buckets, taken))| {
            let class = class_name(id);
            let name = if class == name { class } else { format!("{name}: {class}") };
            let taken_ns = taken / buckets.len() as f64;
            Some(Distribution { name, taken_ns, sampled: true, ..binned(&buckets)? })
        })
        .collect()
}

/// Buckets in bins, the finest of which there are not too many.
fn binned(buckets: &[Bucket]) -> Option<Distribution> {
    let n: u64 = buckets.iter().map(|b| b.count).sum();
    if n == 0 {
        return None;
    }
    let mut last = None;
    for per_octave in PER_OCTAVE {
        let bins = bins(buckets, per_octave);
        let enough = bins.len() <= MOST_BINS;
        last = Some(bins);
        if enough {
            break;
        }
    }
    let empty = Distribution { name: String::new(), n, taken_ns: 0.0, sampled: false, bins: Vec::new() };
    Some(Distribution { bins: last?, ..empty })
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
            let d = binned(&buckets).unwrap();
            let sum: f64 = d.bins.iter().map(|b| b.count).sum();
            assert!((sum - 1_200.0).abs() < 1e-6 && d.n == 1_200, "{spread}: {sum}");
            assert!(d.bins.len() <= MOST_BINS, "{spread}: {} bins", d.bins.len());
            assert!(d.bins.windows(2).all(|w| w[0].high_ns == w[1].low_ns), "no gaps");
            assert!(d.bins[0].count > 0.0 && d.bins[d.bins.len() - 1].count > 0.0);
        }
        assert!(binned(&[]).is_none());
        let nothing = binned(&[Bucket { low: 0.0, high: 0.0, count: 7 }]).unwrap();
        assert_eq!((nothing.bins.len(), nothing.bins[0].low_ns, nothing.bins[0].count), (1, 0.0, 7.0));
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
