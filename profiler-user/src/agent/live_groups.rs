//! One frequency for the functions of a group in the run that models are made of (`--model`): ADLER §3.2, while the run goes on.
//!
//! ```text
//! recorded calls ──► 2,048 of each function ──► model, on a thread at the lowest priority ──► groups ──► frequency of each class
//! ```
//! A function takes part once it has the data points that its model needs ([`super::data_points`]): before that a common frequency would keep them from
//! it. Functions of one caller whose predicted times are within a factor of 2 share a frequency, that of the one with the most decades of inputs; a function alone
//! keeps its own bound. Models are made anew where four times as many calls are there.
//!
//! # Cost
//! Making models takes an eighth of `--agent-cpu` at most over a run, and one model ([`Allowance`]): what one took is a debt, and the next one waits until it is paid.
//!
//! What it does not do: functions whose inputs are words, or that were seen in several contexts, are in no group.

use super::clock::{now_ns, thread_cpu_ns};
use super::consumers::Allowance;
use super::expected::on_lowest_priority;
use crate::config::RunConfig;
use crate::models::{CallSample, KeptCalls, Key, LiveFunction, Modelled, Pace, shared_groups};
use profiler_core::class::ClassId;
use profiler_core::models::Model;
use profiler_core::recording::EventRow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// What making models may use, as a part of what the agent may.
const PART_OF_AGENT: f64 = 0.125;
/// Functions whose calls are kept: 230 KB each.
const MOST_FUNCTIONS: usize = 64;
/// Time between two looks at what is due, ns: a look goes through all decades of all functions.
const LOOK_NS: u64 = 1_000_000_000;
/// A model is made anew where so many times as many calls are there.
const ANEW: u64 = 4;

/// A function, as it is told and known elsewhere: name, module and symbol.
pub(super) struct Named {
    /// As people read it.
    pub name: String,
    /// Module and symbol.
    pub key: (String, String),
}

/// What is kept of a class.
struct Known {
    function: LiveFunction,
    calls: KeptCalls,
    /// Calls that were there when the last model was asked for; 0: none was.
    asked_at: u64,
    model: Option<(Model, Pace)>,
}

/// A model that is to be made, and what was made.
type Job = (ClassId, LiveFunction, CallSample);
type Done = (ClassId, Option<(Model, Pace)>, u64);

/// The thread that makes models, one at a time.
struct Maker {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    is_busy: bool,
}

/// Functions that share a frequency from now on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Formed {
    /// Its classes.
    pub classes: Vec<ClassId>,
    /// In words.
    pub text: String,
}

/// See the [module](self).
pub(super) struct LiveGroups {
    /// Data points that each decade is to have; 0: nothing is grouped.
    wanted: u32,
    classes: BTreeMap<ClassId, Known>,
    maker: Option<Maker>,
    allowance: Allowance,
    /// When to look next, ktime ns.
    next_ns: u64,
    /// A model has come since functions were grouped.
    is_new: bool,
    /// The frequency that a class shares, Hz.
    hz: BTreeMap<ClassId, f64>,
    /// Groups that were told: their classes.
    told: BTreeSet<Vec<ClassId>>,
}

impl LiveGroups {
    /// Of the functions that were named. With `--expect` the groups are those of that recording; with `--only-named` nothing is thinned.
    pub fn new(config: &RunConfig, now_ns: u64) -> Self {
        let is_off = config.models.patterns.is_empty()
            || config.models.expect.is_some()
            || config.experiments.only_named;
        Self::of(if is_off { 0 } else { config.models.wanted() }, config.cost.agent_cpu, now_ns)
    }

