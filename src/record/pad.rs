//! Padding and cropping.

use super::{TensorCommands, TensorOperand, TensorValue};
use crate::error::OpResult;
use crate::ir::{Layout, Op, scalar_bits};

/// How [`pad`](TensorCommands::pad) fills new elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// With a number, which is converted as by a cast.
    Constant(f64),
    /// With the axis mirrored at its ends. The end elements are not repeated.
    Reflect,
    /// With the end element.
    #[doc(alias = "replicate")]
    Edge,
    /// With the axis continued from its other end.
    #[doc(alias = "circular")]
    Wrap,
}

impl PadMode {
    /// The position in an axis of `n` elements whose element is used at `at`, which may be outside. Not called for
    /// constants.
    pub(super) fn position(self, at: isize, n: isize) -> isize {
        match self {
            Self::Constant(_) | Self::Edge => at.clamp(0, n - 1),
            Self::Wrap => at.rem_euclid(n),
            Self::Reflect if n == 1 => 0,
            Self::Reflect => {
                let period = 2 * (n - 1);
                let at = at.rem_euclid(period);
                at.min(period - at)
            }
        }
    }
}

/// Padding.
impl TensorCommands<'_, '_> {
    /// Adds `(before, after)` elements to each axis. A negative number crops.
    #[track_caller]
    pub fn pad<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        pads: &[(isize, isize)],
        mode: PadMode,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "pad";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        let (shape, dtype) = (rec.shape_of_arg(x), rec.dtype_of_arg(x));
        if pads.len() != shape.rank() {
            let reason = format!("{} pairs were given for {} axes", pads.len(), shape.rank());
            return Err(rec.shape_error(OP, &[x], reason));
        }
        let mut out = shape.clone();
        for (axis, &(before, after)) in pads.iter().enumerate() {
            let n = shape[axis] as isize;
            let size = n.checked_add(before).and_then(|size| size.checked_add(after)).filter(|&size| size >= 0);
            let Some(size) = size else {
                return Err(rec.shape_error(OP, &[x], format!("axis {axis} cannot be cropped by more than its size")));
            };
            if n == 0 && size > 0 && !matches!(mode, PadMode::Constant(_)) {
                return Err(rec.shape_error(
                    OP,
                    &[x],
                    format!("axis {axis} is empty, so it has no elements to repeat"),
                ));
            }
            out.dims_mut()[axis] = size as usize;
        }
        // Before tables of that size are made.
        rec.check_size(OP, &out)?;
        if !matches!(mode, PadMode::Constant(_)) {
            out.iter().try_for_each(|&size| rec.check_table(OP, size, 1))?;
        }
        let part = rec.part(x);
        let mut node = x.node;
        if let PadMode::Constant(value) = mode {
            let mut place = Layout::contiguous(out.clone());
            for (axis, &(before, after)) in pads.iter().enumerate() {
                let n = shape[axis];
                // What is left of the axis. Cropping one end may go beyond the other end, into the padding.
                let start = before.min(0).unsigned_abs().min(n);
                let count = (n - start).saturating_sub(after.min(0).unsigned_abs());
                node = part.slice(node, axis, start, count, 1);
                let at = (before.max(0) as usize).min(out[axis] - count);
                place = place.slice(axis, at, count, 1);
            }
            if part.shape(node) != &out {
                let places = Box::new([place]);
                let op = Op::Assemble { places, fill: true };
                node = part.push(op, &[node], out, dtype, &[scalar_bits(value, dtype)]);
            }
        } else {
            for (axis, &(before, after)) in pads.iter().enumerate() {
                let (n, size) = (shape[axis], out[axis]);
                if before <= 0 && after <= 0 {
                    node = part.slice(node, axis, before.unsigned_abs(), size, 1);
                    continue;
                }
                let table: Vec<i32> =
                    (0..size as isize).map(|i| mode.position(i - before, n as isize) as i32).collect();
                node = part.gather_table(node, axis, &table);
            }
        }
        rec.value(x.backend, node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_outside_follow_numpy() {
        let row = |mode: PadMode| (-5..8).map(|at| mode.position(at, 3)).collect::<Vec<_>>();
        assert_eq!(row(PadMode::Reflect), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1]);
        assert_eq!(row(PadMode::Wrap), [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(row(PadMode::Edge), [0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2]);
    }
}
