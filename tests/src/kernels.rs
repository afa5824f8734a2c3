//! A load with parameters, as Table 1 of the ADLER paper has it: 100 combinations of parameters, each run ten times, in an order that a seed shuffles.
//!
//! Here are the parameters and the order. What a run with them does, a program says: `sqlite-kernels`, and the field suite of jaq.

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// Combinations of parameters.
pub const COMBINATIONS: usize = 100;
/// Runs of each in a pass.
pub const RUNS_OF_EACH: usize = 10;
/// Kinds of what is asked: to sort, to join, to group, to search texts, to change.
pub const KINDS: usize = 5;
/// Names of the parameters, in the order of [`Combination::values`].
pub const PARAMETERS: [&str; 5] = ["rows", "columns", "text", "indexes", "kind"];

/// Least and most rows: 250 times as many.
const ROWS: (f64, f64) = (16.0, 4_000.0);
/// Shortest and longest text, bytes.
const TEXT: (u64, u64) = (4, 1_024);
/// Texts of a run are cut so that all of them together have no more, bytes: a run takes milliseconds.
const MOST_BYTES: u64 = 400_000;
/// Seed of the combinations, and of the order of passes.
const SEED: u64 = 18;

/// One combination of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// Rows of a table, or elements of a list.
    pub rows: u64,
    /// Texts in each.
    pub columns: u64,
    /// Length of a text, bytes.
    pub text: u64,
    /// Indexes of the table.
    pub indexes: u64,
    /// What is asked, below [`KINDS`].
    pub kind: u64,
}

impl Combination {
    /// The values of [`PARAMETERS`].
    pub fn values(&self) -> [u64; 5] {
        [self.rows, self.columns, self.text, self.indexes, self.kind]
    }

    /// The value of a parameter; `None`: there is none of that name.
    pub fn value(&self, name: &str) -> Option<u64> {
        let at = PARAMETERS.iter().position(|known| *known == name)?;
        self.values().get(at).copied()
    }
}

/// The combinations: of each kind as many, each with its own number of rows, evenly on a logarithmic scale.
pub fn combinations() -> Vec<Combination> {
    let mut random = StdRng::seed_from_u64(SEED);
    let of_each = COMBINATIONS / KINDS;
    let one = |at: usize| {
        let part = (at / KINDS) as f64 / (of_each - 1) as f64;
        // OK because it is between 16 and 4,000.
        let rows = (ROWS.0 * (ROWS.1 / ROWS.0).powf(part)) as u64;
        let columns = 1 << random.random_range(0..5_u32);
        let text = TEXT.0 << (2 * random.random_range(0..5_u32));
        Combination {
            rows,
            columns,
            text: text.min(MOST_BYTES / (rows * columns)).clamp(TEXT.0, TEXT.1),
            indexes: random.random_range(0..4),
            kind: (at % KINDS) as u64,
        }
    };
    (0..COMBINATIONS).map(one).collect()
}

/// The combinations of a pass, by their numbers: each as often as [`RUNS_OF_EACH`] says, shuffled.
pub fn order(pass: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..COMBINATIONS * RUNS_OF_EACH).map(|run| run % COMBINATIONS).collect();
    order.shuffle(&mut StdRng::seed_from_u64(SEED ^ (pass + 1)));
    order
}

/// Letters of which texts are parts.
pub struct Letters(String);

/// How many there are: so many places for the longest text.
const LETTERS: u64 = 8 * TEXT.1;

impl Default for Letters {
    fn default() -> Letters {
        let mut random = StdRng::seed_from_u64(SEED);
        // OK because each is a letter.
        Letters((0..LETTERS).map(|_| char::from(b'a' + random.random_range(0..26_u8))).collect())
    }
}

impl Letters {
    /// A text of this length, `TEXT` at most; another number gives another one, as far as there are places.
    pub fn text(&self, number: u64, length: u64) -> &str {
        let length = length.min(TEXT.1);
        // 37 has no factor in common with the number of places.
        let begin = number.wrapping_mul(37) % (LETTERS - TEXT.1);
        // OK because both are below 8,192.
        &self.0[begin as usize..(begin + length) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_hundred_combinations_of_five_kinds_over_two_decades_of_rows() {
        let all = combinations();
        assert_eq!(all, combinations(), "the same for the load and for who judges it");
        let kinds = |kind: u64| all.iter().filter(|c| c.kind == kind).count();
        assert!((0..KINDS as u64).all(|kind| kinds(kind) == COMBINATIONS / KINDS));
        let rows: BTreeSet<u64> = all.iter().map(|c| c.rows).collect();
        assert!(rows.len() >= 20 && rows.last().unwrap() / rows.first().unwrap() >= 100, "{rows:?}");
        for c in &all {
            assert!(c.text == TEXT.0 || c.rows * c.columns * c.text <= MOST_BYTES, "{c:?}");
        }
        for name in &PARAMETERS[1..4] {
            let values: BTreeSet<u64> = all.iter().map(|c| c.value(name).unwrap()).collect();
            assert!(values.len() >= 4, "{name}: {values:?}");
        }
        assert_eq!(all[7].value("kind"), Some(2));
        assert_eq!(all[7].value("weather"), None);
    }

    #[test]
    fn a_pass_has_each_combination_ten_times_and_passes_differ() {
        let one = order(0);
        for combination in 0..COMBINATIONS {
            assert_eq!(one.iter().filter(|c| **c == combination).count(), RUNS_OF_EACH);
        }
        assert_eq!(one, order(0));
        assert_ne!(one, order(1));
        assert_ne!(one, (0..1_000).map(|run| run % COMBINATIONS).collect::<Vec<_>>());
    }

    #[test]
    fn texts_have_their_length_and_differ() {
        let letters = Letters::default();
        assert_eq!(letters.text(3, 4).len(), 4);
        assert_eq!(letters.text(u64::MAX, 5_000).len(), 1_024);
        let texts: BTreeSet<&str> = (0..1_000).map(|i| letters.text(i, 64)).collect();
        assert_eq!(texts.len(), 1_000);
    }
}
