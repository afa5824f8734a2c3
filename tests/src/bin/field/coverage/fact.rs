//! What the agent told of a function in a run, beside what the program knows.
//!
//! Two kinds of truth. Calls are counted by the program *while it is watched*: what is unknown is how many fell between two readings at the edges. Times are
//! taken *before and after*, because a program's own clock counts our traps, too: what is unknown is by how much the two stretches differ.

use super::programs::{Known, Timed};
use crate::durations::truth::{EMPTY, Reading, calls_between};
use profiler_core::class::Source;
use profiler_core::estimate::Estimate;
use profiler_core::recording::WindowRow;
use profiler_core::report::{Report, Row};
use serde::{Deserialize, Serialize};

/// The names, among a program's counts, of the CPU time that it used, and of the time for which it waited for a CPU, ns.
pub const CPU: &str = "(cpu)";
pub const WAIT: &str = "(wait)";

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Quantity {
    /// Calls of the whole recording.
    Total,
    /// Calls per second that monitoring left the program, against its own count while it was watched.
    Rate,
    /// The same rate, against that of the stretches before and after.
    RateBeside,
    /// Mean wall time of a call, ns.
    Mean,
    /// Mean time on a CPU of a call, ns.
    OnCpu,
    /// Share of the program's CPU time, with the interval of this recording.
    Share,
    /// The same with the interval of the long run.
    ShareLongRun,
}

impl Quantity {
    /// All, in the order of the table.
    pub const ALL: [Quantity; 7] = [
        Quantity::Total,
        Quantity::Rate,
        Quantity::RateBeside,
        Quantity::Mean,
        Quantity::OnCpu,
        Quantity::Share,
        Quantity::ShareLongRun,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Total => "total",
            Quantity::Rate => "rate, by its count",
            Quantity::RateBeside => "rate, by the stretches",
            Quantity::Mean => "mean",
            Quantity::OnCpu => "mean on CPU",
            Quantity::Share => "share",
            Quantity::ShareLongRun => "share, long run",
        }
    }
}

/// What is true, in the unit of the quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The middle of what is possible.
    pub value: f64,
    /// Anything within this is possible.
    pub within: f64,
    /// What the stretches before and after differ by; 0 where the truth is of the recording itself.
    pub apart: f64,
}

/// One row of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fact {
    /// The function.
    pub function: String,
    /// What is told of it.
    pub quantity: Quantity,
    /// What was told. `None`: nothing.
    pub told: Option<Estimate>,
    /// What is true.
    pub truth: Truth,
}

/// The program's own word around and in a run.
pub struct Sides<'a> {
    /// All of its readings, in order of time; each has [`CPU`] and [`WAIT`] among its counts.
    pub readings: &'a [Reading],
    /// Begin and end of the stretches before and after, `CLOCK_MONOTONIC`, ns.
    pub stretches: [(u64, u64); 2],
    /// Begin and end of the recording, likewise.
    pub watched: (u64, u64),
    /// What two readings of the program's clock with nothing between them take, if it does not say so itself, ns.
    pub clock_ns: f64,
    /// The most that monitoring took, over the program's own CPU time.
    pub overhead: f64,
}

/// When a class was attached: a window.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    class_id: u32,
    start_ns: u64,
    end_ns: u64,
}

impl Span {
    /// That of a window of a recording.
    pub fn of(window: &WindowRow) -> Span {
        Span { class_id: window.class_id, start_ns: window.start_ns, end_ns: window.end_ns }
    }
}

/// Counts of a function between two readings.
struct Stretch {
    calls: f64,
    /// Time in them by the program's clock, ns.
    own_ns: f64,
    wall_s: f64,
    cpu_ns: f64,
    wait_ns: f64,
}

/// What is taken from the time of calls: all that is not theirs, or nothing. The truth is between the two.
#[derive(Clone, Copy)]
struct Less {
    /// What the program's clock takes, ns a call.
    clock_ns: f64,
    /// Waits for a CPU, over those that fell into calls if they fell anywhere alike.
    waits: f64,
}

impl Stretch {
    /// Mean wall time of a call, ns.
    fn mean_ns(&self, less: Less) -> f64 {
        self.own_ns / self.calls - less.clock_ns
    }

