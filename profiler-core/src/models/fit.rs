//! From calls to a model.

mod medians;

use super::calibration::{Calibration, ShortCalls};
use super::call::Calls;
use super::cells::{CLEAR, Cell, Short, Table};
use super::class::{Class, GOOD_FIT};
use super::goodness::{Baseline, Goodness};
use super::model::{Basis, Critical, Curve, Doubt, Model, NoModel, Reason, is_short};
use super::screen::{LEAST_VALUES, Roles, roles};
use super::search::{Choice, Found, Searched, regimes};
use super::shape::{PowerLaw, Shape};
use super::sum::Design;
use super::term;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Parts into which the medians are divided; each is predicted once by a model made without it.
const FOLDS: usize = 5;
/// Growth over the range up to which a function is constant.
const CONSTANT: f64 = 1.05;
/// A constant is one only if growth beyond this is ruled out.
const NOT_RULED_OUT: f64 = 1.5;
/// Fewest cells for two regimes.
const LEAST_FOR_REGIMES: usize = 12;
/// Noise ceiling below which noise is the reason for a bad fit.
const CLEAR_CEILING: f64 = 0.97;

/// Fits a model to the calls of a function in one calling context. The same `seed` gives the same model.
///
/// # Errors
/// There is no model; the reason says why.
///
/// # Cost
/// Some milliseconds for 30 distinct inputs, some tens for 500; not for each call.
pub fn fit(calls: &Calls, seed: u64) -> Result<Model, NoModel> {
    let mut roles = roles(calls);
    super::idle::leave_idle(calls, &mut roles);
    let table = Table::new(calls, &roles);
    let none = |reason| {
        let inputs = roles.unusable.clone();
        Err(NoModel { reason, inputs, calls: calls.len() as u64, shortest_ns: table.shortest_ns })
    };
    let Some(shortest_ns) = table.shortest_ns else {
        return none(Reason::NoCalls);
    };
    if calls.inputs().is_empty() {
        return none(Reason::NoInputs);
    }
    if roles.numbers.is_empty() {
        return none(Reason::NoUsableInput);
    }
    let Some(kernel) = Kernel::new(&table, roles.numbers.len()) else {
        // Further inputs would help only where those of short calls are not enough.
        let distinct = table.cells.len();
        let is_short = !table.short.is_empty() && distinct + table.short.len() >= LEAST_VALUES;
        return none(if is_short {
            Reason::Short { calls: table.left_out.short }
        } else {
            Reason::FewInputs { distinct }
        });
    };
    let Some(fitted) = kernel.fitted(seed) else { return none(Reason::NoFit) };
    Ok(model(calls, roles, &table, &kernel, fitted, shortest_ns))
}

/// Cells, and how they are divided.
struct Kernel {
    /// All cells of categories that have enough of them.
    whole: Design,
    /// For each category that has enough: its index, and the indices of its cells in `whole`.
    parts: Vec<(usize, Vec<usize>)>,
    /// Index in the table of each cell of `whole`.
    places: Vec<usize>,
}

/// Which forms are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Sums,
    Regimes { input: usize },
    Power,
}

/// A choice, and what was predicted for each cell without it.
struct Fitted {
    found: Found,
    /// Parts of the cells, each with one curve.
    parts: Vec<Vec<usize>>,
    by_category: bool,
    held_out: Vec<f64>,
    goodness: Goodness,
}

impl Kernel {
    fn new(table: &Table, inputs: usize) -> Option<Self> {
        let mut of: Vec<(usize, Vec<usize>)> =
            (0..table.categories.len()).map(|category| (category, Vec::new())).collect();
        for (i, cell) in table.cells.iter().enumerate() {
            if let Some((_, rows)) = of.get_mut(cell.category) {
                rows.push(i);
            }
        }
        of.retain(|(_, rows)| rows.len() >= LEAST_VALUES);
        let (mut places, mut parts) = (Vec::new(), Vec::new());
        for (category, rows) in of {
            parts.push((category, (places.len()..places.len() + rows.len()).collect()));
            places.extend(rows);
        }
        let cells: Vec<Cell> = places.iter().filter_map(|i| table.cells.get(*i).cloned()).collect();
        (!cells.is_empty()).then(|| Self { whole: Design::new(cells, term::all(inputs)), parts, places })
    }

