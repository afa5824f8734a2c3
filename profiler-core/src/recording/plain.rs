//! Rows for tests.

use super::{WindowKind, WindowRow};
use crate::class::ClassId;

/// A window of a class from `span.0` to `span.1`, ktime ns, with so many hits, all of them kept, and no end of a call; hits cost nothing.
pub(crate) fn plain_window(class: ClassId, kind: WindowKind, span: (u64, u64), hits: u64) -> WindowRow {
    WindowRow {
        class_id: class.0,
        kind,
        start_ns: span.0,
        end_ns: span.1,
        target_cpu_ns: span.1.saturating_sub(span.0),
        attempted: hits,
        kept: hits,
        gated: 0,
        dropped: 0,
        returns: 0,
        unwound: 0,
        omitted: 0,
        open: 0,
        sum_ns: 0,
        nested_cost_ns: 0,
        max_ns: 0,
        tripped: false,
        tau_ns: 0.0,
        ran_ns: None,
        ran_tid: None,
        link: None,
    }
}
