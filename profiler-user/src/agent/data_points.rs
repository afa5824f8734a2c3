//! Recorded calls of functions that models are made of (`--model`), by the decade of each input: what the run is told of them.

mod taken;

use super::Agent;
use super::class::LiveClass;
use super::live_groups::{LiveGroups, Named, Regrouped};
use super::shared_points::SharedPoints;
use crate::config::{InputSpec, InputType, InputsSpec, RunConfig};
use crate::inspect::{Pattern, Prototype};
use crate::models::LiveFunction;
use profiler_core::class::ClassId;
use profiler_core::models::Value;
use profiler_core::recording::{EventRow, WordMeta, WordRow};
use profiler_core::run::view::PointsView;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use taken::TakenWords;

/// A decade that holds less than this part of the calls is of rare inputs: waiting for it would have all calls recorded.
const LEAST_PART: f64 = 0.01;
/// Combinations of decades that are told apart.
const MOST: usize = 64;
/// Words of a function that are told apart.
const WORDS: usize = 6;
/// Of a register or word that is not an input, or could not be read.
const NOT_READ: u8 = u8::MAX;

/// The decade of each argument register.
type OfRegisters = [u8; 6];
/// The decade of each word that is an input.
type OfWords = [u8; WORDS];

/// What is known of the function of a class.
#[derive(Debug, Clone, Copy)]
struct Known<'a> {
    id: ClassId,
    module: &'a str,
    symbol: &'a str,
    name: &'a str,
    aliases: &'a [String],
    /// Registers that its code may make use of, a bit for each; `None`: that is not known.
    parameters: Option<u8>,
    /// Its parameters by debug information; `None`: they are not known.
    prototype: Option<&'a Prototype>,
}

impl<'a> From<&'a LiveClass> for Known<'a> {
    fn from(class: &'a LiveClass) -> Self {
        Self {
            id: class.id,
            module: &class.candidate.module,
            symbol: &class.candidate.symbol,
            name: &class.candidate.name,
            aliases: &class.candidate.aliases,
            parameters: class.code.parameters,
            prototype: class.code.prototype.as_ref(),
        }
    }
}

/// A word that is an input and a number.
#[derive(Debug)]
struct WordInput {
    /// Those of several places may have one name.
    numbers: Vec<u32>,
    kind: InputType,
}

/// Calls of one class.
#[derive(Debug, Default)]
struct Counted {
    /// How each register is read that is an input and a number.
    numbers: [Option<InputType>; 6],
    words: Vec<WordInput>,
    calls: u64,
    by_decades: HashMap<(OfRegisters, OfWords), u64>,
}

/// See the [module](self).
pub(super) struct DataPoints {
    /// Of each decade; 0: as many as can be had.
    wanted: u32,
    patterns: Vec<Pattern>,
    inputs: Vec<InputsSpec>,
    /// Words of functions: number and name.
    words: Vec<(u32, String)>,
    taken: TakenWords,
    /// `None`: no model is made of it.
    classes: BTreeMap<ClassId, Option<Counted>>,
    /// Of functions that are held against models.
    pub shared: SharedPoints,
    /// Of functions that models are made of.
    groups: LiveGroups,
}

impl DataPoints {
    /// Of the functions that were named. Patterns that make no sense were refused before.
    pub fn new(config: &RunConfig, now_ns: u64) -> Self {
        let models = &config.models;
        let pattern = |text: &String| Pattern::parse(text).ok();
        Self {
            wanted: models.wanted(),
            patterns: models.patterns.iter().filter_map(pattern).collect(),
            inputs: models.inputs.clone(),
            words: Vec::new(),
            taken: TakenWords::default(),
            classes: BTreeMap::new(),
            shared: SharedPoints::default(),
            groups: LiveGroups::new(config, now_ns),
        }
    }

    /// Functions have these words.
    pub fn name_words(&mut self, words: &[WordMeta]) {
        let own = words.iter().filter(|word| word.operation.is_none());
        self.words = own.map(|word| (word.word, word.name.clone())).collect();
    }

    /// Inputs are these from now on: registers were found of those that were named as parameters.
    pub fn name_inputs(&mut self, inputs: Vec<InputsSpec>, classes: &[LiveClass]) {
        self.name_inputs_of(inputs, classes.iter().map(Known::from));
    }

