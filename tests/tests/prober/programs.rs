//! The running kernel takes every program of the object, for every kind of link that its tier uses.

use crate::support::*;
use profiler_tests::support::kernel_or_skip;
use profiler_user::prober::{ClassKind, KernelError, KernelOptions, LinkKind, Tier};
use std::collections::BTreeSet;

function!(counted_in_a_known_tier);

#[test]
fn every_program_of_the_object_loads() {
    if !kernel_or_skip("every_program_of_the_object_loads") {
        return;
    }
    let kernel = kernel(None);
    let mut trials = kernel.try_programs();
    println!("tier {:?}, {} loads", kernel.tier(), trials.len());
    drop(kernel);
    // The verifier gives up at a million instructions, and words are what it looks at longest.
    let with_words =
        KernelOptions { word_limit: 64, takings_ring_bytes: 4 << 20, ..KernelOptions::default() };
    trials.extend(load(&with_words).try_programs());
    let mut refused = Vec::new();
    for trial in &trials {
        match &trial.outcome {
            Ok(instructions) => {
                println!("{} ({}): {instructions} instructions verified", trial.name, trial.link);
            }
            // The kernel functions of sessions may be missing; `session_ip` does without them.
            Err(error @ KernelError::NoKernelFunction { .. }) => println!("{}: {error}", trial.name),
            Err(error) => refused.push(format!("{} ({}): {error}", trial.name, trial.link)),
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    let links: BTreeSet<&str> = trials.iter().map(|trial| trial.link).collect();
    assert!(links.is_superset(&BTreeSet::from(["uprobe", "perf event", "raw tracepoint"])), "{links:?}");
}

/// Nothing is tried, and what is attached counts as after a trial.
#[test]
fn a_known_tier_is_believed_and_loads_no_program() {
    if !kernel_or_skip("a_known_tier_is_believed_and_loads_no_program") {
        return;
    }
    let tried = kernel(None);
    let found = tried.tier();
    assert!(!tried.program_info().is_empty(), "a trial loads programs");
    drop(tried);
    let known = load_in(&KernelOptions::default(), Some(found));
    assert_eq!((known.tier(), known.lasting_tier()), (found, Some(found)));
    assert!(known.program_info().is_empty(), "{:?}", known.program_info());
    known.classes().configure(CLASS, ungated(ClassKind::Count));
    known.add_target(std::process::id(), false).expect("there is room");
    let sites = vec![counted_in_a_known_tier.entry(CLASS)];
    let attached = known.attach(&group(LinkKind::Count, sites)).expect("the tier works");
    call_from(8, 1_000, counted_in_a_known_tier);
    drop(attached);
    let counted = known.classes().counters(CLASS);
    assert_eq!((counted.kept, counted.attempted), (8_000, 8_000));
    drop(known);
    // Another tier is forced: what is known says nothing of it, and it is tried.
    let other = KernelOptions { forced_tier: Some(Tier::D), ..KernelOptions::default() };
    if found != Tier::D {
        assert_eq!(load_in(&other, Some(found)).tier(), Tier::D);
    }
}
