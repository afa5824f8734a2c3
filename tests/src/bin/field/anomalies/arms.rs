//! The ways to watch that are compared: calls held against models, as it was told live, and samples at several rates, from the same recording.

use super::agent::Line;
use super::lines::told;
use super::slices::{Baseline, Hit, SLICE_NS, Seconds};
use super::tables::{Price, Sample, Shown, Tables};
use super::target::{Anomaly, Call, FUNCTIONS};
use super::verdict::{Alarm, Stretch, Verdict};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Rate at which samples are taken, Hz. More than any static rate has: as many as recorded calls cost may be more.
pub const RATE_HZ: f64 = 900.0;
/// The static high rate, Hz.
const HIGH_HZ: f64 = 300.0;
/// Rate of the static default, Hz.
const DEFAULT_HZ: f64 = 50.0;
/// Steps in which the part of the samples is searched for that takes so many bytes.
const STEPS: usize = 24;

/// Names of the arms, in the order of the table.
pub const ARMS: [&str; 8] = [
    "model-chosen",
    "static 300 Hz",
    "static 50 Hz",
    "static, equal rows",
    "static, equal bytes",
    "static, equal overhead",
    "wall clock 300 Hz",
    "wall clock 50 Hz",
];

/// What an arm made of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// One of [`ARMS`].
    pub name: String,
    /// From the injection to the first alarm that answers it, s; `None`: there was none before the injection ended.
    pub delay_s: Option<f64>,
    /// The same to the first alarm that names a resource.
    pub named_s: Option<f64>,
    /// That resource.
    pub resource: Option<String>,
    /// It is the right one.
    pub is_right: bool,
    /// From the injection to the first alarm that names the right resource, s.
    #[serde(default)]
    pub right_s: Option<f64>,
    /// Alarms of calls while nothing was wrong.
    pub false_alarms: usize,
    /// Alarms in which the anomaly still shows when it is over, or that were told too late.
    #[serde(default)]
    pub aftermath: usize,
    /// Alarms in the anomaly, of functions that it does not touch.
    #[serde(default)]
    pub elsewhere: usize,
    /// Rows that it takes of the program in the whole run, in modelled functions or not.
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
    /// Threads of the program.
    pub threads: usize,
}

impl Run<'_> {
    /// All arms, in the order of [`ARMS`].
    pub fn arms(&self) -> Vec<Arm> {
        let (tables, _) = self.watched;
        let (calls, samples) = (&tables.price_of_calls, &tables.price_of_samples);
        let part_of = |wanted: f64, all: f64| if all > 0.0 { (wanted / all).clamp(0.0, 1.0) } else { 0.0 };
        let [model, high, default, rows, bytes, overhead, wall_high, wall_default] = ARMS;
        vec![
            self.model_chosen(model),
            self.sampled(high, HIGH_HZ / RATE_HZ),
            self.sampled(default, DEFAULT_HZ / RATE_HZ),
            self.sampled(rows, part_of(calls.rows as f64, samples.rows as f64)),
            self.sampled(bytes, part_with_bytes(tables, calls.bytes as f64)),
            self.sampled(overhead, part_of(calls.cost_ns, samples.cost_ns)),
            self.by_the_clock(wall_high, HIGH_HZ),
            self.by_the_clock(wall_default, DEFAULT_HZ),
        ]
    }

    fn model_chosen(&self, name: &str) -> Arm {
        let tables = self.watched.0;
        let alarms: Vec<Alarm> =
            self.lines.iter().filter_map(|line| alarm_of(line, tables.span_ns.0)).collect();
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
        let cost_ns = tables.price_of_samples.cost_ns * part;
        // OK because it is no more than all samples take.
        let data = (kept.len() as u64, tables.bytes_of(&kept) as u64);
        self.judged(name, &alarms, data, Some(cost_ns / tables.cpu_ns.max(1.0)))
    }

    /// As a sampler by the wall clock would see it, which finds threads that wait, too: from the program's own log. It sees no more than the function.
    fn by_the_clock(&self, name: &str, hz: f64) -> Arm {
        let (_, clean_calls, clean_ns) = self.clean;
        let (tables, calls) = self.watched;
        let own = ticks(calls, hz, (self.stretch.from_ns, self.stretch.to_ns));
        let alarms = self.watch((&ticks(clean_calls, hz, clean_ns), clean_calls, clean_ns), (&own, calls));
        let (begin_ns, end_ns) = tables.span_ns;
        // Each thread at each tick, as each sample of CPU time counts, wherever it lies. OK because it is some thousands.
        let rows = self.threads as f64 * hz * end_ns.saturating_sub(begin_ns) as f64 / 1e9;
        self.judged(name, &alarms, (rows as u64, 0), None)
    }

    /// Alarms of the baseline's detector, its own time included.
    fn watch(&self, clean: (&[Hit], &[Call], (u64, u64)), watched: (&[Hit], &[Call])) -> Vec<Alarm> {
        let (hits, calls, (from_ns, to_ns)) = clean;
        let baseline = Baseline::learn(&Seconds { hits, calls, from_ns, to_ns });
        let (hits, calls) = watched;
        let Stretch { from_ns, to_ns, .. } = self.stretch;
        let begin = Instant::now();
        let mut alarms = baseline.alarms(&Seconds { hits, calls, from_ns, to_ns });
        // What one slice takes.
        let slices = (to_ns.saturating_sub(from_ns) / SLICE_NS).max(1);
        let each_ns = begin.elapsed().as_nanos() as u64 / slices;
        alarms.iter_mut().for_each(|alarm| alarm.at_ns += each_ns);
        paced(alarms)
    }

    fn judged(&self, name: &str, alarms: &[Alarm], (rows, bytes): (u64, u64), overhead: Option<f64>) -> Arm {
        let since = |alarm: &Alarm| (alarm.at_ns.saturating_sub(self.stretch.begin_ns)) as f64 / 1e9;
        let is = |verdict: Verdict| {
            alarms.iter().filter(move |alarm| self.stretch.verdict(self.anomaly, alarm) == verdict)
        };
        let is_right = |alarm: &&Alarm| alarm.resource.as_ref().is_some_and(|it| self.anomaly.is_right(it));
        let named = is(Verdict::Hit).find(|alarm| alarm.resource.is_some());
        Arm {
            name: name.to_owned(),
            delay_s: is(Verdict::Hit).next().map(since),
            named_s: named.map(since),
            is_right: named.as_ref().is_some_and(is_right),
            resource: named.and_then(|alarm| alarm.resource.clone()),
            right_s: is(Verdict::Hit).find(is_right).map(since),
            false_alarms: is(Verdict::False).count(),
            aftermath: is(Verdict::Aftermath).count(),
            elsewhere: is(Verdict::Elsewhere).count(),
            rows,
            bytes,
            overhead,
        }
    }
}