    /// What was counted by other inputs counts no more.
    fn name_inputs_of<'a>(&mut self, inputs: Vec<InputsSpec>, classes: impl Iterator<Item = Known<'a>>) {
        let is_other = |class: &Known<'_>| named(&self.inputs, class) != named(&inputs, class);
        let others: BTreeSet<ClassId> = classes.filter(is_other).map(|class| class.id).collect();
        self.inputs = inputs;
        self.classes.retain(|class, _| !others.contains(class));
        self.taken.forget(&others);
        self.groups.forget(&others);
    }

    /// Whether anything is to be counted.
    pub fn is_idle(&self) -> bool {
        self.wanted == 0 || self.patterns.is_empty()
    }

    /// These calls were recorded, and these words taken, since the last time.
    fn turn<'a>(&mut self, calls: &[EventRow], words: &[WordRow], known: impl Fn(u32) -> Option<Known<'a>>) {
        for row in words.iter().filter(|row| row.operation.is_none()) {
            known(row.class_id).iter().for_each(|class| self.note_word(row, class));
        }
        for (key, registers) in self.taken.waiting() {
            let words = self.taken.remove(&key);
            if let Some(Some(counted)) = self.classes.get_mut(&ClassId(key.2)) {
                counted.note(registers, words);
            }
        }
        for row in calls {
            known(row.class_id).iter().for_each(|class| self.note(row, class));
        }
        self.taken.prune();
    }

    /// A call was recorded.
    fn note(&mut self, row: &EventRow, class: &Known<'_>) {
        let Self { patterns, inputs, words, taken, classes, groups, .. } = self;
        let function = || LiveFunction::new(named(inputs, class), class.prototype, class.parameters);
        let Some(counted) = counted(classes, patterns, words, class, function) else { return };
        let (key, registers) = ((row.time_ns, row.tid, row.class_id), counted.registers(row.args));
        if counted.words.is_empty() {
            counted.note(registers, [NOT_READ; WORDS]);
        } else if taken.has(&key, counted.words.len()) {
            counted.note(registers, taken.remove(&key));
        } else {
            taken.wait(key, registers);
        }
        groups.note(class.id, row, function);
    }

    /// A word was taken with a call.
    fn note_word(&mut self, row: &WordRow, class: &Known<'_>) {
        let Self { patterns, inputs, words, taken, classes, .. } = self;
        let function = || LiveFunction::new(named(inputs, class), class.prototype, class.parameters);
        let Some(counted) = counted(classes, patterns, words, class, function) else { return };
        for (i, word) in counted.words.iter().enumerate().filter(|(_, word)| word.numbers.contains(&row.word))
        {
            let decade = row.value.map_or(NOT_READ, |value| decade(word.kind.value(value)));
            taken.put((row.begin_ns, row.tid, row.class_id), i, decade);
        }
    }

    /// What the run is told of a class.
    pub fn of(&self, class: ClassId) -> PointsView {
        let own = self.own(class);
        // Until it has its data points a frequency that others have would keep them from it.
        let group_hz = if own.is_enough() { self.groups.hz(class) } else { 0.0 };
        PointsView { shared_hz: self.shared.of(class).max(group_hz), ..own }
    }

    /// Its data points.
    fn own(&self, class: ClassId) -> PointsView {
        let counted = self.classes.get(&class).and_then(Option::as_ref);
        counted.map(|counted| counted.points(self.wanted)).unwrap_or_default()
    }

    /// Groups functions that have their data points. Returned is what is to be told.
    pub fn group(&mut self, now_ns: u64, named: impl Fn(ClassId) -> Option<Named>) -> Vec<Regrouped> {
        let Self { classes, groups, wanted, .. } = self;
        let points = |class: ClassId| classes.get(&class)?.as_ref().map(|counted| counted.points(*wanted));
        groups.turn(now_ns, |class| points(class).is_some_and(|points| points.is_enough()), named)
    }
}

/// Calls of the function of a class; `None`: no model is made of it. `words`: number and name; `function` says what its inputs are.
fn counted<'c>(
    classes: &'c mut BTreeMap<ClassId, Option<Counted>>,
    patterns: &[Pattern],
    words: &[(u32, String)],
    class: &Known<'_>,
    function: impl FnOnce() -> LiveFunction,
) -> Option<&'c mut Counted> {
    let new = || {
        let is_modelled = patterns.iter().any(|pattern| is_named(pattern, class));
        is_modelled.then(|| Counted::new(&function(), words))
    };
    classes.entry(class.id).or_insert_with(new).as_mut()
}

