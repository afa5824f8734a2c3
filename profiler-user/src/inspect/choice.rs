//! What inspection says about one function: its sites, and what is refused, with reasons.

use profiler_core::class::{ExitMode, SiteClass};
use std::fmt;
use std::ops::Range;

/// An address to put a breakpoint on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site {
    /// Link-time address.
    pub vaddr: u64,
    /// Offset in the module's file, bytes: what the kernel wants.
    pub file_offset: u64,
    /// Distance from the start of the function (or of its cold part), bytes.
    pub offset: u64,
    /// Price class.
    pub class: SiteClass,
    /// Which of the six integer argument registers (bit 0 `rdi`, `rsi`, `rdx`, `rcx`, `r8`, bit 5 `r9`) still hold
    /// what the caller passed. 0 at exit sites.
    pub arguments: u8,
    /// The stack pointer is still that of the function's first instruction: a return link may be made here.
    pub at_entry_stack: bool,
    /// Words between the stack pointer and the return address when the site is reached: 0 at the first instruction and
    /// at `ret`, 1 after one `push`. `None` if the stack pointer was moved in a way that is not followed.
    pub return_slot: Option<i16>,
}

/// Why something is not possible for this function; shown to people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SiteObstacle(pub String);

/// Why a function has no exit sites; shown to people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExitObstacle {
    /// It jumps to another function, which returns to its caller in its place: a call ends at that one's exits, where others come
    /// by, too.
    #[error("the jump at +{at:#x} goes on to {name} (a tail call), and its caller waits until that returns")]
    TailCall {
        /// The jump, from the function's begin, bytes.
        at: u64,
        /// Link-time address that it leads to; `None`: through a pointer.
        to: Option<u64>,
        /// What stands there, for people.
        name: String,
    },
    /// Not all ways out are known; which.
    #[error("{0}")]
    Unknown(String),
    /// A way out has no instruction that can be probed.
    #[error("{0}")]
    NoSite(String),
    /// It is no function that calls could leave, or must not be traced.
    #[error("{0}")]
    NoCalls(String),
}

/// Why a function must not be traced at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceRefusal {
    /// The symbol has no size: where the function ends is unknown, and whether it is one.
    #[error("its symbol has no size, so it may be no function")]
    NoSize,
    /// The symbol is that of an IFUNC resolver.
    #[error(
        "its symbol is that of an IFUNC resolver, which runs once; trace the implementation that it chose"
    )]
    IfuncResolver,
    /// Half of another function.
    #[error("it is the cold part of another function, entered by jumps; trace that function")]
    ColdPart,
    /// It holds a restartable sequence.
    #[error(
        "a restartable sequence (rseq) begins in it at +{0:#x}: the kernel would not restart it while it steps"
    )]
    RestartableSequence(u64),
    /// No usable instruction.
    #[error("no instruction can carry a breakpoint: {0}")]
    NoSite(String),
    /// Its code could not be read.
    #[error("its code cannot be read: {0}")]
    Unreadable(String),
    /// The text is writable, shared or huge: the kernel would attach and never hit.
    #[error("its text is mapped {0}: the kernel places no breakpoints there")]
    BadMapping(String),
    /// The code in memory is not the code in the file.
    #[error(
        "its code in memory differs from the file at +{0:#x} (patched at run time): a breakpoint would run the file's instruction"
    )]
    Patched(u64),
    /// The process's memory could not be compared.
    #[error("its code in memory cannot be compared with the file: {0}")]
    Unverified(String),
}

/// What is known about instrumenting one function.
#[derive(Debug, Clone)]
pub struct SiteChoice {
    /// The cheapest entry site; use it for counting and for exit-site pairs.
    pub entry: Site,
    /// The other admissible entry sites, cheapest first (`entry` is the first of them).
    pub entries: Vec<Site>,
    /// Why this one, in words.
    pub why: String,
    /// The function's start is a branch target of its own: hits are *iterations*, not calls.
    pub iterations: bool,
    /// Every way out, each at its cheapest instruction; or why calls cannot be seen to end in the function.
    pub exits: Result<Vec<Site>, ExitObstacle>,
    /// Link-time addresses of its parts outside of its own range: split-off (`.cold`) code.
    pub parts: Vec<Range<u64>>,
    /// The entry site to use with a return link; or what in the function or in the process forbids one.
    pub return_link: Result<Site, SiteObstacle>,
    /// The first entry site before the stack pointer moves, whatever the gates say: for a user's explicit override.
    pub return_link_override: Option<Site>,
    /// Whether it may be traced at all, judged from the file. (The process is compared by
    /// [`super::Inspection::verify`].)
    pub trace: Result<(), TraceRefusal>,
    /// Remarks for the report: partial inlining, clones, folded functions.
    pub notes: Vec<String>,
}

impl SiteChoice {
    /// The cheapest entry site at which the argument registers of `mask` are still intact.
    #[must_use]
    pub fn entry_with_arguments(&self, mask: u8) -> Option<Site> {
        self.entries.iter().copied().find(|s| s.arguments & mask == mask)
    }
}

/// How the ends of timed calls are seen: by a return link where one may be made, else at the function's exits, else at the return addresses
/// in its callers. `returned`: where calls are seen to begin in that case ([`super::Inspection::entry_for_returns`]).
///
/// # Errors
/// None of the three is possible; why, in words.
pub fn exit_mode(
    return_link: &Result<Site, impl fmt::Display>,
    exits: &Result<Vec<Site>, impl fmt::Display>,
    returned: &Result<Site, impl fmt::Display>,
) -> Result<ExitMode, String> {
    let exits = match exits {
        Ok(all) if all.is_empty() => Err("it has no way out".to_owned()),
        Ok(_) => Ok(()),
        Err(why) => Err(why.to_string()),
    };
    match (return_link, exits, returned) {
        (Ok(_), ..) => Ok(ExitMode::ReturnLink),
        (Err(_), Ok(()), _) => Ok(ExitMode::ExitSites),
        (Err(_), Err(_), Ok(_)) => Ok(ExitMode::ReturnSites),
        (Err(link), Err(sites), Err(returns)) => Err(format!("{link}; {sites}; {returns}")),
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:#x} ({})", self.offset, self.class.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_way_to_see_calls_end_is_taken_and_all_reasons_are_said() {
        let site = Site {
            vaddr: 0,
            file_offset: 0,
            offset: 0,
            class: SiteClass::Push,
            arguments: 0,
            at_entry_stack: true,
            return_slot: Some(0),
        };
        let one = |is: bool, why: &'static str| if is { Ok(site) } else { Err(why) };
        let mode = |link, exits: Result<Vec<Site>, &'static str>, returned| {
            exit_mode(&one(link, "a"), &exits, &one(returned, "c"))
        };
        assert_eq!(mode(true, Ok(vec![site]), true), Ok(ExitMode::ReturnLink));
        assert_eq!(mode(false, Ok(vec![site]), true), Ok(ExitMode::ExitSites));
        assert_eq!(mode(false, Err("b"), true), Ok(ExitMode::ReturnSites));
        assert_eq!(mode(false, Ok(vec![]), false), Err("a; it has no way out; c".to_owned()));
        assert_eq!(mode(false, Err("b"), false), Err("a; b; c".to_owned()));
    }
}
