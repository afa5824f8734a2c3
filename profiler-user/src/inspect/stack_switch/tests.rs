use super::super::Module;
use super::places::{AFTER, BEFORE, scan};
use super::values::{foreign_loads, kept, source};
use super::*;
use crate::target_file::tests::{Claim, elf_that_claims};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What the decoder says of a function, after the pass over the bytes has found a place in it.
fn verdict(code: &[u8]) -> Option<String> {
    let mut found = Vec::new();
    let mut bytes = vec![0x90; BEFORE];
    bytes.extend_from_slice(code);
    bytes.extend_from_slice(&[0x90; AFTER]);
    scan(&bytes, 0x1000, &mut None, &mut found);
    if found.is_empty() {
        return None;
    }
    foreign_load(code, Begin::Function)
}

/// From what the first foreign value comes; called functions write what they may.
fn foreign_load(code: &[u8], begin: Begin) -> Option<String> {
    let region = Region::decode_bytes(0x1000, code.to_vec());
    let loads = foreign_loads(&region, begin, &mut |_| !kept()).unwrap();
    loads.first().map(|&i| source(&region.insns[i]))
}

#[test]
fn branches_that_change_what_is_known_again_and_again_are_not_followed_for_ever() {
    // A loop that pops what was pushed before it: one more value is unknown each time round. The stores make it be walked three times.
    let code = |pushes: usize| {
        let mut code = vec![0x48, 0x89, 0xfc]; // mov rsp, rdi
        code.extend_from_slice(&[0x48, 0x8b, 0x5c, 0x24, 0x08]); // mov rbx, [rsp+8]
        code.extend_from_slice(&[0x48, 0x89, 0x5c, 0x24, 0x10]); // mov [rsp+16], rbx
        code.extend_from_slice(&[0x48, 0x89, 0x7c, 0x24, 0x08]); // mov [rsp+8], rdi
        code.extend(std::iter::repeat_n(0x57, pushes)); // push rdi
        code.push(0x58); // pop rax
        code.extend(std::iter::repeat_n(0x90, 4000));
        code.push(0xe9); // jmp back to the pop
        code.extend_from_slice(&(-4006i32).to_le_bytes());
        Region::decode_bytes(0x1000, code)
    };
    assert!(foreign_loads(&code(3), Begin::Function, &mut |_| 0).is_ok_and(|loads| loads == [0]));
    assert!(foreign_loads(&code(31), Begin::Function, &mut |_| 0).is_err());
}

