//! One frequency for the functions of a group in the run that models are made of (`--model`): ADLER §3.2, while the run goes on.
//!
//! ```text
//! recorded calls ──► 2,048 of each function ──► model, on a thread at the lowest priority ──► groups ──► frequency of each class
//! ```
//! A function takes part once it has the data points that its model needs ([`super::data_points`]): before that a common frequency would keep them from
//! it. Functions of one caller whose predicted times are within a factor of 2 share a frequency, that of the one with the most decades of inputs; a function alone
//! keeps its own bound. Models are made anew where twice as many calls are there, and functions grouped anew with each model that comes, and where one is called
//! in a second context.
//!
//! # Cost
//! Making models takes an eighth of `--agent-cpu` at most over a run, and one model ([`Allowance`]): what one took is a debt, and the next one waits until it is paid.
//!
//! What it does not do: functions whose inputs are words, that take variable arguments without named inputs, or that were seen in several contexts, are in no group.

use super::clock::{now_ns, thread_cpu_ns};
use super::consumers::Allowance;
use super::expected::on_lowest_priority;
use crate::config::RunConfig;
use crate::models::{CallSample, KeptCalls, Key, LiveFunction, Modelled, Pace, shared_groups};
use profiler_core::class::ClassId;
use profiler_core::models::Model;
use profiler_core::recording::{ChangeKind, EventRow};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// What making models may use, as a part of what the agent may.
const PART_OF_AGENT: f64 = 0.125;
/// Functions whose calls are kept: 230 KB each.
const MOST_FUNCTIONS: usize = 64;
/// Time between two looks at what is due, ns: a look goes through all decades of all functions.
const LOOK_NS: u64 = 1_000_000_000;
/// A model is made anew where so many times as many calls are there.
const ANEW: u64 = 2;

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

/// Functions that share a frequency, or another one, or none from now on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Regrouped {
    /// Their classes, in order.
    pub classes: Vec<ClassId>,
    /// In words.
    pub text: String,
}

/// A group, as it is now.
#[derive(Debug)]
struct Group {
    /// In order.
    classes: Vec<ClassId>,
    hz: f64,
    why: String,
}

/// See the [module](self).
pub(super) struct LiveGroups {
    /// Data points that each decade is to have; 0: nothing is grouped.
    wanted: u32,
    classes: BTreeMap<ClassId, Known>,
    /// Classes of which no model is made: what that follows from is looked at once, not at each call.
    without: BTreeSet<ClassId>,
    maker: Option<Maker>,
    allowance: Allowance,
    /// When to look next, ktime ns.
    next_ns: u64,
    /// Something has come since functions were grouped: a model, a second context, other inputs.
    is_new: bool,
    /// The frequency that a class shares, Hz.
    hz: BTreeMap<ClassId, f64>,
    /// The groups that there are, as they were told: classes, and the bits of the frequency.
    told: BTreeSet<(Vec<ClassId>, u64)>,
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
            without: BTreeSet::new(),
            maker: None,
            allowance: Allowance::new(agent_cpu * PART_OF_AGENT, now_ns),
            next_ns: now_ns,
            is_new: false,
            hz: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// A call of a function that is to be modelled was recorded. `function` says what its inputs are.
    pub fn note(&mut self, class: ClassId, row: &EventRow, function: impl FnOnce() -> LiveFunction) {
        if self.wanted == 0 {
            return;
        }
        if let Some(known) = self.classes.get_mut(&class) {
            self.is_new |= known.calls.push(row);
        } else if self.classes.len() < MOST_FUNCTIONS && !self.without.contains(&class) {
            let function = function();
            if !function.is_modelled() {
                self.without.insert(class);
                return;
            }
            let mut calls = KeptCalls::default();
            calls.push(row);
            self.classes.insert(class, Known { function, calls, asked_at: 0, model: None });
        }
    }

    /// The inputs of these have other names or registers from now on: what was kept and made by the old ones counts no more.
    pub fn forget(&mut self, others: &BTreeSet<ClassId>) {
        self.classes.retain(|class, _| !others.contains(class));
        self.without.retain(|class| !others.contains(class));
        self.hz.retain(|class, _| !others.contains(class));
        self.is_new = true;
    }

    /// The frequency that a class shares with its group, Hz; 0: it is in none.
    pub fn hz(&self, class: ClassId) -> f64 {
        self.hz.get(&class).copied().unwrap_or(0.0)
    }

