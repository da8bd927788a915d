//! Recurrent layers: one direction of an RNN, GRU or LSTM with the weights and the gate order of ONNX.

use super::{Arg, OptionalOperand, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{
    Activation, ActivationFunction, Backend, BinaryOp, Cell, DType, InnerOp, NodeId, Op, Recurrence, Shape,
};

/// A function of the sums of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RecurrentActivation {
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `max(x, 0)`.
    Relu,
    /// `alpha · x + beta`.
    Affine {
        /// The factor.
        alpha: f32,
        /// The offset.
        beta: f32,
    },
    /// `x` if positive, else `alpha · x`.
    LeakyRelu {
        /// The slope below 0.
        alpha: f32,
    },
    /// `x` if at least `alpha`, else 0.
    ThresholdedRelu {
        /// The threshold.
        alpha: f32,
    },
    /// `alpha · tanh(beta · x)`.
    ScaledTanh {
        /// The factor of the result.
        alpha: f32,
        /// The factor of the argument.
        beta: f32,
    },
    /// `clamp(alpha · x + beta, 0, 1)`.
    HardSigmoid {
        /// The factor.
        alpha: f32,
        /// The offset.
        beta: f32,
    },
    /// `x` if positive, else `alpha · (eˣ − 1)`.
    Elu {
        /// The factor below 0.
        alpha: f32,
    },
    /// `x / (1 + |x|)`.
    Softsign,
    /// `ln(1 + eˣ)`.
    Softplus,
}

impl RecurrentActivation {
    fn as_data(self) -> Activation {
        use ActivationFunction as Function;
        let (function, alpha, beta) = match self {
            Self::Sigmoid => (Function::Sigmoid, 0.0, 0.0),
            Self::Tanh => (Function::Tanh, 0.0, 0.0),
            Self::Relu => (Function::Relu, 0.0, 0.0),
            Self::Affine { alpha, beta } => (Function::Affine, alpha, beta),
            Self::LeakyRelu { alpha } => (Function::LeakyRelu, alpha, 0.0),
            Self::ThresholdedRelu { alpha } => (Function::ThresholdedRelu, alpha, 0.0),
            Self::ScaledTanh { alpha, beta } => (Function::ScaledTanh, alpha, beta),
            Self::HardSigmoid { alpha, beta } => (Function::HardSigmoid, alpha, beta),
            Self::Elu { alpha } => (Function::Elu, alpha, 0.0),
            Self::Softsign => (Function::Softsign, 0.0, 0.0),
            Self::Softplus => (Function::Softplus, 0.0, 0.0),
        };
        Activation { function, alpha: alpha.to_bits(), beta: beta.to_bits() }
    }
}

/// Settings of [`rnn`](TensorCommands::rnn).
#[derive(Clone, Debug)]
pub struct RnnSettings<'a> {
    /// Bias `[hidden]`, or `[2 · hidden]`: of the input, then of the recurrence.
    pub bias: Option<TensorOperand<'a>>,
    /// The state before the first step. Broadcasts to `[batch, hidden]`. Zeros by default.
    pub h: Option<TensorOperand<'a>>,
    /// Integers `[batch]`: how many steps each row has. All of them by default.
    pub lengths: Option<TensorOperand<'a>>,
    /// `Tanh` by default.
    pub activation: RecurrentActivation,
    /// Bounds what the activation receives to `−clip` to `clip`.
    pub clip: Option<f32>,
    /// Runs from the last step of each row to the first.
    pub reverse: bool,
}

impl Default for RnnSettings<'_> {
    fn default() -> Self {
        let activation = RecurrentActivation::Tanh;
        Self { bias: None, h: None, lengths: None, activation, clip: None, reverse: false }
    }
}

/// Settings of [`gru`](TensorCommands::gru).
#[derive(Clone, Debug)]
pub struct GruSettings<'a> {
    /// Bias `[3 · hidden]`, or `[6 · hidden]`: of the input, then of the recurrence.
    pub bias: Option<TensorOperand<'a>>,
    /// The state before the first step. Broadcasts to `[batch, hidden]`. Zeros by default.
    pub h: Option<TensorOperand<'a>>,
    /// Integers `[batch]`: how many steps each row has. All of them by default.
    pub lengths: Option<TensorOperand<'a>>,
    /// Of the gates, and of the candidate. `Sigmoid` and `Tanh` by default.
    pub activations: [RecurrentActivation; 2],
    /// Bounds what the activations receive to `−clip` to `clip`.
    pub clip: Option<f32>,
    /// The reset gate multiplies the product of the state (PyTorch, cuDNN) and not the state itself.
    pub linear_before_reset: bool,
    /// Runs from the last step of each row to the first.
    pub reverse: bool,
}

