//! Functions, as nodes of the graph.

use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// Index of a function, or of an import, in one [`Graph`](super::Graph).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeId(pub u32);

impl NodeId {
    pub(super) fn index(self) -> usize {
        self.0 as usize // OK because usize has 64 bits
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// By what a function is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A symbol.
    Symbol,
    /// It has no symbol; unwind data tell where it begins and ends.
    UnwindData,
    /// Neither: code between functions, from where it begins or is called to the next function.
    Gap,
    /// A function of another module.
    Import,
}

/// What decoding a function told besides its call sites.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// Control may leave it to its caller: it has a `ret`, or something that may be one.
    pub returns: bool,
    /// Bytes that are no instructions (data in the code, or instructions that the decoder does not know).
    pub undecoded_bytes: u64,
    /// Indirect jumps that may stay in the function or leave it: their targets are not known.
    pub unresolved_jumps: u32,
    /// It branches backwards, or in a way that is not known: it may have loops.
    pub may_loop: bool,
}

/// A function of the module, or an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its symbol as it stands in the file; the address in hexadecimal where it has none.
    pub symbol: String,
    /// Other symbols at the same address: aliases, and functions that the linker folded into one.
    pub aliases: Vec<String>,
    /// By what it is known.
    pub origin: Origin,
    /// Link-time addresses: the function itself, then its split-off (cold) parts. Empty for an import.
    pub ranges: Vec<Range<u64>>,
    /// Other modules may call it by name.
    pub exported: bool,
    /// The program or the dynamic linker begins here.
    pub entry: bool,
    /// Its symbol names a resolver: which function runs is chosen when the program is loaded.
    pub ifunc: bool,
    /// By its name a split-off part, and no function was seen to jump to it.
    pub lone_part: bool,
    /// It states no size: taken to reach to the next function.
    pub guessed_size: bool,
    /// Its address is held in data.
    pub held: bool,
    /// Direct branches of it that lead to no code of the module.
    pub stray_branches: u32,
    /// What decoding told.
    pub facts: Facts,
}

impl Node {
    /// A function from its first address to one past its last one.
    #[must_use]
    pub fn function(symbol: impl Into<String>, origin: Origin, range: Range<u64>) -> Self {
        Self { ranges: vec![range], ..Self::empty(symbol.into(), origin) }
    }

    /// A function of another module.
    #[must_use]
    pub fn import(symbol: impl Into<String>) -> Self {
        Self::empty(symbol.into(), Origin::Import)
    }

    fn empty(symbol: String, origin: Origin) -> Self {
        Self {
            symbol,
            origin,
            aliases: Vec::new(),
            ranges: Vec::new(),
            exported: false,
            entry: false,
            ifunc: false,
            lone_part: false,
            guessed_size: false,
            held: false,
            stray_branches: 0,
            facts: Facts::default(),
        }
    }

    /// Link-time address of its start; none of an import.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        self.ranges.first().map(|range| range.start)
    }

    /// Bytes, parts included.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum()
    }

    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }

    /// Something besides the edges of the graph may call it: the loader, another module, a pointer.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.exported || self.entry || self.held
    }

    /// A function of another module.
    #[must_use]
    pub fn is_import(&self) -> bool {
        self.origin == Origin::Import
    }

    /// A thunk that a compiler puts in the place of indirect branches (`-mindirect-branch=thunk`, `-mretpoline`): who calls it calls
    /// through a register.
    #[must_use]
    pub fn is_indirect_thunk(&self) -> bool {
        self.symbol.starts_with("__x86_indirect_thunk_") || self.symbol.starts_with("__llvm_retpoline_")
    }
}
