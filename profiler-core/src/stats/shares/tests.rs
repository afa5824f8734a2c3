use super::super::LEVEL;
use super::super::sim::{Coverage, exponential, rng};
use super::*;
use rand::{RngExt as _, rngs::StdRng};

/// A thread that is inside the class for exponential times of mean `inside`, outside for mean `outside`
/// (in sampling periods); ends of the stretches inside.
fn stretches(rng: &mut StdRng, inside: f64, outside: f64, length: f64) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    // Start in the stationary state; exponential times have no memory.
    let mut t =
        if rng.random::<f64>() < inside / (inside + outside) { 0.0 } else { exponential(rng, outside) };
    while t < length {
        let end = t + exponential(rng, inside);
        out.push((t, end.min(length)));
        t = end + exponential(rng, outside);
    }
    out
}

/// One jittered sample per period; which of them fall inside.
fn look(rng: &mut StdRng, stretches: &[(f64, f64)], length: usize) -> Vec<bool> {
    let mut s = stretches.iter().peekable();
    (0..length)
        .map(|i| {
            let t = i as f64 + rng.random::<f64>();
            while s.next_if(|(_, end)| *end < t).is_some() {}
            s.peek().is_some_and(|(begin, _)| *begin <= t)
        })
        .collect()
}

fn points(n: usize) -> Vec<SamplePoint> {
    (0..n).map(|i| SamplePoint { time_ns: i as u64 * 1_000, tid: 7, weight: 1e7 }).collect()
}

struct Outcome {
    here: Coverage,
    long: Coverage,
    bias: f64,
    half_here: f64,
}

/// Runs of one thread, with call lengths in periods.
fn simulate(seed: u64, inside: f64, outside: f64, n: usize, runs: usize) -> Outcome {
    let mut rng = rng(seed);
    let mut out = Outcome { here: Coverage::default(), long: Coverage::default(), bias: 0.0, half_here: 0.0 };
    let mut design = SampleDesign::new(&points(n), LEVEL);
    for _ in 0..runs {
        let s = stretches(&mut rng, inside, outside, n as f64);
        let here: f64 = s.iter().map(|(a, b)| b - a).sum::<f64>() / n as f64;
        let hits: Vec<usize> =
            look(&mut rng, &s, n).iter().enumerate().filter(|(_, x)| **x).map(|(i, _)| i).collect();
        let share = design.share(&hits).unwrap();
        out.here.note(share.this_recording, here);
        out.long.note(share.long_run, inside / (inside + outside));
        out.bias += (share.value - here) / runs as f64;
        out.half_here += (share.this_recording.high - share.this_recording.low) / 2.0 / runs as f64;
    }
    out
}

#[test]
fn short_calls_both_intervals_cover() {
    // Calls of a hundredth of a period: samples are nearly independent.
    let o = simulate(11, 0.01, 0.09, 1_000, 2_000);
    o.here.check(0.93, 0.97, "short, this recording");
    o.long.check(0.93, 0.98, "short, long run");
    assert!(o.bias.abs() < 1e-3, "{}", o.bias);
}

#[test]
fn long_phases_are_known_here_and_uncertain_in_the_long_run() {
    // Calls of 10 periods: the load has phases that the sampler resolves.
    let o = simulate(12, 10.0, 30.0, 4_000, 2_000);
    o.here.check(0.95, 0.999, "phases, this recording (conservative)");
    o.long.check(0.93, 0.97, "phases, long run");
    assert!(o.bias.abs() < 1e-3, "{}", o.bias);
    // Far narrower than a plain binomial interval.
    let plain = 1.96 * (0.25 * 0.75 / 4_000.0_f64).sqrt();
    assert!(o.half_here < 0.6 * plain, "{} {plain}", o.half_here);
}

#[test]
fn batches_shorter_than_the_phases_are_joined() {
    // Phases of 400 samples, 32 batches of 100: neighbours are alike, so there are 16 pieces of evidence at most.
    let mut design = SampleDesign::new(&points(3_200), LEVEL);
    let hits: Vec<usize> = (0..3_200).filter(|i| i / 400 % 2 == 0).collect();
    let long = design.share(&hits).unwrap().long_run;
    let half = |b: f64| t_quantile(LEVEL, b - 1.0) * (0.25 / (b - 1.0)).sqrt();
    // Wilson's interval is a little narrower than these plain ones: 0.18 and 0.27.
    let got = (long.high - long.low) / 2.0;
    assert!(got > 1.2 * half(32.0) && got < half(16.0), "{got}, {} {}", half(32.0), half(16.0));
}

