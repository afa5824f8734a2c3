use super::*;
use crate::inspect::maps;
use std::path::{Path, PathBuf};

/// A module that this process maps.
fn mapped_here(stem: &str) -> PathBuf {
    let maps = maps::parse(&std::fs::read("/proc/self/maps").unwrap());
    let paths = maps.into_iter().filter_map(|map| match map.backing {
        Backing::File { path, .. } => Some(path),
        _ => None,
    });
    let mut named = paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(stem));
    named.next().unwrap_or_else(|| panic!("this process maps no {stem}"))
}

fn judged(path: &Path) -> Result<Links, Unwinding> {
    of_module(&Module::offline(path).unwrap())
}

#[test]
fn functions_that_raise_end_or_walk_are_told_by_name() {
    use UnwindingKind::{EndsThreads, LooksUp, Raises, Walks};
    for (name, expected) in [
        ("_Unwind_RaiseException", Some(Raises)),
        ("_Unwind_Resume", Some(Raises)),
        ("_Unwind_Resume_or_Rethrow", Some(Raises)),
        ("_Unwind_ForcedUnwind", Some(Raises)),
        ("__cxa_throw", Some(Raises)),
        ("__cxa_rethrow", Some(Raises)),
        ("_ZSt20__throw_length_errorPKc", Some(Raises)),
        ("__gxx_personality_v0", Some(Raises)),
        ("pthread_exit", Some(EndsThreads)),
        ("pthread_cancel", Some(EndsThreads)),
        ("thrd_exit", Some(EndsThreads)),
        ("__pthread_unwind_next", Some(EndsThreads)),
        ("_Unwind_Backtrace", Some(Walks)),
        ("_Unwind_Find_FDE", Some(Walks)),
        ("backtrace", Some(Walks)),
        ("_ULx86_64_step", Some(Walks)),
        ("unw_resume", Some(Walks)),
        ("dl_iterate_phdr", Some(Walks)),
        ("dlsym", Some(LooksUp)),
        ("dlvsym", Some(LooksUp)),
        ("dlopen", Some(LooksUp)),
        // The C library loads a module for these.
        ("iconv_open", Some(LooksUp)),
        ("getaddrinfo", Some(LooksUp)),
        ("getpwnam_r", Some(LooksUp)),
        ("getgroups", None),
        ("getpid", None),
        ("__cxa_finalize", None),
        ("__cxa_atexit", None),
        ("pthread_create", None),
        ("dladdr", None),
        ("backtrace_enabled", None),
        ("longjmp", None),
    ] {
        assert_eq!(kind_of(name), expected, "{name}");
    }
}

#[test]
fn real_modules_are_judged_by_what_they_import() {
    let unwinder = judged(&mapped_here("libgcc_s.so")).unwrap();
    assert_eq!(unwinder.soname.as_deref(), Some("libgcc_s.so.1"));
    let own = judged(&std::env::current_exe().unwrap()).unwrap_err();
    assert_eq!(own.kind, UnwindingKind::Raises, "{own:?}");
    assert!(own.why.starts_with("imports _Unwind_"), "{own:?}");
    // The C library is taken as it is.
    judged(&mapped_here("libc.so")).unwrap();
}

#[test]
fn a_name_makes_no_unwinder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libgcc_s.so.1");
    std::fs::copy("/bin/sh", &path).unwrap();
    let why = judged(&path).unwrap_err();
    assert_eq!(why.why, "is named like an unwinder and does not export _Unwind_RaiseException");
    // The unwinder by another name is a module that contains one.
    let path = dir.path().join("libother.so");
    std::fs::copy(mapped_here("libgcc_s.so"), &path).unwrap();
    let why = judged(&path).unwrap_err();
    assert!(why.kind == UnwindingKind::Raises && why.why.starts_with("contains "), "{why:?}");
}

#[test]
fn code_that_no_file_shows_is_told_from_the_kernels() {
    let unseen = |line: &str| has_unseen_code(&maps::parse(line.as_bytes()));
    for line in [
        "7f00000000-7f00001000 r-xp 00000000 00:00 0 \n",
        "7f00000000-7f00001000 rwxp 00000000 00:00 0 [stack]\n",
        "7f00000000-7f00001000 r-xp 00000000 00:00 0 [anon:code]\n",
        "7f00000000-7f00001000 rwxp 00000000 08:01 77 /lib/x.so\n",
    ] {
        assert!(unseen(line), "{line}");
    }
    for line in [
        "7f00000000-7f00001000 r-xp 00000000 00:00 0 [vdso]\n",
        "7f00000000-7f00001000 --xp 00000000 00:00 0 [vsyscall]\n",
        "7f00000000-7f00001000 --xp 00000000 00:00 0 [uprobes]\n",
        "7f00000000-7f00001000 r-xp 00000000 08:01 77 /lib/x.so\n",
        "7f00000000-7f00001000 rw-p 00000000 00:00 0 [heap]\n",
    ] {
        assert!(!unseen(line), "{line}");
    }
}
