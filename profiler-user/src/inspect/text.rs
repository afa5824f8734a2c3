//! Which addresses of a module's code something else may jump to.
//!
//! A breakpoint past a function's first instruction counts calls only if nothing enters the function behind it.
//! Proving that needs every branch of the module. Decoding all of it would rely on knowing where instructions begin;
//! instead *every byte* is taken as a possible beginning, which finds a superset of all 32-bit relative calls and
//! jumps and of all addresses taken with `lea` (a false hit only makes a site dearer, never wrong). Addresses held
//! in data (relocation addends, vtables, jump tables of absolute addresses) are found the same way: every aligned
//! word of every data section whose value lies in the code.
//!
//! 8-bit jumps reach 127 bytes; [`super::sites`] looks at the neighbourhood of a site itself.
//!
//! Output: two bitmaps, one bit per byte of code each. Cost: one pass over the file, and a quarter of the code size in
//! memory. All bitmaps together have a budget: a file of some KiB may say that its code reaches over 80 MiB, and a target
//! may map hundreds of such files.

use super::elf::{ElfInfo, Segment};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Modules with more code than this get no bitmaps (they would take a quarter of it in memory), and only sites at
/// offset 0.
pub const MAX_CODE_BYTES: u64 = 512 << 20;
/// Room for gaps between pieces of code.
const MAX_GAP_BYTES: u64 = 64 << 20;
/// Most bytes of code and data that are scanned; a release build takes some seconds for them.
const MAX_SCAN_BYTES: u64 = 1 << 30;
/// Bytes read at once: they stay in the caches until they have been looked at.
const CHUNK: usize = 64 << 10;
/// Bytes looked at together.
const LANES: usize = 64;
/// Longest form looked at: `0f 8x rel32`, `48 8d modrm rel32`.
const LONGEST: usize = 7;

/// All bitmaps of this process: those of the largest module that is scanned, and of 128 MiB of code besides. What finds no
/// room has no bitmaps, and only sites at offset 0 ([`crate::inspect::Module`] keeps that for as long as it is mapped).
static BITMAPS: Budget = Budget::new(MAX_CODE_BYTES / 4 + (32 << 20));

/// Memory for bitmaps, bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    taken: AtomicU64,
    most: u64,
}

impl Budget {
    pub(crate) const fn new(most: u64) -> Self {
        Self { taken: AtomicU64::new(0), most }
    }

    fn take(&'static self, bytes: u64) -> io::Result<Room> {
        let with = |taken: u64| taken.checked_add(bytes).filter(|all| *all <= self.most);
        match self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with) {
            Ok(_) => Ok(Room { budget: self, bytes }),
            Err(taken) => Err(io::Error::other(format!(
                "its bitmaps of {} KiB do not fit beside those of other modules: {} of {} KiB are taken",
                bytes >> 10,
                taken >> 10,
                self.most >> 10
            ))),
        }
    }
}

