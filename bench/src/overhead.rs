//! What the receipt says that watching took, against what it took by the target's own clock.
//!
//! The program `overhead` does the same work with functions that are watched and with twins of the same code that are not, in turns of some 10 us on one
//! thread: twins in processes of their own differ by 3 points. How the truth comes of that: [`truth`]. Finished runs are kept in `target/.../bench/`, so
//! that a run can be resumed.

mod run;
mod truth;

use crate::Options;
use crate::durations::verdict::{holds, is_too_few};
use crate::durations::{Pair, resumed, series};
use crate::measure::Table;
use anyhow::{Context, Result};
use run::{FUNCTIONS, Part, Run, one_run};

/// Percent of the program's CPU time, with the runs that are asked for.
const BUDGETS: [(f64, u32); 4] = [(2.0, 200), (0.5, 60), (5.0, 60), (20.0, 60)];
/// Length of a run, s.
const RUN_S: u64 = 10;
/// Half-width that is aimed at with so many samples, as a part of the program's own CPU time. With more it is smaller by the root of their number.
const AIM: f64 = 0.006;
const AIM_SAMPLES: f64 = 2_500.0;
/// The budget that has an aim.
const AIM_BUDGET: f64 = 2.0;

/// Half-width that is aimed at with so many samples: 0.6 points with 2,500, 0.25 points with 15,000.
fn aim(samples: u64) -> f64 {
    AIM * (AIM_SAMPLES / samples.max(1) as f64).sqrt()
}

/// Half of the interval.
fn half(part: &Part) -> f64 {
    (part.told.high.unwrap_or(f64::INFINITY) - part.told.low) / 2.0
}

/// The interval holds the truth; the truth's own error is added by squares.
fn is_held(part: &Part) -> bool {
    holds(&Pair { told: Some(part.told), truth: part.truth })
}

/// `18 of 20`, bold where that is too few.
fn show_held(runs: &[Run], of: fn(&Run) -> &Part) -> String {
    let held = runs.iter().filter(|run| is_held(of(run))).count();
    let text = format!("{held} of {}", runs.len());
    if is_too_few(held, runs.len()) { format!("**{text}**") } else { text }
}

/// Median of a figure of the runs, in percent or points.
fn median(runs: &[Run], of: impl Fn(&Run) -> f64) -> f64 {
    series(runs.iter().map(of)).median() * 100.0
}

/// The cells of a budget in the table of all.
fn row(label: &str, budget: f64, runs: &[Run]) -> Vec<String> {
    let wide = series(runs.iter().map(|run| half(&run.overhead) / aim(run.samples[0])));
    let of_aim = match wide.median() {
        _ if budget != AIM_BUDGET => "no aim".to_owned(),
        median if median > 1.0 => format!("**{median:.2}**"),
        median => format!("{median:.2}"),
    };
    let error = series(runs.iter().map(|run| (run.overhead.told.value - run.overhead.truth.value) * 100.0));
    vec![
        label.to_owned(),
        runs.len().to_string(),
        format!("{:.0}", series(runs.iter().map(|run| run.samples[0] as f64)).median()),
        format!("{:.2}", median(runs, |run| run.overhead.told.value)),
        format!("{:.2}", median(runs, |run| run.overhead.truth.value)),
        error.show(2),
        show_held(runs, |run| &run.overhead),
        format!("{:.2}", median(runs, |run| half(&run.overhead))),
        of_aim,
        format!("{:.2}", median(runs, |run| run.overhead.truth.half)),
        format!("{:.2}", median(runs, |run| run.predicted)),
    ]
}

/// A part of the overhead, as told and as true.
fn part_row(label: &str, name: &str, runs: &[Run], of: fn(&Run) -> &Part) -> Vec<String> {
    let error = series(runs.iter().map(|run| (of(run).told.value - of(run).truth.value) * 100.0));
    vec![
        format!("{label}, {name}"),
        format!("{:.2}", median(runs, |run| of(run).told.value)),
        format!("{:.2}", median(runs, |run| half(of(run)))),
        format!("{:.2}", median(runs, |run| of(run).truth.value)),
        format!("{:.2}", median(runs, |run| of(run).truth.half)),
        error.show(2),
        show_held(runs, of),
    ]
}

/// How often each function was hit, and how.
fn hits_line(label: &str, runs: &[Run]) -> String {
    let of = |i: usize| {
        let all = |kind: fn(&run::Hits) -> u64| {
            series(runs.iter().filter_map(|run| run.hits.get(i)).map(|hits| kind(hits) as f64)).median()
        };
        let name = FUNCTIONS[i].0;
        format!("`{name}` {:.0} / {:.0} / {:.0}", all(|h| h.survey), all(|h| h.burst), all(|h| h.traced))
    };
    let all: Vec<String> = (0..FUNCTIONS.len()).map(of).collect();
    format!(
        "{label}: {}; price of a sample {:.0} ns as charged, {:.0} ns at the end, {:.0} ns by the program's clock (half-width {:.0}); CPU time by the ledger over the program's clock {:.4}.\n",
        all.join(", "),
        series(runs.iter().map(|run| run.sample_ns[0])).median(),
        series(runs.iter().map(|run| run.sample_ns[1])).median(),
        series(runs.iter().map(|run| run.true_sample_ns.value)).median(),
        series(runs.iter().map(|run| run.true_sample_ns.half)).median(),
        series(runs.iter().map(|run| run.cpu_over_clock)).median(),
    )
}

