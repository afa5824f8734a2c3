//! `--expect RECORDING`: holds recorded calls against the models of an earlier recording, while the run goes on.
//!
//! ```text
//! call ── model ──► predicted time, interval ──► sequential test over calls, four steps a second ──► alarm ──► line
//! ```
//! What is told is what the test raises: a single call that is slow happens by chance, and the recorded calls cannot say how rarely
//! ([`profiler_core::models::Watch`]). Calls in flight are looked at eight times a second (`flight`), and those that have taken too long already are part of the test. Each alarm is told by one call of its window, with the resource behind it (`typical`).
//! Lines are paced as those of `--slower`.
//!
//! Models are made on a thread at the lowest priority, so that attaching is not delayed; calls before that are recorded and not judged.

mod draw;
mod flight;
mod incidents;
mod judge;
mod slowest;
mod waiting;
mod waits;

#[cfg(test)]
mod flight_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod words_tests;

pub(crate) use judge::other_build;

use super::slow::Pacing;
use super::{Consumer, Rows, Threads, Turn};
use crate::models::{Expected, Watched, told_inputs, used};
use crate::output::{
    SlowerCall, count, duration_ns, judged_text, machine_text, slower_call_text, slowest_call_text,
};
use flight::{Flights, Hold};
use incidents::Incidents;
use judge::{Found, Judge, Judged};
use profiler_core::models::{Cause, Slower, explain, shared_cause};
use profiler_core::recording::{ClassRow, EventRow, ExpectedFunction, ExpectedMeta, Meta};
use profiler_core::text::printable;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use waiting::{Waiting, Words};
use waits::Waits;

/// Length of a step of the test, ns: an alarm waits for its end.
const STEP_NS: u64 = 250_000_000;
/// Steps of a window, which is what says how the machine is.
const STEPS: usize = 4;
/// Functions that are told of in the last lines, at most.
const MOST_TOLD: usize = 5;

/// Models that are being made.
pub type Making = Receiver<Result<Expected, String>>;

/// See the [module](self).
pub struct Expectations {
    /// The earlier recording.
    recording: String,
    making: Option<Making>,
    judge: Judge,
    /// Calls whose inputs are words.
    waiting: Waiting,
    flights: Flights,
    waits: Waits,
    /// When the step began, ktime ns; 0: not yet.
    step_ns: u64,
    pacing: Pacing,
    /// That of what is no alarm.
    notes: Pacing,
    incidents: Incidents,
    /// Alarms since the last that was told.
    untold: u64,
    /// Calls before there were models, and those that were not shown.
    not_looked_at: u64,
    machine_changes: u64,
    /// Functions that are not judged, with the reason.
    not_judged: Vec<ExpectedFunction>,
    /// What is to be said at the next turn.
    to_tell: Vec<String>,
}

impl Expectations {
    /// Of these functions of a recording, whose models are being made.
    #[must_use]
    pub fn new(recording: String, watched: &[Watched], making: Making) -> Self {
        Self {
            recording,
            making: Some(making),
            judge: Judge::new(watched),
            waiting: Waiting::default(),
            flights: Flights::default(),
            waits: Waits::default(),
            step_ns: 0,
            pacing: Pacing::default(),
            notes: Pacing::default(),
            incidents: Incidents::default(),
            untold: 0,
            not_looked_at: 0,
            machine_changes: 0,
            not_judged: Vec::new(),
            to_tell: Vec::new(),
        }
    }

    /// With the words that functions of this run have: number and name of each.
    #[must_use]
    pub fn with_words(self, words: impl IntoIterator<Item = (u32, String)>) -> Self {
        Self { waiting: Waiting::new(words), ..self }
    }

    /// Judges a call, or has it wait for its words.
    fn call(&mut self, row: &EventRow) {
        if let Some((call, wait)) = self.flights.end(row) {
            self.waits.end(call, wait);
        }
        if self.judge.words(row).is_empty() {
            self.judge.take(row, &Words::default());
        } else if !self.waiting.call(row) {
            self.judge.too_many += 1;
            self.judge.miss(row.class_id, [row]);
        }
    }

    /// Judges the calls whose words have come. `is_last`: no more come.
    fn judge_waiting(&mut self, is_last: bool) {
        let (ready, in_vain) = self.waiting.turn(is_last, |row| self.judge.words(row));
        self.not_looked_at += in_vain.len() as u64;
        in_vain.iter().for_each(|row| self.judge.miss(row.class_id, [row]));
        ready.iter().for_each(|(row, words)| self.judge.take(row, words));
    }

