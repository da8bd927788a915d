//! The scalar expressions of fused kernels. Each elementwise function is defined once. The CPU backend interprets the
//! definition, and the GPU backend generates WGSL from it.
//!
//! A [`Program`] is a list of primitive steps over registers. Composite functions (`gelu`, `mish`, …) are expanded into
//! primitives here.

use std::sync::Arc;

use super::{BinaryOp, Class, DType, ElementFunction, MAX_ARGUMENTS, UnaryOp};

/// A register: the result of one step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reg(pub u16);

/// One step of a program. Its operands are earlier registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Expr {
    /// The element of input `i` at the current index, widened to its class.
    Input(u16, Class),
    /// Scalar `i` of the step.
    Scalar(u16, Class),
    /// A constant that is known at planning time, as bits.
    Const(u32, Class),
    Unary(Primitive, Reg),
    /// Both operands have the same class. Comparisons and logical ops return `Uint` 0 or 1. The others return the class
    /// of their operands.
    Binary(BinaryOp, Reg, Reg),
    /// A `Uint` condition, then two values of the same class.
    Select(Reg, Reg, Reg),
    /// Converts to the class and the value range of `DType`. Floats are truncated and saturate when they become
    /// integers (NaN becomes 0). Integers wrap. `Bool` is `x != 0`. `F16` and `BF16` round to
    /// their precision.
    Cast(Reg, DType),
    /// A 32-bit hash of a position and a seed, both `Uint`.
    Hash(Reg, Reg),
    /// A call of function `i` of the program.
    Call(u16, Arguments),
}

/// The arguments of a function call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arguments {
    regs: [Reg; MAX_ARGUMENTS],
    count: u8,
}

impl Arguments {
    /// Takes at most [`MAX_ARGUMENTS`] registers.
    pub(crate) fn new(regs: impl IntoIterator<Item = Reg>) -> Self {
        let mut arguments = Self { regs: [Reg(0); MAX_ARGUMENTS], count: 0 };
        for (place, reg) in arguments.regs.iter_mut().zip(regs) {
            *place = reg;
            arguments.count += 1;
        }
        arguments
    }

    pub(crate) fn regs(&self) -> &[Reg] {
        &self.regs[..self.count as usize]
    }
}

/// Functions that each backend implements. They map float to float unless noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Primitive {
    /// Any class. Unsigned integers wrap.
    Neg,
    /// Any class.
    Abs,
    Exp,
    Log,
    Sqrt,
    Sin,
    Cos,
    Floor,
    Ceil,
    Round,
    Trunc,
    /// Any class. NaN stays NaN.
    Sign,
    Erf,
    Tanh,
    /// `Uint` boolean to `Uint` boolean.
    Not,
    /// Integers.
    BitNot,
    /// Float to `Uint` boolean.
    IsNan,
    /// Float to `Uint` boolean.
    IsInf,
}

impl Expr {
    /// Estimated cost of the step, in additions.
    pub(crate) fn cost(&self) -> usize {
        match self {
            Expr::Input(..) | Expr::Scalar(..) | Expr::Const(..) => 0,
            Expr::Unary(op, _) => match op {
                Primitive::Exp
                | Primitive::Log
                | Primitive::Sin
                | Primitive::Cos
                | Primitive::Erf
                | Primitive::Tanh => 20,
                Primitive::Sqrt => 4,
                _ => 1,
            },
            Expr::Binary(op, ..) => match op {
                BinaryOp::Pow => 20,
                BinaryOp::Div | BinaryOp::Mod | BinaryOp::Rem => 4,
                _ => 1,
            },
            // Rounding to half precision takes several bit operations.
            Expr::Cast(_, DType::F16 | DType::BF16) | Expr::Hash(..) => 8,
            Expr::Select(..) | Expr::Cast(..) => 1,
            // The cost is unknown. This value is high enough that fusion does not duplicate the call.
            Expr::Call(..) => 20,
        }
    }

