//! jaq, a program from Cargo that works like jq: it reads JSON values from its standard input, one after the other, and asks the same of each.
//!
//! A run is one document: it says itself which kind of question it is for. The answer is a number that is known before, so that each result is checked.

use super::subject::{Program, Running, Slice};
use crate::load::{Client, Load};
use crate::place::{Place, first_line};
use crate::process::{ANSWER_LIMIT, Talker};
use anyhow::{Context, Result, ensure};
use profiler_tests::kernels::{COMBINATIONS, Combination, Letters, combinations, order};
use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The program.
pub struct Jaq;

/// Sorts, joins through an object, groups, searches texts, changes. Each answers with the number of rows.
const FILTER: &str = r#"if .kind == 0 then .rows | sort_by(.c0) | length
elif .kind == 1 then (.rows | map({key: (.k | tostring), value: .c0}) | from_entries) as $by | [.rows[] | $by[.k | tostring] | length] | length
elif .kind == 2 then .rows | group_by(.k) | map(length) | add
elif .kind == 3 then [.rows[].c0 | select(ascii_upcase | test("[A-Z]"))] | length
else [.rows[] | .k += 1 | with_entries(select(.key != "k"))] | length end"#;

const CORE: &str = "jaq:/jaq_(core|all|std|fmts)/";
const JSON: &str = "jaq:/jaq_json|hifijson|indexmap|hashbrown|foldhash/";
const MEMORY: &str = "jaq:/^_?mi_/";

const SLICES: [Slice; 4] = [
    Slice { name: "core", pattern: CORE, never: &[] },
    Slice { name: "json", pattern: JSON, never: &[CORE] },
    Slice { name: "memory", pattern: MEMORY, never: &[CORE, JSON] },
    Slice { name: "rest", pattern: "jaq:/^[<_a-z]/", never: &[CORE, JSON, MEMORY] },
];

/// Where `cargo install` puts it.
const INSTALLED: &str = "jaq/bin/jaq";

impl Program for Jaq {
    fn name(&self) -> &'static str {
        "jaq"
    }

    fn language(&self) -> &'static str {
        "Rust"
    }

    fn slices(&self) -> &'static [Slice] {
        &SLICES
    }

    fn variables(&self) -> &'static [&'static str] {
        &[]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[place.built(INSTALLED)])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(Command::new(place.built(INSTALLED)).arg("--version"))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Running>> {
        let talker = Talker::start(Command::new(place.built(INSTALLED)).args(["-c", FILTER]), folder)?;
        let runs = Arc::new(Mutex::new(vec![0; COMBINATIONS]));
        let letters = Letters::default();
        let combinations = combinations();
        let mut feeder = Feeder {
            talker,
            documents: combinations.iter().map(|combination| document(combination, &letters)).collect(),
            answers: combinations.iter().map(|combination| combination.rows.to_string()).collect(),
            order: Vec::new(),
            asked: VecDeque::new(),
            runs: Arc::clone(&runs),
        };
        let pid = feeder.talker.process().pid();
        let mut load = Load::new(feeder);
        load.begin()?;
        Ok(Box::new(Fed { pid, load, runs }))
    }
}

/// The document of a combination, on a line.
fn document(combination: &Combination, letters: &Letters) -> String {
    let row = |row: u64| {
        let key = row.wrapping_mul(7_919) % (combination.rows / 4).max(1);
        let text = |column: u64| {
            let number = row * combination.columns + column;
            format!(",\"c{column}\":\"{}\"", letters.text(number, combination.text))
        };
        let texts: String = (0..combination.columns).map(text).collect();
        format!("{{\"k\":{key}{texts}}}")
    };
    let rows: Vec<String> = (0..combination.rows).map(row).collect();
    format!("{{\"kind\":{},\"rows\":[{}]}}\n", combination.kind, rows.join(","))
}

/// Sends documents, and checks answers as they come: the program keeps some back.
struct Feeder {
    talker: Talker,
    documents: Vec<String>,
    answers: Vec<String>,
    /// What is left of the pass, in turn from its end.
    order: Vec<usize>,
    /// Documents that were not answered yet.
    asked: VecDeque<usize>,
    /// Documents that were sent, by combination. What is in the pipe is not run yet: 64 KiB.
    runs: Arc<Mutex<Vec<u64>>>,
}

impl Feeder {
    fn check(&mut self, answer: &str) -> Result<()> {
        let number = self.asked.pop_front().context("it answered more often than it was asked")?;
        let expected = &self.answers[number];
        ensure!(answer == expected, "jaq answered {answer} and not {expected} to combination {number}");
        Ok(())
    }
}

impl Client for Feeder {
    fn step(&mut self, step: u64) -> Result<()> {
        if self.order.is_empty() {
            self.order = order(step / 1_000);
        }
        let number = self.order.pop().context("a pass has runs")?;
        let Feeder { talker, documents, .. } = self;
        talker.send(&documents[number])?;
        self.asked.push_back(number);
        // Counts are right whoever panicked.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)[number] += 1;
        while let Some(answer) = self.talker.line_if_any() {
            self.check(&answer)?;
        }
        Ok(())
    }
}

struct Fed {
    pid: u32,
    load: Load<Feeder>,
    runs: Arc<Mutex<Vec<u64>>>,
}

impl Running for Fed {
    fn pid(&mut self) -> u32 {
        self.pid
    }

    fn runs(&mut self) -> Result<Vec<u64>> {
        Ok(self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut feeder = self.load.finish()?;
        for answer in feeder.talker.last_lines() {
            feeder.check(&answer)?;
        }
        let open = feeder.asked.len();
        ensure!(open == 0, "{open} documents have no answer {ANSWER_LIMIT:?} after the last one");
        feeder.talker.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_its_rows_on_one_line() {
        let combination = Combination { rows: 16, columns: 2, text: 4, indexes: 0, kind: 3 };
        let text = document(&combination, &Letters::default());
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["rows"].as_array().map(Vec::len), Some(16));
        assert_eq!((&read["kind"], read["rows"][5]["c1"].as_str().map(str::len)), (&3.into(), Some(4)));
        assert_eq!(text.matches('\n').count(), 1);
        let keys: std::collections::BTreeSet<u64> =
            read["rows"].as_array().unwrap().iter().map(|row| row["k"].as_u64().unwrap()).collect();
        assert_eq!(keys.len(), 4);
    }
}
