//! The ops: what a node of a recording does.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{CustomCall, ElementFunction, Layout};

/// What a node does. Attributes here are structure: two ops that differ in them need different plans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    // Leaves.
    /// The content of a storage at this point of the order, seen through `layout`.
    Load {
        slot: u32,
        layout: Layout,
    },
    /// Host data that arrives with this recording (`Part::host`).
    Host {
        index: u32,
    },
    /// Host data that is the same in every recording of this structure, such as an interpolation table.
    Const {
        words: Arc<[u32]>,
    },
    /// One scalar, rank 0.
    Scalar,
    /// 0, 1, 2, … as `i32`, rank 1.
    Iota,

    // One result per element; any chain of these becomes one kernel.
    Unary(UnaryOp),
    /// Inputs and output have one shape (broadcasts are explicit views) and the inputs one dtype.
    Binary(BinaryOp),
    /// Inputs: condition (bool), value if true, value if false.
    Select,
    /// To the node's dtype.
    Cast,
    /// A user's function of single numbers. Inputs have the output's shape and the classes of the function's arguments.
    Function(Arc<ElementFunction>),

    // The same elements seen differently; never a kernel of their own unless a copy is unavoidable.
    View(View),

    // Kernels. Sizes come from the input shapes; attributes are what shapes do not say.
    /// `[…, m, k] · […, k, n]`, both of one rank, with equal batch axes (broadcasts are explicit views).
    MatMul {
        inner: InnerOp,
    },
    /// `[m, k] · [n, k]ᵀ` as `f32`. The right side is of a quantised type, or `i8` with `k` a multiple of 4.
    QuantMatMul,
    /// To the node's dtype, a quantised one, in blocks along the last axis.
    Quantize,
    /// Over consecutive axes `axis..axis + count` of the input; the output keeps them as size 1.
    Reduce {
        kind: ReduceKind,
        axis: usize,
        count: usize,
    },
    Softmax {
        axis: usize,
        log: bool,
    },
    /// Over the last axis. Inputs: x, then weight and bias of the axis's length, as flagged. Scalar: epsilon.
    RowNorm {
        kind: NormKind,
        weight: bool,
        bias: bool,
    },
    CumSum {
        axis: usize,
        exclusive: bool,
    },
    /// Positions (`i32`) of the `k` largest or smallest of the last axis, best first; equal values by position.
    TopK {
        k: usize,
        largest: bool,
    },
    /// Inputs: `x [n, c, d, h, w]`, `weight [out, c / groups, kd, kh, kw]`, and a bias `[out]` if flagged.
    Conv {
        window: Window,
        groups: usize,
        bias: bool,
    },
    /// Inputs: `x [n, c, d, h, w]`, `weight [c, out / groups, kd, kh, kw]`, and a bias if flagged.
    ConvTranspose {
        window: Window,
        groups: usize,
        bias: bool,
    },
    /// Input `[n, c, d, h, w]`.
    Pool {
        kind: PoolKind,
        window: Window,
    },
    /// A weighted sum of `taps` elements of `axis` for each output position of that axis. Inputs: x, positions `i32 [out, taps]`,
    /// weights `f32 [out, taps]`.
    Taps {
        axis: usize,
    },
    /// Inputs: data, integer indices of any shape; the axis is replaced by the indices' axes.
    Gather {
        axis: usize,
    },
    /// Inputs: data, integer indices of the output's shape.
    GatherElements {
        axis: usize,
    },
    /// Inputs: data, integer indices `[…batch, …, depth]`.
    GatherNd {
        batch: usize,
    },
    /// Inputs: data, integer indices, updates of the indices' shape.
    ScatterElements {
        axis: usize,
        reduce: ScatterReduce,
    },
    /// Inputs: data, integer indices `[…, depth]`, updates.
    ScatterNd {
        reduce: ScatterReduce,
    },
    /// Inputs: `q [b, h, s, d]`, `k [b, g, t, d]`, `v [b, g, t, e]`, and an additive mask `[b, h, s, t]` (a broadcast view) if flagged.
    /// Scalars: scale (f32), softcap (f32, 0 = none), valid key count (u32), position of the first query among the keys (i32).
    Attention {
        causal: bool,
        mask: bool,
    },
    /// The output is put together from the inputs: input `i` lies at `places[i]`, a view of the contiguous output.
    /// With `fill`, everything else is the scalar; without, the places cover all.
    Assemble {
        places: Box<[Layout]>,
        fill: bool,
    },

    /// A user's kernel. Inputs and outputs are of 32-bit types; the value is the first output, those of the nodes that follow at once are the others.
    /// Scalars: the words of the params.
    Custom(Box<CustomCall>),
    /// Another output, number `index`, of the input, a user's kernel.
    CustomOutput {
        index: usize,
    },

    // Effects: what keeps other nodes alive.
    /// Writes the input into a storage. With `at`, the scalar (u32) moves the place along that axis of `layout`.
    Store {
        slot: u32,
        layout: Layout,
        at: Option<usize>,
    },
    /// Sends the input to the host, as request number `request` of the recording (`Part::requests`).
    Read {
        request: u32,
    },
}

