//! Tests of the planner.

mod paper;
