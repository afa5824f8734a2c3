//! Calibration: what a hit, a sample, an attach cost on this host, measured on a child of our own.
