//! Which argument registers still hold what the caller passed, on the straight way from a function's entry to a site.
//!
//! A register is lost as soon as an instruction has written any part of it: `mov $2, %ecx` and `mov %cl, ...` alike, moves of a
//! register to itself and extensions (`movzbl %sil, %esi`) as well. A call or a system call loses all six.
//!
//! What is lost without having been read is told apart: the function does not use what its caller left there, so it is no
//! parameter, or one that is ignored. Not followed: values that were copied to another register or to the stack.

use super::flow::{self, Edge};
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register};

/// All six.
pub const ALL_ARGUMENTS: u8 = 0x3f;

/// The integer argument registers of the System V ABI, in order.
pub(super) const REGISTERS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// Their names, in order.
const NAMES: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];

/// Which argument registers a probe is to find as the caller has left them; sets as [`super::Site::arguments`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedArguments {
    /// Those that the function reads, as long as a call does not cost much more for it.
    Used,
    /// These, whatever the site costs.
    These(u8),
    /// These, whatever the site costs, and those that the function reads as long as a call does not cost much more for them.
    UsedAnd(u8),
}

impl WantedArguments {
    /// Nobody reads any.
    pub const NONE: Self = Self::These(0);

    /// As a set; where it is not said which are used, each may be.
    pub(super) fn all(self) -> u8 {
        match self {
            Self::Used | Self::UsedAnd(_) => ALL_ARGUMENTS,
            Self::These(set) => set,
        }
    }
}

/// What the instructions passed so far have done to the six registers; bit 0 is `rdi`, bit 5 `r9`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Passed {
    written: u8,
    /// Read while they held what the caller had passed.
    read: u8,
}

impl Passed {
    /// Those that still hold what the caller passed.
    pub fn kept(self) -> u8 {
        !self.written & ALL_ARGUMENTS
    }

    /// Those that were overwritten before anything had read them.
    pub fn unread(self) -> u8 {
        self.written & !self.read
    }

    /// Goes past one instruction.
    pub fn pass(&mut self, insn: &Instruction, factory: &mut InstructionInfoFactory) {
        // What a callee or the kernel reads and leaves is not known.
        if matches!(flow::edge(insn), Edge::Call | Edge::Other) {
            self.read |= self.kept();
            self.written = ALL_ARGUMENTS;
            return;
        }
        let (mut reads, mut writes) = (0, 0);
        for used in factory.info(insn).used_registers() {
            let full = used.register().full_register();
            let Some(i) = REGISTERS.iter().position(|&r| r == full) else { continue };
            let bit = 1 << i;
            match used.access() {
                OpAccess::Read | OpAccess::CondRead => reads |= bit,
                OpAccess::Write if used.register().size() >= 4 => writes |= bit,
                // One part is written, or it may be: the rest is as it was, and may be read later.
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
                    reads |= bit;
                    writes |= bit;
                }
                OpAccess::None | OpAccess::NoMemAccess => {}
            }
        }
        self.read |= reads & !self.written;
        self.written |= writes;
    }
}

