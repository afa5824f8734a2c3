//! Forked children. A child that has not called exec inherits the target's breakpoints and pays every trap, although
//! the PID filter hides its hits. Its cost is charged, and the links are made anew, which removes the breakpoints from
//! every process that no link wants.
//!
//! Nobody counts a child's hits, so what is charged is a bound: **all CPU time that the child used** from its birth until
//! it ended, called exec or the links were gone. A child cannot pay more, and one that calls traced functions in a loop
//! pays nearly that. Time since the last reading of its CPU clock (10 ms at most) counts as used. A child that calls exec
//! is different: between fork and exec nearly nothing is called, and it is taken to call what the target calls per
//! CPU second.
//!
//! The agent looks at the processes that [`Children::carrying`] names and tells what it found ([`Look`]); the kernel tells of births, execs
//! and ends ([`Event`]). No process is read here.

use super::Client;
use crate::class::ClassId;
use crate::recording::ChangeKind;
use crate::run::arbiter::StormBounds;
use crate::run::order::{Ending, Order};
use crate::run::suspension::Suspension;
use crate::run::view::{ClassView, View};
use std::collections::BTreeMap;

mod account;

pub use account::ChildCost;
use account::{ChildAccount, Used, smooth};

/// A child gets so long to call exec before the links are made anew, ns: most do within a few ms.
const GRACE_NS: u64 = 50_000_000;
/// A child that was born while nothing was attached is clean; it is looked at for so long to see what a storm would cost, ns.
const WATCHED_NS: u64 = 1_000_000_000;
/// Time constant of what children would cost, ns.
const STORM_TIME_NS: f64 = 1e9;
/// The links are made anew at most this often, ns: a fork storm must not become an attach storm.
const REARM_NS: u64 = 1_000_000_000;

const STORM_BEGINS: &str = "the target forks so much that breakpoints in its children could cost more than half of the budget: while it \
     does, functions are not traced, only sampled";
const STORM_ENDS: &str = "the storm of forks is over";

/// What the kernel told of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A process was born that inherits the breakpoints. Children of children carry them, too.
    Forked {
        /// Its PID.
        child: u32,
        /// When, ktime ns.
        time_ns: u64,
        /// The agent was bound to this process before it read the record, so the process was found by looking.
        found_before: bool,
    },
    /// A process loaded a new program, which is clean.
    Execed {
        /// Its PID.
        pid: u32,
        /// When, ktime ns.
        time_ns: u64,
    },
    /// A process ended.
    Ended {
        /// Its PID.
        pid: u32,
        /// When, ktime ns.
        time_ns: u64,
    },
}

/// What a process was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It has ended, or had ended before the agent could bind to it.
    Ended,
    /// It runs another program than the target: it has called exec.
    OtherProgram,
    /// It runs the target's program.
    Runs {
        /// Its CPU clock, ns; `None`: it could not be read.
        cpu_ns: Option<u64>,
    },
}

/// A look at processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// When it began, ktime ns: no CPU clock was read before.
    pub at_ns: u64,
    /// Links are there: being made, open or being closed. The view says the same, but a turn need not fill it.
    pub linked: bool,
    /// What was found, by PID.
    pub found: Vec<(u32, Found)>,
}

/// What the children are told.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// What the kernel told.
    Told {
        /// In its order.
        events: Vec<Event>,
        /// Links are there, as [`Look::linked`].
        linked: bool,
    },
    /// Records of births were lost: what was found of the processes that the kernel watches and [`Children::carries`] does not know.
    Lost(Look),
    /// A turn of the loop.
    Turn {
        /// What was found of [`Children::carrying`].
        look: Look,
        /// The plan runs. Windows of a survey end by themselves, and with them the children's breakpoints.
        plan_runs: bool,
        /// What holds everything up.
        suspension: Suspension,
    },
    /// An interval of the ledger is over. What it cost is [`Children::take_cost`].
    Interval {
        /// What was found of [`Children::carrying`].
        look: Look,
        /// Its length, ns.
        elapsed_ns: u64,
        /// CPU time that the target used in it, ns.
        target_cpu_ns: u64,
        /// The classes that are not off, with their hits in it.
        hits: Vec<(ClassId, u64)>,
    },
    /// The run ends: what was to be restored stays closed.
    End,
}

