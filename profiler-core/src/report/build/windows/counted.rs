//! Rates of functions by others that are traced all the time beside them (table `beside`): those tell how much time the target had for itself in a burst, whatever hits
//! cost in it.
//!
//! ```text
//! T_w  = M_w / G_w                 own time of a burst: M_w calls of those that were traced meanwhile, which are called G_w times a second of it
//! rate = sum N_w / sum T_w         N_w: calls of the function between the same two moments
//! ```
//! A burst that holds less than one of their calls tells little; a hundred of them tell as much as all of their calls.
//!
//! It is so where the hits of the burst slow the traced function, too: its thread calls both, and what it does is no matter of clocks. A timer, or a client that
//! comes when it likes, is called as often per second whatever hits take. So each of them must have been seen to be slowed ([`is_slowed`]) in the bursts of all functions together, as far as
//! quotas ended those: then hits fill them. And in those of the function itself it must have been called about as often as what prices leave of their time says ([`is_like`]): one that comes in
//! another phase of the program than the function tells nothing of it.

use super::RunContext;
use super::callers::Callers;
use super::price::HitPrice;
use super::reference::{
    Beside, ByClock, Clocked, Relative, by_clock, clocked, rate_of, ratio, times, unlike,
};
use crate::recording::{BesideRow, Recording, WindowKind, WindowRow};
use std::collections::{BTreeMap, BTreeSet};

/// Logarithm of the odds at which a function counts as slowed.
const SURE: f64 = 4.0;
/// More calls by so many standard deviations than the largest time that prices leave are no chance.
const FAR: f64 = 2.0;
/// Hits may take so much that the target has this part of the time that the largest price leaves, and no less: what they leave behind no price holds.
const LEAST_LEFT: f64 = 0.3;
/// Calls of traced functions in the bursts of a function that tell its rate.
const LEAST_CALLS: f64 = 20.0;

/// A function that is traced all the time.
struct Traced {
    rate: Relative,
    /// Part of the half-width of `rate`, over the value, that a longer run does not mend.
    price_half: f64,
}

/// A burst with all that was counted beside it.
struct Beheld<'r> {
    window: &'r WindowRow,
    row: &'r BesideRow,
}

/// What one traced function shows in bursts.
#[derive(Debug, Clone, Copy, Default)]
struct Slowing {
    /// Its calls.
    calls: f64,
    /// Time by the wall clock, s.
    wall_s: f64,
    /// What prices leave of it for the target: at the largest, at the smallest, s.
    own_s: (f64, f64),
    /// Squares of what its calls in a burst differ from the mean of as long a time, in terms of that mean.
    squares: f64,
}

impl Slowing {
    fn add(&mut self, row: &BesideRow, own_s: (f64, f64)) {
        self.calls += row.beside_calls as f64;
        self.wall_s += length_s(row);
        self.own_s = (self.own_s.0 + own_s.0, self.own_s.1 + own_s.1);
    }

    /// How many times as much as by chance its calls differ from burst to burst, at least once.
    fn scatter(&self) -> f64 {
        self.squares.max(1.0)
    }
}

/// The same in all bursts that quotas ended, and in those of each function.
#[derive(Debug, Default)]
struct Shown {
    by_quota: Slowing,
    by_function: BTreeMap<u32, Slowing>,
}

