//! Replay: what a policy would have recorded of a trace in which every operation was recorded.
//!
//! A trace does not feel the policy that is replayed over it, so replay carries a model of what recording costs and of
//! the queue that the cost makes. Every result names it ([`CostModel::label`]): it is a model, not a measurement.
//! The queue: recording adds work; work waits in a backlog that drains with whatever capacity the traced run left idle,
//! and an operation that begins meanwhile waits for it. For one server this is exact for work-conserving service: the
//! difference of the two runs' workloads can shrink only while the faster run is idle. For more servers the backlog is
//! taken as spread evenly.
//!
//! Arrivals stay where the trace has them (an open loop): users who would wait and come back later do not.
//! Deterministic by seed, and draws are the same for all policies, so that policies are compared on paired luck.

pub mod compare;
mod queue;
pub mod recorded;
mod render;
pub mod score;

use super::budget::OperationBudget;
use super::cycle::CycleReport;
use super::decision::{ClassNumbers, Decision, Totals, decide, threshold};
use super::{
    AdaptConfig, Adapter, ClassWindow, OperationClassId, PolicyKind, WindowSummary, config::ConfigError,
};
use crate::stats::moments::Moments;
use queue::Queue;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;

pub use render::render_text;

/// One operation of a full trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operation {
    /// Its class.
    pub class: OperationClassId,
    /// Begin, s from any origin.
    pub begin_s: f64,
    /// Response time, s.
    pub duration_s: f64,
    /// The independent measure, in its own unit.
    pub measure: f64,
}

/// What recording costs, and who pays: calibrated or assumed, as the label says.
#[derive(Debug, Clone, PartialEq)]
pub struct CostModel {
    /// Where the figures come from; shown with every result.
    pub label: String,
    /// CPU time of recording an operation, s, whatever its length.
    pub record_s: f64,
    /// CPU time of recording per second of the operation (inner calls come with its length).
    pub record_share: f64,
    /// CPU time of screening an operation, recorded or not, s.
    pub screen_s: f64,
    /// What an operation that is not recorded pays while recording is on, as a share of the price of recording it: traps of
    /// inner functions, which are attached for all.
    pub trap_share: f64,
    /// Operations that the target can work on at the same time.
    pub servers: u32,
    /// The trace was made while every operation was recorded at these prices: durations carry them.
    pub trace_carries_cost: bool,
}

impl CostModel {
    fn record_of(&self, duration_s: f64) -> f64 {
        self.record_s + self.record_share * duration_s
    }

    fn bare(&self, duration_s: f64) -> f64 {
        if self.trace_carries_cost {
            ((duration_s - self.record_s - self.screen_s) / (1.0 + self.record_share)).max(0.0)
        } else {
            duration_s
        }
    }
}

/// Windows that a replay goes through at most: a year of seconds.
const MAX_WINDOWS: u64 = 31_536_000;

/// Why a trace cannot be replayed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// No operation.
    #[error("the trace has no operation")]
    Empty,
    /// Times that are not numbers or run backwards.
    #[error(
        "operation {index} begins at {begin_s} s and lasts {duration_s} s: times must be finite, durations 0 or more, and operations sorted by begin"
    )]
    Times {
        /// Position in the trace, from 0.
        index: usize,
        /// Its begin.
        begin_s: f64,
        /// Its duration.
        duration_s: f64,
    },
    /// A trace that is too long to be one: a clock that jumped.
    #[error("the trace spans {0:.0} s, more than {MAX_WINDOWS} windows: does its clock jump?")]
    TooLong(f64),
    /// A cost that is not a number or negative, or no server.
    #[error("the cost model '{0}' has a cost below 0 or no server")]
    Model(String),
    /// Settings of the policy.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// What a policy did over a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The policy.
    pub policy: PolicyKind,
    /// Label of the cost model.
    pub model: String,
    /// Per operation of the trace: recorded.
    pub recorded: Vec<bool>,
    /// Per operation of the trace: stretch of its class at its begin.
    pub stretches: Vec<u64>,
    /// Cycles that ended.
    pub cycles: Vec<CycleReport>,
    /// End of each of them, s in the trace's time.
    pub cycle_ends_s: Vec<f64>,
    /// Mean over windows of the rate ordered, recorded / all operations (0 while monitoring is off).
    pub ordered_rate: f64,
    /// CPU time of recording, s.
    pub record_cpu_s: f64,
    /// CPU time of screening, and of traps in operations that are not recorded, s.
    pub screen_cpu_s: f64,
    /// Mean response time with the policy, by the model, s.
    pub mean_response_s: f64,
    /// Mean response time without any monitoring, s.
    pub bare_response_s: f64,
    /// Time from the first begin to the last end in the model, s.
    pub length_s: f64,
    /// Windows in which the budget lowered the rate.
    pub limited_windows: u64,
}

impl Run {
    /// Recorded operations.
    #[must_use]
    pub fn sample(&self) -> u64 {
        self.recorded.iter().filter(|r| **r).count() as u64
    }