#[test]
fn plain_wilson_would_not_cover_the_long_run() {
    // The reason for batches: the same runs, judged by Wilson on all samples.
    let mut rng = rng(13);
    let mut plain = Coverage::default();
    for _ in 0..500 {
        let s = stretches(&mut rng, 10.0, 30.0, 4_000.0);
        let k = look(&mut rng, &s, 4_000).iter().filter(|x| **x).count() as f64;
        plain.note(wilson(k, 4_000.0, z_quantile(LEVEL)), 0.25);
    }
    assert!(plain.share() < 0.6, "{}", plain.share());
}

#[test]
fn rare_classes_cover() {
    let o = simulate(14, 0.02, 9.98, 1_500, 3_000);
    o.here.check(0.93, 0.985, "rare, this recording");
    o.long.check(0.93, 0.985, "rare, long run");
}

#[test]
fn threads_sampled_together_are_one_cluster() {
    // 16 threads in lock-step: 16 times the samples, no more knowledge.
    let mut rng = rng(15);
    let (ticks, threads) = (400, 16);
    let mut points = Vec::new();
    for i in 0..ticks {
        for tid in 0..threads {
            points.push(SamplePoint { time_ns: i as u64 * 1_000, tid: tid as u32, weight: 1.0 });
        }
    }
    let mut design = SampleDesign::new(&points, LEVEL);
    let mut long = Coverage::default();
    for _ in 0..2_000 {
        let tick: Vec<bool> = (0..ticks).map(|_| rng.random::<f64>() < 0.2).collect();
        let hits: Vec<usize> = (0..points.len()).filter(|i| tick[i / threads]).collect();
        long.note(design.share(&hits).unwrap().long_run, 0.2);
    }
    long.check(0.93, 0.975, "lock-step threads, long run");
}

#[test]
fn weights_follow_a_change_of_the_period() {
    // The first half at twice the period: 100 samples of weight 2 inside, then 200 of weight 1 outside.
    let points: Vec<SamplePoint> = (0..300)
        .map(|i| SamplePoint { time_ns: i, tid: 1, weight: if i < 100 { 2.0 } else { 1.0 } })
        .collect();
    let mut design = SampleDesign::new(&points, LEVEL);
    let share = design.share(&(0..100).collect::<Vec<_>>()).unwrap();
    assert!((share.value - 0.5).abs() < 1e-12);
    assert!(share.this_recording.holds(0.5) && share.this_recording.high < 0.52);
    assert!(share.long_run.high > 0.6, "{:?}", share.long_run);
}

#[test]
fn sparse_differences_equal_the_plain_sum() {
    let mut rng = rng(16);
    for round in 0..200 {
        let threads = 1 + round % 5;
        let points: Vec<SamplePoint> = (0..60)
            .map(|i| SamplePoint {
                time_ns: i,
                tid: rng.random_range(0..threads as u32),
                weight: rng.random_range(1..4u32).into(),
            })
            .collect();
        let hits: Vec<usize> = (0..60).filter(|_| rng.random::<f64>() < 0.3).collect();
        let mut design = SampleDesign::new(&points, LEVEL);
        let p = 0.3;
        let mut expect = 0.0;
        for tid in 0..threads as u32 {
            let line: Vec<(f64, f64)> = (0..60)
                .filter(|&i| points[i].tid == tid)
                .map(|i| (points[i].weight, f64::from(u8::from(hits.contains(&i)))))
                .collect();
            let n = line.len() as f64;
            if line.len() < 3 {
                expect += line.iter().map(|(w, _)| w * w * p * (1.0 - p)).sum::<f64>();
            }
            for w in line.windows(3) {
                let d = w[0].1 - 2.0 * w[1].1 + w[2].1;
                expect += n / (n - 2.0) * w[1].0.powi(2) * d * d / 6.0;
            }
        }
        let total: f64 = points.iter().map(|p| p.weight).sum();
        let got = design.stratified_variance(&hits, p);
        assert!((got - expect / (total * total)).abs() < 1e-12, "{got} {}", expect / (total * total));
    }
}

#[test]
fn nothing_and_everything() {
    let mut design = SampleDesign::new(&[], LEVEL);
    assert!(design.share(&[]).is_none() && design.is_empty());
    let mut design = SampleDesign::new(&points(50), LEVEL);
    let none = design.share(&[]).unwrap();
    assert_eq!((none.value, none.this_recording.low, none.hits), (0.0, 0.0, 0));
    assert!(none.this_recording.high > 0.05 && none.this_recording.high < 0.1);
    let all = design.share(&(0..50).collect::<Vec<_>>()).unwrap();
    assert_eq!((all.value, all.this_recording.high), (1.0, 1.0));
    assert!(all.long_run.low < 0.95);
    let mut one = SampleDesign::new(&points(1), LEVEL);
    assert!(one.share(&[0]).unwrap().this_recording.low < 0.3);
    // Weights that are not numbers count for nothing.
    let mut odd = SampleDesign::new(&[SamplePoint { time_ns: 0, tid: 0, weight: f64::NAN }], LEVEL);
    assert!(odd.share(&[0]).is_none());
}
