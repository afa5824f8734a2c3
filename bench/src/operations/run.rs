//! One run of one policy: a serving target from its first request to its last, watched or not, and how well what was
//! recorded tells the truth that the target knows.

use crate::scratch;
use anyhow::{Context, Result, ensure};
use profiler_core::recording::{
    OperationClassRow, OperationCycleEnd, OperationCycleRow, OperationRow, OperationWindowRow,
};
use profiler_core::stats::moments::Moments;
use profiler_tests::requests::Truth;
use profiler_tests::support::{Agent, Target};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A target of the cell.
pub struct Subject {
    /// Name of the part of the cell.
    pub name: &'static str,
    /// The program.
    pub program: &'static str,
    /// The function that gets the bytes of each allocation.
    pub measure: &'static str,
    /// With the paper's constants, not those scaled to short runs.
    pub paper: bool,
    /// What takes turns in a round.
    pub arms: &'static [&'static str],
}

/// What a run gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The policy; `alone`: nobody watched.
    pub policy: String,
    /// The target's requests per second.
    pub throughput_hz: f64,
    /// Its CPU time of a request, ns.
    pub cpu_ns: f64,
    /// Its mean response time, ns.
    pub response_ns: f64,
    /// What the agent has to say, if it watched.
    pub seen: Option<Seen>,
}

/// What the agent recorded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Operations that it counted / the target's.
    pub counted: f64,
    /// Recorded / counted.
    pub rate: f64,
    /// Mean ordered rate over windows, weighted by operations; 0 while recording was off.
    pub ordered: f64,
    /// RMSE of plain means by type against the target's truth, bytes; like the next three NaN where nothing was recorded.
    #[serde(deserialize_with = "or_nan")]
    pub rmse: f64,
    /// The same of errors as a share of the truth.
    #[serde(deserialize_with = "or_nan")]
    pub relative: f64,
    /// RMSE of post-stratified means, bytes.
    #[serde(deserialize_with = "or_nan")]
    pub weighted: f64,
    /// The same of errors as a share of the truth.
    #[serde(deserialize_with = "or_nan")]
    pub weighted_relative: f64,
    /// Largest difference of a type's share in sample and population.
    pub mix: f64,
    /// Types with operations and none recorded.
    pub unobserved: u32,
    /// Cycles by their end, and the lengths (s) and samples of those that the run did not cut.
    pub representative: u32,
    /// At their time limit.
    pub timeouts: u32,
    /// Seconds.
    pub cycle_s: Vec<f64>,
    /// Operations recorded.
    pub cycle_sample: Vec<f64>,
    /// Records that found the ring full.
    pub dropped: u64,
    /// Drawn, but the quota was used up.
    pub no_quota: u64,
    /// CPU time of the agent over that of one CPU.
    pub agent_cpu: f64,
}

/// JSON has no NaN: it is written as null.
fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn options(subject: &Subject, seconds: u64) -> Vec<String> {
    let third = seconds as f64 / 3.0;
    let season = if subject.paper { 60.0f64.min(third) } else { third };
    let every = if subject.paper { 45.0f64.min(third) } else { third / 3.0 };
    let burst = if subject.paper { 5.0 } else { every / 5.0 };
    let text = format!("--pattern mixed --season {season} --burst-every {every} --burst {burst}");
    text.split(' ').map(str::to_owned).collect()
}

/// Arguments of the agent. The budget is what a machine has: policies are compared by what they choose to record.
fn agent_arguments(subject: &Subject, policy: &str, seconds: u64) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--budget", "1000ms/s", "--only-named", "--no-ab", "--sample-rate", "0", "--operation"]
            .map(str::to_owned)
            .to_vec();
    arguments.push("req=serve_request..request_served,class=arg0:str".to_owned());
    arguments.extend(["--measure".to_owned(), format!("{}:arg0", subject.measure)]);
    let name = policy.strip_suffix("-always");
    arguments.extend(["--policy".to_owned(), name.unwrap_or(policy).to_owned()]);
    if name.is_some() {
        arguments.extend(["--adapt".to_owned(), "attach_share=false".to_owned()]);
    }
    if !subject.paper {
        let reference = (seconds / 3).max(3);
        for setting in ["max_cycle_s=20", "baseline_s=1", &format!("inv_reference_s={reference}")] {
            arguments.extend(["--adapt".to_owned(), setting.to_owned()]);
        }
    }
    arguments
}

/// Where a full recording stays, for replay.
pub fn full_recording(subject: &Subject) -> PathBuf {
    std::env::temp_dir().join(format!("tithe-bench-{}-full.tithe", subject.name))
}

