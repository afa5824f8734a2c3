//! The writer: rows in, segments out; where it is called, on the caller's thread.
//!
//! A full disk does not end a run: encoded segments wait in memory (at most [`PENDING_BYTES`]) and are tried
//! again at every roll; beyond that the oldest are dropped and their rows counted in
//! `losses.rows_not_written`.

use super::cell::{Column, Table};
use super::dir::{Dir, Overwrite};
use super::rows::Rows;
use super::schema::{TableSpec, tables};
use super::segment;
use super::{META_FILE, RecordingError};
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::TypePtr;
use profiler_core::recording::{FrameRow, Meta};
use std::collections::VecDeque;
use std::path::Path;

/// A segment is closed early at this size: what one write and one reader's memory should hold.
const SEGMENT_BYTES: usize = 8 << 20;
/// Encoded segments kept while the disk takes none.
const PENDING_BYTES: usize = 16 << 20;
/// Room kept on the disk for the end of the run: `meta.json` and the small tables (windows, classes, ledger), without
/// which the large ones say nothing.
const RESERVE_BYTES: usize = 128 << 10;
/// Part of the reserve that is `meta.json`'s.
const META_RESERVE_BYTES: usize = 32 << 10;

/// How a recording ended on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Finished {
    /// Rows on disk.
    pub rows: u64,
    /// Bytes on disk, without `meta.json`.
    pub bytes: u64,
    /// Rows lost; also in `meta.json`.
    pub rows_not_written: u64,
}

/// One table being written.
struct TableWriter {
    spec: TableSpec,
    schema: TypePtr,
    properties: WriterPropertiesPtr,
    /// The row group being filled.
    columns: Vec<Column>,
    rows: usize,
    /// The segment being encoded.
    segment: Option<SerializedFileWriter<Vec<u8>>>,
    segment_rows: u64,
    /// Number of the last segment.
    number: u32,
}

/// An encoded segment that waits for the disk.
struct Pending {
    name: String,
    bytes: Vec<u8>,
    rows: u64,
}

/// Writes one recording.
pub struct Writer {
    dir: Dir,
    tables: Vec<TableWriter>,
    pending: VecDeque<Pending>,
    finished: Finished,
    /// The disk refused the last write.
    failing: bool,
    notices: Vec<String>,
}

impl Writer {
    /// Creates the directory `path` (see [`Dir::create`]) for `owner` (uid, gid) and its `meta.json`.
    ///
    /// # Errors
    /// The directory cannot be had, or `meta.json` cannot be written.
    pub fn create(
        path: &Path,
        owner: Option<(u32, u32)>,
        overwrite: Overwrite,
        meta: &Meta,
    ) -> Result<Self, RecordingError> {
        let dir = Dir::create(path, owner, overwrite)?;
        let json = serde_json::to_string(meta).map_err(RecordingError::Meta)?;
        let tables = tables()
            .into_iter()
            .map(|spec| TableWriter {
                schema: segment::schema(spec.name, &spec.columns),
                properties: segment::properties(&spec.columns, &json),
                columns: spec.columns.iter().map(|c| Column::new(c.ty)).collect(),
                spec,
                rows: 0,
                segment: None,
                segment_rows: 0,
                number: 0,
            })
            .collect();
        let writer = Self {
            dir,
            tables,
            pending: VecDeque::new(),
            finished: Finished::default(),
            failing: false,
            notices: Vec::new(),
        };
        writer.write_meta(meta)?;
        // OK to ignore: a disk that has no room for it now has none for much else.
        let _ = writer.dir.reserve(META_FILE, RESERVE_BYTES);
        Ok(writer)
    }

    fn write_meta(&self, meta: &Meta) -> Result<(), RecordingError> {
        let mut json = serde_json::to_vec_pretty(meta).map_err(RecordingError::Meta)?;
        json.push(b'\n');
        self.dir.write_file(META_FILE, &json).map_err(|source| RecordingError::Io {
            what: "write",
            path: self.dir.path().join(META_FILE),
            source,
        })
    }

