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
const ROWS: &str = "8";
/// Lines of the receipt that are shown.
const RECEIPT: [&str; 6] = ["allowed", "predicted", "measured", "hits lost", "agent", "in all"];

/// Notes that are shown: where ends of calls are seen, and what that costs.
const NOTES: [&str; 2] = ["returns are seen at", "probe cost taken out of"];

/// Writes or checks the block.
///
/// # Errors
///
/// If an input cannot be read or lacks what is shown, or README.md has something else and may not be changed.
pub fn run(options: &Options) -> Result<()> {
    // The selection of the kernel tests, so that nothing is compiled for this alone.
    let selection = ["build", "--locked", "--quiet", "--workspace", "--bin", "tithe", "--tests"];
    shell::run(shell::cargo().args(selection))?;
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
    // How the calls were timed, for what that costs stands below.
    let is_said = |line: &&str| NOTES.iter().any(|note| line.contains(note));
    let notes: Vec<&str> = report.lines().filter(is_said).collect();
    let mut out = format!("{}\n\n{}\n\n{}\n\n", parts[0], table.join("\n"), times.join("\n"));
    out.extend(notes.iter().map(|note| format!("{note}\n")));
    out.push_str(if notes.is_empty() { "Budget receipt\n" } else { "\nBudget receipt\n" });
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
         says {} us per `LRANGE` (n = {}, all of them: it counted from before Tithe's start to after its end, so its n is larger than `CALLS`).",
        value("usec_per_call")?,
        thousands(value("calls")?)
    ))
}

const MEAN: &str = "### Error of the mean";
const COST: &str = "### Cost of a timed call, ns";

/// Each tool on one function beside its own truth, and what a timed call costs by how its end is seen.
fn comparison(measured: &str) -> Result<String> {
    let mut out = "| a function of, its entry | its mean, unwatched | bpftrace's mean | program slower by | its mean, unwatched | Tithe's mean (its interval) | program slower by |\n\
         |---|---|---|---|---|---|---|\n"
        .to_owned();
    for (entry, ns) in [("push", "100"), ("endbr64; push", "100"), ("push", "1,000"), ("push", "10,000")] {
        let key = format!("{entry}, {ns}");
        let mean = row(measured, MEAN, &key, "truth")?;
        let slower = row(measured, MEAN, &key, "timed by")?;
        ensure!(mean.len() == 9 && slower.len() == 7, "the tables of the benchmark have other columns");
        let interval = if mean[7].is_empty() { String::new() } else { format!(" ({})", mean[7]) };
        out.push_str(&format!(
            "| {ns} ns, `{entry}` | {} ns | {} ns | {} % | {} ns | {} ns{interval} | {} % |\n",
            median(&mean[1]),
            median(&mean[2]),
            median(&slower[5]),
            median(&mean[4]),
            median(&mean[5]).replace("<=", "≤"),
            median(&slower[6])
        ));
    }
    let (least, most) = noise(measured)?;
    let (commit, date) = build(measured)?;
    out.push_str(&format!(
        "\nMedians of n = {} runs of 5 s of each tool, in turns, each on a program of its own; bpftrace 0.17, Tithe at `--budget 5%` as of {date} (no later than commit {commit}), Linux 6.18. \
         *Unwatched*: a twin of the function in the same run. Nothing else was run meanwhile; of *slower by* differences of about 2 %, of either tool, are within the noise (medians of Tithe's: {least:+.1} to {most:+.1} %). bpftrace and perf have no budget, so that no cost can be set that is the same for all: the table has what each of them costs. bpftrace times every call \
         and tells its own price as the program's, with no interval.\n\n",
        rounds(measured, MEAN)?
    ));
    out.push_str(&costs(measured)?);
    out.push_str(&format!(
        "\nMedians of n = {} rounds, bpftrace 0.17, perf 6.1, same machine. `tithe list` says which way a function's end is seen; the run above names it. Compilers of \
         several distributions begin every function with `endbr64`. Spread and all other rows: \
         [docs/benchmarks-durations.md](docs/benchmarks-durations.md#beside-bpftrace-and-perf).\n",
        rounds(measured, COST)?
    ));
    Ok(out)
}

/// What a timed call costs by how its end is seen, and with the others' pairs.
fn costs(measured: &str) -> Result<String> {
    let of = |who: &str| row(measured, COST, who, "who");
    let link = of("ours, return link")?;
    let emulated = of("ours, return site, emulated, 7 bytes on")?;
    let stepped = [of("ours, exit site, stepped")?, of("ours, return site, stepped")?];
    let bpftrace = of("bpftrace 0.17: uprobe, uretprobe, map by thread")?;
    let perf = of("`perf record`, entry and `%return`")?;
    let mut out =
        "| CPU time of a timed call, ns | at `push` | at `endbr64; push` |\n|---|---|---|\n".to_owned();
    let mut line = |who: &str, cells: &[String]| {
        out.push_str(&format!("| {who} | {} | {} |\n", median(&cells[1]), median(&cells[2])));
    };
    line("Tithe, return link", &link);
    let dearer = number(median(&emulated[1]))? > number(median(&bpftrace[1]))?;
    let dearer = if dearer { " (at `push` dearer than bpftrace)" } else { "" };
    line(&format!("Tithe, return address, site emulated{dearer}"), &emulated);
    let mut range = vec![String::new()];
    for column in [1, 2] {
        let [a, b] = [median(&stepped[0][column]), median(&stepped[1][column])];
        let (low, high) = if number(a)? <= number(b)? { (a, b) } else { (b, a) };
        range.push(format!("{low} to {high}"));
    }
    line("Tithe, exit or return address, site single-stepped", &range);
    line("bpftrace, uprobe and uretprobe", &bpftrace);
    line("`perf record`, entry and `%return`", &perf);
    Ok(out)
}

