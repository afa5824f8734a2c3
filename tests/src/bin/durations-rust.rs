//! `programs/durations.c` in Rust: functions of 100 ns to 1 ms, called in batches and timed by the program, each next to a twin that nobody
//! watches. The protocol, the numbers of functions and the records are those of the C program.
//!
//! rustc decides how `push` and `sub` begin; it has no stable switch for a 5-byte nop or `endbr64`, so these two are written in assembler.

use std::arch::{asm, naked_asm};
use std::io::{BufRead, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const FORMS: usize = 4;
const SHORT_PAIRS: usize = 16;
const ROUND_NS: u64 = 2_500_000;
const REST_US: f64 = 800.0;
/// A single thread never sleeps.
const INSTEAD_OF_SLEEP_US: f64 = 500.0;
/// Calls of a batch, by duration.
const BATCH: [u16; 5] = [50, 17, 5, 1, 1];
/// Records of a thread are allocated, and touched, before it begins.
const RECORDS_OF_ALL: usize = 2_000_000;

type Timed = extern "C" fn(u64);

#[inline(always)]
fn turn(turns: u64) {
    // SAFETY: counts a register down to zero, and changes only registers that it says it changes.
    unsafe {
        asm!("2: imul rax, rax", "imul rax, rax", "dec {0}", "jne 2b", inout(reg) turns => _, out("rax") _, options(nomem, nostack));
    }
}

/// Each has its name in a comment for the assembler: rustc would make one of functions that are the same.
macro_rules! functions {
    ($($push:ident $nop5:ident $endbr:ident $sub:ident;)*) => {$(
        /// Saves registers that it says it changes.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $push(turns: u64) {
            // SAFETY: changes only registers that it says it changes.
            unsafe { asm!(concat!("/* ", stringify!($push), " */"), out("r12") _, out("r14") _, options(nomem, nostack)) }
            turn(turns);
        }
        /// Has an array that the red zone does not hold.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $sub(turns: u64) {
            let mut area = std::mem::MaybeUninit::<[u8; 256]>::uninit();
            // SAFETY: an address is given to nobody.
            unsafe { asm!(concat!("/* ", stringify!($sub), " {0} */"), in(reg) area.as_mut_ptr(), options(nostack)) }
            turn(turns);
        }
        /// Begins with a nop of 5 bytes.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $nop5(_turns: u64) {
            naked_asm!(
                ".cfi_startproc", ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                "push rbp", ".cfi_def_cfa_offset 16", ".cfi_offset rbp, -16",
                "2: imul rax, rax", "imul rax, rax", "dec rdi", "jne 2b",
                "pop rbp", ".cfi_def_cfa_offset 8", "ret", ".cfi_endproc",
            )
        }
        /// Begins with `endbr64; push`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $endbr(_turns: u64) {
            naked_asm!(
                ".cfi_startproc", "endbr64",
                "push rbp", ".cfi_def_cfa_offset 16", ".cfi_offset rbp, -16",
                "2: imul rax, rax", "imul rax, rax", "dec rdi", "jne 2b",
                "pop rbp", ".cfi_def_cfa_offset 8", "ret", ".cfi_endproc",
            )
        }
    )*};
}
functions! {
    d100_push d100_nop5 d100_endbr d100_sub;
    t100_push t100_nop5 t100_endbr t100_sub;
    d300_push d300_nop5 d300_endbr d300_sub;
    t300_push t300_nop5 t300_endbr t300_sub;
    d1000_push d1000_nop5 d1000_endbr d1000_sub;
    t1000_push t1000_nop5 t1000_endbr t1000_sub;
    d10000_push d10000_nop5 d10000_endbr d10000_sub;
    t10000_push t10000_nop5 t10000_endbr t10000_sub;
    d1000000_push d1000000_nop5 d1000000_endbr d1000000_sub;
    t1000000_push t1000000_nop5 t1000000_endbr t1000000_sub;
}

