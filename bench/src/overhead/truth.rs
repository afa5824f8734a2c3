//! What watching takes, by the program's own clock: every cycle of a watched turn and two of its twins.
//!
//! ```text
//! traps    D = sum(w - r1 t2) + sum(t1 - r2 t2)    r1, r2: medians of w / t2 and t1 / t2 without the agent
//! samples  S = n x (x at a sample - x near it)     x: t1 + t2 of a cycle, and of the next, less the medians of their 2 ms
//! own      O = T - D - S - L                       T: all of the thread's CPU time; L: switches and attaching by the ledger
//! truth    T / O - 1
//! ```
//! w, t1, t2: CPU time of the watched turn, of the first turn of the twins, and of the second, of one cycle. The host's speed moves all three alike.
//! What a trap leaves behind in caches and predictors makes w longer, and t1 where it outlasts the turn; t2 is taken for free of it.
//! A sample, a context switch or a page fault after attaching comes at any time, so that its mean is the same in all three turns and it is not in D.
//! Of samples the agent's recording has the times: what they take is how much longer the cycles are in which one came in a turn of the twins, and the price is the
//! program's. Near it: the same at times some ms before and after each sample, so that a long cycle, which is met by more samples, is no part of their price. (A comparison of the run's twins with those of stretches without the agent would hold samples, too; but the machine's other programs move it by a point.)
//!
//! Switches and attaching are taken from the ledger, with an error of their own size. As a check of them stands the *rest*: what all x of the run but those at samples
//! are above those without the agent. It has the machine's noise, and is not in the truth.

use crate::durations::Truth;
use crate::durations::truth::median;
use anyhow::{Context, Result, ensure};
use profiler_core::stats::moments::Moments;
use std::path::Path;

/// Size of a record of `overhead.c`, bytes.
const RECORD: usize = 24;
/// Time over which a median is taken, ns.
const BLOCK_NS: u64 = 2_000_000;
/// Time of a slice, whose spread says how well a figure is known, ns.
const SLICE_NS: u64 = 200_000_000;
/// Fewer cycles are no block.
const FEW: usize = 10;
/// Times around a sample at which there is none, ns.
const NEAR_NS: [i64; 6] = [-6_900_000, -4_100_000, -2_300_000, 2_300_000, 4_100_000, 6_900_000];
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
    /// Mean of x over that of t1 + t2, both without cycles at samples.
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
    /// Samples.
    pub samples: Truth,
    /// What hits all turns alike and is no sample; not in the whole.
    pub rest: Truth,
    /// What a sample takes, ns.
    pub sample_ns: Truth,
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

/// How much longer than the median of its 2 ms both turns of the twins are, ns; for each cycle, NaN where there are too few.
fn excesses(cycles: &[Cycle]) -> Vec<f64> {
    let twins = |c: &Cycle| c.first + c.second;
    let mut all = Vec::with_capacity(cycles.len());
    for block in pieces(cycles, BLOCK_NS) {
        let mut sorted: Vec<f64> = block.iter().map(twins).collect();
        sorted.sort_by(f64::total_cmp);
        let median = if block.len() < FEW { f64::NAN } else { sorted[block.len() / 2] };
        all.extend(block.iter().map(|c| twins(c) - median));
    }
    all
}

/// Numbers of the cycles in which samples came, and whether each came in a turn of the twins. In order of time.
fn at_samples(cycles: &[Cycle], samples_ns: &[u64]) -> Vec<(usize, bool)> {
    let of = |ns: &u64| {
        let i = cycles.partition_point(|c| c.begin_ns <= *ns).checked_sub(1)?;
        let in_ns = ns.saturating_sub(cycles[i].begin_ns) as f64 - cycles[i].watched;
        Some((i, (0.0..cycles[i].first + cycles[i].second).contains(&in_ns)))
    };
    let mut found: Vec<(usize, bool)> = samples_ns.iter().filter_map(of).collect();
    found.sort_unstable();
    found
}

/// A figure of all cycles, with the standard error that its values of slices give, weighed alike.
fn known(slices: &[&[Cycle]], value: f64, of: impl Fn(&[Cycle]) -> f64) -> Known {
    let each: Moments = slices.iter().map(|slice| of(slice)).filter(|v| v.is_finite()).collect();
    Known { value, error: error_of(&each) }
}

/// Standard error of a mean; infinite of fewer than two.
fn error_of(each: &Moments) -> f64 {
    each.variance().map_or(f64::INFINITY, |v| (v / each.n() as f64).sqrt())
}

/// x of a cycle and of the next, ns, for each cycle at one of these times, if that fell into a turn of the twins. `without`: no cycle that has one of these, nor
/// its next.
fn excess_at(excesses: &[f64], at: &[(usize, bool)], without: &[(usize, bool)]) -> Moments {
    let is_without = |i: usize| without.binary_search_by_key(&i, |(cycle, _)| *cycle).is_ok();
    at.iter()
        .filter(|(i, in_twins)| *in_twins && !is_without(*i) && !is_without(i + 1))
        .filter_map(|(i, _)| Some(excesses.get(*i)? + excesses.get(i + 1)?))
        .filter(|v| v.is_finite())
        .collect()
}

