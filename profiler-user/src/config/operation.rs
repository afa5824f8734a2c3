//! Operations and measures, as people write them (`--operation`, `--measure`).
//!
//! ```text
//! NAME=FUNCTION                          from the function's entry to its return
//! NAME=BEGIN..END                        from a call of BEGIN to a call of END on the same thread
//! NAME=usdt:P:BEGIN..usdt:P:END          from one USDT probe of provider P to another on the same thread; either bound
//!                                        may be a function instead
//! NAME=syscall:CALL                      one system call
//! NAME=syscall:BEGIN..syscall:END        from the return of BEGIN to the return of END on the same thread
//! NAME=tp:C:BEGIN..tp:C:END              from one tracepoint of category C to another on the same thread
//! …,class=argK:str|slice|int|long        one class for each value of BEGIN's argument K (0 to 5; of a probe 0 to 11,
//!                                        and the kind may be left out: an integer as wide as the probe says; of a
//!                                        tracepoint 0 to 11, int or long)
//! ```

use super::tracepoints;
use crate::prober::operation::{ARGUMENT_INT, ARGUMENT_LONG, ARGUMENT_SLICE, ARGUMENT_STRING};
use crate::target::syscalls;
use std::str::FromStr;

/// One end of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// A function, by a pattern.
    Function(String),
    /// A USDT probe.
    Usdt {
        /// Its provider.
        provider: String,
        /// Its name.
        name: String,
    },
    /// A system call: its number.
    Syscall(usize),
    /// A tracepoint of the kernel.
    Tracepoint {
        /// Its category.
        category: String,
        /// Its name, by which alone the kernel knows it.
        name: String,
    },
}

impl Bound {
    /// What can only be paired with itself.
    pub(crate) fn family(&self) -> u32 {
        match self {
            Self::Function(_) | Self::Usdt { .. } => 0,
            Self::Syscall(_) => 1,
            Self::Tracepoint { .. } => 2,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tracepoint { name, .. }, Self::Tracepoint { name: other, .. }) => name == other,
            _ => self == other,
        }
    }
}

/// Begin and end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bounds {
    /// One function, or one system call.
    One(Bound),
    /// Two system calls, two tracepoints, or two of functions and probes.
    Pair(Bound, Bound),
}

/// The argument that names the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassArgument {
    /// Which, from 0.
    pub index: u32,
    /// `ARGUMENT_*` of the kernel side.
    pub kind: u32,
}

impl ClassArgument {
    /// Registers that must be as the caller passed them, as [`crate::inspect::Site::arguments`].
    #[must_use]
    pub fn mask(self) -> u8 {
        // Those of probes and tracepoints go on where registers end.
        let one = 1_u8.checked_shl(self.index).unwrap_or(0);
        if self.kind == ARGUMENT_SLICE { one | one << 1 } else { one }
    }
}

/// `--operation`, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationSpec {
    /// As it was typed.
    pub text: String,
    /// Name of the operation.
    pub name: String,
    /// Begin and end.
    pub bounds: Bounds,
    /// What tells requests apart.
    pub class: Option<ClassArgument>,
}

impl FromStr for OperationSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, rest)) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
            return Err(
                "write NAME=FUNCTION, NAME=BEGIN..END or NAME=syscall:CALL, like 'req=handle_request'"
                    .to_owned(),
            );
        };
        // From the right: names of functions hold commas and '='.
        let (bounds, class) = match rest.rsplit_once(",class=") {
            Some((bounds, class)) => (bounds, Some(class)),
            None => (rest, None),
        };
        let bounds = match bounds.split_once("..") {
            None => Bounds::One(bound(bounds, "begin")?),
            Some((begin, end)) => Bounds::Pair(bound(begin, "begin")?, bound(end, "end")?),
        };
        if let Bounds::One(Bound::Usdt { provider, name }) = &bounds {
            return Err(format!(
                "the probe 'usdt:{provider}:{name}' is a point and has no end; write NAME=usdt:PROVIDER:BEGIN..usdt:PROVIDER:END, \
                 or name the function that holds it"
            ));
        }
        if let Bounds::One(Bound::Tracepoint { category, name }) = &bounds {
            return Err(format!(
                "the tracepoint 'tp:{category}:{name}' is a point and has no end; write NAME=tp:CATEGORY:BEGIN..tp:CATEGORY:END"
            ));
        }
        if let Bounds::Pair(a, b) = &bounds {
            if a.family() != b.family() {
                return Err(DIFFERENT.to_owned());
            }
            if a.is_same(b) {
                return Err(
                    "begin and end are the same; for one call from its begin to its end write NAME=FUNCTION"
                        .to_owned(),
                );
            }
        }
        let of_probe = matches!(&bounds, Bounds::Pair(Bound::Usdt { .. }, _));
        let of_tracepoint = matches!(&bounds, Bounds::Pair(Bound::Tracepoint { .. }, _));
        let class = class
            .map(
                |text| {
                    if of_tracepoint { tracepoints::argument(text) } else { class_argument(text, of_probe) }
                },
            )
            .transpose()?;
        let has_syscall =
            matches!(&bounds, Bounds::One(Bound::Syscall(_)) | Bounds::Pair(Bound::Syscall(_), _));
        if class.is_some() && has_syscall {
            return Err(
                "a class argument needs a function, a USDT probe or a tracepoint as begin: system calls are told apart by name only"
                    .to_owned(),
            );
        }
        Ok(Self { text: text.to_owned(), name: name.trim().to_owned(), bounds, class })
    }
}

