//! Functions of one process, one by one: where their calls would be seen, what that costs here, and whether they can be timed.
//!
//! What a run would make of each, by the same rules (`inspect`), at the prices of this host. Nothing is attached. What it does not say:
//! whether a function is called, and whether the budget allows to watch it.

use crate::inspect::{Breakpoints, Function, Inspection, SiteChoice, exit_mode};
use profiler_core::class::{ExitMode, RecordKind, SiteClass};
use profiler_core::cost::{CostModel, Price};
use profiler_core::text::make_printable;
use serde::Serialize;

/// Functions of a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionList {
    /// The process.
    pub pid: i32,
    /// Where the prices come from.
    pub prices: String,
    /// Why no return link may be made in this process.
    pub return_links_refused: Option<String>,
    /// The functions, by module and address.
    pub functions: Vec<FunctionReport>,
}

/// What can be had of one function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionReport {
    /// Demangled name.
    pub name: String,
    /// Name in the symbol table.
    pub symbol: String,
    /// Other symbols at its address.
    pub aliases: Vec<String>,
    /// File name of its module.
    pub module: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Why it must not be traced; then nothing below is known.
    pub refused: Option<String>,
    /// Where its calls are counted; `None`: nowhere.
    pub entry: Option<EntryReport>,
    /// How the ends of its calls would be seen; `None`: they cannot be.
    pub timed_by: Option<ExitMode>,
    /// Where its calls are seen to begin when they are timed that way, which may be another place.
    pub timed_entry: Option<EntryReport>,
    /// Price of one call that is timed, ns of the target's CPU time. At return addresses the dearest: it depends on the callers.
    pub time_price: Option<Price>,
    /// Why its calls cannot be timed.
    pub not_timed: Option<String>,
    /// Remarks: inlined copies, folded functions, iterations.
    pub notes: Vec<String>,
}

/// An entry site.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EntryReport {
    /// From the function's begin, bytes.
    pub offset: u64,
    /// Price class.
    pub class: SiteClass,
    /// The kernel emulates the instruction there; else it single-steps it, which costs ten times as much on virtual machines.
    pub emulated: bool,
    /// Price of one hit that is counted, ns of the target's CPU time.
    pub count_price: Price,
}

impl FunctionList {
    /// A copy whose texts are one line each, without characters that act on a terminal. JSON has them as they are.
    #[must_use]
    pub fn printable(&self) -> Self {
        let mut list = self.clone();
        list.return_links_refused.iter_mut().for_each(make_printable);
        for f in &mut list.functions {
            let FunctionReport { name, symbol, aliases, module, refused, not_timed, notes, .. } = f;
            let texts = [name, symbol, module].into_iter().chain(aliases).chain(notes);
            texts.chain(refused).chain(not_timed).for_each(make_printable);
        }
        list
    }
}

/// Looks at functions of a process, at the prices of `cost`.
#[must_use]
pub fn list_functions(inspection: &Inspection, functions: &[Function], cost: &CostModel) -> FunctionList {
    let choices: Vec<SiteChoice> = functions.iter().map(|f| inspection.sites(f)).collect();
    let both: Vec<(&Function, &SiteChoice)> = functions.iter().zip(&choices).collect();
    let verified = inspection.verify_all(&both, &Breakpoints::new());
    let reports = both.iter().zip(verified).map(|((function, choice), verified)| {
        let verified = choice.trace.clone().and(verified);
        let mut report = FunctionReport {
            name: function.name.clone(),
            symbol: function.symbol.clone(),
            aliases: function.aliases.clone(),
            module: function.module_name.clone(),
            size_bytes: function.size,
            refused: verified.as_ref().err().map(ToString::to_string),
            entry: None,
            timed_by: None,
            timed_entry: None,
            time_price: None,
            not_timed: None,
            notes: Vec::new(),
        };
        if let Ok(remarks) = verified {
            report.notes = choice.notes.iter().cloned().chain(remarks).collect();
            if choice.iterations {
                report
                    .notes
                    .push("counts iterations: its first instruction is the target of a loop".to_owned());
            }
            report.sites(inspection, function, choice, cost);
        }
        report
    });
    FunctionList {
        pid: inspection.pid(),
        prices: cost.origin.clone(),
        functions: reports.collect(),
        return_links_refused: inspection.return_links().err().map(|why| why.0),
    }
}

impl FunctionReport {
    fn sites(&mut self, inspection: &Inspection, function: &Function, choice: &SiteChoice, cost: &CostModel) {
        let entry_at = |site: &crate::inspect::Site| EntryReport {
            offset: site.offset,
            class: site.class,
            emulated: site.class != SiteClass::Stepped,
            count_price: cost.hit_price(site.class, RecordKind::Count),
        };
        self.entry = Some(entry_at(&choice.entry));
        let returned = inspection.entry_for_returns(function, choice);
        let mode = match exit_mode(&choice.return_link, &choice.exits, &returned) {
            Ok(mode) => mode,
            Err(why) => {
                self.not_timed = Some(why);
                return;
            }
        };
        let entry = match mode {
            ExitMode::ReturnLink => choice.return_link.as_ref().unwrap_or(&choice.entry),
            ExitMode::ReturnSites => returned.as_ref().unwrap_or(&choice.entry),
            ExitMode::ExitSites | ExitMode::None => &choice.entry,
        };
        let exits = choice.exits.as_ref().ok().filter(|_| mode == ExitMode::ExitSites);
        let worst = exits.and_then(|all| all.iter().map(|site| site.class).max());
        let worst = worst.unwrap_or(SiteClass::Stepped);
        self.timed_by = Some(mode);
        self.timed_entry = Some(entry_at(entry));
        self.time_price = Some(cost.call_price(entry.class, RecordKind::Latency, mode, worst, 1));
    }
}
