//! Products of matrices, and the similarities and distances made of them.

use super::{Arg, Axis, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::ir::{BinaryOp, DType, InnerOp, NodeId, NormKind, Op, ReduceKind, Shape, UnaryOp};

/// What a product does with its operands.
#[derive(Clone, Copy)]
struct Form {
    transpose_a: bool,
    transpose_b: bool,
    inner: InnerOp,
}

impl Form {
    const fn new(transpose_a: bool, transpose_b: bool) -> Self {
        Self { transpose_a, transpose_b, inner: InnerOp::Product }
    }
}

/// Matrix products. The last two axes are matrices, those before are batch axes that broadcast; a vector is a row on the left and a column
/// on the right, and its axis is dropped from the result. Floats give floats, integers 32-bit integers. The right side of
/// [`matmul_nt`](Self::matmul_nt) and [`linear`](Self::linear) may be a quantised weight `[n, k]`, which gives `f32`.
impl TensorCommands<'_, '_> {
    /// `[…, m, k] · […, k, n]`.
    #[track_caller]
    pub fn matmul(&mut self, a: impl Into<TensorOperand>, b: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        self.matmul_op("matmul", a.into(), b.into(), Form::new(false, false))
    }

    /// `a · bᵀ`: `[…, m, k]` and `[…, n, k]`.
    #[track_caller]
    pub fn matmul_nt(
        &mut self,
        a: impl Into<TensorOperand>,
        b: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        self.matmul_op("matmul_nt", a.into(), b.into(), Form::new(false, true))
    }

    /// `aᵀ · b`: `[…, k, m]` and `[…, k, n]`.
    #[track_caller]
    pub fn matmul_tn(
        &mut self,
        a: impl Into<TensorOperand>,
        b: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        self.matmul_op("matmul_tn", a.into(), b.into(), Form::new(true, false))
    }

    /// `aᵀ · bᵀ`: `[…, k, m]` and `[…, n, k]`.
    #[track_caller]
    pub fn matmul_tt(
        &mut self,
        a: impl Into<TensorOperand>,
        b: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        self.matmul_op("matmul_tt", a.into(), b.into(), Form::new(true, true))
    }

    /// `x · weightᵀ + bias` with `weight [out, in]` and `bias [out]`.
    #[track_caller]
    pub fn linear(
        &mut self,
        x: impl Into<TensorOperand>,
        weight: impl Into<TensorOperand>,
        bias: Option<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "linear";
        let (x, weight) = (self.float_arg(OP, x)?, self.any_arg(OP, weight)?);
        let of_weight = self.dtype_of_arg(weight);
        if !of_weight.is_float() && !of_weight.is_quantized() {
            return Err(self.type_error(OP, &[weight], "the weight must be f32, f16 or quantised; cast first"));
        }
        let bias = self.optional_float_arg(OP, bias)?;
        let mut args = [x, weight, bias.unwrap_or(x)];
        let backend = self.same_backend(OP, &mut args)?;
        let [x, weight, other] = args;
        let bias = bias.map(|_| other);
        let shape = self.shape_of_arg(weight);
        let [out, _] = shape[..] else {
            return Err(self.shape_error(OP, &[weight], "the weight must be [out, in]"));
        };
        if let Some(bias) = bias
            && bias.number.is_none()
            && self.part_ref(bias).shape(bias.node)[..] != [out]
        {
            return Err(self.shape_error(OP, &[weight, bias], format!("the bias must be [{out}]")));
        }
        let node = self.matmul_args(OP, x, weight, Form::new(false, true), bias)?;
        self.sized(OP, backend, node)
    }

    #[track_caller]
    fn matmul_op(
        &mut self,
        op: &'static str,
        a: TensorOperand,
        b: TensorOperand,
        form: Form,
    ) -> Result<TensorValue, OpError> {
        let a = self.arg(op, a)?;
        let blocks_fit = form.transpose_b && !form.transpose_a;
        let b = if blocks_fit { self.any_arg(op, b)? } else { self.arg(op, b)? };
        let mut args = [a, b];
        let backend = self.same_backend(op, &mut args)?;
        let node = self.matmul_args(op, args[0], args[1], form, None)?;
        self.sized(op, backend, node)
    }

    /// Checks and appends a product. The bias, of `[n]`, comes before any reshape, where it can join the kernel.
    fn matmul_args(
        &mut self,
        op: &'static str,
        a: Arg,
        b: Arg,
        form: Form,
        bias: Option<Arg>,
    ) -> Result<NodeId, OpError> {
        if self.dtype_of_arg(b).is_quantized() {
            return self.weight_product(op, a, b, None, bias);
        }
        let dtype = match form.inner {
            InnerOp::Product => self.product_type(op, a, b)?,
            // Squares of halves may overflow a half.
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
            return Err(self.shape_error(op, &[a, b], "a product needs at least one axis on each side"));
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
            // One matrix for all batches: rows of all batches make one taller matrix.
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

    /// The element type of a product: halves and floats may meet, as may integers that fit one 32-bit type.
    fn product_type(&self, op: &'static str, a: Arg, b: Arg) -> Result<DType, OpError> {
        let (of_a, of_b) = (self.dtype_of_arg(a), self.dtype_of_arg(b));
        match (of_a, of_b) {
            (DType::F16, DType::F16) => Ok(DType::F16),
            _ if of_a.is_float() && of_b.is_float() => Ok(DType::F32),
            _ if of_a == of_b && of_a.is_integer() => Ok(of_a.wide()),
            (DType::I8, DType::U8) | (DType::U8, DType::I8) => Ok(DType::I32),
            (DType::I8 | DType::U8, DType::I32) | (DType::I32, DType::I8 | DType::U8) => Ok(DType::I32),
            (DType::U8, DType::U32) | (DType::U32, DType::U8) => Ok(DType::U32),
            _ => Err(self.type_error(op, &[a, b], "these types have no product; cast one")),
        }
    }

    /// Sum of products over the last axis; shapes broadcast.
    #[track_caller]
    pub fn dot(&mut self, a: impl Into<TensorOperand>, b: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
        const OP: &str = "dot";
        let mut args = [self.arg(OP, a)?, self.arg(OP, b)?];
        for arg in &mut args {
            // Narrow integers would wrap at once; truth values stay what they are, for the error.
            let dtype = self.dtype_of_arg(*arg);
            if dtype.is_integer() {
                arg.node = self.part(*arg).cast(arg.node, dtype.wide());
            }
        }
        let product = self.binary_args(OP, BinaryOp::Mul, args[0], args[1])?;
        let axis = self.axis(OP, product, Axis::LAST)?;
        let dtype = self.dtype_of_arg(product);
        let node = self.part(product).reduce(ReduceKind::Sum, product.node, &[axis], false, dtype);
        Ok(self.value(product.backend, node))
    }

    /// `a · b / (max(‖a‖, eps) · max(‖b‖, eps))` over an axis; shapes broadcast.
    #[track_caller]
    pub fn cosine_similarity(
        &mut self,
        a: impl Into<TensorOperand>,
        b: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        eps: f32,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "cosine_similarity";
        let (a, b) = (self.float_arg(OP, a)?, self.float_arg(OP, b)?);
        let product = self.binary_args(OP, BinaryOp::Mul, a, b)?;
        let axis = self.axis(OP, product, axis.into())?;
        let part = self.part(product);
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
        Ok(self.value(product.backend, node))
    }

    /// The cosine of every row of `a […, n, d]` with every row of `b […, m, d]`: `[…, n, m]`.
    #[track_caller]
    pub fn pairwise_cosine(
        &mut self,
        a: impl Into<TensorOperand>,
        b: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "pairwise_cosine";
        let (a, b) = self.rows(OP, a.into(), b.into())?;
        let mut sides = [a, b];
        for side in &mut sides {
            side.node = self.part(a).row_norm(NormKind::L2, side.node, None, None, super::norm::TINY);
        }
        let node = self.matmul_args(OP, sides[0], sides[1], Form::new(false, true), None)?;
        self.sized(OP, a.backend, node)
    }

    /// The Euclidean distance of every row of `a […, n, d]` from every row of `b […, m, d]`: `[…, n, m]`.
    #[track_caller]
    pub fn pairwise_l2(
        &mut self,
        a: impl Into<TensorOperand>,
        b: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "pairwise_l2";
        let (a, b) = self.rows(OP, a.into(), b.into())?;
        let form = Form { inner: InnerOp::SquaredDifference, ..Form::new(false, true) };
        let dtype = self.product_type(OP, a, b)?;
        let squares = self.matmul_args(OP, a, b, form, None)?;
        let part = self.part(a);
        let node = part.unary(UnaryOp::Sqrt, squares);
        let node = part.cast(node, dtype);
        self.sized(OP, a.backend, node)
    }

    /// Two operands of float rows of one length, on one backend.
    #[track_caller]
    fn rows(&mut self, op: &'static str, a: TensorOperand, b: TensorOperand) -> Result<(Arg, Arg), OpError> {
        let mut args = [self.float_arg(op, a)?, self.float_arg(op, b)?];
        self.same_backend(op, &mut args)?;
        let [a, b] = args;
        let (of_a, of_b) = (self.part_ref(a).shape(a.node), self.part_ref(b).shape(b.node));
        match (&of_a[..], &of_b[..]) {
            ([.., _, d], [.., _, e]) if d == e => Ok((a, b)),
            ([.., _, d], [.., _, e]) => Err(self.shape_error(op, &[a, b], format!("row sizes {d} and {e} differ"))),
            _ => Err(self.shape_error(op, &[a, b], "both must have rows: two axes")),
        }
    }

    /// The Euclidean distance over an axis; shapes broadcast.
    #[track_caller]
    pub fn l2_distance(
        &mut self,
        a: impl Into<TensorOperand>,
        b: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "l2_distance";
        let (a, b) = (self.float_arg(OP, a)?, self.float_arg(OP, b)?);
        let difference = self.binary_args(OP, BinaryOp::Sub, a, b)?;
        let axis = self.axis(OP, difference, axis.into())?;
        let part = self.part(difference);
        let squares = part.reduce(ReduceKind::SumSquares, difference.node, &[axis], false, DType::F32);
        let node = part.unary(UnaryOp::Sqrt, squares);
        let node = part.cast(node, part.dtype(difference.node));
        Ok(self.value(difference.backend, node))
    }
}
