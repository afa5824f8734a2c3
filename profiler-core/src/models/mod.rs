//! Execution-time models: how a function's time grows with its inputs, in each calling context.
//!
//! Source: the paper on ADLER (adaptive sampling by execution-time models), whose sections and formulas are named where they are used.
//! What: [`fit()`] makes a [`Model`] of recorded [`Calls`], or says why there is none ([`NoModel`]).
//!
//! Inputs: calls with the values of their inputs and their durations, without what watching cost. Outputs: formula, class, measures of fit,
//! predictions with intervals.
//!
//! What it does not do: it reads no recording and watches nothing. docs/models.md explains all of it, with what was measured.

mod alone;
mod bends;
mod bets;
mod calibration;
mod call;
mod cause;
mod cells;
mod class;
mod compare;
mod constant;
mod context;
mod fit;
mod flight;
mod goodness;
mod group;
mod idle;
mod lasso;
mod linear;
mod loop_cells;
mod loops;
mod model;
mod pace;
mod screen;
mod search;
mod shape;
mod slow;
mod sum;
mod term;
mod watch;

#[cfg(test)]
mod tests;

pub use crate::stats::Interval;
pub use calibration::{Calibration, ShortCalls};
pub use call::{Calls, End, Input, Kind, Taken, Value};
pub use cause::{Against, Cause, Counted, Doubt as CauseDoubt, Part, Used, explain, shared_cause};
pub use cells::{LEAST_CALLS, LeftOut};
pub use class::{CLASSES, Class, GOOD_FIT, Printed};
pub use compare::{Change, Comparison, Expectation, Ratio, Verdict, compare};
pub use constant::constant;
pub use context::{Context, LoopCallGraph};
pub use fit::fit;
pub use goodness::Goodness;
pub use group::{Group, Grouping, Kernel, Rule, are_alike, duty, frequency_hz, group, ratio};
pub use loop_cells::{LoopFits, LoopSamples, fit_loops};
pub use loops::{LEAST_SAMPLES, LoopCell, LoopModel, NoLoopModel, fit_loop};
pub use model::{Basis, Critical, Curve, Doubt, Model, NoModel, Prediction, Reason};
pub use pace::{LEAST_PART, PERIOD_S, decades, shared_hz};
pub use screen::{LEAST_VALUES, Unusable};
pub use shape::{PowerLaw, Shape, Split};
pub use slow::{SlowCall, SlowCalls, slow_calls};
pub use sum::Sum;
pub use term::{Factor, HALF_POWERS, MOST_INPUTS, MOST_LOGS, Order, Term};
pub use watch::{Call, Event, NOT_DRAWN, Seen, Settings as WatchSettings, Slower, Watch};
