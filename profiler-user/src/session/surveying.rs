//! The phases before the plan runs, and the slow looks: threads, modules, children.

use super::attach::{Ended, OWN_LINKS, now_ns};
use super::class::{Ending, Purpose};
use super::opening::Wanted;
use super::planning::Rate;
use super::{Phase, Session};
use crate::prober::KernelLog;
use profiler_core::class::{ClassId, RecordKind};
use profiler_core::plan::{self, Options, Strategy};
use profiler_core::recording::ChangeKind;
use profiler_core::run::arbiter::bystanders;
use profiler_core::survey::{
    BurstOutcome, BurstRequest, Link, RateEstimate, Step, StoppedBy, Survey, SurveyClass, SurveyConfig,
};
use std::collections::{BTreeSet, HashMap};

/// Above so many threads one event per thread is not had.
const MANY_THREADS: usize = 500;
/// A window that is open longer is written in pieces of about this length, ns: a killed agent loses no more, and how much
/// the pieces differ says how sure a rate is.
const PIECE_NS: u64 = 900_000_000;
/// A class without calls is dormant only if it was watched for so long, s.
const LEAST_WATCHED_S: f64 = 0.04;
/// Samples in a class without calls that make it dormant; fewer may be the tail of one long call.
const DORMANT_SAMPLES: u64 = 10;
/// A hot class is waited for no longer than this, ns.
const ALONE_NS: u64 = 30_000_000;
/// Some that share a link, of which nobody knows yet how hot they are, no longer than this, ns.
const TOGETHER_NS: u64 = 3_000_000;
/// Sampling rate until there is a plan, Hz of target CPU time.
const FIRST_RATE_HZ: f64 = 99.0;

impl Session {
    /// Before the first turn: threads under observation, sampling on.
    pub(super) fn begin(&mut self) {
        self.attach.governor().pulse();
        self.progress.set("sampling: where does the time go?".to_owned());
    }

    /// Starts sampling, once the first interval has shown how often the target is switched.
    pub(super) fn start_sampling(&mut self) {
        let rate = self.fixed_rate_hz.unwrap_or(FIRST_RATE_HZ);
        if rate <= 0.0 || self.only_named {
            return;
        }
        self.count_switches();
        self.choose_events(rate);
        self.sampling.set_period((1e9 / rate) as u64);
        self.look_at_threads();
    }

    /// Context switches since the last look, also per second.
    fn count_switches(&mut self) {
        let now = now_ns();
        let elapsed = now.saturating_sub(self.last_switches_ns);
        if let Some(meter) = &mut self.switches
            && let Ok(n) = meter.advance(&self.target)
        {
            self.last_switches_ns = now;
            self.switches_per_s = n as f64 * 1e9 / elapsed.max(1) as f64;
            if self.sampling.threads() > 0 {
                self.new_switches += n;
            }
        }
    }

    /// One event per thread, or one per CPU where `switches/s x tau_switch` would take a quarter of the budget or there are
    /// too many threads. Per CPU the *others* pay `rate x foreign CPUs x tau_s`, which is bounded and shown.
    fn choose_events(&mut self, rate_hz: f64) {
        if self.sampling.is_per_cpu() {
            return;
        }
        let threads = self.thread_count();
        let switching = self.switches_per_s * self.cost.switch.seconds();
        let foreign = (f64::from(self.meta.cpus) - self.own_cpu).max(0.0);
        let others = rate_hz * foreign * self.sampling.price(&self.cost).seconds();
        let bearable = others <= bystanders(self.meta.cpus);
        if threads <= MANY_THREADS && (switching <= self.arbiter().switching() || !bearable) {
            return;
        }
        match self.sampling.use_cpus() {
            Ok(()) => {
                let text = format!(
                    "samples come from one event per CPU ({threads} threads, {:.0} switches/s): other processes pay up to \
                     {:.3} % of a CPU for them",
                    self.switches_per_s,
                    others * 100.0
                );
                self.note_change(ChangeKind::Sampling, None, text.clone());
                self.meta.warnings.push(text);
            }
            Err(why) => self.progress.note(&format!("cannot sample per CPU: {why}")),
        }
    }

