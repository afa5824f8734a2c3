//! The agent: everything of Tithe that touches the kernel, files and people.
//!
//! Phases: [`target`] and [`inspect`] look at the process, [`calibrate`] prices a hit on this host, [`agent`] reads and executes for
//! the run, through [`prober`], [`recording`] keeps what was seen, [`output`] shows it.
//! Decisions and numbers are made in `profiler-core`; only [`prober`] knows aya and bpf(2) (invariant I2).
#![warn(missing_docs)]

pub mod agent;
pub mod calibrate;
pub mod calls;
pub mod cli;
pub mod config;
pub mod conformance;
pub mod doctor;
pub mod failure;
pub mod governor;
pub mod inspect;
pub mod mend;
pub mod models;
pub mod output;
pub mod prober;
pub mod recording;
pub mod replay;
pub mod symbolize;
pub mod target;
pub mod target_file;
pub mod terminal;
pub mod unwind;
pub mod watchdog;

pub use cli::run;
