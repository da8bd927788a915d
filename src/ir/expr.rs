//! The scalar expressions of fused kernels: one definition of every elementwise function, which the CPU interprets and the GPU
//! gets as generated WGSL.
//!
//! A [`Program`] is a list of primitive steps over registers. Composite functions (`gelu`, `mish`, …) are spelled out here in primitives, once.

use std::sync::Arc;

use super::{BinaryOp, Class, DType, ElementFunction, MAX_ARGUMENTS, UnaryOp};

/// The result of one step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reg(pub u16);

/// One step. Operands are earlier registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Expr {
    /// The element of input number `i` at the current index, widened to its class.
    Input(u16, Class),
    /// Number `i` of the step's scalars.
    Scalar(u16, Class),
    /// A number known when the plan is made (its bits).
    Const(u32, Class),
    Unary(Primitive, Reg),
    /// Operands of one class. Comparisons and logic give `Uint` 0 or 1; the rest their operands' class.
    Binary(BinaryOp, Reg, Reg),
    /// A `Uint` condition, then two values of one class.
    Select(Reg, Reg, Reg),
    /// To the class of `DType` and into its range: floats become integers towards zero and saturate (NaN gives 0), integers wrap, `Bool`
    /// is `x != 0`, `F16` rounds to what a half can hold.
    Cast(Reg, DType),
    /// 32 well-mixed bits from a position and a seed, both `Uint`.
    Hash(Reg, Reg),
    /// Function number `i` of the program, of arguments of its classes.
    Call(u16, Arguments),
}

/// What a function is called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arguments {
    regs: [Reg; MAX_ARGUMENTS],
    count: u8,
}

impl Arguments {
    /// At most [`MAX_ARGUMENTS`].
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

/// Functions that backends implement themselves. All but those noted are float to float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Primitive {
    /// Any class; unsigned wraps.
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
    /// Any class; NaN stays.
    Sign,
    Erf,
    Tanh,
    /// `Uint` truth value.
    Not,
    /// Float to `Uint` truth value.
    IsNan,
    /// Float to `Uint` truth value.
    IsInf,
}

impl Expr {
    /// About how many additions the step costs.
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
            // Rounding to a half is done bit by bit.
            Expr::Cast(_, DType::F16) | Expr::Hash(..) => 8,
            Expr::Select(..) | Expr::Cast(..) => 1,
            // Nobody knows; enough not to be repeated.
            Expr::Call(..) => 20,
        }
    }

    /// The registers the step reads.
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

/// A fused kernel's computation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Program {
    pub exprs: Vec<Expr>,
    /// What [`Expr::Call`] names by number.
    pub functions: Vec<Arc<ElementFunction>>,
    /// What each output of the step gets.
    pub outputs: Vec<Reg>,
}

impl Program {
    /// The arithmetic register `reg` is in.
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

    /// A call of a user's function.
    pub(crate) fn call(&mut self, function: &Arc<ElementFunction>, arguments: impl IntoIterator<Item = Reg>) -> Reg {
        let at = self.functions.iter().position(|f| f == function).unwrap_or_else(|| {
            self.functions.push(function.clone());
            self.functions.len() - 1
        });
        self.push(Expr::Call(at as u16, Arguments::new(arguments)))
    }

    /// Appends a step, or finds the equal one that is there.
    pub(crate) fn push(&mut self, expr: Expr) -> Reg {
        // Programs are short and their steps cheap to compare, so a scan beats a map.
        let at = self.exprs.iter().position(|e| *e == expr).unwrap_or_else(|| {
            self.exprs.push(expr);
            self.exprs.len() - 1
        });
        Reg(at as u16)
    }

    /// Appends another program, whose inputs and scalars become what the two functions give; its registers' names here.
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

