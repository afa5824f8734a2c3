//! The cells of the coverage table: one estimator under one regime, simulated with known truth.

mod pooled;
mod rising;

use profiler_core::class::Source;
use profiler_core::estimate::Estimate;
use profiler_core::stats::bursts::{Burst, Of, Stop, rate, rate_of, run_total};
use profiler_core::stats::means::{self, WindowSum};
use profiler_core::stats::moments::Moments;
use profiler_core::stats::quantile::{Bucket, clustered};
use profiler_core::stats::ratio::on_cpu_per_call_ns;
use profiler_core::stats::shares::{SampleDesign, SamplePoint};
use profiler_core::stats::survival::{Quantile, Survival};
use profiler_core::stats::{Interval, LEVEL};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// What one run gave.
struct Outcome {
    value: f64,
    interval: Interval,
    truth: f64,
}

/// One run.
type Run = Box<dyn Fn(&mut StdRng) -> Option<Outcome>>;

/// One cell.
pub struct Cell {
    /// The estimator.
    pub estimator: &'static str,
    /// The load, and how it was looked at.
    pub regime: &'static str,
    run: Run,
}

/// What a cell's runs gave.
pub struct Summary {
    /// Runs that gave an estimate.
    pub runs: u32,
    /// Part of them whose interval holds the truth.
    pub coverage: f64,
    /// Median width over that of the interval of someone who knows the estimator's standard deviation.
    pub width: f64,
    /// Mean error in standard deviations.
    pub bias: f64,
    /// Mean of estimate over truth.
    pub ratio: f64,
    /// Median half-width over the estimate.
    pub half: f64,
    /// Part of the runs that gave no estimate.
    pub silent: f64,
    /// Part of the runs whose interval has no upper end.
    pub open: f64,
}

impl Cell {
    /// Simulates the cell, always the same.
    pub fn simulate(&self, runs: u32) -> Summary {
        let seed = self
            .estimator
            .bytes()
            .chain(self.regime.bytes())
            .fold(7_u64, |s, b| s.wrapping_mul(31).wrapping_add(u64::from(b)));
        let mut rng = StdRng::seed_from_u64(seed);
        let outcomes: Vec<Outcome> = (0..runs).filter_map(|_| (self.run)(&mut rng)).collect();
        let n = outcomes.len().max(1) as f64;
        let mut errors = Moments::default();
        let mut widths: Vec<f64> = Vec::new();
        let mut held = 0.0;
        for o in &outcomes {
            errors.push(o.value - o.truth);
            widths.push(o.interval.high - o.interval.low);
            held += f64::from(u8::from(o.interval.holds(o.truth)));
        }
        let open = widths.iter().filter(|w| w.is_infinite()).count() as f64 / n;
        // Where no more than half are open: the median of those that are not.
        if open <= 0.5 {
            widths.retain(|w| w.is_finite());
        }
        widths.sort_by(f64::total_cmp);
        let sd = errors.variance().unwrap_or(0.0).sqrt();
        Summary {
            runs: outcomes.len() as u32,
            coverage: held / n,
            width: widths.get(widths.len() / 2).copied().unwrap_or(f64::NAN) / (2.0 * 1.959_964 * sd),
            bias: errors.mean() / sd,
            ratio: outcomes.iter().map(|o| o.value / o.truth).sum::<f64>() / n,
            half: median_half(&outcomes),
            silent: 1.0 - n / f64::from(runs),
            open,
        }
    }
}

fn median_half(outcomes: &[Outcome]) -> f64 {
    let half = |o: &Outcome| (o.interval.high - o.interval.low) / (2.0 * o.value.abs());
    let mut halves: Vec<f64> = outcomes.iter().map(half).filter(|h| !h.is_nan()).collect();
    halves.sort_by(f64::total_cmp);
    halves.get(halves.len() / 2).copied().unwrap_or(f64::NAN)
}

fn exponential(rng: &mut StdRng, mean: f64) -> f64 {
    -mean * (1.0 - rng.random::<f64>()).ln()
}

/// Standard normal (Box and Muller 1958).
fn normal(rng: &mut StdRng) -> f64 {
    let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn gamma(rng: &mut StdRng, shape: u32) -> f64 {
    (0..shape).map(|_| exponential(rng, 1.0)).sum::<f64>() / f64::from(shape)
}

fn poisson(rng: &mut StdRng, mean: f64) -> u64 {
    let (mut k, mut t) = (0, exponential(rng, 1.0));
    while t < mean {
        k += 1;
        t += exponential(rng, 1.0);
    }
    k
}

/// How the load varies over the slots of a run.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Steady,
    /// 0.4 and 1.6 times the mean in turn, for exponential times of ten slots in the mean.
    Phases,
    /// Each slot its own rate, coefficient of variation 0.7.
    Bursty,
}

