use super::super::flow::{Region, Unknown};
use super::super::forms::AllowList;
use super::super::sites::Body;
use super::super::stack_switch::tests::{CODE_AT, file_with};
use super::judge::Judged;
use super::place::{Entries, Places, places};
use super::returns::leaves_as_it_came;
use super::*;
use SiteClass::{Branch, Nop, Push, Stepped};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;

const RULES: fn() -> KernelRules =
    || KernelRules { long_nops: true, nop5: true, calls: true, forms: AllowList::proven() };

/// `lock inc [rdi]`, which cannot be probed.
const LOCKED: [u8; 3] = [0xf0, 0xff, 0x07];

/// From the first instruction of some code on, which stands at 0x1000.
fn look(code: &[u8], rules: KernelRules, entries: &Entries<'_>) -> Result<Places, String> {
    places(&Region::decode_bytes(0x1000, code.to_vec()), 0, 0x1000, rules, entries)
}

const NOTHING: Entries<'_> = Entries { known: true, to: &|_| None };

/// (distance, class, slot) of the first site and of a cheaper one.
type Found = ((u8, SiteClass, i16), Option<(u8, SiteClass, i16)>);

fn alone(code: &[u8]) -> Result<Found, String> {
    let of = |site: ReturnSite| {
        assert_eq!(site.vaddr, 0x1000 + u64::from(site.distance));
        assert!(!site.joined);
        (site.distance, site.class, site.return_slot)
    };
    look(code, RULES(), &NOTHING).map(|found| (of(found.first), found.cheaper.map(of)))
}

#[test]
fn the_first_instruction_that_may_be_probed_is_taken_and_a_cheaper_one_near_it() {
    let cases: [(&str, &[u8], Found); 13] = [
        ("xor ecx, ecx; ret", &[0x31, 0xc9, 0xc3], ((0, Stepped, -1), None)),
        ("push rbx; xor", &[0x53, 0x31, 0xc9], ((0, Push, -1), None)),
        ("nop; ret", &[0x90, 0xc3], ((0, Nop, -1), None)),
        ("call; a second one", &[0xe8, 1, 0, 0, 0, 0xc3], ((0, Branch, -1), None)),
        ("endbr64; ret", &[0xf3, 0x0f, 0x1e, 0xfa, 0xc3], ((0, Stepped, -1), None)),
        ("ret", &[0xc3], ((0, Stepped, -1), None)),
        ("test eax, eax; je", &[0x85, 0xc0, 0x74, 0], ((0, Stepped, -1), Some((2, Branch, -1)))),
        (
            "lock inc; test eax, eax; je",
            &[0xf0, 0xff, 0x07, 0x85, 0xc0, 0x74, 0],
            ((3, Stepped, -1), Some((5, Branch, -1))),
        ),
        // The stack pointer moves down by 16: the word lies one above it.
        ("sub rsp, 16; push rbx", &[0x48, 0x83, 0xec, 16, 0x53], ((0, Stepped, -1), Some((4, Push, 1)))),
        ("add rsp, 24; je", &[0x48, 0x83, 0xc4, 24, 0x74, 0], ((0, Stepped, -1), Some((4, Branch, -4)))),
        (
            "lea rsp, [rsp-8]; jmp",
            &[0x48, 0x8d, 0x64, 0x24, 0xf8, 0xeb, 0],
            ((0, Stepped, -1), Some((5, Branch, 0))),
        ),
        // Both cannot be probed, and take 8 bytes each.
        ("pushf; pushf; xor ecx, ecx; ret", &[0x9c, 0x9c, 0x31, 0xc9, 0xc3], ((2, Stepped, 1), None)),
        ("pop rbx; jmp", &[0x5b, 0xeb, 0], ((0, Stepped, -1), Some((1, Branch, -2)))),
    ];
    for (name, code, found) in cases {
        assert_eq!(alone(code), Ok(found), "{name}");
    }
}

