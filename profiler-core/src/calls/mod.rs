//! Calls in order: from entries of functions (steps) to the tree of calls of an operation.
//!
//! What: a recording made with `--calls` has one row for each entry of a named function inside a recorded operation, and none for exits. This module
//! says which operations have all of their steps ([`Census`]), which call each step was made in ([`nest()`]), and until when a call lasted at least and
//! at most ([`CallTree`]). Why it can: each step has the address of the stack word that holds its return address (its *slot*), and unwinding rules
//! of the code say where the caller's own slot is.
//!
//! In: rows of the tables `steps`, `operations`, `call_sites` and `tails`, as values. Out: links between steps, each sure or marked ambiguous. A link that
//! is not marked is right wherever the rows are ([docs/calls.md](../../../docs/calls.md) has the argument and its premises).
//!
//! It reads no files and names no functions.

mod bounds;
mod census;
mod code;
mod life;
mod nest;
mod stacks;
mod tree;

#[cfg(test)]
mod machine;
#[cfg(test)]
mod tests;

pub use bounds::Bounds;
pub use census::{Account, Census, Completeness};
pub use code::Code;
pub use nest::{Kind, Link, Nesting, nest};
pub use tree::{CallTree, Layout, Line, Node};
