//! Takes breakpoints that nobody owns out of a process.
//!
//! Why there are such: the kernel writes and removes breakpoints page by page, and refuses to touch another process's
//! pages for a thread that has been killed. An agent that gets `SIGKILL` in the middle of attaching or detaching so
//! leaves the rest where it is (`uprobe_unregister` in kernel/events/uprobes.c: "failed to unregister, leaking
//! uprobe"). The target goes on, with right results, but pays the trap of each such breakpoint for as long as it lives.
//!
//! The cure: attach to the same places once more and detach, which finds the breakpoint in place and removes it. It is
//! safe beside other tracers: a breakpoint that somebody owns is shared, and stays. The breakpoint of a USDT probe may have
//! a semaphore, which its notes name: the kernel refuses a second opinion of one place, and lowers it with the breakpoint.
//!
//! A child that the target forked meanwhile has inherited its breakpoints, and may outlive it: children are mended, too
//! ([`heirs`]).
//!
//! In: a PID, in a process of its own (the watchdog's). Out: how many were found. It does not touch a process that a
//! debugger holds: the debugger's breakpoints look the same.

pub mod heirs;

use crate::inspect::maps::{self, Backing, Mapping};
use crate::inspect::semaphores_of;
use crate::prober::{AttachGroup, Kernel, KernelError, KernelOptions, LinkKind, Site};
use crate::target_file::TargetFile;
use heirs::Known;
use profiler_core::class::{ClassId, Tier};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Breakpoint instruction.
const INT3: u8 = 0xcc;
/// What a probe on a five-byte nop is replaced by, and the nops that the kernel does this to.
const CALL: u8 = 0xe8;
const NOP5: [[u8; 5]; 2] = [[0x0f, 0x1f, 0x44, 0x00, 0x00], [0x0f, 0x1f, 0x44, 0x00, 0x08]];
/// Places of one link; with perf-event uprobes (tier D), each of which is slow to close, fewer.
const AT_ONCE: usize = 512;
const AT_ONCE_D: usize = 8;
/// Text is compared in pieces of so many bytes, with this much before and after each: what [`probes`] looks at around a byte.
const PIECE: u64 = 1 << 20;
const BEFORE: u64 = 4;
const AFTER: u64 = 4;
/// Of an entry of `/proc/PID/pagemap`: the page is there, is swapped out, is a page of a file (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
const PAGE: u64 = 4096;
/// The target may map text meanwhile: looked at so often.
const PASSES: usize = 3;
/// Longest search of one process, and of it and its heirs: a mapping of a sparse file may have tens of TiB, and asking for its
/// pages costs some seconds for each.
const LONGEST: Duration = Duration::from_secs(10);
const LONGEST_OF_ALL: Duration = Duration::from_secs(60);

/// Why a process could not be mended.
#[derive(Debug, thiserror::Error)]
pub enum MendError {
    /// The process is gone, or may not be looked into.
    #[error("cannot read the text of process {pid}: {source}")]
    Text {
        /// The process.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A debugger holds it.
    #[error("process {pid} is held by process {tracer}, a debugger: its breakpoints are not touched")]
    Debugged {
        /// The process.
        pid: u32,
        /// The debugger.
        tracer: i64,
    },
    /// The kernel side does not load.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// It has more text than can be looked through.
    #[error(
        "the text of process {pid} or of what it forked could not be looked through in {} s; breakpoints that are left cost it \
         a trap per pass until it ends",
        LONGEST_OF_ALL.as_secs()
    )]
    Long {
        /// The process.
        pid: u32,
    },
    /// Breakpoints that cannot be taken over.
    #[error(
        "{places} breakpoints of process {pid} cannot be taken over to remove them, the first because: {why}; they cost it a trap per pass until it ends"
    )]
    Left {
        /// The process.
        pid: u32,
        /// How many, in the last pass.
        places: usize,
        /// What the kernel said of the first.
        why: String,
    },
}

