//! SQLite's memory, counted: its own allocator behind a function that gets the bytes of each allocation.

use anyhow::{Result, bail, ensure};
use libsqlite3_sys as ffi;
use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

type Allocate = unsafe extern "C" fn(c_int) -> *mut c_void;
type Reallocate = unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void;

/// SQLite's own.
static ORIGINAL: OnceLock<(Allocate, Reallocate)> = OnceLock::new();

/// Every allocation and reallocation of SQLite from its allocator passes here with its bytes: a function that a tracer can
/// sum up.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn sqlite_allocates(bytes: u64) {
    // A probe at `push` is emulated by the kernel; what an unoptimised build begins with is stepped, at twenty times the price.
    naked_asm!("push rbp", "mov rbp, rsp", "call {add}", "pop rbp", "ret", add = sym add)
}

extern "C" fn add(bytes: u64) {
    BYTES.set(BYTES.get() + bytes);
}

/// Bytes that this thread has asked for.
pub fn bytes() -> u64 {
    BYTES.get()
}

unsafe extern "C" fn allocate(bytes: c_int) -> *mut c_void {
    sqlite_allocates(bytes as u64);
    // SAFETY: SQLite's own function, with the argument that SQLite gave.
    unsafe { ORIGINAL.get().map_or(std::ptr::null_mut(), |(allocate, _)| allocate(bytes)) }
}

unsafe extern "C" fn reallocate(old: *mut c_void, bytes: c_int) -> *mut c_void {
    sqlite_allocates(bytes as u64);
    // SAFETY: as `allocate`.
    unsafe { ORIGINAL.get().map_or(std::ptr::null_mut(), |(_, reallocate)| reallocate(old, bytes)) }
}

/// Puts the counting in front of SQLite's allocator. To be called before SQLite is used, by one thread.
///
/// Small allocations mostly come from each connection's lookaside buffer and do not pass here: what does are pages, sorters
/// and what is large. SQLite keeps no statistics of its own, which would be a lock that all threads share.
///
/// # Errors
///
/// SQLite refuses, as it does when it is in use already.
pub fn count_allocations() -> Result<()> {
    // SAFETY: an all-zero table of function pointers (each an Option) is valid; SQLite fills it in.
    let mut methods: ffi::sqlite3_mem_methods = unsafe { std::mem::zeroed() };
    // SAFETY: the option gets the table that it fills in.
    let got = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, &raw mut methods) };
    let (Some(own), Some(own_re)) = (methods.xMalloc, methods.xRealloc) else {
        bail!("SQLite does not name its allocator: {got}");
    };
    ORIGINAL.get_or_init(|| (own, own_re));
    methods.xMalloc = Some(allocate);
    methods.xRealloc = Some(reallocate);
    // SAFETY: each option gets the arguments that SQLite's documentation says, and no other thread uses SQLite yet.
    // SQLite copies the table of methods.
    let codes = unsafe {
        [
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut methods),
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_LOOKASIDE, 256, 16),
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0),
        ]
    };
    ensure!(codes.iter().all(|code| *code == ffi::SQLITE_OK), "SQLite refuses its options: {codes:?}");
    Ok(())
}
