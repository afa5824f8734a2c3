//! Operations that the target made beside what the recording says of all of them: each has a row, or is counted as one that has none.
//!
//! An operation goes through three counts: its begin is seen by a breakpoint, it begins, and it is recorded. What each of them lets go of is in a column of its own, so that no surplus of one hides what another lacks. Only the
//! time in which that breakpoint was not there is a matter of trust: what the target made then, nobody counted.

#[cfg(test)]
mod tests;

use profiler_core::recording::{Meta, OperationRow, OperationWindowRow, WindowRow};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ops::AddAssign;

/// So many numbers of operations are told.
const TOLD: usize = 5;

/// What the target did while it was followed, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Operations; their numbers go from 1 to this.
    pub operations: u64,
    /// Before the first of them, ktime ns.
    pub from_ns: u64,
    /// After the last one, ktime ns.
    pub until_ns: u64,
}

/// Operations that the target made, by what the recording says of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// All of them.
    pub made: u64,
    /// Without a row, counted as lost: turned away by a gate, without memory for the thread, the ring was full, functions were detached meanwhile, or the end was not seen.
    pub lost: u64,
    /// Without a row, counted as not drawn, as begun while recording was off, or as too dear.
    pub not_drawn: u64,
    /// Without a row, where the breakpoint was not there for a part of the time: nobody can tell whether they are missing.
    pub unwatched: u64,
    /// Without a row, and counted nowhere. There may be none.
    pub nowhere: u64,
    /// Rows of operations that were not made or have one, and counts of more than there are. There may be none.
    pub beyond: u64,
}

impl Account {
    /// Operations without a row, as the recording says itself.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.lost + self.not_drawn + self.unwatched
    }

    /// Operations that the account is wrong about.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.nowhere + self.beyond
    }
}

impl AddAssign<&Account> for Account {
    fn add_assign(&mut self, other: &Account) {
        self.made += other.made;
        self.lost += other.lost;
        self.not_drawn += other.not_drawn;
        self.unwatched += other.unwatched;
        self.nowhere += other.nowhere;
        self.beyond += other.beyond;
    }
}

/// A stretch of time in which the breakpoint was there that sees operations begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attached {
    pub start_ns: u64,
    pub end_ns: u64,
    /// Begins that were let through, and the others.
    pub kept: u64,
    pub away: u64,
}

impl Attached {
    pub fn of(row: &WindowRow) -> Attached {
        Attached { start_ns: row.start_ns, end_ns: row.end_ns, kept: row.kept, away: row.gated + row.dropped }
    }
}

/// What the recording counted of all operations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub begun: u64,
    pub recorded: u64,
    /// Recorded, and lost or marked.
    pub dropped: u64,
    /// Ended.
    pub population: u64,
    /// Not ended when the run was over.
    pub open: u64,
    /// Begins that were refused for want of room or memory; ends without a begin are among them.
    pub refused: u64,
}

impl Counts {
    pub fn of(windows: &[OperationWindowRow], meta: &Meta) -> Counts {
        let sum = |of: fn(&OperationWindowRow) -> u64| windows.iter().map(of).sum::<u64>();
        Counts {
            begun: sum(|row| row.begun),
            recorded: sum(|row| row.recorded),
            dropped: sum(|row| row.dropped),
            population: sum(|row| row.population),
            open: meta.operations.iter().filter_map(|operation| operation.open_at_end).sum(),
            refused: sum(|row| row.unmatched) + meta.losses.no_thread_state,
        }
    }
}

/// Rows of operations by what they tell.
struct Rows {
    /// Operations that have one.
    numbers: HashSet<u64>,
    whole: u64,
    marked: u64,
    open: u64,
    /// Marked or open, without the number of an operation: `mark` was not seen.
    unnumbered: u64,
    /// Whole ones without a number of their own.
    beyond: u64,
}

