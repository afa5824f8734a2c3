//! How many functions of a file have a site, by the table of proven forms and if any instruction could be probed.
//!
//! `cargo run -p profiler-user --example site_coverage -- FILE…`. Prints a line for each file and the forms that cost a
//! function its only site. With `--callers` before the files: how many return addresses of each have a site, and why the others
//! have none. With `--timed`: how many functions of each can be timed, and how. With `--arguments`: at how many of the entry sites the
//! argument registers hold what the caller passed, for the cheapest site and for the one that records take. Judges nothing.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use profiler_core::class::{ExitMode, RecordKind, SiteClass};
use profiler_core::cost::CostModel;
use profiler_user::inspect::{ALL_ARGUMENTS, Function, Inspection, KernelRules, Module, Site, SiteChoice};
use profiler_user::inspect::{TraceRefusal, WantedArguments};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    if files.first().is_some_and(|first| first == "--callers") {
        return callers(&files.split_off(1));
    }
    if files.first().is_some_and(|first| first == "--timed") {
        return timed(&files.split_off(1));
    }
    if files.first().is_some_and(|first| first == "--arguments") {
        return arguments(&files.split_off(1));
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

/// The entry sites of functions whose calls end in one way.
#[derive(Debug, Clone, Copy, Default)]
struct Entries {
    functions: u64,
    /// All six registers hold what the caller passed.
    all: u64,
    /// All that the function reads do.
    used: u64,
    emulated: u64,
}

impl Entries {
    fn add(&mut self, site: &Site) {
        self.functions += 1;
        self.all += u64::from(site.arguments == ALL_ARGUMENTS);
        self.used += u64::from(site.has(WantedArguments::Used));
        self.emulated += u64::from(site.class != SiteClass::Stepped);
    }

    fn cells(&self) -> String {
        let share = |part: u64| format!("{:.1} %", 100.0 * part as f64 / self.functions.max(1) as f64);
        format!("{} | {} | {}", share(self.all), share(self.used), share(self.emulated))
    }
}

impl AddAssign for Entries {
    fn add_assign(&mut self, other: Self) {
        self.functions += other.functions;
        self.all += other.all;
        self.used += other.used;
        self.emulated += other.emulated;
    }
}

/// The site without a look at arguments, the one of a record, and the one of a record with all six named.
type Choices = [Entries; 3];

const WAYS: [(&str, ExitMode); 3] = [
    ("return link", ExitMode::ReturnLink),
    ("exit sites", ExitMode::ExitSites),
    ("return addresses", ExitMode::ReturnSites),
];

/// The cheapest entry of a function whose calls end in such a way; `None`: they do not.
fn cheapest(module: &Module, function: &Function, choice: &SiteChoice, exit: ExitMode) -> Option<Site> {
    choice.trace.as_ref().ok()?;
    match exit {
        ExitMode::ReturnLink => choice.return_link.as_ref().ok().copied(),
        ExitMode::ExitSites => choice.exits.as_ref().is_ok_and(|all| !all.is_empty()).then_some(choice.entry),
        ExitMode::ReturnSites => Inspection::entry_for_returns_offline(module, function, choice).ok(),
        ExitMode::None => Some(choice.entry),
    }
}

/// What the entry sites of each file have of the arguments. Prices are those assumed before calibration.
fn arguments(files: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "| file | ends are seen by | functions | cheapest: all six | all in use | emulated | record: all six | all in use | emulated \
         | six named: all six | all in use | emulated |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let prices = CostModel::assumed();
    let mut sums: [Choices; WAYS.len()] = Default::default();
    for path in files {
        let module = Module::offline(Path::new(path))?;
        let mut of_file: [Choices; WAYS.len()] = Default::default();
        for function in Inspection::functions_offline(&module) {
            let choice = Inspection::sites_offline(&module, &function, KernelRules::host());
            let worst = choice.exits.iter().flatten().map(|site| site.class).max();
            for ((_, exit), found) in WAYS.into_iter().zip(&mut of_file) {
                let Some(first) = cheapest(&module, &function, &choice, exit) else { continue };
                // As the agent takes them: behind a call stands an emulated instruction in most cases.
                let end = if exit == ExitMode::ReturnSites { Some(SiteClass::Branch) } else { worst };
                let end = end.unwrap_or(SiteClass::Stepped);
                let call_ns = |entry| prices.call_price(entry, RecordKind::Record, exit, end, 1).ns;
                let with = |wanted| choice.entry_with(wanted, exit, first, call_ns).site;
                found[0].add(&first);
                found[1].add(&with(WantedArguments::Used));
                found[2].add(&with(WantedArguments::These(ALL_ARGUMENTS)));
            }
        }
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        show_entries(&name, &of_file);
        for (sum, part) in sums.iter_mut().flatten().zip(of_file.iter().flatten()) {
            *sum += *part;
        }
    }
    show_entries("**all**", &sums);
    Ok(())
}

fn show_entries(name: &str, found: &[Choices; WAYS.len()]) {
    for ((way, _), choices) in WAYS.iter().zip(found) {
        let cells: Vec<String> = choices.iter().map(Entries::cells).collect();
        println!("| {name} | {way} | {} | {} |", choices[0].functions, cells.join(" | "));
    }
}

fn show(title: &str, reasons: BTreeMap<String, u64>) {
    println!("\n| {title} | number |\n|---|---|");
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    for (why, n) in reasons {
        println!("| {why} | {n} |");
    }
}
