//! The debug sections of a file, read page by page as they are asked for, within a budget.
//!
//! Debug information may have gigabytes, and a question is about one function of it: what gimli does not look at stays in the file. A packed section
//! cannot be read in pieces: it is unpacked as a whole when something asks for it, if it is not too large.

use crate::target_file::{Headers, TargetFile};
use gimli::{LittleEndian, Reader, ReaderOffsetId};
use object::elf::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, FileHeader64, SHT_NOBITS};
use object::read::elf::{CompressionHeader, FileHeader, SectionHeader};
use object::read::{CompressedData, CompressionFormat};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Read at once, bytes: a unit is read in order, a name of a string table by itself.
const PAGE: usize = 4096;
/// No name and no expression of a parameter is longer, bytes.
const MAX_SLICE: usize = 1 << 16;

/// Where a section lies in the file.
#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    size: u64,
    /// How it is packed, and what it has unpacked, bytes.
    packed: Option<(CompressionFormat, u64)>,
}

/// The debug sections of a file.
#[derive(Debug)]
pub(super) struct DebugFile {
    file: Arc<TargetFile>,
    places: HashMap<String, Place>,
    /// Those that were unpacked.
    unpacked: HashMap<String, Arc<[u8]>>,
}

impl DebugFile {
    /// Looks where the sections lie. `None`: it has no debug information, or is no ELF file that can be read.
    pub fn of(file: &Arc<TargetFile>) -> Option<Self> {
        let headers = Headers::of(file);
        let header = FileHeader64::<object::LittleEndian>::parse(&headers).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, &headers).ok()?;
        let mut places = HashMap::new();
        for section in sections.iter() {
            let name = sections.section_name(endian, section).unwrap_or(b"");
            let (offset, size) = (section.sh_offset(endian), section.sh_size(endian));
            let is_inside = offset.checked_add(size).is_some_and(|end| end <= file.len());
            if !name.starts_with(b".debug_") || section.sh_type(endian) == SHT_NOBITS || !is_inside {
                continue;
            }
            let Ok(compression) = section.compression(endian, &headers) else { continue };
            let place = match compression {
                None => Place { offset, size, packed: None },
                Some((head, offset, size)) => {
                    let format = match head.ch_type(endian) {
                        ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                        ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                        _ => continue,
                    };
                    Place { offset, size, packed: Some((format, head.ch_size(endian))) }
                }
            };
            places.entry(String::from_utf8_lossy(name).into_owned()).or_insert(place);
        }
        places.contains_key(".debug_info").then(|| Self {
            file: Arc::clone(file),
            places,
            unpacked: HashMap::new(),
        })
    }

    /// A section, of which pages are read as long as there is something left of the budget; one that is not there is empty.
    pub fn section(&mut self, name: &str, budget: &Rc<Budget>) -> Result<Piece, gimli::Error> {
        let Some(place) = self.places.get(name).copied() else {
            return Ok(Piece::of(Section::empty(budget)));
        };
        let Some(packed) = place.packed else {
            return Ok(Piece::of(Section::in_file(&self.file, place, budget)));
        };
        let bytes = match self.unpacked.get(name) {
            Some(bytes) => Arc::clone(bytes),
            None => {
                let bytes = self.unpack(place, packed, budget)?;
                self.unpacked.insert(name.to_owned(), Arc::clone(&bytes));
                bytes
            }
        };
        Ok(Piece::of(Section::in_memory(bytes, budget)))
    }

    fn unpack(
        &self,
        place: Place,
        (format, size): (CompressionFormat, u64),
        budget: &Budget,
    ) -> Result<Arc<[u8]>, gimli::Error> {
        budget.spend(&budget.bytes, size.max(place.size))?;
        let data = self.file.read_at(place.offset, place.size).map_err(|_| gimli::Error::Io)?;
        let packed = CompressedData { format, data: &data, uncompressed_size: size };
        packed.decompress().map(|bytes| Arc::from(bytes.as_ref())).map_err(|_| gimli::Error::Io)
    }

    /// Gives back what was unpacked.
    pub fn rest(&mut self) {
        self.unpacked.clear();
    }
}

/// What may still be read: memory and time.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: Cell<u64>,
    reads: Cell<u64>,
    is_spent: Cell<bool>,
}

impl Budget {
    /// `bytes` of the file or of what is packed in it, and as many `reads` of single figures out of that.
    pub fn new(bytes: u64, reads: u64) -> Rc<Self> {
        Rc::new(Self { bytes: Cell::new(bytes), reads: Cell::new(reads), is_spent: Cell::new(false) })
    }

    /// Bytes and reads that are left.
    pub fn left(&self) -> (u64, u64) {
        (self.bytes.get(), self.reads.get())
    }

