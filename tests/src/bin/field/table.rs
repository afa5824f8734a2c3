//! `docs/field.md`, written from the finished runs.

use crate::place::text_of;
use crate::program::MODES;
use crate::run::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Median, least, most.
fn spread(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = match values.len() {
        0 => return None,
        n if n.is_multiple_of(2) => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    };
    Some((median, values[0], values[values.len() - 1]))
}

fn said(spread: Option<(f64, f64, f64)>, factor: f64, digits: usize) -> String {
    spread.map_or("-".to_owned(), |(median, least, most)| {
        let [median, least, most] = [median, least, most].map(|value| value * factor);
        format!("{median:.digits$} ({least:.digits$}..{most:.digits$})")
    })
}

/// All stressors are one row.
fn row_of(record: &Record) -> (String, String) {
    let program = if record.program.starts_with("stress-ng-") { "stress-ng" } else { &record.program };
    (program.to_owned(), record.mode.clone())
}

fn count(records: &[&Record], what: impl Fn(&Record) -> bool) -> usize {
    records.iter().filter(|record| what(record)).count()
}

/// What stands above the table.
const INTRODUCTION: &str = "\
# The field suite

Written by `cargo xtask field`. Real programs do real work while Tithe watches them, and say by themselves whether their
results are right. A run counts as *harmed* where the program gives a wrong result, dies, hangs, leaves a core, logs
trouble that its twin does not log, or where its text, or that of a process below it, is changed after Tithe has ended. The *twin* is a second instance of
the same program with the same load, which is never watched; the two take turns. *Tithe failed* means: exit status
other than 0, no report, no end in time, an end before its time while the process still runs, or nothing seen: no call of
any function, of the functions that were named, or no operation. Some programs are allowed to be seen by nothing in some
modes; these runs are listed below with the reason. A run is *void* where only the twin failed, where the watched process ended before its time without
harm, or where its text could not be read; void runs are not counted and are run again. *With hits*: runs in which a breakpoint
of Tithe was hit; the others say little about harm.

Modes: `none` is a run like the others (same slices, same judgement) without Tithe; its ratios show what the comparison is
worth: a ratio of another mode means something only where it lies outside of them. `1%` and `5%` are `tithe record --pid PID --budget B` and nothing else; `latency` and `operation` name functions of
the program, at 5 %. Figures are medians (least..most) over the runs of a row; throughput is that of the watched
instance over that of its twin, on a machine that is not kept quiet; *work per CPU s* is the same by the program's own
CPU time. Other processes change both. *Worst second* and *predicted* are overheads of Tithe's own
receipt. *Functions*: how many were hit while they were attached.

| program | where from | load, and how it is judged |
|---|---|---|
| redis | Debian's source, not stripped | eight commands in a pipeline; each reply, and `INFO commandstats` equal to what was sent |
| postgresql | Debian's source, not stripped | pgbench, one of two backends is watched; transactions = rows of history, sums of all balances agree |
| memcached | Debian's source, not stripped | values set and read; each value, and `stats` equal to what was sent |
| zstd | Debian's source, not stripped | a stream is compressed; it decompresses to what went in |
| openssl | Debian | `speed` of signatures, key exchange and hashes; no failed verification, exit status 0 |
| sqlite | Debian | the shell: inserts, sums, joins; each sum, `integrity_check` |
| cpython | Debian's 3.11 | `tests/field/work.py`: JSON, expressions, zlib, exceptions, threads; checks itself, digests equal the twin's |
| numpy | PyPI | `tests/field/numeric.py`: products, solutions, transforms, sorting; likewise |
| node | npm | `tests/field/work.js`: JSON, zlib, files, ciphers, exceptions; likewise |
| throws | `tests/field` | C++: 10,000 exceptions a second through frames with destructors; caught = thrown, all destroyed |
| panics | `tests/field` | Rust: panics through frames with destructors, on several threads; likewise |
| fibers-boost, -swapcontext, -own | `tests/field`, Boost from Debian | eight fibers that switch within calls; each sum |
| go, java | `tests/field`, compilers from Debian | a server of HTTP each; each answer |
| stress-ng | Debian | stressors one at a time with `--verify`; its verdict and exit status |

