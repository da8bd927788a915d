//! Pooling over one, two or three spatial axes.

use super::conv::{Padding, SpatialAxis, UNIT, lifted};
use super::{Arg, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{DType, Op, PoolKind, ReduceKind, Shape};

/// Settings of pooling over `N` spatial axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolSettings<const N: usize> {
    /// Size of the window. 2 by default.
    pub size: [usize; N],
    /// Distance between windows. `None`, the default, means the size of the window.
    pub stride: Option<[usize; N]>,
    /// Padding around the input. None by default.
    pub padding: Padding<N>,
    /// Distance between the elements of a window. 1 by default.
    pub dilation: [usize; N],
    /// Whether the last window may extend beyond the input. A window that starts in the padding at the end is dropped.
    pub ceil_mode: bool,
    /// Whether averages count padding as zeros.
    #[doc(alias = "count_include_pad")]
    pub include_pad: bool,
}

impl<const N: usize> Default for PoolSettings<N> {
    fn default() -> Self {
        Self {
            size: [2; N],
            stride: None,
            padding: Padding::default(),
            dilation: [1; N],
            ceil_mode: false,
            include_pad: false,
        }
    }
}

/// What pooling keeps of a window.
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    Largest,
    Position,
    Average,
}

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident $keep:ident $n:literal;)*) => {
        /// Pooling over the spatial axes of `x [n, c, …]`.
        impl TensorCommands<'_, '_> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name<'a>(
                &'a self,
                x: impl Into<TensorOperand<'a>>,
                settings: PoolSettings<$n>,
            ) -> OpResult<TensorValue<'a>> {
                let x = x.into();
                self.recorder().pool_op(stringify!($name), x, settings, Keep::$keep)
            })*
        }
    };
}

pools! {
    /// The largest element of each window of `[n, c, w]`.
    max_pool1d Largest 1;
    /// The largest element of each window of `[n, c, h, w]`.
    max_pool2d Largest 2;
    /// The largest element of each window of `[n, c, d, h, w]`.
    max_pool3d Largest 3;
    /// The position (`i32`) in `[w]` of the largest element of each window.
    max_pool1d_indices Position 1;
    /// The row-major position (`i32`) in `[h, w]` of the largest element of each window.
    max_pool2d_indices Position 2;
    /// The row-major position (`i32`) in `[d, h, w]` of the largest element of each window.
    max_pool3d_indices Position 3;
    /// The average of each window of `[n, c, w]`.
    avg_pool1d Average 1;
    /// The average of each window of `[n, c, h, w]`.
    avg_pool2d Average 2;
    /// The average of each window of `[n, c, d, h, w]`.
    avg_pool3d Average 3;
}

impl TensorCommands<'_, '_> {
    /// The mean over the spatial axes of `x [n, c, …]`, which are kept with size 1.
    #[track_caller]
    pub fn global_avg_pool<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        const OP: &str = "global_avg_pool";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        rec.global_pool(OP, x, ReduceKind::Mean)
    }

    /// The maximum over the spatial axes of `x [n, c, …]`, which are kept with size 1.
    #[track_caller]
    pub fn global_max_pool<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        const OP: &str = "global_max_pool";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        rec.global_pool(OP, x, ReduceKind::Max)
    }

    /// Averages over windows of `x [n, c, h, w]` that are as even as possible and give the output `size`.
    #[track_caller]
    pub fn adaptive_avg_pool2d<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        size: [usize; 2],
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "adaptive_avg_pool2d";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
        let [_, _, h, w] = shape[..] else {
            return Err(rec.shape_error(OP, &[x], "it must be [n, c, h, w]"));
        };
        if h == 0 || w == 0 {
            return Err(rec.shape_error(OP, &[x], "a spatial axis is empty"));
        }
        rec.check_size(OP, &Shape::from([shape[0], shape[1], size[0], size[1]]))?;
        let mut node = x.node;
        for (axis, input, out) in [(2, h, size[0]), (3, w, size[1])] {
            // A window of several positions, or parts of two.
            rec.check_table(OP, out, input.checked_div(out).map_or(0, |whole| whole + 2))?;
            if input != out {
                let (positions, weights) = even_windows(input, out);
                node = rec.part(x).taps(node, axis, out, &positions, &weights);
            }
        }
        rec.value(x.backend, node)
    }
}