/// What functions that are traced all the time tell of others, by these.
pub(super) fn told(
    recording: &Recording,
    windows: &BTreeMap<u32, Vec<&WindowRow>>,
    callers: &Callers<'_>,
    run: &RunContext,
) -> BTreeMap<u32, Beside> {
    if recording.beside.is_empty() {
        return BTreeMap::new();
    }
    let class = |id: u32| recording.classes.iter().find(|c| c.class_id == id && c.stamps_of.is_none());
    let known = |id: u32| class(id).zip(windows.get(&id).map(Vec::as_slice));
    let ids: BTreeSet<u32> = recording.beside.iter().flat_map(|row| [row.class_id, row.beside_id]).collect();
    let caller = |id: u32| Some((id, callers.caller(id, known(id)?.1)?));
    let caller: BTreeMap<u32, u32> = ids.into_iter().filter_map(caller).collect();
    let have_one = |row: &BesideRow| {
        let of = caller.get(&row.class_id);
        of.is_some() && of == caller.get(&row.beside_id)
    };
    let mut beheld = beheld(&recording.beside, windows);
    beheld.retain(|of| have_one(of.row));
    let slowing = slowing(&beheld, |id| {
        let (class, own) = known(id)?;
        Some(HitPrice::of(class, own, recording, run))
    });
    let traced = |id: u32| {
        let (class, own) = known(id)?;
        let (rate, price_half) = rate_of((class, own), unseen(own, run), recording, run)?;
        let is_slowed = slowing.get(&id).is_some_and(|of| is_slowed(&of.by_quota, &rate));
        is_slowed.then_some((id, Traced { rate, price_half }))
    };
    let traced: BTreeMap<u32, Traced> = slowing.keys().filter_map(|id| traced(*id)).collect();
    let mut by_function: BTreeMap<u32, Vec<&Beheld<'_>>> = BTreeMap::new();
    let may_tell = |row: &BesideRow| {
        let of = slowing.get(&row.beside_id).and_then(|of| of.by_function.get(&row.class_id));
        traced.get(&row.beside_id).zip(of).is_some_and(|(traced, of)| is_like(of, &traced.rate))
    };
    for of in beheld.iter().filter(|of| may_tell(of.row)) {
        by_function.entry(of.row.class_id).or_default().push(of);
    }
    let one = |(function, rows): (u32, Vec<&Beheld<'_>>)| Some((function, by_traced(&rows, &traced)?));
    by_function.into_iter().filter_map(one).collect()
}

/// Part of the run in which a function that is traced was not watched.
fn unseen(windows: &[&WindowRow], run: &RunContext) -> f64 {
    let watched_s = windows.iter().map(|w| w.end_ns.saturating_sub(w.start_ns) as f64 * 1e-9).sum::<f64>();
    (1.0 - watched_s / run.length_s).clamp(0.0, 1.0)
}

/// Rows with their bursts.
fn beheld<'r>(rows: &'r [BesideRow], windows: &BTreeMap<u32, Vec<&'r WindowRow>>) -> Vec<Beheld<'r>> {
    let of = |row: &'r BesideRow| {
        let own = windows.get(&row.class_id)?;
        // In order of time.
        let at = own.partition_point(|w| w.start_ns < row.start_ns);
        let is_its = |w: &&&WindowRow| w.start_ns == row.start_ns && w.kind == WindowKind::Burst;
        let window =
            own.get(at).filter(is_its).filter(|w| row.end_ns > row.begin_ns && row.calls <= w.attempted)?;
        Some(Beheld { window, row })
    };
    rows.iter().filter_map(of).collect()
}

fn length_s(row: &BesideRow) -> f64 {
    (row.end_ns - row.begin_ns) as f64 * 1e-9
}

