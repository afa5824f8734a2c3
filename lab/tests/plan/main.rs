//! Tests of the planner.

mod bursts;
mod counterexamples;
mod edges;
mod milp;
mod oracle;
mod paper;
mod precision;
mod random;
mod surveys;
mod table;
mod variance;
mod words;
