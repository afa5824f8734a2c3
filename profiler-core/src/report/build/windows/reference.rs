//! Rates of functions that were watched beside a reference ([`crate::clients::reference`]): by how many of their calls come on one of its.
//!
//! Hits slow both alike where one thread calls both, so that no price is in how many calls of the one come on one of the other:
//! ```text
//! rate = R G,   R = sum N_w / sum M_w
//! ```
//! `N`: calls of the function in window `w`, `M`: calls of the reference in the same time, `G`: the reference's own rate, which hangs little on what its hits cost.
//!
//! `R` is a ratio estimate (Cochran 1977, §6.4), whose error is the scatter of `N_w - R M_w`, and not less than that of the calls of the reference were they independent. A window that
//! the function's quota ends is shorter where the function is called more often: moments count by the reference's calls in them, and `R` is low by up to `v^2`, where `v` is how much the
//! ratio differs from window to window beyond chance, or by `b`, where that is more ([`by_clock`]): a few moments at which the function is called far more often than else are next to nothing in `v`. The value is raised by half of
//! that, and the interval holds both ends. Where it is above a quarter the program has phases in which the ratio says little of the rates, and nothing is told; nor where all windows of the function, each by the ratio to the
//! reference that it had, are that unlike.

use super::callers::Callers;
use super::{RunContext, bursts_of};
use crate::class::Source;
use crate::estimate::Estimate;
use crate::recording::{ClassRow, Recording, WindowKind, WindowRow};
use crate::stats::bursts::Of;
use crate::stats::counts::garwood;
use crate::stats::{LEVEL, t_quantile};
use std::collections::BTreeMap;

/// Windows that say how much they differ: in a program with two phases of like length so many lie in one of them in 6 of 100 runs.
const LEAST_WINDOWS: usize = 5;
/// Calls of the reference in all of them.
const LEAST_CALLS: f64 = 20.0;
/// Largest `v^2` or `b`.
const MOST_UNLIKE: f64 = 0.25;

/// What a reference tells of a function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::report::build) struct Beside {
    /// Calls per second that monitoring left the target.
    pub rate: Estimate,
    /// Part of its half-width, over the value, that more windows do not mend: what a hit of the reference costs.
    pub price_half: f64,
}

/// A value, and the parts of it by which its interval reaches below and above.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relative {
    pub value: f64,
    pub below: f64,
    pub above: f64,
}

/// What windows differ by, as the clock says ([`by_clock`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ByClock {
    /// `v^2` is no more. Infinite: nothing is known of that.
    pub most: f64,
    /// `b`, and its standard error.
    pub fast: (f64, f64),
    /// `b` may be as much as this, where nothing shows that it is.
    pub may_be: f64,
}

/// Nothing is known by the clock.
pub(super) const NO_CLOCK: ByClock = ByClock { most: f64::INFINITY, fast: (0.0, 0.0), may_be: 0.0 };

/// It is a window of a reference on a function's link: the function ended it, so that it is no burst of its own.
pub(in crate::report::build) fn is_lent(w: &WindowRow) -> bool {
    w.link.is_some()
}

/// Functions with their references, and the windows that they shared.
type Pairs<'w> = BTreeMap<(u32, u32), Vec<(&'w WindowRow, &'w WindowRow)>>;

fn pairs<'w>(recording: &'w Recording, windows: &BTreeMap<u32, Vec<&'w WindowRow>>) -> Pairs<'w> {
    let mut pairs = Pairs::new();
    for lent in recording.windows.iter().filter(|w| is_lent(w)) {
        let of_function =
            lent.link.filter(|id| *id != lent.class_id).and_then(|id| Some((id, windows.get(&id)?)));
        let Some((function, own)) = of_function else { continue };
        // In order of time: the last one that begins before its end.
        let end = own.partition_point(|w| w.start_ns < lent.end_ns);
        let beside = end.checked_sub(1).map(|i| own[i]).filter(|w| lent.start_ns < w.end_ns);
        if let Some(w) = beside.filter(|w| w.kind == WindowKind::Burst) {
            pairs.entry((function, lent.class_id)).or_default().push((w, lent));
        }
    }
    pairs
}

