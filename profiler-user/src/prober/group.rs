//! What is attached together: sites, their roles, and the kind of link that holds them.

use profiler_core::class::ClassId;
use std::path::PathBuf;

/// What a group of sites is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// Entries only, counted.
    Count,
    /// Entries only, a record each.
    Record,
    /// Entries inside recorded operations only, a step each.
    Step,
    /// Calls with durations; ends are seen at exit sites, which the group lists.
    ExitPair,
    /// Calls with durations; ends are seen through return links: a session link (tier A), else a multi link on
    /// entries and one on returns, else uprobes and uretprobes. **Refused to targets that unwind** by the caller.
    ReturnPair,
    /// Calls with durations; ends are seen at return sites, in the callers. A group may hold entries, return sites, or both: callers lie in
    /// other modules, and come later. Calls are timed whose caller is armed ([`Kernel::arm_caller`](super::Kernel::arm_caller)).
    ReturnSites,
    /// A function that is an operation: begin at its entry, ends at exit sites.
    OperationExits,
    /// The same with ends seen through return links. **Refused to targets that unwind** by the caller.
    OperationReturn,
    /// Entries of a function that begins an operation.
    OperationBegin,
    /// Entries of a function that ends an operation.
    OperationEnd,
    /// Entries only, a program that does nothing (calibration, benchmarks).
    Empty,
    /// Entry and return, a program that does nothing.
    EmptyReturnPair,
}

/// Where in a call a site lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SiteRole {
    /// Every call passes it once, at its begin.
    Entry,
    /// On a way out of the function.
    Exit,
    /// Behind a call, in the caller.
    Return,
}

impl SiteRole {
    /// Its name in error texts.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Return => "return",
        }
    }
}

/// One address to attach to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// The class; becomes the cookie.
    pub class: ClassId,
    /// Offset in the module's file.
    pub offset: u64,
    /// Entry, exit or return.
    pub role: SiteRole,
    /// `(address of the return address - rsp) / 8` at this site: 0 at the first instruction, 1 after one push,
    /// -1 after the return.
    /// [`profiler_common::cookie::SLOT_UNKNOWN`] if that is not known; calls are then matched by class alone.
    pub slot_delta: i16,
    /// Of a return site: bytes from the return address to here. `None`: not known; it then ends calls that return to one of the 128 bytes before it.
    pub distance: Option<u8>,
    /// File offset of the USDT semaphore that the kernel must raise while attached; 0: none.
    pub reference_counter: u64,
}

impl Site {
    /// An entry site at a function's first instruction.
    #[must_use]
    pub fn entry(class: ClassId, offset: u64) -> Self {
        Self { class, offset, role: SiteRole::Entry, slot_delta: 0, distance: None, reference_counter: 0 }
    }

    /// An exit site at a `ret`.
    #[must_use]
    pub fn exit(class: ClassId, offset: u64) -> Self {
        Self { role: SiteRole::Exit, ..Self::entry(class, offset) }
    }

    /// A return site: in a caller, at the return address or behind it. `popped`: words by which the stack pointer lies higher
    /// there than the return left it (0 at the return address; 1 after one `pop`, -1 after one `push`).
    #[must_use]
    pub fn returned(class: ClassId, offset: u64, popped: i16) -> Self {
        Self { role: SiteRole::Return, slot_delta: -1 - popped, ..Self::entry(class, offset) }
    }

    /// A return site that lies so many bytes behind the return address. Told that, it ends no call that returns to another address nearby.
    #[must_use]
    pub fn behind(self, distance: u8) -> Self {
        Self { distance: Some(distance), ..self }
    }
}

/// Sites of one module that are attached and detached together.
#[derive(Debug, Clone)]
pub struct AttachGroup {
    /// A path of the module's file that the agent can open (`/proc/PID/root/…` or `/proc/PID/map_files/…`).
    pub module: PathBuf,
    /// The target process; its threads are covered.
    pub pid: u32,
    /// What to attach to.
    pub kind: LinkKind,
    /// The sites, hottest first: detaching stops them in this order.
    pub sites: Vec<Site>,
}
