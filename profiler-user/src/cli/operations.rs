//! Which operations are followed, and which of them are recorded: options of `tithe record`.

use crate::config::values::{parse_policy, parse_settings, parse_slower_ns};
use crate::config::{MeasureSpec, OperationConfig, OperationSpec};
use crate::failure::Failure;
use clap::Args;
use profiler_core::adapt::PolicyKind;

/// Units of the target's work, and how they are sampled.
#[derive(Debug, Args)]
#[command(next_help_heading = "Operations")]
pub struct OperationArgs {
    /// Follow a unit of the target's work. SPEC: NAME=FUNCTION (from its call to its return), NAME=BEGIN..END (calls of
    /// two functions on one thread), NAME=usdt:PROVIDER:BEGIN..usdt:PROVIDER:END (two USDT probes), NAME=syscall:CALL,
    /// NAME=syscall:BEGIN..syscall:END (from return to return), NAME=tp:CATEGORY:BEGIN..tp:CATEGORY:END (two tracepoints of
    /// the kernel, passed by one thread); with ',class=argK:str' (or slice, int, long) one class for each value of that
    /// argument. All are counted and timed; a sample, chosen by --policy, is recorded in detail
    #[arg(long, value_name = "SPEC")]
    pub operation: Vec<OperationSpec>,
    /// What is measured inside recorded operations: the sum of an argument of a function ('malloc:arg0'), or its calls
    /// ('malloc'). Default: the calls of the functions of --detail
    #[arg(long, value_name = "FUNCTION[:argK]", requires = "operation")]
    pub measure: Option<MeasureSpec>,
    /// Functions whose calls are counted and timed inside recorded operations (default: those of --trace)
    #[arg(long, value_name = "PATTERN", requires = "operation")]
    pub detail: Vec<String>,
    /// Functions whose calls are recorded one by one inside recorded operations, in their exact order: 'tithe calls' shows single
    /// operations as trees. Only entries are seen, no times of calls; ask for those with --detail
    #[arg(long, value_name = "PATTERN", requires = "operation")]
    pub calls: Vec<String>,
    /// Tell of each recorded operation that takes longer than this ('10ms', '250us'), while the run goes on, with the calls in it where --calls
    /// recorded them: on standard error, five at once and then one a second at most
    #[arg(long, value_name = "TIME", requires = "operation", value_parser = parse_slower_ns)]
    pub slower: Option<u64>,
    /// Who decides which operations are recorded: adp (Mertz and Nunes), inv (rate inverse to throughput), uni
    /// (constant rate), full (all), none, tithe (rate by budget and response time; the same for all classes while the
    /// functions inside are attached in slices, which is usual, otherwise divided among classes by their spread)
    /// [default: tithe]
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, requires = "operation")]
    pub policy: Option<PolicyKind>,
    /// A setting of the policy: rate, max_rate, min_rate, revise_s, baseline_s, max_cycle_s, max_classes, … (docs/operations.md
    /// has all)
    #[arg(long, value_name = "KEY=VALUE", requires = "operation")]
    pub adapt: Vec<String>,
    /// Run this shell command, as the user who called sudo, whenever a sample is complete; TITHE_* variables say what it is
    #[arg(long, value_name = "COMMAND", requires = "operation")]
    pub on_cycle: Option<String>,
}

impl TryFrom<&OperationArgs> for OperationConfig {
    type Error = Failure;

    fn try_from(args: &OperationArgs) -> Result<Self, Failure> {
        Ok(Self {
            operations: args.operation.clone(),
            measure: args.measure.clone(),
            detail: args.detail.clone(),
            calls: args.calls.clone(),
            slower_ns: args.slower,
            policy: args.policy.unwrap_or(PolicyKind::Tithe),
            settings: parse_settings(&args.adapt).map_err(Failure::usage)?,
            on_cycle: args.on_cycle.clone(),
        })
    }
}
