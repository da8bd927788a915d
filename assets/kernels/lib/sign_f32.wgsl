// -1, 0 or 1. NaN gives NaN.
fn sign_f32(x: f32) -> f32 {
    return select(sign(x), x, is_nan(x));
}
