//! What only experiments, benchmarks and tests need of the core; nothing here is shipped.
//!
//! What it is: problems and traces made from a seed, simulated runs with a known truth, and scores that one table asks for.
//! Why here: the core is what the agent runs, and its figures are to be made again without the agent. The agent's own tests
//! may use this crate; the agent and the core do not.
//! Inputs: sizes and seeds. Outputs: values of the core's types, the same for the same seed.
//! What it does not do: it measures no machine (`bench/` does), traces nothing, and reads no clock.
//!
//! | module | what it makes | who uses it |
//! |---|---|---|
//! | [`problems`] | planning problems: like surveys of programs, with every rule, hard ones | `tests/plan`, `benches/` |
//! | [`workload`] | full traces of operations of a server and its users | `tests/replay.rs`, `examples/adapt_table.rs`, the agent |
//! | [`windowed`] | a sample's error in each of a run's cycles | `examples/adapt_table.rs` |
//! | [`whole`] | whole runs: the real run, with every client, against targets and machines that need no kernel | `tests/whole.rs`, `src/bin/whole.rs`, `faults/run.sh` |
//! | [`widths`] | what plans are expected to tell of calls per second | `tests/plan`, `examples/widths.rs` |
//! | [`growth`] | calls of functions whose time grows in a known way | `tests/growth.rs`, `examples/models.rs` |
//! | [`coverage`] | runs of each estimator under regimes with a known truth | `tests/coverage.rs`, `examples/coverage.rs` |
//!
//! `tests/plan` also holds the planner's oracles, and its tests; `surveys/` has class tables of real programs for them.

#![forbid(unsafe_code)]

pub mod coverage;
pub mod growth;
pub mod problems;
pub mod whole;
pub mod widths;
pub mod windowed;
pub mod workload;
