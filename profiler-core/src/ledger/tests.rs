use super::*;
use proptest::prelude::*;

const TWO_PERCENT: OverheadBudget = OverheadBudget::Share(0.02);

/// A spender that takes whatever is there never spends more than accrued + capacity, over *every* stretch.
#[derive(Debug, Clone)]
struct Step {
    elapsed_ms: u64,
    cpus: f64,
    want: f64,
    /// Cost that comes without asking (overshoot), as a share of what accrues.
    forced: f64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (1u64..500, 0.0f64..8.0, 0.0f64..3.0, prop_oneof![9 => Just(0.0), 1 => 0.0f64..5.0]);
    let step = step.prop_map(|(elapsed_ms, cpus, want, forced)| Step { elapsed_ms, cpus, want, forced });
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn spending_never_exceeds_accrual_plus_what_the_bucket_held(steps in steps(), share in 0.001f64..1.0) {
        let mut bucket = TokenBucket::new(OverheadBudget::Share(share));
        // (accrued, spent, tokens) after each step.
        let mut marks = vec![(0.0, 0.0, 0.0)];
        for s in &steps {
            let elapsed = s.elapsed_ms as f64 * 1e6;
            let earned = bucket.accrue(elapsed, s.cpus * elapsed, 0.0);
            prop_assert!(earned >= share * FLOOR_CPU_PER_S * elapsed * (1.0 - 1e-12));
            prop_assert!(bucket.available_ns() <= bucket.capacity_ns() + 1e-6);
            let want = bucket.available_ns() * s.want;
            let had = bucket.available_ns();
            prop_assert_eq!(bucket.try_spend(want), want <= had);
            bucket.spend(earned * s.forced);
            marks.push((bucket.accrued_ns(), bucket.spent_ns(), bucket.available_ns() - bucket.debt_ns()));
        }
        for (i, a) in marks.iter().enumerate() {
            for b in &marks[i..] {
                let debt = (-b.2).max(0.0);
                let limit = (b.0 - a.0) + a.2.max(0.0) + debt;
                prop_assert!(b.1 - a.1 <= limit + 1e-3, "spent {} over {}", b.1 - a.1, limit);
            }
        }
    }

    #[test]
    fn rows_add_up_to_the_ledger(charges in prop::collection::vec((0u32..5, 0u64..1_000, 1u64..400), 1..60)) {
        let mut ledger = Ledger::new(TWO_PERCENT, 1_000);
        let mut rows = Vec::new();
        let mut now = 1_000;
        for (class, hits, ms) in charges {
            ledger.charge_units(Charge::Traced, Some(ClassId(class)), hits, Price::fixed(700.0));
            ledger.charge_units(Charge::Samples, None, hits / 10, Price::fixed(14_000.0));
            ledger.charge(Charge::Bystanders, None, hits, 1e6);
            now += ms * 1_000_000;
            rows.extend(ledger.close_interval(now, ms * 900_000));
        }
        let sum = LedgerSummary::from_rows(&rows);
        prop_assert!((sum.charged_s * 1e9 - ledger.charged_ns()).abs() < rows.len() as f64);
        prop_assert!((sum.predicted - ledger.predicted()).abs() < 1e-6);
        prop_assert!((sum.length_s * 1e9 - (now - 1_000) as f64).abs() < 1.0);
        if sum.length_s >= 1.0 {
            prop_assert!((sum.worst_second - ledger.worst_second()).abs() < 1e-6);
        }
    }
}

#[test]
fn an_idle_target_earns_the_floor_and_an_absolute_budget_its_figure() {
    let mut bucket = TokenBucket::new(TWO_PERCENT);
    assert_eq!(bucket.accrue(1e9, 0.0, 0.0), 0.02 * 0.05 * 1e9);
    let mut bucket = TokenBucket::new(OverheadBudget::CpuPerSecond(0.005));
    assert_eq!(bucket.accrue(2e9, 0.0, 0.0), 10e6);
}

#[test]
fn own_cpu_time_not_what_we_charged_earns_tokens() {
    // 1 s of target CPU of which 0.5 s was ours: tokens for the other half only.
    let mut bucket = TokenBucket::new(TWO_PERCENT);
    assert_eq!(bucket.accrue(1e9, 1e9, 0.5e9), 0.01e9);
}

