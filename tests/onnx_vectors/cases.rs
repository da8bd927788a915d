//! Whole cases of the ONNX backend tests: models with their data, read and run by the crate's own importer.
//!
//! They are stored as the archive `tests/vectors/onnx_cases.tar.xz`. `ONNX_CASES=FOLDER` runs another set of the same
//! layout. `tests/vectors/onnx_cases.txt` has the number of cases that pass, by operator; it may only grow.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bevy_tensor_compute::onnx::OnnxSummary;
use libtest_mimic::{Failed, Trial};

use crate::common::{BACKENDS, Faults, Rig};

#[path = "../../examples/onnx/case.rs"]
mod case;

use case::Outcome;

/// What became of the cases of one operator.
#[derive(Default)]
struct Row {
    group: String,
    passed: usize,
    unsupported: Vec<(String, String)>,
    failed: Vec<(String, String)>,
}

static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

thread_local! {
    /// An app per backend, made when first needed.
    static RIGS: RefCell<[Option<Rig>; 2]> = const { RefCell::new([None, None]) };
}

/// Ends the apps, which must not outlive the thread's other locals.
pub fn finish() {
    RIGS.with_borrow_mut(|rigs| *rigs = [None, None]);
}

/// One test per operator.
pub fn trials() -> Vec<Trial> {
    let (folder, pinned) = match std::env::var_os("ONNX_CASES") {
        Some(folder) => (PathBuf::from(folder), BTreeMap::new()),
        None => (unpack(), pins()),
    };
    let mut groups: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for case in case::find(&folder) {
        groups.entry(group(&folder, &case)).or_default().push(case);
    }
    let trial = |(group, cases): (String, Vec<PathBuf>)| {
        let pinned = pinned.get(&group).copied().unwrap_or(0);
        Trial::test(format!("case::{group}"), move || test_group(group, &cases, pinned))
    };
    groups.into_iter().map(trial).collect()
}

/// The operator that a case is about.
fn group(root: &Path, case: &Path) -> String {
    let name = case.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = case.parent().filter(|parent| *parent != root).and_then(Path::file_name);
    let folder = folder.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if name.contains("_expanded") {
        return "expanded".to_owned();
    }
    if folder.starts_with("pytorch") || folder == "simple" {
        return folder;
    }
    let nodes = std::fs::read(case.join("model.onnx")).ok().and_then(|bytes| OnnxSummary::from_bytes(bytes).ok());
    nodes.and_then(|summary| summary.nodes.last().cloned()).unwrap_or_else(|| "unreadable".to_owned())
}

/// Unpacks the archive beside the build's other files.
fn unpack() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("onnx_cases");
    let archive = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/onnx_cases.tar.xz");
    let stored = std::fs::read(archive).expect("the archive is there");
    let stamp = folder.join(format!("{}.stamp", stored.len()));
    if !stamp.exists() {
        let mut plain = Vec::new();
        lzma_rs::xz_decompress(&mut &stored[..], &mut plain).expect("the archive is valid");
        let _ = std::fs::remove_dir_all(&folder);
        tar::Archive::new(&plain[..]).unpack(&folder).expect("the archive can be unpacked");
        std::fs::write(stamp, "").expect("the folder can be written");
    }
    folder
}

const PINS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/onnx_cases.txt");

/// The number of cases that pass, by operator.
fn pins() -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(PINS).unwrap_or_default();
    let line = |line: &str| line.split_once(' ').and_then(|(n, group)| Some((group.to_owned(), n.parse().ok()?)));
    text.lines().filter_map(line).collect()
}

fn test_group(group: String, cases: &[PathBuf], pinned: usize) -> Result<(), Failed> {
    let mut row = Row { group, ..Row::default() };
    for case in cases {
        let name = case.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match on_both_backends(case) {
            Outcome::Passed => row.passed += 1,
            Outcome::Unsupported(reason) => row.unsupported.push((name, reason)),
            Outcome::Failed(reason) => row.failed.push((name, reason)),
        }
    }
    let failures: Vec<String> = row.failed.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
    let passed = row.passed;
    let unsupported: Vec<String> = row.unsupported.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
    ROWS.lock().expect("no test panics").push(row);
    if !failures.is_empty() {
        return Err(failures.join("\n").into());
    }
    match passed < pinned {
        true => Err(format!("{passed} cases pass, but {pinned} did before\n{}", unsupported.join("\n")).into()),
        false => Ok(()),
    }
}

fn on_both_backends(case: &Path) -> Outcome {
    for (i, backend) in BACKENDS.into_iter().enumerate() {
        let mut rig = RIGS.with_borrow_mut(|rigs| rigs[i].take()).unwrap_or_else(|| Rig::new(backend));
        // A case that panics leaves its app behind; the next one gets a new app.
        let result = catch_unwind(AssertUnwindSafe(|| {
            let outcome = case::check(&mut rig.app, case);
            (rig, outcome)
        }));
        match result {
            Ok((mut rig, outcome)) => {
                let faults = std::mem::take(&mut rig.app.world_mut().resource_mut::<Faults>().0);
                RIGS.with_borrow_mut(|rigs| rigs[i] = Some(rig));
                match outcome {
                    Outcome::Passed if faults.is_empty() => {}
                    Outcome::Passed => return Outcome::Failed(format!("{backend:?}: {faults:?}")),
                    Outcome::Unsupported(reason) => return Outcome::Unsupported(reason),
                    Outcome::Failed(reason) => return Outcome::Failed(format!("{backend:?}: {reason}")),
                }
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked");
                return Outcome::Failed(format!("{backend:?}: {text}"));
            }
        }
    }
    Outcome::Passed
}

/// Prints the table and the totals. With `ONNX_CASES_PIN` set, also writes the numbers that pass.
pub fn print_table() {
    let rows = ROWS.lock().expect("no test panics");
    println!("\n{:<28} {:>5} {:>6} {:>11} {:>6}", "operator", "cases", "passed", "unsupported", "failed");
    let (mut passed, mut unsupported, mut failed) = (0, 0, 0);
    for row in rows.iter() {
        let (without, wrong) = (row.unsupported.len(), row.failed.len());
        let all = row.passed + without + wrong;
        println!("{:<28} {all:>5} {:>6} {without:>11} {wrong:>6}", row.group, row.passed);
        for (case, reason) in &row.unsupported {
            println!("    {case}: {}", reason.replace('\n', " "));
        }
        passed += row.passed;
        unsupported += without;
        failed += wrong;
    }
    if std::env::var_os("ONNX_CASES_PIN").is_some() {
        let text: String = rows.iter().map(|row| format!("{} {}\n", row.passed, row.group)).collect();
        std::fs::write(PINS, text).expect("the file can be written");
    }
    let all = passed + unsupported + failed;
    println!("\nonnx cases: {all} run, {passed} passed, {unsupported} unsupported, {failed} failed");
}
