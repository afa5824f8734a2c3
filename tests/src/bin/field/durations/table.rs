//! Finished runs as Markdown: a row for each function of each case, medians over the runs.

use super::Record;
use super::figure::{Figure, holds, relative};
use profiler_core::estimate::Estimate;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What stands above the table.
const INTRODUCTION: &str = "# Durations and calls of real programs

Written by `cargo xtask field --durations`. A run has three stretches without a break in the load: 6 s unobserved, the recording, 6 s unobserved.
*Own* is the mean time of a call by the program's own clock in the two unobserved stretches together, what it takes to read that clock included (*clock*:
two readings with nothing between them); its clock counts Tithe's traps, too, so that its word of the observed stretch says nothing. True counts are
the program's own, read ten times a second and interpolated to the begin and the end of the recording. The watched process has a nice value of
-20, its load and Tithe one of -10 (runs whose load is not known: -10 and 0): other work on the machine takes the CPU from them less often. *Load*: processes
that ran or waited for one of the machine's CPUs, average of a minute at the end of the run. Reports are computed from the recordings by the build that wrote
this table.

Why one instance and not a twin at the same time: two programs, two loads and the agent share two CPUs; a call that waits for a CPU lasts milliseconds. What the
two unobserved stretches differ by (*drift*) says how far the truth itself is known.

Columns: medians (least..most) over the runs. *Holds own*: runs whose interval of the mean holds the program's figure; *less clock*: holds it without the reading of the
clock (the function itself is between the two). A *limit* is a mean that is told as `<=`, or calls told as `>=`: it counts as holding where the truth is on its side.
*Half-width* is that of the interval over the value, of runs without a limit. *Worst second* is of Tithe's own receipt.
";

/// One line for the person who waits.
pub fn say(record: &Record) {
    let observation = &record.observation;
    eprintln!(
        "{}:{} round {}: worst second {:.2} % of {}{}",
        record.program,
        record.case,
        record.round,
        observation.worst_second * 100.0,
        record.budget,
        observation.failed.as_ref().map_or(String::new(), |why| format!(", failed: {why}")),
    );
    for what in &record.harmed {
        eprintln!("    HARMED: {what}");
    }
    for figure in &record.figures {
        let told = |estimate: Option<Estimate>| {
            estimate.map_or("-".to_owned(), |e| format!("{:.0} [{:.0}, {:.0}]", e.value, e.low, e.high))
        };
        let own = figure.own.map_or("-".to_owned(), |own| {
            let (before, after) = (own.before_ns, own.after_ns);
            format!("{:.0} ({before:.0}, {after:.0}; clock {:.0})", own.mean_ns, own.clock_ns)
        });
        eprintln!(
            "    {} ({}): own {own} ns, mean {} ns, P50 {} ns; calls {:.0}, told {}",
            figure.function,
            figure.way,
            told(figure.mean),
            told(figure.p50),
            figure.true_calls.map_or(f64::NAN, |(calls, _)| calls),
            told(figure.calls),
        );
    }
}

/// The middle of some numbers, and the least and the most of them.
fn middle(numbers: impl Iterator<Item = f64>, shown: impl Fn(f64) -> String) -> String {
    let mut all: Vec<f64> = numbers.filter(|x| x.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    match (all.first(), all.last()) {
        (Some(&first), Some(&last)) => {
            let middle = f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2]);
            format!("{} ({}..{})", shown(middle), shown(first), shown(last))
        }
        _ => "-".to_owned(),
    }
}

