//! What watching really costs a simulated target, second by second: independent of the ledger.

use profiler_core::ledger::FLOOR_CPU_PER_S;
use profiler_core::units::OverheadBudget;

/// What a second cost, ns of CPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Second {
    /// Hits through open gates.
    pub open_ns: f64,
    /// Hits that were turned away: while links were made or closed, and between a trip and the closing.
    pub turned_away_ns: f64,
    /// Samples.
    pub samples_ns: f64,
    /// Context switches of threads that are sampled.
    pub switches_ns: f64,
    /// Links made and closed.
    pub links_ns: f64,
    /// What children paid that carry breakpoints.
    pub children_ns: f64,
    /// CPU time that children used while they carried breakpoints.
    pub carried_ns: f64,
    /// CPU time that the target used by itself.
    pub own_ns: f64,
    /// What the budget allows.
    pub allowed_ns: f64,
    /// Time in which the target ran, ns.
    pub length_ns: f64,
}

impl Second {
    /// All but what is stated: hits of a gate that was open, samples, switches.
    #[must_use]
    pub fn governed_ns(&self) -> f64 {
        self.open_ns + self.samples_ns + self.switches_ns
    }
}

/// The seconds of a run.
#[derive(Debug, Clone)]
pub struct Truth {
    budget: OverheadBudget,
    start_ns: u64,
    seconds: Vec<Second>,
}

impl Truth {
    /// A run that begins at this time, ktime ns.
    #[must_use]
    pub fn new(budget: OverheadBudget, start_ns: u64) -> Self {
        Self { budget, start_ns, seconds: Vec::new() }
    }

    /// The seconds so far.
    #[must_use]
    pub fn seconds(&self) -> &[Second] {
        &self.seconds
    }

    /// The second of a time, ktime ns.
    pub fn at(&mut self, now_ns: u64) -> &mut Second {
        let index = (now_ns.saturating_sub(self.start_ns) / 1_000_000_000) as usize;
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, Second::default());
        }
        &mut self.seconds[index]
    }

    /// The target used so much CPU time by itself in `length_ns` before `now_ns`.
    pub fn ran(&mut self, now_ns: u64, length_ns: f64, own_ns: f64) {
        let used = (own_ns / length_ns.max(1.0)).max(FLOOR_CPU_PER_S);
        let allowed_ns = self.budget.cpu_per_second(used) * length_ns;
        let second = self.at(now_ns);
        second.own_ns += own_ns;
        second.allowed_ns += allowed_ns;
        second.length_ns += length_ns;
    }
}
