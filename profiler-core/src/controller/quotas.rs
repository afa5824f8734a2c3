//! Hits that the traced classes may take until the next tick.
//!
//! A class is expected to take `F h` hits in the horizon h, and is given slack beyond that, or chance would stop it. What is expected
//! is granted while the income, less what samples, switches and operations take, pays for it, also when there is a debt: something else
//! made it (attaching hundreds of functions). All slack comes from one pool, however many classes there are: a hundred that are hardly
//! ever called may all be called at once.

use super::corridor::least_part;
use super::types::{Action, Tick};
use super::{Controller, Entry, Mode};
use crate::class::ClassId;
use crate::run::arbiter::SLACK_SHARE;
use std::collections::BTreeMap;

/// A tick that took longer counts as this long for the next quotas, s.
const LONGEST_TICK_S: f64 = 0.2;
/// Hits beyond what is expected, for a class that has not been hit yet.
const FIRST_HITS: f64 = 8.0;
/// What the first quotas of a plan have to last for, s: until all of its links are there.
const FIRST_S: f64 = 0.3;
/// Time constant of what classes really take, s.
const TAKEN_TIME_S: f64 = 1.0;

/// Four standard deviations of a Poisson count.
fn chance(expected: f64) -> f64 {
    4.0 * expected.sqrt()
}

/// What the quotas of a horizon may cost, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
struct QuotaFunds {
    tokens_ns: f64,
    /// What comes in and nothing but classes takes.
    income_ns: f64,
    /// For slack, if the income pays for what is expected.
    slack_ns: f64,
    /// The income pays for what is expected, or classes are not why it does not.
    paid: bool,
}

/// Hits for each of these classes: (hits expected, price of one in ns). In sum they cost, beside one hit of each class that could have none
/// otherwise:
/// - where the income pays for what is expected: that, the funds for slack or the rest of tokens and income, whichever is more, and
///   four times the tokens that are left after all of it,
/// - else tokens and income.
fn grant(classes: &[(f64, f64)], funds: &QuotaFunds) -> Vec<u64> {
    let costs =
        |hits: fn(f64) -> f64| -> Vec<f64> { classes.iter().map(|(n, tau)| hits(*n) * tau).collect() };
    let sum = |ns: &[f64]| ns.iter().sum::<f64>();
    let parts = if funds.paid {
        // What is expected before what chance adds, that before what classes need that are not hit.
        vec![costs(|n| n), costs(chance), costs(|_| FIRST_HITS)]
    } else {
        vec![costs(|n| n + chance(n) + FIRST_HITS)]
    };
    let need: f64 = parts.iter().map(|part| sum(part)).sum();
    let there = (funds.tokens_ns + funds.income_ns).max(0.0);
    let left = (funds.tokens_ns - need).max(0.0);
    let (mut pool, spare) = if funds.paid {
        let expected = sum(&parts[0]);
        // A few may explode, not all at once.
        (expected + funds.slack_ns.max(there - expected), left / (classes.len() as f64 / 4.0).max(1.0))
    } else {
        (there, left / classes.len().max(1) as f64)
    };
    let mut granted = vec![0.0; classes.len()];
    for part in &parts {
        for (granted, ns) in granted.iter_mut().zip(share(part, pool)) {
            *granted += ns;
            pool -= ns;
        }
    }
    let hits = |(ns, (_, tau)): (&f64, &(f64, f64))| ((ns + spare) / tau).max(1.0) as u64;
    granted.iter().zip(classes).map(hits).collect()
}

/// Divides `pool` among those who want so much: the dear ones share what the cheap ones leave.
fn share(wanted: &[f64], pool: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut left = pool.max(0.0);
    let mut given = vec![0.0; wanted.len()];
    for (i, of) in order.iter().enumerate() {
        given[*of] = wanted[*of].min(left / (order.len() - i) as f64);
        left = (left - given[*of]).max(0.0);
    }
    given
}

impl Controller {
    /// Smooths what each of the traced classes has really taken: its rate lags behind. A class that is traced no longer takes
    /// nothing any more, whatever it took at the end; bursts wait for tokens of their own, and what they have taken is not reserved any more.
    pub(super) fn note_taken(&mut self, tick: &Tick<'_>) {
        self.capacity_ns = tick.capacity_ns;
        let hits: BTreeMap<ClassId, u64> = tick.hits.iter().copied().collect();
        let weight = 1.0 - (-(tick.elapsed_ns as f64) * 1e-9 / TAKEN_TIME_S).exp();
        for (id, entry) in &mut self.classes {
            let hits = hits.get(id).copied().unwrap_or(0) as f64;
            let taken = hits * entry.order.tau_ns / tick.elapsed_ns.max(1) as f64;
            entry.taken =
                if entry.mode == Mode::Traced { entry.taken + weight * (taken - entry.taken) } else { 0.0 };
            // Charged by now.
            entry.reserved_ns = (entry.reserved_ns - hits * entry.order.tau_ns).max(0.0);
        }
    }

    /// First quotas of the traced classes of a plan, until the next tick: what is expected in [`FIRST_S`], and of the tokens what else
    /// they need; slack is there as at any tick.
    pub(super) fn first_quotas(&self, tokens_ns: f64) -> Vec<Action> {
        let (traced, classes) = self.expected(FIRST_S);
        let slack_ns = SLACK_SHARE * self.capacity_ns;
        let funds = QuotaFunds { tokens_ns: tokens_ns.max(0.0), income_ns: 0.0, slack_ns, paid: true };
        let quotas = traced.iter().zip(grant(&classes, &funds));
        quotas.map(|(entry, quota)| Action::Trace { class: entry.order.class, quota }).collect()
    }

    /// The traced classes: hits expected in the horizon, price of one in ns.
    fn expected(&self, horizon_s: f64) -> (Vec<&Entry>, Vec<(f64, f64)>) {
        let traced: Vec<&Entry> = self.classes.values().filter(|e| e.mode == Mode::Traced).collect();
        let classes =
            traced.iter().map(|e| ((e.rate_hz * horizon_s).max(0.0), e.order.tau_ns.max(1.0))).collect();
        (traced, classes)
    }

    /// Quotas until the next tick: a class that stays near its rate never trips, one that explodes takes at most its part of the tokens
    /// that no window has been granted.
    pub(super) fn set_quotas(&self, tick: &Tick<'_>, actions: &mut Vec<Action>) {
        // A late tick must not grant as much again as the time it was late.
        let horizon_s = (tick.elapsed_ns as f64 * 1e-9).min(LONGEST_TICK_S) * self.config.horizon_ticks;
        let (traced, classes) = self.expected(horizon_s);
        let income = (tick.income - tick.other_cost).max(0.0);
        let load = self.traced_cost().max(traced.iter().map(|e| e.taken).sum());
        // The same as the corridor, which leaves such classes where they are.
        let small = least_part(tick.other_cost + load - tick.income, tick);
        let reserved = self.reserved();
        let granted_ns = reserved
            .within_ns(tick.now_ns, horizon_s * 1e9)
            .max(reserved.held_ns(self.income_left, tick.now_ns));
        let funds = QuotaFunds {
            tokens_ns: tick.tokens_ns - tick.reserved_ns - granted_ns,
            income_ns: income * 1e9 * horizon_s,
            slack_ns: SLACK_SHARE * tick.capacity_ns,
            paid: load <= income || load < small,
        };
        for (entry, hits) in traced.iter().zip(grant(&classes, &funds)) {
            actions.push(Action::Quota { class: entry.order.class, hits });
        }
    }
}

#[cfg(test)]
#[path = "tests/quotas.rs"]
mod tests;
