//! All instruction forms of 64-bit code, by writing down every encoding that could be another form and asking the decoder.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use profiler_user::inspect::forms::Form;
use std::collections::BTreeMap;

/// Samples of each form: the first that was written down, then some others.
pub type Samples = BTreeMap<Form, Vec<Vec<u8>>>;

/// Samples that are kept of a form, with different kinds of operands.
pub const KEPT: usize = 4;

/// What displacements and immediates are filled with.
const FILL: u8 = 5;

/// Prefixes before a legacy opcode; mandatory ones and others.
const LEGACY_PREFIXES: [&[u8]; 6] = [&[], &[0x66], &[0xf2], &[0xf3], &[0x66, 0xf2], &[0x66, 0xf3]];
/// Prefixes that change an address.
const ADDRESS_PREFIXES: [&[u8]; 3] = [&[], &[0x67], &[0x64]];
/// No REX, one without bits, with B, with W, with both.
const REX: [&[u8]; 5] = [&[], &[0x40], &[0x41], &[0x48], &[0x49]];
/// Opcodes that compilers and linkers write with a prefix that changes nothing: `rep ret`, `bnd jmp`, `pause`, `addr32 call`,
/// `data16 lea` and `rex.W call` of thread-local storage.
fn written_with_idle_prefixes(map: u8, opcode: u8) -> bool {
    match map {
        0 => {
            matches!(opcode, 0x50..=0x5f | 0x70..=0x7f | 0x8d | 0x90 | 0xc2 | 0xc3 | 0xe8 | 0xe9 | 0xeb | 0xff)
        }
        _ => matches!(opcode, 0x1e | 0x1f | 0x80..=0x8f),
    }
}

/// Whether a prefix could go and the instruction stayed the same.
fn has_idle_prefix(bytes: &[u8]) -> bool {
    let code = |bytes: &[u8]| Decoder::new(64, bytes, DecoderOptions::NONE).decode().code();
    let whole = code(bytes);
    let prefixes = bytes.iter().take_while(|b| matches!(b, 0x64..=0x67 | 0xf2 | 0xf3)).count();
    let rex = matches!(bytes.get(prefixes), Some(0x40..=0x4f));
    let opcode = &bytes[prefixes + usize::from(rex)..];
    let (map, opcode) = match opcode {
        [0x0f, 0x38 | 0x3a, ..] => (2, 0),
        [0x0f, opcode, ..] => (1, *opcode),
        [opcode, ..] => (0, *opcode),
        [] => return false,
    };
    if written_with_idle_prefixes(map, opcode) && prefixes <= 1 && !bytes.starts_with(&[0x64]) {
        return false;
    }
    let operand = decode(bytes).is_some_and(|i| i.op_kinds().any(is_memory));
    if !operand && bytes[..prefixes].iter().any(|b| matches!(b, 0x64 | 0x67)) && code(&bytes[1..]) == whole {
        return true;
    }
    let idle = (0..prefixes).any(|i| {
        let mut less = bytes.to_vec();
        matches!(less.remove(i), 0x66 | 0xf2 | 0xf3) && code(&less) == whole
    });
    // W that widens nothing.
    let idle_w = rex && bytes[prefixes] & 8 != 0 && {
        let mut less = bytes.to_vec();
        less[prefixes] &= !8;
        code(&less) == whole
    };
    idle || idle_w
}

/// Memory operands: ModRM without its middle field, then SIB.
const MEMORY: [&[u8]; 12] = [
    &[0x03],
    &[0x43],
    &[0x83],
    &[0x05],
    &[0x04, 0x25],
    &[0x04, 0x4d],
    &[0x04, 0x4b],
    &[0x44, 0x4b],
    &[0x84, 0x4b],
    &[0x04, 0x24],
    &[0x44, 0x24],
    &[0x84, 0x24],
];

/// Forms without VEX and EVEX.
pub fn legacy(samples: &mut Samples) {
    let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    for (address, prefixes, rex, map) in ADDRESS_PREFIXES.iter().flat_map(|address| {
        LEGACY_PREFIXES
            .iter()
            .flat_map(move |p| REX.iter().flat_map(move |r| maps.map(move |m| (*address, *p, *r, m))))
    }) {
        let head = [address, prefixes, rex, map].concat();
        for opcode in 0..=255 {
            let prefix = matches!(
                opcode,
                0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x62 | 0x64..=0x67 | 0xc4 | 0xc5 | 0xf0 | 0xf2 | 0xf3
            );
            if map.is_empty() && prefix {
                continue;
            }
            modrms(&head, opcode, samples);
        }
    }
}

