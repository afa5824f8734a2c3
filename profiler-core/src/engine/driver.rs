//! The turn of the loop: in which order a run is told what, and what it needs of the machine for that.
//!
//! ```text
//! links made ► windows over ► rings ► windows ended ► children ► ledger ► threads ► once a second ► phases ► comparison ► metric ► operations
//! ```
//! Each `►` is one step: the view is filled as far as the step needs it, the run steps, its commands are executed, and what came of them
//! at once is told in turn. The agent and the simulation use the same driver.

use super::command::Command;
use super::input::{Counted, Ended, Input, Interval, OperationsLook, Sees, SlowLook, ThreadHits};
use super::measuring::CountWanted;
use super::{Phase, Run, WantedThreads};
use crate::class::ClassId;
use crate::clients::children::{Event, Look};
use crate::clients::operations::Operations;
use crate::clients::overhead::{Reading, Wanted};
use crate::clients::survey::Links;
use crate::run::order::Purpose;
use crate::run::outcome::Outcome;
use crate::run::suspension::Suspension;
use crate::run::view::View;
use std::collections::VecDeque;

/// Interval of the slow looks, ns.
const SLOW_NS: u64 = 1_000_000_000;

/// What waits to be attached is still wanted: class, quota, purpose.
pub type StillWanted<'a> = &'a dyn Fn(ClassId, u64, Purpose) -> bool;

/// What a run needs of the machine that it runs on: the agent, or a simulated target.
pub trait Machine {
    /// Why the machine cannot go on.
    type Error;

    /// Now, ktime ns.
    fn now_ns(&self) -> u64;

    /// Fills time and samples of the view, and so much of the rest.
    fn fill(&mut self, what: Sees, view: &mut View);

    /// Fills what the client of operations sees.
    fn see_operations(&mut self, look: OperationsLook, client: &Operations, view: &mut View);

    /// Executes commands, in their order. What came of them at once goes to `told`. `view`: what the run knows.
    fn execute(&mut self, commands: Vec<Command>, view: &View, told: &mut VecDeque<Input>);

    /// Takes the reports of links that were made.
    ///
    /// # Errors
    /// Nobody makes links any more.
    fn take_outcomes(&mut self) -> Result<Vec<Outcome>, Self::Error>;

    /// Has the next links made, if their time has come. True: some are on their way, or were given up, so that it may be asked again.
    fn attach_next(&mut self, still_wanted: StillWanted<'_>) -> bool;

    /// Nothing waits to be attached, and nothing is being attached.
    fn is_settled(&self) -> bool;

    /// Takes everything out of the rings. What the kernel told of processes.
    fn drain(&mut self) -> Vec<Event>;

    /// Windows that have ended with their links.
    fn collect(&mut self, view: &View) -> Vec<Ended>;

    /// A look at these processes.
    fn look_at(&mut self, pids: &[u32]) -> Look;

    /// What the interval of the ledger that ends was like. `pids`: the children that are looked at.
    fn interval(&mut self, pids: &[u32], told: &mut VecDeque<Input>) -> Interval;

    /// Hits by thread.
    fn thread_hits(&mut self, wanted: WantedThreads) -> ThreadHits;

    /// Something came that the slow looks wait for.
    fn is_look_due(&mut self) -> bool;

    /// Threads and switches, once a second; with it whatever the machine looks at by itself.
    fn slow_look(&mut self, suspension: Suspension, told: &mut VecDeque<Input>) -> SlowLook;

    /// What of a survey is attached.
    fn survey_links(&self) -> Links;

    /// What the comparison asked for; `None`: the target is ending.
    fn read_progress(&mut self, wanted: Wanted) -> Option<Reading>;

    /// What counting the metric needs. `classes`: those whose quotas' hits are asked for.
    fn count(&mut self, wanted: CountWanted, classes: &[ClassId]) -> Counted;

    /// Goes on with work that takes more than a turn. What came of it goes to `told`.
    fn work(&mut self, view: &View, told: &mut VecDeque<Input>);
}

/// A run, and what it sees.
#[derive(Debug)]
pub struct Driver {
    /// The run.
    pub run: Run,
    view: View,
    last_slow_ns: u64,
}

impl Driver {
    /// A run that begins at `now_ns`.
    #[must_use]
    pub fn new(run: Run, now_ns: u64) -> Self {
        Self { run, view: View::default(), last_slow_ns: now_ns }
    }

    /// What the run saw last.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Tells the run something, and executes what it says to that.
    pub fn tell<M: Machine>(&mut self, machine: &mut M, input: Input) {
        let mut told = VecDeque::from([input]);
        self.tell_all(machine, &mut told);
    }

    fn tell_all<M: Machine>(&mut self, machine: &mut M, told: &mut VecDeque<Input>) {
        while let Some(input) = told.pop_front() {
            let sees = self.run.sees(&input, machine.now_ns());
            machine.fill(sees, &mut self.view);
            self.tell_seen(machine, input, told);
        }
    }

    /// The same where the view is filled already.
    fn tell_filled<M: Machine>(&mut self, machine: &mut M, input: Input) {
        let mut told = VecDeque::new();
        self.tell_seen(machine, input, &mut told);
        self.tell_all(machine, &mut told);
    }

    fn tell_seen<M: Machine>(&mut self, machine: &mut M, input: Input, told: &mut VecDeque<Input>) {
        let look = self.run.operations_look(&input);
        if let Some(client) = self.run.operations().filter(|_| look != OperationsLook::Nothing) {
            machine.see_operations(look, client, &mut self.view);
        }
        let commands = self.run.step(input, &mut self.view);
        if !commands.is_empty() {
            machine.execute(commands, &self.view, told);
        }
    }

