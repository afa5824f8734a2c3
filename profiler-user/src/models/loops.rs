//! Models of loops: from samples that fell into them inside recorded calls of their functions.
//!
//! A sample has a thread and a time, so it is known which recorded calls were open, and with them the inputs. Its stack says in which loop of the function
//! the thread was, or in which one it had called something. What the counts say of growth, `profiler_core::models` finds out.
//!
//! Memory: some 40 bytes for each call of a function that has a model, and 24 for each sample inside one, while it works.

mod code;
mod places;
mod rate;
mod spans;

use super::piles::{PileKey, Piles};
use super::{FunctionModel, ModelsError};
use crate::recording::Stream;
use code::FunctionCode;
use places::{Looked, Places};
use profiler_core::models::{self, LEAST_SAMPLES, LoopFits, LoopModel, LoopSamples, NoLoopModel};
use profiler_core::recording::{ClassRow, Meta, SampleRow, TrapSampleRow};
use rate::{Periods, Rate};
use spans::{OpenCalls, Span};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

/// Part of the samples in a function's calls whose stacks may end before they reach it.
const MOST_CUT: f64 = 0.05;

/// What samples say of the loops of a function in a context.
#[derive(Debug, Clone, Default)]
pub struct LoopModels {
    /// Loops that samples fell into, outer ones before those inside of them. Empty: none, or there are too few samples in all.
    pub loops: Vec<LoopOfFunction>,
    /// Names of the inputs, in the order of the models.
    pub inputs: Vec<String>,
    /// Samples inside its recorded calls.
    pub samples: u64,
    /// As many as the CPU time of these calls explains.
    pub expected_samples: f64,
    /// Part of these samples whose stacks end before they reach the function, where that is too many: then only samples count that found the thread in
    /// the code of the loop itself.
    pub cut: Option<f64>,
    /// The function's control flow is not completely known.
    pub is_uncertain: bool,
}

/// A loop that samples fell into.
#[derive(Debug, Clone)]
pub struct LoopOfFunction {
    /// `compress2+0x1c0`.
    pub name: String,
    /// Link-time address of its header.
    pub header: u64,
    /// 1: it lies in no other loop.
    pub depth: u32,
    /// Header of the loop around it.
    pub inside: Option<u64>,
    /// File and line that most of its samples fell on.
    pub source: Option<(String, u32)>,
    /// Samples in it and not in a loop inside of it.
    pub samples: u64,
    /// How the time in it, without that in loops inside of it, grows; or why that cannot be said.
    pub found: Result<LoopModel, NoLoopModel>,
}

/// A sample inside a recorded call.
#[derive(Debug, Clone, Copy)]
struct Hit {
    tid: u32,
    class: u32,
    /// Of [`OpenCalls`].
    innermost: u32,
    is_truncated: bool,
    time_ns: u64,
    stack_id: u64,
}

