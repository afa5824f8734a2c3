//! The cost model: CPU seconds that one hit, sample, switch, attach or detach takes from the target or the
//! machine. Prices come from calibration on this host; nothing here is a constant of nature.
//!
//! What it is: a table of measured prices and the look-ups on it (`tau_i`, `tau_s` of the plan and the
//! ledger), each with the spread that the intervals of rates must hold.
//! Inputs: what calibration measured, or the priors of [`CostModel::assumed`] until it has.
//! What it does not do: measure. Where the model has no figure for a combination it answers with the next
//! dearer one that it has, never with a cheaper one.

mod rests;
mod stamps;

pub use rests::{RESTED_S, Rests};
pub use stamps::Stamps;

use crate::class::{ExitMode, RecordKind, SiteClass};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a trap costs depends on what the host's other CPUs and guests do: a price is not believed closer than this part of it,
/// however closely it was calibrated (docs/design.md, "Rates that the price hides").
pub const PRICE_DRIFT: f64 = 0.25;
/// Other work disturbed a calibration in which cold caches add less than this part of the cheapest counted hit, and less than so many ns: seven calibrations on two machines said 0.31 to
/// 0.75 of it, 164 to 208 ns, and one beside other work 0.04, 20 ns, which was kept until the machine was started again (log.md, M57).
const LEAST_COLD: (f64, f64) = (0.2, 100.0);
/// What is believed instead: cold caches add that part of the cheapest counted hit, of so many ns at most, and may add so much, of so many ns at most.
const HELD_COLD: (f64, f64) = (0.35, 200.0);
const HELD_COLD_MOST: (f64, f64) = (0.6, 350.0);

/// A measured price in nanoseconds, with its spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Median of the runs, ns.
    pub ns: f64,
    /// Smallest run, ns; of cold caches the lower end of the median.
    pub min_ns: f64,
    /// Largest run, ns; of cold caches the upper end of the median.
    pub max_ns: f64,
    /// Number of runs.
    pub n: u32,
}

impl Price {
    /// A price known to be exactly `ns`, for tests and for tables given by the user.
    #[must_use]
    pub const fn fixed(ns: f64) -> Self {
        Self { ns, min_ns: ns, max_ns: ns, n: 1 }
    }

    /// A price that was not measured here: the value to plan with and the range in which it is believed to
    /// lie; `n` is 0.
    #[must_use]
    pub fn prior(ns: f64, min_ns: f64, max_ns: f64) -> Self {
        Self { ns, min_ns, max_ns, n: 0 }
    }

    /// A price from the runs of a calibration, ns each: their median, smallest and largest. `None` if there
    /// is no finite run.
    #[must_use]
    pub fn from_runs(runs_ns: &[f64]) -> Option<Self> {
        let mut runs: Vec<f64> = runs_ns.iter().copied().filter(|x| x.is_finite()).collect();
        runs.sort_by(f64::total_cmp);
        let (first, last) = (*runs.first()?, *runs.last()?);
        let mid = runs.len() / 2;
        let ns = if runs.len() % 2 == 1 { runs[mid] } else { (runs[mid - 1] + runs[mid]) / 2.0 };
        // Saturating is right: a calibration has tens of runs.
        let n = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        Some(Self { ns, min_ns: first, max_ns: last, n })
    }

    /// CPU seconds: the unit of `tau` in plans.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.ns * 1e-9
    }

    /// Relative uncertainty, half of (max - min) / median: 0.05 says that the price is known to 5 %.
    #[must_use]
    pub fn uncertainty(self) -> f64 {
        if self.ns > 0.0 { ((self.max_ns - self.min_ns) / (2.0 * self.ns)).max(0.0) } else { 0.0 }
    }

    /// The smallest and the largest price that are believed of a target, ns: the calibration's own, and [`PRICE_DRIFT`] beyond. One that was
    /// given as exact stays so.
    #[must_use]
    pub fn drifted(self) -> (f64, f64) {
        let drift = if self.min_ns == self.max_ns { 0.0 } else { PRICE_DRIFT };
        (self.min_ns * (1.0 - drift), self.max_ns * (1.0 + drift))
    }

    /// The price multiplied by `factor`, spread included.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { ns: self.ns * factor, min_ns: self.min_ns * factor, max_ns: self.max_ns * factor, n: self.n }
    }

    /// The price of both together. Spreads are added: the two may err the same way.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            ns: self.ns + other.ns,
            min_ns: self.min_ns + other.min_ns,
            max_ns: self.max_ns + other.max_ns,
            n: self.n.min(other.n),
        }
    }
}

