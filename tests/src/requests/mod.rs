//! Programs that serve requests to users who wait, think and come back: a closed system, as in Mertz and Nunes (2023).
//!
//! A program brings its types of requests and what serving one does; this module has the users (a thread each), the
//! phases, the truth by type, and the line protocol of every target (`programs/protocol.h`):
//!
//! | command | answer |
//! |---|---|
//! | `run SECONDS` | at once; the users start |
//! | `wait` | when the run is over: operations, time, CPU time, operations by second |
//! | `truth` | at any time: sums by type since the run began ([`Truth`]) |
//! | `stop` | ends the run early, then as `wait` |
//! | `dump PATH` | after a run with `--twins`: every request by itself ([`Call`]), and the types by number |
//!
//! With `--seconds N` it needs nobody: it runs, prints its throughput each second, and the truth at the end.
//! Threads are there from the start on, so that a watcher that attaches before `run` sees all of them.

mod calls;
mod options;
mod pattern;
mod truth;

pub use calls::Call;
use calls::{Asked, Turns};
use options::{Options, parse};
pub use pattern::{Pattern, Phases};
pub use truth::{Sums, Truth};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ffi::{CStr, CString};
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest sleep of a user who is not there, or thinks: a stop is seen that soon.
const NAP: Duration = Duration::from_millis(50);

/// A type of requests.
#[derive(Debug, Clone)]
pub struct Kind {
    /// Its name, as the bound function gets it.
    pub name: CString,
    /// How often it is asked for, over the sum of all weights.
    pub weight: f64,
}

impl Kind {
    /// A type of requests.
    ///
    /// # Panics
    ///
    /// If the name has a zero byte.
    pub fn new(name: &str, weight: f64) -> Kind {
        Kind { name: CString::new(name).expect("names of requests have no zero byte"), weight }
    }
}

/// The type of a request, without what makes its name unique.
///
/// # Errors
///
/// The name is not UTF-8.
pub fn type_of(name: &CStr) -> Result<&str> {
    let name = name.to_str()?;
    Ok(name.split_once('?').map_or(name, |(kind, _)| kind))
}

/// A program that serves requests.
pub trait Program: Sync {
    /// What one user's thread has of its own.
    type Session;

    /// Name, for messages.
    const NAME: &'static str;

    /// The types of requests.
    fn kinds(&self) -> &[Kind];

    /// Begins a user's session, on the thread that it stays on.
    ///
    /// # Errors
    ///
    /// It cannot be had; the program ends then.
    fn open(&self, user: u32) -> Result<Self::Session>;

    /// Serves a request through the bound function and returns its measure. `parameter` is random: what is asked for
    /// in particular. What follows a `?` in `kind` only makes its name unique.
    ///
    /// # Errors
    ///
    /// It failed; the program ends then.
    fn serve(&self, session: &mut Self::Session, kind: &CStr, parameter: u64) -> Result<u64>;

    /// The same through a twin of the bound function, which a watcher does not name (`--twins`).
    ///
    /// # Errors
    ///
    /// It failed, or there is no twin.
    fn serve_twin(&self, _session: &mut Self::Session, _kind: &CStr, _parameter: u64) -> Result<u64> {
        bail!("{} has no twins", Self::NAME)
    }
}

/// What users and the commanding thread share.
#[derive(Default)]
struct Shared {
    /// Begin of the last run.
    begin: Option<Instant>,
    /// Runs ordered so far; each user follows each once.
    runs: u64,
    /// Users who have ended the last run.
    done: u32,
    /// When the last of them had, and the CPU time of the process then, ns.
    end: Option<(Instant, u64)>,
    ready: u32,
    quit: bool,
    failed: Option<String>,
}

struct House {
    shared: Mutex<Shared>,
    changed: Condvar,
    /// Length of the run, ns; 0 stops it.
    length_ns: AtomicU64,
    books: Vec<Mutex<Book>>,
}

