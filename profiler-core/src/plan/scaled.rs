//! The same question with another budget, or for another end.

use super::{Objective, Problem};

impl Problem {
    /// The same with so many times the budget, and with it what is a part of the budget: what is kept for bursts, and what one burst may cost.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let mut scaled = self.clone();
        (scaled.budget, scaled.kept) = (factor * self.budget, factor * self.kept);
        let limit = |limit_s: Option<f64>| limit_s.map(|limit_s| factor * limit_s);
        if let Some(rules) = &mut scaled.windows {
            rules.limit_s = limit(rules.limit_s);
        }
        scaled.classes.iter_mut().for_each(|class| class.windows.limit_s = limit(class.windows.limit_s));
        scaled
    }

    /// The same with another objective. With precision bursts are planned: nothing is kept for them.
    #[must_use]
    pub fn with_objective(self, objective: Objective) -> Self {
        let kept = if objective == Objective::Precision { 0.0 } else { self.kept };
        Self { objective, kept, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlanClass, WindowRules};

    #[test]
    fn with_the_budget_grows_what_is_a_part_of_it() {
        let mut problem = Problem::new(0.02, 1.0, 1e-5);
        problem.kept = 0.01;
        problem.windows = Some(WindowRules { limit_s: Some(2e-3), ..WindowRules::default() });
        problem.classes = vec![PlanClass::new("f", 1.0, 0.1, 1e-6), PlanClass::new("g", 1.0, 0.1, 1e-6)];
        problem.classes[1].windows.limit_s = Some(1e-3);
        let twice = problem.scaled(2.0);
        assert_eq!((twice.budget, twice.kept), (0.04, 0.02));
        assert_eq!(twice.windows.and_then(|rules| rules.limit_s), Some(4e-3));
        let limits: Vec<_> = twice.classes.iter().map(|c| c.windows.limit_s).collect();
        assert_eq!(limits, [None, Some(2e-3)]);
        assert_eq!(twice.with_objective(Objective::Precision).kept, 0.0);
    }
}