    /// Recorded / all operations.
    #[must_use]
    pub fn average_rate(&self) -> f64 {
        self.sample() as f64 / self.recorded.len().max(1) as f64
    }

    /// CPU seconds per second that monitoring took.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        (self.record_cpu_s + self.screen_cpu_s) / self.length_s
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct ClassState {
    population: Moments,
    sample: Moments,
    measure: Moments,
    window_cost_s: f64,
    counted: u32,
    sampled: u32,
}

/// Replays `kind` over a trace. `cpu_per_s` is the budget of monitoring in CPU seconds per second, if there is one.
///
/// # Errors
/// A trace, model or setting that is no good; see [`ReplayError`].
pub fn replay(
    trace: &[Operation],
    kind: PolicyKind,
    config: &AdaptConfig,
    model: &CostModel,
    cpu_per_s: Option<f64>,
    seed: u64,
) -> Result<Run, ReplayError> {
    check(trace, model, config)?;
    let mut replay = Replay::new(trace, kind, config, model, cpu_per_s, seed)?;
    for (index, operation) in trace.iter().enumerate() {
        replay.until(operation.begin_s);
        replay.begin(index);
    }
    replay.until(f64::INFINITY);
    Ok(replay.finish())
}

fn check(trace: &[Operation], model: &CostModel, config: &AdaptConfig) -> Result<(), ReplayError> {
    if trace.is_empty() {
        return Err(ReplayError::Empty);
    }
    let costs = [model.record_s, model.record_share, model.screen_s, model.trap_share];
    if model.servers == 0 || !costs.iter().all(|c| c.is_finite() && *c >= 0.0) {
        return Err(ReplayError::Model(model.label.clone()));
    }
    let mut last = f64::NEG_INFINITY;
    for (index, o) in trace.iter().enumerate() {
        if !(o.begin_s.is_finite() && o.begin_s >= last && o.duration_s.is_finite() && o.duration_s >= 0.0) {
            return Err(ReplayError::Times { index, begin_s: o.begin_s, duration_s: o.duration_s });
        }
        last = o.begin_s;
    }
    let span_s = trace.iter().map(|o| o.begin_s + o.duration_s).fold(last, f64::max) - trace[0].begin_s;
    if span_s / config.revise_s > MAX_WINDOWS as f64 {
        return Err(ReplayError::TooLong(span_s));
    }
    Ok(())
}

struct Replay<'a> {
    trace: &'a [Operation],
    model: &'a CostModel,
    cpu_per_s: Option<f64>,
    adapter: Adapter,
    rng: StdRng,
    queue: Queue,
    classes: BTreeMap<OperationClassId, ClassState>,
    totals: Totals,
    quota_ns: u64,
    window_end_s: f64,
    /// Spent beyond what was allowed so far, s: prices are expectations, and the next window pays the difference.
    debt_s: f64,
    window_spent_s: f64,
    windows: u64,
    recorded: u64,
    rate_sum: f64,
    responses: Moments,
    bare: Moments,
    run: Run,
}

impl<'a> Replay<'a> {
    fn new(
        trace: &'a [Operation],
        kind: PolicyKind,
        config: &AdaptConfig,
        model: &'a CostModel,
        cpu_per_s: Option<f64>,
        seed: u64,
    ) -> Result<Self, ReplayError> {
        let bare: Moments = trace.iter().map(|o| model.bare(o.duration_s)).collect();
        let first = cpu_per_s.map(|cpu_per_s| OperationBudget {
            cpu_per_s,
            record_s: model.record_of(bare.mean()),
            screen_s: model.screen_s,
        });
        let adapter = Adapter::new(kind, config.clone(), first.as_ref())?;
        let quota_ns = adapter.orders().switch(config).quota_ns;
        Ok(Self {
            trace,
            model,
            cpu_per_s,
            adapter,
            rng: StdRng::seed_from_u64(seed),
            queue: Queue::new(trace[0].begin_s, model.servers),
            classes: BTreeMap::new(),
            totals: Totals::default(),
            quota_ns,
            window_end_s: trace[0].begin_s + config.revise_s,
            debt_s: 0.0,
            window_spent_s: 0.0,
            windows: 0,
            recorded: 0,
            rate_sum: 0.0,
            responses: Moments::default(),
            bare,
            run: Run {
                policy: kind,
                model: model.label.clone(),
                recorded: vec![false; trace.len()],
                stretches: vec![0; trace.len()],
                cycles: Vec::new(),
                cycle_ends_s: Vec::new(),
                ordered_rate: 0.0,
                record_cpu_s: 0.0,
                screen_cpu_s: 0.0,
                mean_response_s: 0.0,
                bare_response_s: bare.mean(),
                length_s: 0.0,
                limited_windows: 0,
            },
        })
    }

