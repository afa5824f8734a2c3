//! The question put to the planner: classes, prices, budget, and the rules that a plan must keep.

use super::PlanError;
use super::figures::{number, percent};
use super::windows::{ClassWindows, WindowRules};
use crate::burst::BurstPrices;
use crate::estimate::Estimate;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What a report is taken to cost where prices are not known, s. Any number would do.
pub const UNPRICED_REPORT_S: f64 = 1e-6;

/// Above this, products of three such numbers could overflow; nothing real comes near.
const LARGEST: f64 = 1e30;

/// A number with the interval that it is known within.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Point estimate; the plan is made with it.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Range {
    /// Its ends lie around its value, and all three are numbers from 0 to 1e30.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        0.0 <= self.low && self.low <= self.value && self.value <= self.high && self.high <= LARGEST
    }
}

impl From<f64> for Range {
    fn from(value: f64) -> Self {
        Self { value, low: value, high: value }
    }
}

impl From<Estimate> for Range {
    fn from(e: Estimate) -> Self {
        Self { value: e.value, low: e.low, high: e.high }
    }
}

/// What the user wants to know of a class, for [`Objective::Variance`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimand {
    /// Mean time per call.
    #[default]
    Mean,
    /// Total time.
    Total,
    /// Calls per second.
    Rate,
}

/// What is maximised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// `InformationValue` of Metz et al. §4: weighted events per second.
    #[default]
    Information,
    /// Calls per second of what takes most of the CPU time to the narrowest interval: minus the mean log of the widths of intervals, weighted with
    /// shares of CPU time.
    Precision,
    /// Weighted relative variance of each class's estimand, as small as can be.
    Variance,
}

impl Objective {
    /// All objectives.
    pub const ALL: [Self; 3] = [Self::Information, Self::Precision, Self::Variance];

    /// The name on the command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Information => "information",
            Self::Precision => "precision",
            Self::Variance => "variance",
        }
    }
}

/// An objective that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no objective '{0}': choose from {names}", names = Objective::ALL.map(Objective::name).join(", "))]
pub struct UnknownObjective(String);

impl FromStr for Objective {
    type Err = UnknownObjective;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|o| o.name() == text).ok_or_else(|| UnknownObjective(text.to_owned()))
    }
}

/// The one shared sampler: its price and the rates it may run at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SamplingRules {
    /// `tau_s`: CPU seconds that one sample takes from the target.
    pub price_s: f64,
    /// Least rate, samples per second of target CPU time (`F_minimal`, Metz et al. §4.3.5).
    pub min_hz: f64,
    /// Largest rate, samples per second of target CPU time; infinite for none.
    pub max_hz: f64,
}

/// How bursts may be made: windows of complete recording, detached in between.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BurstRules {
    /// Shortest window, s.
    pub min_s: f64,
    /// One window is opened per class in each cycle of this length, s.
    pub cycle_s: f64,
    /// CPU seconds taken from the target by attaching and detaching once.
    pub attach_cost_s: f64,
}

impl BurstRules {
    /// `d_min`: the least duty of a burst class.
    #[must_use]
    pub fn min_duty(&self) -> f64 {
        (self.min_s / self.cycle_s).clamp(0.0, 1.0)
    }

    /// Fixed charge of a burst class, CPU s/s.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.attach_cost_s / self.cycle_s
    }
}

impl Default for BurstRules {
    /// Windows of any length, once a second, attached for nothing.
    fn default() -> Self {
        Self { min_s: 0.0, cycle_s: 1.0, attach_cost_s: 0.0 }
    }
}

impl From<BurstRules> for WindowRules {
    fn from(rules: BurstRules) -> Self {
        let usual = Self::default();
        let prices = BurstPrices { attach_s: 0.5 * rules.attach_cost_s, ..usual.prices };
        Self { prices, closest_s: rules.cycle_s, shortest_s: rules.min_s, ..usual }
    }
}

