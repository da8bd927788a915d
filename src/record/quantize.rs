//! Quantisation: numbers in blocks with a scale (the types of [`DType::QUANTIZED`]), and `i8` with a scale per tensor
//! or channel.
//!
//! Quantised operands are taken by the ops here, products with the weight on the right (`matmul_nt`, `linear`), row
//! lookups (`gather`, `embedding`), `cast`, `reshape` and `slice` of whole rows, `value`, and the effects.
//! [`Recorder::arg`] rejects them for all other ops.

use super::{Arg, OptionalOperand, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{BinaryOp, DType, InnerOp, Layout, NodeId, Op, ReduceKind, Shape, UnaryOp};
use crate::tensor::check_blocks;

/// Quantisation.
impl TensorCommands<'_, '_> {
    /// Converts to a type of [`DType::QUANTIZED`], in blocks along the last axis.
    ///
    /// The size of the last axis must be a multiple of the block. Rounds as GGUF's reference does. A block with a NaN
    /// or an infinity becomes NaN; other blocks are not affected.
    #[track_caller]
    pub fn quantize<'a>(&'a self, x: impl Into<TensorOperand<'a>>, dtype: DType) -> OpResult<TensorValue<'a>> {
        const OP: &str = "quantize";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        rec.quantize_arg(OP, x, dtype)
    }

    /// Converts quantised numbers to `f32`.
    #[track_caller]
    pub fn dequantize<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        const OP: &str = "dequantize";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.any_arg(OP, x)?;
        if !rec.dtype_of_arg(x).is_quantized() {
            return Err(rec.type_error(OP, &[x], "it is not quantised"));
        }
        let node = rec.part(x).cast(x.node, DType::F32);
        rec.value(x.backend, node)
    }

    /// Converts to `i8` with one scale: `round(x / scale)`, halves to even, where `scale = max|x| / 127`.
    ///
    /// Returns the bytes, with the shape of `x`, and the scale, with as many axes of size 1. If all elements are zero,
    /// the scale is 0. A NaN or an infinity makes the scale NaN or infinite and the bytes 0.
    #[track_caller]
    pub fn quantize_i8<'a>(&'a self, x: impl Into<TensorOperand<'a>>) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg("quantize_i8", x)?;
        rec.quantize_bytes(x, None)
    }

    /// [`quantize_i8`](Self::quantize_i8) with one scale for each index of `axis`. The scales keep the other axes with
    /// size 1.
    #[track_caller]
    pub fn quantize_i8_channels<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        const OP: &str = "quantize_i8_channels";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        let axis = rec.axis(OP, x, axis.into())?;
        rec.quantize_bytes(x, Some(axis))
    }

    /// `values · scale` as `f32`. The scale broadcasts to the shape of the values.
    #[track_caller]
    pub fn dequantize_i8<'a>(
        &'a self,
        values: impl Into<TensorOperand<'a>>,
        scale: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "dequantize_i8";
        let (values, scale) = (values.into(), scale.into());
        let rec = &mut self.recorder();
        let (values, scale) = (rec.bytes_arg(OP, values)?, rec.float_arg(OP, scale)?);
        let mut args = [values, scale];
        let backend = rec.same_backend(OP, &mut args)?;
        let [values, scale] = args;
        let shape = rec.shape_of_arg(values);
        let scale = Arg { node: rec.part(scale).cast(scale.node, DType::F32), ..scale };
        let scale = rec.broadcast_arg(OP, scale, &shape)?;
        let part = rec.part(values);
        let wide = part.cast(values.node, DType::F32);
        let node = part.binary(BinaryOp::Mul, wide, scale);
        rec.value(backend, node)
    }

    /// `x · (weight · scale)ᵀ + bias` with `weight` of `i8 [out, in]`, one scale or one for each row, and `bias [out]`.
    /// The kernel widens the weight.
    #[track_caller]
    pub fn linear_i8<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl Into<TensorOperand<'a>>,
        scale: impl Into<TensorOperand<'a>>,
        bias: impl OptionalOperand<'a>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "linear_i8";
        let (x, weight, scale, bias) = (x.into(), weight.into(), scale.into(), bias.optional());
        let rec = &mut self.recorder();
        let (x, weight, scale) = (rec.float_arg(OP, x)?, rec.bytes_arg(OP, weight)?, rec.float_arg(OP, scale)?);
        let bias = rec.optional_float_arg(OP, bias)?;
        let mut args = [x, weight, scale, bias.unwrap_or(x)];
        let backend = rec.same_backend(OP, &mut args)?;
        let [x, mut weight, scale, other] = args;
        let bias = bias.map(|_| other);
        let (_, n, k) = rec.weight_shapes(OP, x, weight)?;
        let scales = rec.part_ref(scale).shape(scale.node).elements();
        if scales != 1 && scales != n {
            return Err(rec.shape_error(OP, &[weight, scale], format!("there must be one scale, or {n}")));
        }
        if !k.is_multiple_of(4) {
            // Rows that do not start at a word are widened first.
            weight.node = rec.part(weight).cast(weight.node, DType::F32);
        }
        let per_row = if scales == 1 { Shape::from([1]) } else { Shape::from([n]) };
        let part = rec.part(scale);
        let scale = part.cast(scale.node, DType::F32);
        let scale = part.reshape(scale, &per_row);
        let node = rec.weight_product(OP, x, weight, Some(scale), bias)?;
        rec.value(backend, node)
    }
}

