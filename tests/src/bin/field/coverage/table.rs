//! Finished runs as Markdown: a line for each quantity, then one for each quantity of each function.

use super::Record;
use super::fact::{Fact, Quantity};
use crate::durations::figure::relative;
use profiler_core::class::Source;
use profiler_core::stats::counts::wilson;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What the intervals are to hold.
const NOMINAL: f64 = 0.95;
/// A row fails if so few of its intervals would hold the truth with a smaller chance than this.
const CHANCE: f64 = 0.01;
/// The recordings with whose first rounds rules of the estimators were made, by the agent that made them, and the first round that had no part in that.
const MADE_WITH: (&str, u32) = ("c899a987", 4);
/// Of the normal distribution, for bounds of 95 %.
const CRITICAL: f64 = 1.959_964;

/// What stands above the tables.
const INTRODUCTION: &str = "# Coverage of intervals on real programs

Written by `cargo xtask field --coverage`. A run: the program warms up for 3 s; a stretch unobserved (a quarter of the recording's length), the recording (`--budget 2%`; in every
other run four functions are named with `--latency`, because Tithe times no calls by itself), a stretch unobserved, all without a break in the load. The watched process has a nice value of -20, its load and Tithe one of -10.

Programs: **redis** (Debian's source, `-O2`; eight commands in a pipeline; `INFO commandstats`), **memcached** (Debian's source, `-O2`, one worker; sets and gets; `stats`, and a
clock around four functions of its own, `ld --wrap`), **sqlite** (`sqlite-load` of this repository on one thread; counts and clocks its calls, and SQLite counts sorts). The loads check their
results. Each relation between a function's calls and counters was checked with counting
uprobes and without Tithe: exact over 12,800 commands of redis and memcached, to the calls of one operation at each edge over 39,249 operations of SQLite. Functions without such a relation are not here.

What is true, and how far it is known:

| quantity | truth | its own uncertainty |
|---|---|---|
| total | the program's count from the begin to the end of the recording; of totals told as exact from the function's first to its last window, for exact is told of the time for which it was attached | counts are read every 50 ms and interpolated: all calls between the two readings around each edge |
| rate, by its count | that count over the length of the recording. The rate that is told is that of the time that monitoring left the program: between that and the same, more by the measured overhead (upper end of the receipt), anything is possible | that, and the edges |
| rate, by the stretches | calls per second in the two unobserved stretches | what these differ by |
| mean | time in the calls by the program's own clock in the two unobserved stretches, over calls. Its clock counts Tithe's traps, too, so that its word of the recording says nothing | between all of that, and that less what it takes to read the clock, anything is possible; and what the stretches differ by |
| mean on CPU | the same time, less waits for a CPU | the same, and how many of the waits fell into the calls: none, or as many as into any time in which it could run (`run_delay` of its threads) |
| share | that time over the CPU time of the process (user and system, its CPU clock) | likewise |

What the stretches differ by is chance: of a run the larger of its own difference and of the root mean square over the runs of the row; it is added to the interval by squares. What is
merely possible is added as it is. *Truth known to*: both together, over the truth, median.

No truth is to be had, so that nothing is said, of: self shares and self times (no program counts time in a function without those that it calls), times and shares of functions that the
program does not clock, quantiles.

What this truth does not hold: that of times is of the seconds beside the recording, not of the recording; what a hypervisor takes counts as time on a CPU; redis adds up whole us, which
is right in the mean only; what the programs' own clocks leave behind in the pipeline is part of the program. Functions that leave by a jump to another function are judged by their mean
(Tithe times them until that one returns) and not by their share (stacks do not show them all the while).

*Holds*: intervals that hold the truth, of those told; one told as a limit (`<=`, `>=`) holds what is on its side. *Bounds*: 95 % binomial bounds (Wilson) of the share that holds. *Not told*: runs without that figure; neither held nor missed. *Half-width*: of the interval over the value,
median of those with two ends. *Error*: value over truth less one, median. Exact figures are told apart (*exact*: every call was seen) from estimated ones. Bold: so few hold that the chance is below 1 %, were each to hold with 95 % (binomial). Rows of a run share
its moments, so that the lines that pool rows vary more than that test knows.
";

