//! Which steps must and must not share a launch, and the reasons reported.

use std::sync::Arc;

use crate::figures::UnfusedReason;
use crate::ir::{BinaryOp, DType, InnerOp, Layout, NodeId, NormKind, Op, ReduceKind, Shape, Source, UnaryOp, Window};
use crate::kernel::Kernel;
use crate::plan::tests::{LIMITS, kernels, load, plan, storage, store};
use crate::plan::{Plan, PlanCache, PlanLimits};
use crate::record::Part;
use crate::tensor::{Initial, Storage};

fn product(part: &mut Part, a: NodeId, b: NodeId) -> NodeId {
    let rank = part.shape(a).rank();
    let mut shape = part.shape(a).clone();
    shape.dims_mut()[rank - 1] = part.shape(b)[rank - 1];
    part.push(Op::MatMul { inner: InnerOp::Product }, &[a, b], shape, DType::F32, &[])
}

fn softmax(part: &mut Part, x: NodeId) -> NodeId {
    let (shape, axis) = (part.shape(x).clone(), part.shape(x).rank() - 1);
    part.push(Op::Softmax { axis, log: false }, &[x], shape, DType::F32, &[])
}

fn norm(part: &mut Part, x: NodeId) -> NodeId {
    let shape = part.shape(x).clone();
    let op = Op::RowNorm { kind: NormKind::Layer, weight: false, bias: false };
    part.push(op, &[x], shape, DType::F32, &[1e-5f32.to_bits()])
}

fn sum(part: &mut Part, x: NodeId) -> NodeId {
    let axis = part.shape(x).rank() - 1;
    let mut shape = part.shape(x).clone();
    shape.dims_mut()[axis] = 1;
    part.push(Op::Reduce { kind: ReduceKind::Sum, axis, count: 1 }, &[x], shape, DType::F32, &[])
}

/// A `[4, 4]` product of two loaded tensors.
fn loaded_product(part: &mut Part) -> NodeId {
    let (a, b) = (storage(16), storage(16));
    let (a, b) = (load(part, &a, [4, 4]), load(part, &b, [4, 4]));
    product(part, a, b)
}

fn reasons(plan: &Plan) -> Vec<UnfusedReason> {
    plan.report.unfused.iter().map(|edge| edge.reason).collect()
}

fn plan_with(part: Part, limits: PlanLimits) -> Arc<Plan> {
    PlanCache::new(limits).plan_part(part)
}

#[test]
fn bias_activation_and_residual_run_inside_a_product() {
    let (x, w, bias, residual, out) = (storage(24), storage(32), storage(8), storage(48), storage(48));
    let mut part = Part::default();
    let (x, w) = (load(&mut part, &x, [6, 4]), load(&mut part, &w, [4, 8]));
    let y = product(&mut part, x, w);
    let bias = load(&mut part, &bias, [8]);
    let y = part.binary_broadcast(BinaryOp::Add, y, bias);
    let y = part.unary(UnaryOp::Gelu, y);
    let residual = load(&mut part, &residual, [6, 8]);
    let y = part.binary(BinaryOp::Add, y, residual);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul"]);
    assert_eq!((plan.scratch_words, reasons(&plan)), (0, vec![]));
    let step = &plan.steps[0];
    assert_eq!(step.outputs[0].source, Source::Slot(4));
    let epilogue = step.epilogue.as_ref().expect("fused");
    // Rows by columns: the bias is indexed by column only.
    assert_eq!(epilogue.map.shape, [6, 8]);
    let strides: Vec<_> = epilogue.inputs.iter().map(|input| input.layout.strides.to_vec()).collect();
    assert_eq!(strides, [vec![8, 1], vec![0, 1], vec![8, 1]]);
    assert_eq!(plan.report.steps[0].op, plan.report.steps[0].ops[0]);
}

#[test]
fn operands_in_order_leave_an_epilogue_one_axis() {
    let out = storage(16);
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let y = part.binary_number(BinaryOp::Mul, y, 0.5);
    let y = part.unary(UnaryOp::Relu, y);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul"]);
    assert_eq!(plan.steps[0].epilogue.as_ref().expect("fused").map.shape, [16]);
}

