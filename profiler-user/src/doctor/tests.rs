//! Doctor on this machine, and its text.

use super::*;
use crate::calibrate::FormsHere;
use crate::inspect::{Inspection, Pattern, Unwinding, UnwindingKind};
use expect_test::expect;
use profiler_core::class::{ExitMode, RecordKind, SiteClass};
use profiler_core::cost::CostModel;
use std::collections::BTreeMap;

#[test]
fn host_is_looked_at_and_every_shortage_has_a_remedy() {
    let report = check_host(Some("A (session links)"));
    assert!(report.requirements.len() >= 12);
    for r in &report.requirements {
        assert!(!r.found.is_empty(), "{} found nothing", r.name);
        assert_eq!(r.ok == RequirementState::Ok, r.remedy.is_none(), "{}", r.name);
    }
    let tier = check_host(None).requirements.into_iter().find(|r| r.name == "capability tier").unwrap();
    assert_eq!(tier.ok, RequirementState::Limited);
    let tier_of = |text| {
        let report = check_host(Some(text));
        let tier = report.requirements.iter().find(|r| r.name == "capability tier").cloned().unwrap();
        (tier.ok, tier.remedy.unwrap_or_default(), report.usable())
    };
    // What an old kernel means, in words.
    let (ok, remedy, _) = tier_of("D (A: this kernel has no uprobe.session links)");
    assert!(ok == RequirementState::Limited && remedy.contains("at most 8 functions"), "{remedy}");
    let (ok, remedy, _) = tier_of("C (A: this kernel has no uprobe.session links)");
    assert!(ok == RequirementState::Limited && remedy.contains("other processes"), "{remedy}");
    let (ok, _, usable) = tier_of("none: uprobes do not work here");
    assert!(ok == RequirementState::Missing && !usable);
    assert!(serde_json::to_string(&report).unwrap().contains("\"kernel\""));
}

#[test]
fn a_kernel_that_counts_no_waits_for_disks_says_how_to_have_it_count() {
    assert_eq!(host::io_waits(Some("1")).ok, RequirementState::Ok);
    assert_eq!(host::io_waits(None).ok, RequirementState::Ok);
    let off = host::io_waits(Some("0"));
    assert_eq!(off.ok, RequirementState::Limited);
    assert!(off.remedy.as_deref().is_some_and(|text| text.contains("sysctl kernel.task_delayacct=1")));
}

#[test]
fn a_kernel_without_thread_descriptors_says_what_that_costs() {
    assert_eq!(host::thread_descriptors_are(true).ok, RequirementState::Ok);
    let old = host::thread_descriptors_are(false);
    assert_eq!(old.ok, RequirementState::Limited);
    assert!(old.remedy.unwrap().contains("Linux 6.9"));
}

#[test]
fn instruction_forms_that_could_not_be_run_say_why() {
    let failed = host::forms_of(7, FormsHere::Failed("the child was killed".into()), &[], false);
    assert_eq!(failed.ok, RequirementState::Limited);
    assert!(failed.found.ends_with("running the others here failed: the child was killed"), "{failed:?}");
    assert!(failed.remedy.unwrap().contains("sudo tithe calibrate"));
}

#[test]
fn switches_of_grace_periods_are_told_apart() {
    let of = |expedited, normal| {
        let r = host::grace_periods(expedited, normal);
        (r.ok, r.remedy.unwrap_or_default())
    };
    assert_eq!(of(Some("0"), Some("0")), (RequirementState::Ok, String::new()));
    assert_eq!(of(Some("0"), None).0, RequirementState::Ok);
    let (ok, remedy) = of(Some("1"), Some("0"));
    assert!(ok == RequirementState::Limited && remedy.contains("tee /sys/kernel/rcu_expedited"), "{remedy}");
    let (ok, remedy) = of(Some("1"), Some("1"));
    assert!(ok == RequirementState::Limited && remedy.contains("tee /sys/kernel/rcu_normal"), "{remedy}");
    assert_eq!(of(None, None).0, RequirementState::Limited);
}

