//! The Markdown of finished repetitions.

use super::arms::{ARMS, Arm, RATE_HZ};
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
/// Fewest repetitions of which an interval is told: of five, not even the least and the most hold the true median with 95 % (1 - 2^-4).
const LEAST: usize = 6;

/// A median over repetitions with its interval at 95 %, or the least and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Median {
    value: f64,
    low: f64,
    high: f64,
    is_range: bool,
}

impl Median {
    /// By bootstrap over the repetitions; the range of fewer than [`LEAST`]. `None`: there are none.
    fn of(values: &[f64]) -> Option<Median> {
        let value = median(values.to_vec())?;
        if values.len() < LEAST {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            return Some(Median { value, low, high, is_range: true });
        }
        let mut random = StdRng::seed_from_u64(18);
        let mut drawn: Vec<f64> = (0..DRAWS)
            .filter_map(|_| {
                median((0..values.len()).map(|_| values[random.random_range(0..values.len())]).collect())
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        // OK because both are within the draws.
        let at = |part: f64| drawn[((DRAWS - 1) as f64 * part).round() as usize];
        Some(Median { value, low: at(0.025), high: at(0.975), is_range: false })
    }

    /// `1.20 (0.90 to 1.40)`, or `1.20 (range 0.90 to 1.40)`.
    fn show(self, text: impl Fn(f64) -> String) -> String {
        let range = if self.is_range { "range " } else { "" };
        format!("{} ({range}{} to {})", text(self.value), text(self.low), text(self.high))
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
    out +=
        &differences(&good, "Delay of *model-chosen* less that of others in the same repetition, s", |arm| {
            arm.delay_s
        });
    out += &differences(&good, "The same of the time to the right resource, s", |arm| arm.right_s);
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
    let (agent, program, clean) =
        finished.first().map_or(("-", "-", 0.0), |record| (&record.agent, &record.program, record.seconds));
    let rows: String = Anomaly::ALL.map(row_of).concat();
    format!(
        "Written by `cargo xtask field --anomalies`. A program on SQLite's library (`tests/field/anomalies.c`) reads, writes and adds up on one CPU, with sizes over two decades; a process beside it takes \
         what is left of that CPU, at the lowest priority. Three functions are modelled: `sqlite3_blob_read` of the library (n: bytes), `store` (a transaction that writes n bytes) and `tally` (passes over n words, of which it adds up the \
         result under a mutex). In each round `tithe record --model` makes a clean recording of {clean} s; then, for each anomaly, `tithe record --expect` of it runs for 5 s at least, 10 s with the anomaly, and 6 s. \
         Both at `--budget 8% --agent-cpu 20% --no-ab --sample-rate {RATE_HZ}`: the samples, which are those of the static arms, take some 3 % of it. Medians have intervals of 95 % (bootstrap over repetitions); of fewer than {LEAST} repetitions the least and the most stand there, called *range*.\n\n\
         | anomaly | what goes wrong | functions that it touches | right are | aftermath, s |\n|---|---|---|---|--:|\n{rows}\n\
         Agent: {agent}; program {program}. Load average at the ends of repetitions: {least:.1} to {most:.1}.\n\n",
    )
}

/// What an anomaly is.
fn row_of(anomaly: Anomaly) -> String {
    let (wrong, right) = match anomaly {
        Anomaly::Delay => {
            ("half of the reads and writes sleep for 50 ms (a preloaded library)", "off CPU, blocked; I/O")
        }
        Anomaly::Lock => ("another thread holds the mutex for 30 of each 40 ms", "off CPU, blocked"),
        Anomaly::Cpu => ("three other processes run on the program's CPU", "off CPU, waiting for one"),
        Anomaly::Cache => (
            "the database is dropped from the page cache each 50 ms",
            "I/O; page faults from disk; off CPU, blocked",
        ),
        Anomaly::Memory => ("`tally` maps and touches 32 new bytes for each word", "page faults"),
    };
    let touched: Vec<String> =
        anomaly.touched().iter().map(|number| format!("`{}`", FUNCTIONS[*number].symbol)).collect();
    let grace_s = anomaly.grace_ns() / 1_000_000_000;
    format!("| {} | {wrong} | {} | {right} | {grace_s} |\n", anomaly.name(), touched.join(", "))
}

/// An arm in all repetitions of an anomaly.
fn of_arm<'a>(records: &[&'a Record], anomaly: Anomaly, arm: &str) -> Vec<&'a Arm> {
    let of = records.iter().filter(|record| record.anomaly == anomaly.name());
    of.flat_map(|record| record.arms.iter().filter(|own| own.name == arm)).collect()
}

