//! Ops that combine the elements of axes, and those that run along one.

use smallvec::SmallVec;

use super::{Arg, Axes, Axis, Part, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::ir::{BinaryOp, DType, NodeId, Op, ReduceKind, Shape, UnaryOp};

impl ReduceKind {
    /// What nothing reduces to.
    fn identity(self, dtype: DType) -> f64 {
        match self {
            Self::Sum | Self::SumSquares | Self::ArgMax { .. } | Self::ArgMin { .. } => 0.0,
            Self::Prod => 1.0,
            Self::Mean => f64::NAN,
            Self::Max if dtype == DType::Bool => 0.0,
            Self::Max => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        }
    }
}

impl Part {
    /// Over sorted axes, to `dtype`. Empty axes give the identity; no axes at all give `x` (its squares for a sum of squares).
    pub(super) fn reduce(
        &mut self,
        kind: ReduceKind,
        x: NodeId,
        axes: &[usize],
        keepdims: bool,
        dtype: DType,
    ) -> NodeId {
        let shape = self.shape(x).clone();
        let kept = || (0..shape.rank()).filter(|i| !axes.contains(i));
        let out = match keepdims {
            true => Shape::new(shape.iter().enumerate().map(|(i, &n)| if axes.contains(&i) { 1 } else { n })),
            false => Shape::new(kept().map(|i| shape[i])),
        };
        if axes.is_empty() {
            let x = self.cast(x, dtype);
            return if kind == ReduceKind::SumSquares { self.binary(BinaryOp::Mul, x, x) } else { x };
        }
        if axes.iter().any(|&axis| shape[axis] == 0) {
            return self.full(kind.identity(dtype), &out, dtype);
        }
        // The kernel takes neighbouring axes; others are brought together at the end.
        let neighbours = axes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let (x, axis) = if neighbours {
            (x, axes[0])
        } else {
            let order: SmallVec<[usize; 6]> = kept().chain(axes.iter().copied()).collect();
            (self.permute(x, &order), shape.rank() - axes.len())
        };
        let mut reduced = self.shape(x).clone();
        reduced.dims_mut()[axis..axis + axes.len()].fill(1);
        let node = self.push(Op::Reduce { kind, axis, count: axes.len() }, &[x], reduced, dtype, &[]);
        self.reshape(node, &out)
    }
}

/// Which element types a reduction takes.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Floats,
    Numbers,
    Truths,
    All,
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $kind:expr, $takes:ident;)*) => {
        /// Reductions over any axes. With `keepdims` the reduced axes stay, with size 1. Sums and products of integers are 32-bit.
        impl TensorCommands<'_, '_> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(
                &mut self,
                x: impl Into<TensorOperand>,
                axes: impl Into<Axes>,
                keepdims: bool,
            ) -> Result<TensorValue, OpError> {
                let (x, axes) = self.reduced(stringify!($name), x.into(), axes.into(), Takes::$takes)?;
                let dtype = result_type($kind, self.dtype_of_arg(x));
                let node = self.part(x).reduce($kind, x.node, &axes, keepdims, dtype);
                Ok(self.value(x.backend, node))
            })*
        }
    };
}

reductions! {
    /// Sum.
    sum = ReduceKind::Sum, Numbers;
    /// Arithmetic mean; of nothing, NaN.
    mean = ReduceKind::Mean, Floats;
    /// Largest element; of nothing, the lowest there is.
    max_of = ReduceKind::Max, All;
    /// Smallest element; of nothing, the highest there is.
    min_of = ReduceKind::Min, All;
    /// Product.
    prod = ReduceKind::Prod, Numbers;
    /// Sum of squares.
    sum_squares = ReduceKind::SumSquares, Numbers;
    /// Whether any element is true.
    any = ReduceKind::Max, Truths;
    /// Whether all elements are true.
    all = ReduceKind::Min, Truths;
}

/// What a reduction of a type gives: integers are summed in 32 bits, since narrow ones would wrap at once.
fn result_type(kind: ReduceKind, dtype: DType) -> DType {
    match kind {
        ReduceKind::Sum | ReduceKind::Prod | ReduceKind::SumSquares if !dtype.is_float() => dtype.wide(),
        _ => dtype,
    }
}

/// Reductions made of others, and ops along one axis.
impl TensorCommands<'_, '_> {
    /// Looks up what a reduction takes.
    #[track_caller]
    fn reduced(
        &mut self,
        op: &'static str,
        x: TensorOperand,
        axes: Axes,
        takes: Takes,
    ) -> Result<(Arg, SmallVec<[usize; 6]>), OpError> {
        let x = self.arg(op, x)?;
        let dtype = self.dtype_of_arg(x);
        let reason = match takes {
            Takes::Floats if !dtype.is_float() => "this op is for f32 and f16; cast first",
            Takes::Numbers if dtype == DType::Bool => "this op is for numbers; cast first",
            Takes::Truths if dtype != DType::Bool => "this op is for bool; compare or cast first",
            _ => return Ok((x, self.axes(op, x, axes)?.into_iter().collect())),
        };
        Err(self.type_error(op, &[x], reason))
    }

