//! What words of the target cost a recorded call: CPU time of a call that takes some, less that of the same call without, in the same round.

use crate::hit::{CALLS, call_ns, while_read};
use crate::measure::{Series, Table, interleave};
use crate::watch::{self, Ours};
use anyhow::{Result, ensure};
use profiler_core::class::{ClassId, Tier};
use profiler_tests::support::Target;
use profiler_user::prober::word::{SOURCE_ADDRESS, SOURCE_ARGUMENT, WORD_STRING};
use profiler_user::prober::{CallReader, Kernel, KernelOptions, TakingReader, WordSpec, word_list};
use std::sync::{Mutex, PoisonError};

const CLASS: ClassId = ClassId(1);

/// An arm: its name, how many words, and each of them.
type Arm = (&'static str, u8, WordSpec);

/// The arms. `text`: an address of the target that is resident; `header`: that of a string of 7 bytes, its ELF header.
fn arms(text: u64, header: u64) -> [Arm; 7] {
    let register = WordSpec { source: SOURCE_ARGUMENT, bytes: 8, ..WordSpec::default() };
    let read =
        WordSpec { source: SOURCE_ADDRESS, address: text, dereferences: 1, bytes: 8, ..WordSpec::default() };
    let string = WordSpec {
        source: SOURCE_ADDRESS,
        address: header,
        kind: WORD_STRING,
        bytes: 8,
        ..WordSpec::default()
    };
    let absent = WordSpec { address: 0x1000, ..read };
    [
        ("1 word, a register", 1, register),
        ("1 word, read", 1, read),
        ("8 words, read", 8, read),
        ("32 words, read", 32, read),
        ("64 words, read", 64, read),
        ("8 lengths of strings of 7 bytes", 8, string),
        ("8 words that are not mapped", 8, absent),
    ]
}

fn kernel(words: u8, spec: WordSpec) -> Result<Kernel> {
    let options = KernelOptions {
        forced_tier: Some(Tier::A),
        word_limit: u32::from(words),
        takings_ring_bytes: 8 << 20,
        ..KernelOptions::default()
    };
    let kernel = Kernel::load(&options)?;
    let specs = vec![spec; usize::from(words)];
    ensure!(kernel.set_words(&specs).is_ok(), "too many words");
    Ok(kernel)
}

/// Where the program is loaded.
fn header(target: &Target) -> Result<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid()))?;
    let first = maps.split('-').next().unwrap_or_default();
    Ok(u64::from_str_radix(first, 16)?)
}

/// Calls with words against calls without.
pub fn words(rounds: u32) -> Result<String> {
    let plain = watch::kernel(Tier::A)?;
    let readers: Mutex<Vec<(CallReader, TakingReader)>> = Mutex::default();
    let mut calls = plain.call_reader()?;
    let drain = || {
        let mut all = readers.lock().unwrap_or_else(PoisonError::into_inner);
        calls.drain(usize::MAX, |_| {});
        let mut read = 0;
        for (calls, takings) in all.iter_mut() {
            calls.drain(usize::MAX, |_| {});
            read += takings.drain(usize::MAX, |_| {});
        }
        read
    };
    let (table, read) = while_read(drain, |target| {
        let arms = arms(target.address("entry_push"), header(target)?);
        let mut loaded = Vec::new();
        for (_, words, spec) in &arms {
            let kernel = kernel(*words, *spec)?;
            let own = (kernel.call_reader()?, kernel.taking_reader()?);
            readers.lock().unwrap_or_else(PoisonError::into_inner).push(own);
            loaded.push(kernel);
        }
        measure(rounds, target, &plain, &loaded, &arms)
    })?;
    let taken = arms(0, 0).len() as u64 * u64::from(rounds) * CALLS;
    ensure!(read > taken / 2, "{read} takings were read; the ring was full for the rest");
    Ok(format!("{table}\n{read} takings were read.\n"))
}

fn measure(
    rounds: u32,
    target: &mut Target,
    plain: &Kernel,
    loaded: &[Kernel],
    arms: &[Arm],
) -> Result<Table> {
    let place = watch::place(target, "entry_push", 0);
    let series = interleave(rounds, arms.len() + 2, |arm| {
        let link = match arm {
            0 => None,
            1 => Some(watch::attach(plain, target, Ours::Record, std::slice::from_ref(&place))?),
            _ => {
                let kernel = &loaded[arm - 2];
                let link = watch::attach(kernel, target, Ours::Record, std::slice::from_ref(&place))?;
                kernel.set_word_lists(CLASS, word_list(0, arms[arm - 2].1, 0), 0);
                Some(link)
            }
        };
        let ns = call_ns(target, "entry_push", CALLS);
        drop(link);
        anyhow::Ok(ns)
    })?;
    let mut table =
        Table::new(&["on push", "ns per call", "more than without words, ns", "ns per word", "n"]);
    let record = series[1].less(&series[0]);
    table.row(&["record".to_owned(), record.show(0), String::new(), String::new(), record.n().to_string()]);
    for ((name, words, _), cost) in arms.iter().zip(&series[2..]) {
        let more: Series = cost.less(&series[1]);
        let each = more.times(1.0 / f64::from(*words));
        table.row(&[
            format!("record, {name}"),
            cost.less(&series[0]).show(0),
            more.show(0),
            each.show(1),
            more.n().to_string(),
        ]);
    }
    Ok(table)
}
