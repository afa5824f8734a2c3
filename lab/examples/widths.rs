//! The table of widths in docs/benchmarks-planner.md: `cargo run -p profiler-lab --example widths [-- table.toml …]`.

use profiler_core::plan::{Objective, table};
use profiler_lab::widths::{of_run, told};
use std::path::PathBuf;

fn main() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("surveys");
    let names = ["node", "perl", "python", "redis", "sqlite"];
    let mut files: Vec<PathBuf> = names.iter().map(|name| folder.join(format!("{name}.toml"))).collect();
    files.extend(std::env::args().skip(1).map(PathBuf::from));
    println!(
        "| survey | budget | run | information: median, within 25 %, spent | precision: median, within 25 %, spent, gap |"
    );
    println!("|---|---|---|---|---|");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let survey = table::parse(&text).unwrap_or_else(|e| panic!("{}, {}", file.display(), e[0])).problem;
        let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        for share in [0.01, 0.02, 0.05] {
            for seconds in [15.0, 60.0] {
                let of = |objective| told(&of_run(&survey, objective, share, seconds));
                let cell = |objective| match of(objective) {
                    Ok(t) => {
                        let gap = match objective {
                            Objective::Precision => format!(", {:.4}", t.gap),
                            _ => String::new(),
                        };
                        let (median, spent) = (100.0 * t.median, 100.0 * t.spent);
                        format!("±{median:.1} %, {} of {}, {spent:.0} %{gap}", t.within, t.rows)
                    }
                    Err(error) => error.to_string(),
                };
                println!(
                    "| {name} | {:.0} % | {seconds:.0} s | {} | {} |",
                    100.0 * share,
                    cell(Objective::Information),
                    cell(Objective::Precision)
                );
            }
        }
    }
}
