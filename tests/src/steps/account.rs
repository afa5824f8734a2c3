//! Operations that the target made beside what the recording says of all of them: each has a row, or is counted as one that has none.
//!
//! An operation goes through three counts: its begin is seen by a breakpoint, it begins, and it is recorded. What each of them lets go of is in a column of its own, so that no surplus of one hides what another lacks. What was made while that
//! breakpoint was not there, nobody counted: it is held against the times of the target's own log. An operation that began before is looked for among all other counts first: it may be any of these, and explain no other one. `handle` is left by its return only (what jumps, jumps inside it), and every command ends before the agent is stopped, so that an end
//! that was not seen has the same one excuse.

#[cfg(test)]
mod tests;

use super::Span;
use super::watched::{Attached, Gap, InGaps, gaps};
use profiler_core::recording::{Meta, OperationRow, OperationWindowRow};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
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
    /// Without a row, counted as lost: turned away by a gate, without memory for the thread, the ring was full, or functions were detached meanwhile.
    pub lost: u64,
    /// Without a row, counted as recorded, and the end was not seen.
    #[serde(default)]
    pub endless: u64,
    /// Without a row, counted as not drawn, as begun while recording was off, or as too dear.
    pub not_drawn: u64,
    /// Without a row, made while the breakpoint was not there: nobody saw them begin.
    pub unwatched: u64,
    /// Without a row, and counted nowhere. There may be none.
    pub nowhere: u64,
    /// Rows of operations that were not made or have one, and counts of more than there are. There may be none.
    pub beyond: u64,
    /// Begun, and the end was not seen, whether they were recorded or not.
    #[serde(default)]
    pub no_end: u64,
    /// Ends whose begin was not seen, and operations that were given up, by the recording.
    #[serde(default)]
    pub unmatched: u64,
    /// Of the last two, those that nothing explains. There may be none.
    #[serde(default)]
    pub wrong_ends: u64,
    /// Rows of the recording for which there was no room: what they said, nobody knows. There may be none.
    #[serde(default)]
    pub rows_not_written: u64,
    /// Time in which the target was followed and the breakpoint was not there, ns. `None`: an account from before what was made then was held against the target's log.
    #[serde(default)]
    pub gap_ns: Option<u64>,
}

impl Account {
    /// Operations without a row, as the recording says itself.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.lost + self.endless + self.not_drawn + self.unwatched
    }

    /// Operations, ends and rows that the account is wrong about.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.nowhere + self.beyond + self.wrong_ends + self.rows_not_written
    }
}