/// Prices on one host, one boot, one kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// Price of one hit with no exit, by site class and record kind (entry only), ns of target CPU time.
    /// Keys are `"push/count"`.
    pub hit: BTreeMap<String, Price>,
    /// Price of one entry + return pair through a return link, by site class of the entry; keys as above.
    pub pair: BTreeMap<String, Price>,
    /// Factor on a hit when as many threads hit at once as the index + 1 (index 0 is 1.0).
    pub concurrency: Vec<f64>,
    /// What a trap costs more where the program has used the caches since the last one, ns: hit and pair prices are those of a
    /// tight loop. See [`CostModel::cold_ns`].
    #[serde(default = "nothing")]
    pub cold: Price,
    /// The part of `cold` that comes when the trap is over: the program's own work is slower, because the kernel's code and data have driven its own out of
    /// caches and predictors, ns. The rest is in the trap, where samples see it. `None`: assumed prices, and recordings made before it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Price>,
    /// What the first hit costs more after a thread has slept for [`RESTED_S`], ns: [`Rests`] says what that is in a target.
    #[serde(default = "nothing")]
    pub rested: Price,
    /// What lies between the two time stamps of a timed call, by price class of the entry and kind of end. See [`CostModel::stamps`]. Keys
    /// are `"push/exit"` and `"push/return_link"`.
    #[serde(default)]
    pub stamps: BTreeMap<String, Stamps>,
    /// Price of one sample without stack, ns.
    pub sample_base: Price,
    /// Price of one KiB of copied stack, ns.
    pub sample_per_kib: Price,
    /// Price of a context switch of a thread that carries a per-task sampling event, ns.
    pub switch: Price,
    /// Price of a raw tracepoint hit (filtered by tgid, kept), ns.
    pub tracepoint: Price,
    /// Stall of the running target while a link of one class is attached or detached, ns.
    pub attach: Price,
    /// Delay from the decision to detach a link of one class to the moment at which its trap is out of the target's text,
    /// ns. Programs see the last hit long before (0.1 ms): in between, the target pays for traps that nobody counts.
    pub detach_delay: Price,
    /// Where the figures come from: `"calibrated"` or `"assumed"` (shown in the receipt).
    pub origin: String,
}

impl CostModel {
    /// Key of a price: site class and record kind.
    #[must_use]
    pub fn key(site: SiteClass, kind: RecordKind) -> String {
        format!("{}/{}", site.name(), kind.name())
    }

