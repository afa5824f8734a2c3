//! What operations did between two revisions.

use super::operation::Operation;
use super::slices::longest_ns;
use crate::adapt::{ClassWindow, OperationClassId, WindowSummary};
use crate::recording::OperationWindowRow;
use crate::stats::moments::Moments;
use profiler_common::operation::{OperationCounters, Sums};

/// Of a window's longest response time that much is kept in the next.
const KEPT: f64 = 0.8;

/// What one operation did in a window.
#[derive(Debug)]
pub(super) struct Cut {
    pub rows: Vec<OperationWindowRow>,
    pub summary: WindowSummary,
    /// Operations that began, and those of them that are recorded.
    pub begun: u64,
    pub recorded: u64,
    /// What recording cost inside the recorded ones that ended, ns, and how many these are.
    pub cost_ns: u64,
    pub ended_recorded: u64,
    /// Hits of its tracepoints.
    pub screened: u64,
}

fn moments(sums: &Sums) -> Moments {
    Moments::from_sums(sums.n, sums.sum as f64, sums.squares())
}

impl Operation {
    /// What happened since the last cut, where its classes were counted so far. The next window begins here. `sliced`: functions inside were
    /// attached in slices.
    pub fn cut(&mut self, counts: &[OperationCounters], now: u64, sliced: bool) -> Cut {
        let watched_ns = self.watch.watched_ns.min(now.saturating_sub(self.watch.since_ns));
        let summary = WindowSummary {
            length_s: watched_ns as f64 * 1e-9,
            monitoring: self.monitoring,
            classes: Vec::new(),
        };
        let mut cut = Cut {
            rows: Vec::new(),
            summary,
            begun: 0,
            recorded: 0,
            cost_ns: 0,
            ended_recorded: 0,
            screened: 0,
        };
        let mut seen_s = 0.0_f64;
        for ((class, i), counters) in self.classes.clone().zip(0_usize..).zip(counts) {
            let new = counters.since(&self.tally.last[i]);
            self.tally.last[i] = *counters;
            // The row of the operation's own class also says that it was watched.
            let silent = class != self.classes.start || watched_ns == 0;
            if new == OperationCounters::default() && silent {
                continue;
            }
            cut.rows.push(self.row(class, &new, now, watched_ns, sliced));
            cut.add(class, &new);
            if new.population.n > 0 {
                seen_s = seen_s.max(longest_ns(&moments(&new.population)) * 1e-9);
            }
        }
        let tally = &mut self.tally;
        if seen_s > 0.0 {
            tally.longest_s = seen_s.max(KEPT * tally.longest_s);
        }
        tally.rate_hz = if watched_ns > 0 { cut.begun as f64 / (watched_ns as f64 * 1e-9) } else { 0.0 };
        tally.recorded_share = cut.recorded as f64 / cut.begun.max(1) as f64;
        tally.population += cut.begun;
        tally.sample += cut.recorded;
        (self.watch.since_ns, self.watch.watched_ns) = (now, 0);
        cut
    }

    fn row(
        &self,
        class: u32,
        new: &OperationCounters,
        now: u64,
        watched_ns: u64,
        sliced: bool,
    ) -> OperationWindowRow {
        let orders = self.adapter.orders().of(OperationClassId(class));
        OperationWindowRow {
            operation: self.number,
            class_id: class,
            start_ns: self.watch.since_ns,
            end_ns: now,
            watched_ns,
            monitoring: self.monitoring,
            rate: if self.monitoring { orders.rate } else { 0.0 },
            stretch: orders.stretch,
            cycle: self.cycle.number,
            population: new.population.n,
            population_sum_ns: new.population.sum as f64,
            population_squares_ns2: new.population.squares(),
            sample: new.sample.n,
            sample_sum_ns: new.sample.sum as f64,
            sample_squares_ns2: new.sample.squares(),
            measure_sum: new.measure.sum as f64,
            measure_squares: new.measure.squares(),
            cost_ns: new.cost_ns,
            begun: new.begun(),
            recorded: new.recorded,
            off: new.off,
            not_drawn: new.not_drawn,
            balanced: new.balanced,
            no_quota: new.no_quota,
            unmatched: new.unmatched,
            dropped: new.dropped,
            sliced: Some(sliced),
        }
    }
}

impl Cut {
    fn add(&mut self, class: u32, new: &OperationCounters) {
        self.begun += new.begun();
        self.recorded += new.recorded;
        self.cost_ns += new.cost_ns;
        self.ended_recorded += new.sample.n;
        self.screened += new.screened;
        if new.population.n > 0 {
            self.summary.classes.push(ClassWindow {
                class: OperationClassId(class),
                population: moments(&new.population),
                sample: moments(&new.sample),
                measure: moments(&new.measure),
                cost_s: new.cost_ns as f64 * 1e-9,
            });
        }
    }
}
