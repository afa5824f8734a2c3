//! Single operations of a recording with their calls in order: chosen in one pass over the operations, gathered in one over the steps.
//!
//! Memory: some 100 bytes for each operation, the steps of the chosen ones, and a row group. Steps of other operations are counted and forgotten. What it
//! does not do: `profiler_core::calls` says which operations are complete and how calls nest, `output` shows it.

use crate::recording::{OpenError, Stream};
use profiler_core::calls::{Account, CallTree, Census, Code, Completeness};
use profiler_core::recording::{
    CallSiteRow, ClassRow, Meta, OperationClassRow, OperationMeta, OperationRow, StepRow, TailRow, WordRow,
};
use profiler_core::report::names::short_names;
use profiler_core::text::shell_word;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::path::Path;

/// Steps of all chosen operations together that are nested and drawn, at most: some 300 bytes of memory each.
const MOST_STEPS: u64 = 250_000;

/// Which operations are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the operation; `None`: the only one.
    pub operation: Option<String>,
    /// Name of a class of it; `None`: of all.
    pub class: Option<String>,
    /// Which of those.
    pub which: Which,
}

/// Which operations of a name are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// So many of those that are not known to be incomplete, the slowest first.
    Slowest(usize),
    /// Those that were open so long after the recording's start, ns.
    At(u64),
}

/// Names of classes of functions, in full and as tables show them.
pub type FunctionNames = HashMap<u32, (String, String)>;

/// Chosen operations with their calls.
#[derive(Debug, Clone)]
pub struct Calls {
    /// The operation.
    pub operation: OperationMeta,
    /// Description of the run.
    pub meta: Meta,
    /// The chosen ones.
    pub chosen: Vec<Chosen>,
    /// Incomplete ones that took longer than the slowest of the chosen ones.
    pub slower_incomplete: usize,
    /// All recorded operations of that name.
    pub account: Account,
    /// Steps of the recording.
    pub steps: u64,
    /// Of those, steps that lie in no recorded operation.
    pub outside: u64,
    /// Names of classes of functions.
    pub names: FunctionNames,
    /// What of the recording could not be read.
    pub damage: Vec<String>,
}

/// An operation with its calls.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// The operation.
    pub row: OperationRow,
    /// Name of its class.
    pub class: String,
    /// Whether all its steps are there.
    pub completeness: Completeness,
    /// Steps found in it.
    pub steps: u64,
    /// Its calls.
    pub body: Body,
    /// Words of the target that were taken with it, in the order in which they were read.
    pub words: Vec<WordRow>,
}

/// What can be shown of an operation.
#[derive(Debug, Clone)]
pub enum Body {
    /// All its calls.
    Tree(CallTree),
    /// Steps are missing: those that are there, in their order. How they nest cannot be told.
    Steps(Vec<StepRow>),
    /// More than are drawn.
    TooMany,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// The recording cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Calls in order were not recorded.
    #[error("the recording has no calls in order; this command makes one that has: {0}")]
    NotRecorded(String),
    /// There is no such operation.
    #[error("the recording has no operation '{name}'; it has {names}")]
    NoOperation {
        /// What was asked for.
        name: String,
        /// Those that are there.
        names: String,
    },
    /// None was named, and there are several.
    #[error("the recording has several operations: {names}; name one with --operation")]
    Several {
        /// Those that are there.
        names: String,
    },
    /// There is no such class.
    #[error("operation '{operation}' has no class '{name}'; it has {names}")]
    NoClass {
        /// The operation.
        operation: String,
        /// What was asked for.
        name: String,
        /// Those that are there.
        names: String,
    },
}

impl Calls {
    /// Reads the chosen operations of a recording.
    ///
    /// # Errors
    /// [`CallsError`]. That none is chosen, and damage, are no errors.
    pub fn read(path: &Path, wanted: &Wanted) -> Result<Self, CallsError> {
        let mut stream = Stream::open(path)?;
        let meta = stream.meta().clone();
        let Some(calls) = meta.calls.clone() else { return Err(CallsError::NotRecorded(command(&meta))) };
        let operation = operation(&meta, wanted.operation.as_deref())?;
        let classes = classes(&mut stream, operation.operation)?;
        let class = class(&classes, &operation.name, wanted)?;
        let (mut census, choice) = choose(&mut stream, wanted, operation.operation, class)?;
        let names = names(&mut stream, &calls.classes)?;
        let sites: Vec<CallSiteRow> = stream.table()?;
        let tails: Vec<TailRow> = stream.table()?;
        let code = Code::new(&calls, sites, &tails);
        let steps = gather(&mut stream, &mut census, &choice.places())?;
        let slower_incomplete = choice.slower_incomplete();
        let mut words = words(&mut stream, &choice)?;
        let chosen = choice.rows.into_iter().zip(steps).map(|((place, row), found)| {
            let class = classes.get(&row.class_id).cloned().unwrap_or_else(|| operation.name.clone());
            let completeness = census.completeness(place).unwrap_or(Completeness::Unnumbered);
            let own = words.remove(&place).unwrap_or_default();
            Chosen { words: own, ..Chosen::of(row, class, completeness, (found.count, found.steps), &code) }
        });
        Ok(Self {
            chosen: chosen.collect(),
            slower_incomplete,
            account: census.account(operation.operation),
            steps: census.steps(),
            outside: census.outside(),
            names,
            damage: stream.damage().to_vec(),
            operation,
            meta,
        })
    }

