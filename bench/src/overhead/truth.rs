//! What watching takes, by the program's own clock: every cycle of a watched turn and two of its twins.
//!
//! ```text
//! traps    D = sum(w - r1 t2) + sum(t1 - r2 t2)    r1, r2: sum w / sum t2 and sum t1 / sum t2 without the agent
//! beside   c = (1 + e) / (1 + e0) - 1              e: mean of t2 over its median of 10 ms, less 1; e0: the same without the agent
//! own      O = (T - D) / (1 + c)                   T: all of the thread's CPU time
//! truth    T / O - 1
//! ```
//! w, t1, t2: CPU time of the watched turn, of the first turn of the twins, and of the second, of one cycle. The host's speed moves all three alike.
//! What a trap leaves behind in caches and predictors makes w longer, and t1 where it outlasts the turn; t2 is taken for free of it.
//! A sample, a context switch or a page fault after attaching comes at any time, so that its mean is the same in all three turns: it is not in D, and it is in c. It
//! makes few turns much longer, so that the median of 10 ms has next to nothing of it, and what else makes the mean of a turn longer than its median (timer
//! interrupts) does so without the agent, too. Samples that hit a trap of ours are in D. A change of the host's speed within 10 ms is in e and in e0.

use crate::durations::Truth;
use anyhow::{Context, Result, ensure};
use profiler_core::stats::moments::Moments;
use std::path::Path;

/// Size of a record of `overhead.c`, bytes.
const RECORD: usize = 24;
/// Time over which a median is taken, ns.
const BLOCK_NS: u64 = 10_000_000;
/// Time of a slice, whose spread says how well a figure is known, ns.
const SLICE_NS: u64 = 200_000_000;
/// Fewer cycles are no block.
const FEW: usize = 20;
/// Standard errors of a 95 % interval.
const Z: f64 = 1.96;

/// A cycle of three turns, CPU ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cycle {
    /// `CLOCK_MONOTONIC`, ns.
    pub begin_ns: u64,
    /// The turn of the functions that are watched.
    pub watched: f64,
    /// The first of their twins.
    pub first: f64,
    /// The second of their twins.
    pub second: f64,
    /// Between the cycle before and this one.
    pub between: f64,
}

/// A figure with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    value: f64,
    error: f64,
}

/// What a stretch of the program's life says.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// sum w / sum t2.
    watched: Known,
    /// sum t1 / sum t2.
    first: Known,
    /// Mean of t2 over its median, less 1.
    excess: Known,
    /// sum t2, ns.
    second_ns: f64,
    /// CPU time of all, ns.
    all_ns: f64,
}

/// The overhead and its parts, over the program's own CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// All of it.
    pub overhead: Truth,
    /// What the watched turn takes longer than the second of the twins.
    pub in_turn: Truth,
    /// What the first turn of the twins takes longer than the second: what traps leave behind beyond their own turn.
    pub after_turn: Truth,
    /// What hits all turns alike.
    pub beside: Truth,
}

/// Reads what `dump` wrote.
///
/// # Errors
///
/// If the file cannot be read or is not made of whole records.
pub fn read(path: &Path) -> Result<Vec<Cycle>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(bytes.len().is_multiple_of(RECORD), "{} does not end with a record", path.display());
    Ok(bytes.chunks_exact(RECORD).map(cycle).collect())
}

fn cycle(bytes: &[u8]) -> Cycle {
    let of = |from: usize, length: usize| {
        let mut wide = [0; 8];
        wide[..length].copy_from_slice(&bytes[from..from + length]);
        u64::from_le_bytes(wide)
    };
    let ns = |number: usize| of(8 + 4 * number, 4) as f64;
    Cycle { begin_ns: of(0, 8), watched: ns(0), first: ns(1), second: ns(2), between: ns(3) }
}