/// A pattern names the function of a class.
fn is_named(pattern: &Pattern, class: &Known<'_>) -> bool {
    let file = class.module.rsplit('/').next().unwrap_or(class.module);
    let names = [class.symbol, class.name].into_iter().chain(class.aliases.iter().map(String::as_str));
    pattern.matches_module(file) && names.into_iter().any(|name| pattern.matches_symbol(name))
}

/// The inputs that were named for it; `None`: none were.
fn named<'a>(inputs: &'a [InputsSpec], class: &Known<'_>) -> Option<&'a [InputSpec]> {
    inputs.iter().find(|spec| is_named(&spec.pattern, class)).map(|spec| &spec.inputs[..])
}

/// Decade of a number: 1 of 1 to 9; 0 of what is below.
fn decade(value: Value) -> u8 {
    let number = match value {
        Value::Signed(number) => u64::try_from(number).unwrap_or(0),
        Value::Unsigned(number) => number,
        Value::Category(_) | Value::Missing => return NOT_READ,
    };
    // OK because it is at most 20.
    number.checked_ilog10().map_or(0, |power| power as u8 + 1)
}

impl Counted {
    /// Of a function with these inputs; `words` are taken: number and name.
    fn new(function: &LiveFunction, words: &[(u32, String)]) -> Self {
        let of_name = |(name, kind): (&str, InputType)| {
            let numbers = words.iter().filter(|(_, its)| *its == name).map(|(number, _)| *number).collect();
            WordInput { numbers, kind }
        };
        // What is no word is a parameter that nobody has found.
        let is_taken = |word: &WordInput| !word.numbers.is_empty();
        let words = function.words().map(of_name).filter(is_taken).take(WORDS).collect();
        Self { numbers: function.numbers(), words, ..Self::default() }
    }

    fn registers(&self, args: [Option<u64>; 6]) -> OfRegisters {
        let mut decades = [NOT_READ; 6];
        for ((own, kind), register) in decades.iter_mut().zip(self.numbers).zip(args) {
            if let (Some(kind), Some(register)) = (kind, register) {
                *own = decade(kind.value(register));
            }
        }
        decades
    }

    fn note(&mut self, registers: OfRegisters, words: OfWords) {
        let decades = (registers, words);
        self.calls += 1;
        let is_full = self.by_decades.len() >= MOST;
        if !is_full || self.by_decades.contains_key(&decades) {
            *self.by_decades.entry(decades).or_default() += 1;
        }
    }

    fn points(&self, wanted: u32) -> PointsView {
        let least_calls = LEAST_PART * self.calls as f64;
        let usual = self.by_decades.values().filter(|calls| **calls as f64 >= least_calls);
        let (decades, least) = usual.fold((0, u64::MAX), |(n, least), calls| (n + 1, least.min(*calls)));
        PointsView { wanted, decades, least: if decades == 0 { 0 } else { least }, shared_hz: 0.0 }
    }
}

