use super::*;
use crate::recording::sample;
use crate::unwind::{KERNEL, Unwinder};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn own(address: u64) -> (Unwinder, Frame) {
    let mut unwinder = Unwinder::default();
    let frame = unwinder.frame_at(std::process::id(), address);
    (unwinder, frame)
}

#[inline(always)]
fn inner_inlined() -> u64 {
    let ip: u64;
    // SAFETY: reads the instruction pointer and changes nothing.
    unsafe { std::arch::asm!("lea {}, [rip]", out(reg) ip, options(nomem, nostack, preserves_flags)) };
    ip
}

#[inline(never)]
fn outer_function() -> u64 {
    std::hint::black_box(inner_inlined())
}

#[test]
fn lines_and_inlined_calls_innermost_first() {
    let (unwinder, frame) = own(outer_function());
    let mut names = Symbolizer::new(unwinder.modules().clone(), Detail::Names);
    let plain = names.rows(7, &[frame]);
    assert_eq!(plain.len(), 1);
    assert!(plain[0].function.ends_with("symbolize::tests::outer_function"), "{plain:?}");
    assert_eq!((plain[0].line, plain[0].stack_id), (0, 7));

    let mut lines = Symbolizer::new(unwinder.modules().clone(), Detail::Lines);
    let rows = lines.rows(7, &[frame, frame]);
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert!(rows[0].function.contains("inner_inlined") && rows[0].inlined, "{rows:?}");
    assert_eq!(rows[1].function, plain[0].function, "the holder has the same name at both levels");
    assert!(!rows[1].inlined && rows[1].line > rows[0].line, "{rows:?}");
    assert!(rows.iter().all(|r| r.file.ends_with("symbolize/tests.rs") && r.address == frame.address));
    let depths: Vec<u32> = rows.iter().map(|r| r.depth).collect();
    assert_eq!(depths, [0, 1, 2, 3]);
}

#[test]
fn a_class_gives_its_number_and_name() {
    let (unwinder, frame) = own(outer_function());
    let mut symbolizer = Symbolizer::new(unwinder.modules().clone(), Detail::Lines);
    let mut class = sample::classes()[0].clone();
    class.module = unwinder.modules().get(frame.module).name.clone();
    class.address = frame.address - 4;
    class.size_bytes = 64;
    class.name = "the class's name".into();
    symbolizer.set_classes(ClassIndex::new(&[class.clone()]));
    let rows = symbolizer.rows(1, &[frame]);
    let ids: Vec<Option<u32>> = rows.iter().map(|r| r.class_id).collect();
    assert_eq!(ids, [None, Some(0)], "an inlined call is not the class");
    assert_eq!(rows[1].function, "the class's name");

    let index = ClassIndex::new(&[class.clone()]);
    let hit = |address| index.find(&class.module, address).is_some();
    assert!(
        !hit(class.address - 1) && hit(class.address) && hit(class.address + 63) && !hit(class.address + 64)
    );
}

#[test]
fn kernel_addresses_have_names() {
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
    let found = text.lines().find_map(|l| {
        let mut f = l.split(' ');
        let address = u64::from_str_radix(f.next()?, 16).ok()?;
        (f.next()? == "T" && address > 0 && l.ends_with(" schedule")).then_some(address)
    });
    let Some(address) = found else {
        assert!(
            std::env::var_os("REQUIRE_KERNEL").is_none(),
            "REQUIRE_KERNEL is set and kallsyms shows no addresses"
        );
        eprintln!("SKIP kernel_addresses_have_names: /proc/kallsyms shows no addresses (needs root)");
        return;
    };
    let mut symbolizer = Symbolizer::new(Modules::default(), Detail::Names);
    let rows = symbolizer.rows(1, &[Frame { module: KERNEL, address: address + 3 }]);
    assert_eq!((rows[0].function.as_str(), rows[0].module.as_str()), ("schedule", "[kernel]"));
    let rows = symbolizer.rows(1, &[Frame { module: KERNEL, address: 0x1000 }]);
    assert_eq!(rows[0].function, "[kernel]+0x1000");
}

