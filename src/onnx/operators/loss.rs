//! Losses, as far as they are operators of the standard domain.

use super::super::call::{Call, Outputs, Stop, failed};
use super::super::value::Value;
use super::Operator;
use crate::ir::DType;
use crate::record::{Axes, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("NegativeLogLikelihoodLoss").record(negative_log_likelihood),
    Operator::new("SoftmaxCrossEntropyLoss").record(softmax_cross_entropy),
];

fn negative_log_likelihood<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, loss(call, call.x(0)?)?)
}

fn softmax_cross_entropy<'a>(call: &Call<'a>) -> Outputs<'a> {
    let log_probabilities = call.ops.log_softmax(call.x(0)?, 1)?;
    let element = call.type_of(0)?;
    let loss = loss(call, log_probabilities)?;
    Ok(vec![Some(Value::Device(loss, element)), Some(Value::Device(log_probabilities, element))])
}

/// The loss of `x [n, c, …]` with the labels in input 1 and weights in input 2, reduced as the node asks.
fn loss<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    let ops = call.ops;
    let dtype = ops.dtype(x)?;
    let labels = call.x_as(1, DType::I32)?;
    let ignored = match call.maybe_int("ignore_index") {
        Some(ignored) => Some(ops.equal(labels, ignored.clamp(i32::MIN.into(), i32::MAX.into()) as i32)?),
        None => None,
    };
    // An ignored label may lie out of range, so it is replaced before anything is looked up.
    let labels = match ignored {
        Some(ignored) => ops.select(ignored, 0, labels)?,
        None => labels,
    };
    let picked = ops.squeeze(ops.gather_elements(x, ops.unsqueeze(labels, &[1])?, 1)?, 1)?;
    let mut weights = match call.maybe(2)? {
        Some(weights) => Some(ops.gather(weights, labels, 0)?),
        None => None,
    };
    if let Some(ignored) = ignored {
        let one = match weights {
            Some(weights) => weights,
            None => call.full(ops.shape(labels)?, 1.0, dtype)?,
        };
        weights = Some(ops.select(ignored, 0.0, one)?);
    }
    let mut loss = ops.neg(picked)?;
    if let Some(weights) = weights {
        loss = ops.mul(loss, weights)?;
    }
    Ok(match (call.text("reduction", "mean"), weights) {
        ("none", _) => loss,
        ("sum", _) => ops.sum(loss, Axes::ALL)?,
        ("mean", None) => ops.mean(loss, Axes::ALL)?,
        ("mean", Some(weights)) => ops.div(ops.sum(loss, Axes::ALL)?, ops.sum(weights, Axes::ALL)?)?,
        (other, _) => return failed(format!("{other:?} is not a reduction")),
    })
}
