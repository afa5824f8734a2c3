//! `tithe internal-mend`: what the watchdog runs after an agent was killed.

use crate::config::values::parse_pid;
use crate::failure::Failure;
use crate::mend::heirs::{FileId, Image, Known};
use crate::mend::{self, MendError};
use clap::Args;
use std::io::Write;

/// Numbers that are known of a process.
const KNOWN: usize = 5;

/// `tithe internal-mend`.
#[derive(Debug, Args)]
pub struct MendArgs {
    /// The process
    #[arg(value_parser = parse_pid)]
    pub pid: u32,
    /// What was known of it: device and inode of its program, begin of its code and of its stack, its parent; 0: nothing. Further processes
    /// follow, six numbers each
    #[arg(num_args = 0..)]
    pub known: Vec<u64>,
}

impl MendArgs {
    /// The processes, and what was known of each.
    fn targets(&self) -> impl Iterator<Item = (u32, Known)> {
        let (first, rest) = self.known.split_at(self.known.len().min(KNOWN));
        // A number beyond all PIDs names no process.
        let further =
            rest.chunks(1 + KNOWN).filter_map(|of| Some((u32::try_from(of[0]).ok()?, known(&of[1..]))));
        std::iter::once((self.pid, known(first))).chain(further)
    }
}

fn known(numbers: &[u64]) -> Known {
    let pair = |at: usize| {
        let pair = numbers.get(at).copied().zip(numbers.get(at + 1).copied());
        pair.filter(|pair| *pair != (0, 0))
    };
    Known {
        program: pair(0).map(|(device, inode)| FileId { device, inode }),
        image: pair(2).map(|(code, stack)| Image { code, stack }),
        parent: numbers.get(4).and_then(|pid| u32::try_from(*pid).ok()).filter(|pid| *pid != 0),
    }
}

/// Runs the command: each process is mended, whatever became of the one before. The watchdog's own standard error leads nowhere, so the kernel's
/// log hears of failures, too.
///
/// # Errors
/// A process cannot be mended; the first one.
pub(super) fn run(args: &MendArgs) -> Result<(), Failure> {
    let failures = args.targets().filter_map(|(pid, known)| mend::mend(pid, known).err());
    let all: Vec<MendError> = failures.inspect(log).collect();
    all.into_iter().next().map_or(Ok(()), |error| Err(Failure::attach(error)))
}

fn log(error: &MendError) {
    if let Ok(mut log) = std::fs::File::options().write(true).open("/dev/kmsg") {
        // One write is one record. Nobody else could be told of a failure.
        let _ = log.write_all(format!("tithe: {error}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(pid: u32, known: &[u64]) -> Vec<(u32, Known)> {
        MendArgs { pid, known: known.to_vec() }.targets().collect()
    }

    #[test]
    fn one_process_may_come_with_what_is_known_of_it() {
        assert_eq!(targets(10, &[]), [(10, Known::default())]);
        let all = Known {
            program: Some(FileId { device: 1, inode: 2 }),
            image: Some(Image { code: 3, stack: 4 }),
            parent: Some(5),
        };
        assert_eq!(targets(10, &[1, 2, 3, 4, 5]), [(10, all)]);
        assert_eq!(targets(10, &[1, 2, 0, 0, 0]), [(10, Known { image: None, parent: None, ..all })]);
    }

    #[test]
    fn further_processes_follow_with_six_numbers_each() {
        let numbers = [1, 2, 3, 4, 5, 11, 0, 0, 3, 4, 0, 12, 1, 2, 3, 4, 5];
        let all = Known {
            program: Some(FileId { device: 1, inode: 2 }),
            image: Some(Image { code: 3, stack: 4 }),
            parent: Some(5),
        };
        let expected = [(10, all), (11, Known { program: None, parent: None, ..all }), (12, all)];
        assert_eq!(targets(10, &numbers), expected);
    }
}
