//! The raw parts of an encoded instruction, as far as a kernel or a CPU could tell two encodings apart.
//!
//! A decoder that works on operands forgets them: which prefixes stand there, whether a REX or VEX prefix is longer than
//! needed, which bits are ignored. The kernel's own decoder has been wrong about just these.

/// Prefix bytes as bits of [`Encoding::prefixes`].
pub(super) const PREFIXES: [u8; 6] = [0x66, 0x67, 0xf2, 0xf3, 0x64, 0x65];

/// How registers and opcode map are extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extension {
    /// No REX prefix.
    None,
    /// REX: W, and R, X, B where the opcode itself names a register (push, pop, exchange), else 0.
    Rex { wide: bool, registers: u8 },
    /// VEX of two bytes: L.
    Vex2 { l: bool },
    /// VEX of three bytes: W, L.
    Vex3 { w: bool, l: bool },
    /// EVEX: W, and b (a broadcast, or a rounding mode in place of the length).
    Evex { w: bool, b: bool },
}

/// The raw parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Encoding {
    /// Bit i: `PREFIXES[i]` stands there, once.
    pub prefixes: u8,
    pub extension: Extension,
    /// Map of the opcode: 0 for one byte, 1 for `0f`, 2 for `0f 38`, 3 for `0f 3a`, above as in the prefix.
    pub map: u8,
    pub opcode: u8,
    /// Where a ModRM byte would stand.
    pub modrm_at: usize,
}

/// Why the raw parts are not looked at any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Odd {
    /// It ends early.
    Short,
    /// A prefix that the kernel refuses.
    Refused,
    /// Prefixes that say the same or the opposite twice, or a REX prefix that does not count.
    Prefixes,
}

impl Encoding {
    pub fn of(bytes: &[u8]) -> Result<Self, Odd> {
        let byte = |i: usize| bytes.get(i).copied().ok_or(Odd::Short);
        let (mut i, mut prefixes) = (0, 0_u8);
        loop {
            let next = byte(i)?;
            if matches!(next, 0x26 | 0x2e | 0x36 | 0x3e | 0xf0) {
                return Err(Odd::Refused);
            }
            let Some(bit) = PREFIXES.iter().position(|&p| p == next) else { break };
            if prefixes >> bit & 1 == 1 {
                return Err(Odd::Prefixes);
            }
            prefixes |= 1 << bit;
            i += 1;
        }
        if prefixes & 0b1100 == 0b1100 || prefixes & 0b11_0000 == 0b11_0000 {
            return Err(Odd::Prefixes);
        }
        let mut extension = Extension::None;
        let mut map = 0;
        match byte(i)? {
            rex @ 0x40..=0x4f => {
                i += 1;
                let named = matches!(byte(i)?, 0x50..=0x5f | 0x90..=0x97);
                extension = Extension::Rex { wide: rex & 8 != 0, registers: if named { rex & 7 } else { 0 } };
                if PREFIXES.contains(&byte(i)?)
                    || matches!(byte(i)?, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0xf0)
                {
                    return Err(Odd::Prefixes);
                }
            }
            0xc5 => {
                extension = Extension::Vex2 { l: byte(i + 1)? & 4 != 0 };
                return Ok(Self { prefixes, extension, map: 1, opcode: byte(i + 2)?, modrm_at: i + 3 });
            }
            0xc4 => {
                let (p1, p2) = (byte(i + 1)?, byte(i + 2)?);
                extension = Extension::Vex3 { w: p2 & 0x80 != 0, l: p2 & 4 != 0 };
                map = p1 & 0x1f;
                return Ok(Self { prefixes, extension, map, opcode: byte(i + 3)?, modrm_at: i + 4 });
            }
            0x62 => {
                let (p0, p1, p2) = (byte(i + 1)?, byte(i + 2)?, byte(i + 3)?);
                extension = Extension::Evex { w: p1 & 0x80 != 0, b: p2 & 0x10 != 0 };
                map = p0 & 7;
                return Ok(Self { prefixes, extension, map, opcode: byte(i + 4)?, modrm_at: i + 5 });
            }
            // XOP where the map field says so (8f /0 is pop): no CPU that is made today has it.
            0x8f if byte(i + 1)? & 0x1f >= 8 => return Err(Odd::Refused),
            _ => {}
        }
        if byte(i)? == 0x0f {
            map = 1;
            i += 1;
            match byte(i)? {
                0x38 => map = 2,
                0x3a => map = 3,
                _ => {}
            }
            i += usize::from(map > 1);
        }
        Ok(Self { prefixes, extension, map, opcode: byte(i)?, modrm_at: i + 1 })
    }

    /// Neither VEX nor EVEX.
    pub fn legacy(&self) -> bool {
        matches!(self.extension, Extension::None | Extension::Rex { .. })
    }

    /// The extension in 8 bits.
    pub fn extension_bits(&self) -> u8 {
        let bit = |b: bool, at: u8| u8::from(b) << at;
        match self.extension {
            Extension::None => 0,
            Extension::Rex { wide, registers } => 1 | bit(wide, 1) | registers << 2,
            Extension::Vex2 { l } => 0x20 | bit(l, 0),
            Extension::Vex3 { w, l } => 0x40 | bit(l, 0) | bit(w, 1),
            Extension::Evex { w, b } => 0x80 | bit(b, 0) | bit(w, 1),
        }
    }
}
