//! Kernels with fused work give the same results as separate launches, in every variant, with and without runtime
//! checks.

use super::device::{assert_close, caps, floats, noise, run_step_with, words};
use crate::ir::{BinaryOp, DType, InnerOp, NodeId, NormKind, Op, ReduceKind, Shape, Source, UnaryOp};
use crate::kernel::{Caps, lower};
use crate::plan::tests::{LIMITS, load, storage, store};
use crate::plan::{Plan, PlanCache, PlanLimits};
use crate::record::{Batch, Part};

/// Records work on inputs of these shapes, and stores one result of the last shape.
fn recorded(
    shapes: &[&[usize]],
    record: &dyn Fn(&mut Part, &[NodeId]) -> NodeId,
    limits: PlanLimits,
) -> (Plan, Vec<u32>) {
    let mut part = Part::default();
    let inputs: Vec<NodeId> = shapes
        .iter()
        .map(|shape| {
            let storage = storage(shape.iter().product());
            load(&mut part, &storage, *shape)
        })
        .collect();
    let value = record(&mut part, &inputs);
    let out = storage(part.shape(value).elements());
    store(&mut part, value, &out);
    let batch = Batch::new([part]);
    let plan = PlanCache::new(limits).plan(&batch.structure, &batch.scalars).1;
    ((*plan).clone(), batch.scalars)
}

/// Runs a plan step by step. Returns the content of its last slot.
fn run(plan: &Plan, shapes: &[&[usize]], scalars: &[u32], caps: &Caps) -> Vec<f32> {
    let count = |shape: &&[usize]| shape.iter().product::<usize>();
    let inputs = shapes.iter().enumerate().map(|(i, shape)| words(&noise(count(shape), i as u32 + 1)));
    let result = plan.steps.last().expect("something to do").outputs.iter().find_map(|output| match output.source {
        Source::Slot(_) => Some(output.layout.elements()),
        _ => None,
    });
    let slots =
        inputs.chain(result.map(|n| vec![0u32; n])).enumerate().map(|(i, words)| (Source::Slot(i as u32), words));
    let scratch = plan.regions.iter().enumerate().map(|(i, r)| (Source::Scratch(i as u32), vec![0; r.words]));
    let constants = plan.constants.iter().enumerate().map(|(i, c)| (Source::Constant(i as u32), c.to_vec()));
    let mut buffers: Vec<(Source, Vec<u32>)> = slots.chain(scratch).chain(constants).collect();
    for (_, words) in &mut buffers {
        // Bindings are padded to 16 bytes.
        words.resize(words.len().next_multiple_of(4).max(4), 0);
    }
    for step in &plan.steps {
        buffers = run_step_with(step, &buffers, scalars, caps).0;
    }
    floats(&buffers[shapes.len()].1[..result.expect("stored")])
}

/// Runs `record` fused and unfused on every kind of device. Fused, it must become one launch of `kernel`.
#[track_caller]
fn check(kernel: &str, shapes: &[&[usize]], record: &dyn Fn(&mut Part, &[NodeId]) -> NodeId) {
    let chain = if kernel == "row_chain" { 4096 } else { 0 };
    let (joined, scalars) = recorded(shapes, record, PlanLimits { chain, ..LIMITS });
    let (apart, _) = recorded(shapes, record, PlanLimits { fuse: false, ..LIMITS });
    let names: Vec<_> = joined.steps.iter().map(|step| step.kernel.spec().name()).collect();
    assert_eq!(names, [kernel], "{:?}", joined.report.unfused);
    assert!(apart.steps.len() > 1);
    for software in [true, false] {
        for subgroup in [caps().subgroup, None] {
            let caps = Caps { software, subgroup, ..caps() };
            let got = run(&joined, shapes, &scalars, &caps);
            let want = run(&apart, shapes, &scalars, &caps);
            assert_close(&got, &want, 1e-5, &format!("{kernel} of {shapes:?}, software {software}, {subgroup:?}"));
        }
    }
}

fn product(part: &mut Part, a: NodeId, b: NodeId) -> NodeId {
    let mut shape = part.shape(a).clone();
    let rank = shape.rank();
    shape.dims_mut()[rank - 1] = part.shape(b)[rank - 1];
    part.push(Op::MatMul { inner: InnerOp::Product }, &[a, b], shape, DType::F32, &[])
}