#[test]
fn every_kernel_that_writes_each_result_once_takes_what_follows() {
    let window = Window { size: [1, 3, 3], stride: [1; 3], dilation: [1; 3], before: [0, 1, 1], after: [0, 1, 1] };
    type Record = fn(&mut Part, NodeId, Window) -> NodeId;
    let cases: [(&str, Record); 8] = [
        ("reduce", |part, x, _| sum(part, x)),
        ("row_norm", |part, x, _| norm(part, x)),
        ("cumsum", |part, x, _| {
            part.push(Op::CumSum { axis: 4, exclusive: false }, &[x], part.shape(x).clone(), DType::F32, &[])
        }),
        ("conv", |part, x, window| {
            let w = storage(36);
            let w = load(part, &w, [2, 2, 1, 3, 3]);
            let op = Op::Conv { window, groups: 1, bias: false };
            part.push(op, &[x, w], part.shape(x).clone(), DType::F32, &[])
        }),
        ("conv_transpose", |part, x, window| {
            let w = storage(36);
            let w = load(part, &w, [2, 2, 1, 3, 3]);
            let op = Op::ConvTranspose { window, groups: 1, bias: false };
            part.push(op, &[x, w], part.shape(x).clone(), DType::F32, &[])
        }),
        ("pool", |part, x, window| {
            let op = Op::Pool { kind: crate::ir::PoolKind::Max, window };
            part.push(op, &[x], part.shape(x).clone(), DType::F32, &[])
        }),
        ("gather", |part, x, _| part.gather_table(x, 4, &[1, 0, 3])),
        ("attention", |part, x, _| {
            let x = part.reshape(x, &Shape::from([1, 2, 4, 4]));
            let number = |v: f32| v.to_bits();
            let scalars = [number(1.0), number(0.0), 4, 0];
            part.push(
                Op::Attention { causal: false, mask: false },
                &[x, x, x],
                part.shape(x).clone(),
                DType::F32,
                &scalars,
            )
        }),
    ];
    for (name, record) in cases {
        let (x, out) = (storage(32), storage(32));
        let mut part = Part::default();
        let x = load(&mut part, &x, [1, 2, 1, 4, 4]);
        let y = record(&mut part, x, window);
        let y = part.unary(UnaryOp::Silu, y);
        let y = part.binary_number(BinaryOp::Add, y, 1.0);
        store(&mut part, y, &out);
        let plan = plan(part);
        assert_eq!(kernels(&plan), [name]);
        assert!(plan.steps[0].epilogue.is_some(), "{name}");
        assert_eq!(reasons(&plan), [], "{name}");
    }
}

#[test]
fn a_gate_joins_the_later_of_two_products() {
    let out = storage(16);
    let mut part = Part::default();
    let (gate, value) = (loaded_product(&mut part), loaded_product(&mut part));
    let gate = part.unary(UnaryOp::Silu, gate);
    let y = part.binary(BinaryOp::Mul, gate, value);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul", "matmul"]);
    assert!(plan.steps[0].epilogue.is_none() && plan.steps[1].epilogue.is_some());
    assert_eq!(reasons(&plan), [UnfusedReason::Taken]);
    assert_eq!(plan.report.unfused[0].steps, [0, 1]);
}

#[test]
fn a_result_that_others_need_too_stays_an_output() {
    let (before, after, rows) = (storage(16), storage(16), storage(16));
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let z = part.unary(UnaryOp::Relu, y);
    store(&mut part, z, &after);
    store(&mut part, y, &before);
    let s = softmax(&mut part, y);
    store(&mut part, s, &rows);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul", "softmax"]);
    let outputs: Vec<_> = plan.steps[0].outputs.iter().map(|output| output.source).collect();
    assert_eq!(outputs.len(), 2);
    assert_eq!(plan.steps[1].inputs[0].source, outputs[0], "the product itself");
    // The product is written directly into its tensor, as it was without the activation.
    assert!(matches!(outputs[0], Source::Slot(_)) && matches!(outputs[1], Source::Slot(_)));
}

