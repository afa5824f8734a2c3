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
use crate::inspect::forms::{self, Decoded, Extension, Form};
use crate::prober::{AttachGroup, Kernel, LinkKind, Site};
use profiler_core::class::ClassId;
use rustix::fs::MemfdFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Cells that are probed by one link: what a dying child makes us run again.
const BATCH: usize = 4096;
/// Forms at which children of one batch may die before something else is wrong.
const MAX_DEATHS: usize = 400;

/// CPU time that no form takes; those that loop are ended by a timer before.
const SPIN: Duration = Duration::from_secs(1);
/// How long a child that does not get on is watched: does it run, or wait for a CPU?
const WATCH: Duration = Duration::from_secs(20);

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
pub struct FormRun {
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
) -> Result<Vec<FormRun>, CalibrateError> {
    let mut verdicts = Vec::with_capacity(samples.len());
    for batch in samples.chunks(BATCH) {
        let mut worker = Worker::start(command)?;
        verdicts.extend(run_batch(kernel, command, &mut worker, batch, options)?);
    }
    Ok(verdicts)
}

/// The sample of a form that is relative to the next instruction, with those registers that the kernel's choice depends on:
/// it rewrites the operand to rsi, rdi or rbx, whichever neither the reg field nor vvvv names. Empty for other forms.
#[must_use]
pub fn relative_variants(sample: &[u8]) -> Vec<Vec<u8>> {
    const RSI: u8 = 6;
    const RDI: u8 = 7;
    let Ok(decoded) = Decoded::of(sample, 0x1000) else { return Vec::new() };
    let at = decoded.encoding.modrm_at;
    if !decoded.insn.is_ip_rel_memory_operand() || sample.get(at).is_none_or(|modrm| modrm & 0xc7 != 5) {
        return Vec::new();
    }
    // The prefix ends in the byte that holds vvvv, inverted; EVEX has one more. Then comes the opcode.
    let vvvv_at = match decoded.encoding.extension {
        Extension::Vex2 { .. } | Extension::Vex3 { .. } => Some(at - 2),
        Extension::Evex { .. } => Some(at - 3),
        Extension::None | Extension::Rex { .. } => None,
    };
    let variant = |(reg, vvvv): (u8, Option<u8>)| {
        let mut bytes = sample.to_vec();
        bytes[at] = sample[at] & 0xc7 | reg << 3;
        if let Some(vvvv) = vvvv {
            let place = vvvv_at?;
            bytes[place] = sample[place] & !0x78 | (!vvvv & 0xf) << 3;
        }
        // Where a field is no register, another form comes of it, or none.
        Form::of(&bytes).is_ok_and(|form| form == decoded.form).then_some(bytes)
    };
    let registers =
        [(RSI, None), (RDI, None), (RSI, Some(RSI)), (RSI, Some(RDI)), (RDI, Some(RSI)), (RDI, Some(RDI))];
    registers.into_iter().filter_map(variant).collect()
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
pub fn dropped(samples: &[Vec<u8>], verdicts: &[FormRun]) -> Vec<Form> {
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
) -> Result<Vec<FormRun>, CalibrateError> {
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
                    let outcome = |(i, word)| FormRun {
                        outcome: judge(word, skip.contains(&i), killed.contains(&i)),
                        first_stepped: word & child::STEPPED != 0,
                    };
                    first_steps_only(words.into_iter().enumerate().map(outcome).collect())
                });
            }
            Err(error) if killed_by_form(worker, &files, &error, WATCH) => files.progress()?.ok_or(error)?,
            Err(other) => return Err(other),
        };
        if !killed.insert(killer) || killed.len() > MAX_DEATHS {
            return Err(CalibrateError::Answer(format!("{} forms ended the child", killed.len())));
        }
        *worker = Worker::start(command)?;
    }
}

/// Signals by which an instruction ends a process. By others somebody else does, as the kernel does that has no memory left.
const OWN_SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE];

