//! What each operation may cost ([`mod@crate::adapt::portions`]), and what is said where nothing of it can be recorded.

use super::Operations;
use super::learned::Window;
use super::moment::Moment;
use super::operation::Operation;
use super::starvation::{LEAST_DUE, Waiting};
use super::window::Cut;
use crate::adapt::portions::{Demand, Portion, portions};
use crate::adapt::{PolicyKind, WindowSummary};
use crate::recording::ChangeKind;

impl Operations {
    /// Those that are still watched.
    pub(super) fn live(&self) -> usize {
        self.list.iter().filter(|o| !o.watch.lost).count()
    }

    /// Takes in what each of them took in a window, if it was watched.
    pub(super) fn learn_demands(&mut self, cuts: &[Cut], window: &Window) {
        let Window { elapsed_s, factor, syscalls_ns, .. } = *window;
        let tracepoint_ns = self.settings.tracepoint_ns;
        let by_syscalls = self.list.iter().filter(|o| o.by_syscalls() && !o.watch.lost).count() as f64;
        let begun: u64 =
            self.list.iter().zip(cuts).filter(|(o, _)| o.by_syscalls()).map(|(_, c)| c.begun).sum();
        for (o, cut) in self.list.iter_mut().zip(cuts) {
            // What is off says nothing of what it takes when it is on.
            if cut.summary.length_s <= 0.0 {
                continue;
            }
            let spent_ns = if o.by_tracepoints() {
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
            let length_s = if o.by_functions() { watched_s } else { elapsed_s };
            o.portion.demand = Demand {
                screening: spent_ns * 1e-9 / length_s,
                recording: o.prices.record_ns * 1e-9 * factor * cut.begun as f64 / length_s,
                can_pause: o.by_functions(),
            };
        }
    }

    /// Parts of `allowed` CPU s/s, of those that are still watched.
    pub(super) fn portions(&self, allowed: f64) -> Vec<Portion> {
        let demands: Vec<Demand> =
            self.list.iter().filter(|o| !o.watch.lost).map(|o| o.portion.demand).collect();
        portions(allowed, &demands)
    }

    /// Where the functions inside operations wait for ever: the figures.
    pub(super) fn starving(&self, at: &Moment<'_>) -> Option<Waiting> {
        if self.settings.policy == PolicyKind::None || self.inner.kept.is_empty() {
            return None;
        }
        let slices = &self.inner.slices;
        let (due, begun) = slices.due_and_begun();
        let inner = self.inner.priced(at.grant.factor, self.settings.attach_s)?;
        let live = || self.list.iter().filter(|o| !o.watch.lost);
        let waiting = Waiting {
            due,
            begun,
            held_back: slices.held_back(),
            population: live().map(|o| o.tally.population).sum(),
            recorded: live().map(|o| o.tally.sample).sum(),
            bounds: live().map(|o| o.portion.demand.screening).sum(),
            allowed: at.grant.allowed,
            attached: inner.attached,
            shortest_s: inner.shortest_s(),
            budget: self.settings.budget,
        };
        waiting.is_starving().then_some(waiting)
    }

    /// Says once that slices wait; what is to be told.
    pub(super) fn say_starving(&mut self, at: &mut Moment<'_>) -> Option<String> {
        // One that none was recorded of yet may be a matter of seconds.
        if self.said.starving || self.inner.slices.due_and_begun().0 < LEAST_DUE {
            return None;
        }
        let text = self.starving(at)?.in_words();
        self.said.starving = true;
        at.change(ChangeKind::Stop, None, text.clone());
        Some(text)
    }
}

impl Operation {
    /// Why it is watched for a part of the time.
    pub fn expensive_in_words(&self, portion: &Portion, hz: f64) -> String {
        format!(
            "screening '{}' costs {:.2} % of a CPU at {hz:.0} operations/s, where it may cost {:.2} %: it is watched for a part of the \
             time; a larger --budget, or bounds that are rarer or system calls, would watch all",
            self.name,
            self.portion.demand.screening * 100.0,
            portion.most_screening * 100.0
        )
    }

    /// After a watched window: `quota_s` CPU s may be spent on recording in the next, where one operation takes `record_s`. What is said
    /// if that was too little several times in a row.
    pub fn note_quota(
        &mut self,
        policy: PolicyKind,
        window: &WindowSummary,
        quota_s: f64,
        record_s: f64,
    ) -> Option<String> {
        if policy == PolicyKind::None || window.operations() == 0 {
            return None;
        }
        if !self.portion.starved.note(quota_s < record_s) {
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
