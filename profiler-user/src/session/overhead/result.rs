//! What the comparison says in the end, and what is not in its figure.

use super::Comparison;
use crate::session::metric::Metric;
use profiler_core::recording::MeasuredOverhead;
use profiler_core::stats::overhead as estimate;

impl Comparison {
    /// The result so far. `own_cpu_ns`: CPU time of the target over the run.
    #[must_use]
    pub fn result(&self, own_cpu_ns: f64) -> Option<MeasuredOverhead> {
        let name = format!("CPU time per unit of {}", self.metric.name());
        let measured = estimate::measured(&name, &self.comparisons)?;
        let share = self.cost.own_ns() / own_cpu_ns.max(1.0);
        let mut note = match self.metric {
            Metric::Variable(_) => String::new(),
            _ => format!(
                "counting {} costs {:.2} % in windows of both kinds, which is not in this figure",
                self.metric.name(),
                share * 100.0
            ),
        };
        if self.stayed {
            let text = "functions of operations that take long stay attached in windows off, so that what they cost is not in this figure";
            note = if note.is_empty() { text.to_owned() } else { format!("{note}; {text}") };
        }
        if let Some(more) = estimate::waiting(&self.comparisons).filter(|more| more.low > 0.0) {
            let percent = |x: f64| x.exp_m1() * 100.0;
            let text = format!(
                "wall time per unit grew by {:.1} % more ({:.1} to {:.1}): threads wait for what one of them pays",
                percent(more.value),
                percent(more.low),
                percent(more.high)
            );
            note = if note.is_empty() { text } else { format!("{text}; {note}") };
        }
        Some(MeasuredOverhead { note, ..measured })
    }
}