/// What came of taking over some places.
#[derive(Default)]
struct TakenOver {
    /// Refused by the kernel.
    left: usize,
    /// What it said of the first of those.
    why: Option<String>,
}

impl TakenOver {
    fn add(&mut self, other: Self) {
        self.left += other.left;
        self.why = self.why.take().or(other.why);
    }
}

/// Removes breakpoints without an owner from a process and from those that it forked; returns at how many places that was
/// done. `known`: what was known of the process when it was attached to.
///
/// # Errors
/// [`MendError`], the first one. What can be mended is mended all the same.
pub fn mend(pid: u32, known: Known) -> Result<usize, MendError> {
    let target = heirs::Target::new(pid, known);
    let mut kernel = None;
    let until = Instant::now() + LONGEST_OF_ALL;
    // Somebody else's text is none of ours: a process that ended may have given its number to another one.
    let is_another = known.is_another_than(&Known::of(pid));
    let mut result = if is_another { Ok(0) } else { mend_one(pid, &mut kernel, until) };
    // Whoever is not mended yet may fork meanwhile.
    for _ in 0..PASSES {
        let mut found = 0;
        for heir in target.heirs() {
            if Instant::now() > until {
                return result.and(Err(MendError::Long { pid }));
            }
            match (mend_one(heir, &mut kernel, until), &mut result) {
                (Ok(places), Ok(all)) => {
                    *all += places;
                    found += places;
                }
                (Ok(places), Err(_)) => found += places,
                // It has ended.
                (Err(MendError::Text { .. }), _) | (Err(_), Err(_)) => {}
                (Err(error), Ok(_)) => result = Err(error),
            }
        }
        if found == 0 {
            break;
        }
    }
    result
}

/// The same of one process; loads the kernel side when it is needed.
fn mend_one(pid: u32, kernel: &mut Option<Kernel>, until: Instant) -> Result<usize, MendError> {
    let until = until.min(Instant::now() + LONGEST);
    // It may end meanwhile, and its number become another's.
    let begun = Known::of(pid);
    let mut places = Places::default();
    let mut last = TakenOver::default();
    // Once more than there are passes, to see what became of the last.
    for pass in 0..=PASSES {
        let Look { found, is_whole } = leftovers(pid, until)?;
        if begun.is_another_than(&Known::of(pid)) {
            return Ok(places.gone());
        }
        places.see(&found);
        if found.is_empty() && is_whole {
            break;
        }
        if pass == PASSES {
            is_whole.then_some(()).ok_or(MendError::Long { pid })?;
            break;
        }
        last = TakenOver::default();
        let kernel = match kernel {
            Some(kernel) => &*kernel,
            None => {
                kernel.insert(Kernel::load(&KernelOptions { max_classes: 16, ..KernelOptions::default() })?)
            }
        };
        let at_once = if kernel.tier() == Tier::D { AT_ONCE_D } else { AT_ONCE };
        for (module, offsets) in found {
            let semaphores = semaphores_of(&module);
            for some in offsets.chunks(at_once) {
                if begun.is_another_than(&Known::of(pid)) {
                    return Ok(places.gone());
                }
                let site = |offset: &u64| Site {
                    reference_counter: semaphores.get(offset).copied().unwrap_or(0),
                    ..Site::entry(ClassId(0), *offset)
                };
                last.add(take_over(kernel, &module.path(), pid, some.iter().map(site).collect()));
            }
        }
        if !is_whole {
            return Err(MendError::Long { pid });
        }
    }
    // What the last look found as well may be somebody's own: those breakpoints are shared and stay, and look the same.
    match last.why {
        Some(why) if !places.now.is_empty() => Err(MendError::Left { pid, places: last.left, why }),
        _ => Ok(places.gone()),
    }
}

/// Where breakpoints were seen: device and inode of the file, offset.
type Place = ((u64, u64), u64);

/// Breakpoints of one process, over several looks.
#[derive(Debug, Default)]
struct Places {
    ever: BTreeSet<Place>,
    now: BTreeSet<Place>,
}

