//! The programs that are held against their models: each takes a small part of a CPU.

use super::{BUDGET, LEARNED};
use crate::anomalies::target::{FUNCTIONS, Target};
use crate::place::Place;
use crate::process::Talker;
use crate::programs::{python, script};
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `grows` rests after each call so many times as long as that took; ...
const IDLE: &str = "30";
/// ... with functions whose calls are long, so that a recording has enough of them.
const IDLE_OF_LONG: &str = "5";

/// A program.
pub struct Subject {
    /// Its name: of those of `tests/field/grows.c`, its mode.
    pub name: &'static str,
    /// What `--model` and `--input` are given.
    pub functions: &'static [(&'static str, &'static str)],
    /// What `--word` is given.
    pub words: &'static [&'static str],
    /// So many of it run at once: each has a recording of its own.
    pub copies: u32,
    idle: &'static str,
    kind: Kind,
}

/// What is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A mode of `tests/field/grows.c`.
    Grows,
    /// `tests/field/anomalies.c`, without anything that goes wrong.
    Sqlite,
    /// `tests/field/checksums.py` in Debian's CPython.
    Python,
}

/// All of them.
pub const SUBJECTS: [Subject; 10] = [
    grows("qsort", &[("libc.so*:qsort", "qsort:n=arg1:size")]),
    Subject {
        idle: IDLE_OF_LONG,
        ..grows(
            "pcre2_match, unanchored class",
            &[("libpcre2-8.so*:pcre2_match_8", "pcre2_match_8:n=arg2:size")],
        )
    },
    grows("crc32", &[("libz.so*:crc32", "crc32:n=arg2:int")]),
    grows("mpn_mul", &[("libgmp.so*:__gmpn_mul", "__gmpn_mul:n=arg2:long")]),
    Subject {
        // The words of the number behind its modulus: `int top` of OpenSSL's `struct bignum_st`.
        words: &["libcrypto.so*:BN_mod_exp:words=arg3->8:int"],
        idle: IDLE_OF_LONG,
        ..grows("BN_mod_exp", &[("libcrypto.so*:BN_mod_exp", "BN_mod_exp:n=words:int")])
    },
    grows("json_loadb", &[("libjansson.so*:json_loadb", "json_loadb:n=arg1:size")]),
    grows("bsearch", &[("libc.so*:bsearch", "bsearch:n=arg2:size")]),
    grows("pcre2_match", &[("libpcre2-8.so*:pcre2_match_8", "pcre2_match_8:n=arg2:size")]),
    Subject {
        name: "sqlite",
        functions: &[
            (FUNCTIONS[0].pattern, FUNCTIONS[0].input),
            (FUNCTIONS[1].pattern, FUNCTIONS[1].input),
            (FUNCTIONS[2].pattern, FUNCTIONS[2].input),
        ],
        words: &[],
        // Its files have one place.
        copies: 1,
        idle: "",
        kind: Kind::Sqlite,
    },
    Subject {
        name: "cpython",
        functions: &[("libz.so*:crc32", "crc32:n=arg2:int"), ("libz.so*:adler32", "adler32:n=arg2:int")],
        words: &[],
        copies: 2,
        idle: "",
        kind: Kind::Python,
    },
];

/// Which programs these are, and how they rest: the beginning of a hash.
///
/// # Errors
///
/// If one of them cannot be read.
pub fn version(place: &Place) -> Result<String> {
    let mut hash = Sha256::new();
    for file in [place.built("own/grows"), script("checksums.py")] {
        hash.update(std::fs::read(&file).with_context(|| format!("no {}", file.display()))?);
    }
    hash.update(Target::version(place)?);
    hash.update(format!("{BUDGET} {LEARNED:?}"));
    for subject in &SUBJECTS {
        let Subject { name, functions, words, idle, .. } = subject;
        hash.update(format!("{name} {idle} {functions:?} {words:?}"));
    }
    Ok(hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect())
}

const fn grows(name: &'static str, functions: &'static [(&'static str, &'static str)]) -> Subject {
    Subject { name, functions, words: &[], copies: 2, idle: IDLE, kind: Kind::Grows }
}

/// A started program.
pub struct Running {
    subject: &'static Subject,
    folder: PathBuf,
    program: Program,
}

enum Program {
    Talks(Talker),
    Logs(Box<Target>),
}

impl Subject {
    /// Starts the copy of this number.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start(&'static self, place: &Place, copy: u32) -> Result<Running> {
        let folder = place.working(&format!("alarms-{}-{copy}", self.name))?;
        let mut command = match self.kind {
            Kind::Sqlite => {
                let target = Box::new(Target::start(place, false)?);
                return Ok(Running { subject: self, folder, program: Program::Logs(target) });
            }
            Kind::Grows => {
                let mut command = Command::new(place.built("own/grows"));
                command.args([self.name, self.idle]);
                command
            }
            Kind::Python => {
                let mut command = python(place);
                command.arg(script("checksums.py"));
                command
            }
        };
        let mut talker = Talker::start(&mut command, &folder)?;
        let line = talker.line()?;
        ensure!(line == "ready", "the program said {line:?}");
        Ok(Running { subject: self, folder, program: Program::Talks(talker) })
    }
}

impl Running {
    /// Which it is.
    pub fn subject(&self) -> &'static Subject {
        self.subject
    }

    /// A folder for its recordings.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its process.
    pub fn pid(&mut self) -> u32 {
        match &mut self.program {
            Program::Talks(talker) => talker.process().pid(),
            Program::Logs(target) => target.pid(),
        }
    }

    /// An error if it has ended.
    ///
    /// # Errors
    ///
    /// As said.
    pub fn ensure_alive(&mut self) -> Result<()> {
        match &mut self.program {
            Program::Talks(talker) => talker.process().ensure_alive(),
            Program::Logs(target) => target.ensure_alive(),
        }
    }

    /// Ends it; its own checks must have found nothing.
    ///
    /// # Errors
    ///
    /// If it ends in another way.
    pub fn finish(self) -> Result<()> {
        match self.program {
            Program::Talks(talker) => talker.finish(),
            Program::Logs(target) => target.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_an_input_of_its_own_name() {
        for subject in &SUBJECTS {
            assert!(!subject.functions.is_empty());
            for (pattern, input) in subject.functions {
                let symbol = pattern.rsplit(':').next().unwrap();
                assert!(input.starts_with(&format!("{symbol}:")), "{pattern}: {input}");
            }
        }
        let mut names: Vec<&str> = SUBJECTS.iter().map(|subject| subject.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SUBJECTS.len());
    }
}
