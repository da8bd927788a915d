//! Random shapes, views and chains of ops, compared with a small interpreter.

use std::cell::RefCell;

use bevy_tensor_compute::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use super::host::{Array, View, broadcast_shape};
use super::table::{Input, difference};
use crate::common::{BACKENDS, Rig};

/// A deterministic runner with this number of cases.
pub fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// A view of an array of any shape, from arbitrary numbers.
#[derive(Clone, Debug)]
pub struct Twist {
    kind: u8,
    axis: usize,
    from: usize,
    to: usize,
    step: isize,
}

pub fn twist() -> impl Strategy<Value = Twist> {
    (0..4u8, 0..6usize, 0..9usize, 0..9usize, prop_oneof![Just(1isize), Just(2), Just(-1), Just(-3)])
        .prop_map(|(kind, axis, from, to, step)| Twist { kind, axis, from, to, step })
}

impl Twist {
    /// Interprets the numbers as a view of `shape`.
    pub fn of(&self, shape: &[usize]) -> View {
        let rank = shape.len();
        if rank == 0 {
            return View::Reshape(vec![1]);
        }
        let axis = self.axis % rank;
        match self.kind {
            0 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.rotate_left(axis);
                order.swap(0, self.from % rank);
                View::Permute(order)
            }
            1 if shape[axis] == 1 && rank < 5 => {
                let mut stretched = shape.to_vec();
                stretched[axis] = 1 + self.to % 4;
                stretched.insert(0, 1 + self.from % 2);
                View::Broadcast(stretched)
            }
            2 if rank < 5 => {
                let mut split = shape.to_vec();
                split.insert(axis, 1);
                View::Reshape(split)
            }
            _ => {
                let n = shape[axis] as isize;
                let start = self.from as isize % n.max(1);
                let end = start + 1 + self.to as isize % n.max(1);
                if self.step > 0 {
                    View::Slice { axis, start, end, step: self.step }
                } else {
                    View::Slice { axis, start: end - 1, end: start - 1 - n * isize::from(start == 0), step: self.step }
                }
            }
        }
    }
}

/// One op of a chain. Operands are arbitrary numbers, taken modulo the number of values.
#[derive(Clone, Debug)]
enum Link {
    Unary(u8, usize),
    Binary(u8, usize, usize),
    Select(usize, usize),
    View(Twist, usize),
    Number(u8, usize, f32),
}

fn link() -> impl Strategy<Value = Link> {
    prop_oneof![
        3 => (0..8u8, 0..99usize).prop_map(|(op, x)| Link::Unary(op, x)),
        4 => (0..5u8, 0..99usize, 0..99usize).prop_map(|(op, a, b)| Link::Binary(op, a, b)),
        1 => (0..99usize, 0..99usize).prop_map(|(a, b)| Link::Select(a, b)),
        3 => (twist(), 0..99usize).prop_map(|(twist, x)| Link::View(twist, x)),
        2 => (0..3u8, 0..99usize, -2.0f32..2.0).prop_map(|(op, x, by)| Link::Number(op, x, by)),
    ]
}

#[derive(Clone, Debug)]
struct Chain {
    dtype: DType,
    shapes: Vec<Vec<usize>>,
    twists: Vec<Twist>,
    links: Vec<Link>,
}

fn chain() -> impl Strategy<Value = Chain> {
    let shape = proptest::collection::vec(prop_oneof![2 => Just(1usize), 5 => 2..7usize, 1 => Just(17usize)], 0..4);
    (
        prop_oneof![3 => Just(DType::F32), 1 => Just(DType::F16)],
        proptest::collection::vec(shape, 1..4),
        proptest::collection::vec(twist(), 3),
        proptest::collection::vec(link(), 1..12),
    )
        .prop_map(|(dtype, shapes, twists, links)| Chain { dtype, shapes, twists, links })
}

/// Whether two shapes broadcast to a shape that is not too large.
pub fn fits(a: &[usize], b: &[usize]) -> bool {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.into_iter().all(|(&a, &b)| a == b || a == 1 || b == 1)
        && broadcast_shape(a, b).iter().product::<usize>() < 20_000
}