    /// Heeds what became of links, and has the next ones made.
    ///
    /// # Errors
    /// Nobody makes links any more.
    pub fn attach<M: Machine>(&mut self, machine: &mut M) -> Result<(), M::Error> {
        loop {
            self.heed_outcomes(machine)?;
            if !self.run.suspension().may_attach() {
                return Ok(());
            }
            let run = &self.run;
            if !machine.attach_next(&|class, quota, purpose| run.still_wants(class, quota, purpose)) {
                return self.heed_outcomes(machine);
            }
        }
    }

    fn heed_outcomes<M: Machine>(&mut self, machine: &mut M) -> Result<(), M::Error> {
        let outcomes = machine.take_outcomes()?;
        if !outcomes.is_empty() {
            self.tell(machine, Input::Outcomes(outcomes));
        }
        Ok(())
    }

    /// Takes what has ended out of the machine.
    pub fn collect<M: Machine>(&mut self, machine: &mut M) {
        let events = machine.drain();
        if !events.is_empty() {
            let linked = machine.look_at(&[]).linked;
            self.tell(machine, Input::Told { events, linked });
        }
        let ended = machine.collect(&self.view);
        if !ended.is_empty() {
            self.tell(machine, Input::Ended(ended));
        }
    }

    /// One turn. False: the run is over.
    ///
    /// # Errors
    /// Nobody makes links any more.
    pub fn turn<M: Machine>(&mut self, machine: &mut M) -> Result<bool, M::Error> {
        let now = machine.now_ns();
        self.attach(machine)?;
        self.tell(machine, Input::Clocks);
        self.collect(machine);
        let look = machine.look_at(&self.carrying());
        self.tell(machine, Input::Children(look));
        if self.run.waits_for_all() && machine.is_settled() {
            self.tell(machine, Input::Begins);
        }
        let begins = self.run.is_interval_due(now) && !self.run.has_closed_interval();
        if self.run.is_interval_due(now) {
            if begins {
                // How samples are taken depends on threads and switches. The next look comes a second after the beginning all the same, but not
                // in this turn: switches of a moment say nothing.
                if now.saturating_sub(self.last_slow_ns) >= SLOW_NS {
                    self.last_slow_ns = now;
                }
                self.look_slowly(machine);
            }
            self.close_interval(machine);
        }
        self.judge_threads(machine);
        if !begins && (machine.is_look_due() || now.saturating_sub(self.last_slow_ns) >= SLOW_NS) {
            self.last_slow_ns = now;
            self.look_slowly(machine);
        }
        let mut told = VecDeque::new();
        machine.work(&self.view, &mut told);
        self.tell_all(machine, &mut told);
        let idle = Links { waits: false, any: false };
        let links = if self.run.phase() == Phase::Survey { machine.survey_links() } else { idle };
        self.tell(machine, Input::Phases(links));
        self.compare(machine);
        self.follow_operations(machine);
        Ok(self.run.goes_on(machine.now_ns()))
    }

    fn follow_operations<M: Machine>(&mut self, machine: &mut M) {
        if self.run.operations().is_none() {
            return;
        }
        self.tell(machine, Input::Operations);
        let now = machine.now_ns();
        if self.run.operations().is_some_and(|operations| operations.is_revision_due(now)) {
            self.tell(machine, Input::Revision);
            // Quotas come from hits that are read after the policy was asked.
            self.tell(machine, Input::Operations);
        }
    }

    fn carrying(&self) -> Vec<u32> {
        self.run.children().carrying().collect()
    }

    /// Closes an interval of the ledger: when it is due, and at the end of the run.
    pub fn close_interval<M: Machine>(&mut self, machine: &mut M) {
        let mut told = VecDeque::new();
        let seen = machine.interval(&self.carrying(), &mut told);
        self.tell_all(machine, &mut told);
        self.tell(machine, Input::Interval(Box::new(seen)));
    }

    fn judge_threads<M: Machine>(&mut self, machine: &mut M) {
        if !self.run.begin_threads(machine.now_ns()) {
            return;
        }
        machine.fill(Sees::Classes, &mut self.view);
        if let Some(wanted) = self.run.wants_threads(&self.view) {
            let hits = machine.thread_hits(wanted);
            self.tell_filled(machine, Input::Threads(hits));
        }
    }

    fn look_slowly<M: Machine>(&mut self, machine: &mut M) {
        let mut told = VecDeque::new();
        let look = machine.slow_look(self.run.suspension(), &mut told);
        // Links that are unsafe come first.
        self.tell_all(machine, &mut told);
        self.tell(machine, Input::Slow(look));
    }

    fn compare<M: Machine>(&mut self, machine: &mut M) {
        let wanted = self.run.wants_reading(machine.now_ns());
        if wanted != Wanted::Nothing {
            let reading = machine.read_progress(wanted);
            self.tell(machine, Input::Compare(reading));
        }
        let Some(wanted) = self.run.wants_count() else { return };
        let sees = self.run.sees(&Input::Count(Counted::default()), machine.now_ns());
        machine.fill(sees, &mut self.view);
        let classes = if wanted.classes { self.run.counted_classes(&self.view) } else { Vec::new() };
        let counted = machine.count(wanted, &classes);
        self.tell_filled(machine, Input::Count(counted));
    }
}
