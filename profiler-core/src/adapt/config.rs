//! The constants of the policies: the paper's as defaults, every one a field.

use serde::{Deserialize, Serialize};

/// Settings of all policies. Defaults are those of Mertz and Nunes §4.1.4 and §3.4, except where marked ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptConfig {
    /// Sampling rate at the start, recorded / all operations.
    pub rate: f64,
    /// Desired, and highest, sampling rate (*maxRate*).
    pub max_rate: f64,
    /// Lowest sampling rate (*minRate*); above 0, because a rate of 0 could never rise again (§3.3).
    pub min_rate: f64,
    /// Time between revisions of the rate, s (*frequency*).
    pub revise_s: f64,
    /// Length of a baseline with monitoring off, s (*duration*).
    pub baseline_s: f64,
    /// Longest monitoring cycle, s (*maxLength*).
    pub max_cycle_s: f64,
    /// Significance of Algorithm 2's t-test.
    pub alpha: f64,
    /// Slack of Algorithm 1's balance test (epsilon), a difference of shares. The paper names no figure: 0.
    pub balance_slack: f64,
    /// Margin of error of Cochran's sample size (e).
    pub sample_margin: f64,
    /// Variability of the population in Cochran's sample size (p).
    pub variability: f64,
    /// Records that *performanceRef* keeps. The paper bounds it without a figure; ours is the longest cycle in seconds.
    pub table_records: usize,
    /// Fewest common classes for a paired test; below, Welch's (ours).
    pub paired_least_classes: usize,
    /// Algorithm 3 compares response times less the price of recording (ours). Off is as printed: operations that
    /// recording slows then differ from their population, and the better the sample the surer.
    pub correct_for_price: bool,
    /// `inv`: the reference throughput is the median of this many first seconds (ours).
    pub inv_reference_s: f64,
    /// `tithe`: the sample's mean is equivalent to the population's within this share of it.
    pub equivalence_margin: f64,
    /// `tithe`: highest rate of one class; the mean over all classes still keeps to `max_rate`.
    pub class_max_rate: f64,
    /// `tithe`: 0 allocates for the mean of each class alike, 1 for the mean over all operations (Neyman 1934);
    /// between them Bankier's power allocation (1988).
    pub allocation_power: f64,
    /// `tithe`: which errors count. 0: absolute ones, in the measure's unit; 1: relative ones, each as a share of its class's
    /// mean; between them the error is divided by that power of the mean.
    pub allocation_relative: f64,
    /// `tithe`: what recording may cost, as a share of what the same rate costs without allocation. At 0.45 it
    /// costs less than `adp`, whose balance test refuses about a third of what is drawn.
    pub tithe_share: f64,
    /// `tithe` where the functions inside operations are attached in slices: their share of the time, as a share of the rate. In them
    /// every operation is recorded, whose traps are paid anyway.
    pub tithe_attach: f64,
    /// Where it is cheaper, the functions inside operations are attached for a share of the time, and more is drawn in it (ours).
    pub attach_share: bool,
    /// `tithe`: a class's rate is changed only if it would move by more than this share (hysteresis: strata are
    /// stretches of constant rate).
    pub rate_step: f64,
    /// Operation classes that are told apart; further names share an overflow class.
    pub max_classes: usize,
}

impl Default for AdaptConfig {
    fn default() -> Self {
        Self {
            rate: 0.5,
            max_rate: 0.5,
            min_rate: 0.01,
            revise_s: 1.0,
            baseline_s: 3.0,
            max_cycle_s: 180.0,
            alpha: 0.05,
            balance_slack: 0.0,
            sample_margin: 0.05,
            variability: 0.5,
            table_records: 180,
            paired_least_classes: 5,
            correct_for_price: true,
            inv_reference_s: 60.0,
            equivalence_margin: 0.05,
            class_max_rate: 1.0,
            allocation_power: 0.0,
            allocation_relative: 1.0,
            tithe_share: 0.45,
            tithe_attach: 0.8,
            attach_share: true,
            rate_step: 0.1,
            max_classes: 1_024,
        }
    }
}

