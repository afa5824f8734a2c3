//! A Rust program whose panics pass through traced frames, and are caught. A replaced return address there ends the
//! process.
//!
//! `panic N`: N panics from `rust_panic_thrower` through `rust_panic_middle`; answers `ok caught=N`.
//! `plain N`: N calls of the same functions that return; answers `ok returned=N`.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::panic::catch_unwind;

/// Panics on odd numbers.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn rust_panic_thrower(argument: u64) -> u64 {
    assert!(black_box(argument).is_multiple_of(2), "odd");
    argument + 1
}

/// A frame that the panic passes through.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn rust_panic_middle(argument: u64) -> u64 {
    black_box(rust_panic_thrower(argument)) + 1
}

fn answer(text: &str) {
    println!("{text}");
    // The test that reads it has gone: nothing left to tell.
    let _ = std::io::stdout().flush();
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    answer(&format!("ready pid={}", std::process::id()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (command, calls) = line.split_once(' ').unwrap_or((&line, "1"));
        let calls: u64 = calls.parse().unwrap_or(1);
        match command {
            "panic" => {
                let caught = (0..calls).filter(|_| catch_unwind(|| rust_panic_middle(1)).is_err()).count();
                answer(&format!("ok caught={caught}"));
            }
            "plain" => {
                let returned = (0..calls).filter(|_| rust_panic_middle(2) == 4).count();
                answer(&format!("ok returned={returned}"));
            }
            "quit" => return answer("ok bye"),
            _ => answer(&format!("error no command {command}")),
        }
    }
}
