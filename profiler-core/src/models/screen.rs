//! Which inputs can be predictors: the paper leaves it to a domain expert (§3.1, critical parameters); here values decide, with a reason.

use super::call::{Calls, Kind, Value};
use super::term::MOST_INPUTS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Fewest distinct values of an input along which growth is told.
pub const LEAST_VALUES: usize = 5;
/// Most distinct values of a category.
const MOST_CATEGORIES: usize = 32;
/// Numbers from here on are addresses or marks (`SIZE_MAX`): programs lie from some 2^46 on, stacks and libraries below 2^47, and a call that works through a TiB ends in no
/// recording. Objects of a program that is linked to a fixed address lie lower: nothing tells them from sizes.
const HUGE: u64 = 1 << 40;
/// Part of the calls that may have a negative or huge number (an error code, `npos`): those calls are left out.
const MARKS: f64 = 0.05;
/// Least largest over smallest value (at least 1): below it all forms look alike.
const LEAST_FACTOR: f64 = 4.0;
/// Correlation of logarithms from which two inputs are one.
const SAME: f64 = 0.995;
/// Distinct values are counted up to here.
const COUNTED: usize = 4_096;

/// Why an input is not a predictor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unusable {
    /// It is a floating-point number.
    Float,
    /// It is a structure passed by value.
    Structure,
    /// It is an address.
    Pointer,
    /// The function makes no use of its register.
    NoParameter,
    /// It has the same value in all calls.
    NotVarying,
    /// It has few distinct values.
    FewValues {
        /// How many.
        values: usize,
    },
    /// Its largest value is less than 4 times its smallest.
    NarrowRange {
        /// Largest over smallest.
        factor: f64,
    },
    /// It is negative in many calls.
    Negative {
        /// Part of the calls.
        share: f64,
    },
    /// It is 2^40 or more in many calls: an address, or a mark.
    Huge {
        /// Part of the calls.
        share: f64,
    },
    /// It could not be read in many calls.
    Unread {
        /// Part of the calls.
        share: f64,
    },
    /// It is a category of too many values.
    ManyCategories,
    /// It is a category by which the time does not differ.
    Idle,
    /// It is a category, and there is no number beside it.
    CategoryOnly,
    /// It changes with another input, in the same way in all calls.
    SameAs {
        /// Name of the other one.
        other: String,
    },
    /// There are four inputs that tell more of the time.
    TooMany,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: &f64| format!("{:.0} %", 100.0 * share);
        match self {
            Self::Float => write!(f, "a floating-point number is not recorded"),
            Self::Structure => write!(f, "a structure passed by value is not recorded"),
            Self::Pointer => write!(f, "an address has no size"),
            Self::NoParameter => write!(f, "the function makes no use of it: it is no parameter"),
            Self::NotVarying => write!(f, "it has the same value in all calls"),
            Self::FewValues { values } => {
                write!(f, "{values} distinct values; {LEAST_VALUES} are needed")
            }
            Self::NarrowRange { factor } => write!(
                f,
                "its largest value is {factor:.1} times its smallest; {LEAST_FACTOR:.0} times is needed"
            ),
            Self::Negative { share } => write!(f, "negative in {} of the calls", percent(share)),
            Self::Huge { share } => {
                write!(f, "2^40 or more in {} of the calls: an address, or a mark", percent(share))
            }
            Self::Unread { share } => write!(f, "not readable in {} of the calls", percent(share)),
            Self::ManyCategories => write!(f, "more than {MOST_CATEGORIES} categories"),
            Self::Idle => write!(f, "a category by which the time does not differ"),
            Self::CategoryOnly => write!(f, "a category has no size, and no other input is a number"),
            Self::SameAs { other } => write!(f, "it changes with {other}, always in the same way"),
            Self::TooMany => write!(f, "{MOST_INPUTS} other inputs tell more of the time"),
        }
    }
}

/// A call's value of an input, as a number.
pub(super) fn number(value: Value) -> Result<u64, Bad> {
    match value {
        Value::Signed(x) if x < 0 => Err(Bad::Negative),
        Value::Signed(x) => in_range(x.unsigned_abs()),
        Value::Unsigned(x) => in_range(x),
        Value::Category(_) => Err(Bad::Category),
        Value::Missing => Err(Bad::Missing),
    }
}