/// A child that carries inherited breakpoints.
#[derive(Debug)]
struct Child {
    born_ns: u64,
    /// When its CPU clock was read last, ktime ns, and what it said. The clock began with the child.
    read_ns: u64,
    cpu_ns: u64,
}

impl Child {
    fn born(time_ns: u64) -> Self {
        Self { born_ns: time_ns, read_ns: time_ns, cpu_ns: 0 }
    }

    /// Takes a reading of its CPU clock; returns the CPU time since the last one, ns.
    fn read(&mut self, at_ns: u64, cpu_ns: u64) -> u64 {
        let used = cpu_ns.saturating_sub(self.cpu_ns);
        (self.read_ns, self.cpu_ns) = (at_ns, self.cpu_ns.max(cpu_ns));
        used
    }
}

/// Whether the target forks so much that its children alone could use up the budget.
#[derive(Debug, Default)]
struct Storm {
    /// What children cost, or would cost if something were attached, CPU s/s, smoothed.
    potential: f64,
    rages: bool,
    /// The report has its warning.
    warned: bool,
}

impl Storm {
    /// Takes what children used in an interval. True: a storm has begun or ended with it.
    fn note(&mut self, used_ns: f64, elapsed_ns: u64, bounds: &StormBounds) -> bool {
        smooth(&mut self.potential, used_ns, elapsed_ns, STORM_TIME_NS);
        let bound = if self.rages { bounds.ends } else { bounds.begins };
        let rages = self.potential > bound;
        std::mem::replace(&mut self.rages, rages) != rages
    }
}

/// The children of the target that may carry breakpoints.
#[derive(Debug, Default)]
pub struct Children {
    carrying: BTreeMap<u32, Child>,
    /// Processes whose lifecycle need not be watched any more: said at the end of a step.
    left: Vec<u32>,
    account: ChildAccount,
    storm: Storm,
    last_rearm_ns: u64,
    /// While links are made anew: windows to be opened again when all are closed, with their quotas. Often none: bursts come by themselves,
    /// but not before either.
    wanted: Option<Vec<(ClassId, u64)>>,
    forks: u64,
    /// A time at which all links were surely gone, ktime ns; `u64::MAX`: links are there.
    gone_ns: u64,
    ended: bool,
}

impl Children {
    /// The children that are to be looked at: each turn, so that little is left to be bounded, and at the end of each interval.
    pub fn carrying(&self) -> impl Iterator<Item = u32> {
        self.carrying.keys().copied()
    }

    /// It is one of them.
    #[must_use]
    pub fn carries(&self, pid: u32) -> bool {
        self.carrying.contains_key(&pid)
    }