#[test]
fn what_switches_stacks_is_found() {
    let cases: [(&str, &[u8], &str); 21] = [
        ("mov [rdi], rsp; mov rsp, [rsi]; ret", &[0x48, 0x89, 0x27, 0x48, 0x8b, 0x26, 0xc3], "memory at rsi"),
        ("mov [rdi], rsp; mov rsp, rsi; ret", &[0x48, 0x89, 0x27, 0x48, 0x89, 0xf4, 0xc3], "rsi"),
        ("mov rsp, rsi, other form; ret", &[0x48, 0x8b, 0xe6, 0xc3], "rsi"),
        ("xchg rsp, rdi; ret", &[0x48, 0x87, 0xe7, 0xc3], "rdi"),
        ("xchg rsp, rax; ret", &[0x48, 0x94, 0xc3], "rax"),
        ("xchg rsp, [rdi]; ret", &[0x48, 0x87, 0x27, 0xc3], "memory at rdi"),
        ("lea rsp, [rdi+16]; ret", &[0x48, 0x8d, 0x67, 0x10, 0xc3], "rdi"),
        ("cmovne rsp, rsi; ret", &[0x48, 0x0f, 0x45, 0xe6, 0xc3], "rsi"),
        ("push rdi; pop rsp, long form; ret", &[0x57, 0x8f, 0xc4, 0xc3], "the stack"),
        ("push rdi; pop rsp; ret", &[0x57, 0x5c, 0xc3], "the stack"),
        ("push rsi; pop rsp; xor eax, eax; ret", &[0x56, 0x5c, 0x31, 0xc0, 0xc3], "the stack"),
        ("push rsp; mov [rsp], rdi; pop rsp; ret", &[0x54, 0x48, 0x89, 0x3c, 0x24, 0x5c, 0xc3], "the stack"),
        ("mov rbp, rdi; leave; ret", &[0x48, 0x89, 0xfd, 0xc9, 0xc3], "rbp, which is not its frame's"),
        (
            "lea rbp, [rdi+16]; leave; ret",
            &[0x48, 0x8d, 0x6f, 0x10, 0xc9, 0xc3],
            "rbp, which is not its frame's",
        ),
        ("push rsi; pop rbp; leave; ret", &[0x56, 0x5d, 0xc9, 0xc3], "rbp, which is not its frame's"),
        ("push rsi; pop rbp; mov rsp, rbp; ret", &[0x56, 0x5d, 0x48, 0x89, 0xec, 0xc3], "rbp"),
        ("mov rsp, rbx; ret", &[0x48, 0x89, 0xdc, 0xc3], "rbx"),
        ("mov rsp, rbp; pop rbp; ret", &[0x48, 0x89, 0xec, 0x5d, 0xc3], "rbp"),
        // The old one is kept in rax, which is then the new one's.
        (
            "mov rax, rsp; mov [rdi], rax; mov rax, [rsi]; mov rsp, rax; ret",
            &[0x48, 0x89, 0xe0, 0x48, 0x89, 0x07, 0x48, 0x8b, 0x06, 0x48, 0x89, 0xc4, 0xc3],
            "rax",
        ),
        (
            "mov rsp, fs:[0]; ret",
            &[0x64, 0x48, 0x8b, 0x24, 0x25, 0, 0, 0, 0, 0xc3],
            "thread-local or absolute memory",
        ),
        // -O0: the argument goes through the frame.
        (
            "push rbp; mov rbp, rsp; mov [rbp-8], rdi; mov rax, [rbp-8]; mov rsp, rax; ret",
            &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x7d, 0xf8, 0x48, 0x8b, 0x45, 0xf8, 0x48, 0x89, 0xc4, 0xc3],
            "rax",
        ),
    ];
    for (name, code, from) in cases {
        assert_eq!(verdict(code).as_deref(), Some(from), "{name}");
    }
}

