//! What the rules cost at least: the smallest budget with which a problem has a plan at all.
//!
//! At a sampling rate `s` a class with a minimum rate (Metz et al. §4.3.5) is seen often enough by samples from
//! `s = F_min / rho` on; below that it must be traced, or be in bursts of duty `(F_min - s rho) / (F - s rho)`. So
//!
//! ```text
//! least(s) = base + s sample_cost + sum over classes with F_min > s rho of min(c, d(s) c + charge)
//! ```
//!
//! Each term is concave in `s` between the rates at which it changes its form: the sum is smallest at one of those
//! rates or at an end, and all of them are tried. Where derived classes share one probe the duty is the largest that
//! one of them needs; two such curves cross at most once, and the crossings are tried as well.

/// More rates than this are thinned out evenly: the figure is then a budget that would do, not the very least.
const MAX_RATES: usize = 4_096;

/// A class with a minimum rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Minimum {
    /// `F`, events/s.
    pub all_hz: f64,
    /// `F_min`, at most `F`, events/s.
    pub wanted_hz: f64,
    /// `rho`, CPU s/s.
    pub rho: f64,
}

impl Minimum {
    /// Least duty at `s`; above 0 only where samples do not see enough.
    pub fn duty(self, s: f64) -> f64 {
        let seen = s * self.rho;
        if self.wanted_hz > seen { (self.wanted_hz - seen) / (self.all_hz - seen) } else { 0.0 }
    }
}

/// Classes that one probe serves, of which at least one has a minimum rate.
#[derive(Debug, Clone)]
pub(super) struct Ruled {
    /// `c`: CPU s/s while traced.
    pub cost: f64,
    pub minima: Vec<Minimum>,
}

/// The rules of a problem.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// Cost of what must be traced.
    pub base: f64,
    /// `tau_s U`.
    pub sample_cost: f64,
    pub s_min: f64,
    pub s_max: f64,
    /// Bursts, if they are allowed: least duty and fixed charge.
    pub bursts: Option<(f64, f64)>,
    pub ruled: Vec<Ruled>,
}

impl Rules {
    /// The least cost, and the sampling rate that has it.
    pub fn least(&self) -> (f64, f64) {
        let mut best = (f64::INFINITY, self.s_min);
        for s in self.rates() {
            let cost = self.cost(s);
            if cost < best.0 {
                best = (cost, s);
            }
        }
        best
    }

    /// `least(s)`.
    fn cost(&self, s: f64) -> f64 {
        let one = |ruled: &Ruled| {
            let duty = ruled.minima.iter().map(|m| m.duty(s)).fold(0.0, f64::max);
            match self.bursts {
                _ if duty <= 0.0 => 0.0,
                Some((least, charge)) => ruled.cost.min(duty.max(least).min(1.0) * ruled.cost + charge),
                None => ruled.cost,
            }
        };
        self.base + s * self.sample_cost + self.ruled.iter().map(one).sum::<f64>()
    }

    /// Rates at which the cost may be smallest.
    fn rates(&self) -> Vec<f64> {
        let mut rates = vec![self.s_min];
        for ruled in &self.ruled {
            for (place, m) in ruled.minima.iter().enumerate() {
                // Rounded up: at this rate the samples must do.
                rates.push(enough(m.wanted_hz, m.rho));
                let Some((least, _)) = self.bursts else { continue };
                if least < 1.0 {
                    rates.push((m.wanted_hz - least * m.all_hz) / (m.rho * (1.0 - least)));
                }
                for n in &ruled.minima[..place] {
                    let over = m.wanted_hz * n.all_hz - n.wanted_hz * m.all_hz;
                    let under =
                        m.wanted_hz * n.rho + n.all_hz * m.rho - n.wanted_hz * m.rho - m.all_hz * n.rho;
                    rates.push(over / under);
                }
            }
        }
        rates.retain(|s| (self.s_min..=self.s_max).contains(s));
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let step = rates.len().div_ceil(MAX_RATES);
        rates.into_iter().step_by(step).collect()
    }
}

/// The least `s` with `s rho >= wanted`, rounding included.
pub(super) fn enough(wanted_hz: f64, rho: f64) -> f64 {
    let s = wanted_hz / rho;
    if s * rho >= wanted_hz { s } else { s.next_up() }
}
