//! Which ops must and must not share a kernel, compared by value.

use crate::ir::{BinaryOp, DType, InnerOp, Layout, NodeId, Op, ReduceKind, Shape, Source, UnaryOp};
use crate::kernel::Kernel;
use std::sync::Arc;

use super::*;
use crate::record::Part;
use crate::tensor::{Initial, Storage};

pub(crate) const LIMITS: PlanLimits =
    PlanLimits { buffers: 8, alignment: 1, binding: usize::MAX, passes: false, fuse: true, chain: 0 };

pub(crate) fn storage(elements: usize) -> Arc<Storage> {
    Storage::new(DType::F32, elements, Initial::Zeros)
}

pub(crate) fn load(part: &mut Part, storage: &Arc<Storage>, shape: impl Into<Shape>) -> NodeId {
    part.load(storage, Layout::contiguous(shape))
}

pub(crate) fn store(part: &mut Part, value: NodeId, storage: &Arc<Storage>) {
    let (slot, layout) = (part.slot(storage), Layout::contiguous(part.shape(value).clone()));
    part.store(value, slot, layout);
}

pub(crate) fn plan(part: Part) -> Arc<Plan> {
    PlanCache::new(LIMITS).plan_part(part)
}

pub(crate) fn kernels(plan: &Plan) -> Vec<&'static str> {
    plan.steps.iter().map(|step| step.kernel.spec().name()).collect()
}

