//! Several patterns that name one function.

use super::*;
use crate::inspect::Inspection;
use crate::prober::word_list;

fn lists(words: &[&str]) -> WordLists {
    let words: Vec<_> = words.iter().map(|text| text.parse().unwrap()).collect();
    WordLists::new(&words, &[]).unwrap()
}

/// There is nothing new to tell the kernel.
fn never(_: &[WordSpec]) -> Result<(), u32> {
    panic!("nothing is new")
}

/// Functions of this program that a pattern names.
fn functions(pattern: &str) -> Vec<Function> {
    let inspection = Inspection::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    inspection.resolve(&[Pattern::parse(pattern).unwrap()]).functions
}

#[test]
fn a_function_takes_the_words_of_all_patterns_that_name_it() {
    let function = functions("*a_function_takes_the_words_of_all_patterns*").remove(0);
    let other = functions("*words_of_one_name_are_told*").remove(0);
    let mut all = lists(&[
        "*a_function_takes_the_words*:n=arg0,conn=arg1",
        "*words_of_one_name*:x=arg0",
        "/takes_the_words|words_of_one_name/:m=conn->8:u8",
        "*a_function_takes_the_words*@end:left=arg2",
    ]);
    assert_eq!((all.longest(), all.arguments(&function)), (4, 0b111));
    let names = |all: &WordLists| all.meta().into_iter().map(|word| word.name).collect::<Vec<_>>();
    let before = names(&all);
    let mut told = 0;
    let mut tell = |words: &[WordSpec]| {
        told = words.len();
        Ok(())
    };
    let found = all.of_function(&function, false, &mut tell);
    let list = found.list.unwrap();
    assert!(found.note.is_none());
    assert_eq!((list.packed(0), list.arguments), (word_list(5, 3, 0), 0b11));
    assert_eq!(all.specs[5..8], [all.specs[0], all.specs[1], all.specs[3]]);
    let originals: Vec<u32> = (0..8).map(|word| all.original(word)).collect();
    assert_eq!(originals, [0, 1, 2, 3, 4, 0, 1, 3]);
    // The recording knows the words that were named, and no others.
    assert_eq!(names(&all), before);
    // One list is one list, and the same functions share it.
    assert_eq!(told, 8, "the kernel knows its words");
    assert_eq!(all.of_function(&function, true, never).list.unwrap().packed(0), word_list(4, 1, 0));
    let again = all.of_function(&function, false, never);
    assert_eq!(again.list.unwrap().words, 5..8);
    assert_eq!(all.of_function(&other, false, |_| Ok(())).list.unwrap().words, 8..10);
    // It is corrected as any other.
    let price_ns = all.correct(5, 70.0).unwrap();
    assert_eq!(all.of_function(&function, false, never).list.unwrap().price_ns, price_ns);
}

#[test]
fn words_of_one_name_are_told_with_both_patterns() {
    let function = functions("*words_of_one_name_are_told*").remove(0);
    let mut all = lists(&["*of_one_name_are_told*:n=arg0,m=arg1", "/one_name_are/:k=arg2,m=arg3"]);
    let clashes: Vec<_> = all.clashes().into_iter().map(|(a, b, name)| (a.text(), b.text(), name)).collect();
    assert_eq!(clashes, [("*of_one_name_are_told*", "/one_name_are/", "m")]);
    let found = all.of_function(&function, false, never);
    assert_eq!(found.list.unwrap().words, 0..2);
    let note = found.note.unwrap();
    assert!(note.contains("'*of_one_name_are_told*' and '/one_name_are/' both have a word 'm'"), "{note}");
    // Begin and end, and other functions, are no clash.
    for other in
        [["f*:n=arg0", "f@end:n=arg1"], ["f:n=arg0", "g:n=arg1"], ["db::f(int):n=arg0", "db::g:n=arg1"]]
    {
        assert!(lists(&other).clashes().is_empty(), "{other:?}");
    }
    for same in [
        ["f:n=arg0", "libx:f:n=arg1"],
        ["=f:n=arg0", "f:n=arg1"],
        ["db::f(int):n=arg0", "db::f:n=arg1"],
        ["f:n=arg0", "/f/:n=arg1"],
    ] {
        assert_eq!(lists(&same).clashes().len(), 1, "{same:?}");
    }
}

#[test]
fn words_that_do_not_fit_twice_are_told() {
    let function = functions("*words_that_do_not_fit_twice*").remove(0);
    let many: Vec<String> = (0..40).map(|i| format!("w{i}=arg0")).collect();
    let many = format!("*that_do_not_fit*:{}", many.join(","));
    let mut all = lists(&[&many, "/do_not_fit_twice/:n=arg1"]);
    assert_eq!(all.longest(), 41);
    let found = all.of_function(&function, false, never);
    let note = found.note.unwrap();
    assert!(note.contains("of which 23 are left, and they are 41"), "{note}");
    assert_eq!((found.list.unwrap().words, all.specs.len()), (0..40, 41));
}

#[test]
fn words_that_the_kernel_side_does_not_take_are_those_of_the_first_pattern() {
    let function = functions("*words_that_the_kernel_side_does_not_take*").remove(0);
    let mut all = lists(&["*kernel_side_does_not_take*:n=arg0,k=arg2", "/kernel_side_does_not/:m=arg1"]);
    let before = all.specs.clone();
    for _ in 0..2 {
        let found = all.of_function(&function, false, |_| Err(4));
        let note = found.note.unwrap();
        assert!(note.starts_with("only the words of '*kernel_side_does_not_take*' are taken"), "{note}");
        assert!(note.ends_with("1 more patterns that name it: the kernel side takes 4 words"), "{note}");
        assert_eq!((found.list.unwrap().words, &all.specs), (0..2, &before));
    }
    // As if it had never been tried.
    let found = all.of_function(&function, false, |_| Ok(()));
    assert_eq!((found.list.unwrap().words, found.note), (3..6, None));
    assert_eq!((0..6).map(|word| all.original(word)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
}
