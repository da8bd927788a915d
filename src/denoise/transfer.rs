//! The transfer function between linear colours and what the networks were trained on: a perceptually uniform curve that
//! is linear for the darkest colours, then a power, then a logarithm.

use crate::error::OpResult;
use crate::record::{TensorCommands, TensorValue};

// The curve of Open Image Denoise. The three pieces meet at `LINEAR_END` and `POWER_END` (linear colours).
const SLOPE: f64 = 1.41283765e+03;
const POWER: [f64; 3] = [1.64593172e+00, 4.31384981e-01, -2.94139609e-03];
const LOGARITHM: [f64; 3] = [1.92653254e-01, 6.26026094e-03, 9.98620152e-01];
const LINEAR_END: f64 = 1.57945760e-06;
const POWER_END: f64 = 3.22087631e-02;
const ENCODED_LINEAR_END: f64 = 2.23151711e-03;
const ENCODED_POWER_END: f64 = 3.70974749e-01;

/// The colour that is encoded as 1: the largest half-precision number.
const LARGEST: f64 = 65504.0;

/// The encoded value of [`LARGEST`] before it is scaled to 1.
fn range() -> f64 {
    let [factor, shift, offset] = LOGARITHM;
    factor * (LARGEST + shift).ln() + offset
}

/// Encodes colours that are not negative.
pub(super) fn encode<'a>(ops: &'a TensorCommands, y: TensorValue<'a>) -> OpResult<TensorValue<'a>> {
    let scale = 1.0 / range();
    let [factor, exponent, offset] = POWER;
    let power = ops.add(ops.pow(y, exponent)? * (factor * scale), offset * scale)?;
    let [factor, shift, offset] = LOGARITHM;
    let logarithm = ops.add(ops.log(y + shift)? * (factor * scale), offset * scale)?;
    let upper = ops.select(ops.less_equal(y, POWER_END)?, power, logarithm)?;
    ops.select(ops.less_equal(y, LINEAR_END)?, ops.mul(y, SLOPE * scale)?, upper)
}

/// Decodes values that are not negative.
pub(super) fn decode<'a>(ops: &'a TensorCommands, x: TensorValue<'a>) -> OpResult<TensorValue<'a>> {
    let x = ops.mul(x, range())?;
    let [factor, exponent, offset] = POWER;
    // Below this piece the base could be negative.
    let base = ops.max((x - offset) * (1.0 / factor), 0.0)?;
    let power = ops.pow(base, 1.0 / exponent)?;
    let [factor, shift, offset] = LOGARITHM;
    let logarithm = ops.sub(ops.exp((x - offset) * (1.0 / factor))?, shift)?;
    let upper = ops.select(ops.less_equal(x, ENCODED_POWER_END)?, power, logarithm)?;
    ops.select(ops.less_equal(x, ENCODED_LINEAR_END)?, ops.mul(x, 1.0 / SLOPE)?, upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_the_curve_meet() {
        let power = |y: f64| POWER[0] * y.powf(POWER[1]) + POWER[2];
        let logarithm = |y: f64| LOGARITHM[0] * (y + LOGARITHM[1]).ln() + LOGARITHM[2];
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-5, "{a} and {b}");
        near(SLOPE * LINEAR_END, power(LINEAR_END));
        near(SLOPE * LINEAR_END, ENCODED_LINEAR_END);
        near(power(POWER_END), logarithm(POWER_END));
        near(power(POWER_END), ENCODED_POWER_END);
        near(range(), logarithm(LARGEST));
    }
}
