//! What each of several operations may cost: its screening first, then its part of what is left for recording.
//!
//! Screening is paid for every operation, recorded or not, so it is given first, whatever the others take. Where all together
//! screen for more than they may, those that take most are watched for a part of each second, down to a level that fits:
//! ```text
//! sum min(s_i, L) = (1 - RECORDING_SHARE) x allowed - D,    watched for L / s_i of the time
//! ```
//! D, a fifth of that at most, is what recording them would take beyond. Beside system calls and tracepoints, which cannot pause, they have what those leave of it. What one takes less than the level is left to the others. The rest records, and there is always one.

use crate::run::arbiter::{EVEN_RECORDING_SHARE, LEAST_SCREENING_SHARE, RECORDING_SHARE};

/// Of what functions may screen for, where they screen for more, recording gets this part at most: all the calls inside are paid for, and
/// what is watched for a part of the time anyway is watched a little less.
const DEAR_RECORDING_PART: f64 = 0.2;

/// What an operation takes while it is watched, CPU seconds per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// For screening.
    pub screening: f64,
    /// For recording, if all were recorded.
    pub recording: f64,
    /// Its bounds can be taken off for a while: they are functions.
    pub can_pause: bool,
}

/// What it gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Portion {
    /// It takes more than it may: it is watched for a part of the time.
    pub is_dear: bool,
    /// What screening it may cost, CPU seconds per second; infinite where nothing bounds it.
    pub most_screening: f64,
    /// What screening it costs.
    pub screening: f64,
    /// What recording may cost, CPU seconds per second.
    pub recording: f64,
}

/// Divides `allowed` CPU seconds per second.
#[must_use]
pub fn portions(allowed: f64, demands: &[Demand]) -> Vec<Portion> {
    let allowed = if allowed > 0.0 { allowed } else { 0.0 };
    let pausable: Vec<f64> = demands.iter().filter(|d| d.can_pause).map(|d| d.screening).collect();
    let fixed: f64 = demands.iter().filter(|d| !d.can_pause).map(|d| d.screening).sum();
    let all: f64 = pausable.iter().sum();
    // Beside what cannot pause they are watched all the time as long as they fit, and now and then whatever the others take.
    let fits = if fixed > 0.0 && all <= allowed - fixed { all } else { 0.0 };
    let left = ((1.0 - RECORDING_SHARE) * allowed - fixed).max(fits).max(LEAST_SCREENING_SHARE * allowed);
    let most = level(left - dear_recording(left, demands, &pausable), &pausable);
    let mut given: Vec<Portion> = demands.iter().map(|d| screened(d, most)).collect();

    let rest = (allowed - given.iter().map(|p| p.screening).sum::<f64>()).max(0.0);
    // Nothing is recorded while it is not watched.
    let part = |d: &Demand, p: &Portion| if p.is_dear { p.screening / d.screening } else { 1.0 };
    let wishes: Vec<f64> =
        demands.iter().zip(&given).map(|(d, p)| d.recording.max(0.0) * part(d, p)).collect();
    let open = (1.0 - EVEN_RECORDING_SHARE) * rest;
    let highest = level(open, &wishes);
    let taken: f64 = wishes.iter().map(|wish| wish.min(highest)).sum();
    let even = (rest - taken).max(0.0) / demands.len().max(1) as f64;
    for (portion, wish) in given.iter_mut().zip(wishes) {
        portion.recording = even + wish.min(highest);
    }
    given
}

/// What recording takes of `left` for screening that is too dear for it: no more than there is to record.
fn dear_recording(left: f64, demands: &[Demand], pausable: &[f64]) -> f64 {
    let most = level((1.0 - DEAR_RECORDING_PART) * left, pausable);
    if pausable.iter().sum::<f64>() <= left {
        return 0.0;
    }
    let dear = demands.iter().filter(|d| d.can_pause && d.screening > most);
    let wish: f64 = dear.map(|d| d.recording.max(0.0) * most / d.screening).sum();
    wish.min(DEAR_RECORDING_PART * left)
}

/// Screening of one operation where it may cost `most`.
fn screened(demand: &Demand, most: f64) -> Portion {
    let is_dear = demand.can_pause && demand.screening > most;
    Portion {
        is_dear,
        most_screening: if demand.can_pause { most } else { f64::INFINITY },
        screening: if is_dear { most } else { demand.screening },
        recording: 0.0,
    }
}