/// Nominal duration, ns; the functions that are watched, and their twins.
static FUNCTIONS: [(u64, [Timed; FORMS], [Timed; FORMS]); 5] = [
    (100, [d100_push, d100_nop5, d100_endbr, d100_sub], [t100_push, t100_nop5, t100_endbr, t100_sub]),
    (300, [d300_push, d300_nop5, d300_endbr, d300_sub], [t300_push, t300_nop5, t300_endbr, t300_sub]),
    (
        1_000,
        [d1000_push, d1000_nop5, d1000_endbr, d1000_sub],
        [t1000_push, t1000_nop5, t1000_endbr, t1000_sub],
    ),
    (
        10_000,
        [d10000_push, d10000_nop5, d10000_endbr, d10000_sub],
        [t10000_push, t10000_nop5, t10000_endbr, t10000_sub],
    ),
    (
        1_000_000,
        [d1000000_push, d1000000_nop5, d1000000_endbr, d1000000_sub],
        [t1000000_push, t1000000_nop5, t1000000_endbr, t1000000_sub],
    ),
];

#[derive(Clone, Copy, Default)]
struct Record {
    begin_ns: u64,
    took_ns: u32,
    calls: u16,
    function: u8,
    thread: u8,
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct that it is given; both clocks exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn wall_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// The work of one thread.
struct Worker {
    thread: usize,
    threads: u64,
    turns_per_ns: f64,
    random: u64,
    records: Vec<Record>,
    lost: u64,
}

/// Two of these, so that a probe behind the call of a watched function is not one behind that of a twin.
macro_rules! batch {
    ($name:ident) => {
        #[inline(never)]
        fn $name(&mut self, called: Timed, turns: u64, id: usize) {
            let calls = BATCH[id / 2 / FORMS];
            let begin_ns = wall_ns();
            for _ in 0..calls {
                called(turns);
            }
            let took_ns = (wall_ns() - begin_ns) as u32;
            let record = Record { begin_ns, took_ns, calls, function: id as u8, thread: self.thread as u8 };
            if self.records.len() < self.records.capacity() {
                self.records.push(record);
            } else {
                self.lost += 1;
            }
        }
    };
}

impl Worker {
    batch!(batch_watched);
    batch!(batch_twin);

