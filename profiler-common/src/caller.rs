//! Callers of timed functions, by their return addresses (map `CALLERS`).
//!
//! The programs learn them, the agent arms those behind whose calls a return site is attached. The map is an array that the agent
//! maps, searched by hash: arming and reading need no system call, and lose no hit that is counted meanwhile.

use crate::wire_type;

/// Cells that are looked at for one caller: the one of its hash, and those behind it. If all are taken, it is not learned.
/// While the cells fill from a quarter to a half that befalls 1 in 100 callers, before that none (the test below).
pub const CALLER_TRIES: u32 = 8;

/// A return site lies less than this behind its return address, bytes. (Inspection takes sites at most 120 bytes on.)
pub const RETURN_SITE_SPAN: u64 = 128;

/// One caller of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallerCell {
    /// [`caller_key`]; 0: the cell is free.
    pub key: u64,
    /// Calls that came from there, as far as the gates let them in.
    pub calls: u64,
    /// 1: its return site is attached, calls from there are timed; else 0.
    pub armed: u64,
    /// Reserved, zero.
    pub reserved: u64,
}
wire_type!(CallerCell, size 32, align 8);

/// Class and return address in one word, so that a cell is taken by one atomic exchange:
///
/// ```text
/// bit 63            16 15        0
///     | address        | class   |
/// ```
/// `None` for what does not fit: no address, an address above 2^48 (no return address of a process that did not ask for five-level
/// page tables), a class above 2^16.
#[must_use]
#[inline(always)]
pub const fn caller_key(class: u32, address: u64) -> Option<u64> {
    if address == 0 || address >> 48 != 0 || class >> 16 != 0 {
        return None;
    }
    Some(address << 16 | class as u64)
}

/// Class and return address of a key.
#[must_use]
pub const fn caller_of(key: u64) -> (u32, u64) {
    // OK because the cast keeps the bits of the class.
    (key as u32 & 0xffff, key >> 16)
}

/// The first cell that is looked at for a key; the caller masks it.
#[must_use]
#[inline(always)]
pub const fn caller_cell(key: u64) -> u32 {
    // Multiplied twice: after one multiplication, half full, four times as many found no room (return addresses lie in rows).
    let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40) as u32
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{CALLER_TRIES, caller_cell, caller_key, caller_of};
    use std::vec;

    #[test]
    fn keys_hold_class_and_address() {
        for (class, address) in [(0, 1), (7, 0x5555_5555_4321), (0xffff, 0xffff_ffff_ffff)] {
            assert_eq!(caller_of(caller_key(class, address).unwrap()), (class, address));
        }
        for (class, address) in [(0, 0), (7, 0), (7, 1 << 48), (1 << 16, 1), (7, u64::MAX)] {
            assert_eq!(caller_key(class, address), None);
        }
    }

    #[test]
    fn callers_find_room_while_half_of_the_cells_are_free() {
        const CELLS: usize = 16_384;
        let mut cells = vec![false; CELLS];
        let mut missed = [0; 2];
        // 64 classes, called from 128 places each, 5 to 60 bytes apart.
        let mut address = 0x5555_5555_4321;
        for n in 0..8_192u64 {
            address += 5 + n * n % 56;
            let first = caller_cell(caller_key((n % 64) as u32, address).unwrap());
            let free = (0..CALLER_TRIES).map(|i| (first + i) as usize % CELLS).find(|cell| !cells[*cell]);
            match free {
                Some(cell) => cells[cell] = true,
                None => missed[usize::from(n >= 4_096)] += 1,
            }
        }
        assert!(missed[0] <= 2 && missed[1] <= 60, "{missed:?}");
    }
}
