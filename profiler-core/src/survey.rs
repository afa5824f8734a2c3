//! The survey: learning how often classes happen without paying for it.
//!
//! A rate needs counting, and counting a hot function is what must not be done. So classes are counted in
//! bursts that a quota in *time* ends: `Q = q / tau_i` hits, after which the breaker takes the class off. A first look
//! tells orders of magnitude, a second gives every class the hits that make its rate good or that the budget affords
//! (`survey/looks.rs`); rounds of bursts then give more to those classes whose interval is still so wide that the plan would
//! change within it, and to nobody else.
//!
//! Inputs: classes with prices and shares, tokens, outcomes of bursts, the planner as a closure. Outputs: bursts
//! to run ([`Step`]), rates with intervals ([`RateEstimate`]).
//! What it does not do: it attaches nothing, reads no clock, charges no ledger (the run charges what was
//! really spent; the survey only never asks for more than the tokens it is told of).

mod looks;
mod overlap;
mod state;
mod types;

pub use types::{
    BurstOutcome, BurstRequest, Ended, Link, RateEstimate, Step, StoppedBy, SurveyClass, SurveyConfig,
    SurveyFunds,
};

use crate::class::ClassId;
use crate::stats::bursts::{Burst, Drift, Seen, Stop};
use state::{Noted, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Largest number of classes for which each rate is moved to its limits alone; beyond, all are moved together.
const ONE_BY_ONE: usize = 256;

/// A bucket that holds this part of what it will ever grant is full: waiting longer brings nothing.
const FULL: f64 = 0.9;
/// Links opened in one step at most: each takes some 10 ms, and windows have to end on time.
const PER_STEP: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    First,
    Second,
    Rounds,
}

/// The state of a survey.
#[derive(Debug, Clone)]
pub struct Survey {
    config: SurveyConfig,
    cpu_per_s: f64,
    states: BTreeMap<ClassId, State>,
    stage: Stage,
    /// Bursts to come, link by link.
    queue: VecDeque<Vec<BurstRequest>>,
    /// More of them, and not before which instant, ns.
    later: VecDeque<(u64, Vec<Vec<BurstRequest>>)>,
    /// Time from one pass of the second look to the next, s.
    apart_s: f64,
    /// Bursts that run, and what is reserved for each, CPU s.
    in_flight: BTreeMap<ClassId, (BurstRequest, f64)>,
    /// Shared links asked for so far.
    links: u32,
    landed: Vec<(BurstRequest, BurstOutcome)>,
    round: u32,
    spent_s: f64,
    /// Bursts have come since classes learned from one another.
    is_drift_old: bool,
    begin_ns: Option<u64>,
    ended: Option<Ended>,
}

impl Survey {
    /// A survey of these classes; `cpu_per_s` is `U`, the CPU seconds that the target uses per wall second.
    #[must_use]
    pub fn new(config: SurveyConfig, cpu_per_s: f64, classes: &[SurveyClass]) -> Self {
        let states: BTreeMap<ClassId, State> =
            classes.iter().map(|c| (c.class, State::new(c, &config))).collect();
        let mut survey = Self {
            config,
            cpu_per_s,
            states,
            stage: Stage::First,
            queue: VecDeque::new(),
            later: VecDeque::new(),
            apart_s: 0.0,
            in_flight: BTreeMap::new(),
            links: 0,
            landed: Vec::new(),
            round: 1,
            spent_s: 0.0,
            is_drift_old: false,
            begin_ns: None,
            ended: None,
        };
        let all = survey.by_interest(survey.states.keys().copied().collect());
        survey.queue = survey.first_look(&all).into();
        survey
    }

    /// CPU seconds that the target uses per wall second outside bursts, as newly measured.
    pub fn set_cpu_per_s(&mut self, cpu_per_s: f64) {
        self.cpu_per_s = cpu_per_s;
    }

