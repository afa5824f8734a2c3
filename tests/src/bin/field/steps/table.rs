//! The table of compared calls.

use super::{KINDS, Record};
use profiler_tests::steps::{Account, Compared};
use std::collections::BTreeMap;

/// Sums of some rounds.
#[derive(Default)]
struct Sum {
    rounds: usize,
    logged: u64,
    took_s: f64,
    compared: Compared,
}

impl Sum {
    fn of<'a>(records: impl Iterator<Item = &'a Record>) -> Sum {
        records.filter(|record| record.trouble.is_none()).fold(Sum::default(), |mut sum, record| {
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
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {right} | {} | {} | {} | {} | {:.0} |\n",
            self.rounds,
            grouped(self.logged),
            grouped(told.steps),
            of_account(|account| account.made),
            grouped(told.complete),
            grouped(told.marked),
            grouped(told.gaps),
            grouped(told.open),
            of_account(Account::counted),
            of_steps(told.ambiguous),
            grouped(told.unmarked),
            of_account(Account::wrong),
            grouped(told.wrong_orders),
            grouped(told.wrong_links),
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
     calls are missing, so that `tithe calls` marks them. *Open*: when the run ended. *Counted only*: operations without a row that the recording counts as lost or not drawn. *Ambiguous*: links that are marked, % of the compared calls; *right*: of these, those whose likely caller is the logged one, %. WRONG: \
     operations that lack calls and are marked by nobody (*not marked*), operations without a row that the recording does not count, or rows and counts of more than were made (*not accounted for*), operations in another order, and links that are not marked and name another caller. \
     There is a pause after each 40,000 calls, but for the last kind, in whose commands the agent is stopped for 0.5 s so that the ring gets full. *s*: with starting, stopping and comparing.\n\n\
     | kind | rounds | calls logged | compared | operations | complete | marked | gaps | open | counted only | ambiguous | right | WRONG: not marked | WRONG: not accounted for | WRONG: orders | WRONG: links | s |\n\
     |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";

/// What the column of operations without a row is made of, and of which rounds it says nothing.
fn without_rows(finished: &[Record]) -> String {
    let all = Sum::of(finished.iter()).compared.account.unwrap_or_default();
    let mut text = String::new();
    if all.counted() > 0 {
        let (lost, not_drawn) = (grouped(all.lost), grouped(all.not_drawn));
        text =
            format!("\nOf the operations that are counted only, {lost} were lost and {not_drawn} not drawn");
        text += &match all.unwatched {
            0 => ".\n".to_owned(),
            _ => format!(
                "; of {} nobody can tell whether they are missing, because the function was not attached for a part of their round.\n",
                grouped(all.unwatched)
            ),
        };
    }
    let is_before = |record: &&Record| record.trouble.is_none() && record.compared.account.is_none();
    let before = finished.iter().filter(is_before).count();
    if before > 0 {
        text += &format!(
            "\n{before} of the rounds are from before operations without a row were accounted for.\n"
        );
    }
    text
}

/// The section of all finished rounds.
pub fn document(finished: &[Record]) -> String {
    let mut text = HEAD.to_owned();
    for kind in &KINDS {
        let sum = Sum::of(finished.iter().filter(|record| record.kind == kind.name));
        if sum.rounds > 0 {
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
        text.push_str(&format!("\nNot in the table:\n\n{}", troubled.concat()));
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
        let first = "| random trees, 1 thread | 1 | 1,234,577 | 1,234,567 | 9 | 5 | 2 | 0 | 0 | 2 | 25.0 | 0.0 | 0 | 0 | 0 | 0 | 2 |";
        assert!(text.contains(first), "{text}");
        let all = "| **all** | 2 | 1,237,587 | 1,237,567 | 18 | 10 | 4 | 0 | 0 | 4 | 25.0 | 0.0 | 0 | 0 | 0 | 1 | 4 |";
        assert!(text.contains(all), "{text}");
        assert!(text.contains("counted only, 4 were lost and 0 not drawn.\n"), "{text}");
        assert!(text.contains("round 0: operation 9, call 2") && text.contains("it died"), "{text}");
        assert!(text.ends_with("Agents: tithe 1 (aa), 1,237,567 compared calls.\n"), "{text}");
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
            ..Account::default()
        });
        let text = document(&[missing]);
        let row = "| 1,010 | 1,000 | 20 | 5 | 2 | 0 | 0 | 4 | 25.0 | 0.0 | 0 | 6 | 0 | 0 | 2 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("0 were lost and 1 not drawn; of 3 nobody can tell"), "{text}");
    }

    /// Finished rounds stay when the comparison learns something.
    #[test]
    fn rounds_from_before_the_account_are_read_and_told() {
        let mut value = serde_json::to_value(record(KINDS[0].name, 1_000)).unwrap();
        assert!(value["compared"].as_object_mut().unwrap().remove("account").is_some());
        let before: Record = serde_json::from_value(value).unwrap();
        assert_eq!((before.compared.account, before.compared.wrong()), (None, 0));
        let text = document(std::slice::from_ref(&before));
        let row = "| random trees, 1 thread | 1 | 1,010 | 1,000 | - | 5 | 2 | 0 | 0 | - | 25.0 | 0.0 | 0 | - | 0 | 0 | 2 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("1 of the rounds are from before"), "{text}");
        let both = document(&[before, record(KINDS[0].name, 1_000)]);
        assert!(both.contains("| **all** | 2 | 2,020 | 2,000 | 9 |"), "{both}");
    }
}
