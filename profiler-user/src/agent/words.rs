//! Words of the target: from what was named to the kernel's lists, and from what was taken to rows.
//!
//! `--word` is read by [`crate::config`], the memory by the kernel programs. Nothing is decided here: which words, where, was named.

use super::Agent;
use super::class::{LiveClass, Wish};
use crate::config::{Bounds, OperationSpec, WordBase, WordExpression, WordKind, WordsSpec};
use crate::inspect::{Function, Inspection, Pattern};
use crate::prober::word::{
    MAX_OBJECTS, MAX_WORDS, SOURCE_ADDRESS, SOURCE_ARGUMENT, SOURCE_OBJECT, SOURCE_RESULT, WORD_INTEGER,
    WORD_STRING,
};
use crate::prober::{Taking, TakingReader, Word, WordSpec, word_list};
use profiler_core::class::{ExitMode, RecordKind};
use profiler_core::cost::Price;
use profiler_core::recording::{WordMeta, WordRow, WordStatus};
use profiler_core::run::view::ClassPrices;
use std::ops::Range;

/// Takings that are read in one turn.
const DRAIN_LIMIT: usize = 100_000;
/// What a hit pays for a taking beside its words, ns, and for each word by what it reads: on the machine of docs/benchmarks.md
/// (`cargo xtask bench --only words`), rounded up. Corrected in place by what takings themselves tell (`TakingPrice`).
const TAKING_NS: f64 = 180.0;
const STEP_NS: f64 = 25.0;
const STRING_NS: f64 = 120.0;

/// One list: the words of one place and moment.
#[derive(Debug, Clone)]
pub struct List {
    /// As it was named.
    place: String,
    /// The functions; of an operation it means nothing.
    pattern: Option<Pattern>,
    operation: Option<u32>,
    at_end: bool,
    words: Range<usize>,
    /// Argument registers that it reads.
    arguments: u8,
    /// What a hit pays for it, ns.
    price_ns: f64,
}

/// All words of a run.
#[derive(Debug, Clone, Default)]
pub struct WordLists {
    lists: Vec<List>,
    words: Vec<(String, WordExpression)>,
    specs: Vec<WordSpec>,
}

/// What a word costs, ns.
fn price_ns(expression: &WordExpression) -> f64 {
    let steps = expression.dereferences.len() as f64 + 1.0;
    steps * STEP_NS + if expression.kind == WordKind::Length { STRING_NS } else { 0.0 }
}

impl WordLists {
    /// Brings what was named into lists.
    ///
    /// # Errors
    /// There are too many, an object is not taken anywhere, or a place cannot have what was named for it.
    pub fn new(asked: &[WordsSpec], operations: &[OperationSpec]) -> Result<Self, String> {
        let total: usize = asked.iter().map(|spec| spec.words.len()).sum();
        if total > MAX_WORDS as usize {
            return Err(format!(
                "--word: {total} words are named, and {MAX_WORDS} fit in all lists together: leave out {}, or take some in a second run",
                total - MAX_WORDS as usize
            ));
        }
        let mut all = Self::default();
        let mut seen: Vec<(&str, bool)> = Vec::new();
        for spec in asked {
            if seen.contains(&(&spec.place, spec.at_end)) {
                continue;
            }
            seen.push((&spec.place, spec.at_end));
            let same = |other: &&WordsSpec| (&other.place, other.at_end) == (&spec.place, spec.at_end);
            all.add(spec, asked.iter().filter(same), operations)?;
        }
        all.specs = all.compiled()?;
        Ok(all)
    }