#[test]
fn a_chain_over_broadcast_inputs_is_one_launch_without_scratch() {
    let (x, row, out) = (storage(12), storage(4), storage(12));
    let mut part = Part::default();
    let mut value = load(&mut part, &x, [3, 4]);
    for i in 0..12 {
        let row = load(&mut part, &row, [4]);
        let op = [BinaryOp::Add, BinaryOp::Mul, BinaryOp::Max][i % 3];
        value = part.binary_broadcast(op, value, row);
    }
    store(&mut part, value, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map"]);
    assert_eq!(plan.steps[0].inputs.len(), 2);
    assert_eq!(plan.scratch_words, 0);
}

#[test]
fn unused_ops_are_dropped() {
    let x = storage(4);
    let mut part = Part::default();
    let value = load(&mut part, &x, [4]);
    part.unary(UnaryOp::Exp, value);
    let plan = plan(part);
    assert!(plan.steps.is_empty());
    assert_eq!(plan.report.dead, 2);
}

#[test]
fn a_kernel_writes_straight_into_the_tensor_it_is_stored_to() {
    let (a, b, out) = (storage(6), storage(6), storage(4));
    let mut part = Part::default();
    let (a, b) = (load(&mut part, &a, [2, 3]), load(&mut part, &b, [3, 2]));
    let product = part.push(Op::MatMul { inner: InnerOp::Product }, &[a, b], Shape::from([2, 2]), DType::F32, &[]);
    store(&mut part, product, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["matmul"]);
    assert_eq!(plan.steps[0].outputs[0].source, Source::Slot(2));
    assert_eq!(plan.scratch_words, 0);
}

#[test]
fn few_long_rows_are_reduced_in_parts_and_others_at_once() {
    let cases = [
        (ReduceKind::Sum, [1, 1 << 20, 1], 2),
        (ReduceKind::SumSquares, [2, 100_000, 3], 2),
        // The best value of each part, its position, and the best of these.
        (ReduceKind::ArgMax { last: false }, [1, 1 << 20, 1], 3),
        (ReduceKind::Sum, [65, 1 << 16, 1], 1),
        (ReduceKind::Sum, [1, 1000, 1], 1),
        // A prime has no equal parts.
        (ReduceKind::Sum, [1, 65_537, 1], 1),
    ];
    for (kind, [outer, n, inner], launches) in cases {
        let (x, out) = (storage(outer * n * inner), storage(outer * inner));
        let mut part = Part::default();
        let x = load(&mut part, &x, [outer, n, inner]);
        let dtype = if matches!(kind, ReduceKind::ArgMax { .. }) { DType::I32 } else { DType::F32 };
        let y = part.push(Op::Reduce { kind, axis: 1, count: 1 }, &[x], Shape::from([outer, inner]), dtype, &[]);
        let y = if dtype == DType::I32 { part.cast(y, DType::F32) } else { y };
        store(&mut part, y, &out);
        let plan = plan(part);
        let reductions = kernels(&plan).into_iter().filter(|name| *name == "reduce").count();
        assert_eq!(reductions, launches, "{kind:?} of {outer} x {n} x {inner}");
    }
}

#[test]
fn an_update_in_place_reads_and_writes_one_storage() {
    let x = storage(4);
    let mut part = Part::default();
    let value = load(&mut part, &x, [4]);
    let next = part.unary(UnaryOp::Exp, value);
    store(&mut part, next, &x);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map"]);
    assert_eq!(plan.steps[0].inputs[0].source, plan.steps[0].outputs[0].source);
}

#[test]
fn an_update_that_moves_elements_goes_through_scratch() {
    let x = storage(4);
    let mut part = Part::default();
    let value = load(&mut part, &x, [2, 2]);
    let transposed = part.permute(value, &[1, 0]);
    store(&mut part, transposed, &x);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map", "map"]);
    assert!(matches!(plan.steps[0].outputs[0].source, Source::Scratch(_)));
}

#[test]
fn a_value_read_before_a_store_and_used_after_it_keeps_the_old_content() {
    let (x, out) = (storage(4), storage(4));
    let mut part = Part::default();
    let old = load(&mut part, &x, [4]);
    let doubled = part.binary(BinaryOp::Add, old, old);
    let zero = part.scalar(DType::F32, 0);
    let zero = part.broadcast(zero, &Shape::from([4]));
    store(&mut part, zero, &x);
    store(&mut part, doubled, &out);
    let plan = plan(part);
    // The doubling must run before the zeros are stored.
    let first_write = plan.steps.iter().position(|s| s.outputs[0].source == Source::Slot(0)).expect("stored");
    let reader = plan.steps.iter().position(|s| s.inputs.iter().any(|i| i.source == Source::Slot(0))).expect("read");
    assert!(reader < first_write, "{:?}", kernels(&plan));
}

#[test]
fn a_value_with_two_users_in_one_chain_is_computed_once() {
    let (x, out) = (storage(4), storage(4));
    let mut part = Part::default();
    let value = load(&mut part, &x, [4]);
    let exp = part.unary(UnaryOp::Exp, value);
    let sin = part.unary(UnaryOp::Sin, exp);
    let cos = part.unary(UnaryOp::Cos, exp);
    let sum = part.binary(BinaryOp::Add, sin, cos);
    store(&mut part, sum, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map"]);
    let Kernel::Map(map) = &plan.steps[0].kernel else { panic!("a map") };
    assert_eq!(map.program.exprs.len(), 5);
}

#[test]
fn a_reduction_ends_a_chain_and_starts_another() {
    let (x, out) = (storage(12), storage(12));
    let mut part = Part::default();
    let value = load(&mut part, &x, [3, 4]);
    let exp = part.unary(UnaryOp::Exp, value);
    let reduce = Op::Reduce { kind: ReduceKind::Sum, axis: 1, count: 1 };
    let sum = part.push(reduce, &[exp], Shape::from([3, 1]), DType::F32, &[]);
    let share = part.binary_broadcast(BinaryOp::Div, exp, sum);
    store(&mut part, share, &out);
    assert_eq!(kernels(&plan(part)), ["map", "reduce", "map"]);
}

#[test]
fn more_inputs_than_a_launch_can_bind_are_split() {
    let out = storage(4);
    let mut part = Part::default();
    let inputs: Vec<_> = (0..20).map(|_| storage(4)).collect();
    let mut value = load(&mut part, &inputs[0], [4]);
    for input in &inputs[1..] {
        let next = load(&mut part, input, [4]);
        value = part.binary(BinaryOp::Add, value, next);
    }
    store(&mut part, value, &out);
    let plan = plan(part);
    assert!(plan.steps.len() <= 4, "{}", plan.steps.len());
    for step in &plan.steps {
        let mut sources: Vec<_> = step.inputs.iter().chain(&step.outputs).map(|o| o.source).collect();
        sources.sort_unstable();
        sources.dedup();
        assert!(sources.len() <= LIMITS.buffers);
    }
}

#[test]
fn fresh_host_data_goes_straight_into_its_tensor() {
    let x = storage(4);
    let mut part = Part::default();
    let data = part.host(Arc::from([1u32, 2, 3, 4]), Shape::from([4]), DType::F32);
    store(&mut part, data, &x);
    let plan = plan(part);
    assert!(plan.steps.is_empty());
    assert_eq!(plan.uploads[0].to.source, Source::Slot(0));
}

#[test]
fn host_data_written_after_a_read_waits_for_it() {
    let (x, out) = (storage(4), storage(4));
    let mut part = Part::default();
    let old = load(&mut part, &x, [4]);
    let exp = part.unary(UnaryOp::Exp, old);
    store(&mut part, exp, &out);
    let data = part.host(Arc::from([1u32, 2, 3, 4]), Shape::from([4]), DType::F32);
    store(&mut part, data, &x);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["map", "map"]);
    assert!(matches!(plan.uploads[0].to.source, Source::Scratch(_)));
}

#[test]
fn frames_that_differ_only_in_numbers_and_storages_share_a_plan() {
    let mut cache = PlanCache::new(LIMITS);
    for frame in 0..5u32 {
        let (x, out) = (storage(4), storage(4));
        let mut part = Part::default();
        let value = load(&mut part, &x, [4]);
        let number = part.scalar(DType::F32, (frame as f32).to_bits());
        let scaled = part.binary_broadcast(BinaryOp::Mul, value, number);
        store(&mut part, scaled, &out);
        cache.plan_part(part);
    }
    assert_eq!((cache.built, cache.hits), (1, 4));
}

#[test]
fn narrow_kernel_results_are_packed_by_a_map() {
    let (x, out) = (Storage::new(DType::F16, 8, Initial::Zeros), Storage::new(DType::F16, 8, Initial::Zeros));
    let mut part = Part::default();
    let value = load(&mut part, &x, [2, 4]);
    let softmax = part.push(Op::Softmax { axis: 1, log: false }, &[value], Shape::from([2, 4]), DType::F16, &[]);
    store(&mut part, softmax, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["softmax", "map"]);
    assert_eq!(plan.steps[0].outputs[0].dtype, DType::F32);
}

#[test]
fn a_shared_right_side_turns_the_batch_into_rows() {
    let (x, w, out) = (storage(24), storage(8), storage(12));
    let mut part = Part::default();
    let (x, w) = (load(&mut part, &x, [2, 3, 4]), load(&mut part, &w, [4, 2]));
    let w = part.broadcast(w, &Shape::from([2, 4, 2]));
    let product = part.push(Op::MatMul { inner: InnerOp::Product }, &[x, w], Shape::from([2, 3, 2]), DType::F32, &[]);
    store(&mut part, product, &out);
    let plan = plan(part);
    let Kernel::MatMul(matmul) = &plan.steps[0].kernel else { panic!("a matmul") };
    assert_eq!((matmul.batch.len(), matmul.m, matmul.n, matmul.k), (0, 6, 2, 4));
}
