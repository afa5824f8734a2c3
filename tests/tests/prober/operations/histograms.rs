//! Response times of all operations, recorded or not, in the histograms of their classes.

use super::*;
use profiler_user::prober::histogram::bucket;
use std::time::Duration;

function!(slow_request);

fn total(kernel: &Kernel, class: u32) -> Option<u64> {
    kernel.operations().histogram(class).map(|counts| counts.iter().sum())
}

#[test]
fn every_operation_is_in_the_histogram_of_its_class() {
    for (kind, sites) in [
        (LinkKind::OperationReturn, vec![request.entry(BOUND)]),
        (LinkKind::OperationExits, vec![request.entry(BOUND), request.exit(BOUND)]),
    ] {
        let kernel = load(&options(16));
        let mut reader = kernel.operation_reader().unwrap();
        // A third is recorded: those are a part of the histogram as they are of the population.
        configure(&kernel, ARGUMENT_INT, 1, OPERATION_MONITORING, 16, 0.33);
        assert_eq!(total(&kernel, 2), None, "no operation has ended");
        let attached = attach(&kernel, kind, sites);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..2_000 {
                        request.call(None, i % 5);
                    }
                });
            }
        });
        // The rest while nothing is recorded.
        kernel.operations().adjust(0, |c| c.flags = 0);
        for _ in 0..400 {
            request.call(None, 3);
        }
        drop(attached);
        let names = reader.new_names();
        assert_eq!(names.len(), 5);
        for name in names {
            let c = kernel.operations().counters(name.class);
            let expected = if name.name == "3" { 2_000 } else { 1_600 };
            assert_eq!((c.population.n, total(&kernel, name.class)), (expected, Some(expected)), "{name:?}");
            assert!(c.sample.n < 900, "{name:?}: {} recorded", c.sample.n);
            // The mean lies where the histogram says.
            let counts = kernel.operations().histogram(name.class).unwrap();
            let bounds = |at: usize| profiler_user::prober::histogram::bounds(at as u32);
            let sum = |end: fn((u64, u64)) -> u64| -> u64 {
                (0..counts.len()).filter(|i| counts[*i] > 0).map(|i| counts[i] * end(bounds(i))).sum()
            };
            assert!((sum(|b| b.0)..sum(|b| b.1)).contains(&c.population.sum), "{name:?}");
        }
        assert_eq!(total(&kernel, BASE), None);
    }
}

extern "C" fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[test]
fn times_are_those_of_the_operations() {
    let kernel = load(&options(4));
    configure(&kernel, 0, 0, OPERATION_MONITORING, 4, 1.0);
    let mut reader = kernel.operation_reader().unwrap();
    let sites = vec![slow_request.entry(BOUND), slow_request.exit(BOUND)];
    let attached = attach(&kernel, LinkKind::OperationExits, sites);
    for ms in [1, 1, 1, 20, 5] {
        slow_request.call(Some(sleep_ms), ms);
    }
    drop(attached);
    let mut expected = vec![0; profiler_user::prober::histogram::BUCKETS];
    for record in drain(&mut reader) {
        expected[bucket(record.duration_ns) as usize] += 1;
    }
    assert_eq!(expected.iter().sum::<u64>(), 5);
    assert_eq!(kernel.operations().histogram(BASE).unwrap()[..], expected[..]);
}

#[test]
fn classes_beyond_the_histograms_have_none_and_are_counted_all_the_same() {
    // Of 16 classes three can have one.
    let kernel = load(&KernelOptions { operation_histograms: 3, ..options(16) });
    let mut reader = kernel.operation_reader().unwrap();
    configure(&kernel, ARGUMENT_INT, 1, 0, 16, 0.0);
    let attached = attach(&kernel, LinkKind::OperationReturn, vec![request.entry(BOUND)]);
    for i in 0..70 {
        request.call(None, i % 7);
    }
    drop(attached);
    let names = reader.new_names();
    let totals: Vec<Option<u64>> = (0..7)
        .map(|i| total(&kernel, names.iter().find(|n| n.name == i.to_string()).unwrap().class))
        .collect();
    assert_eq!(totals, [Some(10), Some(10), Some(10), None, None, None, None]);
    assert!(names.iter().all(|n| kernel.operations().counters(n.class).population.n == 10));
}