#[test]
fn a_transposed_result_is_written_transposed() {
    let out = storage(16);
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let y = part.transpose(y);
    let y = part.unary(UnaryOp::Exp, y);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul"]);
    assert_eq!(plan.steps[0].outputs[0].layout.strides[..], [1, 4]);
}

#[test]
fn broadcast_or_cut_results_are_not_taken_in() {
    for cut in [false, true] {
        let out = storage(32);
        let mut part = Part::default();
        let y = loaded_product(&mut part);
        let y = if cut { part.slice(y, 0, 1, 2, 1) } else { part.broadcast(y, &Shape::from([2, 4, 4])) };
        let y = part.unary(UnaryOp::Exp, y);
        store(&mut part, y, &out);
        let plan = plan(part);
        assert_eq!(kernels(&plan), ["matmul", "map"]);
        assert_eq!(reasons(&plan), [UnfusedReason::Order]);
    }
}

#[test]
fn a_product_may_add_to_a_tensor_in_place_but_not_overwrite_what_it_multiplies() {
    let (x, w, y) = (storage(16), storage(16), storage(16));
    let mut part = Part::default();
    let (a, b, old) = (load(&mut part, &x, [4, 4]), load(&mut part, &w, [4, 4]), load(&mut part, &y, [4, 4]));
    let p = product(&mut part, a, b);
    let sum = part.binary(BinaryOp::Add, p, old);
    store(&mut part, sum, &y);
    let in_place = plan(part);
    assert_eq!(kernels(&in_place), ["matmul"]);
    let step = &in_place.steps[0];
    assert_eq!(step.epilogue.as_ref().expect("fused").inputs[1], step.outputs[0]);

    let mut part = Part::default();
    let (a, b) = (load(&mut part, &x, [4, 4]), load(&mut part, &w, [4, 4]));
    let p = product(&mut part, a, b);
    let relu = part.unary(UnaryOp::Relu, p);
    store(&mut part, relu, &x);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul", "map"]);
    assert_eq!(reasons(&plan), [UnfusedReason::Overwrites]);

    // When transposed, a thread would read elements that another thread has already overwritten.
    let mut part = Part::default();
    let (a, b, old) = (load(&mut part, &x, [4, 4]), load(&mut part, &w, [4, 4]), load(&mut part, &y, [4, 4]));
    let p = product(&mut part, a, b);
    let turned = part.transpose(old);
    let sum = part.binary(BinaryOp::Add, p, turned);
    store(&mut part, sum, &y);
    for step in &super::super::tests::plan(part).steps {
        let reads_output = step.reads().any(|read| step.outputs.iter().any(|output| read.source == output.source));
        assert!(!reads_output);
    }
}

#[test]
fn packed_results_and_moving_stores_are_launches_of_their_own() {
    let out = Storage::new(DType::F16, 16, Initial::Zeros);
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let y = part.cast(y, DType::F16);
    store(&mut part, y, &out);
    let packed = plan(part);
    assert_eq!(kernels(&packed), ["matmul", "map"]);
    assert_eq!(reasons(&packed), [UnfusedReason::Narrow]);

    let cache = storage(64);
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let slot = part.slot(&cache);
    let layout = Layout::contiguous([16, 4]).slice(0, 0, 4, 1);
    part.push(Op::Store { slot, layout, at: Some(0) }, &[y], Shape::from([4, 4]), DType::F32, &[3]);
    let moving = plan(part);
    assert_eq!(kernels(&moving), ["matmul", "map"]);
    assert_eq!(reasons(&moving), [UnfusedReason::MovingStore]);
}

#[test]
fn what_is_read_is_not_overwritten_by_a_step_that_moved() {
    let (x, other, out) = (storage(16), storage(16), storage(16));
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let old = load(&mut part, &x, [4, 4]);
    let a = load(&mut part, &other, [4, 4]);
    let s = softmax(&mut part, a);
    store(&mut part, s, &x);
    let sum = part.binary(BinaryOp::Add, y, old);
    store(&mut part, sum, &out);
    let plan = plan(part);
    let of = |find: &dyn Fn(&crate::kernel::Step) -> bool| plan.steps.iter().position(find).expect("there");
    let writer = of(&|step| step.outputs.iter().any(|o| o.source == Source::Slot(2)));
    let reader = of(&|step| step.reads().any(|o| o.source == Source::Slot(2)));
    assert!(reader < writer, "{:?}", kernels(&plan));
}

