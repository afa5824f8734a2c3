//! Tracepoints of the kernel as bounds: how they are written, which are refused, what tracefs tells of them.

use super::super::Session;
use super::screens::Screen;
use super::spec::{Bound, Bounds, ClassArgument, OperationSpec, argument_index};
use crate::failure::Failure;
use crate::prober::operation::{ARGUMENT_INT, ARGUMENT_LONG};
use crate::prober::{KernelError, TRACEPOINT_ARGUMENTS, TracepointBound};
use std::io;
use std::path::{Path, PathBuf};

/// Where tracefs is mounted, if it is.
const EVENTS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];
/// Names that an error lists.
const MOST_NAMES: usize = 12;

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

/// `CATEGORY:EVENT`, or with a slash, as `--progress` has it.
pub(super) fn bound(text: &str, event: &str) -> Result<Bound, String> {
    let wrong = || {
        format!(
            "'{text}': write tp:CATEGORY:EVENT, like 'tp:signal:signal_deliver'; 'ls /sys/kernel/tracing/events' lists the \
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

/// What tracefs tells of an event.
#[derive(Debug, PartialEq, Eq)]
enum Listing {
    /// Nothing: it is not mounted, or not for us.
    Unreadable,
    /// The event is there.
    Here,
    /// It is in this other category.
    Elsewhere(String),
    /// There is no such category.
    NoCategory,
    /// The category has these.
    Others(Vec<String>),
}

/// Names of the folders in a folder.
fn folders(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

fn look(events: Option<&Path>, category: &str, name: &str) -> Listing {
    let Some(events) = events else { return Listing::Unreadable };
    let categories = folders(events);
    if categories.is_empty() {
        return Listing::Unreadable;
    }
    if events.join(category).join(name).is_dir() {
        return Listing::Here;
    }
    match categories.iter().find(|other| events.join(other).join(name).is_dir()) {
        Some(other) => Listing::Elsewhere(other.clone()),
        None if !categories.iter().any(|other| other == category) => Listing::NoCategory,
        None => Listing::Others(folders(&events.join(category))),
    }
}

/// How to find what there is.
fn advice(listing: &Listing, category: &str) -> String {
    match listing {
        Listing::Unreadable => format!(
            "'ls /sys/kernel/tracing/events/{category}' lists those of its category (as root; where that is empty, 'mount -t \
             tracefs tracefs /sys/kernel/tracing' first)"
        ),
        Listing::NoCategory => {
            format!("there is no category '{category}'; 'ls /sys/kernel/tracing/events' lists the categories")
        }
        Listing::Others(names) if names.len() <= MOST_NAMES => {
            format!("its category has {}", names.join(", "))
        }
        Listing::Here | Listing::Elsewhere(_) | Listing::Others(_) => {
            format!("'ls /sys/kernel/tracing/events/{category}' lists those of its category")
        }
    }
}

impl Session {
    /// Lets the tracepoints that bound an operation do so from now on. `None`: something else bounds it.
    ///
    /// # Errors
    /// There is no such tracepoint or argument, or the kernel refuses the program.
    pub(super) fn screen_tracepoints(
        &self,
        number: u32,
        spec: &OperationSpec,
        base_class: u32,
    ) -> Result<Option<Screen>, Failure> {
        let Bounds::Pair(
            Bound::Tracepoint { category: begin_category, name: begin },
            Bound::Tracepoint { category: end_category, name: end },
        ) = &spec.bounds
        else {
            return Ok(None);
        };
        let usage = |why: String| Failure::usage(format!("--operation '{}': {why}", spec.text));
        let events = EVENTS.iter().map(PathBuf::from).find(|path| !folders(path).is_empty());
        for (category, name) in [(begin_category, begin), (end_category, end)] {
            if let Listing::Elsewhere(other) = look(events.as_deref(), category, name) {
                return Err(usage(format!(
                    "'{name}' is a tracepoint of the category '{other}': write tp:{other}:{name}"
                )));
            }
        }
        let argument = spec.class.map(|class| class.index);
        let bounds = [
            TracepointBound { name: begin.clone(), operation: number, ends: false, argument },
            TracepointBound { name: end.clone(), operation: number, ends: true, argument: None },
        ];
        match self.attach.kernel().watch_tracepoints(&bounds, self.meta.pid) {
            Ok(watch) => Ok(Some(Screen::of_tracepoints(watch, number, base_class))),
            Err(KernelError::TracepointLink { name, source }) => {
                let (which, category) =
                    if name == *begin { ("begin", begin_category) } else { ("end", end_category) };
                let what = format!("its {which} 'tp:{category}:{name}'");
                let why = match (source.raw_os_error(), argument) {
                    (Some(libc::ENOENT), _) => {
                        let listing = look(events.as_deref(), category, &name);
                        format!("this kernel has no tracepoint '{name}'; {}", advice(&listing, category))
                    }
                    (Some(libc::EINVAL), Some(k)) if name == *begin => format!(
                        "it has no argument {k}: arguments are those of its TP_PROTO in the kernel's source (include/trace/events), \
                         from 0, and not the fields of its 'format' file"
                    ),
                    _ => return Err(cannot(&what, &source)),
                };
                Err(usage(format!("{what}: {why}")))
            }
            Err(error) => Err(Failure::attach(error)),
        }
    }
}

fn cannot(what: &str, source: &io::Error) -> Failure {
    Failure::attach(anyhow::anyhow!("{what} cannot be attached: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<OperationSpec, String> {
        text.parse()
    }

    #[test]
    fn tracefs_is_asked_if_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        for event in ["task/task_newtask", "task/task_rename", "signal/signal_deliver"] {
            std::fs::create_dir_all(folder.path().join(event)).unwrap();
        }
        std::fs::write(folder.path().join("task/enable"), "0").unwrap();
        let look = |category, name| look(Some(folder.path()), category, name);
        assert_eq!(look("task", "task_rename"), Listing::Here);
        assert_eq!(look("signal", "task_rename"), Listing::Elsewhere("task".to_owned()));
        assert_eq!(look("tsk", "task_renam"), Listing::NoCategory);
        let others = look("task", "task_renam");
        assert_eq!(others, Listing::Others(vec!["task_newtask".to_owned(), "task_rename".to_owned()]));
        assert_eq!(advice(&others, "task"), "its category has task_newtask, task_rename");
        let empty = tempfile::tempdir().unwrap();
        for nothing in [None, Some(empty.path()), Some(&*empty.path().join("none"))] {
            let listing = super::look(nothing, "task", "task_rename");
            assert_eq!(listing, Listing::Unreadable);
            assert!(advice(&listing, "task").contains("mount -t tracefs"));
        }
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
        wrong("s=tp:task_rename..tp:a:b", "tp:CATEGORY:EVENT");
        wrong("s=tp:task:..tp:a:b", "tp:CATEGORY:EVENT");
        wrong("s=tp:a:b..tp:../x:y", "tp:CATEGORY:EVENT");
        wrong("s=tp:a:b..tp:a:b c", "tp:CATEGORY:EVENT");
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