    /// What there is to spend, as newly measured.
    pub fn set_funds(&mut self, funds: SurveyFunds) {
        self.config.funds = funds;
    }

    /// The next bursts, which together with those that run cost at most `available_cpu_s`, whatever the target does.
    ///
    /// `plan` is the planner: from all rates measured so far, one decision per class, in the same order. It is
    /// asked between rounds with rates moved to the ends of their intervals; a class for which that changes any
    /// decision gets another round.
    pub fn next_step<D: PartialEq>(
        &mut self,
        now_ns: u64,
        available_cpu_s: f64,
        plan: impl FnMut(&[RateEstimate]) -> Vec<D>,
    ) -> Step {
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        if let Some(ended) = self.ended {
            return Step::Done(ended);
        }
        let running = !self.in_flight.is_empty();
        if now_ns.saturating_sub(begin_ns) >= self.config.time_limit_ns {
            return if running { Step::Wait { cpu_s: 0.0 } } else { self.end(Ended::Time) };
        }
        if self.queue.is_empty()
            && let Some((due_ns, _)) = self.later.front()
        {
            if now_ns < *due_ns {
                return if running { Step::Wait { cpu_s: 0.0 } } else { Step::Pause { until_ns: *due_ns } };
            }
            self.queue = self.later.pop_front().map(|(_, items)| items.into()).unwrap_or_default();
        }
        if self.queue.is_empty() {
            if running {
                return Step::Wait { cpu_s: 0.0 };
            }
            if let Some(ended) = self.refill(now_ns, plan) {
                return self.end(ended);
            }
        }
        let left = self.config.cpu_limit_s - self.spent_s;
        let requests = self.batch(now_ns, available_cpu_s.min(left) - self.reserved_s());
        if !requests.is_empty() {
            return Step::Run(requests);
        }
        if running {
            return Step::Wait { cpu_s: 0.0 };
        }
        let needed = self.queue.front().map_or(0.0, |item| self.needed_s(item));
        if left < needed {
            return self.end(Ended::Budget);
        }
        Step::Wait { cpu_s: needed }
    }

    /// All that was asked for has come: what is to be asked next, or why it is over.
    fn refill<D: PartialEq>(
        &mut self,
        now_ns: u64,
        plan: impl FnMut(&[RateEstimate]) -> Vec<D>,
    ) -> Option<Ended> {
        if self.stage == Stage::First {
            let unknown = |s: &&State| !s.aborted && !s.is_known();
            let unknown: Vec<ClassId> = self.states.values().filter(unknown).map(|s| s.class.class).collect();
            if !unknown.is_empty() {
                let unknown = self.by_interest(unknown);
                self.queue = self.first_look(&unknown).into();
                return None;
            }
            self.stage = Stage::Second;
            if self.round < self.config.rounds {
                self.queue = self.second_look(now_ns).into();
            }
            if !self.queue.is_empty() {
                self.round += 1;
                return None;
            }
        }
        self.stage = Stage::Rounds;
        self.learn_drift();
        let undecided = self.undecided(plan);
        if undecided.is_empty() {
            return Some(Ended::Stable);
        }
        if self.round >= self.config.rounds {
            return Some(Ended::Rounds);
        }
        self.next_round(&undecided);
        None
    }

