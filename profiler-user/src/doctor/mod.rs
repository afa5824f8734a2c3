//! Preflight: what this host and this target allow, and what to do about what they do not.
//!
//! [`check_host`] looks at the machine and at ourselves, [`check_target`] at one process,
//! [`list_functions`] at single functions of it. All return plain data that
//! [`render_text`] and [`render_functions()`] print and serde writes as JSON. Nothing is attached, loaded or changed; the capability tier of the
//! kernel is found by behaviour elsewhere (`prober`) and handed in as text.

mod functions;
mod host;
mod render;
mod render_functions;
mod target;

pub use functions::{EntryReport, FunctionList, FunctionReport, list_functions};
pub use host::{HostReport, check_host};
pub use render::render_text;
pub use render_functions::render_functions;
pub use target::{ModuleReport, TargetReport, check_target};

use serde::Serialize;

/// How a requirement is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequirementState {
    /// Met.
    Ok,
    /// Tithe works, with less.
    Limited,
    /// What it is needed for does not work.
    Missing,
}

/// One thing that Tithe needs, and whether it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Requirement {
    /// What is looked at.
    pub name: &'static str,
    /// What was found.
    pub found: String,
    /// What it is needed for.
    pub needed_for: &'static str,
    /// How to get it; `None` when it is there.
    pub remedy: Option<String>,
    /// Whether it is met.
    pub ok: RequirementState,
}

#[cfg(test)]
mod tests;
