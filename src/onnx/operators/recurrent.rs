//! Recurrent layers.
//!
//! The usual LSTM runs as a kernel. Everything else is recorded step by step: other activations, clipping, peepholes,
//! sequences of different lengths.

use super::super::call::{Call, Outputs, Stop, failed};
use super::super::value::Value;
use super::Operator;
use crate::ir::DType;
use crate::record::{TensorCommands, TensorOperand, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("LSTM").record(|call| layer(call, Kind::Lstm)),
    Operator::new("GRU").record(|call| layer(call, Kind::Gru)),
    Operator::new("RNN").record(|call| layer(call, Kind::Rnn)),
];

/// Longer sequences are refused when they are recorded step by step, because a plan grows with every step.
const MOST_STEPS: usize = 4096;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Lstm,
    Gru,
    Rnn,
}

impl Kind {
    fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Rnn => 1,
        }
    }

    /// The default activations of one direction.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Rnn => &["Tanh"],
        }
    }
}

/// An activation with its numbers.
#[derive(Clone, PartialEq)]
struct Activation {
    name: String,
    alpha: f32,
    beta: f32,
}

impl Activation {
    /// Those of one direction. Numbers are taken in order by the activations that have any.
    fn of(call: &Call, kind: Kind, direction: usize) -> Result<Vec<Self>, Stop> {
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
            let (alpha, beta) = match name.as_str() {
                "affine" => (Some(1.0), Some(0.0)),
                "leakyrelu" => (Some(0.01), None),
                "thresholdedrelu" | "elu" => (Some(1.0), None),
                "scaledtanh" => (Some(1.0), Some(1.0)),
                "hardsigmoid" => (Some(0.2), Some(0.5)),
                "relu" | "tanh" | "sigmoid" | "softsign" | "softplus" => (None, None),
                other => return failed(format!("{other:?} is not an activation")),
            };
            let alpha = alpha.map_or(0.0, |default| alphas.next().unwrap_or(default));
            let beta = beta.map_or(0.0, |default| betas.next().unwrap_or(default));
            all.push(Self { name, alpha, beta });
        }
        let own: Vec<Self> = all.into_iter().skip(direction * count).take(count).collect();
        if own.len() == count { Ok(own) } else { failed("too few activations") }
    }

    fn apply<'a>(&self, call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
        let (ops, alpha, beta) = (call.ops, self.alpha, self.beta);
        Ok(match self.name.as_str() {
            "sigmoid" => ops.sigmoid(x)?,
            "tanh" => ops.tanh(x)?,
            "relu" => ops.relu(x)?,
            "softsign" => ops.softsign(x)?,
            "softplus" => ops.softplus(x)?,
            "affine" => ops.value(x * alpha + beta)?,
            "leakyrelu" => ops.leaky_relu(x, alpha)?,
            "thresholdedrelu" => ops.thresholded_relu(x, alpha)?,
            "elu" => ops.elu(x, alpha)?,
            "scaledtanh" => ops.mul(ops.tanh(x * beta)?, alpha)?,
            "hardsigmoid" => ops.hard_sigmoid(x, alpha, beta)?,
            other => return failed(format!("{other:?} is not an activation")),
        })
    }
}

/// Part `i` of the first axis, which is dropped.
fn part<'a>(call: &Call<'a>, x: Option<TensorValue<'a>>, i: usize) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(x) = x else { return Ok(None) };
    let part = call.ops.slice(x, 0, i as isize, i as isize + 1)?;
    Ok(Some(call.ops.squeeze(part, 0)?))
}

/// What one direction works with.
struct Direction<'a> {
    /// `[steps, batch, input]`, in the order in which it is read.
    x: TensorValue<'a>,
    w: TensorValue<'a>,
    r: TensorValue<'a>,
    bias: Option<TensorValue<'a>>,
    h: Option<TensorValue<'a>>,
    c: Option<TensorValue<'a>>,
    peepholes: Option<TensorValue<'a>>,
    /// `[batch, 1]`.
    lengths: Option<TensorValue<'a>>,
    activations: Vec<Activation>,
}

