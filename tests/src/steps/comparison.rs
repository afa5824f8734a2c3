//! Recorded operations beside the logged ones.

use super::{Account, Entry, FUNCTIONS, Log};
use profiler_core::calls::{Code, Kind, nest};
use profiler_core::recording::{OperationRow, StepRow};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::AddAssign;

/// So many differences are told in words; all are counted.
const TOLD: usize = 10;

/// What comparing came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Operations that are not marked, with all of their calls.
    pub complete: u64,
    /// Operations that the kernel side marked as incomplete.
    pub marked: u64,
    /// Operations that were open when the run ended, or that have no numbers of steps.
    pub open: u64,
    /// Operations without a mark whose numbers say that calls are missing: readers find these by themselves.
    pub gaps: u64,
    /// Operations that count as complete, without calls that the log has. There may be none.
    pub unmarked: u64,
    /// Operations whose calls are others, in another order, of another thread, there twice, or not ordered by time. There may be none.
    pub wrong_orders: u64,
    /// Links that are not marked as ambiguous and say another caller. There may be none.
    pub wrong_links: u64,
    /// Calls of complete operations.
    pub steps: u64,
    /// Of these, the ones whose link is marked as ambiguous.
    pub ambiguous: u64,
    /// Of these, the ones whose likely caller is the logged one.
    pub ambiguous_right: u64,
    /// Links by a jump.
    pub tails: u64,
    /// Links by a signal.
    pub signals: u64,
    /// Recorded calls of no recorded operation.
    pub outside: u64,
    /// Operations that the target made, with and without rows. `None`: a comparison that was made before this one was.
    #[serde(default)]
    pub account: Option<Account>,
    /// The first differences, in words.
    pub faults: Vec<String>,
}

impl Compared {
    /// Operations and links that differ from the log without being marked, and operations that are not accounted for.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        let not_accounted = self.account.map_or(0, |account| account.wrong());
        self.unmarked + self.wrong_orders + self.wrong_links + not_accounted
    }

    /// With the account of all operations, and what is wrong about it.
    pub(super) fn accounted(mut self, account: Account, fault: Option<String>) -> Compared {
        self.account = Some(account);
        self.faults.extend(fault);
        self
    }

    fn tell(&mut self, fault: impl FnOnce() -> String) {
        if self.faults.len() < TOLD {
            self.faults.push(fault());
        }
    }
}

impl AddAssign<&Compared> for Compared {
    fn add_assign(&mut self, other: &Compared) {
        self.complete += other.complete;
        self.marked += other.marked;
        self.open += other.open;
        self.gaps += other.gaps;
        self.unmarked += other.unmarked;
        self.wrong_orders += other.wrong_orders;
        self.wrong_links += other.wrong_links;
        self.steps += other.steps;
        self.ambiguous += other.ambiguous;
        self.ambiguous_right += other.ambiguous_right;
        self.tails += other.tails;
        self.signals += other.signals;
        self.outside += other.outside;
        if let Some(account) = &other.account {
            *self.account.get_or_insert_default() += account;
        }
        self.faults.extend(other.faults.iter().cloned());
    }
}

/// A recorded operation with its numbers.
#[derive(Debug)]
struct Operation {
    /// Number in the log: `mark` adds it to the measure.
    number: u64,
    tid: u32,
    /// The numbers of its steps go from `before + 1` to `after`.
    before: u64,
    after: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Its steps are not looked at.
    Marked,
    /// These are there so far.
    Waiting(Vec<StepRow>),
    Compared,
}

/// Compares as steps come. Each operation is judged once its last step is there.
#[derive(Debug)]
pub struct Comparison {
    code: Code,
    /// Place in [`FUNCTIONS`] of a class.
    functions: HashMap<u32, usize>,
    log: Log,
    /// By process and thread, in the order of their numbers.
    operations: HashMap<(u32, u32), Vec<Operation>>,
    compared: Compared,
}

impl Comparison {
    /// With the code that calls, the functions of classes, all operations, and the target's log.
    #[must_use]
    pub fn new(code: Code, functions: HashMap<u32, usize>, rows: &[OperationRow], log: Log) -> Comparison {
        let mut compared = Compared::default();
        let mut operations: HashMap<(u32, u32), Vec<Operation>> = HashMap::new();
        for row in rows {
            let is_marked = row.incomplete == Some(true);
            compared.marked += u64::from(is_marked);
            let (Some(pid), Some(before), Some(after), false) =
                (row.pid, row.steps_before, row.steps_after, row.censored)
            else {
                compared.open += u64::from(!is_marked);
                continue;
            };
            let state = if is_marked { State::Marked } else { State::Waiting(Vec::new()) };
            let operation = Operation { number: row.measure, tid: row.tid, before, after, state };
            operations.entry((pid, row.tid)).or_default().push(operation);
        }
        for of_thread in operations.values_mut() {
            of_thread.sort_by_key(|operation| (operation.before, operation.after));
            for pair in of_thread.windows(2).filter(|pair| pair[0].after > pair[1].before) {
                compared.wrong_orders += 1;
                compared.tell(|| format!("operations {} and {} share steps", pair[0].number, pair[1].number));
            }
        }
        let mut comparison = Comparison { code, functions, log, operations, compared };
        comparison.judge_where(|operation| operation.before == operation.after);
        comparison
    }

