//! The table of compared calls.

use super::{KINDS, Record};
use profiler_tests::steps::{Account, Compared};
use std::collections::BTreeMap;

/// Sums of some rounds.
#[derive(Default)]
struct Sum {
    rounds: usize,
    /// Rounds with trouble; nothing of them is in the other sums.
    troubled: usize,
    logged: u64,
    took_s: f64,
    compared: Compared,
}

impl Sum {
    fn of<'a>(records: impl Iterator<Item = &'a Record>) -> Sum {
        records.fold(Sum::default(), |mut sum, record| {
            if record.trouble.is_some() {
                sum.troubled += 1;
                return sum;
            }
            sum.rounds += 1;
            sum.logged += record.logged;
            sum.took_s += record.took_s;
            sum.compared += &record.compared;
            sum
        })
    }

    fn row(&self, name: &str) -> String {
        let told = &self.compared;
        let of_steps = |part: u64| match told.steps {
            0 => "-".to_owned(),
            steps => format!("{:.1}", 100.0 * part as f64 / steps as f64),
        };
        let right = match told.ambiguous {
            0 => "-".to_owned(),
            ambiguous => format!("{:.1}", 100.0 * told.ambiguous_right as f64 / ambiguous as f64),
        };
        let of_account = |number: fn(&Account) -> u64| {
            told.account.as_ref().map_or("-".to_owned(), |of| grouped(number(of)))
        };
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {right} | {} | {} | {} | {} | {} | {:.0} |\n",
            self.rounds,
            grouped(self.logged),
            grouped(told.steps),
            of_account(|account| account.made),
            grouped(told.complete),
            grouped(told.marked),
            grouped(told.gaps),
            grouped(told.open),
            of_account(Account::counted),
            of_account(|account| account.no_end),
            of_account(|account| account.unmatched),
            of_steps(told.ambiguous),
            grouped(told.unmarked),
            of_account(Account::wrong),
            grouped(told.wrong_orders),
            grouped(told.wrong_links),
            self.troubled,
            self.took_s,
        )
    }
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|part| std::str::from_utf8(part).ok()).collect();
    parts.join(",")
}

/// What stands above the table.
const HEAD: &str = "## Held against the target's own log\n\nWritten by `cargo xtask field --steps`: a target makes calls at random and logs each of them, and every recorded operation is compared with that log. *Compared*: \
     calls of operations that count as complete, each with its place in the order and its caller. *Operations*: all that the target made while it was followed. *Marked*: operations that the kernel side marked as incomplete. *Gaps*: without that mark, but their numbers say that \
     calls are missing, so that `tithe calls` marks them. *Open*: when the run ended. *Counted only*: operations without a row that the recording counts as lost or not drawn, or that the target made, by the times of its log, while the function was not attached. \
     *No end*: operations that began, and whose end was not seen. *No begin*: ends whose begin was not seen, and operations that were given up because their end was not. *Ambiguous*: links that are marked, % of the compared calls; *right*: of these, those whose likely caller is the logged one, %. WRONG: \
     operations that lack calls and are marked by nobody (*not marked*), operations without a row that the recording does not count, rows and counts of more than were made, rows that were not written, missing ends beyond those of the operations that were being made when the function was detached, and ends without a begin beyond the operations that were not seen to begin (*not accounted for*), \
     operations in another order, links that are not marked and name another caller, and rounds of which nothing is in the table (*rounds*). There is a pause after each 40,000 calls, but for the last two kinds, in whose commands the agent, or only its thread that writes, is stopped for 0.5 s so that the ring gets full. *s*: with starting, stopping and comparing.\n\n\
     | kind | rounds | calls logged | compared | operations | complete | marked | gaps | open | counted only | no end | no begin | ambiguous | right | WRONG: not marked | WRONG: not accounted for | WRONG: orders | WRONG: links | WRONG: rounds | s |\n\
     |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";

