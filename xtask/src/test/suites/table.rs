//! Runs of the suite as Markdown: how often each test failed, by build, and the runs one by one.

use super::record::Run;
use crate::test::timing::{self, List};
use std::collections::BTreeMap;

/// Runs of one build.
struct Column<'a> {
    tree: &'a str,
    /// The commit's short name: of several that differ in documents only, the first one's.
    commit: &'a str,
    n: usize,
}

/// The document: of runs with that filter only.
pub(super) fn markdown(runs: &[Run], filter: Option<&str>, timing: &List) -> String {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.filter.as_deref() == filter).collect();
    let head = format!(
        "# Runs of the kernel suite\n\n\
         Written by `cargo xtask test --suites N --write`. A run is all test binaries that need root{}, one test at a time; no test is run \
         again in it. Columns are builds. *Timing*: the test stands in `{}`, so that `cargo xtask test` runs it again where it fails.\n",
        filter.map_or(String::new(), |filter| format!(", and of them tests whose name contains `{filter}`")),
        timing::PATH
    );
    if runs.is_empty() {
        return format!("{head}\nThere is no finished run.\n");
    }
    format!("{head}\n## Failures\n\n{}\n## Runs\n\n{}", failures(&runs, timing), one_by_one(&runs))
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Head of a table: its first columns hold text, the others numbers.
fn head(cells: &[String], texts: usize) -> String {
    let rules: Vec<String> =
        (0..cells.len()).map(|i| if i < texts { "---" } else { "---:" }.to_owned()).collect();
    row(cells) + &format!("|{}|\n", rules.join("|"))
}

/// Builds in the order in which they came.
fn columns<'a>(runs: &[&'a Run]) -> Vec<Column<'a>> {
    let mut columns: Vec<Column> = Vec::new();
    for run in runs {
        match columns.iter_mut().find(|column| column.tree == run.build.tree) {
            Some(column) => column.n += 1,
            None => columns.push(Column { tree: &run.build.tree, commit: &run.build.commit, n: 1 }),
        }
    }
    columns
}

/// Each test that failed, most often first.
fn failures(runs: &[&Run], timing: &List) -> String {
    let columns = columns(runs);
    // Failures by build.
    let mut failed: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for run in runs {
        for test in &run.failed {
            *failed.entry(test).or_default().entry(&run.build.tree).or_default() += 1;
        }
    }
    if failed.is_empty() {
        return format!("No test failed in {} runs.\n", runs.len());
    }
    let mut names = vec!["test".to_owned(), "timing".to_owned()];
    names.extend(columns.iter().map(|column| format!("{}, n = {}", column.commit, column.n)));
    names.push(format!("all, n = {}", runs.len()));
    let mut rows: Vec<(usize, &str, String)> = Vec::new();
    for (test, by_build) in &failed {
        let all = by_build.values().sum();
        let is_timing = if timing.reason(test).is_some() { "yes" } else { "no" };
        let mut cells = vec![format!("`{test}`"), is_timing.to_owned()];
        let of = |column: &Column| by_build.get(column.tree).map_or("0".to_owned(), usize::to_string);
        cells.extend(columns.iter().map(of));
        cells.push(usize::to_string(&all));
        rows.push((all, test, row(&cells)));
    }
    rows.sort_by(|a, b| (b.0, a.1).cmp(&(a.0, b.1)));
    head(&names, 2) + &rows.into_iter().map(|(_, _, row)| row).collect::<String>()
}

fn one_by_one(runs: &[&Run]) -> String {
    let names = [
        "begun",
        "build",
        "length, s",
        "passed",
        "failed",
        "skipped",
        "load before (1 min)",
        "others' part of the CPUs, %",
        "of it the hypervisor's, %",
    ];
    let rows = runs.iter().map(|run| {
        row(&[
            run.begun.clone(),
            run.build.commit.clone(),
            format!("{:.0}", run.seconds),
            run.passed.to_string(),
            run.failed.len().to_string(),
            run.skipped.to_string(),
            format!("{:.2}", run.load.before),
            format!("{:.1}", run.load.others * 100.0),
            format!("{:.1}", run.load.stolen * 100.0),
        ])
    });
    head(&names.map(str::to_owned), 2) + &rows.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;

    #[test]
    fn failures_are_counted_by_test_and_build() {
        let timing = List::parse("b::slow  a latency\n").unwrap();
        let mut other = sample("docs", &["b::slow"]);
        other.build.tree = sample("one", &[]).build.tree;
        let filtered = Run { filter: Some("slow".to_owned()), ..sample("one", &["b::slow"]) };
        let runs = [
            sample("one", &["b::x", "b::slow"]),
            other,
            sample("one", &[]),
            filtered,
            sample("two", &["b::x", "b::a"]),
        ];
        let text = markdown(&runs, None, &timing);
        let table = "| test | timing | one, n = 3 | two, n = 1 | all, n = 4 |\n|---|---|---:|---:|---:|\n\
                     | `b::slow` | yes | 2 | 0 | 2 |\n| `b::x` | no | 1 | 1 | 2 |\n| `b::a` | no | 0 | 1 | 1 |\n\n## Runs";
        assert!(text.contains(table), "{text}");
        let run = "| 2026-11-26T04:14Z | one | 1234 | 248 | 2 | 1 | 0.50 | 3.4 | 1.2 |\n";
        assert!(text.contains(run) && !text.contains("whose name contains"), "{text}");
        let text = markdown(&runs, Some("slow"), &timing);
        assert!(text.contains("one, n = 1 | all, n = 1 |") && text.contains("contains `slow`"), "{text}");
        assert!(markdown(&[], None, &timing).ends_with("There is no finished run.\n"));
        let good = markdown(&[sample("one", &[])], None, &timing);
        assert!(good.contains("No test failed in 1 runs."), "{good}");
    }
}
