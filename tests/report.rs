//! Reports of the monitor as JSON, as a page that a real browser opens, and as a trace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::reports::TensorReport;
use serde_json::Value;

use crate::common::{BACKENDS, Rig};

/// A report of a few frames of a model whose name must be escaped in HTML.
fn watched(backend: Backend) -> TensorReport {
    let mut rig = Rig::new(backend);
    let world = rig.app.world_mut();
    let model = world.spawn((TensorModel, Name::new("<b>\"model\" & co</b>"))).id();
    let numbers: Vec<f32> = (0..96 * 96).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let tensor = Tensor::from_slice(&numbers, [96, 96]).unwrap();
    let x = world.spawn((tensor, TensorOf(model), Name::new("x"))).id();
    assert!(rig.app.world_mut().resource_mut::<TensorMonitor>().stop().is_none(), "{backend}: it was not started");
    rig.app.world_mut().resource_mut::<TensorMonitor>().start();
    for _ in 0..24 {
        rig.record(move |ops| {
            let product = ops.matmul(x, x)?;
            let soft = ops.softmax(product, -1)?;
            ops.store(soft, x)
        })
        .unwrap();
        rig.app.update();
    }
    let diagnostics = rig.app.world().resource::<TensorDiagnostics>().clone();
    let measured =
        || diagnostics.timings().map_or(0, |report| report.kernels.iter().map(|k| k.stats.count).sum::<u64>());
    rig.step_until(|_| measured() == 48);
    let report = rig.app.world_mut().resource_mut::<TensorMonitor>().stop().expect("it was running");
    assert!(!diagnostics.timings_on(), "{backend}: as before");
    assert_eq!(rig.faults(), []);
    report
}

#[test]
fn a_report_adds_up() {
    for backend in BACKENDS {
        let report = watched(backend);
        let launches = report.launches + report.cpu_kernels;
        assert_eq!(launches, 48, "{backend}: {report:?}");
        assert!(report.frames >= 24 && report.duration > Duration::ZERO);
        let names: Vec<&str> = report.kernels.iter().map(|row| row.name).collect();
        assert!(names.contains(&"matmul") && names.contains(&"softmax"), "{names:?}");
        for rows in [&report.kernels, &report.ops] {
            assert_eq!(rows.iter().map(|row| row.launches).sum::<u64>(), launches, "{backend}");
            for row in rows {
                assert!(row.min <= row.mean() && row.mean() <= row.max && row.p95 <= row.max, "{row:?}");
                assert!(row.peak_bytes > 0 && row.bytes >= row.peak_bytes);
            }
        }
        assert!(report.ops.iter().all(|row| row.detail.contains("report.rs")), "{:?}", report.ops);
        let total: Duration = report.kernels.iter().map(|row| row.total).sum();
        assert_eq!(report.timeline.iter().map(|frame| frame.busy).sum::<Duration>(), total);
        assert_eq!(report.models.len(), 1);
        assert_eq!((report.models[0].launches, report.models[0].total), (launches, total));
        assert!(report.models[0].name.contains("model"));
        if backend == Backend::Gpu {
            assert!(report.compiled.len() >= 2 && report.compile > Duration::ZERO && report.pipeline_misses >= 2);
            assert!(report.hit_rate().is_some_and(|rate| (0.0..=1.0).contains(&rate)));
            assert!(report.models[0].peak_device_bytes >= 96 * 96 * 4);
            assert!(report.peak_device_bytes >= report.models[0].peak_device_bytes);
        }
    }
}

