//! From a function to a class: where it is instrumented, how its calls end, what a hit costs.

use super::Agent;
use super::attach::TargetId;
use super::class::{Candidate, EntrySite, InspectedCode, LinkState, LiveClass, Wish};
use super::known_callers::Callers;
use super::lost_arguments::LostArguments;
use super::shares::FunctionKey;
use crate::inspect::{
    ArgumentSite, Effort, Function, Site, SiteChoice, WantedArguments, exit_mode, register_names,
};
use crate::prober::{ClassCounters, SLOT_UNKNOWN, Tier};
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::cost::Price;
use profiler_core::run::view::ClassPrices;

/// How `--trace` names a USDT probe, which is known as `usdt:PROVIDER:NAME`, and ` at PLACE` if it has several; nothing for a function.
fn probe_pattern(module: &str, symbol: &str) -> String {
    match symbol.split_once(" at ") {
        _ if !symbol.starts_with("usdt:") => String::new(),
        Some((probe, _)) => format!("'{module}:{probe} at *' "),
        None => format!("'{module}:{symbol}' "),
    }
}

/// Offset in the file, words to the return address, price class.
fn exit_site(site: &Site) -> (u64, i16, SiteClass) {
    (site.file_offset, site.return_slot.unwrap_or(SLOT_UNKNOWN), site.class)
}

/// What is to be said of a site that would have had the arguments.
fn forgone(found: &ArgumentSite) -> Option<String> {
    let (dear, times) = found.too_dear?;
    let lost = dear.arguments & !(found.site.arguments | found.site.unread);
    let first = lost.trailing_zeros();
    Some(format!(
        "lost at its site although it uses them: {}; named by number (--record 'FUNCTION:arg{first}') they are kept at {dear}, where \
         a call costs {times:.1} times as much",
        register_names(lost)
    ))
}

/// How calls of a class begin and end.
struct WaysOut {
    kind: RecordKind,
    exit: ExitMode,
    entry: Site,
    exits: Result<Vec<Site>, String>,
    entry_for_returns: Option<Site>,
    notes: Vec<String>,
}

impl Agent {
    pub(super) fn add_class(
        &mut self,
        function: &Function,
        key: FunctionKey,
        wish: Wish,
    ) -> Result<ClassId, String> {
        // Before any work: of a pattern that names 50,000 functions most come this far.
        self.may_add(function, wish)?;
        let choice = self.inspection.sites(function);
        self.add_class_at(function, key, wish, choice)
    }

    /// There is room for a class, and this kernel keeps its probes to the target.
    fn may_add(&self, function: &Function, wish: Wish) -> Result<ClassId, String> {
        let Some(id) = self.attach.next_id() else {
            return Err("the kernel tables are full; name fewer functions".to_owned());
        };
        let module = &self.inspection.modules()[function.module];
        if self.attach.kernel().tier() == Tier::C && !module.main && !wish.must {
            return Err(format!(
                "this kernel (Linux 6.6 to 6.9) cannot keep a probe to one process, so all that use {} would pay for it; \
                 --trace {}names it to do so all the same",
                module.name,
                probe_pattern(&module.name, &function.symbol)
            ));
        }
        Ok(id)
    }

