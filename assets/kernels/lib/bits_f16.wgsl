// The bits of the nearest f16. Computed explicitly, because drivers differ in how they pack infinities.
fn bits_f16(x: f32) -> u32 {
    let rounded = bitcast<u32>(round_f16(x));
    let sign = (rounded >> 16u) & 0x8000u;
    let m = rounded & 0x7fffffffu;
    if (m >= 0x7f800000u) {
        return sign | select(0x7c00u, 0x7e00u, m > 0x7f800000u);
    }
    if (m < 0x38800000u) {
        // A subnormal f16 is a multiple of 2⁻²⁴.
        return sign | u32(bitcast<f32>(m) * 16777216.0);
    }
    return sign | ((m - 0x38000000u) >> 13u);
}
