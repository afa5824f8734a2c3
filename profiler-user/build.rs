//! Says which eBPF object the agent embeds: the committed one, or the one that `TITHE_BPF_OBJECT` names (`cargo xtask
//! test` runs the kernel tests on a rebuilt object too where the tools differ from those of the committed one).

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-env-changed=TITHE_BPF_OBJECT");
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let committed = Path::new(&package).join("../profiler-ebpf/tithe.bpf.o");
    let object = std::env::var("TITHE_BPF_OBJECT").unwrap_or_else(|_| committed.display().to_string());
    println!("cargo::rerun-if-changed={object}");
    println!("cargo::rustc-env=TITHE_BPF_OBJECT={object}");
}