/// What a sample takes, ns.
fn sample_ns(run: &[Cycle], excesses: &[f64], samples_ns: &[u64]) -> Known {
    let at = at_samples(run, samples_ns);
    // Two in cycles next to each other are rare, and of neither the price is taken.
    let alone = at.chunk_by(|a, b| b.0 - a.0 <= 1).filter(|of| of.len() == 1).flatten();
    let alone: Vec<(usize, bool)> = alone.copied().collect();
    let near_ns: Vec<u64> =
        samples_ns.iter().flat_map(|ns| NEAR_NS.map(|by| ns.saturating_add_signed(by))).collect();
    let with = excess_at(excesses, &alone, &[]);
    let near = excess_at(excesses, &at_samples(run, &near_ns), &at);
    Known { value: with.mean() - near.mean(), error: error_of(&with).hypot(error_of(&near)) }
}

/// Median of the ratio of two turns of a cycle.
fn ratio(cycles: &[Cycle], of: fn(&Cycle) -> f64) -> Option<Known> {
    let mut each: Vec<f64> = cycles.iter().map(|c| of(c) / c.second).filter(|v| v.is_finite()).collect();
    each.sort_by(f64::total_cmp);
    median(&each).map(|found| Known { value: found.value, error: found.half / Z })
}

impl Stretch {
    /// `without`: numbers of the cycles that are left out of the excess, ascending.
    fn of(cycles: &[Cycle], excesses: &[f64], without: &[(usize, bool)]) -> Self {
        let slices: Vec<&[Cycle]> = pieces(cycles, SLICE_NS).collect();
        let watched = |of: &[Cycle]| sum(of, |c| c.watched) / sum(of, |c| c.second);
        let first = |of: &[Cycle]| sum(of, |c| c.first) / sum(of, |c| c.second);
        let is_left_out = |i: usize| without.binary_search_by_key(&i, |(cycle, _)| *cycle).is_ok();
        let mut begin = 0;
        let (mut x, mut twins) = (0.0, 0.0);
        let mut each = Moments::default();
        for slice in &slices {
            let of_slice =
                (begin..begin + slice.len()).filter(|i| excesses[*i].is_finite() && !is_left_out(*i));
            let sums = of_slice.fold((0.0, 0.0), |(x, twins), i| {
                (x + excesses[i], twins + cycles[i].first + cycles[i].second)
            });
            begin += slice.len();
            (x, twins) = (x + sums.0, twins + sums.1);
            if sums.1 > 0.0 {
                each.push(sums.0 / sums.1);
            }
        }
        Self {
            watched: known(&slices, watched(cycles), watched),
            first: known(&slices, first(cycles), first),
            excess: Known { value: x / twins, error: error_of(&each) },
            second_ns: sum(cycles, |c| c.second),
            all_ns: sum(cycles, |c| c.watched + c.first + c.second + c.between),
        }
    }
}

