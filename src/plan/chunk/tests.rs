//! No launch of a plan over large memories exceeds the binding limit.

use super::*;
use crate::ir::{BinaryOp, DType, InnerOp, Layout, Op, ReduceKind, Shape};
use crate::plan::tests::{LIMITS, kernels, load, storage, store};
use crate::plan::{Plan, PlanCache, PlanLimits};
use crate::record::{Batch, Part as Recording};
use crate::tensor::{Initial, Storage};

const SMALL: PlanLimits = PlanLimits { binding: 256, alignment: 16, ..LIMITS };

/// Plans a recording and checks that every step fits.
fn plan_in_parts(part: Recording) -> std::sync::Arc<Plan> {
    let batch = Batch::new([part]);
    let words: Vec<usize> = batch.slots.iter().map(|storage| storage.words()).collect();
    let plan = PlanCache::new(SMALL).plan(&batch.structure, &batch.scalars).1;
    for step in &plan.steps {
        for source in sources(step) {
            let memory = match source {
                Source::Slot(slot) => words[slot as usize],
                Source::Scratch(value) => plan.regions[value as usize].words,
                Source::Constant(constant) => plan.constants[constant as usize].len(),
                Source::Iota | Source::Fused => 0,
            };
            let window = window(step, source, SMALL.alignment);
            assert!(memory <= SMALL.binding || window.len() <= SMALL.binding, "{step:?}");
            assert!(window.start.is_multiple_of(SMALL.alignment));
        }
    }
    plan
}

#[test]
fn a_map_over_large_memories_becomes_maps_over_parts_of_all_of_it() {
    let (x, row, out) = (storage(30 * 64), storage(64), storage(30 * 64));
    let mut part = Recording::default();
    let a = load(&mut part, &x, [30, 64]);
    let b = load(&mut part, &row, [64]);
    let sum = part.binary_broadcast(BinaryOp::Add, a, b);
    store(&mut part, sum, &out);
    let plan = plan_in_parts(part);
    let mut seen = vec![0; 30 * 64];
    for step in &plan.steps {
        let layout = &step.outputs[0].layout;
        (0..layout.elements()).for_each(|i| seen[layout.position(i)] += 1);
    }
    assert_eq!(seen, vec![1; 30 * 64], "every element is written once");
    assert!(plan.steps.len() >= 8);
}

#[test]
fn a_product_with_a_large_right_side_goes_by_columns() {
    let (a, b, out) = (storage(4 * 16), storage(16 * 100), storage(4 * 100));
    let mut part = Recording::default();
    let (a, b) = (load(&mut part, &a, [4, 16]), load(&mut part, &b, [100, 16]));
    let b = part.permute(b, &[1, 0]);
    let product = part.push(Op::MatMul { inner: InnerOp::Product }, &[a, b], Shape::from([4, 100]), DType::F32, &[]);
    store(&mut part, product, &out);
    let names = kernels(&plan_in_parts(part));
    assert!(names.iter().filter(|name| **name == "matmul").count() >= 8, "{names:?}");
}

#[test]
fn one_long_row_is_reduced_part_by_part() {
    for (kind, last) in
        [(ReduceKind::Sum, "reduce"), (ReduceKind::Mean, "reduce"), (ReduceKind::ArgMax { last: false }, "map")]
    {
        let (x, out) = (storage(1009), storage(1));
        let mut part = Recording::default();
        let x = load(&mut part, &x, [1009]);
        let dtype = if last == "map" { DType::I32 } else { DType::F32 };
        let y = part.push(Op::Reduce { kind, axis: 0, count: 1 }, &[x], Shape::default(), dtype, &[]);
        let y = part.cast(y, DType::F32);
        store(&mut part, y, &out);
        let names = kernels(&plan_in_parts(part));
        assert!(names.iter().filter(|name| **name == "reduce").count() >= 5, "{kind:?} {names:?}");
    }
}

#[test]
fn a_window_begins_where_words_groups_and_bindings_do() {
    // A group of q8 blocks is 64 elements in 17 words.
    let operand = |dtype, offset, elements: usize| Operand {
        source: Source::Slot(0),
        dtype,
        layout: Layout { offset, ..Layout::contiguous([elements]) },
    };
    let kernel = Kernel::BlockCopy(crate::kernel::BlockCopyKernel { dtype: DType::Q8_0, blocks: 2 });
    let mut step = Step::new(kernel, [operand(DType::Q8_0, 64 * 40, 64)], operand(DType::Q8_0, 64 * 41, 64));
    let seen = window(&step, Source::Slot(0), 16);
    assert_eq!(seen, 17 * 32..17 * 42);
    shift(&mut step, Source::Slot(0), seen.start);
    assert_eq!((step.inputs[0].layout.offset, step.outputs[0].layout.offset), (64 * 8, 64 * 9));
    let halves = Step::new(step.kernel.clone(), [operand(DType::F16, 101, 7)], operand(DType::F16, 120, 1));
    assert_eq!(window(&halves, Source::Slot(0), 16), 48..61);
}

/// Words of each memory of a plan that a step cannot see although it touches them.
fn unbound_words(plan: &Plan, words: &[usize], limits: PlanLimits) -> usize {
    let memory = |source: Source| match source {
        Source::Slot(slot) => words[slot as usize],
        Source::Scratch(value) => plan.regions[value as usize].words,
        Source::Constant(constant) => plan.constants[constant as usize].len(),
        Source::Iota | Source::Fused => 0,
    };
    let over = |step: &Step| {
        let too_large = sources(step).into_iter().filter(|&source| memory(source) > limits.binding);
        too_large
            .map(|source| window(step, source, limits.alignment).len().saturating_sub(limits.binding))
            .sum::<usize>()
    };
    plan.steps.iter().map(over).sum()
}

