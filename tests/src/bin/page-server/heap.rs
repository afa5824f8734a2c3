//! The program's memory, counted: the system's allocator behind a function that gets the bytes of each large allocation.
//!
//! Pages make a thousand small allocations each; following them all would cost several times what the page does, and
//! no one would. Buffers, documents and tables are what tells requests apart.

use std::alloc::{GlobalAlloc, Layout, System};
use std::arch::naked_asm;
use std::cell::Cell;

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Smallest allocation that is counted, bytes.
const LARGE: usize = 192;

/// Every allocation and reallocation of at least [`LARGE`] bytes passes here: a function that a tracer can sum up.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn page_server_allocates(bytes: u64) {
    // A probe at `push` is emulated by the kernel; what an unoptimised build begins with is stepped, at twenty times the price.
    naked_asm!("push rbp", "mov rbp, rsp", "call {add}", "pop rbp", "ret", add = sym add)
}

extern "C" fn add(bytes: u64) {
    // Fails only while a thread ends, when nobody asks any more.
    let _ = BYTES.try_with(|sum| sum.set(sum.get() + bytes));
}

#[inline(always)]
fn note(bytes: usize) {
    if bytes >= LARGE {
        page_server_allocates(bytes as u64);
    }
}

/// Bytes that this thread has asked for in large allocations.
pub fn bytes() -> u64 {
    BYTES.get()
}

/// The system's allocator, counted.
pub struct Counted;

// SAFETY: all is left to the system's allocator; the counting allocates nothing (the thread local has a constant
// first value and no destructor) and does not unwind.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: what the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: what the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: what the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: what the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
