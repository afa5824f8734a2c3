//! What each operation may cost (`profiler_core::adapt::portions`), and what is said where nothing of it can be recorded.

use super::window::Cut;
use super::{Operation, Operations};
use profiler_core::adapt::portions::{Demand, Portion, portions};
use profiler_core::adapt::{PolicyKind, WindowSummary};

impl Operations {
    /// Those that are still watched.
    pub(super) fn live(&self) -> usize {
        self.list.iter().filter(|o| !o.lost).count()
    }

    /// Takes in what each of them took in a window of `elapsed_s`, if it was watched. `syscalls_ns`: what all of screening system
    /// calls took.
    pub(super) fn learn_demands(
        &mut self,
        cuts: &[Cut],
        elapsed_s: f64,
        factor: f64,
        syscalls_ns: f64,
        tracepoint_ns: f64,
    ) {
        let by_syscalls = self.list.iter().filter(|o| o.by_syscalls() && !o.lost).count() as f64;
        let begun: u64 =
            self.list.iter().zip(cuts).filter(|(o, _)| o.by_syscalls()).map(|(_, c)| c.begun).sum();
        for (o, cut) in self.list.iter_mut().zip(cuts) {
            // What is off says nothing of what it takes when it is on.
            if cut.summary.length_s <= 0.0 {
                continue;
            }
            let spent_ns = if o.by_tracepoints {
                cut.screened as f64 * tracepoint_ns
            } else if o.by_syscalls() {
                // Nobody begins: they are screened all the same.
                let part =
                    if begun > 0 { cut.begun as f64 / begun as f64 } else { 1.0 / by_syscalls.max(1.0) };
                syscalls_ns * part
            } else {
                cut.begun as f64 * o.screened_ns() * factor
            };
            // While it is watched.
            let watched_s = cut.summary.length_s.min(elapsed_s);
            let length_s = if o.bounds.is_empty() { elapsed_s } else { watched_s };
            o.demand = Demand {
                screening: spent_ns * 1e-9 / length_s,
                recording: o.record_ns * 1e-9 * factor * cut.begun as f64 / length_s,
                can_pause: !o.bounds.is_empty(),
            };
        }
    }

    /// Parts of `allowed` CPU s/s, of those that are still watched.
    pub(super) fn portions(&self, allowed: f64) -> Vec<Portion> {
        let demands: Vec<Demand> = self.list.iter().filter(|o| !o.lost).map(|o| o.demand).collect();
        portions(allowed, &demands)
    }
}

impl Operation {
    /// Why it is watched for a part of the time.
    pub(super) fn dear_in_words(&self, portion: &Portion, hz: f64) -> String {
        format!(
            "screening '{}' costs {:.2} % of a CPU at {hz:.0} operations/s, where it may cost {:.2} %: it is watched for a part of the \
             time; a larger --budget, or bounds that are rarer or system calls, would watch all",
            self.name,
            self.demand.screening * 100.0,
            portion.most_screening * 100.0
        )
    }

    /// After a watched window: `quota_s` CPU s may be spent on recording in the next, where one operation takes `record_s`. What is said
    /// if that was too little several times in a row.
    pub(super) fn note_quota(
        &mut self,
        policy: PolicyKind,
        window: &WindowSummary,
        quota_s: f64,
        record_s: f64,
    ) -> Option<String> {
        if policy == PolicyKind::None || window.operations() == 0 {
            return None;
        }
        if !self.starved.note(quota_s < record_s) {
            return None;
        }
        Some(format!(
            "nothing of operation '{}' can be recorded: one takes {:.3} ms, and {:.3} ms a window are left of what operations may cost; they \
             are counted and timed all the same; name fewer operations or functions inside, or give a larger --budget",
            self.name,
            record_s * 1e3,
            quota_s * 1e3
        ))
    }
}