#[test]
fn the_bucket_holds_a_quarter_of_a_second_and_shrinks_with_the_target() {
    let mut bucket = TokenBucket::new(TWO_PERCENT);
    for _ in 0..100 {
        bucket.accrue(1e8, 4e8, 0.0);
    }
    assert!((bucket.available_ns() - 0.25 * 4.0 * 0.02 * 1e9).abs() < 1.0);
    for _ in 0..100 {
        bucket.accrue(1e8, 0.0, 0.0);
    }
    assert!((bucket.available_ns() - 0.25 * 0.05 * 0.02 * 1e9).abs() < 1.0);
}

#[test]
fn debt_is_paid_back_before_anything_is_available() {
    let mut bucket = TokenBucket::new(TWO_PERCENT);
    bucket.accrue(1e8, 1e8, 0.0);
    bucket.spend(50e6);
    assert_eq!(bucket.debt_ns(), 48e6);
    // 2 ms per 100 ms: 24 intervals to come level.
    for _ in 0..23 {
        bucket.accrue(1e8, 1e8, 0.0);
        assert_eq!(bucket.available_ns(), 0.0);
    }
    bucket.accrue(1e8, 1e8, 0.0);
    bucket.accrue(1e8, 1e8, 0.0);
    assert!(bucket.available_ns() > 1e6);
}

#[test]
fn bystanders_are_shown_but_not_charged() {
    let mut ledger = Ledger::new(TWO_PERCENT, 0);
    ledger.charge(Charge::Bystanders, None, 10, 1e9);
    ledger.charge(Charge::Survey, Some(ClassId(3)), 100, 7e4);
    let rows = ledger.close_interval(1_000_000_000, 1_000_000_000);
    assert_eq!(rows.len(), 2);
    assert_eq!(ledger.charged_ns(), 7e4);
    assert_eq!(ledger.account(Charge::Bystanders).cost_ns, 1e9);
    assert_eq!(ledger.class_account(ClassId(3)).units, 100);
    let own = 1e9 - 7e4;
    assert!((ledger.predicted() - 7e4 / own).abs() < 1e-12);
    assert!((ledger.worst_second() - 7e4 / own).abs() < 1e-12);
    assert_eq!(rows[0].allowed_ns, (0.02_f64 * own).round() as u64);
}

#[test]
fn an_interval_without_charges_still_records_its_cpu_time() {
    let mut ledger = Ledger::new(TWO_PERCENT, 5);
    assert!(ledger.close_interval(5, 10).is_empty());
    let rows = ledger.close_interval(1_005, 600);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].target_cpu_ns, rows[0].cost_ns, rows[0].interval_ns), (600, 0, 1_000));
}

#[test]
fn the_worst_second_is_found_between_interval_borders() {
    let mut rows = Vec::new();
    let mut ledger = Ledger::new(OverheadBudget::Share(1.0), 0);
    for i in 1..=40u64 {
        // 100 ms each; a burst of 1 s of 10 % in the middle of 3 s, with an idle start.
        let cost = if (15..25).contains(&i) { 10e6 } else { 0.0 };
        ledger.charge(Charge::Burst, None, 1, cost);
        rows.extend(ledger.close_interval(i * 100_000_000, 100_000_000));
    }
    let expect = 100e6 / 900e6;
    assert!((ledger.worst_second() - expect).abs() < 1e-9, "{}", ledger.worst_second());
    let summary = LedgerSummary::from_rows(&rows);
    assert!((summary.worst_second - expect).abs() < 1e-9);
    assert!((summary.worst_second_own - 0.9).abs() < 1e-9, "{summary:?}");
}

#[test]
fn no_rows_no_nan() {
    let sum = LedgerSummary::from_rows(&[]);
    assert_eq!((sum.predicted, sum.worst_second, sum.own_cpu_s), (0.0, 0.0, 0.0));
}

