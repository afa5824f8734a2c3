//! A full trace from a recording that was made with `--policy full`, with the cost model of the host that made it.

use super::{CostModel, Operation};
use crate::adapt::{AdaptConfig, OperationClassId, PolicyKind};
use crate::recording::{OperationMeta, OperationRow, Recording};
use crate::stats::moments::Moments;
use std::collections::BTreeMap;

/// Share of the operations that may be missing: the record of a burst that found the ring full does not make a
/// comparison of policies wrong, a tenth of all operations does.
pub const MISSING_MOST: f64 = 0.01;

/// Why there is no full trace in a recording.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NotFull {
    /// None was asked for, or none of this name.
    #[error(
        "{0}; record one with: tithe record --pid PID --operation 'req=FUNCTION,class=arg0:str' --policy full"
    )]
    NoOperation(String),
    /// Another policy chose.
    #[error(
        "operation '{name}' was recorded with policy '{policy}', which leaves operations out: a replay needs all of them; \
         record it with --policy full"
    )]
    OtherPolicy {
        /// Name of the operation.
        name: String,
        /// The policy.
        policy: String,
    },
    /// The recording is cut off or damaged where operations are kept.
    #[error(
        "the recording is not whole ({0}): what is left of the operations stands for no run; record it again and let it end"
    )]
    Truncated(String),
    /// Too many operations are missing.
    #[error(
        "of {population} operations '{name}' {missing} were not recorded ({off} began while recording was off, {no_quota} found the \
         window's quota used up, {dropped} the ring full): more than 1 % of a full trace; record it with more --budget and \
         with --no-ab"
    )]
    Missing {
        /// Name of the operation.
        name: String,
        /// Operations that ended.
        population: u64,
        /// Of those, without a row.
        missing: u64,
        /// Begun while recording was off.
        off: u64,
        /// Without quota.
        no_quota: u64,
        /// Lost to a full ring.
        dropped: u64,
    },
}

/// All operations of one name, as the run without monitoring would have had them by the prices of its host.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTrace {
    /// Name of the operation.
    pub name: String,
    /// What the measure is, in words.
    pub measure: String,
    /// Names of the classes.
    pub classes: BTreeMap<OperationClassId, String>,
    /// Operations by begin; durations without the monitoring cost inside them.
    pub operations: Vec<Operation>,
    /// Prices.
    pub model: CostModel,
    /// Settings that the run was recorded with.
    pub config: AdaptConfig,
    /// Operations that had not ended when the run did; they are left out.
    pub censored: u64,
    /// Operations that ended and have no row; at most [`MISSING_MOST`] of all.
    pub missing: u64,
}

/// The full trace of the operation with this name (or of the only one), on so many servers.
///
/// # Errors
/// There is no such operation, or not all of it was recorded: see [`NotFull`].
pub fn full_trace(recording: &Recording, name: Option<&str>, servers: u32) -> Result<FullTrace, NotFull> {
    let meta = choose(&recording.meta.operations, name)?;
    if meta.policy != PolicyKind::Full.name() {
        return Err(NotFull::OtherPolicy { name: meta.name.clone(), policy: meta.policy.clone() });
    }
    if let Some(line) = recording.damage.iter().find(|line| line.contains("operation")) {
        return Err(NotFull::Truncated(line.clone()));
    }
    if recording.meta.end_ns.is_none() {
        return Err(NotFull::Truncated("the agent was killed before the end of the run".to_owned()));
    }
    let mut rows: Vec<&OperationRow> =
        recording.operations.iter().filter(|r| r.operation == meta.operation).collect();
    let all = rows.len();
    rows.retain(|r| r.is_sampled());
    rows.sort_by_key(|r| (r.begin_ns, r.tid));
    let (censored, missing) = ((all - rows.len()) as u64, missing(recording, meta, rows.len() as u64)?);
    let Some(first) = rows.first() else {
        return Err(NotFull::NoOperation(format!("no operation '{}' ended in this recording", meta.name)));
    };
    let counted = !meta.measure.is_empty();
    let operations: Vec<Operation> = rows
        .iter()
        .map(|r| Operation {
            class: OperationClassId(r.class_id),
            begin_s: (r.begin_ns - first.begin_ns) as f64 * 1e-9,
            duration_s: bare_ns(r) * 1e-9,
            measure: if counted { r.measure as f64 } else { bare_ns(r) },
        })
        .collect();
    let classes = recording
        .operation_classes
        .iter()
        .filter(|r| r.operation == meta.operation)
        .map(|r| (OperationClassId(r.class_id), r.class_name.clone()))
        .collect();
    Ok(FullTrace {
        name: meta.name.clone(),
        measure: if counted { meta.measure.clone() } else { "response time, ns".to_owned() },
        classes,
        model: model(&rows, meta, servers, &recording.meta.host),
        operations,
        config: meta.config.clone(),
        censored,
        missing,
    })
}

