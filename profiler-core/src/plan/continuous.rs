//! Problem 1 (Metz et al. §4.1): every class can be reported at any reduced frequency, by itself.
//!
//! `max sum W_i F_i x_i`, `sum c_i x_i <= b`, `0 <= x_i <= 1`: the continuous knapsack. The greedy in order of
//! `W_i / tau_i` is optimal; the class at which it stops is found by selection, so the whole takes O(n).
//! `x_i` is the share of events (or of time) that is reported. Events are detected all the time, so detection is a
//! constant cost (§4.3.4): `b' = b - sum F_i t_detect,i`. Minimum rates (§4.3.5) are floors `x_i >= F_min,i / F_i`.
//! If the shared sampler has a least rate it runs at that, and the profits are `W_i (F_i - s rho_i)`.

use super::certified::duty_floor;
use super::model::{Item, Model};
use super::selection::critical_density;
use super::{Plan, PlanError, Strategy};

/// The optimum of Problem 1.
pub(super) fn solve(model: &Model<'_>) -> Result<Vec<Plan>, PlanError> {
    let s = model.s_min;
    let class = |item: &Item| &model.problem.classes[item.rep as usize];
    let report = |item: &Item| class(item).traced_hz() * class(item).tau_s;
    let detect = |item: &Item| class(item).traced_hz() * class(item).detect_s;
    let floors: Vec<f64> = (0u32..).zip(&model.items).map(|(i, _)| duty_floor(model, 0.0, i, s)).collect();
    let constant = model.base_cost + s * model.sample_cost + model.items.iter().map(detect).sum::<f64>();
    let least = constant + model.items.iter().zip(&floors).map(|(item, x)| x * report(item)).sum::<f64>();
    if !model.fits(least) {
        return Err(model.infeasible(least));
    }
    let mut room = model.budget - least;
    let density = |item: &Item| {
        let (profit, cost) = (item.profit(s), report(item));
        if cost > 0.0 { profit / cost } else { f64::INFINITY }
    };
    let mut keyed: Vec<(f64, f64)> = Vec::with_capacity(model.items.len());
    let mut total = 0.0;
    for (item, floor) in model.items.iter().zip(&floors) {
        let more = (1.0 - floor) * report(item);
        if item.profit(s) > 0.0 && more > 0.0 {
            keyed.push((density(item), more));
            total += more;
        }
    }
    let critical = if total <= room { 0.0 } else { critical_density(&mut keyed, room) };
    let mut duties = floors;
    let mut last = Vec::new();
    for (index, (item, duty)) in model.items.iter().zip(&mut duties).enumerate() {
        if item.profit(s) > 0.0 && density(item) > critical {
            room -= (1.0 - *duty) * report(item);
            *duty = 1.0;
        } else if item.profit(s) > 0.0 && density(item) == critical {
            last.push(index);
        }
    }
    // Classes of the critical density share what is left, in order.
    for index in last {
        let more = (1.0 - duties[index]) * report(&model.items[index]);
        if room > 0.0 && more > 0.0 {
            let part = (room / more).min(1.0);
            room -= part * more;
            duties[index] = if part >= 1.0 { 1.0 } else { duties[index] + part * (1.0 - duties[index]) };
        }
    }
    let attached: Vec<(u32, f64)> = (0u32..).zip(duties).filter(|(_, duty)| *duty > 0.0).collect();
    let mut plan = model.plan_with_duties(&attached, s, Strategy::Continuous, 0.0);
    // Detection runs all the time, and a gate has no charge.
    for item in &model.items {
        let planned = &mut plan.classes[item.rep as usize];
        planned.cost = planned.decision.duty() * report(item) + detect(item);
    }
    let cost = plan.classes.iter().map(|p| p.cost).sum::<f64>() + s * model.sample_cost;
    let value = plan.value;
    Ok(vec![super::model::finish(model.problem, plan.classes, s, cost, value, Strategy::Continuous, value)])
}