    fn add<'a>(
        &mut self,
        place: &WordsSpec,
        of: impl Iterator<Item = &'a WordsSpec>,
        operations: &[OperationSpec],
    ) -> Result<(), String> {
        let wrong = |why: String| format!("--word '{}': {why}", place.text);
        let operation = (0..).zip(operations).find(|(_, spec)| spec.name == place.place);
        let pattern = match operation {
            Some(_) => None,
            None => Some(Pattern::parse(&place.place).map_err(|error| wrong(error.to_string()))?),
        };
        let first = self.words.len();
        for word in of.flat_map(|spec| &spec.words) {
            if self.words[first..].iter().any(|(name, _)| *name == word.name) {
                return Err(wrong(format!("two words of '{}' are called '{}'", place.place, word.name)));
            }
            if let Some((_, spec)) = operation {
                of_operation(spec, place.at_end, &word.name, &word.expression).map_err(wrong)?;
            }
            self.words.push((word.name.clone(), word.expression.clone()));
        }
        let own = &self.words[first..];
        let argument = |expression: &WordExpression| match expression.base {
            WordBase::Argument(k) => 1 << k,
            _ => 0,
        };
        self.lists.push(List {
            place: place.place.clone(),
            pattern,
            operation: operation.map(|(number, _)| number),
            at_end: place.at_end,
            words: first..self.words.len(),
            arguments: own.iter().fold(0, |set, (_, word)| set | argument(word)),
            price_ns: TAKING_NS + own.iter().map(|(_, word)| price_ns(word)).sum::<f64>(),
        });
        Ok(())
    }

    /// The kernel's form of each word; variables have no addresses yet.
    fn compiled(&self) -> Result<Vec<WordSpec>, String> {
        let mut objects: Vec<&str> = Vec::new();
        for (_, expression) in &self.words {
            if let WordBase::Object(name) = &expression.base
                && !objects.contains(&name.as_str())
            {
                objects.push(name);
            }
        }
        if objects.len() > MAX_OBJECTS as usize {
            return Err(format!(
                "--word: {} words are used as objects, and {MAX_OBJECTS} can be: write the chains of some out",
                objects.len()
            ));
        }
        for object in &objects {
            let mut taken = self.words.iter().filter(|(name, _)| name == object);
            let wide = WordKind::Integer { bytes: 8, signed: true, pointer: false };
            match (taken.next(), taken.next()) {
                (None, _) => {
                    return Err(format!(
                        "--word: no word is called '{object}', from which another one goes on; take it where it is known, like \
                         'accept:{object}=arg0'"
                    ));
                }
                (_, Some(_)) => {
                    return Err(format!(
                        "--word: two words are called '{object}', from which another one goes on: give them different names"
                    ));
                }
                (Some((_, expression)), None)
                    if !matches!(expression.kind, WordKind::Integer { bytes: 8, .. }) =>
                {
                    return Err(format!(
                        "--word: '{object}={expression}' is no address, and another word goes on from it: it takes 8 bytes, like '{object}={}'",
                        WordExpression { kind: wide, ..expression.clone() }
                    ));
                }
                _ => {}
            }
        }
        // OK because there are at most 16.
        let number = |name: &str| objects.iter().position(|object| *object == name).map(|k| k as u8);
        Ok(self.words.iter().map(|(name, expression)| compile(expression, number(name), &number)).collect())
    }

    /// Nothing was named.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Words of the longest list.
    pub fn longest(&self) -> u32 {
        // OK because all lists together have at most 64.
        self.lists.iter().map(|list| list.words.len() as u32).max().unwrap_or(0)
    }

    /// The lists of a function, at the begin and at the end. Of several patterns that name it the first counts.
    fn of_function(&self, function: &Function) -> [Option<&List>; 2] {
        let names = |list: &&List| list.pattern.as_ref().is_some_and(|p| super::select::matches(p, function));
        [false, true].map(|end| self.lists.iter().filter(names).find(|list| list.at_end == end))
    }

    /// Argument registers that the words of a function read.
    pub fn arguments(&self, function: &Function) -> u8 {
        self.of_function(function).into_iter().flatten().fold(0, |set, list| set | list.arguments)
    }

    /// Argument registers that the words of an operation read at its begin.
    pub fn arguments_of_operation(&self, operation: u32) -> u8 {
        let own = self.lists.iter().filter(|list| list.operation == Some(operation) && !list.at_end);
        own.fold(0, |set, list| set | list.arguments)
    }

    /// What a recorded operation pays for its words at most, ns.
    pub fn price_of_operations_ns(&self) -> f64 {
        let of = |operation| {
            let own = self.lists.iter().filter(|list| list.operation == Some(operation));
            own.map(|list| list.price_ns).sum::<f64>()
        };
        self.lists.iter().filter_map(|list| list.operation).map(of).fold(0.0, f64::max)
    }

    /// The kernel's lists of an operation, at the begin and at the end. `has_arguments`: a function begins it.
    pub fn of_operation(&self, operation: u32, has_arguments: bool) -> (u32, u32) {
        let lost = if has_arguments { 0 } else { ALL_LOST };
        let of = |end: bool, lost| {
            let own = |list: &&List| list.operation == Some(operation) && list.at_end == end;
            self.lists.iter().find(own).map_or(0, |list| list.packed(lost))
        };
        (of(false, lost), of(true, ALL_LOST))
    }

    /// What `meta.json` says of the words.
    pub fn meta(&self) -> Vec<WordMeta> {
        let of = |list: &List| {
            let words: Vec<WordMeta> = list
                .words
                .clone()
                .filter_map(|word| {
                    let (name, expression) = self.words.get(word)?;
                    Some(WordMeta {
                        // OK because there are at most 64.
                        word: word as u32,
                        name: name.clone(),
                        place: list.place.clone(),
                        at_end: list.at_end,
                        expression: expression.to_string(),
                        value: expression.kind.type_name().to_owned(),
                        operation: list.operation,
                    })
                })
                .collect();
            words
        };
        self.lists.iter().flat_map(of).collect()
    }

    /// Gives words their addresses.
    fn resolve(&mut self, inspection: &Inspection) -> Result<(), String> {
        for ((name, expression), spec) in self.words.iter().zip(&mut self.specs) {
            if let WordBase::Variable(variable) = &expression.base {
                let (address, _) = inspection.variable(variable).ok_or_else(|| {
                    format!(
                        "--word: '{name}={expression}': no global variable '{variable}' in the target; 'nm' lists those that it has as B, D, \
                         b or d"
                    )
                })?;
                spec.address = address;
            }
        }
        Ok(())
    }
}

