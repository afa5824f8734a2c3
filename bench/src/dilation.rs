//! Rates of functions that slow their target when they are watched, against a truth of the same moments: the target's calls of a twin
//! that nobody watches (program `twins`), in turns of 10 us with those of the function. The host's speed changes by 10 to 20 % within
//! seconds, so that a truth from before and after the run would say nothing of 2 %.
//!
//! Estimate and truth are both calls per second of undisturbed wall time, pauses without a CPU included: the report takes hits x price
//! from the time of its windows (`stats::bursts`), the target counts its calls and puts the twin's time in the place of the watched one's.

use crate::Options;
use crate::decades::record;
use crate::measure::{Series, Table};
use anyhow::{Context, Result};
use profiler_core::estimate::Estimate;
use profiler_core::recording::{Recording, WindowKind, WindowRow};
use profiler_core::report::Report;
use profiler_tests::support::Twins;

/// Percent of the target's CPU time.
const BUDGET: f64 = 2.0;
/// The bias that is aimed at.
const AIM: f64 = 0.02;
/// What is asked of the twin about a window, ns: the window, or as much around it as makes it so long. What it says of such a time is not
/// chance, and the host's speed is still that of the window.
const SPAN_NS: u64 = 200_000_000;
/// Hits below which the rate of a kind of windows is left out.
const FEW: u64 = 30;
/// While nobody watches, before the run and after it, s.
const ALONE_S: f64 = 1.0;

/// What the windows of one kind said of a rate, round by round.
#[derive(Default)]
struct Rates {
    /// Estimate over truth, of those that are not bounds.
    over_truth: Series,
    /// Half of the interval over the estimate, of the same.
    half_width: Series,
    bounds: usize,
    held: usize,
    rounds: usize,
}

impl Rates {
    fn note(&mut self, rate: &Estimate, truth: f64) {
        self.rounds += 1;
        self.held += usize::from((rate.low..=rate.high).contains(&truth));
        if rate.high.is_infinite() {
            self.bounds += 1;
        } else {
            self.over_truth.push(rate.value / truth);
            self.half_width.push((rate.high - rate.low) / 2.0 / rate.value);
        }
    }

    /// `1.003 (0.995 to 1.011) ±5 %, 3 of 3`; `≥, 3 of 3` where the rate was only bounded; a median that is off by more than the aim is
    /// marked.
    fn show(&self) -> String {
        let held = format!("{} of {}", self.held, self.rounds);
        match (self.rounds, self.bounds) {
            (0, _) => return "none".to_owned(),
            (n, bounds) if n == bounds => return format!("≥, {held}"),
            _ => {}
        }
        let bounds = if self.bounds > 0 { format!(" and {} ≥", self.bounds) } else { String::new() };
        let missed = if (self.over_truth.median() - 1.0).abs() > AIM { ", **missed**" } else { "" };
        let half = 100.0 * self.half_width.median();
        format!("{} ±{half:.0} %{bounds}, {held}{missed}", self.over_truth.show(3))
    }
}

/// The truth of the windows of one kind, which the report weighs alike (bursts) or by their length (traced); (length s, rate Hz) of each.
fn mean_rate(kind: WindowKind, windows: &[(f64, f64)]) -> Option<f64> {
    let weight = |length: f64| if kind == WindowKind::Trace { length } else { 1.0 };
    let (sum, weights) =
        windows.iter().fold((0.0, 0.0), |(sum, all), (s, hz)| (sum + weight(*s) * hz, all + weight(*s)));
    (weights > 0.0).then(|| sum / weights)
}

/// Calls per second of the undisturbed target around these windows.
fn truth(target: &mut Twins, kind: WindowKind, windows: &[WindowRow], ratio: f64) -> Option<f64> {
    let around: Vec<(f64, f64)> = windows
        .iter()
        .filter_map(|w| {
            let length_ns = w.end_ns.saturating_sub(w.start_ns);
            let around_ns = SPAN_NS.saturating_sub(length_ns) / 2;
            let slices = target.between(w.start_ns.saturating_sub(around_ns), w.end_ns + around_ns);
            Some((length_ns as f64 * 1e-9, slices.undisturbed_hz(ratio)?))
        })
        .collect();
    mean_rate(kind, &around)
}

