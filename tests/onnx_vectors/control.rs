//! Controls of the harness itself: results that are wrong by little must fail.

use std::sync::Arc;

use bevy_tensor_compute::prelude::*;
use half::f16;
use libtest_mimic::{Failed, Trial};

use super::case::{Case, Host, Values};
use super::run::{self, Outcome};

pub fn tests(cases: &[Arc<Case>]) -> Vec<Trial> {
    let all = cases.to_vec();
    let norms: Vec<_> =
        cases.iter().filter(|case| case.name.contains("epsilon") && case.tolerance.is_some()).cloned().collect();
    let gelu: Vec<_> = cases.iter().filter(|case| case.op == "Gelu").cloned().collect();
    vec![
        Trial::test("control_half_precision_fails", move || half_precision_fails(&all)),
        Trial::test("control_another_gelu_fails", move || another_gelu_fails(&gelu)),
        Trial::test("control_no_epsilon_fails", move || no_epsilon_fails(&norms)),
        Trial::test("control_another_type_or_rank_fails", another_type_or_rank_fails),
        Trial::test("control_tolerances_are_those_of_webnn", tolerances_are_those_of_webnn),
    ]
}

/// The inputs of a case after a round trip through f16. `None` if that changes no input, so that the result must pass.
fn squeezed(case: &Case) -> Option<Case> {
    let mut case = case.clone();
    let mut changed = false;
    for input in case.inputs.iter_mut().flatten().filter(|input| input.onnx == "FLOAT") {
        if let Values::Floats(values) = &mut input.values {
            for value in values {
                let narrow = f16::from_f64(*value).to_f64();
                changed |= narrow != *value && !value.is_nan();
                *value = narrow;
            }
        }
    }
    changed.then_some(case)
}

/// Data of f32 cases that pass through f16 on the way to the op fail nearly everywhere.
fn half_precision_fails(cases: &[Arc<Case>]) -> Result<(), Failed> {
    let (mut noticed, mut passed) = (0, Vec::new());
    for case in cases {
        if !case.outputs.iter().flatten().any(|output| output.onnx == "FLOAT") {
            continue;
        }
        let Some(squeezed) = squeezed(case) else { continue };
        match run::on_backend(Backend::Cpu, &Arc::new(squeezed)) {
            Outcome::Passed(_) => passed.push(case.name.clone()),
            Outcome::Failed(_) => noticed += 1,
            Outcome::Unsupported(_) => {}
        }
    }
    let all = noticed + passed.len();
    println!(
        "control: {noticed} of {all} cases whose inputs passed through f16 fail; these do not: {}",
        passed.join(", ")
    );
    if noticed * 20 < all * 19 || all < 100 {
        return Err(format!("only {noticed} of {all} cases fail").into());
    }
    Ok(())
}

/// GELU by tanh is no GELU by erf, and the other way round.
fn another_gelu_fails(cases: &[Arc<Case>]) -> Result<(), Failed> {
    let mut seen = [0; 2];
    for case in cases {
        let mut other = Case::clone(case);
        let tanh = case.text("approximate", "none") == "tanh";
        other.attrs.insert("approximate".to_owned(), if tanh { "none" } else { "tanh" }.into());
        for (backend, outcome) in run::on_both_backends(&Arc::new(other)) {
            match outcome {
                Outcome::Failed(_) => seen[usize::from(tanh)] += 1,
                _ => return Err(format!("{}: passes on the {backend} as the other GELU", case.name).into()),
            }
        }
    }
    if seen[0] == 0 { Err("no case of GELU by erf".into()) } else { Ok(()) }
}

/// Every norm has a case whose variance is less than its epsilon.
fn no_epsilon_fails(cases: &[Arc<Case>]) -> Result<(), Failed> {
    let mut ops: Vec<&str> = cases.iter().map(|case| case.op.as_str()).collect();
    ops.sort_unstable();
    ops.dedup();
    let norms =
        ["BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"];
    if ops != norms {
        return Err(format!("cases for {ops:?}, expected {norms:?}").into());
    }
    for case in cases {
        let mut without = Case::clone(case);
        without.attrs.insert("epsilon".to_owned(), 0.0.into());
        for (backend, outcome) in run::on_both_backends(&Arc::new(without)) {
            if !matches!(outcome, Outcome::Failed(_)) {
                return Err(format!("{} passes on the {backend} without its epsilon", case.name).into());
            }
        }
    }
    Ok(())
}

