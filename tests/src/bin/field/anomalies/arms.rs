//! The ways to watch that are compared: calls held against models, as it was told live, and samples at several rates, from the same recording.

use super::agent::Line;
use super::lines::told;
use super::slices::{Alarm, Baseline, Hit, Seconds};
use super::tables::{Price, Sample, Shown, Tables};
use super::target::{Anomaly, Call};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Rate at which samples are taken, Hz.
pub const HIGH_HZ: f64 = 300.0;
/// Rate of the static default, Hz.
const DEFAULT_HZ: f64 = 50.0;
/// What an anomaly leaves behind is no false alarm for so long, ns: calls that began in it are still to end.
const AFTER_NS: u64 = 2_000_000_000;

/// Names of the arms, in the order of the table.
pub const ARMS: [&str; 7] = [
    "model-chosen",
    "static 300 Hz",
    "static 50 Hz",
    "static, equal data",
    "static, equal overhead",
    "wall clock 300 Hz",
    "wall clock 50 Hz",
];

/// When it went wrong in a run, ktime ns.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Alarms count from here on.
    pub from_ns: u64,
    /// Begin of what goes wrong.
    pub begin_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// End of the run.
    pub to_ns: u64,
}

impl Stretch {
    /// It belongs to what goes wrong.
    fn is_within(&self, ns: u64) -> bool {
        (self.begin_ns..=self.end_ns).contains(&ns)
    }

    /// Nothing is wrong, and what went wrong has passed.
    fn is_clean(&self, ns: u64) -> bool {
        (self.from_ns..self.begin_ns).contains(&ns) || (self.end_ns + AFTER_NS..=self.to_ns).contains(&ns)
    }

    /// Clean time, s.
    pub fn clean_s(&self) -> f64 {
        let after = self.to_ns.saturating_sub(self.end_ns + AFTER_NS);
        (self.begin_ns.saturating_sub(self.from_ns) + after) as f64 / 1e9
    }
}

/// What an arm made of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// One of [`ARMS`].
    pub name: String,
    /// From the injection to the first alarm, s; `None`: there was none before the injection ended.
    pub delay_s: Option<f64>,
    /// The same to the first alarm that names a resource.
    pub named_s: Option<f64>,
    /// That resource.
    pub resource: Option<String>,
    /// It is the right one.
    pub is_right: bool,
    /// Alarms in clean time.
    pub false_alarms: usize,
    /// Rows that it needs of the recording, and their bytes.
    pub rows: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// CPU time that they took over the program's CPU time. `None`: it was not taken, but computed from the program's own log.
    pub overhead: Option<f64>,
}

/// A run as all arms see it.
pub struct Run<'a> {
    /// What went wrong.
    pub anomaly: Anomaly,
    /// When.
    pub stretch: Stretch,
    /// The agent's lines.
    pub lines: &'a [Line],
    /// The clean recording, from which is learned, with the program's calls and its begin and end, ktime ns.
    pub clean: (&'a Tables, &'a [Call], (u64, u64)),
    /// The recording with what went wrong, and the program's calls.
    pub watched: (&'a Tables, &'a [Call]),
}

