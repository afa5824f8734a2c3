//! Programs that answer questions, one a line: interpreters, exceptions, panics, fibers. The same question must get
//! the same answer from every instance; some questions check themselves and say `wrong ...`.

use super::loaded::{Loaded, Subject};
use crate::load::Client;
use crate::place::{Place, first_line};
use crate::process::{Process, Talker};
use crate::program::{Instance, Mode, Program, Work};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Questions are asked again after so many, so that instances of different speed answer the same ones.
const QUESTIONS: u64 = 64;

/// A program of this kind.
pub struct Answers {
    name: &'static str,
    modes: fn() -> Vec<Mode>,
    /// Files that it needs.
    files: fn(&Place) -> Vec<PathBuf>,
    /// Its command.
    command: fn(&Place) -> Command,
    /// A command that prints its version.
    version: fn(&Place) -> Command,
}

/// A script of `tests/field`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("field").join(name)
}

/// The interpreter of the suite.
pub fn python(place: &Place) -> Command {
    let mut command = place.command("python", "usr/bin/python3.11");
    command.env("PYTHONHOME", place.root("python", "usr"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
    command
}

fn python_files(place: &Place) -> Vec<PathBuf> {
    vec![place.root("python", "usr/bin/python3.11"), place.root("python", "usr/lib/python3.11/json")]
}

fn numeric(place: &Place) -> Command {
    let mut command = python(place);
    command.env("PYTHONPATH", place.root("numpy", "")).env("OPENBLAS_NUM_THREADS", "2");
    command
}

/// A version of the compiler stands for that of our own source.
fn compiler(name: &str) -> Command {
    let mut command = Command::new(name);
    command.arg("--version");
    command
}

macro_rules! ours {
    ($name:literal, $function:literal, $compiler:literal) => {
        Answers {
            name: $name,
            modes: || {
                Mode::plain_and([
                    Mode::named("latency", &["--latency", $function]),
                    Mode::named("operation", &["--operation", concat!("work=", $function)]),
                ])
            },
            files: |place| vec![place.built(concat!("own/", $name))],
            command: |place| Command::new(place.built(concat!("own/", $name))),
            version: |_| compiler($compiler),
        }
    };
}

/// All of them.
pub fn all() -> Vec<Answers> {
    vec![
        Answers {
            name: "cpython",
            modes: || {
                Mode::plain_and([
                    Mode::named(
                        "latency",
                        &["--latency", "PyObject_RichCompare", "--latency", "PyDict_SetItem"],
                    ),
                    Mode::named(
                        "operation",
                        &["--operation", "gc=usdt:python:gc__start..usdt:python:gc__done"],
                    ),
                ])
            },
            files: python_files,
            command: |place| {
                let mut command = python(place);
                command.arg(script("work.py"));
                command
            },
            version: |place| {
                let mut command = python(place);
                command.arg("--version");
                command
            },
        },
        Answers {
            name: "numpy",
            modes: || {
                Mode::plain_and([
                    Mode::named("latency", &["--latency", "scipy_cblas_dgemm64_"]),
                    Mode::named("operation", &["--operation", "solve=scipy_dgesv_64_"]),
                ])
            },
            files: |place| {
                let mut files = python_files(place);
                files.push(place.root("numpy", "numpy"));
                files
            },
            command: |place| {
                let mut command = numeric(place);
                command.arg(script("numeric.py"));
                command
            },
            version: |place| {
                let mut command = numeric(place);
                command.args(["-c", "import numpy; print('numpy', numpy.__version__)"]);
                command
            },
        },
        Answers {
            name: "node",
            modes: || {
                Mode::plain_and([
                    Mode::named("latency", &["--latency", "deflate", "--latency", "uv__io_poll"]),
                    // Of the two zlibs in it `Cr_z_*` is that of V8's snapshots.
                    Mode::named("operation", &["--operation", "deflate=deflate"]),
                ])
            },
            files: |place| vec![place.root("node", "package/bin/node")],
            command: |place| {
                let mut command = Command::new(place.root("node", "package/bin/node"));
                command.arg(script("work.js"));
                command
            },
            version: |place| {
                let mut command = Command::new(place.root("node", "package/bin/node"));
                command.args(["-p", "'node ' + process.version"]);
                command
            },
        },
        // Half of its calls return; `throws_middle` is always left by an exception, which ends no operation.
        ours!("throws", "throws_again", "c++"),
        ours!("panics", "panics_middle", "rustc"),
        ours!("fibers-boost", "fiber_work", "c++"),
        ours!("fibers-swapcontext", "fiber_work", "cc"),
        ours!("fibers-own", "fiber_work", "cc"),
    ]
}

impl Program for Answers {
    fn name(&self) -> &str {
        self.name
    }

    fn modes(&self) -> Vec<Mode> {
        (self.modes)()
    }

    fn may_be_unseen(&self, mode: &str) -> Option<&'static str> {
        match (self.name, mode) {
            ("throws", "1%" | "5%") => {
                Some("nearly all of its time passes in the unwinder, which Debian strips")
            }
            _ => None,
        }
    }

    fn missing(&self, place: &Place) -> Option<String> {
        Place::missing(&(self.files)(place))
    }

    fn version(&self, place: &Place) -> Result<String> {
        first_line(&mut (self.version)(place))
    }

    fn start(&self, place: &Place, folder: &Path) -> Result<Box<dyn Instance>> {
        let mut talker = Talker::start(&mut (self.command)(place), folder)?;
        let ready = talker.line()?;
        ensure!(ready == "ready", "the program said \"{ready}\" instead of ready");
        Ok(Loaded::boxed(Asking { talker, answers: BTreeMap::new() }))
    }
}

struct Asking {
    talker: Talker,
    /// Of this run, by question.
    answers: BTreeMap<u64, String>,
}

impl Client for Asking {
    fn step(&mut self, step: u64) -> Result<()> {
        let question = step % QUESTIONS;
        self.talker.send(&format!("{question}\n"))?;
        let answer = self.talker.line()?;
        ensure!(answer.starts_with("ok "), "question {question} was answered \"{answer}\"");
        let before = self.answers.entry(question).or_insert_with(|| answer.clone());
        ensure!(*before == answer, "question {question} was answered \"{before}\", then \"{answer}\"");
        Ok(())
    }
}

impl Subject for Asking {
    fn process(&mut self) -> &mut Process {
        self.talker.process()
    }

    fn begin(&mut self) -> Result<()> {
        self.answers.clear();
        Ok(())
    }

    fn end(&mut self, steps: u64, seconds: f64, cpu_s: f64) -> Result<Work> {
        Ok(Work { answers: self.answers.clone(), ..Work::of("questions", steps as f64, seconds, cpu_s) })
    }

    fn finish(self) -> Result<()> {
        self.talker.finish()
    }
}