impl Default for GruSettings<'_> {
    fn default() -> Self {
        Self {
            bias: None,
            h: None,
            lengths: None,
            activations: [RecurrentActivation::Sigmoid, RecurrentActivation::Tanh],
            clip: None,
            linear_before_reset: false,
            reverse: false,
        }
    }
}

/// Settings of [`lstm_with`](TensorCommands::lstm_with).
#[derive(Clone, Debug)]
pub struct LstmSettings<'a> {
    /// Bias `[4 · hidden]`, or `[8 · hidden]`: of the input, then of the recurrence.
    pub bias: Option<TensorOperand<'a>>,
    /// The hidden state before the first step. Broadcasts to `[batch, hidden]`. Zeros by default.
    pub h: Option<TensorOperand<'a>>,
    /// The cell state before the first step. Broadcasts to `[batch, hidden]`. Zeros by default.
    pub c: Option<TensorOperand<'a>>,
    /// Weights `[3 · hidden]` by which the input, output and forget gates see the cell state.
    pub peepholes: Option<TensorOperand<'a>>,
    /// Integers `[batch]`: how many steps each row has. All of them by default.
    pub lengths: Option<TensorOperand<'a>>,
    /// Of the gates, of the candidate, and of the cell state. `Sigmoid`, `Tanh` and `Tanh` by default.
    pub activations: [RecurrentActivation; 3],
    /// Bounds what the activations receive from the sums of gates to `−clip` to `clip`.
    pub clip: Option<f32>,
    /// The forget gate is `1 − input gate`.
    pub coupled: bool,
    /// Runs from the last step of each row to the first.
    pub reverse: bool,
}

impl Default for LstmSettings<'_> {
    fn default() -> Self {
        Self {
            bias: None,
            h: None,
            c: None,
            peepholes: None,
            lengths: None,
            activations: [RecurrentActivation::Sigmoid, RecurrentActivation::Tanh, RecurrentActivation::Tanh],
            clip: None,
            coupled: false,
            reverse: false,
        }
    }
}

