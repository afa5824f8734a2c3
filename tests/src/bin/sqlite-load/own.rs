//! What a thread of the load counts and clocks of its own calls, for whoever reads along: a file of pairs of numbers, calls and nanoseconds in them.
//!
//! It is off unless the thread asks for it; then a look at a flag is all that is left of it. What is only counted has no nanoseconds.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is counted, in the order of the file.
#[derive(Clone, Copy)]
pub enum Slot {
    /// The clock itself: two readings with nothing between them.
    Clock,
    /// `Worker::operation`.
    Operation,
    /// `Worker::order`.
    Order,
    /// `Worker::report`.
    Report,
    /// `sqlite3_step`, but for those of `sqlite3_exec`.
    Step,
    /// `sqlite3_reset`.
    Reset,
    /// `sqlite3_exec` of one statement.
    Exec,
    /// `sqlite3_bind_int64`; only counted.
    Bind,
    /// `sqlite3_column_int64`; only counted.
    Column,
    /// Sorts, by SQLite's own count; only counted.
    Sorts,
}

/// Number of [`Slot`]s.
const SLOTS: usize = Slot::Sorts as usize + 1;
/// Between two writes of the file: seldom enough to cost nothing, and often enough for counts of a second.
const BETWEEN_WRITES: Duration = Duration::from_millis(1);

/// Calls, and ns in them.
type Pair = (u64, u64);

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static PAIRS: [Cell<Pair>; SLOTS] = const { [const { Cell::new((0, 0)) }; SLOTS] };
}

/// Does the work; a thread that counts adds one call and its time.
pub fn clocked<T>(slot: Slot, work: impl FnOnce() -> T) -> T {
    if !IS_ON.get() {
        return work();
    }
    let begin = Instant::now();
    let result = work();
    add(slot, begin.elapsed());
    result
}

/// Counts a call, if this thread counts.
pub fn counted(slot: Slot) {
    if IS_ON.get() {
        add(slot, Duration::ZERO);
    }
}

fn add(slot: Slot, took: Duration) {
    PAIRS.with(|pairs| {
        let pair = &pairs[slot as usize];
        let (calls, ns) = pair.get();
        // OK because a call takes less than 500 years.
        pair.set((calls + 1, ns + took.as_nanos() as u64));
    });
}

/// The file of a thread that counts.
pub struct Kept {
    file: File,
    written: Instant,
}

impl Kept {
    /// Creates the file, and begins to count on this thread.
    pub fn begin(path: &Path) -> io::Result<Kept> {
        let kept = Kept { file: File::create(path)?, written: Instant::now() };
        IS_ON.set(true);
        kept.write()?;
        Ok(kept)
    }

    /// Between two operations: writes the counts, if it is time; `sorts` asks SQLite for its own.
    pub fn after_operation(&mut self, sorts: impl FnOnce() -> u64) -> io::Result<()> {
        clocked(Slot::Clock, || ());
        let now = Instant::now();
        if now - self.written < BETWEEN_WRITES {
            return Ok(());
        }
        self.written = now;
        PAIRS.with(|pairs| pairs[Slot::Sorts as usize].set((sorts(), 0)));
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let bytes: Vec<u8> = PAIRS.with(|pairs| {
            let numbers = pairs.iter().map(Cell::get).flat_map(|(calls, ns)| [calls, ns]);
            numbers.flat_map(u64::to_ne_bytes).collect()
        });
        self.file.write_all_at(&bytes, 0)
    }
}
