//! The baseline: samples of a function in slices of time, over its calls there, watched by the same sequential test as single calls are.
//!
//! ```text
//! share = (samples of the function in the slice + 1/2) / (calls that ended in it)
//! ```
//! A slice without calls is joined with the next. The shares of a clean recording are to this test what residuals of calls are to `--expect`.

use super::tables::Shown;
use super::target::{Call, FUNCTIONS};
use profiler_core::models::{Calibration, Event, Seen, Watch, WatchSettings};

/// Lengths of slices, ns: the shortest that has enough samples is taken.
const LENGTHS_NS: [u64; 4] = [100_000_000, 200_000_000, 500_000_000, 1_000_000_000];
/// Samples of the function in a usual slice that are enough.
const ENOUGH: f64 = 5.0;
/// Fewest slices that say what is usual.
const LEAST_SLICES: usize = 20;
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

/// A slice of a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// Its end, ktime ns.
    pub end_ns: u64,
    /// Samples in the function.
    pub samples: u64,
    /// Its calls that ended.
    pub calls: u64,
}

impl Slice {
    fn share(&self) -> f64 {
        (self.samples as f64 + 0.5) / self.calls as f64
    }
}

/// An alarm.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// When it is known, ktime ns.
    pub at_ns: u64,
    /// The resource; `None`: unknown.
    pub resource: Option<String>,
}

/// Slices of a function. The last one is whole; what is left has no calls.
fn slices(of: &Seconds<'_>, function: usize, length_ns: u64) -> Vec<Slice> {
    let hits: Vec<u64> = of.hits.iter().filter(|hit| hit.function == function).map(|hit| hit.at_ns).collect();
    let calls: Vec<u64> =
        of.calls.iter().filter(|call| call.function == function).map(|call| call.end_ns).collect();
    let before = |all: &[u64], ns: u64| all.partition_point(|at| *at < ns) as u64;
    let (mut samples, mut ended) = (before(&hits, of.from_ns), before(&calls, of.from_ns));
    let mut found = Vec::new();
    let mut end_ns = of.from_ns + length_ns;
    while end_ns <= of.to_ns {
        let (samples_now, ended_now) = (before(&hits, end_ns), before(&calls, end_ns));
        if ended_now > ended {
            found.push(Slice { end_ns, samples: samples_now - samples, calls: ended_now - ended });
            (samples, ended) = (samples_now, ended_now);
        }
        end_ns += length_ns;
    }
    found
}

/// What is usual of a function.
struct Usual {
    length_ns: u64,
    /// Samples for each call.
    share: f64,
    /// The same by what they show, in the order of [`Shown::ALL`].
    by_shown: [f64; Shown::ALL.len()],
}

/// The detector of an arm.
pub struct Baseline {
    watch: Watch,
    /// By function; `None`: it has too few samples.
    usual: Vec<Option<Usual>>,
}

impl Baseline {
    /// Learns what is usual from a clean stretch.
    pub fn learn(clean: &Seconds<'_>) -> Baseline {
        let mut watch = Watch::new(WatchSettings::default());
        let usual = (0..FUNCTIONS.len()).map(|function| usual(clean, function, &mut watch)).collect();
        Baseline { watch, usual }
    }

    /// Alarms in a stretch, in their order.
    pub fn alarms(&mut self, of: &Seconds<'_>) -> Vec<Alarm> {
        let mut all: Vec<(usize, Slice)> = Vec::new();
        for (function, usual) in self.usual.iter().enumerate() {
            let Some(usual) = usual else { continue };
            all.extend(slices(of, function, usual.length_ns).into_iter().map(|slice| (function, slice)));
        }
        all.sort_by_key(|(function, slice)| (slice.end_ns, *function));
        let mut alarms = Vec::new();
        for (function, slice) in all {
            let Some(usual) = self.usual.get(function).and_then(Option::as_ref) else { continue };
            let seen = Seen {
                // OK because there are three.
                kernel: function as u32,
                time_ns: slice.end_ns,
                predicted_ns: usual.share,
                own_ns: slice.share(),
            };
            for event in self.watch.window(&[seen]) {
                if let Event::Slower(slower) = event {
                    let resource = resource(of, function, usual, (slower.since_ns, slice.end_ns));
                    alarms.push(Alarm { at_ns: slice.end_ns, resource: resource.map(str::to_owned) });
                }
            }
        }
        alarms
    }
}

