//! Evaluation on the host, exact in 64 bits: shape arithmetic and constants. It never reaches a device.

mod arithmetic;
mod generate;
pub(crate) mod movement;
mod reduce;
mod text;

use core::ops::Deref;
use std::sync::Arc;

use super::call::{Stop, failed};
use super::graph::Node;
use super::host::HostTensor;
use super::operators::Operator;
use crate::ir::Shape;

/// One node being computed on the host. Attributes are methods of [`Node`]: `call.int("axis", 0)`.
pub(crate) struct HostCall<'a> {
    pub node: &'a Node,
    pub inputs: &'a [Option<Arc<HostTensor>>],
}

impl Deref for HostCall<'_> {
    type Target = Node;
    fn deref(&self) -> &Node {
        self.node
    }
}

/// Computes a node on the host.
pub(crate) type Evaluate = fn(&HostCall) -> HostOutputs;

/// How the host computes a standard operator, if it can.
pub(crate) fn find(operator: &Operator) -> Option<Evaluate> {
    if !operator.domain.is_empty() {
        return None;
    }
    Some(match operator.name {
        "Abs" => arithmetic::abs,
        "Add" => arithmetic::add,
        "And" | "BitwiseAnd" => arithmetic::and,
        "BitShift" => arithmetic::bit_shift,
        "BitwiseNot" => arithmetic::bitwise_not,
        "Cast" => generate::cast,
        "CastLike" => generate::cast_like,
        "Ceil" => arithmetic::ceil,
        "Clip" => arithmetic::clip,
        "Compress" => reduce::compress,
        "Concat" => movement::concat,
        "ConstantOfShape" => generate::constant_of_shape,
        "Cos" => arithmetic::cos,
        "CumSum" => reduce::cum_sum,
        "Div" => arithmetic::div,
        "Equal" => arithmetic::equal,
        "Exp" => arithmetic::exp,
        "Expand" => movement::expand,
        "Flatten" => movement::flatten,
        "Floor" => arithmetic::floor,
        "Gather" => movement::gather,
        "GatherElements" => movement::gather_elements,
        "Greater" => arithmetic::greater,
        "GreaterOrEqual" => arithmetic::greater_or_equal,
        "Identity" => movement::identity,
        "Less" => arithmetic::less,
        "LessOrEqual" => arithmetic::less_or_equal,
        "Log" => arithmetic::log,
        "Max" => arithmetic::max,
        "Min" => arithmetic::min,
        "Mod" => arithmetic::modulo,
        "Mul" => arithmetic::mul,
        "Neg" => arithmetic::neg,
        "NonMaxSuppression" => reduce::non_max_suppression,
        "NonZero" => reduce::non_zero,
        "Not" => arithmetic::not,
        "Or" | "BitwiseOr" => arithmetic::or,
        "Pow" => arithmetic::pow,
        "Range" => generate::range,
        "Reciprocal" => arithmetic::reciprocal,
        "ReduceMax" => reduce::max,
        "ReduceMean" => reduce::mean,
        "ReduceMin" => reduce::min,
        "ReduceProd" => reduce::prod,
        "ReduceSum" => reduce::sum,
        "Reshape" => movement::reshape,
        "Round" => arithmetic::round,
        "Shape" => movement::shape,
        "Sign" => arithmetic::sign,
        "Sin" => arithmetic::sin,
        "Size" => movement::size,
        "Slice" => movement::slice,
        "Split" => movement::split,
        "Sqrt" => arithmetic::sqrt,
        "Squeeze" => movement::squeeze,
        "StringConcat" => text::concat,
        "StringNormalizer" => text::normalize,
        "StringSplit" => text::split,
        "Sub" => arithmetic::sub,
        "Sum" => arithmetic::sum,
        "TfIdfVectorizer" => text::tf_idf,
        "Tile" => movement::tile,
        "Transpose" => movement::transpose,
        "Unique" => reduce::unique,
        "Unsqueeze" => movement::unsqueeze,
        "Where" => arithmetic::select,
        "Xor" | "BitwiseXor" => arithmetic::xor,
        _ => return None,
    })
}

/// The outputs in operator order.
pub(crate) type HostOutputs = Result<Vec<HostTensor>, Stop>;

impl HostCall<'_> {
    /// An input that may be absent.
    pub(crate) fn maybe(&self, i: usize) -> Option<&HostTensor> {
        self.inputs.get(i).and_then(Option::as_deref)
    }

    /// An input that must be given.
    pub(crate) fn x(&self, i: usize) -> Result<&HostTensor, Stop> {
        self.maybe(i).ok_or_else(|| Stop::Failed(format!("input {i} is missing")))
    }

    /// The integers of an input. `None` if it is absent.
    pub(crate) fn host_ints(&self, i: usize) -> Result<Option<Vec<i64>>, Stop> {
        Ok(self.maybe(i).map(HostTensor::to_i64).transpose()?)
    }

    /// Settings that older versions of an operator have as an attribute and newer ones as an input.
    pub(crate) fn ints_of(&self, attribute: &str, i: usize) -> Result<Option<Vec<i64>>, Stop> {
        match self.ints(attribute) {
            Some(values) => Ok(Some(values.to_vec())),
            None => self.host_ints(i),
        }
    }
}

/// The shape of two operands of an elementwise operator.
pub(crate) fn broadcast(a: &Shape, b: &Shape) -> Result<Shape, Stop> {
    match a.broadcast(b) {
        Some(shape) => limit(shape),
        None => failed(format!("{a} and {b} do not broadcast")),
    }
}

/// The largest number of elements that the host computes for one value.
pub(crate) const MAX_ELEMENTS: usize = 1 << 24;

/// Refuses results that are too large for the host.
pub(crate) fn limit(shape: Shape) -> Result<Shape, Stop> {
    match shape.checked_elements() {
        Some(n) if n <= MAX_ELEMENTS => Ok(shape),
        _ => failed(format!("a value of shape {shape} is too large for the host")),
    }
}

/// Positions of the elements of a tensor of shape `from` that is broadcast to `to`.
pub(crate) fn broadcast_positions(from: &Shape, to: &Shape) -> Vec<usize> {
    let layout = crate::ir::Layout::contiguous(from.clone()).broadcast_to(to);
    layout.map_or_else(Vec::new, |layout| positions(&layout))
}

/// The positions of all elements of a layout, in row-major order.
pub(crate) fn positions(layout: &crate::ir::Layout) -> Vec<usize> {
    let count = layout.elements();
    let mut out = Vec::with_capacity(count);
    if count == 0 {
        return out;
    }
    let rank = layout.rank();
    let mut index = vec![0usize; rank];
    let mut at = layout.offset as isize;
    loop {
        out.push(at as usize);
        let mut axis = rank;
        loop {
            if axis == 0 {
                return out;
            }
            axis -= 1;
            index[axis] += 1;
            at += layout.strides[axis];
            if index[axis] < layout.shape[axis] {
                break;
            }
            at -= layout.strides[axis] * layout.shape[axis] as isize;
            index[axis] = 0;
        }
    }
}
