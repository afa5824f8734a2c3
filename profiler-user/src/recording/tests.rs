use super::cell::{Column, Table};
use super::sample::{self, meta};
use super::segment;
use super::*;
use parquet::file::writer::SerializedFileWriter;
use profiler_core::recording::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

mod stream;

fn write(path: &Path, recording: &Recording) -> Finished {
    let mut w = Writer::create(path, None, Overwrite::Recording, &recording.meta).unwrap();
    w.push(&recording.classes);
    w.push(&recording.windows);
    w.push(&recording.histograms);
    w.push(&recording.open_calls);
    w.push(&recording.beside);
    w.push(&recording.events);
    w.push(&recording.samples);
    w.push(&recording.trap_samples);
    w.push(&recording.stacks);
    w.push(&recording.ledger);
    w.push(&recording.plans);
    w.push(&recording.operation_classes);
    w.push(&recording.operations);
    w.push(&recording.operation_windows);
    w.push(&recording.operation_histograms);
    w.push(&recording.operation_cycles);
    w.push(&recording.changes);
    if !recording.words.is_empty() {
        w.push(&sample::words());
    }
    w.finish(&recording.meta).unwrap()
}

#[test]
fn every_field_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let recording = sample::recording();
    let finished = write(&path, &recording);
    assert_eq!(open(&path).unwrap(), recording);
    let rows = 1 + 1 + 2 + 1 + 1 + 2 + 10 + 7 + 2 + 1 + 1 + 1 + 2 + 1 + 3 + 1 + 2 + 2;
    assert_eq!((finished.rows, finished.rows_not_written), (rows, 0));
    assert_eq!(open_without_events(&path).unwrap().events, []);
}

/// Tables that no report needs are not in [`Recording`].
#[test]
fn calls_in_order_come_back() {
    fn read<R: Table>(path: &Path) -> Vec<R> {
        let file = fs::File::open(path.join(format!("{}-00001.parquet", R::NAME))).unwrap();
        let mut rows = Vec::new();
        segment::read_rows(&segment::open(file).unwrap().0, &mut rows).unwrap();
        rows
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let tails = vec![TailRow { from_class: 1, to_class: 1 }];
    w.push_rows(sample::steps().into());
    w.push_rows(sample::call_sites().into());
    w.push_rows(tails.clone().into());
    assert_eq!(w.finish(&meta()).unwrap().rows, 6);
    assert_eq!(read::<StepRow>(&path), sample::steps());
    assert_eq!(read::<CallSiteRow>(&path), sample::call_sites());
    assert_eq!(read::<TailRow>(&path), tails);
}

#[test]
fn numbers_at_the_edges_and_many_row_groups_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut recording = sample::recording();
    recording.events = (0..150_000_u64)
        .map(|i| EventRow {
            time_ns: if i == 77 { u64::MAX } else { i * 1_000 },
            class_id: if i == 78 { u32::MAX } else { 0 },
            pid: 1,
            tid: (i % 5) as u32,
            duration_ns: (i % 3 != 0).then_some(i * i),
            args: [Some(i), Some(u64::MAX - i), None, (i % 3 == 0).then_some(i), Some(0), Some(1 << 63)],
            nested_cost_ns: (i % 3 != 0).then_some(i),
            place: CallPlace::default(),
            context: CallContext::default(),
        })
        .collect();
    recording.windows[0].tau_ns = f64::INFINITY;
    write(&path, &recording);
    assert_eq!(open(&path).unwrap(), recording);
}

/// Recordings from before arguments could be null have their columns without nulls.
#[test]
fn arguments_of_an_older_recording_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut recording = sample::recording();
    recording.events.iter_mut().for_each(|event| event.args = [1, 2, 3, 4, u64::MAX, 0].map(Some));
    write(&path, &recording);
    let mut columns = EventRow::columns();
    let mut cells: Vec<Column> = columns.iter().map(|column| Column::new(column.ty)).collect();
    recording.events.iter().for_each(|event| event.put(&mut cells));
    for (column, cells) in columns.iter_mut().zip(&mut cells).filter(|(c, _)| c.name.starts_with("arg")) {
        column.optional = false;
        cells.present.clear();
    }
    let properties = segment::properties(&columns, "{}");
    let schema = segment::schema(EventRow::NAME, &columns);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    segment::write_group(&mut writer, &cells).unwrap();
    let file = path.join("events-00001.parquet").canonicalize().unwrap();
    fs::write(file, writer.into_inner().unwrap()).unwrap();
    assert_eq!(open(&path).unwrap(), recording);
}

