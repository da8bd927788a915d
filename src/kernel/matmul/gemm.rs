//! Products of float matrices. The right-hand side is packed into panels of a few columns, the left-hand side into
//! strips of a few rows. The product of a strip and a panel stays in registers.
//!
//! Every element is summed over `k` in the same order however the work is split, so results do not depend on the number
//! of threads.

use pulp::{Simd, WithSimd};

use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::{vectorised, with_vectors};

/// Columns of a panel: two vectors of eight.
pub(crate) const PANEL: usize = 16;
/// Rows of a strip. Together with the vectors of a panel they fill the registers.
pub(crate) const STRIP: usize = 6;
/// Maximum extent along `k` processed at a time. This part of a panel fits the L1 cache.
const DEPTH: usize = 384;
/// Rows packed at a time. They fit the L2 cache.
const ROWS: usize = 96;
/// Floats of panels packed at a time if they are not cached.
const PACKED: usize = 1 << 16;

/// A strided matrix in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T = f32> {
    pub data: &'a [T],
    pub offset: isize,
    pub row: isize,
    pub column: isize,
}

impl<'a, T> Matrix<'a, T> {
    /// The submatrix that starts at a row and a column of this one.
    pub(crate) fn at(self, row: usize, column: usize) -> Self {
        Self { offset: self.offset + row as isize * self.row + column as isize * self.column, ..self }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    /// A row whose elements are contiguous.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize, n: usize) -> &'a [T] {
        &self.data[(self.offset + row as isize * self.row) as usize..][..n]
    }
}

/// Number of floats in the panels of a `k` by `n` matrix.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    n.next_multiple_of(PANEL) * k
}

/// `out[p][i] = rows[i][p]`.
#[inline(always)]
fn interleave<const M: usize>(rows: [&[f32]; M], out: &mut [f32]) {
    let (out, _) = out.as_chunks_mut::<M>();
    let rows = rows.map(|row| &row[..out.len()]);
    for (p, out) in out.iter_mut().enumerate() {
        for i in 0..M {
            out[i] = rows[i][p];
        }
    }
}

/// Packs the `k` by `columns` matrix `b` into whole panels. Columns past the last one are 0.
pub(crate) fn pack_panels(b: Matrix, k: usize, columns: usize, out: &mut [f32]) {
    if k == 0 {
        return;
    }
    vectorised(
        #[inline(always)]
        || {
            for (j, panel) in out.chunks_mut(k * PANEL).enumerate() {
                let width = PANEL.min(columns - j * PANEL);
                let b = b.at(0, j * PANEL);
                if b.row == 1 && width == PANEL {
                    interleave::<PANEL>(core::array::from_fn(|c| b.transposed().row(c, k)), panel);
                    continue;
                }
                for (p, cells) in panel.chunks_mut(PANEL).enumerate() {
                    if b.column == 1 && width == PANEL {
                        cells.copy_from_slice(b.row(p, PANEL));
                        continue;
                    }
                    let mut at = b.at(p, 0).offset;
                    for cell in &mut cells[..width] {
                        *cell = b.data[at as usize];
                        at += b.column;
                    }
                    cells[width..].fill(0.0);
                }
            }
        },
    );
}

/// The row ranges of the strips of a block.
#[inline(always)]
fn strips(rows: usize, height: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
    (0..rows).step_by(height.max(1)).map(move |first| first..rows.min(first + height))
}

/// Runs a body with the number of rows of a strip as a constant.
macro_rules! with_rows {
    ($rows:expr, $M:ident => $body:expr) => {
        match $rows {
            1 => {
                const $M: usize = 1;
                $body
            }
            2 => {
                const $M: usize = 2;
                $body
            }
            3 => {
                const $M: usize = 3;
                $body
            }
            4 => {
                const $M: usize = 4;
                $body
            }
            5 => {
                const $M: usize = 5;
                $body
            }
            _ => {
                const $M: usize = STRIP;
                $body
            }
        }
    };
}

/// The left-hand side of a product.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// A matrix that is packed on the fly.
    Matrix(Matrix<'a>),
    /// Already packed in strips of [`STRIP`] rows, along all of `k`.
    Strips(&'a [f32]),
}

impl<'a> From<Matrix<'a>> for Left<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::Matrix(matrix)
    }
}