impl Op {
    /// How many scalars the op takes.
    pub(crate) fn scalars(&self) -> usize {
        match self {
            Op::Scalar | Op::RowNorm { .. } => 1,
            Op::Unary(op) => op.scalars(),
            Op::Attention { .. } => 4,
            Op::Assemble { fill, .. } => usize::from(*fill),
            Op::Store { at, .. } => usize::from(at.is_some()),
            Op::Custom(call) => call.code.param_words(),
            Op::Load { .. }
            | Op::Host { .. }
            | Op::Const { .. }
            | Op::Iota
            | Op::Binary(_)
            | Op::Select
            | Op::Cast
            | Op::Function(_)
            | Op::View(_)
            | Op::MatMul { .. }
            | Op::QuantMatMul
            | Op::Quantize
            | Op::Reduce { .. }
            | Op::Softmax { .. }
            | Op::CumSum { .. }
            | Op::TopK { .. }
            | Op::Conv { .. }
            | Op::ConvTranspose { .. }
            | Op::Pool { .. }
            | Op::Taps { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::CustomOutput { .. }
            | Op::Read { .. } => 0,
        }
    }

    /// What the op is to the planner.
    pub(crate) fn kind(&self) -> OpKind {
        match self {
            Op::Load { .. } | Op::Host { .. } | Op::Const { .. } => OpKind::Source,
            Op::Scalar | Op::Iota | Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast | Op::Function(_) => {
                OpKind::Elementwise
            }
            Op::View(_) => OpKind::View,
            Op::MatMul { .. }
            | Op::QuantMatMul
            | Op::Quantize
            | Op::Reduce { .. }
            | Op::Softmax { .. }
            | Op::RowNorm { .. }
            | Op::CumSum { .. }
            | Op::TopK { .. }
            | Op::Conv { .. }
            | Op::ConvTranspose { .. }
            | Op::Pool { .. }
            | Op::Taps { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::Attention { .. }
            | Op::Custom(_)
            | Op::CustomOutput { .. } => OpKind::Kernel,
            Op::Assemble { .. } => OpKind::Assembly,
            Op::Store { .. } | Op::Read { .. } => OpKind::Effect,
        }
    }

    /// Whether the op computes each output element from the same element of its inputs.
    pub(crate) fn is_elementwise(&self) -> bool {
        self.kind() == OpKind::Elementwise
    }

    /// Whether the op changes something outside the graph.
    pub(crate) fn is_effect(&self) -> bool {
        self.kind() == OpKind::Effect
    }
}

/// What an op is to the planner, before it looks closer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// Data that is there already.
    Source,
    /// Each element of the result comes from the same element of the inputs.
    Elementwise,
    /// The same elements seen differently.
    View,
    /// Computed by a kernel of its own.
    Kernel,
    /// Put together from its inputs.
    Assembly,
    /// Changes something outside the graph.
    Effect,
}

/// A way of seeing the same elements. The node's shape is the result's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum View {
    Reshape,
    Broadcast,
    Permute(SmallVec<[usize; 6]>),
    Slice { axis: usize, start: usize, step: isize },
}