    /// Time in calls on a CPU, ns.
    fn on_cpu_ns(&self, less: Less) -> f64 {
        let waiting = self.wait_ns / (self.cpu_ns + self.wait_ns).max(1.0);
        self.own_ns * (1.0 - less.waits * waiting) - less.clock_ns * self.calls
    }
}

impl Sides<'_> {
    /// Begin and end of the counts of a stretch. `None`: it has fewer than two readings.
    fn ends(&self, (from_ns, to_ns): (u64, u64)) -> Option<[&Reading; 2]> {
        let mut inside = self.readings.iter().filter(|r| (from_ns..=to_ns).contains(&r.at_ns));
        Some([inside.next()?, inside.next_back()?])
    }

    fn stretch(&self, stretch: (u64, u64), counters: &[&str]) -> Option<Stretch> {
        let [first, last] = self.ends(stretch)?;
        // A command that nobody has sent yet has no counter.
        let of = |reading: &Reading, name: &str| reading.counted.get(name).copied().unwrap_or_default();
        let sum = |f: &dyn Fn(&Reading, &str) -> f64| -> f64 {
            counters.iter().map(|name| f(last, name) - f(first, name)).sum()
        };
        Some(Stretch {
            calls: sum(&|reading, name| of(reading, name).calls),
            own_ns: sum(&|reading, name| of(reading, name).total_ns.unwrap_or(0.0)),
            wall_s: (last.at_ns - first.at_ns) as f64 * 1e-9,
            cpu_ns: of(last, CPU).calls - of(first, CPU).calls,
            wait_ns: of(last, WAIT).calls - of(first, WAIT).calls,
        })
    }

    /// What the program's clock takes, ns: by its own word, else as given.
    fn clock_ns(&self) -> f64 {
        let of = |stretch: &(u64, u64)| self.stretch(*stretch, &[EMPTY]).filter(|s| s.calls > 0.0);
        let (calls, ns) = self
            .stretches
            .iter()
            .filter_map(of)
            .fold((0.0, 0.0), |(calls, ns), s| (calls + s.calls, ns + s.own_ns));
        if calls > 0.0 { ns / calls } else { self.clock_ns }
    }

    /// The truth of a figure of the stretches.
    fn beside(&self, counters: &[&str], figure: impl Fn(&Stretch, Less) -> f64) -> Option<Truth> {
        let [before, after] = self.stretches;
        let (before, after) = (self.stretch(before, counters)?, self.stretch(after, counters)?);
        let both = |less: Less| (figure(&before, less), figure(&after, less));
        let (low_before, low_after) = both(Less { clock_ns: self.clock_ns(), waits: 1.0 });
        let (high_before, high_after) = both(Less { clock_ns: 0.0, waits: 0.0 });
        let (low, high) = (f64::midpoint(low_before, low_after), f64::midpoint(high_before, high_after));
        let truth = Truth {
            value: f64::midpoint(low, high),
            within: (high - low) / 2.0,
            apart: (high_before - high_after).abs(),
        };
        truth.value.is_finite().then_some(truth)
    }

    /// CPU time of the program for one of these calls while it was watched, over that in the two stretches, less one. `None`: one of them has no call.
    pub fn dearer(&self, counters: &[&str]) -> Option<f64> {
        let a_call = |stretch: (u64, u64)| {
            let stretch = self.stretch(stretch, counters).filter(|stretch| stretch.calls > 0.0)?;
            Some(stretch.cpu_ns / stretch.calls)
        };
        let [before, after] = self.stretches;
        Some(a_call(self.watched)? / f64::midpoint(a_call(before)?, a_call(after)?) - 1.0)
    }

    /// Calls between two moments, and how far that is off at most.
    fn counted(&self, counters: &[&str], (from_ns, to_ns): (u64, u64)) -> Option<(f64, f64)> {
        counters.iter().try_fold((0.0, 0.0), |(calls, within), name| {
            let count = calls_between(self.readings, name, from_ns, to_ns)?;
            Some((calls + count.calls, within + count.within))
        })
    }
}

/// All that is known of all functions: a fact for each quantity whose truth is known, told or not.
pub fn facts(known: &[Known], rows: &[Row], spans: &[Span], sides: &Sides<'_>) -> Vec<Fact> {
    known.iter().flat_map(|known| of_function(known, rows, spans, sides)).collect()
}

