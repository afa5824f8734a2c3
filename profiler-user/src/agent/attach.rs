//! Opening and closing windows: the join of class table, prober and governor.
//!
//! A window is opened and closed with the *gate* (the quota), at instants known to the microsecond; the links are made
//! before and closed after it. Hits outside the window are gated: not counted as calls, but charged.
//!
//! ```text
//! open:  the opener's thread: control ─ quota 0 ─ begin ─ attach (ms) ─ register ─ [start] ─ quota q
//! close: [end] ─ quota 0 ─ drain ─ release ─ … closer closes the link … ─ counters, open calls ─ row
//! trip:  the kernel takes the last hit [end] ─ governor closes the link ─ counters ─ row
//! ```
//!
//! *Draining*: a call belongs to the window in which it began. At the end of a window of timed classes the links stay until
//! the calls in flight have ended, at most for `DRAIN_NS`, and only while what is turned away costs little; it is charged like
//! any hit. Calls that are still open when the links are gone
//! are recorded with the time that they had taken so far.
//!
//! Classes belong to targets (`attach/targets.rs`). A run has one, which [`Attachments::new`] is given.

mod answer;
mod asked;
mod beside;
mod counted;
mod ending;
mod extend;
mod memory;
mod opener;
mod others;
mod queue;
mod targets;
mod watched;

use super::class::{LinkState, LiveClass, OpenWindow};
use super::clock::now_ns;
use super::window::{closing, counters_at, row};
use crate::governor::Governor;
use crate::prober::{ClassCounters, FLAG_BY_THREAD, Kernel, LinkKind};
use crate::target::Target;
use profiler_core::class::ClassId;
use profiler_core::recording::{BesideRow, OpenCallRow, SlowestAnswer, WindowKind, WindowRow};
use profiler_core::run::callers::ends_quota;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

pub use answer::Answer;
use answer::Answers;
use asked::Asked;
pub use asked::{Group, NotOpened, Outcome};
use beside::Beside;
pub use counted::counting;
pub use opener::{Gone, Opener};
use others::ForkAccount;
pub use targets::AddTargetError;
use targets::Targets;
pub use watched::{TargetId, WatchedTarget};

/// Classes that get a link of their own when many are attached at once; the others share.
pub(super) const OWN_LINKS: usize = 24;
/// A window that is open longer is written in pieces of about this length, ns: a killed agent loses no more, and how much
/// the pieces differ says how sure a rate is.
const PIECE_NS: u64 = 900_000_000;
/// Functions on a shared link: all of its hits stop within 13 ms of its closing.
const SHARED_LINK: usize = 200;

/// A window that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its row.
    pub row: WindowRow,
    /// The breaker ended it, through the quota of this very class.
    pub tripped_itself: bool,
    /// When the last of its links began to go: calls that are open were watched until then, ktime ns.
    pub watched_ns: u64,
    /// When the last of its links was gone, ktime ns.
    pub closed_ns: u64,
    /// How long before that it had been made, ns.
    pub age_ns: u64,
    /// Grace periods were short meanwhile.
    pub expedited: bool,
    /// How late the breaker took off the last of its links, if it did.
    pub answer: Option<Answer>,
    /// Its calls that had not ended.
    pub open_calls: Vec<OpenCallRow>,
    /// Calls in it, and of classes that were traced meanwhile.
    pub beside: Vec<BesideRow>,
    /// Which asking its links were made for.
    pub number: u64,
    /// The counters of its class at the end.
    pub counters: ClassCounters,
    /// What they had counted since its gate was opened: of a long window, more than its row.
    pub seen: ClassCounters,
}

/// All classes and their links.
pub struct Attachments {
    /// Goes first: nothing is made that nobody guards.
    opener: Opener,
    kernel: Arc<Kernel>,
    governor: Governor,
    targets: Targets,
    classes: Vec<LiveClass>,
    /// What classes must know of others of their function, where there are others.
    beside: BTreeMap<ClassId, Beside>,
    answers: Answers,
    forks: ForkAccount,
    asked: Asked,
    /// The target that was served last by the opener.
    served: TargetId,
}

impl Attachments {
    /// Nothing attached, and one target, [`TargetId::FIRST`], which the kernel side knows already ([`Kernel::add_target`]).
    #[must_use]
    pub fn new(kernel: Arc<Kernel>, governor: Governor, opener: Opener, process: Arc<Target>) -> Self {
        let mut attachments = Self {
            opener,
            asked: Asked::default(),
            kernel,
            governor,
            targets: Targets::default(),
            classes: Vec::new(),
            beside: BTreeMap::new(),
            answers: Answers::default(),
            forks: ForkAccount::default(),
            served: TargetId::FIRST,
        };
        // OK because PIDs are positive.
        let pid = process.pid() as u32;
        // The watchdog has room for the first.
        let slot = attachments.guard(pid).ok().flatten();
        let others = attachments.forks.others_of(pid);
        attachments.targets.add(WatchedTarget::new(process, pid, slot, others));
        attachments
    }

    /// The classes, by id.
    #[must_use]
    pub fn classes(&self) -> &[LiveClass] {
        &self.classes
    }