/// Calls of both from the opening of their gates until their link was gone, those that a used-up quota turned away with the others: a link goes on for a moment after
/// the trip that ends its windows.
fn calls(function: &WindowRow, reference: &WindowRow) -> Option<Seen> {
    let saw_something = function.end_ns > function.start_ns && reference.end_ns > reference.start_ns;
    let calls = (function.attempted as f64, reference.attempted as f64);
    saw_something.then(|| Seen { calls, clock: clocked(function) })
}

/// A window by the clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clocked {
    /// Time that the target ran, s.
    pub ran_s: f64,
    /// Hits in it.
    pub hits: f64,
    /// The function's quota ended it.
    pub by_quota: bool,
    /// What others tell of the target's own time in it: calls, or s.
    pub told: f64,
}

/// The window of a function, of whose own time nobody told anything.
pub(super) fn clocked(w: &WindowRow) -> Clocked {
    let ran_s = w.ran_ns.unwrap_or(w.end_ns.saturating_sub(w.start_ns)) as f64 / 1e9;
    Clocked { ran_s, hits: w.kept as f64, by_quota: w.tripped, told: 0.0 }
}

/// What is told of a function: what its reference says, where that is known better than the rate by the price, in relation to its value, or is clearly more. Then the price is wrong, for
/// what hits leave behind makes a function's own code slower (log.md, M53). Where the two are only just apart it may be chance, and where the reference says less, price or reference is wrong: the interval
/// holds both. A limit stays one.
pub(super) fn better(by_price: Option<Estimate>, beside: Beside) -> Option<Beside> {
    /// So many times lies between intervals that contradict each other clearly.
    const CLEARLY: f64 = 1.25;
    let Some(by_price) = by_price else { return Some(beside) };
    let rate = beside.rate;
    let part = |rate: &Estimate| rate.half_width() / rate.value;
    let (above, below) = (rate.low / by_price.high, by_price.low / rate.high);
    if above > CLEARLY {
        return Some(beside);
    }
    if above.max(below) > 1.0 {
        return Some(beside.holding(&by_price));
    }
    (part(&rate) < part(&by_price)).then_some(beside)
}

impl Beside {
    /// The same with an interval that holds the other's, too. What the two differ by more windows do not mend.
    fn holding(self, other: &Estimate) -> Self {
        let rate =
            Estimate { low: self.rate.low.min(other.low), high: self.rate.high.max(other.high), ..self.rate };
        if rate.high.is_infinite() {
            return Self { rate: Estimate { value: rate.low, ..rate }, ..self };
        }
        Self { rate, price_half: self.price_half.max(rate.half_width() / rate.value) }
    }
}

/// A reference of a function, and what it saw.
struct Known {
    /// Calls a second of the target's own time.
    rate: Relative,
    /// Part of its half-width, over the value, that its price leaves.
    price_half: f64,
    /// Each burst that both were in.
    seen: Vec<Seen>,
}

/// A burst of a function with a reference.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    /// Calls of the function and of the reference.
    calls: (f64, f64),
    /// The function's window.
    clock: Clocked,
}

/// What references tell of functions.
pub(super) fn told(
    recording: &Recording,
    windows: &BTreeMap<u32, Vec<&WindowRow>>,
    callers: &Callers<'_>,
    run: &RunContext,
) -> BTreeMap<u32, Beside> {
    let class = |id: u32| recording.classes.iter().find(|c| c.class_id == id);
    let mut references: BTreeMap<u32, Vec<Known>> = BTreeMap::new();
    for ((function, reference), of_pair) in pairs(recording, windows) {
        let Some((class, own)) = class(reference).zip(windows.get(&reference)) else { continue };
        let of_function = windows.get(&function).map_or(&[][..], Vec::as_slice);
        if !callers.have_one((function, of_function), (reference, own)) {
            continue;
        }
        let seen = of_pair.iter().filter_map(|(w, lent)| calls(w, lent)).collect();
        if let Some((rate, price_half)) = rate_of((class, own), 1.0, recording, run) {
            references.entry(function).or_default().push(Known { rate, price_half, seen });
        }
    }
    references.into_iter().filter_map(|(function, of)| Some((function, by_references(of)?))).collect()
}

