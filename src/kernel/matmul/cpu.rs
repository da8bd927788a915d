//! Matrix multiplication on the CPU. Float matrices are multiplied in panels (see [`super::gemm`]), which are cached
//! for weights. Products with a single row or column are limited by memory bandwidth and are not packed. Integers and
//! squared differences use loops over packed columns.

use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use crate::ir::{Class, InnerOp, Layout};
use crate::kernel::MatMulKernel;
use crate::kernel::host::CpuPool;
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::packed::{Form, HostWords};
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::vectorised;
use crate::kernel::matmul::gemm::{Matrix, PANEL, multiply, pack_panels, packed_len};
use crate::kernel::matmul::matvec::{Strided, matvec};
use crate::kernel::reduce::cpu::spans;

/// Up to this number of rows, the columns are distributed over the threads, so that each thread reads only its part of
/// the right-hand side.
const FEW: usize = 32;
/// Number of multiply-adds that cost as much as one elementary operation.
const TOGETHER: usize = 8;
/// Rows of a task. With fewer rows, the right-hand side would be read too often.
const ROWS: usize = 96;

/// Offset of the matrix of batch element `index` in a layout `[batch…, rows, columns]`.
fn batch_offset(layout: &Layout, mut index: usize) -> isize {
    let mut offset = layout.offset as isize;
    for axis in (0..layout.rank() - 2).rev() {
        offset += (index % layout.shape[axis]) as isize * layout.strides[axis];
        index /= layout.shape[axis];
    }
    offset
}

/// The matrix of batch element `index`.
fn batch_matrix<'a, T>(data: &'a [T], layout: &Layout, index: usize) -> Matrix<'a, T> {
    let [.., row, column] = layout.strides[..] else { return Matrix { data, offset: 0, row: 0, column: 0 } };
    Matrix { data, offset: batch_offset(layout, index), row, column }
}

/// The CPU twin. Inputs: a, b. `words` are those of `b`, if it has a storage.
pub(crate) fn matmul(
    kernel: &MatMulKernel,
    inputs: &[Input],
    words: Option<&HostWords>,
    out: &mut [u32],
    pool: &CpuPool,
) {
    let [a, b] = inputs else { return };
    if out.is_empty() {
        return;
    }
    match (kernel.inner, kernel.class) {
        _ if kernel.k == 0 => out.fill(0),
        (InnerOp::Product, Class::Float) if kernel.m == 1 => line(kernel, kernel.n, a, b, false, out, pool),
        (InnerOp::Product, Class::Float) if kernel.n == 1 => line(kernel, kernel.m, b, a, true, out, pool),
        (InnerOp::Product, Class::Float) => product(kernel, a, b, words, out, pool),
        (InnerOp::Product, class) => with_class!(class, T => {
            plain::<T>(kernel, a, b, out, pool, |a, b| a.mul(b));
        }),
        (InnerOp::SquaredDifference, class) => with_class!(class, T => {
            let squared = |a: T, b: T| {
                let d = a.sub(b);
                d.mul(d)
            };
            plain::<T>(kernel, a, b, out, pool, squared);
        }),
    }
}

/// Computes one row of `n` results for every batch element. If `turned`, the vectors are columns of the right-hand
/// side.
fn line(
    kernel: &MatMulKernel,
    n: usize,
    vector: &Input,
    matrix: &Input,
    turned: bool,
    out: &mut [u32],
    pool: &CpuPool,
) {
    let ends = |layout: &Layout| (layout.strides[layout.rank() - 2], layout.strides[layout.rank() - 1]);
    let ((vector_row, vector_column), (row, column)) = (ends(&vector.layout), ends(&matrix.layout));
    let stride = if turned { vector_row } else { vector_column };
    let (row, column) = if turned { (column, row) } else { (row, column) };
    // Long ranges of columns, because sequential reads are fastest.
    let unit = if out.len() > n { n } else { n.div_ceil(pool.threads()).next_multiple_of(PANEL) };
    pool.each_unit(out, unit, (unit * kernel.k).div_ceil(TOGETHER / 2), |first, out| {
        with_scratch(kernel.k, |factors: &mut [f32]| {
            spans(first * unit, out, n, |batch, start, out| {
                vector.elements.load(batch_offset(&vector.layout, batch), stride, cast_slice_mut(factors));
                let offset = batch_offset(&matrix.layout, batch) + start as isize * column;
                matvec(factors, Strided { elements: matrix.elements, offset, row, column }, cast_slice_mut(out));
            });
        });
    });
}

