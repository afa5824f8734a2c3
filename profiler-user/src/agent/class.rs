//! A class while it is watched: what it is, how it is attached, what has been counted.

use crate::agent::class_words::ClassWords;
use crate::agent::known_callers::{Callers, ReturnGroup};
use crate::agent::lost_arguments::LostArguments;
pub use crate::agent::shares::FunctionKey;
use crate::governor::Counted;
use crate::inspect::mappers::FileKey;
use crate::inspect::{self, Function, Prototype, SiteChoice, WantedArguments};
use crate::prober::{self, ClassControl, ClassCounters, ClassKind, HistogramLease, LinkKind, Site};
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::cost::Price;
use profiler_core::recording::{ClassRow, WindowKind};
pub use profiler_core::run::order::{Ending, Purpose};
use profiler_core::run::view::ClassPrices;
use std::path::PathBuf;

/// Where the calls of a class are seen to begin.
#[derive(Debug, Clone, Copy)]
pub struct EntrySite {
    /// Offset in the file.
    pub offset: u64,
    /// Virtual address in the file.
    pub address: u64,
    /// Words between the stack pointer there and the return address.
    pub slot: i16,
    /// Price class.
    pub class: SiteClass,
    /// Argument registers that still hold what the caller passed, as [`inspect::Site::arguments`].
    pub arguments: u8,
}

impl EntrySite {
    /// The site that inspection chose.
    #[must_use]
    pub fn at(site: &inspect::Site) -> Self {
        Self {
            offset: site.file_offset,
            address: site.vaddr,
            slot: site.return_slot.unwrap_or(prober::SLOT_UNKNOWN),
            class: site.class,
            arguments: site.arguments,
        }
    }
}

/// A function that can be attached to, as inspection found it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Which function.
    pub key: FunctionKey,
    /// Demangled name.
    pub name: String,
    /// Name in the symbol table.
    pub symbol: String,
    /// Other symbols at its address.
    pub aliases: Vec<String>,
    /// Module as the target sees it.
    pub module: String,
    /// Module as the agent can open it.
    pub module_path: PathBuf,
    /// The module's file as `/proc/PID/maps` names it; `None`: it is not mapped now.
    pub file: Option<FileKey>,
    /// Build ID in hex; empty if there is none.
    pub build_id: String,
    /// Size, bytes.
    pub size: u64,
    /// Where its calls are seen to begin.
    pub entry: EntrySite,
    /// USDT probe: offset in the file of the semaphore that is raised while it is attached; 0: none.
    pub semaphore_offset: u64,
    /// USDT probe that begins an operation: where the argument lies that names the class, and the one behind it, as
    /// [`ClassControl::argument`]; 0 for functions.
    pub arguments: [u32; 2],
    /// Ways out: (offset, words to the return address, price class); or why they are not known.
    pub exits: Result<Vec<(u64, i16, SiteClass)>, String>,
    /// Remarks for the report.
    pub notes: Vec<String>,
    /// It is no function but a pair of sites that measures what lies between the time stamps of this class.
    pub stamps_of: Option<ClassId>,
}

/// What is wanted of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    /// What is kept.
    pub kind: RecordKind,
    /// Information weight.
    pub weight: f64,
    /// `--trace`.
    pub must: bool,
    /// Named by the user rather than found in the samples.
    pub named: bool,
    /// Named by what is to be kept of it (`--count`, `--latency`, `--record`): it is watched for that whatever else it is to operations.
    pub by_kind: bool,
    /// `--return-links`: allowed although inspection says no.
    pub force_return_link: bool,
    /// Which argument registers its entry site is to have.
    pub arguments: WantedArguments,
}

/// What a class is to operations. Such classes are neither planned nor surveyed; `profiler_core::clients::operations` keeps them attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationRole {
    /// A function that is this operation.
    Whole(u32),
    /// It begins this operation.
    Begin(u32),
    /// It ends this operation.
    End(u32),
    /// It is counted, and timed if it can be, inside recorded operations.
    Inner {
        /// What a call adds to the measure, as [`ClassControl::measure`].
        measure: u32,
        /// Its calls are inner calls; else it is there for the measure alone.
        counts: bool,
    },
}

/// What is to be opened.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Of which kind the window will be.
    pub kind: WindowKind,
    /// Its quota.
    pub quota: u64,
    /// What for.
    pub purpose: Purpose,
    /// Which asking it was: what waits of an earlier one is not opened.
    pub number: u64,
}

