//! USDT probes as bounds of operations: what the agent says of them against how often the target passed them.

use super::operations::{follow, stop, sums};
use super::{sleep_ms, start};
use profiler_core::class::ClassId;
use profiler_tests::program;
use profiler_tests::support::{Agent, Target};
use profiler_user::inspect::Inspection;
use profiler_user::prober::{AttachGroup, Attached, Kernel, KernelOptions, LinkKind, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Output};

const REQUEST: &str = "req=usdt:app:request_begin..usdt:app:request_end";
const JOB: &str = "job=usdt:app:guarded_begin..usdt:app:guarded_end";

/// Name of the class of a type.
type Name = fn(u64) -> String;

#[test]
fn every_pair_of_probes_is_counted_and_told_apart_by_its_registers() {
    let Some(folder) = start("every_pair_of_probes_is_counted_and_told_apart_by_its_registers") else {
        return;
    };
    // The places of the probe have their arguments in different registers; names, signed and unsigned values.
    let cases: [(&str, &str, Name); 4] = [
        ("probes", ",class=arg0:str", |t| format!("GET /{t}")),
        ("probes", ",class=arg1", |t| (t as i64 - 2).to_string()),
        // Notes outlive the symbols. Of the register only the byte counts.
        ("probes_stripped", ",class=arg2", |t| (200 + t).to_string()),
        ("probes_stripped", "", |_| "req".to_owned()),
    ];
    for (program, class, name) in cases {
        let mut target = Target::start(program);
        let spec = format!("{REQUEST}{class}");
        let arguments = ["--operation", &spec, "--operation", JOB, "--policy", "full"];
        let agent = follow(&target, &folder, &arguments);
        target.command("serve 2000 3 6");
        sleep_ms(200);
        let (finished, recorded) = stop(agent);
        let mut truth = BTreeMap::new();
        for t in 0..6 {
            let served = target.command(&format!("served {t}"));
            assert_eq!(served.number("broken"), 0, "{program}: locals were overwritten");
            *truth.entry(name(t)).or_insert(0) += served.number("requests");
        }
        assert_eq!(truth.values().sum::<u64>(), 6_000);
        assert_eq!(sums(&recorded, |w| w.population), truth, "{spec}; {}", finished.messages);
        assert_eq!(sums(&recorded, |w| w.recorded), truth, "{spec}");
        assert_eq!(sums(&recorded, |w| w.unmatched), BTreeMap::new());
        assert_eq!(recorded.operations.len(), 6_000);
        // Each place has its own row; functions have names where there are symbols.
        let names: BTreeSet<&str> = recorded.classes.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names.len(), recorded.classes.len(), "{names:?}");
        let place = "usdt:app:request_begin at serve_odd+0x";
        assert_eq!(names.iter().any(|n| n.starts_with(place)), program == "probes", "{names:?}");
        assert!(recorded.operations.iter().all(|o| o.duration_ns > 0 && o.duration_ns < 1_000_000_000));
        // Two places of each probe and one place: an operation passes one begin and one end all the same.
        let screen_ns: Vec<f64> = recorded.meta.operations.iter().map(|o| o.screen_ns).collect();
        assert!(screen_ns[0] > 0.0 && (screen_ns[0] / screen_ns[1] - 1.0).abs() < 1e-6, "{screen_ns:?}");
        assert!(target.is_alive());
        target.assert_text_original();
    }
}

#[test]
fn semaphores_are_raised_while_probes_are_followed_and_no_longer() {
    let Some(folder) = start("semaphores_are_raised_while_probes_are_followed_and_no_longer") else { return };
    let mut target = Target::start("probes");
    let raised = |target: &mut Target| {
        let answer = target.command("semaphores");
        (answer.number("begin"), answer.number("end"))
    };
    assert_eq!(raised(&mut target), (0, 0));
    assert_eq!(target.command("guarded 10").number("passed"), 0);
    let spec = format!("{JOB},class=arg0:long");
    let agent = follow(&target, &folder, &["--operation", &spec, "--policy", "full"]);
    assert_eq!(raised(&mut target), (1, 1));
    assert_eq!(target.command("guarded 4000").number("passed"), 4_000);
    sleep_ms(200);
    let (finished, recorded) = stop(agent);
    let truth: BTreeMap<String, u64> = (0..4).map(|n| (n.to_string(), 1_000)).collect();
    assert_eq!(sums(&recorded, |w| w.population), truth, "{}", finished.messages);
    assert_eq!(sums(&recorded, |w| w.unmatched), BTreeMap::new());
    assert_eq!(raised(&mut target), (0, 0), "after {}", finished.messages);
    assert_eq!(target.command("guarded 10").number("passed"), 0);
    assert!(target.is_alive());
    target.assert_text_original();
}

