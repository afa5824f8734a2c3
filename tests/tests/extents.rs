//! What belongs to a function of a stripped library, by its unwind tables: its size, its split-off parts, and what it goes on to.

use profiler_core::class::SiteClass;
use profiler_user::inspect::{ExitObstacle, Inspection, KernelRules, Module};

/// Of a stripped library unwind tables tell what belongs to a function, and what is another one.
#[test]
fn calls_end_in_a_function_and_its_parts_and_not_where_it_goes_on() {
    let module = Module::offline(&profiler_tests::program("libsplit.so")).unwrap();
    let sites = |name: &str| {
        let function = module.functions(0).into_iter().find(|f| f.symbol == name).unwrap();
        Inspection::sites_offline(&module, &function, KernelRules::for_version(6, 18))
    };
    let parts = sites("split_parts");
    let own = parts.entry.vaddr..parts.entry.vaddr + 16;
    let exits = parts.exits.unwrap();
    assert_eq!(exits.iter().map(|exit| own.contains(&exit.vaddr)).collect::<Vec<_>>(), [true, false]);
    assert!(parts.parts.len() == 1 && parts.parts[0].contains(&exits[1].vaddr), "{:?}", parts.parts);
    assert_eq!(exits.iter().map(|exit| exit.return_slot).collect::<Vec<_>>(), [Some(0), Some(0)]);
    assert_eq!(sites("split_switch").exits.unwrap().len(), 3);
    let scattered = sites("split_scattered").exits.unwrap_err().to_string();
    assert!(scattered.ends_with("more than 64 split-off parts"), "{scattered}");
    for (name, jump, on) in [
        ("split_tail", 3, "the function without a name at 0x"),
        ("split_conditional", 3, "the function without a name at 0x"),
        ("split_stub", 2, "getpid@plt"),
        ("split_pointer", 3, "another function, through a pointer"),
    ] {
        match sites(name).exits {
            Err(ExitObstacle::TailCall { at, to, name: found }) => {
                assert!(at == jump && found.starts_with(on), "{name}: {at} {found}");
                assert_eq!(to.is_none(), name == "split_pointer");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Hand-written code may state none; its unwind data do.
#[test]
fn functions_that_state_no_size_have_that_of_their_unwind_data() {
    let module = Module::offline(&profiler_tests::program("libsplit.so")).unwrap();
    let functions = module.functions(0);
    let sizeless = functions.iter().find(|f| f.symbol == "split_sizeless").unwrap();
    assert_eq!(sizeless.size, 3);
    let sites = Inspection::sites_offline(&module, sizeless, KernelRules::for_version(6, 18));
    assert_eq!(sites.trace, Ok(()));
    assert_eq!((sites.entry.class, sites.exits.unwrap().len()), (SiteClass::Push, 1));
    assert!(!functions.iter().any(|f| f.symbol == "split_unknown"), "nothing tells its size");
    assert!(!functions.iter().any(|f| f.symbol == "split_holder"), "another function begins inside");
}
