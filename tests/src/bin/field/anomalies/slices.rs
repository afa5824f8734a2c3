//! The baseline: samples of a function in slices of time, over its calls there, watched by a sequential test on their counts ([`super::cusum`]).

use super::cusum::{Counts, Cusum, Usual};
use super::tables::Shown;
use super::target::{Call, FUNCTIONS};
use super::verdict::Alarm;

/// Length of a slice, ns: an alarm comes at the end of one.
pub const SLICE_NS: u64 = 100_000_000;
/// Expected false alarms an hour of all functions together: what `--expect` promises.
const FALSE_ALARMS_PER_HOUR: f64 = 1.0;
/// Part of the excess that what samples show must explain to be named, and fewest samples of it: as of the parts of a call's time.
const MOST: f64 = 0.5;
const LEAST_EXCESS: f64 = 3.0;

/// A sample in a modelled function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// When, ktime ns.
    pub at_ns: u64,
    /// Number of the function.
    pub function: usize,
    /// What it shows.
    pub shown: Shown,
}

/// A stretch of time with what was seen in it.
pub struct Seconds<'a> {
    /// In the order of their times.
    pub hits: &'a [Hit],
    /// In the order of their ends.
    pub calls: &'a [Call],
    /// From, ktime ns.
    pub from_ns: u64,
    /// To, ktime ns.
    pub to_ns: u64,
}

/// Slices of a function. The last one is whole.
fn slices(of: &Seconds<'_>, function: usize) -> Vec<Counts> {
    // OK because it is some minutes.
    let mut all =
        vec![Counts { samples: 0.0, calls: 0.0 }; (of.to_ns.saturating_sub(of.from_ns) / SLICE_NS) as usize];
    // What lies before the first slice is in none.
    let slice = |ns: u64| ns.checked_sub(of.from_ns).map(|after_ns| (after_ns / SLICE_NS) as usize);
    for hit in of.hits.iter().filter(|hit| hit.function == function) {
        if let Some(own) = slice(hit.at_ns).and_then(|slice| all.get_mut(slice)) {
            own.samples += 1.0;
        }
    }
    for call in of.calls.iter().filter(|call| call.function == function) {
        if let Some(own) = slice(call.end_ns).and_then(|slice| all.get_mut(slice)) {
            own.calls += 1.0;
        }
    }
    all
}

/// A function that is watched.
struct Watched {
    /// Number of the function.
    function: usize,
    usual: Usual,
    /// Samples for each call by what they show, in the order of [`Shown::ALL`].
    by_shown: [f64; Shown::ALL.len()],
}

/// The detector of an arm.
pub struct Baseline(Vec<Watched>);

impl Baseline {
    /// Learns what is usual from a clean stretch.
    pub fn learn(clean: &Seconds<'_>) -> Baseline {
        Baseline((0..FUNCTIONS.len()).filter_map(|function| watched(clean, function)).collect())
    }

    /// Alarms in a stretch, in their order.
    pub fn alarms(&self, of: &Seconds<'_>) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        for watched in &self.0 {
            let mut cusum = Cusum::new(watched.usual);
            let slices = slices(of, watched.function);
            for (end_ns, slice) in (of.from_ns + SLICE_NS..).step_by(SLICE_NS as usize).zip(slices) {
                let Some(evidence) = cusum.take(slice) else { continue };
                let from_ns = end_ns - SLICE_NS * evidence as u64;
                alarms.push(Alarm {
                    at_ns: end_ns,
                    function: Some(watched.function),
                    of_ns: (end_ns - SLICE_NS, end_ns),
                    resource: resource(of, watched, (from_ns, end_ns)).map(str::to_owned),
                });
            }
        }
        alarms.sort_by_key(|alarm| (alarm.at_ns, alarm.function));
        alarms
    }
}

/// What is usual of a function, which is watched from then on. `None`: it has no calls, or the stretch is short.
fn watched(clean: &Seconds<'_>, function: usize) -> Option<Watched> {
    let slices = slices(clean, function);
    let usual = Usual::learn(&slices, SLICE_NS as f64 / 1e9, FALSE_ALARMS_PER_HOUR / FUNCTIONS.len() as f64)?;
    let calls: f64 = slices.iter().map(|slice| slice.calls).sum();
    let by_shown = Shown::ALL.map(|shown| {
        let is = |hit: &&Hit| hit.function == function && hit.shown == shown;
        clean.hits.iter().filter(is).count() as f64 / calls
    });
    Some(Watched { function, usual, by_shown })
}

