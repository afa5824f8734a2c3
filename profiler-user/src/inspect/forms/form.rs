//! A form: all encodings that no kernel and no CPU has a reason to treat differently.

use super::encoding::{Encoding, Odd, PREFIXES};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use std::fmt;

/// How the memory operand is addressed, as far as the kernel's rules look: it rewrites what is relative to the next
/// instruction, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Address {
    /// There is none, or it is implied.
    None,
    /// By registers, or by a displacement alone.
    Registers,
    /// Relative to the next instruction.
    NextInstruction,
    /// A 64-bit number (`mov al, [moffs]`).
    Offset,
}

/// One instruction form: iced's code (opcode and operand kinds), address mode, prefixes, and the encoding's own bits.
/// Not in it: which registers, and the values of displacements and immediates. The proof runs several of those.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Form(u64);

/// Forms of which one stands for all where the table is tried on another kernel or CPU ([`Form::group`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormGroup {
    /// Map and opcode.
    place: (u8, u8),
    prefixes: u8,
    extension: u8,
    relative: bool,
    /// The decoder's code, in legacy encoding.
    code: Option<u16>,
}

/// Why an encoding has no form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoForm {
    /// It does not decode.
    Invalid,
    /// It has a prefix that the kernel refuses.
    RefusedPrefix,
    /// Its prefixes contradict or repeat each other.
    OddPrefixes,
}

/// A decoded instruction with its form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoded {
    pub form: Form,
    pub insn: Instruction,
    pub encoding: Encoding,
}

impl Decoded {
    pub fn of(bytes: &[u8], vaddr: u64) -> Result<Self, NoForm> {
        let insn = Decoder::with_ip(64, bytes, vaddr, DecoderOptions::NONE).decode();
        if insn.is_invalid() || insn.len() != bytes.len() {
            return Err(NoForm::Invalid);
        }
        let encoding = Encoding::of(bytes).map_err(|odd| match odd {
            Odd::Short => NoForm::Invalid,
            Odd::Refused => NoForm::RefusedPrefix,
            Odd::Prefixes => NoForm::OddPrefixes,
        })?;
        let address = address(&insn, &encoding, bytes);
        Ok(Self { form: Form::pack(insn.code(), address, &encoding), insn, encoding })
    }
}

fn address(insn: &Instruction, encoding: &Encoding, bytes: &[u8]) -> Address {
    if !insn.op_kinds().any(|kind| kind == OpKind::Memory) || insn.mnemonic() == Mnemonic::Xlatb {
        return Address::None;
    }
    if encoding.map == 0 && encoding.legacy() && matches!(encoding.opcode, 0xa0..=0xa3) {
        return Address::Offset;
    }
    let Some(&modrm) = bytes.get(encoding.modrm_at) else { return Address::None };
    if modrm & 0xc7 == 5 {
        return Address::NextInstruction;
    }
    Address::Registers
}

impl Form {
    /// The form of one encoded instruction.
    ///
    /// # Errors
    /// It is no instruction, or one that is never looked up.
    pub fn of(bytes: &[u8]) -> Result<Self, NoForm> {
        Decoded::of(bytes, 0x1000).map(|decoded| decoded.form)
    }

    fn pack(code: Code, address: Address, encoding: &Encoding) -> Self {
        Self(
            (code as u64) << 24
                | (address as u64) << 16
                | u64::from(encoding.extension_bits()) << 8
                | u64::from(encoding.prefixes),
        )
    }

    /// iced's code: the opcode with its operand kinds.
    #[must_use]
    pub fn code(self) -> Code {
        // OK because it was packed from one.
        Code::try_from((self.0 >> 24) as usize).unwrap_or(Code::INVALID)
    }

