//! What a run sees: a snapshot that the agent (or a simulated target) fills before each step. Nothing behind it reads a clock or a kernel.

pub mod operations;

use crate::class::{ClassId, ExitMode, RecordKind};
use crate::cost::{self, Price, Rests};
use crate::recording::WindowKind;
use crate::run::links::Role;
use operations::OperationsView;

/// The snapshot. Its buffers are reused.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// When it was taken, ktime ns.
    pub now_ns: u64,
    /// All classes, by id.
    pub classes: Vec<ClassView>,
    /// Their names, by id.
    pub names: Vec<String>,
    /// The target.
    pub target: TargetView,
    /// What samples showed so far.
    pub samples: SamplesView,
    /// What the client of operations sees; filled for its steps only.
    pub operations: OperationsView,
}

impl View {
    /// One class.
    ///
    /// # Panics
    /// The id is not of this run.
    #[must_use]
    pub fn class(&self, id: ClassId) -> &ClassView {
        &self.classes[id.0 as usize]
    }

    /// Nothing is attached, being attached or being closed, but these.
    #[must_use]
    pub fn is_detached_but(&self, but: &[ClassId]) -> bool {
        self.classes.iter().all(|c| !c.link.is_there() || but.contains(&c.id))
    }

    /// Nothing waits to be attached, and no link is being made.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.classes.iter().all(|c| !matches!(c.link, LinkView::Waiting | LinkView::Opening))
    }

    /// The classes with an open window.
    pub fn open(&self) -> impl Iterator<Item = &ClassView> {
        self.classes.iter().filter(|c| c.is_open())
    }
}

/// Where the links of a class stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkView {
    /// Nothing is attached.
    Off,
    /// Its turn to be attached has not come.
    Waiting,
    /// Its link is being made.
    Opening,
    /// A window is open.
    Open(WindowKind),
    /// The window is over, and its links are being closed, or wait for the calls in flight.
    Closing(WindowKind),
}

impl LinkView {
    /// There are links, or will be in a moment.
    #[must_use]
    pub fn is_there(self) -> bool {
        !matches!(self, Self::Off | Self::Waiting)
    }

    /// Somebody has asked for it.
    #[must_use]
    pub fn is_taken(self) -> bool {
        matches!(self, Self::Waiting | Self::Opening | Self::Open(_))
    }
}

/// One class.
#[derive(Debug, Clone)]
pub struct ClassView {
    /// Which.
    pub id: ClassId,
    /// Where its links stand.
    pub link: LinkView,
    /// Hits that its window may take; 0 where none is open or to be opened.
    pub quota: u64,
    /// When its window that is open or being closed began, ktime ns; 0: there is none.
    pub start_ns: u64,
    /// Hits so far, others' included.
    pub attempted: u64,
    /// Hits of its exit sites or return links so far.
    pub ends: u64,
    /// Sum of the durations of its calls so far, ns, uncorrected.
    pub timed_ns: u64,
    /// Hits of processes that are not watched.
    pub bystanders: u64,
    /// What is known of it.
    pub traits: ClassTraits,
    /// What a hit costs.
    pub prices: ClassPrices,
    /// Samples with it on the stack.
    pub samples: u64,
    /// CPU time that they stand for, ns.
    pub sampled_ns: u64,
    /// Its recorded calls, where a model is made of it.
    pub points: PointsView,
}

impl ClassView {
    /// A window is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.link, LinkView::Open(_))
    }

    /// It waits to be attached, or its link is being made.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        matches!(self.link, LinkView::Waiting | LinkView::Opening)
    }

    /// Price of a whole call where the target runs for `gap_s` s of CPU time from one call to the next, ns.
    #[must_use]
    pub fn tau_ns(&self, gap_s: f64) -> f64 {
        let traps = if self.traits.exit == ExitMode::None { 1.0 } else { 2.0 };
        let ClassPrices { hit, exit, .. } = self.prices;
        hit.plus(exit).ns + traps * self.prices.cold_ns(gap_s)
    }

    /// It can be asked for.
    #[must_use]
    pub fn may_open(&self) -> bool {
        self.link == LinkView::Off && !self.traits.refused
    }
}

