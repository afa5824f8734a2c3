//! Processes that are not as usual: files that are gone or lie elsewhere, PIDs of none, of threads and of others.

use crate::{function, inspect};
use expect_test::expect;
use profiler_tests::support::{Target, kernel_or_skip};
use profiler_user::inspect::{InspectError, Inspection};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[test]
fn deleted_and_foreign_files_are_read_through_proc() {
    if !kernel_or_skip("deleted_and_foreign_files_are_read_through_proc") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let inode = || std::fs::metadata(&copy).unwrap().ino();

    // Deleted, and another file put in its place.
    std::fs::copy(profiler_tests::program("calls"), &copy).unwrap();
    let original = inode();
    let target = Target::start_command(&mut Command::new(&copy));
    std::fs::rename(&copy, directory.path().join("old")).unwrap();
    std::fs::remove_file(directory.path().join("old")).unwrap();
    std::fs::copy(profiler_tests::program("hazards"), &copy).unwrap();
    let inspection = inspect(&target);
    let f = function(&inspection, "entry_push");
    assert!(inspection.modules()[0].replaced);
    assert_eq!(std::fs::metadata(&*f.attach_path).unwrap().ino(), original);
    assert_eq!(inspection.verify(&f, &inspection.sites(&f)), Ok(Vec::new()));
    drop(target);

    // On a file system that only the target sees.
    let script = format!(
        "mount -t tmpfs none /mnt && cp {} /mnt/elsewhere && exec /mnt/elsewhere",
        profiler_tests::program("calls").display()
    );
    let target = Target::start_command(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    let inspection = inspect(&target);
    let f = function(&inspection, "elsewhere:entry_push");
    assert!(!inspection.modules()[0].replaced, "its path leads there in its own root");
    assert_eq!(inspection.verify(&f, &inspection.sites(&f)), Ok(Vec::new()));
    let report = profiler_user::doctor::check_target(target.pid().cast_signed()).unwrap();
    assert_eq!(report.other_namespaces, ["mnt"]);
}

#[test]
fn wrong_pids_have_their_own_words() {
    let text = |pid| Inspection::of(pid).unwrap_err().to_string();
    // Beyond the largest PID that the kernel gives (PID_MAX_LIMIT).
    expect![
        "no process 4194305: it has exited, or it lives in another PID namespace; list processes with `ps -e`"
    ]
    .assert_eq(&text(4_194_305));

    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().cast_signed();
    // waitid with WNOWAIT waits for the end and leaves the zombie.
    let number = WaitId::Pid(Pid::from_child(&child));
    waitid(number, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    let zombie = Inspection::of(pid).unwrap_err();
    assert!(matches!(&zombie, InspectError::Zombie { name, .. } if name == "true"), "{zombie}");
    assert!(zombie.to_string().contains("is a zombie: it has exited and only its parent"), "{zombie}");
    child.wait().unwrap();

    // PID 2 is kthreadd, except in a PID namespace.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        expect![
            "process 2 ([kthreadd]) is a kernel thread: it runs no user code; give the PID of a user process"
        ]
        .assert_eq(&text(2));
    }

    let own = std::process::id().cast_signed();
    let thread = std::thread::spawn(move || {
        let tid = rustix::thread::gettid().as_raw_pid();
        let error = Inspection::of(tid).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{tid} is a thread of process {own}, and a whole process is watched; use `--pid {own}`")
        );
    });
    thread.join().unwrap();
}

#[test]
fn another_users_process_needs_root() {
    if !kernel_or_skip("another_users_process_needs_root") {
        return;
    }
    let target = Target::start("calls");
    let pid = target.pid().cast_signed();
    let error = std::thread::spawn(move || {
        // SAFETY: the raw system call changes this thread's ids only (the C library's wrapper would change all), and
        // the thread ends right after.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(result, 0);
        Inspection::of(pid).unwrap_err()
    })
    .join()
    .unwrap();
    assert!(matches!(error, InspectError::NotPermitted { owner: 0, uid: 65534, .. }), "{error}");
    assert_eq!(
        error.to_string(),
        format!(
            "process {pid} belongs to uid 0 and may not be read by uid 65534 (/proc/{pid}/exe); run as root: \
             `sudo tithe …`, or give the agent CAP_SYS_PTRACE"
        )
    );
}

/// A 32-bit program of one instruction: `int 0x80` with `pause`.
#[test]
fn a_32_bit_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny32");
    std::fs::write(&path, tiny32()).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let Ok(mut child) = Command::new(&path).spawn() else {
        return profiler_tests::support::skip(
            "a_32_bit_program_is_refused",
            "this kernel runs no 32-bit programs",
        );
    };
    let error = loop {
        // Between fork and exec it is still this program.
        match Inspection::of(child.id().cast_signed()) {
            Err(error @ (InspectError::ThirtyTwoBit { .. } | InspectError::Zombie { .. })) => break error,
            other => drop(other),
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(error, InspectError::ThirtyTwoBit { .. }), "{error}");
    assert!(error.to_string().contains("runs the 32-bit program"), "{error}");
}

fn tiny32() -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // e_type 2, e_machine 3; e_version, e_entry, e_phoff, e_shoff, e_flags
    file.extend([2, 0, 3, 0]);
    for word in [1_u32, 0x0804_8054, 52, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    for half in [52_u16, 32, 1, 40, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    // p_type, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_flags r-x, p_align
    for word in [1_u32, 0, 0x0804_8000, 0x0804_8000, 0x60, 0x60, 5, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    // 1: mov $29, %eax (pause); int $0x80; jmp 1b
    file.extend([0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7]);
    file.resize(0x60, 0);
    file
}