#[test]
fn corrected_prices_are_charged_and_the_calibrated_sum_is_kept() {
    let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
    ledger.charge(Charge::Traced, None, 10, 1_000.0);
    ledger.set_factor(2.0);
    ledger.charge(Charge::Traced, None, 10, 1_000.0);
    // What was measured as such is not corrected.
    ledger.charge(Charge::Attach, None, 1, 300.0);
    ledger.charge(Charge::Screening, None, 2, 200.0);
    ledger.close_interval(1_000_000, 103_500);
    assert_eq!(ledger.charged_ns(), 3_500.0);
    assert!((ledger.predicted() - 0.035).abs() < 1e-12, "{}", ledger.predicted());
    // Nothing of that was compared.
    assert_eq!(ledger.compared(), 0.0);
    ledger.compare(true);
    ledger.charge(Charge::Traced, None, 10, 1_000.0);
    ledger.charge(Charge::Survey, None, 10, 1_000.0);
    // There in windows off as well: not compared, though it counts.
    ledger.charge(Charge::Screening, None, 1, 200.0);
    ledger.charge(Charge::Children, None, 1, 300.0);
    ledger.charge_staying(Charge::Traced, ClassId(7), 10, 500.0);
    // 2,000 + 2,000 + 500 + 1,000 of 105,500 are monitoring.
    ledger.close_interval(2_000_000, 105_500);
    assert!((ledger.compared() - 0.01).abs() < 1e-12, "{}", ledger.compared());
    ledger.compare(false);
    ledger.close_interval(3_000_000, 500_000);
    assert!((ledger.compared() - 0.01).abs() < 1e-12, "time with everything detached does not count");
}

#[test]
fn what_is_granted_at_most_is_granted_while_others_spend() {
    // Of 20 ms/s others take this much; what they leave of a second is less than the bucket holds, or more. However long ticks are:
    // ten of 105 ms are 1.05 s. A plan may take 0.97 of the budget: 0.95 of what is left.
    let cases =
        [(0.0, 5.0), (0.010, 5.0), (0.016, 3.8), (0.018, 1.9), (0.0194, 0.57), (0.020, 0.0), (0.030, 0.0)];
    for (tick_ms, (others, most_ms)) in [20, 100, 105, 110].into_iter().flat_map(|t| cases.map(|c| (t, c))) {
        let mut ledger = Ledger::new(TWO_PERCENT, 0);
        let (mut best_ns, tick_ns) = (0.0_f64, tick_ms * 1_000_000);
        for i in 1..=200_u64 {
            let charged_ns = others * tick_ns as f64;
            ledger.charge(Charge::Traced, None, 1, charged_ns);
            ledger.close_interval(i * tick_ns, tick_ns + charged_ns as u64);
            if i > 100 {
                best_ns = best_ns.max(ledger.available_ns().min(ledger.left_in_second_ns(others)));
            }
        }
        let most_ns = ledger.most_grantable_ns(others);
        assert!((most_ns - most_ms * 1e6).abs() < 1e3, "{tick_ms} ms, {others}: {most_ns}");
        assert!((best_ns - most_ns).abs() < 1e3, "{tick_ms} ms, {others}: {best_ns} of {most_ns}");
    }
    // A cut budget grants less.
    let mut ledger = Ledger::new(TWO_PERCENT, 0);
    ledger.cut_budget(2.0);
    ledger.close_interval(1_000_000_000, 1_000_000_000);
    assert!((ledger.most_grantable_ns(0.0) - 2.5e6).abs() < 1.0);
}

#[test]
fn a_cut_budget_is_cut_in_what_is_allowed_and_in_what_is_earned() {
    for budget in [TWO_PERCENT, OverheadBudget::CpuPerSecond(0.02)] {
        let mut ledger = Ledger::new(budget, 0);
        assert_eq!(ledger.allowed(1.0), 0.02);
        ledger.cut_budget(4.0);
        assert_eq!((ledger.cut(), ledger.allowed(1.0)), (4.0, 0.005));
        let rows = ledger.close_interval(1_000_000_000, 1_000_000_000);
        assert_eq!(rows[0].allowed_ns, 5_000_000, "{budget}");
        assert!((ledger.bucket().rate() - 0.005).abs() < 1e-12);
        // Never more than the user allowed.
        ledger.cut_budget(0.5);
        assert_eq!(ledger.allowed(1.0), 0.02);
    }
    // Idle: the floor; more CPUs: more of a share, as much of a fixed figure.
    let share = Ledger::new(TWO_PERCENT, 0);
    assert_eq!((share.allowed(0.0), share.allowed(2.0)), (0.02 * FLOOR_CPU_PER_S, 0.04));
    assert_eq!(Ledger::new(OverheadBudget::CpuPerSecond(0.02), 0).allowed(2.0), 0.02);
}

