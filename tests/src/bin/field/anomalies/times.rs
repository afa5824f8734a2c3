//! Predicted and actual times of the modelled functions (Table 2 of the paper on ADLER), from recorded calls.
//!
//! Sizes differ from call to call, so that times are told at the middle size: what is predicted there, times the median of what calls took over what was predicted for
//! them.

use super::target::FUNCTIONS;
use super::verdict::Stretch;
use anyhow::{Result, bail};
use profiler_core::models::{Model, Value};
use profiler_core::recording::EventRow;
use profiler_user::config::InputSpec;
use profiler_user::models::Expected;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Level of the interval that comes with a prediction, which is not used here.
const LEVEL: f64 = 0.95;

/// The model of a function.
pub struct Modelled {
    model: Model,
    inputs: Vec<InputSpec>,
}

/// Times of one function in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Its symbol.
    pub function: String,
    /// Recorded calls in the whole run: data points.
    pub points: u64,
    /// Predicted at the middle size, ns.
    pub predicted_ns: f64,
    /// Calls while nothing was wrong, and the median of their time over the predicted one.
    pub normal: (u64, Option<f64>),
    /// The same of calls that began while it was wrong.
    pub anomalous: (u64, Option<f64>),
    /// Median of the error of prediction of normal calls, as a part of the predicted time.
    pub error: Option<f64>,
}

/// The models of a recording, in the order of [`FUNCTIONS`].
///
/// # Errors
///
/// If one of the functions has no model; the message has why.
pub fn models(recording: &Path) -> Result<Vec<Modelled>> {
    let expected = Expected::read(recording, &[])?;
    let model = |symbol: &str| {
        let mut found = expected.functions.iter().filter(|f| f.key.0.1 == symbol && f.context.is_none());
        match (found.next(), expected.without.iter().find(|f| f.name == symbol)) {
            (Some(found), _) => Ok(Modelled { model: found.model.clone(), inputs: found.inputs.clone() }),
            (None, Some(without)) => bail!("{symbol} has no model: {}", without.why),
            (None, None) => bail!("{symbol} was not recorded"),
        }
    };
    FUNCTIONS.iter().map(|function| model(function.symbol)).collect()
}

impl Modelled {
    /// Of calls that are too short to be told apart none.
    fn predicted_ns(&self, values: &[Value]) -> Option<f64> {
        let predicted = self.model.predict(values, LEVEL)?;
        Some(predicted.ns).filter(|ns| *ns > 0.0 && !predicted.is_short)
    }

    fn values(&self, row: &EventRow) -> Vec<Value> {
        let value = |input: &InputSpec| {
            let register = row.args.get(input.argument).copied().flatten();
            register.map_or(Value::Missing, |register| input.kind.value(register))
        };
        self.inputs.iter().map(value).collect()
    }

    /// Its time, without what watching cost, over the predicted one.
    fn ratio(&self, row: &EventRow) -> Option<f64> {
        let own_ns = row.duration_ns?.checked_sub(row.nested_cost_ns.unwrap_or(0)).filter(|ns| *ns > 0)?;
        Some(own_ns as f64 / self.predicted_ns(&self.values(row))?)
    }
}

impl Times {
    /// How far what is predicted lies from the time of normal calls, as a part of the latter.
    pub fn distance(&self) -> Option<f64> {
        self.normal.1.filter(|ratio| *ratio > 0.0).map(|ratio| (1.0 / ratio - 1.0).abs())
    }
}

