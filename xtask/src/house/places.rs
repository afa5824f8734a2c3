//! What may stand where: one table of rules over the names that a file uses and the constants that it defines.

use super::finding::Finding;
use super::outline::{Kind, Outline, Reference};
use super::tree::{Edges, Tree};

/// One row of the table.
struct Place {
    /// The rule's name.
    rule: &'static str,
    what: What,
    /// How to mend it.
    advice: &'static str,
}

enum What {
    /// No file below the folder names one of these paths, but for what lies in the excepted ones.
    NotNamed { below: &'static str, paths: &'static [&'static str], except: &'static [&'static str] },
    /// No module of the folder names another.
    Apart { folder: &'static str },
    /// Below the folders, constants with this ending stand in one file only. Off while there is no such file.
    Only { below: &'static [&'static str], ending: &'static str, file: &'static str },
}

const TABLE: &[Place] = &[
    Place {
        rule: "agent",
        what: What::NotNamed {
            below: "profiler-user/src/agent/",
            paths: &[
                "profiler_core::plan",
                "profiler_core::stats",
                "profiler_core::estimate",
                "profiler_core::survey",
                "profiler_core::controller",
            ],
            // What a plan was made for, which is handed on and written down as it is.
            except: &["profiler_core::plan::Problem", "profiler_core::plan::table"],
        },
        advice: "decide it in a client of profiler-core, and let the agent execute its order",
    },
    Place {
        rule: "clients",
        what: What::Apart { folder: "profiler-core/src/clients" },
        advice: "pass it through the view or an order; no client knows another",
    },
    Place {
        rule: "shares",
        what: What::Only {
            below: &["profiler-core/src/", "profiler-user/src/"],
            ending: "_SHARE",
            file: "profiler-core/src/run/arbiter.rs",
        },
        advice: "move the share to the arbiter's table in profiler-core/src/run/arbiter.rs",
    },
];

/// What stands in the wrong place, in any of the crates.
pub fn check(trees: &[Tree]) -> Vec<Finding> {
    TABLE
        .iter()
        .flat_map(|row| {
            trees.iter().flat_map(|tree| match &row.what {
                What::NotNamed { below, paths, except } => not_named(row, tree, below, paths, except),
                What::Apart { folder } => apart(row, tree, folder),
                What::Only { below, ending, file } => {
                    let is_on =
                        trees.iter().flat_map(|tree| &tree.modules).any(|module| module.path == *file);
                    if is_on { only(row, tree, below, ending, file) } else { Vec::new() }
                }
            })
        })
        .collect()
}

/// One finding for each file and path, with the number of times.
fn not_named(row: &Place, tree: &Tree, below: &str, paths: &[&str], except: &[&str]) -> Vec<Finding> {
    let mut found = Vec::new();
    for module in tree.modules.iter().filter(|module| module.path.starts_with(below)) {
        for path in paths {
            let lines = named(&module.outline, path, except);
            found.extend(lines.first().map(|&line| Finding {
                rule: row.rule,
                path: module.path.clone(),
                line,
                place: format!("{}: {path}", module.path),
                what: format!("{path} is named below {below}"),
                value: lines.len(),
                limit: 0,
                unit: times(lines.len()),
                advice: row.advice.to_owned(),
            }));
        }
    }
    found
}

fn times(count: usize) -> &'static str {
    if count == 1 { "time" } else { "times" }
}

/// The lines that name `path` or something in it, but for those that name one of `except` or something in it.
fn named(outline: &Outline, path: &str, except: &[&str]) -> Vec<usize> {
    let is_excepted = |r: &Reference| except.iter().any(|path| names(outline, path, &r.segments, false));
    let hits = outline.references.iter().filter(|r| {
        names(outline, path, &r.segments, matches!(r.kind, Kind::Glob { .. })) && !is_excepted(r)
    });
    hits.map(|r| r.line).collect()
}

/// These words, which a glob may follow, name `path` or something in it.
fn names(outline: &Outline, path: &str, segments: &[String], is_glob: bool) -> bool {
    let words: Vec<&str> = path.split("::").collect();
    let (first, rest) = (words[0], &words[1..]);
    // Other names of the crate: `use profiler_core as core`.
    let is_alias = |word: &str| {
        outline.references.iter().any(|r| {
            matches!(&r.kind, Kind::Use { name, .. } if name == word)
                && r.segments.iter().filter(|segment| !segment.is_empty()).eq([first])
        })
    };
    let segments = if segments.first().is_some_and(String::is_empty) { &segments[1..] } else { segments };
    let Some((head, tail)) = segments.split_first() else { return false };
    let shorter = tail.len() < rest.len();
    (head == first || is_alias(head)) && tail.iter().zip(rest).all(|(a, b)| a == b) && (!shorter || is_glob)
}

fn apart(row: &Place, tree: &Tree, folder: &str) -> Vec<Finding> {
    let group = tree.modules.iter().position(|module| module.folder == folder);
    let edges: Edges = group.map(|group| tree.edges(group)).unwrap_or_default();
    edges
        .into_iter()
        .filter_map(|((from, to), at)| {
            let (path, line) = at.first()?.clone();
            Some(Finding {
                rule: row.rule,
                path,
                line,
                place: format!("{folder}: {from} -> {to}"),
                what: format!("{from} names {to}"),
                value: at.len(),
                limit: 0,
                unit: times(at.len()),
                advice: row.advice.to_owned(),
            })
        })
        .collect()
}

fn only(row: &Place, tree: &Tree, below: &[&str], ending: &str, file: &str) -> Vec<Finding> {
    let modules = tree.modules.iter();
    let elsewhere = modules
        .filter(|module| module.path != file && below.iter().any(|folder| module.path.starts_with(folder)));
    elsewhere
        .flat_map(|module| {
            let constants = module.outline.constants.iter().filter(|(name, _)| name.ends_with(ending));
            constants.map(|(name, line)| Finding {
                rule: row.rule,
                path: module.path.clone(),
                line: *line,
                place: format!("{}: {name}", module.path),
                what: format!("the constant {name} outside of {file}"),
                value: 1,
                limit: 0,
                unit: "constant",
                advice: row.advice.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&planted(files)).iter().map(ToString::to_string).collect()
    }

    fn agent(text: &str) -> Vec<String> {
        found(&[
            ("profiler-user/src/lib.rs", "mod agent; use profiler_core::plan;"),
            ("profiler-user/src/agent/mod.rs", "mod opener;"),
            ("profiler-user/src/agent/opener.rs", text),
        ])
    }

    #[test]
    fn the_agent_names_neither_planning_nor_estimators() {
        assert_eq!(
            agent("\nuse profiler_core::plan::{Plan, Problem, solve};"),
            [
                "profiler-user/src/agent/opener.rs:2: profiler_core::plan is named below profiler-user/src/agent/, \
              2 times, limit 0, decide it in a client of profiler-core, and let the agent execute its order"
            ]
        );
        let broken = [
            "use profiler_core::stats;",
            "use profiler_core::{run, estimate::Estimate};",
            "fn f(s: profiler_core::survey::Survey) {}",
            "fn f() { log!(\"{}\", ::profiler_core::controller::NAME); }",
            "use profiler_core as core; fn f() { core::plan::solve() }",
            "use profiler_core::*;",
            "use profiler_core::plan::*;",
            "fn f() { profiler_core::plan::tables() }",
        ];
        for text in broken {
            assert!(!agent(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_agent_may_name_the_rest_and_its_tests_everything() {
        let kept = [
            "use profiler_core::{class::ClassId, run::Order, planner, statistics}; use profiler_core::run::*;",
            "use profiler_core::plan::{Problem, table}; fn f() { profiler_core::plan::table::to_toml(); }",
            "use crate::plan; use other::plan as p; fn f() { plan::g(); stats::h() }",
            "#[cfg(test)] mod tests { use profiler_core::plan::Plan; }",
            "// profiler_core::plan\n/// [`profiler_core::plan`]\nstruct S;",
        ];
        for text in kept {
            assert_eq!(agent(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn no_client_names_another() {
        let clients = |survey: &str| {
            found(&[
                ("profiler-core/src/lib.rs", "mod clients; mod run;"),
                ("profiler-core/src/run.rs", "use crate::clients::{survey, trace};"),
                (
                    "profiler-core/src/clients/mod.rs",
                    "mod survey; mod trace; trait Client {} pub use trace::Trace;",
                ),
                ("profiler-core/src/clients/survey/mod.rs", "mod looks; use super::Client; use crate::run;"),
                ("profiler-core/src/clients/survey/looks.rs", survey),
                ("profiler-core/src/clients/trace.rs", ""),
            ])
        };
        assert_eq!(clients("use super::super::Client; use crate::clients::survey::X;"), [""; 0]);
        assert_eq!(
            clients("use crate::clients::trace::X;"),
            ["profiler-core/src/clients/survey/looks.rs:1: survey names trace, 1 time, limit 0, \
              pass it through the view or an order; no client knows another"]
        );
        assert_eq!(clients("fn f(x: crate::clients::Trace) {}").len(), 1);
    }

    #[test]
    fn shares_stand_in_the_arbiter_as_soon_as_there_is_one() {
        let files = [
            ("profiler-core/src/lib.rs", "mod run; mod ledger;"),
            ("profiler-core/src/ledger.rs", "const SECOND_SHARE: f64 = 0.9; const SHARE_OF: f64 = 0.1;"),
            ("profiler-core/src/run.rs", ""),
            ("profiler-core/src/run/arbiter.rs", "const SURVEY_SHARE: f64 = 0.1;"),
            ("tests/src/lib.rs", "const LOAD_SHARE: f64 = 0.5;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let mut with = files;
        with[2].1 = "mod arbiter;";
        assert_eq!(
            found(&with),
            [
                "profiler-core/src/ledger.rs:1: the constant SECOND_SHARE outside of profiler-core/src/run/arbiter.rs, \
              1 constant, limit 0, move the share to the arbiter's table in profiler-core/src/run/arbiter.rs"
            ]
        );
    }
}