fn found(records: &[&Record]) -> String {
    let mut out = String::from(
        "One recording serves all arms of a repetition. *model-chosen*: the lines of `--expect` as they appeared. *static*: samples of CPU time in a function over its calls (by the program's own count, which is exact and costs nothing here), in slices of \
         0.1 s, in a CUSUM of Poisson likelihood ratios for 2, 4 and 16 times as many. Its threshold is the one for one false alarm an hour, which is what `--expect` promises, of Poisson counts, or the one at which redraws of the clean recording raise one an hour, if that is higher; its alarms need no time to be \
         delivered. Its floor: the end of a slice, and as many samples as are evidence, some five at the least. *equal rows*, *equal bytes*, *equal overhead*: so many of the samples as there were recorded calls, as take so many bytes with the stacks that they have, or as cost as much (if all samples are fewer: \
         all). *wall clock*: the same test on what a sampler that also finds waiting threads would \
         see, computed from the program's own log: without a price, and without a resource. *found*: an alarm before the anomaly was over, of a function that it touches, of a call (a slice) that overlaps it. *delay*: from the injection to the first such alarm, the analysis included; *named*: to the first one with a resource; \
         *right*: to the first one with the right resource. \
         What was not found is in the medians. *rows*, *kB*: recorded calls or samples (with stacks), of the whole run, in modelled functions or elsewhere; of the wall clock one of each thread at each tick. *overhead*: hits or samples times their price, % of the program's CPU time; what switches of sampled threads cost more is not in it.\n\n\
         | anomaly | arm | found | delay, s | named, s | right, s | first named is right | named most often | rows | kB | overhead, % |\n|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|\n",
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
                "| {} | {name} | {} of {} | {} | {} | {} | {} of {} | {} | {} | {} | {} |\n",
                anomaly.name(),
                arms.iter().filter(|arm| arm.delay_s.is_some()).count(),
                arms.len(),
                of(|arm| arm.delay_s),
                of(|arm| arm.named_s),
                of(|arm| arm.right_s),
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

/// The resource that most repetitions name; all of them, if several are named as often.
fn most_often(arms: &[&Arm]) -> String {
    let mut names: Vec<&str> = arms.iter().map(|arm| arm.resource.as_deref().unwrap_or("unknown")).collect();
    names.sort_unstable();
    let groups: Vec<&[&str]> = names.chunk_by(|a, b| a == b).collect();
    let most = groups.iter().map(|group| group.len()).max().unwrap_or(0);
    let first: Vec<&str> = groups.iter().filter(|group| group.len() == most).map(|group| group[0]).collect();
    if first.is_empty() { "-".to_owned() } else { first.join(" / ") }
}

fn differences(records: &[&Record], what: &str, time: fn(&Arm) -> Option<f64>) -> String {
    let [model, others @ ..] = ARMS;
    let mut out = format!(
        "\n{what}; what was not found counts as {NOT_FOUND_S} s. Below 0: it is told sooner.\n\n| anomaly | {} |\n|---|{}\n",
        others.join(" | "),
        "--:|".repeat(others.len())
    );
    for anomaly in Anomaly::ALL {
        let delays = |name: &str| -> Vec<f64> {
            let arms = of_arm(records, anomaly, name);
            arms.iter().map(|arm| time(arm).unwrap_or(NOT_FOUND_S)).collect()
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
    let sum = |of: fn(&Record) -> f64| records.iter().map(|record| of(record)).sum::<f64>();
    let mut out = format!(
        "\nAlarms that are no answer, in {} repetitions. *false*: of calls while nothing was wrong, in {:.0} s (from the models on to the injection, and from the end of the aftermath on; also those that were told when the run was over). *aftermath*: told when the anomaly was over, or of calls in the {:.0} s \
         after it in which it still shows (by anomaly, above). *elsewhere*: in the anomaly, of functions that it does not touch.\n\n| arm | false | aftermath | elsewhere |\n|---|--:|--:|--:|\n",
        records.len(),
        sum(|record| record.clean_s),
        sum(|record| record.aftermath_s),
    );
    for name in ARMS {
        let count = |of: fn(&Arm) -> usize| {
            let arms = records.iter().flat_map(|record| record.arms.iter().filter(|arm| arm.name == name));
            arms.map(of).sum::<usize>()
        };
        let (is_false, after, elsewhere) =
            (count(|arm| arm.false_alarms), count(|arm| arm.aftermath), count(|arm| arm.elsewhere));
        out += &format!("| {name} | {is_false} | {after} | {elsewhere} |\n");
    }
    let untold: u64 = records.iter().map(|record| record.untold).sum();
    out += &format!(
        "\nOf *model-chosen* the agent counted {untold} more alarms in all, which it did not tell: they came within a second of others, and are in no table.\n"
    );
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
         calls, without what watching cost. Medians over repetitions. *error*: how far what is predicted lies from the time of normal calls, % of the latter, which is what the paper's table has (160 ms predicted for 150 ms: 5 to 15 %). *of a call*: median of the error of single normal calls, % of the predicted \
         time; calls with the same inputs differ, so that this is not 0 with a perfect model.\n\n\
         | anomaly | function | predicted | normal | anomalous | error, % | of a call, % | calls: normal, anomalous |\n|---|---|--:|--:|--:|--:|--:|--:|\n",
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
                "| {} | `{}` | {} | {} | {} | {} | {} | {}, {} |\n",
                anomaly.name(),
                function.symbol,
                figure(&|times| Some(times.predicted_ns), ns),
                figure(&|times| at_middle(times, times.normal.1), ns),
                figure(&|times| at_middle(times, times.anomalous.1), ns),
                figure(&Times::distance, tenths_of_percent),
                figure(&|times| times.error, tenths_of_percent),
                calls(|times| times.normal.0),
                calls(|times| times.anomalous.0),
            );
        }
    }
    let all = |of: &dyn Fn(&Times) -> Option<f64>| -> Vec<f64> {
        records.iter().flat_map(|record| &record.times).filter_map(of).collect()
    };
    let (distances, errors) = (all(&Times::distance), all(&|times| times.error));
    if let (Some(distance), Some(error)) = (Median::of(&distances), median(errors)) {
        out += &format!(
            "\nMedian error of prediction, of all functions in all repetitions: {} %; of single calls {} %.\n",
            distance.show(tenths_of_percent),
            tenths_of_percent(error)
        );
    }
    out
}

/// Of a part, without the sign.
fn tenths_of_percent(part: f64) -> String {
    format!("{:.1}", 100.0 * part)
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
            right_s: delay_s.filter(|_| resource == Some("off CPU, blocked")),
            false_alarms: usize::from(rows == 4_000),
            aftermath: usize::from(rows == 800),
            elsewhere: usize::from(rows == 200),
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
            arm(ARMS[4], None, None, 900),
            arm(ARMS[5], None, None, 2_500),
            found(ARMS[6], 1.4, None, 1_200),
            found(ARMS[7], 3.0, None, 200),
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
            load: Some(1.0 + later),
            clean_s: 6.5,
            aftermath_s: 2.0,
            untold: 1,
            arms,
            times: FUNCTIONS.map(|function| times(function.symbol, function.symbol == "tally")).to_vec(),
            ..Record::empty(anomaly, round, (40.0, "tithe 0.1.0 (00112233)", "0123456789ab"))
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
    fn of_few_repetitions_the_range_is_told_and_called_so() {
        let shown = |values: &[f64]| Median::of(values).unwrap().show(|x| format!("{x}"));
        assert_eq!(shown(&[3.0, 1.0, 2.0, 9.0, 5.0]), "3 (range 1 to 9)");
        assert!(!shown(&[3.0, 1.0, 2.0, 9.0, 5.0, 4.0]).contains("range"));
    }

    #[test]
    fn what_is_named_as_often_stands_beside_each_other() {
        let arms = [Some("I/O"), Some("CPU"), None, Some("CPU"), Some("I/O")]
            .map(|resource| arm(ARMS[0], Some(1.0), resource, 1));
        let all: Vec<&Arm> = arms.iter().collect();
        assert_eq!(most_often(&all), "CPU / I/O");
        assert_eq!(most_often(&all[..4]), "CPU");
        assert_eq!(most_often(&[]), "-");
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