    /// A constant of the class of `like`; `value` must be exact there.
    fn constant(&mut self, like: Reg, value: f32) -> Reg {
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

    /// Puts a register of a class into the range of a narrower integer type of that class, where arithmetic may have left it. Halves are
    /// left as they are: a fused chain keeps the extra bits until it is stored.
    pub(crate) fn wrap(&mut self, x: Reg, dtype: DType) -> Reg {
        match dtype {
            DType::I8 | DType::U8 => self.push(Expr::Cast(x, dtype)),
            _ => x,
        }
    }

    /// Spells out an elementwise function. `scalars` are registers of the op's scalars.
    pub(crate) fn unary(&mut self, op: UnaryOp, x: Reg, scalars: &[Reg]) -> Reg {
        use BinaryOp::{Add, Div, Ge, Gt, Max, Min, Mul, Sub};
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
            UnaryOp::Floor => un!(Floor, x),
            UnaryOp::Ceil => un!(Ceil, x),
            UnaryOp::Round => un!(Round, x),
            UnaryOp::Trunc => un!(Trunc, x),
            UnaryOp::Sign => un!(Sign, x),
            UnaryOp::Erf => un!(Erf, x),
            UnaryOp::Tanh => un!(Tanh, x),
            UnaryOp::Not => un!(Not, x),
            UnaryOp::IsNan => un!(IsNan, x),
            UnaryOp::IsInf => un!(IsInf, x),
            UnaryOp::Rsqrt => bin!(Div, c!(1.0), un!(Sqrt, x)),
            UnaryOp::Recip => bin!(Div, c!(1.0), x),
            UnaryOp::Relu => bin!(Max, x, c!(0.0)),
            UnaryOp::LeakyRelu => select!(bin!(Ge, x, c!(0.0)), x, bin!(Mul, x, scalars[0])),
            UnaryOp::Elu => {
                // The exponential only ever sees the negative half, so a large x cannot overflow it.
                let below = bin!(Sub, un!(Exp, bin!(Min, x, c!(0.0))), c!(1.0));
                select!(bin!(Gt, x, c!(0.0)), x, bin!(Mul, scalars[0], below))
            }
            UnaryOp::Selu => {
                let below = bin!(Sub, un!(Exp, bin!(Min, x, c!(0.0))), c!(1.0));
                let below = bin!(Mul, c!(1.673_263_2), below);
                bin!(Mul, c!(1.050_701), select!(bin!(Gt, x, c!(0.0)), x, below))
            }
            UnaryOp::Celu => {
                let scaled = bin!(Div, bin!(Min, x, c!(0.0)), scalars[0]);
                let below = bin!(Mul, scalars[0], bin!(Sub, un!(Exp, scaled), c!(1.0)));
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
            UnaryOp::Softplus => self.softplus(x),
            UnaryOp::Softsign => bin!(Div, x, bin!(Add, c!(1.0), un!(Abs, x))),
            UnaryOp::Mish => {
                let softplus = self.softplus(x);
                bin!(Mul, x, un!(Tanh, softplus))
            }
            UnaryOp::HardSwish => {
                let line = bin!(Add, bin!(Mul, x, c!(1.0 / 6.0)), c!(0.5));
                bin!(Mul, x, bin!(Max, bin!(Min, line, c!(1.0)), c!(0.0)))
            }
            UnaryOp::Clamp => bin!(Min, bin!(Max, x, scalars[0]), scalars[1]),
            UnaryOp::RandomUniform => {
                let bits = self.random_24(x, scalars[0]);
                let unit = self.constant_f32(1.0 / 16_777_216.0);
                bin!(Mul, bits, unit)
            }
            UnaryOp::RandomNormal => {
                // Box–Muller on two streams of the same position; the +1 keeps the logarithm's argument above 0.
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

    /// The top 24 bits of the hash of a position, as a whole float, which holds them exactly.
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

    /// `max(x, 0) + ln(1 + e^−|x|)`, which neither overflows nor loses small values.
    fn softplus(&mut self, x: Reg) -> Reg {
        let (zero, one) = (self.constant(x, 0.0), self.constant(x, 1.0));
        let magnitude = self.un(Primitive::Abs, x);
        let minus = self.un(Primitive::Neg, magnitude);
        let exp = self.un(Primitive::Exp, minus);
        let sum = self.binary(BinaryOp::Add, one, exp);
        let log = self.un(Primitive::Log, sum);
        let positive = self.binary(BinaryOp::Max, x, zero);
        self.binary(BinaryOp::Add, positive, log)
    }
}
