//! What is said where the functions inside operations wait for ever: bounds take so much of what operations may cost that no slice fits, or
//! so many other processes map their file that they are never all attached at once.

use crate::adapt::spending::allowed_for_slices;
use crate::run::arbiter::OPERATIONS_SHARE;
use crate::surroundings::fork_hold::SHARE as FORK_SHARE;
use crate::units::OverheadBudget;

/// Slices whose time has come before anything is said of them.
pub const LEAST_DUE: u64 = 10;
/// Of so many that were due one began, or it is said.
const FEW: u64 = 4;
/// Operations of which not one was recorded before anything is said of them.
const LEAST_OPERATIONS: u64 = 1_000;

/// The figures.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Slices whose time had come.
    pub due: u64,
    /// Those of them that recorded.
    pub begun: u64,
    /// Slices that ended before all functions were attached, because forks of others may not be held up for longer.
    pub held_back: u64,
    /// Operations.
    pub population: u64,
    /// Those that were recorded.
    pub recorded: u64,
    /// What bounds cost while they are attached, CPU s/s.
    pub bounds: f64,
    /// What operations may cost, CPU s/s.
    pub allowed: f64,
    /// What functions inside cost while they are attached, CPU s/s.
    pub attached: f64,
    /// The shortest slice, CPU s.
    pub shortest_s: f64,
    /// The run's budget.
    pub budget: OverheadBudget,
}

impl Waiting {
    /// It is worth telling.
    #[must_use]
    pub fn is_starving(&self) -> bool {
        (self.due >= LEAST_DUE && self.begun * FEW < self.due)
            || (self.population >= LEAST_OPERATIONS && self.recorded == 0)
    }

    /// The budget with which bounds are watched all the time and the shortest slice fits; `None`: there is none.
    fn enough(&self) -> Option<OverheadBudget> {
        let times = allowed_for_slices(self.bounds, self.shortest_s) / self.allowed.max(f64::MIN_POSITIVE);
        // Never the one that was not enough.
        self.budget.times(times.max(1.1))
    }

    /// Forks of others are why, rather than the budget.
    fn is_held_back(&self) -> bool {
        2 * self.held_back > self.due.saturating_sub(self.begun)
    }

    /// What is said.
    #[must_use]
    pub fn in_words(&self) -> String {
        if self.is_held_back() {
            return format!(
                "{} of {} operations were recorded, in {} slices of the functions inside of {} that were due: {} ended before all of them were \
                 attached, because many other processes map their files, and attaching may hold up forks for {:.1} % of the time only; name \
                 fewer functions with --detail, or functions of files that fewer processes map, or use --adapt attach_share=false, which \
                 attaches them once",
                self.recorded,
                self.population,
                self.begun,
                self.due,
                self.held_back,
                FORK_SHARE * 100.0
            );
        }
        let mend = match self.enough() {
            Some(budget) => format!("--budget {budget} would pay for both, or "),
            None => "no budget pays for both; ".to_owned(),
        };
        format!(
            "{} of {} operations were recorded, in {} slices of the functions inside of {} that were due: bounds cost {:.2} % of a CPU while they are attached, of {:.2} % that \
             operations may cost ({:.0} % of --budget {}), and the shortest slice, {:.2} ms at {:.1} % of a CPU, waits for what they leave; {mend}name \
             fewer or rarer functions with --detail, or bounds that are rarer or system calls",
            self.recorded,
            self.population,
            self.begun,
            self.due,
            self.bounds * 100.0,
            self.allowed * 100.0,
            OPERATIONS_SHARE * 100.0,
            self.budget,
            self.shortest_s * 1e3,
            self.attached * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITING: Waiting = Waiting {
        due: 40,
        begun: 3,
        held_back: 18,
        population: 9_000,
        recorded: 12,
        bounds: 0.03,
        allowed: 0.04,
        attached: 0.5,
        shortest_s: 0.006,
        budget: OverheadBudget::Share(0.05),
    };

    #[test]
    fn slices_that_forks_of_others_hold_back_are_told_as_such() {
        assert!(!WAITING.is_held_back());
        let held = Waiting { held_back: 19, ..WAITING };
        assert_eq!(
            held.in_words(),
            "12 of 9000 operations were recorded, in 3 slices of the functions inside of 40 that were due: 19 ended before all of them were \
             attached, because many other processes map their files, and attaching may hold up forks for 0.4 % of the time only; name \
             fewer functions with --detail, or functions of files that fewer processes map, or use --adapt attach_share=false, which \
             attaches them once"
        );
    }

    #[test]
    fn slices_that_wait_for_ever_are_told_with_figures_and_a_budget() {
        assert_eq!(
            WAITING.in_words(),
            "12 of 9000 operations were recorded, in 3 slices of the functions inside of 40 that were due: bounds cost 3.00 % of a CPU while they are attached, of 4.00 % that \
             operations may cost (80 % of --budget 5%), and the shortest slice, 6.00 ms at 50.0 % of a CPU, waits for what they leave; \
             --budget 5.5% would pay for both, or name fewer or rarer functions with --detail, or bounds that are rarer or system calls"
        );
        // Bounds that take a CPU leave nothing of any share.
        assert!(
            Waiting { bounds: 1.0, ..WAITING }.in_words().contains("; no budget pays for both; name fewer")
        );
        let per_second = Waiting { budget: OverheadBudget::CpuPerSecond(0.05), bounds: 0.07, ..WAITING };
        assert!(per_second.in_words().contains("--budget 100ms/s would"), "{}", per_second.in_words());
    }

    #[test]
    fn a_few_that_wait_are_nothing_to_talk_about() {
        assert!(WAITING.is_starving());
        assert!(!Waiting { due: 9, begun: 0, ..WAITING }.is_starving());
        assert!(!Waiting { begun: 10, ..WAITING }.is_starving());
        assert!(!Waiting { due: 0, begun: 0, ..WAITING }.is_starving());
        // Whatever came of the slices.
        let none = Waiting { due: 1, begun: 1, recorded: 0, ..WAITING };
        assert!(none.is_starving() && !Waiting { population: 999, ..none }.is_starving());
    }
}