fn plan_reduction(kind: ReduceKind, [outer, n, inner]: [usize; 3], dtype: DType, limits: PlanLimits) -> usize {
    let position = matches!(kind, ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. });
    let result = if position { DType::I32 } else { dtype.wide() };
    let x = Storage::new(dtype, outer * n * inner, Initial::Zeros);
    let out = Storage::new(result, outer * inner, Initial::Zeros);
    let mut part = Recording::default();
    let x = load(&mut part, &x, [outer, n, inner]);
    let y = part.push(Op::Reduce { kind, axis: 1, count: 1 }, &[x], Shape::from([outer, inner]), result, &[]);
    store(&mut part, y, &out);
    let batch = Batch::new([part]);
    let words: Vec<usize> = batch.slots.iter().map(|storage| storage.words()).collect();
    let plan = PlanCache::new(limits).plan(&batch.structure, &batch.scalars).1;
    assert_eq!(unbound_words(&plan, &words, limits), 0, "{kind:?} of {outer} x {n} x {inner} {dtype} in {limits:?}");
    plan.steps.len()
}

const KINDS: [ReduceKind; 10] = [
    ReduceKind::Sum,
    ReduceKind::Mean,
    ReduceKind::Prod,
    ReduceKind::Max,
    ReduceKind::Min,
    ReduceKind::SumSquares,
    ReduceKind::ArgMax { last: false },
    ReduceKind::ArgMax { last: true },
    ReduceKind::ArgMin { last: false },
    ReduceKind::ArgMin { last: true },
];

#[test]
fn rows_larger_than_half_a_binding_are_reduced() {
    let limits = PlanLimits { binding: (128 << 20) / 4, alignment: 64, ..LIMITS };
    for kind in KINDS {
        let steps = plan_reduction(kind, [1, 3, 4096 * 4096], DType::F32, limits);
        assert!(steps <= 24, "{kind:?}: {steps} steps");
        // The result is larger than a binding, though the rows of halves are not.
        plan_reduction(kind, [1, 3, 40 << 20], DType::F16, limits);
        plan_reduction(kind, [1, 1, 40 << 20], DType::F16, limits);
        // Several parts of several rows each, together larger than a binding.
        plan_reduction(kind, [1, 100, 10 << 20], DType::F32, limits);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 300, ..Default::default() })]

    #[test]
    fn every_reduction_is_planned_within_every_limit(
        kind in 0..KINDS.len(),
        outer in 1..4usize,
        n in 1..40usize,
        inner in 1..400usize,
        binding in 160..2000usize,
        alignment in proptest::sample::select(vec![1usize, 4, 16]),
        half in proptest::bool::ANY,
    ) {
        let limits = PlanLimits { binding: binding / 4 * 4, alignment, ..LIMITS };
        let dtype = if half && kind < 6 { DType::F16 } else { DType::F32 };
        plan_reduction(KINDS[kind], [outer, n, inner], dtype, limits);
    }

    #[test]
    fn every_split_op_is_planned_within_every_limit(
        op in 0..8usize,
        a in 1..20usize,
        b in 1..20usize,
        c in 1..60usize,
        binding in 160..4000usize,
        alignment in proptest::sample::select(vec![1usize, 4, 16]),
    ) {
        let limits = PlanLimits { binding: binding / 4 * 4, alignment, ..LIMITS };
        let mut part = Recording::default();
        let x = load(&mut part, &storage(a * b * c), [a, b, c]);
        let shape = Shape::from([a, b, c]);
        let y = match op {
            0 => part.push(Op::Softmax { axis: 2, log: false }, &[x], shape, DType::F32, &[]),
            1 => part.push(Op::Softmax { axis: 1, log: true }, &[x], shape, DType::F32, &[]),
            2 => {
                let w = load(&mut part, &storage(a * c * b), [a, c, b]);
                part.push(Op::MatMul { inner: InnerOp::Product }, &[x, w], Shape::from([a, b, b]), DType::F32, &[])
            }
            3 => {
                let x = part.permute(x, &[2, 0, 1]);
                part.unary(crate::ir::UnaryOp::Exp, x)
            }
            4 => {
                let row = load(&mut part, &storage(c), [c]);
                part.binary_broadcast(BinaryOp::Add, x, row)
            }
            5 => {
                let first = part.push(Op::Reduce { kind: ReduceKind::Sum, axis: 0, count: 2 }, &[x], Shape::from([c]), DType::F32, &[]);
                part.binary_broadcast(BinaryOp::Mul, x, first)
            }
            6 => part.push(Op::Reduce { kind: ReduceKind::Mean, axis: 2, count: 1 }, &[x], Shape::from([a, b]), DType::F32, &[]),
            _ => part.push(Op::Reduce { kind: ReduceKind::Max, axis: 0, count: 3 }, &[x], Shape::default(), DType::F32, &[]),
        };
        let out = storage(part.shape(y).elements());
        store(&mut part, y, &out);
        let batch = Batch::new([part]);
        let plan = PlanCache::new(limits).plan(&batch.structure, &batch.scalars).1;
        // Some rows are longer than a binding, which the backend rejects. Planning must end, with a bounded plan.
        proptest::prop_assert!(plan.steps.len() <= 16 * (a * b * c * 4).div_ceil(binding).max(1) + 4096);
    }
}