/// What the columns of operations without a row, and of those that are wrong, are made of, and of which rounds they say nothing.
fn without_rows(finished: &[Record]) -> String {
    let all = Sum::of(finished.iter()).compared.account.unwrap_or_default();
    let mut text = String::new();
    if all.counted() > 0 {
        text = format!(
            "\nOf the operations that are counted only, {} were lost, {} had no end that was seen, and {} were not drawn; {} were made while the function was not attached.\n",
            grouped(all.lost),
            grouped(all.endless),
            grouped(all.not_drawn),
            grouped(all.unwatched)
        );
    }
    if let Some(gap_ns) = all.gap_ns.filter(|gap_ns| *gap_ns > 0) {
        text += &format!("\nThat was so for {:.2} s of all rounds.\n", gap_ns as f64 * 1e-9);
    }
    if all.wrong() > 0 {
        text += &format!(
            "\nNot accounted for: {} operations without a row, {} rows and counts too many, {} ends, {} rows that were not written.\n",
            grouped(all.nowhere),
            grouped(all.beyond),
            grouped(all.wrong_ends),
            grouped(all.rows_not_written)
        );
    }
    let good = || finished.iter().filter(|record| record.trouble.is_none());
    let before = good().filter(|record| record.compared.account.is_none()).count();
    if before > 0 {
        text += &format!(
            "\n{before} of the rounds are from before operations without a row were accounted for.\n"
        );
    }
    let is_untimed = |record: &&Record| record.compared.account.is_some_and(|of| of.gap_ns.is_none());
    let untimed = good().filter(is_untimed).count();
    if untimed > 0 {
        text += &format!(
            "\n{untimed} of the rounds are from before the target logged times: what it made while the function was not attached was not held against them, and ends without a begin or without an end were not looked at.\n"
        );
    }
    text
}

