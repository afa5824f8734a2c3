//! No circle of imports between the modules of a crate.

use super::finding::Finding;
use super::tree::{Edges, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The rule's name.
pub const RULE: &str = "circle";

/// Folders inside a crate whose modules are looked at too. Those at the top of a crate always are.
const FOLDERS: &[&str] = &[
    "profiler-core/src/clients",
    "profiler-core/src/engine",
    "profiler-core/src/plan",
    "profiler-core/src/run",
    "profiler-user/src/agent",
    "profiler-user/src/cli",
];

/// The circles of one crate. `excepted`: imports that may be part of one; such an import is found, too, while it closes a circle.
pub fn check(tree: &Tree, excepted: &BTreeSet<String>) -> Vec<Finding> {
    let is_group = |index: usize| index == 0 || FOLDERS.contains(&tree.modules[index].folder.as_str());
    let groups = (0..tree.modules.len()).filter(|index| is_group(*index));
    groups.flat_map(|group| find(&tree.modules[group].folder, tree.edges(group), excepted)).collect()
}

/// The circles among `edges`, one import of each, such that without these imports there is no circle.
fn find(folder: &str, mut edges: Edges, excepted: &BTreeSet<String>) -> Vec<Finding> {
    let place = |from: &str, to: &str| format!("{folder}: {from} -> {to}");
    let mut found = Vec::new();
    let is_excepted = |(from, to): &(String, String), _: &mut _| excepted.contains(&place(from, to));
    let apart: Edges = edges.extract_if(.., is_excepted).collect();
    for (edge, at) in &apart {
        if let Some(back) = way(&edges, &edge.1, &edge.0) {
            found.push(finding(place(&edge.0, &edge.1), edge, at, &back));
        }
    }
    while let Some(circle) = shortest(&edges) {
        // Whoever is imported in the fewest places is the easiest to do without.
        let pairs = circle.windows(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        let Some(edge) = pairs.min_by_key(|edge| edges[edge].len()) else { break };
        let Some(at) = edges.remove(&edge) else { break };
        let back = way(&edges, &edge.1, &edge.0).unwrap_or_default();
        found.push(finding(place(&edge.0, &edge.1), &edge, &at, &back));
    }
    found
}

/// `back`: the way from the end of the edge to its beginning.
fn finding(place: String, edge: &(String, String), at: &[(String, usize)], back: &[String]) -> Finding {
    let (path, line) = at.first().cloned().unwrap_or_default();
    Finding {
        rule: RULE,
        path,
        line,
        place,
        what: format!("a circle of imports {} -> {}", edge.0, back.join(" -> ")),
        value: at.len(),
        limit: 0,
        unit: if at.len() == 1 { "import" } else { "imports" },
        advice: format!("move what {} wants of {} to a module below both", edge.0, edge.1),
    }
}

/// The shortest circle; its first module is also the last.
fn shortest(edges: &Edges) -> Option<Vec<String>> {
    let circles = edges.keys().filter_map(|(from, to)| {
        let mut circle = vec![from.clone()];
        circle.extend(way(edges, to, from)?);
        Some(circle)
    });
    circles.min_by_key(Vec::len)
}

/// The shortest way from one module to another, both included.
fn way(edges: &Edges, from: &str, to: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(module) = next.pop_front() {
        if module == to {
            let mut way = vec![module.to_owned()];
            while way.last().is_some_and(|last| last != from) {
                let last = before.get(way.last()?.as_str())?;
                way.push((*last).to_owned());
            }
            way.reverse();
            return Some(way);
        }
        for (_, target) in edges.keys().filter(|(source, _)| source == module) {
            if target != from && !before.contains_key(target.as_str()) {
                before.insert(target, module);
                next.push_back(target);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(files: &[(&str, &str)], excepted: &[&str]) -> Vec<String> {
        let excepted = excepted.iter().map(|place| (*place).to_owned()).collect();
        let trees = planted(files);
        trees.iter().flat_map(|tree| check(tree, &excepted)).map(|finding| finding.to_string()).collect()
    }

    const TWO: &[(&str, &str)] = &[
        ("c/src/lib.rs", "mod governor; mod watchdog;"),
        ("c/src/governor.rs", "use crate::watchdog::Heartbeat;\nfn f(h: crate::watchdog::Other) {}"),
        ("c/src/watchdog.rs", "\nuse crate::governor::SWITCH;"),
    ];

    #[test]
    fn a_circle_is_found_where_it_is_the_easiest_to_break() {
        assert_eq!(
            found(TWO, &[]),
            [
                "c/src/watchdog.rs:2: a circle of imports watchdog -> governor -> watchdog, 1 import, limit 0, \
              move what watchdog wants of governor to a module below both"
            ]
        );
    }

    #[test]
    fn tests_may_import_in_circles() {
        let watchdog = "#[cfg(test)] mod tests { use crate::governor::SWITCH; }";
        assert_eq!(found(&[TWO[0], TWO[1], ("c/src/watchdog.rs", watchdog)], &[]), [""; 0]);
    }

    #[test]
    fn a_circle_of_three_is_one_and_two_circles_are_two() {
        let one = "mod a { use super::b; } mod b { use super::c; } mod c { use super::a; }";
        let three = found(&[("c/src/main.rs", one)], &[]);
        assert_eq!(three.len(), 1);
        assert!(three[0].contains("a circle of imports a -> b -> c -> a, "), "{three:?}");
        let two = "mod a { use super::b; } mod b { use super::{a, c}; } mod c { use super::b; }";
        assert_eq!(found(&[("c/src/main.rs", two)], &[]).len(), 2);
        let none =
            "mod a { use super::{b, c, d}; } mod b { use super::{c, d}; } mod c { use super::d; } mod d {}";
        assert_eq!(found(&[("c/src/main.rs", none)], &[]), [""; 0]);
    }

    /// An excepted import is found while it closes a circle: its exception is needed. The other direction is then no matter.
    #[test]
    fn an_exception_stands_for_one_import() {
        let excepted = found(TWO, &["c/src: governor -> watchdog"]);
        assert_eq!(excepted.len(), 1);
        assert!(
            excepted[0]
                .starts_with("c/src/governor.rs:1: a circle of imports governor -> watchdog -> governor, 2")
        );
        let broken = [TWO[0], TWO[1], ("c/src/watchdog.rs", "")];
        assert_eq!(found(&broken, &["c/src: governor -> watchdog"]), [""; 0]);
    }

    #[test]
    fn folders_of_the_table_are_looked_at_and_others_are_not() {
        let files = |folder: &'static str| {
            [
                ("profiler-core/src/lib.rs", "mod plan; mod stats;"),
                ("profiler-core/src/plan.rs", if folder == "plan" { "mod a; mod b;" } else { "" }),
                ("profiler-core/src/stats.rs", if folder == "stats" { "mod a; mod b;" } else { "" }),
                if folder == "plan" {
                    ("profiler-core/src/plan/a.rs", "use super::b;")
                } else {
                    ("profiler-core/src/stats/a.rs", "use super::b;")
                },
                if folder == "plan" {
                    ("profiler-core/src/plan/b.rs", "use crate::plan::a;")
                } else {
                    ("profiler-core/src/stats/b.rs", "use crate::stats::a;")
                },
            ]
        };
        assert_eq!(found(&files("plan"), &[]).len(), 1);
        assert_eq!(found(&files("stats"), &[]), [""; 0]);
    }
}
