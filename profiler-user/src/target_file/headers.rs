//! What `object` reads while it parses headers: with `pread`, kept, and bounded in sum.

use super::TargetFile;
use object::ReadRef;
use object::read::{ReadCache, ReadCacheOps};
use std::cell::Cell;
use std::ops::Range;

/// Headers, notes and names of sections take kilobytes; a Go program of 100,000 sections 6 MiB.
const MOST_BYTES: u64 = 32 << 20;

/// A file for `object`'s parsers. Reading past its bound is an error, as reading past the end of a file is.
#[derive(Debug)]
pub struct Headers<'f> {
    cache: ReadCache<Pread<'f>>,
    left: Cell<u64>,
}

impl<'f> Headers<'f> {
    /// For headers.
    #[must_use]
    pub fn of(file: &'f TargetFile) -> Self {
        Self::up_to(file, MOST_BYTES)
    }

    /// For at most `most` bytes, none of them twice.
    #[must_use]
    pub fn up_to(file: &'f TargetFile, most: u64) -> Self {
        Self { cache: ReadCache::new(Pread { file, at: 0 }), left: Cell::new(file.most().min(most)) }
    }

    fn spend(&self, bytes: u64) -> Result<(), ()> {
        self.left.set(self.left.get().checked_sub(bytes).ok_or(())?);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for &'a Headers<'_> {
    fn len(self) -> Result<u64, ()> {
        (&self.cache).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.spend(size)?;
        (&self.cache).read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let bytes = (&self.cache).read_bytes_at_until(range, delimiter)?;
        self.spend(bytes.len() as u64)?;
        Ok(bytes)
    }
}

/// Reads with `pread`: clones of a descriptor share their position, and several threads read one file.
#[derive(Debug)]
struct Pread<'f> {
    file: &'f TargetFile,
    at: u64,
}

impl ReadCacheOps for Pread<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.file.len())
    }

    fn seek(&mut self, pos: u64) -> Result<u64, ()> {
        self.at = pos;
        Ok(pos)
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        let read = self.file.read_some_at(buf, self.at).map_err(drop)?;
        self.at += read as u64;
        Ok(read)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), ()> {
        self.file.read_exact_at(buf, self.at).map_err(drop)?;
        self.at += buf.len() as u64;
        Ok(())
    }
}
