//! Reductions over axes, and ops that run along one axis.

use smallvec::SmallVec;

use super::{Arg, Axes, AxisSet, Part, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpResult;
use crate::ir::{BinaryOp, DType, NodeId, Op, ReduceKind, Shape, UnaryOp};

impl ReduceKind {
    /// The result of reducing no elements.
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
    /// Reduces sorted axes to `dtype`. Axes of size 0 give the identity. No axes give `x` (its squares for a sum of
    /// squares).
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

/// Settings of [`cumsum_with`](TensorCommands::cumsum_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CumsumSettings {
    /// Leaves each element out of its own sum.
    pub exclusive: bool,
    /// Starts at the end of the axis.
    pub reverse: bool,
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
        /// Reductions over any axes. [`Axes::keep`] keeps the reduced axes with size 1. Sums and products of integers
        /// are 32-bit.
        impl TensorCommands<'_, '_> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name<'a>(
                &'a self,
                x: impl Into<TensorOperand<'a>>,
                axes: impl Into<Axes>,
            ) -> OpResult<TensorValue<'a>> {
                let x = x.into();
                let rec = &mut self.recorder();
                let (x, axes, keep) = rec.reduced(stringify!($name), x, axes.into(), Takes::$takes)?;
                let dtype = result_type($kind, rec.dtype_of_arg(x));
                let node = rec.part(x).reduce($kind, x.node, &axes, keep, dtype);
                rec.value(x.backend, node)
            })*
        }
    };
}

reductions! {
    /// The sum.
    sum = ReduceKind::Sum, Numbers;
    /// The arithmetic mean. The mean of no elements is NaN.
    #[doc(alias = "average")]
    mean = ReduceKind::Mean, Floats;
    /// The largest element. Of no elements, the lowest value of the type.
    #[doc(alias = "amax")]
    max_of = ReduceKind::Max, All;
    /// The smallest element. Of no elements, the highest value of the type.
    #[doc(alias = "amin")]
    min_of = ReduceKind::Min, All;
    /// The product.
    prod = ReduceKind::Prod, Numbers;
    /// The sum of squares.
    sum_squares = ReduceKind::SumSquares, Numbers;
    /// Whether any element is true.
    any = ReduceKind::Max, Truths;
    /// Whether all elements are true.
    all = ReduceKind::Min, Truths;
}

/// The element type of a reduction. Integers are summed in 32 bits, since narrow ones would soon wrap.
fn result_type(kind: ReduceKind, dtype: DType) -> DType {
    match kind {
        ReduceKind::Sum | ReduceKind::Prod | ReduceKind::SumSquares if !dtype.is_float() => dtype.wide(),
        _ => dtype,
    }
}

