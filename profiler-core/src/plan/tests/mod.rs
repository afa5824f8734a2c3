//! Tests of the planner.

mod oracle;
mod paper;
mod random;