/// Where the links of a class stand.
#[derive(Debug)]
pub enum LinkState {
    /// Nothing is attached.
    Off,
    /// It is to be attached when its turn comes.
    Waiting(Pending),
    /// Its link is being made; and how it is to be closed then, where nobody wants it any more.
    Opening(Pending, Option<Ending>),
    /// A window is open.
    Open(OpenWindow),
    /// The links are being closed; the window ends with them.
    Closing(OpenWindow, Closing),
}

/// A window that is open.
#[derive(Debug, Clone)]
pub struct OpenWindow {
    /// Why it was opened.
    pub kind: WindowKind,
    /// First instant at which a hit was counted, ktime ns.
    pub start_ns: u64,
    /// When its gate opened, ktime ns: of a long window, rows are written piece by piece.
    pub opened_ns: u64,
    /// Counters at the start.
    pub base: ClassCounters,
    /// Counters when it was attached: of a long window, rows are written piece by piece.
    pub attached: ClassCounters,
    /// CPU time of the target at the start, ns.
    pub base_cpu_ns: u64,
    /// Quota at the start.
    pub quota: u64,
    /// Links that are registered with the governor under this class.
    pub links: usize,
    /// Class whose group the links belong to.
    pub group: ClassId,
    /// Return addresses that have a site, where calls are timed at those.
    pub callers: Vec<u64>,
    /// Which asking they were made for.
    pub number: u64,
    /// It is one of a reference, on the link of its group's class.
    pub is_reference: bool,
    /// What it and those that are traced beside it were called when it began, where they are counted.
    pub beside: Option<Counted>,
}

/// A window that ends.
#[derive(Debug, Clone)]
pub struct Closing {
    /// Last instant at which a hit was counted, ktime ns.
    pub end_ns: u64,
    /// CPU time of the target at the end, ns.
    pub end_cpu_ns: u64,
    /// Links of the group not closed yet.
    pub links_left: usize,
    /// The breaker ended it.
    pub tripped: bool,
    /// The links stay until the calls in flight have ended, at most until this time, ktime ns. `None`: they are being
    /// closed.
    pub draining_until_ns: Option<u64>,
}

/// The code of a class, as inspection knows it.
pub struct InspectedCode {
    /// The function.
    pub function: Function,
    /// Where it can be instrumented, and why not.
    pub sites: SiteChoice,
    /// Who calls it, where its calls are timed at return addresses, or could be.
    pub callers: Callers,
    /// Where its entry is probed when its calls are timed at return addresses. `None`: they cannot be, or it makes no sense.
    pub entry_for_returns: Option<inspect::Site>,
    /// Argument registers that are null in its records.
    pub lost_arguments: LostArguments,
    /// Argument registers that are parameters, or may be: where calls are recorded. `None`: that is not known.
    pub parameters: Option<u8>,
    /// Its parameters by debug information, where calls are recorded. `None`: that is not known.
    pub prototype: Option<Prototype>,
}

/// A class under watch.
pub struct LiveClass {
    /// From when to when its last window that is over was watched, ktime ns.
    pub last_span: (u64, u64),
    /// Index everywhere.
    pub id: ClassId,
    /// The function.
    pub candidate: Candidate,
    /// What is wanted.
    pub wish: Wish,
    /// What is kept: what was wished, or less where it cannot be had.
    pub kind: RecordKind,
    /// How its calls end.
    pub exit: ExitMode,
    /// What its hits cost.
    pub prices: ClassPrices,
    /// Words that are taken of its calls.
    pub words: ClassWords,
    /// Memory of its histogram.
    pub lease: Option<HistogramLease>,
    /// What it is to operations.
    pub role: Option<OperationRole>,
    /// Its code, which is looked at again before each attachment.
    pub code: InspectedCode,
    /// Attached or not.
    pub state: LinkState,
    /// Counters as last read.
    pub counters: ClassCounters,
    /// It counts the progress metric.
    pub counts_metric: bool,
    /// The survey saw no call begin although samples fall into it: entered before we came (`main`, a thread's
    /// loop). Nothing is to be gained by tracing it.
    pub dormant: bool,
    /// It could not be attached: why.
    pub refused: Option<String>,
}

impl LiveClass {
    /// Its calls are seen to begin at another site from now on.
    pub fn move_entry(&mut self, site: &inspect::Site) {
        self.candidate.entry = EntrySite::at(site);
        self.code.lost_arguments.add(self.candidate.entry.arguments);
    }

    /// What is to be said of the arguments in its records.
    fn argument_note(&self) -> Option<String> {
        let recorded = self.kind == RecordKind::Record && self.role.is_none();
        recorded.then(|| self.code.lost_arguments.note()).flatten()
    }

    /// Price of a whole call.
    #[must_use]
    pub fn tau(&self) -> Price {
        self.prices.hit.plus(self.prices.exit)
    }

