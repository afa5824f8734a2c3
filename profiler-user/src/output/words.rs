//! Words of the target that were taken: a line for each, for people.

use super::TextOptions;
use super::table::{BOLD, styled, wrap};
use super::units::count;
use profiler_core::recording::{WordMeta, WordRow, WordTally};
use profiler_core::report::Report;
use profiler_core::text::printable;

/// The text; empty without words.
pub(super) fn text(report: &Report, options: TextOptions) -> String {
    if report.words.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", styled("Words of the target", BOLD, options.colours));
    for tally in &report.words {
        out.push_str(&format!(
            "  {}\n",
            wrap(&printable(&line(tally)), options.width.saturating_sub(2), "    ")
        ));
    }
    out
}

/// `parse: length = strlen(arg0): taken 1,200 times, 3 to 4,011; 12 null pointer`.
fn line(tally: &WordTally) -> String {
    let word = &tally.word;
    let end = if word.at_end { "@end" } else { "" };
    let mut text = format!("{}{end}: {} = {}: ", word.place, word.name, word.expression);
    if tally.taken == 0 {
        text.push_str("never taken");
        return text;
    }
    text.push_str(&format!("taken {} times", count(tally.taken as f64)));
    if let (Some(least), Some(greatest)) = (tally.least, tally.greatest) {
        let shown = |value: i128| {
            // OK because both come from 64 bits, whose low half a cast keeps.
            if word.value == "ptr" { format!("{value:#x}") } else { value.to_string() }
        };
        let range =
            if least == greatest { shown(least) } else { format!("{} to {}", shown(least), shown(greatest)) };
        text.push_str(&format!(", {range}"));
    }
    let not_read: Vec<String> =
        tally.not_read().into_iter().map(|(n, why)| format!("{} {why}", count(n as f64))).collect();
    if !not_read.is_empty() {
        text.push_str(&format!("; not read: {}", not_read.join(", ")));
    }
    text
}

/// A word that was taken with one call or operation: `length = 12`, `state = ? (null pointer at dereference 2)`.
pub(super) fn taken(words: &[WordMeta], row: &WordRow) -> String {
    let Some(word) = words.iter().find(|word| word.word == row.word) else {
        return String::new();
    };
    match row.value {
        Some(value) => format!("{} = {}", word.name, word.text(value)),
        None if row.depth > 0 => {
            format!("{} = ? ({} at dereference {})", word.name, row.status.text(), row.depth)
        }
        None => format!("{} = ? ({})", word.name, row.status.text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_core::recording::WordStatus;

    fn tally() -> WordTally {
        WordTally::new(WordMeta {
            word: 3,
            name: "n".to_owned(),
            place: "parse".to_owned(),
            expression: "arg0->8:int".to_owned(),
            value: "int".to_owned(),
            ..WordMeta::default()
        })
    }

    #[test]
    fn a_word_says_where_it_is_taken_what_was_read_and_what_was_not() {
        assert_eq!(line(&tally()), "parse: n = arg0->8:int: never taken");
        let some =
            WordTally { taken: 1_500, read: 1_488, null: 12, least: Some(-3), greatest: Some(70), ..tally() };
        assert_eq!(
            line(&some),
            "parse: n = arg0->8:int: taken 1,500 times, -3 to 70; not read: 12 null pointer"
        );
    }

    #[test]
    fn a_taken_word_has_its_value_or_the_reason() {
        let row = WordRow {
            begin_ns: 1,
            class_id: 0,
            operation: None,
            pid: 1,
            tid: 1,
            at_end: false,
            word: 3,
            from_ns: 0,
            until_ns: 1,
            value: Some(u64::MAX),
            status: WordStatus::Read,
            depth: 0,
        };
        let all = [tally().word];
        assert_eq!(taken(&all, &row), "n = -1");
        let null = WordRow { value: None, status: WordStatus::Null, depth: 2, ..row };
        assert_eq!(taken(&all, &null), "n = ? (null pointer at dereference 2)");
        let lost = WordRow { status: WordStatus::NoRegister, depth: 0, ..null };
        assert_eq!(taken(&all, &lost), "n = ? (register lost)");
    }
}
