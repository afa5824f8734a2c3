//! How much slices differ: what a mean over them is off by, because other moments were not looked at.
//!
//! A single slice says nothing of that. So neighbouring strata are collapsed until each group has two slices or more: in the order of time,
//! a stratum that leaves its group with one slice takes the next one in; what is left over at the end joins the group before. What the means of
//! collapsed strata differ by then counts as error, so that the interval is too wide rather than too narrow (Cochran 1977, §5A.12).

/// A slice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    /// Operations that it stands for.
    pub weight: f64,
    /// Mean of its recorded ones.
    pub mean: f64,
    /// Part of its stratum's operations that began outside slices.
    pub unseen: f64,
}

/// A sum of squared errors with its degrees of freedom.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    pub sum: f64,
    /// Sum of each one's square over its degrees of freedom.
    squares: f64,
}

impl Part {
    pub fn add(&mut self, sum: f64, df: f64) {
        self.sum += sum;
        self.squares += sum * sum / df.max(1.0);
    }

    pub fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// Satterthwaite 1946; infinite without error.
    pub fn df(&self) -> f64 {
        if self.squares > 0.0 { self.sum * self.sum / self.squares } else { f64::INFINITY }
    }
}

/// Squared error of the total over strata of slices, in the order of time. `None`: there is one slice in all.
pub(super) fn squared_error(strata: &[Vec<Slice>]) -> Option<Part> {
    let mut all = Part::default();
    for group in collapse(strata) {
        let (error, df) = of_group(&group)?;
        all.add(error, df);
    }
    Some(all)
}

/// Groups of neighbouring strata with two slices or more; one with a single slice if there is no other.
fn collapse(strata: &[Vec<Slice>]) -> Vec<Vec<Slice>> {
    let mut groups: Vec<Vec<Slice>> = Vec::new();
    let mut open = Vec::new();
    for stratum in strata {
        open.extend_from_slice(stratum);
        if open.len() >= 2 {
            groups.push(std::mem::take(&mut open));
        }
    }
    match groups.last_mut() {
        Some(last) => last.append(&mut open),
        None if open.is_empty() => {}
        None => groups.push(open),
    }
    groups
}

/// The squared error, and its degrees of freedom: as many as equally heavy slices would have that differ as little in weight.
fn of_group(slices: &[Slice]) -> Option<(f64, f64)> {
    let n = slices.len() as f64;
    if n < 2.0 {
        return None;
    }
    let weight: f64 = slices.iter().map(|s| s.weight).sum();
    let mean = slices.iter().map(|s| s.weight * s.mean).sum::<f64>() / weight;
    // (e_i / total)^2 / (1 - w_i): with equal weights the customary n / (n - 1).
    let residual = |s: &Slice| (s.weight * (s.mean - mean)).powi(2) / (1.0 - s.weight / weight);
    let error = slices.iter().map(|s| s.unseen * residual(s)).sum();
    let power = |p| slices.iter().map(|s| (s.weight / weight).powi(p)).sum::<f64>();
    Some((error, power(2).powi(2) / power(4) - 1.0))
}