fn bound(text: &str, which: &str) -> Result<Bound, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err(format!(
            "the {which} is empty: write NAME=BEGIN..END, or NAME=FUNCTION for a call from its begin to its end"
        ));
    }
    if let Some(name) = text.strip_prefix("syscall:") {
        let number = syscalls::number(name).ok_or_else(|| {
            format!("there is no system call '{name}' on x86-64; 'man syscalls' lists them")
        })?;
        return Ok(Bound::Syscall(number));
    }
    if let Some(probe) = text.strip_prefix("usdt:") {
        let parts: Vec<&str> = probe.split(':').collect();
        let [provider, name] = parts.as_slice() else {
            return Err(format!("'{text}': write usdt:PROVIDER:NAME, like 'usdt:python:function__entry'"));
        };
        if provider.is_empty() || name.is_empty() {
            return Err(format!("'{text}': write usdt:PROVIDER:NAME, like 'usdt:python:function__entry'"));
        }
        return Ok(Bound::Usdt { provider: (*provider).to_owned(), name: (*name).to_owned() });
    }
    if let Some(event) = text.strip_prefix("tp:") {
        return tracepoints::bound(text, event);
    }
    Ok(Bound::Function(text.to_owned()))
}

/// What a pair must be made of.
pub(crate) const DIFFERENT: &str =
    "begin and end must both be functions (or USDT probes), both system calls or both tracepoints";

/// Arguments that a USDT probe may have (`<sys/sdt.h>`).
const PROBE_ARGUMENTS: u32 = 12;
/// Arguments of a function that lie in registers.
pub(super) const FUNCTION_ARGUMENTS: u32 = 6;

/// `arg0:str`; of a probe `arg0` as well.
fn class_argument(text: &str, of_probe: bool) -> Result<ClassArgument, String> {
    let count = if of_probe { PROBE_ARGUMENTS } else { FUNCTION_ARGUMENTS };
    let wrong = || {
        format!(
            "'class={text}': write class=argK:str (a C string), :slice (pointer, and length in the next argument), :int or :long, with K from 0 to {}",
            count - 1
        )
    };
    // The note of a probe says how wide the value is and whether it has a sign; it is widened to a long.
    let (index, kind) = if of_probe && !text.contains(':') {
        (text, "long")
    } else {
        text.split_once(':').ok_or_else(wrong)?
    };
    let index = argument_index(index, count).ok_or_else(wrong)?;
    let kind = match kind {
        "str" => ARGUMENT_STRING,
        "slice" => ARGUMENT_SLICE,
        "int" => ARGUMENT_INT,
        "long" => ARGUMENT_LONG,
        _ => return Err(wrong()),
    };
    if kind == ARGUMENT_SLICE && index == 5 && !of_probe {
        return Err(
            "class=arg5:slice: its length would be in a seventh argument, which lies on the stack".to_owned()
        );
    }
    Ok(ClassArgument { index, kind })
}

pub(super) fn argument_index(text: &str, count: u32) -> Option<u32> {
    text.strip_prefix("arg").and_then(|k| k.parse().ok()).filter(|k| *k < count)
}

/// `--measure`, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasureSpec {
    /// The function, by a pattern.
    pub function: String,
    /// Which argument is summed up; `None`: calls are counted.
    pub argument: Option<u32>,
}

impl FromStr for MeasureSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("write FUNCTION:argK for the sum of an argument, or FUNCTION for its calls, like 'malloc:arg0'".to_owned());
        }
        // `libc.so.6:malloc` is a function.
        match text.rsplit_once(':').map(|(function, k)| (function, argument_index(k, FUNCTION_ARGUMENTS))) {
            Some((function, Some(k))) if !function.is_empty() => {
                Ok(Self { function: function.to_owned(), argument: Some(k) })
            }
            _ => Ok(Self { function: text.to_owned(), argument: None }),
        }
    }
}

