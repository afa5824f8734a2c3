//! What is known of how often classes are called.

use crate::class::ClassId;
use crate::plan::Range;
use crate::survey::RateEstimate;
use std::collections::BTreeMap;

/// Rates by class. Of a class that is not in it nothing is known.
pub type Rates = BTreeMap<ClassId, Rate>;

/// A rate that a traced class shows is known to this factor either way.
const KNOWN_TO: f64 = 1.3;

/// A rate and its interval, and the calls seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Calls/s.
    pub hz: Range,
    /// Calls that it was seen from.
    pub calls: u64,
}

impl Rate {
    /// A rate as the controller last saw it, known to a third.
    #[must_use]
    pub fn seen(hz: f64, calls: u64) -> Self {
        Self { hz: Range { value: hz, low: hz / KNOWN_TO, high: hz * KNOWN_TO }, calls }
    }
}

impl From<&RateEstimate> for Rate {
    fn from(r: &RateEstimate) -> Self {
        // The windows behind the rate may have none where another, too rough for a rate, has.
        Self { hz: r.rate_hz.into(), calls: if r.seen { r.rate_hz.n.max(1) } else { 0 } }
    }
}
