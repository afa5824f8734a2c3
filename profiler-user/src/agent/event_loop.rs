//! A run from its beginning to its end: time, signals, reports of the opener and the target's end drive it.

use super::attach::Gone;
use super::clock::{QUIET_TURN, TURN, now_ns};
use super::expected::{Baseline, with_models};
use super::finish::Finished;
use super::journal::Progress;
use super::launch::hold_target;
use super::prepare::{Scratch, preflight, prepare, survey_only};
use super::{EndReason, Session};
use crate::config::RunConfig;
use crate::failure::Failure;
use crate::watchdog::Watchdog;
use anyhow::Context;
use profiler_core::class::RecordKind;
use profiler_core::plan::Problem;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

/// Least time between two looks at what waits to be attached.
const LEAST_WAIT: Duration = Duration::from_micros(500);
/// Between two looks at the opener where nothing else is to be done.
const WAIT: Duration = Duration::from_micros(500);

/// Runs to the end and returns what is to be shown.
///
/// # Errors
/// With the exit code that fits: nothing has been attached, or everything is detached again.
pub fn record(config: &RunConfig, watchdog: &Watchdog) -> Result<Finished, Failure> {
    preflight()?;
    run_session(config, watchdog, false).1
}

/// Surveys a process and returns the planning problem; leaves nothing attached and nothing on disk.
///
/// # Errors
/// As [`record`].
pub fn plan(config: &RunConfig, watchdog: &Watchdog) -> Result<Problem, Failure> {
    preflight()?;
    let scratch = Scratch::create()?;
    let survey = survey_only(config, scratch.path());
    let (problem, finished) = run_session(&survey, watchdog, true);
    finished?;
    problem.ok_or_else(|| Failure::attach(anyhow::anyhow!("the target ended before there was a plan")))
}

/// A run, and the problem of its first plan if that is all that is wanted.
fn run_session(
    config: &RunConfig,
    watchdog: &Watchdog,
    plan_only: bool,
) -> (Option<Problem>, Result<Finished, Failure>) {
    let mut problem = None;
    let finished = try_session(config, watchdog, plan_only, &mut problem);
    (problem, finished)
}

fn try_session(
    config: &RunConfig,
    watchdog: &Watchdog,
    plan_only: bool,
    problem: &mut Option<Problem>,
) -> Result<Finished, Failure> {
    config.check().map_err(Failure::usage)?;
    let baseline = Baseline::open(config)?;
    let config = &with_models(config, baseline.as_ref());
    // Whoever waits sees at once that something happens.
    let progress = Progress::start();
    crate::governor::prefer_event_loop();
    let held = hold_target(&config.target)?;
    let heartbeat = watchdog.heartbeat();
    let (mut session, launched) = prepare(config, held, progress, plan_only, watchdog)?;
    session.expect(baseline)?;
    heartbeat.arm();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    session.agent.note_priority();
    let run = launched.go(&mut session, config).and_then(|()| runtime.block_on(session.run()));
    *problem = session.driver.run.take_problem();
    let finished = session.finish(&heartbeat, run.as_ref().ok().copied(), run.as_ref().err());
    heartbeat.disarm();
    run?;
    finished
}

impl Session {
    /// When something has to be done that nobody tells of: at the next turn, or before that where a group waits to be attached.
    fn wake_at(&self, next: tokio::time::Instant) -> tokio::time::Instant {
        let retry_ns = self.agent.attach.retry_at();
        let retry_ns = retry_ns.filter(|_| self.driver.run.suspension().may_attach());
        let Some(retry_ns) = retry_ns else { return next };
        let wait = Duration::from_nanos(retry_ns.saturating_sub(now_ns())).max(LEAST_WAIT);
        next.min(tokio::time::Instant::now() + wait)
    }

    /// Heeds what became of links, and has the next ones made.
    ///
    /// # Errors
    /// The opener is gone.
    fn attach(&mut self) -> Result<(), Gone> {
        self.driver.attach(&mut self.agent)
    }

    /// Waits until all that was asked for is attached or given up: before a program is let go, when nothing else is to be done.
    ///
    /// # Errors
    /// The opener is gone.
    pub(super) fn attach_all(&mut self) -> Result<(), Gone> {
        loop {
            self.attach()?;
            if self.agent.attach.is_settled() {
                return Ok(());
            }
            self.agent.pulse();
            std::thread::sleep(WAIT);
        }
    }

    /// How long the next turn may wait.
    fn pause(&self) -> Duration {
        let agent = &self.agent;
        if agent.catalog.is_searching() {
            return Duration::ZERO;
        }
        let records = agent.attach.classes().iter().any(|c| c.is_open() && c.kind == RecordKind::Record);
        let idle = agent.attach.is_settled() && !agent.attach.closing() && !records;
        let quiet = self.driver.run.is_quiet(now_ns() + QUIET_TURN.as_nanos() as u64);
        if quiet && idle { QUIET_TURN } else { TURN }
    }

    /// One turn. False: the run is over.
    ///
    /// # Errors
    /// The opener is gone, or the budget does not allow what must be traced.
    fn turn(&mut self) -> Result<bool, Failure> {
        self.agent.pulse();
        let goes_on = self.driver.turn(&mut self.agent).map_err(anyhow::Error::new)?;
        match self.driver.run.take_failure() {
            Some(failure) => Err(anyhow::Error::new(failure).into()),
            None => Ok(goes_on),
        }
    }

    /// The loop.
    async fn run(&mut self) -> Result<EndReason, Failure> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
        // A stopped agent would be killed by its watchdog: traps must not stay armed while nobody looks.
        let mut stop = signal(SignalKind::from_raw(libc::SIGTSTP)).context("cannot catch SIGTSTP")?;
        let pidfd =
            self.agent.target.pidfd().try_clone_to_owned().context("cannot watch the target's end")?;
        // SAFETY: the descriptor is owned by the `AsyncFd`, which keeps it open until it is deregistered.
        let exit = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) }
            .context("cannot watch the target's end")?;
        self.agent.journal.progress.set("sampling: where does the time go?".to_owned());
        let mut next = tokio::time::Instant::now();
        loop {
            let wake = self.wake_at(next);
            tokio::select! {
                () = tokio::time::sleep_until(wake) => {
                    if tokio::time::Instant::now() < next {
                        self.attach().map_err(anyhow::Error::new)?;
                        continue;
                    }
                    if !self.turn()? {
                        return Ok(EndReason::Duration);
                    }
                    next = tokio::time::Instant::now() + self.pause();
                }
                report = self.agent.attach.report() => {
                    let report = report.ok_or_else(|| anyhow::Error::new(Gone))?;
                    self.agent.attach.note_report(report);
                    self.attach().map_err(anyhow::Error::new)?;
                    // Whoever asked for it goes on at once.
                    if self.agent.attach.is_settled() {
                        next = tokio::time::Instant::now();
                    }
                }
                _ = interrupt.recv() => return Ok(EndReason::Interrupted),
                _ = terminate.recv() => return Ok(EndReason::Terminated),
                _ = stop.recv() => {
                    let text = "Ctrl-Z does not work while functions are traced; Ctrl-C ends the run";
                    self.agent.journal.progress.note(text);
                }
                _ = hangup.recv() => return Ok(EndReason::Interrupted),
                _ = exit.readable() => return Ok(EndReason::TargetExited),
            }
        }
    }
}
