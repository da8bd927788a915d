//! Matrix products, and the similarities and distances that are computed with them.

use super::{Arg, LAST, OptionalOperand, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpResult;
use crate::ir::{BinaryOp, DType, InnerOp, NodeId, NormKind, Op, ReduceKind, Shape, UnaryOp};

/// How a product uses its operands.
#[derive(Clone, Copy)]
pub(super) struct Form {
    transpose_a: bool,
    transpose_b: bool,
    inner: InnerOp,
}

impl Form {
    /// `a · b`.
    pub(super) const PLAIN: Self = Self::new(false, false);

    const fn new(transpose_a: bool, transpose_b: bool) -> Self {
        Self { transpose_a, transpose_b, inner: InnerOp::Product }
    }
}

/// Matrix products.
///
/// The last two axes are matrices, the axes before them are batch axes that broadcast. A vector is a row on the left
/// and a column on the right, and its axis is dropped from the result. Floats give floats, integers give 32-bit
/// integers. The right side of [`matmul_nt`](Self::matmul_nt) and [`linear`](Self::linear) may be a quantised weight
/// `[n, k]`, which gives `f32`.
impl TensorCommands<'_, '_> {
    /// `a · b`: `[…, m, k]` and `[…, k, n]`.
    #[doc(alias = "mm")]
    #[doc(alias = "bmm")]
    #[track_caller]
    pub fn matmul<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        let (a, b) = (a.into(), b.into());
        self.recorder().matmul_op("matmul", a, b, Form::new(false, false))
    }

    /// `a · bᵀ`: `[…, m, k]` and `[…, n, k]`.
    #[track_caller]
    pub fn matmul_nt<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        let (a, b) = (a.into(), b.into());
        self.recorder().matmul_op("matmul_nt", a, b, Form::new(false, true))
    }

    /// `aᵀ · b`: `[…, k, m]` and `[…, k, n]`.
    #[track_caller]
    pub fn matmul_tn<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        let (a, b) = (a.into(), b.into());
        self.recorder().matmul_op("matmul_tn", a, b, Form::new(true, false))
    }

    /// `aᵀ · bᵀ`: `[…, k, m]` and `[…, n, k]`.
    #[track_caller]
    pub fn matmul_tt<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        let (a, b) = (a.into(), b.into());
        self.recorder().matmul_op("matmul_tt", a, b, Form::new(true, true))
    }

    /// `x · weightᵀ + bias` with `weight [out, in]` and `bias [out]`.
    #[track_caller]
    pub fn linear<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl Into<TensorOperand<'a>>,
        bias: impl OptionalOperand<'a>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "linear";
        let (x, weight, bias) = (x.into(), weight.into(), bias.optional());
        let rec = &mut self.recorder();
        let (x, weight) = (rec.float_arg(OP, x)?, rec.any_arg(OP, weight)?);
        let of_weight = rec.dtype_of_arg(weight);
        if !of_weight.is_float() && !of_weight.is_quantized() {
            return Err(rec.type_error(OP, &[weight], "the weight must be floats or quantised; cast first"));
        }
        let bias = rec.optional_float_arg(OP, bias)?;
        let mut args = [x, weight, bias.unwrap_or(x)];
        let backend = rec.same_backend(OP, &mut args)?;
        let [x, weight, other] = args;
        let bias = bias.map(|_| other);
        let shape = rec.shape_of_arg(weight);
        let [out, _] = shape[..] else {
            return Err(rec.shape_error(OP, &[weight], "the weight must be [out, in]"));
        };
        if let Some(bias) = bias
            && bias.number.is_none()
            && rec.part_ref(bias).shape(bias.node)[..] != [out]
        {
            return Err(rec.shape_error(OP, &[weight, bias], format!("the bias must be [{out}]")));
        }
        let node = rec.matmul_args(OP, x, weight, Form::new(false, true), bias)?;
        rec.value(backend, node)
    }

    /// The sum of products over the last axis. Shapes broadcast.
    #[doc(alias = "vecdot")]
    #[doc(alias = "inner")]
    #[track_caller]
    pub fn dot<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "dot";
        let (a, b) = (a.into(), b.into());
        let rec = &mut self.recorder();
        let mut args = [rec.arg(OP, a)?, rec.arg(OP, b)?];
        for arg in &mut args {
            // Narrow integers would soon wrap. `bool` stays as it is, for the error.
            let dtype = rec.dtype_of_arg(*arg);
            if dtype.is_integer() {
                arg.node = rec.part(*arg).cast(arg.node, dtype.wide());
            }
        }
        let product = rec.binary_args(OP, BinaryOp::Mul, args[0], args[1])?;
        let axis = rec.axis(OP, product, LAST)?;
        let dtype = rec.dtype_of_arg(product);
        let node = rec.part(product).reduce(ReduceKind::Sum, product.node, &[axis], false, dtype);
        rec.value(product.backend, node)
    }

    /// The cosine of the angle between vectors along an axis: `a · b / (max(‖a‖, eps) · max(‖b‖, eps))`. Shapes
    /// broadcast.
    #[track_caller]
    pub fn cosine_similarity<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        eps: f32,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "cosine_similarity";
        let (a, b) = (a.into(), b.into());
        let rec = &mut self.recorder();
        let (a, b) = (rec.float_arg(OP, a)?, rec.float_arg(OP, b)?);
        let product = rec.binary_args(OP, BinaryOp::Mul, a, b)?;
        let axis = rec.axis(OP, product, axis.into())?;
        let part = rec.part(product);
        let mut node = part.reduce(ReduceKind::Sum, product.node, &[axis], false, DType::F32);
        // The product's inputs are the operands on one backend, of one type and shape.
        let sides = part.graph.node(product.node).inputs.clone();
        let dtype = part.dtype(product.node);
        for side in sides {
            let squares = part.reduce(ReduceKind::SumSquares, side, &[axis], false, DType::F32);
            let norm = part.unary(UnaryOp::Sqrt, squares);
            let norm = part.binary_number(BinaryOp::Max, norm, f64::from(eps));
            node = part.binary(BinaryOp::Div, node, norm);
        }
        let node = part.cast(node, dtype);
        rec.value(product.backend, node)
    }

    /// The cosine of the angle between each row of `a […, n, d]` and each row of `b […, m, d]`: `[…, n, m]`.
    #[track_caller]
    pub fn pairwise_cosine<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "pairwise_cosine";
        let (a, b) = (a.into(), b.into());
        let rec = &mut self.recorder();
        let (a, b) = rec.rows(OP, a, b)?;
        let mut sides = [a, b];
        for side in &mut sides {
            side.node = rec.part(a).row_norm(NormKind::L2, side.node, None, None, super::norm::TINY);
        }
        let node = rec.matmul_args(OP, sides[0], sides[1], Form::new(false, true), None)?;
        rec.value(a.backend, node)
    }

    /// The Euclidean distance between each row of `a […, n, d]` and each row of `b […, m, d]`: `[…, n, m]`.
    #[doc(alias = "cdist")]
    #[track_caller]
    pub fn pairwise_l2<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "pairwise_l2";
        let (a, b) = (a.into(), b.into());
        let rec = &mut self.recorder();
        let (a, b) = rec.rows(OP, a, b)?;
        let form = Form { inner: InnerOp::SquaredDifference, ..Form::new(false, true) };
        let dtype = rec.product_type(OP, a, b)?;
        let squares = rec.matmul_args(OP, a, b, form, None)?;
        let part = rec.part(a);
        let node = part.unary(UnaryOp::Sqrt, squares);
        let node = part.cast(node, dtype);
        rec.value(a.backend, node)
    }

    /// The Euclidean distance between vectors along an axis. Shapes broadcast.
    #[doc(alias = "pairwise_distance")]
    #[track_caller]
    pub fn l2_distance<'a>(
        &'a self,
        a: impl Into<TensorOperand<'a>>,
        b: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "l2_distance";
        let (a, b) = (a.into(), b.into());
        let rec = &mut self.recorder();
        let (a, b) = (rec.float_arg(OP, a)?, rec.float_arg(OP, b)?);
        let difference = rec.binary_args(OP, BinaryOp::Sub, a, b)?;
        let axis = rec.axis(OP, difference, axis.into())?;
        let part = rec.part(difference);
        let squares = part.reduce(ReduceKind::SumSquares, difference.node, &[axis], false, DType::F32);
        let node = part.unary(UnaryOp::Sqrt, squares);
        let node = part.cast(node, part.dtype(difference.node));
        rec.value(difference.backend, node)
    }
}