/// A part of a [`Budget`], given back on drop.
#[derive(Debug)]
struct Room {
    budget: &'static Budget,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A section or a segment: where it lies in memory and in the file, and its size, bytes.
#[derive(Debug, Clone, Copy)]
struct Piece {
    vaddr: u64,
    offset: u64,
    size: u64,
}

/// Possible entry addresses of one module.
#[derive(Debug)]
pub struct TextIndex {
    base: u64,
    len: u64,
    branch: Vec<u64>,
    taken: Vec<u64>,
    _room: Room,
    /// Bytes of code and data looked at.
    pub scanned_bytes: u64,
    /// Time it took.
    pub took: Duration,
}

/// The code of a module: link-time address, file offset and size, bytes, of each piece.
///
/// # Errors
/// There is more than 512 MiB of it, or the file says that it has more than it can hold.
pub(super) fn code_of(elf: &ElfInfo) -> io::Result<Vec<(u64, u64, u64)>> {
    let (code, data) = TextIndex::pieces(elf);
    bounded(elf, &code, &data)?;
    Ok(code.iter().map(|piece| (piece.vaddr, piece.offset, piece.size)).collect())
}

/// Least link-time address of the code and how far it reaches, bytes.
fn bounded(elf: &ElfInfo, code: &[Piece], data: &[Piece]) -> io::Result<(u64, u64)> {
    let base = code.iter().map(|c| c.vaddr).min().unwrap_or(0);
    let len = code.iter().map(|c| c.vaddr + c.size).max().unwrap_or(0) - base;
    // A small file may say that its code is spread over the address space, and its pieces may overlap.
    let most = MAX_CODE_BYTES.min(elf.file.most() + MAX_GAP_BYTES);
    if len > most {
        return Err(io::Error::other(format!("{} MiB of code are too much to scan", len >> 20)));
    }
    let all = code.iter().chain(data).map(|piece| piece.size).fold(0, u64::saturating_add);
    if all > elf.file.most() {
        return Err(elf.file.too_much(&format!("{all} bytes of code and data are")));
    }
    if all > MAX_SCAN_BYTES {
        let text = format!("{} MiB of code and data are too much to scan", all >> 20);
        return Err(io::Error::other(text));
    }
    Ok((base, len))
}

/// 1 where one of the forms may begin with this byte, else 0. Without branches, so that it is done for many bytes at once.
fn may_begin(byte: u8, fixed_address: bool) -> u8 {
    let always = u8::from(byte & 0xfe == 0xe8)
        | u8::from(byte == 0x0f)
        | u8::from(byte == 0xc7)
        | u8::from(byte == 0x8d);
    let fixed = u8::from(byte == 0x68) | u8::from(byte & 0xf8 == 0xb8) | u8::from(byte == 0x81);
    always | fixed & u8::from(fixed_address)
}

impl TextIndex {
    /// Scans a module.
    ///
    /// # Errors
    /// The file cannot be read, has more code than 512 MiB, says that it has more than it can hold, or the bitmaps of other
    /// modules leave no room.
    pub fn scan(elf: &ElfInfo) -> io::Result<Self> {
        Self::scan_within(elf, &BITMAPS)
    }

    pub(crate) fn scan_within(elf: &ElfInfo, budget: &'static Budget) -> io::Result<Self> {
        let started = Instant::now();
        let (code, data) = Self::pieces(elf);
        let (base, len) = bounded(elf, &code, &data)?;
        let words = (len / 64 + 1) as usize;
        let room = budget.take(2 * 8 * words as u64)?;
        let mut index = Self {
            base,
            len,
            branch: vec![0; words],
            taken: vec![0; words],
            _room: room,
            scanned_bytes: 0,
            took: Duration::ZERO,
        };
        for Piece { vaddr, offset, size } in code {
            index.scan_code(elf, vaddr, offset, size)?;
        }
        for Piece { vaddr, offset, size } in data {
            index.scan_data(elf, vaddr, offset, size)?;
        }
        index.took = started.elapsed();
        Ok(index)
    }

    /// The code, and the data that may hold addresses.
    fn pieces(elf: &ElfInfo) -> (Vec<Piece>, Vec<Piece>) {
        if elf.sections.is_empty() {
            // Without sections nothing tells data from other read-only bytes: the whole segments.
            let piece = |s: &Segment| Piece { vaddr: s.vaddr, offset: s.offset, size: s.file_size };
            let (code, data): (Vec<&Segment>, Vec<&Segment>) = elf.segments.iter().partition(|s| s.exec);
            return (code.into_iter().map(piece).collect(), data.into_iter().map(piece).collect());
        }
        // Unwind tables and symbol tables hold no addresses that code loads.
        let dull = [".eh_frame", ".eh_frame_hdr", ".dynsym", ".dynstr", ".gnu.hash", ".hash"];
        let of = |exec: bool| -> Vec<Piece> {
            elf.sections
                .iter()
                .filter(|s| s.exec == exec && !s.nobits && (exec || !dull.contains(&s.name.as_str())))
                .map(|s| Piece { vaddr: s.vaddr, offset: s.offset, size: s.size })
                .collect()
        };
        (of(true), of(false))
    }

    /// Whether a branch or call may lead into `from ..= to`.
    #[must_use]
    pub fn branch_into(&self, from: u64, to: u64) -> Option<u64> {
        self.any(&self.branch, from, to)
    }

