//! What the probes of a call put between its own two time stamps, in this target.
//!
//! Where the function has a pair of sites that measured it in this target, that is taken. Else the price of this host, which calibration measured
//! in a tight loop ([`Stamps`]). In the target a trap may cost more or less: the host's price is
//! believed to [`PRICE_DRIFT`], above also to what cold caches add (`MOST_COLD`). And a duration is not negative, so the
//! smallest durations of real calls bound the price from above.

use crate::class::{ExitMode, RecordKind, SiteClass};
use crate::cost::{CostModel, PRICE_DRIFT, Price, Stamps};
use crate::recording::{ClassRow, Recording, WindowRow};
use crate::stats::LEVEL;
use crate::stats::added::Ranged;
use crate::stats::moments::Moments;
use crate::stats::quantile::{self, Bucket};
use std::collections::BTreeMap;

/// Fewer calls say too little about the smallest durations.
const ENOUGH_CALLS: u64 = 50;
/// Fewer intervals of a pair are not believed, nor are they where fewer than this part were measured while the function was not attached.
const ENOUGH_INTERVALS: u64 = 30;
const UNDISTURBED: f64 = 0.8;
/// Windows that say how much the price differs from moment to moment, and intervals that each must have.
const ENOUGH_WINDOWS: usize = 3;
const ENOUGH_OF_A_WINDOW: u64 = 10;
/// An interval of so many times the median was interrupted.
const INTERRUPTED: f64 = 4.0;
/// Price of a call of the pair, over that of its entry, from which on its second site is of a dearer kind.
const SLOWER: f64 = 4.0;
/// What the price of a hit may differ from that of a pair at the same site: other moments, other caches; and where the trap is another.
const SAME_TRAP: f64 = 0.05;
const OTHER_TRAP: f64 = 0.15;
/// The part of the calls that is compared: durations below this quantile are the smallest.
const SMALL: f64 = 0.05;
/// What cold caches add to a trap in a target that sleeps or does much between two calls, in units of the most that calibration's own load adds (the upper end of the median): 600
/// to 900 ns were seen where that was 185.
pub(in crate::report) const MOST_COLD: f64 = 4.8;
/// Part of its price that a single-stepped hit leaves behind, and the most, which the drift of prices widens: two exceptions, each a way through the hypervisor where
/// there is one. Of SQLite's `sqlite3_prepare_v2` a hit took 19 to 24 us of CPU time (log.md, M44) and made calls some 4 us longer (M43), where the price was 14.0; a function
/// that spins meets next to nothing of it. So the value is a guess between the two, and the interval holds both.
pub(super) const STEPPED_BEHIND: (f64, f64) = (0.15, 0.5);
/// What the trap at the entry leaves behind in the call itself, in units of what cold caches add in calibration's own load: the value, and the most. By their own
/// clocks calls of redis, memcached and SQLite took 0.13 to 0.7 us less than their stamps without their price, with 0.16 to 0.2 us in calibration (log.md, M58).
const BEHIND_IN_CALL: (f64, f64) = (1.6, 2.5);
/// Time of a call in which it meets most of that, s: the first instructions meet the most, those of 50 ns 0.13 us.
const MET_S: f64 = 0.3e-6;
/// Calls that last so many times the mean of those that are looked at count by themselves where the mean is taken of what calls meet: not at all if they take the first of these parts of their time, and altogether from the second on.
/// Interruptions of the price look alike, and take half of the time where calls take 50 ns (memcached's `item_get`; with all of it its mean was told 0.06 us longer).
const MUCH_LONGER: f64 = 3.0;
const MOST_OF_TIME: (f64, f64) = (0.6, 0.9);
/// Prices differ more from call to call in a target than in a tight loop: their mean may be this many times the smallest of them (1.8 was seen
/// in a target that sleeps between calls; 1.04 is that of the loop).
const LEAST_SHAPE: f64 = 2.0;

