//! Windows, and spectra of overlapping frames.

use core::f64::consts::{PI, TAU};

use super::{Arg, PadMode, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{BinaryOp, DType, Fourier, FourierInput, FourierOutput, Layout, NodeId, Op, Shape};
use crate::tensor::pack;

/// The shape of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum FrameWindow {
    /// Ones.
    Rectangular,
    /// `0.5 − 0.5 · cos`.
    #[default]
    Hann,
    /// `0.54 − 0.46 · cos`.
    Hamming,
    /// `0.42 − 0.5 · cos + 0.08 · cos` of twice the angle.
    Blackman,
    /// A Bessel function. A larger `beta` makes it narrower.
    Kaiser {
        /// The shape parameter.
        beta: f32,
    },
}

impl FrameWindow {
    /// The values of a window of `n` elements. A periodic one is a period of the window, for spectra; a symmetric one ends
    /// as it begins, for filters.
    #[must_use]
    pub fn values(self, n: usize, periodic: bool) -> Vec<f32> {
        self.exact(n, periodic).into_iter().map(|value| value as f32).collect()
    }

    pub(super) fn exact(self, n: usize, periodic: bool) -> Vec<f64> {
        let last = if periodic { n } else { n.saturating_sub(1) }.max(1) as f64;
        let cosines = |i: usize, terms: &[f64]| {
            let angle = TAU * i as f64 / last;
            terms.iter().enumerate().map(|(k, term)| term * (angle * k as f64).cos()).sum()
        };
        let value = |i: usize| match self {
            _ if n == 1 => 1.0,
            Self::Rectangular => 1.0,
            Self::Hann => cosines(i, &[0.5, -0.5]),
            Self::Hamming => cosines(i, &[0.54, -0.46]),
            Self::Blackman => cosines(i, &[0.42, -0.5, 0.08]),
            Self::Kaiser { beta } => {
                let (beta, x) = (f64::from(beta), 2.0 * i as f64 / last - 1.0);
                bessel(beta * (1.0 - x * x).max(0.0).sqrt()) / bessel(beta)
            }
        };
        (0..n).map(value).collect()
    }
}

/// The modified Bessel function of the first kind and order 0, by its series.
fn bessel(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..500 {
        term *= quarter / (f64::from(k) * f64::from(k));
        sum += term;
        if term < sum * 1e-18 {
            break;
        }
    }
    sum
}

/// Settings of [`stft`](TensorCommands::stft), [`istft`](TensorCommands::istft) and
/// [`spectrogram`](TensorCommands::spectrogram).
#[derive(Clone, Debug)]
pub struct StftSettings<'a> {
    /// Samples of a frame, which are also the points of its transform. 2,048 by default.
    pub frame: usize,
    /// Samples from one frame to the next. 512 by default.
    pub hop: usize,
    /// The window of a frame, as a periodic one. Hann by default.
    pub window: FrameWindow,
    /// Samples of the window, at the centre of the frame. The whole frame by default.
    pub window_length: Option<usize>,
    /// A window of your own instead: floats `[window_length]`.
    pub custom_window: Option<TensorOperand<'a>>,
    /// How the signal is continued by half a frame on both sides, so that frame `i` is centred at sample `i · hop`. `None`
    /// continues it not at all. Zeros by default.
    pub center: Option<PadMode>,
}

impl Default for StftSettings<'_> {
    fn default() -> Self {
        Self {
            frame: 2048,
            hop: 512,
            window: FrameWindow::default(),
            window_length: None,
            custom_window: None,
            center: Some(PadMode::Constant(0.0)),
        }
    }
}

