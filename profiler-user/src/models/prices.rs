//! What is taken off each call for the probes that timed it.

use crate::recording::{OpenError, Stream, merged};
use profiler_core::recording::{CallDurations, ClassRow, EventRow, HistogramRow, Recording, WindowRow};
use profiler_core::report::OwnPrice;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Which price is taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prices {
    /// What the recording shows, as its report has it: what a pair of sites measured in this target, where the function has one.
    InPlace,
    /// What calibration found on the host: what a run has of its own calls while it goes on, too.
    Host,
}

/// The price of each of these classes, and what it is known to. `is_wanted`: the class's calls are read.
///
/// # Errors
/// A segment is of a later format.
///
/// # Cost
/// One pass over the events, whose durations are held in buckets.
pub(super) fn read(
    stream: &mut Stream,
    classes: &HashMap<u32, ClassRow>,
    is_wanted: impl Fn(u32) -> bool,
    prices: Prices,
) -> Result<BTreeMap<u32, OwnPrice>, OpenError> {
    // Pairs of functions whose calls are not read may lend what they measured.
    let is_pair_of_any = |class: &&ClassRow| class.stamps_of.is_some() || is_wanted(class.class_id);
    let mut kept: Vec<ClassRow> = classes.values().filter(is_pair_of_any).cloned().collect();
    let measured: HashSet<u32> = kept.iter().filter_map(|class| class.stamps_of).collect();
    kept.extend(
        classes.values().filter(|c| measured.contains(&c.class_id) && !is_wanted(c.class_id)).cloned(),
    );
    kept.sort_by_key(|class| class.class_id);
    let ids: HashSet<u32> = kept.iter().map(|class| class.class_id).collect();
    let own_ns = CallDurations::own_ns(&kept);
    let mut durations = CallDurations::default();
    stream.each(|row: EventRow| {
        if is_wanted(row.class_id) {
            durations.add(&row, own_ns.get(&row.class_id).copied().unwrap_or(0.0));
        }
    })?;
    let (mut windows, mut histograms) = (Vec::new(), Vec::new());
    stream.each(|row: WindowRow| windows.extend(ids.contains(&row.class_id).then_some(row)))?;
    stream.each(|row: HistogramRow| histograms.extend(ids.contains(&row.class_id).then_some(row)))?;
    let recording = Recording::of_calls(stream.meta().clone(), kept, windows, merged(histograms), durations);
    let mut own = OwnPrice::of_classes(&recording);
    own.retain(|id, _| is_wanted(*id));
    if prices == Prices::Host {
        // It is off by as much as that in place differs, at least.
        for own in own.values_mut() {
            let error_ns = own.error_ns.max((own.median_ns - own.taken_ns).abs() / 2.0);
            *own = OwnPrice { median_ns: own.taken_ns, error_ns, ..*own };
        }
    }
    Ok(own)
}
