//! What is traced, and what is looked at in bursts: the plan.
//!
//! | module | what it is |
//! |---|---|
//! | [`rate`] | what is known of how often classes are called |
//! | [`problem`] | the question that the planner is asked |
//! | [`client`] | what runs: the controller, bursts and their clocks, why another plan is wanted |
//! | `held` | links that wait until the price of their time stamps was measured |
//! | [`spread`] | how unlike windows are |
//! | [`timed`] | whose durations are known well enough |
//! | [`planning`] | its answer as orders for the controller and rows of the recording |

pub mod client;
mod datapoints;
mod held;
mod loads;
pub mod planning;
pub mod problem;
pub mod rate;
pub mod spread;
pub mod timed;
mod words;

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod planning_tests;
#[cfg(test)]
mod sampling_tests;
