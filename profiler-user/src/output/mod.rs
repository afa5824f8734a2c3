//! The faces of one report: text, JSON, flame graph, pprof, folded stacks.
