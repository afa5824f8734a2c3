//! Call sites and edges.

use super::node::NodeId;
use crate::class::SiteClass;
use serde::Serialize;

/// How control passes to the other function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    /// A call, which returns behind it.
    Call,
    /// A jump: a tail call, which returns to the caller's caller.
    Jump,
    /// A conditional jump.
    Branch,
    /// None: control runs over the end of a function, or into one that begins inside it.
    Fall,
}

impl Transfer {
    /// The name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Jump => "jump",
            Self::Branch => "branch",
            Self::Fall => "fall",
        }
    }
}

/// By what the instruction says where it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// By a displacement.
    Direct,
    /// By a displacement, to a stub of the procedure linkage table (`call f@plt`).
    Plt,
    /// Through a slot of the global offset table that the linker fills (`call *f@GOTPCREL(%rip)`).
    Got,
    /// Through a register: any function.
    Register,
    /// Through memory: any function.
    Memory,
}

impl Way {
    /// The name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Plt => "plt",
            Self::Got => "got",
            Self::Register => "register",
            Self::Memory => "memory",
        }
    }
}

/// A place where control passes to another function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSite {
    /// Link-time address of the instruction.
    pub at: u64,
    /// Its callee; none where it is not known.
    pub to: Option<NodeId>,
    /// Bytes of the instruction.
    pub len: u8,
    /// How control passes.
    pub transfer: Transfer,
    /// By what it says where.
    pub way: Way,
    /// It leads behind the callee's start: a probe at the callee's entry does not see it.
    pub inside: bool,
    /// Price class of a probe at the instruction; none where it may not be probed.
    pub class: Option<SiteClass>,
    /// The same at the return address; none of a jump.
    pub return_class: Option<SiteClass>,
}

impl CallSite {
    /// Where the callee returns to; none of a jump.
    #[must_use]
    pub fn return_address(&self) -> Option<u64> {
        (self.transfer == Transfer::Call).then(|| self.at.wrapping_add(u64::from(self.len)))
    }

    /// Its callee is chosen while the program runs.
    #[must_use]
    pub fn is_indirect(&self) -> bool {
        matches!(self.way, Way::Register | Way::Memory)
    }

    /// The kind of its edge, once its callee is known.
    #[must_use]
    pub fn kind(&self) -> EdgeKind {
        match (self.transfer, self.way) {
            (_, Way::Register | Way::Memory) => EdgeKind::Seen,
            (Transfer::Fall, _) => EdgeKind::Fall,
            (Transfer::Jump | Transfer::Branch, _) => EdgeKind::Tail,
            (Transfer::Call, Way::Plt) => EdgeKind::Plt,
            (Transfer::Call, Way::Got) => EdgeKind::Got,
            (Transfer::Call, Way::Direct) => EdgeKind::Call,
        }
    }
}

/// Why there is an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// A direct call.
    Call,
    /// A call through a stub of the procedure linkage table.
    Plt,
    /// A call through a slot of the global offset table.
    Got,
    /// A tail jump, by any way.
    Tail,
    /// Control runs into the function.
    Fall,
    /// An indirect call or jump that was seen to lead there.
    Seen,
    /// No call: the caller takes the address of the function.
    Taken,
}

impl EdgeKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Call, Self::Plt, Self::Got, Self::Tail, Self::Fall, Self::Seen, Self::Taken];

    /// The name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Plt => "plt",
            Self::Got => "got",
            Self::Tail => "tail",
            Self::Fall => "fall",
            Self::Seen => "seen",
            Self::Taken => "taken",
        }
    }
}

/// A set of [`EdgeKind`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds(u8);

impl Kinds {
    /// What is executed: all but addresses taken.
    pub const CALLS: Self = Self(0x3f);
    /// All.
    pub const ALL: Self = Self(0x7f);
    /// What leaves the caller's frame to the callee: tail jumps and running into it.
    pub const TAILS: Self = Self(1 << EdgeKind::Tail as u8 | 1 << EdgeKind::Fall as u8);

    /// One.
    #[must_use]
    pub fn of(kind: EdgeKind) -> Self {
        Self(1 << kind as u8) // OK because it is the number of a variant
    }

    /// Either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it has this one.
    #[must_use]
    pub fn has(self, kind: EdgeKind) -> bool {
        self.meets(Self::of(kind))
    }

    /// Whether the two have one in common.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Those that it has.
    pub fn iter(self) -> impl Iterator<Item = EdgeKind> {
        EdgeKind::ALL.into_iter().filter(move |kind| self.has(*kind))
    }
}

/// That one function calls another one, however often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The other function: the callee among [`Graph::callees`](super::Graph::callees), the caller among
    /// [`Graph::callers`](super::Graph::callers).
    pub node: NodeId,
    /// Why there is an edge.
    pub kinds: Kinds,
    /// Call sites that it stands for, and places that take the address.
    pub sites: u32,
}
