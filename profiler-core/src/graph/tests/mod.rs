//! Graphs that are made up, and random ones against definitions.

mod algorithms;
mod flow;
mod sources;

use super::*;
use crate::class::SiteClass;

/// Functions of 100 bytes, one after the other from 1000 on; `calls`: caller, callee, how.
fn graph(functions: u32, calls: &[(u32, u32, Transfer)]) -> Graph {
    let mut builder = Builder::default();
    for i in 0..functions {
        let mut node = Node::function(format!("f{i}"), Origin::Symbol, start(i)..start(i) + 100);
        node.facts.returns = true;
        node.exported = i == 0;
        let id = builder.node(node);
        let own = calls.iter().enumerate().filter(|(_, call)| call.0 == i);
        let sites = own.map(|(nth, (_, to, transfer))| RawSite {
            at: start(i) + 1 + nth as u64 % 90,
            transfer: *transfer,
            ..site(Target::Address(start(*to)))
        });
        let facts = Facts { returns: true, ..Facts::default() };
        builder.code(id, Decoded { sites: sites.collect(), facts, ..Decoded::default() });
    }
    builder.finish()
}

fn start(function: u32) -> u64 {
    1000 + 100 * u64::from(function)
}

fn site(to: Target) -> RawSite {
    RawSite {
        at: 0,
        len: 5,
        transfer: Transfer::Call,
        way: Way::Direct,
        to,
        class: Some(SiteClass::Branch),
        return_class: None,
    }
}

fn ids(numbers: &[u32]) -> Vec<NodeId> {
    numbers.iter().map(|n| NodeId(*n)).collect()
}

/// `main` at 1000, `g` at 1100 with a part at 5000, an import, a thunk at 1200.
fn small() -> (Graph, [NodeId; 4]) {
    let mut builder = Builder::default();
    let puts = builder.node(Node::import("puts"));
    let g = builder.node(Node::function("g", Origin::Symbol, 1100..1200));
    let main = builder.node(Node::function("main", Origin::Symbol, 1000..1100));
    let thunk = builder.node(Node::function("__x86_indirect_thunk_rax", Origin::Symbol, 1200..1220));
    let sites = vec![
        RawSite { at: 1050, ..site(Target::Address(1100)) },
        RawSite { at: 1010, way: Way::Plt, ..site(Target::Node(puts)) },
        RawSite { at: 1020, ..site(Target::Address(1104)) },
        RawSite { at: 1030, ..site(Target::Address(1200)) },
        RawSite { at: 1040, ..site(Target::Address(9999)) },
        RawSite { at: 1060, len: 2, way: Way::Register, ..site(Target::Unknown) },
        RawSite { at: 1070, transfer: Transfer::Jump, ..site(Target::Address(5004)) },
        RawSite { at: 1080, transfer: Transfer::Branch, ..site(Target::Address(1000)) },
    ];
    let taken =
        vec![(1044, Target::Address(1100)), (1045, Target::Address(1101)), (1046, Target::Node(puts))];
    builder.code(main, Decoded { sites, taken, ..Decoded::default() });
    builder.code(g, Decoded { parts: std::iter::once(5000..5010).collect(), ..Decoded::default() });
    builder.pointer(7000, Target::Address(1000));
    builder.pointer(7008, Target::Address(1001));
    (builder.finish(), [puts, g, main, thunk])
}

#[test]
fn addresses_become_functions() {
    let (graph, [puts, g, main, thunk]) = small();
    let sites: Vec<_> =
        graph.sites(main).iter().map(|s| (s.at, s.to, s.inside, s.is_indirect(), s.kind())).collect();
    assert_eq!(
        sites,
        [
            (1010, Some(puts), false, false, EdgeKind::Plt),
            (1020, Some(g), true, false, EdgeKind::Call),
            // Through a thunk any function may be called.
            (1030, None, false, true, EdgeKind::Seen),
            (1050, Some(g), false, false, EdgeKind::Call),
            (1060, None, false, true, EdgeKind::Seen),
            // Into the part of another function.
            (1070, Some(g), true, false, EdgeKind::Tail),
        ]
    );
    let node = graph.node(main).unwrap();
    assert_eq!(
        (node.stray_branches, node.held),
        (1, true),
        "9999 is no code; the jump to its own start is no call"
    );
    assert_eq!(graph.pointers(), [Pointer { at: 7000, node: main }], "1001 is no start");
    assert_eq!(
        graph.taken(main).iter().map(|t| (t.at, t.node)).collect::<Vec<_>>(),
        [(1044, g), (1046, puts)]
    );
    let edges: Vec<_> =
        graph.callees(main).map(|e| (e.node, e.kinds.iter().collect::<Vec<_>>(), e.sites)).collect();
    assert_eq!(
        edges,
        [
            (puts, vec![EdgeKind::Plt, EdgeKind::Taken], 2),
            (g, vec![EdgeKind::Call, EdgeKind::Tail, EdgeKind::Taken], 4)
        ]
    );
    assert_eq!(graph.callers(g).map(|e| (e.node, e.sites)).collect::<Vec<_>>(), [(main, 4)]);
    assert_eq!((graph.at(1100), graph.at(1101), graph.covering(1101)), (Some(g), None, Some(g)));
    assert_eq!(
        (graph.covering(5009), graph.covering(5010), graph.covering(1200)),
        (Some(g), None, Some(thunk))
    );
    assert_eq!(graph.site(main, 1020).unwrap().return_address(), Some(1025));
    assert_eq!(graph.site_before(main, 1062).unwrap().at, 1060);
    assert!(graph.site_before(main, 1061).is_none() && graph.site(main, 1021).is_none());
    assert_eq!(graph.site(main, 1070).unwrap().return_address(), None);
    assert_eq!(graph.node(puts).unwrap().address(), None);
}