    /// Sum of magnitudes.
    #[track_caller]
    pub fn l1_norm(
        &mut self,
        x: impl Into<TensorOperand>,
        axes: impl Into<Axes>,
        keepdims: bool,
    ) -> Result<TensorValue, OpError> {
        let (x, axes) = self.reduced("l1_norm", x.into(), axes.into(), Takes::Numbers)?;
        let dtype = result_type(ReduceKind::Sum, self.dtype_of_arg(x));
        let part = self.part(x);
        let wide = part.cast(x.node, dtype);
        let magnitudes = part.unary(UnaryOp::Abs, wide);
        let node = part.reduce(ReduceKind::Sum, magnitudes, &axes, keepdims, dtype);
        Ok(self.value(x.backend, node))
    }

    /// Square root of the sum of squares.
    #[track_caller]
    pub fn l2_norm(
        &mut self,
        x: impl Into<TensorOperand>,
        axes: impl Into<Axes>,
        keepdims: bool,
    ) -> Result<TensorValue, OpError> {
        let (x, axes) = self.reduced("l2_norm", x.into(), axes.into(), Takes::Floats)?;
        let dtype = self.dtype_of_arg(x);
        let part = self.part(x);
        // In f32: the squares of halves may overflow a half.
        let squares = part.reduce(ReduceKind::SumSquares, x.node, &axes, keepdims, DType::F32);
        let norm = part.unary(UnaryOp::Sqrt, squares);
        let node = part.cast(norm, dtype);
        Ok(self.value(x.backend, node))
    }

    /// `ln Σ eˣ`, with the maximum taken out first; of nothing, −∞.
    #[track_caller]
    pub fn log_sum_exp(
        &mut self,
        x: impl Into<TensorOperand>,
        axes: impl Into<Axes>,
        keepdims: bool,
    ) -> Result<TensorValue, OpError> {
        let (x, axes) = self.reduced("log_sum_exp", x.into(), axes.into(), Takes::Floats)?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let part = self.part(x);
        let max = part.reduce(ReduceKind::Max, x.node, &axes, true, DType::F32);
        // An infinite maximum would make ∞ − ∞ of the elements equal to it.
        let of_max = part.shape(max).clone();
        let infinite = part.unary(UnaryOp::IsInf, max);
        let zero = part.full(0.0, &of_max, DType::F32);
        let max = part.select(infinite, zero, max);
        let wide = part.cast(x.node, DType::F32);
        let below = part.binary_broadcast(BinaryOp::Sub, wide, max);
        debug_assert_eq!(part.shape(below), &shape);
        let exp = part.unary(UnaryOp::Exp, below);
        let sum = part.reduce(ReduceKind::Sum, exp, &axes, true, DType::F32);
        let log = part.unary(UnaryOp::Log, sum);
        let node = part.binary(BinaryOp::Add, log, max);
        let node = part.cast(node, dtype);
        let node = part.without(node, &axes, keepdims);
        Ok(self.value(x.backend, node))
    }

    /// Variance: squared distance from the mean, summed and divided by the count less `ddof` (0 for a population, 1 for a sample).
    #[track_caller]
    pub fn var(
        &mut self,
        x: impl Into<TensorOperand>,
        axes: impl Into<Axes>,
        keepdims: bool,
        ddof: usize,
    ) -> Result<TensorValue, OpError> {
        let (x, axes) = self.reduced("var", x.into(), axes.into(), Takes::Floats)?;
        let dtype = self.dtype_of_arg(x);
        let part = self.part(x);
        let variance = part.variance(x.node, &axes, ddof);
        let node = part.cast(variance, dtype);
        let node = part.without(node, &axes, keepdims);
        Ok(self.value(x.backend, node))
    }

    /// Standard deviation: square root of [`var`](Self::var).
    #[track_caller]
    pub fn std(
        &mut self,
        x: impl Into<TensorOperand>,
        axes: impl Into<Axes>,
        keepdims: bool,
        ddof: usize,
    ) -> Result<TensorValue, OpError> {
        let (x, axes) = self.reduced("std", x.into(), axes.into(), Takes::Floats)?;
        let dtype = self.dtype_of_arg(x);
        let part = self.part(x);
        let variance = part.variance(x.node, &axes, ddof);
        let node = part.unary(UnaryOp::Sqrt, variance);
        let node = part.cast(node, dtype);
        let node = part.without(node, &axes, keepdims);
        Ok(self.value(x.backend, node))
    }

    /// Position (`i32`) of the largest element of an axis, the first of equals.
    #[track_caller]
    pub fn argmax(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        keepdims: bool,
    ) -> Result<TensorValue, OpError> {
        self.position_of("argmax", x.into(), axis.into(), keepdims, ReduceKind::ArgMax { last: false })
    }

