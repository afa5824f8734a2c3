//! What calls may take longer that nobody is to be told of.

use super::AT_FLOOR;

/// A time of which the cost of watching may be off by more than this part says nothing of the machine.
const OF_MACHINE: f64 = 0.05;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(in crate::models) struct Grants {
    pub(super) known_to_ns: f64,
    pub(super) is_at_floor: bool,
    /// Nobody knows which inputs its calls had.
    pub(super) is_of_any_inputs: bool,
}

impl Grants {
    /// What the cost of watching may be off by is little beside this time, and inputs explain it: such calls say how fast the machine is.
    pub fn tells_machine(self, predicted_ns: f64) -> bool {
        !self.is_at_floor && !self.is_of_any_inputs && 2.0 * self.known_to_ns <= OF_MACHINE * predicted_ns
    }

    /// That many calls take longer is no evidence: their inputs may be others today, and nobody knows them.
    pub fn says_nothing_together(self) -> bool {
        self.is_of_any_inputs
    }

    /// Of a call with this predicted time, ln.
    ///
    /// ```text
    /// e^(drift + tolerated) + 2 e / f            e: what the cost of watching is known to: it may be off one way in the earlier run, the other way in this
    /// 2 e^max(drift + tolerated, tolerated)      f <= 2 e, too short to be told apart: they take no less on a machine that is faster
    /// ```
    pub fn at(self, predicted_ns: f64, [drift, tolerated]: [f64; 2]) -> f64 {
        let granted = drift + tolerated;
        if self.is_at_floor {
            granted.max(tolerated) + AT_FLOOR
        } else if self.known_to_ns > 0.0 {
            (granted.exp() + 2.0 * self.known_to_ns / predicted_ns).ln()
        } else {
            granted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Grants = Grants { known_to_ns: 0.0, is_at_floor: false, is_of_any_inputs: false };

    #[test]
    fn calls_say_how_fast_the_machine_is_where_little_else_makes_them_longer() {
        let known_to = |ns: f64| Grants { known_to_ns: ns, ..PLAIN };
        assert!(PLAIN.tells_machine(1.0));
        // Twice what the price is known to is a twentieth of the time.
        assert!(known_to(1.0).tells_machine(40.0) && !known_to(1.0).tells_machine(39.9));
        assert!(!Grants { is_at_floor: true, ..PLAIN }.tells_machine(1e9));
        assert!(!Grants { is_of_any_inputs: true, ..PLAIN }.tells_machine(1e9));
    }

    #[test]
    fn what_is_granted_is_drift_what_is_tolerated_and_what_is_not_known() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(PLAIN.at(100.0, [-0.2, 0.05]), -0.15);
        near(Grants { known_to_ns: 10.0, ..PLAIN }.at(100.0, [0.0, 0.0]), 1.2_f64.ln());
        let at_floor = Grants { is_at_floor: true, ..PLAIN };
        near(at_floor.at(100.0, [-0.2, 0.05]), 0.05 + AT_FLOOR);
        near(at_floor.at(100.0, [0.2, 0.05]), 0.25 + AT_FLOOR);
    }
}