/// A setting outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the setting '{field}' is {value}: it must be {accepted}")]
pub struct ConfigError {
    /// Name of the field.
    pub field: &'static str,
    /// The value seen.
    pub value: f64,
    /// What is accepted.
    pub accepted: &'static str,
}

impl AdaptConfig {
    /// These settings with some changed, each written `KEY=VALUE`, and checked.
    ///
    /// # Errors
    /// What is wrong, in words: no `=`, an unknown setting, a value out of its range.
    pub fn with<S: AsRef<str>>(&self, settings: &[S]) -> Result<Self, String> {
        let mut table = toml::Table::try_from(self).map_err(|e| e.to_string())?;
        for setting in settings {
            let setting = setting.as_ref();
            let (key, text) = setting
                .split_once('=')
                .ok_or_else(|| format!("'{setting}': write KEY=VALUE, like 'max_rate=0.2'"))?;
            let (key, text) = (key.trim(), text.trim());
            let names = || table.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let old = table
                .get(key)
                .ok_or_else(|| format!("'{setting}': there is no setting '{key}'; there are {}", names()))?;
            let value = match old {
                toml::Value::Integer(_) => text.parse().ok().map(toml::Value::Integer),
                toml::Value::Boolean(_) => text.parse().ok().map(toml::Value::Boolean),
                _ => text.parse().ok().map(toml::Value::Float),
            };
            let kind = old.type_str();
            let value = value.ok_or_else(|| format!("'{setting}': '{text}' is no {kind}"))?;
            table.insert(key.to_owned(), value);
        }
        let config: Self = table.try_into().map_err(|e: toml::de::Error| e.message().to_owned())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let all = self.rates_and_cycles().into_iter().chain(self.judgements()).chain(self.policies());
        for (field, value, holds, accepted) in all {
            if !holds {
                return Err(ConfigError { field, value, accepted });
            }
        }
        Ok(())
    }

    /// Rates at the begin and at most, and how long a cycle may take.
    fn rates_and_cycles(&self) -> [Check; 6] {
        [
            (
                "min_rate",
                self.min_rate,
                share(self.min_rate) && self.min_rate > 0.0,
                "above 0 (a rate of 0 never rises) and at most 1",
            ),
            (
                "max_rate",
                self.max_rate,
                share(self.max_rate) && self.max_rate >= self.min_rate,
                "between min_rate and 1",
            ),
            (
                "rate",
                self.rate,
                self.rate >= self.min_rate && self.rate <= self.max_rate,
                "between min_rate and max_rate",
            ),
            ("revise_s", self.revise_s, positive(self.revise_s), "a time above 0 s"),
            ("baseline_s", self.baseline_s, positive(self.baseline_s), "a time above 0 s"),
            ("max_cycle_s", self.max_cycle_s, positive(self.max_cycle_s), "a time above 0 s"),
        ]
    }

    /// When a sample is representative.
    fn judgements(&self) -> [Check; 6] {
        [
            ("alpha", self.alpha, positive(self.alpha) && self.alpha < 1.0, "between 0 and 1, both excluded"),
            ("balance_slack", self.balance_slack, share(self.balance_slack), "between 0 and 1"),
            (
                "sample_margin",
                self.sample_margin,
                positive(self.sample_margin) && self.sample_margin < 1.0,
                "between 0 and 1, both excluded",
            ),
            (
                "variability",
                self.variability,
                positive(self.variability) && self.variability < 1.0,
                "between 0 and 1, both excluded",
            ),
            ("table_records", count(self.table_records), self.table_records >= 2, "at least 2"),
            (
                "paired_least_classes",
                count(self.paired_least_classes),
                self.paired_least_classes >= 2,
                "at least 2",
            ),
        ]
    }

