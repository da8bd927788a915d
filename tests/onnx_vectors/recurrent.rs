//! Recurrent layers.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, Stop, unsupported};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    match call.case.op.as_str() {
        "LSTM" => Some(lstm(call)),
        _ => None,
    }
}

/// Index `i` of the first axis, which is removed.
fn part<'a>(call: &Call<'a>, input: usize, i: isize) -> Result<Option<TensorOperand<'a>>, Stop> {
    let Some(x) = call.maybe(input)? else { return Ok(None) };
    let one = call.ops.slice(x, 0, i, i + 1)?;
    Ok(Some(call.ops.squeeze(one, 0)?.into()))
}

fn lstm<'a>(call: &Call<'a>) -> Outputs<'a> {
    if call.has(7) {
        return unsupported("peepholes are not among the crate's features");
    }
    let given = ["activations", "activation_alpha", "activation_beta", "clip", "input_forget"];
    if let Some(attribute) = given.into_iter().find(|name| call.case.attrs.contains_key(*name)) {
        return unsupported(format!("{attribute} is not among the crate's features"));
    }
    // In layout 1 the batch axis comes first, also in states.
    let turned = call.case.int("layout", 0) == 1;
    if turned && (call.has(5) || call.has(6)) {
        return unsupported("first states with the batch first");
    }
    let mut x = call.x(0)?;
    if turned {
        x = call.ops.permute(x, &[1, 0, 2])?.into();
    }
    let directions = call.shape_of(1)[0] as isize;
    let reversed = call.case.attrs.get("direction").and_then(|d| d.as_str()) == Some("reverse");
    let mut outputs = [const { Vec::new() }; 3];
    for i in 0..directions {
        let (Some(w), Some(r)) = (part(call, 1, i)?, part(call, 2, i)?) else { return unsupported("no weights") };
        let (bias, h, c) = (part(call, 3, i)?, part(call, 5, i)?, part(call, 6, i)?);
        let layer = if reversed || i == 1 { TensorCommands::lstm_reverse } else { TensorCommands::lstm };
        let (all, h, c) = layer(call.ops, x.clone(), w, r, bias, h, c)?;
        for (list, value) in outputs.iter_mut().zip([all, h, c]) {
            list.push(value);
        }
    }
    let [all, h, c] = outputs;
    // Layout 0: [steps, directions, batch, hidden] and [directions, batch, hidden].
    let axes = if turned { (2, 1) } else { (1, 0) };
    let mut y = call.ops.stack(all, axes.0)?;
    if turned {
        y = call.ops.permute(y, &[1, 0, 2, 3])?;
    }
    Ok(vec![Some(y), Some(call.ops.stack(h, axes.1)?), Some(call.ops.stack(c, axes.1)?)])
}
