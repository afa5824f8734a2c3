//! The ledger: the running account of what monitoring has cost, and the token bucket that bounds it.
//!
//! What it is: charges per class and interval (`hits x tau + samples x tau_s + switches x tau_switch + attach
//! and detach`), the tokens that are left to spend, the budget of single threads, the predicted overhead.
//! Why here: every spender (survey, plan, controller) must ask the same account, and the account must be
//! computable again from a recording.
//! Inputs: units and prices, CPU time of the target, interval ends; outputs: [`LedgerRow`]s and tokens.
//! What it does not do: it reads no clock and counts nothing itself; it detaches nothing.

mod bucket;
mod charge;
mod correction;
mod in_traps;
mod merge;
mod threads;

pub use bucket::{FLOOR_CPU_PER_S, HOLD_S, TokenBucket};
pub use correction::{Correction, waiting_factor};
pub use in_traps::InTraps;
pub use merge::Merger;
pub use threads::{Load, Notices, Slice, Spread, ThreadBounds, ThreadBudget, ThreadOver};

use crate::class::ClassId;
use crate::cost::Price;
use crate::recording::{Charge, LedgerRow};
use crate::units::OverheadBudget;
use std::collections::BTreeMap;

/// Units and cost of one account.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Account {
    /// Hits, samples, switches or operations.
    pub units: u64,
    /// Cost, ns of CPU time.
    pub cost_ns: f64,
}

impl Account {
    fn add(&mut self, units: u64, cost_ns: f64) {
        self.units = self.units.saturating_add(units);
        self.cost_ns += cost_ns;
    }
}

/// What can wait takes so much of what others leave of a second's budget: they do not spend evenly.
const SECOND_PART: f64 = 0.95;

type Accounts = BTreeMap<(Charge, Option<u32>), Account>;

/// The account of one run.
#[derive(Debug, Clone)]
pub struct Ledger {
    bucket: TokenBucket,
    last_ns: u64,
    open: Accounts,
    total: Accounts,
    /// (length, charged, target CPU) of the closed intervals of the last second and a bit, ns.
    recent: Vec<Interval>,
    target_cpu_ns: f64,
    charged_ns: f64,
    worst_second: f64,
    /// On the calibrated prices of hits, samples and switches, by comparisons; `None`: they have said nothing.
    factor: Option<f64>,
    /// The same of hits alone, by samples in traps, and what they were charged at calibrated prices since it was asked for, ns.
    trap_factor: f64,
    hits_ns: f64,
    /// The open interval is like those that a comparison calls on, ...
    compared: bool,
    /// ... in which this was charged at calibrated prices, and the target's own CPU time was that, ns.
    compared_ns: f64,
    compared_hits_ns: f64,
    compared_own_ns: f64,
}

#[derive(Debug, Clone, Copy)]
struct Interval {
    length_ns: f64,
    charged_ns: f64,
    target_cpu_ns: f64,
}

impl Ledger {
    /// An empty account that starts at `start_ns` (ktime) with an empty bucket.
    #[must_use]
    pub fn new(budget: OverheadBudget, start_ns: u64) -> Self {
        Self {
            bucket: TokenBucket::new(budget),
            last_ns: start_ns,
            open: Accounts::new(),
            total: Accounts::new(),
            recent: Vec::new(),
            target_cpu_ns: 0.0,
            charged_ns: 0.0,
            worst_second: 0.0,
            factor: None,
            trap_factor: 1.0,
            hits_ns: 0.0,
            compared: false,
            compared_ns: 0.0,
            compared_hits_ns: 0.0,
            compared_own_ns: 0.0,
        }
    }