#[test]
fn what_compilers_do_with_the_stack_pointer_is_none() {
    let cases: [(&str, &[u8]); 8] = [
        ("push rbp; mov rbp, rsp; leave; ret", &[0x55, 0x48, 0x89, 0xe5, 0xc9, 0xc3]),
        (
            "push rbp; mov rbp, rsp; sub rsp, rdi; lea rsp, [rbp-8]; pop rbp; ret",
            &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xfc, 0x48, 0x8d, 0x65, 0xf8, 0x5d, 0xc3],
        ),
        // A realigned frame: r10 is kept on the stack.
        (
            "lea r10, [rsp+8]; and rsp, -32; push [r10-8]; push rbp; mov rbp, rsp; push r10; mov r10, [rbp-8]; leave; lea rsp, [r10-8]; ret",
            &[
                0x4c, 0x8d, 0x54, 0x24, 0x08, 0x48, 0x83, 0xe4, 0xe0, 0x41, 0xff, 0x72, 0xf8, 0x55, 0x48,
                0x89, 0xe5, 0x41, 0x52, 0x4c, 0x8b, 0x55, 0xf8, 0xc9, 0x49, 0x8d, 0x62, 0xf8, 0xc3,
            ],
        ),
        // The dynamic loader's way: rbx holds the old stack pointer.
        (
            "push rbx; mov rbx, rsp; and rsp, -64; call; mov rsp, rbx; pop rbx; ret",
            &[0x53, 0x48, 0x89, 0xe3, 0x48, 0x83, 0xe4, 0xc0, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xdc, 0x5b, 0xc3],
        ),
        // A block with a variable-length array: the old stack pointer is kept in the frame.
        (
            "push rbp; mov rbp, rsp; mov rax, rsp; mov [rbp-16], rax; sub rsp, rdi; mov rax, [rbp-16]; mov rsp, rax; leave; ret",
            &[
                0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xe0, 0x48, 0x89, 0x45, 0xf0, 0x48, 0x29, 0xfc, 0x48,
                0x8b, 0x45, 0xf0, 0x48, 0x89, 0xc4, 0xc9, 0xc3,
            ],
        ),
        // Cryptographic assembly: the old stack pointer through rax, a slot and rsi.
        (
            "mov rax, rsp; and rsp, -64; mov [rsp+24], rax; mov rsi, [rsp+24]; lea rsp, [rsi]; ret",
            &[
                0x48, 0x89, 0xe0, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x44, 0x24, 0x18, 0x48, 0x8b, 0x74,
                0x24, 0x18, 0x48, 0x8d, 0x26, 0xc3,
            ],
        ),
        ("lea rsp, [rsp+8]; ret", &[0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3]),
        (
            "test rdi, rdi; je +5; push rbp; mov rbp, rsp; leave; ret",
            &[0x48, 0x85, 0xff, 0x74, 0x05, 0x55, 0x48, 0x89, 0xe5, 0xc9, 0xc3],
        ),
    ];
    for (name, code) in cases {
        assert_eq!(verdict(code), None, "{name}");
        // The decoder must not need the pass to be right.
        assert_eq!(foreign_load(code, Begin::Part), None, "{name}");
    }
}

/// What a function got from its caller is foreign, what a cold part got from the function that jumps to it may be its frame.
#[test]
fn parts_of_functions_have_the_frame_of_their_function() {
    for code in [&[0x48, 0x89, 0xec, 0x5d, 0xc3][..], &[0x48, 0x89, 0xdc, 0xc3]] {
        assert!(foreign_load(code, Begin::Function).is_some(), "{code:x?}");
        assert_eq!(foreign_load(code, Begin::Part), None, "{code:x?}");
    }
    // call +0; mov rsp, rbx; ret: the call may not return, and the rest belong to another branch.
    let code = [0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xdc, 0xc3];
    assert_eq!(foreign_load(&code, Begin::Function), None);
    // What the function itself put there stays foreign: mov rbx, rdi.
    let code = [&[0x48, 0x89, 0xfb][..], &code].concat();
    assert_eq!(foreign_load(&code, Begin::Function).as_deref(), Some("rbx"));
}

#[test]
fn a_load_on_one_branch_of_two_is_found() {
    // mov rax, rsp; test edi, edi; je +3; mov rax, rsi; mov rsp, rax; ret
    let code = [0x48, 0x89, 0xe0, 0x85, 0xff, 0x74, 0x03, 0x48, 0x89, 0xf0, 0x48, 0x89, 0xc4, 0xc3];
    assert_eq!(verdict(&code).as_deref(), Some("rax"));
}

/// Where the code of [`file_with`] begins: offset in the file, and address.
pub(in crate::inspect) const CODE_AT: (u64, u64) = (0x800, 0x1800);

/// A file of `text` bytes, no-operations but for this code; `symbol`: the size of the function that begins there.
pub(in crate::inspect) fn file_with(dir: &Path, text: u64, code: &[u8], symbol: Option<u64>) -> Module {
    let claims = [
        Claim(".text", 1, 0, text, 0),
        Claim(".symtab", 2, text, 48, 3),
        Claim(".strtab", 3, text + 4096, 4096, 0),
    ];
    let path = dir.join("code");
    // Allocated and executable.
    elf_that_claims(&path, text + 8192, 6, &claims);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0x90; (text - CODE_AT.0) as usize], CODE_AT.0).unwrap();
    file.write_all_at(code, CODE_AT.0).unwrap();
    // The program header's sizes in the file and in memory.
    file.write_all_at(&[text.to_le_bytes(), text.to_le_bytes()].concat(), 64 + 32).unwrap();
    if let Some(size) = symbol {
        let mut entry = vec![1, 0, 0, 0, 0x12, 0, 1, 0];
        entry.extend(CODE_AT.1.to_le_bytes());
        entry.extend(size.to_le_bytes());
        file.write_all_at(&entry, text + 24).unwrap();
        file.write_all_at(b"\0sized\0", text + 4096).unwrap();
    }
    Module::offline(&path).unwrap()
}

