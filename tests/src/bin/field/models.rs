//! Execution-time models of library functions whose growth is known: are their classes the right ones? Each function is called all the while by a program of ours
//! (`tests/field/grows.c`) with sizes over three decades; the libraries are Debian's.

use crate::durations::Options;
use crate::observe::{Observation, observe};
use crate::place::{self, Place, text_of};
use crate::process::{Talker, tail};
use crate::program::Mode;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Budget of each run.
const BUDGET: &str = "5%";

/// A function, and how it is known to grow.
struct Subject {
    /// Name of the row, and of the program's mode.
    name: &'static str,
    library: &'static str,
    known: &'static str,
    /// Classes that are right, as the JSON has them.
    classes: &'static [&'static str],
    /// Exponents of a power law that are right.
    exponents: (f64, f64),
    /// What is recorded, and further options.
    record: &'static str,
    more: &'static [&'static str],
    input: &'static str,
}

/// The functions. `pcre2_match` has two growths. The words of `BN_mod_exp` are in the number behind its modulus: `int top` of OpenSSL's `struct bignum_st`.
const SUBJECTS: [Subject; 9] = [
    Subject {
        name: "qsort",
        library: "glibc",
        known: "n log n",
        classes: &["linearithmic"],
        exponents: (1.0, 1.25),
        record: "libc.so*:qsort:arg1",
        more: &[],
        input: "qsort:n=arg1:size",
    },
    Subject {
        name: "compress2",
        library: "zlib",
        known: "n, slope by level",
        classes: &["linear"],
        exponents: (0.9, 1.1),
        record: "libz.so*:compress2:arg3,arg4",
        more: &[],
        input: "compress2:n=arg3:size,level=arg4:category",
    },
    Subject {
        name: "crc32",
        library: "zlib",
        known: "n",
        classes: &["linear"],
        exponents: (0.85, 1.1),
        record: "libz.so*:crc32:arg2",
        more: &[],
        input: "crc32:n=arg2:int",
    },
    Subject {
        name: "mpn_mul",
        library: "GMP",
        known: "superlinear",
        classes: &["linearithmic", "three_halves", "polynomial", "two_regimes"],
        exponents: (1.2, 2.0),
        record: "libgmp.so*:__gmpn_mul:arg2",
        more: &[],
        input: "__gmpn_mul:n=arg2:long",
    },
    Subject {
        name: "BN_mod_exp",
        library: "OpenSSL",
        known: "n^3 in words",
        classes: &["polynomial"],
        exponents: (2.2, 3.1),
        record: "libcrypto.so*:BN_mod_exp:arg3",
        more: &["--word", "libcrypto.so*:BN_mod_exp:words=arg3->8:int"],
        input: "BN_mod_exp:n=words:int",
    },
    Subject {
        name: "json_loadb",
        library: "jansson",
        known: "n",
        classes: &["linear"],
        exponents: (0.9, 1.1),
        record: "libjansson.so*:json_loadb:arg1",
        more: &[],
        input: "json_loadb:n=arg1:size",
    },
    Subject {
        name: "bsearch",
        library: "glibc",
        known: "log n, with a slow comparator",
        classes: &["logarithmic"],
        exponents: (0.02, 0.3),
        record: "libc.so*:bsearch:arg2",
        more: &[],
        input: "bsearch:n=arg2:size",
    },
    Subject {
        name: "pcre2_match",
        library: "PCRE2",
        known: "n",
        classes: &["linear"],
        exponents: (0.9, 1.1),
        record: "libpcre2-8.so*:pcre2_match_8:arg2",
        more: &[],
        input: "pcre2_match_8:n=arg2:size",
    },
    Subject {
        name: "pcre2_match, unanchored class",
        library: "PCRE2",
        known: "n^2",
        classes: &["polynomial"],
        exponents: (1.8, 2.2),
        record: "libpcre2-8.so*:pcre2_match_8:arg2",
        more: &[],
        input: "pcre2_match_8:n=arg2:size",
    },
];

/// A finished run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    function: String,
    round: u32,
    seconds: f64,
    agent: String,
    /// Processes that ran or waited for a CPU, average of the minute at its end.
    load: Option<f64>,
    /// What went wrong.
    trouble: Vec<String>,
    observation: Observation,
    told: Option<Told>,
}

/// What `tithe models` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Told {
    class: String,
    /// The paper's class; of two regimes that of the upper one.
    printed: String,
    formula: Vec<String>,
    fit: f64,
    ceiling: f64,
    calls: u64,
    distinct: u64,
    exponent: Option<f64>,
}

