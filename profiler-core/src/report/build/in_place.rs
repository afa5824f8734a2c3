//! The overhead as it was measured in place: samples that found the target in our traps.
//!
//! ```text
//! traps    f / (1 - f),  f: share of all samples' CPU time that lay in traps
//! beside   (samples, switches, attaching, ...) x prices / own CPU time,  prices of samples and switches as measured at the end of the run
//! behind   traps x what one leaves behind in caches / own CPU time
//! ```
//! `traps` needs no price and no window without monitoring. `behind` is a calibrated figure: a trap of a tight loop leaves nothing; for the most see
//! [`MOST_BEHIND`].

use super::stamps::MOST_COLD;
use crate::class::{ExitMode, RecordKind, SiteClass, Source};
use crate::cost::{self, PRICE_DRIFT, Price};
use crate::estimate::Estimate;
use crate::ledger::LedgerSummary;
use crate::recording::{Charge, ClassRow, Recording, WindowKind};
use crate::report::InPlace;
use crate::stats::LEVEL;
use crate::stats::added::Ranged;
use crate::stats::shares::{SampleDesign, SamplePoint};
use std::collections::BTreeMap;

/// The most that can come when the trap is over, in units of what cold caches add in calibration at most. In
/// calibration's own load a fifth to a third of that does; in redis a trap took 0.7 to 1.5 us beyond its price (log.md, M38).
const MOST_BEHIND: f64 = 2.0;
/// What a single-stepped hit leaves behind beyond that, at most, as a part of its price: in SQLite 4 us of 14 (log.md, M43); a program that spins meets
/// next to nothing of it.
const MOST_BEHIND_STEPPED: f64 = 0.3;

/// `None` without samples, and without a ledger.
pub(super) fn of(recording: &Recording, ledger: &LedgerSummary) -> Option<InPlace> {
    // Older recordings have such samples among the others.
    recording.meta.agent.until_begin_ns?;
    let cpu_s = ledger.own_cpu_s + ledger.charged_s;
    if cpu_s <= 0.0 {
        return None;
    }
    let asked = recording.meta.sample_period_ns.max(1);
    // A sample without period stands for the one asked for at the start.
    let weight = |period_ns: u64| if period_ns > 0 { period_ns } else { asked } as f64;
    let point = |time_ns, tid, period_ns| SamplePoint { time_ns, tid, weight: weight(period_ns) };
    let points: Vec<SamplePoint> = recording
        .trap_samples
        .iter()
        .map(|s| point(s.time_ns, s.tid, s.period_ns))
        .chain(recording.samples.iter().map(|s| point(s.time_ns, s.tid, s.period_ns)))
        .collect();
    let inside: Vec<usize> = (0..recording.trap_samples.len()).collect();
    let sure: Vec<usize> = inside.iter().copied().filter(|i| recording.trap_samples[*i].is_sure).collect();
    let mut design = SampleDesign::new(&points, LEVEL);
    let (share, least) = (design.balanced_share(&inside)?, design.balanced_share(&sure)?);
    let over = |f: f64| if f < 1.0 { f.max(0.0) / (1.0 - f) } else { f64::INFINITY };
    let (low, high) = (least.this_recording.low, share.this_recording.high);
    let traps = Ranged::between(over(low), over(share.value), over(high));
    // By what was measured, not by prices.
    let own_s = cpu_s * (1.0 - share.value);
    if own_s <= 0.0 {
        return None;
    }
    let at =
        |of: fn(&Price) -> f64| (ledger.beside_traps_s + corrected_at_end_s(recording, of)).max(0.0) / own_s;
    let beside = at(|price| price.ns);
    let low = at(|price| price.min_ns).min(beside * (1.0 - PRICE_DRIFT));
    let high = at(|price| price.max_ns).max(beside * (1.0 + PRICE_DRIFT));
    let beside = Ranged::between(low, beside, high);
    let behind = left_behind_s(recording, ledger).scaled(1.0 / own_s);
    let n = points.len() as u64;
    let estimate = |part: Ranged, source| Estimate {
        value: part.value,
        low: part.interval.low.max(0.0),
        high: part.interval.high,
        level: LEVEL,
        n,
        source,
        at_most: false,
    };
    let mut by_class: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for s in &recording.trap_samples {
        *by_class.entry(s.class_id).or_default() += 1;
    }
    let mut by_class: Vec<_> = by_class.into_iter().collect();
    by_class.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    Some(InPlace {
        overhead: estimate(sum(&[traps, beside, behind]), Source::Sampled),
        traps: estimate(traps, Source::Sampled),
        beside: estimate(beside, Source::Derived),
        priced_at_end: recording.meta.agent.prices_at_end.is_some(),
        behind: estimate(behind, Source::Derived),
        own_s,
        samples: n,
        in_traps: inside.len() as u64,
        by_class,
    })
}