/// Packs `rows` by `depth` elements of `a` into strips of `height` rows. Each strip is stored transposed.
pub(crate) fn pack_strips(a: Matrix, rows: usize, depth: usize, height: usize, out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for range in strips(rows, height) {
                let a = a.at(range.start, 0);
                let out = &mut out[range.start * depth..range.end * depth];
                if a.column == 1 {
                    with_rows!(range.len(), M => interleave::<M>(core::array::from_fn(|i| a.row(i, depth)), out));
                    continue;
                }
                for (p, cells) in out.chunks_mut(range.len()).enumerate() {
                    let mut at = a.at(0, p).offset;
                    for cell in cells {
                        *cell = a.data[at as usize];
                        at += a.row;
                    }
                }
            }
        },
    );
}

/// Packed rows times panels, over a part of `k`.
struct Block<'a> {
    rows: usize,
    columns: usize,
    depth: usize,
    strips: &'a [f32],
    /// Rows of a strip, its extent along `k`, and where along `k` the block begins in it.
    height: usize,
    length: usize,
    start: usize,
    panels: &'a [f32],
    /// Distance between panels.
    panel: usize,
    out: &'a mut [f32],
    stride: usize,
    add: bool,
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Decided at compile time for `S`, so that only one branch is compiled.
        if const { S::F32_LANES == 4 } {
            self.run::<S, 4, 4>(simd)
        } else if const { S::F32_LANES == 8 } {
            self.run::<S, 2, 4>(simd)
        } else if const { S::F32_LANES == 16 } {
            self.run::<S, 1, 4>(simd)
        } else {
            self.run::<S, PANEL, 1>(simd)
        }
    }
}

impl Block<'_> {
    /// A panel has `V` vectors. The inner loop is unrolled to `T` steps along `k`.
    #[inline(always)]
    fn run<S: Simd, const V: usize, const T: usize>(self, simd: S) {
        for (j, panel) in self.panels.chunks(self.panel).enumerate() {
            let (panel, _) = S::as_simd_f32s(&panel[..self.depth * PANEL]);
            let width = PANEL.min(self.columns - j * PANEL);
            for range in strips(self.rows, self.height) {
                let first = range.start * self.length + range.len() * self.start;
                let strip = &self.strips[first..][..range.len() * self.depth];
                let out = &mut self.out[range.start * self.stride + j * PANEL..];
                with_rows!(range.len(), M => {
                    let tile = tile::<S, M, V, T>(simd, strip, panel);
                    put::<S, M, V>(simd, tile, out, self.stride, width, self.add);
                });
            }
        }
    }
}

/// Adds the product of one column of a strip and one row of a panel.
#[inline(always)]
fn step<S: Simd, const M: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; M],
    a: &[f32; M],
    b: &[S::f32s; V],
) {
    for i in 0..M {
        let a = simd.splat_f32s(a[i]);
        for v in 0..V {
            sums[i][v] = simd.mul_add_e_f32s(a, b[v], sums[i][v]);
        }
    }
}

/// Multiplies one strip by one panel.
#[inline(always)]
fn tile<S: Simd, const M: usize, const V: usize, const T: usize>(
    simd: S,
    strip: &[f32],
    panel: &[S::f32s],
) -> [[S::f32s; V]; M] {
    let mut sums = [[simd.splat_f32s(0.0); V]; M];
    let ((a, _), (b, _)) = (strip.as_chunks::<M>(), panel.as_chunks::<V>());
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<T>(), b.as_chunks::<T>());
    for (a, b) in a.iter().zip(b) {
        for t in 0..T {
            step(simd, &mut sums, &a[t], &b[t]);
        }
    }
    for (a, b) in a_rest.iter().zip(b_rest) {
        step(simd, &mut sums, a, b);
    }
    sums
}

/// Stores a tile or adds it to the output.
#[inline(always)]
fn put<S: Simd, const M: usize, const V: usize>(
    simd: S,
    tile: [[S::f32s; V]; M],
    out: &mut [f32],
    stride: usize,
    width: usize,
    add: bool,
) {
    for i in 0..M {
        let cells = &mut out[i * stride..][..width];
        if width == PANEL {
            let (cells, _) = S::as_mut_simd_f32s(cells);
            for v in 0..V {
                cells[v] = if add { simd.add_f32s(cells[v], tile[i][v]) } else { tile[i][v] };
            }
        } else {
            let mut row = [0.0f32; PANEL];
            let (vectors, _) = S::as_mut_simd_f32s(&mut row);
            vectors[..V].copy_from_slice(&tile[i][..V]);
            for (cell, value) in cells.iter_mut().zip(row) {
                *cell = if add { *cell + value } else { value };
            }
        }
    }
}