/// Makes the models of loops of the functions that have models themselves. Returned is what the user should know.
///
/// # Errors
/// The recording cannot be opened, or a segment is of a later format.
pub(super) fn add(
    path: &Path,
    piles: &Piles,
    functions: &mut [(PileKey, FunctionModel)],
) -> Result<Vec<String>, ModelsError> {
    let modelled: BTreeSet<u32> =
        functions.iter().filter(|(_, f)| f.found.is_ok()).map(|((class, _), _)| *class).collect();
    if modelled.is_empty() {
        return Ok(Vec::new());
    }
    let numbers: HashMap<PileKey, u32> = piles.of.keys().copied().zip(0..).collect();
    let open = open_calls(piles, &modelled);
    let mut stream = Stream::open(path)?;
    let mut periods = Periods::default();
    let mut hits: Vec<Hit> = Vec::new();
    stream.each(|row: SampleRow| {
        periods.push(row.time_ns, row.period_ns);
        hits.extend(open.at(row.tid, row.time_ns).map(|(class, innermost)| Hit {
            tid: row.tid,
            class,
            innermost,
            is_truncated: row.truncated,
            time_ns: row.time_ns,
            stack_id: row.stack_id,
        }));
    })?;
    if periods.samples() == 0 {
        return Ok(vec![
            "loops have no models: the recording has no samples (--only-named takes none)".to_owned(),
        ]);
    }
    stream.each(|_: TrapSampleRow| periods.push_in_trap())?;
    let rate = periods.rate(lost(&piles.meta));
    let mut of_class: BTreeMap<u32, u64> = BTreeMap::new();
    hits.iter().for_each(|hit| *of_class.entry(hit.class).or_default() += 1);
    let enough: BTreeSet<u32> =
        of_class.iter().filter(|(_, count)| **count >= LEAST_SAMPLES).map(|(class, _)| *class).collect();
    let (code, mut notes) = read_code(&piles.classes, &enough);
    let looked: Vec<Looked<'_>> = code
        .iter()
        .filter_map(|(class, code)| {
            Some(Looked { class: *class, module: &piles.classes.get(class)?.module, code })
        })
        .collect();
    let stacks: HashSet<u64> =
        hits.iter().filter(|hit| code.contains_key(&hit.class)).map(|hit| hit.stack_id).collect();
    let places = Places::read(&mut stream, &stacks, &looked)?;
    let counted = Counted::new(&open, &hits, &looked, &places);
    notes.extend(counted.unclear(&piles.classes));
    for (key, function) in functions.iter_mut().filter(|(_, f)| f.found.is_ok()) {
        let Some(pile) = numbers.get(key).copied() else { continue };
        // Why there is no code is among the notes.
        if enough.contains(&key.0) && !code.contains_key(&key.0) {
            continue;
        }
        function.loops = Some(counted.models(piles, *key, pile, code.get(&key.0), &rate, &places.lines));
    }
    notes.extend(stream.damage().iter().filter(|damage| !piles.damage.contains(damage)).cloned());
    Ok(notes)
}

/// The recorded calls of these classes that returned.
fn open_calls(piles: &Piles, classes: &BTreeSet<u32>) -> OpenCalls {
    let of = (0..).zip(&piles.of).filter(|(_, ((class, _), _))| classes.contains(class));
    OpenCalls::new(of.flat_map(|(number, ((class, _), pile))| {
        (0..).zip(pile.began()).filter_map(move |(call, (began, taken))| {
            taken.own_ns()?;
            // OK because the duration was a whole number of ns.
            let end_ns = began.time_ns.saturating_add(taken.duration_ns as u64);
            Some((began.tid, *class, Span::new(began.time_ns, end_ns, number, call)))
        })
    }))
}

/// Samples that were taken and are not in the recording.
fn lost(meta: &Meta) -> u64 {
    meta.losses.samples_ring_full.saturating_add(meta.losses.samples_missed)
}

/// The code of these classes by class, and what the user should know of modules whose files do not help.
fn read_code(
    classes: &HashMap<u32, ClassRow>,
    wanted: &BTreeSet<u32>,
) -> (BTreeMap<u32, FunctionCode>, Vec<String>) {
    let mut modules: BTreeMap<(&str, &str), BTreeSet<u64>> = BTreeMap::new();
    let rows = || wanted.iter().filter_map(|class| classes.get(class));
    for row in rows() {
        modules.entry((&row.module, &row.build_id)).or_default().insert(row.address);
    }
    let (mut found, mut notes) = (BTreeMap::new(), Vec::new());
    for ((module, build_id), functions) in modules {
        let of_module = |row: &&ClassRow| row.module == module && row.build_id == build_id;
        match code::read(module, build_id, &functions) {
            Ok(mut code) => {
                let codes = rows()
                    .filter(of_module)
                    .filter_map(|row| Some((row.class_id, code.remove(&row.address)?)));
                found.extend(codes);
            }
            Err(why) => notes.push(format!("loops of {module} have no models: {why}")),
        }
    }
    (found, notes)
}

