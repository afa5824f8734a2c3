//! Prints how often each estimator's interval holds the truth, as a table: `cargo run -p profiler-lab --example coverage`;
//! behind `--` a word that the estimator's name holds.

use profiler_lab::coverage::{cells, pooled_cells};

/// Runs of a cell.
const RUNS: u32 = 4_000;

fn main() {
    println!(
        "| estimator | regime | runs | holds the truth | width / oracle's | bias (sd) | estimate / truth | half-width | no estimate | no upper end | verdict |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let only = std::env::args().nth(1).unwrap_or_default();
    for cell in cells().into_iter().chain(pooled_cells()).filter(|c| c.estimator.contains(&only)) {
        let r = cell.simulate(RUNS);
        let verdict = match (r.coverage, r.width) {
            (c, _) if c < 0.93 => "**too narrow**",
            (c, w) if c > 0.97 && w > 1.5 => "**too wide**",
            (_, w) if w.is_nan() || w > 1.5 => "**wide**",
            (c, _) if c > 0.97 => "**above 97 %**",
            _ => "",
        };
        println!(
            "| {} | {} | {} | {:.1} % | {:.2} | {:+.2} | {:.3} | {:.1} % | {:.1} % | {:.1} % | {verdict} |",
            cell.estimator,
            cell.regime,
            r.runs,
            r.coverage * 100.0,
            r.width,
            r.bias,
            r.ratio,
            r.half * 100.0,
            r.silent * 100.0,
            r.open * 100.0
        );
    }
}
