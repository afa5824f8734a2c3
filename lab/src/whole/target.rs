//! What is simulated: a target, the machine's troubles, and how it is watched. All times are seconds since the run began.

use profiler_core::adapt::PolicyKind;
use profiler_core::class::SiteClass;
use profiler_core::plan::Objective;
use profiler_core::units::OverheadBudget;

/// How a rate, or the use of the CPU, changes in time: a factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// It does not.
    Steady,
    /// From one time to another it is so many times as large.
    Times {
        /// Begin, s.
        from_s: f64,
        /// End, s.
        until_s: f64,
        /// The factor.
        factor: f64,
    },
    /// It goes up and down by this part, in so many seconds.
    Seasonal {
        /// Period, s.
        period_s: f64,
        /// Part, in [0, 1].
        depth: f64,
    },
    /// All of it comes in a part of each period.
    Bursty {
        /// Period, s.
        period_s: f64,
        /// Part of the period, in (0, 1].
        part: f64,
    },
}

impl Shape {
    /// The factor at a time.
    #[must_use]
    pub fn at(self, s: f64) -> f64 {
        match self {
            Self::Steady => 1.0,
            Self::Times { from_s, until_s, factor } => {
                if (from_s..until_s).contains(&s) {
                    factor
                } else {
                    1.0
                }
            }
            Self::Seasonal { period_s, depth } => 1.0 + depth * (s / period_s * std::f64::consts::TAU).sin(),
            Self::Bursty { period_s, part } => {
                if s.rem_euclid(period_s) < part * period_s {
                    1.0 / part
                } else {
                    0.0
                }
            }
        }
    }
}

/// Who calls a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// All threads, by their use of the CPU.
    All,
    /// One thread.
    One(usize),
}

/// Whether a function can be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachable {
    /// It can.
    Yes,
    /// Its code is patched, or the kernel refuses it, before anything is made.
    Patched,
    /// The kernel refuses it while the link is being made.
    ByKernel,
}

/// What a function is to operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It begins operations of this number; where none ends them, it is one from its begin to its end.
    Begin(u32),
    /// It ends them.
    End(u32),
    /// It is called inside.
    Inner,
}

impl Part {
    /// The operation that it bounds.
    #[must_use]
    pub fn operation(self) -> Option<u32> {
        match self {
            Self::Begin(number) | Self::End(number) => Some(number),
            Self::Inner => None,
        }
    }
}

/// What entry sites there are, with the assumed price of a hit that is only counted, ns.
pub const SITES: [(SiteClass, f64); 5] = [
    (SiteClass::Nop5, 460.0),
    (SiteClass::Nop, 640.0),
    (SiteClass::Push, 700.0),
    (SiteClass::Branch, 800.0),
    (SiteClass::Stepped, 9_300.0),
];

/// One function.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Calls per s of a target that nobody watches.
    pub rate_hz: f64,
    /// How the rate changes.
    pub shape: Shape,
    /// Calibrated price of an entry hit, ns: one of [`SITES`].
    pub hit_ns: f64,
    /// The same of its exit; 0: only entries are seen.
    pub exit_ns: f64,
    /// Part of the samples that show it.
    pub rho: f64,
    /// The user named it.
    pub named: bool,
    /// The user demands all of its calls.
    pub must: bool,
    /// When its module is mapped, s.
    pub mapped_s: (f64, f64),
    /// From when to when its module is away meanwhile, s.
    pub away_s: Option<(f64, f64)>,
    /// Its module.
    pub module: u8,
    /// Who calls it.
    pub caller: Caller,
    /// Whether it can be attached.
    pub attachable: Attachable,
    /// It counts the progress metric.
    pub counts: bool,
    /// What it is to operations, where these are followed.
    pub part: Option<Part>,
}

impl Function {
    /// A function that is called so often, steadily, by all threads; nobody named it.
    #[must_use]
    pub fn new(rate_hz: f64) -> Self {
        Self {
            rate_hz,
            shape: Shape::Steady,
            hit_ns: 700.0,
            exit_ns: 0.0,
            rho: 0.03,
            named: false,
            must: false,
            mapped_s: (0.0, f64::INFINITY),
            away_s: None,
            module: 0,
            caller: Caller::All,
            attachable: Attachable::Yes,
            counts: false,
            part: None,
        }
    }

    /// The same with another shape.
    #[must_use]
    pub fn shape(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// The same, named by the user.
    #[must_use]
    pub fn named(self) -> Self {
        Self { named: true, ..self }
    }

    /// Calls per s at a time.
    #[must_use]
    pub fn rate_at(&self, s: f64) -> f64 {
        if self.is_mapped(s) { self.rate_hz * self.shape.at(s).max(0.0) } else { 0.0 }
    }

    /// Its entry site.
    #[must_use]
    pub fn site(&self) -> SiteClass {
        SITES.iter().find(|(_, ns)| *ns >= self.hit_ns).map_or(SiteClass::Stepped, |site| site.0)
    }

    /// Its module is mapped.
    #[must_use]
    pub fn is_mapped(&self, s: f64) -> bool {
        let is_away = self.away_s.is_some_and(|(from, until)| (from..until).contains(&s));
        (self.mapped_s.0..self.mapped_s.1).contains(&s) && !is_away
    }
}

/// What a forked child does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Life {
    /// It calls exec after so many s.
    Execs(f64),
    /// It ends after so many s, and calls the functions until then.
    Ends(f64),
}