/// What a user notes.
#[derive(Default, Clone)]
struct Book {
    /// By type.
    sums: Vec<Sums>,
    /// Operations that ended, by second.
    seconds: Vec<u64>,
    /// Each by itself, where they have twins.
    calls: Vec<Call>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl House {
    fn wait_until(&self, mut holds: impl FnMut(&mut Shared) -> bool) -> MutexGuard<'_, Shared> {
        let shared = lock(&self.shared);
        self.changed.wait_while(shared, |shared| !holds(shared)).unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Shared)) {
        change(&mut lock(&self.shared));
        self.changed.notify_all();
    }
}

/// A user, on a thread.
struct User<'a, P> {
    program: &'a P,
    house: &'a House,
    options: &'a Options,
    number: u32,
}

impl<P: Program> User<'_, P> {
    /// Waits for runs, and follows them.
    fn live(&self) -> Result<()> {
        let mut session = self.program.open(self.number)?;
        self.house.change(|shared| shared.ready += 1);
        let mut followed = 0;
        loop {
            let shared = self.house.wait_until(|s| s.quit || s.runs > followed);
            if shared.quit {
                return Ok(());
            }
            followed = shared.runs;
            // OK because runs have a begin.
            let begin = shared.begin.unwrap_or_else(Instant::now);
            drop(shared);
            // Runs differ, users differ, and the same seed gives the same choices again.
            let seed = self.options.seed ^ (u64::from(self.number) << 32) ^ (followed << 48);
            self.follow(&mut session, begin, &mut StdRng::seed_from_u64(seed))?;
            self.house.change(|shared| {
                shared.done += 1;
                shared.end = Some((Instant::now(), cpu_ns()));
            });
        }
    }

    fn length(&self) -> Duration {
        Duration::from_nanos(self.house.length_ns.load(Ordering::Relaxed))
    }

    /// Sleeps so long, or until the run is over.
    fn nap(&self, time: Duration, begin: Instant) {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || begin.elapsed() >= self.length() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Draws a request: its type, what in particular, and whether its twin comes first.
    fn draw(&self, random: &mut StdRng) -> (usize, u64, bool) {
        let kinds = self.program.kinds();
        let mut left = random.random::<f64>() * kinds.iter().map(|kind| kind.weight).sum::<f64>();
        let chosen = kinds.iter().position(|kind| {
            left -= kind.weight;
            left < 0.0
        });
        (chosen.unwrap_or(kinds.len() - 1), random.random(), self.options.twins && random.random())
    }

    fn follow(&self, session: &mut P::Session, begin: Instant, random: &mut StdRng) -> Result<()> {
        let kinds = self.program.kinds();
        let whole_s = self.length().as_secs_f64();
        let mut served = 0_u64;
        let mut turns = Turns::default();
        while begin.elapsed() < self.length() {
            if self.number >= self.options.phases.users_at(begin.elapsed().as_secs_f64(), whole_s) {
                self.nap(NAP, begin);
                continue;
            }
            self.nap(self.options.think.mul_f64(-(1.0 - random.random::<f64>()).ln()), begin);
            if !self.options.twins {
                turns = Turns::default();
            }
            let asked = turns.next(|| self.draw(random));
            let unique;
            let name = if self.options.unique_names {
                served += 1;
                let text = format!("{}?{}.{served}", kinds[asked.kind].name.to_string_lossy(), self.number);
                unique = CString::new(text)?;
                &unique
            } else {
                &kinds[asked.kind].name
            };
            let before_ns = now_ns();
            let measure = if asked.of_twin {
                self.program.serve_twin(session, name, asked.parameter)?
            } else {
                self.program.serve(session, name, asked.parameter)?
            };
            let response_ns = now_ns() - before_ns;
            self.note(&asked, before_ns, response_ns, measure, begin.elapsed().as_secs() as usize);
        }
        Ok(())
    }

    /// Writes a request that was served into the user's book.
    fn note(&self, asked: &Asked, begin_ns: u64, response_ns: u64, measure: u64, second: usize) {
        let mut book = lock(&self.house.books[self.number as usize]);
        book.sums[asked.kind].add(response_ns, measure);
        if book.seconds.len() <= second {
            book.seconds.resize(second + 1, 0);
        }
        book.seconds[second] += 1;
        if self.options.twins {
            // OK because there are few users and types.
            book.calls.push(Call {
                begin_ns,
                took_ns: u32::try_from(response_ns).unwrap_or(u32::MAX),
                pair: asked.pair,
                user: self.number as u16,
                kind: asked.kind as u8,
                is_twin: asked.of_twin,
            });
        }
    }
}

