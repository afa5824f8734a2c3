//! Attaching and detaching many functions: one multi link against perf-event uprobes, target idle.

use crate::measure::{Series, Table};
use crate::watch::{self, Ours, Place};
use anyhow::{Result, ensure};
use profiler_core::class::Tier;
use profiler_tests::support::Target;
use std::time::Instant;

/// Perf-event uprobes take 0.1 s each to close: more than 100 of them would take the day.
const MOST_PERF: usize = 100;

/// Milliseconds to attach and to detach, ours (tier A) and perf-event uprobes (tier D) in turn.
pub fn attach_and_detach(rounds: u32) -> Result<String> {
    let multi = watch::kernel(Tier::A)?;
    let perf = watch::kernel(Tier::D)?;
    let mut target = Target::start("calls");
    let places: Vec<Place> = (0..1_000).map(|i| watch::place(&mut target, &format!("big{i}"), 0)).collect();
    let mut table = Table::new(&[
        "functions",
        "attach, ms",
        "detach, ms",
        "attach, ms (perf-event uprobes)",
        "detach, ms (perf-event uprobes)",
        "detach, ratio",
        "n",
    ]);
    for count in [1, 10, 100, 1_000] {
        // A hundred perf-event uprobes take 10 s.
        let rounds = if count == MOST_PERF { rounds.min(5) } else { rounds };
        let mut figures = [const { Vec::new() }; 4].map(|_: Vec<f64>| Series::default());
        for _ in 0..rounds {
            for (index, kernel) in [&multi, &perf].into_iter().enumerate() {
                if index == 1 && count > MOST_PERF {
                    continue;
                }
                watch::take_hits(kernel);
                let start = Instant::now();
                let link = watch::attach(kernel, &target, Ours::Count, &places[..count])?;
                figures[2 * index].push(start.elapsed().as_secs_f64() * 1e3);
                target.call("big", 1, 1);
                let hits = watch::take_hits(kernel);
                ensure!(hits == count as u64, "{count} functions attached, {hits} hits");
                let start = Instant::now();
                drop(link);
                figures[2 * index + 1].push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        target.assert_text_original();
        let [attach, detach, perf_attach, perf_detach] = &figures;
        table.row(&[
            count.to_string(),
            attach.show(1),
            detach.show(1),
            perf_attach.show(1),
            perf_detach.show(1),
            detach.over(perf_detach).show(4),
            attach.n().to_string(),
        ]);
    }
    Ok(table.to_string())
}
