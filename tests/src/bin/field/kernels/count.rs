//! What `tithe models` says as JSON, and how kernels are grouped by it.

use super::figures::{Growth, Inputs, Kernel, Outcome, Told};
use super::order::Positions;
use profiler_core::models::{self, Class, Context, Curve, LoopCallGraph, Printed, Rule};
use profiler_tests::kernels::{Combination, combinations};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What is around calls that are in no timed call.
const OUTSIDE: &str = "(outside)";

/// Reads the models of a recording. `positions`: where kernels stand in their callers.
///
/// # Errors
///
/// It is no JSON of models.
pub fn read(json: &str, inputs: Inputs, positions: &Positions) -> Result<Told, String> {
    let all: Value = serde_json::from_str(json).map_err(|error| format!("no JSON of models: {error}"))?;
    let functions = all["functions"].as_array().ok_or("no functions in the JSON of models")?;
    let kernels = functions.iter().map(kernel).collect::<Result<Vec<Kernel>, String>>()?;
    let grouping = grouped(&kernels, functions, inputs, positions);
    Ok(Told {
        inputs,
        switches: grouping.switches.len(),
        groups: grouping.groups.len(),
        leaves: grouping.groups.iter().map(|group| group.kernels.len()).sum(),
        kernels,
    })
}

