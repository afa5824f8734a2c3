//! The writer on a thread of its own.
//!
//! The agent's loop hands rows over and goes on; it never waits for the disk. Rows on their way are bounded
//! in bytes; when the bound is reached (a disk that hangs), rows are refused and counted.

use super::RecordingError;
use super::rows::Rows;
use super::writer::{Finished, Writer};
use profiler_core::recording::Meta;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How the writer's thread works.
#[derive(Debug, Clone, Copy)]
pub struct WriterOptions {
    /// A killed agent loses at most the rows of this long.
    pub roll_every: Duration,
    /// With more rows than that handed over and not yet encoded, bytes, records are to stay in their rings.
    pub room_bytes: usize,
    /// Bound on those rows, bytes: at least `room_bytes` and what one turn takes out of full rings.
    pub queue_bytes: usize,
}

impl Default for WriterOptions {
    /// 3 s; 8 MiB, which is 25,000 calls, and 48 MiB, which only a writer that hangs while all rings are full comes near.
    fn default() -> Self {
        Self { roll_every: Duration::from_secs(3), room_bytes: 8 << 20, queue_bytes: 48 << 20 }
    }
}

enum Message {
    Rows(Rows, usize),
    File(String, Vec<u8>),
    Finish(Box<Meta>),
}

#[derive(Default)]
struct Shared {
    queued_bytes: AtomicUsize,
    refused_rows: AtomicU64,
    lost_rows: AtomicU64,
    notices: Mutex<Vec<String>>,
}

/// The agent's end of the writer. Dropping it without [`WriterHandle::finish`] writes what was sent and
/// leaves the first `meta.json`.
pub struct WriterHandle {
    sender: Option<Sender<Message>>,
    thread: Option<JoinHandle<Result<Option<Finished>, RecordingError>>>,
    shared: Arc<Shared>,
    options: WriterOptions,
}

impl WriterHandle {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn spawn(writer: Writer, options: WriterOptions) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let shared = Arc::new(Shared::default());
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("tithe-writer".into())
                .spawn(move || run(writer, &receiver, &shared, options.roll_every))?
        };
        Ok(Self { sender: Some(sender), thread: Some(thread), shared, options })
    }

    /// There is room for what one turn takes out of the rings, full as they may be.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.queued_bytes.load(Ordering::Relaxed) <= self.options.room_bytes
    }

    /// There is room for so many bytes, though records are to stay in their rings.
    #[must_use]
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.shared.queued_bytes.load(Ordering::Relaxed).saturating_add(bytes) <= self.options.queue_bytes
    }

    /// Hands rows over without waiting. False: there was no room, the rows are lost and counted.
    pub fn send(&self, rows: impl Into<Rows>) -> bool {
        let rows = rows.into();
        if rows.is_empty() {
            return true;
        }
        let (count, bytes) = (rows.len(), rows.bytes());
        let before = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let room = before == 0 || before + bytes <= self.options.queue_bytes;
        let sent = room && self.sender.as_ref().is_some_and(|s| s.send(Message::Rows(rows, bytes)).is_ok());
        if !sent {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.shared.refused_rows.fetch_add(count, Ordering::Relaxed);
        }
        sent
    }

    /// Hands rows over and waits for room: for the end of a run, where nothing else is to be done. False: the thread is
    /// gone.
    pub fn send_patiently(&self, rows: impl Into<Rows>) -> bool {
        let rows = rows.into();
        // Room is for one sender, and this is it.
        while self.shared.queued_bytes.load(Ordering::Relaxed) + rows.bytes() > self.options.queue_bytes
            && self.shared.queued_bytes.load(Ordering::Relaxed) > 0
            && self.thread.as_ref().is_some_and(|t| !t.is_finished())
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.send(rows)
    }

    /// Has a file of its own written beside the tables (a plan's problem). Trouble shows as a notice.
    pub fn write_file(&self, name: String, bytes: Vec<u8>) {
        // OK to ignore: a thread that is gone is reported by `finish`.
        let _ = self.sender.as_ref().map(|s| s.send(Message::File(name, bytes)));
    }

    /// Rows lost so far, for `losses.rows_not_written`.
    #[must_use]
    pub fn rows_not_written(&self) -> u64 {
        self.shared.refused_rows.load(Ordering::Relaxed) + self.shared.lost_rows.load(Ordering::Relaxed)
    }

    /// Messages for the user since the last call (disk full, writing again).
    #[must_use]
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes everything sent so far and `meta` (its `rows_not_written` is filled in), and waits for it.
    ///
    /// # Errors
    /// `meta.json` cannot be written, or the thread is gone.
    pub fn finish(mut self, meta: &Meta) -> Result<Finished, RecordingError> {
        let mut meta = meta.clone();
        let refused = self.shared.refused_rows.load(Ordering::Relaxed);
        meta.losses.rows_not_written = refused;
        let sent = self.sender.as_ref().is_some_and(|s| s.send(Message::Finish(Box::new(meta))).is_ok());
        let mut finished = match self.join() {
            Some(Ok(result)) if sent => result?.ok_or(RecordingError::ThreadGone)?,
            _ => return Err(RecordingError::ThreadGone),
        };
        finished.rows_not_written += refused;
        Ok(finished)
    }

    fn join(&mut self) -> Option<std::thread::Result<Result<Option<Finished>, RecordingError>>> {
        self.sender = None;
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        // Nobody is left to be told of an error.
        let _ = self.join();
    }
}

fn run(
    mut writer: Writer,
    receiver: &Receiver<Message>,
    shared: &Shared,
    roll_every: Duration,
) -> Result<Option<Finished>, RecordingError> {
    let mut next_roll = Instant::now() + roll_every;
    loop {
        match receiver.recv_timeout(next_roll.saturating_duration_since(Instant::now())) {
            Ok(Message::Rows(rows, bytes)) => {
                writer.push_rows(rows);
                shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            Ok(Message::File(name, bytes)) => writer.write_file(&name, &bytes),
            Ok(Message::Finish(mut meta)) => {
                // Refused rows and lost rows are different rows.
                meta.losses.rows_not_written += writer.rows_not_written();
                return writer.finish(&meta).map(Some);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                writer.roll();
                return Ok(None);
            }
        }
        if Instant::now() >= next_roll {
            writer.roll();
            next_roll = Instant::now() + roll_every;
        }
        shared.lost_rows.store(writer.rows_not_written(), Ordering::Relaxed);
        let notices = writer.take_notices();
        if !notices.is_empty() {
            shared.notices.lock().unwrap_or_else(PoisonError::into_inner).extend(notices);
        }
    }
}