#[test]
fn a_second_holds_what_was_charged_in_it() {
    let mut ledger = Ledger::new(TWO_PERCENT, 0);
    for i in 1..=20 {
        ledger.close_interval(i * 100_000_000, 100_000_000);
    }
    // 20 ms/s are earned, of which 19 may wait for a second.
    assert!((ledger.left_in_second_ns(0.0) - 19e6).abs() < 1.0, "{}", ledger.left_in_second_ns(0.0));
    // At once, before the interval is closed, and for a second after.
    ledger.charge(Charge::Survey, None, 1, 6e6);
    assert!((ledger.left_in_second_ns(0.0) - 13e6).abs() < 1.0, "{}", ledger.left_in_second_ns(0.0));
    for i in 21..=30 {
        ledger.close_interval(i * 100_000_000, 100_000_000 + if i == 21 { 6_000_000 } else { 0 });
        assert!((ledger.left_in_second_ns(0.0) - 13e6).abs() < 1e3, "{i}: {}", ledger.left_in_second_ns(0.0));
    }
    ledger.charge(Charge::Survey, None, 1, 16e6);
    assert_eq!(ledger.left_in_second_ns(0.0), 0.0);
}

#[test]
fn a_second_is_no_longer_than_its_budget_whatever_others_are_said_to_spend() {
    let mut ledger = Ledger::new(TWO_PERCENT, 0);
    ledger.close_interval(1_000_000_000, 1_000_000_000);
    for others in [-1.0, 0.0, 0.019, 0.02, 5.0, f64::INFINITY] {
        let (left_ns, most_ns) = (ledger.left_in_second_ns(others), ledger.most_grantable_ns(others));
        assert!((19e6 - 1.0..=20e6 + 1.0).contains(&left_ns), "{others}: {left_ns}");
        assert!((0.0..=5e6 + 1.0).contains(&most_ns), "{others}: {most_ns}");
    }
}

/// A target that works for a tenth of a second and then sleeps.
#[test]
fn what_a_tenth_of_a_second_showed_is_not_spent_for_a_second() {
    let mut ledger = Ledger::new(TWO_PERCENT, 0);
    let left_ns = |ledger: &Ledger| ledger.left_of_second_ns(ledger.allowed_in_second());
    // Before anything is known: what an idle one may cost.
    assert!((left_ns(&ledger) - 1e6).abs() < 1.0, "{}", left_ns(&ledger));
    ledger.close_interval(100_000_000, 100_000_000);
    // 2 ms are earned, and 20 ms/s for as long as a bucket holds.
    assert!((left_ns(&ledger) - 7e6).abs() < 1.0, "{}", left_ns(&ledger));
    ledger.charge(Charge::Traced, None, 1, 5e6);
    assert!((left_ns(&ledger) - 2e6).abs() < 1.0, "{}", left_ns(&ledger));
    // A second of work is one, however it is cut.
    for (part, intervals) in [(8, 8), (10, 10), (25, 25)] {
        let mut ledger = Ledger::new(TWO_PERCENT, 0);
        (1..=intervals)
            .for_each(|i| drop(ledger.close_interval(i * 1_000_000_000 / part, 1_000_000_000 / part)));
        assert!((left_ns(&ledger) - 20e6).abs() < 10.0, "{part}: {}", left_ns(&ledger));
    }
}

#[test]
fn what_is_compared_is_told_at_the_prices_that_are_charged() {
    let mut ledger = Ledger::new(OverheadBudget::Share(0.02), 0);
    ledger.compare(true);
    ledger.charge(Charge::Traced, Some(ClassId(0)), 1, 2e6);
    ledger.charge(Charge::Samples, None, 1, 4e6);
    ledger.close_interval(1_000_000_000, 1_006_000_000);
    let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
    assert!(near(ledger.compared(), 0.006) && near(ledger.compared_at_prices(), 0.006));
    // Samples in traps say it of hits alone, comparisons of all that is compared.
    ledger.set_trap_factor(3.0);
    assert!(near(ledger.compared_at_prices(), 0.010), "{}", ledger.compared_at_prices());
    ledger.set_factor(2.0);
    assert!(near(ledger.compared_at_prices(), 0.012), "{}", ledger.compared_at_prices());
    assert!(near(ledger.compared(), 0.006));
}
