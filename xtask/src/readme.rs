//! README's first screen: one run and one comparison, written by this script and never by hand.
//!
//! Inputs: the recording in `docs/readme/recording`, what the recorded redis counted itself beside it (`commandstats.txt`), and the tables of
//! `docs/benchmarks-durations.md`. Output: what stands in README.md between the two marks. It measures nothing.

use crate::shell;
use anyhow::{Context, Result, ensure};
use std::process::Command;

/// `cargo xtask readme`.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// Write nothing; fail if README.md has something else
    #[arg(long)]
    pub check: bool,
}

const BEGIN: &str = "<!-- written by `cargo xtask readme` -->\n";
const END: &str = "<!-- end -->";
/// As the recording was made.
const COMMAND: &str = "sudo tithe record --pid $(pidof redis-server) --budget 2% --duration 15s \\\n    --latency lrangeCommand --latency writeToClient";
/// Functions shown.
const ROWS: &str = "7";
/// Lines of the receipt that are shown.
const RECEIPT: [&str; 5] = ["allowed", "predicted", "measured", "hits lost", "agent"];

/// Writes or checks the block.
///
/// # Errors
///
/// If an input cannot be read or lacks what is shown, or README.md has something else and may not be changed.
pub fn run(options: &Options) -> Result<()> {
    shell::run(shell::cargo().args([
        "build",
        "--locked",
        "--quiet",
        "-p",
        "profiler-user",
        "--bin",
        "tithe",
    ]))?;
    let folder = shell::root().join("docs/readme");
    let mut tithe = Command::new(shell::target_dir().join("debug/tithe"));
    let report = shell::output(
        tithe.arg("report").arg(folder.join("recording")).args(["--rows", ROWS]).env("COLUMNS", "100"),
    )?;
    let read = |path: std::path::PathBuf| {
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let counted = read(folder.join("commandstats.txt"))?;
    let measured = read(shell::root().join("docs/benchmarks-durations.md"))?;
    let path = shell::root().join("README.md");
    let readme = read(path.clone())?;
    let (before, rest) = readme.split_once(BEGIN).context("README.md has no mark of `cargo xtask readme`")?;
    let (_, after) = rest.split_once(END).context("README.md has no second mark of `cargo xtask readme`")?;
    let wanted = format!("{before}{BEGIN}{}{END}{after}", block(&report, &counted, &measured)?);
    if wanted == readme {
        println!("README.md shows what its recording gives");
    } else {
        ensure!(!options.check, "README.md does not show what its recording gives; run `cargo xtask readme`");
        std::fs::write(&path, wanted)?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

fn block(report: &str, counted: &str, measured: &str) -> Result<String> {
    Ok(format!(
        "```console\n$ {COMMAND}\n{}```\n\n{}\n\n{}",
        excerpt(report)?,
        own_word(counted)?,
        comparison(measured)?
    ))
}

/// Table, times of calls, and some lines of the receipt.
fn excerpt(report: &str) -> Result<String> {
    let parts: Vec<&str> = report.split("\n\n").collect();
    let part = |first: &str| {
        parts
            .iter()
            .find(|part| part.starts_with(first))
            .with_context(|| format!("the report has no part '{first}'"))
    };
    // Legends say what the letters mean; below the run README does.
    let table: Vec<&str> =
        part("FUNCTION")?.lines().take_while(|line| !line.starts_with("CPU, SELF")).collect();
    let times: Vec<&str> =
        part("TIME OF A CALL")?.lines().take_while(|line| !line.starts_with("what probes")).collect();
    let mut out = format!("{}\n\n{}\n\n{}\n\nBudget receipt\n", parts[0], table.join("\n"), times.join("\n"));
    let mut shown = false;
    for line in part("Budget receipt")?.lines().skip(1) {
        let label = line.strip_prefix("  ").and_then(|line| line.get(..14)).map_or("", str::trim);
        // A heading ends the receipt; a line without a label goes on with the one before it.
        if !line.starts_with(' ') {
            break;
        }
        if !label.is_empty() {
            shown = RECEIPT.contains(&label);
        }
        if shown {
            out.push_str(&format!("{line}\n"));
        }
    }
    ensure!(
        RECEIPT.iter().all(|label| out.contains(&format!("\n  {label} "))),
        "the receipt lacks a line: {out}"
    );
    Ok(out)
}

/// What redis says of the same command.
fn own_word(counted: &str) -> Result<String> {
    let line = counted
        .lines()
        .find(|line| line.starts_with("cmdstat_lrange:"))
        .context("redis counted no LRANGE")?;
    let value = |name: &str| {
        let part = line.split([':', ',']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        part.with_context(|| format!("redis's line has no {name}: {line}"))
    };
    Ok(format!(
        "Debian's redis under `redis-benchmark`, which asks for a list of 300 numbers again and again. redis times its commands, too: `INFO commandstats` \
         says {} us per `LRANGE` (n = {}, all of them).",
        value("usec_per_call")?,
        thousands(value("calls")?)
    ))
}

/// Each tool on one function, at costs that are alike where they can be.
fn comparison(measured: &str) -> Result<String> {
    let mut out = "| a function that takes | its entry | bpftrace says | the program got slower by | Tithe says (`--budget 5%`) | slower by |\n\
         |---|---|---|---|---|---|\n"
        .to_owned();
    for (entry, ns) in [("push", "100"), ("endbr64; push", "100"), ("push", "1,000"), ("push", "10,000")] {
        let key = format!("{entry}, {ns}");
        let mean = row(measured, "### Error of the mean", &key, "truth")?;
        let slower = row(measured, "### Error of the mean", &key, "timed by")?;
        ensure!(mean.len() == 9 && slower.len() == 7, "the tables of the benchmark have other columns");
        let interval = if mean[7].is_empty() { String::new() } else { format!(" ({})", mean[7]) };
        out.push_str(&format!(
            "| {} ns | `{entry}` | {} ns | {} % | {} ns{interval} | {} % |\n",
            median(&mean[1]),
            median(&mean[2]),
            median(&slower[5]),
            median(&mean[5]).replace("<=", "≤"),
            median(&slower[6])
        ));
    }
    let cost = "### Cost of a timed call, ns";
    let of = |who: &str| row(measured, cost, who, "who");
    let (ours, bpftrace, perf) = (
        of("ours, return link")?,
        of("bpftrace 0.17: uprobe, uretprobe, map by thread")?,
        of("`perf record`, entry and `%return`")?,
    );
    out.push_str(&format!(
        "\nbpftrace times every call and tells its own price as the program's, with no interval. What a timed call costs, in ns: Tithe {}, bpftrace {}, \
         `perf record` {} at a `push`; {}, {} and {} at `endbr64; push`, with which compilers of several distributions begin every function. (Medians of 3 and 7 rounds on \
         a machine that was not quiet; n, spread and all other rows: [docs/benchmarks-durations.md](docs/benchmarks-durations.md#beside-bpftrace-and-perf).)\n",
        median(&ours[1]),
        median(&bpftrace[1]),
        median(&perf[1]),
        median(&ours[2]),
        median(&bpftrace[2]),
        median(&perf[2])
    ));
    Ok(out)
}

/// The cells of the row that begins with `first`, of the first table below `heading` whose own heading has `with`.
fn row(text: &str, heading: &str, first: &str, with: &str) -> Result<Vec<String>> {
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|c| c.trim_matches([' ', '|']).to_owned()).collect::<Vec<_>>()
    };
    let below = text.lines().skip_while(|line| *line != heading).skip(1);
    let mut inside = false;
    let mut last = "";
    for line in below.take_while(|line| !line.starts_with('#')) {
        if line.starts_with("|---") {
            inside = last.contains(with);
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside && cells(line)[0] == first {
            return Ok(cells(line));
        }
        last = line;
    }
    anyhow::bail!("no row '{first}' below '{heading}', in a table with '{with}'")
}

/// `506 (498 to 522)` without its spread.
fn median(cell: &str) -> &str {
    cell.split(" (").next().unwrap_or(cell).trim()
}

fn thousands(digits: &str) -> String {
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "redis (pid 1): 15.0 s\n\nFUNCTION  CPU\nf  1 %\n… and 9 more (--rows)\nCPU, SELF from samples\n\nTIME OF A CALL  P50\nf  1 us\n\
         what probes cost is taken out\n\nf: a note\n\nBudget receipt\n  allowed       2%\n  predicted     1 %\n                again\n  \
         measured      2 %\n  spent on      traced\n                more of it\n  hits lost     0\n  agent         3 %\nWhat changed\n  0.1 s: agent         x\n";

    #[test]
    fn the_excerpt_has_tables_and_the_lines_of_the_receipt_that_matter() {
        assert_eq!(
            excerpt(REPORT).unwrap(),
            "redis (pid 1): 15.0 s\n\nFUNCTION  CPU\nf  1 %\n… and 9 more (--rows)\n\nTIME OF A CALL  P50\nf  1 us\n\nBudget receipt\n  \
             allowed       2%\n  predicted     1 %\n                again\n  measured      2 %\n  hits lost     0\n  agent         3 %\n"
        );
        assert!(
            excerpt(&REPORT.replace("measured", "measures"))
                .unwrap_err()
                .to_string()
                .contains("lacks a line")
        );
    }

    #[test]
    fn redis_s_own_word_is_read() {
        let text = own_word("# Commandstats\r\ncmdstat_lrange:calls=962829,usec=10235071,usec_per_call=10.63,rejected_calls=0").unwrap();
        assert!(text.contains("says 10.63 us per `LRANGE` (n = 962,829, all of them)"), "{text}");
        assert!(own_word("cmdstat_get:calls=1").is_err());
    }

    #[test]
    fn a_row_is_found_by_heading_table_and_first_cell() {
        let text = "### A\n\n| who | x |\n|---|---|\n| a | 1 (0 to 2) |\n\n| other | x |\n|---|---|\n| a | 2 |\n### B\n| who | x |\n|---|---|\n| a | 3 |\n";
        assert_eq!(row(text, "### A", "a", "other").unwrap(), ["a", "2"]);
        assert_eq!(median(&row(text, "### A", "a", "who").unwrap()[1]), "1");
        assert_eq!(row(text, "### B", "a", "who").unwrap()[1], "3");
        assert!(row(text, "### B", "b", "who").is_err());
    }
}