    fn of(wanted: u32, agent_cpu: f64, now_ns: u64) -> Self {
        Self {
            wanted,
            classes: BTreeMap::new(),
            maker: None,
            allowance: Allowance::new(agent_cpu * PART_OF_AGENT, now_ns),
            next_ns: now_ns,
            is_new: false,
            hz: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// A call of a function that a model is made of was recorded. `function` says what its inputs are; `None`: they are words.
    pub fn note(&mut self, class: ClassId, row: &EventRow, function: impl FnOnce() -> Option<LiveFunction>) {
        if self.wanted == 0 {
            return;
        }
        if let Some(known) = self.classes.get_mut(&class) {
            known.calls.push(row);
        } else if self.classes.len() < MOST_FUNCTIONS
            && let Some(function) = function()
        {
            let mut calls = KeptCalls::default();
            calls.push(row);
            self.classes.insert(class, Known { function, calls, asked_at: 0, model: None });
        }
    }

    /// Inputs have other names or registers from now on: what was kept and made by the old ones counts no more.
    pub fn forget(&mut self) {
        self.classes.clear();
        self.hz.clear();
    }

    /// The frequency that a class shares with its group, Hz; 0: it is in none.
    pub fn hz(&self, class: ClassId) -> f64 {
        self.hz.get(&class).copied().unwrap_or(0.0)
    }

    /// Takes a model that was made, has the next one made, and groups functions where no model is due. `is_enough`: a class has its data points; `named`: what a
    /// class is called. Returned are groups that are new.
    pub fn turn(
        &mut self,
        now_ns: u64,
        is_enough: impl Fn(ClassId) -> bool,
        named: impl Fn(ClassId) -> Option<Named>,
    ) -> Vec<Formed> {
        if self.classes.is_empty() || now_ns < self.next_ns {
            return Vec::new();
        }
        self.next_ns = now_ns + LOOK_NS;
        if !self.is_free() {
            return Vec::new();
        }
        if let Some(class) = self.due(&is_enough) {
            if self.allowance.left_ns(now_ns) > 0 {
                self.ask(class);
            }
            return Vec::new();
        }
        if std::mem::take(&mut self.is_new) { self.group(&named) } else { Vec::new() }
    }

    /// No model is being made; one that is done is taken.
    fn is_free(&mut self) -> bool {
        let Some(maker) = self.maker.as_mut().filter(|maker| maker.is_busy) else { return true };
        match maker.done.try_recv() {
            Ok((class, model, took_ns)) => {
                maker.is_busy = false;
                self.allowance.charge(took_ns);
                // Of one that was not asked for the inputs are others by now.
                if let Some(known) = self.classes.get_mut(&class).filter(|known| known.asked_at > 0) {
                    known.model = model;
                    self.is_new = true;
                }
                true
            }
            Err(TryRecvError::Empty) => false,
            // It panicked: a defect. The functions stay as they are.
            Err(TryRecvError::Disconnected) => {
                self.wanted = 0;
                self.classes.clear();
                true
            }
        }
    }

    /// The class whose model is to be made next: the one with the most calls since its last one.
    fn due(&self, is_enough: impl Fn(ClassId) -> bool) -> Option<ClassId> {
        let is_due = |(class, known): &(&ClassId, &Known)| {
            let seen = known.calls.seen();
            let is_more = seen > 0 && seen >= ANEW * known.asked_at;
            is_more && known.calls.context().is_some() && is_enough(**class)
        };
        let due = self.classes.iter().filter(is_due);
        due.max_by_key(|(_, known)| known.calls.seen() - known.asked_at).map(|(class, _)| *class)
    }

    fn ask(&mut self, class: ClassId) {
        let Some(known) = self.classes.get_mut(&class) else { return };
        known.asked_at = known.calls.seen();
        let job = (class, known.function.clone(), known.calls.sample());
        if self.maker.is_none() {
            self.maker = Maker::start().ok();
        }
        if let Some(maker) = &mut self.maker {
            maker.is_busy = maker.jobs.send(job).is_ok();
        }
    }

    /// Groups the functions that have models.
    fn group(&mut self, named: impl Fn(ClassId) -> Option<Named>) -> Vec<Formed> {
        let (mut ids, mut names, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for (class, known) in &self.classes {
            let Some(context) = known.calls.context().filter(|_| known.model.is_some()) else { continue };
            let outer = context.and_then(|outer| named(ClassId(outer)));
            let Some(own) = named(*class).filter(|_| context.is_some() == outer.is_some()) else { continue };
            let key: Key = (own.key, outer.as_ref().map(|outer| outer.key.clone()));
            ids.push(*class);
            names.push((own.name, outer.map(|outer| outer.name)));
            keys.push(key);
        }
        let mut functions = Vec::new();
        for ((class, (_, context)), key) in ids.iter().zip(&names).zip(&keys) {
            let Some((model, pace)) = self.classes.get(class).and_then(|known| known.model.as_ref()) else {
                continue;
            };
            functions.push(Modelled { key, context: context.as_deref(), model, pace: *pace });
        }
        debug_assert_eq!(functions.len(), ids.len());
        let (groups, _) = shared_groups(&functions, self.wanted);
        self.hz.clear();
        let mut formed = Vec::new();
        // A function alone keeps its own bound.
        for group in groups.into_iter().filter(|group| group.members.len() > 1) {
            let mut classes: Vec<ClassId> =
                group.members.iter().filter_map(|at| ids.get(*at)).copied().collect();
            classes.sort_unstable();
            self.hz.extend(classes.iter().map(|class| (*class, group.calls_hz)));
            if !self.told.insert(classes.clone()) {
                continue;
            }
            let names: Vec<&str> =
                group.members.iter().filter_map(|at| names.get(*at)).map(|(name, _)| name.as_str()).collect();
            let text = format!(
                "--model: {} share one frequency from now on, {:.0} recorded calls a second each as far as budget and plan allow ({})",
                names.join(", "),
                group.calls_hz,
                group.why
            );
            formed.push(Formed { classes, text });
        }
        formed
    }
}

impl Maker {
    fn start() -> std::io::Result<Self> {
        let (jobs, asked) = channel::<Job>();
        let (sender, done) = channel();
        on_lowest_priority("tithe-groups", move || {
            while let Ok((class, function, calls)) = asked.recv() {
                let before_ns = thread_cpu_ns();
                let model = calls.fit(&function).ok();
                // The run may be over.
                if sender.send((class, model, thread_cpu_ns().saturating_sub(before_ns))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, done, is_busy: false })
    }
}

impl super::Agent {
    /// Has functions that models are made of grouped, and tells and records which share a frequency from now on.
    pub(super) fn group_functions(&mut self) {
        let classes = self.attach.classes();
        let named = |id: ClassId| {
            let candidate = &classes.get(id.0 as usize)?.candidate;
            Some(Named {
                name: candidate.name.clone(),
                key: (candidate.module.clone(), candidate.symbol.clone()),
            })
        };
        for formed in self.data_points.group(now_ns(), named) {
            self.journal.progress.note(&formed.text);
            self.journal.change(
                profiler_core::recording::ChangeKind::Group,
                formed.classes.first().copied(),
                formed.text,
            );
        }
    }
}

#[cfg(test)]
mod tests;