/// `CLOCK_MONOTONIC`, ns.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // OK because both are positive.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of this process, ns.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    // OK because both are positive.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The commanding side of a run.
struct Desk<'a> {
    house: &'a House,
    kinds: &'a [Kind],
    users: u32,
    cpu_before_ns: u64,
}

impl Desk<'_> {
    fn run(&mut self, seconds: f64) {
        for book in &self.house.books {
            *lock(book) = Book { sums: vec![Sums::default(); self.kinds.len()], ..Book::default() };
        }
        self.cpu_before_ns = cpu_ns();
        // OK because `command` and `parse` bound it.
        self.house.length_ns.store((seconds * 1e9) as u64, Ordering::Relaxed);
        self.house.change(|shared| {
            shared.begin = Some(Instant::now());
            shared.runs += 1;
            shared.done = 0;
        });
    }

    fn is_running(&self) -> bool {
        let shared = lock(&self.house.shared);
        shared.runs > 0 && shared.done < self.users
    }

    /// Waits for the end of the run; its line.
    fn wait(&self) -> Result<String> {
        let shared = self.house.wait_until(|s| s.failed.is_some() || s.runs == 0 || s.done == self.users);
        if let Some(failed) = &shared.failed {
            bail!("{failed}");
        }
        let (Some(begin), Some((end, cpu_ns))) = (shared.begin, shared.end) else { bail!("nothing was run") };
        drop(shared);
        let mut seconds: Vec<u64> = Vec::new();
        for book in &self.house.books {
            let book = lock(book);
            seconds.resize(seconds.len().max(book.seconds.len()), 0);
            book.seconds.iter().zip(&mut seconds).for_each(|(n, sum)| *sum += n);
        }
        let operations: u64 = seconds.iter().sum();
        let seconds: Vec<String> = seconds.iter().map(u64::to_string).collect();
        Ok(format!(
            "operations={operations} wall_ns={} cpu_ns={} seconds={}",
            (end - begin).as_nanos(),
            cpu_ns - self.cpu_before_ns,
            seconds.join(",")
        ))
    }

    fn truth(&self) -> Truth {
        let mut truth = Truth::default();
        for book in &self.house.books {
            for (kind, sums) in self.kinds.iter().zip(&lock(book).sums) {
                truth.0.entry(kind.name.to_string_lossy().into_owned()).or_default().merge(sums);
            }
        }
        truth
    }

    /// Writes the requests of the last run; their number, what the clock put into each, and the types in the order of their numbers.
    fn dump(&self, path: &Path) -> Result<String> {
        let calls: Vec<Call> = self.house.books.iter().flat_map(|book| lock(book).calls.clone()).collect();
        Call::write(&calls, path)?;
        let names: Vec<_> = self.kinds.iter().map(|kind| kind.name.to_string_lossy()).collect();
        Ok(format!(
            "calls={} clock_ns={} kinds={}",
            calls.len(),
            calls::clock_ns(now_ns),
            names.join(",").replace(' ', "%20")
        ))
    }

    fn command(&mut self, line: &str) -> Result<String> {
        let (name, argument) = line.split_once(' ').unwrap_or((line, ""));
        match name {
            "run" => {
                ensure!(!self.is_running(), "a run is going on");
                let seconds: f64 = argument.trim().parse().context("run wants a number of seconds")?;
                ensure!(
                    seconds > 0.0 && seconds < 1e6,
                    "run wants a number of seconds above 0, not {argument}"
                );
                self.run(seconds);
                Ok(format!("users={}", self.users))
            }
            "stop" => {
                self.house.length_ns.store(0, Ordering::Relaxed);
                self.wait()
            }
            "wait" => self.wait(),
            "truth" => {
                let truth = self.truth();
                Ok(format!("types={} truth={}", truth.0.len(), truth.to_line()))
            }
            "dump" => self.dump(Path::new(argument)),
            _ => bail!("no command {name}; there are run SECONDS, wait, truth, stop, dump PATH, quit"),
        }
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    // Who reads it may have gone: nothing left to tell.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Commands of standard input until its end.
fn serve_commands(desk: &mut Desk<'_>) {
    say(&format!("ready pid={}", std::process::id()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == "quit" {
            return say("ok bye");
        }
        match desk.command(&line) {
            Ok(answer) => say(&format!("ok {answer}")),
            Err(error) => say(&format!("error {error:#}")),
        }
    }
}

/// One run without commands.
fn run_alone(desk: &mut Desk<'_>, seconds: f64) -> Result<()> {
    say(&format!("pid {}\nready", std::process::id()));
    desk.run(seconds);
    let mut last = (Instant::now(), 0);
    while desk.is_running() && lock(&desk.house.shared).failed.is_none() {
        std::thread::sleep(Duration::from_secs(1));
        let (now, operations) = (Instant::now(), desk.truth().total().operations);
        let rate = (operations - last.1) as f64 / (now - last.0).as_secs_f64();
        last = (now, operations);
        say(&format!("operations_per_second {rate:.0}"));
    }
    say(&format!("total {}", desk.wait()?));
    for (name, s) in &desk.truth().0 {
        say(&format!(
            "{name}: operations {} response_ns {} measure {} measure_squares {}",
            s.operations, s.response_ns, s.measure, s.squares
        ));
    }
    Ok(())
}

/// The whole program, from its command line on.
///
/// # Errors
///
/// A wrong option, or a session or request that failed.
pub fn main<P: Program>(program: &P) -> Result<()> {
    let options = parse(P::NAME, std::env::args().skip(1))?;
    let users = options.phases.most().max(options.phases.users * 2);
    let house = House {
        shared: Mutex::default(),
        changed: Condvar::new(),
        books: (0..users).map(|_| Mutex::default()).collect(),
        length_ns: AtomicU64::new(0),
    };
    let result = std::thread::scope(|scope| {
        for number in 0..users {
            let user = User { program, house: &house, options: &options, number };
            let live = move || {
                if let Err(error) = user.live() {
                    user.house.change(|shared| {
                        shared.failed.get_or_insert(format!("{error:#}"));
                    });
                }
            };
            let thread = std::thread::Builder::new().name(format!("user-{number}")).spawn_scoped(scope, live);
            if let Err(error) = thread {
                house.change(|shared| shared.quit = true);
                return Err(error).with_context(|| format!("cannot start the thread of user {number}"));
            }
        }
        let ready = house.wait_until(|s| s.ready == users || s.failed.is_some());
        let failed = ready.failed.is_some();
        drop(ready);
        let mut desk = Desk { house: &house, kinds: program.kinds(), users, cpu_before_ns: 0 };
        let result = match options.seconds {
            _ if failed => Ok(()),
            Some(seconds) => run_alone(&mut desk, seconds),
            None => {
                serve_commands(&mut desk);
                Ok(())
            }
        };
        house.length_ns.store(0, Ordering::Relaxed);
        house.change(|shared| shared.quit = true);
        result
    });
    match lock(&house.shared).failed.take() {
        Some(failed) => bail!("{failed}"),
        None => result,
    }
}
