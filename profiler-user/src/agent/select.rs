//! What the user named: patterns, compiled once, asked for every function.

use super::class::Wish;
use super::words::WordLists;
use crate::config::{FunctionConfig, InputsSpec, RecordSpec};
use crate::inspect::{Function, Inspection, Pattern, PatternError, WantedArguments};
use profiler_core::class::RecordKind;
use std::collections::{BTreeSet, HashMap};

/// A pattern that makes no sense, and the option that has it on the command line.
#[derive(Debug, thiserror::Error)]
#[error("{option} '{text}': {source}")]
pub struct SelectionError {
    option: &'static str,
    text: String,
    source: PatternError,
}

/// The compiled patterns.
#[derive(Debug)]
pub struct Selection {
    trace: Vec<Pattern>,
    never: Vec<Pattern>,
    count: Vec<Pattern>,
    latency: Vec<Pattern>,
    /// With the argument registers that were asked for by number.
    record: Vec<(Pattern, RecordSpec)>,
    /// Argument registers that are kept of functions that are recorded.
    arguments: Vec<(Pattern, RecordSpec)>,
    /// Argument registers that words read are to be known at the site as well.
    words: WordLists,
    weight: Vec<(Pattern, f64)>,
    return_links: Vec<Pattern>,
    discover: usize,
    unmatched: HashMap<String, String>,
    /// Those of which that was said.
    said: BTreeSet<String>,
}

impl Selection {
    /// Compiles the patterns.
    ///
    /// # Errors
    /// The first pattern that makes no sense.
    pub fn new(named: &FunctionConfig, words: WordLists) -> Result<Self, SelectionError> {
        let one = |option, text: &str| {
            Pattern::parse(text).map_err(|source| SelectionError { option, text: text.to_owned(), source })
        };
        let all =
            |option, texts: &[String]| texts.iter().map(|t| one(option, t)).collect::<Result<Vec<_>, _>>();
        let registers = |option, specs: &[RecordSpec]| {
            let one = |spec: &RecordSpec| Ok((one(option, &spec.pattern)?, spec.clone()));
            specs.iter().map(one).collect::<Result<Vec<_>, SelectionError>>()
        };
        Ok(Self {
            trace: all("--trace", &named.trace)?,
            never: all("--never", &named.never)?,
            count: all("--count", &named.count)?,
            latency: all("--latency", &named.latency)?,
            record: registers("--record or --model", &named.record)?,
            arguments: registers("--input", &named.arguments)?,
            words,
            weight: named
                .weight
                .iter()
                .map(|(text, w)| Ok((one("--weight", text)?, *w)))
                .collect::<Result<_, _>>()?,
            return_links: all("--return-links", &named.return_links)?,
            discover: named.discover,
            unmatched: HashMap::new(),
            said: BTreeSet::new(),
        })
    }

    /// How many functions may be taken from the samples.
    #[must_use]
    pub fn discover(&self) -> usize {
        self.discover
    }

    /// Something was named to be watched.
    #[must_use]
    pub fn names_any(&self) -> bool {
        !(self.trace.is_empty() && self.count.is_empty() && self.latency.is_empty() && self.record.is_empty())
    }

    /// The functions of `--trace`.
    #[must_use]
    pub fn traced(&self, inspection: &Inspection) -> Vec<Function> {
        if self.trace.is_empty() { Vec::new() } else { inspection.resolve(&self.trace).functions }
    }

    /// The functions that were named to be watched. Patterns without any are remembered for the receipt.
    pub fn named(&mut self, inspection: &Inspection) -> Vec<Function> {
        let record = self.record.iter().map(|(pattern, _)| pattern);
        let others = [&self.latency, &self.count, &self.trace].into_iter().flatten();
        let patterns: Vec<Pattern> = record.chain(others).cloned().collect();
        if patterns.is_empty() {
            return Vec::new();
        }
        let resolution = inspection.resolve(&patterns);
        // A library that is loaded later may bring what is missing now.
        self.unmatched = resolution
            .unmatched
            .into_iter()
            .map(|u| {
                let hint = if u.suggestions.is_empty() {
                    String::new()
                } else {
                    format!("; similar: {}", u.suggestions.join(", "))
                };
                (u.pattern, format!("{}{hint}", u.reason))
            })
            .collect();
        resolution.functions
    }

    /// The functions whose calls are to be recorded.
    #[must_use]
    pub fn recorded(&self, inspection: &Inspection) -> Vec<Function> {
        let patterns: Vec<Pattern> = self.record.iter().map(|(pattern, _)| pattern.clone()).collect();
        if patterns.is_empty() { Vec::new() } else { inspection.resolve(&patterns).functions }
    }

    /// The registers of inputs are these from now on.
    pub fn name_inputs(&mut self, inputs: &[InputsSpec]) {
        let own = |spec: &InputsSpec| (spec.pattern.clone(), RecordSpec::of_inputs(spec));
        self.arguments = inputs.iter().map(own).collect();
    }

    /// Patterns that name nothing yet, and why; each once.
    pub fn new_unmatched(&mut self) -> Vec<(String, String)> {
        let mut new = self.unmatched();
        new.retain(|(pattern, _)| self.said.insert(pattern.clone()));
        new
    }

    /// Patterns that named nothing so far, and why.
    #[must_use]
    pub fn unmatched(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.unmatched.iter().map(|(p, why)| (p.clone(), why.clone())).collect();
        all.sort();
        all
    }

    /// What is wanted of a function; `None`: it may not be traced.
    #[must_use]
    pub fn wish(&self, function: &Function) -> Option<Wish> {
        let any = |patterns: &[Pattern]| patterns.iter().any(|p| p.names(function));
        if any(&self.never) {
            return None;
        }
        let must = any(&self.trace);
        let registers = |of: &[(Pattern, RecordSpec)]| {
            let own = of.iter().filter(|(pattern, _)| pattern.names(function));
            own.map(|(_, spec)| spec.arguments).reduce(|all, set| all | set)
        };
        let recorded = registers(&self.record);
        // What is named elsewhere comes on top of what a record of it keeps anyway.
        let is_plain = |(pattern, spec): &(Pattern, RecordSpec)| {
            spec.arguments == 0 && !spec.for_models && pattern.names(function)
        };
        let (kind, by_kind) = if recorded.is_some() {
            (RecordKind::Record, true)
        } else if any(&self.latency) {
            (RecordKind::Latency, true)
        } else {
            (RecordKind::Count, any(&self.count))
        };
        // The last weight that names it counts, as with any option given twice.
        let weight = self.weight.iter().rev().find(|(p, _)| p.names(function)).map_or(1.0, |(_, w)| *w);
        let named = registers(&self.arguments).unwrap_or(0) | self.words.arguments(function);
        let arguments = match recorded.unwrap_or(0) | named {
            _ if kind != RecordKind::Record => WantedArguments::NONE,
            0 => WantedArguments::Used,
            named if self.record.iter().any(is_plain) => WantedArguments::UsedAnd(named),
            named => WantedArguments::These(named),
        };
        Some(Wish {
            kind,
            weight,
            must,
            named: must || by_kind,
            by_kind,
            force_return_link: any(&self.return_links),
            arguments,
        })
    }
}
