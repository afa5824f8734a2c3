//! How many calls of a function that a model is made of are recorded: enough for the model, and not every one of a hundred thousand a second.
//!
//! Source: ADLER §3.2 (Setting the Sampling Frequency): N data points for each kernel, whatever its rate. Here N is wanted of each decade of the
//! inputs. Until then the plan decides alone; from then on it has an upper bound, by which N of each decade come in every [`PERIOD_S`]:
//!
//! ```text
//! duty <= N decades / (F T)
//! ```
//! A function whose model is known from the start is bounded from the start. The functions of a group share the frequency f of recorded calls
//! ([`models::shared_hz`]), so that `duty <= f / F`. Where models are made while the run goes on, they share it from then on.
//! Budget, plan, governor and ledger stand above it: it is a bound and no demand.

use crate::burst::LARGEST_DUTY;
use crate::class::ClassId;
use crate::models::{self, PERIOD_S};
use crate::run::view::{ClassView, PointsView};
use std::collections::BTreeMap;

/// It shares a frequency with the functions of its group.
pub(super) fn is_shared(points: PointsView) -> bool {
    points.shared_hz > 0.0
}

/// Part of the time for which a class of so many calls per second need be traced at most. `None`: as much as can be.
pub(super) fn most_duty(points: PointsView, calls_per_s: f64) -> Option<f64> {
    let wanted = if is_shared(points) {
        points.shared_hz * PERIOD_S
    } else if points.is_enough() {
        f64::from(points.wanted) * f64::from(points.decades)
    } else {
        return None;
    };
    let duty = models::duty(wanted, calls_per_s, PERIOD_S);
    // More is no burst: it is traced.
    (duty < LARGEST_DUTY).then_some(duty)
}

/// Classes that have as many as are wanted, or share a frequency: that frequency, Hz; 0: they share none.
#[derive(Debug, Default)]
pub(super) struct DataPoints(BTreeMap<ClassId, f64>);

impl DataPoints {
    /// How a class stands. Said, once, and again where its group has another frequency, is why it need be recorded no more often.
    pub fn note(&mut self, class: &ClassView) -> Option<&'static str> {
        let why = if is_shared(class.points) {
            "functions of a group share one frequency"
        } else if class.points.is_enough() {
            "a function has the data points that its model needs"
        } else {
            return None;
        };
        let before = self.0.insert(class.id, class.points.shared_hz);
        before.is_none_or(|hz| hz.to_bits() != class.points.shared_hz.to_bits()).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::view::plain_class;

    fn points(wanted: u32, decades: u32, least: u64) -> PointsView {
        PointsView { wanted, decades, least, shared_hz: 0.0 }
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
            [0, 199, 200, 200, 700].map(|least| all.note(&class(least)).is_some()),
            [false, false, true, false, false]
        );
    }

    #[test]
    fn functions_of_a_group_share_a_frequency_from_the_start() {
        let shared = |shared_hz| PointsView { shared_hz, ..PointsView::default() };
        // 60 calls a second of each, whatever is called how often.
        for calls_per_s in [1_000.0, 100_000.0] {
            let duty = most_duty(shared(60.0), calls_per_s).unwrap();
            assert!((duty * calls_per_s - 60.0).abs() < 1e-9);
        }
        assert_eq!(most_duty(shared(60.0), 100.0), None, "all are recorded");
        assert_eq!(most_duty(shared(0.0), 100_000.0), None);
        let both = PointsView { shared_hz: 60.0, ..points(200, 1, 200) };
        assert!((most_duty(both, 1e6).unwrap() - 6e-5).abs() < 1e-12, "the group's stands above its own");
        let mut all = DataPoints::default();
        let class = ClassView { points: shared(60.0), ..plain_class(4, 1_000.0) };
        let said = [all.note(&class), all.note(&class)];
        assert!(said[0].unwrap().contains("group") && said[1].is_none());
        // Another function joined the group, whose inputs are over more decades.
        assert!(all.note(&ClassView { points: shared(80.0), ..class }).is_some());
    }

    #[test]
    fn a_function_that_has_its_points_joins_a_group_while_the_run_goes_on() {
        let mut all = DataPoints::default();
        let class = |shared_hz| ClassView {
            points: PointsView { shared_hz, ..points(200, 2, 200) },
            ..plain_class(4, 1_000.0)
        };
        let said = [0.0, 0.0, 60.0, 60.0].map(|hz| all.note(&class(hz)));
        assert!(said[0].unwrap().contains("data points") && said[1].is_none());
        assert!(said[2].unwrap().contains("group") && said[3].is_none());
        let duty = [0.0, 60.0].map(|hz| most_duty(class(hz).points, 1e5).unwrap() * 1e5);
        assert!((duty[0] - 40.0).abs() < 1e-9 && (duty[1] - 60.0).abs() < 1e-9, "{duty:?}");
    }
}
