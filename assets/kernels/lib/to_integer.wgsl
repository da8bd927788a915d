// Truncates and saturates. NaN gives 0.
fn to_i32(x: f32) -> i32 {
    if (is_nan(x)) {
        return 0;
    }
    if (x >= 2147483648.0) {
        return 2147483647;
    }
    return i32(max(x, -2147483648.0));
}

// Truncates and saturates. NaN gives 0.
fn to_u32(x: f32) -> u32 {
    if (is_nan(x) || x < 0.0) {
        return 0u;
    }
    if (x >= 4294967296.0) {
        return 0xffffffffu;
    }
    return u32(x);
}

// Truncates and saturates to the range of a narrower integer. NaN gives 0.
fn to_range(x: f32, low: f32, high: f32) -> i32 {
    return select(i32(clamp(x, low, high)), 0, is_nan(x));
}
