//! What the committed folders have, so that a lost file, case or operator fails.

use libtest_mimic::Trial;

use super::case::Family;

/// Number of cases of the committed folders.
const CASES: usize = 409 + 126;

/// Number of cases that are unsupported, for each operator that has any.
const UNSUPPORTED: &[(&str, usize)] = &[("LSTM", 1), ("MelWeightMatrix", 1)];

/// Fails if an operator has lost cases, or if more of them are supported than the list says.
pub fn check(op: &str, unsupported: usize) -> Result<(), String> {
    let pinned = UNSUPPORTED.iter().find(|(name, _)| *name == op).map_or(0, |(_, count)| *count);
    if unsupported > pinned {
        return Err(format!("{op} has {unsupported} unsupported cases, {pinned} before: support was lost"));
    }
    if unsupported < pinned {
        return Err(format!(
            "{op} has {unsupported} unsupported cases, {pinned} before: correct the list in tests/onnx_vectors/pins.rs"
        ));
    }
    Ok(())
}

/// Fails if cases are missing.
pub fn all_are_there(files: &[Family]) -> Trial {
    let cases: usize = files.iter().map(|(_, cases)| cases.len()).sum();
    let unknown: Vec<&str> =
        UNSUPPORTED.iter().map(|(op, _)| *op).filter(|op| files.iter().all(|(file, _)| file != op)).collect();
    let unknown = unknown.join(", ");
    Trial::test("all_cases_are_there", move || {
        if !unknown.is_empty() {
            return Err(format!("pinned operators without a file: {unknown}").into());
        }
        if cases != CASES {
            return Err(format!("{cases} cases, {CASES} in tests/onnx_vectors/pins.rs").into());
        }
        Ok(())
    })
}