/// The kernel may put a call there, which overwrites what lies below the stack pointer.
#[test]
fn no_nop_of_five_bytes_is_a_site() {
    let nop5 = [0x0f, 0x1f, 0x44, 0, 0];
    assert_eq!(alone(&[&nop5[..], &[0x31, 0xc9]].concat()), Ok(((5, Stepped, -1), None)));
    let why = alone(&[&nop5[..], &[0x0f, 0x0b]].concat()).unwrap_err();
    assert!(why.contains("nop of five bytes") && why.contains("`ud2` at +0x5 ends"), "{why}");
    let mut old = RULES();
    old.nop5 = false;
    let found = look(&nop5, old, &NOTHING).unwrap();
    assert_eq!((found.first.distance, found.first.class), (0, Nop));
}

#[test]
fn the_run_ends_where_the_return_is_not_alone() {
    let locked = |code: &[u8]| alone(&[&LOCKED[..], code].concat());
    let xor = [0x31, 0xc9];
    // What cannot be probed and ends the run.
    let ends: [(&str, &[u8], &str); 7] = [
        ("syscall", &[0x0f, 0x05], "`syscall` at +0x3 ends the straight run"),
        ("hlt", &[0xf4], "`hlt` at +0x3 ends the straight run"),
        ("ud2", &[0x0f, 0x0b], "`ud2` at +0x3 ends the straight run"),
        ("rep movsb", &[0xf3, 0xa4], "`movsb` at +0x3 may take long"),
        ("cs jmp", &[0x2e, 0xeb, 0], "`jmp` at +0x3 ends the straight run"),
        ("enter", &[0xc8, 8, 0, 0], ""),
        ("bad", &[0x06], "the code ends"),
    ];
    for (name, code, why) in ends {
        let found = locked(&[code, &xor].concat());
        match why {
            // It can be probed itself.
            "" => assert_eq!(found.unwrap().1, None, "{name}"),
            _ => assert!(found.as_ref().is_err_and(|e| e.ends_with(why)), "{name}: {found:?}"),
        }
    }
    // What can be probed, and moves the stack pointer in a way that is not followed: no cheaper site behind it.
    let lost: [(&str, &[u8]); 8] = [
        ("mov rsp, rbp", &[0x48, 0x89, 0xec]),
        ("mov esp, ebp", &[0x89, 0xec]),
        ("and rsp, -32", &[0x48, 0x83, 0xe4, 0xe0]),
        ("leave", &[0xc9]),
        ("xchg rax, rsp", &[0x48, 0x94]),
        ("xadd rax, rsp", &[0x48, 0x0f, 0xc1, 0xc4]),
        ("sub rsp, rax", &[0x48, 0x29, 0xc4]),
        ("sub rsp, 4", &[0x48, 0x83, 0xec, 4]),
    ];
    for (name, code) in lost {
        let found = alone(&[code, &[0x53]].concat());
        assert!(
            found.as_ref().is_ok_and(|found| found.1.is_none())
                || found.as_ref().is_err_and(|why| why.contains("not followed")),
            "{name}: {found:?}"
        );
        assert_ne!(found.map(|found| found.0.1), Ok(Push), "{name}");
    }
    let shadow = KernelRules { calls: false, ..RULES() };
    let why = look(&[0xe8, 0, 0, 0, 0, 0x31, 0xc9], shadow, &NOTHING).unwrap_err();
    assert!(why.contains("shadow stack") && why.contains("`call` at +0x0 ends"), "{why}");
}

#[test]
fn no_site_stands_far_from_the_return() {
    let far = |number: usize| alone(&[LOCKED.repeat(number), vec![0x31, 0xc9, 0x53]].concat());
    assert_eq!(far(40), Ok(((120, Stepped, -1), None)));
    let why = far(41).unwrap_err();
    assert!(why.contains("123 bytes behind the return address is too far away"), "{why}");
    // A cheaper one is looked for among the next few only.
    let near = |number: usize| alone(&[[0x31, 0xc9].repeat(number), vec![0x53]].concat()).unwrap().1;
    assert_eq!(near(8), Some((16, Push, -1)));
    assert_eq!(near(9), None);
}

