//! Intervals of the ledger, merged: the ledger is closed ten times a second, and nobody reads a day of that.

use crate::recording::{Charge, LedgerRow};
use std::collections::BTreeMap;

/// Length from which merged intervals are given out, ns: that of the receipt's worst second.
const MERGED_NS: u64 = 1_000_000_000;

/// Adds up the rows of successive intervals.
#[derive(Debug, Clone, Default)]
pub struct Merger {
    accounts: BTreeMap<(Charge, Option<u32>), (u64, u64)>,
    time_ns: u64,
    interval_ns: u64,
    target_cpu_ns: u64,
    allowed_ns: u64,
}

impl Merger {
    /// Takes the rows of one interval (all with the same end, as [`super::Ledger::close_interval`] gives them); returns the
    /// rows of a merged interval when a second is full, else none.
    pub fn push(&mut self, rows: &[LedgerRow]) -> Vec<LedgerRow> {
        let Some(first) = rows.first() else { return Vec::new() };
        self.time_ns = first.time_ns;
        self.interval_ns += first.interval_ns;
        self.target_cpu_ns += first.target_cpu_ns;
        self.allowed_ns += first.allowed_ns;
        for row in rows {
            let (units, cost_ns) = self.accounts.entry((row.charge, row.class_id)).or_default();
            *units = units.saturating_add(row.units);
            *cost_ns = cost_ns.saturating_add(row.cost_ns);
        }
        if self.interval_ns >= MERGED_NS { self.take() } else { Vec::new() }
    }

    /// What has been added up since the last rows. For the end of a run.
    pub fn take(&mut self) -> Vec<LedgerRow> {
        let all = std::mem::take(self);
        // Accounts without units and cost say nothing; one row must stand for the interval.
        let some = all.accounts.values().any(|(units, cost_ns)| *units > 0 || *cost_ns > 0);
        let keep = |(units, cost_ns): (u64, u64)| units > 0 || cost_ns > 0;
        all.accounts
            .iter()
            .enumerate()
            .filter(|(i, (_, account))| keep(**account) || (!some && *i == 0))
            .map(|(_, ((charge, class_id), (units, cost_ns)))| LedgerRow {
                time_ns: all.time_ns,
                interval_ns: all.interval_ns,
                charge: *charge,
                class_id: *class_id,
                units: *units,
                cost_ns: *cost_ns,
                target_cpu_ns: all.target_cpu_ns,
                allowed_ns: all.allowed_ns,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ClassId;
    use crate::ledger::{Ledger, LedgerSummary};
    use crate::units::OverheadBudget;

    /// 25 intervals of 0.1 s become three; nothing is lost in any account.
    #[test]
    fn merged_rows_add_up_to_the_same_receipt() {
        let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
        let (mut merger, mut plain, mut merged) = (Merger::default(), Vec::new(), Vec::new());
        for i in 1..=25 {
            ledger.charge(Charge::Traced, Some(ClassId(i % 3)), u64::from(i), 1_000.0 * f64::from(i));
            ledger.charge(Charge::Bystanders, None, 1, 10.0);
            let rows = ledger.close_interval(u64::from(i) * 100_000_000, 50_000_000);
            merged.extend(merger.push(&rows));
            plain.extend(rows);
        }
        merged.extend(merger.take());
        assert!(merger.take().is_empty());
        let times: std::collections::BTreeSet<u64> = merged.iter().map(|r| r.time_ns).collect();
        assert_eq!(times.into_iter().collect::<Vec<_>>(), [1_000_000_000, 2_000_000_000, 2_500_000_000]);
        assert_eq!(merged.len(), 12);
        let (a, b) = (LedgerSummary::from_rows(&plain), LedgerSummary::from_rows(&merged));
        assert!((a.charged_s - b.charged_s).abs() < 1e-12 && (a.length_s - b.length_s).abs() < 1e-12);
        assert!((a.own_cpu_s - b.own_cpu_s).abs() < 1e-12 && (a.allowed_s - b.allowed_s).abs() < 1e-12);
        let sum = |rows: &[LedgerRow]| {
            rows.iter().map(|r| (r.units, r.cost_ns)).fold((0, 0), |s, r| (s.0 + r.0, s.1 + r.1))
        };
        assert_eq!(sum(&plain), sum(&merged));
        // The merged worst second begins at whole seconds.
        assert!(b.worst_second > 0.0 && b.worst_second <= a.worst_second * 1.000_001);
    }

    /// Of an idle second one row is left: its CPU time and its allowance are part of the receipt.
    #[test]
    fn an_idle_second_is_one_row() {
        let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
        let mut merger = Merger::default();
        let rows: Vec<_> =
            (1..=10_u64).flat_map(|i| merger.push(&ledger.close_interval(i * 100_000_000, 7))).collect();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].interval_ns, rows[0].target_cpu_ns, rows[0].cost_ns), (1_000_000_000, 70, 0));
    }
}
