//! What a run is told.

use crate::class::{ClassId, SiteClass};
use crate::clients::children::{Event, Look};
use crate::clients::metric::ProbeHits;
use crate::clients::overhead::Reading;
use crate::clients::survey::Links;
use crate::clients::trace::client::EndedWindow;
use crate::clients::trace::timed;
use crate::recording::{HistogramRow, WindowRow};
use crate::run::outcome::Outcome;
use crate::run::threads::ThreadUse;
use crate::run::view::ClassView;

/// What a step needs of the view beside the time and the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sees {
    /// Nothing.
    Nothing,
    /// The classes, with their counters as last read.
    Classes,
    /// The classes, with the counters of those that have links, or had them since the last time, as they are now.
    Counters,
}

/// What a step of the operations sees of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationsLook {
    /// Nothing new.
    Nothing,
    /// Where their classes stand.
    Classes,
    /// The same, and what the client wants beside it.
    Turn,
    /// What screens have counted.
    Screens,
    /// Everything.
    Revision,
    /// Counters of classes of operations, after the last hit.
    Counts,
}

/// Why return links have to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// From now on nobody knows whether they are safe. They come back: a window of the comparison does not count.
    Begins,
    /// It is not known yet; these were on their way when that began.
    GoesOn,
    /// They are not safe: why.
    Unsafe(String),
}

/// One thing that a run is told.
#[derive(Debug, Clone)]
pub enum Input {
    /// What became of classes that were to be attached.
    Outcomes(Vec<Outcome>),
    /// Windows have ended with their links.
    Ended(Vec<Ended>),
    /// Windows whose time is over are to be closed.
    Clocks,
    /// What the kernel told of processes. `linked`: links are there.
    Told {
        /// In its order.
        events: Vec<Event>,
        /// Links are there.
        linked: bool,
    },
    /// Records of births were lost: what was found of the processes that the kernel watches and the run does not know.
    Lost(Look),
    /// A turn of the loop: what was found of the children that are looked at.
    Children(Look),
    /// An interval of the ledger is over.
    Interval(Box<Interval>),
    /// Hits by thread, as [`super::Run::wants_threads`] has asked for them.
    Threads(ThreadHits),
    /// Threads and switches, once a second.
    Slow(SlowLook),
    /// New classes, hottest first, each with the price class of its entry site.
    Found(Vec<(ClassId, SiteClass)>),
    /// Modules came or went, and what is needed of them has been read.
    Modules,
    /// Return links have to go. What is inside operations may be among them.
    UnsafeLinks {
        /// Classes that have one.
        classes: Vec<ClassId>,
        /// Why.
        doubt: Doubt,
    },
    /// The phases go on. What of a survey is attached.
    Phases(Links),
    /// The comparison goes on: what it asked for was read, where it could be.
    Compare(Option<Reading>),
    /// The metric is counted.
    Count(Counted),
    /// Operations go on.
    Operations,
    /// The policy of operations is asked; [`Input::Operations`] comes next.
    Revision,
    /// A launched program is held: what is named and mapped is to be attached.
    BeforeStart,
    /// The run begins now: a launched program is let go, or all that was named is attached.
    Begins,
    /// The run ends: everything will be detached.
    Ends,
    /// Everything is detached, or nobody waits any longer. When the run ended, ktime ns.
    Over {
        /// When the run ended, ktime ns.
        end_ns: u64,
    },
}

/// A window that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its row.
    pub row: WindowRow,
    /// Which asking its links were made for.
    pub number: u64,
    /// The breaker ended it, through the quota of this very class.
    pub tripped_itself: bool,
    /// When the last of its links began to go, ktime ns: calls that are open were watched until then.
    pub watched_ns: u64,
    /// When the last of its links was gone, ktime ns.
    pub closed_ns: u64,
    /// How long before that it had been made, ns.
    pub age_ns: u64,
    /// Grace periods were short meanwhile.
    pub expedited: bool,
    /// What is to be said of a slow answer of the breaker.
    pub remark: Option<String>,
    /// Durations of all its calls so far, not corrected, where they were asked for by name and the kernel keeps them.
    pub durations: Vec<HistogramRow>,
    /// The class, with its counters as they are now.
    pub class: ClassView,
}

impl Ended {
    /// As the client that traces is told of it.
    #[must_use]
    pub fn of_trace(&self) -> EndedWindow<'_> {
        EndedWindow {
            row: &self.row,
            tripped_itself: self.tripped_itself,
            of: &self.class,
            median: timed::median(&self.durations),
        }
    }
}

/// What an interval of the ledger was like.
#[derive(Debug, Clone, Default)]
pub struct Interval {
    /// CPU time that the target has used so far, ns.
    pub cpu_ns: u64,
    /// CPU time that the agent has used so far, ns; 0: not known.
    pub agent_cpu_ns: u64,
    /// Samples taken since the last interval.
    pub samples: u64,
    /// Of those, the ones in traps that are charged as hits, by class where that can be told.
    pub in_traps: Vec<(Option<ClassId>, u64)>,
    /// Samples of other processes so far.
    pub foreign_samples: u64,
    /// Links made and closed since the last interval.
    pub links: u64,
    /// The same, of links that are not to be expected again.
    pub links_once: u64,
    /// What was found of the children that are looked at.
    pub children: Look,
    /// What the metric's probe in the kernel has counted so far.
    pub probed: Option<ProbeHits>,
}

/// Hits of classes by thread.
#[derive(Debug, Clone, Default)]
pub struct ThreadHits {
    /// Which classes, as they were asked for.
    pub classes: Vec<ClassId>,
    /// For each class and each thread, in this order: what its counter counts.
    pub counts: Vec<u64>,
}

/// A look at threads.
#[derive(Debug, Clone, Default)]
pub struct SlowLook {
    /// Threads that are alive; `None`: they could not be read.
    pub tids: Option<Vec<u32>>,
    /// Context switches of the target since the last look, and the time between both, ns; `None`: they could not be read.
    pub switches: Option<(u64, u64)>,
    /// What each thread used of late.
    pub uses: Vec<ThreadUse>,
}

/// What counting the metric needs to know.
#[derive(Debug, Clone, Default)]
pub struct Counted {
    /// Hits of the target that the kernel's probe has counted, where they are asked for.
    pub probed: Option<u64>,
    /// Hits that the quotas have let in, of the classes that are asked for.
    pub admitted: Vec<(ClassId, u64)>,
    /// Why classes that count cannot be attached.
    pub refused: Vec<(ClassId, String)>,
}
