//! The whole run, without a kernel: [`Run`] is told what happened, sees a [`View`], and gives [`Command`]s.
//!
//! ```text
//! agent, or a simulated target          engine                              clients
//!   Machine ── Input, View ──► Run::step ── Input, Grant, View ──► children, survey, trace, operations, overhead, metric
//!      ▲                         │  ▲                                         │
//!      └────────── Command ──────┘  └──────────────── Order ──────────────────┘
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `accounts` | charges what hits, samples, switches and links cost |
//! | `interval` | ten times a second: closes an interval of the ledger and asks the controller |
//! | `phases` | warm-up, survey, plan |
//! | `follow` | turns orders into commands; lets in who asks for links, or tells why not |
//! | `measuring` | the comparison of the overhead and its metric |
//! | `threads` | what single threads lose |
//! | `activities` | further clients, which the run knows by their number |
//! | [`driver`] | the turn of the loop: in which order the run is told what |
//!
//! [`Run`] decides, and reads nothing: time, counters and clocks come with the view and the input. The agent and the simulation drive it
//! by the same [`driver`], so that what is simulated is what runs.

mod accounts;
mod activities;
pub mod command;
pub mod driver;
mod follow;
pub mod input;
mod interval;
mod measuring;
mod phases;
mod references;
mod threads;

pub use accounts::Accounts;
pub use command::Command;
pub use driver::{Driver, Machine};
pub use input::{Doubt, Input, OperationsLook, Sees};
pub use measuring::{CountWanted, Measuring};
pub use phases::Phase;
pub use threads::WantedThreads;

use crate::class::ClassId;
use crate::clients::Client;
use crate::clients::children::{self, Children};
use crate::clients::operations::{self, Operations};
use crate::clients::survey::{Settings as SurveySettings, SurveyClient};
use crate::clients::trace::client::Trace;
use crate::clients::trace::problem::Settings as TraceSettings;
use crate::cost::{CostModel, Price};
use crate::ledger::Ledger;
use crate::plan::{PlanError, Problem};
use crate::recording::{Charge, WindowKind};
use crate::run::agent_limit::AgentLimit;
use crate::run::arbiter::{Arbiter, Claims, bystanders};
use crate::run::suspension::{Reason, Suspension};
use crate::run::threads as limits;
use crate::run::view::{TargetView, View};
use crate::units::OverheadBudget;
use accounts::Payer;
use activities::Activities;
use input::Ended;
use phases::Finding;
use threads::{OtherPrices, Threads};

/// What does not change during a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The budget.
    pub budget: OverheadBudget,
    /// CPUs of the machine.
    pub cpus: u32,
    /// What a thread may lose of its own CPU time, where the user named it.
    pub thread_share: Option<f64>,
    /// What the agent itself may use, CPU s/s.
    pub agent_cpu: f64,
    /// Price of one sample.
    pub sample: Price,
    /// `tithe plan`: the run ends when there is a problem to plan, and nothing is attached for it.
    pub plan_only: bool,
    /// What plans are made with.
    pub trace: TraceSettings,
    /// What surveys are made with.
    pub survey: SurveySettings,
    /// Of the random times of bursts.
    pub seed: u64,
}

/// Times of a run, ktime ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// When it began.
    pub start_ns: u64,
    /// When it ends by itself.
    pub end_ns: Option<u64>,
    /// Until when it only samples: what was named is looked at then.
    pub warmup_until_ns: u64,
    /// From when on samples are asked for functions that nobody named.
    pub discover_ns: u64,
}

impl Times {
    /// When samples are asked again: when there are four times as many. None in a run that is then half over.
    fn again_ns(&self) -> Option<u64> {
        let sampled_ns = self.discover_ns.saturating_sub(self.start_ns);
        let again_ns = self.start_ns + 4 * sampled_ns;
        let is_early = |end_ns: u64| 2 * (again_ns - self.start_ns) <= end_ns.saturating_sub(self.start_ns);
        self.end_ns.is_none_or(is_early).then_some(again_ns)
    }
}

/// What planning has to say to whoever runs this.
#[derive(Debug, Default)]
struct PlanAnswer {
    /// The problem that `tithe plan` asked for.
    problem: Option<Problem>,
    /// The budget does not allow what must be traced.
    failure: Option<PlanError>,
    /// It was said that samples come at another rate than was asked for.
    is_slower_told: bool,
}

