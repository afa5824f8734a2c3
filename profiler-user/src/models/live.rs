//! Models while a run goes on: of a bounded number of the calls that it has recorded so far.

use super::groups::Pace;
use super::piles::{SEED, input_of, registers, values_of};
use crate::config::InputSpec;
use profiler_core::models::{self, Calls, End, Model, NoModel, Taken};
use profiler_core::recording::EventRow;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Calls that are kept of each function: 112 bytes each.
const MOST_CALLS: usize = 2_048;

/// A recorded call, as models see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeptCall {
    args: [Option<u64>; 6],
    duration_ns: u64,
    cost_ns: u64,
}

/// Calls of a function that its model is made of.
#[derive(Debug, Clone, Default)]
pub struct CallSample(Vec<KeptCall>);

/// Some of the calls of a function: each that was shown is among the 2,048 with the same probability (Vitter 1985, algorithm R). Every k-th one would not do: inputs
/// may come round in turns.
#[derive(Debug)]
pub struct KeptCalls {
    sample: CallSample,
    /// All that were shown.
    seen: u64,
    context: Context,
    random: StdRng,
}

impl Default for KeptCalls {
    fn default() -> Self {
        let random = StdRng::seed_from_u64(SEED);
        Self { sample: CallSample::default(), seen: 0, context: Context::default(), random }
    }
}

/// The timed calls around a function's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Context {
    #[default]
    NotSeen,
    /// The class of all of them; `None`: there was none.
    One(Option<u32>),
    Several,
}

/// A function whose model is to be made.
#[derive(Debug, Clone, Default)]
pub struct LiveFunction {
    /// Its inputs; `None`: nobody named them, so that they are all registers that were kept.
    pub inputs: Option<Vec<InputSpec>>,
    /// Registers that it makes no use of, a bit for each.
    pub unused: u8,
}

impl KeptCalls {
    /// A call was recorded. Those that did not return are not kept.
    ///
    /// # Cost
    /// Some 20 ns.
    pub fn push(&mut self, row: &EventRow) {
        let Some(duration_ns) = row.duration_ns else { return };
        self.context = match (self.context, row.place.outer_class) {
            (Context::NotSeen, outer) => Context::One(outer),
            (Context::One(before), outer) if before == outer => Context::One(outer),
            _ => Context::Several,
        };
        self.seen += 1;
        let cost_ns = row.nested_cost_ns.unwrap_or(0);
        let call = KeptCall { args: row.args, duration_ns, cost_ns };
        let calls = &mut self.sample.0;
        if calls.len() < MOST_CALLS {
            calls.push(call);
            return;
        }
        let place = usize::try_from(self.random.random_range(0..self.seen)).ok();
        if let Some(place) = place.and_then(|place| calls.get_mut(place)) {
            *place = call;
        }
    }

    /// How many were shown.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The class of the timed call around them (the inner `None`: there was none). `None`: they are of several contexts, or there are none.
    #[must_use]
    pub fn context(&self) -> Option<Option<u32>> {
        match self.context {
            Context::One(outer) => Some(outer),
            Context::NotSeen | Context::Several => None,
        }
    }

    /// Those that are kept.
    #[must_use]
    pub fn sample(&self) -> CallSample {
        self.sample.clone()
    }
}

impl CallSample {
    /// The model of these calls, and over how many decades their inputs are.
    ///
    /// # Errors
    /// There is no model; the reason says why.
    ///
    /// # Cost
    /// Of [`models::fit`] with at most 204 cells.
    pub fn fit(&self, function: &LiveFunction) -> Result<(Model, Pace), NoModel> {
        let is_known = |k: usize| self.0.iter().any(|call| call.args.get(k).is_some_and(Option::is_some));
        let all = || registers(std::array::from_fn(is_known));
        let inputs = function.inputs.clone().unwrap_or_else(all);
        let mut calls = Calls::new(inputs.iter().map(|input| input_of(input, function.unused)).collect());
        for call in &self.0 {
            let (duration_ns, watching_ns) = (call.duration_ns as f64, call.cost_ns as f64);
            calls
                .push(&values_of(&inputs, call.args), Taken { duration_ns, watching_ns, end: End::Returned });
        }
        let model = models::fit(&calls, SEED)?;
        let decades = models::decades(&model, &calls);
        Ok((model, Pace { decades, calls_per_s: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::models::Class;
    use profiler_core::recording::{CallContext, CallPlace};

    /// A call of `arg1` units in this context.
    fn row(n: u64, ns: u64, outer: Option<u32>) -> EventRow {
        EventRow {
            time_ns: 1,
            class_id: 0,
            pid: 1,
            tid: 1,
            duration_ns: Some(ns),
            args: [Some(0x7fff_0000_0000 + 16 * n), Some(n), None, None, None, None],
            nested_cost_ns: Some(0),
            place: CallPlace { outer_class: outer, ..CallPlace::default() },
            context: CallContext::default(),
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_spread_over_the_run() {
        let mut kept = KeptCalls::default();
        assert_eq!(kept.context(), None);
        (0..200_000).for_each(|i| kept.push(&row(i, 1_000, None)));
        assert_eq!((kept.sample.0.len(), kept.seen()), (MOST_CALLS, 200_000));
        // As many of each tenth of the run: 205, with a standard deviation of 14.
        for tenth in 0..10 {
            let is_in = |call: &&KeptCall| call.args[1].is_some_and(|n| n / 20_000 == tenth);
            let own = kept.sample.0.iter().filter(is_in).count();
            assert!((140..270).contains(&own), "{own} of tenth {tenth}");
        }
        let cut = EventRow { duration_ns: None, ..row(1, 1, None) };
        kept.push(&cut);
        assert_eq!(kept.seen(), 200_000, "its time is not known");
    }

    #[test]
    fn calls_of_two_contexts_are_of_none() {
        let mut kept = KeptCalls::default();
        kept.push(&row(1, 10, Some(7)));
        assert_eq!(kept.context(), Some(Some(7)));
        kept.push(&row(1, 10, None));
        kept.push(&row(1, 10, Some(7)));
        assert_eq!(kept.context(), None);
    }

    #[test]
    fn the_model_is_that_of_all_calls() {
        let mut kept = KeptCalls::default();
        for i in 0..40_000_u64 {
            // 16 sizes from 100 on, one after the other: a sample of every 32nd call would have one of them.
            let n = (100.0 * 1.57_f64.powi((i * 7 % 16) as i32)) as u64;
            kept.push(&row(n, 300 + 5 * n + i % 13, None));
        }
        let function = LiveFunction { inputs: None, unused: 1 };
        let (model, pace) = kept.sample().fit(&function).unwrap();
        assert_eq!((model.class, pace.decades), (Class::Linear, 3), "{:?}", model.formula());
        assert!(model.inputs == ["arg1"], "an address is no input: {:?}", model.inputs);
        let named = LiveFunction {
            inputs: Some("f:n=arg1:size".parse::<crate::config::InputsSpec>().unwrap().inputs),
            unused: 0,
        };
        assert_eq!(kept.sample().fit(&named).unwrap().0.inputs, ["n"]);
        assert!(CallSample::default().fit(&named).is_err());
    }
}
