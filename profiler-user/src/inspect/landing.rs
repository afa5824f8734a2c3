//! Landing pads: addresses of a function that the unwinder jumps to; and where functions without a symbol begin.
//!
//! Found through `.eh_frame_hdr` (binary search table) -> FDE -> language-specific data area -> call-site table.
//! Formats: Linux Standard Base 5.0, "Exception Frames"; the call-site table is that of the Itanium C++ ABI. Only the
//! encodings that GCC and LLVM emit on x86-64 are read; others are errors, and the caller then trusts nothing but the
//! function's first instruction.

use super::elf::ElfInfo;
use std::ops::Range;

/// An unwind table could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

/// The landing pads of the function that starts at `start`; none if it has no unwind data.
///
/// # Errors
/// Its unwind data is in a form that is not understood.
pub fn pads(elf: &ElfInfo, start: u64) -> Result<Vec<u64>, Unreadable> {
    let mut pads: Vec<u64> = pads_of_calls(elf, start)?.into_iter().map(|(_, pad)| pad).collect();
    pads.sort_unstable();
    pads.dedup();
    Ok(pads)
}

/// The same, each with the code whose calls lead to it when they throw.
///
/// # Errors
/// As [`pads`].
pub fn pads_of_calls(elf: &ElfInfo, start: u64) -> Result<Vec<(Range<u64>, u64)>, Unreadable> {
    // No such table in this file: nothing lands anywhere.
    if !elf.has_section(".gcc_except_table") && !elf.sections.is_empty() {
        return Ok(Vec::new());
    }
    let Some(header) = elf.sections.iter().find(|s| s.name == ".eh_frame_hdr") else { return Ok(Vec::new()) };
    let found = last_fde(elf, header.vaddr, header.size, start)?.filter(|(address, _)| *address == start);
    let Some((_, fde)) = found else { return Ok(Vec::new()) };
    let Some(lsda) = lsda_of(elf, fde)? else { return Ok(Vec::new()) };
    call_sites(elf, lsda, start)
}

/// Link-time address and size, bytes, of the function (or the part of one) that holds an address; none if no unwind data
/// tells of it.
///
/// # Errors
/// The unwind data is in a form that is not understood.
pub fn function_at(elf: &ElfInfo, vaddr: u64) -> Result<Option<(u64, u64)>, Unreadable> {
    Ok(function_before(elf, vaddr)?.filter(|(start, size)| vaddr - start < *size))
}

/// The same for the last function that begins at an address or before it, whether it holds the address or not.
///
/// # Errors
/// As [`function_at`].
pub fn function_before(elf: &ElfInfo, vaddr: u64) -> Result<Option<(u64, u64)>, Unreadable> {
    let Some(header) = elf.sections.iter().find(|s| s.name == ".eh_frame_hdr") else { return Ok(None) };
    let Some((address, fde)) = last_fde(elf, header.vaddr, header.size, vaddr)? else { return Ok(None) };
    let encoding = cie_of(elf, fde)?.pointer_encoding;
    let mut f = Reader::new(elf, fde + 8, 2 * width(encoding)?)?;
    let place = f.vaddr();
    let (start, size) = match width(encoding)? {
        4 => (f.i32()? as u64, u64::from(f.u32()?)),
        _ => (f.u64()?, f.u64()?),
    };
    let start = match encoding & 0xf0 {
        0x10 => place.wrapping_add(start),
        0x00 => start,
        _ => return Err(Unreadable),
    };
    if start != address {
        return Err(Unreadable);
    }
    // No function is larger than the section that it is in.
    Ok(Some((start, size.min(elf.code_end(start) - start))))
}

/// Link-time addresses of all functions, and parts of them, that have unwind data.
///
/// # Errors
/// As [`function_at`].
pub fn starts(elf: &ElfInfo) -> Result<Vec<u64>, Unreadable> {
    let Some(header) = elf.sections.iter().find(|s| s.name == ".eh_frame_hdr") else { return Ok(Vec::new()) };
    let count = entries(elf, header.vaddr, header.size)?;
    // OK because the table lies within its section.
    let mut table = Reader::new(elf, header.vaddr + 12, count as usize * 8)?;
    (0..count)
        .map(|_| {
            let start = header.vaddr.wrapping_add(table.i32()? as u64);
            table.skip(4)?;
            Ok(start)
        })
        .collect()
}

