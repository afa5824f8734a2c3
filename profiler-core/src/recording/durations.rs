//! Durations of recorded calls in buckets, so that a report of ten million calls need not hold them.
//!
//! Up to 4 us a bucket is 1 ns wide; beyond that it has twelve significant bits, which is below 0.05 % of the duration. A class takes some thousand buckets, however
//! many calls it has.

use super::{ClassRow, EventRow};
use std::collections::{BTreeMap, HashMap};

/// Significant bits of a bucket's lower end.
const BITS: u32 = 12;

/// Durations of one class of calls.
#[derive(Debug, Clone, PartialEq)]
struct OfClass {
    /// As recorded: lower ends of buckets, ns, and calls.
    raw: BTreeMap<u64, u64>,
    /// Without nested probes; `None`: a call does not say what they cost.
    without: Option<BTreeMap<u64, u64>>,
    /// Longest without nested probes, ns.
    most_ns: f64,
}

/// Durations of recorded calls by class.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallDurations {
    classes: BTreeMap<u32, OfClass>,
}

/// Durations: lower end, ns, upper end, ns, and calls.
pub type Binned = Vec<(u64, u64, u64)>;

impl CallDurations {
    /// One more call. `own_ns`: what was taken for its own part of the monitoring inside it, ns.
    pub fn add(&mut self, call: &EventRow, own_ns: f64) {
        let Some(duration_ns) = call.duration_ns else { return };
        let class = self.classes.entry(call.class_id).or_insert_with(OfClass::new);
        *class.raw.entry(low(duration_ns)).or_default() += 1;
        let Some(nested_ns) = call.nested_cost_ns else {
            class.without = None;
            return;
        };
        let without_ns = without_nested_ns(duration_ns, nested_ns, own_ns);
        if let Some(without) = &mut class.without {
            // OK because it is neither negative nor above the duration.
            *without.entry(low(without_ns as u64)).or_default() += 1;
            class.most_ns = class.most_ns.max(without_ns);
        }
    }

    /// What [`CallDurations::add`] needs of classes, ns by class.
    #[must_use]
    pub fn own_ns(classes: &[ClassRow]) -> HashMap<u32, f64> {
        classes.iter().map(|class| (class.class_id, class.stamps_ns.unwrap_or(0.0))).collect()
    }

    /// Those of another part of the recording.
    pub fn merge(&mut self, other: Self) {
        for (class_id, other) in other.classes {
            let class = self.classes.entry(class_id).or_insert_with(OfClass::new);
            for (low, count) in other.raw {
                *class.raw.entry(low).or_default() += count;
            }
            class.without = class.without.take().zip(other.without).map(|(mut without, other)| {
                for (low, count) in other {
                    *without.entry(low).or_default() += count;
                }
                without
            });
            class.most_ns = class.most_ns.max(other.most_ns);
        }
    }

    /// Durations of a class as they were recorded.
    #[must_use]
    pub fn raw(&self, class_id: u32) -> Binned {
        self.classes.get(&class_id).map_or_else(Vec::new, |class| binned(&class.raw))
    }

    /// The same without nested probes, and the longest, ns; empty where a call does not say what they cost.
    #[must_use]
    pub fn without_nested(&self, class_id: u32) -> (Binned, f64) {
        let class = self.classes.get(&class_id);
        let without = class.and_then(|class| Some((class.without.as_ref()?, class.most_ns)));
        without.map_or((Vec::new(), 0.0), |(without, most_ns)| (binned(without), most_ns))
    }

    /// Calls of this class were timed.
    #[must_use]
    pub fn has(&self, class_id: u32) -> bool {
        self.classes.contains_key(&class_id)
    }
}

impl OfClass {
    fn new() -> Self {
        Self { raw: BTreeMap::new(), without: Some(BTreeMap::new()), most_ns: 0.0 }
    }
}

/// A call's duration without what nested probes cost beyond its own part, ns.
#[must_use]
pub fn without_nested_ns(duration_ns: u64, nested_ns: u64, own_ns: f64) -> f64 {
    (duration_ns as f64 - (nested_ns as f64 - own_ns).max(0.0)).max(0.0)
}

/// Lower end of the bucket that holds a duration.
fn low(ns: u64) -> u64 {
    let shift = shift(ns);
    ns >> shift << shift
}

fn shift(ns: u64) -> u32 {
    (u64::BITS - ns.leading_zeros()).saturating_sub(BITS)
}

fn binned(buckets: &BTreeMap<u64, u64>) -> Binned {
    let of = |(low, count): (&u64, &u64)| (*low, low.saturating_add(1 << shift(*low)), *count);
    buckets.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{CallContext, CallPlace};

    fn call(class_id: u32, duration_ns: Option<u64>, nested_cost_ns: Option<u64>) -> EventRow {
        EventRow {
            time_ns: 0,
            class_id,
            pid: 1,
            tid: 1,
            duration_ns,
            args: [None; 6],
            nested_cost_ns,
            place: CallPlace::default(),
            context: CallContext::default(),
        }
    }

    #[test]
    fn a_bucket_holds_its_durations_and_is_narrow() {
        for ns in (0..70).flat_map(|bit| {
            let around = 1_u64.checked_shl(bit).unwrap_or(u64::MAX);
            [around.saturating_sub(1), around, around.saturating_add(1), around.saturating_add(around / 3)]
        }) {
            let mut durations = CallDurations::default();
            durations.add(&call(1, Some(ns), Some(0)), 0.0);
            let [(low, high, 1)] = durations.raw(1)[..] else { panic!("{ns}") };
            assert!(low <= ns && (ns < high || high == u64::MAX), "{low} {ns} {high}");
            assert!(high - low == 1 || (high - low) as f64 <= ns as f64 / 2048.0, "{low} {ns} {high}");
            assert_eq!(ns < 4096, high - low == 1);
        }
    }

    #[test]
    fn parts_add_up_and_a_call_that_does_not_say_makes_it_unknown() {
        let calls = [
            call(1, Some(1_000), Some(300)),
            call(1, Some(1_000), Some(50)),
            call(1, None, None),
            call(2, Some(70), Some(0)),
        ];
        let mut all = CallDurations::default();
        calls.iter().for_each(|call| all.add(call, 100.0));
        assert_eq!(all.raw(1), [(1_000, 1_001, 2)]);
        assert_eq!(all.without_nested(1), (vec![(800, 801, 1), (1_000, 1_001, 1)], 1_000.0));
        let mut parts = CallDurations::default();
        for call in &calls {
            let mut part = CallDurations::default();
            part.add(call, 100.0);
            parts.merge(part);
        }
        assert_eq!(parts, all);
        let mut more = CallDurations::default();
        more.add(&call(1, Some(5), None), 100.0);
        parts.merge(more);
        assert_eq!((parts.without_nested(1).0, parts.raw(1).len()), (vec![], 2));
        assert!(parts.has(2) && !parts.has(3) && parts.raw(3).is_empty());
    }
}
