//! Products of float matrices. A tile of the result stays in registers while it is summed over `k`: some rows of the
//! left-hand side, read in place, times a panel of the right-hand side. Panels are packed, so that a tile reads them
//! sequentially. A right-hand side that few rows are multiplied by is read in place instead.
//!
//! Every element is summed over `k` in the same order however the work is split, so results do not depend on the number
//! of threads.

use pulp::{Simd, WithSimd};

use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::{vectorised, with_vectors};

/// Columns of a panel: two vectors of sixteen, or four of eight.
pub(crate) const PANEL: usize = 32;
/// Maximum extent along `k` processed at a time. This part of a panel fits the L1 cache.
const DEPTH: usize = 384;
/// Rows processed at a time. They fit the L2 cache.
const ROWS: usize = 192;
/// Floats of panels packed at a time if they are not cached.
const PACKED: usize = 1 << 16;
/// Up to this number of rows, packing the right-hand side costs more than it saves.
const FEW: usize = 24;

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

    /// The elements from the first one on and the distance between rows, if rows are contiguous and in order.
    fn rows(self) -> Option<(&'a [T], usize)> {
        (self.column == 1 && self.row >= 0).then(|| (&self.data[self.offset as usize..], self.row as usize))
    }
}

/// The right-hand side of a product.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// Packed into panels.
    Panels(&'a [f32]),
    /// A matrix. Its rows are read in place if they are contiguous.
    Matrix(Matrix<'a>),
    /// Contiguous rows that begin anywhere in a slice. They may overlap. A whole panel past the last column is readable.
    Starts(&'a [f32], &'a [usize]),
}

impl<'a> From<&'a [f32]> for Right<'a> {
    fn from(panels: &'a [f32]) -> Self {
        Self::Panels(panels)
    }
}

impl<'a> From<Matrix<'a>> for Right<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::Matrix(matrix)
    }
}

/// Number of floats in the panels of a `k` by `n` matrix.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    n.next_multiple_of(PANEL) * k
}

/// Whether a product with this number of rows should read its right-hand side in place, without packing it.
pub(crate) fn reads_in_place(m: usize, b: &Matrix) -> bool {
    m <= FEW && b.rows().is_some()
}

/// Rows that are transposed at a time.
const TURN: usize = 8;

/// `out[p · pitch + i] = rows[i][p]`.
#[inline(always)]
fn interleave(rows: [&[f32]; TURN], out: &mut [f32], pitch: usize) {
    let depth = rows[0].len();
    let rows = rows.map(|row| &row[..depth]);
    let whole = depth / TURN * TURN;
    for start in (0..whole).step_by(TURN) {
        // Squares, which the compiler transposes in registers.
        let mut square = [[0.0f32; TURN]; TURN];
        for i in 0..TURN {
            for p in 0..TURN {
                square[p][i] = rows[i][start + p];
            }
        }
        for (p, cells) in square.iter().enumerate() {
            out[(start + p) * pitch..][..TURN].copy_from_slice(cells);
        }
    }
    for p in whole..depth {
        for i in 0..TURN {
            out[p * pitch + i] = rows[i][p];
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
                if b.column == 1 && width == PANEL {
                    for (p, cells) in panel.chunks_exact_mut(PANEL).enumerate() {
                        cells.copy_from_slice(b.row(p, PANEL));
                    }
                    continue;
                }
                let turned = if b.row == 1 { width / TURN * TURN } else { 0 };
                for column in (0..turned).step_by(TURN) {
                    let rows = core::array::from_fn(|c| b.transposed().row(column + c, k));
                    interleave(rows, &mut panel[column..], PANEL);
                }
                for (p, cells) in panel.chunks_exact_mut(PANEL).enumerate() {
                    let mut at = b.at(p, turned).offset;
                    for cell in &mut cells[turned..width] {
                        *cell = b.data[at as usize];
                        at += b.column;
                    }
                    cells[width..].fill(0.0);
                }
            }
        },
    );
}

/// Copies `rows` by `depth` elements of `a` row by row.
fn copy_rows(a: Matrix, rows: usize, depth: usize, out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            let turned = if a.row == 1 { depth / TURN * TURN } else { 0 };
            for p in (0..turned).step_by(TURN) {
                interleave(core::array::from_fn(|i| a.transposed().row(p + i, rows)), &mut out[p..], depth);
            }
            for (i, cells) in out.chunks_exact_mut(depth).take(rows).enumerate() {
                let mut at = a.at(i, turned).offset;
                for cell in &mut cells[turned..] {
                    *cell = a.data[at as usize];
                    at += a.column;
                }
            }
        },
    );
}