impl MeasureSpec {
    /// In words.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self.argument {
            Some(k) => format!("sum of argument {k} of {}", self.function),
            None => format!("calls of {}", self.function),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<OperationSpec, String> {
        text.parse()
    }

    fn function(text: &str) -> Bound {
        Bound::Function(text.to_owned())
    }

    #[test]
    fn operations_are_written_in_four_ways() {
        let one = spec("req=handle_request").unwrap();
        assert_eq!((one.name.as_str(), one.bounds), ("req", Bounds::One(function("handle_request"))));
        let pair = spec("req=begin..end,class=arg1:str").unwrap();
        assert_eq!(pair.bounds, Bounds::Pair(function("begin"), function("end")));
        assert_eq!(pair.class, Some(ClassArgument { index: 1, kind: ARGUMENT_STRING }));
        assert_eq!(spec("s=syscall:fsync").unwrap().bounds, Bounds::One(Bound::Syscall(74)));
        let pair = spec("s=syscall:read..syscall:write").unwrap().bounds;
        assert_eq!(pair, Bounds::Pair(Bound::Syscall(0), Bound::Syscall(1)));
        // Names of C++ functions.
        let cpp = spec("q=db::query<int, 3>::operator==,class=arg0:slice").unwrap();
        assert_eq!(cpp.bounds, Bounds::One(function("db::query<int, 3>::operator==")));
        assert_eq!(cpp.class.unwrap().mask(), 3);
    }

    #[test]
    fn wrong_ones_say_what_is_wrong() {
        let wrong = |text: &str, part: &str| {
            let error = spec(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        wrong("handle", "NAME=FUNCTION");
        wrong("=handle", "NAME=FUNCTION");
        wrong("req=", "the begin is empty");
        wrong("req=begin..", "the end is empty");
        wrong("req=..end", "the begin is empty");
        wrong("req=f..f", "are the same");
        wrong("req=f..syscall:write", "both be functions");
        wrong("req=syscall:raed", "no system call 'raed'");
        wrong("req=f,class=arg9:str", "K from 0 to 5");
        wrong("req=f,class=arg0:text", "argK:str");
        wrong("req=f,class=arg5:slice", "seventh argument");
        wrong("req=syscall:read,class=arg0:int", "needs a function");
        wrong("req=usdt:a:b", "has no end");
        wrong("req=usdt:a..usdt:a:e", "usdt:PROVIDER:NAME");
        wrong("req=usdt:a:b..usdt::e", "usdt:PROVIDER:NAME");
        wrong("req=usdt:a:b..usdt:a:b", "are the same");
        wrong("req=usdt:a:b..syscall:write", "both be functions");
        wrong("req=usdt:a:b..usdt:a:e,class=arg12", "K from 0 to 11");
        wrong("req=f..usdt:a:e,class=arg0", "K from 0 to 5");
        wrong("req=tp:a:b", "is a point and has no end");
    }

    #[test]
    fn probes_bound_operations_in_pairs_and_with_functions() {
        let probe = |name: &str| Bound::Usdt { provider: "app".to_owned(), name: name.to_owned() };
        let pair = spec("req=usdt:app:begin..usdt:app:end,class=arg7").unwrap();
        assert_eq!(pair.bounds, Bounds::Pair(probe("begin"), probe("end")));
        assert_eq!(pair.class, Some(ClassArgument { index: 7, kind: ARGUMENT_LONG }));
        let text = spec("req=usdt:app:begin..usdt:app:end,class=arg0:str").unwrap();
        assert_eq!(text.class, Some(ClassArgument { index: 0, kind: ARGUMENT_STRING }));
        let mixed = spec("req=handle..usdt:app:end,class=arg1:int").unwrap();
        assert_eq!(mixed.bounds, Bounds::Pair(function("handle"), probe("end")));
        assert_eq!(
            spec("req=usdt:app:begin..done").unwrap().bounds,
            Bounds::Pair(probe("begin"), function("done"))
        );
    }

    #[test]
    fn measures_are_sums_or_calls() {
        let parse = |text: &str| text.parse::<MeasureSpec>().unwrap();
        assert_eq!(parse("malloc:arg0"), MeasureSpec { function: "malloc".into(), argument: Some(0) });
        assert_eq!(
            parse("libc.so.6:malloc"),
            MeasureSpec { function: "libc.so.6:malloc".into(), argument: None }
        );
        assert_eq!(parse("libc.so.6:malloc:arg2").argument, Some(2));
    }
}
