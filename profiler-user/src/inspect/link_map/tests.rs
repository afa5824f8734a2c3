//! Programs of several libraries that define one variable: what we read is what the dynamic linker bound.

use super::*;
use crate::inspect::VariableError;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Each library has its own `counter`; `NAME` tells where it sees one.
const LIBRARY: &str = "int counter = 1; int *NAME(void) { return &counter; }";
/// Tells what each library sees, and waits for its end. A file that is named is loaded; its first letter says whether for all to see.
const PROGRAM: &str = r#"
    #include <dlfcn.h>
    #include <stdio.h>
    #include <string.h>
    #include <unistd.h>
    #ifdef OWN
    extern int counter;
    #endif
    int *see_one(void), *see_two(void);
    int main(int n, char **v) {
    #ifdef OWN
        counter++;
    #endif
    #ifdef LINKED
        printf("%p %p", (void *)see_one(), (void *)see_two());
    #endif
        for (int i = 1; i < n; i++) {
            void *library = dlopen(strchr(v[i], '/'), RTLD_NOW | (v[i][0] == 'g' ? RTLD_GLOBAL : RTLD_LOCAL));
            if (!library) return 1;
            int *(*see)(void) = (int *(*)(void))dlsym(library, strstr(v[i], "one") ? "see_one" : "see_two");
            printf("%s%p", i > 1 ? " " : "", (void *)see());
        }
        printf("\n");
        fflush(stdout);
        (void)!read(0, &n, 1);
        return 0;
    }
"#;

/// A folder with `libone.so` and `libtwo.so`; none where there is no C compiler.
fn libraries(test: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.c");
    std::fs::write(&source, LIBRARY).unwrap();
    for name in ["one", "two"] {
        let define = format!("-DNAME=see_{name}");
        let soname = format!("-Wl,-soname,lib{name}.so");
        let file = folder.path().join(format!("lib{name}.so"));
        if !cc(&["-shared", "-fPIC", &define, &soname], &source, &file, &[]) {
            assert!(std::env::var_os("REQUIRE_KERNEL").is_none(), "REQUIRE_KERNEL is set and cc failed");
            eprintln!("SKIP {test}: needs cc (build-essential)");
            return None;
        }
    }
    std::fs::write(folder.path().join("main.c"), PROGRAM).unwrap();
    Some(folder)
}

fn cc(flags: &[&str], source: &Path, to: &Path, libraries: &[&str]) -> bool {
    let built = Command::new("cc").args(flags).arg(source).arg("-o").arg(to).args(libraries).status();
    built.is_ok_and(|status| status.success())
}

/// The program, linked so.
fn program(folder: &Path, flags: &[&str], libraries: &[&str]) -> PathBuf {
    let path = folder.join("main");
    let search = format!("-L{}", folder.display());
    let found =
        [&[search.as_str(), "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"], libraries, &["-ldl"]].concat();
    assert!(cc(flags, &folder.join("main.c"), &path, &found), "{flags:?} {libraries:?}");
    path
}