/// The price between the time stamps of a class.
#[derive(Debug, Clone, Copy)]
pub(in crate::report) struct Own {
    /// Mean and quantiles of single calls; `None`: nothing is to be taken out.
    stamps: Option<Stamps>,
    /// What all of it may be multiplied by.
    low: f64,
    high: f64,
    /// Most that interruptions within the price add to its mean, ns a call.
    interrupted_ns: f64,
    /// What the trap at the entry leaves behind.
    left_behind: Behind,
}

/// See [`Own::left_behind`].
#[derive(Debug, Clone, Copy)]
struct Behind {
    /// In a call that is long enough to meet all of it, ns.
    all: Price,
    /// Time of a call in which it meets most of it, ns.
    over_ns: f64,
}

impl Behind {
    const NOTHING: Self = Self { all: Price::fixed(0.0), over_ns: MET_S * 1e9 };

    /// Of the trap at the entry of the class. `d - b (1 - e^(-d / t))` is positive for all d where `b <= t`: more would make nothing of short calls.
    fn of(class: &ClassRow, model: &CostModel) -> Self {
        let over_ns = MET_S * 1e9;
        let (value, most) = BEHIND_IN_CALL;
        let value_ns = (value * model.cold.ns).min(over_ns);
        let cold = Price { ns: value_ns, min_ns: 0.0, max_ns: most * model.cold.max_ns, n: 1 };
        if class.site_class != SiteClass::Stepped {
            return Self { all: cold, over_ns };
        }
        let hit_ns = model.hit_price(class.site_class, RecordKind::Count).ns;
        let (value, most) = STEPPED_BEHIND;
        let max_ns = most * (1.0 + PRICE_DRIFT) * hit_ns;
        let all = cold.plus(Price { ns: value * hit_ns, min_ns: 0.0, max_ns, n: 1 });
        Self { all, over_ns: over_ns.max(all.ns) }
    }

    /// What a call of `duration_ns` meets, ns.
    fn met(self, duration_ns: f64) -> Ranged {
        let all = self.all.scaled(1.0 - (-duration_ns.max(0.0) / self.over_ns).exp());
        Ranged::between(0.0, all.ns, all.max_ns.max(all.ns))
    }
}

impl Own {
    /// Nothing is to be taken out.
    const NOTHING: Self =
        Self { stamps: None, low: 1.0, high: 1.0, interrupted_ns: 0.0, left_behind: Behind::NOTHING };

    /// `seen`: durations of the class as measured, with their mean, ns.
    pub(super) fn of(class: &ClassRow, recording: &Recording, seen: &[Bucket], mean_ns: f64) -> Self {
        // An older recording: its `nested_cost_ns` is all that is known.
        if class.stamps_ns.is_none() {
            return Self::NOTHING;
        }
        let model = &recording.meta.cost;
        let host = model.stamps(class.site_class, class.exit_mode);
        let known = host.mean.min_ns == host.mean.max_ns;
        let left_behind = if known { Behind::NOTHING } else { Behind::of(class, model) };
        if let Some(own) = in_place(class, recording, &host, bound_ns(&host, seen, mean_ns)) {
            let interrupted_ns = interrupted_ns(own.mean().value, seen, mean_ns);
            return Self { interrupted_ns, left_behind, ..own };
        }
        let (low_ns, high_ns) = host.mean.drifted();
        let cold_ns = if known { 0.0 } else { MOST_COLD * model.cold.max_ns };
        let (mut value, mut high_ns) = (host.mean.ns, high_ns + cold_ns);
        if let Some(bound_ns) = bound_ns(&host, seen, mean_ns) {
            (value, high_ns) = (value.min(bound_ns), high_ns.min(bound_ns));
        }
        if value <= 0.0 {
            return Self::NOTHING;
        }
        Self {
            stamps: Some(host.scaled(value / host.mean.ns)),
            low: (low_ns / value).min(low_ns / host.mean.ns),
            high: (high_ns / value).max(1.0),
            interrupted_ns: 0.0,
            left_behind,
        }
    }