    /// Ends of operations and of windows up to a time; at the end of the trace, until nothing is in flight.
    fn until(&mut self, time_s: f64) {
        loop {
            let end_s = self.queue.next_end_s();
            if end_s.is_none() && time_s.is_infinite() {
                // The last window is cut where the trace ends.
                return;
            }
            let next = end_s.unwrap_or(f64::INFINITY).min(self.window_end_s);
            if next > time_s {
                return;
            }
            if self.window_end_s <= end_s.unwrap_or(f64::INFINITY) {
                self.end_window();
            } else if let Some((index, response_s)) = self.queue.pop_end() {
                self.end(index, response_s);
            }
        }
    }

    fn begin(&mut self, index: usize) {
        let o = &self.trace[index];
        let orders = self.adapter.orders().of(o.class);
        let mut switch = self.adapter.orders().switch(self.adapter.config());
        switch.quota_ns = self.quota_ns;
        let state = self.classes.entry(o.class).or_default();
        let mut numbers = ClassNumbers {
            threshold: threshold(orders.rate),
            // OK because the cast saturates.
            price_ns: (orders.price_s * 1e9) as u64,
            population: state.counted,
            sample: state.sampled,
        };
        // One draw an operation, used or not: policies are compared on the same luck.
        let draw = self.rng.random::<u32>();
        let recorded = decide(&mut switch, &mut self.totals, &mut numbers, draw) == Decision::Record;
        self.quota_ns = switch.quota_ns;
        (state.counted, state.sampled) = (numbers.population, numbers.sample);
        let bare_s = self.model.bare(o.duration_s);
        let record_s = if recorded { self.model.record_of(bare_s) } else { 0.0 };
        let trapped = switch.monitoring && !recorded;
        let trap_s = if trapped { self.model.trap_share * self.model.record_of(bare_s) } else { 0.0 };
        let screen_s = self.model.screen_s + trap_s;
        state.window_cost_s += record_s;
        self.run.record_cpu_s += record_s;
        self.run.screen_cpu_s += screen_s;
        self.window_spent_s += record_s + screen_s;
        self.run.recorded[index] = recorded;
        self.recorded += u64::from(recorded);
        self.run.stretches[index] = orders.stretch;
        self.queue.begin(index, o.begin_s, bare_s, record_s + screen_s);
    }

    fn end(&mut self, index: usize, response_s: f64) {
        let o = &self.trace[index];
        let state = self.classes.entry(o.class).or_default();
        state.population.push(response_s * 1e9);
        self.responses.push(response_s);
        if self.run.recorded[index] {
            state.sample.push(response_s * 1e9);
            state.measure.push(o.measure);
        }
    }

    fn end_window(&mut self) {
        let length_s = self.adapter.config().revise_s;
        let orders = self.adapter.orders();
        let monitoring = orders.monitoring;
        self.windows += 1;
        let mut summary = WindowSummary { length_s, monitoring, classes: Vec::new() };
        let (mut rated, mut counted) = (0.0, 0.0);
        for (class, state) in &mut self.classes {
            if state.population.n() > 0 || state.window_cost_s > 0.0 {
                rated += orders.of(*class).rate * state.population.n() as f64;
                counted += state.population.n() as f64;
                summary.classes.push(ClassWindow {
                    class: *class,
                    population: std::mem::take(&mut state.population),
                    sample: std::mem::take(&mut state.sample),
                    measure: std::mem::take(&mut state.measure),
                    cost_s: std::mem::take(&mut state.window_cost_s),
                });
            }
        }
        if monitoring {
            self.rate_sum += if counted > 0.0 { rated / counted } else { orders.default.rate };
        }
        let budget = self.cpu_per_s.map(|cpu_per_s| {
            self.debt_s = (self.debt_s + self.window_spent_s - cpu_per_s * length_s).max(0.0);
            let record_s = if self.recorded > 0 {
                self.run.record_cpu_s / self.recorded as f64
            } else {
                self.model.record_of(self.bare.mean())
            };
            OperationBudget {
                cpu_per_s: (cpu_per_s - self.debt_s / length_s).max(0.0),
                record_s,
                screen_s: self.model.screen_s,
            }
        });
        self.window_spent_s = 0.0;
        let step = self.adapter.step(&summary, budget.as_ref());
        self.quota_ns = step.orders.switch(self.adapter.config()).quota_ns;
        self.run.limited_windows += u64::from(step.limited);
        if step.new_cycle {
            self.totals = Totals::default();
            self.classes.values_mut().for_each(|c| (c.counted, c.sampled) = (0, 0));
        }
        if let Some(report) = step.release {
            self.run.cycles.push(report);
            self.run.cycle_ends_s.push(self.window_end_s);
        }
        self.window_end_s += length_s;
    }

    fn finish(mut self) -> Run {
        self.run.ordered_rate = if self.windows > 0 {
            self.rate_sum / self.windows as f64
        } else {
            self.adapter.orders().default.rate
        };
        self.run.mean_response_s = self.responses.mean();
        self.run.length_s = (self.queue.last_end_s() - self.trace[0].begin_s).max(1e-9);
        self.run
    }
}
