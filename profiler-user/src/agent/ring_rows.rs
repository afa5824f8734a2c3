//! Rows out of the rings, as fast as the writer takes them.
//!
//! In: what lies in the rings of calls, words, operations and steps. Out: rows for the writer and the consumers. A writer that does not keep up (a slow disk, a
//! busy machine) leaves records where they are: what then finds a ring full is marked and counted by the kernel side.

use super::Agent;
use super::event_row::event_row;
use super::machine::DRAIN_LIMIT;
use std::time::{Duration, Instant};

/// So long the end of a run waits for the writer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A look at the writer.
const LOOK: Duration = Duration::from_millis(2);
/// Rings are emptied so often at the end: the largest holds fewer records than that many turns take.
const LAST_TURNS: u32 = 4;

impl Agent {
    /// Records what the rings hold, [`DRAIN_LIMIT`] of each at most.
    pub(super) fn record_rings(&mut self) {
        let mut calls = Vec::new();
        self.rings.calls.drain(DRAIN_LIMIT, |call| {
            calls.push(event_row(&call, self.attach.classes()));
        });
        self.record_drained(calls);
    }

    /// Records all that is left in the rings: nothing is attached any more. It waits for the writer, within reason, also where somebody reads rows live:
    /// nothing else is to be done. What it has no room for is counted.
    pub(super) fn record_rest(&mut self) {
        let begun = Instant::now();
        for _ in 0..LAST_TURNS {
            while !self.journal.writer.has_room() && begun.elapsed() < LONGEST_WAIT {
                self.pulse();
                std::thread::sleep(LOOK);
            }
            self.record_rings();
        }
    }
}