/// Samples by function.
#[derive(Debug, Default)]
struct OfClass {
    samples: u64,
    /// No stack is known.
    without_stack: u64,
    /// Their stacks end before they reach the function.
    cut: u64,
    /// Their stacks are whole and have more or fewer frames of the function than calls of it were recorded: a call's row is missing, and it is not known
    /// which frame is whose.
    unclear: u64,
    /// Line of the loop's samples, and how many, by loop.
    lines: HashMap<u32, BTreeMap<u32, u64>>,
}

impl OfClass {
    /// Part of the samples whose stacks end before they reach the function, if that is too many.
    fn too_many_cut(&self) -> Option<f64> {
        let share = self.cut as f64 / self.samples.max(1) as f64;
        (share > MOST_CUT).then_some(share)
    }

    /// Part of the samples of which it is known where they fell.
    fn known(&self) -> f64 {
        let cut = if self.too_many_cut().is_some() { 0 } else { self.cut };
        1.0 - (self.without_stack + cut + self.unclear) as f64 / self.samples.max(1) as f64
    }
}

/// Samples by function, and by loop and call.
#[derive(Debug, Default)]
struct Counted {
    classes: HashMap<u32, OfClass>,
    /// Of a function in its context: samples inside each call, calls of the same function inside of it included.
    in_piles: HashMap<u32, u64>,
    /// Of a function in its context, and a loop: number of the call, and how many samples.
    in_loops: HashMap<(u32, u32), BTreeMap<usize, u64>>,
}