impl Places {
    fn see(&mut self, found: &[Found]) {
        let of = |(file, offsets): &Found| {
            let file = file.identity();
            offsets.iter().map(move |offset| (file, *offset)).collect::<Vec<_>>()
        };
        self.now = found.iter().flat_map(of).collect();
        self.ever.extend(&self.now);
    }

    /// How many are there no more.
    fn gone(&self) -> usize {
        self.ever.len() - self.now.len()
    }
}

/// Attaches and detaches, which is what mends.
fn take_over(kernel: &Kernel, module: &Path, pid: u32, sites: Vec<Site>) -> TakenOver {
    let group = AttachGroup { module: module.to_owned(), pid, kind: LinkKind::Empty, sites };
    let (mut taken, refused) = match kernel.attach(&group) {
        Ok(attached) => {
            // Those with a semaphore are tried again and bring their own.
            let plain = attached.refused.iter().find(|r| r.site.reference_counter == 0);
            let why = plain.map(|r| format!("offset {:#x}: {}", r.site.offset, r.error));
            let refused: Vec<Site> = attached.refused.iter().map(|r| r.site).collect();
            (TakenOver { left: refused.len(), why }, refused)
        }
        Err(error) => (TakenOver { left: group.sites.len(), why: Some(error.to_string()) }, group.sites),
    };
    // Somebody may have attached to the probe without its semaphore, as to a function that begins there.
    let (guarded, plain): (Vec<Site>, Vec<Site>) =
        refused.into_iter().partition(|s| s.reference_counter != 0);
    if !guarded.is_empty() {
        let again = guarded.into_iter().map(|site| Site { reference_counter: 0, ..site }).collect();
        let second = take_over(kernel, module, pid, again);
        taken.left = plain.len();
        if plain.is_empty() {
            taken.why = None;
        }
        taken.add(second);
    }
    taken
}

/// Offsets in one file at which breakpoints were found.
type Found = (Arc<TargetFile>, Vec<u64>);

/// What one look through a process found.
struct Look {
    found: Vec<Found>,
    /// It came to the end.
    is_whole: bool,
}

/// Breakpoints in the text of the process that are not in its files. Small mappings come first, so that a huge one takes the
/// time of none.
fn leftovers(pid: u32, until: Instant) -> Result<Look, MendError> {
    let text = |source| MendError::Text { pid, source };
    let tracer = tracer(pid).map_err(text)?;
    if tracer != 0 {
        return Err(MendError::Debugged { pid, tracer });
    }
    let maps = maps::parse(&std::fs::read(format!("/proc/{pid}/maps")).map_err(text)?);
    let memory = File::open(format!("/proc/{pid}/mem")).map_err(text)?;
    let pages = File::open(format!("/proc/{pid}/pagemap")).ok();
    let mut found = Vec::new();
    // The kernel puts no breakpoint into writable or shared text.
    let mut text: Vec<&Mapping> = maps.iter().filter(|m| m.exec && !m.write && !m.shared).collect();
    text.sort_by_key(|m| m.end - m.start);
    let mut is_whole = true;
    for map in text {
        let Backing::File { path, .. } = &map.backing else { continue };
        // A mapping that is gone by now takes its breakpoints with it.
        let Ok(file) = TargetFile::mapped(pid, &map.map_files_name(), path) else { continue };
        let Ok((offsets, to_its_end)) = compare(&memory, pages.as_ref(), &maps, map, &file, until) else {
            continue;
        };
        is_whole &= to_its_end;
        if !offsets.is_empty() {
            found.push((Arc::new(file), offsets));
        }
    }
    Ok(Look { found, is_whole })
}

