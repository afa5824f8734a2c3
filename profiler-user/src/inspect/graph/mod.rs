//! The call graph of a module, from its machine code.
//!
//! What: [`CallGraph::of`] decodes a file's functions, one at a time, and hands them as values to [`profiler_core::graph`], which makes the graph
//! and answers questions about it. Here stands what knows ELF and x86-64: which functions there are (`functions`), how the file is
//! linked (`linkage`), what a function calls (`code`, `decode`) and its basic blocks (`blocks`).
//!
//! Input: a file. No process, no root. DWARF is not read.
//!
//! Two passes: the first finds call sites. It tells which functions never return, without which code behind a call of `abort` would seem to be
//! reached. The second finds the loops of functions that branch backwards.

mod blocks;
mod code;
mod decode;
mod error;
mod find;
mod functions;
mod linkage;
#[cfg(test)]
pub(crate) mod tests;

pub use error::GraphError;
pub use find::file_of;
pub(in crate::inspect) use linkage::{Bound, bound_slots, defined_names, imported_names, is_stubs, slot_of};

use super::elf::ElfInfo;
use super::insn::KernelRules;
use super::pattern::{self, Pattern};
use super::{Module, SymbolSource, names};
use code::Code;
use decode::Around;
use functions::Functions;
use linkage::Linkage;
use profiler_core::graph::{Builder, Decoded, Facts, Graph, Node, NodeId, Target, Transfer, Way, loops};
use profiler_core::text::printable;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Functions may overlap: this many times the code is decoded, and some more of small files.
const MOST_OVERLAP: u64 = 4;
const LEAST_BYTES: u64 = 64 << 20;
/// Similar names shown at most.
const SUGGESTIONS: usize = 5;

/// The call graph of one file.
#[derive(Debug)]
pub struct CallGraph {
    /// The graph.
    pub graph: Graph,
    /// The file's name, as used in `module:function` patterns.
    pub module: String,
    /// Its path.
    pub path: PathBuf,
    /// Its build id, hexadecimal.
    pub build_id: Option<String>,
    /// Where its symbols come from.
    pub symbols: SymbolSource,
    /// What the user should know of it.
    pub notes: Vec<String>,
}

impl CallGraph {
    /// Reads a file: a program or a shared library.
    ///
    /// # Errors
    /// It cannot be read, is no program or library for x86-64, or has no code.
    pub fn of(path: &Path, rules: KernelRules) -> Result<Self, GraphError> {
        Self::with(path, rules, WhoseLoops::All)
    }

    /// The same with the loops of functions that begin at these link-time addresses alone.
    ///
    /// # Errors
    /// As [`CallGraph::of`].
    pub fn with_loops_of(
        path: &Path,
        rules: KernelRules,
        functions: &BTreeSet<u64>,
    ) -> Result<Self, GraphError> {
        Self::with(path, rules, WhoseLoops::Of(functions))
    }

    fn with(path: &Path, rules: KernelRules, loops: WhoseLoops<'_>) -> Result<Self, GraphError> {
        find::check_head(path)?;
        let module = Module::offline(path)?;
        let elf = module.elf().map_err(|why| GraphError::Symbols(why.to_owned()))?;
        elf.keep(&[".eh_frame_hdr", ".eh_frame", ".gcc_except_table"]);
        let symbols = module.symbols().map_err(|why| GraphError::Symbols(why.to_owned()))?;
        let mut notes: Vec<String> = module.symbols_missing().into_iter().collect();
        let graph = read(&module, rules, loops, &mut notes)?;
        Ok(Self {
            graph,
            module: module.name.clone(),
            path: path.to_owned(),
            build_id: module.build_id(),
            symbols: symbols.source,
            notes,
        })
    }

    /// The graph of a module of a process, without loops.
    ///
    /// # Errors
    /// As [`CallGraph::of`].
    pub(in crate::inspect) fn without_loops(
        module: &Module,
        rules: KernelRules,
    ) -> Result<Graph, GraphError> {
        read(module, rules, WhoseLoops::None, &mut Vec::new())
    }

    /// The functions and imports that a pattern names, in the order of their numbers.
    #[must_use]
    pub fn find(&self, pattern: &Pattern) -> Vec<NodeId> {
        if !pattern.matches_module(&self.module) {
            return Vec::new();
        }
        let named = |node: &Node| {
            let mut symbols = std::iter::once(&node.symbol).chain(&node.aliases);
            symbols.any(|symbol| pattern.matches_symbol(symbol))
        };
        let nodes = self.graph.nodes().filter(|(_, node)| !(node.is_import() && pattern.names_module()));
        nodes.filter(|(_, node)| named(node)).map(|(id, _)| id).collect()
    }

