// The smaller number. NaN wins.
fn min_f32(a: f32, b: f32) -> f32 {
    return select(b, a, (a < b) | is_nan(a));
}

// The larger number. NaN wins.
fn max_f32(a: f32, b: f32) -> f32 {
    return select(b, a, (a > b) | is_nan(a));
}
