//! The target process: launch, attach, threads, CPU time, exit.
