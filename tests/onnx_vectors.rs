//! Runs stored cases of other libraries through the public ops, on both backends: one test per operator, and a table at
//! the end.
//!
//! `tests/vectors/onnx` has the cases of the ONNX project, `tests/vectors/ops` those that `tools/vectors.py` makes for
//! ops that ONNX does not have.
//! `ONNX_VECTORS=FOLDER` runs another folder of the same layout instead. Its cases may ask for what the crate does not
//! have: pins hold for the committed
//! folders only.

#[expect(dead_code, reason = "the rig serves every test binary")]
mod common;
#[path = "onnx_vectors/mod.rs"]
mod onnx;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bevy_tensor_compute::prelude::*;
use libtest_mimic::{Arguments, Failed, Trial};
use onnx::case::{self, Case, Family};
use onnx::compare::Distance;
use onnx::run::{self, Outcome};
use onnx::{control, pins};

/// The results of one operator.
#[derive(Default)]
struct Row {
    op: String,
    passed: usize,
    failed: usize,
    unsupported: Vec<(String, String)>,
    /// The largest distances of the cases that passed, by backend.
    worst: [Distance; 2],
}

static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

fn main() {
    let mut args = Arguments::from_args();
    // An app must stay on the thread that created it, and all tests share one app per backend.
    args.test_threads = Some(1);
    let (files, pinned) = match load() {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("the vectors cannot be read: {error}");
            std::process::exit(101);
        }
    };
    let mut tests = Vec::new();
    if pinned {
        let all: Vec<Arc<Case>> = files.iter().flat_map(|(_, cases)| cases.iter().cloned()).collect();
        tests.extend(control::tests(&all));
        tests.push(pins::all_are_there(&files));
    }
    tests.extend(
        files.into_iter().map(|(op, cases)| Trial::test(op.clone(), move || test_operator(op, &cases, pinned))),
    );
    tests.extend(onnx::cases::trials());
    let listing = args.list;
    let conclusion = libtest_mimic::run(&args, tests);
    run::finish();
    onnx::cases::finish();
    if !listing {
        print_table();
        onnx::cases::print_table();
    }
    if conclusion.has_failed() {
        std::process::exit(101);
    }
}

/// All cases by operator, and whether they are the committed ones.
fn load() -> Result<(Vec<Family>, bool), Box<dyn std::error::Error>> {
    if let Some(folder) = std::env::var_os("ONNX_VECTORS") {
        return Ok((case::load_all(&PathBuf::from(folder))?, false));
    }
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut files = case::load_all(&vectors.join("onnx"))?;
    files.extend(case::load_all(&vectors.join("ops"))?);
    Ok((files, true))
}

fn test_operator(op: String, cases: &[Arc<Case>], pinned: bool) -> Result<(), Failed> {
    let mut row = Row { op, ..Row::default() };
    let mut failures = Vec::new();
    for case in cases {
        let (mut failed, mut unsupported) = (false, None);
        for (i, (backend, outcome)) in run::on_both_backends(case).into_iter().enumerate() {
            match outcome {
                Outcome::Passed(distance) => row.worst[i].grow(distance),
                Outcome::Unsupported(reason) => unsupported = Some(format!("{backend:?}: {reason}")),
                Outcome::Failed(reason) => {
                    failed = true;
                    failures.push(format!("{}: {backend:?}: {reason}", case.name));
                }
            }
        }
        match (failed, unsupported) {
            (true, _) => row.failed += 1,
            (false, Some(reason)) => row.unsupported.push((case.name.clone(), reason)),
            (false, None) => row.passed += 1,
        }
    }
    if pinned {
        failures.extend(pins::check(&row.op, row.unsupported.len()).err());
    }
    ROWS.lock().expect("no test panics").push(row);
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn print_table() {
    let rows = ROWS.lock().expect("no test panics");
    println!(
        "\n{:<24} {:>5} {:>6} {:>11} {:>6}   largest distance in ulp (or absolute, where digits cancel)",
        "op", "cases", "passed", "unsupported", "failed"
    );
    let (mut passed, mut unsupported, mut failed) = (0, 0, 0);
    for row in rows.iter() {
        let without = row.unsupported.len();
        let worst = row.worst.map(
            |Distance { ulps, absolute }| {
                if absolute > 0.0 { format!("{ulps} ({absolute:.1e})") } else { ulps.to_string() }
            },
        );
        println!(
            "{:<24} {:>5} {:>6} {without:>11} {:>6}   {} {}, {} {}",
            row.op,
            row.passed + without + row.failed,
            row.passed,
            row.failed,
            Backend::Gpu,
            worst[0],
            Backend::Cpu,
            worst[1],
        );
        for (case, reason) in &row.unsupported {
            println!("    {case}: {reason}");
        }
        passed += row.passed;
        unsupported += without;
        failed += row.failed;
    }
    let all = passed + unsupported + failed;
    println!("\nonnx vectors: {all} run, {passed} passed, {unsupported} unsupported, {failed} failed");
}
