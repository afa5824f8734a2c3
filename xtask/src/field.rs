//! The field suite: real programs, fetched or built below the target folder, watched under load, and written into
//! `docs/field.md`.
//!
//! Programs are fetched and built as the caller, and never installed, so that no service starts. The program `field` of
//! the tests crate runs them as root and judges; it prints Markdown, this writes the file.

mod build;
mod fetch;

use crate::shell;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// `cargo xtask field`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only this program, or this mode of it (repeatable); the document is then left alone and the table printed
    #[arg(long, value_name = "PROGRAM[:MODE]")]
    pub only: Vec<String>,
    /// Length of an observed run, s [default: 5; with --durations 30, with --coverage 40, with --models 20, with --kernels 120, with --anomalies 40, with --false-alarms 1560]; with --steps the length of the session [default: 86400]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Runs of each mode [default: 3; with --durations 10, with --widths and --kernels 1, with --coverage 14, with --anomalies 20, with --false-alarms 1, with --steps as many as it takes]
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Forget finished runs, which are kept in target/field/runs.jsonl
    #[arg(long)]
    pub fresh: bool,
    /// List the programs and their modes
    #[arg(long)]
    pub list: bool,
    /// Run nothing: write docs/field.md (with --durations docs/field-durations.md, with --widths docs/field-widths.md, with --coverage
    /// docs/field-coverage.md, with --models docs/field-models.md, with --kernels, --anomalies and --false-alarms sections of docs/benchmarks-models.md, with --steps
    /// one of docs/calls.md) anew from the finished runs
    #[arg(long)]
    pub table: bool,
    /// Judge durations and calls by the programs' own word, for docs/field-durations.md: 10 runs of 30 s each, kept in
    /// target/field/durations.jsonl, unless --rounds and --seconds say otherwise. --only is then PROGRAM or PROGRAM:CASE
    #[arg(long)]
    pub durations: bool,
    /// Compare how narrow the intervals of calls are with `--objective information` and `precision`, for docs/field-widths.md: a round is 15 and 60 s at 1, 2 and 5 % of
    /// six programs (1 h), kept in target/field/widths.jsonl. --only is then PROGRAM or PROGRAM:BUDGET
    #[arg(long, conflicts_with_all = ["durations", "seconds", "fresh", "list"])]
    pub widths: bool,
    /// Count how often the intervals of totals, rates, means and shares hold what redis, memcached and SQLite say by their own counters, for docs/field-coverage.md: 14 runs of
    /// each, 40 s between two unobserved stretches of 10 s (1 h), at 2 %, kept in target/field/coverage.jsonl. --only is then PROGRAM
    #[arg(long, conflicts_with_all = ["durations", "widths", "list"])]
    pub coverage: bool,
    /// Make execution-time models of library functions whose growth is known, for docs/field-models.md: 3 runs of 20 s of each at 5 %, kept in target/field/models.jsonl (10 minutes).
    /// --only is then FUNCTION
    #[arg(long, conflicts_with_all = ["durations", "widths", "coverage", "list"])]
    pub models: bool,
    /// Make execution-time models of the functions of SQLite and jaq under a load with parameters, by class as in Table 1 of the ADLER paper: a run of 120 s at 20 % for each of nine
    /// slices of functions, kept in target/field/kernels.jsonl (25 minutes); writes the section of docs/benchmarks-models.md. --only is then PROGRAM or PROGRAM:SLICE
    #[arg(long, conflicts_with_all = ["durations", "widths", "coverage", "models", "list"])]
    pub kernels: bool,
    /// Let things go wrong with a program on SQLite (reads and writes delayed, a lock held, its CPU taken, the page cache emptied, memory growing) and take how soon 'record --expect' and
    /// samples at static rates tell it: 20 repetitions of 10 s each, after a clean recording of 40 s, kept in target/field/anomalies.jsonl (70 minutes); writes the sections of
    /// docs/benchmarks-models.md. --only is then ANOMALY (delay, lock, cpu, cache, memory)
    #[arg(long, conflicts_with_all = ["durations", "widths", "coverage", "models", "kernels", "list"])]
    pub anomalies: bool,
    /// Take how often 'record --expect' tells that something goes wrong where nothing does: ten programs at once, all but one twice, each held against a recording of 60 s for a piece of 1560 s
    /// (8 h of watched programs in half an hour), kept in target/field/alarms.jsonl; writes the section of docs/benchmarks-models.md. --only is then PROGRAM
    #[arg(long, conflicts_with_all = ["durations", "widths", "coverage", "models", "kernels", "anomalies", "list"])]
    pub false_alarms: bool,
    /// Compare recorded calls in order with the log that their target writes of itself: trees at random on 1, 2 and 16 threads, recursion, tail calls, longjmp, exceptions, signals, coroutines,
    /// code made at run time and forks take turns in rounds of 2 million calls, until --until calls were compared, kept in target/field/steps.jsonl; writes the section of docs/calls.md. A
    /// session that was ended is gone on with
    #[arg(long, conflicts_with_all = ["durations", "widths", "coverage", "models", "kernels", "anomalies", "false_alarms", "list", "only"])]
    pub steps: bool,
    /// With --steps: calls that are to be compared in all rounds [default: 100000000]
    #[arg(long, value_name = "CALLS", requires = "steps")]
    pub until: Option<u64>,
}

