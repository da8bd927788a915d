//! Discrete cosine transforms.

use core::f64::consts::PI;

use super::{LAST, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpResult;
use crate::ir::{DType, FourierInput, FourierOutput};

/// Which cosine transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DctKind {
    /// DCT-II, which is called *the* DCT.
    Two,
    /// DCT-III, the inverse of DCT-II except for the scale.
    Three,
}

/// Longer axes are transformed by a Fourier transform, shorter ones by a matrix.
const BY_MATRIX: usize = 512;

/// Cosine transforms.
impl TensorCommands<'_, '_> {
    /// The cosine transform of an axis, scaled as SciPy does.
    ///
    /// * `Two`: `2 · Σ x[j] · cos(π k (2j + 1) / 2n)`
    /// * `Three`: `x[0] + 2 · Σ x[j] · cos(π j (2k + 1) / 2n)` over `j ≥ 1`
    ///
    /// If `orthonormal`, each of the two is the inverse of the other. Otherwise their product is `2n`.
    #[track_caller]
    pub fn dct<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        kind: DctKind,
        orthonormal: bool,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "dct";
        let (x, axis) = (x.into(), axis.into());
        let (x, axis, n, dtype) = {
            let rec = &mut self.recorder();
            let x = rec.float_arg(OP, x)?;
            let axis = rec.axis(OP, x, axis)?;
            let n = rec.shape_of_arg(x)[axis];
            rec.check_points(OP, n)?;
            let dtype = rec.dtype_of_arg(x);
            let part = rec.part(x);
            let wide = part.cast(x.node, DType::F32);
            let moved = part.axis_to_end(wide, axis);
            (rec.value(x.backend, moved)?, axis, n, dtype)
        };
        // The factors of an orthonormal transform: of element 0, and of the others.
        let norm = match (orthonormal, kind) {
            (false, _) => [1.0, 1.0],
            (true, DctKind::Two) => [(0.25 / n as f64).sqrt(), (0.5 / n as f64).sqrt()],
            (true, DctKind::Three) => [(1.0 / n as f64).sqrt(), (0.5 / n as f64).sqrt()],
        };
        let y = if n <= BY_MATRIX {
            let cosine = |j: usize, k: usize| {
                let turn = (k * (2 * j + 1)) % (4 * n);
                (PI * turn as f64 / (2 * n) as f64).cos()
            };
            let entry = |i: usize| {
                let (row, column) = (i / n, i % n);
                match kind {
                    DctKind::Two => 2.0 * cosine(column, row) * norm[usize::from(row > 0)],
                    DctKind::Three if column == 0 => norm[0],
                    DctKind::Three => 2.0 * cosine(row, column) * norm[1],
                }
            };
            let matrix: Vec<f32> = (0..n * n).map(|i| entry(i) as f32).collect();
            self.matmul_nt(x, self.constant_like(x, &matrix, [n, n])?)?
        } else {
            self.long_dct(x, kind, n, norm)?
        };
        let rec = &mut self.recorder();
        let y = rec.arg(OP, y.into())?;
        let part = rec.part(y);
        let back = part.axis_from_end(y.node, axis);
        let node = part.cast(back, dtype);
        rec.value(y.backend, node)
    }

    /// The transform of the last axis by a Fourier transform of the same length: its even elements, then its odd ones
    /// backwards (Makhoul).
    fn long_dct<'a>(
        &'a self,
        x: TensorValue<'a>,
        kind: DctKind,
        n: usize,
        norm: [f64; 2],
    ) -> OpResult<TensorValue<'a>> {
        let count = n as isize;
        // e^(−πi k / 2n), times a factor.
        let roots = |k: usize, scale: f64| {
            let angle = -PI * k as f64 / (2 * n) as f64;
            [(scale * angle.cos()) as f32, (scale * angle.sin()) as f32]
        };
        match kind {
            DctKind::Two => {
                let even = self.slice_step(x, LAST, 0, count, 2)?;
                let odd = self.flip(self.slice_step(x, LAST, 1, count, 2)?, LAST)?;
                let sorted = self.concat([even, odd], LAST)?;
                let of = (FourierInput::Real, FourierOutput::Complex);
                let spectrum = self.fourier("dct", sorted, n, -1, of, false)?;
                // Twice the real part of the product.
                let turns: Vec<f32> = (0..n)
                    .flat_map(|k| {
                        let [re, im] = roots(k, 2.0 * norm[usize::from(k > 0)]);
                        [re, -im]
                    })
                    .collect();
                let turns = self.constant_like(x, &turns, [n, 2])?;
                self.sum(self.mul(spectrum, turns)?, LAST)
            }
            DctKind::Three => {
                // Half the spectrum of the sorted elements is e^(πi k / 2n) · (x[k] − i · x[n − k]).
                let bins = n / 2 + 1;
                let first = self.slice(x, LAST, 0, bins as isize)?;
                let shape = self.shape(x)?;
                let mut pads = vec![(0, 0); shape.rank()];
                pads[shape.rank() - 1] = (0, 1);
                let longer = self.pad(x, &pads, super::PadMode::Constant(0.0))?;
                let last = self.flip(self.slice(longer, LAST, count + 1 - bins as isize, count + 1)?, LAST)?;
                let part = |i: usize, sign: f32| -> Vec<f32> {
                    // The inverse transform divides by n.
                    let scale = |k: usize| if k == 0 { norm[0] } else { norm[1] } * n as f64;
                    (0..bins).map(|k| sign * roots(k, scale(k))[i]).collect()
                };
                let cos = self.constant_like(x, &part(0, 1.0), [bins])?;
                let sin = self.constant_like(x, &part(1, -1.0), [bins])?;
                // (cos + i sin) · (a − i b) = (a cos + b sin) + i (a sin − b cos)
                let re = self.add(self.mul(first, cos)?, self.mul(last, sin)?)?;
                let im = self.sub(self.mul(first, sin)?, self.mul(last, cos)?)?;
                let sorted = self.irfft(self.stack([re, im], -1)?, n, LAST)?;
                let half = n.div_ceil(2) as isize;
                let even = self.slice(sorted, LAST, 0, half)?;
                let odd = self.flip(self.slice(sorted, LAST, half, count)?, LAST)?;
                // One after the other, in turn.
                let odd = if n % 2 == 1 { self.pad(odd, &pads, super::PadMode::Constant(0.0))? } else { odd };
                let pairs = self.stack([even, odd], -1)?;
                let sizes: Vec<isize> =
                    shape[..shape.rank() - 1].iter().map(|&size| size as isize).chain([2 * half]).collect();
                self.slice(self.reshape(pairs, &sizes)?, LAST, 0, count)
            }
        }
    }
}