    /// None is looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.carrying.is_empty()
    }

    /// The target forks so much that its children alone could use up the budget: nothing must be attached that they would
    /// inherit.
    #[must_use]
    pub fn is_storm(&self) -> bool {
        self.storm.rages
    }

    /// Links are being made anew: all have to be closed before one is opened again.
    #[must_use]
    pub fn is_rearming(&self) -> bool {
        self.wanted.is_some()
    }

    /// What they cost in the last interval. It is charged once.
    #[must_use]
    pub fn take_cost(&mut self) -> ChildCost {
        std::mem::take(&mut self.account.cost)
    }

    /// A step with this looks at the classes in the view. Filling them takes a walk over all classes, and most turns have no child.
    #[must_use]
    pub fn sees_classes(&self, input: &Input) -> bool {
        match input {
            Input::Interval { .. } => !self.carrying.is_empty() || self.account.owes(),
            Input::Turn { look, plan_runs, suspension } => {
                *plan_runs && suspension.may_rearm() && self.is_rearm_due(look.at_ns)
            }
            Input::Told { .. } | Input::Lost(_) | Input::End => false,
        }
    }

    /// What the report says of them at the end.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.forks > 0).then(|| {
            format!(
                "the target forked {} times; children are not observed, and pay for inherited breakpoints until they call \
                 exec or the links are made anew; all the CPU time that they used until then is charged as children: it is the most \
                 that they can have paid",
                self.forks
            )
        })
    }

    fn heed(&mut self, event: Event) {
        match event {
            Event::Forked { child, time_ns, found_before } => {
                if found_before && self.carries(child) {
                    return;
                }
                self.forks += 1;
                // The number was another process's a moment ago; this one is to be watched.
                self.ended(child, time_ns, false);
                self.left.retain(|pid| *pid != child);
                self.carrying.insert(child, Child::born(time_ns));
            }
            Event::Execed { pid, time_ns } => self.ended(pid, time_ns, true),
            Event::Ended { pid, time_ns } => self.ended(pid, time_ns, false),
        }
    }

    /// Takes children that nobody told of. They are charged with what they used since their birth. Those that have ended or called exec
    /// meanwhile are let go; what they used is not known.
    fn find_lost(&mut self, look: &Look) {
        for (pid, found) in &look.found {
            if self.carries(*pid) {
                continue;
            }
            self.forks += 1;
            match found {
                Found::Runs { cpu_ns } => {
                    let mut child = Child::born(look.at_ns);
                    // When it was born is not known: it may have carried breakpoints.
                    self.account.exposed.running_ns +=
                        cpu_ns.map_or(0, |cpu_ns| child.read(look.at_ns, cpu_ns));
                    self.carrying.insert(*pid, child);
                }
                Found::Ended | Found::OtherProgram => self.left.push(*pid),
            }
        }
    }

    /// A child has ended, or runs another program, which is clean.
    fn ended(&mut self, pid: u32, time_ns: u64, by_exec: bool) {
        let Some(child) = self.carrying.remove(&pid) else { return };
        self.left.push(pid);
        let rest = time_ns.saturating_sub(child.read_ns);
        let used = self.used_since(child.read_ns);
        if by_exec {
            used.before_exec_ns += rest;
        } else {
            used.running_ns += rest;
        }
    }

    /// Where CPU time goes that was used since then.
    fn used_since(&mut self, since_ns: u64) -> &mut Used {
        let ChildAccount { exposed, clean, .. } = &mut self.account;
        if since_ns < self.gone_ns { exposed } else { clean }
    }

    /// Takes what a look found. Where the kernel told of an end it has been heeded; this is for the rest.
    fn look(&mut self, look: &Look) {
        self.gone_ns = if look.linked { u64::MAX } else { self.gone_ns.min(look.at_ns) };
        for (pid, found) in &look.found {
            match found {
                Found::Ended => self.ended(*pid, look.at_ns, false),
                Found::OtherProgram => self.ended(*pid, look.at_ns, true),
                Found::Runs { cpu_ns } => {
                    if let (Some(child), Some(cpu_ns)) = (self.carrying.get_mut(pid), cpu_ns) {
                        let since_ns = child.read_ns;
                        let used = child.read(look.at_ns, *cpu_ns);
                        self.used_since(since_ns).running_ns += used;
                    }
                }
            }
        }
    }

    /// Nothing is attached: who was born meanwhile is clean.
    fn forget_clean(&mut self, now_ns: u64) {
        let Self { carrying, left, .. } = self;
        carrying.retain(|pid, child| {
            let keeps = now_ns.saturating_sub(child.born_ns) <= WATCHED_NS;
            if !keeps {
                left.push(*pid);
            }
            keeps
        });
    }

    /// A child has had its time to call exec, and the links have not been made anew for a while.
    fn is_rearm_due(&self, now_ns: u64) -> bool {
        !self.ended
            && !self.is_rearming()
            && now_ns.saturating_sub(self.last_rearm_ns) > REARM_NS
            && self.carrying.values().any(|c| now_ns.saturating_sub(c.born_ns) > GRACE_NS)
    }

    /// Closes all links. Where no link is left, the kernel takes the breakpoints out of forked children too; until then they go on paying.
    fn rearm(&mut self, now_ns: u64, view: &View, orders: &mut Vec<Order>) {
        self.last_rearm_ns = now_ns;
        let again =
            |c: &&ClassView| (c.is_open() || c.is_pending()) && (c.traits.held_by_plan || c.traits.apart);
        self.wanted = Some(view.classes.iter().filter(again).map(|c| (c.id, c.quota)).collect());
        orders.extend([Order::VoidComparison, Order::HoldOperations, Order::CloseAll(Ending::AtOnce)]);
    }

    /// All links are gone, and with them the breakpoints of every child: what was closed may come back.
    fn restore(&mut self, orders: &mut Vec<Order>) {
        self.left.extend(std::mem::take(&mut self.carrying).into_keys());
        let wanted = self.wanted.take().unwrap_or_default();
        if !wanted.is_empty() {
            orders.push(Order::Restore(wanted));
        }
    }

    fn turn(
        &mut self,
        look: &Look,
        plan_runs: bool,
        suspension: Suspension,
        view: &View,
        orders: &mut Vec<Order>,
    ) {
        self.look(look);
        if self.is_rearming() && !look.linked && suspension.may_rearm() {
            self.restore(orders);
        }
        if !look.linked {
            self.forget_clean(look.at_ns);
        }
        if plan_runs && suspension.may_rearm() && self.is_rearm_due(look.at_ns) {
            self.rearm(look.at_ns, view, orders);
        }
    }

    /// Children alone could use up the budget, or no longer: then only samples are taken.
    fn storm_turned(&mut self, orders: &mut Vec<Order>) {
        let change = |text: &str| Order::Change(ChangeKind::Children, None, text.to_owned());
        if self.storm.rages {
            let note = Order::Note(STORM_BEGINS.to_owned());
            orders.extend([
                Order::HoldOperations,
                Order::CloseAll(Ending::AtOnce),
                note,
                change(STORM_BEGINS),
            ]);
            if !std::mem::replace(&mut self.storm.warned, true) {
                orders.push(Order::Warn(STORM_BEGINS.to_owned()));
            }
        } else {
            orders.extend([change(STORM_ENDS), Order::Replan(Some(STORM_ENDS.to_owned()))]);
        }
    }
}