/// The rate by the references of a function: by each alone, and by those together whose own rates are known best, then second best, and so on. The narrowest counts, and where others contradict it its
/// interval holds both: how unlike references are is no matter of chance, however many bursts they have.
fn by_references(mut of: Vec<Known>) -> Option<Beside> {
    of.retain(|known| known.rate.value > 0.0);
    if have_phases(&of) {
        return None;
    }
    of.sort_by(|a, b| a.error().total_cmp(&b.error()));
    let alone = of.iter().map(std::slice::from_ref);
    let together = (2..=of.len()).map(|n| &of[..n]);
    let told: Vec<Beside> = alone.chain(together).filter_map(by_all).collect();
    let part = |of: &Beside| of.rate.half_width() / of.rate.value;
    let best = *told.iter().min_by(|a, b| part(a).total_cmp(&part(b)))?;
    let apart = told.iter().filter(|other| are_apart(&other.rate, &best.rate));
    Some(apart.fold(best, |held, other| held.holding(&other.rate)))
}

/// The windows of a function are more unlike than a rate can be told by, each by the ratio to the reference that it had, in which that reference's own rate has no part. Not where a call took as long in all of them by the clock: then it is a
/// reference whose own calls come in clusters.
fn have_phases(of: &[Known]) -> bool {
    /// Calls of a reference in a window: chance makes nearly all of what fewer differ by.
    const MANY: f64 = 5.0;
    let (mut squares, mut chance, mut free) = (0.0, 0.0, 0.0);
    for known in of {
        let (n, hits, calls) = (known.seen.len() as f64, known.hits(), known.calls());
        if n < 2.0 || hits <= 0.0 || calls < MANY * n {
            continue;
        }
        let residual = |seen: &Seen| (seen.calls.0 - hits / calls * seen.calls.1) / (hits / n);
        squares += known.seen.iter().map(|seen| residual(seen).powi(2)).sum::<f64>();
        chance += (n - 1.0) * n / calls;
        free += n - 1.0;
    }
    // By chance the scatter is more or less than that of independent calls, the more the fewer there are.
    let most = chance / free * (1.0 + 2.0 * (2.0 / free).sqrt()) + MOST_UNLIKE;
    let is_unlike = free + 1.0 >= LEAST_WINDOWS as f64 && squares / free > most;
    let hits: f64 = of.iter().map(Known::hits).sum();
    let gap_s = of.iter().map(Known::time_s).sum::<f64>() / hits;
    let windows: Vec<Clocked> =
        of.iter().flat_map(|known| known.seen.iter().map(|seen| seen.clock)).collect();
    is_unlike && unlike(&windows, gap_s) > MOST_UNLIKE
}

/// How unlike the time from call to call is in windows, at most: relative variance of what they took for a call, in terms of the target's own time for one, `gap_s`. What hits cost is in both,
/// and who else runs. Infinite: the clock ended one of them. Those that quotas ended are alike because they are, and one that is ten times as long is in the sums with as much as ten.
pub(super) fn unlike(windows: &[Clocked], gap_s: f64) -> f64 {
    const FEW: f64 = 2.0;
    if gap_s <= 0.0 || !windows.iter().all(|w| w.by_quota && w.hits > FEW && w.ran_s > 0.0) {
        return f64::INFINITY;
    }
    let per_call: Vec<f64> = windows.iter().map(|w| w.ran_s / w.hits).collect();
    let n = per_call.len() as f64;
    let mean = per_call.iter().sum::<f64>() / n;
    let variance = per_call.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    if variance.is_finite() { variance / gap_s.powi(2) } else { f64::INFINITY }
}

