//! Writing class tables.

use super::super::{
    Estimand, Objective, PlanClass, Problem, Range, UNPRICED_REPORT_S, USUAL_SPREAD, WindowRules,
};
use std::fmt::Write;

/// The problem as a class table. Reading it back gives the same numbers to the last bit, and so the same plan.
///
/// Classes whose names are not unique, and others are derived from, get a number behind the name.
#[must_use]
pub fn to_toml(problem: &Problem) -> String {
    let mut out = String::from("# Class table of a plan: solve it again with `tithe plan --classes FILE`.\n");
    let mut line = |key: &str, value: &str| {
        // OK because writing to a string cannot fail.
        let _ = writeln!(out, "{key} = {value}");
    };
    if problem.priced {
        line("budget_cpu", &number(problem.budget, 0));
        line("sample_time_us", &number(problem.sampling.price_s, 6));
    } else {
        line("max_frequency", &number(problem.budget / UNPRICED_REPORT_S, 0));
    }
    if problem.kept > 0.0 {
        line("kept_for_bursts_cpu", &number(problem.kept, 0));
    }
    line("cpus", &number(problem.target_cpu, 0));
    line("min_sampling_hz", &number(problem.sampling.min_hz, 0));
    if problem.sampling.max_hz.is_finite() {
        line("max_sampling_hz", &number(problem.sampling.max_hz, 0));
    }
    if let Some(burst) = problem.burst {
        line("min_burst_ms", &number(burst.min_s, 3));
        if problem.priced {
            line("attach_cost_us", &number(burst.attach_cost_s, 6));
        }
        line("burst_cycle_ms", &number(burst.cycle_s, 3));
    }
    if problem.objective != Objective::default() {
        line("objective", &quoted(problem.objective.name()));
    }
    if let Some(windows) = problem.windows {
        write_windows(&mut line, &windows);
    }
    line("horizon_s", &number(problem.horizon_s, 0));
    let names = names(problem);
    for (class, name) in problem.classes.iter().zip(&names) {
        write_class(&mut out, class, name, &names, problem.priced);
    }
    out
}

/// How windows are made.
fn write_windows(line: &mut impl FnMut(&str, &str), rules: &WindowRules) {
    let prices = rules.prices;
    line("link_cost_us", &number(prices.attach_s, 6));
    line("detach_delay_us", &number(prices.delay_s, 6));
    line("fresh_detach_delay_us", &number(prices.fresh_delay_s, 6));
    line("fresh_ms", &number(prices.fresh_s, 3));
    line("host_cpus", &prices.cpus.to_string());
    if let Some(limit_s) = rules.limit_s {
        line("burst_limit_us", &number(limit_s, 6));
    }
    line("closest_windows_ms", &number(rules.closest_s, 3));
    if rules.most_per_s.is_finite() {
        line("most_windows_hz", &number(rules.most_per_s, 0));
    }
    line("shortest_window_ms", &number(rules.shortest_s, 3));
    line("brief_windows_us", &number(rules.brief_s, 6));
}

/// One class, called `name`. `names`: of all classes; `priced`: costs are times.
fn write_class(out: &mut String, class: &PlanClass, name: &str, names: &[String], priced: bool) {
    out.push_str("\n[[class]]\n");
    let mut line = |key: &str, value: &str| {
        // OK because writing to a string cannot fail.
        let _ = writeln!(out, "{key} = {value}");
    };
    line("name", &quoted(name));
    if let Some(id) = class.id {
        line("id", &id.to_string());
    }
    line("rate_hz", &number(class.rate_hz.value, 0));
    interval(&mut line, class.rate_hz, "rate_low_hz", "rate_high_hz");
    line("rho", &number(class.rho.value, 0));
    interval(&mut line, class.rho, "rho_low", "rho_high");
    if priced {
        line("cost_us", &number(class.tau_s, 6));
    }
    let optional = [
        ("weight", class.weight, 1.0, 0),
        ("detect_us", class.detect_s, 0.0, 6),
        ("min_rate_hz", class.min_rate_hz, 0.0, 0),
        ("interruptions_hz", class.interruptions_hz, 0.0, 0),
        ("ratio", class.ratio, 1.0, 0),
        ("dispersion", class.dispersion, 1.0, 0),
    ];
    for (key, value, usual, shift) in optional {
        if value != usual {
            line(key, &number(value, shift));
        }
    }
    if let Some(calls) = class.calls_seen {
        line("calls_seen", &calls.to_string());
    }
    let windows = &class.windows;
    if windows.first {
        line("first", "true");
    }
    if windows.only {
        line("bursts_only", "true");
    }
    if let Some(limit_s) = windows.limit_s {
        line("burst_limit_us", &number(limit_s, 6));
    }
    if windows.spread != USUAL_SPREAD {
        line("spread", &number(windows.spread, 0));
    }
    if class.must_trace {
        line("must_trace", "true");
    }
    if class.never_trace {
        line("never_trace", "true");
    }
    if let Some(from) = class.derived_from {
        line("derived_from", &quoted(&names[from]));
    }
    if let Some(sigma) = class.sigma_s {
        line("sigma_us", &number(sigma, 6));
    }
    match class.estimand {
        Estimand::Mean => {}
        Estimand::Total => line("estimand", "\"total\""),
        Estimand::Rate => line("estimand", "\"rate\""),
    }
}

fn interval(line: &mut impl FnMut(&str, &str), range: Range, low: &str, high: &str) {
    if range.low != range.value {
        line(low, &number(range.low, 0));
    }
    if range.high != range.value {
        line(high, &number(range.high, 0));
    }
}

/// The shortest decimal that reads back as `x`, times `10^shift`.
fn number(x: f64, shift: i32) -> String {
    let text = format!("{x:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    // OK because `{:e}` writes a whole number there.
    let exponent = exponent.parse::<i32>().unwrap_or(0) + shift;
    if exponent == 0 { digits.to_owned() } else { format!("{digits}e{exponent}") }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Names for the file: not empty, and unique where another class refers to them.
fn names(problem: &Problem) -> Vec<String> {
    let mut names: Vec<String> = problem
        .classes
        .iter()
        .enumerate()
        .map(
            |(index, class)| {
                if class.name.is_empty() { format!("class {index}") } else { class.name.clone() }
            },
        )
        .collect();
    for from in problem.classes.iter().filter_map(|class| class.derived_from) {
        let taken = |name: &str| names.iter().filter(|other| *other == name).count() > 1;
        if taken(&names[from]) {
            let mut number = from;
            let base = names[from].clone();
            while names.contains(&format!("{base} #{number}")) {
                number += names.len();
            }
            names[from] = format!("{base} #{number}");
        }
    }
    names
}
