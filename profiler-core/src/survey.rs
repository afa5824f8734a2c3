//! The survey: learning rates by count-only bursts with a quota in time.