/// `out = a · b`, or `out += a · b` if `add` is set, on the calling thread, with `b` given as panels. `out` is
/// row-major with `stride` elements between rows, at least `n`.
pub(crate) fn multiply<'a>(
    [m, n, k]: [usize; 3],
    out: &mut [f32],
    stride: usize,
    add: bool,
    a: impl Into<Left<'a>>,
    panels: &[f32],
) {
    if m == 0 || n == 0 {
        return;
    }
    let a = a.into();
    // Equal parts of `k`.
    let depth = k.div_ceil(k.div_ceil(DEPTH).max(1));
    let panels = &panels[..packed_len(k, n)];
    let buffer = if let Left::Matrix(_) = a { ROWS.min(m) * depth } else { 0 };
    with_scratch(buffer, |buffer: &mut [f32]| {
        for (i, out) in out.chunks_mut(ROWS * stride).take(m.div_ceil(ROWS)).enumerate() {
            let rows = ROWS.min(m - i * ROWS);
            if k == 0 && !add {
                out.chunks_mut(stride).take(rows).for_each(|row| row[..n].fill(0.0));
            }
            for start in (0..k).step_by(depth.max(1)) {
                let depth = depth.min(k - start);
                let (strips, height, length, skipped) = match a {
                    Left::Matrix(a) => {
                        // Strips of about equal height.
                        let height = rows.div_ceil(rows.div_ceil(STRIP));
                        let strips = &mut buffer[..rows * depth];
                        pack_strips(a.at(i * ROWS, start), rows, depth, height, strips);
                        (&*strips, height, depth, 0)
                    }
                    Left::Strips(strips) => (&strips[i * ROWS * k..], STRIP, k, start),
                };
                with_vectors(Block {
                    rows,
                    columns: n,
                    depth,
                    strips,
                    height,
                    length,
                    start: skipped,
                    panels: &panels[start * PANEL..],
                    panel: k * PANEL,
                    out: &mut *out,
                    stride,
                    add: add || start > 0,
                });
            }
        }
    });
}

/// Like [`multiply`], but packs the panels on the fly.
pub(crate) fn gemm([m, n, k]: [usize; 3], out: &mut [f32], stride: usize, add: bool, a: Matrix, b: Matrix) {
    let width = (PACKED / k.max(1)).next_multiple_of(PANEL).min(n.next_multiple_of(PANEL));
    with_scratch(width * k, |panels: &mut [f32]| {
        for start in (0..n).step_by(width.max(1)) {
            let columns = width.min(n - start);
            let panels = &mut panels[..packed_len(k, columns)];
            pack_panels(b.at(0, start), k, columns, panels);
            multiply([m, columns, k], &mut out[start..], stride, add, a, panels);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_add_and_leave_the_gaps_alone() {
        for (m, n, k) in [(1, 1, 1), (6, 16, 4), (7, 17, 385), (97, 33, 3), (200, 5, 800), (3, 40, 0)] {
            let values = |n: usize| (0..n).map(|i| ((i * 7) % 13) as f32 - 6.0).collect::<Vec<_>>();
            let (a, b) = (values(m * k), values(k * n));
            let stride = n + 3;
            // Transposed left-hand side with plain right-hand side, and the reverse.
            for turned in [false, true] {
                let a = Matrix { data: &a, offset: 0, row: k as isize, column: 1 };
                let a = if turned { Matrix { row: 1, column: m as isize, ..a } } else { a };
                let b = Matrix { data: &b, offset: 0, row: n as isize, column: 1 };
                let b = if turned { b } else { Matrix { row: 1, column: k as isize, ..b } };
                let at = |x: Matrix, i: usize, j: usize| x.data[x.at(i, j).offset as usize];
                let mut out = vec![0.5; m * stride];
                let mut packed = (vec![0.0; m * k], vec![0.0; packed_len(k, n)]);
                pack_strips(a, m, k, STRIP, &mut packed.0);
                pack_panels(b, k, n, &mut packed.1);
                for round in 1..4 {
                    match round {
                        3 => multiply([m, n, k], &mut out, stride, true, Left::Strips(&packed.0), &packed.1),
                        _ => gemm([m, n, k], &mut out, stride, round > 1, a, b),
                    }
                    for (i, row) in out.chunks(stride).enumerate() {
                        assert!(row[n..].iter().all(|&v| v == 0.5));
                        for (j, &got) in row[..n].iter().enumerate() {
                            let sum: f32 = (0..k).map(|p| at(a, i, p) * at(b, p, j)).sum();
                            assert_eq!(got, round as f32 * sum, "{m} {n} {k} at {i} {j}");
                        }
                    }
                }
            }
        }
    }
}
