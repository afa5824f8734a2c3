//! Table `beside`.

use serde::{Deserialize, Serialize};

/// Table `beside`: calls of a function in a burst of its, and of another one that is traced all the time, counted at the same two moments. What hits
/// cost slows both alike where one thread calls both, so that no price is in how many calls of the one come on one of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BesideRow {
    /// The class that was watched in a burst.
    pub class_id: u32,
    /// When its gate opened, as in `windows`, ktime ns.
    pub start_ns: u64,
    /// When both were counted first, just after that, ktime ns.
    pub begin_ns: u64,
    /// When both were counted for the second time, ktime ns: after its quota was used up, or at the end of its time. It is hit until then, and a moment longer.
    pub end_ns: u64,
    /// Its calls between the two, those that a used-up quota turned away among them.
    pub calls: u64,
    /// The class that is traced.
    pub beside_id: u32,
    /// Calls of that one.
    pub beside_calls: u64,
}
