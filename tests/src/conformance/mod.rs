//! Makes the table of instruction forms that may be probed, and runs it again.

pub mod generate;
mod table;

pub use table::{Row, Tally, narrowed, prove, table_text};

use profiler_user::calibrate::ChildCommand;
use profiler_user::prober::{Kernel, KernelError, KernelOptions};

/// A kernel side with the smallest maps.
///
/// # Errors
/// It does not load.
pub fn small_kernel() -> Result<Kernel, KernelError> {
    Kernel::load(&KernelOptions {
        max_classes: 16,
        histogram_classes: 1,
        events_ring_bytes: 4096,
        samples_ring_bytes: 4096,
        ..KernelOptions::default()
    })
}

/// This program again, as the child.
#[must_use]
pub fn child_command(arguments: &[&str], variable: Option<&str>) -> ChildCommand {
    ChildCommand {
        program: "/proc/self/exe".into(),
        args: arguments.iter().map(Into::into).collect(),
        env: variable.into_iter().map(|name| (name.into(), "1".into())).collect(),
    }
}
