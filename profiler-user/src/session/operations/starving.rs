//! What is said where the functions inside operations wait for ever: bounds take so much of what operations may cost that no slice fits, or
//! so many other processes map their file that they are never all attached at once.

use super::super::Session;
use super::Operations;
use profiler_core::adapt::PolicyKind;
use profiler_core::adapt::spending::allowed_for_slices;
use profiler_core::recording::{ChangeKind, NotObserved};
use profiler_core::run::arbiter::OPERATIONS_SHARE;
use profiler_core::surroundings::fork_hold::SHARE as FORK_SHARE;
use profiler_core::units::OverheadBudget;

/// Slices whose time has come before anything is said of them.
const LEAST_DUE: u64 = 10;
/// Of so many that were due one began, or it is said.
const FEW: u64 = 4;
/// Operations of which not one was recorded before anything is said of them.
const LEAST_OPERATIONS: u64 = 1_000;

/// The figures.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Slices whose time had come, and those that recorded.
    due: u64,
    begun: u64,
    /// Slices that ended before all functions were attached, because forks of others may not be held up for longer.
    held_back: u64,
    /// Operations, and those that were recorded.
    population: u64,
    recorded: u64,
    /// What bounds cost while they are attached, and what operations may, CPU s/s.
    bounds: f64,
    allowed: f64,
    /// What functions inside cost while they are attached, CPU s/s, and the shortest slice, CPU s.
    attached: f64,
    shortest_s: f64,
    budget: OverheadBudget,
}

impl Waiting {
    fn is_starving(&self) -> bool {
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

    fn in_words(&self) -> String {
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

impl Session {
    fn waiting(&self, operations: &Operations) -> Option<Waiting> {
        if operations.policy == PolicyKind::None || operations.inner.is_empty() {
            return None;
        }
        let (due, begun) = operations.slices.due_and_begun();
        let allowed = self.operations_budget();
        let inner = operations.inner_priced(self.ledger.factor(), self.cost.attach.seconds())?;
        let live = || operations.list.iter().filter(|o| !o.lost);
        let waiting = Waiting {
            due,
            begun,
            held_back: operations.slices.held_back(),
            population: live().map(|o| o.population).sum(),
            recorded: live().map(|o| o.sample).sum(),
            bounds: live().map(|o| o.demand.screening).sum(),
            allowed,
            attached: inner.attached,
            shortest_s: inner.shortest_s(),
            budget: self.meta.budget,
        };
        waiting.is_starving().then_some(waiting)
    }

    /// Says once that slices wait; what is to be told.
    pub(super) fn say_starving(&self, operations: &mut Operations) -> Option<String> {
        // One that none was recorded of yet may be a matter of seconds.
        if operations.said_starving || operations.slices.due_and_begun().0 < LEAST_DUE {
            return None;
        }
        let text = self.waiting(operations)?.in_words();
        operations.said_starving = true;
        self.note_change(ChangeKind::Stop, None, text.clone());
        Some(text)
    }

    /// The report says it, too, with the figures at the end.
    pub(super) fn note_starving(&mut self, operations: &Operations) {
        let Some(waiting) = self.waiting(operations) else { return };
        let names: Vec<&str> = operations.list.iter().map(|o| o.name.as_str()).collect();
        self.meta.not_observed.push(NotObserved {
            what: format!("the inside of operations ({})", names.join(", ")),
            why: waiting.in_words(),
        });
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