/// A run.
#[derive(Debug)]
pub struct Run {
    settings: Settings,
    times: Times,
    phase: Phase,
    accounts: Accounts,
    threads: Threads,
    children: Children,
    survey: SurveyClient,
    trace: Trace,
    operations: Option<Box<Operations>>,
    measuring: Option<Measuring>,
    activities: Activities,
    finding: Finding,
    answer: PlanAnswer,
    commands: Vec<Command>,
    askings: u64,
}

impl Run {
    /// A run that begins. `cpu_ns`: CPU time that the target has used so far.
    #[must_use]
    pub fn new(settings: Settings, times: Times, prices: CostModel, cpu_ns: u64) -> Self {
        let ledger = Ledger::new(settings.budget, times.start_ns);
        Self {
            accounts: Accounts::new(
                ledger,
                prices,
                times.start_ns,
                cpu_ns,
                AgentLimit::new(settings.agent_cpu),
            ),
            threads: Threads::default(),
            children: Children::default(),
            survey: SurveyClient::new(settings.survey),
            trace: Trace::new(settings.trace, settings.seed),
            operations: None,
            measuring: None,
            activities: Activities::default(),
            finding: Finding::new(),
            answer: PlanAnswer::default(),
            commands: Vec::new(),
            askings: 0,
            phase: Phase::Warmup,
            settings,
            times,
        }
    }

    /// Follows these operations.
    pub fn follow_operations(&mut self, operations: Operations) {
        self.operations = Some(Box::new(operations));
    }

    /// Measures the overhead.
    pub fn measure(&mut self, measuring: Measuring) {
        self.measuring = Some(measuring);
    }

    /// What does not change.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its times.
    #[must_use]
    pub fn times(&self) -> Times {
        self.times
    }