fn in_range(x: u64) -> Result<u64, Bad> {
    if x < HUGE { Ok(x) } else { Err(Bad::Huge) }
}

/// Why a value is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    Negative,
    Huge,
    Category,
    Missing,
}

/// Which inputs are used, as what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Roles {
    /// Indices of the inputs that are predictors.
    pub numbers: Vec<usize>,
    /// Indices of those by which calls are told apart.
    pub categories: Vec<usize>,
    /// Names of the others, with the reason.
    pub unusable: Vec<(String, Unusable)>,
}

impl Roles {
    /// The numbers and the category's values of a call; `None` where one that is needed is bad.
    pub fn read(&self, values: &[Value]) -> Option<(Vec<u64>, Vec<u64>)> {
        let value = |i: &usize| values.get(*i).copied().unwrap_or(Value::Missing);
        let numbers = self.numbers.iter().map(|i| number(value(i)).ok()).collect::<Option<_>>()?;
        let categories = self.categories.iter().map(|i| name_of(value(i))).collect::<Option<_>>()?;
        Some((numbers, categories))
    }
}

/// The name of a category: the bits of its value.
pub(super) fn name_of(value: Value) -> Option<u64> {
    match value {
        Value::Signed(x) => Some(x.cast_unsigned()),
        Value::Unsigned(x) | Value::Category(x) => Some(x),
        Value::Missing => None,
    }
}

/// What was seen of one input.
#[derive(Debug, Default)]
struct Seen {
    /// Calls with a negative, huge, unreadable number.
    bad: [usize; 3],
    has_category: bool,
    distinct: BTreeSet<u64>,
    names: BTreeSet<u64>,
    low: u64,
    high: u64,
}

/// What an input may be, by itself.
enum Role {
    Number,
    /// A number of few values, which is a category where there is another number.
    Few(usize),
    Category,
    None(Unusable),
}

/// Decides what each input is.
pub(super) fn roles(calls: &Calls) -> Roles {
    // Of which nothing is left counts, too: its inputs were seen.
    let returned: Vec<(&[Value], f64)> =
        calls.iter().filter_map(|(values, taken)| Some((values, taken.left_ns()?.max(1.0)))).collect();
    let mut roles = Roles::default();
    let mut maybe = Vec::new();
    for (index, input) in calls.inputs().iter().enumerate() {
        match role(input.kind, index, &returned) {
            Role::Number => roles.numbers.push(index),
            Role::Few(values) => maybe.push((index, Unusable::FewValues { values })),
            Role::Category => maybe.push((index, Unusable::CategoryOnly)),
            Role::None(why) => roles.unusable.push((input.name.clone(), why)),
        }
    }
    let name = |index: usize| calls.inputs().get(index).map(|i| i.name.clone()).unwrap_or_default();
    leave_the_same(&mut roles, &returned, name);
    leave_too_many(&mut roles, &returned, name);
    if roles.numbers.is_empty() {
        roles.unusable.extend(maybe.into_iter().map(|(index, why)| (name(index), why)));
    } else {
        roles.categories.extend(maybe.into_iter().map(|(index, _)| index));
    }
    roles
}

