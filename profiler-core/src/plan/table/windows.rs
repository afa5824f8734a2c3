//! Reading how bursts are made.

use super::super::{BurstRules, ClassWindows, Objective, USUAL_SPREAD, WindowRules};
use super::number::Accept;
use super::read::{Fields, Reader};

impl Reader<'_> {
    pub(super) fn bursts(&mut self, fields: &Fields<'_, '_>) -> Option<BurstRules> {
        let mut rules = BurstRules::default();
        let given = ["min_burst_ms", "attach_cost_us", "burst_cycle_ms"];
        if let Some(cycle) = self.number(fields, "burst_cycle_ms", -3, Accept::Positive) {
            rules.cycle_s = cycle;
        }
        if let Some(min) = self.number(fields, "min_burst_ms", -3, Accept::NotNegative) {
            rules.min_s = min;
            if min > rules.cycle_s {
                let at = fields.entries["min_burst_ms"].span().start;
                let seen = format!("{} ms", min * 1e3);
                self.error(at, "min_burst_ms".to_owned(), seen, "at most burst_cycle_ms (1000 by default)");
            }
        }
        if let Some(cost) = self.number(fields, "attach_cost_us", -6, Accept::NotNegative) {
            rules.attach_cost_s = cost;
        }
        given.iter().any(|key| fields.entries.contains_key(key)).then_some(rules)
    }

    /// How windows are made, if the table says what links cost.
    pub(super) fn windows(&mut self, fields: &Fields<'_, '_>) -> Option<WindowRules> {
        use Accept::{NotNegative, Positive};
        let mut rules = WindowRules::default();
        let attach_s = self.number(fields, "link_cost_us", -6, NotNegative);
        let prices = &mut rules.prices;
        for (key, shift, accept, to) in [
            ("detach_delay_us", -6, NotNegative, &mut prices.delay_s),
            ("fresh_detach_delay_us", -6, NotNegative, &mut prices.fresh_delay_s),
            ("fresh_ms", -3, NotNegative, &mut prices.fresh_s),
            ("closest_windows_ms", -3, Positive, &mut rules.closest_s),
            ("most_windows_hz", 0, Positive, &mut rules.most_per_s),
            ("shortest_window_ms", -3, NotNegative, &mut rules.shortest_s),
            ("brief_windows_us", -6, NotNegative, &mut rules.brief_s),
        ] {
            if let Some(value) = self.number(fields, key, shift, accept) {
                *to = value;
            }
        }
        if let Some(cpus) = self.number(fields, "host_cpus", 0, Positive) {
            // OK because the cast saturates.
            rules.prices.cpus = (cpus as u32).max(1);
        }
        rules.limit_s = self.number(fields, "burst_limit_us", -6, Positive);
        rules.prices.attach_s = attach_s?;
        Some(rules)
    }

    /// What the objective precision knows nothing of is refused: it once meant what variance means now.
    pub(super) fn no_variances(&mut self, fields: &Fields<'_, '_>, objective: Objective) {
        for key in ["estimand", "sigma_us", "dispersion"] {
            if let Some(entry) = fields.entries.get(key).filter(|_| objective == Objective::Precision) {
                let accepted =
                    "with objective = \"variance\", which is what 'precision' was once; or not at all";
                self.error(
                    entry.span().start,
                    format!("{}{key}", fields.prefix),
                    "given with 'precision'",
                    accepted,
                );
            }
        }
    }

    /// What windows of one class are for.
    pub(super) fn class_windows(&mut self, fields: &Fields<'_, '_>) -> ClassWindows {
        ClassWindows {
            first: self.flag(fields, "first"),
            only: self.flag(fields, "bursts_only"),
            limit_s: self.number(fields, "burst_limit_us", -6, Accept::Positive),
            // It comes from calls that a run has recorded.
            most_duty: None,
            spread: self.number(fields, "spread", 0, Accept::NotNegative).unwrap_or(USUAL_SPREAD),
        }
    }
}
