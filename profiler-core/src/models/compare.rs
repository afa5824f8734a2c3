//! Two models of one function, of two builds or two times: what grew. And a model against what somebody expects.

use super::class::Class;
use super::model::Model;
use super::term::Order;
use crate::stats::{Interval, z_quantile};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Times of models that are compared are this at least, ns.
const LEAST_NS: f64 = 1e-3;
/// Most that what watching costs adds to the error of a time's logarithm: it then says nothing.
const MOST_UNKNOWN: f64 = 3.0;
/// Change of the exponent from which growth is told to have changed.
const EXPONENT: f64 = 0.1;
/// Change of the time from which a coefficient is told to have changed: runs of the same program differ by a few percent.
const TIME: f64 = 0.05;
/// The same at a single place, where the class of a model is unknown.
const LARGE: f64 = 1.5;
/// Places in the common range at which two models are compared.
const PLACES: usize = 3;

/// Time of the new model over the old one's, at one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Values of the inputs.
    pub x: Vec<f64>,
    /// Old predicted time, ns.
    pub old_ns: f64,
    /// New predicted time, ns.
    pub new_ns: f64,
    /// New over old, lower end at 95 %.
    pub low: f64,
    /// New over old, upper end.
    pub high: f64,
}

impl Ratio {
    /// New over old.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.new_ns / self.old_ns.max(f64::MIN_POSITIVE)
    }
}

/// What changed between two models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It grows faster with its inputs.
    GrowsFaster,
    /// It grows more slowly.
    GrowsSlower,
    /// It takes longer by a factor, and grows alike.
    Slower,
    /// It takes less by a factor, and grows alike.
    Faster,
    /// It takes longer by a factor; how it grows cannot be compared, because a class is unknown.
    Longer,
    /// It takes less by a factor; how it grows cannot be compared.
    Shorter,
    /// No difference beyond chance and 5 %.
    Same,
    /// The models cannot be compared, and no difference is beyond chance.
    Unknown,
}

/// Comparison of two models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What changed.
    pub change: Change,
    /// Class before and after.
    pub classes: (Class, Class),
    /// New exponent less the old one, with its interval at 95 %, where both have one.
    pub exponent: Option<(f64, f64, f64)>,
    /// Times at the smallest, middle and largest common inputs.
    pub ratios: Vec<Ratio>,
}

/// Compares models of the same function in the same context, whose inputs have the same names. A function whose class is unknown has a curve, too: that
/// it takes longer is told, how it grows is not.
///
/// Chance is what the scatter of the calls leaves in the curves:
/// ```text
/// ln(new / old) +- 1.96 sqrt(se_new^2 + se_old^2)
/// ```
/// What differs between two runs of the same program (memory layout, clock of the CPU) is not in it: 5 % is always tolerated, and several
/// runs on each side say more.
#[must_use]
pub fn compare(old: &Model, new: &Model) -> Comparison {
    let classes = (old.class, new.class);
    let ratios = ratios(old, new);
    let exponent = match (old.exponent, new.exponent) {
        (Some(old), Some(new)) => Some(difference(old, new)),
        _ => None,
    };
    let is_known = classes.0 != Class::Unknown && classes.1 != Class::Unknown;
    let change = match (ratios.is_empty(), is_known) {
        (true, _) => Change::Unknown,
        (false, true) => growth(old, new, exponent).unwrap_or_else(|| level(&ratios)),
        (false, false) => level_of_unknown(&ratios),
    };
    Comparison { change, classes, exponent, ratios }
}

fn difference(old: (f64, f64, f64), new: (f64, f64, f64)) -> (f64, f64, f64) {
    let half = f64::hypot((old.2 - old.1) / 2.0, (new.2 - new.1) / 2.0);
    let value = new.0 - old.0;
    (value, value - half, value + half)
}

