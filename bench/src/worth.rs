//! What plans are worth by the target's own true rates: the first plan, made from a survey, and what a whole run achieved.

use crate::Options;
use crate::decades::{CLASSES, Decades, Done, count_all, index_of, record, record_planned};
use crate::measure::{Series, Table};
use anyhow::{Context, Result};
use profiler_core::ledger::LedgerSummary;
use profiler_core::plan::{Options as Effort, PlanClass, Problem, Range, Strategy, solve};
use profiler_core::recording::{Charge, LedgerRow, PlanRow, Recording, WindowKind, WindowRow};
use profiler_core::report::Report;
use std::collections::BTreeMap;

/// Percent of the target's CPU time.
const BUDGET: f64 = 2.0;
/// The live planner's bounds, Hz of target CPU time.
const SAMPLING_HZ: (f64, f64) = (19.0, 199.0);
/// Stack copied with each sample, KiB.
const STACK_KIB: f64 = 8.0;
/// A class with so many hits in the survey is known within a tenth, 95 times in 100.
const ENOUGH: f64 = 400.0;
/// Half an order of magnitude.
const HALF_ORDER: f64 = 3.162;

/// The problem of a plan at these rates, with the whole budget.
fn problem(rows: &[&PlanRow], recording: &Recording, cpu: f64, rates: &[f64]) -> Problem {
    let price = recording.meta.cost.sample_price(STACK_KIB).seconds();
    let mut problem = Problem::new(BUDGET / 100.0 * cpu, cpu, price);
    (problem.sampling.min_hz, problem.sampling.max_hz) = SAMPLING_HZ;
    problem.classes = rows
        .iter()
        .zip(rates)
        .map(|(row, rate)| {
            PlanClass::new(row.class_id.to_string(), *rate, row.rho, row.tau_s).weight(row.weight)
        })
        .collect();
    problem
}

/// Value of the best plan of a problem, proven.
fn best(problem: &Problem) -> Result<f64> {
    solve(problem, Strategy::Certified, &Effort::default()).map(|plan| plan.value).context("no plan")
}

/// What the agent's planner makes of a problem in which the user named every class: cheapest first as long as they fit.
fn same_planner(problem: &mut Problem) -> Result<f64> {
    let mut left = problem.budget - problem.sampling.min_hz * problem.sample_cost();
    let mut order: Vec<usize> = (0..problem.classes.len()).collect();
    order.sort_by(|a, b| problem.classes[*a].trace_cost().total_cmp(&problem.classes[*b].trace_cost()));
    for i in order {
        left -= problem.classes[i].trace_cost();
        problem.classes[i].must_trace = left >= 0.0;
    }
    best(problem)
}

fn rows_of(recording: &Recording, plan: u32) -> Vec<&PlanRow> {
    recording.plans.iter().filter(|row| row.plan == plan).collect()
}

/// Function of the target that a class is.
fn function_of(recording: &Recording, class_id: u32) -> Option<usize> {
    recording.classes.iter().find(|c| c.class_id == class_id).and_then(|c| index_of(&c.name))
}

/// Before and after a window, for the target's rate around it, ns: it counts in slots of 10 ms.
const AROUND_NS: u64 = 20_000_000;

/// How fast the target was around a class's last survey window, over its speed of all that time: calls of its busier half.
fn speed_around(target: &mut Decades, window: &WindowRow, whole: &Done) -> f64 {
    let busy = CLASSES / 2..;
    let per_s = |done: &Done| done.calls[busy.clone()].iter().sum::<f64>() / done.seconds();
    let around = target.between(window.start_ns.saturating_sub(AROUND_NS), window.end_ns + AROUND_NS);
    per_s(&around) / per_s(whole)
}

