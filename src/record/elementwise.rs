//! Ops that compute each element from the same element of their operands. Chains of them become one kernel.

use core::panic::Location;

use super::{Arg, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::ir::{BinaryOp, DType, UnaryOp, scalar_bits};

/// Which element types a function takes.
#[derive(Clone, Copy)]
enum Domain {
    Float,
    Number,
    Truth,
    Any,
}

impl Domain {
    fn takes(self, dtype: DType) -> bool {
        match self {
            Domain::Float => dtype.is_float(),
            Domain::Number => dtype != DType::Bool,
            Domain::Truth => dtype == DType::Bool,
            Domain::Any => true,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Domain::Float => "this op is for f32 and f16; cast first",
            Domain::Number => "this op is for numbers; cast first",
            Domain::Truth => "this op is for bool; compare or cast first",
            Domain::Any => "",
        }
    }
}

macro_rules! unary_ops {
    ($($(#[$doc:meta])* $name:ident = $op:ident($($scalar:ident),*) on $domain:ident;)*) => {
        /// Functions of one operand.
        impl TensorCommands<'_, '_> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&mut self, x: impl Into<TensorOperand> $(, $scalar: f32)*) -> Result<TensorValue, OpError> {
                self.unary_op(stringify!($name), UnaryOp::$op, x.into(), &[$(f64::from($scalar)),*], Domain::$domain)
            })*

            /// The function of that name, if there is one; its numbers are ones.
            #[track_caller]
            fn unary_by_name(&mut self, name: &str, x: TensorValue) -> Option<Result<TensorValue, OpError>> {
                $(if name == stringify!($name) {
                    return Some(self.$name(x $(, { let $scalar = 1.0; $scalar })*));
                })*
                None
            }
        }
    };
}

unary_ops! {
    /// `-x`.
    neg = Neg() on Number;
    /// Magnitude.
    abs = Abs() on Number;
    /// `eˣ`.
    exp = Exp() on Float;
    /// Natural logarithm.
    log = Log() on Float;
    /// Square root.
    sqrt = Sqrt() on Float;
    /// `1 / √x`.
    rsqrt = Rsqrt() on Float;
    /// `1 / x`.
    recip = Recip() on Float;
    /// Sine of radians.
    sin = Sin() on Float;
    /// Cosine of radians.
    cos = Cos() on Float;
    /// Largest integer not above.
    floor = Floor() on Float;
    /// Smallest integer not below.
    ceil = Ceil() on Float;
    /// Nearest integer, halves to even.
    round = Round() on Float;
    /// Towards zero.
    trunc = Trunc() on Float;
    /// −1, 0 or 1.
    sign = Sign() on Number;
    /// The error function.
    erf = Erf() on Float;
    /// Logical not.
    not = Not() on Truth;
    /// Whether each element is not a number.
    is_nan = IsNan() on Float;
    /// Whether each element is infinite.
    is_inf = IsInf() on Float;
    /// `max(x, 0)`.
    relu = Relu() on Number;
    /// `x` where positive, else `slope · x`.
    leaky_relu = LeakyRelu(slope) on Float;
    /// `x` where positive, else `alpha · (eˣ − 1)`.
    elu = Elu(alpha) on Float;
    /// The self-normalising ELU.
    selu = Selu() on Float;
    /// `max(0, x) + min(0, alpha · (e^(x/alpha) − 1))`.
    celu = Celu(alpha) on Float;
    /// `x` where above `alpha`, else 0.
    thresholded_relu = ThresholdedRelu(alpha) on Float;
    /// `1 / (1 + e⁻ˣ)`.
    sigmoid = Sigmoid() on Float;
    /// `clamp(alpha · x + beta, 0, 1)`.
    hard_sigmoid = HardSigmoid(alpha, beta) on Float;
    /// Hyperbolic tangent.
    tanh = Tanh() on Float;
    /// GELU by the error function.
    gelu = Gelu() on Float;
    /// GELU by the tanh approximation.
    gelu_tanh = GeluTanh() on Float;
    /// `x · sigmoid(x)`, also known as swish.
    silu = Silu() on Float;
    /// `ln(1 + eˣ)`.
    softplus = Softplus() on Float;
    /// `x / (1 + |x|)`.
    softsign = Softsign() on Float;
    /// `x · tanh(softplus(x))`.
    mish = Mish() on Float;
    /// `x · clamp(x / 6 + 0.5, 0, 1)`.
    hard_swish = HardSwish() on Float;
}

