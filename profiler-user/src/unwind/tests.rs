use super::*;
use crate::symbolize::{Detail, Symbolizer};
use std::io::{Read, Seek, SeekFrom};

/// Registers and a copy of the stack of the calling thread, from here on.
#[inline(never)]
fn capture(limit: usize) -> (u64, u64, u64, Vec<u8>) {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads three registers and changes nothing.
    unsafe {
        std::arch::asm!("lea {ip}, [rip]", "mov {sp}, rsp", "mov {bp}, rbp", ip = out(reg) ip, sp = out(reg) sp, bp = out(reg) bp,
            options(nomem, nostack, preserves_flags));
    }
    (ip, sp, bp, read_stack(std::process::id(), sp, limit))
}

/// Copies the stack of `pid` from `sp` to the end of its mapping.
fn read_stack(pid: u32, sp: u64, limit: usize) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let end = maps
        .lines()
        .find_map(|l| {
            let (start, end) = l.split(' ').next()?.split_once('-')?;
            let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
            (start..end).contains(&sp).then_some(end)
        })
        .unwrap();
    let mut bytes = vec![0; usize::try_from(end - sp).unwrap().min(limit)];
    let mut mem = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    mem.seek(SeekFrom::Start(sp)).unwrap();
    mem.read_exact(&mut bytes).unwrap();
    bytes
}

#[inline(never)]
fn depth(n: u32, limit: usize) -> (u64, u64, u64, Vec<u8>) {
    let r = if n == 0 { capture(limit) } else { depth(n - 1, limit) };
    std::hint::black_box(r)
}

fn unwind_self(limit: usize) -> (Unwinder, Vec<Frame>, bool) {
    let (ip, sp, bp, bytes) = depth(20, limit);
    let mut unwinder = Unwinder::default();
    let mut frames = Vec::new();
    let stack = UserStack { pid: std::process::id(), ip, sp, bp, bytes: &bytes };
    let truncated = unwinder.unwind(&stack, |_, _| None, &mut frames);
    (unwinder, frames, truncated)
}

fn functions(unwinder: &Unwinder, frames: &[Frame]) -> Vec<String> {
    let mut symbolizer = Symbolizer::new(unwinder.modules().clone(), Detail::Names);
    symbolizer.rows(1, frames).into_iter().map(|r| r.function).collect()
}

#[test]
fn own_stack_to_its_end() {
    let (unwinder, frames, truncated) = unwind_self(usize::MAX);
    let names = functions(&unwinder, &frames);
    assert!(names[0].ends_with("unwind::tests::capture"), "{names:?}");
    let deep = names.iter().filter(|n| n.ends_with("unwind::tests::depth")).count();
    assert_eq!(deep, 21, "{names:?}");
    assert!(names[22].ends_with("unwind_self") && names[23].ends_with("own_stack_to_its_end"), "{names:?}");
    assert!(!truncated, "the thread's first function ends the stack: {names:?}");
    // `clone3`, or `__clone3` where the C library's debug file is installed.
    assert!(names.last().unwrap().trim_start_matches('_').starts_with("clone"), "{names:?}");
    assert_eq!(unwinder.counters().truncated, 0);
}

#[test]
fn a_short_copy_is_marked_as_cut_off() {
    let (unwinder, frames, truncated) = unwind_self(1024);
    assert!(truncated);
    assert!(frames.len() > 3 && frames.len() < 22, "{}", frames.len());
    assert_eq!(unwinder.counters().truncated, 1);
}