    /// Why a pattern names nothing: names that look similar, and what is missing.
    #[must_use]
    pub fn why_nothing(&self, pattern: &Pattern) -> String {
        if !pattern.matches_module(&self.module) {
            return format!(
                "'{pattern}': the file is '{}', and the pattern names another module",
                self.module
            );
        }
        let mut similar: Vec<(usize, &str)> = Vec::new();
        for (_, node) in self.graph.nodes() {
            if let Some(unlike) = pattern::unlikeness(pattern.literal(), &node.symbol) {
                similar.push((unlike, &node.symbol));
            }
        }
        similar.sort_unstable();
        let mut shown: Vec<String> = Vec::new();
        for (_, symbol) in similar {
            let name = printable(&names::demangle(symbol)).into_owned();
            if shown.len() < SUGGESTIONS && !shown.contains(&name) {
                shown.push(name);
            }
        }
        let similar =
            if shown.is_empty() { String::new() } else { format!("; similar: {}", shown.join(", ")) };
        let stripped = self.notes.iter().find(|_| self.symbols != SymbolSource::Full);
        let stripped = stripped.map(|note| format!("; {note}")).unwrap_or_default();
        format!("'{pattern}': no function of {} has such a name{similar}{stripped}", self.module)
    }
}

/// Reads a module; what the user should know goes into the notes.
fn read(
    module: &Module,
    rules: KernelRules,
    loops: WhoseLoops<'_>,
    notes: &mut Vec<String>,
) -> Result<Graph, GraphError> {
    let elf = module.elf().map_err(|why| GraphError::Symbols(why.to_owned()))?;
    check_code(elf)?;
    let symbols = module.symbols().map_err(|why| GraphError::Symbols(why.to_owned()))?;
    let mut builder = Builder::default();
    let linkage = Linkage::read(elf, &mut builder);
    notes.extend(linkage.unread.iter().cloned());
    if elf.sections.is_empty() {
        notes.push("it has no section headers: stubs, slots and unwind data are not found".to_owned());
    }
    if let Err(why) = module.text() {
        notes.push(format!("targets of computed jumps are not known: {why}"));
    }
    let around = Around { elf, functions: &Functions::of(elf, symbols), linkage: &linkage, rules };
    Ok(Reading::new(&around, module, builder, loops).graph(entries(elf, &linkage)))
}

/// Refuses files without code.
fn check_code(elf: &ElfInfo) -> Result<(), GraphError> {
    let no_code = |why: &str| GraphError::NoCode { path: elf.path.clone(), why: why.to_owned() };
    if elf.sections.is_empty() {
        let code = elf.segments.iter().any(|s| s.exec && s.file_size > 0);
        return if code { Ok(()) } else { Err(no_code("none of its segments is executable")) };
    }
    let mut code = elf.sections.iter().filter(|s| s.exec).peekable();
    if code.peek().is_none() {
        return Err(no_code("none of its sections is executable"));
    }
    if code.all(|s| s.nobits || s.size == 0) {
        return Err(no_code("its code sections have no bytes, as in a separate debug file"));
    }
    Ok(())
}

/// Where the loader and the kernel enter the module: its entry point, what chooses IFUNCs, `.init` and `.fini`.
fn entries(elf: &ElfInfo, linkage: &Linkage) -> Vec<u64> {
    // e_entry of Elf64_Ehdr.
    let entry = elf.read_at(24, 8).ok().and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let sections = elf.sections.iter().filter(|s| s.name == ".init" || s.name == ".fini").map(|s| s.vaddr);
    entry.into_iter().chain(sections).chain(linkage.resolvers.iter().copied()).collect()
}

/// The passes over a module.
struct Reading<'a> {
    around: &'a Around<'a>,
    module: &'a Module,
    builder: Builder,
    /// Bytes that may still be decoded.
    left: u64,
    /// Starts of parts that a function owns.
    owned: BTreeSet<u64>,
    /// Addresses in no function that are called, or that the loader enters.
    called: BTreeSet<u64>,
    loops: WhoseLoops<'a>,
}

/// Whose loops are looked for.
#[derive(Debug, Clone, Copy)]
enum WhoseLoops<'a> {
    None,
    All,
    /// Those of functions that begin there.
    Of(&'a BTreeSet<u64>),
}

impl WhoseLoops<'_> {
    fn has(self, node: &Node) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Of(functions) => node.address().is_some_and(|start| functions.contains(&start)),
        }
    }
}

