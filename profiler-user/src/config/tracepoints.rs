//! Tracepoints of the kernel as bounds of operations: how they are written, and which are refused.

use super::operation::{Bound, ClassArgument, argument_index};
use crate::prober::TRACEPOINT_ARGUMENTS;
use crate::prober::operation::{ARGUMENT_INT, ARGUMENT_LONG};

/// Kernel events that come where no program of ours should look for memory for a thread's state (in the scheduler, timers, the
/// allocator, under the locks of those) or in interrupts, by the begin of their names. They bound no thread's work anyway.
const DEEP_EVENTS: [&str; 36] = [
    "sched_",
    "pelt_",
    // The switch from one thread to the next, with its run queue locked: of address spaces, of registers.
    "tlb_flush",
    "x86_fpu_",
    "read_msr",
    "write_msr",
    "rdpmc",
    "contention_",
    "lock_",
    "rcu_",
    "timer_",
    "hrtimer_",
    "tick_",
    "irq_",
    "softirq_",
    "tasklet_",
    "nmi_",
    "kmalloc",
    "kmem_",
    "mm_page_",
    "mm_vmscan_",
    "mm_shrink_slab_",
    "mm_compaction_",
    "preempt_",
    "cpuhp_",
    "ipi_",
    "csd_",
    "reschedule_",
    "call_function_",
    "local_timer_",
    "percpu_",
    "cpu_frequency",
    "cpu_idle",
    "pstate_",
    "itimer_expire",
    "alarmtimer_fired",
];
/// Categories of which all are, by the names that they have where tracefs is mounted.
const DEEP_CATEGORIES: [&str; 5] = ["irq_vectors", "ipi", "power", "csd", "percpu"];
/// Those of them that come elsewhere.
const SHALLOW_EVENTS: [&str; 2] = ["sched_process_", "sched_prepare_exec"];

/// Category and name of `CATEGORY:NAME`, which every option writes alike; a slash does as well, as tracefs has it.
pub(super) fn category_and_name<'t>(text: &str, event: &'t str) -> Result<(&'t str, &'t str), String> {
    let wrong = || {
        format!(
            "'{text}': write tp:CATEGORY:NAME, like 'tp:signal:signal_deliver'; 'ls /sys/kernel/tracing/events' lists the \
             categories (as root; where that is empty, 'mount -t tracefs tracefs /sys/kernel/tracing' first)"
        )
    };
    let is_name = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    let (category, name) = event.split_once([':', '/']).ok_or_else(wrong)?;
    if !is_name(category) || !is_name(name) {
        return Err(wrong());
    }
    Ok((category, name))
}

/// A tracepoint as a bound of operations.
pub(super) fn bound(text: &str, event: &str) -> Result<Bound, String> {
    let (category, name) = category_and_name(text, event)?;
    if category == "syscalls" {
        let call = name.trim_start_matches("sys_enter_").trim_start_matches("sys_exit_");
        return Err(format!(
            "'{text}' is made of a system call and no tracepoint of its own; write syscall:{call}"
        ));
    }
    let begins = |list: &[&str]| list.iter().any(|begin| name.starts_with(begin));
    if name == "kfree"
        || DEEP_CATEGORIES.contains(&category)
        || (begins(&DEEP_EVENTS) && !begins(&SHALLOW_EVENTS))
    {
        return Err(format!(
            "'{text}': the kernel passes it inside its scheduler, timers, allocator or interrupts, where no thread's work \
             begins or ends; name system calls, or tracepoints that a thread passes itself, like 'tp:sched:sched_process_exec'"
        ));
    }
    Ok(Bound::Tracepoint { category: category.to_owned(), name: name.to_owned() })
}

/// `arg0:int`.
pub(super) fn argument(text: &str) -> Result<ClassArgument, String> {
    let wrong = || {
        format!(
            "'class={text}': of a tracepoint write class=argK:int (32 bits) or :long (64 bits), with K from 0 to {} (strings \
             of the kernel are not read)",
            TRACEPOINT_ARGUMENTS - 1
        )
    };
    let (index, kind) = text.split_once(':').ok_or_else(wrong)?;
    let index = argument_index(index, TRACEPOINT_ARGUMENTS).ok_or_else(wrong)?;
    let kind = match kind {
        "int" => ARGUMENT_INT,
        "long" => ARGUMENT_LONG,
        _ => return Err(wrong()),
    };
    Ok(ClassArgument { index, kind })
}

#[cfg(test)]
mod tests {
    use super::super::{Bounds, OperationSpec};
    use super::*;

    fn parse(text: &str) -> Result<OperationSpec, String> {
        text.parse()
    }

    #[test]
    fn tracepoints_bound_operations_in_pairs() {
        let event = |category: &str, name: &str| Bound::Tracepoint {
            category: category.to_owned(),
            name: name.to_owned(),
        };
        let pair = Bounds::Pair(event("signal", "signal_generate"), event("task", "task_rename"));
        let parsed = parse("s=tp:signal:signal_generate..tp:task:task_rename,class=arg11:int").unwrap();
        assert_eq!((parsed.name.as_str(), &parsed.bounds), ("s", &pair));
        assert_eq!(parsed.class, Some(ClassArgument { index: 11, kind: ARGUMENT_INT }));
        // It is no register.
        assert_eq!(parsed.class.unwrap().mask(), 0);
        // As `--progress` has them.
        assert_eq!(parse("s=tp:signal/signal_generate..tp:task/task_rename").unwrap().bounds, pair);
        assert!(parse("s=tp:sched:sched_process_fork..tp:sched:sched_process_exec").is_ok());
        let wrong = |text: &str, part: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        wrong("s=tp:task_rename..tp:a:b", "tp:CATEGORY:NAME");
        wrong("s=tp:task:..tp:a:b", "tp:CATEGORY:NAME");
        wrong("s=tp:a:b..tp:../x:y", "tp:CATEGORY:NAME");
        wrong("s=tp:a:b..tp:a:b c", "tp:CATEGORY:NAME");
        wrong("s=tp:a:b..tp:c:b", "are the same");
        wrong("s=tp:a:b..done", "both tracepoints");
        wrong("s=syscall:read..tp:a:b", "both tracepoints");
        wrong("s=usdt:a:b..tp:a:b", "both tracepoints");
        wrong("s=tp:syscalls:sys_enter_read..tp:a:b", "write syscall:read");
        wrong("s=tp:sched:sched_switch..tp:a:b", "inside its scheduler");
        for deep in [
            "kmem:kfree",
            "tlb:tlb_flush",
            "x86_fpu:x86_fpu_regs_activated",
            "x86_fpu:x86_fpu_regs_deactivated",
            "msr:write_msr",
            "vmscan:mm_vmscan_direct_reclaim_begin",
            "vmscan:mm_shrink_slab_start",
            "compaction:mm_compaction_begin",
            // The kernel knows events by name alone.
            "a:tlb_flush",
        ] {
            wrong(&format!("s=tp:a:b..tp:{deep}"), "inside its scheduler");
            wrong(&format!("s=tp:{deep}..tp:a:b"), "inside its scheduler");
        }
        wrong("s=tp:a:b..tp:c:d,class=arg0:str", "strings of the kernel are not read");
        wrong("s=tp:a:b..tp:c:d,class=arg0", "argK:int");
        wrong("s=tp:a:b..tp:c:d,class=arg12:int", "K from 0 to 11");
    }
}
