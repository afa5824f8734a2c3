//! From functions to classes: which functions become event classes, where they are instrumented, how calls end, what a
//! hit costs.

use super::Session;
use super::attach::now_ns;
use super::class::{Candidate, Ending, LinkState, LiveClass, Wish};
use super::launching::Loading;
use super::reading::Part;
use super::shares::FunctionKey;
use crate::inspect::{Function, Site, SiteChoice};
use crate::prober::{ClassCounters, SLOT_UNKNOWN, Tier};
use profiler_core::class::{ClassId, ExitMode, RecordKind, SiteClass};
use profiler_core::cost::Price;
use profiler_core::recording::{ChangeKind, NotObserved};

/// A function must be on so many samples to be worth a look; two may be chance.
const FEWEST_SAMPLES: u64 = 3;

/// How `--trace` names a USDT probe, which is known as `usdt:PROVIDER:NAME`, and ` at PLACE` if it has several; nothing for a function.
fn probe_pattern(module: &str, symbol: &str) -> String {
    match symbol.split_once(" at ") {
        _ if !symbol.starts_with("usdt:") => String::new(),
        Some((probe, _)) => format!("'{module}:{probe} at *' "),
        None => format!("'{module}:{symbol}' "),
    }
}

impl Session {
    /// Makes classes of what the user named and, if `discover`, of the functions that the samples show.
    /// Functions that have a class already are left alone. The new classes, hottest first.
    pub(super) fn find_classes(&mut self, discover: bool) -> Vec<ClassId> {
        // The symbols of a large program take seconds.
        self.attach.governor().excuse();
        let mut functions = self.selection.named(&self.inspection);
        let named = functions.len();
        if discover {
            functions.extend(self.hot_functions());
        }
        let stacks_known = self.know_stacks();
        let mut new = Vec::new();
        for (i, function) in functions.into_iter().enumerate() {
            self.breathe();
            let key = FunctionKey { module: function.module, address: function.vaddr };
            if self.attach.classes().iter().any(|c| c.candidate.key == key) {
                continue;
            }
            // Where it is of no use to them it is found again.
            if self.for_operations.contains(&key) {
                continue;
            }
            let Some(wish) = self.selection.wish(&function) else { continue };
            // Whether return links are safe is known when the libraries are mapped.
            if self.loading == Some(Loading::Program) && wish.kind != RecordKind::Count {
                continue;
            }
            // The branch targets of its module are looked for ahead, while others are traced.
            let module = &self.inspection.modules()[function.module];
            if !(self.may_wait() || stacks_known && self.reader.is_read(module, Part::Text)) {
                self.modules_dirty = true;
                continue;
            }
            match self.add_class(&function, key, wish) {
                Ok(id) => new.push(id),
                // Of thousands of functions only those that were named are missed by anybody.
                Err(why) if i < named => {
                    let missed = NotObserved { what: function.name.clone(), why };
                    // Asked again whenever modules come or go.
                    if !self.meta.not_observed.contains(&missed) {
                        self.meta.not_observed.push(missed);
                    }
                }
                Err(why) => self.warn_verbose(&format!("{} is only sampled: {why}", function.name)),
            }
        }
        let shares = self.sampling.shares();
        new.sort_by_key(|id| std::cmp::Reverse(shares.of(self.attach.class(*id).candidate.key).cpu_ns));
        new
    }