#[test]
fn every_form_of_a_product_takes_bias_activation_and_residual() {
    for [m, k, n] in [[1, 5, 70], [70, 5, 2], [3, 9, 33], [9, 5, 33], [40, 17, 66]] {
        check("matmul", &[&[m, k], &[k, n], &[n], &[m, n], &[m, 1]], &|part, x| {
            let y = product(part, x[0], x[1]);
            let y = part.binary_broadcast(BinaryOp::Add, y, x[2]);
            let y = part.unary(UnaryOp::Gelu, y);
            let y = part.binary(BinaryOp::Add, y, x[3]);
            part.binary_broadcast(BinaryOp::Mul, y, x[4])
        });
    }
}

#[test]
fn results_are_written_turned_and_over_several_broadcast_axes() {
    check("matmul", &[&[2, 3, 5, 4], &[2, 3, 4, 6], &[3, 1, 6], &[2, 1, 5, 1]], &|part, x| {
        let y = product(part, x[0], x[1]);
        let y = part.binary_broadcast(BinaryOp::Add, y, x[2]);
        let y = part.binary_broadcast(BinaryOp::Sub, y, x[3]);
        part.permute(y, &[0, 2, 1, 3])
    });
    check("matmul", &[&[7, 4], &[4, 6], &[6, 7]], &|part, x| {
        let y = product(part, x[0], x[1]);
        let y = part.transpose(y);
        let flipped = part.flip(x[2], 1);
        part.binary(BinaryOp::Mul, y, flipped)
    });
}

#[test]
fn rows_are_computed_as_they_are_read_and_changed_as_they_are_written() {
    for [rows, n] in [[3, 5], [2, 130], [40, 200], [1100, 9]] {
        let scaled = |part: &mut Part, x: &[NodeId]| {
            let y = part.binary_number(BinaryOp::Mul, x[0], 3.0);
            part.binary_broadcast(BinaryOp::Add, y, x[1])
        };
        check("softmax", &[&[rows, n], &[n]], &move |part, x| {
            let y = scaled(part, x);
            part.push(Op::Softmax { axis: 1, log: false }, &[y], Shape::from([rows, n]), DType::F32, &[])
        });
        for kind in [NormKind::Layer, NormKind::Rms, NormKind::L2] {
            check("row_norm", &[&[rows, n], &[n]], &move |part, x| {
                let y = scaled(part, x);
                let op = Op::RowNorm { kind, weight: true, bias: false };
                let y = part.push(op, &[y, x[1]], Shape::from([rows, n]), DType::F32, &[1e-5f32.to_bits()]);
                part.unary(UnaryOp::Silu, y)
            });
        }
        for kind in [ReduceKind::Mean, ReduceKind::Max] {
            check("reduce", &[&[n, rows], &[n]], &move |part, x| {
                let turned = part.transpose(x[0]);
                let y = part.binary_broadcast(BinaryOp::Mul, turned, x[1]);
                let op = Op::Reduce { kind, axis: 1, count: 1 };
                let y = part.push(op, &[y], Shape::from([rows, 1]), DType::F32, &[]);
                part.unary(UnaryOp::Tanh, y)
            });
        }
        check("cumsum", &[&[rows, n], &[n]], &move |part, x| {
            let y = scaled(part, x);
            let y = part.push(Op::CumSum { axis: 1, exclusive: true }, &[y], Shape::from([rows, n]), DType::F32, &[]);
            part.binary_number(BinaryOp::Mul, y, 0.01)
        });
    }
}

#[test]
fn positions_count_as_operands() {
    // The index of the element, as used for masks.
    check("reduce", &[&[40, 16]], &|part, x| {
        let position = part.iota(16);
        let position = part.cast(position, DType::F32);
        let y = part.binary_broadcast(BinaryOp::Mul, x[0], position);
        let op = Op::Reduce { kind: ReduceKind::Sum, axis: 1, count: 1 };
        let y = part.push(op, &[y], Shape::from([40, 1]), DType::F32, &[]);
        let row = part.iota(40);
        let row = part.cast(row, DType::F32);
        let row = part.reshape(row, &Shape::from([40, 1]));
        part.binary(BinaryOp::Add, y, row)
    });
}