impl<'a> Recorder<'a> {
    fn matmul_op(
        &mut self,
        op: &'static str,
        a: TensorOperand<'_>,
        b: TensorOperand<'_>,
        form: Form,
    ) -> OpResult<TensorValue<'a>> {
        let a = self.arg(op, a)?;
        let blocks_fit = form.transpose_b && !form.transpose_a;
        let b = if blocks_fit { self.any_arg(op, b)? } else { self.arg(op, b)? };
        let mut args = [a, b];
        let backend = self.same_backend(op, &mut args)?;
        let node = self.matmul_args(op, args[0], args[1], form, None)?;
        self.value(backend, node)
    }

    /// Checks and appends a product. The bias `[n]` is added before any reshape, so that it can fuse with the kernel.
    pub(super) fn matmul_args(
        &mut self,
        op: &'static str,
        a: Arg,
        b: Arg,
        form: Form,
        bias: Option<Arg>,
    ) -> OpResult<NodeId> {
        if self.dtype_of_arg(b).is_quantized() {
            return self.weight_product(op, a, b, None, bias);
        }
        let dtype = match form.inner {
            InnerOp::Product => self.product_type(op, a, b)?,
            // The squares of f16 elements may overflow f16.
            InnerOp::SquaredDifference => DType::F32,
        };
        let (of_a, of_b) = (self.shape_of_arg(a), self.shape_of_arg(b));
        let matrix = |shape: &Shape, transposed: bool| match shape[..] {
            [.., rows, columns] if transposed => (columns, rows),
            [.., rows, columns] => (rows, columns),
            _ => (1, 1),
        };
        let (m, k) = if let [k] = of_a[..] { (1, k) } else { matrix(&of_a, form.transpose_a) };
        let (k_b, n) = if let [k] = of_b[..] { (k, 1) } else { matrix(&of_b, form.transpose_b) };
        if of_a.rank() == 0 || of_b.rank() == 0 {
            return Err(self.shape_error(op, &[a, b], "both sides need at least one axis"));
        }
        if k != k_b {
            return Err(self.shape_error(op, &[a, b], format!("inner sizes {k} and {k_b} differ")));
        }
        let batch_of = |shape: &Shape| Shape::from(&shape[..shape.rank().saturating_sub(2)]);
        let Some(batch) = batch_of(&of_a).broadcast(&batch_of(&of_b)) else {
            let reason = format!("batch axes {} and {} do not broadcast", batch_of(&of_a), batch_of(&of_b));
            return Err(self.shape_error(op, &[a, b], reason));
        };
        let with = |batch: &Shape, sizes: &[usize]| Shape::new(batch.iter().chain(sizes).copied());
        let mut out = batch.clone();
        out.dims_mut().extend((of_a.rank() > 1).then_some(m).into_iter().chain((of_b.rank() > 1).then_some(n)));

        let part = self.part(a);
        let mut node = if k == 0 {
            part.full(0.0, &out, dtype)
        } else {
            let mut sides = [a.node, b.node];
            if !dtype.is_float() {
                sides = sides.map(|side| part.cast(side, dtype));
            }
            let [mut x, mut y] = sides;
            if of_a.rank() == 1 {
                x = part.reshape(x, &Shape::from([1, k]));
            } else if form.transpose_a {
                x = part.transpose(x);
            }
            if of_b.rank() == 1 {
                y = part.reshape(y, &Shape::from([k, 1]));
            } else if form.transpose_b {
                y = part.transpose(y);
            }
            // All batches share the right side, so their rows form one taller matrix.
            let rows = if part.shape(y).rank() == 2 && !form.transpose_a {
                let rows = Shape::from([batch.elements().saturating_mul(m), k]);
                x = part.reshape(x, &rows);
                Shape::from([rows[0], n])
            } else {
                x = part.broadcast(x, &with(&batch, &[m, k]));
                y = part.broadcast(y, &with(&batch, &[k, n]));
                with(&batch, &[m, n])
            };
            part.push(Op::MatMul { inner: form.inner }, &[x, y], rows, dtype, &[])
        };
        if let Some(bias) = bias {
            let bias = part.cast(bias.node, dtype);
            node = part.binary_broadcast(BinaryOp::Add, node, bias);
        }
        Ok(part.reshape(node, &out))
    }

    /// The element type of a product. Float types can be mixed, and so can integers that fit one 32-bit type.
    fn product_type(&self, op: &'static str, a: Arg, b: Arg) -> OpResult<DType> {
        let (of_a, of_b) = (self.dtype_of_arg(a), self.dtype_of_arg(b));
        match (of_a, of_b) {
            (DType::F16, DType::F16) | (DType::BF16, DType::BF16) => Ok(of_a),
            _ if of_a.is_float() && of_b.is_float() => Ok(DType::F32),
            _ if of_a == of_b && of_a.is_integer() => Ok(of_a.wide()),
            (DType::I8, DType::U8) | (DType::U8, DType::I8) => Ok(DType::I32),
            (DType::I8 | DType::U8, DType::I32) | (DType::I32, DType::I8 | DType::U8) => Ok(DType::I32),
            (DType::U8, DType::U32) | (DType::U32, DType::U8) => Ok(DType::U32),
            _ => Err(self.type_error(op, &[a, b], "these types have no product; cast one")),
        }
    }

    /// Two operands with float rows of the same length, on one backend.
    fn rows(&mut self, op: &'static str, a: TensorOperand<'_>, b: TensorOperand<'_>) -> OpResult<(Arg, Arg)> {
        let mut args = [self.float_arg(op, a)?, self.float_arg(op, b)?];
        self.same_backend(op, &mut args)?;
        let [a, b] = args;
        let (of_a, of_b) = (self.part_ref(a).shape(a.node), self.part_ref(b).shape(b.node));
        match (&of_a[..], &of_b[..]) {
            ([.., _, d], [.., _, e]) if d == e => Ok((a, b)),
            ([.., _, d], [.., _, e]) => Err(self.shape_error(op, &[a, b], format!("row sizes {d} and {e} differ"))),
            _ => Err(self.shape_error(op, &[a, b], "both need at least two axes")),
        }
    }
}
