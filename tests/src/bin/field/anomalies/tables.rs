//! What is taken of a recording: its calls, its samples and what both cost.

use super::target::FUNCTIONS;
use anyhow::{Context, Result, ensure};
use profiler_core::recording::{Charge, ClassRow, EventRow, FrameRow, LedgerRow, SampleRow};
use profiler_user::recording::Stream;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// What a sample of a modelled function shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shown {
    /// Its own code, or that of a library.
    User,
    /// The kernel serves a page fault.
    PageFault,
    /// The kernel reads or writes files.
    Io,
    /// Another part of the kernel.
    Kernel,
    /// Nothing but the function.
    Nothing,
}

impl Shown {
    /// Those that say something.
    pub const ALL: [Shown; 4] = [Shown::User, Shown::PageFault, Shown::Io, Shown::Kernel];

    /// The resource that it names, in the words of the agent's own lines; `None`: none.
    pub fn resource(self) -> Option<&'static str> {
        match self {
            Shown::User => Some("CPU"),
            Shown::PageFault => Some("page faults"),
            Shown::Io => Some("I/O"),
            Shown::Kernel => Some("kernel"),
            Shown::Nothing => None,
        }
    }
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When, ktime ns.
    pub at_ns: u64,
    /// Number of its stack.
    pub stack: u64,
    /// The modelled function that it lies in, and what it shows; `None`: it lies in another.
    pub of: Option<(usize, Shown)>,
}

/// What one way to watch has cost in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Rows of the recording: calls, or samples.
    pub rows: u64,
    /// Their bytes on the disk, without the stacks of samples.
    pub bytes: u64,
    /// CPU time that they took of the program, ns.
    pub cost_ns: f64,
}

/// What is taken of a recording.
pub struct Tables {
    /// Recorded calls of modelled functions, by the number of the function.
    pub calls: Vec<(usize, EventRow)>,
    /// All samples, in the order of their times.
    pub samples: Vec<Sample>,
    /// What the calls cost.
    pub price_of_calls: Price,
    /// What the samples cost.
    pub price_of_samples: Price,
    /// Bytes of the stacks of samples on the disk: each stack is there once.
    pub stack_bytes: u64,
    /// CPU time of the program, ns.
    pub cpu_ns: f64,
    /// Begin and end of the recording, ktime ns.
    pub span_ns: (u64, u64),
}

impl Tables {
    /// Reads a recording.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is damaged.
    pub fn read(path: &Path) -> Result<Tables> {
        let mut stream = Stream::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let end_ns = stream.meta().end_ns.context("the recording has no end")?;
        let span_ns = (stream.meta().start_ns, end_ns);
        let classes: HashMap<u32, usize> = stream
            .table::<ClassRow>()?
            .into_iter()
            .filter_map(|class| Some((class.class_id, number_of(&class.symbol)?)))
            .collect();
        let mut calls = Vec::new();
        stream.each(|row: EventRow| {
            if let Some(function) = classes.get(&row.class_id) {
                calls.push((*function, row));
            }
        })?;
        calls.sort_by_key(|(_, row)| row.time_ns);
        let mut frames: HashMap<u64, Vec<FrameRow>> = HashMap::new();
        stream.each(|row: FrameRow| frames.entry(row.stack_id).or_default().push(row))?;
        let shown: HashMap<u64, Option<(usize, Shown)>> =
            frames.into_iter().map(|(id, frames)| (id, shown_by(&frames))).collect();
        let rows = stream.table::<SampleRow>()?;
        let mut samples: Vec<Sample> = rows
            .iter()
            .map(|row| Sample {
                at_ns: row.time_ns,
                stack: row.stack_id,
                of: shown.get(&row.stack_id).copied().flatten(),
            })
            .collect();
        samples.sort_by_key(|sample| sample.at_ns);
        let ledger = stream.table::<LedgerRow>()?;
        ensure!(stream.damage().is_empty(), "{} is damaged: {}", path.display(), stream.damage().join("; "));
        let modelled: BTreeSet<u32> = classes.keys().copied().collect();
        let of_calls = |row: &LedgerRow| {
            matches!(row.charge, Charge::Traced | Charge::Burst)
                && row.class_id.is_some_and(|id| modelled.contains(&id))
        };
        let cost = |is: &dyn Fn(&LedgerRow) -> bool| {
            ledger.iter().filter(|row| is(row)).map(|row| row.cost_ns as f64).sum::<f64>()
        };
        Ok(Tables {
            price_of_calls: Price {
                rows: calls.len() as u64,
                bytes: bytes_of(path, &["events-"])?,
                cost_ns: cost(&of_calls),
            },
            price_of_samples: Price {
                rows: samples.len() as u64,
                bytes: bytes_of(path, &["samples-"])?,
                cost_ns: cost(&|row| row.charge == Charge::Samples),
            },
            stack_bytes: bytes_of(path, &["stacks-"])?,
            cpu_ns: target_cpu_ns(&ledger),
            span_ns,
            calls,
            samples,
        })
    }
}

