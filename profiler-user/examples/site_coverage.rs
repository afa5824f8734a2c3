//! How many functions of a file have a site, by the table of proven forms and if any instruction could be probed.
//!
//! `cargo run -p profiler-user --example site_coverage -- FILE…`. Prints a line for each file and the forms that cost a
//! function its only site. Judges nothing.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use profiler_user::inspect::{Inspection, KernelRules, Module, TraceRefusal};
use std::collections::BTreeMap;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| file | functions | with a site | lost to the table | kept |\n|---|---|---|---|---|");
    let mut lost: BTreeMap<String, usize> = BTreeMap::new();
    for path in std::env::args().skip(1) {
        let module = Module::offline(Path::new(&path))?;
        let (mut all, mut with, mut without) = (0, 0, 0);
        for function in module.functions(0).iter().filter(|f| !f.cold && !f.ifunc) {
            all += 1;
            match Inspection::sites_offline(&module, function, KernelRules::host()).trace {
                Ok(()) => with += 1,
                Err(TraceRefusal::NoSite(why)) => {
                    without += 1;
                    let form = why.split(" is not proven").next().unwrap_or(&why);
                    let form = form.split_once(": ").map_or(form, |(_, form)| form);
                    *lost.entry(form.to_owned()).or_default() += 1;
                }
                Err(_) => {}
            }
        }
        let name = Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        println!(
            "| {name} | {all} | {with} | {without} | {:.2} % |",
            100.0 * with as f64 / (with + without).max(1) as f64
        );
    }
    println!("\n| no site in the first block, because of | functions |\n|---|---|");
    let mut lost: Vec<_> = lost.into_iter().collect();
    lost.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    for (form, n) in lost {
        println!("| {form} | {n} |");
    }
    Ok(())
}
