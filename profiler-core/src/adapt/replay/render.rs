//! A comparison of policies as text.

use super::compare::PolicyComparison;
use crate::estimate::Estimate;
use crate::text::printable;
use std::fmt::Write as _;

/// Four digits that count, and as few decimals as these need.
fn digits(x: f64) -> String {
    if !x.is_finite() {
        return "-".to_owned();
    }
    let decimals = if x.abs() < 5e-7 { 0 } else { (3 - x.abs().log10().floor() as i32).clamp(0, 6) as usize };
    format!("{x:.decimals$}")
}

/// `12.3 ±0.4` in units of `1 / scale`.
fn mean(e: Option<&Estimate>, scale: f64, decimals: usize) -> String {
    match e {
        None => "-".to_owned(),
        Some(e) if e.half_width().is_finite() => {
            format!("{:.decimals$} ±{:.decimals$}", e.value * scale, e.half_width() * scale)
        }
        Some(e) => format!("{:.decimals$}", e.value * scale),
    }
}

fn error(e: Option<&Estimate>) -> String {
    match e {
        None => "-".to_owned(),
        Some(e) if e.half_width().is_finite() => format!("{} ±{}", digits(e.value), digits(e.half_width())),
        Some(e) => digits(e.value),
    }
}

fn quotient(e: &Estimate) -> String {
    if e.n == 0 {
        "-".to_owned()
    } else if e.high.is_finite() {
        format!("{:.2} [{:.2}, {:.2}]", e.value, e.low, e.high)
    } else {
        format!("{:.2}", e.value)
    }
}

fn table(text: &mut String, head: &[&str], rows: &[Vec<String>]) {
    // The first column is of names, which the target's operations have.
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell).into_owned()).collect()).collect();
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.chain([head[i].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut out = String::new();
        for (i, cell) in cells.enumerate() {
            let width = widths[i];
            // The first column is of names, the others of numbers. Writing to a string does not fail.
            let _ = if i == 0 { write!(out, "{cell:<width$}") } else { write!(out, "  {cell:>width$}") };
        }
        text.push_str(out.trim_end());
        text.push('\n');
    };
    line(&mut head.iter().copied());
    for row in &rows {
        line(&mut row.iter().map(String::as_str));
    }
}

/// For the terminal; `rows`: how many types are listed.
#[must_use]
pub fn render_text(c: &PolicyComparison, rows: usize) -> String {
    let mut text = format!(
        "operation {}: {} operations of {} types in {:.1} s, all recorded; measure: {}\n",
        printable(&c.operation),
        c.operations,
        c.types.len(),
        c.length_s,
        printable(&c.measure)
    );
    if c.censored + c.missing > 0 {
        let _ =
            writeln!(text, "left out: {} that had not ended, {} lost while recording", c.censored, c.missing);
    }
    let _ = writeln!(text, "cost and queue: {}", c.model);
    let _ = writeln!(
        text,
        "{} runs from seed {} on, the same draws for all policies; means over runs with 95 % intervals\n",
        c.runs, c.seed
    );
    let head = [
        "policy",
        "recorded %",
        "CPU s/s",
        "slower %",
        "RMSE",
        "relative %",
        "weighted",
        "equal counts",
        "held %",
        "mix %",
        "unobserved",
        "cycles",
        "of s",
        "sample",
        "timeouts",
    ];
    let lines: Vec<Vec<String>> = c
        .policies
        .iter()
        .map(|p| {
            let plain = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), |x| format!("{x:.1}"));
            vec![
                p.policy.clone(),
                mean(Some(&p.rate), 100.0, 1),
                mean(Some(&p.cpu_per_s), 1.0, 4),
                mean(Some(&p.slower), 100.0, 1),
                error(p.rmse.as_ref()),
                mean(p.relative_rmse.as_ref(), 100.0, 2),
                error(p.weighted_rmse.as_ref()),
                error(p.equal_rmse.as_ref()),
                mean(p.coverage.as_ref(), 100.0, 1),
                mean(p.mix_difference.as_ref(), 100.0, 2),
                plain(Some(p.unobserved_types)),
                plain(Some(p.cycles)),
                plain(p.cycle_s),
                plain(p.cycle_sample),
                plain(Some(p.timeouts)),
            ]
        })
        .collect();
    table(&mut text, &head, &lines);
    text.push_str(
        "\nCPU s/s and slower: by the model. RMSE: plain mean of each type against all its operations, in the measure's unit; weighted:\n\
         post-stratified means; equal counts: samples thinned to the smallest; held: intervals that hold the truth; mix: largest\n\
         difference of a type's shares; cycles: how many, their mean length and sample, timeouts\n",
    );
    if !c.quotients.is_empty() {
        text.push_str("\npaired quotients, geometric mean [95 %]\n");
        let lines: Vec<Vec<String>> = c
            .quotients
            .iter()
            .map(|q| {
                vec![q.of.clone(), quotient(&q.rmse), quotient(&q.relative_rmse), quotient(&q.equal_rmse)]
            })
            .collect();
        table(&mut text, &["of", "RMSE", "relative", "equal counts"], &lines);
    }
    types(&mut text, c, rows);
    text
}

/// The most frequent types with the first run's estimates.
fn types(text: &mut String, c: &PolicyComparison, rows: usize) {
    let shown: Vec<_> = c.types.iter().take(rows).collect();
    if shown.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{} of {} types, post-stratified means of run 1: mean ±half interval (recorded)",
        shown.len(),
        c.types.len()
    );
    let mut head = vec!["type", "operations", "truth"];
    head.extend(c.policies.iter().map(|p| p.policy.as_str()));
    let lines: Vec<Vec<String>> = shown
        .iter()
        .map(|t| {
            let mut line = vec![t.name.clone(), t.population.to_string(), digits(t.truth)];
            line.extend(t.policies.iter().map(|(_, n, e)| format!("{} ({n})", error(e.as_ref()))));
            line
        })
        .collect();
    table(text, &head, &lines);
}
