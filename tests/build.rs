//! Compiles the target programs of `programs/` into the output directory, where `profiler_tests::program` finds
//! them. Frame pointers in every function, leaves included: the agent's kernel-side stack walk follows them.

use std::path::{Path, PathBuf};
use std::process::Command;

const FLAGS: &[&str] = &[
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-fno-omit-frame-pointer",
    "-mno-omit-leaf-frame-pointer",
    "-fno-optimize-sibling-calls",
    // The entries are chosen in entries.S; Debian's and Ubuntu's compilers differ in this default.
    "-fcf-protection=none",
    "-pthread",
];

fn main() {
    println!("cargo::rerun-if-changed=programs");
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rerun-if-env-changed=CXX");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    assert_eq!(
        arch, "x86_64",
        "the target programs are written for x86-64, the only architecture that is traced"
    );

    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR for build scripts"));
    let c = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".into());

    compile(&c, &["-c"], &["protocol.c"], &out.join("protocol.o"));
    let protocol = out.join("protocol.o");
    let protocol = protocol.to_str().expect("cargo's output directory is UTF-8");
    compile(&c, &[], &["calls.c", "burn.c", "entries.S", protocol], &out.join("calls"));
    let arguments = ["arguments.c", "arguments.S", protocol];
    compile(&c, &[], &arguments, &out.join("arguments"));
    compile(&c, &["-DWITH_THREAD_ENDS"], &arguments, &out.join("arguments_unlinked"));
    compile(&c, &[], &["words.c", protocol], &out.join("words"));
    compile(&c, &[], &["spins.c"], &out.join("spins"));
    compile(&c, &[], &["callers.c", "callers.S", protocol], &out.join("callers"));
    compile(&c, &["-s"], &["callers.c", "callers.S", protocol], &out.join("callers_stripped"));
    compile(&c, &[], &["hazards.c", protocol], &out.join("hazards"));
    compile(&c, &[], &["switcher.c", protocol], &out.join("switcher"));
    compile(&c, &["-s"], &["switcher.c", protocol], &out.join("switcher_stripped"));
    compile(&c, &["-DWITH_HELPER"], &["switcher.c", protocol], &out.join("switcher_helper"));
    compile(&c, &[], &["leaver.c", protocol], &out.join("leaver"));
    compile(&c, &[], &["ends.c", protocol], &out.join("ends"));
    let unwinder = ["-Wl,--no-as-needed", "-lgcc_s"];
    compile(
        &c,
        &["-shared", "-fPIC", "-Wl,-soname,libcharset.so"],
        &["charset.c"],
        &out.join("libcharset.so"),
    );
    std::fs::write(
        out.join("gconv-modules"),
        "module TITHE// INTERNAL libcharset 1\nmodule INTERNAL TITHE// libcharset 1\n",
    )
    .expect("the output directory can be written to");
    compile(&c, &[], &[&["cleared.c", protocol], &unwinder[..]].concat(), &out.join("cleared"));
    let charset = out.join("libcharset.so");
    let charset = charset.to_str().expect("cargo's output directory is UTF-8");
    let sources = [&["cleared.c", protocol, "-Wl,-rpath,$ORIGIN"], &unwinder[..], &[charset]].concat();
    compile(&c, &[], &sources, &out.join("uncleared"));
    compile(&c, &[], &["waits.c", "waits.S", protocol, "-lgcc_s"], &out.join("waits"));
    compile(&c, &[], &["launched.c"], &out.join("launched"));
    compile(&c, &["-rdynamic"], &["hostile.c"], &out.join("hostile"));
    compile(&c, &[], &["requests.c", protocol], &out.join("requests"));
    compile(&c, &[], &["probes.c", protocol], &out.join("probes"));
    compile(&c, &["-s"], &["probes.c", protocol], &out.join("probes_stripped"));
    compile(&c, &[], &["events.c", protocol], &out.join("events"));
    compile(&c, &[], &["decades.c", protocol, "-lm"], &out.join("decades"));
    compile(&c, &[], &["growing.c", protocol], &out.join("growing"));
    compile(&c, &[], &["loops.c", protocol], &out.join("loops"));
    compile(&c, &[], &["twins.c", protocol], &out.join("twins"));
    compile(&c, &[], &["overhead.c", protocol], &out.join("overhead"));
    compile(&c, &[], &["pages.c", protocol], &out.join("pages"));
    compile(&c, &[], &["crowd.c", protocol, "-ldl"], &out.join("crowd"));
    compile(&c, &[], &["adversary.c", "adversary_modes.c", protocol], &out.join("adversary"));
    compile(&c, &["-mavx", "-mfma"], &["vectors.c", "vectors.S", protocol], &out.join("vectors"));
    compile(&cxx, &[], &["cpp_throw.cpp", protocol], &out.join("cpp_throw"));
    compile(&cxx, &[], &["tree.cpp", protocol, "-ldl"], &out.join("tree"));
    // As distributions build: with tail calls, cold parts and a procedure linkage table.
    let as_usual = ["-foptimize-sibling-calls", "-fno-plt", "-fcf-protection=full"];
    compile(&c, &as_usual[..1], &["graph.c"], &out.join("graph-c"));
    compile(&c, &as_usual, &["graph.c"], &out.join("graph-c-got"));
    compile(&c, &["-foptimize-sibling-calls", "-static", "-s"], &["graph.c"], &out.join("graph-c-static"));
    compile(&c, &["-foptimize-sibling-calls", "-no-pie"], &["graph.c"], &out.join("graph-c-fixed"));
    compile(&cxx, &as_usual[..1], &["graph.cpp"], &out.join("graph-cpp"));
    durations(&c, &[], &out, protocol);
    durations(&cxx, &["-x", "c++"], &out, protocol);
    compile(&c, &["-shared", "-fPIC"], &["many.c"], &out.join("libmany.so"));
    compile(&c, &["-shared"], &["sequence.S"], &out.join("libsequence.so"));
    compile(&c, &["-shared", "-fPIC"], &["plugin.c"], &out.join("libplugin.so"));
    for room in ["4", "12"] {
        let define = format!("-DROOM={room}");
        let library = out.join(format!("libthrough{room}.so"));
        // Unwinding rules tell the size of the frame only where no frame pointer does.
        let flags = ["-shared", "-fPIC", "-fomit-frame-pointer", &define];
        compile(&c, &flags, &["through.c"], &library);
    }
    compile(&c, &["-shared", "-s"], &["split.S"], &out.join("libsplit.so"));
    compile(&c, &["-shared"], &["switches.S"], &out.join("libswitches.so"));
    compile(&c, &["-shared", "-g0"], &["slow.S"], &out.join("libslow.so"));
}