    /// Its median and what that is known to, ns: a quarter of the 95 % interval. What interruptions add to the mean moves no median. `None`: nothing is taken out.
    pub(in crate::report) fn median(&self) -> Option<(f64, f64)> {
        let median_ns = self.stamps?.p50_ns;
        Some((median_ns, median_ns * (self.high - self.low).max(0.0) / 4.0))
    }

    /// What the trap at the entry leaves behind in a call of `duration_ns` between its stamps without their price, ns: the kernel's code and data have driven the call's own out of caches and
    /// predictors. No pair of sites sees it, because it comes after the first time stamp and lasts longer than to the second. A function that is called
    /// in a tight loop meets none of it, so the interval reaches to 0.
    /// ```text
    /// behind(d) = b (1 - e^(-d / t)),   b = min(BEHIND_IN_CALL cold, 0.3 us), t = 0.3 us
    ///             stepped: b and STEPPED_BEHIND of a hit,            t = that, 0.3 us at least
    /// ```
    pub(super) fn left_behind(&self, duration_ns: f64) -> Ranged {
        self.left_behind.met(duration_ns)
    }

    /// [`Self::left_behind`], the mean over the calls `seen`, whose mean is `mean_ns` with `probes_ns` of probes. Of many short calls and a few long ones it is less than that of one
    /// call as long as their mean, for it is concave ([`Self::met_by`]).
    pub(super) fn left_behind_of(&self, seen: &[Bucket], mean_ns: f64, probes_ns: f64) -> Ranged {
        // Parts of a factor of two that calls are told apart by.
        const FINE: f64 = 16.0;
        // The price of their own is alike in all of them; what is nested is taken to grow with the rest.
        let own_ns = self.mean().value.min(mean_ns);
        let own_part =
            if mean_ns > own_ns { ((mean_ns - probes_ns) / (mean_ns - own_ns)).max(0.0) } else { 0.0 };
        let mut calls: BTreeMap<i64, Calls> = BTreeMap::new();
        for b in seen.iter().filter(|b| b.count > 0) {
            let call_ns = ((b.low + b.high - 1.0) / 2.0 - own_ns) * own_part;
            // OK because no duration has more than 64 bits.
            let of = calls.entry((call_ns.max(1.0).log2() * FINE) as i64).or_default();
            of.n += b.count as f64;
            of.sum_ns += call_ns * b.count as f64;
        }
        let (value, high) = self.met_by(&calls.into_values().collect::<Vec<_>>(), mean_ns - probes_ns);
        Ranged::between(0.0, value, high)
    }

    /// What these calls, whose mean is `mean_ns`, meet in the mean: value, and the most. Those that last [`MUCH_LONGER`] than the mean, and more than the price spreads, count by themselves where they take [`MOST_OF_TIME`], until none is left that does; the others as one of their mean:
    /// single durations spread with the price, and what each would meet is less than what they do.
    fn met_by(&self, calls: &[Calls], mean_ns: f64) -> (f64, f64) {
        let as_one = |mean_ns: f64| {
            let met = self.left_behind(mean_ns);
            (met.value, met.interval.high)
        };
        let spread_ns = self.stamps.map_or(0.0, |stamps| (stamps.p99_ns - stamps.mean.ns).max(0.0));
        let limit_ns = MUCH_LONGER * mean_ns.max(0.0) + spread_ns;
        let (long, short): (Vec<Calls>, Vec<Calls>) =
            calls.iter().partition(|of| of.sum_ns > limit_ns * of.n);
        let (all, of_long, of_short) = (Calls::all(calls), Calls::all(&long), Calls::all(&short));
        let (least, most) = MOST_OF_TIME;
        let of_time = (of_long.sum_ns / all.sum_ns.max(1.0) - least) / (most - least);
        // Just beyond the limit they count for next to nothing, from twice of it on altogether: no step where they cross it.
        let beyond = of_long.mean_ns() / limit_ns.max(1.0) - 1.0;
        let weight = of_time.clamp(0.0, 1.0) * beyond.clamp(0.0, 1.0);
        if weight == 0.0 || of_long.n == 0.0 || of_short.n == 0.0 {
            return as_one(mean_ns);
        }
        let (one, long) = (as_one(mean_ns), as_one(of_long.mean_ns()));
        // Ends because there are fewer each time.
        let short = self.met_by(&short, of_short.mean_ns());
        let part = of_long.n / all.n;
        let mean = |one: f64, long: f64, short: f64| {
            (1.0 - weight) * one + weight * (part * long + (1.0 - part) * short)
        };
        (mean(one.0, long.0, short.0), mean(one.1, long.1, short.1))
    }

