//! Calibration against the real kernel. Needs root.

use profiler_core::class::{ExitMode, RecordKind, SiteClass, Tier};
use profiler_core::cost::CostModel;
use profiler_tests::support::{best_tier, kernel_or_skip, tiers_here};
use profiler_user::calibrate::{CalibrateOptions, ChildCommand, child_main, load_or_run};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Two calibrations at once would disturb each other's figures.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const CHILD: &str = "TITHE_TEST_CALIBRATION_CHILD";

/// Not a test by itself: calibration starts this very program again, and this is the child's way in.
#[test]
fn calibration_child() {
    if std::env::var_os(CHILD).is_some() {
        child_main().expect("standard input is the parent's socket");
        std::process::exit(0);
    }
}

fn options(cache: &std::path::Path) -> CalibrateOptions {
    CalibrateOptions {
        refresh: false,
        prove_forms: false,
        child: ChildCommand {
            program: "/proc/self/exe".into(),
            args: vec!["--exact".into(), "calibration_child".into(), "--nocapture".into()],
            env: vec![(CHILD.into(), "1".into())],
        },
        cache_dir: Some(cache.to_owned()),
    }
}

#[test]
fn prices_are_measured_and_kept() {
    if !kernel_or_skip("prices_are_measured_and_kept") {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let best = best_tier();
    let first = load_or_run(best, &options(&cache)).unwrap();
    println!("CPU time of the children {:?}", children_cpu());
    println!("took {:?}, notes {:?}\n{}", first.took, first.notes, show(&first.model));
    assert!(first.took.is_some() && first.model.is_calibrated());
    let price = |site, kind| first.model.hit_price(site, kind);
    for site in SiteClass::ALL {
        for kind in [RecordKind::Count, RecordKind::Latency, RecordKind::Record] {
            let p = price(site, kind);
            // No trap costs less than 50 ns or more than 100 us on any machine.
            assert!(p.n >= 5 && p.ns > 50.0 && p.ns < 100_000.0, "{site:?} {kind:?}: {p:?}");
        }
    }
    // A single step is dearer than an emulated instruction on every machine.
    assert!(
        price(SiteClass::Stepped, RecordKind::Count).ns > 1.3 * price(SiteClass::Push, RecordKind::Count).ns
    );
    let pair = first.model.pair[&CostModel::key(SiteClass::Push, RecordKind::Latency)];
    assert!(pair.ns > price(SiteClass::Push, RecordKind::Count).ns, "a return is not free: {pair:?}");

    for site in SiteClass::ALL {
        for exit in [ExitMode::ExitSites, ExitMode::ReturnLink] {
            let key = CostModel::stamps_key(site, exit);
            let s = first.model.stamps.get(&key).unwrap_or_else(|| panic!("{key} was not measured"));
            assert!(s.is_plausible() && s.mean.n >= 5, "{key}: {s:?}");
            // The typical call is not far from the mean, and the part between the stamps is a part of the price of two hits.
            assert!((0.6..1.4).contains(&(s.p50_ns / s.mean.ns)), "{key}: {s:?}");
            let hits =
                2.0 * price(site, RecordKind::Latency).ns.max(price(SiteClass::Push, RecordKind::Latency).ns);
            assert!(s.mean.ns > 50.0 && s.mean.ns < 1.3 * hits, "{key}: {s:?} of {hits}");
        }
    }
    // Stepping the entry's instruction lies between the stamps.
    let between = |site| first.model.stamps(site, ExitMode::ExitSites).mean.ns;
    assert!(between(SiteClass::Stepped) > 1.3 * between(SiteClass::Push));

    let second = load_or_run(best, &options(&cache)).unwrap();
    assert_eq!((second.took, &second.model), (None, &first.model));
    let again = load_or_run(best, &CalibrateOptions { refresh: true, ..options(&cache) }).unwrap();
    assert!(again.took.is_some());
    std::fs::write(cache.join(format!("calibration-{best:?}.json")), "{").unwrap();
    let mended = load_or_run(best, &options(&cache)).unwrap();
    assert!(
        mended.took.is_some() && mended.notes.iter().any(|n| n.contains("damaged")),
        "{:?}",
        mended.notes
    );
}

#[test]
fn every_tier_has_prices() {
    if !kernel_or_skip("every_tier_has_prices") {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    for tier in tiers_here("every_tier_has_prices", &[Tier::B, Tier::C, Tier::D]) {
        let done = load_or_run(tier, &options(&dir.path().join("cache"))).unwrap();
        let push = done.model.hit_price(SiteClass::Push, RecordKind::Count);
        let pair = done.model.pair[&CostModel::key(SiteClass::Push, RecordKind::Latency)];
        println!(
            "tier {tier:?}: took {:?}, push/count {push:?}, pair {pair:?}, notes {:?}",
            done.took, done.notes
        );
        assert!(push.n >= 5 && push.ns > 50.0 && pair.ns > push.ns, "{tier:?}: {push:?} {pair:?}");
    }
}

/// CPU time of the children that have ended.
fn children_cpu() -> Duration {
    // SAFETY: rusage is plain numbers; the kernel writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let us = |t: libc::timeval| t.tv_sec.cast_unsigned() * 1_000_000 + t.tv_usec.cast_unsigned();
    Duration::from_micros(us(usage.ru_utime) + us(usage.ru_stime))
}

fn show(model: &CostModel) -> String {
    serde_json::to_string_pretty(model).unwrap()
}
