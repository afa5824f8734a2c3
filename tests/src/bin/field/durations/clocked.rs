//! Programs of ours that call a library and clock these calls themselves (`tests/field/clocked.h`): SQLite, OpenSSL, zstd. Each checks its results and
//! ends with an error at the first wrong one.

use super::subject::{Case, Judged, Running};
use super::truth::{Counted, EMPTY};
use crate::place::{Place, first_line};
use crate::process::{ANSWER_LIMIT, Process};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A program and the library that it calls.
pub struct Library {
    name: &'static str,
    /// The program, below `build/own`.
    program: &'static str,
    /// The set of packages in which its library lies; none: it is linked in.
    set: Option<&'static str>,
    /// Functions that it clocks, in the order of its file, the clock itself left out.
    functions: &'static [&'static str],
    /// What says its version, and how; none: that of the source package.
    version: Option<(&'static str, &'static str)>,
}

/// All of them.
pub fn all() -> [Library; 3] {
    [
        Library {
            name: "sqlite",
            program: "sqlite-steps",
            set: Some("sqlite"),
            functions: &["sqlite3_step", "sqlite3_reset", "sqlite3_prepare_v2"],
            version: Some(("usr/bin/sqlite3", "--version")),
        },
        Library {
            name: "openssl",
            program: "openssl-calls",
            set: Some("openssl"),
            functions: &["EVP_Digest", "EVP_EncryptUpdate", "EVP_PKEY_sign", "EVP_PKEY_verify"],
            version: Some(("usr/bin/openssl", "version")),
        },
        Library {
            name: "zstd",
            program: "zstd-blocks",
            set: None,
            functions: &["ZSTD_compress2", "ZSTD_decompressDCtx"],
            version: None,
        },
    ]
}

impl Library {
    fn path(&self, place: &Place) -> PathBuf {
        place.built("own").join(self.program)
    }
}

impl Judged for Library {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case { name: "5%", budget: "5%", latency: self.functions, functions: self.functions }]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&[self.path(place)])
    }

    fn version(&self, place: &Place) -> Result<String> {
        match (self.set, self.version) {
            (Some(set), Some((file, argument))) => first_line(place.command(set, file).arg(argument)),
            _ => Ok("Debian's source, unstripped".to_owned()),
        }
    }

    fn start(&self, place: &Place, folder: &Path, _: &Case) -> Result<Box<dyn Running>> {
        let slots = folder.join("slots");
        let mut command = Command::new(self.path(place));
        if let Some(set) = self.set {
            command.env("LD_LIBRARY_PATH", place.root(set, "usr/lib/x86_64-linux-gnu"));
        }
        let mut process = Process::start(command.env("CLOCKED", &slots), folder)?;
        let end = Instant::now() + ANSWER_LIMIT;
        while !process.log().starts_with("begun") {
            process.ensure_alive()?;
            ensure!(Instant::now() < end, "{} has not begun", self.program);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Box::new(Started { process, slots, functions: self.functions }))
    }
}

/// Calls and times of a file of pairs of numbers: the clock itself, then the functions in their order.
///
/// # Errors
///
/// If it cannot be read.
pub fn slots(file: &Path, functions: &[&str]) -> Result<BTreeMap<String, Counted>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(counted(&bytes, functions))
}

fn counted(bytes: &[u8], functions: &[&str]) -> BTreeMap<String, Counted> {
    let numbers: Vec<f64> = bytes
        .chunks_exact(8)
        .map(|eight| u64::from_ne_bytes(eight.try_into().unwrap_or_default()) as f64)
        .collect();
    let names = [EMPTY].into_iter().chain(functions.iter().copied());
    names
        .zip(numbers.chunks_exact(2))
        .map(|(name, pair)| (name.to_owned(), Counted { calls: pair[0], total_ns: Some(pair[1]) }))
        .collect()
}

struct Started {
    process: Process,
    slots: PathBuf,
    functions: &'static [&'static str],
}

impl Running for Started {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn read(&mut self) -> Result<BTreeMap<String, Counted>> {
        self.process.ensure_alive()?;
        slots(&self.slots, self.functions)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.process.ensure_alive()?;
        self.process.signal(libc::SIGTERM);
        self.process.wait_success(ANSWER_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_slots_is_read_in_its_order() {
        let numbers = [10_u64, 250, 3, 3000, 7, 14];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let read = counted(&bytes, &["one", "two", "beyond"]);
        assert_eq!(read[EMPTY], Counted { calls: 10.0, total_ns: Some(250.0) });
        assert_eq!(read["one"], Counted { calls: 3.0, total_ns: Some(3000.0) });
        assert_eq!(read["two"].total_ns, Some(14.0));
        assert!(!read.contains_key("beyond"));
    }
}
