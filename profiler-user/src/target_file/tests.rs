use super::*;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A section of a made-up ELF file: name, type, offset, size, the section that its names are in.
pub(crate) struct Claim(pub &'static str, pub u32, pub u64, pub u64, pub u32);

/// An x86-64 ELF file whose section headers say what they are told to; `len`: its length, sparse. A program header maps the
/// first page, executable. `flags` of all sections.
pub(crate) fn elf_that_claims(path: &Path, len: u64, flags: u64, sections: &[Claim]) {
    let mut names = vec![0];
    let mut headers = vec![[0_u64; 8]];
    for Claim(name, kind, offset, size, link) in sections {
        let at = names.len() as u64;
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        let link = u64::from(*link);
        headers.push([at | u64::from(*kind) << 32, flags, 0x1000, *offset, *size, link, 1, 24]);
    }
    let at = names.len() as u64;
    names.extend_from_slice(b".shstrtab\0");
    let names_at = 64 + 56;
    headers.push([at | 3 << 32, 0, 0, names_at, names.len() as u64, 0, 1, 0]);
    names.resize(names.len().next_multiple_of(8), 0);
    let table_at = names_at + names.len() as u64;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0_u64, 64, table_at] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0; 4]);
    for half in [64_u16, 56, 1, 64, headers.len() as u16, headers.len() as u16 - 1] {
        bytes.extend(half.to_le_bytes());
    }
    // PT_LOAD, readable and executable: file bytes 0 .. 4096 at 0x1000.
    for word in [1 | 5 << 32, 0, 0x1000, 0x1000, 4096, 4096, 4096_u64] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(&names);
    for header in headers {
        // name and type, flags, address, offset, size, link and info, alignment, entry size
        for word in header {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.resize(bytes.len().max(16 << 10), 0);
    std::fs::write(path, &bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_len(len.max(bytes.len() as u64)).unwrap();
}

fn own() -> Root {
    Root::of(std::process::id()).unwrap()
}

/// What the opener says, or a panic where it waits.
fn open(path: &Path) -> Result<TargetFile, OpenError> {
    let (sender, receiver) = channel();
    let path = path.to_owned();
    std::thread::spawn(move || sender.send(own().open(&path)).is_ok());
    receiver.recv_timeout(Duration::from_secs(20)).expect("opening does not wait for anybody")
}

#[test]
fn only_regular_files_are_opened_and_nothing_waits() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    symlink("loop", at("loop")).unwrap();
    symlink("fifo", at("to-fifo")).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::write(at("file"), "text").unwrap();
    symlink("file", at("to-file")).unwrap();

    for (name, expected) in
        [("fifo", "a FIFO"), ("to-fifo", "a FIFO"), ("socket", "a socket"), ("directory", "a directory")]
    {
        match open(&at(name)) {
            Err(OpenError::NotRegular { what, .. }) => assert_eq!(what, expected),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(std::fs::metadata("/dev/zero").unwrap().file_type().is_char_device());
    assert!(matches!(
        open(Path::new("/dev/zero")),
        Err(OpenError::NotRegular { what: "a character device", .. })
    ));
    match open(&at("loop")) {
        Err(OpenError::System { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::ELOOP)),
        other => panic!("{other:?}"),
    }
    assert!(open(&at("none")).unwrap_err().is_not_found());
    assert_eq!(open(&at("to-file")).unwrap().read_all(100).unwrap(), b"text");
    // Through the links of /proc one would get out of any root.
    assert!(matches!(open(Path::new("/proc/self/root/etc/passwd")), Err(OpenError::System { .. })));
    // Regular by type, without contents and without an end.
    let kmsg = open(Path::new("/proc/self/status")).unwrap();
    assert_eq!((kmsg.most(), kmsg.read_all(100).unwrap().len()), (0, 0));
}

#[test]
fn links_do_not_lead_out_of_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(dir.path().join("secret"), "outside").unwrap();
    std::fs::write(inside.join("secret"), "inside").unwrap();
    symlink("/secret", inside.join("absolute")).unwrap();
    symlink("../../../../secret", inside.join("upwards")).unwrap();
    symlink(dir.path().join("secret"), inside.join("by-our-path")).unwrap();
    let root = Root::at(inside.to_str().unwrap()).unwrap();
    for name in ["/absolute", "/upwards", "/../secret"] {
        assert_eq!(root.open(Path::new(name)).unwrap().read_all(100).unwrap(), b"inside", "{name}");
    }
    assert!(root.open(Path::new("/by-our-path")).unwrap_err().is_not_found());
}

#[test]
fn files_of_others_are_told_apart() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let open = || own().open(file.path()).unwrap();
    let me = open().owner();
    assert!(open().of_owner(me).is_ok());
    if me != 0 {
        eprintln!("SKIP files_of_others_are_told_apart: giving a file away needs root");
        return;
    }
    std::os::unix::fs::chown(file.path(), Some(4242), None).unwrap();
    assert!(open().of_owner(4242).is_ok());
    let error = open().of_owner(4243).unwrap_err();
    assert!(matches!(error, OpenError::ForeignOwner { owner: 4242, expected: 4243, .. }), "{error}");
}

#[test]
fn a_file_that_is_written_to_in_place_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("library");
    std::fs::write(&path, "old").unwrap();
    let opened = open(&path).unwrap();
    assert!(!opened.is_changed().unwrap());
    // As `cp` does: the same inode and, here, the same length.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
    assert!(opened.is_changed().unwrap());
    // Another file of its name is not this one.
    let opened = open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "third").unwrap();
    assert!(!opened.is_changed().unwrap());
}

