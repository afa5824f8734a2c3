//! Quantiles of response times per class of request, against a truth that nobody observed.
//!
//! `sqlite-requests --twins` serves every request twice, in turns: through the function that is named to the agent, and through a twin of the
//! same code. The truth of a quantile is that of the twins. Finished runs are kept in `target/.../bench/`, so that a run can be resumed.

mod run;
mod truth;

use crate::Options;
use crate::durations::{Figure, Pair, Told, resumed, series};
use crate::measure::Table;
use anyhow::Result;
use run::{QUANTILES, Run, Seen, USERS, one_run};

/// Percent of the program's CPU time, unless `--budgets` says otherwise.
const BUDGET: f64 = 5.0;
/// Length of a run, s.
const RUN_S: u64 = 5;

/// What was told and what is true; `None` where too few requests say what is true.
fn pair(seen: &Seen) -> Option<Pair> {
    let truth = match seen.told {
        Some(told) => seen.truth.towards(told.value)?,
        None => seen.truth.towards(seen.truth.value)?,
    };
    Some(Pair { told: seen.told, truth })
}

/// The same with a lower end that allows for all of the price of screening inside the request.
fn with_price(pair: &Pair, price_ns: f64) -> Pair {
    let lower = |told: Told| Told { low: (told.low - price_ns).max(0.0), ..told };
    Pair { told: pair.told.map(lower), ..*pair }
}

/// Thousands of ns with a decimal: `12.3`.
fn us(ns: f64) -> String {
    format!("{:.1}", ns / 1e3)
}

/// `P50`, `P99`, `P99.9`.
fn order(p: f64) -> String {
    format!("P{}", (p * 1e4).round() / 1e2)
}

/// The cells of a row.
fn row(class: &str, p: f64, seen: &[&Seen]) -> (Vec<String>, Figure) {
    let judged: Vec<(&Seen, Pair)> =
        seen.iter().filter_map(|s| pair(s).map(|of_both| (*s, of_both))).collect();
    let figure = Figure::of_pairs(judged.iter().map(|(_, pair)| pair));
    let allowing = Figure::of_pairs(judged.iter().map(|(s, pair)| with_price(pair, s.price_ns)));
    let told =
        || judged.iter().filter_map(|(s, pair)| pair.told.filter(|t| t.high.is_some()).map(|t| (s, t)));
    let percent = |values: &mut dyn Iterator<Item = f64>| {
        let found = series(values);
        if found.n() == 0 { String::new() } else { format!("{:.1}", found.median() * 100.0) }
    };
    let less = |values: &mut dyn Iterator<Item = f64>| {
        let found = series(values);
        if found.n() == 0 { String::new() } else { format!("{:+.0}", found.median()) }
    };
    let before = series(seen.iter().filter_map(|s| s.before).map(|b| b.own_ns / b.twin.value));
    let unknown = seen.len() - judged.len();
    let few = if unknown > 0 { format!(" ({unknown} unknown)") } else { String::new() };
    let cells = vec![
        format!("{class}, {}", order(p)),
        format!("{:.0}", series(seen.iter().map(|s| s.n as f64)).median()),
        us(series(seen.iter().map(|s| s.truth.value)).median()),
        us(series(seen.iter().filter_map(|s| s.told).map(|t| t.value)).median()),
        figure.show_error(),
        format!("{}{few}", figure.show_held()),
        allowing.show_held(),
        percent(&mut told().map(|(s, t)| (t.high.unwrap_or(f64::NAN) - t.low) / 2.0 / s.truth.value)),
        percent(&mut judged.iter().filter_map(|(s, _)| s.truth.relative())),
        less(&mut told().map(|(s, t)| t.value - s.truth.value)),
        less(&mut judged.iter().map(|(s, _)| s.own_ns - s.truth.value)),
        format!("{:.3}", before.median()),
    ];
    (cells, figure)
}

