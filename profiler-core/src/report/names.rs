//! Names of functions as a table shows them: what tells them apart, and no more.
//!
//! A demangled name of C++ or Rust states parameters, template arguments, return type and hash. Few of them are read, and they push what
//! is read out of the column. [`short_names`] leaves them out where the names of one report stay different without them. Names of other
//! languages, and what is not understood, stay as they are. It cuts nothing to a width: that is a matter of layout.

use std::collections::{BTreeMap, BTreeSet};

/// Types within types that are looked into; deeper ones are shown as they are.
const DEEPEST: u32 = 8;

/// What is shown beside the path of a function.
#[derive(Debug, Clone, Copy)]
struct Shown {
    parameters: bool,
    arguments: bool,
}

/// The more of them are needed, the later.
const LEVELS: [Shown; 4] = [
    Shown { parameters: false, arguments: false },
    Shown { parameters: true, arguments: false },
    Shown { parameters: false, arguments: true },
    Shown { parameters: true, arguments: true },
];

/// The short form of each name, in their order: without parameters, template arguments, return type and hash, but for those that tell
/// two of `names` apart.
///
/// ```
/// use profiler_core::report::names::short_names;
/// let names = ["v8::Parser<char>::Parse(v8::Isolate*)", "log(int)", "log(char const*)"];
/// assert_eq!(short_names(&names), ["v8::Parser::Parse", "log(int)", "log(char const*)"]);
/// ```
#[must_use]
pub fn short_names(names: &[&str]) -> Vec<String> {
    let shortest = |name: &str| shorten(name, LEVELS[0], 0).unwrap_or_else(|| name.to_owned());
    let mut alike: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for name in names {
        alike.entry(shortest(name)).or_default().insert(name);
    }
    let mut chosen: BTreeMap<&str, String> = BTreeMap::new();
    for group in alike.values() {
        let at = |level: Shown| group.iter().map(move |n| shorten(n, level, 0));
        let differ = |level: &&Shown| at(**level).collect::<BTreeSet<_>>().len() == group.len();
        let level = LEVELS.iter().find(differ).copied();
        for name in group {
            let short = level.and_then(|level| shorten(name, level, 0));
            chosen.insert(name, short.unwrap_or_else(|| (*name).to_owned()));
        }
    }
    names.iter().map(|name| chosen[name].clone()).collect()
}

/// The parts of a name between `::`, those inside brackets left alone.
#[must_use]
pub fn path(name: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut from, mut at) = (0, 0);
    while let Some(c) = name[at..].chars().next() {
        if "(<[{".contains(c) {
            let Some(end) = group_end(name, at) else { break };
            at = end + 1;
        } else if name[at..].starts_with("::") && at > from {
            parts.push(&name[from..at]);
            at += 2;
            from = at;
        } else {
            at += c.len_utf8();
        }
    }
    parts.push(&name[from..]);
    parts
}

/// `None`: its brackets do not fit together.
fn shorten(name: &str, shown: Shown, depth: u32) -> Option<String> {
    // Paths are no names of C++ or Rust (Go, JavaScript, Python), and one that is all brackets is a remark.
    if depth > DEEPEST
        || name.contains(['/', '\\'])
        || name.starts_with(['<', '[', '(']) && group_end(name, 0)? + 1 == name.len()
    {
        return Some(name.to_owned());
    }
    let name = without_hash(name);
    if let Some((thunk, of)) = name.split_once("thunk to ") {
        return Some(format!("{thunk}thunk to {}", shorten(of, shown, depth + 1)?));
    }
    let signature = has_signature(name);
    let mut out = String::with_capacity(name.len());
    let mut at = 0;
    while let Some(c) = name[at..].chars().next() {
        let rest = &name[at..];
        let begins = out.is_empty() || out.ends_with("::");
        if let Some(operator) = operator(rest).filter(|_| begins) {
            out.push_str(operator);
            at += operator.len();
            continue;
        }
        match c {
            ' ' if rest.starts_with(" [") => {
                out.push_str(rest);
                break;
            }
            // `operator<< <char>`
            ' ' if rest.starts_with(" <") && !begins => at += 1,
            // What came before was the return type.
            ' ' if signature => {
                out.clear();
                at += 1;
            }
            '<' | '(' | '[' | '{' => {
                let end = group_end(name, at)? + 1;
                let group = &name[at..end];
                let after = end + if c == '(' { qualifiers(&name[end..]) } else { 0 };
                let ends = name[after..].is_empty() || name[after..].starts_with("::");
                let ends = ends || name[after..].starts_with(" [");
                match c {
                    '<' => push_angled(&mut out, group, ends, shown, depth)?,
                    '(' if begins || !(ends || signature) => out.push_str(&name[at..after]),
                    '(' if shown.parameters => out.push_str(&name[at..after]),
                    '(' => {}
                    '{' => push_braced(&mut out, group, shown)?,
                    _ if group.starts_with("[abi:") => {}
                    // Type arguments of Go.
                    _ if (group == "[...]" || group.starts_with("[go.")) && !shown.arguments => {}
                    _ => out.push_str(group),
                }
                at = after;
            }
            c => {
                out.push(c);
                at += c.len_utf8();
            }
        }
    }
    Some(out)
}