macro_rules! binary_ops {
    ($($(#[$doc:meta])* $name:ident = $op:ident;)*) => {
        /// Functions of two operands of one element type; shapes broadcast as in NumPy.
        impl TensorCommands<'_, '_> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&mut self, a: impl Into<TensorOperand>, b: impl Into<TensorOperand>) -> Result<TensorValue, OpError> {
                self.binary_op(stringify!($name), BinaryOp::$op, a.into(), b.into())
            })*

            /// The function of that name, if there is one.
            #[track_caller]
            fn binary_by_name(&mut self, name: &str, a: TensorValue, b: TensorValue) -> Option<Result<TensorValue, OpError>> {
                $(if name == stringify!($name) {
                    return Some(self.$name(a, b));
                })*
                None
            }
        }
    };
}

binary_ops! {
    /// Sum; integers wrap.
    add = Add;
    /// Difference; integers wrap.
    sub = Sub;
    /// Product, element by element; integers wrap.
    mul = Mul;
    /// Quotient: IEEE-754 for floats (`x / 0` is ±∞, `0 / 0` NaN); integers truncate, and `x / 0` is `x`.
    div = Div;
    /// `a` to the power of `b`.
    pow = Pow;
    /// The smaller; NaN wins.
    min = Min;
    /// The larger; NaN wins.
    max = Max;
    /// Remainder with the sign of the divisor (Python's `%`).
    modulo = Mod;
    /// Remainder with the sign of the dividend (C's `fmod`).
    rem = Rem;
    /// Whether equal.
    equal = Eq;
    /// Whether different.
    not_equal = Ne;
    /// Whether `a < b`.
    less = Lt;
    /// Whether `a ≤ b`.
    less_equal = Le;
    /// Whether `a > b`.
    greater = Gt;
    /// Whether `a ≥ b`.
    greater_equal = Ge;
    /// Logical and.
    and = And;
    /// Logical or.
    or = Or;
    /// Logical exclusive or.
    xor = Xor;
}

impl TensorCommands<'_, '_> {
    /// An elementwise op of one value or two by its name, if there is one.
    #[track_caller]
    pub(crate) fn elementwise_by_name(
        &mut self,
        name: &str,
        a: TensorValue,
        b: Option<TensorValue>,
    ) -> Option<Result<TensorValue, OpError>> {
        match b {
            Some(b) => self.binary_by_name(name, a, b),
            None => self.unary_by_name(name, a),
        }
    }

    /// `min(max(x, low), high)`; either bound may be infinite.
    #[track_caller]
    pub fn clamp(&mut self, x: impl Into<TensorOperand>, low: f64, high: f64) -> Result<TensorValue, OpError> {
        self.unary_op("clamp", UnaryOp::Clamp, x.into(), &[low, high], Domain::Number)
    }

    /// `yes` where `condition`, else `no`; all three broadcast.
    #[track_caller]
    pub fn select(
        &mut self,
        condition: impl Into<TensorOperand>,
        yes: impl Into<TensorOperand>,
        no: impl Into<TensorOperand>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "select";
        let mut args = [self.arg(OP, condition)?, self.arg(OP, yes)?, self.arg(OP, no)?];
        let backend = self.same_backend(OP, &mut args)?;
        let [condition, yes, no] = args;
        if self.dtype_of_arg(condition) != DType::Bool {
            return Err(self.type_error(OP, &[condition], "the condition must be bool"));
        }
        let (yes, no) = self.unify(OP, yes, no)?;
        let shapes = [condition, yes, no].map(|arg| self.shape_of_arg(arg));
        let shape = shapes[0]
            .broadcast(&shapes[1])
            .and_then(|shape| shape.broadcast(&shapes[2]))
            .ok_or_else(|| self.shape_error(OP, &[condition, yes, no], "the shapes do not broadcast"))?;
        let part = self.part(yes);
        let [condition, yes, no] = [condition, yes, no].map(|arg| part.broadcast(arg.node, &shape));
        let node = part.select(condition, yes, no);
        Ok(self.value(backend, node))
    }

