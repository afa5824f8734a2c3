//! Standard output and standard error: nothing else in the agent writes there.
//!
//! Why one place: names of the target's functions, files and threads are in almost every line, and whoever reads them is
//! often root. What goes out here has no characters that speak to a terminal, but the colours that the agent itself uses.

use profiler_core::text::{printable, printable_json, printable_text};
use std::fmt::Display;
use std::io::{self, Write};

/// The sequences that the agent writes: bold, dim, red, green, and back.
pub const SEQUENCES: [&str; 5] = ["\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m"];

/// A text for people, to standard output. Names in it must be lines already ([`printable`]).
///
/// # Errors
/// Standard output is closed or full.
pub fn text(text: &str) -> io::Result<()> {
    io::stdout().write_all(printable_text(text, &SEQUENCES).as_bytes())
}

/// JSON, to standard output; ends the line.
///
/// # Errors
/// Standard output is closed or full.
pub fn json(json: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(printable_json(json.trim_end()).as_bytes())?;
    out.write_all(b"\n")
}

/// One line that stays, to standard error.
pub fn note(line: impl Display) {
    // OK to ignore: there is nobody left to tell if standard error is closed.
    let _ = writeln!(io::stderr(), "tithe: {}", printable(&line.to_string()));
}

/// Lines that stay, to standard error. Names in them must be lines already ([`printable`]).
pub fn note_text(text: &str) {
    // OK to ignore, as above.
    let _ = writeln!(io::stderr(), "tithe: {}", printable_text(text, &[]));
}

/// Why the command failed, to standard error: one line or several.
pub fn failure(text: impl Display) {
    // OK to ignore, as above.
    let _ = writeln!(io::stderr(), "tithe: {}", printable_text(text.to_string().trim_end(), &[]));
}
