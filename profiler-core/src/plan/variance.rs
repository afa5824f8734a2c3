//! The objective *variance*: small errors instead of many events.
//!
//! For each class one number is wanted (its [`Estimand`]) over a horizon `H`; its error is relative, and `1` is the
//! variance of a number that nothing is known about. In a share `d` of the time every event is seen, so with `F H`
//! events of coefficient of variation `v = sigma / mean`
//!
//! ```text
//! V_burst(d) = A (1/d - 1)     A = dispersion / (F H) * { v^2 for the mean, 1 + v^2 for the total, 1 for the rate }
//! V_sample   = (1 - p) / (s rho H), p = rho / U        for the total only: samples count neither calls nor their times
//! 1 / V(d)   = q + 1 / V_burst(d),  q = 1 + 1 / V_sample          (inverse variances add; the 1 is "nothing known")
//! ```
//!
//! `V_burst` is 0 at `d = 1`, where nothing is left out. The dispersion stands for the variance *between bursts*.
//! Maximised is the weighted variance taken away, `sum W^2 (1 - V)`, under the budget. With `y = 1 - d` and
//! `k = q A - 1`, `V = A y / (1 + k y)`: convex in `d` if `k < 0`, then the best duty at price `mu` is where
//! `1 + k y = W sqrt(A / (mu c))`; with `q = 0` that is `d = W sqrt(A / (mu c))`, Neyman's allocation
//! (`d F` in proportion to `W sigma / sqrt(tau)` for means). If `k >= 0` only the ends of the range can be best.
//! `mu` is found by bisection (water-filling), which also bounds every plan at that `s` by Lagrangian duality; `s` by
//! halving intervals, whose bound takes the samples of the upper end and the budget of the lower.
//!
//! Not done here: derived counts (each class is observed for itself).

use super::least::{Minimum, Ruled, Rules, enough};
use super::model::{SLACK, finish};
use super::{ClassPlan, Decision, Estimand, Options, Plan, PlanClass, PlanError, Problem, Strategy};

/// Smallest gap that the interval search is asked for: its bound closes only in proportion to the width.
const MIN_GAP: f64 = 1e-3;

/// Looks at classes before the search over `s` stops.
const WORK: u64 = 40_000_000;

/// The best plan for [`super::Objective::Variance`].
pub(super) fn solve(problem: &Problem, options: &Options) -> Result<Vec<Plan>, PlanError> {
    problem.validate()?;
    let price = problem.sample_cost();
    let bursts = problem.burst_rules();
    let search =
        Search { problem, min_duty: bursts.min_duty(), charge: bursts.charge(), budget: problem.room() };
    let rules = rules(problem, search.min_duty, search.charge)?;
    let (least, cheapest_s) = rules.least();
    if least > problem.room() * (1.0 + SLACK) {
        return Err(PlanError::infeasible(problem, least));
    }
    let lo = rules.s_min;
    let musts: f64 = problem.classes.iter().filter(|c| c.must_trace).map(PlanClass::trace_cost).sum();
    let affordable = if price > 0.0 { (problem.room() - musts) / price } else { f64::INFINITY };
    let mut hi = problem.sampling.max_hz.min(affordable).max(lo);
    let samples_help = problem.classes.iter().any(|c| {
        let ruled = c.min_rate_hz > 0.0 && !c.must_trace;
        ruled || c.weight > 0.0 && c.estimand == Estimand::Total && c.rho.value > 0.0
    });
    if !samples_help {
        hi = lo;
    } else if hi == f64::INFINITY {
        return Err(PlanError::Unbounded);
    }
    let mut open = vec![Interval { lo, hi, bound: f64::INFINITY }];
    let mut best: Option<Solution> = None;
    let mut work = 0;
    let limit = options.work_limit.unwrap_or(WORK);
    let gap = options.gap.max(MIN_GAP);
    let mut bound = f64::NEG_INFINITY;
    for s in [lo, hi, cheapest_s] {
        search.offer(s, &mut best, &mut work);
    }
    while let Some(next) = (0..open.len()).max_by(|&a, &b| open[a].bound.total_cmp(&open[b].bound)) {
        let interval = open.swap_remove(next);
        let value = best.as_ref().map_or(f64::NEG_INFINITY, |b| b.value);
        if interval.bound <= value + gap * value.abs() || work > limit {
            bound = interval.bound;
            break;
        }
        let ceiling = search.relaxed(interval.hi, interval.lo, &mut work).min(interval.bound);
        if ceiling == f64::NEG_INFINITY {
            continue;
        }
        if interval.hi - interval.lo <= 1e-9 * interval.hi {
            bound = bound.max(ceiling);
            continue;
        }
        let middle = 0.5 * (interval.lo + interval.hi);
        search.offer(middle, &mut best, &mut work);
        open.push(Interval { hi: middle, bound: ceiling, ..interval });
        open.push(Interval { lo: middle, bound: ceiling, ..interval });
    }
    // Within the last bits of the budget.
    let Some(best) = best else { return Err(PlanError::infeasible(problem, least)) };
    Ok(vec![search.plan(&best, bound)])
}