/// The growth changed: by the exponent where there is one; else by classes, if neither model leaves the other's open.
fn growth(old: &Model, new: &Model, exponent: Option<(f64, f64, f64)>) -> Option<Change> {
    if let Some((value, low, high)) = exponent {
        return match value {
            v if v > EXPONENT && low > 0.0 => Some(Change::GrowsFaster),
            v if v < -EXPONENT && high < 0.0 => Some(Change::GrowsSlower),
            _ => None,
        };
    }
    let is_open = |model: &Model, class: Class| model.class == class || model.alternatives.contains(&class);
    if is_open(old, new.class)
        || is_open(new, old.class)
        || [old.class, new.class].contains(&Class::TwoRegimes)
    {
        return None;
    }
    Some(if new.class > old.class { Change::GrowsFaster } else { Change::GrowsSlower })
}

/// The factor: it changed if it did at some place. Where it did both ways, the largest inputs decide.
fn level(ratios: &[Ratio]) -> Change {
    let slower = ratios.iter().any(|r| r.low > 1.0 + TIME);
    let faster = ratios.iter().any(|r| r.high < 1.0 / (1.0 + TIME));
    match (slower, faster) {
        (true, false) => Change::Slower,
        (false, true) => Change::Faster,
        (false, false) => Change::Same,
        (true, true) => {
            if tops(ratios).any(|r| r.low > 1.0 + TIME) {
                Change::Slower
            } else {
                Change::Faster
            }
        }
    }
}

/// The factor where a class is unknown. A curve that fits badly bends otherwise in each recording, and its interval does not know that: the same difference must be
/// there at two of the places, or be large.
fn level_of_unknown(ratios: &[Ratio]) -> Change {
    let is_beyond = |least: fn(&Ratio) -> f64| {
        ratios.chunks(PLACES).any(|curve| {
            let beyond = |factor: f64| curve.iter().filter(|r| least(r) > factor).count();
            beyond(1.0 + TIME) >= 2 || beyond(LARGE) >= 1
        })
    };
    match (is_beyond(|r| r.low), is_beyond(|r| 1.0 / r.high.max(f64::MIN_POSITIVE))) {
        (true, false) => Change::Longer,
        (false, true) => Change::Shorter,
        (false, false) => Change::Unknown,
        (true, true) if tops(ratios).any(|r| r.low > 1.0 + TIME) => Change::Longer,
        (true, true) => Change::Shorter,
    }
}

/// Of each curve the ratio at the largest inputs.
fn tops(ratios: &[Ratio]) -> impl Iterator<Item = &Ratio> {
    ratios.iter().skip(PLACES - 1).step_by(PLACES)
}

fn ratios(old: &Model, new: &Model) -> Vec<Ratio> {
    if old.inputs != new.inputs || old.categories != new.categories {
        return Vec::new();
    }
    let common = |((a, b), (c, d)): (&(f64, f64), &(f64, f64))| (a.max(*c), b.min(*d));
    let range: Vec<(f64, f64)> = old.range.iter().zip(&new.range).map(common).collect();
    if range.iter().any(|(low, high)| low > high) {
        return Vec::new();
    }
    let mut ratios = Vec::new();
    for curve in &old.curves {
        let Some(other) = new.curves.iter().find(|c| c.category == curve.category) else { continue };
        for place in 0..PLACES {
            let part = place as f64 / (PLACES - 1) as f64;
            let between = |(low, high): &(f64, f64)| match part {
                0.0 => *low,
                1.0 => *high,
                _ => low.max(1.0).powf(1.0 - part) * high.max(1.0).powf(part),
            };
            let x: Vec<f64> = range.iter().map(between).collect();
            let (old_ns, new_ns) = (curve.shape.at(&x), other.shape.at(&x));
            // No time at all has no ratio.
            let [old_ns, new_ns] = [old_ns, new_ns].map(|ns| ns.max(LEAST_NS));
            // What was taken off for watching is off by so much in each recording: a pair of sites was there in the one, say, and not in the other.
            let known = |model: &Model, ns: f64| (model.basis.known_to_ns / ns).min(MOST_UNKNOWN);
            let of_watching = f64::hypot(known(old, old_ns), known(new, new_ns));
            let error = f64::hypot(curve.shape.log_error(&x), other.shape.log_error(&x)).hypot(of_watching);
            let (ratio, half) = (new_ns / old_ns, z_quantile(0.95) * error);
            ratios.push(Ratio { x, old_ns, new_ns, low: ratio * (-half).exp(), high: ratio * half.exp() });
        }
    }
    ratios
}

