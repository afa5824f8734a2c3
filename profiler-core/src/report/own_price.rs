//! What lies between the two time stamps of a function's calls by its own probes, as the report takes it out of durations: for who reads single calls.

use super::build::durations::Shape;
use crate::recording::{Recording, WindowRow};
use std::collections::BTreeMap;

/// What a class's own probes put into each of its calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnPrice {
    /// Median of calls, ns: from a pair of sites that measured it in this target, where the function has one, else what calibration found.
    pub median_ns: f64,
    /// What that is known to, ns: a quarter of its 95 % interval.
    pub error_ns: f64,
    /// What `nested_cost_ns` of each call holds for it, ns.
    pub taken_ns: f64,
}

impl OwnPrice {
    /// Of each class of the recording that says what was taken for it.
    ///
    /// # Cost
    /// Of each class one pass over the windows of all.
    #[must_use]
    pub fn of_classes(recording: &Recording) -> BTreeMap<u32, Self> {
        let price = |class: &crate::recording::ClassRow| {
            let windows: Vec<&WindowRow> =
                recording.windows.iter().filter(|w| w.class_id == class.class_id).collect();
            let (median_ns, error_ns) = Shape::of(class, &windows, recording).own.median()?;
            Some((class.class_id, Self { median_ns, error_ns, taken_ns: class.stamps_ns? }))
        };
        recording.classes.iter().filter(|c| c.stamps_of.is_none()).filter_map(price).collect()
    }
}
