// The nearest f16, ties to even. Packing alone would leave the rounding to the driver.
fn round_f16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let m = bits & 0x7fffffffu;
    if (m > 0x7f800000u) {
        return x;
    }
    if (m >= 0x477ff000u) {
        return from_bits((bits & 0x80000000u) | 0x7f800000u);
    }
    if (m < 0x38800000u) {
        return round(x * 16777216.0) * 5.9604645e-8;
    }
    return from_bits((bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u);
}