#[test]
fn the_innermost_of_functions_that_overlap_holds_an_address() {
    let mut builder = Builder::default();
    let outer = builder.node(Node::function("outer", Origin::Symbol, 1000..1100));
    let inner = builder.node(Node::function("inner", Origin::Symbol, 1040..1060));
    let again = builder.node(Node::function("again", Origin::Symbol, 1000..1010));
    let fall = RawSite { at: 1039, len: 1, transfer: Transfer::Fall, ..site(Target::Address(1040)) };
    builder.code(outer, Decoded { sites: vec![fall], ..Decoded::default() });
    let graph = builder.finish();
    assert_eq!([1039, 1040, 1059, 1060].map(|a| graph.covering(a)), [outer, inner, inner, outer].map(Some));
    assert_eq!(graph.at(1000), Some(outer), "the first of two at one address");
    assert_eq!(graph.callees(outer).next().unwrap().kinds, Kinds::of(EdgeKind::Fall));
    assert_eq!(graph.callers(again).count(), 0);
}

#[test]
fn what_was_seen_becomes_an_edge() {
    let (mut graph, [puts, g, main, _]) = small();
    let before = graph.callees(main).count();
    assert_eq!(graph.add_seen(main, 1060, main), Ok(true));
    assert_eq!(graph.add_seen(main, 1060, main), Ok(false), "once");
    assert_eq!(graph.add_seen(main, 1050, g), Ok(false), "that is known");
    assert_eq!(graph.callees(main).count(), before + 1);
    assert_eq!(
        graph.callers(main).map(|e| (e.node, e.kinds)).collect::<Vec<_>>(),
        [(main, Kinds::of(EdgeKind::Seen))]
    );
    // An edge that is there becomes one of that kind, too.
    assert_eq!(graph.add_seen(main, 1060, puts), Ok(true));
    let edge = graph.callees(main).find(|e| e.node == puts).unwrap();
    assert!(edge.kinds.has(EdgeKind::Seen) && edge.kinds.has(EdgeKind::Plt) && edge.sites == 3, "{edge:?}");
    assert_eq!(graph.seen(main, 1060).collect::<Vec<_>>(), [puts, main]);
    assert_eq!(graph.add_seen(main, 1061, g), Err(UnknownSite::Site { caller: main, at: 1061 }));
    assert_eq!(graph.add_seen(main, 1060, NodeId(99)), Err(UnknownSite::Node(NodeId(99))));
    assert_eq!(
        graph.add_seen(NodeId(99), 1060, g).unwrap_err().to_string(),
        "function 99 has no call site at 0x424"
    );
}

#[test]
fn an_executed_call_is_explained() {
    use Transfer::{Branch, Call, Fall, Jump};
    let calls = [(0, 1, Call), (1, 2, Jump), (2, 3, Branch), (3, 4, Fall), (4, 5, Call), (2, 1, Jump)];
    let graph = graph(7, &calls);
    let at = |i: u32| graph.sites(NodeId(i))[0].return_address().unwrap();
    let explain = |from: u32, address, to: u32| graph.explains(NodeId(from), address, NodeId(to));
    assert_eq!(explain(0, at(0), 1), Explanation::Edge(EdgeKind::Call));
    // The return address is that of the first call, however often it was jumped on.
    for to in [2, 3, 4] {
        assert_eq!(explain(0, at(0), to), Explanation::Edge(EdgeKind::Tail), "{to}");
    }
    assert_eq!(explain(0, at(0), 5), Explanation::Unknown, "4 calls it, and returns to itself");
    assert_eq!(explain(4, at(4), 5), Explanation::Edge(EdgeKind::Call));
    assert_eq!(explain(0, at(0) + 1, 1), Explanation::Unknown);
    assert_eq!(explain(0, at(0), 6), Explanation::Unknown);

    let (mut graph, [_, g, main, thunk]) = small();
    assert_eq!(graph.explains(main, 1062, thunk), Explanation::Indirect);
    graph.add_seen(main, 1060, g).unwrap();
    assert_eq!(graph.explains(main, 1062, g), Explanation::Edge(EdgeKind::Seen));
    assert_eq!(graph.explains(main, 1062, thunk), Explanation::Indirect);
}