/// The alarm of a line of the agent, whose recording began then.
fn alarm_of(line: &Line, start_ns: u64) -> Option<Alarm> {
    let told = told(&line.text)?;
    let number = |name: &String| FUNCTIONS.iter().position(|function| function.symbol == name);
    // OK because it is a time of some minutes.
    let ns = |s: f64| start_ns + (s.max(0.0) * 1e9) as u64;
    // Of the machine it tells of now.
    let of_ns = told
        .call_s
        .map_or((line.at_ns, line.at_ns), |call_s| (ns(call_s), ns(call_s + told.took_s.unwrap_or(0.0))));
    Some(Alarm {
        at_ns: line.at_ns,
        function: told.function.as_ref().and_then(number),
        of_ns,
        resource: told.resource,
    })
}

/// Alarms as an agent would tell them that tells as many as `--expect` does: five at once, then one a second.
fn paced(mut alarms: Vec<Alarm>) -> Vec<Alarm> {
    const BURST: f64 = 5.0;
    alarms.sort_by_key(|alarm| alarm.at_ns);
    let (mut tokens, mut last_ns) = (BURST, 0);
    alarms.retain(|alarm| {
        tokens = (tokens + alarm.at_ns.saturating_sub(last_ns) as f64 / 1e9).min(BURST);
        last_ns = alarm.at_ns;
        let is_told = tokens >= 1.0;
        tokens -= f64::from(u8::from(is_told));
        is_told
    });
    alarms
}

