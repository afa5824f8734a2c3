//! A number that leaves the program: value, interval, n, source (invariant I7).

use crate::class::Source;
use serde::{Deserialize, Serialize};

/// An estimate with its interval. The unit is the field's that holds it, and is named there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Point estimate.
    pub value: f64,
    /// Lower end of the interval; equal to `value` for exact numbers.
    pub low: f64,
    /// Upper end of the interval; equal to `value` for exact numbers; infinite where nothing bounds it (`null`
    /// in JSON, which has no infinity).
    #[serde(with = "null_is_infinity")]
    pub high: f64,
    /// Nominal coverage of the interval, e.g. 0.95; 1.0 for exact numbers.
    pub level: f64,
    /// Events or samples behind it.
    pub n: u64,
    /// Where it comes from.
    pub source: Source,
    /// Only `high` is known: the value, corrections taken out, lies below its own uncertainty. It is told as `<= high`. In JSON only where
    /// it is so.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_most: bool,
}

impl Estimate {
    /// An exact number: a degenerate interval of coverage 1.
    #[must_use]
    pub fn exact(value: f64, n: u64) -> Self {
        Self { value, low: value, high: value, level: 1.0, n, source: Source::Exact, at_most: false }
    }

    /// Value and ends over `by` > 0: events to events per second.
    #[must_use]
    pub fn divided_by(self, by: f64) -> Self {
        Self { value: self.value / by, low: self.low / by, high: self.high / by, ..self }
    }

    /// Half the interval's width, in the estimate's unit.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

// serde gives a reference.
fn is_false(x: &bool) -> bool {
    !*x
}

mod null_is_infinity {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub fn serialize<S: Serializer>(high: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        high.is_finite().then_some(*high).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_interval_survives_json() {
        let open =
            Estimate { high: f64::INFINITY, level: 0.95, source: Source::Burst, ..Estimate::exact(3.0, 3) };
        let text = serde_json::to_string(&open).unwrap();
        assert!(text.contains(r#""high":null"#), "{text}");
        assert!(!text.contains("at_most"), "{text}");
        assert_eq!(serde_json::from_str::<Estimate>(&text).unwrap(), open);
        let limit = Estimate { at_most: true, ..Estimate::exact(0.0, 3) };
        let text = serde_json::to_string(&limit).unwrap();
        assert_eq!(serde_json::from_str::<Estimate>(&text).unwrap(), limit);
    }
}
