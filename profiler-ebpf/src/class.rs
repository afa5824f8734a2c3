//! What every hit of a class does first: find the class, pass the gates.

use crate::atomic::{add, fetch_decrement};
use crate::details;
use crate::maps::{
    ALARMS, FORCE_WAKEUP, control, count_global, counters, current_ids, now_ns, quota, target_flags,
    thread_hits,
};
use crate::off_cpu::{self, NOT_LAST};
use crate::storage::SharedSite;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_get_prandom_u32};
use aya_ebpf::programs::ProbeContext;
use aya_log_ebpf::warn;
use core::ffi::c_void;
use profiler_common::class::{
    ALARM_REPEAT, ClassControl, ClassCounters, ClassKind, FLAG_BY_THREAD, FLAG_FILTER_TARGETS, FLAG_INSIDE,
    FLAG_NO_QUOTA,
};
use profiler_common::cookie::Cookie;
use profiler_common::event::{Alarm, AlarmKind};

/// The class of a hit, with its map values.
#[derive(Clone, Copy)]
pub struct Hit {
    pub cookie: Cookie,
    pub control: *const ClassControl,
    pub counters: *mut ClassCounters,
}

/// Bumps a counter of a class.
macro_rules! count {
    ($counters:expr, $($field:ident).+, $value:expr) => {
        // SAFETY: a live map value.
        $crate::atomic::add(unsafe { &raw mut (*$counters).$($field).+ }, $value)
    };
}
pub(crate) use count;

impl Hit {
    /// Reads the cookie and finds its class.
    #[inline(always)]
    pub fn find(ctx: *mut c_void) -> Option<Self> {
        // SAFETY: `ctx` is the program's context.
        let cookie = Cookie::unpack(unsafe { bpf_get_attach_cookie(ctx) });
        if let Some(control) = control(cookie.class)
            && let Some(counters) = counters(cookie.class)
        {
            return Some(Self { cookie, control, counters });
        }
        count_global!(unknown_class);
        warn!(&ProbeContext::new(ctx), "a hit of class {}, which does not exist", cookie.class);
        None
    }

    /// The site of this hit, where other classes of the function may have programs there, too.
    #[inline(always)]
    pub fn shared(&self, ctx: *mut c_void) -> Option<SharedSite> {
        // SAFETY: a live map value.
        if unsafe { (*self.control).function } == 0 {
            return None;
        }
        // SAFETY: the context of a uprobe program is a `pt_regs`.
        let rip = unsafe { (*ctx.cast::<pt_regs>()).rip };
        Some(SharedSite { rip, class: self.cookie.class })
    }

    /// Return slot of the call that begins; 0: not known.
    #[inline(always)]
    pub fn slot(&self, ctx: *mut c_void) -> u64 {
        // SAFETY: as above.
        let rsp = unsafe { (*ctx.cast::<pt_regs>()).rsp };
        self.cookie.return_slot(rsp).unwrap_or(0)
    }

    /// Passes the gates: class off, quota, bystander, random skip, outside recorded operations. A hit that is turned away is counted as gated; the
    /// caller counts any other as kept or dropped. The quota comes first, because every hit costs its trap.
    #[inline(always)]
    pub fn admit(&self, ctx: *mut c_void) -> bool {
        // SAFETY: a live map value; the agent may change it at any time, each word is read once.
        let (kind, flags, skip_below) = unsafe {
            (
                (&raw const (*self.control).kind).read_volatile(),
                (&raw const (*self.control).flags).read_volatile(),
                (&raw const (*self.control).skip_below).read_volatile(),
            )
        };
        // Whether it is let in or not: the thread pays for it.
        if flags & FLAG_BY_THREAD != 0
            && let Some(hits) = thread_hits(self.cookie.class)
        {
            add(hits, 1);
        }
        let limited = flags & FLAG_NO_QUOTA == 0;
        let find_quota =
            || if limited && kind != ClassKind::Off as u32 { quota(self.cookie.class) } else { None };
        let before = match find_quota() {
            // SAFETY: a live map value.
            Some(quota) => self.take(unsafe { &raw mut (*quota).remaining }, flags),
            None => i64::from(!limited && kind != ClassKind::Off as u32),
        };
        let is_let_in = before >= 1
            && (flags & FLAG_FILTER_TARGETS == 0 || !self.is_bystander())
            // SAFETY: the helper has no preconditions.
            && (skip_below == 0 || (unsafe { bpf_get_prandom_u32() } as u32) >= skip_below)
            && (flags & FLAG_INSIDE == 0 || details::inner_call(self.control, flags, self.slot(ctx), ctx));
        // Looked up anew: the compiler asks the flags whether there was one, and the verifier of Linux 6.1 does not see that they say the same as
        // above. It refuses the pointer of before as a scalar.
        if let Some(quota) = find_quota() {
            let last_ns = if before == 1 { now_ns() } else { NOT_LAST };
            // Only a hit of the target says how long the target ran. Before the alarm: sending that takes long, and is no time of the target.
            if is_let_in {
                off_cpu::follow(quota, last_ns);
            }
            if before == 1 {
                send_alarm(self.cookie.class, AlarmKind::QuotaUsed, 0, last_ns);
            }
        }
        if !is_let_in {
            count!(self.counters, gated, 1);
        }
        is_let_in
    }

    #[inline(always)]
    fn is_bystander(&self) -> bool {
        if target_flags(current_ids().0).is_some() {
            return false;
        }
        count!(self.counters, bystanders, 1);
        true
    }

    /// Takes one hit from the quota of return sites. Nothing is turned away: what is left over of it the alarm decides.
    #[inline(always)]
    pub fn take_end(&self) {
        // SAFETY: a live map value; the agent may change it at any time.
        let flags = unsafe { (&raw const (*self.control).flags).read_volatile() };
        if flags & FLAG_NO_QUOTA == 0
            && let Some(quota) = quota(self.cookie.class)
        {
            // SAFETY: a live map value.
            let before = self.take(unsafe { &raw mut (*quota).ends }, flags);
            if before == 1 {
                send_alarm(self.cookie.class, AlarmKind::EndsUsed, 0, now_ns());
                // The window ends here: what begins after the alarm is not counted to it.
                // SAFETY: a live map value.
                unsafe { (&raw mut (*quota).remaining).write_volatile(0) };
            }
        }
    }

    /// Takes one hit from a quota. What was left before: where that was one, the caller raises the alarm, which later hits repeat.
    #[inline(always)]
    fn take(&self, remaining: *mut i64, flags: u32) -> i64 {
        let before = fetch_decrement(remaining);
        if before == 1 && flags & FLAG_INSIDE != 0 {
            // The link is about to go, and hits after that reach nobody. Before the alarm, which takes long: other CPUs record meanwhile.
            details::lose_details();
        }
        if before < 0 && before % ALARM_REPEAT == 0 {
            send_alarm(self.cookie.class, AlarmKind::StillHit, before - 1, now_ns());
        }
        before
    }
}

#[inline(always)]
fn send_alarm(class: u32, kind: AlarmKind, remaining: i64, time_ns: u64) {
    let (pid, tid) = current_ids();
    let alarm = Alarm { time_ns, remaining, kind: kind as u32, class, pid, tid };
    // Not reserve and submit: a producer that is stopped between the two (preempted, or its virtual CPU taken away) hides all later records of
    // the ring. The helper does the same inside, so that the gap is not closed; it is as short as the copy of 32 bytes.
    if ALARMS.output::<Alarm>(&alarm, FORCE_WAKEUP).is_err() {
        count_global!(alarms_dropped);
    }
}