/// Of each traced function, what it shows. `price`: of a class that is watched in bursts.
fn slowing(beheld: &[Beheld<'_>], price: impl Fn(u32) -> Option<HitPrice>) -> BTreeMap<u32, Shown> {
    let mut prices: BTreeMap<u32, Option<HitPrice>> = BTreeMap::new();
    let mut all: BTreeMap<u32, Shown> = BTreeMap::new();
    for Beheld { window, row } in beheld {
        let Some(price) = prices.entry(row.class_id).or_insert_with(|| price(row.class_id)) else { continue };
        let (_, cheap_s, dear_s) = price.of_window(window);
        let left_s = |tau_s: f64| (length_s(row) - row.calls as f64 * tau_s).max(0.0);
        let of = all.entry(row.beside_id).or_default();
        let own_s = (left_s(dear_s), left_s(cheap_s));
        of.by_function.entry(row.class_id).or_default().add(row, own_s);
        if window.tripped {
            of.by_quota.add(row, own_s);
        }
    }
    let note = |of: &mut Slowing, row: &BesideRow| {
        let mean = of.calls * length_s(row) / of.wall_s;
        if of.calls > 0.0 {
            of.squares += (row.beside_calls as f64 - mean).powi(2) / of.calls;
        }
    };
    for Beheld { window, row } in beheld {
        let Some(of) = all.get_mut(&row.beside_id) else { continue };
        of.by_function.entry(row.class_id).and_modify(|of| note(of, row));
        if window.tripped {
            note(&mut of.by_quota, row);
        }
    }
    all
}

/// It is called as often as the time that prices leave the target says, and not as often as the clock on the wall does:
/// ```text
/// ln P(S | g own) - ln P(S | g wall) = S ln (own / wall) + g (wall - own) >= 4 v
/// ```
/// `S`: its calls in bursts, of Poisson's law; `g`: its rate, of the wall clock's calls the lower end of it; `own`: the likeliest time between what the smallest price leaves and [a part](LEAST_LEFT) of
/// what the largest does; `v`: how much more than by chance its calls differ from burst to burst.
fn is_slowed(of: &Slowing, rate: &Relative) -> bool {
    if of.calls <= 0.0 || !is_like(of, rate) {
        return false;
    }
    let wall = rate.value * (1.0 - rate.below) * of.wall_s;
    let least = rate.value * LEAST_LEFT * of.own_s.0;
    let own = of.calls.max(least).min(rate.value * (1.0 + rate.above) * of.own_s.1);
    own < wall && of.calls * (own / wall).ln() + wall - own >= SURE * of.scatter()
}

/// Its calls are those of a time between what the smallest price leaves and [a part](LEAST_LEFT) of what the largest does, but for chance.
fn is_like(of: &Slowing, rate: &Relative) -> bool {
    let least = rate.value * (1.0 - rate.below) * LEAST_LEFT * of.own_s.0;
    let most = rate.value * (1.0 + rate.above) * of.own_s.1;
    let chance = |calls: f64| FAR * (of.scatter() * calls.max(1.0)).sqrt();
    most > 0.0 && of.calls <= most + chance(most) && of.calls >= least - chance(least)
}

/// The rate of a function by those that are traced beside it, from its rows: by the set of them of which most calls are to be expected in its bursts. Sets of other rates are not added to it, for
/// one call of a rare function says less than one of another.
fn by_traced<'r>(rows: &[&Beheld<'r>], traced: &BTreeMap<u32, Traced>) -> Option<Beside> {
    let mut bursts: BTreeMap<u64, Vec<&Beheld<'r>>> = BTreeMap::new();
    rows.iter().for_each(|of| bursts.entry(of.row.start_ns).or_default().push(of));
    let mut sets: BTreeMap<Vec<u32>, Vec<Vec<&Beheld<'r>>>> = BTreeMap::new();
    let twins = twins(rows);
    for of in bursts.into_values() {
        let id = |of: &Beheld<'r>| twins.get(&of.row.beside_id).copied().unwrap_or(of.row.beside_id);
        let mut one_each: BTreeMap<u32, &Beheld<'r>> = BTreeMap::new();
        for of in of {
            let is_first = id(of) == of.row.beside_id;
            one_each.entry(id(of)).and_modify(|one| *one = if is_first { of } else { *one }).or_insert(of);
        }
        let (ids, of): (Vec<u32>, Vec<&Beheld<'r>>) = one_each.into_iter().unzip();
        sets.entry(ids).or_default().push(of);
    }
    // Not that with most calls, which chance would have a part in.
    let expected = |of: &[Told]| of.iter().map(|of| of.hz * of.wall_s).sum::<f64>();
    let told = |bursts: Vec<Vec<&Beheld<'r>>>| -> Vec<Told<'r>> {
        bursts.iter().map(|of| Told::of(of, traced)).filter(|of| of.hz > 0.0).collect()
    };
    let bursts = sets.into_values().map(told).max_by(|a, b| expected(a).total_cmp(&expected(b)))?;
    let sum = |of: fn(&Told) -> f64| bursts.iter().map(of).sum::<f64>();
    let (all, hits, own_s) = (sum(|of| of.beside_calls), sum(|of| of.calls), sum(|of| of.own_s()));
    if all < LEAST_CALLS || hits <= 0.0 {
        return None;
    }
    let gap_s = own_s / hits;
    let clocked: Vec<Clocked> =
        bursts.iter().map(|of| Clocked { told: of.own_s(), ..clocked(of.window) }).collect();
    // Where they are called once in a burst or less, chance makes nearly all of what ratios differ by, and says little of it.
    let clock = ByClock { most: unlike(&clocked, gap_s), ..by_clock(&clocked, gap_s, all / own_s) };
    let seen: Vec<(f64, f64)> = bursts.iter().map(|of| (of.calls, of.own_s())).collect();
    let chance = sum(|of| of.beside_calls / of.hz.powi(2)) / own_s.powi(2);
    let ratio = ratio(&seen, chance, clock)?;
    // Errors of prices are not independent: they add.
    let part = |of: fn(&Told) -> f64| bursts.iter().map(|told| told.own_s() * of(told)).sum::<f64>() / own_s;
    let rate = Relative { value: 1.0, below: part(|of| of.below), above: part(|of| of.above) };
    // OK because they were counted.
    let told = times(ratio, rate, all as u64);
    (told.value > 0.0 && told.value.is_finite())
        .then_some(Beside { rate: told, price_half: part(|of| of.price_half) })
}

/// What functions that are traced tell of a burst.
struct Told<'r> {
    window: &'r WindowRow,
    wall_s: f64,
    /// Calls of the function.
    calls: f64,
    /// Theirs.
    beside_calls: f64,
    /// Their rate of the target's own time.
    hz: f64,
    /// Parts of it by which its interval reaches below and above.
    below: f64,
    above: f64,
    /// As of [`Traced`].
    price_half: f64,
}

