//! A sample's error within windows, as Mertz and Nunes count it in their Table 3.

use profiler_core::adapt::OperationClassId;
use profiler_core::adapt::replay::Operation;
use profiler_core::stats::moments::Moments;
use std::collections::BTreeMap;

/// The paper's RMSE within windows (its cycles): root mean square of `plain - truth` over all pairs of window and class
/// that have both, and the number of pairs with operations and none recorded.
#[must_use]
pub fn windowed(trace: &[Operation], recorded: &[bool], ends_s: &[f64]) -> (f64, u64) {
    let mut pairs: BTreeMap<(usize, OperationClassId), (Moments, Moments)> = BTreeMap::new();
    let mut window = 0;
    for (o, &r) in trace.iter().zip(recorded) {
        while window < ends_s.len() && o.begin_s >= ends_s[window] {
            window += 1;
        }
        let (all, sample) = pairs.entry((window, o.class)).or_default();
        all.push(o.measure);
        if r {
            sample.push(o.measure);
        }
    }
    let errors: Moments =
        pairs.values().filter(|(_, s)| s.n() > 0).map(|(all, s)| (s.mean() - all.mean()).powi(2)).collect();
    (errors.mean().max(0.0).sqrt(), pairs.values().filter(|(_, s)| s.n() == 0).count() as u64)
}