fn are_apart(a: &Estimate, b: &Estimate) -> bool {
    a.low > b.high || b.low > a.high
}

impl Known {
    fn error(&self) -> f64 {
        self.rate.below + self.rate.above
    }

    /// Its calls in bursts of the function.
    fn calls(&self) -> f64 {
        self.seen.iter().map(|seen| seen.calls.1).sum()
    }

    /// Calls of the function in those.
    fn hits(&self) -> f64 {
        self.seen.iter().map(|seen| seen.calls.0).sum()
    }

    /// The target's own time in those, as they tell it, s.
    fn time_s(&self) -> f64 {
        self.calls() / self.rate.value
    }
}

/// The rate by these references. Bursts with each of them count together, by the target's own time that it tells:
/// ```text
/// T_w = M_w / G,   rate = sum N_w / sum T_w,   chance: sum M / G^2 of (sum T)^2, M at least one call of each reference
/// ```
fn by_all(of: &[Known]) -> Option<Beside> {
    let all: f64 = of.iter().map(Known::calls).sum();
    let hits: f64 = of.iter().map(Known::hits).sum();
    if all < LEAST_CALLS || hits <= 0.0 {
        return None;
    }
    let sum_s: f64 = of.iter().map(Known::time_s).sum();
    let told_s = |known: &Known| {
        let hz = known.rate.value;
        known.seen.iter().map(move |seen| (seen.calls.0, seen.calls.1 / hz)).collect::<Vec<_>>()
    };
    let seen: Vec<(f64, f64)> = of.iter().flat_map(told_s).collect();
    let clocked = of.iter().flat_map(|known| {
        let hz = known.rate.value;
        known.seen.iter().map(move |seen| Clocked { told: seen.calls.1 / hz, ..seen.clock })
    });
    let clocked: Vec<Clocked> = clocked.collect();
    let chance = of.iter().map(|known| known.calls().max(1.0) / known.rate.value.powi(2)).sum::<f64>();
    let by_clock = by_clock(&clocked, sum_s / hits, all / sum_s);
    let ratio = ratio(&seen, chance / (sum_s * sum_s), by_clock)?;
    // Prices of all are wrong alike, if they are.
    let part = |error: fn(&Known) -> f64| of.iter().map(|k| k.time_s() * error(k)).sum::<f64>() / sum_s;
    let of_references = Relative { value: 1.0, below: part(|k| k.rate.below), above: part(|k| k.rate.above) };
    // OK because they were counted.
    let rate = times(ratio, of_references, all as u64);
    Some(Beside { rate, price_half: part(|k| k.price_half) })
}

/// Of two that tell of one function, the one that knows it better; where they contradict each other, with an interval that holds both.
pub(super) fn sharper(a: Beside, b: Beside) -> Beside {
    let part = |of: &Beside| of.rate.half_width() / of.rate.value;
    let (best, other) = if part(&a) <= part(&b) { (a, b) } else { (b, a) };
    if are_apart(&a.rate, &b.rate) { best.holding(&other.rate) } else { best }
}

/// A reference's own rate, Hz, and the part of its half-width that its price leaves. `unseen`: part of the run that its windows are to speak for.
pub(super) fn rate_of(
    (class, windows): (&ClassRow, &[&WindowRow]),
    unseen: f64,
    recording: &Recording,
    run: &RunContext,
) -> Option<(Relative, f64)> {
    let bursts = bursts_of(class, windows, recording, run);
    let rate = |unseen| bursts.rate(run.drift.as_ref(), Of::Run { unseen });
    let (part, whole) = (rate(unseen)?, rate(0.0)?);
    let is_known = part.low > 0.0 && part.high.is_finite();
    let of_price = if whole.high.is_finite() { whole.half_width() / whole.value } else { 0.0 };
    let half = bursts.beside.map_or(of_price, |beside| beside.price_half);
    let relative = Relative {
        value: part.value,
        below: 1.0 - part.low / part.value,
        above: part.high / part.value - 1.0,
    };
    is_known.then_some((relative, half))
}