    /// Price of a whole call where the target runs for `gap_s` s of CPU time from one call to the next, ns.
    #[must_use]
    pub fn tau_ns(&self, gap_s: f64) -> f64 {
        let traps = if self.exit == ExitMode::None { 1.0 } else { 2.0 };
        self.tau().ns + traps * self.prices.cold_ns(gap_s)
    }

    /// Price of its entry alone, likewise, ns.
    #[must_use]
    pub fn entry_ns(&self, gap_s: f64) -> f64 {
        self.prices.hit.ns + self.prices.cold_ns(gap_s)
    }

    /// The kind of link that it needs. The survey only counts.
    #[must_use]
    pub fn link_kind(&self, window: WindowKind) -> LinkKind {
        match (self.exit, self.kind) {
            (ExitMode::ReturnLink, _) if matches!(self.role, Some(OperationRole::Whole(_))) => {
                LinkKind::OperationReturn
            }
            _ if matches!(self.role, Some(OperationRole::Whole(_))) => LinkKind::OperationExits,
            _ if matches!(self.role, Some(OperationRole::Begin(_))) => LinkKind::OperationBegin,
            _ if matches!(self.role, Some(OperationRole::End(_))) => LinkKind::OperationEnd,
            _ if window == WindowKind::Survey => LinkKind::Count,
            (ExitMode::ReturnLink, _) => LinkKind::ReturnPair,
            (ExitMode::ExitSites, _) => LinkKind::ExitPair,
            (ExitMode::ReturnSites, _) => LinkKind::ReturnSites,
            (ExitMode::None, RecordKind::Record) => LinkKind::Record,
            (ExitMode::None, RecordKind::Step) => LinkKind::Step,
            (ExitMode::None, _) => LinkKind::Count,
        }
    }

    /// In such a window it has a return link, and nobody has taken the risk.
    #[must_use]
    pub fn needs_safe_stacks(&self, window: WindowKind) -> bool {
        let kind = self.link_kind(window);
        matches!(kind, LinkKind::ReturnPair | LinkKind::OperationReturn) && !self.wish.force_return_link
    }

    /// Its sites in its own module. See [`LiveClass::return_groups`] for those in callers.
    #[must_use]
    pub fn sites_of(&self, window: WindowKind) -> Vec<Site> {
        let c = &self.candidate;
        let mut sites = vec![Site {
            slot_delta: c.entry.slot,
            reference_counter: c.semaphore_offset,
            ..Site::entry(self.id, c.entry.offset)
        }];
        if self.exit == ExitMode::ExitSites
            && window != WindowKind::Survey
            && let Ok(exits) = &c.exits
        {
            sites.extend(
                exits
                    .iter()
                    .map(|(offset, slot, _)| Site { slot_delta: *slot, ..Site::exit(self.id, *offset) }),
            );
        }
        sites
    }

    /// Its windows of this kind learn who calls it.
    #[must_use]
    pub fn learns_callers(&self) -> bool {
        self.code.entry_for_returns.is_some()
    }

    /// Its sites in callers for such a window, by file.
    #[must_use]
    pub fn return_groups(&self, window: WindowKind) -> Vec<ReturnGroup> {
        if self.exit != ExitMode::ReturnSites || window == WindowKind::Survey {
            return Vec::new();
        }
        self.code.callers.groups(self.id, &[])
    }

