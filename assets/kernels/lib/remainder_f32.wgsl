// Exact remainder with the sign of the dividend: binary long division, one step per bit by which the magnitudes differ.
fn remainder_f32(a: f32, b: f32) -> f32 {
    let n = bitcast<u32>(a) & 0x7fffffffu;
    let d = bitcast<u32>(b) & 0x7fffffffu;
    if (n >= 0x7f800000u || d > 0x7f800000u || d == 0u) {
        return from_bits(0x7fc00000u);
    }
    if (n < d) {
        return a;
    }
    if (d < 0x00800000u) {
        // Subnormal divisors, which most devices treat as 0.
        return a - b * trunc(a / b);
    }
    var rest = abs(a);
    var exponent = n >> 23u;
    let last = d >> 23u;
    loop {
        let part = bitcast<f32>((d & 0x7fffffu) | (exponent << 23u));
        if (rest >= part) {
            rest = rest - part;
        }
        if (exponent == last) {
            break;
        }
        exponent = exponent - 1u;
    }
    return select(rest, -rest, (bitcast<u32>(a) >> 31u) != 0u);
}

// Remainder with the sign of the divisor.
fn modulo_f32(a: f32, b: f32) -> f32 {
    let r = remainder_f32(a, b);
    return select(r, r + b, (r != 0.0) & ((r < 0.0) != (b < 0.0)));
}
