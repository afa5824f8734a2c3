//! What an alarm is: an answer to what went wrong, its aftermath, or a false one.

use super::target::Anomaly;

/// When it went wrong in a run, ktime ns.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Alarms count from here on.
    pub from_ns: u64,
    /// Begin of what goes wrong.
    pub begin_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// End of the run.
    pub to_ns: u64,
}

/// An alarm.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// When it is known, ktime ns.
    pub at_ns: u64,
    /// Number of the function; `None`: the machine, or one that is not modelled.
    pub function: Option<usize>,
    /// Begin and end of the call, or of the slice of time, that it tells of, ktime ns.
    pub of_ns: (u64, u64),
    /// The resource; `None`: unknown.
    pub resource: Option<String>,
}

/// What an alarm says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Before the anomaly was over, of a function that it touches, and of a call or slice in it.
    Hit,
    /// In the anomaly, but of a function that it does not touch.
    Elsewhere,
    /// Of calls in the anomaly, but told when it was over; or of calls in the time after it in which it still shows.
    Aftermath,
    /// Of calls while nothing was wrong.
    False,
    /// From before the time that counts.
    Early,
}

impl Stretch {
    /// What an alarm is. It belongs to the time of its call or slice, not to that at which it was told: also one that is told when the run is over.
    pub fn verdict(&self, anomaly: Anomaly, alarm: &Alarm) -> Verdict {
        let (first_ns, last_ns) = alarm.of_ns;
        if alarm.at_ns < self.from_ns {
            Verdict::Early
        } else if last_ns <= self.begin_ns {
            Verdict::False
        } else if first_ns >= self.end_ns {
            if first_ns < self.end_ns + anomaly.grace_ns() { Verdict::Aftermath } else { Verdict::False }
        } else if alarm.at_ns > self.end_ns {
            Verdict::Aftermath
        } else if anomaly.touches(alarm.function) {
            Verdict::Hit
        } else {
            Verdict::Elsewhere
        }
    }

    /// Time in which each alarm is a false one, s.
    pub fn clean_s(&self, anomaly: Anomaly) -> f64 {
        let after = self.to_ns.saturating_sub(self.end_ns + anomaly.grace_ns());
        (self.begin_ns.saturating_sub(self.from_ns) + after) as f64 / 1e9
    }

    /// Time after the anomaly in which alarms are its aftermath, s.
    pub fn aftermath_s(&self, anomaly: Anomaly) -> f64 {
        self.to_ns.saturating_sub(self.end_ns).min(anomaly.grace_ns()) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const RUN: Stretch = Stretch { from_ns: 2 * S, begin_ns: 10 * S, end_ns: 20 * S, to_ns: 26 * S };

    fn verdict(anomaly: Anomaly, function: usize, of_s: (f64, f64), at_s: f64) -> Verdict {
        let ns = |s: f64| (s * 1e9) as u64;
        let alarm = Alarm {
            at_ns: ns(at_s),
            function: Some(function),
            of_ns: (ns(of_s.0), ns(of_s.1)),
            resource: None,
        };
        RUN.verdict(anomaly, &alarm)
    }

    #[test]
    fn an_alarm_answers_the_anomaly_if_its_call_overlaps_it_and_its_function_is_touched() {
        let lock = |of_s, at_s| verdict(Anomaly::Lock, 2, of_s, at_s);
        assert_eq!(lock((10.2, 10.3), 11.0), Verdict::Hit);
        assert_eq!(lock((9.9, 10.1), 11.0), Verdict::Hit);
        assert_eq!(verdict(Anomaly::Lock, 0, (10.2, 10.3), 11.0), Verdict::Elsewhere);
        assert_eq!(verdict(Anomaly::Cpu, 0, (10.2, 10.3), 11.0), Verdict::Hit);
        // Told in it, of a call before it.
        assert_eq!(lock((9.2, 9.3), 10.1), Verdict::False);
        // Told too late.
        assert_eq!(lock((19.2, 19.3), 20.1), Verdict::Aftermath);
    }

    #[test]
    fn what_comes_after_is_aftermath_for_a_while_and_false_from_then_on_also_when_the_run_is_over() {
        let cold = |of_s: f64, at_s| verdict(Anomaly::Cache, 0, (of_s, of_s + 0.01), at_s);
        let grace_s = Anomaly::Cache.grace_ns() as f64 / 1e9;
        assert_eq!(cold(20.0 + grace_s - 0.1, 20.0 + grace_s + 1.0), Verdict::Aftermath);
        assert_eq!(cold(20.0 + grace_s + 0.1, 20.0 + grace_s + 0.2), Verdict::False);
        assert_eq!(cold(25.9, 26.5), Verdict::False);
        assert_eq!(cold(5.0, 6.0), Verdict::False);
        assert_eq!(cold(1.0, 1.5), Verdict::Early);
    }

    #[test]
    fn clean_time_has_no_aftermath_in_it() {
        let grace_s = Anomaly::Memory.grace_ns() as f64 / 1e9;
        assert_eq!(RUN.clean_s(Anomaly::Memory), 8.0 + 6.0 - grace_s);
        assert_eq!(RUN.aftermath_s(Anomaly::Memory), grace_s);
        let short = Stretch { to_ns: 20 * S + S / 2, ..RUN };
        assert_eq!((short.clean_s(Anomaly::Memory), short.aftermath_s(Anomaly::Memory)), (8.0, 0.5));
    }
}