#[test]
fn files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    write(&path, &sample::recording());
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o700);
    let names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(names.len(), 19, "{names:?}");
    for name in names {
        assert_eq!(mode(&name), 0o600, "{}", name.display());
    }
}

/// Cuts every file of a recording at every offset (long ones: at many) and opens what is left.
#[test]
fn truncated_anywhere_it_opens_with_the_whole_segments() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let recording = sample::recording();
    write(&path, &recording);
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = fs::read(&file).unwrap();
        let step = bytes.len().div_ceil(60);
        for cut in (0..bytes.len()).step_by(step).chain(bytes.len() - 9..bytes.len()) {
            fs::write(&file, &bytes[..cut]).unwrap();
            let opened = open(&path).unwrap();
            if name == META_FILE && cut == bytes.len() - 1 {
                // Without its last line break the file is still whole.
                assert_eq!(opened, recording);
                continue;
            }
            let is_told = opened.damage.iter().any(|d| d.contains(&name));
            assert!(is_told, "{name} cut at {cut}: {:?}", opened.damage);
            assert_eq!(opened.classes.is_empty(), name.starts_with("classes"), "{name} cut at {cut}");
            assert_eq!(opened.samples.is_empty(), name.starts_with("samples"), "{name} cut at {cut}");
            let no_words = opened.words.iter().all(|tally| tally.taken == 0);
            assert_eq!(no_words, name.starts_with("words"), "{name} cut at {cut}");
            assert_eq!(opened.meta.pid, recording.meta.pid);
        }
        fs::write(&file, &bytes).unwrap();
    }
    assert_eq!(open(&path).unwrap(), recording);
}

/// Flips bytes in every segment: what comes back is an error, damage, or rows, never a panic that escapes.
#[test]
fn flipped_bytes_do_not_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    write(&path, &sample::recording());
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let bytes = fs::read(&file).unwrap();
        for at in (0..bytes.len()).step_by(bytes.len().div_ceil(150)) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x55;
            fs::write(&file, &bad).unwrap();
            let _ = open(&path);
        }
        fs::write(&file, &bytes).unwrap();
    }
}

#[test]
fn without_meta_the_copy_in_a_segment_serves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    write(&path, &sample::recording());
    fs::remove_file(path.join(META_FILE)).unwrap();
    let opened = open(&path).unwrap();
    assert_eq!(opened.meta, meta());
    assert_eq!(opened.damage.len(), 2, "{:?}", opened.damage);
}

#[test]
fn unfinished_and_foreign_files_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let recording = sample::recording();
    write(&path, &recording);
    fs::write(path.join("events-00002.parquet.tmp"), b"PAR1 half a segment").unwrap();
    fs::write(path.join("plan-0001.toml"), b"budget = 1").unwrap();
    fs::write(path.join("later-00001.parquet"), b"a table of a later version").unwrap();
    assert_eq!(open(&path).unwrap(), recording);
}

#[test]
fn a_later_format_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    write(&path, &sample::recording());
    fs::write(path.join(META_FILE), r#"{"format_version": 99, "new_field": true}"#).unwrap();
    let error = open(&path).unwrap_err().to_string().replace(&path.display().to_string(), "P");
    expect_test::expect!["the recording 'P' has format version 99, this tithe reads versions up to 1; read it with the version that wrote it or a later one"]
        .assert_eq(&error);
}

#[test]
fn what_is_no_recording_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |path: &Path, expect: expect_test::Expect| {
        let error = open(path).unwrap_err().to_string();
        expect.assert_eq(&error.replace(&dir.path().display().to_string(), "D"));
    };
    check(
        dir.path(),
        expect_test::expect![
            "'D' is not a recording: it has no readable meta.json and no whole segment; a recording is the directory that 'tithe record -o' wrote"
        ],
    );
    check(
        &dir.path().join("none"),
        expect_test::expect![
            "cannot open the recording 'D/none': No such file or directory (os error 2); a recording is the directory that 'tithe record -o' wrote"
        ],
    );
}