    /// Name of a class of functions in full.
    #[must_use]
    pub fn name(&self, class_id: u32) -> &str {
        self.names.get(&class_id).map_or("?", |(name, _)| name)
    }
}

impl Chosen {
    /// An operation of a class with its steps: how many were found, and all of them or none where these are too many.
    #[must_use]
    pub fn of(
        row: OperationRow,
        class: String,
        completeness: Completeness,
        (count, mut steps): (u64, Vec<StepRow>),
        code: &Code,
    ) -> Self {
        let end_ns = row.begin_ns.saturating_add(row.duration_ns);
        steps.sort_by_key(|step| (step.number, step.time_ns));
        let body = match completeness {
            _ if count > steps.len() as u64 => Body::TooMany,
            Completeness::Complete => Body::Tree(CallTree::new(&steps, code, end_ns)),
            _ => Body::Steps(steps),
        };
        Self { row, class, completeness, steps: count, body, words: Vec::new() }
    }
}

/// Name of a class of functions as tables show it.
#[must_use]
pub fn short_name(names: &FunctionNames, class_id: u32) -> &str {
    names.get(&class_id).map_or("?", |(_, short)| short)
}

/// A command that records calls in order, like the one that made the recording.
fn command(meta: &Meta) -> String {
    let word = |text: &str| shell_word(text).map(|word| word.into_owned());
    let bounds = meta.operations.first().and_then(|operation| word(&operation.bounds));
    let bounds = bounds.unwrap_or_else(|| "'request=FUNCTION'".to_owned());
    format!("sudo tithe record --pid PID --operation {bounds} --calls 'PATTERN' -o run.tithe")
}

/// Names in a message.
fn listed(mut names: Vec<&str>) -> String {
    /// Most of them.
    const NAMED: usize = 8;
    names.sort_unstable();
    match names.len() {
        0 => "none".to_owned(),
        n if n > NAMED => format!("{} and {} more", names[..NAMED].join(", "), n - NAMED),
        _ => names.join(", "),
    }
}

fn operation(meta: &Meta, name: Option<&str>) -> Result<OperationMeta, CallsError> {
    let names = || listed(meta.operations.iter().map(|operation| operation.name.as_str()).collect());
    match (name, meta.operations.as_slice()) {
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(CallsError::NoOperation { name: String::new(), names: names() }),
        (None, _) => Err(CallsError::Several { names: names() }),
        (Some(name), all) => {
            let found = all.iter().find(|operation| operation.name == name);
            found.cloned().ok_or_else(|| CallsError::NoOperation { name: name.to_owned(), names: names() })
        }
    }
}

/// Names of the classes of an operation.
fn classes(stream: &mut Stream, operation: u32) -> Result<HashMap<u32, String>, OpenError> {
    let mut classes = HashMap::new();
    stream.each(|row: OperationClassRow| {
        if row.operation == operation {
            classes.insert(row.class_id, row.class_name);
        }
    })?;
    Ok(classes)
}

fn class(
    classes: &HashMap<u32, String>,
    operation: &str,
    wanted: &Wanted,
) -> Result<Option<u32>, CallsError> {
    let Some(name) = &wanted.class else { return Ok(None) };
    let found = classes.iter().find(|(_, class)| *class == name).map(|(id, _)| *id);
    found.map(Some).ok_or_else(|| CallsError::NoClass {
        operation: operation.to_owned(),
        name: name.clone(),
        names: listed(classes.values().map(String::as_str).collect()),
    })
}