    /// The registers that the step reads.
    pub(crate) fn operands(&self) -> impl Iterator<Item = Reg> + use<> {
        let arguments = match *self {
            Expr::Input(..) | Expr::Scalar(..) | Expr::Const(..) => Arguments::new([]),
            Expr::Unary(_, x) | Expr::Cast(x, _) => Arguments::new([x]),
            Expr::Binary(_, a, b) | Expr::Hash(a, b) => Arguments::new([a, b]),
            Expr::Select(c, a, b) => Arguments::new([c, a, b]),
            Expr::Call(_, arguments) => arguments,
        };
        arguments.regs.into_iter().take(arguments.count as usize)
    }
}

/// The computation of a fused kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Program {
    pub exprs: Vec<Expr>,
    /// The functions that [`Expr::Call`] refers to by index.
    pub functions: Vec<Arc<ElementFunction>>,
    /// The register that each output of the step receives.
    pub outputs: Vec<Reg>,
}

impl Program {
    /// The class of register `reg`.
    pub(crate) fn class(&self, reg: Reg) -> Class {
        match self.exprs[reg.0 as usize] {
            Expr::Input(_, class) | Expr::Scalar(_, class) | Expr::Const(_, class) => class,
            Expr::Unary(Primitive::Not | Primitive::IsNan | Primitive::IsInf, _) | Expr::Hash(..) => Class::Uint,
            Expr::Unary(_, x) => self.class(x),
            Expr::Binary(op, ..) if op.is_comparison() || op.is_logical() => Class::Uint,
            Expr::Binary(_, x, _) | Expr::Select(_, x, _) => self.class(x),
            Expr::Cast(_, dtype) => dtype.class(),
            Expr::Call(function, _) => self.functions[function as usize].result,
        }
    }

    /// Appends a call of a user-written function.
    pub(crate) fn call(&mut self, function: &Arc<ElementFunction>, arguments: impl IntoIterator<Item = Reg>) -> Reg {
        let at = self.functions.iter().position(|f| f == function).unwrap_or_else(|| {
            self.functions.push(function.clone());
            self.functions.len() - 1
        });
        self.push(Expr::Call(at as u16, Arguments::new(arguments)))
    }

    /// Appends a step, or returns the existing register of an equal step.
    pub(crate) fn push(&mut self, expr: Expr) -> Reg {
        // Programs are short and steps are cheap to compare, so a linear scan is faster than a map.
        let at = self.exprs.iter().position(|e| *e == expr).unwrap_or_else(|| {
            self.exprs.push(expr);
            self.exprs.len() - 1
        });
        Reg(at as u16)
    }

    /// Appends another program. `input` and `scalar` supply its inputs and scalars. Returns the new registers of its
    /// steps.
    pub(crate) fn absorb(
        &mut self,
        other: &Program,
        mut input: impl FnMut(&mut Self, u16, Class) -> Reg,
        mut scalar: impl FnMut(&mut Self, u16, Class) -> Reg,
    ) -> Vec<Reg> {
        let mut regs: Vec<Reg> = Vec::with_capacity(other.exprs.len());
        for expr in &other.exprs {
            let at = |r: Reg| regs[r.0 as usize];
            let reg = match *expr {
                Expr::Input(i, class) => input(self, i, class),
                Expr::Scalar(i, class) => scalar(self, i, class),
                Expr::Const(bits, class) => self.push(Expr::Const(bits, class)),
                Expr::Unary(op, x) => self.push(Expr::Unary(op, at(x))),
                Expr::Binary(op, a, b) => self.push(Expr::Binary(op, at(a), at(b))),
                Expr::Select(c, a, b) => self.push(Expr::Select(at(c), at(a), at(b))),
                Expr::Cast(x, dtype) => self.push(Expr::Cast(at(x), dtype)),
                Expr::Hash(x, seed) => self.push(Expr::Hash(at(x), at(seed))),
                Expr::Call(function, arguments) => {
                    self.call(&other.functions[function as usize], arguments.regs().iter().map(|&r| at(r)))
                }
            };
            regs.push(reg);
        }
        regs
    }

