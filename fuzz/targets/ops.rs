//! Graphs of random ops with random arguments, shapes, views and types: both backends agree, or both refuse.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use super::graph::{Graph, Pools};
use super::{Answer, Target};
use crate::common::{BACKENDS, Rig};

pub const TARGET: Target = Target {
    name: "ops",
    corpus: "ops",
    weight: 58,
    longest: 96,
    words: &[],
    guards: false,
    make: || {
        let mut rigs = BACKENDS.map(Rig::new);
        let pools = rigs.each_mut().map(Pools::spawn);
        Box::new(move |bytes| {
            // Both run, also if one panics, so that neither is left with work of this input.
            let results = [0, 1].map(|i| catch_unwind(AssertUnwindSafe(|| run(&mut rigs[i], &pools[i], bytes))));
            let [gpu, cpu] = results.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
            gpu.agrees_with(&cpu);
            if cpu.values.is_empty() { Answer::refused(cpu.steps.join(" ")) } else { Answer::accepted(cpu.steps) }
        })
    },
};

/// What one backend made of a graph.
struct Outcome {
    /// The ops in order, each with its error if it was refused.
    steps: Vec<String>,
    /// The values that were read: what they are, whether they must be equal, and their content or an error.
    values: Vec<(String, bool, Result<TensorData, String>)>,
    faults: Vec<TensorFault>,
}

fn run(rig: &mut Rig, pools: &Pools, bytes: &[u8]) -> Outcome {
    let (mut steps, mut reads) = (Vec::new(), Vec::new());
    rig.with_ops(|ops| {
        let graph = Graph::record(ops, pools, bytes);
        reads = graph.read(ops);
        steps = graph.steps;
    });
    let values = reads
        .into_iter()
        .map(|(what, exact, receiver)| {
            let receiver = receiver.map_err(|error| error.to_string());
            (what, exact, receiver.and_then(|receiver| rig.wait(&receiver).map_err(|error| error.to_string())))
        })
        .collect();
    let faults = std::mem::take(&mut rig.app.world_mut().resource_mut::<crate::common::Faults>().0);
    Outcome { steps, values, faults }
}

impl Outcome {
    #[track_caller]
    fn agrees_with(&self, cpu: &Outcome) {
        assert_eq!(self.steps, cpu.steps, "the backends refuse different ops");
        for faults in [&self.faults, &cpu.faults] {
            // Indices are random.
            let index = |fault: &TensorFault| {
                matches!(fault, TensorFault::Run(bevy_tensor_compute::error::RunError::IndexOutOfRange { .. }))
            };
            assert!(faults.iter().all(index), "{faults:?} after {:?}", self.steps);
        }
        // Values that follow from others have their errors: the largest of all sets the scale.
        let scale = cpu.values.iter().filter_map(|(_, _, data)| data.as_ref().ok()).map(largest).fold(1.0, f64::max);
        for ((what, exact, a), (_, _, b)) in self.values.iter().zip(&cpu.values) {
            match (a, b) {
                (Ok(a), Ok(b)) => {
                    if let Some(difference) = difference(a, b, *exact, scale) {
                        panic!("{what}: {difference} after {:?}", self.steps);
                    }
                }
                (Err(a), Err(b)) if a == b => {}
                (a, b) => panic!("{what}: GPU {a:?}, CPU {b:?} after {:?}", self.steps),
            }
        }
    }
}

/// Beyond this size, sums and products overflow on one backend and not yet on the other.
const HUGE: f64 = 1e15;

fn largest(data: &TensorData) -> f64 {
    if !data.dtype().is_float() {
        return 1.0;
    }
    data.to_f32().into_iter().map(|v| f64::from(v.abs())).filter(|v| *v < HUGE).fold(1.0, f64::max)
}

fn difference(gpu: &TensorData, cpu: &TensorData, exact: bool, scale: f64) -> Option<String> {
    if gpu.dtype() != cpu.dtype() || gpu.shape() != cpu.shape() {
        return Some(format!("GPU {} {}, CPU {} {}", gpu.dtype(), gpu.shape(), cpu.dtype(), cpu.shape()));
    }
    let relative = match gpu.dtype() {
        DType::F16 => 1e-2,
        DType::BF16 => 5e-2,
        _ => 1e-4,
    };
    let wide = |v: f64| !v.is_finite() || v.abs() >= HUGE;
    for (i, (a, b)) in gpu.to_f32().into_iter().zip(cpu.to_f32()).enumerate() {
        let (a, b) = (f64::from(a), f64::from(b));
        let same = a == b || (a.is_nan() && b.is_nan());
        let near = !exact && ((wide(a) && wide(b)) || (a - b).abs() <= relative * scale);
        if !same && !near {
            return Some(format!("element {i} of {} {} is {a} on the GPU, {b} on the CPU", gpu.dtype(), gpu.shape()));
        }
    }
    None
}