fn try_chain(rig: &mut Rig, chain: &Chain) -> Result<(), TestCaseError> {
    let inputs: Vec<Input> = chain
        .shapes
        .iter()
        .zip(&chain.twists)
        .enumerate()
        .map(|(i, (shape, twist))| {
            let input = Input::noise(chain.dtype, shape, (-2.0, 2.0), i as u32 + 1);
            let view = twist.of(shape);
            input.early(view)
        })
        .collect();
    let dtype = chain.dtype;
    // f16 values are rounded when they are stored, and where this happens depends on fusion. Chains therefore use 32
    // bits internally.
    let entities: Vec<_> = inputs.iter().map(|input| rig.spawn(input.tensor())).collect();
    let mut arrays: Vec<Array> = inputs.iter().map(Input::array).collect();
    let mut receivers = Vec::new();
    let mut expected = Vec::new();
    rig.with_ops(|ops| {
        let mut values: Vec<TensorValue> =
            entities.iter().map(|&entity| ops.cast(entity, DType::F32).expect("a tensor")).collect();
        for link in &chain.links {
            let of = |x: usize| x % arrays.len();
            let (value, array) = match *link {
                Link::Unary(op, x) => {
                    let (value, array) = (values[of(x)], &arrays[of(x)]);
                    match op {
                        0 => (ops.neg(value), array.map(|v| -v)),
                        1 => (ops.abs(value), array.map(f64::abs)),
                        2 => (ops.tanh(value), array.map(f64::tanh)),
                        3 => (ops.sigmoid(value), array.map(|v| 1.0 / (1.0 + (-v).exp()))),
                        4 => (ops.sin(value), array.map(f64::sin)),
                        5 => (ops.relu(value), array.map(|v| v.max(0.0))),
                        6 => (ops.clamp(value, -1.0, 1.5), array.map(|v| v.clamp(-1.0, 1.5))),
                        _ => (ops.softsign(value), array.map(|v| v / (1.0 + v.abs()))),
                    }
                }
                Link::Binary(op, a, b) => {
                    let (a, b) = (of(a), of(b));
                    if !fits(&arrays[a].shape, &arrays[b].shape) {
                        continue;
                    }
                    let (x, y, left, right) = (values[a], values[b], &arrays[a], &arrays[b]);
                    match op {
                        0 => (ops.add(x, y), left.zip(right, |a, b| a + b)),
                        1 => (ops.sub(x, y), left.zip(right, |a, b| a - b)),
                        2 => (ops.mul(x, y), left.zip(right, |a, b| a * b)),
                        3 => (ops.min(x, y), left.zip(right, f64::min)),
                        _ => (ops.max(x, y), left.zip(right, f64::max)),
                    }
                }
                Link::Select(a, b) => {
                    let (a, b) = (of(a), of(b));
                    if !fits(&arrays[a].shape, &arrays[b].shape) {
                        continue;
                    }
                    // Uses the sign of the input, which rounding does not change.
                    let condition = ops.less(entities[0], 0.0).expect("floats");
                    let (left, right) = (&arrays[a], &arrays[b]);
                    let joined = left.zip(right, |a, _| a);
                    if !fits(&joined.shape, &arrays[0].shape) {
                        continue;
                    }
                    let shape = broadcast_shape(&joined.shape, &arrays[0].shape);
                    let [c, yes, no] = [&arrays[0], left, right].map(|array| array.broadcast(&shape));
                    let pick = |i: usize| if c.values[i] < 0.0 { yes.values[i] } else { no.values[i] };
                    let array = Array::new(&shape, (0..c.values.len()).map(pick).collect());
                    (ops.select(condition, values[a], values[b]), array)
                }
                Link::View(ref twist, x) => {
                    let x = of(x);
                    let view = twist.of(&arrays[x].shape);
                    (view.of_value(ops, values[x]), view.of_array(&arrays[x]))
                }
                Link::Number(op, x, by) => {
                    let (value, array, number) = (values[of(x)], &arrays[of(x)], f64::from(by));
                    match op {
                        0 => (ops.add(value, by), array.map(|v| v + number)),
                        1 => (ops.mul(value, by), array.map(|v| v * number)),
                        _ => (ops.sub(by, value), array.map(|v| number - v)),
                    }
                }
            };
            values.push(value.expect("it fits"));
            arrays.push(array);
        }
        // The last value, and one in the middle, which then cannot be fused away.
        for at in [values.len() - 1, values.len() / 2] {
            let kept = ops.cast(values[at], dtype).expect("a value");
            receivers.push(ops.read(kept).expect("a value"));
            expected.push(arrays[at].clone());
        }
    });
    for (receiver, expected) in receivers.iter().zip(&expected) {
        let data = rig.wait(receiver).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let (absolute, relative) = crate::common::tolerance(dtype);
        // The errors of a chain accumulate, and grow with cancellation.
        let bound = (absolute * 20.0, relative * 2.0);
        if let Some(what) = difference(&Array::from_data(&data), expected, bound, "backend", "host") {
            return Err(TestCaseError::fail(format!("on the {}: {what}", rig.backend)));
        }
    }
    for entity in entities {
        rig.app.world_mut().despawn(entity);
    }
    Ok(())
}

