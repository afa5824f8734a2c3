//! When the price between the time stamps of a call is measured by a pair of sites: what the client that measures and the one that waits for it agree on.

/// Calls that must have been seen: others come too seldom to be worth it.
pub const FEWEST_CALLS: u64 = 50;
/// Durations that must be known before calls are taken to be short.
pub const FEWEST_DURATIONS: u64 = 20;
/// Intervals for which the link of a function that was not timed yet waits: three windows, for the report takes how much they differ.
pub const AWAITED: u64 = 100;