/// Spectra of frames.
impl TensorCommands<'_, '_> {
    /// A window of `n` elements as `f32 [n]`. Spectra take periodic windows, filters take symmetric ones.
    #[doc(alias = "hann_window")]
    #[doc(alias = "hamming_window")]
    #[doc(alias = "blackman_window")]
    #[doc(alias = "kaiser_window")]
    #[track_caller]
    pub fn window(&self, window: FrameWindow, n: usize, periodic: bool) -> OpResult<TensorValue<'_>> {
        const OP: &str = "window";
        let rec = &mut self.recorder();
        rec.check_table(OP, n, 1)?;
        check_window(OP, window)?;
        let backend = rec.ops.support.backend;
        let node = rec.begin(backend, OP).constant(pack(&window.values(n, periodic)), Shape::from([n]), DType::F32);
        rec.value(backend, node)
    }

    /// The spectra of overlapping frames of `x […, samples]`: `[…, frames, frame / 2 + 1, 2]`, the last axis being real and
    /// imaginary part.
    ///
    /// The window is multiplied while the samples are read, and frames are not copied.
    #[track_caller]
    pub fn stft<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        settings: StftSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().stft_op("stft", x, settings, FourierOutput::Half)
    }

    /// The power of [`stft`](Self::stft), which is the squared magnitude: `[…, frames, frame / 2 + 1]`.
    #[track_caller]
    pub fn spectrogram<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        settings: StftSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().stft_op("spectrogram", x, settings, FourierOutput::Power)
    }

    /// The signal `[…, samples]` of the spectra `x […, frames, frame / 2 + 1, 2]` that [`stft`](Self::stft) made with the
    /// same settings.
    ///
    /// Frames are multiplied by the window again, added, and divided by the sum of the squared windows. Where that sum is 0,
    /// so is the signal. With `length`, the signal is cropped or continued with zeros.
    #[track_caller]
    pub fn istft<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        settings: StftSettings<'a>,
        length: impl Into<Option<usize>>,
    ) -> OpResult<TensorValue<'a>> {
        let (x, length) = (x.into(), length.into());
        self.recorder().istft_op("istft", x, settings, length)
    }

    /// Transforms of frames of `x [batch, samples]`, or `[batch, samples, 2]` if complex, with a window `[n]`.
    #[cfg(feature = "onnx")]
    #[track_caller]
    pub(crate) fn framed<'a>(
        &'a self,
        op: &'static str,
        x: impl Into<TensorOperand<'a>>,
        window: Option<TensorOperand<'a>>,
        [n, hop]: [usize; 2],
        (input, output): (FourierInput, FourierOutput),
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(op, x)?;
        let window = rec.optional_float_arg(op, window)?;
        let mut args = [x, window.unwrap_or(x)];
        rec.same_backend(op, &mut args)?;
        let shape = rec.shape_of_arg(x);
        rec.check_points(op, n)?;
        if window.is_some_and(|window| rec.shape_of_arg(window).elements() != n) {
            return Err(rec.shape_error(op, &args, format!("the window must have {n} elements")));
        }
        let frames = (shape[1] - n.min(shape[1])) / hop.max(1) + 1;
        let transform = Fourier { n, input, output, inverse: false, frames, hop, frame: n, window: window.is_some() };
        let window = window.map(|_| args[1].node);
        let node = rec.transform(x, x.node, window, [shape[0], shape[1]], transform)?;
        let node = rec.part(x).reshape(node, &Shape::from([shape[0], frames, transform.results(), 2]));
        rec.value(x.backend, node)
    }
}

fn check_window(op: &'static str, window: FrameWindow) -> OpResult<()> {
    match window {
        FrameWindow::Kaiser { beta } if !(0.0..=700.0).contains(&beta) => {
            Err(OpError::Argument { op, reason: format!("beta is {beta}; it must be 0 to 700") })
        }
        _ => Ok(()),
    }
}

impl<'a> Recorder<'a> {
    /// The window of frames as a node of `[frame]`, in the part of `x`. `None` if it is all ones.
    fn frame_window(
        &mut self,
        op: &'static str,
        x: Arg,
        custom: Option<Arg>,
        settings: &StftSettings,
    ) -> OpResult<Option<NodeId>> {
        let (frame, hop) = (settings.frame, settings.hop);
        let argument = |reason: String| OpError::Argument { op, reason };
        if hop == 0 {
            return Err(argument("the hop must be at least one sample".to_owned()));
        }
        self.check_points(op, frame)?;
        check_window(op, settings.window)?;
        let length = match custom {
            Some(custom) => self.shape_of_arg(custom).elements(),
            None => settings.window_length.unwrap_or(frame),
        };
        if custom.is_some_and(|custom| self.shape_of_arg(custom).rank() != 1) {
            return Err(self.shape_error(op, &[x, custom.unwrap_or(x)], "the window must have one axis"));
        }
        if length == 0 || length > frame || settings.window_length.is_some_and(|given| given != length) {
            return Err(argument(format!("the window has {length} samples, the frame {frame}")));
        }
        let before = (frame - length) / 2;
        let part = self.part(x);
        let Some(custom) = custom else {
            if settings.window == FrameWindow::Rectangular && length == frame {
                return Ok(None);
            }
            let mut values = vec![0.0; frame];
            values[before..before + length].copy_from_slice(&settings.window.values(length, true));
            return Ok(Some(part.constant(pack(&values), Shape::from([frame]), DType::F32)));
        };
        let custom = part.cast(custom.node, DType::F32);
        Ok(Some(part.padded(custom, 0, before, frame)))
    }

