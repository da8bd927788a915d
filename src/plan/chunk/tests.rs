//! No launch of a plan over large memories exceeds the binding limit.

use super::*;
use crate::ir::{BinaryOp, InnerOp, Op};
use crate::plan::tests::{LIMITS, kernels, load, storage, store};
use crate::plan::{Plan, PlanCache, PlanLimits};
use crate::record::{Batch, Part as Recording};

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