/// So few of `n` intervals that hold the truth would be seen in less than 1 % of the times, were each to hold it with 95 %.
fn is_too_few(held: usize, n: usize) -> bool {
    // P(k) of the binomial distribution, from k = n downwards.
    let mut p = NOMINAL.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut above = 0.0;
    for k in (held + 1..=n).rev() {
        above += p;
        p *= k as f64 / (n - k + 1) as f64 * (1.0 - NOMINAL) / NOMINAL;
    }
    n > 0 && 1.0 - above < CHANCE
}

/// What a figure is, in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Exact,
    Estimated,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Exact => "exact",
            Kind::Estimated => "estimated",
        }
    }

    /// That of what was told; `None`: nothing was.
    fn of(fact: &Fact) -> Option<Kind> {
        fact.told.map(|told| if told.source == Source::Exact { Kind::Exact } else { Kind::Estimated })
    }
}

/// What came of one fact.
#[derive(Clone, Copy, Debug)]
struct Judged {
    kind: Option<Kind>,
    held: bool,
    half_width: Option<f64>,
    error: Option<f64>,
    known_to: f64,
}

/// Judges the facts of one quantity of one function in all runs.
fn judged(facts: &[&Fact]) -> Vec<Judged> {
    let apart = |fact: &Fact| fact.truth.apart / fact.truth.value;
    let squares: f64 = facts.iter().map(|fact| apart(fact).powi(2)).sum();
    let usual = (squares / facts.len().max(1) as f64).sqrt();
    let judge = |fact: &&Fact| {
        let apart = apart(fact).max(usual) * fact.truth.value;
        Judged {
            kind: Kind::of(fact),
            held: fact.holds(apart).unwrap_or(false),
            half_width: fact.told.as_ref().and_then(relative),
            error: fact
                .told
                .filter(|told| !told.at_most && told.high.is_finite())
                .map(|told| told.value / fact.truth.value - 1.0),
            known_to: (apart + fact.truth.within) / fact.truth.value,
        }
    };
    facts.iter().map(judge).collect()
}

