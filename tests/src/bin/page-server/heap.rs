//! The program's memory, counted: the system's allocator behind a function that gets the bytes of each allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Every allocation and reallocation passes here with its bytes: a function that a tracer can sum up.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn page_server_allocates(bytes: u64) -> u64 {
    // Fails only while a thread ends, when nobody asks any more.
    let _ = BYTES.try_with(|sum| sum.set(sum.get() + bytes));
    black_box(bytes)
}

/// Bytes that this thread has asked for.
pub fn bytes() -> u64 {
    BYTES.get()
}

/// The system's allocator, counted.
pub struct Counted;

// SAFETY: all is left to the system's allocator; the counting allocates nothing (the thread local has a constant
// first value and no destructor) and does not unwind.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        page_server_allocates(layout.size() as u64);
        // SAFETY: what the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: what the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        page_server_allocates(layout.size() as u64);
        // SAFETY: what the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        page_server_allocates(size as u64);
        // SAFETY: what the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
