//! All calls of one file: what share of their return addresses has a site, and why the others have none.
//!
//! Functions are those with a symbol and those with unwind data. Calls are found by decoding each from its begin, as far as it
//! decodes. For tables and experiments: a run looks only at the return addresses that it has seen.

use super::super::Module;
use super::super::flow::{self, Edge, Region};
use super::super::insn::KernelRules;
use super::super::landing;
use super::judge::{Judge, Spent};
use super::returns;
use super::{CallerBudget, CallerError};
use profiler_core::class::SiteClass;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What became of the calls of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallerSurvey {
    /// Calls that something stands behind, in their function.
    pub calls: u64,
    /// Calls at the end of a function or before `ud2`, which do not come back.
    pub last: u64,
    /// Return addresses with a site at the address itself.
    pub at_return: u64,
    /// With a site behind it only.
    pub behind: u64,
    /// Most bytes between return address and site.
    pub farthest: u8,
    /// Of those with a site: where the first instruction that can be probed is emulated.
    pub emulated: u64,
    /// Where it is stepped, and an emulated one stands near.
    pub cheaper: u64,
    /// Of those with a site: others may lead to it, too, or that cannot be told.
    pub joined: u64,
    /// Of those: not all jumps of the caller are known, numbers left out: how many.
    pub unknown: BTreeMap<String, u64>,
    /// Why there is none, numbers left out: how many.
    pub refused: BTreeMap<String, u64>,
    /// Functions and parts of them that were looked at.
    pub functions: u64,
    /// Functions whose calls cannot be matched at their return addresses, by reason without numbers.
    pub odd: BTreeMap<String, u64>,
}

/// What all calls of a file return to.
struct Calls {
    /// Link-time addresses behind calls, in the call's function.
    addresses: BTreeSet<u64>,
    /// Those at the end of a function, or before what is never reached.
    ends: BTreeSet<u64>,
    functions: u64,
}

fn calls_of(module: &Module) -> Result<Calls, String> {
    let (elf, symbols) = (module.elf()?, module.symbols()?);
    let mut starts: BTreeSet<u64> = module.starts().into_iter().collect();
    starts.extend(landing::starts(elf).unwrap_or_default());
    let mut calls = Calls { addresses: BTreeSet::new(), ends: BTreeSet::new(), functions: 0 };
    for start in starts {
        let sized = symbols.at(start).iter().map(|e| e.size).max().filter(|size| *size > 0);
        let unwound = || landing::function_at(elf, start).ok().flatten().filter(|(at, _)| *at == start);
        let Some(size) = sized.or_else(|| unwound().map(|(_, size)| size)) else { continue };
        calls.functions += 1;
        let region = Region::decode(elf, start, size);
        for (i, call) in region.insns.iter().enumerate().filter(|(_, insn)| flow::edge(insn) == Edge::Call) {
            // Compilers put `ud2` behind a call that does not come back, or nothing.
            let comes_back = match region.insns.get(i + 1) {
                Some(next) => flow::edge(next) != Edge::Stop,
                None => call.next_ip() < region.end(),
            };
            let to = if comes_back { &mut calls.addresses } else { &mut calls.ends };
            to.insert(call.next_ip());
        }
    }
    Ok(calls)
}

impl Module {
    /// Link-time addresses of all that stands behind a call in a function that is known.
    ///
    /// # Errors
    /// Its code cannot be read; in words.
    pub fn return_addresses(&self) -> Result<Vec<u64>, String> {
        calls_of(self).map(|calls| calls.addresses.into_iter().collect())
    }
}

/// Looks at a whole file.
pub(super) fn of(module: &Module, rules: KernelRules) -> Result<CallerSurvey, String> {
    let Calls { addresses, ends, functions } = calls_of(module)?;
    let mut survey = CallerSurvey { functions, ..CallerSurvey::default() };
    survey.calls = addresses.len() as u64;
    survey.last = ends.difference(&addresses).count() as u64;
    let mut judge = Judge::new(module, 0, rules);
    let mut spent = Spent::of(CallerBudget { bytes: u64::MAX, time: Duration::MAX });
    for address in addresses {
        match judge.judge(address, &mut spent) {
            Ok(judged) => {
                survey.add(judged.places.first, judged.places.cheaper.is_some());
                if let Some(why) = judged.unknown {
                    *survey.unknown.entry(without_numbers(&why)).or_default() += 1;
                }
            }
            Err(why) => *survey.refused.entry(without_numbers(&generic(&why))).or_default() += 1,
        }
    }
    for function in module.functions(0).iter().filter(|f| !f.cold && !f.ifunc) {
        if let Err(why) = returns::check(module, function) {
            *survey.odd.entry(without_numbers(&why.0)).or_default() += 1;
        }
    }
    Ok(survey)
}

impl CallerSurvey {
    fn add(&mut self, site: super::ReturnSite, cheaper: bool) {
        let at_return = site.distance == 0;
        *(if at_return { &mut self.at_return } else { &mut self.behind }) += 1;
        self.farthest = self.farthest.max(site.distance);
        self.emulated += u64::from(site.class < SiteClass::Stepped);
        self.cheaper += u64::from(cheaper);
        self.joined += u64::from(site.joined);
    }

    /// Return addresses with a site.
    #[must_use]
    pub fn with_site(&self) -> u64 {
        self.at_return + self.behind
    }
}

/// A reason without the names of functions.
fn generic(why: &CallerError) -> String {
    match why {
        CallerError::Undecoded { why, .. } => format!("its caller is not decoded: {why}"),
        CallerError::NoCall { .. } => "no call ends there".to_owned(),
        CallerError::Unreached { .. } => "no known way leads to its call".to_owned(),
        CallerError::NoSite { why, .. } => format!("no site: {why}"),
        other => other.to_string(),
    }
}

fn without_numbers(why: &str) -> String {
    let mut text = String::new();
    for word in why.split(' ') {
        let number = word.trim_start_matches('+').starts_with(|c: char| c.is_ascii_digit());
        text.push_str(if number { "N" } else { word });
        text.push(' ');
    }
    text.trim_end().to_owned()
}
