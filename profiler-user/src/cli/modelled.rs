//! Of which functions there are to be execution-time models, and which are held against them: options of `tithe record`.

use crate::config::{InputsSpec, ModelConfig};
use clap::Args;
use std::path::PathBuf;

/// Models of this run, and models that it is held against.
#[derive(Debug, Args)]
#[command(next_help_heading = "Execution-time models")]
pub struct ModelledArgs {
    /// Record the calls of these functions, with their durations and arguments, so that 'tithe models' can say how their time grows with their
    /// inputs
    #[arg(long, value_name = "PATTERN")]
    pub model: Vec<String>,
    /// Names of a function's inputs and the argument registers that hold them: 'PATTERN:NAME=argK,NAME=argK:TYPE,...', TYPE one of long
    /// (default), int, size, category, category16, category8, u32, u16, u8, i16, i8 (may be repeated). Instead of argK the name of a word of --word, or of a parameter where the
    /// module has debug information (DWARF): 'compress2:n=sourceLen', or 'compress2:sourceLen' alone; it has the type that it is declared with. The registers
    /// are kept, and the recording has the names for 'tithe models'
    #[arg(long, value_name = "INPUTS")]
    pub input: Vec<InputsSpec>,
    /// Recorded calls that are wanted of each function of --model in each decade of its inputs, and again every 10 s: a function that is called often
    /// is recorded more rarely once it has as many (0: as many as the budget allows) [default: 200]. Functions whose predicted times are within a
    /// factor of 2 share one frequency, by which each has as many: those of --model once their models can be made, with --expect from the start, and there
    /// only if N is given, since fewer calls tell later
    #[arg(long, value_name = "N")]
    pub datapoints: Option<u32>,
    /// Hold calls against the models of this recording while the run goes on: its functions are recorded with the same inputs, and what takes
    /// longer than its inputs explain is told on standard error, with the resource behind it. Of functions whose inputs say nothing single calls are told that take
    /// far longer than all that were recorded. At most one false alarm an hour is expected
    /// while calls are as alike as they were then; another load of the machine is told, too
    #[arg(long, value_name = "RECORDING")]
    pub expect: Option<PathBuf>,
}

impl From<&ModelledArgs> for ModelConfig {
    fn from(args: &ModelledArgs) -> Self {
        Self {
            patterns: args.model.clone(),
            inputs: args.input.clone(),
            datapoints: args.datapoints,
            expect: args.expect.clone(),
        }
    }
}
