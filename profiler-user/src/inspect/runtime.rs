//! What kind of program the target is: some runtimes move stacks, walk them, or make code while they run.

use super::{Inspection, Module};
use std::fmt;

/// The language runtime found in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// C, C++, Rust and the like.
    Native,
    /// Go: its stacks grow by being copied.
    Go,
    /// A Java virtual machine.
    Jvm,
    /// CPython.
    Python,
    /// Node.js or another V8 host.
    Node,
    /// Ruby.
    Ruby,
    /// PHP.
    Php,
    /// .NET.
    DotNet,
    /// Erlang.
    Beam,
    /// LuaJIT.
    LuaJit,
    /// OCaml.
    Ocaml,
    /// Haskell (GHC): the stack pointer is not the machine's.
    Haskell,
}

impl Runtime {
    /// The name shown to people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Go => "Go",
            Self::Jvm => "Java virtual machine",
            Self::Python => "Python",
            Self::Node => "Node.js (V8)",
            Self::Ruby => "Ruby",
            Self::Php => "PHP",
            Self::DotNet => ".NET",
            Self::Beam => "Erlang (BEAM)",
            Self::LuaJit => "LuaJIT",
            Self::Ocaml => "OCaml",
            Self::Haskell => "Haskell (GHC)",
        }
    }

    /// What of it can be traced by breakpoints, and what is only sampled.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Native => "its functions can be traced as far as they have symbols",
            Self::Go => "entries can be counted; return links are refused (stacks move), exit sites are used",
            Self::Jvm => "functions of the virtual machine can be traced; Java methods are sampled",
            Self::Python => {
                "functions of the interpreter and of extension modules can be traced; Python functions are sampled as interpreter frames"
            }
            Self::Node => "functions of V8 and of addons can be traced; JavaScript functions are sampled",
            Self::Ruby => {
                "functions of the interpreter can be counted; return links are refused (it switches stacks)"
            }
            Self::Php => {
                "functions of the interpreter can be counted; return links are refused (it switches stacks)"
            }
            Self::DotNet => "functions of the runtime can be traced; managed methods are sampled",
            Self::Beam => "functions of the virtual machine can be traced; Erlang functions are sampled",
            Self::LuaJit => "functions of the virtual machine can be counted; compiled traces are sampled",
            Self::Ocaml => "entries can be counted; return links are refused (it switches stacks)",
            Self::Haskell => "entries of C functions can be counted; compiled Haskell is sampled",
        }
    }

    /// Why return links would crash it; `None` if the runtime itself does not forbid them.
    #[must_use]
    pub fn forbids_return_links(self) -> Option<&'static str> {
        match self {
            Self::Native | Self::Python => None,
            Self::Go => Some("Go copies stacks when they grow"),
            Self::Jvm => Some("the Java virtual machine walks and deoptimises its own stacks"),
            Self::Node => Some("V8 walks its own stacks"),
            Self::Ruby => Some("Ruby switches between fiber stacks"),
            Self::Php => Some("PHP switches between fiber stacks"),
            Self::DotNet => Some(".NET walks and hijacks its own stacks"),
            Self::Beam => Some("the Erlang virtual machine switches stacks"),
            Self::LuaJit => Some("LuaJIT unwinds its own stacks"),
            Self::Ocaml => Some("OCaml switches between fiber stacks and cuts stacks at exceptions"),
            Self::Haskell => Some("compiled Haskell does not use the machine stack"),
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Go's compiler made code of this module.
fn has_go(module: &Module) -> bool {
    let sections = [".gopclntab", ".go.buildinfo", ".note.go.buildid", ".data.rel.ro.gopclntab"];
    module.elf().is_ok_and(|elf| sections.iter().any(|s| elf.has_section(s)))
}

/// A function that passes its arguments as Go does. In a module of Go those of C have no dot in their names.
pub(super) fn is_go_function(module: &Module, name: &str) -> bool {
    name.split('(').next().is_some_and(|name| name.contains('.')) && has_go(module)
}

/// By the names of modules first, then by sections and symbols of the main program.
pub(super) fn detect(inspection: &Inspection) -> Runtime {
    let held = || inspection.modules().iter().filter(|m| m.is_held());
    for module in held() {
        let name = module.name.as_str();
        let library = |stem: &str| name.starts_with(stem);
        let found = if library("libjvm.so") {
            Runtime::Jvm
        } else if library("libcoreclr.so") || library("libmonosgen") {
            Runtime::DotNet
        } else if library("libruby") || module.main && library("ruby") {
            Runtime::Ruby
        } else if library("libphp") || module.main && library("php") {
            Runtime::Php
        } else if library("libluajit") || module.main && library("luajit") {
            Runtime::LuaJit
        } else if library("libnode.so")
            || library("libv8")
            || module.main && matches!(name, "node" | "nodejs" | "deno")
        {
            Runtime::Node
        } else if library("libpython") || module.main && library("python") {
            Runtime::Python
        } else if module.main && library("beam") {
            Runtime::Beam
        } else {
            continue;
        };
        return found;
    }
    // The first module is that of the program that ran before an exec.
    let Some(main) = held().find(|m| m.main).or_else(|| held().next()) else { return Runtime::Native };
    if has_go(main) {
        return Runtime::Go;
    }
    let mut found = Runtime::Native;
    if let Ok(symbols) = main.symbols() {
        symbols.for_each_name(|_, _, name| match name {
            "caml_start_program" | "caml_main" => found = Runtime::Ocaml,
            "hs_main" | "stg_ap_0_fast" => found = Runtime::Haskell,
            "lj_vm_call" | "lj_BC_CALL" => found = Runtime::LuaJit,
            "rb_fiber_yield" => found = Runtime::Ruby,
            "zend_fiber_resume" => found = Runtime::Php,
            "Py_BytesMain" | "_PyEval_EvalFrameDefault" if found == Runtime::Native => {
                found = Runtime::Python
            }
            _ => {}
        });
    }
    found
}
