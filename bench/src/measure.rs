//! Interleaved measurement: arms take turns within a round, so that drift of the machine hits all of them alike, and
//! ratios are taken within a round.

use profiler_core::stats::LEVEL;
use profiler_core::stats::moments::Moments;
use std::fmt;

/// One figure, measured once a round.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    /// Adds the figure of a round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median; of an even number the mean of the middle two. NaN without values.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }

    /// Each round's figure over the other's of the same round.
    pub fn over(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    /// Each round's figure less the other's of the same round.
    pub fn less(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect())
    }

    /// Each round's figure times a factor.
    pub fn times(&self, factor: f64) -> Series {
        Series(self.0.iter().map(|value| value * factor).collect())
    }

    /// `median (min to max)` with so many decimals.
    pub fn show(&self, decimals: usize) -> String {
        match self.range() {
            Some((least, most)) => {
                format!("{:.decimals$} ({least:.decimals$} to {most:.decimals$})", self.median())
            }
            None => "not measured".to_owned(),
        }
    }

    /// Geometric mean of positive values, with its 95 % interval: `1.02 [0.98, 1.06]`.
    pub fn show_geometric(&self) -> String {
        let logs: Moments = self.0.iter().map(|value| value.ln()).collect();
        match logs.mean_interval(LEVEL) {
            Some(i) => {
                format!("{:.2} [{:.2}, {:.2}]", logs.mean().exp(), i.low.exp(), i.high.exp())
            }
            None => format!("{:.2}", logs.mean().exp()),
        }
    }

    /// Least and most; nothing without values.
    pub fn range(&self) -> Option<(f64, f64)> {
        let sorted = self.sorted();
        Some((*sorted.first()?, *sorted.last()?))
    }

    /// Rounds.
    pub fn n(&self) -> usize {
        self.0.len()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// Runs every arm once a round, starting with another one each round. `run(arm)` measures one arm once.
pub fn interleave<E>(
    rounds: u32,
    arms: usize,
    mut run: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Vec<Series>, E> {
    let mut series = vec![Series::default(); arms];
    for round in 0..rounds as usize {
        for turn in 0..arms {
            let arm = (round + turn) % arms;
            series[arm].push(run(arm)?);
        }
    }
    Ok(series)
}

/// A Markdown table.
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these column heads.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|&text| text.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {} |", self.head.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.head.len()))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_take_turns_and_ratios_are_paired() {
        let mut order = Vec::new();
        let series = interleave(3, 2, |arm| {
            order.push(arm);
            Ok::<_, ()>((arm + 1) as f64 * order.len() as f64)
        })
        .unwrap();
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
        assert_eq!(series[1].over(&series[0]).0, [4.0, 6.0 / 4.0, 12.0 / 5.0]);
        assert_eq!(series[0].show(1), "4.0 (1.0 to 5.0)");
        assert_eq!(series[0].n(), 3);
    }

    #[test]
    fn a_median_of_an_even_number_lies_between() {
        assert_eq!(Series(vec![4.0, 1.0, 2.0, 9.0]).median(), 3.0);
        assert!(Series::default().median().is_nan());
    }

    #[test]
    fn a_geometric_mean_has_the_interval_of_its_logarithms() {
        // ln: -1, 0, 1; standard deviation 1, t(0.975, df 2) = 4.3027.
        let e = std::f64::consts::E;
        assert_eq!(Series(vec![1.0 / e, 1.0, e]).show_geometric(), "1.00 [0.08, 11.99]");
    }
}
