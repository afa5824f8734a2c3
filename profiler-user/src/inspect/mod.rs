//! Inspecting the target: modules, symbols, sites, safety.
