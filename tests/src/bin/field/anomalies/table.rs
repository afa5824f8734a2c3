//! The Markdown of finished repetitions.

use super::arms::{ARMS, Arm};
use super::record::Record;
use super::target::{Anomaly, FUNCTIONS};
use super::times::{Times, median};
use profiler_user::output::{count, duration_ns};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Draws of a bootstrap.
const DRAWS: usize = 2_000;
/// What an anomaly that was not found counts in differences, s: its length.
const NOT_FOUND_S: f64 = 10.0;

/// A median over repetitions with its interval at 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Median {
    value: f64,
    low: f64,
    high: f64,
}

impl Median {
    /// By bootstrap over the repetitions. `None`: there are none.
    fn of(values: &[f64]) -> Option<Median> {
        let value = median(values.to_vec())?;
        let mut random = StdRng::seed_from_u64(18);
        let mut drawn: Vec<f64> = (0..DRAWS)
            .filter_map(|_| {
                median((0..values.len()).map(|_| values[random.random_range(0..values.len())]).collect())
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        // OK because both are within the draws.
        let at = |part: f64| drawn[((DRAWS - 1) as f64 * part).round() as usize];
        Some(Median { value, low: at(0.025), high: at(0.975) })
    }

    /// `1.20 (0.90 to 1.40)`.
    fn show(self, text: impl Fn(f64) -> String) -> String {
        format!("{} ({} to {})", text(self.value), text(self.low), text(self.high))
    }
}

/// A time, s; what is infinite was not found.
fn seconds(s: f64) -> String {
    if s.is_finite() { format!("{s:.2}") } else { "not found".to_owned() }
}

fn percent(part: f64) -> String {
    format!("{:.2}", 100.0 * part)
}

fn ns(ns: f64) -> String {
    duration_ns(ns)
}

/// The two sections of the document.
pub fn document(finished: &[&Record]) -> String {
    let good: Vec<&Record> = finished.iter().copied().filter(|r| r.trouble.is_empty()).collect();
    let mut out = format!("## Anomalies\n\n{}", introduction(finished));
    out += &found(&good);
    out += &differences(&good);
    out += &false_alarms(&good);
    out += &points(&good);
    let trouble: Vec<String> = finished
        .iter()
        .flat_map(|r| r.trouble.iter().map(move |what| format!("- {} round {}: {what}", r.anomaly, r.round)))
        .collect();
    if !trouble.is_empty() {
        out += &format!("\nNot in the tables:\n\n{}\n", trouble.join("\n"));
    }
    out + "\n## Table 2\n\n" + &table_2(&good)
}

fn introduction(finished: &[&Record]) -> String {
    let loads: Vec<f64> = finished.iter().filter_map(|record| record.load).collect();
    let (least, most) = loads.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), x| (l.min(*x), m.max(*x)));
    let (agent, clean) = finished.first().map_or(("-", 0.0), |record| (&record.agent, record.seconds));
    format!(
        "Written by `cargo xtask field --anomalies`. A program on SQLite's library (`tests/field/anomalies.c`) reads, writes and adds up on one CPU, with sizes over two decades; what is left of that CPU it takes \
         for other work at the lowest priority. Three functions are modelled: `sqlite3_blob_read` of the library (n: bytes), `store` (a transaction that writes n bytes) and `tally` (passes over n words, of which it adds up the \
         result under a mutex). In each round `tithe record --model` makes a clean recording of {clean} s; then, for each anomaly, `tithe record --expect` of it runs for 5 s at least, 10 s with the anomaly, and 3 s. \
         Both at `--budget 5% --agent-cpu 20% --no-ab --sample-rate 300`. Medians have intervals of 95 % (bootstrap over repetitions).\n\n\
         | anomaly | what goes wrong | right are |\n|---|---|---|\n\
         | delay | half of the reads and writes sleep for 50 ms (a preloaded library) | off CPU, blocked; I/O |\n\
         | lock | another thread holds the mutex for 30 of each 40 ms | off CPU, blocked |\n\
         | cpu | three other processes run on the program's CPU | off CPU, waiting for one |\n\
         | cache | the database is dropped from the page cache each 50 ms | I/O; page faults from disk; off CPU, blocked |\n\
         | memory | `tally` maps and touches 32 new bytes for each word | page faults |\n\n\
         Agent: {agent}. Load average at the ends of repetitions: {least:.1} to {most:.1}.\n\n",
    )
}