/// Rates of 100 to 10 million calls a second, by windows of one kind alone.
pub fn dilation(options: &Options) -> Result<String> {
    let mut table = Table::new(&[
        "site, calls/s",
        "function over twin, nobody watches",
        "survey: over the truth, holds",
        "bursts: over the truth, holds",
        "traced: over the truth, holds",
        "n",
    ]);
    for pair in ["push", "stepped"] {
        let [site, _] = Twins::names(pair);
        for decade in 2..=7 {
            let hz = 10_u64.pow(decade);
            if options.part.as_ref().is_some_and(|part| *part != format!("{pair}-{hz}")) {
                continue;
            }
            let mut rates = [Rates::default(), Rates::default(), Rates::default()];
            let mut ratios = Series::default();
            for round in 0..options.rounds {
                eprintln!("dilation: {pair} at {hz}/s, round {} of {}", round + 1, options.rounds);
                let mut target = Twins::start();
                target.work(pair, hz, 0);
                let before = target.watch_for(ALONE_S).ratio;
                let named = ["--count", &site, "--discover", "0"].map(str::to_owned);
                let (_, recording) = record(target.pid(), BUDGET, options.seconds_or(10), &named)?;
                let ratio = (before + target.watch_for(ALONE_S).ratio) / 2.0;
                ratios.push(ratio);
                for (kind, rates) in
                    [WindowKind::Survey, WindowKind::Burst, WindowKind::Trace].into_iter().zip(&mut rates)
                {
                    let windows: Vec<WindowRow> =
                        recording.windows.iter().filter(|w| w.kind == kind).cloned().collect();
                    let part =
                        Report::from_recording(&Recording { windows: windows.clone(), ..recording.clone() });
                    let row = part.rows.iter().find(|row| row.name == site);
                    if let Some(rate) = row.and_then(|row| row.rate_hz).filter(|rate| rate.n >= FEW) {
                        let truth = truth(&mut target, kind, &windows, ratio).with_context(|| {
                            format!("{pair} at {hz}/s: the target has no truth of its run")
                        })?;
                        rates.note(&rate, truth);
                    }
                }
            }
            table.row(&[
                format!("{pair}, {hz}"),
                ratios.show(3),
                rates[0].show(),
                rates[1].show(),
                rates[2].show(),
                options.rounds.to_string(),
            ]);
        }
    }
    Ok(format!(
        "{table}\nRuns of {} s at {BUDGET} %. One thread calls a function and its twin, the same code from one macro, in turns: slices of 10 us, at least one call. The truth is the target's own: \
         calls of the function in each window (and around it, up to {} ms), over what the target waited for a CPU then and the time that they and the twin's calls would have taken \
         at the time of a twin call in the same moments, corrected by the ratio of the two while nobody watches (second before and second after; median of 1 ms slots). Estimate over truth: median (least to most) of the rounds, and the median of half of the interval over the estimate; aim: off by less than {:.0} %, or a lower limit (≥); \
         holds: rounds whose interval or limit holds the truth, of those with one. Rates from fewer than {FEW} calls are left out.\n",
        options.seconds_or(10),
        SPAN_NS / 1_000_000,
        AIM * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::class::Source;

    fn rate(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { value, low, high, level: 0.95, n: 100, source: Source::Burst, at_most: false }
    }

    #[test]
    fn rates_are_shown_over_the_truth_with_the_verdict() {
        let mut rates = Rates::default();
        assert_eq!(rates.show(), "none");
        rates.note(&rate(500.0, 400.0, f64::INFINITY), 1_000.0);
        assert_eq!(rates.show(), "≥, 1 of 1");
        rates.note(&rate(1_010.0, 990.0, 1_030.0), 1_000.0);
        assert_eq!(rates.show(), "1.010 (1.010 to 1.010) ±2 % and 1 ≥, 2 of 2");
        rates.note(&rate(1_040.0, 1_020.0, 1_060.0), 1_000.0);
        assert_eq!(rates.show(), "1.025 (1.010 to 1.040) ±2 % and 1 ≥, 2 of 3, **missed**");
        // A limit above the truth does not hold.
        let mut limits = Rates::default();
        limits.note(&rate(1_200.0, 1_100.0, f64::INFINITY), 1_000.0);
        assert_eq!(limits.show(), "≥, 0 of 1");
    }

    #[test]
    fn truths_are_weighed_as_the_report_weighs_its_windows() {
        let windows = [(1.0, 100.0), (3.0, 200.0)];
        assert_eq!(mean_rate(WindowKind::Survey, &windows), Some(150.0));
        assert_eq!(mean_rate(WindowKind::Burst, &windows), Some(150.0));
        assert_eq!(mean_rate(WindowKind::Trace, &windows), Some(175.0));
        assert_eq!(mean_rate(WindowKind::Trace, &[]), None);
    }
}
