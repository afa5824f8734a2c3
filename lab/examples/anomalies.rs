//! False alarms and delays of the watch over execution-time models (docs/models.md): `cargo run --release -p profiler-lab --example anomalies`.

use profiler_core::models::{Calls, Event, Input, Model, Seen, Taken, Value, Watch, WatchSettings, fit};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const KERNELS: u32 = 6;
const PER_SECOND: u64 = 20;

/// How calls scatter.
#[derive(Clone, Copy, PartialEq)]
enum Noise {
    /// Independent, log-normal, 20 %.
    Plain,
    /// One call in fifty takes 2 to 10 times as long.
    Tails,
    /// Each call is like the one before it (correlation 0.9): slow phases.
    Phases,
}

fn main() {
    println!("| scatter of calls | hours | false alarms an hour (at most 1 promised) |");
    println!("|---|---|---|");
    for (noise, name) in [
        (Noise::Plain, "independent, 20 %"),
        (Noise::Tails, "the same, one in 50 takes 2 to 10 times as long"),
        (Noise::Phases, "like the call before (correlation 0.9)"),
    ] {
        let (runs, hours) = (5, 4);
        let alarms: usize = (0..runs)
            .map(|seed| Simulation::new(noise, seed).alarms(hours * 3_600, |_, _| (1.0, 1.0)).len())
            .sum();
        println!("| {name} | {} | {:.2} |", runs * hours, alarms as f64 / (runs * hours) as f64);
    }
    println!(
        "\n| from a second on, one function takes | seconds until the alarm: median, 90 % | found in 5 min |"
    );
    println!("|---|---|---|");
    for (factor, part) in
        [(1.1, 1.0), (1.2, 1.0), (1.5, 1.0), (2.0, 1.0), (1.5, 0.2), (2.0, 0.2), (5.0, 0.05), (5.0, 0.02)]
    {
        let mut delays: Vec<u64> = (0..20).filter_map(|seed| delay(seed, factor, part)).collect();
        let found = delays.len();
        delays.resize(20, u64::MAX);
        delays.sort_unstable();
        let told = |d: u64| if d == u64::MAX { "over 300".to_owned() } else { d.to_string() };
        println!(
            "| {factor} times as long in {:.0} % of its calls | {}, {} | {found} of 20 |",
            100.0 * part,
            told(delays[10]),
            told(delays[18])
        );
    }
}

fn delay(seed: u64, factor: f64, part: f64) -> Option<u64> {
    let slower = |kernel, second| if kernel == 2 && second >= 60 { (factor, part) } else { (1.0, 1.0) };
    let events = Simulation::new(Noise::Tails, seed).alarms(360, slower);
    let own = |(second, kernel): &(u64, u32)| (*kernel == 2 && *second >= 60).then(|| second - 59);
    events.iter().find_map(own)
}

struct Simulation {
    noise: Noise,
    random: StdRng,
    models: Vec<Model>,
    before: [f64; KERNELS as usize],
}

impl Simulation {
    /// Models of 40 inputs over three decades, 20 calls of each.
    fn new(noise: Noise, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let mut simulation = Self { noise, random, models: Vec::new(), before: [0.0; KERNELS as usize] };
        for kernel in 0..KERNELS {
            let mut calls = Calls::new(vec![Input::number("n")]);
            for _ in 0..20 {
                for i in 0..40 {
                    let n = (10.0 * 1_000_f64.powf(f64::from(i) / 39.0)).round();
                    let own_ns = 100.0 * n * simulation.scatter(kernel);
                    calls.push(&[Value::Unsigned(n as u64)], Taken::ns(own_ns));
                }
            }
            simulation.models.push(fit(&calls, seed).unwrap());
        }
        simulation
    }

    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.random.random::<f64>(), self.random.random::<f64>());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    fn scatter(&mut self, kernel: u32) -> f64 {
        let fresh = self.normal();
        let before = &mut self.before[kernel as usize];
        let value = if self.noise == Noise::Phases { 0.9 * *before + 0.19_f64.sqrt() * fresh } else { fresh };
        *before = value;
        let is_long = self.noise == Noise::Tails && self.random.random::<f64>() < 0.02;
        (0.2 * value).exp() * if is_long { self.random.random_range(2.0..10.0) } else { 1.0 }
    }

    /// Second and function of each alarm. `slower`: factor, and the part of the calls that have it, of a function at a second.
    fn alarms(mut self, seconds: u64, slower: impl Fn(u32, u64) -> (f64, f64)) -> Vec<(u64, u32)> {
        let mut watch = Watch::new(WatchSettings::default());
        (0..KERNELS).zip(&self.models).for_each(|(kernel, model)| watch.add(kernel, model));
        let mut alarms = Vec::new();
        for second in 0..seconds {
            let mut calls = Vec::new();
            for i in 0..PER_SECOND {
                for kernel in 0..KERNELS {
                    let (factor, part) = slower(kernel, second);
                    let factor = if self.random.random::<f64>() < part { factor } else { 1.0 };
                    let n = (10.0 * 1_000_f64.powf(self.random.random::<f64>())).round();
                    let predicted = self.models[kernel as usize].predict(&[Value::Unsigned(n as u64)], 0.95);
                    let predicted_ns = predicted.unwrap().ns;
                    let own_ns = 100.0 * n * self.scatter(kernel) * factor;
                    let time_ns = second * 1_000_000_000 + i * 50_000_000;
                    calls.push(Seen { kernel, time_ns, predicted_ns, own_ns });
                }
            }
            alarms.extend(watch.window(&calls).into_iter().filter_map(|event| match event {
                Event::Slower(slower) => Some((second, slower.kernel)),
                Event::Machine { .. } | Event::MachineBack => None,
            }));
        }
        alarms
    }
}
