//! From a parsed command line to the work.

use crate::calibrate::{self, CalibrateOptions};
use crate::cli::{CalibrateArgs, Cli, Command, DoctorArgs, Format, PlanArgs, RecordArgs, ReportArgs};
use crate::config::RunConfig;
use crate::doctor;
use crate::failure::Failure;
use crate::mend;
use crate::mend::heirs::{FileId, Image, Known};
use crate::output::{self, TextOptions};
use crate::prober::{Kernel, KernelOptions};
use crate::recording;
use crate::replay::replay;
use crate::session;
use crate::target;
use crate::terminal;
use crate::watchdog::Watchdog;
use clap::CommandFactory;
use profiler_core::cost::{CostModel, Price};
use profiler_core::plan::{self, Objective, Options, Problem, Strategy, UnknownStrategy};
use profiler_core::recording::Recording;
use profiler_core::report::Report;
use profiler_core::text::make_printable;
use std::io::Write;
use std::path::Path;

/// Runs the command and returns the exit status: 0, or that of the program that `record` launched. To be called first thing in `main`: the watchdog must be forked before there are threads.
///
/// # Errors
/// A [`Failure`] with its exit code.
pub fn run(cli: Cli) -> Result<u8, Failure> {
    match cli.command {
        Command::Record(args) => record(&args),
        other => run_other(other).map(|()| 0),
    }
}

fn run_other(command: Command) -> Result<(), Failure> {
    match command {
        Command::Record(args) => record(&args).map(drop),
        Command::Report(args) => report(&args),
        Command::Replay(args) => replay(&args),
        Command::Calibrate(args) => calibrate(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tithe", &mut std::io::stdout());
            Ok(())
        }
        Command::InternalChild { .. } => {
            calibrate::child_main().map_err(|e| Failure::from(anyhow::Error::new(e)))
        }
        Command::InternalMend { pid, known } => {
            let pair = |at: usize| {
                let pair = known.get(at).copied().zip(known.get(at + 1).copied());
                pair.filter(|pair| *pair != (0, 0))
            };
            let known = Known {
                program: pair(0).map(|(device, inode)| FileId { device, inode }),
                image: pair(2).map(|(code, stack)| Image { code, stack }),
                parent: known.get(4).and_then(|pid| u32::try_from(*pid).ok()).filter(|pid| *pid != 0),
            };
            mend_by_watchdog(pid, known)
        }
        Command::Plan(args) => plan(&args),
        Command::Doctor(args) => doctor(&args),
    }
}

/// The watchdog's own standard error leads nowhere, so the kernel's log hears of a failure, too.
fn mend_by_watchdog(pid: u32, known: Known) -> Result<(), Failure> {
    mend::mend(pid, known).map(drop).map_err(|error| {
        if let Ok(mut log) = std::fs::File::options().write(true).open("/dev/kmsg") {
            // Nobody else could be told.
            let _ = writeln!(log, "tithe: {error}");
        }
        Failure::attach(error)
    })
}

fn record(args: &RecordArgs) -> Result<u8, Failure> {
    session::preflight()?;
    let config = RunConfig::try_from(args)?;
    target::remember_limits();
    let watchdog = Watchdog::start().map_err(Failure::attach)?;
    let finished = session::record(&config, &watchdog)?;
    show(&finished.report, args.format, args.rows)?;
    let path = finished.path.display();
    if args.format == Format::Text {
        terminal::note(format_args!("recording in {path}; 'tithe report {path} -o flame.svg' draws it"));
    }
    Ok(finished.status.unwrap_or(0))
}

fn report(args: &ReportArgs) -> Result<(), Failure> {
    let mut formats = Vec::new();
    let mut shown = args.output.is_empty();
    for path in &args.output {
        if ["-", "/dev/stdout"].iter().any(|stdout| path == Path::new(stdout)) {
            shown = true;
            continue;
        }
        let format = output::Format::of_path(path).map_err(|e| Failure::usage(e.to_string()))?;
        formats.push((path, format));
    }
    let recording = recording::open(&args.recording).map_err(|e| Failure::usage(e.to_string()))?;
    let report = Report::from_recording(&recording);
    if shown {
        show(&report, args.format, args.rows)?;
    }
    for (path, format) in formats {
        write(path, format, &report, &recording, args.rows)?;
    }
    Ok(())
}

fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let strategy: Strategy = match &args.strategy {
        Some(name) => name.parse().map_err(|e: UnknownStrategy| Failure::usage(e))?,
        None => Strategy::Auto,
    };
    let mut problem = match &args.classes {
        Some(path) => table(path)?,
        None => {
            session::preflight()?;
            let config = RunConfig::try_from(args)?;
            target::remember_limits();
            let watchdog = Watchdog::start().map_err(Failure::attach)?;
            session::plan(&config, &watchdog)?
        }
    };
    if let (Some(budget), Some(path)) = (args.budget, &args.classes) {
        if !problem.priced {
            return Err(Failure::usage(format!(
                "{}: --budget {budget} needs prices, the table has max_frequency alone; accepted: report_time_us in the \
                 table, or no --budget",
                path.display()
            )));
        }
        problem.budget = budget.cpu_per_second(problem.target_cpu);
    }
    match args.objective.as_deref() {
        None => {}
        Some("information") => problem.objective = Objective::Information,
        Some("precision") => problem.objective = Objective::Precision,
        Some(other) => {
            let text = format!("there is no objective '{other}': choose from information, precision");
            return Err(Failure::usage(text));
        }
    }
    if args.format == Format::Text {
        problem.classes.iter_mut().for_each(|class| make_printable(&mut class.name));
    }
    let options = Options { top: args.top, ..Options::default() };
    let plans = plan::solve_top(&problem, strategy, &options).map_err(|error| {
        let place = args.classes.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default();
        Failure::usage(format!("{place}{error}"))
    })?;
    // OK because there is a plan or an error.
    let outlook = plan::outlook(&problem, &plans[0], strategy);
    match args.format {
        Format::Text => terminal::text(&plan::render_text(&problem, &plans, &outlook))?,
        Format::Json => {
            let output = plan::Output::new(&problem, &plans, outlook);
            terminal::json(&serde_json::to_string_pretty(&output).map_err(anyhow::Error::new)?)?;
        }
    }
    Ok(())
}

