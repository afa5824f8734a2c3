//! `tithe internal-mend`: what the watchdog runs after an agent was killed.

use crate::config::values::parse_pid;
use crate::failure::Failure;
use crate::mend::heirs::{FileId, Image, Known};
use crate::mend::{self, MendError};
use clap::Args;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers that are known of a process.
const KNOWN: usize = 6;
/// Processes that are mended at one time. Each may take a kernel side of its own (some MiB) and a minute.
const AT_ONCE: usize = 8;

/// `tithe internal-mend`.
#[derive(Debug, Args)]
pub struct MendArgs {
    /// The process
    #[arg(value_parser = parse_pid)]
    pub pid: u32,
    /// What was known of it: device and inode of its program, begin of its code and of its stack, its parent, its begin in clock
    /// ticks since boot; 0: nothing. Further processes follow, seven numbers each
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
        start_ticks: numbers.get(5).copied().filter(|ticks| *ticks != 0),
    }
}

/// Runs the command: each process is mended, whatever became of the others. The watchdog's own standard error leads nowhere, so the kernel's
/// log hears of failures, too.
///
/// # Errors
/// A process cannot be mended; the first one, in the order of the command line.
pub(super) fn run(args: &MendArgs) -> Result<(), Failure> {
    let failures = mend_all(&args.targets().collect::<Vec<_>>(), |pid, known| {
        let failure = mend::mend(pid, known).err();
        // At once: the others may take a minute.
        failure.inspect(log)
    });
    failures.into_iter().next().map_or(Ok(()), |error| Err(Failure::attach(error)))
}

/// Mends several processes side by side, [`AT_ONCE`] at most: one that takes long holds up no other. What went wrong, in their order.
fn mend_all<E: Send>(targets: &[(u32, Known)], mend: impl Fn(u32, Known) -> Option<E> + Sync) -> Vec<E> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failures = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((pid, known)) = targets.get(index) else { return failures };
            failures.extend(mend(*pid, *known).map(|failure| (index, failure)));
        }
    };
    let mut failures = std::thread::scope(|scope| {
        let helper = |_| std::thread::Builder::new().name("tithe-mend".to_owned()).spawn_scoped(scope, work);
        // Without a thread the others and this one do its work.
        let helpers: Vec<_> = (1..targets.len().min(AT_ONCE)).filter_map(|i| helper(i).ok()).collect();
        let mut failures = work();
        for helper in helpers {
            match helper.join() {
                Ok(of_helper) => failures.extend(of_helper),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        failures
    });
    failures.sort_by_key(|(index, _)| *index);
    failures.into_iter().map(|(_, failure)| failure).collect()
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
    use std::sync::Mutex;
    use std::time::Duration;

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
            start_ticks: Some(6),
        };
        assert_eq!(targets(10, &[1, 2, 3, 4, 5, 6]), [(10, all)]);
        assert_eq!(targets(10, &[1, 2, 3, 4, 5]), [(10, Known { start_ticks: None, ..all })]);
        let program = Known { image: None, parent: None, start_ticks: None, ..all };
        assert_eq!(targets(10, &[1, 2, 0, 0, 0, 0]), [(10, program)]);
    }

    #[test]
    fn further_processes_follow_with_seven_numbers_each() {
        let numbers = [1, 2, 3, 4, 5, 6, 11, 0, 0, 3, 4, 0, 0, 12, 1, 2, 3, 4, 5, 6];
        let all = Known {
            program: Some(FileId { device: 1, inode: 2 }),
            image: Some(Image { code: 3, stack: 4 }),
            parent: Some(5),
            start_ticks: Some(6),
        };
        let second = Known { program: None, parent: None, start_ticks: None, ..all };
        let expected = [(10, all), (11, second), (12, all)];
        assert_eq!(targets(10, &numbers), expected);
    }

    /// The first one ends only when all others have: one after the other it would never.
    #[test]
    fn a_process_that_takes_long_holds_up_no_other() {
        let targets: Vec<_> = (1..=20).map(|pid| (pid, Known::default())).collect();
        let (done, ended) = std::sync::mpsc::channel();
        let (done, ended) = (Mutex::new(done), Mutex::new(ended));
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let failures = mend_all(&targets, |pid, _| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let mut failure = [3, 11].contains(&pid).then(|| format!("{pid} failed"));
            if pid == 1 {
                let ended = ended.lock().unwrap();
                let others = (2..=20).map_while(|_| ended.recv_timeout(Duration::from_secs(20)).ok()).count();
                failure = (others < 19).then(|| format!("waited for {others} others alone"));
            } else {
                done.lock().unwrap().send(pid).unwrap();
            }
            now.fetch_sub(1, Ordering::SeqCst);
            failure
        });
        assert_eq!(failures, ["3 failed", "11 failed"]);
        assert!((2..=AT_ONCE).contains(&most.into_inner()));
        assert_eq!(mend_all(&[], |pid, _| Some(pid)), [0; 0]);
        assert_eq!(mend_all(&targets[..1], |pid, _| Some(pid)), [1]);
    }
}