impl Client for Children {
    type Input = Input;
    type Grant = StormBounds;

    /// What they were charged with, smoothed over some seconds: it comes in lumps, so that a single one must not look like a flood.
    fn claim(&self) -> f64 {
        self.account.smoothed
    }

    fn step(&mut self, input: Input, grant: &StormBounds, view: &View, orders: &mut Vec<Order>) {
        match input {
            Input::Told { events, linked } => {
                if linked {
                    self.gone_ns = u64::MAX;
                }
                events.into_iter().for_each(|event| self.heed(event));
            }
            Input::Lost(look) => self.find_lost(&look),
            Input::Turn { look, plan_runs, suspension } => {
                self.turn(&look, plan_runs, suspension, view, orders);
            }
            Input::Interval { look, elapsed_ns, target_cpu_ns, hits } => {
                self.look(&look);
                if self.storm.note(self.account.running_ns() as f64, elapsed_ns, grant) {
                    self.storm_turned(orders);
                }
                self.account.close(elapsed_ns, target_cpu_ns, &hits, view);
            }
            Input::End => {
                self.ended = true;
                self.wanted = None;
            }
        }
        if !self.left.is_empty() {
            orders.push(Order::LetGo(std::mem::take(&mut self.left)));
        }
    }
}

#[cfg(test)]
mod tests;