    /// The target begins to run now (ktime ns): what was charged before is owed, and nothing was earned.
    pub fn begin(&mut self, now_ns: u64) {
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// From now on hits, samples and switches cost this much more than calibrated (see [`Correction`]).
    pub fn set_factor(&mut self, factor: f64) {
        self.factor = Some(factor);
    }

    /// From now on the budget is this many times smaller (see [`waiting_factor`]).
    pub fn cut_budget(&mut self, factor: f64) {
        self.bucket.cut(factor);
    }

    /// What may be spent while the target uses `cpu_per_s` CPU s/s by itself, CPU s/s: the budget over its cut. Everything that
    /// is bounded by a part of the budget asks here, see [`TokenBucket::allowed`].
    #[must_use]
    pub fn allowed(&self, cpu_per_s: f64) -> f64 {
        self.bucket.allowed(cpu_per_s)
    }

    /// See [`Ledger::cut_budget`].
    #[must_use]
    pub fn cut(&self) -> f64 {
        self.bucket.cut_by()
    }

    /// See [`Ledger::set_factor`].
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.factor.unwrap_or(1.0)
    }

    /// From now on hits cost this much more than calibrated, unless a comparison says otherwise (see [`InTraps`]).
    pub fn set_trap_factor(&mut self, factor: f64) {
        self.trap_factor = factor;
    }

    /// How much more hits cost than calibrated: by the comparison of windows, which sees everything that a hit takes, else by samples in traps.
    #[must_use]
    pub fn hit_factor(&self) -> f64 {
        self.factor.unwrap_or(self.trap_factor)
    }

    /// What hits were charged at calibrated prices since the last call, ns.
    pub fn take_hits_ns(&mut self) -> f64 {
        std::mem::take(&mut self.hits_ns)
    }

    /// From now on, is what is charged what a comparison with everything detached shows? Not in a survey, not while everything
    /// is detached.
    pub fn compare(&mut self, compared: bool) {
        self.compared = compared;
    }

    /// What measured overhead has to be compared with: what hits, samples and switches took in the time that counts (see
    /// [`Ledger::compare`]), at calibrated prices, as a share of the target's own CPU time in it. 0 before there is any.
    #[must_use]
    pub fn compared(&self) -> f64 {
        if self.compared_own_ns > 0.0 { self.compared_ns / self.compared_own_ns } else { 0.0 }
    }

    /// The same at the prices that are charged now.
    #[must_use]
    pub fn compared_at_prices(&self) -> f64 {
        let ns = self.compared_hits_ns * self.hit_factor()
            + (self.compared_ns - self.compared_hits_ns) * self.factor();
        if self.compared_own_ns > 0.0 { ns / self.compared_own_ns } else { 0.0 }
    }

    /// Charges `cost_ns` ns for `units`. Costs that are not finite or negative count as 0.
    ///
    /// Tokens are taken at once, so that two spenders in one interval cannot spend the same token.
    pub fn charge(&mut self, charge: Charge, class: Option<ClassId>, units: u64, cost_ns: f64) {
        self.take(charge, class, units, cost_ns, self.compared && charge.is_compared());
    }

    /// The same for a class that stays attached while everything else is detached: no comparison shows what it costs.
    pub fn charge_staying(&mut self, charge: Charge, class: ClassId, units: u64, cost_ns: f64) {
        self.take(charge, Some(class), units, cost_ns, false);
    }

    fn take(&mut self, charge: Charge, class: Option<ClassId>, units: u64, cost_ns: f64, compared: bool) {
        let cost_ns = if cost_ns.is_finite() { cost_ns.max(0.0) } else { 0.0 };
        if units == 0 && cost_ns == 0.0 {
            return;
        }
        let calibrated_ns = cost_ns;
        self.hits_ns += if charge.is_hit() { calibrated_ns } else { 0.0 };
        let factor = if charge.is_hit() { self.hit_factor() } else { self.factor() };
        let cost_ns = if charge.is_corrected() { cost_ns * factor } else { cost_ns };
        self.open.entry((charge, class.map(|c| c.0))).or_default().add(units, cost_ns);
        if charge.counts() {
            self.bucket.spend(cost_ns);
        }
        if compared {
            self.compared_ns += calibrated_ns;
            self.compared_hits_ns += if charge.is_hit() { calibrated_ns } else { 0.0 };
        }
    }