impl<'r> Told<'r> {
    /// By these rows of it.
    fn of(rows: &[&Beheld<'r>], traced: &BTreeMap<u32, Traced>) -> Self {
        let members: Vec<&Traced> = rows.iter().filter_map(|of| traced.get(&of.row.beside_id)).collect();
        let hz: f64 = members.iter().map(|of| of.rate.value).sum();
        let part = |of: fn(&Traced) -> f64| members.iter().map(|t| t.rate.value * of(t)).sum::<f64>() / hz;
        let (first, calls) = (rows[0], rows.iter().map(|of| of.row.beside_calls).sum::<u64>());
        Self {
            window: first.window,
            wall_s: length_s(first.row),
            calls: first.row.calls as f64,
            beside_calls: calls as f64,
            hz,
            below: part(|t| t.rate.below),
            above: part(|t| t.rate.above),
            price_half: part(|t| t.price_half),
        }
    }

    /// The target's own time in it, s.
    fn own_s(&self) -> f64 {
        self.beside_calls / self.hz
    }
}

/// Functions that tell the same as another one of them, with that: in most bursts in which either was called both were as often, because one calls the other. Their calls are no more of chance's draws. Each has its own rate: one of
/// them may be called without the other, too.
fn twins(rows: &[&Beheld<'_>]) -> BTreeMap<u32, u32> {
    /// Fewer such bursts may be chance.
    const LEAST: usize = 5;
    let mut calls: BTreeMap<u32, BTreeMap<u64, u64>> = BTreeMap::new();
    for of in rows {
        calls.entry(of.row.beside_id).or_default().insert(of.row.start_ns, of.row.beside_calls);
    }
    let are_one = |a: &BTreeMap<u64, u64>, b: &BTreeMap<u64, u64>| {
        let both = a.iter().filter_map(|(at, a)| Some((*a, *b.get(at)?))).filter(|(a, b)| a + b > 0);
        let (n, same) = both.fold((0, 0), |(n, same), (a, b)| (n + 1, same + usize::from(a == b)));
        n >= LEAST && 3 * same > 2 * n
    };
    let mut twins: BTreeMap<u32, u32> = BTreeMap::new();
    for (id, own) in &calls {
        let first = calls.range(..id).find(|(_, other)| are_one(other, own)).map(|(other, _)| *other);
        if let Some(first) = first {
            twins.insert(*id, twins.get(&first).copied().unwrap_or(first));
        }
    }
    twins
}

#[cfg(test)]
#[path = "../tests/counted.rs"]
mod tests;
