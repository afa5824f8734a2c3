//! Rows of words: what stood in the target's memory at begins and ends of recorded calls and operations (docs/words.md).

use serde::{Deserialize, Serialize};

/// What `meta.json` says of a word.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordMeta {
    /// Its number: `word` in table `words`.
    pub word: u32,
    /// Its name, which other words may have as well at other places.
    pub name: String,
    /// Where it is taken: a pattern of functions, or the name of an operation.
    pub place: String,
    /// Taken at the end of a call or operation; else at its begin.
    pub at_end: bool,
    /// The expression, as `--word` takes it.
    pub expression: String,
    /// Type of the value: `long`, `u8`, …, or `strlen`.
    pub value: String,
    /// The operation that has it; `None`: it belongs to functions.
    pub operation: Option<u32>,
}

impl WordMeta {
    /// Values are negative where their highest bit is set.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        self.value.starts_with('i') || self.value == "long"
    }

    /// A value as it is meant.
    #[must_use]
    pub fn text(&self, value: u64) -> String {
        match self.value.as_str() {
            "ptr" => format!("{value:#x}"),
            _ if self.is_signed() => value.cast_signed().to_string(),
            _ => value.to_string(),
        }
    }
}

/// What became of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WordStatus {
    /// It was read.
    Read,
    /// A pointer on the way was null.
    Null,
    /// Memory on the way is not mapped, not resident, or no memory of the target.
    Unreadable,
    /// The string is longer than 4,096 bytes.
    TooLong,
    /// The argument or the result is not known where it was taken.
    NoRegister,
    /// The thread had not seen the object.
    NoObject,
}

impl WordStatus {
    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Null => "null pointer",
            Self::Unreadable => "not readable",
            Self::TooLong => "longer than 4096",
            Self::NoRegister => "register lost",
            Self::NoObject => "no object",
        }
    }
}

/// Table `words`: one word that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordRow {
    /// Begin of the call or operation, ktime ns: with `tid` and `class_id` it is `time_ns` of one row of `events`, or `begin_ns` of one of `operations`.
    pub begin_ns: u64,
    /// Class of the function, or of the operation.
    pub class_id: u32,
    /// Operation; `None`: a call.
    pub operation: Option<u32>,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Taken at the end; else at the begin.
    pub at_end: bool,
    /// Number of the word ([`WordMeta::word`]).
    pub word: u32,
    /// Before the first word of the list was read, ktime ns.
    pub from_ns: u64,
    /// After the last was: it stood there at some moment between the two.
    pub until_ns: u64,
    /// The value, widened to 64 bits by its type; `None`: it was not read.
    pub value: Option<u64>,
    /// What became of it.
    pub status: WordStatus,
    /// At which dereference, from 1, that was known; 0: before any, or it was read. A string is read by one more than the dereferences before it.
    pub depth: u32,
}

/// What was taken of a word in a whole recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordTally {
    /// The word.
    pub word: WordMeta,
    /// How often it was taken.
    pub taken: u64,
    /// Of those, read.
    pub read: u64,
    /// A pointer on the way was null.
    pub null: u64,
    /// Memory on the way could not be read.
    pub unreadable: u64,
    /// The string was longer than 4,096 bytes.
    pub too_long: u64,
    /// The argument or the result was not known.
    pub no_register: u64,
    /// The thread had not seen the object.
    pub no_object: u64,
    /// Least value; `None`: none was read.
    pub least: Option<i128>,
    /// Greatest value.
    pub greatest: Option<i128>,
}

impl WordTally {
    /// Of a word that has not been taken.
    #[must_use]
    pub fn new(word: WordMeta) -> Self {
        Self { word, ..Self::default() }
    }