/// A running program, and the addresses that it tells.
struct Running(Child, Vec<u64>);

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        let seen = line.split_whitespace().map(address).collect();
        Self(child, seen)
    }

    fn inspect(&self) -> Inspection {
        Inspection::of(i32::try_from(self.0.id()).unwrap()).unwrap()
    }

    /// Where `counter` is, as we say.
    fn found(&self) -> Result<u64, VariableError> {
        self.inspect().variable("counter").map(|(address, size)| {
            assert_eq!(size, 4);
            address
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn of_two_libraries_that_are_linked_it_is_the_one_that_both_see() {
    let Some(folder) = libraries("of_two_libraries_that_are_linked_it_is_the_one_that_both_see") else {
        return;
    };
    let mut named = Vec::new();
    for order in [["-lone", "-ltwo"], ["-ltwo", "-lone"]] {
        // The program may be at a fixed address.
        for kind in ["-pie", "-no-pie"] {
            let running =
                Running::start(&mut Command::new(program(folder.path(), &[kind, "-DLINKED"], &order)));
            let [one, two] = running.1[..] else { panic!("{:?}", running.1) };
            assert_eq!(one, two, "the dynamic linker binds both to one");
            assert_eq!(running.found(), Ok(one), "{order:?} {kind}");
            let inspection = running.inspect();
            // Its data lies behind its code.
            let begin = |module: &&Module| module.mappings[0].start;
            let before = inspection.modules().iter().filter(|module| begin(module) < one);
            named.push(before.max_by_key(begin).map(|module| module.name.clone()));
        }
    }
    let name = |name: &str| Some(format!("lib{name}.so"));
    assert_eq!(named, [name("one"), name("one"), name("two"), name("two")]);
}

#[test]
fn a_library_that_is_loaded_first_of_all_comes_first() {
    let Some(folder) = libraries("a_library_that_is_loaded_first_of_all_comes_first") else { return };
    let program = program(folder.path(), &["-DLINKED"], &["-lone", "-ltwo"]);
    let running = Running::start(Command::new(program).env("LD_PRELOAD", folder.path().join("libtwo.so")));
    assert_eq!(running.found(), Ok(running.1[0]));
    assert_eq!(running.1[0], running.1[1]);
}

/// A copy relocation: the linker puts the variable into the program, and libraries see that.
#[test]
fn what_the_program_has_copied_is_everybodys() {
    let Some(folder) = libraries("what_the_program_has_copied_is_everybodys") else { return };
    let program = program(folder.path(), &["-no-pie", "-DLINKED", "-DOWN"], &["-lone", "-ltwo"]);
    let running = Running::start(&mut Command::new(program));
    let [one, two] = running.1[..] else { panic!("{:?}", running.1) };
    assert_eq!((running.found(), one), (Ok(one), two));
}

#[test]
fn libraries_that_are_loaded_later_see_the_one_of_the_start_or_their_own() {
    let Some(folder) = libraries("libraries_that_are_loaded_later_see_the_one_of_the_start_or_their_own")
    else {
        return;
    };
    let load = |program: &Path, named: &[&str]| {
        let files = named.iter().map(|name| {
            let (kind, name) = name.split_at(1);
            format!("{kind}{}/lib{name}.so", folder.path().display())
        });
        Running::start(Command::new(program).args(files))
    };
    let alone = program(folder.path(), &[], &[]);
    let running = load(&alone, &["lone", "ltwo"]);
    assert_ne!(running.1[0], running.1[1], "each sees its own");
    let told = running.found().unwrap_err().to_string();
    for (address, name) in running.1.iter().zip(["libone.so", "libtwo.so"]) {
        assert!(told.contains(&format!("{address:#x} ({name})")), "{told}");
    }
    assert!(told.contains("dlopen"), "{told}");
    // One is no question.
    let running = load(&alone, &["ltwo"]);
    assert_eq!(running.found(), Ok(running.1[0]));
    // One of the start is everybody's.
    let linked = program(folder.path(), &[], &["-ltwo"]);
    for kind in ["lone", "gone"] {
        let running = load(&linked, &[kind, "ltwo"]);
        assert_eq!((running.found(), running.1[0]), (Ok(running.1[1]), running.1[1]), "{kind}");
    }
}

#[test]
fn a_static_program_has_no_list() {
    let Some(folder) = libraries("a_static_program_has_no_list") else { return };
    std::fs::write(folder.path().join("main.c"), "#include <stdio.h>\n#include <unistd.h>\nint main(int n, char **v) { (void)v; puts(\"\"); fflush(stdout); return (int)read(0, &n, 1); }").unwrap();
    let running = Running::start(&mut Command::new(program(folder.path(), &["-static"], &[])));
    let told = first_of(&running.inspect(), &[0]).unwrap_err();
    assert_eq!(told, "the list of its loaded files cannot be read: its program is static");
}
