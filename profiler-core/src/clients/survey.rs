//! The survey: short windows that only count, to learn rates before a plan is made with them.
//!
//! What it decides: which windows are asked for and how, when each ends, when the survey is over, and which classes nobody can see begin.
//! What it does not do: estimate rates ([`crate::survey`] does) or make plans (the planner is an argument).

use crate::class::ClassId;
use crate::cost::Price;
use crate::recording::{ChangeKind, WindowRow};
use crate::run::clocks::Clocks;
use crate::run::order::{Ending, Order, Purpose};
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::view::View;
use crate::survey::{
    BurstOutcome, BurstRequest, Link, RateEstimate, Step, StoppedBy, Survey, SurveyClass, SurveyConfig,
    SurveyFunds,
};
use std::collections::BTreeSet;

/// A class without calls is dormant only if it was watched for so long, s.
const LEAST_WATCHED_S: f64 = 0.04;
/// Samples in a class without calls that make it dormant; fewer may be the tail of one long call.
const DORMANT_SAMPLES: u64 = 10;
/// A hot class is waited for no longer than this, ns.
const ALONE_NS: u64 = 30_000_000;
/// Some that share a link, of which nobody knows yet how hot they are, no longer than this, ns.
const TOGETHER_NS: u64 = 3_000_000;

/// What does not change during a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Longest survey, ns.
    pub longest_ns: u64,
    /// The first plan is made no later than this after the start, ns.
    pub first_plan_ns: u64,
    /// What attaching, or detaching, one link costs the target, CPU s.
    pub attach_s: f64,
    /// For so long the breakpoints of a link outlive it, s.
    pub detach_delay_s: f64,
    /// Classes that get a link of their own when many are attached at once.
    pub own_links: usize,
}

/// What a survey may spend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grant {
    /// As long as others spend what they spend now.
    pub funds: SurveyFunds,
    /// At once, CPU s.
    pub now_s: f64,
}

/// What of a survey is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Links {
    /// Windows wait to be opened, or are being opened.
    pub waits: bool,
    /// The same, or they are open or being closed.
    pub any: bool,
}

/// The client.
#[derive(Debug)]
pub struct SurveyClient {
    settings: Settings,
    running: Option<Running>,
    /// When the open windows are to end.
    windows: Clocks,
}

/// A survey that runs.
#[derive(Debug)]
struct Running {
    survey: Survey,
    /// Latest end, ktime ns.
    until_ns: u64,
}