#[test]
fn what_else_leads_there_is_told() {
    let code = [&LOCKED[..], &[0x31, 0xc9], &[0x74, 0]].concat();
    let joined = |code: &[u8], known: bool, target: u64| {
        let to = |a: u64| (a == target).then(|| "a jump".to_owned());
        let found = look(code, RULES(), &Entries { known, to: &to });
        found.map(|p| (p.first.distance, p.first.joined, p.cheaper.map(|c| (c.distance, c.joined))))
    };
    assert_eq!(joined(&code, true, 0x1000), Ok((3, true, Some((5, true)))));
    assert_eq!(joined(&code, true, 0x1003), Ok((3, true, None)));
    assert_eq!(joined(&code, true, 0x1005), Ok((3, false, None)), "not the cheaper one: more hits");
    assert_eq!(joined(&code, true, 0x1007), Ok((3, false, Some((5, false)))));
    // Between the return address and the only site.
    let two = [&LOCKED[..], &LOCKED, &[0x31, 0xc9]].concat();
    assert!(joined(&two, true, 0x1003).is_err_and(|why| why.ends_with("a jump")));
    // Who leads where is not known: what is known counts all the same.
    assert_eq!(joined(&code, false, 0), Ok((3, true, Some((5, true)))));
    assert_eq!(joined(&code, false, 0x1005), Ok((3, true, None)));
    assert!(joined(&two, false, 0x1003).is_err());
}

/// Judges the address `at` bytes into some code, with a symbol of a size.
fn judge(code: &[u8], symbol: Option<u64>, at: u64) -> Result<Judged, CallerError> {
    let dir = tempfile::tempdir().unwrap();
    let module = file_with(dir.path(), 4096, code, symbol);
    Judge::new(&module, 0, RULES()).judge(CODE_AT.1 + at, &mut Spent::of(CallerBudget::default()))
}

/// `call +0`
const CALL: [u8; 5] = [0xe8, 0, 0, 0, 0];

#[test]
fn a_return_address_stands_right_behind_a_call() {
    // push rbx; call; xor ecx, ecx; pop rbx; ret
    let code = [&[0x53][..], &CALL, &[0x31, 0xc9, 0x5b, 0xc3]].concat();
    let found = judge(&code, Some(10), 6).unwrap_or_else(|why| panic!("{why}"));
    let site = found.places.first;
    assert_eq!(found.call.ip(), CODE_AT.1 + 1);
    assert_eq!((site.vaddr, site.file_offset, site.length), (CODE_AT.1 + 6, CODE_AT.0 + 6, 2));
    assert_eq!((site.class, site.distance, site.joined), (Stepped, 0, true), "its call leads there");
    for at in [1, 2, 5, 7, 8, 9] {
        let why = judge(&code, Some(10), at).err();
        assert!(matches!(why, Some(CallerError::NoCall { offset, .. }) if offset == at), "{at}: {why:?}");
    }
    // Calls have two to eight bytes and more.
    let calls: [&[u8]; 6] = [
        &[0xff, 0xd0],                                     // call rax
        &[0x41, 0xff, 0xd4],                               // call r12
        &[0xff, 0x15, 0, 0, 0, 0],                         // call [rip+0]
        &[0x67, 0xe8, 0, 0, 0, 0],                         // addr32 call
        &[0x66, 0x66, 0x48, 0xe8, 0, 0, 0, 0],             // of thread-local variables
        &[0x64, 0x41, 0xff, 0x94, 0x24, 0x10, 0, 0, 0x00], // call fs:[r12+16]
    ];
    for call in calls {
        let code = [call, &[0x31, 0xc9, 0xc3]].concat();
        let found = judge(&code, Some(code.len() as u64), call.len() as u64);
        assert!(found.is_ok_and(|f| f.places.first.distance == 0), "{call:x?}");
    }
}