/// What the samples show that makes up most of the excess in the slices that are the evidence.
fn resource(of: &Seconds<'_>, watched: &Watched, (from_ns, until_ns): (u64, u64)) -> Option<&'static str> {
    let is_in = |ns: u64| (from_ns..until_ns).contains(&ns);
    let is_own = |function: usize| function == watched.function;
    let calls = of.calls.iter().filter(|c| is_own(c.function) && is_in(c.end_ns)).count() as f64;
    let hits: Vec<&Hit> = of.hits.iter().filter(|h| is_own(h.function) && is_in(h.at_ns)).collect();
    let excess = Shown::ALL.iter().zip(watched.by_shown).map(|(shown, each)| {
        (hits.iter().filter(|hit| hit.shown == *shown).count() as f64 - each * calls, *shown)
    });
    let total = hits.len() as f64 - watched.usual.share * calls;
    let (most, shown) = excess.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (most >= LEAST_EXCESS && most >= MOST * total).then(|| shown.resource()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn call(function: usize, end_ms: u64) -> Call {
        Call { function, begin_ns: (end_ms - 1) * MS, end_ns: end_ms * MS }
    }

    fn hit(function: usize, at_ms: u64, shown: Shown) -> Hit {
        Hit { at_ns: at_ms * MS, function, shown }
    }

    #[test]
    fn samples_and_ends_of_calls_are_counted_in_slices_of_a_tenth_of_a_second() {
        let calls = [call(0, 50), call(1, 60), call(0, 90), call(0, 310)];
        let hits = [10, 150, 250, 305, 449].map(|ms| hit(0, ms, Shown::User));
        let of = Seconds { hits: &hits, calls: &calls, from_ns: 0, to_ns: 450 * MS };
        let counted = |of: &Seconds<'_>, function: usize| -> Vec<(f64, f64)> {
            slices(of, function).iter().map(|slice| (slice.samples, slice.calls)).collect()
        };
        assert_eq!(counted(&of, 0), [(1.0, 2.0), (1.0, 0.0), (1.0, 0.0), (1.0, 1.0)]);
        assert_eq!(counted(&of, 1), [(0.0, 1.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]);
        let later = Seconds { from_ns: 300 * MS, ..of };
        assert_eq!(counted(&later, 0), [(1.0, 1.0)]);
    }

    /// Twenty calls a second of function 2, and some 110 samples; from `from_ms` on page faults bring more than twice as many.
    fn seconds(length_s: u64, from_ms: u64) -> (Vec<Hit>, Vec<Call>) {
        let calls: Vec<Call> = (1..=length_s * 20).map(|i| call(2, i * 50)).collect();
        let mut hits = Vec::new();
        for ms in (0..length_s * 1_000).step_by(7) {
            // A fifth of them is missing here and there: slices differ.
            if (ms.wrapping_mul(2_654_435_761) >> 16) % 5 != 0 {
                hits.push(hit(2, ms, Shown::User));
            }
            if ms >= from_ms {
                hits.extend([0, 1].map(|_| hit(2, ms, Shown::PageFault)));
            }
        }
        (hits, calls)
    }

    #[test]
    fn more_samples_for_each_call_are_found_and_named_and_a_clean_stretch_is_not() {
        let clean = seconds(60, u64::MAX);
        let baseline =
            Baseline::learn(&Seconds { hits: &clean.0, calls: &clean.1, from_ns: 0, to_ns: 60_000 * MS });
        assert_eq!(baseline.0.len(), 1);
        let alarms = |(hits, calls): &(Vec<Hit>, Vec<Call>)| {
            baseline.alarms(&Seconds { hits, calls, from_ns: 0, to_ns: 20_000 * MS })
        };
        assert_eq!(alarms(&seconds(20, u64::MAX)), []);
        let alarms = alarms(&seconds(20, 10_000));
        let first = alarms.first().unwrap();
        assert!((10_000 * MS..11_000 * MS).contains(&first.at_ns), "{first:?}");
        assert_eq!((first.resource.as_deref(), first.function), (Some("page faults"), Some(2)));
        assert_eq!(first.of_ns, (first.at_ns - SLICE_NS, first.at_ns));
    }

    #[test]
    fn a_function_without_samples_is_watched_and_one_without_calls_is_not() {
        let (_, calls) = seconds(60, u64::MAX);
        let clean = Seconds { hits: &[], calls: &calls, from_ns: 0, to_ns: 60_000 * MS };
        let baseline = Baseline::learn(&clean);
        assert_eq!(baseline.0.len(), 1);
        // It waits, and a sampler by the wall clock sees that.
        let hits: Vec<Hit> = (5_000..8_000).step_by(3).map(|ms| hit(2, ms, Shown::Nothing)).collect();
        let alarms = baseline.alarms(&Seconds { hits: &hits, ..clean });
        assert!(alarms.first().is_some_and(|alarm| alarm.at_ns <= 5_200 * MS), "{alarms:?}");
        assert_eq!(Baseline::learn(&Seconds { calls: &[], ..clean }).0.len(), 0);
    }
}
