//! Functions that several patterns of words name: they take the words of all of them, in the order of the command line.
//!
//! A list of the kernel is a range of words, so those of such a function are copied behind the others. Rows name the words that were copied, so that a
//! recording knows nothing of it.

use super::lists::{List, Union, WordLists, price_of};
use crate::inspect::{Function, Pattern};
use crate::prober::WordSpec;
use crate::prober::word::MAX_WORDS;

/// The words of a function at one moment.
#[derive(Debug, Default)]
pub struct OfFunction {
    /// The list.
    pub list: Option<List>,
    /// What is not taken, and why.
    pub note: Option<String>,
}

impl WordLists {
    /// The list of a function at its end, or else at its begin. `tell`: tells the kernel all words, where there are new ones; how many fit if it does not take
    /// them.
    pub fn of_function(
        &mut self,
        function: &Function,
        at_end: bool,
        tell: impl FnOnce(&[WordSpec]) -> Result<(), u32>,
    ) -> OfFunction {
        let names = |list: &List| list.pattern.as_ref().is_some_and(|pattern| pattern.names(function));
        let own = (0..).zip(&self.lists).filter(|(_, list)| list.at_end == at_end && names(list));
        let of: Vec<usize> = own.map(|(number, _)| number).collect();
        let (first, others) = match of.as_slice() {
            [] => return OfFunction::default(),
            [only] => return OfFunction { list: self.lists.get(*only).cloned(), ..OfFunction::default() },
            [first, others @ ..] => (*first, others.len()),
        };
        if let Some(known) = self.unions.iter().find(|union| union.of == of) {
            return OfFunction { list: Some(known.list.clone()), ..OfFunction::default() };
        }
        let joined = self.join(&of).and_then(|list| match tell(&self.specs) {
            Ok(()) => Ok(list),
            Err(most) => {
                self.undo(&list);
                Err(format!("the kernel side takes {most} words"))
            }
        });
        match joined {
            Ok(list) => OfFunction { list: Some(list), note: None },
            Err(why) => {
                let list = self.lists.get(first).cloned();
                let place = list.as_ref().map(|list| list.place.clone()).unwrap_or_default();
                let note = format!(
                    "only the words of '{place}' are taken, and not those of {others} more patterns that name it: {why}"
                );
                OfFunction { list, note: Some(note) }
            }
        }
    }

    /// Copies the words of these lists behind the others.
    fn join(&mut self, of: &[usize]) -> Result<List, String> {
        let lists: Vec<&List> = of.iter().filter_map(|number| self.lists.get(*number)).collect();
        let mut pairs =
            lists.iter().enumerate().flat_map(|(i, one)| lists[i + 1..].iter().map(move |o| (*one, *o)));
        if let Some((one, other, name)) = pairs.find_map(|(a, b)| Some((a, b, self.shared_name(a, b)?))) {
            return Err(format!("'{}' and '{}' both have a word '{name}'", one.place, other.place));
        }
        let numbers: Vec<usize> = lists.iter().flat_map(|list| list.words.clone()).collect();
        let (begin, end) = (self.words.len(), self.words.len() + numbers.len());
        if end > MAX_WORDS as usize {
            return Err(format!(
                "they are taken together at a place of their own among the {MAX_WORDS} words that fit, of which {} are left, and they are {}",
                (MAX_WORDS as usize).saturating_sub(begin),
                numbers.len()
            ));
        }
        if numbers.len() > self.longest() as usize {
            return Err(
                "that was not to be expected of their patterns: name it by one of its names".to_owned()
            );
        }
        let Some(first) = lists.first() else { return Err("there are none".to_owned()) };
        let list = List {
            words: begin..end,
            arguments: lists.iter().fold(0, |set, list| set | list.arguments),
            price_ns: 0.0,
            ..(*first).clone()
        };
        for number in numbers {
            let (Some(word), Some(spec)) = (self.words.get(number).cloned(), self.specs.get(number).copied())
            else {
                continue;
            };
            self.words.push(word);
            self.specs.push(spec);
            // OK because there are at most 64.
            self.copies.push(number as u32);
        }
        let list = List { price_ns: price_of(&self.words[begin..end]), ..list };
        self.unions.push(Union { of: of.to_vec(), list: list.clone() });
        Ok(list)
    }

    /// Takes back what [`WordLists::join`] made last.
    fn undo(&mut self, list: &List) {
        self.unions.pop();
        self.words.truncate(list.words.start);
        self.specs.truncate(list.words.start);
        self.copies.truncate(self.copies.len().saturating_sub(list.words.len()));
    }

    /// The word that was named, of which this one is a copy; else itself.
    pub fn original(&self, word: u32) -> u32 {
        let named = self.words.len() - self.copies.len();
        let copy = (word as usize).checked_sub(named).and_then(|copy| self.copies.get(copy));
        copy.copied().unwrap_or(word)
    }

    /// A name that both lists have.
    fn shared_name<'a>(&'a self, one: &List, other: &List) -> Option<&'a str> {
        let names =
            |list: &List| self.words.get(list.words.clone()).into_iter().flatten().map(|(name, _)| name);
        names(one).find(|name| names(other).any(|its| its == *name)).map(String::as_str)
    }

    /// Pairs of lists of functions with a word of one name, which no function may have both of: their patterns, and the name.
    pub fn clashes<'a>(&'a self) -> Vec<(&'a Pattern, &'a Pattern, &'a str)> {
        let lists = self.lists.iter().enumerate();
        let pairs = lists.flat_map(|(i, one)| self.lists[i + 1..].iter().map(move |other| (one, other)));
        let clash = |(one, other): (&'a List, &'a List)| {
            let (a, b) = (one.pattern.as_ref()?, other.pattern.as_ref()?);
            let together = one.at_end == other.at_end && may_overlap(a, b);
            Some((a, b, self.shared_name(one, other).filter(|_| together)?))
        };
        pairs.filter_map(clash).collect()
    }

    /// Words of the longest list that a function may have, or an operation has.
    pub fn longest(&self) -> u32 {
        let most = |list: &List| {
            let Some(pattern) = &list.pattern else { return list.words.len() };
            let together = |other: &&List| {
                other.at_end == list.at_end && other.pattern.as_ref().is_some_and(|p| may_overlap(pattern, p))
            };
            self.lists.iter().filter(together).map(|other| other.words.len()).sum()
        };
        // OK because it is at most 64.
        self.lists.iter().map(most).max().unwrap_or(0).min(MAX_WORDS as usize) as u32
    }
}

/// A function may have both names: aliases apart, which nobody knows before the symbols are read.
fn may_overlap(one: &Pattern, other: &Pattern) -> bool {
    // Module, scope, and parameters may be left out.
    let last = |pattern: &Pattern| {
        let text = pattern.text().split('(').next().unwrap_or_default();
        let last = text.rsplit(':').next().unwrap_or_default();
        last.strip_prefix('=').unwrap_or(last).to_owned()
    };
    !(one.is_exact() && other.is_exact()) || last(one) == last(other)
}

#[cfg(test)]
mod tests;