#[test]
fn what_only_looks_like_a_return_address_is_none() {
    // movabs rax, ...: its last five bytes look like a call.
    let hidden = [&[0x48, 0xb8, 1, 2, 3][..], &CALL, &[0x31, 0xc9, 0xc3]].concat();
    assert!(matches!(judge(&hidden, Some(13), 10), Err(CallerError::NoCall { offset: 10, .. })));
    // jmp, syscall and ret are no calls.
    for code in [&[0xe9, 0, 0, 0, 0, 0x90][..], &[0x0f, 0x05, 0x90], &[0xc3, 0x90]] {
        let at = code.len() as u64 - 1;
        assert!(matches!(judge(code, Some(at + 1), at), Err(CallerError::NoCall { .. })), "{code:x?}");
    }
    let undecoded = |code: &[u8], at: u64| match judge(code, Some(code.len() as u64), at) {
        Err(CallerError::Undecoded { why, .. }) => why,
        other => panic!("{:?}", other.err()),
    };
    // Nothing stands behind its last call.
    assert_eq!(undecoded(&[&[0x90][..], &CALL].concat(), 6), "nothing stands behind its last call");
    // Data before the call and behind it; a jump into the middle of an instruction.
    let data = [&[0x90, 6, 6][..], &[0x90; 20], &CALL, &[0xc3]].concat();
    assert_eq!(undecoded(&data, 28), "the bytes at +0x1 are no instruction");
    let data = [&CALL[..], &[0x31, 0xc9, 0xc3, 6, 6], &[0x90; 20]].concat();
    assert_eq!(undecoded(&data, 5), "the bytes at +0x8 are no instruction");
    let middle = [&[0xeb, 1, 0xb8, 0x90, 0x90, 0x90, 0x90][..], &CALL, &[0xc3]].concat();
    assert_eq!(undecoded(&middle, 12), "the jump at +0x0 leads between two instructions");
    // Who cannot be told.
    assert!(matches!(judge(&[&CALL[..], &[0xc3]].concat(), None, 5), Err(CallerError::NoFunction)));
    assert!(matches!(judge(&[0x90], None, 1 << 30), Err(CallerError::NotMapped(_))));
}

#[test]
fn what_is_not_known_of_the_caller_makes_a_site_joined() {
    // jmp over the displacement of the call, so that nothing leads behind it: call +1; (behind); the callee
    let call = [0xe8, 3, 0, 0, 0];
    let joined = |code: &[u8]| {
        let found = judge(code, Some(code.len() as u64), 5).unwrap_or_else(|why| panic!("{why}"));
        (found.places.first.distance, found.places.first.joined)
    };
    assert_eq!(joined(&[&call[..], &[0x31, 0xc9, 0xc3, 0xc3]].concat()), (0, false));
    // An indirect jump that cannot be resolved; a jump back.
    assert_eq!(joined(&[&call[..], &[0x31, 0xc9, 0xc3, 0xff, 0xe0]].concat()), (0, true));
    assert_eq!(joined(&[&call[..], &[0x31, 0xc9, 0xc3, 0xeb, 0xfb]].concat()), (0, true));
    // So it is behind the return address.
    assert_eq!(joined(&[&call[..], &LOCKED, &[0xc3, 0xff, 0xe0]].concat()), (3, true));
}

