// The error function, within 3e-7: its series up to 1, then a rational approximation (Abramowitz and Stegun 7.1.26).
fn erf_f32(x: f32) -> f32 {
    let m = abs(x);
    if (m < 1.0) {
        let z = x * x;
        var p = -1.6365675e-7;
        p = p * z + 1.6462114e-6;
        p = p * z - 1.4925650e-5;
        p = p * z + 1.2055333e-4;
        p = p * z - 8.5483270e-4;
        p = p * z + 5.2239776e-3;
        p = p * z - 2.6866171e-2;
        p = p * z + 1.1283792e-1;
        p = p * z - 3.7612639e-1;
        p = p * z + 1.1283792;
        return x * p;
    }
    let c = min(m, 6.0);
    let t = 1.0 / (1.0 + 0.3275911 * c);
    let p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    let r = 1.0 - p * exp(-c * c);
    return select(select(r, -r, x < 0.0), x, is_nan(x));
}