Packages are downloaded by name and unpacked below `target/field`; nothing is installed. Sources that we wrote lie in
`tests/field`. Finished runs are lines of `target/field/runs.jsonl`; the programs' own statistics (`INFO commandstats`,
`pg_stat_statements`, `stats`) lie beside Tithe's reports in `target/field/statistics`.
";

/// The whole document.
///
/// `excuse`: why nothing need be seen in a run, if so.
pub fn document(
    records: &[Record],
    order: &[String],
    missing: &[(String, String)],
    excuse: impl Fn(&Record) -> Option<&'static str>,
) -> String {
    let line = |path: &str, key: &str| {
        let text = text_of(Path::new(path));
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or("unknown").to_owned();
        line.rsplit(": ").next().unwrap_or(&line).trim().to_owned()
    };
    let machine = format!(
        "Linux {}; {} x {}",
        line("/proc/sys/kernel/osrelease", ""),
        std::thread::available_parallelism().map_or(1, usize::from),
        line("/proc/cpuinfo", "model name"),
    );
    format!("{INTRODUCTION}\nMachine: {machine}.\n\n{}", markdown(records, order, missing, excuse))
}

/// Table and lists. `order`: the programs as the suite runs them; `missing`: those that cannot run here, and why.
fn markdown(
    records: &[Record],
    order: &[String],
    missing: &[(String, String)],
    excuse: impl Fn(&Record) -> Option<&'static str>,
) -> String {
    let mut text = String::new();
    let sound: Vec<&Record> = records.iter().filter(|record| !record.is_void()).collect();
    let watched: Vec<&Record> = sound.iter().copied().filter(|record| record.is_watched()).collect();
    let harmed = count(&watched, |record| !record.harmed.is_empty());
    let failed = count(&watched, |record| record.observation.failed.is_some());
    let hit = count(&watched, Record::has_hits);
    let void = records.len() - sound.len();
    let unequal = count(&sound, |record| !record.has_equal_slices());
    // Writing into a string does not fail.
    let _ = writeln!(
        text,
        "**{} watched runs, {hit} of them with at least one hit: {harmed} harmed; Tithe failed in {failed}.** Beside them {} runs without \
         Tithe (`none`). {void} void runs are not counted.\n",
        watched.len(),
        sound.len() - watched.len(),
    );
    if unequal > 0 {
        let _ = writeln!(
            text,
            "In {unequal} runs the slices of program and twin were not of the same length (older versions gave the twin three fifths): \
             their ratios are biased and are no measure of Tithe's overhead.\n"
        );
    }
    let _ = writeln!(
        text,
        "| program | mode | runs | with hits | harmed | Tithe failed | throughput / twin | work per CPU s / twin | worst second, % | predicted, % | functions |"
    );
    let _ = writeln!(text, "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut rows: BTreeMap<(usize, usize), Vec<&Record>> = BTreeMap::new();
    for record in sound {
        let mode = MODES.iter().position(|mode| *mode == record.mode);
        let program = order.iter().position(|name| *name == row_of(record).0);
        rows.entry((program.unwrap_or(usize::MAX), mode.unwrap_or(usize::MAX))).or_default().push(record);
    }
    for rows in rows.values() {
        let (program, mode) = row_of(rows[0]);
        // What an agent that failed did not see says nothing.
        let of = |value: fn(&Record) -> Option<f64>| {
            spread(rows.iter().filter(|r| r.observation.failed.is_none()).filter_map(|r| value(r)).collect())
        };
        let is_watched = rows[0].is_watched();
        let by_agent = |text: String| if is_watched { text } else { "-".to_owned() };
        let _ = writeln!(
            text,
            "| {program} | {mode} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            rows.len(),
            by_agent(count(rows, Record::has_hits).to_string()),
            count(rows, |record| !record.harmed.is_empty()),
            by_agent(count(rows, |record| record.observation.failed.is_some()).to_string()),
            said(of(|record| record.ratio), 1.0, 3),
            said(of(|record| record.cpu_ratio), 1.0, 3),
            by_agent(said(of(|record| Some(record.observation.worst_second)), 100.0, 2)),
            by_agent(said(of(|record| Some(record.observation.predicted)), 100.0, 2)),
            by_agent(said(of(|record| Some(record.observation.traced as f64)), 1.0, 0)),
        );
    }
    list(&mut text, "Harmed", records, |record| record.harmed.clone());
    let of_sound =
        |record: &Record, what: &Option<String>| what.iter().filter(|_| !record.is_void()).cloned().collect();
    list(&mut text, "Tithe failed", records, |record| of_sound(record, &record.observation.failed));
    list_unseen(&mut text, &watched, excuse);
    list(&mut text, "Void", records, |record| {
        record.void.iter().filter(|_| record.is_void()).cloned().collect()
    });
    list_versions(&mut text, records);
    for (program, why) in missing {
        let _ = writeln!(text, "- not run: {program} ({why})");
    }
    text
}

/// The versions of programs, stressors and agents that the runs are of.
fn list_versions(text: &mut String, records: &[Record]) {
    let _ = writeln!(text, "\n## Versions\n");
    let mut versions: BTreeSet<(String, &str)> = BTreeSet::new();
    for record in records {
        versions.insert((row_of(record).0, &record.version));
    }
    for (program, version) in versions {
        let _ = writeln!(text, "- {program}: {version}");
    }
    let stressors: BTreeSet<&str> =
        records.iter().filter_map(|record| record.program.strip_prefix("stress-ng-")).collect();
    if !stressors.is_empty() {
        let names = stressors.iter().copied().collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "- stressors ({}): {names}", stressors.len());
    }
    let agents: BTreeSet<&str> =
        records.iter().filter(|record| record.is_watched()).map(|record| &*record.agent).collect();
    let _ = writeln!(text, "- agent: {}", agents.into_iter().collect::<Vec<_>>().join("; "));
}

