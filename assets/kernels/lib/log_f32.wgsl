// The natural logarithm with limits that drivers leave undefined: 0 gives -inf, negative numbers NaN, and inf gives
// inf.
fn log_f32(x: f32) -> f32 {
    if (x == 0.0) {
        return from_bits(0xff800000u);
    }
    if (!(x > 0.0)) {
        return from_bits(0x7fc00000u);
    }
    return select(log(x), x, is_inf(x));
}