impl Tables {
    /// Bytes that some of the samples take, with their stacks.
    pub fn bytes_of(&self, kept: &[Sample]) -> f64 {
        let part = |some: usize, all: usize| some as f64 / all.max(1) as f64;
        let stacks =
            |samples: &[Sample]| samples.iter().map(|sample| sample.stack).collect::<BTreeSet<u64>>().len();
        self.price_of_samples.bytes as f64 * part(kept.len(), self.samples.len())
            + self.stack_bytes as f64 * part(stacks(kept), stacks(&self.samples))
    }
}

/// CPU time of the program over all intervals; each row of an interval has it.
fn target_cpu_ns(ledger: &[LedgerRow]) -> f64 {
    let intervals: HashMap<u64, u64> = ledger.iter().map(|row| (row.time_ns, row.target_cpu_ns)).collect();
    intervals.values().map(|ns| *ns as f64).sum()
}

fn number_of(symbol: &str) -> Option<usize> {
    FUNCTIONS.iter().position(|function| function.symbol == symbol)
}

/// Bytes of a recording's files whose names begin so.
fn bytes_of(recording: &Path, begins: &[&str]) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(recording)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if begins.iter().any(|begin| name.starts_with(begin)) {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// The modelled function that a stack lies in, and what the frames inside of it show.
fn shown_by(frames: &[FrameRow]) -> Option<(usize, Shown)> {
    /// Parts of names of functions of the kernel that serve page faults, and that read or write files. Of the kernel a stack has the innermost function only.
    const FAULTS: [&str; 9] = [
        "fault",
        "clear_page",
        "clear_user",
        "anonymous_page",
        "memcg",
        "mem_cgroup",
        "alloc_pages",
        "rmqueue",
        "freelist",
    ];
    const FILES: [&str; 17] = [
        "read",
        "write",
        "filemap",
        "folio",
        "ext4",
        "xfs",
        "btrfs",
        "iomap",
        "blk",
        "bio",
        "fsync",
        "iter",
        "copy_to_user",
        "copy_from_user",
        "rep_movs",
        "xas_",
        "virt",
    ];
    let function = frames.iter().find_map(|frame| number_of(&frame.function))?;
    let kernel: Vec<&str> =
        frames.iter().filter(|frame| frame.module == "[kernel]").map(|frame| &*frame.function).collect();
    let has = |parts: &[&str]| kernel.iter().any(|name| parts.iter().any(|part| name.contains(part)));
    let shown = if kernel.is_empty() {
        Shown::User
    } else if has(&FAULTS) {
        Shown::PageFault
    } else if has(&FILES) {
        Shown::Io
    } else {
        Shown::Kernel
    };
    Some((function, shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(depth: u32, module: &str, function: &str) -> FrameRow {
        FrameRow {
            stack_id: 1,
            depth,
            address: 0,
            module: module.to_owned(),
            function: function.to_owned(),
            file: String::new(),
            line: 0,
            inlined: false,
            class_id: None,
        }
    }

    #[test]
    fn a_stack_says_what_its_function_does() {
        let program = [frame(3, "/x/anomalies", "tally"), frame(4, "/x/anomalies", "work")];
        let with = |kernel: &[&str]| {
            let mut all: Vec<FrameRow> = kernel.iter().map(|name| frame(0, "[kernel]", name)).collect();
            all.extend(program.clone());
            shown_by(&all)
        };
        assert_eq!(with(&[]), Some((2, Shown::User)));
        assert_eq!(with(&["clear_page_erms"]), Some((2, Shown::PageFault)));
        assert_eq!(with(&["_copy_to_iter"]), Some((2, Shown::Io)));
        assert_eq!(with(&["_raw_spin_unlock_irqrestore"]), Some((2, Shown::Kernel)));
        assert_eq!(shown_by(&[frame(0, "/x/anomalies", "other_work")]), None);
    }

    #[test]
    fn half_of_the_samples_take_half_of_their_bytes_and_the_stacks_that_they_have() {
        let sample = |at_ns: u64, stack: u64| Sample { at_ns, stack, of: None };
        let tables = Tables {
            calls: Vec::new(),
            samples: vec![sample(1, 7), sample(2, 7), sample(3, 8), sample(4, 9)],
            price_of_calls: Price::default(),
            price_of_samples: Price { rows: 4, bytes: 400, cost_ns: 0.0 },
            stack_bytes: 3_000,
            cpu_ns: 1.0,
            span_ns: (0, 9),
        };
        assert_eq!(tables.bytes_of(&tables.samples), 3_400.0);
        assert_eq!(tables.bytes_of(&tables.samples[..2]), 1_200.0);
        assert_eq!(tables.bytes_of(&[]), 0.0);
    }

    #[test]
    fn the_programs_cpu_time_counts_once_in_each_interval() {
        let row = |time_ns: u64, charge: Charge| LedgerRow {
            time_ns,
            interval_ns: 1,
            charge,
            class_id: None,
            units: 1,
            cost_ns: 5,
            target_cpu_ns: 700,
            allowed_ns: 0,
        };
        let ledger = [row(1, Charge::Samples), row(1, Charge::Traced), row(2, Charge::Samples)];
        assert_eq!(target_cpu_ns(&ledger), 1_400.0);
    }
}