    /// Whether an address in `from ..= to` is held somewhere.
    #[must_use]
    pub fn taken_in(&self, from: u64, to: u64) -> Option<u64> {
        self.any(&self.taken, from, to)
    }

    /// All addresses in `from .. to` that are held somewhere.
    pub fn all_taken(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        (from..to).filter(|&a| self.any(&self.taken, a, a).is_some())
    }

    /// All addresses in `from .. to` that a branch or call may lead to.
    pub fn all_branches(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        (from..to).filter(|&a| self.any(&self.branch, a, a).is_some())
    }

    fn any(&self, bits: &[u64], from: u64, to: u64) -> Option<u64> {
        let first = from.saturating_sub(self.base);
        let last = to.checked_sub(self.base)?.min(self.len.saturating_sub(1));
        let mut i = first;
        while i <= last {
            let word = bits[(i / 64) as usize] >> (i % 64);
            if word == 0 {
                i = (i / 64 + 1) * 64;
                continue;
            }
            let hit = i + u64::from(word.trailing_zeros());
            return (hit <= last).then_some(self.base + hit);
        }
        None
    }

    fn set(bits: &mut [u64], base: u64, len: u64, target: u64) {
        let at = target.wrapping_sub(base);
        if at < len {
            bits[(at / 64) as usize] |= 1 << (at % 64);
        }
    }

    fn scan_code(&mut self, elf: &ElfInfo, vaddr: u64, offset: u64, size: u64) -> io::Result<()> {
        let mut bytes = vec![0; CHUNK + LONGEST];
        let mut done = 0;
        while done < size {
            // Chunks overlap so that no form is cut; the last bytes are padded with nops.
            let want = (size - done).min((CHUNK + LONGEST) as u64) as usize;
            elf.file.read_exact_at(&mut bytes[..want], offset + done)?;
            let fresh = want.min(CHUNK);
            bytes[want..].fill(0x90);
            self.scan_chunk(&bytes[..fresh + LONGEST], vaddr + done, elf.fixed_address);
            done += fresh as u64;
            self.scanned_bytes += fresh as u64;
        }
        Ok(())
    }

    /// Notes what the forms that begin in a chunk lead to; the last [`LONGEST`] bytes begin none.
    fn scan_chunk(&mut self, bytes: &[u8], vaddr: u64, fixed_address: bool) {
        let fresh = bytes.len() - LONGEST;
        let mut marks = [0; LANES];
        for at in (0..fresh).step_by(LANES) {
            let lane = &bytes[at..fresh.min(at + LANES)];
            // One byte in fourteen begins a form: the others are passed over many at once.
            for (mark, byte) in marks.iter_mut().zip(lane) {
                *mark = may_begin(*byte, fixed_address);
            }
            marks[lane.len()..].fill(0);
            for (word, eight) in marks.chunks_exact(8).enumerate() {
                let mut left = u64::from_le_bytes(std::array::from_fn(|i| eight[i]));
                while left != 0 {
                    let i = at + 8 * word + left.trailing_zeros() as usize / 8;
                    self.note_form(&bytes[i..], vaddr + i as u64, fixed_address);
                    // A mark is one bit.
                    left &= left - 1;
                }
            }
        }
    }

