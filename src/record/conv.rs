//! Convolutions over one, two or three spatial axes. The kernels have three; missing ones are added with size 1.

use super::{Arg, OptionalOperand, Part, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{Backend, DType, NodeId, Op, Shape, Window};

/// Padding around an input of `N` spatial axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding<const N: usize> {
    /// The number of positions before and after each axis.
    Explicit([[usize; 2]; N]),
    /// As many as give the output size ⌈input / stride⌉. An odd one is added after the axis (ONNX `SAME_UPPER`).
    Same,
    /// As many as give the output size ⌈input / stride⌉. An odd one is added before the axis (ONNX `SAME_LOWER`).
    SameLower,
    /// No padding.
    Valid,
}

impl<const N: usize> Default for Padding<N> {
    fn default() -> Self {
        Self::Explicit([[0; 2]; N])
    }
}

/// Settings of a convolution over `N` spatial axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvSettings<const N: usize> {
    /// Distance between windows. 1 by default.
    pub stride: [usize; N],
    /// Zeros around the input. None by default.
    pub padding: Padding<N>,
    /// Distance between the elements of a window. 1 by default.
    pub dilation: [usize; N],
    /// Number of independent groups of channels. 1 by default. A depthwise convolution has as many groups as channels.
    pub groups: usize,
}

impl<const N: usize> Default for ConvSettings<N> {
    fn default() -> Self {
        Self { stride: [1; N], padding: Padding::default(), dilation: [1; N], groups: 1 }
    }
}

/// Settings of a transposed convolution over `N` spatial axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvTransposeSettings<const N: usize> {
    /// Output positions for each input position. 1 by default.
    pub stride: [usize; N],
    /// Positions removed from the output. None by default. `Same` gives the output size input · stride.
    pub padding: Padding<N>,
    /// Distance between the elements of a window. 1 by default.
    pub dilation: [usize; N],
    /// Number of independent groups of channels. 1 by default.
    pub groups: usize,
    /// Positions added to the end of each output axis. None by default.
    pub output_padding: [usize; N],
    /// The spatial sizes of the output. If given, the padding is computed from them.
    pub output_shape: Option<[usize; N]>,
}

impl<const N: usize> Default for ConvTransposeSettings<N> {
    fn default() -> Self {
        Self {
            stride: [1; N],
            padding: Padding::default(),
            dilation: [1; N],
            groups: 1,
            output_padding: [0; N],
            output_shape: None,
        }
    }
}