/// The rules of the problem; classes that may not be traced and have a minimum rate raise the least sampling rate.
fn rules(problem: &Problem, min_duty: f64, charge: f64) -> Result<Rules, PlanError> {
    let mut rules = Rules {
        base: 0.0,
        sample_cost: problem.sample_cost(),
        s_min: problem.sampling.min_hz,
        s_max: problem.sampling.max_hz,
        bursts: Some((min_duty, charge)),
        ruled: Vec::new(),
    };
    for class in &problem.classes {
        let wanted_hz = class.min_rate_hz.min(class.traced_hz());
        if class.must_trace {
            rules.base += class.trace_cost();
        } else if wanted_hz > 0.0 && class.never_trace {
            let needed_hz = enough(wanted_hz, class.rho.value);
            if needed_hz > rules.s_max || needed_hz == f64::INFINITY {
                let (class, max_hz) = (class.name.clone(), rules.s_max);
                return Err(PlanError::MinRate { class, needed_hz, max_hz });
            }
            rules.s_min = rules.s_min.max(needed_hz);
        } else if wanted_hz > 0.0 {
            let minimum = Minimum { all_hz: class.traced_hz(), wanted_hz, rho: class.rho.value };
            rules.ruled.push(Ruled { cost: class.trace_cost(), minima: vec![minimum] });
        }
    }
    Ok(rules)
}

/// Relative standard error that a plan leaves on each class's estimand, for a plan made with the objective *variance*.
#[must_use]
pub fn relative_errors(problem: &Problem, plan: &Plan) -> Vec<f64> {
    let error = |(class, planned): (&PlanClass, &ClassPlan)| {
        Terms::new(problem, class, plan.sampling_hz).variance(planned.decision.duty()).sqrt()
    };
    problem.classes.iter().zip(&plan.classes).map(error).collect()
}

#[derive(Debug, Clone, Copy)]
struct Interval {
    lo: f64,
    hi: f64,
    bound: f64,
}

struct Solution {
    value: f64,
    s: f64,
    duties: Vec<f64>,
}

struct Search<'a> {
    problem: &'a Problem,
    min_duty: f64,
    charge: f64,
    budget: f64,
}

/// What decides one class's duty at one `s`.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// `A`.
    a: f64,
    /// `q`.
    q: f64,
    w2: f64,
    cost: f64,
    /// The least duty that the rules allow; 0 if the class may be sampled only.
    floor: f64,
    /// The largest.
    ceiling: f64,
}

