//! The ops: what each node of a recording does.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{CustomCall, ElementFunction, Fourier, Layout, Recurrence, RoiPooling, Sampling};

/// What a node does. All fields are structural: ops that differ in them need different plans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    // Sources.
    /// Reads a storage through `layout`. Sees the writes of all earlier nodes.
    Load {
        slot: u32,
        layout: Layout,
    },
    /// Host data that belongs to this recording (`Part::host`).
    Host {
        index: u32,
    },
    /// Host data that is the same in every recording with this structure, for example an interpolation table.
    Const {
        words: Arc<[u32]>,
    },
    /// One scalar of rank 0.
    Scalar,
    /// 0, 1, 2, … as `i32`, rank 1.
    Iota,

    // Elementwise ops. A chain of these becomes one kernel.
    Unary(UnaryOp),
    /// Inputs and output have the same shape (broadcasts are explicit views). The inputs have the same dtype.
    Binary(BinaryOp),
    /// Inputs: condition (bool), value if true, value if false.
    Select,
    /// Converts to the node's dtype.
    Cast,
    /// A user-written elementwise function. Inputs have the shape of the output and the classes of the function's
    /// arguments.
    Function(Arc<ElementFunction>),

    // Views. They need no kernel unless a copy is unavoidable.
    View(View),

    // Kernels. Sizes follow from the input shapes. Fields hold what the shapes do not determine.
    /// `[…, m, k] · […, k, n]`. Both have the same rank and equal batch axes (broadcasts are explicit views).
    MatMul {
        inner: InnerOp,
    },
    /// `[m, k] · [n, k]ᵀ` as `f32`. The right operand has a quantised type, or is `i8` with `k` a multiple of 4.
    QuantMatMul,
    /// Converts to the node's dtype, which is quantised, in blocks along the last axis.
    Quantize,
    /// Reduces the consecutive axes `axis..axis + count` of the input. The output keeps them with size 1.
    Reduce {
        kind: ReduceKind,
        axis: usize,
        count: usize,
    },
    Softmax {
        axis: usize,
        log: bool,
    },
    /// Normalises over the last axis. Inputs: x, then weight and bias of the same length as the axis, if set. Scalar:
    /// epsilon.
    RowNorm {
        kind: NormKind,
        weight: bool,
        bias: bool,
    },
    CumSum {
        axis: usize,
        exclusive: bool,
    },
    /// Positions (`i32`) of the `k` largest or smallest elements of the last axis, best first. Ties are ordered by
    /// position.
    TopK {
        k: usize,
        largest: bool,
    },
    /// Inputs: `x [n, c, d, h, w]`, `weight [out, c / groups, kd, kh, kw]`, and `bias [out]` if set.
    Conv {
        window: Window,
        groups: usize,
        bias: bool,
    },
    /// Inputs: `x [n, c, d, h, w]`, `weight [c, out / groups, kd, kh, kw]`, and a bias if set.
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
    /// A weighted sum of `taps` elements along `axis` for each output position of that axis. Inputs: x, positions `i32
    /// [out, taps]`, weights `f32 [out, taps]`.
    Taps {
        axis: usize,
    },
    /// Inputs: data, and integer indices of any shape. The axes of the indices replace `axis`.
    Gather {
        axis: usize,
    },
    /// Inputs: data, and integer indices with the shape of the output.
    GatherElements {
        axis: usize,
    },
    /// Inputs: data, integer indices `[…batch, …, depth]`.
    GatherNd {
        batch: usize,
    },
    /// Inputs: data, integer indices, and updates with the shape of the indices.
    ScatterElements {
        axis: usize,
        reduce: ScatterReduce,
    },
    /// Inputs: data, integer indices `[…, depth]`, updates.
    ScatterNd {
        reduce: ScatterReduce,
    },
    /// Inputs: `q [b, h, s, d]`, `k [b, g, t, d]`, `v [b, g, t, e]`, and an additive mask `[b, h, s, t]` (a broadcast
    /// view) if set. Scalars: scale (f32), softcap (f32, 0 = none), number of valid keys (u32), position of the first
    /// query among the keys (i32).
    Attention {
        causal: bool,
        mask: bool,
    },
    /// Inputs: `x [n, c, d, h, w]`, and points `[n, count, axes]` whose last axis is x, y and, if there are three, z. Output
    /// `[n, c, count]`.
    Sample {
        sampling: Sampling,
    },
    /// Inputs: `x [n, c, h, w]`, regions `[r, 4]`, and the number of the picture that each is in, `i32 [r]`. Output
    /// `[r, c, …size]`.
    RoiPool {
        pooling: RoiPooling,
    },
    /// One direction of a recurrent layer. Inputs: `gates [steps, batch, gates · hidden]`, the products of the input plus the
    /// bias, `r [hidden, gates · hidden]`, the state `h [batch, hidden]`, and what the layer has besides. Output `[steps +
    /// states, batch, hidden]`: the hidden states, then the last hidden state, then the last cell state of an LSTM.
    Recurrent {
        layer: Recurrence,
    },
    /// Fourier transforms of the lines of `x [lines, length]`, or `[lines, length, 2]` if it is complex. Inputs: x, the window
    /// if there is one, and on devices a table of roots. Output `[lines · frames, results]`, with an axis of 2 if complex.
    Fft {
        transform: Fourier,
    },
    /// Assembles the output from the inputs. Input `i` is placed at `places[i]`, a view of the contiguous output. With
    /// `fill`, the scalar fills the rest. Without `fill`, the places cover the whole output.
    Assemble {
        places: Box<[Layout]>,
        fill: bool,
    },

    /// A user-written kernel. Inputs and outputs have 32-bit types. The value of this node is the first output. The
    /// `CustomOutput` nodes that directly follow are the other outputs. Scalars: the words of the params.
    Custom(Box<CustomCall>),
    /// Output `index` of the input node, which is a user-written kernel.
    CustomOutput {
        index: usize,
    },

    // Effects. They keep the nodes they depend on alive.
    /// Writes the input to a storage. With `at`, the scalar (u32) is an offset along that axis of `layout`.
    Store {
        slot: u32,
        layout: Layout,
        at: Option<usize>,
    },
    /// Sends the input to the host. `request` is an index into `Part::requests`.
    Read {
        request: u32,
    },
}

