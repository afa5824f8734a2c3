//! The survey: learning how often classes happen without paying for it.
//!
//! A rate needs counting, and counting a hot function is what must not be done. So classes are counted in
//! bursts that a quota in *time* ends: `Q = q / tau_i` hits, after which the breaker takes the class off. Rounds
//! of bursts give more to those classes whose interval is still so wide that the plan would change within it,
//! and to nobody else.
//!
//! Inputs: classes with prices and shares, tokens, outcomes of bursts, the planner as a closure. Outputs: bursts
//! to run ([`Step`]), rates with intervals ([`RateEstimate`]).
//! What it does not do: it attaches nothing, reads no clock, charges no ledger (the session charges what was
//! really spent; the survey only never asks for more than the tokens it is told of).

mod overlap;
mod state;
mod types;

pub use types::{
    BurstOutcome, BurstRequest, Ended, RateEstimate, Step, StoppedBy, SurveyClass, SurveyConfig,
};

use crate::class::ClassId;
use crate::stats::bursts::Stop;
use state::State;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Largest number of classes for which each rate is moved to its limits alone; beyond, all are moved together.
const ONE_BY_ONE: usize = 256;

/// The state of a survey.
#[derive(Debug, Clone)]
pub struct Survey {
    config: SurveyConfig,
    cpu_per_s: f64,
    states: BTreeMap<ClassId, State>,
    queue: VecDeque<ClassId>,
    in_flight: BTreeMap<ClassId, BurstRequest>,
    landed: Vec<(BurstRequest, BurstOutcome)>,
    round: u32,
    spent_s: f64,
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
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            landed: Vec::new(),
            round: 1,
            spent_s: 0.0,
            begin_ns: None,
            ended: None,
        };
        survey.queue = survey.by_interest(survey.states.keys().copied().collect()).into();
        survey
    }

    /// CPU seconds that the target uses per wall second outside bursts, as newly measured.
    pub fn set_cpu_per_s(&mut self, cpu_per_s: f64) {
        self.cpu_per_s = cpu_per_s;
    }

    /// The next bursts, which cost at most `available_cpu_s`, whatever the target does.
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
        if !self.in_flight.is_empty() {
            return Step::Wait { cpu_s: 0.0 };
        }
        if now_ns.saturating_sub(begin_ns) >= self.config.time_limit_ns {
            return self.end(Ended::Time);
        }
        if self.queue.is_empty() {
            let vague = now_ns.saturating_sub(begin_ns) < self.config.vague_limit_ns;
            let undecided = self.undecided(plan);
            let vague = if vague { self.vague(&undecided) } else { Vec::new() };
            if undecided.is_empty() && vague.is_empty() {
                return self.end(Ended::Stable);
            }
            if self.round >= self.config.rounds {
                return self.end(Ended::Rounds);
            }
            self.next_round(&undecided, &vague);
        }
        let left = self.config.cpu_limit_s - self.spent_s;
        let requests = self.batch(available_cpu_s.min(left));
        if !requests.is_empty() {
            self.in_flight = requests.iter().map(|r| (r.class, *r)).collect();
            return Step::Run(requests);
        }
        let needed = self.queue.front().map_or(0.0, |class| self.least_reserve(*class));
        if left < needed {
            return self.end(Ended::Budget);
        }
        Step::Wait { cpu_s: needed }
    }

    /// Notes an outcome. Outcomes of classes that were not asked for are ignored.
    pub fn record(&mut self, outcome: BurstOutcome) {
        let Some(request) = self.in_flight.remove(&outcome.class) else { return };
        let Some(state) = self.states.get_mut(&outcome.class) else { return };
        let paid = outcome.hits.saturating_add(outcome.extra_hits) as f64;
        self.spent_s += paid * state.class.tau.seconds() + self.config.attach_cost_s;
        if outcome.stopped_by == StoppedBy::Aborted {
            state.aborted = true;
            self.queue.retain(|c| *c != outcome.class);
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
        self.ended = Some(ended);
        Step::Done(ended)
    }

    /// Turns the outcomes of a batch into bursts, each undilated by its own hits and by its neighbours'.
    fn settle(&mut self) {
        let landed = std::mem::take(&mut self.landed);
        let price = |c: ClassId| self.states.get(&c).map_or(0.0, |s| s.class.tau.seconds());
        let neighbours = overlap::neighbour_costs_s(&landed, price);
        for ((request, outcome), neighbours_s) in landed.into_iter().zip(neighbours) {
            let stop = match outcome.stopped_by {
                StoppedBy::Quota => Stop::Quota,
                StoppedBy::Window => Stop::Window,
                StoppedBy::Aborted => continue,
            };
            let Some(state) = self.states.get_mut(&outcome.class) else { continue };
            if !state.note(&request, &outcome, stop, neighbours_s, self.cpu_per_s) {
                self.queue.push_back(outcome.class);
            }
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

    /// Other classes of which a longer window would tell more, for nothing.
    fn vague(&self, undecided: &[ClassId]) -> Vec<ClassId> {
        let longest = self.config.longest_window_ns;
        let more = |s: &&State| s.last_stop == Some(Stop::Window) && s.window_ns < longest && !s.aborted;
        let wide =
            |s: &&State| s.rate(self.config.level).is_some_and(|r| r.rate_hz.high > 10.0 * r.rate_hz.low);
        let list = self.states.values().filter(more).filter(wide).map(|s| s.class.class);
        self.by_interest(list.filter(|c| !undecided.contains(c)).collect())
    }

    fn next_round(&mut self, undecided: &[ClassId], vague: &[ClassId]) {
        self.round += 1;
        let config = self.config;
        for class in undecided.iter().chain(vague) {
            let Some(state) = self.states.get_mut(class) else { continue };
            match state.last_stop {
                Some(Stop::Window) => {
                    let grown = state.window_ns as f64 * config.growth;
                    state.window_ns = (grown as u64).min(config.longest_window_ns);
                    // A longer window of the same rate needs a larger quota, or it will be cut short.
                    state.quota_s = (state.quota_s * config.growth).min(config.largest_quota_s);
                }
                _ => state.quota_s = (state.quota_s * config.growth).min(config.largest_quota_s),
            }
        }
        // Passes over all of them, so that a class's bursts lie apart in time.
        for _ in 0..config.bursts_per_round.max(1) {
            self.queue.extend(undecided);
        }
        self.queue.extend(vague);
    }

    /// Takes bursts from the queue, in its order, while their reserves fit. A hot class is joined only by classes
    /// known not to be hot.
    fn batch(&mut self, mut tokens_s: f64) -> Vec<BurstRequest> {
        let mut requests: Vec<BurstRequest> = Vec::new();
        let (mut hot, mut new) = (false, false);
        let mut later = VecDeque::new();
        while let Some(class) = self.queue.pop_front() {
            let (is_hot, is_new) =
                self.states.get(&class).map_or((false, false), |s| (s.hot, s.last_stop.is_none()));
            let twice = requests.iter().any(|r| r.class == class);
            if twice || (is_hot && (hot || new)) || (is_new && hot) {
                later.push_back(class);
                continue;
            }
            let wanted = self.quota_hits(class);
            // The first burst of a batch may be cut to what there is; a later one rather waits.
            let most = if requests.is_empty() { self.affordable_hits(class, tokens_s) } else { wanted };
            let quota_hits = wanted.min(most);
            let reserve = self.reserve_s(class, quota_hits);
            if requests.len() >= self.config.batch
                || quota_hits < self.config.least_hits
                || reserve > tokens_s
            {
                later.push_back(class);
                break;
            }
            tokens_s -= reserve;
            (hot, new) = (hot || is_hot, new || is_new);
            let window_ns = self.states.get(&class).map_or(self.config.first_window_ns, |s| s.window_ns);
            requests.push(BurstRequest { class, quota_hits, window_ns });
        }
        later.append(&mut self.queue);
        self.queue = later;
        requests
    }

    /// `Q = q / tau_i`, not more than four times what the class can show in its window by what is known.
    fn quota_hits(&self, class: ClassId) -> u64 {
        let least = self.config.least_hits;
        let Some(state) = self.states.get(&class) else { return least };
        let by_time = state.quota_s / state.class.tau.seconds().max(1e-9);
        let by_rate = state
            .rate(self.config.level)
            .map_or(f64::INFINITY, |r| 4.0 * r.rate_hz.high * state.window_ns as f64 * 1e-9);
        // Casts saturate; a quota of u64::MAX hits is never affordable.
        (by_time.min(by_rate) as u64).max(least)
    }

    /// The most that a burst can take from the target, CPU s: its quota at the dearest price, and every running
    /// thread hitting without pause until the class is off.
    fn reserve_s(&self, class: ClassId, quota_hits: u64) -> f64 {
        let dearest = self.states.get(&class).map_or(0.0, |s| s.class.tau.max_ns * 1e-9);
        quota_hits as f64 * dearest + self.fixed_reserve_s()
    }

    fn fixed_reserve_s(&self) -> f64 {
        self.config.reaction_s * f64::from(self.config.parallel.max(1)) + self.config.attach_cost_s
    }

    fn least_reserve(&self, class: ClassId) -> f64 {
        self.reserve_s(class, self.config.least_hits)
    }

    fn affordable_hits(&self, class: ClassId, tokens_s: f64) -> u64 {
        let dearest = self.states.get(&class).map_or(0.0, |s| s.class.tau.max_ns * 1e-9).max(1e-9);
        ((tokens_s - self.fixed_reserve_s()) / dearest).max(0.0) as u64
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
