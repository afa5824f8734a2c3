//! From what was named to classes and programs, before operations are followed.
//!
//! What: [`start`] goes through the operations that [`crate::config`] names; [`bounds`], [`probes`] and [`inner`] make classes of functions
//! and probes, [`tracepoints`] watches tracepoints. What happens to them then is decided in `profiler_core::clients::operations`.

mod bounds;
mod inner;
mod probes;
mod start;
mod tracepoints;

use crate::config::{Bounds, OperationConfig, OperationSpec};
use crate::failure::Failure;
use crate::prober::{LinkKind, MAX_OPERATIONS};

/// Classes of an operation beside those of names: its own, and `(other)`.
const RESERVED_CLASSES: u32 = 2;
/// Kernel memory bounds the classes of all operations together: 256 bytes per CPU each.
const MOST_CLASSES: usize = 65_536;

/// Classes that the kernel side must hold.
///
/// # Errors
/// They are too many.
pub fn operation_classes(asked: &OperationConfig) -> Result<u32, Failure> {
    let count = asked.operations.len();
    if count == 0 {
        return Ok(0);
    }
    if count > MAX_OPERATIONS {
        return Err(Failure::usage(format!(
            "{count} operations are asked for; at most {MAX_OPERATIONS} are followed"
        )));
    }
    let max_classes = asked.settings.max_classes;
    let all = count * (max_classes + RESERVED_CLASSES as usize);
    if all > MOST_CLASSES {
        return Err(Failure::usage(format!(
            "--adapt max_classes={max_classes} for {count} operations: at most {MOST_CLASSES} classes fit together"
        )));
    }
    // OK because it is at most 65,536.
    Ok(all as u32)
}

/// Kinds of links that follow these operations, of those that are made of functions and probes.
#[must_use]
pub fn link_kinds(operations: &[OperationSpec]) -> Vec<LinkKind> {
    let mut kinds = Vec::new();
    for operation in operations {
        match &operation.bounds {
            Bounds::One(bound) if bound.family() == 0 => {
                kinds.extend([LinkKind::OperationExits, LinkKind::OperationReturn]);
            }
            Bounds::Pair(bound, _) if bound.family() == 0 => {
                kinds.extend([LinkKind::OperationBegin, LinkKind::OperationEnd]);
            }
            Bounds::One(_) | Bounds::Pair(..) => {}
        }
    }
    kinds
}