/// Forms with VEX.
pub fn vex(samples: &mut Samples) {
    for opcode in 0..=255 {
        for last in 0..8_u8 {
            // L and pp; no vvvv, and one.
            for vvvv in [0x78, 0x60] {
                modrms(&[0xc5, 0x80 | vvvv | last], opcode, samples);
                for (map, w) in [(1, 0), (1, 0x80), (2, 0), (2, 0x80), (3, 0), (3, 0x80)] {
                    modrms(&[0xc4, 0xe0 | map, w | vvvv | last], opcode, samples);
                }
            }
        }
    }
}

/// Forms with EVEX.
pub fn evex(samples: &mut Samples) {
    for opcode in 0..=255 {
        for (map, wpp) in [1, 2, 3, 5, 6].iter().flat_map(|map| (0..8).map(move |wpp| (map, wpp))) {
            for vvvv in [0x78_u8, 0x60] {
                let p1 = (wpp & 4) << 5 | vvvv | 4 | wpp & 3;
                if !evex_opcode(&[0x62, 0xf0 | map, p1], opcode) {
                    continue;
                }
                // z, L'L, b; without and with a mask.
                for (flags, mask) in (0..16).flat_map(|flags| [(flags, 0), (flags, 1)]) {
                    modrms(&[0x62, 0xf0 | map, p1, flags << 4 | 8 | mask], opcode, samples);
                }
            }
        }
    }
}

/// Whether any length, with and without a mask, makes an instruction of it.
fn evex_opcode(head: &[u8], opcode: u8) -> bool {
    let mut bytes = [FILL; 16];
    bytes[..3].copy_from_slice(head);
    bytes[4] = opcode;
    [0x08, 0x28, 0x48, 0x09, 0x29, 0x49, 0x18, 0x58].iter().any(|&flags| {
        bytes[3] = flags;
        (0..8).any(|reg| {
            [0xc3, 0x03, 0x04].iter().any(|&modrm| {
                bytes[5] = modrm | reg << 3;
                !Decoder::new(64, &bytes, DecoderOptions::NONE).decode().is_invalid()
            })
        })
    })
}

/// All ModRM bytes that could make another form: of the middle field those that make another code.
fn modrms(head: &[u8], opcode: u8, samples: &mut Samples) {
    let mut bytes = [FILL; 16];
    bytes[..head.len()].copy_from_slice(head);
    bytes[head.len()] = opcode;
    let at = head.len() + 1;
    let mut seen: Vec<Code> = Vec::new();
    let mut fresh = |bytes: &[u8]| {
        let code = Decoder::new(64, bytes, DecoderOptions::NONE).decode().code();
        let fresh = code != Code::INVALID && !seen.contains(&code);
        if fresh {
            seen.push(code);
        }
        fresh
    };
    for modrm in 0xc0..=0xff_u8 {
        bytes[at] = modrm;
        if fresh(&bytes) {
            keep_first(&bytes, samples);
        }
    }
    let mut seen: Vec<Code> = Vec::new();
    for reg in 0..8_u8 {
        bytes[at] = 3 | reg << 3;
        let code = Decoder::new(64, &bytes, DecoderOptions::NONE).decode().code();
        if code == Code::INVALID || seen.contains(&code) {
            continue;
        }
        seen.push(code);
        for memory in MEMORY {
            bytes[at..].fill(FILL);
            bytes[at..at + memory.len()].copy_from_slice(memory);
            bytes[at] |= reg << 3;
            keep_first(&bytes, samples);
        }
    }
    // Elements addressed by a vector have a SIB byte.
    for memory in &MEMORY[5..9] {
        bytes[at..].fill(FILL);
        bytes[at..at + memory.len()].copy_from_slice(memory);
        keep_first(&bytes, samples);
    }
}

fn keep_first(bytes: &[u8], samples: &mut Samples) {
    let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
    if !insn.is_invalid() && insn.len() <= 15 {
        keep(&bytes[..insn.len()], samples);
    }
}

fn keep(bytes: &[u8], samples: &mut Samples) {
    let Ok(form) = Form::of(bytes) else { return };
    let kept = samples.entry(form).or_default();
    if kept.len() < KEPT {
        kept.push(bytes.to_vec());
    } else {
        // Spread over all that were seen, the first stays.
        let at = bytes.iter().fold(bytes.len(), |sum, b| sum.wrapping_mul(31) ^ usize::from(*b)) % (4 * KEPT);
        if (1..KEPT).contains(&at) {
            kept[at] = bytes.to_vec();
        }
    }
}

/// Takes out the forms that nobody writes: with a prefix that changes nothing.
pub fn without_idle(samples: &mut Samples) {
    samples.retain(|_, kept| !has_idle_prefix(&kept[0]));
}

/// Decodes one instruction.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Instruction> {
    let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
    (!insn.is_invalid()).then_some(insn)
}

