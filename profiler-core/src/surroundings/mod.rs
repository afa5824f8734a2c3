//! What attaching does to the target's memory and to other processes, and how much of it is allowed.
//!
//! What: the rules that every attachment passes. [`private_pages`]: a probed page of text becomes a page of the target's
//! own, charged to its memory cgroup. [`fork_hold`]: registering a site holds up every fork of the machine. Why here: they
//! are arithmetic on values that the edge reads. What it does not do: read `/proc`, wait, attach.

pub mod fork_hold;
pub mod private_pages;
