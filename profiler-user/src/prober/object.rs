//! The embedded object and the programs loaded from it.
//!
//! aya parses the object and creates the maps. Programs are loaded by our own `BPF_PROG_LOAD`, because
//! `expected_attach_type` must be set when a program for a multi or session link is loaded, and because one program is
//! loaded for several kinds of link. Each is loaded when first wanted, so that a kernel that refuses one can
//! run the others. It is asked once: it takes up to 0.4 s to say no, too.

use super::KernelError;
use super::sys;
use super::vmlinux::Vmlinux;
use aya::Ebpf;
use aya::maps::{Map, MapData};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// The object as built by `cargo xtask build-ebpf`; the build script says which.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("TITHE_BPF_OBJECT"));

/// Tells one build of the object from another (no security in it).
#[must_use]
pub fn programs_id() -> String {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(OBJECT);
    format!("{:016x}", hasher.finish())
}

/// Marker helper ids in the object and the kernel functions whose calls replace them.
const KERNEL_FUNCTIONS: [(i32, &str); 2] =
    [(0x7fff_0001, "bpf_session_is_return"), (0x7fff_0002, "bpf_session_cookie")];
/// `BPF_JMP | BPF_CALL`.
const CALL: u8 = 0x85;
/// `BPF_PSEUDO_KFUNC_CALL`.
const PSEUDO_KERNEL_FUNCTION: u8 = 2;

/// How a program is going to be attached; the kernel wants to know when it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Flavour {
    Multi,
    Session,
    PerfUprobe,
    PerfEvent,
    RawTracepoint,
}

impl Flavour {
    fn types(self) -> (u32, u32) {
        match self {
            Self::Multi => (sys::PROG_TYPE_KPROBE, sys::ATTACH_UPROBE_MULTI),
            Self::Session => (sys::PROG_TYPE_KPROBE, sys::ATTACH_UPROBE_SESSION),
            Self::PerfUprobe => (sys::PROG_TYPE_KPROBE, 0),
            Self::PerfEvent => (sys::PROG_TYPE_PERF_EVENT, 0),
            Self::RawTracepoint => (sys::PROG_TYPE_RAW_TRACEPOINT, 0),
        }
    }
}

/// Programs, loaded on demand.
pub(super) struct Programs {
    code: HashMap<String, Vec<[u8; 8]>>,
    kernel_functions: HashMap<i32, u32>,
    loaded: Mutex<Answers<Arc<OwnedFd>>>,
}

