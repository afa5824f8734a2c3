//! Alarms that belong together. Pure.
//!
//! What makes one function slow makes others slow, and goes on: who is called at night wants to be called once. Alarms of a run, whichever functions they are of, of which each comes
//! [`APART_NS`] after the one before at most are one incident. There are never more incidents than alarms, so that the stated rate of false alarms holds for incidents, too.

use crate::output::InIncident;
use profiler_core::recording::Incident;
use std::collections::BTreeMap;

/// Alarms that are further apart belong to two incidents, ns.
pub(super) const APART_NS: u64 = 30_000_000_000;
/// Incidents that are kept with what was told of them, and lines of each, at most: the first ones say what happened.
const MOST_KEPT: usize = 100;
const MOST_LINES: usize = 10;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Incidents {
    /// So many were there.
    pub count: u64,
    /// When the last alarm was, ktime ns.
    last_ns: u64,
    /// Functions that were told in the present one, each with the time since which it takes longer, ktime ns; `None`: single calls did.
    told: BTreeMap<usize, Option<u64>>,
    /// The first ones, of the run that is given.
    kept: Vec<Incident>,
}

impl Incidents {
    /// An alarm of a run that began at `start_ns`.
    pub fn alarm(&mut self, now_ns: u64, start_ns: u64) {
        if self.count == 0 || now_ns.saturating_sub(self.last_ns) > APART_NS {
            self.count += 1;
            self.told.clear();
            if self.kept.len() < MOST_KEPT {
                let from_ns = now_ns.saturating_sub(start_ns);
                self.kept.push(Incident { from_ns, ..Incident::default() });
            }
        }
        self.last_ns = now_ns;
        if let Some(kept) = self.present() {
            (kept.to_ns, kept.alarms) = (now_ns.saturating_sub(start_ns), kept.alarms + 1);
        }
    }

    /// An alarm of that function is told, which takes longer since then by this alarm (`None`: a single call did): what it is in its incident, and since when by all
    /// of them.
    pub fn tell(&mut self, function: usize, since_ns: Option<u64>) -> (InIncident, Option<u64>) {
        let (is_first, is_known) = (self.told.is_empty(), self.told.contains_key(&function));
        let since = self.told.entry(function).or_default();
        *since = since.iter().copied().chain(since_ns).min();
        let place = match (is_known, is_first) {
            (false, true) => InIncident::First,
            (false, false) => InIncident::Also,
            (true, _) => InIncident::Still,
        };
        (place, *since)
    }

    /// These lines were told of the present one.
    pub fn keep(&mut self, place: InIncident, text: &str) {
        let (is_new, lines) = (place != InIncident::Still, text.lines().count());
        let has_room = |kept: &&mut Incident| kept.lines.len() + lines <= MOST_LINES;
        if let Some(kept) = self.present().filter(has_room).filter(|_| is_new) {
            kept.lines.extend(text.lines().map(str::to_owned));
        }
    }

    /// The first ones.
    pub fn kept(&self) -> &[Incident] {
        &self.kept
    }

    fn present(&mut self) -> Option<&mut Incident> {
        let is_kept = self.count == self.kept.len() as u64;
        self.kept.last_mut().filter(|_| is_kept)
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
            incidents.alarm(at_s * S, S);
            (incidents.tell(function, Some(at_s * S)).0, incidents.count)
        };
        assert_eq!(alarm(5, 2), (InIncident::First, 1));
        assert_eq!(alarm(35, 0), (InIncident::Also, 1));
        assert_eq!(alarm(65, 2), (InIncident::Still, 1));
        assert_eq!(alarm(96, 2), (InIncident::First, 2));
        // One that is not told goes on with it.
        incidents.alarm(120 * S, S);
        incidents.alarm(150 * S, S);
        assert_eq!((incidents.tell(0, None).0, incidents.count), (InIncident::Also, 2));
        let kept: Vec<(u64, u64, u64)> =
            incidents.kept().iter().map(|i| (i.from_ns / S, i.to_ns / S, i.alarms)).collect();
        assert_eq!(kept, [(4, 64, 3), (95, 149, 3)]);
    }

    /// The test begins anew after an alarm, and would say that it takes longer since a moment ago.
    #[test]
    fn a_function_takes_longer_since_its_first_alarm_of_the_incident() {
        let mut incidents = Incidents::default();
        let mut since = |at_s: u64, since_s: u64| {
            incidents.alarm(at_s * S, 0);
            let (place, since_ns) = incidents.tell(1, Some(since_s * S));
            incidents.keep(place, &format!("at {at_s}"));
            since_ns.map(|ns| ns / S)
        };
        assert_eq!([since(10, 4), since(20, 15), since(30, 2), since(90, 88)], [4, 4, 2, 88].map(Some));
        let told: Vec<&[String]> = incidents.kept().iter().map(|i| i.lines.as_slice()).collect();
        assert_eq!(told, [["at 10"], ["at 90"]]);
        for at_s in 1..=200 {
            incidents.alarm(at_s * 1_000 * S, 0);
            (0..12).for_each(|function| {
                // One call says not since when the others take longer.
                let (place, since_ns) = incidents.tell(function, None);
                assert_eq!(since_ns, None);
                incidents.keep(place, "more\n  than\n  one line");
            });
        }
        assert_eq!((incidents.kept().len(), incidents.count), (MOST_KEPT, 202));
        assert!(incidents.kept().iter().skip(2).all(|kept| kept.lines.len() == 9 && kept.alarms == 1));
    }
}
