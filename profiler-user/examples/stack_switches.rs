//! Looks through files for functions that switch stacks, as the agent does before the first return link:
//! `cargo run --release --example stack_switches -- /usr/bin/* /usr/lib/x86_64-linux-gnu/*.so*`. One line for each file in which
//! one is found, and the time that it took for the largest; then totals.

use profiler_user::inspect::Module;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

fn main() {
    let mut seen = HashSet::new();
    let (mut files, mut functions, mut found, mut bytes, mut ms) = (0, 0, 0, 0, 0.0);
    let mut times = Vec::new();
    for path in std::env::args().skip(1) {
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        if !meta.is_file() || !seen.insert((meta.dev(), meta.ino())) {
            continue;
        }
        let Ok(module) = Module::offline(Path::new(&path)) else { continue };
        // Read before the clock starts: matching names reads them in any case.
        let Ok(symbols) = module.symbols() else { continue };
        functions += symbols.entries().iter().filter(|e| e.size > 0).count();
        let Ok(elf) = module.elf() else { continue };
        let code: u64 = elf.sections.iter().filter(|s| s.exec).map(|s| s.size).sum();
        let begin = Instant::now();
        let switch = module.stack_switch();
        let took_ms = begin.elapsed().as_secs_f64() * 1e3;
        files += 1;
        bytes += code;
        ms += took_ms;
        times.push((took_ms, code, path.clone()));
        match switch {
            Ok(Some(s)) => {
                found += 1;
                println!("{path}: {} loads the stack pointer from {} at {:#x}", s.function, s.from, s.vaddr);
            }
            Ok(None) => {}
            Err(why) => println!("{path}: {why}"),
        }
    }
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (ms, code, path) in times.iter().take(12) {
        println!("{ms:8.1} ms {:8.2} MB of code  {path}", *code as f64 * 1e-6);
    }
    println!(
        "{files} files, {:.1} MB of code, {functions} functions with a symbol, {found} files with a switch, {ms:.0} ms",
        bytes as f64 * 1e-6
    );
}
