// A float that no literal can spell (NaN, infinity). The variable keeps compilers from folding it, which they would refuse.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
