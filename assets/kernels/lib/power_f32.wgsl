// IEEE-754 power: anything to the power of 0, and 1 to any power, are 1. A negative base gives NaN unless the exponent
// is an integer.
fn power_f32(a: f32, b: f32) -> f32 {
    if (b == 0.0 || a == 1.0) {
        return 1.0;
    }
    if (is_nan(a) || is_nan(b)) {
        return from_bits(0x7fc00000u);
    }
    let m = abs(a);
    let n = abs(b);
    let whole = (n >= 8388608.0) | (trunc(n) == n);
    let odd = whole & (n < 16777216.0) & ((u32(min(n, 16777215.0)) & 1u) == 1u);
    var r = 1.0;
    if (is_inf(b) && m == 1.0) {
        r = 1.0;
    } else if (m == 0.0 || is_inf(m) || is_inf(b)) {
        r = select(0.0, from_bits(0x7f800000u), (m > 1.0) == (b > 0.0));
    } else if (whole && n <= 64.0) {
        // Repeated squaring keeps integer powers exact where possible.
        var base = m;
        var left = u32(n);
        while (left != 0u) {
            if ((left & 1u) == 1u) {
                r = r * base;
            }
            base = base * base;
            left = left >> 1u;
        }
        if (b < 0.0) {
            r = 1.0 / r;
        }
    } else {
        r = pow(m, b);
    }
    if (a < 0.0 && !whole && !is_inf(a)) {
        return from_bits(0x7fc00000u);
    }
    // Tests the sign bit instead of comparing, because -0 to a negative odd power is -inf.
    return select(r, -r, odd & ((bitcast<u32>(a) >> 31u) != 0u));
}
