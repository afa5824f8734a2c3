//! Names of JIT code: `/tmp/perf-PID.map`, which runtimes write for profilers.
//!
//! Format (linux/tools/perf/Documentation/jit-interface.txt): a line `START SIZE name` per piece of code,
//! start and size in hexadecimal. The file is read through the target's root, only
//! if it is a regular file of the target's user or root's, and only up to a bound.

use crate::inspect::process::Status;
use crate::target_file::Root;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Read at most so much of a map.
const MAX_BYTES: u64 = 64 << 20;
/// Pieces of code kept of a map, the last ones; a large JVM has some 100,000.
const MAX_SYMBOLS: usize = 1 << 20;
/// A map that has grown is read again, but not more often than this.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
/// Processes whose maps are kept.
const MAX_MAPS: usize = 16;

#[derive(Debug, Default)]
struct PerfMap {
    /// Start, size, name; sorted by start. A later line for the same start replaces an earlier one.
    symbols: Vec<(u64, u64, String)>,
    size: u64,
    looked: Option<Instant>,
}

/// The perf maps of the processes seen.
#[derive(Debug, Default)]
pub(super) struct PerfMaps(HashMap<u32, PerfMap>);

impl PerfMaps {
    /// The name of the code at `address` in `pid`.
    pub(super) fn find(&mut self, pid: u32, address: u64) -> Option<&str> {
        if !self.0.contains_key(&pid) && self.0.len() >= MAX_MAPS {
            self.0.clear();
        }
        let map = self.0.entry(pid).or_default();
        if map.position(address).is_none() && map.looked.is_none_or(|t| t.elapsed() >= RELOAD_EVERY) {
            map.looked = Some(Instant::now());
            map.reload(pid);
        }
        map.position(address).map(|i| map.symbols[i].2.as_str())
    }
}

impl PerfMap {
    fn position(&self, address: u64) -> Option<usize> {
        let i = self.symbols.partition_point(|s| s.0 <= address).checked_sub(1)?;
        (address - self.symbols[i].0 < self.symbols[i].1).then_some(i)
    }

    fn reload(&mut self, pid: u32) {
        // OK because the kernel's process ids are positive ints.
        let Ok(status) = Status::read(pid.cast_signed()) else { return };
        // The PID that the process has in its own PID namespace names the map.
        let inner = status.ns_pids.last().map_or(pid, |inner| inner.cast_unsigned());
        let Ok(root) = Root::of(pid) else { return };
        // Anybody may put a file into /tmp.
        let found =
            root.open(&PathBuf::from(format!("/tmp/perf-{inner}.map"))).and_then(|f| f.of_owner(status.uid));
        let Ok(file) = found else { return };
        if file.len() == self.size {
            return;
        }
        self.size = file.len();
        if let Ok(bytes) = file.read_all(MAX_BYTES) {
            self.symbols = parse(&String::from_utf8_lossy(&bytes));
        }
    }
}

/// Lines that do not look right are left out, as are pieces without bytes.
pub(super) fn parse(text: &str) -> Vec<(u64, u64, String)> {
    let mut symbols: Vec<(u64, u64, String)> = text
        .lines()
        .rev()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ' ');
            let mut hex = || u64::from_str_radix(fields.next()?.trim_start_matches("0x"), 16).ok();
            let (start, size) = (hex()?, hex()?);
            (size > 0).then_some((start, size, fields.next()?.trim().to_owned()))
        })
        .take(MAX_SYMBOLS)
        .collect();
    // Stable: of lines with one start the last one written comes first, and stays.
    symbols.sort_by_key(|s| s.0);
    symbols.dedup_by_key(|s| s.0);
    symbols
}
