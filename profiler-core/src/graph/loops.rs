//! Natural loops.
//!
//! A back edge leads from a block to one that dominates it, the header; its loop is the header and all blocks that reach the edge's source
//! without passing the header (Aho, Lam, Sethi, Ullman, "Compilers", 2nd edition, section 9.6). Loops with one header are one.
//! What goes round without such a header is no natural loop: the strongly connected parts of the graph without its back edges are told as
//! irreducible (Hecht and Ullman, "Characterizations of Reducible Flow Graphs", JACM 21(3), 1974).

use super::cfg::Cfg;
use super::components::strong;
use super::dominators::Dominators;
use std::collections::BTreeMap;
use std::ops::Range;

/// Functions of more blocks are not looked at.
pub const MOST_BLOCKS: usize = 1 << 18;
/// Blocks of all loops of one function together: loops may lie in one another.
const MOST_BODY_BLOCKS: usize = 1 << 22;

/// A natural loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// Link-time address of the header, which every turn passes.
    pub header: u64,
    /// Link-time addresses of the instructions that lead back to it.
    pub back_edges: Vec<u64>,
    /// Its code, by address; neighbouring blocks are one range.
    pub body: Vec<Range<u64>>,
    /// 1 of an outermost loop.
    pub depth: u32,
    /// Index of the loop around it.
    pub parent: Option<u32>,
}

/// The loops of a function, by address of their headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loops {
    /// Natural loops.
    pub loops: Vec<Loop>,
    /// Code that goes round without a header that every turn passes.
    pub irreducible: Vec<Vec<Range<u64>>>,
    /// The control flow is not completely known: loops may be missing, or have more ways in.
    pub uncertain: bool,
    /// Not all of them were looked for: there were too many blocks.
    pub cut: bool,
}

impl Loops {
    /// There is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.loops.is_empty() && self.irreducible.is_empty() && !self.cut
    }

    /// The depth of the innermost loop.
    #[must_use]
    pub fn deepest(&self) -> u32 {
        self.loops.iter().map(|l| l.depth).max().unwrap_or(0)
    }
}

/// Finds the loops of a function. `uncertain`: its control flow is not completely known.
#[must_use]
pub fn loops(cfg: &Cfg, uncertain: bool) -> Loops {
    let mut found = Loops { uncertain, ..Loops::default() };
    if cfg.blocks().len() > MOST_BLOCKS {
        found.cut = true;
        return found;
    }
    let dominators = Dominators::of(cfg);
    let mut tails: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut forward: Vec<(u32, u32)> = Vec::new();
    for from in 0..cfg.len() {
        for to in cfg.next(from) {
            if dominators.dominates(*to, from) {
                tails.entry(*to).or_default().push(from);
            } else {
                forward.push((from, *to));
            }
        }
    }
    let irreducible = strong(cfg.blocks().len(), &forward);
    found.irreducible = irreducible.iter().map(|blocks| ranges(cfg, blocks)).collect();
    found.irreducible.sort_by_key(|ranges| ranges.first().map(|range| range.start));
    let mut bodies = Vec::new();
    let mut left = MOST_BODY_BLOCKS;
    let mut member = vec![0_u32; cfg.blocks().len()];
    for (number, (header, tails)) in (1..).zip(&tails) {
        let body = body(cfg, *header, tails, &mut member, number);
        found.cut |= body.len() > left;
        if found.cut {
            break;
        }
        left -= body.len();
        bodies.push((*header, tails, body));
    }
    found.loops = nested(cfg, bodies, &dominators);
    found
}

/// The blocks of a loop. `member`: the number of the last loop that each block was found in.
fn body(cfg: &Cfg, header: u32, tails: &[u32], member: &mut [u32], number: u32) -> Vec<u32> {
    member[header as usize] = number;
    let mut body = vec![header];
    let mut stack = tails.to_vec();
    while let Some(block) = stack.pop() {
        if std::mem::replace(&mut member[block as usize], number) != number {
            body.push(block);
            stack.extend(cfg.before(block));
        }
    }
    body
}

/// Says which loop lies in which: the loop around another one holds its header, and the smallest such is its parent.
fn nested(cfg: &Cfg, mut bodies: Vec<(u32, &Vec<u32>, Vec<u32>)>, dominators: &Dominators) -> Vec<Loop> {
    // The larger before the smaller, so that the last one that was written at a block is the innermost.
    bodies.sort_by_key(|(header, _, body)| (std::cmp::Reverse(body.len()), *header));
    let mut innermost: Vec<Option<u32>> = vec![None; cfg.blocks().len()];
    let mut loops: Vec<Loop> = Vec::new();
    for (number, (header, tails, body)) in (0..).zip(&bodies) {
        // Of two loops that share blocks without one holding the other, one has a header that the other's does not dominate.
        let around = |outer: &u32| {
            let outer = bodies.get(*outer as usize).map(|(header, ..)| *header);
            outer.is_some_and(|outer| dominators.dominates(outer, *header))
        };
        let parent = innermost[*header as usize].filter(around);
        let depth = parent.and_then(|p| loops.get(p as usize)).map_or(1, |p| p.depth + 1);
        for block in body {
            innermost[*block as usize] = Some(number);
        }
        let address = |block: u32| &cfg.blocks()[block as usize];
        let mut back_edges: Vec<u64> = tails.iter().map(|tail| address(*tail).last).collect();
        back_edges.sort_unstable();
        loops.push(Loop {
            header: address(*header).range.start,
            back_edges,
            body: ranges(cfg, body),
            depth,
            parent,
        });
    }
    by_address(loops)
}

/// Sorts loops by header, outer ones first, and renumbers the parents.
fn by_address(loops: Vec<Loop>) -> Vec<Loop> {
    let mut order: Vec<u32> = (0..).take(loops.len()).collect();
    order.sort_by_key(|i| loops.get(*i as usize).map(|l| (l.header, l.depth)));
    let mut place = vec![0_u32; loops.len()];
    for (new, old) in (0..).zip(&order) {
        place[*old as usize] = new;
    }
    let mut sorted: Vec<(u32, Loop)> = loops.into_iter().zip(0..).map(|(l, old)| (place[old], l)).collect();
    sorted.sort_by_key(|(new, _)| *new);
    sorted
        .into_iter()
        .map(|(_, l)| Loop { parent: l.parent.map(|parent| place[parent as usize]), ..l })
        .collect()
}

/// The addresses of some blocks; those that touch are put together.
fn ranges(cfg: &Cfg, blocks: &[u32]) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = blocks
        .iter()
        .filter_map(|block| cfg.blocks().get(*block as usize))
        .map(|b| b.range.clone())
        .collect();
    all.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in all {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
