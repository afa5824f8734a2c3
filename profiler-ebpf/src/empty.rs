//! Programs that do nothing: the price of the trap alone, for calibration and benchmarks.

use core::ffi::c_void;

/// Returns 0 on any uprobe link. (On a session link that keeps the return.)
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn empty(_ctx: *mut c_void) -> u32 {
    0
}
