//! Ops that compute each element from the same element of their operands. Chains of them are fused into one kernel.

use super::{Arg, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpResult;
use crate::ir::{BinaryOp, DType, Shape, UnaryOp, scalar_bits};

/// Which element types a function takes.
#[derive(Clone, Copy)]
enum Domain {
    Float,
    Number,
    Integer,
    Truth,
    Any,
}

impl Domain {
    fn takes(self, dtype: DType) -> bool {
        match self {
            Domain::Float => dtype.is_float(),
            Domain::Number => dtype != DType::Bool,
            Domain::Integer => dtype.is_integer(),
            Domain::Truth => dtype == DType::Bool,
            Domain::Any => true,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Domain::Float => "this op is for floats; cast first",
            Domain::Number => "this op is for numbers; cast first",
            Domain::Integer => "this op is for integers; cast first",
            Domain::Truth => "this op is for bool; compare or cast first",
            Domain::Any => "",
        }
    }
}

macro_rules! unary_ops {
    ($($(#[$doc:meta])* $name:ident = $op:ident($($scalar:ident),*) on $domain:ident;)*) => {
        /// Functions of one operand, element by element.
        impl TensorCommands<'_, '_> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name<'a>(
                &'a self,
                x: impl Into<TensorOperand<'a>>
                $(, $scalar: f32)*
            ) -> OpResult<TensorValue<'a>> {
                let x = x.into();
                let scalars = [$(f64::from($scalar)),*];
                self.recorder().unary_op(stringify!($name), UnaryOp::$op, x, &scalars, Domain::$domain)
            })*

            /// The function of that name, if there is one. Its numbers are ones.
            #[track_caller]
            fn unary_by_name<'a>(&'a self, name: &str, x: TensorValue<'a>) -> Option<OpResult<TensorValue<'a>>> {
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
    #[doc(alias = "negative")]
    neg = Neg() on Number;
    /// The absolute value.
    #[doc(alias = "absolute")]
    abs = Abs() on Number;
    /// `eˣ`.
    exp = Exp() on Float;
    /// The natural logarithm.
    #[doc(alias = "ln")]
    log = Log() on Float;
    /// The square root.
    sqrt = Sqrt() on Float;
    /// `1 / √x`.
    rsqrt = Rsqrt() on Float;
    /// `1 / x`.
    #[doc(alias = "reciprocal")]
    recip = Recip() on Float;
    /// The sine of an angle in radians.
    sin = Sin() on Float;
    /// The cosine of an angle in radians.
    cos = Cos() on Float;
    /// The tangent of an angle in radians.
    tan = Tan() on Float;
    /// The angle in radians whose sine is `x`. NaN outside −1 to 1.
    #[doc(alias = "arcsin")]
    asin = Asin() on Float;
    /// The angle in radians whose cosine is `x`. NaN outside −1 to 1.
    #[doc(alias = "arccos")]
    acos = Acos() on Float;
    /// The angle in radians whose tangent is `x`.
    #[doc(alias = "arctan")]
    atan = Atan() on Float;
    /// The hyperbolic sine.
    sinh = Sinh() on Float;
    /// The hyperbolic cosine.
    cosh = Cosh() on Float;
    /// The inverse of the hyperbolic sine.
    #[doc(alias = "arcsinh")]
    asinh = Asinh() on Float;
    /// The inverse of the hyperbolic cosine. NaN below 1.
    #[doc(alias = "arccosh")]
    acosh = Acosh() on Float;
    /// The inverse of the hyperbolic tangent. NaN outside −1 to 1.
    #[doc(alias = "arctanh")]
    atanh = Atanh() on Float;
    /// The largest integer that is not greater than `x`.
    floor = Floor() on Float;
    /// The smallest integer that is not less than `x`.
    ceil = Ceil() on Float;
    /// The nearest integer. Halves are rounded to even.
    round = Round() on Float;
    /// Rounds towards zero.
    #[doc(alias = "fix")]
    trunc = Trunc() on Float;
    /// −1, 0 or 1.
    #[doc(alias = "sgn")]
    sign = Sign() on Number;
    /// The error function.
    erf = Erf() on Float;
    /// Logical not.
    #[doc(alias = "logical_not")]
    not = Not() on Truth;
    /// All bits inverted.
    #[doc(alias = "bitwise_not")]
    #[doc(alias = "invert")]
    bit_not = BitNot() on Integer;
    /// Whether each element is NaN.
    #[doc(alias = "isnan")]
    is_nan = IsNan() on Float;
    /// Whether each element is infinite.
    #[doc(alias = "isinf")]
    is_inf = IsInf() on Float;
    /// Whether each element is ∞.
    #[doc(alias = "isposinf")]
    is_pos_inf = IsPosInf() on Float;
    /// Whether each element is −∞.
    #[doc(alias = "isneginf")]
    is_neg_inf = IsNegInf() on Float;
    /// `max(x, 0)`.
    relu = Relu() on Number;
    /// `x` if positive, else `slope · x`.
    leaky_relu = LeakyRelu(slope) on Float;
    /// `x` if positive, else `alpha · (eˣ − 1)`.
    elu = Elu(alpha) on Float;
    /// The self-normalising ELU.
    selu = Selu() on Float;
    /// `max(0, x) + min(0, alpha · (e^(x/alpha) − 1))`.
    celu = Celu(alpha) on Float;
    /// `x` if greater than `alpha`, else 0.
    #[doc(alias = "threshold")]
    thresholded_relu = ThresholdedRelu(alpha) on Float;
    /// `1 / (1 + e⁻ˣ)`.
    #[doc(alias = "expit")]
    sigmoid = Sigmoid() on Float;
    /// `clamp(alpha · x + beta, 0, 1)`.
    #[doc(alias = "hardsigmoid")]
    hard_sigmoid = HardSigmoid(alpha, beta) on Float;
    /// The hyperbolic tangent.
    tanh = Tanh() on Float;
    /// GELU with the error function.
    gelu = Gelu() on Float;
    /// GELU with the tanh approximation.
    gelu_tanh = GeluTanh() on Float;
    /// `x · sigmoid(x)`.
    silu = Silu() on Float;
    /// `x · sigmoid(alpha · x)`.
    #[doc(alias = "quick_gelu")]
    swish = Swish(alpha) on Float;
    /// `ln(1 + eˣ)`.
    softplus = Softplus() on Float;
    /// `x / (1 + |x|)`.
    softsign = Softsign() on Float;
    /// `x · tanh(softplus(x))`.
    mish = Mish() on Float;
    /// `x · clamp(x / 6 + 0.5, 0, 1)`.
    #[doc(alias = "hardswish")]
    hard_swish = HardSwish() on Float;
    /// `x + bias` below `−lambda`, `x − bias` above `lambda`, else 0.
    #[doc(alias = "softshrink")]
    #[doc(alias = "hardshrink")]
    shrink = Shrink(lambda, bias) on Float;
}

macro_rules! binary_ops {
    ($($(#[$doc:meta])* $name:ident = $op:ident;)*) => {
        /// Functions of two operands, element by element. Both have the same element type. Shapes broadcast as in
        /// NumPy.
        impl TensorCommands<'_, '_> {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name<'a>(
                &'a self,
                a: impl Into<TensorOperand<'a>>,
                b: impl Into<TensorOperand<'a>>,
            ) -> OpResult<TensorValue<'a>> {
                let (a, b) = (a.into(), b.into());
                self.recorder().binary_op(stringify!($name), BinaryOp::$op, a, b)
            })*

            /// The function of that name, if there is one.
            #[track_caller]
            fn binary_by_name<'a>(
                &'a self,
                name: &str,
                a: TensorValue<'a>,
                b: TensorValue<'a>,
            ) -> Option<OpResult<TensorValue<'a>>> {
                $(if name == stringify!($name) {
                    return Some(self.$name(a, b));
                })*
                None
            }
        }
    };
}