/// Some rows times some panels, over a part of `k`.
struct Block<'a> {
    rows: usize,
    columns: usize,
    depth: usize,
    /// Rows of the left-hand side, and the distance between them.
    left: &'a [f32],
    left_pitch: usize,
    /// Panels of the right-hand side, the distance between their rows, and between panels.
    right: &'a [f32],
    right_pitch: usize,
    /// Where rows begin, if they are not equally far apart.
    starts: &'a [usize],
    panel: usize,
    out: &'a mut [f32],
    stride: usize,
    add: bool,
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Tiles fill the registers. Decided at compile time for `S`, so that only one branch is compiled.
        if const { S::F32_LANES == 16 } {
            self.tiles::<S, 8, 2>(simd)
        } else if const { S::F32_LANES == 8 } {
            self.tiles::<S, 6, 2>(simd)
        } else if const { S::F32_LANES == 4 } {
            self.tiles::<S, 6, 4>(simd)
        } else {
            self.tiles::<S, 4, 8>(simd)
        }
    }
}

/// Runs a body with the number of rows of a tile, at most `$most`, as a constant.
macro_rules! with_rows {
    ($rows:expr, $most:expr, $M:ident => $body:expr) => {
        with_rows!(@ $rows, $most, $M => $body, 1 2 3 4 5 6 7 8)
    };
    (@ $rows:expr, $most:expr, $M:ident => $body:expr, $($count:literal)*) => {
        match $rows {
            $($count if const { $count <= $most } => {
                const $M: usize = $count;
                $body
            })*
            _ => {}
        }
    };
}

impl Block<'_> {
    /// Tiles have at most `H` rows and `V` vectors.
    #[inline(always)]
    fn tiles<S: Simd, const H: usize, const V: usize>(&mut self, simd: S) {
        // Tiles of about equal height.
        let height = self.rows.div_ceil(self.rows.div_ceil(H));
        for (j, column) in (0..self.columns).step_by(PANEL).enumerate() {
            let width = PANEL.min(self.columns - column);
            for part in (0..width).step_by(V * S::F32_LANES) {
                let at = j * self.panel + part;
                let width = (width - part).min(V * S::F32_LANES);
                for first in (0..self.rows).step_by(height) {
                    let rows = height.min(self.rows - first);
                    let place = (first, column + part, at);
                    with_rows!(rows, H, M => {
                        match (V == 2 && width <= S::F32_LANES, self.starts.is_empty()) {
                            (true, true) => self.tile::<S, M, 1, false>(simd, place, width),
                            (true, false) => self.tile::<S, M, 1, true>(simd, place, width),
                            (false, true) => self.tile::<S, M, V, false>(simd, place, width),
                            (false, false) => self.tile::<S, M, V, true>(simd, place, width),
                        }
                    });
                }
            }
        }
    }

    /// Computes one tile: `place` is its first row, its first column, and where that begins in the right-hand side.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const V: usize, const STARTS: bool>(
        &mut self,
        simd: S,
        (first, column, at): (usize, usize, usize),
        width: usize,
    ) {
        let depth = self.depth;
        let rows: [&[f32]; M] = core::array::from_fn(|i| &self.left[(first + i) * self.left_pitch..][..depth]);
        let right = &self.right[at..];
        let starts = if STARTS { &self.starts[..depth] } else { &[] };
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        for p in 0..depth {
            let from = if STARTS { starts[p] } else { p * self.right_pitch };
            let (b, _) = S::as_simd_f32s(&right[from..][..V * S::F32_LANES]);
            for i in 0..M {
                let a = simd.splat_f32s(rows[i][p]);
                for v in 0..V {
                    sums[i][v] = simd.mul_add_e_f32s(a, b[v], sums[i][v]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let cells = &mut self.out[(first + i) * self.stride + column..][..width];
            if width == V * S::F32_LANES {
                let (cells, _) = S::as_mut_simd_f32s(cells);
                for v in 0..V {
                    cells[v] = if self.add { simd.add_f32s(cells[v], sums[v]) } else { sums[v] };
                }
                continue;
            }
            for (cells, &sum) in cells.chunks_mut(S::F32_LANES).zip(sums) {
                let sum = if self.add { simd.add_f32s(simd.partial_load_f32s(cells), sum) } else { sum };
                simd.partial_store_f32s(cells, sum);
            }
        }
    }
}

/// `out = a · b`, or `out += a · b` if `add` is set, on the calling thread. `out` is row-major with `stride` elements
/// between rows, at least `n`.
pub(crate) fn multiply<'a>(
    [m, n, k]: [usize; 3],
    out: &mut [f32],
    stride: usize,
    add: bool,
    a: Matrix,
    b: impl Into<Right<'a>>,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            out.chunks_mut(stride).take(m).for_each(|row| row[..n].fill(0.0));
        }
        return;
    }
    match b.into() {
        Right::Panels(panels) => {
            blocks([m, n, k], out, stride, add, a, &panels[..packed_len(k, n)], PANEL, &[], k * PANEL);
        }
        Right::Matrix(b) => {
            // A vector past the last column may be past the last element, so the rest of the columns is packed.
            let whole = if b.rows().is_some() { n / PANEL * PANEL } else { 0 };
            if let Some((data, pitch)) = b.rows().filter(|_| whole > 0) {
                blocks([m, whole, k], out, stride, add, a, data, pitch, &[], PANEL);
            }
            if whole < n {
                gemm([m, n - whole, k], &mut out[whole..], stride, add, a, b.at(0, whole));
            }
        }
        Right::Starts(data, starts) => blocks([m, n, k], out, stride, add, a, data, 0, starts, PANEL),
    }
}

