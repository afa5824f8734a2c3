//! A target that serves requests: real SQLite (its own C code), ten types of queries on one database in memory.
//!
//! A request is one call of `serve_request`, whose first argument is the name of its type, and ends with `request_served`: it
//! can be bounded by either or both, and told apart by that argument. Its measure is the bytes that SQLite asks of its allocator meanwhile: the sum
//! of the arguments of `sqlite_allocates`, and what `serve_request` returns. Users, phases, truth and commands are those of
//! `profiler_tests::requests`. With `--twins` every request is served twice, once through `serve_request_twin` and `request_served_twin`.

#[path = "../sqlite-load/database.rs"]
#[expect(dead_code, reason = "SQLite's count of sorts is the other load's")]
mod database;
mod memory;
#[path = "../sqlite-load/own.rs"]
#[expect(dead_code, reason = "this load counts nothing by them")]
mod own;
mod queries;

use anyhow::{Context, Result, bail, ensure};
use database::Database;
use profiler_tests::requests::{self, Kind, Program};
use queries::Store;
use std::arch::naked_asm;
use std::ffi::{CStr, c_char};

/// All sessions see the same database.
const NAME: &str = "file:/requests?vfs=memdb";

struct Requests {
    kinds: Vec<Kind>,
    store: Store,
    /// Keeps the database: it goes with its last connection.
    _first: Keeper,
}

/// A connection that nobody uses.
struct Keeper {
    _database: Database,
}

// SAFETY: nothing is called on the connection before it is closed, and SQLite was built threadsafe.
unsafe impl Sync for Keeper {}

struct Session<'a> {
    store: &'a Store,
    database: Database,
    failed: Option<anyhow::Error>,
}

/// The bound of a request.
///
/// # Safety
///
/// `kind` is a string that ends with a zero byte; `session` points to a session that this thread alone uses.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn serve_request(kind: *const c_char, session: *mut Session<'_>, parameter: u64) -> u64 {
    // Begins with an instruction that a probe does not have to step.
    naked_asm!("push rbp", "mov rbp, rsp", "call {serve}", "pop rbp", "ret", serve = sym serve::<false>)
}

/// The same code as [`serve_request`], for requests that nobody watches.
///
/// # Safety
///
/// As [`serve_request`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn serve_request_twin(
    kind: *const c_char,
    session: *mut Session<'_>,
    parameter: u64,
) -> u64 {
    naked_asm!("push rbp", "mov rbp, rsp", "call {serve}", "pop rbp", "ret", serve = sym serve::<true>)
}

/// The end of a request, which gets its measure. A probe at the return of [`serve_request`] would have to step.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn request_served(measure: u64) -> u64 {
    naked_asm!("push rbp", "mov rbp, rsp", "mov rax, rdi", "pop rbp", "ret")
}

/// The same code as [`request_served`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn request_served_twin(measure: u64) -> u64 {
    naked_asm!("push rbp", "mov rbp, rsp", "mov rax, rdi", "pop rbp", "ret")
}

/// What is in between.
///
/// # Safety
///
/// As [`serve_request`].
unsafe extern "C" fn serve<const TWIN: bool>(
    kind: *const c_char,
    session: *mut Session<'_>,
    parameter: u64,
) -> u64 {
    // SAFETY: as demanded of the caller.
    let (kind, session) = unsafe { (CStr::from_ptr(kind), &mut *session) };
    let before = memory::bytes();
    let served =
        requests::type_of(kind).and_then(|kind| session.store.serve(&session.database, kind, parameter));
    session.failed = served.err();
    let measure = memory::bytes() - before;
    if TWIN { request_served_twin(measure) } else { request_served(measure) }
}

/// What a request gave.
fn answer(session: &mut Session<'_>, kind: &CStr, measure: u64) -> Result<u64> {
    match session.failed.take() {
        None => Ok(measure),
        Some(error) => bail!("{}: {error:#}", kind.to_string_lossy()),
    }
}

impl Program for &'static Requests {
    type Session = Session<'static>;
    const NAME: &'static str = "sqlite-requests";

    fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn open(&self, _user: u32) -> Result<Session<'static>> {
        Ok(Session { store: &self.store, database: Database::open(NAME)?, failed: None })
    }

    fn serve(&self, session: &mut Session<'static>, kind: &CStr, parameter: u64) -> Result<u64> {
        // SAFETY: the name is a C string, the session is this thread's.
        let measure = unsafe { serve_request(kind.as_ptr(), session, parameter) };
        answer(session, kind, measure)
    }

    fn serve_twin(&self, session: &mut Session<'static>, kind: &CStr, parameter: u64) -> Result<u64> {
        // SAFETY: as `serve`.
        let measure = unsafe { serve_request_twin(kind.as_ptr(), session, parameter) };
        answer(session, kind, measure)
    }
}

fn main() -> Result<()> {
    ensure!(
        serve_request as *const () != serve_request_twin as *const ()
            && request_served as *const () != request_served_twin as *const (),
        "the linker put functions and their twins together"
    );
    memory::count_allocations()?;
    let database = Database::open(NAME)?;
    let store = Store::fill(&database, 1).context("cannot fill the database")?;
    let requests = Requests { kinds: queries::kinds(), store, _first: Keeper { _database: database } };
    // Lives as long as the program.
    requests::main(&&*Box::leak(Box::new(requests)))
}