    /// Notes what the form that begins with these bytes leads to, if it is one. `bytes`: [`LONGEST`] at least.
    fn note_form(&mut self, bytes: &[u8], here: u64, fixed_address: bool) {
        let (base, len) = (self.base, self.len);
        let rel32 = |at: usize| {
            i64::from(i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])) as u64
        };
        match bytes[0] {
            // call rel32, jmp rel32
            0xe8 | 0xe9 => {
                let target = here.wrapping_add(5).wrapping_add(rel32(1));
                Self::set(&mut self.branch, base, len, target);
            }
            // jcc rel32; xbegin rel32 is c7 f8
            0x0f if bytes[1] & 0xf0 == 0x80 => {
                let target = here.wrapping_add(6).wrapping_add(rel32(2));
                Self::set(&mut self.branch, base, len, target);
            }
            0xc7 if bytes[1] == 0xf8 => {
                let target = here.wrapping_add(6).wrapping_add(rel32(2));
                Self::set(&mut self.branch, base, len, target);
            }
            // lea r, [rip + disp32]
            0x8d if bytes[1] & 0xc7 == 0x05 => {
                let target = here.wrapping_add(6).wrapping_add(rel32(2));
                Self::set(&mut self.taken, base, len, target);
            }
            // push imm32, mov r32, imm32: an address only in a program loaded where it was linked
            0x68 | 0xb8..=0xbf if fixed_address => {
                Self::set(&mut self.taken, base, len, rel32(1));
            }
            _ => {}
        }
        // mov [mem], imm32 has its immediate last: any four bytes will do
        if fixed_address && (bytes[0] == 0xc7 || bytes[0] == 0x81) {
            for at in 2..=3 {
                Self::set(&mut self.taken, base, len, rel32(at));
            }
        }
    }

    fn scan_data(&mut self, elf: &ElfInfo, vaddr: u64, offset: u64, size: u64) -> io::Result<()> {
        let (base, len) = (self.base, self.len);
        // Words are aligned in memory; start at the first aligned address.
        let skip = vaddr.next_multiple_of(8) - vaddr;
        let mut bytes = vec![0; CHUNK];
        let mut done = skip;
        while done + 8 <= size {
            let want = ((size - done).min(CHUNK as u64) / 8 * 8) as usize;
            elf.file.read_exact_at(&mut bytes[..want], offset + done)?;
            for word in bytes[..want].chunks_exact(8) {
                let mut eight = [0; 8];
                eight.copy_from_slice(word);
                Self::set(&mut self.taken, base, len, u64::from_le_bytes(eight));
            }
            done += want as u64;
            self.scanned_bytes += want as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x40_0000;
    const LEN: u64 = 1 << 16;
    static NO_LIMIT: Budget = Budget::new(0);

    fn empty() -> TextIndex {
        let words = (LEN / 64 + 1) as usize;
        let _room = NO_LIMIT.take(0).unwrap();
        let (branch, taken) = (vec![0; words], vec![0; words]);
        TextIndex { base: BASE, len: LEN, branch, taken, _room, scanned_bytes: 0, took: Duration::ZERO }
    }

    /// Code of which many forms lead into it, at all distances from each other.
    fn code() -> Vec<u8> {
        use rand::{RngExt, SeedableRng};
        const FORMS: [&[u8]; 9] = [
            &[0xe8],
            &[0xe9],
            &[0x0f, 0x84],
            &[0xc7, 0xf8],
            &[0x8d, 0x05],
            &[0x68],
            &[0xbf],
            &[0xc7, 0x05],
            &[0x81, 0],
        ];
        let mut rng = rand::rngs::StdRng::seed_from_u64(1);
        let mut bytes = Vec::new();
        while bytes.len() < 40_000 {
            let form = rng.random_range(0..FORMS.len());
            bytes.extend(FORMS[form]);
            let near = rng.random_range(-30_000..30_000_i32);
            let held = BASE as i32 + rng.random_range(0..LEN as i32);
            bytes.extend(if form < 5 { near } else { held }.to_le_bytes());
            bytes.extend((0..rng.random_range(0..9_u8)).map(|i| 0xe8 ^ i));
        }
        bytes
    }

    #[test]
    fn bytes_that_are_passed_over_together_begin_no_form() {
        let bytes = code();
        for fixed_address in [false, true] {
            // Of every length that is left at the end, and each byte by itself.
            for cut in 0..LANES {
                let (mut many, mut single) = (empty(), empty());
                let bytes = &bytes[..bytes.len() - cut];
                many.scan_chunk(bytes, BASE + 7, fixed_address);
                for i in 0..bytes.len() - LONGEST {
                    single.note_form(&bytes[i..], BASE + 7 + i as u64, fixed_address);
                }
                let bits = |words: &[u64]| words.iter().map(|w| w.count_ones()).sum::<u32>();
                assert!(bits(&single.branch) > 500 && bits(&single.taken) > 200, "the bytes begin forms");
                assert!(many.branch == single.branch && many.taken == single.taken, "{fixed_address} {cut}");
            }
        }
    }
}