#[test]
fn an_agent_that_is_killed_leaves_no_semaphore_raised() {
    let Some(folder) = start("an_agent_that_is_killed_leaves_no_semaphore_raised") else { return };
    let mut target = Target::start("probes");
    let agent = follow(&target, &folder, &["--operation", JOB, "--policy", "none"]);
    assert_eq!(target.command("semaphores").number("begin"), 1);
    agent.signal(libc::SIGKILL);
    let gone = (0..100).any(|_| {
        sleep_ms(100);
        let answer = target.command("semaphores");
        (answer.number("begin"), answer.number("end")) == (0, 0)
    });
    drop(agent);
    assert!(gone, "the semaphores are raised 10 s after the agent was killed");
    assert_eq!(target.command("guarded 10").number("passed"), 0);
    assert!(target.is_alive());
}

fn mend(target: &Target) -> Output {
    Command::new(program("tithe"))
        .args(["internal-mend", &target.pid().to_string()])
        .output()
        .expect("tithe was built")
}

/// What an agent leaves that is killed in the middle of attaching: the breakpoint, and the semaphore raised.
#[test]
fn a_breakpoint_without_an_owner_goes_with_its_semaphore() {
    if start("a_breakpoint_without_an_owner_goes_with_its_semaphore").is_none() {
        return;
    }
    let mut target = Target::start("probes");
    let inspection = Inspection::of(target.pid().cast_signed()).expect("it can be looked into");
    let probe = &inspection.usdt("app", "guarded_begin").expect("it is there")[0];
    let (semaphore, _) = inspection.variable("app_guarded_begin_semaphore").expect("it has symbols");
    let memory =
        File::options().write(true).open(format!("/proc/{}/mem", target.pid())).expect("we are root");
    memory.write_all_at(&1_u16.to_ne_bytes(), semaphore).expect("it is mapped");
    memory.write_all_at(&[0xcc], probe.function.address.expect("it is mapped")).expect("it is mapped");
    assert_eq!(target.command("semaphores").number("begin"), 1);
    let output = mend(&target);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.assert_text_original();
    assert_eq!(target.command("semaphores").number("begin"), 0);
    assert_eq!(target.command("guarded 10").number("passed"), 0);
    assert!(target.is_alive());
}

/// The kernel has a uprobe with a semaphore there, as it has one that it could not unregister.
#[test]
fn mending_takes_over_probes_that_the_kernel_knows_with_their_semaphore() {
    let Some(folder) = start("mending_takes_over_probes_that_the_kernel_knows_with_their_semaphore") else {
        return;
    };
    let mut target = Target::start("probes");
    let agent = follow(&target, &folder, &["--operation", JOB, "--policy", "full"]);
    let output = mend(&target);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = target.command("semaphores");
    assert_eq!((answer.number("begin"), answer.number("end")), (1, 1), "the agent's probes stay as they are");
    assert_eq!(target.command("guarded 1000").number("passed"), 1_000);
    sleep_ms(200);
    let (finished, recorded) = stop(agent);
    assert_eq!(sums(&recorded, |w| w.population).values().sum::<u64>(), 1_000, "{}", finished.messages);
    let answer = target.command("semaphores");
    assert_eq!((answer.number("begin"), answer.number("end")), (0, 0));
    target.assert_text_original();
}

/// Somebody attached to a probe as to any instruction: the kernel refuses whoever comes with its semaphore.
fn hold_without_semaphore(target: &Target, probe: &str) -> (Kernel, Attached) {
    let inspection = Inspection::of(target.pid().cast_signed()).expect("it can be looked into");
    let probe = &inspection.usdt("app", probe).expect("it is there")[0];
    let options = KernelOptions { max_classes: 16, ..KernelOptions::default() };
    let kernel = Kernel::load(&options).expect("it loads");
    let offset = probe.sites.entries[0].file_offset;
    let group = AttachGroup {
        module: program("probes"),
        pid: target.pid(),
        kind: LinkKind::Empty,
        sites: vec![Site::entry(ClassId(0), offset)],
    };
    let attached = kernel.attach(&group).expect("it can be attached");
    assert!(attached.refused.is_empty());
    (kernel, attached)
}

#[test]
fn mending_passes_over_a_probe_that_somebody_holds_without_its_semaphore() {
    if start("mending_passes_over_a_probe_that_somebody_holds_without_its_semaphore").is_none() {
        return;
    }
    let mut target = Target::start("probes");
    let held = hold_without_semaphore(&target, "guarded_begin");
    let output = mend(&target);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(target.command("semaphores").number("begin"), 0);
    drop(held);
    assert!(target.is_alive());
    target.assert_text_original();
}