    /// A class whose sites are known.
    pub(super) fn add_class_at(
        &mut self,
        function: &Function,
        key: FunctionKey,
        wish: Wish,
        choice: SiteChoice,
    ) -> Result<ClassId, String> {
        let id = self.may_add(function, wish)?;
        choice.trace.clone().map_err(|refusal| refusal.to_string())?;
        let own = self.attach.breakpoints(TargetId::FIRST, |class| class.candidate.key == key);
        let remarks =
            self.inspection.verify_beside(function, &choice, &own).map_err(|refusal| refusal.to_string())?;
        let mut ways = self.ways_out(function, wish, &choice);
        ways.notes.splice(0..0, choice.notes.iter().chain(&remarks).cloned());
        if choice.iterations {
            ways.notes.push("counts iterations: its first instruction is the target of a loop".to_owned());
        }
        let (kind, exit, entry_for_returns) = (ways.kind, ways.exit, ways.entry_for_returns);
        let candidate = self.candidate(function, key, &choice, ways);
        let (words, notes) = self.words_of(function, wish, kind, exit);
        let candidate = Candidate { notes: candidate.notes.into_iter().chain(notes).collect(), ..candidate };
        let prices = words.priced(self.prices(&candidate, kind, exit));
        let lost_arguments =
            LostArguments::at(candidate.entry.arguments, self.no_arguments(function, &choice));
        let lease =
            (exit != ExitMode::None).then(|| self.attach.kernel().classes().lease_histogram()).flatten();
        self.attach.add(LiveClass {
            last_span: (0, 0),
            id,
            candidate,
            wish,
            kind,
            exit,
            prices,
            words,
            lease,
            role: None,
            code: InspectedCode {
                function: function.clone(),
                sites: choice,
                callers: Callers::default(),
                entry_for_returns,
                lost_arguments,
                parameters: (kind == RecordKind::Record)
                    .then(|| self.inspection.parameters(function))
                    .flatten(),
                // Where nothing waits for it, more is read (`InputNames`).
                prototype: (kind == RecordKind::Record)
                    .then(|| self.inspection.prototype(function, Effort::Little).ok())
                    .flatten(),
            },
            state: LinkState::Off,
            counters: ClassCounters::default(),
            counts_metric: false,
            dormant: false,
            refused: None,
        });
        // At once: the recording of an agent that was killed must still say what its windows are about.
        let row = self.attach.class(id).row();
        self.journal.writer.send(vec![row]);
        Ok(id)
    }

    /// How the calls of a class can end, and what can be kept of them.
    fn ways_out(&self, function: &Function, wish: Wish, choice: &SiteChoice) -> WaysOut {
        let return_link = match &choice.return_link {
            Ok(site) => Ok(*site),
            // The user has taken the risk; the first instruction always takes a return link.
            Err(_) if wish.force_return_link => {
                choice.entries.iter().find(|s| s.at_entry_stack).copied().ok_or_else(|| "no site".to_owned())
            }
            Err(why) => Err(why.to_string()),
        };
        let exits = match choice.exits.clone() {
            Ok(all) if all.is_empty() => Err("it has no way out".to_owned()),
            exits => exits.map_err(|why| why.to_string()),
        };
        let (mut kind, mut exit, mut notes) = (wish.kind, ExitMode::None, Vec::new());
        // Whoever only counts asks for no end, and looking at the function's code takes milliseconds.
        let returned =
            (kind != RecordKind::Count).then(|| self.inspection.entry_for_returns(function, choice));
        if let Some(returned) = &returned {
            exit = match exit_mode(&return_link, &exits, returned) {
                Ok(mode) => mode,
                Err(why) => {
                    notes.push(format!("durations cannot be had: {why}"));
                    if kind == RecordKind::Latency {
                        kind = RecordKind::Count;
                    }
                    ExitMode::None
                }
            };
            if let (ExitMode::ReturnSites, Err(sites)) = (exit, &exits) {
                notes.push(format!("its returns are seen in its callers: {sites}"));
            }
        }
        if matches!(exit, ExitMode::ExitSites | ExitMode::ReturnSites)
            && let Err(why) = self.inspection.return_links()
        {
            notes.push(format!("no return link: {why}"));
        }
        if exit == ExitMode::ReturnLink
            && !wish.force_return_link
            && let Some(evidence) = self.inspection.return_link_evidence()
        {
            notes.push(format!("return links: {evidence}"));
        }
        if wish.force_return_link && exit == ExitMode::ReturnLink {
            notes.push("return links were allowed by --return-links".to_owned());
        }
        let cheapest = match (&return_link, exit) {
            (Ok(site), ExitMode::ReturnLink) => *site,
            (_, ExitMode::ReturnSites) => match &returned {
                Some(Ok(site)) => *site,
                _ => choice.entry,
            },
            _ => choice.entry,
        };
        let worst_exit = exits.iter().flatten().map(|site| site.class).max();
        let found = self.entry_with_arguments((function, choice), wish, exit, cheapest, worst_exit);
        notes.extend(forgone(&found));
        let entry = found.site;
        let stepped = |all: &Vec<Site>| all.iter().all(|site| site.class == SiteClass::Stepped);
        let may_return = match exit {
            ExitMode::ReturnSites => true,
            // Where callers are known, it may be cheaper there.
            ExitMode::ExitSites => kind == RecordKind::Latency && exits.as_ref().is_ok_and(stepped),
            ExitMode::ReturnLink | ExitMode::None => false,
        };
        let entry_for_returns = returned.and_then(Result::ok).filter(|_| may_return);
        let at_returns = exit == ExitMode::ReturnSites;
        let entry_for_returns = entry_for_returns.map(|site| if at_returns { entry } else { site });
        WaysOut { kind, exit, entry, exits, entry_for_returns, notes }
    }

