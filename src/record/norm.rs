//! Softmax and normalisations. The kernels work on rows; other axes are brought to the end by views.

use super::{Arg, OptionalOperand, Part, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{BinaryOp, DType, NodeId, NormKind, Op, ReduceKind, Shape, UnaryOp};

/// The smallest norm that is divided by.
pub(super) const TINY: f32 = 1e-12;

impl Part {
    /// Normalises the last axis. Weight and bias have the size of that axis.
    pub(super) fn row_norm(
        &mut self,
        kind: NormKind,
        x: NodeId,
        weight: Option<NodeId>,
        bias: Option<NodeId>,
        eps: f32,
    ) -> NodeId {
        let (shape, dtype) = (self.shape(x).clone(), self.dtype(x));
        let op = Op::RowNorm { kind, weight: weight.is_some(), bias: bias.is_some() };
        let mut inputs = [x; 3];
        let mut count = 1;
        for input in [weight, bias].into_iter().flatten() {
            inputs[count] = input;
            count += 1;
        }
        self.push(op, &inputs[..count], shape, dtype, &[eps.to_bits()])
    }

    /// `x · weight + bias` for parameters `[c]` of the channels of `x [n, c, …]`.
    fn per_channel(&mut self, mut x: NodeId, weight: Option<NodeId>, bias: Option<NodeId>) -> NodeId {
        let dtype = self.dtype(x);
        for (op, parameter) in [(BinaryOp::Mul, weight), (BinaryOp::Add, bias)] {
            if let Some(parameter) = parameter {
                let parameter = self.channels(parameter, x);
                let parameter = self.cast(parameter, dtype);
                x = self.binary_broadcast(op, x, parameter);
            }
        }
        x
    }

    /// A parameter `[c]` with a shape that broadcasts over `x [n, c, …]`. A number stays as it is.
    fn channels(&mut self, parameter: NodeId, x: NodeId) -> NodeId {
        let [c] = self.shape(parameter)[..] else { return parameter };
        let rank = self.shape(x).rank();
        self.reshape(parameter, &Shape::new((1..rank).map(|i| if i == 1 { c } else { 1 })))
    }
}

/// Softmax and normalisations. Weights and biases are optional floats. Their element type may differ from the
/// operand's.
impl TensorCommands<'_, '_> {
    /// `eˣ / Σ eˣ` over an axis. The maximum is subtracted first, so that nothing overflows.
    #[track_caller]
    pub fn softmax<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().softmax_op("softmax", x, axis.into(), false)
    }

    /// The logarithm of [`softmax`](Self::softmax), computed without rounding the softmax.
    #[track_caller]
    pub fn log_softmax<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().softmax_op("log_softmax", x, axis.into(), true)
    }

    /// `(x − mean) / √(variance + eps) · weight + bias` over `axis` and all axes after it.
    #[track_caller]
    pub fn layer_norm<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl OptionalOperand<'a>,
        bias: impl OptionalOperand<'a>,
        axis: impl Into<TensorAxis>,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        let (x, weight, bias) = (x.into(), weight.optional(), bias.optional());
        self.recorder().tail_norm("layer_norm", NormKind::Layer, x, weight, bias, axis.into(), eps)
    }

    /// `x / √(mean of squares + eps) · weight` over `axis` and all axes after it.
    #[track_caller]
    pub fn rms_norm<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl OptionalOperand<'a>,
        axis: impl Into<TensorAxis>,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        let (x, weight) = (x.into(), weight.optional());
        self.recorder().tail_norm("rms_norm", NormKind::Rms, x, weight, None, axis.into(), eps)
    }

    /// Divides by the Euclidean norm over an axis. Zeros stay zeros.
    #[doc(alias = "normalize")]
    #[track_caller]
    pub fn l2_normalize<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "l2_normalize";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        let axis = rec.axis(OP, x, axis.into())?;
        let node = rec.part(x).l2_normalize(x.node, axis);
        rec.value(x.backend, node)
    }

    /// Divides by the `p`-norm over an axis. `p` is 1 or 2. Zeros stay zeros.
    #[doc(alias = "normalize")]
    #[track_caller]
    pub fn lp_normalize<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        p: u32,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "lp_normalize";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        let axis = rec.axis(OP, x, axis.into())?;
        let dtype = rec.dtype_of_arg(x);
        let part = rec.part(x);
        let node = match p {
            1 => {
                let magnitudes = part.unary(UnaryOp::Abs, x.node);
                let norm = part.reduce(ReduceKind::Sum, magnitudes, &[axis], true, DType::F32);
                let norm = part.binary_number(BinaryOp::Max, norm, f64::from(TINY));
                let wide = part.cast(x.node, DType::F32);
                let node = part.binary_broadcast(BinaryOp::Div, wide, norm);
                part.cast(node, dtype)
            }
            2 => part.l2_normalize(x.node, axis),
            _ => return Err(OpError::Argument { op: OP, reason: format!("p must be 1 or 2, not {p}") }),
        };
        rec.value(x.backend, node)
    }

    /// `(x − mean) / √(variance + eps) · weight + bias` with parameters `[c]` for the channels of `x [n, c, …]`.
    #[track_caller]
    pub fn batch_norm<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        mean: impl Into<TensorOperand<'a>>,
        variance: impl Into<TensorOperand<'a>>,
        weight: impl OptionalOperand<'a>,
        bias: impl OptionalOperand<'a>,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "batch_norm";
        let (x, mean, variance, weight, bias) =
            (x.into(), mean.into(), variance.into(), weight.optional(), bias.optional());
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        let given = [Some(mean), Some(variance), weight, bias];
        let (x, parameters) = rec.with_parameters(OP, x, given)?;
        let [mean, variance, weight, bias] = rec.channel_parameters(OP, x, parameters)?;
        let dtype = rec.dtype_of_arg(x);
        let part = rec.part(x);
        let (Some(mean), Some(variance)) = (mean, variance) else { return rec.value(x.backend, x.node) };
        let mean = part.channels(mean, x.node);
        let variance = part.channels(variance, x.node);
        let (mean, variance) = (part.cast(mean, DType::F32), part.cast(variance, DType::F32));
        let wide = part.cast(x.node, DType::F32);
        let centred = part.binary_broadcast(BinaryOp::Sub, wide, mean);
        let variance = part.binary_number(BinaryOp::Add, variance, f64::from(eps));
        let scale = part.unary(UnaryOp::Rsqrt, variance);
        let normed = part.binary_broadcast(BinaryOp::Mul, centred, scale);
        let node = part.per_channel(normed, weight, bias);
        let node = part.cast(node, dtype);
        rec.value(x.backend, node)
    }

    /// Layer norm over each of `groups` groups of channels of `x [n, c, …]`, then `· weight + bias` for each channel.
    #[track_caller]
    pub fn group_norm<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        groups: usize,
        weight: impl OptionalOperand<'a>,
        bias: impl OptionalOperand<'a>,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        let (x, weight, bias) = (x.into(), weight.optional(), bias.optional());
        self.recorder().channel_norm("group_norm", x, Some(groups), weight, bias, eps)
    }

    /// Layer norm over each channel of each sample of `x [n, c, …]`, then `· weight + bias` for each channel.
    #[track_caller]
    pub fn instance_norm<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl OptionalOperand<'a>,
        bias: impl OptionalOperand<'a>,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        let (x, weight, bias) = (x.into(), weight.optional(), bias.optional());
        self.recorder().channel_norm("instance_norm", x, None, weight, bias, eps)
    }
}

