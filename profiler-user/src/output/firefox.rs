//! Firefox Profiler's processed profile format (profiler.firefox.com), version 24, processed version 62:
//! tables as columns, shared between threads; samples per thread, recorded calls as markers.
//!
//! The format: github.com/firefox-devtools/profiler, docs-developer/processed-profile-format.md. The viewer
//! upgrades older versions, so this one needs no chasing.

use super::stacks::{KERNEL, Stacks, TRUNCATED, name};
use profiler_core::recording::{FrameRow, Meta, Recording};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Index of the category `User` in [`profile`]'s list; `Kernel` is the next.
const USER: usize = 1;
const KERNEL_CATEGORY: usize = 2;

/// The tables that all threads share.
#[derive(Default)]
struct Shared {
    strings: Vec<String>,
    string_index: HashMap<String, usize>,
    /// Module paths, in order of the table of libraries.
    libs: Vec<String>,
    /// Name, library, source file.
    funcs: Vec<(usize, Option<usize>, Option<usize>)>,
    func_index: HashMap<(usize, Option<usize>, Option<usize>), usize>,
    /// Address, function, line, inline depth, category.
    frames: Vec<(u64, usize, u32, u32, usize)>,
    frame_index: HashMap<(u64, usize, u32, u32), usize>,
    /// Source files, as strings.
    sources: Vec<usize>,
    /// Frame, prefix.
    stacks: Vec<(usize, Option<usize>)>,
    stack_index: HashMap<(usize, Option<usize>), usize>,
}

/// The position of `key`, after adding `value` if it is new.
fn intern<K: std::hash::Hash + Eq, V>(
    index: &mut HashMap<K, usize>,
    list: &mut Vec<V>,
    key: K,
    value: V,
) -> usize {
    *index.entry(key).or_insert_with(|| {
        list.push(value);
        list.len() - 1
    })
}

impl Shared {
    fn string(&mut self, text: &str) -> usize {
        match self.string_index.get(text) {
            Some(i) => *i,
            None => intern(&mut self.string_index, &mut self.strings, text.to_owned(), text.to_owned()),
        }
    }

    fn frame(&mut self, f: &FrameRow, inline_depth: u32) -> usize {
        let func_name = self.string(&name(f));
        let lib = (!f.module.is_empty()).then(|| {
            self.libs.iter().position(|l| *l == f.module).unwrap_or_else(|| {
                self.libs.push(f.module.clone());
                self.libs.len() - 1
            })
        });
        let source = (!f.file.is_empty()).then(|| {
            let file = self.string(&f.file);
            self.sources.iter().position(|s| *s == file).unwrap_or_else(|| {
                self.sources.push(file);
                self.sources.len() - 1
            })
        });
        let func_key = (func_name, lib, source);
        let func = intern(&mut self.func_index, &mut self.funcs, func_key, func_key);
        let category = if f.module == KERNEL { KERNEL_CATEGORY } else { USER };
        let key = (f.address, func, f.line, inline_depth);
        intern(
            &mut self.frame_index,
            &mut self.frames,
            key,
            (f.address, func, f.line, inline_depth, category),
        )
    }

    /// The stack of `frames`, innermost first; `None` if there are none.
    fn stack(&mut self, frames: &[&FrameRow], truncated: bool) -> Option<usize> {
        let mut prefix = None;
        if truncated && !frames.is_empty() {
            let cut = FrameRow { function: TRUNCATED.into(), module: String::new(), ..frames[0].clone() };
            let frame = self.frame(&FrameRow { address: 0, line: 0, file: String::new(), ..cut }, 0);
            prefix = Some(intern(&mut self.stack_index, &mut self.stacks, (frame, None), (frame, None)));
        }
        // Inlined calls follow the function that holds them, counted from there inwards.
        let mut inline_depth = 0;
        for f in frames.iter().rev() {
            inline_depth = if f.inlined { inline_depth + 1 } else { 0 };
            let frame = self.frame(f, inline_depth);
            prefix = Some(intern(&mut self.stack_index, &mut self.stacks, (frame, prefix), (frame, prefix)));
        }
        prefix
    }
}