/// Cycles that began in the same `length_ns`, in order of time.
fn pieces(cycles: &[Cycle], length_ns: u64) -> impl Iterator<Item = &[Cycle]> {
    cycles.chunk_by(move |a, b| a.begin_ns / length_ns == b.begin_ns / length_ns)
}

fn sum(cycles: &[Cycle], of: fn(&Cycle) -> f64) -> f64 {
    cycles.iter().map(of).sum()
}

/// What the second turns of some cycles take, and the same at their medians of 10 ms, ns.
fn over_medians(cycles: &[Cycle]) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for block in pieces(cycles, BLOCK_NS).filter(|block| block.len() >= FEW) {
        let mut seconds: Vec<f64> = block.iter().map(|c| c.second).collect();
        seconds.sort_by(f64::total_cmp);
        sums.0 += seconds.iter().sum::<f64>();
        sums.1 += seconds[seconds.len() / 2] * seconds.len() as f64;
    }
    sums
}

/// A figure of all cycles, with the standard error that its values of slices give, weighed alike.
fn known(slices: &[&[Cycle]], value: f64, of: impl Fn(&[Cycle]) -> f64) -> Known {
    let each: Moments = slices.iter().map(|slice| of(slice)).filter(|v| v.is_finite()).collect();
    let error = each.variance().map_or(f64::INFINITY, |v| (v / each.n().max(1) as f64).sqrt());
    Known { value, error }
}

impl Stretch {
    fn of(cycles: &[Cycle]) -> Self {
        let slices: Vec<&[Cycle]> = pieces(cycles, SLICE_NS).collect();
        let watched = |of: &[Cycle]| sum(of, |c| c.watched) / sum(of, |c| c.second);
        let first = |of: &[Cycle]| sum(of, |c| c.first) / sum(of, |c| c.second);
        let excess = |of: &[Cycle]| {
            let (mean, median) = over_medians(of);
            mean / median - 1.0
        };
        Self {
            watched: known(&slices, watched(cycles), watched),
            first: known(&slices, first(cycles), first),
            excess: known(&slices, excess(cycles), excess),
            second_ns: sum(cycles, |c| c.second),
            all_ns: sum(cycles, |c| c.watched + c.first + c.second + c.between),
        }
    }
}