    /// Notes an outcome. Outcomes of classes that were not asked for are ignored.
    pub fn record(&mut self, outcome: BurstOutcome) {
        let Some((request, _)) = self.in_flight.remove(&outcome.class) else { return };
        let sharers = match request.link {
            // All of a link are asked for, and settled, together.
            Link::Shared(_) => {
                let asked = self.in_flight.values().map(|(r, _)| r).chain(self.landed.iter().map(|(r, _)| r));
                1.0 + asked.filter(|r| r.link == request.link).count() as f64
            }
            Link::Alone | Link::Own => 1.0,
        };
        let length_s = (outcome.elapsed_ns as f64 * 1e-9).max(1e-9);
        let tau_s = self.tau_s(outcome.class);
        let paid_s = outcome.hits.saturating_add(outcome.extra_hits) as f64 * tau_s;
        let tail_s = self.tail_s(outcome.hits as f64 * tau_s / length_s, length_s);
        self.spent_s += paid_s + tail_s + self.config.attach_cost_s / sharers;
        if outcome.stopped_by == StoppedBy::Aborted
            && let Some(state) = self.states.get_mut(&outcome.class)
        {
            state.aborted = true;
            for item in self.queue.iter_mut().chain(self.later.iter_mut().flat_map(|(_, items)| items)) {
                item.retain(|r| r.class != outcome.class);
            }
            self.queue.retain(|item| !item.is_empty());
            self.later.iter_mut().for_each(|(_, items)| items.retain(|item| !item.is_empty()));
            // An empty pass is nothing to wait for.
            self.later.retain(|(_, items)| !items.is_empty());
        }
        // Aborted bursts slowed the others all the same.
        self.landed.push((request, outcome));
        if self.in_flight.is_empty() {
            self.settle();
        }
    }

    /// Rates measured so far, by class.
    #[must_use]
    pub fn rates(&self) -> Vec<RateEstimate> {
        self.states.values().filter_map(|s| s.rate(self.config.level)).collect()
    }

    /// Classes without a rate: aborted, or the time was up before their turn.
    #[must_use]
    pub fn unmeasured(&self) -> Vec<ClassId> {
        let none = |s: &&State| s.rate(self.config.level).is_none();
        self.states.values().filter(none).map(|s| s.class.class).collect()
    }

    /// CPU time that is reserved for the bursts that run, s: nobody else may spend it.
    #[must_use]
    pub fn reserved_s(&self) -> f64 {
        self.in_flight.values().map(|(_, reserve)| reserve).sum()
    }

    /// CPU time that the bursts took by their hits and prices, s.
    #[must_use]
    pub fn spent_s(&self) -> f64 {
        self.spent_s
    }

    /// The round, from 1.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }

    fn end(&mut self, ended: Ended) -> Step {
        self.learn_drift();
        self.ended = Some(ended);
        Step::Done(ended)
    }

    /// Turns the outcomes of a batch into bursts, each undilated by its own hits and by its neighbours'.
    fn settle(&mut self) {
        let landed = std::mem::take(&mut self.landed);
        let price = |c: ClassId| self.states.get(&c).map_or(0.0, |s| s.class.tau.seconds());
        let neighbours = overlap::neighbour_costs_s(&landed, price);
        let mut lost: BTreeMap<u32, Vec<BurstRequest>> = BTreeMap::new();
        for ((request, outcome), neighbours_s) in landed.into_iter().zip(neighbours) {
            let stop = match outcome.stopped_by {
                StoppedBy::Quota => Stop::Quota,
                StoppedBy::Window => Stop::Window,
                StoppedBy::Aborted => continue,
            };
            let Some(state) = self.states.get_mut(&outcome.class) else { continue };
            match (state.note(&request, &outcome, stop, neighbours_s, self.cpu_per_s), request.link) {
                (Noted::Done, _) => {}
                (Noted::AgainTogether, Link::Shared(link)) => lost.entry(link).or_default().push(request),
                (Noted::Again | Noted::AgainTogether, _) => {
                    self.queue.push_back(vec![BurstRequest { link: Link::Alone, ..request }]);
                }
            }
        }
        // The one that took the link from them is not among them.
        for requests in lost.into_values() {
            let link = self.next_link();
            self.queue.push_back(requests.into_iter().map(|r| BurstRequest { link, ..r }).collect());
        }
        self.is_drift_old |= self.stage != Stage::First;
    }