    /// Takes the models, if they are there.
    fn take_models(&mut self, now_ns: u64) {
        let Some(making) = &self.making else { return };
        let made = match making.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err("making them failed: a defect of tithe".to_owned()),
            Ok(made) => made,
        };
        self.making = None;
        let expected = match made {
            Ok(expected) => expected,
            Err(why) => {
                self.to_tell.push(format!("--expect {}: there are no models: {why}", self.recording));
                self.waiting = Waiting::default();
                return;
            }
        };
        let all = expected.functions.len() + expected.without.len();
        let of_any: Vec<&crate::models::ExpectedFunction> =
            expected.functions.iter().filter(|function| function.no_inputs.is_some()).collect();
        let with = expected.functions.len() - of_any.len();
        let mut text = format!("--expect {}: {with} of {all} functions have a model", self.recording);
        if !of_any.is_empty() {
            text.push_str(&of_any_text(&of_any, &self.recording));
        }
        for function in &expected.without {
            let context = function.context.as_ref().map_or_else(String::new, |outer| format!(" in {outer}"));
            text.push_str(&format!("\n  not judged: {}{context}: {}", function.name, function.why));
            self.not_judged.push(ExpectedFunction {
                function: function.name.clone(),
                context: function.context.clone(),
                not_judged: Some(function.why.clone()),
                ..ExpectedFunction::default()
            });
        }
        self.to_tell.push(text);
        self.judge.expect(expected, now_ns);
        self.waiting.keep(|class_id, word| self.judge.is_input(class_id, word));
    }

    /// A step is over: what the test says of it is told.
    fn end_step(&mut self, turn: &mut Turn) {
        let Self { flights, waits, judge, .. } = self;
        let running = flights.take_running();
        waits.step(judge.slow().chain(&running), |call| flights.waits_in(call), turn.now_ns);
        for found in self.judge.step(&running, turn.now_ns) {
            match found {
                Found::Machine(event) => {
                    self.machine_changes +=
                        u64::from(matches!(event, profiler_core::models::Event::Machine { .. }));
                    turn.tell(machine_text(&event));
                }
                Found::Slower(number, slower, slow) => self.tell_slower(number, slower, &slow, turn),
                // In the order of the step: an alarm of the function in it came before.
                Found::Slowest(number, ratio, call) => {
                    let Some(function) = self.judge.functions.get_mut(number) else { continue };
                    let is_told = function.told_ns == Some(turn.now_ns);
                    if is_told || !self.notes.admits(turn.now_ns) {
                        continue;
                    }
                    function.slowest.tell(ratio);
                    let of = &function.of;
                    let slow = std::slice::from_ref(&*call);
                    let cause = typical(slow, of).and_then(|(_, cause)| cause);
                    let inputs = told_inputs(&of.model, &of.inputs, &call.values);
                    let told = SlowerCall {
                        function: &of.name,
                        context: of.context.as_deref(),
                        tid: call.row.tid,
                        inputs: &inputs,
                        call: call.seen,
                        expected_ns: call.interval_ns,
                        is_running: call.is_running,
                        is_of_any_inputs: of.is_of_any_inputs(),
                        cause: cause.as_ref(),
                        seen_in: &self.waits.told(number, turn.now_ns),
                    };
                    let recorded = of.model.calibration_of(call.seen.predicted_ns).calls();
                    turn.tell(slowest_call_text(&told, recorded, turn.start));
                }
            }
        }
    }

    /// An alarm, if it is not too soon after others.
    fn tell_slower(&mut self, number: usize, slower: Slower, slow: &[Judged], turn: &mut Turn) {
        self.incidents.alarm(turn.now_ns, turn.start.ns);
        if !self.pacing.admits(turn.now_ns) {
            self.untold += 1;
            return;
        }
        let Some(function) = self.judge.functions.get_mut(number) else { return };
        function.counts.told += 1;
        function.told_ns = Some(turn.now_ns);
        let of = &function.of;
        let seen_in = self.waits.told(number, turn.now_ns);
        let (call, cause) = typical(slow, of).unzip();
        let cause = cause.flatten();
        let inputs = call.map(|call| told_inputs(&of.model, &of.inputs, &call.values));
        let told = SlowerCall {
            function: &of.name,
            context: of.context.as_deref(),
            tid: call.map_or(0, |call| call.row.tid),
            inputs: &inputs.unwrap_or_default(),
            call: call.map_or(slower.longest, |call| call.seen),
            expected_ns: call.map_or(slower.expected_ns, |call| call.interval_ns),
            is_running: call.is_some_and(|call| call.is_running),
            is_of_any_inputs: of.is_of_any_inputs(),
            cause: cause.as_ref(),
            seen_in: &seen_in,
        };
        let own_ns = Some(slower.since_ns).filter(|_| !slower.is_alone);
        let (place, since_ns) = self.incidents.tell(number, own_ns);
        let since_ns = since_ns.filter(|_| !slower.is_alone).unwrap_or(slower.since_ns);
        let (slower, untold) = (Slower { since_ns, ..slower }, std::mem::take(&mut self.untold));
        let text = slower_call_text(&told, &slower, (place, untold), turn.start);
        self.incidents.keep(place, &text);
        turn.tell(text);
    }

    fn summary(&self) -> String {
        let counts = || self.judge.functions.iter().map(|function| &function.counts);
        let of = |part: fn(&ExpectedFunction) -> u64| counts().map(part).sum::<u64>();
        let judged = judged_text(counts());
        let (alarms, told, outside) = (of(|f| f.alarms), of(|f| f.told), of(|f| f.outside));
        let mut text = format!(
            "--expect {}: incidents: {}; alarms: {}, told: {}; {judged}",
            self.recording,
            count(self.incidents.count as f64),
            count(alarms as f64),
            count(told as f64)
        );
        let slowest = self.judge.functions.iter().map(|function| &function.slowest);
        let (longer, longest_ns) =
            slowest.fold((0, 0.0), |(n, ns), own| (n + own.calls, own.longest_ns.max(ns)));
        if longer > 0 {
            text.push_str(&format!(
                "; {} took over 100 times what was expected and longer than any that was recorded (the longest: {})",
                count(longer as f64),
                duration_ns(longest_ns)
            ));
        }
        if outside > 0 {
            text.push_str(&format!(
                "; {} had inputs or a caller that the models know nothing of",
                count(outside as f64)
            ));
        }
        let missed = self.not_looked_at + self.judge.too_many;
        if missed > 0 {
            text.push_str(&format!("; {} were not looked at", count(missed as f64)));
        }
        if self.judge.functions.len() > 1 {
            text.push_str(&self.by_function());
        }
        text
    }

    /// Of several functions those that were told of, and how many of their calls took longer; most alarms first.
    fn by_function(&self) -> String {
        let mut told: Vec<&ExpectedFunction> =
            self.judge.functions.iter().map(|function| &function.counts).filter(|f| f.alarms > 0).collect();
        told.sort_by_key(|f| std::cmp::Reverse(f.alarms));
        let line = |f: &&ExpectedFunction| {
            let context = f.context.as_deref().map_or_else(String::new, |outer| format!(" in {outer}"));
            let name = format!("{}{context}", f.function);
            let of = [f.beyond, f.calls, f.alarms].map(|n| count(n as f64));
            let longer = if f.no_inputs.is_none() {
                format!("{} of {} calls took longer", of[0], of[1])
            } else {
                format!("{} calls were judged one by one", of[1])
            };
            format!("\n  {}: {longer}; alarms: {}", printable(&name), of[2])
        };
        let mut lines: String = told.iter().take(MOST_TOLD).map(line).collect();
        if let Some(more) = told.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
            lines.push_str(&format!("\n  {more} more functions had alarms"));
        }
        lines
    }
}

