//! Whether functions come back to the return address that their callers left.

use super::*;

/// Of a function whose jumps are all known.
fn comes_back(code: &[u8]) -> Result<(), String> {
    let main = Region::decode_bytes(0x1000, code.to_vec());
    let unknown: Option<Unknown> = main.unknown.clone();
    leaves_as_it_came(&Body {
        main,
        parts: Vec::new(),
        leaders: BTreeSet::new(),
        unknown,
        indirect: Vec::new(),
    })
}

#[test]
fn functions_that_come_back_to_their_return_address_may_be_matched_there() {
    let cases: [(&str, &[u8]); 13] = [
        ("ret", &[0xc3]),
        ("rep ret", &[0xf3, 0xc3]),
        (
            "push rbx; sub rsp, 16; add rsp, 16; pop rbx; ret",
            &[0x53, 0x48, 0x83, 0xec, 16, 0x48, 0x83, 0xc4, 16, 0x5b, 0xc3],
        ),
        (
            "push rbp; mov rbp, rsp; sub rsp, rdi; leave; ret",
            &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xfc, 0xc9, 0xc3],
        ),
        (
            "push rbp; mov rbp, rsp; push rbx; lea rsp, [rbp-8]; pop rbx; pop rbp; ret",
            &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x8d, 0x65, 0xf8, 0x5b, 0x5d, 0xc3],
        ),
        (
            "a realigned frame",
            &[
                0x4c, 0x8d, 0x54, 0x24, 0x08, 0x48, 0x83, 0xe4, 0xe0, 0x41, 0xff, 0x72, 0xf8, 0x55, 0x48,
                0x89, 0xe5, 0x41, 0x52, 0x4c, 0x8b, 0x55, 0xf8, 0xc9, 0x49, 0x8d, 0x62, 0xf8, 0xc3,
            ],
        ),
        // What follows a call that does not come back belongs to another branch.
        (
            "push rbx; je +7; call; nop; nop; pop rbx; ret",
            &[0x53, 0x74, 7, 0xe8, 0x70, 0, 0, 0, 0x90, 0x90, 0x5b, 0xc3],
        ),
        ("a tail call: jmp rax", &[0xff, 0xe0]),
        ("jmp to another function, with a frame left", &[0x53, 0x5b, 0xe9, 0x70, 0, 0, 0]),
        ("an argument of its caller: mov [rsp+8], rdi; ret", &[0x48, 0x89, 0x7c, 0x24, 0x08, 0xc3]),
        (
            "its own frame: push rbx; mov [rsp], rdi; pop rbx; ret",
            &[0x53, 0x48, 0x89, 0x3c, 0x24, 0x5b, 0xc3],
        ),
        ("it only reads it: mov rax, [rsp]; ret", &[0x48, 0x8b, 0x04, 0x24, 0xc3]),
        ("a part of its own: call +1; ret; nop; ret", &[0xe8, 1, 0, 0, 0, 0xc3, 0x90, 0xc3]),
    ];
    for (name, code) in cases {
        assert_eq!(comes_back(code), Ok(()), "{name}");
    }
}

#[test]
fn functions_that_leave_in_another_way_are_told() {
    let cases: [(&str, &[u8], &str); 11] = [
        ("ret 8", &[0xc2, 8, 0], "takes 8 bytes off its caller's stack (`ret 8`) at +0x0"),
        ("retf", &[0xcb], "leaves by `retf` at +0x0"),
        ("pop rcx; jmp rcx", &[0x59, 0xff, 0xe1], "takes its return address off the stack at +0x0"),
        (
            "add rsp, 8; jmp rcx",
            &[0x48, 0x83, 0xc4, 8, 0xff, 0xe1],
            "takes its return address off the stack at +0x0",
        ),
        (
            "push rbx; add rsp, 16; jmp rcx",
            &[0x53, 0x48, 0x83, 0xc4, 16, 0xff, 0xe1],
            "takes its return address off the stack at +0x1",
        ),
        ("mov [rsp], rax; ret", &[0x48, 0x89, 0x04, 0x24, 0xc3], "writes over its return address at +0x0"),
        (
            "push rbp; mov rbp, rsp; mov [rbp+8], rdx; pop rbp; ret",
            &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x55, 8, 0x5d, 0xc3],
            "writes over its return address at +0x4",
        ),
        ("push rax; ret", &[0x50, 0xc3], "returns to another address than the one that its caller left"),
        // On one branch of two.
        (
            "test edi, edi; je +2; push rax; ret; ret",
            &[0x85, 0xff, 0x74, 2, 0x50, 0xc3, 0xc3],
            "returns to another address",
        ),
        // call 1f; 2: pause; jmp 2b; 1: mov [rsp], rax; ret
        (
            "a retpoline",
            &[0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc, 0x48, 0x89, 0x04, 0x24, 0xc3],
            "calls into its own middle, where the return address is changed",
        ),
        // call 1f; 1: add rsp, 8; ret
        (
            "call to the next instruction",
            &[0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 8, 0xc3],
            "calls into its own middle",
        ),
    ];
    for (name, code, why) in cases {
        let found = comes_back(code);
        assert!(found.as_ref().is_err_and(|found| found.contains(why)), "{name}: {found:?}");
    }
}

