//! Tests on real code: this very test binary, and the C library and the shell of this machine.

use super::*;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use profiler_core::class::SiteClass;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Instant;

fn rules() -> KernelRules {
    KernelRules::for_version(6, 18)
}

/// Files to look at: this binary always, the others where they exist.
fn files() -> Vec<PathBuf> {
    let mut files = vec![std::env::current_exe().unwrap()];
    for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/bin/bash"] {
        if Path::new(path).exists() {
            files.push(path.into());
        } else {
            eprintln!("SKIP {path}: not on this machine");
        }
    }
    files
}

/// Every `n`-th function of a file, about `want` of them.
fn sample(module: &Module, want: usize) -> Vec<Function> {
    let all = module.functions(0);
    let step = (all.len() / want).max(1);
    all.into_iter().step_by(step).filter(|f| !f.ifunc && !f.cold).collect()
}

/// What the unwind tables say of this binary is what its symbols say.
#[test]
fn functions_are_found_without_symbols() {
    let module = Module::offline(&std::env::current_exe().unwrap()).unwrap();
    let elf = module.elf().unwrap();
    let (mut found, mut other) = (0, Vec::new());
    for f in sample(&module, 3000) {
        match landing::function_at(elf, f.vaddr + f.size / 2) {
            Ok(Some((start, size))) if (start, size) == (f.vaddr, f.size) => found += 1,
            said => other.push((f.symbol, f.vaddr, f.size, said)),
        }
    }
    println!("{found} agree, {} do not: {:?}", other.len(), &other[..other.len().min(5)]);
    assert!(found > 1_000 && other.len() * 100 <= found, "{found} agree; {other:?}");
}

#[test]
fn shares_of_dear_and_cheap_functions() {
    for path in files() {
        let module = Module::offline(&path).unwrap();
        let functions = sample(&module, 3000);
        let started = Instant::now();
        let text = module.text().unwrap();
        let scan = started.elapsed();
        let started = Instant::now();
        let mut limits: BTreeMap<String, usize> = BTreeMap::new();
        let mut exit_limits: BTreeMap<String, usize> = BTreeMap::new();
        let (mut dear, mut cheap, mut refused, mut exits, mut links) = (0, 0, 0, 0, 0);
        for f in &functions {
            let choice = Inspection::sites_offline(&module, f, rules());
            if choice.trace.is_err() {
                refused += 1;
                continue;
            }
            dear += usize::from(
                choice.entries.iter().find(|s| s.offset == 0).is_none_or(|s| s.class == SiteClass::Stepped),
            );
            cheap += usize::from(choice.entry.class != SiteClass::Stepped);
            links += usize::from(choice.return_link.is_ok());
            if choice.entry.class == SiteClass::Stepped {
                *limits.entry(generic(&choice.why)).or_default() += 1;
            }
            match &choice.exits {
                Ok(_) => exits += 1,
                Err(why) => *exit_limits.entry(generic(&why.to_string())).or_default() += 1,
            }
        }
        let n = functions.len();
        let percent = |x: usize| 100.0 * x as f64 / n as f64;
        println!(
            "{}: {n} functions, {:.0} % start with a dear instruction, {:.0} % have a cheap site, {:.1} % refused, \
             exits known {:.0} %, return link site {:.0} %; scan of {} KiB {scan:?}, sites {:?}",
            path.display(),
            percent(dear),
            percent(cheap),
            percent(refused),
            percent(exits),
            percent(links),
            text.scanned_bytes / 1024,
            started.elapsed()
        );
        for (what, limits) in [("dear", limits), ("no exits", exit_limits)] {
            let mut limits: Vec<_> = limits.into_iter().collect();
            limits.sort_by_key(|l| std::cmp::Reverse(l.1));
            for (why, count) in limits.iter().take(8) {
                println!("    {what}: {count:5}  {why}");
            }
        }
        assert!(n > 100, "{}: only {n} functions", path.display());
        assert!(percent(cheap) > 60.0, "{}: {:.0} % cheap", path.display(), percent(cheap));
        assert!(percent(refused) < 5.0);
    }
}

/// Numbers in a reason are replaced, so that equal reasons add up.
fn generic(why: &str) -> String {
    regex::Regex::new(r"0x[0-9a-f]+|[0-9]{2,}").unwrap().replace_all(why, "N").into_owned()
}

/// An independent look: all of a module's code is decoded from its section starts, and no direct branch or call found
/// that way may lead behind the start of a function, up to and including the site chosen for it.
#[test]
fn no_branch_leads_past_the_start_up_to_the_site() {
    for path in files() {
        let module = Module::offline(&path).unwrap();
        let elf = module.elf().unwrap();
        let mut targets: HashSet<u64> = HashSet::new();
        for section in elf.sections.iter().filter(|s| s.exec && !s.nobits) {
            let code = elf.read_at(section.offset, section.size as usize).unwrap();
            let mut decoder = Decoder::with_ip(64, &code, section.vaddr, DecoderOptions::NONE);
            let mut insn = Instruction::default();
            while decoder.can_decode() {
                decoder.decode_out(&mut insn);
                if matches!(
                    insn.flow_control(),
                    FlowControl::Call | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
                ) {
                    targets.insert(insn.near_branch_target());
                }
            }
        }
        assert!(targets.len() > 1000, "{}: {} branch targets", path.display(), targets.len());
        let mut moved = 0;
        for f in sample(&module, 3000) {
            let choice = Inspection::sites_offline(&module, &f, rules());
            for site in &choice.entries {
                moved += usize::from(site.offset > 0);
                let behind = (f.vaddr + 1..=site.vaddr).find(|a| targets.contains(a));
                assert_eq!(behind, None, "{}: {} site {site}", path.display(), f.name);
            }
        }
        assert!(moved > 100, "{}: {moved} sites beyond offset 0", path.display());
    }
}
