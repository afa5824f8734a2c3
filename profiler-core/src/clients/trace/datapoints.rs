//! How many calls of a function that a model is made of are recorded: enough for the model, and not every one of a hundred thousand a second.
//!
//! Source: ADLER §3.2 (Setting the Sampling Frequency): N data points for each kernel, whatever its rate. Here N is wanted of each decade of the
//! inputs. Until then the plan decides alone; from then on it has an upper bound, by which N of each decade come in every [`PERIOD_S`]:
//!
//! ```text
//! duty <= N decades / (F T)
//! ```
//! Budget, plan, governor and ledger stand above it: it is a bound and no demand.

use crate::burst::LARGEST_DUTY;
use crate::class::ClassId;
use crate::models;
use crate::run::view::{ClassView, PointsView};
use std::collections::BTreeSet;

/// N of each decade are wanted anew in so long, s: functions change while they are watched.
const PERIOD_S: f64 = 10.0;

/// It has as many as are wanted.
fn is_enough(points: PointsView) -> bool {
    points.wanted > 0 && points.decades > 0 && points.least >= u64::from(points.wanted)
}

/// Part of the time for which a class of so many calls per second need be traced at most. `None`: as much as can be.
pub(super) fn most_duty(points: PointsView, calls_per_s: f64) -> Option<f64> {
    if !is_enough(points) {
        return None;
    }
    let duty = models::duty(f64::from(points.wanted) * f64::from(points.decades), calls_per_s, PERIOD_S);
    // More is no burst: it is traced.
    (duty < LARGEST_DUTY).then_some(duty)
}

/// Classes that have as many as are wanted.
#[derive(Debug, Default)]
pub(super) struct DataPoints(BTreeSet<ClassId>);

impl DataPoints {
    /// How a class stands. True: it has as many as are wanted, and had not before.
    pub fn note(&mut self, class: &ClassView) -> bool {
        is_enough(class.points) && self.0.insert(class.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::view::plain_class;

    fn points(wanted: u32, decades: u32, least: u64) -> PointsView {
        PointsView { wanted, decades, least }
    }

    #[test]
    fn a_hot_function_that_has_its_points_is_bounded_and_others_are_not() {
        // 200 of each of 3 decades in 10 s, of a million calls.
        let duty = most_duty(points(200, 3, 200), 100_000.0).unwrap();
        assert!((duty - 6e-4).abs() < 1e-12);
        assert_eq!(most_duty(points(200, 3, 199), 100_000.0), None, "one decade has too few");
        assert_eq!(
            most_duty(points(200, 3, 5_000), 100.0),
            None,
            "60 of 100 a second are wanted: all are recorded"
        );
        assert_eq!(most_duty(points(0, 3, 5_000), 100_000.0), None, "no number is wanted");
        assert_eq!(most_duty(points(200, 0, 0), 100_000.0), None, "nothing was recorded");
    }

    #[test]
    fn that_a_function_has_its_points_is_said_once() {
        let mut all = DataPoints::default();
        let class = |least| ClassView { points: points(200, 2, least), ..plain_class(4, 1_000.0) };
        assert_eq!(
            [0, 199, 200, 200, 700].map(|least| all.note(&class(least))),
            [false, false, true, false, false]
        );
    }
}
