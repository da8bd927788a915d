//! Cases that run on both backends with the same inputs, many per update.

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;

use super::host::{Array, View};
use crate::common::{BACKENDS, Rig, tolerance};

/// An input of a case: values, seen through views of the tensor and then through views within the recording.
#[derive(Clone, Debug)]
pub struct Input {
    pub base: TensorData,
    pub early: Vec<View>,
    pub late: Vec<View>,
}

impl Input {
    pub fn new(base: TensorData) -> Self {
        Self { base, early: Vec::new(), late: Vec::new() }
    }

    /// Noise in `low..high`. Rounded down for integers and booleans.
    pub fn noise(dtype: DType, shape: &[usize], (low, high): (f64, f64), seed: u32) -> Self {
        Self::new(noise(shape, low, high, seed).map(|v| if dtype.is_float() { v } else { v.floor() }).to_data(dtype))
    }

    pub fn early(mut self, view: View) -> Self {
        self.early.push(view);
        self
    }

    pub fn late(mut self, view: View) -> Self {
        self.late.push(view);
        self
    }

    /// The array that the op sees.
    pub fn array(&self) -> Array {
        let views = self.early.iter().chain(&self.late);
        views.fold(Array::from_data(&self.base), |array, view| view.of_array(&array))
    }

    pub fn tensor(&self) -> Tensor {
        let tensor = Tensor::from(self.base.clone());
        self.early.iter().fold(tensor, |tensor, view| view.of_tensor(&tensor).expect("a view"))
    }
}

/// Deterministic numbers in `low..high`.
pub fn noise(shape: &[usize], low: f64, high: f64, seed: u32) -> Array {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    let values = (0..shape.iter().product::<usize>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            low + (high - low) * (state >> 40) as f64 / (1u64 << 24) as f64
        })
        .collect();
    Array::new(shape, values)
}

/// The layouts that every op must support: inputs of one shape that are contiguous, offset, permuted, flipped, strided,
/// broadcast, or viewed within the recording.
pub fn layouts(dtype: DType, shape: &[usize], range: (f64, f64), seed: u32) -> Vec<(&'static str, Input)> {
    let make = |shape: &[usize]| Input::noise(dtype, shape, range, seed);
    let rank = shape.len();
    let backwards: Vec<usize> = (0..rank).rev().collect();
    let turned: Vec<usize> = shape.iter().rev().copied().collect();
    let wider: Vec<usize> = shape.iter().map(|n| n + 3).collect();
    let slice = |axis: usize, n: usize| View::Slice { axis, start: 2, end: 2 + n as isize, step: 1 };
    let mut all = vec![("plain", make(shape)), ("offset", make(&wider)), ("flipped", make(shape))];
    for (axis, &n) in shape.iter().enumerate() {
        all[1].1.early.push(slice(axis, n));
        all[2].1.early.push(View::flip(axis));
    }
    all.push(("permuted", make(&turned).early(View::Permute(backwards.clone()))));
    let mut late = make(&wider.iter().rev().copied().collect::<Vec<_>>()).late(View::Permute(backwards));
    for (axis, &n) in shape.iter().enumerate() {
        late = late.late(slice(axis, n)).late(View::flip(axis));
    }
    all.push(("viewed in the recording", late));
    if let Some(&last) = shape.last() {
        let mut twice = shape.to_vec();
        twice[rank - 1] = 2 * last + 1;
        let every_other = View::Slice { axis: rank - 1, start: 1, end: isize::MAX / 2, step: 2 };
        all.push(("strided", make(&twice).early(every_other)));
        let mut narrow = shape.to_vec();
        narrow[0] = 1;
        all.push(("broadcast", make(&narrow).early(View::Broadcast(shape.to_vec()))));
    }
    all
}