    /// Mean, ns.
    pub(super) fn mean(&self) -> Ranged {
        let Some(stamps) = self.stamps else { return Ranged::exact(0.0) };
        let ns = stamps.mean.ns;
        Ranged::between(ns * self.low, ns, ns * self.high + self.interrupted_ns)
    }

    /// What of the quantile `p` of seen durations is the price, ns, where that lies `above_ns` above their median.
    ///
    /// Were the calls all alike, it would be the price's own quantile; were the price always the same, its median. Between the two spreads
    /// add by their squares, as those of independent normal variables do:
    /// ```text
    /// d_p - d_50 = sqrt((x_p - x_50)^2 - (e_p - e_50)^2)
    /// ```
    /// for the seen duration x, the duration d and the price e. The interval reaches from the one case to the other.
    pub(super) fn quantile(&self, p: f64, above_ns: f64) -> Ranged {
        let Some(stamps) = self.stamps else { return Ranged::exact(0.0) };
        let (median, own) = (stamps.p50_ns, stamps.quantile_ns(p));
        let left = (above_ns.powi(2) - (own - median).powi(2)).max(0.0).sqrt();
        let value = median + (above_ns - left).clamp(0.0, (own - median).max(0.0));
        let least = median.min(stamps.mean.ns);
        // In a target the price's own tail is longer than in a tight loop: 1.3 at 0.9 and 3 at 0.99 were seen.
        let tail = if p > 0.5 { 1.6_f64.max(4.0 * (p.min(0.99) - 0.9) / 0.09) } else { 1.0 };
        let most = own.max(tail * stamps.mean.ns);
        Ranged::between(least * self.low, value, most * self.high)
    }
}

/// Calls of about one length, without their probes.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    n: f64,
    sum_ns: f64,
}

impl Calls {
    fn all(of: &[Self]) -> Self {
        of.iter().fold(Self::default(), |all, one| Self { n: all.n + one.n, sum_ns: all.sum_ns + one.sum_ns })
    }

    fn mean_ns(self) -> f64 {
        if self.n > 0.0 { self.sum_ns / self.n } else { 0.0 }
    }
}

/// What pairs have measured in this target while their functions were not attached.
struct Measured<'a> {
    /// A pair of sites; of several any.
    pair: &'a ClassRow,
    /// Intervals.
    seen: Vec<Bucket>,
    /// Those of them that nothing interrupted.
    prices: Moments,
    /// Mean of each window with enough intervals, over the mean of [`Self::prices`].
    windows: Vec<f64>,
    /// It is the pair of another function.
    is_borrowed: bool,
}

impl<'a> Measured<'a> {
    /// By the class's own pair. `None` where it has too few intervals, or too many of them while the function itself was attached, whose
    /// programs then ran between the pair's stamps.
    fn of(class: &ClassRow, recording: &'a Recording) -> Option<Self> {
        let pair = recording.classes.iter().find(|c| c.stamps_of == Some(class.class_id))?;
        Self::of_pairs(&[pair], recording)
    }

