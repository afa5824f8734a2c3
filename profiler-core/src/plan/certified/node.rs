//! A subproblem of the search.

use std::cmp::Ordering;

/// An interval of sampling rates, and what is fixed in it.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// No plan of this subproblem is worth more.
    pub bound: f64,
    /// Sampling rates from `lo` to `hi`.
    pub lo: f64,
    pub hi: f64,
    /// Items with any decision, ascending.
    pub free: Vec<u32>,
    /// Items that may be in bursts or traced, not sampled only.
    pub either: Vec<u32>,
    /// Items in bursts.
    pub burst: Vec<u32>,
    /// Traced items that have derived classes.
    pub complex: Vec<u32>,
    /// Cost of what is traced, the base included.
    pub cost: f64,
    /// `W F` of the traced items.
    pub full: f64,
    /// `W rho` of the sampled items, the base included.
    pub slope: f64,
    /// Least sampling rate that the sampled items need.
    pub min_s: f64,
    /// Traced items, as a place in the search's list of fixings.
    pub path: u32,
    /// Exclusive or of the traced items' hashes.
    pub hash: u64,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Node {}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The largest bound first; of equal ones, the one with fewer free items.
impl Ord for Node {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bound.total_cmp(&other.bound).then(other.free.len().cmp(&self.free.len()))
    }
}

/// A hash of an item; a set's hash is the exclusive or of its members' (splitmix64).
pub(super) fn hash(item: u32) -> u64 {
    let mut z = (u64::from(item) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
