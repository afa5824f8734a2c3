//! Statistics: intervals, tests, quantiles, corrections.