    /// Priors to plan with until this host is calibrated; `origin` is `"assumed"`, `n` is 0 everywhere.
    ///
    /// The values are what one virtual machine (KVM guest, Linux 6.18, two cores) showed; they lie on the
    /// dear side, so that an uncalibrated plan spends too little rather than too much. The ranges reach down
    /// to what is published for bare metal, where an emulated hit costs about 0.3 us and a single-stepped one
    /// about 0.9 us, and up to twice the value.
    #[must_use]
    pub fn assumed() -> Self {
        // ns per entry hit: a counter, a histogram, a ring record, on each site class.
        let entry: [(SiteClass, f64); 5] = [
            (SiteClass::Nop5, 460.0),
            (SiteClass::Nop, 640.0),
            (SiteClass::Push, 700.0),
            (SiteClass::Branch, 800.0),
            (SiteClass::Stepped, 9_300.0),
        ];
        // What a kind adds to a plain count: the clock and the cookie of a latency entry, the 32-byte record.
        let kinds: [(RecordKind, f64); 3] =
            [(RecordKind::Count, 0.0), (RecordKind::Latency, 60.0), (RecordKind::Record, 110.0)];
        // A return link adds about half a microsecond, whatever the entry site is.
        const RETURN_LINK_NS: f64 = 620.0;
        let spread = |ns: f64, site: SiteClass| {
            let bare_metal = if site == SiteClass::Stepped { 0.1 } else { 0.4 };
            Price::prior(ns, ns * bare_metal, ns * 2.0)
        };
        let mut hit = BTreeMap::new();
        let mut pair = BTreeMap::new();
        for (site, base) in entry {
            for (kind, extra) in kinds {
                hit.insert(Self::key(site, kind), spread(base + extra, site));
                pair.insert(Self::key(site, kind), spread(base + extra + RETURN_LINK_NS, site));
            }
        }
        Self {
            hit,
            pair,
            // Two threads on two cores paid within 10 % of one.
            concurrency: vec![1.0, 1.1],
            // KVM guest, Linux 6.18: 0.1 to 0.4 us.
            cold: Price::prior(250.0, 0.0, 500.0),
            behind: None,
            // KVM guest, Linux 6.18: 2.4 us.
            rested: Price::prior(2_400.0, 300.0, 5_000.0),
            stamps: BTreeMap::new(),
            // The timer interrupt of a guest; at low rates the caches are cold, hence the wide upper end.
            sample_base: Price::prior(13_300.0, 3_000.0, 25_000.0),
            sample_per_kib: Price::prior(130.0, 50.0, 300.0),
            switch: Price::prior(2_000.0, 500.0, 4_000.0),
            tracepoint: Price::prior(75.0, 30.0, 200.0),
            attach: Price::prior(150_000.0, 50_000.0, 500_000.0),
            // A grace period of RCU; longer where CPUs are overloaded, 0.1 ms right after another attach or detach.
            detach_delay: Price::prior(10_000_000.0, 100_000.0, 400_000_000.0),
            origin: "assumed".to_owned(),
        }
    }

    /// The prices were measured on this host.
    #[must_use]
    pub fn is_calibrated(&self) -> bool {
        self.origin == "calibrated"
    }

    /// `tau_i`: price of one whole call of a class, with its exit if that is watched, when `threads` threads
    /// hit at once.
    ///
    /// | exit mode    | price                                                    |
    /// |--------------|----------------------------------------------------------|
    /// | `None`       | hit(site)                                                |
    /// | `ReturnLink` | pair(site)                                               |
    /// | `ExitSites`, `ReturnSites` | hit(site) + hit(`exit_site`), of which one runs per call |
    ///
    /// `exit_site` is the dearest site on a way out, or behind a call; it is looked at for these two only.
    #[must_use]
    pub fn call_price(
        &self,
        site: SiteClass,
        kind: RecordKind,
        exit: ExitMode,
        exit_site: SiteClass,
        threads: usize,
    ) -> Price {
        let one = match exit {
            ExitMode::None => self.hit_price(site, kind),
            ExitMode::ReturnLink => lookup(&self.pair, site, kind)
                .or_else(|| lookup(&Self::assumed().pair, site, kind))
                .unwrap_or_else(|| self.hit_price(site, kind).scaled(2.0)),
            ExitMode::ExitSites | ExitMode::ReturnSites => {
                self.hit_price(site, kind).plus(self.hit_price(exit_site, kind))
            }
        };
        one.scaled(self.concurrency_factor(threads))
    }

    /// What a trap costs more than in a tight loop, ns, where the program runs for `gap_s` s of CPU time between two of them.
    ///
    /// `cold (1 - e^(-gap / 1 us))`: in a microsecond a program runs through some hundred cache lines, which is what the kernel's
    /// path of a trap takes up in the first-level caches.
    #[must_use]
    pub fn cold_ns(&self, gap_s: f64) -> f64 {
        cold_ns(self.cold, gap_s)
    }