/// Of which functions single calls are judged, though their inputs say nothing.
fn of_any_text(functions: &[&crate::models::ExpectedFunction], recording: &str) -> String {
    let name = |function: &&crate::models::ExpectedFunction| {
        let context = function.context.as_ref().map_or_else(String::new, |outer| format!(" in {outer}"));
        let of_one = match function.model.categories.as_slice() {
            [] => String::new(),
            some => format!(" (by {})", some.join(", ")),
        };
        let waits = if function.mostly_waits { " (mostly waits)" } else { "" };
        format!("{}{context}{of_one}{waits}", function.name)
    };
    let names: Vec<String> = functions.iter().map(name).collect();
    format!(
        "\n  single calls are held against all recorded ones, whatever their inputs, of: {} ('tithe models {recording}' says why they have no model)",
        names.join(", ")
    )
}

/// The call that an alarm is told by, with what explains it: of slow calls, the longest first, the longest of those that the resource of most of them
/// explains. Where most have none in common, the longest of all. That one alone would not do: beside what makes all calls slow it has
/// waited longest by chance.
fn typical<'a>(
    slow: &'a [Judged],
    of: &crate::models::ExpectedFunction,
) -> Option<(&'a Judged, Option<Cause>)> {
    let explained = |call: &Judged| {
        let ended = || used(call.seen.own_ns, call.seen.predicted_ns, &call.row.context);
        let own = if call.is_running { call.used } else { ended() };
        own.map(|own| explain(&own, &of.normal))
    };
    let mut causes: Vec<Option<Cause>> = slow.iter().map(explained).collect();
    let told = shared_cause(&causes).unwrap_or(0);
    let call = slow.get(told)?;
    Some((call, causes.swap_remove(told)))
}

