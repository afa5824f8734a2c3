//! Who can have led to a function, against a search through all ways.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A graph whose functions have no callers but those that it shows, but for the `open` ones.
fn closed(n: u32, edges: &[(u32, u32, Transfer)], open: &[u32]) -> Graph {
    let mut builder = Builder::default();
    for i in 0..n {
        let mut node = Node::function(format!("f{i}"), Origin::Symbol, start(i)..start(i) + 100);
        // Nothing calls what a program begins with.
        node.entry = !edges
            .iter()
            .any(|(from, to, transfer)| *to == i && !(from == to && *transfer == Transfer::Jump));
        let id = builder.node(node);
        let own = edges.iter().enumerate().filter(|(_, call)| call.0 == i);
        let sites = own.map(|(nth, (_, to, transfer))| RawSite {
            at: start(i) + 1 + nth as u64 % 90,
            transfer: *transfer,
            ..site(Target::Address(start(*to)))
        });
        builder.code(id, Decoded { sites: sites.collect(), ..Decoded::default() });
    }
    for (at, i) in (0..).zip(open) {
        builder.pointer(9_000_000 + 8 * at, Target::Address(start(*i)));
    }
    builder.finish()
}

type Edges = Vec<(u32, u32, Transfer)>;

/// Functions, edges, those that are watched, those that may be called from elsewhere.
fn random() -> impl Strategy<Value = (u32, Edges, BTreeSet<u32>, BTreeSet<u32>)> {
    let transfer = prop_oneof![Just(Transfer::Call), Just(Transfer::Jump)];
    (2..10_u32).prop_flat_map(move |n| {
        (
            Just(n),
            prop::collection::vec((0..n, 0..n, transfer.clone()), 1..20),
            prop::collection::btree_set(0..n, 0..4),
            prop::collection::btree_set(0..n, 0..2),
        )
    })
}

/// Watched functions with a way to `to` through others, and all others on such ways, by going backwards step by step.
fn by_hand(
    edges: &[(u32, u32, Transfer)],
    watched: &BTreeSet<u32>,
    to: u32,
    jumps_alone: bool,
) -> (Vec<NodeId>, BTreeSet<u32>) {
    let (mut found, mut passed) = (BTreeSet::new(), BTreeSet::from([to]));
    loop {
        let before = passed.len();
        for (from, callee, transfer) in edges {
            // A jump to the function's own start is no edge of the graph.
            let is_own_jump = from == callee && *transfer == Transfer::Jump;
            if !passed.contains(callee) || jumps_alone && *transfer == Transfer::Call || is_own_jump {
                continue;
            }
            if watched.contains(from) {
                found.insert(NodeId(*from));
            } else {
                passed.insert(*from);
            }
        }
        if passed.len() == before {
            return (found.into_iter().collect(), passed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn sources_are_what_going_backwards_finds((n, edges, watched, open) in random()) {
        let graph = closed(n, &edges, &open.iter().copied().collect::<Vec<_>>());
        let sources = Sources::new(&graph, |_| false);
        for to in 0..n {
            for (kinds, jumps_alone) in [(Kinds::CALLS, false), (Kinds::TAILS, true)] {
                let (found, passed) = by_hand(&edges, &watched, to, jumps_alone);
                let is_known = passed.is_disjoint(&open);
                let got = sources.of(NodeId(to), kinds, |id| watched.contains(&id.0));
                prop_assert_eq!(got, is_known.then_some(found), "to {}", to);
            }
        }
    }
}

#[test]
fn who_may_be_called_from_elsewhere_has_no_sources() {
    // 0 is where the program begins; it calls 1 and takes the address of 2, which calls 3. 4 has no caller.
    let mut builder = Builder::default();
    let mut ids = Vec::new();
    for i in 0..5 {
        let mut node = Node::function(format!("f{i}"), Origin::Symbol, start(i)..start(i) + 100);
        node.entry = i == 0;
        node.exported = i == 1;
        ids.push(builder.node(node));
    }
    let call = |from: u32, to: u32| RawSite { at: start(from) + 1, ..site(Target::Address(start(to))) };
    let taken = vec![(start(0) + 20, Target::Address(start(2)))];
    builder.code(ids[0], Decoded { sites: vec![call(0, 1)], taken, ..Decoded::default() });
    builder.code(ids[2], Decoded { sites: vec![call(2, 3)], ..Decoded::default() });
    let graph = builder.finish();
    let of = |sources: &Sources<'_>, to: usize| sources.of(ids[to], Kinds::CALLS, |id| id == ids[2]);
    let sources = Sources::new(&graph, |_| false);
    assert_eq!(of(&sources, 1), Some(vec![]), "from the beginning alone");
    assert_eq!(of(&sources, 2), Some(vec![]), "its address is what the program begins with");
    assert_eq!(of(&sources, 3), Some(vec![ids[2]]));
    assert_eq!(of(&sources, 4), None, "somebody calls it whom the graph does not show");
    let sources = Sources::new(&graph, |node| node.exported);
    assert_eq!(of(&sources, 1), None);
}

#[test]
fn code_that_is_not_read_hides_calls() {
    let mut builder = Builder::default();
    let a = builder.node(Node::function("a", Origin::Symbol, 1000..1100));
    let b = builder.node(Node::function("b", Origin::Symbol, 1100..1200));
    let sites = vec![RawSite { at: 1010, ..site(Target::Address(1100)) }];
    let facts = Facts { undecoded_bytes: 3, ..Facts::default() };
    builder.code(a, Decoded { sites, facts, ..Decoded::default() });
    let graph = builder.finish();
    assert_eq!(Sources::new(&graph, |_| false).of(b, Kinds::CALLS, |id| id == a), None);
}
