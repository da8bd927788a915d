//! Matrix multiplication. Floats go to the `gemm` crate; whole numbers and squared differences to loops over packed columns.

use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use super::memory::Input;
use super::number::{Number, with_class};
use super::{CpuPool, GRAIN};
use crate::kernel::MatMulKernel;
use crate::record::InnerOp;
use crate::tensor::Layout;

/// A strided matrix in a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T = f32> {
    pub data: &'a [T],
    pub offset: isize,
    pub row: isize,
    pub column: isize,
}

impl<T> Matrix<'_, T> {
    /// Whether all of `rows` by `columns` lies in the slice.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let reach = |n: usize, stride: isize| (n as isize - 1) * stride;
        let (r, c) = (reach(rows, self.row), reach(columns, self.column));
        let low = self.offset + r.min(0) + c.min(0);
        let high = self.offset + r.max(0) + c.max(0);
        low >= 0 && high < self.data.len() as isize
    }

    /// The matrix that starts at a row and a column of this one.
    pub(super) fn at(self, row: usize, column: usize) -> Self {
        Self { offset: self.offset + row as isize * self.row + column as isize * self.column, ..self }
    }
}

/// `out = a · b`, or `out += a · b`, on this thread. `out` is row-major, `stride` from row to row, at least `n`.
pub(super) fn gemm([m, n, k]: [usize; 3], out: &mut [f32], stride: usize, add: bool, a: Matrix, b: Matrix) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            out.chunks_mut(stride).take(m).for_each(|row| row[..n].fill(0.0));
        }
        return;
    }
    assert!(stride >= n && out.len() >= (m - 1) * stride + n, "gemm writes past its output");
    assert!(a.holds(m, k) && b.holds(k, n), "gemm reads past its inputs");
    // SAFETY: the assertions above keep every element of the three matrices inside its slice, and `out` is borrowed mutably, so it
    // overlaps neither input.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride as isize,
            add,
            a.data.as_ptr().offset(a.offset),
            a.column,
            a.row,
            b.data.as_ptr().offset(b.offset),
            b.column,
            b.row,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The matrix of batch element `index` of a layout `[batch…, rows, columns]`.
fn batch_matrix<'a, T>(data: &'a [T], layout: &Layout, mut index: usize) -> Matrix<'a, T> {
    let batch = layout.rank() - 2;
    let mut offset = layout.offset as isize;
    for axis in (0..batch).rev() {
        offset += (index % layout.shape[axis]) as isize * layout.strides[axis];
        index /= layout.shape[axis];
    }
    Matrix { data, offset, row: layout.strides[batch], column: layout.strides[batch + 1] }
}

/// A block of one batch element's output: its first row and column, its width, and its rows.
struct Block<'a, T> {
    batch: usize,
    row: usize,
    column: usize,
    rows: Rows<'a, T>,
}

/// Rows of a block: whole ones lie together.
enum Rows<'a, T> {
    Whole(&'a mut [T]),
    Parts(SmallVec<[&'a mut [T]; 8]>),
}

/// Cuts the output into blocks of about equal work: by rows, and by columns where there are too few rows.
fn blocks<'a, T>(kernel: &MatMulKernel, out: &'a mut [T], pool: &CpuPool) -> Vec<Block<'a, T>> {
    let (m, n) = (kernel.m, kernel.n);
    let batches: usize = kernel.batch.iter().product();
    // A multiplication and an addition count half, because gemm does many at once.
    let work = batches * m * n * kernel.k.max(1) / 8;
    let parts = if pool.threads() == 1 { 1 } else { (work / GRAIN).clamp(1, pool.threads() * 4) };
    let per_batch = parts.div_ceil(batches);
    let mut blocks = Vec::new();
    for (batch, out) in out.chunks_mut(m * n).enumerate() {
        if per_batch > 1 && m < per_batch * 8 && n >= 2 * m {
            // Whole vectors of columns.
            let width = n.div_ceil(per_batch).next_multiple_of(16);
            let mut parts: Vec<SmallVec<[&mut [T]; 8]>> = (0..n.div_ceil(width)).map(|_| SmallVec::new()).collect();
            for row in out.chunks_mut(n) {
                parts.iter_mut().zip(row.chunks_mut(width)).for_each(|(part, cells)| part.push(cells));
            }
            blocks.extend(parts.into_iter().enumerate().map(|(i, rows)| Block {
                batch,
                row: 0,
                column: i * width,
                rows: Rows::Parts(rows),
            }));
        } else {
            let height = m.div_ceil(per_batch).next_multiple_of(8).min(m);
            blocks.extend(out.chunks_mut(height * n).enumerate().map(|(i, rows)| Block {
                batch,
                row: i * height,
                column: 0,
                rows: Rows::Whole(rows),
            }));
        }
    }
    blocks
}