/// A group in angle brackets: a type that a path begins with, or arguments.
fn push_angled(out: &mut String, group: &str, ends: bool, shown: Shown, depth: u32) -> Option<()> {
    let inside = &group[1..group.len() - 1];
    let (first, begins) = (out.is_empty(), out.is_empty() || out.ends_with("::"));
    if !begins {
        // Arguments of what stands before it.
    } else if let Some((of, kind)) = split_as(inside) {
        let (of, kind) = (shorten(of, shown, depth + 1)?, shorten(kind, shown, depth + 1)?);
        out.push_str(&format!("<{of} as {kind}>"));
        return Some(());
    } else if inside.starts_with("impl ") {
        out.push_str(&format!("<{}>", shorten(inside, shown, depth + 1)?));
        return Some(());
    } else if first {
        out.push_str(&shorten(inside, shown, depth + 1)?);
        return Some(());
    } else if !ends {
        out.push_str(group);
        return Some(());
    }
    if shown.arguments {
        out.push_str(group);
    } else if begins {
        // `for_each::<T>` is `for_each`.
        out.truncate(out.len() - 2);
    }
    Some(())
}

/// `{lambda(int)#1}`: a closure with its number, without its parameters.
fn push_braced(out: &mut String, group: &str, shown: Shown) -> Option<()> {
    if shown.parameters {
        out.push_str(group);
        return Some(());
    }
    let mut at = 0;
    while let Some(c) = group[at..].chars().next() {
        if "(<".contains(c) {
            at = group_end(group, at)? + 1;
            continue;
        }
        out.push(c);
        at += c.len_utf8();
    }
    Some(())
}

/// `T as Trait`, outside of brackets.
fn split_as(inside: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    while let Some(c) = inside[at..].chars().next() {
        if inside[at..].starts_with(" as ") {
            return Some((&inside[..at], &inside[at + 4..]));
        }
        at = if "(<[{".contains(c) { group_end(inside, at)? + 1 } else { at + c.len_utf8() };
    }
    None
}

/// Where the group that opens at `from` closes. `<` may also mean *less than*, so other brackets end it.
fn group_end(name: &str, from: usize) -> Option<usize> {
    let mut open: Vec<char> = Vec::new();
    let mut before = ' ';
    for (at, c) in name[from..].char_indices() {
        match c {
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            '<' => open.push('>'),
            // `->` closes nothing.
            '>' if before != '-' && open.last() == Some(&'>') => {
                open.pop();
            }
            ')' | ']' | '}' => while open.pop()? != c {},
            _ => {}
        }
        if open.is_empty() {
            return Some(from + at);
        }
        before = c;
    }
    None
}

/// It ends in the parameters of a C++ function, so it may begin with the type that the function returns.
fn has_signature(name: &str) -> bool {
    let mut name = name;
    while let Some(at) = name.rfind(" [").filter(|_| name.ends_with(']')) {
        name = &name[..at];
    }
    loop {
        let shorter = QUALIFIERS.iter().find_map(|q| name.strip_suffix(q));
        let Some(shorter) = shorter else { break };
        name = shorter;
    }
    name.ends_with(')')
}

const QUALIFIERS: [&str; 7] = [" const", " volatile", " noexcept", " &&", " &", "&&", "&"];

/// How many bytes qualify the function whose parameters end here.
fn qualifiers(rest: &str) -> usize {
    let mut left = rest;
    while let Some(shorter) = QUALIFIERS.iter().find_map(|q| left.strip_prefix(q)) {
        left = shorter;
    }
    rest.len() - left.len()
}

