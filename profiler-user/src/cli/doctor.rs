//! `tithe doctor`: says what this machine and a target allow.

use super::PrintFormat;
use crate::calibrate;
use crate::config::values::parse_pid;
use crate::doctor;
use crate::failure::Failure;
use crate::prober::{Kernel, KernelOptions};
use crate::terminal;
use clap::Args;

const EXAMPLES: &str = "Examples:
  sudo tithe doctor
  sudo tithe doctor --pid 1234
  sudo tithe doctor --pid 1234 --format json";

/// `tithe doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Also look at this process
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
}

/// Runs the command.
///
/// # Errors
/// There is no such process, or this host cannot be used.
pub(super) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    // Tried, whatever is known.
    let kernel = Kernel::load(&KernelOptions::default());
    if let Err(why) = calibrate::keep_tier(kernel.as_ref().ok()) {
        terminal::note(&why);
    }
    let tier = match kernel {
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
        PrintFormat::Text => terminal::text(&doctor::render_text(Some(&host), target.as_ref()))?,
        PrintFormat::Json => {
            let both = serde_json::json!({ "host": host, "target": target });
            terminal::json(&format!("{both:#}"))?;
        }
    }
    if host.usable() {
        return Ok(());
    }
    Err(Failure::attach(anyhow::anyhow!("this host cannot be used as it is; see above")))
}