    pub(super) fn stft_op(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        settings: StftSettings<'_>,
        output: FourierOutput,
    ) -> OpResult<TensorValue<'a>> {
        let x = self.float_arg(op, x)?;
        let custom = self.optional_float_arg(op, settings.custom_window.clone())?;
        let mut args = [x, custom.unwrap_or(x)];
        let backend = self.same_backend(op, &mut args)?;
        let (x, custom) = (args[0], custom.map(|_| args[1]));
        let shape = self.shape_of_arg(x);
        let Some(&samples) = shape.last() else {
            return Err(self.shape_error(op, &[x], "it must have an axis of samples"));
        };
        let window = self.frame_window(op, x, custom, &settings)?;
        let StftSettings { frame, hop, center, .. } = settings;
        let side = if center.is_some() { frame / 2 } else { 0 };
        let length = samples + 2 * side;
        if length < frame || samples == 0 {
            return Err(self.shape_error(op, &[x], format!("{samples} samples are fewer than a frame of {frame}")));
        }
        let (mut node, last) = (x.node, shape.rank() - 1);
        match center {
            None => {}
            Some(PadMode::Constant(value)) => {
                let part = self.part(x);
                node = part.padded_with(node, last, side, length, value);
            }
            Some(mode) => {
                self.check_table(op, length, 1)?;
                let table: Vec<i32> =
                    (0..length as isize).map(|i| mode.position(i - side as isize, samples as isize) as i32).collect();
                node = self.part(x).gather_table(node, last, &table);
            }
        }
        let frames = (length - frame) / hop + 1;
        let transform = Fourier {
            n: frame,
            input: FourierInput::Real,
            output,
            inverse: false,
            frames,
            hop,
            frame,
            window: window.is_some(),
        };
        let lines = shape[..last].iter().product();
        let node = self.transform(x, node, window, [lines, length], transform)?;
        let pair = (output == FourierOutput::Half).then_some(2);
        let sizes = shape[..last].iter().copied().chain([frames, transform.results()]).chain(pair);
        let node = self.part(x).reshape(node, &Shape::new(sizes));
        self.value(backend, node)
    }

    fn istft_op(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        settings: StftSettings<'_>,
        length: Option<usize>,
    ) -> OpResult<TensorValue<'a>> {
        /// Frames that overlap at a sample.
        const MOST: usize = 64;
        let x = self.float_arg(op, x)?;
        let custom = self.optional_float_arg(op, settings.custom_window.clone())?;
        let mut args = [x, custom.unwrap_or(x)];
        let backend = self.same_backend(op, &mut args)?;
        let (x, custom) = (args[0], custom.map(|_| args[1]));
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let window = self.frame_window(op, x, custom, &settings)?;
        let StftSettings { frame: n, hop, center, .. } = settings;
        let bins = n / 2 + 1;
        let [lines @ .., frames, given, 2] = &shape[..] else {
            return Err(self.shape_error(op, &[x], "it must be […, frames, bins, 2]"));
        };
        let (lines, frames) = (Shape::new(lines.iter().copied()), *frames);
        if *given != bins || frames == 0 {
            return Err(self.shape_error(op, &[x], format!("a frame of {n} samples has {bins} bins")));
        }
        let overlap = n.div_ceil(hop);
        if overlap > MOST {
            let reason = format!("{overlap} frames overlap; at most {MOST} can");
            return Err(OpError::Argument { op, reason });
        }
        let count = lines.elements();
        let (input, output) = (FourierInput::Half, FourierOutput::Real);
        let transform = Fourier { n, input, output, inverse: true, frames: 1, hop: 0, frame: bins, window: false };
        let node = self.transform(x, x.node, None, [count * frames, bins], transform)?;
        let part = self.part(x);
        let wide = part.cast(node, DType::F32);
        let framed = Shape::from([count, frames, n]);
        let mut node = part.reshape(wide, &framed);
        let window = window.unwrap_or_else(|| part.full(1.0, &Shape::from([n]), DType::F32));
        node = part.binary_broadcast(BinaryOp::Mul, node, window);
        let sum = part.overlap_add(node, hop);
        let squares = part.binary(BinaryOp::Mul, window, window);
        let squares = part.broadcast(squares, &Shape::from([1, frames, n]));
        let weights = part.overlap_add(squares, hop);
        let is_covered = part.binary_number(BinaryOp::Gt, weights, 1e-11);
        let one = part.full(1.0, &part.shape(weights).clone(), DType::F32);
        let weights = part.select(is_covered, weights, one);
        let node = part.binary_broadcast(BinaryOp::Div, sum, weights);
        let all = (frames - 1) * hop + n;
        let side = if center.is_some() { n / 2 } else { 0 };
        let kept = length.unwrap_or(all.saturating_sub(2 * side));
        let there = kept.min(all - side.min(all));
        let node = part.slice(node, 1, side, there, 1);
        let node = part.padded(node, 1, 0, kept);
        let node = part.cast(node, dtype);
        let node = part.reshape(node, &Shape::new(lines.iter().copied().chain([kept])));
        self.value(backend, node)
    }
}

