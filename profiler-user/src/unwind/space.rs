//! The address space of one process: which code address belongs to which module, and framehop's view of it.

use super::elf::{ElfInfo, Section};
use super::modules::{JIT, ModuleId, ModuleKind, Modules};
use super::{Frame, REFRESH_EVERY, UNKNOWN, UnwindCounters};
use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};
use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Largest vDSO image read.
const MAX_VDSO: u64 = 64 << 10;

/// An executable mapping.
#[derive(Debug, Clone)]
struct Map {
    range: Range<u64>,
    offset: u64,
    inode: u64,
    name: String,
    module: ModuleId,
    /// Runtime address less address in the file; `None`: not a file, addresses stay absolute.
    bias: Option<u64>,
    /// framehop knows it, or has been found to have nothing to know.
    loaded: bool,
    /// Bytes of unwind tables booked for it.
    booked: usize,
}

/// One process.
pub(super) struct Space {
    pid: u32,
    /// Sorted, disjoint.
    maps: Vec<Map>,
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    refreshed: Option<Instant>,
    stale: bool,
    pub(super) last_used: Instant,
}

impl Space {
    pub(super) fn new(pid: u32) -> Self {
        Self {
            pid,
            maps: Vec::new(),
            unwinder: UnwinderX86_64::new(),
            refreshed: None,
            stale: true,
            last_used: Instant::now(),
        }
    }

    pub(super) fn unwinder(&self) -> &UnwinderX86_64<Arc<[u8]>> {
        &self.unwinder
    }

    /// Bytes of unwind tables that are booked for it.
    pub(super) fn booked(&self) -> usize {
        self.maps.iter().map(|map| map.booked).sum()
    }

    /// The mappings have changed; the next use reads them again, rate or no rate.
    pub(super) fn invalidate(&mut self) {
        self.stale = true;
        self.refreshed = None;
    }

    /// Reads the mappings again if somebody found them wanting and the last time is long enough ago.
    pub(super) fn refresh_if_stale(
        &mut self,
        modules: &Modules,
        counters: &mut UnwindCounters,
        now: Instant,
    ) {
        let due = self.refreshed.is_none_or(|last| now.saturating_duration_since(last) >= REFRESH_EVERY);
        if self.stale && due {
            self.stale = false;
            self.refreshed = Some(now);
            counters.refreshes += 1;
            // A process that is gone (a zombie has no mappings) keeps those it had: its last samples are still to come.
            match std::fs::read(format!("/proc/{}/maps", self.pid)) {
                Ok(text) if !text.is_empty() => self.take_maps(modules, &String::from_utf8_lossy(&text)),
                _ => {}
            }
        }
    }

    /// Takes over the text of `/proc/PID/maps`.
    pub(super) fn take_maps(&mut self, modules: &Modules, text: &str) {
        // By where they begin: a target may have ten thousands of them.
        let old = std::mem::take(&mut self.maps).into_iter();
        let key = |range: &Range<u64>| (range.start, range.end);
        let mut old: BTreeMap<(u64, u64), Map> = old.map(|map| (key(&map.range), map)).collect();
        for line in text.lines().filter_map(parse_line) {
            let is_same = |m: &Map| m.offset == line.offset && m.inode == line.inode && m.name == line.path;
            let at = key(&line.range);
            let known = if old.get(&at).is_some_and(is_same) { old.remove(&at) } else { None };
            let map = known.unwrap_or_else(|| self.new_map(modules, line));
            self.maps.push(map);
        }
        let mapped: HashSet<ModuleId> = self.maps.iter().map(|m| m.module).collect();
        for gone in old.values() {
            if gone.loaded {
                self.unwinder.remove_module(gone.range.start);
            }
            modules.return_tables(gone.booked);
            if !mapped.contains(&gone.module) {
                modules.unmapped(gone.module);
            }
        }
        self.maps.sort_by_key(|m| m.range.start);
    }

    fn new_map(&self, modules: &Modules, line: Line<'_>) -> Map {
        let pid = self.pid;
        let path = line.path.strip_suffix(" (deleted)").unwrap_or(line.path);
        let module = match line.path {
            "[vdso]" => modules.named("[vdso]", 0, || match read_memory(pid, &line.range) {
                Some(bytes) => ModuleKind::Image(bytes.into()),
                None => ModuleKind::Unknown,
            }),
            // Anonymous memory, shared memory without a file, and what the kernel names in brackets.
            p if p.is_empty()
                || p.starts_with("//anon")
                || p.starts_with("/memfd:")
                || p.starts_with("[anon:") =>
            {
                modules.named(JIT, pid, || ModuleKind::Jit { pid })
            }
            p if p.starts_with('/') => {
                let map = format!("{:x}-{:x}", line.range.start, line.range.end);
                modules.file(pid, &map, path, path.len() != p.len())
            }
            p => modules.named(p, 0, || ModuleKind::Unknown),
        };
        Map {
            range: line.range,
            offset: line.offset,
            inode: line.inode,
            name: line.path.to_owned(),
            module,
            bias: None,
            loaded: false,
            booked: 0,
        }
    }