#[test]
fn random_chains_agree_with_the_interpreter() {
    for backend in BACKENDS {
        let rig = RefCell::new(Rig::new(backend));
        let result = runner(64).run(&chain(), |chain| try_chain(&mut rig.borrow_mut(), &chain));
        assert!(result.is_ok(), "{}", result.err().map(|e| e.to_string()).unwrap_or_default());
    }
}

/// Sizes of a product, which operands are transposed, and which batch axes broadcast.
#[derive(Clone, Debug)]
struct Product {
    sizes: [usize; 3],
    turned: [bool; 2],
    batch: Vec<(usize, bool, bool)>,
    twist: bool,
}

fn product() -> impl Strategy<Value = Product> {
    let size = || prop_oneof![1 => Just(1usize), 4 => 2..20usize, 2 => 20..90usize];
    let batch = proptest::collection::vec((1..4usize, any::<bool>(), any::<bool>()), 0..3);
    (size(), size(), size(), any::<[bool; 2]>(), batch, any::<bool>())
        .prop_map(|(m, k, n, turned, batch, twist)| Product { sizes: [m, k, n], turned, batch, twist })
}

fn try_product(rig: &mut Rig, product: &Product) -> Result<(), TestCaseError> {
    let [m, k, n] = product.sizes;
    let side = |which: usize, rows: usize, columns: usize| {
        let turned = product.turned[which];
        let stretch = |&(n, a, b): &(usize, bool, bool)| if [a, b][which] { 1 } else { n };
        let matrix = if turned { [columns, rows] } else { [rows, columns] };
        let shape: Vec<usize> = product.batch.iter().map(stretch).chain(matrix).collect();
        let mut input = Input::noise(DType::F32, &shape, (-1.0, 1.0), which as u32 + 1);
        if product.twist {
            input = input.early(View::flip(shape.len() - 1 - which));
        }
        input
    };
    let inputs = [side(0, m, k), side(1, k, n)];
    let [a, b] = inputs.each_ref().map(Input::array);
    let a = if product.turned[0] { a.transpose() } else { a };
    let b = if product.turned[1] { b.transpose() } else { b };
    let entities = inputs.each_ref().map(|input| rig.spawn(input.tensor()));
    let ([x, y], turned) = (entities, product.turned);
    let data = rig
        .compute(move |ops| match turned {
            [false, false] => ops.matmul(x, y),
            [false, true] => ops.matmul_nt(x, y),
            [true, false] => ops.matmul_tn(x, y),
            [true, true] => ops.matmul_tt(x, y),
        })
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    for entity in entities {
        rig.app.world_mut().despawn(entity);
    }
    match difference(&Array::from_data(&data), &a.matmul(&b), (1e-5, 1e-4), "backend", "host") {
        Some(what) => Err(TestCaseError::fail(format!("on the {}: {what}", rig.backend))),
        None => Ok(()),
    }
}

#[test]
fn random_products_agree_with_the_host() {
    for backend in BACKENDS {
        let rig = RefCell::new(Rig::new(backend));
        let result = runner(64).run(&product(), |product| try_product(&mut rig.borrow_mut(), &product));
        assert!(result.is_ok(), "{}", result.err().map(|e| e.to_string()).unwrap_or_default());
    }
}