/// A process that we do not know, built by others without frame pointers, asleep in the kernel.
#[test]
fn a_sleeping_program_to_its_start() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = child.id();
    // "nr arg0 … arg5 sp pc" once it sleeps; "running" before.
    let (sp, ip) = loop {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        let fields: Vec<&str> = text.split_whitespace().collect();
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        if fields.len() == 9 && fields[0] == "230" && exe.ends_with("sleep") {
            let hex = |s: &str| u64::from_str_radix(s.trim_start_matches("0x"), 16).unwrap();
            break (hex(fields[7]), hex(fields[8]));
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    let bytes = read_stack(pid, sp, usize::MAX);
    let mut unwinder = Unwinder::default();
    let mut frames = Vec::new();
    // The frame pointer register is not known; the tables do without it.
    let truncated =
        unwinder.unwind(&UserStack { pid, ip, sp, bp: 0, bytes: &bytes }, |_, _| None, &mut frames);
    child.kill().unwrap();
    child.wait().unwrap();
    // Named after its end: the files are held open.
    let names = functions(&unwinder, &frames);
    assert!(!truncated, "{names:?}");
    assert!(names.iter().any(|n| n.contains("nanosleep")), "{names:?}");
    assert!(names.iter().any(|n| n.starts_with("__libc_start_main")), "{names:?}");
    let modules: Vec<String> = frames.iter().map(|f| unwinder.modules().get(f.module).name.clone()).collect();
    assert!(modules.last().unwrap().ends_with("/sleep"), "_start is the outermost: {modules:?}");
}

/// While return links are active, a trampoline's address stands where return addresses were.
#[test]
fn replaced_return_addresses_are_put_back() {
    let (ip, sp, bp, mut bytes) = depth(20, usize::MAX);
    let pid = std::process::id();
    let mut unwinder = Unwinder::default();
    let mut honest = Vec::new();
    let stack = UserStack { pid, ip, sp, bp, bytes: &bytes };
    unwinder.unwind(&stack, |_, _| None, &mut honest);

    // As the kernel does it: the words that hold the return addresses into `depth` become the trampoline.
    const TRAMPOLINE: u64 = 0x7fff_ffff_e000;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let text =
        format!("{maps}7fffffffe000-7ffffffff000 --xp 00000000 00:00 0                          [uprobes]\n");
    let modules = unwinder.modules().clone();
    unwinder.spaces.get_mut(&pid).unwrap().take_maps(&modules, &text);
    let return_addresses: Vec<u64> = {
        let space = unwinder.spaces.get_mut(&pid).unwrap();
        let mut counters = UnwindCounters::default();
        let words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        let depth_frames = &honest[1..22];
        words
            .filter(|w| {
                space.is_code(&modules, &mut counters, *w)
                    && depth_frames.contains(&space.frame(&modules, &mut counters, w - 1))
            })
            .collect()
    };
    let mut saved = std::collections::HashMap::new();
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = u64::from_le_bytes((&*word).try_into().unwrap());
        if return_addresses.contains(&value) {
            saved.insert(sp + 8 * i as u64, value);
            word.copy_from_slice(&TRAMPOLINE.to_le_bytes());
        }
    }
    assert!(saved.len() >= 21, "{}", saved.len());

    let stack = UserStack { pid, ip, sp, bp, bytes: &bytes };
    let mut frames = Vec::new();
    let truncated = unwinder.unwind(&stack, |_, _| None, &mut frames);
    assert!(truncated && frames.len() < 5, "without the answer the stack ends there: {}", frames.len());
    let mut asked = 0;
    let truncated = unwinder.unwind(
        &stack,
        |trampoline, slot| {
            assert_eq!(trampoline, TRAMPOLINE);
            asked += 1;
            saved.get(&slot).copied()
        },
        &mut frames,
    );
    assert!(!truncated);
    assert_eq!(frames, honest);
    assert!(asked >= 21);
}

#[test]
fn garbage_ends_soon_and_does_not_read_maps_each_time() {
    let mut unwinder = Unwinder::default();
    let mut frames = Vec::new();
    let mut noise = 1_u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (noise >> 56) as u8
    })
    .take(8192)
    .collect();
    for i in 0..200_u64 {
        let word = |k: usize| u64::from_le_bytes(bytes[k..k + 8].try_into().unwrap());
        let k = (i as usize * 40) % 8000;
        let stack = UserStack {
            pid: std::process::id(),
            ip: word(k),
            sp: 0x7000 + i,
            bp: 0x7000 + i * 16,
            bytes: &bytes,
        };
        unwinder.unwind(&stack, |_, _| None, &mut frames);
        assert!(frames.len() < 4, "{frames:?}");
    }
    assert!(unwinder.counters().refreshes <= 3, "{:?}", unwinder.counters());
}

#[test]
fn a_process_that_is_gone_gives_one_unknown_frame() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut unwinder = Unwinder::default();
    let mut frames = Vec::new();
    let stack = UserStack { pid: child.id(), ip: 0x1000, sp: 0x2000, bp: 0, bytes: &[0; 64] };
    unwinder.unwind(&stack, |_, _| None, &mut frames);
    assert_eq!(frames, [Frame { module: UNKNOWN, address: 0x1000 }]);
}

