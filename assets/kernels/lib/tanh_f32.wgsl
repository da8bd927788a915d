// A polynomial near 0, where the quotient would cancel. Elsewhere a quotient whose exponential cannot overflow.
fn tanh_f32(x: f32) -> f32 {
    let m = abs(x);
    if (m < 0.625) {
        let z = x * x;
        let p = (((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1;
        return x + x * z * p;
    }
    let r = 1.0 - 2.0 / (exp(2.0 * min(m, 15.0)) + 1.0);
    return select(select(r, -r, x < 0.0), x, is_nan(x));
}
