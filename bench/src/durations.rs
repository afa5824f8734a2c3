//! Durations of functions whose true times are known: 100 ns to 1 ms, four entry forms, three languages, one and eight threads.
//!
//! The truth is a twin of the same code that nobody watches, called in turns with the function and timed by the program in batches; true
//! calls are the program's own count. Finished runs are kept in `target/.../bench/`, so that a run can be resumed.

pub mod run;
pub mod truth;
pub mod verdict;

use crate::Options;
use crate::measure::{Series, Table};
use anyhow::{Context, Result, bail, ensure};
use run::{DURATIONS_NS, FORMS, Run, Seen, again, all, is_whole, one_run};
pub use run::{Pair, Told, start_before_others};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
pub use truth::Truth;
pub use verdict::Figure;
use verdict::{AIMED_AT, aim_ns};

/// Percent of the program's CPU time, unless `--budgets` says otherwise.
const BUDGET: f64 = 5.0;
/// Length of a run, s.
const RUN_S: u64 = 5;
const THREADS: [u32; 2] = [1, 8];
/// Languages, by the names of the programs.
const LANGUAGES: [(&str, &str); 3] = [("c", "C"), ("cpp", "C++, with an unwinder"), ("rust", "Rust")];

/// Names of the parts, for `--list`.
pub fn parts() -> impl Iterator<Item = &'static str> {
    LANGUAGES.iter().map(|(name, _)| *name)
}

/// Where finished runs are kept.
fn folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = program.parent().and_then(|folder| folder.parent()).context("no target directory")?;
    let folder = built.join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The file of finished runs.
fn path(name: &str) -> Result<PathBuf> {
    Ok(folder()?.join(format!("{name}.json")))
}

