//! A whole run, without a kernel: what may be spent by whom, and what may be attached when.
//!
//! ```text
//! agent ── View, Input ──► clients ── Order ──► agent
//!                            ▲
//!             arbiter (grants), suspension (what waits)
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`agent_limit`] | what the agent may use of a CPU, and how far it slows down for that |
//! | [`arbiter`] | what part of the budget each activity may have |
//! | [`arguments`] | whether a site that has kept the arguments is worth its price |
//! | [`suspension`] | why nothing may be attached now, and what else waits for that |
//! | [`view`] | what a run sees |
//! | [`order`] | what it has done |
//! | [`outcome`] | what became of it |
//! | [`threads`] | how many threads work, and what one of them may lose |
//! | [`links`] | who gets links where they are few |
//! | [`pairs`] | when the price of timing a function is measured before it is traced |
//! | [`callers`] | which callers of a timed function get a site of their own |
//! | [`clocks`] | when open windows are to end |
//!
//! Activities that spend the budget are [`crate::clients`].

pub mod agent_limit;
pub mod arbiter;
pub mod arguments;
pub mod callers;
pub mod clocks;
pub mod links;
pub mod order;
pub mod outcome;
pub mod pairs;
pub mod suspension;
pub mod threads;
pub mod view;
