//! What the survey knows of one class.

use super::{BurstOutcome, BurstRequest, Link, RateEstimate, SurveyClass, SurveyConfig};
use crate::stats::bursts::{self, Burst, BurstTime, Drift, NEIGHBOUR_ERROR, Stop, undilated_s};

/// Cost of neighbours, relative to a burst's own undilated time, above which the burst is not used but repeated.
const DISTURBED: f64 = 0.1;

/// Repetitions of a disturbed burst; after these it is taken as it is, with its wide interval.
const REPEATS: u32 = 2;

/// A window on a shared link that a neighbour's trip ended sooner tells the order of magnitude only, s: its classes are
/// let in one after the other, and go one after the other.
const SHORTEST_SHARED_S: f64 = 10e-3;

/// What follows a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noted {
    /// Nothing at once.
    Done,
    /// It is repeated on a link of its own: its neighbours disturbed it, or it has no length.
    Again,
    /// It is repeated with those neighbours that lost it, too.
    AgainTogether,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub class: SurveyClass,
    pub bursts: Vec<Burst>,
    /// Windows that say roughly how often it happens, used as long as there is nothing better.
    pub rough: Vec<Burst>,
    pub quota_s: f64,
    pub window_ns: u64,
    pub last_stop: Option<Stop>,
    pub repeats: u32,
    /// Number of the next quota to be drawn ([`quota_part`](crate::burst::quota_part)).
    pub drawn: u64,
    /// Windows that the breaker ended for this class while they were being opened, ...
    pub voids: u32,
    /// ... and those that it ended for a neighbour on the same link.
    pub lost: u32,
    pub aborted: bool,
    /// What bursts of all classes differ by, as far as that is known.
    pub drift: Option<Drift>,
}

impl State {
    /// Nothing is known yet.
    pub fn new(class: &SurveyClass, config: &SurveyConfig) -> Self {
        Self {
            class: *class,
            bursts: Vec::new(),
            rough: Vec::new(),
            quota_s: config.first_quota_s,
            window_ns: config.first_window_ns,
            last_stop: None,
            repeats: 0,
            // From there the first are near 1 on average: most classes have few windows.
            drawn: 3,
            voids: 0,
            lost: 0,
            aborted: false,
            drift: None,
        }
    }

    /// It has been seen, or had its whole first window: what it needs next can be said.
    pub fn is_known(&self) -> bool {
        !self.bursts.is_empty() || self.rough.iter().any(|b| b.hits > 0) || self.voids > REPEATS
    }

    /// Takes a burst in.
    pub fn note(
        &mut self,
        request: &BurstRequest,
        outcome: &BurstOutcome,
        stop: Stop,
        neighbours_s: f64,
        cpu_per_s: f64,
    ) -> Noted {
        let time = |neighbours_s: f64| BurstTime {
            elapsed_s: outcome.elapsed_ns as f64 * 1e-9,
            target_cpu_s: outcome.target_cpu_ns as f64 * 1e-9,
            threads: outcome.threads,
            other_cost_s: outcome.other_cost_ns as f64 * 1e-9 + neighbours_s,
            cpu_per_s,
        };
        let tau = self.class.tau;
        let (least_ns, most_ns) = tau.drifted();
        let own =
            |neighbours_s: f64, tau_ns: f64| undilated_s(&time(neighbours_s), outcome.hits, tau_ns * 1e-9);
        let time_s = own(neighbours_s, tau.ns);
        let burst = Burst {
            hits: outcome.hits,
            stop,
            time_s,
            time_low_s: own((1.0 + NEIGHBOUR_ERROR) * neighbours_s, most_ns),
            time_high_s: own((1.0 - NEIGHBOUR_ERROR) * neighbours_s, least_ns),
            quota: Some(request.quota_hits),
            window_s: None,
            busy: time(neighbours_s).busy(),
        };
        let elapsed_s = time(0.0).elapsed_s;
        // So that windows compare with undilated times: the part of this one that was the target's own.
        let of_window = |burst: Burst| {
            let share = if outcome.elapsed_ns > 0 { burst.time_s / elapsed_s } else { 1.0 };
            Burst { window_s: Some(request.window_ns as f64 * 1e-9 * share), ..burst }
        };
        let swallowed = of_window(burst.swallowed(elapsed_s));
        let burst = of_window(burst);
        let shared = matches!(request.link, Link::Shared(_));
        let cut = shared && stop == Stop::Window && time(0.0).elapsed_s < SHORTEST_SHARED_S;
        // Its own quota was used up before the link was gone: nobody knows when.
        let spent = stop == Stop::Window && outcome.hits >= request.quota_hits;
        // Where the neighbours' cost swallows all of the time, a tenth of it is as good a guess as any.
        let rough = Burst {
            time_s: burst.time_s.max(0.1 * elapsed_s),
            time_high_s: elapsed_s.max(burst.time_high_s),
            ..burst
        };
        // One that the breaker ended while it was being opened saw nothing.
        let void = outcome.elapsed_ns == 0;
        if void {
            // Never taken for a burst: it would stand for a rate of 0 in no time. After some of them others decide.
            if shared && stop == Stop::Window {
                self.lost += 1;
                return if self.lost > REPEATS { Noted::Again } else { Noted::AgainTogether };
            }
            self.voids += 1;
            return if self.voids > REPEATS { Noted::Done } else { Noted::Again };
        }
        if cut || spent {
            self.rough.push(rough);
            return Noted::Done;
        }
        self.last_stop = Some(stop);
        let disturbed = stop == Stop::Quota && neighbours_s > DISTURBED * time_s;
        if disturbed && (shared || self.repeats < REPEATS) {
            self.repeats += 1;
            self.rough.push(rough);
            return if shared { Noted::Done } else { Noted::Again };
        }
        self.bursts.push(swallowed);
        Noted::Done
    }

    /// What tells how unlike moments are: its bursts, or the only one and its pilot. Of one class these two say nothing, of many they do.
    pub fn looks(&self) -> Vec<Burst> {
        let pilot = if self.bursts.len() == 1 { self.rough.last() } else { None };
        self.bursts.iter().chain(pilot).copied().collect()
    }

    fn windows(&self) -> impl Iterator<Item = &Burst> {
        self.bursts.iter().chain(&self.rough)
    }

    pub fn rate(&self, level: f64) -> Option<RateEstimate> {
        let bursts = if self.bursts.is_empty() { &self.rough } else { &self.bursts };
        let mut rate_hz = bursts::rate_with(bursts, level, self.drift.as_ref())?;
        if rate_hz.n == 0 {
            rate_hz.value = 0.5 / bursts.iter().map(|b| b.time_s).sum::<f64>();
        }
        Some(RateEstimate {
            class: self.class.class,
            rate_hz,
            rho: self.class.rho,
            tau_s: self.class.tau.seconds(),
            weight: self.class.weight,
            // Saturating is right: a survey has tens of bursts per class.
            bursts: u32::try_from(bursts.len()).unwrap_or(u32::MAX),
            seen: self.windows().any(|b| b.hits > 0),
            watched_s: self.windows().map(|b| b.time_s).sum(),
        })
    }
}
