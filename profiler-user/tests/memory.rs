//! Reports of many calls take a bounded amount of memory: `tithe calls` and `tithe report` on recordings of two sizes, each in a process of its own.

#[path = "../examples/calls_memory/big.rs"]
mod big;

use big::{Kind, write};
use profiler_core::recording::Meta;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What either may hold, KiB.
const MOST_KIB: i64 = 200 << 10;
/// Rows of the small recording and of the large one.
const ROWS: (u64, u64) = (60_000, 400_000);
/// What a row more may take, bytes. A step takes 56 in memory and a call 200; of these 100 share an operation of some 1,000, and calls fall into buckets.
const MOST_BYTES_A_ROW: f64 = 24.0;

fn meta() -> Meta {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/readme/recording/meta.json");
    serde_json::from_slice(&std::fs::read(path).expect("it is part of the repository"))
        .expect("it is a meta.json")
}

fn recorded(folder: &Path, kind: Kind, rows: u64) -> PathBuf {
    let path = folder.join(format!("{kind:?}-{rows}.tithe"));
    let finished = write(&path, meta(), kind, (rows, 100)).expect("there is room");
    assert!(finished.rows >= rows);
    path
}

/// Largest resident set of `tithe` with these arguments, KiB, and what it printed.
#[expect(
    clippy::zombie_processes,
    reason = "`wait4` waits for it, which tells its largest resident set, too"
)]
fn peak_kib(arguments: &[&str]) -> (i64, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_tithe")).args(arguments).stdout(Stdio::piped()).spawn();
    let mut child: Child = child.expect("it was built");
    let mut text = String::new();
    let mut out = child.stdout.take().expect("it is a pipe");
    std::io::Read::read_to_string(&mut out, &mut text).expect("it is text");
    let (mut status, pid) = (0, child.id().cast_signed());
    // SAFETY: all-zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the child is ours and nobody else waits for it; both places are live.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert!(waited == pid && status == 0, "{arguments:?}: {status}, {text}");
    (usage.ru_maxrss, text)
}

fn check(kind: Kind, command: &str, says: &str) {
    let folder = tempfile::tempdir().expect("there is room");
    let of = |rows: u64| {
        let path = recorded(folder.path(), kind, rows);
        let (kib, text) = peak_kib(&[command, &path.display().to_string()]);
        assert!(text.contains(says), "{command}: {text}");
        kib
    };
    let (small, large) = (of(ROWS.0), of(ROWS.1));
    let a_row = (large - small) as f64 * 1024.0 / (ROWS.1 - ROWS.0) as f64;
    println!("{command} of {kind:?}: {small} KiB, {large} KiB, {a_row:.1} bytes a row");
    assert!(large < MOST_KIB, "{command} of {kind:?}: {large} KiB");
    assert!(a_row < MOST_BYTES_A_ROW, "{command} of {kind:?}: {a_row:.1} bytes a row");
}

#[test]
fn calls_of_many_steps_take_bounded_memory() {
    check(Kind::Steps, "calls", " complete");
}

#[test]
fn a_report_of_many_steps_takes_bounded_memory() {
    check(Kind::Steps, "report", "request");
}

#[test]
fn a_report_of_many_recorded_calls_takes_bounded_memory() {
    check(Kind::Calls, "report", "tier");
}