/// The overhead of the cycles in `run`, by those of `alone`, in which there was no agent. `samples_ns`: when samples were taken. `others_ns`: what
/// switches and attaching took by the ledger. `None` of too few.
///
/// The spread of w between slices is the agent's doing; t1 has the same noise and next to nothing of that. Of D the variance is
/// that of w + t1 - 2 t2, three times that of t1 - t2.
pub fn parts(alone: &[Cycle], run: &[Cycle], samples_ns: &[u64], others_ns: f64) -> Option<Parts> {
    let at = at_samples(run, samples_ns);
    let excess = excesses(run);
    let without = Stretch::of(alone, &excesses(alone), &[]);
    let with = Stretch::of(run, &excess, &at);
    let (watched, first) = (ratio(alone, |c| c.watched)?, ratio(alone, |c| c.first)?);
    let in_turn_ns = (with.watched.value - watched.value) * with.second_ns;
    let after_turn_ns = (with.first.value - first.value) * with.second_ns;
    let one = sample_ns(run, &excess, samples_ns);
    let samples = at.len() as f64;
    let own_ns = with.all_ns - in_turn_ns - after_turn_ns - samples * one.value - others_ns;
    let part_of_own = with.second_ns / own_ns;
    let error = |now: f64, before: f64| now.hypot(before) * part_of_own;
    let differences = error(3.0_f64.sqrt() * with.first.error, watched.error.hypot(first.error));
    let of_samples = samples * one.error / own_ns;
    // 95 % of the distribution within twice the ledger's figure.
    let others = others_ns / own_ns / Z;
    let truth = |value: f64, error: f64| Truth { value, half: Z * error };
    let found = Parts {
        overhead: truth(with.all_ns / own_ns - 1.0, differences.hypot(of_samples).hypot(others)),
        in_turn: truth(in_turn_ns / own_ns, error(with.first.error, watched.error)),
        after_turn: truth(after_turn_ns / own_ns, error(with.first.error, first.error)),
        samples: truth(samples * one.value / own_ns, of_samples),
        rest: truth(with.excess.value - without.excess.value, with.excess.error.hypot(without.excess.error)),
        sample_ns: truth(one.value, one.error),
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
            let ns = if (begin_ns / 500_000_000).is_multiple_of(2) { 10_000.0 } else { 11_000.0 };
            let timer = |turn: u64| if (i * 3 + turn).is_multiple_of(100) { 2_000.0 } else { 0.0 };
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

    const BEGIN_NS: u64 = 5_000_000_000;

    /// Cycle 7 of a hundred has a sample 2 us into the first turn of the twins.
    fn found(change: impl Fn(u64, &mut Cycle)) -> Parts {
        let alone = cycles(90_000, 0, |_, _| ());
        let samples: Vec<u64> = (0..3_000).map(|i| BEGIN_NS + (i * 100 + 7) * 33_000 + 14_000).collect();
        parts(&alone, &cycles(300_000, BEGIN_NS, change), &samples, 0.0).unwrap()
    }

    #[test]
    fn nothing_is_found_where_nobody_watches() {
        let none = found(|_, _| ());
        assert!(none.overhead.value.abs() < 1e-4, "{none:?}");
        assert!(none.samples.value.abs() < 1e-4 && none.in_turn.value.abs() < 1e-4, "{none:?}");
        assert!(none.rest.value.abs() < 1e-4, "{none:?}");
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
        assert!(traps.samples.value.abs() < 1e-4, "{traps:?}");
    }

    #[test]
    fn samples_take_what_the_cycles_take_longer_in_which_they_came() {
        // 12 us, and 1 us in the next cycle: 13 of 3,270 us.
        let samples = found(|i, c| match i % 100 {
            7 => c.first += 12_000.0,
            8 => c.second += 1_000.0,
            _ => {}
        });
        assert!((samples.sample_ns.value - 13_000.0).abs() < 200.0, "{samples:?}");
        assert!((samples.samples.value - 0.0040).abs() < 1e-4, "{samples:?}");
    }

    #[test]
    fn long_cycles_are_no_price_of_samples() {
        // A third of all cycles, whether with a sample or not.
        let long = found(|i, c| {
            if i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60 < 5 {
                c.first += 9_000.0;
            }
        });
        assert!(long.sample_ns.value.abs() < 500.0, "{long:?}");
    }

    #[test]
    fn what_is_no_sample_is_the_rest() {
        // 10 us in both turns of the twins of one cycle of 50: 20 of 1,070 us.
        let rest = found(|i, c| {
            if i % 50 == 43 {
                c.first += 10_000.0;
                c.second += 10_000.0;
            }
        });
        assert!((rest.rest.value - 0.0187).abs() < 5e-4, "{rest:?}");
        assert!(rest.samples.value.abs() < 1e-3, "{rest:?}");
    }

    #[test]
    fn what_the_ledger_says_of_switches_is_added_and_may_be_nothing_or_twice_as_much() {
        let (alone, run) = (cycles(90_000, 0, |_, _| ()), cycles(300_000, BEGIN_NS, |_, _| ()));
        let samples = [1, 1_000, 2_000].map(|i| BEGIN_NS + i * 33_000 + 14_000);
        let all_ns = sum(&run, |c| c.watched + c.first + c.second + c.between);
        let others = parts(&alone, &run, &samples, all_ns * 0.01).unwrap();
        assert!((others.overhead.value - 0.01 / 0.99).abs() < 1e-4, "{others:?}");
        assert!((others.overhead.half - 0.01 / 0.99).abs() < 3e-4, "{others:?}");
    }

    #[test]
    fn samples_are_found_in_their_cycles() {
        let cycles = cycles(3, 1_000_000, |_, _| ());
        // In the watched turn of the first, in a twin's of the second, before the first.
        let at = at_samples(&cycles, &[1_000_500, 1_033_000 + 15_000, 10]);
        assert_eq!(at, [(0, false), (1, true)]);
    }

    #[test]
    fn the_error_is_that_between_slices() {
        // Every other slice of 200 ms the second turns take 1 % longer: the ratio's standard deviation is 0.5 % of 50 slices.
        let uneven = found(|_, c| {
            if (c.begin_ns / SLICE_NS).is_multiple_of(2) {
                c.second *= 1.01;
            }
        });
        let expected = 1.96 * 0.005 / 50.0_f64.sqrt() * 0.32;
        assert!((uneven.after_turn.half / expected - 1.0).abs() < 0.1, "{uneven:?}");
        assert!((uneven.overhead.half / expected / 3.0_f64.sqrt() - 1.0).abs() < 0.15, "{uneven:?}");
        assert_eq!(parts(&[], &cycles(100, 0, |_, _| ()), &[], 0.0), None);
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let mut bytes = vec![1, 2, 0, 0, 0, 0, 0, 0];
        for ns in [70_000_u32, 11_000, 12_000, 700] {
            bytes.extend(ns.to_le_bytes());
        }
        let whole =
            Cycle { begin_ns: 513, watched: 70_000.0, first: 11_000.0, second: 12_000.0, between: 700.0 };
        assert_eq!(cycle(&bytes), whole);
    }
}