/// By their names, and where the stack pointer comes from elsewhere.
#[test]
fn names_and_stack_switches_count_too() {
    let dir = tempfile::tempdir().unwrap();
    // mov [rdi], rsp; mov rsp, rsi; ret
    let module = file_with(dir.path(), 4096, &[0x48, 0x89, 0x27, 0x48, 0x89, 0xf4, 0xc3], Some(7));
    let function = module.functions(0).remove(0);
    let why = returns::check(&module, &function).unwrap_err();
    assert!(why.0.contains("loads the stack pointer from rsi at +0x3"), "{why}");
    let module = file_with(dir.path(), 4096, &[0xc3], Some(1));
    let function = module.functions(0).remove(0);
    assert_eq!(returns::check(&module, &function), Ok(()));
    for (symbol, odd) in [("__sigsetjmp", true), ("longjmp", true), ("vfork", true), ("dlsym", false)] {
        let named = Function { symbol: symbol.into(), ..function.clone() };
        assert_eq!(returns::check(&module, &named).is_err(), odd, "{symbol}");
    }
}

/// Nothing would be matched at the return addresses of its calls, and what stands there may be data.
#[test]
fn functions_without_a_way_out_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let check = |code: &[u8]| {
        let module = file_with(dir.path(), 4096, code, Some(code.len() as u64));
        returns::check(&module, &module.functions(0).remove(0))
    };
    let call = [0xe8, 0x70, 0, 0, 0];
    let never: [(&str, &[u8]); 5] = [
        ("ud2", &[0x0f, 0x0b]),
        ("jmp to itself", &[0xeb, 0xfe]),
        ("push rax; call another that does not return", &[&[0x50], &call[..]].concat()),
        ("syscall; hlt", &[0x0f, 0x05, 0xf4]),
        ("test edi, edi; je +2; ud2; jmp to itself", &[0x85, 0xff, 0x74, 2, 0x0f, 0x0b, 0xeb, 0xfe]),
    ];
    for (name, code) in never {
        assert_eq!(check(code), Err(SiteObstacle("it has no way out: it never returns".into())), "{name}");
    }
    let may: [(&str, &[u8]); 6] = [
        ("call; ret", &[&call[..], &[0xc3]].concat()),
        ("ud2; ret", &[0x0f, 0x0b, 0xc3]),
        ("a tail call", &[0xe9, 0x70, 0, 0, 0]),
        ("a tail call through a pointer", &[0xff, 0xe0]),
        ("it runs into the next function", &[0x90, 0x90]),
        ("what cannot be decoded", &[0xeb, 0xfe, 6, 6]),
    ];
    for (name, code) in may {
        assert_eq!(check(code), Ok(()), "{name}");
    }
}

#[test]
fn calls_that_end_at_return_addresses_begin_at_the_cheapest_known_site() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |code: &[u8]| {
        let module = file_with(dir.path(), 4096, code, Some(code.len() as u64));
        let function = module.functions(0).remove(0);
        let sites = Inspection::sites_offline(&module, &function, RULES());
        Inspection::entry_for_returns_offline(&module, &function, &sites)
    };
    // endbr64; push rbx; pop rbx; ret
    let found = entry(&[0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0x5b, 0xc3]).unwrap();
    assert_eq!((found.offset, found.class, found.return_slot), (4, Push, Some(0)));
    // sub rsp, 24; push rbx; pop rbx; add rsp, 24; ret
    let found = entry(&[0x48, 0x83, 0xec, 24, 0x53, 0x5b, 0x48, 0x83, 0xc4, 24, 0xc3]).unwrap();
    assert_eq!((found.offset, found.class, found.return_slot), (4, Push, Some(3)));
    // dec edi; jne back to the begin; ret
    let why = entry(&[0xff, 0xcf, 0x75, 0xfc, 0xc3]).unwrap_err();
    assert!(why.0.contains("head of a loop"), "{why}");
    // lock inc [rdi]; syscall; ret: nothing of its first block can be probed
    let why = entry(&[&LOCKED[..], &[0x0f, 0x05, 0xc3]].concat()).unwrap_err();
    assert!(why.0.contains("no instruction can carry a breakpoint"), "{why}");
    let why = entry(&[0x53, 0xeb, 0xfe]).unwrap_err();
    assert!(why.0.contains("never returns"), "{why}");
}