    /// Position (`i32`) of the largest element of an axis, the last of equals.
    #[track_caller]
    pub fn argmax_last(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        keepdims: bool,
    ) -> Result<TensorValue, OpError> {
        self.position_of("argmax_last", x.into(), axis.into(), keepdims, ReduceKind::ArgMax { last: true })
    }

    /// Position (`i32`) of the smallest element of an axis, the first of equals.
    #[track_caller]
    pub fn argmin(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        keepdims: bool,
    ) -> Result<TensorValue, OpError> {
        self.position_of("argmin", x.into(), axis.into(), keepdims, ReduceKind::ArgMin { last: false })
    }

    /// Position (`i32`) of the smallest element of an axis, the last of equals.
    #[track_caller]
    pub fn argmin_last(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        keepdims: bool,
    ) -> Result<TensorValue, OpError> {
        self.position_of("argmin_last", x.into(), axis.into(), keepdims, ReduceKind::ArgMin { last: true })
    }

    #[track_caller]
    fn position_of(
        &mut self,
        op: &'static str,
        x: TensorOperand,
        axis: Axis,
        keepdims: bool,
        kind: ReduceKind,
    ) -> Result<TensorValue, OpError> {
        let x = self.arg(op, x)?;
        let axis = self.axis(op, x, axis)?;
        if self.part_ref(x).shape(x.node)[axis] == 0 {
            return Err(self.shape_error(op, &[x], format!("axis {axis} is empty, so it has no largest or smallest")));
        }
        let node = self.part(x).reduce(kind, x.node, &[axis], keepdims, DType::I32);
        Ok(self.value(x.backend, node))
    }

    /// Running sums along an axis; `exclusive` leaves each element out of its own sum, `reverse` starts at the end. Sums of integers are
    /// 32-bit.
    #[track_caller]
    pub fn cumsum(
        &mut self,
        x: impl Into<TensorOperand>,
        axis: impl Into<Axis>,
        exclusive: bool,
        reverse: bool,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "cumsum";
        let x = self.arg(OP, x)?;
        let axis = self.axis(OP, x, axis.into())?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        if dtype == DType::Bool {
            return Err(self.type_error(OP, &[x], "this op is for numbers; cast first"));
        }
        let dtype = result_type(ReduceKind::Sum, dtype);
        let part = self.part(x);
        let source = if reverse { part.flip(x.node, axis) } else { x.node };
        let sums = part.push(Op::CumSum { axis, exclusive }, &[source], shape, dtype, &[]);
        let node = if reverse { part.flip(sums, axis) } else { sums };
        Ok(self.value(x.backend, node))
    }

    /// The `k` largest or smallest elements of an axis, best first, and their positions (`i32`); equal ones in order of position.
    #[track_caller]
    pub fn top_k(
        &mut self,
        x: impl Into<TensorOperand>,
        k: usize,
        axis: impl Into<Axis>,
        largest: bool,
    ) -> Result<(TensorValue, TensorValue), OpError> {
        const OP: &str = "top_k";
        let x = self.arg(OP, x)?;
        let axis = self.axis(OP, x, axis.into())?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        if k > shape[axis] {
            return Err(self.shape_error(OP, &[x], format!("axis {axis} has {} elements, not {k}", shape[axis])));
        }
        let part = self.part(x);
        let source = part.axis_to_end(x.node, axis);
        let last = shape.rank() - 1;
        let mut best = part.shape(source).clone();
        best.dims_mut()[last] = k;
        let positions = part.push(Op::TopK { k, largest }, &[source], best.clone(), DType::I32, &[]);
        let values = part.push(Op::GatherElements { axis: last }, &[source, positions], best, dtype, &[]);
        let (values, positions) = (part.axis_from_end(values, axis), part.axis_from_end(positions, axis));
        Ok((self.value(x.backend, values), self.value(x.backend, positions)))
    }
}

impl Part {
    /// The variance in `f32`, the reduced axes kept.
    fn variance(&mut self, x: NodeId, axes: &[usize], ddof: usize) -> NodeId {
        let count: usize = axes.iter().map(|&axis| self.shape(x)[axis]).product();
        if count == 1 && ddof > 0 {
            // Shaders may take `x − x` for 0 and 0 divided by anything for 0, so that 0 / 0 is spelled out.
            let shape = self.shape(x).clone();
            return self.full(f64::NAN, &shape, DType::F32);
        }
        let mean = self.reduce(ReduceKind::Mean, x, axes, true, DType::F32);
        let wide = self.cast(x, DType::F32);
        let distance = self.binary_broadcast(BinaryOp::Sub, wide, mean);
        let squares = self.reduce(ReduceKind::SumSquares, distance, axes, true, DType::F32);
        self.binary_number(BinaryOp::Div, squares, count.saturating_sub(ddof) as f64)
    }

    /// Drops reduced axes of size 1 unless they are to stay.
    fn without(&mut self, x: NodeId, axes: &[usize], keepdims: bool) -> NodeId {
        if keepdims {
            return x;
        }
        let shape = self.shape(x);
        let to = Shape::new(shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &n)| n));
        self.reshape(x, &to)
    }
}