/// Recurrent layers.
impl TensorCommands<'_, '_> {
    /// An RNN layer over `x [steps, batch, input]`: the hidden states of all steps `[steps, batch, hidden]`, and the
    /// hidden state after the last `[batch, hidden]`.
    ///
    /// `w` is `[hidden, input]`, `r` is `[hidden, hidden]`. Hidden states beyond the length of a row are zeros.
    #[track_caller]
    pub fn rnn<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        w: impl Into<TensorOperand<'a>>,
        r: impl Into<TensorOperand<'a>>,
        settings: RnnSettings<'a>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        let weights = [x.into(), w.into(), r.into()];
        let RnnSettings { bias, h, lengths, activation, clip, reverse } = settings;
        let given = Given { bias, h, c: None, peepholes: None, lengths };
        let rec = &mut self.recorder();
        let layer = rec.layer("rnn", Cell::Rnn, [activation; 3], clip, reverse)?;
        let [all, h, _] = rec.recurrent_op("rnn", weights, given, layer)?;
        Ok((all, h))
    }

    /// A GRU layer over `x [steps, batch, input]`: the hidden states of all steps `[steps, batch, hidden]`, and the
    /// hidden state after the last `[batch, hidden]`.
    ///
    /// `w` is `[3·hidden, input]`, `r` is `[3·hidden, hidden]`. The gates are in ONNX's order: update, reset, hidden.
    /// Hidden states beyond the length of a row are zeros.
    #[track_caller]
    pub fn gru<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        w: impl Into<TensorOperand<'a>>,
        r: impl Into<TensorOperand<'a>>,
        settings: GruSettings<'a>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
        let weights = [x.into(), w.into(), r.into()];
        let GruSettings { bias, h, lengths, activations: [gate, candidate], clip, linear_before_reset, reverse } =
            settings;
        let given = Given { bias, h, c: None, peepholes: None, lengths };
        let rec = &mut self.recorder();
        let cell = Cell::Gru { linear: linear_before_reset };
        let layer = rec.layer("gru", cell, [gate, candidate, RecurrentActivation::Tanh], clip, reverse)?;
        let [all, h, _] = rec.recurrent_op("gru", weights, given, layer)?;
        Ok((all, h))
    }

    /// An LSTM layer over `x [steps, batch, input]`: the hidden states of all steps `[steps, batch, hidden]`, and the
    /// hidden and cell states after the last `[batch, hidden]`.
    ///
    /// `w` is `[4·hidden, input]`, `r` is `[4·hidden, hidden]`. The gates are in ONNX's order: input, output, forget, cell.
    ///
    /// The bias is `[4·hidden]`, or `[8·hidden]` as in ONNX: the bias of the input, then the bias of the recurrence.
    /// `h` and `c` are the states before the first step. They broadcast to `[batch, hidden]` and default to zeros.
    #[track_caller]
    pub fn lstm<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        w: impl Into<TensorOperand<'a>>,
        r: impl Into<TensorOperand<'a>>,
        bias: impl OptionalOperand<'a>,
        h: impl OptionalOperand<'a>,
        c: impl OptionalOperand<'a>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>, TensorValue<'a>)> {
        let weights = [x.into(), w.into(), r.into()];
        let (bias, h, c) = (bias.optional(), h.optional(), c.optional());
        self.recorder().lstm_op("lstm", weights, LstmSettings { bias, h, c, ..LstmSettings::default() })
    }

    /// Like [`lstm`](Self::lstm), but from the last step to the first. Each hidden state is at the index of its step.
    #[track_caller]
    pub fn lstm_reverse<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        w: impl Into<TensorOperand<'a>>,
        r: impl Into<TensorOperand<'a>>,
        bias: impl OptionalOperand<'a>,
        h: impl OptionalOperand<'a>,
        c: impl OptionalOperand<'a>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>, TensorValue<'a>)> {
        let weights = [x.into(), w.into(), r.into()];
        let (bias, h, c) = (bias.optional(), h.optional(), c.optional());
        let settings = LstmSettings { bias, h, c, reverse: true, ..LstmSettings::default() };
        self.recorder().lstm_op("lstm_reverse", weights, settings)
    }

    /// Like [`lstm`](Self::lstm), with peepholes, lengths of rows, other activations and bounds. Hidden states beyond the
    /// length of a row are zeros.
    #[track_caller]
    pub fn lstm_with<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        w: impl Into<TensorOperand<'a>>,
        r: impl Into<TensorOperand<'a>>,
        settings: LstmSettings<'a>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>, TensorValue<'a>)> {
        let weights = [x.into(), w.into(), r.into()];
        self.recorder().lstm_op("lstm_with", weights, settings)
    }
}

/// How many steps one launch takes. Some software adapters end the loops of a thread after 65,535 turns in all, and a
/// thread sums over all units for each of its own.
fn steps_of_a_launch(hidden: usize, cell: Cell) -> usize {
    let units = if hidden > 64 { hidden.div_ceil(256) } else { 1 };
    let passes = if matches!(cell, Cell::Gru { .. }) { 2 } else { 1 };
    (40_000 / (units * passes * (hidden / 4 + 6)).max(1)).max(1)
}

/// The operands of a layer that may be left out.
struct Given<'a> {
    bias: Option<TensorOperand<'a>>,
    h: Option<TensorOperand<'a>>,
    c: Option<TensorOperand<'a>>,
    peepholes: Option<TensorOperand<'a>>,
    lengths: Option<TensorOperand<'a>>,
}

