//! The control-flow graph of one function.

use super::csr::Csr;
use std::ops::Range;

/// A run of instructions that is entered at its begin and left at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Link-time addresses.
    pub range: Range<u64>,
    /// Address of its last instruction.
    pub last: u64,
}

/// The blocks of one function and where control passes from each.
#[derive(Debug, Clone)]
pub struct Cfg {
    blocks: Vec<Block>,
    next: Csr<u32>,
    before: Csr<u32>,
    roots: Vec<u32>,
}

impl Cfg {
    /// Makes a graph of blocks, the first of which is the function's entry, and of edges between their indices. Edges of blocks that do
    /// not exist are left out. So are edges from blocks that the entry does not reach to blocks that it reaches: dead code and padding
    /// (nops in front of a loop) are no way in.
    #[must_use]
    pub fn new(blocks: Vec<Block>, mut edges: Vec<(u32, u32)>) -> Self {
        let n = blocks.len();
        edges.retain(|(from, to)| (*from as usize) < n && (*to as usize) < n);
        edges.sort_unstable();
        edges.dedup();
        let (roots, walk) = walks(n, &edges);
        let of = |block: u32| walk.get(block as usize);
        edges.retain(|(from, to)| of(*from) == of(*to));
        let next = Csr::new(n, &edges);
        let reverse: Vec<(u32, u32)> = edges.iter().map(|(from, to)| (*to, *from)).collect();
        let before = Csr::new(n, &reverse);
        Self { blocks, next, before, roots }
    }

    /// The blocks.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Where control may pass from a block.
    #[must_use]
    pub fn next(&self, block: u32) -> &[u32] {
        self.next.of(block)
    }

    /// From where control may come to a block.
    #[must_use]
    pub fn before(&self, block: u32) -> &[u32] {
        self.before.of(block)
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.blocks.len()).unwrap_or(u32::MAX)
    }

    /// Where walks begin: the entry, then, as long as blocks are left that no walk has met, one of those: the first without a
    /// predecessor, else the first by index. Dead code, and code whose way in is not known, is like that.
    pub(super) fn roots(&self) -> &[u32] {
        &self.roots
    }
}

/// Where walks begin, and in which walk each block is met first.
fn walks(n: usize, edges: &[(u32, u32)]) -> (Vec<u32>, Vec<u32>) {
    const NONE: u32 = u32::MAX;
    let next = Csr::new(n, edges);
    let mut led_to = vec![false; n];
    for (_, to) in edges {
        if let Some(led_to) = led_to.get_mut(*to as usize) {
            *led_to = true;
        }
    }
    let all = || (0..).take(n);
    let without = all().zip(&led_to).filter(|(_, led_to)| !**led_to).map(|(block, _)| block);
    let mut walk = vec![NONE; n];
    let mut roots = Vec::new();
    let mut stack = Vec::new();
    for root in std::iter::once(0).chain(without).chain(all()) {
        if walk.get(root as usize) != Some(&NONE) {
            continue;
        }
        let number = u32::try_from(roots.len()).unwrap_or(NONE);
        roots.push(root);
        stack.push(root);
        while let Some(block) = stack.pop() {
            match walk.get_mut(block as usize) {
                Some(met @ &mut NONE) => *met = number,
                _ => continue,
            }
            stack.extend(next.of(block));
        }
    }
    (roots, walk)
}