/// Rates of the target's functions by its own count in a part of the run, undisturbed.
fn truth(target: &mut Decades, recording: &Recording, from_ns: u64, to_ns: u64) -> Vec<f64> {
    let within = |row: &&LedgerRow| row.time_ns > from_ns && row.time_ns <= to_ns;
    let rows: Vec<LedgerRow> = recording.ledger.iter().filter(within).cloned().collect();
    target.true_rates(from_ns, to_ns, LedgerSummary::from_rows(&rows).predicted)
}

/// True rates of the classes of a plan: the target's where it knows, else what the plan took.
fn true_rates(recording: &Recording, rows: &[&PlanRow], truth: &[f64]) -> Vec<f64> {
    rows.iter().map(|row| function_of(recording, row.class_id).map_or(row.rate_hz, |i| truth[i])).collect()
}

/// Survey of 100 classes over 7 decades. With `TITHE_BENCH_CLASSES` set, standard error gets every class with its windows, and the
/// ledger of the first seconds.
pub fn survey(options: &Options) -> Result<String> {
    let [even, clustered] = [true, false].map(|even| survey_figures(options, even));
    let (even, clustered) = (even?, clustered?);
    let mut table = Table::new(&["figure", "calls come evenly", "calls come in clusters", "n"]);
    for (name, series) in &even {
        table.row(&[
            (*name).to_owned(),
            series.show(2),
            clustered.get(name).map_or(String::new(), |series| series.show(2)),
            series.n().to_string(),
        ]);
    }
    Ok(format!(
        "{table}\n{CLASSES} functions named with --count, rates from 0.1 to a million calls/s, one thread, budget {BUDGET} %. In clusters: 8 of the \
         functions take 4 % of the CPU time each, in calls of up to 8 ms, and no other is called meanwhile: a burst of a hot function, which \
         is over within milliseconds, sees either more calls than usual or none. The truth is the target's own count until the first plan.\n"
    ))
}

