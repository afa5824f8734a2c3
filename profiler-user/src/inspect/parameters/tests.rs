use super::super::graph::tests::made::{ALLOC, EXEC, Made, WRITE};
use super::super::{Inspection, register_names};
use super::*;

const TEXT: u64 = 0x40_1000;
const PLT: u64 = 0x40_3000;
const GOT: u64 = 0x40_4000;

/// Functions by name, binding, address, version; each has a stub. `own` and `weak` are the second function.
const DYNAMIC: [(&str, u8, u64, &str); 8] = [
    ("memcpy", 1, 0, "GLIBC_2.14"),
    ("unheard_of", 1, 0, "GLIBC_2.2.5"),
    ("read", 1, 0, ""),
    ("write", 1, 0, "OTHER_1.0"),
    ("_Znwm", 1, 0, "GLIBCXX_3.4"),
    ("own", 1, TEXT + 0x40, ""),
    ("weak", 2, TEXT + 0x40, ""),
    // Weak, as calls of what may be missing.
    ("free", 2, 0, "GLIBC_2.2.5"),
];
/// The stub of a slot that holds the second function.
const RELATIVE: u64 = DYNAMIC.len() as u64;

/// A file with functions at every 0x40 bytes, and stubs at every 0x10.
fn module_of(functions: &[&[u8]]) -> (tempfile::TempDir, Module) {
    let mut text = vec![0x90; 0x1000];
    let mut made = Made::new(3);
    for (i, code) in functions.iter().enumerate() {
        text[i * 0x40..][..code.len()].copy_from_slice(code);
        made.symbol(&format!("f{i}"), TEXT + 0x40 * i as u64, code.len() as u64, 2);
    }
    made.section(".text", ALLOC | EXEC, TEXT, &text);
    // endbr64; jmp *slot(%rip), at every 16 bytes.
    let count = DYNAMIC.len() + 1;
    let mut plt = vec![0x90; 0x10 * count];
    for i in 0..count {
        plt[0x10 * i..][..6].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25]);
        let slot = GOT + 8 * i as u64;
        let next = PLT + 0x10 * i as u64 + 10;
        plt[0x10 * i + 6..][..4].copy_from_slice(&((slot - next) as u32).to_le_bytes());
    }
    made.section(".plt", ALLOC | EXEC, PLT, &plt);
    made.section(".got", ALLOC | WRITE, GOT, &vec![0; 8 * count]);
    made.dynamic(&DYNAMIC);
    // JUMP_SLOT of all, and RELATIVE, of which nothing is known.
    let mut slots: Vec<_> = (0..RELATIVE).map(|i| (GOT + 8 * i, 7, i as u32 + 1, 0)).collect();
    slots.push((GOT + 8 * RELATIVE, 8, 0, TEXT + 0x40));
    made.relocations(&slots);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("code");
    made.write(&path);
    let module = Module::offline(&path).unwrap();
    (dir, module)
}

/// The registers of the first function; `None`: not known.
fn parameters(functions: &[&[u8]]) -> Option<String> {
    let (_dir, module) = module_of(functions);
    let function = module.functions(0).into_iter().find(|f| f.vaddr == TEXT).unwrap();
    Inspection::parameters_offline(&module, &function).map(register_names)
}

/// `call` or `jmp` (0xe8, 0xe9) from `at` bytes behind the first function's begin.
fn near(opcode: u8, at: u64, to: u64) -> [u8; 5] {
    let distance = to.wrapping_sub(TEXT + at + 5) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [opcode, a, b, c, d]
}

fn call(at: u64, to: u64) -> [u8; 5] {
    near(0xe8, at, to)
}