fn is_memory(kind: OpKind) -> bool {
    !matches!(
        kind,
        OpKind::Register
            | OpKind::NearBranch16
            | OpKind::NearBranch32
            | OpKind::NearBranch64
            | OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Another encoding of the same form, with registers by chance; `None` if none was found.
#[must_use]
pub fn variant(sample: &[u8], rng: &mut impl rand::RngExt) -> Option<Vec<u8>> {
    let form = Form::of(sample).ok()?;
    (0..40).find_map(|_| {
        let mut bytes = sample.to_vec();
        let first = bytes.iter().position(|b| !matches!(b, 0x64..=0x67 | 0xf2 | 0xf3))?;
        // The prefix that extends registers, the opcode and the two bytes behind it hold all registers.
        let end = (first + 8).min(bytes.len());
        for byte in &mut bytes[first..end] {
            if rng.random_bool(0.5) {
                *byte ^= rng.random_range(0..=255_u8) & rng.random_range(0..=255_u8);
            }
        }
        let insn = decode(&bytes)?;
        let same = bytes != sample && Form::of(&bytes) == Ok(form);
        let apart = insn.memory_base() == iced_x86::Register::None
            || insn.memory_base().full_register() != insn.memory_index().full_register();
        (same && apart && never(&insn).is_none()).then_some(bytes)
    })
}

/// Why a form is never accepted, whatever a run would say; most are not even run.
#[must_use]
pub fn never(insn: &Instruction) -> Option<&'static str> {
    use Mnemonic as M;
    if insn.is_privileged() {
        return Some("privileged");
    }
    if insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix()) {
        return Some("repeated string instruction");
    }
    if insn.op_kinds().any(|kind| matches!(kind, OpKind::FarBranch16 | OpKind::FarBranch32))
        || insn.is_jmp_far_indirect()
        || insn.is_call_far_indirect()
    {
        return Some("far transfer");
    }
    match insn.mnemonic() {
        M::Pushf | M::Pushfq | M::Popf | M::Popfq => Some("flags as a whole"),
        M::Int | M::Int1 | M::Int3 | M::Into | M::Ud0 | M::Ud1 | M::Ud2 | M::Bound => Some("trap"),
        M::Iret | M::Iretd | M::Iretq | M::Retf | M::Uiret => Some("far transfer"),
        M::Syscall | M::Sysenter | M::Sysret | M::Sysretq | M::Sysexit | M::Sysexitq => Some("system call"),
        M::Vmcall
        | M::Vmmcall
        | M::Vmgexit
        | M::Vmfunc
        | M::Vmlaunch
        | M::Vmresume
        | M::Tdcall
        | M::Seamcall
        | M::Seamops
        | M::Seamret
        | M::Enclu
        | M::Encls
        | M::Enclv
        | M::Pvalidate
        | M::Getsec => Some("call of a monitor"),
        M::Monitor | M::Monitorx | M::Mwait | M::Mwaitx | M::Umonitor | M::Umwait | M::Tpause => {
            Some("waits")
        }
        M::Xbegin | M::Xend | M::Xabort | M::Xtest | M::Xsusldtrk | M::Xresldtrk => Some("transaction"),
        M::Rdtsc | M::Rdtscp | M::Rdpmc | M::Rdrand | M::Rdseed | M::Cpuid | M::Rdpid | M::Xgetbv => {
            Some("clock, random or CPU number: cannot be compared")
        }
        M::Rdfsbase
        | M::Rdgsbase
        | M::Wrfsbase
        | M::Wrgsbase
        | M::Wrpkru
        | M::Rdpkru
        | M::Swapgs
        | M::Lfs
        | M::Lgs
        | M::Lss
        | M::Lar
        | M::Lsl
        | M::Verr
        | M::Verw
        | M::Sgdt
        | M::Sidt
        | M::Sldt
        | M::Smsw
        | M::Str
        | M::In
        | M::Out
        | M::Insb
        | M::Insw
        | M::Insd
        | M::Outsb
        | M::Outsw
        | M::Outsd => Some("segments and system registers"),
        M::Xsave
        | M::Xsave64
        | M::Xsaveopt
        | M::Xsaveopt64
        | M::Xsavec
        | M::Xsavec64
        | M::Xsaves
        | M::Xsaves64
        | M::Xrstor
        | M::Xrstor64
        | M::Xrstors
        | M::Xrstors64
        | M::Fxsave
        | M::Fxsave64
        | M::Fxrstor
        | M::Fxrstor64 => Some("state as a whole"),
        M::Senduipi | M::Clui | M::Stui | M::Testui => Some("user interrupts"),
        M::Mov | M::Pop | M::Push
            if insn.op_kinds().enumerate().any(|(i, kind)| {
                kind == OpKind::Register && {
                    let register = insn.op_register(i as u32);
                    register.is_segment_register() || register.is_cr() || register.is_dr()
                }
            }) =>
        {
            Some("segments and system registers")
        }
        _ => None,
    }
}