/// Compares a mapping with its file, piece by piece: a mapping may be of any size. Second: whether it came to the end. What lies behind the file's end cannot run.
/// Pieces without a page of the process's own are the file's.
fn compare(
    memory: &File,
    pages: Option<&File>,
    maps: &[Mapping],
    map: &Mapping,
    file: &TargetFile,
    until: Instant,
) -> io::Result<(Vec<u64>, bool)> {
    let size = (map.end - map.start).min(file.len().saturating_sub(map.offset));
    let mut offsets = Vec::new();
    let mut from = 0;
    while from < size {
        if Instant::now() > until {
            return Ok((offsets, false));
        }
        // Each piece has the bytes around it that judging its first and its last byte takes.
        let before = BEFORE.min(from);
        let to = (from + PIECE).min(size);
        if pages.is_some_and(|pages| !any_private(pages, map.start + from, map.start + to)) {
            from = to;
            continue;
        }
        let first = from - before;
        // OK because a piece has about a MiB.
        let len = ((to + AFTER).min(size) - first) as usize;
        let mut now = vec![0; len];
        memory.read_exact_at(&mut now, map.start + first)?;
        let mut original = vec![0; len];
        read_up_to(file, &mut original, map.offset + first)?;
        let places = probes(&now, &original, map.start + first, maps);
        offsets
            .extend(places.map(|i| first + i).filter(|at| (from..to).contains(at)).map(|at| map.offset + at));
        from = to;
    }
    Ok((offsets, true))
}

/// The process has a copy of its own of one of these pages, as writing a breakpoint makes one; so it is, too, if that cannot be read.
fn any_private(pages: &File, start: u64, end: u64) -> bool {
    let (first, behind) = (start / PAGE, end.div_ceil(PAGE));
    // OK because a piece has about 256 pages.
    let mut entries = vec![0; (behind - first) as usize * 8];
    if pages.read_exact_at(&mut entries, first * 8).is_err() {
        return true;
    }
    let (entries, _) = entries.as_chunks::<8>();
    entries.iter().any(|entry| is_private(u64::from_ne_bytes(*entry)))
}

fn is_private(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
}

/// Where the bytes in memory hold a breakpoint or a call of one that the file's do not, counted from `address`.
fn probes(now: &[u8], original: &[u8], address: u64, maps: &[Mapping]) -> impl Iterator<Item = u64> {
    let place = move |&i: &usize| {
        let nop = || original.get(i..i + 5).is_some_and(|bytes| NOP5.iter().any(|nop| nop == bytes));
        // OK because an index of a slice fits into 64 bits.
        let probe = || now.get(i..i + 5).is_some_and(|code| calls_probe(code, address + i as u64, maps));
        now[i] != original[i]
            && (now[i] == INT3 && stands_alone(now, original, i) || (now[i] == CALL && nop() && probe()))
    };
    // OK because an index of a slice fits into 64 bits.
    (0..now.len()).filter(place).map(|i| i as u64)
}

/// The bytes before a breakpoint are the file's, or breakpoints too: otherwise it may be a part of somebody's jump or call.
fn stands_alone(now: &[u8], original: &[u8], i: usize) -> bool {
    (i.saturating_sub(4)..i).all(|k| now[k] == original[k] || now[k] == INT3)
}

/// A call at an address leads to the code that the kernel maps for probes. Others were written by somebody else (function tracing
/// in user space): a breakpoint over them and its removal would leave half of a call.
fn calls_probe(code: &[u8], address: u64, maps: &[Mapping]) -> bool {
    let [CALL, a, b, c, d] = *code else { return false };
    let to = address.wrapping_add(5).wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])));
    let trampoline =
        |m: &Mapping| matches!(&m.backing, Backing::Special(name) if name == "[uprobes-trampoline]");
    maps.iter().any(|m| trampoline(m) && m.contains(to))
}

/// The last page of a mapping may reach past the end of its file: the rest stays zero.
fn read_up_to(file: &TargetFile, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.read_some_at(bytes, offset)? {
            0 => return Ok(()),
            read => {
                bytes = &mut bytes[read..];
                offset += read as u64;
            }
        }
    }
    Ok(())
}

/// `TracerPid` of the process; 0 for none.
fn tracer(pid: u32) -> io::Result<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    Ok(line.and_then(|number| number.trim().parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