/// What the kernel said of each program: loaded, or refused, with its error number and the end of the verifier's log.
type Answers<T> = HashMap<(&'static str, Flavour), Result<T, (i32, String)>>;

/// The kernel's answer of before, or a new one. What may be otherwise the next time (no memory, no descriptor, a signal) is not kept.
fn answer<T: Clone>(
    answers: &mut Answers<T>,
    name: &'static str,
    flavour: Flavour,
    load: impl FnOnce() -> Result<T, KernelError>,
) -> Result<T, KernelError> {
    const PASSING: [i32; 6] =
        [libc::ENOMEM, libc::EAGAIN, libc::EINTR, libc::EMFILE, libc::ENFILE, libc::EBUSY];
    match answers.get(&(name, flavour)) {
        Some(Ok(program)) => return Ok(program.clone()),
        Some(Err((number, log))) => {
            let source = io::Error::from_raw_os_error(*number);
            return Err(KernelError::Program { name, source, log: log.clone() });
        }
        None => {}
    }
    let loaded = load();
    let kept = match &loaded {
        Ok(program) => Some(Ok(program.clone())),
        Err(KernelError::Program { source, log, .. }) => source
            .raw_os_error()
            .filter(|number| !PASSING.contains(number))
            .map(|number| Err((number, log.clone()))),
        Err(_) => None,
    };
    if let Some(kept) = kept {
        answers.insert((name, flavour), kept);
    }
    loaded
}

impl Programs {
    /// Relocates all programs of the object to the maps that `ebpf` created from it.
    ///
    /// # Errors
    /// The object does not fit (a build error).
    pub fn new(ebpf: &Ebpf, vmlinux: &Vmlinux) -> Result<Self, KernelError> {
        let bad = |error: &dyn std::fmt::Display| KernelError::Object(error.to_string());
        let mut object = aya_obj::Object::parse(OBJECT).map_err(|e| bad(&e))?;
        let definitions: HashMap<String, aya_obj::Map> = object.maps.drain().collect();
        let descriptors: Vec<(&str, RawFd)> = ebpf
            .maps()
            .filter_map(|(name, map)| Some((name, map_data(map)?.fd().as_fd().as_raw_fd())))
            .collect();
        let mut pairs = Vec::new();
        for (name, fd) in &descriptors {
            let definition = definitions
                .get(*name)
                .ok_or_else(|| KernelError::Object(format!("no definition of map {name}")))?;
            pairs.push((*name, *fd, definition));
        }
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_maps(pairs.into_iter(), &text).map_err(|e| bad(&e))?;
        object.relocate_calls(&text).map_err(|e| bad(&e))?;

        let mut code = HashMap::new();
        for (name, program) in &object.programs {
            let function = object
                .functions
                .get(&program.function_key())
                .ok_or_else(|| KernelError::Object(format!("no code of program {name}")))?;
            let instructions = function
                .instructions
                .iter()
                // SAFETY: an instruction is 8 bytes without padding (`struct bpf_insn`).
                .map(|i| unsafe { std::mem::transmute_copy::<_, [u8; 8]>(i) })
                .collect();
            code.insert(name.clone(), instructions);
        }
        let mut kernel_functions = HashMap::new();
        for (marker, name) in KERNEL_FUNCTIONS {
            if let Some(id) = vmlinux.function(name)? {
                kernel_functions.insert(marker, id);
            }
        }
        Ok(Self { code, kernel_functions, loaded: Mutex::default() })
    }

    /// The program for that kind of link, loaded if it is not yet.
    ///
    /// # Errors
    /// The kernel refuses it, now or when it was first asked; the error carries the end of the verifier's log.
    pub fn get(&self, name: &'static str, flavour: Flavour) -> Result<Arc<OwnedFd>, KernelError> {
        // OK to go on after a panic elsewhere: the table is only ever added to.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        answer(&mut loaded, name, flavour, || self.load_copy(name, flavour, &[]).map(Arc::new))
    }

    /// Loads a program once more, with calls of these marker ids replaced by these instructions: the numbers of one attachment, on
    /// kernels without cookies for its kind of link (raw tracepoints have them from Linux 6.10).
    ///
    /// # Errors
    /// As [`Programs::get`].
    pub fn load_copy(
        &self,
        name: &'static str,
        flavour: Flavour,
        values: &[(i32, [u8; 8])],
    ) -> Result<OwnedFd, KernelError> {
        let code = self.code.get(name).ok_or_else(|| KernelError::Object(format!("no program {name}")))?;
        let code = self.patched(name, code, values)?;
        let (prog_type, attach_type) = flavour.types();
        sys::load_program(name, prog_type, attach_type, &code).map_err(|(source, log)| KernelError::Program {
            name,
            source,
            log,
        })
    }

    /// Replaces calls of marker ids by calls of the running kernel's functions, or by `values`.
    fn patched(
        &self,
        program: &'static str,
        code: &[[u8; 8]],
        values: &[(i32, [u8; 8])],
    ) -> Result<Vec<[u8; 8]>, KernelError> {
        let mut code = code.to_vec();
        for instruction in &mut code {
            // Bytes of an instruction: code, registers (source in the high half), offset (2), immediate (4).
            let [op, registers, _, _, immediate @ ..] = *instruction;
            let immediate = i32::from_ne_bytes(immediate);
            if op != CALL || registers >> 4 != 0 {
                continue;
            }
            if let Some((_, value)) = values.iter().find(|(marker, _)| *marker == immediate) {
                *instruction = *value;
            } else if let Some((_, name)) = KERNEL_FUNCTIONS.iter().find(|(marker, _)| *marker == immediate) {
                let id = self
                    .kernel_functions
                    .get(&immediate)
                    .ok_or(KernelError::NoKernelFunction { program, function: name })?;
                let id = id.to_ne_bytes();
                *instruction = [
                    CALL,
                    (registers & 0x0f) | (PSEUDO_KERNEL_FUNCTION << 4),
                    0,
                    0,
                    id[0],
                    id[1],
                    id[2],
                    id[3],
                ];
            }
        }
        Ok(code)
    }

    /// What the kernel tells of each loaded program.
    pub fn info(&self) -> Vec<(&'static str, sys::ProgramInfo)> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = loaded.iter().filter_map(|((name, _), program)| Some((*name, program.as_ref().ok()?)));
        let info = programs.filter_map(|(name, fd)| Some((name, sys::program_info(fd.as_fd()).ok()?)));
        let mut info: Vec<_> = info.collect();
        info.sort_unstable_by_key(|(name, _)| *name);
        info
    }
}

/// The data of a map of any kind that the object has.
pub(super) fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::RingBuf(data)
        | Map::Unsupported(data)
        | Map::PerCpuArray(data) => Some(data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_once_unless_its_answer_may_pass() {
        let mut answers = Answers::new();
        let refuse = |number| {
            let source = io::Error::from_raw_os_error(number);
            KernelError::Program { name: "a", source, log: "R1 is no pointer".to_owned() }
        };
        let first = answer::<u32>(&mut answers, "a", Flavour::Multi, || Err(refuse(libc::EACCES)));
        let again = answer(&mut answers, "a", Flavour::Multi, || panic!("asked again"));
        assert_eq!(again.unwrap_err().to_string(), first.unwrap_err().to_string());
        // Of another kind of link it may think otherwise.
        assert_eq!(answer(&mut answers, "a", Flavour::Session, || Ok(7)).unwrap(), 7);
        assert_eq!(answer(&mut answers, "a", Flavour::Session, || panic!("asked again")).unwrap(), 7);
        for number in [libc::ENOMEM, libc::EAGAIN, libc::EMFILE] {
            assert!(answer(&mut answers, "b", Flavour::Multi, || Err(refuse(number))).is_err());
        }
        assert_eq!(answer(&mut answers, "b", Flavour::Multi, || Ok(8)).unwrap(), 8);
    }
}
