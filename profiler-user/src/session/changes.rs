//! What the run changes of what it does, as rows of the recording: the log of the report is made from them.

use super::Session;
use super::attach::{Ended, now_ns};
use crate::inspect::Module;
use profiler_core::class::ClassId;
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
            plan: Some(self.trace.plans()),
            text: why,
        }]);
    }

    /// Asks for a new plan; why, if it is known.
    pub(super) fn want_plan(&mut self, why: Option<String>) {
        if let Some(why) = &why {
            self.warn_verbose(&format!("new plan: {why}"));
        }
        self.trace.want(why);
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