/// A jump over five bytes that look like a call, and what it leads to.
#[test]
fn a_call_that_nothing_leads_to_is_none() {
    // xor ecx, ecx; ret stands behind the "call"
    let over = |jump: [u8; 2]| [&jump[..], &CALL, &[0x31, 0xc9, 0xc3]].concat();
    let found = judge(&over([0xeb, 5]), Some(10), 7).err();
    assert!(matches!(found, Some(CallerError::Unreached { offset: 7, .. })), "{found:?}");
    assert!(
        found.is_some_and(|why| why
            .to_string()
            .ends_with("leads to the call that ends at +0x7: it may be data"))
    );
    // Behind a conditional jump it is one; where the jump leads to it, too.
    assert!(judge(&over([0x74, 5]), Some(10), 7).is_ok());
    assert!(judge(&over([0xeb, 0]), Some(10), 7).is_ok());
    // `ret`, `hlt` and `ud2` go nowhere, a system call does.
    for (end, comes) in
        [(&[0xc3][..], false), (&[0xf4], false), (&[0x0f, 0x0b], false), (&[0x0f, 0x05], true)]
    {
        let code = [end, &CALL, &[0xc3]].concat();
        let size = code.len() as u64;
        assert_eq!(judge(&code, Some(size), size - 1).is_ok(), comes, "{end:x?}");
    }
    // A part of its own that is called: call +1; ret; the part
    let part = [&[0xe8, 1, 0, 0, 0, 0xc3][..], &CALL, &[0xc3]].concat();
    assert!(judge(&part, Some(12), 11).is_ok());
}

/// `lea rdx, [rip+to]; jmp rax`: nothing says where that goes. It may go to what is held.
#[test]
fn an_unknown_jump_may_lead_to_what_is_held() {
    let held =
        |to: u8| [&[0x48, 0x8d, 0x15, to, 0, 0, 0, 0xff, 0xe0][..], &CALL, &[0x31, 0xc9, 0xc3]].concat();
    let found = judge(&held(2), Some(17), 14);
    assert!(found.as_ref().is_ok_and(|found| found.places.first.joined), "{:?}", found.err());
    // What stands behind the call is held, and not the call.
    assert!(matches!(judge(&held(7), Some(17), 14), Err(CallerError::Unreached { .. })));
}

#[test]
fn what_a_caller_was_judged_by_is_its_whole_code() {
    let code = [&[0x53][..], &CALL, &[0x31, 0xc9, 0x5b, 0xc3]].concat();
    let found = judge(&code, Some(10), 6).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(found.proof.iter().cloned().collect::<Vec<_>>(), vec![CODE_AT.1..CODE_AT.1 + 10; 1]);
}

#[test]
fn a_search_ends_with_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let module = file_with(dir.path(), 4096, &[&CALL[..], &[0x31, 0xc9, 0xc3]].concat(), Some(8));
    let with = |bytes, time| {
        let mut spent = Spent::of(CallerBudget { bytes, time });
        Judge::new(&module, 0, RULES()).judge(CODE_AT.1 + 5, &mut spent).map(|_| ())
    };
    let second = Duration::from_secs(1000);
    assert_eq!(with(8, second), Ok(()));
    assert!(matches!(with(7, second), Err(CallerError::NotLookedAt(_))));
    assert!(matches!(with(8, Duration::ZERO), Err(CallerError::NotLookedAt(_))));
    // In the middle of a caller, too; and one that could not be looked at is not tried again in one search.
    let spent = |bytes, time| Spent::of(CallerBudget { bytes, time });
    let mut judge = Judge::new(&module, 0, RULES());
    let mut again = |mut spent: Spent| judge.judge(CODE_AT.1 + 5, &mut spent).map(|_| ());
    assert_eq!(again(spent(8, second)), Ok(()));
    assert_eq!(again(spent(0, second)), Ok(()), "it is not decoded twice");
    assert!(matches!(again(spent(8, Duration::ZERO)), Err(CallerError::NotLookedAt(_))));
    let mut judge = Judge::new(&module, 0, RULES());
    let mut again = |mut spent: Spent| judge.judge(CODE_AT.1 + 5, &mut spent).map(|_| ());
    let refused = again(spent(7, second));
    assert!(refused.is_err() && again(spent(8, second)) == refused, "{refused:?}");
}

