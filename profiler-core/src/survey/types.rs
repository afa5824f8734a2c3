//! What goes into the survey and what comes out of it.

use crate::class::ClassId;
use crate::cost::Price;
use crate::estimate::Estimate;
use crate::stats::LEVEL;

/// Constants of the survey.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SurveyConfig {
    /// Nominal coverage of the rates' intervals.
    pub level: f64,
    /// `q` of the first round: CPU time that one burst may take, s.
    pub first_quota_s: f64,
    /// Factor on quota (or window) of a class from one of its rounds to the next.
    pub growth: f64,
    /// Largest `q`, s.
    pub largest_quota_s: f64,
    /// Fewest hits that a quota allows; two are needed for a rate.
    pub least_hits: u64,
    /// Window of the first round, ns.
    pub first_window_ns: u64,
    /// Longest window, ns.
    pub longest_window_ns: u64,
    /// Hits that a class gets in its second look, if the budget affords them: a rate within a tenth, 95 times in 100.
    pub wanted_hits: u64,
    /// Up to so many classes each get a link of their own; of more, only those that the samples showed, most time first.
    pub own_links: usize,
    /// Classes of unknown rate on one link: its last function is off some 65 us x this after its first.
    pub unknown_per_link: usize,
    /// Bursts at most into which the second look divides the hits of a class that is over in a part of its long window: one
    /// sees a moment, and a target's rates change from one to the next. As many as the budget affords.
    pub passes: u32,
    /// Bursts per class in every round after the second: their spread gives the interval.
    pub bursts_per_round: u32,
    /// Rounds at most.
    pub rounds: u32,
    /// Links at the same time at most.
    pub batch: usize,
    /// Time from the trip of a quota to the last hit, s: the target may lose it on every running thread.
    pub reaction_s: f64,
    /// Threads of the target that can run at once: min(threads, CPUs).
    pub parallel: u32,
    /// Cost of attaching and detaching one link, CPU s.
    pub attach_cost_s: f64,
    /// Time for which the breakpoints of a link that has been there for longer than 5 ms outlive it, s: calls pay on.
    pub detach_delay_s: f64,
    /// What there is to spend.
    pub funds: SurveyFunds,
    /// All that the survey may spend, CPU s.
    pub cpu_limit_s: f64,
    /// Time after which no new burst is asked for, ns from the first call.
    pub time_limit_ns: u64,
    /// A rate known to this relative half-width is good enough for any plan.
    pub tight: f64,
}

impl Default for SurveyConfig {
    fn default() -> Self {
        Self {
            level: LEVEL,
            // 140 hits on a push, 10 on a stepped site; a hundred classes take 1 s of a CPU's 2 %.
            first_quota_s: 100e-6,
            growth: 4.0,
            largest_quota_s: 10e-3,
            least_hits: 8,
            // Links fade in and out over milliseconds; 50 ms is the shortest window that dwarfs it.
            first_window_ns: 50_000_000,
            longest_window_ns: 2_000_000_000,
            wanted_hits: 480,
            own_links: 24,
            unknown_per_link: 8,
            passes: 4,
            bursts_per_round: 3,
            rounds: 6,
            batch: 24,
            reaction_s: 100e-6,
            parallel: 1,
            attach_cost_s: 0.0,
            detach_delay_s: 0.0,
            funds: SurveyFunds::default(),
            cpu_limit_s: f64::INFINITY,
            time_limit_ns: 5_000_000_000,
            tight: 0.05,
        }
    }
}

/// What a survey has to spend beside others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SurveyFunds {
    /// Most that one burst may cost, attaching and reaction included, CPU s: a part of what the bucket holds, or it would wait for ever.
    pub burst_limit_s: f64,
    /// Most tokens that will ever be there at once (a full bucket's, less what others spend), CPU s. With these a link is opened
    /// that may cost more: it would wait for ever.
    pub most_granted_s: f64,
    /// However little that is, fewer tokens than these are not taken for all that will ever be there, CPU s: others may come to
    /// spend less, and what a link takes on almost nothing is missing elsewhere.
    pub least_full_s: f64,
    /// Tokens that the survey may take in a second, CPU s/s: what its second look is cut to.
    pub income: f64,
}

impl Default for SurveyFunds {
    /// As much as is asked for.
    fn default() -> Self {
        Self {
            burst_limit_s: f64::INFINITY,
            most_granted_s: f64::INFINITY,
            least_full_s: 0.0,
            income: f64::INFINITY,
        }
    }
}