    /// All classes, to be changed.
    pub fn classes_mut(&mut self) -> impl Iterator<Item = &mut LiveClass> {
        self.classes.iter_mut()
    }

    /// One class.
    ///
    /// # Panics
    /// The id is not of this run.
    #[must_use]
    pub fn class(&self, id: ClassId) -> &LiveClass {
        &self.classes[id.0 as usize]
    }

    /// One class.
    ///
    /// # Panics
    /// The id is not of this run.
    pub fn class_mut(&mut self, id: ClassId) -> &mut LiveClass {
        &mut self.classes[id.0 as usize]
    }

    /// Id of the next class to be added; `None` if the kernel tables are full.
    #[must_use]
    pub fn next_id(&self) -> Option<ClassId> {
        let id = u32::try_from(self.classes.len()).ok()?;
        (id < self.kernel.classes().max_classes()).then_some(ClassId(id))
    }

    /// Adds a class of the first target, whose id must be [`Attachments::next_id`].
    pub fn add(&mut self, class: LiveClass) {
        self.add_to(TargetId::FIRST, class);
    }

    /// Adds a class of a target, whose id must be [`Attachments::next_id`].
    pub fn add_to(&mut self, target: TargetId, class: LiveClass) {
        debug_assert_eq!(Some(class.id), self.next_id());
        let id = class.id;
        self.classes.push(class);
        self.targets.add_class(target);
        self.join(id);
    }

    /// The governor.
    #[must_use]
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The breaker's slowest answer so far; `None`: no quota was used up.
    #[must_use]
    pub fn slowest_answer(&self) -> Option<SlowestAnswer> {
        self.answers.slowest(self.governor.status().trips)
    }

    /// The kernel side.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Hits in a target are counted by thread as well from now on, or no longer. One with a single thread need not pay for it.
    pub fn count_by_thread(&mut self, target: TargetId, on: bool) {
        if std::mem::replace(&mut self.targets.get_mut(target).by_thread, on) == on {
            return;
        }
        let is_open = |c: &&LiveClass| c.is_open() && self.targets.of(c.id) == target;
        let open: Vec<ClassId> = self.classes.iter().filter(is_open).map(|c| c.id).collect();
        for id in open {
            self.adjust(id);
        }
    }

    /// Tells the programs what may change while a class is attached.
    fn adjust(&self, id: ClassId) {
        let flag = if self.targets.owner(id).by_thread { FLAG_BY_THREAD } else { 0 };
        let Beside { function, bounds } = self.beside_of(id);
        self.kernel.classes().adjust(id, |control| {
            control.flags = control.flags & !FLAG_BY_THREAD | flag;
            (control.function, control.bounds) = (function, bounds);
        });
    }

    /// Tells the programs what a hit of a class that is attached takes now.
    pub fn adjust_prices(&self, id: ClassId) {
        let class = self.class(id);
        let kind = match &class.state {
            LinkState::Open(window) | LinkState::Closing(window, _) => window.kind,
            LinkState::Waiting(pending) | LinkState::Opening(pending, _) => pending.kind,
            LinkState::Off => WindowKind::Trace,
        };
        let new = class.control(kind);
        self.kernel.classes().adjust(id, |control| {
            (control.hit_cost_ns, control.return_cost_ns) = (new.hit_cost_ns, new.return_cost_ns);
        });
    }

    /// Reads the counters of all classes that have links.
    pub fn read_counters(&mut self) {
        let table = self.kernel.classes().clone();
        for class in self.classes.iter_mut().filter(|class| class.is_linked()) {
            class.counters = table.counters(class.id);
        }
    }

    /// How classes that are off are put together on links, hottest class first: the first ones get links of their own.
    #[must_use]
    pub fn groups(&self, kind: WindowKind, wanted: &[(ClassId, u64)]) -> Vec<Vec<(ClassId, u64)>> {
        let own = wanted.len().min(OWN_LINKS);
        let mut groups: Vec<Vec<(ClassId, u64)>> = wanted[..own].iter().map(|w| vec![*w]).collect();
        // Bounds of operations, too: those of one may stay where those of another are detached.
        let (bounds, rest): (Vec<_>, Vec<_>) =
            wanted[own..].iter().copied().partition(|(id, _)| self.class(*id).is_bound());
        groups.extend(self.shared(kind, &rest));
        groups.extend(bounds.into_iter().map(|one| vec![one]));
        groups
    }

    /// The same for classes that share links: as few as there are targets, modules and kinds of links, and not too long ones.
    #[must_use]
    pub fn shared(&self, kind: WindowKind, wanted: &[(ClassId, u64)]) -> Vec<Vec<(ClassId, u64)>> {
        let mut shared: BTreeMap<(TargetId, PathBuf, u8), Vec<(ClassId, u64)>> = BTreeMap::new();
        for item in wanted {
            let class = self.class(item.0);
            let path = class.candidate.module_path.clone();
            let key = (self.targets.of(item.0), path, link_rank(class.link_kind(kind)));
            shared.entry(key).or_default().push(*item);
        }
        shared
            .into_values()
            .flat_map(|list| list.chunks(SHARED_LINK).map(<[_]>::to_vec).collect::<Vec<_>>())
            .collect()
    }