impl Consumer for Expectations {
    fn name(&self) -> &'static str {
        "--expect"
    }

    fn take(&mut self, rows: Rows<'_>) {
        match rows {
            Rows::Calls(rows) if self.making.is_some() => {
                self.not_looked_at += rows.iter().filter(|row| self.judge.is_watched(row)).count() as u64;
            }
            Rows::Calls(rows) => rows.iter().for_each(|row| self.call(row)),
            Rows::Words(rows) => {
                // Of a call that ends when there are models, those of its begin came before.
                let may_be = self.making.is_some();
                for row in rows.iter().filter(|row| self.judge.is_watched_class(row.class_id)) {
                    self.waiting.word(row, |name| may_be || self.judge.is_input(row.class_id, name));
                }
            }
            _ => {}
        }
    }

    fn skipped(&mut self, rows: Rows<'_>) {
        let Rows::Calls(rows) = rows else { return };
        let mut missed = BTreeMap::<u32, Vec<&EventRow>>::new();
        for row in rows.iter().filter(|row| self.judge.is_watched(row)) {
            missed.entry(row.class_id).or_default().push(row);
            self.flights.end(row);
        }
        for (class_id, rows) in missed {
            self.not_looked_at += rows.len() as u64;
            self.judge.miss(class_id, rows);
        }
    }

    fn classes(&mut self, classes: &[ClassRow]) {
        for class in classes {
            if let Err(why) = self.judge.class(class) {
                self.to_tell.push(format!("--expect {}: {why}; its calls are not judged", self.recording));
                self.not_judged.push(ExpectedFunction {
                    function: class.name.clone(),
                    not_judged: Some(why),
                    ..ExpectedFunction::default()
                });
            }
        }
    }

    fn look(&mut self, threads: &dyn Threads, most_ns: u64) {
        if self.making.is_some() || self.judge.functions.is_empty() {
            return;
        }
        let Self { flights, judge, waiting, .. } = self;
        let hold = |row: &EventRow| {
            let wanted = judge.words(row);
            let words = if wanted.is_empty() { Some(Words::default()) } else { waiting.so_far(row, &wanted) };
            let Some(words) = words else { return Hold::Later };
            judge.hold(row, &words).map_or(Hold::Never, |held| Hold::Held(Box::new(held)))
        };
        let is_watched = |class: u32| judge.has_model(class).then(|| judge.is_cut(class));
        flights.look(threads, most_ns, is_watched, hold);
    }

    fn work(&mut self, turn: &mut Turn) {
        self.take_models(turn.now_ns);
        std::mem::take(&mut self.to_tell).into_iter().for_each(|text| turn.tell(text));
        self.judge_waiting(false);
        if self.step_ns == 0 {
            self.step_ns = turn.now_ns;
        }
        if turn.now_ns.saturating_sub(self.step_ns) >= STEP_NS {
            self.step_ns = turn.now_ns;
            self.end_step(turn);
        }
    }

    fn end(&mut self, turn: &mut Turn) -> Vec<String> {
        self.take_models(turn.now_ns);
        std::mem::take(&mut self.to_tell).into_iter().for_each(|text| turn.tell(text));
        self.judge_waiting(true);
        // What was open at the last look and has not ended since.
        self.end_step(turn);
        self.flights.clear();
        turn.tell(self.summary());
        let late = self.making.is_some();
        late.then(|| {
            format!(
                "--expect {}: the run was over before there were models: no call was judged",
                self.recording
            )
        })
        .into_iter()
        .collect()
    }

    fn note(&mut self, meta: &mut Meta) {
        let judged = self.judge.functions.iter().map(|function| function.counts.clone());
        let expected = ExpectedMeta {
            recording: self.recording.clone(),
            functions: judged.chain(self.not_judged.iter().cloned()).collect(),
            not_looked_at: self.not_looked_at + self.judge.too_many,
            machine_changes: self.machine_changes,
            incidents: self.incidents.count,
            told: self.incidents.kept().to_vec(),
        };
        meta.models.get_or_insert_default().expected = Some(expected);
    }
}
