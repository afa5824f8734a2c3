//! Synthetic full traces of operations, for tests and for the comparison of policies: published so that the figures can
//! be made again. What it makes is a model of a server, not a server: results from it are labelled so.
//!
//! A closed system as in Mertz and Nunes §4.1.4: a number of users that varies (stationary, seasonal, bursts), each
//! sending an operation, waiting for its end, and thinking; a fixed number of servers, first come first served.

use profiler_core::adapt::OperationClassId;
use profiler_core::adapt::replay::Operation;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One class of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassShape {
    /// Share of the operations.
    pub share: f64,
    /// Mean service time, s, and its coefficient of variation.
    pub service_s: (f64, f64),
    /// Mean measure, and its coefficient of variation.
    pub measure: (f64, f64),
}

/// How the number of users goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Typical number all the time.
    Stationary,
    /// Sine between half and twice the typical number, one minute long.
    Seasonal,
    /// Typical, with 5 s of two and a half times as many every 45 s.
    Bursty,
    /// A third of each, as in the paper.
    Mixed,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 4] = [Self::Stationary, Self::Seasonal, Self::Bursty, Self::Mixed];

    /// Users at a share (0 to 1) of the run, `time_s` into it.
    fn users(self, typical: f64, time_s: f64, share: f64) -> f64 {
        match self {
            Self::Stationary => typical,
            Self::Seasonal => typical * 2f64.powf((std::f64::consts::TAU * time_s / 60.0).sin()),
            Self::Bursty if time_s % 45.0 < 5.0 => 2.5 * typical,
            Self::Bursty => typical,
            Self::Mixed if share < 1.0 / 3.0 => typical,
            Self::Mixed if share < 2.0 / 3.0 => Self::Seasonal.users(typical, time_s, share),
            Self::Mixed => Self::Bursty.users(typical, time_s, share),
        }
    }
}

/// A model of a server and its users.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Classes; shares sum to 1.
    pub classes: Vec<ClassShape>,
    /// Operations served at the same time.
    pub servers: u32,
    /// Typical users.
    pub users: u32,
    /// Mean time between an operation's end and the user's next, s.
    pub think_s: f64,
    /// How users vary.
    pub pattern: Pattern,
    /// Rise of the measure from no user to 2.5 times the typical number, as a share: 0 for a measure that does not feel
    /// the load.
    pub load_effect: f64,
}

impl Workload {
    /// A workload of `classes` classes: shares by Zipf's law, service times from 1 to 20 ms, measures over three decades,
    /// variation from 0.2 to 2, none of them related; 4 servers, a third used by 8 typical users (the paper's h2).
    #[must_use]
    pub fn new(classes: usize, pattern: Pattern, load_effect: f64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x0adb_0adb);
        let norm: f64 = (1..=classes).map(|k| 1.0 / k as f64).sum();
        let classes: Vec<ClassShape> = (1..=classes)
            .map(|k| ClassShape {
                share: 1.0 / k as f64 / norm,
                service_s: (10f64.powf(rng.random_range(-3.0..-1.7)), rng.random_range(0.3..1.0)),
                measure: (10f64.powf(rng.random_range(1.0..4.0)), rng.random_range(0.2..2.0)),
            })
            .collect();
        let mean_s: f64 = classes.iter().map(|c| c.share * c.service_s.0).sum();
        Self { classes, servers: 4, users: 8, think_s: 5.0 * mean_s, pattern, load_effect }
    }

    /// The full trace of `length_s` seconds, sorted by begin. Deterministic by seed.
    #[must_use]
    pub fn trace(&self, length_s: f64, seed: u64) -> Vec<Operation> {
        let mut rng = StdRng::seed_from_u64(seed);
        let most = (2.5 * f64::from(self.users)).ceil() as u32;
        // Times as bits: for floats of at least 0 they order as the floats do.
        let mut arrivals: BinaryHeap<Reverse<(u64, u32)>> =
            (0..most).map(|user| Reverse((rng.random_range(0.0..1.0f64).to_bits(), user))).collect();
        let mut free: BinaryHeap<Reverse<u64>> =
            (0..self.servers).map(|_| Reverse(0.0f64.to_bits())).collect();
        let mut trace = Vec::new();
        while let Some(Reverse((bits, user))) = arrivals.pop() {
            let begin_s = f64::from_bits(bits);
            if begin_s >= length_s {
                continue;
            }
            let users = self.pattern.users(f64::from(self.users), begin_s, begin_s / length_s);
            if f64::from(user) >= users.round() {
                // Not here now: looks in again within a second.
                arrivals.push(Reverse(((begin_s + rng.random_range(0.2..1.0)).to_bits(), user)));
                continue;
            }
            let index = self.draw_class(&mut rng);
            let shape = self.classes[index];
            // OK because there is at least one server.
            let start_s = free.pop().map_or(begin_s, |Reverse(f)| f64::from_bits(f).max(begin_s));
            let end_s = start_s + log_normal(&mut rng, shape.service_s);
            free.push(Reverse(end_s.to_bits()));
            let load = 1.0 + self.load_effect * users / f64::from(most);
            let measure = load * log_normal(&mut rng, shape.measure);
            trace.push(Operation {
                class: OperationClassId(index as u32),
                begin_s,
                duration_s: end_s - begin_s,
                measure,
            });
            let think_s = -self.think_s * (1.0 - rng.random::<f64>()).ln();
            arrivals.push(Reverse(((end_s + think_s).to_bits(), user)));
        }
        trace
    }

    fn draw_class(&self, rng: &mut StdRng) -> usize {
        let mut left = rng.random::<f64>();
        for (index, class) in self.classes.iter().enumerate() {
            left -= class.share;
            if left < 0.0 {
                return index;
            }
        }
        self.classes.len() - 1
    }
}

/// Log-normal with this mean and coefficient of variation.
fn log_normal(rng: &mut StdRng, (mean, cv): (f64, f64)) -> f64 {
    let variance = (1.0 + cv * cv).ln();
    let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    mean * (variance.sqrt() * normal - 0.5 * variance).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::stats::moments::Moments;

    #[test]
    fn a_trace_is_sorted_repeats_and_keeps_to_its_shape() {
        for pattern in Pattern::ALL {
            let w = Workload::new(8, pattern, 0.0, 3);
            let trace = w.trace(60.0, 1);
            assert_eq!(trace, w.trace(60.0, 1));
            assert_ne!(trace, w.trace(60.0, 2));
            assert!(trace.windows(2).all(|p| p[0].begin_s <= p[1].begin_s));
            assert!(trace.iter().all(|o| o.duration_s > 0.0 && o.measure > 0.0), "{pattern:?}");
            let first =
                trace.iter().filter(|o| o.class == OperationClassId(0)).count() as f64 / trace.len() as f64;
            assert!((first / w.classes[0].share - 1.0).abs() < 0.1, "{first}");
        }
    }

    #[test]
    fn bursts_make_operations_wait() {
        let trace = Workload::new(8, Pattern::Bursty, 0.0, 3).trace(90.0, 1);
        let mean = |burst: bool| -> f64 {
            trace
                .iter()
                .filter(|o| (o.begin_s % 45.0 < 5.0) == burst)
                .map(|o| o.duration_s)
                .collect::<Moments>()
                .mean()
        };
        assert!(mean(true) > 1.05 * mean(false), "{} {}", mean(true), mean(false));
    }
}
