//! What the agent said of one function in a run, beside what the program said.

use super::truth::{self, Count, EMPTY, Reading};
use profiler_core::estimate::Estimate;
use profiler_core::recording::Recording;
use profiler_core::report::{Report, Row};
use serde::{Deserialize, Serialize};

/// Durations and calls of a function, or of several that follow each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The function; of several, with ` + ` between them.
    pub function: String,
    /// How ends of its calls were seen, and the price class of its entry.
    pub way: String,
    /// The agent's remarks.
    pub notes: Vec<String>,
    /// Mean of a call by the program's own clock in the unobserved stretches before, after, and in both, ns.
    pub own: Option<Own>,
    /// Mean by the agent, ns.
    pub mean: Option<Estimate>,
    /// Median by the agent, ns.
    pub p50: Option<Estimate>,
    /// Probe cost that was taken out, ns a call.
    pub correction_ns: f64,
    /// Calls of the recording by the agent.
    pub calls: Option<Estimate>,
    /// The same by the program, and how far that may be off.
    pub true_calls: Option<(f64, f64)>,
    /// Hits of its probes.
    pub attempted: u64,
    /// Of those, lost.
    pub dropped: u64,
}

/// What the program itself took a call to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// Before the observed stretch, ns.
    pub before_ns: f64,
    /// After it, ns.
    pub after_ns: f64,
    /// Both together, ns.
    pub mean_ns: f64,
    /// Of that, what its own clock takes: two readings with nothing between them, ns.
    pub clock_ns: f64,
}

impl Own {
    fn of(stretches: &[[Reading; 2]], name: &str, clock_ns: f64) -> Option<Own> {
        let [before, after] = stretches else { return None };
        // Each of several functions is timed by itself.
        let functions = name.split(" + ").count() as f64;
        let clock_ns = truth::mean_ns(stretches, EMPTY).unwrap_or(clock_ns) * functions;
        Some(Own {
            before_ns: truth::mean_ns(std::slice::from_ref(before), name)?,
            after_ns: truth::mean_ns(std::slice::from_ref(after), name)?,
            mean_ns: truth::mean_ns(stretches, name)?,
            clock_ns,
        })
    }

    /// What the program says, less what its clock takes, ns.
    pub fn net_ns(&self) -> f64 {
        self.mean_ns - self.clock_ns
    }
}

/// What a program said of itself around and in a run.
pub struct Sides<'a> {
    /// Readings at both ends of the stretches before and after.
    pub stretches: &'a [[Reading; 2]],
    /// Readings while the agent ran.
    pub readings: &'a [Reading],
    /// What the program's clock takes, if it does not say so itself, ns.
    pub clock_ns: f64,
}

/// The figures of a function by this name: `NAME`, several added up as `ONE + TWO`, or all that were hit and begin as `NAME*` says.
pub fn figures(wanted: &str, report: &Report, recording: &Recording, sides: &Sides<'_>) -> Vec<Figure> {
    if let Some(begin) = wanted.strip_suffix('*') {
        let all = report.rows.iter().filter(|row| row.name.starts_with(begin) && row.attempted > 0);
        return all.map(|row| figure(&row.name, &[row], recording, sides)).collect();
    }
    let rows: Vec<&Row> = wanted
        .split(" + ")
        .filter_map(|name| report.rows.iter().find(|row| row.name == name && row.class_id.is_some()))
        .collect();
    vec![figure(wanted, &rows, recording, sides)]
}

