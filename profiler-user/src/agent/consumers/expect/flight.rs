//! Calls in flight: those that are seen at two looks, with what they have used in between. Pure: it reads no clock.
//!
//! A call in a burst is open when the links of its function go. If its thread was off the CPU while they were there, and has not run since (it was given no CPU, by the
//! scheduler's count), the call has not ended: so a call that hangs is told though its burst was short.
//!
//! Why two looks: what is read of a thread that runs may be half of one call and half of another, and the time of a call whose links have just gone stands still. Neither is there
//! a second time. And what a thread has used between two looks says what it does: on a CPU, waiting for one, blocked.

use super::super::Threads;
use super::judge::Judged;
use super::waits::Wait;
use crate::prober::OpenCall;
use crate::target::ThreadLook;
use profiler_core::class::ClassId;
use profiler_core::models::{Seen, Used};
use profiler_core::recording::{CallContext, EventRow};
use std::collections::{BTreeMap, BTreeSet};

/// What a look may take, in what asking a thread takes: 2 ms, as much as a consumer has at a turn at most. Half of it is for asking threads.
const MOST: u64 = 333;
/// What asking a thread takes, ns: three system calls and a copy of 4 KB.
const THREAD_NS: u64 = 6_000;
/// What a look at a thread takes (two files of `/proc`), over what asking one does.
const OF_LOOK: usize = 2;
/// What a look at a call takes (`open_record`), over that.
const OF_CALL: usize = 5;
/// Calls that are kept until they are seen again.
const MOST_CALLS: usize = 4_096;
/// A call is judged again when it has taken so many times as long: one that hangs for hours must not take the looks of others.
const AGAIN: f64 = 1.25;

/// Begin, thread, class: the first of all is the oldest.
pub(super) type Key = (u64, i32, u32);

/// A call in flight beside its model.
pub(super) enum Hold {
    Held(Box<Judged>),
    /// Its words have not all come.
    Later,
    /// It has none: of its function in this context, or for its inputs.
    Never,
}

/// A call that was seen.
#[derive(Debug, Clone)]
struct Sight {
    first: ThreadLook,
    /// What 97.5 % of calls like it do not take, ns; 0: nobody has looked; infinite: it has no model.
    above_ns: f64,
    /// What its thread was seen to wait in last, and when; `None`: it was not seen to wait.
    waits_in: Option<Wait>,
    /// When it is judged again, ktime ns.
    due_ns: u64,
    /// As it was judged last, where it took longer.
    judged: Option<Judged>,
    /// Its links have gone.
    is_gone: bool,
    /// Of a call in a burst whose thread did not run then: its row at the first look. Links go with the burst; but while the thread has not run again, the call has not
    /// ended.
    kept: Option<EventRow>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Flights {
    tids: Vec<i32>,
    /// Where the next look goes on, if there are too many threads for one.
    next: usize,
    sights: BTreeMap<Key, Sight>,
    /// The call that was judged last: the next look goes on behind it.
    last: Key,
    /// The last of the known calls whose threads were asked, where not all are.
    last_asked: Key,
    /// Calls that take longer than they should, at the last look.
    running: Vec<Judged>,
}

/// Looks at threads, each once.
struct Looks<'a> {
    threads: &'a dyn Threads,
    of: BTreeMap<i32, Option<ThreadLook>>,
    /// The latest, ktime ns; 0: none.
    now_ns: u64,
    /// What may still be spent.
    left: usize,
}

impl Looks<'_> {
    fn look(&mut self, tid: i32) -> Option<ThreadLook> {
        if let Some(known) = self.of.get(&tid) {
            return *known;
        }
        self.left = self.left.saturating_sub(OF_LOOK);
        let look = self.threads.look(tid);
        self.now_ns = self.now_ns.max(look.map_or(0, |look| look.at_ns));
        self.of.insert(tid, look);
        look
    }

    /// What a thread waits in that was looked at just now.
    fn waits_in(&mut self, tid: i32, look: &ThreadLook) -> Option<Wait> {
        if look.is_runnable {
            return None;
        }
        self.left = self.left.saturating_sub(1);
        self.threads.waits_in(tid)
    }
}

