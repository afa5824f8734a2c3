//! Models while a run goes on: of a bounded number of the calls that it has recorded so far.

use super::groups::Pace;
use super::parameters::{of_parameters, prevented_by};
use super::piles::{SEED, input_of, values_of};
use crate::config::{InputSpec, InputType};
use crate::inspect::{ALL_ARGUMENTS, Prototype};
use profiler_core::cost::PRICE_DRIFT;
use profiler_core::models::{self, Calls, End, Kind, Model, NoModel, Taken};
use profiler_core::recording::EventRow;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Calls that are kept of each function: 112 bytes each.
const MOST_CALLS: usize = 2_048;

/// Part of it to which the host's price of a call's probes is known in a target, as one standard error: half of the drift that reports believe it to.
const PRICE_KNOWN_TO: f64 = PRICE_DRIFT / 2.0;

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

/// A function whose model is to be made: it has the inputs that `tithe models` finds for it in the recording.
#[derive(Debug, Clone)]
pub struct LiveFunction {
    /// `None`: nobody named them.
    named: Option<Vec<InputSpec>>,
    /// Its parameters by debug information. `None`: they are not known.
    prototype: Option<Prototype>,
    /// Registers that it makes no use of, a bit for each.
    unused: u8,
}

impl LiveFunction {
    /// `named`: its inputs, where somebody named them; then nothing else counts. `prototype`: its parameters by debug information. `parameters`: registers
    /// that its code may make use of, a bit for each. `None`: that is not known.
    #[must_use]
    pub fn new(named: Option<&[InputSpec]>, prototype: Option<&Prototype>, parameters: Option<u8>) -> Self {
        let used = parameters.filter(|_| named.is_none()).unwrap_or(ALL_ARGUMENTS);
        Self {
            named: named.map(<[InputSpec]>::to_vec),
            prototype: prototype.cloned(),
            unused: ALL_ARGUMENTS & !used,
        }
    }

    /// A model can be made of it while the run goes on: no input is a word, which comes apart from its call, and its arguments are not variable.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        match &self.named {
            Some(inputs) => inputs.iter().all(|input| input.word.is_none()),
            None => prevented_by(self.prototype.as_ref()).is_none(),
        }
    }

    /// How each register is read that is an input and a number; several inputs in one register count as the first. A function of variable arguments has none: more
    /// calls would give it no model.
    #[must_use]
    pub fn numbers(&self) -> [Option<InputType>; 6] {
        let mut numbers = [None; 6];
        if self.named.is_none() && !self.is_modelled() {
            return numbers;
        }
        for spec in self.inputs([true; 6]) {
            let is_number = spec.word.is_none() && input_of(&spec, self.unused).kind == Kind::Number;
            if let Some(of) = numbers.get_mut(spec.argument).filter(|of| is_number && of.is_none()) {
                *of = Some(spec.kind);
            }
        }
        numbers
    }

    /// Its words that are inputs and numbers, by name, and how each is read.
    pub fn words(&self) -> impl Iterator<Item = (&str, InputType)> {
        let is_number = |spec: &&InputSpec| spec.input().kind == Kind::Number;
        let inputs = self.named.iter().flatten().filter(is_number);
        inputs.filter_map(|spec| Some((spec.word.as_deref()?, spec.kind)))
    }

    /// Its inputs, where these registers are known of any call.
    fn inputs(&self, known: [bool; 6]) -> Vec<InputSpec> {
        self.named.clone().unwrap_or_else(|| of_parameters(self.prototype.as_ref(), known))
    }
}