#[test]
fn an_operation_whose_end_cannot_be_attached_is_not_watched_and_pays_nothing() {
    let Some(folder) = start("an_operation_whose_end_cannot_be_attached_is_not_watched_and_pays_nothing")
    else {
        return;
    };
    let mut target = Target::start("probes");
    let held = hold_without_semaphore(&target, "guarded_end");
    let mut agent = Agent::start(
        target.pid(),
        folder.path(),
        &["--operation", JOB, "--operation", REQUEST, "--policy", "full"],
    );
    agent.wait_message("operation 'job' is not watched");
    sleep_ms(300);
    // Its begin has no breakpoint and no semaphore.
    assert_eq!(target.command("semaphores").number("begin"), 0);
    target.command("serve 500 1 3");
    sleep_ms(200);
    let (finished, recorded) = stop(agent);
    let truth = BTreeMap::from([("req".to_owned(), 500)]);
    assert_eq!(sums(&recorded, |w| w.population), truth, "{}", finished.messages);
    let unseen = &recorded.meta.not_observed;
    assert!(unseen.iter().any(|n| n.what == "operation 'job'"), "{unseen:?}");
    drop(held);
    assert!(target.is_alive());
    target.assert_text_original();
}

#[test]
fn a_function_may_begin_what_a_probe_ends() {
    let Some(folder) = start("a_function_may_begin_what_a_probe_ends") else { return };
    let mut target = Target::start("probes");
    let agent = follow(
        &target,
        &folder,
        &["--operation", "both=mixed_begin..usdt:app:mixed_end", "--policy", "full"],
    );
    target.command("mixed 3000");
    sleep_ms(200);
    let (finished, recorded) = stop(agent);
    let truth = BTreeMap::from([("both".to_owned(), 3_000)]);
    assert_eq!(sums(&recorded, |w| w.population), truth, "{}", finished.messages);
    assert_eq!(sums(&recorded, |w| w.unmatched), BTreeMap::new());
    assert!(target.is_alive());
}

#[test]
fn probes_that_cannot_bound_an_operation_are_refused_in_words() {
    let Some(folder) = start("probes_that_cannot_bound_an_operation_are_refused_in_words") else { return };
    let mut target = Target::start("probes");
    let mut stripped = Target::start("probes_stripped");
    let end = "..usdt:app:request_end";
    let cases = [
        ("usdt:app:request_begin", String::new(), "is a point and has no end"),
        ("usdt:app:memory", format!("{end},class=arg0"), "argument 0: '8@-8(%rbp)' lies in memory"),
        ("usdt:app:constant", format!("{end},class=arg0"), "argument 0: '-4@$7' is a constant"),
        ("usdt:app:constant", format!("{end},class=arg3"), "there is no argument 3: the probe has 1 (-4@$7)"),
        (
            "usdt:app:request_begin",
            format!("{end},class=arg1:str"),
            "'-4@%eax' has 4 bytes and is no address",
        ),
        ("usdt:app:wide", end.to_owned(), "holds the code 0f 1f 44 00 00 and not a nop of one byte"),
        ("usdt:app:inside", end.to_owned(), "is inside an instruction of unusable"),
        ("usdt:app:before_data", end.to_owned(), "is inside an instruction of undecodable"),
        ("usdt:app:behind_data", end.to_owned(), "may be inside an instruction of undecodable"),
        ("usdt:app:request_start", end.to_owned(), "similar: usdt:app:request_begin"),
        ("usdt:other:thing", end.to_owned(), "providers in the target: app"),
    ];
    // No symbol says where the function begins, its unwind table does.
    let of_stripped = [
        ("usdt:app:inside", end.to_owned(), "is inside an instruction of the function without a name"),
        ("usdt:app:before_data", end.to_owned(), "is inside an instruction of the function without a name"),
        (
            "usdt:app:behind_data",
            end.to_owned(),
            "may be inside an instruction of the function without a name",
        ),
    ];
    let cases = cases.into_iter().map(|case| (target.pid(), case));
    let of_stripped = of_stripped.into_iter().map(|case| (stripped.pid(), case));
    for (pid, (begin, rest, part)) in cases.chain(of_stripped) {
        let spec = format!("req={begin}{rest}");
        let output = Command::new(program("tithe"))
            .args([
                "record",
                "--pid",
                &pid.to_string(),
                "--duration",
                "1s",
                "--force",
                "--operation",
                &spec,
                "-o",
            ])
            .arg(folder.path().join("refused.tithe"))
            .output()
            .expect("tithe was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(part), "{spec}: {said}");
    }
    let plain = Target::start("calls");
    let output = Command::new(program("tithe"))
        .args([
            "record",
            "--pid",
            &plain.pid().to_string(),
            "--duration",
            "1s",
            "--force",
            "--operation",
            REQUEST,
            "-o",
        ])
        .arg(folder.path().join("refused.tithe"))
        .output()
        .expect("tithe was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no module of the target has USDT probes"), "{said}");
    assert!(target.is_alive() && stripped.is_alive());
    stripped.assert_text_original();
    target.assert_text_original();
}