impl Told {
    fn of(json: &str) -> Result<Told, String> {
        let all: Value = serde_json::from_str(json).map_err(|error| format!("no JSON of models: {error}"))?;
        let function = &all["functions"][0];
        if !function["no_model"].is_null() {
            return Err(format!("no model: {}", function["no_model"]));
        }
        let model = &function["model"];
        let number = |value: &Value| value.as_f64().ok_or_else(|| format!("no number in {model}"));
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or(format!("no text in {model}"));
        let formula = function["formula"].as_array().into_iter().flatten();
        Ok(Told {
            class: text(&model["class"])?,
            printed: text(&model["printed"])?,
            formula: formula.filter_map(|line| line.as_str().map(str::to_owned)).collect(),
            fit: number(&model["goodness"]["adjusted_r2"])?,
            ceiling: number(&model["goodness"]["ceiling"])?,
            calls: function["calls"].as_u64().unwrap_or(0),
            distinct: model["basis"]["distinct"].as_u64().unwrap_or(0),
            exponent: model["exponent"][0].as_f64(),
        })
    }

    /// The class is one of those that are right, and so is the exponent of a power law. Of two regimes the upper one is what a function grows like.
    fn is_right(&self, subject: &Subject) -> bool {
        let class = subject.classes.contains(&&*self.class)
            || self.class == "two_regimes" && subject.classes.contains(&&*self.printed);
        let (low, high) = subject.exponents;
        // Of curves by category it is the one that they have in common, within each.
        class && self.exponent.is_none_or(|e| (low..=high).contains(&e))
    }
}

/// Runs what is not finished yet, each finished run a line of `models.jsonl`; returns the Markdown of all that are. With `only_table` nothing is run.
///
/// # Errors
///
/// If a name is unknown, nothing is finished, or a line cannot be written.
pub fn run(options: &Options<'_>, only_table: bool) -> Result<String> {
    for only in options.only {
        ensure!(SUBJECTS.iter().any(|s| s.name == only), "no function {only} whose growth is known");
    }
    let lines = options.place.base.join("models.jsonl");
    let mut finished: Vec<Record> = place::finished(&lines)?;
    for round in (0..options.rounds).filter(|_| !only_table) {
        for subject in &SUBJECTS {
            let is_done = |record: &Record| {
                record.function == subject.name
                    && record.round == round
                    && record.agent == options.agent_version
                    && (record.seconds - options.seconds).abs() < 0.5
                    && record.observation.failed.is_none()
            };
            let is_wanted = options.only.is_empty() || options.only.iter().any(|only| only == subject.name);
            if !is_wanted || finished.iter().any(is_done) {
                continue;
            }
            if let Some(why) = Place::missing(&[options.place.built("own/grows")]) {
                anyhow::bail!("the program is not there: {why}");
            }
            let record = one(options, subject, round)?;
            say(&record, subject);
            place::keep(&lines, &record)?;
            finished.push(record);
        }
    }
    let counts = |record: &Record| {
        record.agent == options.agent_version && (record.seconds - options.seconds).abs() < 0.5
    };
    let counted: Vec<&Record> = finished.iter().filter(|record| counts(record)).collect();
    ensure!(
        !counted.is_empty(),
        "no finished runs of {} with {} s in {}",
        options.agent_version,
        options.seconds,
        lines.display()
    );
    Ok(document(&counted))
}

fn one(options: &Options<'_>, subject: &Subject, round: u32) -> Result<Record> {
    let folder = options.place.working("models")?;
    let program = options.place.built("own/grows");
    let mut grows = Talker::start(Command::new(&program).arg(subject.name), &folder)?;
    ensure!(grows.line()? == "ready", "{} does not call", subject.name);
    let mut arguments = ["--budget", BUDGET, "--record", subject.record].map(str::to_owned).to_vec();
    arguments.extend(subject.more.iter().map(|&word| word.to_owned()));
    let mode = Mode { name: "models", arguments };
    let (observation, _) = observe(options.agent, grows.process().pid(), &mode, options.seconds, &folder)?;
    let mut trouble: Vec<String> = observation.failed.iter().cloned().collect();
    trouble.extend(grows.finish().err().map(|error| format!("its end: {error:#}")));
    let mut models = Command::new(options.agent);
    models.arg("models").arg(folder.join("run.tithe")).args(["--input", subject.input, "--format", "json"]);
    let output = models.stdin(Stdio::null()).output().context("cannot start the agent")?;
    let told = match Told::of(&String::from_utf8_lossy(&output.stdout)) {
        Ok(told) => Some(told),
        Err(why) => {
            trouble.push(format!("{why} {}", tail(&String::from_utf8_lossy(&output.stderr))));
            None
        }
    };
    Ok(Record {
        function: subject.name.to_owned(),
        round,
        seconds: options.seconds,
        agent: options.agent_version.clone(),
        load: text_of(Path::new("/proc/loadavg")).split(' ').next().and_then(|n| n.parse().ok()),
        trouble,
        observation,
        told,
    })
}