    /// The best model, by the criterion; the power law where its fit is not good.
    fn fitted(&self, seed: u64) -> Option<Fitted> {
        let all: Vec<usize> = (0..self.places.len()).collect();
        let mut parts = vec![all];
        let (mut family, mut by_category) = (Family::Sums, false);
        let mut found = self.sums(&parts)?;
        if self.parts.len() > 1 {
            let own: Vec<Vec<usize>> = self.parts.iter().map(|(_, rows)| rows.clone()).collect();
            if let Some(better) = self.sums(&own).filter(|f| f.best.criterion < found.best.criterion) {
                (found, parts, by_category) = (better, own, true);
            }
        }
        if !by_category && self.places.len() >= LEAST_FOR_REGIMES {
            let inputs = self.whole.cells.first().map_or(0, |c| c.x.len());
            for input in 0..inputs {
                let Some(split) = regimes(&self.plain(input), input) else { continue };
                let least = found.by_class.entry(Class::TwoRegimes).or_insert(split.criterion);
                *least = least.min(split.criterion);
                // A sum that is near enough needs no switching point: caches bend it, too.
                if split.criterion < found.least && !found.best.only_bends() {
                    found.least = split.criterion;
                    (found.best, family) = (split, Family::Regimes { input });
                }
            }
        }
        let fitted = self.judged(found, family, parts, by_category, seed)?;
        if fitted.goodness.adjusted_r2 >= GOOD_FIT {
            return Some(fitted);
        }
        let law = self.power(&fitted, seed);
        Some(law.filter(|law| law.goodness.adjusted_r2 >= GOOD_FIT).unwrap_or(fitted))
    }

    fn sums(&self, parts: &[Vec<usize>]) -> Option<Found> {
        let designs: Vec<Design> = parts.iter().map(|rows| self.whole.part(rows)).collect();
        Searched { whole: &self.whole, parts: &designs }.sums()
    }

    /// The cells, with the plain terms of one input.
    fn plain(&self, input: usize) -> Design {
        Design::new(self.whole.cells.clone(), term::plain(input))
    }

    fn power(&self, sums: &Fitted, seed: u64) -> Option<Fitted> {
        let shapes = self.trained(&sums.parts, Family::Power)?;
        let class = shapes.iter().map(|s| s.class(&[])).max()?;
        let mut found = sums.found.clone();
        found.best = Choice { shapes, class, ..found.best };
        self.judged(found, Family::Power, sums.parts.clone(), sums.by_category, seed)
    }

    /// Predicts each cell by a model that was chosen and fitted without it, and measures the fit.
    fn judged(
        &self,
        found: Found,
        family: Family,
        parts: Vec<Vec<usize>>,
        by_category: bool,
        seed: u64,
    ) -> Option<Fitted> {
        let folds = self.folds(&parts, seed);
        let mut held_out = vec![f64::NAN; self.places.len()];
        for fold in 0..FOLDS {
            let is_out = |i: &usize| folds.get(*i) == Some(&fold);
            let rest: Vec<Vec<usize>> =
                parts.iter().map(|rows| rows.iter().copied().filter(|i| !is_out(i)).collect()).collect();
            let shapes = self.trained(&rest, family)?;
            for (rows, shape) in parts.iter().zip(&shapes) {
                for i in rows.iter().filter(|i| is_out(i)) {
                    if let (Some(place), Some(cell)) = (held_out.get_mut(*i), self.whole.cells.get(*i)) {
                        *place = shape.at(&cell.x);
                    }
                }
            }
        }
        let parameters = found.best.shapes.iter().map(Shape::parameters).sum::<usize>();
        // Each further curve has an intercept of its own.
        let parameters = parameters + parts.len().saturating_sub(1);
        let constant = found.best.class == Class::Constant && parts.len() == 1;
        let baseline = if constant { Baseline::Zero } else { Baseline::Mean };
        let goodness = Goodness::new(&self.whole.cells, &held_out, parameters, baseline);
        Some(Fitted { found, parts, by_category, held_out, goodness })
    }

    fn trained(&self, parts: &[Vec<usize>], family: Family) -> Option<Vec<Shape>> {
        match family {
            Family::Sums => Some(self.sums(parts)?.best.shapes),
            Family::Regimes { input } => {
                let design = self.plain(input).part(parts.first()?);
                match regimes(&design, input) {
                    Some(choice) => Some(choice.shapes),
                    None => Some(self.sums(parts)?.best.shapes),
                }
            }
            Family::Power => parts
                .iter()
                .map(|rows| PowerLaw::fit(&self.whole.part(rows).cells).map(Shape::Power))
                .collect(),
        }
    }

    /// The part of each cell. Of every five neighbours by time each is in another part, so that each part has small and large inputs.
    fn folds(&self, parts: &[Vec<usize>], seed: u64) -> Vec<usize> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut folds = vec![0; self.places.len()];
        for rows in parts {
            let mut sorted = rows.clone();
            let time = |i: &usize| self.whole.cells.get(*i).map_or(0.0, |c| c.median_ns);
            sorted.sort_by(|a, b| time(a).total_cmp(&time(b)));
            for neighbours in sorted.chunks(FOLDS) {
                let mut free: Vec<usize> = (0..FOLDS).collect();
                for i in neighbours {
                    let fold = free.swap_remove(random.random_range(0..free.len()));
                    if let Some(place) = folds.get_mut(*i) {
                        *place = fold;
                    }
                }
            }
        }
        folds
    }
}

