//! What the comparison says in the end, and what is not in its figure.

use super::{LedgerSummary, Overhead};
use crate::recording::MeasuredOverhead;
use crate::stats::overhead as estimate;

impl Overhead {
    /// The result so far. `None` below three comparisons.
    #[must_use]
    pub fn result(&self, account: &LedgerSummary) -> Option<MeasuredOverhead> {
        let name = format!("CPU time per unit of {}", self.subject.name);
        let measured = estimate::measured(&name, &self.comparisons)?;
        let mut notes = Vec::new();
        if let Some(more) = estimate::waiting(&self.comparisons).filter(|more| more.low > 0.0) {
            let percent = |x: f64| x.exp_m1() * 100.0;
            notes.push(format!(
                "wall time per unit grew by {:.1} % more ({:.1} to {:.1}): threads wait for what one of them pays",
                percent(more.value),
                percent(more.low),
                percent(more.high)
            ));
        }
        if self.subject.is_counted {
            notes.push(format!(
                "counting {} costs {:.2} % in windows of both kinds, which is not in this figure",
                self.subject.name,
                account.metric_ns / account.own_cpu_ns.max(1.0) * 100.0
            ));
        }
        if self.stayed {
            let text = "functions of operations that take long stay attached in windows off, so that what they cost is not in this figure";
            notes.push(text.to_owned());
        }
        Some(MeasuredOverhead { note: notes.join("; "), ..measured })
    }
}

/// What the report warns of at the end: the budget was cut by `cut`, prices were taken `factor` times as calibrated.
#[must_use]
pub fn warnings(cut: f64, factor: f64, hits: f64) -> Vec<String> {
    let mut warnings = Vec::new();
    if cut > 1.0 {
        warnings.push(format!(
            "the target lost {cut:.1} times what its CPU time shows, because threads wait for each other: the budget was cut by that"
        ));
    }
    if factor != 1.0 {
        warnings.push(format!(
            "hits, samples and switches cost this target {factor:.1} times what they cost the calibration's child, by the measured overhead: the plan and the ledger followed"
        ));
    }
    if factor == 1.0 && hits != 1.0 {
        warnings.push(format!(
            "hits cost this target {hits:.1} times what they cost the calibration's child, by samples in traps: the plan and the ledger followed"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::overhead::Subject;
    use crate::stats::overhead::{Comparison, ProgressWindow};

    #[test]
    fn what_is_not_in_the_figure_is_said() {
        let subject = Subject { name: "calls of step".to_owned(), is_counted: true, ..Subject::default() };
        let mut overhead = Overhead::new(subject, 0, 0);
        let account = LedgerSummary { own_cpu_ns: 1e9, metric_ns: 2e6, ..LedgerSummary::default() };
        assert_eq!(overhead.result(&account), None);
        // 2 % of CPU time, and 10 % of wall time.
        let on = ProgressWindow { progress: 1_000, cpu_ns: 102_000_000, wall_ns: 110_000_000 };
        let off = ProgressWindow { progress: 1_000, cpu_ns: 100_000_000, wall_ns: 100_000_000 };
        overhead.comparisons = vec![Comparison { before: on, off, after: on }; 10];
        overhead.stayed = true;
        let result = overhead.result(&account).unwrap();
        assert_eq!((result.metric.as_str(), result.pairs), ("CPU time per unit of calls of step", 10));
        assert!((result.value - 0.02).abs() < 1e-9, "{result:?}");
        let parts: Vec<&str> = result.note.split("; ").collect();
        assert_eq!(parts.len(), 3, "{parts:?}");
        assert!(parts[0].starts_with("wall time per unit grew by 7.8 % more"), "{parts:?}");
        assert!(parts[1].starts_with("counting calls of step costs 0.20 %"), "{parts:?}");
        assert!(parts[2].starts_with("functions of operations"), "{parts:?}");
    }

    #[test]
    fn a_run_as_calibrated_warns_of_nothing() {
        assert!(warnings(1.0, 1.0, 1.0).is_empty());
        assert_eq!(warnings(1.0, 1.0, 1.5).len(), 1);
        assert_eq!(warnings(3.0, 1.5, 1.5).len(), 2);
    }
}
