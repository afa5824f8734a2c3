//! Operations: requests, queries and other units of work that are followed beside the plan.
//!
//! | module | what it decides |
//! |---|---|
//! | [`slices`] | when functions inside operations are attached, where that is for a part of the time only |
//! | [`complete`] | whether they can all be attached |
//! | [`starvation`] | what is said where they never are |
//! | [`starved`] | what is said where nothing can be recorded |
//! | [`brake`] | which screens of system calls and tracepoints are too expensive |

pub mod brake;
pub mod complete;
pub mod slices;
pub mod starvation;
pub mod starved;
