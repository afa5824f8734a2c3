//! What lies between the two time stamps of a timed call that does nothing: the part of its own probes' price that its duration holds.
//!
//! The entry program takes its time stamp last and the exit program takes its first. Between them lie the rest of the entry's trap, the
//! return to the target, the entry's instruction (emulated or stepped), the next trap and the way to the exit program. So it depends on the
//! entry's price class, and hardly on the form of the exit; a return link's trap is another one.

use super::{CostModel, Price};
use crate::class::{ExitMode, RecordKind, SiteClass};
use serde::{Deserialize, Serialize};

/// The price between two time stamps, ns. One call differs from the next, so the distribution is kept as well as the mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stamps {
    /// Mean of the calls: median, smallest and largest of the runs.
    pub mean: Price,
    /// Quantile 0.05 of single calls.
    pub p05_ns: f64,
    /// Median of single calls.
    pub p50_ns: f64,
    /// Quantile 0.9 of single calls.
    pub p90_ns: f64,
    /// Quantile 0.99 of single calls.
    pub p99_ns: f64,
}

impl Stamps {
    /// From calls that do nothing: the quantiles of their durations, ns, which `at` gives, and the mean of each run, ns. `None` without any.
    #[must_use]
    pub fn measured(at: impl Fn(f64) -> Option<f64>, means_ns: &[f64]) -> Option<Self> {
        Some(Self {
            mean: Price::from_runs(means_ns)?,
            p05_ns: at(0.05)?,
            p50_ns: at(0.5)?,
            p90_ns: at(0.9)?,
            p99_ns: at(0.99)?,
        })
    }

    /// A price that was not measured, with that mean: single calls are taken to spread as they did on the machines that were looked at.
    #[must_use]
    pub fn guessed(mean: Price) -> Self {
        let ns = mean.ns;
        Self { mean, p05_ns: 0.92 * ns, p50_ns: 0.98 * ns, p90_ns: 1.05 * ns, p99_ns: 1.3 * ns }
    }

    /// The quantile `p` (0 to 1) of single calls, ns; between the known ones on a line, beyond them the outermost.
    #[must_use]
    pub fn quantile_ns(&self, p: f64) -> f64 {
        let known = [(0.05, self.p05_ns), (0.5, self.p50_ns), (0.9, self.p90_ns), (0.99, self.p99_ns)];
        let above = known.iter().position(|(q, _)| *q >= p).unwrap_or(known.len() - 1);
        let ((low, from), (high, to)) = (known[above.saturating_sub(1)], known[above]);
        if high <= low { to } else { from + ((p - low) / (high - low)).clamp(0.0, 1.0) * (to - from) }
    }

    /// All of it multiplied by `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            mean: self.mean.scaled(factor),
            p05_ns: self.p05_ns * factor,
            p50_ns: self.p50_ns * factor,
            p90_ns: self.p90_ns * factor,
            p99_ns: self.p99_ns * factor,
        }
    }

    /// The figures make sense: finite, not negative, quantiles in order.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        let ascending = [0.0, self.p05_ns, self.p50_ns, self.p90_ns, self.p99_ns, f64::MAX];
        self.mean.ns.is_finite() && self.mean.ns > 0.0 && ascending.is_sorted()
    }
}

impl CostModel {
    /// Key in [`CostModel::stamps`]: price class of the entry, and whether the end is a return link's trap.
    #[must_use]
    pub fn stamps_key(site: SiteClass, exit: ExitMode) -> String {
        let end = if exit == ExitMode::ReturnLink { "return_link" } else { "exit" };
        format!("{}/{end}", site.name())
    }

    /// What lies between the two time stamps of a call. Where it was not measured: that of the next dearer entry, else half of what the two
    /// hits cost.
    #[must_use]
    pub fn stamps(&self, site: SiteClass, exit: ExitMode) -> Stamps {
        let dearer = SiteClass::ALL.into_iter().filter(|s| *s >= site);
        let measured = dearer.filter_map(|s| self.stamps.get(&Self::stamps_key(s, exit)).copied()).next();
        measured.unwrap_or_else(|| {
            let half = self.call_price(site, RecordKind::Latency, exit, SiteClass::Push, 1).scaled(0.5);
            Stamps::guessed(half)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(ns: f64) -> Stamps {
        Stamps::guessed(Price { ns, min_ns: ns - 10.0, max_ns: ns + 10.0, n: 7 })
    }

    #[test]
    fn the_look_up_takes_the_way_out_and_the_next_dearer_entry() {
        let mut model = CostModel::assumed();
        let guess = model.stamps(SiteClass::Push, ExitMode::ExitSites);
        let hit = model.hit_price(SiteClass::Push, RecordKind::Latency).ns;
        assert!((guess.mean.ns - hit).abs() < 1e-9, "half of two hits: {guess:?}");
        model.stamps.insert("push/exit".into(), stamps(600.0));
        model.stamps.insert("stepped/exit".into(), stamps(11_000.0));
        model.stamps.insert("push/return_link".into(), stamps(500.0));
        let ns = |site, exit| model.stamps(site, exit).mean.ns;
        assert_eq!(ns(SiteClass::Push, ExitMode::ExitSites), 600.0);
        assert_eq!(ns(SiteClass::Push, ExitMode::ReturnLink), 500.0);
        assert_eq!(ns(SiteClass::Nop, ExitMode::ExitSites), 600.0);
        assert_eq!(ns(SiteClass::Branch, ExitMode::ExitSites), 11_000.0);
    }

    #[test]
    fn quantiles_lie_on_lines_and_end_with_the_outermost() {
        let s = Stamps { p05_ns: 50.0, p50_ns: 95.0, p90_ns: 135.0, p99_ns: 225.0, ..stamps(100.0) };
        let at = [0.0, 0.05, 0.275, 0.5, 0.7, 0.9, 0.99, 1.0].map(|p| s.quantile_ns(p));
        for (found, expected) in at.into_iter().zip([50.0, 50.0, 72.5, 95.0, 115.0, 135.0, 225.0, 225.0]) {
            assert!((found - expected).abs() < 1e-9, "{at:?}");
        }
    }

    #[test]
    fn calls_give_mean_and_quantiles() {
        let s = Stamps::measured(|p| Some(500.0 + 100.0 * p), &[520.0, 540.0, 530.0]).unwrap();
        assert_eq!((s.mean.ns, s.mean.n), (530.0, 3));
        let quantiles = [s.p05_ns, s.p50_ns, s.p90_ns, s.p99_ns];
        for (found, expected) in quantiles.into_iter().zip([505.0, 550.0, 590.0, 599.0]) {
            assert!((found - expected).abs() < 1e-9, "{s:?}");
        }
        assert!(s.is_plausible() && Stamps::measured(|_| None, &[1.0]).is_none());
        assert!(Stamps::measured(Some, &[]).is_none());
        assert!(!Stamps { p50_ns: f64::NAN, ..s }.is_plausible());
        assert!(!Stamps { p50_ns: s.p05_ns - 1.0, ..s }.is_plausible());
    }
}
