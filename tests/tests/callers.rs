//! Return-address sites against live programs that know their call sites, and against the kernel: a probe at each site counts
//! the returns, and calls are matched there by their return slot. The parts that attach need root.

use expect_test::expect;
use profiler_core::class::ClassId;
use profiler_tests::support::{Killed, Target, kernel_or_skip};
use profiler_user::inspect::{
    CallerBudget, CallerError, CallerSearch, CallerSite, Function, Inspection, Module, Pattern, ReturnSite,
    TraceRefusal,
};
use profiler_user::prober::{
    AttachGroup, ClassControl, ClassKind, Kernel, KernelOptions, LinkKind, Site, SiteRole,
};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

/// Callers of the program that can be looked at, in its order.
const CALLERS: [&str; 18] = [
    "caller_plain",
    "caller_push",
    "caller_locked",
    "caller_flags",
    "caller_joined",
    "caller_pointer",
    "caller_relaxed",
    "caller_slot",
    "caller_stub",
    "caller_twice",
    "caller_nop5",
    "caller_moved",
    "caller_hop",
    "caller_data",
    "caller_far",
    "caller_sequence",
    "caller_pushed",
    "caller_patched",
];

fn inspect(target: &Target) -> Inspection {
    Inspection::of(target.pid().cast_signed()).unwrap()
}

fn function(inspection: &Inspection, pattern: &str) -> Function {
    let found = inspection.resolve(&[Pattern::parse(pattern).unwrap()]);
    assert_eq!(found.functions.len(), 1, "{pattern}: {:?} {:?}", found.functions, found.unmatched);
    found.functions.into_iter().next().unwrap()
}

/// What stands behind the call of a caller, by the program.
fn behind(target: &mut Target, caller: &str) -> u64 {
    target.command(&format!("site {caller}")).number("address")
}

/// Return addresses that `callee` has had, and how often.
fn seen(target: &mut Target) -> BTreeMap<u64, u64> {
    let reply = target.command("seen");
    let addresses = reply.text("addresses").unwrap_or_default();
    let one = |pair: &str| {
        let (address, calls) = pair.strip_prefix("0x")?.split_once(':')?;
        Some((u64::from_str_radix(address, 16).ok()?, calls.parse().ok()?))
    };
    let seen: BTreeMap<u64, u64> =
        addresses.split(',').filter(|pair| !pair.is_empty()).map(|pair| one(pair).unwrap()).collect();
    assert_eq!(seen.len() as u64, reply.number("seen"));
    seen
}

/// As text, with addresses by name.
fn shown(inspection: &Inspection, caller: &Result<CallerSite, CallerError>) -> String {
    let site = |site: &ReturnSite| {
        format!(
            "+{} {} slot {}{}",
            site.distance,
            site.class.name(),
            site.return_slot,
            if site.joined { " joined" } else { "" }
        )
    };
    match caller {
        Ok(caller) => {
            let direct = caller.direct.map_or("a pointer".to_owned(), |to| {
                let function = inspection.function_at(to);
                function.map_or(format!("{to:#x}"), |f| f.symbol)
            });
            let cheaper = caller.cheaper.map_or(String::new(), |cheaper| format!(", {}", site(&cheaper)));
            format!("{direct}: {}{cheaper}", site(&caller.site))
        }
        Err(why) => why.to_string(),
    }
}