/// All hidden states `[steps, batch, hidden]`, the last one, and the last cell state.
type States<'a> = (TensorValue<'a>, TensorValue<'a>, Option<TensorValue<'a>>);

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
    let (Some(w), Some(r)) = (call.maybe(1)?, call.maybe(2)?) else { return failed("the weights are missing") };
    let (of_x, of_w, of_r) = (ops.shape(x)?, ops.shape(w)?, ops.shape(r)?);
    let (&[steps, batch, _], &[directions, _, _], &[_, _, hidden]) = (&of_x[..], &of_w[..], &of_r[..]) else {
        return failed(format!("{of_x}, {of_w} and {of_r} are not of three axes"));
    };
    let (h, c) = (turn(call.maybe(5)?)?, if kind == Kind::Lstm { turn(call.maybe(6)?)? } else { None });
    let lengths = sequence_lengths(call, steps, batch)?;
    let reversed = match call.text("direction", "forward") {
        "forward" => [false, false],
        "reverse" => [true, true],
        "bidirectional" => [false, true],
        other => return failed(format!("{other:?} is not a direction")),
    };
    if directions != if call.text("direction", "forward") == "bidirectional" { 2 } else { 1 } {
        return failed(format!("weights for {directions} directions"));
    }
    let (mut all, mut last, mut cells) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..directions {
        let (Some(w), Some(r)) = (part(call, Some(w), i)?, part(call, Some(r), i)?) else {
            return failed("the weights are missing");
        };
        let direction = Direction {
            x,
            w,
            r,
            bias: part(call, call.maybe(3)?, i)?,
            h: part(call, h, i)?,
            c: part(call, c, i)?,
            peepholes: if kind == Kind::Lstm { part(call, call.maybe(7)?, i)? } else { None },
            lengths,
            activations: Activation::of(call, kind, i)?,
        };
        let (y, h, c) = run(call, kind, direction, reversed[i], hidden)?;
        all.push(y);
        last.push(h);
        cells.extend(c);
    }
    // Layout 0: [steps, directions, batch, hidden] and [directions, batch, hidden].
    let mut y = ops.stack(all, 1)?;
    if turned {
        y = ops.permute(y, &[2, 0, 1, 3])?;
    }
    let element = call.type_of(0)?;
    let axis = if turned { 1 } else { 0 };
    let mut outputs = vec![y, ops.stack(last, axis)?];
    if kind == Kind::Lstm {
        outputs.push(ops.stack(cells, axis)?);
    }
    Ok(outputs.into_iter().map(|value| Some(Value::Device(value, element))).collect())
}

/// The lengths as `[batch, 1]`. `None` if all sequences are as long as the input.
fn sequence_lengths<'a>(call: &Call<'a>, steps: usize, batch: usize) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(value) = call.value(4) else { return Ok(None) };
    if let Some(host) = value.as_host()
        && host.to_i64()?.iter().all(|&length| length == steps as i64)
    {
        return Ok(None);
    }
    Ok(Some(call.ops.reshape(call.x_as(4, DType::I32)?, &[batch as isize, 1])?))
}

fn run<'a>(
    call: &Call<'a>,
    kind: Kind,
    mut direction: Direction<'a>,
    reversed: bool,
    hidden: usize,
) -> Result<States<'a>, Stop> {
    let ops = call.ops;
    let usual: Vec<String> = kind.activations().iter().map(|name| name.to_ascii_lowercase()).collect();
    let plain = direction.activations.iter().map(|a| &a.name).eq(&usual)
        && direction.lengths.is_none()
        && call.float("clip", 0.0) <= 0.0;
    if kind == Kind::Lstm && plain && direction.peepholes.is_none() && call.int("input_forget", 0) == 0 {
        let Direction { x, w, r, bias, h, c, .. } = direction;
        let layer = if reversed { TensorCommands::lstm_reverse } else { TensorCommands::lstm };
        let operand = |value: Option<TensorValue<'a>>| value.map(TensorOperand::from);
        let (y, h, c) = layer(ops, x, w, r, operand(bias), operand(h), operand(c))?;
        return Ok((y, h, Some(c)));
    }
    if reversed {
        direction.x = backwards(call, direction.x, direction.lengths)?;
    }
    let (y, h, c) = step_by_step(call, kind, &direction, hidden)?;
    let y = if reversed { backwards(call, y, direction.lengths)? } else { y };
    Ok((y, h, c))
}

/// Sequences `[steps, batch, n]` from their last step to their first.
fn backwards<'a>(
    call: &Call<'a>,
    x: TensorValue<'a>,
    lengths: Option<TensorValue<'a>>,
) -> Result<TensorValue<'a>, Stop> {
    let ops = call.ops;
    let Some(lengths) = lengths else { return Ok(ops.flip(x, 0)?) };
    let shape = ops.shape(x)?;
    let lengths = ops.reshape(lengths, &[1, -1, 1])?;
    let steps = ops.reshape(call.steps(shape[0])?, &[-1, 1, 1])?;
    let mirrored = ops.sub(ops.sub(lengths, 1)?, steps)?;
    let from = ops.select(ops.less(steps, lengths)?, mirrored, steps)?;
    Ok(ops.gather_elements(x, ops.broadcast_to(from, shape)?, 0)?)
}

