//! Alarms that belong together. Pure.
//!
//! What makes one function slow makes others slow, and goes on: who is called at night wants to be called once. Alarms of a run, whichever functions they are of, of which each comes
//! [`APART_NS`] after the one before at most are one incident. There are never more incidents than alarms, so that the stated rate of false alarms holds for incidents, too.

use crate::output::InIncident;
use std::collections::BTreeSet;

/// Alarms that are further apart belong to two incidents, ns.
pub(super) const APART_NS: u64 = 30_000_000_000;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Incidents {
    /// So many were there.
    pub count: u64,
    /// When the last alarm was, ktime ns.
    last_ns: u64,
    /// Functions that were told in the present one.
    told: BTreeSet<usize>,
}

impl Incidents {
    /// An alarm.
    pub fn alarm(&mut self, now_ns: u64) {
        if self.count == 0 || now_ns.saturating_sub(self.last_ns) > APART_NS {
            self.count += 1;
            self.told.clear();
        }
        self.last_ns = now_ns;
    }

    /// An alarm of that function is told.
    pub fn tell(&mut self, function: usize) -> InIncident {
        let is_first = self.told.is_empty();
        match (self.told.insert(function), is_first) {
            (true, true) => InIncident::First,
            (true, false) => InIncident::Also,
            (false, _) => InIncident::Still,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn alarms_at_most_30_s_apart_are_one_incident_whichever_functions_they_are_of() {
        let mut incidents = Incidents::default();
        let mut alarm = |at_s: u64, function: usize| {
            incidents.alarm(at_s * S);
            (incidents.tell(function), incidents.count)
        };
        assert_eq!(alarm(5, 2), (InIncident::First, 1));
        assert_eq!(alarm(35, 0), (InIncident::Also, 1));
        assert_eq!(alarm(65, 2), (InIncident::Still, 1));
        assert_eq!(alarm(96, 2), (InIncident::First, 2));
        // One that is not told goes on with it.
        incidents.alarm(120 * S);
        incidents.alarm(150 * S);
        assert_eq!((incidents.tell(0), incidents.count), (InIncident::Also, 2));
    }
}