impl Agent {
    /// These calls were recorded, and these words taken, since the last time.
    pub(super) fn note_data_points(&mut self, calls: &[EventRow], words: &[WordRow]) {
        if self.data_points.is_idle() {
            return;
        }
        let classes = self.attach.classes();
        self.data_points.turn(calls, words, |id| classes.get(id as usize).map(Known::from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TargetConfig;
    use profiler_core::recording::{CallContext, CallPlace, WordStatus};

    #[test]
    fn the_sparsest_decade_counts_and_rare_inputs_do_not() {
        let size = Some(InputType::Size);
        let mut counted = Counted { numbers: [None, size, None, None, None, None], ..Counted::default() };
        let call = |n: u64| [Some(0x7fff_0000_0000 + n * n), Some(n), None, None, None, None];
        let note = |counted: &mut Counted, args| counted.note(counted.registers(args), [NOT_READ; WORDS]);
        // 1,000 calls of 10 to 99, 100 of 1,000 to 1,099, one of a million.
        (0..1_000).for_each(|i| note(&mut counted, call(10 + i % 90)));
        (0..100).for_each(|i| note(&mut counted, call(1_000 + i)));
        note(&mut counted, call(1_000_000));
        assert_eq!(counted.points(200), PointsView { wanted: 200, decades: 2, least: 100, shared_hz: 0.0 });
        assert_eq!(
            Counted::default().points(200),
            PointsView { wanted: 200, decades: 0, least: 0, shared_hz: 0.0 }
        );
        // Registers that take any value are bounded.
        let mut wild = Counted { numbers: [size; 6], ..Counted::default() };
        (0..10_000_u64).for_each(|i| note(&mut wild, [1, 3, 7, 11, 13, 17].map(|k| Some(1 << (i * k % 60)))));
        assert!(wild.by_decades.len() <= MOST && wild.calls == 10_000);
    }

    /// A call with these registers.
    fn row(args: [Option<u64>; 6], ns: u64) -> EventRow {
        EventRow {
            time_ns: 1,
            class_id: 0,
            pid: 1,
            tid: 1,
            duration_ns: Some(ns),
            args,
            nested_cost_ns: Some(0),
            place: CallPlace::default(),
            context: CallContext::default(),
        }
    }

    fn class<'a>(id: u32, symbol: &'a str, prototype: Option<&'a Prototype>) -> Known<'a> {
        let module = "/usr/lib/libwork.so.1";
        Known { id: ClassId(id), module, symbol, name: symbol, aliases: &[], parameters: None, prototype }
    }

    /// Of a run with `--model '*'` and these inputs.
    fn points(inputs: &[&str]) -> DataPoints {
        let mut config = RunConfig::new(TargetConfig::Process(1));
        config.models.patterns = vec!["*".to_owned()];
        config.models.inputs = inputs.iter().map(|text| text.parse().unwrap()).collect();
        DataPoints::new(&config, 0)
    }

    #[test]
    fn bits_above_a_parameter_a_category_and_variable_arguments_make_no_decades() {
        let mut all = points(&[]);
        let types = ["mode=arg0:category,n=arg1:u32,p=arg2:pointer", "n=arg1:i8", "format=arg0:pointer,..."];
        let types = types.map(|text| text.parse::<Prototype>().unwrap());
        for i in 0..2_000_u64 {
            // What a caller left above, over all decades.
            let above = u64::MAX.unbounded_shl(32 + (i % 32) as u32);
            let own =
                row([Some(above | (i % 2_000)), Some(above | (1 + i % 50)), Some(i), None, None, None], 300);
            for (id, prototype) in (1..).zip(&types) {
                all.note(&own, &class(id, "f", Some(prototype)));
            }
            all.note(&own, &class(4, "f", None));
        }
        let decades = |id| all.own(ClassId(id)).decades;
        assert_eq!([1, 2, 3].map(decades), [2, 2, 1], "1 to 9 and 10 to 50");
        assert!(decades(4) > 2, "nobody knows the types of its registers");
        assert_eq!(decade(Value::Signed(-1)), 0);
    }

    #[test]
    fn only_functions_whose_inputs_changed_begin_anew() {
        let mut all = points(&["a:n=arg1", "plugin:b:len", "libw*:c:n=arg1", "c:n=arg2"]);
        let classes = [(1, "a"), (2, "b"), (3, "c"), (4, "d")].map(|(id, symbol)| class(id, symbol, None));
        let classes = classes
            .map(|own| if own.symbol == "b" { Known { module: "/opt/plugin.so", ..own } } else { own });
        let call = row([None, Some(100), Some(7), None, None, None], 300);
        (0..300).for_each(|_| classes.iter().for_each(|class| all.note(&call, class)));
        let counted = |all: &DataPoints| [1, 2, 3, 4].map(|id| all.own(ClassId(id)).least);
        assert_eq!(counted(&all), [300; 4]);
        let inputs = |texts: [&str; 4]| texts.map(|text| text.parse().unwrap()).to_vec();
        // The plugin was loaded: its parameter is in `arg1`. Of `c` the first that names it counts.
        let found = inputs(["a:n=arg1", "plugin:b:len=arg1:size", "libw*:c:n=arg1", "c:n=arg3"]);
        all.name_inputs_of(found, classes.iter().copied());
        assert_eq!(counted(&all), [300, 0, 300, 300]);
        all.note(&call, &classes[1]);
        assert_eq!(all.own(ClassId(2)).least, 1);
        let named_anew = inputs(["a:n=arg1", "plugin:b:len=arg1:size", "libw*:c:n=arg1:size", "c:n=arg3"]);
        all.name_inputs_of(named_anew, classes.iter().copied());
        assert_eq!(counted(&all), [300, 1, 0, 300]);
    }

    /// A word that was taken with the call that began then.
    fn word(number: u32, begin_ns: u64, value: Option<u64>) -> WordRow {
        WordRow {
            begin_ns,
            class_id: 0,
            operation: None,
            pid: 1,
            tid: 1,
            at_end: false,
            word: number,
            from_ns: begin_ns,
            until_ns: begin_ns,
            value,
            status: if value.is_some() { WordStatus::Read } else { WordStatus::Null },
            depth: 0,
        }
    }

    /// Its words are 0, of operations, and 3 and 4, of functions.
    fn with_words(inputs: &[&str]) -> DataPoints {
        let mut all = points(inputs);
        let meta = |(word, name, operation): (u32, &str, Option<u32>)| WordMeta {
            word,
            name: name.to_owned(),
            operation,
            ..WordMeta::default()
        };
        all.name_words(
            &[(0, "bytes", Some(0)), (3, "bytes", None), (4, "kind", None), (5, "left", None)].map(meta),
        );
        all
    }

    #[test]
    fn the_decades_of_words_count_as_those_of_registers_do() {
        let of = |inputs: &str| {
            let mut all = with_words(&[inputs]);
            let calls: Vec<EventRow> = (0..600)
                .map(|i| EventRow { time_ns: i, ..row([Some(7), None, None, None, None, None], 300) })
                .collect();
            // Two thirds of 10 to 99 bytes, the others of 1,000; what an operation took is no word of the call.
            let bytes = |i: u64| if i.is_multiple_of(3) { 1_000 } else { 10 + i % 90 };
            let taken: Vec<WordRow> = (0..600)
                .flat_map(|i| {
                    let of_operation = WordRow { operation: Some(1), ..word(3, i, Some(1 << (i % 40))) };
                    [of_operation, word(3, i, Some(bytes(i))), word(4, i, Some(i % 2 * 500))]
                })
                .collect();
            all.turn(&calls, &taken, |id| Some(class(id, "f", None)));
            let own = all.own(ClassId(0));
            assert_eq!(all.taken.kept(), 0, "what is counted is forgotten");
            (own.decades, own.least)
        };
        assert_eq!(of("f:n=bytes"), (2, 200));
        assert_eq!(of("f:n=bytes:u32,m=arg0,kind=kind:category"), (2, 200), "a category has no decades");
        assert_eq!(of("f:n=bytes,kind"), (4, 100));
        assert_eq!(of("f:m=arg0"), (1, 600));
        assert_eq!(of("f:len"), (1, 600), "a parameter that nobody has found");
    }

    #[test]
    fn a_call_waits_a_turn_for_the_words_of_its_end_and_without_them_is_of_no_decade() {
        let mut all = with_words(&["f:n=bytes,left"]);
        let known = |id| Some(class(id, "f", None));
        let call = |time_ns| EventRow { time_ns, ..row([None; 6], 300) };
        let counted = |all: &DataPoints| all.own(ClassId(0)).least;
        // Words at the begin of a call that goes on for turns.
        all.turn(&[], &[word(3, 1, Some(20)), word(3, 2, None)], known);
        all.turn(&[], &[], known);
        all.turn(&[call(1), call(3)], &[], known);
        assert_eq!(counted(&all), 0, "a word is still to come");
        all.turn(&[call(2)], &[word(5, 1, Some(8)), word(5, 2, Some(8))], known);
        let Some(Some(own)) = all.classes.get(&ClassId(0)) else { panic!("it is modelled") };
        let words: BTreeSet<[u8; 2]> = own.by_decades.keys().map(|(_, words)| [words[0], words[1]]).collect();
        let expected = [[2, 1], [NOT_READ, 1], [NOT_READ, NOT_READ]];
        assert_eq!((words, own.calls), (expected.into(), 3));
        // Other inputs: what was taken by the old ones counts no more.
        all.turn(&[call(4)], &[word(3, 4, Some(20)), word(3, 5, Some(20))], known);
        all.name_inputs_of(vec!["f:n=left".parse().unwrap()], [class(0, "f", None)].into_iter());
        all.turn(&[], &[], known);
        assert_eq!((all.taken.kept(), counted(&all)), (0, 0));
    }
}