    /// What classes learn from one another; not at each settling, of which a round has hundreds: it takes milliseconds of 1,000 classes.
    pub(crate) fn learn_drift(&mut self) {
        if std::mem::take(&mut self.is_drift_old) {
            let looks: Vec<Vec<Burst>> = self.states.values().map(State::looks).collect();
            // Looks of different classes lie in moments of their own.
            let seen = looks.iter().map(|bursts| Seen { bursts, cells: &[] });
            let drift = Drift::pooled(seen, self.apart_s, 1.0);
            self.states.values_mut().for_each(|s| s.drift.clone_from(&drift));
        }
    }

    /// Classes whose rate, moved within its interval, changes the plan.
    fn undecided<D: PartialEq>(&self, mut plan: impl FnMut(&[RateEstimate]) -> Vec<D>) -> Vec<ClassId> {
        let rates = self.rates();
        let wide = |r: &RateEstimate| r.relative_width() > self.config.tight;
        if !rates.iter().any(wide) {
            return Vec::new();
        }
        let base = plan(&rates);
        let mut open = BTreeSet::new();
        let ends: [fn(&RateEstimate) -> f64; 2] = [|r| r.rate_hz.low, |r| r.rate_hz.high];
        if rates.len() <= ONE_BY_ONE {
            let mut moved = rates.clone();
            for (i, rate) in rates.iter().enumerate().filter(|(_, r)| wide(r)) {
                for end in ends {
                    moved[i].rate_hz.value = end(rate);
                    if plan(&moved) != base {
                        open.insert(rate.class);
                    }
                }
                moved[i] = *rate;
            }
        } else {
            for end in ends {
                let mut moved = rates.clone();
                moved.iter_mut().zip(&rates).for_each(|(m, r)| m.rate_hz.value = end(r));
                let other = plan(&moved);
                for ((rate, a), b) in rates.iter().zip(&base).zip(&other) {
                    if a != b && wide(rate) {
                        open.insert(rate.class);
                    }
                }
            }
        }
        let aborted = |c: &ClassId| self.states.get(c).is_none_or(|s| s.aborted);
        self.by_interest(open.into_iter().filter(|c| !aborted(c)).collect())
    }

    fn next_round(&mut self, undecided: &[ClassId]) {
        self.round += 1;
        let config = self.config;
        let mut items = Vec::new();
        for class in undecided {
            let Some(state) = self.states.get_mut(class) else { continue };
            // A longer window of the same rate needs a larger quota, or it will be cut short.
            state.quota_s = (state.quota_s * config.growth).min(config.largest_quota_s);
            if state.last_stop == Some(Stop::Window) {
                let grown = state.window_ns as f64 * config.growth;
                state.window_ns = (grown as u64).min(config.longest_window_ns);
            }
            let window_ns = state.window_ns;
            let hz = state.rate(config.level).map_or(0.0, |r| r.rate_hz.value);
            let quota_hits = self.quota_hits(*class, 1.0);
            let hot = (quota_hits as f64) < hz * looks::HOT_S;
            let link = if hot { Link::Alone } else { Link::Own };
            items.push(BurstRequest { class: *class, quota_hits, window_ns, link });
        }
        // Passes over all of them, so that a class's bursts lie apart in time.
        for _ in 0..config.bursts_per_round.max(1) {
            for item in &items {
                let drawn = self.with_drawn_quota(*item);
                self.queue.push_back(vec![drawn]);
            }
        }
    }