    fn find(&self, address: u64) -> Option<usize> {
        let i = self.maps.partition_point(|m| m.range.end <= address);
        self.maps.get(i).filter(|m| m.range.contains(&address)).map(|_| i)
    }

    /// The map of `address`, after a look at `/proc/PID/maps` if it is unknown and one is due.
    fn find_fresh(
        &mut self,
        modules: &Modules,
        counters: &mut UnwindCounters,
        address: u64,
    ) -> Option<usize> {
        self.find(address).or_else(|| {
            self.stale = true;
            self.refresh_if_stale(modules, counters, Instant::now());
            self.find(address)
        })
    }

    /// Whether code can be at `address`.
    pub(super) fn is_code(&mut self, modules: &Modules, counters: &mut UnwindCounters, address: u64) -> bool {
        self.find_fresh(modules, counters, address).is_some()
    }

    /// The frame of a code address.
    pub(super) fn frame(&mut self, modules: &Modules, counters: &mut UnwindCounters, address: u64) -> Frame {
        let Some(i) = self.find_fresh(modules, counters, address) else {
            return Frame { module: UNKNOWN, address };
        };
        self.load_map(modules, counters, i);
        let map = &self.maps[i];
        Frame { module: map.module, address: address.wrapping_sub(map.bias.unwrap_or(0)) }
    }

    /// Makes framehop know the module of `address`.
    pub(super) fn load(&mut self, modules: &Modules, counters: &mut UnwindCounters, address: u64) {
        if let Some(i) = self.find(address) {
            self.load_map(modules, counters, i);
        }
    }

    fn load_map(&mut self, modules: &Modules, counters: &mut UnwindCounters, i: usize) {
        if self.maps[i].loaded {
            return;
        }
        self.maps[i].loaded = true;
        let info = modules.get(self.maps[i].module);
        if !matches!(info.kind, ModuleKind::File { .. } | ModuleKind::Image(_)) {
            return;
        }
        let map = &mut self.maps[i];
        let Ok(elf) = info.elf() else {
            counters.modules_without_tables += 1;
            return;
        };
        map.bias = elf.bias(map.range.start, map.offset);
        let Some(bias) = map.bias else { return };
        // Tables are shared by all processes; booking them once per mapping errs on the safe side.
        if elf.bytes() == 0 || !modules.book_tables(elf.bytes()) {
            counters.modules_without_tables += 1;
            return;
        }
        map.booked = elf.bytes();
        counters.modules_loaded += 1;
        let module = Module::new(info.name.clone(), map.range.clone(), bias, sections(elf));
        self.unwinder.add_module(module);
    }

    /// Whether the kernel runs or leaves a probe there: the page of single-stepped instructions and return links, the code of optimised probes. As
    /// last read: an unknown address has the mappings read again before the next sample.
    pub(super) fn is_probe_code(&mut self, address: u64) -> bool {
        match self.find(address) {
            Some(i) => self.maps[i].name.starts_with("[uprobes"),
            None => {
                self.stale = true;
                false
            }
        }
    }

    /// Where return links point: the code that the kernel maps for uprobes. Empty if there is none.
    pub(super) fn trampolines(&self) -> Range<u64> {
        self.maps.iter().find(|m| m.name == "[uprobes]").map_or(0..0, |m| m.range.clone())
    }

    /// `address` lies in the code that an optimised probe calls.
    pub(super) fn in_probe_trampoline(&self, address: u64) -> bool {
        self.find(address).is_some_and(|i| self.maps[i].name == "[uprobes-trampoline]")
    }
}

fn sections(elf: &ElfInfo) -> ExplicitModuleSectionInfo<Arc<[u8]>> {
    let range = |s: &Option<Section>| s.as_ref().map(|s| s.range.clone());
    let bytes = |s: &Option<Section>| s.as_ref().map(|s| Arc::clone(&s.bytes));
    ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: elf.text.clone(),
        got_svma: elf.got.clone(),
        eh_frame_svma: range(&elf.eh_frame),
        eh_frame: bytes(&elf.eh_frame),
        eh_frame_hdr_svma: range(&elf.eh_frame_hdr),
        eh_frame_hdr: bytes(&elf.eh_frame_hdr),
        debug_frame: bytes(&elf.debug_frame),
        ..Default::default()
    }
}

fn read_memory(pid: u32, range: &Range<u64>) -> Option<Vec<u8>> {
    let size = range.end.checked_sub(range.start).filter(|n| *n <= MAX_VDSO)?;
    let mut file = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    file.seek(SeekFrom::Start(range.start)).ok()?;
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    file.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// An executable line of `/proc/PID/maps`.
struct Line<'a> {
    range: Range<u64>,
    offset: u64,
    inode: u64,
    path: &'a str,
}

/// `start-end rwxp offset dev inode   path`; `None` for mappings that are not executable.
fn parse_line(line: &str) -> Option<Line<'_>> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset = fields.next()?;
    let _device = fields.next()?;
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or("").trim_start();
    permissions.contains('x').then_some(())?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(Line { range: hex(start)?..hex(end)?, offset: hex(offset)?, inode, path })
}
