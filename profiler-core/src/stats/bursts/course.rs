//! What the rates of all classes of a run do together: the load doubles, the host is slow for a second.
//!
//! Of a change that all classes share each of them is a witness, but there was one change. So the logarithms of bursts' rates are
//! taken apart, as in a two-way layout with one random side (Searle, Casella and McCulloch 1992, §4.7):
//! ```text
//! log r_gj = level_g + c_b(j) + rest_gj          b(j): the part of the run in which burst j of class g lies
//! c_b = V / (V + n_b) mean_b(log r - level),   n_b = N/(N-G) n/(n-1) sum_b (w rest)^2 / (sum_b w)^2
//! V   = max(0, variance of the parts' means - mean n_b)
//! ```
//! `n_b` is taken from how unlike the classes of a part are, so that one whose calls come in clusters does not pass for a change of all. `V` is known with one degree of
//! freedom less than there are parts, however many classes there are; `rest` with the others.

use super::Cell;

/// A part with bursts of fewer classes says nothing of what all do.
const ENOUGH_CLASSES: usize = 5;
/// Most parts of a run.
const MOST_PARTS: f64 = 100.0;
/// From so many steps between neighbouring parts on their median counts.
const ENOUGH_STEPS: usize = 8;
/// Levels and parts are told from one another so often; two or three times are enough.
const ROUNDS: u32 = 8;
/// Median of chi^2 with one degree of freedom.
const MEDIAN_OF_ONE: f64 = 0.455;
/// Part of the degrees of freedom that is left to classes at least.
const LEAST_LEFT: f64 = 0.1;

/// One burst.
pub(super) struct Point {
    /// Number of its class, from 0.
    pub class: usize,
    /// See [`Cell::at`].
    pub at: f64,
    /// Logarithm of its rate.
    pub log: f64,
    /// What variance that is expected to have by itself.
    pub variance: f64,
}

/// What all classes' rates do together over the run; nothing where that could not be told.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Course {
    /// `c_b` of equal parts of the run.
    logs: Vec<f64>,
    /// `V`, around the run's mean.
    variance: f64,
    /// The same around what neighbouring parts say.
    step: f64,
    /// Degrees of freedom of `V`.
    pub df: f64,
    /// Part of the classes' own degrees of freedom that telling the parts has left.
    pub left: f64,
}

impl Default for Course {
    fn default() -> Self {
        Self { logs: Vec::new(), variance: 0.0, step: 0.0, df: 1.0, left: 1.0 }
    }
}

/// Mean of a part's bursts, and the variance of that.
#[derive(Clone, Copy)]
struct Mean {
    value: f64,
    noise: f64,
}

fn part(at: f64, parts: usize) -> usize {
    // OK because it lies between 0 and the number of parts.
    ((at * parts as f64) as usize).min(parts - 1)
}

/// Weighted means by `key`, NaN where there is nothing.
fn means(points: &[Point], n: usize, key: impl Fn(&Point) -> usize, of: impl Fn(&Point) -> f64) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); n];
    for p in points {
        let (sum, weights) = &mut sums[key(p)];
        *sum += of(p) / p.variance;
        *weights += 1.0 / p.variance;
    }
    sums.into_iter().map(|(sum, weights)| sum / weights).collect()
}

impl Course {
    /// From bursts of `classes` classes in a run of so many `moments`.
    pub fn of(points: &[Point], classes: usize, moments: f64) -> Self {
        // OK because it is between 1 and that; no number is 1.
        let parts = if moments > 1.0 { moments.floor().min(MOST_PARTS) as usize } else { 1 };
        let mut witnesses = vec![std::collections::BTreeSet::new(); parts];
        points.iter().for_each(|p| _ = witnesses[part(p.at, parts)].insert(p.class));
        let known: Vec<bool> = witnesses.iter().map(|of| of.len() >= ENOUGH_CLASSES).collect();
        if known.iter().filter(|k| **k).count() < 2 || points.len() <= classes {
            return Self::default();
        }
        let mut course = Self { logs: vec![0.0; parts], ..Self::default() };
        for _ in 0..ROUNDS {
            let levels = means(points, classes, |p| p.class, |p| p.log - course.logs[part(p.at, parts)]);
            course.take(points, classes, &known, &levels);
        }
        course
    }