/// Reads a class table; every error with file and line.
fn table(path: &Path) -> Result<Problem, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("cannot read the class table '{}': {e}", path.display())))?;
    let table = plan::table::parse(&text).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|e| format!("{}, {e}", path.display())).collect();
        Failure::usage(lines.join("\n"))
    })?;
    Ok(table.problem)
}

fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let tier = match Kernel::load(&KernelOptions::default()) {
        Ok(kernel) => {
            let findings = kernel.tier_findings().iter();
            let refused: Vec<_> = findings.filter_map(|f| Some((f.tier, &**f.refused.as_ref()?))).collect();
            // Tiers that are refused for the same reason are named together.
            let reasons: Vec<String> = refused
                .chunk_by(|a, b| a.1 == b.1)
                .map(|same| {
                    let tiers: Vec<String> = same.iter().map(|(tier, _)| format!("{tier:?}")).collect();
                    format!("not {}: {}", tiers.join(" or "), same[0].1)
                })
                .collect();
            let notes = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
            format!("{:?}{notes}", kernel.tier())
        }
        Err(error) => format!("none: {error}"),
    };
    let host = doctor::check_host(Some(&tier));
    let pid = args.pid.map(|pid| i32::try_from(pid).unwrap_or(i32::MAX));
    let target = pid.map(doctor::check_target).transpose().map_err(Failure::attach)?;
    match args.format {
        Format::Text => terminal::text(&doctor::render_text(Some(&host), target.as_ref()))?,
        Format::Json => {
            let both = serde_json::json!({ "host": host, "target": target });
            terminal::json(&format!("{both:#}"))?;
        }
    }
    if host.usable() {
        return Ok(());
    }
    Err(Failure::attach(anyhow::anyhow!("this host cannot be used as it is; see above")))
}

fn write(
    path: &Path,
    format: output::Format,
    report: &Report,
    recording: &Recording,
    rows: usize,
) -> Result<(), Failure> {
    let options = TextOptions { rows, ..TextOptions::default() };
    let bytes = output::render(report, recording, format, options).map_err(anyhow::Error::new)?;
    output::file::write(path, &bytes).map_err(anyhow::Error::new)?;
    terminal::note(format_args!("wrote {}", path.display()));
    Ok(())
}

fn show(report: &Report, format: Format, rows: usize) -> Result<(), Failure> {
    match format {
        Format::Text => {
            terminal::text(&output::text(report, TextOptions { rows, ..TextOptions::for_stdout() }))?;
        }
        Format::Json => {
            terminal::json(&serde_json::to_string_pretty(report).map_err(anyhow::Error::new)?)?;
        }
    }
    Ok(())
}

fn calibrate(args: &CalibrateArgs) -> Result<(), Failure> {
    session::preflight()?;
    let kernel = Kernel::load(&KernelOptions::default()).map_err(Failure::attach)?;
    let tier = kernel.tier();
    drop(kernel);
    let options = CalibrateOptions { refresh: true, ..CalibrateOptions::default() };
    let calibration = calibrate::load_or_run(tier, &options).map_err(Failure::attach)?;
    for note in &calibration.notes {
        terminal::note(note);
    }
    match args.format {
        Format::Json => {
            terminal::json(&serde_json::to_string_pretty(&calibration.model).map_err(anyhow::Error::new)?)?;
        }
        Format::Text => terminal::text(&price_table(&calibration.model))?,
    }
    Ok(())
}

/// Prices for people: ns of the target's CPU time, median (smallest to largest run).
fn price_table(model: &CostModel) -> String {
    let mut text = format!("prices on this host, ns ({})\n", model.origin);
    let mut line = |name: &str, p: &Price| {
        text.push_str(&format!(
            "  {name:<24} {:>10.0}   {:.0} to {:.0}, n = {}\n",
            p.ns, p.min_ns, p.max_ns, p.n
        ));
    };
    for (key, price) in &model.hit {
        line(&format!("hit {key}"), price);
    }
    for (key, price) in &model.pair {
        line(&format!("entry+return {key}"), price);
    }
    line("sample", &model.sample_base);
    line("sample, per KiB of stack", &model.sample_per_kib);
    line("context switch", &model.switch);
    line("tracepoint", &model.tracepoint);
    line("cold caches, per trap", &model.cold);
    line("attach, stall", &model.attach);
    line("detach, delay", &model.detach_delay);
    text
}