/// One spatial axis: input size, window, step and spacing.
#[derive(Clone, Copy)]
pub(super) struct SpatialAxis {
    pub input: usize,
    pub size: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl SpatialAxis {
    /// The number of positions that a window covers.
    fn span(self) -> usize {
        (self.size.max(1) - 1).saturating_mul(self.dilation).saturating_add(1)
    }

    /// Padding before and after, and the output size, of a sliding window. `None` if no window fits. With `ceil`, the
    /// last window may extend beyond the input, but not start in the padding after it.
    pub(super) fn slide<const N: usize>(
        self,
        axis: usize,
        padding: Padding<N>,
        ceil: bool,
    ) -> Option<(usize, usize, usize)> {
        let Self { input, stride, .. } = self;
        let (before, after) = match padding {
            Padding::Explicit(pads) => (pads[axis][0], pads[axis][1]),
            Padding::Valid => (0, 0),
            Padding::Same | Padding::SameLower => {
                let out = input.div_ceil(stride);
                let total = (out.max(1) - 1).saturating_mul(stride).saturating_add(self.span()).saturating_sub(input);
                let less = total / 2;
                let pads = if padding == Padding::Same { (less, total - less) } else { (total - less, less) };
                return Some((pads.0, pads.1, out));
            }
        };
        let room = input.checked_add(before)?.checked_add(after)?.checked_sub(self.span())?;
        let mut out = if ceil { room.div_ceil(stride) } else { room / stride } + 1;
        if ceil && (out - 1) * stride >= input + before {
            out -= 1;
        }
        Some((before, after, out))
    }

    /// Positions removed before and after, and the output size, of a transposed convolution. `None` if nothing is left.
    fn spread<const N: usize>(self, axis: usize, settings: &ConvTransposeSettings<N>) -> Option<(usize, usize, usize)> {
        let whole = self.stride.checked_mul(self.input.max(1) - 1)?.checked_add(self.span())?;
        let whole = whole.checked_add(settings.output_padding[axis])?;
        let same = matches!(settings.padding, Padding::Same | Padding::SameLower);
        let wanted = settings.output_shape.map(|shape| shape[axis]).or(if same {
            Some(self.input.checked_mul(self.stride)?)
        } else {
            None
        });
        let (before, after) = match (wanted, settings.padding) {
            (Some(wanted), padding) => {
                let total = whole.saturating_sub(wanted);
                let less = total / 2;
                let (before, after) =
                    if padding == Padding::Same { (less, total - less) } else { (total - less, less) };
                return Some((before, after, wanted));
            }
            (None, Padding::Explicit(pads)) => (pads[axis][0], pads[axis][1]),
            (None, _) => (0, 0),
        };
        Some((before, after, whole.checked_sub(before)?.checked_sub(after)?))
    }
}

impl Part {
    /// `[a, b, …N]` as `[a, b, d, h, w]`.
    pub(super) fn lift(&mut self, x: NodeId) -> NodeId {
        let shape = self.shape(x);
        let lifted = lifted(shape);
        self.reshape(x, &lifted)
    }
}

/// Inserts axes of size 1 after the second, up to five axes.
pub(super) fn lifted(shape: &Shape) -> Shape {
    let ones = 5usize.saturating_sub(shape.rank());
    Shape::new(shape[..2].iter().copied().chain(core::iter::repeat_n(1, ones)).chain(shape[2..].iter().copied()))
}

/// The window of axes of size 1.
pub(super) const UNIT: Window =
    Window { size: [1; 3], stride: [1; 3], dilation: [1; 3], before: [0; 3], after: [0; 3] };

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident $transposed:ident $n:literal;)*) => {
        /// Convolutions of `x [n, c, …]` with `weight [out, c / groups, …]` and an optional bias `[out]`. Transposed
        /// ones take `weight [c, out / groups, …]`.
        impl TensorCommands<'_, '_> {
            $(convolutions!(@one $(#[$doc])* $name $transposed $n);)*
        }
    };
    (@one $(#[$doc:meta])* $name:ident slide $n:literal) => {
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a>(
            &'a self,
            x: impl Into<TensorOperand<'a>>,
            weight: impl Into<TensorOperand<'a>>,
            bias: impl OptionalOperand<'a>,
            settings: ConvSettings<$n>,
        ) -> OpResult<TensorValue<'a>> {
            let (x, weight, bias) = (x.into(), weight.into(), bias.optional());
            self.recorder().conv_op(stringify!($name), x, weight, bias, settings)
        }
    };
    (@one $(#[$doc:meta])* $name:ident spread $n:literal) => {
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'a>(
            &'a self,
            x: impl Into<TensorOperand<'a>>,
            weight: impl Into<TensorOperand<'a>>,
            bias: impl OptionalOperand<'a>,
            settings: ConvTransposeSettings<$n>,
        ) -> OpResult<TensorValue<'a>> {
            let (x, weight, bias) = (x.into(), weight.into(), bias.optional());
            self.recorder().conv_transpose_op(stringify!($name), x, weight, bias, settings)
        }
    };
}

convolutions! {
    /// A convolution over `[n, c, w]`.
    conv1d slide 1;
    /// A convolution over `[n, c, h, w]`.
    conv2d slide 2;
    /// A convolution over `[n, c, d, h, w]`.
    conv3d slide 3;
    /// A transposed convolution over `[n, c, w]`.
    conv_transpose1d spread 1;
    /// A transposed convolution over `[n, c, h, w]`.
    conv_transpose2d spread 2;
    /// A transposed convolution over `[n, c, d, h, w]`.
    conv_transpose3d spread 3;
}

/// Operands of a convolution, looked up and checked except for their channels.
struct ConvArgs {
    x: Arg,
    weight: Arg,
    bias: Option<Arg>,
    backend: Backend,
    of_x: Shape,
    of_weight: Shape,
    dtype: DType,
}

impl<'a> Recorder<'a> {
    fn conv_args<const N: usize>(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        weight: TensorOperand<'_>,
        bias: Option<TensorOperand<'_>>,
        steps: [[usize; N]; 2],
        groups: usize,
    ) -> OpResult<ConvArgs> {
        let (x, weight) = (self.float_arg(op, x)?, self.float_arg(op, weight)?);
        let bias = self.optional_float_arg(op, bias)?;
        let mut args = [x, weight, bias.unwrap_or(x)];
        let backend = self.same_backend(op, &mut args)?;
        let [x, weight, other] = args;
        let (of_x, of_weight) = (self.shape_of_arg(x), self.shape_of_arg(weight));
        if of_x.rank() != N + 2 || of_weight.rank() != N + 2 {
            return Err(self.shape_error(op, &[x, weight], format!("both must have {} axes", N + 2)));
        }
        if of_weight[2..].contains(&0) {
            return Err(self.shape_error(op, &[weight], "the window is empty"));
        }
        if groups == 0 || steps.iter().flatten().any(|&step| step == 0) {
            let reason = "groups, strides and dilations must be at least 1".to_owned();
            return Err(OpError::Argument { op, reason });
        }
        let dtype = self.dtype_of_arg(x);
        Ok(ConvArgs { x, weight, bias: bias.map(|_| other), backend, of_x, of_weight, dtype })
    }

    pub(super) fn conv_op<const N: usize>(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        weight: TensorOperand<'_>,
        bias: Option<TensorOperand<'_>>,
        settings: ConvSettings<N>,
    ) -> OpResult<TensorValue<'a>> {
        let ConvSettings { stride, padding, dilation, groups } = settings;
        let args = self.conv_args(op, x, weight, bias, [stride, dilation], groups)?;
        let (out, c) = (args.of_weight[0], args.of_x[1]);
        if args.of_weight[1].checked_mul(groups) != Some(c) || !out.is_multiple_of(groups) {
            let reason = format!("{c} channels in {groups} groups do not fit the weight");
            return Err(self.shape_error(op, &[args.x, args.weight], reason));
        }
        let mut window = UNIT;
        let mut shape = Shape::from([args.of_x[0], out]);
        for axis in 0..N {
            let (input, size) = (args.of_x[axis + 2], args.of_weight[axis + 2]);
            let spatial = SpatialAxis { input, size, stride: stride[axis], dilation: dilation[axis] };
            let Some((before, after, count)) = spatial.slide(axis, padding, false) else {
                return Err(self.window_error(op, &[args.x, args.weight], axis + 2));
            };
            self.set_window(op, &mut window, axis + 3 - N, (spatial, count), [before, after])?;
            shape.dims_mut().push(count);
        }
        let bias = args.bias.is_some();
        self.push_conv(op, args, Op::Conv { window, groups, bias }, out, shape)
    }

    fn conv_transpose_op<const N: usize>(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        weight: TensorOperand<'_>,
        bias: Option<TensorOperand<'_>>,
        settings: ConvTransposeSettings<N>,
    ) -> OpResult<TensorValue<'a>> {
        let ConvTransposeSettings { stride, dilation, groups, .. } = settings;
        let args = self.conv_args(op, x, weight, bias, [stride, dilation], groups)?;
        let (out, c) = (args.of_weight[1].saturating_mul(groups), args.of_x[1]);
        if args.of_weight[0] != c || !c.is_multiple_of(groups) {
            let reason = format!("{c} channels in {groups} groups do not fit the weight");
            return Err(self.shape_error(op, &[args.x, args.weight], reason));
        }
        let mut window = UNIT;
        let mut shape = Shape::from([args.of_x[0], out]);
        for axis in 0..N {
            let (input, size) = (args.of_x[axis + 2], args.of_weight[axis + 2]);
            let spatial = SpatialAxis { input, size, stride: stride[axis], dilation: dilation[axis] };
            let Some((before, after, count)) = spatial.spread(axis, &settings) else {
                return Err(self.window_error(op, &[args.x, args.weight], axis + 2));
            };
            self.set_window(op, &mut window, axis + 3 - N, (spatial, input), [before, after])?;
            shape.dims_mut().push(count);
        }
        let bias = args.bias.is_some();
        self.push_conv(op, args, Op::ConvTranspose { window, groups, bias }, out, shape)
    }

    /// Checks the bias and appends the node. Output padding only changes the shape of the node.
    fn push_conv(
        &mut self,
        op: &'static str,
        args: ConvArgs,
        node: Op,
        out: usize,
        shape: Shape,
    ) -> OpResult<TensorValue<'a>> {
        let ConvArgs { x, weight, bias, backend, dtype, ref of_x, ref of_weight } = args;
        if let Some(bias) = bias
            && self.part_ref(bias).shape(bias.node)[..] != [out]
        {
            return Err(self.shape_error(op, &[weight, bias], format!("the bias must be [{out}]")));
        }
        let part = self.part(x);
        if of_x.elements() == 0 || of_weight.elements() == 0 {
            // Nothing but padding: every sum is empty, and the bias is left.
            let node = match bias {
                Some(bias) => {
                    let of_channels = Shape::new((0..shape.rank()).map(|axis| if axis == 1 { out } else { 1 }));
                    let bias = part.reshape(bias.node, &of_channels);
                    let bias = part.cast(bias, dtype);
                    part.broadcast(bias, &shape)
                }
                None => part.full(0.0, &shape, dtype),
            };
            return self.value(backend, node);
        }
        let inputs = [part.lift(x.node), part.lift(weight.node), bias.map_or(x.node, |bias| bias.node)];
        let inputs = &inputs[..2 + usize::from(bias.is_some())];
        let node = part.push(node, inputs, lifted(&shape), dtype, &[]);
        let node = part.reshape(node, &shape);
        self.value(backend, node)
    }

    /// Sets one of the three axes of a window that is applied at `places` positions, `stride` apart. Positions of kernels
    /// are 32-bit, so none may be beyond that, not even in the padding.
    pub(super) fn set_window(
        &self,
        op: &'static str,
        window: &mut Window,
        axis: usize,
        (spatial, places): (SpatialAxis, usize),
        [before, after]: [usize; 2],
    ) -> OpResult<()> {
        let SpatialAxis { input, size, .. } = spatial;
        // A step that is never taken may be of any size.
        let stride = if places > 1 { spatial.stride } else { 1 };
        let dilation = if size > 1 { spatial.dilation } else { 1 };
        let padded = input.saturating_add(before).saturating_add(after);
        let taken =
            places.saturating_sub(1).saturating_mul(stride).saturating_add(SpatialAxis { dilation, ..spatial }.span());
        if padded.max(taken) > i32::MAX as usize {
            let reason = format!(
                "a window of {size} elements, {stride} and {dilation} apart, with padding {before} and {after} reaches too far"
            );
            return Err(OpError::Argument { op, reason });
        }
        window.size[axis] = size;
        (window.stride[axis], window.dilation[axis]) = (stride, dilation);
        (window.before[axis], window.after[axis]) = (before, after);
        Ok(())
    }

    /// The error for a window that does not fit.
    pub(super) fn window_error(&self, op: &'static str, args: &[Arg], axis: usize) -> OpError {
        self.shape_error(op, args, format!("the window is larger than the padded axis {axis}"))
    }
}
