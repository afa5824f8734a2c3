//! stress-ng's stressors, one at a time, with `--verify`: it compares its own results and counts what it did. The
//! busiest of its processes is watched.

use crate::place::{Place, first_line};
use crate::process::{Process, cpu_ticks, descendants, tail};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Stressors that verify what they do, or die of what goes wrong.
const STRESSORS: [&str; 38] = [
    "cpu",
    "matrix",
    "matrix-3d",
    "sparsematrix",
    "vecmath",
    "vecwide",
    "vecfp",
    "vecshuf",
    "fp",
    "memcpy",
    "str",
    "wcs",
    "bsearch",
    "qsort",
    "heapsort",
    "mergesort",
    "radixsort",
    "shellsort",
    "hsearch",
    "lsearch",
    "tsearch",
    "tree",
    "skiplist",
    "judy",
    "hash",
    "zlib",
    "crypt",
    "jpeg",
    "funccall",
    "longjmp",
    "sigsegv",
    "sigfpe",
    "context",
    "fork",
    "vfork",
    "pipe",
    "futex",
    "malloc",
];

/// One stressor.
pub struct Stressor {
    name: String,
    stressor: &'static str,
}

/// All of them.
pub fn all() -> Vec<Stressor> {
    STRESSORS.iter().map(|&stressor| Stressor { name: format!("stress-ng-{stressor}"), stressor }).collect()
}

impl Program for Stressor {
    fn name(&self) -> &str {
        &self.name
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::plain("1%"), Mode::plain("5%")]
    }

    /// One at a time, and no more than two: there are many stressors.
    fn modes_of(&self, round: u32) -> Vec<Mode> {
        self.modes().into_iter().rev().skip(round as usize).take(1).collect()
    }

    fn may_be_unseen(&self, _: &str) -> Option<&'static str> {
        Some("Debian strips stress-ng: its functions have no names")
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[place.root("stress-ng", "usr/bin/stress-ng")])
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(place.command("stress-ng", "usr/bin/stress-ng").arg("--version"))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        let program = place.root("stress-ng", "usr/bin/stress-ng");
        let libraries = place.root("stress-ng", "usr/lib/x86_64-linux-gnu");
        Ok(Box::new(Stress {
            program,
            libraries,
            stressor: self.stressor,
            folder: folder.to_owned(),
            process: None,
        }))
    }
}

struct Stress {
    program: PathBuf,
    libraries: PathBuf,
    stressor: &'static str,
    folder: PathBuf,
    process: Option<Process>,
}

impl Instance for Stress {
    fn begin(&mut self, _: f64) -> Result<u32> {
        let _ = std::fs::remove_file(self.folder.join("log"));
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command.args([&format!("--{}", self.stressor), "1", "--verify", "--metrics-brief", "--timeout"]);
        // It is told to end; SIGINT lets it verify and sum up as its own clock does.
        command.arg("600s").arg("--temp-path").arg(&self.folder);
        let process = self.process.insert(Process::start(&mut command, &self.folder)?);
        let pid = process.pid();
        let end = Instant::now() + Duration::from_secs(2);
        loop {
            process.ensure_alive()?;
            std::thread::sleep(Duration::from_millis(100));
            let busiest = descendants(pid).into_iter().max_by_key(|&child| cpu_ticks(child));
            match busiest {
                Some(child) if cpu_ticks(child) >= 5 || Instant::now() > end => return Ok(child),
                _ => ensure!(Instant::now() < end + Duration::from_secs(1), "stress-ng started nothing"),
            }
        }
    }

    fn end(&mut self) -> Result<Work> {
        let mut process = self.process.take().context("stress-ng was not started")?;
        process.ensure_alive()?;
        process.signal(libc::SIGINT);
        process.wait_success(Duration::from_secs(60))?;
        let log = process.log();
        let failed =
            log.lines().find(|line| line.contains(" fail: ") || line.contains("terminated on signal"));
        ensure!(failed.is_none(), "stress-ng said {failed:?}: {}", tail(&log));
        let rates = rates(&log, self.stressor);
        let (wall, cpu) = rates.with_context(|| format!("stress-ng printed no figure: {}", tail(&log)))?;
        let of = |rate| std::collections::BTreeMap::from([("bogo operations".to_owned(), rate)]);
        Ok(Work { rates: of(wall), cpu_rates: of(cpu), ..Work::default() })
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Operations per second of real time and of CPU time: the line of the metrics that begins with the stressor's name.
fn rates(log: &str, stressor: &str) -> Option<(f64, f64)> {
    log.lines()
        .filter_map(|line| line.split_once("] ").map(|(_, rest)| rest))
        .map(|rest| rest.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.first() == Some(&stressor) && words.len() >= 7)
        .and_then(|words| Some((words[5].parse().ok()?, words[6].parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_that_of_the_stressors_line() {
        let log = "stress-ng: info:  [7] stressor       bogo ops real time  usr time  sys time   bogo ops/s\n\
                   stress-ng: info:  [7]                           (secs)    (secs)    (secs)   (real time)\n\
                   stress-ng: metrc: [7] cpu                2000      2.50      2.40      0.00       800.00     833.33\n";
        assert_eq!(rates(log, "cpu"), Some((800.0, 833.33)));
        assert_eq!(rates(log, "matrix"), None);
    }
}
