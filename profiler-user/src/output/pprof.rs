//! pprof profile, as `go tool pprof`, Pyroscope, Parca and others read it.
//!
//! The messages follow `profile.proto` of github.com/google/pprof (field numbers and types), written out
//! here because the build has no protobuf compiler. Sample types: `samples/count`, `cpu/nanoseconds`.

use super::OutputError;
use super::stacks::{KERNEL, NO_STACK, Stacks, name};
use flate2::{Compression, write::GzEncoder};
use profiler_core::recording::{FrameRow, Recording};
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

/// `perftools.profiles.Profile`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub period: i64,
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// `perftools.profiles.ValueType`; both are indices of strings.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub ty: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// `perftools.profiles.Sample`; locations from the leaf outwards.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// `perftools.profiles.Label`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub str: i64,
    #[prost(int64, tag = "3")]
    pub num: i64,
    #[prost(int64, tag = "4")]
    pub num_unit: i64,
}

/// `perftools.profiles.Mapping`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    #[prost(int64, tag = "5")]
    pub filename: i64,
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// `perftools.profiles.Location`; of several lines the last is the function that the others were inlined into.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub address: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// `perftools.profiles.Line`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// `perftools.profiles.Function`; the names are indices of strings.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    #[prost(int64, tag = "4")]
    pub filename: i64,
}

/// Interning tables while a profile is made. Ids start at 1, string 0 is empty, as the format asks.
#[derive(Default)]
struct Builder {
    profile: Profile,
    strings: HashMap<String, i64>,
    mappings: HashMap<String, u64>,
    functions: HashMap<(String, String), u64>,
    locations: HashMap<Vec<(u64, String, u32)>, u64>,
}

impl Builder {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(i) = self.strings.get(text) {
            return *i;
        }
        let i = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), i);
        i
    }

    fn mapping(&mut self, module: &str, address: u64, build_id: &str) -> u64 {
        let id = match self.mappings.get(module) {
            Some(id) => *id,
            None => {
                let id = self.profile.mapping.len() as u64 + 1;
                let filename = self.string(module);
                let build_id = self.string(build_id);
                // Symbols are in the profile: readers must not look for the file.
                self.profile.mapping.push(Mapping {
                    id,
                    filename,
                    build_id,
                    has_functions: true,
                    has_filenames: true,
                    has_line_numbers: true,
                    has_inline_frames: true,
                    ..Mapping::default()
                });
                self.mappings.insert(module.to_owned(), id);
                id
            }
        };
        // OK because ids are positions + 1.
        let mapping = &mut self.profile.mapping[id as usize - 1];
        mapping.memory_limit = mapping.memory_limit.max(address.saturating_add(1));
        if module == KERNEL && mapping.memory_start == 0 {
            mapping.memory_start = 1 << 63;
        }
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        if let Some(id) = self.functions.get(&(name.to_owned(), file.to_owned())) {
            return *id;
        }
        let id = self.profile.function.len() as u64 + 1;
        let (n, f) = (self.string(name), self.string(file));
        self.profile.function.push(Function { id, name: n, system_name: n, filename: f });
        self.functions.insert((name.to_owned(), file.to_owned()), id);
        id
    }

    /// The location of one address: `frames` are its inlined calls, innermost first, and its function.
    fn location(&mut self, frames: &[&FrameRow], build_ids: &HashMap<&str, &str>) -> u64 {
        let key: Vec<_> =
            frames.iter().map(|f| (f.address, format!("{}\0{}", f.module, f.function), f.line)).collect();
        if let Some(id) = self.locations.get(&key) {
            return *id;
        }
        let id = self.profile.location.len() as u64 + 1;
        let (module, address) = frames.last().map_or(("", 0), |f| (f.module.as_str(), f.address));
        let build_id = build_ids.get(module).copied().unwrap_or("");
        let mapping_id = if module.is_empty() { 0 } else { self.mapping(module, address, build_id) };
        let line = frames
            .iter()
            .map(|f| Line { function_id: self.function(&name(f), &f.file), line: i64::from(f.line) })
            .collect();
        self.profile.location.push(Location { id, mapping_id, address, line });
        self.locations.insert(key, id);
        id
    }
}

/// The profile, gzip-compressed.
pub(super) fn profile(recording: &Recording) -> Result<Vec<u8>, OutputError> {
    if recording.samples.is_empty() {
        return Err(OutputError::NoSamples("profile"));
    }
    let bytes = build(recording).encode_to_vec();
    let mut gz = GzEncoder::new(Vec::new(), Compression::default());
    gz.write_all(&bytes)
        .and_then(|()| gz.finish())
        .map_err(|e| OutputError::Encode { what: "profile", message: e.to_string() })
}

fn build(recording: &Recording) -> Profile {
    let mut b = Builder::default();
    b.string("");
    let (samples, count) = (b.string("samples"), b.string("count"));
    let (cpu, ns) = (b.string("cpu"), b.string("nanoseconds"));
    let tid_key = b.string("tid");
    let build_ids: HashMap<&str, &str> =
        recording.classes.iter().map(|c| (c.module.as_str(), c.build_id.as_str())).collect();

    // Readers take the first mapping for the main program.
    let exe = recording.meta.exe.as_str();
    b.mapping(exe, 0, build_ids.get(exe).copied().unwrap_or(""));
    let stacks = Stacks::of(recording);
    // One entry per stack and thread.
    let mut sums: BTreeMap<(u64, u32), (i64, i64)> = BTreeMap::new();
    for s in &recording.samples {
        let sum = sums.entry((s.stack_id, s.tid)).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add_unsigned(s.period_ns);
    }
    let mut locations: HashMap<u64, Vec<u64>> = HashMap::new();
    for s in &recording.samples {
        if locations.contains_key(&s.stack_id) {
            continue;
        }
        let mut ids = Vec::new();
        // Inlined calls come just before the function they are inlined into, at the same address.
        for group in stacks.frames(s).split_inclusive(|f| !f.inlined) {
            ids.push(b.location(group, &build_ids));
        }
        if ids.is_empty() {
            let none = FrameRow {
                stack_id: 0,
                depth: 0,
                address: 0,
                module: String::new(),
                function: NO_STACK.to_owned(),
                file: String::new(),
                line: 0,
                inlined: false,
                class_id: None,
            };
            ids.push(b.location(&[&none], &build_ids));
        }
        locations.insert(s.stack_id, ids);
    }
    for ((stack, tid), (n, cpu_ns)) in sums {
        b.profile.sample.push(Sample {
            location_id: locations[&stack].clone(),
            value: vec![n, cpu_ns],
            label: vec![Label { key: tid_key, num: i64::from(tid), ..Label::default() }],
        });
    }
    let meta = &recording.meta;
    let comment = b.string(&format!("tithe {}: {} (pid {})", meta.tithe_version, meta.exe, meta.pid));
    let p = &mut b.profile;
    p.sample_type = vec![ValueType { ty: samples, unit: count }, ValueType { ty: cpu, unit: ns }];
    p.period_type = Some(ValueType { ty: cpu, unit: ns });
    p.period = meta.sample_period_ns.cast_signed();
    p.time_nanos = meta.start_unix_ns.cast_signed();
    p.duration_nanos = meta.end_ns.map_or(0, |end| end.saturating_sub(meta.start_ns)).cast_signed();
    p.comment = vec![comment];
    p.default_sample_type = cpu;
    b.profile
}