fn model(
    calls: &Calls,
    roles: Roles,
    table: &Table,
    kernel: &Kernel,
    fitted: Fitted,
    shortest_ns: f64,
) -> Model {
    let names = |of: &[usize]| {
        let name = |i: &usize| calls.inputs().get(*i).map(|input| input.name.clone());
        of.iter().filter_map(name).collect::<Vec<String>>()
    };
    let inputs = names(&roles.numbers);
    let cells = &kernel.whole.cells;
    let range = ends(cells, inputs.len());
    let top: Vec<f64> = range.iter().map(|(_, high)| *high).collect();
    let critical = critical(&fitted, &range, &inputs);
    let exponent = exponent(cells, &fitted.parts, &inputs, &critical);
    let (form, class, doubt) = class(&fitted, cells, exponent, &roles);
    let printed = match (class, fitted.found.best.shapes.first()) {
        (Class::TwoRegimes, Some(shape)) => shape.growth(&top).printed(),
        _ => class.printed(),
    };
    let alternatives = fitted.found.alternatives().into_iter().filter(|c| *c != form).collect();
    let calibration = calibration(table, kernel, &fitted, &range, CLEAR * calls.known_to_ns());
    let category = |place: usize| {
        let (index, _) = kernel.parts.get(place)?;
        table.categories.get(*index).cloned()
    };
    let curve = |(place, shape): (usize, Shape)| {
        let category = if fitted.by_category { category(place).unwrap_or_default() } else { Vec::new() };
        Curve { category, shape }
    };
    let behind = cells.iter().map(|c| u64::from(c.calls)).sum();
    Model {
        categories: if fitted.by_category { names(&roles.categories) } else { Vec::new() },
        curves: fitted.found.best.shapes.into_iter().enumerate().map(curve).collect(),
        class,
        printed,
        form,
        alternatives,
        is_simplified: fitted.found.best.criterion > fitted.found.least,
        doubt,
        goodness: fitted.goodness,
        critical,
        range,
        exponent,
        basis: Basis {
            calls: behind,
            distinct: cells.len(),
            left_out: table.left_out,
            shortest_ns,
            known_to_ns: calls.known_to_ns(),
        },
        calibration,
        inputs,
        roles,
    }
}

fn ends(cells: &[Cell], inputs: usize) -> Vec<(f64, f64)> {
    range(&cells.iter().map(|cell| cell.x.as_slice()).collect::<Vec<&[f64]>>(), inputs)
}

/// Smallest and largest value of each input.
fn range(xs: &[&[f64]], inputs: usize) -> Vec<(f64, f64)> {
    let values = |input: usize| xs.iter().filter_map(move |x| x.get(input).copied());
    let ends = |input| (values(input).fold(f64::INFINITY, f64::min), values(input).fold(0.0, f64::max));
    (0..inputs).map(ends).collect()
}

/// Inputs that change the predicted time by more than 5 %, the one that changes it most first.
fn critical(fitted: &Fitted, range: &[(f64, f64)], names: &[String]) -> Vec<Critical> {
    let middle: Vec<f64> = range.iter().map(|(low, high)| (low.max(1.0) * high.max(1.0)).sqrt()).collect();
    let at = |shape: &Shape, input: usize, value: f64| {
        let place = |(i, x): (usize, &f64)| if i == input { value } else { *x };
        shape.at(&middle.iter().enumerate().map(place).collect::<Vec<f64>>())
    };
    let mut critical = Vec::new();
    for (input, (name, (low, high))) in names.iter().zip(range).enumerate() {
        let ratio = |shape: &Shape| at(shape, input, *high) / at(shape, input, *low).max(f64::MIN_POSITIVE);
        let ratios = fitted.found.best.shapes.iter().map(ratio);
        let influence = ratios.max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs())).unwrap_or(1.0);
        if !(1.0 / CONSTANT..=CONSTANT).contains(&influence) {
            critical.push(Critical { name: name.clone(), influence });
        }
    }
    critical.sort_by(|a, b| b.influence.ln().abs().total_cmp(&a.influence.ln().abs()));
    critical
}

/// Slope of ln(time) over ln(input), with its interval, if one input at most is critical: of several curves, the slope that they have in common.
fn exponent(
    cells: &[Cell],
    parts: &[Vec<usize>],
    names: &[String],
    critical: &[Critical],
) -> Option<(f64, f64, f64)> {
    let input = match (critical, names) {
        ([one], _) => names.iter().position(|name| *name == one.name)?,
        ([], [_]) => 0,
        _ => return None,
    };
    let (value, interval) = PowerLaw::common_exponent(cells, parts, input)?;
    Some((value, interval.low, interval.high))
}