fn texts(values: &Value) -> Vec<String> {
    values.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// The name of a variant: `"no_calls"`, or `{"few_inputs": ...}`.
fn variant(value: &Value) -> Option<String> {
    let name = value.as_str().or_else(|| value.as_object()?.keys().next().map(String::as_str));
    name.map(str::to_owned)
}

fn kernel(function: &Value) -> Result<Kernel, String> {
    let name = function["function"].as_str().ok_or("a function without a name")?;
    let model = &function["model"];
    let outcome = if model.is_null() {
        let none = &function["no_model"];
        let unusable = none["inputs"].as_array().into_iter().flatten();
        Outcome::None {
            reason: variant(&none["reason"])
                .ok_or_else(|| format!("{name}: neither a model nor a reason"))?,
            inputs: unusable.filter_map(|input| variant(&input[1])).collect(),
        }
    } else {
        Outcome::Model(growth(model, function).ok_or_else(|| format!("{name}: no class in {model}"))?)
    };
    Ok(Kernel {
        function: name.to_owned(),
        context: function["context"].as_str().map(str::to_owned),
        calls: function["calls"].as_u64().unwrap_or(0),
        outcome,
    })
}

fn growth(model: &Value, function: &Value) -> Option<Growth> {
    let critical = model["critical"].as_array().into_iter().flatten();
    Some(Growth {
        class: serde_json::from_value(model["class"].clone()).ok()?,
        printed: serde_json::from_value(model["printed"].clone()).ok()?,
        doubt: variant(&model["doubt"]),
        critical: critical.filter_map(|input| input["name"].as_str().map(str::to_owned)).collect(),
        // JSON has no word for what is not finite.
        fit: model["goodness"]["adjusted_r2"].as_f64().unwrap_or(0.0),
        ceiling: model["goodness"]["ceiling"].as_f64().unwrap_or(0.0),
        distinct: model["basis"]["distinct"].as_u64().unwrap_or(0),
        formula: texts(&function["formula"]),
    })
}

/// Class by which kernels are grouped: the paper's, where it has one.
fn class(growth: &Growth) -> Class {
    match growth.printed {
        Printed::Logarithmic => Class::Logarithmic,
        Printed::Linear => Class::Linear,
        Printed::Polynomial => Class::Polynomial,
        Printed::Unknown => Class::Unknown,
        Printed::NoClass => growth.class,
    }
}

/// Times that a model predicts for each combination of the load's parameters, ns; none where one cannot be predicted.
fn trend(model: &Value, combinations: &[Combination]) -> Vec<f64> {
    let (inputs, categories) = (texts(&model["inputs"]), texts(&model["categories"]));
    let all = model["curves"].as_array().into_iter().flatten();
    let curves: Vec<Curve> = all.filter_map(|curve| serde_json::from_value(curve.clone()).ok()).collect();
    let one = |combination: &Combination| {
        let value = |name: &String| combination.value(name);
        let x: Vec<f64> = inputs.iter().map(|name| Some(value(name)? as f64)).collect::<Option<_>>()?;
        let own: Vec<u64> = categories.iter().map(value).collect::<Option<_>>()?;
        let curve = curves.iter().find(|curve| curve.category.is_empty() || curve.category == own)?;
        Some(curve.shape.at(&x))
    };
    combinations.iter().map(one).collect::<Option<Vec<f64>>>().unwrap_or_default()
}

/// Kernels grouped by the paper's rule, those of one caller in the order in which they are called.
fn grouped(
    kernels: &[Kernel],
    functions: &[Value],
    inputs: Inputs,
    positions: &Positions,
) -> models::Grouping {
    let combinations = combinations();
    let mut graph = LoopCallGraph::default();
    let mut with: Vec<(&Kernel, &Value)> = kernels.iter().zip(functions).collect();
    with.sort_by(|(a, _), (b, _)| positions.of(a).total_cmp(&positions.of(b)));
    let (mut contexts, mut of) = (Vec::new(), BTreeMap::new());
    for (kernel, function) in with {
        let caller = kernel.context.as_deref().unwrap_or(OUTSIDE);
        // A function that calls itself is a leaf if it calls nothing else.
        if caller != kernel.function {
            graph.contains(caller, &kernel.function);
        }
        let Some(growth) = kernel.growth() else { continue };
        let context = Context(vec![graph.node(caller), graph.node(&kernel.function)]);
        // An argument is that of its own function, and functions have no runs in common by it; a parameter is the same for all.
        let name = |input: &String| match inputs {
            Inputs::Arguments => format!("{}: {input}", kernel.function),
            Inputs::Parameters => input.clone(),
        };
        let trend_ns = match inputs {
            Inputs::Arguments => Vec::new(),
            Inputs::Parameters => trend(&function["model"], &combinations),
        };
        let told = models::Kernel {
            class: class(growth),
            inputs: growth.critical.iter().map(name).collect::<BTreeSet<String>>(),
            trend_ns,
            shortest_ns: function["model"]["basis"]["shortest_ns"].as_f64().unwrap_or(f64::INFINITY),
        };
        if of.insert(context.clone(), told).is_none() {
            contexts.push(context);
        }
    }
    models::group(&graph, &contexts, &of, Rule::Printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of the JSON: `ns` for each of the input.
    fn linear(name: &str, context: Option<&str>, input: &str, ns: f64) -> Value {
        serde_json::json!({
            "function": name, "context": context, "calls": 700, "formula": [format!("{ns} ns · {input}")], "no_model": null,
            "model": {
                "inputs": [input], "categories": [], "class": "linear", "printed": "linear", "doubt": null,
                "critical": [{"name": input, "influence": 100.0}],
                "goodness": {"adjusted_r2": 0.99, "ceiling": 1.0},
                "basis": {"distinct": 20, "shortest_ns": 100.0},
                "curves": [{"category": [], "shape": {"sum": {
                    "intercept_ns": 0.0, "terms": [[[{"input": 0, "half_powers": 2, "logs": 0}], ns]], "covariance": []}}}],
            },
        })
    }

    fn constant(name: &str, context: Option<&str>) -> Value {
        let mut all = linear(name, context, "rows", 1.0);
        all["model"]["class"] = "constant".into();
        all["model"]["critical"] = serde_json::json!([]);
        all
    }

    fn none(name: &str) -> Value {
        serde_json::json!({
            "function": name, "context": null, "calls": 3, "formula": [], "model": null,
            "no_model": {"reason": {"few_inputs": {"distinct": 2}}, "calls": 3, "shortest_ns": 1.0,
                "inputs": [["arg0", {"narrow_range": {"factor": 1.0}}], ["arg1", "not_varying"]]},
        })
    }

    fn told(functions: Vec<Value>, inputs: Inputs) -> Told {
        let json = serde_json::json!({ "functions": functions, "damage": [] }).to_string();
        read(&json, inputs, &Positions::default()).unwrap()
    }

    #[test]
    fn kernels_are_read_with_class_or_reason() {
        let told = told(vec![linear("f", Some("g"), "arg1", 3.0), none("g")], Inputs::Arguments);
        let growth = told.kernels[0].growth().unwrap();
        assert_eq!((growth.class, growth.printed, growth.distinct), (Class::Linear, Printed::Linear, 20));
        assert_eq!((&growth.critical[..], growth.fit), (&["arg1".to_owned()][..], 0.99));
        let reason = "few_inputs".to_owned();
        let inputs = vec!["narrow_range".to_owned(), "not_varying".to_owned()];
        assert_eq!(told.kernels[1].outcome, Outcome::None { reason, inputs });
        assert!(read("", Inputs::Arguments, &Positions::default()).is_err());
        assert!(
            read(r#"{"functions": [{"function": "f"}]}"#, Inputs::Arguments, &Positions::default()).is_err()
        );
    }

    #[test]
    fn kernels_of_one_caller_share_a_frequency_by_class_and_inputs_and_arguments_are_each_functions_own() {
        let all = || {
            vec![
                none("g"),
                linear("a", Some("g"), "rows", 3.0),
                linear("b", Some("g"), "rows", 30.0),
                linear("c", Some("g"), "text", 30.0),
                linear("d", Some("h"), "rows", 3.0),
            ]
        };
        let parameters = told(all(), Inputs::Parameters);
        assert_eq!((parameters.leaves, parameters.groups, parameters.switches), (4, 3, 3));
        let arguments = told(all(), Inputs::Arguments);
        assert_eq!((arguments.leaves, arguments.groups, arguments.switches), (4, 4, 4));
        let constants = told(vec![constant("a", Some("g")), constant("b", Some("g"))], Inputs::Arguments);
        assert_eq!((constants.groups, constants.switches), (1, 1));
    }

    #[test]
    fn only_leaves_are_grouped() {
        let all = vec![linear("outer", None, "rows", 9.0), linear("inner", Some("outer"), "rows", 3.0)];
        let told = told(all, Inputs::Parameters);
        assert_eq!((told.leaves, told.switches), (1, 1));
    }

    #[test]
    fn a_trend_is_that_of_all_combinations_or_none() {
        let of = |input: &str| trend(&linear("f", None, input, 2.0)["model"], &combinations());
        assert_eq!(of("rows").len(), profiler_tests::kernels::COMBINATIONS);
        assert_eq!(of("rows")[0], 2.0 * combinations()[0].rows as f64);
        assert!(of("arg1").is_empty());
    }
}
