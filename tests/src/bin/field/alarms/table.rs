//! The Markdown of finished pieces.

use super::subjects::SUBJECTS;
use super::{BUDGET, LEARNED, Record};
use profiler_user::output::count;

/// Chance that the interval of a rate misses it.
const LEVEL: f64 = 0.05;

/// What was seen of a program, or of all.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    pieces: u64,
    hours: f64,
    judged: u64,
    not_looked_at: u64,
    alarms: u64,
    machine: u64,
    incidents: u64,
    notes: u64,
}

impl Sum {
    fn of(records: &[&Record]) -> Sum {
        let mut sum = Sum::default();
        for record in records {
            let (alarms, machine) = record.alarms();
            sum.pieces += 1;
            sum.hours += record.watched_s / 3_600.0;
            sum.judged += record.judged;
            sum.not_looked_at += record.not_looked_at;
            sum.alarms += alarms;
            sum.machine += machine;
            // That the machine changed is told once, and is one by itself.
            sum.incidents += record.counted.incidents + machine;
            sum.notes += record.counted.notes;
        }
        sum
    }

    fn row(self, name: &str, functions: usize) -> String {
        format!(
            "| {name} | {functions} | {} | {:.2} | {} | {} | {} | {} | {} | {} |\n",
            self.pieces,
            self.hours,
            count(self.judged as f64),
            count(self.not_looked_at as f64),
            self.alarms,
            self.machine,
            self.incidents,
            self.notes
        )
    }
}

/// The chance of at most `k` events where `mean` are expected. By logarithms: `exp(-mean)` alone is 0 of many.
fn at_most(k: u64, mean: f64) -> f64 {
    let mut ln_term = -mean;
    let mut sum = ln_term.exp();
    for i in 1..=k {
        ln_term += (mean / i as f64).ln();
        sum += ln_term.exp();
    }
    sum
}

/// Interval of the mean of a Poisson count, exact (Garwood 1936).
fn interval(k: u64) -> (f64, f64) {
    // Where the chance of at most so many falls to this, by halving.
    let falls_to = |k: u64, chance: f64| {
        let (mut low, mut high) = (0.0, 20.0 + 4.0 * k as f64);
        for _ in 0..100 {
            let middle = f64::midpoint(low, high);
            if at_most(k, middle) > chance { low = middle } else { high = middle }
        }
        low
    };
    let low = if k == 0 { 0.0 } else { falls_to(k - 1, 1.0 - LEVEL / 2.0) };
    (low, falls_to(k, LEVEL / 2.0))
}