/// What samples and switches cost more than was charged, at the prices that were measured when the run ended, or one of their rounds, CPU s; 0 without such
/// prices.
fn corrected_at_end_s(recording: &Recording, of: fn(&Price) -> f64) -> f64 {
    let Some(now) = recording.meta.agent.prices_at_end else { return 0.0 };
    let more_ns = |charge: Charge, price: Price| -> f64 {
        let rows = recording.ledger.iter().filter(|row| row.charge == charge);
        rows.map(|row| row.units as f64 * of(&price) - row.cost_ns as f64).sum()
    };
    (more_ns(Charge::Samples, now.sample) + more_ns(Charge::Switches, now.switch)) * 1e-9
}

/// The sum of independent parts: squared distances to their limits add (MOVER; Zou and Donner 2008).
fn sum(parts: &[Ranged]) -> Ranged {
    let value: f64 = parts.iter().map(|p| p.value).sum();
    let squares = |of: fn(&Ranged) -> f64| parts.iter().map(|p| of(p).powi(2)).sum::<f64>().sqrt();
    let down = squares(|p| p.value - p.interval.low);
    Ranged::between(value - down, value, value + squares(|p| p.interval.high - p.value))
}

/// What all traps of classes left behind, CPU s.
fn left_behind_s(recording: &Recording, ledger: &LedgerSummary) -> Ranged {
    let model = &recording.meta.cost;
    let cpu_per_s = if ledger.length_s > 0.0 { ledger.own_cpu_s / ledger.length_s } else { 0.0 };
    let (ns, most_ns) = match model.behind {
        Some(behind) => (behind.ns, behind.max_ns.max(MOST_BEHIND * model.cold.max_ns)),
        None => (model.cold.ns, MOST_COLD * model.cold.max_ns),
    };
    let stepped_ns = MOST_BEHIND_STEPPED * model.hit_price(SiteClass::Stepped, RecordKind::Count).ns;
    let classes: BTreeMap<u32, &ClassRow> = recording.classes.iter().map(|c| (c.class_id, c)).collect();
    let (mut value_ns, mut high_ns) = (0.0, 0.0);
    for w in recording.windows.iter().filter(|w| w.attempted > 0) {
        let class = classes.get(&w.class_id);
        let is_timed = class.is_some_and(|c| c.exit_mode != ExitMode::None);
        let hits = w.attempted as f64;
        let traps = hits * if is_timed && w.kind != WindowKind::Survey { 2.0 } else { 1.0 };
        // CPU time that the target has from one trap to the next.
        let gap_s = w.end_ns.saturating_sub(w.start_ns) as f64 * 1e-9 * cpu_per_s / traps;
        // The part of what a trap may leave that the program meets before the next.
        let met = cost::cold_ns(Price::fixed(1.0), gap_s);
        let is_stepped = class.is_some_and(|c| c.site_class == SiteClass::Stepped);
        value_ns += ns * met * traps;
        high_ns += most_ns * met * traps + if is_stepped { stepped_ns * met * hits } else { 0.0 };
    }
    Ranged::between(0.0, value_ns * 1e-9, high_ns * 1e-9)
}
