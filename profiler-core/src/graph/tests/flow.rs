//! Dominators and loops against their definitions.

use super::super::cfg::{Block, Cfg};
use super::super::dominators::{Dominators, immediate};
use super::super::loops::{Loops, loops};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Blocks of 10 bytes from 0 on.
fn cfg(n: u32, edges: &[(u32, u32)]) -> Cfg {
    let block =
        |i: u32| Block { range: u64::from(10 * i)..u64::from(10 * i + 10), last: u64::from(10 * i + 8) };
    Cfg::new((0..n).map(block).collect(), edges.to_vec())
}

fn random() -> impl Strategy<Value = (u32, Vec<(u32, u32)>)> {
    (1..14_u32).prop_flat_map(|n| (Just(n), prop::collection::vec((0..n, 0..n), 0..36)))
}

/// What is met from the roots if one block is passed by no way.
fn without(cfg: &Cfg, n: u32, removed: Option<u32>) -> BTreeSet<u32> {
    let mut met = BTreeSet::new();
    let mut stack = cfg.roots().to_vec();
    while let Some(block) = stack.pop() {
        if Some(block) != removed && met.insert(block) {
            stack.extend(cfg.next(block));
        }
    }
    assert!(removed.is_some() || met.len() as u32 == n, "roots reach everything");
    met
}

fn dominates(cfg: &Cfg, n: u32, above: u32, below: u32) -> bool {
    above == below || !without(cfg, n, Some(above)).contains(&below)
}

/// Whether control can go round by these edges.
fn is_cyclic(n: u32, edges: &[(u32, u32)]) -> bool {
    let mut left: BTreeSet<u32> = (0..n).collect();
    // A block without a predecessor among those left lies on no cycle.
    while let Some(first) =
        left.iter().copied().find(|b| !edges.iter().any(|(f, t)| t == b && left.contains(f)))
    {
        left.remove(&first);
    }
    !left.is_empty()
}

