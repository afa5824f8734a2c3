//! In which of several files the dynamic linker finds a name first: by its list of loaded files (`link_map`), read from the memory of the process.
//!
//! ```text
//! program, LD_PRELOAD, what these need, breadth first │ dlopen, in the order in which it was called
//! └───────────── every file looks here first ────────┘
//! ```
//! That the list is in this order is what debuggers go by (glibc, `dl_main` in `elf/rtld.c`; musl does the same). Files that `dlopen` loaded see each other
//! only if it was told so (`RTLD_GLOBAL`), which the list does not say.
//!
//! What it does not know: files that are linked with `-Bsymbolic`, or loaded with `RTLD_DEEPBIND`, see their own first.

use super::Inspection;
use super::dynamic::{self, Dynamic};
use super::module::Module;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Files of a list that are read: more than a process has modules that are held open.
const MAX_LOADED: usize = 4096;
/// Longest path (`PATH_MAX` of Linux).
const MAX_PATH: usize = 4096;
const PAGE: u64 = 4096;
/// Tag of the entry of the program's dynamic table in which the linker leaves the address of its `r_debug` (`elf.h`).
const DEBUG: u64 = 21;
/// `r_state` where the list is whole (`link.h`).
const CONSISTENT: u64 = 0;

/// A file of the list.
#[derive(Debug, PartialEq, Eq)]
struct Loaded {
    /// Run-time address of its dynamic table.
    dynamic: u64,
    /// Path by which it was found; of the program it is empty.
    path: String,
}

/// How far a module was moved from the addresses that it was linked for.
pub(super) fn bias(module: &Module) -> Option<u64> {
    // Code and data of a module are moved by the same distance. A mapping begins at a page, its segment may not.
    let mapping = module.mappings.first()?;
    let in_mapping =
        |offset: u64| (mapping.offset..mapping.offset + (mapping.end - mapping.start)).contains(&offset);
    let segment = module.elf().ok()?.segments.iter().find(|s| s.exec && in_mapping(s.offset))?;
    Some((mapping.start + (segment.offset - mapping.offset)).wrapping_sub(segment.vaddr))
}

/// In which of these modules (indices of [`Inspection::modules`]) every file of the process finds a name that all of them define.
///
/// # Errors
/// That is not known; why, in words.
pub(super) fn first_of(inspection: &Inspection, among: &[usize]) -> Result<usize, String> {
    let loaded =
        read(inspection).map_err(|why| format!("the list of its loaded files cannot be read: {why}"))?;
    let modules = inspection.modules();
    let tables: Vec<Option<u64>> = modules.iter().map(dynamic_at).collect();
    let of: Vec<Option<usize>> =
        loaded.iter().map(|file| tables.iter().position(|at| *at == Some(file.dynamic))).collect();
    let last = last_of_start(&loaded, |at| modules.get(of.get(at).copied().flatten()?));
    let at_start = of.iter().take(last + 1).flatten();
    at_start
        .copied()
        .find(|module| among.contains(module))
        .ok_or_else(|| "they were loaded while the program ran (dlopen), and each may see its own".to_owned())
}

/// Run-time address of the dynamic table of a module.
fn dynamic_at(module: &Module) -> Option<u64> {
    let (vaddr, ..) = dynamic::place(module.elf().ok()?).ok()??;
    Some(bias(module)?.wrapping_add(vaddr))
}

/// The last of the files with which the program was started: what the program needs, and what that needs. What lies before it was there as early. A file
/// that cannot be read needs nothing, so that this may come out too early, and not too late.
fn last_of_start<'a>(loaded: &[Loaded], module: impl Fn(usize) -> Option<&'a Module>) -> usize {
    let read = |at| Dynamic::read(module(at)?.elf().ok()?).ok().flatten();
    let names: Vec<(Option<String>, Vec<String>)> = (0..loaded.len())
        .map(|at| read(at).map(|dynamic| (dynamic.soname, dynamic.needed)).unwrap_or_default())
        .collect();
    let file = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let is_it = |at: usize, needed: &str| {
        let soname = names.get(at).and_then(|(soname, _)| soname.as_deref());
        soname == Some(needed) || loaded.get(at).is_some_and(|its| file(&its.path) == file(needed))
    };
    let mut of_start = vec![false; loaded.len()];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if of_start.get(at) != Some(&false) {
            continue;
        }
        of_start[at] = true;
        let needed = names.get(at).into_iter().flat_map(|(_, needed)| needed);
        open.extend(needed.filter_map(|name| (0..loaded.len()).find(|other| is_it(*other, name))));
    }
    of_start.iter().rposition(|is| *is).unwrap_or_default()
}

/// The list, the program first.
fn read(inspection: &Inspection) -> Result<Vec<Loaded>, String> {
    let path = format!("/proc/{}/mem", inspection.pid());
    let memory = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
    let words = |address: u64, count: usize| {
        let mut bytes = vec![0; count * 8];
        memory
            .read_exact_at(&mut bytes, address)
            .map_err(|error| format!("{path}, {address:#x}: {error}"))?;
        Ok::<_, String>(bytes.chunks_exact(8).map(word).collect::<Vec<u64>>())
    };
    let program = inspection.modules().iter().find(|module| module.main);
    let elf = program.and_then(|module| module.elf().ok()).ok_or("its program cannot be read")?;
    let (_, _, size) = dynamic::place(elf)?.ok_or("its program is static")?;
    let own = program.and_then(dynamic_at).ok_or("its program is not mapped")?;
    let table = words(own, size as usize / 8)?;
    let entries = table.chunks_exact(2).take_while(|entry| entry[0] != 0);
    let debug = entries.filter(|entry| entry[0] == DEBUG).map(|entry| entry[1]).find(|address| *address != 0);
    let debug = debug.ok_or("its dynamic linker does not tell where it is")?;
    // struct r_debug: r_version, r_map, r_brk, r_state. struct link_map: l_addr, l_name, l_ld, l_next.
    let state = || Ok::<_, String>(words(debug, 4)?[3] & u64::from(u32::MAX));
    let mut at = words(debug, 2)?[1];
    let mut loaded = Vec::new();
    while at != 0 && state()? == CONSISTENT {
        if loaded.len() == MAX_LOADED {
            return Err(format!("it has more than {MAX_LOADED} files, or no end"));
        }
        let file = words(at, 4)?;
        loaded.push(Loaded { dynamic: file[2], path: text(&memory, file[1]) });
        at = file[3];
    }
    if state()? != CONSISTENT {
        return Err("a library is being loaded or unloaded: try again".to_owned());
    }
    match loaded.first() {
        Some(first) if first.dynamic == own => Ok(loaded),
        _ => Err("it does not begin with the program".to_owned()),
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// The text that begins at an address; what cannot be read of it is missing.
fn text(memory: &File, address: u64) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_PATH {
        let at = address.wrapping_add(bytes.len() as u64);
        // The next page need not be there.
        let mut piece = vec![0; (PAGE - at % PAGE) as usize];
        if memory.read_exact_at(&mut piece, at).is_err() {
            break;
        }
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&piece[..end]);
            break;
        }
        bytes.append(&mut piece);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
