//! Libraries that come and go: what they mean to return links, and when functions are looked for in them.

use super::Agent;
use super::attach::TargetId;
use super::class::LiveClass;
use super::journal::is_mapped;
use profiler_core::class::{ClassId, ExitMode, RecordKind};
use profiler_core::engine::{Doubt, Input};
use profiler_core::recording::ChangeKind;
use profiler_core::run::suspension::Suspension;
use std::collections::VecDeque;

impl Agent {
    /// Looks which modules are mapped now, and tells the run when those that came can be searched.
    pub(super) fn look_at_modules(&mut self, suspension: Suspension, told: &mut VecDeque<Input>) {
        let execed = self.processes.take_target_execed();
        // The target may be gone: its end is seen elsewhere.
        let before: Vec<bool> = self.inspection.modules().iter().map(is_mapped).collect();
        let unseen_before = self.inspection.has_unseen_code();
        let code_before = self.code_before_look();
        if self.inspection.refresh().unwrap_or(false) || execed {
            self.catalog.modules_dirty = true;
            // At once: other code may lie at the same addresses, and each file is held that is taken to be mapped.
            self.sampling.modules_changed();
            self.catalog.reader.keep_mapped(self.inspection.modules());
            self.journal.modules(&before, self.inspection.modules(), execed);
            // At once: such a link would end the target.
            self.drop_unsafe_return_links(told);
        } else if self.attach.target(TargetId::FIRST).holds_return_links()
            || !unseen_before && self.inspection.has_unseen_code()
        {
            self.drop_unsafe_return_links(told);
        }
        self.note_code_that_went(code_before);
        // Not while everything is off to be compared: a survey would attach.
        let may = suspension.may_adapt();
        let symbols = !self.catalog.selection.names_any() || self.may_wait() || self.all_symbols_read();
        let stacks = !self.catalog.modules_dirty || self.may_wait() || self.all_stacks_read();
        let wait = !symbols || !stacks;
        if self.catalog.modules_dirty && may && !wait {
            self.catalog.modules_dirty = false;
            told.push_back(Input::Modules);
        }
    }

    /// A sample showed a thread on a second stack: return links go at once, and none is made from now on.
    pub(super) fn heed_switched_stacks(&mut self, told: &mut VecDeque<Input>) {
        let Some(why) = self.inspection.stacks_switched() else { return };
        let text = format!("no return links from now on: {why}");
        let timed = self.attach.classes().iter().any(|c| c.exit != ExitMode::None);
        if timed && !self.journal.meta.warnings.contains(&text) {
            self.journal.progress.note(&text);
            self.journal.meta.warnings.push(text);
        }
        self.drop_unsafe_return_links(told);
    }

    /// Whether it is known of all modules that are mapped what they mean to return links. Where the loop may be away they are looked at
    /// now, else ahead.
    pub(super) fn know_stacks(&mut self) -> bool {
        if !self.may_wait() {
            return self.all_stacks_read();
        }
        // All code of a large program is read; the watchdog waits.
        self.attach.governor().excuse();
        let _ = self.inspection.return_links();
        true
    }

    /// Modules came: where one of them unwinds (or switches stacks), a return link would end the target at the next
    /// exception. Such links are closed, and the ends of calls are seen at exit sites from now on, or not at all. While modules are
    /// being looked at, return links are closed as well, and come back if nothing was found.
    /// Calls that are running keep their replaced return address until they return; nothing can be done for those.
    pub(super) fn drop_unsafe_return_links(&mut self, told: &mut VecDeque<Input>) {
        let is_linked = |c: &&LiveClass| c.exit == ExitMode::ReturnLink && !c.wish.force_return_link;
        let linked: Vec<_> = self.attach.classes().iter().filter(is_linked).map(|c| c.id).collect();
        if linked.is_empty() {
            self.let_return_links();
            return;
        }
        let known = self.inspection.return_links_known();
        if known.is_none() && !self.all_stacks_read() {
            self.hold_return_links(told);
            return;
        }
        self.let_return_links();
        // Nobody reads ahead, or all is known.
        let Err(why) = known.unwrap_or_else(|| self.inspection.return_links()) else { return };
        self.journal
            .progress
            .note(&format!("return links of {} functions are taken off: {why}", linked.len()));
        told.push_back(Input::UnsafeLinks { classes: linked, doubt: Doubt::Unsafe(why.to_string()) });
    }

    /// The ends of its calls are seen at exit sites from now on, or not at all.
    pub(super) fn without_return_link(&mut self, id: ClassId, why: &str) {
        let class = self.attach.class(id);
        let entry = self.inspection.entry_for_returns(&class.code.function, &class.code.sites);
        let exit = if class.candidate.exits.is_ok() {
            ExitMode::ExitSites
        } else if class.role.is_none() && entry.is_ok() {
            ExitMode::ReturnSites
        } else {
            ExitMode::None
        };
        let entry = entry.ok().filter(|_| exit == ExitMode::ReturnSites).map(|cheapest| {
            let code = (&class.code.function, &class.code.sites);
            self.entry_with_arguments(code, class.wish, exit, cheapest, None).site
        });
        let class = self.attach.class_mut(id);
        class.exit = exit;
        if let Some(site) = entry {
            class.move_entry(&site);
            class.code.entry_for_returns = Some(site);
        }
        if exit == ExitMode::None && class.kind == RecordKind::Latency {
            class.kind = RecordKind::Count;
        }
        let rest = match exit {
            ExitMode::ExitSites => "its ends are seen at exit sites",
            ExitMode::ReturnSites => "its ends are seen in its callers",
            ExitMode::ReturnLink | ExitMode::None => "only its begins are seen",
        };
        class
            .candidate
            .notes
            .push(format!("return links were taken off during the run ({why}); then {rest}"));
        let (candidate, kind, exit) = (class.candidate.clone(), class.kind, class.exit);
        let prices = self.prices(&candidate, kind, exit);
        let class = self.attach.class_mut(id);
        class.prices = class.words.priced(prices);
    }

    /// It is not known now whether return links are safe.
    fn hold_return_links(&mut self, told: &mut VecDeque<Input>) {
        let classes = self.attach.classes_with_return_links(TargetId::FIRST);
        let begins = self.attach.target_mut(TargetId::FIRST).hold_return_links();
        // One that was on its way when holding began is among them a turn later: it goes too, and comes back.
        if begins || !classes.is_empty() {
            let doubt = if begins { Doubt::Begins } else { Doubt::GoesOn };
            told.push_back(Input::UnsafeLinks { classes, doubt });
        }
        if !begins {
            return;
        }
        let text = "return links are off while the code of what came is looked at";
        self.journal.change(ChangeKind::Modules, None, text.to_owned());
        self.journal.detail(text);
    }

    fn let_return_links(&mut self) {
        if self.attach.target_mut(TargetId::FIRST).let_return_links() {
            self.journal.detail("the code of what came has been looked at");
        }
    }
}
