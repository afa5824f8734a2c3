//! The faces of a small graph of which everything is known.

use super::super::TextOptions;
use super::*;
use crate::inspect::SymbolSource;
use expect_test::expect;
use profiler_core::class::SiteClass;
use profiler_core::graph::cfg::{Block, Cfg};
use profiler_core::graph::{Builder, Decoded, Facts, Node, Origin, RawSite, Target, Transfer, Way, loops};
use std::path::PathBuf;

/// `main` calls `parse` twice and `run`; `run` calls `step`, `free` and through a pointer, and jumps on to `parse`; `step` calls `run` and takes
/// the address of `hook`, which nobody calls; `dead` is reached by nothing.
fn sample() -> CallGraph {
    let mut builder = Builder::default();
    let free = builder.node(Node::import("free"));
    let mut ids = Vec::new();
    for (i, symbol) in
        ["main", "_ZN2db5parseEPKc", "run", "step", "hook", "de\u{202e}ad"].into_iter().enumerate()
    {
        let start = 0x1000 + 0x100 * i as u64;
        let mut node = Node::function(symbol, Origin::Symbol, start..start + 0x100);
        node.entry = symbol == "main";
        ids.push(builder.node(node));
    }
    let [main, parse, run, step, hook, _] = ids[..] else { panic!("{ids:?}") };
    let site = |at, to| RawSite {
        at,
        len: 5,
        transfer: Transfer::Call,
        way: Way::Direct,
        to,
        class: Some(SiteClass::Branch),
        return_class: Some(SiteClass::Stepped),
    };
    let facts = Facts { returns: true, ..Facts::default() };
    let code = |sites| Decoded { sites, facts, ..Decoded::default() };
    let call = |at, to| site(at, Target::Node(to));
    builder.code(main, code(vec![call(0x1010, parse), call(0x1020, parse), call(0x1030, run)]));
    let pointer = RawSite { len: 2, way: Way::Register, ..site(0x1230, Target::Unknown) };
    let plt = RawSite { way: Way::Plt, ..call(0x1220, free) };
    let tail = RawSite { transfer: Transfer::Jump, return_class: None, ..call(0x1240, parse) };
    builder.code(run, code(vec![call(0x1210, step), plt, pointer, tail]));
    let taken = vec![(0x1310, Target::Node(hook))];
    builder.code(step, Decoded { taken, ..code(vec![call(0x1320, run)]) });
    let mut graph = builder.finish();
    let block = |from: u64, to: u64| Block { range: from..to, last: to - 2 };
    let blocks = vec![block(0x1200, 0x1210), block(0x1210, 0x1230), block(0x1230, 0x1240)];
    graph.set_loops(run, loops::loops(&Cfg::new(blocks, vec![(0, 1), (1, 2), (2, 1)]), false));
    CallGraph {
        graph,
        module: "app".to_owned(),
        path: PathBuf::from("./app"),
        build_id: Some("00ff".to_owned()),
        symbols: SymbolSource::ExportsOnly,
        notes: vec!["app is stripped: only the functions that it exports have names".to_owned()],
    }
}

fn query(from: &[u32], to: &[u32]) -> Query {
    let ids = |numbers: &[u32]| numbers.iter().map(|n| NodeId(*n)).collect();
    Query { from: ids(from), to: ids(to), rows: 100, ..Query::default() }
}

fn shown(query: &Query) -> String {
    text(&sample(), query, TextOptions { width: 80, ..TextOptions::default() })
}