/// Every argument register is lost.
const ALL_LOST: u8 = 0x3f;

impl List {
    fn packed(&self, lost: u8) -> u32 {
        // OK because all lists together have at most 64.
        word_list(self.words.start as u8, self.words.len() as u8, lost)
    }
}

/// An operation can have that word.
fn of_operation(
    spec: &OperationSpec,
    at_end: bool,
    name: &str,
    expression: &WordExpression,
) -> Result<(), String> {
    use crate::config::Bound;
    let begin = match &spec.bounds {
        Bounds::One(bound) | Bounds::Pair(bound, _) => bound,
    };
    if matches!(begin, Bound::Tracepoint { .. }) {
        return Err(format!(
            "the operation '{}' is bounded by tracepoints, which may come in the middle of another program of ours: name one that functions, \
             probes or system calls bound",
            spec.name
        ));
    }
    let is_function = matches!(begin, Bound::Function(_));
    match expression.base {
        WordBase::Argument(_) if at_end => Err(format!(
            "'{name}={expression}': the arguments are gone at the end of an operation: take it at the begin, and go on from it at the end: \
             '{}:object=arg0' and '{}@end:{name}=object->8'",
            spec.name, spec.name
        )),
        WordBase::Argument(_) if !is_function => Err(format!(
            "'{name}={expression}': only operations that a function begins have arguments; write an address, '&VARIABLE->0', or go on from a \
             word of a function of --record"
        )),
        WordBase::Result => Err(format!(
            "'{name}={expression}': only functions of --record have a result; name one instead of the operation '{}'",
            spec.name
        )),
        _ => Ok(()),
    }
}

/// The kernel's form of a word. `object`: its number, where others go on from it.
fn compile(
    expression: &WordExpression,
    object: Option<u8>,
    number: &impl Fn(&str) -> Option<u8>,
) -> WordSpec {
    let mut spec = WordSpec { object: object.map_or(0, |k| k + 1), ..WordSpec::default() };
    (spec.source, spec.number, spec.address) = match &expression.base {
        WordBase::Argument(k) => (SOURCE_ARGUMENT, *k, 0),
        WordBase::Result => (SOURCE_RESULT, 0, 0),
        WordBase::Address(address) => (SOURCE_ADDRESS, 0, *address),
        WordBase::Variable(_) => (SOURCE_ADDRESS, 0, 0),
        WordBase::Object(name) => (SOURCE_OBJECT, number(name).unwrap_or(0), 0),
    };
    // OK because there are at most four.
    spec.dereferences = expression.dereferences.len() as u8;
    let offsets = expression.dereferences.iter().chain(std::iter::once(&expression.behind));
    for (to, offset) in spec.offsets.iter_mut().zip(offsets) {
        *to = *offset;
    }
    (spec.kind, spec.bytes, spec.signed) = match expression.kind {
        WordKind::Integer { bytes, signed, .. } => (WORD_INTEGER, bytes, u8::from(signed)),
        WordKind::Length => (WORD_STRING, 8, 0),
    };
    spec
}

/// The words that a class takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassWords {
    /// The kernel's lists without what is lost at the site.
    begin: u32,
    end: u32,
    /// What the hits pay, ns.
    begin_ns: f64,
    end_ns: f64,
}

impl ClassWords {
    /// Lists for the kernel. `lost`: argument registers that do not hold what the caller passed.
    pub fn lists(self, lost: u8) -> (u32, u32) {
        let with = |list: u32| if list == 0 { 0 } else { list | word_list(0, 1, lost) & !0xffff };
        (with(self.begin), with(self.end))
    }

