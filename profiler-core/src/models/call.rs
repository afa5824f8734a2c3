//! Calls: what a model is fitted to.

use serde::{Deserialize, Serialize};

/// Value of one input of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Value {
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer, or a size.
    Unsigned(u64),
    /// A name for one of several ways (`level`, a mode, an operation code): it has no size.
    Category(u64),
    /// It could not be read.
    Missing,
}

/// What an input is, as far as its declaration tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An integer, or a length.
    Number,
    /// A name for one of several ways.
    Category,
    /// A floating-point number: it is not in the registers that are recorded.
    Float,
    /// A structure that is passed by value.
    Structure,
    /// An address.
    Pointer,
    /// A register that the function makes no use of: it holds what a caller left there for something else.
    Unused,
}

/// One input of a function: a critical parameter of the paper's §3.1, if the time grows with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Input {
    /// Name, as it is told.
    pub name: String,
    /// What it is.
    pub kind: Kind,
}

impl Input {
    /// An input that is a number.
    #[must_use]
    pub fn number(name: &str) -> Self {
        Self { name: name.to_owned(), kind: Kind::Number }
    }

    /// An input that is a category.
    #[must_use]
    pub fn category(name: &str) -> Self {
        Self { name: name.to_owned(), kind: Kind::Category }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// It returned.
    #[default]
    Returned,
    /// It was left by an exception or longjmp.
    Unwound,
    /// The window of recording ended before it did.
    Cut,
}

/// What one call took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Taken {
    /// From begin to end, ns.
    pub duration_ns: f64,
    /// What watching cost inside of it (probes of calls that it made, and its own), ns: it is taken off.
    pub watching_ns: f64,
    /// How it ended.
    pub end: End,
}

impl Taken {
    /// A call that returned after `duration_ns`, nothing inside it watched.
    #[must_use]
    pub fn ns(duration_ns: f64) -> Self {
        Self { duration_ns, ..Self::default() }
    }

    /// Its own duration, ns, without what watching cost; `None` if it did not return, or nothing is left.
    #[must_use]
    pub fn own_ns(self) -> Option<f64> {
        self.left_ns().filter(|own| *own > 0.0)
    }

    /// The same where nothing or less than nothing is left: what watching costs differs from call to call. `None` if it did not return.
    #[must_use]
    pub fn left_ns(self) -> Option<f64> {
        let left = self.duration_ns - self.watching_ns.max(0.0);
        (self.end == End::Returned && left.is_finite()).then_some(left)
    }
}

/// The calls of one function in one calling context (Definition 31), in columns.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    inputs: Vec<Input>,
    values: Vec<Value>,
    taken: Vec<Taken>,
    /// Sum of what the cost of watching each call is known to, ns.
    known_to_ns: f64,
}

impl Calls {
    /// No calls yet of a function with these inputs.
    #[must_use]
    pub fn new(inputs: Vec<Input>) -> Self {
        Self { inputs, values: Vec::new(), taken: Vec::new(), known_to_ns: 0.0 }
    }

    /// What watching one of these calls costs is known to so many ns (one standard error; in all calls of a class it is off by the same).
    pub fn watching_known_to(&mut self, ns: f64) {
        self.known_to_ns += ns;
    }

    /// What watching a call costs is known to so many ns, on average; 0: exactly, or nobody said.
    #[must_use]
    pub fn known_to_ns(&self) -> f64 {
        self.known_to_ns / (self.taken.len() as f64).max(1.0)
    }

    /// Adds a call. Values that are too few count as missing; more than there are inputs are ignored.
    pub fn push(&mut self, values: &[Value], taken: Taken) {
        let padded = values.iter().copied().chain(std::iter::repeat(Value::Missing));
        self.values.extend(padded.take(self.inputs.len()));
        self.taken.push(taken);
    }

    /// The inputs.
    #[must_use]
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Number of calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Values and what was taken, call by call.
    pub fn iter(&self) -> impl Iterator<Item = (&[Value], Taken)> {
        let width = self.inputs.len();
        self.taken
            .iter()
            .enumerate()
            .map(move |(i, taken)| (self.values.get(i * width..(i + 1) * width).unwrap_or_default(), *taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_watching_cost_is_taken_off_and_cut_calls_have_no_duration() {
        let taken = Taken { duration_ns: 1_000.0, watching_ns: 300.0, end: End::Returned };
        assert_eq!(taken.own_ns(), Some(700.0));
        assert_eq!(Taken { watching_ns: 1_000.0, ..taken }.own_ns(), None);
        assert_eq!(Taken { watching_ns: 1_200.0, ..taken }.left_ns(), Some(-200.0));
        assert_eq!(Taken { end: End::Cut, ..taken }.own_ns(), None);
        assert_eq!(Taken { end: End::Unwound, ..taken }.own_ns(), None);
        assert_eq!(Taken::ns(f64::NAN).own_ns(), None);
    }

    #[test]
    fn rows_have_as_many_values_as_there_are_inputs() {
        let mut calls = Calls::new(vec![Input::number("n"), Input::number("m")]);
        calls.push(&[Value::Unsigned(3)], Taken::ns(1.0));
        calls.push(&[Value::Unsigned(4); 3], Taken::ns(2.0));
        let rows: Vec<Vec<Value>> = calls.iter().map(|(values, _)| values.to_vec()).collect();
        assert_eq!(rows, [[Value::Unsigned(3), Value::Missing], [Value::Unsigned(4); 2]]);
        let mut none = Calls::new(Vec::new());
        none.push(&[], Taken::ns(1.0));
        assert_eq!(none.iter().count(), 1);
    }
}
