//! Which functions a module has: by its symbols, by unwind data where it has none, and what lies between those.

use super::super::elf::ElfInfo;
use super::super::landing;
use super::super::names::{self, Clone as CloneKind};
use super::super::resolve;
use super::super::symbols::Symbols;
use super::linkage;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use profiler_core::graph::{Node, Origin};
use std::collections::BTreeSet;
use std::ops::Range;

/// A function without a size reaches no further than this, bytes.
const MOST_GUESSED_BYTES: u64 = 1 << 20;
/// Code between functions is taken in pieces of this size at most, bytes, so that what no call divides can be decoded.
const MOST_GAP_BYTES: u64 = 1 << 20;

/// The functions of a module and the parts that belong to some of them.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// By address.
    pub nodes: Vec<Node>,
    /// Split-off parts, by their names or by unwind data: who jumps to one owns it. By address.
    pub parts: Vec<Node>,
    /// Starts of `nodes`.
    starts: Vec<u64>,
}

impl Functions {
    /// Reads symbols and unwind data.
    pub fn of(elf: &ElfInfo, symbols: &Symbols) -> Self {
        let mut functions = Self::default();
        functions.add_named(elf, symbols);
        functions.size_up(elf);
        functions.add_nameless(elf);
        for nodes in [&mut functions.nodes, &mut functions.parts] {
            nodes.sort_by_key(Node::address);
            nodes.dedup_by_key(|node| node.address());
        }
        functions.starts = functions.nodes.iter().filter_map(Node::address).collect();
        functions
    }

    fn add_named(&mut self, elf: &ElfInfo, symbols: &Symbols) {
        let mut at_one: Vec<(String, u8)> = Vec::new();
        let mut node: Option<Node> = None;
        symbols.for_each_name(|_, entry, name| {
            if elf.section_at(entry.vaddr).is_some_and(linkage::is_stubs) {
                return;
            }
            if node.as_ref().is_some_and(|node| node.address() != Some(entry.vaddr)) {
                self.add(node.take(), &mut at_one);
            }
            let range = entry.vaddr..entry.vaddr + entry.size;
            let node = node.get_or_insert_with(|| Node {
                ifunc: true,
                ..Node::function("", Origin::Symbol, range.clone())
            });
            if let Some(known) = node.ranges.first_mut() {
                known.end = known.end.max(range.end);
            }
            node.ifunc &= entry.ifunc;
            node.exported |= symbols.is_exported(entry);
            at_one.push((name.to_owned(), entry.rank));
        });
        self.add(node, &mut at_one);
    }

    /// Adds the function that has these symbols, with their ranks.
    fn add(&mut self, node: Option<Node>, at_one: &mut Vec<(String, u8)>) {
        let Some(mut node) = node else { return at_one.clear() };
        at_one.sort_by(|a, b| {
            (a.1, resolve::plainness(&a.0), &a.0).cmp(&(b.1, resolve::plainness(&b.0), &b.0))
        });
        let mut names = at_one.drain(..).map(|(name, _)| name);
        node.symbol = names.next().unwrap_or_default();
        for name in names {
            if name != node.symbol && !node.aliases.contains(&name) {
                node.aliases.push(name);
            }
        }
        let cold = names::clone_kind(&node.symbol) == CloneKind::Cold;
        if cold { self.parts.push(node) } else { self.nodes.push(node) }
    }

    /// Functions without a size reach to the next function, or to the end of their section.
    fn size_up(&mut self, elf: &ElfInfo) {
        let mut begins: Vec<u64> = self.nodes.iter().chain(&self.parts).filter_map(Node::address).collect();
        begins.sort_unstable();
        for range in self.nodes.iter_mut().filter_map(|node| {
            let range = node.ranges.first_mut().filter(|range| range.is_empty())?;
            node.guessed_size = true;
            Some(range)
        }) {
            let next = begins.get(begins.partition_point(|start| *start <= range.start)).copied();
            let end = elf.code_end(range.start).min(range.start.saturating_add(MOST_GUESSED_BYTES));
            range.end = next.map_or(end, |next| next.min(end));
        }
    }

    /// Adds what unwind data tell of code without symbols.
    fn add_nameless(&mut self, elf: &ElfInfo) {
        let covered = Covered::by(self.nodes.iter().chain(&self.parts));
        let starts = landing::starts(elf).unwrap_or_default();
        for start in starts {
            let section = elf.section_at(start);
            let stubs = section.is_some_and(linkage::is_stubs);
            if stubs || !elf.is_code(start) || covered.holds(start) {
                continue;
            }
            let Some((start, size)) = landing::function_at(elf, start).ok().flatten() else { continue };
            let node = Node::function(nameless(start), Origin::UnwindData, start..start + size);
            match landing::is_called(elf, start) {
                Ok(Some(false)) => self.parts.push(node),
                _ => self.nodes.push(node),
            }
        }
    }

    /// Whether a function begins at an address.
    pub fn begins(&self, vaddr: u64) -> bool {
        self.starts.binary_search(&vaddr).is_ok()
    }

    /// Functions that begin inside a range, behind its first byte.
    pub fn inside(&self, range: &Range<u64>) -> &[u64] {
        let from = self.starts.partition_point(|start| *start <= range.start);
        let to = self.starts.partition_point(|start| *start < range.end);
        self.starts.get(from..to).unwrap_or(&[])
    }

    /// The part that holds an address.
    pub fn part_at(&self, vaddr: u64) -> Option<Range<u64>> {
        let end = self.parts.partition_point(|part| part.address() <= Some(vaddr));
        let part = self.parts.get(end.checked_sub(1)?)?.ranges.first()?;
        part.contains(&vaddr).then(|| part.clone())
    }

