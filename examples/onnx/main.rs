//! Looks at an ONNX model, runs it, and says what it took.
//!
//! ```sh
//! cargo run --release --example onnx -- MODEL.onnx [--input NAME=FILE.npy|.png|.wav] [--shape NAME=1,3,224,224]
//!     [--output DIR] [--backend cpu|gpu|auto] [--repeat N] [--report FILE.json]
//! cargo run --release --example onnx -- --check FOLDER     # cases of the ONNX backend tests
//! ```

mod case;
mod face;
mod inputs;
mod options;
mod report;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bevy::app::PluginsState;
use bevy::prelude::*;
use bevy_tensor_compute::formats::UploadSettings;
use bevy_tensor_compute::onnx::{OnnxError, OnnxGraph, OnnxSummary};
use bevy_tensor_compute::prelude::*;

use case::Outcome;
use options::Options;
use report::Report;

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help" || argument == "-h") {
        println!("{}", options::USAGE);
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let result = match &options.check {
        Some(folder) => check(&options, folder),
        None => run(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// An app without a window, stepped by hand.
fn app(options: &Options) -> App {
    let mut app = App::new();
    app.add_plugins((
        AnywherePlugins::headless(),
        TensorComputePlugin { backend: options.backend, timings: options.check.is_none(), ..default() },
    ));
    // A tool has no frame rate to keep.
    app.insert_resource(UploadSettings { bytes_per_frame: 1 << 30 });
    while app.plugins_state() == PluginsState::Adding {
        bevy::tasks::tick_global_task_pools_on_main_thread();
    }
    app.finish();
    app.cleanup();
    app.update();
    app
}

/// Runs the cases of a folder. Returns whether all of them passed.
fn check(options: &Options, folder: &Path) -> Result<bool, String> {
    let cases = case::find(folder);
    if cases.is_empty() {
        return Err(format!("{} has no cases", folder.display()));
    }
    let mut app = app(options);
    let (mut passed, mut unsupported, mut failed) = (0, 0, 0);
    for case in &cases {
        let name = case.strip_prefix(folder).unwrap_or(case);
        let name = if name.as_os_str().is_empty() { case } else { name }.display();
        match case::check(&mut app, case) {
            Outcome::Passed => {
                passed += 1;
                println!("pass         {name}");
            }
            Outcome::Unsupported(reason) => {
                unsupported += 1;
                println!("unsupported  {name}: {}", reason.replace('\n', " "));
            }
            Outcome::Failed(reason) => {
                failed += 1;
                println!("fail         {name}: {}", reason.replace('\n', " "));
            }
        }
    }
    println!("{} cases: {passed} passed, {unsupported} unsupported, {failed} failed", cases.len());
    Ok(passed == cases.len())
}

/// Looks at a model and runs it. Returns whether it ran.
fn run(options: &Options) -> Result<bool, String> {
    let path = options.model();
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let summary = OnnxSummary::from_bytes(bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{} ({})", path.display(), if summary.producer.is_empty() { "no producer" } else { &summary.producer });
    for (what, ports) in [("input", &summary.inputs), ("output", &summary.outputs)] {
        for port in ports.iter().filter(|port| !port.optional) {
            let declared = port.declared.as_ref().map_or("?".to_owned(), |declared| declared.to_string());
            println!("{what:<7} {} {declared}", port.name);
        }
    }
    let operators: Vec<String> = summary.operators.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("operators: {}", operators.join(", "));
    let mut report = Report::new(&path, &summary);
    let begin = Instant::now();
    let graph = match OnnxGraph::open(&path) {
        Ok(graph) => graph,
        Err(OnnxError::Unsupported { nodes, total }) => {
            println!("{} of {total} nodes cannot run:", nodes.len());
            nodes.iter().for_each(|node| println!("  {node}"));
            report.unsupported = nodes;
            report.write(options)?;
            return Ok(false);
        }
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let reading = begin.elapsed();
    println!("{} parameters, {:.1} MB", graph.parameters(), graph.bytes() as f64 / 1e6);
    report.bytes = graph.bytes();
    let mut app = app(options);
    let support = app.world().resource::<TensorSupport>();
    println!("{}: {}", support.backend, support.reason);
    report.backend = support.backend.to_string();
    let inputs = inputs::gather(&graph, options)?;
    let begin = Instant::now();
    let model = case::load(&mut app, graph)?;
    report.load = reading + begin.elapsed();
    let launches = |app: &App| {
        let figures = app.world().resource::<TensorDiagnostics>().figures();
        figures.dispatches + figures.cpu_steps
    };
    let mut times: Vec<Duration> = Vec::new();
    for turn in 0..options.repeat.max(1) + 1 {
        let before = launches(&app);
        if turn == 1 {
            app.world().resource::<TensorDiagnostics>().clear_timings();
        }
        let begin = Instant::now();
        let answers = case::run(&mut app, model, || inputs.clone()).map_err(|error| error.to_string())?;
        match turn {
            0 => report.first = begin.elapsed(),
            _ => times.push(begin.elapsed()),
        }
        report.launches = launches(&app) - before;
        report.answers = Some(answers);
    }
    times.sort();
    report.median = times[times.len() / 2];
    report.times = app.world().resource::<TensorDiagnostics>().timings();
    report.print();
    if options.is_default()
        && let Some(face) = report.answers.as_ref().and_then(face::best)
    {
        let percent = |part: f32| (part * 100.0).round();
        println!(
            "a face ({} % sure), centre at {} % of the width and {} % of the height, {} % wide",
            percent(face.score),
            percent(face.centre[0]),
            percent(face.centre[1]),
            percent(face.size[0])
        );
    }
    report.save_outputs(options)?;
    report.write(options)?;
    Ok(true)
}