impl Counted {
    fn new(open: &OpenCalls, hits: &[Hit], looked: &[Looked<'_>], places: &Places) -> Self {
        let mut counted = Self::default();
        let numbers: HashMap<u32, u32> =
            looked.iter().zip(0..).map(|(l, number)| (l.class, number)).collect();
        let own = |hit: &Hit| {
            let number = numbers.get(&hit.class).copied();
            places.of(hit.stack_id).iter().filter(move |place| Some(place.function) == number)
        };
        for hit in hits {
            let of = counted.classes.entry(hit.class).or_default();
            of.samples += 1;
            of.without_stack += u64::from(hit.stack_id == 0);
            of.cut += u64::from(hit.stack_id != 0 && hit.is_truncated && own(hit).next().is_none());
        }
        for hit in hits {
            let calls = || open.outwards(hit.tid, hit.class, hit.innermost, hit.time_ns);
            calls().for_each(|span| *counted.in_piles.entry(span.pile).or_default() += 1);
            let Some(of) = counted.classes.get_mut(&hit.class) else { continue };
            let leaves_only = of.too_many_cut().is_some();
            if !hit.is_truncated && own(hit).next().is_some() && own(hit).count() != calls().count() {
                of.unclear += 1;
                continue;
            }
            // The innermost frame of the function is that of the innermost call, and so on outwards.
            for (place, span) in own(hit).zip(calls()) {
                let Some(number) = place.in_loop.filter(|_| place.is_leaf || !leaves_only) else { continue };
                if let Some(line) = place.line {
                    *of.lines.entry(number).or_default().entry(line).or_default() += 1;
                }
                let calls = counted.in_loops.entry((span.pile, number)).or_default();
                *calls.entry(span.call as usize).or_default() += 1;
            }
        }
        counted
    }

    /// What the user should know of functions with many samples of which it is not clear in which call they fell.
    fn unclear(&self, classes: &HashMap<u32, ClassRow>) -> Vec<String> {
        let many = |of: &OfClass| of.unclear as f64 > MOST_CUT * of.samples as f64;
        let found = self.classes.iter().filter(|(_, of)| many(of));
        let mut told: Vec<String> = found
            .filter_map(|(class, of)| {
                let name = &classes.get(class)?.name;
                let (unclear, samples) = (of.unclear, of.samples);
                Some(format!(
                    "loops of {name}: {unclear} of {samples} samples are left out: their stacks have another number of its calls than were recorded"
                ))
            })
            .collect();
        told.sort_unstable();
        told
    }

    /// The models of one function in its context.
    fn models(
        &self,
        piles: &Piles,
        key: PileKey,
        pile: u32,
        code: Option<&FunctionCode>,
        rate: &Rate,
        lines: &[(String, u32)],
    ) -> LoopModels {
        let none = OfClass::default();
        let of = self.classes.get(&key.0).unwrap_or(&none);
        let samples = self.in_piles.get(&pile).copied().unwrap_or(0);
        let Some(calls) = piles.of.get(&key) else { return LoopModels::default() };
        let (mut samples_per_s, mut expected_samples) = (Vec::new(), 0.0);
        for (began, taken) in calls.began() {
            let hz = rate.mean_hz(began.time_ns, began.time_ns.saturating_add(taken.duration_ns as u64));
            let off_ns = began.context.off_cpu_ns.unwrap_or(0) as f64;
            expected_samples += taken.own_ns().map_or(0.0, |own_ns| hz * (own_ns - off_ns).max(0.0) / 1e9);
            samples_per_s.push(hz * of.known());
        }
        let mut models = LoopModels { samples, expected_samples, ..LoopModels::default() };
        let Some(code) = code else { return models };
        (models.cut, models.is_uncertain) = (of.too_many_cut(), code.loops.uncertain);
        let numbers: Vec<u32> = in_order(code).filter(|n| self.in_loops.contains_key(&(pile, *n))).collect();
        let in_loop = |number: &u32| self.in_loops.get(&(pile, *number)).cloned().unwrap_or_default();
        let sampled = LoopSamples { samples_per_s, loops: numbers.iter().map(in_loop).collect() };
        let LoopFits { inputs, loops } = models::fit_loops(&calls.calls, &sampled);
        models.inputs = inputs;
        let row = piles.classes.get(&key.0);
        for ((number, counts), found) in numbers.iter().zip(&sampled.loops).zip(loops) {
            let Some(own) = code.loops.loops.get(*number as usize) else { continue };
            let around = own.parent.and_then(|parent| code.loops.loops.get(parent as usize));
            let most = of.lines.get(number).and_then(|lines| lines.iter().max_by_key(|(_, count)| **count));
            models.loops.push(LoopOfFunction {
                name: row.map(|row| name(row, own.header)).unwrap_or_default(),
                header: own.header,
                depth: own.depth,
                inside: around.map(|around| around.header),
                source: most.and_then(|(line, _)| lines.get(*line as usize).cloned()),
                samples: counts.values().sum(),
                found,
            });
        }
        models
    }
}

/// The loops of a function, each one before those inside of it.
fn in_order(code: &FunctionCode) -> impl Iterator<Item = u32> {
    let loops = &code.loops.loops;
    let headers = |number: u32| {
        let up = |number: &u32| loops.get(*number as usize).and_then(|found| found.parent);
        let chain = std::iter::successors(Some(number), up).take(loops.len());
        let mut headers: Vec<u64> = chain.filter_map(|n| loops.get(n as usize)).map(|l| l.header).collect();
        headers.reverse();
        headers
    };
    let mut numbers: Vec<u32> = (0..).take(loops.len()).collect();
    numbers.sort_by_cached_key(|number| headers(*number));
    numbers.into_iter()
}

/// `compress2+0x1c0`; a part that was split off may lie before the function.
fn name(row: &ClassRow, header: u64) -> String {
    match header.checked_sub(row.address) {
        Some(offset) => format!("{}+{offset:#x}", row.name),
        None => format!("{}-{:#x}", row.name, row.address - header),
    }
}

#[cfg(test)]
mod tests;
