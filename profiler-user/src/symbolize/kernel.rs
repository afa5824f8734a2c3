//! Names of kernel addresses, from `/proc/kallsyms`.
//!
//! The list has some 200,000 names, of which the stacks of a run need some hundred. So it is read through once for all addresses
//! that are asked for together, and only their names are kept: 20 MiB less than the list, and half of the CPU time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::rc::Rc;

/// Read at once, bytes: the kernel makes a page of the list at a time.
const CHUNK: usize = 64 << 10;

/// The names that were asked for so far.
#[derive(Debug, Default)]
pub(super) struct KernelNames {
    /// By address; `None`: the kernel does not tell.
    names: HashMap<u64, Option<Rc<str>>>,
}

impl KernelNames {
    /// Reads the names of all `addresses` that are not known yet, in one pass. An address that the list does not name has none.
    pub(super) fn read(&mut self, addresses: impl IntoIterator<Item = u64>) {
        let mut new: Vec<u64> = addresses.into_iter().filter(|a| !self.names.contains_key(a)).collect();
        if new.is_empty() {
            return;
        }
        new.sort_unstable();
        new.dedup();
        // A list that cannot be read is as good as one without names.
        let found = File::open("/proc/kallsyms").and_then(|list| {
            let list = BufReader::with_capacity(CHUNK, list);
            names_in(list, &new)
        });
        let found = found.unwrap_or_else(|_| vec![None; new.len()]);
        self.names.extend(new.into_iter().zip(found));
    }

    /// The function that an address lies in.
    pub(super) fn find(&mut self, address: u64) -> Option<Rc<str>> {
        self.read([address]);
        self.names.get(&address).cloned().flatten()
    }
}

/// The kernel's half of the address space begins here. What lies below is an offset of a per-CPU variable, or 0 for an address that is
/// kept secret.
const KERNEL_HALF: u64 = 1 << 63;

/// The last symbol at or before each of the `sorted` addresses, of a list in the form of `/proc/kallsyms`: address in hexadecimal, type,
/// name, module, a line each, in any order.
fn names_in(mut list: impl BufRead, sorted: &[u64]) -> io::Result<Vec<Option<Rc<str>>>> {
    // The last symbol between an address and the one before it.
    let mut last: Vec<(u64, Vec<u8>)> = vec![(0, Vec::new()); sorted.len()];
    let mut line = Vec::with_capacity(256);
    loop {
        line.clear();
        if list.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let mut words = line.split(|byte| byte.is_ascii_whitespace());
        let Some(address) = words.next().and_then(hexadecimal) else { continue };
        let at = sorted.partition_point(|wanted| *wanted < address);
        // Of several names of one address the first counts.
        let Some(last) = last.get_mut(at).filter(|(of, _)| address >= KERNEL_HALF && address > *of) else {
            continue;
        };
        if let Some(name) = words.nth(1) {
            last.0 = address;
            // Nearly each of some 100,000 lines comes by here: no memory is asked for.
            last.1.clear();
            last.1.extend_from_slice(name);
        }
    }
    let mut nearest = None;
    let name = |(address, name): (u64, Vec<u8>)| {
        if address > 0 {
            nearest = Some(Rc::from(&*String::from_utf8_lossy(&name)));
        }
        nearest.clone()
    };
    Ok(last.into_iter().map(name).collect())
}

fn hexadecimal(word: &[u8]) -> Option<u64> {
    let digit = |sum: u64, byte: &u8| Some(sum << 4 | u64::from(char::from(*byte).to_digit(16)?));
    if word.is_empty() { None } else { word.iter().try_fold(0, digit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str, sorted: &[u64]) -> Vec<Option<String>> {
        let found = names_in(list.as_bytes(), sorted).unwrap();
        found.into_iter().map(|name| name.map(|name| name.to_string())).collect()
    }

    #[test]
    fn an_address_has_the_name_of_the_last_symbol_before_it() {
        let list = "ffffffff81000000 T _text\nffffffff81000000 T startup\nffffffffc0000100 t later\t[module]\n\
                    ffffffff81000200 t schedule\nnonsense\nffffffff81000300 D data\n";
        let at = [0x10, 0xffffffff81000000, 0xffffffff810001ff, 0xffffffff81000200, 0xffffffff81000201];
        let of = |name: &str| Some(name.to_owned());
        assert_eq!(names(list, &at), [None, of("_text"), of("_text"), of("schedule"), of("schedule")]);
        assert_eq!(names(list, &[0xffffffff81000301, 0xffffffffc0000200]), [of("data"), of("later")]);
    }

    #[test]
    fn addresses_that_are_kept_secret_name_nothing() {
        let list = "0000000000000000 T _text\n0000000000000000 t schedule\n0000000000001000 A gdt_page\n";
        assert_eq!(names(list, &[0, 0x1000, 0xffffffff81000000]), [None, None, None]);
    }

    #[test]
    fn the_list_is_read_once_for_all() {
        let mut kernel = KernelNames::default();
        kernel.names.insert(7, Some("known".into()));
        kernel.read([7]);
        assert_eq!(kernel.find(7).as_deref(), Some("known"));
        assert_eq!(kernel.find(8), None);
        assert_eq!(kernel.names.get(&8), Some(&None), "it is not asked for again");
    }
}
