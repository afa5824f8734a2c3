use super::*;

fn bytes_of(addresses: [u64; 3], texts: &str) -> Vec<u8> {
    let mut description: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    description.extend(texts.as_bytes());
    let mut note = Vec::new();
    for word in [8, description.len() as u32, NOTE_TYPE] {
        note.extend(word.to_le_bytes());
    }
    note.extend(NOTE_OWNER);
    note.extend(&description);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

#[test]
fn notes_say_where_probes_stand_and_what_they_carry() {
    let mut bytes = bytes_of([0x1000, 0x4000, 0], "app\0begin\08@%rdi -4@%eax\0");
    // Another kind of note between them, which is passed over.
    bytes.extend([4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, b'G', b'N', b'U', 0, 1, 2, 3, 4]);
    bytes.extend(bytes_of([0x1010, 0x4000, 0x6000], "app\0end\0\0"));
    let notes = parse(&bytes, Some(0x4000));
    assert_eq!(notes.len(), 2);
    assert_eq!((notes[0].provider.as_str(), notes[0].name.as_str()), ("app", "begin"));
    assert_eq!((notes[0].vaddr, notes[0].semaphore), (0x1000, 0));
    assert_eq!(split_arguments(&notes[0].arguments), ["8@%rdi", "-4@%eax"]);
    assert_eq!((notes[1].vaddr, notes[1].semaphore), (0x1010, 0x6000));
    assert!(split_arguments(&notes[1].arguments).is_empty());
}

#[test]
fn a_file_that_was_prelinked_has_moved_its_probes() {
    let bytes = bytes_of([0x1000, 0x4000, 0x6000], "app\0begin\0\0");
    let moved = &parse(&bytes, Some(0x1_4000))[0];
    assert_eq!((moved.vaddr, moved.semaphore), (0x1_1000, 0x1_6000));
    let without_base = &parse(&bytes, None)[0];
    assert_eq!((without_base.vaddr, without_base.semaphore), (0x1000, 0x6000));
    // No semaphore stays none.
    assert_eq!(parse(&bytes_of([0x1000, 0x4000, 0], "a\0b\0\0"), Some(0x1_4000))[0].semaphore, 0);
}

#[test]
fn garbage_and_cut_notes_are_left_out() {
    let good = bytes_of([0x1000, 0, 0], "app\0begin\08@%rdi\0");
    let mut two = good.clone();
    two.extend(bytes_of([0x2000, 0, 0], "app\0end\0\0"));
    for len in 0..two.len() {
        let notes = parse(&two[..len], None);
        assert!(notes.len() <= 2 && notes.iter().all(|n| n.provider == "app"), "{len}: {notes:?}");
    }
    assert_eq!(parse(&two[..two.len() - 16], None).len(), 1);
    let mut huge = good.clone();
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(parse(&huge, None).is_empty());
    let mut owner = good.clone();
    owner[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(parse(&owner, None).is_empty());
    let mut other_owner = good;
    other_owner[12] = b'S';
    assert!(parse(&other_owner, None).is_empty());
    assert!(parse(&bytes_of([1, 2, 3], ""), None).is_empty());
    assert!(parse(&bytes_of([1, 2, 3], "app"), None).is_empty());
    let noise: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for start in 0..64 {
        parse(&noise[start..], Some(0));
    }
}

#[test]
fn arguments_in_registers_are_read_and_others_are_shown() {
    let read = |text| register_argument(text).unwrap();
    assert_eq!(read("8@%rdi"), RegisterArgument { offset: 112, bytes: 8, signed: false });
    assert_eq!(read("-4@%eax"), RegisterArgument { offset: 80, bytes: 4, signed: true });
    // The compiler may name the whole register of a small value.
    assert_eq!(read("-4@%r12"), RegisterArgument { offset: 24, bytes: 4, signed: true });
    assert_eq!(read("1@%bpl"), RegisterArgument { offset: 32, bytes: 1, signed: false });
    assert_eq!(read("2@%r8w").offset, 72);
    for (text, part) in [
        ("-4@$7", "is a constant"),
        ("8@-8(%rbp)", "lies in memory"),
        ("8@(%rax,%rbx,8)", "lies in memory"),
        ("4@counter", "lies in memory"),
        ("1@%ah", "no general register"),
        ("8f@%xmm0", "no general register"),
        ("8f@%rax", "no integer"),
        ("16@%rax", "no integer"),
        ("%rax", "SIZE@PLACE"),
    ] {
        let why = register_argument(text).unwrap_err();
        assert!(why.contains(part) && why.contains(text), "{why}");
    }
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let others = BTreeSet::from([
        ("python".to_owned(), "function__entry".to_owned()),
        ("python".to_owned(), "gc__start".to_owned()),
    ]);
    let why = unknown("python", "function_entry", &others, &[]);
    assert!(why.contains("similar: usdt:python:function__entry"), "{why}");
    let why = unknown("ruby", "method", &others, &[]);
    assert!(why.contains("providers in the target: python"), "{why}");
    assert!(unknown("a", "b", &BTreeSet::new(), &[]).contains("no module of the target has USDT probes"));
}
