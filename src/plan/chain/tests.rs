//! Which steps become chains.

use std::sync::Arc;

use crate::ir::{BinaryOp, DType, InnerOp, NodeId, Op, UnaryOp};
use crate::kernel::Kernel;
use crate::plan::tests::{LIMITS, kernels, load, storage, store};
use crate::plan::{Plan, PlanCache, PlanLimits};
use crate::record::Part;

fn plan(part: Part) -> Arc<Plan> {
    PlanCache::new(PlanLimits { chain: 4096, ..LIMITS }).plan_part(part)
}

/// A product with new weights.
fn layer(part: &mut Part, x: NodeId, n: usize) -> NodeId {
    let mut shape = part.shape(x).clone();
    let (rank, weights) = (shape.rank(), storage(shape[shape.rank() - 1] * n));
    let weights = load(part, &weights, [shape[rank - 1], n]);
    shape.dims_mut()[rank - 1] = n;
    part.push(Op::MatMul { inner: InnerOp::Product }, &[x, weights], shape, DType::F32, &[])
}

fn network(rows: usize, widths: &[usize]) -> Part {
    let (x, out) = (storage(rows * widths[0]), storage(rows * widths[widths.len() - 1]));
    let mut part = Part::default();
    let mut y = load(&mut part, &x, [rows, widths[0]]);
    for &n in &widths[1..] {
        y = layer(&mut part, y, n);
        y = part.unary(UnaryOp::Relu, y);
    }
    store(&mut part, y, &out);
    part
}

#[test]
fn a_small_network_is_one_launch_without_scratch_memory() {
    for rows in [1, 7, 100, 10_000] {
        let plan = plan(network(rows, &[64, 128, 128, 8]));
        assert_eq!(kernels(&plan), ["row_chain"], "{rows} rows");
        assert_eq!((plan.scratch_words, plan.report.unfused.len()), (0, 0));
        let Kernel::RowChain(chain) = &plan.steps[0].kernel else { panic!("a chain") };
        assert_eq!((chain.rows, chain.links.len(), chain.cells), (rows, 3, 256));
        assert_eq!(plan.report.steps[0].kernel, "row_chain");
    }
}

#[test]
fn two_steps_are_no_chain() {
    assert_eq!(kernels(&plan(network(100, &[64, 64, 8]))), ["matmul", "matmul"]);
}

#[test]
fn large_products_stay_apart() {
    assert_eq!(kernels(&plan(network(64, &[512, 2048, 512]))), ["matmul", "matmul"]);
    // Only the small end of a network is a chain.
    assert_eq!(kernels(&plan(network(64, &[1024, 1024, 64, 64, 8]))), ["matmul", "row_chain"]);
}

#[test]
fn a_chain_ends_where_its_memories_can_no_longer_be_bound() {
    // An input, a result, and six weights at most.
    let plan = plan(network(32, &[16; 10]));
    assert_eq!(kernels(&plan), ["row_chain", "row_chain"]);
    assert_eq!(plan.steps[0].inputs.len(), 7);
}

#[test]
fn values_that_others_need_are_written_to_memory_too() {
    let (x, hidden, out) = (storage(60), storage(60), storage(30));
    let mut part = Part::default();
    let x = load(&mut part, &x, [6, 10]);
    let y = layer(&mut part, x, 10);
    let y = part.unary(UnaryOp::Tanh, y);
    store(&mut part, y, &hidden);
    let y = layer(&mut part, y, 9);
    let y = layer(&mut part, y, 5);
    store(&mut part, y, &out);
    let plan = plan(part);
    assert_eq!(kernels(&plan), ["row_chain"]);
    assert_eq!(plan.steps[0].outputs.len(), 2);
    assert_eq!(plan.written_slots.len(), 2);
}

#[test]
fn steps_whose_rows_depend_on_each_other_are_no_chain() {
    // The second product reads the transposed result of the first one.
    let (x, out) = (storage(64), storage(64));
    let mut part = Part::default();
    let x = load(&mut part, &x, [8, 8]);
    let y = layer(&mut part, x, 8);
    let y = part.transpose(y);
    let y = layer(&mut part, y, 8);
    let y = layer(&mut part, y, 8);
    store(&mut part, y, &out);
    assert_eq!(kernels(&plan(part)), ["matmul", "matmul", "matmul"]);
    // The result of the first product is the weight of the second one.
    let (x, w, out) = (storage(64), storage(64), storage(64));
    let mut part = Part::default();
    let (x, w) = (load(&mut part, &x, [8, 8]), load(&mut part, &w, [8, 8]));
    let y = layer(&mut part, x, 8);
    let y = part.push(Op::MatMul { inner: InnerOp::Product }, &[w, y], [8, 8].into(), DType::F32, &[]);
    let y = layer(&mut part, y, 8);
    store(&mut part, y, &out);
    assert_eq!(kernels(&plan(part)), ["matmul", "matmul", "matmul"]);
}

#[test]
fn a_network_that_overwrites_its_input_is_no_chain() {
    let x = storage(64);
    let mut part = Part::default();
    let value = load(&mut part, &x, [8, 8]);
    let y = layer(&mut part, value, 8);
    let y = layer(&mut part, y, 8);
    let y = layer(&mut part, y, 8);
    let y = part.binary_number(BinaryOp::Mul, y, 0.5);
    store(&mut part, y, &x);
    let plan = plan(part);
    assert!(
        plan.steps.iter().all(|step| step.inputs.iter().all(|i| step.outputs.iter().all(|o| i.source != o.source)))
    );
}

#[test]
fn switched_off_there_are_no_chains() {
    let off = |limits: PlanLimits| kernels(&PlanCache::new(limits).plan_part(network(8, &[8, 8, 8]))).len();
    assert_eq!(off(LIMITS), 2);
    assert_eq!(off(PlanLimits { chain: 4096, fuse: false, ..LIMITS }), 4);
}