/// The overhead of the cycles in `run`, by those of `alone`, in which there was no agent. `None` of too few.
///
/// The spread of w between slices is the agent's doing; t1 has the same noise and next to nothing of that. Of D the variance is
/// that of w + t1 - 2 t2, three times that of t1 - t2.
pub fn parts(alone: &[Cycle], run: &[Cycle]) -> Option<Parts> {
    let (without, with) = (Stretch::of(alone), Stretch::of(run));
    let in_turn_ns = (with.watched.value - without.watched.value) * with.second_ns;
    let after_turn_ns = (with.first.value - without.first.value) * with.second_ns;
    let beside = (1.0 + with.excess.value) / (1.0 + without.excess.value) - 1.0;
    let own_ns = (with.all_ns - in_turn_ns - after_turn_ns) / (1.0 + beside);
    let part_of_own = with.second_ns / own_ns;
    let error = |now: f64, before: f64| now.hypot(before) * part_of_own;
    let in_turn = error(with.first.error, without.watched.error);
    let after_turn = error(with.first.error, without.first.error);
    let differences =
        error(3.0_f64.sqrt() * with.first.error, without.watched.error.hypot(without.first.error));
    let excess = with.excess.error.hypot(without.excess.error);
    let truth = |value: f64, error: f64| Truth { value, half: Z * error };
    let found = Parts {
        overhead: truth(with.all_ns / own_ns - 1.0, differences.hypot(excess)),
        in_turn: truth(in_turn_ns / own_ns, in_turn),
        after_turn: truth(after_turn_ns / own_ns, after_turn),
        beside: truth(beside, excess),
    };
    (found.overhead.value.is_finite() && found.overhead.half.is_finite()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many cycles of 33 us. One turn of a hundred has a timer interrupt of 2 us. The host's speed changes by a tenth every
    /// half second.
    fn cycles(n: u64, from_ns: u64, change: impl Fn(u64, &mut Cycle)) -> Vec<Cycle> {
        let one = |i: u64| {
            let begin_ns = from_ns + i * 33_000;
            let ns = if begin_ns / 500_000_000 % 2 == 0 { 10_000.0 } else { 11_000.0 };
            let timer = |turn: u64| if (i * 3 + turn) % 100 == 0 { 2_000.0 } else { 0.0 };
            let mut c = Cycle {
                begin_ns,
                watched: 1.001 * ns + timer(0),
                first: ns + timer(1),
                second: ns + timer(2),
                between: ns / 10.0,
            };
            change(i, &mut c);
            c
        };
        (0..n).map(one).collect()
    }

    fn found(change: impl Fn(u64, &mut Cycle)) -> Parts {
        let alone = cycles(90_000, 0, |_, _| ());
        parts(&alone, &cycles(300_000, 5_000_000_000, change)).unwrap()
    }

    #[test]
    fn nothing_is_found_where_nobody_watches() {
        let none = found(|_, _| ());
        assert!(none.overhead.value.abs() < 1e-4, "{none:?}");
        assert!(none.beside.value.abs() < 1e-4 && none.in_turn.value.abs() < 1e-4, "{none:?}");
    }

    #[test]
    fn traps_are_what_the_watched_turn_takes_longer() {
        // 600 ns of each watched turn, 60 ns of the next: 660 of some 32,550 ns of own time.
        let traps = found(|_, c| {
            c.watched += 600.0;
            c.first += 60.0;
        });
        assert!((traps.overhead.value / (660.0 / 32_590.0) - 1.0).abs() < 0.02, "{traps:?}");
        assert!((traps.in_turn.value / traps.after_turn.value - 10.0).abs() < 0.2, "{traps:?}");
        assert!(traps.beside.value.abs() < 1e-4, "{traps:?}");
    }

    #[test]
    fn samples_are_in_all_turns_alike() {
        // Every hundredth turn of each kind has a sample of 12 us: 1.14 % at the mean speed.
        let samples = found(|i, c| match i % 100 {
            3 => c.watched += 12_000.0,
            47 => c.first += 12_000.0,
            71 => c.second += 12_000.0,
            _ => {}
        });
        assert!((samples.beside.value - 0.0114).abs() < 2e-4, "{samples:?}");
        assert!((samples.overhead.value - 0.0114).abs() < 2e-4, "{samples:?}");
        assert!(samples.in_turn.value.abs() < 1e-4, "{samples:?}");
    }

    #[test]
    fn the_error_is_that_between_slices() {
        // Every other slice of 200 ms the second turns take 1 % longer: the ratio's standard deviation is 0.5 % of 50 slices.
        let uneven = found(|_, c| {
            if c.begin_ns / SLICE_NS % 2 == 0 {
                c.second *= 1.01;
            }
        });
        let expected = 1.96 * 0.005 / 50.0_f64.sqrt() * 0.32;
        assert!((uneven.after_turn.half / expected - 1.0).abs() < 0.1, "{uneven:?}");
        assert!((uneven.overhead.half / expected / 3.0_f64.sqrt() - 1.0).abs() < 0.15, "{uneven:?}");
        assert_eq!(parts(&[], &cycles(100, 0, |_, _| ())), None);
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let mut bytes = vec![1, 2, 0, 0, 0, 0, 0, 0];
        for ns in [10_000_u32, 11_000, 12_000, 700] {
            bytes.extend(ns.to_le_bytes());
        }
        let whole =
            Cycle { begin_ns: 513, watched: 10_000.0, first: 11_000.0, second: 12_000.0, between: 700.0 };
        assert_eq!(cycle(&bytes), whole);
    }
}
