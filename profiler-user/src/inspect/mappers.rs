//! How many other processes map a file as code.
//!
//! The kernel keeps that number for itself, so `/proc/*/maps` is read: about 30 us a process, on a thread of its own, which counts
//! all files at once. After `SCAN_LIMIT` what was seen is extrapolated. The counts are read again when somebody asks
//! for one that is older than ten seconds, or than a hundred times what the scan took.
//! Reading `/proc/PID/maps` may block for as long as somebody holds that process's lock of its mappings. The first scan is waited for
//! once; until it ends every process of the machine counts, and after it the last counts hold.
//! What it does not do: see that two overlay file systems share a file below; the time that registering takes tells.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A scan takes no longer.
const SCAN_LIMIT: Duration = Duration::from_millis(250);
/// The first scan is waited for until so long after its start, by all who ask together.
const FIRST_LIMIT: Duration = Duration::from_millis(500);
/// Counts younger than this are not read again.
const LEAST_AGE: Duration = Duration::from_secs(10);
/// Part of one CPU that scans may take: one in so many.
const CPU_PART: u32 = 100;
/// Part of all processes that lies between two visits, the golden ratio: those of one program lie side by side, and an extrapolation
/// must see all kinds.
const STRIDE: f64 = 0.618_033_988_75;

/// A file as `/proc/PID/maps` names it: device (major, minor) and inode.
pub type FileKey = ((u32, u32), u64);

/// The counts of one scan.
#[derive(Debug, Default)]
struct Counts {
    by_file: HashMap<FileKey, u32>,
    /// When, and how long it took.
    read: Option<(Instant, Duration)>,
    /// All processes, and when they were counted: in place of what is not known yet.
    processes: Option<(Instant, u32)>,
}

/// Counts of mappers, read by a thread of its own.
#[derive(Debug)]
pub struct Mappers {
    shared: Arc<(Mutex<Counts>, Condvar)>,
    /// "Again". The thread ends when this goes.
    again: SyncSender<()>,
    /// Nobody waits for the first scan any longer.
    waits_until: Instant,
}

impl Mappers {
    /// Starts the first scan. Processes `but` (the agent and its target) are left out.
    #[must_use]
    pub fn start(but: [u32; 2]) -> Self {
        Self::start_with(move || count(&but))
    }

    fn start_with(count: impl Fn() -> HashMap<FileKey, u32> + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::default(), Condvar::new()));
        let (again, asked) = sync_channel(1);
        let theirs = Arc::clone(&shared);
        // OK: without a thread nobody receives, which `of` sees.
        drop(
            std::thread::Builder::new()
                .name("tithe-mappers".to_owned())
                .spawn(move || run(&theirs, &asked, count)),
        );
        Self::of(shared, again)
    }

    /// Asks for the first scan. Where nobody receives that there is none to wait for.
    fn of(shared: Arc<(Mutex<Counts>, Condvar)>, again: SyncSender<()>) -> Self {
        let limit = if again.try_send(()).is_ok() { FIRST_LIMIT } else { Duration::ZERO };
        Self { shared, again, waits_until: Instant::now() + limit }
    }

    /// Other processes that map this file as code, as last counted. The first scan is waited for, once; while nothing was counted it is
    /// all processes.
    #[must_use]
    pub fn others(&self, file: FileKey) -> u32 {
        let (counts, changed) = &*self.shared;
        let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.waits_until.saturating_duration_since(Instant::now());
        let waited = changed.wait_timeout_while(counts, left, |c| c.read.is_none());
        let (mut counts, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_old = |(at, took): (Instant, Duration)| at.elapsed() > LEAST_AGE.max(took * CPU_PART);
        if counts.read.is_none_or(is_old) {
            // OK: else one is asked for already, or cannot be had.
            let _ = self.again.try_send(());
        }
        if counts.read.is_some() {
            return counts.by_file.get(&file).copied().unwrap_or(0);
        }
        // The scan has not ended, or there is none: it may be all of them.
        match counts.processes {
            Some((at, processes)) if at.elapsed() <= LEAST_AGE => processes,
            _ => {
                let processes = u32::try_from(pids(&[]).len()).unwrap_or(u32::MAX);
                counts.processes = Some((Instant::now(), processes));
                processes
            }
        }
    }
}

fn run(shared: &(Mutex<Counts>, Condvar), asked: &Receiver<()>, count: impl Fn() -> HashMap<FileKey, u32>) {
    while asked.recv().is_ok() {
        let begun = Instant::now();
        let by_file = count();
        let mut counts = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts = Counts { by_file, read: Some((Instant::now(), begun.elapsed())), processes: None };
        shared.1.notify_all();
    }
}

/// All processes but these.
fn pids(but: &[u32]) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| !but.contains(pid))
        .collect()
}