    /// Moves on to the next phase when it is time.
    ///
    /// # Errors
    /// The budget does not allow what the user demanded.
    pub(super) fn advance(&mut self, now: u64) -> anyhow::Result<()> {
        let may_adapt = self.suspension().may_adapt();
        match &mut self.phase {
            Phase::Warmup { until_ns } if now >= *until_ns => {
                // What was named is looked at first; the samples may not yet show anything else.
                let discover = !self.only_named && now >= self.discover_ns;
                let new = self.find_classes(discover);
                self.discovered = discover;
                if self.only_named {
                    return self.trace_all(&new);
                }
                let until_ns = (self.meta.start_ns + self.first_plan_ns).max(now + self.survey_ns / 4);
                let survey = self.new_survey(&new, until_ns - now);
                self.phase = Phase::Survey { survey: Box::new(survey), until_ns };
                self.progress.set(format!("surveying {} functions", new.len()));
            }
            Phase::Survey { until_ns, .. } => {
                let over = now >= *until_ns;
                self.end_survey_windows(if over { u64::MAX } else { now });
                // When the time is up, what is open is waited for; else more may be opened beside it, when what was asked for is there.
                let waits = if over { self.attach.surveying() } else { self.attach.survey_waits() };
                if !waits {
                    return self.next_step(now);
                }
            }
            Phase::Run if !self.only_named && !self.discovered && now >= self.discover_ns && may_adapt => {
                self.discovered = true;
                self.look_for_more();
            }
            Phase::Run if self.replan_wanted && may_adapt => {
                self.replan_wanted = false;
                let why = self.take_why();
                let rates = self.present_rates();
                if let Err(error) = self.make_plan(&rates, why) {
                    self.warn_verbose(&format!("the plan stays as it is: {error}"));
                }
            }
            Phase::Warmup { .. } | Phase::Run => {}
        }
        Ok(())
    }

    fn new_survey(&self, classes: &[ClassId], time_ns: u64) -> Survey {
        let shares = self.sampling.shares();
        let list: Vec<SurveyClass> = classes
            .iter()
            .map(|id| {
                let class = self.attach.class(*id);
                let time = shares.of(class.candidate.key);
                let share = time.cpu_ns as f64 / shares.cpu_ns().max(1) as f64;
                let site = class.candidate.entry_class;
                let tau = self.cost.hit_price(site, RecordKind::Count);
                SurveyClass { class: *id, tau, rho: share * self.own_cpu, weight: class.wish.weight }
            })
            .collect();
        let config = SurveyConfig {
            time_limit_ns: time_ns,
            // Both are stalls of the target.
            attach_cost_s: 2.0 * self.cost.attach.seconds(),
            detach_delay_s: self.cost.detach_delay.seconds(),
            batch: OWN_LINKS,
            own_links: OWN_LINKS,
            means: self.survey_means(),
            parallel: self.working_threads(),
            ..SurveyConfig::default()
        };
        Survey::new(config, self.own_cpu, &list)
    }

    /// Asks the survey what to do.
    fn next_step(&mut self, now: u64) -> anyhow::Result<()> {
        let phase = std::mem::replace(&mut self.phase, Phase::Run);
        let Phase::Survey { mut survey, until_ns } = phase else { return Ok(()) };
        survey.set_cpu_per_s(self.own_cpu);
        survey.set_means(self.survey_means());
        let step = survey.next_step(now, self.survey_tokens_s(), |rates| self.decisions(rates));
        match step {
            Step::Run(requests) if now < until_ns => {
                // First the phase: a window may end while others are still being opened.
                self.phase = Phase::Survey { survey, until_ns };
                self.start_round(&requests);
            }
            Step::Wait { .. } | Step::Pause { .. } if now < until_ns => {
                self.phase = Phase::Survey { survey, until_ns };
            }
            Step::Run(_) | Step::Wait { .. } | Step::Pause { .. } | Step::Done(_) => {
                let estimates = survey.rates();
                self.warn_verbose(&format!(
                    "survey over ({}): {} functions in {} rounds, {:.1} ms of CPU time, {:.1} s before its limit",
                    if let Step::Done(why) = step { why.in_words() } else { "time is up" },
                    estimates.len(),
                    survey.round(),
                    survey.spent_s() * 1e3,
                    until_ns.saturating_sub(now) as f64 * 1e-9
                ));
                self.set_dormant(&estimates);
                let rates = estimates.iter().map(|r| (r.class, r.into())).collect();
                return self.start_plan(rates);
            }
        }
        Ok(())
    }