fn survey_figures(options: &Options, even: bool) -> Result<BTreeMap<&'static str, Series>> {
    let mut figures: BTreeMap<&'static str, Series> = BTreeMap::new();
    let mut note = |name: &'static str, value: f64| figures.entry(name).or_default().push(value);
    for round in 0..options.rounds {
        eprintln!("survey: round {} of {}", round + 1, options.rounds);
        let mut target = Decades::start();
        if even {
            target.work_evenly()
        } else {
            target.work(false)
        }
        let (report, recording, first) =
            record_planned(target.pid(), BUDGET, options.seconds_or(10), &count_all())?;
        let first = first.context("no plan was made")?;
        let rows = rows_of(&recording, 1);
        let first_ns = rows.first().context("no plan was made")?.time_ns;
        let truth = truth(&mut target, &recording, recording.meta.start_ns, first_ns);
        let windows = |id: u32| {
            recording.windows.iter().filter(move |w| w.class_id == id && w.kind == WindowKind::Survey)
        };
        let (mut known, mut close, mut held, mut rest, mut half, mut order) = (0, 0, 0, 0, 0, 0);
        let mut held_known = 0;
        let (mut seen, mut close_then) = (0, 0);
        let whole = target.between(recording.meta.start_ns, first_ns);
        for row in &rows {
            let Some(i) = function_of(&recording, row.class_id) else { continue };
            seen += 1;
            // The first look is a pilot, its hits are not used; the second may be several bursts.
            let hits: u64 = windows(row.class_id).skip(1).map(|w| w.kept).sum();
            let ratio = row.rate_hz / truth[i];
            let last = windows(row.class_id).max_by_key(|w| w.end_ns);
            let speed = last.map_or(1.0, |w| speed_around(&mut target, w, &whole));
            half += u32::from(ratio < HALF_ORDER && ratio > 1.0 / HALF_ORDER);
            order += u32::from(ratio < 10.0 && ratio > 0.1);
            if std::env::var_os("TITHE_BENCH_CLASSES").is_some() {
                let stops: Vec<String> = windows(row.class_id)
                    .map(|w| {
                        let ms = (w.end_ns - w.start_ns) as f64 * 1e-6;
                        let at = w.start_ns.saturating_sub(recording.meta.start_ns) as f64 * 1e-9;
                        format!(
                            "{} in {ms:.2} ms at {at:.3} s{}",
                            w.kept,
                            if w.tripped { " tripped" } else { "" }
                        )
                    })
                    .collect();
                eprintln!(
                    "dec{i:02} {:.4e}/s, surveyed {:.4e} ({:.3e} to {:.3e}), x{ratio:.2}, speed then x{speed:.2}, {}: {}",
                    truth[i],
                    row.rate_hz,
                    row.rate_low_hz,
                    row.rate_high_hz,
                    row.decision,
                    stops.join(", ")
                );
            }
            let holds = row.rate_low_hz <= truth[i] && truth[i] <= row.rate_high_hz;
            if hits as f64 >= ENOUGH {
                known += 1;
                held_known += u32::from(holds);
                close += u32::from((ratio - 1.0).abs() <= 0.1);
                close_then += u32::from((ratio / speed - 1.0).abs() <= 0.1);
            } else {
                rest += 1;
                held += u32::from(holds);
            }
        }
        let part = |n: u32, of: u32| f64::from(n) / f64::from(of.max(1)) * 100.0;
        note("classes in the first plan, of 100", f64::from(seen));
        note("classes with 400 hits and more", f64::from(known));
        note("of these within 10 %, %, aim >= 95", part(close, known));
        note("of these with the truth in the interval, %, aim >= 95", part(held_known, known));
        note("of these within 10 % of the rate around their last window, %", part(close_then, known));
        note("of the rest with the truth in the interval, %, aim >= 95", part(held, rest));
        note("right within an order of magnitude, of 100, aim >= 95", f64::from(order));
        note("right within half an order of magnitude, of 100", f64::from(half));
        note("time to the first plan, s, aim <= 5", (first_ns - recording.meta.start_ns) as f64 * 1e-9);
        let spent: u64 =
            recording.ledger.iter().filter(|r| r.charge == Charge::Survey).map(|r| r.cost_ns).sum();
        note("spent on surveys, ms", spent as f64 * 1e-6);
        if std::env::var_os("TITHE_BENCH_CLASSES").is_some() {
            let mut by_time: BTreeMap<u64, Vec<String>> = BTreeMap::new();
            for row in &recording.ledger {
                let text = format!("{:?} {:.2}", row.charge, row.cost_ns as f64 * 1e-6);
                by_time.entry((row.time_ns - recording.meta.start_ns) / 1_000_000).or_default().push(text);
            }
            for (ms, list) in by_time.iter().filter(|(ms, _)| **ms < 7_000) {
                eprintln!("{ms} ms: {}", list.join(", "));
            }
        }
        let early: Vec<LedgerRow> =
            recording.ledger.iter().filter(|row| row.time_ns <= first_ns).cloned().collect();
        let worst = LedgerSummary::from_rows(&early).worst_second;
        note("worst second until the first plan by the ledger, %, aim <= 2", worst * 100.0);
        note("worst second of the run by the ledger, %", report.receipt.worst_second * 100.0);
        let rates = true_rates(&recording, &rows, &truth);
        let cpu = report.target_cpu.value;
        let whole = problem(&rows, &recording, cpu, &rates);
        // The problem that the plan was made for, had its rates been true.
        let mut same = first;
        for class in &mut same.classes {
            let row = rows.iter().position(|row| Some(row.class_id) == class.id);
            class.rate_hz = Range::from(row.map_or(class.rate_hz.value, |n| rates[n]));
        }
        let hz = rows[0].sampling_hz;
        let (mut value, mut cost) = (0.0, hz * whole.sample_cost());
        for (row, rate) in rows.iter().zip(&rates) {
            let traced = row.decision == "trace";
            value += row.weight * if traced { *rate } else { hz * row.rho };
            cost += if traced { rate * row.tau_s } else { 0.0 };
        }
        note(
            "first plan's value over the same planner's at the true rates, %, aim >= 95",
            value / same_planner(&mut same)? * 100.0,
        );
        note("first plan's value over the best of the whole budget, %", value / best(&whole)? * 100.0);
        note("its cost at the true rates, % of CPU time, allowed 2", cost / cpu * 100.0);
    }
    Ok(figures)
}

