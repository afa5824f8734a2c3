//! The basic blocks of a function, for its loops.

use super::super::elf::ElfInfo;
use super::super::flow::{self, Edge, Region};
use super::super::landing;
use super::code::{Code, Leads};
use iced_x86::{Instruction, Mnemonic};
use profiler_core::graph::cfg::{Block, Cfg};
use std::collections::HashMap;
use std::ops::Range;

/// Edges of jumps whose targets are not known, at most.
const MOST_GUESSED: usize = 1 << 20;

/// Divides a function into blocks. `ends`: the call at this address does not come back. With whether the control flow is not completely known.
///
/// A jump of which nothing is known may lead to every block that nothing else leads to.
pub(super) fn control_flow(elf: &ElfInfo, code: &Code, ends: impl Fn(u64) -> bool) -> (Cfg, bool) {
    let pads: Result<Vec<_>, _> =
        code.regions.iter().map(|region| landing::pads_of_calls(elf, region.start)).collect();
    let unknown = code.indirect.iter().any(|(_, leads)| matches!(leads, Leads::Unknown));
    let uncertain = unknown || code.undecoded_bytes > 0 || pads.is_err();
    let mut pads: Vec<(Range<u64>, u64)> = pads.unwrap_or_default().into_iter().flatten().collect();
    pads.sort_unstable_by_key(|(range, _)| range.start);
    let mut builder = Builder {
        code,
        pads,
        ends,
        blocks: Vec::new(),
        padding: Vec::new(),
        edges: Vec::new(),
        guessed: Vec::new(),
    };
    let leaders = builder.leaders();
    for region in &code.regions {
        builder.divide(region, &leaders);
    }
    let at: HashMap<u64, u32> =
        builder.blocks.iter().zip(0..).map(|(block, i)| (block.range.start, i)).collect();
    let mut edges: Vec<(u32, u32)> =
        builder.edges.iter().filter_map(|(from, to)| Some((*from, *at.get(to)?))).collect();
    if !builder.guessed.is_empty() {
        let mut met = vec![false; builder.blocks.len()];
        for (_, to) in &edges {
            if let Some(met) = met.get_mut(*to as usize) {
                *met = true;
            }
        }
        // Nothing leads to the padding between blocks.
        let known = || met.iter().zip(&builder.padding).map(|(met, padding)| *met || *padding);
        let unmet = || known().zip(0..).skip(1).filter(|(known, _)| !*known).map(|(_, i)| i);
        let guesses = builder.guessed.iter().flat_map(|from| unmet().map(|to| (*from, to)));
        edges.extend(guesses.take(MOST_GUESSED));
    }
    (Cfg::new(builder.blocks, edges), uncertain)
}

struct Builder<'a, F> {
    code: &'a Code,
    pads: Vec<(Range<u64>, u64)>,
    ends: F,
    blocks: Vec<Block>,
    /// Of each block whether it has nothing but nops and breakpoints.
    padding: Vec<bool>,
    /// From a block to an address.
    edges: Vec<(u32, u64)>,
    /// Blocks that end with a jump of which nothing is known.
    guessed: Vec<u32>,
}

impl<F: Fn(u64) -> bool> Builder<'_, F> {
    /// Addresses that blocks begin at, besides those behind the ends of others.
    fn leaders(&self) -> Vec<u64> {
        let mut leaders: Vec<u64> = self.pads.iter().map(|(_, pad)| *pad).collect();
        for insn in self.code.regions.iter().flat_map(|region| &region.insns) {
            if let Edge::Jump(to) | Edge::Branch(to) = flow::edge(insn) {
                leaders.push(to);
            }
        }
        for (_, leads) in &self.code.indirect {
            if let Leads::Inside(to) | Leads::Pointer(to) = leads {
                leaders.extend(to);
            }
        }
        leaders.sort_unstable();
        leaders.dedup();
        leaders
    }

    fn divide(&mut self, region: &Region, leaders: &[u64]) {
        let mut leaders = leaders.iter().copied().skip_while(|at| *at <= region.start).peekable();
        let mut start = None;
        let mut padding = true;
        for (i, insn) in region.insns.iter().enumerate() {
            let begin = *start.get_or_insert(insn.ip());
            padding &= matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
            // OK because a function has fewer instructions than u32 counts.
            let block = self.blocks.len() as u32;
            if flow::edge(insn) == Edge::Call {
                // Ranges of code do not overlap, and are sorted.
                let behind = self.pads.partition_point(|(range, _)| range.start <= insn.ip());
                let pad = behind.checked_sub(1).and_then(|i| self.pads.get(i));
                self.edges.extend(pad.filter(|(r, _)| r.contains(&insn.ip())).map(|(_, pad)| (block, *pad)));
            }
            let next = insn.next_ip();
            while leaders.next_if(|at| *at < next).is_some() {}
            let contiguous = region.insns.get(i + 1).is_some_and(|after| after.ip() == next);
            let (ended, goes_on) = self.passes(insn, block);
            if ended || !contiguous || leaders.peek() == Some(&next) {
                if goes_on && contiguous {
                    self.edges.push((block, next));
                }
                self.blocks.push(Block { range: begin..next, last: insn.ip() });
                self.padding.push(std::mem::replace(&mut padding, true));
                start = None;
            }
        }
    }

    /// Whether an instruction ends its block, and whether control may go on behind it.
    fn passes(&mut self, insn: &Instruction, block: u32) -> (bool, bool) {
        match flow::edge(insn) {
            Edge::Next | Edge::Other => (false, true),
            Edge::Call => {
                let ends = (self.ends)(insn.ip());
                (ends, !ends)
            }
            Edge::Jump(to) => {
                self.edges.push((block, to));
                (true, false)
            }
            Edge::Branch(to) => {
                self.edges.push((block, to));
                (true, true)
            }
            Edge::Indirect => {
                match self.code.leads(insn.ip()) {
                    Leads::Inside(to) | Leads::Pointer(to) => {
                        self.edges.extend(to.iter().map(|to| (block, *to)));
                    }
                    Leads::Unknown => self.guessed.push(block),
                }
                (true, false)
            }
            Edge::Return | Edge::Stop => (true, false),
        }
    }
}