    /// Cold caches seem to add so little that other work must have disturbed the calibration.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        let (part, ns) = LEAST_COLD;
        self.cold.ns < (part * self.cheapest_ns()).min(ns)
    }

    /// What is believed of a calibration that other work disturbed: that cold caches add what they add elsewhere. True if it was one.
    pub fn hold_cold(&mut self) -> bool {
        let is_disturbed = self.is_disturbed();
        if is_disturbed {
            let cheapest_ns = self.cheapest_ns();
            let [ns, max_ns] =
                [HELD_COLD, HELD_COLD_MOST].map(|(part, ns)| (part * cheapest_ns).min(ns).round());
            self.cold = Price { ns, max_ns: self.cold.max_ns.max(max_ns), ..self.cold };
        }
        is_disturbed
    }

    /// The cheapest hit, ns; 0: none is known.
    fn cheapest_ns(&self) -> f64 {
        self.hit.values().map(|price| price.ns).reduce(f64::min).unwrap_or(0.0)
    }

    /// What a trap leaves behind in a program that has used the caches since the last one, ns: [`CostModel::behind`], else all that cold caches cost.
    #[must_use]
    pub fn left_behind(&self) -> Price {
        self.behind.unwrap_or(self.cold)
    }

    /// Price of one hit with no exit, one thread.
    #[must_use]
    pub fn hit_price(&self, site: SiteClass, kind: RecordKind) -> Price {
        lookup(&self.hit, site, kind)
            .or_else(|| lookup(&Self::assumed().hit, site, kind))
            // OK because `assumed` has every combination; the figure is never used.
            .unwrap_or(Price::prior(10_000.0, 300.0, 20_000.0))
    }

    /// Factor on a hit when `threads` threads hit at once; beyond the measured range the last factor, and
    /// never below 1.
    #[must_use]
    pub fn concurrency_factor(&self, threads: usize) -> f64 {
        let index = threads.saturating_sub(1).min(self.concurrency.len().saturating_sub(1));
        self.concurrency.get(index).copied().filter(|f| f.is_finite()).unwrap_or(1.0).max(1.0)
    }

    /// `tau_s`: price of one sample with `stack_kib` KiB of copied stack, a + b x KiB.
    #[must_use]
    pub fn sample_price(&self, stack_kib: f64) -> Price {
        self.sample_base.plus(self.sample_per_kib.scaled(stack_kib.max(0.0)))
    }

    /// The largest relative uncertainty of the hit prices, for the receipt.
    #[must_use]
    pub fn worst_uncertainty(&self) -> f64 {
        self.hit.values().map(|p| p.uncertainty()).fold(0.0, f64::max)
    }
}

/// [`CostModel::cold_ns`] at that price.
#[must_use]
pub fn cold_ns(cold: Price, gap_s: f64) -> f64 {
    /// Time in which a program takes the caches back, s.
    const TAKEN_BACK_S: f64 = 1e-6;
    let part = if gap_s.is_finite() { 1.0 - (-gap_s.max(0.0) / TAKEN_BACK_S).exp() } else { 1.0 };
    cold.ns * part
}

fn nothing() -> Price {
    Price::fixed(0.0)
}

