//! Which terms: candidates from LASSO and from small sets, compared by one criterion.

use super::class::Class;
use super::shape::{Shape, Split};
use super::sum::{Design, FLOOR, Sum};
use std::collections::BTreeMap;

/// Most terms of a sum.
const MOST_TERMS: usize = 4;
/// Single terms that are tried together with each other one.
const PAIRED: usize = 5;
/// Classes whose best model is at most this much worse are not ruled out: odds of e^3 = 20.
pub(super) const RULED_OUT: f64 = 6.0;
/// A model of all cells: one shape, or one for each category.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub shapes: Vec<Shape>,
    pub class: Class,
    pub criterion: f64,
    /// Weighted mean square of relative errors; of parts the largest.
    pub misfit: f64,
}

/// The best model, and how good the best of each class is.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub best: Choice,
    /// The lowest criterion: a simpler one may have been preferred ([`super::bends`]).
    pub least: f64,
    /// Lowest criterion of each class.
    pub by_class: BTreeMap<Class, f64>,
}

impl Found {
    /// Classes that the data do not rule out, beside the best model's.
    pub fn alternatives(&self) -> Vec<Class> {
        let near = |(class, c): (&Class, &f64)| {
            (*class != self.best.class && *c <= self.least + RULED_OUT).then_some(*class)
        };
        self.by_class.iter().filter_map(near).collect()
    }
}

/// What a model costs: an extended BIC of relative errors.
///
/// ```text
/// N ln(s^2 + 0.02^2) + p ln N + t ln T + prior
/// ```
/// N cells, s^2 the weighted mean of ln(y / f)^2, p coefficients, t terms chosen out of T (Chen and Chen 2008, gamma = 1/2); a form that
/// is 2 % off is as good as one that is exact, since no machine keeps to a form more closely. The prior: [`super::Term::prior`].
pub(super) fn criterion(
    cells: usize,
    misfit: f64,
    parameters: usize,
    terms: usize,
    of: usize,
    prior: f64,
) -> f64 {
    let n = cells as f64;
    n * (misfit + FLOOR * FLOOR).ln()
        + parameters as f64 * n.ln()
        + terms as f64 * (of.max(1) as f64).ln()
        + prior
}

/// The cells of one function, and how they are divided: one part, or one for each category.
pub(super) struct Searched<'a> {
    pub whole: &'a Design,
    pub parts: &'a [Design],
}

impl Searched<'_> {
    /// The best sum of terms, without those by which a form only bends. `None` if not even a constant can be fitted.
    pub fn sums(&self) -> Option<Found> {
        let (mut found, mut single) = (None, None);
        self.try_all(&mut found, &mut single);
        let mut found = found?;
        found.best = self.unbent(found.best, single);
        Some(found)
    }

    /// Tries all sets; `single` becomes the best one of one term.
    fn try_all(&self, found: &mut Option<Found>, single: &mut Option<Choice>) {
        let count = self.whole.terms.len();
        self.try_set(&[], found);
        let mut singles: Vec<(f64, usize)> =
            (0..count).filter_map(|j| Some((self.try_set(&[j], found)?, j))).collect();
        singles.sort_by(|a, b| a.0.total_cmp(&b.0));
        *single = singles.first().and_then(|(_, j)| self.fitted(&[*j]));
        for design in self.parts {
            for set in design.lasso(MOST_TERMS) {
                self.try_set(&set, found);
            }
        }
        let mut best: Option<(f64, [usize; 2])> = None;
        for (place, (_, a)) in singles.iter().take(PAIRED).enumerate() {
            for (_, b) in singles.iter().skip(place + 1) {
                let set = [*a.min(b), *a.max(b)];
                if let Some(c) = self.try_set(&set, found)
                    && best.is_none_or(|(least, _)| c < least)
                {
                    best = Some((c, set));
                }
            }
        }
        let [a, b] = best.map_or([0, 0], |(_, set)| set);
        for (_, third) in singles.iter().filter(|(_, j)| ![a, b].contains(j)) {
            self.try_set(&[a, b, *third], found);
        }
    }

    /// Fits one set of terms; its criterion.
    fn try_set(&self, set: &[usize], found: &mut Option<Found>) -> Option<f64> {
        let choice = self.fitted(set)?;
        let c = choice.criterion;
        note(found, choice);
        Some(c)
    }

    /// One set of terms, fitted to each part.
    pub(super) fn fitted(&self, set: &[usize]) -> Option<Choice> {
        let sums: Vec<Sum> = self.parts.iter().map(|part| part.fit(set)).collect::<Option<_>>()?;
        let (mut misfit, mut largest, mut cells, mut parameters) = (0.0, 0.0_f64, 0, 0);
        let (mut class, mut used) = (Class::Constant, vec![false; set.len()]);
        for (part, sum) in self.parts.iter().zip(&sums) {
            let (count, of_part) = (part.cells.len(), part.misfit(part.cells.iter().map(|c| sum.at(&c.x))));
            misfit += count as f64 * of_part;
            largest = largest.max(of_part);
            cells += count;
            parameters += sum.parameters();
            class = class.max(part.class_of(sum));
            for (used, (_, alpha)) in used.iter_mut().zip(&sum.terms) {
                *used |= *alpha > 0.0;
            }
        }
        let chosen = set.iter().zip(&used).filter(|(_, used)| **used).map(|(j, _)| *j);
        let prior: f64 = chosen.filter_map(|j| self.whole.terms.get(j)).map(|t| t.prior()).sum();
        let terms = used.iter().filter(|used| **used).count();
        let misfit = misfit / cells.max(1) as f64;
        let criterion = criterion(cells, misfit, parameters, terms, self.whole.terms.len(), prior);
        let shapes = sums.into_iter().map(Shape::Sum).collect();
        Some(Choice { shapes, class, criterion, misfit: largest })
    }
}