impl KeptCalls {
    /// A call was recorded. Those that did not return are not kept. Returned is whether it is the first one of a second context.
    ///
    /// # Cost
    /// Some 20 ns.
    pub fn push(&mut self, row: &EventRow) -> bool {
        let Some(duration_ns) = row.duration_ns else { return false };
        let had_one = self.context().is_some();
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
        } else {
            let place = usize::try_from(self.random.random_range(0..self.seen)).ok();
            if let Some(place) = place.and_then(|place| calls.get_mut(place)) {
                *place = call;
            }
        }
        had_one && self.context().is_none()
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
        let inputs = function.inputs(std::array::from_fn(is_known));
        let mut calls = Calls::new(inputs.iter().map(|input| input_of(input, function.unused)).collect());
        // The least is that of its own probes, unless each call had others inside.
        let least_ns = self.0.iter().map(|call| call.cost_ns).min().unwrap_or(0);
        for call in &self.0 {
            calls.watching_known_to(PRICE_KNOWN_TO * least_ns as f64);
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
    use crate::config::InputsSpec;
    use crate::inspect::ParameterKind;
    use profiler_core::models::Class;
    use profiler_core::recording::{CallContext, CallPlace};

    /// With the inputs of an `--input`.
    fn named(text: &str) -> LiveFunction {
        let spec: InputsSpec = text.parse().unwrap();
        LiveFunction::new(Some(&spec.inputs), None, Some(0))
    }

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
        (0..200_000).for_each(|i| {
            kept.push(&row(i, 1_000, None));
        });
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
        assert!(!kept.push(&row(1, 10, Some(7))));
        assert_eq!(kept.context(), Some(Some(7)));
        assert!(!kept.push(&row(1, 10, Some(7))));
        assert!(kept.push(&row(1, 10, None)), "the second context begins");
        assert!(!kept.push(&row(1, 10, Some(7))), "that is known");
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
        let function = LiveFunction::new(None, None, Some(0b11_1110));
        let (model, pace) = kept.sample().fit(&function).unwrap();
        assert_eq!((model.class, pace.decades), (Class::Linear, 3), "{:?}", model.formula());
        assert!(model.inputs == ["arg1"], "an address is no input: {:?}", model.inputs);
        let named = named("f:n=arg1:size");
        assert_eq!(kept.sample().fit(&named).unwrap().0.inputs, ["n"]);
        assert!(CallSample::default().fit(&named).is_err());
    }

    /// A caller leaves anything above a parameter's declared size.
    #[test]
    fn inputs_are_those_of_the_declaration() {
        let mut kept = KeptCalls::default();
        for i in 0..8_000_u64 {
            let n = (100.0 * 1.57_f64.powi((i * 7 % 16) as i32)) as u64;
            let (mode, above) = (i % 2, (i * 0x9e37_79b9) << 32);
            let args = [Some(above | mode), Some(above | n), None, None, None, None];
            kept.push(&EventRow { args, ..row(n, (300 + 5 * n) * (1 + 4 * mode) + i % 13, None) });
        }
        let of = |prototype: &str| LiveFunction::new(None, Some(&prototype.parse().unwrap()), None);
        let (model, _) = kept.sample().fit(&of("mode=arg0:category,n=arg1:u32")).unwrap();
        assert_eq!((model.class, &model.categories[..]), (Class::Linear, &["mode".to_owned()][..]));
        assert_eq!(model.critical.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["n"]);
        let (plain, variable) = (of("n=arg1:u32"), of("format=arg0:pointer,n=arg1:u32,..."));
        assert_eq!([&plain, &variable].map(LiveFunction::is_modelled), [true, false]);
        // Who names its inputs knows better.
        let known = LiveFunction { named: named("f:n=arg1:u32").named, ..variable };
        assert!(known.is_modelled() && !named("f:n=length").is_modelled());
    }

    #[test]
    fn numbers_are_counted_by_their_types_and_nothing_else_is() {
        let (long, u32) = (Some(InputType::Long), Some(InputType::Declared(ParameterKind::Unsigned(4))));
        let of = |prototype: &str, parameters| {
            LiveFunction::new(None, Some(&prototype.parse().unwrap()), parameters).numbers()
        };
        let all = "p=arg0:pointer,n=arg1:u32,mode=arg2:category,m=arg3:long,x=-:float";
        assert_eq!(of(all, None), [None, u32, None, long, None, None]);
        assert_eq!(of(all, Some(0b11)), [None, u32, None, None, None, None], "arg3 is not read");
        assert_eq!(of("n=arg0:u32,...", None), [None; 6]);
        assert_eq!(LiveFunction::new(None, None, Some(0b10)).numbers(), [None, long, None, None, None, None]);
        let some = named("f:n=arg1:u32,length=word:u32,low=arg1:u8,level=arg2:category,k=kind:category");
        assert_eq!(some.numbers(), [None, u32, None, None, None, None]);
        assert_eq!(some.words().collect::<Vec<_>>(), [("word", u32.unwrap())]);
    }
}