fn of_function(known: &Known, rows: &[Row], spans: &[Span], sides: &Sides<'_>) -> Vec<Fact> {
    let row = row_of(rows, known.function);
    let told = |quantity| told(rows, known.function, quantity);
    let mut facts = Vec::new();
    let mut add = |quantity, truth: Option<Truth>| {
        // Without a call there is no rate and no mean.
        if let Some(truth) = truth.filter(|truth| truth.value > 0.0) {
            let function = known.function.to_owned();
            facts.push(Fact { function, quantity, told: told(quantity), truth });
        }
    };
    let is_exact = told(Quantity::Total).is_some_and(|calls| calls.source == Source::Exact);
    // What is told as exact is told of the time for which it was attached.
    let attached = row.and_then(|row| attached_ns(row, spans)).filter(|_| is_exact).unwrap_or(sides.watched);
    let count = |span| sides.counted(known.counters, span);
    add(Quantity::Total, count(attached).map(|(value, within)| Truth { value, within, apart: 0.0 }));
    add(Quantity::Rate, count(sides.watched).map(|counted| rate(counted, sides.watched, sides.overhead)));
    let beside = |figure: fn(&Stretch, Less) -> f64| sides.beside(known.counters, figure);
    add(Quantity::RateBeside, beside(|s, _| s.calls / s.wall_s));
    if known.timed != Timed::No {
        add(Quantity::Mean, beside(Stretch::mean_ns));
        add(Quantity::OnCpu, beside(|s, less| s.on_cpu_ns(less) / s.calls));
    }
    if known.timed == Timed::MeanAndShare {
        let share = || beside(|s, less| s.on_cpu_ns(less) / s.cpu_ns);
        add(Quantity::Share, share());
        add(Quantity::ShareLongRun, share());
    }
    facts
}

/// What a report tells of a function.
pub fn told(rows: &[Row], function: &str, quantity: Quantity) -> Option<Estimate> {
    let row = row_of(rows, function)?;
    match quantity {
        Quantity::Total => row.calls,
        Quantity::Rate | Quantity::RateBeside => row.rate_hz,
        Quantity::Mean => row.mean_ns,
        Quantity::OnCpu => row.on_cpu_ns,
        Quantity::Share => row.share,
        Quantity::ShareLongRun => row.share_long_run,
    }
}

/// The row of a function: that with calls before one that only samples show.
fn row_of<'r>(rows: &'r [Row], function: &str) -> Option<&'r Row> {
    let named = || rows.iter().filter(|row| row.name == function);
    named().find(|row| row.class_id.is_some()).or_else(|| named().next())
}

/// From the begin of the first to the end of the last window of a row.
fn attached_ns(row: &Row, spans: &[Span]) -> Option<(u64, u64)> {
    let of_class = || spans.iter().filter(|span| Some(span.class_id) == row.class_id);
    Some((of_class().map(|span| span.start_ns).min()?, of_class().map(|span| span.end_ns).max()?))
}

/// The most that monitoring took by its receipt, over the program's own CPU time.
pub fn overhead(report: &Report) -> f64 {
    let measured = report.receipt.in_place.as_ref().map_or(0.0, |in_place| in_place.overhead.high);
    measured.max(report.receipt.predicted)
}

/// Calls per second that monitoring left the program. Where the program gave rest for it, monitoring took no time from the calls, and where it never rests, it took all
/// of `overhead`: the truth is between the two.
fn rate((calls, within): (f64, f64), (from_ns, to_ns): (u64, u64), overhead: f64) -> Truth {
    let seconds = (to_ns - from_ns) as f64 * 1e-9;
    let (low, high) = (calls / seconds, calls / seconds * (1.0 + overhead));
    Truth { value: f64::midpoint(low, high), within: (high - low) / 2.0 + within / seconds, apart: 0.0 }
}

impl Fact {
    /// The interval holds the truth. What the two stretches differ by (`apart`) is added to it by squares, for it is chance; what is possible anyway as it is.
    /// `None`: nothing was told.
    pub fn holds(&self, apart: f64) -> Option<bool> {
        let (told, truth) = (self.told?, self.truth);
        let low = if told.at_most { f64::NEG_INFINITY } else { told.low };
        let off = truth.value - told.value;
        let most = if off < 0.0 { told.value - low } else { told.high - told.value };
        Some(off.abs() <= most.hypot(apart) + truth.within)
    }
}

#[cfg(test)]
mod tests;
