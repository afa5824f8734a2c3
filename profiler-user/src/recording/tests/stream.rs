//! Tables that are read a row group at a time.

use super::*;

/// Tables that no report needs are not in [`Recording`].
#[test]
fn calls_in_order_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let tails = vec![TailRow { from_class: 1, to_class: 1 }];
    w.push_rows(sample::steps().into());
    w.push_rows(sample::call_sites().into());
    w.push_rows(tails.clone().into());
    assert_eq!(w.finish(&meta()).unwrap().rows, 6);
    let mut stream = Stream::open(&path).unwrap();
    assert_eq!(stream.table::<StepRow>().unwrap(), sample::steps());
    assert_eq!(stream.table::<CallSiteRow>().unwrap(), sample::call_sites());
    assert_eq!(stream.table::<TailRow>().unwrap(), tails);
    assert_eq!(stream.meta(), &meta());
    assert!(stream.has::<StepRow>() && !stream.has::<OperationRow>());
    assert_eq!(stream.damage(), Vec::<String>::new());
}

/// Many row groups and segments; then one segment is cut, one flipped, and `meta.json` gone: the rest is read, and each is told.
#[test]
fn a_stream_reads_in_order_and_passes_over_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let step = |number| StepRow { number, ..sample::steps()[0] };
    for part in 0..3 {
        w.push(&(0..150_000).map(|i| step(part * 150_000 + i)).collect::<Vec<_>>());
        w.roll();
    }
    w.finish(&meta()).unwrap();
    let numbers = |stream: &mut Stream| {
        let mut numbers = Vec::new();
        stream.each(|row: StepRow| numbers.push(row.number)).unwrap();
        numbers
    };
    let mut stream = Stream::open(&path).unwrap();
    assert_eq!(numbers(&mut stream), (0..450_000).collect::<Vec<_>>());

    let second = path.join("steps-00002.parquet");
    let bytes = fs::read(&second).unwrap();
    fs::write(&second, &bytes[..bytes.len() / 2]).unwrap();
    fs::remove_file(path.join(META_FILE)).unwrap();
    let mut stream = Stream::open(&path).unwrap();
    assert_eq!(numbers(&mut stream), (0..150_000).chain(300_000..450_000).collect::<Vec<_>>());
    assert_eq!(stream.meta(), &meta());
    let damage = stream.damage().join("\n");
    assert_eq!(stream.damage().len(), 3, "{damage}");
    assert!(damage.contains("steps-00002.parquet: not read") && damage.contains("meta.json"), "{damage}");

    // What is left of a segment whose last row group is damaged are the whole ones before it.
    let third = path.join("steps-00003.parquet");
    let mut bytes = fs::read(&third).unwrap();
    let at = bytes.len() * 9 / 10;
    bytes[at..at + 400].fill(0xa5);
    fs::write(&third, &bytes).unwrap();
    let mut stream = Stream::open(&path).unwrap();
    let found = numbers(&mut stream);
    assert!(found.len() < 300_000 && found.len() % 65_536 == 150_000 % 65_536, "{}", found.len());
    assert!(stream.damage().iter().any(|line| line.contains("steps-00003")), "{:?}", stream.damage());
}
