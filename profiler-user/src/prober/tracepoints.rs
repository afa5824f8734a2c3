//! Tracepoints as bounds of operations: a copy of the program for each, with its numbers in its code.

use super::object::Flavour;
use super::{Kernel, KernelError, sys};
use profiler_common::operation::{
    MARKER_TRACEPOINT_ARGUMENT, MARKER_TRACEPOINT_BOUND, MAX_OPERATIONS, TRACEPOINT_ENDS,
};
use profiler_common::settings::Settings;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

/// Arguments that a raw tracepoint may have (`MAX_BPF_FUNC_ARGS`).
pub const TRACEPOINT_ARGUMENTS: u32 = 12;

/// A tracepoint that begins or ends an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracepointBound {
    /// Its name, without category.
    pub name: String,
    /// The operation, below [`MAX_OPERATIONS`].
    pub operation: u32,
    /// It ends the operation.
    pub ends: bool,
    /// The argument that names the class, below [`TRACEPOINT_ARGUMENTS`].
    pub argument: Option<u32>,
}

/// Tracepoints bound operations, as long as it lives.
pub struct TracepointWatch {
    _links: Vec<OwnedFd>,
}

/// `r0 = value`: `BPF_ALU64 | BPF_MOV | BPF_K`.
fn set_result(value: u32) -> [u8; 8] {
    let [a, b, c, d] = value.to_ne_bytes();
    [0xb7, 0, 0, 0, a, b, c, d]
}

/// `r0 = *(u64 *)(r1 + 8 k)`: `BPF_LDX | BPF_MEM | BPF_DW`, the source register in the high half of the second byte.
fn load_argument(k: u32) -> [u8; 8] {
    // OK because k is below 12.
    let [low, high] = (8 * k as u16).to_ne_bytes();
    [0x79, 0x10, low, high, 0, 0, 0, 0]
}

/// Numbers of an attachment that is never made: the program as it is looked at by the verifier, with an argument.
pub(super) fn trial_values() -> [(i32, [u8; 8]); 2] {
    [(MARKER_TRACEPOINT_BOUND, set_result(0)), (MARKER_TRACEPOINT_ARGUMENT, load_argument(0))]
}

impl Kernel {
    /// Lets tracepoints, hit by the process `pid`, bound operations that are configured. Every process that hits them pays: look at
    /// `screened_other` of the operation's base class.
    ///
    /// # Errors
    /// [`KernelError::TracepointLink`]: ENOENT if there is no such tracepoint, EINVAL if it has no such argument. Or the
    /// kernel refuses the program.
    ///
    /// # Panics
    /// An operation or an argument is out of range.
    pub fn watch_tracepoints(
        &self,
        bounds: &[TracepointBound],
        pid: u32,
    ) -> Result<TracepointWatch, KernelError> {
        let settings = self.classes().settings();
        self.classes().set_settings(Settings { operation_pid: pid, ..settings });
        let mut links = Vec::new();
        // Ends first: a begin whose end passes before that one is watched would be matched with a later one.
        let ends = bounds.iter().filter(|b| b.ends);
        for bound in ends.chain(bounds.iter().filter(|b| !b.ends)) {
            assert!((bound.operation as usize) < MAX_OPERATIONS, "operation {}", bound.operation);
            assert!(bound.argument.is_none_or(|k| k < TRACEPOINT_ARGUMENTS), "argument {:?}", bound.argument);
            let word = bound.operation | if bound.ends { TRACEPOINT_ENDS } else { 0 };
            let values = [
                (MARKER_TRACEPOINT_BOUND, set_result(word)),
                (MARKER_TRACEPOINT_ARGUMENT, bound.argument.map_or_else(|| set_result(0), load_argument)),
            ];
            let program = self.programs.load_copy("operation_tracepoint", Flavour::RawTracepoint, &values)?;
            let failed = |source| KernelError::TracepointLink { name: bound.name.clone(), source };
            let name = CString::new(bound.name.as_str()).map_err(|error| failed(error.into()))?;
            // The link keeps the program.
            links.push(sys::open_raw_tracepoint(program.as_fd(), &name).map_err(failed)?);
        }
        Ok(TracepointWatch { _links: links })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_instructions() {
        // As `llvm-objdump -d` prints them: r0 = 259; r0 = *(u64 *)(r1 + 88).
        assert_eq!(set_result(TRACEPOINT_ENDS | 3), [0xb7, 0, 0, 0, 3, 1, 0, 0]);
        assert_eq!(load_argument(11), [0x79, 0x10, 88, 0, 0, 0, 0, 0]);
    }
}
