//! Integer parameters of functions that standards name: what a call of another module's function can pass on.
//!
//! Sources: ISO C 17 §7 (`string.h`, `stdlib.h`, `stdio.h`), POSIX.1-2017, the Linux Standard Base 5 (`__*_chk`, `__errno_location`), the Itanium C++ ABI (§2, §3.3.5,
//! `operator new` and `delete` by their mangled names). Functions with variable arguments or floating-point ones are left out.

/// Names and numbers of parameters, in order of the names.
const PROTOTYPES: [(&str, u8); 90] = [
    ("_Unwind_Resume", 1),
    ("_ZdaPv", 1),
    ("_ZdaPvm", 2),
    ("_ZdlPv", 1),
    ("_ZdlPvm", 2),
    ("_Znam", 1),
    ("_Znwm", 1),
    ("__cxa_allocate_exception", 1),
    ("__cxa_begin_catch", 1),
    ("__cxa_end_catch", 0),
    ("__cxa_guard_acquire", 1),
    ("__cxa_guard_release", 1),
    ("__cxa_rethrow", 0),
    ("__cxa_throw", 3),
    ("__errno_location", 0),
    ("__memcpy_chk", 4),
    ("__memmove_chk", 4),
    ("__memset_chk", 4),
    ("__stack_chk_fail", 0),
    ("__strcat_chk", 3),
    ("__strcpy_chk", 3),
    ("abort", 0),
    ("atoi", 1),
    ("atol", 1),
    ("bsearch", 5),
    ("calloc", 2),
    ("clock_gettime", 2),
    ("close", 1),
    ("exit", 1),
    ("fclose", 1),
    ("feof", 1),
    ("ferror", 1),
    ("fflush", 1),
    ("fgetc", 1),
    ("fgets", 3),
    ("fputc", 2),
    ("fputs", 2),
    ("fread", 4),
    ("free", 1),
    ("fseek", 3),
    ("fsync", 1),
    ("ftell", 1),
    ("fwrite", 4),
    ("getenv", 1),
    ("getpid", 0),
    ("lseek", 3),
    ("malloc", 1),
    ("memchr", 3),
    ("memcmp", 3),
    ("memcpy", 3),
    ("memmove", 3),
    ("memset", 3),
    ("munmap", 2),
    ("nanosleep", 2),
    ("posix_memalign", 3),
    ("pread", 4),
    ("pthread_cond_signal", 1),
    ("pthread_cond_wait", 2),
    ("pthread_mutex_lock", 1),
    ("pthread_mutex_unlock", 1),
    ("pthread_self", 0),
    ("putchar", 1),
    ("puts", 1),
    ("pwrite", 4),
    ("qsort", 4),
    ("rand", 0),
    ("read", 3),
    ("realloc", 2),
    ("recv", 4),
    ("sched_yield", 0),
    ("send", 4),
    ("strcat", 2),
    ("strchr", 2),
    ("strcmp", 2),
    ("strcpy", 2),
    ("strcspn", 2),
    ("strdup", 1),
    ("strlen", 1),
    ("strncmp", 3),
    ("strncpy", 3),
    ("strnlen", 2),
    ("strrchr", 2),
    ("strspn", 2),
    ("strstr", 2),
    ("strtol", 3),
    ("strtoul", 3),
    ("time", 1),
    ("tolower", 1),
    ("usleep", 1),
    ("write", 3),
];

/// How many integer parameters a function of this name has; `None`: no standard says so.
pub(super) fn parameters(name: &str) -> Option<u8> {
    let found = PROTOTYPES.binary_search_by_key(&name, |(name, _)| name).ok();
    found.and_then(|i| PROTOTYPES.get(i)).map(|(_, count)| *count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_found() {
        assert!(PROTOTYPES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(PROTOTYPES.iter().all(|(_, count)| *count <= 6));
        assert_eq!(
            (parameters("memcpy"), parameters("abort"), parameters("write")),
            (Some(3), Some(0), Some(3))
        );
        assert_eq!((parameters("printf"), parameters("compress2")), (None, None));
    }
}