fn step_by_step<'a>(call: &Call<'a>, kind: Kind, direction: &Direction<'a>, hidden: usize) -> Result<States<'a>, Stop> {
    let ops = call.ops;
    let shape = ops.shape(direction.x)?;
    let (steps, batch) = (shape[0], shape[1]);
    if steps > MOST_STEPS {
        return super::refuse(format!("a sequence of {steps} steps"));
    }
    let dtype = call.dtype_of(0)?;
    let n = (kind.gates() * hidden) as isize;
    let (of_w, of_r) = match direction.bias {
        Some(bias) => (Some(ops.slice(bias, 0, 0, n)?), Some(ops.slice(bias, 0, n, 2 * n)?)),
        None => (None, None),
    };
    // The part of the gates that does not depend on the state, for all steps at once.
    let from_x = ops.linear(direction.x, direction.w, of_w.map(TensorOperand::from))?;
    let state = |given: Option<TensorValue<'a>>| match given {
        Some(given) => Ok(given),
        None => call.full([batch, hidden], 0.0, dtype),
    };
    let (mut h, mut c) = (state(direction.h)?, state(direction.c)?);
    let gate = |x: TensorValue<'a>, i: usize| -> Result<TensorValue<'a>, Stop> {
        Ok(ops.slice(x, -1, (i * hidden) as isize, ((i + 1) * hidden) as isize)?)
    };
    let clip = call.float("clip", 0.0);
    let act = |i: usize, x: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
        let x = if clip > 0.0 { ops.clamp(x, (-clip).into(), clip.into())? } else { x };
        direction.activations[i].apply(call, x)
    };
    let peephole = |i: usize, x: TensorValue<'a>, c: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
        let Some(p) = direction.peepholes else { return Ok(x) };
        Ok(ops.add(x, ops.mul(gate(p, i)?, c)?)?)
    };
    let mut all = Vec::with_capacity(steps);
    for t in 0..steps as isize {
        let x = ops.squeeze(ops.slice(from_x, 0, t, t + 1)?, 0)?;
        let (next_h, next_c) = match kind {
            Kind::Rnn => {
                let from_h = ops.linear(h, direction.r, of_r.map(TensorOperand::from))?;
                (act(0, ops.add(x, from_h)?)?, c)
            }
            Kind::Lstm => {
                let gates = ops.add(x, ops.linear(h, direction.r, of_r.map(TensorOperand::from))?)?;
                // Input, output, forget, cell.
                let input = act(0, peephole(0, gate(gates, 0)?, c)?)?;
                let forget = match call.int("input_forget", 0) {
                    0 => act(0, peephole(2, gate(gates, 2)?, c)?)?,
                    _ => ops.value(input * -1.0 + 1.0)?,
                };
                let cell = act(1, gate(gates, 3)?)?;
                let next_c = ops.add(ops.mul(forget, c)?, ops.mul(input, cell)?)?;
                let output = act(0, peephole(1, gate(gates, 1)?, next_c)?)?;
                // The cell state itself is not clipped.
                let shown = direction.activations[2].apply(call, next_c)?;
                (ops.mul(output, shown)?, next_c)
            }
            Kind::Gru => {
                let two = 2 * hidden as isize;
                let bias = |from: isize, to: isize| -> Result<Option<TensorOperand<'a>>, Stop> {
                    of_r.map(|bias| Ok(ops.slice(bias, 0, from, to)?.into())).transpose()
                };
                let zr = ops.linear(h, ops.slice(direction.r, 0, 0, two)?, bias(0, two)?)?;
                let zr = ops.add(ops.slice(x, -1, 0, two)?, zr)?;
                let (z, r) = (act(0, gate(zr, 0)?)?, act(0, gate(zr, 1)?)?);
                let weight = ops.slice(direction.r, 0, two, n)?;
                let candidate = if call.int("linear_before_reset", 0) != 0 {
                    ops.mul(r, ops.linear(h, weight, bias(two, n)?)?)?
                } else {
                    ops.linear(ops.mul(r, h)?, weight, bias(two, n)?)?
                };
                let candidate = act(1, ops.add(gate(x, 2)?, candidate)?)?;
                // (1 − z) · candidate + z · h
                (ops.add(candidate, ops.mul(z, ops.sub(h, candidate)?)?)?, c)
            }
        };
        match direction.lengths {
            None => {
                (h, c) = (next_h, next_c);
                all.push(h);
            }
            Some(lengths) => {
                let active = ops.greater(lengths, t as i32)?;
                all.push(ops.select(active, next_h, 0.0)?);
                (h, c) = (ops.select(active, next_h, h)?, ops.select(active, next_c, c)?);
            }
        }
    }
    let y = if all.is_empty() { call.full([0, batch, hidden], 0.0, dtype)? } else { ops.stack(all, 0)? };
    Ok((y, h, (kind == Kind::Lstm).then_some(c)))
}