fn identity(expected: &str, shape: &[usize]) -> Case {
    let values = Values::Integers(vec![1; 4]);
    let host = |onnx: &str, shape: &[usize]| {
        let values = match onnx {
            "FLOAT" | "FLOAT16" => Values::Floats(vec![1.0; shape.iter().product()]),
            _ => values.clone(),
        };
        Some(Host { onnx: onnx.to_owned(), shape: shape.to_vec(), perhaps_scalar: false, values })
    };
    Case {
        name: "identity".to_owned(),
        op: "Identity".to_owned(),
        opset: 22,
        attrs: serde_json::Map::new(),
        inputs: vec![host("FLOAT", &[4])],
        outputs: vec![host(expected, shape)],
        tolerance: None,
    }
}

/// The same numbers in another type or shape are another result.
fn another_type_or_rank_fails() -> Result<(), Failed> {
    for (onnx, shape, good) in [
        ("FLOAT", &[4][..], true),
        ("FLOAT16", &[4], false),
        ("INT32", &[4], false),
        ("FLOAT", &[1, 4], false),
        ("FLOAT", &[2, 2], false),
    ] {
        for (backend, outcome) in run::on_both_backends(&Arc::new(identity(onnx, shape))) {
            if matches!(outcome, Outcome::Passed(_)) != good {
                return Err(format!("{onnx} {shape:?} on the {backend}: {outcome:?}").into());
            }
        }
    }
    Ok(())
}

/// A result is accepted at exactly the distance that a case allows.
fn tolerances_are_those_of_webnn() -> Result<(), Failed> {
    let read = |text: &str| super::bounds::Bound::read(&serde_json::from_str(text).expect("JSON"));
    // Actual value, expected value, type, tolerance, and whether it holds.
    let ulps = |n: u32| f64::from(f32::from_bits(1f32.to_bits() + n));
    let rows = [
        (1.0, ulps(3), "FLOAT", r#"{"metricType": "ULP", "value": 3}"#, true),
        (1.0, ulps(4), "FLOAT", r#"{"metricType": "ULP", "value": 3}"#, false),
        // Over zero: one step down from the smallest positive number, one more to the largest negative one.
        (1e-45, -1e-45, "FLOAT", r#"{"metricType": "ULP", "value": 2}"#, true),
        (1e-45, -1e-45, "FLOAT", r#"{"metricType": "ULP", "value": 1}"#, false),
        (0.0, -0.0, "FLOAT", r#"{"metricType": "ULP", "value": 0}"#, true),
        (1.0, 1.0 + 2.0 / 1024.0, "FLOAT16", r#"{"metricType": "ULP", "value": 2}"#, true),
        (1.0, 1.0 + 3.0 / 1024.0, "FLOAT16", r#"{"metricType": "ULP", "value": 2}"#, false),
        (7.0, 8.0, "INT32", r#"{"metricType": "ULP", "value": 1}"#, true),
        (7.0, 9.0, "INT32", r#"{"metricType": "ULP", "value": 1}"#, false),
        (8.0, 8.5, "FLOAT", r#"{"metricType": "ATOL", "value": 0.5}"#, true),
        (8.0, 8.625, "FLOAT", r#"{"metricType": "ATOL", "value": 0.5}"#, false),
        (7.0, 9.0, "INT8", r#"{"metricType": "ATOL", "value": 2}"#, true),
        (9.0, 8.0, "FLOAT", r#"{"metricType": "RTOL", "value": 0.125}"#, true),
        (9.25, 8.0, "FLOAT", r#"{"metricType": "RTOL", "value": 0.125}"#, false),
        (f64::INFINITY, 8.0, "FLOAT", r#"{"metricType": "RTOL", "value": 0.125}"#, false),
        (f64::INFINITY, f64::INFINITY, "FLOAT", r#"{"metricType": "ATOL", "value": 0}"#, true),
        (f64::NAN, f64::NAN, "FLOAT", r#"{"metricType": "ULP", "value": 0}"#, true),
        (f64::NAN, 1.0, "FLOAT", r#"{"metricType": "ATOL", "value": 9}"#, false),
    ];
    for (actual, expected, onnx, tolerance, good) in rows {
        let host = |value: f64| {
            let values = match onnx {
                "FLOAT" | "FLOAT16" => Values::Floats(vec![value]),
                _ => Values::Integers(vec![value as i128]),
            };
            Host { onnx: onnx.to_owned(), shape: vec![1], perhaps_scalar: false, values }
        };
        let result = super::compare::compare(&host(actual).tensor()?, &host(expected), read(tolerance)?);
        if result.is_ok() != good {
            return Err(format!("{actual} for {expected} as {onnx} with {tolerance}: {result:?}").into());
        }
    }
    for wrong in [r#"{"metricType": "ULPS", "value": 1}"#, r#"{"metricType": "ULP"}"#, r#"{"value": 1}"#, "3"] {
        if read(wrong).is_ok() {
            return Err(format!("{wrong} is accepted").into());
        }
    }
    Ok(())
}
