//! Recurrent layers as data.

/// What one direction of a recurrent layer computes, apart from its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recurrence {
    pub cell: Cell,
    /// From the last step to the first.
    pub reverse: bool,
    /// Of the gates, of the candidate, and of the cell state of an LSTM. The one of an RNN is the first.
    pub activations: [Activation; 3],
    /// The bits of the largest magnitude that an activation receives from a sum.
    pub clip: Option<u32>,
    /// Whether rows have lengths of their own: an input of its own, the last.
    pub lengths: bool,
}

/// The kind of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cell {
    /// One gate, which is the new state.
    Rnn,
    /// Gates: update, reset, hidden. With `linear`, the reset gate multiplies the product of the state, whose bias is an
    /// input of its own, and not the state itself.
    Gru { linear: bool },
    /// Gates: input, output, forget, cell. With `peepholes`, an input `[3 · hidden]` lets the first three see the cell
    /// state. If `coupled`, the forget gate is `1 − input`.
    Lstm { peepholes: bool, coupled: bool },
}

impl Cell {
    pub(crate) fn gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru { .. } => 3,
            Cell::Lstm { .. } => 4,
        }
    }

    /// The states that one step hands to the next: the hidden state, and the cell state of an LSTM.
    pub(crate) fn states(self) -> usize {
        match self {
            Cell::Rnn | Cell::Gru { .. } => 1,
            Cell::Lstm { .. } => 2,
        }
    }
}

/// A function of a sum. `alpha` and `beta` are the bits of its numbers; functions without numbers have zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Activation {
    pub function: ActivationFunction,
    pub alpha: u32,
    pub beta: u32,
}

/// The functions of recurrent layers. `a` and `b` are the numbers of the [`Activation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ActivationFunction {
    Sigmoid,
    Tanh,
    Relu,
    /// `a · x + b`.
    Affine,
    /// `x` if positive, else `a · x`.
    LeakyRelu,
    /// `x` if at least `a`, else 0.
    ThresholdedRelu,
    /// `a · tanh(b · x)`.
    ScaledTanh,
    /// `clamp(a · x + b, 0, 1)`.
    HardSigmoid,
    /// `x` if positive, else `a · (eˣ − 1)`.
    Elu,
    Softsign,
    Softplus,
}
