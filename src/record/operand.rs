//! Operands of ops: entities, values, numbers, arithmetic written with operators, and axes.

use core::marker::PhantomData;

use bevy::ecs::entity::Entity;
use smallvec::SmallVec;

use crate::ir::{Backend, BinaryOp, DType, NodeId};

/// The result of an op.
///
/// A value is an operand of later ops of the same system run. Its lifetime is that of the borrow of
/// [`TensorCommands`](crate::ops::TensorCommands) that made it, so it cannot be kept longer. To keep its content,
/// [store](crate::ops::TensorCommands::store) it in a tensor.
///
/// Values and expressions of values support `+ - * /` and unary `-`, also with numbers and entities on the right. The
/// result is an expression, which every op accepts: `ops.store(a * 0.5 + b, target)?`.
///
/// A value cannot leave its system:
///
/// ```compile_fail,E0597
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// #[derive(Resource)]
/// struct Kept(Option<TensorValue<'static>>);
///
/// fn keep(mut kept: ResMut<Kept>, ops: TensorCommands) -> Result {
///     let value = ops.full([2, 2], 1.0, DType::F32)?;
///     kept.0 = Some(value); // `ops` does not live long enough
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorValue<'a> {
    pub(super) recording: u64,
    pub(super) backend: Backend,
    /// Which part of the backend's recording it is in.
    pub(super) segment: u32,
    pub(super) node: NodeId,
    /// The tensor that this is the value of, for error messages.
    pub(super) entity: Option<Entity>,
    pub(super) commands: PhantomData<&'a ()>,
}

impl TensorValue<'_> {
    /// The backend that computes the value.
    pub fn backend(&self) -> Backend {
        self.backend
    }
}

/// Any operand of an op.
#[derive(Clone, Debug)]
pub enum TensorOperand<'a> {
    /// A tensor, with the content it has at this point of the recording.
    Tensor(Entity),
    /// A value of this recording.
    Value(TensorValue<'a>),
    /// A number. It takes the element type of the other operand.
    Number(f64),
    /// Arithmetic that is recorded when an op takes it.
    Expression(Box<TensorExpression<'a>>),
}

/// Arithmetic on operands, recorded when an op takes it.
#[derive(Clone, Debug)]
pub struct TensorExpression<'a> {
    pub(super) op: BinaryOp,
    pub(super) left: TensorOperand<'a>,
    pub(super) right: TensorOperand<'a>,
}

impl From<Entity> for TensorOperand<'_> {
    fn from(entity: Entity) -> Self {
        Self::Tensor(entity)
    }
}

impl<'a> From<TensorValue<'a>> for TensorOperand<'a> {
    fn from(value: TensorValue<'a>) -> Self {
        Self::Value(value)
    }
}

impl<'a> From<TensorExpression<'a>> for TensorOperand<'a> {
    fn from(expression: TensorExpression<'a>) -> Self {
        Self::Expression(Box::new(expression))
    }
}

impl<'a> From<&TensorOperand<'a>> for TensorOperand<'a> {
    fn from(operand: &TensorOperand<'a>) -> Self {
        operand.clone()
    }
}

macro_rules! number {
    ($($t:ty),*) => { $(impl From<$t> for TensorOperand<'_> {
        fn from(value: $t) -> Self {
            Self::Number(f64::from(value))
        }
    })* };
}
number!(f32, f64, i32, u32);

/// An operand that may be left out, such as a bias: an entity, a value, an expression, or `None`.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// fn forward(ops: &TensorCommands, x: Entity, weight: Entity, bias: Option<Entity>) -> OpResult<()> {
///     let y = ops.linear(x, weight, None)?;
///     let z = ops.linear(x, weight, y)?;
///     // An optional entity becomes an optional operand by `map`.
///     let y = ops.linear(z, weight, bias.map(Into::into))?;
///     ops.store(y, x)
/// }
/// ```
pub trait OptionalOperand<'a> {
    /// The operand, if there is one.
    fn optional(self) -> Option<TensorOperand<'a>>;
}

// There is only one implementation for `Option`, so that the type of a bare `None` can be inferred.
impl<'a> OptionalOperand<'a> for Option<TensorOperand<'a>> {
    fn optional(self) -> Option<TensorOperand<'a>> {
        self
    }
}

macro_rules! present {
    ($($t:ty),*) => { $(impl<'a> OptionalOperand<'a> for $t {
        fn optional(self) -> Option<TensorOperand<'a>> {
            Some(self.into())
        }
    })* };
}
present!(Entity, TensorValue<'a>, TensorExpression<'a>, TensorOperand<'a>, &TensorOperand<'a>);

