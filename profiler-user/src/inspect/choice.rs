//! What inspection says about one function: its sites, and what is refused, with reasons.

use super::arguments::WantedArguments;
use profiler_core::class::{ExitMode, SiteClass};
use profiler_core::run::arguments::are_worth_it;
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
    /// what the caller passed. 0 at exit sites, and where each round of a loop comes by.
    pub arguments: u8,
    /// Which of the others were overwritten before anything had read them: no parameters, or ones that the function ignores.
    pub unread: u8,
    /// The stack pointer is still that of the function's first instruction: a return link may be made here.
    pub at_entry_stack: bool,
    /// Words between the stack pointer and the return address when the site is reached: 0 at the first instruction and
    /// at `ret`, 1 after one `push`. `None` if the stack pointer was moved in a way that is not followed.
    pub return_slot: Option<i16>,
    /// Register rbp is still the caller's.
    pub keeps_frame: bool,
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

/// The entry site of a probe that reads arguments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArgumentSite {
    /// Where it stands.
    pub site: Site,
    /// A site that has kept all that the function uses, which was too dear, and how many times as much a call would cost there.
    pub too_dear: Option<(Site, f64)>,
}

impl Site {
    /// It has what is wanted.
    #[must_use]
    pub fn has(&self, wanted: WantedArguments) -> bool {
        self.wanted_there(wanted) == wanted.all()
    }

    /// The part of what is wanted that it has. What was lost unread is none.
    fn wanted_there(&self, wanted: WantedArguments) -> u8 {
        match wanted {
            WantedArguments::Used => self.arguments | self.unread,
            WantedArguments::These(set) => self.arguments & set,
            WantedArguments::UsedAnd(set) => (self.arguments | self.unread) & !(set & !self.arguments),
        }
    }
}

impl SiteChoice {
    /// The entry site of a class whose calls end in this way: `cheapest`, which serves those who read no arguments, or the cheapest
    /// one that has what is wanted. Where there is none, the cheapest that has as much of it as any. `call_ns`: price of a call with its
    /// entry at such a site, ns.
    #[must_use]
    pub fn entry_with(
        &self,
        wanted: WantedArguments,
        exit: ExitMode,
        cheapest: Site,
        call_ns: impl Fn(SiteClass) -> f64,
    ) -> ArgumentSite {
        let kept = self.keeping(wanted, exit, cheapest);
        // Where those are that are wanted at any price.
        let least = match wanted {
            WantedArguments::Used => cheapest,
            WantedArguments::These(_) => kept,
            WantedArguments::UsedAnd(set) => self.keeping(WantedArguments::These(set), exit, cheapest),
        };
        let (least_ns, kept_ns) = (call_ns(least.class), call_ns(kept.class));
        if kept == least || are_worth_it(least_ns, kept_ns) {
            return ArgumentSite { site: kept, too_dear: None };
        }
        ArgumentSite { site: least, too_dear: Some((kept, kept_ns / least_ns)) }
    }

