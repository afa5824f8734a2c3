//! Tracepoints of the kernel as bounds: what tracefs tells of them. How they are written is in [`crate::config`].

use super::super::Agent;
use crate::config::{Bound, Bounds, OperationSpec};
use crate::failure::Failure;
use crate::prober::{KernelError, TracepointBound, TracepointWatch};
use std::io;
use std::path::{Path, PathBuf};

/// Where tracefs is mounted, if it is.
const EVENTS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];
/// Names that an error lists.
const MOST_NAMES: usize = 12;

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

impl Agent {
    /// Lets the tracepoints that bound an operation do so from now on. `None`: something else bounds it.
    ///
    /// # Errors
    /// There is no such tracepoint or argument, or the kernel refuses the program.
    pub(super) fn screen_tracepoints(
        &self,
        number: u32,
        spec: &OperationSpec,
    ) -> Result<Option<TracepointWatch>, Failure> {
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
        match self.attach.kernel().watch_tracepoints(&bounds, self.journal.meta.pid) {
            Ok(watch) => Ok(Some(watch)),
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
}