/// Least and most of the medians of how much Tithe slowed the program, %.
fn noise(measured: &str) -> Result<(f64, f64)> {
    let mut ends = (f64::INFINITY, f64::NEG_INFINITY);
    for entry in ["push", "endbr64; push"] {
        for ns in ["100", "300", "1,000", "10,000"] {
            let row = row(measured, MEAN, &format!("{entry}, {ns}"), "timed by")?;
            let slower = number(median(row.get(6).context("the table has other columns")?))?;
            ends = (ends.0.min(slower), ends.1.max(slower));
        }
    }
    Ok(ends)
}

/// `7` of `..., 7 rounds` below a heading.
fn rounds<'a>(text: &'a str, heading: &str) -> Result<&'a str> {
    let below = text.split_once(heading).map_or("", |(_, below)| below);
    let before = below.split_once(" rounds").map_or("", |(before, _)| before);
    let n = before.rsplit(' ').next().filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    n.with_context(|| format!("nothing below '{heading}' says how many rounds"))
}

/// Commit and date of the build that was measured beside bpftrace and perf.
fn build(text: &str) -> Result<(&str, &str)> {
    let below = text.split_once("## Beside bpftrace and perf").map_or("", |(_, below)| below);
    let said = below.split_once("release build no later than the commit ").map_or("", |(_, said)| said);
    let (commit, rest) = said.split_once(" of ").context("nothing says which build was measured")?;
    Ok((commit, rest.split([',', ' ']).next().unwrap_or_default()))
}

/// `14,783`, `+1.5`, `-2.0`.
fn number(cell: &str) -> Result<f64> {
    cell.replace(',', "").parse().with_context(|| format!("'{cell}' is no number"))
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
         measured      2 %\n  spent on      traced\n                more of it\n  hits lost     0\n  agent         3 %\n  in all        4 s\nWhat changed\n  0.1 s: agent         x\n";

    #[test]
    fn the_excerpt_has_tables_and_the_lines_of_the_receipt_that_matter() {
        assert_eq!(
            excerpt(REPORT).unwrap(),
            "redis (pid 1): 15.0 s\n\nFUNCTION  CPU\nf  1 %\n… and 9 more (--rows)\n\nTIME OF A CALL  P50\nf  1 us\n\nBudget receipt\n  \
             allowed       2%\n  predicted     1 %\n                again\n  measured      2 %\n  hits lost     0\n  agent         3 %\n  in all        4 s\n"
        );
        assert!(
            excerpt(&REPORT.replace("measured", "measures"))
                .unwrap_err()
                .to_string()
                .contains("lacks a line")
        );
    }

    #[test]
    fn the_excerpt_says_where_ends_of_calls_are_seen() {
        let report = REPORT.replace("f: a note", "f: a note\nf: its returns are seen at 1 return address");
        let said = excerpt(&report).unwrap();
        assert!(
            said.contains("\n\nf: its returns are seen at 1 return address\n\nBudget receipt\n"),
            "{said}"
        );
    }

    #[test]
    fn redis_s_own_word_is_read() {
        let text = own_word("# Commandstats\r\ncmdstat_lrange:calls=962829,usec=10235071,usec_per_call=10.63,rejected_calls=0").unwrap();
        assert!(
            text.contains(
                "says 10.63 us per `LRANGE` (n = 962,829, all of them: it counted from before Tithe's start"
            ),
            "{text}"
        );
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

    /// What README says of the benchmark stands in it: the tables as they are, and with a dearer or cheaper end.
    #[test]
    fn a_comparison_has_both_truths_and_says_its_n_and_build() {
        let measured =
            std::fs::read_to_string(shell::root().join("docs/benchmarks-durations.md")).expect("a table");
        let text = comparison(&measured).unwrap();
        let line =
            |with: &str| text.lines().find(|line| line.contains(with)).unwrap_or_else(|| panic!("{text}"));
        let mean = row(&measured, MEAN, "endbr64; push, 100", "truth").unwrap();
        let shown = line("| 100 ns, `endbr64; push`");
        for cell in [&mean[1], &mean[2], &mean[4]] {
            assert!(shown.contains(&format!("| {} ns |", median(cell))), "{shown}");
        }
        assert!(line("Medians of n = 5 runs").contains("within the noise"), "{text}");
        assert!(text.contains("Medians of n = 7 rounds") && text.contains("bpftrace 0.17"), "{text}");
        assert!(line("site single-stepped").contains(" to "), "{text}");
        assert!(line("site emulated").contains("dearer than bpftrace"), "{text}");
        let cheap = comparison(&measured.replace("| 954 (", "| 854 (")).unwrap();
        assert!(!cheap.contains("dearer"), "{cheap}");
        assert!(comparison(&measured.replace("no later than the commit", "of")).is_err());
    }

    #[test]
    fn how_many_rounds_there_were_is_read_below_its_heading() {
        let text = "### A\nn = 3 rounds; x\n### B\n20,000 calls an arm, 7 rounds, all\n";
        assert_eq!((rounds(text, "### A").unwrap(), rounds(text, "### B").unwrap()), ("3", "7"));
        assert!(rounds("### A\nmany rounds", "### A").is_err() && rounds(text, "### C").is_err());
    }
}