/// The registers of a set, for people: `rdx, rcx`.
#[must_use]
pub fn register_names(set: u8) -> String {
    let names = NAMES.iter().enumerate().filter(|(i, _)| set & 1 << i != 0);
    names.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::stack_switch::tests::file_with;
    use super::super::{Inspection, KernelRules, SiteChoice};
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use profiler_core::class::{ExitMode, SiteClass};

    /// Names of those that are kept, and of those that were lost unread, behind the code.
    fn behind(code: &[u8]) -> (String, String) {
        let mut factory = InstructionInfoFactory::new();
        let mut passed = Passed::default();
        for insn in Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE) {
            assert!(!insn.is_invalid(), "{code:x?}");
            passed.pass(&insn, &mut factory);
        }
        (register_names(!passed.kept()), register_names(passed.unread()))
    }

    #[test]
    fn a_register_is_lost_once_any_part_of_it_was_written() {
        // Code, lost, of those unread.
        let cases: [(&str, &[u8], &str, &str); 30] = [
            ("nothing", &[], "", ""),
            ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa], "", ""),
            ("push rbx; push r12", &[0x53, 0x41, 0x54], "", ""),
            ("push rdi", &[0x57], "", ""),
            ("mov ecx, 2", &[0xb9, 2, 0, 0, 0], "rcx", "rcx"),
            ("mov cl, 2: bits 8 and up stay", &[0xb1, 2], "rcx", ""),
            ("mov ch, 2", &[0xb5, 2], "rcx", ""),
            ("mov dx, 2", &[0x66, 0xba, 2, 0], "rdx", ""),
            ("add rsi, 1", &[0x48, 0x83, 0xc6, 1], "rsi", ""),
            ("xor eax, eax", &[0x31, 0xc0], "", ""),
            ("xor edx, edx", &[0x31, 0xd2], "rdx", "rdx"),
            ("xor edx, ecx", &[0x31, 0xca], "rdx", ""),
            ("movzx esi, sil: a truncation", &[0x40, 0x0f, 0xb6, 0xf6], "rsi", ""),
            ("movsxd rdi, edi", &[0x48, 0x63, 0xff], "rdi", ""),
            ("mov edi, edi", &[0x89, 0xff], "rdi", ""),
            ("lea r8, [rdi+8]", &[0x4c, 0x8d, 0x47, 8], "r8", "r8"),
            ("lea rdi, [rdi+8]", &[0x48, 0x8d, 0x7f, 8], "rdi", ""),
            ("lea rax, [rdi+rsi]", &[0x48, 0x8d, 0x04, 0x37], "", ""),
            ("xchg rdi, rsi", &[0x48, 0x87, 0xf7], "rdi, rsi", ""),
            ("xchg rax, rdx", &[0x48, 0x92], "rdx", ""),
            ("cmove rcx, rdx: it may write", &[0x48, 0x0f, 0x44, 0xca], "rcx", ""),
            ("sete cl", &[0x0f, 0x94, 0xc1], "rcx", ""),
            ("cmp rdi, rsi; test edx, edx", &[0x48, 0x39, 0xf7, 0x85, 0xd2], "", ""),
            ("mov [rdi], rsi", &[0x48, 0x89, 0x37], "", ""),
            ("mul rsi: rdx is written", &[0x48, 0xf7, 0xe6], "rdx", "rdx"),
            ("cqo", &[0x48, 0x99], "rdx", "rdx"),
            ("rdtsc", &[0x0f, 0x31], "rdx", "rdx"),
            ("rep movsb", &[0xf3, 0xa4], "rdi, rsi, rcx", ""),
            ("call", &[0xe8, 0, 0, 0, 0], "rdi, rsi, rdx, rcx, r8, r9", ""),
            ("syscall", &[0x0f, 0x05], "rdi, rsi, rdx, rcx, r8, r9", ""),
        ];
        for (name, code, lost, unread) in cases {
            assert_eq!(behind(code), (lost.to_owned(), unread.to_owned()), "{name}");
        }
    }

    #[test]
    fn what_was_read_before_it_was_lost_is_in_use() {
        // mov r10, rcx; mov ecx, 2
        assert_eq!(behind(&[0x49, 0x89, 0xca, 0xb9, 2, 0, 0, 0]), ("rcx".into(), String::new()));
        // mov ecx, 2; mov r10, rcx: what it reads is its own.
        assert_eq!(behind(&[0xb9, 2, 0, 0, 0, 0x49, 0x89, 0xca]), ("rcx".into(), "rcx".into()));
    }

    /// The sites of a function with this code.
    fn sites_of(code: &[u8]) -> SiteChoice {
        let dir = tempfile::tempdir().unwrap();
        let module = file_with(dir.path(), 4096, code, Some(code.len() as u64));
        Inspection::sites_offline(&module, &module.functions(0)[0], KernelRules::for_version(6, 18))
    }

    /// Offset, price class, and what is lost there, and that unread: of the site of a return link, without and with arguments.
    fn chosen(code: &[u8]) -> [(u64, SiteClass, String, String); 2] {
        let choice = sites_of(code);
        let cheapest = choice.return_link.clone().unwrap();
        let with = choice.entry_with(WantedArguments::Used, ExitMode::ReturnLink, cheapest, |_| 1_000.0);
        [cheapest, with.site].map(|site| {
            let lost = register_names(!site.arguments);
            (site.offset, site.class, lost, register_names(site.unread))
        })
    }

    /// `sqlite3_result_text64` of Debian's SQLite 3.40, its first block: `mov rax, rcx; cmp r8b, 4; mov ecx, 2; push rbx`.
    const RESULT_TEXT64: [u8; 30] = [
        0x48, 0x89, 0xc8, 0x41, 0x80, 0xf8, 4, 0xb9, 2, 0, 0, 0, 0x53, 0x44, 0x0f, 0x44, 0xc1, 0x48, 0x89,
        0xfb, 0x48, 0x81, 0xfa, 0xff, 0xff, 0xff, 0x7f, 0x5b, 0xc3, 0x90,
    ];
    /// `__gmpn_hgcd_matrix_init` of GMP 6.2: `add rsi, 1; push rbp; mov rcx, rdx; mov rbp, rdi; push rbx`.
    const MATRIX_INIT: [u8; 16] =
        [0x48, 0x83, 0xc6, 1, 0x55, 0x48, 0x89, 0xd1, 0x48, 0x89, 0xfd, 0x53, 0x5b, 0x5d, 0xc3, 0x90];

    #[test]
    fn the_cheap_site_of_real_functions_has_lost_an_argument_that_they_use() {
        let none = String::new;
        let first = (0, SiteClass::Stepped, none(), none());
        let of = |at, lost: &str| (at, SiteClass::Push, lost.to_owned(), none());
        assert_eq!(chosen(&RESULT_TEXT64), [of(12, "rcx"), first.clone()]);
        assert_eq!(chosen(&MATRIX_INIT), [of(4, "rsi"), first]);
    }

    #[test]
    fn what_a_function_does_not_read_may_be_lost() {
        // mov ecx, 2; push rbx; mov rbx, rdi; pop rbx; ret
        let site = (5, SiteClass::Push, "rcx".to_owned(), "rcx".to_owned());
        assert_eq!(chosen(&[0xb9, 2, 0, 0, 0, 0x53, 0x48, 0x89, 0xfb, 0x5b, 0xc3]), [site.clone(), site]);
    }

    #[test]
    fn each_round_of_a_loop_comes_by_with_other_registers() {
        // add rdi, 1; dec rsi; jne to the begin; ret
        let choice = sites_of(&[0x48, 0x83, 0xc7, 1, 0x48, 0xff, 0xce, 0x75, 0xf7, 0xc3]);
        assert!(choice.iterations && !choice.entries.is_empty());
        assert!(choice.entries.iter().all(|site| site.arguments == 0), "{:?}", choice.entries);
    }
}