#[test]
fn more_than_a_launch_can_bind_or_a_kernel_can_hold_is_left_out() {
    let out = storage(16);
    let mut part = Part::default();
    let mut y = loaded_product(&mut part);
    for _ in 0..6 {
        let next = storage(16);
        let next = load(&mut part, &next, [4, 4]);
        y = part.binary(BinaryOp::Add, y, next);
    }
    store(&mut part, y, &out);
    let bound = plan(part);
    assert_eq!(kernels(&bound), ["matmul", "map"]);
    assert_eq!(reasons(&bound), [UnfusedReason::Bindings]);

    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let mut z = y;
    for i in 0..300 {
        z = part.unary(if i % 2 == 0 { UnaryOp::Sin } else { UnaryOp::Abs }, z);
    }
    store(&mut part, z, &out);
    let long = plan(part);
    assert!(long.steps.len() > 1);
    assert!(reasons(&long).iter().all(|reason| *reason == UnfusedReason::TooLong), "{:?}", reasons(&long));
}

#[test]
fn a_scaled_and_masked_softmax_is_one_launch() {
    let (scores, mask, out) = (storage(3 * 64 * 64), storage(64 * 64), storage(3 * 64 * 64));
    let mut part = Part::default();
    let x = load(&mut part, &scores, [3, 64, 64]);
    let x = part.binary_number(BinaryOp::Mul, x, 0.125);
    let mask = load(&mut part, &mask, [64, 64]);
    let x = part.binary_broadcast(BinaryOp::Add, x, mask);
    let y = softmax(&mut part, x);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["softmax"]);
    assert_eq!((plan.scratch_words, reasons(&plan)), (0, vec![]));
    assert_eq!(plan.steps[0].inputs[0].source, Source::Fused);
    assert_eq!(plan.steps[0].prologue.as_ref().expect("fused").map.shape, [3, 4096]);
}

#[test]
fn costly_work_is_done_once_before_a_kernel_that_reads_several_times() {
    type Record = fn(&mut Part, NodeId) -> NodeId;
    let cases: [(&str, Record, &[&str]); 4] = [
        ("gelu, norm", |part, x| norm(part, x), &["map", "row_norm"]),
        ("gelu, sum", |part, x| sum(part, x), &["reduce"]),
        ("gelu, softmax", |part, x| softmax(part, x), &["map", "softmax"]),
        (
            "gelu, cumsum",
            |part, x| part.push(Op::CumSum { axis: 1, exclusive: false }, &[x], part.shape(x).clone(), DType::F32, &[]),
            &["cumsum"],
        ),
    ];
    for (name, record, expected) in cases {
        let (x, out) = (storage(64 * 64), storage(64 * 64));
        let mut part = Part::default();
        let x = load(&mut part, &x, [64, 64]);
        let x = part.unary(UnaryOp::Gelu, x);
        let y = record(&mut part, x);
        store(&mut part, y, &out);
        let plan = plan(part);
        assert_eq!(kernels(&plan), expected, "{name}");
        let costly = vec![UnfusedReason::Costly; expected.len() - 1];
        assert_eq!(reasons(&plan), costly, "{name}");
    }
    // One row leaves most of a device idle, so expensive work is spread over the whole device first.
    for (op, expected) in [(UnaryOp::Exp, &["map", "reduce"][..]), (UnaryOp::Abs, &["reduce"])] {
        let (x, out) = (storage(64), storage(64));
        let mut part = Part::default();
        let x = load(&mut part, &x, [64]);
        let x = part.unary(op, x);
        let y = sum(&mut part, x);
        store(&mut part, y, &out);
        assert_eq!(kernels(&plan(part)), expected);
    }
}

