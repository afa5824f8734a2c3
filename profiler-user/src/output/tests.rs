mod hostile;
mod rows;

use super::sample::report;
use super::*;
use crate::recording::sample::recording;
use expect_test::{Expect, expect};
use profiler_core::estimate::Estimate;
use profiler_core::report::Row;
use prost::Message;
use std::io::Read;

fn rendered(format: FileFormat) -> String {
    String::from_utf8(render(&report(), &recording(), format, TextOptions::default()).unwrap()).unwrap()
}

fn check_text(width: usize, expect: Expect) {
    let text = text(&report(), TextOptions { width, ..TextOptions::default() });
    for line in text.lines() {
        assert!(line.chars().count() <= width, "{width} columns: '{line}' has {}", line.chars().count());
    }
    expect.assert_eq(&text);
}

#[test]
fn table_and_receipt_in_80_columns() {
    check_text(
        80,
        expect![[r#"
            server (pid 1234): 10.0 s, 0.81 CPUs ±1 %, 990 samples, budget 2%

            FUNCTION                                    CPU          CALLS         TIME/CALL
            db::query                           42.1 ±2.1 %        5,010 E  80.2 us ±0.9 % E
            parse                               31.0 ±1.9 %  12.3 M ±3 % B
            core::…::Iterator::for_each          1.2 ±0.6 %
            CPU, SELF from samples; E exact, B burst (scaled from windows), S sampled, D
            derived (CPU/CALL = share / rate); ± half the interval's width (95 %)

            TIME OF A CALL           P50          P90           P99              MAX  TIMED
            db::query       66.6 us ±2 %  120 us ±2 %  1.20 ms ±8 %  9.00 ms ±<0.1 %  4,990
            what probes cost is taken out; MAX is the longest call that was timed; ≤:
            shorter than what that cost is known to; ≥, ?: calls that were not timed may
            have taken any time

            hits lost: db::query 6 of 5,010
            probe cost taken out of TIME/CALL: db::query 200 ns
            db::query: P50 and mean of durations are known to 10 %
            parse: inlined copies are not counted

            CALLS/S WOULD BE SHARPER
            server::handle_request: ±32.0 % now; at --budget 8% or --duration 40s ±16.0 %

            Budget receipt
              allowed       2% of the target's own CPU time, 8.00 s: 160 ms
              predicted     0.85 %: 68.0 ms (hits, samples and switches times their prices,
                            calibrated); worst second 1.7 %
              plan          mean interval of shares and calls/s ±13.5 % expected (none
                            counted below ±5 %), no plan brings it below ±13.4 % (gap 0.0100
                            in its log)
              measured      1.4 % (0.73 % to 2.0 %, 95 %): 10 of 1,000 samples fell into
                            traps, 1.0 % (0.41 % to 1.6 %); samples and switches at prices
                            measured as the run ended, and attaching, 0.27 % (0.20 % to
                            0.34 %); what traps leave behind in caches, by calibration,
                            0.070 % (0 % to 0.14 %)
              check         1.1 % (0.60 % to 1.6 %, 95 %): slowdown of system calls in 20
                            pairs of windows with and without monitoring; 20 % trimmed mean,
                            block jackknife
              spent on      traced 31.0 ms, bursts 12.0 ms, survey 3.00 ms, samples 19.8 ms,
                            context switches 1.20 ms, attach 1.00 ms
              beside it     400 us taken from other processes (not part of the budget)
              breaker       1 class tripped; 1,204 used-up quotas, the slowest answered
                            after 61.0 ms (the machine had 70.0 ms stolen in the 1.20 s
                            around it)
              hits lost     6 of 374,010 (0.002 %)
              samples lost  1 of 1,001 (0.100 %): 1 ring full
              agent         0.60 % of one CPU (0.42 % of 2.0 % allowed from the fifth second
                            on), 41 MiB resident; 12 MiB in the kernel
              in all        168 ms of CPU time: the target's 108 ms (measured), the agent's
                            60.0 ms, other processes' 400 us
              private pages 37 of the target's text, 160 KiB; /sys/fs/cgroup/web left it
                            48 MiB; 2 functions had no room
              others' forks held up for 81.0 ms in all, 900 us at once, while 270 sites were
                            registered and unregistered in files that others map (1,500
                            processes map /lib/libc.so.6); 1 function would have taken too
                            long
              tier          A (uprobe session links)
            What changed
              1.9 s: plan 1: 1 of 3 functions traced, 1 in bursts, 99 samples per CPU
                second; traced: db::query; because 3 functions were surveyed
              3.0 s: parse tripped the breaker 1,204 times, last at 7.2 s: 1,000 calls in
                0.20 ms used up its quota
              4.0 s: modules: libplugin.so came
            Not observed
              libc.so.6:memcpy: IFUNC not resolved in the target
            Warnings
              the timer interrupt is late in the kernel
        "#]],
    );
}

#[test]
fn table_and_receipt_in_120_columns() {
    check_text(
        120,
        expect![[r#"
            server (pid 1234): 10.0 s, 0.81 CPUs ±1 %, 990 samples, budget 2%

            FUNCTION                                  CPU         SELF          CALLS        CPU/CALL         TIME/CALL          HOW
            db::query                         42.1 ±2.1 %  10.1 ±1.2 %        5,010 E  68.1 us ±5 % D  80.2 us ±0.9 % E        trace
            parse                             31.0 ±1.9 %  30.0 ±1.9 %  12.3 M ±3 % B   204 ns ±7 % D                    burst 3.0 %
            core::…::Iterator::for_each        1.2 ±0.6 %   0.2 ±0.3 %                                                        sample
            CPU, SELF from samples; E exact, B burst (scaled from windows), S sampled, D derived (CPU/CALL = share / rate); ± half
            the interval's width (95 %)

            TIME OF A CALL           P50          P90           P99              MAX  TIMED
            db::query       66.6 us ±2 %  120 us ±2 %  1.20 ms ±8 %  9.00 ms ±<0.1 %  4,990
            what probes cost is taken out; MAX is the longest call that was timed; ≤: shorter than what that cost is known to; ≥, ?:
            calls that were not timed may have taken any time

            hits lost: db::query 6 of 5,010
            probe cost taken out of TIME/CALL: db::query 200 ns
            db::query: P50 and mean of durations are known to 10 %
            parse: inlined copies are not counted

            CALLS/S WOULD BE SHARPER
            server::handle_request: ±32.0 % now; at --budget 8% or --duration 40s ±16.0 %

            Budget receipt
              allowed       2% of the target's own CPU time, 8.00 s: 160 ms
              predicted     0.85 %: 68.0 ms (hits, samples and switches times their prices, calibrated); worst second 1.7 %
              plan          mean interval of shares and calls/s ±13.5 % expected (none counted below ±5 %), no plan brings it below
                            ±13.4 % (gap 0.0100 in its log)
              measured      1.4 % (0.73 % to 2.0 %, 95 %): 10 of 1,000 samples fell into traps, 1.0 % (0.41 % to 1.6 %); samples and
                            switches at prices measured as the run ended, and attaching, 0.27 % (0.20 % to 0.34 %); what traps leave
                            behind in caches, by calibration, 0.070 % (0 % to 0.14 %)
              check         1.1 % (0.60 % to 1.6 %, 95 %): slowdown of system calls in 20 pairs of windows with and without
                            monitoring; 20 % trimmed mean, block jackknife
              spent on      traced 31.0 ms, bursts 12.0 ms, survey 3.00 ms, samples 19.8 ms, context switches 1.20 ms, attach
                            1.00 ms
              beside it     400 us taken from other processes (not part of the budget)
              breaker       1 class tripped; 1,204 used-up quotas, the slowest answered after 61.0 ms (the machine had 70.0 ms
                            stolen in the 1.20 s around it)
              hits lost     6 of 374,010 (0.002 %)
              samples lost  1 of 1,001 (0.100 %): 1 ring full
              agent         0.60 % of one CPU (0.42 % of 2.0 % allowed from the fifth second on), 41 MiB resident; 12 MiB in the
                            kernel
              in all        168 ms of CPU time: the target's 108 ms (measured), the agent's 60.0 ms, other processes' 400 us
              private pages 37 of the target's text, 160 KiB; /sys/fs/cgroup/web left it 48 MiB; 2 functions had no room
              others' forks held up for 81.0 ms in all, 900 us at once, while 270 sites were registered and unregistered in files
                            that others map (1,500 processes map /lib/libc.so.6); 1 function would have taken too long
              tier          A (uprobe session links)
            What changed
              1.9 s: plan 1: 1 of 3 functions traced, 1 in bursts, 99 samples per CPU second; traced: db::query; because 3 functions
                were surveyed
              3.0 s: parse tripped the breaker 1,204 times, last at 7.2 s: 1,000 calls in 0.20 ms used up its quota
              4.0 s: modules: libplugin.so came
            Not observed
              libc.so.6:memcpy: IFUNC not resolved in the target
            Warnings
              the timer interrupt is late in the kernel
        "#]],
    );
}

#[test]
fn a_rate_without_upper_end_is_shown_as_at_least() {
    let rate = Estimate {
        low: 4.12e6,
        high: f64::INFINITY,
        level: 0.95,
        source: profiler_core::class::Source::Burst,
        ..Estimate::exact(5e6, 500)
    };
    assert_eq!(table::at_least(Some(&rate), |e| units::si(e.value)), "≥ 4.12 M B");
    assert_eq!(
        table::at_least(Some(&Estimate { high: 6e6, ..rate }), |e| units::si(e.value)),
        "5.00 M ±19 % B"
    );
    let time = Estimate { low: 0.0, high: 2.3, ..rate };
    let row = Row { rate_hz: Some(rate), on_cpu_ns: Some(time), ..report().rows[0].clone() };
    assert_eq!(table::cpu_per_call(&row, row.on_cpu_ns.as_ref()), "≤ 2.30 ns B");
}

/// A time below its own uncertainty is a limit in every face, and nothing is `0 ±?`.
#[test]
fn a_time_that_is_only_known_to_be_short_is_a_limit() {
    let mut report = report();
    let limit = Estimate { low: 0.0, high: 340.0, level: 0.95, at_most: true, ..Estimate::exact(0.0, 900) };
    report.rows[1].mean_ns = Some(limit);
    report.rows[1].quantiles_ns = vec![(0.5, limit), (1.0, Estimate { high: 1_200.0, ..limit })];
    report.rows[2].calls = Some(Estimate { at_most: false, ..limit });
    let shown = text(&report, TextOptions { width: 120, ..TextOptions::default() });
    assert!(shown.contains("≤ 340 ns E") && shown.contains("≤ 1.20 us"), "{shown}");
    assert!(!shown.contains(" 0 ns") && !shown.contains(" 0 ±") && shown.contains("≤ 340 E"), "{shown}");
    let page = html::page(&report, &recording(), TextOptions::default(), &[]);
    assert!(page.contains(">≤ 340 ns<small>limit, all calls<") && page.contains(">≤ 1.20 us<"), "{page}");
    let json = render(&report, &recording(), FileFormat::Json, TextOptions::default()).unwrap();
    let back: profiler_core::report::Report = serde_json::from_slice(&json).unwrap();
    assert_eq!(back, report);
    assert!(String::from_utf8(json).unwrap().contains("\"at_most\": true"));
}

#[test]
fn a_distribution_is_drawn() {
    use profiler_core::report::Distribution;
    let mut recording = recording();
    let found = Distribution::of(&recording, "db::query");
    let options = TextOptions { width: 80, ..TextOptions::default() };
    expect![[r#"
        db::query: 4,990 calls; 500 ns of probe cost taken out of each on average
                      TIME  COUNT   SHARE   UP TO
        60.1 us to 65.5 us  1,209  24.2 %  24.2 %  ███████████▉
        65.5 us to 71.5 us  3,781  75.8 %   100 %  █████████████████████████████████████
    "#]]
    .assert_eq(&distribution_text(&found, options));
    for line in distribution_text(&found, options).lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let of = |format, found: &[Distribution]| render_with(&report(), &recording, format, options, found);
    let page = String::from_utf8(of(FileFormat::Html, &found).unwrap()).unwrap();
    assert!(page.contains("class=\"bins\"") && page.contains("db::query: "), "{page}");
    let json: Vec<Distribution> = serde_json::from_slice(&of(FileFormat::Json, &found).unwrap()).unwrap();
    assert_eq!(json, found);
    assert!(of(FileFormat::Svg, &found).unwrap_err().to_string().contains("--histogram"));
    // Of an operation: all that ended; where a recording has no histogram of them, those that were recorded.
    let titles =
        |r: &Recording| -> Vec<String> { Distribution::of(r, "req").iter().map(durations::title).collect() };
    assert!(titles(&recording)[0].ends_with(": 100 operations"), "{:?}", titles(&recording));
    recording.operation_histograms.clear();
    assert!(titles(&recording)[0].contains("recorded operations"), "{:?}", titles(&recording));
    recording.operations.clear();
    assert!(titles(&recording).is_empty() && !Distribution::names(&recording).contains(&"req".to_owned()));
}

#[test]
fn each_loss_of_the_kernel_side_is_on_the_receipt() {
    let losses = |report: &profiler_core::report::Report| -> Vec<String> {
        let lines = super::receipt::lines(report).into_iter();
        lines
            .filter(|(label, _)| label.contains("lost") || label.contains("short"))
            .map(|(l, t)| format!("{l}: {t}"))
            .collect()
    };
    let mut report = report();
    assert_eq!(losses(&report).len(), 2, "what did not happen has no line");
    let l = &mut report.receipt.losses;
    (l.no_thread_state, l.samples_short_stack, l.alarms_dropped, l.lifecycle_dropped) = (7, 99, 3, 12);
    expect![[r#"
        hits lost: 6 of 374,010 (0.002 %); for 7 timed calls and begins of operations the kernel had no memory to keep their thread's state: such calls are among the lost hits, such operations are missing
        samples lost: 1 of 1,001 (0.100 %): 1 ring full
        short stacks: 99 of 1,000 (9.9 %): less was there than is copied, because the stack ends there or its next page was not in memory (then it is cut)
        events lost: 12 births and deaths of threads and children (ring full): the living were looked for again, children that ended unseen are not charged; 3 alarms of used-up quotas (ring full): all quotas were looked at"#]].assert_eq(&losses(&report).join("\n"));
    let page = super::html::page(&report, &recording(), TextOptions::default(), &[]);
    assert!(page.contains("<dt>events lost</dt><dd>12 births and deaths"));
    let json = serde_json::to_string(&report).unwrap();
    assert!(json.contains("\"alarms_dropped\":3,\"lifecycle_dropped\":12"), "{json}");
}

#[test]
fn colours_change_no_text() {
    let plain = text(&report(), TextOptions::default());
    let coloured = text(&report(), TextOptions { colours: true, ..TextOptions::default() });
    assert!(coloured.contains("\x1b[1m"));
    let mut stripped = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once("\x1b[") {
        stripped.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    stripped.push_str(rest);
    assert_eq!(stripped, plain);
}

#[test]
fn json_is_the_report() {
    let back: profiler_core::report::Report = serde_json::from_str(&rendered(FileFormat::Json)).unwrap();
    assert_eq!(back, report());
}

#[test]
fn folded_stacks() {
    expect![[r#"
        [truncated];main;db::query;db::read_[i];copy_to_user_[k] 1
        main;db::query;db::read_[i];copy_to_user_[k] 3
        main;db::query;parse 6
    "#]]
    .assert_eq(&rendered(FileFormat::Folded));
}

#[test]
fn where_periods_differ_stacks_are_weighted_with_time() {
    let mut r = recording();
    r.samples[0].period_ns = 1_000_000;
    let folded =
        String::from_utf8(render(&report(), &r, FileFormat::Folded, TextOptions::default()).unwrap())
            .unwrap();
    // 5 samples of 10,101 us and one of 1,000 us.
    assert!(folded.contains("main;db::query;parse 51506\n"), "{folded}");
}

#[test]
fn flame_graph_says_that_it_shows_samples_and_how_many() {
    let svg = rendered(FileFormat::Svg);
    assert!(
        svg.starts_with("<?xml") && svg.contains("on-CPU samples") && svg.contains("n = 10 samples"),
        "{svg}"
    );
    assert!(svg.contains("parse (6 samples, 60.00%)"), "{svg}");
    assert_eq!(svg, rendered(FileFormat::Svg), "the same recording gives the same picture");
}

#[test]
fn pprof_decodes_to_the_samples() {
    let gz = render(&report(), &recording(), FileFormat::Pprof, TextOptions::default()).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(gz.as_slice()).read_to_end(&mut bytes).unwrap();
    let p = pprof::Profile::decode(bytes.as_slice()).unwrap();
    let s = |i: i64| p.string_table[usize::try_from(i).unwrap()].as_str();
    assert_eq!(s(0), "");
    let types: Vec<_> = p.sample_type.iter().map(|t| (s(t.ty), s(t.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    let total: i64 = p.sample.iter().map(|s| s.value[0]).sum();
    let cpu: i64 = p.sample.iter().map(|s| s.value[1]).sum();
    assert_eq!((total, cpu), (10, 10 * 10_101_010));
    assert_eq!((p.period, p.duration_nanos), (10_101_010, 10_000_000_000));
    // The kernel stack: leaf first; the inlined call shares the location of the function around it.
    let mut stacks: Vec<String> = p
        .sample
        .iter()
        .map(|sample| {
            let locations = sample.location_id.iter().map(|id| &p.location[*id as usize - 1]);
            let names = locations.map(|l| {
                let names = l.line.iter().map(|line| s(p.function[line.function_id as usize - 1].name));
                names.collect::<Vec<_>>().join("+")
            });
            let module =
                |id: &u64| s(p.mapping[p.location[*id as usize - 1].mapping_id as usize - 1].filename);
            format!("{} in {}", names.collect::<Vec<_>>().join(" < "), module(&sample.location_id[0]))
        })
        .collect();
    stacks.sort();
    stacks.dedup();
    assert_eq!(
        stacks,
        [
            "copy_to_user < db::read+db::query < main in [kernel]",
            "parse < db::query < main in /usr/bin/server"
        ]
    );
    let server = &p.mapping[0];
    assert_eq!(s(server.filename), "/usr/bin/server", "the main program comes first");
    assert!(server.has_functions && server.memory_limit > 0x3000);
}

#[test]
fn speedscope_frames_and_weights_belong_together() {
    let v: serde_json::Value = serde_json::from_str(&rendered(FileFormat::Speedscope)).unwrap();
    let frames = v["shared"]["frames"].as_array().unwrap();
    let profiles = v["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2, "one per thread");
    let mut n = 0;
    for p in profiles {
        let (samples, weights) = (p["samples"].as_array().unwrap(), p["weights"].as_array().unwrap());
        assert_eq!(samples.len(), weights.len());
        n += samples.len();
        let sum: u64 = weights.iter().map(|w| w.as_u64().unwrap()).sum();
        assert_eq!(p["endValue"].as_u64().unwrap(), sum);
        for frame in samples.iter().flat_map(|s| s.as_array().unwrap()) {
            assert!((frame.as_u64().unwrap() as usize) < frames.len());
        }
    }
    assert_eq!(n, 10);
    let first: Vec<_> = profiles[0]["samples"][0]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| &frames[i.as_u64().unwrap() as usize]["name"])
        .collect();
    assert_eq!(first, ["main", "db::query", "parse"], "outermost first");
}

/// Every column of a table has its length, every index lies in its table, prefixes come before.
#[test]
fn firefox_tables_are_consistent() {
    let v: serde_json::Value = serde_json::from_str(&rendered(FileFormat::Firefox)).unwrap();
    let shared = &v["shared"];
    let len = |t: &serde_json::Value| t["length"].as_u64().unwrap();
    let mut tables = vec![];
    for name in ["frameTable", "funcTable", "stackTable", "resourceTable", "nativeSymbols", "sources"] {
        tables.push(&shared[name]);
    }
    for t in v["threads"].as_array().unwrap() {
        tables.push(&t["samples"]);
        tables.push(&t["markers"]);
    }
    for table in tables {
        for (column, values) in table.as_object().unwrap() {
            if let Some(values) = values.as_array() {
                assert_eq!(values.len() as u64, len(table), "{column}");
            }
        }
    }
    let below = |values: &serde_json::Value, limit: u64| {
        for v in values.as_array().unwrap().iter().filter_map(serde_json::Value::as_u64) {
            assert!(v < limit, "{v} of {limit}");
        }
    };
    below(&shared["frameTable"]["func"], len(&shared["funcTable"]));
    below(&shared["funcTable"]["name"], shared["stringArray"].as_array().unwrap().len() as u64);
    below(&shared["funcTable"]["resource"], v["libs"].as_array().unwrap().len() as u64);
    below(&shared["stackTable"]["frame"], len(&shared["frameTable"]));
    for (i, prefix) in shared["stackTable"]["prefix"].as_array().unwrap().iter().enumerate() {
        assert!(prefix.as_u64().is_none_or(|p| p < i as u64));
    }
    let threads = v["threads"].as_array().unwrap();
    assert_eq!(threads.iter().map(|t| len(&t["samples"])).sum::<u64>(), 10);
    assert_eq!(threads.iter().map(|t| len(&t["markers"])).sum::<u64>(), 2);
    for t in threads {
        below(&t["samples"]["stack"], len(&shared["stackTable"]));
    }
}

#[test]
fn chrome_trace_has_calls_samples_and_overhead() {
    let v: serde_json::Value = serde_json::from_str(&rendered(FileFormat::Chrome)).unwrap();
    let events = v["traceEvents"].as_array().unwrap();
    let of = |ph: &str, cat: &str| {
        events.iter().filter(|e| e["ph"] == ph && (cat.is_empty() || e["cat"] == cat)).collect::<Vec<_>>()
    };
    let call = of("X", "call");
    assert_eq!(call.len(), 1);
    assert_eq!(
        (&call[0]["name"], call[0]["ts"].as_f64(), call[0]["dur"].as_f64()),
        (&"db::query".into(), Some(100_000.0), Some(80.0))
    );
    assert_eq!(call[0]["args"]["registers"][1], "0xffffffffffffffff");
    assert!(call[0]["args"]["registers"][4].is_null(), "lost at its site");
    assert_eq!((&call[0]["args"]["blocked_ns"], call[0]["args"].get("io_wait_ns")), (&20_000.into(), None));
    assert_eq!(of("i", "call").len(), 1, "a call without an end is an instant");
    assert_eq!(of("i", "sample").len(), 10);
    let overhead = of("C", "")[0]["args"]["predicted"].as_f64().unwrap();
    // (651,300 + 1,217,700) / (800,000,000 - 1,869,000)
    assert!((overhead - 0.234_172).abs() < 1e-5, "{overhead}");
}

#[test]
fn the_extension_decides() {
    let f = |name: &str| FileFormat::of_path(Path::new(name)).ok();
    assert_eq!(f("a/run.html"), Some(FileFormat::Html));
    assert_eq!(f("run.pb.gz"), Some(FileFormat::Pprof));
    assert_eq!(f("x.speedscope.json"), Some(FileFormat::Speedscope));
    assert_eq!(f("X.TRACE.JSON"), Some(FileFormat::Chrome));
    assert_eq!(f("x.json"), Some(FileFormat::Json));
    expect!["cannot tell the format of 'out.pdf': the name must end in one of .txt .json .html .svg .folded .pb.gz .pprof .speedscope.json .firefox.json .trace.json"].assert_eq(&FileFormat::of_path(Path::new("out.pdf")).unwrap_err().to_string());
}

#[test]
fn without_samples_there_is_no_flame_graph_and_the_error_says_why() {
    let mut r = recording();
    r.samples.clear();
    let error = render(&report(), &r, FileFormat::Svg, TextOptions::default()).unwrap_err().to_string();
    expect!["the recording has no samples, so there is no flame graph to draw; record with sampling on (--sample-rate) or for longer"].assert_eq(&error);
    render(&report(), &r, FileFormat::Html, TextOptions::default()).unwrap();
}

/// Every ending that is accepted is in `docs/formats.md` and in the error's list.
#[test]
fn every_extension_is_documented() {
    let docs = include_str!("../../../docs/formats.md");
    let error = OutputError::UnknownExtension(String::new()).to_string();
    for (ending, _) in ENDINGS.iter().filter(|(e, _)| *e != ".htm") {
        assert!(docs.contains(&format!("`{ending}`")), "{ending}");
        assert!(error.contains(ending), "{ending}");
    }
}

#[test]
fn operations_follow_the_table() {
    let recording = crate::recording::sample::recording();
    let report = Report::from_recording(&recording);
    let text = super::operations::text(&report, TextOptions { width: 100, rows: 5, colours: false });
    expect![[r#"

        Operation req (req=handle,class=arg0:str): 100 at 112/s in 0.90 s watched (9.0 % of the run), 1 recorded, policy tithe
        CLASS   COUNT  MEAN TIME      P50        P99      P99.9  RECORDED      OFF CPU  CALLS      MEASURE
        GET /a    100    2.50 ms  2.02 ms  ≥ 5.24 ms  ≥ 5.24 ms         1  200 us ±? S   12.0  4.10 k ±? S
          1 more have no known time (their end was not seen, or all histograms had been given): quantiles
            allow for any time of theirs
          measure: calls of inner functions; average rate 23.8 %; largest difference of a class's shares in
            sample and population 0 %
          the measure does not speak of 8.0 % of the operations: nothing was recorded in their stretches
          cycles: 1 (1 by the time limit), 8.00 s to 8.00 s, mean 8.00 s
          1 without an end, at least 4 ends without a begin or begins without room, 1 recorded and not
            ended, 3 records lost
          cost: screening 242 us (number times price), inside recorded operations 374 us
    "#]]
    .assert_eq(&text);
    let page = html::page(&report, &recording, TextOptions { width: 100, rows: 5, colours: false }, &[]);
    assert!(page.contains("<td>GET /a</td><td>100</td><td>2.50 ms</td>"), "{page}");
}
