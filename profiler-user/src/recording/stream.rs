//! Reading single tables of a recording, a row group at a time.
//!
//! Why: `steps` may have more rows than fit into memory, and whoever looks at single operations needs few of them. What is held is one row group
//! (65,536 rows) and what the caller keeps. [`open`](super::open) reads whole tables instead.
//!
//! Damage never stops it. Of a damaged segment the row groups before the damage are delivered: whoever reads must know what is complete.

use super::cell::Table;
use super::read::{self, Loader, OpenError, guarded};
use super::segment;
use parquet::file::reader::FileReader;
use profiler_core::recording::Meta;
use std::path::{Path, PathBuf};

/// A recording, its tables still on the disk.
#[derive(Debug)]
pub struct Stream {
    path: PathBuf,
    meta: Meta,
    loader: Loader,
}

impl Stream {
    /// Opens a recording.
    ///
    /// # Errors
    /// [`OpenError`]. Damage is no error: see [`Stream::damage`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let segments = read::list(path)?;
        let mut damage = Vec::new();
        let read = read::read_meta(path, &mut damage);
        if let Some(Err(found)) = read {
            return Err(OpenError::TooNew { path: path.to_owned(), found });
        }
        let mut loader = Loader::new(segments, damage);
        if read.is_none() {
            // For its copy of `meta.json`. What is wrong with a segment is told when its rows are read.
            let paths: Vec<PathBuf> =
                loader.segments.values().flatten().map(|(_, path)| path.clone()).collect();
            paths.iter().find(|path| loader.open(path).is_ok());
        }
        if let Some(found) = loader.later_version() {
            return Err(OpenError::TooNew { path: path.to_owned(), found });
        }
        let meta = loader.meta(path, read)?;
        Ok(Self { path: path.to_owned(), meta, loader })
    }

    /// What was recorded, where, and how it ended.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Calls `row` with each row of a table, in the order in which they were written.
    ///
    /// # Errors
    /// A segment is of a later format.
    pub fn each<R: Table>(&mut self, mut row: impl FnMut(R)) -> Result<(), OpenError> {
        let mut rows = Vec::new();
        for (_, path) in self.loader.segments.get(R::NAME).cloned().unwrap_or_default() {
            let reader = match self.loader.open(&path) {
                Ok(Some(reader)) => reader,
                Ok(None) => {
                    let found = self.loader.later_version().unwrap_or_default();
                    return Err(OpenError::TooNew { path: self.path.clone(), found });
                }
                Err(error) => {
                    self.loader.note_damage(&path, &error);
                    continue;
                }
            };
            for group in 0..reader.num_row_groups() {
                let result = guarded(|| segment::read_group(&reader, group, &mut rows));
                if let Err(error) = result {
                    self.loader.note_damage(&path, &error);
                    rows.clear();
                    break;
                }
                rows.drain(..).for_each(&mut row);
            }
        }
        Ok(())
    }

    /// All rows of a table.
    ///
    /// # Errors
    /// As [`Stream::each`].
    pub fn table<R: Table>(&mut self) -> Result<Vec<R>, OpenError> {
        let mut rows = Vec::new();
        self.each(|row| rows.push(row))?;
        Ok(rows)
    }

    /// The table has segments.
    #[must_use]
    pub fn has<R: Table>(&self) -> bool {
        self.loader.segments.contains_key(R::NAME)
    }

    /// What could not be read, in words.
    #[must_use]
    pub fn damage(&self) -> &[String] {
        &self.loader.damage
    }
}