/// Times of all functions in a run.
pub fn times(models: &[Modelled], calls: &[(usize, EventRow)], stretch: &Stretch) -> Vec<Times> {
    let of = |number: usize| {
        let (modelled, function) = (&models[number], &FUNCTIONS[number]);
        let own = || calls.iter().filter(move |(of, _)| *of == number).map(|(_, row)| row);
        let ratios = |is: &dyn Fn(&EventRow) -> bool| -> Vec<f64> {
            own().filter(|row| is(row)).filter_map(|row| modelled.ratio(row)).collect()
        };
        // Before it only: what went wrong may leave something behind.
        let normal = ratios(&|row| row.time_ns < stretch.begin_ns);
        let anomalous = ratios(&|row| (stretch.begin_ns..stretch.end_ns).contains(&row.time_ns));
        Times {
            function: function.symbol.to_owned(),
            points: own().count() as u64,
            predicted_ns: modelled.predicted_ns(&[Value::Signed(function.middle)]).unwrap_or(0.0),
            error: median(normal.iter().map(|ratio| (ratio - 1.0).abs()).collect()),
            normal: (normal.len() as u64, median(normal)),
            anomalous: (anomalous.len() as u64, median(anomalous)),
        }
    };
    (0..models.len()).map(of).collect()
}

/// Median; of an even number the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(values[middle - 1].midpoint(values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::models::{Calls, Input, Taken, fit};
    use profiler_core::recording::{CallContext, CallPlace};

    fn row(time_ns: u64, n: u64, duration_ns: Option<u64>) -> EventRow {
        EventRow {
            time_ns,
            class_id: 0,
            pid: 1,
            tid: 1,
            duration_ns,
            args: [None, Some(n), None, None, None, None],
            nested_cost_ns: Some(500),
            place: CallPlace::default(),
            context: CallContext::default(),
        }
    }

    /// 10 ns for each unit of the input in the second register.
    fn modelled() -> Modelled {
        let mut calls = Calls::new(vec![Input::number("n")]);
        for i in 0..600_u32 {
            let n = 1_000 * (1 + u64::from(i % 12)).pow(2);
            // One of a thousand parts more or less.
            let ns = n as f64 * 10.0 * (1.0 + 0.001 * f64::from(i % 3));
            calls.push(&[Value::Signed(n as i64)], Taken::ns(ns));
        }
        let specs: profiler_user::config::InputsSpec = "tally:n=arg1".parse().unwrap();
        Modelled { model: fit(&calls, 1).unwrap(), inputs: specs.inputs }
    }

    #[test]
    fn times_are_told_at_the_middle_size_by_what_calls_took_over_the_predicted_time() {
        let stretch = Stretch { from_ns: 0, begin_ns: 1_000, end_ns: 2_000, to_ns: 3_000 };
        let calls = [
            (0, row(10, 4_000, Some(44_500))),
            (0, row(20, 16_000, Some(160_500))),
            (0, row(30, 9_000, Some(90_500))),
            // An open call, and one of another function.
            (0, row(40, 9_000, None)),
            (1, row(50, 9_000, Some(1))),
            (0, row(1_500, 9_000, Some(270_500))),
            (0, row(2_500, 9_000, Some(900_500))),
        ];
        let found = &times(&[modelled()], &calls, &stretch)[0];
        assert_eq!((found.points, found.normal.0, found.anomalous.0), (6, 3, 1));
        assert!((found.normal.1.unwrap() - 1.0).abs() < 0.02, "{found:?}");
        assert!((found.anomalous.1.unwrap() - 3.0).abs() < 0.05, "{found:?}");
        assert!(found.error.unwrap() < 0.02, "{found:?}");
        let middle = FUNCTIONS[0].middle as f64 * 10.0;
        assert!((found.predicted_ns / middle - 1.0).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn adler_table_2_predicted_160_for_150_ms_is_an_error_of_7_percent() {
        let times = |normal: Option<f64>| Times {
            function: "write".to_owned(),
            points: 1,
            predicted_ns: 160e6,
            normal: (1, normal),
            anomalous: (0, None),
            error: None,
        };
        let distance = |normal_ns: f64| times(Some(normal_ns / 160e6)).distance().unwrap();
        assert!((distance(150e6) - 10.0 / 150.0).abs() < 1e-9);
        assert!((distance(170e6) - 10.0 / 170.0).abs() < 1e-9, "it has no sign");
        assert_eq!(times(None).distance(), None);
    }

    #[test]
    fn a_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0, 10.0]), Some(2.5));
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(Vec::new()), None);
    }
}