    /// To another element type: floats become integers towards zero and saturate, integers wrap into narrower ones, `bool` is `x != 0`.
    /// To a quantised type is [`quantize`](Self::quantize), and from one is by way of `f32`.
    #[track_caller]
    pub fn cast(&mut self, x: impl Into<TensorOperand>, dtype: DType) -> Result<TensorValue, OpError> {
        const OP: &str = "cast";
        let mut x = self.any_arg(OP, x)?;
        let from = self.dtype_of_arg(x);
        if from.is_quantized() && from != dtype {
            x.node = self.part(x).cast(x.node, DType::F32);
        }
        if dtype.is_quantized() && from != dtype {
            return match self.dtype_of_arg(x).is_float() {
                true => self.quantize_arg(OP, x, dtype),
                false => Err(self.type_error(OP, &[x], format!("only floats become {dtype}"))),
            };
        }
        let node = self.part(x).cast(x.node, dtype);
        Ok(self.value(x.backend, node))
    }

    #[track_caller]
    fn unary_op(
        &mut self,
        op: &'static str,
        function: UnaryOp,
        x: TensorOperand,
        scalars: &[f64],
        domain: Domain,
    ) -> Result<TensorValue, OpError> {
        let x = self.resolve(op, x, Location::caller())?;
        let dtype = self.dtype_of_arg(x);
        if !domain.takes(dtype) {
            return Err(self.type_error(op, &[x], domain.reason()));
        }
        let mut bits = [0; 2];
        for (bits, &value) in bits.iter_mut().zip(scalars) {
            *bits = scalar_bits(value, dtype.wide());
        }
        let node = self.part(x).unary_with(function, x.node, &bits[..scalars.len()]);
        Ok(self.value(x.backend, node))
    }

    #[track_caller]
    fn binary_op(
        &mut self,
        op: &'static str,
        function: BinaryOp,
        a: TensorOperand,
        b: TensorOperand,
    ) -> Result<TensorValue, OpError> {
        let site = Location::caller();
        let (a, b) = (self.resolve(op, a, site)?, self.resolve(op, b, site)?);
        let result = self.binary_args(op, function, a, b)?;
        Ok(self.value(result.backend, result.node))
    }

    pub(super) fn binary_args(&mut self, op: &'static str, function: BinaryOp, a: Arg, b: Arg) -> Result<Arg, OpError> {
        let mut args = [a, b];
        let backend = self.same_backend(op, &mut args)?;
        let [a, b] = args;
        let (a, b) = self.unify(op, a, b)?;
        let domain = match function {
            f if f.is_logical() => Domain::Truth,
            BinaryOp::Eq | BinaryOp::Ne => Domain::Any,
            _ => Domain::Number,
        };
        if !domain.takes(self.dtype_of_arg(a)) {
            return Err(self.type_error(op, &[a, b], domain.reason()));
        }
        if self.part_ref(a).shape(a.node).broadcast(self.part_ref(b).shape(b.node)).is_none() {
            return Err(self.shape_error(op, &[a, b], "the shapes do not broadcast"));
        }
        let node = self.part(a).binary_broadcast(function, a.node, b.node);
        Ok(Arg { node, backend, entity: None, number: None })
    }

    /// Two operands of one element type, or the error that says they differ.
    fn unify(&mut self, op: &'static str, a: Arg, b: Arg) -> Result<(Arg, Arg), OpError> {
        let (of_a, of_b) = (self.dtype_of_arg(a), self.dtype_of_arg(b));
        let (a, b) = match (a.number, b.number) {
            (Some(_), None) => (self.number_as(a, of_b), b),
            (None, Some(_)) => (a, self.number_as(b, of_a)),
            _ => (a, b),
        };
        if self.dtype_of_arg(a) == self.dtype_of_arg(b) {
            Ok((a, b))
        } else {
            Err(self.type_error(op, &[a, b], "both must have one element type; cast one"))
        }
    }
}
