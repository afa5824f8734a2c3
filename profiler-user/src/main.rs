//! tithe
fn main() {}
