//! Reading class tables.

use super::super::{Estimand, Objective, PlanClass, Problem, Range, UNPRICED_REPORT_S};
use super::number::{Accept, scaled};
use super::{ParseError, PlanTable};
use crate::units::OverheadBudget;
use std::collections::HashMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const TABLE_KEYS: [&str; 25] = [
    "budget",
    "budget_cpu",
    "max_frequency",
    "cpus",
    "report_time_us",
    "sample_time_us",
    "kept_for_bursts_cpu",
    "min_sampling_hz",
    "max_sampling_hz",
    "min_burst_ms",
    "attach_cost_us",
    "burst_cycle_ms",
    "objective",
    "horizon_s",
    "link_cost_us",
    "detach_delay_us",
    "fresh_detach_delay_us",
    "fresh_ms",
    "host_cpus",
    "burst_limit_us",
    "closest_windows_ms",
    "most_windows_hz",
    "shortest_window_ms",
    "brief_windows_us",
    "class",
];

const CLASS_KEYS: [&str; 27] = [
    "name",
    "id",
    "rate_hz",
    "rate_low_hz",
    "rate_high_hz",
    "share",
    "duration_us",
    "rho",
    "rho_low",
    "rho_high",
    "weight",
    "cost_us",
    "detect_us",
    "must_trace",
    "never_trace",
    "min_rate_hz",
    "interruptions_hz",
    "derived_from",
    "ratio",
    "sigma_us",
    "dispersion",
    "estimand",
    "calls_seen",
    "first",
    "bursts_only",
    "burst_limit_us",
    "spread",
];

/// Reads a class table.
///
/// # Errors
/// Everything that is wrong with it, in the order of the file.
///
/// # Example
/// ```
/// let table = profiler_core::plan::table::parse(
///     "budget = '5%'\nreport_time_us = 54\n[[class]]\nname = 'file'\nrate_hz = 359\nshare = 0.30\n",
/// ).unwrap();
/// assert_eq!(table.problem.classes[0].name, "file");
///
/// let errors = profiler_core::plan::table::parse("budget = '200%'\n").unwrap_err();
/// assert!(errors[0].to_string().starts_with("line 1: budget is '200%'; accepted: "));
/// ```
pub fn parse(text: &str) -> Result<PlanTable, Vec<ParseError>> {
    let mut reader = Reader { text, errors: Vec::new() };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let line = reader.line(error.span().map_or(0, |span| span.start));
            return Err(vec![ParseError {
                line,
                key: "the file".to_owned(),
                value: "not TOML".to_owned(),
                accepted: error.message().to_owned(),
            }]);
        }
    };
    let result = reader.table(table.get_ref());
    reader.errors.sort_by_key(|error| error.line);
    match result {
        Some(table) if reader.errors.is_empty() => Ok(table),
        _ => Err(reader.errors),
    }
}

type Entry<'t, 'i> = &'t Spanned<DeValue<'i>>;

pub(super) struct Reader<'a> {
    text: &'a str,
    errors: Vec<ParseError>,
}