    /// Code that no function and no part holds, without the padding before it.
    pub fn gaps(&self, elf: &ElfInfo) -> Vec<Range<u64>> {
        let covered = Covered::by(self.nodes.iter().chain(&self.parts));
        let code: Vec<Range<u64>> = match elf.sections.is_empty() {
            true => elf.segments.iter().filter(|s| s.exec).map(|s| s.vaddr..s.vaddr + s.file_size).collect(),
            false => {
                let code = elf.sections.iter().filter(|s| s.exec && !s.nobits && !linkage::is_stubs(s));
                code.map(|s| s.vaddr..s.vaddr + s.size).collect()
            }
        };
        let mut gaps = Vec::new();
        for piece in code {
            for gap in covered.gaps_in(piece) {
                let mut from = gap.start;
                while from < gap.end {
                    let to = gap.end.min(from + MOST_GAP_BYTES);
                    let Ok(bytes) = elf.read_vaddr(from, (to - from) as usize) else { break };
                    let skipped = padding(&bytes);
                    if skipped < to - from {
                        gaps.push(from + skipped..to);
                    }
                    from = to;
                }
            }
        }
        gaps
    }
}

/// The name of a function without one.
pub(super) fn nameless(vaddr: u64) -> String {
    format!("{vaddr:#x}")
}

/// The pieces of a gap: from its begin and from each address in it that is called.
pub(super) fn divide(gap: &Range<u64>, called: &BTreeSet<u64>) -> Vec<Node> {
    let inside = called.range(gap.start + 1..gap.end.max(gap.start + 1)).copied();
    let begins: Vec<u64> = std::iter::once(gap.start).chain(inside).collect();
    let ends = begins.iter().skip(1).copied().chain([gap.end]);
    begins
        .iter()
        .zip(ends)
        .map(|(from, to)| Node::function(nameless(*from), Origin::Gap, *from..to))
        .collect()
}

/// Bytes of padding that some code begins with: nops, breakpoints, zeros.
fn padding(bytes: &[u8]) -> u64 {
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        let zeros = bytes.get(at..).unwrap_or(&[]).iter().take_while(|byte| **byte == 0).count();
        if zeros > 0 {
            if decoder.set_position(at + zeros).is_err() {
                return at as u64;
            }
            continue;
        }
        decoder.decode_out(&mut insn);
        if !matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
            return at as u64;
        }
    }
    bytes.len() as u64
}

/// Where the direct calls of some code lead.
pub(super) fn called_from(bytes: &[u8], vaddr: u64) -> impl Iterator<Item = u64> {
    let mut decoder = Decoder::with_ip(64, bytes, vaddr, DecoderOptions::NONE);
    std::iter::from_fn(move || {
        while decoder.can_decode() {
            let insn = decoder.decode();
            if insn.flow_control() == FlowControl::Call && insn.mnemonic() == Mnemonic::Call {
                return Some(insn.near_branch_target());
            }
        }
        None
    })
}

/// The union of some ranges.
struct Covered(Vec<Range<u64>>);

impl Covered {
    fn by<'a>(nodes: impl Iterator<Item = &'a Node>) -> Self {
        let mut all: Vec<Range<u64>> = nodes.flat_map(|node| node.ranges.iter().cloned()).collect();
        all.sort_unstable_by_key(|range| (range.start, range.end));
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in all {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    fn holds(&self, vaddr: u64) -> bool {
        let end = self.0.partition_point(|range| range.start <= vaddr);
        end.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(|range| range.contains(&vaddr))
    }

    fn gaps_in(&self, piece: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut from = piece.start;
        let first = self.0.partition_point(|range| range.end <= piece.start);
        for range in self.0.iter().skip(first).take_while(|range| range.start < piece.end) {
            if range.start > from {
                gaps.push(from..range.start);
            }
            from = from.max(range.end);
        }
        if from < piece.end {
            gaps.push(from..piece.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_not_covered() {
        let node = |range: Range<u64>| Node::function("", Origin::Symbol, range);
        let covered = Covered::by([node(20..30), node(10..15), node(12..18), node(40..50)].iter());
        assert_eq!(covered.gaps_in(0..45), [0..10, 18..20, 30..40]);
        assert_eq!(covered.gaps_in(22..28), []);
        assert_eq!(covered.gaps_in(45..60), std::slice::from_ref(&(50..60)));
        assert!(covered.holds(17) && !covered.holds(18) && !covered.holds(9));
    }

    #[test]
    fn padding_is_no_code_and_calls_divide() {
        // two nops, int3, zeros, then push rbp
        let bytes = [0x90, 0x66, 0x0f, 0x1f, 0x44, 0, 0, 0xcc, 0, 0, 0, 0x55, 0xc3];
        assert_eq!((padding(&bytes), padding(&bytes[..11]), padding(&[])), (11, 11, 0));
        let pieces = divide(&(100..200), &[50, 100, 120, 150, 200].into());
        let ranges: Vec<_> = pieces.iter().map(|node| node.ranges[0].clone()).collect();
        assert_eq!(ranges, [100..120, 120..150, 150..200]);
        assert_eq!(pieces[1].symbol, "0x78");
        let code = [0xe8, 1, 0, 0, 0, 0x90, 0x55, 0xff, 0xd0, 0xe8, 0, 0, 0, 0];
        assert_eq!(called_from(&code, 0x1000).collect::<Vec<_>>(), [0x1006, 0x100e]);
    }
}