impl super::part::Part {
    /// An axis continued with zeros to `size`, after `before` zeros.
    pub(super) fn padded(&mut self, x: NodeId, axis: usize, before: usize, size: usize) -> NodeId {
        self.padded_with(x, axis, before, size, 0.0)
    }

    /// An axis continued with a number to `size`, after `before` of it.
    pub(super) fn padded_with(&mut self, x: NodeId, axis: usize, before: usize, size: usize, value: f64) -> NodeId {
        let (mut shape, dtype) = (self.shape(x).clone(), self.dtype(x));
        let count = shape[axis];
        if count == size {
            return x;
        }
        shape.dims_mut()[axis] = size;
        if !shape.is_addressable() {
            return self.full(value, &shape, dtype);
        }
        let place = Layout::contiguous(shape.clone()).slice(axis, before, count, 1);
        let op = Op::Assemble { places: Box::new([place]), fill: true };
        self.push(op, &[x], shape, dtype, &[crate::ir::scalar_bits(value, dtype)])
    }

    /// Adds frames `[lines, frames, n]` that are `hop` apart: `[lines, (frames − 1) · hop + n]`.
    fn overlap_add(&mut self, x: NodeId, hop: usize) -> NodeId {
        let (lines, frames, n) = (self.shape(x)[0], self.shape(x)[1], self.shape(x)[2]);
        // In blocks of a hop, block `m` of the sum is block `r` of frame `m − r`, for all blocks `r` of a frame. With empty
        // frames before and after, that is the sum of one view of the frames for each block.
        let blocks = n.div_ceil(hop);
        let x = self.padded(x, 2, 0, blocks * hop);
        let x = self.padded(x, 1, blocks - 1, frames + 2 * (blocks - 1));
        let count = frames + blocks - 1;
        let view = |part: &mut Self, r: usize| {
            let rows = part.slice(x, 1, blocks - 1 - r, count, 1);
            part.slice(rows, 2, r * hop, hop, 1)
        };
        let mut sum = view(self, 0);
        for r in 1..blocks {
            let next = view(self, r);
            sum = self.binary(BinaryOp::Add, sum, next);
        }
        let sum = self.reshape(sum, &Shape::from([lines, count * hop]));
        self.slice(sum, 1, 0, (frames - 1) * hop + n, 1)
    }
}

/// The response of a low-pass filter of `2 · half + 1` taps with a Kaiser window, scaled to sum 1. `cutoff` is a share of
/// the highest frequency.
pub(super) fn low_pass(half: usize, cutoff: f64, beta: f32) -> Vec<f64> {
    let window = FrameWindow::Kaiser { beta }.exact(2 * half + 1, false);
    let mut taps: Vec<f64> = window
        .into_iter()
        .enumerate()
        .map(|(i, w)| {
            let x = PI * cutoff * (i as f64 - half as f64);
            w * if x == 0.0 { 1.0 } else { x.sin() / x }
        })
        .collect();
    let sum: f64 = taps.iter().sum();
    taps.iter_mut().for_each(|tap| *tap /= sum);
    taps
}
