//! What counts the target's work, as people write it.

use super::tracepoints;
use crate::target::syscalls;
use std::str::FromStr;

/// `--progress`, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgressSpec {
    /// Nothing is measured.
    Off,
    /// A global variable.
    Variable(String),
    /// Functions, by a pattern.
    Function(String),
    /// A system call: its number.
    Syscall(usize),
    /// A raw tracepoint, without category.
    Tracepoint(String),
    /// A variable of that name, or a function.
    Named(String),
}

impl FromStr for ProgressSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Off);
        }
        let (kind, name) = text.split_once(':').unwrap_or(("", text));
        if name.is_empty() {
            return Err(
                "name a metric: var:NAME, fn:PATTERN, syscall:NAME, tp:CATEGORY:NAME, or none".to_owned()
            );
        }
        Ok(match kind {
            "var" | "variable" => Self::Variable(name.to_owned()),
            "fn" | "function" => Self::Function(name.to_owned()),
            "syscall" => Self::Syscall(syscalls::number(name).ok_or_else(|| {
                format!("there is no system call '{name}' on x86-64; 'man syscalls' lists them")
            })?),
            "tp" | "tracepoint" => Self::Tracepoint(tracepoints::category_and_name(text, name)?.1.to_owned()),
            // `libc.so.6:malloc` is a pattern of functions.
            _ => Self::Named(text.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_named_in_five_ways() {
        let parse = |text: &str| text.parse::<ProgressSpec>();
        assert_eq!(parse("none"), Ok(ProgressSpec::Off));
        assert_eq!(parse("REQUESTS"), Ok(ProgressSpec::Named("REQUESTS".into())));
        assert_eq!(parse("libc.so.6:malloc"), Ok(ProgressSpec::Named("libc.so.6:malloc".into())));
        assert_eq!(parse("var:REQUESTS"), Ok(ProgressSpec::Variable("REQUESTS".into())));
        assert_eq!(parse("fn:db::*"), Ok(ProgressSpec::Function("db::*".into())));
        assert_eq!(parse("syscall:write"), Ok(ProgressSpec::Syscall(1)));
        let switch = Ok(ProgressSpec::Tracepoint("sched_switch".into()));
        assert_eq!(parse("tp:sched:sched_switch"), switch);
        assert_eq!(parse("tp:sched/sched_switch"), switch);
        assert!(parse("tp:sys_exit").is_err_and(|why| why.contains("'tp:sys_exit': write tp:CATEGORY:NAME")));
        assert!(parse("syscall:wriet").is_err_and(|why| why.contains("wriet")));
        assert!(parse("fn:").is_err() && parse("").is_err());
    }
}
