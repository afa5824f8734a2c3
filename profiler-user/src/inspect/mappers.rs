//! How many other processes map a file as code.
//!
//! The kernel keeps that number for itself, so `/proc/*/maps` is read: about 30 us a process, on a thread of its own, which counts
//! all files at once. After `SCAN_LIMIT` what was seen is extrapolated. The counts are read again when somebody asks
//! for one that is older than ten seconds, or than a hundred times what the scan took.
//! Reading `/proc/PID/maps` may block for as long as somebody holds that process's lock of its mappings. The first scan is waited for
//! once; until it ends every process of the machine counts, and after it the last counts hold.
//! One scan serves all targets of the agent: it knows who maps each file, so that each target leaves itself out.
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

/// What one scan saw.
#[derive(Debug, Default)]
struct Scan {
    /// Who maps each file, as far as processes were looked at.
    by_file: HashMap<FileKey, Vec<u32>>,
    /// Processes that were looked at, and all.
    seen: u32,
    all: u32,
}

impl Scan {
    /// Processes that map this file, but for that one; what was not looked at is extrapolated.
    fn others(&self, file: FileKey, but: u32) -> u32 {
        let Some(mappers) = self.by_file.get(&file) else { return 0 };
        let others = mappers.iter().filter(|pid| **pid != but).count();
        extrapolate(u32::try_from(others).unwrap_or(u32::MAX), self.seen, self.all)
    }
}

/// The counts of the last scan.
#[derive(Debug, Default)]
struct Counts {
    scan: Scan,
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
    /// Starts the first scan. The agent is left out.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(|| scan(std::process::id()))
    }

    fn start_with(scan: impl Fn() -> Scan + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::default(), Condvar::new()));
        let (again, asked) = sync_channel(1);
        let theirs = Arc::clone(&shared);
        // OK: without a thread nobody receives, which `of` sees.
        drop(
            std::thread::Builder::new()
                .name("tithe-mappers".to_owned())
                .spawn(move || run(&theirs, &asked, scan)),
        );
        Self::of(shared, again)
    }

    /// Asks for the first scan. Where nobody receives that there is none to wait for.
    fn of(shared: Arc<(Mutex<Counts>, Condvar)>, again: SyncSender<()>) -> Self {
        let limit = if again.try_send(()).is_ok() { FIRST_LIMIT } else { Duration::ZERO };
        Self { shared, again, waits_until: Instant::now() + limit }
    }

    /// Scans again, for a target that came later: what it maps may not have been mapped then. Nobody waits for that.
    pub fn again(&self) {
        // OK: else one is asked for already, or cannot be had.
        let _ = self.again.try_send(());
    }

    /// Processes beside the target `but` that map this file as code, as last counted. The first scan is waited for, once; while nothing was
    /// counted it is all processes.
    #[must_use]
    pub fn others(&self, file: FileKey, but: u32) -> u32 {
        let (counts, changed) = &*self.shared;
        let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.waits_until.saturating_duration_since(Instant::now());
        let waited = changed.wait_timeout_while(counts, left, |c| c.read.is_none());
        let (mut counts, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_old = |(at, took): (Instant, Duration)| at.elapsed() > LEAST_AGE.max(took * CPU_PART);
        if counts.read.is_none_or(is_old) {
            self.again();
        }
        if counts.read.is_some() {
            return counts.scan.others(file, but);
        }
        // The scan has not ended, or there is none: it may be all of them.
        match counts.processes {
            Some((at, processes)) if at.elapsed() <= LEAST_AGE => processes,
            _ => {
                let processes = u32::try_from(pids(0).len()).unwrap_or(u32::MAX);
                counts.processes = Some((Instant::now(), processes));
                processes
            }
        }
    }
}

fn run(shared: &(Mutex<Counts>, Condvar), asked: &Receiver<()>, scan: impl Fn() -> Scan) {
    while asked.recv().is_ok() {
        let begun = Instant::now();
        let scan = scan();
        let mut counts = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts = Counts { scan, read: Some((Instant::now(), begun.elapsed())), processes: None };
        shared.1.notify_all();
    }
}

/// All processes but this one.
fn pids(but: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid != but).collect()
}

/// Who maps which files, of all processes but this one.
fn scan(but: u32) -> Scan {
    let begun = Instant::now();
    let pids = pids(but);
    let mut scan = Scan { all: u32::try_from(pids.len()).unwrap_or(u32::MAX), ..Scan::default() };
    for pid in order(pids.len()).map(|index| pids[index]) {
        if begun.elapsed() > SCAN_LIMIT {
            break;
        }
        scan.seen += 1;
        // Gone, or a kernel thread: it maps nothing.
        let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps")) else { continue };
        for file in files(&maps) {
            scan.by_file.entry(file).or_default().push(pid);
        }
    }
    scan
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
            Scan::default()
        });
        let begun = Instant::now();
        let counts: Vec<u32> = (0..20).map(|inode| mappers.others(((0, 0), inode), 0)).collect();
        let took = begun.elapsed();
        assert!(took < 3 * FIRST_LIMIT, "{took:?}");
        // All processes: this one is among them.
        assert!(counts.iter().all(|n| *n >= 1 && *n == counts[0]), "{counts:?}");
    }

    /// A target leaves itself out of what was seen, before that is taken for all.
    #[test]
    fn what_was_not_looked_at_is_extrapolated_without_the_target() {
        let file = ((0, 0), 7);
        let scan = Scan { by_file: HashMap::from([(file, vec![3, 5, 8])]), seen: 10, all: 40 };
        assert_eq!([0, 5, 9].map(|but| scan.others(file, but)), [12, 8, 12]);
        assert_eq!(scan.others(((0, 0), 8), 5), 0);
    }

    #[test]
    fn without_a_thread_nothing_is_waited_for() {
        let (again, asked) = sync_channel(1);
        drop(asked);
        let mappers = Mappers::of(Arc::default(), again);
        let begun = Instant::now();
        assert!(mappers.others(((0, 0), 1), 0) >= 1);
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
        let mappers = Mappers::start();
        // Of one scan each target leaves itself out, and nobody else.
        let [first, second, nobody] = [first, sleepers[1].id(), 0].map(|but| mappers.others(file, but));
        // Other tests of this crate may have sleepers, too.
        assert!(first >= 11 && first == second && nobody == first + 1, "{first} {second} {nobody}");
        for sleeper in &mut sleepers {
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
        }
        assert_eq!(mappers.others(((0, 0), u64::MAX), 0), 0);
    }
}
