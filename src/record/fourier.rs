//! Fourier transforms along an axis. Complex numbers are a last axis of 2: real and imaginary part.

use super::{Arg, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{Backend, DType, Fourier, FourierInput, FourierOutput, NodeId, Op, Shape};
use crate::kernel::{LONGEST_FFT, can_transform, fft_table, is_packed};

/// Fourier transforms.
impl TensorCommands<'_, '_> {
    /// The Fourier transform of a real axis: the first `n / 2 + 1` frequencies, as pairs of real and imaginary part in a
    /// new last axis. The other frequencies mirror these.
    ///
    /// With `n`, the axis is cropped to `n` elements or continued with zeros. Any `n` from 1 to 524,288 is possible, and
    /// up to 1,048,576 if all prime factors are at most 61.
    #[track_caller]
    pub fn rfft<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        n: impl Into<Option<usize>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        let (x, n, axis) = (x.into(), n.into(), axis.into());
        self.recorder().fourier_op("rfft", x, n, axis, (FourierInput::Real, FourierOutput::Half), false)
    }

    /// The inverse of [`rfft`](Self::rfft): `n` real numbers from frequencies `[…, bins, 2]`.
    ///
    /// Without `n`, there are `2 · (bins − 1)`. `axis` counts the axes of the frequencies without the last one, so `LAST` is
    /// the axis of bins. The imaginary parts of the first and of the middle frequency are taken as 0.
    #[track_caller]
    pub fn irfft<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        n: impl Into<Option<usize>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        let (x, n, axis) = (x.into(), n.into(), axis.into());
        self.recorder().fourier_op("irfft", x, n, axis, (FourierInput::Half, FourierOutput::Real), true)
    }

    /// The Fourier transform of a complex axis of `x […, 2]`. `axis` counts the axes without the last one, which holds real
    /// and imaginary parts. `n` as for [`rfft`](Self::rfft).
    #[doc(alias = "dft")]
    #[track_caller]
    pub fn fft<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        n: impl Into<Option<usize>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        let (x, n, axis) = (x.into(), n.into(), axis.into());
        self.recorder().fourier_op("fft", x, n, axis, (FourierInput::Complex, FourierOutput::Complex), false)
    }

    /// The inverse of [`fft`](Self::fft), divided by the number of elements.
    #[track_caller]
    pub fn ifft<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        n: impl Into<Option<usize>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        let (x, n, axis) = (x.into(), n.into(), axis.into());
        self.recorder().fourier_op("ifft", x, n, axis, (FourierInput::Complex, FourierOutput::Complex), true)
    }

    /// Any transform, for formats that have other combinations of inputs and outputs.
    #[track_caller]
    pub(crate) fn fourier<'a>(
        &'a self,
        op: &'static str,
        x: impl Into<TensorOperand<'a>>,
        n: usize,
        axis: isize,
        of: (FourierInput, FourierOutput),
        inverse: bool,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().fourier_op(op, x, Some(n), TensorAxis(axis), of, inverse)
    }
}

impl<'a> Recorder<'a> {
    /// Fails if no backend can transform `n` points.
    pub(super) fn check_points(&self, op: &'static str, n: usize) -> OpResult<()> {
        if can_transform(n) {
            return Ok(());
        }
        let reason = match n {
            0 => "a transform needs at least one point".to_owned(),
            _ => format!(
                "{n} points are too many; the most are {LONGEST_FFT} if all prime factors are small, and half of that \
                 otherwise"
            ),
        };
        Err(OpError::Argument { op, reason })
    }

    fn fourier_op(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        n: Option<usize>,
        axis: TensorAxis,
        (input, output): (FourierInput, FourierOutput),
        inverse: bool,
    ) -> OpResult<TensorValue<'a>> {
        let x = self.float_arg(op, x)?;
        let shape = self.shape_of_arg(x);
        let is_complex = input != FourierInput::Real;
        if is_complex && (shape.rank() < 2 || shape.last() != Some(&2)) {
            return Err(self.shape_error(op, &[x], "the last axis must have 2 elements, real and imaginary part"));
        }
        // The axes of the signal, without that of the parts.
        let signal = shape.rank() - usize::from(is_complex);
        let index = if axis.0 < 0 { axis.0 + signal as isize } else { axis.0 };
        let Some(axis) = usize::try_from(index).ok().filter(|&axis| axis < signal) else {
            let operand = Box::new(self.info(x));
            return Err(OpError::Axis { op, operand, axis: axis.0, reason: "does not exist" });
        };
        let given = shape[axis];
        let n = n.unwrap_or(match input {
            FourierInput::Half => 2 * given.saturating_sub(1),
            FourierInput::Real | FourierInput::Complex => given,
        });
        self.check_points(op, n)?;
        let frame = if input == FourierInput::Half { given.min(n / 2 + 1) } else { given.min(n) };
        let transform = Fourier { n, input, output, inverse, frames: 1, hop: 0, frame, window: false };

        let part = self.part(x);
        let order: Vec<usize> = (0..signal).filter(|&i| i != axis).chain([axis]).chain(signal..shape.rank()).collect();
        let moved = part.permute(x.node, &order);
        let others: Vec<usize> = (0..signal).filter(|&i| i != axis).map(|i| shape[i]).collect();
        let lines = others.iter().product();
        let node = self.transform(x, moved, None, [lines, given], transform)?;
        let mut sizes = others;
        sizes.push(transform.results());
        let is_pair = matches!(output, FourierOutput::Complex | FourierOutput::Half);
        sizes.extend(is_pair.then_some(2));
        let part = self.part(x);
        let node = part.reshape(node, &Shape::new(sizes.iter().copied()));
        // The axis goes back to its place.
        let rank = sizes.len();
        let order: Vec<usize> = (0..axis).chain([signal - 1]).chain(axis..signal - 1).chain(signal..rank).collect();
        let node = part.permute(node, &order);
        self.value(x.backend, node)
    }

    /// The transforms of a node with `[lines, length]` elements or pairs, as `[lines · frames, results]` or pairs of them.
    /// The type is that of `x`.
    pub(super) fn transform(
        &mut self,
        x: Arg,
        node: NodeId,
        window: Option<NodeId>,
        [lines, length]: [usize; 2],
        transform: Fourier,
    ) -> OpResult<NodeId> {
        let dtype = self.dtype_of_arg(x);
        let part = self.part(x);
        let is_complex = transform.input != FourierInput::Real;
        let sizes = [lines, length].into_iter().chain(is_complex.then_some(2));
        let node = part.reshape(node, &Shape::new(sizes));
        let is_pair = matches!(transform.output, FourierOutput::Complex | FourierOutput::Half);
        let shape = Shape::new([lines * transform.frames, transform.results()].into_iter().chain(is_pair.then_some(2)));
        let mut inputs = vec![node];
        inputs.extend(window);
        if x.backend == Backend::Gpu && shape.is_addressable() {
            let table = fft_table(transform.n, is_packed(&transform));
            let pairs = Shape::from([table.len() / 2, 2]);
            inputs.push(part.constant(table, pairs, DType::F32));
        }
        Ok(part.push(Op::Fft { transform }, &inputs, shape, dtype, &[]))
    }
}
