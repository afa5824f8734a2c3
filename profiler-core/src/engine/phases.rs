//! Warm-up, survey, plan: what the run does when.
//!
//! ```text
//! Warmup ── samples ──► classes ──► Survey ── rates ──► plan ──► Run ── controller ──► end
//!                                     ▲                           │ functions that come
//!                                     └───────────────────────────┘
//! ```

use super::Run;
use super::command::Command;
use crate::class::{ClassId, RecordKind, SiteClass};
use crate::clients::operations;
use crate::clients::survey::{Grant, Links, SurveyClient};
use crate::clients::trace::planning;
use crate::clients::trace::problem::Known;
use crate::clients::trace::rate::Rates;
use crate::cost::Price;
use crate::plan::PlanError;
use crate::run::arbiter::bystanders;
use crate::run::order::Order;
use crate::run::view::View;
use crate::survey::{RateEstimate, SurveyFunds};

/// CPU s/s that a launched program is taken to use when it starts: most begin by working.
const STARTING_CPU: f64 = 1.0;

/// Below so many samples/s of CPU time shares are hardly known: one of 10 % has an interval of its own size for minutes.
const FEW_SAMPLES_HZ: f64 = 10.0;

/// Where the run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Sampling only, to find where time goes. Also at the end, when nothing is attached any more.
    Warmup,
    /// Windows that only count, to learn rates.
    Survey,
    /// The plan runs.
    Run,
}

/// What classes are being looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// None.
    Nothing,
    /// Those of the first survey, or of a run that traces all that is named.
    First,
    /// Those that came since.
    More,
    /// Those of a program that is held before its start.
    Held,
}

/// How far the search for functions is.
#[derive(Debug)]
pub(super) struct Finding {
    search: Search,
    /// Classes that were found since and wait for their survey, or for the first one.
    found: Vec<(ClassId, SiteClass)>,
    /// The samples have been asked for functions.
    discovered: bool,
    /// They have been asked again.
    discovered_again: bool,
    /// The run begins when what was named, so many functions, is attached.
    tracing_all: Option<usize>,
    /// A launched program does not run yet.
    pub is_held: bool,
    /// A launched program that was held runs.
    pub is_resumed: bool,
    /// The first interval of the ledger is over.
    pub sampling_started: bool,
}

impl Finding {
    pub fn new() -> Self {
        Self {
            search: Search::Nothing,
            found: Vec::new(),
            discovered: false,
            discovered_again: false,
            tracing_all: None,
            is_held: false,
            is_resumed: false,
            sampling_started: false,
        }
    }

    /// Operations may be followed: what they take can be charged.
    pub fn may_follow(&self) -> bool {
        self.sampling_started || self.is_held || self.is_resumed
    }

    /// Nothing is looked for, and nothing that was found waits.
    pub fn is_idle(&self) -> bool {
        self.search == Search::Nothing && self.found.is_empty()
    }
}

impl Run {
    /// The run begins when all that was named is attached.
    #[must_use]
    pub fn waits_for_all(&self) -> bool {
        self.finding.tracing_all.is_some()
    }

    /// The run goes on at this time. One that has not begun does not end.
    #[must_use]
    pub fn goes_on(&self, now_ns: u64) -> bool {
        let is_begun = !self.settings.trace.only_named || self.finding.search != Search::First;
        let time_left = !is_begun || self.waits_for_all() || self.times.end_ns.is_none_or(|end| now_ns < end);
        time_left && self.answer.problem.is_none()
    }

    /// A step of the phases looks at the classes.
    pub(super) fn phase_sees(&self, links: Links, now_ns: u64) -> bool {
        match self.phase {
            Phase::Warmup => false,
            Phase::Survey => self.survey.may_step(now_ns, links),
            Phase::Run => self.trace.is_plan_wanted() || !self.finding.found.is_empty(),
        }
    }

