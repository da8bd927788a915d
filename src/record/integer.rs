//! Exact products and convolutions of bytes.
//!
//! They run on the kernels for floats, which are the fast ones on both backends. A float holds whole numbers up to 2²⁴
//! exactly, so every sum stays below that: long sums are cut, and the left side is split into its upper and lower four bits
//! where that makes them shorter.

use super::matmul::Form;
use super::{Arg, ConvSettings, OptionalOperand, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{BinaryOp, DType, NodeId, Shape, UnaryOp};

/// The largest magnitude of a byte minus its zero point.
const BYTE: usize = 255;
/// Products of two bytes whose sum is exact.
const WHOLE_TERMS: usize = (1 << 24) / (BYTE * BYTE);
/// Products of a byte and four bits, with their sign, whose sum is exact.
const SPLIT_TERMS: usize = (1 << 24) / (BYTE * 16);
/// The most parts that a sum is cut into.
const MOST_PARTS: usize = 256;

/// Products and convolutions of bytes with exact 32-bit sums.
impl TensorCommands<'_, '_> {
    /// The matrix product of `a − a_zero` and `b − b_zero` as `i32`. Both sides are i8 or u8.
    ///
    /// Zero points are integers that broadcast to their side. The product is exact: it does not round and does not
    /// saturate.
    #[doc(alias = "MatMulInteger")]
    #[track_caller]
    pub fn matmul_integer<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
        a_zero: impl OptionalOperand<'a>,
        b_zero: impl OptionalOperand<'a>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "matmul_integer";
        let (sides, zeros) = ([a.into(), b.into()], [a_zero.optional(), b_zero.optional()]);
        let rec = &mut self.recorder();
        let [a, b] = rec.centred_bytes(OP, sides, zeros, |_, zero, _| zero)?;
        let k = rec.shape_of_arg(a).last().copied().unwrap_or(0);
        let form = Form::PLAIN;
        // Also for its errors.
        let whole = rec.matmul_args(OP, a, b, form, None)?;
        if k <= WHOLE_TERMS {
            let node = rec.part(a).cast(whole, DType::I32);
            return rec.value(a.backend, node);
        }
        let parts = rec.parts_of(OP, k, SPLIT_TERMS)?;
        let (last, rows) = (rec.shape_of_arg(a).rank() - 1, rec.shape_of_arg(b).rank().saturating_sub(2));
        let mut sum = None;
        for (start, count) in parts {
            let part = rec.part(a);
            let right = Arg { node: part.slice(b.node, rows, start, count, 1), ..b };
            let left = part.slice(a.node, last, start, count, 1);
            for (left, factor) in part.split_bits(left) {
                let product = rec.matmul_args(OP, Arg { node: left, ..a }, right, form, None)?;
                sum = Some(rec.add_scaled(a, sum, product, factor));
            }
        }
        rec.value(a.backend, sum.unwrap_or(whole))
    }

    /// Like [`conv1d`](Self::conv1d) of `x − x_zero` and `weight − weight_zero`, as exact `i32` sums. Both are i8 or u8.
    ///
    /// Zero points are integers. That of `x` broadcasts to it. That of the weight is one number, or `[out]`.
    #[doc(alias = "ConvInteger")]
    #[track_caller]
    pub fn conv_integer1d<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl Into<TensorOperand<'a>>,
        x_zero: impl OptionalOperand<'a>,
        weight_zero: impl OptionalOperand<'a>,
        settings: ConvSettings<1>,
    ) -> OpResult<TensorValue<'a>> {
        let (sides, zeros) = ([x.into(), weight.into()], [x_zero.optional(), weight_zero.optional()]);
        self.recorder().conv_integer("conv_integer1d", sides, zeros, settings)
    }

    /// Like [`conv_integer1d`](Self::conv_integer1d), over `[n, c, h, w]`.
    #[track_caller]
    pub fn conv_integer2d<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl Into<TensorOperand<'a>>,
        x_zero: impl OptionalOperand<'a>,
        weight_zero: impl OptionalOperand<'a>,
        settings: ConvSettings<2>,
    ) -> OpResult<TensorValue<'a>> {
        let (sides, zeros) = ([x.into(), weight.into()], [x_zero.optional(), weight_zero.optional()]);
        self.recorder().conv_integer("conv_integer2d", sides, zeros, settings)
    }

    /// Like [`conv_integer1d`](Self::conv_integer1d), over `[n, c, d, h, w]`.
    #[track_caller]
    pub fn conv_integer3d<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl Into<TensorOperand<'a>>,
        x_zero: impl OptionalOperand<'a>,
        weight_zero: impl OptionalOperand<'a>,
        settings: ConvSettings<3>,
    ) -> OpResult<TensorValue<'a>> {
        let (sides, zeros) = ([x.into(), weight.into()], [x_zero.optional(), weight_zero.optional()]);
        self.recorder().conv_integer("conv_integer3d", sides, zeros, settings)
    }
}

impl super::Part {
    /// Whole numbers as `16 · upper + lower`, with what each part is multiplied by. The lower one is 0 to 15, the upper
    /// one −16 to 15.
    fn split_bits(&mut self, x: NodeId) -> [(NodeId, f64); 2] {
        let upper = self.binary_number(BinaryOp::Mul, x, 1.0 / 16.0);
        let upper = self.unary(UnaryOp::Floor, upper);
        let above = self.binary_number(BinaryOp::Mul, upper, 16.0);
        let lower = self.binary(BinaryOp::Sub, x, above);
        [(upper, 16.0), (lower, 1.0)]
    }
}

