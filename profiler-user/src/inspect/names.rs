//! Names for people: demangling, and the suffixes that compilers add.

use std::fmt::Write as _;

/// The name shown to people: Rust without its hash, C++ with parameters, others unchanged.
#[must_use]
pub fn demangle(symbol: &str) -> String {
    let (stem, suffix) = split_clone_suffix(symbol);
    if let Ok(name) = rustc_demangle::try_demangle(stem)
        && (stem.starts_with("_R") || has_rust_hash(stem))
    {
        return format!("{name:#}{suffix}");
    }
    if stem.starts_with("_Z")
        && let Ok(parsed) = cpp_demangle::Symbol::new(stem)
        && let Ok(mut name) = parsed.demangle()
    {
        if !suffix.is_empty() {
            let _ = write!(name, " [{}]", suffix.trim_start_matches('.'));
        }
        return name;
    }
    symbol.to_owned()
}

/// The C++ name without parameters, template arguments kept; `None` for other languages.
#[must_use]
pub fn without_parameters(symbol: &str) -> Option<String> {
    let (stem, _) = split_clone_suffix(symbol);
    if !stem.starts_with("_Z") || has_rust_hash(stem) {
        return None;
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    cpp_demangle::Symbol::new(stem).ok()?.demangle_with_options(&options).ok()
}

/// Legacy Rust names end in `17h` and 16 hexadecimal digits, then `E`.
fn has_rust_hash(symbol: &str) -> bool {
    let Some(body) = symbol.strip_suffix('E') else { return false };
    body.len() > 19
        && body.is_char_boundary(body.len() - 19)
        && body[body.len() - 19..].starts_with("17h")
        && body[body.len() - 16..].bytes().all(|b| b.is_ascii_hexdigit())
}

/// Where the hash of a legacy Rust name ends: after `17h`, 16 hexadecimal digits and `E`.
fn rust_hash_end(symbol: &str) -> Option<usize> {
    if !symbol.starts_with("_ZN") {
        return None;
    }
    let end = symbol.rfind("17h")? + 20;
    let stem = symbol.get(..end)?;
    has_rust_hash(stem).then_some(end)
}

/// Splits `foo.constprop.0` into `foo` and `.constprop.0`.
#[must_use]
pub fn split_clone_suffix(symbol: &str) -> (&str, &str) {
    // Legacy Rust names have dots of their own (`core..panic`): the suffix comes after the hash.
    if let Some(end) = rust_hash_end(symbol) {
        return symbol.split_at(end);
    }
    match symbol.find('.') {
        // A leading dot, or a version (`foo@@V1`), is no clone suffix.
        Some(at) if at > 0 => symbol.split_at(at),
        _ => (symbol, ""),
    }
}

/// What a compiler's suffix says about a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clone {
    /// An ordinary function.
    Whole,
    /// The cold half of a function, reached by jumps from it: no function of its own.
    Cold,
    /// The outlined rest of a function whose beginning is inlined into callers.
    Part,
    /// A copy specialised for some callers (`constprop`, `isra`, `lto_priv`, `llvm`).
    Specialised,
}

/// Reads the suffix.
#[must_use]
pub fn clone_kind(symbol: &str) -> Clone {
    let (_, suffix) = split_clone_suffix(symbol);
    let mut kind = Clone::Whole;
    for part in suffix.split('.') {
        match part {
            "cold" => return Clone::Cold,
            "part" => kind = Clone::Part,
            "constprop" | "isra" | "lto_priv" | "llvm" | "clone" if kind == Clone::Whole => {
                kind = Clone::Specialised;
            }
            _ => {}
        }
    }
    kind
}

/// A piece of a coroutine (`resume`, `destroy` and `cleanup` of clang, `actor` and `destroy` of GCC): it takes the coroutine's frame, and not what the function took.
#[must_use]
pub fn is_of_coroutine(symbol: &str) -> bool {
    let (_, suffix) = split_clone_suffix(symbol);
    suffix.split('.').any(|part| matches!(part, "resume" | "destroy" | "cleanup" | "actor"))
}

/// A copy that is the function as it was written, under another name: a link-time optimizer makes names of several files differ. It takes what it took.
#[must_use]
pub fn is_only_renamed(symbol: &str) -> bool {
    let (_, suffix) = split_clone_suffix(symbol);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut parts = suffix.split('.').skip(1).peekable();
    parts.peek().is_some_and(|first| !is_number(first))
        && parts.all(|part| is_number(part) || matches!(part, "lto_priv" | "llvm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_people() {
        let cases = [
            ("_ZN7mycrate2db5fetch17h0123456789abcdefE", "mycrate::db::fetch"),
            ("_RNvNtCs1234_7mycrate2db5fetch", "mycrate::db::fetch"),
            ("_ZN3foo3barEiPKc", "foo::bar(int, char const*)"),
            ("_ZN3foo3barEi.constprop.0", "foo::bar(int) [constprop.0]"),
            ("sqlite3_step", "sqlite3_step"),
            (
                "_ZN50_$LT$T$u20$as$u20$core..convert..Into$LT$U$GT$$GT$4into17h0123456789abcdefE.llvm.12",
                "<T as core::convert::Into<U>>::into.llvm.12",
            ),
            ("foo.part.0", "foo.part.0"),
        ];
        for (symbol, want) in cases {
            assert_eq!(demangle(symbol), want);
        }
        assert_eq!(without_parameters("_ZN3foo3barEiPKc").as_deref(), Some("foo::bar"));
        assert_eq!(without_parameters("_ZN7mycrate2db5fetch17h0123456789abcdefE"), None);
    }

    #[test]
    fn suffixes() {
        assert_eq!(clone_kind("foo"), Clone::Whole);
        assert_eq!(clone_kind("foo.cold"), Clone::Cold);
        assert_eq!(clone_kind("foo.part.0.cold.1"), Clone::Cold);
        assert_eq!(clone_kind("foo.part.0"), Clone::Part);
        assert_eq!(clone_kind("foo.isra.0.constprop.1"), Clone::Specialised);
        assert_eq!(clone_kind("foo.llvm.123"), Clone::Specialised);
        assert_eq!(clone_kind(".hidden"), Clone::Whole);
        let pieces = ["_Z1fii.resume", "_Z1fii.destroy", "_Z1fi.actor"].map(is_of_coroutine);
        let others = ["resume", "_Z1fii", "foo.constprop.0", "a_resume@V1"].map(is_of_coroutine);
        assert_eq!((pieces, others), ([true; 3], [false; 4]));
        for renamed in ["foo.lto_priv.0", "foo.llvm.123", "_ZN3foo3barEi.lto_priv.12.lto_priv.3"] {
            assert!(is_only_renamed(renamed), "{renamed}");
        }
        let changed = [
            "foo",
            "foo.isra.0",
            "foo.constprop.0.lto_priv.1",
            "foo.lto_priv.0.isra.0",
            "foo.part.0",
            "foo.0",
        ];
        for changed in changed {
            assert!(!is_only_renamed(changed), "{changed}");
        }
    }
}
