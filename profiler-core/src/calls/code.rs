//! What a recording knows of the code that calls.

use crate::recording::{CallSiteRow, CallerRule, CallsMeta, StepRow, TailRow};
use std::collections::{HashMap, HashSet};

/// Slots that are farther apart lie on different stacks where the recording says nothing else, bytes: the usual limit of a thread's stack. Also the largest
/// frame that is believed.
pub(super) const DEFAULT_SPAN_BYTES: u64 = 8 << 20;

/// Call sites, jumps between functions, and how stacks are told apart.
#[derive(Debug, Clone, Default)]
pub struct Code {
    /// Of several rows of one return address each holds for another time.
    sites: HashMap<(u32, u64), Vec<CallSiteRow>>,
    tails: HashSet<(u32, u32)>,
    tails_known: HashSet<u32>,
    /// Classes whose entries are steps; empty: all.
    stepped: HashSet<u32>,
    /// Two slots that are less than this apart lie on one stack, bytes; 0: nothing follows from distances.
    pub(super) span_bytes: u64,
}

impl Code {
    /// From the tables `call_sites` and `tails`; of several rows of a return address from one time on the last one counts.
    #[must_use]
    pub fn new(meta: &CallsMeta, sites: Vec<CallSiteRow>, tails: &[TailRow]) -> Self {
        let mut by_address: HashMap<(u32, u64), Vec<CallSiteRow>> = HashMap::new();
        for site in sites {
            let known = by_address.entry((site.pid, site.return_address)).or_default();
            match known.iter_mut().find(|other| other.since_ns == site.since_ns) {
                Some(other) => *other = site,
                None => known.push(site),
            }
        }
        Self {
            sites: by_address,
            tails: tails.iter().map(|row| (row.from_class, row.to_class)).collect(),
            tails_known: meta.tails_known.iter().copied().collect(),
            stepped: meta.classes.iter().copied().collect(),
            span_bytes: meta.stack_span_bytes,
        }
    }

    /// Where a step was called from; `None`: nothing is known of its return address at that time.
    #[must_use]
    pub fn site(&self, step: &StepRow) -> Option<&CallSiteRow> {
        let known = self.sites.get(&(step.pid, step.return_address))?;
        let holding = known.iter().filter(|site| site.holds_at(step.time_ns));
        holding.max_by_key(|site| site.since_ns)
    }

    /// Entries of this class are no steps: it bounds the operation.
    pub(super) fn bounds_the_operation(&self, class: u32) -> bool {
        !self.stepped.is_empty() && !self.stepped.contains(&class)
    }

    /// A function of class `from` may have handed over to one of class `to` by a jump.
    pub(super) fn may_jump(&self, from: u32, to: u32) -> bool {
        !self.tails_known.contains(&from) || self.tails.contains(&(from, to))
    }
}

/// The caller's own slot; `None`: it cannot be told.
pub(super) fn caller_slot(step: &StepRow, site: Option<&CallSiteRow>) -> Option<u64> {
    /// A slot is a word.
    const WORD: i64 = 8;
    let site = site?;
    let slot = match site.caller {
        // CFA = slot + 8 + value, and the caller's slot is the word below its CFA.
        CallerRule::Sp => step.slot.checked_add_signed(site.caller_value),
        CallerRule::Frame => step.frame.checked_add_signed(site.caller_value.checked_sub(WORD)?),
        CallerRule::Signal | CallerRule::Unknown => None,
    };
    // Stacks grow down: a caller's slot lies above.
    slot.filter(|slot| *slot > step.slot)
}

/// The site is the trampoline behind signal handlers.
pub(super) fn is_signal(site: Option<&CallSiteRow>) -> bool {
    site.is_some_and(|site| site.caller == CallerRule::Signal)
}
