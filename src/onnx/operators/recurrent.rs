//! Recurrent layers.

use super::super::call::{Call, Outputs, Stop, failed};
use super::super::value::Value;
use super::Operator;
use crate::record::{
    GruSettings, LstmSettings, RecurrentActivation as Activation, RnnSettings, TensorOperand, TensorValue,
};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("LSTM").record(|call| layer(call, Kind::Lstm)),
    Operator::new("GRU").record(|call| layer(call, Kind::Gru)),
    Operator::new("RNN").record(|call| layer(call, Kind::Rnn)),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Lstm,
    Gru,
    Rnn,
}

impl Kind {
    /// The default activations of one direction.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Rnn => &["Tanh"],
        }
    }
}

/// The activations of one direction. Numbers are taken in order by the activations that have any.
fn activations(call: &Call, kind: Kind, direction: usize) -> Result<Vec<Activation>, Stop> {
    let count = kind.activations().len();
    let names: Vec<String> = match call.texts("activations") {
        Some(list) if !list.is_empty() => {
            list.iter().map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).collect()
        }
        _ => kind.activations().iter().cycle().take(2 * count).map(|name| name.to_ascii_lowercase()).collect(),
    };
    let mut alphas = call.floats("activation_alpha").unwrap_or_default().iter().copied();
    let mut betas = call.floats("activation_beta").unwrap_or_default().iter().copied();
    let mut all = Vec::new();
    for name in names {
        let mut alpha = |default: f32| alphas.next().unwrap_or(default);
        let mut beta = |default: f32| betas.next().unwrap_or(default);
        all.push(match name.as_str() {
            "sigmoid" => Activation::Sigmoid,
            "tanh" => Activation::Tanh,
            "relu" => Activation::Relu,
            "softsign" => Activation::Softsign,
            "softplus" => Activation::Softplus,
            "affine" => Activation::Affine { alpha: alpha(1.0), beta: beta(0.0) },
            "leakyrelu" => Activation::LeakyRelu { alpha: alpha(0.01) },
            "thresholdedrelu" => Activation::ThresholdedRelu { alpha: alpha(1.0) },
            "elu" => Activation::Elu { alpha: alpha(1.0) },
            "scaledtanh" => Activation::ScaledTanh { alpha: alpha(1.0), beta: beta(1.0) },
            "hardsigmoid" => Activation::HardSigmoid { alpha: alpha(0.2), beta: beta(0.5) },
            other => return failed(format!("{other:?} is not an activation")),
        });
    }
    let own: Vec<Activation> = all.into_iter().skip(direction * count).take(count).collect();
    if own.len() == count { Ok(own) } else { failed("too few activations") }
}

/// Part `i` of the first axis, which is dropped.
fn part<'a>(call: &Call<'a>, x: Option<TensorValue<'a>>, i: usize) -> Result<Option<TensorOperand<'a>>, Stop> {
    let Some(x) = x else { return Ok(None) };
    let part = call.ops.slice(x, 0, i as isize, i as isize + 1)?;
    Ok(Some(call.ops.squeeze(part, 0)?.into()))
}

fn layer<'a>(call: &Call<'a>, kind: Kind) -> Outputs<'a> {
    let ops = call.ops;
    // In layout 1 the batch comes first, in states too.
    let turned = call.int("layout", 0) == 1;
    let turn = |x: Option<TensorValue<'a>>| -> Result<Option<TensorValue<'a>>, Stop> {
        match x {
            Some(x) if turned => Ok(Some(ops.permute(x, &[1, 0, 2])?)),
            x => Ok(x),
        }
    };
    let Some(x) = turn(call.maybe(0)?)? else { return failed("the input is missing") };
    let (w, r) = (call.x(1)?, call.x(2)?);
    let (of_x, of_w) = (ops.shape(x)?, ops.shape(w)?);
    let (&[steps, ..], &[directions, ..]) = (&of_x[..], &of_w[..]) else {
        return failed("the input or its weights have no axes");
    };
    let reversed = match call.text("direction", "forward") {
        "forward" => &[false][..],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return failed(format!("{other:?} is not a direction")),
    };
    if directions != reversed.len() {
        return failed(format!("weights for {directions} directions, but {} are asked for", reversed.len()));
    }
    let (h, c) = (turn(call.maybe(5)?)?, if kind == Kind::Lstm { turn(call.maybe(6)?)? } else { None });
    let lengths = sequence_lengths(call, steps)?;
    let clip = call.maybe_float("clip").filter(|&clip| clip > 0.0);
    let (mut all, mut last, mut cells) = (Vec::new(), Vec::new(), Vec::new());
    for (i, &reverse) in reversed.iter().enumerate() {
        let (Some(w), Some(r)) = (part(call, Some(w), i)?, part(call, Some(r), i)?) else {
            return failed("the weights are missing");
        };
        let (bias, h) = (part(call, call.maybe(3)?, i)?, part(call, h, i)?);
        let lengths = lengths.map(TensorOperand::from);
        let own = activations(call, kind, i)?;
        let (y, h) = match (kind, &own[..]) {
            (Kind::Lstm, &[gate, candidate, cell]) => {
                let settings = LstmSettings {
                    bias,
                    h,
                    c: part(call, c, i)?,
                    peepholes: part(call, call.maybe(7)?, i)?,
                    lengths,
                    activations: [gate, candidate, cell],
                    clip,
                    coupled: call.int("input_forget", 0) != 0,
                    reverse,
                };
                let (y, h, c) = ops.lstm_with(x, w, r, settings)?;
                cells.push(c);
                (y, h)
            }
            (Kind::Gru, &[gate, candidate]) => {
                let activations = [gate, candidate];
                let linear_before_reset = call.int("linear_before_reset", 0) != 0;
                ops.gru(x, w, r, GruSettings { bias, h, lengths, activations, clip, linear_before_reset, reverse })?
            }
            (Kind::Rnn, &[activation]) => {
                ops.rnn(x, w, r, RnnSettings { bias, h, lengths, activation, clip, reverse })?
            }
            _ => return failed("too few activations"),
        };
        all.push(y);
        last.push(h);
    }
    // Layout 0: [steps, directions, batch, hidden] and [directions, batch, hidden].
    let mut y = ops.stack(all, 1)?;
    if turned {
        y = ops.permute(y, &[2, 0, 1, 3])?;
    }
    let axis = if turned { 1 } else { 0 };
    let mut outputs = vec![y, ops.stack(last, axis)?];
    if kind == Kind::Lstm {
        outputs.push(ops.stack(cells, axis)?);
    }
    let element = call.type_of(0)?;
    Ok(outputs.into_iter().map(|value| Some(Value::Device(value, element))).collect())
}

/// The lengths `[batch]`. `None` if all sequences are as long as the input.
fn sequence_lengths<'a>(call: &Call<'a>, steps: usize) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(value) = call.value(4) else { return Ok(None) };
    if let Some(host) = value.as_host()
        && host.to_i64()?.iter().all(|&length| length == steps as i64)
    {
        return Ok(None);
    }
    call.maybe(4)
}
