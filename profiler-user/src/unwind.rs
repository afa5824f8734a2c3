//! Unwinding copied stacks in user space.
