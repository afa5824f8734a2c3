//! A target that serves pages: 120 routes of real work (compression, search, sorting, hashing, JSON, templates) whose
//! popularity follows Zipf's law.
//!
//! A request is one call of `serve_request`, whose first argument is the route (`GET /compress/6`), and ends with
//! `request_served`. Its measure is the bytes
//! of its large allocations: the sum of the arguments of `page_server_allocates`, and what `serve_request` returns. Users,
//! phases, truth and commands are those of `profiler_tests::requests`.

mod heap;
mod pages;

use anyhow::{Result, bail};
use pages::Site;
use profiler_tests::requests::{self, Kind, Program};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char};
use std::hint::black_box;

#[global_allocator]
static HEAP: heap::Counted = heap::Counted;

struct Server {
    kinds: Vec<Kind>,
    site: Site,
}

/// A user's connection.
pub struct Session<'a> {
    site: &'a Site,
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
    naked_asm!("push rbp", "mov rbp, rsp", "call {serve}", "pop rbp", "ret", serve = sym serve)
}

/// The end of a request, which gets its measure. A probe at the return of [`serve_request`] would have to step.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn request_served(measure: u64) -> u64 {
    naked_asm!("push rbp", "mov rbp, rsp", "mov rax, rdi", "pop rbp", "ret")
}

/// What is in between.
///
/// # Safety
///
/// As [`serve_request`].
unsafe extern "C" fn serve(kind: *const c_char, session: *mut Session<'_>, parameter: u64) -> u64 {
    // SAFETY: as demanded of the caller.
    let (kind, session) = unsafe { (CStr::from_ptr(kind), &mut *session) };
    let before = heap::bytes();
    let page = requests::type_of(kind).and_then(|route| session.site.page(route, parameter));
    let measure = heap::bytes() - before;
    session.failed = page.map(|page| drop(black_box(page))).err();
    request_served(measure)
}

impl Program for &'static Server {
    type Session = Session<'static>;
    const NAME: &'static str = "page-server";

    fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn open(&self, _user: u32) -> Result<Session<'static>> {
        Ok(Session { site: &self.site, failed: None })
    }

    fn serve(&self, session: &mut Session<'static>, kind: &CStr, parameter: u64) -> Result<u64> {
        // SAFETY: the name is a C string, the session is this thread's.
        let measure = unsafe { serve_request(kind.as_ptr(), session, parameter) };
        match session.failed.take() {
            None => Ok(measure),
            Some(error) => bail!("{}: {error:#}", kind.to_string_lossy()),
        }
    }
}

fn main() -> Result<()> {
    let server = Server { kinds: pages::kinds(), site: Site::build()? };
    // Lives as long as the program.
    requests::main(&&*Box::leak(Box::new(server)))
}