/// Slots of 50 ms in a run of 20 s.
const SLOTS: usize = 400;
const SLOT_S: f64 = 0.05;

fn factors(rng: &mut StdRng, load: Load) -> Vec<f64> {
    let mut high = rng.random::<bool>();
    (0..SLOTS)
        .map(|_| match load {
            Load::Steady => 1.0,
            Load::Phases => {
                high ^= rng.random::<f64>() < 0.1;
                if high { 1.6 } else { 0.4 }
            }
            Load::Bursty => gamma(rng, 2),
        })
        .collect()
}

/// `m` different slots, one in each of `m` equal parts of the run.
fn placed(rng: &mut StdRng, m: usize) -> Vec<usize> {
    (0..m).map(|i| rng.random_range(i * SLOTS / m..(i + 1) * SLOTS / m)).collect()
}

fn counted(hits: u64, stop: Stop, time_s: f64) -> Burst {
    Burst {
        busy: 1.0,
        hits,
        stop,
        time_s,
        time_low_s: time_s,
        time_high_s: time_s,
        quota: (stop == Stop::Quota).then_some(hits),
        window_s: None,
    }
}

fn outcome(e: &Estimate, truth: f64) -> Outcome {
    Outcome { value: e.value, interval: Interval { low: e.low, high: e.high }, truth }
}

fn rates(rng: &mut StdRng, load: Load, m: usize, hz: f64, quota: u64) -> Option<Outcome> {
    let factors = factors(rng, load);
    let bursts: Vec<Burst> = placed(rng, m)
        .into_iter()
        .map(|slot| {
            let hz = hz * factors[slot];
            if quota == 0 {
                return counted(poisson(rng, hz * SLOT_S), Stop::Window, SLOT_S);
            }
            let t: f64 = (0..quota).map(|_| exponential(rng, 1.0 / hz)).sum();
            counted(quota, Stop::Quota, t)
        })
        .collect();
    let truth = hz * factors.iter().sum::<f64>() / SLOTS as f64;
    Some(outcome(&rate(&bursts, LEVEL)?, truth))
}

fn totals(rng: &mut StdRng, load: Load, m: usize, hz: f64) -> Option<Outcome> {
    let counts: Vec<u64> = factors(rng, load).iter().map(|f| poisson(rng, hz * f * SLOT_S)).collect();
    let bursts: Vec<Burst> =
        placed(rng, m).into_iter().map(|s| counted(counts[s], Stop::Window, SLOT_S)).collect();
    let e = rate_of(&bursts, LEVEL, None, Of::Rest { unseen: 1.0 - m as f64 / SLOTS as f64 })?;
    let total = run_total(e.n, m as f64 * SLOT_S, SLOTS as f64 * SLOT_S, &e);
    Some(outcome(&total, counts.iter().sum::<u64>() as f64))
}

/// Durations in buckets as the kernel keeps them.
fn histogram(values: &[f64]) -> Vec<Bucket> {
    let mut counts = std::collections::BTreeMap::new();
    for v in values {
        *counts.entry((v.ln() / 1.032_f64.ln()).floor() as i32).or_insert(0) += 1;
    }
    let edge = |k: i32| 1.032_f64.powi(k);
    counts.into_iter().map(|(k, count)| Bucket { low: edge(k), high: edge(k + 1), count }).collect()
}

/// Exponential durations of mean 1,000 in `m` windows of about `n` calls; `alike`: those of a window share a factor with a
/// coefficient of variation of 0.5.
fn durations(rng: &mut StdRng, m: usize, n: f64, alike: bool) -> (Vec<WindowSum>, Vec<f64>) {
    let (mut sums, mut all) = (Vec::new(), Vec::new());
    for _ in 0..m {
        let factor = if alike { gamma(rng, 4) } else { 1.0 };
        let calls: Vec<f64> = (0..poisson(rng, n)).map(|_| exponential(rng, 1_000.0 * factor)).collect();
        sums.push(WindowSum { n: calls.len() as u64, sum: calls.iter().sum() });
        all.extend(calls);
    }
    (sums, all)
}

fn variance(values: &[f64]) -> Option<f64> {
    let mut m = Moments::default();
    values.iter().for_each(|v| m.push(*v));
    m.variance()
}