/// Composed reductions, and ops along one axis.
impl TensorCommands<'_, '_> {
    /// The sum of absolute values.
    #[track_caller]
    pub fn l1_norm<'a>(&'a self, x: impl Into<TensorOperand<'a>>, axes: impl Into<Axes>) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let (x, axes, keep) = rec.reduced("l1_norm", x, axes.into(), Takes::Numbers)?;
        let dtype = result_type(ReduceKind::Sum, rec.dtype_of_arg(x));
        let part = rec.part(x);
        let wide = part.cast(x.node, dtype);
        let magnitudes = part.unary(UnaryOp::Abs, wide);
        let node = part.reduce(ReduceKind::Sum, magnitudes, &axes, keep, dtype);
        rec.value(x.backend, node)
    }

    /// The square root of the sum of squares.
    #[doc(alias = "norm")]
    #[track_caller]
    pub fn l2_norm<'a>(&'a self, x: impl Into<TensorOperand<'a>>, axes: impl Into<Axes>) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let (x, axes, keep) = rec.reduced("l2_norm", x, axes.into(), Takes::Floats)?;
        let dtype = rec.dtype_of_arg(x);
        let part = rec.part(x);
        // In f32: the squares of halves may overflow a half.
        let squares = part.reduce(ReduceKind::SumSquares, x.node, &axes, keep, DType::F32);
        let norm = part.unary(UnaryOp::Sqrt, squares);
        let node = part.cast(norm, dtype);
        rec.value(x.backend, node)
    }

    /// `ln Σ eˣ`. The maximum is subtracted first, so that nothing overflows. Of no elements, −∞.
    #[doc(alias = "logsumexp")]
    #[track_caller]
    pub fn log_sum_exp<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axes: impl Into<Axes>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let (x, axes, keep) = rec.reduced("log_sum_exp", x, axes.into(), Takes::Floats)?;
        let (shape, dtype) = (rec.shape_of_arg(x), rec.dtype_of_arg(x));
        let part = rec.part(x);
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
        let node = part.without(node, &axes, keep);
        rec.value(x.backend, node)
    }

    /// The variance: the sum of squared distances from the mean, divided by the number of elements minus `ddof`.
    ///
    /// `ddof` is 0 for a population (the default of NumPy) and 1 for a sample (the default of PyTorch).
    #[track_caller]
    pub fn var<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axes: impl Into<Axes>,
        ddof: usize,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let (x, axes, keep) = rec.reduced("var", x, axes.into(), Takes::Floats)?;
        let dtype = rec.dtype_of_arg(x);
        let part = rec.part(x);
        let variance = part.variance(x.node, &axes, ddof);
        let node = part.cast(variance, dtype);
        let node = part.without(node, &axes, keep);
        rec.value(x.backend, node)
    }

    /// The standard deviation: the square root of [`var`](Self::var).
    #[track_caller]
    pub fn std<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axes: impl Into<Axes>,
        ddof: usize,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        let rec = &mut self.recorder();
        let (x, axes, keep) = rec.reduced("std", x, axes.into(), Takes::Floats)?;
        let dtype = rec.dtype_of_arg(x);
        let part = rec.part(x);
        let variance = part.variance(x.node, &axes, ddof);
        let node = part.unary(UnaryOp::Sqrt, variance);
        let node = part.cast(node, dtype);
        let node = part.without(node, &axes, keep);
        rec.value(x.backend, node)
    }

    /// The position (`i32`) of the largest element: along one axis, or in the flattened operand for [`Axes::ALL`]. Of
    /// equal elements, the first.
    #[track_caller]
    pub fn argmax<'a>(&'a self, x: impl Into<TensorOperand<'a>>, axes: impl Into<Axes>) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().position_of("argmax", x, axes.into(), ReduceKind::ArgMax { last: false })
    }

    /// [`argmax`](Self::argmax) that gives the last of equal elements.
    #[track_caller]
    pub fn argmax_last<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axes: impl Into<Axes>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().position_of("argmax_last", x, axes.into(), ReduceKind::ArgMax { last: true })
    }

    /// The position (`i32`) of the smallest element: along one axis, or in the flattened operand for [`Axes::ALL`]. Of
    /// equal elements, the first.
    #[track_caller]
    pub fn argmin<'a>(&'a self, x: impl Into<TensorOperand<'a>>, axes: impl Into<Axes>) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().position_of("argmin", x, axes.into(), ReduceKind::ArgMin { last: false })
    }

    /// [`argmin`](Self::argmin) that gives the last of equal elements.
    #[track_caller]
    pub fn argmin_last<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axes: impl Into<Axes>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().position_of("argmin_last", x, axes.into(), ReduceKind::ArgMin { last: true })
    }

    /// Running sums along an axis. Sums of integers are 32-bit.
    #[track_caller]
    pub fn cumsum<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().cumsum_op("cumsum", x, axis.into(), CumsumSettings::default())
    }

    /// Running sums along an axis that leave out each element itself, or start at the end.
    #[track_caller]
    pub fn cumsum_with<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axis: impl Into<TensorAxis>,
        settings: CumsumSettings,
    ) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().cumsum_op("cumsum_with", x, axis.into(), settings)
    }

    /// The `k` largest elements of an axis, largest first, and their positions (`i32`). Equal elements keep their
    /// order.
    #[doc(alias = "topk")]
    #[track_caller]
    pub fn top_k<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        k: usize,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        let x = x.into();
        self.recorder().best_k("top_k", x, k, axis.into(), true)
    }

    /// The `k` smallest elements of an axis, smallest first, and their positions (`i32`). Equal elements keep their
    /// order.
    #[doc(alias = "topk")]
    #[track_caller]
    pub fn bottom_k<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        k: usize,
        axis: impl Into<TensorAxis>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        let x = x.into();
        self.recorder().best_k("bottom_k", x, k, axis.into(), false)
    }
}

impl<'a> Recorder<'a> {
    /// Looks up what a reduction takes: the operand, its axes, and whether they stay.
    fn reduced(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        axes: Axes,
        takes: Takes,
    ) -> OpResult<(Arg, SmallVec<[usize; 6]>, bool)> {
        let x = self.arg(op, x)?;
        let dtype = self.dtype_of_arg(x);
        let reason = match takes {
            Takes::Floats if !dtype.is_float() => "this op is for floats; cast first",
            Takes::Numbers if dtype == DType::Bool => "this op is for numbers; cast first",
            Takes::Truths if dtype != DType::Bool => "this op is for bool; compare or cast first",
            _ => {
                let keep = axes.keep;
                return Ok((x, self.axes(op, x, axes)?, keep));
            }
        };
        Err(self.type_error(op, &[x], reason))
    }