/// The level down to which all of these are cut so that they make up `total`; infinite where they fit.
pub(super) fn level(total: f64, all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut left = total.max(0.0);
    for (i, one) in sorted.iter().enumerate() {
        let equal = left / (sorted.len() - i) as f64;
        if *one > equal {
            return equal;
        }
        left -= one;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn function(screening: f64, recording: f64) -> Demand {
        Demand { screening, recording, can_pause: true }
    }

    #[test]
    fn one_that_screens_for_more_than_its_equal_part_is_watched_and_recorded() {
        // 2 % of a CPU, three operations at 1.83 us: 3,000/s, 1,200/s and 540/s, 8.7 ms/s in all, where each part is 5.3.
        let of = |hz: f64| function(hz * 1.83e-6, hz * 20e-6);
        let given = portions(0.016, &[of(3_000.0), of(1_200.0), of(540.0)]);
        assert!(given.iter().all(|p| !p.is_dear && p.recording > 0.001), "{given:?}");
        let all: f64 = given.iter().map(|p| p.screening + p.recording).sum();
        assert!((all - 0.016).abs() < 1e-12, "{all}: {given:?}");
        // Each wants more than there is.
        assert!((given[0].recording - given[2].recording).abs() < 1e-12, "{given:?}");
    }

    #[test]
    fn what_is_too_dear_together_is_taken_from_the_dearest_and_still_recorded() {
        let given = portions(0.010, &[function(0.020, 1.0), function(0.001, 1.0), function(0.002, 1.0)]);
        // 7.2 of 9 ms screen, because there is much to record: 4.2 of them the dear one's, which is watched for a fifth of each second.
        assert_eq!(given.iter().map(|p| p.is_dear).collect::<Vec<_>>(), [true, false, false]);
        assert!(
            (given[0].most_screening - 0.0042).abs() < 1e-12 && (given[0].screening - 0.0042).abs() < 1e-12
        );
        // A third of the rest each.
        assert!(given.iter().all(|p| (p.recording - 0.0028 / 3.0).abs() < 1e-12), "{given:?}");
        // Where there is little to record beyond the last tenth it is left to screening.
        let given = portions(0.010, &[function(0.020, 0.001)]);
        assert!((0.0085..0.009).contains(&given[0].most_screening), "{given:?}");
    }

    #[test]
    fn what_cannot_pause_comes_first_and_may_leave_nothing() {
        let syscalls = |screening| Demand { screening, recording: 1.0, can_pause: false };
        let given = portions(0.010, &[syscalls(0.006), function(0.006, 1.0)]);
        assert_eq!((given[0].is_dear, given[1].is_dear), (false, true));
        assert!((given[1].most_screening - 0.0024).abs() < 1e-12 && given.iter().all(|p| p.recording > 0.0));
        // A cheap one fits beside a dear one, ...
        let given = portions(0.010, &[syscalls(0.0095), function(0.0002, 1.0)]);
        assert!(!given[1].is_dear && given[1].recording > 0.0, "{given:?}");
        // ... and is not blind for a minute because the other took everything for a second.
        let nothing = portions(0.010, &[syscalls(0.020), function(0.001, 1.0)]);
        assert!(nothing[0].recording == 0.0 && (nothing[1].screening - 0.0004).abs() < 1e-12, "{nothing:?}");
        assert_eq!(portions(0.0, &[function(0.0, 0.0)])[0].recording, 0.0);
        assert!(portions(0.01, &[]).is_empty());
    }

    #[test]
    fn who_is_idle_leaves_the_most_and_keeps_some() {
        let given = portions(0.012, &[function(0.0, 0.1), function(0.0, 0.0), function(0.0, 0.0)]);
        assert!((given[0].recording - 0.008).abs() < 1e-12 && (given[1].recording - 0.002).abs() < 1e-12);
        // Where nobody wants much it is divided evenly.
        let given = portions(0.012, &[function(0.0, 0.0), function(0.0, 0.0)]);
        assert!(given.iter().all(|p| (p.recording - 0.006).abs() < 1e-12), "{given:?}");
    }

    proptest! {
        #[test]
        fn on_average_they_take_what_they_may_and_everyone_records(
            allowed in 1e-4f64..0.1,
            demands in prop::collection::vec((0.0f64..0.2, 0.0f64..1.0), 1..9),
        ) {
            let demands: Vec<Demand> = demands.into_iter().map(|(s, r)| function(s, r)).collect();
            let given = portions(allowed, &demands);
            let sum: f64 = given.iter().map(|p| p.screening + p.recording).sum();
            prop_assert!(sum <= allowed * (1.0 + 1e-9), "{sum} of {allowed}: {given:?}");
            for p in &given {
                prop_assert!(p.recording > 0.0 && p.recording <= allowed, "{given:?}");
                prop_assert!(p.screening <= p.most_screening * (1.0 + 1e-9), "{given:?}");
            }
        }
    }
}
