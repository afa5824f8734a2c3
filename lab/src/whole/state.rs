//! Where classes and links of a simulated run stand, as the agent and the kernel know it.

use profiler_core::class::ClassId;
use profiler_core::recording::WindowKind;
use profiler_core::run::order::{Ending, Purpose};
use profiler_core::run::outcome::Outcome;
use std::collections::VecDeque;

/// Hits of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// All.
    pub attempted: u64,
    /// Through an open gate.
    pub kept: u64,
    /// Turned away.
    pub gated: u64,
    /// Of exits.
    pub ends: u64,
}

impl Counters {
    /// What came since.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            attempted: self.attempted - before.attempted,
            kept: self.kept - before.kept,
            gated: self.gated - before.gated,
            ends: self.ends - before.ends,
        }
    }
}

/// What a class waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pending {
    /// Of which kind its window is to be.
    pub kind: WindowKind,
    /// Its quota in hits.
    pub quota: u64,
    /// What for.
    pub purpose: Purpose,
    /// Which asking.
    pub number: u64,
}

/// An open window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Of which kind.
    pub kind: WindowKind,
    /// When it began, ktime ns.
    pub start_ns: u64,
    /// Its quota as last set, in hits.
    pub quota: u64,
    /// What for.
    pub purpose: Purpose,
    /// Which asking.
    pub number: u64,
    /// The counters when it began.
    pub base: Counters,
    /// CPU time of the target when it began, ns.
    pub base_cpu_ns: u64,
    /// The class that its links are registered under.
    pub leader: ClassId,
}

/// How the agent knows the end of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ends {
    /// When it ended, ktime ns.
    pub end_ns: u64,
    /// CPU time of the target then, ns.
    pub cpu_ns: u64,
    /// The breaker ended it.
    pub tripped: bool,
}

/// Where the links of a class stand, as the agent knows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum State {
    /// Nothing is attached.
    Off,
    /// Its turn has not come.
    Waiting(Pending),
    /// Its link is being made; how it is to be closed as soon as it is there.
    Opening(Pending, Option<Ending>),
    /// A window is open.
    Open(Window),
    /// Its window is over, its link is not gone.
    Closing(Window, Ends),
}

impl State {
    /// There are links, or will be in a moment.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        !matches!(self, Self::Off | Self::Waiting(_))
    }

    /// The class that its links are registered under.
    #[must_use]
    pub fn leader(&self) -> Option<ClassId> {
        match self {
            Self::Open(w) | Self::Closing(w, _) => Some(w.leader),
            Self::Off | Self::Waiting(_) | Self::Opening(..) => None,
        }
    }

    /// Of which kind its window is, or is to be.
    #[must_use]
    pub fn kind(&self) -> Option<WindowKind> {
        match self {
            Self::Off => None,
            Self::Waiting(p) | Self::Opening(p, _) => Some(p.kind),
            Self::Open(w) | Self::Closing(w, _) => Some(w.kind),
        }
    }
}

/// One class.
#[derive(Debug, Clone)]
pub struct Class {
    /// Index of its function in the target.
    pub function: usize,
    /// As the agent knows it.
    pub state: State,
    /// As they are.
    pub counters: Counters,
    /// As last read.
    pub read: Counters,
    /// Breakpoints of it are in the target's code.
    pub armed: bool,
    /// Hits that its gate still lets in.
    pub gate: u64,
    /// Nobody counts its hits any more: its programs are gone, its breakpoints are not.
    pub is_uncounted: bool,
    /// Until its next call.
    pub credit: f64,
    /// It is not planned with.
    pub dormant: bool,
    /// Why it cannot be attached.
    pub refused: Option<String>,
    /// Askings for it of which nobody was told what became of them.
    pub asking: VecDeque<u64>,
    /// Its window was opened, and its end was not told.
    pub window: Option<u64>,
    /// Its trial has shown that it fits: it stays attached.
    pub is_kept: bool,
    /// Since when it is off although the plan has it attached, ktime ns.
    pub missing_since_ns: Option<u64>,
}

impl Class {
    /// A class that is off.
    #[must_use]
    pub fn new(function: usize, credit: f64) -> Self {
        Self {
            function,
            state: State::Off,
            counters: Counters::default(),
            read: Counters::default(),
            armed: false,
            gate: 0,
            is_uncounted: false,
            credit,
            dormant: false,
            refused: None,
            asking: VecDeque::new(),
            window: None,
            is_kept: false,
            missing_since_ns: None,
        }
    }
}

