//! The program `twins`: a function that is watched takes turns with a twin of the same code that is not, so that the target itself says
//! how often it would have called the first had nobody watched, in the very moments in which it was watched.

use super::{Reply, Target};

/// The program; one thread works. Ended on drop.
pub struct Twins(Target);

/// What its pairs of slices say of a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slices {
    /// Begin of the first and end of the last slot of 1 ms, `CLOCK_MONOTONIC` ns.
    pub from_ns: u64,
    /// See `from_ns`.
    pub to_ns: u64,
    /// Calls of the function that is watched.
    pub calls: u64,
    /// Calls of its twin.
    pub twin_calls: u64,
    /// Time in which the thread had no CPU, ns.
    pub waited_ns: u64,
    /// CPU time of a call of the twin, its pause included, ns. NaN without calls.
    pub twin_call_ns: f64,
    /// Time of a call of the one over that of the other, median over slots: 1 while nobody watches. NaN without calls.
    pub ratio: f64,
}

impl Slices {
    fn of(reply: &Reply) -> Self {
        let timed = reply.number("timed");
        let known = |value: f64| if timed > 0 { value } else { f64::NAN };
        Self {
            from_ns: reply.number("from_ns"),
            to_ns: reply.number("to_ns"),
            calls: reply.number("calls"),
            twin_calls: reply.number("twin_calls"),
            waited_ns: reply.number("waited_ns"),
            twin_call_ns: known(reply.number("timed_ns") as f64 / timed as f64),
            ratio: known(reply.text("ratio").and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)),
        }
    }

    /// Length, s.
    pub fn seconds(&self) -> f64 {
        self.to_ns.saturating_sub(self.from_ns) as f64 * 1e-9
    }

    /// CPU time of all that the thread did for a pair of calls, over that of a call of the twin: what the machine's speed does is in both, what
    /// watching adds is in the first alone. `None` without calls.
    pub fn cost_of_a_pair(&self) -> Option<f64> {
        let ran_ns = self.seconds() * 1e9 - self.waited_ns as f64;
        Some(ran_ns / self.calls as f64 / self.twin_call_ns).filter(|cost| cost.is_finite() && *cost > 0.0)
    }

    /// Calls per second of the watched function that there would have been had nobody watched; `ratio` is that of the two functions
    /// while nobody does. Per second of wall time, as in the report: what the thread waited for a CPU is in it. `None` without calls.
    ///
    /// ```text
    /// F = n / (n c ratio + m c + waited),   n calls, m calls of the twin, each of which took c
    /// ```
    pub fn undisturbed_hz(&self, ratio: f64) -> Option<f64> {
        let ran = (self.calls as f64 * ratio + self.twin_calls as f64) * self.twin_call_ns;
        let ns = ran + self.waited_ns as f64;
        Some(self.calls as f64 / ns * 1e9).filter(|hz| hz.is_finite() && *hz > 0.0)
    }
}

impl Twins {
    /// The functions of a pair, `push` or `stepped`: the one that is to be watched, and its twin.
    pub fn names(pair: &str) -> [String; 2] {
        [format!("calls_{pair}"), format!("twin_{pair}")]
    }

    /// Started and idle.
    pub fn start() -> Self {
        Self(Target::start("twins"))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Each function of the pair is called so often a second from now on. Each call of `calls_push` takes `slower_ns` longer.
    pub fn work(&mut self, pair: &str, hz: u64, slower_ns: u64) {
        self.0.command(&format!("start {pair} {hz} {slower_ns}"));
    }

    /// The same with a unit of progress that the kernel can count: a system call, `getppid`, after so many pairs of slices.
    pub fn work_and_call(&mut self, pair: &str, hz: u64, pairs_per_call: u64) {
        self.0.command(&format!("start {pair} {hz} 0 {pairs_per_call}"));
    }

    /// Ends the work.
    pub fn stop(&mut self) {
        self.0.command("stop");
    }

    /// What was done in the whole slots between two instants.
    pub fn between(&mut self, from_ns: u64, to_ns: u64) -> Slices {
        Slices::of(&self.0.command(&format!("between {from_ns} {to_ns}")))
    }

    /// What is done in so many seconds from now on.
    pub fn watch_for(&mut self, seconds: f64) -> Slices {
        let from = super::monotonic_ns();
        std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
        self.between(from, super::monotonic_ns())
    }

    /// The first bytes of a function's code, and where it stands.
    pub fn code(&mut self, function: &str, length: usize) -> (u64, Vec<u8>) {
        (self.0.address(function), self.0.function_bytes(function, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 calls of either at 5 us a call with its pause: 100,000 calls/s, whatever watching added to the calls.
    #[test]
    fn what_watching_takes_is_not_in_the_truth() {
        let alone = Slices {
            from_ns: 0,
            to_ns: 10_000_000,
            calls: 1_000,
            twin_calls: 1_000,
            waited_ns: 0,
            twin_call_ns: 5_000.0,
            ratio: 1.0,
        };
        let hz = alone.undisturbed_hz(alone.ratio).unwrap();
        assert!((hz / 1e5 - 1.0).abs() < 1e-12, "{hz}");
        assert!((hz / (alone.calls as f64 / alone.seconds()) - 1.0).abs() < 1e-12, "{hz}");
        let watched = Slices { to_ns: 45_000_000, ratio: 8.0, ..alone };
        assert_eq!(watched.undisturbed_hz(alone.ratio).unwrap().to_bits(), hz.to_bits());
        // A machine at half of its speed in that time makes half of the calls.
        let slow = Slices { twin_call_ns: 10_000.0, ..watched };
        assert!((slow.undisturbed_hz(1.0).unwrap() / hz - 0.5).abs() < 1e-12);
        // It waits for a CPU as long as it works.
        let waits = Slices { waited_ns: 10_000_000, ..watched };
        assert!((waits.undisturbed_hz(1.0).unwrap() / hz - 0.5).abs() < 1e-12);
        // A function that takes a tenth longer than its twin when nobody watches.
        assert!((alone.undisturbed_hz(1.1).unwrap() / hz - 2.0 / 2.1).abs() < 1e-12);
        // What watching adds is in a pair's cost, what a slow machine or waiting adds is not.
        let cost = |s: &Slices| s.cost_of_a_pair().unwrap();
        assert!((cost(&alone) - 2.0).abs() < 1e-12 && (cost(&watched) - 9.0).abs() < 1e-12);
        let slow = Slices { to_ns: 20_000_000, twin_call_ns: 10_000.0, ..alone };
        let waits = Slices { to_ns: 20_000_000, waited_ns: 10_000_000, ..alone };
        assert!((cost(&slow) - 2.0).abs() < 1e-12 && (cost(&waits) - 2.0).abs() < 1e-12);
        let nothing = Slices { calls: 0, twin_calls: 0, twin_call_ns: f64::NAN, ..alone };
        assert_eq!((nothing.undisturbed_hz(1.0), nothing.cost_of_a_pair()), (None, None));
    }
}