/// The twin. Inputs: a, b.
pub(super) fn matmul(kernel: &MatMulKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) {
    let [a, b] = inputs else { return };
    if out.is_empty() {
        return;
    }
    if kernel.k == 0 {
        return out.fill(0);
    }
    with_class!(kernel.class, T => {
        let ((a, a_layout), (b, b_layout)) = (a.strided::<T>(pool), b.strided::<T>(pool));
        let blocks = blocks::<T>(kernel, cast_slice_mut(out), pool);
        // Many small batch elements share a task.
        let per = blocks.len().div_ceil(pool.threads() * 4);
        let mut groups: Vec<Vec<Block<T>>> = Vec::new();
        for block in blocks {
            match groups.last_mut() {
                Some(group) if group.len() < per => group.push(block),
                _ => groups.push(vec![block]),
            }
        }
        pool.each(groups, |group| {
            for block in group {
                let a = batch_matrix(&a, &a_layout, block.batch).at(block.row, 0);
                let b = batch_matrix(&b, &b_layout, block.batch).at(0, block.column);
                match block.rows {
                    Rows::Whole(out) => T::product(kernel, [out.len() / kernel.n, kernel.n], out, a, b),
                    Rows::Parts(mut rows) => {
                        let width = rows.first().map_or(0, |r| r.len());
                        if let [row] = &mut rows[..] {
                            T::product(kernel, [1, width], row, a, b);
                            continue;
                        }
                        let mut block = vec![T::ZERO; rows.len() * width];
                        T::product(kernel, [rows.len(), width], &mut block, a, b);
                        rows.iter_mut().zip(block.chunks(width)).for_each(|(row, cells)| row.copy_from_slice(cells));
                    }
                }
            }
        });
    });
}

/// How a class multiplies matrices.
trait Product: Number {
    /// `out` is `m` by `n`, contiguous.
    fn product(kernel: &MatMulKernel, size: [usize; 2], out: &mut [Self], a: Matrix<Self>, b: Matrix<Self>) {
        match kernel.inner {
            InnerOp::Product => loops(kernel.k, size, out, a, b, |a, b| a.mul(b)),
            InnerOp::SquaredDifference => loops(kernel.k, size, out, a, b, |a, b| {
                let d = a.sub(b);
                d.mul(d)
            }),
        }
    }
}

impl Product for i32 {}
impl Product for u32 {}
impl Product for f32 {
    fn product(kernel: &MatMulKernel, [m, n]: [usize; 2], out: &mut [f32], a: Matrix, b: Matrix) {
        match kernel.inner {
            InnerOp::Product => gemm([m, n, kernel.k], out, n, false, a, b),
            InnerOp::SquaredDifference => loops(kernel.k, [m, n], out, a, b, |a, b| (a - b) * (a - b)),
        }
    }
}