    /// One form of a group stands for all, which are taken to be treated alike: map, opcode, prefixes, extension, and whether the operand is
    /// relative to the next instruction, which is all that the kernel's rules look at. In legacy encoding the decoder's code and all
    /// bits of REX as well: there CPUs of different makers differ (`call *%rax` with 66, `pause` with REX.B). `None` if it does not
    /// decode.
    #[must_use]
    pub fn group(bytes: &[u8]) -> Option<FormGroup> {
        let Decoded { form, encoding, .. } = Decoded::of(bytes, 0x1000).ok()?;
        let relative = (form.0 >> 16) as u8 == Address::NextInstruction as u8;
        let (extension, code) = if encoding.legacy() {
            (encoding.extension_bits(), Some(form.code() as u16))
        } else {
            (encoding.extension_bits() >> 5, None)
        };
        Some(FormGroup {
            place: (encoding.map, encoding.opcode),
            prefixes: encoding.prefixes,
            extension,
            relative,
            code,
        })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.code())?;
        f.write_str(match (self.0 >> 16) as u8 {
            0 => "",
            1 => " [memory]",
            2 => " [rip]",
            _ => " [moffs]",
        })?;
        let extension = (self.0 >> 8) as u8;
        match extension {
            0 => {}
            0x80.. => write!(f, " evex:{:02x}", extension & 0x7f)?,
            0x40.. => write!(f, " vex3:{:x}", extension & 0x1f)?,
            0x20.. => write!(f, " vex2:{:x}", extension & 0x1f)?,
            rex => {
                let parts = [".w", ".b", ".x", ".r"].iter().enumerate();
                f.write_str(" rex")?;
                for (_, part) in parts.filter(|(i, _)| rex >> (i + 1) & 1 == 1) {
                    f.write_str(part)?;
                }
            }
        }
        for (i, prefix) in PREFIXES.iter().enumerate() {
            if self.0 >> i & 1 == 1 {
                write!(f, " {prefix:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Form({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On AMD's CPUs `call *%rax` with 66 pushes two bytes, and `pause` with REX.B exchanges; on Intel's the prefixes do nothing. What
    /// stands for a group must not hide them.
    #[test]
    fn forms_that_makers_of_cpus_treat_differently_stand_for_nothing_else() {
        let group = |bytes: &[u8]| Form::group(bytes).unwrap();
        let apart: [[&[u8]; 2]; 5] = [
            [&[0x66, 0xff, 0xd0], &[0x66, 0xff, 0xc0]], // call, inc
            [&[0x66, 0xff, 0xd0], &[0x66, 0xff, 0xe0]], // call, jmp
            [&[0xf3, 0x41, 0x90], &[0xf3, 0x40, 0x90]],
            [&[0x66, 0xff, 0xd0], &[0xff, 0xd0]],
            [&[0xff, 0x15, 0, 0, 0, 0], &[0xff, 0x13]],
        ];
        for [a, b] in apart {
            assert_ne!(group(a), group(b), "{a:x?} {b:x?}");
        }
        // Which registers does not matter, nor the address mode.
        assert_eq!(group(&[0x66, 0xff, 0xd0]), group(&[0x66, 0xff, 0x13]));
        assert_eq!(group(&[0x48, 0x01, 0xc0]), group(&[0x48, 0x01, 0x03]));
    }

    #[test]
    fn a_form_keeps_what_a_kernel_could_tell_apart_and_nothing_else() {
        let form = |bytes: &[u8]| Form::of(bytes).unwrap();
        // Registers, displacements and immediates are not in it.
        let same: [(&[u8], &[u8]); 7] = [
            (&[0x55], &[0x53]),
            (&[0x48, 0x83, 0xec, 0x08], &[0x48, 0x83, 0xec, 0x7f]),
            (&[0xe8, 0, 0, 0, 0], &[0xe8, 1, 2, 3, 4]),
            (&[0xc5, 0xf9, 0xeb, 0xc0], &[0xc5, 0xf1, 0xeb, 0xd3]),
            (&[0x8b, 0x43, 0x08], &[0x8b, 0x4f, 0x10]),
            (&[0x8b, 0x03], &[0x8b, 0x84, 0x24, 0, 1, 0, 0]),
            (&[0x41, 0x8b, 0x03], &[0x40, 0x8b, 0x03]),
        ];
        for (a, b) in same {
            assert_eq!(form(a), form(b), "{a:x?} {b:x?}");
        }
        let apart: [(&[u8], &[u8]); 8] = [
            (&[0x50], &[0x40, 0x50]),
            (&[0x40, 0x50], &[0x41, 0x50]),
            (&[0xc3], &[0xf3, 0xc3]),
            (&[0x8b, 0x03], &[0x8b, 0xc3]),
            (&[0x8b, 0x05, 0, 0, 0, 0], &[0x8b, 0x83, 0, 0, 0, 0]),
            (&[0xc5, 0xf9, 0xeb, 0xc0], &[0xc4, 0xe1, 0x79, 0xeb, 0xc0]),
            (&[0xc4, 0xe1, 0x79, 0xeb, 0xc0], &[0xc4, 0xe1, 0xf9, 0xeb, 0xc0]),
            (&[0x8b, 0x03], &[0x64, 0x8b, 0x03]),
        ];
        for (a, b) in apart {
            assert_ne!(form(a), form(b), "{a:x?} {b:x?}");
        }
        assert_eq!(Form::of(&[0x66, 0x66, 0x90]), Err(NoForm::OddPrefixes));
        assert_eq!(Form::of(&[0x48, 0x66, 0x90]), Err(NoForm::OddPrefixes));
        assert_eq!(Form::of(&[0xf0, 0x0f, 0xb1, 0x0f]), Err(NoForm::RefusedPrefix));
        assert_eq!(Form::of(&[0x8b]), Err(NoForm::Invalid));
        assert_eq!(Form::of(&[0x90, 0x90]), Err(NoForm::Invalid));
    }
}