/// Whether the code that begins at an address is called; else (a cold part, a signal frame) it is jumped to when a frame is there already. By
/// its unwind data; none if there is none.
///
/// # Errors
/// As [`function_at`].
pub fn is_called(elf: &ElfInfo, start: u64) -> Result<Option<bool>, Unreadable> {
    let Some(header) = elf.sections.iter().find(|s| s.name == ".eh_frame_hdr") else { return Ok(None) };
    let found = last_fde(elf, header.vaddr, header.size, start)?.filter(|(address, _)| *address == start);
    let Some((_, fde)) = found else { return Ok(None) };
    let length = Reader::new(elf, fde, 4)?.u32()?;
    if !(4..=1 << 16).contains(&length) {
        return Err(Unreadable);
    }
    let cie = cie_of(elf, fde)?;
    let mut f = Reader::new(elf, fde + 8, (length - 4) as usize)?;
    f.skip(2 * width(cie.pointer_encoding)?)?;
    if cie.augmented {
        let more = f.uleb()?;
        f.skip(usize::try_from(more).map_err(|_| Unreadable)?)?;
    }
    // Where it says something of its frame before the first step (DW_CFA_advance_loc and its like), that one was there.
    let first = f.u8().unwrap_or(0);
    Ok(Some(!cie.signal && matches!(first, 0 | 2..=4 | 0x40..=0x7f)))
}

/// Link-time address and size, bytes, of the code that holds an address, if unwind data tell that it is a part of a function: it
/// is jumped to when a frame is there already. (The procedure linkage table has such unwind data, too.)
pub fn part_at(elf: &ElfInfo, vaddr: u64) -> Option<(u64, u64)> {
    if elf.section_at(vaddr).is_none_or(|section| section.name.starts_with(".plt")) {
        return None;
    }
    let (start, size) = function_at(elf, vaddr).ok()??;
    (is_called(elf, start).ok()? == Some(false)).then_some((start, size))
}

/// The last function that begins at an address or before it, and its FDE, by the sorted table: pairs of (start, FDE),
/// 32-bit, relative to the header.
fn last_fde(elf: &ElfInfo, header: u64, size: u64, vaddr: u64) -> Result<Option<(u64, u64)>, Unreadable> {
    let count = entries(elf, header, size)?;
    let entry = |i: u64| -> Result<(u64, u64), Unreadable> {
        let mut r = Reader::new(elf, header + 12 + i * 8, 8)?;
        Ok((header.wrapping_add(r.i32()? as u64), header.wrapping_add(r.i32()? as u64)))
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let mid = low.midpoint(high);
        if entry(mid)?.0 <= vaddr { low = mid + 1 } else { high = mid }
    }
    low.checked_sub(1).map(entry).transpose()
}

/// How many entries the sorted table has.
fn entries(elf: &ElfInfo, header: u64, size: u64) -> Result<u64, Unreadable> {
    let mut r = Reader::new(elf, header, 12)?;
    // version 1, frame pointer pcrel sdata4, count udata4, table datarel sdata4
    if [r.u8()?, r.u8()?, r.u8()?, r.u8()?] != [1, 0x1b, 0x03, 0x3b] {
        return Err(Unreadable);
    }
    r.skip(4)?;
    let count = u64::from(r.u32()?);
    if 12 + count * 8 > size { Err(Unreadable) } else { Ok(count) }
}

/// How an FDE is written.
struct Cie {
    /// Encoding of the address of language-specific data; none if there is none.
    lsda_encoding: Option<u8>,
    /// Encoding of the function's begin and size.
    pointer_encoding: u8,
    /// FDEs have augmentation data.
    augmented: bool,
    /// Of a signal frame.
    signal: bool,
}

/// The CIE of an FDE.
fn cie_of(elf: &ElfInfo, fde: u64) -> Result<Cie, Unreadable> {
    let mut head = Reader::new(elf, fde, 8)?;
    head.skip(4)?;
    let back = u64::from(head.u32()?);
    let cie = (fde + 4).checked_sub(back).ok_or(Unreadable)?;

    let mut head = Reader::new(elf, cie, 8)?;
    let cie_length = u64::from(head.u32()?).min(256);
    let mut c = Reader::new(elf, cie + 8, cie_length.saturating_sub(4) as usize)?;
    let _version = c.u8()?;
    let mut augmentation = Vec::new();
    loop {
        match c.u8()? {
            0 => break,
            byte => augmentation.push(byte),
        }
    }
    if augmentation.first() != Some(&b'z') {
        return Ok(Cie { lsda_encoding: None, pointer_encoding: 0, augmented: false, signal: false });
    }
    c.uleb()?; // code alignment
    c.uleb()?; // data alignment, signed, same length
    c.uleb()?; // return address register
    c.uleb()?; // length of the augmentation data
    let (mut lsda_encoding, mut pointer_encoding) = (None, 0u8);
    for byte in &augmentation[1..] {
        match byte {
            b'L' => lsda_encoding = Some(c.u8()?),
            b'R' => pointer_encoding = c.u8()?,
            b'P' => {
                let encoding = c.u8()?;
                c.skip(width(encoding)?)?;
            }
            b'S' | b'B' => {}
            _ => return Err(Unreadable),
        }
    }
    let lsda_encoding = lsda_encoding.filter(|&e| e != 0xff);
    Ok(Cie { lsda_encoding, pointer_encoding, augmented: true, signal: augmentation.contains(&b'S') })
}