    /// Where the calls of a class are seen to begin. `cheapest`: without a look at arguments.
    pub(super) fn entry_with_arguments(
        &self,
        (function, choice): (&Function, &SiteChoice),
        wish: Wish,
        exit: ExitMode,
        cheapest: Site,
        worst_exit: Option<SiteClass>,
    ) -> ArgumentSite {
        // Nobody pays for what is null at every site.
        let none = self.no_arguments(function, choice).is_some();
        let wanted = if none { WantedArguments::NONE } else { wish.arguments };
        let exit_class = match exit {
            // Behind nine calls of ten stands or follows an emulated instruction.
            ExitMode::ReturnSites => SiteClass::Branch,
            _ => worst_exit.unwrap_or(SiteClass::Stepped),
        };
        choice.entry_with(wanted, exit, cheapest, |entry| {
            let prices = self.prices_at(entry, RecordKind::Record, exit, exit_class);
            prices.hit.ns + prices.exit.ns
        })
    }

    /// Why no register holds an argument of the function at any site.
    fn no_arguments(&self, function: &Function, choice: &SiteChoice) -> Option<&'static str> {
        if self.inspection.is_go(function) {
            return Some("it is a function of Go, which does not pass them in the registers of C");
        }
        choice.iterations.then_some("its first instruction is the target of a loop, which changes them")
    }

    fn candidate(
        &self,
        function: &Function,
        key: FunctionKey,
        choice: &SiteChoice,
        ways: WaysOut,
    ) -> Candidate {
        let module = &self.inspection.modules()[function.module];
        let WaysOut { entry, exits, notes, .. } = ways;
        debug_assert!(choice.trace.is_ok());
        Candidate {
            key,
            name: function.name.clone(),
            symbol: function.symbol.clone(),
            aliases: function.aliases.clone(),
            module: module.path.display().to_string(),
            module_path: function.attach_path.to_path_buf(),
            file: module.mappings.first().map(|m| (m.device, m.inode)),
            build_id: function.build_id.clone().unwrap_or_default(),
            size: function.size,
            entry: EntrySite::at(&entry),
            semaphore_offset: 0,
            arguments: [0; 2],
            exits: exits.map(|all| all.iter().map(exit_site).collect()),
            notes,
            stamps_of: None,
        }
    }

    /// What hits of a class cost, with as many threads as hit at once here.
    pub(super) fn prices(&self, candidate: &Candidate, kind: RecordKind, exit: ExitMode) -> ClassPrices {
        let exits = candidate.exits.as_ref().ok().filter(|_| exit != ExitMode::ReturnSites);
        let worst_exit = exits.and_then(|all| all.iter().map(|(_, _, class)| *class).max());
        self.prices_at(candidate.entry.class, kind, exit, worst_exit.unwrap_or(SiteClass::Stepped))
    }

    /// The same by the price classes of the sites.
    pub(super) fn prices_at(
        &self,
        entry: SiteClass,
        kind: RecordKind,
        exit: ExitMode,
        exit_class: SiteClass,
    ) -> ClassPrices {
        let stamps =
            if exit == ExitMode::None { Price::fixed(0.0) } else { self.prices.stamps(entry, exit).mean };
        let threads = self.catalog.working_threads;
        let entry_only = self.prices.call_price(entry, kind, ExitMode::None, exit_class, threads);
        let whole = self.prices.call_price(entry, kind, exit, exit_class, threads);
        let difference = |a: f64, b: f64| (a - b).max(0.0);
        let exit = Price {
            ns: difference(whole.ns, entry_only.ns),
            min_ns: difference(whole.min_ns, entry_only.min_ns),
            max_ns: difference(whole.max_ns, entry_only.max_ns),
            n: whole.n,
        };
        ClassPrices { hit: entry_only, exit, cold: self.prices.cold, stamps, rests: self.catalog.rests }
    }
}