impl SurveyClient {
    /// Without a survey.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, running: None, windows: Clocks::default() }
    }

    /// What does not change during a run.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A survey begins of these classes, each with the price of a hit that is only counted. `first`: no plan was made yet, and one is
    /// made in time after `start_ns`, when the run began.
    pub fn begin(
        &mut self,
        classes: &[(ClassId, Price)],
        first: Option<u64>,
        funds: SurveyFunds,
        view: &View,
    ) {
        let Settings { longest_ns, first_plan_ns, .. } = self.settings;
        let now_ns = view.now_ns;
        let until_ns = match first {
            Some(start_ns) => (start_ns + first_plan_ns).max(now_ns + longest_ns / 4),
            None => now_ns + longest_ns,
        };
        let config = SurveyConfig {
            time_limit_ns: until_ns - now_ns,
            // Both are stalls of the target.
            attach_cost_s: 2.0 * self.settings.attach_s,
            detach_delay_s: self.settings.detach_delay_s,
            batch: self.settings.own_links,
            own_links: self.settings.own_links,
            funds,
            parallel: view.target.working_threads,
            ..SurveyConfig::default()
        };
        let list: Vec<SurveyClass> = classes.iter().map(|(id, tau)| surveyed(*id, *tau, view)).collect();
        let survey = Survey::new(config, view.target.own_cpu, &list);
        self.running = Some(Running { survey, until_ns });
    }

    /// What its windows may still take, ns.
    #[must_use]
    pub fn reserved_ns(&self) -> f64 {
        self.running.as_ref().map_or(0.0, |running| running.survey.reserved_s() * 1e9)
    }

    /// Its time is up.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.running.as_ref().is_none_or(|running| now_ns >= running.until_ns)
    }

    /// Closes the windows whose time is over. When the time of the survey is up, all of them, and what waits is given up.
    pub fn end_windows(&mut self, now_ns: u64, is_open: impl Fn(ClassId) -> bool, orders: &mut Vec<Order>) {
        let over = self.is_over(now_ns);
        let due = self.windows.take_due(if over { u64::MAX } else { now_ns });
        orders.extend(due.into_iter().filter(|id| is_open(*id)).map(|id| Order::Close(id, Ending::Soon)));
        if over {
            orders.push(Order::GiveUpSurvey);
        }
    }

    /// What comes next can be asked: more windows may be opened beside those that are open, when what was asked for is there. When
    /// the time is up, what is open is waited for.
    #[must_use]
    pub fn may_step(&self, now_ns: u64, links: Links) -> bool {
        if self.is_over(now_ns) { !links.any } else { !links.waits }
    }

    /// What comes next. `decide`: what the planner would decide at these rates, class by class. Some: the survey is over, and these are
    /// the rates.
    pub fn step(
        &mut self,
        grant: &Grant,
        view: &View,
        decide: impl FnMut(&[RateEstimate]) -> Vec<&'static str>,
        orders: &mut Vec<Order>,
    ) -> Option<Vec<RateEstimate>> {
        let Running { survey, until_ns } = self.running.as_mut()?;
        let (now_ns, until_ns) = (view.now_ns, *until_ns);
        survey.set_cpu_per_s(view.target.own_cpu);
        survey.set_funds(grant.funds);
        let step = survey.next_step(now_ns, grant.now_s, decide);
        let why = match step {
            Step::Run(requests) if now_ns < until_ns => {
                ask(&requests, until_ns, orders);
                return None;
            }
            Step::Wait { .. } | Step::Pause { .. } if now_ns < until_ns => return None,
            Step::Done(why) => why.in_words(),
            Step::Run(_) | Step::Wait { .. } | Step::Pause { .. } => "time is up",
        };
        // Where time is up the survey itself has not ended.
        survey.learn_drift();
        let rates = survey.rates();
        orders.push(Order::Detail(format!(
            "survey over ({why}): {} functions in {} rounds, {:.1} ms of CPU time, {:.1} s before its limit",
            rates.len(),
            survey.round(),
            survey.spent_s() * 1e3,
            until_ns.saturating_sub(now_ns) as f64 * 1e-9
        )));
        orders.extend(dormant(&rates, view).map(Order::Dormant));
        self.running = None;
        Some(rates)
    }

    /// What became of a class that it had asked for; outcomes for others are not its own.
    pub fn heed(&mut self, outcome: &Outcome) {
        let Outcome { class, purpose: Purpose::Survey(window_ns), opened, .. } = *outcome else { return };
        match opened {
            Ok(start_ns) => self.windows.start(class, start_ns.saturating_add(window_ns)),
            // It ends as any other window.
            Err(NotOpened::Tripped) => {}
            Err(_) => self.abort(class),
        }
    }

    /// A class could not be attached: it is not asked for again.
    fn abort(&mut self, class: ClassId) {
        let Some(running) = &mut self.running else { return };
        running.survey.record(BurstOutcome {
            class,
            start_ns: 0,
            elapsed_ns: 0,
            hits: 0,
            extra_hits: 0,
            off_ns: 0,
            target_cpu_ns: 0,
            threads: 1,
            other_cost_ns: 0,
            stopped_by: StoppedBy::Aborted,
        });
    }

    /// A window is complete. `tripped_itself`: this class's own quota ended it; `closed_ns`: when the last of its links was gone, ktime ns;
    /// `threads`: work at once.
    pub fn window_ended(
        &mut self,
        row: &WindowRow,
        (tripped_itself, closed_ns): (bool, u64),
        threads: u32,
        orders: &mut Vec<Order>,
    ) {
        let class = ClassId(row.class_id);
        // Its clock is over, too: the class may be opened again, for as long as it then needs.
        self.windows.stop(class);
        if row.end_ns == row.start_ns && tripped_itself {
            let text = "called so often while it was being attached that the breaker took it off before its survey began";
            orders.push(Order::Change(ChangeKind::Trial, Some(class), text.to_owned()));
        }
        let Some(running) = &mut self.running else { return };
        running.survey.record(BurstOutcome {
            class,
            start_ns: row.start_ns,
            elapsed_ns: row.end_ns.saturating_sub(row.start_ns),
            hits: row.kept,
            extra_hits: row.gated,
            off_ns: closed_ns.saturating_sub(row.end_ns),
            // A quota ends a window at a hit, and CPU time is read tens of milliseconds later.
            target_cpu_ns: if row.tripped { 0 } else { row.target_cpu_ns },
            threads,
            other_cost_ns: 0,
            stopped_by: if tripped_itself { StoppedBy::Quota } else { StoppedBy::Window },
        });
    }
}

/// A class as the survey sees it.
fn surveyed(id: ClassId, tau: Price, view: &View) -> SurveyClass {
    let class = view.class(id);
    let share = class.sampled_ns as f64 / view.samples.cpu_ns.max(1) as f64;
    SurveyClass { class: id, tau, rho: share * view.target.own_cpu, weight: class.traits.weight }
}

/// Asks for windows, those of one link together.
fn ask(requests: &[BurstRequest], until_ns: u64, orders: &mut Vec<Order>) {
    let shared = |r: &BurstRequest| matches!(r.link, Link::Shared(_));
    for on_link in requests.chunk_by(|a, b| shared(a) && a.link == b.link) {
        let together = shared(&on_link[0]);
        // A hot one is over within milliseconds: no other is to be attached or hit meanwhile. Attaching the next link would hold up the
        // target for most of so short a window.
        let alone_ns = match on_link {
            [BurstRequest { link: Link::Alone, .. }] => Some(ALONE_NS),
            _ => together.then_some(TOGETHER_NS),
        };
        let windows = on_link.iter().map(|r| (r.class, r.quota_hits, r.window_ns)).collect();
        orders.push(Order::OpenSurvey { windows, together, alone_ns, until_ns });
    }
}

/// Classes that samples show and of which no call began: entered before we came. They are not planned with, unless
/// the user named them.
fn dormant<'a>(rates: &[RateEstimate], view: &'a View) -> impl Iterator<Item = ClassId> + use<'a> {
    let unseen = |r: &&RateEstimate| !r.seen && r.watched_s >= LEAST_WATCHED_S;
    let unseen: BTreeSet<ClassId> = rates.iter().filter(unseen).map(|r| r.class).collect();
    let all = view.classes.iter();
    all.filter(move |c| !c.traits.named && unseen.contains(&c.id) && c.samples >= DORMANT_SAMPLES)
        .map(|c| c.id)
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