/// One run; the target is started for it and ended after it.
pub fn run(subject: &Subject, policy: &str, seconds: u64) -> Result<Run> {
    let mut target = Target::start_command(
        Command::new(profiler_tests::program(subject.program)).args(options(subject, seconds)),
    );
    let scratch = scratch::new()?;
    let agent = (policy != "alone").then(|| {
        let arguments = agent_arguments(subject, policy, seconds);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut agent = Agent::start_plain(target.pid(), scratch.path(), &arguments);
        // Begins and ends, too: the first requests would be missing.
        agent.wait_message("tithe: following operations");
        agent
    });
    target.command(&format!("run {seconds}"));
    let end = target.command("wait");
    let truth = Truth::parse(target.command("truth").text("truth").context("no truth in the answer")?)?;
    let total = truth.total();
    let mut run = Run {
        policy: policy.to_owned(),
        throughput_hz: total.operations as f64 / (end.number("wall_ns") as f64 * 1e-9),
        cpu_ns: end.number("cpu_ns") as f64 / total.operations.max(1) as f64,
        response_ns: total.response_ns as f64 / total.operations.max(1) as f64,
        seen: None,
    };
    if let Some(agent) = agent {
        let path = agent.recording().to_owned();
        let finished = agent.stop();
        ensure!(finished.status.success(), "the agent failed: {}", finished.messages);
        ensure!(target.is_alive(), "the target died");
        run.seen = Some(seen(&path, &truth).with_context(|| finished.messages.clone())?);
        if policy == "full" {
            let kept = full_recording(subject);
            // The one of the round before.
            let _ = std::fs::remove_dir_all(&kept);
            // Another file system: then it is not kept.
            let _ = std::fs::rename(&path, &kept);
        }
    }
    Ok(run)
}

/// One type: what was recorded of it.
#[derive(Default)]
struct Type {
    sample: Moments,
    population: u64,
    /// By stretch: population, and count and sum of the measure of the recorded ones.
    strata: BTreeMap<u64, (u64, u64, f64)>,
}

impl Type {
    /// Mean over strata with sample, each as heavy as its population.
    fn weighted(&self) -> Option<f64> {
        let observed = || self.strata.values().filter(|(_, n, _)| *n > 0);
        let weight: f64 = observed().map(|(all, n, _)| *all.max(n) as f64).sum();
        let sum: f64 = observed().map(|(all, n, sum)| *all.max(n) as f64 * sum / *n as f64).sum();
        (weight > 0.0).then(|| sum / weight)
    }
}

fn seen(path: &Path, truth: &Truth) -> Result<Seen> {
    let recording = profiler_user::recording::open_without_events(path)?;
    ensure!(recording.damage.is_empty(), "the recording is damaged: {:?}", recording.damage);
    let tables = Tables {
        classes: &recording.operation_classes,
        operations: &recording.operations,
        windows: &recording.operation_windows,
        cycles: &recording.operation_cycles,
    };
    let meta = &recording.meta;
    let length_ns = meta.end_ns.unwrap_or(meta.start_ns).saturating_sub(meta.start_ns);
    Ok(Seen { agent_cpu: meta.agent.cpu_ns as f64 / length_ns.max(1) as f64, ..tables.judge(truth) })
}

/// What a recording has of operations.
struct Tables<'a> {
    classes: &'a [OperationClassRow],
    operations: &'a [OperationRow],
    windows: &'a [OperationWindowRow],
    cycles: &'a [OperationCycleRow],
}