impl<'a> Recorder<'a> {
    /// An operand of `i8`.
    fn bytes_arg(&mut self, op: &'static str, operand: TensorOperand<'_>) -> OpResult<Arg> {
        let arg = self.arg(op, operand)?;
        match self.dtype_of_arg(arg) {
            DType::I8 => Ok(arg),
            _ => Err(self.type_error(op, &[arg], "it must be i8")),
        }
    }

    /// The checks and the node of `quantize`.
    pub(super) fn quantize_arg(&mut self, op: &'static str, x: Arg, dtype: DType) -> OpResult<TensorValue<'a>> {
        let Some(block) = dtype.block() else {
            return Err(OpError::Argument { op, reason: format!("{dtype} is not a quantised type") });
        };
        if !dtype.can_be_made() {
            let reason = format!("{dtype} values can only be loaded from a file");
            return Err(OpError::Argument { op, reason });
        }
        let shape = self.shape_of_arg(x);
        if check_blocks(dtype, &shape).is_err() {
            let reason = format!("the last axis is not a multiple of {block}, the block of {dtype}");
            return Err(self.shape_error(op, &[x], reason));
        }
        let node = self.part(x).push(Op::Quantize, &[x.node], shape, dtype, &[]);
        self.value(x.backend, node)
    }

    fn quantize_bytes(&mut self, x: Arg, channel: Option<usize>) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        let part = self.part(x);
        let wide = part.cast(x.node, DType::F32);
        let shape = part.shape(wide).clone();
        let axes: Vec<usize> = (0..shape.rank()).filter(|&axis| Some(axis) != channel).collect();
        let scale = if shape.elements() == 0 {
            let one = |(axis, &n): (usize, &usize)| if Some(axis) == channel { n } else { 1 };
            part.full(0.0, &Shape::new(shape.iter().enumerate().map(one)), DType::F32)
        } else {
            let magnitudes = part.unary(UnaryOp::Abs, wide);
            let largest = part.reduce(ReduceKind::Max, magnitudes, &axes, true, DType::F32);
            part.binary_number(BinaryOp::Div, largest, 127.0)
        };
        // Zeros are divided by 1.
        let zero = part.full(0.0, &part.shape(scale).clone(), DType::F32);
        let one = part.full(1.0, &part.shape(scale).clone(), DType::F32);
        let is_zero = part.binary(BinaryOp::Eq, scale, zero);
        let divisor = part.select(is_zero, one, scale);
        let steps = part.binary_broadcast(BinaryOp::Div, wide, divisor);
        let steps = part.unary(UnaryOp::Round, steps);
        let bits = [(-127.0f32).to_bits(), 127.0f32.to_bits()];
        let steps = part.unary_with(UnaryOp::Clamp, steps, &bits);
        let values = part.cast(steps, DType::I8);
        Ok((self.value(x.backend, values)?, self.value(x.backend, scale)?))
    }

