//! Reading a recording back: all that is whole, and a line for each thing that is not.
//!
//! Truncated or damaged segments, unknown files and a missing `meta.json` never stop the reader and never
//! make it panic; they become lines of [`Recording::damage`]. Only a directory that holds no recording at
//! all, or one of a later format, is refused.

use super::META_FILE;
use super::cell::Table;
use super::segment;
use parquet::file::reader::{FileReader, SerializedFileReader};
use profiler_core::recording::{
    CallDurations, ChangeRow, ClassRow, EventRow, FORMAT_VERSION, FrameRow, HistogramRow, LedgerRow, Meta,
    OpenCallRow, OperationClassRow, PlanRow, Recording, SampleRow, WindowRow, WordRow, WordTally,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

/// Why a recording could not be opened at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be listed.
    #[error("cannot open the recording '{path}': {source}; a recording is the directory that 'tithe record -o' wrote", path = .path.display())]
    Directory {
        /// What was asked for.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// No readable `meta.json` and no whole segment.
    #[error("'{path}' is not a recording: it has no readable {META_FILE} and no whole segment; a recording is the directory that 'tithe record -o' wrote", path = .0.display())]
    NotARecording(PathBuf),
    /// Written by a later version.
    #[error("the recording '{path}' has format version {found}, this tithe reads versions up to {FORMAT_VERSION}; read it with the version that wrote it or a later one", path = .path.display())]
    TooNew {
        /// What was asked for.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// What becomes of table `events`, which may be larger than memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Events {
    Held,
    /// Only the durations, in buckets: [`Recording::event_durations`].
    Summed,
    LeftOut,
}

/// Opens a recording with all its tables.
///
/// # Errors
/// [`OpenError`]. Damage is no error: see [`Recording::damage`].
pub fn open(path: &Path) -> Result<Recording, OpenError> {
    load(path, Events::Held)
}

/// Opens a recording for its report: of its `events`, which may be larger than memory, only the durations are kept, in buckets
/// ([`Recording::event_durations`]).
///
/// # Errors
/// As [`open`].
pub fn open_for_report(path: &Path) -> Result<Recording, OpenError> {
    load(path, Events::Summed)
}

/// Opens a recording without its `events`, which may be large and which the report does not need.
///
/// # Errors
/// As [`open`].
pub fn open_without_events(path: &Path) -> Result<Recording, OpenError> {
    load(path, Events::LeftOut)
}

/// Segments found: table name to (number, path), in order.
pub(super) type Segments = BTreeMap<String, Vec<(u32, PathBuf)>>;

/// What is gathered while reading.
#[derive(Debug)]
pub(super) struct Loader {
    pub(super) segments: Segments,
    pub(super) damage: Vec<String>,
    /// A copy of the first `meta.json`, from any segment.
    meta_json: Option<String>,
    /// Highest version seen.
    version: u32,
}

fn load(path: &Path, wanted: Events) -> Result<Recording, OpenError> {
    let segments = list(path)?;
    let mut damage = Vec::new();
    let meta = read_meta(path, &mut damage);
    if let Some(Err(found)) = meta {
        return Err(OpenError::TooNew { path: path.to_owned(), found });
    }
    let mut loader = Loader::new(segments, damage);

    let classes = last_per_class(loader.table());
    let windows: Vec<WindowRow> = loader.table();
    let histograms: Vec<HistogramRow> = loader.table();
    let events: Vec<EventRow> = if wanted == Events::Held { loader.table() } else { Vec::new() };
    let event_durations = match wanted {
        Events::Summed => loader.durations(&classes),
        Events::Held | Events::LeftOut => CallDurations::default(),
    };
    let samples: Vec<SampleRow> = loader.table();
    let ledger: Vec<LedgerRow> = loader.table();
    let plans: Vec<PlanRow> = loader.table();
    // Recordings from before these tables have none.
    let open_calls: Vec<OpenCallRow> = loader.table();
    let operation_classes: Vec<OperationClassRow> = loader.table();
    let operations = loader.table();
    let operation_windows = loader.table();
    let operation_histograms = loader.table();
    let operation_cycles = loader.table();
    let changes: Vec<ChangeRow> = loader.table();
    let trap_samples = loader.table();
    let beside = loader.table();
    let stacks = loader.stacks();

    if let Some(found) = loader.later_version() {
        return Err(OpenError::TooNew { path: path.to_owned(), found });
    }
    let meta = loader.meta(path, meta)?;
    let words = loader.words(&meta);
    Ok(Recording {
        meta,
        classes,
        windows,
        histograms: merge(histograms),
        open_calls,
        beside,
        events,
        event_durations,
        samples,
        trap_samples,
        stacks,
        ledger,
        plans,
        words,
        operation_classes: last_per_operation_class(operation_classes),
        operations,
        operation_windows,
        operation_histograms,
        operation_cycles,
        changes,
        damage: loader.damage,
    })
}

/// `None`: not there or not readable. `Err(version)`: of a later format.
pub(super) fn read_meta(path: &Path, damage: &mut Vec<String>) -> Option<Result<Meta, u32>> {
    #[derive(serde::Deserialize)]
    struct Version {
        format_version: u32,
    }
    let text = match std::fs::read_to_string(path.join(META_FILE)) {
        Ok(text) => text,
        Err(error) => {
            damage.push(format!("{META_FILE}: {error}"));
            return None;
        }
    };
    // The version first: a later format may have other fields.
    match serde_json::from_str::<Version>(&text) {
        Ok(v) if v.format_version > FORMAT_VERSION => return Some(Err(v.format_version)),
        _ => {}
    }
    serde_json::from_str(&text).map(Ok).map_err(|e| damage.push(format!("{META_FILE}: {e}"))).ok()
}

/// The segments. Unfinished files (`.tmp`), plans and tables of later minor versions are passed over.
pub(super) fn list(path: &Path) -> Result<Segments, OpenError> {
    let io = |source| OpenError::Directory { path: path.to_owned(), source };
    let names = super::tables();
    let mut segments = Segments::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((table, number)) = name.strip_suffix(".parquet").and_then(|stem| stem.rsplit_once('-'))
        else {
            continue;
        };
        if let (Ok(number), true) = (number.parse(), names.iter().any(|t| t.name == table)) {
            segments.entry(table.to_owned()).or_default().push((number, entry.path()));
        }
    }
    for list in segments.values_mut() {
        list.sort();
    }
    Ok(segments)
}

impl Loader {
    pub(super) fn new(segments: Segments, damage: Vec<String>) -> Self {
        Self { segments, damage, meta_json: None, version: 0 }
    }

    /// All rows of a table.
    fn table<R: Table>(&mut self) -> Vec<R> {
        let mut rows = Vec::new();
        for (_, path) in self.segments.get(R::NAME).cloned().unwrap_or_default() {
            self.segment(&path, &mut rows);
        }
        rows
    }

    /// Durations in table `events`.
    fn durations(&mut self, classes: &[ClassRow]) -> CallDurations {
        let own_ns = CallDurations::own_ns(classes);
        let mut all = CallDurations::default();
        let add = |part: &mut CallDurations, row: &EventRow| {
            part.add(row, own_ns.get(&row.class_id).copied().unwrap_or(0.0));
        };
        self.by_segment(CallDurations::default, add, |part| all.merge(part));
        all
    }

    /// Table `words`, counted by word.
    fn words(&mut self, meta: &Meta) -> Vec<WordTally> {
        let none = || meta.words.iter().cloned().map(WordTally::new).collect::<Vec<_>>();
        let mut all = none();
        let add = |part: &mut Vec<WordTally>, row: &WordRow| {
            if let Some(tally) = part.iter_mut().find(|tally| tally.word.word == row.word) {
                tally.add(row);
            }
        };
        self.by_segment(none, add, |part| all.iter_mut().zip(&part).for_each(|(all, part)| all.merge(part)));
        all
    }

    /// What `add` makes of the rows of each segment of a table, a row group at a time: the table may be larger than memory. As with
    /// [`Loader::segment`], of a segment all rows count or none.
    fn by_segment<R: Table, S>(
        &mut self,
        none: impl Fn() -> S,
        add: impl Fn(&mut S, &R),
        mut whole: impl FnMut(S),
    ) {
        let mut rows: Vec<R> = Vec::new();
        for (_, path) in self.segments.get(R::NAME).cloned().unwrap_or_default() {
            let mut part = none();
            let result = self.open(&path).and_then(|reader| {
                let Some(reader) = reader else { return Ok(()) };
                for group in 0..reader.num_row_groups() {
                    rows.clear();
                    guarded(|| segment::read_group(&reader, group, &mut rows))?;
                    rows.iter().for_each(|row| add(&mut part, row));
                }
                Ok(())
            });
            match result {
                Ok(()) => whole(part),
                Err(error) => self.note_damage(&path, &error),
            }
        }
    }

    /// All rows of a segment, or a line of damage.
    fn segment<R: Table>(&mut self, path: &Path, rows: &mut Vec<R>) {
        let before = rows.len();
        let result = self.open(path).and_then(|reader| match reader {
            Some(reader) => guarded(|| segment::read_rows(&reader, rows)),
            None => Ok(()),
        });
        if let Err(error) = result {
            // All of a segment or none of it: half a segment would bias what is computed from it.
            rows.truncate(before);
            self.note_damage(path, &error);
        }
    }

    /// Opens a segment and takes note of what it says about itself; `None`: it is of a later format.
    pub(super) fn open(&mut self, path: &Path) -> Result<Option<SerializedFileReader<File>>, String> {
        let (reader, info) = guarded(|| {
            let file = File::open(path).map_err(|e| e.to_string())?;
            segment::open(file).map_err(|e| e.to_string())
        })?;
        let version = info.version.unwrap_or(0);
        self.version = self.version.max(version);
        if self.meta_json.is_none() {
            self.meta_json = info.meta_json;
        }
        Ok((version <= FORMAT_VERSION).then_some(reader))
    }

    pub(super) fn note_damage(&mut self, path: &Path, error: &str) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.damage.push(format!("{name}: not read, {error}"));
    }

    /// A segment of a later format was seen.
    pub(super) fn later_version(&self) -> Option<u32> {
        (self.version > FORMAT_VERSION).then_some(self.version)
    }

    /// The description of the run, as `meta.json` was read, or else its copy in a segment.
    pub(super) fn meta(&mut self, path: &Path, read: Option<Result<Meta, u32>>) -> Result<Meta, OpenError> {
        if let Some(Ok(meta)) = read {
            return Ok(meta);
        }
        let copy = self.meta_json.as_deref().and_then(|json| serde_json::from_str::<Meta>(json).ok());
        self.damage.push(format!(
            "{META_FILE} is missing or damaged; the copy from the start of the run is used, without the run's end"
        ));
        copy.ok_or_else(|| OpenError::NotARecording(path.to_owned()))
    }

    /// Table `stacks`; of a stack that is written twice, the rows of the later segment.
    fn stacks(&mut self) -> Vec<FrameRow> {
        let mut rows: Vec<FrameRow> = Vec::new();
        let mut owner: HashMap<u64, u32> = HashMap::new();
        let mut from: Vec<u32> = Vec::new();
        for (number, path) in self.segments.get(FrameRow::NAME).cloned().unwrap_or_default() {
            let before = rows.len();
            self.segment(&path, &mut rows);
            from.resize(rows.len(), number);
            owner.extend(rows[before..].iter().map(|r| (r.stack_id, number)));
        }
        let mut from = from.into_iter();
        rows.retain(|row| from.next() == owner.get(&row.stack_id).copied());
        rows
    }
}