/// Products of floats.
fn product(kernel: &MatMulKernel, a: &Input, b: &Input, words: Option<&HostWords>, out: &mut [u32], pool: &CpuPool) {
    let (n, k) = (kernel.n, kernel.k);
    // Batch elements that share a right-hand side share its panels.
    let mut once = b.layout.clone();
    let batch_axes = once.rank() - 2;
    for (size, &stride) in once.shape.dims_mut()[..batch_axes].iter_mut().zip(&b.layout.strides) {
        *size = if stride == 0 { 1 } else { *size };
    }
    let each = packed_len(k, n);
    let floats = once.shape[..batch_axes].iter().product::<usize>() * each;
    let pack = |panels: &mut [f32]| {
        let (values, layout) = Input { elements: b.elements, layout: once.clone() }.strided::<f32>(pool);
        let per_batch = each / (k * PANEL);
        pool.each_unit(panels, k * PANEL, k * PANEL, |first, panels| {
            for (i, panel) in panels.chunks_mut(k * PANEL).enumerate() {
                let (batch, column) = ((first + i) / per_batch, (first + i) % per_batch * PANEL);
                pack_panels(batch_matrix(&values, &layout, batch).at(0, column), k, PANEL.min(n - column), panel);
            }
        });
    };
    let (a, a_layout) = a.strided::<f32>(pool);
    let mut work = |panels: &[f32]| {
        let right = |batch: usize| &panels[shared_index(&b.layout, &once, batch) * each..][..each];
        let left = |batch: usize| batch_matrix(&a, &a_layout, batch);
        share_out(kernel, left, right, cast_slice_mut(out), pool);
    };
    match words.and_then(|words| words.packed(&b.layout, Form::Panels, floats, pool.counters(), pack)) {
        Some(panels) => work(&panels.floats),
        None => with_scratch(floats, |panels: &mut [f32]| {
            pack(panels);
            work(panels);
        }),
    }
}

/// Maps batch element `index` of `layout` to its index in `once`, in which broadcast axes have size 1.
fn shared_index(layout: &Layout, once: &Layout, mut index: usize) -> usize {
    let (mut shared, mut step) = (0, 1);
    for axis in (0..layout.rank() - 2).rev() {
        let i = index % layout.shape[axis];
        index /= layout.shape[axis];
        if once.shape[axis] > 1 {
            shared += i * step;
        }
        step *= once.shape[axis];
    }
    shared
}

/// Splits the output into blocks for the threads: whole batch elements, rows, or columns if there are few rows.
fn share_out<'a>(
    kernel: &MatMulKernel,
    left: impl Fn(usize) -> Matrix<'a> + Sync,
    right: impl Fn(usize) -> &'a [f32] + Sync,
    out: &mut [f32],
    pool: &CpuPool,
) {
    let (m, n, k) = (kernel.m, kernel.n, kernel.k);
    let batches = out.len() / (m * n);
    let parts = pool.parts(batches * m * n * k.div_ceil(TOGETHER));
    // Some rows of one batch element, in one slice.
    let rows = |batch: usize, row: usize, out: &mut [f32]| {
        let size = [out.len() / n, n, k];
        multiply(size, out, n, false, left(batch).at(row, 0), right(batch));
    };
    if parts <= batches {
        let per = batches.div_ceil(parts);
        return pool.each(out.chunks_mut(per * m * n).enumerate(), |(i, out)| {
            out.chunks_mut(m * n).enumerate().for_each(|(j, out)| rows(i * per + j, 0, out));
        });
    }
    let per_batch = parts.div_ceil(batches);
    if m > FEW {
        let count = per_batch.min(pool.threads());
        let height = m.div_ceil(count * m.div_ceil(count * ROWS * 2)).next_multiple_of(2);
        let blocks = out.chunks_mut(m * n).enumerate().flat_map(|(batch, out)| {
            out.chunks_mut(height * n).enumerate().map(move |(i, out)| (batch, i * height, out))
        });
        return pool.each(blocks, |(batch, row, out)| rows(batch, row, out));
    }
    let width = n.div_ceil(PANEL).div_ceil(per_batch) * PANEL;
    for (batch, out) in out.chunks_mut(m * n).enumerate() {
        let mut blocks: SmallVec<[SmallVec<[&mut [f32]; FEW]>; 8]> =
            (0..n.div_ceil(width)).map(|_| SmallVec::new()).collect();
        for row in out.chunks_mut(n) {
            blocks.iter_mut().zip(row.chunks_mut(width)).for_each(|(block, cells)| block.push(cells));
        }
        pool.each(blocks.into_iter().enumerate(), |(i, rows)| {
            let (column, width) = (i * width, rows[0].len());
            with_scratch(m * width, |block: &mut [f32]| {
                let panels = &right(batch)[column * k..];
                multiply([m, width, k], block, width, false, left(batch), panels);
                rows.into_iter().zip(block.chunks(width)).for_each(|(cells, block)| cells.copy_from_slice(block));
            });
        });
    }
}

