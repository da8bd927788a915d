//! Fourier transforms.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, one, unsupported};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    match call.case.op.as_str() {
        "DFT" => Some(dft(call)),
        _ => None,
    }
}

/// The axis is an attribute before version 20 and an input since. The last axis of the signal has 1 or 2 parts.
fn dft<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (ops, shape) = (call.ops, call.shape_of(0));
    let axis = match call.case.opset {
        ..20 => call.case.int("axis", 1),
        _ => call.host_ints(2).and_then(|axis| axis.first().copied()).unwrap_or(-2),
    };
    let axis = if axis < 0 { axis + shape.len() as i64 } else { axis } as isize;
    let length = call.host_ints(1).and_then(|length| length.first().map(|&n| n as usize));
    let (inverse, onesided) = (call.case.int("inverse", 0) == 1, call.case.int("onesided", 0) == 1);
    let mut x = call.x(0)?;
    match (shape.last(), inverse, onesided) {
        (Some(1), false, true) => one(ops.rfft(ops.squeeze(x, -1)?, length, axis)),
        (Some(2), true, true) => one(ops.unsqueeze(ops.irfft(x, length, axis)?, &[-1])),
        (Some(1 | 2), _, false) => {
            if shape.last() == Some(&1) {
                let mut pads = vec![(0, 0); shape.len()];
                pads[shape.len() - 1] = (0, 1);
                x = ops.pad(x, &pads, PadMode::Constant(0.0))?.into();
            }
            one(if inverse { ops.ifft(x, length, axis) } else { ops.fft(x, length, axis) })
        }
        other => unsupported(format!("{other:?} has no method of its own")),
    }
}
