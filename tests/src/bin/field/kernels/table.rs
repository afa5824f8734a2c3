//! Finished runs as Markdown, beside the paper's figures.

use super::figures::{Growth, Inputs, Kernel, Outcome, Record, Told};
use profiler_core::models::{CLASSES, Class, Printed};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A program's name, and what it is written in.
pub type Named = (&'static str, &'static str);

/// A row of the paper's Table 1: codebase, language, kernels, those of each class, switching points.
type Row = (&'static str, &'static str, u64, [u64; 4], u64);

const PAPER: [Row; 6] = [
    ("HBase 1.1.0", "Java", 488_953, [45, 488_529, 279, 100], 2_536),
    ("Cassandra 3.0", "Java", 133_331, [44, 133_141, 89, 57], 4_789),
    ("Elasticsearch 2.3.3", "Java", 134_581, [10, 134_416, 90, 65], 2_987),
    ("MongoDB 3.0.14", "C/C++", 298_822, [12, 298_735, 45, 30], 546),
    ("ArangoDB 4.3.61", "C++", 1_539, [30, 1_473, 20, 16], 656),
    ("Memcached 1.4.37", "C", 120, [3, 108, 6, 3], 54),
];

/// What stands above the tables.
const INTRODUCTION: &str = "## Table 1

Written by `cargo xtask field --kernels`. One process runs 100 combinations of parameters (rows, columns, length of texts, indexes, kind of query), ten times each in a pass, in an order that a
seed shuffles; its functions are recorded in slices at a budget of 20 %, a run of the agent for each slice. A *kernel* is a function in a context (the timed call around it, of the same slice) with enough
data for a model: five distinct inputs with ten calls each. Loops are not among them; in the paper they are. *Inputs*: `arguments` are the integer arguments of the function itself, all of them as candidates;
`parameters` are those of the load, as in the paper, read as words of the program's memory with each call. Constants count as linear: no printed class has them. Of two regimes the
upper one counts. *In no printed class*: `n log n`, `sqrt n`, `n^1.5`, which no printed class has either. Switching points: the paper's rule of grouping, on leaves, those of one caller in the order in which they are called.
None are told for `arguments`: the rule asks whether kernels have the same inputs, and arguments of different functions are different inputs by construction, so that nearly every leaf would be a group of its own.
";

/// What runs say of a program with one kind of inputs.
struct Counts<'a> {
    told: Vec<&'a Told>,
}

