//! Prints how often each estimator's interval holds the truth, as a table: `cargo run -p profiler-lab --example coverage`.

use profiler_lab::coverage::cells;

/// Runs of a cell.
const RUNS: u32 = 4_000;

fn main() {
    println!(
        "| estimator | regime | runs | holds the truth | width / oracle's | bias (sd) | no estimate | no upper end | verdict |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for cell in cells() {
        let r = cell.simulate(RUNS);
        let verdict = match (r.coverage, r.width) {
            (c, _) if c < 0.93 => "**too narrow**",
            (c, w) if c > 0.97 && w > 1.5 => "**too wide**",
            (_, w) if w.is_nan() || w > 1.5 => "**wide**",
            (c, _) if c > 0.97 => "**above 97 %**",
            _ => "",
        };
        println!(
            "| {} | {} | {} | {:.1} % | {:.2} | {:+.2} | {:.1} % | {:.1} % | {verdict} |",
            cell.estimator,
            cell.regime,
            r.runs,
            r.coverage * 100.0,
            r.width,
            r.bias,
            r.silent * 100.0,
            r.open * 100.0
        );
    }
}
