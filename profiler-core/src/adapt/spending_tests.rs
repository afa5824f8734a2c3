use super::*;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MS: u64 = 1_000_000;

fn group(wants_ns: &[f64], most_ns: f64, bounds: bool) -> Group {
    Group { wants_ns: wants_ns.to_vec(), most_ns, bounds }
}

/// A target with bounds that cost `outside` CPU s/s while they are attached and inner functions that cost `inside`, unevenly, one slice
/// of `slice_ms` a second at a random place; turns of a millisecond, looks of 100 ms. Returns the most that was taken in any second,
/// the mean, CPU s/s, and the part of the time in which bounds were attached.
fn run(allowed: f64, outside: f64, inside: &[f64], slice_ms: u64) -> (f64, f64, f64) {
    let mut random = StdRng::seed_from_u64(7);
    let mut span = Span::default();
    let n = inside.len();
    // Bounds come first.
    let rates: Vec<f64> = std::iter::once(outside).chain(inside.iter().copied()).collect();
    let mut taken = vec![TakenTime::default(); n + 1];
    let mut quotas = vec![0.0; n + 1];
    let mut since_look = vec![0.0; n + 1];
    let mut on = vec![false; n + 1];
    let (mut bounds_at, mut slice_at, mut slice_end) = (0, 0, 0);
    let mut of_ms: Vec<f64> = Vec::new();
    let mut watched = 0;
    for ms in 0..60_000_u64 {
        let now = ms * MS;
        if ms % 1_000 == 0 {
            slice_at = ms + random.random_range(0..1_000 - slice_ms);
        }
        let opens = (!on[0] && now >= bounds_at) || ms == slice_at;
        if ms == slice_end {
            on[1..].fill(false);
        }
        if ms % 100 == 0 || opens {
            let all: f64 = since_look.iter().sum();
            span.note(now, all);
            for ((taken, took), on) in taken.iter_mut().zip(&mut since_look).zip(&on) {
                taken.note(std::mem::take(took), *on);
            }
            on[0] |= now >= bounds_at;
            if ms == slice_at && on[0] {
                on[1..].fill(true);
                slice_end = ms + slice_ms;
            }
            let wants: Vec<f64> = taken.iter().map(|t| t.want_ns(1_000.0)).collect();
            let left = span.left_ns(now, allowed);
            let mut groups = vec![group(&wants[..1], f64::INFINITY, true)];
            if n > 0 && on[1] {
                groups.push(group(&wants[1..], f64::INFINITY, false));
            }
            let given = grants(left, &groups);
            quotas.fill(0.0);
            for (quota, ns) in quotas.iter_mut().zip(given.into_iter().flatten()) {
                *quota = ns;
            }
        }
        let mut took_now = 0.0;
        for i in 0..=n {
            if !on[i] {
                continue;
            }
            let took = rates[i] * 1e6;
            took_now += took;
            since_look[i] += took;
            quotas[i] -= took;
            if quotas[i] < 0.0 {
                on[i] = false;
                if i == 0 {
                    bounds_at = span.restart_at_ns(now, allowed).max(now + 100 * MS);
                }
                on[1..].fill(false);
            }
        }
        watched += u64::from(on[0]);
        of_ms.push(took_now);
    }
    let worst = of_ms.windows(1_000).map(|w| w.iter().sum::<f64>()).fold(0.0, f64::max) * 1e-9;
    (worst, of_ms.iter().sum::<f64>() * 1e-9 / 60.0, watched as f64 / 60_000.0)
}

