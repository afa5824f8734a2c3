//! Writes a recording of ten million calls, to measure what reading it takes.
//!
//! ```text
//! cargo run --release -p profiler-user --example calls_memory -- big.tithe META [calls|steps] [ROWS] [STEPS OF AN OPERATION]
//! /usr/bin/time -v tithe calls big.tithe --slowest 10
//! /usr/bin/time -v tithe report big.tithe
//! ```
//! META is the `meta.json` of any recording (`docs/readme/recording/meta.json`): what is said of the run is taken from it.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod big;

use big::{Kind, write};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("say where: calls_memory big.tithe META")?);
    let meta = args.next().ok_or("say which meta.json: calls_memory big.tithe META")?;
    let kind = match args.next().as_deref() {
        None | Some("steps") => Kind::Steps,
        Some("calls") => Kind::Calls,
        Some(other) => return Err(format!("'{other}': write steps or calls").into()),
    };
    let rows: u64 = args.next().map_or(Ok(10_000_000), |n| n.parse())?;
    let inner: u64 = args.next().map_or(Ok(100), |n| n.parse())?;
    let finished = write(&path, serde_json::from_slice(&std::fs::read(meta)?)?, kind, (rows, inner))?;
    println!("{} rows, {:.1} bytes each", finished.rows, finished.bytes as f64 / finished.rows as f64);
    Ok(())
}
