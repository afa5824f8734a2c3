//! The functions on which calibration measures: one per site class, in rows of which each gets one kind of link.
//!
//! ```text
//! row 0: never probed, the "off" side of each pair of runs
//! row 1..: one per measured kind
//! rows 7 and 8: what lies between two time stamps
//! ```
//! Each function has its class's instruction twice, at the entry and once more as exit site, then `ret`; those of the last two rows have a
//! nop for the exit site, whatever the entry is. They are
//! written in assembly in fixed cells of 64 bytes: the instruction at the site must be known exactly, and no optimiser
//! may fold functions that look alike.

use super::CalibrateError;
use profiler_core::class::SiteClass;

/// Size of a cell, bytes.
const CELL: usize = 64;
/// Rows in the table, the unprobed one too.
pub(super) const ROWS: usize = 9;
/// Rows whose functions have the same instruction at both sites.
const ROWS_OF_TWINS: usize = 7;
/// The rows on which the price between two time stamps is measured: by an exit site, and by a return link.
pub(super) const ROWS_STAMPS: [usize; 2] = [7, 8];
/// The row that is never probed.
pub(super) const ROW_OFF: usize = 0;
const SITES: usize = SiteClass::ALL.len();

std::arch::global_asm!(
    ".pushsection .text.tithe_calibration,\"ax\",@progbits",
    ".balign 64",
    ".globl tithe_calibration_code",
    ".hidden tithe_calibration_code",
    "tithe_calibration_code:",
    ".rept {rows}",
    // nop5, as compilers write it. The kernel replaces it by a call where it can.
    ".balign 64",
    ".byte 0x0f,0x1f,0x44,0x00,0x00",
    ".byte 0x0f,0x1f,0x44,0x00,0x00",
    "ret",
    // nop
    ".balign 64",
    "nop",
    "nop",
    "ret",
    // push
    ".balign 64",
    "push rbp",
    "push rbp",
    "add rsp, 16",
    "ret",
    // branch: a jump to the next instruction
    ".balign 64",
    ".byte 0xeb,0x00",
    ".byte 0xeb,0x00",
    "ret",
    // stepped
    ".balign 64",
    "mov eax, edi",
    "mov eax, edi",
    "ret",
    ".endr",
    ".rept {rows_stamps}",
    ".balign 64",
    ".byte 0x0f,0x1f,0x44,0x00,0x00",
    "nop",
    "ret",
    ".balign 64",
    "nop",
    "nop",
    "ret",
    ".balign 64",
    "push rbp",
    "nop",
    "add rsp, 8",
    "ret",
    ".balign 64",
    ".byte 0xeb,0x00",
    "nop",
    "ret",
    ".balign 64",
    "mov eax, edi",
    "nop",
    "ret",
    ".endr",
    ".balign 64",
    ".popsection",
    rows = const ROWS_OF_TWINS,
    rows_stamps = const ROWS - ROWS_OF_TWINS,
);

/// Stretches of code that a program may run through between two hits.
pub(super) const STRETCHES: usize = 8;
/// Cache lines of a stretch; all of them together are 12 KiB, a good part of a first-level cache.
const LINES: usize = 24;

std::arch::global_asm!(
    ".pushsection .text.tithe_calibration_walk,\"ax\",@progbits",
    ".balign 64",
    ".globl tithe_calibration_walk",
    ".hidden tithe_calibration_walk",
    "tithe_calibration_walk:",
    ".rept {stretches}",
    // One jump per cache line, to the next.
    ".rept {lines} - 1",
    ".byte 0xeb,0x3e",
    ".fill 62, 1, 0xcc",
    ".endr",
    "ret",
    ".balign 64, 0xcc",
    ".endr",
    ".popsection",
    stretches = const STRETCHES,
    lines = const LINES,
);

unsafe extern "C" {
    static tithe_calibration_walk: [[[u8; CELL]; LINES]; STRETCHES];
}

/// Runs through a stretch of code, which takes its lines into the caches.
pub(super) fn walk(stretch: usize) {
    let address = (&raw const tithe_calibration_walk) as usize + (stretch % STRETCHES) * LINES * CELL;
    // SAFETY: the address is the first instruction of a stretch, which does nothing but jump forward and return.
    let code = unsafe { std::mem::transmute::<usize, extern "C" fn()>(address) };
    std::hint::black_box(code)();
}

unsafe extern "C" {
    static tithe_calibration_code: [[[u8; CELL]; SITES]; ROWS];
}

/// A function of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probed {
    pub row: usize,
    pub site: SiteClass,
}

impl Probed {
    /// Index of the site class, the column.
    pub fn column(self) -> usize {
        // OK because ALL is in the order of declaration.
        self.site as usize
    }

    pub fn address(self) -> usize {
        assert!(self.row < ROWS, "row {} of {ROWS}", self.row);
        let cell = self.row * SITES + self.column();
        (&raw const tithe_calibration_code) as usize + cell * CELL
    }

    /// As a function that can be called.
    pub fn function(self) -> extern "C" fn() {
        // SAFETY: the address is the first instruction of a function of the table, which takes nothing, returns
        // nothing, keeps the stack balanced and changes no register that the caller relies on.
        unsafe { std::mem::transmute::<usize, extern "C" fn()>(self.address()) }
    }

    /// Distance from the entry to the exit site: the length of the class's instruction.
    pub fn exit_distance(self) -> u64 {
        match self.site {
            SiteClass::Nop5 => 5,
            SiteClass::Nop | SiteClass::Push => 1,
            SiteClass::Branch | SiteClass::Stepped => 2,
        }
    }

    /// Stack words between `rsp` and the return address at the exit site.
    pub fn exit_slot(self) -> i16 {
        i16::from(self.site == SiteClass::Push)
    }

    /// Offset of the entry in the file that we run from, by our own memory map.
    ///
    /// # Errors
    /// The map cannot be read or does not hold the table.
    pub fn file_offset(self) -> Result<u64, CalibrateError> {
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(CalibrateError::Maps)?;
        let address = self.address() as u64;
        maps.lines()
            .find_map(|line| {
                let mut fields = line.split_ascii_whitespace();
                let (start, end) = fields.next()?.split_once('-')?;
                let (start, end) = (hex(start)?, hex(end)?);
                let offset = hex(fields.nth(1)?)?;
                // offset in file = address - start of mapping + offset of mapping
                (start <= address && address < end).then(|| address - start + offset)
            })
            .ok_or(CalibrateError::Maps(std::io::ErrorKind::NotFound.into()))
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_runs_and_lies_where_its_file_offset_says() {
        let exe = std::fs::read("/proc/self/exe").unwrap();
        for row in 0..ROWS {
            for site in SiteClass::ALL {
                let probed = Probed { row, site };
                probed.function()();
                let offset = usize::try_from(probed.file_offset().unwrap()).unwrap();
                let exit = offset + usize::try_from(probed.exit_distance()).unwrap();
                let first: &[u8] = match site {
                    SiteClass::Nop5 => &[0x0f, 0x1f, 0x44, 0, 0],
                    SiteClass::Nop => &[0x90],
                    SiteClass::Push => &[0x55],
                    SiteClass::Branch => &[0xeb, 0],
                    SiteClass::Stepped => &[0x89, 0xf8],
                };
                let second: &[u8] = if ROWS_STAMPS.contains(&row) { &[0x90] } else { first };
                for (at, instruction) in [(offset, first), (exit, second)] {
                    assert_eq!(&exe[at..at + instruction.len()], instruction, "{probed:?}");
                }
            }
        }
    }
}
