//! `--slower TIME`: tells of recorded operations that took longer, while the run goes on, with their call tree where `--calls` recorded one.
//!
//! What is compared with TIME is the response time without the monitoring in it: an operation that is slow because it was watched is no news. A slow one waits
//! until its steps have been drained and the code that calls has been looked at, two seconds at most; then it is told with what is there. Trees come
//! from the same code as those of `tithe calls`, and have the same marks.
//!
//! What it does not do: operations that are not recorded have no rows, so that it does not see them one by one; at the end it says how many of all took longer.

mod pacing;
mod steps;

#[cfg(test)]
mod tests;

pub(super) use pacing::Pacing;

use super::{CodeFound, Consumer, Rows, Turn};
use crate::calls::Chosen;
use crate::output::{count, duration_ns, slow_operation_text};
use profiler_core::calls::{Census, Code, Completeness};
use profiler_core::recording::{
    CallSiteRow, CallsMeta, OperationClassRow, OperationHistogramRow, OperationRow, StepRow, TailRow,
};
use profiler_core::report::names::short_names;
use std::collections::{HashMap, HashSet};
use steps::RecentSteps;

/// Steps of an operation that are nested while the run goes on, at most: it takes a millisecond. `tithe calls` shows larger ones.
const MOST_STEPS: u64 = 4_096;
/// Lines of a tree that are told.
const MOST_LINES: usize = 24;
/// Return addresses that are known, at most: 200 bytes each.
const MOST_ADDRESSES: usize = 16_384;
/// Longest time that a slow operation waits for what belongs to it, ns.
const PATIENCE_NS: u64 = 2_000_000_000;

/// An operation that is to be told.
#[derive(Debug)]
struct Waiting {
    row: OperationRow,
    /// Since when, ktime ns; 0: not known yet.
    since_ns: u64,
    /// Its steps, once all of them are there.
    steps: Option<Vec<StepRow>>,
    has_asked: bool,
    /// Slow ones between the last that is told and this one.
    untold: u64,
}

/// How many there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    recorded: u64,
    slow: u64,
    told: u64,
    /// Of all operations, recorded or not; and of those, how many took longer, by their histograms.
    all: u64,
    all_slow: u64,
}

/// What is known of the code.
#[derive(Debug, Default)]
struct KnownCode {
    sites: HashMap<(u32, u64), CallSiteRow>,
    looked_at: HashSet<(u32, u64)>,
    tails: Vec<TailRow>,
    meta: CallsMeta,
    knows_jumps: bool,
}

/// See the [module](self).
pub struct SlowOperations {
    above_ns: u64,
    /// Names of operations by number, and of their classes.
    operations: Vec<String>,
    classes: HashMap<u32, String>,
    /// Names of the functions of `--calls` by class: whole, and as tables show them.
    functions: HashMap<u32, (String, String)>,
    recent: RecentSteps,
    waiting: Vec<Waiting>,
    code: KnownCode,
    pacing: Pacing,
    /// Slow ones since the last that is told, which are not.
    untold: u64,
    seen: Seen,
    /// Rows were not shown to it, or steps did not fit.
    has_gaps: bool,
}

