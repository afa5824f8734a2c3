//! Looking for functions: those that were named and those that samples show, a slice of the time at each turn. `class_of` makes classes of
//! them.

use super::Agent;
use super::class::LiveClass;
use super::clock::now_ns;
use super::input_names::InputNames;
use super::launch::Loading;
use super::reading::{Part, Reader};
use super::select::Selection;
use super::shares::{FunctionKey, FunctionTime};
use crate::inspect::Function;
use profiler_core::class::{ClassId, RecordKind};
use profiler_core::cost::Rests;
use profiler_core::engine::Input;
use profiler_core::recording::NotObserved;
use profiler_core::run::view::View;
use std::collections::{BTreeSet, VecDeque};

/// A function must be on so many samples to be worth a look; two may be chance.
const FEWEST_SAMPLES: u64 = 3;
/// The search takes so much of a turn, ns: quotas last half a second, and bursts end on time.
const SLICE_NS: u64 = 8_000_000;

/// What was named, and how far the search for it is.
pub(super) struct Catalog {
    pub selection: Selection,
    /// Inputs that are named as parameters.
    pub inputs: InputNames,
    /// Reads modules ahead.
    pub reader: Reader,
    /// Functions that operations will be made of; until then nothing else takes them.
    pub for_operations: BTreeSet<FunctionKey>,
    /// A launched program that does not run yet.
    pub loading: Option<Loading>,
    /// Modules came or went and have not been looked at.
    pub modules_dirty: bool,
    search: Option<Search>,
    /// Functions that samples showed and that could not be attached when they were tried. They are not tried again, so that they take no places from others.
    refused: BTreeSet<FunctionKey>,
    /// Threads of the target that work at once, as the run sees them: prices depend on it.
    pub working_threads: usize,
    /// How the target rests, as the run told it last.
    pub rests: Rests,
}

impl Catalog {
    /// Nothing is looked for yet.
    pub fn new(selection: Selection, inputs: InputNames) -> Self {
        Self {
            selection,
            inputs,
            reader: Reader::start(),
            for_operations: BTreeSet::new(),
            loading: None,
            modules_dirty: false,
            search: None,
            refused: BTreeSet::new(),
            working_threads: 1,
            rests: Rests::default(),
        }
    }

    /// Functions are being looked for.
    pub fn is_searching(&self) -> bool {
        self.search.is_some()
    }
}

/// Functions that are being looked at.
struct Search {
    functions: std::vec::IntoIter<Function>,
    /// So many of them, the first ones, were named.
    named: usize,
    looked_at: usize,
    /// Functions that have a class of their own.
    known: BTreeSet<FunctionKey>,
    /// Functions that are of use to operations or to the metric.
    apart: BTreeSet<FunctionKey>,
    new: Vec<ClassId>,
}

impl Agent {
    /// Looks for functions that have no class yet; if `discover`, also for those that the samples show. The answer comes when all were
    /// looked at: at once where nothing runs that would have to wait.
    pub(super) fn begin_search(&mut self, discover: bool, view: &View, told: &mut VecDeque<Input>) {
        // The symbols of a large program take seconds.
        self.attach.governor().excuse();
        // A library may have come that has functions with inputs. What is wrong with them was said when the run began, or is a warning.
        if let Err(why) = self.name_inputs() {
            self.journal.detail(&why);
        }
        let mut functions = self.catalog.selection.named(&self.inspection);
        for (pattern, why) in self.catalog.selection.new_unmatched() {
            self.journal.progress.note(&format!("{pattern}: nothing to watch yet: {why}"));
        }
        let named = functions.len();
        if discover {
            functions.extend(self.hot_functions());
        }
        self.catalog.search = Some(Search {
            functions: functions.into_iter(),
            named,
            looked_at: 0,
            known: self.attach.classes().iter().filter(|c| !c.is_apart()).map(|c| c.candidate.key).collect(),
            apart: self.attach.classes().iter().filter(|c| c.is_apart()).map(|c| c.candidate.key).collect(),
            new: Vec::new(),
        });
        self.go_on_searching(view, told);
        while self.catalog.loading.is_some() && self.catalog.search.is_some() {
            self.pulse();
            self.go_on_searching(view, told);
        }
    }