/// The program `durations` in one language: its functions once for each entry form, by the flags that make GCC begin them so.
fn durations(compiler: &str, language: &[&str], out: &Path, protocol: &str) {
    let name = if language.is_empty() { "durations-c" } else { "durations-cpp" };
    let forms: [(&str, &[&str]); 4] = [
        ("push", &[]),
        ("nop5", &["-pg", "-mfentry", "-mnop-mcount", "-fno-pie"]),
        ("endbr", &["-fcf-protection=branch"]),
        ("sub", &["-DLARGE_FRAME", "-fomit-frame-pointer", "-momit-leaf-frame-pointer"]),
    ];
    let objects = forms.map(|(form, flags)| {
        let object = out.join(format!("{name}-{form}.o"));
        let define = format!("-DFORM={form}");
        let extra = [language, flags, &["-c", &define]].concat();
        compile(compiler, &extra, &["durations_form.c"], &object);
        object.to_str().expect("cargo's output directory is UTF-8").to_owned()
    });
    let main = out.join(format!("{name}-main.o"));
    compile(compiler, &[language, &["-c"]].concat(), &["durations.c"], &main);
    let mut all: Vec<&str> = objects.iter().map(String::as_str).collect();
    all.extend([main.to_str().expect("cargo's output directory is UTF-8"), protocol]);
    compile(compiler, &[], &all, &out.join(name));
}

fn compile(compiler: &str, extra: &[&str], sources: &[&str], output: &Path) {
    let status = Command::new(compiler)
        .current_dir("programs")
        .args(FLAGS)
        .args(extra)
        .args(sources)
        .arg("-o")
        .arg(output)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}; install build-essential"));
    assert!(status.success(), "{compiler} failed on {sources:?} with {status}");
}
