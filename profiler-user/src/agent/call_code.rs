//! What the code says of return addresses while the run goes on, for consumers that ask ([`super::consumers`]).
//!
//! ```text
//! consumers ask ─► addresses that nobody has looked at ─► a thread decodes what calls there ─► consumers learn it
//! ```
//! Why a thread: decoding a caller takes microseconds to milliseconds, a library that nobody has read yet more, and the loop ends windows on time. Why only what is
//! asked for: its CPU time is the agent's. All other addresses are looked at when the run is over (`steps.rs`).

use super::Agent;
use super::class::LiveClass;
use super::clock::now_ns;
use super::code_history::{CodeHistory, Gone};
use super::consumers::CodeFound;
use super::steps::{DRAIN_BYTES, STACK_SPAN_BYTES, SeenStacks, is_stepped};
use crate::inspect::{CallContext, CallerBudget, CodeSnapshot, Jumps, LedFrom};
use crate::output::RunStart;
use profiler_core::recording::{CallSiteRow, ClassRow};
use std::collections::{BTreeSet, HashSet};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Addresses that are looked at, at most.
const MOST_ADDRESSES: usize = 32_768;
/// What one search may take.
const BUDGET: CallerBudget = CallerBudget { bytes: 16 << 20, time: Duration::from_millis(500) };

/// CPU time of each consumer when the run is over, ns.
const LEFT_NS: u64 = 100_000_000;

type Address = (u32, u64);

/// What the thread answers.
struct Answer {
    asked: Vec<Address>,
    contexts: Vec<CallContext>,
    jumps: Option<Jumps>,
    snapshot: CodeSnapshot,
}

/// What the thread found of code that was unmapped.
struct Unmapped {
    asked: Vec<(Address, Gone)>,
    contexts: Vec<CallContext>,
    snapshot: CodeSnapshot,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct CallCode {
    history: CodeHistory,
    /// Code that was unmapped and is being looked at.
    unmapped: Vec<Receiver<Unmapped>>,
    /// Return addresses in code that was unmapped that were looked at, so far.
    unmapped_addresses: usize,
    waiting: Vec<Address>,
    asked: HashSet<Address>,
    search: Option<Receiver<Answer>>,
    knows_jumps: bool,
    /// Jumps are wanted with the next search.
    is_new: bool,
}

impl CallCode {
    /// Somebody wants to know these. An empty list asks for jumps alone.
    fn want(&mut self, addresses: Vec<Address>) {
        self.is_new |= !self.knows_jumps;
        for address in addresses {
            if self.asked.len() < MOST_ADDRESSES && self.asked.insert(address) {
                self.waiting.push(address);
                self.is_new = true;
            }
        }
    }
}

impl Agent {
    /// Lets consumers do what takes longer, tells what they say, and has looked at what they ask for. Once a turn.
    pub(super) fn serve_consumers(&mut self) {
        if self.journal.consumers.is_empty() {
            return;
        }
        self.take_found_code();
        let now = now_ns();
        self.show_classes(now);
        self.show_calls_in_flight(now);
        let wants = self.journal.consumers.work(now, self.run_start());
        for text in wants.told {
            self.journal.progress.tell(&text);
        }
        if wants.asks {
            self.call_code.want(wants.addresses);
        }
        if self.call_code.search.is_none() && std::mem::take(&mut self.call_code.is_new) {
            self.search_code();
        }
    }

    /// The run is over, and nothing is attached any more: consumers say what is left.
    pub(super) fn end_consumers(&mut self) {
        if self.journal.consumers.is_empty() {
            return;
        }
        self.serve_consumers();
        // What was asked for last is worth waiting for.
        let until = Instant::now() + 2 * BUDGET.time;
        while self.call_code.search.is_some() && Instant::now() < until {
            self.take_found_code();
            self.pulse();
            std::thread::sleep(Duration::from_millis(1));
        }
        let start = self.run_start();
        let (wants, warnings) = self.journal.consumers.end(now_ns(), start, LEFT_NS);
        for text in wants.told {
            self.journal.progress.tell(&text);
        }
        self.journal.meta.warnings.extend(warnings);
        self.journal.consumers.note(&mut self.journal.meta, now_ns());
    }

    fn run_start(&self) -> RunStart {
        RunStart { ns: self.journal.meta.start_ns, unix_ns: self.journal.meta.start_unix_ns }
    }

    /// Consumers learn which classes there are before they are shown calls of them: a class is attached turns after it was made.
    fn show_classes(&mut self, now_ns: u64) {
        let shown = self.journal.consumers.classes_shown();
        let new: Vec<ClassRow> = self.attach.classes().iter().skip(shown).map(LiveClass::row).collect();
        if !new.is_empty() {
            self.journal.consumers.show_classes(&new, now_ns);
        }
    }

    /// The code before a look at the mappings, where steps may lie in what goes, and when that was.
    pub(super) fn code_before_look(&mut self) -> Option<(CodeSnapshot, u64)> {
        self.operation_io.as_ref()?.stacks()?;
        if self.call_code.history.is_new() {
            let start_ns = self.journal.meta.start_ns;
            self.call_code.history.look(self.inspection.maps(), (start_ns, start_ns));
        }
        Some((self.inspection.code_snapshot(), now_ns()))
    }

