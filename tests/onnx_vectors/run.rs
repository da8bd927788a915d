//! Runs one case on both backends and compares the results.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bevy_tensor_compute::prelude::*;

use super::bounds::bound;
use super::call::{Call, Stop};
use super::case::Case;
use super::compare::{Distance, compare};
use crate::common::{BACKENDS, Rig};

/// The result of a case on one backend.
#[derive(Debug)]
pub enum Outcome {
    Passed(Distance),
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

/// Runs a case on each backend, whatever became of it on the other.
pub fn on_both_backends(case: &Arc<Case>) -> [(Backend, Outcome); 2] {
    BACKENDS.map(|backend| (backend, on_backend(backend, case)))
}

/// Runs a case on one backend.
pub fn on_backend(backend: Backend, case: &Arc<Case>) -> Outcome {
    let slot = BACKENDS.iter().position(|other| *other == backend).expect("there are two");
    let mut rig = RIGS.with_borrow_mut(|rigs| rigs[slot].take()).unwrap_or_else(|| Rig::new(backend));
    // The app of a case that panics is dropped. The next case gets a new one.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let result = on(&mut rig, case);
        (rig, result)
    }));
    match result {
        Ok((rig, result)) => {
            RIGS.with_borrow_mut(|rigs| rigs[slot] = Some(rig));
            match result {
                Ok(distance) => Outcome::Passed(distance),
                Err(Stop::Unsupported(reason)) => Outcome::Unsupported(reason),
                Err(Stop::Failed(reason)) => Outcome::Failed(reason),
            }
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked");
            Outcome::Failed(text.to_owned())
        }
    }
}

fn on(rig: &mut Rig, case: &Arc<Case>) -> Result<Distance, Stop> {
    for output in case.outputs.iter().flatten() {
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
        let mut worst = Distance::default();
        for (i, receiver) in receivers {
            let actual = rig.wait(&receiver).map_err(|error| Stop::Failed(error.to_string()))?;
            let expected = case.outputs[i].as_ref().ok_or(Stop::Failed("an output too many".to_owned()))?;
            let distance = bound(case, i).and_then(|bound| compare(&actual, expected, bound));
            worst.grow(distance.map_err(|reason| Stop::Failed(format!("output {i}: {reason}")))?);
        }
        Ok(worst)
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