impl Run<'_> {
    /// All arms, in the order of [`ARMS`].
    pub fn arms(&self) -> Vec<Arm> {
        let (tables, _) = self.watched;
        let samples = &tables.price_of_samples;
        let part_of = |wanted: f64, all: f64| if all > 0.0 { (wanted / all).clamp(0.0, 1.0) } else { 0.0 };
        let equal_data = part_of(tables.price_of_calls.rows as f64, samples.rows as f64);
        let equal_overhead = part_of(tables.price_of_calls.cost_ns, samples.cost_ns);
        let [model, high, default, data, overhead, wall_high, wall_default] = ARMS;
        vec![
            self.model_chosen(model),
            self.sampled(high, 1.0),
            self.sampled(default, DEFAULT_HZ / HIGH_HZ),
            self.sampled(data, equal_data),
            self.sampled(overhead, equal_overhead),
            self.by_the_clock(wall_high, HIGH_HZ),
            self.by_the_clock(wall_default, DEFAULT_HZ),
        ]
    }

    fn model_chosen(&self, name: &str) -> Arm {
        let alarm =
            |line: &Line| told(&line.text).map(|told| Alarm { at_ns: line.at_ns, resource: told.resource });
        let alarms: Vec<Alarm> = self.lines.iter().filter_map(alarm).collect();
        let tables = self.watched.0;
        let Price { rows, bytes, cost_ns } = tables.price_of_calls;
        self.judged(name, &alarms, (rows, bytes), Some(cost_ns / tables.cpu_ns.max(1.0)))
    }

    /// With this part of the samples.
    fn sampled(&self, name: &str, part: f64) -> Arm {
        let (clean, clean_calls, clean_ns) = self.clean;
        let (tables, calls) = self.watched;
        let kept = thinned(&tables.samples, part);
        let alarms =
            self.watch((&hits(&thinned(&clean.samples, part)), clean_calls, clean_ns), (&hits(&kept), calls));
        let price = &tables.price_of_samples;
        let bytes = price.bytes as f64 * kept.len() as f64 / price.rows.max(1) as f64;
        let cost_ns = price.cost_ns * part;
        // OK because it is no more than all samples take.
        let data = (kept.len() as u64, bytes as u64);
        self.judged(name, &alarms, data, Some(cost_ns / tables.cpu_ns.max(1.0)))
    }

    /// As a sampler by the wall clock would see it, which finds threads that wait, too: from the program's own log. It sees no more than the function.
    fn by_the_clock(&self, name: &str, hz: f64) -> Arm {
        let (_, clean_calls, clean_ns) = self.clean;
        let (_, calls) = self.watched;
        let own = ticks(calls, hz, (self.stretch.from_ns, self.stretch.to_ns));
        let alarms = self.watch((&ticks(clean_calls, hz, clean_ns), clean_calls, clean_ns), (&own, calls));
        self.judged(name, &alarms, (own.len() as u64, 0), None)
    }

    /// Alarms of the baseline's detector, its own time included.
    fn watch(&self, clean: (&[Hit], &[Call], (u64, u64)), watched: (&[Hit], &[Call])) -> Vec<Alarm> {
        let (hits, calls, (from_ns, to_ns)) = clean;
        let mut baseline = Baseline::learn(&Seconds { hits, calls, from_ns, to_ns });
        let (hits, calls) = watched;
        let Stretch { from_ns, to_ns, .. } = self.stretch;
        let begin = Instant::now();
        let mut alarms = baseline.alarms(&Seconds { hits, calls, from_ns, to_ns });
        // A tenth of a second is the shortest slice: what one slice takes is no more than this.
        let slices = ((to_ns - from_ns) / 100_000_000).max(1);
        let each_ns = begin.elapsed().as_nanos() as u64 / slices;
        alarms.iter_mut().for_each(|alarm| alarm.at_ns += each_ns);
        alarms
    }

    fn judged(&self, name: &str, alarms: &[Alarm], (rows, bytes): (u64, u64), overhead: Option<f64>) -> Arm {
        let since = |alarm: &Alarm| (alarm.at_ns - self.stretch.begin_ns) as f64 / 1e9;
        let within = || alarms.iter().filter(|alarm| self.stretch.is_within(alarm.at_ns));
        let named = within().find(|alarm| alarm.resource.is_some());
        let resource = named.and_then(|alarm| alarm.resource.clone());
        Arm {
            name: name.to_owned(),
            delay_s: within().next().map(since),
            named_s: named.map(since),
            is_right: resource.as_ref().is_some_and(|resource| self.anomaly.is_right(resource)),
            resource,
            false_alarms: alarms.iter().filter(|alarm| self.stretch.is_clean(alarm.at_ns)).count(),
            rows,
            bytes,
            overhead,
        }
    }
}

/// Samples that lie in modelled functions.
fn hits(samples: &[Sample]) -> Vec<Hit> {
    let hit =
        |sample: &Sample| sample.of.map(|(function, shown)| Hit { at_ns: sample.at_ns, function, shown });
    samples.iter().filter_map(hit).collect()
}

/// This part of the samples, evenly: a sixth is each sixth.
fn thinned(samples: &[Sample], part: f64) -> Vec<Sample> {
    // OK because both are below 2^53. A little is added, so that six sixths are one.
    let taken = |count: usize| (count as f64 * part + 1e-9).floor() as u64;
    let is_kept = |(i, _): &(usize, &Sample)| taken(i + 1) > taken(*i);
    samples.iter().enumerate().filter(is_kept).map(|(_, sample)| *sample).collect()
}

