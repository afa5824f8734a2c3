//! Which functions never return to their callers.
//!
//! Why: behind a call of `abort` the code of something else may stand. Control does not go on to it, and a loop that seems to begin there is
//! none.

use super::call_graph::Graph;
use super::site::Kinds;

/// Symbols of functions that never return. Of those that are defined in the module their code tells, too.
const NEVER: [&str; 31] = [
    "abort",
    "exit",
    "_exit",
    "_Exit",
    "quick_exit",
    "pthread_exit",
    "thrd_exit",
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp_chk",
    "__stack_chk_fail",
    "__stack_chk_fail_local",
    "__chk_fail",
    "__fortify_fail",
    "__assert",
    "__assert_fail",
    "__assert_perror_fail",
    "__libc_start_main",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "__cxa_bad_typeid",
    "__cxa_throw_bad_array_new_length",
    "__cxa_pure_virtual",
    "__clang_call_terminate",
    "_Unwind_Resume",
    "_ZSt9terminatev",
    "_ZSt10unexpectedv",
    "err",
    "errx",
];

/// Whether a symbol is that of a function that is known never to return: it ends the process or thread, throws, or panics.
///
/// ```
/// use profiler_core::graph::never_returns_by_name;
/// assert!(never_returns_by_name("abort") && never_returns_by_name("_ZSt20__throw_length_errorPKc"));
/// assert!(!never_returns_by_name("atexit"));
/// ```
#[must_use]
pub fn never_returns_by_name(symbol: &str) -> bool {
    let symbol = symbol.split('@').next().unwrap_or(symbol);
    NEVER.contains(&symbol)
        || symbol.starts_with("_ZSt") && symbol.contains("__throw_")
        || symbol.contains("4core9panicking") && !symbol.contains("AssertKind")
}

impl Graph {
    /// For each node whether it never returns to its caller: by its name, or because no code of it does, nor what it jumps on to.
    #[must_use]
    pub fn never_return(&self) -> Vec<bool> {
        // Beside the names: what may return, and what jumps on to what may return.
        let mut may = vec![false; self.len()];
        let named = |node: &super::node::Node| {
            std::iter::once(&node.symbol).chain(&node.aliases).any(|symbol| never_returns_by_name(symbol))
        };
        let leaves = |id, node: &super::node::Node| {
            let facts = node.facts;
            node.is_import()
                || node.ifunc
                || facts.returns
                || facts.undecoded_bytes > 0
                || facts.unresolved_jumps > 0
                || node.stray_branches > 0
                || self.sites(id).iter().any(|site| site.is_indirect() && site.return_address().is_none())
        };
        let mut queue = Vec::new();
        for ((id, node), may) in self.nodes().zip(&mut may) {
            if !named(node) && leaves(id, node) {
                *may = true;
                queue.push(id);
            }
        }
        while let Some(id) = queue.pop() {
            for edge in self.callers(id).filter(|edge| edge.kinds.meets(Kinds::TAILS)) {
                let named = self.node(edge.node).is_none_or(named);
                if let Some(may) = may.get_mut(edge.node.index()).filter(|may| !**may && !named) {
                    *may = true;
                    queue.push(edge.node);
                }
            }
        }
        may.into_iter().map(|may| !may).collect()
    }
}
