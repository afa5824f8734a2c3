//! Functions inside operations: from what was named to classes.

use super::super::Agent;
use super::super::class::OperationRole;
use super::super::shares::FunctionKey;
use super::bounds::MOST_FUNCTIONS;
use crate::config::{Bound, Bounds, OperationConfig};
use crate::inspect::{Function, Pattern};
use crate::prober::operation::{MEASURE_CALLS, MEASURE_NONE};
use profiler_core::class::{ClassId, RecordKind};
use profiler_core::recording::NotObserved;
use std::collections::{BTreeMap, BTreeSet};

/// Functions inside operations.
const MOST_INNER: usize = 500;
/// Functions that are named where all of them are refused for the same reason.
const MOST_NAMES: usize = 10;

impl Agent {
    /// The functions that are mapped and that operations will be made of: nothing else may take them before.
    pub(in crate::agent) fn operation_functions(&self, asked: &OperationConfig) -> BTreeSet<FunctionKey> {
        if asked.operations.is_empty() {
            return BTreeSet::new();
        }
        let mut patterns: Vec<&str> = Vec::new();
        for spec in &asked.operations {
            let bounds = match &spec.bounds {
                Bounds::One(bound) => vec![bound],
                Bounds::Pair(begin, end) => vec![begin, end],
            };
            patterns.extend(bounds.into_iter().filter_map(|bound| match bound {
                Bound::Function(pattern) => Some(pattern.as_str()),
                _ => None,
            }));
        }
        patterns.extend(asked.measure.iter().map(|measure| measure.function.as_str()));
        patterns.extend(asked.detail.iter().chain(&asked.calls).map(String::as_str));
        // What is wrong with a pattern is said when its classes are made.
        let parsed: Vec<Pattern> = patterns.iter().filter_map(|p| Pattern::parse(p).ok()).collect();
        let mut functions = self.inspection.resolve(&parsed).functions;
        if asked.detail.is_empty() && asked.calls.is_empty() {
            functions.extend(self.catalog.selection.traced(&self.inspection).into_iter().take(MOST_INNER));
        }
        functions.iter().map(|f| FunctionKey { module: f.module, address: f.vaddr }).collect()
    }

    pub(super) fn functions_of(&self, pattern: &str) -> Result<Vec<Function>, String> {
        let parsed = Pattern::parse(pattern).map_err(|error| error.to_string())?;
        let found = self.inspection.resolve(&[parsed]);
        match found.unmatched.first() {
            None => Ok(found.functions),
            Some(unmatched) if unmatched.suggestions.is_empty() => Err(unmatched.reason.to_string()),
            Some(unmatched) => {
                Err(format!("{}; similar: {}", unmatched.reason, unmatched.suggestions.join(", ")))
            }
        }
    }

    /// Classes of the functions inside operations.
    pub(super) fn inner_of(&mut self, asked: &OperationConfig) -> Result<Vec<ClassId>, String> {
        let mut inner = Vec::new();
        let mut seen = BTreeSet::new();
        if let Some(measure) = &asked.measure {
            let adds = measure.argument.map_or(MEASURE_CALLS, |k| k + 1);
            let functions = self
                .functions_of(&measure.function)
                .map_err(|why| format!("--measure '{}': {why}", measure.function))?;
            if functions.len() > MOST_FUNCTIONS {
                return Err(format!(
                    "--measure '{}' names {} functions; at most {MOST_FUNCTIONS} make a measure",
                    measure.function,
                    functions.len()
                ));
            }
            let detailed = self.detail_functions(asked)?;
            let stepped = self.named_inside(&asked.calls, "--calls")?;
            for function in &functions {
                let is_among = |all: &[Function]| {
                    all.iter().any(|f| (f.module, f.vaddr) == (function.module, function.vaddr))
                };
                let (kind, counts) = match (is_among(&stepped), is_among(&detailed)) {
                    (true, _) => (RecordKind::Step, true),
                    (false, true) => (RecordKind::Latency, true),
                    (false, false) => (RecordKind::Count, false),
                };
                let mask = measure.argument.map_or(0, |k| 1 << k);
                let role = OperationRole::Inner { measure: adds, counts };
                let id = self
                    .apart_class(function, role, mask, kind)
                    .map_err(|why| format!("--measure '{}': {why}", function.name))?;
                seen.insert((function.module, function.vaddr));
                inner.push(id);
            }
        }
        let adds = if asked.measure.is_some() { MEASURE_NONE } else { MEASURE_CALLS };
        let mut beyond = 0_usize;
        let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
        // Of a function that is named by both the calls are recorded.
        let stepped = self.named_inside(&asked.calls, "--calls")?.into_iter().map(|f| (f, RecordKind::Step));
        let detailed = self.detail_functions(asked)?.into_iter().map(|f| (f, RecordKind::Latency));
        for (function, kind) in stepped.chain(detailed) {
            // Two patterns may name it, and the measure.
            if !seen.insert((function.module, function.vaddr)) {
                continue;
            }
            if inner.len() >= MOST_INNER {
                beyond += 1;
                continue;
            }
            let role = OperationRole::Inner { measure: adds, counts: true };
            // Of a pattern that names many some cannot be traced: that is said, and the others are.
            if let Err(why) = self.apart_class(&function, role, 0, kind) {
                refused.entry(why).or_default().push(function.name.clone());
            } else if let Some(class) = self.attach.classes().last() {
                inner.push(class.id);
            }
        }
        if !asked.calls.is_empty() {
            self.must_have_steps(&inner, &refused)?;
        }
        for (why, mut names) in refused {
            let more = names.len().saturating_sub(MOST_NAMES);
            names.truncate(MOST_NAMES);
            names.extend((more > 0).then(|| format!("{more} more functions inside operations")));
            let missed = names.into_iter().map(|what| NotObserved { what, why: why.clone() });
            self.journal.meta.not_observed.extend(missed);
        }
        if beyond > 0 {
            self.journal.meta.not_observed.push(NotObserved {
                what: format!("{beyond} more functions inside operations"),
                why: format!(
                    "at most {MOST_INNER} are watched inside operations; name fewer with --detail or --calls"
                ),
            });
        }
        Ok(inner)
    }

    /// Calls in order were asked for: some function is one that they can be had of.
    fn must_have_steps(
        &self,
        inner: &[ClassId],
        refused: &BTreeMap<String, Vec<String>>,
    ) -> Result<(), String> {
        if inner.iter().any(|id| self.attach.class(*id).kind == RecordKind::Step) {
            return Ok(());
        }
        let why = refused.iter().map(|(why, names)| format!("{}: {why}", names.join(", ")));
        let why: Vec<String> = why.take(MOST_NAMES).collect();
        Err(format!("--calls: no function can be recorded ({})", why.join("; ")))
    }

    fn detail_functions(&self, asked: &OperationConfig) -> Result<Vec<Function>, String> {
        if asked.detail.is_empty() && asked.calls.is_empty() {
            return Ok(self.catalog.selection.traced(&self.inspection));
        }
        self.named_inside(&asked.detail, "--detail")
    }

    /// Functions that patterns of an option name.
    fn named_inside(&self, patterns: &[String], option: &str) -> Result<Vec<Function>, String> {
        let mut functions = Vec::new();
        for pattern in patterns {
            functions
                .extend(self.functions_of(pattern).map_err(|why| format!("{option} '{pattern}': {why}"))?);
        }
        Ok(functions)
    }
}