impl Options {
    /// Option of `field`, document, and default length and number of runs of what is asked for beside the suite itself.
    fn mode(&self) -> Option<Mode> {
        let modes = [
            (
                self.durations,
                Mode { option: "--durations", document: "docs/field-durations.md", seconds: 30, rounds: 10 },
            ),
            (
                self.widths,
                Mode { option: "--widths", document: "docs/field-widths.md", seconds: 5, rounds: 1 },
            ),
            (
                self.coverage,
                Mode { option: "--coverage", document: "docs/field-coverage.md", seconds: 40, rounds: 14 },
            ),
            (
                self.models,
                Mode { option: "--models", document: "docs/field-models.md", seconds: 20, rounds: 3 },
            ),
            (
                self.kernels,
                Mode { option: "--kernels", document: "docs/benchmarks-models.md", seconds: 120, rounds: 1 },
            ),
            (
                self.anomalies,
                Mode {
                    option: "--anomalies",
                    document: "docs/benchmarks-models.md",
                    seconds: 40,
                    rounds: 20,
                },
            ),
            (
                self.false_alarms,
                Mode {
                    option: "--false-alarms",
                    document: "docs/benchmarks-models.md",
                    seconds: 1_560,
                    rounds: 1,
                },
            ),
            (
                self.steps,
                Mode { option: "--steps", document: "docs/calls.md", seconds: 86_400, rounds: u32::MAX },
            ),
        ];
        modes.into_iter().find_map(|(is_asked, mode)| is_asked.then_some(mode))
    }
}

/// What can be asked for beside the suite itself.
struct Mode {
    option: &'static str,
    document: &'static str,
    seconds: u64,
    rounds: u32,
}

/// What CI runs, for 20 s each: programs that need little to be built.
const IN_CI: [&str; 5] = ["cpython", "sqlite", "openssl", "throws", "memcached"];

/// `target/field`.
fn base() -> PathBuf {
    shell::target_dir().join("field")
}

