//! Other sample rates.

use super::{ConvSettings, LAST, Padding, TensorAxis, TensorCommands, TensorOperand, TensorValue, spectrum};
use crate::error::{OpError, OpResult};
use crate::ir::{DType, Shape};

/// Zero crossings of the filter on each side.
const CROSSINGS: usize = 10;
/// The shape of the filter's window.
const BETA: f32 = 5.0;
/// Weights of the phases of a filter.
const MOST: usize = 1 << 24;

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Sample rates.
impl TensorCommands<'_, '_> {
    /// The samples along an axis at another rate: `⌈n · to / from⌉` of them.
    ///
    /// Only the ratio of the rates matters. The filter is that of SciPy's `resample_poly`: a windowed sinc of ten zero
    /// crossings on each side, below the lower of the two rates. Each output sample takes its phase of the filter.
    #[doc(alias = "resample_poly")]
    #[track_caller]
    pub fn resample<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        from: u32,
        to: u32,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "resample";
        let (x, axis) = (x.into(), axis.into());
        let argument = |reason: String| OpError::Argument { op: OP, reason };
        let (x, axis, shape, dtype) = {
            let rec = &mut self.recorder();
            let x = rec.float_arg(OP, x)?;
            let axis = rec.axis(OP, x, axis)?;
            let dtype = rec.dtype_of_arg(x);
            let part = rec.part(x);
            let moved = part.axis_to_end(x.node, axis);
            let shape = part.shape(moved).clone();
            (rec.value(x.backend, moved)?, axis, shape, dtype)
        };
        if from == 0 || to == 0 {
            return Err(argument(format!("from {from} to {to} samples per second; both must be positive")));
        }
        let divisor = greatest_divisor(from as usize, to as usize);
        let (up, down) = (to as usize / divisor, from as usize / divisor);
        let (last, n) = (shape.rank() - 1, shape[shape.rank() - 1]);
        let lines: usize = shape[..last].iter().product();
        let too_large = || OpError::too_large(OP, &shape);
        let out = n.checked_mul(up).ok_or_else(too_large)?.div_ceil(down);
        let half = CROSSINGS * up.max(down);
        // Output q · up + p takes inputs q · down + k, for k from `first` to `last`.
        let before = half / up;
        let taps = ((up - 1) * down + half) / up + before + 1;
        if up.saturating_mul(taps) > MOST {
            let reason =
                format!("a ratio of {up} to {down} needs too large a filter; take rates with a common divisor");
            return Err(argument(reason));
        }
        let y = if up == down || n == 0 {
            x
        } else {
            let filter = spectrum::low_pass(half, 1.0 / up.max(down) as f64, BETA);
            let mut weights = vec![0.0; up * taps];
            for (p, weights) in weights.chunks_mut(taps).enumerate() {
                for (k, weight) in weights.iter_mut().enumerate() {
                    let at = (half + p * down + before * up).checked_sub(k * up);
                    *weight = at.and_then(|at| filter.get(at)).map_or(0.0, |tap| (tap * up as f64) as f32);
                }
            }
            let steps = out.div_ceil(up);
            let after = ((steps - 1) * down + taps).saturating_sub(before + n);
            let lines_of = Shape::from([lines, 1, n]);
            let wide = self.cast(x, DType::F32)?;
            let signal = self.reshape(wide, &signed(&lines_of))?;
            let weights = self.constant_like(x, &weights, [up, 1, taps])?;
            let padding = Padding::Explicit([[before, after]]);
            let phases =
                self.conv1d(signal, weights, None, ConvSettings { stride: [down], padding, ..Default::default() })?;
            let steps_made = self.shape(phases)?[2];
            let samples = self.reshape(self.transpose(phases)?, &[lines as isize, (steps_made * up) as isize])?;
            let samples = self.cast(self.slice(samples, LAST, 0, out as isize)?, dtype)?;
            let mut sizes = shape.clone();
            sizes.dims_mut()[last] = out;
            self.reshape(samples, &signed(&sizes))?
        };
        let rec = &mut self.recorder();
        let y = rec.arg(OP, y.into())?;
        let node = rec.part(y).axis_from_end(y.node, axis);
        rec.value(y.backend, node)
    }
}

fn signed(shape: &Shape) -> Vec<isize> {
    shape.iter().map(|&size| size as isize).collect()
}