/// The operator of C++ that `rest` begins with, with the word.
fn operator(rest: &str) -> Option<&str> {
    /// Those whose signs are brackets, longest first.
    const SIGNS: [&str; 12] = ["()", "[]", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<"];
    let sign = rest.strip_prefix("operator")?;
    let length = match sign.chars().next()? {
        c if c.is_alphanumeric() || c == '_' => return None,
        // A conversion, `new`, a literal.
        ' ' | '"' => sign.find('(').unwrap_or(sign.len()),
        _ => SIGNS.iter().chain(&[">"]).find(|s| sign.starts_with(**s)).map_or(0, |s| s.len()),
    };
    Some(&rest[..rest.len() - sign.len() + length])
}

/// Without `::h0123456789abcdef` of Rust and `.llvm.123` of a linker.
fn without_hash(name: &str) -> &str {
    let hex = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let name = name.rsplit_once(".llvm.").filter(|(_, n)| digits(n)).map_or(name, |(name, _)| name);
    name.rsplit_once("::h").filter(|(_, hash)| hex(hash)).map_or(name, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_and_rust_lose_what_few_read() {
        let cases = [
            (
                "v8::internal::JsonParser<unsigned char>::ParseJsonValue(v8::internal::Isolate*)",
                "v8::internal::JsonParser::ParseJsonValue",
            ),
            ("std::enable_if<true, int>::type foo<char>(std::map<int, int> const&) const", "foo"),
            ("void (anonymous namespace)::Pool<int>::run(int) &&", "(anonymous namespace)::Pool::run"),
            ("foo(int)::{lambda(char)#2}::operator()(char) const", "foo::{lambda#2}::operator()"),
            (
                "std::ostream& std::operator<< <std::char_traits<char> >(std::ostream&, char)",
                "std::operator<<",
            ),
            ("bool operator< <int>(A<int> const&, A<int> const&)", "operator<"),
            ("Foo::operator std::vector<int>() const", "Foo::operator std::vector<int>"),
            ("Ptr<T>::operator->() const", "Ptr::operator->"),
            ("Foo::operator new(unsigned long)", "Foo::operator new"),
            ("std::string[abi:cxx11]::size() const", "std::string::size"),
            ("foo::bar(int, char const*) [constprop.0]", "foo::bar [constprop.0]"),
            ("non-virtual thunk to Foo::bar(int)", "non-virtual thunk to Foo::bar"),
            ("core::iter::Iterator::for_each::<alloc::vec::Vec<u8>>", "core::iter::Iterator::for_each"),
            (
                "<alloc::vec::Vec<T> as core::ops::Index<I>>::index",
                "<alloc::vec::Vec as core::ops::Index>::index",
            ),
            (
                "core::fmt::impls::<impl core::fmt::Display for Foo<T>>::fmt",
                "core::fmt::impls::<impl core::fmt::Display for Foo>::fmt",
            ),
            ("<tokio::Park<fn(u8) -> u8>>::poll::{closure#0}", "tokio::Park::poll::{closure#0}"),
            ("mycrate::main::{{closure}}::h0123456789abcdef", "mycrate::main::{{closure}}"),
            ("core::ptr::drop_in_place<alloc::string::String>.llvm.77", "core::ptr::drop_in_place"),
        ];
        for (name, short) in cases {
            assert_eq!(short_names(&[name]), [short], "{name}");
        }
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for name in [
            "main",
            "foo.part.0",
            "[unknown]",
            "<frozen importlib._bootstrap>",
            "py::<lambda>:/srv/a b.py",
            "main.(*Server).Serve",
            "net/http.(*conn).serve",
            "JS:~parse /app/x.js:1:2",
            "libc.so.6:probe a",
            "broken<(name",
            "a)b>c",
            "",
        ] {
            assert_eq!(short_names(&[name]), [name]);
        }
        let deep = "<".repeat(50_000);
        assert_eq!(short_names(&[&deep]), [deep.as_str()]);
    }

    #[test]
    fn what_tells_two_names_apart_is_shown() {
        let check = |names: &[&str], short: &[&str]| assert_eq!(short_names(names), short);
        check(&["f(int)", "f(char)", "g(int)"], &["f(int)", "f(char)", "g"]);
        check(&["A<int>::f(int)", "A<char>::f(int)"], &["A<int>::f", "A<char>::f"]);
        check(
            &["int A<int>::f(int)", "int A<char>::f(int)", "int A<char>::f(long)"],
            &["A<int>::f(int)", "A<char>::f(int)", "A<char>::f(long)"],
        );
        check(&["int f(int)", "long f(int)"], &["int f(int)", "long f(int)"]);
        check(&["f::<u8>", "f::<u16>"], &["f::<u8>", "f::<u16>"]);
        check(
            &["f::h0123456789abcdef", "f::h0123456789abcdee"],
            &["f::h0123456789abcdef", "f::h0123456789abcdee"],
        );
        // The same function in two modules: nothing in the name tells them apart.
        check(&["f(int)", "f(int)"], &["f", "f"]);
    }

    #[test]
    fn a_path_is_split_outside_of_brackets() {
        assert_eq!(path("a::<b::c as d::e>::f(g::h)"), ["a", "<b::c as d::e>", "f(g::h)"]);
        assert_eq!(path("::f"), ["::f"]);
        assert_eq!(path("a::b<c::d"), ["a", "b<c::d"]);
    }
}
