//! The recording on disk: a directory of Parquet segments and `meta.json`.
//!
//! What: one table per row type of [`profiler_core::recording`], cut into segments
//! `TABLE-NNNNN.parquet` that any Parquet reader opens. Why segments: a Parquet file has its index at the
//! end, so an unfinished one cannot be read; a segment is encoded in memory, written to `NAME.tmp`, synced
//! and renamed every few seconds, and a killed agent loses at most the rows since then. Why the low-level
//! Parquet writer without Arrow: the tables are fixed, and a third of the binary would be Arrow.
//!
//! In: rows and [`Meta`](profiler_core::recording::Meta), as values. Out: files, or a
//! [`Recording`](profiler_core::recording::Recording) in memory. [`Writer`] does the work where it is called;
//! [`WriterHandle`] does it on a thread of its own with bounded memory, so that the agent's loop never waits
//! for a disk. Rows that find no room are counted, never dropped silently.
//!
//! It does not aggregate, symbolize or compute: `profiler_core::report` does, from what [`open`] returns.
//! The columns are described in `docs/formats.md`; a test compares the two.

mod cell;
mod dir;
mod event_table;
mod read;
mod rows;
mod schema;
mod segment;
mod stream;
mod thread;
mod writer;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

pub use cell::{Column, ColumnSpec, ColumnType, Encoding, Table};
pub use dir::{Dir, Overwrite};
pub(crate) use read::merge as merged;
pub use read::{OpenError, open, open_for_report, open_without_events};
pub use rows::Rows;
pub use schema::{TableSpec, tables};
pub use stream::Stream;
pub use thread::{WriterHandle, WriterOptions};
pub use writer::{Finished, Writer};

use std::path::PathBuf;

/// Name of the file that makes a directory a recording.
pub const META_FILE: &str = "meta.json";

/// Why a recording could not be created or ended.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The path has no last component (`/`, `..`).
    #[error("cannot create a recording at '{path}': the path names no directory of its own; write for example '-o run.tithe'", path = .0.display())]
    BadPath(PathBuf),
    /// The parent directory could not be opened.
    #[error("cannot open the directory '{path}' to create a recording in it: {source}; create it first: mkdir -p '{path}'", path = .path.display())]
    Parent {
        /// Parent directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The path exists and is a symbolic link or not a directory.
    #[error("cannot create a recording at '{path}': something that is not a directory (or a symbolic link, which is not followed) is there; remove it or choose another name with -o", path = .0.display())]
    NotADirectory(PathBuf),
    /// The directory belongs to somebody else.
    #[error("cannot create a recording at '{path}': the directory belongs to user {uid}, not to you; choose another name with -o", path = .path.display())]
    ForeignOwner {
        /// Directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The directory has files that no recording has.
    #[error("cannot create a recording in '{path}': the directory is not empty and '{file}' is not part of a recording; choose another name with -o, or use --force to write beside it", path = .path.display())]
    NotOurs {
        /// Directory.
        path: PathBuf,
        /// The first foreign file seen.
        file: String,
    },
    /// Some other system call failed.
    #[error("cannot {what} '{path}': {source}", path = .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// `meta.json` could not be encoded.
    #[error("cannot encode {META_FILE}: {0}")]
    Meta(serde_json::Error),
    /// The writer thread is gone.
    #[error(
        "the recording's writer thread ended early; the last rows are lost, segments already written can be read with 'tithe report'"
    )]
    ThreadGone,
}
