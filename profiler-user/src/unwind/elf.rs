//! What unwinding needs of an ELF file: load segments and unwind tables. Only headers and those sections
//! are read, never the whole file.

use crate::target_file::{DebugLink, Headers, TargetFile};
use object::LittleEndian;
use object::elf::{FileHeader64, PF_X, PT_LOAD, SHF_COMPRESSED, SHT_NOBITS};
use object::read::ReadRef;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use std::ops::Range;
use std::sync::Arc;

/// Sections larger than this are not loaded: framehop then uses frame pointers.
const MAX_SECTION: u64 = 128 << 20;
/// Headers and tables together.
const MAX_READ: u64 = 2 * MAX_SECTION;
/// Linkers make four to a dozen loadable segments; with more than this each look-up takes too long.
const MAX_SEGMENTS: usize = 1 << 10;

/// A load segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Size in the file, bytes.
    pub size: u64,
    /// Virtual address.
    pub address: u64,
    /// Executable.
    pub exec: bool,
}

/// A section with its contents.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// Virtual addresses.
    pub range: Range<u64>,
    /// Contents.
    pub bytes: Arc<[u8]>,
}

/// Load segments, unwind tables, and what the symbolizer wants to know.
#[derive(Debug, Clone, Default)]
pub struct ElfInfo {
    /// Load segments.
    pub segments: Vec<Segment>,
    /// `.eh_frame`.
    pub eh_frame: Option<Section>,
    /// `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<Section>,
    /// `.debug_frame`, if it is not compressed and there is no `.eh_frame`.
    pub debug_frame: Option<Section>,
    /// Address range of `.text`.
    pub text: Option<Range<u64>>,
    /// Address range of `.got`.
    pub got: Option<Range<u64>>,
    /// It has a full symbol table (`.symtab`).
    pub has_symtab: bool,
    /// Size of all `.debug_*` sections in the file, bytes.
    pub debug_bytes: u64,
    /// What it says of its separate debug file.
    pub debug: DebugLink,
}

impl ElfInfo {
    /// Reads an x86-64 ELF file.
    ///
    /// # Errors
    /// What is wrong with the file, in words.
    pub fn read(file: &TargetFile) -> Result<Self, String> {
        Self::parse(&Headers::up_to(file, MAX_READ))
    }

    /// Reads an x86-64 ELF image in memory (the vDSO).
    ///
    /// # Errors
    /// As [`ElfInfo::read`].
    pub fn read_bytes(bytes: &[u8]) -> Result<Self, String> {
        Self::parse(bytes)
    }

    fn parse<'d, R: ReadRef<'d>>(data: R) -> Result<Self, String> {
        let e = |error: object::read::Error| error.to_string();
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(e)?;
        let endian = header.endian().map_err(e)?;
        let mut info = Self::default();
        for p in header.program_headers(endian, data).map_err(e)? {
            if p.p_type(endian) == PT_LOAD {
                if info.segments.len() >= MAX_SEGMENTS {
                    return Err(format!("it has more than {MAX_SEGMENTS} loadable segments"));
                }
                info.segments.push(Segment {
                    offset: p.p_offset(endian),
                    size: p.p_filesz(endian),
                    address: p.p_vaddr(endian),
                    exec: p.p_flags(endian) & PF_X == PF_X,
                });
            }
        }
        // Section headers may be stripped; the segments alone are enough for frame pointers.
        let Ok(sections) = header.sections(endian, data) else { return Ok(info) };
        for s in sections.iter() {
            let name = sections.section_name(endian, s).unwrap_or(b"");
            let (start, size) = (s.sh_addr(endian), s.sh_size(endian));
            let range = start..start.saturating_add(size);
            let load = || {
                if size == 0 || size > MAX_SECTION || s.sh_type(endian) == SHT_NOBITS {
                    return None;
                }
                let compressed = s.sh_flags(endian) & SHF_COMPRESSED == SHF_COMPRESSED;
                let bytes = s.data(endian, data).ok()?;
                (!compressed).then(|| Section { range: range.clone(), bytes: Arc::from(bytes) })
            };
            match name {
                b".eh_frame" => info.eh_frame = load(),
                b".eh_frame_hdr" => info.eh_frame_hdr = load(),
                b".debug_frame" => info.debug_frame = load(),
                b".text" => info.text = Some(range.clone()),
                b".got" => info.got = Some(range.clone()),
                b".symtab" => info.has_symtab = true,
                b".gnu_debuglink" if size < 4096 => {
                    let link = s.data(endian, data).unwrap_or(&[]).split(|b| *b == 0).next().unwrap_or(&[]);
                    info.debug.name = Some(String::from_utf8_lossy(link).into_owned());
                }
                b".note.gnu.build-id" if size < 4096 => {
                    info.debug.build_id = build_id(s.data(endian, data).unwrap_or(&[]));
                }
                _ => {}
            }
            if name.starts_with(b".debug_") || name.starts_with(b".zdebug_") {
                info.debug_bytes = info.debug_bytes.saturating_add(size);
            }
        }
        if info.eh_frame.is_some() {
            info.debug_frame = None;
        }
        Ok(info)
    }

    /// What to add to addresses of the file to get those of a mapping of it at `start` from file offset
    /// `offset`; `None` if no load segment lies there.
    ///
    /// `bias = start - (p_vaddr + (offset - p_offset))`
    #[must_use]
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        let contains = |s: &&Segment| {
            let first = s.offset & !(PAGE - 1);
            (first..s.offset.saturating_add(s.size)).contains(&offset)
        };
        // Segments may share a page: the executable one is the one whose code runs there.
        let segment = self.segments.iter().filter(contains).max_by_key(|s| s.exec)?;
        Some(start.wrapping_sub(segment.address.wrapping_add(offset).wrapping_sub(segment.offset)))
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        [&self.eh_frame, &self.eh_frame_hdr, &self.debug_frame]
            .into_iter()
            .flatten()
            .map(|s| s.bytes.len())
            .sum()
    }
}

/// The build id of a note section: sizes of owner and description, type, owner `GNU`, description.
fn build_id(note: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| note.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let (owner, size, kind) = (word(0)?, word(4)?, word(8)?);
    // Type 3 is NT_GNU_BUILD_ID.
    let right = (owner, kind, note.get(12..16)?) == (4, 3, b"GNU\0");
    let id = note.get(16..16_usize.checked_add(usize::try_from(size).ok()?)?)?;
    (right && !id.is_empty()).then(|| id.to_vec())
}