/// One line for each row with runs in which nothing was hit, and that are no failures.
fn list_unseen(text: &mut String, watched: &[&Record], excuse: impl Fn(&Record) -> Option<&'static str>) {
    let mut rows: BTreeMap<(String, String), (usize, BTreeSet<&str>)> = BTreeMap::new();
    for record in watched.iter().filter(|record| !record.has_hits() && record.observation.failed.is_none()) {
        let (n, whys) = rows.entry(row_of(record)).or_default();
        *n += 1;
        whys.insert(match excuse(record) {
            Some(why) => why,
            None if record.observation.operations > 0 => "its operations were counted without breakpoints",
            None => "not excused",
        });
    }
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n## Runs without a hit that do not count as failed\n");
    for ((program, mode), (n, whys)) in rows {
        let whys = whys.into_iter().collect::<Vec<_>>().join("; ");
        let _ = writeln!(text, "- {program}:{mode}: {n} ({whys})");
    }
}

/// One line for each run and thing that went wrong.
fn list(text: &mut String, title: &str, records: &[Record], of: impl Fn(&Record) -> Vec<String>) {
    let lines: Vec<String> = records
        .iter()
        .flat_map(|record| {
            let head = format!("{}:{}, round {}", record.program, record.mode, record.round);
            of(record).into_iter().map(move |what| format!("- {head}: {}", one_line(&what)))
        })
        .collect();
    if !lines.is_empty() {
        let _ = writeln!(text, "\n## {title}\n\n{}", lines.join("\n"));
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(600).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Observation;
    use crate::place;

    fn record(program: &str, harmed: &[&str], failed: Option<&str>, ratio: f64) -> Record {
        Record {
            program: program.to_owned(),
            mode: "5%".to_owned(),
            round: 0,
            began: 0,
            version: "1".to_owned(),
            agent: "tithe".to_owned(),
            harmed: harmed.iter().map(|&what| what.to_owned()).collect(),
            void: None,
            observation: Observation {
                failed: failed.map(str::to_owned),
                worst_second: 0.04,
                predicted: 0.03,
                hits: 7,
                ..Observation::default()
            },
            ratio: Some(ratio),
            cpu_ratio: None,
            slices: Some((5.0, 5.0)),
            rates: BTreeMap::new(),
            twin_rates: BTreeMap::new(),
            cpu_rates: BTreeMap::new(),
            twin_cpu_rates: BTreeMap::new(),
        }
    }

    #[test]
    fn harm_and_failure_are_counted_apart_and_listed() {
        let records = [
            record("redis", &[], None, 0.9),
            record("redis", &["GET gave\nnothing"], None, 0.8),
            record("redis", &[], Some("exit status: 1"), 0.1),
            record("stress-ng-cpu", &[], None, 1.0),
            record("stress-ng-fork", &[], None, 0.5),
        ];
        let order = ["redis".to_owned(), "stress-ng".to_owned()];
        let text = markdown(&records, &order, &[("go".to_owned(), "no server".to_owned())], |_| None);
        assert!(
            text.contains(
                "**5 watched runs, 5 of them with at least one hit: 1 harmed; Tithe failed in 1.**"
            ),
            "{text}"
        );
        assert!(text.contains("| redis | 5% | 3 | 3 | 1 | 1 | 0.850 (0.800..0.900) | - | 4.00"), "{text}");
        assert!(text.contains("| stress-ng | 5% | 2 | 2 | 0 | 0 | 0.750 (0.500..1.000)"), "{text}");
        assert!(text.contains("- redis:5%, round 0: GET gave nothing"), "{text}");
        assert!(text.contains("- stressors (2): cpu, fork"), "{text}");
        assert!(text.contains("- not run: go (no server)"), "{text}");
    }

    #[test]
    fn void_runs_are_told_but_not_counted() {
        let mut void = record("redis", &[], Some("cut short"), 9.0);
        void.void = Some("the twin died".to_owned());
        let mut both = record("redis", &["dead"], None, 0.5);
        both.void = Some("the twin died, too".to_owned());
        let text =
            markdown(&[record("redis", &[], None, 0.7), void, both], &["redis".to_owned()], &[], |_| None);
        assert!(
            text.contains(
                "**2 watched runs, 2 of them with at least one hit: 1 harmed; Tithe failed in 0.**"
            ),
            "{text}"
        );
        assert!(text.contains("| redis | 5% | 2 | 2 | 1 | 0 | 0.600 (0.500..0.700)"), "{text}");
        assert!(text.contains("## Void\n\n- redis:5%, round 0: the twin died\n"), "{text}");
        assert!(!text.contains("cut short") && !text.contains("died, too"), "{text}");
    }

    #[test]
    fn runs_without_hits_and_runs_without_tithe_are_told_apart() {
        let mut unseen = record("redis", &[], None, 0.9);
        unseen.observation.hits = 0;
        let mut calls = unseen.clone();
        calls.observation.operations = 5;
        let mut none = unseen.clone();
        (none.mode, none.slices) = ("none".to_owned(), None);
        let records = [record("redis", &[], None, 0.9), unseen, calls, none];
        let excuse = |record: &Record| (record.observation.operations == 0).then_some("stripped");
        let text = markdown(&records, &["redis".to_owned()], &[], excuse);
        assert!(text.contains("**3 watched runs, 1 of them with at least one hit: 0 harmed;"), "{text}");
        assert!(text.contains("Beside them 1 runs without Tithe (`none`)."), "{text}");
        assert!(text.contains("In 1 runs the slices"), "{text}");
        assert!(
            text.contains("| redis | none | 1 | - | 0 | - | 0.900 (0.900..0.900) | - | - | - | - |"),
            "{text}"
        );
        let none = text.find("| redis | none").unwrap();
        assert!(none < text.find("| redis | 5% | 3 | 1 | 0 | 0 |").unwrap(), "{text}");
        let why = "- redis:5%: 2 (its operations were counted without breakpoints; stripped)\n";
        assert!(text.contains(why), "{text}");
    }

    #[test]
    fn runs_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        for harm in ["dead", "late"] {
            place::keep(&path, &record("redis", &[harm], None, 0.5)).unwrap();
        }
        let read: Vec<Record> = place::finished(&path).unwrap();
        assert_eq!((read.len(), &read[1].harmed[..]), (2, &["late".to_owned()][..]));
    }
}