    /// By the pairs of other functions, whose entries are of the same price class: for one that is attached all the time.
    fn borrowed(class: &ClassRow, recording: &'a Recording) -> Option<Self> {
        let entry = |id: u32| recording.classes.iter().find(|c| c.class_id == id).map(|c| c.site_class);
        let pairs: Vec<&ClassRow> = recording
            .classes
            .iter()
            .filter(|c| {
                c.stamps_of.is_some_and(|of| of != class.class_id && entry(of) == Some(class.site_class))
            })
            .collect();
        Self::of_pairs(&pairs, recording).map(|measured| Self { is_borrowed: true, ..measured })
    }

    /// An interval of a pair is a price and next to nothing else. One that took several times the median was interrupted, which happens to
    /// any time of its length and is no price: the mean is that of the others.
    fn of_pairs(pairs: &[&'a ClassRow], recording: &'a Recording) -> Option<Self> {
        // Windows of these pairs and of their functions alone, in one pass: a long run has a hundred thousand.
        let mut windows: BTreeMap<u32, Vec<&WindowRow>> = pairs
            .iter()
            .flat_map(|p| [Some(p.class_id), p.stamps_of])
            .flatten()
            .map(|id| (id, Vec::new()))
            .collect();
        for w in &recording.windows {
            if let Some(of_class) = windows.get_mut(&w.class_id) {
                of_class.push(w);
            }
        }
        let of = |id: u32| windows.get(&id).into_iter().flatten().copied();
        let alone = |pair: &ClassRow, w: &WindowRow| {
            let beside = |own: &WindowRow| own.start_ns < w.end_ns && w.start_ns < own.end_ns;
            pair.stamps_of.is_none_or(|id| !of(id).any(beside))
        };
        let undisturbed = |pair: &&&ClassRow| {
            let (mut all, mut alone_n) = (0, 0);
            for w in of(pair.class_id) {
                all += w.returns;
                alone_n += if alone(pair, w) { w.returns } else { 0 };
            }
            alone_n >= ENOUGH_INTERVALS && alone_n as f64 >= UNDISTURBED * all as f64
        };
        let pairs: Vec<&ClassRow> = pairs.iter().filter(undisturbed).copied().collect();
        let is_of = |id: u32| pairs.iter().any(|pair| pair.class_id == id);
        let seen: Vec<Bucket> = recording
            .histograms
            .iter()
            .filter(|h| is_of(h.class_id))
            .map(|h| Bucket { low: h.low_ns as f64, high: h.high_ns as f64, count: h.count })
            .collect();
        let median = quantile::quantile(&seen, 0.5, 0.0, 0.0)?.value;
        let uninterrupted = seen.iter().filter(|b| b.low < INTERRUPTED * median);
        let prices: Moments = uninterrupted
            .flat_map(|b| std::iter::repeat_n((b.low + b.high) / 2.0, usize::try_from(b.count).unwrap_or(0)))
            .collect();
        let sums: Vec<(u64, f64)> = pairs
            .iter()
            .flat_map(|pair| of(pair.class_id).filter(|w| alone(pair, w)))
            .filter(|w| w.returns >= ENOUGH_OF_A_WINDOW)
            .map(|w| (w.returns, w.sum_ns as f64))
            .collect();
        let interrupted = seen.iter().filter(|b| b.low >= INTERRUPTED * median).copied().collect();
        let windows = means_without(sums, interrupted).into_iter().map(|mean| mean / prices.mean()).collect();
        Some(Self { pair: pairs.first()?, seen, prices, windows, is_borrowed: false })
    }

    /// A call of the pair costs several times what its entry does.
    fn is_slower(&self, recording: &Recording) -> bool {
        let entry = recording.meta.cost.hit_price(self.pair.site_class, RecordKind::Latency);
        let mut windows = recording.windows.iter().filter(|w| w.class_id == self.pair.class_id);
        windows.any(|w| w.tau_ns > SLOWER * entry.ns)
    }

    /// What chance leaves of the mean, as a part of it.
    fn chance(&self) -> f64 {
        let mean = self.prices.mean();
        self.prices.mean_interval(LEVEL).map_or(1.0, |i| (i.high - i.low) / 2.0 / mean)
    }
}

/// What the class's pair has measured in this target, with the host's price as a second witness.
///
/// The pair's second trap is not the call's own: another instruction, met at other moments. Watched alone and seldom, a pair finds the
/// kernel's code colder than calls do that are watched beside others. Seen in one program, ns: host 540 to 650; pairs of functions that are called in a
/// row 570 to 730, their calls 590 to 760; pairs of functions that are called 400 times a second 770 to 980, their calls at return addresses
/// 780, those with return links 660 to 880. So the interval reaches half of the way to the host's price, and with a return link, of which
/// the pair sees only how many times the host's price a trap costs here, all of it; there the value is the mean of the two. A price of the host that was
/// not measured, but guessed from others, is no witness. A function without a pair (it is attached all the time) borrows those of functions whose
/// entries have the same price class; their windows say how much they differ.
fn in_place(class: &ClassRow, recording: &Recording, host: &Stamps, bound_ns: Option<f64>) -> Option<Own> {
    let measured = Measured::of(class, recording).or_else(|| Measured::borrowed(class, recording))?;
    let is_linked = class.exit_mode == ExitMode::ReturnLink;
    let model = &recording.meta.cost;
    let host_of_pair = model.stamps(measured.pair.site_class, ExitMode::ExitSites);
    let factor = if is_linked { host.mean.ns / host_of_pair.mean.ns } else { 1.0 };
    let at = |p| quantile::quantile(&measured.seen, p, 0.0, 0.0).map(|e| e.value);
    let of_pair = Stamps::measured(at, &[measured.prices.mean()])?.scaled(factor);
    let is_measured = model.stamps.contains_key(&CostModel::stamps_key(class.site_class, class.exit_mode));
    let host_part = if is_measured { host.mean.ns / of_pair.mean.ns } else { 1.0 };
    let between = f64::midpoint(1.0, host_part);
    let (value, witness) = if is_linked { (between, host_part) } else { (1.0, between) };
    let part = measured.chance().hypot(OTHER_TRAP);
    // A price differs from moment to moment by more than chance: it lies somewhere between what the windows showed.
    let few = if measured.windows.len() < ENOUGH_WINDOWS { PRICE_DRIFT } else { 0.0 };
    let least = measured.windows.iter().copied().fold(1.0 - few, f64::min) - part;
    let most = measured.windows.iter().copied().fold(1.0 + few, f64::max) + part;
    let own = Own {
        stamps: Some(of_pair.scaled(value)),
        low: least.min(witness * (1.0 - OTHER_TRAP)).max(0.0) / value,
        high: most.max(witness * (1.0 + OTHER_TRAP)) / value,
        interrupted_ns: 0.0,
        left_behind: Behind::NOTHING,
    };
    if !measured.is_borrowed {
        return Some(own);
    }
    // Another function may be called so much more often, or more seldom, that traps are warmer or colder there by more than the pairs differ.
    let low = own.low.min(host_part * (1.0 - OTHER_TRAP) / value);
    let high = own.high + MOST_COLD * model.cold.max_ns / (of_pair.mean.ns * value);
    let stamps = of_pair.scaled(value);
    // And the function's own calls bound it.
    let most_part =
        bound_ns.map_or(1.0, |bound_ns| (bound_ns / stamps.mean.ns).min(1.0)).max(f64::MIN_POSITIVE);
    let most_high = bound_ns.map_or(f64::INFINITY, |bound_ns| bound_ns / stamps.mean.ns);
    Some(Own {
        stamps: Some(stamps.scaled(most_part)),
        low: (low / most_part).min(1.0),
        high: (high.min(most_high) / most_part).max(1.0),
        ..own
    })
}

/// Most that interruptions add to the mean price of `price_ns`, ns a call. What interrupts calls (another process, an interrupt, the hypervisor) does so
/// within the price, too, by its part of their time: of what the mean of the seen durations lies above their median, at most that part is the
/// price's. The rest is the calls' own, as all of it is where long calls have much to do.
fn interrupted_ns(price_ns: f64, seen: &[Bucket], mean_ns: f64) -> f64 {
    let Some(median) = quantile::quantile(seen, 0.5, 0.0, 0.0) else { return 0.0 };
    let part = (price_ns / median.value).min(1.0);
    if part.is_finite() { part * (mean_ns - median.value).max(0.0) } else { 0.0 }
}

/// The means of windows (intervals, and their sum, ns) without these interrupted intervals, ns. In which window one was is not recorded: from the
/// longest to the shortest, each is taken out of the window that has the largest mean then, where it shows most.
fn means_without(mut windows: Vec<(u64, f64)>, mut interrupted: Vec<Bucket>) -> Vec<f64> {
    let mean = |&(n, sum): &(u64, f64)| sum / n as f64;
    interrupted.sort_by(|a, b| b.low.total_cmp(&a.low));
    for bucket in interrupted {
        for _ in 0..bucket.count {
            let Some(largest) = windows.iter_mut().max_by(|a, b| mean(a).total_cmp(&mean(b))) else { break };
            // It lay in a window that is not among these.
            if largest.0 < 2 || largest.1 < bucket.high {
                break;
            }
            *largest = (largest.0 - 1, largest.1 - (bucket.low + bucket.high) / 2.0);
        }
    }
    windows.iter().map(mean).collect()
}

/// How many times the host's price a hit of this class costs in this target, as (value, smallest, largest): what its pair shows between its
/// stamps over what calibration found there. A hit is that and the program's own work, which takes a tenth of it. `None` without a pair
/// that has enough.
///
/// The rate of a run is a mean over its moments, and so is this: windows differ by `s`, their mean is known to `t s / sqrt(m)`.
pub(super) fn hit_factor(class: &ClassRow, recording: &Recording) -> Option<(f64, f64, f64)> {
    let measured = Measured::of(class, recording)?;
    // A guess of the host's price says nothing of how dear this target is.
    let key = CostModel::stamps_key(measured.pair.site_class, ExitMode::ExitSites);
    let host = recording.meta.cost.stamps.get(&key)?;
    let value = measured.prices.mean() / host.mean.ns;
    let enough = measured.windows.len() >= ENOUGH_WINDOWS;
    let windows: Moments = measured.windows.iter().copied().collect();
    let mean = windows.mean_interval(LEVEL).filter(|_| enough);
    let between = mean.map_or(PRICE_DRIFT, |i| (i.high - i.low) / 2.0);
    let part = |trap: f64| between.hypot(measured.chance()).hypot(trap).min(1.0);
    // Where the second site of the pair is single-stepped, and the function's is not, ten times as long lies between two hits, and the caches are
    // colder: a hit of the function costs less.
    let below = if measured.is_slower(recording) { OTHER_TRAP } else { SAME_TRAP };
    // Single-stepping leaves more behind than any pair sees: 4 us of 14 in SQLite, of which its pair saw 2.
    let above = if class.site_class == SiteClass::Stepped { PRICE_DRIFT } else { SAME_TRAP };
    value.is_finite().then(|| (value, value * (1.0 - part(below)), value * (1.0 + part(above))))
}

/// The largest mean price that the smallest durations allow, ns; `None` of too few calls.
///
/// Each seen duration is a price and something that is not negative, so every quantile of theirs is at least that of the price. With
/// the shape of the host's price, or a wider one: `mean <= x_q (mean / e_q)`, where x_q is the upper limit of the quantile; and its mean is at most theirs.
fn bound_ns(host: &Stamps, seen: &[Bucket], mean_ns: f64) -> Option<f64> {
    let n: u64 = seen.iter().map(|b| b.count).sum();
    if n < ENOUGH_CALLS || host.p05_ns <= 0.0 {
        return None;
    }
    let small = quantile::quantile(seen, SMALL, LEVEL, 0.0)?;
    small.high.is_finite().then(|| (small.high * (host.mean.ns / host.p05_ns).max(LEAST_SHAPE)).min(mean_ns))
}