/// Redis at 85,000 commands a second: `call` costs four times what operations may at 5 %, eight inner functions half a CPU.
#[test]
fn no_second_of_hot_operations_takes_more_than_a_span_is_worth() {
    let inside = [0.15, 0.15, 0.1, 0.07, 0.02, 0.005, 0.004, 0.001];
    for (outside, inside, slice_ms) in [
        (0.15, &inside[..], 30),
        (0.15, &inside, 400),
        (0.01, &inside, 100),
        (0.9, &[], 10),
        (0.03, &inside, 20),
        (0.042, &[], 10),
        (0.036, &[], 10),
    ] {
        let (worst, mean, watched) = run(0.04, outside, inside, slice_ms);
        // A turn of a millisecond goes beyond the quota.
        let reaction = (outside + inside.iter().sum::<f64>()) * 1e-3;
        assert!(
            worst <= 0.04 * PEAK * SPAN_S + 2.0 * reaction,
            "{worst} for {outside}, {slice_ms} ms: {watched} watched"
        );
        let long = 0.04 * (1.0 + LONG_S / 60.0) + reaction;
        assert!(mean <= long, "{mean} for {outside}, {slice_ms} ms: {watched} watched");
        // And what may be spent is spent, where there is something to spend it on.
        assert!(outside < 0.04 || mean > 0.034, "{mean} for {outside}, {slice_ms} ms: {watched} watched");
        // What fits is watched all the time.
        assert!(outside > 0.036 || !inside.is_empty() || watched > 0.999, "{watched} watched of {outside}");
    }
}

#[test]
fn what_is_paused_comes_back_when_half_of_a_span_is_free_again() {
    let mut span = Span::default();
    let near = |ns: f64, expected: f64| (ns - expected).abs() < 1.0;
    assert!(near(span.left_ns(0, 0.04), 50.6e6) && span.restart_at_ns(0, 0.04) == 0);
    for (ms, took) in [(100, 17e6), (200, 17e6), (300, 16.6e6)] {
        span.note(ms * MS, took);
    }
    assert!(near(span.left_ns(300 * MS, 0.04), 0.0));
    // The second look goes at 1,300 ms.
    assert_eq!(span.restart_at_ns(300 * MS, 0.04), 1_300 * MS);
    assert!(near(span.left_ns(1_300 * MS, 0.04), 34e6));
    // Nothing is allowed any more: it comes back when all was forgotten.
    assert_eq!(span.restart_at_ns(300 * MS, 0.0), 4_700 * MS);
    assert_eq!(span.room_at_ns(300 * MS, 0.04, 1e12), 4_700 * MS);
    // Nonsense is nothing.
    span.note(400 * MS, f64::NAN);
    assert_eq!(span.taken_ns(400 * MS, SPAN_S), 50.6e6);
}

#[test]
fn a_peak_is_paid_back_within_the_long_span() {
    let mut span = Span::default();
    for look in 1..=3_u64 {
        span.note(look * 1_400 * MS, 50.6e6);
    }
    // 151.8 of 176 ms are taken; a second later the short span is free and the long one is not.
    assert!((span.left_ns(4_300 * MS, 0.04) - 0.0).abs() < 1.0);
    assert!((span.left_ns(5_400 * MS, 0.04) - 24.2e6).abs() < 1.0);
    // 25.3 ms come back when the first peak is forgotten.
    assert_eq!(span.restart_at_ns(5_400 * MS, 0.04), 5_800 * MS);
}

#[test]
fn a_slice_that_may_begin_is_not_ended_by_its_quotas() {
    let allowed = 0.04;
    let worth_ns = slice_plan(0.4 * SPAN_S * allowed) * 1e9;
    let left_ns = slice_room_ns(worth_ns, 1e9, allowed);
    assert!(left_ns <= restart_ns(allowed));
    // Bounds want all there is, and one of eight functions takes nearly all of the slice.
    let bounds = group(&[1e9], f64::INFINITY, true);
    let mut wants = vec![1.5 * 0.01 * worth_ns; 8];
    wants[0] = 1.5 * 0.93 * worth_ns;
    let given = grants(left_ns, &[bounds, group(&wants, 0.4 * SPAN_S * allowed * 1e9, false)]);
    assert!(given[1][0] >= 0.93 * worth_ns, "{given:?} of {worth_ns}");
}

/// Bounds that take `part` of what operations may, in looks of 100 ms, and a slice that is wanted once a second: how many of 60 begin.
fn slices_beside(part: f64, allowed: f64) -> u32 {
    let bounds = part * allowed;
    let worth_ns = slice_plan(0.4 * SPAN_S * allowed).min(slice_most_s(bounds, allowed)) * 1e9;
    let (mut span, mut wanted, mut begun) = (Span::default(), false, 0);
    for look in 0..600_u64 {
        let now = look * 100 * MS;
        span.note(now, bounds * 0.1e9);
        wanted |= look % 10 == 5;
        let room_ns = slice_room_ns(worth_ns, 1.5 * bounds * 0.1e9, allowed);
        if wanted && span.left_ns(now, allowed) >= room_ns {
            span.note(now, worth_ns);
            (wanted, begun) = (false, begun + 1);
        }
    }
    begun
}