/// See above: `R`, with its interval, of what the function was called and its reference was, or of the time that this tells. `chance`: relative variance of the sum of the latter, were calls independent. `clock`: what the clock says of windows.
///
/// The error is in the denominator, so that the interval reaches further up than down: from `R / (1 + h)` to `R / (1 - h)`.
pub(super) fn ratio(windows: &[(f64, f64)], chance: f64, clock: ByClock) -> Option<Relative> {
    let n = windows.len() as f64;
    let (hits, calls) = windows.iter().fold((0.0, 0.0), |(h, c), (hits, calls)| (h + hits, c + calls));
    if windows.len() < LEAST_WINDOWS || calls <= 0.0 || hits <= 0.0 {
        return None;
    }
    let of_sums = hits / calls;
    let squares: f64 = windows.iter().map(|(hits, calls)| (hits - of_sums * calls).powi(2)).sum();
    // Over the mean number of hits: of one window, and of the sum.
    let of_window = squares / (n - 1.0) / (hits / n).powi(2);
    let variance = (of_window / n).max(chance);
    let (fast, error) = clock.fast;
    let unlike = (of_window - n * chance).max(0.0).min(clock.most).max(fast);
    if unlike > MOST_UNLIKE {
        return None;
    }
    let t = t_quantile(LEVEL, n - 1.0);
    let half = t * variance.sqrt();
    // How many fast moments there were is chance, too.
    let above = half.hypot(t * error / (1.0 + fast));
    if above >= 1.0 {
        return None;
    }
    let value = of_sums * (1.0 + unlike / 2.0);
    let end = |of: f64| of * of_sums / value;
    // Where the reference is called as evenly as in a loop chance has no part in what windows differ by.
    let most_unlike = of_window.min(MOST_UNLIKE + n * chance).min(clock.most).max(fast).max(clock.may_be);
    let (low, high) = (end(1.0 / (1.0 + half)), end((1.0 + most_unlike) / (1.0 - above)));
    Some(Relative { value, below: 1.0 - low, above: high - 1.0 })
}

/// What windows say in which a call took the target `gap_s` of its own on average: by how much the mean of the rates at those moments is more than the ratio of sums, for a few of them are fast.
/// ```text
/// b = sum f(x_w), x_w > 1/2, / n,   f(x) = x^2 / (1 - x),   x_w = (t - t_w) / g
/// ```
/// `t_w`: what a call took in a window, its own time and what hits cost; `t`: the median. `f` is what a window that is shorter by `x` adds to the mean of rates beyond what it adds to the sums. Such a window is fast, or its hits
/// cost less: what the reference was called in all of them together says which of the two, of which eight calls and more are to be expected in the second case. `calls_hz`: its calls in a unit of what windows tell. Only windows that quotas
/// ended add to the sum: others are as long, whatever is called. `n`: all windows.
pub(super) fn by_clock(windows: &[Clocked], gap_s: f64, calls_hz: f64) -> ByClock {
    const EXPECTED: f64 = 8.0;
    /// So far from what is to be expected of fast windows towards that of cheap hits, what was told is that of fast ones.
    const NEARER: f64 = 0.3;
    let n = windows.len() as f64;
    let windows: Vec<&Clocked> = windows.iter().filter(|w| w.by_quota && w.hits > 2.0).collect();
    let told_s: f64 = windows.iter().map(|w| w.told).sum();
    if told_s <= 0.0 || gap_s <= 0.0 {
        return NO_CLOCK;
    }
    let Short { fast, if_cheap, if_fast, told } = Short::of(&windows, n, gap_s);
    let calls = if_cheap * calls_hz;
    // Nor may chance make so few of as many.
    let may_be_cheap = calls - told * calls_hz <= 2.0 * calls.sqrt();
    if calls >= EXPECTED && !may_be_cheap && told <= if_fast + NEARER * (if_cheap - if_fast) {
        return ByClock { fast, ..NO_CLOCK };
    }
    // That many calls were told may be chance, and the gap be shorter.
    let least_s = gap_s * (1.0 - 2.0 / (told_s * calls_hz).sqrt()).max(0.5);
    let Short { fast, if_cheap, if_fast, told } = Short::of(&windows, n, least_s);
    let least = garwood((told * calls_hz).round(), LEVEL).low / calls_hz;
    let all = if_cheap - if_fast;
    let part = if all > 0.0 { ((if_cheap - least) / all).clamp(0.0, 1.0) } else { 0.0 };
    let may_be = if part > 0.0 { part * most_of(fast, n) } else { 0.0 };
    ByClock { may_be, ..NO_CLOCK }
}