/// Names of the functions whose entries are recorded.
fn names(stream: &mut Stream, watched: &[u32]) -> Result<FunctionNames, OpenError> {
    let watched: HashSet<u32> = watched.iter().copied().collect();
    let mut names: HashMap<u32, String> = HashMap::new();
    stream.each(|row: ClassRow| {
        if watched.contains(&row.class_id) {
            names.insert(row.class_id, row.name);
        }
    })?;
    let (classes, names): (Vec<u32>, Vec<String>) = names.into_iter().unzip();
    let short = short_names(&names.iter().map(String::as_str).collect::<Vec<_>>());
    Ok(classes.into_iter().zip(names.into_iter().zip(short)).collect())
}

/// Operations that are wanted.
#[derive(Debug, Default)]
struct Choice {
    /// Their places in the census, and their rows.
    rows: Vec<(usize, OperationRow)>,
    /// Response times of those that are known to be incomplete, ns.
    incomplete: Vec<u64>,
}

impl Choice {
    fn places(&self) -> HashMap<usize, usize> {
        self.rows.iter().enumerate().map(|(index, (place, _))| (*place, index)).collect()
    }

    fn slower_incomplete(&self) -> usize {
        let slowest = self.rows.iter().map(|(_, row)| row.duration_ns).max().unwrap_or(0);
        self.incomplete.iter().filter(|time| **time > slowest).count()
    }
}

/// One pass over the operations.
fn choose(
    stream: &mut Stream,
    wanted: &Wanted,
    operation: u32,
    class: Option<u32>,
) -> Result<(Census, Choice), OpenError> {
    let start_ns = stream.meta().start_ns;
    let (mut census, mut choice, mut place) = (Census::default(), Choice::default(), 0);
    let mut slowest: BinaryHeap<(Reverse<u64>, usize)> = BinaryHeap::new();
    let mut rows: HashMap<usize, OperationRow> = HashMap::new();
    stream.each(|row: OperationRow| {
        census.add(&row);
        let is_wanted = row.operation == operation && class.is_none_or(|class| class == row.class_id);
        match wanted.which {
            _ if !is_wanted => {}
            Which::At(after_ns) => {
                let at = start_ns.saturating_add(after_ns);
                if (row.begin_ns..=row.begin_ns.saturating_add(row.duration_ns)).contains(&at) {
                    choice.rows.push((place, row));
                }
            }
            Which::Slowest(_) if row.censored || row.incomplete != Some(false) || row.pid.is_none() => {
                choice.incomplete.push(row.duration_ns);
            }
            Which::Slowest(n) => {
                slowest.push((Reverse(row.duration_ns), place));
                rows.insert(place, row);
                if slowest.len() > n
                    && let Some((_, fastest)) = slowest.pop()
                {
                    rows.remove(&fastest);
                }
            }
        }
        place += 1;
    })?;
    census.sort();
    choice.rows.extend(rows);
    match wanted.which {
        Which::At(_) => choice.rows.sort_by_key(|(place, row)| (row.begin_ns, *place)),
        Which::Slowest(_) => choice.rows.sort_by_key(|(place, row)| (Reverse(row.duration_ns), *place)),
    }
    Ok((census, choice))
}

/// Words of the chosen operations, by their places in the census.
fn words(stream: &mut Stream, choice: &Choice) -> Result<HashMap<usize, Vec<WordRow>>, OpenError> {
    let key = |row: &OperationRow| (row.operation, row.tid, row.begin_ns);
    let places: HashMap<_, usize> = choice.rows.iter().map(|(place, row)| (key(row), *place)).collect();
    let mut words: HashMap<usize, Vec<WordRow>> = HashMap::new();
    stream.each(|row: WordRow| {
        let Some(operation) = row.operation else { return };
        if let Some(place) = places.get(&(operation, row.tid, row.begin_ns)) {
            words.entry(*place).or_default().push(row);
        }
    })?;
    Ok(words)
}

/// Steps of a chosen operation.
#[derive(Debug, Clone, Default)]
struct Found {
    /// How many there are.
    count: u64,
    /// All of them, or none where there are too many.
    steps: Vec<StepRow>,
}

/// One pass over the steps.
fn gather(
    stream: &mut Stream,
    census: &mut Census,
    places: &HashMap<usize, usize>,
) -> Result<Vec<Found>, OpenError> {
    let mut found = vec![Found::default(); places.len()];
    let mut held = 0;
    stream.each(|step: StepRow| {
        census.count(&step, |place| {
            let Some(found) = places.get(&place).and_then(|index| found.get_mut(*index)) else { return };
            found.count += 1;
            // Of an operation that has lost one the others are of no use.
            if found.count == found.steps.len() as u64 + 1 && held < MOST_STEPS {
                found.steps.push(step);
                held += 1;
            } else {
                held -= found.steps.len() as u64;
                found.steps = Vec::new();
            }
        });
    })?;
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests;
