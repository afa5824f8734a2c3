//! The kernel side against the real kernel. Needs root.
//!
//! The functions watched are in this very process, written in assembly, so that every site and return slot is known.
//! `/proc/self/exe` is opened by the kernel in our context, so it names this executable.

mod attachments;
mod calls;
mod context;
mod counts;
mod gates;
mod left;
mod lifecycle;
mod losses;
mod operations;
mod programs;
mod progress;
mod ran;
mod returned;
mod samples;
mod several;
mod support;
mod throws;
mod uses;
mod words;
