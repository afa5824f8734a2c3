//! Inspection against live programs: sites, refusals, odd processes; and against the kernel: a breakpoint at every
//! chosen site counts exactly what the target counts. The parts that attach need root.

mod odd;

use profiler_core::class::{ClassId, SiteClass};
use profiler_tests::support::{Killed, Target, kernel_or_skip};
use profiler_user::inspect::{
    ExitObstacle, Function, Inspection, KernelRules, Module, Pattern, TraceRefusal,
};
use profiler_user::prober::{AttachGroup, ClassControl, ClassKind, Kernel, KernelOptions, LinkKind, Site};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::Command;

fn inspect(target: &Target) -> Inspection {
    Inspection::of(target.pid().cast_signed()).unwrap()
}

fn function(inspection: &Inspection, pattern: &str) -> Function {
    let found = inspection.resolve(&[Pattern::parse(pattern).unwrap()]);
    assert_eq!(found.functions.len(), 1, "{pattern}: {:?} {:?}", found.functions, found.unmatched);
    found.functions.into_iter().next().unwrap()
}

#[test]
fn every_entry_gets_its_cheapest_site() {
    let mut target = Target::start("calls");
    let inspection = inspect(&target);
    let nop5 = if inspection.rules().nop5 { SiteClass::Nop5 } else { SiteClass::Stepped };
    for (name, offset, class) in [
        ("entry_push", 0, SiteClass::Push),
        ("entry_nop", 0, SiteClass::Nop),
        ("entry_nop5", 0, nop5),
        ("entry_endbr_push", 4, SiteClass::Push),
        ("entry_mov", 0, SiteClass::Stepped),
        ("entry_sub", 0, SiteClass::Stepped),
        ("entry_test_je", 3, SiteClass::Branch),
        ("exits_two", 0, SiteClass::Push),
    ] {
        let f = function(&inspection, name);
        let choice = inspection.sites(&f);
        assert_eq!((choice.entry.offset, choice.entry.class), (offset, class), "{name}: {}", choice.why);
        assert_eq!(f.address, Some(target.address(name)), "{name}");
        assert_eq!(inspection.function_at(target.address(name) + 1).unwrap().symbol, name);
        choice.trace.clone().unwrap();
        assert!(!choice.iterations);
        assert_eq!(inspection.verify(&f, &choice), Ok(Vec::new()));
        // A plain C program: nothing unwinds, nothing switches stacks.
        choice.return_link.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    let looping = inspection.sites(&function(&inspection, "entry_loop_head"));
    assert!(looping.iterations && looping.exits.is_err() && looping.return_link.is_err());
    // The way out by the first `ret` is seen at the nop before it, the other at its `ret`.
    let exits = inspection.sites(&function(&inspection, "exits_two")).exits.unwrap();
    assert_eq!(exits.iter().map(|e| e.class).collect::<Vec<_>>(), [SiteClass::Nop, SiteClass::Stepped]);
    assert_eq!(exits.iter().map(|e| e.return_slot).collect::<Vec<_>>(), [Some(1), Some(0)]);
    // A tail jump ends nothing: its caller waits until the other function returns.
    let tail = inspection.sites(&function(&inspection, "exits_tail_jump")).exits.unwrap_err();
    let entry_mov = function(&inspection, "entry_mov");
    assert!(
        matches!(&tail, ExitObstacle::TailCall { to, name, .. } if *to == Some(entry_mov.vaddr) && name == "entry_mov"),
        "{tail:?}"
    );
    assert!(
        tail.to_string()
            .ends_with("goes on to entry_mov (a tail call), and its caller waits until that returns")
    );
}

#[test]
fn functions_with_a_restartable_sequence_are_refused() {
    let module = Module::offline(&profiler_tests::program("libsequence.so")).unwrap();
    let sites = |name: &str| {
        let function = module.functions(0).into_iter().find(|f| f.symbol == name).unwrap();
        Inspection::sites_offline(&module, &function, KernelRules::for_version(6, 18))
    };
    // push, lea and mov stand before it.
    assert_eq!(sites("sequence_add").trace, Err(TraceRefusal::RestartableSequence(11)));
    assert_eq!(sites("sequence_none").trace, Ok(()));
}

/// The kernel attaches to files: a breakpoint for each name would count every hit twice.
#[test]
fn a_probe_of_a_file_with_two_names_is_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let names = [folder.path().join("a"), folder.path().join("b")];
    std::fs::copy(profiler_tests::program("probes"), &names[0]).unwrap();
    std::fs::hard_link(&names[0], &names[1]).unwrap();
    for name in &names {
        let file = std::fs::File::open(name).unwrap();
        let (protection, length) =
            (libc::PROT_READ | libc::PROT_EXEC, file.metadata().unwrap().len() as usize);
        // SAFETY: a new mapping, at an address that the kernel chooses; nothing refers to it.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    }
    let inspection = Inspection::of(std::process::id().cast_signed()).unwrap();
    let mapped = inspection.modules().iter().filter(|m| names.contains(&m.path)).count();
    assert_eq!(mapped, 2);
    assert_eq!(inspection.usdt("app", "mixed_end").unwrap().len(), 1);
}

#[test]
fn breakpoints_at_chosen_sites_count_exactly() {
    if !kernel_or_skip("breakpoints_at_chosen_sites_count_exactly") {
        return;
    }
    let kernel = Kernel::load(&KernelOptions { max_classes: 64, ..KernelOptions::default() }).unwrap();
    let mut target = Target::start("calls");
    kernel.add_target(target.pid(), false).unwrap();
    let inspection = inspect(&target);
    let names = [
        "entry_push",
        "entry_nop",
        "entry_nop5",
        "entry_endbr_push",
        "entry_mov",
        "entry_sub",
        "entry_test_je",
        "exits_two",
        "inner",
        "operation_done",
    ];
    let mut id = 0;
    let mut next = || {
        id += 1;
        ClassId(id)
    };
    for name in names {
        let f = function(&inspection, name);
        let choice = inspection.sites(&f);
        inspection.verify(&f, &choice).unwrap();
        let (entries, leaves) = (next(), next());
        let mut sites = vec![Site::entry(entries, choice.entry.file_offset)];
        sites.extend(choice.exits.as_ref().unwrap().iter().map(|e| Site::entry(leaves, e.file_offset)));
        for class in [entries, leaves] {
            kernel.classes().reset(class);
            kernel.classes().set_quota(class, i64::MAX);
            kernel.classes().configure(class, ClassControl::new(ClassKind::Count));
        }
        let group = AttachGroup {
            module: f.attach_path.to_path_buf(),
            pid: target.pid(),
            kind: LinkKind::Count,
            sites,
        };
        let link = kernel.attach(&group).unwrap().link;
        // Odd and even arguments take different ways out.
        let calls = target.call_with(name, 1_000, 1, 1).calls
            + target.call_with(name, 500, 2, 2).calls
            + target.call_with(name, 7, 1, 0).calls;
        assert_eq!(calls, 2_007);
        assert_eq!(kernel.classes().counters(entries).kept, calls, "entries of {name}: {}", choice.why);
        assert_eq!(kernel.classes().counters(leaves).kept, calls, "exits of {name}: {:?}", choice.exits);
        // Another agent's breakpoints are told from a patch.
        assert!(!inspection.verify(&f, &choice).unwrap().is_empty(), "{name}");
        drop(link);
    }
}

/// On a real program, every function whose site was moved gets two breakpoints, at its first instruction and at the
/// site, and one at each exit. All three must count the same, but for the calls that are open when it is stopped.
#[test]
fn moved_sites_and_exits_agree_with_first_instructions_on_sqlite() {
    if !kernel_or_skip("moved_sites_and_exits_agree_with_first_instructions_on_sqlite") {
        return;
    }
    let kernel = Kernel::load(&KernelOptions { max_classes: 4096, ..KernelOptions::default() }).unwrap();
    let mut child = Killed(
        Command::new(profiler_tests::program("sqlite-load"))
            .args(["--seconds", "60"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    while lines.next().unwrap().unwrap() != "ready" {}
    let pid = child.0.id();
    // It has not been waited for.
    let number = Pid::from_child(&child.0);
    let signal = |s| assert_eq!(kill_process(number, s), Ok(()));
    kernel.add_target(pid, false).unwrap();
    let inspection = Inspection::of(pid.cast_signed()).unwrap();
    let found = inspection.resolve(&[Pattern::parse("sqlite-load:*").unwrap()]);
    let mut classes = Vec::new();
    let mut sites = Vec::new();
    for f in found.functions.iter().filter(|f| f.symbol.starts_with("sqlite3") || f.aliases.is_empty()) {
        let choice = inspection.sites(f);
        if choice.entry.offset == 0 || choice.trace.is_err() || classes.len() == 600 {
            continue;
        }
        inspection.verify(f, &choice).unwrap();
        let id = classes.len() as u32 * 3 + 1;
        let [first, moved, exits] = [ClassId(id), ClassId(id + 1), ClassId(id + 2)];
        sites.push(Site::entry(first, f.file_offset));
        sites.push(Site::entry(moved, choice.entry.file_offset));
        sites.extend(choice.exits.iter().flatten().map(|e| Site::entry(exits, e.file_offset)));
        for class in [first, moved, exits] {
            kernel.classes().reset(class);
            kernel.classes().set_quota(class, i64::MAX);
            kernel.classes().configure(class, ClassControl::new(ClassKind::Count));
        }
        classes.push((f.name.clone(), choice, first, moved, exits));
    }
    assert!(classes.len() > 100, "only {} functions have a moved site", classes.len());
    let module = inspection.modules()[0].attach_path();
    let attached = sites.len();
    signal(Signal::STOP);
    let link = kernel
        .attach(&AttachGroup { module: module.to_path_buf(), pid, kind: LinkKind::Count, sites })
        .unwrap()
        .link;
    signal(Signal::CONT);
    // As long as it takes on a busy machine: until enough functions have been called often.
    let count = |class: &ClassId| kernel.classes().counters(*class).kept;
    let hot = || classes.iter().filter(|(_, _, first, ..)| count(first) > 100).count();
    let begun = std::time::Instant::now();
    while hot() < 20 {
        assert!(begun.elapsed().as_secs() < 50, "{} functions were called more than 100 times", hot());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    signal(Signal::STOP);
    let stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(stopped) {
        std::thread::yield_now();
    }
    let mut calls = 0;
    for (name, choice, first, moved, exits) in &classes {
        let (first, moved, exits) = (count(first), count(moved), count(exits));
        // One thread may stand between the two.
        assert!(first.abs_diff(moved) <= 3, "{name}: {first} entries, {moved} at the site: {}", choice.why);
        if choice.exits.is_ok() {
            // Open calls, counted at one end only; the program has a few threads and is not deeply recursive.
            assert!(
                first.abs_diff(exits) <= 40,
                "{name}: {first} entries, {exits} exits: {:?}",
                choice.exits
            );
        }
        calls += first;
    }
    println!("{} functions called often", hot());
    drop(link);
    println!("{} functions, {attached} sites, {calls} calls", classes.len());
}

#[test]
fn return_links_are_refused_where_they_kill() {
    let refusal = |program: &str| inspect(&Target::start(program)).return_links().unwrap_err().0;
    for program in ["cpp_throw", "rust-panic"] {
        let why = refusal(program);
        assert!(why.contains("libgcc_s"), "{program}: {why}");
    }
    let why = refusal("hazards");
    assert!(why.contains("imports"), "{why}");
    let why = refusal("ends");
    assert!(why.contains("ends imports pthread_"), "{why}");
    let why = refusal("switcher");
    assert!(why.contains("own_switch in switcher loads the stack pointer from rsi"), "{why}");
    let why = refusal("switcher_stripped");
    assert!(why.contains("in switcher_stripped loads the stack pointer from rsi"), "{why}");
    let target = Target::start("switcher");
    let report = profiler_user::doctor::check_target(target.pid().cast_signed()).unwrap();
    assert!(!report.return_links);
    assert!(report.return_links_refused.is_some_and(|why| why.contains("own_switch in switcher")));

    // What goes back to a frame of the same stack does not forbid them.
    let target = Target::start("leaver");
    let inspection = inspect(&target);
    assert!(inspection.return_links().is_ok(), "{:?}", inspection.return_links());

    // Exits are still seen: what throws or panics is counted as unwound.
    let target = Target::start("cpp_throw");
    let inspection = inspect(&target);
    for name in ["cpp_thrower", "cpp_middle"] {
        let choice = inspection.sites(&function(&inspection, name));
        assert!(choice.return_link.is_err());
        assert!(choice.return_link_override.is_some());
        assert!(!choice.exits.unwrap_or_else(|why| panic!("{name}: {why}")).is_empty());
    }
}

#[test]
fn a_library_loaded_later_is_noticed() {
    let mut target = Target::start("calls");
    let mut inspection = inspect(&target);
    assert!(!inspection.refresh().unwrap());
    assert!(inspection.return_links().is_ok(), "{:?}", inspection.return_links());
    drop(inspection);

    target = Target::start("hazards");
    let mut inspection = inspect(&target);
    let before = inspection.modules().len();
    let plugin = Pattern::parse("libplugin.so:*").unwrap();
    let nothing = inspection.resolve(std::slice::from_ref(&plugin));
    assert!(nothing.unmatched[0].reason.contains("no mapped module has that name"), "{nothing:?}");
    target.command(&format!("load {}", profiler_tests::program("libplugin.so").display()));
    assert!(inspection.refresh().unwrap());
    assert_eq!(inspection.modules().len(), before + 1);
    assert!(!inspection.resolve(&[plugin]).functions.is_empty());
}

/// Our descriptors of files below a folder.
fn held_below(folder: &std::path::Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.filter(|path| path.starts_with(folder)).count()
}

/// The file of a library that is gone is held as long as one of its functions is, and opened again when it comes back.
#[test]
fn files_of_unloaded_libraries_are_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("generated.so");
    let pattern = [Pattern::parse("generated.so:plugin_function").unwrap()];
    let mut target = Target::start("requests");
    let mut inspection = inspect(&target);
    let before = inspection.modules().len();
    let load = format!("load {}", library.display());
    let found = |inspection: &Inspection| inspection.resolve(&pattern).functions;

    std::fs::copy(profiler_tests::program("libplugin.so"), &library).unwrap();
    assert_eq!(target.command(&load).number("loaded"), 1);
    assert!(inspection.refresh().unwrap());
    let mut functions = found(&inspection);
    let kept = functions.pop().unwrap();
    assert_eq!((kept.module, held_below(folder.path())), (before, 1));

    // A function keeps it, so that its path cannot become that of another file.
    assert_eq!(target.command("unload").number("unloaded"), 1);
    assert!(inspection.refresh().unwrap() && !inspection.refresh().unwrap());
    assert_eq!(held_below(folder.path()), 1);
    let bytes = std::fs::read(&library).unwrap();
    assert!(std::fs::read(&*kept.attach_path).is_ok_and(|read| read == bytes));
    drop(kept);
    assert!(!inspection.refresh().unwrap());
    assert_eq!(held_below(folder.path()), 0);
    assert!(found(&inspection).is_empty(), "it is not mapped");

    // The same file comes back.
    assert_eq!(target.command(&load).number("loaded"), 1);
    assert!(inspection.refresh().unwrap());
    assert_eq!((inspection.modules().len(), held_below(folder.path())), (before + 1, 1));
    assert_eq!(found(&inspection)[0].module, before);
    assert_eq!(target.command("unload").number("unloaded"), 1);
    assert!(inspection.refresh().unwrap());

    // Another one has its name now, and may have its inode: it is another module.
    std::fs::remove_file(&library).unwrap();
    std::fs::copy(profiler_tests::program("libplugin.so"), &library).unwrap();
    assert_eq!(target.command(&load).number("loaded"), 1);
    assert!(inspection.refresh().unwrap());
    assert_eq!((inspection.modules().len(), held_below(folder.path())), (before + 2, 1));
    assert_eq!(found(&inspection)[0].module, before + 1);
}

#[test]
fn patched_and_writable_text_is_refused() {
    for (command, writable) in [("patch", false), ("patch_writable", true)] {
        let mut target = Target::start("hazards");
        let inspection = inspect(&target);
        let (patched, other) =
            (function(&inspection, "hazard_patched"), function(&inspection, "hazard_call"));
        let check = |f: &Function| inspection.verify(f, &inspection.sites(f));
        assert_eq!(check(&patched), Ok(Vec::new()));
        target.command(command);
        let refused = check(&patched).unwrap_err();
        match writable {
            true => assert!(matches!(refused, TraceRefusal::BadMapping(_)), "{refused}"),
            false => assert_eq!(refused, TraceRefusal::Patched(0)),
        }
        assert_eq!(check(&other), Ok(Vec::new()));
        assert_eq!(target.command("patched 5").number("sum"), 10);
    }
}

#[test]
fn functions_chosen_at_load_time_resolve_to_what_was_chosen() {
    let target = Target::start("calls");
    let inspection = inspect(&target);
    let found = inspection.resolve(&[Pattern::parse("libc.so.6:memcpy").unwrap()]);
    // Without the C library's debug symbols the implementation has no name; then the reason says so.
    match found.functions.first() {
        Some(f) => {
            assert!(!f.ifunc && f.symbol.contains("mem"), "{f:?}");
            inspection.sites(f).trace.unwrap();
        }
        None => assert!(found.unmatched[0].reason.contains("IFUNC"), "{:?}", found.unmatched),
    }
}

#[test]
fn what_is_not_found_is_explained() {
    let target = Target::start("calls");
    let inspection = inspect(&target);
    let patterns: Vec<Pattern> =
        ["entry_psuh", "nosuch.so:x"].iter().map(|p| Pattern::parse(p).unwrap()).collect();
    let found = inspection.resolve(&patterns);
    assert!(found.functions.is_empty());
    assert_eq!(found.unmatched[0].suggestions[0], "entry_push");
    assert!(found.unmatched[1].reason.contains("mapped are: calls"), "{:?}", found.unmatched[1]);
}