#[test]
fn slices_fit_beside_bounds_that_take_most() {
    for percent in (0..=90).step_by(5) {
        let begun = slices_beside(f64::from(percent) / 100.0, 0.04);
        assert!(begun >= 20, "{begun} beside bounds that take {percent} %");
    }
}

#[test]
fn what_slices_need_is_what_they_fit_into() {
    for (bounds, slice_s) in [(0.02, 0.005), (0.2, 0.002), (0.0, 0.01), (0.001, 0.2)] {
        let allowed = allowed_for_slices(bounds, slice_s);
        assert!(slice_most_s(bounds, allowed) >= slice_s * (1.0 - 1e-9), "{bounds}, {slice_s}: {allowed}");
        assert!(bounds <= 0.9 * allowed * (1.0 + 1e-9));
        // And no more than that.
        let less = 0.98 * allowed;
        assert!(
            slice_most_s(bounds, less) < slice_s || bounds > 0.9 * less,
            "{bounds}, {slice_s}: {allowed}"
        );
    }
}

#[test]
fn cheap_bounds_are_served_before_dear_ones_and_what_is_inside() {
    let cheap = group(&[1e6], f64::INFINITY, true);
    let dear = group(&[50e6, 50e6], f64::INFINITY, true);
    let inner = group(&[100e6; 4], f64::INFINITY, false);
    let given = grants(20e6, &[cheap, dear, inner]);
    let sums: Vec<f64> = given.iter().map(|g| g.iter().sum()).collect();
    assert!(
        (sums[0] - 1e6).abs() < 1.0 && (sums[1] - 9e6).abs() < 1.0 && (sums[2] - 10e6).abs() < 1.0,
        "{sums:?}"
    );
    // What nobody wants is for those who were never called, too.
    let given = grants(20e6, &[group(&[1e6, 0.0], f64::INFINITY, true), group(&[1e6; 8], 6e6, false)]);
    assert!(given[0][1] > 0.3e6 && (given[1].iter().sum::<f64>() - 6e6).abs() < 1.0, "{given:?}");
    assert!(grants(0.0, &[group(&[1e6], 1e9, true)])[0][0] == 0.0 && grants(1e6, &[]).is_empty());
}

#[test]
fn a_dear_look_is_remembered_for_some_seconds() {
    let mut taken = TakenTime::default();
    taken.note(1e6, true);
    assert_eq!(taken.want_ns(1e3), 1.5e6 + 8e3);
    for _ in 0..50 {
        taken.note(0.0, true);
    }
    assert!((0.3..0.4).contains(&(taken.most_ns / 1e6)) && taken.last_ns == 0.0, "{taken:?}");
    let before = taken;
    taken.note(0.0, false);
    assert_eq!(taken, before);
}

#[test]
fn recording_is_priced_by_this_machines_hits() {
    assert!((record_own_ns(792.5) - 480.0).abs() < 10.0);
}

proptest! {
    #[test]
    fn grants_are_never_more_than_what_is_left(
        left in 0.0f64..1e8,
        groups in prop::collection::vec((prop::collection::vec(0.0f64..1e8, 1..20), 0.0f64..1e8, any::<bool>()), 1..5),
    ) {
        let groups: Vec<Group> = groups.iter().map(|(w, most, bounds)| group(w, *most, *bounds)).collect();
        let given = grants(left, &groups);
        let all: f64 = given.iter().flatten().sum();
        prop_assert!(all <= left * (1.0 + 1e-9) + 1e-6, "{all} of {left}: {given:?}");
        for (g, given) in groups.iter().zip(&given) {
            prop_assert_eq!(g.wants_ns.len(), given.len());
            prop_assert!(given.iter().all(|ns| *ns >= 0.0));
            prop_assert!(given.iter().sum::<f64>() <= g.most_ns * (1.0 + 1e-9) + 1e-6);
        }
    }
}
