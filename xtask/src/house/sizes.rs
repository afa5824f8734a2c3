//! Sizes: the lines of a function and of a file, and the fields of a struct.

use super::finding::Finding;
use super::source::Source;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Lines of a function, from its `fn` to its closing brace.
const FUNCTION_LINES: usize = 80;
/// Fields of a struct.
const STRUCT_FIELDS: usize = 15;
/// Lines of a file.
const FILE_LINES: usize = 500;

/// What is too large in `source`.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut sizes = Sizes { path: &source.path, around: Vec::new(), found: Vec::new() };
    sizes.visit_file(&source.syntax);
    if source.lines > FILE_LINES {
        sizes.found.push(Finding {
            rule: "file",
            path: source.path.clone(),
            line: source.lines,
            place: source.path.clone(),
            what: "a long file".to_owned(),
            value: source.lines,
            limit: FILE_LINES,
            unit: "lines",
            advice: "give each subject a file of its own".to_owned(),
        });
    }
    sizes.found
}

/// Walks over one file.
struct Sizes<'a> {
    path: &'a str,
    /// Names of the modules, types, traits and functions around.
    around: Vec<String>,
    found: Vec<Finding>,
}

impl Sizes<'_> {
    fn name(&self, own: &str) -> String {
        self.around.iter().map(String::as_str).chain([own]).collect::<Vec<_>>().join("::")
    }

    /// A function from line `first` to line `last`.
    fn function(&mut self, own: &str, first: usize, last: usize) {
        let value = last + 1 - first;
        if value > FUNCTION_LINES {
            let name = self.name(own);
            self.found.push(Finding {
                rule: "function",
                path: self.path.to_owned(),
                line: first,
                what: format!("a long function {name}"),
                place: format!("{}: {name}", self.path),
                value,
                limit: FUNCTION_LINES,
                unit: "lines",
                advice: "split it by meaning".to_owned(),
            });
        }
    }

    fn signature(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let last = body.brace_token.span.close().end().line;
        self.function(&signature.ident.to_string(), first, last);
    }

    fn inside(&mut self, name: String, walk: impl FnOnce(&mut Self)) {
        self.around.push(name);
        walk(self);
        self.around.pop();
    }

    /// Functions among the arguments of a macro: `proptest!` holds tests.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            if let TokenTree::Group(group) = token {
                self.tokens(group.stream());
            }
            let (TokenTree::Ident(word), Some(TokenTree::Ident(name))) = (token, tokens.get(index + 1))
            else {
                continue;
            };
            let ends = |token: &&TokenTree| match token {
                TokenTree::Punct(mark) => mark.as_char() == ';',
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                _ => false,
            };
            if word == "fn"
                && let Some(TokenTree::Group(body)) = tokens[index..].iter().find(ends)
            {
                self.function(&name.to_string(), word.span().start().line, body.span_close().end().line);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inside(item.ident.to_string(), |this| visit::visit_item_mod(this, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = match item.self_ty.as_ref() {
            syn::Type::Path(of) => of.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        self.inside(name.unwrap_or_else(|| "impl".to_owned()), |this| visit::visit_item_impl(this, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.inside(item.ident.to_string(), |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.signature(&item.sig, &item.block);
        self.inside(item.sig.ident.to_string(), |this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.signature(&item.sig, &item.block);
        self.inside(item.sig.ident.to_string(), |this| visit::visit_impl_item_fn(this, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.signature(&item.sig, body);
        }
        self.inside(item.sig.ident.to_string(), |this| visit::visit_trait_item_fn(this, item));
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let value = item.fields.len();
        if value > STRUCT_FIELDS {
            let name = self.name(&item.ident.to_string());
            self.found.push(Finding {
                rule: "struct",
                path: self.path.to_owned(),
                line: item.ident.span().start().line,
                what: format!("a large struct {name}"),
                place: format!("{}: {name}", self.path),
                value,
                limit: STRUCT_FIELDS,
                unit: "fields",
                advice: "make types of the fields that belong together".to_owned(),
            });
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let source = Source::parse("a/src/b.rs", text).unwrap();
        check(&source).iter().map(ToString::to_string).collect()
    }

    /// A function of so many lines.
    fn function(name: &str, lines: usize) -> String {
        format!("#[inline]\npub fn {name}() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_has_80_lines_from_fn_to_brace() {
        assert_eq!(found(&function("f", 80)), [""; 0]);
        assert_eq!(
            found(&function("f", 81)),
            ["a/src/b.rs:2: a long function f, 81 lines, limit 80, split it by meaning"]
        );
    }

    #[test]
    fn functions_are_found_wherever_they_stand_and_named_by_what_is_around() {
        let f = function("f", 90);
        let names = |text: &str| {
            let source = Source::parse("b.rs", text).unwrap();
            check(&source).into_iter().map(|finding| finding.place).collect::<Vec<_>>()
        };
        assert_eq!(names(&format!("mod m {{ impl<T> a::B<T> {{ {f} }} }}")), ["b.rs: m::B::f"]);
        assert_eq!(names(&format!("trait T {{ {} }}", f.replace("pub ", ""))), ["b.rs: T::f"]);
        assert_eq!(names(&format!("#[cfg(test)] mod tests {{ {f} }}")), ["b.rs: tests::f"]);
        assert_eq!(names(&format!("fn outer() {{ {f} }}")), ["b.rs: outer", "b.rs: outer::f"]);
        assert_eq!(names(&format!("mod m {{ proptest! {{ fn short() {{}} {f} }} }}")), ["b.rs: m::f"]);
        // A type of functions, and a function without a body, are none.
        assert_eq!(names("m! { fn f(); struct S { g: fn(u8) -> u8 } }"), [""; 0]);
    }

    #[test]
    fn a_struct_has_15_fields() {
        let fields = |n: usize| (0..n).map(|i| format!("f{i}: u8, ")).collect::<String>();
        assert_eq!(found(&format!("struct S {{ {} }}", fields(15))), [""; 0]);
        assert_eq!(
            found(&format!("mod m {{\n\nstruct S {{ {} }} }}", fields(16))),
            [
                "a/src/b.rs:3: a large struct m::S, 16 fields, limit 15, make types of the fields that belong together"
            ]
        );
        assert_eq!(found(&format!("struct S({});", "u8, ".repeat(16))).len(), 1);
    }

    #[test]
    fn a_file_has_500_lines() {
        assert_eq!(found(&"\n".repeat(500)), [""; 0]);
        assert_eq!(
            found(&"\n".repeat(501)),
            ["a/src/b.rs:501: a long file, 501 lines, limit 500, give each subject a file of its own"]
        );
    }
}