    /// Takes bursts from the queue, in its order, while their reserves fit.
    fn batch(&mut self, now_ns: u64, mut tokens_s: f64) -> Vec<BurstRequest> {
        let running = |r: &BurstRequest| match r.link {
            Link::Shared(link) => (Some(link), None),
            Link::Alone | Link::Own => (None, Some(r.class)),
        };
        let mut links: BTreeSet<_> = self.in_flight.values().map(|(r, _)| running(r)).collect();
        let mut batch: Vec<BurstRequest> = Vec::new();
        let left_ns = self.left_ns(now_ns).max(self.config.first_window_ns);
        for _ in 0..PER_STEP {
            let Some(item) = self.queue.pop_front() else { break };
            let twice = item.iter().any(|r| self.in_flight.contains_key(&r.class));
            // The bucket of an idle target may never hold what a link costs at worst: a full one is enough for one, and what it
            // takes more is paid back before anything else is opened.
            let full = links.is_empty() && tokens_s > 0.0 && tokens_s >= self.full_s();
            // While nothing runs, a burst of the first look may be cut to what there is; a later one only if there will never be more.
            let mut cut = item.clone();
            if links.is_empty() && (self.stage == Stage::First || (full && !self.is_timed(&item))) {
                self.cut(&mut cut, tokens_s);
            }
            let reserve = self.reserve_s(&cut);
            if twice || links.len() >= self.config.batch || (reserve > tokens_s && !full) {
                self.queue.push_front(item);
                break;
            }
            tokens_s -= reserve;
            let each = reserve / cut.len() as f64;
            for request in &mut cut {
                request.window_ns = request.window_ns.min(left_ns);
                self.in_flight.insert(request.class, (*request, each));
                links.insert(running(request));
            }
            batch.append(&mut cut);
        }
        batch
    }

    /// Cuts a link's quotas to what the tokens allow, to the smallest ones if they do not even allow those.
    fn cut(&self, item: &mut [BurstRequest], tokens_s: f64) {
        if self.reserve_s(item) <= tokens_s {
            return;
        }
        let with = |part: f64| -> Vec<BurstRequest> {
            let cut = |r: &BurstRequest| {
                let least = self.config.least_hits.min(r.quota_hits);
                BurstRequest { quota_hits: least + (part * (r.quota_hits - least) as f64) as u64, ..*r }
            };
            item.iter().map(cut).collect()
        };
        // The reserve grows with the quotas, but not evenly: rates bound it, and what comes after the end is a step.
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..24 {
            let middle = 0.5 * (low + high);
            if self.reserve_s(&with(middle)) <= tokens_s { low = middle } else { high = middle }
        }
        let cut = with(low);
        item.copy_from_slice(&cut);
    }

    /// Counted for a time, and not up to a quota: at the rate that is known the window ends it.
    fn is_timed(&self, item: &[BurstRequest]) -> bool {
        let timed = |r: &BurstRequest| {
            let rate = self.states.get(&r.class).and_then(|s| s.rate(self.config.level));
            rate.is_some_and(|rate| r.quota_hits as f64 > rate.rate_hz.value * r.window_ns as f64 * 1e-9)
        };
        self.stage != Stage::First && item.iter().any(timed)
    }

    /// Tokens with which a link is opened while no other is: its reserve (in the first look that of the smallest quotas),
    /// or a full bucket.
    fn needed_s(&self, item: &[BurstRequest]) -> f64 {
        let reserve_s = if self.stage == Stage::First {
            let least_hits = self.config.least_hits;
            let least = |r: &BurstRequest| BurstRequest { quota_hits: r.quota_hits.min(least_hits), ..*r };
            self.reserve_s(&item.iter().map(least).collect::<Vec<_>>())
        } else {
            self.reserve_s(item)
        };
        reserve_s.min(self.full_s())
    }

    /// Tokens in a full bucket, CPU s.
    fn full_s(&self) -> f64 {
        let funds = self.config.funds;
        FULL * funds.most_granted_s.max(funds.least_full_s)
    }

    /// Most weighted time first: if the survey is cut short, the least is lost.
    fn by_interest(&self, mut classes: Vec<ClassId>) -> Vec<ClassId> {
        let interest = |c: &ClassId| self.states.get(c).map_or(0.0, |s| s.class.weight * s.class.rho);
        classes.sort_by(|a, b| interest(b).total_cmp(&interest(a)).then(a.cmp(b)));
        classes
    }
}

#[cfg(test)]
mod tests;