/// What `b`, with its standard error, may be of `n` windows: by Student's t, and of one or two short windows by the Poisson limit of as many as their sizes come to, `(sum f)^2 / sum f^2`.
fn most_of((b, error): (f64, f64), n: f64) -> f64 {
    let by_t = b + t_quantile(LEVEL, n - 1.0) * error;
    // OK because it is 1 at least where a window is short at all.
    let short = (b / error).powi(2).round();
    if short >= 1.0 { by_t.max(b * garwood(short, LEVEL).high / short) } else { by_t }
}

/// Windows that are shorter than the median by more than half of the function's own time.
struct Short {
    /// `b`, and its standard error, if they are fast.
    fast: (f64, f64),
    /// What is to be told of them where their hits cost less, and where they are fast: in the unit of [`Clocked::told`].
    if_cheap: f64,
    if_fast: f64,
    /// What is told.
    told: f64,
}

impl Short {
    /// Of at least one window, of `n` with those that count for nothing.
    fn of(windows: &[&Clocked], n: f64, gap_s: f64) -> Self {
        /// Twice as fast.
        const SHORTER: f64 = 0.5;
        /// More shorter than this they are not taken to be.
        const MOST: f64 = 0.95;
        let mut per_call: Vec<f64> = windows.iter().map(|w| w.ran_s / w.hits).collect();
        per_call.sort_by(f64::total_cmp);
        let usual_s = per_call[per_call.len() / 2];
        let shorter = |w: &Clocked| ((usual_s - w.ran_s / w.hits) / gap_s).min(MOST);
        let sum = |of: &dyn Fn(&Clocked) -> f64| windows.iter().map(|w| of(w)).sum::<f64>();
        let told_for_a_hit = sum(&|w| w.told) / sum(&|w| w.hits);
        let of_short =
            |of: &dyn Fn(&Clocked) -> f64| sum(&|w| if shorter(w) > SHORTER { of(w) } else { 0.0 });
        let f = |w: &Clocked| shorter(w).powi(2) / (1.0 - shorter(w));
        Self {
            fast: (of_short(&f) / n, of_short(&|w| f(w).powi(2)).sqrt() / n),
            if_cheap: of_short(&|w| w.hits * told_for_a_hit),
            if_fast: of_short(&|w| w.hits * told_for_a_hit * (1.0 - shorter(w))),
            told: of_short(&|w| w.told),
        }
    }
}

/// The product of two independent estimates, whose relative errors add by their squares. `n`: calls that it was seen from.
pub(super) fn times(a: Relative, b: Relative, n: u64) -> Estimate {
    let value = a.value * b.value;
    Estimate {
        value,
        low: value * (1.0 - a.below.hypot(b.below)).max(0.0),
        high: value * (1.0 + a.above.hypot(b.above)),
        level: LEVEL,
        n,
        source: Source::Burst,
        at_most: false,
    }
}

#[cfg(test)]
#[path = "../tests/reference.rs"]
pub(super) mod tests;