/// Whether the program's work fills the caches, and the budget in percent: `2`, `wide-20`.
fn part_of(text: &str) -> Result<(bool, f64)> {
    let (is_wide, budget) = text.strip_prefix("wide-").map_or((false, text), |rest| (true, rest));
    let budget = budget.parse().with_context(|| {
        format!("a part of overhead is a budget in percent, as overhead:2 or overhead:wide-20, not {text}")
    })?;
    Ok((is_wide, budget))
}

/// The cell. A part is a budget; without one every budget has the runs that are asked for, or `--repeat`, of the program that spins.
pub fn overhead(options: &Options) -> Result<String> {
    let part = options.part.as_deref().map(part_of).transpose()?;
    let is_wide = part.is_some_and(|(is_wide, _)| is_wide);
    let budgets: Vec<(f64, u32)> = match part {
        Some((_, budget)) => {
            vec![BUDGETS.iter().find(|(b, _)| *b == budget).copied().unwrap_or((budget, 60))]
        }
        None => BUDGETS.to_vec(),
    };
    let mut table = Table::new(&[
        "budget",
        "n",
        "samples",
        "measured, %",
        "true, %",
        "error, points",
        "holds",
        "half-width, points",
        "over the aim",
        "the truth's own, points",
        "predicted, %",
    ]);
    let mut parts = Table::new(&[
        "budget, part",
        "measured, %",
        "half-width, points",
        "true, %",
        "the truth's own, points",
        "error, points",
        "holds",
    ]);
    let mut lines = String::new();
    for (budget, asked) in budgets {
        let wanted = options.repeat.unwrap_or(asked) as usize;
        let kept = format!("overhead-{}{budget}", if is_wide { "wide-" } else { "" });
        let runs =
            resumed(&kept, options.fresh, wanted, |_| one_run(budget, is_wide, options.seconds_or(RUN_S)))?;
        let label = format!("{budget} %{}", if is_wide { ", wide" } else { "" });
        table.row(&row(&label, budget, &runs));
        parts.row(&part_row(&label, "traps and what they leave", &runs, |run| &run.traps));
        parts.row(&part_row(&label, "traps", &runs, |run| &run.in_turn));
        parts.row(&part_row(&label, "what they leave", &runs, |run| &run.behind));
        parts.row(&part_row(&label, "samples, switches, attaching", &runs, |run| &run.beside));
        parts.row(&part_row(&label, "switches and attaching (a check)", &runs, |run| &run.rest));
        lines.push_str(&hits_line(&label, &runs));
    }
    Ok(format!(
        "{table}\n{parts}\nHits in the survey / in bursts / traced, medians. {lines}\nRuns of {} s; *wide*: of work that fills the caches, else the functions spin. Measured: the receipt's line, over the program's own CPU time; medians of the runs. \
         Error: measured less true, median (least to most). Holds: runs whose interval holds the truth, with the truth's own error (95 %, by the spread of slices of 0.2 s) added by squares; bold: \
         fewer than 95 % by the binomial test at 1 % (181 or fewer of 200, 52 or fewer of 60). Aim of the half-width: {} points with {AIM_SAMPLES} samples, by the root of their number; over 1 it is missed. \
         Parts: the truth of traps and what they leave is both differences of turns; that of traps alone has what they leave within their own turn, and that of what they leave is only what outlasts it.\n",
        options.seconds_or(RUN_S),
        AIM * 100.0,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durations::{Told, Truth};

    fn run(value: f64, truth: f64) -> Run {
        let told = Told { value, low: value - 0.005, high: Some(value + 0.005), at_most: false };
        let part = Part { told, truth: Truth { value: truth, half: 0.001 } };
        Run {
            overhead: part,
            traps: part,
            in_turn: part,
            behind: part,
            beside: part,
            rest: part,
            true_sample_ns: part.truth,
            samples: [2_500, 50],
            predicted: 0.02,
            cpu_over_clock: 1.0,
            sample_ns: [14_000.0, 13_000.0],
            beside_s: [0.0; 3],
            hits: Vec::new(),
        }
    }

    #[test]
    fn the_aim_is_that_of_2500_and_of_15000_samples() {
        assert!((aim(2_500) - 0.006).abs() < 1e-12);
        assert!((aim(15_000) - 0.0025).abs() < 1e-4);
    }

    #[test]
    fn a_part_is_a_budget_of_one_of_two_programs() {
        assert_eq!(part_of("0.5").unwrap(), (false, 0.5));
        assert_eq!(part_of("wide-20").unwrap(), (true, 20.0));
        assert!(part_of("narrow-20").unwrap_err().to_string().contains("not narrow-20"));
    }

    #[test]
    fn a_row_says_how_often_the_truth_is_held_and_how_wide_the_interval_is() {
        let runs = [run(0.020, 0.018), run(0.030, 0.020), run(0.022, 0.02706)];
        let cells = row("2 %", 2.0, &runs);
        // 0.2 and, with the truth's own error, 0.506 points: held. 1 point: not.
        assert_eq!(cells[6], "2 of 3");
        assert_eq!(cells[3..6], ["2.20", "2.00", "0.20 (-0.51 to 1.00)"]);
        assert_eq!(cells[8], "0.83");
        assert_eq!(row("5 %", 5.0, &runs)[8], "no aim");
        let wide: Vec<Run> = runs.map(|run| Run { samples: [15_000, 50], ..run }).to_vec();
        assert_eq!(row("2 %", 2.0, &wide)[8], "**2.04**");
        // None of two: less than 1 % by chance.
        assert_eq!(show_held(&[run(0.03, 0.02), run(0.03, 0.02)], |run| &run.overhead), "**0 of 2**");
    }
}
