//! Which words of the target's memory are taken: options of `tithe record`.

use crate::config::WordsSpec;
use clap::Args;

/// Words of the target's memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Words of the target")]
pub struct WordArgs {
    /// Take words of the target's memory with each recorded call of a function of --record, or with each recorded operation.
    /// SPEC: WHERE:NAME=EXPRESSION:TYPE,... (without :TYPE a long); WHERE: the function, or the operation's name, with @end at its end instead of its
    /// begin. EXPRESSION: argK, result (@end, by return links), 0xADDRESS, &VARIABLE or the name of another word of 8 bytes that
    /// the same thread took before, then '+N' or '-N' bytes, and '->N' for what lies N bytes behind it, four times at most;
    /// strlen(EXPRESSION) is the length of the string there. TYPE: u8 to u64, i8 to i64, int, long (default), ptr.
    /// A function that several patterns name takes the words of all of them, which must have different names.
    /// Only memory that is resident is read, never a fault taken; what cannot be read is marked. 64 words at most
    /// (docs/words.md)
    #[arg(long, value_name = "SPEC")]
    pub word: Vec<WordsSpec>,
}
