//! What ops take: entities, values, numbers, and arithmetic of these written with operators.

use crate::ir::{Backend, BinaryOp, DType, NodeId};
use bevy::ecs::entity::Entity;

/// The result of an op, good as an operand of later ops in the same run of the same system. [Store](crate::TensorCommands::store) it to
/// keep it.
///
/// Values, and expressions of them, can be combined with `+ - * /` and unary `-`, also with numbers and entities' values; the result is an
/// expression that any op takes: `ops.store(a * 0.5 + b, target)?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorValue {
    pub(super) recording: u64,
    pub(super) backend: Backend,
    pub(super) node: NodeId,
}

/// Anything an op takes.
#[derive(Clone, Debug)]
pub enum TensorOperand {
    /// A tensor, as it is at this point of the recording.
    Tensor(Entity),
    /// A value of this recording.
    Value(TensorValue),
    /// A number; it takes the element type of what it meets.
    Number(f64),
    /// Arithmetic that has not been recorded yet.
    Expression(Box<TensorExpression>),
}

/// Arithmetic on operands, recorded when an op takes it.
#[derive(Clone, Debug)]
pub struct TensorExpression {
    pub(super) op: BinaryOp,
    pub(super) left: TensorOperand,
    pub(super) right: TensorOperand,
}

impl From<Entity> for TensorOperand {
    fn from(entity: Entity) -> Self {
        Self::Tensor(entity)
    }
}

impl From<TensorValue> for TensorOperand {
    fn from(value: TensorValue) -> Self {
        Self::Value(value)
    }
}

impl From<TensorExpression> for TensorOperand {
    fn from(expression: TensorExpression) -> Self {
        Self::Expression(Box::new(expression))
    }
}

impl From<&TensorOperand> for TensorOperand {
    fn from(operand: &TensorOperand) -> Self {
        operand.clone()
    }
}

macro_rules! number {
    ($($t:ty),*) => { $(impl From<$t> for TensorOperand {
        fn from(value: $t) -> Self {
            Self::Number(f64::from(value))
        }
    })* };
}
number!(f32, f64, i32, u32);

macro_rules! operators {
    ($($trait:ident :: $method:ident => $op:ident),*) => { $(
        operators!(@one $trait $method $op, TensorValue);
        operators!(@one $trait $method $op, TensorExpression);
        operators!(@number $trait $method $op, f32, TensorValue);
        operators!(@number $trait $method $op, f32, TensorExpression);
    )* };
    (@one $trait:ident $method:ident $op:ident, $left:ty) => {
        impl<R: Into<TensorOperand>> core::ops::$trait<R> for $left {
            type Output = TensorExpression;
            fn $method(self, right: R) -> TensorExpression {
                TensorExpression { op: BinaryOp::$op, left: self.into(), right: right.into() }
            }
        }
    };
    (@number $trait:ident $method:ident $op:ident, $left:ty, $right:ty) => {
        impl core::ops::$trait<$right> for $left {
            type Output = TensorExpression;
            fn $method(self, right: $right) -> TensorExpression {
                TensorExpression { op: BinaryOp::$op, left: self.into(), right: right.into() }
            }
        }
    };
}
operators!(Add::add => Add, Sub::sub => Sub, Mul::mul => Mul, Div::div => Div);

macro_rules! negate {
    ($($t:ty),*) => { $(impl core::ops::Neg for $t {
        type Output = TensorExpression;
        fn neg(self) -> TensorExpression {
            self * -1.0f32
        }
    })* };
}
negate!(TensorValue, TensorExpression);

/// An axis, counted from the back if negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis(pub isize);

impl Axis {
    /// The innermost axis.
    pub const LAST: Axis = Axis(-1);
}

impl From<isize> for Axis {
    fn from(axis: isize) -> Self {
        Self(axis)
    }
}

impl From<i32> for Axis {
    fn from(axis: i32) -> Self {
        Self(axis as isize)
    }
}

impl From<usize> for Axis {
    fn from(axis: usize) -> Self {
        Self(axis as isize)
    }
}

/// A set of axes to work over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Axes {
    /// Every axis.
    All,
    /// These, each at most once, in any order.
    Of(Vec<isize>),
}

impl From<Axis> for Axes {
    fn from(axis: Axis) -> Self {
        Self::Of(vec![axis.0])
    }
}

impl From<isize> for Axes {
    fn from(axis: isize) -> Self {
        Self::Of(vec![axis])
    }
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Self {
        Self::Of(vec![axis as isize])
    }
}

impl<const N: usize> From<[isize; N]> for Axes {
    fn from(axes: [isize; N]) -> Self {
        Self::Of(axes.to_vec())
    }
}

impl From<&[isize]> for Axes {
    fn from(axes: &[isize]) -> Self {
        Self::Of(axes.to_vec())
    }
}

/// An operand after it was looked up: a node, and where it came from for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arg {
    pub node: NodeId,
    pub backend: Backend,
    pub entity: Option<Entity>,
    /// A number that no other operand has given a type yet.
    pub number: Option<f64>,
}

/// The type a lone number has.
pub(super) const NUMBER: DType = DType::F32;
