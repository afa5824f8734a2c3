//! Leftovers in memory of our own, and in programs that are not ours.

use super::*;
use std::os::fd::AsRawFd;

#[test]
fn only_pages_of_the_process_s_own_are_private() {
    assert!(is_private(PRESENT) && is_private(SWAPPED | 77));
    assert!(!is_private(0) && !is_private(PRESENT | OF_FILE) && !is_private(OF_FILE));
    let pages = File::open("/proc/self/pagemap").unwrap();
    // A page of this program's text, which has been run, and one of its heap.
    let text = is_private as fn(u64) -> bool as usize as u64;
    let heap = vec![1u8; 3 * PAGE as usize];
    let heap = std::hint::black_box(&heap).as_ptr() as u64 + PAGE;
    assert!(!any_private(&pages, text, text + 1));
    assert!(any_private(&pages, heap, heap + 1));
}

#[test]
fn only_places_that_are_clean_afterwards_are_counted() {
    let file = Arc::new(TargetFile::named_by_user(Path::new("/proc/self/exe")).unwrap());
    let mut places = Places::default();
    // One of three is somebody's own, and one came later.
    places.see(&[(Arc::clone(&file), vec![16, 32, 48])]);
    places.see(&[(Arc::clone(&file), vec![32, 64])]);
    for _ in 0..2 {
        places.see(&[(Arc::clone(&file), vec![32])]);
    }
    assert_eq!(places.gone(), 3);
}

#[test]
fn a_huge_mapping_is_given_up_and_small_ones_are_looked_through_first() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, &[0x90; 4096]).unwrap();
    let len = 8_usize << 40;
    file.as_file().set_len(len as u64).unwrap();
    let map = |len: usize, protection: i32| {
        let (kind, fd) = (libc::MAP_PRIVATE | libc::MAP_NORESERVE, file.as_file().as_raw_fd());
        // SAFETY: a new private mapping that replaces none.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, kind, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        at
    };
    let huge = map(len, libc::PROT_READ | libc::PROT_EXEC);
    let small = map(4096, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the page is ours, writable until the next call, and nothing runs it.
    unsafe {
        small.cast::<u8>().add(77).write(INT3);
        assert_eq!(libc::mprotect(small, 4096, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
    let begin = Instant::now();
    let look = leftovers(std::process::id(), begin + Duration::from_secs(1)).unwrap();
    let took = begin.elapsed();
    // SAFETY: our own mappings; nothing refers to them.
    unsafe {
        libc::munmap(huge, len);
        libc::munmap(small, 4096);
    }
    let identity = TargetFile::named_by_user(file.path()).unwrap().identity();
    let found: Vec<_> = look.found.iter().filter(|(file, _)| file.identity() == identity).collect();
    assert_eq!(found.iter().map(|(_, at)| at.clone()).collect::<Vec<_>>(), [[77]]);
    assert!(!look.is_whole && took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn a_byte_of_somebodys_call_is_no_breakpoint() {
    let original = [0x90; 12];
    let mut now = original;
    now[6] = INT3;
    assert!(stands_alone(&now, &original, 6) && stands_alone(&now, &original, 0));
    // Two probes side by side.
    now[5] = INT3;
    assert!(stands_alone(&now, &original, 6));
    for k in 2..=5 {
        let mut now = original;
        (now[k], now[6]) = (CALL, INT3);
        assert!(!stands_alone(&now, &original, 6), "{k}");
    }
}

#[test]
fn only_calls_of_the_kernels_trampoline_are_probes() {
    let maps = maps::parse(
        b"400000-401000 r-xp 00000000 fe:00 7 /bin/app\n\
          7f0000-7f1000 r-xp 00000000 00:00 0 [uprobes-trampoline]\n\
          7f1000-7f2000 r-xp 00000000 00:00 0 \n",
    );
    let call = |to: i64| {
        let mut code = vec![CALL];
        code.extend(i32::try_from(to - 0x40_0105).unwrap().to_le_bytes());
        code
    };
    assert!(
        calls_probe(&call(0x7f_0000), 0x40_0100, &maps) && calls_probe(&call(0x7f_0fff), 0x40_0100, &maps)
    );
    // A hook of the program's own, memory that it made, and less than a call.
    assert!(
        !calls_probe(&call(0x40_0800), 0x40_0100, &maps) && !calls_probe(&call(0x7f_1000), 0x40_0100, &maps)
    );
    assert!(!calls_probe(&call(0x7f_0000)[..4], 0x40_0100, &maps));
}
