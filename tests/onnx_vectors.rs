//! Runs every case of `tests/vectors/onnx` through the public ops, on both backends: one test per operator, and a table
//! at the end.

#[expect(dead_code, reason = "the rig serves every test binary")]
mod common;
#[path = "onnx_vectors/mod.rs"]
mod onnx;

use std::sync::Mutex;

use libtest_mimic::{Arguments, Failed, Trial};
use onnx::case::{self, Case};
use onnx::run::{self, Outcome};

/// The results of one operator.
#[derive(Default)]
struct Row {
    op: String,
    passed: usize,
    failed: usize,
    unsupported: Vec<(String, String)>,
}

static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

fn main() {
    let mut args = Arguments::from_args();
    // An app must stay on the thread that created it, and all tests share one app per backend.
    args.test_threads = Some(1);
    let files = case::load_all().expect("the vectors can be read");
    let mut tests: Vec<Trial> =
        files.into_iter().map(|(op, cases)| Trial::test(op.clone(), move || test_operator(op, &cases))).collect();
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

fn test_operator(op: String, cases: &[std::sync::Arc<Case>]) -> Result<(), Failed> {
    let mut row = Row { op, ..Row::default() };
    let mut failures = Vec::new();
    for case in cases {
        match run::on_both_backends(case) {
            Outcome::Passed => row.passed += 1,
            Outcome::Unsupported(reason) => row.unsupported.push((case.name.clone(), reason)),
            Outcome::Failed(reason) => failures.push(format!("{}: {reason}", case.name)),
        }
    }
    row.failed = failures.len();
    ROWS.lock().expect("no test panics").push(row);
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn print_table() {
    let rows = ROWS.lock().expect("no test panics");
    println!("\n{:<24} {:>5} {:>6} {:>11} {:>6}", "op", "cases", "passed", "unsupported", "failed");
    let (mut passed, mut unsupported, mut failed) = (0, 0, 0);
    for row in rows.iter() {
        let without = row.unsupported.len();
        println!(
            "{:<24} {:>5} {:>6} {without:>11} {:>6}",
            row.op,
            row.passed + without + row.failed,
            row.passed,
            row.failed
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