impl Sight {
    fn is_due(&self, call: &OpenCall, now_ns: u64) -> bool {
        now_ns >= self.due_ns && now_ns.saturating_sub(call.begin_ns) as f64 > self.above_ns
    }

    /// The row of a kept call, had it ended at that look; `None`: its thread has run, and it may have ended.
    fn still(&self, look: &ThreadLook) -> Option<EventRow> {
        // A kernel that does not count says 0 of threads that have run.
        let counts = look.arrivals > 0;
        let has_run = look.is_runnable || look.arrivals != self.first.arrivals;
        let row = self.kept.as_ref().filter(|_| counts && !has_run)?;
        Some(EventRow { duration_ns: Some(look.at_ns.saturating_sub(row.time_ns)), ..row.clone() })
    }
}

fn key(call: &OpenCall) -> Key {
    (call.begin_ns, call.tid, call.class.0)
}

impl Flights {
    /// Calls that take longer than 97.5 % of calls with such inputs, as they were at the last look; once: what was open then may have ended since.
    pub fn take_running(&mut self) -> Vec<Judged> {
        let running = std::mem::take(&mut self.running);
        // One whose links have gone may have ended by the next look, unless it is due again.
        for call in &running {
            // OK because thread ids are positive.
            let key = (call.row.time_ns, call.row.tid as i32, call.row.class_id);
            if let Some(sight) = self.sights.get_mut(&key).filter(|sight| sight.is_gone) {
                sight.judged = None;
            }
        }
        running
    }