/// The address of the function's language-specific data, from its FDE and that one's CIE.
fn lsda_of(elf: &ElfInfo, fde: u64) -> Result<Option<u64>, Unreadable> {
    let length = Reader::new(elf, fde, 4)?.u32()?;
    if !(4..=1 << 16).contains(&length) {
        return Err(Unreadable);
    }
    let Cie { lsda_encoding: Some(encoding), pointer_encoding, .. } = cie_of(elf, fde)? else {
        return Ok(None);
    };
    let mut f = Reader::new(elf, fde + 8, (length - 4) as usize)?;
    let pointer = width(pointer_encoding)?;
    f.skip(2 * pointer)?; // start and length of the function
    f.uleb()?; // length of the augmentation data
    let place = f.vaddr();
    let value = match width(encoding)? {
        4 => f.i32()? as u64,
        _ => f.u64()?,
    };
    if value == 0 {
        return Ok(None);
    }
    match encoding & 0x70 {
        0x10 => Ok(Some(place.wrapping_add(value))),
        0x00 => Ok(Some(value)),
        _ => Err(Unreadable),
    }
}

/// Bytes of a fixed-size pointer encoding.
fn width(encoding: u8) -> Result<usize, Unreadable> {
    match encoding & 0x0f {
        0x03 | 0x0b => Ok(4),
        0x00 | 0x04 | 0x0c => Ok(8),
        _ => Err(Unreadable),
    }
}

/// The call-site table of the function, or the part of one, that begins at `start`: code, and where its exceptions land.
fn call_sites(elf: &ElfInfo, lsda: u64, start: u64) -> Result<Vec<(Range<u64>, u64)>, Unreadable> {
    // The header is a few bytes; the table's length is in it.
    let mut r = Reader::up_to(elf, lsda, 1 << 16)?;
    // Landing pads are relative to the function's start unless a base is given.
    let base = match r.u8()? {
        0xff => start,
        // A function split into hot and cold halves states the base of its landing pads.
        encoding => {
            let place = r.vaddr();
            let value = match width(encoding)? {
                4 => r.i32()? as u64,
                _ => r.u64()?,
            };
            match encoding & 0x70 {
                0x10 => place.wrapping_add(value),
                0x00 => value,
                _ => return Err(Unreadable),
            }
        }
    };
    if r.u8()? != 0xff {
        r.uleb()?; // offset of the type table
    }
    let encoding = r.u8()?;
    let end = {
        let length = r.uleb()?;
        (r.at as u64).saturating_add(length)
    };
    let mut pads = Vec::new();
    while (r.at as u64) < end {
        let mut field = || match encoding & 0x0f {
            0x01 => r.uleb(),
            0x03 => r.u32().map(u64::from),
            _ => Err(Unreadable),
        };
        let (from, len, pad) = (field()?, field()?, field()?);
        r.uleb()?; // action
        if pad != 0 {
            let from = start.wrapping_add(from);
            pads.push((from..from.wrapping_add(len), base.wrapping_add(pad)));
        }
    }
    Ok(pads)
}

/// A cursor over bytes of the file.
struct Reader {
    base: u64,
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    fn new(elf: &ElfInfo, vaddr: u64, len: usize) -> Result<Self, Unreadable> {
        Ok(Self { base: vaddr, bytes: elf.read_vaddr(vaddr, len).map_err(|_| Unreadable)?, at: 0 })
    }

    /// Up to `len` bytes, fewer at the segment's end.
    fn up_to(elf: &ElfInfo, vaddr: u64, len: u64) -> Result<Self, Unreadable> {
        let segment = elf
            .segments
            .iter()
            .find(|s| (s.vaddr..s.vaddr + s.file_size).contains(&vaddr))
            .ok_or(Unreadable)?;
        Self::new(elf, vaddr, len.min(segment.vaddr + segment.file_size - vaddr) as usize)
    }

    fn vaddr(&self) -> u64 {
        self.base + self.at as u64
    }

    fn skip(&mut self, n: usize) -> Result<(), Unreadable> {
        self.take::<0>()?;
        self.at = self.at.checked_add(n).ok_or(Unreadable)?;
        if self.at > self.bytes.len() { Err(Unreadable) } else { Ok(()) }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let bytes = self.bytes.get(self.at..self.at + N).ok_or(Unreadable)?;
        self.at += N;
        bytes.try_into().map_err(|_| Unreadable)
    }

    fn u8(&mut self) -> Result<u8, Unreadable> {
        Ok(self.take::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn i32(&mut self) -> Result<i64, Unreadable> {
        Ok(i64::from(i32::from_le_bytes(self.take()?)))
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn uleb(&mut self) -> Result<u64, Unreadable> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Unreadable)
    }
}
