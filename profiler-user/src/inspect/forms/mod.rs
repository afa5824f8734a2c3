//! Which instruction forms may be probed: those that were proven, and no other.
//!
//! The kernel runs the instruction under a breakpoint somewhere else, or acts as if it had run it, by rules of its own
//! that look at a part of the encoding. It takes some vector instructions for `popf`, `ret`, `call` or a jump, and the
//! target dies. So no rule of ours says what is safe: each [`Form`] in `accepted.txt` ran natively and under a probe,
//! several times, with the same registers, flags, memory and signals ([`crate::conformance`]). What is not in
//! that table is refused.
//!
//! The table has one sample of each form, so that they can be run again: in CI, and at calibration on a kernel that the
//! table was not made on, where those that differ are dropped ([`AllowList::without`]).

mod encoding;
mod form;

pub(crate) use form::Decoded;
pub use form::{Form, NoForm};

use std::collections::BTreeSet;
use std::sync::OnceLock;

/// One line for each code of the decoder: its name, then a sample of each form of it, in hexadecimal.
const TABLE: &str = include_str!("accepted.txt");

/// Forms that may be probed.
#[derive(Debug, PartialEq, Eq)]
pub struct AllowList {
    /// Sorted.
    accepted: Vec<Form>,
    dropped: BTreeSet<Form>,
}

impl AllowList {
    /// The forms of the table.
    #[must_use]
    pub fn proven() -> &'static Self {
        static PROVEN: OnceLock<AllowList> = OnceLock::new();
        PROVEN.get_or_init(|| {
            let mut accepted: Vec<Form> = samples().filter_map(|sample| Form::of(&sample).ok()).collect();
            accepted.sort_unstable();
            Self { accepted, dropped: BTreeSet::new() }
        })
    }

    /// The same but for forms that differed on this kernel. Lives as long as the process, as the kernel does.
    #[must_use]
    pub fn without(dropped: impl IntoIterator<Item = Form>) -> &'static Self {
        let dropped: BTreeSet<Form> = dropped.into_iter().collect();
        if dropped.is_empty() {
            return Self::proven();
        }
        let accepted =
            Self::proven().accepted.iter().copied().filter(|form| !dropped.contains(form)).collect();
        Box::leak(Box::new(Self { accepted, dropped }))
    }

    /// Whether the form may be probed.
    #[must_use]
    pub fn contains(&self, form: Form) -> bool {
        self.accepted.binary_search(&form).is_ok()
    }

    /// Number of forms.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accepted.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accepted.is_empty()
    }

    /// What was proven elsewhere and differed here.
    #[must_use]
    pub fn dropped(&self) -> &BTreeSet<Form> {
        &self.dropped
    }
}

/// A sample of each form of the table.
pub fn samples() -> impl Iterator<Item = Vec<u8>> {
    TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.split_ascii_whitespace().skip(1))
        .filter_map(bytes_of_hex)
}

/// The bytes of a text in hexadecimal; `None` if it is none.
pub(crate) fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// What the table's head says after `name:`, e.g. `kernel` and `cpu` that it was made on.
#[must_use]
pub fn header(name: &str) -> Option<&'static str> {
    TABLE
        .lines()
        .take_while(|line| line.starts_with('#'))
        .find_map(|line| line.strip_prefix("# ")?.strip_prefix(name)?.strip_prefix(": "))
}

/// Names the table: number of forms and a sum over its text.
#[must_use]
pub(crate) fn table_id() -> String {
    let sum = TABLE
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, b| (sum ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{} {sum:016x}", AllowList::proven().len())
}

/// Names this kernel as the table does: release and version.
#[must_use]
pub fn kernel_name() -> String {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/kernel/{name}"))
            .map_or_else(|_| "?".into(), |t| t.trim().to_owned())
    };
    format!("{} {}", read("osrelease"), read("version"))
}

/// Whether the table was made on the kernel that we run on, to the very build.
#[must_use]
pub fn proven_on_this_kernel() -> bool {
    header("kernel").is_some_and(|kernel| kernel == kernel_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    #[test]
    fn the_table_is_whole() {
        assert!(header("kernel").is_some() && header("cpu").is_some() && header("absent").is_none());
        let fields = TABLE
            .lines()
            .filter(|l| !l.starts_with('#'))
            .flat_map(|l| l.split_ascii_whitespace().skip(1))
            .count();
        assert_eq!(samples().count(), fields, "every field is hexadecimal");
        assert_eq!(AllowList::proven().len(), fields, "every sample has a form");
        let mut forms = AllowList::proven().accepted.clone();
        forms.dedup();
        assert_eq!(forms.len(), fields, "no form is there twice");
    }

    #[test]
    fn what_is_dropped_is_no_longer_contained() {
        let form = Form::of(&[0x48, 0x83, 0xec, 0x08]).unwrap();
        assert!(AllowList::proven().contains(form));
        let less = AllowList::without([form]);
        assert!(!less.contains(form) && less.dropped().contains(&form));
        assert_eq!(less.len() + 1, AllowList::proven().len());
        assert!(std::ptr::eq(AllowList::without([]), AllowList::proven()));
    }

    /// Whatever a proof said: these are never in the table.
    #[test]
    fn what_must_never_be_probed_is_not_in_the_table() {
        for sample in samples() {
            let insn = Decoder::new(64, &sample, DecoderOptions::NONE).decode();
            let never = matches!(
                insn.mnemonic(),
                Mnemonic::Pushf
                    | Mnemonic::Pushfq
                    | Mnemonic::Popf
                    | Mnemonic::Popfq
                    | Mnemonic::Int
                    | Mnemonic::Int1
                    | Mnemonic::Int3
                    | Mnemonic::Into
                    | Mnemonic::Iret
                    | Mnemonic::Iretd
                    | Mnemonic::Iretq
                    | Mnemonic::Syscall
                    | Mnemonic::Sysenter
                    | Mnemonic::Sysret
                    | Mnemonic::Sysretq
                    | Mnemonic::Sysexit
                    | Mnemonic::Sysexitq
                    | Mnemonic::Retf
                    | Mnemonic::Vmcall
                    | Mnemonic::Vmmcall
                    | Mnemonic::Monitorx
                    | Mnemonic::Xbegin
            );
            let repeated = insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix());
            let far =
                matches!(insn.op0_kind(), iced_x86::OpKind::FarBranch16 | iced_x86::OpKind::FarBranch32);
            assert!(!never && !repeated && !far && !insn.is_privileged(), "{sample:x?}");
        }
    }

    /// The kernel acts on these opcode bytes of vector instructions as if they were popf, ret, call, jump or nop.
    #[test]
    fn no_vector_form_with_the_opcode_of_a_branch_is_in_the_table() {
        for sample in samples() {
            let encoding = encoding::Encoding::of(&sample).unwrap();
            let mistaken = matches!(
                encoding.opcode,
                0x70..=0x7f | 0x90 | 0x9a | 0x9d | 0xc2 | 0xc3 | 0xca | 0xcb | 0xe8..=0xeb
            );
            assert!(encoding.legacy() || !mistaken, "{sample:x?}");
        }
    }
}