/// Where links that were made stand, as the kernel and the breaker know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// They are there.
    On,
    /// The window is over; calls in flight are waited for until then, ktime ns.
    Draining(u64),
    /// Closing begins at this time, ktime ns.
    Asked(u64),
    /// Closing began at the first time; breakpoints are gone at the second, ktime ns.
    Closing(u64, u64),
    /// They are gone: when closing began, and when it ended, ktime ns.
    Gone(u64, u64),
}

/// Links that were made together.
#[derive(Debug, Clone)]
pub struct Links {
    /// The class that they are registered under.
    pub leader: ClassId,
    /// All classes on them.
    pub members: Vec<ClassId>,
    /// When they were there, ktime ns.
    pub made_ns: u64,
    /// Where they stand.
    pub state: LinkState,
    /// Whose quota was used up first, and when, ktime ns.
    pub tripped: Option<(ClassId, u64)>,
}

/// Classes whose links are to be made together.
#[derive(Debug, Clone)]
pub struct Group {
    /// Of which kind their windows are.
    pub kind: WindowKind,
    /// Which.
    pub classes: Vec<ClassId>,
    /// Which asking.
    pub number: u64,
    /// Until when it waits where links cannot be made now, ktime ns.
    pub patient_until_ns: u64,
    /// What comes after it waits until one of these has used up its quota, for so long at most, ns.
    pub alone: Option<(Vec<ClassId>, u64)>,
    /// Its links are not to be expected again.
    pub once: bool,
}

/// Links that are being made.
#[derive(Debug, Clone)]
pub struct Flight {
    /// For whom.
    pub group: Group,
    /// When the breakpoints are in the code, when the links are made, and when the agent hears of it, ktime ns.
    pub times_ns: (u64, u64, u64),
    /// The links are there: base counters and CPU time of the windows.
    pub made: Option<(Vec<Counters>, u64)>,
    /// They are not wanted any more.
    pub is_cancelled: bool,
    /// Hits that were turned away raised the alarm before the gates were opened.
    pub is_alarmed: bool,
    /// Those that the kernel refuses.
    pub refused: Vec<ClassId>,
    /// Quotas of the request.
    pub quotas: Vec<u64>,
}

/// The sampler.
#[derive(Debug, Clone, Default)]
pub struct Sampler {
    /// CPU time from one sample to the next, ns; 0: none is taken.
    pub period_ns: u64,
    /// None is taken for a while.
    pub is_paused: bool,
    /// Samples of the target so far.
    pub samples: u64,
    /// CPU time that they stand for, ns.
    pub cpu_ns: u64,
    /// Not told yet.
    pub new: u64,
    /// Of other processes so far.
    pub foreign: f64,
    /// Threads that have an event.
    pub threads: usize,
    /// One event per CPU.
    pub per_cpu: bool,
    /// Part of a sample that is left over.
    pub carry: f64,
}

/// What is to be attached.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Groups that wait.
    pub queue: VecDeque<Group>,
    /// What is being made.
    pub flight: Option<Flight>,
    /// Classes of which one is to trip before the next link is made, and until when, ktime ns.
    pub alone: Option<(Vec<ClassId>, u64)>,
    /// No look before, ktime ns.
    pub retry_ns: u64,
    /// What became of what was asked for.
    pub outcomes: Vec<Outcome>,
    /// Links made and closed since the last interval, and those of them that are not to be expected again.
    pub links: (u64, u64),
    /// Makings that have begun so far.
    pub begun: u64,
    /// All links were closed at once: none may be made before they are gone, or children keep their breakpoints.
    pub must_be_clear: bool,
}

/// What the target has done.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// A launched target does not run yet.
    pub is_held: bool,
    /// CPU time used, ns.
    pub cpu_ns: f64,
    /// By itself, ns.
    pub own_ns: f64,
    /// Context switches.
    pub switches: f64,
}

/// The search for functions.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Also by samples; when the answer is there, ktime ns.
    pub wanted: Option<(bool, u64)>,
    /// Modules came or went.
    pub is_dirty: bool,
    /// The time of the last look at modules, s.
    pub looked_s: f64,
    /// When switches were read last, and how many there were, ktime ns.
    pub switches: (u64, u64),
}
