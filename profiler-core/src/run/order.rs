//! What a run has done: the agent executes orders and decides nothing.

pub mod operations;

use crate::class::ClassId;
use crate::recording::{ChangeKind, WindowKind};
use operations::OperationOrder;

/// What a class is attached for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The survey, for a window of so many ns.
    Survey(u64),
    /// The plan traces it.
    Trace,
    /// A burst of the plan, of so many ns.
    Burst(u64),
    /// A trial of what was stopped.
    Trial,
    /// Operations.
    Operation,
    /// The progress metric.
    Metric,
    /// A further activity, by its number.
    Activity(u8),
    /// A reference, on the link of a function.
    Reference,
}

/// How the windows of a class end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Calls in flight are watched to their end, for a while.
    Drain,
    /// Calls in flight are not waited for.
    Soon,
    /// The links go at once, whoever has to wait for it: they are unsafe, or in the way.
    AtOnce,
}

/// One order.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Attach a class that is off when its turn comes, with a quota in hits.
    Open {
        /// Which.
        class: ClassId,
        /// Of which kind its window is.
        kind: WindowKind,
        /// Hits that it may take.
        quota: u64,
        /// What for.
        purpose: Purpose,
    },
    /// Attach classes that are off for windows of a survey.
    OpenSurvey {
        /// Which, with the hits that each may take and the length of its window, ns.
        windows: Vec<(ClassId, u64, u64)>,
        /// They share a link, or as few as their modules need; else each gets its own.
        together: bool,
        /// What is asked for after them waits until one of them has used up its quota, for so long at most, ns.
        alone_ns: Option<u64>,
        /// A survey has no later: they wait for their turn until this time, ktime ns.
        until_ns: u64,
    },
    /// Windows of the survey that are not open yet are not opened any more; links that are being made are closed.
    GiveUpSurvey,
    /// Samples show the class and no call of it begins: it is not planned with.
    Dormant(ClassId),
    /// Attach again what was taken off for a while, with its quotas, as far as somebody still wants it.
    Restore(Vec<(ClassId, u64)>),
    /// End the window of a class and of those that share its links.
    Close(ClassId, Ending),
    /// End all windows, and give up what waits to be attached.
    CloseAll(Ending),
    /// Hits that an open class may take from now on.
    Quota(ClassId, u64),
    /// Sample once per so much CPU time of the target, ns; 0: not at all.
    Period(u64),
    /// No samples until [`Order::ResumeSampling`].
    PauseSampling,
    /// Samples as before.
    ResumeSampling,
    /// What operations record would lack calls from now on: recording ends until all of their functions are back.
    HoldOperations,
    /// Links are taken off in the middle of a window of the comparison: the window does not count.
    VoidComparison,
    /// These processes are not looked at any more: the kernel need not tell of them, and the agent lets its bindings to them go.
    LetGo(Vec<u32>),
    /// Hits, samples and switches cost this many times what was calibrated.
    Prices(f64),
    /// The budget is this many times smaller than the user's.
    CutBudget(f64),
    /// A new plan is wanted; why.
    Replan(Option<String>),
    /// What only operations need.
    Operation(OperationOrder),
    /// Tell the user.
    Note(String),
    /// Tell the user with `--verbose`.
    Detail(String),
    /// A warning of the report.
    Warn(String),
    /// Something was not observed: what, and why.
    NotObserved(String, String),
    /// An entry in the log of the recording.
    Change(ChangeKind, Option<ClassId>, String),
}
