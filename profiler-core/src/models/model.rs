//! What is told of a function in a calling context: a model, or why there is none.

use super::calibration::{Calibration, ShortCalls};
use super::call::{Taken, Value};
use super::cells::{CLEAR, LeftOut};
use super::class::{Class, Printed};
use super::goodness::Goodness;
use super::screen::{Roles, Unusable};
use super::shape::Shape;
use crate::stats::{Interval, z_quantile};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Inputs beyond the range of those behind a model by less than this factor are in it: a cell of neighbours is 9 % wide.
const AT_THE_EDGE: f64 = 1.1;
/// Between inputs whose medians are just above what can be told, and just below it, the curve is as uncertain as that.
const NEARLY: f64 = 2.0;
/// Smallest growth for each 1 of an input that two decimals tell.
const READABLE: f64 = 1.1;

/// An execution-time model m of a kernel in one calling context (§3.1, formula (2)).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Names of the inputs that may be predictors, in the order of [`Model::x`].
    pub inputs: Vec<String>,
    /// Names of the inputs by which calls are told apart.
    pub categories: Vec<String>,
    /// The curve; one for each category that has enough calls, if these differ.
    pub curves: Vec<Curve>,
    /// Ours; unknown where the fit is not good.
    pub class: Class,
    /// The paper's.
    pub printed: Printed,
    /// Class of the best form, however good it is.
    pub form: Class,
    /// Classes that the calls do not rule out, beside `form`.
    pub alternatives: Vec<Class>,
    /// A better form was left out for a simpler one from which it differs by what caches explain.
    #[serde(default)]
    pub is_simplified: bool,
    /// Why the class is unknown.
    pub doubt: Option<Doubt>,
    /// How good it is.
    pub goodness: Goodness,
    /// Inputs that the time depends on, and how much.
    pub critical: Vec<Critical>,
    /// Smallest and largest value of each input among the cells.
    pub range: Vec<(f64, f64)>,
    /// Slope of ln(time) over the logarithm of the only critical input, with its interval at 95 %.
    pub exponent: Option<(f64, f64, f64)>,
    /// What it was made from.
    pub basis: Basis,
    /// How far single calls lie from what is predicted.
    pub calibration: Calibration,
    pub(super) roles: Roles,
}

/// What a model was made from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    /// Calls behind it.
    pub calls: u64,
    /// Distinct inputs (cells) behind it.
    pub distinct: usize,
    /// Calls that are not.
    pub left_out: LeftOut,
    /// Shortest call, ns: what an unknown kernel is predicted to take (§3.2).
    pub shortest_ns: f64,
    /// What the cost of watching a call is known to, ns; 0: exactly, or nobody said.
    #[serde(default)]
    pub known_to_ns: f64,
}

impl Basis {
    /// Up to this, ns, times of calls are not told apart from what the cost of watching them is off by: [twice](LeftOut::short) what that is known to.
    #[must_use]
    pub fn floor_ns(&self) -> f64 {
        CLEAR * self.known_to_ns
    }
}

/// The curve of one category, or of all calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Values of the categories; empty: of all.
    pub category: Vec<u64>,
    /// The curve.
    pub shape: Shape,
}

/// A critical input parameter (§3.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Critical {
    /// Name.
    pub name: String,
    /// Predicted time at its largest value over that at its smallest, other inputs in the middle of their ranges.
    pub influence: f64,
}

/// Why a class is unknown although there is a model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// The medians are too noisy for any model to reach 0.95.
    Noise {
        /// How many times as many calls for each input would raise the ceiling to 0.97.
        more_calls: f64,
    },
    /// Time changes with something that is no input.
    Unexplained,
    /// The medians follow the only input, but in a way that no form has.
    NoForm {
        /// Where they are exponential: they grow by this factor for each 1 of the input.
        factor: Option<f64>,
    },
    /// It may be constant, or grow this many times over the range.
    Flat {
        /// Largest growth that is not ruled out.
        at_most: f64,
    },
}

/// What is predicted for a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Time, ns.
    pub ns: f64,
    /// Shortest and longest time of calls with these inputs, at the level asked for, ns.
    pub interval_ns: Interval,
    /// An input lies outside the range of those that the model was made from.
    pub is_extrapolated: bool,
    /// The call is too short to be told apart: it is predicted to take what [can be told](Basis::floor_ns).
    pub is_short: bool,
}