/// What somebody expects of a function: it grows at most so fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation(pub Order);

/// How a model stands to an expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It grows no faster.
    Holds,
    /// It grows faster, and the calls rule out that it does not.
    Broken {
        /// Class that it has.
        class: Class,
    },
    /// The calls do not tell.
    CannotTell,
}

impl Expectation {
    /// Reads `O(n log n)`, `n^1.5`, `n log n`, `1`, `sqrt n`, `n2`; letters other than those of `log` and `sqrt` are inputs.
    ///
    /// # Errors
    /// The text is none of these; the error says what can be written.
    pub fn parse(text: &str) -> Result<Self, String> {
        let all = text.trim().trim_start_matches("O(").trim_end_matches(')').to_lowercase();
        let wrong =
            || format!("\"{text}\" is no growth; write 1, log n, sqrt n, n, n log n, n^1.5, n^2, m n");
        let mut order = Order::default();
        let mut words =
            all.split(|c: char| c.is_whitespace() || c == '*' || c == '·').filter(|w| !w.is_empty());
        let mut is_empty = true;
        while let Some(word) = words.next() {
            is_empty = false;
            match word {
                "1" => {}
                "log" | "log2" | "ln" => {
                    words.next().ok_or_else(wrong)?;
                    order.logs += 1;
                }
                "log^2" | "log2^2" => {
                    words.next().ok_or_else(wrong)?;
                    order.logs += 2;
                }
                "sqrt" => {
                    words.next().ok_or_else(wrong)?;
                    order.half_powers += 1;
                }
                other => {
                    let rest = other.strip_prefix(|c: char| c.is_ascii_lowercase()).ok_or_else(wrong)?;
                    let power = match rest.trim_start_matches('^') {
                        "" => 1.0,
                        power => power.parse::<f64>().map_err(|_| wrong())?,
                    };
                    let halves = 2.0 * power;
                    if !(0.0..=12.0).contains(&halves) || halves.fract() != 0.0 {
                        return Err(wrong());
                    }
                    // OK because it is a whole number up to 12.
                    order.half_powers += halves as u8;
                }
            }
        }
        if is_empty { Err(wrong()) } else { Ok(Self(order)) }
    }

    /// Whether a model keeps to it.
    #[must_use]
    pub fn verdict(self, model: &Model) -> Verdict {
        if model.class == Class::Unknown {
            return Verdict::CannotTell;
        }
        let most = Class::of(self.0);
        // The growth that goes on: of two regimes the upper one.
        let top: Vec<f64> = model.range.iter().map(|(_, high)| *high).collect();
        let Some(class) = model.curves.iter().map(|c| c.shape.growth(&top)).max() else {
            return Verdict::CannotTell;
        };
        let class = if model.class == Class::Constant { Class::Constant } else { class };
        let is_faster = |class: Class| {
            class > most || (class == most && class == Class::Polynomial && self.is_exceeded(model, &top))
        };
        if !is_faster(class) {
            // A term that may be a bend was left out (`bends.rs`): that it is none is not ruled out.
            let is_left_out = |c: &Class| *c > most && *c != Class::TwoRegimes && *c != Class::Unknown;
            let cannot_tell = model.is_simplified && model.alternatives.iter().any(is_left_out);
            return if cannot_tell { Verdict::CannotTell } else { Verdict::Holds };
        }
        let is_open = |c: &Class| *c <= most && *c != Class::TwoRegimes;
        if model.alternatives.iter().any(is_open) { Verdict::CannotTell } else { Verdict::Broken { class } }
    }

    /// n^3 where n^2 is expected: one class, but not one power.
    fn is_exceeded(self, model: &Model, top: &[f64]) -> bool {
        let order = |shape: &super::Shape| match shape {
            super::Shape::Sum(sum) => Some(sum.order(top)),
            super::Shape::Regimes(split) => Some(split.above.order(top)),
            super::Shape::Power(_) => None,
        };
        model.curves.iter().filter_map(|c| order(&c.shape)).any(|o| o.half_powers > self.0.half_powers)
    }
}