/// What decodes for a long time would outlast any budget.
#[test]
fn huge_callers_are_not_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let most = usize::try_from(super::judge::MOST_CALLER_BYTES).unwrap();
    let of = |size: usize| {
        let mut code = vec![0x90; size];
        code[..7].copy_from_slice(&[&CALL[..], &[0x31, 0xc9]].concat());
        code[size - 1] = 0xc3;
        file_with(dir.path(), 4096 + (2 << 20), &code, Some(size as u64));
        // The tables of symbols and names are no code, which would end the function.
        let path = dir.path().join("code");
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let mut table = [0; 8];
        file.read_exact_at(&mut table, 40).unwrap();
        for section in [2, 3] {
            file.write_all_at(&[0; 8], u64::from_le_bytes(table) + section * 64 + 8).unwrap();
        }
        let module = Module::offline(&path).unwrap();
        let budget = CallerBudget { time: Duration::from_secs(1000), ..CallerBudget::default() };
        let mut spent = Spent::of(budget);
        Judge::new(&module, 0, RULES())
            .judge(CODE_AT.1 + 5, &mut spent)
            .map(|found| found.places.first.distance)
    };
    assert_eq!(of(most), Ok(0));
    let why = of(most + 1);
    assert!(
        matches!(&why, Err(CallerError::Undecoded { offset: 5, why, .. }) if why.contains("too many to decode")),
        "{why:?}"
    );
}

#[test]
fn only_private_text_of_a_file_is_looked_at() {
    let map = |start: u64, backing: Backing| Mapping {
        start,
        end: start + 0x1000,
        read: true,
        write: false,
        exec: true,
        shared: false,
        offset: 0,
        device: (8, 1),
        inode: 1,
        backing,
    };
    let file = || Backing::File { path: "/x".into(), deleted: false };
    let special = |name: &str| Backing::Special(name.into());
    let maps = [
        map(0x1000, file()),
        Mapping { write: true, ..map(0x2000, file()) },
        Mapping { shared: true, ..map(0x3000, file()) },
        Mapping { exec: false, ..map(0x4000, file()) },
        map(0x5000, Backing::Anonymous),
        map(0x6000, special("[vdso]")),
        map(0x7000, special("[uprobes]")),
        map(0x8000, special("[anon:jit]")),
        map(0x9000, special("[heap]")),
        map(0xa000, file()),
    ];
    let maps: Vec<&Mapping> = maps.iter().collect();
    let known = HashMap::from([(0x1000, 3)]);
    let place = |address| place_of(&maps, &known, address);
    let text = |how: &str| Err(CallerError::Refused(TraceRefusal::BadMapping(how.into())));
    assert_eq!(place(0x1fff), Ok(3));
    assert_eq!(place(0x2000), text("writable"));
    assert_eq!(place(0x3000), text("shared"));
    for address in [0, 0xfff, 0x4000, 0xa000, 0xb000, u64::MAX] {
        assert_eq!(place(address), Err(CallerError::NotMapped(address)));
    }
    assert_eq!(place(0x5000), Err(CallerError::MadeAtRunTime));
    assert_eq!(place(0x6000), Err(CallerError::Kernels("[vdso]".into())));
    assert_eq!(place(0x7000), Err(CallerError::Replaced));
    assert_eq!(place(0x8000), Err(CallerError::MadeAtRunTime));
    assert_eq!(place(0x9000), Err(CallerError::MadeAtRunTime));
}

mod returning;

/// The share that the issue names, on what is installed here.
#[test]
fn most_return_addresses_of_libraries_have_a_site() {
    for name in ["libc.so.6", "libstdc++.so.6"] {
        let path = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        if !path.exists() {
            println!("skipped: there is no {}", path.display());
            continue;
        }
        let module = Module::offline(&path).unwrap();
        let survey = Inspection::callers_offline(&module, RULES()).unwrap();
        println!("{name}: {survey:#?}");
        let share = survey.with_site() as f64 / survey.calls as f64;
        assert!(survey.calls > 1000 && share > 0.95, "{name}: {share} of {}", survey.calls);
        let all = survey.with_site() + survey.refused.values().sum::<u64>();
        assert_eq!(all, survey.calls, "each call has a site or a reason");
    }
}
