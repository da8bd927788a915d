//! Matrix products on the device against a plain host loop.

use super::device::{assert_close, floats, noise, operand, run_step_with, step, variants, words};
use crate::ir::{Class, DType, InnerOp, Layout, Operand, Source};
use crate::kernel::{Kernel, MatMulKernel};

/// The kernel of `a · b` for two layouts, and the expected result for these numbers.
fn product(inner: InnerOp, a: &Layout, b: &Layout, numbers: (&[f32], &[f32])) -> (MatMulKernel, Vec<f32>) {
    let rank = a.rank();
    let (m, k, n) = (a.shape[rank - 2], a.shape[rank - 1], b.shape[rank - 1]);
    let kernel = MatMulKernel { inner, class: Class::Float, batch: a.shape[..rank - 2].into(), m, n, k };
    let batches: usize = kernel.batch.iter().product();
    let mut out = Vec::new();
    for (batch, i, j) in (0..batches).flat_map(|b| (0..m).flat_map(move |i| (0..n).map(move |j| (b, i, j)))) {
        let sum = (0..k).map(|l| {
            let x = numbers.0[a.position((batch * m + i) * k + l)];
            let y = numbers.1[b.position((batch * k + l) * n + j)];
            if inner == InnerOp::Product { x * y } else { (x - y) * (x - y) }
        });
        out.push(sum.map(f64::from).sum::<f64>() as f32);
    }
    (kernel, out)
}

fn check(inner: InnerOp, a: Layout, b: Layout) {
    let numbers = (noise(a.span().end, 1), noise(b.span().end, 2));
    let (kernel, want) = product(inner, &a, &b, (&numbers.0, &numbers.1));
    let mut shape = kernel.batch.to_vec();
    shape.extend([kernel.m, kernel.n]);
    let at = |slot, layout: &Layout| Operand { source: Source::Slot(slot), dtype: DType::F32, layout: layout.clone() };
    let step = step(Kernel::MatMul(kernel), vec![at(0, &a), at(1, &b)], vec![operand(2, DType::F32, &shape, 3)], &[]);
    let mut before = vec![f32::MAX; want.len() + 5];
    let buffers =
        [(Source::Slot(0), words(&numbers.0)), (Source::Slot(1), words(&numbers.1)), (Source::Slot(2), words(&before))];
    before[3..3 + want.len()].copy_from_slice(&want);
    for caps in variants(&step) {
        let got = floats(&run_step_with(&step, &buffers, &[], &caps).0[2].1);
        assert_close(&got, &before, 2e-5, &format!("{a:?} by {b:?} with {caps:?}"));
    }
}

#[test]
fn products_match_at_awkward_sizes_and_strides() {
    let base = |shape: &[usize]| Layout { offset: 7, ..Layout::contiguous(shape) };
    for (m, k, n) in [(1, 1, 1), (5, 7, 6), (63, 65, 33), (64, 16, 64), (65, 1, 130), (33, 129, 7), (10, 0, 5)] {
        check(InnerOp::Product, base(&[m, k]), base(&[k, n]));
        check(InnerOp::Product, base(&[k, m]).permute(&[1, 0]), base(&[n, k]).permute(&[1, 0]));
    }
    check(InnerOp::SquaredDifference, base(&[17, 9]), base(&[9, 21]));
    check(InnerOp::Product, base(&[3, 2, 9, 5]), base(&[3, 2, 5, 11]));
    let stretched = base(&[3, 1, 9, 5]).broadcast_to(&[3, 2, 9, 5].into()).expect("fits");
    check(InnerOp::Product, stretched, base(&[2, 3, 5, 11]).permute(&[1, 0, 2, 3]));
    check(InnerOp::Product, base(&[9, 8]).slice(0, 8, 9, -1), base(&[8, 30]).slice(1, 1, 10, 3));
}

#[test]
fn products_by_quads_match() {
    let base = |shape: &[usize]| Layout { offset: 4, ..Layout::contiguous(shape) };
    for (m, k, n) in [(4, 8, 4), (9, 20, 36), (20, 12, 68), (33, 4, 8), (1, 68, 132), (3, 32, 8), (2, 8, 1028)] {
        check(InnerOp::Product, base(&[m, k]), base(&[k, n]));
        check(InnerOp::Product, base(&[m, k]), base(&[n, k]).permute(&[1, 0]));
        check(InnerOp::Product, base(&[n, k]), base(&[k, m]));
    }
    // The largest tiles.
    check(InnerOp::Product, base(&[100, 36]), base(&[36, 132]));
    check(InnerOp::Product, base(&[100, 36]), base(&[132, 36]).permute(&[1, 0]));
    check(InnerOp::Product, base(&[8, 12]).permute(&[1, 0]), base(&[8, 16]));
    // A long k, split in two and in four.
    check(InnerOp::Product, base(&[6, 300]), base(&[300, 68]));
    check(InnerOp::Product, base(&[35, 532]), base(&[8, 532]).permute(&[1, 0]));
    // Quads along k with a remainder: rows are longer than the slices taken from them.
    check(InnerOp::Product, base(&[6, 8]).slice(1, 0, 7, 1), base(&[12, 8]).slice(1, 0, 7, 1).permute(&[1, 0]));
    check(InnerOp::SquaredDifference, base(&[3, 12, 8]), base(&[3, 20, 8]).permute(&[0, 2, 1]));
}

#[test]
fn products_with_few_rows_or_columns_match() {
    let base = |shape: &[usize]| Layout { offset: 2, ..Layout::contiguous(shape) };
    for few in 1..=4 {
        for (k, many) in [(1, 65), (129, 64), (300, 7)] {
            check(InnerOp::Product, base(&[few, k]), base(&[k, many]));
            check(InnerOp::Product, base(&[few, k]), base(&[many, k]).permute(&[1, 0]));
            check(InnerOp::Product, base(&[many, k]), base(&[k, few]));
            check(InnerOp::SquaredDifference, base(&[2, k, many]).permute(&[0, 2, 1]), base(&[2, k, few]));
        }
    }
}

#[test]
fn integers_and_narrow_inputs_are_widened() {
    let (m, k, n) = (9, 6, 10);
    let kernel = MatMulKernel { inner: InnerOp::Product, class: Class::Int, batch: [].as_slice().into(), m, n, k };
    let bytes = |count: usize| (0..count).map(|i| (i * 37 % 251) as u8 as i8).collect::<Vec<_>>();
    let pack = |bytes: &[i8]| -> Vec<u32> {
        bytes.chunks(4).map(|c| c.iter().rev().fold(0, |w, &b| w << 8 | u32::from(b as u8))).collect()
    };
    let (a, b) = (bytes(56), bytes(60));
    let step = step(
        Kernel::MatMul(kernel),
        vec![operand(0, DType::I8, &[m, k], 1), operand(1, DType::I32, &[k, n], 0)],
        vec![operand(2, DType::I32, &[m, n], 0)],
        &[],
    );
    let wide = b.iter().map(|&b| i32::from(b) as u32).collect();
    let buffers = [(Source::Slot(0), pack(&a)), (Source::Slot(1), wide), (Source::Slot(2), vec![0; m * n])];
    for caps in variants(&step) {
        for (at, &got) in run_step_with(&step, &buffers, &[], &caps).0[2].1.iter().enumerate() {
            let (i, j) = (at / n, at % n);
            let want: i32 = (0..k).map(|l| i32::from(a[1 + i * k + l]) * i32::from(b[l * n + j])).sum();
            assert_eq!(got as i32, want, "{i}, {j}");
        }
    }
}
