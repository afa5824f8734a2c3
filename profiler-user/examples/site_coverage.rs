//! How many functions of a file have a site, by the table of proven forms and if any instruction could be probed.
//!
//! `cargo run -p profiler-user --example site_coverage -- FILE…`. Prints a line for each file and the forms that cost a
//! function its only site. With `--callers` before the files: how many return addresses of each have a site, and why the others
//! have none. With `--timed`: how many functions of each can be timed, and how. Judges nothing.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use profiler_user::inspect::{Inspection, KernelRules, Module, TraceRefusal};
use std::collections::BTreeMap;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    if files.first().is_some_and(|first| first == "--callers") {
        return callers(&files.split_off(1));
    }
    if files.first().is_some_and(|first| first == "--timed") {
        return timed(&files.split_off(1));
    }
    println!("| file | functions | with a site | lost to the table | kept |\n|---|---|---|---|---|");
    let mut lost: BTreeMap<String, usize> = BTreeMap::new();
    for path in files {
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

/// The calls of each file, where their returns can be seen.
fn callers(files: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "| file | calls | with a site | at the address itself | behind it, at most | emulated | a cheaper one near | joined |\n\
         |---|---|---|---|---|---|---|---|"
    );
    let mut refused: BTreeMap<String, u64> = BTreeMap::new();
    let mut unknown: BTreeMap<String, u64> = BTreeMap::new();
    let mut odd: BTreeMap<String, u64> = BTreeMap::new();
    for path in files {
        let module = Module::offline(Path::new(path))?;
        let found = Inspection::callers_offline(&module, KernelRules::host())?;
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let with = found.with_site();
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        println!(
            "| {name} | {} | {:.2} % | {:.2} % | {} ({} B) | {:.1} % | {:.1} % | {:.1} % |",
            found.calls,
            share(with, found.calls),
            share(found.at_return, found.calls),
            found.behind,
            found.farthest,
            share(found.emulated, with),
            share(found.cheaper, with),
            share(found.joined, with)
        );
        for (sum, part) in
            [(&mut refused, found.refused), (&mut unknown, found.unknown), (&mut odd, found.odd)]
        {
            part.into_iter().for_each(|(why, n)| *sum.entry(why).or_default() += n);
        }
    }
    show("no site, because", refused);
    show("not all jumps of the caller are known, because", unknown);
    show("functions that are not matched by slot, because", odd);
    Ok(())
}

/// The functions of each file, and how their calls can be timed.
fn timed(files: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "| file | functions | at exit sites | all emulated | at return addresses | entry emulated | timed |\n\
         |---|---|---|---|---|---|---|"
    );
    let mut no_exits: BTreeMap<String, u64> = BTreeMap::new();
    let mut untimed: BTreeMap<String, u64> = BTreeMap::new();
    for path in files {
        let module = Module::offline(Path::new(path))?;
        let found = Inspection::timing_offline(&module, KernelRules::host());
        let share = |part: u64| format!("{:.1} %", 100.0 * part as f64 / found.functions.max(1) as f64);
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} |",
            found.functions,
            share(found.at_exits),
            share(found.cheap_at_exits),
            share(found.at_returns),
            share(found.cheap_entry),
            share(found.timed)
        );
        for (sum, part) in [(&mut no_exits, found.no_exits), (&mut untimed, found.untimed)] {
            part.into_iter().for_each(|(why, n)| *sum.entry(why).or_default() += n);
        }
    }
    show("no exit sites, because", no_exits);
    show("not timed at all, because", untimed);
    Ok(())
}

fn show(title: &str, reasons: BTreeMap<String, u64>) {
    println!("\n| {title} | number |\n|---|---|");
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    for (why, n) in reasons {
        println!("| {why} | {n} |");
    }
}