/// A time in ns, with its unit.
fn time(ns: f64) -> String {
    match ns {
        _ if ns.abs() >= 1e6 => format!("{:.2} ms", ns / 1e6),
        _ if ns.abs() >= 1e4 => format!("{:.1} us", ns / 1e3),
        _ if ns.abs() >= 1e3 => format!("{:.2} us", ns / 1e3),
        _ => format!("{ns:.0} ns"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// In how many of the runs where both are there something is so.
fn in_runs<'a>(figures: &[&'a Figure], is: impl Fn(&'a Figure) -> Option<bool>) -> String {
    let all: Vec<bool> = figures.iter().filter_map(|figure| is(figure)).collect();
    match all.len() {
        0 => "-".to_owned(),
        n => format!("{}/{n}", all.iter().filter(|&&so| so).count()),
    }
}

/// Half-widths, and how many were limits.
fn widths(estimates: &[Estimate]) -> String {
    let limits = estimates.iter().filter(|estimate| relative(estimate).is_none()).count();
    let text = middle(estimates.iter().filter_map(relative), percent);
    match limits {
        0 => text,
        _ => format!("{text}; {limits} limits"),
    }
}

fn row(program: &str, case: &str, function: &str, figures: &[&Figure]) -> String {
    let means: Vec<Estimate> = figures.iter().filter_map(|figure| figure.mean).collect();
    let calls: Vec<Estimate> = figures.iter().filter_map(|figure| figure.calls).collect();
    let own = || figures.iter().filter_map(|figure| figure.own);
    let drift = own().map(|own| (own.after_ns / own.before_ns - 1.0).abs());
    let holds_own = in_runs(figures, |f| Some(holds(&f.mean?, f.own?.mean_ns, 0.0)));
    let holds_net = in_runs(figures, |f| Some(holds(&f.mean?, f.own?.net_ns(), 0.0)));
    let holds_calls = in_runs(figures, |f| {
        let (calls, within) = f.true_calls?;
        Some(holds(&f.calls?, calls, within))
    });
    let off = figures.iter().filter_map(|f| Some(f.calls?.value / f.true_calls?.0 - 1.0));
    let signed = |share: f64| format!("{:+.1} %", share * 100.0);
    let ways: BTreeSet<&str> = figures.iter().map(|figure| &*figure.way).collect();
    format!(
        "| {program} {case} | `{function}` | {} | {} | {} | {} | {} | {holds_own} | {holds_net} | {} | {} | {holds_calls} | {} | {} | {} |\n",
        figures.len(),
        middle(own().map(|own| own.mean_ns), time),
        middle(own().map(|own| own.clock_ns), time),
        middle(drift, percent),
        middle(means.iter().map(|mean| mean.value), time),
        widths(&means),
        middle(figures.iter().filter_map(|f| f.p50).map(|p50| p50.value), time),
        middle(off, signed),
        widths(&calls),
        ways.into_iter().collect::<Vec<_>>().join("; "),
    )
}

/// The document, cases in this order.
pub fn document(finished: &[Record], order: &[(String, String)]) -> String {
    let mut text = INTRODUCTION.to_owned();
    text += "\n| case | function | runs | own | clock | drift | Tithe's mean | holds own | less clock | half-width | P50 | calls hold | calls off by | their half-width | way |\n";
    text += "|---|---|--:|---|---|---|---|--:|--:|---|---|--:|---|---|---|\n";
    for (program, case) in order {
        let runs = || finished.iter().filter(|r| r.program == *program && r.case == *case);
        let mut by_function: BTreeMap<&str, Vec<&Figure>> = BTreeMap::new();
        let mut names: Vec<&str> = Vec::new();
        for figure in runs().flat_map(|record| &record.figures) {
            if !names.contains(&&*figure.function) {
                names.push(&figure.function);
            }
            by_function.entry(&figure.function).or_default().push(figure);
        }
        for name in names {
            text += &row(program, case, name, &by_function[name]);
        }
    }
    text += "\n| case | runs | program harmed | Tithe failed | worst second, % | predicted, % | agent's CPU, % | length, s | load |\n|---|--:|--:|--:|---|---|---|---|---|\n";
    for (program, case) in order {
        let runs: Vec<&Record> =
            finished.iter().filter(|r| r.program == *program && r.case == *case).collect();
        let share = |share: f64| format!("{:.2}", share * 100.0);
        let lived = || runs.iter().filter(|record| record.observation.failed.is_none());
        let of = |what: fn(&Record) -> f64| middle(lived().map(|record| what(record)), share);
        let _ = writeln!(
            text,
            "| {program} {case} | {} | {} | {} | {} | {} | {} | {} | {} |",
            runs.len(),
            runs.iter().filter(|record| !record.harmed.is_empty()).count(),
            runs.iter().filter(|record| record.observation.failed.is_some()).count(),
            of(|record| record.observation.worst_second),
            of(|record| record.observation.predicted),
            of(|record| record.observation.agent_cpu),
            middle(lived().map(|record| record.observation.covered_s), |s| format!("{s:.0}")),
            middle(runs.iter().filter_map(|record| record.load), |load| format!("{load:.0}")),
        );
    }
    text + &remarks(finished)
}

/// What went wrong, what Tithe remarked of functions, and versions.
fn remarks(finished: &[Record]) -> String {
    let mut text = String::new();
    let trouble = |record: &Record| -> Vec<String> {
        let failed = record.observation.failed.iter().map(|why| format!("Tithe failed: {why}"));
        record.harmed.iter().map(|why| format!("harmed: {why}")).chain(failed).collect()
    };
    for record in finished {
        for what in trouble(record) {
            let _ = write!(text, "\n- {} {}, round {}: {what}", record.program, record.case, record.round);
        }
    }
    if !text.is_empty() {
        text = format!("\n## Trouble\n{text}\n");
    }
    let mut notes: BTreeMap<String, usize> = BTreeMap::new();
    for record in finished {
        for figure in &record.figures {
            for note in &figure.notes {
                let digits = |c: char| if c.is_ascii_digit() { '#' } else { c };
                let note: String = note.chars().map(digits).collect();
                let key = format!("{} {} `{}`: {note}", record.program, record.case, figure.function);
                *notes.entry(key).or_insert(0) += 1;
            }
        }
    }
    text += "\n## Tithe's remarks, digits as `#`, by number of runs\n\n";
    for (note, runs) in notes {
        let _ = writeln!(text, "- {runs}: {note}");
    }
    let versions: BTreeSet<String> =
        finished.iter().map(|record| format!("- {}: {}", record.program, record.version)).collect();
    let agents: BTreeSet<String> =
        finished.iter().map(|record| format!("- agent: {}", record.agent)).collect();
    let lines: Vec<String> = versions.into_iter().chain(agents).collect();
    text + &format!("\n## Versions\n\n{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durations::figure::Own;

    fn figure(mean: (f64, f64, f64), own: f64) -> Figure {
        let estimate =
            |(low, value, high): (f64, f64, f64)| Estimate { low, high, ..Estimate::exact(value, 9) };
        Figure {
            function: "f".to_owned(),
            way: "return_sites, push".to_owned(),
            notes: Vec::new(),
            own: Some(Own { before_ns: own, after_ns: own * 1.1, mean_ns: own, clock_ns: 50.0 }),
            mean: Some(estimate(mean)),
            p50: None,
            correction_ns: 0.0,
            calls: Some(estimate((90.0, 100.0, 110.0))),
            true_calls: Some((112.0, 3.0)),
            attempted: 9,
            dropped: 0,
        }
    }

    #[test]
    fn a_row_counts_what_holds_and_tells_limits_apart() {
        let (one, two) = (figure((400.0, 500.0, 600.0), 550.0), figure((100.0, 200.0, 300.0), 340.0));
        let mut limit = figure((0.0, 90.0, 90.0), 95.0);
        limit.mean.as_mut().unwrap().at_most = true;
        let text = row("p", "c", "f", &[&one, &two, &limit]);
        assert!(
            text.contains("| 340 ns (95 ns..550 ns) | 50 ns (50 ns..50 ns) | 10 % (10 %..10 %) |"),
            "{text}"
        );
        assert!(text.contains("| 1/3 | 3/3 | 35 % (20 %..50 %); 1 limits |"), "{text}");
        assert!(text.contains("| 3/3 | -10.7 % (-10.7 %..-10.7 %) | 10 % (10 %..10 %) |"), "{text}");
    }

    #[test]
    fn the_middle_of_nothing_is_a_dash() {
        assert_eq!(middle([].into_iter(), time), "-");
        assert_eq!(middle([1e3, 3e3, f64::NAN].into_iter(), time), "2.00 us (1.00 us..3.00 us)");
        assert_eq!((time(12.0), time(15e3), time(2e6)), ("12 ns".into(), "15.0 us".into(), "2.00 ms".into()));
    }
}