#[test]
fn a_tree_lists_each_function_once() {
    expect![[r#"
        main
        ├─ db::parse  ×2
        └─ run  1 loop
           ├─ (1 indirect call)
           ├─ step
           │  └─ run  1 loop, recursive
           ├─ free  import
           └─ db::parse  tail jump

        4 functions and 1 import of app reached in at most 2 calls: 8 call sites, 1 through pointers, 1 loop
        what is called through pointers is not followed (--addresses-taken guesses some)
    "#]]
    .assert_eq(&shown(&query(&[1], &[])));
    expect![[r#"
        main
        ├─ db::parse  ×2
        └─ run  1 loop, goes on

        4 functions and 1 import of app reached in at most 2 calls: 8 call sites, 1 through pointers, 1 loop
        what is called through pointers is not followed (--addresses-taken guesses some)
    "#]]
    .assert_eq(&shown(&Query { depth: Some(1), rows: 3, ..query(&[1], &[]) }));
    expect![[r#"
        step
        ├─ run  1 loop
        │  ├─ (1 indirect call)
        │  ├─ step  recursive
        │  ├─ free  import
        │  └─ db::parse  tail jump
        └─ hook  address taken

        4 functions and 1 import of app reached in at most 2 calls: 5 call sites, 1 through pointers, 1 loop
    "#]]
    .assert_eq(&shown(&Query { addresses_taken: true, ..query(&[4], &[]) }));
    expect![[r#"
        db::parse
        ├─ main  ×2
        └─ run  tail jump
           ├─ main
           └─ step
              └─ run  recursive

        4 functions can get there, these included, in at most 2 calls; calls through pointers are not among them
    "#]].assert_eq(&shown(&query(&[], &[2])));
}

#[test]
fn chains_and_what_cut_them() {
    expect![[r#"
        main -> db::parse
        main -> run -> db::parse

        2 chains of 1 to 2 calls
        calls through pointers are not among them (--addresses-taken guesses some)
    "#]]
    .assert_eq(&shown(&query(&[1], &[2])));
    expect![[r#"
        main -> db::parse

        1 chain of 1 call
        there are more than 1 (--rows)
        chains of more than 1 call were not looked for (--depth)
        calls through pointers are not among them (--addresses-taken guesses some)
    "#]]
    .assert_eq(&shown(&Query { depth: Some(1), rows: 1, ..query(&[1], &[2, 3]) }));
    expect![[r#"
        no chain of at most 12 calls
        calls through pointers are not among them (--addresses-taken guesses some)
    "#]]
    .assert_eq(&shown(&query(&[4], &[6])));
}

#[test]
fn a_summary_counts_and_says_what_is_not_certain() {
    expect![[r#"
        app: call graph from machine code

          functions     6; 1 import
          edges         4 by direct calls, 1 by calls through the PLT, 1 by tail jumps,
                        1 by addresses taken
          call sites    8, of which 1 indirect call and 0 indirect jumps lead where the
                        program chooses
          in data       addresses of 0 functions
          loops         1 in 1 function, at most 1 deep
          recursion     1 group, the largest of 2 functions: run, step
          unreachable   1 function that no export, entry, address in data or reachable
                        code leads to: de\u{202e}ad
          most callers  db::parse (2), run (2), free (1), step (1)
          note          app is stripped: only the functions that it exports have names
    "#]]
    .assert_eq(&shown(&query(&[], &[])));
}

#[test]
fn a_drawing_has_what_was_asked_for() {
    expect![[r#"
        digraph calls {
          label="app";
          rankdir=LR;
          node [shape=box, fontname="sans-serif", fontsize=10];
          n0 [label="free", style=dashed];
          n1 [label="main", style=bold];
          n2 [label="db::parse"];
          n3 [label="run\n1 loop"];
          i3 [label="?", shape=circle, style=dotted];
          n3 -> i3 [style=dotted, label="1"];
          n4 [label="step"];
          n1 -> n2 [label="2"];
          n1 -> n3;
          n3 -> n4;
          n3 -> n0;
          n3 -> n2 [style=dashed];
          n4 -> n3;
        }
    "#]]
    .assert_eq(&dot(&sample(), &query(&[1], &[])));
}

#[test]
fn json_has_what_was_asked_for() {
    let json: serde_json::Value = serde_json::from_str(&json(&sample(), &query(&[3], &[])).unwrap()).unwrap();
    let names: Vec<_> =
        json["functions"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["free", "db::parse(char const*)", "run", "step"]);
    expect![[r#"
        {
          "address": 4608,
          "id": 3,
          "loops": [
            {
              "back_edges": [
                4670
              ],
              "body": [
                [
                  4624,
                  4672
                ]
              ],
              "depth": 1,
              "header": 4624,
              "parent": null
            }
          ],
          "name": "run",
          "origin": "symbol",
          "ranges": [
            [
              4608,
              4864
            ]
          ],
          "sites": [
            {
              "at": 4624,
              "class": "branch",
              "return_class": "stepped",
              "returns_to": 4629,
              "to": 4,
              "transfer": "call",
              "way": "direct"
            },
            {
              "at": 4640,
              "class": "branch",
              "return_class": "stepped",
              "returns_to": 4645,
              "to": 0,
              "transfer": "call",
              "way": "plt"
            },
            {
              "at": 4656,
              "class": "branch",
              "return_class": "stepped",
              "returns_to": 4658,
              "to": null,
              "transfer": "call",
              "way": "register"
            },
            {
              "at": 4672,
              "class": "branch",
              "to": 2,
              "transfer": "jump",
              "way": "direct"
            }
          ],
          "symbol": "run"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&json["functions"][2]).unwrap());
    assert_eq!((json["version"].as_u64(), json["symbols"].as_str()), (Some(1), Some("exports_only")));
    assert_eq!(json["functions"][1]["short_name"], "db::parse");
    let between = query(&[1], &[4]).nodes(&sample().graph);
    assert_eq!(between.into_iter().map(|id| id.0).collect::<Vec<_>>(), [1, 3, 4]);
    let near = Query { depth: Some(1), ..query(&[1], &[]) }.nodes(&sample().graph);
    assert_eq!(near.into_iter().map(|id| id.0).collect::<Vec<_>>(), [1, 2, 3]);
}