fn role(kind: Kind, index: usize, calls: &[(&[Value], f64)]) -> Role {
    match kind {
        Kind::Float => return Role::None(Unusable::Float),
        Kind::Structure => return Role::None(Unusable::Structure),
        Kind::Pointer => return Role::None(Unusable::Pointer),
        Kind::Unused => return Role::None(Unusable::NoParameter),
        Kind::Number | Kind::Category => {}
    }
    let seen = look(index, calls);
    let share = |count: usize| count as f64 / calls.len().max(1) as f64;
    let [negative, huge, unread] = seen.bad;
    if share(unread) > 0.5 {
        return Role::None(Unusable::Unread { share: share(unread) });
    }
    if kind == Kind::Category || seen.has_category {
        return match seen.names.len() {
            0 | 1 => Role::None(Unusable::NotVarying),
            n if n > MOST_CATEGORIES => Role::None(Unusable::ManyCategories),
            _ => Role::Category,
        };
    }
    if share(negative) > MARKS {
        return Role::None(Unusable::Negative { share: share(negative) });
    }
    if share(huge) > MARKS {
        return Role::None(Unusable::Huge { share: share(huge) });
    }
    let factor = seen.high as f64 / (seen.low as f64).max(1.0);
    match seen.distinct.len() {
        0 | 1 => Role::None(Unusable::NotVarying),
        values if values < LEAST_VALUES => Role::Few(values),
        _ if factor < LEAST_FACTOR => Role::None(Unusable::NarrowRange { factor }),
        _ => Role::Number,
    }
}

fn look(index: usize, calls: &[(&[Value], f64)]) -> Seen {
    let mut seen = Seen { low: u64::MAX, ..Seen::default() };
    for (values, _) in calls {
        let value = values.get(index).copied().unwrap_or(Value::Missing);
        if let Some(name) = name_of(value).filter(|_| seen.names.len() <= MOST_CATEGORIES) {
            seen.names.insert(name);
        }
        match number(value) {
            Ok(x) => {
                (seen.low, seen.high) = (seen.low.min(x), seen.high.max(x));
                if seen.distinct.len() < COUNTED {
                    seen.distinct.insert(x);
                }
            }
            Err(Bad::Negative) => seen.bad[0] += 1,
            Err(Bad::Huge) => seen.bad[1] += 1,
            Err(Bad::Missing) => seen.bad[2] += 1,
            Err(Bad::Category) => seen.has_category = true,
        }
    }
    seen
}

/// log2(1 + x) of an input, call by call; bad values count as 0.
fn logs(index: usize, calls: &[(&[Value], f64)]) -> Vec<f64> {
    let value = |values: &[Value]| number(values.get(index).copied().unwrap_or(Value::Missing));
    calls.iter().map(|(values, _)| (value(values).unwrap_or(0) as f64).ln_1p()).collect()
}

fn leave_the_same(roles: &mut Roles, calls: &[(&[Value], f64)], name: impl Fn(usize) -> String) {
    let mut kept: Vec<(usize, Vec<f64>)> = Vec::new();
    for index in std::mem::take(&mut roles.numbers) {
        let own = logs(index, calls);
        match kept.iter().find(|(_, other)| correlation(&own, other) > SAME) {
            Some((other, _)) => {
                roles.unusable.push((name(index), Unusable::SameAs { other: name(*other) }));
            }
            None => kept.push((index, own)),
        }
    }
    roles.numbers = kept.into_iter().map(|(index, _)| index).collect();
}

fn leave_too_many(roles: &mut Roles, calls: &[(&[Value], f64)], name: impl Fn(usize) -> String) {
    if roles.numbers.len() <= MOST_INPUTS {
        return;
    }
    let times: Vec<f64> = calls.iter().map(|(_, ns)| ns.ln()).collect();
    let mut rated: Vec<(f64, usize)> =
        roles.numbers.iter().map(|i| (correlation(&logs(*i, calls), &times).abs(), *i)).collect();
    rated.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, index) in rated.split_off(MOST_INPUTS) {
        roles.unusable.push((name(index), Unusable::TooMany));
    }
    roles.numbers = rated.into_iter().map(|(_, index)| index).collect();
    roles.numbers.sort_unstable();
}