    /// Where it stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The account.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.accounts.ledger
    }

    /// The problem that `tithe plan` asked for, once there is one.
    pub fn take_problem(&mut self) -> Option<Problem> {
        self.answer.problem.take()
    }

    /// Why it cannot go on, if it cannot.
    pub fn take_failure(&mut self) -> Option<PlanError> {
        self.answer.failure.take()
    }

    /// A step with this needs so much of the view.
    #[must_use]
    pub fn sees(&self, input: &Input, now_ns: u64) -> Sees {
        let when = |needed: bool| if needed { Sees::Classes } else { Sees::Nothing };
        match input {
            Input::Outcomes(_) | Input::Ended(_) => Sees::Nothing,
            Input::Clocks | Input::Told { .. } | Input::Lost(_) | Input::UnsafeLinks { .. } => Sees::Nothing,
            Input::Ends | Input::Over { .. } => Sees::Nothing,
            Input::Children(look) => when(self.children.is_rearming() || self.children_see(look)),
            Input::Interval(_) | Input::Found(_) | Input::BeforeStart => Sees::Counters,
            Input::Phases(links) => when(self.phase_sees(*links, now_ns)),
            Input::Compare(_) | Input::Modules | Input::Begins => Sees::Classes,
            Input::Slow(_) | Input::Threads(_) => Sees::Classes,
            // What was detached comes back where the metric is given up.
            Input::Count(_) => {
                let classes = self.wants_count().is_some_and(|wanted| wanted.classes);
                when(classes || self.suspension().is(Reason::Comparison))
            }
            Input::Operations | Input::Revision => when(self.settings.trace.slow_links),
        }
    }

    /// One step: what it is told, at the time and with what `view` shows. What the run knows itself it adds to the view.
    pub fn step(&mut self, input: Input, view: &mut View) -> Vec<Command> {
        self.complete(view);
        if self.sees(&input, view.now_ns) > Sees::Nothing {
            self.complete_classes(view);
        }
        match input {
            Input::Outcomes(outcomes) => outcomes.iter().for_each(|outcome| self.heed(outcome, view)),
            Input::Ended(ended) => ended.iter().for_each(|ended| self.window_ended(ended, view)),
            Input::Clocks => self.close_due(view),
            Input::Told { events, linked } => {
                self.tell_children(children::Input::Told { events, linked }, view);
            }
            Input::Lost(look) => self.tell_children(children::Input::Lost(look), view),
            Input::Children(look) => {
                let (plan_runs, suspension) = (self.is_running(), self.suspension());
                self.tell_children(children::Input::Turn { look, plan_runs, suspension }, view);
            }
            Input::Interval(seen) => self.close_interval(&seen, view),
            Input::Threads(hits) => self.judge_threads(&hits, view),
            Input::Slow(look) => self.look(&look, view),
            Input::Found(classes) => self.found(&classes, view),
            Input::Modules => self.modules_came(view),
            Input::UnsafeLinks { classes, doubt } => self.drop_links(&classes, doubt, view),
            Input::Phases(links) => self.advance(links, view),
            Input::Compare(reading) => self.compare(reading, view),
            Input::Count(counted) => self.count(counted, view),
            Input::Operations => self.tell_operations(operations::Input::Turn, view),
            Input::Revision => self.tell_operations(operations::Input::Revise, view),
            Input::BeforeStart => self.before_start(),
            Input::Begins => self.begins(view),
            Input::Ends => self.ends(view),
            Input::Over { end_ns } => {
                self.tell_operations(operations::Input::End { end_ns }, view);
                self.operations = None;
                self.commands.extend(self.children.warning().map(Command::Warn));
            }
        }
        std::mem::take(&mut self.commands)
    }

    /// The plan runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Run)
    }

    /// Why nothing may be attached now.
    #[must_use]
    pub fn suspension(&self) -> Suspension {
        Suspension::NONE
            .with(Reason::Comparison, self.measuring.as_ref().is_some_and(|m| m.overhead.is_off()))
            .with(Reason::ForkStorm, self.children.is_storm())
            .with(Reason::Rearm, self.children.is_rearming())
    }

    /// What each activity may spend.
    #[must_use]
    pub fn arbiter(&self) -> Arbiter<'_> {
        Arbiter::new(&self.accounts.ledger, self.accounts.own_cpu)
    }

    /// The children that are to be looked at.
    #[must_use]
    pub fn children(&self) -> &Children {
        &self.children
    }

    /// What a class waits to be attached for is still wanted.
    #[must_use]
    pub fn still_wants(&self, class: ClassId, quota: u64, purpose: crate::run::order::Purpose) -> bool {
        self.trace.still_wants(class, quota, purpose)
    }

    /// Operations are followed.
    #[must_use]
    pub fn operations(&self) -> Option<&Operations> {
        self.operations.as_deref()
    }

    /// What others than surveys spend.
    fn claims(&self, view: &View) -> Claims {
        let factor = self.accounts.ledger.factor();
        let switching = !view.samples.per_cpu && view.samples.threads > 0;
        let switch_s = if switching { self.accounts.prices.switch.seconds() } else { 0.0 };
        let sample_s = self.settings.sample.seconds() * factor;
        Claims {
            samples: view.samples.rate_hz * sample_s * self.accounts.own_cpu,
            plan: self.trace.claim(),
            switches: self.accounts.switches.per_s * switch_s * factor,
            metric: self.measuring.as_ref().map_or(0.0, |m| m.counting.claim()),
            misc: self.accounts.misc_cost() + self.children.claim(),
            operations: self.operations.as_ref().map_or(0.0, |o| o.claim()),
            activities: self.activities_claim(),
        }
    }

    /// What operations may spend. What screens took is added up for steps that give quotas: `view` says which.
    fn operations_grant(&self, view: &View) -> operations::Grant {
        let arbiter = self.arbiter();
        let screened = view.operations.has_hits.then(|| self.accounts.ledger.account(Charge::Screening));
        operations::Grant {
            factor: self.accounts.ledger.hit_factor(),
            allowed: arbiter.operations(),
            allowed_in_second: arbiter.operations_in_second(),
            left_of_second_ns: arbiter.left_of_second_ns(),
            screened_ns: screened.map_or(0.0, |account| account.cost_ns),
            bystanders: bystanders(self.settings.cpus),
            suspension: self.suspension(),
            may_begin: self.finding.may_follow(),
            agent: (self.accounts.agent.slowdown(), self.accounts.agent.would_do()),
        }
    }

    /// Adds to the view what the run knows itself.
    fn complete(&self, view: &mut View) {
        view.target = TargetView {
            cpu_ns: self.accounts.last_cpu_ns,
            own_cpu: self.accounts.own_cpu,
            cpus: self.settings.cpus,
            working_threads: limits::working(self.accounts.own_cpu, self.threads.count(), self.settings.cpus),
            is_held: self.finding.is_held,
        };
        view.samples.price_s = self.settings.sample.seconds();
    }

    /// The same of the classes, where they were filled.
    fn complete_classes(&self, view: &mut View) {
        for class in &mut view.classes {
            class.traits.held_by_plan = self.trace.is_attached(class.id);
            class.traits.apart |= self.owner(class.id).is_some();
        }
    }

    /// CPU s/s that the target uses if all of its threads work, as far as there are CPUs for them.
    fn most_cpu(&self) -> f64 {
        f64::from(limits::at_once(self.threads.count(), self.settings.cpus))
    }

    fn is_metric(&self, class: ClassId) -> bool {
        self.measuring.as_ref().is_some_and(|m| m.counting.classes().contains(&class))
    }

    fn payer(&self, class: ClassId) -> Payer {
        if self.is_metric(class) {
            Payer::Metric
        } else if self.measuring.as_ref().is_some_and(|m| m.overhead.leaves(class)) {
            Payer::Staying
        } else {
            Payer::Other
        }
    }

    /// A window is complete: charge it, tell who opened it.
    fn window_ended(&mut self, ended: &Ended, view: &View) {
        let surveying = self.phase == Phase::Survey;
        let window = Some((ended.row.kind, ended.row.start_ns));
        self.charge_class(&ended.class, view.now_ns, window);
        self.accounts.charge_tail(ended, self.settings.cpus, surveying);
        let class = ended.class.id;
        if self.tell_owner(ended) || self.end_reference(ended) {
            return;
        }
        if matches!(ended.row.kind, WindowKind::Survey | WindowKind::Burst) {
            self.trace.note_window(&ended.row, &ended.class, view.target.own_cpu);
        }
        match ended.row.kind {
            WindowKind::Survey => {
                let threads = view.target.working_threads;
                let mut orders = Vec::new();
                let how = (ended.tripped_itself, ended.closed_ns);
                self.survey.window_ended(&ended.row, how, threads, &mut orders);
                self.follow(orders, view);
            }
            WindowKind::Trace | WindowKind::Burst => {
                if self.trace.window_ended(&ended.of_trace(), view.now_ns) {
                    if let Some(measuring) = &mut self.measuring {
                        measuring.counting.note_trip(class);
                    }
                    self.tell_operations(operations::Input::Tripped(class), view);
                    self.note_trip(ended);
                }
            }
        }
    }

    /// Charges what a class has been hit since the last time. Returns the hits.
    fn charge_class(
        &mut self,
        class: &crate::run::view::ClassView,
        now_ns: u64,
        ended: Option<(WindowKind, u64)>,
    ) -> u64 {
        let payer = self.payer(class.id);
        let surveying = self.phase == Phase::Survey;
        let (cost_ns, hits) = self.accounts.charge_hits(class, now_ns, ended, surveying, payer);
        if payer == Payer::Metric
            && let Some(measuring) = &mut self.measuring
        {
            measuring.counting.note_cost(cost_ns);
        }
        hits
    }

    fn children_see(&self, look: &children::Look) -> bool {
        let (plan_runs, suspension) = (self.is_running(), self.suspension());
        // Only the time of the look is asked for.
        let look = children::Look { at_ns: look.at_ns, ..children::Look::default() };
        self.children.sees_classes(&children::Input::Turn { look, plan_runs, suspension })
    }

    /// A step of the children's client.
    fn tell_children(&mut self, input: children::Input, view: &View) {
        let bounds = self.arbiter().storm();
        let mut orders = Vec::new();
        self.children.step(input, &bounds, view, &mut orders);
        self.follow(orders, view);
    }

    /// What runs beside hits takes of a thread.
    fn other_prices(&self, view: &View) -> OtherPrices {
        let factor = self.accounts.ledger.factor();
        let sample_s = view.samples.rate_hz * self.settings.sample.seconds() * factor;
        let switch_s =
            if view.samples.per_cpu { 0.0 } else { self.accounts.prices.switch.ns * factor * 1e-9 };
        OtherPrices { sample_s, switch_s }
    }

    /// Share of its own CPU time that a thread may lose. The limit that follows from the budget is cut as that is, one that is named holds.
    fn thread_limit(&self) -> Option<f64> {
        limits::limit(self.settings.thread_share, self.settings.budget, self.accounts.ledger.allowed(1.0))
    }

    /// What a step with this sees of the kernel for operations.
    #[must_use]
    pub fn operations_look(&self, input: &Input) -> OperationsLook {
        match input {
            _ if self.operations.is_none() => OperationsLook::Nothing,
            Input::Operations => OperationsLook::Turn,
            Input::Revision => OperationsLook::Revision,
            Input::Interval(_) => OperationsLook::Screens,
            Input::Over { .. } => OperationsLook::Counts,
            // Links are few: those that operations wait for are counted.
            _ if self.settings.trace.slow_links => OperationsLook::Classes,
            _ => OperationsLook::Nothing,
        }
    }

    /// The run ends: what was to be opened again stays closed, and nothing is compared any more.
    fn ends(&mut self, view: &View) {
        // Inner functions are closed at once, and bounds that are no functions go last.
        self.tell_operations(operations::Input::Hold, view);
        self.tell_children(children::Input::End, view);
        self.end_measuring();
        self.warn_of_prices();
        self.phase = Phase::Warmup;
    }
}