/// Simple loops for any class and inner function.
fn plain<T: Number>(
    kernel: &MatMulKernel,
    a: &Input,
    b: &Input,
    out: &mut [u32],
    pool: &CpuPool,
    inner: impl Fn(T, T) -> T + Copy + Sync,
) {
    let (m, n, k) = (kernel.m, kernel.n, kernel.k);
    let ((a, a_layout), (b, b_layout)) = (a.strided::<T>(pool), b.strided::<T>(pool));
    pool.each_unit(out, n, n * k.div_ceil(2), |first, out| {
        // The rows of one batch element at a time.
        let (mut row, mut rest) = (first, out);
        while !rest.is_empty() {
            let (batch, start) = (row / m, row % m);
            let (block, after) = rest.split_at_mut((m - start).min(rest.len() / n) * n);
            let (left, right) = (batch_matrix(&a, &a_layout, batch).at(start, 0), batch_matrix(&b, &b_layout, batch));
            loops([block.len() / n, n, k], cast_slice_mut(block), left, right, inner);
            (row, rest) = (row + block.len() / n, after);
        }
    });
}

/// Packs a strip of columns of `b`, then adds its rows to the output one by one.
fn loops<T: Number>(
    [m, n, k]: [usize; 3],
    out: &mut [T],
    a: Matrix<T>,
    b: Matrix<T>,
    inner: impl Fn(T, T) -> T + Copy,
) {
    const STRIP: usize = 128;
    with_scratch(k * STRIP.min(n), |packed: &mut [T]| {
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
                vectorised(
                    #[inline(always)]
                    || {
                        for (p, row) in packed.chunks(width).take(k).enumerate() {
                            let left = a.data[a.at(i, p).offset as usize];
                            for (cell, &right) in cells.iter_mut().zip(row) {
                                *cell = cell.add(inner(left, right));
                            }
                        }
                    },
                );
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, DType};
    use crate::kernel::host::memory::Elements;
    use half::f16;

    /// The definition, computed from positions.
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
        matmul(kernel, &inputs, None, &mut out, &pool);
        assert_eq!(bytemuck::cast_slice::<u32, f32>(&out), expected, "{kernel:?}");

        let halves: Vec<f16> = x.iter().map(|&v| f16::from_f32(v)).collect();
        let inputs = [Input { elements: Elements::F16(&halves), layout: a.clone() }, inputs[1].clone()];
        matmul(kernel, &inputs, None, &mut out, &pool);
        assert_eq!(bytemuck::cast_slice::<u32, f32>(&out), expected, "halves, {kernel:?}");

        let whole = |v: &[f32]| v.iter().map(|&v| v as i32).collect::<Vec<_>>();
        let (x, y) = (whole(&x), whole(&y));
        let inputs = [
            Input { elements: Elements::I32(&x), layout: a.clone() },
            Input { elements: Elements::I32(&y), layout: b.clone() },
        ];
        let whole = MatMulKernel { class: DType::I32.class(), ..kernel.clone() };
        matmul(&whole, &inputs, None, &mut out, &pool);
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