/// One event class as the planner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanClass {
    /// Name shown to people; need not be unique.
    pub name: String,
    /// Class of the recording, if it comes from one.
    pub id: Option<u32>,
    /// `F_i`: events per wall second, interruptions not counted.
    pub rate_hz: Range,
    /// `rho_i`: on-CPU seconds per wall second with the class on the stack.
    pub rho: Range,
    /// `W_i`: information weight.
    pub weight: f64,
    /// `tau_i`: CPU seconds that one traced event takes from the target, detection aside.
    pub tau_s: f64,
    /// CPU seconds to detect an event, recorded or not, while attached (`T_detect`, §4.3.4).
    pub detect_s: f64,
    /// The class must be traced (§4.3.6).
    pub must_trace: bool,
    /// The class cannot or may not be traced.
    pub never_trace: bool,
    /// Least rate of observed events, `F_red,i >= F_min,i` (§4.3.5); 0 for none.
    pub min_rate_hz: f64,
    /// Interruptions per second: each makes one event more to trace, none more to sample (§4.3.2).
    pub interruptions_hz: f64,
    /// Index of the class whose count gives this one's: its count is always `ratio` times that one's (§4.3.1).
    pub derived_from: Option<usize>,
    /// This class's count / the other's.
    pub ratio: f64,
    /// Standard deviation of the time per call, s; `None`: not known, taken as the mean.
    pub sigma_s: Option<f64>,
    /// Variance between bursts / that of independent calls; above 1 for calls that come in waves.
    pub dispersion: f64,
    /// What is wanted of it, for [`Objective::Variance`].
    pub estimand: Estimand,
    /// Calls that were seen while the rate was measured: of a class with 0 the rate only says for how long it was watched. `None`: the
    /// rate is given, nobody measured it.
    #[serde(default)]
    pub calls_seen: Option<u64>,
    /// What windows of it are for, with [`Objective::Precision`].
    #[serde(default)]
    pub windows: ClassWindows,
}

impl PlanClass {
    /// A class with weight 1 and no rules. `tau_s` is the price of one traced event in CPU seconds.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        rate_hz: impl Into<Range>,
        rho: impl Into<Range>,
        tau_s: f64,
    ) -> Self {
        Self {
            name: name.into(),
            id: None,
            rate_hz: rate_hz.into(),
            rho: rho.into(),
            weight: 1.0,
            tau_s,
            detect_s: 0.0,
            must_trace: false,
            never_trace: false,
            min_rate_hz: 0.0,
            interruptions_hz: 0.0,
            derived_from: None,
            ratio: 1.0,
            sigma_s: None,
            dispersion: 1.0,
            estimand: Estimand::default(),
            calls_seen: None,
            windows: ClassWindows::default(),
        }
    }

    /// The same class with another weight.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// `F_i` as traced: interruptions included (§4.3.2), events/s.
    #[must_use]
    pub fn traced_hz(&self) -> f64 {
        self.rate_hz.value + self.interruptions_hz
    }

    /// `c_i = F_i (tau_i + t_detect)`: CPU seconds per second while traced.
    #[must_use]
    pub fn trace_cost(&self) -> f64 {
        self.traced_hz() * (self.tau_s + self.detect_s)
    }

    /// Mean on-CPU time per event, s: `rho / F` (Little's law); 0 for a class without events.
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        if self.rate_hz.value > 0.0 { self.rho.value / self.rate_hz.value } else { 0.0 }
    }
}

/// What costs are shown in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostUnit {
    /// A share of the target's CPU time.
    Share {
        /// CPU seconds that the target uses per wall second.
        target_cpu: f64,
    },
    /// CPU time per second: the target uses none by itself.
    CpuTime,
    /// Reports per second, events and samples alike (`MaxF`): prices are not known.
    Reports {
        /// What a report was taken to cost, s.
        report_s: f64,
    },
}

impl CostUnit {
    /// A cost in CPU s/s as a share of the target's CPU time, where there is one.
    #[must_use]
    pub fn share(self, cost: f64) -> Option<f64> {
        match self {
            Self::Share { target_cpu } => Some(cost / target_cpu),
            Self::CpuTime | Self::Reports { .. } => None,
        }
    }