binary_ops! {
    /// The sum. Integers wrap.
    add = Add;
    /// The difference. Integers wrap.
    #[doc(alias = "subtract")]
    sub = Sub;
    /// The product, element by element. Integers wrap.
    #[doc(alias = "multiply")]
    mul = Mul;
    /// The quotient. Floats follow IEEE-754: `x / 0` is ±∞ and `0 / 0` is NaN. Integers truncate, and `x / 0` is `x`.
    #[doc(alias = "divide")]
    #[doc(alias = "true_divide")]
    div = Div;
    /// `a` to the power of `b`.
    #[doc(alias = "power")]
    pow = Pow;
    /// The smaller element, or NaN if one of them is NaN.
    #[doc(alias = "minimum")]
    min = Min;
    /// The larger element, or NaN if one of them is NaN.
    #[doc(alias = "maximum")]
    max = Max;
    /// The remainder with the sign of the divisor, as Python's `%`.
    #[doc(alias = "remainder")]
    #[doc(alias = "mod")]
    modulo = Mod;
    /// The remainder with the sign of the dividend, as C's `fmod`.
    #[doc(alias = "fmod")]
    rem = Rem;
    /// Whether `a = b`.
    #[doc(alias = "eq")]
    equal = Eq;
    /// Whether `a ≠ b`.
    #[doc(alias = "ne")]
    not_equal = Ne;
    /// Whether `a < b`.
    #[doc(alias = "lt")]
    less = Lt;
    /// Whether `a ≤ b`.
    #[doc(alias = "le")]
    less_equal = Le;
    /// Whether `a > b`.
    #[doc(alias = "gt")]
    greater = Gt;
    /// Whether `a ≥ b`.
    #[doc(alias = "ge")]
    greater_equal = Ge;
    /// Logical and.
    #[doc(alias = "logical_and")]
    and = And;
    /// Logical or.
    #[doc(alias = "logical_or")]
    or = Or;
    /// Logical exclusive or.
    #[doc(alias = "logical_xor")]
    xor = Xor;
    /// The bits that both integers have.
    #[doc(alias = "bitwise_and")]
    bit_and = BitAnd;
    /// The bits that at least one of the integers has.
    #[doc(alias = "bitwise_or")]
    bit_or = BitOr;
    /// The bits that exactly one of the integers has.
    #[doc(alias = "bitwise_xor")]
    bit_xor = BitXor;
    /// `a` with its bits moved up by `b`. A shift by the width of the type or more gives 0.
    #[doc(alias = "bitwise_left_shift")]
    shift_left = ShiftLeft;
    /// `a` with its bits moved down by `b`. Signed integers keep their sign.
    #[doc(alias = "bitwise_right_shift")]
    shift_right = ShiftRight;
}