/// `12.1`; `-`: there is none.
fn median(values: impl Iterator<Item = f64>, shown: impl Fn(f64) -> String) -> String {
    let mut all: Vec<f64> = values.filter(|x| x.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => "-".to_owned(),
        n => shown(f64::midpoint(all[(n - 1) / 2], all[n / 2])),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// The last columns of a row: told, holds, bounds, half-width, error, truth known to.
fn columns(all: &[Judged], kind: Kind) -> Option<String> {
    let of_kind: Vec<&Judged> = all.iter().filter(|judged| judged.kind == Some(kind)).collect();
    if of_kind.is_empty() {
        return None;
    }
    let held = of_kind.iter().filter(|judged| judged.held).count();
    let holds = format!("{held}/{}", of_kind.len());
    let holds = if is_too_few(held, of_kind.len()) { format!("**{holds}**") } else { holds };
    let bounds = wilson(held as f64, of_kind.len() as f64, CRITICAL);
    let each = || of_kind.iter();
    Some(format!(
        "{} | {holds} | {:.0}..{:.0} % | {} | {} | {} |\n",
        kind.name(),
        bounds.low * 100.0,
        bounds.high * 100.0,
        median(each().filter_map(|j| j.half_width), percent),
        median(each().filter_map(|j| j.error), signed),
        median(each().map(|j| j.known_to), percent),
    ))
}

/// The document, programs in this order.
pub fn document(finished: &[Record], order: &[&str]) -> String {
    let newest = finished.last().map(|record| &record.agent);
    let of_newest = || finished.iter().filter(|record| Some(&record.agent) == newest);
    let good: Vec<&Record> = of_newest().filter(|record| record.trouble.is_empty()).collect();
    let mut text = INTRODUCTION.to_owned();
    let mut rows = String::new();
    let mut pooled: BTreeMap<Quantity, Vec<(u32, Judged)>> = BTreeMap::new();
    let mut by_program: BTreeMap<(usize, Quantity), Vec<Judged>> = BTreeMap::new();
    for (place, program) in order.iter().enumerate() {
        let runs = || good.iter().filter(|record| record.program == *program);
        let mut names: Vec<&str> = Vec::new();
        for fact in runs().flat_map(|record| &record.facts) {
            if !names.contains(&&*fact.function) {
                names.push(&fact.function);
            }
        }
        for name in names {
            for quantity in Quantity::ALL {
                let is = |fact: &&Fact| fact.function == name && fact.quantity == quantity;
                let of_run =
                    |record| -> Vec<(u32, &Fact)> { of_round(record).filter(|(_, fact)| is(fact)).collect() };
                let (rounds, facts): (Vec<u32>, Vec<&Fact>) = runs().flat_map(of_run).unzip();
                let all = judged(&facts);
                rows += &rows_of(program, name, quantity, &all);
                by_program.entry((place, quantity)).or_default().extend(all.iter().copied());
                pooled.entry(quantity).or_default().extend(rounds.into_iter().zip(all));
            }
        }
    }
    text += &pool(&pooled, newest.is_some_and(|agent| agent.contains(MADE_WITH.0)));
    text += "\n## By program\n\n| program | quantity | rows × runs | not told | kind | holds | bounds | half-width | error | truth known to |\n|---|---|--:|--:|---|--:|--:|--:|--:|--:|\n";
    for ((place, quantity), all) in &by_program {
        for columns in [Kind::Exact, Kind::Estimated].iter().filter_map(|kind| columns(all, *kind)) {
            let program = order[*place];
            let _ = write!(
                text,
                "| {program} | {} | {} | {} | {columns}",
                quantity.name(),
                all.len(),
                not_told(all)
            );
        }
    }
    text += "\n## By function\n\n| program | function | quantity | runs | not told | kind | holds | bounds | half-width | error | truth known to |\n|---|---|---|--:|--:|---|--:|--:|--:|--:|--:|\n";
    text += &rows;
    text += &runs(&good, order);
    let troubled = of_newest().filter(|record| !record.trouble.is_empty());
    let troubled: String = troubled
        .map(|record| {
            format!("- {}, round {}: {}\n", record.program, record.round, record.trouble.join("; "))
        })
        .collect();
    if !troubled.is_empty() {
        let _ = write!(text, "\nNot in the tables:\n\n{troubled}");
    }
    let _ = writeln!(text, "\nAgent: {}; runs of others are not shown.", newest.map_or("-", String::as_str));
    text
}

fn of_round<'r>(record: &&'r Record) -> impl Iterator<Item = (u32, &'r Fact)> {
    let round = record.round;
    record.facts.iter().map(move |fact| (round, fact))
}

/// All functions together. `is_split`: the rounds with which rules were made, and the others.
fn pool(pooled: &BTreeMap<Quantity, Vec<(u32, Judged)>>, is_split: bool) -> String {
    let mut text = "\n## Pooled\n\n".to_owned();
    let first = MADE_WITH.1;
    let made = format!("0 to {}", first - 1);
    let parts: &[(&str, std::ops::Range<u32>)] = if is_split {
        &[("all", 0..u32::MAX), (&made, 0..first), ("others", first..u32::MAX)]
    } else {
        &[("all", 0..u32::MAX)]
    };
    if is_split {
        let _ = writeln!(
            text,
            "Rules by which rates are told were made with rounds {made} of each program; the last of them was chosen when the pooled figures under the one before had been seen ([log](log.md), M50).\n"
        );
    }
    text += "| quantity | rounds | rows × runs | not told | kind | holds | bounds | half-width | error | truth known to |\n|---|---|--:|--:|---|--:|--:|--:|--:|--:|\n";
    for (quantity, all) in pooled {
        for (name, rounds) in parts {
            let own: Vec<Judged> =
                all.iter().filter(|(round, _)| rounds.contains(round)).map(|(_, judged)| *judged).collect();
            for columns in [Kind::Exact, Kind::Estimated].iter().filter_map(|kind| columns(&own, *kind)) {
                let (quantity, not_told) = (quantity.name(), not_told(&own));
                let _ = write!(text, "| {quantity} | {name} | {} | {not_told} | {columns}", own.len());
            }
        }
    }
    text
}

fn not_told(all: &[Judged]) -> usize {
    all.iter().filter(|judged| judged.kind.is_none()).count()
}

/// The lines of a quantity of a function: one for each kind in which it was told, or that it never was.
fn rows_of(program: &str, function: &str, quantity: Quantity, all: &[Judged]) -> String {
    let begin =
        format!("| {program} | `{function}` | {} | {} | {} | ", quantity.name(), all.len(), not_told(all));
    let kinds = [Kind::Exact, Kind::Estimated];
    let told: String = kinds.iter().filter_map(|kind| Some(begin.clone() + &columns(all, *kind)?)).collect();
    match (all.is_empty(), told.is_empty()) {
        (true, _) => String::new(),
        (false, true) => format!("{begin}- | - | - | - | - | - |\n"),
        (false, false) => told,
    }
}

/// How the runs went.
fn runs(good: &[&Record], order: &[&str]) -> String {
    let mut text = "\n## Runs\n\nMedians. *Worst second*: of Tithe's own receipt. *Load*: processes that ran or waited for one of the machine's CPUs, average of a minute at the end of the run. *Dearer*: the program's CPU time for a unit of its work (redis, memcached: a command; SQLite: an operation) in the recording, over that of the stretches, less one. It has the cost of monitoring in it, and what other work on the machine made of caches and clock; where it is far from the overhead, above or below, the stretches are a poor truth of that run (rate by the stretches, mean, mean on CPU).\n\n\
                    | program | version | runs | of these with names | watched, s | predicted | worst second | agent's CPU | dearer | most dearer | load |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for program in order {
        let runs: Vec<&&Record> = good.iter().filter(|record| record.program == *program).collect();
        let versions: BTreeSet<&str> = runs.iter().map(|record| &*record.version).collect();
        let dearer = || runs.iter().filter_map(|record| record.dearer);
        let of = |figure: fn(&Record) -> f64| median(runs.iter().map(|r| figure(r)), percent);
        let _ = writeln!(
            text,
            "| {program} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            versions.into_iter().collect::<Vec<_>>().join("; "),
            runs.len(),
            runs.iter().filter(|record| record.named).count(),
            median(runs.iter().map(|r| r.observation.covered_s), |s| format!("{s:.0}")),
            of(|r| r.observation.predicted),
            of(|r| r.observation.worst_second),
            of(|r| r.observation.agent_cpu),
            median(dearer(), signed),
            dearer().max_by(f64::total_cmp).map_or("-".to_owned(), signed),
            median(runs.iter().filter_map(|r| r.load), |load| format!("{load:.1}")),
        );
    }
    text
}