#[test]
fn what_no_way_reads_is_no_parameter() {
    // Code, parameters.
    let cases: [(&str, &[u8], &str); 25] = [
        ("ret", &[0xc3], ""),
        ("lea eax, [rdi+rsi]; ret", &[0x8d, 0x04, 0x37, 0xc3], "rdi, rsi"),
        ("xor edx, edx; mov eax, edx; ret", &[0x31, 0xd2, 0x89, 0xd0, 0xc3], ""),
        ("xor edx, esi; ret", &[0x31, 0xf2, 0xc3], "rsi, rdx"),
        ("push rcx; pop rcx; ret: it is saved", &[0x51, 0x59, 0xc3], "rcx"),
        ("nop [rax+rdx]; endbr64; ret", &[0x0f, 0x1f, 0x44, 0x10, 0, 0xf3, 0x0f, 0x1e, 0xfa, 0xc3], ""),
        ("sete cl; movzx eax, cl; ret", &[0x0f, 0x94, 0xc1, 0x0f, 0xb6, 0xc1, 0xc3], ""),
        ("sete cl; mov eax, ecx; ret: the rest of it", &[0x0f, 0x94, 0xc1, 0x89, 0xc8, 0xc3], "rcx"),
        ("mov cl, 1; mov al, ch; ret", &[0xb1, 1, 0x88, 0xe8, 0xc3], "rcx"),
        ("cmove rcx, rax; mov rax, rcx; ret", &[0x48, 0x0f, 0x44, 0xc8, 0x48, 0x89, 0xc8, 0xc3], "rcx"),
        ("mov [rdi], r9; ret", &[0x4c, 0x89, 0x0f, 0xc3], "rdi, r9"),
        ("rep movsb; ret", &[0xf3, 0xa4, 0xc3], "rdi, rsi, rcx"),
        ("mul rsi; mov rax, rdx; ret", &[0x48, 0xf7, 0xe6, 0x48, 0x89, 0xd0, 0xc3], "rsi"),
        // On one way of two it is written, behind both it is read.
        (
            "test edi, edi; je +2; xor edx, edx; mov eax, edx; ret",
            &[0x85, 0xff, 0x74, 2, 0x31, 0xd2, 0x89, 0xd0, 0xc3],
            "rdi, rdx",
        ),
        // Nothing leads to the read.
        ("jmp +2; mov eax, esi; ret", &[0xeb, 2, 0x89, 0xf0, 0xc3], ""),
        // A loop: what a round writes the next one reads, and the first one reads the caller's.
        (
            "add eax, edx; mov edx, eax; dec edi; jne -8; ret",
            &[0x01, 0xd0, 0x89, 0xc2, 0xff, 0xcf, 0x75, 0xf8, 0xc3],
            "rdi, rdx",
        ),
        ("syscall; ret", &[0x0f, 0x05, 0xc3], "rdi, rsi, rdx, rcx, r8, r9"),
        ("xor edi, edi; syscall; ret", &[0x31, 0xff, 0x0f, 0x05, 0xc3], "rsi, rdx, rcx, r8, r9"),
        ("call rax; ret", &[0xff, 0xd0, 0xc3], "rdi, rsi, rdx, rcx, r8, r9"),
        ("ud2", &[0x0f, 0x0b], ""),
        ("int3; ret: a handler sees them", &[0xcc, 0xc3], "rdi, rsi, rdx, rcx, r8, r9"),
        ("xor edi, edi; int 0x80; ret", &[0x31, 0xff, 0xcd, 0x80, 0xc3], "rsi, rdx, rcx, r8, r9"),
        (
            "xor esi, esi; int1; mov eax, edi; ret",
            &[0x31, 0xf6, 0xf1, 0x89, 0xf8, 0xc3],
            "rdi, rdx, rcx, r8, r9",
        ),
        ("mov [rsp], rax; ret: it is a jump", &[0x48, 0x89, 0x04, 0x24, 0xc3], "rdi, rsi, rdx, rcx, r8, r9"),
        ("nop: it runs into what follows", &[0x90], "rdi, rsi, rdx, rcx, r8, r9"),
    ];
    for (name, code, used) in cases {
        assert_eq!(parameters(&[code]).as_deref(), Some(used), "{name}");
    }
    // Code that is not known completely: a byte that is no instruction; a jump through a register that was computed.
    assert_eq!(parameters(&[&[0x06, 0xc3]]), None);
    assert_eq!(parameters(&[&[0x48, 0x01, 0xd0, 0xff, 0xe0]]), None);
}

#[test]
fn what_is_passed_on_counts_if_the_callee_makes_use_of_it() {
    let f = |i: u64| TEXT + 0x40 * i;
    // mov eax, esi; ret
    let second: &[u8] = &[0x89, 0xf0, 0xc3];
    let then = |first: [u8; 5], rest: &[u8]| [&first[..], rest].concat();
    let of = |code: &[u8], others: &[&[u8]]| parameters(&[&[code][..], others].concat()).unwrap();
    let all = "rdi, rsi, rdx, rcx, r8, r9";
    assert_eq!(of(&then(call(0, f(1)), &[0xc3]), &[second]), "rsi");
    assert_eq!(of(&near(0xe9, 0, f(1)), &[second]), "rsi", "a tail jump");
    // xor esi, esi; jmp f1
    let set = [&[0x31, 0xf6][..], &near(0xe9, 2, f(1))].concat();
    assert_eq!(of(&set, &[second]), "");
    // Three calls deep, and back into the first one.
    let chain = |to: u64, from: u64| near(0xe9, f(from) - TEXT, to);
    let (one, two, back) = (chain(f(2), 1), chain(f(3), 2), chain(f(0), 3));
    assert_eq!(of(&near(0xe9, 0, f(1)), &[&one, &two, second]), "rsi");
    assert_eq!(of(&near(0xe9, 0, f(1)), &[&one, &two, &back]), all, "they jump in a circle");
    // Deeper than is followed.
    let deep: Vec<[u8; 5]> = (1..6).map(|i| chain(f(i + 1), i)).collect();
    let deep: Vec<&[u8]> = deep.iter().map(|code| &code[..]).chain([second]).collect();
    assert_eq!(of(&near(0xe9, 0, f(1)), &deep), all);
    // An address that is no function.
    assert_eq!(of(&near(0xe9, 0, TEXT + 0x900), &[]), all);
    // It calls itself, with what it was given: lea eax, [rdi]; call f0; ret
    let itself = [&[0x8d, 0x07][..], &call(2, f(0)), &[0xc3]].concat();
    assert_eq!(of(&itself, &[]), "rdi");
}