    /// Calls that are kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.sights.len()
    }

    /// Nothing is in flight any more.
    pub fn clear(&mut self) {
        self.sights.clear();
        self.running.clear();
    }

    /// What the thread of a call in flight was seen to wait in last, and when; `None`: it was not seen to wait.
    pub fn waits_in(&self, call: &Key) -> Option<Wait> {
        self.sights.get(call)?.waits_in
    }

    /// The call has ended: what it is known by, and what it was seen to wait in last, if it was.
    pub fn end(&mut self, row: &EventRow) -> Option<(Key, Wait)> {
        if self.sights.is_empty() {
            return None;
        }
        // OK because thread ids are positive.
        let key = (row.time_ns, row.tid as i32, row.class_id);
        let sight = self.sights.remove(&key)?;
        let of = |call: &Judged| (call.row.time_ns, call.row.tid as i32, call.row.class_id);
        self.running.retain(|call| of(call) != key);
        // What its thread waited in after the end is not the call's.
        let ended_ns = row.time_ns.saturating_add(row.duration_ns.unwrap_or(0));
        sight.waits_in.filter(|(_, at_ns)| *at_ns <= ended_ns).map(|wait| (key, wait))
    }

    /// Looks at the threads, for so long. `is_watched`: calls of that class are held against a model, and whether those of the earlier recording were cut off; `hold`: the call
    /// beside its model.
    ///
    /// Half of the time is for asking threads, and half of what is left for calls that are seen for the first time: calls that were judged and go on must not keep
    /// others from being seen.
    pub fn look(
        &mut self,
        threads: &dyn Threads,
        most_ns: u64,
        is_watched: impl Fn(u32) -> Option<bool>,
        hold: impl Fn(&EventRow) -> Hold,
    ) {
        // OK because it is at most 333.
        let most = (most_ns / THREAD_NS).clamp(2, MOST) as usize;
        let asked = self.asked(threads, most / 2);
        let mut open = threads.open_calls(&asked);
        open.retain(|call| is_watched(call.class.0).is_some());
        // What has run for longest comes first.
        open.sort_by_key(key);
        let here: BTreeSet<Key> = open.iter().map(key).collect();
        let left = most.saturating_sub(asked.len());
        let asked: BTreeSet<i32> = asked.into_iter().collect();
        // A thread that has exited is asked no more.
        let lives: BTreeSet<i32> = self.tids.iter().copied().collect();
        let is_unknown = |tid: &i32| !asked.contains(tid) && lives.contains(tid);
        let may_be_told = |sight: &Sight| sight.kept.is_some() && sight.above_ns.is_finite();
        let is_kept = |key: &Key, sight: &Sight| may_be_told(sight) && lives.contains(&key.1);
        self.sights.retain(|key, sight| here.contains(key) || is_unknown(&key.1) || is_kept(key, sight));
        self.running.clear();
        let (mut known, new): (Vec<OpenCall>, Vec<OpenCall>) =
            open.into_iter().partition(|call| self.sights.contains_key(&key(call)));
        let is_gone = |key: &Key| !here.contains(key) && asked.contains(&key.1);
        let gone = self.sights.keys().filter(|key| is_gone(key));
        known.extend(gone.map(|(begin_ns, tid, class)| OpenCall {
            class: ClassId(*class),
            tid: *tid,
            begin_ns: *begin_ns,
        }));
        known.sort_by_key(key);
        let share = (left / 2).max(1);
        let mut looks = Looks { threads, of: BTreeMap::new(), now_ns: 0, left: share };
        self.see(&new, &mut looks, |class| is_watched(class) == Some(false));
        looks.left = (left - left / 2 + looks.left).min(left).max(1);
        let turn = known.partition_point(|call| key(call) <= self.last);
        let (behind, first) = known.split_at(turn);
        for call in first.iter().chain(behind) {
            self.judge(call, !here.contains(&key(call)), &mut looks, &hold);
        }
    }

    /// Calls that are seen for the first time. `may_keep`: calls of that class may be followed beyond their bursts.
    fn see(&mut self, new: &[OpenCall], looks: &mut Looks<'_>, may_keep: impl Fn(u32) -> bool) {
        for call in new {
            if self.sights.len() >= MOST_CALLS || looks.left == 0 {
                break;
            }
            let Some(first) = looks.look(call.tid) else { continue };
            let waits_in = looks.waits_in(call.tid, &first);
            let mut kept = None;
            if !first.is_runnable && may_keep(call.class.0) && looks.threads.is_in_bursts(call.class) {
                looks.left = looks.left.saturating_sub(OF_CALL);
                let row = looks.threads.row(call, &first);
                // Asked last: had its links gone before, it might have ended before the look.
                kept = row.filter(|_| looks.threads.are_ends_seen(call.class));
            }
            self.sights.insert(
                key(call),
                Sight { first, above_ns: 0.0, waits_in, due_ns: 0, judged: None, is_gone: false, kept },
            );
        }
    }

    /// A call that was seen before, if it is due. `is_gone`: its links have gone.
    fn judge(
        &mut self,
        call: &OpenCall,
        is_gone: bool,
        looks: &mut Looks<'_>,
        hold: impl Fn(&EventRow) -> Hold,
    ) {
        let Some(sight) = self.sights.get_mut(&key(call)).filter(|sight| sight.above_ns.is_finite()) else {
            return;
        };
        let may_be = looks.left > 0 && (looks.now_ns == 0 || sight.is_due(call, looks.now_ns));
        let look = if may_be { looks.look(call.tid) } else { None };
        let Some(look) = look.filter(|look| sight.is_due(call, look.at_ns)) else {
            sight.is_gone |= is_gone;
            // It has not ended: it takes at least as long as it did. One whose links have gone has lasted so long, whatever it does now.
            self.running.extend(sight.judged.clone());
            return;
        };
        looks.left = looks.left.saturating_sub(OF_CALL);
        self.last = key(call);
        // OK because it is neither negative nor large.
        sight.due_ns = call.begin_ns + (AGAIN * look.at_ns.saturating_sub(call.begin_ns) as f64) as u64;
        (sight.judged, sight.is_gone) = (None, is_gone);
        let waits_in = looks.waits_in(call.tid, &look);
        let row = if is_gone { sight.still(&look) } else { looks.threads.row(call, &look) };
        // Its row was read after that: it had not ended.
        sight.waits_in = waits_in.filter(|_| row.is_some()).or(sight.waits_in);
        if is_gone && row.is_none() {
            self.sights.remove(&key(call));
            return;
        }
        let held = match row.as_ref().map_or(Hold::Later, hold) {
            Hold::Held(held) => *held,
            Hold::Later => return,
            Hold::Never => {
                sight.above_ns = f64::INFINITY;
                return;
            }
        };
        let Seen { predicted_ns, own_ns, .. } = held.seen;
        let high_ns = held.interval_ns.high;
        sight.above_ns = if high_ns.is_finite() { high_ns } else { predicted_ns };
        if own_ns > sight.above_ns {
            let used = used(&held.seen, &held.row.context, &sight.first, &look);
            let waits = is_gone || looks.threads.is_in_bursts(call.class);
            let judged = Judged { is_running: true, used: Some(used), waits, ..held };
            sight.judged = Some(judged.clone());
            self.running.push(judged);
        } else {
            sight.due_ns = 0;
        }
    }

    /// The threads of this look: all, or the half whose calls are known, in turns, and some of the others in turn.
    fn asked(&mut self, threads: &dyn Threads, most: usize) -> Vec<i32> {
        if self.next >= self.tids.len() || self.tids.len() <= most {
            self.tids = threads.tids();
            self.next = 0;
        }
        if self.tids.len() <= most {
            return self.tids.clone();
        }
        let mut asked: Vec<i32> = Vec::new();
        let mut last = self.last_asked;
        let behind = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
        let known = self.sights.range(behind).chain(self.sights.range(..=last));
        for (key, _) in known.filter(|(_, sight)| sight.above_ns.is_finite()) {
            if asked.len() >= most / 2 {
                break;
            }
            last = *key;
            if !asked.contains(&key.1) {
                asked.push(key.1);
            }
        }
        self.last_asked = last;
        let others: Vec<i32> = self.tids.iter().skip(self.next).take(most - asked.len()).copied().collect();
        self.next += others.len();
        let others = others.into_iter().filter(|tid| !asked.contains(tid)).collect::<Vec<i32>>();
        asked.extend(others);
        asked
    }
}

