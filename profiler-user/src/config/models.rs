//! `--model`, `--input`, `--datapoints` and `--expect`: of which functions there are to be execution-time models, and which are held against them.

use super::inputs::InputsSpec;
use super::recorded::RecordSpec;
use super::{FunctionConfig, RunConfig};
use profiler_core::recording::ModelsMeta;
use std::path::PathBuf;

/// Recorded calls that are wanted of each decade of a function's inputs if nobody says.
pub const DEFAULT_DATAPOINTS: u32 = 200;

/// Functions that models are made of, or that are held against models.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelConfig {
    /// Patterns of functions whose calls are recorded so that models can be made of them.
    pub patterns: Vec<String>,
    /// Names of inputs, and the registers that hold them.
    pub inputs: Vec<InputsSpec>,
    /// Recorded calls that are wanted of each function and decade of its inputs, and again every 10 s; 0: as many as the budget allows. `None`:
    /// [`DEFAULT_DATAPOINTS`] of functions of `patterns`, and of those of `expect` as many as the budget allows.
    pub datapoints: Option<u32>,
    /// A recording: calls of its functions are held against its models while the run goes on.
    pub expect: Option<PathBuf>,
}

impl ModelConfig {
    /// Data points that are wanted of functions that models are made of; 0: as many as can be had.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.datapoints.unwrap_or(DEFAULT_DATAPOINTS)
    }

    /// Nothing was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty() && self.expect.is_none()
    }

    /// What a recording says of it; `None`: nothing was asked for.
    #[must_use]
    pub fn meta(&self) -> Option<ModelsMeta> {
        let is_told = !(self.is_empty() && self.inputs.is_empty());
        is_told.then(|| ModelsMeta {
            patterns: self.patterns.clone(),
            inputs: self.inputs.iter().map(ToString::to_string).collect(),
            expected: None,
        })
    }
}

impl RecordSpec {
    /// The registers of these inputs are kept of what is recorded.
    #[must_use]
    pub fn of_inputs(spec: &InputsSpec) -> Self {
        let arguments = spec.inputs.iter().fold(0_u8, |set, input| set | input.register());
        Self { pattern: spec.pattern.text().to_owned(), arguments, for_models: true }
    }
}

impl FunctionConfig {
    /// The calls of the functions of `models` are recorded, too, with the registers of their inputs.
    #[must_use]
    pub fn with_models(&self, models: &ModelConfig) -> Self {
        let whole =
            |pattern: &String| RecordSpec { pattern: pattern.clone(), arguments: 0, for_models: true };
        let mut all = self.clone();
        all.record.extend(models.patterns.iter().map(whole));
        all.arguments.extend(models.inputs.iter().map(RecordSpec::of_inputs));
        all
    }
}

impl RunConfig {
    /// The same run, in which the functions that models are made of are recorded.
    #[must_use]
    pub fn with_models(&self) -> Self {
        Self { functions: self.functions.with_models(&self.models), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_models_are_recorded_and_the_registers_of_inputs_are_kept() {
        let models = ModelConfig {
            patterns: vec!["libz*:compress2".to_owned()],
            inputs: vec!["compress2:n=arg3,level=arg4:category".parse().unwrap()],
            ..ModelConfig::default()
        };
        let functions = FunctionConfig::default().with_models(&models);
        let recorded = RecordSpec { pattern: "libz*:compress2".into(), arguments: 0, for_models: true };
        assert_eq!(functions.record, [recorded]);
        let kept = RecordSpec { pattern: "compress2".into(), arguments: 0b1_1000, for_models: true };
        assert_eq!(functions.arguments, [kept], "an --input records nothing by itself");
        let meta = models.meta().unwrap();
        assert_eq!(meta.inputs, ["compress2:n=arg3,level=arg4:category"]);
        assert_eq!(ModelConfig::default().meta(), None);
    }
}