impl TensorCommands<'_, '_> {
    /// The elementwise op of that name with one operand or two, if there is one.
    #[track_caller]
    pub(crate) fn elementwise_by_name<'a>(
        &'a self,
        name: &str,
        a: TensorValue<'a>,
        b: Option<TensorValue<'a>>,
    ) -> Option<OpResult<TensorValue<'a>>> {
        match b {
            Some(b) => self.binary_by_name(name, a, b),
            None => self.unary_by_name(name, a),
        }
    }

    /// `min(max(x, low), high)`. Either bound may be infinite.
    #[doc(alias = "clip")]
    #[track_caller]
    pub fn clamp<'a>(&'a self, x: impl Into<TensorOperand<'a>>, low: f64, high: f64) -> OpResult<TensorValue<'a>> {
        let x = x.into();
        self.recorder().unary_op("clamp", UnaryOp::Clamp, x, &[low, high], Domain::Number)
    }

    /// `x` if positive, else `slope · x`. The slope is a tensor that broadcasts to `x`.
    #[doc(alias = "parametric_relu")]
    #[track_caller]
    pub fn prelu<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        slope: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "prelu";
        let (x, slope) = (x.into(), slope.into());
        let rec = &mut self.recorder();
        let (x, slope) = (rec.arg(OP, x)?, rec.arg(OP, slope)?);
        let scaled = rec.binary_args(OP, BinaryOp::Mul, x, slope)?;
        let shape = rec.shape_of_arg(scaled);
        // Both are on one backend now, or `x` is a number that the product has moved.
        let mut args = [x, scaled];
        rec.same_backend(OP, &mut args)?;
        let x = rec.number_as(args[0], rec.dtype_of_arg(scaled));
        let part = rec.part(scaled);
        let x = part.broadcast(x.node, &shape);
        let zero = part.full(0.0, &shape, part.dtype(x));
        let positive = part.binary(BinaryOp::Ge, x, zero);
        let node = part.select(positive, x, scaled.node);
        rec.value(scaled.backend, node)
    }

    /// `yes` where `condition` is true, else `no`. All three broadcast.
    #[doc(alias = "where")]
    #[track_caller]
    pub fn select<'a>(
        &'a self,
        condition: impl Into<TensorOperand<'a>>,
        yes: impl Into<TensorOperand<'a>>,
        no: impl Into<TensorOperand<'a>>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "select";
        let (condition, yes, no) = (condition.into(), yes.into(), no.into());
        let rec = &mut self.recorder();
        let mut args = [rec.arg(OP, condition)?, rec.arg(OP, yes)?, rec.arg(OP, no)?];
        let backend = rec.same_backend(OP, &mut args)?;
        let [condition, yes, no] = args;
        if rec.dtype_of_arg(condition) != DType::Bool {
            return Err(rec.type_error(OP, &[condition], "the condition must be bool"));
        }
        let (yes, no) = rec.number_types(yes, no);
        if rec.dtype_of_arg(yes) != rec.dtype_of_arg(no) {
            return Err(rec.type_error(OP, &[yes, no], DIFFERENT_TYPES));
        }
        let shapes = [condition, yes, no].map(|arg| rec.part_ref(arg).shape(arg.node));
        let shape = shapes[0]
            .broadcast(shapes[1])
            .and_then(|shape| shape.broadcast(shapes[2]))
            .ok_or_else(|| rec.shape_error(OP, &[condition, yes, no], NO_BROADCAST))?;
        let part = rec.part(yes);
        let [condition, yes, no] = [condition, yes, no].map(|arg| part.broadcast(arg.node, &shape));
        let node = part.select(condition, yes, no);
        rec.value(backend, node)
    }

    /// Converts to another element type.
    ///
    /// Floats become integers by rounding towards zero and saturating. Integers wrap into narrower ones. `bool` is
    /// `x != 0`. A cast to a quantised type is [`quantize`](Self::quantize). A cast from one goes through `f32`.
    #[doc(alias = "astype")]
    #[doc(alias = "to")]
    #[track_caller]
    pub fn cast<'a>(&'a self, x: impl Into<TensorOperand<'a>>, dtype: DType) -> OpResult<TensorValue<'a>> {
        const OP: &str = "cast";
        let x = x.into();
        let rec = &mut self.recorder();
        let mut x = rec.any_arg(OP, x)?;
        let from = rec.dtype_of_arg(x);
        if from.is_quantized() && from != dtype {
            x.node = rec.part(x).cast(x.node, DType::F32);
        }
        if dtype.is_quantized() && from != dtype {
            return match rec.dtype_of_arg(x).is_float() {
                true => rec.quantize_arg(OP, x, dtype),
                false => Err(rec.type_error(OP, &[x], format!("only floats can become {dtype}"))),
            };
        }
        let node = rec.part(x).cast(x.node, dtype);
        rec.value(x.backend, node)
    }
}

