//! The demo target is what the demo needs: SQLite's own functions are there by name, and it counts its work.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn sqlite_functions_are_symbols_and_the_load_counts_its_operations() {
    let path = profiler_tests::program("sqlite-load");
    let binary = std::fs::read(&path).expect("the demo target was built");
    // Names as they stand in the string table: between zero bytes.
    for name in
        ["sqlite3VdbeExec", "sqlite3BtreeInsert", "sqlite3BtreeTableMoveto", "sqlite_load_operation_done"]
    {
        let entry: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
        assert!(binary.windows(entry.len()).any(|bytes| bytes == entry), "no symbol {name}");
    }

    let mut child = Command::new(path)
        .args(["--seconds", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("the demo target starts");
    let lines: Vec<String> = BufReader::new(child.stdout.take().expect("stdout was piped"))
        .lines()
        .map_while(Result::ok)
        .collect();
    assert!(child.wait().expect("the child can be waited for").success());
    assert_eq!(lines[0], format!("pid {}", child.id()));
    assert_eq!(lines[1], "ready");
    let words: Vec<&str> = lines[lines.len() - 1].split(' ').collect();
    assert_eq!(words[..2], ["total", "operations"], "{lines:?}");
    let operations: u64 = words[2].parse().expect("the total is a number");
    assert!(operations > 100, "{lines:?}");
}