#[test]
fn an_epilogue_comes_before_a_prologue() {
    let out = storage(16);
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let y = part.binary_number(BinaryOp::Mul, y, 0.125);
    let y = softmax(&mut part, y);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul", "softmax"]);
    assert!(plan.steps[0].epilogue.is_some() && plan.steps[1].prologue.is_none());
}

#[test]
fn a_sum_over_a_turned_tensor_reads_it_where_it_lies() {
    let (x, out) = (storage(64 * 64), storage(64));
    let mut part = Part::default();
    let x = load(&mut part, &x, [64, 64]);
    let x = part.transpose(x);
    let y = sum(&mut part, x);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["reduce"]);
    assert_eq!(plan.scratch_words, 0);
}

#[test]
fn a_prologue_is_not_computed_for_others_too_nor_over_what_it_reads() {
    let (x, out, copy) = (storage(64 * 64), storage(64), storage(64 * 64));
    let mut part = Part::default();
    let value = load(&mut part, &x, [64, 64]);
    let doubled = part.binary_number(BinaryOp::Mul, value, 2.0);
    store(&mut part, doubled, &copy);
    let y = sum(&mut part, doubled);
    store(&mut part, y, &out);
    let several = plan(part);
    assert_eq!(kernels(&several), ["map", "reduce"]);
    assert_eq!(reasons(&several), [UnfusedReason::SeveralUsers]);

    let mut part = Part::default();
    let value = load(&mut part, &x, [64, 64]);
    let doubled = part.binary_number(BinaryOp::Mul, value, 2.0);
    let y = softmax(&mut part, doubled);
    store(&mut part, y, &x);
    let over = plan(part);
    assert_eq!(kernels(&over), ["map", "softmax"]);
    assert_eq!(reasons(&over), [UnfusedReason::Overwrites]);
}

#[test]
fn a_value_used_by_two_maps_is_computed_once_by_one_launch() {
    let (x, a, b) = (storage(12), storage(12), storage(12));
    let mut part = Part::default();
    let value = load(&mut part, &x, [3, 4]);
    let exp = part.unary(UnaryOp::Exp, value);
    let sin = part.unary(UnaryOp::Sin, exp);
    let cos = part.unary(UnaryOp::Cos, exp);
    store(&mut part, sin, &a);
    store(&mut part, cos, &b);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map"]);
    let Kernel::Map(map) = &plan.steps[0].kernel else { panic!("a map") };
    assert_eq!((plan.steps[0].outputs.len(), map.program.exprs.len(), plan.scratch_words), (2, 4, 0));
}

#[test]
fn maps_over_the_same_operand_are_one_launch_though_their_axes_were_merged_differently() {
    let (x, row, a, b) = (storage(12), storage(4), storage(12), storage(12));
    let mut part = Part::default();
    let value = load(&mut part, &x, [3, 4]);
    let row = load(&mut part, &row, [4]);
    let exp = part.unary(UnaryOp::Exp, value);
    let sum = part.binary_broadcast(BinaryOp::Add, value, row);
    store(&mut part, exp, &a);
    store(&mut part, sum, &b);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map"]);
    assert_eq!((plan.steps[0].inputs.len(), plan.steps[0].outputs.len()), (2, 2));
}

#[test]
fn maps_that_share_nothing_or_one_number_stay_apart() {
    let (x, y, number, a, b) = (storage(12), storage(12), storage(1), storage(12), storage(12));
    let mut part = Part::default();
    let number = load(&mut part, &number, [1]);
    for (from, to) in [(&x, &a), (&y, &b)] {
        let value = load(&mut part, from, [12]);
        let value = part.binary_broadcast(BinaryOp::Mul, value, number);
        store(&mut part, value, to);
    }
    assert_eq!(kernels(&plan(part)), ["map", "map"]);
}