#[test]
fn stacks_have_one_number_each() {
    let frame = |address| Frame { module: KERNEL, address };
    let mut table = StackTable::new();
    let a = table.intern(&[frame(1), frame(2)]);
    let b = table.intern(&[frame(2), frame(1)]);
    assert_ne!(a, b);
    assert_eq!(table.intern(&[frame(1), frame(2)]), a);
    assert_eq!(table.intern(&[]), 0);
    assert!(a > 0 && i64::try_from(a).is_ok());
    assert_eq!(table.take_new().len(), 2);
    assert_eq!(table.take_new().len(), 0);
    let c = table.intern(&[frame(3)]);
    assert_eq!(table.take_new(), [(c, vec![frame(3)].into())]);
    assert_eq!(table.frames(a), [frame(1), frame(2)]);
    // Full: new stacks are refused and counted, known ones still have their number.
    let mut next = 10;
    while table.refused() == 0 {
        let stack: Vec<Frame> = (0..4096).map(|i| frame(next * 10_000 + i)).collect();
        table.intern(&stack);
        next += 1;
    }
    assert!(table.all().iter().map(|s| s.1.len()).sum::<usize>() <= 1 << 20);
    assert_eq!(table.intern(&[frame(3)]), c);
}

/// Our descriptors of files below a folder.
fn held_below(folder: &std::path::Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.filter(|path| path.starts_with(folder)).count()
}

#[test]
fn the_last_unmapped_files_are_held() {
    let folder = tempfile::tempdir().unwrap();
    let modules = Modules::default();
    let path = |i: usize| folder.path().join(i.to_string());
    // Not mapped anywhere: they are opened by name.
    let file = |i: usize| modules.file(std::process::id(), "0-1", path(i).to_str().unwrap(), false);
    let ids: Vec<_> = (0..40)
        .map(|i| {
            std::fs::write(path(i), "x").unwrap();
            file(i)
        })
        .collect();
    assert_eq!(held_below(folder.path()), 40);
    for id in &ids {
        modules.unmapped(*id);
        modules.unmapped(*id);
    }
    assert_eq!(held_below(folder.path()), 32);
    let open = |i: usize| match &modules.get(ids[i]).kind {
        ModuleKind::File(file) => file.open().map(drop),
        other => panic!("{other:?}"),
    };
    // One that was given back is opened by its name, and only if that is its own still.
    assert_eq!(open(0), Ok(()));
    std::fs::remove_file(path(0)).unwrap();
    std::fs::remove_file(path(39)).unwrap();
    std::fs::write(path(0), "y").unwrap();
    assert!(open(0).unwrap_err().ends_with("is another file now") && open(39).is_ok());
    assert!(!ids.contains(&file(0)), "it may have the inode of the old one");
    // Mapped again, and not among the last unmapped ones any more.
    assert_eq!(file(1), ids[1]);
    assert_eq!(held_below(folder.path()), 34);
    for (i, id) in ids.iter().enumerate().take(8).skip(2) {
        assert_eq!(file(i), *id);
        modules.unmapped(*id);
    }
    assert_eq!(held_below(folder.path()), 34);
    std::fs::remove_file(path(1)).unwrap();
    assert_eq!(open(1), Ok(()));
    // Large ones go earlier: each has 40 MiB.
    let large: Vec<_> = (50..52)
        .map(|i| {
            std::fs::write(path(i), vec![1; 40 << 20]).unwrap();
            file(i)
        })
        .collect();
    for id in large {
        modules.unmapped(id);
    }
    assert_eq!(held_below(folder.path()), 3, "the replaced one, the one that is mapped, the last large one");
}

#[test]
fn a_zombie_keeps_the_mappings_that_it_had() {
    let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    let code = || {
        let maps = maps();
        let line = maps.lines().find(|l| l.contains("r-xp") && l.ends_with("/sleep"))?;
        u64::from_str_radix(line.split('-').next()?, 16).ok()
    };
    let end = Instant::now() + std::time::Duration::from_secs(20);
    let address = loop {
        match code() {
            Some(address) => break address,
            None => assert!(Instant::now() < end, "it runs"),
        }
    };
    let mut unwinder = Unwinder::default();
    let before = unwinder.frame_at(child.id(), address);
    assert_ne!(before.module, UNKNOWN);
    let pid = child.id();
    child.kill().unwrap();
    while !std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.is_empty()) {
        assert!(Instant::now() < end, "it ends");
    }
    unwinder.invalidate(pid);
    assert_eq!(unwinder.frame_at(pid, address), before);
    child.wait().unwrap();
}