    /// Moves on to the next phase when it is time. `links`: what of a survey is attached.
    pub(super) fn advance(&mut self, links: Links, view: &View) {
        let now = view.now_ns;
        let may_adapt = self.suspension().may_adapt();
        let only_named = self.settings.trace.only_named;
        match self.phase {
            Phase::Warmup if now >= self.times.warmup_until_ns && self.finding.search == Search::Nothing => {
                // What was named is looked at first; the samples may not yet show anything else.
                let discover = !only_named && now >= self.times.discover_ns;
                self.finding.discovered = discover;
                self.find(Search::First, discover);
            }
            Phase::Survey if self.survey.may_step(now, links) => self.next_step(view),
            Phase::Run
                if !only_named
                    && !self.finding.discovered
                    && now >= self.times.discover_ns
                    && may_adapt
                    && self.finding.is_idle() =>
            {
                self.finding.discovered = true;
                self.look_for_more(now);
            }
            // Of those that were found first some were not called when they were tried (`main` and what it calls), and by now more samples tell which take how much.
            Phase::Run
                if self.finding.discovered
                    && !self.finding.discovered_again
                    && self.settings.trace.links_wait
                    && self.times.again_ns().is_some_and(|again_ns| now >= again_ns)
                    && may_adapt
                    && self.finding.is_idle() =>
            {
                self.finding.discovered_again = true;
                self.look_for_more(now);
            }
            Phase::Run if !self.finding.found.is_empty() => {
                if self.suspension().may_discover() {
                    let classes = std::mem::take(&mut self.finding.found);
                    self.begin_survey(&classes, None, view);
                }
            }
            // Not in the middle of a search: what it has found so far has no rates.
            Phase::Run if may_adapt && self.finding.is_idle() => {
                if let Some(why) = self.trace.take_wanted(self.accounts.ledger.hit_factor()) {
                    let rates = self.trace.present_rates(view);
                    if let Err(error) = self.make_plan(&rates, why, view) {
                        self.commands.push(Command::Detail(format!("the plan stays as it is: {error}")));
                    }
                }
            }
            Phase::Warmup | Phase::Survey | Phase::Run => {}
        }
    }

    fn find(&mut self, search: Search, discover: bool) {
        self.finding.search = search;
        self.commands.push(Command::Find { discover });
    }

    /// New classes were made, hottest first.
    pub(super) fn found(&mut self, classes: &[(ClassId, SiteClass)], view: &View) {
        match std::mem::replace(&mut self.finding.search, Search::Nothing) {
            Search::First if self.settings.trace.only_named => {
                let before = std::mem::take(&mut self.finding.found).len();
                self.trace_all(before + classes.len(), view);
            }
            Search::First => {
                // Modules that came in the warm-up were looked through then: what was found in them is known, and not found again.
                let mut all = std::mem::take(&mut self.finding.found);
                all.extend(classes);
                let classes = &all;
                self.begin_survey(classes, Some(self.times.start_ns), view);
                let text = format!("surveying {} functions", classes.len());
                self.commands.push(Command::Progress(text));
            }
            Search::More if !classes.is_empty() => {
                let text = format!("{} more functions to look at", classes.len());
                self.commands.push(Command::Detail(text));
                self.finding.found.extend(classes);
            }
            Search::Held if !classes.is_empty() => self.plan_held(view),
            Search::Nothing | Search::More | Search::Held => {}
        }
    }

    /// Modules came or went (dlopen, exec): watch what was named in the new ones.
    pub(super) fn modules_came(&mut self, view: &View) {
        self.tell_operations(operations::Input::ModulesCame, view);
        self.look_for_more(view.now_ns);
    }

    /// Functions that were named and appeared, or that the samples show by now: survey them, too.
    fn look_for_more(&mut self, now: u64) {
        if !self.suspension().may_discover() || self.finding.search != Search::Nothing {
            // What was taken off for the sake of children comes back first: no link may be open then.
            self.commands.push(Command::LookAgain);
            return;
        }
        let discover = !self.settings.trace.only_named && now >= self.times.discover_ns;
        self.find(Search::More, discover);
    }

    /// A survey of these classes begins. `first`: when the run began, where no plan was made yet, ktime ns.
    fn begin_survey(&mut self, classes: &[(ClassId, SiteClass)], first: Option<u64>, view: &View) {
        let price = |site: SiteClass| self.accounts.prices.hit_price(site, RecordKind::Count);
        let priced: Vec<(ClassId, Price)> = classes.iter().map(|(id, site)| (*id, price(*site))).collect();
        let funds = self.survey_funds(view);
        self.survey.begin(&priced, first, funds, view);
        self.phase = Phase::Survey;
    }

