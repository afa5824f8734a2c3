//! What the survey knows of one class.

use super::{BurstOutcome, BurstRequest, RateEstimate, SurveyClass, SurveyConfig};
use crate::stats::bursts::{self, Burst, BurstTime, Stop, undilated_s};

/// A burst that a quota ended within this undilated time is of a *hot* class, s: it gets a batch without other
/// hot ones, because what they cost each other in so short a time can not be told apart.
const HOT_S: f64 = 20e-3;

/// Cost of neighbours, relative to a burst's own undilated time, above which the burst is not used but repeated.
const DISTURBED: f64 = 0.02;

/// Repetitions of a disturbed burst; after these it is taken as it is, with its wide interval.
const REPEATS: u32 = 2;

#[derive(Debug, Clone)]
pub(super) struct State {
    pub class: SurveyClass,
    pub bursts: Vec<Burst>,
    pub quota_s: f64,
    pub window_ns: u64,
    pub last_stop: Option<Stop>,
    pub hot: bool,
    pub repeats: u32,
    pub aborted: bool,
}

impl State {
    /// Nothing is known yet.
    pub fn new(class: &SurveyClass, config: &SurveyConfig) -> Self {
        Self {
            class: *class,
            bursts: Vec::new(),
            quota_s: config.first_quota_s,
            window_ns: config.first_window_ns,
            last_stop: None,
            hot: false,
            repeats: 0,
            aborted: false,
        }
    }

    /// Takes a burst in; `false` if it has to be repeated: its neighbours disturbed it, or it has no length.
    pub fn note(
        &mut self,
        request: &BurstRequest,
        outcome: &BurstOutcome,
        stop: Stop,
        neighbours_s: f64,
        cpu_per_s: f64,
    ) -> bool {
        let time = |neighbours_s: f64| BurstTime {
            elapsed_s: outcome.elapsed_ns as f64 * 1e-9,
            target_cpu_s: outcome.target_cpu_ns as f64 * 1e-9,
            threads: outcome.threads,
            other_cost_s: outcome.other_cost_ns as f64 * 1e-9 + neighbours_s,
            cpu_per_s,
        };
        let tau = self.class.tau;
        let own =
            |neighbours_s: f64, tau_ns: f64| undilated_s(&time(neighbours_s), outcome.hits, tau_ns * 1e-9);
        let time_s = own(neighbours_s, tau.ns);
        self.last_stop = Some(stop);
        self.hot = stop == Stop::Quota && time_s < HOT_S;
        // One that the breaker ended while it was being opened saw nothing.
        let void = outcome.elapsed_ns == 0;
        let disturbed = stop == Stop::Quota && neighbours_s > DISTURBED * time_s;
        if (void || disturbed) && self.repeats < REPEATS {
            self.repeats += 1;
            return false;
        }
        // So that windows compare with undilated times: the part of this one that was the target's own.
        let share = if outcome.elapsed_ns > 0 { time_s / time(0.0).elapsed_s } else { 1.0 };
        self.bursts.push(Burst {
            hits: outcome.hits,
            stop,
            time_s,
            // What neighbours cost within the burst is known to about a half.
            time_low_s: own(1.5 * neighbours_s, tau.max_ns),
            time_high_s: own(0.5 * neighbours_s, tau.min_ns),
            quota: Some(request.quota_hits),
            window_s: Some(request.window_ns as f64 * 1e-9 * share),
            busy: time(neighbours_s).busy(),
        });
        true
    }

    pub fn rate(&self, level: f64) -> Option<RateEstimate> {
        let rate_hz = bursts::rate(&self.bursts, level)?;
        Some(RateEstimate {
            class: self.class.class,
            rate_hz,
            rho: self.class.rho,
            tau_s: self.class.tau.seconds(),
            weight: self.class.weight,
            // Saturating is right: a survey has tens of bursts per class.
            bursts: u32::try_from(self.bursts.len()).unwrap_or(u32::MAX),
        })
    }
}
