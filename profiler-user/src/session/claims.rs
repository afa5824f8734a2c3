//! Who spends what at present, and what holds everything up: what the arbiter and the suspension are told.

use super::Session;
use super::attach::now_ns;
use super::overhead::Measuring;
use profiler_core::clients::Client;
use profiler_core::clients::survey::Grant;
use profiler_core::run::arbiter::{Arbiter, Claims};
use profiler_core::run::suspension::{Reason, Suspension};
use profiler_core::survey::Means;

impl Session {
    /// What each activity may spend.
    pub(super) fn arbiter(&self) -> Arbiter<'_> {
        Arbiter::new(&self.ledger, self.own_cpu)
    }

    /// What others than surveys spend.
    pub(super) fn claims(&self) -> Claims {
        let factor = self.ledger.factor();
        let switching = !self.sampling.is_per_cpu() && self.sampling.threads() > 0;
        let switch_s = if switching { self.cost.switch.seconds() } else { 0.0 };
        let sample_s = self.sampling.price(&self.cost).seconds() * factor;
        Claims {
            samples: self.sampling.rate_hz() * sample_s * self.own_cpu,
            plan: self.trace.claim(),
            switches: self.switches_per_s * switch_s * factor,
            metric: self.metric_cost(),
            misc: self.misc_cost + self.children.claim(),
            operations: self.operations_cost(),
        }
    }

    /// Why nothing may be attached now.
    pub(super) fn suspension(&self) -> Suspension {
        Suspension::NONE
            .with(Reason::Comparison, self.comparison.as_ref().is_some_and(Measuring::is_off))
            .with(Reason::ForkStorm, self.children.is_storm())
            .with(Reason::Rearm, self.children.is_rearming())
    }

    /// What a survey has to spend.
    pub(super) fn survey_means(&self) -> Means {
        self.arbiter().survey(&self.claims(), self.survey_limit_s())
    }

    /// What a survey may spend, and how much of it now.
    pub(super) fn survey_grant(&self) -> Grant {
        let (claims, limit_s) = (self.claims(), self.survey_limit_s());
        let held_ns = self.trace.held_ns(now_ns());
        let arbiter = self.arbiter();
        Grant {
            means: arbiter.survey(&claims, limit_s),
            now_s: arbiter.survey_now_s(&claims, held_ns, limit_s),
        }
    }
}