/// What the windows and samples of a run were worth, weighted reports per second, from the first plan on.
fn achieved(recording: &Recording, report: &Report) -> Option<f64> {
    let from_ns = recording.plans.iter().map(|row| row.time_ns).min()?;
    let end_ns = recording.meta.end_ns?;
    let seconds = end_ns.saturating_sub(from_ns) as f64 * 1e-9;
    let weight = |id: u32| recording.classes.iter().find(|c| c.class_id == id).map_or(1.0, |c| c.weight);
    let late = |w: &&WindowRow| w.kind != WindowKind::Survey && w.end_ns > from_ns;
    let events: f64 = recording.windows.iter().filter(late).map(|w| weight(w.class_id) * w.kept as f64).sum();
    // Samples tell something of a class only while it is not traced.
    let samples: f64 = report
        .rows
        .iter()
        .filter_map(|row| Some((row.class_id?, row.share?, row.watched_share)))
        .map(|(id, share, attached)| weight(id) * share.value * report.samples as f64 * (1.0 - attached))
        .sum();
    Some((events + samples) / seconds)
}

/// How much of the budget's worth a whole run brings, on targets that stay as they are.
pub fn budget_use(options: &Options) -> Result<String> {
    let mut table = Table::new(&[
        "functions",
        "achieved over the best plan at the true rates, %, aim >= 85",
        "predicted overhead, %",
        "traced of the classes",
        "n",
    ]);
    // All over 7 decades; the quiet half, of which more than the budget allows can be traced in no plan.
    for (name, range) in
        [("dec00 to dec99", 0..CLASSES), ("dec00 to dec69", 0..70), ("dec40 to dec79", 40..80)]
    {
        let (mut share, mut predicted, mut traced) =
            (Series::default(), Series::default(), Series::default());
        for round in 0..options.rounds {
            eprintln!("budget-use: {name}, round {} of {}", round + 1, options.rounds);
            let mut target = Decades::start();
            target.work(false);
            let mut named: Vec<String> =
                range.clone().flat_map(|i| ["--count".to_owned(), format!("dec{i:02}")]).collect();
            named.extend(["--discover".to_owned(), "0".to_owned()]);
            let (report, recording) = record(target.pid(), BUDGET, options.seconds_or(10), &named)?;
            let last = recording.plans.iter().map(|row| row.plan).max().context("no plan was made")?;
            let from_ns = recording.plans.iter().map(|row| row.time_ns).min().context("no plan was made")?;
            let end_ns = recording.meta.end_ns.context("the run has no end")?;
            let truth = truth(&mut target, &recording, from_ns, end_ns);
            let rows = rows_of(&recording, last);
            let rates = true_rates(&recording, &rows, &truth);
            let problem = problem(&rows, &recording, report.target_cpu.value, &rates);
            let value = achieved(&recording, &report).context("nothing was achieved")?;
            share.push(value / best(&problem)? * 100.0);
            predicted.push(report.receipt.predicted * 100.0);
            traced.push(rows.iter().filter(|row| row.decision == "trace").count() as f64);
        }
        table.row(&[
            name.to_owned(),
            share.show(1),
            predicted.show(2),
            traced.show(0),
            share.n().to_string(),
        ]);
    }
    Ok(format!(
        "{table}\nRuns of {} s, survey included; value: weighted reports per second (calls of what is traced, samples with the function on the \
         stack of what is not).\n",
        options.seconds_or(10)
    ))
}
