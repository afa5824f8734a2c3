//! The pure core of Tithe: planning, prices, ledger, survey, statistics, reports.
//!
//! What it is: every decision and every number. What goes in are values (rates, counts, samples, also time
//! and randomness); what comes out are values (plans, actions, estimates with intervals, reports).
//! What it does not do: no I/O, no clock, no threads, no `unsafe`, no kernel. The same code runs live in
//! the agent, offline in `tithe plan` and `tithe report`, and in tests without root (invariant I1).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod adapt;
pub mod burst;
pub mod calls;
pub mod class;
pub mod clients;
pub mod controller;
pub mod cost;
pub mod engine;
pub mod estimate;
pub mod graph;
pub mod ledger;
pub mod losses;
pub mod models;
pub mod plan;
pub mod recording;
pub mod report;
pub mod run;
pub mod stats;
pub mod surroundings;
pub mod survey;
pub mod text;
pub mod units;