fn headers(found: &Loops) -> Vec<(u64, u32, Option<u32>)> {
    found.loops.iter().map(|l| (l.header, l.depth, l.parent)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_dominator_is_on_every_way((n, edges) in random()) {
        let cfg = cfg(n, &edges);
        let dominators = Dominators::of(&cfg);
        let parents = immediate(&cfg);
        prop_assert_eq!(parents.len() as u32, n);
        for below in 0..n {
            let mut strict = Vec::new();
            for above in 0..n {
                let want = dominates(&cfg, n, above, below);
                prop_assert_eq!(dominators.dominates(above, below), want, "{} {}", above, below);
                if want && above != below {
                    strict.push(above);
                }
            }
            // The immediate one is dominated by all others.
            let nearest = strict.iter().copied().find(|d| strict.iter().all(|other| dominates(&cfg, n, *other, *d)));
            prop_assert_eq!(parents[below as usize], nearest);
        }
    }

    #[test]
    fn loops_are_what_back_edges_make((n, edges) in random()) {
        let cfg = cfg(n, &edges);
        let found = loops(&cfg, false);
        let mut own: Vec<(u32, u32)> = (0..n).flat_map(|b| cfg.next(b).iter().map(move |to| (b, *to))).collect();
        let back: Vec<(u32, u32)> =
            own.iter().copied().filter(|(from, to)| dominates(&cfg, n, *to, *from)).collect();
        let want: BTreeSet<u64> = back.iter().map(|(_, h)| u64::from(10 * h)).collect();
        prop_assert_eq!(found.loops.iter().map(|l| l.header).collect::<BTreeSet<_>>(), want.clone());
        prop_assert_eq!(found.loops.len(), want.len());
        let mut bodies = Vec::new();
        for l in &found.loops {
            let header = (l.header / 10) as u32;
            let tails: Vec<u32> = back.iter().filter(|(_, h)| *h == header).map(|(t, _)| *t).collect();
            let mut lasts: Vec<u64> = tails.iter().map(|t| u64::from(10 * t + 8)).collect();
            lasts.sort_unstable();
            prop_assert_eq!(&l.back_edges, &lasts);
            // Who reaches a tail without passing the header.
            let mut body: BTreeSet<u32> = [header].into();
            body.extend(tails.iter().copied());
            loop {
                let more: Vec<u32> = own.iter().filter(|(f, t)| *t != header && body.contains(t) && !body.contains(f)).map(|(f, _)| *f).collect();
                if more.is_empty() { break }
                body.extend(more);
            }
            let blocks: BTreeSet<u32> =
                (0..n).filter(|b| l.body.iter().any(|r| r.contains(&u64::from(10 * b)))).collect();
            prop_assert_eq!(&blocks, &body);
            prop_assert!(l.body.windows(2).all(|w| w[0].end < w[1].start), "ranges are apart");
            bodies.push(blocks);
        }
        // The parent is the smallest loop around, and the depth their number.
        for (i, l) in found.loops.iter().enumerate() {
            let around: Vec<usize> =
                (0..bodies.len()).filter(|j| *j != i && bodies[*j].is_superset(&bodies[i])).collect();
            prop_assert_eq!(l.depth as usize, around.len() + 1);
            prop_assert_eq!(l.parent.map(|p| p as usize), around.iter().copied().min_by_key(|j| bodies[*j].len()));
        }
        own.retain(|edge| !back.contains(edge));
        prop_assert_eq!(!found.irreducible.is_empty(), is_cyclic(n, &own));
    }
}

#[test]
fn two_loops_in_one_another_and_one_that_is_none() {
    // 0 -> 1 -> 2 -> 2 and 2 -> 1 -> 3; 3 leads into the middle of 4 <-> 5.
    let found =
        loops(&cfg(6, &[(0, 1), (1, 2), (2, 2), (2, 1), (1, 3), (3, 4), (3, 5), (4, 5), (5, 4)]), false);
    assert_eq!(headers(&found), [(10, 1, None), (20, 2, Some(0))]);
    assert_eq!(found.loops[0].body, std::slice::from_ref(&(10..30)));
    assert_eq!(found.irreducible, [std::iter::once(40..60).collect::<Vec<_>>()]);
    assert_eq!((found.deepest(), found.uncertain, found.cut), (2, false, false));
}

#[test]
fn dead_code_is_no_way_into_a_loop() {
    // 0 jumps to the loop's end 3; 1 is padding in front of its begin 2; 4 is dead code with a loop of its own, which leads on to 2.
    let found = loops(&cfg(5, &[(0, 3), (1, 2), (2, 3), (3, 2), (4, 4), (4, 2)]), false);
    assert_eq!(headers(&found), [(30, 1, None), (40, 1, None)]);
    assert!(found.irreducible.is_empty());
}

/// What a file may hold to keep us busy: each takes well below a second.
#[test]
fn large_graphs_take_no_longer_than_their_size() {
    let n = 30_000;
    let chain = |i: u32| (i, i + 1);
    // A ladder of blocks that each lead back to the entry: one loop; and to the one before: as many as blocks.
    let one: Vec<_> = (0..n - 1).map(chain).chain((1..n).map(|i| (i, 0))).collect();
    assert_eq!(loops(&cfg(n, &one), false).loops.len(), 1);
    let nested: Vec<_> = (0..n - 1).map(chain).chain((0..n / 2).map(|i| (n - 1 - i, i))).collect();
    let found = loops(&cfg(n, &nested), false);
    assert!(found.cut && found.loops.len() > 10, "{} loops", found.loops.len());
    let branches: Vec<_> = (0..n - 1).map(chain).chain((0..n / 2).map(|i| (i, n - 1 - i))).collect();
    assert!(loops(&cfg(n, &branches), true).loops.is_empty());
    let many = u32::try_from(super::super::loops::MOST_BLOCKS).unwrap() + 1;
    assert!(loops(&cfg(many, &[]), false).cut);
    assert!(loops(&cfg(0, &[]), false).is_empty());
}
