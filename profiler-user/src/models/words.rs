//! Words that are inputs: their values by call.
//!
//! Memory: some 60 bytes for each word that is an input, in each call.

use super::ModelsError;
use super::parameters::known_parameters;
use super::piles::matches;
use crate::config::{InputSpec, InputsSpec};
use crate::inspect::Pattern;
use crate::recording::Stream;
use profiler_core::models::Value;
use profiler_core::recording::{ClassRow, EventRow, WordMeta, WordRow};
use std::collections::{HashMap, HashSet};

/// Which call, and which word: thread, class, begin, number.
type Key = (u32, u32, u64, u32);

/// What to say of a function without a model whose inputs nobody named, but with whose calls words were taken that could be such. `None`: none were.
///
/// Of itself no word is an input: most are there to be shown, and a run that is held against this one would have to take them all anew.
pub(super) fn advice(class: &ClassRow, words: &[WordMeta]) -> Option<String> {
    let is_own = |word: &WordMeta| Pattern::parse(&word.place).is_ok_and(|pattern| matches(&pattern, class));
    let could_be = |word: &&WordMeta| word.operation.is_none() && !word.at_end && word.value != "ptr";
    let own: Vec<&WordMeta> = words.iter().filter(could_be).filter(|word| is_own(word)).collect();
    let first = own.first()?;
    // Patterns that name several functions need not have all of these words with each.
    let is_one_place = own.iter().all(|word| word.place == first.place);
    // A pattern would name inputs of others, too, that may have models without.
    let is_literal = !first.place.contains(['*', '?', '[']);
    let place = if is_one_place && is_literal { &first.place } else { &class.symbol };
    let names: Vec<&str> = own.iter().map(|word| word.name.as_str()).collect();
    Some(match names.as_slice() {
        [name] => format!("its word {name} is no input: name it with --input '{place}:n={name}'"),
        _ => format!(
            "its words {} are no inputs: name those that its time may depend on with --input '{place}:{}'",
            names.join(", "),
            names.join(",")
        ),
    })
}

/// Values of words that are inputs.
#[derive(Debug, Default)]
pub(super) struct WordValues {
    /// Numbers of the words of a name; those of several places may share one.
    numbers: HashMap<String, Vec<u32>>,
    values: HashMap<Key, u64>,
}

impl WordValues {
    /// Reads those that are inputs of a class.
    ///
    /// # Errors
    /// An input of `typed` is no word that was taken with any call of its class; a segment is of a later format.
    pub fn read(
        stream: &mut Stream,
        inputs: &HashMap<u32, Vec<InputSpec>>,
        classes: &HashMap<u32, ClassRow>,
        typed: &[InputsSpec],
    ) -> Result<Self, ModelsError> {
        let wanted: HashSet<&str> =
            inputs.values().flatten().filter_map(|input| input.word.as_deref()).collect();
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        let mut all = Self::default();
        for word in stream.meta().words.iter().filter(|word| word.operation.is_none()) {
            if wanted.contains(word.name.as_str()) {
                all.numbers.entry(word.name.clone()).or_default().push(word.word);
            }
        }
        let known: HashSet<u32> = all.numbers.values().flatten().copied().collect();
        let mut taken: HashSet<(u32, u32)> = HashSet::new();
        stream.each(|row: WordRow| {
            if row.operation.is_some() || !known.contains(&row.word) || !inputs.contains_key(&row.class_id) {
                return;
            }
            taken.insert((row.class_id, row.word));
            if let Some(value) = row.value {
                all.values.insert((row.tid, row.class_id, row.begin_ns, row.word), value);
            }
        })?;
        for (class, input) in
            inputs.iter().flat_map(|(class, inputs)| inputs.iter().map(move |i| (*class, i)))
        {
            let Some(word) = &input.word else { continue };
            // What the recording itself names is missing where it was not taken.
            if !typed.iter().any(|spec| spec.inputs.iter().any(|typed| typed.word.as_ref() == Some(word))) {
                continue;
            }
            let numbers = all.numbers.get(word).map_or(&[][..], Vec::as_slice);
            if !numbers.iter().any(|number| taken.contains(&(class, *number))) {
                let names: Vec<&str> = stream.meta().words.iter().map(|word| word.name.as_str()).collect();
                let class = classes.get(&class);
                return Err(ModelsError::NoWord {
                    word: word.clone(),
                    parameters: class.map(known_parameters).unwrap_or_default(),
                    function: class.map(|class| class.name.clone()).unwrap_or_default(),
                    taken: if names.is_empty() {
                        "none (record with --word)".to_owned()
                    } else {
                        names.join(", ")
                    },
                });
            }
        }
        Ok(all)
    }

    /// The value of an input that is a word.
    pub fn of(&self, row: &EventRow, input: &InputSpec) -> Value {
        let numbers = input.word.as_ref().and_then(|word| self.numbers.get(word));
        let value = |number: &u32| self.values.get(&(row.tid, row.class_id, row.time_ns, *number)).copied();
        numbers.into_iter().flatten().find_map(value).map_or(Value::Missing, |value| input.kind.value(value))
    }
}