    /// Checks `x […, k]` against a weight `[n, k]`. Returns the shape of the product, `n` and `k`.
    fn weight_shapes(&self, op: &'static str, x: Arg, weight: Arg) -> OpResult<(Shape, usize, usize)> {
        let (of_x, of_weight) = (self.part_ref(x).shape(x.node), self.part_ref(weight).shape(weight.node));
        let [n, k] = of_weight[..] else {
            return Err(self.shape_error(op, &[weight], "a quantised weight must be [n, k]"));
        };
        match of_x[..] {
            [ref rows @ .., inner] if inner == k => Ok((Shape::new(rows.iter().copied().chain([n])), n, k)),
            [.., inner] => Err(self.shape_error(op, &[x, weight], format!("inner sizes {inner} and {k} differ"))),
            [] => Err(self.shape_error(op, &[x, weight], "both sides need at least one axis")),
        }
    }

    /// `x · weightᵀ · scale + bias` for a weight that the kernel widens. Scale and bias are applied before any reshape,
    /// so that they can fuse with the kernel.
    pub(super) fn weight_product(
        &mut self,
        op: &'static str,
        x: Arg,
        weight: Arg,
        scale: Option<NodeId>,
        bias: Option<Arg>,
    ) -> OpResult<NodeId> {
        if !self.dtype_of_arg(x).is_float() {
            return Err(self.type_error(op, &[x, weight], "a quantised weight multiplies floats; cast first"));
        }
        let (out, n, k) = self.weight_shapes(op, x, weight)?;
        let rows = out[..out.rank() - 1].iter().fold(1usize, |rows, &size| rows.saturating_mul(size));
        let part = self.part(x);
        let mut node = if k == 0 {
            part.full(0.0, &Shape::from([rows, n]), DType::F32)
        } else {
            let left = part.reshape(x.node, &Shape::from([rows, k]));
            if part.dtype(weight.node) == DType::F32 {
                let right = part.transpose(weight.node);
                let product = Op::MatMul { inner: InnerOp::Product };
                part.push(product, &[left, right], Shape::from([rows, n]), DType::F32, &[])
            } else {
                part.push(Op::QuantMatMul, &[left, weight.node], Shape::from([rows, n]), DType::F32, &[])
            }
        };
        if let Some(scale) = scale {
            node = part.binary_broadcast(BinaryOp::Mul, node, scale);
        }
        if let Some(bias) = bias {
            let bias = part.cast(bias.node, DType::F32);
            node = part.binary_broadcast(BinaryOp::Add, node, bias);
        }
        Ok(part.reshape(node, &out))
    }

    /// Fails if the operand is quantised and the view of it is not a run of whole rows.
    pub(super) fn block_view(&self, op: &'static str, x: Arg, view: impl FnOnce(Layout) -> Layout) -> OpResult<()> {
        let dtype = self.dtype_of_arg(x);
        match dtype.block() {
            Some(block) if !view(Layout::contiguous(self.shape_of_arg(x))).is_run_of_blocks(block) => {
                let reason = format!("a view of {dtype} must be a run of whole rows; dequantize first");
                Err(self.type_error(op, &[x], reason))
            }
            _ => Ok(()),
        }
    }

    /// Fails for a quantised type, which new values cannot have.
    pub(super) fn plain_type(&self, op: &'static str, dtype: DType) -> OpResult<()> {
        match dtype.is_quantized() {
            true => Err(OpError::Argument {
                op,
                reason: format!("{dtype} values cannot be made directly; quantize an f32 value"),
            }),
            false => Ok(()),
        }
    }
}
