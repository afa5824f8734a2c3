//! The BPF cookie of an attachment: which class was hit, and where the return address lies at that site.
//!
//! ```text
//! bit 63        48 47               32 31            0
//!     |  flags    | slot delta (i16)  |   class id   |
//! ```
//! The *return slot* is the stack word that holds the return address of the call; its address names the call
//! among the open calls of a thread. At a function's first instruction it is `rsp`; at a site that runs after
//! `n` pushes it is `rsp + 8 n`; after a return (uretprobe, return site) it is `rsp - 8`.

use crate::caller::RETURN_SITE_SPAN;

/// Slot delta of a site at which the distance to the return address is not known: calls are matched by class only.
pub const SLOT_UNKNOWN: i16 = i16::MIN;

/// Flag: the end of the call is seen through a return link, of which the kernel allows 64 pending per thread.
pub const COOKIE_RETURN_LINK: u16 = 1;

/// From this bit of the flags on: of a return site, its distance from the return address + 1, bytes; 0: not known.
pub const COOKIE_DISTANCE_SHIFT: u16 = 8;

/// What travels with an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    /// Index of the class in every map.
    pub class: u32,
    /// `(return slot - rsp) / 8` at the site, or [`SLOT_UNKNOWN`].
    pub slot_delta: i16,
    /// `COOKIE_*`, and the distance of a return site ([`COOKIE_DISTANCE_SHIFT`]).
    pub flags: u16,
}

impl Cookie {
    /// Packs the cookie into the 64 bits that the kernel carries.
    #[must_use]
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        self.class as u64 | ((self.slot_delta as u16 as u64) << 32) | ((self.flags as u64) << 48)
    }

    /// Reads the 64 bits back.
    #[must_use]
    #[inline(always)]
    pub const fn unpack(bits: u64) -> Self {
        // OK because each cast keeps exactly the bits of its field.
        Self { class: bits as u32, slot_delta: (bits >> 32) as u16 as i16, flags: (bits >> 48) as u16 }
    }

    /// A return site at `rip` may be that of a call which returns to `return_address`: it lies as far behind it as the cookie says; where it
    /// does not say, less than [`RETURN_SITE_SPAN`].
    #[must_use]
    #[inline(always)]
    pub const fn is_behind(self, rip: u64, return_address: u64) -> bool {
        let distance = rip.wrapping_sub(return_address);
        match self.flags >> COOKIE_DISTANCE_SHIFT {
            0 => distance < RETURN_SITE_SPAN,
            known => distance == known as u64 - 1,
        }
    }

    /// Address of the return slot, given the stack pointer at the site; `None` if it is not known.
    #[must_use]
    #[inline(always)]
    pub const fn return_slot(self, rsp: u64) -> Option<u64> {
        if self.slot_delta == SLOT_UNKNOWN {
            return None;
        }
        Some(rsp.wrapping_add((self.slot_delta as i64 * 8) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_round_trip() {
        for class in [0, 1, 0xffff, u32::MAX] {
            for slot_delta in [0, 1, -1, 300, -300, SLOT_UNKNOWN, i16::MAX] {
                for flags in [0, 1, u16::MAX] {
                    let cookie = Cookie { class, slot_delta, flags };
                    assert_eq!(Cookie::unpack(cookie.pack()), cookie);
                }
            }
        }
    }

    #[test]
    fn return_sites_lie_behind_their_return_address() {
        let at = |flags, rip| Cookie { class: 0, slot_delta: -1, flags }.is_behind(rip, 0x1000);
        assert!(at(0, 0x1000) && at(0, 0x107f) && !at(0, 0x1080) && !at(0, 0xfff));
        let seven = 8 << COOKIE_DISTANCE_SHIFT;
        assert!(at(seven, 0x1007) && !at(seven, 0x1006) && !at(seven, 0x1008) && !at(seven, 0x1000));
    }

    #[test]
    fn return_slots() {
        let at = |slot_delta| Cookie { class: 0, slot_delta, flags: 0 }.return_slot(0x7000);
        assert_eq!(at(0), Some(0x7000));
        assert_eq!(at(2), Some(0x7010));
        assert_eq!(at(-1), Some(0x6ff8));
        assert_eq!(at(SLOT_UNKNOWN), None);
    }
}
