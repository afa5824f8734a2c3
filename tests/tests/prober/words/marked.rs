//! What cannot be read is marked, and the target never takes a fault for it.

use super::{attach, configure, found, integer, length, options, ways};
use crate::support::*;
use profiler_user::prober::word::{MAX_STRING, SOURCE_RESULT};
use profiler_user::prober::{LinkKind, Word, WordSpec};

function!(marks);
function!(strings);
function!(absent);

const PAGE: usize = 4096;

/// Pages of its own, of which none was touched.
pub struct Pages {
    pub at: *mut u8,
    bytes: usize,
}

impl Pages {
    pub fn map(pages: usize) -> Self {
        let bytes = pages * PAGE;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: at.cast(), bytes }
    }

    /// That page is in memory.
    fn is_resident(&self, page: usize) -> bool {
        use std::os::unix::fs::FileExt;
        let mut entry = [0; 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entry, (self.at as usize / PAGE + page) as u64 * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 != 0
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: its own mapping.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// Page faults of this thread so far.
fn faults() -> i64 {
    // SAFETY: room for the answer; zeros are a valid one.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_minflt + usage.ru_majflt
    }
}

#[test]
fn null_wild_unmapped_and_absent_memory_is_marked_at_its_dereference() {
    let kernel = load(&options());
    let mut reader = kernel.taking_reader().unwrap();
    let untouched = Pages::map(2);
    let gone = {
        let pages = Pages::map(1);
        pages.at as u64
    };
    let result = WordSpec { source: SOURCE_RESULT, ..integer(8, &[]) };
    let words = [
        integer(8, &[0]),
        integer(-1, &[0, 0]),
        integer(8, &[8, 24]),
        length(&[0]),
        length(&[0, 0]),
        length(&[8, 0]),
        result,
        integer(8, &[i32::MIN]),
    ];
    let lost = [Word::NoRegister; 6];
    for (kind, sites) in ways(marks) {
        configure(&kernel, &words, 0);
        let attached = attach(&kernel, kind, sites);
        let mut see = |argument: u64| found(&mut reader, marks, argument);
        let end = |first: Word, string: Word| {
            let second = match first {
                Word::Null(_) => Word::Null(1),
                _ => Word::Unreadable(1),
            };
            vec![first, second, second, string, second, second, Word::NoRegister, second]
        };
        assert_eq!(see(0), end(Word::Null(1), Word::Null(1)), "{kind:?}");
        // Not canonical, the kernel's, the last, not mapped, not touched.
        let kernels = 0xffff_ffff_8100_0000_u64;
        for wild in [0xdead_beef_dead_beef, kernels, u64::MAX, 8, gone, untouched.at as u64] {
            let all = end(Word::Unreadable(1), Word::Unreadable(1));
            assert_eq!(see(wild), all, "{kind:?} at {wild:#x}");
        }
        // One step further in: first a null, which is an empty text, then a wild pointer.
        let pair = [0_u64, 0x0000_dead_beef_dead];
        let at = pair.as_ptr() as u64;
        let (null, wild) = (Word::Null(2), Word::Unreadable(2));
        let word = see(at);
        assert_eq!(word[..3], [Word::Read(0), null, wild], "{kind:?}");
        assert_eq!(word[3..7], [Word::Read(0), null, wild, Word::NoRegister], "{kind:?}");
        // A pointer into a page that is there, to one that is not.
        let pointers = [untouched.at as u64, untouched.at as u64 + PAGE as u64];
        let word = see(pointers.as_ptr() as u64);
        assert_eq!(word[1..3], [wild, wild], "{kind:?}");
        assert_eq!(word[4..6], [wild, wild], "{kind:?}");
        drop(attached);

        // What the site has lost is nobody's.
        configure(&kernel, &words[..6], 1 << super::ARGUMENT);
        let sites = ways(marks).into_iter().find(|(k, _)| *k == kind).unwrap().1;
        let attached = attach(&kernel, kind, sites);
        assert_eq!(found(&mut reader, marks, at), lost, "{kind:?}");
        drop(attached);
    }
    assert!(!untouched.is_resident(0) && !untouched.is_resident(1), "reading brought a page in");
}

#[test]
fn pages_that_are_not_resident_stay_so_and_cost_the_target_no_fault() {
    let kernel = load(&options());
    let mut reader = kernel.taking_reader().unwrap();
    let pages = Pages::map(64);
    // One page of four is there.
    for page in (0..64).step_by(4) {
        // SAFETY: inside the mapping.
        unsafe { pages.at.add(page * PAGE).cast::<u64>().write_volatile(page as u64 + 1) };
    }
    configure(&kernel, &[integer(8, &[0]), length(&[8])], 0);
    let attached = attach(&kernel, LinkKind::ExitPair, vec![absent.entry(CLASS), absent.exit(CLASS)]);
    let call = |page: usize| absent.call(None, pages.at as u64 + (page * PAGE) as u64);
    call(0);
    let before = faults();
    for page in 0..64 {
        call(page);
    }
    assert_eq!(faults(), before, "page faults of the calls");
    drop(attached);
    let all = super::takings(&mut reader);
    for (page, taking) in (0..64).zip(&all[1..]) {
        let (number, text) = match page % 4 {
            0 => (Word::Read(page as u64 + 1), Word::Read(0)),
            _ => (Word::Unreadable(1), Word::Unreadable(1)),
        };
        assert_eq!(taking.words, [(0, number), (1, text)], "page {page}");
        assert_eq!(pages.is_resident(page), page % 4 == 0, "page {page}");
    }
}

#[test]
fn strings_have_their_length_up_to_the_bound() {
    let kernel = load(&options());
    let mut reader = kernel.taking_reader().unwrap();
    configure(&kernel, &[length(&[0]), length(&[3])], 0);
    let attached = attach(&kernel, LinkKind::ReturnPair, vec![strings.entry(CLASS)]);
    let bound = MAX_STRING as usize;
    let mut truth = |length: usize, unaligned: usize| {
        let mut text = vec![b'x'; unaligned + length];
        text.extend([0, b'y', b'y', b'y', b'y', 0]);
        let at = text[unaligned..].as_ptr() as u64;
        let known = |length: usize| {
            if length <= bound { Word::Read(length as u64) } else { Word::TooLong(1) }
        };
        // Of a string that is shorter than 3 the rest begins behind its end, and is no part of it.
        let rest = if length >= 3 { known(length - 3) } else { Word::Read(2 + length as u64) };
        assert_eq!(found(&mut reader, strings, at), [known(length), rest], "{length} bytes at +{unaligned}");
    };
    for length in [0, 1, 5, 7, 8, 4094, 4095, 4096, 4097, 4098, 4099, 4100, 9000] {
        for unaligned in [0, 1, 7] {
            truth(length, unaligned);
        }
    }
    // Up to the last byte of what is mapped, and beyond it.
    let pages = Pages::map(2);
    // SAFETY: both pages are this test's own; the second is not readable from now on, and nothing else comes to lie there.
    unsafe {
        pages.at.write_bytes(b'x', PAGE);
        libc::mprotect(pages.at.add(PAGE).cast(), PAGE, libc::PROT_NONE);
        pages.at.add(PAGE - 1).write(0);
    }
    let end = pages.at as u64 + PAGE as u64;
    assert_eq!(found(&mut reader, strings, end - 10), [Word::Read(9), Word::Read(6)]);
    // SAFETY: as above.
    unsafe { pages.at.add(PAGE - 1).write(b'x') };
    assert_eq!(found(&mut reader, strings, end - 10), [Word::Unreadable(1); 2]);
    drop(attached);
}