fn say(record: &Record, subject: &Subject) {
    let told = record.told.as_ref().map_or("nothing".to_owned(), |told| {
        let verdict = if told.is_right(subject) { "right" } else { "WRONG" };
        format!("{verdict}: {} ({})", told.class, told.formula.join("; "))
    });
    eprintln!("{} round {}: {told}", record.function, record.round);
    for what in &record.trouble {
        eprintln!("    {what}");
    }
}

fn document(finished: &[&Record]) -> String {
    let mut out = String::from(
        "# Models of functions whose growth is known\n\nWritten by `cargo xtask field --models`. A program calls one function of a Debian library all the while, with 36 sizes (`bsearch` and `BN_mod_exp`: 16) over 1.2 (`BN_mod_exp`) to 4.5 (`bsearch`) decades; \
         `tithe record --budget 5% --record` watches it, and `tithe models` says how it grows. *Right*: the class is one of those that the known growth has (of two regimes: the upper one), and the \
         exponent of a power law through the medians is near it. The formula is that of the last run.\n\n",
    );
    let loads: Vec<f64> = finished.iter().filter_map(|record| record.load).collect();
    let most = loads.iter().copied().fold(0.0, f64::max);
    let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
    if let Some(first) = finished.first() {
        out += &format!(
            "{}, runs of {} s. Load average at the ends of runs: {least:.1} to {most:.1}.\n\n",
            first.agent, first.seconds
        );
    }
    out += "| function | library | known | right | told | formula | fit, ceiling | calls | sizes | exponent |\n|---|---|---|--:|---|---|---|--:|--:|--:|\n";
    for subject in &SUBJECTS {
        let runs: Vec<&&Record> = finished.iter().filter(|record| record.function == subject.name).collect();
        let told: Vec<&Told> = runs.iter().filter_map(|record| record.told.as_ref()).collect();
        let right = told.iter().filter(|told| told.is_right(subject)).count();
        let name = format!("| `{}` | {} | {}", subject.name, subject.library, subject.known);
        let Some(last) = told.last() else {
            out += &format!("{name} | 0 of {} | - | - | - | - | - | - |\n", runs.len());
            continue;
        };
        let mut classes: Vec<String> = told.iter().map(|told| told.class.replace('_', " ")).collect();
        classes.sort_unstable();
        classes.dedup();
        out += &format!(
            "{name} | {right} of {} | {} | {} | {:.3}, {:.3} | {} | {} | {} |\n",
            runs.len(),
            classes.join(", "),
            last.formula.join("; "),
            last.fit,
            last.ceiling,
            last.calls,
            last.distinct,
            last.exponent.map_or("-".to_owned(), |e| format!("{e:.2}")),
        );
    }
    let trouble: Vec<String> = finished
        .iter()
        .flat_map(|record| record.trouble.iter().map(move |what| format!("- {}: {what}", record.function)))
        .collect();
    if !trouble.is_empty() {
        out += &format!("\nWhat went wrong:\n\n{}\n", trouble.join("\n"));
    }
    out
}
#[cfg(test)]
mod tests {
    use super::*;

    fn told(class: &str, printed: &str, exponent: f64) -> Told {
        Told {
            class: class.to_owned(),
            printed: printed.to_owned(),
            formula: vec!["1 ns · n".to_owned()],
            fit: 1.0,
            ceiling: 1.0,
            calls: 1,
            distinct: 1,
            exponent: Some(exponent),
        }
    }

    #[test]
    fn a_class_is_right_by_name_and_exponent_and_of_two_regimes_the_upper_one_counts() {
        let crc32 = SUBJECTS.iter().find(|s| s.name == "crc32").unwrap();
        assert!(told("linear", "linear", 0.97).is_right(crc32));
        assert!(told("two_regimes", "linear", 0.9).is_right(crc32));
        assert!(!told("two_regimes", "polynomial", 0.9).is_right(crc32));
        assert!(!told("linear", "linear", 1.4).is_right(crc32));
        assert!(!told("unknown", "unknown", 1.0).is_right(crc32));
    }

    #[test]
    fn what_models_print_is_read() {
        let json = r#"{"functions": [{"calls": 7, "formula": ["1 ns · n"], "no_model": null, "model": {"class": "linear", "printed": "linear",
            "goodness": {"adjusted_r2": 0.99, "ceiling": 1.0}, "basis": {"distinct": 36}, "exponent": [1.0, 0.9, 1.1]}}]}"#;
        let told = Told::of(json).unwrap();
        assert_eq!((told.calls, told.distinct, told.exponent), (7, 36, Some(1.0)));
        assert!(
            Told::of(r#"{"functions": [{"no_model": {"reason": "no_calls"}}]}"#)
                .unwrap_err()
                .contains("no_calls")
        );
        assert!(Told::of("").is_err());
    }
}