fn figure(name: &str, rows: &[&Row], recording: &Recording, sides: &Sides<'_>) -> Figure {
    let of = name.split(" + ").count();
    let first = rows.first();
    let true_calls = recording
        .meta
        .end_ns
        .and_then(|end_ns| truth::calls_between(sides.readings, name, recording.meta.start_ns, end_ns));
    let all = |estimate: fn(&Row) -> Option<Estimate>| -> Option<Estimate> {
        let each: Option<Vec<Estimate>> = rows.iter().map(|row| estimate(row)).collect();
        each.filter(|each| each.len() == of).and_then(added)
    };
    let median = |row: &Row| row.quantiles_ns.iter().find(|(p, _)| *p == 0.5).map(|(_, value)| *value);
    let mut notes: Vec<String> = rows.iter().flat_map(|row| row.notes.clone()).collect();
    notes.dedup();
    Figure {
        function: name.to_owned(),
        way: rows.iter().map(|row| way(row, recording)).collect::<Vec<_>>().join(" + "),
        notes,
        own: Own::of(sides.stretches, name, sides.clock_ns),
        mean: all(|row| row.mean_ns),
        p50: if of == 1 { first.and_then(|row| median(row)) } else { None },
        correction_ns: rows.iter().map(|row| row.correction_ns).sum(),
        calls: first.and_then(|row| row.calls),
        true_calls: true_calls.map(|Count { calls, within }| (calls, within)),
        attempted: rows.iter().map(|row| row.attempted).sum(),
        dropped: rows.iter().map(|row| row.dropped).sum(),
    }
}

impl Figure {
    /// Takes the agent's part anew from the recording, as this build of the report reads it.
    pub fn judge_again(&mut self, report: &Report, recording: &Recording) {
        let sides = Sides { stretches: &[], readings: &[], clock_ns: 0.0 };
        if let Some(again) = figures(&self.function, report, recording, &sides).into_iter().next() {
            *self = Figure { own: self.own, true_calls: self.true_calls, ..again };
        }
    }
}

/// The sum of means: both ends are added up, which is on the safe side.
fn added(all: Vec<Estimate>) -> Option<Estimate> {
    all.into_iter().reduce(|sum, one| Estimate {
        value: sum.value + one.value,
        low: sum.low + one.low,
        high: sum.high + one.high,
        n: sum.n.min(one.n),
        at_most: sum.at_most && one.at_most,
        ..sum
    })
}

/// `return_sites, push`: how ends are seen, and where the entry's probe stands.
fn way(row: &Row, recording: &Recording) -> String {
    let class = recording.classes.iter().rfind(|class| Some(class.class_id) == row.class_id);
    class.map_or("-".to_owned(), |class| {
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let (exit, site) =
            (word(serde_json::to_value(class.exit_mode)), word(serde_json::to_value(class.site_class)));
        format!("{exit}, {site}")
    })
}

/// The interval holds the truth, which may itself be off by so much.
pub fn holds(estimate: &Estimate, truth: f64, within: f64) -> bool {
    estimate.low <= truth + within && estimate.high >= truth - within
}

/// Half the width over the value. `None`: only a limit is known.
pub fn relative(estimate: &Estimate) -> Option<f64> {
    let is_limit = estimate.at_most || estimate.high.is_infinite() || estimate.value <= 0.0;
    (!is_limit).then(|| estimate.half_width() / estimate.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(low: f64, value: f64, high: f64) -> Estimate {
        Estimate { low, high, level: 0.95, ..Estimate::exact(value, 7) }
    }

    #[test]
    fn an_interval_holds_what_is_in_it_and_a_limit_has_no_width() {
        let ten = estimate(8.0, 10.0, 14.0);
        assert!(holds(&ten, 8.0, 0.0) && holds(&ten, 14.0, 0.0));
        assert!(!holds(&ten, 7.9, 0.0) && !holds(&ten, 14.1, 0.0));
        assert!(holds(&ten, 7.9, 0.2) && holds(&ten, 14.1, 0.2));
        assert_eq!(relative(&ten), Some(0.3));
        assert_eq!(relative(&Estimate { at_most: true, ..ten }), None);
        assert_eq!(relative(&estimate(8.0, 10.0, f64::INFINITY)), None);
    }

    #[test]
    fn means_of_functions_that_follow_each_other_add_up() {
        let sum = added(vec![estimate(1.0, 2.0, 4.0), estimate(10.0, 20.0, 40.0)]).unwrap();
        assert_eq!((sum.low, sum.value, sum.high), (11.0, 22.0, 44.0));
        assert!(added(Vec::new()).is_none());
    }
}
