//! Which functions of one file can be timed, by which way, and why the others cannot. For tables; judges nothing.
//!
//! Functions are those with a symbol and a size; of a stripped file also those that only unwind data tell of.

use super::choice::SiteChoice;
use super::insn::KernelRules;
use super::resolve::{self, Function};
use super::{Inspection, Module, landing};
use profiler_core::class::SiteClass;
use std::collections::BTreeMap;

/// What became of the functions of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimingSurvey {
    /// Functions that calls can begin; cold parts and IFUNC resolvers left out.
    pub functions: u64,
    /// That may be traced at all.
    pub traced: u64,
    /// Whose calls can be seen to end in the function.
    pub at_exits: u64,
    /// Of those: the entry and all exits are emulated.
    pub cheap_at_exits: u64,
    /// Whose calls can be seen to end at their return addresses.
    pub at_returns: u64,
    /// Of those: the entry is emulated. (What the return costs depends on the caller.)
    pub cheap_entry: u64,
    /// By one of the two.
    pub timed: u64,
    /// Why there are no exit sites: how many functions.
    pub no_exits: BTreeMap<String, u64>,
    /// Why neither is possible: how many functions.
    pub untimed: BTreeMap<String, u64>,
}

/// Looks at all functions of a file.
pub(super) fn of(module: &Module, rules: KernelRules) -> TimingSurvey {
    let mut survey = TimingSurvey::default();
    for function in functions(module) {
        let choice = Inspection::sites_offline(module, &function, rules);
        let returns = Inspection::entry_for_returns_offline(module, &function, &choice);
        survey.add(&choice, returns.map(|site| site.class).map_err(|why| why.0));
    }
    survey
}

/// Cold parts and IFUNC resolvers left out.
pub(super) fn functions(module: &Module) -> Vec<Function> {
    let named = module.functions(0).into_iter().filter(|f| !f.cold && !f.ifunc);
    named.chain(nameless(module)).collect()
}

impl TimingSurvey {
    fn add(&mut self, choice: &SiteChoice, returns: Result<SiteClass, String>) {
        let count = |reasons: &mut BTreeMap<String, u64>, why: &str| {
            *reasons.entry(kind_of(why)).or_default() += 1;
        };
        self.functions += 1;
        if let Err(why) = &choice.trace {
            return count(&mut self.untimed, &why.to_string());
        }
        self.traced += 1;
        let cheap = |class: SiteClass| class < SiteClass::Stepped;
        match &choice.exits {
            Ok(exits) if !exits.is_empty() => {
                self.at_exits += 1;
                let all = cheap(choice.entry.class) && exits.iter().all(|exit| cheap(exit.class));
                self.cheap_at_exits += u64::from(all);
            }
            Ok(_) => count(&mut self.no_exits, "it has no way out"),
            Err(why) => count(&mut self.no_exits, &why.to_string()),
        }
        let at_exits = choice.exits.as_ref().is_ok_and(|exits| !exits.is_empty());
        if let Ok(class) = returns {
            self.at_returns += 1;
            self.cheap_entry += u64::from(cheap(class));
        }
        match returns {
            Err(why) if !at_exits => count(&mut self.untimed, &why),
            _ => self.timed += 1,
        }
    }
}

/// Of a stripped file: what unwind data tell of, has no symbol, and is called.
fn nameless(module: &Module) -> Vec<Function> {
    let (Ok(elf), Ok(symbols)) = (module.elf(), module.symbols()) else { return Vec::new() };
    if module.symbols_missing().is_none() {
        return Vec::new();
    }
    let starts = landing::starts(elf).unwrap_or_default();
    let without = starts.into_iter().filter(|start| symbols.covering(*start).is_empty());
    without
        .filter(|start| elf.section_at(*start).is_some_and(|s| !s.name.starts_with(".plt")))
        .filter(|start| landing::is_called(elf, *start).ok().flatten() == Some(true))
        .filter_map(|start| landing::function_at(elf, start).ok().flatten())
        .filter_map(|(start, size)| resolve::without_name(module, 0, start, size))
        .collect()
}

/// A reason without names and numbers, so that equal ones add up.
fn kind_of(why: &str) -> String {
    if why.contains("(a tail call)") {
        let through = if why.contains("through a pointer") { " through a pointer" } else { "" };
        return format!("a tail call{through}");
    }
    let mut text = String::new();
    for word in why.split(' ') {
        let number = word.trim_start_matches('+').starts_with(|c: char| c.is_ascii_digit());
        text.push_str(if number { "N" } else { word });
        text.push(' ');
    }
    text.trim_end().to_owned()
}