#[test]
fn behind_a_call_only_what_the_callee_does_not_write_is_the_callers() {
    let f1 = TEXT + 0x40;
    // call f1; mov eax, edx; ret
    let code = [&call(0, f1)[..], &[0x89, 0xd0, 0xc3]].concat();
    let of = |callee: &[u8]| parameters(&[&code, callee]).unwrap();
    assert_eq!(of(&[0xc3]), "rdx", "it leaves rdx alone");
    assert_eq!(of(&[0x31, 0xd2, 0xc3]), "");
    // Only on one way: the caller cannot lean on it.
    assert_eq!(of(&[0x85, 0xff, 0x74, 2, 0x31, 0xd2, 0xc3]), "rdi");
    // What it writes is not known: a byte that is no instruction.
    assert_eq!(of(&[0x06, 0xc3]), "rdi, rsi, rdx, rcx, r8, r9");
}

#[test]
fn calls_of_other_modules_are_known_by_their_prototypes() {
    let stub = |i: u64| PLT + 0x10 * i;
    let then = |to: u64, rest: &[u8]| [&call(0, to)[..], rest].concat();
    // Behind the call r9 is read: nobody leans on what a stub leaves.
    let read_r9 = &[0x4c, 0x89, 0xc8, 0xc3];
    assert_eq!(parameters(&[&then(stub(0), read_r9)]).as_deref(), Some("rdi, rsi, rdx"));
    let all = Some("rdi, rsi, rdx, rcx, r8, r9");
    assert_eq!(parameters(&[&then(stub(1), &[0xc3])]).as_deref(), all);
    assert_eq!(parameters(&[&then(stub(RELATIVE), &[0xc3])]).as_deref(), all, "nothing is known of its slot");
    for (i, used) in [(2, all), (3, all), (4, Some("rdi")), (7, Some("rdi"))] {
        let (name, _, _, version) = DYNAMIC[i as usize];
        assert_eq!(parameters(&[&then(stub(i), &[0xc3])]).as_deref(), used, "{name}@{version}");
    }
    assert_eq!(parameters(&[&near(0xe9, 0, stub(0))]).as_deref(), Some("rdi, rsi, rdx"), "a tail jump");
    // call *memcpy@GOT(%rip); ret
    let slot = (GOT - (TEXT + 6)) as u32;
    let through = [&[0xff, 0x15][..], &slot.to_le_bytes(), &[0xc3]].concat();
    assert_eq!(parameters(&[&through]).as_deref(), Some("rdi, rsi, rdx"));
    // jmp *memcpy@GOT(%rip)
    let jump = [&[0xff, 0x25][..], &slot.to_le_bytes()].concat();
    assert_eq!(parameters(&[&jump]).as_deref(), Some("rdi, rsi, rdx"));
}

#[test]
fn a_slot_that_another_module_may_fill_is_not_judged_by_the_modules_own_function() {
    let all = Some("rdi, rsi, rdx, rcx, r8, r9");
    // The second function: mov eax, esi; ret
    let through = |stub: u64| module_of(&[&near(0xe9, 0, PLT + 0x10 * stub), &[0x89, 0xf0, 0xc3]]);
    // Two modules, of which the second defines a name; what the first one's function makes use of.
    let used = |stub: u64, name: &str| {
        let (_dir, module) = through(stub);
        let other = tempfile::tempdir().unwrap();
        let path = other.path().join("other");
        let mut made = Made::new(3);
        made.section(".text", ALLOC | EXEC, TEXT, &[0xc3; 0x40]);
        made.dynamic(&[(name, 1, TEXT, "")]);
        made.write(&path);
        let modules = [module, Module::offline(&path).unwrap()];
        let function = modules[0].functions(0).into_iter().find(|f| f.vaddr == TEXT).unwrap();
        of(&modules, &modules[0], &function, &mut Run::default()).map(register_names)
    };
    let (own, weak) = (5, 6);
    assert_eq!(used(own, "something_else").as_deref(), Some("rsi"));
    assert_eq!(used(own, "own").as_deref(), all, "the other module may take its place");
    assert_eq!(used(weak, "something_else").as_deref(), all, "a stand-in");
}