/// The decoder is meant for files that somebody finished; whatever it does with others stays here.
pub(super) fn guarded<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err("the decoder gave up".to_owned()))
}

/// A later row of a class replaces an earlier one.
fn last_per_class(rows: Vec<ClassRow>) -> Vec<ClassRow> {
    let by_class: BTreeMap<u32, ClassRow> = rows.into_iter().map(|r| (r.class_id, r)).collect();
    by_class.into_values().collect()
}

/// The same for classes of operations.
fn last_per_operation_class(rows: Vec<OperationClassRow>) -> Vec<OperationClassRow> {
    let by_class: BTreeMap<u32, OperationClassRow> = rows.into_iter().map(|r| (r.class_id, r)).collect();
    by_class.into_values().collect()
}

/// Counts of the same bucket add up; buckets are in order.
pub(crate) fn merge(rows: Vec<HistogramRow>) -> Vec<HistogramRow> {
    let mut buckets: BTreeMap<(u32, u64, u64), u64> = BTreeMap::new();
    for row in rows {
        let count = buckets.entry((row.class_id, row.low_ns, row.high_ns)).or_default();
        *count = count.saturating_add(row.count);
    }
    buckets
        .into_iter()
        .map(|((class_id, low_ns, high_ns), count)| HistogramRow { class_id, low_ns, high_ns, count })
        .collect()
}