/// Renamed into place, so that a bench that is ended here loses nothing.
fn keep<R: Serialize>(path: &Path, runs: &[R]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(runs)?)
        .and_then(|()| std::fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Runs of a name: those that are kept, and new ones until there are as many as are wanted. `one_run` is told how many there are.
pub fn resumed<R: Serialize + DeserializeOwned>(
    name: &str,
    fresh: bool,
    wanted: usize,
    mut one_run: impl FnMut(usize) -> Result<R>,
) -> Result<Vec<R>> {
    let path = path(name)?;
    let stored = std::fs::read(&path).ok().filter(|_| !fresh);
    let mut runs: Vec<R> = match stored {
        Some(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is of another bench; try --fresh", path.display()))?,
        None => Vec::new(),
    };
    while runs.len() < wanted {
        eprintln!("{name}: run {} of {wanted}", runs.len() + 1);
        runs.push(one_run(runs.len())?);
        keep(&path, &runs)?;
    }
    Ok(runs)
}

/// The runs of a language: `--repeat` of each number of threads.
fn runs(language: &str, budget: f64, options: &Options) -> Result<Vec<Run>> {
    let wanted = options.rounds as usize * THREADS.len();
    let name = format!("durations-kept-{language}-{budget}");
    let recordings = folder()?.join(&name);
    if options.again {
        let kept: Vec<Run> = (0..wanted)
            .map(|made| recordings.join(made.to_string()))
            .take_while(|recording| is_whole(recording))
            .map(|recording| again(&recording))
            .collect::<Result<_>>()?;
        ensure!(!kept.is_empty(), "no recording in {}", recordings.display());
        return Ok(kept);
    }
    resumed(&name, options.fresh, wanted, |made| {
        let recording = recordings.join(made.to_string());
        one_run(&recording, language, THREADS[made % THREADS.len()], budget, options.seconds_or(RUN_S))
    })
}

/// Figures of runs.
pub fn series(values: impl Iterator<Item = f64>) -> Series {
    let mut series = Series::default();
    values.for_each(|value| series.push(value));
    series
}

/// `120`, `1,034`, `10,100`: ns without decimals.
pub fn ns(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The half-width of a figure, ns and % of the truth; bold above the aim.
fn width(figure: &Figure, aim: f64) -> String {
    if figure.half.n() == 0 {
        return "none".to_owned();
    }
    if figure.half.median().is_infinite() {
        return "**open**".to_owned();
    }
    let text = format!("{} ({:.1} %)", ns(figure.half.median()), figure.relative.median() * 100.0);
    if figure.half.median() > aim { format!("**{text}**") } else { text }
}

/// The cells of a row of the table.
fn row(duration: usize, form: usize, runs: &[&Seen]) -> Vec<String> {
    let [mean, p50, calls] = figures(runs);
    let truth = series(runs.iter().map(|seen| seen.p50.truth.value)).median();
    // The way may differ from run to run; the last is shown.
    let last = runs.last();
    let aim = aim_ns(duration, last.is_some_and(|seen| seen.stepped), truth);
    let timed = series(runs.iter().filter(|seen| seen.mean.told.is_some()).map(|seen| seen.timed as f64));
    let twin = series(runs.iter().filter_map(|seen| seen.over_twin));
    vec![
        format!("{}, {}", FORMS[form], ns(DURATIONS_NS[duration] as f64)),
        last.map_or_else(String::new, |seen| seen.way.clone()),
        ns(truth),
        if twin.n() > 0 { format!("{:.3}", twin.median()) } else { "always watched".to_owned() },
        ns(timed.median()),
        p50.show_error(),
        p50.show_held(),
        width(&p50, aim),
        mean.show_error(),
        mean.show_held(),
        width(&mean, aim),
        ns(aim),
        calls.show_error(),
        calls.show_held(),
    ]
}

fn figures(runs: &[&Seen]) -> [Figure; 3] {
    [
        Figure::of(runs, |seen| seen.mean),
        Figure::of(runs, |seen| seen.p50),
        Figure::of(runs, |seen| seen.calls),
    ]
}

/// The table of a language and a number of threads.
fn table(runs: &[&Run]) -> String {
    let mut table = Table::new(&[
        "entry, nominal ns",
        "entry site, end",
        "true P50, ns",
        "over its twin",
        "timed",
        "P50: error, %",
        "holds",
        "half-width, ns",
        "mean: error, %",
        "holds",
        "half-width, ns",
        "aim, ns",
        "calls: error, %",
        "holds",
    ]);
    let (mut seldom, mut wide, mut untold) = ([0; 3], [0; 2], 0);
    let mut own = Series::default();
    for (duration, form) in all() {
        let of: Vec<&Seen> = runs
            .iter()
            .flat_map(|run| &run.functions)
            .filter(|seen| (seen.duration, seen.form) == (duration, form))
            .collect();
        let [mean, p50, calls] = figures(&of);
        for (count, figure) in seldom.iter_mut().zip([&p50, &mean, &calls]) {
            *count += usize::from(figure.misses());
        }
        let truth = series(of.iter().map(|seen| seen.p50.truth.value)).median();
        let aim = aim_ns(duration, of.last().is_some_and(|seen| seen.stepped), truth);
        for (count, figure) in wide.iter_mut().zip([&p50, &mean]) {
            *count += usize::from(figure.half.n() == 0 || figure.half.median() > aim);
        }
        untold += of.iter().filter(|seen| seen.mean.told.is_none()).count();
        if mean.own.n() > 0 {
            own.push(mean.own.median());
        }
        table.row(&row(duration, form, &of));
    }
    let spent = series(runs.iter().map(|run| run.spent * 100.0));
    // One figure of a run: its four functions share what happens to it.
    let interrupted: Vec<f64> = runs
        .iter()
        .filter_map(|run| {
            let longest = run.functions.iter().filter(|seen| seen.duration == DURATIONS_NS.len() - 1);
            let of: Option<Vec<f64>> = longest.map(|seen| seen.interrupted).collect();
            of.map(|of| of.iter().sum::<f64>() / of.len().max(1) as f64)
        })
        .collect();
    let interrupted = truth::mean(&interrupted).map_or_else(String::new, |mean| {
        let (percent, half) = ((mean.value - 1.0) * 100.0, mean.half * 100.0);
        let n = interrupted.len();
        format!(" With the agent there the mean of the twins of 1 ms, over their P50, differs by {percent:+.2} +-{half:.2} % from that without it (mean of n = {n} runs).")
    });
    format!(
        "{table}\n{} runs; monitoring took {} % of the program's CPU time by the receipt. Functions whose intervals hold the truth too seldom: P50 {}, mean {}, calls {} of {}; whose \
         half-width is above the aim: P50 {}, mean {}. Without any duration: {untold} of {} (function, run). The truth's own half-width over that of the mean: {}.{interrupted}\n",
        runs.len(),
        spent.show(1),
        seldom[0],
        seldom[1],
        seldom[2],
        all().count(),
        wide[0],
        wide[1],
        all().count() * runs.len(),
        own.show(2),
    )
}

/// The cell.
pub fn durations(options: &Options) -> Result<String> {
    let part = options.part.as_deref();
    if let Some(part) = part
        && parts().all(|name| name != part)
    {
        bail!("durations has the parts c, cpp and rust");
    }
    let budget = options.budgets.as_ref().and_then(|list| list.first()).copied().unwrap_or(BUDGET);
    let mut text = String::new();
    for (language, title) in LANGUAGES.into_iter().filter(|(name, _)| part.is_none_or(|part| part == *name)) {
        let runs = runs(language, budget, options)?;
        for threads in THREADS {
            let of: Vec<&Run> = runs.iter().filter(|run| run.threads == threads).collect();
            let many = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
            text.push_str(&format!("### {title}, {many}\n\n{}\n", table(&of)));
        }
    }
    text.push_str(&format!(
        "Runs of {} s at {budget} %, all functions of a language in one program, `--latency` on each. The truth is a twin of the same code that is not watched, called next to the \
         function, in the same thread and run: P50 and mean of the time of a call in batches of 50, 17, 5, 1 and 1 calls (the code is the same loop in every call, \
         so that a batch that nobody interrupts has the time of each of its calls); P50 over the whole run, the mean of one thread over 1 s before the agent came and 1 s after it \
         left, times the P50 of the run over that of these stretches (the clock's frequency), since samples and attaching interrupt the twin as well; that of 8 threads over the run. *Over its twin*: P50 of the function itself in the batches at least 0.15 s away from its \
         windows, over that of its twin. True calls: the program's own count. *Error*: median of the runs with an estimate; (k ≤): runs in which only a limit was told. *Holds*: runs whose interval or \
         limit holds the truth, of those in which it was told; the truth's own sampling error is added by squares; bold: fewer than 95 % by the binomial test at 1 % (181 or fewer of 200). \
         *Half-width*: median; bold: above the aim, which is for {AIMED_AT} timed calls; *timed* says how many there were (median).\n",
        options.seconds_or(RUN_S)
    ));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ns_are_grouped() {
        assert_eq!([99.6, 1_034.2, 1_000_000.0].map(ns), ["100", "1,034", "1,000,000"]);
    }
}
