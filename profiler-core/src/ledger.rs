//! The ledger: what monitoring has cost, and the token bucket that bounds it.
