//! Target programs with a known truth, and what the kernel tests share.
//!
//! The programs (`programs/*.c`, `*.S`, `*.cpp`, `src/bin/*.rs`) count and time their own calls, so that a test can
//! ask for a difference of zero. [`support::Target`] starts one, speaks its line protocol and ends it on drop.
//! What this crate does not do: it knows nothing of how the agent traces; the tests in `tests/` do.

pub mod conformance;
pub mod kernels;
pub mod requests;
pub mod steps;
pub mod support;

use std::path::PathBuf;

/// The C and C++ programs that the build script made.
const COMPILED: &[&str] = &[
    "calls",
    "spins",
    "callers",
    "callers_stripped",
    "arguments",
    "arguments_unlinked",
    "hazards",
    "switcher",
    "switcher_stripped",
    "switcher_helper",
    "leaver",
    "cleared",
    "uncleared",
    "ends",
    "waits",
    "adversary",
    "launched",
    "hostile",
    "requests",
    "words",
    "probes",
    "probes_stripped",
    "events",
    "decades",
    "growing",
    "loops",
    "durations-c",
    "durations-cpp",
    "overhead",
    "tree",
    "twins",
    "pages",
    "crowd",
    "vectors",
    "cpp_throw",
    "graph-c",
    "graph-c-got",
    "graph-c-static",
    "graph-c-fixed",
    "graph-cpp",
    "libcharset.so",
    "libmany.so",
    "libplugin.so",
    "libsequence.so",
    "libsplit.so",
    "libswitches.so",
    "libslow.so",
    "libthrough4.so",
    "libthrough12.so",
];

/// The path of a target program: one compiled from `programs/`, or a
/// binary of the workspace: `rust-panic`, `sqlite-load`, `sqlite-requests`,
/// `sqlite-kernels`, `page-server`, `tithe`.
///
/// # Panics
///
/// If a binary of the workspace has not been built; the message has the command.
pub fn program(name: &str) -> PathBuf {
    if COMPILED.contains(&name) {
        return PathBuf::from(env!("OUT_DIR")).join(name);
    }
    let own = std::env::current_exe().expect("/proc/self/exe is readable");
    let directory = own.parent().expect("an executable lies in a directory");
    // Test binaries lie in `deps`, the programs beside it.
    let directory =
        if directory.ends_with("deps") { directory.parent().unwrap_or(directory) } else { directory };
    let path = directory.join(name);
    let package = if name == "tithe" { "profiler-user" } else { "profiler-tests" };
    assert!(path.exists(), "no {}; build it: cargo build -p {package} --bin {name}", path.display());
    path
}