/// The profile as JSON.
pub(super) fn profile(recording: &Recording) -> Value {
    let meta = &recording.meta;
    let ms = |ns: u64| ns.saturating_sub(meta.start_ns) as f64 / 1e6;
    let stacks = Stacks::of(recording);
    let mut shared = Shared::default();

    let mut samples: BTreeMap<(u32, u32), Vec<_>> = BTreeMap::new();
    for s in &recording.samples {
        samples.entry((s.pid, s.tid)).or_default().push(s);
    }
    let mut events: BTreeMap<(u32, u32), Vec<_>> = BTreeMap::new();
    for e in &recording.events {
        events.entry((e.pid, e.tid)).or_default().push(e);
    }
    let names: HashMap<u32, &str> = recording.classes.iter().map(|c| (c.class_id, c.name.as_str())).collect();
    let exe = meta.exe.rsplit('/').next().unwrap_or(&meta.exe).to_owned();

    let ids: BTreeSet<(u32, u32)> = samples.keys().chain(events.keys()).copied().collect();
    let mut threads = Vec::new();
    for id @ (pid, tid) in ids {
        let mut of_thread = samples.remove(&id).unwrap_or_default();
        of_thread.sort_by_key(|s| s.time_ns);
        let stack: Vec<_> = of_thread.iter().map(|s| shared.stack(stacks.frames(s), s.truncated)).collect();
        let times: Vec<f64> = of_thread.iter().map(|s| ms(s.time_ns)).collect();
        let deltas: Vec<f64> =
            times.iter().scan(0.0, |last, t| Some(t - std::mem::replace(last, *t))).collect();
        // CPU time since the thread's sample before, us.
        let cpu: Vec<u64> = of_thread.iter().map(|s| s.period_ns / 1_000).collect();
        let n = of_thread.len();

        let calls = events.remove(&id).unwrap_or_default();
        let marker_names: Vec<usize> =
            calls.iter().map(|e| shared.string(names.get(&e.class_id).copied().unwrap_or("?"))).collect();
        let ends: Vec<Option<f64>> = calls.iter().map(|e| e.duration_ns.map(|d| ms(e.time_ns + d))).collect();
        let phases: Vec<u8> = calls.iter().map(|e| u8::from(e.duration_ns.is_some())).collect();
        threads.push(json!({
            "name": if tid == meta.pid { exe.clone() } else { format!("thread {tid}") },
            "processName": exe, "processType": "default", "isMainThread": tid == pid,
            "pid": pid.to_string(), "tid": tid.to_string(),
            "registerTime": 0.0, "unregisterTime": null, "processStartupTime": 0.0, "processShutdownTime": null,
            "pausedRanges": [], "showMarkersInTimeline": false,
            "samples": {
                "length": n, "stack": stack, "timeDeltas": deltas, "threadCPUDelta": cpu,
                "weight": vec![1; n], "weightType": "samples",
            },
            "markers": {
                "length": calls.len(), "name": marker_names, "phase": phases,
                "startTime": calls.iter().map(|e| ms(e.time_ns)).collect::<Vec<_>>(), "endTime": ends,
                "category": vec![USER; calls.len()],
                "data": calls.iter().map(|_| json!({ "type": "call" })).collect::<Vec<_>>(),
            },
        }));
    }
    json!({
        "meta": about(meta, &exe),
        "libs": shared.libs.iter().map(|path| {
            let file = path.rsplit('/').next().unwrap_or(path);
            json!({ "name": file, "debugName": file, "path": path, "debugPath": path, "arch": null,
                    "breakpadId": "0".repeat(33), "codeId": null })
        }).collect::<Vec<_>>(),
        "pages": [], "counters": [], "profilerOverhead": [],
        "shared": tables(&mut shared),
        "threads": threads,
    })
}