/// Pearson's r; 0 where one does not vary.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len().min(b.len()).max(1) as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let sums = a.iter().zip(b).fold([0.0; 3], |[aa, bb, ab], (x, y)| {
        let (x, y) = (x - mean_a, y - mean_b);
        [aa + x * x, bb + y * y, ab + x * y]
    });
    let [aa, bb, ab] = sums;
    if aa > 0.0 && bb > 0.0 { ab / (aa * bb).sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::call::{Input, Taken};
    use super::*;

    fn of(inputs: &[Input], rows: impl Iterator<Item = Vec<Value>>) -> Roles {
        let mut calls = Calls::new(inputs.to_vec());
        rows.for_each(|row| calls.push(&row, Taken::ns(100.0)));
        roles(&calls)
    }

    fn one(rows: impl Iterator<Item = Value>) -> Result<(), Unusable> {
        let roles = of(&[Input::number("n")], rows.map(|v| vec![v]));
        roles.unusable.into_iter().next().map_or(Ok(()), |(_, why)| Err(why))
    }

    #[test]
    fn each_bad_input_has_its_reason() {
        let u = Value::Unsigned;
        assert_eq!(one((1..100).map(u)), Ok(()));
        assert_eq!(one((1..100).map(|_| u(7))), Err(Unusable::NotVarying));
        assert_eq!(one((1..100).map(|i| u(1 + i % 4))), Err(Unusable::FewValues { values: 4 }));
        assert_eq!(one((0..100).map(|i| u(100 + i))), Err(Unusable::NarrowRange { factor: 1.99 }));
        let signed = |i: i64| Value::Signed(if i % 10 == 0 { -1 } else { i });
        assert_eq!(one((0..100).map(signed)), Err(Unusable::Negative { share: 0.1 }));
        let huge = |i: u64| u(if i.is_multiple_of(4) { 1 << 63 } else { i });
        assert_eq!(one((0..100).map(huge)), Err(Unusable::Huge { share: 0.25 }));
        assert_eq!(one((0..100).map(|_| Value::Missing)), Err(Unusable::Unread { share: 1.0 }));
        assert_eq!(one((0..99).map(|i| Value::Category(i % 9))), Err(Unusable::CategoryOnly));
        let float = of(&[Input { name: "x".into(), kind: Kind::Float }], (0..9).map(|i| vec![u(i)]));
        assert_eq!(float.unusable, [("x".to_owned(), Unusable::Float)]);
        let unused = [Input { name: "x".into(), kind: Kind::Unused }, Input::number("n")];
        let unused = of(&unused, (1..99).map(|i| vec![u(1 + i % 7), u(i)]));
        assert_eq!(
            (unused.numbers, unused.unusable),
            (vec![1], vec![("x".to_owned(), Unusable::NoParameter)])
        );
    }

    #[test]
    fn few_marks_leave_out_the_calls_and_not_the_input() {
        let signed = |i: i64| vec![Value::Signed(if i % 50 == 0 { -1 } else { i })];
        let roles = of(&[Input::number("n")], (0..200).map(signed));
        assert_eq!(roles.numbers, [0]);
        assert_eq!(roles.read(&[Value::Signed(-1)]), None);
        assert_eq!(roles.read(&[Value::Signed(0)]), Some((vec![0], vec![])), "0 is a size");
    }

    #[test]
    fn an_input_of_few_values_beside_a_number_is_a_category() {
        let inputs = [Input::number("n"), Input::number("level"), Input::number("twice_n")];
        let row = |i: u64| vec![Value::Unsigned(i), Value::Unsigned(i % 3), Value::Unsigned(2 * i)];
        let roles = of(&inputs, (1..300).map(row));
        assert_eq!((roles.numbers, roles.categories), (vec![0], vec![1]));
        assert_eq!(roles.unusable, [("twice_n".to_owned(), Unusable::SameAs { other: "n".into() })]);
    }

    #[test]
    fn of_many_inputs_the_four_that_tell_most_are_kept() {
        let inputs: Vec<Input> = (0..6).map(|i| Input::number(&format!("x{i}"))).collect();
        let mut calls = Calls::new(inputs);
        for i in 0..400_u64 {
            let hash =
                |k: u64| (i * 2_654_435_761 + k * 40_503).wrapping_mul(6_364_136_223_846_793_005) >> 54;
            let row: Vec<Value> = (0..6).map(|k| Value::Unsigned(1 + hash(k))).collect();
            calls.push(&row, Taken::ns(10.0 + hash(5) as f64));
        }
        let roles = roles(&calls);
        assert_eq!(roles.numbers.len(), MOST_INPUTS);
        assert!(roles.numbers.contains(&5), "{roles:?}");
    }
}