#[test]
fn places_that_are_not_ours_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    fs::create_dir(d.join("full")).unwrap();
    fs::write(d.join("full/thesis.txt"), "years of work").unwrap();
    std::os::unix::fs::symlink(d.join("full"), d.join("link")).unwrap();
    fs::write(d.join("file"), "").unwrap();
    let check = |path: &Path, expect: expect_test::Expect| {
        let error = Writer::create(path, None, Overwrite::Recording, &meta()).err().unwrap().to_string();
        expect.assert_eq(&error.replace(&d.display().to_string(), "D"));
    };
    check(
        &d.join("full"),
        expect_test::expect![
            "cannot create a recording in 'D/full': the directory is not empty and 'thesis.txt' is not part of a recording; choose another name with -o, or use --force to write beside it"
        ],
    );
    check(
        &d.join("link"),
        expect_test::expect![
            "cannot create a recording at 'D/link': something that is not a directory (or a symbolic link, which is not followed) is there; remove it or choose another name with -o"
        ],
    );
    check(
        &d.join("file"),
        expect_test::expect![
            "cannot create a recording at 'D/file': something that is not a directory (or a symbolic link, which is not followed) is there; remove it or choose another name with -o"
        ],
    );
    check(
        &d.join("no/such"),
        expect_test::expect![
            "cannot open the directory 'D/no' to create a recording in it: No such file or directory (os error 2); create it first: mkdir -p 'D/no'"
        ],
    );
    check(
        Path::new("/"),
        expect_test::expect![
            "cannot create a recording at '/': the path names no directory of its own; write for example '-o run.tithe'"
        ],
    );
    // With --force the other files stay.
    Writer::create(&d.join("full"), None, Overwrite::Anything, &meta()).unwrap();
    assert_eq!(fs::read_to_string(d.join("full/thesis.txt")).unwrap(), "years of work");
}

#[test]
fn an_earlier_recording_is_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    write(&path, &sample::recording());
    let mut empty = sample::recording();
    empty.events.clear();
    empty.plans.clear();
    write(&path, &empty);
    assert_eq!(open(&path).unwrap(), empty);
}

#[test]
fn a_link_in_place_of_a_file_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    for name in ["samples-00001.parquet.tmp", "samples-00001.parquet"] {
        std::os::unix::fs::symlink(&victim, path.join(name)).unwrap();
    }
    w.push(&sample::samples());
    w.finish(&meta()).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(open(&path).unwrap().samples, sample::samples());
}

#[test]
fn a_killed_writer_leaves_what_was_rolled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut first = meta();
    first.end_ns = None;
    let mut w = Writer::create(&path, None, Overwrite::Recording, &first).unwrap();
    w.push(&sample::samples());
    w.roll();
    w.push(&sample::samples());
    drop(w); // as SIGKILL: nothing more is written
    let opened = open(&path).unwrap();
    assert_eq!(opened.samples.len(), 10);
    assert_eq!(opened.meta.end_ns, None);
    assert_eq!(opened.damage, Vec::<String>::new());
}

#[test]
fn later_rows_of_a_class_a_bucket_and_a_stack_follow_their_rules() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let bucket = |count| HistogramRow { class_id: 0, low_ns: 100, high_ns: 103, count };
    w.push(&sample::classes());
    w.push(&[bucket(3)]);
    w.push(&sample::stacks());
    w.roll();
    let mut class = sample::classes()[1].clone();
    class.notes.push("tripped".into());
    w.push(&[class.clone()]);
    w.push(&[bucket(4)]);
    w.roll();
    // The same two stacks with lines; then the writer dies before it can remove the first segment.
    let mut lined = sample::stacks();
    for row in &mut lined {
        row.line = 5;
    }
    w.push(&lined);
    w.roll();
    w.push(&[OperationClassRow {
        class_name: "GET /b".into(),
        ..sample::recording().operation_classes[0].clone()
    }]);
    w.roll();
    w.push(&sample::recording().operation_classes);
    w.roll();
    let opened = open(&path).unwrap();
    assert_eq!(opened.operation_classes, sample::recording().operation_classes);
    assert_eq!(opened.classes, [sample::classes()[0].clone(), class]);
    assert_eq!(opened.histograms, [bucket(7)]);
    assert_eq!(opened.stacks, lined);

    w.replace_stacks(&sample::stacks());
    w.finish(&meta()).unwrap();
    let segments = fs::read_dir(&path)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("stacks"));
    assert_eq!(segments.count(), 1);
    assert_eq!(open(&path).unwrap().stacks, sample::stacks());
}

