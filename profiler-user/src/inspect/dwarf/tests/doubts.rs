//! What may be overlooked in types of C++ and Rust, so that a parameter would be looked for in a wrong register. Each function is built with and without
//! optimisation: in optimised code the debug information bears out what is told, so what is told there is checked by the compiler.

use super::*;

const CPP: &str = "
#include <emmintrin.h>
#define F __attribute__((noinline))
struct mixed { double x; long n; };
struct two_floats { double x, y; };
struct vector { __m128i v; };
struct wide { float v __attribute__((vector_size(32))); };
struct half { float v __attribute__((vector_size(8))); long n; };
struct Default { long a, b; Default(long x) : a(x), b(x) {} Default(const Default &o, int = 0) : a(o.a), b(o.b) {} };
template <class T> struct Any { T a, b; Any(T x) : a(x), b(x) {} template <class U> Any(U &&o) : a(o.a), b(o.b) {} };
F long of_vector(vector v, long n) { return v.v[0] + n; }
F long of_half(half v, long n) { return v.v[0] + v.n + n; }
F vector returns_vector(long n) { return vector{_mm_set1_epi64x(n)}; }
F wide returns_wide(long n) { wide w = {}; w.v[1] = n; return w; }
F long of_default(Default d, long n) { return d.a + n; }
F long of_any(Any<long> v, long n) { return v.a + n; }
F Any<long> copies_any(Any<long> &v) { return Any<long>(v); }
F long eight(double a, double b, double c, double d, double e, double f, double g, double h, mixed m, long k) { return a + b + c + d + e + f + g + h + m.x + m.n + k; }
F long seven(double a, double b, double c, double d, double e, double f, double g, mixed m, long k) { return a + b + c + d + e + f + g + m.x + m.n + k; }
F long seven_and_two(double a, double b, double c, double d, double e, double f, double g, two_floats t, mixed m, long k) { return a + b + c + d + e + f + g + t.x + m.x + m.n + k; }
F long not_known(double a, double b, double c, double d, double e, double f, double g, __float128 h, mixed m, long k) { return a + b + c + d + e + f + g + (double)h + m.x + m.n + k; }
template <class... A> F long pack(long a, A... r, long z) { return a + z + (r + ...); }
template long pack<long, double, int>(long, long, double, int, long);
template <class C> F long apply(C c, long n) { return c(n) + n; }
long closure(long a, long b) { __asm__ volatile(\"\" : \"+r\"(a), \"+r\"(b)); return apply([a, b](long n) { return a * b + n; }, b); }
";

/// Functions, their prototypes where code is optimised, and where it is not.
const OF_CPP: [(&str, &str, &str); 11] = [
    // An array for the debug information, and a vector register for the processor.
    ("of_vector", "v=-:structure,n=-:long,arg0?", "="),
    ("of_half", "v=-:structure,n=-:long,arg0?", "="),
    // A copy constructor, if what stands behind the first parameter has a default.
    ("of_default", "d=-:structure,n=-:long,arg0?", "="),
    // No copy constructor, whatever it is given.
    ("of_any", "v=-:structure,n=arg2:long", "v=-:structure,n=-:long,arg0?"),
    ("copies_any", "v=arg0:pointer", "v=-:pointer,arg0?"),
    // It does not fit: no register takes a part of it.
    (
        "eight",
        "a=-:float,b=-:float,c=-:float,d=-:float,e=-:float,f=-:float,g=-:float,h=-:float,m=-:structure,k=arg0:long",
        "a=-:float,b=-:float,c=-:float,d=-:float,e=-:float,f=-:float,g=-:float,h=-:float,m=-:structure,k=-:long,arg0?",
    ),
    (
        "seven",
        "a=-:float,b=-:float,c=-:float,d=-:float,e=-:float,f=-:float,g=-:float,m=-:structure,k=arg1:long",
        "a=-:float,b=-:float,c=-:float,d=-:float,e=-:float,f=-:float,g=-:float,m=-:structure,k=-:long,arg0?",
    ),
    (
        "seven_and_two",
        "a=-:float,b=-:float,c=-:float,d=-:float,e=-:float,f=-:float,g=-:float,t=-:structure,m=-:structure,k=arg1:long",
        "a=-:float,b=-:float,c=-:float,d=-:float,e=-:float,f=-:float,g=-:float,t=-:structure,m=-:structure,k=-:long,arg0?",
    ),
    // 16 bytes that are in a vector register, or in memory if they are a `long double`.
    (
        "not_known",
        "a=-:float,b=-:float,c=-:float,d=-:float,e=-:float,f=-:float,g=-:float,h=-:float,m=-:structure,k=-:long,arg0?",
        "=",
    ),
    // The parameters of a pack have no names, and registers of their own.
    ("_Z4packIJldiEEllDpT_l", "a=arg0:long,=arg1:long,=-:float,=arg2:int,z=arg3:long", "="),
    // The compiler has added a destructor to the class of a closure.
    ("apply", "c=-:structure,n=arg2:long", "c=-:structure,n=-:long,arg0?"),
];

#[test]
fn what_is_not_sure_of_cpp_is_not_told() {
    let mut wrong = Vec::new();
    for level in ["-O0", "-O2"] {
        let dir = tempfile::tempdir().unwrap();
        let flags = ["-shared", "-fPIC", "-g", "-std=c++17", "-fno-ipa-cp", "-fno-ipa-sra", level];
        let path = build(dir.path(), "c++", "a.cc", CPP, &flags);
        let functions = Module::offline(&path).unwrap().functions(0);
        let mut of = of_file(&path);
        let closure = functions.iter().find(|f| f.symbol.contains("5apply")).unwrap();
        for (name, optimised, other) in OF_CPP {
            let expected = if level == "-O2" || other == "=" { optimised } else { other };
            let name = if name == "apply" { closure.symbol.as_str() } else { name };
            let found = of(name);
            if found.as_deref() != Ok(expected) {
                wrong.push((level, name.to_owned(), found, expected));
            }
        }
        // In a vector register, or in memory behind an address: of 32 bytes the compiler's options decide.
        for name in ["returns_vector", "returns_wide"] {
            let found = of(name);
            if found != Err(NoPrototype::Unsure) {
                wrong.push((level, name.to_owned(), found, "nothing"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Debug information as compilers write it for a class that is defined behind the class that declares it, and whose copy constructor refers to the class by its
/// definition or by its declaration.
fn outside(refers_to: &str) -> String {
    let name = |text: &str| format!(".asciz \"{text}\"\n");
    let abbreviation = |number: u8, tag: u8, has_children: u8, attributes: &[(u8, u8)]| {
        let attributes: String =
            attributes.iter().map(|(name, form)| format!(".uleb128 {name}, {form}\n")).collect();
        format!(".uleb128 {number}, {tag}\n.byte {has_children}\n{attributes}.byte 0, 0\n")
    };
    let (string, address, data8, data1, reference, present) = (0x08, 0x01, 0x07, 0x0b, 0x13, 0x19);
    let abbreviations = [
        abbreviation(1, 0x11, 1, &[(0x13, data1), (0x03, string), (0x11, address), (0x12, data8)]),
        // Classes: declared, and defined.
        abbreviation(2, 0x13, 1, &[(0x03, string), (0x0b, data1)]),
        abbreviation(3, 0x13, 0, &[(0x03, string), (0x3c, present)]),
        abbreviation(4, 0x13, 1, &[(0x47, reference), (0x0b, data1)]),
        abbreviation(5, 0x0d, 0, &[(0x03, string), (0x49, reference), (0x38, data1)]),
        // A constructor, its object, and a parameter.
        abbreviation(6, 0x2e, 1, &[(0x03, string), (0x3c, present)]),
        abbreviation(7, 0x05, 0, &[(0x49, reference), (0x34, present)]),
        abbreviation(8, 0x05, 0, &[(0x03, string), (0x49, reference)]),
        // Types.
        abbreviation(9, 0x0f, 0, &[(0x0b, data1), (0x49, reference)]),
        abbreviation(10, 0x10, 0, &[(0x0b, data1), (0x49, reference)]),
        abbreviation(11, 0x24, 0, &[(0x0b, data1), (0x3e, data1), (0x03, string)]),
        // A function, and a parameter in a register.
        abbreviation(12, 0x2e, 1, &[(0x03, string), (0x49, reference), (0x11, address), (0x12, data8)]),
        abbreviation(13, 0x05, 0, &[(0x03, string), (0x49, reference), (0x02, 0x18)]),
    ];
    let to = |label: &str| format!(".long {label} - .Lunit\n");
    let entries = [
        format!(".uleb128 1\n.byte 0x21\n{}.quad outside_in\n.quad 16\n", name("a.cc")),
        format!(".uleb128 2\n{}.byte 1\n.Ldeclared:\n.uleb128 3\n{}.byte 0\n", name("Out"), name("In")),
        format!(".Lclass:\n.uleb128 4\n{}.byte 16\n", to(".Ldeclared")),
        format!(".uleb128 5\n{}{}.byte 0\n", name("a"), to(".Llong")),
        format!(".uleb128 5\n{}{}.byte 8\n", name("b"), to(".Llong")),
        format!(
            ".uleb128 6\n{}.uleb128 7\n{}.uleb128 8\n{}{}.byte 0, 0\n",
            name("In"),
            to(".Lpointer"),
            name("o"),
            to(".Lreference")
        ),
        format!(".Lpointer:\n.uleb128 9\n.byte 8\n{}", to(".Lclass")),
        format!(".Lreference:\n.uleb128 10\n.byte 8\n{}", to(refers_to)),
        format!(".Llong:\n.uleb128 11\n.byte 8, 5\n{}", name("long")),
        format!(".uleb128 12\n{}{}.quad outside_in\n.quad 16\n", name("outside_in"), to(".Llong")),
        format!(".uleb128 8\n{}{}", name("v"), to(".Lclass")),
        // `DW_OP_reg4`: the second register, behind the address of a copy.
        format!(".uleb128 13\n{}{}.uleb128 1\n.byte 0x54\n.byte 0, 0\n", name("n"), to(".Llong")),
    ];
    format!(
        ".text\n.globl outside_in\n.type outside_in, @function\noutside_in: lea (%rsi,%rdi), %rax\nret\n.zero 11\n.size outside_in, 16\n\
         .section .debug_abbrev,\"\",@progbits\n{}.byte 0\n\
         .section .debug_info,\"\",@progbits\n.Lunit: .long .Lend - .Lbegin\n.Lbegin: .value 4\n.long .debug_abbrev\n.byte 8\n{}.Lend:\n",
        abbreviations.concat(),
        entries.concat()
    )
}

#[test]
fn a_class_that_is_defined_outside_has_its_name_where_it_is_declared() {
    for refers_to in [".Lclass", ".Ldeclared"] {
        let dir = tempfile::tempdir().unwrap();
        let mut of = of_file(&build(dir.path(), "cc", "a.s", &outside(refers_to), &["-shared", "-nostdlib"]));
        assert_eq!(of("outside_in").as_deref(), Ok("v=-:structure,n=arg1:long"), "{refers_to}");
    }
}

const RUST: &str = r#"
#[inline(never)] pub fn apply<F: Fn(u64) -> u64>(k: u64, f: F, n: u64) -> u64 { f(n + k) }
#[inline(never)] #[no_mangle] pub fn pointer(k: u64, f: fn(u64) -> u64, n: u64) -> u64 { f(n + k) }
#[inline(never)] pub fn triple(n: u64) -> u64 { n * 3 }
#[no_mangle] pub fn both(n: u64) -> u64 { apply(n, triple, n + 2) + pointer(n, triple, 3) }
"#;

#[test]
fn a_function_that_rust_passes_by_itself_takes_no_register() {
    for (level, of_pointer) in [
        // The debug information calls both `fn(u64) -> u64`.
        ("opt-level=0", "k=arg0:size,f=-:pointer,n=-:size,arg1?"),
        ("opt-level=2", "k=arg0:size,f=arg1:pointer,n=arg2:size"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let flags = ["--crate-type=dylib", "--edition=2021", "-g", "-C", "prefer-dynamic", "-C", level];
        let path = build(dir.path(), &compiler, "a.rs", RUST, &flags);
        let functions = Module::offline(&path).unwrap().functions(0);
        let apply = functions.iter().find(|f| f.symbol.contains("5apply")).expect("an instance");
        let mut of = of_file(&path);
        assert_eq!(of(&apply.symbol).as_deref(), Ok("k=arg0:size,f=-:pointer,n=-:size,arg1?"), "{level}");
        assert_eq!(of("pointer").as_deref(), Ok(of_pointer), "{level}");
    }
}

/// Two files with a function of the same name.
const LINKED: [&str; 2] = [
    "static __attribute__((noinline)) long helper(long n, long k) { __asm__ volatile(\"\"); return n * k + 3; }\nlong one(long n) { return helper(n, n + 2); }\n",
    "static __attribute__((noinline)) long helper(long n, long k) { __asm__ volatile(\"\"); return n * k + 4; }\nlong two(long n) { return helper(n + 1, n); }\n",
];

#[test]
fn a_function_that_a_link_time_optimizer_has_renamed_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("b.c"), LINKED[1]).unwrap();
    let other = dir.path().join("b.c");
    let flags = ["-g", "-O2", "-flto", "-flto-partition=max", "-shared", "-fPIC", other.to_str().unwrap()];
    let path = build(dir.path(), "gcc", "a.c", LINKED[0], &flags);
    let functions = Module::offline(&path).unwrap().functions(0);
    let renamed: Vec<&Function> = functions.iter().filter(|f| f.symbol.starts_with("helper.")).collect();
    assert!(!renamed.is_empty(), "{functions:?}");
    let mut of = of_file(&path);
    for function in renamed {
        assert_eq!(of(&function.symbol).as_deref(), Ok("n=arg0:long,k=arg1:long"), "{}", function.symbol);
    }
    assert_eq!(of("two").as_deref(), Ok("n=arg0:long"));
}