    /// Prices with those of the words.
    pub fn priced(self, prices: ClassPrices) -> ClassPrices {
        // Without an end that is seen there are no words at it.
        let end_ns = if prices.exit.ns > 0.0 { self.end_ns } else { 0.0 };
        ClassPrices {
            hit: prices.hit.plus(Price::fixed(self.begin_ns)),
            exit: prices.exit.plus(Price::fixed(end_ns)),
            ..prices
        }
    }
}

/// What is read of words while the run goes on.
#[derive(Default)]
pub(super) struct Words {
    pub lists: WordLists,
    pub reader: Option<TakingReader>,
}

impl Agent {
    /// Words of a class of recorded calls of that function, and what is to be said of them.
    pub(super) fn words_of(
        &self,
        function: &Function,
        wish: Wish,
        kind: RecordKind,
        exit: ExitMode,
    ) -> (ClassWords, Option<String>) {
        let lists = &self.words.lists;
        // A class that serves operations has none of its own.
        if kind != RecordKind::Record || !wish.by_kind || lists.is_empty() {
            return (ClassWords::default(), None);
        }
        let [begin, end] = lists.of_function(function);
        let seen = end.filter(|_| exit != ExitMode::None);
        let has_result = |list: &List| {
            list.words.clone().filter_map(|k| lists.words.get(k)).any(|(_, w)| w.base == WordBase::Result)
        };
        let note = match (end, seen) {
            (Some(_), None) => Some("its words at the end are not taken: its end is not seen".to_owned()),
            (_, Some(list)) if has_result(list) && exit != ExitMode::ReturnLink => {
                Some("its result is not known: its end is not seen by a return link".to_owned())
            }
            _ => None,
        };
        let words = ClassWords {
            begin: begin.map_or(0, |list| list.packed(0)),
            end: seen.map_or(0, |list| list.packed(0)),
            begin_ns: begin.map_or(0.0, |list| list.price_ns),
            end_ns: seen.map_or(0.0, |list| list.price_ns),
        };
        (words, note)
    }

    /// Tells the kernel the words, once what is named is mapped.
    ///
    /// # Errors
    /// There is no such variable.
    pub(super) fn set_words(&mut self) -> Result<(), String> {
        if self.words.lists.is_empty() {
            return Ok(());
        }
        self.words.lists.resolve(&self.inspection)?;
        self.attach
            .kernel()
            .set_words(&self.words.lists.specs)
            .map_err(|most| format!("--word: at most {most} words fit"))?;
        self.journal.meta.words = self.words.lists.meta();
        Ok(())
    }

    /// Takes what was taken out of the ring.
    pub(super) fn drain_words(&mut self) {
        let Some(reader) = &mut self.words.reader else { return };
        let mut rows = Vec::new();
        reader.drain(DRAIN_LIMIT, |taking| rows.extend(rows_of(&taking)));
        if !rows.is_empty() {
            self.journal.writer.send(rows);
        }
    }

    /// Patterns of words that name no function whose calls are recorded.
    pub(super) fn words_without_place(&self) -> Vec<(String, String)> {
        let has = |list: &List, class: &LiveClass| {
            let pattern = list.pattern.as_ref();
            class.kind == RecordKind::Record
                && class.role.is_none()
                && pattern.is_some_and(|p| super::select::matches(p, &class.code.function))
        };
        let lists = self.words.lists.lists.iter().filter(|list| list.operation.is_none());
        lists
            .filter(|list| !self.attach.classes().iter().any(|class| has(list, class)))
            .map(|list| {
                let why = "no function of that name is recorded, and no operation is called so: name it with --record as well";
                (format!("words at '{}'", list.place), why.to_owned())
            })
            .collect()
    }
}

fn rows_of(taking: &Taking) -> impl Iterator<Item = WordRow> + use<'_> {
    taking.words.iter().map(|(word, found)| {
        let (value, status, depth) = match *found {
            Word::Read(value) => (Some(value), WordStatus::Read, 0),
            Word::Null(depth) => (None, WordStatus::Null, depth),
            Word::Unreadable(depth) => (None, WordStatus::Unreadable, depth),
            Word::TooLong(depth) => (None, WordStatus::TooLong, depth),
            Word::NoRegister => (None, WordStatus::NoRegister, 0),
            Word::NoObject => (None, WordStatus::NoObject, 0),
        };
        WordRow {
            begin_ns: taking.begin_ns,
            class_id: taking.class,
            operation: taking.operation,
            pid: taking.pid,
            tid: taking.tid,
            at_end: taking.at_end,
            word: *word,
            from_ns: taking.read_ns.0,
            until_ns: taking.read_ns.1,
            value,
            status,
            depth,
        }
    })
}

#[cfg(test)]
mod tests;