type Record = dyn for<'a> Fn(&'a TensorCommands, &[TensorOperand<'a>]) -> OpResult<Vec<TensorValue<'a>>> + Send + Sync;

/// Some work, and what is known about its result.
pub struct Case {
    name: String,
    inputs: Vec<Input>,
    record: Box<Record>,
    expected: Option<Array>,
    shape: Option<Vec<usize>>,
}

impl Case {
    pub fn new(
        name: impl Into<String>,
        inputs: impl Into<Vec<Input>>,
        record: impl for<'a> Fn(&'a TensorCommands, &[TensorOperand<'a>]) -> OpResult<TensorValue<'a>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self::many(name, inputs, move |ops, x| Ok(vec![record(ops, x)?]))
    }

    /// Work with several results.
    pub fn many(
        name: impl Into<String>,
        inputs: impl Into<Vec<Input>>,
        record: impl for<'a> Fn(&'a TensorCommands, &[TensorOperand<'a>]) -> OpResult<Vec<TensorValue<'a>>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let record = Box::new(record);
        Self { name: name.into(), inputs: inputs.into(), record, expected: None, shape: None }
    }

    /// Also compares the first result with the result of `f` on the inputs.
    pub fn host(mut self, f: impl FnOnce(&[Array]) -> Array) -> Self {
        self.expected = Some(f(&self.inputs.iter().map(Input::array).collect::<Vec<_>>()));
        self
    }

    /// Also checks the shape of the first result.
    pub fn shaped(mut self, shape: &[usize]) -> Self {
        self.shape = Some(shape.to_vec());
        self
    }
}

/// Number of cases recorded together: enough to need few updates, few enough to keep plans small.
const BATCH: usize = 48;

/// Runs all cases on a backend. Returns the results in the same order.
fn run(backend: Backend, cases: &[Case]) -> Vec<Result<Vec<TensorData>, String>> {
    let mut rig = Rig::new(backend);
    let mut results = Vec::new();
    for batch in cases.chunks(BATCH) {
        let entities: Vec<Vec<Entity>> =
            batch.iter().map(|case| case.inputs.iter().map(|input| rig.spawn(input.tensor())).collect()).collect();
        let mut receivers = Vec::new();
        rig.with_ops(|ops| {
            for (case, entities) in batch.iter().zip(&entities) {
                receivers.push(record(ops, case, entities));
            }
        });
        for receivers in receivers {
            let answer = receivers.map_err(|error| error.to_string()).and_then(|receivers| {
                let answers = receivers.iter().map(|receiver| rig.wait(receiver));
                answers.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())
            });
            results.push(answer);
        }
        for entity in entities.into_iter().flatten() {
            rig.app.world_mut().despawn(entity);
        }
    }
    assert_eq!(rig.faults(), [], "on the {backend}");
    results
}

fn record(ops: &TensorCommands, case: &Case, entities: &[Entity]) -> Result<Vec<TensorReceiver>, OpError> {
    let mut operands = Vec::new();
    for (input, &entity) in case.inputs.iter().zip(entities) {
        let mut operand = TensorOperand::from(entity);
        for view in &input.late {
            operand = view.of_value(ops, operand)?.into();
        }
        operands.push(operand);
    }
    let values = (case.record)(ops, &operands)?;
    values.into_iter().map(|value| ops.read(value)).collect()
}

/// Runs every case on both backends and reports all that differ.
#[track_caller]
pub fn agree(cases: Vec<Case>) {
    let [gpu, cpu] = BACKENDS.map(|backend| run(backend, &cases));
    let mut failures = Vec::new();
    for (case, (gpu, cpu)) in cases.iter().zip(gpu.iter().zip(&cpu)) {
        let (gpu, cpu) = match (gpu, cpu) {
            (Ok(gpu), Ok(cpu)) => (gpu, cpu),
            (gpu, cpu) => {
                let of = |side: &Result<_, String>| side.as_ref().err().cloned().unwrap_or("fine".to_owned());
                failures.push(format!("{}: GPU {}; CPU {}", case.name, of(gpu), of(cpu)));
                continue;
            }
        };
        for (i, (gpu, cpu)) in gpu.iter().zip(cpu).enumerate() {
            let bound = tolerance(cpu.dtype());
            let shape = case.shape.as_ref().filter(|_| i == 0);
            let host = case.expected.as_ref().filter(|_| i == 0);
            let same = (gpu.dtype(), gpu.shape()) == (cpu.dtype(), cpu.shape());
            let verdict = if let Some(shape) = shape.filter(|shape| cpu.shape()[..] != shape[..]) {
                Some(format!("the shape is {}, not {shape:?}", cpu.shape()))
            } else if same {
                let (gpu, cpu) = (Array::from_data(gpu), Array::from_data(cpu));
                difference(&gpu, &cpu, bound, "GPU", "CPU")
                    .or_else(|| host.and_then(|host| difference(&cpu, host, bound, "CPU", "host")))
                    .or_else(|| host.and_then(|host| difference(&gpu, host, bound, "GPU", "host")))
            } else {
                Some(format!("GPU {} {}, CPU {} {}", gpu.dtype(), gpu.shape(), cpu.dtype(), cpu.shape()))
            };
            if let Some(verdict) = verdict {
                failures.push(format!("{} [{i}]: {verdict}", case.name));
            }
        }
    }
    let (count, first) = (failures.len(), failures.iter().take(40).cloned().collect::<Vec<_>>().join("\n  "));
    assert!(failures.is_empty(), "{count} of {} cases differ:\n  {first}", cases.len());
}

/// Describes the first position at which two arrays differ.
pub fn difference(a: &Array, b: &Array, (absolute, relative): (f32, f32), of_a: &str, of_b: &str) -> Option<String> {
    if a.shape != b.shape {
        return Some(format!("{of_a} is {:?}, {of_b} {:?}", a.shape, b.shape));
    }
    let far = |(&a, &b): (&f64, &f64)| {
        let same = a == b || (a.is_nan() && b.is_nan());
        let close = (a - b).abs() <= f64::from(absolute) + f64::from(relative) * b.abs();
        !(same || close && b.is_finite())
    };
    let at = a.values.iter().zip(&b.values).position(far)?;
    Some(format!("element {at} of {:?} is {} on the {of_a}, {} on the {of_b}", a.shape, a.values[at], b.values[at]))
}