#[test]
fn a_trace_is_in_the_trace_event_format() {
    let report = watched(Backend::Gpu);
    let text = report.to_trace().to_string();
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let launches: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(launches.len(), 48);
    let mut last = 0.0;
    for event in launches {
        // Required fields of a complete event.
        assert!(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        assert!(ts >= last && dur >= 0.0, "in order: {event}");
        last = ts;
        assert!(event["args"]["frame"].is_u64() && event["args"]["site"].as_str().unwrap().contains("report.rs"));
    }
    assert!(events.iter().any(|event| event["ph"] == "M" && event["name"] == "process_name"));
    let counters: Vec<&Value> = events.iter().filter(|event| event["ph"] == "C").collect();
    assert_eq!(counters.len(), report.memory.len());
    assert!(counters.iter().all(|event| event["args"]["bytes"].is_u64()));
}

/// The browser, if one is installed. With `TENSOR_CHROMIUM=required`, a missing browser is a failure.
fn chromium() -> Option<PathBuf> {
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(|name| {
        let folders = std::env::var_os("PATH")?;
        std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
    });
    if found.is_none() {
        let message =
            "no Chromium: the page was not opened in a browser; apt-get install chromium, or run scripts/test";
        assert!(std::env::var_os("TENSOR_CHROMIUM").is_none_or(|value| value != "required"), "{message}");
        eprintln!("{message}");
    }
    found
}

/// The page in a browser after its script has run, without network access.
fn open_in(chromium: &Path, page: &Path, folder: &Path) -> String {
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=4000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a page is text")
}

/// The values of an attribute of all elements whose tag contains `mark`, in order.
fn attributes(page: &str, mark: &str, attribute: &str) -> Vec<String> {
    let tags = page.split('<').skip(1).filter_map(|rest| rest.split_once('>').map(|(tag, _)| tag));
    let value = |tag: &str| {
        let (_, rest) = tag.split_once(&format!(" {attribute}=\""))?;
        Some(
            rest.split_once('"')?
                .0
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&amp;", "&"),
        )
    };
    tags.filter(|tag| tag.contains(mark)).filter_map(value).collect()
}

#[test]
fn a_browser_shows_the_same_numbers_as_the_json() {
    let report = watched(Backend::Gpu);
    let folder = std::env::temp_dir().join(format!("tensor-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [html, json, trace] = ["report.html", "report.json", "report.trace.json"].map(|name| folder.join(name));
    report.save_html(&html).unwrap();
    report.save_json(&json).unwrap();
    report.save_trace(&trace).unwrap();
    let read = |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let (json, trace) = (read(&json), read(&trace));
    assert_eq!((&json, &trace), (&report.to_json(), &report.to_trace()));
    let Some(chromium) = chromium() else { return };
    let page = open_in(&chromium, &html, &folder);
    std::fs::remove_dir_all(&folder).unwrap();

    assert!(page.contains("data-drawn=\"true\""), "the script ran to its end");
    assert_eq!(attributes(&page, "role=\"img\"", "aria-label").len(), 4, "four charts");
    for key in ["peak_device_bytes", "compile_ns", "encode_ns", "evictions", "plans_built", "readbacks"] {
        let tile = attributes(&page, &format!("class=\"tile\" data-key=\"{key}\""), "data-value");
        assert_eq!(tile, [json[key].to_string()], "{key}");
    }
    // Every bar and every cell, in the order of the JSON.
    let rows = |list: &str| json[list].as_array().unwrap().clone();
    let bars = attributes(&page, "class=\"bar\"", "data-value");
    let expected = rows("kernels").into_iter().map(|row| row["total_ns"].to_string());
    let expected = expected.chain(rows("compiled").into_iter().map(|row| row["compile_ns"].to_string()));
    assert_eq!(bars, expected.collect::<Vec<_>>());
    for key in ["mean_ns", "p95_ns", "min_ns", "max_ns", "peak_bytes"] {
        let cells = attributes(&page, &format!("data-key=\"{key}\""), "data-value");
        let expected = rows("kernels").into_iter().chain(rows("ops")).map(|row| row[key].to_string());
        assert_eq!(cells, expected.collect::<Vec<_>>(), "{key}");
    }
    let sites = attributes(&page, "data-key=\"site\"", "data-value");
    assert_eq!(sites, rows("ops").iter().map(|row| row["site"].as_str().unwrap()).collect::<Vec<_>>());
    let curves = attributes(&page, "class=\"curve\"", "data-points");
    assert_eq!(curves, [rows("timeline").len().to_string(), rows("memory").len().to_string()]);
    // The name is text, not markup.
    assert!(page.contains("&lt;b&gt;\"model\" &amp; co&lt;/b&gt;") && !page.contains("<b>\"model\""));
}
