//! The program under test (`tests/field/anomalies.c`): what of it is modelled, what goes wrong with it, and what it says of its own calls.

use crate::durations::truth::now_ns;
use crate::place::{Place, text_of};
use crate::process::{Process, Talker};
use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Threads that take the program's CPU.
const BURNERS: usize = 3;
/// Between two times that the database's pages are dropped from the page cache.
const BETWEEN_DROPS: Duration = Duration::from_millis(50);
/// Within this time the program must have seen that something is to go wrong.
const SEEN_WITHIN: Duration = Duration::from_millis(200);
/// Bytes of a logged call, of what stands before the calls, and where its words are: `struct shared` of `tests/field/anomalies.h`.
const CALL: usize = 24;
const HEAD: usize = 32;
const SEEN: u64 = 8;

/// A modelled function, in the order of their numbers in the program.
pub struct Function {
    /// Its symbol.
    pub symbol: &'static str,
    /// What `--model` is given.
    pub pattern: &'static str,
    /// What `--input` is given.
    pub input: &'static str,
    /// The size for which Table 2 tells times: the middle one.
    pub middle: i64,
}

/// All of them. Three: of four or more, changes that all have in common would be told of the machine.
pub const FUNCTIONS: [Function; 3] = [
    Function {
        symbol: "sqlite3_blob_read",
        pattern: "libsqlite3.so*:sqlite3_blob_read",
        input: "sqlite3_blob_read:n=arg2:int",
        middle: 2031 + 9 * 16380,
    },
    Function { symbol: "store", pattern: "anomalies:store", input: "store:n=arg1", middle: 2031 + 9 * 16380 },
    Function { symbol: "tally", pattern: "anomalies:tally", input: "tally:n=arg1", middle: 9 * 16000 },
];

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// Half of the reads and writes take 50 ms longer.
    Delay,
    /// Another thread holds the mutex for 30 of each 40 ms.
    Lock,
    /// Other processes take the program's CPU.
    Cpu,
    /// The database's pages are dropped from the page cache.
    Cache,
    /// A modelled function touches new memory.
    Memory,
}

impl Anomaly {
    /// All, in the order of the table.
    pub const ALL: [Anomaly; 5] =
        [Anomaly::Delay, Anomaly::Lock, Anomaly::Cpu, Anomaly::Cache, Anomaly::Memory];

    /// Its name on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Anomaly::Delay => "delay",
            Anomaly::Lock => "lock",
            Anomaly::Cpu => "cpu",
            Anomaly::Cache => "cache",
            Anomaly::Memory => "memory",
        }
    }

    /// Of this name.
    pub fn of(name: &str) -> Option<Anomaly> {
        Anomaly::ALL.into_iter().find(|anomaly| anomaly.name() == name)
    }

    /// Resources that are right, as they are told by the beginning of their words. A delayed read is one in which the thread sleeps: to the kernel that is no I/O.
    fn right(self) -> &'static [&'static str] {
        match self {
            Anomaly::Delay => &["I/O", "off CPU, blocked"],
            Anomaly::Lock => &["off CPU, blocked"],
            Anomaly::Cpu => &["off CPU, waiting for one"],
            // Without `kernel.task_delayacct` waits for a disk are not told apart.
            Anomaly::Cache => &["I/O", "page faults from disk", "off CPU, blocked"],
            Anomaly::Memory => &["page faults"],
        }
    }

    /// This resource is behind it.
    pub fn is_right(self, resource: &str) -> bool {
        let from_disk = resource.starts_with("page faults from disk");
        self.right().iter().any(|right| resource.starts_with(right))
            && !(self == Anomaly::Memory && from_disk)
    }

    /// Numbers of the functions that take longer by it.
    pub fn touched(self) -> &'static [usize] {
        match self {
            // Both read the database and write to it.
            Anomaly::Delay | Anomaly::Cache => &[0, 1],
            Anomaly::Lock | Anomaly::Memory => &[2],
            Anomaly::Cpu => &[0, 1, 2],
        }
    }

    /// It makes this function take longer; `None`: the whole machine.
    pub fn touches(self, function: Option<usize>) -> bool {
        function.map_or(self == Anomaly::Cpu, |function| self.touched().contains(&function))
    }

    /// For so long it still shows when it is over, ns: calls that began in it end, pages are read from the disk again, memory is given back.
    pub fn grace_ns(self) -> u64 {
        match self {
            Anomaly::Delay | Anomaly::Lock | Anomaly::Cpu => 2_000_000_000,
            Anomaly::Memory => 3_000_000_000,
            Anomaly::Cache => 4_000_000_000,
        }
    }

    /// The word of the program's file that makes it go wrong; 0: nothing in the program does.
    fn word(self) -> u64 {
        match self {
            Anomaly::Delay => 1,
            Anomaly::Lock => 2,
            Anomaly::Memory => 3,
            Anomaly::Cpu | Anomaly::Cache => 0,
        }
    }
}

