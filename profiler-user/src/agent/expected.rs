//! `--expect`: which functions are recorded because of the models of an earlier recording, and whether the target is the build that these were made of.

use super::clock::now_ns;
use super::consumers::{Expectations, Making, other_build};
use super::{Agent, Session};
use crate::config::{DEFAULT_AGENT_CPU, InputsSpec, RunConfig};
use crate::failure::Failure;
use crate::models::{self, Expected, Watched, stem};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

/// Lowest priority of a thread (setpriority(2)).
const LOWEST: libc::c_int = 19;

/// What a run is held against.
pub(super) struct Baseline {
    path: PathBuf,
    /// Names and types that were given to inputs on this command line, then those of the recording.
    inputs: Vec<InputsSpec>,
    watched: Vec<Watched>,
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
        // Words are not taken anew, and the new recording is not to name what it has not.
        inputs.retain(|spec| spec.inputs.iter().all(|input| input.word.is_none()));
        let watched = models::watched(path, &inputs).map_err(refused)?;
        Ok(Some(Self { path: path.clone(), inputs, watched }))
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
        let making = make(baseline.path.clone(), baseline.inputs);
        let making = making.map_err(|error| Failure::from(anyhow::Error::new(error)))?;
        let name = baseline.path.display().to_string();
        let consumer = Expectations::new(name, &baseline.watched, making);
        let journal = &mut self.agent.journal;
        let agent_cpu = journal.meta.agent.limit.unwrap_or(DEFAULT_AGENT_CPU);
        journal.consumers.register(Box::new(consumer), agent_cpu, now_ns());
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
            let Some(module) = self.inspection.modules().iter().find(|module| is_it(&module.path)) else {
                continue;
            };
            let here = module.build_id().unwrap_or_default();
            if here != function.class.build_id {
                let file = module.path.display().to_string();
                return Err(Failure::usage(format!(
                    "--expect {}: {}: record a run of this build with --model, or compare two recordings with 'tithe models --baseline'",
                    baseline.path.display(),
                    other_build(&file, &function.class.build_id, &here)
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
fn make(path: PathBuf, inputs: Vec<InputsSpec>) -> std::io::Result<Making> {
    let (sender, making) = channel();
    std::thread::Builder::new().name("tithe-models".into()).spawn(move || {
        // SAFETY: plain numbers; 0 is this thread. Where it fails the thread competes with the loop, which has a higher priority anyhow.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
        let made = Expected::read(&path, &inputs).map_err(|error| error.to_string());
        // The run may be over.
        let _ = sender.send(made);
    })?;
    Ok(making)
}