    /// What the kernel programs shall do on a hit.
    #[must_use]
    pub fn control(&self, window: WindowKind) -> ClassControl {
        // Known from the survey, callers have their sites when the first window that times calls is opened.
        let survey = window == WindowKind::Survey;
        let learns = if survey { self.learns_callers() } else { self.exit == ExitMode::ReturnSites };
        let learn = if learns { prober::FLAG_LEARN_CALLERS } else { 0 };
        // OK because prices are far below 4 s, and never negative.
        let ns = |price: Price| price.ns.clamp(0.0, 4e9) as u32;
        if survey {
            // What the survey takes inside a call that is timed is none of that call's time. It reads no words; what else the class's own program does on a hit is charged as well, some 60 to 110 ns more than a count takes.
            let hit_cost_ns = ns(self.prices.hit).saturating_sub(self.words.begin_ns as u32);
            return ClassControl { flags: learn, hit_cost_ns, ..ClassControl::new(ClassKind::Count) };
        }
        let kind = match self.kind {
            RecordKind::Count => ClassKind::Count,
            RecordKind::Latency => ClassKind::Latency,
            RecordKind::Record => ClassKind::Record,
            RecordKind::Step => ClassKind::Step,
        };
        let timed = self.exit != ExitMode::None;
        let recorded = prober::FLAG_ARGUMENTS | prober::FLAG_CONTEXT;
        let mut flags = learn | if self.kind == RecordKind::Record { recorded } else { 0 };
        let mut lists = (0, 0);
        if self.role.is_none() && self.kind == RecordKind::Record {
            lists = self.words.lists(self.code.lost_arguments.set());
            flags |= if lists == (0, 0) { 0 } else { prober::FLAG_WORDS };
        }
        let (mut operation, mut measure) = (prober::NO_OPERATION, 0);
        match self.role {
            None => {}
            Some(OperationRole::Whole(n) | OperationRole::Begin(n) | OperationRole::End(n)) => operation = n,
            Some(OperationRole::Inner { measure: adds, counts }) => {
                measure = adds;
                flags |= prober::FLAG_INSIDE | if counts { prober::FLAG_INNER_CALL } else { 0 };
            }
        }
        ClassControl {
            flags,
            words_begin: lists.0,
            words_end: lists.1,
            operation,
            measure,
            argument: self.candidate.arguments[0],
            argument_next: self.candidate.arguments[1],
            histogram: self.lease.as_ref().map_or(prober::NO_HISTOGRAM, HistogramLease::first_slot),
            hit_cost_ns: ns(self.prices.hit),
            return_cost_ns: ns(self.prices.exit),
            own_cost_ns: if timed { ns(self.prices.stamps) } else { 0 },
            ..ClassControl::new(kind)
        }
    }

    /// Its row in table `classes`.
    #[must_use]
    pub fn row(&self) -> ClassRow {
        let c = &self.candidate;
        let at_returns = self.exit == ExitMode::ReturnSites;
        let callers = if at_returns { self.code.callers.notes() } else { Vec::new() };
        ClassRow {
            class_id: self.id.0,
            name: c.name.clone(),
            symbol: c.symbol.clone(),
            aliases: c.aliases.clone(),
            module: c.module.clone(),
            build_id: c.build_id.clone(),
            address: c.key.address,
            size_bytes: c.size,
            site: c.entry.address,
            site_class: c.entry.class,
            exit_mode: self.exit,
            kind: self.kind,
            weight: self.wish.weight,
            tau_ns: self.tau().ns,
            notes: c.notes.iter().cloned().chain(self.argument_note()).chain(callers).collect(),
            stamps_of: c.stamps_of.map(|of| of.0),
            named: Some(self.wish.named && !self.counts_metric),
            parameters: self.code.parameters.map(u32::from),
            prototype: self.code.prototype.as_ref().map(ToString::to_string),
            // What the kernel adds to the nested cost of each call: whole ns, as in `control`.
            stamps_ns: (self.exit != ExitMode::None).then(|| self.prices.stamps.ns.clamp(0.0, 4e9).floor()),
        }
    }

    /// Its calls are timed in such a window.
    #[must_use]
    pub fn is_timed(&self, window: WindowKind) -> bool {
        self.exit != ExitMode::None && window != WindowKind::Survey
    }

    /// A window is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, LinkState::Open(_))
    }

    /// From when to when the last window was watched, ktime ns; to `now` if it is open.
    #[must_use]
    pub fn span(&self, now: u64) -> (u64, u64) {
        match &self.state {
            LinkState::Open(window) => (window.opened_ns, now),
            LinkState::Closing(window, closing) => (window.opened_ns, closing.end_ns),
            LinkState::Off | LinkState::Waiting(_) | LinkState::Opening(..) => self.last_span,
        }
    }

    /// The planner does not know it: it serves operations or the metric, or is a pair of time stamps.
    #[must_use]
    pub fn is_apart(&self) -> bool {
        self.role.is_some() || self.counts_metric || self.candidate.stamps_of.is_some()
    }

    /// It begins or ends operations.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.role.is_some_and(|role| !matches!(role, OperationRole::Inner { .. }))
    }

    /// Its window is over, and calls in flight are still watched to their end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        matches!(&self.state, LinkState::Closing(_, closing) if closing.draining_until_ns.is_some())
    }

    /// A window may be opened: nothing is attached, and nothing is known that forbids it.
    #[must_use]
    pub fn may_open(&self) -> bool {
        self.is_off() && self.refused.is_none()
    }

    /// Nothing is attached, nothing is being closed, and nothing is to be attached.
    #[must_use]
    pub fn is_off(&self) -> bool {
        matches!(self.state, LinkState::Off)
    }

    /// It is to be attached: its turn has not come, or its link is being made.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        matches!(self.state, LinkState::Waiting(_) | LinkState::Opening(..))
    }

    /// It has links, or will have them in a moment.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        !matches!(self.state, LinkState::Off | LinkState::Waiting(_))
    }
}