/// Mappers by file, of all processes but these.
fn count(but: &[u32]) -> HashMap<FileKey, u32> {
    let begun = Instant::now();
    let mut by_file: HashMap<FileKey, u32> = HashMap::new();
    let pids = pids(but);
    let mut seen = 0u32;
    for pid in order(pids.len()).map(|index| pids[index]) {
        if begun.elapsed() > SCAN_LIMIT {
            break;
        }
        seen += 1;
        // Gone, or a kernel thread: it maps nothing.
        let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps")) else { continue };
        for file in files(&maps) {
            *by_file.entry(file).or_default() += 1;
        }
    }
    let all = u32::try_from(pids.len()).unwrap_or(u32::MAX);
    for number in by_file.values_mut() {
        *number = extrapolate(*number, seen, all);
    }
    by_file
}

/// Every index below `n` once, far from the one before.
fn order(n: usize) -> impl Iterator<Item = usize> {
    // OK because it is below n.
    let mut stride = ((n as f64 * STRIDE) as usize).max(1);
    while gcd(stride, n.max(1)) > 1 {
        stride += 1;
    }
    (0..n).map(move |i| i * stride % n)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `number` of `seen` processes, were all `all` looked at.
fn extrapolate(number: u32, seen: u32, all: u32) -> u32 {
    let whole = u64::from(number) * u64::from(all) / u64::from(seen.max(1));
    u32::try_from(whole).unwrap_or(u32::MAX)
}

/// The files that a process maps as private code: others are not probed.
fn files(maps: &[u8]) -> BTreeSet<FileKey> {
    super::maps::parse(maps)
        .into_iter()
        .filter(|m| m.exec && !m.shared && m.inode != 0)
        .map(|m| (m.device, m.inode))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn code_counts_once_and_data_does_not() {
        let maps = b"1000-2000 r--p 0 fd:01 7 /lib/a.so\n2000-3000 r-xp 1000 fd:01 7 /lib/a.so\n\
                     3000-4000 r-xp 3000 fd:01 7 /lib/a.so\n5000-6000 rw-p 0 fd:01 8 /lib/b.so\n\
                     7000-8000 r-xs 0 fd:01 9 /lib/c.so\n8000-9000 r-xp 0 00:00 0 [vdso]\n";
        assert_eq!(files(maps), BTreeSet::from([((0xfd, 1), 7)]));
        assert_eq!(extrapolate(30, 100, 1_000), 300);
        assert_eq!(extrapolate(3, 0, 5), 15);
        for n in [0, 1, 2, 7, 100, 1_597, 1_700] {
            let all: BTreeSet<usize> = order(n).collect();
            assert_eq!((all.len(), all.last().map_or(0, |last| last + 1)), (n, n));
        }
        // Of a tenth of them a tenth are among the newest third.
        let new = order(1_700).take(170).filter(|i| *i >= 1_133).count();
        assert!((50..64).contains(&new), "{new}");
    }

    #[test]
    fn a_scan_that_never_ends_is_waited_for_once() {
        let mappers = Mappers::start_with(|| {
            std::thread::sleep(Duration::from_secs(3_600));
            HashMap::new()
        });
        let begun = Instant::now();
        let counts: Vec<u32> = (0..20).map(|inode| mappers.others(((0, 0), inode))).collect();
        let took = begun.elapsed();
        assert!(took < 3 * FIRST_LIMIT, "{took:?}");
        // All processes: this one is among them.
        assert!(counts.iter().all(|n| *n >= 1 && *n == counts[0]), "{counts:?}");
    }

    #[test]
    fn without_a_thread_nothing_is_waited_for() {
        let (again, asked) = sync_channel(1);
        drop(asked);
        let mappers = Mappers::of(Arc::default(), again);
        let begun = Instant::now();
        assert!(mappers.others(((0, 0), 1)) >= 1);
        assert!(begun.elapsed() < FIRST_LIMIT, "{:?}", begun.elapsed());
    }

    #[test]
    fn processes_that_sleep_are_counted_and_we_are_not() {
        let mut sleepers: Vec<_> =
            (0..12).map(|_| Command::new("sleep").arg("60").spawn().expect("sleep exists")).collect();
        let first = sleepers[0].id();
        // Until all have mapped their program.
        let own = std::fs::canonicalize(format!("/proc/{}/exe", std::process::id())).unwrap();
        for sleeper in &sleepers {
            let exe = format!("/proc/{}/exe", sleeper.id());
            while std::fs::read_link(&exe).is_ok_and(|path| path == own) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let text = std::fs::read(format!("/proc/{first}/maps")).unwrap();
        let program = super::super::maps::parse(&text).into_iter().find(|m| m.exec && m.inode != 0).unwrap();
        let file = (program.device, program.inode);
        let mappers = Mappers::start([std::process::id(), first]);
        let others = mappers.others(file);
        // Other tests of this crate may have sleepers, too.
        assert!(others >= 11, "{others}");
        let with_first = count(&[]).get(&file).copied().unwrap_or(0);
        assert!(with_first > 11, "{with_first}");
        for sleeper in &mut sleepers {
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
        }
        assert_eq!(mappers.others(((0, 0), u64::MAX)), 0);
    }
}