impl SlowOperations {
    /// Of operations with these names by number, that take longer than so many ns. `functions`: names of the classes whose entries are steps.
    #[must_use]
    pub fn new(above_ns: u64, operations: Vec<String>, functions: Vec<(u32, String)>) -> Self {
        let (ids, names): (Vec<u32>, Vec<String>) = functions.into_iter().unzip();
        let short = short_names(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let meta = CallsMeta { classes: ids.clone(), ..CallsMeta::default() };
        Self {
            above_ns,
            recent: RecentSteps::new(operations.len() == 1),
            operations,
            classes: HashMap::new(),
            functions: ids.into_iter().zip(names.into_iter().zip(short)).collect(),
            waiting: Vec::new(),
            code: KnownCode { meta, ..KnownCode::default() },
            pacing: Pacing::default(),
            untold: 0,
            seen: Seen::default(),
            has_gaps: false,
        }
    }

    /// What it is compared by, ns.
    fn own_ns(row: &OperationRow) -> u64 {
        row.duration_ns.saturating_sub(row.cost_ns)
    }

    fn operation(&mut self, row: &OperationRow) {
        self.seen.recorded += 1;
        if Self::own_ns(row) <= self.above_ns {
            self.recent.passed(row);
            return;
        }
        self.seen.slow += 1;
        if !self.pacing.admits(row.begin_ns.saturating_add(row.duration_ns)) {
            self.untold += 1;
            self.recent.passed(row);
            return;
        }
        let untold = std::mem::take(&mut self.untold);
        self.waiting.push(Waiting { row: *row, since_ns: 0, steps: None, has_asked: false, untold });
    }

    /// It can be told now, or waits no longer.
    fn is_ready(&mut self, waiting: &mut Waiting, turn: &mut Turn) -> bool {
        if waiting.since_ns == 0 {
            waiting.since_ns = turn.now_ns;
        }
        let is_late = turn.now_ns.saturating_sub(waiting.since_ns) >= PATIENCE_NS;
        let is_named = self.classes.contains_key(&waiting.row.class_id);
        let Some(numbers) = numbers(&waiting.row) else { return is_named || is_late };
        if waiting.steps.is_none() {
            waiting.steps = self.recent.find(&waiting.row, numbers);
        }
        let Some(steps) = &waiting.steps else { return is_late };
        let mut unknown: Vec<(u32, u64)> = steps
            .iter()
            .filter(|step| step.return_address != 0)
            .map(|step| (step.pid, step.return_address))
            .filter(|address| !self.code.looked_at.contains(address))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        let is_known = unknown.is_empty() && (self.code.knows_jumps || steps.is_empty());
        let has_room = self.code.looked_at.len() + unknown.len() <= MOST_ADDRESSES;
        if !is_known && !waiting.has_asked && has_room {
            waiting.has_asked = true;
            turn.ask(unknown);
        }
        is_named && (is_known || !has_room) || is_late
    }

    fn tell(&mut self, waiting: Waiting, turn: &mut Turn) {
        let Waiting { row, steps, untold, .. } = waiting;
        let steps = steps.unwrap_or_else(|| self.recent.there_are(&row));
        let mut census = Census::new([&row]);
        steps.iter().for_each(|step| census.count(step, |_| {}));
        let completeness = census.completeness(0).unwrap_or(Completeness::Unnumbered);
        let found = steps.len() as u64;
        let expected = numbers(&row).map_or(0, |(before, after)| after - before);
        let is_large = expected > MOST_STEPS;
        let steps = if is_large { Vec::new() } else { steps };
        let code = self.code.of(&steps);
        let class = self.classes.get(&row.class_id).cloned();
        let name = self.operations.get(row.operation as usize).cloned().unwrap_or_default();
        // The name of a class that is not known yet is read once a second.
        let class = class.unwrap_or(name);
        let count = if is_large { expected } else { found };
        let chosen = Chosen::of(row, class, completeness, (count, steps), &code);
        let mut text = slow_operation_text(&chosen, &self.functions, turn.start.ns, MOST_LINES);
        if self.has_gaps && matches!(completeness, Completeness::Missing(_)) && !is_large {
            text.push_str("\n  (not all of its calls were looked at in time; 'tithe calls' may have them)");
        }
        if untold > 0 {
            text.push_str(&format!(
                "\n  ({} more took longer since the last one that was told)",
                count_of(untold)
            ));
        }
        self.seen.told += 1;
        turn.tell(text);
    }

    fn summary(&self) -> String {
        let Seen { recorded, slow, told, all, all_slow } = self.seen;
        let mut text = format!(
            "--slower {}: {} of {} recorded operations took longer, {} of these {} told",
            duration_ns(self.above_ns as f64),
            count_of(slow),
            count_of(recorded),
            count_of(told),
            if told == 1 { "was" } else { "were" },
        );
        if all > recorded {
            text.push_str(&format!(
                "; of all {} operations some {} took longer, with what watching cost them",
                count_of(all),
                count_of(all_slow)
            ));
        }
        text
    }
}

impl Consumer for SlowOperations {
    fn name(&self) -> &'static str {
        "--slower"
    }