/// An arm in all repetitions of an anomaly.
fn of_arm<'a>(records: &[&'a Record], anomaly: Anomaly, arm: &str) -> Vec<&'a Arm> {
    let of = records.iter().filter(|record| record.anomaly == anomaly.name());
    of.flat_map(|record| record.arms.iter().filter(|own| own.name == arm)).collect()
}

fn found(records: &[&Record]) -> String {
    let mut out = String::from(
        "One recording serves all arms of a repetition. *model-chosen*: the lines of `--expect` as they appeared. *static*: the same sequential test on samples of CPU time in a function over its calls (by the program's own count), in slices of \
         0.1 to 1 s; *equal data* and *equal overhead*: so many of these samples as there were recorded calls, or as cost as much (if all of them cost less: all). *wall clock*: the same on what a sampler that also finds waiting threads would \
         see, computed from the program's own log: without a price, and without a resource. *found*: before the anomaly was over. *delay*: from the injection to the alarm, the analysis included; *named*: to the first alarm with a resource. \
         What was not found is in the medians. *rows*, *kB*: recorded calls or samples (with stacks), of the whole run. *overhead*: hits or samples times their price, % of the program's CPU time; what switches of sampled threads cost more is not in it.\n\n\
         | anomaly | arm | found | delay, s | named, s | right resource | named most often | rows | kB | overhead, % |\n|---|---|--:|--:|--:|--:|---|--:|--:|--:|\n",
    );
    for anomaly in Anomaly::ALL {
        for name in ARMS {
            let arms = of_arm(records, anomaly, name);
            if arms.is_empty() {
                continue;
            }
            let of = |time: fn(&Arm) -> Option<f64>| {
                let all: Vec<f64> = arms.iter().map(|arm| time(arm).unwrap_or(f64::INFINITY)).collect();
                let known = Median::of(&all).filter(|median| median.low.is_finite());
                known.map_or("not found".to_owned(), |median| median.show(seconds))
            };
            let usual = |figure: &dyn Fn(&Arm) -> f64| median(arms.iter().map(|arm| figure(arm)).collect());
            let overhead = median(arms.iter().filter_map(|arm| arm.overhead).collect());
            let bytes = usual(&|arm| arm.bytes as f64).filter(|bytes| *bytes > 0.0);
            out += &format!(
                "| {} | {name} | {} of {} | {} | {} | {} of {} | {} | {} | {} | {} |\n",
                anomaly.name(),
                arms.iter().filter(|arm| arm.delay_s.is_some()).count(),
                arms.len(),
                of(|arm| arm.delay_s),
                of(|arm| arm.named_s),
                arms.iter().filter(|arm| arm.is_right).count(),
                arms.len(),
                most_often(&arms),
                usual(&|arm| arm.rows as f64).map_or("-".to_owned(), count),
                bytes.map_or("-".to_owned(), |bytes| format!("{:.1}", bytes / 1e3)),
                overhead.map_or("-".to_owned(), percent),
            );
        }
    }
    out
}

/// The resource that most repetitions name.
fn most_often(arms: &[&Arm]) -> String {
    let mut names: Vec<&str> = arms.iter().map(|arm| arm.resource.as_deref().unwrap_or("unknown")).collect();
    names.sort_unstable();
    let groups = names.chunk_by(|a, b| a == b);
    groups.max_by_key(|group| group.len()).map_or("-".to_owned(), |group| group[0].to_owned())
}