    /// More was asked for than was left.
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    fn spend(&self, from: &Cell<u64>, amount: u64) -> Result<(), gimli::Error> {
        let left = from.get().checked_sub(amount);
        self.is_spent.set(self.is_spent.get() || left.is_none());
        from.set(left.ok_or(gimli::Error::Io)?);
        Ok(())
    }
}

/// What of a section was read.
#[derive(Debug)]
struct Section {
    /// `None`: it is in memory, in `page`.
    file: Option<(Arc<TargetFile>, u64)>,
    size: usize,
    budget: Rc<Budget>,
    pages: RefCell<HashMap<usize, Arc<[u8]>>>,
    /// The page that was read last, by its first byte.
    page: RefCell<(usize, Arc<[u8]>)>,
}

impl Section {
    fn in_memory(bytes: Arc<[u8]>, budget: &Rc<Budget>) -> Self {
        Self {
            file: None,
            size: bytes.len(),
            budget: Rc::clone(budget),
            pages: RefCell::default(),
            page: RefCell::new((0, bytes)),
        }
    }

    fn empty(budget: &Rc<Budget>) -> Self {
        Self::in_memory(Arc::from([]), budget)
    }

    fn in_file(file: &Arc<TargetFile>, place: Place, budget: &Rc<Budget>) -> Self {
        Self {
            file: Some((Arc::clone(file), place.offset)),
            // OK because addresses have 64 bits here.
            size: place.size as usize,
            ..Self::empty(budget)
        }
    }

    /// Copies what stands at `at`, which lies inside the section.
    fn copy(&self, mut at: usize, mut to: &mut [u8]) -> Result<(), gimli::Error> {
        while !to.is_empty() {
            let is_here = {
                let page = self.page.borrow();
                at.checked_sub(page.0).is_some_and(|offset| offset < page.1.len())
            };
            if !is_here {
                self.turn(at)?;
            }
            let page = self.page.borrow();
            let from = page.1.get(at - page.0..).unwrap_or_default();
            let count = from.len().min(to.len());
            if count == 0 {
                return Err(gimli::Error::Io);
            }
            let (now, rest) = to.split_at_mut(count);
            now.copy_from_slice(&from[..count]);
            at += count;
            to = rest;
        }
        Ok(())
    }

    /// Makes the page that holds `at` the last one.
    fn turn(&self, at: usize) -> Result<(), gimli::Error> {
        let begin = at / PAGE * PAGE;
        let known = self.pages.borrow().get(&begin).map(Arc::clone);
        let bytes = match known {
            Some(bytes) => bytes,
            None => {
                let (file, offset) = self.file.as_ref().ok_or(gimli::Error::Io)?;
                let len = PAGE.min(self.size - begin);
                self.budget.spend(&self.budget.bytes, len as u64)?;
                let bytes = file.read_at(offset + begin as u64, len as u64).map_err(|_| gimli::Error::Io)?;
                let bytes: Arc<[u8]> = Arc::from(bytes);
                self.pages.borrow_mut().insert(begin, Arc::clone(&bytes));
                bytes
            }
        };
        *self.page.borrow_mut() = (begin, bytes);
        Ok(())
    }
}

/// A piece of a section, for gimli.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    section: Rc<Section>,
    start: usize,
    end: usize,
}

impl Piece {
    fn of(section: Section) -> Self {
        let end = section.size;
        Self { section: Rc::new(section), start: 0, end }
    }

    fn too_short(&self) -> gimli::Error {
        gimli::Error::UnexpectedEof(self.offset_id())
    }
}

impl Reader for Piece {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    fn empty(&mut self) {
        self.end = self.start;
    }

    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        if len > self.len() {
            return Err(self.too_short());
        }
        self.end = self.start + len;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.start.saturating_sub(base.start)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.start as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let at = usize::try_from(id.0).ok()?;
        (self.start..=self.end).contains(&at).then(|| at - self.start)
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let mut rest = self.clone();
        while !rest.is_empty() {
            if rest.read_u8()? == byte {
                return Ok(rest.start - 1 - self.start);
            }
        }
        Err(self.too_short())
    }

    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        if len > self.len() {
            return Err(self.too_short());
        }
        self.start += len;
        Ok(())
    }

    fn split(&mut self, len: usize) -> gimli::Result<Self> {
        let mut first = self.clone();
        first.truncate(len)?;
        self.start += len;
        Ok(first)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        if self.len() > MAX_SLICE {
            return Err(gimli::Error::Io);
        }
        let mut bytes = vec![0; self.len()];
        self.section.copy(self.start, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        self.to_string_lossy()
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        Ok(Cow::Owned(String::from_utf8_lossy(&self.to_slice()?).into_owned()))
    }

    fn read_slice(&mut self, buf: &mut [u8]) -> gimli::Result<()> {
        if buf.len() > self.len() {
            return Err(self.too_short());
        }
        let budget = &self.section.budget;
        budget.spend(&budget.reads, 1)?;
        self.section.copy(self.start, buf)?;
        self.start += buf.len();
        Ok(())
    }
}
