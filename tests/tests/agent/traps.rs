//! Samples that fall into our own traps: they are the measured overhead, and no other sample is.

use super::start;
use profiler_core::recording::{Charge, PricesAtEnd};
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

const ALWAYS: [&str; 5] = ["--duration", "10s", "--no-ab", "--sample-rate", "499"];

fn record(target: &Running, folder: &std::path::Path, arguments: &[&str]) -> Finished {
    Agent::start_plain(target.child.id(), folder, &[&ALWAYS[..], arguments].concat()).finish()
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

/// A trap on every call of a function of a few microseconds: how much longer its calls take than those of a twin that nobody watches, in turns on the
/// same thread, is the truth. (A program's speed before and behind the run is none: it was seen to differ by half from one ten seconds to the next.)
#[test]
fn what_traps_take_is_what_the_program_loses() {
    let Some(folder) = start("what_traps_take_is_what_the_program_loses") else { return };
    let target = Running::start(Command::new(program("spins")).args(["10000", "twin"]));
    let from = target.printed.lock().expect("nobody panics with it").len();
    let watched = ["--budget", "1000ms/s", "--trace", "spins", "--never", "*clock*", "--never", "twin"];
    let finished = record(&target, folder.path(), &watched);
    let (truth, _) = target.median_since(from + 5);
    let measured = in_place(&finished);
    // Samples and switches are paid in the twin as well.
    let e = measured.overhead;
    println!("true {truth}, {e:?}");
    assert!(truth > 0.015 && measured.in_traps > 100, "{truth} {measured:?} {}", finished.messages);
    assert!(0.9 * e.low < truth && truth < 1.1 * e.high, "true {truth}: {measured:?}");
}

/// The agent believes only what nobody else can write, whatever the umask.
fn only_ours(path: &std::path::Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("it is ours");
}

/// The agent's stored prices, with those of hits and those of samples and switches multiplied, in this folder.
fn falsify(folder: &std::path::Path, hits: f64, samples: f64) {
    for entry in std::fs::read_dir("/var/cache/tithe").expect("a run has calibrated").flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("calibration-") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).expect("it is ours");
        let mut stored: serde_json::Value = serde_json::from_str(&text).expect("the agent wrote it");
        let multiply = |price: &mut serde_json::Value, factor: f64| {
            for key in ["ns", "min_ns", "max_ns"] {
                price[key] = (price[key].as_f64().expect("it is a number") * factor).into();
            }
        };
        for price in stored["model"]["hit"].as_object_mut().into_iter().flat_map(|prices| prices.values_mut())
        {
            multiply(price, hits);
        }
        for price in ["sample_base", "sample_per_kib", "switch"] {
            multiply(&mut stored["model"][price], samples);
        }
        let file = folder.join(name);
        std::fs::write(&file, stored.to_string()).expect("the folder is there");
        only_ours(&file, 0o644);
    }
}

/// What samples and switches cost by the agent's own clock at the end of this run.
fn prices_at_end(path: &std::path::Path) -> PricesAtEnd {
    super::recording(path).meta.agent.prices_at_end.expect("samples were taken")
}

/// What the ledger of this run charged for a sample, ns.
fn charged_per_sample_ns(path: &std::path::Path) -> f64 {
    let ledger = super::recording(path).ledger;
    let samples = || ledger.iter().filter(|row| row.charge == Charge::Samples);
    samples().map(|row| row.cost_ns).sum::<u64>() as f64 / samples().map(|row| row.units).sum::<u64>() as f64
}

/// With stored prices of hits that are 0.3 times what the first run measured and of samples that are twice it, in a mount namespace of its own, the same is measured, and
/// the ledger follows it.
#[test]
fn wrong_prices_are_found_out_and_what_was_measured_does_not_move() {
    let Some(folder) = start("wrong_prices_are_found_out_and_what_was_measured_does_not_move") else {
        return;
    };
    let target = spins("10000");
    let arguments = ["--budget", "1000ms/s", "--trace", "spins"];
    let right = record(&target, folder.path(), &arguments);
    let cache = folder.path().join("cache");
    std::fs::create_dir(&cache).expect("the folder is ours");
    only_ours(&cache, 0o700);
    // The calibration's own loop is no measure: seen were prices of 0.4 to 1.0 times the stored ones in this program.
    let of_stored = in_place(&right).overhead.value / right.report().receipt.predicted;
    let right_path = folder.path().join(format!("run-{}.tithe", target.child.id()));
    let right_end = prices_at_end(&right_path);
    let of_samples = right_end.sample.ns / charged_per_sample_ns(&right_path);
    println!("hits cost {of_stored} times what is stored, samples {of_samples}");
    falsify(&cache, 0.3 * of_stored.clamp(0.1, 3.0), 2.0 * of_samples.clamp(0.1, 10.0));
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /var/cache/tithe && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(&cache).arg(program("tithe"));
    let recording = folder.path().join("falsified.tithe");
    let all = [&ALWAYS[..], &arguments].concat();
    let falsified = Agent::start_command(command, target.child.id(), &recording, &all).finish();
    let (a, b) = (in_place(&right), in_place(&falsified));
    println!("{:?} {:?}", a.traps, b.traps);
    assert!(a.in_traps > 200 && b.in_traps > 200, "{a:?} {b:?}");
    // A figure that followed the prices would be 0.3 of the other. Where hits look cheap, a little more is watched, and the machine is shared.
    let ratio = |of: fn(&InPlace) -> f64| of(&b) / of(&a);
    assert!((0.6..1.6).contains(&ratio(|m| m.traps.value)), "{a:?} {b:?}");
    println!(
        "beside: {} {}; measured: {} {}",
        a.beside.value, b.beside.value, a.overhead.value, b.overhead.value
    );
    assert!(a.priced_at_end && b.priced_at_end, "{a:?} {b:?}");
    assert!((0.6..1.6).contains(&ratio(|m| m.overhead.value)), "{a:?} {b:?}");
    // Samples by the ledger are twice as dear as by what was measured at the ends of both, which is what it was.
    let end = prices_at_end(&recording);
    println!("{right_end:?} {end:?}");
    // Seven rounds on a shared machine: medians of 7.8 and 13.3 us were seen, each well within the other's rounds.
    assert!((0.4..2.5).contains(&(end.sample.ns / right_end.sample.ns)), "{right_end:?} {end:?}");
    let (a, b) = (end.sample, right_end.sample);
    assert!(a.min_ns <= b.max_ns && b.min_ns <= a.max_ns, "{right_end:?} {end:?}");
    let charged = charged_per_sample_ns(&recording) / f64::midpoint(a.ns, b.ns);
    assert!((1.1..4.0).contains(&charged), "{charged} {right_end:?} {end:?}");
    let receipt = &falsified.report().receipt;
    println!("predicted {} and {}", right.report().receipt.predicted, receipt.predicted);
    let said = falsified.report().warnings.iter().any(|w| w.contains("by samples in traps"));
    assert!(said, "{:?}", falsified.report().warnings);
    // Less than half would be predicted. The first seconds are charged as calibrated, and samples in user mode do not count.
    let traps = in_place(&falsified).traps.value;
    assert!(receipt.predicted > 0.65 * traps, "{} {traps}", receipt.predicted);
}
