// -1, 0 or 1; NaN stays.
fn sign_f32(x: f32) -> f32 {
    return select(sign(x), x, is_nan(x));
}