    /// A recorded step; the order in which they come does not matter.
    pub fn step(&mut self, step: StepRow) {
        let of_thread = self.operations.get_mut(&(step.pid, step.tid));
        let operation = of_thread.and_then(|of_thread| {
            let behind = of_thread.partition_point(|operation| operation.before < step.number);
            let last = of_thread[..behind].last_mut();
            last.filter(|operation| step.number <= operation.after)
        });
        let Some(operation) = operation else {
            self.compared.outside += 1;
            return;
        };
        match &mut operation.state {
            State::Marked => {}
            State::Compared => {
                self.compared.wrong_orders += 1;
                self.compared.tell(|| format!("a call comes twice: {step:?}"));
            }
            State::Waiting(steps) => {
                steps.push(step);
                if steps.len() as u64 == operation.after - operation.before {
                    let steps = std::mem::take(steps);
                    operation.state = State::Compared;
                    let judge = Judge { code: &self.code, functions: &self.functions, log: &self.log };
                    judge.operation(operation.number, operation.tid, steps, &mut self.compared);
                }
            }
        }
    }

    /// Once all steps have come: what is still without some is incomplete.
    #[must_use]
    pub fn finish(mut self) -> Compared {
        let waiting = self.operations.values().flatten().filter(|o| matches!(o.state, State::Waiting(_)));
        self.compared.gaps += waiting.count() as u64;
        self.compared
    }

    /// Judges those that wait and need no more.
    fn judge_where(&mut self, is_whole: impl Fn(&Operation) -> bool) {
        let judge = Judge { code: &self.code, functions: &self.functions, log: &self.log };
        for operation in self.operations.values_mut().flatten().filter(|operation| is_whole(operation)) {
            if let State::Waiting(steps) = &mut operation.state {
                let steps = std::mem::take(steps);
                operation.state = State::Compared;
                judge.operation(operation.number, operation.tid, steps, &mut self.compared);
            }
        }
    }
}

/// What single operations are judged by.
struct Judge<'a> {
    code: &'a Code,
    functions: &'a HashMap<u32, usize>,
    log: &'a Log,
}

impl Judge<'_> {
    fn operation(&self, number: u64, tid: u32, mut steps: Vec<StepRow>, compared: &mut Compared) {
        steps.sort_by_key(|step| step.number);
        let entries: Vec<Entry> = self.log.entries(number).collect();
        let seen: Vec<Option<usize>> =
            steps.iter().map(|step| self.functions.get(&step.class_id).copied()).collect();
        if !seen.iter().copied().eq(entries.iter().map(|entry| Some(entry.function))) {
            let is_less = is_part(&seen, &entries);
            let kind = if is_less { &mut compared.unmarked } else { &mut compared.wrong_orders };
            *kind += 1;
            let what = if is_less { "calls are missing, and it is not marked" } else { "another order" };
            compared.tell(|| format!("operation {number}: {what}; {}", first_difference(&seen, &entries)));
            return;
        }
        let ordered = [
            (steps.windows(2).all(|pair| pair[0].number < pair[1].number), "a call is there twice"),
            (steps.is_sorted_by_key(|step| step.time_ns), "its calls are not ordered by time"),
            (entries.iter().all(|entry| entry.thread == tid), "another thread logged it"),
        ];
        if let Some((_, what)) = ordered.iter().find(|(is_so, _)| !is_so) {
            compared.wrong_orders += 1;
            compared.tell(|| format!("operation {number}: {what}"));
            return;
        }
        self.links(number, &steps, &entries, compared);
        compared.complete += 1;
    }

    fn links(&self, number: u64, steps: &[StepRow], entries: &[Entry], compared: &mut Compared) {
        for (index, (entry, link)) in entries.iter().zip(&nest(steps, self.code).links).enumerate() {
            let is_right = link.parent == entry.parent;
            compared.steps += 1;
            compared.ambiguous += u64::from(link.is_ambiguous);
            compared.ambiguous_right += u64::from(link.is_ambiguous && is_right);
            compared.tails += u64::from(link.kind == Kind::Tail);
            compared.signals += u64::from(link.kind == Kind::Signal);
            if link.is_ambiguous || is_right {
                continue;
            }
            compared.wrong_links += 1;
            compared.tell(|| {
                let calls = steps.iter().zip(entries).take(index + 1);
                let calls: Vec<_> =
                    calls.map(|(s, e)| (name(Some(e.function)), s.slot, self.code.site(s))).collect();
                let function = name(Some(entry.function));
                let lies = entry.parent;
                format!("operation {number}, call {index} ({function}): lies in {lies:?}, said {link:?}; {calls:?}")
            });
        }
    }
}

/// What was seen is the log without some of its entries.
fn is_part(seen: &[Option<usize>], entries: &[Entry]) -> bool {
    let mut left = entries.iter();
    seen.iter().all(|function| left.any(|entry| Some(entry.function) == *function))
}

fn first_difference(seen: &[Option<usize>], entries: &[Entry]) -> String {
    let logged = |at: usize| entries.get(at).map(|entry| Some(entry.function));
    let at = (0..).find(|at| seen.get(*at).copied() != logged(*at)).unwrap_or(0);
    let say = |function: Option<Option<usize>>| function.map_or("nothing", name);
    format!(
        "{} calls for {} logged; the first that differs is call {at}: {} for {}",
        seen.len(),
        entries.len(),
        say(seen.get(at).copied()),
        say(logged(at))
    )
}

fn name(function: Option<usize>) -> &'static str {
    function.and_then(|function| FUNCTIONS.get(function).copied()).unwrap_or("a function that was not named")
}
