// The exponential with defined limits. Drivers differ for arguments whose result is not a normal number.
fn exp_f32(x: f32) -> f32 {
    let ends = select(0.0, from_bits(0x7f800000u), x > 0.0);
    return select(select(ends, exp(x), (x <= 88.72284) & (x >= -103.97208)), x, is_nan(x));
}