    /// `cheapest`, if no site has more of what is wanted; else the cheapest of those that have most of it.
    fn keeping(&self, wanted: WantedArguments, exit: ExitMode, cheapest: Site) -> Site {
        // No register holds an argument in all rounds of a loop.
        if self.iterations || cheapest.has(wanted) {
            return cheapest;
        }
        let sees_ends = |site: &&Site| match exit {
            ExitMode::ReturnLink => site.at_entry_stack,
            ExitMode::ReturnSites => site.return_slot.is_some(),
            ExitMode::ExitSites | ExitMode::None => true,
        };
        let entries = || self.entries.iter().filter(sees_ends);
        // What one site has, all before it have.
        let most = entries().fold(0, |most, site| most | site.wanted_there(wanted));
        if cheapest.wanted_there(wanted) == most {
            return cheapest;
        }
        entries().copied().find(|site| site.wanted_there(wanted) == most).unwrap_or(cheapest)
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
    use super::super::arguments::ALL_ARGUMENTS;
    use super::*;

    #[test]
    fn the_first_way_to_see_calls_end_is_taken_and_all_reasons_are_said() {
        let site = Site {
            vaddr: 0,
            file_offset: 0,
            offset: 0,
            class: SiteClass::Push,
            arguments: 0,
            unread: 0,
            at_entry_stack: true,
            return_slot: Some(0),
            keeps_frame: true,
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

    /// `push` at +4 behind a stepped first instruction; `rsi` is lost there, and read before if `used`.
    fn with_a_push(used: bool) -> (SiteChoice, Site, Site) {
        let first = Site {
            vaddr: 0x10,
            file_offset: 0x10,
            offset: 0,
            class: SiteClass::Stepped,
            arguments: ALL_ARGUMENTS,
            unread: 0,
            at_entry_stack: true,
            return_slot: Some(0),
            keeps_frame: true,
        };
        let unread = if used { 0 } else { 2 };
        let push = Site { offset: 4, class: SiteClass::Push, arguments: 0b11_1101, unread, ..first };
        let choice = SiteChoice {
            entry: push,
            entries: vec![push, first],
            why: String::new(),
            iterations: false,
            exits: Ok(Vec::new()),
            parts: Vec::new(),
            return_link: Ok(push),
            return_link_override: Some(push),
            trace: Ok(()),
            notes: Vec::new(),
        };
        (choice, push, first)
    }

    #[test]
    fn named_arguments_are_kept_at_any_price_and_others_where_it_costs_little() {
        let (choice, push, first) = with_a_push(true);
        let entry = |wanted, stepped_ns: f64| {
            let price = |class| if class == SiteClass::Push { 1_000.0 } else { stepped_ns };
            let found = choice.entry_with(wanted, ExitMode::ReturnLink, push, price);
            (found.site, found.too_dear)
        };
        assert_eq!(entry(WantedArguments::These(0b10), 9_000.0), (first, None));
        // Others than the one that is lost.
        assert_eq!(entry(WantedArguments::These(0b101), 1_000.0), (push, None));
        assert_eq!(entry(WantedArguments::NONE, 1_000.0), (push, None));
        assert_eq!(entry(WantedArguments::Used, 2_000.0), (first, None));
        assert_eq!(entry(WantedArguments::Used, 9_000.0), (push, Some((first, 9.0))));
    }

    #[test]
    fn named_arguments_are_kept_beside_those_that_are_used() {
        // What is named is lost at the cheapest site, and used: at any price.
        let (choice, push, first) = with_a_push(true);
        let entry = |choice: &SiteChoice, set, stepped_ns: f64| {
            let price = |class| if class == SiteClass::Push { 1_000.0 } else { stepped_ns };
            let found = choice.entry_with(WantedArguments::UsedAnd(set), ExitMode::ReturnLink, push, price);
            (found.site, found.too_dear)
        };
        assert_eq!(entry(&choice, 0b10, 9_000.0), (first, None));
        // Another is named, and this one is wanted as far as it costs little.
        assert_eq!(entry(&choice, 0b1, 2_000.0), (first, None));
        assert_eq!(entry(&choice, 0b1, 9_000.0), (push, Some((first, 9.0))));
        // One that the function does not use is no reason, unless it is named.
        let (choice, push, first) = with_a_push(false);
        let entry = |set| {
            choice.entry_with(WantedArguments::UsedAnd(set), ExitMode::ReturnLink, push, |_| 1_000.0).site
        };
        assert_eq!((entry(0b1), entry(0b10)), (push, first));
    }

    /// The first instruction takes no probe, and the second register is lost there already.
    #[test]
    fn where_no_site_has_all_that_is_wanted_the_rest_is_kept() {
        let (mut choice, push, first) = with_a_push(true);
        let second = Site { offset: 2, arguments: 0b11_1101, ..first };
        let push = Site { arguments: 0b11_1001, ..push };
        choice.entries = vec![push, second];
        let entry = |wanted| choice.entry_with(wanted, ExitMode::None, push, |_| 1_000.0).site;
        assert_eq!(entry(WantedArguments::These(0b110)), second);
        assert_eq!(entry(WantedArguments::Used), second);
        assert_eq!(entry(WantedArguments::These(0b011)), push, "the second site has no more of these");
        choice.iterations = true;
        assert_eq!(choice.entry_with(WantedArguments::Used, ExitMode::None, push, |_| 1_000.0).site, push);
    }

    #[test]
    fn a_register_that_the_function_does_not_read_is_no_reason_for_a_dearer_site() {
        let (choice, push, _) = with_a_push(false);
        let price = |_| 1_000.0;
        assert_eq!(choice.entry_with(WantedArguments::Used, ExitMode::None, push, price).site, push);
        let named = choice.entry_with(WantedArguments::These(2), ExitMode::None, push, price);
        assert_eq!(named.site.offset, 0);
    }

    #[test]
    fn a_site_that_hides_the_ends_of_calls_is_not_taken_for_its_arguments() {
        let (mut choice, push, first) = with_a_push(true);
        let moved = Site { at_entry_stack: false, return_slot: None, ..first };
        choice.entries = vec![push, moved];
        let entry = |exit| choice.entry_with(WantedArguments::These(2), exit, push, |_| 1_000.0).site;
        assert_eq!(entry(ExitMode::ReturnLink), push);
        assert_eq!(entry(ExitMode::ReturnSites), push);
        assert_eq!(entry(ExitMode::ExitSites), moved);
        assert_eq!(entry(ExitMode::None), moved);
    }
}