/// Packs a strip of columns of `b`, then adds row after row of it to the output.
fn loops<T: Number>(
    k: usize,
    [m, n]: [usize; 2],
    out: &mut [T],
    a: Matrix<T>,
    b: Matrix<T>,
    inner: impl Fn(T, T) -> T,
) {
    const STRIP: usize = 128;
    let mut packed = vec![T::ZERO; k * STRIP.min(n)];
    for start in (0..n).step_by(STRIP) {
        let width = STRIP.min(n - start);
        for (p, row) in packed.chunks_mut(width).take(k).enumerate() {
            let mut at = b.at(p, start).offset;
            for cell in row {
                *cell = b.data[at as usize];
                at += b.column;
            }
        }
        for i in 0..m {
            let cells = &mut out[i * n + start..i * n + start + width];
            cells.fill(T::ZERO);
            for (p, row) in packed.chunks(width).take(k).enumerate() {
                let left = a.data[a.at(i, p).offset as usize];
                for (cell, &right) in cells.iter_mut().zip(row) {
                    *cell = cell.add(inner(left, right));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::memory::Elements;
    use crate::tensor::{Class, DType};
    use half::f16;

    /// By the definition, from positions.
    fn naive(kernel: &MatMulKernel, a: (&[f32], &Layout), b: (&[f32], &Layout)) -> Vec<f32> {
        let batches: usize = kernel.batch.iter().product();
        let mut out = Vec::new();
        for batch in 0..batches {
            for (i, j) in (0..kernel.m).flat_map(|i| (0..kernel.n).map(move |j| (i, j))) {
                let terms = (0..kernel.k).map(|p| {
                    let x = a.0[a.1.position((batch * kernel.m + i) * kernel.k + p)];
                    let y = b.0[b.1.position((batch * kernel.k + p) * kernel.n + j)];
                    if kernel.inner == InnerOp::Product { x * y } else { (x - y) * (x - y) }
                });
                out.push(terms.sum());
            }
        }
        out
    }

    fn check(kernel: &MatMulKernel, a: &Layout, b: &Layout) {
        let pool = CpuPool::new(3);
        let values = |n: usize, seed: usize| (0..n).map(|i| ((i * 7 + seed) % 13) as f32 - 6.0).collect::<Vec<_>>();
        let (x, y) = (values(a.span().end, 1), values(b.span().end, 5));
        let expected = naive(kernel, (&x, a), (&y, b));
        let mut out = vec![0u32; expected.len()];
        let inputs = [
            Input { elements: Elements::F32(&x), layout: a.clone() },
            Input { elements: Elements::F32(&y), layout: b.clone() },
        ];
        matmul(kernel, &inputs, &mut out, &pool);
        assert_eq!(bytemuck::cast_slice::<u32, f32>(&out), expected, "{kernel:?}");

        let halves: Vec<f16> = x.iter().map(|&v| f16::from_f32(v)).collect();
        let inputs = [Input { elements: Elements::F16(&halves), layout: a.clone() }, inputs[1].clone()];
        matmul(kernel, &inputs, &mut out, &pool);
        assert_eq!(bytemuck::cast_slice::<u32, f32>(&out), expected, "halves, {kernel:?}");

        let whole = |v: &[f32]| v.iter().map(|&v| v as i32).collect::<Vec<_>>();
        let (x, y) = (whole(&x), whole(&y));
        let inputs = [
            Input { elements: Elements::I32(&x), layout: a.clone() },
            Input { elements: Elements::I32(&y), layout: b.clone() },
        ];
        matmul(&MatMulKernel { class: DType::I32.class(), ..kernel.clone() }, &inputs, &mut out, &pool);
        assert_eq!(out.iter().map(|&v| v as i32 as f32).collect::<Vec<_>>(), expected, "whole, {kernel:?}");
    }

    #[test]
    fn products_match_the_definition_at_awkward_sizes() {
        for inner in [InnerOp::Product, InnerOp::SquaredDifference] {
            for (m, n, k) in
                [(1, 1, 1), (7, 65, 63), (65, 7, 1), (1, 300, 129), (63, 64, 65), (2, 3, 0), (150, 140, 66)]
            {
                for batch in [1, 3] {
                    let kernel =
                        MatMulKernel { inner, class: Class::Float, batch: SmallVec::from_slice(&[batch]), m, n, k };
                    check(&kernel, &Layout::contiguous([batch, m, k]), &Layout::contiguous([batch, k, n]));
                    // Transposed, flipped and broadcast.
                    let a = Layout::contiguous([batch, k, m]).permute(&[0, 2, 1]);
                    let mut b = Layout::contiguous([n, k]).permute(&[1, 0]);
                    if k > 0 {
                        b = b.slice(0, k - 1, k, -1);
                    }
                    check(&kernel, &a, &b.broadcast_to(&[batch, k, n].into()).expect("fits"));
                }
            }
        }
    }
}