#[test]
fn vdso_addresses_have_names() {
    // SAFETY: getauxval has no preconditions.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    let (unwinder, frame) = own(base + 0x10);
    let module = unwinder.modules().get(frame.module);
    assert_eq!(module.name, "[vdso]");
    let ModuleKind::Image(bytes) = &module.kind else { panic!("{:?}", module.kind) };
    let symbols = image_symbols(bytes);
    let (start, _, name) = symbols.iter().find(|s| s.2.contains("clock_gettime")).unwrap();
    let mut symbolizer = Symbolizer::new(unwinder.modules().clone(), Detail::Names);
    let rows = symbolizer.rows(1, &[Frame { module: frame.module, address: start + 1 }]);
    assert!(rows[0].function.ends_with("clock_gettime"), "{rows:?} {name}");
}

/// A page of code as a JIT makes it, and the map that names it.
#[test]
fn jit_code_is_named_by_the_perf_map() {
    // SAFETY: a new anonymous mapping; it is never executed and lives to the end of the process.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    let page = page as u64;
    let (unwinder, frame) = own(page + 0x20);
    assert_eq!(frame.address, page + 0x20, "absolute");
    let mut symbolizer = Symbolizer::new(unwinder.modules().clone(), Detail::Names);
    let name = |s: &mut Symbolizer| s.rows(1, &[frame])[0].function.clone();
    assert_eq!(name(&mut symbolizer), format!("[jit]+0x{:x}", page + 0x20));

    struct Remove(String);
    impl Drop for Remove {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
    let map = Remove(format!("/tmp/perf-{}.map", std::process::id()));
    std::fs::write(&map.0, format!("{page:x} 40 LazyCompile:*work app.js:12\nnot a line\n")).unwrap();
    let begin = Instant::now();
    while name(&mut symbolizer) != "LazyCompile:*work app.js:12" {
        assert!(begin.elapsed() < Duration::from_secs(20), "the map is read again once it is there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn perf_maps_are_read_leniently() {
    let parsed = perf_map::parse("10 8 a\n30 8 c d\n0x20 0x8 b\n10 4 again\nzz 1 x\n\n40\n");
    let expected = [(0x10, 4, "again"), (0x20, 8, "b"), (0x30, 8, "c d")];
    let seen: Vec<_> = parsed.iter().map(|(s, n, name)| (*s, *n, name.as_str())).collect();
    assert_eq!(seen, expected);
}

/// A stripped program whose symbols lie in a debug file beside it, as distributions ship them.
#[test]
fn names_come_from_a_separate_debug_file() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let run = |program: &str, args: &[&str]| {
        Command::new(program).args(args).current_dir(d).status().is_ok_and(|s| s.success())
    };
    std::fs::write(
        d.join("a.c"),
        "#include <unistd.h>\n__attribute__((noinline)) static int hidden(int n) { pause(); return n; }\nint main(void) { return hidden(1); }\n",
    )
    .unwrap();
    let built = run("cc", &["-g", "-O1", "a.c", "-o", "a"])
        && run("objcopy", &["--only-keep-debug", "a", "a.debug"])
        && run("strip", &["a"])
        && run("objcopy", &["--add-gnu-debuglink=a.debug", "a"]);
    if !built {
        assert!(
            std::env::var_os("REQUIRE_KERNEL").is_none(),
            "REQUIRE_KERNEL is set and cc or objcopy failed"
        );
        eprintln!(
            "SKIP names_come_from_a_separate_debug_file: needs cc, objcopy and strip (build-essential)"
        );
        return;
    }
    let mut child = Command::new(d.join("a")).spawn().unwrap();
    let pid = child.id();
    let sp_ip = || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
        let f: Vec<&str> = text.split_whitespace().collect();
        (f.len() == 9 && f[0] == "34")
            .then(|| f[7..].iter().map(|s| u64::from_str_radix(&s[2..], 16).unwrap()).collect::<Vec<_>>())
    };
    let begin = Instant::now();
    let registers = loop {
        if let Some(r) = sp_ip() {
            break r;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "the program sleeps");
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut bytes = vec![0; 512];
    let read = {
        use std::os::unix::fs::FileExt;
        std::fs::File::open(format!("/proc/{pid}/mem")).unwrap().read_at(&mut bytes, registers[0]).unwrap()
    };
    let mut unwinder = Unwinder::default();
    let mut frames = Vec::new();
    let stack =
        crate::unwind::UserStack { pid, ip: registers[1], sp: registers[0], bp: 0, bytes: &bytes[..read] };
    unwinder.unwind(&stack, |_, _| None, &mut frames);
    child.kill().unwrap();
    child.wait().unwrap();

    for detail in [Detail::Names, Detail::Lines] {
        let mut symbolizer = Symbolizer::new(unwinder.modules().clone(), detail);
        let rows = symbolizer.rows(1, &frames);
        let names: Vec<&str> = rows.iter().map(|r| r.function.as_str()).collect();
        let hidden = rows.iter().find(|r| r.function == "hidden").unwrap_or_else(|| panic!("{names:?}"));
        assert!(names.contains(&"main"), "{names:?}");
        assert_eq!(hidden.line, if detail == Detail::Lines { 2 } else { 0 });
        assert_eq!(Path::new(&hidden.file).file_name().is_some(), detail == Detail::Lines);
    }
}

/// What the symbolizer maps is a copy: what is packed in a file is unpacked within a bound, links to other files are left out.
#[test]
fn packed_sections_are_unpacked_within_a_bound() {
    use crate::target_file::{
        TargetFile,
        tests::{Claim, elf_that_claims},
    };
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("packed");
    // 64 MiB of zeros in 64 KiB; the header says what they are, or that they are 100 bytes.
    for zlib in [true, false] {
        let packed = if zlib {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
            (0..64).for_each(|_| encoder.write_all(&vec![0; 1 << 20]).unwrap());
            encoder.finish().unwrap()
        } else {
            zstd::stream::encode_all(&*vec![0; 64 << 20], 1).unwrap()
        };
        assert!(packed.len() < 128 << 10);
        let size = 24 + packed.len() as u64;
        let claims = [Claim(".debug_info", 1, 16 << 10, size, 0), Claim(".gnu_debuglink", 1, 8 << 10, 16, 0)];
        elf_that_claims(&path, 1 << 20, 1 << 11, &claims);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[if zlib { 1 } else { 2 }, 0, 0, 0], 16 << 10).unwrap();
        file.write_all_at(&100_u64.to_le_bytes(), (16 << 10) + 8).unwrap();
        file.write_all_at(&packed, (16 << 10) + 24).unwrap();
        let plan = |file| Plan::of(file, What::Dwarf).unwrap();
        let small = TargetFile::named_by_user(&path).unwrap();
        assert!((100..8 << 10).contains(&plan(&small).bytes()));
        let error = plan(&small).copy().unwrap_err();
        assert!(error.contains("more than the 100 bytes"), "{error}");
        file.write_all_at(&(64_u64 << 20).to_le_bytes(), (16 << 10) + 8).unwrap();
        let honest = TargetFile::named_by_user(&path).unwrap();
        assert!((64 << 20..65 << 20).contains(&plan(&honest).bytes()));
        let copy = plan(&honest).copy().unwrap();
        assert!(copy.bytes() <= plan(&honest).bytes());
        let bytes = std::fs::read(copy.path()).unwrap();
        assert!((64 << 20..65 << 20).contains(&bytes.len()));
        assert!(!bytes.windows(14).any(|w| w == b".gnu_debuglink"), "links to other files are not copied");
    }
    // A sparse table of symbols.
    let claims = [Claim(".symtab", 2, 8 << 10, 8 << 30, 2), Claim(".strtab", 3, 8 << 10, 16, 0)];
    elf_that_claims(&path, 16 << 30, 0, &claims);
    let error = Plan::of(&TargetFile::named_by_user(&path).unwrap(), What::Symbols).unwrap_err();
    assert!(error.contains(".symtab of 8589934592 bytes"), "{error}");
}

/// Many modules of 16 KiB on disk whose tables are holes, in sum more than the budget.
#[test]
fn copies_of_many_modules_stay_within_the_budget() {
    use crate::target_file::{
        TargetFile,
        tests::{Claim, elf_that_claims},
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hostile");
    let table = |name, kind, size: u64, link| Claim(name, kind, 8 << 10, size, link);
    let copy = || Plan::of(&TargetFile::named_by_user(&path).unwrap(), What::Symbols)?.copy();
    // Four tables over one hole have the room of one.
    let tables = [(".symtab", 2, 2), (".strtab", 3, 0), (".dynsym", 11, 4), (".dynstr", 3, 0)];
    elf_that_claims(&path, 1 << 30, 0, &tables.map(|(name, kind, link)| table(name, kind, 16 << 20, link)));
    assert!(copy().unwrap_err().contains(".strtab of 16777216 bytes is more than is read of this file"));
    elf_that_claims(&path, 1 << 30, 0, &tables.map(|(name, kind, link)| table(name, kind, 3 << 20, link)));
    let mut held = Held::new(96 << 20);
    for i in 0..24 {
        let plain = Some(Reader::new(copy().unwrap(), reader(Detail::Names)));
        held.insert(ModuleId(i), Copies { plain, debug: None });
        assert!((12 << 20..=96 << 20).contains(&held.bytes()), "{}", held.bytes());
        assert!(held.get(ModuleId(0)).is_some() && held.get(ModuleId(i)).is_some());
    }
    let there: Vec<u32> = (0..24).filter(|i| held.get(ModuleId(*i)).is_some()).collect();
    assert_eq!(there, [0, 18, 19, 20, 21, 22, 23], "what was asked for last stays");
    held.make_room(u64::MAX);
    assert_eq!(held.bytes(), 0);
}

/// No two modules fit: each look-up of the other one drops the first one's copies, and their paths are used again.
#[test]
fn copies_that_had_to_go_come_back() {
    let (mut unwinder, frame) = own(outer_function());
    let libc = unwinder.frame_at(std::process::id(), libc::getpid as *const () as u64);
    for detail in [Detail::Names, Detail::Lines] {
        let mut roomy = Symbolizer::new(unwinder.modules().clone(), detail);
        // Debug information of this program may be larger than what a run gives both.
        roomy.copies = Held::new(1 << 30);
        let expected = [roomy.rows(1, &[frame]), roomy.rows(1, &[libc])];
        assert!(expected[1][0].function.ends_with("getpid"), "{:?}", expected[1]);
        let budget = roomy.copies.bytes() - 1;
        let mut tight = Symbolizer::new(unwinder.modules().clone(), detail);
        tight.copies = Held::new(budget);
        for _ in 0..2 {
            assert_eq!([tight.rows(1, &[frame]), tight.rows(1, &[libc])], expected);
            assert!((1..=budget).contains(&tight.copies.bytes()), "{} of {budget}", tight.copies.bytes());
            tight.cache.clear();
        }
        assert!(tight.take_notes().is_empty());

        let mut ahead = Symbolizer::new(unwinder.modules().clone(), detail);
        ahead.prepare([libc, frame, libc]);
        assert_eq!(ahead.copies.bytes() == 0, detail == Detail::Lines, "DWARF goes with its module");
        assert_eq!([ahead.rows(1, &[frame]), ahead.rows(1, &[libc])], expected);
        assert_eq!(ahead.copies.bytes() == 0, detail == Detail::Lines, "rows come from memory");
    }
}

/// What does not fit by itself is not copied: the lines go first, then the names; the user is told.
#[test]
fn a_copy_that_is_larger_than_the_budget_is_not_made() {
    let (unwinder, frame) = own(outer_function());
    let rows = |budget: u64| {
        let mut symbolizer = Symbolizer::new(unwinder.modules().clone(), Detail::Lines);
        symbolizer.copies = Held::new(budget);
        let rows = symbolizer.rows(1, &[frame]);
        assert!(symbolizer.copies.bytes() <= budget, "{} of {budget}", symbolizer.copies.bytes());
        (rows, symbolizer.take_notes(), symbolizer.copies.bytes())
    };
    let (full, notes, all) = rows(BUDGET_BYTES);
    assert!(full[0].line > 0 && notes.is_empty(), "{full:?} {notes:?}");
    let (names, notes, plain) = rows(all - 1);
    assert!(plain > 0 && names[0].line == 0, "{names:?}");
    assert_eq!(names.last().map(|row| &row.function), full.last().map(|row| &row.function));
    assert!(notes[0].starts_with("no source lines for '") && notes.len() == 1, "{notes:?}");
    assert!(notes[0].contains("its debug information would take"), "{notes:?}");
    let (nameless, notes, none) = rows(plain - 1);
    assert!(none == 0 && nameless[0].function.contains("+0x"), "{nameless:?}");
    assert!(notes[0].contains("its symbols would take") && notes.len() == 1, "{notes:?}");
}

#[test]
fn perf_maps_are_cut_to_their_last_lines() {
    assert!(perf_map::parse(&"0 0 \n".repeat(1000)).is_empty());
    assert_eq!(perf_map::parse(&"0 1 x\n".repeat(1000)).len(), 1);
    let many: String = (0..(1 << 20) + 3_u32).map(|i| format!("{i:x} 1 x\n")).collect();
    let parsed = perf_map::parse(&many);
    assert_eq!((parsed.len(), parsed[0].0), (1 << 20, 3));
}

/// A debug link that names a FIFO: nobody waits for its other end.
#[test]
fn a_debug_link_to_a_fifo_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let run = |program: &str, args: &[&str]| {
        Command::new(program).args(args).current_dir(d).status().is_ok_and(|s| s.success())
    };
    std::fs::write(d.join("a.c"), "#include <unistd.h>\nint main(void) { pause(); return 0; }\n").unwrap();
    let built = run("cc", &["-g", "a.c", "-o", "a"])
        && run("objcopy", &["--only-keep-debug", "a", "a.debug"])
        && run("strip", &["a"])
        && run("objcopy", &["--add-gnu-debuglink=a.debug", "a"])
        && run("rm", &["a.debug"])
        && run("mkfifo", &["a.debug"]);
    if !built {
        assert!(
            std::env::var_os("REQUIRE_KERNEL").is_none(),
            "REQUIRE_KERNEL is set and cc or objcopy failed"
        );
        eprintln!(
            "SKIP a_debug_link_to_a_fifo_is_not_followed: needs cc, objcopy and strip (build-essential)"
        );
        return;
    }
    let mut child = Command::new(d.join("a")).spawn().unwrap();
    let pid = child.id();
    let begin = Instant::now();
    while !std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|text| text.starts_with("34 ")) {
        assert!(begin.elapsed() < Duration::from_secs(20), "the program sleeps");
        std::thread::sleep(Duration::from_millis(2));
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let text = maps.lines().find(|l| l.contains("r-xp") && l.ends_with("/a")).unwrap();
    let start = u64::from_str_radix(text.split('-').next().unwrap(), 16).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut unwinder = Unwinder::default();
        let frame = unwinder.frame_at(pid, start + 0x20);
        let mut rows = Vec::new();
        for detail in [Detail::Names, Detail::Lines] {
            rows.extend(Symbolizer::new(unwinder.modules().clone(), detail).rows(1, &[frame]));
        }
        sender.send((rows, crate::doctor::check_target(pid.cast_signed()).map(|r| r.modules.len())))
    });
    let answer = receiver.recv_timeout(Duration::from_secs(30));
    child.kill().unwrap();
    child.wait().unwrap();
    let (rows, doctor) = answer.expect("nobody waits for the FIFO");
    assert!(rows.len() == 2 && rows.iter().all(|r| r.module.ends_with("/a")), "{rows:?}");
    assert!(doctor.unwrap() >= 1);
}