    /// What steps say of code that was unmapped is looked up now, in the code as it was `before`: later its place may be another's.
    pub(super) fn note_code_that_went(&mut self, before: Option<(CodeSnapshot, u64)>) {
        let (Some((before, from_ns)), Some(io)) = (before, &mut self.operation_io) else { return };
        let gone = self.call_code.history.look(self.inspection.maps(), (from_ns, now_ns()));
        // Steps that wait for the writer are of the code that went, too. Where they would be lost it is better not to know what called.
        if !gone.is_empty() && self.journal.writer.has_room_for(DRAIN_BYTES) {
            self.journal.record(io.drain_steps());
        }
        let mut asked = Vec::new();
        for gone in gone {
            asked.extend(io.addresses_in(&gone.range).map(|address| (address, gone.clone())));
        }
        asked.truncate(MOST_ADDRESSES.saturating_sub(self.call_code.unmapped_addresses));
        if asked.is_empty() {
            return;
        }
        self.call_code.unmapped_addresses += asked.len();
        let (sender, found) = channel();
        let snapshot = before.without_memory();
        let thread = std::thread::Builder::new().name("tithe-code".into()).spawn(move || {
            let addresses: Vec<u64> = asked.iter().map(|((_, address), _)| *address).collect();
            let contexts = snapshot.contexts(&addresses, BUDGET);
            // Who asked may be gone.
            let _ = sender.send(Unmapped { asked, contexts, snapshot });
        });
        // Without a thread nothing is known of them.
        self.call_code.unmapped.extend(thread.is_ok().then_some(found));
    }

    /// Writes what was found of code that was unmapped. Waits so long for what is not found yet.
    pub(super) fn write_code_that_went(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        let code = self.code_classes();
        for found in std::mem::take(&mut self.call_code.unmapped) {
            let found = found.recv_timeout(until.saturating_duration_since(Instant::now()));
            let Ok(Unmapped { asked, contexts, snapshot }) = found else { continue };
            let row = |(((pid, _), gone), context): (&(Address, Gone), &CallContext)| {
                let site = code.site(*pid, context, &LedFrom::default(), snapshot.modules())?;
                Some(CallSiteRow { since_ns: gone.since_ns, until_ns: Some(gone.until_ns), ..site })
            };
            let rows: Vec<CallSiteRow> = asked.iter().zip(&contexts).filter_map(row).collect();
            self.journal.writer.send_patiently(rows);
        }
    }

    /// What is mapped at an address holds for steps from then on; `None`: from the beginning.
    pub(super) fn mapped_since(&self, address: u64) -> Option<u64> {
        self.call_code.history.since(address)
    }

    /// Modules with functions whose entries are steps, and less than all names, in words.
    pub(super) fn notes_of_stepped_modules(&self) -> Vec<String> {
        let stepped = self.attach.classes().iter().filter(|class| is_stepped(class));
        let modules: BTreeSet<usize> = stepped.map(|class| class.candidate.key.module).collect();
        let modules = modules.into_iter().filter_map(|index| self.inspection.modules().get(index));
        modules.filter_map(|module| module.symbols_missing()).collect()
    }

    fn search_code(&mut self) {
        let asked = std::mem::take(&mut self.call_code.waiting);
        let functions = (!self.call_code.knows_jumps).then(|| self.code_classes().functions());
        self.call_code.knows_jumps = true;
        let snapshot = self.inspection.code_snapshot();
        let (sender, found) = channel();
        let thread = std::thread::Builder::new().name("tithe-code".into()).spawn(move || {
            let distinct: BTreeSet<u64> = asked.iter().map(|(_, address)| *address).collect();
            let distinct: Vec<u64> = distinct.into_iter().collect();
            let contexts = snapshot.contexts(&distinct, BUDGET);
            let jumps = functions.map(|functions| snapshot.jumps(&functions, Instant::now() + BUDGET.time));
            // Who asked may be gone.
            let _ = sender.send(Answer { asked, contexts, jumps, snapshot });
        });
        // Without a thread nothing is known, and what consumers show has more marks.
        self.call_code.search = thread.is_ok().then_some(found);
    }

    fn take_found_code(&mut self) {
        let Some(search) = &self.call_code.search else { return };
        let answer = match search.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => {
                self.call_code.search = None;
                return;
            }
        };
        self.call_code.search = None;
        let Answer { asked, contexts, jumps, snapshot } = answer;
        let code = self.code_classes();
        let context = |address: u64| {
            let at = contexts.binary_search_by_key(&address, |context| context.return_address);
            at.ok().and_then(|at| contexts.get(at))
        };
        let site = |(pid, address): &Address| {
            let site = code.site(*pid, context(*address)?, &LedFrom::default(), snapshot.modules())?;
            Some(CallSiteRow { since_ns: self.mapped_since(*address), ..site })
        };
        let found = CodeFound {
            sites: asked.iter().filter_map(site).collect(),
            looked_at: asked,
            jumps: jumps.map(|jumps| code.tails(&jumps)),
            stack_span_bytes: self.stack_span_bytes(),
        };
        self.journal.consumers.learn(&found, now_ns());
    }

    /// Slots that are less than this apart lie on one stack, as far as that is known without reading modules.
    fn stack_span_bytes(&self) -> u64 {
        let stacks = self.operation_io.as_ref().and_then(|io| io.stacks());
        let keeps = stacks.is_some_and(|stacks: SeenStacks| self.keeps_to_first_stacks(stacks));
        if keeps { STACK_SPAN_BYTES } else { 0 }
    }
}