    /// A constant of the same class as `like`. That class must represent `value` exactly.
    pub(super) fn constant(&mut self, like: Reg, value: f32) -> Reg {
        let class = self.class(like);
        let bits = match class {
            Class::Float => value.to_bits(),
            Class::Int => value as i32 as u32,
            Class::Uint => value as u32,
        };
        self.push(Expr::Const(bits, class))
    }

    fn un(&mut self, op: Primitive, x: Reg) -> Reg {
        self.push(Expr::Unary(op, x))
    }

    pub(crate) fn binary(&mut self, op: BinaryOp, a: Reg, b: Reg) -> Reg {
        self.push(Expr::Binary(op, a, b))
    }

    /// Wraps a register into the range of a narrower integer type after arithmetic. Halves are not rounded here:
    /// a fused chain keeps full precision until it is stored.
    pub(crate) fn wrap(&mut self, x: Reg, dtype: DType) -> Reg {
        match dtype {
            DType::I8 | DType::U8 => self.push(Expr::Cast(x, dtype)),
            _ => x,
        }
    }

    /// Expands an elementwise function into primitives. `scalars` are the registers of the op's scalars.
    pub(crate) fn unary(&mut self, op: UnaryOp, x: Reg, scalars: &[Reg]) -> Reg {
        use BinaryOp::{Add, And, Div, Ge, Gt, Lt, Max, Min, Mul, Sub};
        macro_rules! c {
            ($value:expr) => {
                self.constant(x, $value)
            };
        }
        macro_rules! bin {
            ($op:expr, $a:expr, $b:expr) => {{
                let (a, b) = ($a, $b);
                self.binary($op, a, b)
            }};
        }
        macro_rules! un {
            ($op:ident, $x:expr) => {{
                let x = $x;
                self.un(Primitive::$op, x)
            }};
        }
        macro_rules! select {
            ($c:expr, $a:expr, $b:expr) => {{
                let (c, a, b) = ($c, $a, $b);
                self.push(Expr::Select(c, a, b))
            }};
        }
        match op {
            UnaryOp::Neg => un!(Neg, x),
            UnaryOp::Abs => un!(Abs, x),
            UnaryOp::Exp => un!(Exp, x),
            UnaryOp::Log => un!(Log, x),
            UnaryOp::Sqrt => un!(Sqrt, x),
            UnaryOp::Sin => un!(Sin, x),
            UnaryOp::Cos => un!(Cos, x),
            UnaryOp::Tan => bin!(Div, un!(Sin, x), un!(Cos, x)),
            UnaryOp::Asin => self.asin(x),
            UnaryOp::Acos => self.acos(x),
            UnaryOp::Atan => self.atan(x),
            UnaryOp::Sinh => self.sinh(x),
            UnaryOp::Cosh => self.cosh(x),
            UnaryOp::Asinh => self.asinh(x),
            UnaryOp::Acosh => self.acosh(x),
            UnaryOp::Atanh => self.atanh(x),
            UnaryOp::Floor => un!(Floor, x),
            UnaryOp::Ceil => un!(Ceil, x),
            UnaryOp::Round => un!(Round, x),
            UnaryOp::Trunc => un!(Trunc, x),
            UnaryOp::Sign => un!(Sign, x),
            UnaryOp::Erf => un!(Erf, x),
            UnaryOp::Tanh => un!(Tanh, x),
            UnaryOp::Not => un!(Not, x),
            UnaryOp::BitNot => un!(BitNot, x),
            UnaryOp::IsNan => un!(IsNan, x),
            UnaryOp::IsInf => un!(IsInf, x),
            UnaryOp::IsPosInf => bin!(And, un!(IsInf, x), bin!(Gt, x, c!(0.0))),
            UnaryOp::IsNegInf => bin!(And, un!(IsInf, x), bin!(Lt, x, c!(0.0))),
            UnaryOp::Rsqrt => bin!(Div, c!(1.0), un!(Sqrt, x)),
            UnaryOp::Recip => bin!(Div, c!(1.0), x),
            UnaryOp::Relu => bin!(Max, x, c!(0.0)),
            UnaryOp::LeakyRelu => select!(bin!(Ge, x, c!(0.0)), x, bin!(Mul, x, scalars[0])),
            UnaryOp::Elu => {
                // `exp` only receives non-positive values, so a large x cannot overflow.
                let below = bin!(Min, x, c!(0.0));
                let far = bin!(Sub, un!(Exp, below), c!(1.0));
                let below = self.exp_minus_one(below, below, far);
                select!(bin!(Gt, x, c!(0.0)), x, bin!(Mul, scalars[0], below))
            }
            UnaryOp::Selu => {
                let below = bin!(Min, x, c!(0.0));
                let far = bin!(Sub, un!(Exp, below), c!(1.0));
                let below = bin!(Mul, c!(1.673_263_2), self.exp_minus_one(below, below, far));
                bin!(Mul, c!(1.050_701), select!(bin!(Gt, x, c!(0.0)), x, below))
            }
            UnaryOp::Celu => {
                let below = bin!(Min, x, c!(0.0));
                let scaled = bin!(Div, below, scalars[0]);
                let far = bin!(Mul, scalars[0], bin!(Sub, un!(Exp, scaled), c!(1.0)));
                // Near 0 the factor and the division cancel out, so that a huge factor does not enlarge rounding errors.
                let below = self.exp_minus_one(scaled, below, far);
                select!(bin!(Gt, x, c!(0.0)), x, below)
            }
            UnaryOp::ThresholdedRelu => select!(bin!(Gt, x, scalars[0]), x, c!(0.0)),
            UnaryOp::Sigmoid => self.sigmoid(x),
            UnaryOp::HardSigmoid => {
                let line = bin!(Add, bin!(Mul, scalars[0], x), scalars[1]);
                bin!(Max, bin!(Min, line, c!(1.0)), c!(0.0))
            }
            UnaryOp::Gelu => {
                let erf = un!(Erf, bin!(Mul, x, c!(core::f32::consts::FRAC_1_SQRT_2)));
                bin!(Mul, bin!(Mul, c!(0.5), x), bin!(Add, c!(1.0), erf))
            }
            UnaryOp::GeluTanh => {
                let cube = bin!(Mul, bin!(Mul, x, x), x);
                let inner = bin!(Add, x, bin!(Mul, c!(0.044_715), cube));
                let tanh = un!(Tanh, bin!(Mul, c!(0.797_884_6), inner));
                bin!(Mul, bin!(Mul, c!(0.5), x), bin!(Add, c!(1.0), tanh))
            }
            UnaryOp::Silu => {
                let gate = self.sigmoid(x);
                bin!(Mul, x, gate)
            }
            UnaryOp::Swish => {
                let gate = bin!(Mul, scalars[0], x);
                let gate = self.sigmoid(gate);
                bin!(Mul, x, gate)
            }
            UnaryOp::Softplus => self.softplus(x),
            UnaryOp::Softsign => bin!(Div, x, bin!(Add, c!(1.0), un!(Abs, x))),
            UnaryOp::Mish => {
                // tanh(ln(1 + e)) = n / (n + 2) with n = e · (e + 2), which loses no digits where e is small. From 20 on
                // the quotient is 1, and e² would overflow later.
                let e = un!(Exp, bin!(Min, x, c!(20.0)));
                let n = bin!(Mul, e, bin!(Add, e, c!(2.0)));
                bin!(Mul, x, bin!(Div, n, bin!(Add, n, c!(2.0))))
            }
            UnaryOp::HardSwish => {
                let line = bin!(Add, bin!(Mul, x, c!(1.0 / 6.0)), c!(0.5));
                bin!(Mul, x, bin!(Max, bin!(Min, line, c!(1.0)), c!(0.0)))
            }
            UnaryOp::Shrink => {
                let below = bin!(Lt, x, un!(Neg, scalars[0]));
                let above = select!(bin!(Gt, x, scalars[0]), bin!(Sub, x, scalars[1]), c!(0.0));
                select!(below, bin!(Add, x, scalars[1]), above)
            }
            UnaryOp::Clamp => bin!(Min, bin!(Max, x, scalars[0]), scalars[1]),
            UnaryOp::RandomUniform => {
                let bits = self.random_24(x, scalars[0]);
                let unit = self.constant_f32(1.0 / 16_777_216.0);
                bin!(Mul, bits, unit)
            }
            UnaryOp::RandomNormal => {
                // Box–Muller transform on two streams of the same position. The +1 keeps the argument of the logarithm
                // above 0.
                let position = self.push(Expr::Cast(x, DType::U32));
                let two = self.constant(position, 2.0);
                let one = self.constant(position, 1.0);
                let even = self.binary(Mul, position, two);
                let odd = self.binary(Add, even, one);
                let (u, v) = (self.random_24(even, scalars[0]), self.random_24(odd, scalars[0]));
                let unit = self.constant_f32(1.0 / 16_777_216.0);
                let turn = self.constant_f32(core::f32::consts::TAU / 16_777_216.0);
                let one = self.constant_f32(1.0);
                let minus_two = self.constant_f32(-2.0);
                let log = un!(Log, bin!(Mul, bin!(Add, u, one), unit));
                let radius = un!(Sqrt, bin!(Mul, minus_two, log));
                bin!(Mul, radius, un!(Cos, bin!(Mul, v, turn)))
            }
        }
    }