    fn take(&mut self, rows: Rows<'_>) {
        match rows {
            Rows::Operations(rows) => rows.iter().for_each(|row| self.operation(row)),
            Rows::OperationClasses(rows) => rows.iter().for_each(|row| self.named(row)),
            Rows::Steps(rows) => self.has_gaps |= !self.recent.push(rows),
            Rows::Calls(_) | Rows::Words(_) => {}
            Rows::OperationHistograms(rows) => rows.iter().for_each(|row| self.histogram(row)),
        }
    }

    fn skipped(&mut self, _rows: Rows<'_>) {
        self.has_gaps = true;
    }

    fn learn(&mut self, found: &CodeFound) {
        self.code.learn(found);
    }

    fn work(&mut self, turn: &mut Turn) {
        let mut at = 0;
        while at < self.waiting.len() && !turn.is_over() {
            let mut waiting = self.waiting.swap_remove(at);
            if self.is_ready(&mut waiting, turn) {
                self.tell(waiting, turn);
            } else {
                self.waiting.push(waiting);
                let last = self.waiting.len() - 1;
                self.waiting.swap(at, last);
                at += 1;
            }
        }
        let waiting = self.waiting.iter().filter(|waiting| waiting.steps.is_none());
        self.recent.forget(waiting.map(|waiting| &waiting.row));
    }

    fn end(&mut self, turn: &mut Turn) -> Vec<String> {
        for waiting in std::mem::take(&mut self.waiting) {
            if turn.is_over() {
                break;
            }
            let steps = numbers(&waiting.row).and_then(|numbers| self.recent.find(&waiting.row, numbers));
            self.tell(Waiting { steps: waiting.steps.or(steps), ..waiting }, turn);
        }
        turn.tell(self.summary());
        Vec::new()
    }
}

impl SlowOperations {
    fn named(&mut self, row: &OperationClassRow) {
        self.classes.insert(row.class_id, row.class_name.clone());
    }

    fn histogram(&mut self, row: &OperationHistogramRow) {
        self.seen.all += row.count;
        if row.low_ns >= self.above_ns {
            self.seen.all_slow += row.count;
        }
    }
}

impl KnownCode {
    fn learn(&mut self, found: &CodeFound) {
        self.looked_at.extend(&found.looked_at);
        self.sites.extend(found.sites.iter().map(|site| ((site.pid, site.return_address), site.clone())));
        self.meta.stack_span_bytes = found.stack_span_bytes;
        if let Some((tails, known)) = &found.jumps {
            (self.tails, self.meta.tails_known) = (tails.clone(), known.clone());
            self.knows_jumps = true;
        }
    }

    /// What nesting these steps needs of it.
    fn of(&self, steps: &[StepRow]) -> Code {
        let addresses: HashSet<(u32, u64)> =
            steps.iter().map(|step| (step.pid, step.return_address)).collect();
        let sites = addresses.iter().filter_map(|address| self.sites.get(address).cloned()).collect();
        Code::new(&self.meta, sites, &self.tails)
    }
}

/// Numbers of its steps: above the first, up to the second. `None`: nothing is known of them, or steps are missing anyhow.
fn numbers(row: &OperationRow) -> Option<(u64, u64)> {
    if row.censored || row.incomplete != Some(false) {
        return None;
    }
    row.steps_before.zip(row.steps_after).filter(|(before, after)| before <= after)
}

fn count_of(n: u64) -> String {
    count(n as f64)
}