/// The section of all finished rounds.
pub fn document(finished: &[Record]) -> String {
    let mut text = HEAD.to_owned();
    for kind in &KINDS {
        let sum = Sum::of(finished.iter().filter(|record| record.kind == kind.name));
        if sum.rounds + sum.troubled > 0 {
            text.push_str(&sum.row(kind.name));
        }
    }
    text.push_str(&Sum::of(finished.iter()).row("**all**"));
    text.push_str(&without_rows(finished));
    let faults: Vec<String> = finished
        .iter()
        .flat_map(|record| {
            record.compared.faults.iter().map(|fault| format!("- round {}: {fault}\n", record.round))
        })
        .collect();
    if !faults.is_empty() {
        text.push_str(&format!("\nThe first ones that are wrong of each round:\n\n{}", faults.concat()));
    }
    let troubled: Vec<String> = finished
        .iter()
        .filter_map(|record| {
            Some(format!("- round {} ({}): {}\n", record.round, record.kind, record.trouble.as_ref()?))
        })
        .collect();
    if !troubled.is_empty() {
        text.push_str(&format!(
            "\nRounds with trouble, of which nothing else is in the table:\n\n{}",
            troubled.concat()
        ));
    }
    let mut agents: BTreeMap<&str, u64> = BTreeMap::new();
    for record in finished {
        *agents.entry(&record.agent).or_default() += record.compared.steps;
    }
    let agents: Vec<String> =
        agents.iter().map(|(agent, steps)| format!("{agent}, {} compared calls", grouped(*steps))).collect();
    text.push_str(&format!("\nAgents: {}.\n", agents.join("; ")));
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    #[test]
    fn the_table_has_each_kind_and_the_sum_and_says_what_is_wrong() {
        let mut wrong = record(KINDS[3].name, 3_000);
        wrong.compared.wrong_links = 1;
        wrong.compared.faults.push("operation 9, call 2".to_owned());
        let mut broken = record(KINDS[3].name, 0);
        broken.trouble = Some("it died".to_owned());
        let text = document(&[record(KINDS[0].name, 1_234_567), wrong, broken]);
        let first = "| random trees, 1 thread | 1 | 1,234,577 | 1,234,567 | 9 | 5 | 2 | 0 | 0 | 2 | 0 | 0 | 25.0 | 0.0 | 0 | 0 | 0 | 0 | 0 | 2 |";
        assert!(text.contains(first), "{text}");
        let all = "| **all** | 2 | 1,237,587 | 1,237,567 | 18 | 10 | 4 | 0 | 0 | 4 | 0 | 0 | 25.0 | 0.0 | 0 | 0 | 0 | 1 | 1 | 4 |";
        assert!(text.contains(all), "{text}");
        assert!(text.contains("counted only, 4 were lost, 0 had no end"), "{text}");
        assert!(text.contains("round 0: operation 9, call 2") && text.contains("it died"), "{text}");
        let deep = "| recursion, 1,000 deep | 1 | 3,010 | 3,000 | 9 | 5 | 2 | 0 | 0 | 2 | 0 | 0 | 25.0 | 0.0 | 0 | 0 | 0 | 1 | 1 | 2 |";
        assert!(text.contains(deep), "{text}");
        assert!(text.ends_with("Agents: tithe 1 (aa), 1,237,567 compared calls.\n"), "{text}");
    }

    /// The head says what each cell is.
    #[test]
    fn all_lines_of_the_table_are_as_long() {
        let text = document(&[record(KINDS[0].name, 10)]);
        let cells: Vec<usize> =
            text.lines().filter(|line| line.starts_with('|')).map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [21; 4]);
    }

    #[test]
    fn a_kind_that_had_nothing_but_trouble_has_a_row() {
        let broken = Record { trouble: Some("it died".to_owned()), ..record(KINDS[3].name, 0) };
        let text = document(&[record(KINDS[0].name, 10), broken]);
        let row = "| recursion, 1,000 deep | 0 | 0 | 0 | - | 0 | 0 | 0 | 0 | - | - | - | - | - | 0 | - | 0 | 0 | 1 | 0 |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn operations_without_a_row_are_in_columns_of_their_own() {
        let mut missing = record(KINDS[0].name, 1_000);
        missing.compared.account = Some(Account {
            made: 20,
            not_drawn: 1,
            unwatched: 3,
            nowhere: 4,
            beyond: 2,
            endless: 1,
            no_end: 7,
            unmatched: 8,
            wrong_ends: 5,
            rows_not_written: 9,
            gap_ns: Some(1_500_000_000),
            ..Account::default()
        });
        let text = document(&[missing]);
        let row = "| 1,010 | 1,000 | 20 | 5 | 2 | 0 | 0 | 5 | 7 | 8 | 25.0 | 0.0 | 0 | 20 | 0 | 0 | 0 | 2 |";
        assert!(text.contains(row), "{text}");
        assert!(
            text.contains("0 were lost, 1 had no end that was seen, and 1 were not drawn; 3 were made while"),
            "{text}"
        );
        assert!(text.contains("so for 1.50 s of all rounds"), "{text}");
        assert!(
            text.contains("4 operations without a row, 2 rows and counts too many, 5 ends, 9 rows that"),
            "{text}"
        );
    }

    /// Finished rounds stay when the comparison learns something.
    #[test]
    fn rounds_from_before_the_account_are_read_and_told() {
        let mut value = serde_json::to_value(record(KINDS[0].name, 1_000)).unwrap();
        assert!(value["compared"].as_object_mut().unwrap().remove("account").is_some());
        let before: Record = serde_json::from_value(value).unwrap();
        assert_eq!((before.compared.account, before.compared.wrong()), (None, 0));
        let text = document(std::slice::from_ref(&before));
        let row = "| random trees, 1 thread | 1 | 1,010 | 1,000 | - | 5 | 2 | 0 | 0 | - | - | - | 25.0 | 0.0 | 0 | - | 0 | 0 | 0 | 2 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("1 of the rounds are from before"), "{text}");
        // The same of the times in the account.
        let mut value = serde_json::to_value(record(KINDS[0].name, 1_000)).unwrap();
        let account = value["compared"]["account"].as_object_mut().unwrap();
        for new in ["endless", "no_end", "unmatched", "wrong_ends", "rows_not_written", "gap_ns"] {
            assert!(account.remove(new).is_some());
        }
        let untimed: Record = serde_json::from_value(value).unwrap();
        let text = document(&[untimed, record(KINDS[0].name, 1_000)]);
        assert!(text.contains("1 of the rounds are from before the target logged times"), "{text}");
        let both = document(&[before, record(KINDS[0].name, 1_000)]);
        assert!(both.contains("| **all** | 2 | 2,020 | 2,000 | 9 |"), "{both}");
    }
}
