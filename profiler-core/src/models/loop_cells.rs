//! Samples inside the recorded calls of a function, put together by inputs: what models of its loops are made from.

use super::call::Calls;
use super::cells::Table;
use super::loops::{LoopCell, LoopModel, NoLoopModel, fit_loop};
use super::screen::roles;
use std::collections::BTreeMap;

/// Samples that fell into the loops of a function inside its recorded calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopSamples {
    /// Samples per second of CPU time while each call ran, in the order of the calls; 0: none were taken.
    pub samples_per_s: Vec<f64>,
    /// Of each loop: the numbers of calls with samples in it, and how many.
    pub loops: Vec<BTreeMap<usize, u64>>,
}

/// What samples say of the loops of a function.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopFits {
    /// Names of the inputs, in the order of the models.
    pub inputs: Vec<String>,
    /// A model of each loop of [`LoopSamples::loops`], or why there is none.
    pub loops: Vec<Result<LoopModel, NoLoopModel>>,
}

/// Fits a model to each loop of a function whose calls were recorded.
///
/// Inputs are those that a model of the function may have. Calls that differ by category only are put together: a loop has too few samples to
/// be divided. Calls that did not return, and calls with rare inputs, are left out, as of the function.
#[must_use]
pub fn fit_loops(calls: &Calls, sampled: &LoopSamples) -> LoopFits {
    let mut roles = roles(calls);
    roles.categories.clear();
    let table = Table::new(calls, &roles);
    let mut cells: Vec<LoopCell> = table
        .cells
        .iter()
        .map(|cell| LoopCell { x: cell.x.clone(), calls: 0, samples: 0, samples_per_s: 0.0 })
        .collect();
    let mut cell_of: BTreeMap<usize, usize> = BTreeMap::new();
    // No samples are put to calls of which nothing is left.
    for member in table.members.iter().filter(|member| member.ns > 0.0) {
        let Some(cell) = cells.get_mut(member.cell) else { continue };
        cell.calls += 1;
        // The sum for now.
        cell.samples_per_s += sampled.samples_per_s.get(member.call).copied().unwrap_or(0.0).max(0.0);
        cell_of.insert(member.call, member.cell);
    }
    for cell in &mut cells {
        cell.samples_per_s /= (cell.calls as f64).max(1.0);
    }
    let fitted = |samples: &BTreeMap<usize, u64>| {
        let mut own = cells.clone();
        for (call, count) in samples {
            if let Some(cell) = cell_of.get(call).and_then(|at| own.get_mut(*at)) {
                cell.samples += count;
            }
        }
        fit_loop(&own)
    };
    let name = |index: &usize| calls.inputs().get(*index).map(|input| input.name.clone());
    LoopFits {
        inputs: roles.numbers.iter().filter_map(name).collect(),
        loops: sampled.loops.iter().map(fitted).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::call::{Input, Taken, Value};
    use super::super::class::Class;
    use super::*;
    use crate::stats::sim::{poisson, rng};

    /// 16 sizes from 32 on, 300 calls of each, in turn; a loop of `300 n` ns and one of `n^2` ns. The rate falls to a quarter for the second half of
    /// the calls of the larger sizes only: who did not count with that would see the loops flatten.
    fn recorded(seed: u64) -> (Calls, LoopSamples) {
        let mut random = rng(seed);
        let mut calls = Calls::new(vec![Input::number("p"), Input::number("n"), Input::category("mode")]);
        let mut sampled = LoopSamples { loops: vec![BTreeMap::new(); 3], ..LoopSamples::default() };
        for i in 0..16 * 300_u64 {
            let n = (32.0 * 1.27_f64.powi((i % 16) as i32)).round();
            let (linear, square) = (300.0 * n, n * n);
            let is_late = i >= 16 * 150 && i % 16 >= 8;
            let hz = if is_late { 1_000.0 } else { 4_000.0 };
            let values = [Value::Unsigned(1 << 46 | i), Value::Unsigned(n as u64), Value::Category(i % 3)];
            calls.push(&values, Taken::ns(linear + square));
            sampled.samples_per_s.push(hz);
            for (samples, ns) in sampled.loops.iter_mut().zip([linear, square, 10.0]) {
                let count = poisson(&mut random, hz * ns / 1e9) as u64;
                if count > 0 {
                    samples.insert(i as usize, count);
                }
            }
        }
        (calls, sampled)
    }

    #[test]
    fn loops_of_a_function_have_models_of_their_own_where_the_rate_changed_too() {
        let (mut right, mut within) = (0, 0);
        for seed in 0..20 {
            let (calls, sampled) = recorded(seed);
            let fits = fit_loops(&calls, &sampled);
            assert_eq!((fits.inputs.as_slice(), fits.loops.len()), (&["n".to_owned()][..], 3));
            let [Ok(linear), Ok(square), Err(NoLoopModel::FewSamples { samples })] = fits.loops.as_slice()
            else {
                panic!("{fits:?}")
            };
            assert!(*samples < 100);
            right += u32::from(linear.class == Class::Linear && square.class == Class::Polynomial);
            let near = |model: &LoopModel, ns: f64| (model.sum.at(&[1_000.0]) / ns - 1.0).abs() < 0.1;
            within += u32::from(near(linear, 300_000.0) && near(square, 1e6));
        }
        assert!(right >= 16 && within >= 18, "of 20 the classes of {right} and the times of {within}");
    }

    #[test]
    fn calls_without_samples_have_no_say_and_unknown_inputs_no_model() {
        let (calls, sampled) = recorded(1);
        let few = fit_loops(&calls, &LoopSamples { samples_per_s: Vec::new(), ..sampled.clone() });
        assert!(
            few.loops.iter().all(|l| matches!(l, Err(NoLoopModel::FewSamples { samples: 0 }))),
            "{few:?}"
        );
        let mut nameless = Calls::new(Vec::new());
        calls.iter().for_each(|(_, taken)| nameless.push(&[], taken));
        let none = fit_loops(&nameless, &sampled);
        assert_eq!(none.loops[0], Err(NoLoopModel::FewInputs { distinct: 1 }));
    }
}
