//! Which functions are watched: options of `tithe record` and `tithe plan`.

use crate::config::values::parse_weight;
use crate::config::{DEFAULT_DISCOVER, FunctionConfig, RecordSpec};
use clap::Args;

/// What is wanted of which functions.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to watch")]
pub struct SelectArgs {
    /// Always trace these functions; an error if the budget does not allow it.
    /// PATTERN: a glob on the demangled name ('sqlite3*', 'db::*'), '/regex/', '=symbol' (and no clone of it), or any of them behind 'module:'
    #[arg(long, value_name = "PATTERN")]
    pub trace: Vec<String>,
    /// Never trace these functions; samples still show them
    #[arg(long, value_name = "PATTERN")]
    pub never: Vec<String>,
    /// Count the calls of these functions
    #[arg(long, value_name = "PATTERN")]
    pub count: Vec<String>,
    /// Count the calls of these functions and measure how long each takes
    #[arg(long, value_name = "PATTERN")]
    pub latency: Vec<String>,
    /// Keep a record of every call of these functions: time, thread, duration, arguments. An argument
    /// register that is overwritten before the probe is null; those named by number ('malloc:arg0',
    /// 'memcpy:arg0,arg2') are kept, even where that takes a dearer site, and so are those that --word and --input
    /// name; without numbers also those that the function reads, where that at most doubles the price of a call
    #[arg(long, value_name = "PATTERN[:argK,...]")]
    pub record: Vec<RecordSpec>,
    /// How much you care: information weight of these functions (default 1)
    #[arg(long, value_name = "PATTERN=WEIGHT", value_parser = parse_weight)]
    pub weight: Vec<(String, f64)>,
    /// Allow return probes on these functions although the target may not survive them
    /// (C++ exceptions, panics, coroutines)
    #[arg(long, value_name = "PATTERN")]
    pub return_links: Vec<String>,
    /// How many functions that nobody named are taken from the samples, at most; in runs of 12 s and more of a process that runs, samples are asked again after 6 s: places of functions that were not called when they were tried go to others
    #[arg(long, value_name = "N", default_value_t = DEFAULT_DISCOVER)]
    pub discover: usize,
}

impl From<&SelectArgs> for FunctionConfig {
    fn from(args: &SelectArgs) -> Self {
        Self {
            trace: args.trace.clone(),
            never: args.never.clone(),
            count: args.count.clone(),
            latency: args.latency.clone(),
            record: args.record.clone(),
            arguments: Vec::new(),
            weight: args.weight.clone(),
            return_links: args.return_links.clone(),
            discover: args.discover,
        }
    }
}