#[test]
fn text_of_a_host() {
    let r = |name, found: &str, ok, remedy: Option<&str>| Requirement {
        name,
        found: found.into(),
        needed_for: "loading programs and maps",
        remedy: remedy.map(Into::into),
        ok,
    };
    let host = HostReport {
        requirements: vec![
            r("kernel", "6.18.0", RequirementState::Ok, None),
            r("CAP_BPF", "no", RequirementState::Missing, Some("run as root: `sudo tithe …`")),
            r("tracefs", "not mounted", RequirementState::Limited, Some("mount it")),
        ],
    };
    expect![[r#"
        This host
          ok       kernel   6.18.0
          MISSING  CAP_BPF  no
                            needed for loading programs and maps
                            run as root: `sudo tithe …`
          limited  tracefs  not mounted
                            needed for loading programs and maps
                            mount it
        Tithe cannot run here as you are.
    "#]]
    .assert_eq(&render_text(Some(&host), None));
}

#[test]
fn text_of_a_process() {
    let report = TargetReport {
        pid: 42,
        name: "server".into(),
        exe: "/usr/bin/server".into(),
        runtime: "native".into(),
        advice: "its functions can be traced as far as they have symbols".into(),
        threads: 3,
        uid: 1000,
        tracer: 0,
        seccomp: false,
        other_namespaces: vec!["mnt".into(), "pid".into()],
        jit_kib: 0,
        return_links: false,
        return_links_refused: Some(
            "libgcc_s.so.1 is mapped (the C++ and Rust unwinder), and server imports __cxa_throw".into(),
        ),
        modules: vec![ModuleReport {
            name: "server".into(),
            path: "/usr/bin/server".into(),
            replaced: true,
            build_id: None,
            symbols: "full",
            functions: 200,
            looked_at: 100,
            sites: BTreeMap::from([("push", 80), ("stepped", 19)]),
            refused: 1,
            exits_known: 97,
            remark: None,
            unwinding: Some(Unwinding {
                kind: UnwindingKind::Raises,
                why: "imports __cxa_throw".into(),
                remedy: "only a build of it without exceptions would change that",
            }),
        }],
        notes: vec!["it makes code at run time, which is sampled, not traced".into()],
    };
    expect![[r#"
        Process 42 (server)
          program       /usr/bin/server
          kind          native: its functions can be traced as far as they have symbols
          threads       3
          user          1000
          return links  refused: libgcc_s.so.1 is mapped (the C++ and Rust unwinder), and server imports __cxa_throw; exit sites and return sites are used, or --return-links CLASS at your risk
                        server imports __cxa_throw: only a build of it without exceptions would change that
          seccomp       no filter
          namespaces    its own: mnt, pid
          modules
            server: 200 functions (symbols: full, file replaced on disk)
              cheapest sites of 100 looked at: push 80 %, stepped 19 %; refused 1 %; all ways out known 97 %
          note: it makes code at run time, which is sampled, not traced
    "#]]
    .assert_eq(&render_text(None, Some(&report)));
}

#[test]
fn this_process_can_be_looked_at() {
    let report = check_target(std::process::id() as i32).unwrap();
    assert_eq!(report.pid, std::process::id() as i32);
    assert!(report.modules[0].functions > 1000 && report.modules[0].looked_at > 100);
    // Rust programs unwind.
    assert!(!report.return_links, "{:?}", report.return_links_refused);
    let own = report.modules[0].unwinding.as_ref().unwrap();
    assert_eq!((own.kind, own.why.starts_with("imports _Unwind_")), (UnwindingKind::Raises, true), "{own:?}");
    print!("{}", render_text(Some(&check_host(None)), Some(&report)));
}

fn site(class: SiteClass) -> EntryReport {
    let count_price = CostModel::assumed().hit_price(class, RecordKind::Count);
    EntryReport { offset: 0, class, emulated: class != SiteClass::Stepped, count_price }
}

/// A function as the list has it; `class`: of its entry.
fn listed(name: &str, module: &str, class: SiteClass, timed_by: Option<ExitMode>) -> FunctionReport {
    let cost = CostModel::assumed();
    let price = |mode| cost.call_price(class, RecordKind::Latency, mode, SiteClass::Stepped, 1);
    FunctionReport {
        name: name.into(),
        symbol: name.into(),
        aliases: vec![],
        module: module.into(),
        size_bytes: 64,
        refused: None,
        entry: Some(site(class)),
        timed_by,
        timed_entry: timed_by.map(|_| site(class)),
        time_price: timed_by.map(price),
        not_timed: None,
        notes: vec![],
    }
}

#[test]
fn text_of_a_list_of_functions_fits_80_columns() {
    let untimed = |name| FunctionReport {
        not_timed: Some("return links are off; it has no way out; it switches stacks".into()),
        ..listed(name, "libv8.so", SiteClass::Branch, None)
    };
    let list = FunctionList {
        pid: 42,
        prices: "calibrated".into(),
        return_links_refused: Some("libgcc_s.so.1 is mapped, which walks stacks".into()),
        functions: vec![
            listed("main", "app", SiteClass::Push, Some(ExitMode::ReturnLink)),
            FunctionReport {
                timed_entry: Some(site(SiteClass::Stepped)),
                ..listed("moved", "app", SiteClass::Push, Some(ExitMode::ReturnLink))
            },
            FunctionReport {
                notes: vec!["inlined copies are not counted".into()],
                ..listed("\u{1b}[31mred", "app", SiteClass::Nop5, Some(ExitMode::ExitSites))
            },
            listed(
                "v8::internal::JsonParser<char>::ParseJsonValue(v8::internal::Isolate*)",
                "libv8.so",
                SiteClass::Stepped,
                Some(ExitMode::ReturnSites),
            ),
            untimed("jump_away"),
            untimed("jump_back"),
            FunctionReport {
                refused: Some("its symbol has no size, so it may be no function".into()),
                entry: None,
                ..listed("strange", "libv8.so", SiteClass::Push, None)
            },
        ],
    };
    let text = render_functions(&list, 80);
    for line in text.lines() {
        assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{line}");
    }
    expect![[r#"
        app
          FUNCTION                 ENTRY              COUNT       TIME  TIMED
          main                     emulated push     700 ns    1.38 us  return link
          moved                    emulated push     700 ns    1.38 us  return link
          \x1b[31mred              emulated nop5     460 ns    9.88 us  exit sites
        libv8.so
          FUNCTION                 ENTRY              COUNT       TIME  TIMED
          v8::…::ParseJsonValue    single-stepped   9.30 us  ≤ 18.7 us  return addresses
          jump_away                emulated branch   800 ns             no
          jump_back                emulated branch   800 ns             no
          strange                  refused
        Prices are CPU time of the target for one call on this host (calibrated): COUNT
          to count it, TIME to time it, with its end (≤: it depends on who calls). An
          emulated entry costs one trap, a single-stepped one two.
        No return links in this process: libgcc_s.so.1 is mapped, which walks stacks.
        moved: timing it takes a single-stepped entry
        \x1b[31mred: inlined copies are not counted
        jump_away, jump_back: not timed: return links are off; it has no way out; it
          switches stacks
        strange: refused: its symbol has no size, so it may be no function
    "#]]
    .assert_eq(&text);
    let json: serde_json::Value = serde_json::to_value(&list).unwrap();
    let f = &json["functions"][3];
    assert_eq!((&f["timed_by"], &f["entry"]["emulated"]), (&"return_sites".into(), &false.into()));
    assert!(
        f["time_price"]["ns"].as_f64().unwrap() > f["entry"]["count_price"]["ns"].as_f64().unwrap(),
        "{f}"
    );
}

/// What is said of a function is what a run would do with it.
#[test]
fn functions_of_this_process_are_listed_with_their_prices() {
    let inspection = Inspection::of(std::process::id().cast_signed()).unwrap();
    let patterns = [Pattern::parse("libc.so.6:qsort").unwrap(), Pattern::parse("libc.so.6:abort").unwrap()];
    let functions = inspection.resolve(&patterns).functions;
    let cost = CostModel::assumed();
    let list = list_functions(&inspection, &functions, &cost);
    let names: Vec<&str> = list.functions.iter().map(|f| f.symbol.as_str()).collect();
    assert!(names.contains(&"qsort") && names.contains(&"abort"), "{names:?}");
    for (f, function) in list.functions.iter().zip(&functions) {
        let choice = inspection.sites(function);
        let entry = f.entry.unwrap_or_else(|| panic!("{:?}", f.refused));
        assert_eq!((entry.class, entry.offset), (choice.entry.class, choice.entry.offset));
        assert_eq!(entry.emulated, choice.entry.class != SiteClass::Stepped);
        assert_eq!(entry.count_price, cost.hit_price(choice.entry.class, RecordKind::Count));
        assert_eq!(f.timed_by.is_some(), f.not_timed.is_none() && f.time_price.is_some(), "{f:?}");
        if choice.return_link.is_ok() {
            assert_eq!(f.timed_by, Some(ExitMode::ReturnLink), "{f:?}");
        }
    }
    // What never returns has no way out.
    let abort = list.functions.iter().find(|f| f.symbol == "abort").unwrap();
    assert_ne!(abort.timed_by, Some(ExitMode::ExitSites), "{abort:?}");
}