impl<'a> Recorder<'a> {
    fn pool_op<const N: usize>(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        settings: PoolSettings<N>,
        keep: Keep,
    ) -> OpResult<TensorValue<'a>> {
        let PoolSettings { size, stride, padding, dilation, ceil_mode, include_pad } = settings;
        let x = if keep == Keep::Average { self.float_arg(op, x)? } else { self.arg(op, x)? };
        let (of_x, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        if dtype == DType::Bool {
            return Err(self.type_error(op, &[x], "this op is for numbers; cast first"));
        }
        if of_x.rank() != N + 2 {
            return Err(self.shape_error(op, &[x], format!("it must have {} axes", N + 2)));
        }
        let stride = stride.unwrap_or(size);
        if size.iter().chain(&stride).chain(&dilation).any(|&n| n == 0) {
            return Err(OpError::Argument { op, reason: "sizes, strides and dilations must be at least 1".to_owned() });
        }
        let mut window = UNIT;
        let mut shape = Shape::from(&of_x[..2]);
        for axis in 0..N {
            let spatial =
                SpatialAxis { input: of_x[axis + 2], size: size[axis], stride: stride[axis], dilation: dilation[axis] };
            let Some((before, after, count)) = spatial.slide(axis, padding, ceil_mode) else {
                return Err(self.window_error(op, &[x], axis + 2));
            };
            self.set_window(op, &mut window, axis + 3 - N, (spatial, count), [before, after])?;
            shape.dims_mut().push(count);
        }
        let (kind, dtype) = match keep {
            Keep::Largest => (PoolKind::Max, dtype),
            Keep::Position => (PoolKind::ArgMax, DType::I32),
            Keep::Average => (PoolKind::Average { include_pad }, dtype),
        };
        let taps = Shape::from(size);
        if !taps.is_addressable() {
            return Err(OpError::too_large(op, &taps));
        }
        let part = self.part(x);
        if of_x.elements() == 0 {
            // Windows over nothing but padding.
            let value = if keep == Keep::Largest { dtype.lowest() } else { 0.0 };
            let node = part.full(value, &shape, dtype);
            return self.value(x.backend, node);
        }
        let source = part.lift(x.node);
        let node = part.push(Op::Pool { kind, window }, &[source], lifted(&shape), dtype, &[]);
        let node = part.reshape(node, &shape);
        self.value(x.backend, node)
    }

    fn global_pool(&mut self, op: &'static str, x: Arg, kind: ReduceKind) -> OpResult<TensorValue<'a>> {
        let (rank, dtype) = (self.part_ref(x).shape(x.node).rank(), self.dtype_of_arg(x));
        if rank < 3 {
            return Err(self.shape_error(op, &[x], "it must be [n, c, …] with a spatial axis"));
        }
        let axes: smallvec::SmallVec<[usize; 4]> = (2..rank).collect();
        let node = self.part(x).reduce(kind, x.node, &axes, true, dtype);
        self.value(x.backend, node)
    }
}

/// Tap tables of `out` averages that divide `input` positions as evenly as possible.
fn even_windows(input: usize, out: usize) -> (Vec<i32>, Vec<f32>) {
    let window = |i: usize| (i * input / out, ((i + 1) * input).div_ceil(out));
    let taps = (0..out).map(window).map(|(start, end)| end - start).max().unwrap_or(1);
    let (mut positions, mut weights) = (Vec::with_capacity(out * taps), Vec::with_capacity(out * taps));
    for (start, end) in (0..out).map(window) {
        for tap in 0..taps {
            let inside = start + tap < end;
            positions.push(if inside { start + tap } else { start } as i32);
            weights.push(if inside { 1.0 / (end - start) as f32 } else { 0.0 });
        }
    }
    (positions, weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_windows_cover_the_input() {
        let (positions, weights) = even_windows(5, 3);
        assert_eq!(positions, [0, 1, 0, 1, 2, 3, 3, 4, 3]);
        assert_eq!(weights, [0.5, 0.5, 0.0, 1. / 3., 1. / 3., 1. / 3., 0.5, 0.5, 0.0]);
    }
}