/// Why two operands do not fit each other.
pub(super) enum Misfit {
    Type(&'static str),
    Shape(&'static str),
}

const DIFFERENT_TYPES: &str = "both must have one element type; cast one";
const NO_BROADCAST: &str = "the shapes do not broadcast";

/// The rule of functions of two operands: the shape of the result.
pub(super) fn binary_shape(
    function: BinaryOp,
    (of_a, a): (&Shape, DType),
    (of_b, b): (&Shape, DType),
) -> Result<Shape, Misfit> {
    if a != b {
        return Err(Misfit::Type(DIFFERENT_TYPES));
    }
    let domain = match function {
        f if f.is_logical() => Domain::Truth,
        f if f.is_bitwise() => Domain::Integer,
        BinaryOp::Eq | BinaryOp::Ne => Domain::Any,
        _ => Domain::Number,
    };
    if !domain.takes(a) {
        return Err(Misfit::Type(domain.reason()));
    }
    of_a.broadcast(of_b).ok_or(Misfit::Shape(NO_BROADCAST))
}

impl<'a> Recorder<'a> {
    fn unary_op(
        &mut self,
        op: &'static str,
        function: UnaryOp,
        x: TensorOperand<'_>,
        scalars: &[f64],
        domain: Domain,
    ) -> OpResult<TensorValue<'a>> {
        let x = self.arg(op, x)?;
        let dtype = self.dtype_of_arg(x);
        if !domain.takes(dtype) {
            return Err(self.type_error(op, &[x], domain.reason()));
        }
        let mut bits = [0; 2];
        for (bits, &value) in bits.iter_mut().zip(scalars) {
            *bits = scalar_bits(value, dtype.wide());
        }
        let node = self.part(x).unary_with(function, x.node, &bits[..scalars.len()]);
        self.value(x.backend, node)
    }

    fn binary_op(
        &mut self,
        op: &'static str,
        function: BinaryOp,
        a: TensorOperand<'_>,
        b: TensorOperand<'_>,
    ) -> OpResult<TensorValue<'a>> {
        let (a, b) = (self.arg(op, a)?, self.arg(op, b)?);
        let result = self.binary_args(op, function, a, b)?;
        self.value(result.backend, result.node)
    }

    pub(super) fn binary_args(&mut self, op: &'static str, function: BinaryOp, a: Arg, b: Arg) -> OpResult<Arg> {
        let mut args = [a, b];
        let backend = self.same_backend(op, &mut args)?;
        let (a, b) = self.number_types(args[0], args[1]);
        let part = self.recording.part(backend);
        let (of_a, of_b) = (part.graph.node(a.node), part.graph.node(b.node));
        match binary_shape(function, (&of_a.shape, of_a.dtype), (&of_b.shape, of_b.dtype)) {
            Ok(shape) => {
                let (a, b) = (part.broadcast(a.node, &shape), part.broadcast(b.node, &shape));
                let node = part.binary(function, a, b);
                Ok(Arg { node, backend, entity: None, number: None })
            }
            Err(Misfit::Type(reason)) => Err(self.type_error(op, &[a, b], reason)),
            Err(Misfit::Shape(reason)) => Err(self.shape_error(op, &[a, b], reason)),
        }
    }

    /// Gives a number the element type of the other operand.
    fn number_types(&mut self, a: Arg, b: Arg) -> (Arg, Arg) {
        match (a.number, b.number) {
            (Some(_), None) => (self.number_as(a, self.dtype_of_arg(b)), b),
            (None, Some(_)) => (a, self.number_as(b, self.dtype_of_arg(a))),
            _ => (a, b),
        }
    }
}
