//! Operations as text: a table of classes for each, and what is said of the sample.

use super::TextOptions;
use super::names::shorten;
use super::table::{BOLD, number, styled, wrap};
use super::units::{count, duration, duration_ns, percent, si};
use profiler_core::estimate::Estimate;
use profiler_core::report::{OperationReport, Report};

/// Widest name of a class.
const NAME: usize = 40;
/// An operation that was watched for less than this part of the run is said to be.
const WHOLE: f64 = 0.95;
/// The upper end of a bucket of response times over its lower end, at most: one 32nd, and its lower end is a whole number of ns.
const BUCKET: f64 = 1.04;
/// Classes named in a sentence.
const NAMED: usize = 5;

/// All operations; empty without any.
pub(super) fn text(report: &Report, options: TextOptions) -> String {
    let mut out = String::new();
    for operation in &report.operations {
        out.push('\n');
        out.push_str(&styled(&title(operation), BOLD, options.colours));
        out.push('\n');
        for line in table(operation, options) {
            out.push_str(line.trim_end());
            out.push('\n');
        }
        for line in lines(operation) {
            out.push_str(&format!("  {}\n", wrap(&line, options.width.saturating_sub(2), "    ")));
        }
    }
    out
}

/// The heading of an operation.
pub(super) fn title(operation: &OperationReport) -> String {
    let part = if operation.watched_share < WHOLE {
        format!(" in {:.2} s watched ({} of the run)", operation.watched_s, percent(operation.watched_share))
    } else {
        String::new()
    };
    format!(
        "Operation {} ({}): {} at {}/s{part}, {} recorded, policy {}",
        operation.name,
        operation.bounds,
        count(operation.population as f64),
        si(operation.rate_hz),
        count(operation.recorded as f64),
        operation.policy
    )
}

/// Columns that go first where the terminal is too narrow.
const DISPENSABLE: [&str; 3] = ["DEVIATION", "CALLS", "OFF CPU"];

/// Heading and rows; columns without any content are left out.
pub(super) fn cells(operation: &OperationReport, rows: usize) -> Vec<Vec<String>> {
    let heading = ["CLASS", "COUNT", "MEAN TIME", "P50", "P99", "P99.9"];
    let heading = heading.iter().chain(&["DEVIATION", "RECORDED", "OFF CPU", "CALLS", "MEASURE"]);
    let mut cells: Vec<Vec<String>> = vec![heading.map(|name| (*name).to_owned()).collect()];
    for class in operation.classes.iter().take(rows) {
        cells.push(vec![
            class.name.clone(),
            count(class.population as f64),
            duration_ns(class.mean_ns.value),
            quantile(&class.quantiles_ns, 0.5),
            quantile(&class.quantiles_ns, 0.99),
            quantile(&class.quantiles_ns, 0.999),
            class.deviation_ns.map(duration_ns).unwrap_or_default(),
            count(class.recorded as f64),
            number(class.off_cpu_ns.as_ref(), |e| duration_ns(e.value)),
            class.calls.map(|c| format!("{c:.1}")).unwrap_or_default(),
            number(class.measure.as_ref(), |e| si(e.value)),
        ]);
    }
    let kept: Vec<bool> =
        (0..cells[0].len()).map(|i| cells.iter().skip(1).any(|row| !row[i].is_empty())).collect();
    for row in &mut cells {
        let mut kept = kept.iter();
        // OK because each row has a cell for each heading.
        row.retain(|_| kept.next().is_some_and(|kept| *kept));
    }
    cells
}

/// Heading and rows, padded.
fn table(operation: &OperationReport, options: TextOptions) -> Vec<String> {
    let rows = options.rows;
    let mut cells = cells(operation, rows);
    for row in cells.iter_mut().skip(1) {
        row[0] = shorten(&row[0], NAME);
    }
    let mut kept: Vec<usize> = (0..cells[0].len()).collect();
    let width = |i: &usize| cells.iter().map(|row| row[*i].chars().count()).max().unwrap_or(0);
    for name in DISPENSABLE {
        if kept.iter().map(|i| width(i) + 2).sum::<usize>() > options.width + 2 {
            kept.retain(|i| cells[0][*i] != name);
        }
    }
    let widths: Vec<usize> = kept.iter().map(width).collect();
    let mut lines: Vec<String> = cells
        .iter()
        .map(|row| {
            let mut line = String::new();
            for (place, (i, width)) in kept.iter().zip(&widths).enumerate() {
                if place == 0 {
                    line.push_str(&format!("{:<width$}", row[*i]));
                } else {
                    line.push_str(&format!("  {:>width$}", row[*i]));
                }
            }
            line
        })
        .collect();
    if operation.classes.len() > rows {
        lines.push(format!("… and {} more (--rows)", operation.classes.len() - rows));
    }
    lines
}