#[test]
fn what_is_read_is_bounded_by_what_lies_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    std::fs::write(&path, vec![1; 8192]).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(8 << 30).unwrap();
    let file = own().open(&path).unwrap();
    assert_eq!((file.len(), file.most()), (8 << 30, FLOOR_BYTES));
    assert_eq!(file.read_at(0, 3).unwrap(), [1; 3]);
    assert_eq!(file.read_at(7 << 30, 3).unwrap(), [0; 3], "a hole far out is no harm");
    let error = file.read_at(0, 4 << 30).unwrap_err().to_string();
    assert!(error.contains("takes on disk"), "{error}");
    assert!(file.read_at(u64::MAX - 1, 4).is_err() && file.read_at(8 << 30, 1).is_err());
    // A small file is bounded by its length.
    let small = dir.path().join("small");
    std::fs::write(&small, "12345").unwrap();
    assert_eq!(own().open(&small).unwrap().most(), 5);
}

#[test]
fn headers_end_at_their_bound() {
    use object::ReadRef;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 4096]).unwrap();
    let file = own().open(&path).unwrap();
    let headers = Headers::up_to(&file, 1000);
    assert_eq!((&headers).read_bytes_at(10, 600), Ok(&[7; 600][..]));
    assert_eq!((&headers).read_bytes_at(20, 600), Err(()));
    assert_eq!((&headers).read_bytes_at(4000, 100), Err(()), "behind the end of the file");
}

#[test]
fn debug_files_are_looked_for_by_build_id_and_by_a_name_without_a_path() {
    let link = |name: &str| DebugLink { build_id: Some(vec![0xab, 0xcd]), name: Some(name.into()) };
    let paths = link("x.debug").candidates(Path::new("/opt/lib/x.so"));
    let expected = [
        "/usr/lib/debug/.build-id/ab/cd.debug",
        "/opt/lib/x.debug",
        "/opt/lib/.debug/x.debug",
        "/usr/lib/debug/opt/lib/x.debug",
    ];
    assert_eq!(paths, expected.map(PathBuf::from));
    assert_eq!(link("../../dev/x").candidates(Path::new("/opt/lib/x.so")).len(), 1);
}