    fn one(&mut self, pair: usize, twin: bool) {
        let (ns, watched, twins) = &FUNCTIONS[pair / FORMS];
        let turns = (*ns as f64 * self.turns_per_ns) as u64;
        if twin {
            self.batch_twin(twins[pair % FORMS], turns, pair * 2 + 1);
        } else {
            self.batch_watched(watched[pair % FORMS], turns, pair * 2);
        }
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    fn one_round(&mut self, number: usize) {
        let first = self.next_random() as usize % SHORT_PAIRS;
        for i in 0..SHORT_PAIRS {
            let pair = (first + 7 * i) % SHORT_PAIRS;
            let twin_first = self.next_random() & 1 == 1;
            self.one(pair, twin_first);
            self.one(pair, !twin_first);
        }
        let of_long = number % (2 * FORMS);
        self.one(SHORT_PAIRS + of_long / 2, of_long & 1 == 1);
        turn((REST_US * 1e3 * self.turns_per_ns) as u64);
    }

    fn work(mut self, stop: &AtomicBool) -> Self {
        let mut due = wall_ns();
        let mut number = self.thread;
        while !stop.load(Ordering::Relaxed) {
            self.one_round(number);
            number += 1;
            if self.threads == 1 {
                turn((INSTEAD_OF_SLEEP_US * 1e3 * self.turns_per_ns) as u64);
                continue;
            }
            let period = ROUND_NS * self.threads;
            due += period / 2 + self.next_random() % period;
            let now = wall_ns();
            if due <= now {
                due = now;
                continue;
            }
            std::thread::sleep(std::time::Duration::from_nanos(due - now));
        }
        self
    }
}

/// Turns in a ns, and what a reading of the clock puts into a record, ns.
fn calibrate() -> (f64, u64) {
    let speeds = (0..5).map(|_| {
        let begin = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        turn(3_000_000);
        3e6 / (clock_ns(libc::CLOCK_THREAD_CPUTIME_ID) - begin).max(1) as f64
    });
    let fastest = speeds.fold(0.0, f64::max);
    let mut costs: Vec<u64> = (0..1_001)
        .map(|_| {
            let begin = wall_ns();
            wall_ns() - begin
        })
        .collect();
    costs.sort_unstable();
    (fastest, costs[500])
}

static STOP: AtomicBool = AtomicBool::new(false);
static RANDOM: Mutex<u64> = Mutex::new(88_172_645_463_325_252);

fn start(threads: usize, turns_per_ns: f64) -> Vec<JoinHandle<Worker>> {
    STOP.store(false, Ordering::Relaxed);
    let workers: Vec<Worker> = (0..threads)
        .map(|thread| {
            let mut records = vec![Record { thread: 1, ..Record::default() }; RECORDS_OF_ALL / threads];
            records.clear();
            let mut random = RANDOM.lock().unwrap_or_else(|e| e.into_inner());
            *random += 7_919;
            Worker { thread, threads: threads as u64, turns_per_ns, random: *random, records, lost: 0 }
        })
        .collect();
    workers.into_iter().map(|worker| std::thread::spawn(|| worker.work(&STOP))).collect()
}

fn dump(path: &str, records: &[Record]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for r in records {
        file.write_all(&r.begin_ns.to_ne_bytes())?;
        file.write_all(&r.took_ns.to_ne_bytes())?;
        file.write_all(&r.calls.to_ne_bytes())?;
        file.write_all(&[r.function, r.thread])?;
    }
    file.flush()
}

/// Where a function stands, by its name.
fn address(name: &str) -> Option<usize> {
    let (ns, form) = name.get(1..)?.split_once('_')?;
    let form = ["push", "nop5", "endbr", "sub"].iter().position(|known| *known == form)?;
    let (_, watched, twins) = FUNCTIONS.iter().find(|(known, ..)| known.to_string() == ns)?;
    let of = if name.starts_with('t') { twins } else { watched };
    Some(of[form] as usize)
}

fn answer(text: &str) {
    println!("{text}");
    // The bench that reads it has gone: nothing left to tell.
    let _ = std::io::stdout().flush();
}

fn main() {
    let (turns_per_ns, clock_ns) = calibrate();
    let mut running: Vec<JoinHandle<Worker>> = Vec::new();
    let mut records = Vec::new();
    answer(&format!("ready pid={}", std::process::id()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (command, value) = line.split_once(' ').unwrap_or((&line, ""));
        match (command, value.parse::<usize>()) {
            ("start", Ok(threads @ 1..=64)) if running.is_empty() => {
                running = start(threads, turns_per_ns);
                answer(&format!("ok t0_ns={}", wall_ns()));
            }
            ("stop", _) => {
                STOP.store(true, Ordering::Relaxed);
                let ended: Vec<Worker> = running.drain(..).filter_map(|t| t.join().ok()).collect();
                let lost: u64 = ended.iter().map(|w| w.lost).sum();
                records = ended.into_iter().flat_map(|w| w.records).collect();
                answer(&format!("ok records={} lost={lost} clock_ns={clock_ns}", records.len()));
            }
            ("dump", _) => match dump(value, &records) {
                Ok(()) => answer(&format!("ok records={}", records.len())),
                Err(error) => answer(&format!("error cannot write {value}: {error}")),
            },
            ("address", _) => match address(value) {
                Some(at) => answer(&format!("ok address={at:#x}")),
                None => answer(&format!("error no function {value}")),
            },
            ("quit", _) => return answer("ok bye"),
            _ => answer(&format!("error no command {line}")),
        }
    }
}