#[test]
fn what_has_no_name_is_shown_by_address() {
    assert_eq!(nameless("/usr/lib/libc.so.6", 0x12ab), "libc.so.6+0x12ab");
    assert_eq!(nameless("", 0x12ab), "0x12ab");
    let mut symbolizer = Symbolizer::new(Modules::default(), Detail::Lines);
    let rows = symbolizer.rows(1, &[Frame { module: crate::unwind::UNKNOWN, address: 5 }]);
    assert_eq!((rows[0].function.as_str(), rows[0].module.as_str()), ("0x5", ""));
}

#[test]
fn the_worker_answers_in_order_and_ends() {
    let (unwinder, frame) = own(outer_function());
    let mut worker = Worker::spawn(unwinder.modules().clone()).unwrap();
    worker.submit(vec![(1, [frame].into())], Detail::Names);
    worker.submit(vec![(2, [frame].into())], Detail::Lines);
    worker.submit(vec![], Detail::Lines);
    assert_eq!(worker.waiting(), 2);
    let deadline = Instant::now() + Duration::from_secs(60);
    let (names, _) = worker.wait(deadline).unwrap();
    let (lines, _) = worker.wait(deadline).unwrap();
    assert_eq!((names.len(), names[0].stack_id, names[0].line), (1, 1, 0));
    assert_eq!((lines.len(), lines[0].stack_id), (2, 2));
    assert!(lines[1].line > 0);
    assert!(worker.wait(deadline).is_none() && worker.poll().is_none());
}