/// A class to survey.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SurveyClass {
    /// Class.
    pub class: ClassId,
    /// Price of one count-only hit.
    pub tau: Price,
    /// On-CPU s/s with the class on the stack, from samples; 0 if none showed it.
    pub rho: f64,
    /// Information weight.
    pub weight: f64,
}

/// The link that a burst is counted through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Its own, and no other burst is opened before it is over (its quota ends it within milliseconds): what two hot
    /// classes cost each other in so short a time cannot be told apart.
    Alone,
    /// Its own.
    Own,
    /// One link for all requests of a step with this number: it ends for all of them when one of them trips.
    Shared(u32),
}

/// A burst to run: count hits of the class until the quota is used up or the window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BurstRequest {
    /// Class.
    pub class: ClassId,
    /// Hits after which the breaker fires.
    pub quota_hits: u64,
    /// Length of the window from the instant at which the class is attached everywhere, ns.
    pub window_ns: u64,
    /// How it is attached.
    pub link: Link,
}

/// How a burst went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoppedBy {
    /// The quota; `elapsed_ns` runs to the hit that used it up.
    Quota,
    /// The window.
    Window,
    /// It could not be run, or its numbers are not to be used (the class could not be attached, the target
    /// exec'd). The class is not asked for again.
    Aborted,
}

/// What a burst showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BurstOutcome {
    /// Class.
    pub class: ClassId,
    /// Instant from which every hit was counted, ktime ns.
    pub start_ns: u64,
    /// Time from there to the end of the burst, ns.
    pub elapsed_ns: u64,
    /// Hits in that time.
    pub hits: u64,
    /// Hits after it, until the class was really off: paid for, not used.
    pub extra_hits: u64,
    /// Time from the end of the burst until the class was really off, ns.
    pub off_ns: u64,
    /// CPU time of the target in that time, monitoring included, ns; 0 if it could not be measured.
    pub target_cpu_ns: u64,
    /// Threads of the target that could hit at once: min(threads, CPUs).
    pub threads: u32,
    /// Monitoring cost in that time other than this survey's (samples, traced classes), ns.
    pub other_cost_ns: u64,
    /// What ended it.
    pub stopped_by: StoppedBy,
}

/// A surveyed rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateEstimate {
    /// Class.
    pub class: ClassId,
    /// Events per second of undilated wall time. Of a class that was not hit in the time T (`n` = 0) the value is
    /// 1/2T, the mean of the gamma distribution that Jeffreys' prior leads to: a rate of 0 would be wrong by any order of
    /// magnitude.
    pub rate_hz: Estimate,
    /// On-CPU s/s with the class on the stack, as given.
    pub rho: f64,
    /// Price of one hit, s.
    pub tau_s: f64,
    /// Information weight.
    pub weight: f64,
    /// Bursts behind the rate.
    pub bursts: u32,
    /// A call was seen, in whatever window.
    pub seen: bool,
    /// Length of all its windows together, s.
    pub watched_s: f64,
}

impl RateEstimate {
    /// Half the interval relative to the value; infinite for a rate of 0.
    #[must_use]
    pub fn relative_width(&self) -> f64 {
        if self.rate_hz.value > 0.0 { self.rate_hz.half_width() / self.rate_hz.value } else { f64::INFINITY }
    }
}

/// Why the survey is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The plan is the same anywhere within the rates' intervals.
    Stable,
    /// All rounds are used up.
    Rounds,
    /// All CPU time that it may spend is spent.
    Budget,
    /// The time is up.
    Time,
}

impl Ended {
    /// For people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Stable => "the plan is stable",
            Self::Rounds => "all rounds are over",
            Self::Budget => "what it may spend is spent",
            Self::Time => "time is up",
        }
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Open these bursts in this order, and record every outcome. More may be asked for while they are open.
    Run(Vec<BurstRequest>),
    /// Outcomes are missing, or the tokens do not suffice: ask again when this much CPU time (s) is available.
    Wait {
        /// Tokens wanted, CPU s; 0 while outcomes are missing.
        cpu_s: f64,
    },
    /// Nothing is open, and nothing is to be opened yet: the next bursts of classes that have been looked at are to see other
    /// moments. Ask again then.
    Pause {
        /// Instant, ns.
        until_ns: u64,
    },
    /// The survey is over.
    Done(Ended),
}
