//! Whole runs, simulated: the real `profiler_core::engine::Run`, with every client, against targets and machines that need no kernel.
//!
//! ```text
//! Scenario (target, troubles, settings) ──► World: Machine ◄── Driver ── Run
//!                                             │                  │
//!                                        Truth, Log           Watcher ──► Judgement
//! ```
//! | module | what it is |
//! |---|---|
//! | [`target`] | what is simulated: functions, threads, forks; what the machine does to the agent; how it is watched |
//! | [`world`] | the machine while time goes by: hits, quotas, the breaker, links that are made and closed |
//! | [`asking`], [`ending`] | the agent's part: queue, requests and reports; ends of windows and their rows |
//! | [`serve`] | the machine as the driver sees it |
//! | [`life`] | forked children |
//! | [`operations`] | operations: what the kernel side decides and counts, what their client sees |
//! | [`truth`] | what watching really costs, second by second |
//! | [`checks`] | what must hold |
//! | [`run`] | the loop |
//! | [`named`], [`random`] | targets by name, and from a seed |
//! | [`tenth`] | an example of a further activity |
//!
//! Not simulated of operations: system calls and tracepoints that bound them, classes by an argument, operations that outlast a slice.

pub mod asking;
pub mod chance;
pub mod checks;
pub mod ending;
pub mod life;
pub mod log;
pub mod named;
pub mod named_operations;
pub mod operations;
pub mod random;
pub mod run;
pub mod serve;
pub mod state;
pub mod target;
pub mod tenth;
pub mod truth;
pub mod world;

pub use run::{Judgement, simulate, simulate_with};
pub use target::Scenario;