    /// Charges `units` at `price` each: hits x tau, samples x tau_s, switches x tau_switch, links x attach.
    pub fn charge_units(&mut self, charge: Charge, class: Option<ClassId>, units: u64, price: Price) {
        // u64 to f64 rounds above 2^53 units, far beyond any interval.
        self.charge(charge, class, units, units as f64 * price.ns);
    }

    /// Closes the interval that ends at `now_ns`, in which the target used `target_cpu_ns` ns of CPU time,
    /// monitoring included, and returns its rows, in the order of charge and class.
    ///
    /// There is always at least one row, so that the CPU time of every interval is in the recording. An end
    /// that does not lie after the last one closes nothing.
    pub fn close_interval(&mut self, now_ns: u64, target_cpu_ns: u64) -> Vec<LedgerRow> {
        let length_ns = now_ns.saturating_sub(self.last_ns);
        if length_ns == 0 {
            return Vec::new();
        }
        self.last_ns = now_ns;
        let charged_ns = sum_counted(&self.open);
        let allowed_ns = self.bucket.accrue(length_ns as f64, target_cpu_ns as f64, charged_ns);
        self.note_second(Interval {
            length_ns: length_ns as f64,
            charged_ns,
            target_cpu_ns: target_cpu_ns as f64,
        });
        self.target_cpu_ns += target_cpu_ns as f64;
        self.charged_ns += charged_ns;
        if self.compared {
            self.compared_own_ns += (target_cpu_ns as f64 - charged_ns).max(0.0);
        }
        if self.open.is_empty() {
            self.open.insert((Charge::Samples, None), Account::default());
        }
        let row = |(charge, class_id): (Charge, Option<u32>), account: Account| LedgerRow {
            time_ns: now_ns,
            interval_ns: length_ns,
            charge,
            class_id,
            units: account.units,
            cost_ns: account.cost_ns.round() as u64,
            target_cpu_ns,
            allowed_ns: allowed_ns.round() as u64,
        };
        let rows = self.open.iter().map(|(key, account)| row(*key, *account)).collect();
        for (key, account) in std::mem::take(&mut self.open) {
            self.total.entry(key).or_default().add(account.units, account.cost_ns);
        }
        rows
    }

    fn note_second(&mut self, interval: Interval) {
        self.recent.push(interval);
        let mut length: f64 = self.recent.iter().map(|i| i.length_ns).sum();
        // Keep the shortest run of intervals that still spans a second.
        while length - self.recent[0].length_ns >= 1e9 {
            length -= self.recent.remove(0).length_ns;
        }
        if length >= 1e9 {
            self.worst_second = self.worst_second.max(overhead_of(&self.recent));
        }
    }

    /// CPU time that may be spent now, ns; never negative.
    #[must_use]
    pub fn available_ns(&self) -> f64 {
        self.bucket.available_ns()
    }

    /// What may be charged now so that the last second and the next stay within the budget, while others go on spending
    /// `others_per_s` (CPU s/s), ns; never negative. A full bucket and what a second earns are a quarter more than a second's
    /// budget: what can wait (a survey) asks here, too.
    #[must_use]
    pub fn left_in_second_ns(&self, others_per_s: f64) -> f64 {
        let rate = self.bucket.rate();
        let others = others_per_s.clamp(0.0, rate);
        let second_ns = (others + SECOND_PART * (rate - others)) * 1e9;
        let spent: f64 = self.recent.iter().map(|i| i.charged_ns).sum();
        // The intervals span a second and up to one interval more.
        let length_ns: f64 = self.recent.iter().map(|i| i.length_ns).sum();
        (second_ns - spent * 1e9 / length_ns.max(1e9) - sum_counted(&self.open)).max(0.0)
    }

    /// What the budget allows at the CPU time that the target has used by itself in the last second, CPU s/s.
    #[must_use]
    pub fn allowed_in_second(&self) -> f64 {
        let sum = |of: fn(&Interval) -> f64| self.recent.iter().map(of).sum::<f64>();
        let own_ns = sum(|i| i.target_cpu_ns) - sum(|i| i.charged_ns);
        self.bucket.allowed(own_ns.max(0.0) / sum(|i| i.length_ns).max(1.0))
    }

