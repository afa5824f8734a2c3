//! What the agent is to do. It decides nothing.

use crate::class::ClassId;
use crate::clients::trace::planning::Planned;
use crate::cost::Rests;
use crate::recording::{ChangeKind, LedgerRow, MeasuredOverhead, WindowKind};
use crate::run::order::operations::OperationOrder;
use crate::run::order::{Ending, Purpose};

/// Classes that are to be attached, of one kind of window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// Which asking it is: whatever becomes of its classes carries this number.
    pub number: u64,
    /// Of which kind their windows are.
    pub kind: WindowKind,
    /// Which, with the hits that each may take, and what for.
    pub wanted: Vec<(ClassId, u64, Purpose)>,
    /// Their links are not to be expected again.
    pub once: bool,
    /// How a survey wants its links.
    pub survey: Option<SurveyLinks>,
}

/// How a survey wants its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SurveyLinks {
    /// All share a link, or as few as their modules need; else each gets its own.
    pub together: bool,
    /// What is asked for after them waits until one of them has used up its quota, for so long at most, ns.
    pub alone_ns: Option<u64>,
    /// They wait for their turn until this time, ktime ns.
    pub until_ns: u64,
}

/// One command.
#[derive(Debug, Clone)]
pub enum Command {
    /// Attach classes that are off when their turn comes.
    Attach(Attach),
    /// End the window of a class and of those that share its links.
    Close(ClassId, Ending),
    /// End all windows, and give up what waits to be attached.
    CloseAll(Ending),
    /// Windows of the survey that are not open yet are not opened any more; links that are being made are closed.
    GiveUpSurvey,
    /// Hits that an open class may take from now on.
    Quota(ClassId, u64),
    /// Samples show the class and no call of it begins: it is not planned with.
    Dormant(ClassId),
    /// A class cannot be attached: why.
    Refuse(ClassId, String),
    /// It gets no return link any more, because of this: its ends are seen at exit sites from now on, or not at all.
    NoReturnLink(ClassId, String),
    /// What links took until here is not to be expected again.
    LinksOnce,
    /// Look for functions that were named and have no class yet. The answer is [`super::Input::Found`].
    Find {
        /// Also for those that samples show.
        discover: bool,
    },
    /// Modules are to be looked at again: nothing may be attached now.
    LookAgain,
    /// Look at threads: events for those that have none.
    LookAtThreads,
    /// Hits are counted by thread, too, or no longer.
    CountByThread(bool),
    /// Sample once per so much CPU time of the target, ns; 0: not at all.
    Period(u64),
    /// No samples until [`Command::ResumeSampling`].
    PauseSampling,
    /// Samples as before.
    ResumeSampling,
    /// How the target rests, which is in the prices of all classes from now on.
    Rests(Rests),
    /// Samples come from one event per CPU from now on; what is said of it.
    SampleCpus(String),
    /// What only operations order.
    Operation(OperationOrder),
    /// These processes are not looked at any more: the kernel need not tell of them, and the agent lets its bindings to them go.
    LetGo(Vec<u32>),
    /// A plan was made: its number, why, and what it is.
    Planned(u32, String, Box<Planned>),
    /// Rows of the ledger.
    Ledger(Vec<LedgerRow>),
    /// The metric was found: the system call of this number.
    Metric(usize),
    /// The comparison of the overhead is over: its result, if there is one. Nothing is counted for it any more.
    Measured(Option<Box<MeasuredOverhead>>),
    /// The run began so much later than was thought, ns.
    Later(u64),
    /// Tell the user.
    Note(String),
    /// Tell the user with `--verbose`.
    Detail(String),
    /// What people see while it goes on.
    Progress(String),
    /// A warning of the report.
    Warn(String),
    /// Something was not observed: what, and why.
    NotObserved(String, String),
    /// An entry in the log of the recording.
    Change(ChangeKind, Option<ClassId>, String),
}