macro_rules! operators {
    ($($trait:ident :: $method:ident => $op:ident),*) => { $(
        operators!(@one $trait $method $op, TensorValue<'a>);
        operators!(@one $trait $method $op, TensorExpression<'a>);
        operators!(@number $trait $method $op, f32, TensorValue<'a>);
        operators!(@number $trait $method $op, f32, TensorExpression<'a>);
    )* };
    (@one $trait:ident $method:ident $op:ident, $left:ty) => {
        impl<'a, R: Into<TensorOperand<'a>>> core::ops::$trait<R> for $left {
            type Output = TensorExpression<'a>;
            fn $method(self, right: R) -> TensorExpression<'a> {
                TensorExpression { op: BinaryOp::$op, left: self.into(), right: right.into() }
            }
        }
    };
    (@number $trait:ident $method:ident $op:ident, $left:ty, $right:ty) => {
        impl<'a> core::ops::$trait<$right> for $left {
            type Output = TensorExpression<'a>;
            fn $method(self, right: $right) -> TensorExpression<'a> {
                TensorExpression { op: BinaryOp::$op, left: self.into(), right: right.into() }
            }
        }
    };
}
operators!(Add::add => Add, Sub::sub => Sub, Mul::mul => Mul, Div::div => Div);

macro_rules! negate {
    ($($t:ty),*) => { $(impl<'a> core::ops::Neg for $t {
        type Output = TensorExpression<'a>;
        fn neg(self) -> TensorExpression<'a> {
            self * -1.0f32
        }
    })* };
}
negate!(TensorValue<'a>, TensorExpression<'a>);

/// One axis. Negative numbers count from the end.
#[doc(alias = "dim")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorAxis(pub isize);

/// The last axis.
pub const LAST: TensorAxis = TensorAxis(-1);

impl TensorAxis {
    /// Keeps the axis with size 1 when an op reduces it.
    #[doc(alias = "keepdim")]
    #[doc(alias = "keepdims")]
    pub fn keep(self) -> Axes {
        Axes::from(self).keep()
    }
}

impl From<isize> for TensorAxis {
    fn from(axis: isize) -> Self {
        Self(axis)
    }
}

impl From<i32> for TensorAxis {
    fn from(axis: i32) -> Self {
        Self(axis as isize)
    }
}

impl From<usize> for TensorAxis {
    fn from(axis: usize) -> Self {
        Self(axis as isize)
    }
}

/// The axes that an op works on, and whether a reduction keeps them with size 1.
///
/// ```
/// # use bevy::prelude::*;
/// # use bevy_tensor_compute::prelude::*;
/// fn reduce(ops: &TensorCommands, x: Entity) -> OpResult<()> {
///     let rows = ops.sum(x, LAST)?;
///     let centred = ops.sub(x, ops.mean(x, LAST.keep())?)?;
///     let total = ops.sum(x, Axes::ALL)?;
///     let planes = ops.max_of(x, [1, 2])?;
///     let kept = ops.max_of(x, Axes::of([1, 2]).keep())?;
/// #   drop((rows, centred, total, planes, kept));
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axes {
    pub(super) set: AxisSet,
    pub(super) keep: bool,
}

/// Which axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AxisSet {
    All,
    /// Each at most once, in any order.
    Of(SmallVec<[isize; 4]>),
}

impl Axes {
    /// Every axis.
    pub const ALL: Self = Self { set: AxisSet::All, keep: false };

    /// These axes. Each may be named once, in any order.
    pub fn of<T: Into<TensorAxis>>(axes: impl IntoIterator<Item = T>) -> Self {
        Self { set: AxisSet::Of(axes.into_iter().map(|axis| axis.into().0).collect()), keep: false }
    }

    /// Keeps the axes with size 1 when an op reduces them. Ops that do not reduce ignore it.
    #[doc(alias = "keepdim")]
    #[doc(alias = "keepdims")]
    #[must_use]
    pub fn keep(self) -> Self {
        Self { keep: true, ..self }
    }
}

impl From<TensorAxis> for Axes {
    fn from(axis: TensorAxis) -> Self {
        Self::of([axis])
    }
}

impl From<isize> for Axes {
    fn from(axis: isize) -> Self {
        Self::of([axis])
    }
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Self {
        Self::of([axis])
    }
}

impl From<usize> for Axes {
    fn from(axis: usize) -> Self {
        Self::of([axis])
    }
}

impl<const N: usize> From<[isize; N]> for Axes {
    fn from(axes: [isize; N]) -> Self {
        Self::of(axes)
    }
}

impl From<&[isize]> for Axes {
    fn from(axes: &[isize]) -> Self {
        Self::of(axes.iter().copied())
    }
}

/// An operand after it was looked up: its node, and what error messages need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arg {
    pub node: NodeId,
    pub backend: Backend,
    pub entity: Option<Entity>,
    /// A number whose element type no other operand has decided yet.
    pub number: Option<f64>,
}

/// The element type of a number without another operand.
pub(super) const NUMBER: DType = DType::F32;