/// Keeps a candidate if it is the best of all, and of its class.
fn note(found: &mut Option<Found>, choice: Choice) {
    let Choice { class, criterion, .. } = choice;
    if !criterion.is_finite() {
        return;
    }
    match found {
        None => {
            let by_class = BTreeMap::from([(class, criterion)]);
            *found = Some(Found { best: choice, least: criterion, by_class });
        }
        Some(found) => {
            let least = found.by_class.entry(class).or_insert(criterion);
            *least = least.min(criterion);
            if criterion < found.best.criterion {
                (found.best, found.least) = (choice, criterion);
            }
        }
    }
}

/// The best model of two regimes of one input: segmented regression with one switching point, not necessarily continuous.
///
/// Each side is a constant, or one common term with an intercept. A switching point costs as much as two coefficients: its place is searched.
pub(super) fn regimes(design: &Design, input: usize) -> Option<Choice> {
    /// Fewest cells of a regime.
    const LEAST: usize = 5;
    /// Most places that are tried.
    const PLACES: usize = 64;
    let mut order: Vec<usize> = (0..design.cells.len()).collect();
    let x = |i: &usize| design.cells.get(*i).and_then(|c| c.x.get(input)).copied().unwrap_or(0.0);
    order.sort_by(|a, b| x(a).total_cmp(&x(b)));
    let n = order.len();
    let step = n.div_ceil(PLACES).max(1);
    let mut best: Option<Choice> = None;
    for cut in (LEAST..(n + 1).saturating_sub(LEAST)).step_by(step) {
        let (low, high) = order.split_at(cut);
        let (Some(last), Some(first)) = (low.last().map(x), high.first().map(x)) else { continue };
        if last >= first {
            continue;
        }
        let (Some(below), Some(above)) = (side(&design.part(low)), side(&design.part(high))) else {
            continue;
        };
        let split =
            Split { input, switch_at: (last * first.max(1.0)).sqrt().clamp(last, first), below, above };
        let misfit = design.misfit(design.cells.iter().map(|c| split.at(&c.x)));
        let growing = split.below.growing() + split.above.growing();
        // The switching point counts for two.
        let parameters = 2 + split.below.parameters() + split.above.parameters();
        let c = criterion(n, misfit, parameters, growing, design.terms.len(), 0.0);
        if best.as_ref().is_none_or(|b| c < b.criterion) {
            let shapes = vec![Shape::Regimes(Box::new(split))];
            best = Some(Choice { shapes, class: Class::TwoRegimes, criterion: c, misfit });
        }
    }
    best
}

/// The best constant or single term on one side.
fn side(design: &Design) -> Option<Sum> {
    let n = design.cells.len();
    let sets = std::iter::once(Vec::new()).chain((0..design.terms.len()).map(|j| vec![j]));
    let rated = sets.filter_map(|set| {
        let sum = design.fit(&set)?;
        let misfit = design.misfit(design.cells.iter().map(|c| sum.at(&c.x)));
        let growing = sum.growing();
        Some((criterion(n, misfit, sum.parameters(), growing, design.terms.len(), 0.0), sum))
    });
    rated.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, sum)| sum)
}