    /// A cost in CPU s/s as CPU time or reports per second.
    #[must_use]
    pub fn absolute(self, cost: f64) -> String {
        match self {
            Self::Share { .. } | Self::CpuTime => format!("{cost:.3e} CPU s/s"),
            Self::Reports { report_s } => format!("{} reports/s", number(cost / report_s)),
        }
    }

    /// A cost in CPU s/s for a sentence.
    #[must_use]
    pub fn words(self, cost: f64) -> String {
        match self {
            Self::Share { target_cpu } => format!("{} of the target's CPU time", percent(cost / target_cpu)),
            Self::CpuTime => format!("{} CPU s/s", number(cost)),
            Self::Reports { report_s } => format!("{} reports/s", number(cost / report_s)),
        }
    }
}

/// Everything that decides a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// `b`: monitoring CPU seconds per wall second that are allowed.
    pub budget: f64,
    /// Part of it that is kept for bursts which the plan does not make, CPU seconds per wall second: nothing of it goes to what is traced or
    /// sampled.
    pub kept: f64,
    /// Whether prices are measured. If not, only their ratios mean something (the paper's `MaxF`: one price for events
    /// and samples, whatever it is), and costs are shown as reports per second.
    pub priced: bool,
    /// `U`: CPU seconds that the target uses per wall second.
    pub target_cpu: f64,
    /// The sampler.
    pub sampling: SamplingRules,
    /// How bursts may be made; `None`: no class is to be observed in bursts.
    pub burst: Option<BurstRules>,
    /// The same with the prices of links, for [`Objective::Precision`]; with [`Objective::Information`] what the split into traced and sampled leaves
    /// is spent on such bursts.
    #[serde(default)]
    pub windows: Option<WindowRules>,
    /// What is maximised.
    pub objective: Objective,
    /// Time that the estimates shall cover, s, for [`Objective::Precision`] and [`Objective::Variance`].
    pub horizon_s: f64,
    /// The classes.
    pub classes: Vec<PlanClass>,
}

impl Problem {
    /// A problem without classes: budget `b` and `U` in CPU seconds per wall second, price of a sample in CPU
    /// seconds; any sampling rate; no bursts.
    #[must_use]
    pub fn new(budget: f64, target_cpu: f64, sample_price_s: f64) -> Self {
        Self {
            budget,
            kept: 0.0,
            priced: true,
            target_cpu,
            sampling: SamplingRules { price_s: sample_price_s, min_hz: 0.0, max_hz: f64::INFINITY },
            burst: None,
            windows: None,
            objective: Objective::default(),
            horizon_s: 30.0,
            classes: Vec::new(),
        }
    }

    /// What may be given to tracing and sampling, CPU seconds per wall second.
    #[must_use]
    pub fn room(&self) -> f64 {
        self.budget - self.kept
    }

    /// What costs of this problem are shown in.
    #[must_use]
    pub fn cost_unit(&self) -> CostUnit {
        if !self.priced {
            CostUnit::Reports { report_s: UNPRICED_REPORT_S }
        } else if self.target_cpu > 0.0 {
            CostUnit::Share { target_cpu: self.target_cpu }
        } else {
            CostUnit::CpuTime
        }
    }

    /// How bursts may be made; without rules, as one likes and for nothing.
    #[must_use]
    pub fn burst_rules(&self) -> BurstRules {
        self.burst.unwrap_or_default()
    }

    /// How windows may be made; without rules, as [`BurstRules`] say.
    #[must_use]
    pub fn window_rules(&self) -> WindowRules {
        self.windows.unwrap_or_else(|| self.burst.map(WindowRules::from).unwrap_or_default())
    }

    /// `tau_s U`: CPU seconds per second that a sampling rate of 1 costs.
    #[must_use]
    pub fn sample_cost(&self) -> f64 {
        self.sampling.price_s * self.target_cpu
    }