impl AddAssign<&Account> for Account {
    fn add_assign(&mut self, other: &Account) {
        self.made += other.made;
        self.lost += other.lost;
        self.endless += other.endless;
        self.not_drawn += other.not_drawn;
        self.unwatched += other.unwatched;
        self.nowhere += other.nowhere;
        self.beyond += other.beyond;
        self.no_end += other.no_end;
        self.unmatched += other.unmatched;
        self.wrong_ends += other.wrong_ends;
        self.rows_not_written += other.rows_not_written;
        if let Some(gap_ns) = other.gap_ns {
            *self.gap_ns.get_or_insert_default() += gap_ns;
        }
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
    /// Refused for want of memory: begins of operations, and other hits.
    pub refused: u64,
    /// Ends without a begin, and operations that were given up. A begin that found too many open is here too, of which there is none: operations do not lie in one another here.
    pub unmatched: u64,
    pub rows_not_written: u64,
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
            refused: meta.losses.no_thread_state,
            unmatched: sum(|row| row.unmatched),
            rows_not_written: meta.losses.rows_not_written,
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

/// What the recording counted, and says in rows, of begun operations.
struct Ends {
    no_end: u64,
    /// Recorded ones among them that have no row.
    endless: u64,
    /// Recorded, and neither with a row nor without an end.
    lacking: u64,
    beyond: u64,
}

impl Ends {
    fn of(told: &Rows, counts: &Counts) -> Ends {
        // An operation that is still open when the run ends has ended long before.
        let (no_end, ended_beyond) = apart(counts.begun, counts.population);
        let (not_ended, beyond) = apart(counts.recorded, told.whole + counts.dropped + told.open);
        let endless = not_ended.min(no_end.saturating_sub(counts.open));
        Ends { no_end, endless, lacking: not_ended - endless, beyond: ended_beyond + beyond }
    }

    /// Ends that nothing explains. `no_begin`: operations that did not begin for the recording, so that their end may be one without a begin. `in_flight`: ends that gaps explain.
    fn wrong(&self, counts: &Counts, no_begin: u64, in_flight: u64) -> u64 {
        // Each end that was missed may have its operation given up later.
        let explained = self.no_end + no_begin;
        self.no_end.saturating_sub(in_flight) + counts.unmatched.saturating_sub(explained)
    }
}

/// Operations that nobody saw begin, by when they did.
struct Unwatched {
    in_gaps: u64,
    /// In flight when a gap began.
    before: u64,
}

impl Unwatched {
    /// Of `unseen` operations those that gaps explain. `gated`: turned away by a gate; `watched`: all that are without a row for another reason.
    fn of(unseen: u64, in_gaps: &InGaps, gated: u64, watched: u64) -> Unwatched {
        // Those that a gate turned away in a gap explain no others. Some of them were there before it.
        let gated_in_gaps = gated.saturating_sub(in_gaps.at_gate);
        let begun = unseen.min(in_gaps.begun.saturating_sub(gated_in_gaps));
        // The begin of the others was seen, if it did not come long after the target's own time: what is counted may be one of them.
        let before = (unseen - begun).min(in_gaps.before.saturating_sub(watched));
        Unwatched { in_gaps: begun, before }
    }
}

/// Accounts for all operations that the target made; what is wrong, also in words. `spans`: when it made each of them.
pub(super) fn account(
    made: &Made,
    spans: &[Span],
    rows: &[OperationRow],
    attached: &[Attached],
    counts: &Counts,
) -> (Account, Option<String>) {
    let told = Rows::of(rows, made.operations);
    let gaps = gaps(attached, made);
    let in_gaps = InGaps::of(spans, &gaps, |operation| told.numbers.contains(&operation));
    let kept: u64 = attached.iter().map(|at| at.kept).sum();
    let away: u64 = attached.iter().map(|at| at.away).sum();
    // Seen by the breakpoint and let through.
    let (not_kept, kept_beyond) = apart(made.operations, kept);
    let turned_away = not_kept.min(away);
    let unseen = not_kept - turned_away;
    // Begun.
    let (not_begun, begun_beyond) = apart(kept, counts.begun);
    let refused = not_begun.min(counts.refused);
    // Recorded: whole, lost or marked, open, or without an end.
    let (not_drawn, recorded_beyond) = apart(counts.begun, counts.recorded);
    let ends = Ends::of(&told, counts);
    let (dropped, marked_beyond) = apart(counts.dropped, told.marked);

    let lost = turned_away + refused + dropped;
    let watched = lost + ends.endless + not_drawn + told.unnumbered;
    let gated: u64 = attached.iter().map(|at| at.gated).sum();
    let of_gaps = Unwatched::of(unseen, &in_gaps, gated.min(turned_away), watched);
    let unwatched = of_gaps.in_gaps + of_gaps.before;
    let lacking = (unseen - unwatched) + (not_begun - refused) + ends.lacking;
    let without_row = made.operations - told.numbers.len() as u64;
    // All of them, and those that began while the breakpoint was there: a gap explains no operation that did not begin in it.
    let not_counted = without_row.saturating_sub(watched + unwatched);
    let not_counted_outside = (without_row - in_gaps.begun).saturating_sub(watched + of_gaps.before);
    let account = Account {
        made: made.operations,
        lost,
        endless: ends.endless,
        not_drawn,
        unwatched,
        nowhere: lacking.max(not_counted).max(not_counted_outside),
        beyond: told.beyond + kept_beyond + begun_beyond + recorded_beyond + ends.beyond + marked_beyond,
        no_end: ends.no_end,
        unmatched: counts.unmatched,
        wrong_ends: ends.wrong(counts, turned_away + refused + unwatched, in_gaps.in_flight),
        rows_not_written: counts.rows_not_written,
        gap_ns: Some(gaps.iter().map(Gap::length_ns).sum()),
    };
    let fault = (account.wrong() > 0).then(|| {
        let first = (1..=made.operations).filter(|number| !told.numbers.contains(number)).take(TOLD);
        let first: Vec<String> = first.map(|number| number.to_string()).collect();
        format!(
            "{without_row} of {} operations have no row (the first: {}): {account:?}; breakpoint: {kept} let through, {away} not, {}; {} gaps: {in_gaps:?}; {counts:?}; rows: {} whole, {} marked, {} open; began outside gaps, without a row: {}",
            made.operations,
            first.join(", "),
            times(made, attached.iter().map(|at| (at.start_ns, at.end_ns, at.kept))),
            gaps.len(),
            told.whole,
            told.marked,
            told.open,
            times(made, runs_outside(spans, &gaps, &told).into_iter()),
        )
    });
    (account, fault)
}

/// Times that something lasted, in ms from the beginning on, and how many there are of it.
fn times(made: &Made, all: impl Iterator<Item = (u64, u64, u64)>) -> String {
    let ms = |ns: u64| (ns as f64 - made.from_ns as f64) * 1e-6;
    let each = all.map(|(from, until, n)| format!("{n} from {:.3} to {:.3} ms", ms(from), ms(until)));
    each.collect::<Vec<_>>().join(", ")
}

/// Operations without a row that did not begin in a gap, by the times between gaps: from when, until when, and how many.
fn runs_outside(spans: &[Span], gaps: &[Gap], told: &Rows) -> Vec<(u64, u64, u64)> {
    let mut runs: BTreeMap<usize, (u64, u64, u64)> = BTreeMap::new();
    for span in spans.iter().filter(|span| !told.numbers.contains(&span.operation)) {
        let next = gaps.partition_point(|gap| gap.is_over_by(span.from_ns));
        if gaps.get(next).is_some_and(|gap| gap.holds(span.from_ns)) {
            continue;
        }
        let run = runs.entry(next).or_insert((span.from_ns, span.until_ns, 0));
        *run = (run.0.min(span.from_ns), run.1.max(span.until_ns), run.2 + 1);
    }
    runs.into_values().collect()
}
