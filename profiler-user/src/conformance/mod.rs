//! Proof that an instruction does under a probe what it does without one.
//!
//! A child of our own runs each form as it is and under a probe, at the same addresses, in up to three states: general
//! registers, flags with TF, x87, vector and mask registers, memory and signals must agree. The probes are made *before*
//! the child maps the code: the kernel then leaves those that it refuses unarmed, where it would refuse the whole link
//! otherwise. A form at which the child dies is skipped in the next child.
//!
//! In: samples of forms. Out: an [`Outcome`] for each. The whole table is made outside CI by `cargo xtask conformance`;
//! CI runs the accepted forms again, and so does calibration on a kernel that the table was not made on.
//!
//! Not compared: the address of the last x87 instruction, RF, and what lies below the stack pointer at a five-byte nop
//! (the optimised probe overwrites it; sites are chosen so that nothing lives there).

mod cell;
mod child;
mod machine;
mod prepare;

pub(crate) use child::{Forms, Order};

use crate::calibrate::{CalibrateError, ChildCommand, Worker};
use crate::inspect::forms::{self, Form};
use crate::prober::{AttachGroup, Kernel, LinkKind, Site};
use profiler_core::class::ClassId;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Cells that are probed by one link: what a dying child makes us run again.
const BATCH: usize = 4096;
/// Forms at which children of one batch may die before something else is wrong.
const MAX_DEATHS: usize = 400;

pub use prepare::STATES;

/// What became of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The same with and without a probe.
    Agrees,
    /// Bits: 1 way out or signal, 2 flags, 4 general registers, 8 extended state, 16 memory.
    Differs(u32),
    /// The kernel put no breakpoint there.
    KernelRefuses,
    /// It ran to its end in no state: this CPU lacks it, or it may not be used here. The last signal.
    NeverRuns(u32),
    /// The child died of it.
    Kills,
    /// It could not be run: no place for its operand.
    Unrun,
}

/// What became of a form, and what the kernel did to run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The outcome.
    pub outcome: Outcome,
    /// It was the first of its child that the kernel single-stepped (only where that was asked for).
    pub first_stepped: bool,
}

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// States that each form is run in, at most [`STATES`].
    pub states: usize,
    /// Look for the first form of each batch that the kernel single-steps: slow.
    pub watch_steps: bool,
}

/// Runs forms, given by samples, in children that `command` starts.
///
/// # Errors
/// The kernel attaches nothing, or children do not start.
pub fn run(
    kernel: &Kernel,
    command: &ChildCommand,
    samples: &[Vec<u8>],
    options: RunOptions,
) -> Result<Vec<Verdict>, CalibrateError> {
    let mut verdicts = Vec::with_capacity(samples.len());
    for batch in samples.chunks(BATCH) {
        let mut worker = Worker::start(command)?;
        verdicts.extend(run_batch(kernel, command, &mut worker, batch, options)?);
    }
    Ok(verdicts)
}

/// Of the accepted forms those that must not be probed on the running kernel. One of each [`Form::group`] is run, in one
/// state (all of them would take some seconds): if it differs, or the kernel refuses it, all of its group are dropped. What
/// this CPU lacks stays, since no program of it runs that.
///
/// # Errors
/// As [`run`].
pub(crate) fn dropped_here(kernel: &Kernel, command: &ChildCommand) -> Result<Vec<Form>, CalibrateError> {
    let mut groups: BTreeMap<_, Vec<Vec<u8>>> = BTreeMap::new();
    for sample in forms::samples() {
        groups.entry(Form::group(&sample)).or_default().push(sample);
    }
    let samples: Vec<Vec<u8>> = groups.values().map(|group| group[0].clone()).collect();
    let mut worker = Worker::start(command)?;
    let options = RunOptions { states: 1, watch_steps: false };
    // One link for all: making and closing links is most of the time.
    let verdicts = run_batch(kernel, command, &mut worker, &samples, options)?;
    let bad = groups.values().zip(&verdicts).filter(|(_, verdict)| !harmless(verdict.outcome));
    Ok(bad.flat_map(|(group, _)| group).filter_map(|sample| Form::of(sample).ok()).collect())
}

fn harmless(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Agrees | Outcome::NeverRuns(_))
}

/// The forms that must not be probed here.
#[must_use]
pub fn dropped(samples: &[Vec<u8>], verdicts: &[Verdict]) -> Vec<Form> {
    let pairs = samples.iter().zip(verdicts);
    pairs
        .filter(|(_, verdict)| !harmless(verdict.outcome))
        .filter_map(|(sample, _)| Form::of(sample).ok())
        .collect()
}

