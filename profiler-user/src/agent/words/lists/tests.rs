//! From what was named to the kernel's lists.

use super::*;

fn lists(words: &[&str], operations: &[&str]) -> Result<WordLists, String> {
    let words: Vec<WordsSpec> = words.iter().map(|text| text.parse().unwrap()).collect();
    let operations: Vec<OperationSpec> = operations.iter().map(|text| text.parse().unwrap()).collect();
    WordLists::new(&words, &operations)
}

#[test]
fn words_of_one_place_are_one_list_and_objects_have_numbers() {
    let all = lists(
        &[
            "accept:conn=arg1",
            "handle:length=strlen(arg0->8+4),state=conn->16:u8",
            "handle:first=arg2:int",
            "req@end:served=&SERVED->0:u32,name=conn->8->-2:i16",
        ],
        &["io=syscall:fsync", "req=serve"],
    )
    .unwrap();
    assert_eq!(all.longest(), 3);
    fn at(list: &List) -> (&str, bool, std::ops::Range<usize>, Option<u32>) {
        (list.place.as_str(), list.at_end, list.words.clone(), list.operation)
    }
    let places: Vec<_> = all.lists.iter().map(at).collect();
    assert_eq!(
        places,
        [("accept", false, 0..1, None), ("handle", false, 1..4, None), ("req", true, 4..6, Some(1)),]
    );
    let spec = |source, number| WordSpec { source, number, bytes: 8, signed: 1, ..WordSpec::default() };
    let expected = [
        WordSpec { object: 1, ..spec(SOURCE_ARGUMENT, 1) },
        WordSpec {
            dereferences: 1,
            offsets: [8, 4, 0, 0, 0],
            kind: WORD_STRING,
            signed: 0,
            ..spec(SOURCE_ARGUMENT, 0)
        },
        WordSpec {
            dereferences: 1,
            offsets: [16, 0, 0, 0, 0],
            bytes: 1,
            signed: 0,
            ..spec(SOURCE_OBJECT, 0)
        },
        WordSpec { bytes: 4, ..spec(SOURCE_ARGUMENT, 2) },
        WordSpec { dereferences: 1, bytes: 4, signed: 0, ..spec(SOURCE_ADDRESS, 0) },
        WordSpec { dereferences: 2, offsets: [8, -2, 0, 0, 0], bytes: 2, ..spec(SOURCE_OBJECT, 0) },
    ];
    assert_eq!(all.specs, expected);
    assert_eq!(all.of_operation(1, true), (0, word_list(4, 2, ALL_LOST)));
    assert_eq!((all.of_operation(0, true), all.arguments_of_operation(1)), ((0, 0), 0));
    let meta = all.meta();
    assert_eq!((meta[5].word, meta[5].name.as_str(), meta[5].operation), (5, "name", Some(1)));
    assert_eq!((meta[5].expression.as_str(), meta[5].value.as_str()), ("conn->8->-2:i16", "i16"));
    assert_eq!((meta[1].expression.as_str(), meta[1].value.as_str()), ("strlen(arg0->8+4)", "strlen"));
    let mut all = all;
    assert_eq!(all.correct(1, 70.0), Some(TAKING_NS + 70.0));
    assert_eq!((all.lists[1].price_ns, all.correct(2, 70.0)), (TAKING_NS + 70.0, None));
    // Those of operations are corrected in the same way; each operation pays for its own.
    let mut prices_ns = vec![7.0; 5];
    assert_eq!(all.correct(4, 90.0), Some(TAKING_NS + 90.0));
    all.prices_of_operations(&mut prices_ns);
    assert_eq!(prices_ns, [0.0, TAKING_NS + 90.0]);
}

#[test]
fn what_cannot_be_taken_is_refused_with_what_can() {
    let many: Vec<String> = (0..65).map(|i| format!("w{i}=arg0")).collect();
    let many = format!("f:{}", many.join(","));
    let objects: Vec<String> = (0..17).map(|i| format!("o{i}=arg0,x{i}=o{i}->0")).collect();
    let objects = format!("f:{}", objects.join(","));
    let cases: [(&[&str], &str); 10] = [
        (&[&many], "65 words are named, and 64 fit in all lists together: leave out 1"),
        (&[&objects], "17 words are used as objects, and 16 can be"),
        (&["f:n=conn->8"], "no word is called 'conn'"),
        (&["f:n=conn->8", "g:conn=arg0", "h:conn=arg0"], "two words are called 'conn'"),
        (&["f:conn=arg0:int,n=conn->8"], "it takes 8 bytes, like 'conn=arg0:long'"),
        (&["f:conn=strlen(arg0),n=conn->8"], "'conn=strlen(arg0)' is no address"),
        (&["f:n=arg0", "f:n=arg1"], "two words of 'f' are called 'n'"),
        (&["req@end:n=arg0"], "'req:object=arg0' and 'req@end:n=object->8'"),
        (&["io:n=arg0"], "only operations that a function begins have arguments"),
        (&["tp:n=&X->0"], "name one that functions, probes or system calls bound"),
    ];
    for (words, part) in cases {
        let operations = ["req=serve", "io=syscall:fsync", "tp=tp:sched:a..tp:sched:b"];
        let error = lists(words, &operations).unwrap_err();
        assert!(error.contains(part), "{words:?}: {error}");
    }
}