impl<'a> Reading<'a> {
    fn new(around: &'a Around<'a>, module: &'a Module, builder: Builder, loops: WhoseLoops<'a>) -> Self {
        let code: u64 = around.elf.sections.iter().filter(|s| s.exec && !s.nobits).map(|s| s.size).sum();
        let left = code.saturating_mul(MOST_OVERLAP).saturating_add(LEAST_BYTES);
        Self { around, module, builder, left, owned: BTreeSet::new(), called: BTreeSet::new(), loops }
    }

    fn graph(mut self, entries: Vec<u64>) -> Graph {
        let (elf, functions) = (self.around.elf, self.around.functions);
        let gaps = functions.gaps(elf);
        let is_entry = |vaddr: Option<u64>| vaddr.is_some_and(|vaddr| entries.contains(&vaddr));
        for node in &functions.nodes {
            let mut node = node.clone();
            node.entry = is_entry(node.address());
            self.add(node, &gaps);
        }
        // Nothing calls what chooses an IFUNC, nor the entry point.
        self.called.extend(entries.iter().copied().filter(|to| in_gap(&gaps, *to)));
        for gap in &gaps {
            let bytes = elf.read_vaddr(gap.start, (gap.end - gap.start) as usize).unwrap_or_default();
            let called = functions::called_from(&bytes, gap.start).filter(|to| in_gap(&gaps, *to));
            self.called.extend(called);
        }
        for gap in &gaps {
            for mut node in functions::divide(gap, &self.called) {
                node.entry = is_entry(node.address());
                self.add(node, &[]);
            }
        }
        for part in &functions.parts {
            if part.address().is_some_and(|start| !self.owned.contains(&start)) {
                self.add(Node { lone_part: true, ..part.clone() }, &[]);
            }
        }
        for (at, held) in &self.around.linkage.pointers {
            self.builder.pointer(*at, Target::Address(*held));
        }
        let mut graph = std::mem::take(&mut self.builder).finish();
        if !matches!(self.loops, WhoseLoops::None) {
            self.find_loops(&mut graph);
        }
        graph
    }

    /// Adds a function with its code, and notes which gaps it calls into.
    fn add(&mut self, mut node: Node, gaps: &[Range<u64>]) {
        let range = node.ranges.first().cloned().unwrap_or_default();
        node.ifunc |= node.address().is_some_and(|start| self.around.linkage.resolvers.contains(&start));
        let id = self.builder.node(node);
        let decoded = match self.read(&range) {
            Some(code) => self.around.decode(&code),
            None => {
                let facts = Facts { undecoded_bytes: range.end - range.start, ..Facts::default() };
                Decoded { facts, ..Decoded::default() }
            }
        };
        self.owned.extend(decoded.parts.iter().map(|part| part.start));
        for site in &decoded.sites {
            if let (Transfer::Call, Way::Direct, Target::Address(to)) = (site.transfer, site.way, site.to)
                && in_gap(gaps, to)
            {
                self.called.insert(to);
            }
        }
        self.builder.code(id, decoded);
    }

    /// Decodes a function; none where more overlap than programs have.
    fn read(&mut self, range: &Range<u64>) -> Option<Code> {
        self.left = self.left.checked_sub(range.end.checked_sub(range.start)?)?;
        Some(Code::read(self.around.elf, self.around.functions, self.module.text().ok(), range))
    }

    /// The second pass.
    fn find_loops(&mut self, graph: &mut Graph) {
        let never = graph.never_return();
        let may_loop = graph.nodes().filter(|(_, node)| node.facts.may_loop && self.loops.has(node));
        let may_loop: Vec<(NodeId, Range<u64>)> =
            may_loop.filter_map(|(id, node)| Some((id, node.ranges.first()?.clone()))).collect();
        for (id, range) in may_loop {
            let code = Code::read(self.around.elf, self.around.functions, self.module.text().ok(), &range);
            let ends = |at: u64| {
                let callee = graph.site(id, at).and_then(|site| site.to);
                callee.is_some_and(|callee| never.get(callee.0 as usize).is_some_and(|never| *never))
            };
            let (cfg, uncertain) = blocks::control_flow(self.around.elf, &code, ends);
            graph.set_loops(id, loops::loops(&cfg, uncertain));
        }
    }
}

/// Whether an address lies in one of some ranges, which are in order.
fn in_gap(gaps: &[Range<u64>], vaddr: u64) -> bool {
    let behind = gaps.partition_point(|gap| gap.start <= vaddr);
    behind.checked_sub(1).and_then(|i| gaps.get(i)).is_some_and(|gap| gap.contains(&vaddr))
}