/// Class of the best form, class that is told, and why that is unknown.
fn class(
    fitted: &Fitted,
    cells: &[Cell],
    exponent: Option<(f64, f64, f64)>,
    roles: &Roles,
) -> (Class, Class, Option<Doubt>) {
    let shapes = &fitted.found.best.shapes;
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for (rows, shape) in fitted.parts.iter().zip(shapes) {
        for cell in rows.iter().filter_map(|i| cells.get(*i)) {
            let at = shape.at(&cell.x);
            (low, high) = (low.min(at), high.max(at));
        }
    }
    let is_flat = high <= CONSTANT * low;
    let form = if is_flat { Class::Constant } else { fitted.found.best.class };
    let g = fitted.goodness;
    let is_good = match (form, fitted.found.best.class) {
        // A sum that is flat is measured about the mean, where a constant has no R^2.
        (Class::Constant, _) => g.relative_error * g.relative_error <= 1.0 - GOOD_FIT,
        _ => g.adjusted_r2 >= GOOD_FIT,
    };
    if !is_good {
        let doubt = if g.ceiling < CLEAR_CEILING {
            Doubt::Noise { more_calls: ((1.0 - g.ceiling) / (1.0 - CLEAR_CEILING)).ceil() }
        } else {
            // Of several inputs nobody knows which one the medians should follow.
            let is_plain = roles.numbers.len() == 1 && roles.categories.is_empty();
            let follows = if is_plain { medians::follows(cells, &fitted.held_out) } else { None };
            follows.unwrap_or(Doubt::Unexplained)
        };
        return (form, Class::Unknown, Some(doubt));
    }
    if form == Class::Constant
        && let (Some((_, _, slope)), [ends]) = (exponent, ends(cells, 1).as_slice())
    {
        let at_most = (ends.1.max(1.0) / ends.0.max(1.0)).powf(slope);
        if at_most > NOT_RULED_OUT {
            return (form, Class::Unknown, Some(Doubt::Flat { at_most }));
        }
    }
    (form, form, None)
}

/// Residuals of calls from what was predicted for their inputs without their cell, and, apart from them, those of calls for which [no time](super::Basis::floor_ns) is predicted that can be told.
/// The model is made without most of the latter; where the curve predicts more, they are in neither.
fn calibration(
    table: &Table,
    kernel: &Kernel,
    fitted: &Fitted,
    of_model: &[(f64, f64)],
    floor_ns: f64,
) -> Calibration {
    let mut of_cell = vec![None; table.cells.len()];
    for (rows, shape) in fitted.parts.iter().zip(&fitted.found.best.shapes) {
        for i in rows {
            let known = (kernel.places.get(*i), kernel.whole.cells.get(*i), fitted.held_out.get(*i));
            if let (Some(place), Some(cell), Some(without)) = known
                && let Some(slot) = of_cell.get_mut(*place)
            {
                *slot = Some((shape.at(&cell.x), *without, cell.x.as_slice()));
            }
        }
    }
    let mut members = table.members.clone();
    members.sort_unstable_by_key(|m| m.call);
    let (mut residuals, mut xs) = (Vec::new(), Vec::new());
    let mut short: Vec<(usize, f64)> = Vec::new();
    for member in &members {
        let Some((predicted, without, x)) = of_cell.get(member.cell).copied().flatten() else { continue };
        if predicted > floor_ns {
            residuals.push((predicted, (member.ns / without.max(f64::MIN_POSITIVE)).ln()));
        } else if floor_ns > 0.0 {
            short.push((member.call, member.ns));
            xs.push(x);
        }
    }
    for cell in &table.short {
        let is_short = |shape: &Shape| is_short(&cell.x, shape.at(&cell.x), of_model, floor_ns);
        if shape_of(kernel, fitted, cell).is_some_and(is_short) {
            short.extend(&cell.calls);
            xs.push(&cell.x);
        }
    }
    short.sort_unstable_by_key(|(call, _)| *call);
    let inputs = kernel.whole.cells.first().map_or(0, |cell| cell.x.len());
    let short = (!short.is_empty()).then(|| ShortCalls {
        calibration: Calibration::at_floor(
            floor_ns,
            short.iter().map(|(_, ns)| (ns.max(floor_ns) / floor_ns).ln()).collect(),
        ),
        inputs: range(&xs, inputs),
    });
    Calibration::new(residuals).watched(floor_ns / CLEAR, short)
}

/// The curve that holds for short calls; `None`: their category has none.
fn shape_of<'f>(kernel: &Kernel, fitted: &'f Fitted, short: &Short) -> Option<&'f Shape> {
    let is_own = |(category, _): &(usize, Vec<usize>)| *category == short.category;
    let place = if fitted.by_category { kernel.parts.iter().position(is_own)? } else { 0 };
    fitted.found.best.shapes.get(place)
}