    fn constant_f32(&mut self, value: f32) -> Reg {
        self.push(Expr::Const(value.to_bits(), Class::Float))
    }

    /// The top 24 bits of the hash of a position, as a float. A float represents them exactly.
    fn random_24(&mut self, position: Reg, seed: Reg) -> Reg {
        let position = self.push(Expr::Cast(position, DType::U32));
        let bits = self.push(Expr::Hash(position, seed));
        let shift = self.constant(bits, 256.0);
        let top = self.binary(BinaryOp::Div, bits, shift);
        self.push(Expr::Cast(top, DType::F32))
    }

    fn sigmoid(&mut self, x: Reg) -> Reg {
        let one = self.constant(x, 1.0);
        let minus = self.un(Primitive::Neg, x);
        let exp = self.un(Primitive::Exp, minus);
        let below = self.binary(BinaryOp::Add, one, exp);
        self.binary(BinaryOp::Div, one, below)
    }

    /// `max(x, 0) + ln(1 + u)` with `u = e^−|x|`. This form does not overflow. The logarithm of a number near 1 has few
    /// digits, so it is the series of `2 · atanh(u / (2 + u))`, whose argument is at most 1/3.
    fn softplus(&mut self, x: Reg) -> Reg {
        let (zero, two) = (self.constant(x, 0.0), self.constant(x, 2.0));
        let magnitude = self.un(Primitive::Abs, x);
        let minus = self.un(Primitive::Neg, magnitude);
        let exp = self.un(Primitive::Exp, minus);
        let below = self.binary(BinaryOp::Add, two, exp);
        let z = self.binary(BinaryOp::Div, exp, below);
        let square = self.binary(BinaryOp::Mul, z, z);
        let mut series = self.constant(x, 1.0 / 13.0);
        for odd in [11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
            let term = self.constant(x, 1.0 / odd);
            let scaled = self.binary(BinaryOp::Mul, series, square);
            series = self.binary(BinaryOp::Add, term, scaled);
        }
        let twice = self.binary(BinaryOp::Mul, two, z);
        let log = self.binary(BinaryOp::Mul, twice, series);
        let positive = self.binary(BinaryOp::Max, x, zero);
        self.binary(BinaryOp::Add, positive, log)
    }
}