/// What a sampler of all threads by the wall clock sees of modelled functions.
fn ticks(calls: &[Call], hz: f64, (from_ns, to_ns): (u64, u64)) -> Vec<Hit> {
    // OK because it is some milliseconds.
    let period_ns = (1e9 / hz) as u64;
    let mut all = Vec::new();
    for call in calls {
        let first = call.begin_ns.max(from_ns).saturating_sub(from_ns).div_ceil(period_ns);
        let at = |tick: u64| from_ns + tick * period_ns;
        let ticks = (first..).map(at).take_while(|ns| *ns < call.end_ns.min(to_ns));
        all.extend(ticks.map(|at_ns| Hit { at_ns, function: call.function, shown: Shown::Nothing }));
    }
    all.sort_by_key(|hit| hit.at_ns);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn tables() -> Tables {
        Tables {
            calls: Vec::new(),
            samples: Vec::new(),
            price_of_calls: Price { rows: 100, bytes: 6_000, cost_ns: 2e6 },
            price_of_samples: Price::default(),
            cpu_ns: 1e9,
            span_ns: (0, 0),
        }
    }

    #[test]
    fn what_was_told_live_is_held_against_the_injection() {
        let line = |at_ms: u64, cause: &str| Line {
            at_ns: at_ms * 1_000_000,
            text: format!(
                "tithe: longer than expected: tally, thread 7, at 1.5 s, n = 9: should have taken 1.00 ms (0.90 ms to 1.10 ms) and took 9.00 ms: {cause}"
            ),
        };
        let lines = [
            line(3_000, "CPU (70 % of the excess)"),
            line(10_800, "unknown: several resources share it"),
            line(11_800, "off CPU, blocked (99 % of the excess)"),
            line(12_800, "CPU (80 % of the excess)"),
            line(21_000, "CPU (80 % of the excess)"),
            line(23_000, "CPU (80 % of the excess)"),
        ];
        let tables = tables();
        let run = Run {
            anomaly: Anomaly::Lock,
            stretch: Stretch { from_ns: 2 * S, begin_ns: 10 * S, end_ns: 20 * S, to_ns: 24 * S },
            lines: &lines,
            clean: (&tables, &[], (0, 2 * S)),
            watched: (&tables, &[]),
        };
        let expected = Arm {
            name: "model-chosen".to_owned(),
            delay_s: Some(0.8),
            named_s: Some(1.8),
            resource: Some("off CPU, blocked".to_owned()),
            is_right: true,
            false_alarms: 2,
            rows: 100,
            bytes: 6_000,
            overhead: Some(0.002),
        };
        let arms = run.arms();
        assert_eq!(arms[0], expected);
        assert_eq!(arms.iter().map(|arm| &*arm.name).collect::<Vec<&str>>(), ARMS);
        // Nothing was sampled.
        assert!(arms[1..].iter().all(|arm| arm.delay_s.is_none() && !arm.is_right));
        assert_eq!(run.stretch.clean_s(), 10.0);
    }

    #[test]
    fn a_sixth_of_the_samples_is_each_sixth() {
        let samples: Vec<Sample> = (0..18).map(|i| Sample { at_ns: i, of: None }).collect();
        let times =
            |part: f64| thinned(&samples, part).iter().map(|sample| sample.at_ns).collect::<Vec<u64>>();
        assert_eq!(times(1.0 / 6.0), [5, 11, 17]);
        assert_eq!(times(1.0).len(), 18);
        assert!(times(0.0).is_empty());
        assert_eq!(times(0.7).len(), 12);
    }

    #[test]
    fn the_wall_clock_sees_threads_that_wait_and_calls_at_its_ticks() {
        let calls = [
            Call { function: 0, begin_ns: 5, end_ns: 2 * S / 100 },
            Call { function: 1, begin_ns: S / 100 - 1, end_ns: S / 100 },
            Call { function: 1, begin_ns: S / 100, end_ns: S / 100 + 1 },
        ];
        let seen: Vec<(u64, usize)> =
            ticks(&calls, 100.0, (0, S)).iter().map(|hit| (hit.at_ns / (S / 100), hit.function)).collect();
        assert_eq!(seen, [(1, 0), (1, 1)]);
    }
}