    /// What single policies want, and how many classes there may be.
    fn policies(&self) -> [Check; 9] {
        [
            ("inv_reference_s", self.inv_reference_s, positive(self.inv_reference_s), "a time above 0 s"),
            (
                "equivalence_margin",
                self.equivalence_margin,
                positive(self.equivalence_margin),
                "a share above 0",
            ),
            (
                "class_max_rate",
                self.class_max_rate,
                share(self.class_max_rate) && self.class_max_rate >= self.max_rate,
                "between max_rate and 1",
            ),
            ("allocation_power", self.allocation_power, share(self.allocation_power), "between 0 and 1"),
            (
                "allocation_relative",
                self.allocation_relative,
                share(self.allocation_relative),
                "between 0 and 1",
            ),
            (
                "tithe_share",
                self.tithe_share,
                share(self.tithe_share) && self.tithe_share > 0.0,
                "above 0, at most 1",
            ),
            (
                "tithe_attach",
                self.tithe_attach,
                share(self.tithe_attach) && self.tithe_attach > 0.0,
                "above 0, at most 1",
            ),
            ("rate_step", self.rate_step, self.rate_step.is_finite() && self.rate_step >= 0.0, "0 or more"),
            ("max_classes", count(self.max_classes), self.max_classes >= 1, "at least 1"),
        ]
    }
}

/// A field, its value, whether that is in its range, and the range in words.
type Check = (&'static str, f64, bool, &'static str);

fn positive(x: f64) -> bool {
    x.is_finite() && x > 0.0
}

fn share(x: f64) -> bool {
    (0.0..=1.0).contains(&x)
}

fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_papers_and_pass() {
        let c = AdaptConfig::default();
        c.check().unwrap();
        assert_eq!(
            (c.max_rate, c.min_rate, c.revise_s, c.baseline_s, c.max_cycle_s),
            (0.5, 0.01, 1.0, 3.0, 180.0)
        );
        assert_eq!((c.alpha, c.sample_margin, c.variability), (0.05, 0.05, 0.5));
    }

    #[test]
    fn settings_are_changed_by_name_and_the_others_kept() {
        let base = AdaptConfig { baseline_s: 1.0, ..AdaptConfig::default() };
        assert_eq!(base.with::<&str>(&[]).unwrap(), base);
        let c =
            base.with(&["rate=0.25", "max_rate = 1", "max_classes=7", "correct_for_price=false"]).unwrap();
        let expected =
            AdaptConfig { rate: 0.25, max_rate: 1.0, max_classes: 7, correct_for_price: false, ..base };
        assert_eq!(c, expected);
        let wrong = |setting: &str| AdaptConfig::default().with(&[setting]).unwrap_err();
        assert!(wrong("rate").contains("KEY=VALUE"));
        assert!(
            wrong("speed=1").contains("no setting 'speed'; there are allocation_power, "),
            "{}",
            wrong("speed=1")
        );
        assert_eq!(wrong("max_classes=1.5"), "'max_classes=1.5': '1.5' is no integer");
        assert!(wrong("rate=0.9").contains("between min_rate and max_rate"));
    }

    #[test]
    fn a_setting_out_of_range_is_named_with_its_value() {
        let c = AdaptConfig { min_rate: 0.0, ..AdaptConfig::default() };
        let text = c.check().unwrap_err().to_string();
        assert_eq!(
            text,
            "the setting 'min_rate' is 0: it must be above 0 (a rate of 0 never rises) and at most 1"
        );
        for bad in [
            AdaptConfig { rate: f64::NAN, ..AdaptConfig::default() },
            AdaptConfig { rate: 0.6, ..AdaptConfig::default() },
            AdaptConfig { max_cycle_s: 0.0, ..AdaptConfig::default() },
            AdaptConfig { max_classes: 0, ..AdaptConfig::default() },
            AdaptConfig { class_max_rate: 0.4, ..AdaptConfig::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
