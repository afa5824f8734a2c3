//! `--expect`: which functions are recorded because of the models of an earlier recording, and whether the target is the build that these were made of.

use super::clock::now_ns;
use super::consumers::{Expectations, Making, other_build};
use super::host::keeps_io_waits;
use super::{Agent, Session};
use crate::config::{DEFAULT_AGENT_CPU, InputsSpec, RunConfig, WordsSpec};
use crate::failure::Failure;
use crate::models::{self, Expected, Frequencies, Watched, stem};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

/// Lowest priority of a thread (setpriority(2)).
const LOWEST: libc::c_int = 19;

/// What a run is held against.
pub(super) struct Baseline {
    path: PathBuf,
    /// Names and types that were given to inputs on this command line, then those of the recording.
    inputs: Vec<InputsSpec>,
    /// Those of them that models are made by; what else the recording names is read from it.
    named: Vec<InputsSpec>,
    /// Words of this command line, then those that are inputs of the models.
    words: Vec<WordsSpec>,
    watched: Vec<Watched>,
    /// Data points that each function is to have; 0: as many as can be had.
    datapoints: u32,
}

impl Baseline {
    /// Which functions there are. The models are made later. `None`: `--expect` was not given.
    ///
    /// # Errors
    /// The recording cannot be opened, or has no recorded calls.
    pub fn open(config: &RunConfig) -> Result<Option<Self>, Failure> {
        let Some(path) = &config.models.expect else { return Ok(None) };
        let refused = |error| Failure::usage(format!("--expect {}: {error}", path.display()));
        if is_replaced(path, config) {
            return Err(Failure::usage(format!(
                "--expect {0}: the new recording would take its place; name another one with -o",
                path.display()
            )));
        }
        let mut inputs = config.models.inputs.clone();
        inputs.extend(models::named_inputs(path).map_err(refused)?);
        let typed = &config.models.inputs;
        let found = models::with_registers(path, inputs, typed.len(), &config.words);
        let mut inputs =
            found.map_err(|why| Failure::usage(format!("--expect {}: {why}", path.display())))?;
        let mut words = config.words.clone();
        words.extend(models::words_anew(path, &inputs, &config.words).map_err(refused)?);
        // The new recording is not to name what it has not. Parameters of other functions are looked up when these are mapped.
        let is_taken = |word: &String| models::is_given(&words, word);
        inputs.retain(|spec| {
            spec.inputs.iter().all(|input| input.word.as_ref().is_none_or(is_taken)) || typed.contains(spec)
        });
        let watched = models::watched(path, &inputs).map_err(refused)?;
        // A word that the recording itself names may be missing with some of the functions, which is a mistake on a command line.
        let mut named = inputs.clone();
        named.retain(|spec| spec.inputs.iter().all(|input| input.word.is_none()) || typed.contains(spec));
        // Only if it was said: fewer calls tell later.
        let datapoints = config.models.datapoints.unwrap_or(0);
        Ok(Some(Self { path: path.clone(), inputs, named, words, watched, datapoints }))
    }
}

/// The recording that is to be written is that one, by whatever path.
fn is_replaced(path: &Path, config: &RunConfig) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let output = config.output.path.as_deref().and_then(real);
    output.is_some() && output == real(path)
}

/// The run, in which functions of models and those of the baseline are recorded.
pub(super) fn with_models(config: &RunConfig, baseline: Option<&Baseline>) -> RunConfig {
    let Some(baseline) = baseline else { return config.with_models() };
    let mut config = config.clone();
    // The recording says what its inputs are called, as the earlier one did.
    config.models.inputs.clone_from(&baseline.inputs);
    config.words.clone_from(&baseline.words);
    let mut config = config.with_models();
    config.functions = config.functions.with_watched(&baseline.watched);
    config
}