#[test]
fn what_a_run_may_spend_ends() {
    // add eax, edi; ret: two instructions, which are decoded and passed.
    let (_dir, module) = module_of(&[&[0x01, 0xf8, 0xc3]]);
    let function = module.functions(0).into_iter().find(|f| f.vaddr == TEXT).unwrap();
    let mut run = Run { left: 5, ..Run::default() };
    let ask = |run: &mut Run| of(&[], &module, &function, run);
    assert_eq!((ask(&mut run), run.left), (Some(1), 1));
    assert_eq!(ask(&mut run), Some(1), "it is not spent yet");
    run.forget();
    assert_eq!(ask(&mut run), None);
    let large = Function { size: MAX_OWN_BYTES + 1, ..function.clone() };
    assert_eq!(of(&[], &module, &large, &mut Run::default()), None);
}

#[test]
fn a_callee_is_charged_when_it_is_decoded_and_followed_once() {
    let f = |i: u64| TEXT + 0x40 * i;
    // Both call the third, which calls itself by way of the second: mov eax, esi; jmp f1.
    let back = [&[0x89, 0xf0][..], &near(0xe9, f(2) - TEXT + 2, f(1))].concat();
    let (_dir, module) = module_of(&[&near(0xe9, 0, f(1)), &near(0xe9, f(1) - TEXT, f(2)), &back]);
    let function = module.functions(0).into_iter().find(|f| f.vaddr == TEXT).unwrap();
    let mut run = Run::default();
    let mut spent = || {
        let before = run.left;
        assert_eq!(of(&[], &module, &function, &mut run), Some(ALL_ARGUMENTS));
        before - run.left
    };
    // Of each of the four instructions one for decoding, one for passing; then those of callees are known.
    assert_eq!((spent(), spent()), (8, 2));
}

/// Parameters of functions of a library by their prototypes, of which each is used, and what their code says.
fn by_code(library: &str, prototypes: &[(&'static str, u8)]) -> Vec<(&'static str, u8, Option<u8>)> {
    let path = super::super::graph::file_of(std::path::Path::new(library)).unwrap();
    let module = Module::offline(&path).unwrap();
    let mut found = Vec::new();
    for function in module.functions(0) {
        let mut names = std::iter::once(&function.symbol).chain(&function.aliases);
        let known = names.find_map(|name| {
            let plain = name.split('@').next().unwrap_or_default();
            prototypes.iter().find(|(known, _)| *known == plain)
        });
        if let Some((name, count)) = known {
            let wanted = ((1_u16 << (*count).min(6)) - 1) as u8;
            found.push((*name, wanted, Inspection::parameters_offline(&module, &function)));
        }
    }
    found
}

#[test]
fn real_functions_keep_their_parameters() {
    // Prototypes of ISO C and POSIX; each parameter is used.
    let prototypes = [
        ("abs", 1),
        ("atoi", 1),
        ("atol", 1),
        ("bsearch", 5),
        ("div", 2),
        ("ffs", 1),
        ("getenv", 1),
        ("hcreate", 1),
        ("inet_addr", 1),
        ("insque", 2),
        ("isalpha", 1),
        ("lfind", 5),
        ("lsearch", 5),
        ("memccpy", 4),
        ("mktime", 1),
        ("putenv", 1),
        ("qsort", 4),
        ("rand_r", 1),
        ("setbuf", 2),
        ("setenv", 3),
        ("srand", 1),
        ("strcoll", 2),
        ("strdup", 1),
        ("strndup", 2),
        ("strsep", 2),
        ("strtok", 2),
        ("strtok_r", 3),
        ("strtol", 3),
        ("strtoul", 3),
        ("swab", 3),
        ("tolower", 1),
        ("tsearch", 3),
        ("tfind", 3),
        ("unsetenv", 1),
    ];
    let found = by_code("libc.so.6", &prototypes);
    assert!(found.len() > 20, "{found:x?}");
    let known: Vec<_> =
        found.iter().filter_map(|(name, wanted, used)| Some((name, *wanted, (*used)?))).collect();
    let lost: Vec<_> = known.iter().filter(|(_, wanted, used)| wanted & !used != 0).collect();
    assert!(lost.is_empty(), "parameters are taken for none: {lost:x?}");
    // Of `abs`, `div`, `swab` and the like no other register can be one.
    assert!(known.iter().filter(|(_, wanted, used)| wanted == used).count() >= 3, "{known:x?}");
}