/// Whether the form that the child was running is the reason why it does not answer: the child failed or died of an
/// instruction's signal, or it went on using its CPU at one form, which none needs. A child that just gets no CPU, or that
/// somebody killed, says nothing of the form.
fn killed_by_form(worker: &mut Worker, files: &Files, error: &CalibrateError, watch: Duration) -> bool {
    match error {
        CalibrateError::Answer(_) | CalibrateError::Child(_) => {
            let by_form =
                |end: ExitStatus| end.signal().map_or(!end.success(), |signal| OWN_SIGNALS.contains(&signal));
            return worker.ended().is_some_and(by_form);
        }
        CalibrateError::Slow(_) => {}
        _ => return false,
    }
    let begin = Instant::now();
    let (progress, Some(before)) = (files.progress().ok(), worker.cpu_time()) else { return false };
    while begin.elapsed() < watch && files.progress().ok() == progress {
        if worker.cpu_time().is_some_and(|now| now.saturating_sub(before) >= SPIN) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// Once the kernel has its area it keeps it: only the first says something.
fn first_steps_only(mut verdicts: Vec<FormRun>) -> Vec<FormRun> {
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
    let progress = || files.progress().ok().flatten().map_or(0, |cell| cell as u64 + 1);
    worker.long_order(&native, progress)?;
    let sites = (0..cells).map(|i| Site::entry(ClassId(0), (i * cell::CELL) as u64));
    let group = AttachGroup {
        module: format!("/proc/self/fd/{}", files.code[1].as_raw_fd()).into(),
        pid: worker.pid(),
        kind: LinkKind::Empty,
        sites: sites.collect(),
    };
    let attached = kernel.attach(&group)?;
    let done = worker.long_order(&probed, progress);
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
    Ok(File::from(rustix::fs::memfd_create(c"tithe-forms", MemfdFlags::CLOEXEC)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(200);

    /// A child that says it is ready, reads an order and runs `then`; what its order leads to.
    fn order(then: &str, progress: impl Fn() -> u64) -> (Worker, Result<(), CalibrateError>) {
        let command = ChildCommand {
            program: "sh".into(),
            args: vec!["-c".into(), format!("echo ready 1 2 >&0; read order; {then}").into()],
            env: Vec::new(),
        };
        let mut worker = Worker::start(&command).unwrap().with_patience(PATIENCE);
        let done = worker.long_order("forms", progress);
        (worker, done)
    }

    fn killed(then: &str, watch: Duration) -> bool {
        let files = Files::new(&[], 1, std::iter::empty()).unwrap();
        let (mut worker, done) = order(then, || 7);
        killed_by_form(&mut worker, &files, &done.unwrap_err(), watch)
    }

    #[test]
    fn only_a_child_that_ended_or_spins_was_killed_by_a_form() {
        let (long, short) = (Duration::from_secs(60), Duration::from_secs(1));
        assert!(killed("kill -SEGV $$", long));
        assert!(killed("exit 3", long));
        assert!(!killed("kill -KILL $$", long), "as the kernel does that has no memory left");
        assert!(!killed("kill -TERM $$", long), "somebody ended it");
        assert!(killed("while :; do :; done", long));
        assert!(!killed("kill -STOP $$", short), "it was stopped");
        assert!(!killed("exec sleep 60", short), "it is slow");
        assert!(!killed("echo failed: this CPU has no xsave >&0; exec sleep 60", short));
    }

    #[test]
    fn relative_operands_are_varied_in_the_registers_that_the_kernel_looks_at() {
        let names = |sample: &[u8]| -> Vec<String> {
            let all = relative_variants(sample);
            all.iter().map(|bytes| Decoded::of(bytes, 0).unwrap().insn.to_string()).collect()
        };
        assert_eq!(names(&[0x8b, 0x05, 5, 5, 5, 5]), ["mov esi,[rel 505050Bh]", "mov edi,[rel 505050Bh]"]);
        let three = names(&[0xc5, 0xf8, 0x58, 0x05, 5, 5, 5, 5]);
        assert_eq!(three.len(), 6);
        assert_eq!(three[3], "vaddps xmm6,xmm7,[rel 505050Dh]");
        assert_eq!(
            names(&[0x62, 0xf1, 0x7c, 0x48, 0x58, 0x05, 5, 5, 5, 5])[4],
            "vaddps zmm7,zmm6,[rel 505050Fh]"
        );
        // The reg field tells instructions apart, or vvvv must be empty.
        assert_eq!(names(&[0xff, 0x15, 5, 5, 5, 5]), Vec::<String>::new());
        assert_eq!(names(&[0xc5, 0xf8, 0x28, 0x05, 5, 5, 5, 5]).len(), 2);
        assert_eq!(names(&[0x8b, 0x03]), Vec::<String>::new());
    }

    #[test]
    fn a_slow_child_is_waited_for_as_long_as_it_gets_on() {
        let cell = std::cell::Cell::new(0);
        let (_, done) = order("sleep 1; echo done >&0", || {
            cell.set(cell.get() + 1);
            cell.get()
        });
        assert!(done.is_ok(), "{done:?}");
        let (_, done) = order("sleep 1; echo done >&0", || 7);
        assert!(matches!(done, Err(CalibrateError::Slow(PATIENCE))), "{done:?}");
    }
}
