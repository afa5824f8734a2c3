use super::*;

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
    foreign_load(&Region::decode_bytes(0x1000, code.to_vec())).map(|(_, from)| from)
}

#[test]
fn what_switches_stacks_is_found() {
    let cases: [(&str, &[u8], &str); 12] = [
        ("mov [rdi], rsp; mov rsp, [rsi]; ret", &[0x48, 0x89, 0x27, 0x48, 0x8b, 0x26, 0xc3], "memory at rsi"),
        ("mov [rdi], rsp; mov rsp, rsi; ret", &[0x48, 0x89, 0x27, 0x48, 0x89, 0xf4, 0xc3], "rsi"),
        ("mov rsp, rsi, other form; ret", &[0x48, 0x8b, 0xe6, 0xc3], "rsi"),
        ("xchg rsp, rdi; ret", &[0x48, 0x87, 0xe7, 0xc3], "rdi"),
        ("xchg rsp, rax; ret", &[0x48, 0x94, 0xc3], "rax"),
        ("xchg rsp, [rdi]; ret", &[0x48, 0x87, 0x27, 0xc3], "memory at rdi"),
        ("lea rsp, [rdi+16]; ret", &[0x48, 0x8d, 0x67, 0x10, 0xc3], "rdi"),
        ("push rdi; pop rsp; ret", &[0x57, 0x5c, 0xc3], "the stack"),
        ("mov rbp, rdi; leave; ret", &[0x48, 0x89, 0xfd, 0xc9, 0xc3], "rbp, which is not its frame's"),
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
        // A cold part: rbp is that of the function that jumped here.
        ("mov rsp, rbp; pop rbp; ret", &[0x48, 0x89, 0xec, 0x5d, 0xc3]),
        ("lea rsp, [rsp+8]; ret", &[0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3]),
    ];
    for (name, code) in cases {
        assert_eq!(verdict(code), None, "{name}");
        // The decoder must not need the pass to be right.
        assert_eq!(foreign_load(&Region::decode_bytes(0x1000, code.to_vec())), None, "{name}");
    }
}

#[test]
fn a_load_on_one_branch_of_two_is_found() {
    // mov rax, rsp; test edi, edi; je +3; mov rax, rsi; mov rsp, rax; ret
    let code = [0x48, 0x89, 0xe0, 0x85, 0xff, 0x74, 0x03, 0x48, 0x89, 0xf0, 0x48, 0x89, 0xc4, 0xc3];
    assert_eq!(verdict(&code).as_deref(), Some("rax"));
}