impl<'a> Recorder<'a> {
    fn softmax_op(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        axis: TensorAxis,
        log: bool,
    ) -> OpResult<TensorValue<'a>> {
        let x = self.float_arg(op, x)?;
        let axis = self.axis(op, x, axis)?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let node = self.part(x).push(Op::Softmax { axis, log }, &[x.node], shape, dtype, &[]);
        self.value(x.backend, node)
    }

    /// Normalises `axis` and all axes after it as one.
    #[expect(clippy::too_many_arguments, reason = "two public ops share it")]
    fn tail_norm(
        &mut self,
        op: &'static str,
        kind: NormKind,
        x: TensorOperand<'_>,
        weight: Option<TensorOperand<'_>>,
        bias: Option<TensorOperand<'_>>,
        axis: TensorAxis,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        let x = self.float_arg(op, x)?;
        let (x, [weight, bias]) = self.with_parameters(op, x, [weight, bias])?;
        let axis = self.axis(op, x, axis)?;
        let shape = self.shape_of_arg(x);
        let tail = Shape::from(&shape[axis..]);
        let flat = Shape::from([tail.elements()]);
        let mut parameters = [None; 2];
        for (node, parameter) in parameters.iter_mut().zip([weight, bias]) {
            if let Some(parameter) = parameter {
                let stretched = self.broadcast_arg(op, parameter, &tail)?;
                *node = Some(self.part(x).reshape(stretched, &flat));
            }
        }
        let rows = Shape::new(shape[..axis].iter().copied().chain([flat[0]]));
        let part = self.part(x);
        let source = part.reshape(x.node, &rows);
        let normed = part.row_norm(kind, source, parameters[0], parameters[1], eps);
        let node = part.reshape(normed, &shape);
        self.value(x.backend, node)
    }

    /// Looks up optional float parameters and moves them to the operand's backend.
    fn with_parameters<const N: usize>(
        &mut self,
        op: &'static str,
        x: Arg,
        parameters: [Option<TensorOperand<'_>>; N],
    ) -> Result<(Arg, [Option<Arg>; N]), OpError> {
        let mut args = [None; N];
        for (arg, parameter) in args.iter_mut().zip(parameters) {
            if let Some(parameter) = self.optional_float_arg(op, parameter)? {
                let mut pair = [x, parameter];
                self.same_backend(op, &mut pair)?;
                *arg = Some(pair[1]);
            }
        }
        Ok((x, args))
    }

    /// Checks that parameters of `x [n, c, …]` are `[c]` or numbers, and returns their nodes.
    fn channel_parameters<const N: usize>(
        &self,
        op: &'static str,
        x: Arg,
        parameters: [Option<Arg>; N],
    ) -> Result<[Option<NodeId>; N], OpError> {
        let [_, c, ..] = self.part_ref(x).shape(x.node)[..] else {
            return Err(self.shape_error(op, &[x], "it must be [n, c, …]"));
        };
        for parameter in parameters.iter().flatten() {
            if parameter.number.is_none() && self.part_ref(*parameter).shape(parameter.node)[..] != [c] {
                return Err(self.shape_error(op, &[x, *parameter], format!("the parameters must be [{c}]")));
            }
        }
        Ok(parameters.map(|parameter| parameter.map(|p| p.node)))
    }

    /// Normalises groups of channels. Without a number of groups, each channel is a group.
    fn channel_norm(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        groups: Option<usize>,
        weight: Option<TensorOperand<'_>>,
        bias: Option<TensorOperand<'_>>,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        let x = self.float_arg(op, x)?;
        let (x, parameters) = self.with_parameters(op, x, [weight, bias])?;
        let [weight, bias] = self.channel_parameters(op, x, parameters)?;
        let shape = self.shape_of_arg(x);
        let (n, c) = (shape[0], shape[1]);
        let groups = groups.unwrap_or(c);
        if (groups == 0 || !c.is_multiple_of(groups)) && c > 0 {
            return Err(self.shape_error(op, &[x], format!("{c} channels do not divide into {groups} groups")));
        }
        let inner = shape[2..].iter().product::<usize>() * c.checked_div(groups).unwrap_or(0);
        let part = self.part(x);
        let rows = part.reshape(x.node, &Shape::from([n, groups, inner]));
        let normed = part.row_norm(NormKind::Layer, rows, None, None, eps);
        let node = part.reshape(normed, &shape);
        let node = part.per_channel(node, weight, bias);
        self.value(x.backend, node)
    }
}

impl Part {
    /// Divides rows along an axis by their Euclidean norm.
    fn l2_normalize(&mut self, x: NodeId, axis: usize) -> NodeId {
        let rows = self.axis_to_end(x, axis);
        let normed = self.row_norm(NormKind::L2, rows, None, None, TINY);
        self.axis_from_end(normed, axis)
    }
}
