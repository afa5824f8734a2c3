//! A whole run, without a kernel: what may be spent by whom, and what may be attached when.
//!
//! | module | what it decides |
//! |---|---|
//! | [`arbiter`] | what part of the budget each activity may have |
//! | [`suspension`] | why nothing may be attached now, and what else waits for that |

pub mod arbiter;
pub mod suspension;