/// The section of the document.
pub fn document(finished: &[&Record]) -> String {
    let good: Vec<&Record> = finished.iter().copied().filter(|record| record.trouble.is_empty()).collect();
    let loads: Vec<f64> = good.iter().filter_map(|record| record.load).collect();
    let (least, most) = loads.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), x| (l.min(*x), m.max(*x)));
    let (agent, programs, seconds) = finished
        .first()
        .map_or(("-", "-", 0.0), |record| (&*record.agent, &*record.programs, record.seconds));
    let load = match loads.is_empty() {
        true => String::new(),
        false => format!("Load average at the ends of pieces: {least:.1} to {most:.1}."),
    };
    let mut out = format!(
        "## False alarms\n\nWritten by `cargo xtask field --false-alarms`. {} programs run at once, all but SQLite twice, each for a small part of a CPU and with sizes of up to three decades: functions of libraries \
         (`tests/field/grows.c`, resting between calls), SQLite (`tests/field/anomalies.c`, undisturbed) and Debian's CPython (`tests/field/checksums.py`). In each piece a recording of {} s is made of each, \
         with `record --model`; then `record --expect` of it watches the same process for {seconds} s from when the last of them has its models (hours count from when each has its own). Both at `--budget {BUDGET}`, some 1 % of a CPU for programs that rest for most of the time; everything else is as it comes. Nothing goes wrong in that time, so that each alarm is a false one. \
         *Calls*: those that were judged. *Not looked at*: recorded ones that were not, most of them before the models were there, others to keep to `--agent-cpu`. *Machine*: alarms of all functions together. *Incidents*: alarms of a program at most 30 s apart are one, as the agent counts and tells them. *Slowest*: calls told as the slowest so far, which are no alarms.\n\n\
         Agent: {agent}; programs {programs}. {load}\n\n\
         | program | functions | recordings | hours | calls | not looked at | false alarms | machine | incidents | slowest |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        SUBJECTS.len(),
        LEARNED.as_secs(),
    );
    for subject in &SUBJECTS {
        let of: Vec<&Record> = good.iter().copied().filter(|record| record.program == subject.name).collect();
        out += &Sum::of(&of).row(subject.name, subject.functions.len());
    }
    let sum = Sum::of(&good);
    out += &sum.row("all", SUBJECTS.iter().map(|subject| subject.functions.len()).sum());
    if sum.hours > 0.0 {
        let rate = |n: u64| {
            let (low, high) = interval(n);
            let per_hour = |n: f64| n / sum.hours;
            format!("{:.2} ({:.2} to {:.2}; {n})", per_hour(n as f64), per_hour(low), per_hour(high))
        };
        out += &format!(
            "\nAn hour of a watched program, in {:.2} h (exact intervals of 95 % of Poisson counts): false incidents {}; false alarms {}, as if each came by itself.\n",
            sum.hours,
            rate(sum.incidents),
            rate(sum.alarms + sum.machine)
        );
    }
    let told: Vec<String> = good
        .iter()
        .flat_map(|r| {
            r.told.iter().map(move |(at_s, text)| {
                format!("- {} {} piece {}, {at_s:.0} s: {text}", r.program, r.copy + 1, r.round)
            })
        })
        .collect();
    if !told.is_empty() {
        out += &format!("\nWhat was told:\n\n{}\n", told.join("\n"));
    }
    let trouble: Vec<String> = finished
        .iter()
        .flat_map(|r| {
            r.trouble
                .iter()
                .map(move |what| format!("- {} {} piece {}: {what}", r.program, r.copy + 1, r.round))
        })
        .collect();
    if !trouble.is_empty() {
        out += &format!("\nNot in the table:\n\n{}\n", trouble.join("\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Counted;
    use super::*;

    #[test]
    fn intervals_of_a_count_are_those_of_the_tables() {
        // Garwood's limits at 95 %, as in tables of them.
        for (k, low, high) in [
            (0, 0.0, 3.689),
            (1, 0.0253, 5.572),
            (3, 0.619, 8.767),
            (10, 4.795, 18.390),
            (1_000, 938.97, 1_063.95),
        ] {
            let (is_low, is_high) = interval(k);
            let error = if k < 100 { 1e-3 } else { 0.1 };
            assert!(
                (is_low - low).abs() < error && (is_high - high).abs() < error,
                "{k}: {is_low} {is_high}"
            );
        }
    }

    #[test]
    fn what_had_trouble_is_told_and_not_counted() {
        let good = Record {
            program: "qsort".to_owned(),
            watched_s: 1_800.0,
            judged: 1_000,
            counted: Counted { untold: 3, incidents: 1, notes: 2 },
            ..Record::default()
        };
        let bad = Record {
            trouble: vec!["it ended".to_owned()],
            counted: Counted { untold: 7, ..good.counted },
            ..good.clone()
        };
        let text = document(&[&good, &bad]);
        assert!(text.contains("| qsort | 1 | 1 | 0.50 | 1,000 | 0 | 3 | 0 | 1 | 2 |"), "{text}");
        assert!(
            text.contains("in 0.50 h (exact") && text.contains("incidents 2.00 (0.05 to 11.14; 1)"),
            "{text}"
        );
        assert!(text.contains("false alarms 6.00 (1.24 to 17.53; 3), as if"), "{text}");
        assert!(text.contains("- qsort 1 piece 0: it ended"), "{text}");
    }
}
