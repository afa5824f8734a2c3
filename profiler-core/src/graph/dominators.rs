//! Dominators: which blocks every way to a block passes.
//!
//! T. Lengauer and R. E. Tarjan, "A Fast Algorithm for Finding Dominators in a Flowgraph", ACM TOPLAS 1(1), 1979: the simple version with
//! path compression, O(m log n). Cooper, Harvey and Kennedy's iteration is shorter and as fast on what compilers emit, but takes the square of
//! the blocks where a file is made for it.
//!
//! Deviation: the walk begins at a root beside the blocks, which leads to the entry and to every block that the entry does not reach
//! ([`Cfg::roots`]), so that each block has a dominator.

use super::cfg::Cfg;

const NONE: u32 = u32::MAX;

/// The dominator tree of a [`Cfg`].
#[derive(Debug)]
pub(super) struct Dominators {
    /// When a walk over the tree comes to a block, and when it leaves it.
    enter: Vec<u32>,
    leave: Vec<u32>,
}

impl Dominators {
    pub fn of(cfg: &Cfg) -> Self {
        let (enter, leave) = intervals(&Solver::of(cfg).solve(cfg));
        Self { enter, leave }
    }

    /// Whether every way to `below` passes `above`; a block dominates itself.
    pub fn dominates(&self, above: u32, below: u32) -> bool {
        let (a, b) = (above as usize, below as usize);
        self.enter[a] <= self.enter[b] && self.leave[b] <= self.leave[a]
    }
}

/// The immediate dominator of each block; none: no other block is passed on every way.
#[cfg(test)]
pub(super) fn immediate(cfg: &Cfg) -> Vec<Option<u32>> {
    Solver::of(cfg).solve(cfg).into_iter().map(|parent| (parent != NONE).then_some(parent)).collect()
}

/// The paper's arrays, by number in the order of the walk; 0 is the root. Indices are numbers that the walk gave out, so all of them lie
/// within the arrays.
struct Solver {
    /// Block of each number (less one, as the root is none) and number of each block.
    vertex: Vec<u32>,
    number: Vec<u32>,
    parent: Vec<u32>,
    semi: Vec<u32>,
    ancestor: Vec<u32>,
    label: Vec<u32>,
    dom: Vec<u32>,
    roots: Vec<bool>,
}

impl Solver {
    fn of(cfg: &Cfg) -> Self {
        let n = cfg.len() as usize;
        let mut solver = Self {
            vertex: vec![NONE],
            number: vec![NONE; n],
            parent: vec![0],
            semi: Vec::new(),
            ancestor: Vec::new(),
            label: Vec::new(),
            dom: Vec::new(),
            roots: vec![false; n],
        };
        let mut stack: Vec<(u32, u32)> = Vec::new();
        for root in cfg.roots() {
            solver.roots[*root as usize] = true;
            stack.push((*root, 0));
            while let Some((block, parent)) = stack.pop() {
                if solver.number[block as usize] != NONE {
                    continue;
                }
                let number = solver.vertex.len() as u32; // OK because there are fewer blocks than u32 counts
                solver.number[block as usize] = number;
                solver.vertex.push(block);
                solver.parent.push(parent);
                stack.extend(cfg.next(block).iter().rev().map(|next| (*next, number)));
            }
        }
        let all = solver.vertex.len();
        solver.semi = (0..all as u32).collect();
        solver.label = solver.semi.clone();
        solver.ancestor = vec![NONE; all];
        solver.dom = vec![0; all];
        solver
    }

    /// Immediate dominators by block; [`NONE`]: the root beside the blocks.
    fn solve(mut self, cfg: &Cfg) -> Vec<u32> {
        let all = self.vertex.len();
        // Lists of those whose semidominator is the index.
        let mut head = vec![NONE; all];
        let mut rest = vec![NONE; all];
        for w in (1..all as u32).rev() {
            let block = self.vertex[w as usize];
            let from_root = self.roots[block as usize].then_some(0);
            let before = cfg.before(block).iter().map(|b| self.number[*b as usize]).collect::<Vec<_>>();
            for v in before.into_iter().chain(from_root) {
                let u = self.eval(v);
                self.semi[w as usize] = self.semi[w as usize].min(self.semi[u as usize]);
            }
            let semi = self.semi[w as usize] as usize;
            rest[w as usize] = head[semi];
            head[semi] = w;
            let parent = self.parent[w as usize];
            self.ancestor[w as usize] = parent;
            let mut v = std::mem::replace(&mut head[parent as usize], NONE);
            while v != NONE {
                let u = self.eval(v);
                let earlier = self.semi[u as usize] < self.semi[v as usize];
                self.dom[v as usize] = if earlier { u } else { parent };
                v = rest[v as usize];
            }
        }
        let mut by_block = vec![NONE; self.number.len()];
        for w in 1..all {
            if self.dom[w] != self.semi[w] {
                self.dom[w] = self.dom[self.dom[w] as usize];
            }
            by_block[self.vertex[w] as usize] = self.vertex[self.dom[w] as usize];
        }
        by_block
    }

    /// The vertex of least semidominator on the way from `v` up to the root of its tree, that one left out.
    fn eval(&mut self, v: u32) -> u32 {
        if self.ancestor[v as usize] == NONE {
            return v;
        }
        // Path compression without recursion: chains are as long as functions.
        let mut path = Vec::new();
        let mut at = v;
        while self.ancestor[self.ancestor[at as usize] as usize] != NONE {
            path.push(at);
            at = self.ancestor[at as usize];
        }
        while let Some(below) = path.pop() {
            let above = self.ancestor[below as usize];
            let (a, b) = (self.label[above as usize], self.label[below as usize]);
            if self.semi[a as usize] < self.semi[b as usize] {
                self.label[below as usize] = a;
            }
            self.ancestor[below as usize] = self.ancestor[above as usize];
        }
        self.label[v as usize]
    }
}

/// When a walk over the tree of parents comes to each block and when it leaves it.
fn intervals(parent: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let n = parent.len();
    let pairs: Vec<(u32, u32)> =
        parent.iter().zip(0..).map(|(p, i)| (if *p == NONE { n as u32 } else { *p }, i)).collect();
    let children = super::csr::Csr::new(n + 1, &pairs);
    let (mut enter, mut leave) = (vec![0; n], vec![0; n]);
    let mut clock = 0;
    let mut stack: Vec<(u32, bool)> = children.of(n as u32).iter().map(|child| (*child, false)).collect();
    while let Some((block, done)) = stack.pop() {
        clock += 1;
        if done {
            leave[block as usize] = clock;
            continue;
        }
        enter[block as usize] = clock;
        stack.push((block, true));
        stack.extend(children.of(block).iter().map(|child| (*child, false)));
    }
    (enter, leave)
}