/// A quantile of response times; empty where it is not known.
fn quantile(quantiles: &[(f64, Estimate)], p: f64) -> String {
    quantiles.iter().find(|(order, _)| *order == p).map(|(_, e)| at_most_ns(e)).unwrap_or_default()
}

/// The value, with its interval where operations that were lost, or what watching put into it, may move it by more than a bucket; where it may lie anywhere above,
/// its lower end.
fn at_most_ns(e: &Estimate) -> String {
    if !e.high.is_finite() {
        return format!("≥ {}", duration_ns(e.low));
    }
    if e.high > e.low * BUCKET { duration(e) } else { duration_ns(e.value) }
}

/// "P50 2.00 ms, P99 5.31 ms, P99.9 5.37 ms"; empty where they are not known.
fn quantiles(quantiles: &[(f64, Estimate)]) -> String {
    let one = |(p, e): &(f64, Estimate)| format!("P{} {}", p * 100.0, at_most_ns(e));
    quantiles.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What is said of the sample.
pub(super) fn lines(operation: &OperationReport) -> Vec<String> {
    let o = operation;
    let mut lines = Vec::new();
    let times = quantiles(&o.quantiles_ns);
    if o.classes.len() > 1 && !times.is_empty() {
        lines.push(format!("response times of all classes together: {times}"));
    }
    if o.untimed > 0 && !times.is_empty() {
        lines.push(format!(
            "{} more have no known time (their end was not seen, or all histograms had been given): quantiles allow for any time of theirs",
            count(o.untimed as f64)
        ));
    }
    let measure = if o.measure.is_empty() { String::new() } else { format!("measure: {}; ", o.measure) };
    let mix = o.mix_difference.map_or_else(String::new, |d| {
        format!("; largest difference of a class's shares in sample and population {}", percent(d))
    });
    lines.push(format!("{measure}average rate {}{mix}", percent(o.average_rate)));
    let unobserved: Vec<&str> =
        o.classes.iter().filter(|c| c.recorded == 0).map(|c| c.name.as_str()).collect();
    if !unobserved.is_empty() && o.policy != "none" {
        let more = unobserved.len().saturating_sub(NAMED);
        let names = unobserved[..unobserved.len().min(NAMED)].join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(format!("not in the sample: {names}{more}"));
    }
    let (stretches, population) = (o.classes.iter().map(|c| c.unobserved).sum::<u64>(), o.population.max(1));
    if !o.measure.is_empty() && stretches > 0 && o.recorded > 0 {
        lines.push(format!(
            "the measure does not speak of {} of the operations: nothing was recorded in their stretches",
            percent(stretches.min(population) as f64 / population as f64)
        ));
    }
    lines.push(match o.cycle_s {
        Some((least, mean, most)) => format!(
            "cycles: {} ({} by the time limit), {} to {}, mean {}",
            o.cycles,
            o.timeouts,
            duration_ns(least * 1e9),
            duration_ns(most * 1e9),
            duration_ns(mean * 1e9)
        ),
        None => "cycles: none ended".to_owned(),
    });
    lines.extend(losses(o));
    lines.push(format!(
        "cost: screening {} (number times price), inside recorded operations {}",
        duration_ns(o.screening_s * 1e9),
        duration_ns(o.recording_s * 1e9)
    ));
    lines
}

/// What has no begin, no end or no record.
fn losses(o: &OperationReport) -> Option<String> {
    let unmatched = match (o.without_end, o.without_begin) {
        (Some(end), Some(begin)) => {
            // Those whose thread ended inside have no end, and are not among what did not match.
            let (n, how) = match (begin, end) {
                (0, 1..) => (o.unmatched, "up to "),
                (_, 1..) => (begin, "at least "),
                (_, 0) => (begin, ""),
            };
            [(end, "", "without an end"), (n, how, "ends without a begin or begins without room")]
        }
        _ => [(o.unmatched, "", "unmatched"), (0, "", "")],
    };
    let others = [(o.censored, "", "recorded and not ended"), (o.dropped, "", "records lost")];
    let all = unmatched.into_iter().chain(others).filter(|(n, ..)| *n > 0);
    let all: Vec<String> = all.map(|(n, how, text)| format!("{how}{} {text}", count(n as f64))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}