fn rows_norm(part: &mut Part, kind: NormKind, inputs: &[NodeId]) -> NodeId {
    let op = Op::RowNorm { kind, weight: inputs.len() > 1, bias: inputs.len() > 2 };
    let shape = part.shape(inputs[0]).clone();
    part.push(op, inputs, shape, DType::F32, &[1e-5f32.to_bits()])
}

fn softmax(part: &mut Part, x: NodeId, log: bool) -> NodeId {
    let (shape, axis) = (part.shape(x).clone(), part.shape(x).rank() - 1);
    part.push(Op::Softmax { axis, log }, &[x], shape, DType::F32, &[])
}

#[test]
fn a_policy_network_is_one_launch_at_any_number_of_rows() {
    for (rows, widths) in [(1, [3, 5, 7, 2]), (17, [64, 128, 128, 8]), (300, [3, 5, 7, 2])] {
        let [a, b, c, d] = widths;
        let shapes: &[&[usize]] = &[&[rows, a], &[b, a], &[b], &[b, c], &[c], &[d, c], &[d]];
        check("row_chain", shapes, &|part, x| {
            let weight = part.transpose(x[1]);
            let y = product(part, x[0], weight);
            let y = part.binary_broadcast(BinaryOp::Add, y, x[2]);
            let y = part.unary(UnaryOp::Relu, y);
            // Weights in both orders.
            let y = product(part, y, x[3]);
            let y = part.binary_broadcast(BinaryOp::Add, y, x[4]);
            let y = part.unary(UnaryOp::Tanh, y);
            let weight = part.transpose(x[5]);
            let y = product(part, y, weight);
            part.binary_broadcast(BinaryOp::Add, y, x[6])
        });
    }
}

#[test]
fn norms_softmaxes_and_maps_are_links_of_a_chain() {
    for (rows, kind) in [(1, NormKind::Layer), (40, NormKind::Rms), (5, NormKind::L2)] {
        check("row_chain", &[&[rows, 20], &[20, 33], &[33], &[33], &[33, 18], &[rows, 18]], &|part, x| {
            let y = part.binary_number(BinaryOp::Mul, x[0], 0.7);
            let y = product(part, y, x[1]);
            let y = rows_norm(part, kind, &[y, x[2], x[3]]);
            let y = part.unary(UnaryOp::Gelu, y);
            let y = product(part, y, x[4]);
            let y = part.binary_number(BinaryOp::Mul, y, 1.5);
            let z = softmax(part, y, kind == NormKind::Rms);
            // A value that two links read, and an operand with rows.
            let y = part.binary(BinaryOp::Add, y, z);
            part.binary(BinaryOp::Mul, y, x[5])
        });
    }
}

#[test]
fn lines_inside_rows_are_normalised_each() {
    check("row_chain", &[&[6, 8], &[8, 12], &[12, 10]], &|part, x| {
        let y = product(part, x[0], x[1]);
        let y = part.reshape(y, &Shape::from([6, 3, 4]));
        let y = softmax(part, y, false);
        let y = rows_norm(part, NormKind::Layer, &[y]);
        let y = part.reshape(y, &Shape::from([6, 12]));
        product(part, y, x[2])
    });
}

#[test]
fn a_hundred_small_products_are_a_loop() {
    let record: &dyn Fn(&mut Part, &[NodeId]) -> NodeId = &|part, x| {
        let scaled = part.binary_number(BinaryOp::Mul, x[1], 0.25);
        (0..100).fold(x[0], |y, _| product(part, y, scaled))
    };
    let shapes: &[&[usize]] = &[&[16, 16], &[16, 16]];
    let (plan, scalars) = recorded(shapes, record, PlanLimits { chain: 4096, ..LIMITS });
    let names: Vec<_> = plan.steps.iter().map(|step| step.kernel.spec().name()).collect();
    assert_eq!(names, ["map", "row_chain"]);
    let launch = lower(&plan.steps[1], &caps()).expect("there is work");
    assert!(launch.wgsl.len() < 40_000, "{} characters", launch.wgsl.len());
    let (apart, _) = recorded(shapes, record, PlanLimits { fuse: false, ..LIMITS });
    let (got, want) = (run(&plan, shapes, &scalars, &caps()), run(&apart, shapes, &scalars, &caps()));
    assert_close(&got, &want, 1e-4, "a hundred products");
}