    /// What is left of a second in which `allowed` CPU s/s may be charged, whoever spent the rest, ns; never negative.
    ///
    /// In the first second `allowed` comes from less than a second, and the target may have worked by chance in just that time: then what
    /// was earned so far may be charged, and what a bucket holds.
    #[must_use]
    pub fn left_of_second_ns(&self, allowed: f64) -> f64 {
        let spent: f64 = self.recent.iter().map(|i| i.charged_ns).sum();
        let length_ns: f64 = self.recent.iter().map(|i| i.length_ns).sum();
        // Before the first interval `allowed` is what an idle target may cost.
        let earned_ns = if length_ns > 0.0 { (length_ns + HOLD_S * 1e9).min(1e9) } else { 1e9 };
        (allowed * earned_ns - spent * 1e9 / length_ns.max(1e9) - sum_counted(&self.open)).max(0.0)
    }

    /// The most that [`Ledger::available_ns`] and [`Ledger::left_in_second_ns`] will both grant while others go on spending
    /// `others_per_s` (CPU s/s), ns; never negative, and 0 only where they leave nothing of the budget. Who needs more at once
    /// waits for ever.
    #[must_use]
    pub fn most_grantable_ns(&self, others_per_s: f64) -> f64 {
        let rate = self.bucket.rate();
        let second_ns = SECOND_PART * (rate - others_per_s.max(0.0)) * 1e9;
        self.bucket.capacity_ns().min(second_ns).max(0.0)
    }

    /// The bucket.
    #[must_use]
    pub fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    /// All charges so far, open interval included, that count against the budget, ns.
    #[must_use]
    pub fn charged_ns(&self) -> f64 {
        self.charged_ns + sum_counted(&self.open)
    }

    /// CPU time of the target in the closed intervals, monitoring included, ns.
    #[must_use]
    pub fn target_cpu_ns(&self) -> f64 {
        self.target_cpu_ns
    }

    /// Units and cost of one kind of charge so far, all classes together.
    #[must_use]
    pub fn account(&self, charge: Charge) -> Account {
        let mut sum = Account::default();
        for ((c, _), account) in self.total.iter().chain(&self.open) {
            if *c == charge {
                sum.add(account.units, account.cost_ns);
            }
        }
        sum
    }

    /// Cost of one class so far, all kinds of charge together.
    #[must_use]
    pub fn class_account(&self, class: ClassId) -> Account {
        let mut sum = Account::default();
        for ((_, c), account) in self.total.iter().chain(&self.open) {
            if *c == Some(class.0) {
                sum.add(account.units, account.cost_ns);
            }
        }
        sum
    }

    /// Predicted overhead so far: charged / (target CPU - charged); 0 before the first interval.
    #[must_use]
    pub fn predicted(&self) -> f64 {
        let own = self.target_cpu_ns - self.charged_ns;
        if own > 0.0 { self.charged_ns / own } else { 0.0 }
    }

    /// Largest overhead of any second so far (0 until one has passed).
    #[must_use]
    pub fn worst_second(&self) -> f64 {
        self.worst_second
    }
}

fn sum_counted(accounts: &Accounts) -> f64 {
    accounts.iter().filter(|((charge, _), _)| charge.counts()).map(|(_, a)| a.cost_ns).sum()
}

/// CPU time that the target had for itself, s/s.
fn own_of(intervals: &[Interval]) -> f64 {
    let sum = |of: fn(&Interval) -> f64| intervals.iter().map(of).sum::<f64>();
    (sum(|i| i.target_cpu_ns) - sum(|i| i.charged_ns)).max(0.0) / sum(|i| i.length_ns).max(1.0)
}

/// charged / own CPU time, the latter not below what the bucket's floor takes for granted.
fn overhead_of(intervals: &[Interval]) -> f64 {
    let length: f64 = intervals.iter().map(|i| i.length_ns).sum();
    let charged: f64 = intervals.iter().map(|i| i.charged_ns).sum();
    let cpu: f64 = intervals.iter().map(|i| i.target_cpu_ns).sum();
    let own = (cpu - charged).max(FLOOR_CPU_PER_S * length);
    if own > 0.0 { charged / own } else { 0.0 }
}

