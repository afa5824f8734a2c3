//! Counts the links of a recording's complete operations that are marked ambiguous: as it is, and with nothing known of who can have led to a call site.
//!
//! `cargo run -p profiler-user --example calls_marks -- run.tithe`
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use profiler_core::calls::{Census, Code, Completeness, nest};
use profiler_core::recording::{CallSiteRow, OperationRow, StepRow, TailRow};
use profiler_user::recording::Stream;
use std::collections::HashMap;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("say which: calls_marks run.tithe")?);
    let mut stream = Stream::open(&path)?;
    let meta = stream.meta().calls.clone().ok_or("the recording has no calls in order")?;
    let operations: Vec<OperationRow> = stream.table()?;
    let sites: Vec<CallSiteRow> = stream.table()?;
    let tails: Vec<TailRow> = stream.table()?;
    let mut census = Census::new(&operations);
    let mut steps: HashMap<usize, Vec<StepRow>> = HashMap::new();
    stream.each(|step: StepRow| {
        census.count(&step, |place| steps.entry(place).or_default().push(step));
    })?;
    steps.retain(|place, _| census.completeness(*place) == Some(Completeness::Complete));
    steps.values_mut().for_each(|steps| steps.sort_by_key(|step| step.number));
    let unknown = |site: &CallSiteRow| CallSiteRow { jumps_from: None, reached_from: None, ..site.clone() };
    let without: Vec<CallSiteRow> = sites.iter().map(unknown).collect();
    let in_others = sites.iter().filter(|site| site.function_class.is_none());
    let (all, known) = in_others
        .fold((0, 0), |(all, known), site| (all + 1, known + u64::from(site.reached_from.is_some())));
    println!(
        "{all} call sites in functions that are not named; of {known} it is known who can have led there"
    );
    for (what, sites) in [("nothing known", without), ("as recorded", sites)] {
        let code = Code::new(&meta, sites, &tails);
        let (mut links, mut marked) = (0, 0);
        for steps in steps.values() {
            let nesting = nest(steps, &code);
            links += nesting.links.len();
            marked += nesting.links.iter().filter(|link| link.is_ambiguous).count();
        }
        let share = 100.0 * marked as f64 / links.max(1) as f64;
        println!("{what}: {marked} of {links} links of {} operations marked, {share:.1} %", steps.len());
    }
    Ok(())
}
