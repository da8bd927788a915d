// The exponential, with its ends made sure: drivers differ on arguments whose result is no normal number.
fn exp_f32(x: f32) -> f32 {
    if (x > 88.72284) {
        return from_bits(0x7f800000u);
    }
    if (x < -103.97208) {
        return 0.0;
    }
    return select(exp(x), x, is_nan(x));
}
