//! Reachability, components, chains and clusters against their definitions.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A random graph of up to 12 functions.
fn random() -> impl Strategy<Value = (u32, Vec<(u32, u32)>)> {
    (1..12_u32).prop_flat_map(|n| (Just(n), prop::collection::vec((0..n, 0..n), 0..30)))
}

fn calls(n: u32, edges: &[(u32, u32)]) -> Graph {
    let calls: Vec<_> = edges.iter().map(|(from, to)| (*from, *to, Transfer::Call)).collect();
    graph(n, &calls)
}

/// What is reached from a vertex by at least one edge, by repeated joining.
fn closure(n: u32, edges: &[(u32, u32)]) -> Vec<BTreeSet<u32>> {
    let mut reached: Vec<BTreeSet<u32>> =
        (0..n).map(|v| edges.iter().filter(|(from, _)| *from == v).map(|(_, to)| *to).collect()).collect();
    for _ in 0..n {
        for v in 0..n as usize {
            let more: BTreeSet<u32> = reached[v].iter().flat_map(|w| reached[*w as usize].clone()).collect();
            reached[v].extend(more);
        }
    }
    reached
}

/// All ways without a function twice, by length.
fn all_chains(
    edges: &[(u32, u32)],
    chain: &[u32],
    to: u32,
    most: usize,
    found: &mut BTreeSet<(usize, Vec<u32>)>,
) {
    let last = chain[chain.len() - 1];
    if last == to {
        found.insert((chain.len(), chain.to_vec()));
    }
    if chain.len() > most {
        return;
    }
    for (_, next) in edges.iter().filter(|(from, next)| *from == last && !chain.contains(next)) {
        all_chains(edges, &[chain, &[*next]].concat(), to, most, found);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn reached_is_the_closure((n, edges) in random(), limit in 1..14_usize) {
        let graph = calls(n, &edges);
        let closure = closure(n, &edges);
        for v in 0..n {
            let mut want = closure[v as usize].clone();
            want.insert(v);
            let all = graph.reachable(&ids(&[v]), Kinds::CALLS, usize::MAX);
            prop_assert_eq!(all.nodes.iter().map(|(id, _)| id.0).collect::<BTreeSet<_>>(), want.clone());
            prop_assert!(!all.cut && all.nodes.is_sorted_by_key(|(_, depth)| *depth));
            let some = graph.reachable(&ids(&[v]), Kinds::CALLS, limit);
            prop_assert_eq!((some.nodes.len(), some.cut), (want.len().min(limit), want.len() > limit));
            let back = graph.reaching(&ids(&[v]), Kinds::CALLS, usize::MAX);
            let who: BTreeSet<u32> = (0..n).filter(|w| *w == v || closure[*w as usize].contains(&v)).collect();
            prop_assert_eq!(back.nodes.iter().map(|(id, _)| id.0).collect::<BTreeSet<_>>(), who);
        }
        prop_assert!(graph.reachable(&ids(&[0]), Kinds::of(EdgeKind::Tail), 99).nodes.len() == 1);
    }

    #[test]
    fn components_reach_one_another((n, edges) in random()) {
        let closure = closure(n, &edges);
        let found = calls(n, &edges).components(Kinds::CALLS).recursive;
        prop_assert!(found.is_sorted_by_key(|c| std::cmp::Reverse(c.len())));
        for v in 0..n {
            let want: BTreeSet<u32> =
                (0..n).filter(|w| closure[v as usize].contains(w) && closure[*w as usize].contains(&v)).collect();
            let mut of_v = found.iter().filter(|c| c.contains(&NodeId(v)));
            let got = of_v.next().map(|c| c.iter().map(|id| id.0).collect()).unwrap_or_default();
            prop_assert_eq!(want, got);
            prop_assert!(of_v.next().is_none());
        }
    }

    #[test]
    fn chains_are_all_ways_the_shortest_first((n, edges) in random(), most in 1..8_usize, number in 1..40_usize) {
        let graph = calls(n, &edges);
        let to = n - 1;
        let mut want = BTreeSet::new();
        all_chains(&edges, &[0], to, most, &mut want);
        let limits = ChainLimits { calls: most, chains: usize::MAX, steps: usize::MAX };
        let all = graph.chains(&ids(&[0]), &ids(&[to]), Kinds::CALLS, limits);
        let got: Vec<(usize, Vec<u32>)> =
            all.chains.iter().map(|c| (c.len(), c.iter().map(|id| id.0).collect())).collect();
        prop_assert!(got.is_sorted_by_key(|(len, _)| *len));
        prop_assert_eq!(got.iter().cloned().collect::<BTreeSet<_>>(), want.clone());
        prop_assert_eq!(got.len(), want.len(), "each once");
        let mut longer = BTreeSet::new();
        all_chains(&edges, &[0], to, n as usize, &mut longer);
        // It may say that there are longer ones where only ways back are left; it never says that there are none.
        prop_assert!(all.cut_by_calls || longer.len() == want.len());
        let some = graph.chains(&ids(&[0]), &ids(&[to]), Kinds::CALLS, ChainLimits { chains: number, ..limits });
        prop_assert_eq!(&some.chains[..], &all.chains[..number.min(all.chains.len())]);
        prop_assert_eq!(some.cut_by_number, all.chains.len() > number);
    }

    #[test]
    fn clusters_are_connected_and_hold_every_call_of_the_tree((n, edges) in random(), most in 2..6_usize) {
        let graph = calls(n, &edges);
        let limits = ClusterLimits { functions: most, reached: 99 };
        let clusters = graph.clusters(NodeId(0), Kinds::CALLS, limits);
        let reached: BTreeSet<NodeId> =
            graph.reachable(&ids(&[0]), Kinds::CALLS, 99).nodes.iter().map(|(id, _)| *id).collect();
        prop_assert_eq!(clusters.functions, reached.len());
        let mut once = BTreeSet::new();
        for cluster in &clusters.clusters {
            prop_assert!(cluster.nodes.len() <= most && cluster.nodes[0] == cluster.root);
            for (i, id) in cluster.nodes.iter().enumerate().skip(1) {
                let caller = cluster.nodes[..i].iter().any(|from| graph.callees(*from).any(|e| e.node == *id));
                prop_assert!(caller, "{:?} is not connected", cluster);
                prop_assert!(once.insert(*id), "only roots are in two clusters");
            }
        }
        once.insert(NodeId(0));
        prop_assert_eq!(&once, &reached);
        prop_assert_eq!(clusters.clusters.len() > 1, reached.len() > most);
        let few = graph.clusters(NodeId(0), Kinds::CALLS, ClusterLimits { functions: most, reached: 2 });
        prop_assert_eq!((few.functions, few.cut), (reached.len().min(2), reached.len() > 2));
    }
}

#[test]
fn chains_say_what_cut_them() {
    // Two ways at each of ten steps.
    let edges: Vec<(u32, u32)> = (0..10)
        .flat_map(|i| {
            [(3 * i, 3 * i + 1), (3 * i, 3 * i + 2), (3 * i + 1, 3 * i + 3), (3 * i + 2, 3 * i + 3)]
        })
        .collect();
    let graph = calls(31, &edges);
    let chains = |limits| graph.chains(&ids(&[0]), &ids(&[30]), Kinds::CALLS, limits);
    let most = ChainLimits { calls: 20, chains: 2000, steps: usize::MAX };
    let all = chains(most);
    assert_eq!(
        (all.chains.len(), all.cut_by_calls, all.cut_by_number, all.cut_by_steps),
        (1024, false, false, false)
    );
    let few = chains(ChainLimits { chains: 1023, ..most });
    assert_eq!((few.chains.len(), few.cut_by_number), (1023, true));
    let short = chains(ChainLimits { calls: 19, ..most });
    assert_eq!((short.chains.len(), short.cut_by_calls), (0, true));
    let hasty = chains(ChainLimits { steps: 100, ..most });
    assert!(hasty.cut_by_steps && hasty.chains.len() < 1024);
    let none = graph.chains(&ids(&[30]), &ids(&[0]), Kinds::CALLS, most);
    assert_eq!(none, Chains::default());
    // From a function to itself there is one of no call.
    assert_eq!(graph.chains(&ids(&[30]), &ids(&[30]), Kinds::CALLS, most).chains, [ids(&[30])]);
    assert_eq!(graph.chains(&ids(&[77]), &ids(&[30]), Kinds::CALLS, most), Chains::default());
}