/// Recorded calls of a function that a model is made of, or is held against.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PointsView {
    /// So many are wanted of each decade of its inputs; 0: it is not modelled, or as many as can be had are wanted.
    pub wanted: u32,
    /// Decades of its inputs, each with a hundredth of its recorded calls at least.
    pub decades: u32,
    /// Recorded calls in the one of them that has fewest.
    pub least: u64,
    /// Recorded calls per second that it shares with the functions of its group, Hz; 0: it is in none.
    pub shared_hz: f64,
}

impl PointsView {
    /// It has as many as are wanted.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.wanted > 0 && self.decades > 0 && self.least >= u64::from(self.wanted)
    }
}

/// What is known of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassTraits {
    /// What is kept of a call.
    pub kind: RecordKind,
    /// How its end is seen.
    pub exit: ExitMode,
    /// Information weight.
    pub weight: f64,
    /// What it is to operations.
    pub role: Role,
    /// Number of its module: functions of one module can share a link.
    pub module: u32,
    /// The user named it to be watched.
    pub named: bool,
    /// The user demands that all of its calls are traced.
    pub must: bool,
    /// It belongs to operations, to the progress metric or to another class: neither planned nor surveyed.
    pub apart: bool,
    /// It is the pair that measures what lies between the time stamps of this class ([`crate::clients::activity::stamps`]).
    pub stamps_of: Option<ClassId>,
    /// The plan has it attached now: it is traced, or tried.
    pub held_by_plan: bool,
    /// Samples show it and no call of it begins.
    pub dormant: bool,
    /// It cannot be attached.
    pub refused: bool,
}

/// What a hit costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassPrices {
    /// One entry hit.
    pub hit: Price,
    /// One exit or return hit; 0 without.
    pub exit: Price,
    /// What each costs more where the target has used the caches since the last.
    pub cold: Price,
    /// What lies between the two time stamps of a call ([`cost::Stamps::mean`]); 0 where calls are not timed.
    pub stamps: Price,
    /// How the target rests.
    pub rests: Rests,
}

impl ClassPrices {
    /// What a hit costs more than in a tight loop, ns, where the target runs for `gap_s` s of CPU time between two of them ([`cost::cold_ns`], [`Rests`]).
    #[must_use]
    pub fn cold_ns(&self, gap_s: f64) -> f64 {
        cost::cold_ns(self.cold, gap_s) + self.rests.added_ns(gap_s)
    }
}

/// The target.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TargetView {
    /// CPU time used so far, ns.
    pub cpu_ns: u64,
    /// CPU s per wall s that it uses by itself, smoothed.
    pub own_cpu: f64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Threads that work at once.
    pub working_threads: u32,
    /// A launched program that does not run yet: its first instruction, or its entry point, is held.
    pub is_held: bool,
}

/// What samples showed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplesView {
    /// How many.
    pub n: u64,
    /// CPU time that they stand for, ns.
    pub cpu_ns: u64,
    /// Rate, Hz of target CPU time.
    pub rate_hz: f64,
    /// Price of one as calibrated, s.
    pub price_s: f64,
    /// None is taken in this run.
    pub off: bool,
    /// Threads that have an event of their own.
    pub threads: usize,
    /// There is one event per CPU rather than per thread.
    pub per_cpu: bool,
}

/// A class that is off and that nobody named: it is counted, a hit costs `hit_ns`, and no sample shows it. For tests.
#[cfg(test)]
pub(crate) fn plain_class(id: u32, hit_ns: f64) -> ClassView {
    ClassView {
        id: ClassId(id),
        link: LinkView::Off,
        quota: 0,
        start_ns: 0,
        attempted: 0,
        ends: 0,
        timed_ns: 0,
        bystanders: 0,
        traits: ClassTraits {
            kind: RecordKind::Count,
            exit: ExitMode::None,
            weight: 1.0,
            role: Role::None,
            module: 0,
            named: false,
            must: false,
            apart: false,
            stamps_of: None,
            held_by_plan: false,
            dormant: false,
            refused: false,
        },
        prices: ClassPrices {
            hit: Price::fixed(hit_ns),
            exit: Price::fixed(0.0),
            cold: Price::fixed(0.0),
            stamps: Price::fixed(0.0),
            rests: Rests::default(),
        },
        samples: 0,
        sampled_ns: 0,
        points: PointsView::default(),
    }
}