/// Some lines for the person who waits.
pub fn say(record: &Record) {
    let observation = &record.observation;
    let held: Vec<bool> = record.facts.iter().filter_map(|fact| fact.holds(fact.truth.apart)).collect();
    eprintln!(
        "{} round {}: {} of {} intervals hold, {} not told; worst second {:.2} %, dearer {}",
        record.program,
        record.round,
        held.iter().filter(|&&held| held).count(),
        held.len(),
        record.facts.len() - held.len(),
        observation.worst_second * 100.0,
        record.dearer.map_or("-".to_owned(), signed),
    );
    record.trouble.iter().for_each(|what| eprintln!("    {what}"));
    for fact in record.facts.iter().filter(|fact| fact.holds(fact.truth.apart) == Some(false)) {
        let truth = fact.truth;
        eprintln!(
            "    missed: {} of {}: {:?}, true {} ± {} ± {}",
            fact.quantity.name(),
            fact.function,
            fact.told.map(|told| (told.low, told.value, told.high)),
            truth.value,
            truth.within,
            truth.apart,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::fact::Truth;
    use super::*;
    use crate::observe::Observation;
    use profiler_core::estimate::Estimate;

    fn fact(quantity: Quantity, told: Option<(f64, f64, f64)>, truth: f64, apart: f64) -> Fact {
        let estimate = |(low, value, high): (f64, f64, f64)| Estimate {
            low,
            high,
            level: 0.95,
            source: Source::Burst,
            ..Estimate::exact(value, 9)
        };
        Fact {
            function: "f".to_owned(),
            quantity,
            told: told.map(estimate),
            truth: Truth { value: truth, within: 0.0, apart },
        }
    }

    fn record(round: u32, facts: Vec<Fact>) -> Record {
        Record {
            program: "p".to_owned(),
            round,
            began: 0,
            seconds: 40.0,
            load: Some(1.0),
            version: "1".to_owned(),
            agent: "a".to_owned(),
            named: false,
            trouble: Vec::new(),
            observation: Observation::default(),
            dearer: Some(0.012),
            facts,
        }
    }

    #[test]
    fn of_14_runs_ten_are_too_few() {
        assert!(is_too_few(10, 14) && !is_too_few(11, 14));
        assert!(is_too_few(0, 2) && !is_too_few(0, 1) && !is_too_few(0, 0));
    }

    #[test]
    fn what_was_not_told_neither_holds_nor_misses() {
        let told = |value| Some((value - 10.0, value, value + 10.0));
        let total = |told| fact(Quantity::Total, told, 100.0, 0.0);
        let records = [
            record(0, vec![total(told(95.0))]),
            record(1, vec![total(told(120.0))]),
            record(2, vec![total(None)]),
        ];
        let text = document(&records, &["p"]);
        let row = "| p | `f` | total | 3 | 1 | estimated | 1/2 | 9..91 % | 9.4 % | +7.5 % | 0.0 % |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| p | total | 3 | 1 | estimated | 1/2 | 9..91 % |"), "{text}");
        assert!(
            text.contains("| total | all | 3 | 1 | estimated | 1/2 | 9..91 % | 9.4 % | +7.5 % | 0.0 % |"),
            "{text}"
        );
    }

    #[test]
    fn rounds_with_which_rules_were_made_are_pooled_apart_from_the_others() {
        let total =
            |value: f64| vec![fact(Quantity::Total, Some((value - 10.0, value, value + 10.0)), 100.0, 0.0)];
        let of = |round, value| Record {
            agent: "tithe (c899a987), reports by b".to_owned(),
            ..record(round, total(value))
        };
        let text = document(&[of(0, 95.0), of(3, 96.0), of(4, 120.0)], &["p"]);
        for line in [
            "| total | all | 3 | 0 | estimated | 2/3 |",
            "| total | 0 to 3 | 2 | 0 | estimated | 2/2 |",
            "| total | others | 1 | 0 | estimated | 0/1 |",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let text = document(&[record(0, total(95.0))], &["p"]);
        assert!(!text.contains("others |") && text.contains("| total | all | 1 |"), "{text}");
    }

    #[test]
    fn exact_figures_are_told_apart_and_rows_that_hold_too_seldom_are_bold() {
        let exact =
            |value| Fact { told: Some(Estimate::exact(value, 9)), ..fact(Quantity::Total, None, 100.0, 0.0) };
        let mut records: Vec<Record> = (0..3).map(|round| record(round, vec![exact(90.0)])).collect();
        records.push(record(3, vec![fact(Quantity::Total, Some((1.0, 99.0, 200.0)), 100.0, 0.0)]));
        let text = document(&records, &["p"]);
        assert!(
            text.contains(
                "| p | `f` | total | 4 | 0 | exact | **0/3** | 0..56 % | 0.0 % | -10.0 % | 0.0 % |"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "| p | `f` | total | 4 | 0 | estimated | 1/1 | 21..100 % | 100.5 % | -1.0 % | 0.0 % |"
            ),
            "{text}"
        );
    }

    /// The stretches of one run agree by chance and are off by as much as those of the others.
    #[test]
    fn what_stretches_differ_by_is_that_of_all_runs_of_a_row() {
        let told = Some((99.0, 100.0, 101.0));
        let close = fact(Quantity::Mean, told, 104.0, 0.0);
        let apart = fact(Quantity::Mean, told, 104.0, 8.0);
        assert_eq!(close.holds(close.truth.apart), Some(false));
        let all = judged(&[&close, &apart]);
        assert!(all.iter().all(|judged| judged.held), "{all:?}");
        assert!(!judged(&[&close])[0].held);
    }

    #[test]
    fn runs_with_trouble_and_of_other_agents_are_not_counted() {
        let total = || vec![fact(Quantity::Total, Some((1.0, 2.0, 3.0)), 9.0, 0.0)];
        let old = Record { agent: "old".to_owned(), ..record(0, total()) };
        let bad = Record { trouble: vec!["it died".to_owned()], ..record(1, total()) };
        let text = document(&[old, bad, record(2, total())], &["p"]);
        assert!(text.contains("| p | `f` | total | 1 | 0 |"), "{text}");
        assert!(text.contains("- p, round 1: it died"), "{text}");
    }
}
