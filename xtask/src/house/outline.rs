//! What a file says about modules: which it declares, which names it defines, and which paths it names.
//!
//! Code for tests (`#[cfg(test)]`) is left out, and so is what `pub(in path)` names. Paths are also read from the arguments of
//! macros and attributes, where the parser sees tokens only.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

/// One module, as its own text says it.
#[derive(Debug, Default)]
pub struct Outline {
    /// Paths that are named.
    pub references: Vec<Reference>,
    /// Names of the items.
    pub definitions: BTreeSet<String>,
    /// Names of the constants, those of types included, with their lines.
    pub constants: Vec<(String, usize)>,
    /// Modules that are written out here.
    pub inline: Vec<(String, Outline)>,
    /// Modules that have a file of their own, with its path where an attribute says it.
    pub files: Vec<(String, Option<String>)>,
}

/// One path that is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Its words. The first is empty if the path begins with `::`.
    pub segments: Vec<String>,
    /// Where.
    pub line: usize,
    /// How.
    pub kind: Kind,
}

/// How a path is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// In code.
    Code,
    /// `use path as name`, for others too if it is `public`.
    Use {
        /// The name here.
        name: String,
        /// Whether it is visible outside.
        public: bool,
    },
    /// `use path::*`, for others too if it is `public`.
    Glob {
        /// Whether it is visible outside.
        public: bool,
    },
}

/// The outline of a file.
pub fn of(file: &syn::File) -> Outline {
    let mut walk = Walk::default();
    walk.visit_file(file);
    walk.outline
}

#[derive(Default)]
struct Walk {
    outline: Outline,
}

impl Walk {
    fn refer(&mut self, segments: Vec<String>, line: usize, kind: Kind) {
        if !segments.is_empty() {
            self.outline.references.push(Reference { segments, line, kind });
        }
    }

    /// All that one `use` brings. `path`: the words before `tree`.
    fn imports(&mut self, tree: &syn::UseTree, path: &[String], public: bool) {
        let with = |word: &syn::Ident| {
            let own = Some(word.to_string()).filter(|word| word != "self");
            path.iter().cloned().chain(own).collect::<Vec<_>>()
        };
        let line = |span: proc_macro2::Span| span.start().line;
        match tree {
            syn::UseTree::Path(part) => self.imports(&part.tree, &with(&part.ident), public),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.imports(item, path, public));
            }
            syn::UseTree::Glob(glob) => {
                self.refer(path.to_vec(), line(glob.star_token.span), Kind::Glob { public })
            }
            syn::UseTree::Name(name) => {
                let (segments, line) = (with(&name.ident), line(name.ident.span()));
                let name = segments.last().cloned().unwrap_or_default();
                self.refer(segments, line, Kind::Use { name, public });
            }
            syn::UseTree::Rename(rename) => {
                let (line, name) = (line(rename.ident.span()), rename.rename.to_string());
                self.refer(with(&rename.ident), line, Kind::Use { name, public });
            }
        }
    }

    /// Paths of two words and more among tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is_colons = |at: usize| {
            let colon =
                |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(mark)) if mark.as_char() == ':');
            colon(at) && colon(at + 1)
        };
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(first) => {
                    let line = first.span().start().line;
                    let mut segments = vec![first.to_string()];
                    while let (true, Some(TokenTree::Ident(word))) = (is_colons(at), tokens.get(at + 2)) {
                        segments.push(word.to_string());
                        at += 3;
                    }
                    if segments.len() > 1 {
                        self.refer(segments, line, Kind::Code);
                    }
                }
                _ => {}
            }
        }
    }

    /// `with = "crate::hex"`: paths that attributes hold as text.
    fn texts(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.texts(group.stream()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let path = text.trim_matches('"');
                    let is_path = path.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':');
                    if is_path && path.contains("::") {
                        let segments = path.split("::").map(str::to_owned).collect();
                        self.refer(segments, literal.span().start().line, Kind::Code);
                    }
                }
                _ => {}
            }
        }
    }

    fn constant(&mut self, name: &syn::Ident) {
        self.outline.constants.push((name.to_string(), name.span().start().line));
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, name) = parts(item);
        if is_for_tests(attributes) {
            return;
        }
        self.outline.definitions.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        if let Some((_, items)) = &item.content {
            let mut inner = Self::default();
            items.iter().for_each(|item| inner.visit_item(item));
            self.outline.inline.push((name, inner.outline));
        } else {
            self.outline.files.push((name, path_of(&item.attrs)));
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let before: &[String] = if item.leading_colon.is_some() { &[String::new()] } else { &[] };
        self.imports(&item.tree, before, !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(&item.ident);
        visit::visit_item_static(self, item);
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.constant(&item.ident);
        visit::visit_trait_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        if !is_for_tests(&item.attrs) {
            self.constant(&item.ident);
            visit::visit_impl_item_const(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let before = path.leading_colon.as_ref().map(|_| String::new());
        let segments = before.into_iter().chain(path.segments.iter().map(|part| part.ident.to_string()));
        let line = path.segments.first().map_or(0, |part| part.ident.span().start().line);
        self.refer(segments.collect(), line, Kind::Code);
        visit::visit_path(self, path);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
            self.texts(list.tokens.clone());
        }
    }
}

/// The attributes of an item, and its name.
fn parts(item: &syn::Item) -> (&[syn::Attribute], Option<&syn::Ident>) {
    use syn::Item;
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::ExternCrate(item) => (&item.attrs, None),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::ForeignMod(item) => (&item.attrs, None),
        Item::Impl(item) => (&item.attrs, None),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Mod(item) => (&item.attrs, None),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::TraitAlias(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

/// True for `#[cfg(test)]` and `#[cfg(all(test, ...))]`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    fn wants_test(tokens: TokenStream) -> bool {
        let mut negated = false;
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(word) => {
                negated = word == "not" || word == "any";
                word == "test"
            }
            TokenTree::Group(group) => !negated && wants_test(group.stream()),
            _ => false,
        })
    }
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && wants_test(list.tokens.clone()),
        _ => false,
    })
}

