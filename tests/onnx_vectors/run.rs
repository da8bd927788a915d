//! Runs one case on both backends and compares the results.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Stop, unsupported};
use super::case::{Case, Host, Values};
use crate::common::{BACKENDS, Rig};

/// The result of a case.
pub enum Outcome {
    Passed,
    /// The case needs something that the crate does not support, with the reason.
    Unsupported(String),
    Failed(String),
}

thread_local! {
    /// One app per backend, created on first use.
    static RIGS: RefCell<[Option<Rig>; 2]> = const { RefCell::new([None, None]) };
}

/// Drops the apps, which must not outlive the other thread-locals.
pub fn finish() {
    RIGS.with_borrow_mut(|rigs| *rigs = [None, None]);
}

pub fn on_both_backends(case: &Arc<Case>) -> Outcome {
    for (i, backend) in BACKENDS.into_iter().enumerate() {
        let mut rig = RIGS.with_borrow_mut(|rigs| rigs[i].take()).unwrap_or_else(|| Rig::new(backend));
        // The app of a case that panics is dropped. The next case gets a new one.
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = on(&mut rig, case);
            (rig, result)
        }));
        match result {
            Ok((rig, result)) => {
                RIGS.with_borrow_mut(|rigs| rigs[i] = Some(rig));
                match result {
                    Ok(()) => {}
                    Err(Stop::Unsupported(reason)) => return Outcome::Unsupported(reason),
                    Err(Stop::Failed(reason)) => return Outcome::Failed(format!("{backend:?}: {reason}")),
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

fn on(rig: &mut Rig, case: &Arc<Case>) -> Result<(), Stop> {
    for output in case.outputs.iter().flatten() {
        if output.onnx == "BFLOAT16" {
            return unsupported("BFLOAT16 is no tensor type");
        }
        // Also reports an expected value that does not fit.
        output.tensor().map_err(Stop::Unsupported)?;
    }
    let tensors: Vec<_> = case
        .inputs
        .iter()
        .map(|input| input.as_ref().map(|input| input.tensor().map(|data| rig.spawn(Tensor::from(data)))))
        .collect();
    let spawned: Vec<_> = tensors.iter().flatten().flatten().copied().collect();
    let shared = Arc::clone(case);
    let receivers = rig.record(move |ops| {
        let call = Call { ops, case: &shared, tensors };
        Ok(record(&call))
    });
    let receivers = receivers.map_err(|error| Stop::Failed(error.to_string()))?;
    let result = receivers.and_then(|receivers| {
        for (i, receiver) in receivers {
            let actual = rig.wait(&receiver).map_err(|error| Stop::Failed(error.to_string()))?;
            let expected = case.outputs[i].as_ref().ok_or(Stop::Failed("an output too many".to_owned()))?;
            compare(&actual, expected).map_err(|reason| Stop::Failed(format!("output {i}: {reason}")))?;
        }
        Ok(())
    });
    for entity in spawned {
        rig.app.world_mut().despawn(entity);
    }
    let faults = std::mem::take(&mut rig.app.world_mut().resource_mut::<crate::common::Faults>().0);
    if result.is_ok() && !faults.is_empty() {
        return Err(Stop::Failed(format!("{faults:?}")));
    }
    result
}

/// Records the case and requests every output that it lists.
fn record<'a>(call: &Call<'a>) -> Result<Vec<(usize, TensorReceiver)>, Stop> {
    let values = super::apply(call)?;
    let mut receivers = Vec::new();
    for (i, expected) in call.case.outputs.iter().enumerate() {
        if expected.is_none() {
            continue;
        }
        match values.get(i) {
            Some(Some(value)) => receivers.push((i, call.ops.read(*value)?)),
            _ => return Err(Stop::Failed(format!("output {i} was not computed"))),
        }
    }
    Ok(receivers)
}

/// Integers and booleans must be equal. NaN and infinities must match.
fn compare(actual: &TensorData, expected: &Host) -> Result<(), String> {
    let dtype = expected.dtype()?;
    if actual.dtype() != dtype {
        return Err(format!("is {}, expected {dtype}", actual.dtype()));
    }
    // The files cannot represent scalars.
    let scalar = actual.shape().rank() == 0 && expected.shape == [1];
    if !scalar && actual.shape()[..] != expected.shape[..] {
        return Err(format!("has shape {}, expected {:?}", actual.shape(), expected.shape));
    }
    match &expected.values {
        Values::Floats(values) => {
            let (absolute, relative) = if dtype == DType::F16 { (2.5e-3, 2.5e-3) } else { (1e-5, 1e-3) };
            for (i, (a, &e)) in actual.to_f32().into_iter().zip(values).enumerate() {
                let a = f64::from(a);
                let same = (a.is_nan() && e.is_nan()) || a == e;
                let near = e.is_finite() && (a - e).abs() <= absolute + relative * e.abs();
                if !same && !near {
                    return Err(format!("element {i} is {a}, expected {e}"));
                }
            }
        }
        Values::Integers(values) => {
            for (i, (a, &e)) in integers(actual)?.into_iter().zip(values).enumerate() {
                if a != e {
                    return Err(format!("element {i} is {a}, expected {e}"));
                }
            }
        }
    }
    Ok(())
}

fn integers(data: &TensorData) -> Result<Vec<i128>, String> {
    fn wide<T: bevy_tensor_compute::tensor::Element + Into<i128>>(data: &TensorData) -> Result<Vec<i128>, String> {
        Ok(data.as_slice::<T>().map_err(|error| error.to_string())?.iter().map(|&v| v.into()).collect())
    }
    match data.dtype() {
        DType::I32 => wide::<i32>(data),
        DType::U32 => wide::<u32>(data),
        DType::I8 => wide::<i8>(data),
        DType::U8 => wide::<u8>(data),
        DType::Bool => Ok(data.to_bools().map_err(|error| error.to_string())?.into_iter().map(i128::from).collect()),
        other => Err(format!("{other} holds no integers")),
    }
}
