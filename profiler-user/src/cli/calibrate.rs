//! `tithe calibrate`: measures what watching costs on this machine.

use super::PrintFormat;
use crate::agent;
use crate::calibrate::{self, CalibrateOptions};
use crate::failure::Failure;
use crate::prober::{Kernel, KernelOptions};
use crate::terminal;
use clap::Args;
use profiler_core::cost::{CostModel, Price};

const EXAMPLES: &str = "Examples:
  sudo tithe calibrate
  sudo tithe calibrate --format json";

/// `tithe calibrate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// Form on standard output
    #[arg(long, value_enum, default_value = "text")]
    pub format: PrintFormat,
}

/// Runs the command.
///
/// # Errors
/// No root, or a kernel that cannot be measured.
pub(super) fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    agent::preflight()?;
    let kernel = Kernel::load(&KernelOptions::default());
    if let Err(why) = calibrate::keep_tier(kernel.as_ref().ok()) {
        terminal::note(&why);
    }
    let kernel = kernel.map_err(Failure::attach)?;
    let tier = kernel.tier();
    drop(kernel);
    let options = CalibrateOptions { refresh: true, ..CalibrateOptions::default() };
    let calibration = calibrate::load_or_run(tier, &options).map_err(Failure::attach)?;
    for note in &calibration.notes {
        terminal::note(note);
    }
    match args.format {
        PrintFormat::Json => {
            terminal::json(&serde_json::to_string_pretty(&calibration.model).map_err(anyhow::Error::new)?)?;
        }
        PrintFormat::Text => terminal::text(&price_table(&calibration.model))?,
    }
    Ok(())
}

/// Prices for people: ns of the target's CPU time, median (smallest to largest run; of cold caches and of what a trap leaves behind the ends of the median).
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
    for (key, stamps) in &model.stamps {
        line(&format!("between time stamps {key}"), &stamps.mean);
    }
    line("sample", &model.sample_base);
    line("sample, per KiB of stack", &model.sample_per_kib);
    line("context switch", &model.switch);
    line("tracepoint", &model.tracepoint);
    line("cold caches, per trap", &model.cold);
    line("of that, left behind", &model.left_behind());
    line("after a rest of 1 ms, more", &model.rested);
    line("attach, stall", &model.attach);
    line("detach, delay", &model.detach_delay);
    text
}