    /// Appends rows to their table. They are on disk after the next [`Writer::roll`].
    pub fn push<R: Table>(&mut self, rows: &[R]) {
        let table = &mut self.tables[R::INDEX];
        let mut lost = 0;
        for row in rows {
            row.put(&mut table.columns);
            table.rows += 1;
            if table.rows >= segment::ROW_GROUP {
                lost += table.flush_group();
            }
        }
        // Between pushes only: the rows of one push (a stack's frames) share a segment.
        if table.segment.as_ref().is_some_and(|s| s.bytes_written() >= SEGMENT_BYTES) {
            let (segment, more) = table.close_segment();
            lost += more;
            self.pending.extend(segment);
            self.write_pending();
        }
        self.lose(lost);
    }

    /// Appends any rows; writes files at once.
    pub fn push_rows(&mut self, rows: Rows) {
        match rows {
            Rows::Classes(r) => self.push(&r),
            Rows::Windows(r) => self.push(&r),
            Rows::Histograms(r) => self.push(&r),
            Rows::Events(r) => self.push(&r),
            Rows::Samples(r) => self.push(&r),
            Rows::TrapSamples(r) => self.push(&r),
            Rows::Stacks(r) => self.push(&r),
            Rows::ReplaceStacks(r) => self.replace_stacks(&r),
            Rows::Ledger(r) => self.push(&r),
            Rows::Plans(r) => self.push(&r),
            Rows::Changes(r) => self.push(&r),
            Rows::Steps(r) => self.push(&r),
            Rows::CallSites(r) => self.push(&r),
            Rows::Tails(r) => self.push(&r),
            Rows::Words(r) => self.push(&r),
            Rows::OpenCalls(r) => self.push(&r),
            Rows::Beside(r) => self.push(&r),
            Rows::OperationClasses(r) => self.push(&r),
            Rows::Operations(r) => self.push(&r),
            Rows::OperationWindows(r) => self.push(&r),
            Rows::OperationHistograms(r) => self.push(&r),
            Rows::OperationCycles(r) => self.push(&r),
            Rows::File { name, bytes } => {
                self.pending.push_back(Pending { name, bytes, rows: 1 });
                self.write_pending();
            }
        }
    }

    /// Writes all stacks once more (with lines and inlined calls) and removes the segments that held them
    /// before, once the new one is on disk. Until then a reader takes the later rows of a stack.
    pub fn replace_stacks(&mut self, rows: &[FrameRow]) {
        self.roll();
        let earlier = self.tables[FrameRow::INDEX].number;
        self.push(rows);
        self.roll();
        if self.pending.is_empty() {
            for number in 1..=earlier {
                // A segment that could not be removed only costs space: the reader prefers the later rows.
                let _ = self.dir.remove(&segment_name(FrameRow::NAME, number));
            }
        }
    }

    /// Closes every table's segment and brings it to the disk. Call it every few seconds.
    pub fn roll(&mut self) {
        let mut lost = 0;
        for table in &mut self.tables {
            let (segment, more) = table.close_segment();
            lost += more;
            self.pending.extend(segment);
        }
        self.lose(lost);
        self.write_pending();
    }

    /// Writes what is left, then `meta` with the final number of lost rows.
    ///
    /// # Errors
    /// `meta.json` cannot be written. The one from the start is still there then.
    pub fn finish(mut self, meta: &Meta) -> Result<Finished, RecordingError> {
        self.roll();
        self.write_small();
        let lost = self.pending.iter().map(|p| p.rows).sum();
        self.lose(lost);
        let mut meta = meta.clone();
        meta.losses.rows_not_written = meta.losses.rows_not_written.max(self.finished.rows_not_written);
        self.write_meta(&meta)?;
        Ok(self.finished)
    }