/// What was recorded, and how the viewer is to show it.
fn about(meta: &Meta, exe: &str) -> Value {
    json!({
        "version": 24, "preprocessedProfileVersion": 62, "processType": 0,
        "product": format!("{exe} (tithe)"), "oscpu": format!("Linux {}", meta.kernel),
        "interval": meta.sample_period_ns as f64 / 1e6, "startTime": meta.start_unix_ns as f64 / 1e6,
        "symbolicated": true, "debug": false, "usesOnlyOneStackType": true, "sourceCodeIsNotOnSearchfox": true,
        "extensions": { "length": 0, "id": [], "name": [], "baseURL": [] },
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "categories": [
            { "name": "Other", "color": "grey", "subcategories": ["Other"] },
            { "name": "User", "color": "yellow", "subcategories": ["Other"] },
            { "name": "Kernel", "color": "orange", "subcategories": ["Other"] },
        ],
        "markerSchema": [{
            "name": "call", "display": ["marker-chart", "marker-table"], "fields": [],
            "description": "A recorded call of a traced function",
        }],
        "pausedRanges": [],
    })
}

fn tables(shared: &mut Shared) -> Value {
    let libs: Vec<String> = shared.libs.clone();
    let lib_names: Vec<usize> =
        libs.iter().map(|path| shared.string(path.rsplit('/').next().unwrap_or(path))).collect();
    let (frames, funcs, stacks) = (&shared.frames, &shared.funcs, &shared.stacks);
    let (nf, nn, ns, nl, nsrc) = (frames.len(), funcs.len(), stacks.len(), libs.len(), shared.sources.len());
    let nulls = |n: usize| vec![Value::Null; n];
    // JavaScript numbers hold 53 bits: kernel addresses are left out rather than rounded.
    let address = |a: u64| i64::try_from(a).ok().filter(|a| *a < 1 << 53).unwrap_or(-1);
    json!({
        "stringArray": shared.strings,
        "frameTable": {
            "length": nf,
            "address": frames.iter().map(|f| address(f.0)).collect::<Vec<_>>(),
            "inlineDepth": frames.iter().map(|f| f.3).collect::<Vec<_>>(),
            "category": frames.iter().map(|f| f.4).collect::<Vec<_>>(),
            "subcategory": vec![0; nf],
            "func": frames.iter().map(|f| f.1).collect::<Vec<_>>(),
            "line": frames.iter().map(|f| (f.2 > 0).then_some(f.2)).collect::<Vec<_>>(),
            "column": nulls(nf), "nativeSymbol": nulls(nf), "innerWindowID": vec![0; nf],
        },
        "funcTable": {
            "length": nn,
            "name": funcs.iter().map(|f| f.0).collect::<Vec<_>>(),
            "resource": funcs.iter().map(|f| f.1.map_or(-1, |lib| lib as i64)).collect::<Vec<_>>(),
            "source": funcs.iter().map(|f| f.2).collect::<Vec<_>>(),
            "isJS": vec![false; nn], "relevantForJS": vec![false; nn],
            "lineNumber": nulls(nn), "columnNumber": nulls(nn),
        },
        "stackTable": {
            "length": ns,
            "frame": stacks.iter().map(|s| s.0).collect::<Vec<_>>(),
            "prefix": stacks.iter().map(|s| s.1).collect::<Vec<_>>(),
        },
        "resourceTable": {
            "length": nl, "lib": (0..nl).collect::<Vec<_>>(), "name": lib_names, "host": nulls(nl), "type": vec![1; nl],
        },
        "nativeSymbols": { "length": 0, "libIndex": [], "address": [], "name": [], "functionSize": [] },
        "sources": {
            "length": nsrc, "filename": shared.sources, "id": nulls(nsrc), "startLine": vec![1; nsrc],
            "startColumn": vec![1; nsrc], "sourceMapURL": nulls(nsrc),
        },
    })
}
