//! Where a caller's frame begins, by the unwind table of its module.
//!
//! The canonical frame address (CFA) of a function is the address above its return address. While a call is under way the table gives it from the
//! stack pointer behind the return, or from rbp. So the caller's own return slot follows from its callee's without looking at the stack.

use super::super::elf::ElfInfo;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, ParsedEhFrameHdr, Register, UnwindContext,
    UnwindSection, X86_64,
};

/// Bytes of a table that is read: that of a library of 200 MB has 12 MiB.
const MOST_BYTES: u64 = 128 << 20;

/// How the CFA of the function that holds a return address is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameRule {
    /// This many bytes above the stack pointer as it is behind the return.
    Sp(i64),
    /// This many bytes above what rbp holds.
    Frame(i64),
    /// The return address is that of the trampoline behind a signal handler.
    Signal,
    /// The table says nothing, or something else.
    Unknown,
}

/// The unwind table of a module, read whole.
pub(super) struct FrameTable {
    frame: Vec<u8>,
    header: Vec<u8>,
    bases: BaseAddresses,
}

impl FrameTable {
    /// `None`: the module has none that can be searched (`.eh_frame_hdr`).
    pub fn of(elf: &ElfInfo) -> Option<Self> {
        let section = |name: &str| {
            let found = elf.sections.iter().find(|s| s.name == name && !s.nobits && s.size <= MOST_BYTES)?;
            let bytes = elf.read_at(found.offset, usize::try_from(found.size).ok()?).ok()?;
            Some((bytes, found.vaddr))
        };
        let (frame, frame_at) = section(".eh_frame")?;
        let (header, header_at) = section(".eh_frame_hdr")?;
        let bases = BaseAddresses::default().set_eh_frame(frame_at).set_eh_frame_hdr(header_at);
        Some(Self { frame, header, bases })
    }

    /// The rule at the call before a return address, given as a link-time address.
    pub fn rule(&self, return_address: u64) -> FrameRule {
        self.find(return_address).unwrap_or(FrameRule::Unknown)
    }

    fn find(&self, return_address: u64) -> Option<FrameRule> {
        // The last byte of the call: behind a call that does not come back another function may begin.
        let at = return_address.checked_sub(1)?;
        let frame = EhFrame::new(&self.frame, LittleEndian);
        let header: ParsedEhFrameHdr<_> =
            EhFrameHdr::new(&self.header, LittleEndian).parse(&self.bases, 8).ok()?;
        let fde = header
            .table()?
            .fde_for_address(&frame, &self.bases, at, |section, bases, offset| {
                section.cie_from_offset(bases, offset)
            })
            .ok()?;
        if fde.cie().is_signal_trampoline() {
            return Some(FrameRule::Signal);
        }
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&frame, &self.bases, &mut context, at).ok()?;
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Some(by_register(*register, *offset)),
            CfaRule::Expression(_) => None,
        }
    }
}

fn by_register(register: Register, offset: i64) -> FrameRule {
    match register {
        X86_64::RSP => FrameRule::Sp(offset),
        X86_64::RBP => FrameRule::Frame(offset),
        _ => FrameRule::Unknown,
    }
}
