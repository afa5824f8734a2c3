//! Which recorded operations were taken in the same slice: in the same span in which all functions inside were attached.

use crate::recording::{OperationMeta, Recording};

/// The slices of an operation.
pub(super) struct Slices {
    /// Begins of the windows of functions inside, sorted, ktime ns.
    begins_ns: Vec<u64>,
}

impl Slices {
    pub(super) fn of(recording: &Recording, meta: &OperationMeta) -> Self {
        let inner = recording.windows.iter().filter(|w| meta.inner_classes.contains(&w.class_id));
        let mut begins_ns: Vec<u64> = inner.map(|w| w.start_ns).collect();
        begins_ns.sort_unstable();
        Self { begins_ns }
    }

    /// The slice in which an operation was recorded that began then, ktime ns. Nothing is recorded until the last of the functions is attached, so
    /// that a window that begins between two recorded operations parts them. Without functions inside all are in one slice.
    pub(super) fn number(&self, begin_ns: u64) -> usize {
        self.begins_ns.partition_point(|begun| *begun <= begin_ns)
    }
}