    /// Checks every number.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] with the first number that is out of range.
    pub fn validate(&self) -> Result<(), PlanError> {
        let check = |class: Option<&str>, field: &'static str, value: f64, ok: bool, accepted| {
            if ok && value <= LARGEST {
                Ok(())
            } else {
                Err(PlanError::Invalid { class: class.map(str::to_owned), field, value, accepted })
            }
        };
        let positive = "a number above 0 and at most 1e30";
        let not_negative = "a number from 0 to 1e30";
        let top = |field, value: f64, ok, accepted| check(None, field, value, ok, accepted);
        top("budget", self.budget, self.budget > 0.0, positive)?;
        let leaves = (0.0..self.budget).contains(&self.kept);
        top("kept for bursts", self.kept, leaves, "a number from 0 to below the budget")?;
        top("target_cpu", self.target_cpu, self.target_cpu >= 0.0, not_negative)?;
        let s = &self.sampling;
        top("sample price", s.price_s, s.price_s >= 0.0, not_negative)?;
        top("min_sampling_hz", s.min_hz, s.min_hz >= 0.0, not_negative)?;
        let max_hz = if s.max_hz == f64::INFINITY { s.min_hz } else { s.max_hz };
        top("max_sampling_hz", max_hz, max_hz >= s.min_hz, "a number from min_sampling_hz to 1e30")?;
        let burst = self.burst_rules();
        top("burst cycle", burst.cycle_s, burst.cycle_s > 0.0, positive)?;
        let fits = (0.0..=burst.cycle_s).contains(&burst.min_s);
        top("min_burst", burst.min_s, fits, "a number from 0 to the burst cycle")?;
        top("attach_cost", burst.attach_cost_s, burst.attach_cost_s >= 0.0, not_negative)?;
        top("horizon", self.horizon_s, self.horizon_s > 0.0, positive)?;
        let windows = self.window_rules();
        for (field, value) in [
            ("closest_windows", windows.closest_s),
            ("most_windows", windows.most_per_s.min(LARGEST)),
            ("burst limit", windows.limit_s.unwrap_or(LARGEST)),
        ] {
            top(field, value, value > 0.0, positive)?;
        }
        for (field, value) in [("shortest_window", windows.shortest_s), ("brief_windows", windows.brief_s)] {
            top(field, value, value >= 0.0, not_negative)?;
        }
        for (index, class) in self.classes.iter().enumerate() {
            let at = |field, value: f64, ok, accepted| check(Some(&class.name), field, value, ok, accepted);
            for (field, range) in [("rate_hz", class.rate_hz), ("rho", class.rho)] {
                at(field, range.value, range.value >= 0.0, not_negative)?;
                at(field, range.low, range.low >= 0.0, not_negative)?;
                at(field, range.low, range.low <= range.value, "an interval that holds the value")?;
                at(field, range.high, range.high >= range.value, "an interval that holds the value")?;
            }
            for (field, value) in [
                ("weight", class.weight),
                ("cost", class.tau_s),
                ("detect", class.detect_s),
                ("min_rate_hz", class.min_rate_hz),
                ("interruptions_hz", class.interruptions_hz),
                ("dispersion", class.dispersion),
                ("sigma", class.sigma_s.unwrap_or(0.0)),
                ("spread", class.windows.spread),
            ] {
                at(field, value, value >= 0.0, not_negative)?;
            }
            at("ratio", class.ratio, class.ratio > 0.0, positive)?;
            let both = class.must_trace && class.never_trace;
            at("must_trace", 1.0, !both, "not together with never_trace")?;
            if let Some(from) = class.derived_from {
                let ok = from < self.classes.len() && from != index;
                #[expect(clippy::cast_precision_loss, reason = "shown in an error only")]
                at("derived_from", from as f64, ok, "the index of another class")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Range;

    #[test]
    fn a_range_holds_its_value_and_is_of_numbers() {
        let good = Range { value: 2.0, low: 1.0, high: 3.0 };
        assert!(good.is_valid() && Range::from(0.0).is_valid());
        for bad in [
            Range { high: f64::NAN, ..good },
            Range { low: f64::NAN, ..good },
            Range { value: f64::NAN, ..good },
            Range { high: f64::INFINITY, ..good },
            Range { low: 2.5, ..good },
            Range { low: -1.0, ..good },
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
    }
}