/// The figure for (site, kind), else the next dearer site, else the next dearer kind. A step costs about what a record of an entry does, and
/// has no figure of its own.
fn lookup(table: &BTreeMap<String, Price>, site: SiteClass, kind: RecordKind) -> Option<Price> {
    const KINDS: [RecordKind; 4] =
        [RecordKind::Count, RecordKind::Latency, RecordKind::Step, RecordKind::Record];
    KINDS.into_iter().filter(|k| *k >= kind).find_map(|k| {
        SiteClass::ALL
            .into_iter()
            .filter(|s| *s >= site)
            .find_map(|s| table.get(&CostModel::key(s, k)).copied())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_finite_price_that_grows_with_what_is_asked() {
        let model = CostModel::assumed();
        for site in SiteClass::ALL {
            let mut last = 0.0;
            for kind in [RecordKind::Count, RecordKind::Latency, RecordKind::Record] {
                let entry = model.call_price(site, kind, ExitMode::None, site, 1);
                let link = model.call_price(site, kind, ExitMode::ReturnLink, site, 1);
                let sites = model.call_price(site, kind, ExitMode::ExitSites, SiteClass::Stepped, 1);
                assert!(entry.ns > last && link.ns > entry.ns && sites.ns > link.ns, "{site:?} {kind:?}");
                assert!(entry.min_ns < entry.ns && entry.ns < entry.max_ns);
                last = entry.ns;
            }
        }
        assert!(!model.is_calibrated());
    }

    #[test]
    fn what_cold_caches_add_is_held_to_the_least_that_was_seen() {
        let mut model = CostModel::assumed();
        model.hit = BTreeMap::from([("nop5/count".to_owned(), Price::fixed(500.0))]);
        let seen = Price { ns: 200.0, min_ns: 20.0, max_ns: 350.0, n: 14 };
        model.cold = seen;
        assert!(!model.hold_cold() && model.cold == seen);
        // As beside the work of others.
        model.cold = Price { ns: 19.7, min_ns: 0.0, max_ns: 165.3, n: 14 };
        assert!(model.hold_cold());
        assert_eq!(model.cold, Price { ns: 175.0, min_ns: 0.0, max_ns: 300.0, n: 14 });
        assert!(!model.hold_cold(), "it is held");
        // Traps may be dear (virtual machines in virtual machines), caches are as large.
        model.hit = BTreeMap::from([("nop5/count".to_owned(), Price::fixed(3_000.0))]);
        assert!(!model.is_disturbed());
        model.cold.ns = 90.0;
        assert!(
            model.hold_cold() && model.cold.ns == 200.0 && model.cold.max_ns == 350.0 && !model.hold_cold()
        );
        // Nothing is known of a machine without prices.
        model.hit.clear();
        model.cold.ns = 0.0;
        assert!(!model.hold_cold());
    }

    #[test]
    fn a_missing_price_is_answered_by_the_next_dearer_one() {
        let mut model = CostModel::assumed();
        model.hit.clear();
        model.hit.insert(CostModel::key(SiteClass::Push, RecordKind::Count), Price::fixed(300.0));
        model.hit.insert(CostModel::key(SiteClass::Stepped, RecordKind::Count), Price::fixed(940.0));
        assert_eq!(model.hit_price(SiteClass::Nop, RecordKind::Count).ns, 300.0);
        assert_eq!(model.hit_price(SiteClass::Branch, RecordKind::Count).ns, 940.0);
        // No latency price at all: the prior answers.
        let prior = CostModel::assumed().hit_price(SiteClass::Push, RecordKind::Latency);
        assert_eq!(model.hit_price(SiteClass::Push, RecordKind::Latency), prior);
    }

    #[test]
    fn a_trap_is_dearer_the_longer_the_program_has_run_since_the_last() {
        let model = CostModel::assumed();
        assert_eq!(model.cold_ns(0.0), 0.0);
        assert!(model.cold_ns(1e-7) < 0.1 * model.cold.ns);
        assert!(model.cold_ns(1e-5) > 0.99 * model.cold.ns);
        assert_eq!(model.cold_ns(f64::INFINITY), model.cold.ns);
        assert_eq!(model.cold_ns(f64::NAN), model.cold.ns, "no hits: no gap is known");
        // Where it was not measured what comes behind a trap may be all of it.
        let measured = CostModel { behind: Some(Price::fixed(40.0)), ..model.clone() };
        assert_eq!((model.left_behind(), measured.left_behind().ns), (model.cold, 40.0));
    }

    #[test]
    fn concurrency_never_makes_a_hit_cheaper_and_holds_its_last_figure() {
        let mut model = CostModel::assumed();
        model.concurrency = vec![1.0, 1.2, 0.7];
        assert_eq!(model.concurrency_factor(0), 1.0);
        assert_eq!(model.concurrency_factor(2), 1.2);
        assert_eq!(model.concurrency_factor(64), 1.0);
        model.concurrency.clear();
        assert_eq!(model.concurrency_factor(3), 1.0);
    }

    #[test]
    fn runs_give_median_and_range() {
        let price = Price::from_runs(&[720.0, 700.0, 740.0, f64::NAN]).unwrap();
        assert_eq!((price.ns, price.min_ns, price.max_ns, price.n), (720.0, 700.0, 740.0, 3));
        assert!((price.uncertainty() - 40.0 / 1440.0).abs() < 1e-12);
        assert_eq!(Price::from_runs(&[1.0, 3.0]).unwrap().ns, 2.0);
        assert!(Price::from_runs(&[]).is_none());
    }

    #[test]
    fn samples_cost_a_plus_b_per_kib() {
        let mut model = CostModel::assumed();
        model.sample_base = Price::fixed(12_000.0);
        model.sample_per_kib = Price::fixed(200.0);
        assert_eq!(model.sample_price(8.0).ns, 13_600.0);
        assert_eq!(model.sample_price(-1.0).ns, 12_000.0);
    }

    #[test]
    fn the_model_survives_json() {
        let model = CostModel::assumed();
        let text = serde_json::to_string(&model).unwrap();
        assert_eq!(serde_json::from_str::<CostModel>(&text).unwrap(), model);
    }
}
