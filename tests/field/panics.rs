//! Panics through frames with destructors, and catches: 500 a question. Questions come one a line.

use std::cell::Cell;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::panic::catch_unwind;

thread_local!(static DROPPED: Cell<u64> = const { Cell::new(0) });

struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        DROPPED.with(|dropped| dropped.set(dropped.get() + self.0));
    }
}

#[no_mangle]
#[inline(never)]
pub fn panics_thrower(argument: u64) -> u64 {
    assert!(black_box(argument) % 2 == 0, "odd {argument}");
    argument + 1
}

#[no_mangle]
#[inline(never)]
pub fn panics_middle(argument: u64) -> u64 {
    let guard = Guard(argument);
    black_box(panics_thrower(argument)) + guard.0
}

fn ask(seed: u64) -> String {
    DROPPED.with(|dropped| dropped.set(0));
    let (mut caught, mut sum, mut guards, mut expected) = (0, 0, 0, 0);
    for i in 0..1000 {
        let argument = i * 7919 + seed;
        guards += argument;
        match catch_unwind(|| panics_middle(argument)) {
            Ok(value) => sum += value,
            Err(_) => caught += 1,
        }
        if argument % 2 == 0 {
            expected += 2 * argument + 1;
        }
    }
    let dropped = DROPPED.with(Cell::get);
    if caught != 500 || sum != expected || dropped != guards {
        return format!("wrong: caught {caught} of 500, sum {sum} of {expected}, dropped {dropped} of {guards}");
    }
    format!("ok {sum}")
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let seed = line.parse().expect("a number");
        // Every other one on a thread of its own.
        let answer = if seed % 2 == 0 {
            ask(seed)
        } else {
            std::thread::spawn(move || ask(seed)).join().expect("panics are caught")
        };
        println!("{answer}");
        // Who asked may have gone.
        let _ = std::io::stdout().flush();
    }
}
