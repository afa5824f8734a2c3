//! The debug sections of a file, read page by page as they are asked for, within a budget.
//!
//! Debug information may have gigabytes, and a question is about one function of it: what gimli does not look at stays in the file. A packed section
//! cannot be read in pieces: it is unpacked as a whole when its first byte is read, if it is not too large, and is kept until nobody asks for a while.

use crate::target_file::{Headers, TargetFile};
use gimli::{LittleEndian, Reader, ReaderOffsetId};
use object::elf::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, FileHeader64, SHT_NOBITS};
use object::read::elf::{CompressionHeader, FileHeader, SectionHeader};
use object::read::{CompressedData, CompressionFormat};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Read at once, bytes: a unit is read in order, a name of a string table by itself.
const PAGE: usize = 4096;
/// No name and no expression of a parameter is longer, bytes.
const MAX_SLICE: usize = 1 << 16;

/// Where a section lies.
#[derive(Debug, Clone)]
enum Place {
    /// As it is: offset in the file and size, bytes.
    File(u64, u64),
    Packed(Arc<Packed>),
}

/// A section that is packed.
#[derive(Debug)]
struct Packed {
    file: Arc<TargetFile>,
    /// Where it lies in the file, bytes.
    offset: u64,
    size: u64,
    format: CompressionFormat,
    /// What it has unpacked, bytes.
    unpacked: u64,
    state: Mutex<State>,
}

/// What became of a packed section.
#[derive(Debug, Default)]
struct State {
    bytes: Option<Arc<[u8]>>,
    /// It was unpacked before: the budget has it.
    is_charged: bool,
}

impl Packed {
    /// Unpacks it. What was given back since is unpacked again at no charge to the run; but no effort unpacks what is larger than all that it may read.
    fn bytes(&self, budget: &Budget) -> Result<Arc<[u8]>, gimli::Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = &state.bytes {
            return Ok(Arc::clone(bytes));
        }
        if state.is_charged {
            budget.allows(self.unpacked.max(self.size))?;
        } else {
            budget.spend(&budget.bytes, self.unpacked.max(self.size))?;
            state.is_charged = true;
        }
        let data = self.file.read_at(self.offset, self.size).map_err(|_| gimli::Error::Io)?;
        let packed = CompressedData { format: self.format, data: &data, uncompressed_size: self.unpacked };
        let bytes: Arc<[u8]> = Arc::from(packed.decompress().map_err(|_| gimli::Error::Io)?.as_ref());
        state.bytes = Some(Arc::clone(&bytes));
        Ok(bytes)
    }
}

/// The debug sections of a file.
#[derive(Debug)]
pub(super) struct DebugFile {
    file: Arc<TargetFile>,
    places: HashMap<String, Place>,
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
                None => Place::File(offset, size),
                Some((head, offset, size)) => {
                    let format = match head.ch_type(endian) {
                        ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                        ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                        _ => continue,
                    };
                    Place::Packed(Arc::new(Packed {
                        file: Arc::clone(file),
                        offset,
                        size,
                        format,
                        unpacked: head.ch_size(endian),
                        state: Mutex::default(),
                    }))
                }
            };
            places.entry(String::from_utf8_lossy(name).into_owned()).or_insert(place);
        }
        places.contains_key(".debug_info").then(|| Self { file: Arc::clone(file), places })
    }

    /// A section, of which something is read, or unpacked, once something asks for it, and as long as there is something left of the budget; one that is not
    /// there is empty.
    pub fn section(&self, name: &str, budget: &Rc<Budget>) -> Piece {
        Piece::of(match self.places.get(name) {
            None => Section::of(Source::Nothing, 0, budget),
            Some(Place::File(offset, size)) => {
                Section::of(Source::File(Arc::clone(&self.file), *offset), *size, budget)
            }
            Some(Place::Packed(packed)) => {
                Section::of(Source::Packed(Arc::clone(packed)), packed.unpacked, budget)
            }
        })
    }

    /// Gives back what was unpacked.
    pub fn rest(&self) {
        for place in self.places.values() {
            if let Place::Packed(packed) = place {
                packed.state.lock().unwrap_or_else(PoisonError::into_inner).bytes = None;
            }
        }
    }

    /// Sections that are held unpacked, by their names.
    #[cfg(test)]
    pub fn unpacked(&self) -> Vec<&str> {
        let holds =
            |place: &Place| matches!(place, Place::Packed(p) if p.state.lock().unwrap().bytes.is_some());
        let mut names: Vec<&str> =
            self.places.iter().filter(|(_, place)| holds(place)).map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }
}

/// What may still be read: memory and time.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: Cell<u64>,
    /// Nothing larger is unpacked, bytes.
    largest: u64,
    reads: Cell<u64>,
    is_spent: Cell<bool>,
}

impl Budget {
    /// `bytes` of the file or of what is packed in it, and as many `reads` of single figures out of that. What a larger budget has paid for may be unpacked
    /// once more, if it is not larger than `largest`, bytes.
    pub fn within(largest: u64, bytes: u64, reads: u64) -> Rc<Self> {
        Rc::new(Self {
            bytes: Cell::new(bytes),
            largest,
            reads: Cell::new(reads),
            is_spent: Cell::new(false),
        })
    }

    /// Bytes and reads that are left.
    pub fn left(&self) -> (u64, u64) {
        (self.bytes.get(), self.reads.get())
    }

    /// More was asked for than was left.
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    /// Whether so many bytes may be unpacked that are paid for.
    fn allows(&self, bytes: u64) -> Result<(), gimli::Error> {
        let is_allowed = bytes <= self.largest;
        self.is_spent.set(self.is_spent.get() || !is_allowed);
        if is_allowed { Ok(()) } else { Err(gimli::Error::Io) }
    }

    fn spend(&self, from: &Cell<u64>, amount: u64) -> Result<(), gimli::Error> {
        let left = from.get().checked_sub(amount);
        self.is_spent.set(self.is_spent.get() || left.is_none());
        from.set(left.ok_or(gimli::Error::Io)?);
        Ok(())
    }
}

/// Where the bytes of a section come from.
#[derive(Debug)]
enum Source {
    Nothing,
    /// From there on in the file.
    File(Arc<TargetFile>, u64),
    Packed(Arc<Packed>),
}

/// What of a section was read.
#[derive(Debug)]
struct Section {
    source: Source,
    size: usize,
    budget: Rc<Budget>,
    pages: RefCell<HashMap<usize, Arc<[u8]>>>,
    /// The page that was read last, by its first byte; of a packed section all.
    page: RefCell<(usize, Arc<[u8]>)>,
}

impl Section {
    fn of(source: Source, size: u64, budget: &Rc<Budget>) -> Self {
        Self {
            source,
            // OK because addresses have 64 bits here.
            size: size as usize,
            budget: Rc::clone(budget),
            pages: RefCell::default(),
            page: RefCell::new((0, Arc::from([]))),
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
        let (file, offset) = match &self.source {
            Source::Nothing => return Err(gimli::Error::Io),
            Source::Packed(packed) => {
                *self.page.borrow_mut() = (0, packed.bytes(&self.budget)?);
                return Ok(());
            }
            Source::File(file, offset) => (file, offset),
        };
        let begin = at / PAGE * PAGE;
        let known = self.pages.borrow().get(&begin).map(Arc::clone);
        let bytes = match known {
            Some(bytes) => bytes,
            None => {
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