/// The largest part of the samples that takes no more than these bytes, with the stacks that it has.
fn part_with_bytes(tables: &Tables, bytes: f64) -> f64 {
    let takes = |part: f64| tables.bytes_of(&thinned(&tables.samples, part));
    if takes(1.0) <= bytes {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..STEPS {
        let part = f64::midpoint(low, high);
        if takes(part) <= bytes { low = part } else { high = part }
    }
    low
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
            stack_bytes: 0,
            cpu_ns: 1e9,
            span_ns: (S, 26 * S),
        }
    }

    /// A line of a call of `tally` that began `call_ms` after the recording's begin (1 s) and took 9 ms.
    fn line(at_ms: u64, call_ms: u64, function: &str, cause: &str) -> Line {
        Line {
            at_ns: at_ms * 1_000_000,
            text: format!(
                "tithe: longer than expected: {function}, thread 7, at {:.6} s, n = 9: should have taken 1.00 ms (0.90 ms to 1.10 ms) and took 9.00 ms: {cause}",
                call_ms as f64 / 1e3
            ),
        }
    }

    #[test]
    fn what_was_told_live_is_held_against_the_injection() {
        let lines = [
            line(3_000, 1_500, "tally", "CPU (70 % of the excess)"),
            // Told in it, of a call before it; and of a function that it does not touch.
            line(10_100, 8_900, "tally", "off CPU, blocked (99 % of the excess)"),
            line(10_300, 9_200, "store", "off CPU, blocked (99 % of the excess)"),
            line(10_800, 9_300, "tally", "unknown: several resources share it"),
            line(11_800, 10_300, "tally", "page faults (51 % of the excess)"),
            line(12_800, 11_300, "tally", "off CPU, blocked (80 % of the excess)"),
            // Told when it was over; in the time after it; and when nothing shows any more.
            line(20_300, 18_900, "tally", "off CPU, blocked (99 % of the excess)"),
            line(22_300, 20_900, "tally", "CPU (80 % of the excess)"),
            line(24_500, 22_900, "tally", "CPU (80 % of the excess)"),
        ];
        let tables = tables();
        let run = Run {
            anomaly: Anomaly::Lock,
            stretch: Stretch { from_ns: 2 * S, begin_ns: 10 * S, end_ns: 20 * S, to_ns: 26 * S },
            lines: &lines,
            clean: (&tables, &[], (0, 2 * S)),
            watched: (&tables, &[]),
            threads: 7,
        };
        let expected = Arm {
            name: "model-chosen".to_owned(),
            delay_s: Some(0.8),
            named_s: Some(1.8),
            resource: Some("page faults".to_owned()),
            is_right: false,
            right_s: Some(2.8),
            false_alarms: 3,
            aftermath: 2,
            elsewhere: 1,
            rows: 100,
            bytes: 6_000,
            overhead: Some(0.002),
        };
        let arms = run.arms();
        assert_eq!(arms[0], expected);
        assert_eq!(arms.iter().map(|arm| &*arm.name).collect::<Vec<&str>>(), ARMS);
        // Nothing was sampled.
        assert!(arms[1..].iter().all(|arm| arm.delay_s.is_none() && !arm.is_right));
        // 25 s of seven threads.
        assert_eq!((arms[6].rows, arms[7].rows), (52_500, 8_750));
    }

    #[test]
    fn baselines_tell_no_more_alarms_than_the_agent_does() {
        let alarm = |at_ns: u64| Alarm { at_ns, function: Some(0), of_ns: (at_ns, at_ns), resource: None };
        let at = |alarms: Vec<Alarm>| alarms.iter().map(|alarm| alarm.at_ns).collect::<Vec<u64>>();
        // A hundred a second: five, then one in each second that follows.
        let many = paced((0..400).rev().map(|i| alarm(10 * S + i * 10_000_000)).collect());
        assert_eq!(at(many), [0, 1, 2, 3, 4, 100, 200, 300].map(|i| 10 * S + i * 10_000_000));
        let few: Vec<u64> = (10..40).map(|s| s * S).collect();
        assert_eq!(at(paced(few.iter().map(|s| alarm(*s)).collect())), few);
    }

    #[test]
    fn equal_rows_bytes_and_overhead_are_three_different_parts_of_the_samples() {
        let stack = |i: u64| (i.wrapping_mul(2_654_435_761) >> 16) % 30;
        let samples = (0..9_000).map(|i| Sample { at_ns: i, stack: stack(i), of: None }).collect();
        let tables = Tables {
            samples,
            price_of_samples: Price { rows: 9_000, bytes: 18_000, cost_ns: 90e6 },
            stack_bytes: 3_000,
            ..tables()
        };
        let run = Run {
            anomaly: Anomaly::Lock,
            stretch: Stretch { from_ns: 2 * S, begin_ns: 10 * S, end_ns: 20 * S, to_ns: 26 * S },
            lines: &[],
            clean: (&tables, &[], (0, 2 * S)),
            watched: (&tables, &[]),
            threads: 7,
        };
        let arms = run.arms();
        let rows: Vec<u64> = arms.iter().map(|arm| arm.rows).collect();
        assert_eq!(rows[..4], [100, 3_000, 500, 100]);
        // 2 bytes each, and 3,000 for stacks that all of them have.
        assert!((1_490..=1_500).contains(&rows[4]) && arms[4].bytes <= 6_000, "{:?}", arms[4]);
        assert_eq!((rows[5], arms[5].overhead), (200, arms[0].overhead));
    }

    #[test]
    fn a_sixth_of_the_samples_is_each_sixth() {
        let samples: Vec<Sample> = (0..18).map(|i| Sample { at_ns: i, stack: 0, of: None }).collect();
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