/// What is usual of a function, which is watched from then on.
fn usual(clean: &Seconds<'_>, function: usize, watch: &mut Watch) -> Option<Usual> {
    let mean = |slices: &[Slice]| {
        slices.iter().map(|slice| slice.samples as f64).sum::<f64>() / slices.len().max(1) as f64
    };
    let of = LENGTHS_NS.map(|length_ns| (length_ns, slices(clean, function, length_ns)));
    let enough = of.iter().find(|(_, slices)| mean(slices) >= ENOUGH);
    let (length_ns, slices) = enough.or(of.last())?;
    let (samples, calls) =
        slices.iter().fold((0, 0), |(samples, calls), s| (samples + s.samples, calls + s.calls));
    if slices.len() < LEAST_SLICES || samples == 0 || calls == 0 {
        return None;
    }
    let share = samples as f64 / calls as f64;
    let residuals = slices.iter().map(|slice| (share, (slice.share() / share).ln())).collect();
    // OK because there are three.
    watch.add_calibrated(function as u32, Calibration::new(residuals));
    let by_shown = Shown::ALL.map(|shown| {
        let is = |hit: &&Hit| hit.function == function && hit.shown == shown;
        clean.hits.iter().filter(is).count() as f64 / calls as f64
    });
    Some(Usual { length_ns: *length_ns, share, by_shown })
}

/// What the samples show that makes up most of the excess.
fn resource(
    of: &Seconds<'_>,
    function: usize,
    usual: &Usual,
    (since_ns, until_ns): (u64, u64),
) -> Option<&'static str> {
    // The first slice of the change ended then.
    let from_ns = since_ns.saturating_sub(usual.length_ns);
    let is_in = |ns: u64| (from_ns..until_ns).contains(&ns);
    let calls = of.calls.iter().filter(|c| c.function == function && is_in(c.end_ns)).count() as f64;
    let hits: Vec<&Hit> = of.hits.iter().filter(|h| h.function == function && is_in(h.at_ns)).collect();
    let excess = Shown::ALL.iter().zip(usual.by_shown).map(|(shown, each)| {
        (hits.iter().filter(|hit| hit.shown == *shown).count() as f64 - each * calls, *shown)
    });
    let total = hits.len() as f64 - usual.share * calls;
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
    fn a_slice_without_calls_is_joined_with_the_next() {
        let calls = [call(0, 50), call(1, 60), call(0, 90), call(0, 310)];
        let hits = [10, 150, 250, 305].map(|ms| hit(0, ms, Shown::User));
        let of = Seconds { hits: &hits, calls: &calls, from_ns: 0, to_ns: 450 * MS };
        let expected = [
            Slice { end_ns: 100 * MS, samples: 1, calls: 2 },
            Slice { end_ns: 400 * MS, samples: 3, calls: 1 },
        ];
        assert_eq!(slices(&of, 0, 100 * MS), expected);
        assert_eq!(slices(&of, 2, 100 * MS), []);
        let later = Seconds { from_ns: 300 * MS, ..of };
        assert_eq!(slices(&later, 0, 100 * MS), [Slice { end_ns: 400 * MS, samples: 1, calls: 1 }]);
    }

    fn watched(baseline: &Baseline) -> usize {
        baseline.usual.iter().flatten().count()
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
        let of = |(hits, calls): &(Vec<Hit>, Vec<Call>), to_ms: u64| {
            let mut baseline =
                Baseline::learn(&Seconds { hits: &clean.0, calls: &clean.1, from_ns: 0, to_ns: 60_000 * MS });
            assert_eq!(watched(&baseline), 1);
            baseline.alarms(&Seconds { hits, calls, from_ns: 0, to_ns: to_ms * MS })
        };
        assert_eq!(of(&seconds(20, u64::MAX), 20_000), []);
        let alarms = of(&seconds(20, 10_000), 20_000);
        let first = alarms.first().unwrap();
        assert!((10_000 * MS..14_000 * MS).contains(&first.at_ns), "{first:?}");
        assert_eq!(first.resource.as_deref(), Some("page faults"));
    }

    #[test]
    fn a_function_with_hardly_any_samples_is_watched_with_long_slices_or_not_at_all() {
        let (_, calls) = seconds(60, u64::MAX);
        let few: Vec<Hit> = (0..60).map(|s| hit(2, s * 1_000 + 3, Shown::User)).collect();
        let clean = Seconds { hits: &few, calls: &calls, from_ns: 0, to_ns: 60_000 * MS };
        let baseline = Baseline::learn(&clean);
        assert_eq!(baseline.usual[2].as_ref().unwrap().length_ns, 1_000_000_000);
        let none = Baseline::learn(&Seconds { hits: &[], ..clean });
        assert_eq!(watched(&none), 0);
    }
}
