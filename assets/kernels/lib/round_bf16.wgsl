// What a bfloat16 can hold, halves to even: the upper half of the bits. NaN stays NaN, whatever bits of it are cut off.
fn round_bf16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return from_bits((bits | 0x00400000u) & 0xffff0000u);
    }
    return from_bits((bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u);
}
