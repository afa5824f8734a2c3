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

pub(crate) use encoding::Extension;
pub(crate) use form::Decoded;
pub use form::{Form, FormGroup, NoForm};

use iced_x86::{Code, CpuidFeature};
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

    /// The forms of the table that compilers emit for any x86-64 CPU: in legacy encoding, without address and segment
    /// prefixes, and of the instruction sets that all of those have. All kernels treat those alike; it is what is left where
    /// the forms could not be run.
    #[must_use]
    pub fn baseline() -> &'static Self {
        static BASELINE: OnceLock<AllowList> = OnceLock::new();
        BASELINE.get_or_init(|| {
            let baseline = |sample: &Vec<u8>| Decoded::of(sample, 0x1000).is_ok_and(|d| is_baseline(&d));
            let mut accepted: Vec<Form> =
                samples().filter(baseline).filter_map(|sample| Form::of(&sample).ok()).collect();
            accepted.sort_unstable();
            Self { accepted, dropped: BTreeSet::new() }
        })
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

fn is_baseline(decoded: &Decoded) -> bool {
    use CpuidFeature::{
        CET_IBT, CMOV, INTEL186, INTEL286, INTEL386, INTEL486, INTEL8086, MULTIBYTENOP, PAUSE, SSE, SSE2, X64,
    };
    let everywhere = [
        INTEL8086,
        INTEL186,
        INTEL286,
        INTEL386,
        INTEL486,
        X64,
        CMOV,
        MULTIBYTENOP,
        PAUSE,
        SSE,
        SSE2,
        CET_IBT,
    ];
    // Bits of 66, f2 and f3.
    let prefixes = 0b1101;
    let plain =
        decoded.encoding.legacy() && decoded.encoding.map <= 1 && decoded.encoding.prefixes & !prefixes == 0;
    // On Linux 6.1 in QEMU these differed: `pause` with a REX prefix, an indirect call with 66 (`Call_rm64`, the bit of
    // 66 is the first; AMD's CPUs run these two in another way than Intel's), double shifts by a number and relative to the next instruction. No compiler begins a function so.
    let code = decoded.form.code();
    let differed = match code {
        Code::Pause => decoded.encoding.extension_bits() != 0,
        Code::Call_rm64 => decoded.encoding.prefixes & 1 != 0,
        Code::Shld_rm16_r16_imm8
        | Code::Shld_rm32_r32_imm8
        | Code::Shld_rm64_r64_imm8
        | Code::Shrd_rm16_r16_imm8
        | Code::Shrd_rm32_r32_imm8
        | Code::Shrd_rm64_r64_imm8 => true,
        _ => false,
    };
    plain && !differed && code.cpuid_features().iter().all(|feature| everywhere.contains(feature))
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

/// What the table's head says after `name:`: each `kernel` and `cpu` that it was made or narrowed on, in that order.
pub fn headers(name: &str) -> impl Iterator<Item = &'static str> {
    TABLE
        .lines()
        .take_while(|line| line.starts_with('#'))
        .filter_map(move |line| line.strip_prefix("# ")?.strip_prefix(name)?.strip_prefix(": "))
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

/// Names this CPU as the table does: vendor, family, model, stepping, and what it calls itself.
#[must_use]
pub fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == name));
        line.and_then(|l| l.split_once(':')).map_or("?", |(_, v)| v.trim()).to_owned()
    };
    format!(
        "{}, family {}, model {}, stepping {}, {}",
        field("vendor_id"),
        field("cpu family"),
        field("model"),
        field("stepping"),
        field("model name")
    )
}

/// Vendor, family and model: steppings of one model run the same instructions.
fn cpu_model(name: &str) -> impl Iterator<Item = &str> {
    name.split(", ").take(3)
}

/// Whether the table was made on the kernel that we run on, to the very build, and on a CPU of the same model.
#[must_use]
pub fn proven_here() -> bool {
    is_proven_on(&kernel_name(), &cpu_name())
}

fn is_proven_on(kernel: &str, cpu: &str) -> bool {
    let mut kernels = headers("kernel").zip(headers("cpu"));
    kernels.any(|(of, made_on)| of == kernel && cpu_model(made_on).eq(cpu_model(cpu)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    #[test]
    fn the_table_is_whole() {
        let [kernels, cpus, absent] = ["kernel", "cpu", "absent"].map(|name| headers(name).count());
        assert!(kernels > 0 && kernels == cpus && absent == 0, "{kernels} {cpus} {absent}");
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
    fn another_kernel_or_cpu_is_not_the_one_of_the_proof() {
        let (kernel, cpu) = headers("kernel").zip(headers("cpu")).next().unwrap();
        assert!(is_proven_on(kernel, cpu));
        assert!(is_proven_on(kernel, "GenuineIntel, family 6, model 85, stepping 4, another name"), "{cpu}");
        assert!(!is_proven_on("6.12.0 another", cpu));
        assert!(!is_proven_on(kernel, &cpu.replace("model 85", "model 143")));
        assert!(!is_proven_on(kernel, &cpu.replace("GenuineIntel", "AuthenticAMD")));
        assert!(!is_proven_on(kernel, &cpu.replace("family 6", "family 25")));
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

    #[test]
    fn the_baseline_holds_what_compilers_emit_at_entries_and_nothing_newer() {
        let baseline = AllowList::baseline();
        let contains = |bytes: &[u8]| baseline.contains(Form::of(bytes).unwrap());
        let entries: [&[u8]; 12] = [
            &[0x55],
            &[0x41, 0x57],
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0x48, 0x83, 0xec, 0x08],
            &[0x48, 0x8d, 0x05, 0, 0, 0, 0],
            &[0x0f, 0x1f, 0x44, 0, 0],
            &[0x31, 0xc0],
            &[0xf2, 0x0f, 0x10, 0x07],
            &[0x66, 0x0f, 0xef, 0xc0],
            &[0x0f, 0xb6, 0x07],
            &[0xe8, 0, 0, 0, 0],
            &[0xc3],
        ];
        for bytes in entries {
            assert!(contains(bytes), "{bytes:x?}");
        }
        // The last two differed on Linux 6.1.
        let newer: [&[u8]; 6] = [
            &[0xc5, 0xf8, 0x28, 0xc1],
            &[0xf3, 0x0f, 0xb8, 0xc0],
            &[0x66, 0x0f, 0x38, 0x00, 0xc1],
            &[0x64, 0x8b, 0x03],
            &[0xf3, 0x40, 0x90],
            &[0x0f, 0xa4, 0x05, 0, 0, 0, 0, 3],
        ];
        for bytes in newer {
            assert!(AllowList::proven().contains(Form::of(bytes).unwrap()) && !contains(bytes), "{bytes:x?}");
        }
        // These differ on CPUs of one maker.
        for bytes in [&[0xf3, 0x41, 0x90], &[0x66, 0xff, 0xd0]] {
            assert!(!AllowList::proven().contains(Form::of(bytes).unwrap()), "{bytes:x?}");
        }
        assert!(baseline.len() > 1000 && baseline.len() < AllowList::proven().len(), "{}", baseline.len());
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
