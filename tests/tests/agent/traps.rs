//! Samples that fall into our own traps: they are the measured overhead, and no other sample is.

use super::{sleep_ms, start};
use profiler_core::report::InPlace;
use profiler_tests::program;
use profiler_tests::support::{Agent, Finished};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A program that runs until it is dropped, and the figures that it prints.
struct Running {
    child: Child,
    printed: Arc<Mutex<Vec<f64>>>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it is there");
        let printed = Arc::<Mutex<Vec<f64>>>::default();
        let (lines, to) =
            (BufReader::new(child.stdout.take().expect("it is piped")).lines(), printed.clone());
        std::thread::spawn(move || {
            for figure in lines.map_while(Result::ok).filter_map(|line| line.parse().ok()) {
                to.lock().expect("nobody panics with it").push(figure);
            }
        });
        Self { child, printed }
    }

    /// The median of what it printed since it had printed `from` figures, and how many there are now.
    fn median_since(&self, from: usize) -> (f64, usize) {
        let all = self.printed.lock().expect("nobody panics with it");
        let mut new = all[from.min(all.len())..].to_vec();
        new.sort_by(f64::total_cmp);
        (new[new.len() / 2], all.len())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spins(rounds: &str) -> Running {
    Running::start(Command::new(program("spins")).arg(rounds))
}

fn record(target: &Running, folder: &std::path::Path, arguments: &[&str]) -> Finished {
    let mut all = vec!["--duration", "10s", "--no-ab", "--sample-rate", "499"];
    all.extend(arguments);
    Agent::start_plain(target.child.id(), folder, &all).finish()
}

fn in_place(finished: &Finished) -> InPlace {
    finished.report().receipt.in_place.clone().unwrap_or_else(|| panic!("{}", finished.messages))
}

/// Half of its time the program is at the instruction behind the site, and a trap is there for a ten thousandth of it.
#[test]
fn a_loop_behind_a_site_is_work() {
    let Some(folder) = start("a_loop_behind_a_site_is_work") else { return };
    let target = spins("20000000");
    let finished = record(&target, folder.path(), &["--budget", "5%", "--count", "spins"]);
    let measured = in_place(&finished);
    assert!(measured.samples > 500, "{measured:?} {}", finished.messages);
    assert!(measured.in_traps * 50 < measured.samples, "{measured:?}");
    assert!(finished.row("spins").self_share.expect("samples show it").value > 0.95);
}

/// All of its time is in system calls, whose address is that behind the instruction: of the two functions that make them both ends are seen.
#[test]
fn a_thread_in_a_system_call_is_in_no_trap() {
    let Some(folder) = start("a_thread_in_a_system_call_is_in_no_trap") else { return };
    let target = Running::start(Command::new("dd").args(["if=/dev/zero", "of=/dev/null", "bs=1M"]));
    let functions = ["--latency", "libc.so*:read", "--latency", "libc.so*:write"];
    let finished = record(&target, folder.path(), &[&["--budget", "50%"][..], &functions].concat());
    let measured = in_place(&finished);
    assert!(measured.samples > 500, "{measured:?} {}", finished.messages);
    // A call takes tens of microseconds, its traps one or two; where they are single-stepped, some tens.
    assert!(measured.in_traps * 2 < measured.samples, "{measured:?}");
}

/// A trap on every call of a function of a few microseconds: what the program says of its own speed before and behind is the truth.
#[test]
fn what_traps_take_is_what_the_program_loses() {
    let Some(folder) = start("what_traps_take_is_what_the_program_loses") else { return };
    let target = spins("10000");
    sleep_ms(1_500);
    let (before, from) = target.median_since(0);
    let finished = record(&target, folder.path(), &["--budget", "1000ms/s", "--trace", "spins"]);
    let (watched, to) = target.median_since(from + 5);
    sleep_ms(1_500);
    let (after, _) = target.median_since(to + 1);
    let measured = in_place(&finished);
    let truth = (before + after) / 2.0 / watched - 1.0;
    let e = measured.overhead;
    assert!(truth > 0.03 && measured.in_traps > 100, "{truth} {measured:?} {}", finished.messages);
    // The machine is shared: the two stretches differ by some percent.
    assert!(
        0.8 * e.low < truth && truth < 1.2 * e.high,
        "{truth} ({before}, {watched}, {after}): {measured:?}"
    );
}