/// `mov [rdi], rsp; mov rsp, [rsi]; ret`
const SWITCH: [u8; 7] = [0x48, 0x89, 0x27, 0x48, 0x8b, 0x26, 0xc3];

#[test]
fn a_switch_behind_bytes_that_are_no_code_is_found() {
    let dir = tempfile::tempdir().unwrap();
    // push rbp; mov rbp, rsi; mov rbp, rsp; leave; ret; four bytes of data; aligned: the switch
    let mut helper = vec![0x55, 0x48, 0x89, 0xf5, 0x48, 0x89, 0xe5, 0xc9, 0xc3, 6, 6, 6, 6];
    helper.resize(16, 0x90);
    helper.extend(SWITCH);
    // One byte that is no instruction, right before the load.
    let bad = [&[0x90, 6][..], &SWITCH[3..]].concat();
    // Far behind what is decoded at once.
    let mut large = vec![0x90; 5 << 20];
    // A sign mask, whose last bytes decode to an instruction that reaches into the code behind it.
    let masked = [&[0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x80][..], &SWITCH].concat();
    // The code begins with the load: only that is swallowed.
    let swallowed = [&[0x90; 14][..], &[0x48, 0xb8], &SWITCH[3..]].concat();
    large.extend(SWITCH);
    /// Name, code, size of the text, size of its symbol, where the switch is.
    type Case<'a> = (&'a str, &'a [u8], u64, Option<u64>, u64);
    let cases: [Case<'_>; 7] = [
        ("behind a helper and data", &helper, 4096, None, 19),
        ("the same, in one symbol", &helper, 4096, Some(64), 19),
        ("behind a byte that is no instruction", &bad, 4096, Some(6), 2),
        ("the same without a symbol", &bad, 4096, None, 2),
        ("behind a mask of doubles", &masked, 4096, None, 19),
        ("behind what looks like the begin of a move", &swallowed, 4096, None, 16),
        ("in a function of 5 MiB", &large, 6 << 20, Some((5 << 20) + 7), (5 << 20) + 3),
    ];
    for (name, code, text, symbol, at) in cases {
        let module = file_with(dir.path(), text, code, symbol);
        let found = module.stack_switch().unwrap();
        assert_eq!(found.map(|s| s.vaddr), Some(CODE_AT.1 + at), "{name}");
    }
    // The helper alone is none.
    let module = file_with(dir.path(), 4096, &helper[..16], None);
    assert_eq!(module.stack_switch(), Ok(None));
}

#[test]
fn an_old_stack_pointer_is_kept_over_calls_that_do_not_touch_it() {
    let dir = tempfile::tempdir().unwrap();
    // lea rax, [rsp]; call +4; lea rsp, [rax]; ret
    let caller = [0x48, 0x8d, 0x04, 0x24, 0xe8, 4, 0, 0, 0, 0x48, 0x8d, 0x20, 0xc3];
    // add ecx, edx; ret, or mov eax, edi; ret
    for (callee, found) in [([0x01, 0xd1, 0xc3], None), ([0x89, 0xf8, 0xc3], Some(CODE_AT.1 + 9))] {
        let code = [&caller[..], &callee].concat();
        let module = file_with(dir.path(), 4096, &code, Some(13));
        assert_eq!(module.stack_switch().unwrap().map(|s| s.vaddr), found, "{callee:x?}");
    }
}