#[test]
fn what_the_loader_or_a_pointer_chooses_is_indirect() {
    let mut builder = Builder::default();
    let mut memcpy = Node::function("memcpy", Origin::Symbol, 1000..1010);
    memcpy.ifunc = true;
    let memcpy = builder.node(memcpy);
    let fast = builder.node(Node::function("fast", Origin::Symbol, 1100..1110));
    let through = builder.node(Node::function("through", Origin::Symbol, 1200..1210));
    let caller = builder.node(Node::function("caller", Origin::Symbol, 1300..1400));
    let jump = RawSite { at: 1205, transfer: Transfer::Jump, way: Way::Memory, ..site(Target::Unknown) };
    builder.code(through, Decoded { sites: vec![jump], ..Decoded::default() });
    let sites = vec![
        RawSite { at: 1310, ..site(Target::Node(memcpy)) },
        RawSite { at: 1320, ..site(Target::Node(through)) },
    ];
    builder.code(caller, Decoded { sites, ..Decoded::default() });
    let mut graph = builder.finish();
    assert_eq!(graph.explains(caller, 1315, fast), Explanation::Indirect);
    assert_eq!(graph.explains(caller, 1325, fast), Explanation::Indirect);
    graph.add_seen(through, 1205, fast).unwrap();
    assert_eq!(graph.explains(caller, 1325, fast), Explanation::Edge(EdgeKind::Tail));
}

#[test]
fn who_never_returns() {
    let mut builder = Builder::default();
    let abort = builder.node(Node::import("abort"));
    let free = builder.node(Node::import("free"));
    let fail = builder.node(Node::function("fail", Origin::Symbol, 1000..1010));
    let on = builder.node(Node::function("on", Origin::Symbol, 1100..1110));
    let plain = builder.node(Node::function("plain", Origin::Symbol, 1200..1210));
    let odd = builder.node(Node::function("odd", Origin::Symbol, 1300..1310));
    let release = builder.node(Node::function("release", Origin::Symbol, 1400..1410));
    let jump = |at, to| RawSite { at, transfer: Transfer::Jump, ..site(Target::Node(to)) };
    builder.code(fail, Decoded { sites: vec![site(Target::Node(abort))], ..Decoded::default() });
    builder.code(on, Decoded { sites: vec![jump(1105, fail)], ..Decoded::default() });
    let facts = Facts { returns: true, ..Facts::default() };
    builder.code(plain, Decoded { sites: vec![site(Target::Node(fail))], facts, ..Decoded::default() });
    let facts = Facts { undecoded_bytes: 3, ..Facts::default() };
    builder.code(odd, Decoded { facts, ..Decoded::default() });
    builder.code(release, Decoded { sites: vec![jump(1405, free)], ..Decoded::default() });
    let never = builder.finish().never_return();
    let never = |id: NodeId| never[id.0 as usize];
    assert!(never(abort) && never(fail) && never(on));
    assert!(
        !never(free) && !never(plain) && !never(odd) && !never(release),
        "a jump to `free` returns from there"
    );
}

#[test]
fn counts() {
    let (mut graph, [_, g, main, thunk]) = small();
    graph.add_seen(main, 1060, g).unwrap();
    let totals = graph.totals();
    let edges: Vec<_> =
        totals.edges.iter().filter(|(_, n)| *n > 0).map(|(kind, n)| (kind.name(), *n)).collect();
    assert_eq!(edges, [("call", 1), ("plt", 1), ("tail", 1), ("seen", 1), ("taken", 2)]);
    assert_eq!((totals.functions, totals.imports, totals.sites, totals.held), (3, 1, 6, 1));
    assert_eq!((totals.indirect_calls, totals.indirect_jumps, totals.indirect_seen), (2, 0, 1));
    // `main` is held in data, and calls `g`; the thunk is called by no edge.
    assert_eq!((graph.unreachable(), totals.unreachable), (vec![thunk], 1));
    assert_eq!(graph.doubts(), Doubts { stray: (1, 1), ..Doubts::default() });
}