    fn position_of(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        axes: Axes,
        kind: ReduceKind,
    ) -> OpResult<TensorValue<'a>> {
        let x = self.arg(op, x)?;
        let (keep, flat) = (axes.keep, axes.set == AxisSet::All);
        let axes = self.axes(op, x, axes)?;
        let shape = self.shape_of_arg(x);
        let (source, axis) = match axes[..] {
            // The position in the flattened operand.
            _ if flat => {
                let flat = Shape::from([shape.elements()]);
                (Arg { node: self.part(x).reshape(x.node, &flat), ..x }, 0)
            }
            [axis] => (x, axis),
            _ => {
                let reason = format!("the op takes one axis or all axes, not {}", axes.len());
                return Err(self.shape_error(op, &[x], reason));
            }
        };
        if self.part_ref(source).shape(source.node)[axis] == 0 {
            let reason = match flat {
                true => "it is empty, so it has no largest or smallest element".to_owned(),
                false => format!("axis {axis} is empty, so it has no largest or smallest element"),
            };
            return Err(self.shape_error(op, &[x], reason));
        }
        let part = self.part(x);
        let mut node = part.reduce(kind, source.node, &[axis], keep, DType::I32);
        if flat && keep {
            node = part.reshape(node, &Shape::new(shape.iter().map(|_| 1)));
        }
        self.value(x.backend, node)
    }

    fn cumsum_op(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        axis: TensorAxis,
        settings: CumsumSettings,
    ) -> OpResult<TensorValue<'a>> {
        let CumsumSettings { exclusive, reverse } = settings;
        let x = self.arg(op, x)?;
        let axis = self.axis(op, x, axis)?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        if dtype == DType::Bool {
            return Err(self.type_error(op, &[x], "this op is for numbers; cast first"));
        }
        let dtype = result_type(ReduceKind::Sum, dtype);
        let part = self.part(x);
        let source = if reverse { part.flip(x.node, axis) } else { x.node };
        let sums = part.push(Op::CumSum { axis, exclusive }, &[source], shape, dtype, &[]);
        let node = if reverse { part.flip(sums, axis) } else { sums };
        self.value(x.backend, node)
    }

    fn best_k(
        &mut self,
        op: &'static str,
        x: TensorOperand<'_>,
        k: usize,
        axis: TensorAxis,
        largest: bool,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        let x = self.arg(op, x)?;
        let axis = self.axis(op, x, axis)?;
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        if k > shape[axis] {
            return Err(self.shape_error(op, &[x], format!("axis {axis} has {} elements, not {k}", shape[axis])));
        }
        let part = self.part(x);
        let source = part.axis_to_end(x.node, axis);
        let last = shape.rank() - 1;
        let mut best = part.shape(source).clone();
        best.dims_mut()[last] = k;
        let positions = part.push(Op::TopK { k, largest }, &[source], best.clone(), DType::I32, &[]);
        let values = part.push(Op::GatherElements { axis: last }, &[source, positions], best, dtype, &[]);
        let (values, positions) = (part.axis_from_end(values, axis), part.axis_from_end(positions, axis));
        Ok((self.value(x.backend, values)?, self.value(x.backend, positions)?))
    }
}

impl Part {
    /// The variance in `f32`, the reduced axes kept.
    fn variance(&mut self, x: NodeId, axes: &[usize], ddof: usize) -> NodeId {
        let count: usize = axes.iter().map(|&axis| self.shape(x)[axis]).product();
        if count == 1 && ddof > 0 {
            // Shader compilers may simplify `x − x` to 0 and `0 / y` to 0, so 0 / 0 is written as NaN.
            let shape = self.shape(x).clone();
            return self.full(f64::NAN, &shape, DType::F32);
        }
        let mean = self.reduce(ReduceKind::Mean, x, axes, true, DType::F32);
        let wide = self.cast(x, DType::F32);
        let distance = self.binary_broadcast(BinaryOp::Sub, wide, mean);
        let squares = self.reduce(ReduceKind::SumSquares, distance, axes, true, DType::F32);
        self.binary_number(BinaryOp::Div, squares, count.saturating_sub(ddof) as f64)
    }

    /// Drops the reduced axes, which have size 1, unless they are kept.
    fn without(&mut self, x: NodeId, axes: &[usize], keepdims: bool) -> NodeId {
        if keepdims {
            return x;
        }
        let shape = self.shape(x);
        let to = Shape::new(shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &n)| n));
        self.reshape(x, &to)
    }
}