impl Session {
    /// Holds the run against the models of an earlier one: begins to make them, and has calls shown to them.
    ///
    /// # Errors
    /// A module that is mapped is of another build.
    pub(super) fn expect(&mut self, baseline: Option<Baseline>) -> Result<(), Failure> {
        let Some(baseline) = baseline else { return Ok(()) };
        self.agent.check_builds(&baseline)?;
        let taken = baseline.words;
        let (sender, frequencies) = channel();
        self.agent.data_points.shared.await_frequencies(frequencies);
        let making = make(baseline.path.clone(), baseline.named, taken, (baseline.datapoints, sender));
        let making = making.map_err(|error| Failure::from(anyhow::Error::new(error)))?;
        let name = baseline.path.display().to_string();
        let words = self.agent.words.lists.meta().into_iter().filter(|word| word.operation.is_none());
        let words = words.map(|word| (word.word, word.name));
        let consumer = Expectations::new(name, &baseline.watched, making).with_words(words);
        let journal = &mut self.agent.journal;
        let agent_cpu = journal.meta.agent.limit.unwrap_or(DEFAULT_AGENT_CPU);
        journal.consumers.register(Box::new(consumer), agent_cpu, now_ns());
        if !keeps_io_waits() {
            journal.progress.note(
                "--expect: kernel.task_delayacct is 0, so that waits for a disk are told as 'off CPU, blocked': 'sysctl kernel.task_delayacct=1' tells them apart",
            );
        }
        Ok(())
    }
}

impl Agent {
    /// Whether modules that are mapped now are those that the models are of. Those that come later are looked at with their classes.
    fn check_builds(&mut self, baseline: &Baseline) -> Result<(), Failure> {
        let mut unknown: Vec<&str> = Vec::new();
        for function in &baseline.watched {
            let name = stem(&function.class.module);
            let is_it = |path: &Path| stem(&path.to_string_lossy()) == name;
            // A library of two versions is two files of one stem: one of them is enough, and classes of the other are refused one by one.
            let mapped: Vec<(&Path, String)> = self
                .inspection
                .modules()
                .iter()
                .filter(|module| is_it(&module.path))
                .map(|module| (module.path.as_path(), module.build_id().unwrap_or_default()))
                .collect();
            let right = mapped.iter().find(|(_, build)| *build == function.class.build_id);
            let Some((path, here)) = right.or(mapped.first()) else { continue };
            if *here != function.class.build_id {
                let file = path.display().to_string();
                return Err(Failure::usage(format!(
                    "--expect {}: {}: record a run of this build with --model, or compare two recordings with 'tithe models --baseline'",
                    baseline.path.display(),
                    other_build(&file, &function.class.build_id, here)
                )));
            }
            if here.is_empty() && !unknown.contains(&name) {
                unknown.push(name);
            }
        }
        for name in unknown {
            let text = format!(
                "--expect: {name} has no build ID: nobody can tell whether it is the build that the models were made of"
            );
            self.journal.progress.note(&text);
            self.journal.meta.warnings.push(text);
        }
        Ok(())
    }
}

/// Makes the models on a thread at the lowest priority: attaching does not wait for it. Its CPU time is the agent's.
/// `taken`: words that this run takes. What groups of functions are recorded at goes the other way, for so many data points.
fn make(
    path: PathBuf,
    inputs: Vec<InputsSpec>,
    taken: Vec<WordsSpec>,
    (datapoints, frequencies): (u32, Sender<Frequencies>),
) -> std::io::Result<Making> {
    let (sender, making) = channel();
    on_lowest_priority("tithe-models", move || {
        let made = Expected::read(&path, &inputs).map(|expected| expected.with_words(&taken));
        if let Ok(expected) = &made {
            let _ = frequencies.send(models::frequencies(expected, datapoints));
        }
        let made = made.map_err(|error| error.to_string());
        // The run may be over.
        let _ = sender.send(made);
    })?;
    Ok(making)
}

/// Does this on a thread of its own that runs when nothing else does.
///
/// # Errors
/// There is no thread to be had.
pub(super) fn on_lowest_priority(name: &str, act: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(move || {
        // SAFETY: plain numbers; 0 is this thread. Where it fails the thread competes with the loop, which has a higher priority anyhow.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
        act();
    })?;
    Ok(())
}