/// Multiplies by panels that begin `panel` elements apart, with `pitch` elements between their rows, or rows that begin
/// at `starts`.
#[expect(clippy::too_many_arguments, reason = "a product has this many")]
fn blocks(
    [m, n, k]: [usize; 3],
    out: &mut [f32],
    stride: usize,
    add: bool,
    a: Matrix,
    right: &[f32],
    pitch: usize,
    starts: &[usize],
    panel: usize,
) {
    // Equal parts of `k`.
    let depth = k.div_ceil(k.div_ceil(DEPTH));
    let buffer = if a.rows().is_some() { 0 } else { ROWS.min(m) * depth };
    with_scratch(buffer, |buffer: &mut [f32]| {
        for first in (0..m).step_by(ROWS) {
            let rows = ROWS.min(m - first);
            for start in (0..k).step_by(depth) {
                let depth = depth.min(k - start);
                let (left, left_pitch) = match a.at(first, start).rows() {
                    Some(rows) => rows,
                    None => {
                        copy_rows(a.at(first, start), rows, depth, buffer);
                        (&*buffer, depth)
                    }
                };
                with_vectors(Block {
                    rows,
                    columns: n,
                    depth,
                    left,
                    left_pitch,
                    right: &right[start * pitch..],
                    right_pitch: pitch,
                    starts: if starts.is_empty() { &[] } else { &starts[start..start + depth] },
                    panel,
                    out: &mut out[first * stride..],
                    stride,
                    add: add || start > 0,
                });
            }
        }
    });
}

/// Like [`multiply`], but packs the panels on the fly.
pub(crate) fn gemm([m, n, k]: [usize; 3], out: &mut [f32], stride: usize, add: bool, a: Matrix, b: Matrix) {
    if n >= PANEL && reads_in_place(m, &b) {
        return multiply([m, n, k], out, stride, add, a, b);
    }
    let width = (PACKED / k.max(1)).next_multiple_of(PANEL).min(n.next_multiple_of(PANEL));
    with_scratch(width * k, |panels: &mut [f32]| {
        for start in (0..n).step_by(width.max(1)) {
            let columns = width.min(n - start);
            let panels = &mut panels[..packed_len(k, columns)];
            pack_panels(b.at(0, start), k, columns, panels);
            multiply([m, columns, k], &mut out[start..], stride, add, a, &*panels);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_add_and_leave_the_gaps_alone() {
        crate::kernel::host::simd::forced::each(products_add);
    }

    fn products_add() {
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
                let mut panels = vec![0.0; packed_len(k, n)];
                pack_panels(b, k, n, &mut panels);
                let starts: Vec<usize> = (0..k).map(|p| p * (n + PANEL)).collect();
                let mut lines = vec![0.0; k * (n + PANEL)];
                for (p, line) in lines.chunks_mut(n + PANEL).enumerate() {
                    line[..n].iter_mut().enumerate().for_each(|(j, cell)| *cell = at(b, p, j));
                }
                for round in 1..6 {
                    match round {
                        5 => multiply([m, n, k], &mut out, stride, true, a, Right::Starts(&lines, &starts)),
                        3 => multiply([m, n, k], &mut out, stride, true, a, &panels[..]),
                        4 => multiply([m, n, k], &mut out, stride, true, a, b),
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
