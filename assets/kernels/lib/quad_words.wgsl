// The four 32-bit words of two 64-bit words.
fn quad_words(w: vec2<u64>) -> vec4<u32> {
    let low = vec2<u32>(w);
    let high = vec2<u32>(w >> vec2<u32>(32u));
    return vec4<u32>(low.x, high.x, low.y, high.y);
}