    /// CPU s that a round of the survey may take, so that no thread loses more in it than in a second it may: by the spread of
    /// what has been seen so far.
    fn survey_limit_s(&self, view: &View) -> f64 {
        let bounds = self.threads.bounds(self.other_prices(view), self.thread_limit());
        let Some(bounds) = bounds else { return f64::INFINITY };
        view.classes.iter().map(|class| bounds.burst_limit_s(class.id)).fold(f64::INFINITY, f64::min)
    }

    /// What a survey has to spend.
    fn survey_funds(&self, view: &View) -> SurveyFunds {
        self.arbiter().survey(&self.claims(view), self.survey_limit_s(view))
    }

    /// What a survey may spend, and how much of it now.
    fn survey_grant(&self, view: &View) -> Grant {
        let (claims, limit_s) = (self.claims(view), self.survey_limit_s(view));
        let held_ns = self.trace.held_ns(view.now_ns);
        let arbiter = self.arbiter();
        Grant {
            funds: arbiter.survey(&claims, limit_s),
            now_s: arbiter.survey_now_s(&claims, held_ns, limit_s),
        }
    }

    /// Asks the survey what to do.
    fn next_step(&mut self, view: &View) {
        let grant = self.survey_grant(view);
        let mut orders = Vec::new();
        // What it asks the planner is answered from the rest of the run.
        let idle = SurveyClient::new(*self.survey.settings());
        let mut survey = std::mem::replace(&mut self.survey, idle);
        let decide = |rates: &[RateEstimate]| self.with_known(view, |known| known.decisions(rates));
        let rates = survey.step(&grant, view, decide, &mut orders);
        self.survey = survey;
        let Some(rates) = rates else { return self.follow(orders, view) };
        // Those that are dormant are not planned with; the next view says so, too.
        let mut view = view.clone();
        for order in &orders {
            if let Order::Dormant(id) = order {
                view.classes[id.0 as usize].traits.dormant = true;
            }
        }
        self.follow(orders, &view);
        self.start_plan(rates.iter().map(|r| (r.class, r.into())).collect(), &view);
    }

    /// The rates are there: a plan, together with what is known of classes that run already.
    fn start_plan(&mut self, new: Rates, view: &View) {
        self.phase = Phase::Run;
        let surveyed = new.len();
        let mut rates = self.trace.present_rates(view);
        rates.extend(new);
        self.choose_references(&rates, view);
        let why = format!("{surveyed} functions were surveyed");
        self.answer.failure = self.make_plan(&rates, why, view).err();
    }

    /// No survey, no sampling; everything named is traced under its quota.
    fn trace_all(&mut self, named: usize, view: &View) {
        self.phase = Phase::Run;
        self.answer.failure =
            self.make_plan(&Rates::new(), "the functions were named".to_owned(), view).err();
        self.finding.tracing_all = Some(named);
    }

    /// A launched program is held: what is named and mapped is looked for.
    pub(super) fn before_start(&mut self) {
        self.finding.is_held = true;
        if self.accounts.own_cpu == 0.0 {
            self.accounts.own_cpu = STARTING_CPU;
        }
        self.find(Search::Held, false);
    }

    /// Has what is named and mapped attached, with a quota from the tokens that the bucket lends.
    fn plan_held(&mut self, view: &View) {
        self.phase = Phase::Run;
        for class in &view.classes {
            self.charge_class(class, view.now_ns, None);
        }
        let rates = if self.trace.plans() == 0 { Rates::new() } else { self.trace.present_rates(view) };
        let why = "the program is held before its start".to_owned();
        self.answer.failure = self.make_plan(&rates, why, view).err();
    }