impl<'a> Recorder<'a> {
    /// Two operands of bytes minus their zero points, as floats. `lay_out` gives a zero point the shape that broadcasts.
    fn centred_bytes(
        &mut self,
        op: &'static str,
        sides: [TensorOperand<'_>; 2],
        zeros: [Option<TensorOperand<'_>>; 2],
        lay_out: impl Fn(&mut Self, Arg, usize) -> Arg,
    ) -> OpResult<[Arg; 2]> {
        let [a, b] = sides;
        let sides = [self.arg(op, a)?, self.arg(op, b)?];
        for side in sides {
            if !matches!(self.dtype_of_arg(side), DType::I8 | DType::U8) {
                return Err(self.type_error(op, &[side], "this op is for i8 and u8; cast first"));
            }
        }
        let mut args = [sides[0], sides[1], sides[0], sides[1]];
        let mut is_given = [false; 2];
        for (i, zero) in zeros.into_iter().enumerate() {
            if let Some(zero) = zero {
                (args[2 + i], is_given[i]) = (self.index_arg(op, zero)?, true);
            }
        }
        self.same_backend(op, &mut args)?;
        let [a, b, ..] = args;
        let mut centred = [a, b];
        for (i, side) in centred.iter_mut().enumerate() {
            let shape = self.shape_of_arg(*side);
            let bytes = *side;
            side.node = self.part(bytes).cast(bytes.node, DType::F32);
            if !is_given[i] {
                continue;
            }
            let zero = lay_out(self, args[2 + i], i);
            let zero = Arg { node: self.part(zero).cast(zero.node, DType::F32), ..zero };
            let zero = self.broadcast_arg(op, zero, &shape)?;
            side.node = self.part(bytes).binary(BinaryOp::Sub, side.node, zero);
        }
        Ok(centred)
    }

    /// `terms` in parts of at most `longest`, as starts and counts.
    fn parts_of(&self, op: &'static str, terms: usize, longest: usize) -> OpResult<Vec<(usize, usize)>> {
        if terms.div_ceil(longest) > MOST_PARTS {
            return Err(OpError::Argument { op, reason: format!("sums of {terms} products are too long") });
        }
        Ok((0..terms).step_by(longest).map(|start| (start, longest.min(terms - start))).collect())
    }

    /// `sum + factor · floats`, as integers.
    fn add_scaled(&mut self, like: Arg, sum: Option<NodeId>, floats: NodeId, factor: f64) -> NodeId {
        let part = self.part(like);
        let mut node = part.cast(floats, DType::I32);
        if factor != 1.0 {
            node = part.binary_number(BinaryOp::Mul, node, factor);
        }
        match sum {
            Some(sum) => part.binary(BinaryOp::Add, sum, node),
            None => node,
        }
    }

    fn conv_integer<const N: usize>(
        &mut self,
        op: &'static str,
        sides: [TensorOperand<'_>; 2],
        zeros: [Option<TensorOperand<'_>>; 2],
        settings: ConvSettings<N>,
    ) -> OpResult<TensorValue<'a>> {
        let [x, weight] = self.centred_bytes(op, sides, zeros, |rec, zero, side| {
            // One for each output channel, the first axis of the weight.
            match rec.shape_of_arg(zero)[..] {
                [out] if side == 1 => {
                    let shape = Shape::new([out].into_iter().chain(core::iter::repeat_n(1, N + 1)));
                    Arg { node: rec.part(zero).reshape(zero.node, &shape), ..zero }
                }
                _ => zero,
            }
        })?;
        let backend = x.backend;
        let run = |rec: &mut Self, x: NodeId, weight: NodeId| {
            let operands = [x, weight].map(|node| TensorOperand::Value(rec.small_value(backend, node)));
            let [x, weight] = operands;
            rec.conv_op(op, x, weight, None, settings).map(|value| value.node)
        };
        // Also for its errors.
        let whole = run(self, x.node, weight.node)?;
        let of_weight = self.shape_of_arg(weight);
        let (channels, window) = (of_weight[1], of_weight[2..].iter().product::<usize>());
        if channels.saturating_mul(window) <= WHOLE_TERMS {
            let node = self.part(x).cast(whole, DType::I32);
            return self.value(backend, node);
        }
        if window > SPLIT_TERMS {
            return Err(OpError::Argument { op, reason: format!("windows of {window} elements are too large") });
        }
        let of_x = self.shape_of_arg(x);
        let groups = settings.groups;
        let grouped = Shape::new([of_x[0], groups, channels].into_iter().chain(of_x[2..].iter().copied()));
        let mut sum = None;
        for (start, count) in self.parts_of(op, channels, SPLIT_TERMS / window)? {
            let part = self.part(x);
            let right = part.slice(weight.node, 1, start, count, 1);
            let left = part.reshape(x.node, &grouped);
            let left = part.slice(left, 2, start, count, 1);
            let flat = Shape::new([of_x[0], groups * count].into_iter().chain(of_x[2..].iter().copied()));
            let left = part.reshape(left, &flat);
            for (left, factor) in part.split_bits(left) {
                let sums = run(self, left, right)?;
                sum = Some(self.add_scaled(x, sum, sums, factor));
            }
        }
        self.value(backend, sum.unwrap_or(whole))
    }
}
