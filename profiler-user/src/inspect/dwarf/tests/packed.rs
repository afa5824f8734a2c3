//! Sections that are packed: only those are unpacked that are read, they are given back, and they are charged once.

use super::*;
use gimli::Reader as _;

/// The module of a library with tables of lines and macros, all of them packed.
fn library(dir: &Path) -> Module {
    Module::offline(&c_library(dir, &["-gdwarf-5", "-g3", "-O2", "-gz=zlib"])).unwrap()
}

fn named<'a>(functions: &'a [Function], name: &str) -> &'a Function {
    functions.iter().find(|f| f.symbol == name).unwrap()
}

fn held(run: &Run) -> Vec<&str> {
    run.modules.values().flat_map(|known| known.file.as_ref().unwrap().unpacked()).collect()
}

#[test]
fn tables_of_lines_and_macros_stay_packed() {
    let dir = tempfile::tempdir().unwrap();
    let (module, mut run) = (library(dir.path()), Run::default());
    let functions = module.functions(0);
    let sections =
        std::process::Command::new("readelf").arg("-SW").arg(dir.path().join("lib.so")).output().unwrap();
    let sections = String::from_utf8_lossy(&sections.stdout).into_owned();
    for name in [".debug_line ", ".debug_macro "] {
        assert!(sections.contains(name), "{sections}");
    }
    assert!(of(&module, named(&functions, "plain"), Effort::Much, &mut run).is_ok());
    let held = held(&run);
    assert!(held.contains(&".debug_info") && held.contains(&".debug_loclists"), "{held:?}");
    assert!(
        !held.iter().any(|name| name.starts_with(".debug_line") || name.starts_with(".debug_mac")),
        "{held:?}"
    );
}

#[test]
fn what_was_given_back_is_not_charged_again() {
    let dir = tempfile::tempdir().unwrap();
    let (module, mut run) = (library(dir.path()), Run::default());
    let functions = module.functions(0);
    assert!(of(&module, named(&functions, "plain"), Effort::Much, &mut run).is_ok());
    let left = run.bytes;
    assert!(left < RUN_BYTES);
    run.modules.values().for_each(|known| known.file.as_ref().unwrap().rest());
    assert_eq!(held(&run), Vec::<&str>::new());
    // All that is packed costs more than this.
    run.bytes = 100;
    assert!(of(&module, named(&functions, "typed"), Effort::Little, &mut run).is_ok());
    assert!(held(&run).contains(&".debug_info"));
    assert_eq!(run.bytes, 100, "small sections are not packed, and were not read");
}

/// While windows are open nothing is unpacked that takes long, paid for or not.
#[test]
fn a_large_section_that_was_given_back_is_not_unpacked_for_a_little_effort() {
    let dir = tempfile::tempdir().unwrap();
    let (module, mut run) = (library(dir.path()), Run::default());
    let functions = module.functions(0);
    assert!(of(&module, named(&functions, "plain"), Effort::Much, &mut run).is_ok());
    let file = || run.modules.values().next().unwrap().file.as_ref().unwrap();
    file().rest();
    let read = |largest: u64| {
        let budget = Budget::within(largest, 1 << 20, 1 << 20);
        let first = file().section(".debug_info", &budget).read_u8();
        (first.is_ok(), budget.is_spent(), budget.left().0)
    };
    assert_eq!(read(8), (false, true, 1 << 20));
    assert_eq!(read(1 << 20), (true, false, 1 << 20), "it was paid for");
    assert_eq!(read(8), (true, false, 1 << 20), "it is there");
}