/// A file system of 384 KiB that fills up, and then has room again (needs root for the mount).
#[test]
fn a_full_disk_is_told_once_and_waited_out() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=384k", "tithe-test"])
        .arg(dir.path())
        .output()
        .is_ok_and(|o| o.status.success());
    if !mounted {
        assert!(std::env::var_os("REQUIRE_KERNEL").is_none(), "REQUIRE_KERNEL is set and mount failed");
        eprintln!("SKIP a_full_disk_is_told_once_and_waited_out: mount -t tmpfs needs root");
        return;
    }
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0).status();
        }
    }
    let unmount = Unmount(dir.path());
    let path = dir.path().join("run.tithe");
    let mut w = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    fs::write(dir.path().join("ballast"), vec![1; 230 << 10]).unwrap();
    let mut noise = 1_u64;
    let events: Vec<EventRow> = (0..1_000)
        .map(|i| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            EventRow {
                time_ns: i,
                class_id: 0,
                pid: 1,
                tid: 1,
                duration_ns: None,
                args: [Some(noise); 6],
                nested_cost_ns: None,
                place: CallPlace::default(),
                context: CallContext::default(),
            }
        })
        .collect();
    for _ in 0..3 {
        w.push(&events);
        w.roll();
    }
    let notices = w.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("No space left on device"), "{notices:?}");
    assert_eq!(w.rows_not_written(), 0, "the rows wait in memory");
    fs::remove_file(dir.path().join("ballast")).unwrap();
    w.roll();
    assert_eq!(w.take_notices().len(), 1, "it says that it writes again");

    // Full again, to the end: the run ends all the same, and the receipt can say what is missing.
    for _ in 0..20 {
        w.push(&events);
        w.roll();
    }
    let Finished { rows, rows_not_written, .. } = w.finish(&meta()).unwrap();
    assert_eq!(rows + rows_not_written, 23_000);
    assert!((3_000..23_000).contains(&rows), "{rows}");
    let recording = open(&path).unwrap();
    assert_eq!(recording.events.len() as u64, rows);
    assert_eq!(recording.meta.losses.rows_not_written, rows_not_written, "meta.json had its room");
    drop(unmount);
}

#[test]
fn the_thread_writes_rolls_and_bounds_its_queue() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.tithe");
    let writer = Writer::create(&path, None, Overwrite::Recording, &meta()).unwrap();
    let options =
        WriterOptions { roll_every: Duration::from_millis(50), room_bytes: 2048, queue_bytes: 4096 };
    let handle = WriterHandle::spawn(writer, options).unwrap();
    assert!(handle.has_room() && handle.send(sample::samples()));
    let begin = std::time::Instant::now();
    while open(&path).is_ok_and(|r| r.samples.is_empty()) {
        assert!(begin.elapsed() < Duration::from_secs(20), "the timer rolls without being told to");
        std::thread::sleep(Duration::from_millis(5));
    }
    // More than the queue holds, at once: what does not fit is counted.
    let mut sent = 0;
    let mut refused = 0;
    for _ in 0..200 {
        let fits = handle.has_room();
        if handle.send(sample::samples()) { sent += 10 } else { refused += 10 * u64::from(!fits) }
    }
    assert_eq!(handle.rows_not_written(), refused);
    let finished = handle.finish(&meta()).unwrap();
    assert_eq!((finished.rows, finished.rows_not_written), (10 + sent, refused));
    let opened = open(&path).unwrap();
    assert_eq!(opened.samples.len() as u64, 10 + sent);
    assert_eq!(opened.meta.losses.rows_not_written, refused);
}

/// `docs/formats.md` has a line `| column | TYPE | …` for every column, under a heading of its table.
#[test]
fn every_column_is_documented() {
    let text = include_str!("../../../docs/formats.md");
    for table in tables() {
        let heading = format!("\n### `{}`", table.name);
        let (_, section) =
            text.split_once(&heading).unwrap_or_else(|| panic!("no section for {}", table.name));
        let section = section.split("\n#").next().unwrap();
        for c in &table.columns {
            let null = if c.optional { ", null" } else { "" };
            let line = format!("\n| `{}` | {}{null} | ", c.name, c.ty.name());
            assert!(
                section.contains(&line),
                "docs/formats.md, table {}: no line '{}'",
                table.name,
                line.trim()
            );
        }
        let lines = section.lines().filter(|l| l.starts_with("| `")).count();
        assert_eq!(
            lines,
            table.columns.len(),
            "docs/formats.md documents columns of {} that are not written",
            table.name
        );
    }
}