impl Change {
    /// It takes longer than before, or grows faster.
    #[must_use]
    pub fn is_worse(self) -> bool {
        matches!(self, Self::GrowsFaster | Self::Slower | Self::Longer)
    }

    /// A difference is told.
    #[must_use]
    pub fn is_told(self) -> bool {
        !matches!(self, Self::Same | Self::Unknown)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GrowsFaster => "grows faster",
            Self::GrowsSlower => "grows more slowly",
            Self::Slower => "slower by a factor",
            Self::Faster => "faster by a factor",
            Self::Longer => "takes longer; how it grows cannot be compared",
            Self::Shorter => "takes less time; how it grows cannot be compared",
            Self::Same => "no difference",
            Self::Unknown => "cannot be compared",
        })
    }
}

impl Comparison {
    /// New over old at the largest common inputs, with its interval at 95 %: of several categories the one that grew most.
    #[must_use]
    pub fn at_top(&self) -> Option<(f64, Interval)> {
        let last = tops(&self.ratios).max_by(|a, b| a.factor().total_cmp(&b.factor()))?;
        Some((last.factor(), Interval { low: last.low, high: last.high }))
    }

    /// The ratio that the change is told by, and where that is: of a factor at the common inputs where the difference is clearest, else at the largest.
    #[must_use]
    pub fn telling(&self) -> Option<(&'static str, &Ratio)> {
        let places = self.ratios.iter().zip(["smallest", "middle", "largest"].into_iter().cycle());
        let (ratio, place) = match self.change {
            Change::Longer | Change::Slower => places.max_by(|(a, _), (b, _)| a.low.total_cmp(&b.low)),
            Change::Shorter | Change::Faster => places.min_by(|(a, _), (b, _)| a.high.total_cmp(&b.high)),
            _ => {
                let tops = places.skip(PLACES - 1).step_by(PLACES);
                tops.max_by(|(a, _), (b, _)| a.factor().total_cmp(&b.factor()))
            }
        }?;
        Some((place, ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_class_is_unknown_one_place_alone_tells_only_of_a_large_difference() {
        let of = |intervals: [(f64, f64); 3]| {
            let ratio = |(low, high): (f64, f64)| {
                let new_ns = 100.0 * (low * high).sqrt();
                Ratio { x: vec![1.0], old_ns: 100.0, new_ns, low, high }
            };
            level_of_unknown(&intervals.map(ratio))
        };
        let told = |change: Change, factors: [f64; 3]| {
            let ratio = |f: f64| Ratio { x: vec![1.0], old_ns: 1.0, new_ns: f, low: 0.9 * f, high: 1.1 * f };
            let classes = (Class::Unknown, Class::Unknown);
            let found = Comparison { change, classes, exponent: None, ratios: factors.map(ratio).to_vec() };
            found.telling().map(|(place, ratio)| (place, ratio.factor()))
        };
        assert_eq!(told(Change::Longer, [1.8, 1.0, 0.95]), Some(("smallest", 1.8)));
        assert_eq!(told(Change::Shorter, [1.8, 0.5, 0.95]), Some(("middle", 0.5)));
        assert_eq!(told(Change::Slower, [1.8, 1.0, 1.3]), Some(("smallest", 1.8)));
        assert_eq!(told(Change::Faster, [0.9, 1.0, 0.4]), Some(("largest", 0.4)));
        assert_eq!(told(Change::GrowsFaster, [1.8, 1.0, 1.3]), Some(("largest", 1.3)));
        let (same, more, less) = ((0.9, 1.1), (1.1, 1.4), (0.7, 0.9));
        assert_eq!(of([same, more, more]), Change::Longer);
        assert_eq!(of([less, same, less]), Change::Shorter);
        assert_eq!(of([same, same, more]), Change::Unknown);
        assert_eq!(of([same, same, (1.81, 2.17)]), Change::Longer);
        assert_eq!(of([(0.4, 0.6), same, same]), Change::Shorter);
        // Both ways: the largest inputs decide.
        assert_eq!(of([(0.4, 0.6), same, (1.81, 2.17)]), Change::Longer);
        assert_eq!(of([(1.81, 2.17), less, less]), Change::Shorter);
    }
}
