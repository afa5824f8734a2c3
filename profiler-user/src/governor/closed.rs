//! What is known of a link that was closed: the record that travels with it from the table through the closers to the agent.

/// Why a link was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The agent wanted it.
    Released,
    /// A class of its group used up its quota.
    Tripped,
    /// The same, and it happened while this link was being attached.
    TrippedWhileAttaching,
}

/// A link that is closed: what happened when. Times are `CLOCK_MONOTONIC` ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedLink {
    /// The class that it was registered for.
    pub class: u32,
    /// Why.
    pub reason: CloseReason,
    /// The class whose quota was used up; `class` if it was released.
    pub tripped_by: u32,
    /// When the quota was used up; 0 if it was released.
    pub trip_ns: u64,
    /// When it was registered: just after the kernel had made it.
    pub attached_ns: u64,
    /// When it left the table.
    pub taken_ns: u64,
    /// When `close` was called: hits of its first function stop within microseconds. The trap itself, which the target
    /// pays, may stay for one RCU grace period more (5 to 15 ms, longer on an overloaded machine).
    pub close_began_ns: u64,
    /// When `close` returned: no hit and no trap comes after that.
    pub closed_ns: u64,
    /// Grace periods were short while it was closed.
    pub expedited: bool,
}
