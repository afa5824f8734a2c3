//! What goes into the controller and what comes out.

use crate::burst::BurstOrder;
use crate::class::ClassId;

/// Constants of the policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ControllerConfig {
    /// Ticks that a quota must last, so that a late tick stops no class.
    pub horizon_ticks: f64,
    /// Time constant of the rates, s.
    pub rate_time_s: f64,
    /// First pause after a class was stopped, s; doubles with each stop.
    pub first_pause_s: f64,
    /// Longest pause, s.
    pub longest_pause_s: f64,
    /// Part of the bucket below which the run counts as over its corridor.
    pub low_water: f64,
    /// A rate outside its interval by more than this factor is drift.
    pub drift_factor: f64,
    /// The same for the CPU time that the target uses.
    pub cpu_drift_factor: f64,
    /// Drift must last this long before the plan is made anew, and plans lie at least thrice this apart, s.
    pub drift_s: f64,
    /// Largest sampling period, ns: the sampler is slowed to this and no further.
    pub longest_period_ns: u64,
    /// Sampling period that was asked for, ns; 0: none. A plan has a longer one where the budget does not pay for it.
    pub asked_period_ns: u64,
    /// Share of the tokens that one trial burst may take.
    pub trial_share: f64,
    /// Seed of the random times of bursts: runs differ, replays do not.
    pub seed: u64,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            horizon_ticks: 5.0,
            rate_time_s: 0.5,
            first_pause_s: 2.0,
            longest_pause_s: 60.0,
            low_water: 0.1,
            drift_factor: 1.3,
            cpu_drift_factor: 1.5,
            drift_s: 1.0,
            // 10 Hz: below it a share of 10 % has an interval of its own size for minutes.
            longest_period_ns: 100_000_000,
            asked_period_ns: 0,
            trial_share: 0.25,
            seed: 0,
        }
    }
}

/// What the controller is told of a class when it is put under its care.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassOrder {
    /// Class.
    pub class: ClassId,
    /// Price of one hit, ns.
    pub tau_ns: f64,
    /// Information weight.
    pub weight: f64,
    /// Rate that the plan was made with and its interval, events/s: (low, value, high).
    pub rate_hz: (f64, f64, f64),
    /// On-CPU s per s, for the value that is lost when the class is not sampled.
    pub rho: f64,
    /// Named by the user as must-trace: the last to be detached.
    pub must: bool,
    /// Named by the user: the last whose bursts come more rarely for the agent's sake.
    pub named: bool,
    /// The plan traces it; otherwise it is only tried in bursts (if `trial`).
    pub trace: bool,
    /// Try it in bursts now and then while it is not traced: its rate is not known, or it was asked for by name.
    pub trial: bool,
    /// Trace it in bursts while it is not traced.
    pub burst: Option<BurstOrder>,
}

/// One tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick<'a> {
    /// Now, ktime ns.
    pub now_ns: u64,
    /// Time since the last tick, ns.
    pub elapsed_ns: u64,
    /// Tokens, ns; negative: debt.
    pub tokens_ns: f64,
    /// What the bucket holds when full, ns.
    pub capacity_ns: f64,
    /// What windows that are not the controller's (those of a survey) may still take of the tokens, ns.
    pub reserved_ns: f64,
    /// Tokens earned per second, CPU s/s.
    pub income: f64,
    /// What was charged since the last tick, CPU s/s.
    pub spent: f64,
    /// What everything but classes (samples, switches) costs, CPU s/s.
    pub other_cost: f64,
    /// Part of `other_cost` that is samples, CPU s/s.
    pub sample_cost: f64,
    /// Samples per second of target CPU time, for the value of sampling.
    pub sampling_hz: f64,
    /// Hits of the attached classes since the last tick.
    pub hits: &'a [(ClassId, u64)],
    /// CPU time that the target uses by itself, CPU s/s, smoothed over some seconds.
    pub target_cpu: f64,
    /// How many times as rarely as planned samples are taken, and bursts begun, so that the agent keeps to its own limit; at least 1.
    pub slowdown: f64,
}

/// Why a class was detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetachReason {
    /// The ledger ran dry and this class gave least for its cost.
    OverBudget,
    /// Its trial burst is over, and it would still cost too much, or the plan does not trace it.
    TrialOver,
    /// The new plan does not trace it.
    Planned,
    /// It took more from one thread than that may lose.
    Thread,
}

/// Why samples come more rarely than planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slowed {
    /// The tokens ran out.
    Tokens,
    /// The agent keeps to its own limit.
    Agent,
}

/// Why the plan is to be made anew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cause {
    /// A traced class runs at another rate than the plan was made for.
    Rate {
        /// Class.
        class: ClassId,
        /// Events/s now.
        rate_hz: f64,
        /// Events/s in the plan.
        planned_hz: f64,
    },
    /// A trial showed that a class may fit into the budget.
    Fits {
        /// Class.
        class: ClassId,
        /// Events/s in the trial.
        rate_hz: f64,
    },
    /// The target uses more or less CPU time than when the plan was made (threads came or went, it woke up).
    Cpu {
        /// CPU s/s now.
        now: f64,
        /// CPU s/s then.
        planned: f64,
    },
    /// More goes out than comes in, though no single class need have left its interval.
    Spend {
        /// What classes, samples and switches cost, CPU s/s.
        spend: f64,
        /// What the budget allows, CPU s/s.
        income: f64,
    },
    /// Less goes out than comes in, and what is left would pay for more.
    Unspent {
        /// What was charged, CPU s/s.
        spend: f64,
        /// What the budget allowed, CPU s/s.
        income: f64,
    },
    /// One thread lost more than it may.
    Thread {
        /// Share of its own CPU time.
        overhead: f64,
    },
}

/// What shall be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Attach for as long as the plan holds, with this quota until the next tick.
    Trace {
        /// Class.
        class: ClassId,
        /// Hits.
        quota: u64,
    },
    /// Attach for one trial burst.
    Trial {
        /// Class.
        class: ClassId,
        /// Hits.
        quota: u64,
        /// Longest window, ns.
        window_ns: u64,
    },
    /// Attach for one burst of the plan.
    Burst {
        /// Class.
        class: ClassId,
        /// Hits.
        quota: u64,
        /// Longest window, ns.
        window_ns: u64,
    },
    /// Detach.
    Detach {
        /// Class.
        class: ClassId,
        /// Why.
        reason: DetachReason,
    },
    /// Hits until the next tick.
    Quota {
        /// Class.
        class: ClassId,
        /// Hits.
        hits: u64,
    },
    /// Sample once per so much CPU time of the target.
    Period {
        /// ns.
        period_ns: u64,
    },
    /// A class that had been stopped stays attached after its trial: it is traced again.
    Resumed {
        /// Class.
        class: ClassId,
    },
    /// What the plan was made for is no longer so.
    Replan {
        /// What.
        why: Cause,
    },
}
