//! Words of the target: what classes take, and from what was taken to rows.
//!
//! `--word` is read by [`crate::config`], the memory by the kernel programs. Nothing is decided here: which words, where, was named.

mod inside;
mod lists;
mod unions;

pub use lists::WordLists;

use super::Agent;
use super::class::{LiveClass, Wish};
use super::class_words::ClassWords;
use crate::config::WordBase;
use crate::inspect::Function;
use crate::prober::{Taking, TakingReader, Word};
use inside::{LONGEST_NS, TakenInside};
use lists::List;
use profiler_core::class::{ClassId, ExitMode, RecordKind};
use profiler_core::recording::{EventRow, WordRow, WordStatus};
use std::collections::BTreeMap;

/// Takings that are read in one turn.
const DRAIN_LIMIT: usize = 100_000;
/// Takings of a list after which its price is that of these.
const PRICED_BY: u64 = 200;

/// What is read of words while the run goes on.
#[derive(Default)]
pub(super) struct Words {
    pub lists: WordLists,
    pub reader: Option<TakingReader>,
    /// Of each list, by its first word: takings that were priced, and how long they took to read, ns.
    pub read: BTreeMap<u32, (u64, u64)>,
    /// What those of operations took, by thread.
    pub inside: TakenInside,
}

impl Agent {
    /// Words of a class of recorded calls of that function, and what is to be said of them.
    pub(super) fn words_of(
        &mut self,
        function: &Function,
        wish: Wish,
        kind: RecordKind,
        exit: ExitMode,
    ) -> (ClassWords, Vec<String>) {
        let lists = &mut self.words.lists;
        // A class that serves operations has none of its own.
        if kind != RecordKind::Record || !wish.by_kind || lists.is_empty() {
            return (ClassWords::default(), Vec::new());
        }
        let kernel = self.attach.kernel();
        let found =
            [false, true].map(|at_end| lists.of_function(function, at_end, |words| kernel.set_words(words)));
        let [(begin, said), (end, at_end)] = found.map(|found| (found.list, found.note));
        let mut notes: Vec<String> = said.into_iter().chain(at_end).collect();
        let seen = end.as_ref().filter(|_| exit != ExitMode::None);
        let has_result =
            |list: &List| list.words.clone().any(|word| lists.base(word) == Some(&WordBase::Result));
        match (&end, seen) {
            (Some(_), None) => {
                notes.push("its words at the end are not taken: its end is not seen".to_owned())
            }
            (_, Some(list)) if has_result(list) && exit != ExitMode::ReturnLink => {
                notes.push("its result is not known: its end is not seen by a return link".to_owned());
            }
            _ => {}
        }
        let begin = begin.as_ref();
        let words = ClassWords {
            begin: begin.map_or(0, |list| list.packed(0)),
            end: seen.map_or(0, |list| list.packed(0)),
            begin_ns: begin.map_or(0.0, |list| list.price_ns),
            end_ns: seen.map_or(0.0, |list| list.price_ns),
        };
        (words, notes)
    }

    /// Tells the kernel the words, once what is named is mapped.
    ///
    /// # Errors
    /// There is no such variable, or a function would have two words of one name.
    pub(super) fn set_words(&mut self) -> Result<(), String> {
        if self.words.lists.is_empty() {
            return Ok(());
        }
        self.no_clash()?;
        self.words.lists.resolve(&self.inspection)?;
        self.attach
            .kernel()
            .set_words(&self.words.lists.specs)
            .map_err(|most| format!("--word: at most {most} words fit"))?;
        self.journal.meta.words = self.words.lists.meta();
        self.data_points.name_words(&self.journal.meta.words);
        Ok(())
    }

    /// No function whose calls are recorded takes two words of one name. Of those that are mapped later, the words of one pattern are taken, and a note
    /// says so.
    fn no_clash(&self) -> Result<(), String> {
        for (one, other, name) in self.words.lists.clashes() {
            let is_recorded = |function: &&Function| {
                let wish = self.catalog.selection.wish(function);
                one.names(function)
                    && other.names(function)
                    && wish.is_some_and(|wish| wish.by_kind && wish.kind == RecordKind::Record)
            };
            let functions = self.inspection.resolve(std::slice::from_ref(one)).functions;
            if let Some(function) = functions.iter().find(is_recorded) {
                return Err(format!(
                    "--word: '{one}' and '{other}' both name '{}', which would have two words called '{name}': give one of them another name",
                    function.name
                ));
            }
        }
        Ok(())
    }

    /// Records what came out of the rings: these calls, then words, then operations and steps. Words are read last, so that all are there that were
    /// taken inside these calls and operations.
    pub(super) fn record_drained(&mut self, mut calls: Vec<EventRow>) {
        let mut operations = self.operation_io.as_mut().map_or_else(Vec::new, |io| io.drain());
        let words = self.drain_words();
        self.words.inside.charge(&mut calls, &mut operations);
        self.note_data_points(&calls, &words);
        self.journal.record(calls);
        self.journal.record(words);
        self.journal.record(operations);
        let steps = self.operation_io.as_mut().map_or_else(Vec::new, |io| io.drain_steps());
        self.journal.record(steps);
    }

    /// Takes what was taken out of the ring.
    fn drain_words(&mut self) -> Vec<WordRow> {
        let mut rows = Vec::new();
        let Words { reader: Some(reader), read, lists, inside } = &mut self.words else { return rows };
        reader.drain(DRAIN_LIMIT, |taking| {
            inside.note(&taking);
            rows.extend(rows_of(&taking, lists));
            if let Some((first, _)) = taking.words.first() {
                let (n, sum_ns) = read.entry(*first).or_default();
                *n += 1;
                *sum_ns += taking.read_ns.1.saturating_sub(taking.read_ns.0).min(LONGEST_NS);
            }
        });
        let priced: Vec<(u32, f64)> = self
            .words
            .read
            .iter_mut()
            .filter(|(_, (n, _))| *n >= PRICED_BY)
            .map(|(first, of)| {
                let (n, sum_ns) = std::mem::take(of);
                (*first, sum_ns as f64 / n as f64)
            })
            .collect();
        for (first, read_ns) in priced {
            self.reprice_words(first, read_ns);
        }
        rows
    }

    /// What a list takes to read is known better now: classes of functions pay that from now on, and operations as soon as they are looked at
    /// ([`WordLists::prices_of_operations`]).
    fn reprice_words(&mut self, first: u32, read_ns: f64) {
        let Some(price_ns) = self.words.lists.correct(first, read_ns) else { return };
        let ids: Vec<ClassId> = self.attach.classes().iter().map(|class| class.id).collect();
        for id in ids {
            let class = self.attach.class_mut(id);
            class.prices = class.words.repriced(first, price_ns, class.prices);
            // What it takes inside other calls is taken off their time by the kernel side. While a link is made another thread writes the class's control.
            if class.is_open() {
                self.attach.adjust_prices(id);
            }
        }
    }

    /// Patterns of words that name no function whose calls are recorded.
    pub(super) fn words_without_place(&self) -> Vec<(String, String)> {
        let has = |list: &List, class: &LiveClass| {
            let pattern = list.pattern.as_ref();
            class.kind == RecordKind::Record
                && class.role.is_none()
                && pattern.is_some_and(|p| p.names(&class.code.function))
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

fn rows_of<'a>(taking: &'a Taking, lists: &'a WordLists) -> impl Iterator<Item = WordRow> + use<'a> {
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
            word: lists.original(*word),
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
