//! The report's page in a browser: it sorts, searches and zooms, in light and dark, and runs nothing that a name holds.
//!
//! Chromium prints the page as it is once all scripts have run (`--dump-dom`). A script that is no part of the page clicks and types in a
//! copy of it, and leaves what it saw there. `cargo xtask test` installs Debian's `chromium`.

use profiler_core::recording::{Recording, SampleRow};
use profiler_core::report::Report;
use profiler_tests::support;
use profiler_user::output::{FileFormat, TextOptions, render};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Clicks and types, and writes what came of it into an element.
const ACTS: &str = include_str!("page/acts.js");

/// A name that would be code in a page that does not escape.
const HOSTILE: &str = "</span></td><script>window.hacked='script'</script>\"onclick=\"window.hacked='click'\"'<img src=x onerror=\"window.hacked='image'\">";

/// Longest that a browser may take, s.
const PATIENCE: u32 = 120;

/// A command that is ended, with what it started, when its time is over.
fn in_time(seconds: u32, program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &seconds.to_string()]).arg(program).stdin(Stdio::null());
    command
}

/// The first browser of a path that starts, or why there is none. On Ubuntu `chromium-browser` may be a script that only says where the browser is.
fn find_browser(path: &OsStr) -> Result<PathBuf, String> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut reasons = Vec::new();
    for found in std::env::split_paths(path).flat_map(|folder| names.map(|name| folder.join(name))) {
        if !found.is_file() {
            continue;
        }
        match in_time(30, &found).arg("--version").output() {
            Ok(output) if output.status.success() => return Ok(found),
            Ok(output) => reasons.push(format!(
                "{} does not start ({}: {})",
                found.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            )),
            Err(error) => reasons.push(format!("{} does not start ({error})", found.display())),
        }
    }
    if reasons.is_empty() {
        reasons.push("no chromium in PATH".to_owned());
    }
    Err(format!("{}; install Debian's package chromium, or run `cargo xtask test`", reasons.join("; ")))
}

/// A browser; `None`, and said, where there is none.
fn browser(test: &str) -> Option<PathBuf> {
    find_browser(&std::env::var_os("PATH").unwrap_or_default())
        .map_err(|reason| support::skip(test, &reason))
        .ok()
}

#[test]
fn a_browser_that_does_not_start_is_no_browser() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("there is room for a script");
    let stub = folder.path().join("chromium-browser");
    assert!(
        find_browser(folder.path().as_os_str()).is_err_and(|why| why.starts_with("no chromium in PATH;"))
    );
    let script = |text: &str| {
        std::fs::write(&stub, text).expect("a script can be written");
        std::fs::set_permissions(&stub, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    };
    script("#!/bin/sh\necho 'needs the chromium snap' >&2\nexit 1\n");
    let why = find_browser(folder.path().as_os_str()).expect_err("it does not start");
    assert!(
        why.contains("chromium-browser does not start") && why.contains("needs the chromium snap"),
        "{why}"
    );
    script("#!/bin/sh\necho Chromium 1\n");
    assert_eq!(find_browser(folder.path().as_os_str()), Ok(stub));
}

/// The run that README shows, one function of which calls itself [`HOSTILE`].
fn run() -> (Report, Recording) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the checkout");
    let mut recording = profiler_user::recording::open(&root.join("docs/readme/recording"))
        .expect("README's run can be read");
    let mut report = Report::from_recording(&recording);
    let row = report.rows.iter_mut().find(|row| row.name == "call").expect("redis calls call");
    row.name = HOSTILE.to_owned();
    row.module = HOSTILE.to_owned();
    for frame in recording.stacks.iter_mut().filter(|frame| frame.function == "call") {
        frame.function = HOSTILE.to_owned();
    }
    report.shorten_names();
    (report, recording)
}

/// Its page.
fn page() -> String {
    let (report, recording) = run();
    let bytes =
        render(&report, &recording, FileFormat::Html, TextOptions { rows: 20, ..TextOptions::default() })
            .expect("a page can be made");
    String::from_utf8(bytes).expect("a page is text")
}

