//! In which order the kernels of a caller are called: the paper reads it in the source, here the recorded calls say it.

use super::figures::Kernel;
use anyhow::{Context, Result};
use profiler_core::recording::{ClassRow, EventRow};
use profiler_user::recording::Stream;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Where kernels stand in their callers, by function and context: the mean part of the caller's time that has passed when they begin. Of those that are in no
/// timed call: when the first one began.
#[derive(Debug, Default)]
pub struct Positions(BTreeMap<(String, Option<String>), f64>);

impl Positions {
    /// The position of a kernel; one that is not known stands last.
    pub fn of(&self, kernel: &Kernel) -> f64 {
        let key = (kernel.function.clone(), kernel.context.clone());
        self.0.get(&key).copied().unwrap_or(f64::INFINITY)
    }

    /// Reads the recorded calls.
    ///
    /// # Errors
    ///
    /// The recording cannot be read.
    pub fn read(recording: &Path) -> Result<Positions> {
        let mut stream = Stream::open(recording).context("the recording of a slice")?;
        let names: HashMap<u32, String> =
            stream.table::<ClassRow>()?.into_iter().map(|class| (class.class_id, class.name)).collect();
        let mut calls = Vec::new();
        stream.each(|row: EventRow| {
            calls.push(Call {
                begin_ns: row.time_ns,
                duration_ns: row.duration_ns,
                tid: row.tid,
                class: row.class_id,
                outer: row.place.outer_class,
            });
        })?;
        let name = |class: u32| names.get(&class).cloned();
        let named = |((class, outer), at): ((u32, Option<u32>), f64)| {
            let outer = match outer {
                Some(outer) => Some(name(outer)?),
                None => None,
            };
            Some(((name(class)?, outer), at))
        };
        Ok(Positions(positions(&calls).into_iter().filter_map(named).collect()))
    }
}

/// A recorded call.
#[derive(Clone, Copy, Debug)]
struct Call {
    begin_ns: u64,
    duration_ns: Option<u64>,
    tid: u32,
    class: u32,
    outer: Option<u32>,
}

/// Positions by class and class of the caller.
fn positions(calls: &[Call]) -> BTreeMap<(u32, Option<u32>), f64> {
    let mut of: HashMap<(u32, u32), Vec<(u64, u64)>> = HashMap::new();
    for call in calls {
        let duration_ns = call.duration_ns.unwrap_or(0);
        of.entry((call.tid, call.class)).or_default().push((call.begin_ns, duration_ns));
    }
    of.values_mut().for_each(|calls| calls.sort_unstable());
    // The part of the caller's time that has passed.
    let passed = |call: &Call, outer: u32| {
        let callers = of.get(&(call.tid, outer))?;
        let next = callers.partition_point(|(begin_ns, _)| *begin_ns <= call.begin_ns);
        let (begin_ns, duration_ns) = *callers.get(next.checked_sub(1)?)?;
        let after_ns = call.begin_ns - begin_ns;
        (after_ns < duration_ns).then(|| after_ns as f64 / duration_ns as f64)
    };
    let mut sums: BTreeMap<(u32, Option<u32>), (f64, f64)> = BTreeMap::new();
    let mut first: BTreeMap<u32, u64> = BTreeMap::new();
    for call in calls {
        match call.outer {
            None => {
                let first = first.entry(call.class).or_insert(call.begin_ns);
                *first = (*first).min(call.begin_ns);
            }
            Some(outer) => {
                if let Some(part) = passed(call, outer) {
                    let (sum, n) = sums.entry((call.class, Some(outer))).or_default();
                    (*sum, *n) = (*sum + part, *n + 1.0);
                }
            }
        }
    }
    let inside = sums.into_iter().map(|(key, (sum, n))| (key, sum / n));
    inside.chain(first.into_iter().map(|(class, begin_ns)| ((class, None), begin_ns as f64))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_earlier_in_its_caller_stands_before() {
        let call = |begin_ns, duration_ns, class, outer| Call {
            begin_ns,
            duration_ns: Some(duration_ns),
            tid: 1,
            class,
            outer,
        };
        let calls = [
            // The caller is written when it ends.
            call(110, 5, 2, Some(1)),
            call(160, 5, 3, Some(1)),
            call(100, 100, 1, None),
            call(1_050, 5, 3, Some(1)),
            call(1_000, 100, 1, None),
            // Its caller was not recorded.
            call(5_000, 5, 2, Some(1)),
            Call { tid: 9, ..call(120, 5, 4, Some(1)) },
        ];
        let found = positions(&calls);
        assert_eq!(found[&(2, Some(1))], 0.1);
        assert!((found[&(3, Some(1))] - 0.55).abs() < 1e-12);
        assert_eq!(found[&(1, None)], 100.0);
        assert_eq!(found.get(&(4, Some(1))), None);
        let told = Positions(BTreeMap::from([(("f".to_owned(), None), 0.5)]));
        let kernel = |function: &str| Kernel {
            function: function.to_owned(),
            context: None,
            calls: 1,
            outcome: super::super::figures::Outcome::None { reason: String::new(), inputs: vec![] },
        };
        assert_eq!((told.of(&kernel("f")), told.of(&kernel("g"))), (0.5, f64::INFINITY));
    }
}
