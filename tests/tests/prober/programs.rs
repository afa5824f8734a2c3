//! The running kernel takes every program of the object, for every kind of link that its tier uses.

use crate::support::{kernel, load};
use profiler_tests::support::kernel_or_skip;
use profiler_user::prober::{KernelError, KernelOptions};
use std::collections::BTreeSet;

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
