//! The few SQLite calls that the load needs, over the C interface.

use super::own::{Slot, clocked, counted};
use anyhow::{Context, Result, bail};
use libsqlite3_sys as ffi;
use std::ffi::{CStr, CString};
use std::ptr;

/// One connection, used by one thread.
pub struct Database(*mut ffi::sqlite3);

/// A prepared statement of a [`Database`], which it must not outlive.
pub struct Statement<'d> {
    raw: *mut ffi::sqlite3_stmt,
    database: &'d Database,
}

impl Database {
    /// Opens a database file, or a private one in memory for `:memory:`; `file:...` is a URI with options.
    pub fn open(path: &str) -> Result<Database> {
        let name = CString::new(path)?;
        let mut raw = ptr::null_mut();
        let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_URI;
        let flags = flags | ffi::SQLITE_OPEN_NOMUTEX;
        // SAFETY: `name` ends with a zero byte and lives over the call; `raw` is written by it. SQLite was built
        // threadsafe, and NOMUTEX holds because a connection stays on its thread.
        let code = unsafe { ffi::sqlite3_open_v2(name.as_ptr(), &mut raw, flags, ptr::null()) };
        // The handle exists even if opening failed, and must be closed then.
        let database = Database(raw);
        database.check(code).with_context(|| format!("cannot open the database {path}"))?;
        // SAFETY: `raw` is an open connection.
        unsafe { ffi::sqlite3_busy_timeout(database.0, 10_000) };
        Ok(database)
    }

    /// Runs statements without parameters.
    pub fn run(&self, sql: &str) -> Result<()> {
        let text = CString::new(sql)?;
        // SAFETY: the connection is open, `text` lives over the call, and no callback is given.
        let run =
            || unsafe { ffi::sqlite3_exec(self.0, text.as_ptr(), None, ptr::null_mut(), ptr::null_mut()) };
        let code = clocked(Slot::Exec, run);
        self.check(code).with_context(|| format!("cannot run \"{sql}\""))
    }

    /// Prepares one statement.
    pub fn prepare(&self, sql: &str) -> Result<Statement<'_>> {
        let text = CString::new(sql)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the connection is open, `text` ends with a zero byte (length -1) and lives over the call.
        let code = unsafe { ffi::sqlite3_prepare_v2(self.0, text.as_ptr(), -1, &mut raw, ptr::null_mut()) };
        self.check(code).with_context(|| format!("cannot prepare \"{sql}\""))?;
        Ok(Statement { raw, database: self })
    }

    fn check(&self, code: i32) -> Result<()> {
        if code == ffi::SQLITE_OK {
            return Ok(());
        }
        // SAFETY: errmsg accepts any handle that open returned, also null, and returns a string that stays valid
        // until the next call on this connection, which this thread makes later.
        let message = unsafe { CStr::from_ptr(ffi::sqlite3_errmsg(self.0)) };
        bail!("sqlite: {} ({code})", message.to_string_lossy())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: statements borrow the database, so that none is left; close accepts null.
        unsafe { ffi::sqlite3_close(self.0) };
    }
}

impl Statement<'_> {
    /// Binds a number to parameter `index` (from 1).
    pub fn bind(&mut self, index: i32, value: i64) -> Result<()> {
        counted(Slot::Bind);
        // SAFETY: the statement is prepared and not running: `rows` resets it.
        self.database.check(unsafe { ffi::sqlite3_bind_int64(self.raw, index, value) })
    }

    /// Binds a text to parameter `index` (from 1).
    pub fn bind_text(&mut self, index: i32, value: &str) -> Result<()> {
        let length = i32::try_from(value.len())?;
        // SAFETY: as `bind`; TRANSIENT makes SQLite copy the bytes before it returns.
        self.database.check(unsafe {
            ffi::sqlite3_bind_text(self.raw, index, value.as_ptr().cast(), length, ffi::SQLITE_TRANSIENT())
        })
    }

    /// How often the statement sorted, by SQLite's own count.
    pub fn sorts(&self) -> u64 {
        // SAFETY: the statement is prepared, and used by this thread only; nothing is reset.
        let sorts = unsafe { ffi::sqlite3_stmt_status(self.raw, ffi::SQLITE_STMTSTATUS_SORT, 0) };
        u64::from(sorts.cast_unsigned())
    }

    /// Runs the statement to its end, with the sum of the first column over its rows.
    pub fn rows(&mut self) -> Result<i64> {
        let mut sum = 0_i64;
        let code = loop {
            // SAFETY: the statement is prepared, and used by this thread only.
            match clocked(Slot::Step, || unsafe { ffi::sqlite3_step(self.raw) }) {
                ffi::SQLITE_ROW => {
                    counted(Slot::Column);
                    // SAFETY: a row is there, and a column that is missing reads as 0.
                    sum = sum.wrapping_add(unsafe { ffi::sqlite3_column_int64(self.raw, 0) });
                }
                code => break code,
            }
        };
        // SAFETY: the statement is prepared. The result repeats the error of the last step.
        clocked(Slot::Reset, || unsafe { ffi::sqlite3_reset(self.raw) });
        if code == ffi::SQLITE_DONE { Ok(sum) } else { self.database.check(code).map(|()| sum) }
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        // SAFETY: made by prepare and finalised once.
        unsafe { ffi::sqlite3_finalize(self.raw) };
    }
}