/// One table of the file, by key.
pub(super) struct Fields<'t, 'i> {
    /// Put before keys in errors: `class 'x': `.
    pub(super) prefix: String,
    /// Where the table begins.
    start: usize,
    pub(super) entries: HashMap<&'t str, Entry<'t, 'i>>,
}

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|&&b| b == b'\n').count()
    }

    pub(super) fn error(
        &mut self,
        offset: usize,
        key: String,
        value: impl Into<String>,
        accepted: impl Into<String>,
    ) {
        let line = self.line(offset);
        self.errors.push(ParseError { line, key, value: value.into(), accepted: accepted.into() });
    }

    /// The table's entries; unknown keys are errors.
    fn fields<'t, 'i>(
        &mut self,
        table: &'t DeTable<'i>,
        start: usize,
        prefix: String,
        known: &[&str],
    ) -> Fields<'t, 'i> {
        let mut entries = HashMap::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                entries.insert(name, value);
            } else {
                let shown = format!("{prefix}'{name}'");
                self.error(key.span().start, shown, "no known key", known.join(", "));
            }
        }
        Fields { prefix, start, entries }
    }

    /// A number times `10^shift`, exactly rounded: the exponent is changed in the text.
    pub(super) fn number(
        &mut self,
        fields: &Fields<'_, '_>,
        key: &str,
        shift: i32,
        accept: Accept,
    ) -> Option<f64> {
        let entry = fields.entries.get(key)?;
        let value = match entry.get_ref() {
            DeValue::Integer(i) if i.radix() == 10 => scaled(i.as_str(), shift),
            DeValue::Integer(i) => {
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a number in hex is rounded like one in decimal"
                )]
                let value = i64::from_str_radix(i.as_str(), i.radix()).ok().map(|v| v as f64);
                value.map(|v| v * 10f64.powi(shift))
            }
            DeValue::Float(f) => scaled(f.as_str(), shift),
            _ => None,
        };
        match value {
            Some(value) if accept.holds(value) => Some(value),
            _ => {
                let seen = self.text.get(entry.span()).unwrap_or("?").to_owned();
                self.error(entry.span().start, format!("{}{key}", fields.prefix), seen, accept.words());
                None
            }
        }
    }

    fn text_of(&mut self, fields: &Fields<'_, '_>, key: &str, accepted: &str) -> Option<String> {
        let entry = fields.entries.get(key)?;
        match entry.get_ref().as_str() {
            Some(text) if !text.is_empty() => Some(text.to_owned()),
            _ => {
                let seen = self.text.get(entry.span()).unwrap_or("?").to_owned();
                self.error(entry.span().start, format!("{}{key}", fields.prefix), seen, accepted);
                None
            }
        }
    }

    pub(super) fn flag(&mut self, fields: &Fields<'_, '_>, key: &str) -> bool {
        let Some(entry) = fields.entries.get(key) else { return false };
        entry.get_ref().as_bool().unwrap_or_else(|| {
            let seen = self.text.get(entry.span()).unwrap_or("?").to_owned();
            self.error(entry.span().start, format!("{}{key}", fields.prefix), seen, "true or false");
            false
        })
    }

    fn choice<T: Copy>(&mut self, fields: &Fields<'_, '_>, key: &str, choices: &[(&str, T)]) -> Option<T> {
        let words = choices.iter().map(|c| format!("\"{}\"", c.0)).collect::<Vec<_>>().join(", ");
        let text = self.text_of(fields, key, &words)?;
        let found = choices.iter().find(|choice| choice.0 == text).map(|choice| choice.1);
        if found.is_none() {
            let at = fields.entries[key].span().start;
            self.error(at, format!("{}{key}", fields.prefix), format!("\"{text}\""), words);
        }
        found
    }

    /// Reports keys that exclude each other; the number of them that are there.
    fn one_of(&mut self, fields: &Fields<'_, '_>, keys: &[&str], optional: bool) -> bool {
        let there: Vec<&str> = keys.iter().copied().filter(|key| fields.entries.contains_key(key)).collect();
        match there.as_slice() {
            [_] => true,
            [] => {
                if !optional {
                    let key = format!("{}{}", fields.prefix, keys.join(" or "));
                    self.error(fields.start, key, "missing", "one of them");
                }
                false
            }
            [_, second, ..] => {
                let at = fields.entries[second].span().start;
                let key = format!("{}{}", fields.prefix, there.join(" and "));
                self.error(at, key, "given together", "one of them");
                false
            }
        }
    }

    fn table(&mut self, table: &DeTable<'_>) -> Option<PlanTable> {
        let fields = self.fields(table, 0, String::new(), &TABLE_KEYS);
        self.one_of(&fields, &["budget", "budget_cpu", "max_frequency"], false);
        let cpus = self.number(&fields, "cpus", 0, Accept::NotNegative).unwrap_or(1.0);
        let max_f = self.number(&fields, "max_frequency", 0, Accept::Positive);
        let report = self.number(&fields, "report_time_us", -6, Accept::NotNegative);
        // Given, right or wrong: one mistake is one error.
        let counted = fields.entries.contains_key("max_frequency");
        let priced = !counted || fields.entries.contains_key("report_time_us");
        if !priced {
            self.no_times(&fields, &["sample_time_us", "attach_cost_us"]);
        }
        // `MaxF` says how many events fit, not what one costs.
        let report = if counted { Some(report.unwrap_or(UNPRICED_REPORT_S)) } else { report };
        let sample = self.number(&fields, "sample_time_us", -6, Accept::NotNegative).or(report);
        let budget = self
            .budget(&fields, cpus)
            .or(self.number(&fields, "budget_cpu", 0, Accept::Positive))
            .or(max_f.zip(report).map(|(f, time)| f * time));
        self.at_most_everything(&fields, budget, cpus, priced);
        let report_given = counted || fields.entries.contains_key("report_time_us");
        if !report_given && !fields.entries.contains_key("sample_time_us") {
            self.error(0, "sample_time_us".to_owned(), "missing", "it or report_time_us, in microseconds");
        }
        let mut problem = Problem::new(budget.unwrap_or(1.0), cpus, sample.unwrap_or(0.0));
        problem.priced = priced;
        if let Some(kept) = self.number(&fields, "kept_for_bursts_cpu", 0, Accept::NotNegative) {
            problem.kept = kept;
            if kept >= problem.budget {
                let at = fields.entries["kept_for_bursts_cpu"].span().start;
                self.error(at, "kept_for_bursts_cpu".to_owned(), kept.to_string(), "less than the budget");
            }
        }
        if let Some(hz) = self.number(&fields, "min_sampling_hz", 0, Accept::NotNegative) {
            problem.sampling.min_hz = hz;
        }
        if let Some(hz) = self.number(&fields, "max_sampling_hz", 0, Accept::Rate) {
            problem.sampling.max_hz = hz;
            if hz < problem.sampling.min_hz {
                let at = fields.entries["max_sampling_hz"].span().start;
                self.error(at, "max_sampling_hz".to_owned(), hz.to_string(), "min_sampling_hz or more");
            }
        }
        problem.burst = self.bursts(&fields);
        problem.windows = self.windows(&fields);
        let objectives = Objective::ALL.map(|o| (o.name(), o));
        problem.objective = self.choice(&fields, "objective", &objectives).unwrap_or_default();
        if let Some(horizon) = self.number(&fields, "horizon_s", 0, Accept::Positive) {
            problem.horizon_s = horizon;
        }
        let report = if report_given { Some(report.unwrap_or(0.0)) } else { None };
        self.classes(&fields, &mut problem, report, counted);
        Some(PlanTable { problem })
    }

    /// Times next to a price that nobody gave have no meaning.
    fn no_times(&mut self, fields: &Fields<'_, '_>, keys: &[&str]) {
        for key in keys {
            if let Some(entry) = fields.entries.get(key) {
                let name = format!("{}{key}", fields.prefix);
                let accepted = "report_time_us as well, or neither";
                self.error(entry.span().start, name, "given together with max_frequency", accepted);
            }
        }
    }

    /// Nobody can watch for more than all the CPU time that there is.
    fn at_most_everything(&mut self, fields: &Fields<'_, '_>, budget: Option<f64>, cpus: f64, priced: bool) {
        let most = cpus.max(1.0);
        let Some(budget) = budget.filter(|&b| priced && b > most * (1.0 + 1e-9)) else { return };
        for key in ["budget_cpu", "max_frequency"] {
            if let Some(entry) = fields.entries.get(key) {
                let seen = self.text.get(entry.span()).unwrap_or("?").to_owned();
                let (seen, accepted) = if key == "budget_cpu" {
                    (seen, format!("a number above 0 and at most {most} CPU s/s: 100%"))
                } else {
                    let seen = format!("{seen}, {budget} CPU s/s at report_time_us each");
                    (seen, format!("at most {most} CPU s/s together: 100%"))
                };
                self.error(entry.span().start, key.to_owned(), seen, accepted);
            }
        }
    }

    fn budget(&mut self, fields: &Fields<'_, '_>, cpus: f64) -> Option<f64> {
        const ACCEPTED: &str = "a share like \"5%\" (above 0%, at most 100%) or CPU time like \"5ms/s\"";
        let text = self.text_of(fields, "budget", ACCEPTED)?;
        match text.parse::<OverheadBudget>() {
            Ok(budget) => Some(budget.cpu_per_second(cpus)),
            Err(_) => {
                let at = fields.entries["budget"].span().start;
                self.error(at, "budget".to_owned(), format!("'{text}'"), ACCEPTED);
                None
            }
        }
    }

    fn classes(&mut self, fields: &Fields<'_, '_>, problem: &mut Problem, report: Option<f64>, max_f: bool) {
        const ACCEPTED: &str = "at least one [[class]] table";
        let list = fields.entries.get("class").and_then(|entry| entry.get_ref().as_array());
        let Some(list) = list.filter(|list| !list.is_empty()) else {
            let at = fields.entries.get("class").map_or(self.text.len(), |entry| entry.span().start);
            self.error(at, "class".to_owned(), "missing", ACCEPTED);
            return;
        };
        let mut sources: Vec<(usize, String, usize)> = Vec::new();
        let mut rates: Vec<Option<f64>> = Vec::new();
        for (index, entry) in list.iter().enumerate() {
            let start = entry.span().start;
            let Some(table) = entry.get_ref().as_table() else {
                self.error(start, "class".to_owned(), "not a table", ACCEPTED);
                continue;
            };
            let name =
                table.iter().find(|(key, _)| key.get_ref() == "name").map(|(_, v)| v.get_ref().as_str());
            let prefix = match name {
                Some(Some(name)) => format!("class '{name}': "),
                _ => format!("class {}: ", index + 1),
            };
            let fields = self.fields(table, start, prefix, &CLASS_KEYS);
            let (class, source) = self.class(&fields, problem, report, max_f);
            if let Some((name, at)) = source {
                sources.push((problem.classes.len(), name, at));
            }
            rates.push(fields.entries.contains_key("rate_hz").then_some(class.rate_hz.value));
            problem.classes.push(class);
        }
        self.sources(problem, &sources, &rates);
    }

    /// Resolves `derived_from`. A rate left out is `ratio` times the source's.
    fn sources(&mut self, problem: &mut Problem, sources: &[(usize, String, usize)], rates: &[Option<f64>]) {
        for (index, name, at) in sources {
            let key = format!("class '{}': derived_from", problem.classes[*index].name);
            let mut named = (0..problem.classes.len()).filter(|&i| problem.classes[i].name == *name);
            match (named.next(), named.next()) {
                (Some(from), None) if from != *index => {
                    problem.classes[*index].derived_from = Some(from);
                    if rates[*index].is_none() {
                        let Some(rate) = rates[from] else {
                            self.error(*at, key, format!("'{name}'"), "a class with rate_hz");
                            continue;
                        };
                        let class = &mut problem.classes[*index];
                        class.rate_hz = (rate * class.ratio).into();
                    }
                }
                _ => self.error(*at, key, format!("'{name}'"), "the name of exactly one other class"),
            }
        }
    }

    fn class(
        &mut self,
        fields: &Fields<'_, '_>,
        problem: &Problem,
        report: Option<f64>,
        max_f: bool,
    ) -> (PlanClass, Option<(String, usize)>) {
        use Accept::{NotNegative, Positive};
        if !fields.entries.contains_key("name") {
            self.error(fields.start, format!("{}name", fields.prefix), "missing", "a name");
        }
        let name = self.text_of(fields, "name", "a name of at least one character").unwrap_or_default();
        let rate = self.number(fields, "rate_hz", 0, NotNegative);
        if rate.is_none() && !["rate_hz", "derived_from"].iter().any(|key| fields.entries.contains_key(key)) {
            self.error(fields.start, format!("{}rate_hz", fields.prefix), "missing", NotNegative.words());
        }
        let rate_hz = self.range(fields, rate.unwrap_or(0.0), "rate_low_hz", "rate_high_hz");
        self.one_of(fields, &["share", "duration_us", "rho"], false);
        let share = self.number(fields, "share", 0, NotNegative).map(|share| share * problem.target_cpu);
        let duration = self.number(fields, "duration_us", -6, NotNegative).map(|time| time * rate_hz.value);
        let rho = self.number(fields, "rho", 0, NotNegative).or(share).or(duration).unwrap_or(0.0);
        let rho = self.range(fields, rho, "rho_low", "rho_high");
        let cost = self.number(fields, "cost_us", -6, NotNegative);
        let cost_entry = fields.entries.get("cost_us").map(|entry| entry.span().start);
        if !problem.priced {
            self.no_times(fields, &["detect_us"]);
        }
        match cost_entry {
            Some(at) if max_f => {
                let key = format!("{}cost_us", fields.prefix);
                self.error(at, key, "given together with max_frequency", "budget instead of max_frequency");
            }
            None if report.is_none() => {
                let key = format!("{}cost_us", fields.prefix);
                self.error(fields.start, key, "missing", "it or the table's report_time_us, in microseconds");
            }
            _ => {}
        }
        let mut class = PlanClass::new(name, rate_hz, rho, cost.or(report).unwrap_or(0.0));
        class.detect_s = self.number(fields, "detect_us", -6, NotNegative).unwrap_or(0.0);
        class.weight = self.number(fields, "weight", 0, NotNegative).unwrap_or(1.0);
        class.min_rate_hz = self.number(fields, "min_rate_hz", 0, NotNegative).unwrap_or(0.0);
        class.interruptions_hz = self.number(fields, "interruptions_hz", 0, NotNegative).unwrap_or(0.0);
        class.ratio = self.number(fields, "ratio", 0, Positive).unwrap_or(1.0);
        class.dispersion = self.number(fields, "dispersion", 0, NotNegative).unwrap_or(1.0);
        class.sigma_s = self.number(fields, "sigma_us", -6, NotNegative);
        class.windows = self.class_windows(fields);
        self.no_variances(fields, problem.objective);
        (class.must_trace, class.never_trace) =
            (self.flag(fields, "must_trace"), self.flag(fields, "never_trace"));
        if class.must_trace && class.never_trace {
            let at = fields.entries["never_trace"].span().start;
            let key = format!("{}must_trace and never_trace", fields.prefix);
            self.error(at, key, "given together", "one of them");
        }
        let estimands = [("mean", Estimand::Mean), ("total", Estimand::Total), ("rate", Estimand::Rate)];
        class.estimand = self.choice(fields, "estimand", &estimands).unwrap_or_default();
        if let Some(id) = self.number(fields, "id", 0, NotNegative) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked below")]
            let whole = id as u32;
            if f64::from(whole) == id {
                class.id = Some(whole);
            } else {
                let at = fields.entries["id"].span().start;
                self.error(at, format!("{}id", fields.prefix), id.to_string(), "a whole number below 2^32");
            }
        }
        if let Some(calls) = self.number(fields, "calls_seen", 0, NotNegative) {
            if calls.fract() == 0.0 {
                // OK because it is whole and not negative; above 2^64 the largest will do.
                class.calls_seen = Some(calls as u64);
            } else {
                let at = fields.entries["calls_seen"].span().start;
                self.error(at, format!("{}calls_seen", fields.prefix), calls.to_string(), "a whole number");
            }
        }
        let source = self.text_of(fields, "derived_from", "the name of another class");
        (class, source.map(|name| (name, fields.entries["derived_from"].span().start)))
    }

    fn range(&mut self, fields: &Fields<'_, '_>, value: f64, low: &str, high: &str) -> Range {
        let mut range = Range::from(value);
        if let Some(x) = self.number(fields, low, 0, Accept::NotNegative) {
            range.low = x;
        }
        if let Some(x) = self.number(fields, high, 0, Accept::NotNegative) {
            range.high = x;
        }
        for (key, bad) in [(low, range.low > value), (high, range.high < value)] {
            if bad && let Some(entry) = fields.entries.get(key) {
                let seen = self.text.get(entry.span()).unwrap_or("?").to_owned();
                let accepted = format!("an interval that holds {value}");
                self.error(entry.span().start, format!("{}{key}", fields.prefix), seen, accepted);
            }
        }
        range
    }
}