impl Tables<'_> {
    /// What they say, against the truth.
    fn judge(&self, truth: &Truth) -> Seen {
        let names: BTreeMap<u32, &str> =
            self.classes.iter().map(|c| (c.class_id, c.class_name.as_str())).collect();
        let mut types: BTreeMap<&str, Type> = BTreeMap::new();
        let mut seen = Seen::default();
        for row in self.operations.iter().filter(|row| !row.censored) {
            let name = names.get(&row.class_id).copied().unwrap_or("?");
            types.entry(name).or_default().sample.push(row.measure as f64);
        }
        let (mut ordered, mut population) = (0.0, 0);
        for w in self.windows {
            let one = types.entry(names.get(&w.class_id).copied().unwrap_or("?")).or_default();
            one.population += w.population;
            let stratum = one.strata.entry(w.stretch).or_default();
            stratum.0 += w.population;
            stratum.1 += w.sample;
            stratum.2 += w.measure_sum;
            population += w.population;
            ordered += if w.monitoring { w.rate * w.population as f64 } else { 0.0 };
            seen.dropped += w.dropped;
            seen.no_quota += w.no_quota;
        }
        let sample: u64 = types.values().map(|t| t.sample.n()).sum();
        let target = truth.total().operations;
        seen.counted = population as f64 / target.max(1) as f64;
        seen.rate = sample as f64 / population.max(1) as f64;
        seen.ordered = ordered / population.max(1) as f64;
        let (mut plain, mut weighted) = ([Moments::default(); 2], [Moments::default(); 2]);
        for (name, sums) in truth.0.iter().filter(|(_, sums)| sums.operations > 0) {
            let mean = sums.mean_measure();
            let one = types.get(name.as_str());
            let note = |errors: &mut [Moments; 2], value: f64| {
                errors[0].push((value - mean).powi(2));
                if mean > 0.0 {
                    errors[1].push((value / mean - 1.0).powi(2));
                }
            };
            match one.filter(|t| t.sample.n() > 0) {
                Some(one) => {
                    note(&mut plain, one.sample.mean());
                    if let Some(value) = one.weighted() {
                        note(&mut weighted, value);
                    }
                }
                None => seen.unobserved += 1,
            }
            let of_sample = one.map_or(0.0, |t| t.sample.n() as f64) / sample.max(1) as f64;
            seen.mix = seen.mix.max((of_sample - sums.operations as f64 / target as f64).abs());
        }
        let root = |m: &Moments| if m.n() > 0 { m.mean().sqrt() } else { f64::NAN };
        (seen.rmse, seen.relative) = (root(&plain[0]), root(&plain[1]));
        (seen.weighted, seen.weighted_relative) = (root(&weighted[0]), root(&weighted[1]));
        for cycle in self.cycles {
            match cycle.end {
                OperationCycleEnd::Representative => seen.representative += 1,
                OperationCycleEnd::Timeout => seen.timeouts += 1,
                OperationCycleEnd::RunEnd => continue,
            }
            seen.cycle_s.push((cycle.end_ns - cycle.start_ns) as f64 * 1e-9);
            seen.cycle_sample.push(cycle.sample as f64);
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(class_id: u32, stretch: u64, measure: u64) -> OperationRow {
        OperationRow {
            operation: 0,
            class_id,
            tid: 1,
            begin_ns: 0,
            duration_ns: 1,
            calls: 0,
            inner_ns: 0,
            measure,
            cost_ns: 0,
            off_cpu_ns: None,
            cycle: 0,
            stretch,
            censored: false,
            pid: None,
            steps_before: None,
            steps_after: None,
            incomplete: None,
        }
    }

    fn window(class_id: u32, stretch: u64, population: u64, measures: &[f64]) -> OperationWindowRow {
        OperationWindowRow {
            operation: 0,
            class_id,
            start_ns: 0,
            end_ns: 1_000_000_000,
            watched_ns: 1_000_000_000,
            monitoring: !measures.is_empty(),
            rate: 0.5,
            stretch,
            cycle: 0,
            population,
            population_sum_ns: 0.0,
            population_squares_ns2: 0.0,
            sample: measures.len() as u64,
            sample_sum_ns: 0.0,
            sample_squares_ns2: 0.0,
            measure_sum: measures.iter().sum(),
            measure_squares: 0.0,
            cost_ns: 0,
            begun: population,
            recorded: 0,
            off: 0,
            not_drawn: 0,
            balanced: 0,
            no_quota: 0,
            unmatched: 0,
            dropped: 0,
            sliced: None,
        }
    }

    #[test]
    fn kept_rounds_of_policies_that_record_nothing_can_be_read_again() {
        let none =
            Seen { rmse: f64::NAN, relative: f64::NAN, weighted: f64::NAN, counted: 1.0, ..Seen::default() };
        let text = serde_json::to_string(&none).unwrap();
        let read: Seen = serde_json::from_str(&text).unwrap();
        assert!(read.rmse.is_nan() && read.weighted_relative == 0.0 && read.counted == 1.0, "{text}");
    }

    #[test]
    fn a_recording_is_judged_by_the_truth() {
        let class = |class_id, name: &str| OperationClassRow {
            operation: 0,
            class_id,
            operation_name: "req".to_owned(),
            class_name: name.to_owned(),
        };
        // a: 2 of 2 with 10 in one stretch, 1 of 6 with 50 in another. b: 2 of 2 with 5. c: none of 10.
        let mut truth = Truth::default();
        for (name, values) in
            [("a", vec![10, 10, 40, 40, 40, 40, 40, 50]), ("b", vec![5, 5]), ("c", vec![1; 10])]
        {
            values.iter().for_each(|v| truth.0.entry(name.to_owned()).or_default().add(1, *v));
        }
        let tables = Tables {
            classes: &[class(2, "a"), class(3, "b"), class(4, "c")],
            operations: &[
                operation(2, 0, 10),
                operation(2, 0, 10),
                operation(2, 1, 50),
                operation(3, 0, 5),
                operation(3, 0, 5),
                OperationRow { censored: true, ..operation(4, 0, 77) },
            ],
            windows: &[
                window(2, 0, 2, &[10.0, 10.0]),
                window(2, 1, 6, &[50.0]),
                window(3, 0, 2, &[5.0, 5.0]),
                window(4, 0, 10, &[]),
            ],
            cycles: &[],
        };
        let seen = tables.judge(&truth);
        assert_eq!((seen.counted, seen.rate, seen.unobserved), (1.0, 0.25, 1));
        // Mean of a: 270 / 8 = 33.75; plain 70 / 3; weighted (2 * 10 + 6 * 50) / 8 = 40. b is exact.
        let rmse = |error: f64| (error * error / 2.0).sqrt();
        assert!((seen.rmse - rmse(70.0 / 3.0 - 33.75)).abs() < 1e-9, "{seen:?}");
        assert!((seen.weighted - rmse(6.25)).abs() < 1e-9, "{seen:?}");
        assert!((seen.weighted_relative - rmse(6.25 / 33.75)).abs() < 1e-9, "{seen:?}");
        // c is half of all and none of the sample.
        assert_eq!((seen.mix, seen.ordered), (0.5, 0.25));
    }
}