impl<'a> Recorder<'a> {
    fn lstm_op(
        &mut self,
        op: &'static str,
        weights: [TensorOperand<'_>; 3],
        settings: LstmSettings<'_>,
    ) -> OpResult<(TensorValue<'a>, TensorValue<'a>, TensorValue<'a>)> {
        let LstmSettings { bias, h, c, peepholes, lengths, activations, clip, coupled, reverse } = settings;
        let cell = Cell::Lstm { peepholes: peepholes.is_some(), coupled };
        let layer = self.layer(op, cell, activations, clip, reverse)?;
        let [all, h, c] = self.recurrent_op(op, weights, Given { bias, h, c, peepholes, lengths }, layer)?;
        Ok((all, h, c))
    }

    fn layer(
        &mut self,
        op: &'static str,
        cell: Cell,
        activations: [RecurrentActivation; 3],
        clip: Option<f32>,
        reverse: bool,
    ) -> OpResult<Recurrence> {
        if clip.is_some_and(|clip| clip.is_nan() || clip < 0.0) {
            return Err(OpError::Argument { op, reason: "the clip must not be negative".to_owned() });
        }
        let activations = activations.map(RecurrentActivation::as_data);
        Ok(Recurrence { cell, reverse, activations, clip: clip.map(f32::to_bits), lengths: false })
    }

    /// A layer of x, w and r: the hidden states, the last hidden state and the last cell state, which is the hidden state
    /// again for cells without one.
    fn recurrent_op(
        &mut self,
        op: &'static str,
        [x, w, r]: [TensorOperand<'_>; 3],
        given: Given<'_>,
        mut layer: Recurrence,
    ) -> OpResult<[TensorValue<'a>; 3]> {
        let (x, w, r) = (self.float_arg(op, x)?, self.float_arg(op, w)?, self.float_arg(op, r)?);
        let mut args = [x, w, r, x, x, x, x, x];
        let mut is_given = [false; 5];
        for (i, operand) in [given.bias, given.h, given.c, given.peepholes].into_iter().enumerate() {
            if let Some(arg) = self.optional_float_arg(op, operand)? {
                (args[3 + i], is_given[i]) = (arg, true);
            }
        }
        if let Some(lengths) = given.lengths {
            (args[7], is_given[4]) = (self.index_arg(op, lengths)?, true);
        }
        let backend = self.same_backend(op, &mut args)?;
        let [x, w, r, ..] = args;
        let [bias, h, c, peepholes, lengths] = [0, 1, 2, 3, 4].map(|i| is_given[i].then_some(args[3 + i]));

        let count = layer.cell.gates();
        let shapes = [x, w, r].map(|arg| self.shape_of_arg(arg));
        let (&[steps, batch, input], &[of_w, input_w], &[of_r, hidden]) =
            (&shapes[0][..], &shapes[1][..], &shapes[2][..])
        else {
            let rows = if count == 1 { "hidden".to_owned() } else { format!("{count} · hidden") };
            let reason = format!("they must be [steps, batch, input], [{rows}, input] and [{rows}, hidden]");
            return Err(self.shape_error(op, &[x, w, r], reason));
        };
        let wide = count * hidden;
        if input != input_w {
            return Err(self.shape_error(op, &[x, w], format!("input sizes {input} and {input_w} differ")));
        }
        if of_w != wide || of_r != wide {
            let reason = format!("{count} gates of {hidden} units need {wide} rows, not {of_w} and {of_r}");
            return Err(self.shape_error(op, &[w, r], reason));
        }
        let linear = layer.cell == Cell::Gru { linear: true };
        let (bias, of_state) = match bias {
            Some(bias) => self.gate_bias(op, r, bias, wide, linear.then_some(hidden))?,
            None => (None, None),
        };
        let (state, dtype) = (Shape::from([batch, hidden]), self.dtype_of_arg(x));
        let mut states = [x.node; 2];
        for (node, given) in states.iter_mut().zip([h, c]) {
            *node = match given {
                Some(given) => self.broadcast_arg(op, given, &state)?,
                None => self.part(x).full(0.0, &state, DType::F32),
            };
        }
        let peepholes = match peepholes {
            Some(peepholes) => Some(self.whole_vector(op, r, peepholes, 3 * hidden, "the peepholes")?),
            None => None,
        };
        let lengths = match lengths {
            Some(lengths) => Some(self.whole_vector(op, x, lengths, batch, "the lengths")?),
            None => None,
        };
        layer.lengths = lengths.is_some();

        let part = self.part(x);
        if steps == 0 {
            let none = part.full(0.0, &Shape::from([0, batch, hidden]), dtype);
            let [h, c] = states.map(|node| part.cast(node, dtype));
            self.check_sizes(backend)?;
            return Ok([none, h, c].map(|node| self.small_value(backend, node)));
        }
        // All steps at once: only the recurrence has to wait for the step before.
        let rows = part.reshape(x.node, &Shape::from([steps * batch, input]));
        let columns = part.transpose(w.node);
        let of_gates = Shape::from([steps * batch, wide]);
        let product = Op::MatMul { inner: InnerOp::Product };
        let mut gates = part.push(product, &[rows, columns], of_gates, DType::F32, &[]);
        if let Some(bias) = bias {
            gates = part.binary_broadcast(BinaryOp::Add, gates, bias);
        }
        let gates = part.reshape(gates, &Shape::from([steps, batch, wide]));
        let recurrent = part.transpose(r.node);
        let mut inputs = vec![gates, recurrent, states[0]];
        inputs.extend((layer.cell.states() == 2).then_some(states[1]));
        inputs.extend(peepholes);
        if linear {
            let none = |part: &mut super::Part| part.full(0.0, &Shape::from([hidden]), DType::F32);
            inputs.push(of_state.unwrap_or_else(|| none(part)));
        }
        let lengths = lengths.map(|lengths| part.cast(lengths, DType::I32));
        // On a GPU a thread goes through all its steps. Long sequences are cut, so that no launch lasts too long.
        let longest = match backend {
            Backend::Gpu => steps_of_a_launch(hidden, layer.cell),
            Backend::Cpu => steps,
        };
        let starts: Vec<usize> = (0..steps).step_by(longest).collect();
        let mut planes = vec![x.node; starts.len()];
        let (mut h, mut c) = (states[0], states[1]);
        for turn in 0..starts.len() {
            let at = if layer.reverse { starts.len() - 1 - turn } else { turn };
            let count = longest.min(steps - starts[at]);
            inputs[0] = part.slice(gates, 0, starts[at], count, 1);
            inputs[2] = h;
            if layer.cell.states() == 2 {
                inputs[3] = c;
            }
            let mut inputs = inputs.clone();
            inputs.extend(lengths.map(|lengths| match at {
                0 => lengths,
                _ => part.binary_number(BinaryOp::Sub, lengths, starts[at] as f64),
            }));
            let shape = Shape::from([count + layer.cell.states(), batch, hidden]);
            let all = part.push(Op::Recurrent { layer }, &inputs, shape, dtype, &[]);
            planes[at] = part.slice(all, 0, 0, count, 1);
            [h, c] = [count, count + layer.cell.states() - 1].map(|at| {
                let plane = part.slice(all, 0, at, 1, 1);
                part.reshape(plane, &state)
            });
        }
        let hiddens = if let [plane] = planes[..] { plane } else { part.concat(&planes, 0) };
        self.value(backend, gates)?;
        self.value(backend, hiddens)?;
        self.check_sizes(backend)?;
        Ok([hiddens, h, c].map(|node| self.small_value(backend, node)))
    }

    /// An operand that must have one axis of this size.
    fn whole_vector(&mut self, op: &'static str, with: Arg, arg: Arg, size: usize, what: &str) -> OpResult<NodeId> {
        match self.shape_of_arg(arg)[..] == [size] {
            true => Ok(arg.node),
            false => Err(self.shape_error(op, &[with, arg], format!("{what} must be [{size}]"))),
        }
    }

    /// A bias of gates `[wide]`, or two of them `[2 · wide]`, which are added. The last `apart` units of the second stay
    /// apart.
    fn gate_bias(
        &mut self,
        op: &'static str,
        r: Arg,
        bias: Arg,
        wide: usize,
        apart: Option<usize>,
    ) -> OpResult<(Option<NodeId>, Option<NodeId>)> {
        let shape = self.shape_of_arg(bias);
        let part = self.part(bias);
        let node = part.cast(bias.node, DType::F32);
        if shape[..] == [wide] {
            return Ok((Some(node), None));
        }
        if shape[..] != [2 * wide] {
            let reason = format!("the bias must be [{wide}] or [{}]", 2 * wide);
            return Err(self.shape_error(op, &[r, bias], reason));
        }
        let apart = apart.unwrap_or(0);
        let shared = wide - apart;
        let [of_input, of_recurrence] = [0, wide].map(|start| part.slice(node, 0, start, shared, 1));
        let sum = part.binary(BinaryOp::Add, of_input, of_recurrence);
        if apart == 0 {
            return Ok((Some(sum), None));
        }
        let [of_input, of_state] = [shared, wide + shared].map(|start| part.slice(node, 0, start, apart, 1));
        Ok((Some(part.concat(&[sum, of_input], 0)), Some(of_state)))
    }
}
