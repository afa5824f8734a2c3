//! The phases before the plan runs, and the slow looks: threads, modules, children.

use super::attach::{Ended, OWN_LINKS, now_ns};
use super::{Phase, Session};
use crate::prober::KernelLog;
use profiler_core::class::{ClassId, RecordKind};
use profiler_core::clients::survey::{Links, Settings, SurveyClient};
use profiler_core::clients::trace::rate::Rates;
use profiler_core::cost::{CostModel, Price};
use profiler_core::recording::ChangeKind;
use profiler_core::run::arbiter::bystanders;
use profiler_core::run::view::View;
use profiler_core::survey::RateEstimate;

/// Above so many threads one event per thread is not had.
const MANY_THREADS: usize = 500;
/// A window that is open longer is written in pieces of about this length, ns: a killed agent loses no more, and how much
/// the pieces differ says how sure a rate is.
const PIECE_NS: u64 = 900_000_000;
/// Sampling rate until there is a plan, Hz of target CPU time.
const FIRST_RATE_HZ: f64 = 99.0;

/// What surveys of this run are made with: none takes longer than `longest_ns`, and the first plan comes `first_plan_ns` after the start.
pub(super) fn survey_settings(cost: &CostModel, longest_ns: u64, first_plan_ns: u64) -> Settings {
    Settings {
        longest_ns,
        first_plan_ns,
        attach_s: cost.attach.seconds(),
        detach_delay_s: cost.detach_delay.seconds(),
        own_links: OWN_LINKS,
    }
}

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
        match self.phase {
            Phase::Warmup { until_ns } if now >= until_ns => {
                // What was named is looked at first; the samples may not yet show anything else.
                let discover = !self.only_named && now >= self.discover_ns;
                let new = self.find_classes(discover);
                self.discovered = discover;
                if self.only_named {
                    return self.trace_all(&new);
                }
                self.begin_survey(&new, Some(self.meta.start_ns), now);
                self.progress.set(format!("surveying {} functions", new.len()));
            }
            Phase::Survey => {
                let Self { survey, attach, .. } = self;
                let mut orders = Vec::new();
                survey.end_windows(now, |id| attach.class(id).is_open(), &mut orders);
                self.execute(orders, false);
                let links = Links { waits: self.attach.survey_waits(), any: self.attach.surveying() };
                if self.survey.may_step(now, links) {
                    return self.next_step(now);
                }
            }
            Phase::Run if !self.only_named && !self.discovered && now >= self.discover_ns && may_adapt => {
                self.discovered = true;
                self.look_for_more();
            }
            Phase::Run if may_adapt => {
                if let Some(why) = self.trace.take_wanted(self.ledger.factor()) {
                    let rates = self.trace.present_rates(&self.view());
                    if let Err(error) = self.make_plan(&rates, why) {
                        self.warn_verbose(&format!("the plan stays as it is: {error}"));
                    }
                }
            }
            Phase::Warmup { .. } | Phase::Run => {}
        }
        Ok(())
    }

    /// A survey of these classes begins. `first`: when the run began, where no plan was made yet, ktime ns.
    fn begin_survey(&mut self, classes: &[ClassId], first: Option<u64>, now: u64) {
        let priced: Vec<(ClassId, Price)> = classes
            .iter()
            .map(|id| {
                let site = self.attach.class(*id).candidate.entry_class;
                (*id, self.cost.hit_price(site, RecordKind::Count))
            })
            .collect();
        let view = View { now_ns: now, ..self.view() };
        self.survey.begin(&priced, first, self.survey_means(), &view);
        self.phase = Phase::Survey;
    }

    /// Asks the survey what to do.
    fn next_step(&mut self, now: u64) -> anyhow::Result<()> {
        let view = View { now_ns: now, ..self.view() };
        let grant = self.survey_grant();
        let mut orders = Vec::new();
        // What it asks the planner is answered from the rest of the session.
        let idle = SurveyClient::new(*self.survey.settings());
        let mut survey = std::mem::replace(&mut self.survey, idle);
        let decide = |rates: &[RateEstimate]| self.with_known(&view, |known| known.decisions(rates));
        let rates = survey.step(&grant, &view, decide, &mut orders);
        self.survey = survey;
        self.execute(orders, false);
        match rates {
            Some(rates) => self.start_plan(rates.iter().map(|r| (r.class, r.into())).collect()),
            None => Ok(()),
        }
    }

    /// The rates are there: a plan, together with what is known of classes that run already.
    fn start_plan(&mut self, new: Rates) -> anyhow::Result<()> {
        self.phase = Phase::Run;
        let surveyed = new.len();
        let mut rates = self.trace.present_rates(&self.view());
        rates.extend(new);
        let why = format!("{surveyed} functions were surveyed");
        self.make_plan(&rates, why)?;
        Ok(())
    }

    /// A survey window is complete.
    pub(super) fn survey_window(&mut self, ended: &Ended) {
        let threads = self.working_threads();
        let mut orders = Vec::new();
        self.survey.window_ended(&ended.row, (ended.tripped_itself, ended.closed_ns), threads, &mut orders);
        self.execute(orders, false);
    }

    /// `--only-named`: no survey, no sampling; everything named is traced under its quota.
    fn trace_all(&mut self, classes: &[ClassId]) -> anyhow::Result<()> {
        self.phase = Phase::Run;
        self.make_plan(&Rates::new(), "the functions were named".to_owned())?;
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
            self.begin_survey(&new, None, now_ns());
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
            if self.trace.trips() > 0 { format!(", {} stopped", self.trace.trips()) } else { String::new() }
                + &self.operations_line()
        ));
    }
}