/// The file of `#[path = "file"]`.
fn path_of(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> Outline {
        of(&syn::parse_file(text).unwrap())
    }

    /// Paths of two words and more.
    fn paths(text: &str) -> Vec<String> {
        let references = outline(text).references;
        references.iter().map(|r| r.segments.join("::")).filter(|path| path.contains("::")).collect()
    }

    #[test]
    fn paths_are_read_from_imports_code_types_macros_and_attributes() {
        assert_eq!(
            paths("use crate::a::{self, b::C as D, e::*};"),
            ["crate::a", "crate::a::b::C", "crate::a::e"]
        );
        assert_eq!(
            paths("fn f(x: super::T<crate::U>) { self::g(); h::<i::J>() }"),
            ["super::T", "crate::U", "self::g", "i::J"]
        );
        assert_eq!(paths("fn f() { a::m!(x, (crate::b::c(1), y)); }"), ["a::m", "crate::b::c"]);
        assert_eq!(
            paths(
                "#[serde(with = \"crate::hex\", default = \"none\")] #[arg(value_parser = a::b)] struct S;"
            ),
            ["crate::hex", "a::b"]
        );
        assert_eq!(paths("impl a::T for <b::U as c::V>::W {}"), ["a::T", "b::U", "c::V::W"]);
        assert_eq!(paths("use ::x::y; fn f() { ::z::g() }"), ["::x::y", "::z::g"]);
    }

    #[test]
    fn code_for_tests_and_visibility_do_not_count() {
        assert_eq!(
            paths("#[cfg(test)] mod tests { use crate::a; } #[cfg(all(test, x))] use crate::b;"),
            [""; 0]
        );
        assert_eq!(
            paths("impl S { #[cfg(test)] fn f() { a::b() } #[cfg(not(test))] fn g() { c::d() } }"),
            ["c::d"]
        );
        assert_eq!(paths("pub(in crate::a) fn f() {} /// See [`crate::b`].\npub(super) struct S;"), [""; 0]);
    }

    #[test]
    fn names_constants_and_modules_are_those_of_each_module() {
        let found = outline(
            "mod a; #[path = \"x/y.rs\"] mod b; mod c { const LOW_SHARE: f64 = 0.1; struct In; }\n\
             struct Out; fn f() {}\nimpl Out { const HIGH_SHARE: f64 = 0.9; }",
        );
        assert_eq!(found.files, [("a".to_owned(), None), ("b".to_owned(), Some("x/y.rs".to_owned()))]);
        assert_eq!(found.definitions.iter().map(String::as_str).collect::<Vec<_>>(), ["Out", "f"]);
        assert_eq!(found.constants, [("HIGH_SHARE".to_owned(), 3)]);
        let (name, inner) = &found.inline[0];
        assert_eq!((name.as_str(), inner.definitions.contains("In")), ("c", true));
        assert_eq!(inner.constants, [("LOW_SHARE".to_owned(), 1)]);
    }

    #[test]
    fn an_import_says_its_name_and_whether_others_see_it() {
        let found = outline("use a::b; pub use c::d as e; pub(crate) use f::*;");
        let kinds: Vec<Kind> = found.references.into_iter().map(|r| r.kind).collect();
        let name = |name: &str, public| Kind::Use { name: name.to_owned(), public };
        assert_eq!(kinds, [name("b", false), name("e", true), Kind::Glob { public: true }]);
    }
}