    /// Goes on with the search for a slice of time. When it is over the run is told what was found.
    pub(super) fn go_on_searching(&mut self, view: &View, told: &mut VecDeque<Input>) {
        self.catalog.working_threads = view.target.working_threads as usize;
        let Some(mut search) = self.catalog.search.take() else { return };
        // Modules may have come since the last slice. What they mean to return links is never asked in the middle of one.
        let stacks_known = self.know_stacks();
        let until_ns = now_ns() + SLICE_NS;
        while let Some(function) = search.functions.next() {
            self.look_at_function(&function, stacks_known, &mut search);
            if now_ns() >= until_ns && search.functions.len() > 0 {
                self.catalog.search = Some(search);
                return;
            }
        }
        // The parameters of those that are recorded were looked up: what of debug information was unpacked for that is given back.
        self.inspection.rest();
        let shares = self.sampling.shares();
        search
            .new
            .sort_by_key(|id| std::cmp::Reverse(shares.of(self.attach.class(*id).candidate.key).cpu_ns));
        let site = |id: &ClassId| (*id, self.attach.class(*id).candidate.entry.class);
        told.push_back(Input::Found(search.new.iter().map(site).collect()));
    }

    /// Makes a class of a function that was named or that samples show.
    fn look_at_function(&mut self, function: &Function, stacks_known: bool, search: &mut Search) {
        let is_named = search.looked_at < search.named;
        search.looked_at += 1;
        let key = FunctionKey { module: function.module, address: function.vaddr };
        if !search.known.insert(key) {
            return;
        }
        let Some(wish) = self.catalog.selection.wish(function) else { return };
        // Who asked for more gets it beside that. Where it turns out to be of no use to operations it is found again.
        let is_taken = self.catalog.for_operations.contains(&key) || search.apart.contains(&key);
        if is_taken && !wish.by_kind {
            return;
        }
        // Whether return links are safe is known when the libraries are mapped.
        if self.catalog.loading == Some(Loading::Program) && wish.kind != RecordKind::Count {
            return;
        }
        // The branch targets of its module are looked for ahead, while others are traced.
        let may_wait = self.may_wait();
        let module = &self.inspection.modules()[function.module];
        if module.mappings.is_empty() {
            // It went while it was being searched.
            return;
        }
        if !(may_wait || stacks_known && self.catalog.reader.is_read(module, Part::Text)) {
            self.catalog.modules_dirty = true;
            return;
        }
        match self.add_class(function, key, wish) {
            Ok(id) => {
                search.new.push(id);
                self.add_timed_pair(id);
            }
            // Of thousands of functions only those that were named are missed by anybody.
            Err(why) if is_named => {
                let missed = NotObserved { what: function.name.clone(), why };
                // Asked again whenever modules come or go.
                if !self.journal.meta.not_observed.contains(&missed) {
                    self.journal.meta.not_observed.push(missed);
                }
            }
            Err(why) => {
                self.catalog.refused.insert(key);
                self.journal.detail(&format!("{} is only sampled: {why}", function.name));
            }
        }
    }

    /// New functions that samples show: as many as are missing to `--discover`, those not counted that were named, taken for operations, refused, not to be traced (`--never`) or not called when they were tried. Before any was tried those near the thread's start are not
    /// asked for: next to none of them is called.
    fn hot_functions(&self) -> Vec<Function> {
        let shares = self.sampling.shares();
        let places = self.catalog.selection.discover();
        let keys = |of: &dyn Fn(&LiveClass) -> bool| -> BTreeSet<FunctionKey> {
            self.attach.classes().iter().filter(|c| of(c)).map(|c| c.candidate.key).collect()
        };
        let dormant = keys(&|c| c.dormant);
        let named = keys(&|c| c.wish.named && !c.is_apart());
        let found = keys(&|c| !(c.dormant || c.is_apart() || c.wish.named));
        // A pair of sites has its function's key, and takes nothing from it.
        let apart = keys(&|c| c.is_apart() && c.candidate.stamps_of.is_none());
        let is_out = |key: FunctionKey| {
            [&dormant, &named, &apart, &self.catalog.refused, &self.catalog.for_operations]
                .iter()
                .any(|keys| keys.contains(&key))
        };
        let may_be = |key: FunctionKey, time: &FunctionTime| {
            let function = || self.inspection.function_in(key.module, key.address);
            let is_wished = || function().is_some_and(|f| self.catalog.selection.wish(&f).is_some());
            time.samples >= FEWEST_SAMPLES && !is_out(key) && is_wished()
        };
        let new: Vec<FunctionKey> = if dormant.is_empty() {
            let all = shares.hottest().into_iter().filter(|(key, time)| may_be(*key, time));
            let new = all.map(|(key, _)| key).take(places).filter(|key| !found.contains(key));
            new.take(places.saturating_sub(found.len())).collect()
        } else {
            shares.worth_a_look(places, &found, may_be)
        };
        new.into_iter().filter_map(|key| self.inspection.function_in(key.module, key.address)).collect()
    }
}