fn differences(records: &[&Record]) -> String {
    let [model, others @ ..] = ARMS;
    let mut out = format!(
        "\nDelay of *{model}* less that of others in the same repetition, s; what was not found counts as {NOT_FOUND_S} s. Below 0: it is told sooner.\n\n| anomaly | {} |\n|---|{}\n",
        others.join(" | "),
        "--:|".repeat(others.len())
    );
    for anomaly in Anomaly::ALL {
        let delays = |name: &str| -> Vec<f64> {
            let arms = of_arm(records, anomaly, name);
            arms.iter().map(|arm| arm.delay_s.unwrap_or(NOT_FOUND_S)).collect()
        };
        let own = delays(model);
        if own.is_empty() {
            continue;
        }
        let less = |name: &str| {
            let each: Vec<f64> = own.iter().zip(delays(name)).map(|(own, other)| own - other).collect();
            Median::of(&each).map_or("-".to_owned(), |median| median.show(|s| format!("{s:.2}")))
        };
        out += &format!("| {} | {} |\n", anomaly.name(), others.map(less).join(" | "));
    }
    out
}

fn false_alarms(records: &[&Record]) -> String {
    let clean_s: f64 = records.iter().map(|record| record.clean_s).sum();
    let mut out = format!(
        "\nFalse alarms in {:.0} s of {} repetitions in which nothing was wrong (from the models on to the injection, and from 2 s after it on): ",
        clean_s,
        records.len()
    );
    let of = |name: &str| {
        let arms = records.iter().flat_map(|record| record.arms.iter().filter(|arm| arm.name == name));
        format!("{name} {}", arms.map(|arm| arm.false_alarms).sum::<usize>())
    };
    out += &ARMS.map(of).join(", ");
    out += ".\n";
    out
}

/// Data points of each function.
fn points(records: &[&Record]) -> String {
    let each: Vec<f64> = records
        .iter()
        .filter_map(|record| {
            let points = || record.times.iter().map(|times| times.points as f64);
            let (least, most) = (points().reduce(f64::min)?, points().reduce(f64::max)?);
            (least > 0.0).then(|| most / least)
        })
        .collect();
    let of = |symbol: &str| {
        let points = times_of(records, None, symbol).iter().map(|times| times.points as f64).collect();
        format!("{} of `{symbol}`", median(points).map_or("-".to_owned(), count))
    };
    format!(
        "\nData points (recorded calls) of a repetition, median: {}; largest over smallest {}.\n",
        FUNCTIONS.map(|function| of(function.symbol)).join(", "),
        Median::of(&each).map_or("-".to_owned(), |median| median.show(|x| format!("{x:.2}"))),
    )
}

fn times_of<'a>(records: &[&'a Record], anomaly: Option<Anomaly>, symbol: &str) -> Vec<&'a Times> {
    let is_of = |record: &&&Record| anomaly.is_none_or(|anomaly| record.anomaly == anomaly.name());
    let all = records.iter().filter(is_of).flat_map(|record| &record.times);
    all.filter(|times| times.function == symbol).collect()
}