    /// The run begins now: counts from here to the end are those of the whole run.
    pub(super) fn begins(&mut self, view: &View) {
        let later = view.now_ns.saturating_sub(self.times.start_ns);
        let times = &mut self.times;
        times.start_ns += later;
        times.warmup_until_ns += later;
        times.discover_ns += later;
        times.end_ns = times.end_ns.map(|end| end + later);
        if std::mem::take(&mut self.finding.is_held) {
            // While it was held it earned nothing, and was not switched.
            self.accounts.last_ns = view.now_ns;
            self.accounts.ledger.begin(view.now_ns);
            self.accounts.switches.since_ns = view.now_ns;
            self.finding.is_resumed = true;
        }
        self.commands.push(Command::Later(later));
        let named = self.finding.tracing_all.take();
        if self.settings.trace.only_named {
            let (open, named) = (view.open().count(), named.unwrap_or(view.classes.len()));
            self.commands.push(Command::Note(format!("tracing {open} of {named} functions")));
        }
    }

    /// Asks what is known for a plan, as far as `view` shows it.
    fn with_known<T>(&self, view: &View, ask: impl FnOnce(&Known<'_>) -> T) -> T {
        let names: Vec<&str> = view.names.iter().map(String::as_str).collect();
        let bounds = self.threads.bounds(self.other_prices(view), self.thread_limit());
        ask(&Known {
            view,
            names: &names,
            arbiter: self.arbiter(),
            claims: &self.claims(view),
            operations: self.operations.is_some(),
            bounds: bounds.as_ref(),
            settings: self.trace.settings(),
            shares: self.trace.shares(),
            timed: self.trace.timed(),
            spreads: self.trace.spreads(),
            hung: &self.activities.references.all().collect::<Vec<_>>(),
        })
    }

    /// Makes a plan from the rates, records it (and `why` it was made) and puts it to work.
    ///
    /// # Errors
    /// The budget does not allow what must be traced.
    fn make_plan(&mut self, rates: &Rates, why: String, view: &View) -> Result<(), PlanError> {
        if self.settings.plan_only {
            // The same as a run would make, with what single threads cannot bear; where the budget is too small the problem says so.
            self.answer.problem =
                Some(self.with_known(view, |known| match planning::make(known, rates, 1) {
                    Ok(planned) => planned.problem,
                    Err(_) => known.problem(rates).0,
                }));
            return Ok(());
        }
        let number = self.trace.plans() + 1;
        let planned = self.with_known(view, |known| planning::make(known, rates, number))?;
        // The first plan may come before the first tokens: half of what the bucket will hold is lent to it, or every
        // busy class would trip at once. A debt is paid back before anything else is spent.
        let (tokens, factor) = (self.arbiter().lent_ns(), self.accounts.ledger.hit_factor());
        let orders = self.orders_of_trace(view, |trace, seen, orders| {
            trace.adopt(&planned, factor, tokens, seen, orders);
        });
        self.commands.push(Command::Detail(planned.in_words(number)));
        self.tell_slower_samples(planned.plan.sampling_hz, view);
        // Paid once: links closed by the survey and made for the plan say nothing about what is to come.
        self.commands.push(Command::LinksOnce);
        self.commands.push(Command::Planned(number, why, Box::new(planned)));
        self.follow_with(orders, view, true);
        self.commands.push(Command::LinksOnce);
        Ok(())
    }

    /// Says once that the budget does not pay for samples at the rate that was asked for, or for any worth having.
    fn tell_slower_samples(&mut self, planned_hz: f64, view: &View) {
        let asked_hz = self.settings.trace.fixed_rate_hz;
        let wanted_hz = asked_hz.unwrap_or(FEW_SAMPLES_HZ);
        if view.samples.off || self.answer.is_slower_told || planned_hz >= 0.99 * wanted_hz {
            return;
        }
        self.answer.is_slower_told = true;
        let what = asked_hz.map_or_else(
            || "few samples".to_owned(),
            |hz| format!("--sample-rate {hz} is more than the budget pays for"),
        );
        let others = if view.samples.per_cpu {
            let most = bystanders(self.settings.cpus) * 100.0;
            format!(
                "; other processes, which are interrupted as well, are to pay at most {most:.0} % of a CPU"
            )
        } else {
            String::new()
        };
        self.commands.push(Command::Warn(format!(
            "{what}: beside what is traced by name, context switches and the reserve {planned_hz:.1} samples/s of CPU time were planned for a time; a larger --budget allows more{others}"
        )));
    }
}

#[cfg(test)]
#[path = "tests/phases.rs"]
mod tests;
