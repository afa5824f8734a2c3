mod doubts;
mod packed;

use super::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions with C's ways to pass something; `inner` loses a parameter where it is optimised.
const C: &str = "
typedef unsigned long size;
enum mode { FAST, SLOW };
struct pair { long a, b; };
struct mixed { double x; long n; };
struct large { long a[3]; };
struct floats { double x, y; };
struct bits { unsigned a : 3; unsigned long b : 40; float c; };
union either { double x; int n; };
struct packed { char c; long n; } __attribute__((packed));
#define F __attribute__((noinline, noclone))
F long plain(void *dest, size *len, const char *source, size n, int level) { return *len + n + level + (dest == source); }
F long typed(signed char c, unsigned char u, short s, unsigned w, enum mode m, _Bool b) { return c + u + s + w + m + b; }
F double floats_only(double x, float y) { return x * y; }
F long between(double x, long n, float y, unsigned k) { return x + n + y + k; }
F long by_value(struct pair p, long n) { return p.a + p.b + n; }
F long of_both(struct mixed m, long n) { return m.x + m.n + n; }
F long large(struct large l, long n) { return l.a[1] + n; }
F struct large returns(long n) { return (struct large){{n, n, n}}; }
F struct pair returns_pair(long n) { return (struct pair){n, n}; }
F struct floats returns_floats(long n) { return (struct floats){n, n}; }
F long full(long a, long b, long c, long d, long e, struct pair p, long f, long g) { return a + b + c + d + e + p.a + f + g; }
F long variadic(long n, ...) { __builtin_va_list all; __builtin_va_start(all, n); return n + __builtin_va_arg(all, int); }
F long long_double(long double x, long n) { return x + n; }
F long wide(long k, __int128 w, long n) { return k + w + n; }
F long only_values(struct large l, struct floats f) { return l.a[0] + f.x; }
F long bit_fields(struct bits b, union either e, long n) { return b.a + b.b + e.n + n; }
F long unaligned(struct packed p, long n) { return p.n + n; }
F void nothing(void) { __asm__ volatile(\"\"); }
F long unnamed(long n, int) { return n; }
static __attribute__((noinline)) long inner(long dead, long n) { __asm__ volatile(\"\"); return n * n; }
long outer(long n) { return inner(n, n + 1) + 1; }
";

/// Names of functions of C, and their prototypes.
const OF_C: [(&str, &str); 20] = [
    ("plain", "dest=arg0:pointer,len=arg1:pointer,source=arg2:pointer,n=arg3:size,level=arg4:int"),
    ("typed", "c=arg0:i8,u=arg1:u8,s=arg2:i16,w=arg3:u32,m=arg4:category,b=arg5:u8"),
    ("floats_only", "x=-:float,y=-:float"),
    ("between", "x=-:float,n=arg0:long,y=-:float,k=arg1:u32"),
    ("by_value", "p=-:structure,n=arg2:long"),
    ("of_both", "m=-:structure,n=arg1:long"),
    ("large", "l=-:structure,n=arg0:long"),
    ("returns", "n=arg1:long"),
    ("returns_pair", "n=arg0:long"),
    ("returns_floats", "n=arg0:long"),
    (
        "full",
        "a=arg0:long,b=arg1:long,c=arg2:long,d=arg3:long,e=arg4:long,p=-:structure,f=arg5:long,g=-:long",
    ),
    ("variadic", "n=arg0:long,..."),
    ("long_double", "x=-:float,n=arg0:long"),
    ("wide", "k=arg0:long,w=-:structure,n=-:long,arg1?"),
    ("only_values", "l=-:structure,f=-:structure"),
    ("bit_fields", "b=-:structure,e=-:structure,n=arg2:long"),
    ("unaligned", "p=-:structure,n=-:long,arg0?"),
    ("nothing", ""),
    ("unnamed", "n=arg0:long,=arg1:int"),
    ("outer", "n=arg0:long"),
];

/// Those of which code that is not optimised tells less: nothing says that what is concluded of the structure is right.
const OF_C_UNOPTIMISED: [(&str, &str); 5] = [
    ("by_value", "p=-:structure,n=-:long,arg0?"),
    ("of_both", "m=-:structure,n=-:long,arg0?"),
    ("large", "l=-:structure,n=-:long,arg0?"),
    (
        "full",
        "a=arg0:long,b=arg1:long,c=arg2:long,d=arg3:long,e=arg4:long,p=-:structure,f=-:long,g=-:long,arg5?",
    ),
    ("bit_fields", "b=-:structure,e=-:structure,n=-:long,arg0?"),
];

/// Builds a library from source text.
fn build(dir: &Path, compiler: &str, file: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (source_path, path) = (dir.join(file), dir.join("lib.so"));
    std::fs::write(&source_path, source).unwrap();
    let built = Command::new(compiler).args(flags).arg(&source_path).arg("-o").arg(&path).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    path
}

fn run(command: &str, arguments: &[&std::ffi::OsStr]) {
    assert!(Command::new(command).args(arguments).status().unwrap().success(), "{command} {arguments:?}");
}

fn c_library(dir: &Path, flags: &[&str]) -> PathBuf {
    build(dir, "cc", "a.c", C, &[&["-shared", "-fPIC"], flags].concat())
}

/// Prototypes as texts, or why there is none, by what is asked for: the begin of a symbol.
fn of_file(path: &Path) -> impl FnMut(&str) -> Result<String, NoPrototype> + use<> {
    let module = Module::offline(path).unwrap();
    let functions = module.functions(0);
    let mut run = Run::default();
    move |name: &str| {
        let is = |f: &&Function| f.symbol == name || f.name.split('(').next() == Some(name);
        let function = functions.iter().find(is).unwrap_or_else(|| panic!("{name}"));
        of(&module, function, Effort::Much, &mut run).map(|prototype| prototype.to_string())
    }
}

fn holds_for_c(path: &Path, what: &str) {
    let mut of = of_file(path);
    for (name, expected) in OF_C {
        assert_eq!(of(name).as_deref(), Ok(expected), "{name} {what}");
    }
}

#[test]
fn parameters_of_c_are_in_the_registers_of_its_abi() {
    for flags in [&["-gdwarf-5", "-O2"][..], &["-gdwarf-5", "-O1", "-gz=zlib"]] {
        let dir = tempfile::tempdir().unwrap();
        holds_for_c(&c_library(dir.path(), flags), &flags.join(" "));
    }
}

#[test]
fn where_no_location_bears_it_out_nothing_is_told_behind_a_structure() {
    let dir = tempfile::tempdir().unwrap();
    let mut of = of_file(&c_library(dir.path(), &["-gdwarf-5", "-O0"]));
    for (name, expected) in OF_C {
        let less = OF_C_UNOPTIMISED.iter().find(|(own, _)| *own == name);
        assert_eq!(of(name).as_deref(), Ok(less.map_or(expected, |(_, less)| less)), "{name}");
    }
}

#[test]
fn older_debug_information_says_the_same_but_for_bit_fields() {
    let dir = tempfile::tempdir().unwrap();
    let mut of = of_file(&c_library(dir.path(), &["-gdwarf-4", "-O2"]));
    for (name, expected) in OF_C {
        let expected =
            if name == "bit_fields" { "b=-:structure,e=-:structure,n=-:long,arg0?" } else { expected };
        assert_eq!(of(name).as_deref(), Ok(expected), "{name}");
    }
}

#[test]
fn where_only_lines_are_told_no_function_seems_to_be_without_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let mut of = of_file(&c_library(dir.path(), &["-g1", "-O2"]));
    for name in ["plain", "nothing", "outer"] {
        assert_eq!(of(name), Err(NoPrototype::NotThere("lib.so".to_owned())), "{name}");
    }
}

#[test]
fn where_no_aranges_are_units_say_their_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let path = c_library(dir.path(), &["-gdwarf-5", "-O2"]);
    run("objcopy", &["--remove-section".as_ref(), ".debug_aranges".as_ref(), path.as_ref()]);
    holds_for_c(&path, "without .debug_aranges");
}

#[test]
fn a_separate_debug_file_is_found_by_its_name_if_it_is_of_that_build() {
    let dir = tempfile::tempdir().unwrap();
    let path = c_library(dir.path(), &["-gdwarf-5", "-O2", "-Wl,--build-id"]);
    let debug = dir.path().join("lib.debug");
    run("objcopy", &["--only-keep-debug".as_ref(), path.as_ref(), debug.as_ref()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    run("objcopy", &["--strip-debug".as_ref(), link.as_ref(), path.as_ref()]);
    holds_for_c(&path, "with a debug file");
    // That of another build.
    let other = tempfile::tempdir().unwrap();
    std::fs::copy(c_library(other.path(), &["-g", "-O0", "-Wl,--build-id"]), &debug).unwrap();
    let error = of_file(&path)("plain").unwrap_err();
    assert!(matches!(&error, NoPrototype::NoDebugInformation { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("lib.so has no debug information (DWARF)") && text.contains("install"),
        "{text}"
    );
}

#[test]
fn a_function_whose_parameters_were_changed_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = c_library(dir.path(), &["-g", "-O2"]);
    let module = Module::offline(&path).unwrap();
    let functions = module.functions(0);
    let inner = functions.iter().find(|f| f.symbol.starts_with("inner.")).expect("a clone");
    assert_eq!(of(&module, inner, Effort::Much, &mut Run::default()), Err(NoPrototype::Changed));
    // By the registers alone, as with compilers that give such a function no name of its own.
    let renamed = Function { symbol: "inner".to_owned(), ..inner.clone() };
    assert_eq!(of(&module, &renamed, Effort::Much, &mut Run::default()), Err(NoPrototype::Changed));
}

#[test]
fn nothing_is_told_beyond_the_budget_or_of_broken_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = c_library(dir.path(), &["-g", "-O2"]);
    let module = Module::offline(&path).unwrap();
    let function = module.functions(0).into_iter().find(|f| f.symbol == "plain").unwrap();
    for few in [Run { bytes: 500, ..Run::default() }, Run { reads: 100, ..Run::default() }] {
        let mut few = few;
        assert_eq!(
            of(&module, &function, Effort::Much, &mut few),
            Err(NoPrototype::TooLarge("lib.so".to_owned()))
        );
    }
    // Any byte of the tables may be anything.
    let bytes = std::fs::read(&path).unwrap();
    let broken = dir.path().join("broken.so");
    let mut answers = std::collections::BTreeSet::new();
    for step in 0..400_usize {
        let mut copy = bytes.clone();
        let from = bytes.len() / 4;
        let at = from + step * 7919 % (bytes.len() - from);
        copy[at] ^= 1 << (step % 8);
        std::fs::write(&broken, &copy).unwrap();
        let Ok(module) = Module::offline(&broken) else { continue };
        answers.insert(of(&module, &function, Effort::Much, &mut Run::default()).is_ok());
    }
    assert!(answers.contains(&true), "most bytes are of other functions");
}

const CPP: &str = "
namespace db {
struct Counted { long n; Counted(long n) : n(n) {} ~Counted(); };
struct Plain { long a, b; };
struct Empty {};
struct Base { long a; };
struct Derived : Base { double x; };
struct Holder { long a; Counted c[1]; };
struct Movable { long a; Movable(long a) : a(a) {} Movable(Movable &&o) : a(o.a) {} };
struct Virtual { long a; virtual long get(); };
struct Usual { long a, b; Usual(long n) : a(n), b(n) {} Usual(const Usual &) = default; Usual(long n, const Usual &o) : a(n), b(o.b) {} template <class T> Usual(T &o, int n) : a(n), b(o.b) {} Usual(Plain &p) : a(p.a), b(1) {} ~Usual() = default; };
struct Big { long a[3]; };
struct BigCounted { long a[3]; ~BigCounted(); };
class Table {
public:
  long rows;
  __attribute__((noinline)) long find(long key, unsigned flags) const;
  __attribute__((noinline)) Counted count(long from);
  __attribute__((noinline)) static long total(long n);
  __attribute__((noinline)) Table(long rows);
};
Counted::~Counted() { __asm__ volatile(\"\"); }
long Table::find(long key, unsigned flags) const { return rows + key + flags; }
Counted Table::count(long from) { return Counted(rows + from); }
long Table::total(long n) { return n * 2; }
Table::Table(long rows) : rows(rows) { __asm__ volatile(\"\"); }
__attribute__((noinline)) long counted(Counted c, long n) { return c.n + n; }
__attribute__((noinline)) long plain(Plain p, long &n) { return p.a + n; }
__attribute__((noinline)) long empty(long n, Empty, long m) { return n + m; }
__attribute__((noinline)) long derived(Derived d, long n) { return d.a + d.x + n; }
long Virtual::get() { return a; }
BigCounted::~BigCounted() { __asm__ volatile(\"\"); }
__attribute__((noinline)) long holder(Holder h, long n) { return h.a + n; }
__attribute__((noinline)) long movable(Movable m, long n) { return m.a + n; }
__attribute__((noinline)) long of_virtual(Virtual v, long n) { return v.a + n; }
__attribute__((noinline)) long usual(Usual u, long n) { return u.a + n; }
__attribute__((noinline)) Usual of_template(Usual &u) { return Usual(u, 1); }
__attribute__((noinline)) long big(Big b, long n) { return b.a[0] + n; }
__attribute__((noinline)) long big_counted(BigCounted b, long n) { return b.a[0] + n; }
template <class T> __attribute__((noinline)) T twice(T n) { return n + n; }
template long twice<long>(long);
}
";

/// Functions of C++, their prototypes where code is optimised, and where it is not.
const OF_CPP: [(&str, &str, &str); 15] = [
    ("db::Table::find", "this=arg0:pointer,key=arg1:long,flags=arg2:u32", "="),
    // The address for what it returns comes before the object.
    ("db::Table::count", "this=arg1:pointer,from=arg2:long", "this=-:pointer,from=-:long,arg0?"),
    ("db::Table::total", "n=arg0:long", "="),
    ("db::Table::Table", "this=arg0:pointer,rows=arg1:long", "="),
    // It has a destructor: its address is passed.
    ("db::counted", "c=-:structure,n=arg1:long", "c=-:structure,n=-:long,arg0?"),
    ("db::plain", "p=-:structure,n=arg2:pointer", "p=-:structure,n=-:pointer,arg0?"),
    ("db::empty", "n=arg0:long,=-:structure,m=-:long,arg1?", "="),
    ("db::derived", "d=-:structure,n=arg1:long", "d=-:structure,n=-:long,arg0?"),
    // Something in it has a destructor; it can be moved; it has virtual functions.
    ("db::holder", "h=-:structure,n=arg1:long", "h=-:structure,n=-:long,arg0?"),
    ("db::movable", "m=-:structure,n=arg1:long", "m=-:structure,n=-:long,arg0?"),
    ("db::of_virtual", "v=-:structure,n=arg1:long", "v=-:structure,n=-:long,arg0?"),
    // Its constructors are those that any class has, or take something else: it is passed by value.
    ("db::usual", "u=-:structure,n=arg2:long", "u=-:structure,n=-:long,arg0?"),
    // 24 bytes on the stack, or their address.
    ("db::big", "b=-:structure,n=arg0:long", "b=-:structure,n=-:long,arg0?"),
    ("db::big_counted", "b=-:structure,n=arg1:long", "b=-:structure,n=-:long,arg0?"),
    ("_ZN2db5twiceIlEET_S1_", "n=arg0:long", "="),
];

#[test]
fn parameters_of_cpp_begin_with_the_object() {
    for level in ["-O0", "-O2"] {
        let dir = tempfile::tempdir().unwrap();
        let flags = ["-shared", "-fPIC", "-g", level];
        let mut of = of_file(&build(dir.path(), "c++", "a.cc", CPP, &flags));
        for (name, optimised, other) in OF_CPP {
            let expected = if level == "-O2" || other == "=" { optimised } else { other };
            assert_eq!(of(name).as_deref(), Ok(expected), "{name} {level}");
        }
    }
}

const RUST: &str = r#"
pub struct Pair { a: u64, b: u64 }
pub struct Large { a: [u64; 9] }
pub struct Three { a: [(u32, f32); 3] }
pub enum Mode { Fast, Slow }
mod db {
    #[inline(never)] #[no_mangle] pub fn slices(data: &[u64], n: usize, text: &str, by: &mut u32) -> u64 {
        *by += 1; data.iter().sum::<u64>() + n as u64 + text.len() as u64
    }
}
#[inline(never)] #[no_mangle] pub fn scalars(a: i32, x: f64, b: bool, c: char, m: Mode, u: ()) -> u64 {
    let _ = u; a as u64 + x as u64 + b as u64 + c as u64 + m as u64
}
#[inline(never)] #[no_mangle] pub fn wide(n: u64) -> (u128, u64) { (n as u128, n) }
#[inline(never)] #[no_mangle] pub fn perhaps(n: u64) -> Option<u128> { if n > 1 { Some(n as u128) } else { None } }
#[inline(never)] #[no_mangle] pub fn text(n: usize) -> String { "a".repeat(n) }
#[inline(never)] #[no_mangle] pub fn list(n: usize) -> Vec<u32> { vec![n as u32; n] }
#[inline(never)] #[no_mangle] pub fn parsed(n: usize) -> Result<u64, String> { if n > 9 { Err(text(n)) } else { Ok(n as u64) } }
#[inline(never)] #[no_mangle] pub fn three(n: usize) -> Three { Three { a: [(n as u32, 1.0); 3] } }
#[inline(never)] #[no_mangle] pub fn large(n: u64) -> Large { Large { a: [n; 9] } }
#[inline(never)] #[no_mangle] pub fn part(n: usize, data: &[u8]) -> &[u8] { &data[n..] }
#[inline(never)] #[no_mangle] pub fn object(of: &dyn Fn(u64) -> u64, n: u64) -> u64 { of(n) }
#[inline(never)] #[no_mangle] pub fn structure(n: u64, p: Pair) -> u64 { n + p.a + p.b }
#[inline(never)] #[no_mangle] pub fn pair(n: u64) -> Pair { Pair { a: n, b: n } }
pub fn sum(p: Mode) -> u64 { use db::slices; scalars(1, 2.0, true, 'x', p, ()) + slices(&[1], 2, "a", &mut 3) }
"#;

#[test]
fn of_rust_scalars_references_and_slices_are_known() {
    for level in ["opt-level=0", "opt-level=2"] {
        let dir = tempfile::tempdir().unwrap();
        let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let flags = ["--crate-type=cdylib", "--edition=2021", "-g", "-C", level];
        let mut of = of_file(&build(dir.path(), &compiler, "a.rs", RUST, &flags));
        for (name, expected) in [
            (
                "slices",
                "data.ptr=arg0:pointer,data.len=arg1:size,n=arg2:size,text.ptr=arg3:pointer,text.len=arg4:size,by=arg5:pointer",
            ),
            ("scalars", "a=arg0:int,x=-:float,b=arg1:u8,c=arg2:u32,m=arg3:category8"),
            ("large", "n=arg1:size"),
            // More than 16 bytes, and no scalar of 16 in them: behind an address in all versions.
            ("text", "n=arg1:size"),
            ("list", "n=arg1:size"),
            ("parsed", "n=arg1:size"),
            ("three", "n=arg1:size"),
            ("part", "n=arg0:size,data.ptr=arg1:pointer,data.len=arg2:size"),
            ("object", "of.ptr=arg0:pointer,of.vtable=arg1:pointer,n=arg2:size"),
        ] {
            assert_eq!(of(name).as_deref(), Ok(expected), "{name} {level}");
        }
        // Older compilers return it in three registers: only a place of the parameter says which it is.
        let wide = if level == "opt-level=0" { "n=-:size,arg0?" } else { "n=arg1:size" };
        for name in ["wide", "perhaps"] {
            assert_eq!(of(name).as_deref(), Ok(wide), "{name} {level}");
        }
        for name in ["structure", "pair"] {
            assert_eq!(of(name), Err(NoPrototype::Unsure), "{name} {level}");
        }
    }
}