/// What a recorded ledger adds up to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerSummary {
    /// Cost by kind of charge, s.
    pub spent_s: BTreeMap<Charge, f64>,
    /// Cost that counts against the budget, s.
    pub charged_s: f64,
    /// Of that, what was not charged for traps of classes, s: a function that counts the progress metric is one.
    pub beside_traps_s: f64,
    /// CPU time that the target used by itself, s.
    pub own_cpu_s: f64,
    /// What the budget allowed, s.
    pub allowed_s: f64,
    /// Time covered by the rows, s.
    pub length_s: f64,
    /// charged / own.
    pub predicted: f64,
    /// Largest overhead of any second; of the whole if that is shorter than a second.
    pub worst_second: f64,
    /// CPU time that the target had for itself in that second, s/s.
    pub worst_second_own: f64,
}

impl LedgerSummary {
    /// What interrupts calls without a probe of theirs, CPU s: samples, switches, attaching, screening.
    #[must_use]
    pub fn interrupts_s(&self) -> f64 {
        let of = [Charge::Samples, Charge::Switches, Charge::Attach, Charge::Screening];
        of.iter().filter_map(|charge| self.spent_s.get(charge)).sum()
    }

    /// Adds up rows, in whatever order they come.
    #[must_use]
    pub fn from_rows(rows: &[LedgerRow]) -> Self {
        let mut sum = Self::default();
        let mut intervals: BTreeMap<u64, (Interval, f64)> = BTreeMap::new();
        for row in rows {
            let cost = row.cost_ns as f64;
            *sum.spent_s.entry(row.charge).or_insert(0.0) += cost * 1e-9;
            // CPU time and allowance are of the interval, and repeated on each of its rows.
            let (interval, _) = intervals.entry(row.time_ns).or_insert((
                Interval {
                    length_ns: row.interval_ns as f64,
                    charged_ns: 0.0,
                    target_cpu_ns: row.target_cpu_ns as f64,
                },
                row.allowed_ns as f64,
            ));
            if row.charge.counts() {
                interval.charged_ns += cost;
                let by_function = row.charge == Charge::Progress && row.class_id.is_some();
                let in_traps = matches!(row.charge, Charge::Traced | Charge::Burst | Charge::Survey);
                sum.beside_traps_s += if in_traps || by_function { 0.0 } else { cost * 1e-9 };
            }
        }
        let list: Vec<Interval> = intervals.values().map(|(i, _)| *i).collect();
        let total = |f: fn(&Interval) -> f64| list.iter().map(f).sum::<f64>() * 1e-9;
        sum.charged_s = total(|i| i.charged_ns);
        sum.length_s = total(|i| i.length_ns);
        sum.own_cpu_s = (total(|i| i.target_cpu_ns) - sum.charged_s).max(0.0);
        sum.allowed_s = intervals.values().map(|(_, allowed)| allowed * 1e-9).sum();
        sum.predicted = if sum.own_cpu_s > 0.0 { sum.charged_s / sum.own_cpu_s } else { 0.0 };
        (sum.worst_second, sum.worst_second_own) = worst_second(&list);
        sum
    }
}

/// Largest overhead over any run of intervals that just spans a second, and what the target had for itself then.
fn worst_second(intervals: &[Interval]) -> (f64, f64) {
    let mut worst = (0.0_f64, 0.0);
    let (mut first, mut length) = (0, 0.0);
    for (last, interval) in intervals.iter().enumerate() {
        length += interval.length_ns;
        while length - intervals[first].length_ns >= 1e9 {
            length -= intervals[first].length_ns;
            first += 1;
        }
        if length >= 1e9 {
            let second = &intervals[first..=last];
            let overhead = overhead_of(second);
            if overhead > worst.0 {
                worst = (overhead, own_of(second));
            }
        }
    }
    if length < 1e9 && first == 0 { (overhead_of(intervals), own_of(intervals)) } else { worst }
}

#[cfg(test)]
mod tests;
