//! The only folder that knows aya, aya-obj and bpf(2).