/// A call, by the program's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the function in [`FUNCTIONS`].
    pub function: usize,
    /// Begin, ktime ns.
    pub begin_ns: u64,
    /// End, ktime ns.
    pub end_ns: u64,
}

/// The running program.
pub struct Target {
    talker: Talker,
    /// Takes what is left of its CPU.
    filler: Option<Process>,
    shared: File,
    database: PathBuf,
    program: PathBuf,
    folder: PathBuf,
    cpu: String,
}

impl Target {
    fn files(place: &Place) -> [PathBuf; 2] {
        ["own/anomalies", "own/anomalies-delay.so"].map(|file| place.built(file))
    }

    /// Which program it is: the beginning of the hash of its two files.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read.
    pub fn version(place: &Place) -> Result<String> {
        let mut hash = Sha256::new();
        for file in Target::files(place) {
            hash.update(std::fs::read(&file).with_context(|| format!("no {}", file.display()))?);
        }
        Ok(hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Starts it on the last CPU, of which another takes what is left if it `fills` that. Its database lies beside the finished runs: temporary files may be in
    /// memory.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start(place: &Place, fills: bool) -> Result<Target> {
        let folder = place.base.join("anomalies");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).context("cannot remove what the last run left")?;
        }
        std::fs::create_dir_all(&folder)?;
        let (shared, database) = (folder.join("shared"), folder.join("data.db"));
        let program = place.built("own/anomalies");
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let cpu = (cpus - 1).to_string();
        let mut command = Command::new(&program);
        command.arg(&database).arg(&cpu).env("ANOMALIES", &shared);
        command.env("LD_PRELOAD", place.built("own/anomalies-delay.so"));
        // The preloaded library opens it before the program can make it; the program gives it its length.
        File::create(&shared)?.set_len(HEAD as u64 + (CALL as u64) * (1 << 18))?;
        let mut talker = Talker::start(&mut command, &folder)?;
        let line = talker.line()?;
        ensure!(line == "ready", "the program said {line:?}");
        let filler = match fills {
            true => Some(Process::start(Command::new(&program).args(["fill", &cpu]), &folder)?),
            false => None,
        };
        let shared = File::options().read(true).write(true).open(&shared)?;
        Ok(Target { talker, filler, shared, database, program, folder, cpu })
    }

    /// Its folder, for recordings.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its process.
    pub fn pid(&mut self) -> u32 {
        self.talker.process().pid()
    }

    /// An error if it has ended, or has found something wrong.
    ///
    /// # Errors
    ///
    /// As said.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if let Some(filler) = &mut self.filler {
            filler.ensure_alive().context("the filler")?;
        }
        self.talker.process().ensure_alive()
    }

    /// Its threads.
    ///
    /// # Errors
    ///
    /// If they cannot be counted.
    pub fn threads(&mut self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/task", self.pid())).context("no threads")?.count())
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.shared.read_exact_at(&mut word, at).context("cannot read the program's file")?;
        Ok(u64::from_le_bytes(word))
    }

    fn switch(&self, word: u64) -> Result<()> {
        self.shared.write_all_at(&word.to_le_bytes(), 0).context("cannot switch the anomaly")
    }

    /// Makes it go wrong for so long. Returns begin and end, ktime ns: the begin is before anything went wrong.
    ///
    /// # Errors
    ///
    /// If it cannot be switched, or the program did not see it.
    pub fn inject(&mut self, anomaly: Anomaly, length: Duration) -> Result<(u64, u64)> {
        let (begin_ns, over) = (now_ns(), Instant::now() + length);
        let mut burners = Vec::new();
        if anomaly == Anomaly::Cpu {
            for _ in 0..BURNERS {
                let mut command = Command::new(&self.program);
                burners.push(Process::start(command.args(["burn", &self.cpu]), &self.folder)?);
            }
        }
        self.switch(anomaly.word())?;
        let going_on = self.go_on(anomaly, over);
        // Whatever happened: the next run begins without it.
        self.switch(0)?;
        drop(burners);
        going_on?;
        let end_ns = now_ns();
        if anomaly == Anomaly::Cache {
            // The program itself takes a minute to read each page again, and the next run is to begin as this one did.
            std::fs::read(&self.database).context("cannot read the database")?;
        }
        std::thread::sleep(SEEN_WITHIN);
        ensure!(self.word(SEEN)? == 0, "the program did not see that nothing is wrong any more");
        Ok((begin_ns, end_ns))
    }

    fn go_on(&self, anomaly: Anomaly, over: Instant) -> Result<()> {
        if anomaly == Anomaly::Cache {
            let file = File::open(&self.database)?;
            while Instant::now() < over {
                fadvise(&file, 0, None, Advice::DontNeed).context("cannot drop pages")?;
                std::thread::sleep(BETWEEN_DROPS);
            }
            return Ok(());
        }
        std::thread::sleep(SEEN_WITHIN);
        ensure!(self.word(SEEN)? == anomaly.word(), "the program did not see what is to go wrong");
        std::thread::sleep(over.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// All calls that have ended, in the order of their ends.
    ///
    /// # Errors
    ///
    /// If the program's file cannot be read.
    pub fn calls(&self) -> Result<Vec<Call>> {
        // OK because there is room for 2^18 calls.
        let count = self.word(3 * 8)?.min(1 << 18) as usize;
        let mut bytes = vec![0; count * CALL];
        self.shared.read_exact_at(&mut bytes, HEAD as u64).context("cannot read the program's calls")?;
        Ok(calls_in(&bytes))
    }

    /// Ends it; its own checks must have found nothing.
    ///
    /// # Errors
    ///
    /// If it ends in another way.
    pub fn finish(self) -> Result<()> {
        let log = text_of(&self.folder.join("log"));
        ensure!(!log.contains("wrong:"), "the program says {log}");
        self.talker.finish()
    }
}

/// Calls as the program logs them; those that it has not written yet are left out.
fn calls_in(bytes: &[u8]) -> Vec<Call> {
    let word = |call: &[u8], at: usize| {
        u64::from_le_bytes(call[at * 8..at * 8 + 8].try_into().expect("eight bytes"))
    };
    let call = |bytes: &[u8]| Call {
        begin_ns: word(bytes, 0),
        end_ns: word(bytes, 1),
        // OK because it is a byte.
        function: (word(bytes, 2) & 0xff) as usize,
    };
    let mut calls: Vec<Call> = bytes.chunks_exact(CALL).map(call).filter(|call| call.end_ns > 0).collect();
    calls.retain(|call| call.function < FUNCTIONS.len());
    calls.sort_by_key(|call| call.end_ns);
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_in_the_order_of_their_ends_and_unfinished_ones_are_left_out() {
        let words: [u64; 9] = [100, 900, 7 << 8, 200, 0, 1, 300, 400, (5 << 8) | 2];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let expected = [
            Call { function: 2, begin_ns: 300, end_ns: 400 },
            Call { function: 0, begin_ns: 100, end_ns: 900 },
        ];
        assert_eq!(calls_in(&bytes), expected);
    }

    #[test]
    fn the_machine_is_touched_by_what_takes_its_cpu_only() {
        assert!(Anomaly::Cpu.touches(None) && !Anomaly::Lock.touches(None));
        assert!(Anomaly::Lock.touches(Some(2)) && !Anomaly::Lock.touches(Some(0)));
        assert!(Anomaly::Delay.touches(Some(1)) && !Anomaly::Delay.touches(Some(2)));
        let known = |anomaly: Anomaly| anomaly.touched().iter().all(|number| *number < FUNCTIONS.len());
        assert!(Anomaly::ALL.into_iter().all(known));
    }

    #[test]
    fn another_program_has_another_hash() {
        let base = tempfile::tempdir().unwrap();
        let place = Place::new(base.path().to_owned()).unwrap();
        assert!(Target::version(&place).is_err());
        std::fs::create_dir_all(place.built("own")).unwrap();
        std::fs::write(place.built("own/anomalies-delay.so"), "so").unwrap();
        std::fs::write(place.built("own/anomalies"), "one").unwrap();
        let one = Target::version(&place).unwrap();
        assert_eq!((one.len(), Target::version(&place).unwrap()), (12, one.clone()));
        std::fs::write(place.built("own/anomalies"), "two").unwrap();
        assert_ne!(Target::version(&place).unwrap(), one);
    }

    #[test]
    fn a_resource_is_right_by_its_words() {
        assert!(
            Anomaly::Lock.is_right("off CPU, blocked") && !Anomaly::Lock.is_right("off CPU, waiting for one")
        );
        assert!(Anomaly::Cpu.is_right("off CPU, waiting for one") && !Anomaly::Cpu.is_right("CPU"));
        assert!(
            Anomaly::Memory.is_right("page faults") && !Anomaly::Memory.is_right("page faults from disk")
        );
        assert!(Anomaly::Cache.is_right("I/O, of more bytes") && !Anomaly::Cache.is_right("page faults"));
        assert!(Anomaly::ALL.iter().all(|anomaly| Anomaly::of(anomaly.name()) == Some(*anomaly)));
    }
}