#[test]
fn each_call_has_the_site_of_its_form() {
    let mut target = Target::start("callers");
    let inspection = inspect(&target);
    let addresses: Vec<u64> = CALLERS.iter().map(|name| behind(&mut target, name)).collect();
    let unbound = inspection.callers(&addresses);
    target.command("call caller_stub 1");
    let found = inspection.callers(&addresses);
    let stub = CALLERS.iter().position(|name| *name == "caller_stub").unwrap();
    assert_eq!(unbound[stub].as_ref().unwrap().direct, None, "nobody has called it yet");
    assert_eq!(
        unbound[stub].as_ref().unwrap().site,
        found[stub].as_ref().unwrap().site,
        "what it is bound to does not matter to the site"
    );
    let mut text = String::new();
    for ((name, address), caller) in CALLERS.iter().zip(&addresses).zip(&found) {
        // Older kernels leave a nop of five bytes alone.
        if *name != "caller_nop5" || inspection.rules().nop5 {
            writeln!(text, "{name}: {}", shown(&inspection, caller)).unwrap();
        }
        let Ok(caller) = caller else { continue };
        assert_eq!(caller.return_address, *address);
        let site = caller.site;
        let module = &inspection.modules()[caller.module];
        let in_process = module.address_of_offset(site.file_offset);
        assert_eq!(in_process, Some(address + u64::from(site.distance)), "{name}");
        assert_eq!(inspection.verify_callers(std::slice::from_ref(caller)), [Ok(Vec::new())], "{name}");
    }
    expect![[r#"
        caller_plain: callee: +0 stepped slot -1, +3 branch slot -1
        caller_push: callee: +0 push slot -1
        caller_locked: callee: +8 stepped slot -1, +11 branch slot -1
        caller_flags: callee: +2 stepped slot 1, +5 push slot 1
        caller_joined: callee: +0 stepped slot -1 joined
        caller_pointer: a pointer: +0 stepped slot -1
        caller_relaxed: callee: +0 stepped slot -1
        caller_slot: getppid: +0 stepped slot -1
        caller_stub: getgid: +0 stepped slot -1
        caller_twice: callee: +0 branch slot -1
        caller_nop5: callee: +5 stepped slot -1
        caller_moved: callee: +0 stepped slot -1, +4 push slot 1
        caller_hop: hop: +0 stepped slot -1
        caller_data: what stands at +0x9 of its caller caller_data may be no instruction: the bytes at +0x11 are no instruction
        caller_far: no instruction behind the call at +0x4 of caller_far can carry a breakpoint: +0x9: the kernel refuses es, cs, ss, ds and lock prefixes; what stands 128 bytes behind the return address is too far away
        caller_sequence: its caller: a restartable sequence (rseq) begins in it at +0xb: the kernel would not restart it while it steps
        caller_pushed: no known way through caller_pushed leads to the call that ends at +0x16: it may be data
        caller_patched: callee: +0 stepped slot -1
    "#]].assert_eq(&text);
}

/// What the entry of a function learns is what the program knows: no call more and none less.
#[test]
fn learned_addresses_are_the_calls_of_the_program() {
    let mut target = Target::start("callers");
    let inspection = inspect(&target);
    let callee = function(&inspection, "callers:callee");
    let hop = function(&inspection, "callers:hop");
    for name in CALLERS.iter().chain(&["caller_loop"]) {
        target.command(&format!("call {name} 10"));
    }
    let seen = seen(&mut target);
    let found: BTreeMap<u64, _> =
        seen.keys().copied().zip(inspection.callers(&seen.keys().copied().collect::<Vec<_>>())).collect();
    let others =
        ["caller_slot", "caller_stub", "caller_data", "caller_far", "caller_sequence", "caller_pushed"];
    let known: Vec<u64> =
        CALLERS.iter().filter(|n| !others.contains(n)).map(|name| behind(&mut target, name)).collect();
    for address in &known {
        let caller = found[address].as_ref().unwrap_or_else(|why| panic!("{address:#x}: {why}"));
        let callees = [callee.address, hop.address, None];
        assert!(callees.contains(&caller.direct), "{address:#x}: {caller:x?}");
    }
    // The compiler makes one call or two of the loop in C.
    let in_loop = |address: &&u64| inspection.function_at(**address).unwrap().symbol == "caller_loop";
    let looped: Vec<u64> = seen.keys().filter(in_loop).copied().collect();
    let loop_calls: u64 = looped.iter().map(|address| seen[address]).sum();
    assert!(loop_calls == 20 && looped.iter().all(|address| found[address].is_ok()), "{seen:x?}");
    // The second call of caller_twice, and the four that get no site.
    assert_eq!(seen.len() - looped.len(), known.len() + 5, "{seen:x?}");
    assert_eq!(found.values().filter(|caller| caller.is_err()).count(), 4, "{found:x?}");
    // Nothing near a return address is taken for one.
    for address in known {
        for wrong in [address - 1, address + 1] {
            let caller = inspection.callers(&[wrong]).remove(0);
            assert!(
                matches!(caller, Err(CallerError::NoCall { .. } | CallerError::Undecoded { .. })),
                "{wrong:#x}: {caller:x?}"
            );
        }
    }
}

/// Without symbols the unwind table tells where callers begin.
#[test]
fn callers_without_names_have_the_same_sites() {
    let sites = |program: &str| {
        let mut target = Target::start(program);
        let inspection = inspect(&target);
        let addresses: Vec<u64> = CALLERS.iter().map(|name| behind(&mut target, name)).collect();
        let found = inspection.callers(&addresses).into_iter();
        found.map(|caller| caller.ok().map(|c| (c.site, c.cheaper))).collect::<Vec<_>>()
    };
    let (named, stripped) = (sites("callers"), sites("callers_stripped"));
    // The data in the symbol of caller_data lie outside of what the unwind table calls that function.
    let data = CALLERS.iter().position(|name| *name == "caller_data").unwrap();
    for (i, name) in CALLERS.iter().enumerate() {
        assert_eq!(named[i] == stripped[i], i != data, "{name}: {:?} and {:?}", named[i], stripped[i]);
    }
    assert!(stripped[data].is_some());
}

#[test]
fn what_cannot_carry_a_site_says_why() {
    let mut target = Target::start("callers");
    let made = target.command("jit 3").number("address");
    let inspection = inspect(&target);
    let area = |name: &str| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
        let line = maps.lines().find(|line| line.ends_with(name)).unwrap();
        u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
    };
    let why = |address: u64| inspection.callers(&[address]).remove(0).unwrap_err();
    assert_eq!(why(made), CallerError::MadeAtRunTime);
    assert_eq!(why(area("[vdso]") + 0x800), CallerError::Kernels("[vdso]".into()));
    assert_eq!(why(area("[stack]")), CallerError::NotMapped(area("[stack]")));
    assert_eq!(why(0x10), CallerError::NotMapped(0x10));
    let begin = function(&inspection, "callers:callee").address.unwrap();
    assert!(matches!(why(begin), CallerError::NoCall { .. } | CallerError::NoFunction), "{}", why(begin));
    let sequence = behind(&mut target, "caller_sequence");
    assert!(
        matches!(why(sequence), CallerError::Refused(TraceRefusal::RestartableSequence(_))),
        "{}",
        why(sequence)
    );
    let none = CallerBudget { bytes: 1, time: Duration::from_secs(9) };
    let plain = behind(&mut target, "caller_plain");
    let found = inspection.caller_search(&[plain]).run(none).remove(0);
    assert!(matches!(found, Err(CallerError::NotLookedAt(_))), "{found:?}");

    // It can be run beside the event loop.
    fn crosses_threads<T: Send + 'static>(_: &T) {}
    let search: CallerSearch = inspection.caller_search(&[plain]);
    crosses_threads(&search);
    let found = std::thread::spawn(move || search.run(CallerBudget::default())).join().unwrap();
    assert_eq!(found, inspection.callers(&[plain]));
}

#[test]
fn a_caller_that_was_patched_is_refused_right_before_linking() {
    let mut target = Target::start("callers");
    let inspection = inspect(&target);
    let addresses = [behind(&mut target, "caller_patched"), behind(&mut target, "caller_plain")];
    let found: Vec<CallerSite> = inspection.callers(&addresses).into_iter().map(Result::unwrap).collect();
    assert_eq!(inspection.verify_callers(&found), [Ok(Vec::new()), Ok(Vec::new())]);
    target.command("patch");
    // The call ends at +14, and the second byte behind it was changed.
    assert_eq!(inspection.verify_callers(&found), [Err(TraceRefusal::Patched(15)), Ok(Vec::new())]);
    // The proof has read the whole caller: neither the call nor what stands behind it need to have changed.
    let mut target = Target::start("callers");
    let inspection = inspect(&target);
    let addresses = [behind(&mut target, "caller_patched"), behind(&mut target, "caller_plain")];
    let found: Vec<CallerSite> = inspection.callers(&addresses).into_iter().map(Result::unwrap).collect();
    target.command("patch begin");
    assert_eq!(inspection.verify_callers(&found), [Err(TraceRefusal::Patched(5)), Ok(Vec::new())]);
}

#[test]
fn functions_that_do_not_come_back_as_they_came_are_named() {
    let target = Target::start("callers");
    let inspection = inspect(&target);
    for name in ["callers:callee", "callers:hop", "callers:caller_moved"] {
        assert_eq!(inspection.returns_to_its_callers(&function(&inspection, name)), Ok(()), "{name}");
    }
    let mut target = Target::start("leaver");
    target.command(&format!("load {}", profiler_tests::program("libswitches.so").display()));
    let inspection = inspect(&target);
    let switch = function(&inspection, "libswitches.so:own_switch");
    let why = inspection.returns_to_its_callers(&switch).unwrap_err();
    assert!(why.0.contains("loads the stack pointer from rsi"), "{why}");
    let target = Target::start("cpp_throw");
    let inspection = inspect(&target);
    for name in ["cpp_thrower", "cpp_middle"] {
        assert_eq!(inspection.returns_to_its_callers(&function(&inspection, name)), Ok(()), "{name}");
    }
    // It ends its thread.
    let why = inspection.returns_to_its_callers(&function(&inspection, "cpp_exit")).unwrap_err();
    assert!(why.0.contains("never returns"), "{why}");
}

/// A kernel with as many classes as a test needs, ungated.
fn kernel_for(target: u32, classes: u32) -> Kernel {
    let kernel =
        Kernel::load(&KernelOptions { max_classes: classes + 1, ..KernelOptions::default() }).unwrap();
    kernel.add_target(target, false).unwrap();
    kernel
}

fn ungate(kernel: &Kernel, class: ClassId, kind: ClassKind) {
    kernel.classes().reset(class);
    kernel.classes().set_quota(class, i64::MAX);
    kernel.classes().configure(class, ClassControl::new(kind));
}

#[test]
fn a_probe_at_each_site_counts_the_returns() {
    if !kernel_or_skip("a_probe_at_each_site_counts_the_returns") {
        return;
    }
    let mut target = Target::start("callers");
    let kernel = kernel_for(target.pid(), 3);
    let inspection = inspect(&target);
    let mut tried = 0;
    for name in CALLERS {
        let address = behind(&mut target, name);
        let Ok(caller) = inspection.callers(&[address]).remove(0) else { continue };
        let places: Vec<ReturnSite> = [Some(caller.site), caller.cheaper].into_iter().flatten().collect();
        for (number, place) in (1..).zip(&places) {
            let class = ClassId(number);
            ungate(&kernel, class, ClassKind::Count);
            let group = AttachGroup {
                module: inspection.modules()[caller.module].attach_path().to_path_buf(),
                pid: target.pid(),
                kind: LinkKind::Count,
                sites: vec![Site::entry(class, place.file_offset)],
            };
            let link = kernel.attach(&group).unwrap().link;
            let reply = target.command(&format!("call {name} 1000"));
            // Each caller returns its argument plus one: 1 + ... + 1000.
            assert_eq!(reply.number("sum"), 500_500, "{name}: {place:?}");
            // Whether it is called or jumps to the same place, it comes by.
            assert_eq!(kernel.classes().counters(class).kept, 1000, "{name}: {place:?}");
            assert_eq!(place.joined && name == "caller_joined", reply.number("calls") == 500, "{name}");
            // Our own breakpoint is no patch.
            let verdict = inspection.verify_callers(std::slice::from_ref(&caller)).remove(0);
            assert!(verdict.is_ok_and(|remarks| remarks.len() == 1), "{name}");
            drop(link);
            tried += 1;
        }
    }
    assert!(tried > 16, "{tried} sites");
    target.assert_text_original();
}

#[test]
fn a_call_in_a_cold_part_has_a_site() {
    if !kernel_or_skip("a_call_in_a_cold_part_has_a_site") {
        return;
    }
    let mut target = Target::start("callers");
    let kernel = kernel_for(target.pid(), 2);
    target.command("call caller_cold 2");
    let inspection = inspect(&target);
    let address = *seen(&mut target).keys().next().unwrap();
    let owner = function(&inspection, "callers:caller_cold");
    let begin = owner.address.unwrap();
    assert!(!(begin..begin + owner.size).contains(&address), "the compiler made no cold part");
    assert_eq!(inspection.function_at(address).unwrap().symbol, "caller_cold");
    let caller = inspection.callers(&[address]).remove(0).unwrap();
    assert!(!caller.site.joined, "{caller:x?}");
    ungate(&kernel, ClassId(1), ClassKind::Count);
    let group = AttachGroup {
        module: owner.attach_path.to_path_buf(),
        pid: target.pid(),
        kind: LinkKind::Count,
        sites: vec![Site::entry(ClassId(1), caller.site.file_offset)],
    };
    let link = kernel.attach(&group).unwrap().link;
    assert_eq!(target.command("call caller_cold 1000").number("sum"), 500_500);
    assert_eq!(kernel.classes().counters(ClassId(1)).kept, 500);
    drop(link);
}

/// The entry of `callee`, and one site for each caller as the places where calls end: each call ends at its own caller's.
#[test]
fn calls_end_at_their_return_addresses() {
    if !kernel_or_skip("calls_end_at_their_return_addresses") {
        return;
    }
    let mut target = Target::start("callers");
    let kernel = kernel_for(target.pid(), 2);
    let inspection = inspect(&target);
    let callee = function(&inspection, "callers:callee");
    let entry = inspection.sites(&callee).entry;
    let class = ClassId(1);
    let timed =
        ["caller_slot", "caller_stub", "caller_data", "caller_far", "caller_sequence", "caller_pushed"];
    let timed: Vec<&str> = CALLERS.into_iter().filter(|name| !timed.contains(name)).collect();
    for cheap in [false, true] {
        let addresses: Vec<u64> = timed.iter().map(|name| behind(&mut target, name)).collect();
        let callers: Vec<CallerSite> =
            inspection.callers(&addresses).into_iter().map(Result::unwrap).collect();
        ungate(&kernel, class, ClassKind::Latency);
        let site =
            |file_offset, slot_delta, role| Site { role, slot_delta, ..Site::entry(class, file_offset) };
        let mut sites = vec![site(entry.file_offset, entry.return_slot.unwrap(), SiteRole::Entry)];
        sites.extend(callers.iter().map(|caller| {
            let place = if cheap { caller.best() } else { caller.site };
            site(place.file_offset, place.return_slot, SiteRole::Exit)
        }));
        let group = AttachGroup {
            module: callee.attach_path.to_path_buf(),
            pid: target.pid(),
            kind: LinkKind::ExitPair,
            sites,
        };
        let link = kernel.attach(&group).unwrap().link;
        for name in &timed {
            let before = kernel.classes().counters(class);
            let calls = target.command(&format!("call {name} 100")).number("calls");
            let now = kernel.classes().counters(class);
            assert_eq!(now.kept - before.kept, calls, "{name}");
            // Of the two calls of caller_twice one ends where nothing is.
            let ends = if *name == "caller_twice" { calls / 2 } else { calls };
            assert_eq!(now.returns - before.returns, ends, "{name}, cheap {cheap}");
            // What jumps there is no return.
            let orphans = if *name == "caller_joined" { 50 } else { 0 };
            assert_eq!(now.orphans - before.orphans, orphans, "{name}, cheap {cheap}");
        }
        drop(link);
    }
    target.assert_text_original();
}

/// On a real program: a breakpoint on a call and one at its return address, the cheaper site where there is one. Where nothing
/// else leads there, both count the same, but for the calls that are open when it is stopped.
#[test]
fn calls_and_returns_agree_on_sqlite() {
    if !kernel_or_skip("calls_and_returns_agree_on_sqlite") {
        return;
    }
    let mut command = Command::new(profiler_tests::program("sqlite-load"));
    command.args(["--seconds", "60"]).stdout(std::process::Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    while lines.next().unwrap().unwrap() != "ready" {}
    let pid = child.0.id();
    let number = Pid::from_child(&child.0);
    let signal = |s| assert_eq!(kill_process(number, s), Ok(()));
    let inspection = Inspection::of(pid.cast_signed()).unwrap();
    let callers = some_callers(&inspection, 1000);
    let kernel = kernel_for(pid, 2 * callers.len() as u32);
    let mut sites = Vec::new();
    for (caller, id) in callers.iter().zip((1..).step_by(2)) {
        let place = caller.best();
        let elf = inspection.modules()[0].elf().unwrap();
        for (class, offset) in [(id, elf.offset_of(caller.call_vaddr).unwrap()), (id + 1, place.file_offset)]
        {
            ungate(&kernel, ClassId(class), ClassKind::Count);
            sites.push(Site::entry(ClassId(class), offset));
        }
    }
    let module = inspection.modules()[0].attach_path().to_path_buf();
    signal(Signal::STOP);
    let link = kernel.attach(&AttachGroup { module, pid, kind: LinkKind::Count, sites }).unwrap().link;
    signal(Signal::CONT);
    let count = |class: u32| kernel.classes().counters(ClassId(class)).kept;
    let hot = || (0..callers.len() as u32).filter(|i| count(2 * i + 1) > 100).count();
    let begun = std::time::Instant::now();
    while hot() < 40 {
        assert!(begun.elapsed().as_secs() < 50, "{} calls were made more than 100 times", hot());
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(Signal::STOP);
    let stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(stopped) {
        std::thread::yield_now();
    }
    for (caller, id) in callers.iter().zip((1..).step_by(2)) {
        let (calls, returns) = (count(id), count(id + 1));
        let of = inspection.function_in(0, caller.call_vaddr).map_or(String::new(), |f| f.name);
        // Open calls, counted at one end only; the program has a few threads and is not deeply recursive.
        assert!(calls.abs_diff(returns) <= 40, "{of}: {calls} calls, {returns} returns: {caller:x?}");
    }
    println!("{} calls made often of {}", hot(), callers.len());
    drop(link);
}

/// Calls of SQLite, spread over the program, whose returns have a site that nothing else leads to and whose own instruction can be
/// probed.
fn some_callers(inspection: &Inspection, most: usize) -> Vec<CallerSite> {
    let module: &Module = &inspection.modules()[0];
    let all = module.return_addresses().unwrap();
    // What runs all the time while rows are looked up and written.
    let busy = ["Vdbe", "Btree", "btree", "Pager", "pager", "Pcache", "pcache", "Cell", "Malloc"];
    let of_sqlite = |vaddr: &u64| {
        let function = inspection.function_in(0, *vaddr);
        function.is_some_and(|f| busy.iter().any(|part| f.symbol.contains(part)))
    };
    let bias = module.address_of_offset(module.elf().unwrap().offset_of(all[0]).unwrap()).unwrap() - all[0];
    let addresses: Vec<u64> = all.iter().filter(|a| of_sqlite(a)).map(|a| a + bias).collect();
    let found = inspection.callers(&addresses);
    let share = found.iter().filter(|caller| caller.is_ok()).count() as f64 / found.len() as f64;
    assert!(share > 0.99, "{share} of {} return addresses have a site", found.len());
    let usable: Vec<CallerSite> =
        found.into_iter().flatten().filter(|c| !c.best().joined && c.direct.is_some()).collect();
    let step = usable.len().div_ceil(most).max(1);
    usable.into_iter().step_by(step).collect()
}
