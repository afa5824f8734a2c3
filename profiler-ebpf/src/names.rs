//! Names of classes of operations: from an argument to the number of its class.

use crate::atomic::fetch_add;
use crate::class::count;
use crate::maps::{OPERATION_NAMES, operation_counters};
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::{bpf_probe_read_user, bpf_probe_read_user_str};
use core::ffi::c_void;
use profiler_common::operation::{
    ARGUMENT_INT, ARGUMENT_NONE, ARGUMENT_SLICE, ARGUMENT_STRING, NAME_BYTES, OperationControl,
    OperationName, OperationState,
};

/// The class of an operation that begins.
#[inline(always)]
pub fn class_of(
    operation: u32,
    control: *const OperationControl,
    shared: *mut OperationState,
    argument: impl Fn(u32) -> u64,
) -> u32 {
    // SAFETY: a live map value that the agent wrote before the operation was attached.
    let (kind, index, base, other, end) = unsafe {
        (
            (*control).argument_kind,
            (*control).argument,
            (*control).base_class,
            (*control).other_class,
            (*control).end_class,
        )
    };
    if kind == ARGUMENT_NONE {
        return base;
    }
    let value = argument(index);
    let mut name = OperationName { operation, kind, bytes: [0; NAME_BYTES] };
    let to = (&raw mut name.bytes).cast::<c_void>();
    let read = if kind == ARGUMENT_STRING {
        // SAFETY: room for `NAME_BYTES`; the helper checks the address itself.
        unsafe { bpf_probe_read_user_str(to, NAME_BYTES as u32, value as *const c_void) >= 0 }
    } else if kind == ARGUMENT_SLICE {
        let length = argument(index + 1);
        // A name of full length keeps its last byte as zero, as that of a string does.
        let length = if length > NAME_BYTES as u64 - 1 { NAME_BYTES as u64 - 1 } else { length };
        // SAFETY: as above.
        unsafe {
            bpf_probe_read_user(to, (length & (NAME_BYTES as u64 - 1)) as u32, value as *const c_void) == 0
        }
    } else {
        let value = if kind == ARGUMENT_INT { i64::from(value as i32) as u64 } else { value };
        // SAFETY: 64 bytes, aligned to 8 by their place behind two u32 at the start of the value.
        unsafe { to.cast::<u64>().write_unaligned(value) };
        true
    };
    if !read {
        if let Some(counters) = operation_counters(base) {
            count!(counters, unread, 1);
        }
        return base;
    }
    if let Some(class) = known(&name) {
        return class;
    }
    // SAFETY: a live map value.
    if unsafe { (&raw const (*shared).next_class).read_volatile() } >= u64::from(end) {
        return other;
    }
    // SAFETY: as above.
    let class = fetch_add(unsafe { &raw mut (*shared).next_class }, 1);
    if class >= u64::from(end) {
        return other;
    }
    let class = class as u32;
    if OPERATION_NAMES.insert(&name, class, u64::from(BPF_NOEXIST)).is_ok() {
        return class;
    }
    // Another thread saw the name at the same moment: its number counts, and this one stays empty.
    known(&name).unwrap_or(other)
}

#[inline(always)]
fn known(name: &OperationName) -> Option<u32> {
    // SAFETY: entries are never changed or removed while the programs run.
    unsafe { OPERATION_NAMES.get(name).copied() }
}
