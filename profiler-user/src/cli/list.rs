//! `tithe list`: says of functions of a process what can be had of them, and at which price.

use super::PrintFormat;
use crate::agent;
use crate::calibrate::{self, CalibrateOptions};
use crate::config::values::parse_pid;
use crate::doctor;
use crate::failure::Failure;
use crate::inspect::{Inspection, Pattern, Unmatched};
use crate::output::{self, TextOptions};
use crate::prober::KernelOptions;
use crate::terminal;
use clap::Args;
use profiler_core::text::shell_word;

const EXAMPLES: &str = "Examples:
  sudo tithe list --pid 1234 'sqlite3_*'
  sudo tithe list --pid 1234 'db::*' '/Parser.*parse/'
  sudo tithe list --pid 1234 'libc.so.6:mall*' --format json";

/// `tithe list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Process whose functions are listed
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: u32,
    /// Which functions, as --latency takes them: a glob on the demangled name ('sqlite3*', 'db::*'), '/regex/', or
    /// 'module:glob'
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
}

/// Runs the command.
///
/// # Errors
/// No root, no such process, a pattern that makes no sense or names nothing, or a kernel that cannot be measured.
pub(super) fn run(args: &ListArgs) -> Result<(), Failure> {
    let patterns: Result<Vec<Pattern>, _> = args.patterns.iter().map(|text| Pattern::parse(text)).collect();
    let patterns = patterns.map_err(Failure::usage)?;
    agent::preflight()?;
    let mut inspection = Inspection::of(args.pid.cast_signed()).map_err(Failure::attach)?;
    if patterns.is_empty() {
        return Err(Failure::usage(which(&inspection)));
    }
    let resolution = inspection.resolve(&patterns);
    let nothing: Vec<String> = resolution.unmatched.iter().map(unmatched).collect();
    if resolution.functions.is_empty() {
        return Err(Failure::usage(nothing.join("\n")));
    }
    nothing.iter().for_each(terminal::note);
    let kernel = calibrate::load_kernel(&KernelOptions::default()).map_err(Failure::attach)?;
    let tier = kernel.tier();
    drop(kernel);
    let calibration = calibrate::load_or_run(tier, &CalibrateOptions::default()).map_err(Failure::attach)?;
    calibration.notes.iter().for_each(terminal::note);
    inspection.use_rules(calibration.rules);
    let list = doctor::list_functions(&inspection, &resolution.functions, &calibration.model);
    match args.format {
        PrintFormat::Text => {
            terminal::text(&doctor::render_functions(&list, TextOptions::for_stdout().width))?;
        }
        PrintFormat::Json => {
            terminal::json(&serde_json::to_string_pretty(&list).map_err(anyhow::Error::new)?)?;
        }
    }
    Ok(())
}

/// Said where no pattern is given.
fn which(inspection: &Inspection) -> String {
    let counts = inspection.modules().iter().map(|module| (module.function_count(), module));
    let counts: Vec<_> = counts.filter(|(n, _)| *n > 0).collect();
    let functions = output::count(counts.iter().map(|(n, _)| n).sum::<usize>() as f64);
    // The program itself may be stripped.
    let example = counts.iter().max_by_key(|(n, module)| (module.main, *n));
    let example = example.map(|(_, module)| format!("{}:*", module.name));
    let example = example.as_deref().and_then(shell_word).map_or("'main*'".into(), |word| word.into_owned());
    format!(
        "process {pid} has {functions} functions in {} modules: name those to be listed, as in\n  \
         sudo tithe list --pid {pid} {example}",
        counts.len(),
        pid = inspection.pid()
    )
}

/// Why a pattern named nothing.
fn unmatched(unmatched: &Unmatched) -> String {
    let Unmatched { pattern, reason, suggestions } = unmatched;
    let similar =
        if suggestions.is_empty() { String::new() } else { format!("; similar: {}", suggestions.join(", ")) };
    format!("'{pattern}': {reason}{similar}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ourselves() -> Inspection {
        Inspection::of(std::process::id().cast_signed()).unwrap()
    }

    #[test]
    fn without_a_pattern_it_says_how_many_functions_there_are() {
        let said = which(&ourselves());
        let (pid, rest) = said.split_once(" has ").unwrap();
        assert_eq!(pid, format!("process {}", std::process::id()));
        let functions: usize = rest.split(' ').next().unwrap().replace(',', "").parse().unwrap();
        assert!(functions > 1_000, "{said}");
        assert!(
            said.contains(&format!("\n  sudo tithe list --pid {} 'profiler_user-", std::process::id())),
            "{said}"
        );
        // What it proposes is accepted, and names functions.
        let example = said.split('\'').nth(1).unwrap();
        assert!(Pattern::parse(example).unwrap().matches_module(&ourselves().modules()[0].name), "{example}");
    }

    /// Debian's redis-server is a link to redis-check-rdb.
    #[test]
    fn a_program_that_is_named_as_it_was_started_is_told_by_its_file() {
        let ourselves = ourselves();
        // The kernel keeps 15 letters of it: that is no file's name.
        let started = &ourselves.status().name;
        let resolution = ourselves.resolve(&[Pattern::parse(&format!("{started}:main")).unwrap()]);
        let said = unmatched(&resolution.unmatched[0]);
        let file = &ourselves.modules()[0].name;
        assert!(said.contains("no mapped module has that name") && file != started, "{said}");
        assert!(said.ends_with(&format!("its file is {file}: write '{file}:main'")), "{said}");
        let other = ourselves.resolve(&[Pattern::parse("no-such-file:main").unwrap()]);
        assert!(!unmatched(&other.unmatched[0]).contains("write '"), "{other:?}");
    }

    #[test]
    fn what_names_nothing_has_similar_names() {
        let resolution = ourselves().resolve(&[Pattern::parse("libc.so.6:mallocc").unwrap()]);
        let said = unmatched(&resolution.unmatched[0]);
        assert!(said.starts_with("'libc.so.6:mallocc': no function symbol matches"), "{said}");
        assert!(said.contains("; similar: ") && said.contains("malloc"), "{said}");
    }
}