    /// Classes that samples show and of which no call began: entered before we came. They are not planned with, unless
    /// the user named them.
    fn set_dormant(&mut self, rates: &[RateEstimate]) {
        let unseen = |r: &&RateEstimate| !r.seen && r.watched_s >= LEAST_WATCHED_S;
        let unseen: BTreeSet<ClassId> = rates.iter().filter(unseen).map(|r| r.class).collect();
        let shares = self.sampling.shares();
        let dormant: Vec<ClassId> = self
            .attach
            .classes()
            .iter()
            .filter(|c| !c.wish.named && unseen.contains(&c.id))
            .filter(|c| shares.of(c.candidate.key).samples >= DORMANT_SAMPLES)
            .map(|c| c.id)
            .collect();
        for id in dormant {
            self.attach.class_mut(id).dormant = true;
        }
    }

    /// What the planner would decide at these rates, class by class.
    fn decisions(&self, rates: &[RateEstimate]) -> Vec<&'static str> {
        let map: HashMap<ClassId, Rate> = rates.iter().map(|r| (r.class, r.into())).collect();
        let (problem, ids) = self.problem_of(&map);
        // Asked twice per class and round: the paper's approximation, which takes microseconds.
        let Ok(plan) = plan::solve(&problem, Strategy::Approximation, &Options::default()) else {
            return vec!["sample"; rates.len()];
        };
        let by_id: HashMap<ClassId, &'static str> =
            ids.iter().zip(&plan.classes).map(|(id, c)| (*id, c.decision.name())).collect();
        rates.iter().map(|r| by_id.get(&r.class).copied().unwrap_or("sample")).collect()
    }

    /// A class of the survey could not be attached.
    pub(super) fn abort_survey_of(&mut self, class: ClassId) {
        let Phase::Survey { survey, .. } = &mut self.phase else { return };
        survey.record(BurstOutcome {
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

    /// The rates are there: a plan, together with what is known of classes that run already.
    fn start_plan(&mut self, new: HashMap<ClassId, Rate>) -> anyhow::Result<()> {
        self.phase = Phase::Run;
        let surveyed = new.len();
        let mut rates = self.present_rates();
        rates.extend(new);
        let why = format!("{surveyed} functions were surveyed");
        self.make_plan(&rates, why)?;
        Ok(())
    }

    fn start_round(&mut self, requests: &[BurstRequest]) {
        let shared = |r: &BurstRequest| matches!(r.link, Link::Shared(_));
        for on_link in requests.chunk_by(|a, b| shared(a) && a.link == b.link) {
            let together = shared(&on_link[0]);
            // The clock of a window runs from when it is open, not from when attaching began.
            let wanted: Vec<Wanted> =
                on_link.iter().map(|r| (r.class, r.quota_hits, Purpose::Survey(r.window_ns))).collect();
            // A hot one is over within milliseconds: no other is to be attached or hit meanwhile. Attaching the next link would hold up the
            // target for most of so short a window.
            let alone = match on_link {
                [BurstRequest { link: Link::Alone, .. }] => Some(ALONE_NS),
                _ => together.then_some(TOGETHER_NS),
            };
            self.open_survey(&wanted, together, alone);
        }
    }

    fn end_survey_windows(&mut self, now: u64) {
        let due: Vec<ClassId> =
            self.survey_windows.iter().filter(|(_, end)| now >= *end).map(|(id, _)| *id).collect();
        for id in due {
            if self.attach.class(id).is_open() {
                self.attach.close(&self.target, id, Ending::Soon);
            }
        }
        self.survey_windows.retain(|(_, end)| now < *end);
        if now == u64::MAX {
            self.attach.give_up_survey(&self.target);
        }
    }

    /// A survey window is complete.
    pub(super) fn survey_window(&mut self, ended: &Ended) {
        let row = &ended.row;
        // Its clock is over, too: the class may be opened again, for as long as it then needs.
        self.survey_windows.retain(|(id, _)| id.0 != row.class_id);
        let threads = self.working_threads();
        if row.end_ns == row.start_ns && ended.tripped_itself {
            let text = "called so often while it was being attached that the breaker took it off before its survey began";
            self.note_change(ChangeKind::Trial, Some(ClassId(row.class_id)), text.to_owned());
        }
        let Phase::Survey { survey, .. } = &mut self.phase else { return };
        survey.record(BurstOutcome {
            class: ClassId(row.class_id),
            start_ns: row.start_ns,
            elapsed_ns: row.end_ns.saturating_sub(row.start_ns),
            hits: row.kept,
            extra_hits: row.gated,
            off_ns: ended.closed_ns.saturating_sub(row.end_ns),
            // A quota ends a window at a hit, and CPU time is read tens of milliseconds later.
            target_cpu_ns: if row.tripped { 0 } else { row.target_cpu_ns },
            threads,
            other_cost_ns: 0,
            stopped_by: if ended.tripped_itself { StoppedBy::Quota } else { StoppedBy::Window },
        });
    }

    /// `--only-named`: no survey, no sampling; everything named is traced under its quota.
    fn trace_all(&mut self, classes: &[ClassId]) -> anyhow::Result<()> {
        self.phase = Phase::Run;
        self.make_plan(&HashMap::new(), "the functions were named".to_owned())?;
        self.tracing_all = Some(classes.len());
        Ok(())
    }

    /// What was named, so many functions, is attached: the run begins here. Counts from now to the end are those of the whole run.
    pub(super) fn begin_counting(&mut self, named: usize) {
        let (begun, now) = (self.meta.start_ns, now_ns());
        let later = now.saturating_sub(begun);
        self.meta.start_ns = now;
        self.meta.start_unix_ns += later;
        self.end_ns = self.end_ns.map(|end| end + later);
        let open = self.attach.classes().iter().filter(|c| c.is_open()).count();
        self.progress.note(&format!("tracing {open} of {named} functions"));
    }

    /// Once a second.
    pub(super) fn slow_tick(&mut self, now: u64) {
        self.look_at_threads();
        self.count_switches();
        self.choose_events(self.sampling.rate_hz());
        let execed = self.processes.take_target_execed();
        // The target may be gone: its end is seen elsewhere.
        let before = self.mapped_modules();
        if self.inspection.refresh().unwrap_or(false) || execed {
            self.modules_dirty = true;
            self.note_modules(&before, execed);
            // At once: such a link would end the target.
            self.drop_unsafe_return_links();
        } else if self.attach.holds_return_links() {
            self.drop_unsafe_return_links();
        }
        // Not while everything is off to be compared: a survey would attach.
        let may = self.suspension().may_adapt();
        let symbols = !self.selection.names_any() || self.may_wait() || self.all_symbols_read();
        let stacks = !self.modules_dirty || self.may_wait() || self.all_stacks_read();
        let wait = !symbols || !stacks;
        if self.modules_dirty && may && !wait {
            self.modules_dirty = false;
            self.look_at_modules();
        }
        for line in self.log.as_mut().map(KernelLog::take).unwrap_or_default() {
            self.progress.note(&format!("kernel side: {line}"));
        }
        let pieces = self.attach.cut(&self.target, PIECE_NS);
        if !pieces.is_empty() {
            self.writer.send(pieces);
        }
        for notice in self.writer.take_notices() {
            self.progress.note(&notice);
        }
        self.show_progress(now);
    }

    fn look_at_threads(&mut self) {
        if let Ok(tids) = self.target.threads() {
            self.sampling.keep_threads(&tids);
            self.threads.keep(&tids);
            self.count_by_thread();
        }
    }

    /// Modules came or went (dlopen, exec): watch what was named in the new ones.
    fn look_at_modules(&mut self) {
        self.sampling.modules_changed();
        self.try_left_out();
        self.look_for_more();
    }

    /// Functions that were named and appeared, or that the samples show by now: survey them, too.
    fn look_for_more(&mut self) {
        if !self.suspension().may_discover() {
            // What was taken off for the sake of children comes back first: no link may be open then.
            self.modules_dirty = true;
            return;
        }
        let discover = !self.only_named && now_ns() >= self.discover_ns;
        let new = self.find_classes(discover);
        if !new.is_empty() && matches!(self.phase, Phase::Run) {
            self.warn_verbose(&format!("{} more functions to look at", new.len()));
            let survey = self.new_survey(&new, self.survey_ns);
            self.phase = Phase::Survey { survey: Box::new(survey), until_ns: now_ns() + self.survey_ns };
        }
    }

    fn show_progress(&self, now: u64) {
        let elapsed = now.saturating_sub(self.meta.start_ns) / 1_000_000_000;
        let traced = self.attach.classes().iter().filter(|c| c.is_open()).count();
        self.progress.set(format!(
            "{elapsed} s: {traced} functions traced, {:.0} samples/s, cost {:.2} % of {} allowed{}",
            self.sampling.rate_hz(),
            self.ledger.predicted() * 100.0,
            self.budget,
            if self.trips > 0 { format!(", {} stopped", self.trips) } else { String::new() }
                + &self.operations_line()
        ));
    }
}