impl Terms {
    fn new(problem: &Problem, class: &PlanClass, s: f64) -> Self {
        let events = class.traced_hz() * problem.horizon_s;
        let mean = class.mean_s();
        let v2 = match class.sigma_s {
            Some(sigma) if mean > 0.0 => (sigma / mean).powi(2),
            _ => 1.0,
        };
        let one = match class.estimand {
            Estimand::Mean => v2,
            Estimand::Total => 1.0 + v2,
            Estimand::Rate => 1.0,
        };
        let a = if events > 0.0 { class.dispersion * one / events } else { f64::INFINITY };
        let p = if problem.target_cpu > 0.0 { (class.rho.value / problem.target_cpu).min(1.0) } else { 1.0 };
        let samples = s * class.rho.value * problem.horizon_s;
        // Nobody knows a total better than to one sample.
        let informed = class.estimand == Estimand::Total && samples > 0.0;
        let q = if informed { 1.0 + samples / (1.0 - p).max(1.0 / (1.0 + samples)) } else { 1.0 };
        let wanted = class.min_rate_hz.min(class.traced_hz());
        let sampled = s * class.rho.value;
        let floor = if class.must_trace {
            1.0
        } else if wanted > sampled {
            (wanted - sampled) / (class.traced_hz() - sampled)
        } else {
            0.0
        };
        let ceiling = if class.never_trace { 0.0 } else { 1.0 };
        Self { a, q, w2: class.weight * class.weight, cost: class.trace_cost(), floor, ceiling }
    }

    /// `V(d)`.
    fn variance(&self, duty: f64) -> f64 {
        let y = 1.0 - duty;
        if !self.a.is_finite() {
            return 1.0 / self.q;
        }
        if y <= 0.0 {
            return 0.0;
        }
        // 1 / V = q + d / (A y); with A = 0 any burst tells all.
        if self.a == 0.0 {
            return if duty > 0.0 { 0.0 } else { 1.0 / self.q };
        }
        1.0 / (self.q + duty / (self.a * y))
    }

    /// `W^2 (1 - V)`.
    fn worth(&self, duty: f64) -> f64 {
        self.w2 * (1.0 - self.variance(duty))
    }
}