fn mean(rng: &mut StdRng, m: usize, n: f64, alike: bool) -> Option<Outcome> {
    let (sums, all) = durations(rng, m, n, alike);
    if all.is_empty() {
        return None;
    }
    let value = all.iter().sum::<f64>() / all.len() as f64;
    let half = means::half_width(&sums, variance(&all), LEVEL);
    let interval = Interval { low: (value - half).max(0.0), high: value + half };
    Some(Outcome { value, interval, truth: 1_000.0 })
}

/// The quantile of a mixture of exponentials is found by simulation once: `truth` of 1,000.
fn quantile(rng: &mut StdRng, p: f64, m: usize, n: f64, truth: Option<f64>) -> Option<Outcome> {
    let (sums, all) = durations(rng, m, n, truth.is_some());
    let spread = means::spread(&sums, variance(&all));
    let e = clustered(&histogram(&all), p, LEVEL, 0.0, spread.design_effect)?;
    Some(outcome(&e, truth.unwrap_or(-1_000.0 * (1.0 - p).ln())))
}

/// Inside for exponential times of mean `inside`, outside for `outside`, in sampling periods; one jittered sample in each of
/// `n` periods. Which were inside, and the true share of this run.
fn sampled(rng: &mut StdRng, inside: f64, outside: f64, n: usize) -> (Vec<usize>, f64) {
    let length = n as f64;
    let mut looks: Vec<f64> = (0..n).map(|i| i as f64 + rng.random::<f64>()).collect();
    looks.reverse();
    let mut is_in = rng.random::<f64>() < inside / (inside + outside);
    let (mut t, mut time_in, mut hits) = (0.0, 0.0, Vec::new());
    while t < length {
        let end = (t + exponential(rng, if is_in { inside } else { outside })).min(length);
        while let Some(at) = looks.pop_if(|at| *at < end) {
            if is_in {
                hits.push(at as usize);
            }
        }
        time_in += if is_in { end - t } else { 0.0 };
        (t, is_in) = (end, !is_in);
    }
    (hits, time_in / length)
}

fn share(rng: &mut StdRng, inside: f64, outside: f64, n: usize, long_run: bool) -> Option<Outcome> {
    let (hits, here) = sampled(rng, inside, outside, n);
    let points: Vec<SamplePoint> =
        (0..n).map(|i| SamplePoint { time_ns: i as u64, tid: 1, weight: 1.0 }).collect();
    let s = SampleDesign::new(&points, LEVEL).share(&hits)?;
    Some(if long_run {
        Outcome { value: s.value, interval: s.long_run, truth: inside / (inside + outside) }
    } else {
        Outcome { value: s.value, interval: s.this_recording, truth: here }
    })
}

/// rho from samples at one CPU, F from bursts; calls of 50 us, so that samples are nearly independent.
fn on_cpu(rng: &mut StdRng, load: Load, m: usize) -> Option<Outcome> {
    let s = share(rng, 0.005, 0.045, 2_000, false)?;
    let rho = Estimate {
        value: s.value,
        low: s.interval.low,
        high: s.interval.high,
        level: LEVEL,
        n: (s.value * 2_000.0) as u64,
        source: Source::Sampled,
        at_most: false,
    };
    let factors = factors(rng, load);
    let bursts: Vec<Burst> = placed(rng, m)
        .into_iter()
        .map(|slot| counted(poisson(rng, 2_000.0 * factors[slot] * SLOT_S), Stop::Window, SLOT_S))
        .collect();
    let truth = 1e9 * s.truth / (2_000.0 * factors.iter().sum::<f64>() / SLOTS as f64);
    Some(outcome(&on_cpu_per_call_ns(&rho, &rate(&bursts, LEVEL)?)?, truth))
}

/// How long calls take, in parts of the window.
#[derive(Clone, Copy)]
enum Length {
    /// 0 to 2 x 0.5: all end within window and draining.
    Uniform,
    /// Exponential of mean 0.4.
    Exponential,
}