/// Runs the command.
///
/// # Errors
///
/// If the suite cannot be built, or a program that is there cannot be run.
pub fn run(options: &Options) -> Result<()> {
    ensure!(shell::can_be_root(), "the suite traces: run it as root, or let sudo work without a password");
    if !options.list && !options.table && !options.steps {
        let asked = [
            options.durations,
            options.coverage,
            options.models,
            options.kernels,
            options.anomalies,
            options.false_alarms,
        ];
        let all: Vec<(&str, &str)> = match asked {
            [true, ..] => build::DURATIONS.to_vec(),
            [_, true, ..] => build::COVERAGE.to_vec(),
            [_, _, true, ..] => build::MODELS.to_vec(),
            [_, _, _, true, ..] => build::KERNELS.to_vec(),
            [.., true, _] => build::ANOMALIES.to_vec(),
            [.., true] => build::FALSE_ALARMS.to_vec(),
            _ => build::PROGRAMS.iter().map(|&program| (program, program)).collect(),
        };
        for (program, parts) in all {
            let wanted = |only: &String| only.split(':').next().unwrap_or(only).starts_with(program);
            let is_one_program = options.models || options.anomalies || options.false_alarms;
            if (is_one_program || options.only.is_empty() || options.only.iter().any(wanted))
                && let Err(error) = build::prepare(parts, &base())
            {
                // The table says that it was not run.
                eprintln!("{program} cannot be prepared: {error:#}");
            }
        }
    }
    // Both in one command, as elsewhere: each by itself would compile their dependencies with other features.
    shell::run(
        shell::cargo()
            .args(["build", "--locked", "--release", "-p", "profiler-user", "-p", "profiler-tests"])
            .arg("--bins"),
    )?;
    let release = shell::target_dir().join("release");
    let mut command = field(&release);
    let mode = options.mode();
    let (seconds, rounds) = mode.as_ref().map_or((5, 3), |mode| (mode.seconds, mode.rounds));
    command.args(["--seconds", &options.seconds.unwrap_or(seconds).to_string()]);
    command.args(["--rounds", &options.rounds.unwrap_or(rounds).to_string()]);
    command.args(mode.as_ref().map(|mode| mode.option));
    for only in &options.only {
        command.args(["--only", only]);
    }
    if let Some(until) = options.until {
        command.args(["--until", &until.to_string()]);
    }
    if options.fresh {
        command.arg("--fresh");
    }
    if options.list {
        command.arg("--list");
    }
    if options.table {
        command.arg("--table");
    }
    shell::say(&command);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start field")?;
    let text = String::from_utf8(output.stdout).context("field printed no UTF-8")?;
    print!("{text}");
    ensure!(output.status.success(), "field failed with {}", output.status);
    if options.only.is_empty() && !options.list {
        let name = mode.map_or("docs/field.md", |mode| mode.document);
        let path = shell::root().join(name);
        // What is no whole document is sections of one.
        let text = if text.starts_with(SECTION) { with_sections(read_if_any(&path)?, &text) } else { text };
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// How a section of a document begins.
const SECTION: &str = "## ";

/// The text of a file; nothing where there is none.
fn read_if_any(path: &std::path::Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The document with each of these sections in its place.
fn with_sections(document: String, sections: &str) -> String {
    let lines: Vec<&str> = sections.lines().collect();
    let each = lines.chunk_by(|_, next| !next.starts_with(SECTION));
    each.fold(document, |document, section| with_section(&document, &section.join("\n")))
}

/// The document with this section in the place of the one of the same heading, or behind all others.
fn with_section(document: &str, section: &str) -> String {
    let heading = section.lines().next().unwrap_or_default();
    let section = format!("{}\n", section.trim_end());
    let lines: Vec<&str> = document.lines().collect();
    let begin = lines.iter().position(|line| *line == heading).unwrap_or(lines.len());
    let rest = lines.iter().skip(begin + 1).position(|line| line.starts_with(SECTION));
    let end = rest.map_or(lines.len(), |rest| begin + 1 + rest);
    let part = |lines: &[&str]| lines.join("\n").trim_end().to_owned();
    let (before, after) = (part(&lines[..begin]), part(&lines[end..]));
    let before = if before.is_empty() { before } else { before + "\n\n" };
    let after = if after.is_empty() { after } else { format!("\n{after}\n") };
    format!("{before}{section}{after}")
}

/// The program `field` of a build, with the agent of the same build.
fn field(build: &std::path::Path) -> Command {
    let mut command = shell::as_root(build.join("field"), &[]);
    command.arg("--base").arg(base()).arg("--agent").arg(build.join("tithe"));
    command
}

/// Prepares the programs of CI, and returns the command that runs them with the debug build.
///
/// # Errors
///
/// If one of them cannot be fetched or built.
pub fn in_ci() -> Result<Command> {
    let mut command = field(&shell::target_dir().join("debug"));
    command.args(["--test", "--rounds", "1", "--seconds", "20"]);
    for program in IN_CI {
        build::prepare(program, &base()).with_context(|| format!("cannot prepare {program}"))?;
        command.args(["--only", &format!("{program}:5%")]);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_its_older_self_and_leaves_the_others() {
        let document = "# Title\n\nText.\n\n## One\n\nold\n\n### Inner\n\nold\n\n## Two\n\nkept\n";
        let new = with_section(document, "## One\n\nnew\n\n");
        assert_eq!(new, "# Title\n\nText.\n\n## One\n\nnew\n\n## Two\n\nkept\n");
        assert_eq!(with_section(&new, "## One\n\nnew\n"), new);
        assert_eq!(with_section("# Title\n", "## One\n\nnew\n"), "# Title\n\n## One\n\nnew\n");
        assert_eq!(with_section("", "## One\n"), "## One\n");
        assert_eq!(
            with_section("## One\n\nx\n\n## Two\n\ny\n", "## Two\n\nz\n"),
            "## One\n\nx\n\n## Two\n\nz\n"
        );
        let both = with_sections(new, "## Three\n\nthird\n\n## One\n\nnewest\n");
        assert_eq!(both, "# Title\n\nText.\n\n## One\n\nnewest\n\n## Two\n\nkept\n\n## Three\n\nthird\n");
    }
}