fn table_2(records: &[&Record]) -> String {
    let mut out = String::from(
        "Times at the middle of the sizes: predicted by the model of the round; of normal calls (before the injection) and of calls that began while it was wrong, that times the median of their time over the predicted one. Times of recorded \
         calls, without what watching cost. Medians over repetitions. *error*: median of the error of prediction of normal calls, % of the predicted time. The paper has an error of 5 to 15 %.\n\n\
         | anomaly | function | predicted | normal | anomalous | error, % | calls: normal, anomalous |\n|---|---|--:|--:|--:|--:|--:|\n",
    );
    for anomaly in Anomaly::ALL {
        for function in &FUNCTIONS {
            let times = times_of(records, Some(anomaly), function.symbol);
            if times.is_empty() {
                continue;
            }
            let figure = |of: &dyn Fn(&Times) -> Option<f64>, text: fn(f64) -> String| {
                let all: Vec<f64> = times.iter().filter_map(|times| of(times)).collect();
                Median::of(&all).map_or("-".to_owned(), |median| median.show(text))
            };
            let at_middle = |times: &Times, ratio: Option<f64>| ratio.map(|ratio| ratio * times.predicted_ns);
            let calls = |of: fn(&Times) -> u64| count(times.iter().map(|times| of(times) as f64).sum());
            out += &format!(
                "| {} | `{}` | {} | {} | {} | {} | {}, {} |\n",
                anomaly.name(),
                function.symbol,
                figure(&|times| Some(times.predicted_ns), ns),
                figure(&|times| at_middle(times, times.normal.1), ns),
                figure(&|times| at_middle(times, times.anomalous.1), ns),
                figure(&|times| times.error, |error| format!("{:.1}", 100.0 * error)),
                calls(|times| times.normal.0),
                calls(|times| times.anomalous.0),
            );
        }
    }
    let errors: Vec<f64> = records.iter().flat_map(|r| &r.times).filter_map(|times| times.error).collect();
    if let Some(error) = median(errors) {
        out += &format!(
            "\nMedian error of prediction of all normal calls' functions: {:.1} %.\n",
            100.0 * error
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect_file;

    fn arm(name: &str, delay_s: Option<f64>, resource: Option<&str>, rows: u64) -> Arm {
        Arm {
            name: name.to_owned(),
            delay_s,
            named_s: delay_s.filter(|_| resource.is_some()),
            resource: resource.map(str::to_owned),
            is_right: resource == Some("off CPU, blocked"),
            false_alarms: usize::from(rows == 4_000),
            rows,
            bytes: rows * 60,
            overhead: (!name.starts_with("wall")).then_some(rows as f64 * 1e-6),
        }
    }

    fn record(anomaly: &str, round: u32) -> Record {
        let later = f64::from(round) * 0.1;
        let found = |name: &str, s: f64, resource, rows| arm(name, Some(s + later), resource, rows);
        let arms = vec![
            found(ARMS[0], 0.9, Some("off CPU, blocked"), 800),
            arm(ARMS[1], (round == 1).then_some(6.0), Some("I/O").filter(|_| round == 1), 4_000),
            arm(ARMS[2], None, None, 666),
            arm(ARMS[3], None, None, 800),
            arm(ARMS[4], None, None, 2_500),
            found(ARMS[5], 1.4, None, 1_200),
            found(ARMS[6], 3.0, None, 200),
        ];
        let times = |function: &str, anomalous| Times {
            function: function.to_owned(),
            points: 250 + 10 * function.len() as u64,
            predicted_ns: 2e6 + 1e4 * f64::from(round),
            normal: (80, Some(1.02)),
            anomalous: (if anomalous { 150 } else { 0 }, anomalous.then_some(9.0)),
            error: Some(0.03 + 0.01 * f64::from(round)),
        };
        Record {
            anomaly: anomaly.to_owned(),
            round,
            seconds: 40.0,
            agent: "tithe 0.1.0 (00112233)".to_owned(),
            load: Some(1.0 + later),
            trouble: Vec::new(),
            clean_s: 6.5,
            arms,
            told: Vec::new(),
            times: FUNCTIONS.map(|function| times(function.symbol, function.symbol == "tally")).to_vec(),
        }
    }

    #[test]
    fn the_document_has_each_anomaly_and_arm_and_what_went_wrong_is_in_no_table() {
        let broken = Record {
            trouble: vec!["the agent ended with exit status: 1: no such process".to_owned()],
            arms: Vec::new(),
            times: Vec::new(),
            clean_s: 0.0,
            ..record("delay", 3)
        };
        let all = [record("lock", 0), record("lock", 1), record("lock", 2), record("memory", 0), broken];
        expect_file!["./golden.md"].assert_eq(&document(&all.iter().collect::<Vec<&Record>>()));
    }

    #[test]
    fn a_median_has_an_interval_that_holds_it_and_what_was_not_found_is_the_longest() {
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        let found = Median::of(&values).unwrap();
        assert_eq!(found.value, 9.5);
        assert!(found.low > 3.0 && found.low < 9.5 && found.high > 9.5 && found.high < 16.0, "{found:?}");
        assert_eq!(Median::of(&[]), None);
        let half = [0.5, 0.6, 0.7, f64::INFINITY, f64::INFINITY, f64::INFINITY, f64::INFINITY];
        assert_eq!(Median::of(&half).unwrap().value, f64::INFINITY);
        assert_eq!(seconds(f64::INFINITY), "not found");
    }
}