    /// Takes a model that was made, groups functions anew if there is a reason, and has the next model made. `is_enough`: a class has its data points; `named`:
    /// what a class is called. Returned is what is to be told.
    pub fn turn(
        &mut self,
        now_ns: u64,
        is_enough: impl Fn(ClassId) -> bool,
        named: impl Fn(ClassId) -> Option<Named>,
    ) -> Vec<Regrouped> {
        let is_idle = self.classes.is_empty() && !self.is_new;
        if is_idle || now_ns < self.next_ns {
            return Vec::new();
        }
        self.next_ns = now_ns + LOOK_NS;
        let is_free = self.is_free();
        // Models that are still to be made may take minutes: what is known counts at once.
        let told = if std::mem::take(&mut self.is_new) { self.group(&named) } else { Vec::new() };
        if is_free
            && let Some(class) = self.due(&is_enough)
            && self.allowance.left_ns(now_ns) > 0
        {
            self.ask(class);
        }
        told
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
            // It panicked: a defect. Nothing is grouped any more.
            Err(TryRecvError::Disconnected) => {
                maker.is_busy = false;
                self.wanted = 0;
                self.classes.clear();
                self.is_new = true;
                true
            }
        }
    }

    /// The class whose model is to be made next: one that none was asked for, then one that has none, then the one with the most calls since its last one.
    fn due(&self, is_enough: impl Fn(ClassId) -> bool) -> Option<ClassId> {
        let is_due = |(class, known): &(&ClassId, &Known)| {
            let seen = known.calls.seen();
            let is_more = seen > 0 && seen >= ANEW * known.asked_at;
            is_more && known.calls.context().is_some() && is_enough(**class)
        };
        let due = self.classes.iter().filter(is_due);
        let key =
            |known: &Known| (known.asked_at == 0, known.model.is_none(), known.calls.seen() - known.asked_at);
        due.max_by_key(|(_, known)| key(known)).map(|(class, _)| *class)
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
    fn group(&mut self, named: impl Fn(ClassId) -> Option<Named>) -> Vec<Regrouped> {
        let groups = self.groups(&named);
        self.hz = groups.iter().flat_map(|g| g.classes.iter().map(|class| (*class, g.hz))).collect();
        let now = groups.iter().map(|group| (group.classes.clone(), group.hz.to_bits())).collect();
        let before = std::mem::replace(&mut self.told, now);
        let left = before.iter().filter_map(|(classes, _)| {
            let alone = |class: &ClassId| !self.hz.contains_key(class);
            let classes: Vec<ClassId> = classes.iter().copied().filter(alone).collect();
            (!classes.is_empty()).then(|| self.ended(classes, &named))
        });
        let formed = groups.into_iter().filter(|g| !before.contains(&(g.classes.clone(), g.hz.to_bits())));
        left.chain(formed.map(|group| group.told(&named))).collect()
    }

    /// Functions of like times.
    fn groups(&self, named: impl Fn(ClassId) -> Option<Named>) -> Vec<Group> {
        let (mut ids, mut keys, mut known_of) = (Vec::new(), Vec::new(), Vec::new());
        for (class, known) in &self.classes {
            let (Some((model, pace)), Some(context)) = (&known.model, known.calls.context()) else {
                continue;
            };
            let outer = context.and_then(|outer| named(ClassId(outer)));
            let Some(own) = named(*class).filter(|_| context.is_some() == outer.is_some()) else { continue };
            let (context, caller) = outer.map(|outer| (outer.name, outer.key)).unzip();
            let key: Key = (own.key, caller);
            ids.push(*class);
            keys.push(key);
            known_of.push((context, model, *pace));
        }
        let functions: Vec<Modelled<'_>> = std::iter::zip(&keys, &known_of)
            .map(|(key, (context, model, pace))| Modelled {
                key,
                context: context.as_deref(),
                model,
                pace: *pace,
            })
            .collect();
        let (groups, _) = shared_groups(&functions, self.wanted);
        // A function alone keeps its own bound.
        let several = groups.into_iter().filter(|group| group.members.len() > 1);
        let of = several.map(|group| {
            let mut classes: Vec<ClassId> =
                group.members.iter().filter_map(|at| ids.get(*at)).copied().collect();
            classes.sort_unstable();
            Group { classes, hz: group.calls_hz, why: group.why }
        });
        of.collect()
    }

    /// These were in a group, and are in none any more.
    fn ended(&self, classes: Vec<ClassId>, named: impl Fn(ClassId) -> Option<Named>) -> Regrouped {
        let one = |class: &ClassId| Some(format!("{} ({})", named(*class)?.name, self.why_alone(*class)));
        let names: Vec<String> = classes.iter().filter_map(one).collect();
        let share = if names.len() == 1 { "shares" } else { "share" };
        let text = format!("--model: {} {share} no frequency any more", names.join(", "));
        Regrouped { classes, text }
    }

    /// Why a class is in no group.
    fn why_alone(&self, class: ClassId) -> &'static str {
        match self.classes.get(&class) {
            _ if self.wanted == 0 => "no more models are made, because of a defect of tithe",
            None => "its inputs are others by now",
            Some(known) if known.asked_at == 0 => "its inputs are others by now",
            Some(known) if known.calls.context().is_none() => "it is called in several contexts",
            Some(known) if known.model.is_none() => "its calls have no model any more",
            Some(_) => "it is in no group by the latest models",
        }
    }
}

impl Group {
    fn told(self, named: impl Fn(ClassId) -> Option<Named>) -> Regrouped {
        let names: Vec<String> =
            self.classes.iter().filter_map(|class| named(*class)).map(|named| named.name).collect();
        let text = format!(
            "--model: {} share one frequency from now on, {:.0} recorded calls a second each as far as budget and plan allow ({})",
            names.join(", "),
            self.hz,
            self.why
        );
        Regrouped { classes: self.classes, text }
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
    /// Has functions that models are made of grouped, and tells and records which share a frequency from now on, and which none any more.
    pub(super) fn group_functions(&mut self) {
        let classes = self.attach.classes();
        let named = |id: ClassId| {
            let candidate = &classes.get(id.0 as usize)?.candidate;
            Some(Named {
                name: candidate.name.clone(),
                key: (candidate.module.clone(), candidate.symbol.clone()),
            })
        };
        for Regrouped { classes, text } in self.data_points.group(now_ns(), named) {
            self.journal.progress.note(&text);
            self.journal.change(ChangeKind::Group, classes.first().copied(), text);
        }
    }
}

#[cfg(test)]
mod tests;