    /// Classes of a target with a return link that is there or being made, and that nobody has taken the risk for.
    #[must_use]
    pub fn classes_with_return_links(&self, target: TargetId) -> Vec<ClassId> {
        let open = |c: &&LiveClass| match &c.state {
            _ if self.targets.of(c.id) != target => false,
            LinkState::Open(window) | LinkState::Closing(window, _) => c.needs_safe_stacks(window.kind),
            LinkState::Opening(pending, _) => c.needs_safe_stacks(pending.kind),
            LinkState::Off | LinkState::Waiting(_) => false,
        };
        self.classes.iter().filter(open).map(|c| c.id).collect()
    }

    /// It cannot be attached for such a window now, and will be.
    #[must_use]
    pub fn is_held(&self, id: ClassId, kind: WindowKind) -> bool {
        self.targets.owner(id).holds_return_links() && self.class(id).needs_safe_stacks(kind)
    }

    /// Sets the hits that a class may take from now on that is open or will be.
    pub fn set_quota(&mut self, id: ClassId, hits: u64) {
        match &mut self.class_mut(id).state {
            LinkState::Open(window) => {
                window.quota = hits;
                let ends = ends_quota(hits);
                self.kernel.classes().set_ends_quota(id, i64::try_from(ends).unwrap_or(i64::MAX));
                self.kernel.classes().set_quota(id, i64::try_from(hits).unwrap_or(i64::MAX));
            }
            LinkState::Waiting(pending) | LinkState::Opening(pending, _) => pending.quota = hits,
            LinkState::Off | LinkState::Closing(..) => {}
        }
    }

    /// Rows of what the long windows have seen so far; they go on from there as if they had just been opened. What an
    /// agent has counted for hours must not go with it.
    pub fn cut(&mut self) -> Vec<WindowRow> {
        let cpu_ns = self.targets.cpu_ns();
        let table = self.kernel.classes().clone();
        let mut rows = Vec::new();
        for class in &mut self.classes {
            let LinkState::Open(window) = &class.state else { continue };
            let end_ns = now_ns();
            if window.kind != WindowKind::Trace || end_ns.saturating_sub(window.start_ns) < PIECE_NS {
                continue;
            }
            let window = window.clone();
            let end_cpu_ns = cpu_ns[self.targets.of(class.id).0 as usize];
            let (end_ns, counters) = counters_at(|| table.counters(class.id));
            let piece = row(class, &window, &closing(end_ns, end_cpu_ns, 0, false), &counters, false);
            // Calls that are open now end in a later piece.
            rows.push(WindowRow { open: 0, ..piece });
            class.state = LinkState::Open(OpenWindow {
                start_ns: end_ns,
                base: counters,
                base_cpu_ns: end_cpu_ns,
                ..window
            });
        }
        rows
    }

    /// Survey windows are open or being closed.
    #[must_use]
    pub fn surveying(&self) -> bool {
        self.classes.iter().any(|c| match &c.state {
            LinkState::Open(w) | LinkState::Closing(w, _) => w.kind == WindowKind::Survey,
            LinkState::Waiting(pending) | LinkState::Opening(pending, _) => {
                pending.kind == WindowKind::Survey
            }
            LinkState::Off => false,
        })
    }

    /// The quota last set for a class that is open or will be; 0 for others.
    #[must_use]
    pub fn quota(&self, id: ClassId) -> u64 {
        match &self.class(id).state {
            LinkState::Open(window) => window.quota,
            LinkState::Waiting(pending) | LinkState::Opening(pending, _) => pending.quota,
            LinkState::Closing(..) | LinkState::Off => 0,
        }
    }

    /// Links are there: being made, open or being closed.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.classes.iter().any(LiveClass::is_linked)
    }

    /// The breaker has taken the links of a group, or is about to, since they were made: what is open there may have ended unseen.
    #[must_use]
    pub fn is_tripped(&self, group: ClassId) -> bool {
        self.governor.table().is_tripped(group.0)
    }

    /// Windows are over whose links stay for a while.
    #[must_use]
    pub fn any_draining(&self) -> bool {
        self.classes.iter().any(LiveClass::is_draining)
    }

    /// Links are being closed.
    #[must_use]
    pub fn closing(&self) -> bool {
        self.classes.iter().any(|c| matches!(c.state, LinkState::Closing(..)))
    }
}

fn link_rank(kind: LinkKind) -> u8 {
    match kind {
        LinkKind::Count => 0,
        LinkKind::Record => 1,
        LinkKind::ExitPair => 2,
        LinkKind::ReturnPair => 3,
        LinkKind::ReturnSites => 9,
        LinkKind::OperationExits => 5,
        LinkKind::OperationReturn => 6,
        LinkKind::OperationBegin => 7,
        LinkKind::OperationEnd => 8,
        LinkKind::Step => 10,
        LinkKind::Empty | LinkKind::EmptyReturnPair => 4,
    }
}