    /// The functions that samples show, hottest first: `--discover` of them.
    fn hot_functions(&self) -> Vec<Function> {
        let shares = self.sampling.shares();
        shares
            .hottest()
            .into_iter()
            .filter(|(_, time)| time.samples >= FEWEST_SAMPLES)
            .filter_map(|(key, _)| self.inspection.function_in(key.module, key.address))
            .take(self.selection.discover())
            .collect()
    }

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
        let remarks = self.inspection.verify(function, &choice).map_err(|refusal| refusal.to_string())?;
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
        let (mut kind, mut exit) = (wish.kind, ExitMode::None);
        let mut notes: Vec<String> = choice.notes.iter().chain(&remarks).cloned().collect();
        if kind != RecordKind::Count {
            exit = match (&return_link, &exits) {
                (Ok(_), _) => ExitMode::ReturnLink,
                (Err(_), Ok(_)) => ExitMode::ExitSites,
                (Err(link), Err(sites)) => {
                    notes.push(format!("durations cannot be had: {link}; {sites}"));
                    if kind == RecordKind::Latency {
                        kind = RecordKind::Count;
                    }
                    ExitMode::None
                }
            };
        }
        if exit == ExitMode::ExitSites
            && let Err(why) = self.inspection.return_links()
        {
            notes.push(format!("no return link: {why}"));
        }
        if wish.force_return_link && exit == ExitMode::ReturnLink {
            notes.push("return links were allowed by --return-links".to_owned());
        }
        let entry = match (&return_link, exit) {
            (Ok(site), ExitMode::ReturnLink) => *site,
            _ if kind == RecordKind::Record => choice.entry_with_arguments(0x3f).unwrap_or(choice.entry),
            _ => choice.entry,
        };
        if choice.iterations {
            notes.push("counts iterations: its first instruction is the target of a loop".to_owned());
        }
        let slot = |site: &Site| site.return_slot.unwrap_or(SLOT_UNKNOWN);
        let candidate = Candidate {
            key,
            name: function.name.clone(),
            symbol: function.symbol.clone(),
            aliases: function.aliases.clone(),
            module: self.inspection.modules()[function.module].path.display().to_string(),
            module_path: function.attach_path.to_path_buf(),
            file: self.inspection.modules()[function.module].mappings.first().map(|m| (m.device, m.inode)),
            build_id: function.build_id.clone().unwrap_or_default(),
            size: function.size,
            entry_offset: entry.file_offset,
            entry_address: entry.vaddr,
            entry_slot: slot(&entry),
            entry_class: entry.class,
            semaphore_offset: 0,
            arguments: [0; 2],
            exits: exits.map(|all| all.iter().map(|s| (s.file_offset, slot(s), s.class)).collect()),
            notes,
        };
        let (hit_price, exit_price) = self.prices(&candidate, kind, exit);
        let lease =
            (exit != ExitMode::None).then(|| self.attach.kernel().classes().lease_histogram()).flatten();
        self.attach.add(LiveClass {
            last_span: (0, 0),
            id,
            candidate,
            wish,
            kind,
            exit,
            hit_price,
            exit_price,
            lease,
            role: None,
            function: function.clone(),
            sites: choice,
            state: LinkState::Off,
            charged: ClassCounters::default(),
            charged_ns: 0,
            cold: self.cost.cold,
            dormant: false,
            refused: None,
        });
        // At once: the recording of an agent that was killed must still say what its windows are about.
        let row = self.attach.class(id).row();
        self.writer.send(vec![row]);
        Ok(id)
    }

    /// A sample showed a thread on a second stack: return links go at once, and none is made from now on.
    pub(super) fn heed_switched_stacks(&mut self) {
        let Some(why) = self.inspection.stacks_switched() else { return };
        let text = format!("no return links from now on: {why}");
        let timed = self.attach.classes().iter().any(|c| c.exit != ExitMode::None);
        if timed && !self.meta.warnings.contains(&text) {
            self.progress.note(&text);
            self.meta.warnings.push(text);
        }
        self.drop_unsafe_return_links();
    }

    /// Whether it is known of all modules that are mapped what they mean to return links. Where the loop may be away they are looked at
    /// now, else ahead.
    pub(super) fn know_stacks(&mut self) -> bool {
        if !self.may_wait() {
            return self.all_stacks_read();
        }
        // All code of a large program is read; the watchdog waits.
        self.attach.governor().excuse();
        let _ = self.inspection.return_links();
        true
    }

    /// Modules came: where one of them unwinds (or switches stacks), a return link would end the target at the next
    /// exception. Such links are closed, and the ends of calls are seen at exit sites from now on, or not at all. While modules are
    /// being looked at, return links are closed as well, and come back if nothing was found.
    /// Calls that are running keep their replaced return address until they return; nothing can be done for those.
    pub(super) fn drop_unsafe_return_links(&mut self) {
        let linked: Vec<ClassId> = self
            .attach
            .classes()
            .iter()
            .filter(|c| c.exit == ExitMode::ReturnLink && !c.wish.force_return_link)
            .map(|c| c.id)
            .collect();
        if linked.is_empty() {
            self.let_return_links();
            return;
        }
        let known = self.inspection.return_links_known();
        if known.is_none() && !self.all_stacks_read() {
            self.hold_return_links();
            return;
        }
        self.let_return_links();
        // Nobody reads ahead, or all is known.
        let Err(why) = known.unwrap_or_else(|| self.inspection.return_links()) else { return };
        self.progress.note(&format!("return links of {} functions are taken off: {why}", linked.len()));
        // Functions inside operations may be among them.
        self.hold_operations();
        for id in &linked {
            self.attach.close(&self.target, *id, Ending::AtOnce);
        }
        for id in linked {
            let class = self.attach.class_mut(id);
            let exits = class.candidate.exits.is_ok();
            class.exit = if exits { ExitMode::ExitSites } else { ExitMode::None };
            if !exits && class.kind == RecordKind::Latency {
                class.kind = RecordKind::Count;
            }
            let rest = if exits { "its ends are seen at exit sites" } else { "only its begins are seen" };
            class
                .candidate
                .notes
                .push(format!("return links were taken off during the run ({why}); then {rest}"));
            let (candidate, kind, exit) = (class.candidate.clone(), class.kind, class.exit);
            let (hit_price, exit_price) = self.prices(&candidate, kind, exit);
            let class = self.attach.class_mut(id);
            (class.hit_price, class.exit_price) = (hit_price, exit_price);
        }
    }

    /// It is not known now whether return links are safe.
    fn hold_return_links(&mut self) {
        if !self.attach.hold_return_links(&self.target) {
            return;
        }
        if let Some(comparison) = &mut self.comparison {
            comparison.void(now_ns());
        }
        self.hold_operations();
        let text = "return links are off while the code of what came is looked at";
        self.note_change(ChangeKind::Modules, None, text.to_owned());
        self.warn_verbose(text);
    }

    fn let_return_links(&mut self) {
        if self.attach.let_return_links() {
            self.warn_verbose("the code of what came has been looked at");
        }
    }

    /// Price of an entry hit and of an exit hit, with as many threads as hit at once here.
    pub(super) fn prices(&self, candidate: &Candidate, kind: RecordKind, exit: ExitMode) -> (Price, Price) {
        let threads = self.working_threads() as usize;
        let worst_exit = candidate
            .exits
            .as_ref()
            .ok()
            .and_then(|all| all.iter().map(|(_, _, class)| *class).max())
            .unwrap_or(SiteClass::Stepped);
        let entry_only =
            self.cost.call_price(candidate.entry_class, kind, ExitMode::None, worst_exit, threads);
        let whole = self.cost.call_price(candidate.entry_class, kind, exit, worst_exit, threads);
        let difference = |a: f64, b: f64| (a - b).max(0.0);
        let exit_price = Price {
            ns: difference(whole.ns, entry_only.ns),
            min_ns: difference(whole.min_ns, entry_only.min_ns),
            max_ns: difference(whole.max_ns, entry_only.max_ns),
            n: whole.n,
        };
        (entry_only, exit_price)
    }
}
