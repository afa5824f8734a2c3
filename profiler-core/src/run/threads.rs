//! How many threads of the target work, and what one of them may lose.

use crate::units::OverheadBudget;

/// What a thread used of late.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadUse {
    /// Which.
    pub tid: u32,
    /// CPU s per s.
    pub cpu_per_s: f64,
    /// Context switches per s.
    pub switches_per_s: f64,
}

/// Where nobody names what a thread may lose: this times the budget.
const DEFAULT_FACTOR: f64 = 2.0;

/// Threads that may run at once, of so many (0: not known) on so many CPUs.
#[must_use]
pub fn at_once(threads: usize, cpus: u32) -> u32 {
    let cpus = cpus.max(1);
    if threads == 0 { cpus } else { u32::try_from(threads).map_or(cpus, |threads| threads.min(cpus)) }
}

/// Threads that work at once: as many as `cpu` CPU s/s take, of those that may run. Of a service that is nearly idle most sleep for ever.
#[must_use]
pub fn working(cpu: f64, threads: usize, cpus: u32) -> u32 {
    // Casts saturate, and what is not a number is 0.
    (cpu.ceil() as u32).clamp(1, at_once(threads, cpus))
}

/// Share of its own CPU time that a thread may lose: the one that is named; else, of a budget that is a share, a multiple of what a whole
/// CPU is `allowed`, CPU s/s. Who names a budget in CPU time has said nothing of shares: then there is no limit unless one is named, too.
#[must_use]
pub fn limit(named: Option<f64>, budget: OverheadBudget, allowed: f64) -> Option<f64> {
    named.or(match budget {
        OverheadBudget::CpuPerSecond(_) => None,
        _ => Some(DEFAULT_FACTOR * allowed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    #[test]
    fn the_limit_of_a_thread_is_cut_with_the_budget() {
        let share = OverheadBudget::Share(0.02);
        let mut ledger = Ledger::new(share, 0);
        assert_eq!(limit(None, share, ledger.allowed(1.0)), Some(0.04));
        ledger.cut_budget(4.0);
        assert_eq!(limit(None, share, ledger.allowed(1.0)), Some(0.01));
        assert_eq!(limit(Some(0.03), share, ledger.allowed(1.0)), Some(0.03));
        assert_eq!(limit(None, OverheadBudget::CpuPerSecond(0.02), 0.005), None);
    }

    #[test]
    fn threads_that_work_are_those_that_cpu_time_shows() {
        // An idle service with 200 threads; one that keeps a CPU and a bit busy; one that wants more than there is.
        assert_eq!((working(0.0, 200, 8), working(0.02, 200, 8), working(1.02, 200, 8)), (1, 1, 2));
        assert_eq!((working(2.0, 200, 8), working(9.0, 200, 8), working(2.1, 2, 8)), (2, 8, 2));
        // Before anybody has looked, and what is no number.
        assert_eq!((working(3.0, 0, 8), working(f64::NAN, 4, 8), at_once(0, 8)), (3, 1, 8));
        assert_eq!((at_once(3, 8), at_once(200, 8), at_once(1, 0)), (3, 8, 1));
    }
}