impl Prediction {
    /// A call's time without what watching cost, as it is held against what is predicted, ns: of a short call no less than can be told. `None` if it did not return, or
    /// nothing is left.
    #[must_use]
    pub fn own_ns(&self, taken: Taken) -> Option<f64> {
        if self.is_short { taken.left_ns().map(|left| left.max(self.ns)) } else { taken.own_ns() }
    }
}

impl Model {
    /// Inputs that are no predictors, with the reason.
    #[must_use]
    pub fn unusable(&self) -> &[(String, Unusable)] {
        &self.roles.unusable
    }

    /// A call's inputs in the order of [`Model::inputs`], and the curve that holds for it. `None` where an input cannot be read, or its
    /// category had too few calls.
    #[must_use]
    pub fn x(&self, values: &[Value]) -> Option<(Vec<f64>, &Curve)> {
        let (x, category) = self.roles.read(values)?;
        let curve = self.curves.iter().find(|c| c.category.is_empty() || c.category == category)?;
        Some((x.into_iter().map(|x| x as f64).collect(), curve))
    }

    /// A call of this predicted time, ns, took longer than any that was recorded, each for its inputs.
    #[must_use]
    pub fn is_beyond(&self, predicted_ns: f64, own_ns: f64) -> bool {
        self.calibration_of(predicted_ns).is_beyond(predicted_ns, (own_ns / predicted_ns).ln())
    }

    /// How far calls with this predicted time, ns, lie from it.
    #[must_use]
    pub fn calibration_of(&self, predicted_ns: f64) -> &Calibration {
        let short = self.calibration.short().filter(|_| predicted_ns <= self.basis.floor_ns());
        short.map_or(&self.calibration, |short| &short.calibration)
    }

    /// Predicts a call's time, with an interval that holds `level` of calls like those before.
    ///
    /// Where the curve predicts less than [can be told](Basis::floor_ns), and such calls were recorded, that is what is predicted. Outside the range of the inputs seen, the interval is
    /// widened by the curve's own uncertainty.
    #[must_use]
    pub fn predict(&self, values: &[Value], level: f64) -> Option<Prediction> {
        let (x, curve) = self.x(values)?;
        let (ns, is_short) = self.time_at(&x, curve);
        let is_extrapolated = !is_short && is_beyond(&x, &self.range, 1.0);
        let more = if is_extrapolated { z_quantile(level) * curve.shape.log_error(&x) } else { 0.0 };
        let r = self.calibration_of(ns).interval(ns, level);
        let interval_ns = Interval { low: ns * (r.low - more).exp(), high: ns * (r.high + more).exp() };
        Some(Prediction { ns, interval_ns, is_extrapolated, is_short })
    }

    /// Predicted time, ns, and whether that is what can be told.
    pub(super) fn time_at(&self, x: &[f64], curve: &Curve) -> (f64, bool) {
        let (ns, floor_ns) = (curve.shape.at(x), self.basis.floor_ns());
        let is_like = |short: &ShortCalls| {
            !is_beyond(x, &short.inputs, AT_THE_EDGE) || !is_beyond(x, &self.range, AT_THE_EDGE)
        };
        let is_short =
            self.calibration.short().is_some_and(is_like) && is_short(x, ns, &self.range, floor_ns);
        (if is_short { floor_ns } else { ns }, is_short)
    }

    /// No recorded call that is known to be short, or is behind the model, had inputs like these, within a tenth.
    #[must_use]
    pub fn is_outside(&self, values: &[Value]) -> bool {
        let is_out = |(x, curve): (Vec<f64>, &Curve)| {
            !self.time_at(&x, curve).1 && is_beyond(&x, &self.range, AT_THE_EDGE)
        };
        self.x(values).is_none_or(is_out)
    }

    /// Time that the adaptive frequency goes by (§3.2): the predicted one; of an unknown class the shortest call's, ns.
    #[must_use]
    pub fn paced_ns(&self, values: &[Value]) -> f64 {
        let known = self.class != Class::Unknown;
        let predicted = self.x(values).filter(|_| known).map(|(x, curve)| curve.shape.at(&x));
        predicted.unwrap_or(self.basis.shortest_ns)
    }

    /// Why the class is unknown, with the name of the input.
    #[must_use]
    pub fn doubt_text(&self) -> Option<String> {
        let input = self.inputs.first().map_or("the input", String::as_str);
        self.doubt.map(|doubt| doubt.text(input))
    }

