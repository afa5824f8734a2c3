//! `tithe internal-mend`: what the watchdog runs after an agent was killed.

use crate::config::values::parse_pid;
use crate::failure::Failure;
use crate::mend;
use crate::mend::heirs::{FileId, Image, Known};
use clap::Args;
use std::io::Write;

/// `tithe internal-mend`.
#[derive(Debug, Args)]
pub struct MendArgs {
    /// The process
    #[arg(value_parser = parse_pid)]
    pub pid: u32,
    /// What was known of it: device and inode of its program, begin of its code and of its stack, its parent; 0: nothing
    #[arg(num_args = 0..=5)]
    pub known: Vec<u64>,
}

impl From<&MendArgs> for Known {
    fn from(args: &MendArgs) -> Self {
        let pair = |at: usize| {
            let pair = args.known.get(at).copied().zip(args.known.get(at + 1).copied());
            pair.filter(|pair| *pair != (0, 0))
        };
        Self {
            program: pair(0).map(|(device, inode)| FileId { device, inode }),
            image: pair(2).map(|(code, stack)| Image { code, stack }),
            parent: args.known.get(4).and_then(|pid| u32::try_from(*pid).ok()).filter(|pid| *pid != 0),
        }
    }
}

/// Runs the command. The watchdog's own standard error leads nowhere, so the kernel's log hears of a failure, too.
///
/// # Errors
/// The process cannot be mended.
pub(super) fn run(args: &MendArgs) -> Result<(), Failure> {
    mend::mend(args.pid, args.into()).map(drop).map_err(|error| {
        if let Ok(mut log) = std::fs::File::options().write(true).open("/dev/kmsg") {
            // One write is one record. Nobody else could be told of a failure.
            let _ = log.write_all(format!("tithe: {error}\n").as_bytes());
        }
        Failure::attach(error)
    })
}
