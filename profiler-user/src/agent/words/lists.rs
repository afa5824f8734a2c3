//! From the words that were named to the kernel's lists.

use crate::config::{Bound, Bounds, OperationSpec, WordBase, WordExpression, WordKind, WordsSpec};
use crate::inspect::{Function, Inspection, Pattern, VariableError};
use crate::prober::word::{
    MAX_OBJECTS, MAX_WORDS, SOURCE_ADDRESS, SOURCE_ARGUMENT, SOURCE_OBJECT, SOURCE_RESULT, WORD_INTEGER,
    WORD_STRING,
};
use crate::prober::{WordSpec, word_list};
use profiler_core::recording::WordMeta;
use std::ops::Range;

/// What a hit pays for a taking beside its words, ns, and for each word by what it reads: estimates, to be replaced by what
/// `cargo xtask bench --only words` measures. What reading takes is corrected by what takings say themselves ([`WordLists::correct`]).
const TAKING_NS: f64 = 180.0;
/// Of each read.
const STEP_NS: f64 = 25.0;
/// Of a string, in addition.
const STRING_NS: f64 = 120.0;

/// One list: the words of one place and moment.
#[derive(Debug, Clone)]
pub struct List {
    /// As it was named.
    pub place: String,
    /// The functions; of an operation it means nothing.
    pub pattern: Option<Pattern>,
    /// The operation; `None`: it belongs to functions.
    pub operation: Option<u32>,
    /// Taken at the end; else at the begin.
    pub at_end: bool,
    /// Numbers of its words.
    pub words: Range<usize>,
    /// Argument registers that it reads.
    pub arguments: u8,
    /// What a hit pays for it, ns.
    pub price_ns: f64,
}

/// The list of functions that these lists are all of.
#[derive(Debug, Clone)]
pub(super) struct Union {
    pub of: Vec<usize>,
    pub list: List,
}

/// All words of a run.
#[derive(Debug, Clone, Default)]
pub struct WordLists {
    /// Each list.
    pub lists: Vec<List>,
    /// Those that were named, then copies of some.
    pub(super) words: Vec<(String, WordExpression)>,
    /// The kernel's form of each.
    pub specs: Vec<WordSpec>,
    /// Lists of functions that several of `lists` are of.
    pub(super) unions: Vec<Union>,
    /// Of each copy, the number of the word.
    pub(super) copies: Vec<u32>,
}

/// What a hit pays for a list that takes so long to read, ns.
pub(super) fn taking_ns(read_ns: f64) -> f64 {
    TAKING_NS + read_ns
}

/// What a hit pays for a list of these words, ns.
pub(super) fn price_of(words: &[(String, WordExpression)]) -> f64 {
    taking_ns(words.iter().map(|(_, word)| price_ns(word)).sum())
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
            price_ns: price_of(own),
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

    /// The list that begins with that word takes so long to read, as takings say, ns. What a hit pays for it now, ns.
    pub fn correct(&mut self, first: u32, read_ns: f64) -> Option<f64> {
        let unions = self.unions.iter_mut().map(|union| &mut union.list);
        let list = self.lists.iter_mut().chain(unions).find(|list| list.words.start == first as usize)?;
        list.price_ns = taking_ns(read_ns);
        Some(list.price_ns)
    }

    /// The word of that number.
    pub fn base(&self, word: usize) -> Option<&WordBase> {
        self.words.get(word).map(|(_, expression)| &expression.base)
    }

    /// Nothing was named.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Argument registers that the words of a function read.
    pub fn arguments(&self, function: &Function) -> u8 {
        let names = |list: &&List| list.pattern.as_ref().is_some_and(|pattern| pattern.names(function));
        self.lists.iter().filter(names).fold(0, |set, list| set | list.arguments)
    }

    /// Argument registers that the words of an operation read at its begin.
    pub fn arguments_of_operation(&self, operation: u32) -> u8 {
        let own = self.lists.iter().filter(|list| list.operation == Some(operation) && !list.at_end);
        own.fold(0, |set, list| set | list.arguments)
    }

    /// What a recorded operation pays for its words, ns, by its number; those beyond have none.
    pub fn prices_of_operations(&self, prices_ns: &mut Vec<f64>) {
        prices_ns.clear();
        for (operation, list) in self.lists.iter().filter_map(|list| Some((list.operation? as usize, list))) {
            prices_ns.resize(prices_ns.len().max(operation + 1), 0.0);
            prices_ns[operation] += list.price_ns;
        }
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
    pub fn resolve(&mut self, inspection: &Inspection) -> Result<(), String> {
        for ((name, expression), spec) in self.words.iter().zip(&mut self.specs) {
            if let WordBase::Variable(variable) = &expression.base {
                let (address, _) = inspection.variable(variable).map_err(|why| {
                    let instead = match why {
                        VariableError::Several { .. } => {
                            format!("; write the address of the one that is meant in place of '&{variable}'")
                        }
                        VariableError::Missing(_) => String::new(),
                    };
                    format!("--word: '{name}={expression}': {why}{instead}")
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
    /// As the kernel takes it.
    pub fn packed(&self, lost: u8) -> u32 {
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

#[cfg(test)]
mod tests;