    /// Adds a row of this word.
    pub fn add(&mut self, row: &WordRow) {
        self.taken += 1;
        let count = match row.status {
            WordStatus::Read => &mut self.read,
            WordStatus::Null => &mut self.null,
            WordStatus::Unreadable => &mut self.unreadable,
            WordStatus::TooLong => &mut self.too_long,
            WordStatus::NoRegister => &mut self.no_register,
            WordStatus::NoObject => &mut self.no_object,
        };
        *count += 1;
        if let Some(value) = row.value {
            let value =
                if self.word.is_signed() { i128::from(value.cast_signed()) } else { i128::from(value) };
            self.least = Some(self.least.map_or(value, |least| least.min(value)));
            self.greatest = Some(self.greatest.map_or(value, |greatest| greatest.max(value)));
        }
    }

    /// Adds what was taken of the same word in another part of the recording.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in [
            (&mut self.taken, other.taken),
            (&mut self.read, other.read),
            (&mut self.null, other.null),
            (&mut self.unreadable, other.unreadable),
            (&mut self.too_long, other.too_long),
            (&mut self.no_register, other.no_register),
            (&mut self.no_object, other.no_object),
        ] {
            *count += more;
        }
        self.least = self.least.into_iter().chain(other.least).min();
        // OK because `None` is below every value.
        self.greatest = self.greatest.max(other.greatest);
    }

    /// What could not be read, in words: `12 null pointer, 3 not readable`; empty: all was.
    #[must_use]
    pub fn not_read(&self) -> Vec<(u64, &'static str)> {
        let all = [
            (self.null, WordStatus::Null),
            (self.unreadable, WordStatus::Unreadable),
            (self.too_long, WordStatus::TooLong),
            (self.no_register, WordStatus::NoRegister),
            (self.no_object, WordStatus::NoObject),
        ];
        all.into_iter().filter(|(n, _)| *n > 0).map(|(n, status)| (n, status.text())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_count_each_status_and_know_the_range() {
        let row = |value: Option<u64>, status| WordRow {
            begin_ns: 1,
            class_id: 0,
            operation: None,
            pid: 1,
            tid: 1,
            at_end: false,
            word: 0,
            from_ns: 0,
            until_ns: 1,
            value,
            status,
            depth: 0,
        };
        let of = |value: &str| WordTally::new(WordMeta { value: value.to_owned(), ..WordMeta::default() });
        let (mut signed, mut unsigned) = (of("long"), of("u64"));
        for tally in [&mut signed, &mut unsigned] {
            tally.add(&row(Some(u64::MAX), WordStatus::Read));
            tally.add(&row(Some(7), WordStatus::Read));
            tally.add(&row(None, WordStatus::Null));
            tally.add(&row(None, WordStatus::Unreadable));
            tally.add(&row(None, WordStatus::Unreadable));
        }
        assert_eq!((signed.least, signed.greatest), (Some(-1), Some(7)));
        assert_eq!((unsigned.least, unsigned.greatest), (Some(7), Some(i128::from(u64::MAX))));
        assert_eq!((signed.taken, signed.read), (5, 2));
        // Two parts of a recording, of which one has nothing that was read.
        let mut parts = [of("long"), of("long"), of("long")];
        let rows =
            [(Some(u64::MAX), WordStatus::Read), (None, WordStatus::Null), (Some(7), WordStatus::Read)];
        parts.iter_mut().zip(rows).for_each(|(part, (value, status))| part.add(&row(value, status)));
        let mut all = of("long");
        parts.iter().for_each(|part| all.merge(part));
        assert_eq!((all.taken, all.read, all.null), (3, 2, 1));
        assert_eq!((all.least, all.greatest), (Some(-1), Some(7)));
        assert_eq!(signed.not_read(), [(1, "null pointer"), (2, "not readable")]);
    }

    #[test]
    fn values_are_shown_by_their_type() {
        let text = |of: &str, value| WordMeta { value: of.to_owned(), ..WordMeta::default() }.text(value);
        assert_eq!(text("long", u64::MAX), "-1");
        assert_eq!(text("i8", u64::MAX - 1), "-2");
        assert_eq!(text("int", 7), "7");
        assert_eq!(text("u64", u64::MAX), "18446744073709551615");
        assert_eq!(text("strlen", 12), "12");
        assert_eq!(text("ptr", 0x7f00), "0x7f00");
    }
}
