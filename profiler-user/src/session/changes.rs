//! What the run changes of what it does, as rows of the recording: the log of the report is made from them.

use super::Session;
use super::attach::{Ended, now_ns};
use crate::inspect::Module;
use profiler_core::class::ClassId;
use profiler_core::controller::{Cause, Reason};
use profiler_core::recording::{ChangeKind, ChangeRow, WindowKind};

/// Modules named in one row.
const NAMES: usize = 3;

impl Session {
    /// Records a change.
    pub(super) fn note_change(&self, kind: ChangeKind, class: Option<ClassId>, text: String) {
        self.writer.send(vec![ChangeRow {
            time_ns: now_ns(),
            kind,
            class_id: class.map(|c| c.0),
            plan: None,
            text,
        }]);
    }

    /// A plan has been made.
    pub(super) fn note_plan(&self, why: String) {
        self.writer.send(vec![ChangeRow {
            time_ns: now_ns(),
            kind: ChangeKind::Plan,
            class_id: None,
            plan: Some(self.plans),
            text: why,
        }]);
    }

    /// Asks for a new plan.
    pub(super) fn want_plan(&mut self, why: String) {
        self.warn_verbose(&format!("new plan: {why}"));
        self.replan_wanted = true;
        // What came first is the cause; what came with it is in the plan, too.
        self.replan_why.get_or_insert(why);
    }

    /// Why a plan was asked for.
    pub(super) fn take_why(&mut self) -> String {
        let factor = self.ledger.factor();
        self.replan_why.take().unwrap_or_else(|| {
            if factor == self.planned_factor {
                "the load has changed".to_owned()
            } else {
                format!("prices are taken {factor:.2} times as calibrated, by what was measured")
            }
        })
    }

    /// The controller's cause in words.
    pub(super) fn in_words(&self, why: Cause) -> String {
        let name = |class: ClassId| self.attach.class(class).candidate.name.as_str();
        match why {
            Cause::Rate { class, rate_hz, planned_hz } => {
                format!("{} now runs at {rate_hz:.0} calls/s, planned with {planned_hz:.0}", name(class))
            }
            Cause::Fits { class, rate_hz } => {
                format!("{} may fit: a trial showed {rate_hz:.0} calls/s", name(class))
            }
            Cause::Cpu { now, planned } => {
                format!("the target now uses {now:.2} CPUs by itself, planned with {planned:.2}")
            }
            Cause::Spend { spend, income } => format!(
                "monitoring was about to take {:.2} ms of CPU time per second, {:.2} are allowed",
                spend * 1e3,
                income * 1e3
            ),
            Cause::Unspent { spend, income } => format!(
                "monitoring took {:.2} ms of CPU time per second, {:.2} are allowed: there is room for more",
                spend * 1e3,
                income * 1e3
            ),
            Cause::Thread { overhead } => {
                format!("one thread lost {:.1} % of its CPU time", overhead * 100.0)
            }
        }
    }

    /// The breaker ended a window that was no burst of the plan.
    pub(super) fn note_trip(&self, ended: &Ended) {
        let row = &ended.row;
        let ms = row.end_ns.saturating_sub(row.start_ns) as f64 * 1e-6;
        let (kind, what) = if row.kind == WindowKind::Trace {
            (ChangeKind::Trip, "it was attached")
        } else {
            (ChangeKind::Trial, "its trial began")
        };
        let mut text = if row.end_ns > row.start_ns {
            format!("{} calls and {ms:.1} ms after {what} its quota was used up", row.kept)
        } else {
            "called so often while it was being attached that the breaker took it off".to_owned()
        };
        if let Some(remark) = ended.answer.and_then(|a| a.remark()) {
            text = format!("{text}; {remark}");
        }
        self.note_change(kind, Some(ClassId(row.class_id)), text);
    }

    /// The controller has a class detached.
    pub(super) fn note_stop(&self, class: ClassId, reason: Reason) {
        let rate_hz = self.controller.rate_hz(class).unwrap_or(0.0);
        let (kind, text) = match reason {
            Reason::OverBudget => (
                ChangeKind::Stop,
                format!(
                    "the tokens ran out, and at {rate_hz:.0} calls/s it gave least for its cost of what is traced"
                ),
            ),
            Reason::TrialOver => {
                (ChangeKind::Trial, format!("its trial showed {rate_hz:.0} calls/s: not traced for now"))
            }
            Reason::Thread => (
                ChangeKind::Stop,
                "it took more from one thread than that may lose (--thread-budget)".to_owned(),
            ),
            // The plan says it.
            Reason::Planned => return,
        };
        self.note_change(kind, Some(class), text);
    }

    /// A class is traced again after its trial.
    pub(super) fn note_resumed(&self, class: ClassId) {
        let rate_hz = self.controller.rate_hz(class).unwrap_or(0.0);
        self.note_change(ChangeKind::Back, Some(class), format!("at {rate_hz:.0} calls/s it fits again"));
    }

    /// The sampling period was set: slowed, or as planned again.
    pub(super) fn note_sampling(&mut self) {
        let slowed = self.controller.is_slowed();
        if std::mem::replace(&mut self.sampling_slowed, slowed) == slowed {
            return;
        }
        let text = if slowed { "slowed, because the tokens ran out" } else { "as often as planned again" };
        self.note_change(ChangeKind::Sampling, None, text.to_owned());
    }

    /// Which modules are mapped.
    pub(super) fn mapped_modules(&self) -> Vec<bool> {
        self.inspection.modules().iter().map(is_mapped).collect()
    }

    /// Modules came or went since `before`.
    pub(super) fn note_modules(&self, before: &[bool], execed: bool) {
        if execed {
            self.note_change(ChangeKind::Modules, None, "the target runs another program (exec)".to_owned());
        }
        let modules = self.inspection.modules();
        let turned = |to: bool| -> Vec<&Module> {
            let was = |i: usize| before.get(i).copied().unwrap_or(false);
            let now = modules.iter().enumerate();
            now.filter(|(i, m)| is_mapped(m) == to && was(*i) != to).map(|(_, m)| m).collect()
        };
        for (list, what) in [(turned(true), "came"), (turned(false), "went")] {
            if list.is_empty() {
                continue;
            }
            let file = |m: &&Module| m.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut names: Vec<String> = list.iter().take(NAMES).map(file).collect();
            if list.len() > NAMES {
                names.push(format!("{} more", list.len() - NAMES));
            }
            self.note_change(ChangeKind::Modules, None, format!("{} {what}", names.join(", ")));
        }
    }
}

fn is_mapped(module: &Module) -> bool {
    !module.mappings.is_empty()
}