/// What a call in flight has used, as far as that is known: since it was first seen, but for what the kernel said at its begin. What is not known is no part's.
/// A thread that could run may be waiting for a CPU, which the kernel adds up only when it has one.
fn used(seen: &Seen, context: &CallContext, first: &ThreadLook, now: &ThreadLook) -> Used {
    let ns = |now: u64, first: u64| now.saturating_sub(first) as f64;
    let (all_ns, cpu_ns) = (ns(now.at_ns, first.at_ns), ns(now.cpu_ns, first.cpu_ns));
    let waited_ns = ns(now.waited_ns, first.waited_ns);
    let rest_ns = (all_ns - cpu_ns - waited_ns).max(0.0);
    let stayed = now.is_runnable && first.is_runnable && now.arrivals == first.arrivals;
    let (mut on_cpu_ns, mut runnable_ns, mut blocked_ns) = (cpu_ns, waited_ns, 0.0);
    if !now.is_runnable {
        blocked_ns = rest_ns;
    } else if stayed && cpu_ns > 0.0 {
        // Ticks add up what it runs.
        on_cpu_ns += rest_ns;
    } else if stayed {
        runnable_ns += rest_ns;
    }
    let before_ns = context.runnable_ns.map_or(0.0, |since_begin| since_begin as f64 - waited_ns);
    let io_ns = ns(now.io_ns, first.io_ns).min(blocked_ns);
    Used {
        predicted_ns: seen.predicted_ns,
        own_ns: seen.own_ns,
        on_cpu_ns,
        runnable_ns: runnable_ns + before_ns.max(0.0),
        io_ns,
        blocked_ns: blocked_ns - io_ns,
        minor_faults: context.minor_faults.unwrap_or(0) as f64,
        major_faults: context.major_faults.unwrap_or(0) as f64,
        io_bytes: 0.0,
    }
}