/// The table of a number of users.
fn text(runs: &[&Run]) -> String {
    let mut table = Table::new(&[
        "class, quantile",
        "requests",
        "true, us",
        "told, us",
        "error, %",
        "holds",
        "with the price",
        "half-width, %",
        "the truth's own, %",
        "told less true, ns",
        "own clock less true, ns",
        "over its twin before",
    ]);
    let mut classes: Vec<&str> = Vec::new();
    for seen in runs.iter().flat_map(|run| &run.seen) {
        if !classes.contains(&seen.class.as_str()) {
            classes.push(&seen.class);
        }
    }
    let (mut seldom, mut judged, mut unknown) = (0, 0, Vec::new());
    for class in classes {
        for p in QUANTILES {
            let all = runs.iter().flat_map(|run| &run.seen);
            let of: Vec<&Seen> = all.filter(|seen| seen.class == class && seen.p == p).collect();
            if of.is_empty() {
                continue;
            }
            let (cells, figure) = row(class, p, &of);
            // Of too few requests nobody knows the truth.
            if figure.told == 0 {
                unknown.push(format!("{class} {}", order(p)));
                continue;
            }
            table.row(&cells);
            judged += 1;
            seldom += usize::from(figure.misses());
        }
    }
    let control = || runs.iter().flat_map(|run| &run.seen).filter_map(|seen| seen.before);
    let control: Vec<bool> = control().filter_map(|before| before.twin.holds(before.own_ns)).collect();
    let percent = |of: fn(&Run) -> f64| series(runs.iter().map(|run| of(run) * 100.0)).show(2);
    let ns = |of: fn(&Run) -> f64| series(runs.iter().map(|run| of(run))).show(0);
    format!(
        "{table}\n{} runs; rows whose intervals hold the truth too seldom: {seldom} of {judged}; without a known truth in any run: {}. By the receipt screening took {} % of the program's CPU time ({} ns a request), \
         monitoring as a whole {} %; by the program's own clock a request takes {} ns more than its twin (median of the pairs; before the agent came {} ns). The agent timed {} % of the requests of the recorded span; {} were in no histogram. Before the agent came the function's own quantiles were in the twin's interval {} of {} times.\n",
        runs.len(),
        if unknown.is_empty() { "none".to_owned() } else { unknown.join(", ") },
        percent(|run| run.screening),
        ns(|run| run.price_ns),
        percent(|run| run.spent),
        ns(|run| run.added_ns),
        ns(|run| run.added_before_ns),
        percent(|run| run.timed),
        runs.iter().map(|run| run.untimed).sum::<u64>(),
        control.iter().filter(|holds| **holds).count(),
        control.len(),
    )
}

/// The cell.
pub fn request_quantiles(options: &Options) -> Result<String> {
    let budget = options.budgets.as_ref().and_then(|list| list.first()).copied().unwrap_or(BUDGET);
    let seconds = options.seconds_or(RUN_S);
    let name = format!("quantiles-{budget}-{seconds}s");
    let wanted = options.rounds as usize * USERS.len();
    let runs = resumed(&name, options.fresh, wanted, |made| one_run(made, budget, seconds))?;
    let mut tables = String::new();
    for (users, pause_us) in USERS {
        let of: Vec<&Run> = runs.iter().filter(|run| run.users == users).collect();
        let many = if users == 1 { "1 user".to_owned() } else { format!("{users} users") };
        tables.push_str(&format!("### {many}, {pause_us} us of pause\n\n{}\n", text(&of)));
    }
    Ok(format!(
        "{tables}Runs of {seconds} s at {budget} %. The truth is the quantile of the *twins*: each request comes twice, of the same type and for the same rows, through `serve_request`, \
         which the agent watches, and through a twin of the same code that it does not, in an order that is drawn, with the user's pause between them. Medians over runs. *Holds*: runs whose interval \
         holds the truth, of those in which both ends of the truth's own interval are known (McNemar's standard error over the pairs, at order statistics; its side is added by squares); \
         *unknown*: the others; bold: fewer than 95 % by the binomial test at 1 %. *With the price*: the same, were the lower end less by the price of screening a request, which may lie inside of it. *Own clock less true*: the program's own clock on the requests that were watched; it counts all of the \
         traps. *Over its twin before*: the same quantile of the function over that of its twin in 1.5 s before the agent came.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::run::Before;
    use super::truth::Bounded;
    use super::*;

    fn seen(told: f64, high: Option<f64>) -> Seen {
        Seen {
            class: "a".to_owned(),
            p: 0.99,
            n: 1000,
            told: Some(Told { value: told, low: told * 0.98, high: Some(told * 1.02), at_most: false }),
            truth: Bounded { value: 10_000.0, low: Some(9_950.0), high },
            before: Some(Before { own_ns: 9_900.0, twin: Bounded { value: 9_900.0, low: None, high: None } }),
            price_ns: 200.0,
            own_ns: 11_000.0,
        }
    }

    #[test]
    fn runs_that_do_not_know_the_truth_are_not_judged() {
        let runs = [seen(10_160.0, Some(10_050.0)), seen(10_400.0, Some(10_050.0)), seen(10_400.0, None)];
        let (cells, figure) = row("a", 0.99, &runs.iter().collect::<Vec<_>>());
        // 0.02 x 10,400 = 208 of 400.
        assert_eq!((figure.held, figure.told), (1, 2));
        assert_eq!(cells[..3], ["a, P99", "1000", "10.0"]);
        // 208 + 200.
        assert_eq!(cells[4..7], ["+2.8", "1 of 2 (1 unknown)", "2 of 2"]);
        assert_eq!(cells[9..], ["+280", "+1000", "1.000"]);
    }

    #[test]
    fn orders_are_named_as_in_the_report() {
        assert_eq!(QUANTILES.map(order), ["P50", "P99", "P99.9"]);
    }
}
