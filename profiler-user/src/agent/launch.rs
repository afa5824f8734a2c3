//! `record -- COMMAND`: what is named is attached before the program runs, and its exit status is passed on.
//!
//! ```text
//! exec stop ─ count classes of the program ─► loader maps the libraries ─► entry point ─ everything else ─► resumed
//! ```
//! Two steps, because at the exec stop nobody knows yet which libraries come: whether return links are safe is asked at
//! the entry point. So a function of the program that is *counted* is attached before the first instruction (resolvers,
//! pre-initialisers and calls from library constructors included); library functions, and functions that are timed or
//! recorded, and those that operations are made of, are attached at the entry point: before the program's own constructors
//! and `main`, after those of the libraries.

use super::Session;
use super::attach::TargetId;
use super::metric::Wanted;
use crate::config::{RunConfig, TargetConfig};
use crate::failure::Failure;
use crate::target::{LaunchUser, Suspended, Target, launch};
use profiler_core::engine::Input;
use std::ffi::{OsStr, OsString};

/// A target that is there, or one that is held before its first instruction.
pub(super) enum Held {
    Running(Target),
    Suspended(Suspended),
}

impl Held {
    pub(super) fn target(&self) -> &Target {
        match self {
            Self::Running(target) => target,
            Self::Suspended(held) => held.target(),
        }
    }
}

/// What is left to be let go once everything is ready.
pub(super) enum Launched {
    Nothing,
    Held(Box<Suspended>),
}

/// Binds to the process, or launches the command and holds it before its first instruction.
///
/// # Errors
/// There is no such process, or the command cannot be started.
pub(super) fn hold_target(config: &TargetConfig) -> Result<Held, Failure> {
    let (words, as_root) = match config {
        TargetConfig::Process(pid) => {
            // OK because process IDs end at 2^22: there is no such process.
            let pid = i32::try_from(*pid).unwrap_or(i32::MAX);
            return Ok(Held::Running(Target::attach(pid).map_err(Failure::attach)?));
        }
        TargetConfig::Command { words, as_root } => (words, *as_root),
    };
    let user = if as_root { None } else { LaunchUser::from_sudo().map_err(Failure::attach)? };
    let (program, rest) = words.split_first().ok_or_else(|| Failure::usage("no command to start"))?;
    let rest: Vec<OsString> = rest.iter().map(OsString::from).collect();
    launch(OsStr::new(program), &rest, user.as_ref()).map(Held::Suspended).map_err(Failure::attach)
}

impl Launched {
    /// Attaches what is named, and lets the program run.
    ///
    /// # Errors
    /// The budget does not allow what must be traced, or the program ended; it has not run then, or is killed.
    pub(super) fn go(self, session: &mut Session, config: &RunConfig) -> Result<(), Failure> {
        let Self::Held(mut held) = self else { return Ok(()) };
        let agent = &mut session.agent;
        // The symbols of a large program take seconds.
        agent.attach.governor().excuse();
        agent.catalog.for_operations = agent.operation_functions(&config.operations);
        agent.catalog.loading = Some(Loading::Program);
        session.attach_before_start()?;
        // Until it stops again the loader runs under the breakpoints of the first step.
        held.run_to_entry(|| session.agent.attach.governor().pulse()).map_err(Failure::attach)?;
        session.settle();
        let agent = &mut session.agent;
        agent.inspection.refresh().map_err(Failure::attach)?;
        agent.sampling.modules_changed();
        // What counts the metric and the operations may have return links.
        agent.know_stacks();
        let wanted = Wanted::named(config, &agent.inspection)?;
        session.measure(wanted)?;
        session.agent.look_up_names().map_err(Failure::usage)?;
        session.follow_operations(&config.operations)?;
        session.agent.catalog.for_operations.clear();
        session.attach_operations()?;
        session.agent.catalog.loading = Some(Loading::Libraries);
        session.attach_before_start()?;
        session.agent.catalog.loading = None;
        // Making links stalls a running program; this one stood still.
        let target = session.agent.attach.target_mut(TargetId::FIRST);
        let _ = (target.take_link_changes(), target.take_links_once());
        session.tell(Input::Begins);
        let (target, child) = held.resume().map_err(Failure::attach)?;
        session.agent.target = target;
        session.agent.child = Some(child);
        Ok(())
    }
}

/// How far a launched program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loading {
    /// Only the program and its loader are mapped.
    Program,
    /// The libraries are mapped, too; it stands at its entry point.
    Libraries,
}

impl Session {
    /// Attaches what is named and mapped, with a quota from the tokens that the bucket lends.
    fn attach_before_start(&mut self) -> Result<(), Failure> {
        self.agent.attach.governor().pulse();
        self.tell(Input::BeforeStart);
        if let Some(failure) = self.driver.run.take_failure() {
            return Err(anyhow::Error::new(failure).into());
        }
        self.attach_all().map_err(Failure::attach)
    }
}