fn choose<'a>(operations: &'a [OperationMeta], name: Option<&str>) -> Result<&'a OperationMeta, NotFull> {
    let names = || operations.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", ");
    let none = |text: String| Err(NotFull::NoOperation(text));
    match (operations, name) {
        ([], _) => none("the recording has no operation".to_owned()),
        ([one], None) => Ok(one),
        (_, None) => {
            none(format!("the recording has several operations, choose with --operation: {}", names()))
        }
        (_, Some(name)) => match operations.iter().find(|o| o.name == name) {
            Some(operation) => Ok(operation),
            None => none(format!("the recording has no operation '{name}', it has {}", names())),
        },
    }
}

/// Operations that ended without a row.
fn missing(recording: &Recording, meta: &OperationMeta, rows: u64) -> Result<u64, NotFull> {
    let windows = || recording.operation_windows.iter().filter(|w| w.operation == meta.operation);
    let population: u64 = windows().map(|w| w.population).sum();
    let missing = population.saturating_sub(rows);
    if missing as f64 > MISSING_MOST * population as f64 {
        return Err(NotFull::Missing {
            name: meta.name.clone(),
            population,
            missing,
            off: windows().map(|w| w.off).sum(),
            no_quota: windows().map(|w| w.no_quota).sum(),
            dropped: windows().map(|w| w.dropped).sum(),
        });
    }
    Ok(missing)
}

/// Response time less the monitoring cost inside it.
fn bare_ns(row: &OperationRow) -> f64 {
    row.duration_ns.saturating_sub(row.cost_ns) as f64
}

/// Least squares of the cost inside an operation on its bare duration, both coefficients kept at 0 or more.
fn model(rows: &[&OperationRow], meta: &OperationMeta, servers: u32, host: &str) -> CostModel {
    let cost: Moments = rows.iter().map(|r| r.cost_ns as f64).collect();
    let bare: Moments = rows.iter().map(|r| bare_ns(r)).collect();
    let products: f64 =
        rows.iter().map(|r| (r.cost_ns as f64 - cost.mean()) * (bare_ns(r) - bare.mean())).sum();
    let squares = bare.variance().unwrap_or(0.0) * (bare.n() as f64 - 1.0).max(0.0);
    let slope = if squares > 0.0 { (products / squares).max(0.0) } else { 0.0 };
    let intercept = cost.mean() - slope * bare.mean();
    // Through the origin where the line would give a negative price of short operations.
    let (record_ns, record_share) = match intercept {
        i if i >= 0.0 => (i, slope),
        _ if bare.mean() > 0.0 => (0.0, cost.mean() / bare.mean()),
        _ => (0.0, 0.0),
    };
    let calls: Moments = rows.iter().map(|r| r.calls as f64).collect();
    // Calls of a measure function are not counted apart: what is inside an operation and no screening is theirs.
    let traps_ns = match calls.mean() {
        n if n > 0.0 => meta.inner_hit_ns * n,
        _ if meta.inner_hit_ns > 0.0 => (cost.mean() - meta.screen_ns).max(0.0),
        _ => 0.0,
    };
    let trap_share = if cost.mean() > 0.0 { (traps_ns / cost.mean()).min(1.0) } else { 0.0 };
    CostModel {
        label: format!(
            "a model, by the prices of {host} over {} operations: recording {:.2} us + {:.2} % of the operation, screening {:.2} us; \
             while recording is on the functions inside are attached all the time (as with attach_share=false), and the others pay \
             {:.0} % of recording's price in traps; {servers} servers, arrivals as recorded",
            rows.len(),
            record_ns * 1e-3,
            record_share * 100.0,
            meta.screen_ns * 1e-3,
            trap_share * 100.0,
        ),
        record_s: record_ns * 1e-9,
        record_share,
        screen_s: meta.screen_ns * 1e-9,
        trap_share,
        servers,
        trace_carries_cost: false,
    }
}