impl Op {
    /// Number of scalars that the op takes.
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
            | Op::Sample { .. }
            | Op::RoiPool { .. }
            | Op::Recurrent { .. }
            | Op::Fft { .. }
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
            | Op::Sample { .. }
            | Op::RoiPool { .. }
            | Op::Recurrent { .. }
            | Op::Fft { .. }
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

    /// Whether the op has an effect outside the graph.
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

/// A view of the same elements. The node's shape is the shape of the view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum View {
    Reshape,
    Broadcast,
    Permute(SmallVec<[usize; 6]>),
    Slice { axis: usize, start: usize, step: isize },
}

/// Elementwise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `-x`.
    Neg,
    /// Absolute value.
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
    /// Tangent, in radians.
    Tan,
    /// Inverse sine. NaN outside −1 to 1.
    Asin,
    /// Inverse cosine. NaN outside −1 to 1.
    Acos,
    /// Inverse tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine. NaN below 1.
    Acosh,
    /// Inverse hyperbolic tangent. NaN outside −1 to 1.
    Atanh,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds to the nearest integer, halves to even.
    Round,
    /// Rounds towards zero.
    Trunc,
    /// −1, 0 or 1.
    Sign,
    /// The error function.
    Erf,
    /// Logical not.
    Not,
    /// All bits inverted.
    BitNot,
    /// Whether the value is NaN.
    IsNan,
    /// Whether the value is infinite.
    IsInf,
    /// Whether the value is ∞.
    IsPosInf,
    /// Whether the value is −∞.
    IsNegInf,
    /// `max(x, 0)`.
    Relu,
    /// `x` where positive, else `x · scalar 0`.
    LeakyRelu,
    /// `x` where positive, else `scalar 0 · (eˣ − 1)`.
    Elu,
    /// Self-normalising ELU.
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
    /// GELU, exact form with the error function.
    Gelu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · sigmoid(scalar 0 · x)`.
    Swish,
    /// `ln(1 + eˣ)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x · tanh(softplus(x))`.
    Mish,
    /// `x · clamp(x / 6 + 0.5, 0, 1)`.
    HardSwish,
    /// `x + scalar 1` below `−scalar 0`, `x − scalar 1` above `scalar 0`, else 0.
    Shrink,
    /// `min(max(x, scalar 0), scalar 1)`.
    Clamp,
    /// Maps an integer position to a uniform random number in [0, 1). Scalar 0 is the seed.
    RandomUniform,
    /// Maps an integer position to a standard normal random number. Scalar 0 is the seed.
    RandomNormal,
}

impl UnaryOp {
    pub(crate) fn scalars(self) -> usize {
        match self {
            Self::LeakyRelu
            | Self::Elu
            | Self::Celu
            | Self::ThresholdedRelu
            | Self::Swish
            | Self::RandomUniform
            | Self::RandomNormal => 1,
            Self::HardSigmoid | Self::Shrink | Self::Clamp => 2,
            _ => 0,
        }
    }
}

/// Elementwise functions of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// Sum. Integers wrap.
    Add,
    /// Difference. Integers wrap.
    Sub,
    /// Product. Integers wrap.
    Mul,
    /// Quotient. Floats follow IEEE 754. Integers truncate, and `x / 0` is `x`.
    Div,
    /// Power. A negative float base needs an integral exponent, otherwise the result is NaN. For integers, a negative
    /// exponent gives 0, except that powers of ±1 stay ±1.
    Pow,
    /// Minimum. NaN if either operand is NaN.
    Min,
    /// Maximum. NaN if either operand is NaN.
    Max,
    /// Remainder with the sign of the divisor (Python's `%`). Integer `x % 0` is 0.
    Mod,
    /// Remainder with the sign of the dividend (C's `fmod`). Integer `x % 0` is 0.
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
    /// The bits that both integers have.
    BitAnd,
    /// The bits that either integer has.
    BitOr,
    /// The bits that exactly one of the integers has.
    BitXor,
    /// Bits moved up. Zeros follow; a shift by the width of the type or more gives 0.
    ShiftLeft,
    /// Bits moved down. Zeros follow, or copies of the sign for signed integers.
    ShiftRight,
}

impl BinaryOp {
    /// Whether the op compares two operands and returns a boolean.
    pub(crate) fn is_comparison(self) -> bool {
        matches!(self, Self::Eq | Self::Ne | Self::Lt | Self::Le | Self::Gt | Self::Ge)
    }

    /// Whether the op takes and returns booleans.
    pub(crate) fn is_logical(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }

    /// Whether the op works on the bits of integers.
    pub(crate) fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor | Self::ShiftLeft | Self::ShiftRight)
    }
}

/// What a matmul computes for each pair of elements before summing.
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
    /// Sum of squares.
    SumSquares,
    /// Position (`i32`) of the maximum. On ties the first one, or the last one if `last` is set.
    ArgMax {
        last: bool,
    },
    /// Position (`i32`) of the minimum. Ties as in `ArgMax`.
    ArgMin {
        last: bool,
    },
}

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NormKind {
    /// Subtracts the mean and divides by √(variance + ε).
    Layer,
    /// Divides by √(mean square + ε).
    Rms,
    /// Divides by max(‖x‖, ε).
    L2,
}

/// How pooling combines a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PoolKind {
    Max,
    /// Position (`i32`) of the maximum, in row-major order of the plane.
    ArgMax,
    /// With `include_pad`, padding counts in the divisor. What ceil mode adds beyond the padding does not.
    Average {
        include_pad: bool,
    },
}

/// A sliding window over the three innermost axes (depth, height, width). Unused axes have size 1, stride 1 and no
/// padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    pub size: [usize; 3],
    pub stride: [usize; 3],
    pub dilation: [usize; 3],
    /// Padding before each axis. Convolutions pad with zeros, pooling ignores padded positions.
    pub before: [usize; 3],
    /// Padding after each axis.
    pub after: [usize; 3],
}

/// How a scatter combines an update with the existing element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScatterReduce {
    /// Replaces the element. The last update in order wins.
    Replace,
    Add,
    Mul,
    Min,
    Max,
}