impl<'a> Counts<'a> {
    fn new(records: &[&'a Record], inputs: Inputs) -> Counts<'a> {
        let told = records.iter().flat_map(|record| &record.told);
        Counts { told: told.filter(|told| told.inputs == inputs).collect() }
    }

    fn kernels(&self) -> impl Iterator<Item = &'a Kernel> + '_ {
        self.told.iter().flat_map(|told| &told.kernels)
    }

    fn growths(&self) -> impl Iterator<Item = &'a Growth> + '_ {
        self.kernels().filter_map(Kernel::growth)
    }

    fn with_model(&self) -> usize {
        self.growths().count()
    }

    fn printed(&self, class: Printed) -> usize {
        self.growths().filter(|growth| growth.printed == class).count()
    }

    fn ours(&self, class: Class) -> usize {
        self.growths().filter(|growth| growth.class == class).count()
    }

    fn sum(&self, of: impl Fn(&Told) -> usize) -> usize {
        self.told.iter().map(|told| of(told)).sum()
    }
}

/// How often each name occurs, the most frequent one first.
fn tally(names: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    let mut all: Vec<(String, usize)> = counts.into_iter().collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let all: Vec<String> =
        all.into_iter().map(|(name, n)| format!("{} {n}", name.replace('_', " "))).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

/// The section, with all its tables. Of rounds the last one of each slice counts with each kind of inputs; one without models hides none that has some.
pub fn document(finished: &[&Record], programs: &[Named]) -> String {
    let mut last: BTreeMap<(&str, &str), &Record> = BTreeMap::new();
    for record in finished {
        let so_far = last.get(&(&*record.program, &*record.slice)).map_or(0, |other| other.told.len());
        // One with fewer kinds of inputs was broken off.
        if !record.told.is_empty() && record.told.len() >= so_far {
            last.insert((&record.program, &record.slice), record);
        }
    }
    let of = |program: &str| -> Vec<&Record> {
        last.iter().filter(|((name, _), _)| *name == program).map(|(_, record)| *record).collect()
    };
    let mut rows: Vec<(String, &str, Inputs, Counts<'_>)> = Vec::new();
    for (program, language) in programs {
        let records = of(program);
        for inputs in [Inputs::Arguments, Inputs::Parameters] {
            let counts = Counts::new(&records, inputs);
            if let Some(record) = records.first().filter(|_| !counts.told.is_empty()) {
                rows.push((record.version.clone(), *language, inputs, counts));
            }
        }
    }
    let mut out = INTRODUCTION.to_owned();
    if let Some(first) = finished.first() {
        let loads: Vec<f64> = finished.iter().filter_map(|record| record.load).collect();
        let most = loads.iter().copied().fold(0.0, f64::max);
        let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
        out += &format!(
            "\n{}, runs of {} s. Load average at the ends of runs: {least:.1} to {most:.1}.\n",
            first.agent, first.seconds
        );
    }
    printed(&mut out, &rows);
    ours(&mut out, &rows);
    without(&mut out, &rows);
    slices(&mut out, &last.values().copied().collect::<Vec<_>>());
    agreement(&mut out, finished);
    let trouble = finished.iter().flat_map(|record| {
        record.trouble.iter().map(move |what| format!("- {}:{}: {what}\n", record.program, record.slice))
    });
    let trouble: String = trouble.collect();
    if !trouble.is_empty() {
        out += &format!("\nWhat went wrong:\n\n{trouble}");
    }
    out
}

/// A figure of grouping. Of arguments it would say nothing: each function has its own, so that no two kernels have the same.
fn grouped(inputs: Inputs, count: usize) -> String {
    match inputs {
        Inputs::Arguments => "-".to_owned(),
        Inputs::Parameters => count.to_string(),
    }
}

/// As the paper prints it.
fn printed(out: &mut String, rows: &[(String, &str, Inputs, Counts<'_>)]) {
    *out += "\n| program | language | inputs | kernels | logarithmic | linear | polynomial | unknown | in no printed class | switching points | of the kernels |\n\
             |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for (name, language, kernels, [log, linear, polynomial, unknown], switches) in PAPER {
        let part = share(switches, kernels);
        let _ = writeln!(
            out,
            "| {name} (paper) | {language} | of the run | {kernels} | {log} | {linear} | {polynomial} | {unknown} | - | {switches} | {part} |"
        );
    }
    for (name, language, inputs, counts) in rows {
        let [log, linear, polynomial, unknown, none] =
            [Printed::Logarithmic, Printed::Linear, Printed::Polynomial, Printed::Unknown, Printed::NoClass]
                .map(|class| counts.printed(class));
        let kernels = counts.with_model();
        let switches = grouped(*inputs, counts.sum(|told| told.switches));
        let part = match inputs {
            Inputs::Arguments => "-".to_owned(),
            Inputs::Parameters => share(counts.sum(|told| told.switches) as u64, kernels as u64),
        };
        let _ = writeln!(
            out,
            "| {name} | {language} | {} | {kernels} | {log} | {linear} | {polynomial} | {unknown} | {none} | {switches} | {part} |",
            inputs.name()
        );
    }
}

/// By our classes, with what is grouped.
fn ours(out: &mut String, rows: &[(String, &str, Inputs, Counts<'_>)]) {
    let heads: Vec<&str> = CLASSES.iter().map(|class| class.name()).collect();
    let _ = writeln!(
        out,
        "\nThe same kernels by our classes. *Leaves*: kernels that call none of the slice; only these are grouped.\n\n\
         | program | inputs | {} | unknown, because | leaves | groups |\n|---|---|{}---|--:|--:|",
        heads.join(" | "),
        "--:|".repeat(heads.len())
    );
    for (name, _, inputs, counts) in rows {
        let classes: Vec<String> = CLASSES.iter().map(|class| counts.ours(*class).to_string()).collect();
        let doubts = tally(counts.growths().filter_map(|growth| growth.doubt.clone()));
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {doubts} | {} | {} |",
            inputs.name(),
            classes.join(" | "),
            counts.sum(|told| told.leaves),
            grouped(*inputs, counts.sum(|told| told.groups))
        );
    }
}

/// Those that have no model.
fn without(out: &mut String, rows: &[(String, &str, Inputs, Counts<'_>)]) {
    *out += "\nFunctions in contexts that were recorded and have no model, by reason; and, of those without a usable input, why each input is none.\n\n\
             | program | inputs | recorded | with a model | without, because | inputs that are none, because |\n|---|---|--:|--:|---|---|\n";
    for (name, _, inputs, counts) in rows {
        let none = |kernel: &'_ Kernel| match &kernel.outcome {
            Outcome::None { reason, inputs } => Some((reason.clone(), inputs.clone())),
            Outcome::Model(_) => None,
        };
        let reasons = tally(counts.kernels().filter_map(none).map(|(reason, _)| reason));
        let unusable = counts.kernels().filter_map(none).filter(|(reason, _)| reason == "no_usable_input");
        let unusable = tally(unusable.flat_map(|(_, inputs)| inputs));
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {reasons} | {unusable} |",
            inputs.name(),
            counts.kernels().count(),
            counts.with_model()
        );
    }
}

/// The runs behind it.
fn slices(out: &mut String, records: &[&Record]) {
    *out += "\n| program | slice | runs of the load | of the rarest combination | functions recorded | calls | predicted overhead, % | worst second, % |\n\
             |---|---|--:|--:|--:|--:|--:|--:|\n";
    for record in records {
        let kernels = record.told.first().map_or(&[][..], |told| &told.kernels);
        let functions: BTreeSet<&str> = kernels.iter().map(|kernel| &*kernel.function).collect();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {:.1} | {:.1} |",
            record.program,
            record.slice,
            record.runs,
            record.least_runs,
            functions.len(),
            kernels.iter().map(|kernel| kernel.calls).sum::<u64>(),
            100.0 * record.observation.predicted,
            100.0 * record.observation.worst_second
        );
    }
}

/// Kernels that have a model in two rounds or more: how many have one class in all.
fn agreement(out: &mut String, finished: &[&Record]) {
    // Program and slice, inputs, function and context.
    type Key<'a> = ((&'a str, &'a str), Inputs, (&'a str, Option<&'a str>));
    let mut classes: BTreeMap<Key<'_>, Vec<Class>> = BTreeMap::new();
    for record in finished {
        for told in &record.told {
            for kernel in &told.kernels {
                let Some(growth) = kernel.growth() else { continue };
                let slice = (&*record.program, &*record.slice);
                let key = (slice, told.inputs, (&*kernel.function, kernel.context.as_deref()));
                classes.entry(key).or_default().push(growth.class);
            }
        }
    }
    classes.retain(|_, classes| classes.len() > 1);
    if !classes.is_empty() {
        let same = classes.values().filter(|of| of.iter().collect::<BTreeSet<_>>().len() == 1).count();
        let _ = writeln!(
            out,
            "\nOf {} kernels with a model in several rounds {same} have the same of our classes in all of them.",
            classes.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Observation;
    use expect_test::expect;

    fn kernel(function: &str, class: Class, printed: Printed) -> Kernel {
        Kernel {
            function: function.to_owned(),
            context: Some("main".to_owned()),
            calls: 500,
            outcome: Outcome::Model(Growth {
                class,
                printed,
                doubt: (class == Class::Unknown).then(|| "unexplained".to_owned()),
                critical: vec!["arg1".to_owned()],
                fit: 0.99,
                ceiling: 1.0,
                distinct: 20,
                formula: vec!["1 ns · arg1".to_owned()],
            }),
        }
    }

    fn none(function: &str, reason: &str, inputs: &[&str]) -> Kernel {
        let inputs = inputs.iter().map(|&why| why.to_owned()).collect();
        let outcome = Outcome::None { reason: reason.to_owned(), inputs };
        Kernel { outcome, ..kernel(function, Class::Linear, Printed::Linear) }
    }

    fn record(slice: &str, round: u32, kernels: Vec<Kernel>) -> Record {
        Record {
            program: "sqlite".to_owned(),
            version: "SQLite 3".to_owned(),
            slice: slice.to_owned(),
            round,
            seconds: 120.0,
            agent: "tithe 0.1.0 (00)".to_owned(),
            load: Some(1.5),
            trouble: Vec::new(),
            observation: Observation { predicted: 0.15, worst_second: 0.19, ..Observation::default() },
            runs: 1_200,
            least_runs: 11,
            told: vec![Told { inputs: Inputs::Arguments, switches: 2, groups: 2, leaves: 3, kernels }],
        }
    }

    fn first() -> Vec<Kernel> {
        vec![
            kernel("a", Class::Constant, Printed::Linear),
            kernel("b", Class::Linear, Printed::Linear),
            kernel("c", Class::Linearithmic, Printed::NoClass),
            kernel("d", Class::TwoRegimes, Printed::Polynomial),
            kernel("e", Class::Unknown, Printed::Unknown),
            none("f", "no_usable_input", &["not_varying", "narrow_range", "not_varying"]),
            none("g", "few_inputs", &["not_varying"]),
        ]
    }

    #[test]
    fn constants_count_as_linear_and_slices_are_summed() {
        let other = record("storage", 0, vec![kernel("a", Class::Logarithmic, Printed::Logarithmic)]);
        let text = document(&[&record("vdbe", 0, first()), &other], &[("sqlite", "C"), ("jaq", "Rust")]);
        let tables = text.split_once("Load average").unwrap().1;
        expect![[r#"
             at the ends of runs: 1.5 to 1.5.

            | program | language | inputs | kernels | logarithmic | linear | polynomial | unknown | in no printed class | switching points | of the kernels |
            |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|
            | HBase 1.1.0 (paper) | Java | of the run | 488953 | 45 | 488529 | 279 | 100 | - | 2536 | 0.5 % |
            | Cassandra 3.0 (paper) | Java | of the run | 133331 | 44 | 133141 | 89 | 57 | - | 4789 | 3.6 % |
            | Elasticsearch 2.3.3 (paper) | Java | of the run | 134581 | 10 | 134416 | 90 | 65 | - | 2987 | 2.2 % |
            | MongoDB 3.0.14 (paper) | C/C++ | of the run | 298822 | 12 | 298735 | 45 | 30 | - | 546 | 0.2 % |
            | ArangoDB 4.3.61 (paper) | C++ | of the run | 1539 | 30 | 1473 | 20 | 16 | - | 656 | 42.6 % |
            | Memcached 1.4.37 (paper) | C | of the run | 120 | 3 | 108 | 6 | 3 | - | 54 | 45.0 % |
            | SQLite 3 | C | arguments | 6 | 1 | 2 | 1 | 1 | 1 | - | - |

            The same kernels by our classes. *Leaves*: kernels that call none of the slice; only these are grouped.

            | program | inputs | constant | logarithmic | sublinear | linear | linearithmic | n^1.5 | polynomial | two regimes | unknown | unknown, because | leaves | groups |
            |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|
            | SQLite 3 | arguments | 1 | 1 | 0 | 1 | 1 | 0 | 0 | 1 | 1 | unexplained 1 | 6 | - |

            Functions in contexts that were recorded and have no model, by reason; and, of those without a usable input, why each input is none.

            | program | inputs | recorded | with a model | without, because | inputs that are none, because |
            |---|---|--:|--:|---|---|
            | SQLite 3 | arguments | 8 | 6 | few inputs 1, no usable input 1 | not varying 2, narrow range 1 |

            | program | slice | runs of the load | of the rarest combination | functions recorded | calls | predicted overhead, % | worst second, % |
            |---|---|--:|--:|--:|--:|--:|--:|
            | sqlite | storage | 1200 | 11 | 1 | 500 | 15.0 | 19.0 |
            | sqlite | vdbe | 1200 | 11 | 7 | 3500 | 15.0 | 19.0 |
        "#]]
        .assert_eq(tables);
    }

    #[test]
    fn rows_of_the_paper_add_up_and_its_shares_are_those_that_it_spans() {
        for (name, _, kernels, classes, _) in PAPER {
            assert_eq!(classes.iter().sum::<u64>(), kernels, "{name}");
        }
        let shares: Vec<String> = PAPER.iter().map(|row| share(row.4, row.2)).collect();
        assert_eq!((shares[3].as_str(), shares[5].as_str()), ("0.2 %", "45.0 %"));
        assert_eq!(share(0, 0), "-");
    }

    #[test]
    fn switching_points_are_told_for_parameters() {
        let mut record = record("vdbe", 0, first());
        record.told[0].inputs = Inputs::Parameters;
        let text = document(&[&record], &[("sqlite", "C")]);
        assert!(
            text.contains("| SQLite 3 | C | parameters | 5 | 0 | 2 | 1 | 1 | 1 | 2 | 40.0 % |"),
            "{text}"
        );
        assert!(text.contains("| unexplained 1 | 3 | 2 |"), "{text}");
    }

    #[test]
    fn a_run_without_models_is_not_complete_and_hides_none_that_has_them() {
        let good = record("vdbe", 0, first());
        let without = Record { told: Vec::new(), ..record("vdbe", 1, first()) };
        let (arguments, both) = ([Inputs::Arguments], [Inputs::Arguments, Inputs::Parameters]);
        assert!(good.is_complete(&arguments) && !good.is_complete(&both));
        assert!(!without.is_complete(&arguments));
        let text = document(&[&good, &without], &[("sqlite", "C")]);
        assert!(text.contains("| SQLite 3 | C | arguments | 5 |"), "{text}");
    }

    #[test]
    fn of_rounds_the_last_one_counts_and_failed_runs_do_not() {
        let mut second = record("vdbe", 1, first());
        second.told[0].kernels[1] = kernel("b", Class::Linearithmic, Printed::NoClass);
        let mut failed = record("vdbe", 2, Vec::new());
        failed.observation.failed = Some("it died".to_owned());
        failed.trouble.push("it died".to_owned());
        failed.told.clear();
        let text = document(&[&record("vdbe", 0, first()), &second, &failed], &[("sqlite", "C")]);
        assert!(text.contains("| SQLite 3 | C | arguments | 5 | 0 | 1 | 1 | 1 | 2 | - | - |"), "{text}");
        assert!(text.contains("Of 5 kernels with a model in several rounds 4 have the same"), "{text}");
        assert!(text.contains("- sqlite:vdbe: it died"), "{text}");
    }
}