/// Calls that begin at random in `m` windows of length 1, each call watched for `drain` beyond the window's end.
fn survival(
    rng: &mut StdRng,
    m: usize,
    n: f64,
    length: Length,
    drain: f64,
    alike: bool,
    p: Option<f64>,
) -> Option<Outcome> {
    let (mut sums, mut complete, mut cut) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..m {
        let factor = if alike { 0.7 + 0.6 * rng.random::<f64>() } else { 1.0 };
        let mut window = WindowSum { n: 0, sum: 0.0 };
        for _ in 0..poisson(rng, n) {
            let time = factor
                * match length {
                    Length::Uniform => rng.random::<f64>(),
                    Length::Exponential => exponential(rng, 0.4),
                };
            let watched = 1.0 + drain - rng.random::<f64>();
            if time <= watched {
                window = WindowSum { n: window.n + 1, sum: window.sum + time * 1e6 };
                complete.push(time * 1e6);
            } else {
                cut.push(watched * 1e6);
            }
        }
        sums.push(window);
    }
    let spread = means::spread(&sums, variance(&complete));
    let s = Survival::new(&histogram(&complete), Some(complete.iter().sum()), &cut)?;
    let Some(p) = p else {
        let truth = match length {
            Length::Uniform => 0.5e6,
            Length::Exponential => 0.4e6,
        };
        let m = s.mean(LEVEL, spread);
        return Some(outcome(&m.estimate, truth));
    };
    let truth = match length {
        Length::Uniform => p * 1e6,
        Length::Exponential => -0.4e6 * (1.0 - p).ln(),
    };
    match s.quantile(p, LEVEL, spread)? {
        Quantile::Known(e) => Some(outcome(&e, truth)),
        Quantile::Above(_) => None,
    }
}