impl Rows {
    fn of(rows: &[OperationRow], made: u64) -> Rows {
        let mut told =
            Rows { numbers: HashSet::new(), whole: 0, marked: 0, open: 0, unnumbered: 0, beyond: 0 };
        let is_whole = |row: &&OperationRow| !row.censored && row.incomplete != Some(true);
        for row in rows.iter().filter(is_whole) {
            told.whole += 1;
            told.beyond += u64::from(!told.number(row, made));
        }
        for row in rows.iter().filter(|row| !is_whole(row)) {
            *(if row.censored { &mut told.open } else { &mut told.marked }) += 1;
            told.unnumbered += u64::from(!told.number(row, made));
        }
        told
    }

    /// True: it has a number, and is the first that has it.
    fn number(&mut self, row: &OperationRow, made: u64) -> bool {
        (1..=made).contains(&row.measure) && self.numbers.insert(row.measure)
    }
}

/// What one number has more than another, and the other more than it.
fn apart(more: u64, less: u64) -> (u64, u64) {
    (more.saturating_sub(less), less.saturating_sub(more))
}

/// The breakpoint was there all the time.
fn is_covered(attached: &[Attached], made: &Made) -> bool {
    let mut stretches: Vec<(u64, u64)> = attached.iter().map(|at| (at.start_ns, at.end_ns)).collect();
    stretches.sort_unstable();
    let mut covered_ns = made.from_ns;
    for (start_ns, end_ns) in stretches {
        if start_ns <= covered_ns {
            covered_ns = covered_ns.max(end_ns);
        }
    }
    covered_ns >= made.until_ns && !attached.is_empty()
}

/// Accounts for all operations that the target made; what is wrong, also in words.
pub(super) fn account(
    made: &Made,
    rows: &[OperationRow],
    attached: &[Attached],
    counts: &Counts,
) -> (Account, Option<String>) {
    let told = Rows::of(rows, made.operations);
    let kept: u64 = attached.iter().map(|at| at.kept).sum();
    let away: u64 = attached.iter().map(|at| at.away).sum();
    // Seen by the breakpoint and let through.
    let (not_kept, kept_beyond) = apart(made.operations, kept);
    let turned_away = not_kept.min(away);
    let unseen = not_kept - turned_away;
    let unwatched = if is_covered(attached, made) { 0 } else { unseen };
    // Begun.
    let (not_begun, begun_beyond) = apart(kept, counts.begun);
    let refused = not_begun.min(counts.refused);
    let (not_drawn, recorded_beyond) = apart(counts.begun, counts.recorded);
    // Recorded: whole, lost or marked, open, or without an end.
    let (not_ended, ended_beyond) = apart(counts.recorded, told.whole + counts.dropped + told.open);
    let endless = counts.begun.saturating_sub(counts.population + counts.open).min(not_ended);
    let (dropped, marked_beyond) = apart(counts.dropped, told.marked);

    let lost = turned_away + refused + dropped + endless;
    let lacking = (unseen - unwatched) + (not_begun - refused) + (not_ended - endless);
    let without_row = made.operations - told.numbers.len() as u64;
    let counted = lost + not_drawn + unwatched + told.unnumbered;
    let account = Account {
        made: made.operations,
        lost,
        not_drawn,
        unwatched,
        nowhere: lacking.max(without_row.saturating_sub(counted)),
        beyond: told.beyond + kept_beyond + begun_beyond + recorded_beyond + ended_beyond + marked_beyond,
    };
    let fault = (account.wrong() > 0).then(|| {
        let first = (1..=made.operations).filter(|number| !told.numbers.contains(number)).take(TOLD);
        let first: Vec<String> = first.map(|number| number.to_string()).collect();
        format!(
            "{without_row} of {} operations have no row (the first: {}): {account:?}; breakpoint: {kept} let through, {away} not; {counts:?}; rows: {} whole, {} marked, {} open",
            made.operations,
            first.join(", "),
            told.whole,
            told.marked,
            told.open
        )
    });
    (account, fault)
}
