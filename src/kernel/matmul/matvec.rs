//! Products of a vector and a matrix. Every matrix element is used once, so it is read in place at memory bandwidth.

use bytemuck::cast_slice_mut;

use crate::kernel::host::memory::Elements;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::vectorised;
use crate::kernel::matmul::gemm::Matrix;

/// Number of matrix rows added at a time.
const ROWS: usize = 8;
/// Number of columns summed at a time. The sums fit the L1 cache.
const COLUMNS: usize = 4096;
/// The same if rows are widened first. The widened rows must fit the L1 cache too.
const WIDENED: usize = 512;
/// Number of independent sums of a dot product.
const LANES: usize = 32;

/// A strided matrix with any element type.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub elements: Elements<'a>,
    pub offset: isize,
    pub row: isize,
    pub column: isize,
}

impl<'a> Strided<'a> {
    pub(crate) fn of(x: Matrix<'a>) -> Self {
        Self { elements: Elements::F32(x.data), offset: x.offset, row: x.row, column: x.column }
    }
}

/// `out[j] = Σₚ vector[p] · matrix[p, j]`.
pub(crate) fn matvec(vector: &[f32], matrix: Strided, out: &mut [f32]) {
    if matrix.column == 1 && out.len() > 1 {
        return by_rows(vector, matrix, out);
    }
    // Columns, which may be strided.
    with_scratch(vector.len(), |buffer: &mut [f32]| {
        for (j, out) in out.iter_mut().enumerate() {
            let at = matrix.offset + j as isize * matrix.column;
            let column = match matrix.elements {
                Elements::F32(floats) if matrix.row == 1 => &floats[at as usize..][..vector.len()],
                elements => {
                    elements.load(at, matrix.row, cast_slice_mut(buffer));
                    &*buffer
                }
            };
            *out = dot(vector, column);
        }
    });
}

/// Adds several rows at a time.
fn by_rows(vector: &[f32], matrix: Strided, out: &mut [f32]) {
    let at = |row: usize, column: usize| matrix.offset + row as isize * matrix.row + column as isize;
    if let Elements::F32(floats) = matrix.elements {
        for (c, out) in out.chunks_mut(COLUMNS).enumerate() {
            out.fill(0.0);
            let n = out.len();
            for (r, factors) in vector.chunks(ROWS).enumerate() {
                add_rows(factors, |i| &floats[at(r * ROWS + i, c * COLUMNS) as usize..][..n], out);
            }
        }
        return;
    }
    with_scratch(ROWS * WIDENED.min(out.len()), |buffer: &mut [f32]| {
        for (c, out) in out.chunks_mut(WIDENED).enumerate() {
            out.fill(0.0);
            let n = out.len();
            for (r, factors) in vector.chunks(ROWS).enumerate() {
                for (i, line) in buffer.chunks_mut(n).take(factors.len()).enumerate() {
                    matrix.elements.load(at(r * ROWS + i, c * WIDENED), 1, cast_slice_mut(line));
                }
                add_rows(factors, |i| &buffer[i * n..][..n], out);
            }
        }
    });
}

/// `out += Σᵢ factors[i] · row(i)`.
#[inline(always)]
fn add_rows<'a>(factors: &[f32], row: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
    if let Some(factors) = factors.first_chunk::<ROWS>() {
        let rows: [&[f32]; ROWS] = core::array::from_fn(row);
        return vectorised(
            #[inline(always)]
            || {
                let rows = rows.map(|row| &row[..out.len()]);
                for (j, o) in out.iter_mut().enumerate() {
                    let mut sum = *o;
                    for i in 0..ROWS {
                        sum += factors[i] * rows[i][j];
                    }
                    *o = sum;
                }
            },
        );
    }
    for (i, &factor) in factors.iter().enumerate() {
        out.iter_mut().zip(row(i)).for_each(|(o, &v)| *o += factor * v);
    }
}

/// The dot product, summed in lanes.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                for i in 0..LANES {
                    lanes[i] += a[i] * b[i];
                }
            }
            let mut half = LANES / 2;
            while half > 0 {
                for i in 0..half {
                    lanes[i] += lanes[i + half];
                }
                half /= 2;
            }
            a_rest.iter().zip(b_rest).fold(lanes[0], |sum, (&a, &b)| sum + a * b)
        },
    )
}