    /// The parts, where the classes' levels are these.
    fn take(&mut self, points: &[Point], classes: usize, known: &[bool], levels: &[f64]) {
        let parts = known.len();
        let off = |p: &Point| p.log - levels[p.class];
        let values = means(points, parts, |p| part(p.at, parts), off);
        // Residuals are too small by what the levels have taken from them.
        let residual = (points.len() - classes) as f64;
        let inflate = points.len() as f64 / residual;
        let mut sums = vec![(0.0, 0.0, 0.0); parts];
        for p in points {
            let b = part(p.at, parts);
            let (n, squares, weights) = &mut sums[b];
            *n += 1.0;
            *squares += ((off(p) - values[b]) / p.variance).powi(2);
            *weights += 1.0 / p.variance;
        }
        let mean = |(b, (n, squares, weights)): (usize, (f64, f64, f64))| {
            let noise = inflate * n / (n - 1.0) * squares / (weights * weights);
            known[b].then_some(Mean { value: values[b], noise })
        };
        let found: Vec<Option<Mean>> = sums.into_iter().enumerate().map(mean).collect();
        let told: Vec<Mean> = found.iter().flatten().copied().collect();
        let n = told.len() as f64;
        let middle = told.iter().map(|m| m.value).sum::<f64>() / n;
        let all = told.iter().map(|m| (m.value - middle).powi(2)).sum::<f64>() / (n - 1.0);
        let noise = told.iter().map(|m| m.noise).sum::<f64>() / n;
        self.variance = (all - noise).max(0.0);
        self.step = (steps(&told) - noise).clamp(0.0, self.variance);
        self.df = ((n - 1.0) * (self.variance / all.max(f64::MIN_POSITIVE)).powi(2)).max(f64::MIN_POSITIVE);
        let part_of = |m: &Mean| self.variance / (self.variance + m.noise).max(f64::MIN_POSITIVE);
        let taken = told.iter().map(part_of).sum::<f64>() / n * (n - 1.0);
        self.left = (1.0 - taken / residual).max(LEAST_LEFT);
        let log = |m: &Option<Mean>| m.map_or(0.0, |m| part_of(&m) * (m.value - middle));
        self.logs = found.iter().map(log).collect();
    }

    /// What the rate in a cell is off by, as a factor.
    pub fn factor(&self, cell: &Cell) -> f64 {
        if self.logs.is_empty() { 1.0 } else { self.logs[part(cell.at, self.logs.len())].exp() }
    }

    /// Variance of a mean over bursts with these weights; `change`: the part of it that follows time, for which neighbours speak.
    pub fn variance_of(&self, weights: impl Iterator<Item = f64>, cells: &[Cell], change: f64) -> f64 {
        if self.logs.is_empty() {
            return 0.0;
        }
        let mut sums = vec![0.0; self.logs.len()];
        weights.zip(cells).for_each(|(w, cell)| sums[part(cell.at, self.logs.len())] += w);
        let alike = (1.0 - change).powi(2);
        (alike * self.variance + (1.0 - alike) * self.step) * sums.iter().map(|s| s * s).sum::<f64>()
    }

    /// `V` for a single burst.
    pub fn variance(&self) -> f64 {
        self.variance
    }
}

/// Half of the squared difference of neighbours. Of many the median: one change in the whole run is not what happens between any two.
fn steps(told: &[Mean]) -> f64 {
    let mut squares: Vec<f64> = told.windows(2).map(|m| (m[1].value - m[0].value).powi(2) / 2.0).collect();
    let mean = squares.iter().sum::<f64>() / squares.len() as f64;
    if squares.len() < ENOUGH_STEPS {
        return mean;
    }
    squares.sort_by(f64::total_cmp);
    mean.min(squares[squares.len() / 2] / MEDIAN_OF_ONE)
}