/// Functions of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `-x`.
    Neg,
    /// Magnitude.
    Abs,
    /// `eˣ`.
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// `1 / √x`.
    Rsqrt,
    /// `1 / x`.
    Recip,
    /// Sine, in radians.
    Sin,
    /// Cosine, in radians.
    Cos,
    /// Largest integer not above.
    Floor,
    /// Smallest integer not below.
    Ceil,
    /// Nearest integer, halves to even.
    Round,
    /// Towards zero.
    Trunc,
    /// −1, 0 or 1.
    Sign,
    /// The error function.
    Erf,
    /// Logical not.
    Not,
    /// Whether not a number.
    IsNan,
    /// Whether infinite.
    IsInf,
    /// `max(x, 0)`.
    Relu,
    /// `x` where positive, else `x · scalar 0`.
    LeakyRelu,
    /// `x` where positive, else `scalar 0 · (eˣ − 1)`.
    Elu,
    /// The self-normalising ELU.
    Selu,
    /// `max(0, x) + min(0, a·(e^(x/a) − 1))` with `a` = scalar 0.
    Celu,
    /// `x` where above scalar 0, else 0.
    ThresholdedRelu,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `clamp(scalar 0 · x + scalar 1, 0, 1)`.
    HardSigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// GELU by the error function.
    Gelu,
    /// GELU by the tanh approximation.
    GeluTanh,
    /// `x · sigmoid(x)`.
    Silu,
    /// `ln(1 + eˣ)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x · tanh(softplus(x))`.
    Mish,
    /// `x · clamp(x / 6 + 0.5, 0, 1)`.
    HardSwish,
    /// `min(max(x, scalar 0), scalar 1)`.
    Clamp,
    /// From an integer position: a uniform number in [0, 1) of the stream seeded by scalar 0.
    RandomUniform,
    /// From an integer position: a standard normal number of the stream seeded by scalar 0.
    RandomNormal,
}

impl UnaryOp {
    pub(crate) fn scalars(self) -> usize {
        match self {
            Self::LeakyRelu
            | Self::Elu
            | Self::Celu
            | Self::ThresholdedRelu
            | Self::RandomUniform
            | Self::RandomNormal => 1,
            Self::HardSigmoid | Self::Clamp => 2,
            _ => 0,
        }
    }
}

/// Functions of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// Sum; integers wrap.
    Add,
    /// Difference; integers wrap.
    Sub,
    /// Product; integers wrap.
    Mul,
    /// Quotient: IEEE-754 for floats; integers truncate, and `x / 0` is `x`.
    Div,
    /// Power; a negative float base needs a whole exponent (else NaN); a negative integer exponent gives 0, but for base ±1, whose powers stay ±1.
    Pow,
    /// The smaller; NaN wins.
    Min,
    /// The larger; NaN wins.
    Max,
    /// Remainder with the sign of the divisor (Python's `%`); integer `x % 0` is 0.
    Mod,
    /// Remainder with the sign of the dividend (C's `fmod`); integer `x % 0` is 0.
    Rem,
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Logical and.
    And,
    /// Logical or.
    Or,
    /// Logical exclusive or.
    Xor,
}

impl BinaryOp {
    /// Whether the result is a truth value of two operands of any type.
    pub(crate) fn is_comparison(self) -> bool {
        matches!(self, Self::Eq | Self::Ne | Self::Lt | Self::Le | Self::Gt | Self::Ge)
    }

    /// Whether the op takes and gives truth values.
    pub(crate) fn is_logical(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }
}

/// What a matmul does with a pair of elements before summing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InnerOp {
    /// `a · b`.
    Product,
    /// `(a − b)²`.
    SquaredDifference,
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReduceKind {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    /// Of squares.
    SumSquares,
    /// Position (`i32`) of the largest; among equals the first, or the last if so flagged.
    ArgMax {
        last: bool,
    },
    /// Position (`i32`) of the smallest.
    ArgMin {
        last: bool,
    },
}

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NormKind {
    /// Mean subtracted, divided by √(variance + ε).
    Layer,
    /// Divided by √(mean square + ε).
    Rms,
    /// Divided by max(‖x‖, ε).
    L2,
}

/// How pooling combines a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PoolKind {
    Max,
    /// Position (`i32`) of the maximum in the plane's row-major order.
    ArgMax,
    /// `include_pad`: padding counts in the divisor (but not what ceil mode adds beyond it).
    Average {
        include_pad: bool,
    },
}

/// A sliding window over the three innermost axes (depth, height, width); unused axes have size 1, stride 1, no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    pub size: [usize; 3],
    pub stride: [usize; 3],
    pub dilation: [usize; 3],
    /// Zeros (or nothing, for pooling) before each axis.
    pub before: [usize; 3],
    /// And after.
    pub after: [usize; 3],
}

/// What a scatter does where an element is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScatterReduce {
    /// The last update in order wins.
    Replace,
    Add,
    Mul,
    Min,
    Max,
}
