//! Diagnostics that the programs log through aya-log, for `--verbose`.

use super::KernelError;
use aya::Ebpf;
use aya_log::EbpfLogger;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// What the programs logged: things that should not happen, one line each.
pub struct KernelLog {
    logger: EbpfLogger<Lines>,
    lines: Lines,
}

/// aya-log speaks to the `log` crate; this is the smallest logger that keeps what it is told.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl log::Log for Lines {
    fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{}: {}", record.level().as_str().to_lowercase(), record.args());
        // OK to go on after a panic elsewhere: the list is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn flush(&self) {}
}

impl KernelLog {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let lines = Lines::default();
        let logger = EbpfLogger::init_with_logger(ebpf, lines.clone())
            .map_err(|error| KernelError::Object(format!("no log ring: {error}")))?;
        Ok(Self { logger, lines })
    }

    /// Takes the lines logged since the last call.
    #[must_use]
    pub fn take(&mut self) -> Vec<String> {
        self.logger.flush();
        std::mem::take(&mut *self.lines.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for KernelLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.logger.as_fd()
    }
}
