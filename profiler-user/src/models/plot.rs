//! Calls of a function beside the curves of its model: what a page draws.

use profiler_core::models::{Calls, Model};

/// Calls that are drawn.
const POINTS: usize = 300;
/// Places at which a curve is drawn.
const PLACES: usize = 48;
/// Curves that are drawn: one for each category.
const CURVES: usize = 9;

/// Some calls of a function, and its curves over the input that its time depends on most.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Name of that input.
    pub input: String,
    /// Values of the input and times of calls, ns, spread over the calls by their input.
    pub points: Vec<(f64, f64)>,
    /// The curves.
    pub curves: Vec<PlotCurve>,
}

/// A curve of a model, other inputs in the middle of their ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct PlotCurve {
    /// Values of the categories; empty: it is that of all calls.
    pub category: Vec<u64>,
    /// Values of the input and predicted times, ns.
    pub places: Vec<(f64, f64)>,
}

impl Plot {
    /// `None`: the model has no input.
    #[must_use]
    pub fn new(model: &Model, calls: &Calls) -> Option<Self> {
        let input = model.critical.first().map_or_else(|| model.inputs.first(), |c| Some(&c.name))?;
        let at = model.inputs.iter().position(|name| name == input)?;
        let mut points: Vec<(f64, f64)> = calls
            .iter()
            .filter_map(|(values, taken)| Some((*model.x(values)?.0.get(at)?, taken.own_ns()?)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let step = points.len().div_ceil(POINTS).max(1);
        let (low, high) = *model.range.get(at)?;
        let ratio = (high.max(1.0) / low.max(1.0)).max(1.0);
        let middle: Vec<f64> = model.range.iter().map(|(l, h)| (l.max(1.0) * h.max(1.0)).sqrt()).collect();
        let curve = |curve: &profiler_core::models::Curve| {
            let place = |i: usize| {
                let x = low.max(1.0) * ratio.powf(i as f64 / (PLACES - 1) as f64);
                let mut all = middle.clone();
                if let Some(own) = all.get_mut(at) {
                    *own = x;
                }
                (x, curve.shape.at(&all))
            };
            PlotCurve { category: curve.category.clone(), places: (0..PLACES).map(place).collect() }
        };
        Some(Self {
            input: input.clone(),
            points: points.into_iter().step_by(step).collect(),
            curves: model.curves.iter().take(CURVES).map(curve).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::models::{Input, Taken, Value, fit};

    #[test]
    fn calls_lie_on_the_curve_over_the_whole_range_and_few_of_many_are_drawn() {
        let mut calls = Calls::new(vec![Input::number("n")]);
        for i in 0..5_000_u64 {
            let n = 10 << (i % 10);
            let wave = 1.0 + 0.02 * (i as f64 * 0.7).sin();
            calls.push(&[Value::Unsigned(n)], Taken::ns((300.0 + 5.0 * n as f64) * wave));
        }
        let plot = Plot::new(&fit(&calls, 1).unwrap(), &calls).unwrap();
        assert_eq!((plot.input.as_str(), plot.curves.len()), ("n", 1));
        assert!((200..=POINTS).contains(&plot.points.len()), "{}", plot.points.len());
        assert_eq!((plot.points[0].0, plot.points.last().unwrap().0), (10.0, 5_120.0));
        let places = &plot.curves[0].places;
        assert!(
            (places[0].0, places.len()) == (10.0, PLACES) && (places[PLACES - 1].0 - 5_120.0).abs() < 1e-6
        );
        for (x, ns) in places {
            assert!((ns / (300.0 + 5.0 * x) - 1.0).abs() < 0.03, "{x}: {ns}");
        }
    }
}