/// Forks of the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forks {
    /// Per s.
    pub per_s: f64,
    /// From when to when, s.
    pub when_s: (f64, f64),
    /// What a child does.
    pub life: Life,
    /// CPU s per s that a child uses.
    pub cpu: f64,
}

/// The target.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Its functions.
    pub functions: Vec<Function>,
    /// CPU s per s that it uses by itself.
    pub cpu: f64,
    /// How that changes.
    pub cpu_shape: Shape,
    /// It works as fast as it can: what is taken from it makes it slower. Else it works as much as there is to do.
    pub is_bound: bool,
    /// Threads.
    pub threads: usize,
    /// Part of the work that the first thread does; the others share the rest.
    pub first_part: f64,
    /// Context switches per s.
    pub switches_per_s: f64,
    /// Its forks.
    pub forks: Option<Forks>,
    /// When it ends, s.
    pub ends_s: f64,
    /// Hits, samples and switches cost so many times what was calibrated.
    pub price_factor: f64,
}

impl Target {
    /// A target with these functions and one busy thread.
    #[must_use]
    pub fn new(functions: Vec<Function>) -> Self {
        Self {
            functions,
            cpu: 1.0,
            cpu_shape: Shape::Steady,
            is_bound: true,
            threads: 1,
            first_part: 1.0,
            switches_per_s: 50.0,
            forks: None,
            ends_s: f64::INFINITY,
            price_factor: 1.0,
        }
    }

    /// Part of the work that one thread does.
    #[must_use]
    pub fn part_of(&self, thread: usize) -> f64 {
        if thread == 0 || self.threads < 2 {
            return if self.threads < 2 { 1.0 } else { self.first_part };
        }
        (1.0 - self.first_part) / (self.threads - 1) as f64
    }
}

/// What the machine does to the agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trouble {
    /// Making a link takes so long, ms.
    pub open_ms: (f64, f64),
    /// One in so many takes 500 ms; 0: none.
    pub slow_open: u32,
    /// The breakpoint outlives the closing by so long, ms.
    pub close_ms: (f64, f64),
    /// One in so many links is not closed for up to 5 s, because forks of others would be held up; 0: none.
    pub slow_close: u32,
    /// From the trip until closing begins, ms.
    pub react_ms: (f64, f64),
    /// Of one in so many trips that takes up to 20 ms; 0: of none.
    pub late_react: u32,
    /// The alarm of one in so many trips is lost; the breaker looks at the gates every 100 ms. 0: none is.
    pub lost_alarm: u32,
    /// The report of one in so many links comes up to 100 ms late; 0: of none.
    pub late_report: u32,
    /// One in so many links cannot be made now; 0: none.
    pub not_now: u32,
    /// Before one in so many turns the loop is held up for up to 0.5 s; 0: before none.
    pub late_turn: u32,
    /// The clock jumps forward at this time, by so much, s.
    pub jump_s: Option<(f64, f64)>,
    /// The kernel's records of one in so many births are lost; 0: of none.
    pub lost_birth: u32,
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            open_ms: (10.0, 50.0),
            slow_open: 200,
            close_ms: (0.1, 40.0),
            slow_close: 0,
            react_ms: (0.05, 1.0),
            late_react: 50,
            lost_alarm: 0,
            late_report: 50,
            not_now: 0,
            late_turn: 0,
            jump_s: None,
            lost_birth: 0,
        }
    }
}

/// What progress is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Nothing is measured.
    None,
    /// A variable of the target.
    Variable,
    /// Its functions that count.
    Functions,
}

/// How the target is watched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watch {
    /// The budget.
    pub budget: OverheadBudget,
    /// Length of the run, s.
    pub seconds: f64,
    /// What plans are to bring.
    pub objective: Objective,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Only what was named is traced.
    pub only_named: bool,
    /// The run ends with its first plan.
    pub plan_only: bool,
    /// The user's sampling rate, Hz.
    pub rate_hz: Option<f64>,
    /// Links are slow (tier D).
    pub slow_links: bool,
    /// What a thread may lose.
    pub thread_share: Option<f64>,
    /// The target is launched, and held until what is named is attached.
    pub launched: bool,
    /// What progress is measured by.
    pub metric: Metric,
    /// Operations are followed with this policy.
    pub policy: Option<PolicyKind>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            budget: OverheadBudget::Share(0.02),
            seconds: 60.0,
            objective: Objective::Precision,
            cpus: 8,
            only_named: false,
            plan_only: false,
            rate_hz: None,
            slow_links: false,
            thread_share: None,
            launched: false,
            metric: Metric::None,
            policy: None,
        }
    }
}

/// A run to be simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Of everything that is left to chance.
    pub seed: u64,
    /// The target.
    pub target: Target,
    /// The machine.
    pub trouble: Trouble,
    /// The agent's settings.
    pub watch: Watch,
}

impl Scenario {
    /// A target that is watched at 2 % for 60 s on a machine that works as it should.
    #[must_use]
    pub fn new(name: &str, target: Target) -> Self {
        Self { name: name.to_owned(), seed: 1, target, trouble: Trouble::default(), watch: Watch::default() }
    }
}