    /// Formula, one line for each curve: `12.3 ns + 4.10 ns · n log2 n`.
    #[must_use]
    pub fn formula(&self) -> Vec<String> {
        let line = |curve: &Curve| {
            let text = curve.shape.text(&self.inputs);
            let of = self.categories.iter().zip(&curve.category);
            let of: Vec<String> = of.map(|(name, value)| format!("{name} = {value}")).collect();
            if of.is_empty() { text } else { format!("{}: {text}", of.join(", ")) }
        };
        self.curves.iter().map(line).collect()
    }
}

/// A call is too short to be told apart: the curve says so, or nearly, and no model was made from calls like it.
pub(super) fn is_short(x: &[f64], ns: f64, range: &[(f64, f64)], floor_ns: f64) -> bool {
    ns <= floor_ns || ns <= NEARLY * floor_ns && is_beyond(x, range, AT_THE_EDGE)
}

/// An input lies outside of these ranges by more than this factor.
fn is_beyond(x: &[f64], ranges: &[(f64, f64)], edge: f64) -> bool {
    x.iter().zip(ranges).any(|(x, (low, high))| *x < low / edge || *x > high * edge)
}

/// Why there is no model of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NoModel {
    /// The reason.
    pub reason: Reason,
    /// Each input, with why it is no predictor.
    pub inputs: Vec<(String, Unusable)>,
    /// Calls that were looked at.
    pub calls: u64,
    /// Shortest call, ns, if any returned.
    pub shortest_ns: Option<f64>,
}

/// Why there is no model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No call returned.
    NoCalls,
    /// The function has no inputs.
    NoInputs,
    /// None of its inputs can be a predictor.
    NoUsableInput,
    /// Fewer than five distinct inputs have ten calls.
    FewInputs {
        /// How many have.
        distinct: usize,
    },
    /// The same, because of these calls the median of those with their inputs is below twice what the cost of watching them is known to.
    Short {
        /// How many.
        calls: u64,
    },
    /// Times and inputs allow no fit.
    NoFit,
    /// It has variable arguments, of which nobody knows how many were passed, nor where, and nobody named its inputs. [`super::fit()`] does not say so: who
    /// knows the function's declaration does.
    Variadic,
}

impl fmt::Display for NoModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::NoCalls => write!(f, "no model: no call returned")?,
            Reason::NoInputs => write!(f, "no model: the function has no inputs")?,
            Reason::NoUsableInput => write!(f, "no model: no input can be a predictor")?,
            Reason::FewInputs { distinct } => write!(
                f,
                "no model: {distinct} distinct inputs have 10 calls, 5 are needed ({} calls in all)",
                self.calls
            )?,
            Reason::Short { calls } => write!(
                f,
                "no model: {calls} of {} calls have inputs for which a call takes less than twice what the cost of timing it is known to",
                self.calls
            )?,
            Reason::NoFit => write!(f, "no model: times and inputs allow no fit")?,
            Reason::Variadic => write!(
                f,
                "no model: it takes variable arguments, whose number and places change from call to call; name those that are always there as inputs"
            )?,
        }
        for (name, why) in &self.inputs {
            write!(f, "; {name}: {why}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text("the input"))
    }
}

impl Doubt {
    /// The same; `input`: what the only input is called.
    fn text(self, input: &str) -> String {
        match self {
            Self::Noise { more_calls } => {
                format!("times scatter too much; {more_calls:.0} times as many calls would tell")
            }
            Self::Unexplained => "time changes with something else than these inputs".to_owned(),
            Self::NoForm { factor } => {
                let more = factor.map_or_else(String::new, |factor| exponential(factor, input));
                format!("no form that is tried follows these medians{more}")
            }
            Self::Flat { at_most } => {
                format!(
                    "constant, or up to {at_most:.1} times as long for large inputs: more calls would tell"
                )
            }
        }
    }
}

/// Growth by a factor for each 1 of an input; where that is next to nothing, how many double the time.
fn exponential(factor: f64, input: &str) -> String {
    let growth = match factor {
        factor if factor >= 2.0 => format!("a factor of {factor:.1} for each 1"),
        factor if factor >= READABLE => format!("a factor of {factor:.2} for each 1"),
        factor => format!("a factor of 2 for each {:.0}", 2_f64.ln() / factor.ln()),
    };
    format!("; they grow by {growth} of {input}: exponential, which is no class here")
}