/// Share of the CPU time whose stacks have a function of a module.
fn share_of(recording: &Recording, module: &str) -> f64 {
    let stacks: BTreeSet<u64> =
        recording.stacks.iter().filter(|f| f.module.contains(module)).map(|f| f.stack_id).collect();
    let weight = |all: bool| -> u64 {
        let counts = |s: &&SampleRow| all || stacks.contains(&s.stack_id);
        recording.samples.iter().filter(counts).map(|s| s.period_ns).sum()
    };
    weight(false) as f64 / weight(true) as f64
}

/// The page as the browser has it in the end.
fn dump(browser: &Path, page: &str, settings: &str) -> String {
    let folder = tempfile::tempdir().expect("there is room for a page");
    let file = folder.path().join("page.html");
    std::fs::write(&file, page).expect("a page can be written");
    let output = in_time(PATIENCE, browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .args(["--no-first-run", "--disable-extensions", "--window-size=1280,1000"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("--blink-settings={settings}"))
        .arg(format!("file://{}", file.display()))
        .env("HOME", folder.path())
        .output()
        .expect("the browser can be started");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && dom.contains("</html>"),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    dom
}

/// What [`ACTS`] saw. The copy's policy lets that script run, and nothing else that the page's own does not.
fn acted(browser: &Path, settings: &str) -> Value {
    let page = page();
    assert_eq!(page.matches("script-src ").count(), 1);
    let copy = page.replace("script-src ", "script-src 'nonce-acts' ");
    let copy = copy.replace("</body>", &format!("<script nonce=\"acts\">{ACTS}</script></body>"));
    let dom = dump(browser, &copy, settings);
    let said =
        dom.split("<pre id=\"acts\">").nth(1).unwrap_or_else(|| panic!("the script did not end: {dom}"));
    let said = said.split("</pre>").next().unwrap_or_default();
    let said = said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The share in what the page says of a search, %.
fn share_said(said: &str) -> f64 {
    let share =
        said.split_once("on the stacks of ").and_then(|(_, after)| after.split(' ').next()?.parse().ok());
    share.unwrap_or_else(|| panic!("no share in '{said}'"))
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|v| v.as_str().expect("a text")).collect()
}

/// Numbers of a column as it is shown, `None` for empty cells.
fn numbers(value: &Value) -> Vec<Option<f64>> {
    value.as_array().expect("a list").iter().map(Value::as_f64).collect()
}

fn is_sorted(column: &[Option<f64>], descending: bool) -> bool {
    let known: Vec<f64> = column.iter().copied().flatten().collect();
    let in_order = |w: &[f64]| if descending { w[0] >= w[1] } else { w[0] <= w[1] };
    // What is not known stands last.
    known.len() > 1 && known.windows(2).all(in_order) && column[..known.len()].iter().all(Option::is_some)
}

#[test]
fn the_page_sorts_searches_and_zooms_in_a_browser() {
    let Some(browser) = browser("the_page_sorts_searches_and_zooms_in_a_browser") else { return };
    // 1 is light.
    let seen = acted(&browser, "preferredColorScheme=1");
    let names = strings(&seen["names"]);
    assert_eq!(names[..2], ["lrangeCommand", "writeToClient"], "what was named comes first");

    // Sorting: the figures that are shown, in both orders, and back.
    assert!(is_sorted(&numbers(&seen["calls_down"]), true), "{}", seen["calls_down"]);
    assert!(is_sorted(&numbers(&seen["calls_up"]), false), "{}", seen["calls_up"]);
    assert_eq!(seen["sorts"], serde_json::json!(["descending", "ascending", null]));
    assert_eq!(strings(&seen["names_after"]), names, "the third click brings the order back");
    let mut by_name: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    by_name.sort();
    let sorted: Vec<String> = strings(&seen["by_name"]).iter().map(|name| name.to_lowercase()).collect();
    assert_eq!(sorted, by_name);
    assert!(numbers(&seen["calls_down"]).len() > 5, "{}", seen["calls_down"]);
    let (down, up) = (numbers(&seen["p90_down"]), numbers(&seen["p90_up"]));
    assert!(is_sorted(&down, true) && is_sorted(&up, false) && down != up, "{down:?} {up:?}");
    // By the part of the run, not by the words.
    let how = numbers(&seen["how_down"]);
    assert!(is_sorted(&how, true) && how.iter().all(Option::is_some), "{how:?}");

    // Searching: words in any order and case, in names and modules, in the table and in the flame graph.
    assert_eq!(strings(&seen["found"]), ["lrangeCommand"]);
    let said = seen["said"].as_str().expect("a text");
    assert!(said.starts_with(&format!("1 of {} rows, on the stacks of ", names.len())), "{said}");
    let share = share_said(said);
    let boxes = seen["marked"].as_f64().expect("a share");
    assert!((share - 100.0 * boxes).abs() < 0.1 && share > 50.0, "{said}, boxes {boxes}");
    let libc = strings(&seen["in_libc"]);
    assert!(libc.contains(&"write") && !libc.contains(&"lrangeCommand"), "{libc:?}");
    let recording = run().1;
    let (said, truth) = (seen["said_of_kernel"].as_str().expect("a text"), share_of(&recording, "[kernel]"));
    assert!(
        (share_said(said) - 100.0 * truth).abs() < 0.1 && truth > 0.01 && truth < 0.99,
        "{said}; {truth} by the recording"
    );
    let one_period = recording.samples.windows(2).all(|w| w[0].period_ns == w[1].period_ns);
    assert!(said.ends_with(if one_period { " % of the samples" } else { " % of the CPU time" }), "{said}");
    // Figures and units of a tooltip are no names.
    assert_eq!(seen["marked_by_figures"], serde_json::json!([0, 0, 0, 0]));
    assert_eq!(strings(&seen["cleared"]), names);

    // Zooming: the box is as wide as the page, its callers stay, its neighbours go, and back.
    let wide = numbers(&seen["widths"]);
    let wide: Vec<f64> = wide.into_iter().flatten().collect();
    assert!(wide[0] < 0.95 && (wide[1] - 1.0).abs() < 0.01 && (wide[2] - wide[0]).abs() < 0.01, "{wide:?}");
    assert_eq!((seen["root_stays"].as_bool(), seen["neighbours_gone"].as_bool()), (Some(true), Some(true)));

    // Names are text, and nothing came from elsewhere.
    assert_eq!(seen["hacked"], Value::Null);
    assert_eq!(
        (seen["scripts"].as_u64(), seen["images"].as_u64(), seen["fetched"].as_u64()),
        (Some(2), Some(0), Some(0))
    );
    assert_eq!(seen["hostile_title"], HOSTILE, "a tooltip has the name as it is");
    readable(&seen, "light");

    let dark = acted(&browser, "preferredColorScheme=0");
    readable(&dark, "dark");
    assert_ne!(dark["background"], seen["background"]);
}

/// Contrast of every kind of text with what lies behind it, as WCAG 2.1 wants it of small text.
fn readable(seen: &Value, scheme: &str) {
    assert_eq!(seen["dark"], scheme == "dark", "the scheme is {scheme}");
    let contrasts = seen["contrasts"].as_object().expect("a contrast for each kind");
    assert!(contrasts.len() >= 20 && contrasts.contains_key("hit on .k"), "{contrasts:?}");
    for (what, contrast) in contrasts {
        assert!(contrast.as_f64().is_some_and(|c| c >= 4.5), "{scheme}: {what} has {contrast}");
    }
}

#[test]
fn without_its_script_the_page_is_a_plain_table() {
    let Some(browser) = browser("without_its_script_the_page_is_a_plain_table") else { return };
    let page = page();
    // A policy that runs no script: `--dump-dom` prints nothing where the browser itself has them switched off.
    let policy = page.find("script-src ").expect("the page has a policy");
    let end = policy + page[policy..].find(';').expect("a policy's part ends");
    let dom =
        dump(&browser, &page.replace(&page[policy..end], "script-src 'none'"), "preferredColorScheme=1");
    assert!(dom.contains("<div id=\"find\" hidden=\"\">") && !dom.contains("<button"), "{dom}");
    assert!(
        dom.contains("<span id=\"how\" hidden=\"\">A click on a box"),
        "what needs the script is not told: {dom}"
    );
    assert_eq!(dom.matches("<tr").count(), page.matches("<tr").count());
    // With it there is a search box, so that the test would see the script run.
    let dom = dump(&browser, &page, "preferredColorScheme=1");
    assert!(dom.contains("<div id=\"find\">") && dom.contains("<button>"), "{dom}");
    assert!(dom.contains("<span id=\"how\">A click on a box"), "{dom}");
}