/// Quantile p of exponential durations whose mean is 1,000 x g, g of gamma(4) with mean 1, by bisection of
/// `1 - integral of exp(-t / (1,000 g)) f(g)`.
fn mixed(p: f64) -> f64 {
    let step = 0.001;
    let longer = |t: f64| {
        let at = |i: u32| {
            let g = f64::from(i) * step;
            // Density of gamma(4, 1/4): 4^4 / 3! g^3 e^(-4 g).
            256.0 / 6.0 * g.powi(3) * (-4.0 * g).exp() * (-t / (1_000.0 * g)).exp() * step
        };
        (1..8_000).map(at).sum::<f64>()
    };
    let (mut low, mut high) = (0.0, 100_000.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if longer(middle) > 1.0 - p { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// What the cells `total, by time` would be if all bursts of a run counted alike: for comparison.
#[must_use]
pub fn alike_cells() -> Vec<Cell> {
    let cell = |(regime, course): (&'static str, rising::Course)| Cell {
        estimator: "total, bursts alike",
        regime,
        run: Box::new(move |r: &mut StdRng| rising::total(r, course, false)),
    };
    rising::COURSES.map(cell).into()
}

/// Rates of functions that learn from one another, by decade of their rates; the regime ends with the rate.
#[must_use]
pub fn pooled_cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for (estimator, world, m) in pooled::WORLDS {
        for (decade, regime) in pooled::DECADES.into_iter().enumerate() {
            let run = Box::new(move |r: &mut StdRng| pooled::rate(r, world, decade, m));
            all.push(Cell { estimator, regime, run });
        }
    }
    all
}

/// All cells.
#[rustfmt::skip]
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    let (median, upper) = (mixed(0.5), mixed(0.9));
    let mut cell = |estimator, regime, run: Run| all.push(Cell { estimator, regime, run });
    use Load::{Bursty, Phases, Steady};
    cell("rate", "steady, 20 bursts of 100", Box::new(|r| rates(r, Steady, 20, 2_000.0, 0)));
    cell("rate", "steady, 20 bursts of 2", Box::new(|r| rates(r, Steady, 20, 40.0, 0)));
    cell("rate", "phases, 20 bursts", Box::new(|r| rates(r, Phases, 20, 2_000.0, 0)));
    cell("rate", "phases, 80 bursts", Box::new(|r| rates(r, Phases, 80, 2_000.0, 0)));
    cell("rate", "bursty, 20 bursts", Box::new(|r| rates(r, Bursty, 20, 2_000.0, 0)));
    cell("rate", "one burst of 100", Box::new(|r| rates(r, Steady, 1, 2_000.0, 0)));
    cell("rate", "steady, 3 bursts", Box::new(|r| rates(r, Steady, 3, 2_000.0, 0)));
    cell("rate", "bursty, 3 bursts", Box::new(|r| rates(r, Bursty, 3, 2_000.0, 0)));
    cell("rate", "quota of 100, steady, 20", Box::new(|r| rates(r, Steady, 20, 20_000.0, 100)));
    cell("rate", "quota of 100, bursty, 20", Box::new(|r| rates(r, Bursty, 20, 20_000.0, 100)));
    cell("rate", "quota of 100, one burst", Box::new(|r| rates(r, Steady, 1, 20_000.0, 100)));
    cell("total", "steady, 20 of 400 slots", Box::new(|r| totals(r, Steady, 20, 2_000.0)));
    cell("total", "steady, 200 of 400 slots", Box::new(|r| totals(r, Steady, 200, 2_000.0)));
    cell("total", "phases, 80 of 400", Box::new(|r| totals(r, Phases, 80, 2_000.0)));
    cell("total", "bursty, 20 of 400", Box::new(|r| totals(r, Bursty, 20, 2_000.0)));
    cell("total", "bursty, 200 of 400", Box::new(|r| totals(r, Bursty, 200, 2_000.0)));
    cell("total", "steady, few calls (2 a slot)", Box::new(|r| totals(r, Steady, 20, 40.0)));
    cell("total", "bursty, 3 of 400", Box::new(|r| totals(r, Bursty, 3, 2_000.0)));
    for (name, course) in rising::COURSES {
        cell("total, by time", name, Box::new(move |r| rising::total(r, course, true)));
    }
    cell("mean", "independent, 20 windows of 50", Box::new(|r| mean(r, 20, 50.0, false)));
    cell("mean", "independent, 20 windows of 3", Box::new(|r| mean(r, 20, 3.0, false)));
    cell("mean", "independent, one window of 100", Box::new(|r| mean(r, 1, 100.0, false)));
    cell("mean", "alike in a window, 20 of 50", Box::new(|r| mean(r, 20, 50.0, true)));
    cell("mean", "alike in a window, 3 of 50", Box::new(|r| mean(r, 3, 50.0, true)));
    cell("quantile 0.5", "independent, 20 windows of 50", Box::new(|r| quantile(r, 0.5, 20, 50.0, None)));
    cell("quantile 0.9", "independent, 20 windows of 50", Box::new(|r| quantile(r, 0.9, 20, 50.0, None)));
    cell("quantile 0.99", "independent, 20 windows of 50", Box::new(|r| quantile(r, 0.99, 20, 50.0, None)));
    cell("quantile 0.5", "one window of 20", Box::new(|r| quantile(r, 0.5, 1, 20.0, None)));
    cell("quantile 0.5", "alike in a window, 20 of 50", Box::new(move |r| quantile(r, 0.5, 20, 50.0, Some(median))));
    cell("quantile 0.9", "alike in a window, 20 of 50", Box::new(move |r| quantile(r, 0.9, 20, 50.0, Some(upper))));
    cell("share, this recording", "short calls, 10 %", Box::new(|r| share(r, 0.01, 0.09, 1_000, false)));
    cell("share, this recording", "rare, 0.2 %", Box::new(|r| share(r, 0.02, 9.98, 1_500, false)));
    cell("share, this recording", "calls of a period", Box::new(|r| share(r, 1.0, 9.0, 2_000, false)));
    cell("share, this recording", "phases of 10 periods", Box::new(|r| share(r, 10.0, 30.0, 4_000, false)));
    cell("share, long run", "short calls, 10 %", Box::new(|r| share(r, 0.01, 0.09, 1_000, true)));
    cell("share, long run", "calls of a period", Box::new(|r| share(r, 1.0, 9.0, 2_000, true)));
    cell("share, long run", "phases of 10 periods", Box::new(|r| share(r, 10.0, 30.0, 4_000, true)));
    cell("share, long run", "phases of 100 periods", Box::new(|r| share(r, 100.0, 300.0, 4_000, true)));
    cell("on-CPU per call", "steady, 20 bursts", Box::new(|r| on_cpu(r, Steady, 20)));
    cell("on-CPU per call", "bursty, 20 bursts", Box::new(|r| on_cpu(r, Bursty, 20)));
    cell("on-CPU per call", "steady, one burst", Box::new(|r| on_cpu(r, Steady, 1)));
    cell("mean, cut off", "0 to 1 window, drained half", Box::new(|r| survival(r, 20, 20.0, Length::Uniform, 0.5, false, None)));
    cell("mean, cut off", "the same, alike in a window", Box::new(|r| survival(r, 20, 20.0, Length::Uniform, 0.5, true, None)));
    cell("mean, cut off", "0 to 1 window, 5 windows of 5", Box::new(|r| survival(r, 5, 5.0, Length::Uniform, 0.5, false, None)));
    cell("mean, cut off", "exponential 0.4, drained 1", Box::new(|r| survival(r, 20, 20.0, Length::Exponential, 1.0, false, None)));
    cell("median, cut off", "exponential 0.4, not drained", Box::new(|r| survival(r, 20, 20.0, Length::Exponential, 0.0, false, Some(0.5))));
    cell("median, cut off", "0 to 1 window, drained half", Box::new(|r| survival(r, 20, 20.0, Length::Uniform, 0.5, false, Some(0.5))));
    cell("quantile 0.9, cut off", "exponential 0.4, drained half", Box::new(|r| survival(r, 20, 20.0, Length::Exponential, 0.5, false, Some(0.9))));
    all
}