fn run_batch(
    kernel: &Kernel,
    command: &ChildCommand,
    worker: &mut Worker,
    samples: &[Vec<u8>],
    options: RunOptions,
) -> Result<Vec<Verdict>, CalibrateError> {
    let mut code = vec![0_u8; samples.len() * cell::CELL];
    let mut skip = BTreeSet::new();
    let mut killed = BTreeSet::new();
    for (i, (sample, place)) in samples.iter().zip(code.chunks_exact_mut(cell::CELL)).enumerate() {
        match cell::cell(sample, i) {
            Some(cell) => place.copy_from_slice(&cell),
            None => {
                skip.insert(i);
            }
        }
    }
    loop {
        let files = Files::new(&code, samples.len(), skip.iter().chain(&killed).copied())?;
        let killer = match attempt(kernel, worker, &files, samples.len(), options) {
            Ok(()) => {
                return files.verdicts(samples.len()).map(|words| {
                    let outcome = |(i, word)| Verdict {
                        outcome: judge(word, skip.contains(&i), killed.contains(&i)),
                        first_stepped: word & child::STEPPED != 0,
                    };
                    first_steps_only(words.into_iter().enumerate().map(outcome).collect())
                });
            }
            Err(error @ (CalibrateError::Answer(_) | CalibrateError::Child(_))) => {
                files.progress()?.ok_or(error)?
            }
            Err(other) => return Err(other),
        };
        if !killed.insert(killer) || killed.len() > MAX_DEATHS {
            return Err(CalibrateError::Answer(format!("{} forms ended the child", killed.len())));
        }
        *worker = Worker::start(command)?;
    }
}

/// Once the kernel has its area it keeps it: only the first says something.
fn first_steps_only(mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
    let mut seen = false;
    for verdict in &mut verdicts {
        verdict.first_stepped &= !seen;
        seen |= verdict.first_stepped;
    }
    verdicts
}

fn judge(word: u32, skipped: bool, killed: bool) -> Outcome {
    if killed {
        Outcome::Kills
    } else if skipped || word & child::UNRUN != 0 {
        Outcome::Unrun
    } else if word & child::ARMED == 0 {
        Outcome::KernelRefuses
    } else if word & child::DIFFERS != 0 {
        Outcome::Differs(word & child::DIFFERS)
    } else if word >> child::CLEAN_AT & 7 == 0 {
        Outcome::NeverRuns(word >> child::SIGNAL_AT & 0xf)
    } else {
        Outcome::Agrees
    }
}

fn attempt(
    kernel: &Kernel,
    worker: &mut Worker,
    files: &Files,
    cells: usize,
    options: RunOptions,
) -> Result<(), CalibrateError> {
    let [native, probed] = [false, true].map(|probed| {
        format!(
            "{} {} {} {} {cells} {} {}",
            if probed { "forms-probed" } else { "forms" },
            std::process::id(),
            files.code[usize::from(probed)].as_raw_fd(),
            files.results.as_raw_fd(),
            options.states.min(STATES),
            u8::from(options.watch_steps),
        )
    });
    worker.order(&native)?;
    let sites = (0..cells).map(|i| Site::entry(ClassId(0), (i * cell::CELL) as u64));
    let group = AttachGroup {
        module: format!("/proc/self/fd/{}", files.code[1].as_raw_fd()).into(),
        pid: worker.pid(),
        kind: LinkKind::Empty,
        sites: sites.collect(),
    };
    let attached = kernel.attach(&group)?;
    let done = worker.order(&probed);
    drop(attached.link);
    done
}

/// The code twice, since a file that was probed once may keep breakpoints for a moment, and the results.
struct Files {
    code: [File; 2],
    results: File,
}

impl Files {
    fn new(code: &[u8], cells: usize, skipped: impl Iterator<Item = usize>) -> Result<Self, CalibrateError> {
        let whole = code.len().next_multiple_of(4096) as u64;
        let text = || -> io::Result<File> {
            let file = memory_file()?;
            file.write_all_at(code, 0)?;
            file.set_len(whole)?;
            Ok(file)
        };
        let make = || -> io::Result<Self> {
            let results = memory_file()?;
            results.set_len(child::Results::bytes(cells) as u64)?;
            for i in skipped {
                results.write_all_at(&child::SKIP.to_le_bytes(), 4096 + i as u64 * 4)?;
            }
            Ok(Self { code: [text()?, text()?], results })
        };
        make().map_err(CalibrateError::Child)
    }

    fn verdicts(&self, cells: usize) -> Result<Vec<u32>, CalibrateError> {
        let mut bytes = vec![0; cells * 4];
        self.results.read_exact_at(&mut bytes, 4096).map_err(CalibrateError::Child)?;
        let word = |chunk: &[u8]| u32::from_le_bytes(chunk.try_into().unwrap_or_default());
        Ok(bytes.chunks_exact(4).map(word).collect())
    }

    /// The cell that was being run.
    fn progress(&self) -> Result<Option<usize>, CalibrateError> {
        let mut word = [0; 8];
        self.results.read_exact_at(&mut word, 0).map_err(CalibrateError::Child)?;
        Ok(usize::try_from(u64::from_le_bytes(word)).ok().and_then(|n| n.checked_sub(1)))
    }
}

fn memory_file() -> io::Result<File> {
    // SAFETY: the name ends in NUL.
    let fd = unsafe { libc::memfd_create(c"tithe-forms".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