#[test]
fn data_between_functions_are_no_switch() {
    let dir = tempfile::tempdir().unwrap();
    let find = |code: &[u8], symbol| file_with(dir.path(), 4096, code, symbol).stack_switch().unwrap();
    // mov rsp, [rsi]; then bytes that are no instruction, one that only the kernel may run, a jump to the former
    let dead: [&[u8]; 4] = [
        &[0x48, 0x8b, 0x26, 0x06],
        &[0x48, 0x8b, 0x26, 0xf4],
        &[0x48, 0x8b, 0x26, 0xeb, 0x01, 0xc3, 0x06],
        // mov rsp, [rip-...]: far before the module; ret
        &[0x4a, 0x8b, 0x25, 0xf3, 0x21, 0xdd, 0x88, 0xc3],
    ];
    for code in dead {
        assert_eq!(find(code, None), None, "{code:x?}");
        // Where a symbol says that it is code, it is.
        assert!(find(code, Some(code.len() as u64)).is_some(), "{code:x?}");
    }
    // One way of two leads on: mov rsp, [rsi]; je +1; (none); ret
    let alive: [&[u8]; 3] = [
        &[0x48, 0x8b, 0x26, 0xc3],
        &[0x48, 0x8b, 0x26, 0x74, 0x01, 0x06, 0xc3],
        &[0x48, 0x8b, 0x26, 0xff, 0xe0],
    ];
    for code in alive {
        assert!(find(code, None).is_some(), "{code:x?}");
    }
}

#[test]
fn code_that_is_no_instruction_is_searched_in_proportion() {
    let dir = tempfile::tempdir().unwrap();
    // Each 16 bytes: mov rsp, [rsi], and bytes that are none; in one function of 1 MiB.
    let one = [&SWITCH[3..6], &[0x06; 13]].concat();
    let code: Vec<u8> = [&[0x06; 16][..], &one[1..]].concat().repeat(1 << 15);
    let module = file_with(dir.path(), 2 << 20, &code, Some(code.len() as u64));
    let begin = std::time::Instant::now();
    let _ = module.stack_switch();
    // A copy of the rest for each place took minutes.
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn all_modules_together_have_a_budget() {
    let dir = tempfile::tempdir().unwrap();
    let module = file_with(dir.path(), 4096, &SWITCH, Some(7));
    module.searched().store(MOST_OF_ALL + 1, Ordering::Relaxed);
    assert!(module.stack_switch().is_err_and(|why| why.contains("too much code")));
    module.searched().store(0, Ordering::Relaxed);
    assert!(module.stack_switch().unwrap().is_some());
}

#[test]
fn sections_that_claim_a_tebibyte_are_not_looked_through() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims");
    elf_that_claims(&path, (1 << 40) + (2 << 20), 6, &[Claim(".text", 1, 4096, 1 << 40, 0)]);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(Module::offline(&path).unwrap().stack_switch()));
    let answer = receiver.recv_timeout(std::time::Duration::from_secs(20)).expect("an answer");
    assert!(answer.is_err_and(|why| why.contains("too much to scan")));
}

#[test]
fn a_library_full_of_tables_is_looked_through_to_its_end() {
    // Its assembly keeps tables between functions, in which hundreds of places look like loads of `rsp`.
    let path = Path::new("/usr/lib/x86_64-linux-gnu/libcrypto.so.3");
    if !path.exists() {
        println!("skipped: there is no {}", path.display());
        return;
    }
    let module = Module::offline(path).unwrap();
    let (elf, symbols) = (module.elf().unwrap(), module.symbols().unwrap());
    let code: u64 = code_of(elf).unwrap().iter().map(|c| c.2).sum();
    let spent = AtomicU64::new(0);
    assert_eq!(find(elf, symbols, &spent).unwrap(), None);
    assert!(spent.into_inner() < 4 * code, "of {code} bytes of code");
}