impl Search<'_> {
    fn spent(&self, t: &Terms, duty: f64) -> f64 {
        let charge = if duty > 0.0 && duty < 1.0 { self.charge } else { 0.0 };
        duty * t.cost + charge
    }

    /// The duty of one class that is best at price `mu`.
    fn best_duty(&self, t: &Terms, mu: f64) -> f64 {
        let low = t.floor.max(self.min_duty).min(1.0);
        let net = |d: f64| t.worth(d) - mu * self.spent(t, d);
        let mut best = (f64::NEG_INFINITY, 0.0);
        let mut consider = |d: f64| {
            let worth = net(d);
            if worth > best.0 {
                best = (worth, d);
            }
        };
        if t.floor <= 0.0 {
            consider(0.0);
        }
        if t.ceiling >= 1.0 {
            consider(low);
            consider(1.0);
            let k = t.q * t.a - 1.0;
            if k < 0.0 && mu > 0.0 && t.cost > 0.0 {
                let y = ((t.w2 * t.a / (mu * t.cost)).sqrt() - 1.0) / k;
                consider((1.0 - y).clamp(low, 1.0));
            }
        }
        best.1
    }

    fn terms(&self, s: f64) -> Option<Vec<Terms>> {
        let terms: Vec<Terms> = self.problem.classes.iter().map(|c| Terms::new(self.problem, c, s)).collect();
        terms.iter().all(|t| t.floor <= t.ceiling).then_some(terms)
    }

    fn allocate(&self, terms: &[Terms], mu: f64, work: &mut u64) -> (Vec<f64>, f64) {
        *work += terms.len() as u64 + 1;
        let duties: Vec<f64> = terms.iter().map(|t| self.best_duty(t, mu)).collect();
        let spent = terms.iter().zip(&duties).map(|(t, &d)| self.spent(t, d)).sum();
        (duties, spent)
    }

    /// The prices between which the allocation passes the room: too dear to fill it, too cheap to fit.
    fn prices(&self, terms: &[Terms], room: f64, work: &mut u64) -> Option<(f64, f64)> {
        if self.allocate(terms, 0.0, work).1 <= room {
            return Some((0.0, 0.0));
        }
        let mut high = 1.0;
        while self.allocate(terms, high, work).1 > room {
            high *= 1e3;
            if high > 1e60 {
                return None;
            }
        }
        let mut low = high;
        while self.allocate(terms, low, work).1 <= room {
            high = low;
            low *= 1e-3;
            if low < 1e-60 {
                break;
            }
        }
        for _ in 0..40 {
            let middle = (low * high).sqrt();
            if self.allocate(terms, middle, work).1 <= room { high = middle } else { low = middle }
        }
        Some((high, low))
    }

    /// An upper bound on every plan with samples as at `s` and the budget that sampling at `paid` leaves.
    fn relaxed(&self, s: f64, paid: f64, work: &mut u64) -> f64 {
        let room = self.budget * (1.0 + SLACK) - paid * self.problem.sample_cost();
        let Some(terms) = self.terms(s) else { return f64::NEG_INFINITY };
        let Some((mu, _)) = self.prices(&terms, room, work) else { return f64::NEG_INFINITY };
        let net = |t: &Terms| {
            let d = self.best_duty(t, mu);
            t.worth(d) - mu * self.spent(t, d)
        };
        (terms.iter().map(net).sum::<f64>() + mu * room) * (1.0 + SLACK)
    }

    /// Keeps the plan at `s` if it is the best yet.
    fn offer(&self, s: f64, best: &mut Option<Solution>, work: &mut u64) {
        let sampling = s * self.problem.sample_cost();
        let Some(terms) = self.terms(s) else { return };
        let room = self.budget * (1.0 + SLACK) - sampling;
        let Some((dear, cheap)) = self.prices(&terms, room, work) else { return };
        let (mut duties, mut spent) = self.allocate(&terms, dear, work);
        // What is left goes to the classes that the cheaper price would give more, the greatest gain first.
        let (wishes, _) = self.allocate(&terms, cheap, work);
        let mut wanting: Vec<usize> = (0..terms.len()).filter(|&i| wishes[i] > duties[i]).collect();
        let gain = |i: usize| {
            let more = self.spent(&terms[i], wishes[i]) - self.spent(&terms[i], duties[i]);
            let worth = terms[i].worth(wishes[i]) - terms[i].worth(duties[i]);
            if more > 0.0 { worth / more } else { f64::INFINITY }
        };
        wanting.sort_by(|&a, &b| gain(b).total_cmp(&gain(a)));
        for i in wanting {
            let t = &terms[i];
            let before = self.spent(t, duties[i]);
            let left = room - spent + before;
            let mut duty = wishes[i];
            if self.spent(t, duty) > left {
                duty = if t.cost > 0.0 { ((left - self.charge) / t.cost).min(wishes[i]) } else { 0.0 };
            }
            let allowed =
                duty >= self.min_duty.max(t.floor) && duty > duties[i] && self.spent(t, duty) <= left;
            if allowed && t.worth(duty) > t.worth(duties[i]) {
                spent += self.spent(t, duty) - before;
                duties[i] = duty;
            }
        }
        let value = terms.iter().zip(&duties).map(|(t, &d)| t.worth(d)).sum();
        if best.as_ref().is_none_or(|b| value > b.value) {
            *best = Some(Solution { value, s, duties });
        }
    }

    fn plan(&self, solution: &Solution, bound: f64) -> Plan {
        let s = solution.s;
        let class = |(class, &duty): (&PlanClass, &f64)| {
            let terms = Terms::new(self.problem, class, s);
            let decision = match duty {
                d if d >= 1.0 => Decision::Trace,
                d if d > 0.0 => Decision::Burst { duty },
                _ => Decision::Sample,
            };
            ClassPlan { decision, cost: self.spent(&terms, duty), value: terms.worth(duty), burst: None }
        };
        let classes: Vec<ClassPlan> = self.problem.classes.iter().zip(&solution.duties).map(class).collect();
        let cost = classes.iter().map(|c| c.cost).sum::<f64>() + s * self.problem.sample_cost();
        let value = classes.iter().map(|c| c.value).sum();
        finish(self.problem, classes, s, cost, value, Strategy::Mixed, bound)
    }
}