    /// Gives up the reserve, and writes what of the waiting segments fits into it, smallest first.
    fn write_small(&mut self) {
        // Fails only if there was no reserve.
        let _ = self.dir.release(META_FILE);
        let mut room = RESERVE_BYTES - META_RESERVE_BYTES;
        self.pending.make_contiguous().sort_by_key(|segment| segment.bytes.len());
        while let Some(segment) = self.pending.front().filter(|segment| segment.bytes.len() <= room) {
            if self.dir.write_file(&segment.name, &segment.bytes).is_err() {
                break;
            }
            // A page is the least that a file takes.
            room = room.saturating_sub(segment.bytes.len().next_multiple_of(4096));
            self.finished.rows += segment.rows;
            self.finished.bytes += segment.bytes.len() as u64;
            self.pending.pop_front();
        }
    }

    /// Rows lost so far.
    #[must_use]
    pub fn rows_not_written(&self) -> u64 {
        self.finished.rows_not_written
    }

    /// Messages for the user since the last call: at most one when writing starts to fail, one when it works
    /// again.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Writes a file that is no table, at once. Trouble shows as a notice.
    pub fn write_file(&mut self, name: &str, bytes: &[u8]) {
        if let Err(error) = self.dir.write_file(name, bytes) {
            self.notices.push(format!("cannot write {name} of the recording: {error}"));
        }
    }

    fn lose(&mut self, rows: u64) {
        self.finished.rows_not_written += rows;
    }

    fn write_pending(&mut self) {
        while let Some(segment) = self.pending.front() {
            if let Err(error) = self.dir.write_file(&segment.name, &segment.bytes) {
                self.refused(&error);
                break;
            }
            self.finished.rows += segment.rows;
            self.finished.bytes += segment.bytes.len() as u64;
            self.pending.pop_front();
        }
        // Only when everything is out: a disk at the brink would make us say both things at every roll.
        if self.failing && self.pending.is_empty() {
            self.failing = false;
            self.notices
                .push(format!("the recording at '{}' is being written again", self.dir.path().display()));
        }
        let mut waiting: usize = self.pending.iter().map(|p| p.bytes.len()).sum();
        while waiting > PENDING_BYTES {
            let Some(oldest) = self.pending.pop_front() else { break };
            waiting -= oldest.bytes.len();
            self.lose(oldest.rows);
        }
    }

    fn refused(&mut self, error: &std::io::Error) {
        if !self.failing {
            self.failing = true;
            self.notices.push(format!(
                "cannot write the recording at '{}': {error}; the run goes on, up to {} MiB of rows wait in memory, \
                 more are lost and counted; make room on that file system",
                self.dir.path().display(),
                PENDING_BYTES >> 20
            ));
        }
    }
}

impl TableWriter {
    /// Encodes the row group; returns the number of rows lost (0, unless the encoder fails).
    fn flush_group(&mut self) -> u64 {
        if self.rows == 0 {
            return 0;
        }
        let rows = std::mem::take(&mut self.rows) as u64;
        let result = self.encode();
        for column in &mut self.columns {
            column.clear();
        }
        match result {
            Ok(()) => {
                self.segment_rows += rows;
                0
            }
            // Encoding into memory fails on no known input; if it does, the segment is unusable.
            Err(_) => {
                self.segment = None;
                rows + std::mem::take(&mut self.segment_rows)
            }
        }
    }

    fn encode(&mut self) -> Result<(), parquet::errors::ParquetError> {
        let segment = match &mut self.segment {
            Some(segment) => segment,
            none => {
                let writer =
                    SerializedFileWriter::new(Vec::new(), self.schema.clone(), self.properties.clone())?;
                none.insert(writer)
            }
        };
        segment::write_group(segment, &self.columns)
    }

    /// Ends the segment; returns it, if it has rows, and the number of rows lost.
    fn close_segment(&mut self) -> (Option<Pending>, u64) {
        let lost = self.flush_group();
        let Some(segment) = self.segment.take() else { return (None, lost) };
        let rows = std::mem::take(&mut self.segment_rows);
        match segment.into_inner() {
            Ok(bytes) => {
                self.number += 1;
                (Some(Pending { name: segment_name(self.spec.name, self.number), bytes, rows }), lost)
            }
            Err(_) => (None, lost + rows),
        }
    }
}

/// File name of a segment: `events-00001.parquet`.
fn segment_name(table: &str, number: u32) -> String {
    format!("{table}-{number:05}.parquet")
}
