//! Random graphs of elementwise ops, views, kernels and in-place updates give the same results with and without fusion.

use std::cell::RefCell;

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::rig;
use crate::common::{BACKENDS, Rig};
use crate::parity::host::Array;
use crate::parity::random::{Twist, fits, runner, twist};
use crate::parity::table::{Input, difference};

/// One op. Operands are arbitrary numbers, taken modulo the number of values.
#[derive(Clone, Debug)]
enum Link {
    Unary(u8, usize),
    Binary(u8, usize, usize),
    Number(u8, usize, f32),
    View(Twist, usize),
    /// An op with its own kernel, over an axis.
    Kernel(u8, usize, usize),
    /// The product with its own transpose.
    Product(usize),
    /// Stores to the input of that number, if a value has its shape.
    Update(usize, usize),
    Keep(usize),
}

fn link() -> impl Strategy<Value = Link> {
    prop_oneof![
        4 => (0..6u8, 0..99usize).prop_map(|(op, x)| Link::Unary(op, x)),
        5 => (0..4u8, 0..99usize, 0..99usize).prop_map(|(op, a, b)| Link::Binary(op, a, b)),
        3 => (0..2u8, 0..99usize, -2.0f32..2.0).prop_map(|(op, x, by)| Link::Number(op, x, by)),
        2 => (twist(), 0..99usize).prop_map(|(twist, x)| Link::View(twist, x)),
        3 => (0..5u8, 0..99usize, 0..4usize).prop_map(|(op, x, axis)| Link::Kernel(op, x, axis)),
        2 => (0..99usize).prop_map(Link::Product),
        2 => (0..99usize, 0..99usize).prop_map(|(x, to)| Link::Update(x, to)),
        2 => (0..99usize).prop_map(Link::Keep),
    ]
}

#[derive(Clone, Debug)]
struct Recipe {
    shapes: Vec<Vec<usize>>,
    links: Vec<Link>,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let shape = proptest::collection::vec(prop_oneof![1 => Just(1usize), 5 => 2..7usize, 1 => Just(40usize)], 1..4);
    (proptest::collection::vec(shape, 1..4), proptest::collection::vec(link(), 4..20))
        .prop_map(|(shapes, links)| Recipe { shapes, links })
}

/// Records the recipe. Returns the values to read.
fn record<'a>(ops: &'a TensorCommands, recipe: &Recipe, inputs: &[Entity]) -> OpResult<Vec<TensorValue<'a>>> {
    let mut values: Vec<TensorValue> = Vec::new();
    for &input in inputs {
        values.push(ops.cast(input, DType::F32)?);
    }
    let mut kept = Vec::new();
    for link in &recipe.links {
        let of = |x: usize| values[x % values.len()];
        let value = match *link {
            Link::Unary(op, x) => match op {
                0 => ops.neg(of(x))?,
                1 => ops.abs(of(x))?,
                2 => ops.tanh(of(x))?,
                3 => ops.sigmoid(of(x))?,
                4 => ops.relu(of(x))?,
                _ => ops.gelu(of(x))?,
            },
            Link::Binary(op, a, b) => {
                let (a, b) = (of(a), of(b));
                if !fits(&ops.shape(a)?, &ops.shape(b)?) {
                    continue;
                }
                match op {
                    0 => ops.add(a, b)?,
                    1 => ops.sub(a, b)?,
                    2 => ops.mul(a, b)?,
                    _ => ops.max(a, b)?,
                }
            }
            Link::Number(op, x, by) => match op {
                0 => ops.add(of(x), by)?,
                _ => ops.mul(of(x), by)?,
            },
            Link::View(ref twist, x) => {
                let view = twist.of(&ops.shape(of(x))?);
                view.of_value(ops, of(x))?
            }
            Link::Kernel(op, x, axis) => {
                let x = of(x);
                let rank = ops.shape(x)?.rank();
                if rank == 0 || ops.shape(x)?.elements() == 0 {
                    continue;
                }
                let axis = axis % rank;
                match op {
                    0 => ops.softmax(x, axis)?,
                    1 => ops.layer_norm(x, None, None, -1, 0.1)?,
                    2 => ops.mean(x, Axes::from(axis as isize).keep())?,
                    3 => ops.max_of(x, Axes::from(axis as isize).keep())?,
                    _ => {
                        let sums = ops.cumsum(x, axis)?;
                        ops.tanh(sums)?
                    }
                }
            }
            Link::Product(x) => {
                let x = of(x);
                let shape = ops.shape(x)?;
                if shape.rank() < 2 || shape.elements() == 0 || shape.elements() * shape[shape.rank() - 2] > 20_000 {
                    continue;
                }
                let product = ops.matmul_nt(x, x)?;
                // Bounded, so that errors stay small.
                ops.tanh(product)?
            }
            Link::Update(x, to) => {
                let (value, tensor) = (of(x), inputs[to % inputs.len()]);
                if ops.shape(value)? != ops.shape(tensor)? {
                    continue;
                }
                ops.store(value, tensor)?;
                ops.cast(tensor, DType::F32)?
            }
            Link::Keep(x) => {
                kept.push(of(x));
                continue;
            }
        };
        values.push(value);
    }
    kept.extend(values.last());
    for &input in inputs {
        kept.push(ops.cast(input, DType::F32)?);
    }
    Ok(kept)
}

fn run(rig: &mut Rig, recipe: &Recipe) -> Result<Vec<Array>, TestCaseError> {
    let fail = |error: String| TestCaseError::fail(error);
    let make = |(i, shape): (usize, &Vec<usize>)| Input::noise(DType::F32, shape, (-2.0, 2.0), i as u32 + 1).tensor();
    let tensors: Vec<Tensor> = recipe.shapes.iter().enumerate().map(make).collect();
    let inputs: Vec<Entity> = tensors.into_iter().map(|tensor| rig.spawn(tensor)).collect();
    let mut receivers = Ok(Vec::new());
    rig.with_ops(|ops| {
        receivers = record(ops, recipe, &inputs)
            .and_then(|values| values.into_iter().map(|value| ops.read(value)).collect::<Result<Vec<_>, _>>());
    });
    let receivers = receivers.map_err(|error| fail(error.to_string()))?;
    let mut answers = Vec::new();
    for receiver in &receivers {
        let data = rig.wait(receiver).map_err(|error| fail(error.to_string()))?;
        answers.push(Array::from_data(&data));
    }
    for entity in inputs {
        rig.app.world_mut().despawn(entity);
    }
    Ok(answers)
}

#[test]
fn random_graphs_give_the_same_joined_and_apart() {
    for backend in BACKENDS {
        let rigs = RefCell::new([rig(backend, true), rig(backend, false)]);
        let cases = if backend == Backend::Gpu { 32 } else { 160 };
        let result = runner(cases).run(&recipe(), |recipe| {
            let mut rigs = rigs.borrow_mut();
            let [joined, apart] = &mut *rigs;
            let (a, b) = (run(joined, &recipe)?, run(apart, &recipe)?);
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                if let Some(what) = difference(a, b, (1e-4, 1e-4), "joined", "apart") {
                    return Err(TestCaseError::fail(format!("value {i} on the {backend}: {what}")));
                }
            }
            Ok(())
        });
        assert!(result.is_ok(), "{}", result.err().map(|e| e.to_string()).unwrap_or_default());
    }
}