#[test]
fn quantising_and_back_stays_in_registers() {
    let (x, out) = (storage(64), storage(64));
    let mut part = Part::default();
    let value = load(&mut part, &x, [64]);
    let value = part.binary_number(BinaryOp::Mul, value, 10.0);
    let value = part.unary(UnaryOp::Round, value);
    let value = part.unary_with(UnaryOp::Clamp, value, &[(-127.0f32).to_bits(), 127.0f32.to_bits()]);
    let narrow = part.cast(value, DType::I8);
    let back = part.cast(narrow, DType::F32);
    let back = part.binary_number(BinaryOp::Mul, back, 0.1);
    store(&mut part, back, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map"]);
    assert_eq!(plan.scratch_words, 0);
    assert!(plan.steps[0].inputs.iter().chain(&plan.steps[0].outputs).all(|operand| operand.dtype == DType::F32));
}

#[test]
fn with_fusion_off_every_op_is_a_launch() {
    let out = storage(16);
    let mut part = Part::default();
    let y = loaded_product(&mut part);
    let y = part.binary_number(BinaryOp::Mul, y, 0.5);
    let y = part.unary(UnaryOp::Relu, y);
    let y = softmax(&mut part, y);
    store(&mut part, y, &out);
    let plan = plan_with(part, PlanLimits { fuse: false, ..LIMITS });
    assert_eq!(kernels(&plan), ["matmul", "map", "map", "softmax"]);
    assert_eq!(reasons(&plan), [UnfusedReason::Off; 3]);
    assert!(plan.steps.iter().all(|step| step.prologue.is_none() && step.epilogue.is_none()));
    assert_eq!(plan.report.unfused[0].to_string(), "generate to generate: fusion is off");
}

/// Six layers, 384 wide, as in a small sentence encoder.
#[test]
fn an_encoders_scratch_is_close_to_the_largest_live_set() {
    for tokens in [16, 128] {
        let (width, heads, layers) = (384, 12, 6);
        let (x, out) = (storage(tokens * width), storage(tokens * width));
        let mut part = Part::default();
        let mut h = load(&mut part, &x, [tokens, width]);
        let linear = |part: &mut Part, x: NodeId, to: usize| {
            let from = part.shape(x)[1];
            let (w, b) = (storage(from * to), storage(to));
            let w = load(part, &w, [from, to]);
            let y = product(part, x, w);
            let b = load(part, &b, [to]);
            part.binary_broadcast(BinaryOp::Add, y, b)
        };
        for _ in 0..layers {
            let split = |part: &mut Part, x: NodeId| {
                let x = part.reshape(x, &Shape::from([1, tokens, heads, width / heads]));
                part.permute(x, &[0, 2, 1, 3])
            };
            let [q, k, v] = [0; 3].map(|_| linear(&mut part, h, width));
            let [q, k, v] = [q, k, v].map(|x| split(&mut part, x));
            let scalars = [0.177f32.to_bits(), 0.0f32.to_bits(), tokens as u32, 0];
            let shape = part.shape(q).clone();
            let op = Op::Attention { causal: false, mask: false };
            let a = part.push(op, &[q, k, v], shape, DType::F32, &scalars);
            let a = part.permute(a, &[0, 2, 1, 3]);
            let a = part.reshape(a, &Shape::from([tokens, width]));
            let a = linear(&mut part, a, width);
            let a = part.binary(BinaryOp::Add, a, h);
            let a = norm(&mut part, a);
            let m = linear(&mut part, a, 4 * width);
            let m = part.unary(UnaryOp::Gelu, m);
            let m = linear(&mut part, m, width);
            let m = part.binary(BinaryOp::Add, m, a);
            h = norm(&mut part, m);
        }
        store(&mut part, h, &out);
        let plan = plan_with(part, PlanLimits { alignment: 64, ..LIMITS });
        let report = &plan.report;
        assert!(report.live_scratch_bytes > 0);
        assert!(
            report.scratch_bytes * 10 <= report.live_scratch_bytes * 11,
            "{} bytes for {} alive at once",
            report.scratch_bytes,
            report.live_scratch_bytes
        );
        // Six products, attention (which joins its heads as it writes) and two norms. Biases, activations and residuals
        // are fused into them.
        assert_eq!(plan.steps.len(), layers * 9, "{:?}", kernels(&plan));
    }
}
