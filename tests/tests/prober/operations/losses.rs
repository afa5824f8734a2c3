//! Calls inside that are missing.

use super::*;

/// What the agent says that it knows is what it saw: a hot function may use its quota up between its look and its word.
#[test]
fn no_operation_is_recorded_after_a_loss_that_the_agent_has_not_seen() {
    let kernel = load(&options(8));
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, 0, 0, OPERATION_MONITORING, 4, 1.0);
    let bounds = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    let inside = ClassControl {
        flags: FLAG_INSIDE | FLAG_INNER_CALL,
        measure: MEASURE_CALLS,
        ..ungated(ClassKind::Latency)
    };
    kernel.classes().configure(INNER, inside);
    let inner_link = kernel.attach(&group(LinkKind::ReturnPair, vec![inside_call.entry(INNER)])).unwrap();
    let operations = kernel.operations();
    // The gate is shut while links are made: nothing is recorded yet, and nothing is lost.
    kernel.classes().set_quota(INNER, 0);
    operations.details_are_lost();
    request.call(Some(three_inner), 0);
    assert_eq!((operations.losses(), drain(&mut reader).len()), (0, 0));
    kernel.classes().set_quota(INNER, 5);
    operations.details_are_back(0);
    request.call(Some(three_inner), 0);
    assert!(!operations.lacks_details());
    request.call(Some(three_inner), 0);
    assert!(operations.lacks_details() && operations.losses() == 1, "the last hit of the quota is gone");
    // The agent gives a quota, and says what it knew before the loss.
    kernel.classes().set_quota(INNER, 1_000);
    operations.details_end();
    operations.details_are_back(0);
    request.call(Some(three_inner), 0);
    assert!(operations.lacks_details(), "it knows nothing of the loss");
    operations.details_end();
    operations.details_are_back(1);
    request.call(Some(three_inner), 0);
    let records = drain(&mut reader);
    assert_eq!(records.iter().map(|r| r.calls).collect::<Vec<_>>(), [3, 3]);
    drop((bounds, inner_link));
}
